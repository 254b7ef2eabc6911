"""An edit runs all that it can reach, and not the rest of the chapter."""

import pytest

from reach import cells_needed, cells_to_run


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
        "class A:\n    size = n",
        "f = lambda x=0: x + n",
        "if False:\n    print(n)",
        "n += 3",
        "n.size = 3",
        "print(f'{n}')",
        "del n",
        "try:\n    n = 3\nexcept ValueError:\n    pass\nprint(n)",
        "for i in range(0):\n    n = 3\nprint(n)",
        "if (n := 3) and n: pass\nprint(n)",
        "%time n",
        "print(globals())",
        "print(vars())",
        "print(list(map(vars, [n])))",
        "!cat {n}",
        "if True:\n    !cat 'of {n}' >> \"{n.name}\"",
        "!cat $n",
        "lines = !cat {n}",
        "from os.path import *",
    ],
)
def test_a_name_is_read_wherever_it_stands(reader):
    if not reader.startswith("del"):
        assert 1 in reached("n = 1", reader)
    assert 2 in reached("n = 1", reader, "print(n)")


@pytest.mark.parametrize(
    "other",
    [
        "def f(n): return n",
        "f = lambda n: n",
        "m = [n for n in 'ab']",
        "n = 3\nprint(n)",
        "for n in 'ab':\n    print(n)",
        "with open('x') as n:\n    print(n)",
        "def n(): pass\nn()",
        "import n\nn.run()",
        "print(m.n)",
    ],
)
def test_another_variable_of_the_same_name_is_not_it(other):
    assert reached("n = 1", other) == [0]


def test_a_line_for_the_shell_and_vars_of_something_read_what_they_name():
    """And bind nothing, so that they do not begin all anew that stands below."""
    for reader in ("!make {m}", "print(vars(m))", "print(dir(m))"):
        assert reached("n = 1", reader, "print(m)", "print(n)") == [0, 3]
        assert reached("m = 1", reader, "print(n)", "print(m)") == [0, 1, 3]


def test_a_name_that_is_surely_bound_anew_is_touched_no_more():
    assert reached("n = 1", "n = 3", "print(n)") == [0]
    assert reached("n = 1", "if m:\n    n = 3", "print(n)") == [0, 1, 2]


@pytest.mark.parametrize(
    "change",
    [
        "seen.append(n)",
        "seen[0].more.append(n)",
        "seen[0] = n",
        "seen.first = n",
        "seen += [n]",
        "del seen[n]",
        "fill(seen, n)",
        "fill(*seen, n)",
        "fill(n, into=seen)",
        "for each in seen[2:]:\n    each.append(n)",
        "[each.append(n) for each in seen]",
        "def add():\n    seen.append(n)\nadd()",
        "add(n)",
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
    assert 4 in reached("from m import bag", "n = 1", "bag = []", "bag.append(n)", "print(bag)")
    bound_later = (*cells[:3], "model = []", "model.append(n)", "print(model)")
    assert reached(*bound_later, constant=("model",)) == [2, 3, 4, 5]


def test_what_only_looks_at_a_value_does_not_change_it():
    assert reached("m = []", "n = 1", "print(len(m), n)", "print(m)") == [1, 2]
    assert reached("m = iter('ab')", "n = 1", "print(next(m), n)", "print(m)") == [1, 2, 3]


def test_a_function_that_reads_a_touched_name_is_touched_itself():
    above = "def f(): return n", "def g(): return f()", "h = {'g': g}", "unlike = 3"
    assert reached(*above, "n = 1", "print(h)", "print(unlike)", "h['g']()") == [4, 5, 7]
    assert reached("k = 3\ndef f(): return k", "k = 1", "f()") == [1, 2]


def test_a_function_is_looked_up_where_it_is_called():
    assert reached("def f(): return n", "n = 1", "f = len", "f('')") == [1]
    wrapped = "f = wrap(f)"
    assert reached("def f(): return n", wrapped, "n = 1", "f()") == [2, 3]
    kept = "g = [f]\nf = None"
    assert reached("def f(): return n", kept, "n = 1", "g[0]()") == [2, 3]


@pytest.mark.parametrize(
    ("body", "holds"),
    [
        ("fill(seen, size)", False),
        ("seen.append(size)", False),
        ("seen.append(lambda: size)", True),
        ("seen.append(add) or size", True),
        ("seen.append(g) or size", True),
    ],
)
def test_what_a_function_changes_holds_that_function_only_if_it_can(body, holds):
    above = "seen = []\ndef g(): return size", f"def add(): {body}"
    assert reached(*above, "size = 1", "print(seen)") == ([2, 3] if holds else [2])


def test_a_decorator_is_handed_the_function():
    above = "seen = []", "@seen.append('of')\ndef add(): return size"
    assert reached(*above, "size = 1", "print(seen)") == [2, 3]


def test_what_a_reached_cell_needs_runs_before_it():
    cells = (
        "n = 1",
        "import math",
        "def f(x): return math.sqrt(size) + x",
        "size = 3",
        "size = 4",
        "many = []",
        "many.append(0)",
        "aside = many",
        "print(f(n), many)",
    )
    assert reached(*cells) == [0, 1, 2, 4, 5, 6, 8]


def test_what_the_edit_no_longer_binds_is_touched_too():
    assert cells_to_run(["a = b = 1", "print(a)", "print(b)"], {0: "b = 1"}) == [0, 1, 2]
    assert cells_to_run(["a = 1", "print(a)", "print(b)"], {0: "a, b = 1, 2"}) == [0, 1, 2]


def test_a_statement_that_an_edit_leaves_as_it_was_touches_nothing():
    """Neither in the edited cell nor in one that it reaches."""
    assert reached("m = 3\nn = 1\nk = 4", "print(m, k)", "print(n)") == [0, 2]
    assert reached("n = 1", "m = 3\nprint(n)", "print(m)") == [0, 1]


@pytest.mark.parametrize(
    "cell",
    [
        "n = 1\nm = n",
        "n = 1\nif n:\n    m = 3",
        "m = []\nn = 1\nm.append(n)",
        "def f(): return n\nn = 1\nm = f()",
    ],
)
def test_a_statement_that_reads_a_touched_name_of_its_own_cell_touches(cell):
    assert reached(cell, "print(m)") == [0, 1]


def test_statements_that_change_places_are_changed():
    swapped = {0: "a = 2\na = 1\nb = 3"}
    assert cells_to_run(["a = 1\na = 2\nb = 3", "print(a)", "print(b)"], swapped) == [0, 1]


def test_after_what_cannot_be_read_all_runs():
    assert reached("n = 1", "m = 3", "%time m", "print(m)") == [0, 1, 2, 3]
    assert cells_to_run(["n = 1", "m = 3"], {0: "n = ("}) == [0, 1]


def test_cells_that_are_left_out_reach_what_reads_their_names():
    """Which then needs the value from before them, if there was one."""
    cells = ["pass", "n = 1", "n = 2", "m = 3", "print(n)", "print(m)", "n = 4", "print(n)"]
    assert cells_to_run(cells, {2: ""}) == [2, 4]
    assert cells_to_run(cells, {2: "", 3: ""}) == [2, 3, 4, 5]
    assert cells_to_run(cells, {1: "", 2: ""}) == [1, 2, 4]
    between = ["pass", "a = 1", "n = 2", "a = 3", "print(a + n)"]
    assert cells_to_run(between, {1: "", 3: ""}) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("cells", "wanted", "needed"),
    [
        (("a = 1", "b = a", "c = 1", "print(b)"), [3], [0, 1, 3]),
        (("a = {}", "a['k'] = 1", "a"), [2], [0, 1, 2]),
        (("a = 1", "def f():\n    return a", "f()", "a = 2"), [2], [0, 1, 2]),
        (("import numpy as np", "b = 1", "[np.e for b in range(3)]"), [2], [0, 2]),
        (("a = 1", "a = 2", "a"), [], []),
    ],
)
def test_what_wanted_cells_read_is_needed_through_any_number_of_steps(cells, wanted, needed):
    assert cells_needed(cells, wanted) == needed
