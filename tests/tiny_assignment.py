"""An assignment of two tasks, small enough to grade in a second: the graders' tests run on it.

Beside it stand the other assignments, and what every test of grading does with one: solve it, and
have it run and judged in the sandbox.
"""

import copy
import functools
import re
import runpy
from pathlib import Path
from typing import NamedTuple

import nbformat
from execute import executed
from marking import mark, prepared, release
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from sandbox import Limits

ROOT = Path(__file__).parents[1]
TOPIC = "tiny"
TOPICS = sorted(path.parent.name for path in (ROOT / "assignments").glob("*/*.ipynb"))
# For all that is honest: no machine is so busy that it meets one of these.
PATIENT = Limits(cell_s=300, notebook_s=600, call_s=300, test_s=300, judge_s=600)


def graded(grade_id: str, cell, points: int | None = None, solution: bool = False):
    """Return the cell with nbgrader's metadata; without points and solution it is only locked."""
    cell.metadata["nbgrader"] = {
        "grade_id": grade_id,
        "grade": points is not None,
        "solution": solution,
        "locked": not solution,
        "task": False,
        "schema_version": 3,
        "cell_type": cell.cell_type,
    } | ({} if points is None else {"points": points})
    cell["id"] = grade_id.replace("_", "-")
    return cell


SETUP = """\
from firsttoken.assignments import expect, personal_rng, student_id

student = student_id(STUDENT)
rng = personal_rng(student, "tiny")
factor = int(rng.integers(2, 10**6))
print("your factor:", factor)"""
DOUBLE = """\
def double(x):
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION"""
DOUBLE_TESTS = """\
assert double(1) != 1, "double returns its argument: you forgot to multiply"
expect("double(3)", double(3), 6, reveal=True)
### BEGIN HIDDEN TESTS
expect("double of a large number", double(987654), 1975308)
### END HIDDEN TESTS"""
SCALE = """\
def scale(x):
    ### BEGIN SOLUTION
    return factor * x
    ### END SOLUTION"""
SCALE_TESTS = """\
expect("scale(1)", scale(1), factor)
### BEGIN HIDDEN TESTS
assert scale(0) == 0, "scale moves zero: it adds something"
### END HIDDEN TESTS"""


def source() -> nbformat.NotebookNode:
    identity = new_code_cell('STUDENT = ""', id="identity")
    cells = [
        new_markdown_cell("# Two tasks", id="title"),
        identity,
        graded("setup", new_code_cell(SETUP)),
        graded("double", new_code_cell(DOUBLE), solution=True),
        graded("double_tests", new_code_cell(DOUBLE_TESTS), points=40),
        graded("scale", new_code_cell(SCALE), solution=True),
        graded("scale_tests", new_code_cell(SCALE_TESTS), points=45),
        new_markdown_cell("Explain. **Rubric:** 15 points: a reason.", id="question"),
        graded("explain", new_markdown_cell("Because."), points=15, solution=True),
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


WRONG = {
    "argument returned": ({"double": "def double(x):\n    return x"}, 45, "forgot to multiply"),
    "adds": ({"scale": "def scale(x):\n    return factor * x + 1"}, 40, "scale(1): got"),
    "own class": (
        {
            "double": "class Any(int):\n    def __eq__(self, other):\n        return True\n"
            "    def __ne__(self, other):\n        return True\n"
            "def double(x):\n    return Any(x)"
        },
        45,
        "an object of type Any",
    ),
}


class Assignment(NamedTuple):
    """A topic, its source notebook and its typical wrong submissions."""

    topic: str
    source: nbformat.NotebookNode
    wrong: dict


@functools.cache
def assignment(topic: str) -> Assignment:
    if topic == TOPIC:
        return Assignment(topic, source(), WRONG)
    read = nbformat.read(ROOT / "assignments" / topic / f"{topic}.ipynb", as_version=4)
    wrong = runpy.run_path(str(ROOT / "tests" / "submissions" / f"{topic}.py"))["WRONG"]
    return Assignment(
        topic,
        read,
        {name: (spoiled(read, given), *rest) for name, (given, *rest) in wrong.items()},
    )


def spoiled(of: nbformat.NotebookNode, given: dict) -> dict[str, str]:
    """Return wrong answers as texts; some are written as {old: new} of the solution."""
    answers = {}
    for name, answer in given.items():
        text = answer if isinstance(answer, str) else solution(named(of, name))
        for old, new in {} if isinstance(answer, str) else answer.items():
            assert old in text, (name, old)
            text = text.replace(old, new)
        answers[name] = text
    return answers


def solution(cell: nbformat.NotebookNode) -> str:
    """Return the solved cell as a student has it, without nbgrader's markers."""
    return re.sub(r"^ *### (BEGIN|END) SOLUTION\n?", "", cell.source, flags=re.M)


def named(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    """Return the cell of this name: nbgrader's, or its id where it has none."""
    return next(c for c in notebook.cells if mark(c).get("grade_id", c.get("id")) == name)


def replaced(notebook: nbformat.NotebookNode, sources: dict[str, str]) -> nbformat.NotebookNode:
    """Return the notebook with other sources in the cells that are named."""
    notebook = copy.deepcopy(notebook)
    for name, text in sources.items():
        named(notebook, name).source = text
    return notebook


def solved(of: nbformat.NotebookNode | None = None, **sources: str) -> nbformat.NotebookNode:
    """Return a solved notebook as a student hands it in, with other sources in some cells."""
    of = of or source()
    notebook = release(of)
    for cell, answered in zip(notebook.cells, of.cells, strict=True):
        if mark(cell).get("solution"):
            cell.source = solution(answered)
    return replaced(notebook, sources)


def without(grade_id: str) -> nbformat.NotebookNode:
    notebook = solved()
    notebook.cells.remove(named(notebook, grade_id))
    return notebook


def twice(grade_id: str) -> nbformat.NotebookNode:
    """Return the solved notebook with one cell copied, the copy made harmless."""
    notebook = solved()
    cell = named(notebook, grade_id)
    harmless = copy.deepcopy(cell) | {"source": "pass", "id": "copy"}
    notebook.cells.insert(notebook.cells.index(cell) + 1, nbformat.from_dict(harmless))
    return notebook


def judged(
    of: nbformat.NotebookNode,
    handed_in: nbformat.NotebookNode,
    limits: Limits = PATIENT,
    seed: int = 1,
    student: str = "ada",
    files: tuple[Path, ...] = (),
) -> tuple[nbformat.NotebookNode, list[str]]:
    """Return a submission as it was run and judged, and why a person is to look at it."""
    notebook, *_ = prepared(of, handed_in)
    return notebook, executed(notebook, of, student, list(files), limits, seed)
