"""Every chapter runs: exercises, invitations, its core by itself. What does not run is found."""

import os

import nbformat
import pytest

from proof.chapters.chapter_answers import ANSWERS, Answer
from proof.chapters.chapter_runs import run_chapter
from test_chapters import NOTEBOOKS, Chapter, edit, good_chapter, read


@pytest.mark.timeout(1800)  # a chapter with many changes to try, on a machine that is busy
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_chapter_runs(path):
    """Stubs fail, solutions pass, wrong answers of readers fail and unusual right ones pass.

    What the text invites a reader to change may be changed, and the core needs no further part.
    """
    answers = [answer for answer in ANSWERS if answer.chapter == path.stem]
    thorough = "FIRSTTOKEN_THOROUGH" in os.environ
    report = run_chapter(read(path), path.parent, answers, thorough=thorough)
    assert report.complaints == []
    assert report.verdicts == {key: key[1] == "solution" for key in report.verdicts}
    assert len(report.answered) == len(answers), "an answer to an exercise that is not there"
    wrong = [(a, s) for a, s in report.answered.items() if not s.startswith(a.expected)]
    assert wrong == []


def chapter_that_runs() -> Chapter:
    """Return the small chapter with stand-ins for what it calls."""
    chapter = good_chapter()
    stands_in = "def check(answer, right): return answer == right\ndraw_line = None\n"
    stands_in += "def quiz(*args, **kwargs): pass\nexplore = claim = quiz"
    chapter.notebook.cells.insert(0, nbformat.v4.new_code_cell(stands_in))
    return chapter


def small_chapter(*cells) -> Chapter:
    """Return a chapter of these cells: code, or ready cells."""
    made = [nbformat.v4.new_code_cell(c) if isinstance(c, str) else c for c in cells]
    return Chapter("chapter", nbformat.v4.new_notebook(cells=made))


def inviting(source: str, *edits: tuple[str, str]):
    """Return a cell that invites edits."""
    invited = [{"from": before, "to": after} for before, after in edits]
    return nbformat.v4.new_code_cell(source, metadata={"invited": invited})


def heading(text: str, collapsed: bool = False):
    """Return a heading, of a further part if collapsed."""
    mark = {"jp-MarkdownHeadingCollapsed": True} if collapsed else {}
    return nbformat.v4.new_markdown_cell(f"### {text}", metadata=mark)


GOOD = {"stub": False, "shown": False, "solution": True}


def test_an_exercise_that_does_not_check_is_found(tmp_path):
    """A stub that passes, a solution that fails and one that solves by being run must all show."""
    chapter = chapter_that_runs()
    edit("code", "answer_1 = ...", source="answer_1 = 1")(chapter)
    edit("code", "answer_2_sol", source="answer_2_solution = 4")(chapter)
    edit("code", "answer_3_sol", source="answer_3 = answer_3_solution = 3")(chapter)
    parts = {
        "1": GOOD | {"stub": True},
        "2": GOOD | {"solution": False},
        "3": GOOD | {"shown": True},
    }
    verdicts = {(number, part): v for number, said in parts.items() for part, v in said.items()}
    assert run_chapter(chapter, tmp_path) == (verdicts, {}, [])


def test_an_answer_leaves_no_name_behind(tmp_path):
    """Else a chapter that lacks an import would pass with that of a reader."""
    chapter = chapter_that_runs()
    chapter.notebook.cells.append(nbformat.v4.new_code_cell("assert 'kept' not in globals()"))
    right = Answer(chapter.stem, "1", "passed", "kept = answer_1 = 1")
    late = Answer(chapter.stem, "3", "failed", "answer_3 = 5")
    report = run_chapter(chapter, tmp_path, [late, right])
    assert report.complaints == []
    assert {a: said.split()[0] for a, said in report.answered.items()} == {
        right: "passed",
        late: "failed",
    }


FIGURE = """
from firsttoken.page.explore import explore
def draw(ax, end):
    ax.plot([0, end], [0, slope * end / (end - hole)])
explore(draw, alt='A line', end=[1, 2, 3])
"""


@pytest.mark.parametrize(
    ("later", "found"), [("rise = 2", False), ("slope = None", True), ("hole = 2", True)]
)
def test_a_slider_that_a_later_cell_breaks_is_found(tmp_path, later, found):
    complaints = run_chapter(
        small_chapter("slope, hole = 1, 0", FIGURE, later), tmp_path
    ).complaints
    assert ("Error" in "".join(complaints)) == found == bool(complaints)


def test_an_edit_that_breaks_a_cell_below_is_found(tmp_path):
    """Each edit of a cell is another try, and the chapter itself goes on as it was written."""
    chapter = small_chapter(
        "seen = set()",
        inviting(
            "n = 2\nmore = 1", ("n = 2", "n = 0"), ("n = 2", "n = 3"), ("more = 1", "more = n")
        ),
        "share = 1 / n",
        "assert more in (1, n)",
        "seen.add(n)",
        "assert seen == {n}",
    )
    (complaint,) = run_chapter(chapter, tmp_path).complaints
    assert "'n = 2' → 'n = 0'" in complaint
    assert "ZeroDivisionError" in complaint and chapter.notebook.cells[2].id in complaint


@pytest.mark.parametrize(("aside", "found"), [("aside = 2", False), ("aside = n", True)])
def test_an_edit_runs_only_what_it_reaches_and_what_that_needs(tmp_path, aside, found):
    """Only below an edit is the mark of the tests' claims gone."""
    chapter = small_chapter(
        "import os",
        inviting("n = 2", ("2", "3")),
        aside,
        "assert aside and 'FIRSTTOKEN_CLAIMS' in os.environ",
        "from math import sqrt",
        "width = 4",
        "print(sqrt(width) + n)",
    )
    assert bool(run_chapter(chapter, tmp_path).complaints) == found


def test_below_an_edit_claims_are_a_readers(tmp_path):
    """There the text need not hold. As it was written it must."""
    claim = (
        "from firsttoken.page.exercises import claim\nclaim(n == 2, f'The text has 2, you {n}.')"
    )
    chapter = small_chapter(inviting("n = 2", ("2", "3")), claim)
    assert run_chapter(chapter, tmp_path).complaints == []
    (complaint,) = run_chapter(small_chapter("n = 3", claim), tmp_path).complaints
    assert "The text has 2, you 3." in complaint


@pytest.mark.parametrize(
    ("last", "found"),
    [("total = 1", False), ("total = aside", True), ("claim(n == 1, 'One.')", True)],
)
def test_a_core_that_needs_a_further_part_is_found(tmp_path, last, found):
    chapter = small_chapter(
        "from firsttoken.page.exercises import claim\nn = 2",
        heading("Further: an aside", collapsed=True),
        "aside = 3",
        "n = 1",
        heading("Back in the core"),
        last,
    )
    complaints = run_chapter(chapter, tmp_path).complaints
    assert bool(complaints) == found
    assert all(text.startswith("without the further parts: ") for text in complaints)


@pytest.mark.parametrize(("source", "found"), [("b = a + 1", False), ("b = a = a + 1", True)])
def test_a_cell_that_may_not_run_twice_is_found(tmp_path, source, found):
    chapter = small_chapter("a = 1", source, "assert b == 2")
    assert bool(run_chapter(chapter, tmp_path, thorough=True).complaints) == found
    assert run_chapter(chapter, tmp_path).complaints == []


@pytest.mark.parametrize("thorough", [False, True])
def test_an_edit_leaves_out_what_is_slow_unless_it_is_thorough(tmp_path, thorough):
    """Two seconds of a processor, whatever else runs."""
    chapter = small_chapter(
        "import time",
        inviting("n = 1", ("1", "2")),
        "end = time.process_time() + 2.5\nwhile time.process_time() < end: pass\nslow = n",
        "assert slow == 1",
        "assert n < 3",
    )
    assert bool(run_chapter(chapter, tmp_path, thorough=thorough).complaints) == thorough


def test_a_cell_that_does_not_return_is_found(tmp_path):
    chapter = small_chapter(inviting("n = 0", ("0", "1")), "while n: pass")
    (complaint,) = run_chapter(chapter, tmp_path, cell_timeout_s=5).complaints
    assert "'0' → '1'" in complaint and "ended" in complaint
