"""The teacher's page agrees with the assignments, and its courses with the map of the book."""

import json
import re
from pathlib import Path

import pytest

from firsttoken.page.start import CHAPTERS, path_to

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "book" / "teaching.md").read_text("utf-8")
NUMBERS = {chapter.number: chapter for chapter in CHAPTERS.values()}
ASSIGNMENTS = {path.stem for path in (ROOT / "assignments").glob("*/*.ipynb")}


def tables() -> list[list[list[str]]]:
    """Return the rows of cells of each table of the page, without its head."""
    blocks = re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()[2:]]
        for block in blocks
    ]


_, WORK, *COURSES = tables()


def text(path: Path) -> str:
    """Return what a notebook says in its text cells."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def test_each_assignment_has_its_row_and_says_the_same_time():
    rows = {row[0]: row for row in WORK}
    assert set(rows) >= ASSIGNMENTS
    for topic, (_, number, minutes, _) in rows.items():
        assert NUMBERS[number].stem == f"{number}_{topic}"
        if topic in ASSIGNMENTS:
            said = text(ROOT / "assignments" / topic / f"{topic}.ipynb")
            assert f"bout {minutes} minutes" in said, topic


@pytest.mark.parametrize("course", COURSES, ids=len)
def test_a_course_teaches_what_it_needs_first(course):
    """A chapter's requirements, and an assignment's chapter, come no later than itself."""
    assert [row[0] for row in course] == [str(week) for week in range(1, len(course) + 1)]
    taught, given = set(), []
    chapter_of = {row[0]: row[1] for row in WORK}
    for _, chapters, assignment in course:
        taught |= set(re.findall(r"\b\d\d\b", chapters))
        for number in taught:
            assert {chapter.number for chapter in path_to(NUMBERS[number].stem)} <= taught
        if assignment:
            assert chapter_of[assignment] in taught
            given.append(assignment)
    order = list(chapter_of)
    assert given == sorted(given, key=order.index) or len(course) == 4
    assert len(set(given)) == len(given)


def test_there_are_the_courses_that_are_promised():
    assert [len(course) for course in COURSES] == [4, 8, 14]
