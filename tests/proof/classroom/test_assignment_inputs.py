"""What the assignments' tests are made of, and what each wrong submission earns.

`-k kv_cache` chooses one topic. Right and empty answers are judged in check/grading, and one wrong
submission of each topic.
"""

import ast
from collections.abc import Iterator

import pytest
from marking import is_locked, is_test, mark, names, parts, setup, used

from check.grading.test_assignments import ALL, gets_part_and_hears_why, run
from tiny_assignment import TOPICS, assignment

RULE = (
    "**The library in your answers:** use Python, NumPy and, of `firsttoken`, only what the setup "
    "cell imports; graded answers find nothing else of it."
)
HIDDEN = "### BEGIN HIDDEN TESTS"

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


@pytest.mark.parametrize("topic", TOPICS)
def test_inputs_parts_and_setup(topic):
    source = assignment(topic).source
    code = [cell for cell in source.cells if cell.cell_type == "code"]
    tests, locked = list(filter(is_test, code)), list(filter(is_locked, code))
    texts = [cell.source for cell in source.cells if cell.cell_type == "markdown"]
    assert sum(text.count(RULE) for text in texts) == 1
    for cell in tests:
        assert sum(part["points"] for part in parts(cell)) == mark(cell)["points"]
        for part in parts(cell):
            assert part["source"].count(HIDDEN) == part["source"].count("### END HIDDEN TESTS")
        # Hidden inputs are others at every grading.
        assert HIDDEN not in cell.source or "fresh_rng" in with_helpers(cell, locked)
        # No test changes what later cells may use.
        before = [other for other in locked if code.index(other) < code.index(cell)]
        assert not names(cell.source) & set().union(*(names(other.source) for other in before))
    # The setup imports of the library what answers need, and no more.
    shown = [cell for cell in code[: code.index(tests[-1])] if not is_test(cell)]
    for module, name in imported(setup(source)):
        needed = module == "firsttoken.assignments" or name in HANDED_OVER
        assert needed or any(loads(cell, name) for cell in shown), name


@pytest.mark.parametrize("topic", TOPICS)
def test_the_reference_passes_whatever_is_drawn(topic, monkeypatch, tmp_path):
    for seed in range(3):
        monkeypatch.setenv("FIRSTTOKEN_SEED", str(seed))
        assert run(assignment(topic).source, monkeypatch, tmp_path)[0] == {}


OTHERS = [(topic, name) for topic in ALL for name in list(assignment(topic).wrong)[1:]]


@pytest.mark.usefixtures("sandboxed")
@pytest.mark.parametrize(("topic", "name"), OTHERS)
def test_a_wrong_submission_gets_part_and_hears_why(topic, name):
    gets_part_and_hears_why(topic, name)
