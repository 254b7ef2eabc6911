"""Claims: what the text says of a run, held to it without punishing a reader who changed it."""

import os
from dataclasses import dataclass

import numpy as np
from IPython.display import display

from firsttoken.page.exercises.arguments import require_text
from firsttoken.page.exercises.page import markup, style_tag
from firsttoken.page.exercises.text import show


@dataclass(frozen=True, repr=False)
class _Note:
    """A sentence as a quiet line."""

    sentence: str

    def __repr__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        return f'<div class="ft-exercise ft-claim">{style_tag()}{markup(self.sentence)}</div>'


def claim(holds: bool, sentence: str) -> None:
    """Hold the text to what the cells above gave: where it does not hold, show `sentence`.

    `sentence` tells a reader who changed something which number of the text no longer describes
    their run; the cells below go on. Where the environment says FIRSTTOKEN_CLAIMS=raise, as in the
    tests and while the site is built, the same claim raises AssertionError: there nobody has
    changed anything, so the text is wrong.

    Raises: ValueError where `holds` is neither true nor false, or `sentence` is empty.

    >>> n_tokens = 30
    >>> claim(n_tokens == 30, f"The text speaks of 30 tokens; yours has {n_tokens}.")
    """
    require_text("sentence", sentence)
    if not isinstance(holds, bool | np.bool_):
        raise ValueError(f"holds must be True or False; got {show(holds)}")
    if holds:
        return
    if os.environ.get("FIRSTTOKEN_CLAIMS") == "raise":
        raise AssertionError(sentence)
    display(_Note(sentence))
