"""What an assignment's notebook says: its release version, its points, and what went wrong.

A graded cell with code is a test cell: it gives all of its points or none, by whether it raised.
A graded cell with text is an explanation, which a person reads.
"""

import ast
import builtins
import contextlib
import copy
import re
import symtable

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbgrader.preprocessors import (
    ClearHiddenTests,
    ClearOutput,
    ClearSolutions,
    ComputeChecksums,
    LockCells,
)

# Of what a student wrote, in characters: some texts take a page's maker quadratic time.
MAX_SHOWN = {"markdown": 20_000, "code": 100_000}
MIN_SECRET = 10  # characters of a line; shorter ones stand in other code by chance
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
    """Return {grade_id: points} of an executed notebook's test cells; None where unknown."""
    return {
        mark(cell)["grade_id"]: None
        if cell.metadata.get("unknown")
        else 0
        if error(cell)
        else mark(cell)["points"]
        for cell in notebook.cells
        if is_test(cell)
    }


def mistakes(notebook: nbformat.NotebookNode) -> dict[str, str]:
    """Return {grade_id: what went wrong} of the test cells that raised."""
    return {
        mark(cell)["grade_id"]: error(cell)
        for cell in notebook.cells
        if is_test(cell) and error(cell)
    }


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


MAGIC = re.compile(r"^[ \t]*[%!].*", re.M)
BINDS = re.compile(r"\b(?:def|class)\s+(\w+)|\b(\w+)\s*(?:[-+*/%@&|^]|//|\*\*|<<|>>)?=(?!=)")
SETS = re.compile(r"(?<![\w.])([A-Za-z_]\w*)(?:\.\w+)+\s*(?:[-+*/%@&|^]|//|\*\*|<<|>>)?=(?!=)")


def guessed(source: str) -> set[str]:
    """Return the names that code binds, as far as that shows in code that is no plain Python."""
    return {first or second for first, second in BINDS.findall(source)}


def names(source: str, imports: bool = False) -> set[str]:
    """Return the names that code binds at its top level, with those of `imports` or without."""
    found = set()
    for text in (source, MAGIC.sub("", source)):
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            tables = [symtable.symtable(text, "", "exec")]
            break
        found |= guessed("\n".join(MAGIC.findall(source)))
    else:
        return found | guessed(source)
    while tables:
        table = tables.pop()
        for symbol in table.get_symbols():
            top = table.get_type() == "module" or symbol.is_declared_global()
            bound = imports if symbol.is_imported() else symbol.is_assigned()
            if top and bound:
                found.add(symbol.get_name())
        tables += table.get_children()
    return found


def used(test: str) -> set[str]:
    """Return the names that a test takes from outside; not those that its functions bind."""
    found, tables = set(), [symtable.symtable(test, "", "exec")]
    while tables:
        table = tables.pop()
        top = table.get_type() == "module"
        found |= {s.get_name() for s in table.get_symbols() if top or s.is_global()}
        tables += table.get_children()
    return found


def statements(source: str) -> list[str] | None:
    """Return the statements of code in one layout; None if it is no plain Python."""
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        return list(map(ast.unparse, ast.parse(source).body))
    return None


def plain(source: str, given: frozenset[str]) -> str:
    """Return code in one layout, without comments and the statements in `given`.

    What is no plain Python, as code with magics, stays as it is.
    """
    said = statements(source)
    return source if said is None else "\n".join(line for line in said if line not in given)


ODD = re.compile(
    r"_getframe|f_locals|f_globals|f_back|tb_frame|get_ipython|InteractiveShell|ipykernel"
    r"|\b(?:globals|locals|vars)\(|__globals__|__closure__|(?<![\w.])(?<!def )(?:eval|exec)\("
    r"|builtins|ctypes|\b(?:import|from) [\w., ]{0,80}\b(?:inspect\b|gc(?=\s+(?:as|import)\b))"
    r"|\binspect\.[a-z]|\bgc\.(?!collect\b)[a-z]|\bget_(?:objects|referr)"
    r"|sys\.modules|sys\.monitoring|from sys import(?! (?:getsizeof|maxsize)\s*$)"
    r"|\bimport_module\b|__import__|__main__|__code__|co_consts|settrace|setprofile|setattr"
    r"|(?:extract|walk|format|print)_stack|StackSummary|_current_frames|linecache"
    r"|(?:firsttoken\s*)?\.\s*assignments\b"
    r"|\bimport\b[\w\t .,]{0,80}(?:[(\\][\w\s.,]{0,200})?\bassignments\b"
    r"|ast_transformers|load_ipython_extension|load_ext(?! autoreload)"
    r"|(?:^|=)[ \t]*%{1,2}(?:run\b|config (?!InlineBackend)|alias|macro|pdb|reset)",
    re.M,
)
# What a text may say of these words without using them.
PLAIN = re.compile(r"^ *#[^\"'\r\n]*$|^if __name__ == [\"']__main__[\"']:", re.M)


def oddities(source: nbformat.NotebookNode, notebook: nbformat.NotebookNode) -> list[str]:
    """Return what the student's code does that can change the tests or look into them."""
    tests = [c for c in source.cells if is_test(c)]
    last = max((k for k, c in enumerate(source.cells) if is_test(c)), default=0)
    locked = [c for c in source.cells[:last] if mark(c).get("locked") and c.cell_type == "code"]
    setup = [c for c in locked if not is_test(c)]
    ours = set(dir(builtins)).union(*(names(c.source, imports=True) for c in setup))
    tasks = [c for c in source.cells if mark(c).get("solution") and c.cell_type == "code"]
    # To run a line of the setup once more changes nothing, if the names in it are still ours.
    given = frozenset(ast.unparse(line) for c in setup for line in ast.parse(c.source).body)
    theirs = [c for c in notebook.cells if c.cell_type == "code" and not mark(c).get("locked")]
    if (size := sum(len(cell.source) for cell in theirs)) > MAX_SHOWN["code"]:
        return [f"the code has {size} characters, more than a page shows: read the submitted file"]
    again = {line for c in theirs for line in statements(c.source) or ()} & given
    ours &= set().union(*(used(text) for text in [*(c.source for c in tests), *again]))
    ours -= set().union(*(names(c.source) for c in tasks))
    said = []
    for cell in theirs:
        where = mark(cell).get("grade_id", "a cell without a name")
        code = plain(cell.source, given)
        if len(code) > MAX_SHOWN["code"]:  # deep in blocks, two characters become 400
            said.append(f"{where} is nested too deep to be searched: read it")
            continue
        found = sorted((names(code) | set(SETS.findall(code))) & ours)
        found += sorted({m.group().strip("(") for m in ODD.finditer(PLAIN.sub("", code))})
        if found:
            said.append(f"{where} uses or redefines {', '.join(found)}: read it")
    return said


def prepared(
    source: nbformat.NotebookNode, submitted: nbformat.NotebookNode
) -> tuple[nbformat.NotebookNode, list[str], list[str]]:
    """Return the notebook to run, what a person has to look at, and what is only worth a note.

    Of a submission only the sources count: of its solution cells, of the student's id and of the
    cells that the student added. All else, the tests above all, is ours: a test cell that was
    deleted, edited, moved or copied is as it was handed out. Added cells keep their place after the
    cell that they follow.
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
                reasons.append(f"{grade_id} was edited: the original was used")
            continue
        if grade_id and mark(ours[grade_id])["locked"]:
            reasons.append(f"{grade_id} stands there twice: the first one counts")
            continue
        if grade_id:  # as after Split Cell
            what = "run" if cell.cell_type == "code" else "kept"
            notes.append(f"{grade_id} stands there twice: both were {what}")
        # Text that explains is not run; code that a student added is.
        make = new_code_cell if cell.cell_type == "code" else new_markdown_cell
        added.setdefault(last, []).append(make(cell.source))
    missing = [grade_id for grade_id in ours if grade_id not in theirs]
    said = "{} was deleted: the original was used"
    # A test is never theirs, so that its points are right without it. An answer is.
    notes += [said.format(grade_id) for grade_id in missing if mark(ours[grade_id])["locked"]]
    reasons += [said.format(grade_id) for grade_id in missing if not mark(ours[grade_id])["locked"]]
    cells = added.pop("", [])
    for grade_id, cell in ours.items():
        if not mark(cell)["locked"] and grade_id in theirs:
            cell.source = theirs[grade_id].source
        cells += [cell, *added.pop(grade_id, [])]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    notebook = new_notebook(cells=cells, metadata={"kernelspec": source.metadata.kernelspec})
    return notebook, reasons, notes


def hidden_lines(source: nbformat.NotebookNode) -> set[str]:
    """Return the lines of the hidden tests that stand nowhere in the release."""
    given = {line.strip() for cell in release(source).cells for line in lines(cell.source)}
    ours = {line.strip() for cell in key(source).cells for line in lines(cell.source)}
    return {line for line in ours - given if len(line) >= MIN_SECRET}


def as_text(text: str) -> str:
    """Return markdown without tags and links: `javascript:` in one would run for the teacher."""
    text = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)
    return re.sub(r"\](?=[(:])", "] ", text)


def closed(notebook: nbformat.NotebookNode, source: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return an executed notebook that students may see: no hidden test, no trace of one.

    Of a test cell only the error's name and message stay. Text that students wrote is shown as
    text: a page that opens it runs nothing.
    """
    secret = hidden_lines(source)
    notebook, _ = ClearHiddenTests().preprocess(copy.deepcopy(notebook), {})
    room = dict(MAX_SHOWN)
    ours = {cell.source for cell in release(source).cells}
    for cell in notebook.cells:
        theirs = not mark(cell).get("locked") and cell.source not in ours
        if theirs and cell.cell_type in room:
            left = room[cell.cell_type]
            room[cell.cell_type] = max(0, left - len(cell.source))
            if len(cell.source) > left:
                cell.source = cell.source[:left] + "\n… (cut: too long for a page)"
        if is_test(cell):
            said = error(cell)
            if cell.metadata.pop("unknown", False):
                said = "Not graded: this test has not run to its end. Your teacher will look at it."
            cell.outputs = []
            if said:
                name, _, message = said.partition(": ")
                cell.outputs = [new_output("error", ename=name, evalue=message, traceback=[said])]
        elif theirs and cell.cell_type == "markdown":
            cell.source = as_text(cell.source)
        for place, output in enumerate(cell.get("outputs", [])):
            text = str(output).replace("\\", "")
            if any(line.replace("\\", "") in text for line in secret):
                cell.outputs[place] = new_output("stream", text="Left out: it shows tests.")
    return notebook
