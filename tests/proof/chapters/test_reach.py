"""An edit runs all that it can reach, and not the rest of the chapter."""

import pytest

from reach import cells_needed, cells_to_run, without_slow


def reached(*cells: str, constant: tuple[str, ...] = ()) -> list[int]:
    """Return which cells run once the cell `n = 1`, or whichever has a 1 first, is edited."""
    at = next(index for index, cell in enumerate(cells) if "1" in cell)
    return cells_to_run(cells, {at: cells[at].replace("1", "2")}, constant)


def test_what_reads_a_touched_name_runs_through_any_number_of_steps():
    cells = "m = 0", "n = 1", "a = n", "print(m)", "b = a", "print(m)", "print(b)"
    assert reached(*cells) == [1, 2, 4, 6]


@pytest.mark.parametrize(
    "reader",
    [
        "def f(): return [n for _ in 'ab']",
        "f = lambda x=0: x + n",
        "n += 3",
        "print(f'{n}')",
        "for i in range(0):\n    n = 3\nprint(n)",
        "for i in range(0):\n    n = n + 3\nprint(n)",
        "if (n := 3) and n: pass\nprint(n)",
        "print(globals())",
        "print(vars())",
        "!cat {n}",
        "!cat $n",
        "from os.path import *",
    ],
)
def test_a_name_is_read_wherever_it_stands(reader):
    assert reached("n = 1", reader, "print(n)") == [0, 1, 2]


@pytest.mark.parametrize(
    "other",
    [
        "def f(n): return n",
        "m = [n for n in 'ab']",
        "n = 3\nprint(n)",
        "for n in 'ab':\n    print(n)",
        "with open('x') as n:\n    print(n)",
        "print(m.n)",
    ],
)
def test_another_variable_of_the_same_name_is_not_it(other):
    assert reached("n = 1", other) == [0]


@pytest.mark.parametrize(
    "change",
    [
        "seen.append(n)",
        "seen[0] = n",
        "seen += [n]",
        "fill(*seen, n)",
        "fill(n, into=seen)",
        "for each in seen[2:]:\n    each.append(n)",
        "def add():\n    seen.append(n)\nadd()",
        "adders['it'](n)",
        "adder.add(n)",
        "bind(n)",
        "made(n)",
    ],
)
def test_what_a_reached_cell_may_change_in_place_is_touched(change):
    above = (
        "seen = []\ndef add(x):\n    seen.append(x)\nadders = {'it': add}\nsize = 3",
        "class Adder:\n    def add(self, x):\n        seen.append(x)\nadder = Adder()",
        "def bind(x):\n    global seen\n    seen = x",
        "def maker():\n    def inner(x):\n        seen.append(x)\n    return inner\nmade = maker()",
    )
    assert reached(*above, "n = 1", change, "print(seen)", "print(size)") == [4, 5, 6]


def test_modules_and_constants_are_not_changed_by_calls():
    cells = (
        "import numpy as np",
        "model = load()",
        "n = 1",
        "model(np.sum(n), model)",
        "np.e, model",
    )
    assert reached(*cells, constant=("model",)) == [2, 3]
    assert reached(*cells) == [2, 3, 4]
    bound_later = (*cells[:3], "model = []", "model.append(n)", "print(model)")
    assert reached(*bound_later, constant=("model",)) == [2, 3, 4, 5]


def test_a_function_that_reads_a_touched_name_is_touched_itself():
    above = "def f(): return n", "def g(): return f()", "h = {'g': g}", "unlike = 3"
    assert reached(*above, "n = 1", "print(h)", "print(unlike)", "h['g']()") == [4, 5, 7]
    assert reached("def f(): return n", "f = wrap(f)", "n = 1", "f()") == [2, 3]


def test_what_a_reached_cell_needs_runs_before_it():
    cells = (
        *("n = 1", "import math", "def f(x): return math.sqrt(size) + x", "size = 3", "size = 4"),
        *("many = []", "many.append(0)", "aside = many", "print(f(n), many)"),
    )
    assert reached(*cells) == [0, 1, 2, 4, 5, 6, 8]


def test_only_changed_statements_touch_and_so_does_what_is_gone():
    assert reached("m = 3\nn = 1\nk = 4", "print(m, k)", "print(n)") == [0, 2]
    assert reached("m = []\nn = 1\nm.append(n)", "print(m)") == [0, 1]
    assert cells_to_run(["a = b = 1", "print(a)", "print(b)"], {0: "b = 1"}) == [0, 1, 2]


def test_after_what_cannot_be_read_all_runs():
    assert reached("n = 1", "m = 3", "%time m", "print(m)") == [0, 1, 2, 3]
    assert cells_to_run(["n = 1", "m = 3"], {0: "n = ("}) == [0, 1]


def test_cells_that_are_left_out_reach_what_reads_their_names():
    """Which then needs the value from before them, if there was one."""
    cells = ["pass", "n = 1", "n = 2", "m = 3", "print(n)", "print(m)", "n = 4", "print(n)"]
    assert cells_to_run(cells, {2: "", 3: ""}) == [2, 3, 4, 5]
    assert cells_to_run(cells, {1: "", 2: ""}) == [1, 2, 4]


def test_slow_cells_are_left_out_with_what_needs_them():
    cells = (
        *("n = 1", "def f(): return a", "a = slow(n)", "b = a + n", "f()", "print(b)"),
        *("b = 2", "print(b, n)", "a = 3", "f()"),
    )
    every = list(range(len(cells)))
    assert without_slow(cells, {0: "n = 2"}, every, {2}) == [0, 1, 6, 7, 8, 9]
    assert without_slow(cells, {2: "a = 2"}, every, {2}) == every
    assert without_slow(cells, {0: "n = 2"}, [0, 2, 7], {2}) == [0, 7]
    assert without_slow(["n = 1", "a = n", "%time n"], {0: "n = 2"}, [0, 1, 2], {1}) == [0]


def test_what_wanted_cells_read_is_needed_through_any_number_of_steps():
    for cells, wanted, needed in (
        (("a = 1", "b = a", "c = 1", "print(b)"), [3], [0, 1, 3]),
        (("a = {}", "a['k'] = 1", "a"), [2], [0, 1, 2]),
        (("import numpy as np", "b = 1", "[np.e for b in range(3)]"), [2], [0, 2]),
    ):
        assert cells_needed(cells, wanted) == needed
