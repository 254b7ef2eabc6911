"""The assignments and what they import: each accepts its solutions and names typical mistakes.

`-k kv_cache` chooses one. Test cells run in the two places where they run in a course: beside the
answer in a notebook, and before the judge. Of the wrong submissions one of each topic is judged
here, all others in proof/classroom/test_assignment_inputs.py.
"""

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import nbclient
import nbformat
import numpy as np
import pytest
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync
from marking import (
    answers,
    error,
    is_explanation,
    is_solution,
    is_test,
    mark,
    mistakes,
    points,
    release,
)
from nbformat.v4 import new_code_cell, new_notebook
from release import write_releases

import tiny_assignment
from firsttoken.assignments import closed, expect, fresh_rng, personal_rng, shared, student_id
from tiny_assignment import TOPICS, Assignment, assignment, judged, replaced, solved

TOTAL = 100
MIN_MANUAL, MAX_MANUAL = 10, 20
REGION = re.compile(
    r"^ *### BEGIN (SOLUTION|HIDDEN TESTS)\n(.*?)^ *### END \1 *$", re.MULTILINE | re.DOTALL
)


# What the notebooks import.


def test_the_graders_id_wins(monkeypatch):
    monkeypatch.delenv("FIRSTTOKEN_STUDENT", raising=False)
    monkeypatch.delenv("JUPYTERHUB_USER", raising=False)
    assert student_id(" ada ") == "ada"
    with pytest.raises(ValueError, match="STUDENT is empty"):
        student_id("  ")
    with pytest.raises(ValueError, match="STUDENT is int"):
        student_id(7)
    monkeypatch.setenv("JUPYTERHUB_USER", "grace")
    assert student_id("") == "grace"
    monkeypatch.setenv("FIRSTTOKEN_STUDENT", "ada")
    assert student_id("") == student_id("ada") == "ada"
    with pytest.raises(ValueError, match="solved for another student id: STUDENT is 'grace'"):
        student_id("grace")


def test_personal_parameters_depend_on_both_words_and_nothing_else():
    draws = {
        (student, topic): personal_rng(student, topic).integers(2**60)
        for student in ("ada", "grace", "a")
        for topic in ("tiny", "metrics", "b")
    }
    assert len(set(draws.values())) == len(draws)
    assert all(personal_rng(*names).integers(2**60) == drawn for names, drawn in draws.items())
    # The words do not run into each other.
    assert personal_rng("b", "ca").integers(2**60) != personal_rng("bc", "a").integers(2**60)
    for names in (("ada", ""), ("", "tiny")):
        with pytest.raises(ValueError, match="expected two texts"):
            personal_rng(*names)


def test_hidden_inputs_are_other_ones_at_every_grading(monkeypatch):
    monkeypatch.delenv("FIRSTTOKEN_SEED", raising=False)
    assert fresh_rng().integers(2**60) != fresh_rng().integers(2**60)
    monkeypatch.setenv("FIRSTTOKEN_SEED", "7")
    assert fresh_rng().integers(2**60) == np.random.default_rng(7).integers(2**60)


def test_in_a_notebook_nothing_is_copied_and_nothing_closed():
    memory = np.zeros(3)
    assert shared(memory) is memory
    assert closed("firsttoken.kv_cache.KVCache") is None


class AlwaysEqual:
    """Answers every comparison with True."""

    def __eq__(self, other):
        return True

    def __float__(self):
        return 1.0

    def __array__(self, dtype=None, copy=None):
        return np.ones(3)


class AlwaysEqualNumber(float):
    """The same, and a number as well."""

    __eq__ = AlwaysEqual.__eq__


class EqualClass(type):
    """A class that says it is any other class."""

    __hash__ = type.__hash__

    def __eq__(cls, other):
        return True


class OfEqualClass(float, metaclass=EqualClass):
    """A number of such a class, whose differences are 0."""

    def __abs__(self):
        return 0.0


class AlwaysEqualArray(np.ndarray):
    """The same, and an array as well."""

    __eq__ = AlwaysEqual.__eq__


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (1, 1.0),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("bytes"), "bytes"),
        (np.arange(6).reshape(2, 3), [(0, 1, 2), [3, 4, 5]]),
        (np.array(["a", "b"]), ["a", "b"]),
        ([], np.zeros(0)),
        (float("nan"), float("nan")),
        (float("inf"), float("inf")),
        (None, None),
        (1 + 0.9e-6, 1.0),
        (-1 - 0.9e-6, -1.0),
        (2**1000 - 1, 2**1000 - 1),
        *((np.dtype(code).type(1), 1) for code in "bBhHiIlLqQefd"),
        ((np.int64(1), "a", None), [1, "a", None]),
        (np.array([1, "a"], dtype=object), [1, "a"]),
    ],
)
def test_expect_accepts_equal_values_of_plain_types(got, expected):
    expect("x", got, expected)


@pytest.mark.parametrize(
    ("got", "expected", "words"),
    [
        (1 + 1.1e-6, 1.0, "x: got 1, which is not what we expect"),
        (1, True, "x: got 1, expected True or False"),
        ("1", 1, "x: got '1', expected a number"),
        (None, 0, "x: got None, expected a number"),
        ([1, 2], [1, 2, 3], "x: got 2 values, expected 3"),
        ([[1, 2], [3, 5]], [[1, 2], [3, 4]], "x: at [1][1] got 5, which is not what we expect"),
        (float("nan"), 1.0, "x: got nan"),
        (float("inf"), 1e300, "x: got inf"),
        (1.0, float("inf"), "x: got 1"),
        (float("inf"), float("-inf"), "x: got inf"),
        (float("nan"), float("inf"), "x: got nan"),
        (1e-300, 0, "x: got 1e-300"),
        (False, True, "x: got False, which is not what we expect"),
        ("b", "a", "x: got 'b', which is not what we expect"),
        (1 / 3, 0.0, "x: got 0.333333, which"),
        ("a" * 58, "", f"x: got '{'a' * 58}', which"),
        ("a" * 59, "", f"x: got '{'a' * 58}…, which"),
        (2**1000, 2.0, "x: got an integer of 1001 bits"),
        (2**2000, 1.0, "x: got an integer of 2001 bits"),
        (AlwaysEqual(), 1.0, "x: got an object of type AlwaysEqual"),
        (OfEqualClass(3), 1.0, "x: got an object of type OfEqualClass"),
        (AlwaysEqualNumber(3), 1.0, "x: got an object of type AlwaysEqualNumber"),
        ([AlwaysEqual()], [1.0], "x: got an object of type AlwaysEqual"),
        (np.ones(3).view(AlwaysEqualArray), np.ones(3), "an object of type AlwaysEqualArray"),
        (np.array([object()]), [1.0], "x: got an object of type object"),
        (np.ones(1, dtype=complex), [1.0], "x: got an array of complex128"),
        (np.ones(1, dtype="M8[s]"), [1.0], "x: got an array of datetime64[s]"),
        (np.complex128(1), 1.0, "x: got an object of type complex128"),
        (b"a", "a", "x: got an object of type bytes"),
        ({1: 2}, [1], "x: got an object of type dict"),
    ],
)
def test_expect_says_what_differs(got, expected, words):
    with pytest.raises(AssertionError) as caught:
        expect("x", got, expected)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("got", "expected", "rtol", "atol", "agree"),
    [
        *((1.5, 1.0, 0.0, 0.5, True), (1.5 + 1e-9, 1.0, 0.0, 0.5, False)),
        *((-2.5, -2.0, 0.25, 0.0, True), (-2.5 - 1e-9, -2.0, 0.25, 0.0, False)),
        *((3.0, 2.0, 0.25, 0.5, True), (3.0 + 1e-9, 2.0, 0.25, 0.5, False)),
        *(([[0.5]], [[1.0]], 0.0, 0.5, True), ([[0.5]], [[1.0]], 0.5, 0.0, True)),
        ([[0.5]], [[1.0]], 0.25, 0.125, False),
    ],
)
def test_numbers_agree_within_both_tolerances_together(got, expected, rtol, atol, agree):
    if agree:
        expect("x", got, expected, rtol, atol)
    else:
        with pytest.raises(AssertionError, match="which is not what we expect"):
            expect("x", got, expected, rtol, atol)


def test_a_patched_allclose_changes_nothing(monkeypatch):
    for name in ("allclose", "isclose", "array_equal", "all"):
        monkeypatch.setattr(np, name, lambda *args, **kwargs: True)
    monkeypatch.setattr(np, "ndarray", AlwaysEqualArray)
    with pytest.raises(AssertionError, match=r"x: at \[0\] got 1"):
        expect("x", np.ones(2), [2.0, 2.0])


def test_the_expected_value_stays_a_secret_unless_revealed():
    with pytest.raises(AssertionError) as caught:
        expect("x", 1.5, 987.25)
    assert "987" not in str(caught.value)
    with pytest.raises(AssertionError, match=r"x: got 1.5, expected about 987.25"):
        expect("x", 1.5, 987.25, reveal=True)


# The assignments themselves.


@pytest.fixture(scope="module")
def executed() -> Iterator[Callable]:
    """Run a notebook as a student, in a folder of its own and past every error.

    One kernel runs them all, since to start it and to import the library takes longer than most
    notebooks; each begins without the names of those before.
    """
    kernel = AsyncKernelManager(kernel_name="python3")

    def execute(notebook, folder: Path, student: str = "ada") -> nbformat.NotebookNode:
        notebook = copy.deepcopy(notebook)
        begin = (
            f"%reset -f\nimport os\nos.chdir({str(folder)!r})\n"
            f"os.environ['FIRSTTOKEN_STUDENT'] = {student!r}\ndel os"
        )
        notebook.cells.insert(0, new_code_cell(begin))
        client = nbclient.NotebookClient(notebook, timeout=120, allow_errors=True, km=kernel)
        client.execute()
        client.kc.stop_channels()
        assert error(notebook.cells.pop(0)) == ""
        return notebook

    yield execute
    run_sync(kernel.shutdown_kernel)(now=True)


def test_a_notebook_sees_no_name_of_the_one_before(executed, tmp_path):
    seen = new_code_cell("seen = [name for name in ('kept', 'np') if name in globals()]\nseen")
    kept = new_code_cell("import numpy as np\nkept = 1")
    for student in ("ada", "grace"):
        who = new_code_cell("import os\nos.environ['FIRSTTOKEN_STUDENT']")
        done = executed(new_notebook(cells=[seen, who, kept]), tmp_path, student)
        results = [cell.outputs[0].data["text/plain"] for cell in done.cells[:2]]
        assert results == ["[]", repr(student)]


def complaints(found: Assignment) -> list[str]:
    """Return what breaks the rules that need no run."""
    said = []
    cells = found.source.cells
    marked = [cell for cell in cells if mark(cell)]
    counts = Counter(mark(cell)["grade_id"] for cell in marked)
    said += [f"{grade_id} stands {n} times" for grade_id, n in counts.items() if n > 1]
    said += [f"cell {c.id} has outputs" for c in cells if c.get("outputs")]
    for cell in marked:
        grade_id = mark(cell)["grade_id"]
        if mark(cell)["schema_version"] != 3:
            said.append(f"{grade_id} has schema {mark(cell)['schema_version']}")
        if mark(cell)["locked"] is mark(cell)["solution"]:
            said.append(f"{grade_id} is to be locked, or a solution, not both")
        if is_test(cell) and mark(cell)["solution"]:
            said.append(f"{grade_id} is a test and a solution")
    total = sum(mark(cell).get("points", 0) for cell in marked if mark(cell)["grade"])
    if total != TOTAL:
        said.append(f"{total} points")
    manual = [mark(cell)["points"] for cell in cells if is_explanation(cell)]
    if len(manual) != 1 or not MIN_MANUAL <= manual[0] <= MAX_MANUAL:
        said.append(f"manual points {manual}")
    if "rubric" not in "\n".join(c.source for c in cells if c.cell_type == "markdown").lower():
        said.append("no rubric")
    code = [cell for cell in cells if cell.cell_type == "code"]
    if code[0].source.strip() != 'STUDENT = ""' or mark(code[0]):
        said.append("the first code cell is not the student's id")
    calls = ("student_id(STUDENT)", f'personal_rng(student, "{found.topic}")')
    if not mark(code[1]).get("locked") or not all(call in code[1].source for call in calls):
        said.append("the second code cell does not set student and rng, locked")
    if not any("BEGIN HIDDEN TESTS" in cell.source for cell in code):
        said.append("no hidden tests")
    # A test without an answer would give its points to a stub.
    said += [
        f"{test} asks for no answer" for test, asked in answers(found.source).items() if not asked
    ]
    if len(found.wrong) < 3:
        said.append(f"{len(found.wrong)} wrong submissions")
    return said


def change(of: str, **values) -> Callable:
    """Return a change of one cell's nbgrader metadata."""

    def apply(cells):
        next(c for c in cells if mark(c).get("grade_id") == of).metadata.nbgrader.update(values)

    return apply


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (change("double_tests", points=41), "101 points"),
        (change("double", grade_id="scale"), "scale stands 2 times"),
        (change("double_tests", schema_version=2), "double_tests has schema 2"),
        (change("setup", locked=False), "setup is to be locked, or a solution, not both"),
        (lambda cells: cells.insert(0, cells.pop(2)), "the first code cell is not the student's"),
        (lambda cells: cells.pop(-1), "manual points []"),
        (lambda cells: cells.pop(-2), "no rubric"),
        (lambda cells: cells.pop(3), "double_tests asks for no answer"),
    ],
)
def test_the_rules_reject(spoil, complaint):
    source = tiny_assignment.source()
    spoil(source.cells)
    said = complaints(Assignment("tiny", source, tiny_assignment.WRONG))
    assert any(complaint in text for text in said), said


ALL = [tiny_assignment.TOPIC, *TOPICS]


@pytest.mark.parametrize("topic", ALL)
def test_rules(topic):
    assert complaints(assignment(topic)) == []


def lines(text: str) -> set[str]:
    """Return the lines of a text, without their indentation."""
    return {line.strip() for line in text.splitlines()}


@pytest.mark.parametrize("topic", ALL)
def test_the_release_holds_no_solution_and_no_hidden_test(topic):
    source = assignment(topic).source
    given = "\n".join(cell.source for cell in release(source).cells)
    assert "### BEGIN" not in given and "### END" not in given
    secret, visible = set(), set()
    for cell in source.cells:
        secret |= lines("\n".join(found[2] for found in REGION.finditer(cell.source)))
        visible |= lines(REGION.sub("", cell.source))
    secret -= visible  # a closing bracket, an import
    assert secret
    assert secret & lines(given) == set()


def test_make_assignments_writes_releases_and_their_files(tmp_path):
    folder = tmp_path / "source" / "tiny"
    folder.mkdir(parents=True)
    nbformat.write(tiny_assignment.source(), folder / "tiny.ipynb")
    (folder / "data.csv").write_text("1")
    written = write_releases(tmp_path / "source", tmp_path / "out")
    assert written == [tmp_path / "out" / "tiny" / "tiny.ipynb"]
    assert (tmp_path / "out" / "tiny" / "data.csv").read_text() == "1"
    assert nbformat.read(written[0], as_version=4) == release(tiny_assignment.source())


@pytest.mark.parametrize("topic", ALL)
def test_the_reference_gets_everything_and_parameters_are_personal(topic, executed, tmp_path):
    """The solved source, stripped of its markers as a student's file is, for two students."""
    source = assignment(topic).source
    printed = []
    for student in ("ada", "grace"):
        done = executed(source, tmp_path, student)
        assert {cell.id: error(cell) for cell in done.cells if error(cell)} == {}
        setup = [cell for cell in done.cells if cell.cell_type == "code"][1]
        printed.append("".join(out.text for out in setup.outputs if out.output_type == "stream"))
    assert printed[0] != printed[1]


@pytest.mark.usefixtures("sandboxed")
@pytest.mark.parametrize("topic", ALL)
def test_the_judge_gives_the_reference_everything(topic):
    source = assignment(topic).source
    full = {mark(cell)["grade_id"]: mark(cell)["points"] for cell in filter(is_test, source.cells)}
    done, reasons = judged(source, solved(source), student="grace")
    assert (points(done), mistakes(done), reasons) == (full, {}, [])


@pytest.mark.usefixtures("sandboxed")
@pytest.mark.parametrize("topic", ALL)
def test_an_empty_submission_fails_every_test_and_earns_nothing(topic, executed, tmp_path):
    source = assignment(topic).source
    tests = [mark(cell)["grade_id"] for cell in filter(is_test, source.cells)]
    ran = executed(release(source), tmp_path)
    assert [mark(c)["grade_id"] for c in filter(is_test, ran.cells) if error(c)] == tests
    done, reasons = judged(source, release(source))
    assert (points(done), reasons) == (dict.fromkeys(tests, 0), [])
    assert list(mistakes(done)) == tests


def gets_part_and_hears_why(topic: str, name: str) -> None:
    """Judge a wrong submission."""
    source, wrong = assignment(topic)[1:]
    answers, expected, words = wrong[name]
    assert all(is_solution(tiny_assignment.named(source, answer)) for answer in answers)
    done, reasons = judged(source, solved(source, **answers))
    automatic = sum(mark(cell)["points"] for cell in filter(is_test, source.cells))
    assert 0 < expected < automatic
    assert (sum(points(done).values()), reasons) == (expected, []), mistakes(done)
    assert words in "\n".join(mistakes(done).values())


@pytest.mark.usefixtures("sandboxed")
@pytest.mark.parametrize("topic", ALL)
def test_a_wrong_submission_gets_part_and_hears_why(topic):
    gets_part_and_hears_why(topic, next(iter(assignment(topic).wrong)))


def test_the_pool_and_cache_of_paging_run_under_the_engine_of_batching(executed, tmp_path):
    """As the text of batching tells a class that has written both, with the adapter it prints."""
    paging, batching = assignment("paging").source, assignment("batching").source
    solved = {cell.id: cell.source for cell in [*paging.cells, *batching.cells]}
    adapter = re.search(r"^```python\n(.*?)^```$", solved["own-pool"], re.MULTILINE | re.DOTALL)[1]
    engine = solved["engine-solution"]
    for library, own in (("BlockPool(", "OwnPool("), ("PagedCache(", "OwnCache(")):
        assert engine.count(library) == 1
        engine = engine.replace(library, own)
    parts = [
        "from firsttoken.paging import OutOfBlocks",
        *(solved["pool-solution"], solved["cache-solution"], adapter, engine),
    ]
    done = executed(replaced(batching, {"engine-solution": "\n\n".join(parts)}), tmp_path)
    assert {cell.id: error(cell) for cell in done.cells if error(cell)} == {}
