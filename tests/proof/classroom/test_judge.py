"""The judge: what an answer earns, from a process that it can neither see nor talk into it."""

from dataclasses import replace

import nbformat
import pytest
from marking import mistakes, points, release
from nbformat.v4 import new_code_cell, new_notebook
from sandbox import Sandbox

import tiny_assignment
from tiny_assignment import PATIENT, SETUP, graded, solved

# Ten seconds for a call: one that is honest takes a thousandth of it.
SHORT = replace(PATIENT, call_s=10, test_s=60)
pytestmark = pytest.mark.usefixtures("sandboxed")


def assignment(*cells, setup: str = SETUP) -> nbformat.NotebookNode:
    """Return an assignment of the setup and these cells, (kind, name, source[, points])."""
    made = [new_code_cell('STUDENT = ""', id="identity"), graded("setup", new_code_cell(setup))]
    for kind, name, source, *most in cells:
        made.append(
            graded(name, new_code_cell(source), most[0] if most else None, kind == "solution")
        )
    return new_notebook(cells=made, metadata=tiny_assignment.source().metadata)


def judged(source, handed_in=None, limits=PATIENT, seed: int = 1):
    """Return the judged notebook and the reasons for a person to look."""
    return tiny_assignment.judged(source, handed_in or solved(source), limits, seed)


ONE = (
    "solution",
    "one",
    "def one(x):\n    ### BEGIN SOLUTION\n    return x + 1\n    ### END SOLUTION",
)
ASKED = ("test", "tests", 'expect("one(1)", one(1), 2)', 5)
TESTS = """\
values = [1, 2, 5]
### 3 points: one
expect("one(1)", one(1), 2)
### 4 points: zero and below
expect("one(0)", one(0), 1)
### BEGIN HIDDEN TESTS
expect("one(-1)", one(-1), 0)
### END HIDDEN TESTS
### 2.5 points: many
expect("all", [one(x) for x in values], [2, 3, 6])"""


def test_each_part_of_a_test_earns_its_own_points():
    source = assignment(ONE, ("test", "tests", TESTS, 9.5))
    notebook, reasons = judged(source)
    assert (points(notebook), reasons) == ({"tests": 9.5}, [])
    notebook, reasons = judged(source, solved(source, one="def one(x):\n    return abs(x) + 1"))
    assert (points(notebook), reasons) == ({"tests": 5.5}, [])
    found = notebook.cells[-1].metadata["parts"]
    assert [(part["name"], part["earned"], part["points"]) for part in found] == [
        ("one", 3, 3),
        ("zero and below", 0, 4),
        ("many", 2.5, 2.5),
    ]
    assert mistakes(notebook) == {
        "tests": "AssertionError: one(-1): got 2, which is not what we expect"
    }


def test_what_all_parts_need_is_needed_by_all():
    spoiled = TESTS.replace("values = [1, 2, 5]", "values = [1, 2, one(4)]\nassert values[2] == 5")
    source = assignment(ONE, ("test", "tests", spoiled, 9.5))
    notebook, _ = judged(source, solved(source, one="def one(x):\n    return 2"))
    assert points(notebook) == {"tests": 0}


@pytest.mark.parametrize(
    ("given", "earned", "said"),
    [
        ("pass", 0, "NameError: name 'one' is not defined"),
        ("def one(x):\n    return x + 1\n1 / 0", 0, "one was not run to its end: ZeroDivision"),
        ("def one(x):\n    raise NotImplementedError()", 0, "NotImplementedError"),
        ("def one(x:\n    return 1", 0, "SyntaxError"),
        ("one = lambda x: x + 1", 5, None),
        ("class one(int):\n    def __new__(cls, x): return x + 1", 5, None),
        ("one = 7", 0, "TypeError: 'int' object is not callable"),
        ("one = None", 0, "TypeError: 'NoneType' object is not callable"),
    ],
)
def test_an_answer_earns_what_it_does(given, earned, said):
    source = assignment(ONE, ASKED)
    notebook, reasons = judged(source, solved(source, one=given))
    assert (points(notebook), reasons) == ({"tests": earned}, [])
    assert said is None or said in mistakes(notebook)["tests"]


def test_a_stub_earns_nothing_even_where_the_test_would_pass():
    """And neither does the stub in another layout, whatever other cells define."""
    source = assignment(ONE, ASKED)
    handed_in = release(source)
    handed_in.cells.append(new_code_cell("def one(x): return x + 1"))
    handed_in.cells.insert(3, new_code_cell("def one(x): return x + 1"))
    for comment in ("", "\n# a comment"):
        handed_in.cells[2].source += comment
        notebook, _ = judged(source, handed_in)
        assert points(notebook) == {"tests": 0}
        assert "one is still as it was handed out" in mistakes(notebook)["tests"]


def test_the_judge_sees_names_as_they_stood_before_each_test():
    """A helper of the same name in a later cell changes nothing for an earlier test."""
    two = ("solution", "two", "### BEGIN SOLUTION\ndef two(x): return help(x)\n### END SOLUTION")
    source = assignment(
        ONE,
        ASKED,
        two,
        ("test", "more", 'expect("two(1)", two(1), 3)\nexpect("one", one(1), 12)', 5),
    )
    handed_in = solved(
        source,
        one="def help(x): return x + 1\ndef one(x): return help(x)",
        two="def help(x): return x + 2\ndef two(x): return help(x)\ndef one(x): return x + 11",
    )
    notebook, reasons = judged(source, handed_in)
    assert (points(notebook), reasons) == ({"tests": 5, "more": 5}, [])


def test_data_that_an_answer_computed_is_fetched():
    cells = ("solution", "measured", "### BEGIN SOLUTION\nrates = [factor, 2.5]\n### END SOLUTION")
    source = assignment(cells, ("test", "tests", 'expect("rates", rates, [factor, 2.5])', 5))
    notebook, _ = judged(source)
    assert points(notebook) == {"tests": 5}


CLOCK = """\
class Clock:
    def __init__(self):
        self.now, self.calls = 0, []

    def tick(self, n):
        assert n > 0, f"tick({n}) goes back"
        self.calls.append(n)
        self.now += n
        return self.now
"""
RUN = (
    "solution",
    "run",
    "### BEGIN SOLUTION\ndef run(clock):\n    return clock.tick(3)\n### END SOLUTION",
)


@pytest.mark.parametrize(
    ("given", "earned"),
    [
        ("def run(clock):\n    return clock.tick(3)", 5),
        ("def run(clock):\n    clock.tick(n=1); clock.tick(2)\n    return clock.now", 5),
        ("def run(clock):\n    clock.now = 3\n    return 3", 0),
        ("def run(clock):\n    clock.calls.append(3)\n    return 3", 0),
        ("def run(clock):\n    clock.__init__()\n    return 3", 0),
        # An assertion of the test's own object counts, also if the answer swallows it.
        (
            "def run(clock):\n    try: clock.tick(-1)\n    except AssertionError: pass\n"
            "    return clock.tick(3)",
            0,
        ),
    ],
)
def test_objects_of_a_test_can_be_used_and_not_changed(given, earned):
    test = 'clock = Clock()\nexpect("run", run(clock), 3)\nexpect("calls", sum(clock.calls), 3)'
    source = assignment(("locked", "clock", CLOCK), RUN, ("test", "tests", test, 5))
    notebook, reasons = judged(source, solved(source, run=given))
    assert (points(notebook), reasons) == ({"tests": earned}, [])


def test_what_the_setup_made_goes_over_by_name():
    """Each process uses its own: nothing of it has to be sent."""
    setup = SETUP + "\ntool = object()\ndef helper(x):\n    return 10 * x"
    use = "### BEGIN SOLUTION\ndef use(a, f, x):\n    return [a is tool, f is helper, f(x)]\n"
    test = 'expect("use", use(tool, helper, 2), [True, True, 20])'
    source = assignment(
        ("solution", "use", use + "### END SOLUTION"), ("test", "tests", test, 5), setup=setup
    )
    notebook, _ = judged(source)
    assert points(notebook) == {"tests": 5}


SHARED = SETUP.replace("import expect,", "import closed, expect, fresh_rng,").replace(
    "personal_rng, student_id", "personal_rng, shared, student_id"
)
FILL = (
    "solution",
    "fill",
    "### BEGIN SOLUTION\ndef fill(x):\n    x[:] = [7] * len(x)\n### END SOLUTION",
)


def test_only_what_is_shared_comes_back_changed():
    test = 'x = {}([1, 2])\nfill(x)\nexpect("x", x, [7, 7])'
    for word, earned in (("list", 0), ("shared", 5)):
        source = assignment(FILL, ("test", "tests", test.format(word), 5), setup=SHARED)
        notebook, _ = judged(source)
        assert points(notebook) == {"tests": earned}


def test_an_answer_cannot_empty_its_arguments_to_be_right():
    """The expected value is computed after the call, from what was handed over."""
    test = 'import numpy as np\nx = np.arange(5.0)\ngot = total(x)\nexpect("sum", got, x.sum())'
    total = "### BEGIN SOLUTION\ndef total(x):\n    return float(x.sum())\n### END SOLUTION"
    source = assignment(("solution", "total", total), ("test", "tests", test, 5))
    assert points(judged(source)[0]) == {"tests": 5}
    emptied = solved(source, total="def total(x):\n    x[:] = 0\n    return 0.0")
    assert points(judged(source, emptied)[0]) == {"tests": 0}


@pytest.mark.parametrize(
    "given",
    [
        "from firsttoken.kv_cache import KVCache\nclass Cache(KVCache): pass",
        "import firsttoken.kv_cache as library\nCache = library.KVCache",
        "from firsttoken import kv_cache\nCache = kv_cache.KVCache",
        "from firsttoken.kv_cache import *\nCache = KVCache",
        "def Cache(*args):\n    from firsttoken.kv_cache import KVCache\n    return KVCache(*args)",
        "import firsttoken\nCache = firsttoken.kv_cache.KVCache",
    ],
)
def test_answers_use_of_the_library_what_the_setup_imports(given):
    setup = SETUP + "\nfrom firsttoken.architectures import Architecture"
    setup += '\ntoy = Architecture("toy", 2, 24, 6, 2, 4, 16, 32)'
    made = "### BEGIN SOLUTION\nclass Cache:\n    def __init__(self, *a): self.length = 0\n"
    test = 'expect("length", Cache(toy, 1, 3).length, 0)'
    source = assignment(
        ("solution", "made", made + "### END SOLUTION"), ("test", "tests", test, 5), setup=setup
    )
    assert points(judged(source)[0]) == {"tests": 5}
    notebook, reasons = judged(source, solved(source, made=given))
    assert (points(notebook), reasons) == ({"tests": 0}, [])
    assert (
        "answers use of firsttoken only what the setup cell imports"
        in (mistakes(notebook)["tests"])
    )


def test_a_closed_name_refuses_in_the_answers_process_alone():
    setup = SHARED + "\nfrom firsttoken.architectures import Architecture"
    setup += "\nfrom firsttoken.kv_cache import KVCache, kv_cache_bytes"
    setup += '\ntoy = Architecture("toy", 2, 24, 6, 2, 4, 16, 32)'
    made = "### BEGIN SOLUTION\nclass Cache:\n    def __init__(self, *a): self.length = 0\n"
    test = """\
closed("firsttoken.kv_cache.KVCache", "firsttoken.kv_cache.kv_cache_bytes")
expect("length", Cache(toy, 1, 3).length, KVCache(toy, 1, 3).length)"""
    later = 'expect("length", Cache(toy, 1, 3).length, 0)'
    source = assignment(
        ("solution", "made", made + "### END SOLUTION"),
        ("test", "tests", test, 5),
        ("test", "later", later, 5),
        setup=setup,
    )
    assert points(judged(source)[0]) == {"tests": 5, "later": 5}
    for given in (
        "class Cache(KVCache): pass",
        "made = KVCache(toy, 1, 3)\ndef Cache(*a): return made",
        "class Cache:\n    def __init__(self, *a): self.length = 0 * kv_cache_bytes(toy, 1)",
    ):
        notebook, _ = judged(source, solved(source, made=given))
        assert points(notebook) == {"tests": 0, "later": 5}, given
        assert "is closed to this answer: write your own" in mistakes(notebook)["tests"]


def test_hidden_inputs_are_drawn_anew_and_can_be_drawn_again():
    test = """\
### BEGIN HIDDEN TESTS
x = int(fresh_rng().integers(10**9))
assert one(x) == x, f"drawn {x}"
### END HIDDEN TESTS"""
    source = assignment(ONE, ("test", "tests", test, 5), setup=SHARED)
    said = [mistakes(judged(source, seed=seed)[0])["tests"] for seed in (1, 2, 1)]
    assert said[0] != said[1] and said[0] == said[2]


def test_each_test_draws_other_inputs_and_keeps_its_generator():
    draw = "x = int(fresh_rng().integers(10**9))\nassert one(x) == x, f'drawn {x}'"
    hand = "one(fresh_rng())"
    source = assignment(
        ONE,
        ("test", "tests", draw, 5),
        ("test", "again", draw, 5),
        ("test", "handed", hand, 5),
        setup=SHARED,
    )
    said = mistakes(judged(source)[0])
    assert said["tests"] != said["again"]
    assert "with the generator of hidden inputs an answer would know" in said["handed"]


TWO = ("solution", "two", "### BEGIN SOLUTION\ndef two(x): return 2 * x\n### END SOLUTION")
LATE = "a call of your code ran longer than 10 s"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("def one(x):\n    while True: pass", LATE),
        (
            "import time\ndef one(x):\n    time.sleep(99)",
            "a call of your code ran longer than 10 s",
        ),
        (
            "import time\ndef one(x):\n    while True:\n        try:\n            time.sleep(1)\n"
            "        except BaseException:\n            time.sleep(9)",
            "your code gave no answer in time",
        ),
        ("import os\ndef one(x):\n    os._exit(0)", "your code has ended its process"),
        ("import ctypes\ndef one(x):\n    ctypes.string_at(0)", "your code has ended its process"),
    ],
)
def test_what_gives_no_answer_is_never_a_silent_zero(given, said):
    source = assignment(ONE, ASKED, TWO, ("test", "more", 'expect("two(1)", two(1), 2)', 7))
    notebook, reasons = judged(source, solved(source, one=given), SHORT)
    assert points(notebook) == {"tests": None, "more": 7}
    assert reasons == [f"tests: {said}"]


def test_a_call_that_takes_too_long_costs_only_its_part():
    source = assignment(ONE, ("test", "tests", TESTS, 9.5))
    slow = "def one(x):\n    while x == 0: pass\n    return x + 1"
    notebook, _ = judged(source, solved(source, one=slow), SHORT)
    assert [part["earned"] for part in notebook.cells[-1].metadata["parts"]] == [3, None, 2.5]


def test_after_three_calls_without_an_answer_nothing_is_asked():
    """What sleeps in every test keeps the class waiting three times, not for each part."""
    parts = "\n".join(f'### 1 points: {k}\nexpect("one", one({k}), {k} + 1)' for k in range(9))
    source = assignment(ONE, ("test", "tests", parts, 9), ("test", "more", parts, 9))
    slow = "import time\ndef one(x):\n    time.sleep(999 * (x > 5))\n    return x + 1"
    notebook, reasons = judged(source, solved(source, one=slow), SHORT)
    assert points(notebook) == {"tests": None, "more": None}
    assert reasons[1] == "more: not asked: 3 calls of your code before it took too long"


def test_tests_before_a_crash_are_judged():
    source = assignment(ONE, ASKED, TWO, ("test", "more", 'expect("two(1)", two(1), 2)', 7))
    for given, said in [
        ("import os; os._exit(3)", "two: the kernel is gone: its process ended itself with"),
        ("import ctypes; ctypes.string_at(0)", "two: the kernel is gone: its process was ended by"),
    ]:
        notebook, reasons = judged(source, solved(source, two=given))
        assert points(notebook) == {"tests": 5, "more": None}
        assert len(reasons) == 1 and reasons[0].startswith(said)


def test_a_judge_that_ends_while_nobody_looks_has_said_it_all(monkeypatch):
    """On a busy machine, whole tests lie between a look at its wire and one at its process."""
    look = Sandbox.ended

    def look_late(self):
        if "judge.py" in str(self.process.args):
            self.process.wait()
        return look(self)

    monkeypatch.setattr(Sandbox, "ended", look_late)
    source = assignment(
        ONE,
        ("test", "tests", 'import time; time.sleep(0.5); expect("one(1)", one(1), 2)', 5),
        ("test", "more", 'expect("one(2)", one(2), 3)', 7),
    )
    notebook, reasons = judged(source)
    assert points(notebook) == {"tests": 5, "more": 7} and reasons == []


def test_a_setup_that_fails_leaves_everything_open():
    source = assignment(ONE, ("test", "tests", TESTS, 9.5))
    handed_in = solved(source)
    handed_in.cells[0].source = 'STUDENT = "grace"'
    notebook, reasons = judged(source, handed_in)
    assert points(notebook) == {"tests": None}
    assert "setup stopped: ValueError: this notebook was solved for another student" in reasons[0]
    assert "correct the STUDENT line" in reasons[0]


def test_outputs_are_kept_as_text_and_pictures():
    source = assignment(ONE, ("test", "tests", TESTS, 9.5))
    handed_in = solved(source)
    code = """\
import sys
import matplotlib.pyplot as plt
from IPython.display import HTML, display
print("a", end=""); print("b"); print("c", file=sys.stderr)
plt.plot([1, 2]); plt.show()
display(HTML("<script>alert(1)</script>"))
[1, 2]"""
    handed_in.cells.append(new_code_cell(code))
    handed_in.cells.append(new_code_cell("1 / 0"))
    notebook, reasons = judged(source, handed_in)
    outputs = notebook.cells[-2].outputs
    assert reasons == []
    assert [o.output_type for o in outputs[:2]] == ["stream", "stream"]
    assert (outputs[0].text, outputs[1].text) == ("ab\n", "c\n")
    data = [output.data for output in outputs[2:]]
    assert any("image/png" in found for found in data)
    assert data[-1] == {"text/plain": "[1, 2]"}
    assert all(set(found) <= {"text/plain", "image/png"} for found in data)
    assert notebook.cells[-1].outputs[0].ename == "ZeroDivisionError"


def test_nothing_that_is_written_after_the_own_cells_is_kept():
    """Neither by a call of a test nor by a thread that goes on."""
    source = assignment(ONE, ("test", "tests", TESTS, 9.5))
    loud = "def one(x):\n    print('seen', x, flush=True)\n    return x + 1"
    handed_in = solved(source, one=loud)
    handed_in.cells.append(new_code_cell("print('last')"))
    thread = (
        "import threading, time\ndef shout():\n    while True:\n        print('late', flush=True)"
    )
    handed_in.cells.append(
        new_code_cell(thread + "; time.sleep(0.1)\nthreading.Thread(target=shout).start()")
    )
    notebook, _ = judged(source, handed_in)
    assert points(notebook) == {"tests": 9.5}
    text = nbformat.writes(notebook)
    assert "last" in text and '"text": "seen' not in text and "seen 5" not in text
