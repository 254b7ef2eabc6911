"""An assignment of two tasks, small enough to grade in a second: the graders' tests run on it."""

import re

import nbformat
from marking import mark, release
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

TOPIC = "tiny"


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
    """Return the source notebook, with solutions and hidden tests."""
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
    "own class of classes": (
        {
            "scale": "class Same(type):\n    __eq__ = lambda self, other: True\n"
            "    __hash__ = type.__hash__\nclass Any(float, metaclass=Same):\n"
            "    __abs__ = lambda self: 0.0\n    __sub__ = __rsub__ = lambda self, other: self\n"
            "def scale(x):\n    return Any(x)"
        },
        40,
        "an object of type Any",
    ),
}


def solved(**sources: str) -> nbformat.NotebookNode:
    """Return a solved notebook as a student hands it in, with other sources in some cells."""
    notebook = release(source())
    answers = {mark(c).get("grade_id"): c.source for c in source().cells}
    for cell in notebook.cells:
        name = mark(cell).get("grade_id", cell.id)
        if mark(cell).get("solution"):
            cell.source = re.sub(r"^ *### (BEGIN|END) SOLUTION\n?", "", answers[name], flags=re.M)
        cell.source = sources.pop(name, cell.source)
    assert not sources, f"no cells {list(sources)}"
    return notebook
