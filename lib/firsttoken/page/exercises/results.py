"""What a check gives back: right, wrong or open, and why."""

import html
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from firsttoken.page.exercises.page import markup, script_tag, style_tag
from firsttoken.page.exercises.text import error_row

_ICONS = {"right": "✓", "wrong": "✗", "open": "…"}


@dataclass(frozen=True, repr=False)
class Result:
    """The outcome of a check: true when the answer is right, and shown by the notebook.

    `status` is "right", "wrong" or "open" (nothing to judge yet). `rows` are (label, text) pairs
    such as the failing input. A right result with a `name` counts in the reader's progress, under
    the name up to its first comma: "Exercise 3, repair" solves "Exercise 3".
    """

    status: str
    message: str
    rows: tuple[tuple[str, str], ...] = ()
    name: str = ""

    def __bool__(self) -> bool:
        return self.status == "right"

    def _verdict(self) -> str:
        words = {"right": "Right.", "wrong": "Not yet.", "open": "Nothing to check yet."}
        return f"{self.name}: {words[self.status]}" if self.name else words[self.status]

    def __repr__(self) -> str:
        lines = [f"{_ICONS[self.status]} {self._verdict()} {self.message}".rstrip()]
        lines += [f"    {label}: {text}" for label, text in self.rows]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<dt>{html.escape(label)}</dt><dd><code>{html.escape(text)}</code></dd>"
            for label, text in self.rows
        )
        task = script = ""
        if self and self.name:
            named = html.escape(self.name.partition(",")[0])
            task = f' data-task="{named}" data-page="{_running_chapter()}"'
            script = script_tag("page/exercises/store.js")
        return (
            f'<div class="ft-exercise ft-{self.status}" role="status"{task}'
            f' data-lm-suppress-shortcuts="true">{style_tag()}<div class="ft-verdict">'
            f'<span class="ft-icon" aria-hidden="true">{_ICONS[self.status]}</span>'
            f"<div><strong>{markup(self._verdict())}</strong> {markup(self.message)}"
            f"{f'<dl>{rows}</dl>' if rows else ''}</div></div>{script}</div>"
        )


def _running_chapter() -> str:
    """Return the chapter whose notebook runs this kernel, or "" where nobody says.

    Jupyter's server does. The browser knows only which notebook is in front, which is another one
    when the reader has gone on while a chapter still runs.
    """
    found = re.findall(r"\d\d_[a-z_]+", os.environ.get("JPY_SESSION_NAME", ""))
    return found[-1] if found else ""


def unable(error: BaseException) -> Callable[[Any], Result]:
    text = "The right answer could not be computed. Run the cells above from the top, then this."
    return lambda answer: Result("open", text, (error_row(error),))
