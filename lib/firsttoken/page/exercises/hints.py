"""Hints that open one after the other."""

from dataclasses import dataclass

from firsttoken.page.exercises.arguments import require_text
from firsttoken.page.exercises.page import markup, style_tag


@dataclass(frozen=True, repr=False)
class Hint:
    """Hints that open one after the other; made by `hint`."""

    steps: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join(f"Hint {i}: {step}" for i, step in enumerate(self.steps, 1))

    def _repr_html_(self) -> str:
        nested = ""
        for i, step in reversed(list(enumerate(self.steps, 1))):
            of = f" of {len(self.steps)}" if len(self.steps) > 1 else ""
            summary = f"<summary>Hint {i}{of}</summary>"
            nested = f"<details>{summary}<div>{markup(step)}</div>{nested}</details>"
        return (
            '<div class="ft-exercise ft-hint" data-lm-suppress-shortcuts="true">'
            f"{style_tag()}{nested}</div>"
        )


def hint(*steps: str) -> Hint:
    """Return hints of which each one opens the next; the reader takes as many as needed.

    Raises: ValueError without steps, or for an empty one.

    >>> hint("Count the bytes of one token.", "Keys and values: a factor 2.")
    Hint 1: Count the bytes of one token.
    Hint 2: Keys and values: a factor 2.
    """
    if not steps:
        raise ValueError("hint needs at least one step; got none")
    for i, step in enumerate(steps):
        require_text(f"steps[{i}]", step)
    return Hint(steps)
