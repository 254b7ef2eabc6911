"""Pages of feedback: hostile work costs no other page, and each shows what is in the gradebook.

What may stand on a page is tested in check/grading/test_feedback.py.
"""

import copy
import json
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from feedback import PageLimits, write_feedback
from marking import key
from nbformat.v4 import new_output
from nbgrader.api import Gradebook
from nbgrader.preprocessors import SaveCells

import tiny_assignment
from check.grading.shown import seen
from tiny_assignment import TOPIC, named

pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")


class Row(NamedTuple):
    student: str
    topic: str
    name: str = ""


@pytest.fixture
def course(tmp_path):
    url = f"sqlite:///{tmp_path / 'gradebook.db'}"
    with Gradebook(url) as gradebook:
        gradebook.update_or_create_assignment(TOPIC)
    resources = {"nbgrader": {"notebook": TOPIC, "assignment": TOPIC, "db_url": url}}
    SaveCells().preprocess(key(tiny_assignment.source()), resources)
    return Course(tmp_path, url)


class Course:
    def __init__(self, folder: Path, url: str):
        self.folder, self.url, self.rows = folder, url, []

    def add(self, student: str, notebook) -> None:
        """Put a graded notebook in its place, and points into the gradebook."""
        folder = self.folder / "autograded" / student / TOPIC
        folder.mkdir(parents=True)
        text = json.dumps(notebook)  # as it is: nbformat would refuse or take long
        (folder / f"{TOPIC}.ipynb").write_text(text, encoding="utf-8")
        self.rows.append(Row(student, TOPIC))
        with Gradebook(self.url) as gradebook:
            gradebook.update_or_create_student(student)
            gradebook.update_or_create_submission(TOPIC, student)
            gradebook.find_grade("double_tests", TOPIC, TOPIC, student).auto_score = 40
            gradebook.db.commit()

    def write(self, limits: PageLimits | None = None) -> dict:
        return write_feedback(self.folder, self.url, self.rows, limits)

    def path(self, student: str) -> Path:
        return self.folder / "feedback" / student / TOPIC / f"{TOPIC}.html"

    def page(self, student: str) -> str:
        return self.path(student).read_text(encoding="utf-8")


def whole(page: str) -> bool:
    return "Written response" in page and 'name="explain"' in page and "(Score: 40.0" in page


def repeated(piece: str, n: int = 10**6) -> str:
    return piece * (n // len(piece))


TEXTS = [
    repeated("["),
    repeated("[[a]("),
    "".join("`" * k + "a" for k in range(1000)),
    "\n".join("  " * k + "- a" for k in range(1000)),
    "![](data:image/png;base64," + repeated("A", 10**7) + ")",
    repeated("\u202ea\u2066"),
    "```perl\n" + repeated("s{"),
]
CODES = [
    repeated("("),
    "%%perl\n" + repeated("s{"),
    "\n".join(" " * k + "if a:" for k in range(1000)),
]
STREAMS = [
    "\x1b[31ma\x1b[0m" * (20 * 2**20 // 10),
    "\x1b[" * 10**6 + "1;" * 10**6,
    "\r" * 10**6,
]


@pytest.mark.timeout(600)
def test_no_hostile_notebook_costs_another_page(course):
    """And what `closed` lets through is fast, so that it opens in Formgrader, too."""
    works = {f"text {k}": seen(text) for k, text in enumerate(TEXTS)}
    works |= {f"code {k}": seen(code=code) for k, code in enumerate(CODES)}
    for k, text in enumerate(STREAMS):
        works[f"stream {k}"] = seen(outputs=[new_output("stream", text=text)])
    for student, work in (works | {"honest": seen()}).items():
        course.add(student, work)
    assert course.write() == {}
    for row in course.rows:
        assert whole(course.page(row.student)), row.student
        assert course.path(row.student).stat().st_size < 2**21


def test_limits_of_time_memory_and_size_hold_for_each_page(course):
    # An honest page takes a fiftieth of the time.
    limits = PageLimits(seconds=20, memory_bytes=200 * 2**20, page_bytes=2**21)
    honest = seen()
    slow, huge, long, broken = (copy.deepcopy(honest) for _ in range(4))
    named(slow, "double").source = repeated("a.", 4 * 10**6)
    named(huge, "double").outputs = [new_output("stream", text="<" * 60 * 2**20)]
    named(long, "double").outputs = [new_output("stream", text="a" * 2**22)]
    broken.cells[0] = {"cell_type": "markdown", "metadata": {}, "source": 7}
    notebooks = {"a": honest, "slow": slow, "huge": huge, "long": long, "broken": broken}
    for name, notebook in (notebooks | {"z": honest}).items():
        course.add(name, notebook)
    failed = course.write(limits)
    assert failed == {
        ("slow", TOPIC): "it takes longer than 20 s",
        ("huge", TOPIC): "it takes more than 200 MiB of memory",
        ("long", TOPIC): "it is larger than 2 MiB",
        ("broken", TOPIC): "its notebook cannot be shown",
    }
    assert whole(course.page("a")) and whole(course.page("z"))
    for (student, _), why in failed.items():
        page = course.page(student)
        assert why in page and "<p>Score: 40 / 100</p>" in page and f"<p>{student}</p>" in page
        assert "<td>double_tests</td><td>40</td><td>40</td>" in page
    assert not list(course.folder.glob("feedback/*/*/.*"))


def test_only_what_has_changed_is_made_again(course):
    for student in "abcdef":
        course.add(student, seen())
    course.write()
    made = {student: course.path(student).stat().st_ino for student in "abcdef"}
    with Gradebook(course.url) as gradebook:
        gradebook.find_grade("explain", TOPIC, TOPIC, "a").manual_score = 12
        comment = gradebook.find_comment("explain", TOPIC, TOPIC, "b")
        comment.manual_comment = "Well *said*."
        gradebook.db.commit()
    path = course.folder / "autograded" / "c" / TOPIC / f"{TOPIC}.ipynb"
    path.write_text(json.dumps(seen("Another reason.")), encoding="utf-8")
    course.path("d").unlink()
    course.path("e").write_text("half a pa")
    assert course.write() == {}
    again = {student: course.path(student).stat().st_ino for student in "abcdef"}
    assert {student for student in "abcdef" if made[student] != again[student]} == set("abcde")
    assert "Score: 52.0 / 100.0" in course.page("a")
    assert "Well <em>said</em>." in course.page("b")
    assert "Another reason." in course.page("c")
    assert whole(course.page("d")) and whole(course.page("e"))


def test_a_page_adds_a_style_a_student_and_names_to_nbgraders(course):
    course.add("ada", seen("<h4></head> Test cell"))
    course.rows[0] = Row("ada", TOPIC, "Ada <b>\u202e Lovelace")
    course.write()
    page = course.page("ada")
    assert page.count('<p class="student">Ada &lt;b&gt; Lovelace (ada)</p>') == 1
    assert '<a href="#double_tests">double_tests</a> (Score: 40.0 / 40.0)' in page
    assert ">Test cell</a>" not in page and "&lt;h4&gt;&lt;/head&gt; Test cell" in page


def test_if_the_maker_stops_every_page_says_so_and_is_tried_again(course, monkeypatch):
    course.add("ada", seen())
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        assert set(course.write()) == {("ada", TOPIC)}
    assert "the program that makes pages has stopped" in course.page("ada")
    assert course.write() == {}
    assert whole(course.page("ada"))
