"""What an assignment's notebook says: its release version, its points, and what went wrong.

A graded cell with code is a test cell: each of its parts gives all of its points or none, by
whether it raised. A graded cell with text is an explanation, which a person reads.
"""

import ast
import contextlib
import copy
import re
import symtable

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbgrader.preprocessors import (
    ClearHiddenTests,
    ClearOutput,
    ClearSolutions,
    ComputeChecksums,
    LockCells,
)

MAX_STRETCH = 4  # times as long as handed out, a cell may still be the same in another layout


def mark(cell) -> dict:
    """Return nbgrader's metadata of a cell; empty where it has none."""
    found = cell.metadata.get("nbgrader")
    return found if isinstance(found, dict) else {}


def is_test(cell) -> bool:
    """Return whether the cell's points come from running it."""
    return bool(mark(cell).get("grade")) and cell.cell_type == "code"


def is_explanation(cell) -> bool:
    """Return whether a person gives the cell's points."""
    return bool(mark(cell).get("grade")) and cell.cell_type == "markdown"


def release(source: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return what students get: the source without solutions, hidden tests and outputs."""
    notebook = copy.deepcopy(source)
    for step in (LockCells, ClearSolutions, ClearOutput, ClearHiddenTests, ComputeChecksums):
        notebook, _ = step().preprocess(notebook, {})
    return notebook


def error(cell) -> str:
    """Return what stopped a cell, as 'Name: message'; empty if it ran to its end."""
    for output in cell.get("outputs", []):
        if output.output_type == "error":
            return f"{output.ename}: {output.evalue}".removesuffix(": ")
    return ""


def points(notebook: nbformat.NotebookNode) -> dict[str, float | None]:
    """Return {grade_id: points} of a judged notebook's test cells; None where unknown."""
    found = {}
    for cell in filter(is_test, notebook.cells):
        earned = [part["earned"] for part in cell.metadata.get("parts", [{"earned": None}])]
        found[mark(cell)["grade_id"]] = None if None in earned else sum(earned)
    return found


def mistakes(notebook: nbformat.NotebookNode) -> dict[str, str]:
    """Return {grade_id: what went wrong} of the test cells with a part that failed."""
    found = {}
    for cell in filter(is_test, notebook.cells):
        said = [part["said"] for part in cell.metadata.get("parts", []) if part["said"]]
        if said:
            found[mark(cell)["grade_id"]] = "; ".join(dict.fromkeys(said))
    return found


def key(source: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return the notebook that grading runs: no solutions, but with the hidden tests."""
    notebook = copy.deepcopy(source)
    for step in (LockCells, ClearSolutions, ClearOutput, ComputeChecksums):
        notebook, _ = step().preprocess(notebook, {})
    return notebook


def lines(text: str) -> list[str]:
    """Return the lines of a source as they read, whatever an editor did to their ends."""
    return [line.rstrip() for line in text.strip().splitlines()]


def same(cell, given) -> bool:
    """Return whether a submitted cell says what was handed out, whatever a formatter did to it."""
    if cell.cell_type != given.cell_type:
        return False
    if lines(cell.source) == lines(given.source):
        return True
    if cell.cell_type == "code" and len(cell.source) <= MAX_STRETCH * len(given.source):
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.dump(ast.parse(cell.source)) == ast.dump(ast.parse(given.source))
    return False


def names(source: str) -> set[str]:
    """Return the names that code binds at its top level, imports left out."""
    table = symtable.symtable(source, "", "exec")
    return {s.get_name() for s in table.get_symbols() if s.is_assigned() and not s.is_imported()}


def used(code: str) -> set[str]:
    """Return the names that code takes from outside; not those that its functions bind."""
    found, tables = set(), [symtable.symtable(code, "", "exec")]
    while tables:
        table = tables.pop()
        top = table.get_type() == "module"
        found |= {s.get_name() for s in table.get_symbols() if top or s.is_global()}
        tables += table.get_children()
    return found


def is_solution(cell) -> bool:
    """Return whether a student's code stands in the cell."""
    return bool(mark(cell).get("solution")) and cell.cell_type == "code"


def is_locked(cell) -> bool:
    """Return whether the cell holds code that is handed out, and no test."""
    return bool(mark(cell).get("locked")) and cell.cell_type == "code" and not is_test(cell)


def setup(source: nbformat.NotebookNode) -> list:
    """Return the locked cells before the first task."""
    code = [cell for cell in source.cells if cell.cell_type == "code"]
    first = next((k for k, cell in enumerate(code) if is_solution(cell)), len(code))
    return [cell for cell in code[:first] if is_locked(cell)]


def imports(source: nbformat.NotebookNode) -> list[list[str]]:
    """Return what the setup imports, as [module, name]; [module, ""] for a whole module."""
    found = []
    for node in (n for cell in setup(source) for n in ast.walk(ast.parse(cell.source))):
        if isinstance(node, ast.ImportFrom):
            found += [[node.module, alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [[alias.name, ""] for alias in node.names]
    return found


def answers(source: nbformat.NotebookNode) -> dict[str, list[str]]:
    """Return {test cell: the solution cells whose names it uses, also through locked cells}."""
    bound: dict[str, str] = {}  # a name, and the cell that bound it last
    cells, found = {}, {}
    for cell in source.cells:
        grade_id = mark(cell).get("grade_id")
        if is_test(cell):
            waiting, seen = [cell.source], set()
            while waiting:
                for name in used(waiting.pop()) & bound.keys():
                    if bound[name] not in seen:
                        seen.add(bound[name])
                        if is_locked(cells[bound[name]]):
                            waiting.append(cells[bound[name]].source)
            found[grade_id] = [c for c in cells if c in seen and is_solution(cells[c])]
        if is_test(cell) or is_locked(cell) or is_solution(cell):
            cells[grade_id] = cell
            bound |= dict.fromkeys(names(cell.source), grade_id)
    return found


PART = re.compile(r"^### (\d+(?:\.\d+)?) points?: *(.+?) *$", re.M)


def parts(cell) -> list[dict]:
    """Return the parts of a test cell: [{"name", "points", "source"}, …].

    A line such as `### 5 points: two texts` begins a part. What stands before the first such line
    is needed by all, and has no points of its own. A cell without one is a single part.
    """
    found = list(PART.finditer(cell.source))
    if not found:
        return [{"name": "", "points": mark(cell)["points"], "source": cell.source}]
    ends = [*(match.start() for match in found[1:]), len(cell.source)]
    divided = [{"name": "", "points": 0, "source": cell.source[: found[0].start()]}]
    for match, end in zip(found, ends, strict=True):
        points = float(match[1])
        source = cell.source[match.start() : end]
        divided.append({"name": match[2], "points": points, "source": source})
    return divided


def attached(cell) -> dict:
    """Return the pictures of a text that a student wrote, as a cell holds them."""
    found = cell.cell_type == "markdown" and cell.get("attachments")
    return {"attachments": found} if found else {}


def prepared(
    source: nbformat.NotebookNode, submitted: nbformat.NotebookNode
) -> tuple[nbformat.NotebookNode, list[str], list[str]]:
    """Return the notebook to run, what a person has to look at, and what is only worth a note.

    Of a submission only the sources count, with the pictures that they show: of its solution cells,
    of the student's id and of the cells that the student added. All else, the tests above all, is
    ours: a test cell that was deleted, edited, moved or copied is as it was handed out. Added cells
    keep their place after the cell that they follow.
    """
    ours = {mark(cell)["grade_id"]: cell for cell in key(source).cells if mark(cell)}
    given = {mark(cell)["grade_id"]: cell for cell in release(source).cells if mark(cell)}
    theirs, added, reasons, notes, last = {}, {}, [], [], ""
    for cell in submitted.cells:
        grade_id = mark(cell).get("grade_id")
        grade_id = grade_id if isinstance(grade_id, str) and grade_id in ours else None
        if grade_id and grade_id not in theirs:
            theirs[grade_id] = cell
            last = grade_id
            if mark(ours[grade_id])["locked"] and not same(cell, given[grade_id]):
                notes.append(f"{grade_id} was edited: the original was used")
            continue
        if grade_id and mark(ours[grade_id])["locked"]:
            notes.append(f"{grade_id} stands there twice: the original was used")
            continue
        if grade_id:  # as after Split Cell
            what = "run" if cell.cell_type == "code" else "kept"
            notes.append(f"{grade_id} stands there twice: both were {what}")
        # Text that explains is not run; code that a student added is.
        make = new_code_cell if cell.cell_type == "code" else new_markdown_cell
        added.setdefault(last, []).append(make(cell.source, **attached(cell)))
    missing = [grade_id for grade_id in ours if grade_id not in theirs]
    said = "{} was deleted: the original was used"
    # A test is never theirs, so that its points are right without it. An answer is.
    notes += [said.format(grade_id) for grade_id in missing if mark(ours[grade_id])["locked"]]
    reasons += [said.format(grade_id) for grade_id in missing if not mark(ours[grade_id])["locked"]]
    cells = added.pop("", [])
    for grade_id, cell in ours.items():
        if not mark(cell)["locked"] and grade_id in theirs:
            cell.source = theirs[grade_id].source
            if cell.cell_type == "markdown":
                cell.update(attached(theirs[grade_id]))
        cells += [cell, *added.pop(grade_id, [])]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    notebook = new_notebook(cells=cells, metadata={"kernelspec": source.metadata.kernelspec})
    return notebook, reasons, notes
