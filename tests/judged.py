"""A notebook under test judges its exercises: the stub is wrong, the solution right."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

import nbformat
from nbval.plugin import IPyNbCell, IPyNbFile

collect_cells = IPyNbFile.collect
PART = re.compile(r"exercise-(\w+)-(check|solution)")


def cells_and_exercises(file: IPyNbFile) -> Iterator[IPyNbCell]:
    """Collect a notebook's cells, and after them one for each exercise, in the same kernel."""
    cells = list(collect_cells(file))
    yield from cells
    for number, source in judgements(file.nb).items():
        cell = nbformat.v4.new_code_cell(source)
        name, place = f"Exercise {number}", len(cells)
        yield IPyNbCell.from_parent(
            file, name=name, cell_num=place, cell=cell, options=defaultdict(bool)
        )


def judgements(notebook: nbformat.NotebookNode) -> dict[str, str]:
    """Return {exercise: code that fails where its check accepts the stub or not the solution}.

    A chapter's solution defines `answer_solution` for each `answer` that the stub asks for.
    """
    parts: dict[str, dict[str, str]] = {}
    for cell in notebook.cells:
        for tag in cell.metadata.get("tags", []):
            if found := PART.fullmatch(tag):
                parts.setdefault(found[1], {})[found[2]] = cell.source
    judged = {}
    for number, part in parts.items():
        *before, call = ast.parse(part["check"]).body
        check = ast.unparse(before)
        verdict = ast.unparse(call.value)
        answers = re.findall(r"^(?:def )?(\w+)_solution\b", part["solution"], re.MULTILINE)
        given = "\n".join(f"{name} = {name}_solution" for name in dict.fromkeys(answers))
        asked = f"{check}\n_verdict = {verdict}\n"
        judged[number] = (
            f"{asked}assert not _verdict, f'the stub passes: {{_verdict}}'\n{given}\n"
            f"{asked}assert _verdict, f'the solution fails: {{_verdict}}'"
        )
    return judged
