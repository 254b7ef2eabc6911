"""The assignments and what they import: each accepts its solutions and names typical mistakes.

`-k kv_cache` chooses one. Test cells run beside the answer, as in a notebook, and before the judge.
Of the wrong submissions one of each topic is judged
here, all others in proof/classroom/test_assignment_inputs.py.
"""

import contextlib
import io
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
from marking import (
    answers,
    is_explanation,
    is_solution,
    is_test,
    mark,
    mistakes,
    points,
    release,
)
from nbformat.v4 import new_notebook
from release import write_releases

import tiny_assignment
from firsttoken.assignments import closed, expect, fresh_rng, personal_rng, shared, student_id
from tiny_assignment import TOPICS, assignment, judged, replaced, solved

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
    monkeypatch.setenv("JUPYTERHUB_USER", "grace")
    assert student_id("") == "grace"
    monkeypatch.setenv("FIRSTTOKEN_STUDENT", "ada")
    assert student_id("") == student_id("ada") == "ada"
    with pytest.raises(ValueError, match="solved for another student id: STUDENT is 'grace'"):
        student_id("grace")


def test_personal_parameters_depend_on_both_words_and_nothing_else():
    # The words do not run into each other.
    pairs = [("ada", "tiny"), ("ada", "metrics"), ("grace", "tiny"), ("b", "ca"), ("bc", "a")]
    draws = [personal_rng(*names).integers(2**60) for names in pairs]
    assert len(set(draws)) == len(draws)
    assert [personal_rng(*names).integers(2**60) for names in pairs] == draws
    with pytest.raises(ValueError, match="expected two texts"):
        personal_rng("ada", "")


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
    def __eq__(self, other):
        return True

    def __float__(self):
        return 1.0

    def __array__(self, dtype=None, copy=None):
        return np.ones(3)


class EqualClass(type):
    __hash__ = type.__hash__

    def __eq__(cls, other):
        return True


class OfEqualClass(float, metaclass=EqualClass):
    def __abs__(self):
        return 0.0


class AlwaysEqualArray(np.ndarray):
    __eq__ = AlwaysEqual.__eq__


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (1, 1.0),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.arange(6).reshape(2, 3), [(0, 1, 2), [3, 4, 5]]),
        ([], np.zeros(0)),
        (float("nan"), float("nan")),
        (1 + 0.9e-6, 1.0),
        (2**1000 - 1, 2**1000 - 1),
        *((np.dtype(code).type(1), 1) for code in "bBhHiIlLqQefd"),
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
        ([1, 2], [1, 2, 3], "x: got 2 values, expected 3"),
        ([[1, 2], [3, 5]], [[1, 2], [3, 4]], "x: at [1][1] got 5, which is not what we expect"),
        (1.0, float("inf"), "x: got 1"),
        (float("nan"), float("inf"), "x: got nan"),
        ("b", "a", "x: got 'b', which is not what we expect"),
        ("a" * 59, "", f"x: got '{'a' * 58}…, which"),
        (2**2000, 1.0, "x: got an integer of 2001 bits"),
        (AlwaysEqual(), 1.0, "x: got an object of type AlwaysEqual"),
        (OfEqualClass(3), 1.0, "x: got an object of type OfEqualClass"),
        ([AlwaysEqual()], [1.0], "x: got an object of type AlwaysEqual"),
        (np.ones(3).view(AlwaysEqualArray), np.ones(3), "an object of type AlwaysEqualArray"),
        (np.array([object()]), [1.0], "x: got an object of type object"),
        (np.ones(1, dtype=complex), [1.0], "x: got an array of complex128"),
        (1, "a", "x: got 1, expected a text"),
        (1, [1], "x: got 1, expected a sequence"),
        (1, None, "x: got 1, expected None"),
        (b"a", "a", "bytes, expected a number, a text, or a list or an array of them"),
    ],
)
def test_expect_says_what_differs(got, expected, words):
    with pytest.raises(AssertionError) as caught:
        expect("x", got, expected)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("got", "expected", "rtol", "atol"),
    [(1.5, 1.0, 0.0, 0.5), (-2.5, -2.0, 0.25, 0.0), (3.0, 2.0, 0.25, 0.5)],
)
def test_numbers_agree_within_both_tolerances_together(got, expected, rtol, atol):
    expect("x", got, expected, rtol, atol)
    with pytest.raises(AssertionError, match="which is not what we expect"):
        expect("x", got * (1 + 1e-9), expected, rtol, atol)


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


def run(notebook, monkeypatch, folder: Path, student: str = "ada") -> tuple[dict[str, str], str]:
    """Run a notebook in this process, past every error: {cell: error}, and what it printed."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FIRSTTOKEN_STUDENT", student)
    errors, printed, names = {}, io.StringIO(), {"__name__": "judged"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            try:
                with contextlib.redirect_stdout(printed):
                    exec(cell.source, names)
            except Exception as fault:
                errors[cell.id] = repr(fault)
    return errors, printed.getvalue()


ALL = [tiny_assignment.TOPIC, *TOPICS]


@pytest.mark.parametrize("topic", ALL)
def test_rules(topic):
    found = assignment(topic)
    cells = found.source.cells
    marked = [cell for cell in cells if mark(cell)]
    names = [mark(cell)["grade_id"] for cell in marked]
    assert len(names) == len(set(names))
    assert not any(cell.get("outputs") for cell in cells)
    for cell in marked:
        assert mark(cell)["schema_version"] == 3
        assert mark(cell)["locked"] is not mark(cell)["solution"]
        assert not (is_test(cell) and mark(cell)["solution"])
    assert sum(mark(cell).get("points", 0) for cell in marked if mark(cell)["grade"]) == 100
    (manual,) = (mark(cell)["points"] for cell in cells if is_explanation(cell))
    assert 10 <= manual <= 20
    assert any("rubric" in c.source.lower() for c in cells if c.cell_type == "markdown")
    first, setup, *rest = (cell for cell in cells if cell.cell_type == "code")
    assert first.source.strip() == 'STUDENT = ""' and not mark(first)
    assert mark(setup)["locked"] and "student_id(STUDENT)" in setup.source
    assert f'personal_rng(student, "{topic}")' in setup.source
    assert any("BEGIN HIDDEN TESTS" in cell.source for cell in rest)
    assert all(answers(found.source).values())  # a test without one would give points to a stub
    assert len(found.wrong) >= 3


def lines(text: str) -> set[str]:
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
def test_the_reference_gets_everything_and_parameters_are_personal(topic, monkeypatch, tmp_path):
    source = assignment(topic).source
    setup = new_notebook(cells=[cell for cell in source.cells if cell.cell_type == "code"][:2])
    assert run(source, monkeypatch, tmp_path, "grace")[0] == {}
    printed = {run(setup, monkeypatch, tmp_path, student)[1] for student in ("ada", "grace")}
    assert len(printed) == 2


@pytest.mark.usefixtures("sandboxed")
@pytest.mark.parametrize("topic", ALL)
def test_the_judge_gives_the_reference_everything(topic):
    source = assignment(topic).source
    full = {mark(cell)["grade_id"]: mark(cell)["points"] for cell in filter(is_test, source.cells)}
    done, reasons = judged(source, solved(source), student="grace")
    assert (points(done), mistakes(done), reasons) == (full, {}, [])


@pytest.mark.usefixtures("sandboxed")
@pytest.mark.parametrize("topic", ALL)
def test_an_empty_submission_fails_every_test_and_earns_nothing(topic, monkeypatch, tmp_path):
    source = assignment(topic).source
    tests = [mark(cell)["grade_id"] for cell in filter(is_test, source.cells)]
    errors, _ = run(release(source), monkeypatch, tmp_path)
    assert errors.keys() >= {cell.id for cell in filter(is_test, source.cells)}
    done, reasons = judged(source, release(source))
    assert (points(done), reasons) == (dict.fromkeys(tests, 0), [])
    assert list(mistakes(done)) == tests


def gets_part_and_hears_why(topic: str, name: str) -> None:
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


def test_the_pool_and_cache_of_paging_run_under_the_engine_of_batching(monkeypatch, tmp_path):
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
    joined = replaced(batching, {"engine-solution": "\n\n".join(parts)})
    assert run(joined, monkeypatch, tmp_path)[0] == {}
