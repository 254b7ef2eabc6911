"""Missing names: which cell of the notebook defines what a cell lacks.

After a restart a reader goes on in the middle of a chapter. What a cell needs then stands above it:
a sentence that says where is worth more than a traceback.
"""

import dis
import json
import os
import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from IPython import get_ipython
from IPython.core.inputtransformer2 import TransformerManager

# Where Jupyter's server says for which notebook it started a kernel.
_NOTEBOOK = "JPY_SESSION_NAME"
_UNDEFINED = re.compile(r"name '(\w+)' is not defined")
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Cell:
    """A code cell of a notebook as it is stored, and the heading that it stands under."""

    id: str
    heading: str
    source: str


class NotRunYet(NameError):
    """A name whose cell was not run. It is shown as its sentence alone."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def explain_missing_names() -> None:
    """In the kernel of a notebook, let a NameError say which cell to run, without a traceback.

    It does so where a cell above defines the name; a misspelt one keeps its traceback. Where
    nobody says which notebook runs, as in the tests and while the site is built, nothing changes.
    """
    shell = get_ipython()
    if hasattr(shell, "kernel") and _NOTEBOOK in os.environ:
        shell.set_custom_exc((NameError,), _show)


def _show(
    shell: Any,
    kind: type[NameError],
    error: NameError,
    trace: TracebackType,
    tb_offset: int | None = None,
) -> None:
    if said := who_defines(error):
        kind, error = NotRunYet, NotRunYet(said)
    shell.showtraceback((kind, error, trace), running_compiled_code=True)


def who_defines(error: BaseException) -> str:
    """Return which cell of the running notebook defines the name that an error lacks.

    It is "" where no cell above does, or where the code that lacks it is not the notebook's.
    """
    shell, notebook = get_ipython(), os.environ.get(_NOTEBOOK, "")
    found = _UNDEFINED.match(str(error))
    if not isinstance(error, NameError) or not found or not hasattr(shell, "kernel"):
        return ""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    here = all(frame.f_globals is shell.user_ns for frame in frames[-1:])
    if error.name and not here:  # that of another process has its text, but neither name nor frames
        return ""
    try:
        cells = read_cells(Path(notebook).read_text(encoding="utf-8"))
        running = shell.kernel.get_parent()["metadata"].get("cellId", "")
    except (OSError, ValueError, KeyError):  # it has another name by now, or an older form
        return ""
    return sentence(cells, found[1], running)


def read_cells(text: str) -> list[Cell]:
    """Return the code cells of a stored notebook."""
    cells, heading = [], ""
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            cells.append(Cell(cell["id"], heading, source))
        elif found := re.findall(r"^#+ +(.+)$", _FENCED.sub("", source), re.MULTILINE):
            heading = found[-1]
    return cells


def sentence(cells: Sequence[Cell], name: str, running: str) -> str:
    """Return which cell above the one with the id `running` defines a name, "" where none does.

    Of several it is the nearest, as when all are run from the top. What is not stored yet stands
    below all that is.

    >>> cells = [Cell("a", "The loop", "n = 3"), Cell("b", "Its end", "print(n)")]
    >>> print(sentence(cells, "n", running="b"))
    `n` is not defined yet. A cell under “The loop” defines it:
        n = 3
    Run that cell, or all above this one: Run → Run All Above Selected Cell.
    """
    place = next((i for i, cell in enumerate(cells) if cell.id == running), len(cells))
    for cell in reversed(cells[:place]):
        if line := definitions(cell.source).get(name):
            return (
                f"`{name}` is not defined yet. A cell under “{cell.heading}” defines it:\n"
                f"    {line}\n"
                "Run that cell, or all above this one: Run → Run All Above Selected Cell."
            )
    return ""


def definitions(source: str) -> dict[str, str]:
    """Return the names to which a cell gives a value, each with the line that first does.

    >>> definitions("import math\\nfor n in range(3):\\n    root = math.sqrt(n)")
    {'math': 'import math', 'n': 'for n in range(3):', 'root': 'root = math.sqrt(n)'}
    """
    plain = TransformerManager().transform_cell(source)  # magics, too, as Python
    try:
        code = compile(plain, "cell", "exec", dont_inherit=True)
    except SyntaxError:  # the reader is still writing it
        return {}
    lines, found = plain.splitlines(), dict[str, str]()
    for step in dis.get_instructions(code):
        at = step.positions.lineno if step.positions else None
        if step.opname == "STORE_NAME" and at:
            found.setdefault(step.argval, lines[at - 1].strip())
    return found
