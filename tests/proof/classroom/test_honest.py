"""Honest work gets all points, and nobody is asked to look at it.

What students and their editors do in earnest: each idiom has a name, and stands in a notebook that
is run and judged as when a class is graded. Many share one notebook, so that the file stays quick.
"""

import functools
import json

import nbformat
import pytest
from execute import executed
from grade import parsed
from marking import error, is_test, mark, mistakes, points, prepared, release
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

import tiny_assignment
from proof.classroom.honest_answers import ANSWERS, Idiom
from proof.classroom.honest_tasks import TASKS
from tiny_assignment import PATIENT, assignment, graded, named, replaced, solved

DATA = "numbers.txt"
pytestmark = pytest.mark.usefixtures("sandboxed")


# Cells that a student adds: what each holds, and what must stand in its output.

SCRATCH = {
    "nothing": ("# nothing yet", ""),
    "last value": ("1 + 1", "2"),
    "underscore": ("6 * 7\n", "42"),
    "value again": ("_ + 1", "43"),
    "!python": ("!python -c 'print(sum([1, 2, 3]))'", "6"),
    "%time": ("%time sum(range(10))", "45"),
    "%%time": ("%%time\nfound = sum(range(11))\nfound", "55"),
    "%%timeit": ("%%timeit -n 10 -r 2\nsum(range(10))", "per loop"),
    "%matplotlib": ("%matplotlib inline\nprint('inline')", "inline"),
    "%config": ("%config InlineBackend.figure_format = 'retina'\nprint('sharp')", "sharp"),
    "%%capture": (
        "%%capture caught\nprint('hidden')",
        "",
    ),
    "captured": ("caught.show()", "hidden"),
    "%autoreload": ("%load_ext autoreload\n%autoreload 2\nprint('loaded')", "loaded"),
    "%who": ("%who_ls function", "double"),
    "%%writefile": ("%%writefile mine.py\ndef three():\n    return 3", "Writing mine.py"),
    "own module": ("from mine import three\nthree()", "3"),
    "%run": ("%run mine.py\nthree()", "3"),
    "%%bash": ("%%bash\necho from bash", "from bash"),
    "%%html": ("%%html\n<b>bold</b>", "HTML"),
    "%xmode": ("%xmode Minimal", "Minimal"),
    "%pip": ("%pip --version", "pip"),
    "!ls": ("!ls", DATA),
    "!echo": ("x = 5\n!echo $x {x + 1}", "5 6"),
    "files by !": ("files = !ls\nprint(list(files))", DATA),
    "?": ("double?", "Signature"),
    "??": ("double??", "return 2 * x"),
    "help": ("help(double)", "double(x)"),
    "get_ipython().system": ("get_ipython().system('echo shell')", "shell"),
    "display": ("display('shown', [1, 2])", "[1, 2]"),
    "clear_output": (
        "from IPython.display import clear_output\nprint('old')\nclear_output(wait=True)\n"
        "print('new')",
        "new",
    ),
    "HTML": ("from IPython.display import HTML\nHTML('<b>bold</b>')", "HTML object"),
    "own _repr_html_": (
        "class Table:\n    def _repr_html_(self):\n        return '<table></table>'\n"
        "    def __repr__(self):\n        return 'a table'\nTable()",
        "a table",
    ),
    "tqdm": (
        "from tqdm import tqdm\nfor _ in tqdm(range(3)):\n    pass",
        "3/3",
    ),
    "tqdm.auto": (
        "import warnings\nwarnings.simplefilter('ignore')\n"
        "from tqdm.auto import tqdm, trange\nfor _ in trange(3, desc='rows'):\n    pass",
        "rows",
    ),
    "interact": (
        "from ipywidgets import interact\n@interact(x=(0, 10))\ndef show(x=3):\n    print(x)",
        "",
    ),
    "slider": ("import ipywidgets\nipywidgets.IntSlider(3)", "IntSlider"),
    "plot": ("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()", "image/png"),
    "plot without show": ("fig, ax = plt.subplots()\nax.bar([1, 2], [3, 4])", "image/png"),
    "figure": (
        "fig = plt.figure()\nfig.add_subplot().hist([1, 2, 2])\nplt.close()\nfig",
        "image/png",
    ),
    "savefig": ("plt.plot([1])\nplt.savefig('plot.png')\nplt.close()\n!ls plot.png", "plot.png"),
    "logging": (
        "import logging\nlogging.basicConfig(level=logging.INFO)\n"
        "logging.getLogger('mine').info('a note')",
        "a note",
    ),
    "warnings": (
        "import warnings\nwarnings.simplefilter('default')\nwarnings.warn('mind')",
        "mind",
    ),
    "stderr": ("import sys\nprint('to stderr', file=sys.stderr)", "to stderr"),
    "sys.stdout.write": ("sys.stdout.write('raw\\n'); sys.stdout.flush()", "raw"),
    "print with flush and end": (
        "for k in range(3):\n    print(k, end=' ', flush=True)",
        "0 1 2",
    ),
    "redirect": (
        "import io, contextlib\nwith contextlib.redirect_stdout(io.StringIO()) as text:\n"
        "    print('caught')\nprint(text.getvalue().upper())",
        "CAUGHT",
    ),
    "much output": ("for k in range(5000):\n    print('line', k)", "line 0\nline 1"),
    "emoji": ("print('fertig ✓ 🎉 é')", "fertig ✓ 🎉 é"),
    "colours": ("print('\\x1b[31mred\\x1b[0m')", "red"),
    "input guarded": (
        "try:\n    name = input('who? ')\nexcept Exception:\n    name = 'nobody'\nprint(name)",
        "nobody",
    ),
    "__main__": ("if __name__ == '__main__':\n    print('main')", "main"),
    "await": ("import asyncio\nawait asyncio.sleep(0.01)\nprint('awaited')", "awaited"),
    "gather": (
        "async def one(k):\n    await asyncio.sleep(0)\n    return k\n"
        "await asyncio.gather(one(1), one(2))",
        "[1, 2]",
    ),
    "asyncio.run": ("print(asyncio.run(one(3)))", "3"),
    "inspect": ("import inspect\nprint(inspect.getsource(double))", "return 2 * x"),
    "gc and memory": ("import gc\ngc.collect()\nprint('collected')", "collected"),
    "tracemalloc": (
        "import tracemalloc\ntracemalloc.start()\nx = [0] * 10**5\n"
        "print(tracemalloc.get_traced_memory()[1] > 0)\ntracemalloc.stop()",
        "True",
    ),
    "thread": (
        "import threading\nt = threading.Thread(target=lambda: print('in a thread'))\n"
        "t.start(); t.join()",
        "in a thread",
    ),
    "thread pool": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(2) as pool:\n    print(list(pool.map(double, [1, 2])))",
        "[2, 4]",
    ),
    "process pool": (
        "from multiprocessing import Pool\nwith Pool(2) as pool:\n"
        "    print(pool.map(double, [1, 2]))",
        "[2, 4]",
    ),
    "subprocess": (
        "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(5)'], "
        "capture_output=True, text=True).stdout)",
        "5",
    ),
    "read the data": (f"print(open('{DATA}').read())", "1 2 3"),
    "pickle": ("import pickle\nprint(pickle.loads(pickle.dumps({'a': (1, 2)})))", "(1, 2)"),
    "pickle of own class": (
        "class Point:\n    def __init__(self):\n        self.x = 8\n"
        "print(pickle.loads(pickle.dumps(Point())).x)",
        "8",
    ),
    "own test": ("assert double(4) == 8, 'wrong'\nprint('passed')", "passed"),
    "own expect": ("expect('mine', double(5), 10)\nprint('as expected')", "as expected"),
    "doctest": (
        "def plus(x):\n    '''\n    >>> plus(1)\n    2\n    '''\n    return x + 1\n"
        "import doctest\ndoctest.testmod()",
        "TestResults(failed=0",
    ),
    "unittest": (
        "import unittest\nclass Tests(unittest.TestCase):\n    def test_double(self):\n"
        "        self.assertEqual(double(1), 2)\n"
        "unittest.main(argv=['x', 'Tests'], exit=False, verbosity=0)\nprint('ran')",
        "ran",
    ),
    "tabs": ("if True:\n\tprint('tab')", "tab"),
    "windows line ends": ("a = 1\r\nif a:\r\n    print('crlf')\r\n", "crlf"),
}
# Cells that end in an error, which costs nothing: they stand in no answer.
BROKEN = {
    "syntax error": ("def half(:\n    pass", "SyntaxError"),
    "name error": ("undefined_name + 1", "NameError"),
    "own raise": ("raise ValueError('not yet')", "not yet"),
    "assertion": ("assert double(1) == 3, 'I thought so'", "I thought so"),
    "input": ("input('your name? ')", "Error"),
    "no module": ("import nowhere_to_be_found", "ModuleNotFoundError"),
    "no file": ("open('C:/Users/ada/data.csv')", "FileNotFoundError"),
    "sys.exit": ("import sys\nsys.exit()", ""),
    "exit()": ("exit()", ""),
    "quit": ("quit", ""),
    "keyboard interrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "wrong magic": ("%no_such_magic", "not found"),
    "no network": (
        "import urllib.request\nurllib.request.urlopen('http://example.org', timeout=1)",
        "URLError",
    ),
    "stub": ("raise NotImplementedError", "NotImplementedError"),
}


def shown(cell) -> str:
    """Return all that a cell's outputs say."""
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
import math
from dataclasses import replace

import numpy as np

from firsttoken.architectures import Architecture
from firsttoken.assignments import closed, expect, fresh_rng, personal_rng, shared, student_id
from firsttoken.generate import generate
from firsttoken.llama import load_model
from firsttoken.paging import OutOfBlocks
from firsttoken.sampling import SamplingParams, softmax
from firsttoken.tokenizer import tokenizer

student = student_id(STUDENT)
rng = personal_rng(student, "many")
model, tok = load_model("draft"), tokenizer()
SHAPE = model.arch
TABLE = {"a": [1.0, 2.0], "b": [3.0]}
GRID = np.arange(12.0).reshape(3, 4)
print("a number of yours:", int(rng.integers(100)))"""


def many(idioms: dict[str, Idiom]) -> tuple[nbformat.NotebookNode, nbformat.NotebookNode]:
    """Return an assignment with a task for each idiom, and the notebook that solves it so."""
    source = new_notebook(metadata=tiny_assignment.source().metadata)
    source.cells = [new_code_cell('STUDENT = ""'), graded("setup", new_code_cell(SETUP))]
    for k, idiom in enumerate(idioms.values()):
        nothing = ", ".join(["None"] * (1 + idiom.asked.count(",")))
        stub = f"### BEGIN SOLUTION\n{idiom.asked} = {nothing}\n### END SOLUTION"
        source.cells.append(graded(f"task-{k}", new_code_cell(stub), solution=True))
        source.cells.append(graded(f"test-{k}", new_code_cell(idiom.test), points=1))
    answers = {f"task-{k}": idiom.answer for k, idiom in enumerate(idioms.values())}
    return source, replaced(release(source), answers)


@functools.cache
def answered(group: int) -> dict[str, str]:
    """Return what went wrong with each idiom of a group."""
    source, submitted = many({name: ANSWERS[name] for name in GROUPS[group]})
    notebook = judged(source, submitted)
    said = {}
    for k, name in enumerate(GROUPS[group]):
        said[name] = error(named(notebook, f"task-{k}")) or mistakes(notebook).get(f"test-{k}", "")
        if points(notebook)[f"test-{k}"] != 1:
            said[name] = said[name] or "no points"
    return said


N_GROUPS = 3
GROUPS = [list(ANSWERS)[k::N_GROUPS] for k in range(N_GROUPS)]


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_in_a_style_of_its_own_earns_its_points(name):
    group = next(k for k, names in enumerate(GROUPS) if name in names)
    assert answered(group)[name] == ""


# What editors, formatters and other places make of the file. Each changes the notebook as JSON.


def every(notebook: dict, change) -> None:
    """Change the source of every cell of code."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["source"] = change(cell["source"])


def without_ids(notebook):
    notebook["nbformat_minor"] = 0
    for cell in notebook["cells"]:
        cell.pop("id", None)


def as_lists(notebook):
    for cell in notebook["cells"]:
        cell["source"] = cell["source"].splitlines(keepends=True)


def windows(notebook):
    every(notebook, lambda text: text.replace("\n", "\r\n"))


def spaces_at_ends(notebook):
    every(notebook, lambda text: "\n" + text.replace("\n", "   \n") + "\n\n\n")


def formatted(notebook):
    cell = named(notebook, "double_tests")
    cell["source"] = cell["source"].replace('"', "'").replace("reveal=True)", "reveal=True,\n)")
    every(notebook, lambda text: text.replace("def scale(x):\n", "def scale(x):\n\n"))


def tabs(notebook):
    every(notebook, lambda text: text.replace("    ", "\t"))


def vs_code(notebook):
    notebook["metadata"]["language_info"] = {"name": "python", "version": "3.13.1"}
    notebook["metadata"]["kernelspec"] = {"name": "base", "display_name": "base (Python 3.13)"}
    for cell in notebook["cells"]:
        cell["metadata"]["vscode"] = {"languageId": "python"}


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


def other_metadata(notebook):
    for cell in notebook["cells"]:
        cell["metadata"] |= {"collapsed": True, "tags": ["mine"], "execution": {"shell": "x"}}
        cell["metadata"].pop("deletable", None)
        cell["metadata"].pop("editable", None)


def without_an_id(notebook):
    notebook["cells"][1]["source"] = "STUDENT = ''  # written by the hub"


def an_id(notebook):
    notebook["cells"][1]["source"] = '# my id\nSTUDENT = " ada "\n'


def cells_around(notebook):
    """Cells above, between and below, of every kind."""
    cell = {"cell_type": "code", "metadata": {}, "source": "import numpy as np", "outputs": []}
    text = {"cell_type": "markdown", "metadata": {}, "source": "# My notes\n$x^2$"}
    raw = {"cell_type": "raw", "metadata": {}, "source": "raw"}
    cells = []
    for old in notebook["cells"]:
        cells += [dict(cell), dict(text), dict(raw), old]
    notebook["cells"] = [*cells, dict(cell), dict(text)]


def helper_above(notebook):
    notebook.cells.insert(2, new_code_cell("def twice(x): return 2 * x"))
    named(notebook, "double").source = "def double(x):\n    return twice(x)"


def below(notebook, name: str, code: str):
    """Add a cell below another one."""
    place = notebook.cells.index(named(notebook, name))
    notebook.cells.insert(place + 1, new_code_cell(code))


def helper_below(notebook):
    """The helper of an answer stands in the next cell, before the tests."""
    named(notebook, "double").source = "def double(x):\n    return twice(x)"
    below(notebook, "double", "def twice(x):\n    return 2 * x")


def answer_below(notebook):
    named(notebook, "scale").source = "# see the next cell"
    below(notebook, "scale", "def scale(x):\n    return factor * x")


def comments(notebook):
    """The stub's comment and line are still there, behind what was written."""
    stub = "def double(x):\n    # YOUR CODE HERE\n    return x * 2\n    raise NotImplementedError()"
    named(notebook, "double")["source"] = stub


EDITED = (without_ids, as_lists, windows, spaces_at_ends, formatted, tabs, vs_code, colab)
EDITED += (outputs_kept, other_metadata, without_an_id, an_id, cells_around, helper_above)
EDITED += (helper_below, answer_below, comments)


@functools.cache
def outcome(cells: tuple) -> tuple[list[str], dict]:
    """Return the reasons and points of a prepared tiny notebook; the same cells run once."""
    source = tiny_assignment.source()
    notebook = new_notebook()
    for kind, text, name in cells:
        cell = {"code": new_code_cell, "markdown": new_markdown_cell}[kind](text)
        cell.metadata.update({"nbgrader": mark(named(source, name))} if name else {})
        notebook.cells.append(cell)
    return executed(notebook, source, "ada", [], PATIENT, seed=1), points(notebook)


@pytest.mark.parametrize("edit", EDITED, ids=lambda edit: edit.__name__)
def test_what_an_editor_does_to_the_file_costs_nothing(edit):
    submitted = solved()
    edit(submitted)
    notebook, *said = prepared(tiny_assignment.source(), parsed(json.dumps(submitted).encode()))
    assert said == [[], []]
    code = [(cell.cell_type, cell.source, mark(cell).get("grade_id")) for cell in notebook.cells]
    assert outcome(tuple(code)) == ([], {"double_tests": 40, "scale_tests": 45})


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
