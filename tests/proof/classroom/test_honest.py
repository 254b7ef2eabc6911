"""Honest work gets all points, and nobody is asked to look at it.

What students and their editors do in earnest: each idiom has a name, and stands in a notebook that
is run and judged as when a class is graded. Many share one notebook.
"""

import json

import nbformat
import pytest
from grade import parsed
from marking import error, is_test, mark, mistakes, points, prepared, release
from nbformat.v4 import new_code_cell, new_notebook

import tiny_assignment
from proof.classroom.honest_answers import ANSWERS, Idiom
from proof.classroom.honest_tasks import TASKS
from tiny_assignment import assignment, graded, named, replaced, solved

DATA = "numbers.txt"
pytestmark = pytest.mark.usefixtures("sandboxed")


# Cells that a student adds: what each holds, and what must stand in its output.

SCRATCH = {
    "%matplotlib": ("%matplotlib inline\nprint('inline')", "inline"),
    "%%writefile": ("%%writefile mine.py\ndef three():\n    return 3", "Writing mine.py"),
    "own module": ("from mine import three\nthree()", "3"),
    "%%bash": ("%%bash\necho from bash", "from bash"),
    "files by !": ("files = !ls\nprint(list(files))", DATA),
    "?": ("double?", "Signature"),
    "slider": ("import ipywidgets\nipywidgets.IntSlider(3)", "IntSlider"),
    "plot": ("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()", "image/png"),
    "await": ("import asyncio\nawait asyncio.sleep(0.01)\nprint('awaited')", "awaited"),
    "process pool": (
        "from multiprocessing import Pool\nwith Pool(2) as pool:\n"
        "    print(pool.map(double, [1, 2]))",
        "[2, 4]",
    ),
    "windows line ends": ("a = 1\r\nif a:\r\n    print('crlf')\r\n", "crlf"),
}
# Cells that end in an error, which costs nothing: they stand in no answer.
BROKEN = {
    "syntax error": ("def half(:\n    pass", "SyntaxError"),
    "input": ("input('your name? ')", "Error"),
    "no module": ("import nowhere_to_be_found", "ModuleNotFoundError"),
    "sys.exit": ("import sys\nsys.exit()", ""),
    "wrong magic": ("%no_such_magic", "not found"),
    "no network": (
        "import urllib.request\nurllib.request.urlopen('http://example.org', timeout=1)",
        "URLError",
    ),
}


def shown(cell) -> str:
    said = []
    for output in cell.outputs:
        if output.output_type == "stream":
            said.append(output.text)
        elif output.output_type == "error":
            said += [f"{output.ename}: {output.evalue}", *output.traceback]
        else:
            said += [*output.data, output.data.get("text/plain", "")]
    return "\n".join(said)


def judged(source, submitted, files=()) -> nbformat.NotebookNode:
    """Return a submission after it was run and judged; nobody may have to look at it."""
    _, *said = prepared(source, submitted)
    assert said == [[], []]
    notebook, reasons = tiny_assignment.judged(source, submitted, files=files)
    assert reasons == []
    return notebook


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> dict:
    """The tiny assignment, solved, with all cells of above after its first task."""
    data = tmp_path_factory.mktemp("files") / DATA
    data.write_text("1 2 3", encoding="utf-8")
    data.chmod(0o644)
    data.parent.chmod(0o755)
    submitted = solved()
    place = submitted.cells.index(named(submitted, "scale"))
    added = {"imports": ("import numpy as np", "")} | SCRATCH | BROKEN
    submitted.cells[place:place] = [new_code_cell(code) for code, _ in added.values()]
    notebook = judged(tiny_assignment.source(), submitted, [data])
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and not mark(cell)]
    assert len(cells) == len(added) + 1  # the student's id
    # Whatever stands in the cells between, the tests after them earn their points.
    assert points(notebook) == {"double_tests": 40, "scale_tests": 45}, mistakes(notebook)
    return dict(zip(added, cells[1:], strict=True))


@pytest.mark.parametrize("name", SCRATCH)
def test_a_cell_that_a_student_adds_runs_as_in_jupyter(scratch, name):
    cell = scratch[name]
    assert error(cell) == ""
    assert SCRATCH[name][1] in shown(cell)


@pytest.mark.parametrize("name", BROKEN)
def test_a_cell_that_fails_costs_nothing(scratch, name):
    assert BROKEN[name][1] in shown(scratch[name])


# Answers in the style of many students: what each says, and the test that judges it.

SETUP = """\
import numpy as np

from firsttoken.assignments import expect, personal_rng, student_id
from firsttoken.generate import generate
from firsttoken.models.llama import load_model
from firsttoken.sampling import SamplingParams

student = student_id(STUDENT)
rng = personal_rng(student, "many")
model = load_model("draft")
SHAPE = model.arch
print("a number of yours:", int(rng.integers(100)))"""


def many(idioms: dict[str, Idiom]) -> tuple[nbformat.NotebookNode, nbformat.NotebookNode]:
    """Return an assignment with a task for each idiom, and the notebook that solves it so."""
    source = new_notebook(metadata=tiny_assignment.source().metadata)
    source.cells = [new_code_cell('STUDENT = ""'), graded("setup", new_code_cell(SETUP))]
    for k, idiom in enumerate(idioms.values()):
        stub = f"### BEGIN SOLUTION\n{idiom.asked} = None\n### END SOLUTION"
        source.cells.append(graded(f"task-{k}", new_code_cell(stub), solution=True))
        source.cells.append(graded(f"test-{k}", new_code_cell(idiom.test), points=1))
    answers = {f"task-{k}": idiom.answer for k, idiom in enumerate(idioms.values())}
    return source, replaced(release(source), answers)


@pytest.fixture(scope="module")
def answered() -> dict[str, str]:
    """Return what went wrong with each idiom; all stand in one notebook."""
    notebook = judged(*many(ANSWERS))
    said = {}
    for k, name in enumerate(ANSWERS):
        said[name] = error(named(notebook, f"task-{k}")) or mistakes(notebook).get(f"test-{k}", "")
        if points(notebook)[f"test-{k}"] != 1:
            said[name] = said[name] or "no points"
    return said


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_in_a_style_of_its_own_earns_its_points(answered, name):
    assert answered[name] == ""


# What editors, formatters and other places make of the file. Each changes the notebook as JSON.


def every(notebook: dict, change) -> None:
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["source"] = change(cell["source"])


def without_ids(notebook):
    notebook["nbformat_minor"] = 0
    for cell in notebook["cells"]:
        cell.pop("id", None)


def windows(notebook):
    every(notebook, lambda text: text.replace("\n", "\r\n"))


def formatted(notebook):
    cell = named(notebook, "double_tests")
    cell["source"] = cell["source"].replace('"', "'").replace("reveal=True)", "reveal=True,\n)")
    every(notebook, lambda text: text.replace("def scale(x):\n", "def scale(x):\n\n"))


def colab(notebook):
    notebook["metadata"] = {"colab": {"provenance": []}, "accelerator": "GPU"}
    for cell in notebook["cells"]:
        cell["metadata"] |= {"id": "aB3dE", "colab": {"base_uri": "https://localhost:8080/"}}
        cell["metadata"]["outputId"] = "12345678-abcd"


def outputs_kept(notebook):
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            html = {"text/html": ["<b>1</b>"], "image/png": "iVBORw0KGgo="}
            cell["outputs"] = [{"output_type": "display_data", "data": html, "metadata": {}}]
            cell["execution_count"] = 17


def an_id(notebook):
    notebook["cells"][1]["source"] = '# my id\nSTUDENT = " ada "\n'


def cells_around(notebook):
    cell = {"cell_type": "code", "metadata": {}, "source": "import numpy as np", "outputs": []}
    text = {"cell_type": "markdown", "metadata": {}, "source": "# My notes\n$x^2$"}
    raw = {"cell_type": "raw", "metadata": {}, "source": "raw"}
    cells = []
    for old in notebook["cells"]:
        cells += [dict(cell), dict(text), dict(raw), old]
    notebook["cells"] = [*cells, dict(cell), dict(text)]


def helper_below(notebook):
    named(notebook, "double").source = "def double(x):\n    return twice(x)"
    place = notebook.cells.index(named(notebook, "double")) + 1
    notebook.cells.insert(place, new_code_cell("def twice(x):\n    return 2 * x"))


def comments(notebook):
    stub = "def double(x):\n    # YOUR CODE HERE\n    return x * 2\n    raise NotImplementedError()"
    named(notebook, "double")["source"] = stub


EDITED = (without_ids, windows, formatted, colab, outputs_kept, an_id, cells_around, helper_below)
EDITED += (comments,)


@pytest.mark.parametrize("edit", EDITED, ids=lambda edit: edit.__name__)
def test_what_an_editor_does_to_the_file_costs_nothing(edit):
    submitted = solved()
    edit(submitted)
    notebook = judged(tiny_assignment.source(), parsed(json.dumps(submitted).encode()))
    assert points(notebook) == {"double_tests": 40, "scale_tests": 45}


def test_an_answer_in_two_cells():
    """As Split Cell leaves it: both have the mark of the first."""
    submitted = solved(double="def twice(x):\n    return 2 * x")
    second = nbformat.from_dict(named(submitted, "double"))
    second.source = "def double(x):\n    return twice(x)"
    submitted.cells.insert(submitted.cells.index(named(submitted, "double")) + 1, second)
    source = tiny_assignment.source()
    _, *said = prepared(source, submitted)
    assert said == [[], ["double stands there twice: both were run"]]
    notebook, reasons = tiny_assignment.judged(source, submitted)
    assert (points(notebook), reasons) == ({"double_tests": 40, "scale_tests": 45}, [])


@pytest.mark.parametrize("topic", TASKS)
def test_another_right_answer_to_an_assignment_gets_everything(topic):
    source = assignment(topic).source
    notebook = judged(source, solved(source, **TASKS[topic]))
    assert mistakes(notebook) == {}
    full = {mark(cell)["grade_id"]: mark(cell)["points"] for cell in filter(is_test, source.cells)}
    assert points(notebook) == full
