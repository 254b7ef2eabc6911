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
    for kind, name, text, *most in cells:
        if kind == "solution":
            text = f"### BEGIN SOLUTION\n{text}\n### END SOLUTION"
        most = most[0] if most else None
        made.append(graded(name, new_code_cell(text), most, kind == "solution"))
    return new_notebook(cells=made, metadata=tiny_assignment.source().metadata)


def judged(source, handed_in=None, limits=PATIENT, seed: int = 1):
    return tiny_assignment.judged(source, handed_in or solved(source), limits, seed)


ONE = ("solution", "one", "def one(x):\n    return x + 1")
TWO = ("solution", "two", "def two(x): return 2 * x")
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


@pytest.mark.parametrize(
    ("given", "earned", "said"),
    [
        ("pass", 0, "NameError: name 'one' is not defined"),
        ("def one(x):\n    return x + 1\n1 / 0", 0, "one was not run to its end: ZeroDivision"),
        ("def one(x:\n    return 1", 0, "SyntaxError"),
        ("one = lambda x: x + 1", 5, None),
        ("class one(int):\n    def __new__(cls, x): return x + 1", 5, None),
        ("one = None", 0, "TypeError: 'NoneType' object is not callable"),
    ],
)
def test_an_answer_earns_what_it_does(given, earned, said):
    source = assignment(ONE, ASKED)
    notebook, reasons = judged(source, solved(source, one=given))
    assert (points(notebook), reasons) == ({"tests": earned}, [])
    assert said is None or said in mistakes(notebook)["tests"]


def test_a_stub_earns_nothing_even_where_the_test_would_pass():
    source = assignment(ONE, ASKED)
    handed_in = release(source)
    handed_in.cells.append(new_code_cell("def one(x): return x + 1"))
    handed_in.cells.insert(3, new_code_cell("def one(x): return x + 1"))
    handed_in.cells[2].source += "\n# a comment"
    notebook, _ = judged(source, handed_in)
    assert points(notebook) == {"tests": 0}
    assert "one is still as it was handed out" in mistakes(notebook)["tests"]


def test_the_judge_sees_names_as_they_stood_before_each_test():
    """A helper of the same name in a later cell changes nothing for an earlier test."""
    more = 'expect("two(1)", two(1), 3)\nexpect("one", one(1), 12)'
    source = assignment(ONE, ASKED, TWO, ("test", "more", more, 5))
    handed_in = solved(
        source,
        one="def help(x): return x + 1\ndef one(x): return help(x)",
        two="def help(x): return x + 2\ndef two(x): return help(x)\ndef one(x): return x + 11",
    )
    notebook, reasons = judged(source, handed_in)
    assert (points(notebook), reasons) == ({"tests": 5, "more": 5}, [])


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
RUN = ("solution", "run", "def run(clock):\n    return clock.tick(3)")


@pytest.mark.parametrize(
    ("given", "earned"),
    [
        ("def run(clock):\n    return clock.tick(3)", 5),
        ("def run(clock):\n    clock.tick(n=1); clock.tick(2)\n    return clock.now", 5),
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


SHARED = SETUP + "\nfrom firsttoken.assignments import closed, fresh_rng, shared"
FILL = ("solution", "fill", "def fill(x):\n    x[:] = [7] * len(x)")


def test_only_what_is_shared_comes_back_changed():
    test = 'x = {}([1, 2])\nfill(x)\nexpect("x", x, [7, 7])'
    for word, earned in (("list", 0), ("shared", 5)):
        source = assignment(FILL, ("test", "tests", test.format(word), 5), setup=SHARED)
        notebook, _ = judged(source)
        assert points(notebook) == {"tests": earned}


def test_an_answer_cannot_empty_its_arguments_to_be_right():
    """The expected value is computed after the call, from what was handed over."""
    test = 'import numpy as np\nx = np.arange(5.0)\ngot = total(x)\nexpect("sum", got, x.sum())'
    total = "def total(x):\n    return float(x.sum())"
    source = assignment(("solution", "total", total), ("test", "tests", test, 5))
    assert points(judged(source)[0]) == {"tests": 5}
    emptied = solved(source, total="def total(x):\n    x[:] = 0\n    return 0.0")
    assert points(judged(source, emptied)[0]) == {"tests": 0}


TOY = """
from firsttoken.architectures import Architecture
toy = Architecture("toy", 2, 24, 6, 2, 4, 16, 32)"""
MADE = ("solution", "made", "class Cache:\n    def __init__(self, *a): self.length = 0")
LENGTH = 'expect("length", Cache(toy, 1, 3).length, 0)'


@pytest.mark.parametrize(
    "given",
    [
        "from firsttoken.kv_cache import KVCache\nclass Cache(KVCache): pass",
        "def Cache(*args):\n    from firsttoken.kv_cache import KVCache\n    return KVCache(*args)",
        "import firsttoken\nCache = firsttoken.kv_cache.KVCache",
    ],
)
def test_answers_use_of_the_library_what_the_setup_imports(given):
    source = assignment(MADE, ("test", "tests", LENGTH, 5), setup=SETUP + TOY)
    assert points(judged(source)[0]) == {"tests": 5}
    notebook, reasons = judged(source, solved(source, made=given))
    assert (points(notebook), reasons) == ({"tests": 0}, [])
    said = "answers use of firsttoken only what the setup cell imports"
    assert said in mistakes(notebook)["tests"]


def test_a_closed_name_refuses_in_the_answers_process_alone():
    setup = SHARED + TOY + "\nfrom firsttoken.kv_cache import KVCache, kv_cache_bytes"
    test = """\
closed("firsttoken.kv_cache.KVCache", "firsttoken.kv_cache.kv_cache_bytes")
expect("length", Cache(toy, 1, 3).length, KVCache(toy, 1, 3).length)"""
    tests = ("test", "tests", test, 5), ("test", "later", LENGTH, 5)
    source = assignment(MADE, *tests, setup=setup)
    assert points(judged(source)[0]) == {"tests": 5, "later": 5}
    for given in (
        "class Cache(KVCache): pass",
        "made = KVCache(toy, 1, 3)\ndef Cache(*a): return made",
        "class Cache:\n    def __init__(self, *a): self.length = 0 * kv_cache_bytes(toy, 1)",
    ):
        notebook, _ = judged(source, solved(source, made=given))
        assert points(notebook) == {"tests": 0, "later": 5}, given
        assert "is closed to this answer: write your own" in mistakes(notebook)["tests"]


def test_each_test_draws_other_inputs_and_keeps_its_generator():
    draw = "x = int(fresh_rng().integers(10**9))\nassert one(x) == x, f'drawn {x}'"
    tests = {"tests": draw, "again": draw, "handed": "one(fresh_rng())"}
    tests = (("test", name, text, 5) for name, text in tests.items())
    source = assignment(ONE, *tests, setup=SHARED)
    said = mistakes(judged(source)[0])
    assert said["tests"] != said["again"]
    assert "with the generator of hidden inputs an answer would know" in said["handed"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("def one(x):\n    while True: pass", "a call of your code ran longer than 10 s"),
        (
            "import time\ndef one(x):\n    while True:\n        try:\n            time.sleep(1)\n"
            "        except BaseException:\n            time.sleep(9)",
            "your code gave no answer in time",
        ),
        ("import os\ndef one(x):\n    os._exit(0)", "your code has ended its process"),
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
    notebook, reasons = judged(source, solved(source, two="import os; os._exit(3)"))
    assert points(notebook) == {"tests": 5, "more": None}
    (reason,) = reasons
    assert reason.startswith("two: the kernel is gone: its process ended itself with")


def test_a_judge_that_ends_while_nobody_looks_has_said_it_all(monkeypatch):
    """On a busy machine, whole tests lie between a look at its wire and one at its process."""
    look = Sandbox.ended

    def look_late(self):
        if "judge.py" in str(self.process.args):
            self.process.wait()
        return look(self)

    monkeypatch.setattr(Sandbox, "ended", look_late)
    slow = 'import time; time.sleep(0.5); expect("one(1)", one(1), 2)'
    more = ("test", "more", 'expect("one(2)", one(2), 3)', 7)
    notebook, reasons = judged(assignment(ONE, ("test", "tests", slow, 5), more))
    assert points(notebook) == {"tests": 5, "more": 7} and reasons == []


def test_nothing_that_is_written_after_the_own_cells_is_kept():
    source = assignment(ONE, ("test", "tests", TESTS, 9.5))
    loud = "def one(x):\n    print('seen', x, flush=True)\n    return x + 1"
    handed_in = solved(source, one=loud)
    handed_in.cells.append(new_code_cell("print('last')"))
    thread = "import threading, time\ndef shout():\n    while True:\n        print('late')"
    thread += "; time.sleep(0.1)\nthreading.Thread(target=shout).start()"
    handed_in.cells.append(new_code_cell(thread))
    notebook, _ = judged(source, handed_in)
    assert points(notebook) == {"tests": 9.5}
    text = nbformat.writes(notebook)
    assert "last" in text and '"text": "seen' not in text and "seen 5" not in text
