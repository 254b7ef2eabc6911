"""What the assignments' tests are made of, and what each wrong submission earns.

`-k kv_cache` chooses one topic. Right and empty answers are judged in check/grading, and one wrong
submission of each topic.
"""

import ast
import contextlib
import io
from collections.abc import Iterator

import nbformat
import pytest
from marking import is_locked, is_test, mark, names, parts, setup, used

from check.grading.test_assignments import ALL, gets_part_and_hears_why
from tiny_assignment import TOPICS, assignment, replaced

RULE = (
    "**The library in your answers:** use Python, NumPy and, of `firsttoken`, only what the setup "
    "cell imports; graded answers find nothing else of it."
)
HIDDEN = "### BEGIN HIDDEN TESTS"
SEEDS = range(5)

# Classes of what tests hand over: an answer may name them, as in a type hint.
HANDED_OVER = {"SamplingParams", "StepRecord"}


def with_helpers(cell, locked: list) -> set[str]:
    """Return the names that a cell uses, also through the locked cells that bind them."""
    found, waiting = set(), [cell]
    while waiting:
        new = used(waiting.pop().source) - found
        found |= new
        waiting += [helper for helper in locked if names(helper.source) & new]
    return found


def imported(cells: list) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of all that cells import from the library."""
    for node in (node for cell in cells for node in ast.walk(ast.parse(cell.source))):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("firsttoken"):
            for alias in node.names:
                yield node.module, alias.asname or alias.name


def loads(cell, name: str) -> bool:
    """Return whether code uses a name; to import it is no use."""
    nodes = ast.walk(ast.parse(cell.source))
    return any(isinstance(node, ast.Name) and node.id == name for node in nodes)


def complaints(source: nbformat.NotebookNode) -> list[str]:
    """Return what breaks the laws that need no run."""
    said = []
    code = [cell for cell in source.cells if cell.cell_type == "code"]
    tests, locked = list(filter(is_test, code)), list(filter(is_locked, code))
    texts = [cell.source for cell in source.cells if cell.cell_type == "markdown"]
    if sum(text.count(RULE) for text in texts) != 1:
        said.append("the rule on the library does not stand there once")
    for cell in tests:
        name = mark(cell)["grade_id"]
        if sum(part["points"] for part in parts(cell)) != mark(cell)["points"]:
            said.append(f"{name}: its parts have not {mark(cell)['points']} points together")
        for part in parts(cell):
            if part["source"].count(HIDDEN) != part["source"].count("### END HIDDEN TESTS"):
                said.append(f"{name}: hidden tests go over the end of the part {part['name']!r}")
        if HIDDEN in cell.source and "fresh_rng" not in with_helpers(cell, locked):
            said.append(f"{name}: its hidden inputs are the same at every grading")
        before = [other for other in locked if code.index(other) < code.index(cell)]
        ours = set().union(*(names(other.source) for other in before))
        if changed := sorted(names(cell.source) & ours):
            said.append(f"{name}: changes {changed}, which later cells may use")
    last = code.index(tests[-1])
    shown = [cell for cell in code[:last] if not is_test(cell)]
    for module, name in imported(setup(source)):
        needed = module == "firsttoken.assignments" or name in HANDED_OVER
        if not needed and not any(loads(cell, name) for cell in shown):
            said.append(f"the setup imports {name}, which no answer needs")
    return said


@pytest.mark.parametrize("topic", TOPICS)
def test_inputs_parts_and_setup(topic):
    assert complaints(assignment(topic).source) == []


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            "fresh_rng()",
            "np.random.default_rng(1)",
            "line_is_right: its hidden inputs are the same",
        ),
        ("### 7 points: one server", "### 6 points: one server", "line_is_right: its parts have"),
        ("graded answers find nothing else of it", "", "the rule on the library does not"),
        ("rng_of_tests", "rng", "line_is_right: changes ['rng']"),
        (
            "import expect,",
            "import expect, closed\nfrom firsttoken.units import GB #",
            "imports GB",
        ),
        ("### END HIDDEN TESTS\n\n### 13", "\n### 13", "hidden tests go over the end of the part"),
    ],
)
def test_the_laws_reject(old, new, complaint):
    source = nbformat.from_dict(assignment("metrics").source)
    for cell in source.cells:
        cell.source = cell.source.replace(old, new)
    said = complaints(source)
    assert any(complaint in text for text in said), said


def run(cell, namespace: dict) -> str:
    """Run a cell in this process; return what it printed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(cell.source, mark(cell).get("grade_id", cell.id), "exec"), namespace)
    return said.getvalue()


@pytest.mark.parametrize("topic", TOPICS)
def test_the_reference_passes_whatever_is_drawn(topic, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIRSTTOKEN_STUDENT", "ada")
    code = [cell for cell in assignment(topic).source.cells if cell.cell_type == "code"]
    last = max(k for k, cell in enumerate(code) if is_test(cell))
    namespace = {"__name__": "judged"}
    for number, seed in enumerate(SEEDS):
        monkeypatch.setenv("FIRSTTOKEN_SEED", str(seed))
        for cell in code[: last + 1]:
            if is_test(cell) or number == 0:
                run(cell, namespace)


OTHERS = [(topic, name) for topic in ALL for name in list(assignment(topic).wrong)[1:]]


@pytest.mark.usefixtures("sandboxed")
@pytest.mark.parametrize(("topic", "name"), OTHERS)
def test_a_wrong_submission_gets_part_and_hears_why(topic, name):
    gets_part_and_hears_why(topic, name)


GROWS = """
class MyCache:
    def __init__(self, arch, batch, capacity):
        self.reserve = np.zeros(RESERVE, np.float32)
        self.k = [np.zeros((batch, arch.n_kv_heads, 0, arch.head_dim), np.float32)] * arch.n_layers
        self.v = list(self.k)

    def append(self, layer, k, v):
        self.k[layer] = np.concatenate([self.k[layer], k], axis=2)
        self.v[layer] = np.concatenate([self.v[layer], v], axis=2)
"""


@pytest.mark.parametrize(
    ("cache", "words"),
    [
        (None, "all memory is allocated once"),
        (GROWS.replace("RESERVE", "0"), "allocate once, in __init__, for all of them"),
        (GROWS.replace("RESERVE", "64 * capacity"), "write into the arrays that are there"),
        ("MyCache = None", "nothing measured"),
    ],
)
def test_kv_cache_says_without_points_how_a_cache_allocates(cache, words, monkeypatch):
    monkeypatch.setenv("FIRSTTOKEN_STUDENT", "ada")
    source = assignment("kv_cache").source
    if cache:
        source = replaced(source, {"my_cache": cache})
    namespace = {"__name__": "judged"}
    for cell in source.cells:
        if cell.id in ("student", "setup", "my_cache"):
            run(cell, namespace)
        if cell.id == "memory-check":
            assert not mark(cell).get("grade")
            assert words in run(cell, namespace)
            return
    raise AssertionError("no cell looks at the memory")
