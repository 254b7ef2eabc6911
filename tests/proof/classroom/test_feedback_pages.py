"""Pages of feedback: hostile work costs no other page, and what nbgrader makes of them is the same.

What may stand on a page is tested in check/grading/test_feedback.py.
"""

import copy
import json
import os
import re
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import feedback
import pytest
from feedback import PageLimits, write_feedback
from marking import key
from nbformat.v4 import new_output
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI
from nbgrader.preprocessors import SaveCells
from traitlets.config import Config

import tiny_assignment
from check.grading.shown import PNG, seen
from tiny_assignment import TOPIC, named

pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")


class Row(NamedTuple):
    student: str
    topic: str
    name: str = ""


@pytest.fixture
def course(tmp_path, monkeypatch):
    """An empty course with nbgrader's gradebook."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
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
        (folder / "timestamp.txt").write_text("2026-11-01 10:00:00 UTC")
        (folder / "submission_secret.txt").write_text(f"secret of {student}")
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
    """Return whether a page shows the notebook to its last cell."""
    return "Written response" in page and 'name="explain"' in page and "(Score: 40.0" in page


def repeated(piece: str, n: int = 10**6) -> str:
    return piece * (n // len(piece))


TEXTS = {
    "brackets": repeated("["),
    "pairs of brackets": repeated("[]"),
    "nested links": repeated("[[a]("),
    "nested pictures": repeated("![a](attachment:"),
    "emphasis": repeated("*a **b "),
    "emphasis without end": repeated("a*_"),
    "back-ticks": "".join("`" * k + "a" for k in range(1000)),
    "tags": repeated("<a "),
    "smaller": repeated("<"),
    "comments": repeated("<!--"),
    "entities": repeated("&#1;"),
    "dollars": repeated("$a$$"),
    "LaTeX": repeated("\\begin{a}"),
    "display": repeated("\\\\[ "),
    "quotes": repeated("> "),
    "deep list": "\n".join("  " * k + "- a" for k in range(1000)),
    "deep quote": repeated("> - 1. "),
    "table": "|a|b|\n|-|-|\n" + repeated("|1|2|\n"),
    "wide table": repeated("|a", 10**5) + "|\n" + repeated("|-", 10**5) + "|\n",
    "headings": repeated("# a\n"),
    "definitions": repeated("a\n: b\n"),
    "references": repeated("[a]: b\n"),
    "addresses": repeated("http://a.b/ "),
    "data": "![](data:image/png;base64," + repeated("A", 10**7) + ")",
    "bidi": repeated("\u202ea\u2066"),
    "marks above": "a" + repeated("\u0301"),
    "colours": repeated("\x1b[31m\x1b[0m"),
    "one line": repeated("a"),
    "lines": repeated("\n"),
    "spaces": repeated(" "),
    "slow language": "```perl\n" + repeated("s{"),
    "slow language in a list": "- ~~~   ruby\n  " + repeated("=begin\n"),
    "backslashes": repeated("\\"),
}
CODES = {
    "numbers": repeated("1."),
    "attributes": repeated("a."),
    "brackets in code": repeated("("),
    "strings": repeated("'''"),
    "f-strings": repeated("f'{"),
    "questions": repeated("a?"),
    "Perl": "%%perl\n" + repeated("s{"),
    "Ruby": "\n %%ruby\n" + repeated("=begin\n"),
    "many lines": repeated("a.\n"),
    "deep": "\n".join(" " * k + "if a:" for k in range(1000)),
}
STREAMS = {
    "20 MB of colours": "\x1b[31ma\x1b[0m" * (20 * 2**20 // 10),
    "open colour codes": "\x1b[" * 10**6 + "1;" * 10**6,
    "open titles": "\x1b]" * 10**6,
    "20 MB of text": "a" * 20 * 2**20,
    "progress": "\r" * 10**6,
}


@pytest.mark.timeout(600)
def test_no_hostile_notebook_costs_another_page(course):
    """And what `closed` lets through is fast, so that it opens in Formgrader, too."""
    for name, text in TEXTS.items():
        course.add(f"text {name}", seen(text))
    for name, code in CODES.items():
        course.add(f"code {name}", seen(code=code))
    for name, text in STREAMS.items():
        course.add(f"stream {name}", seen(outputs=[new_output("stream", text=text)]))
    course.add("honest", seen())
    assert course.write() == {}
    for row in course.rows:
        assert whole(course.page(row.student)), row.student
        assert course.path(row.student).stat().st_size < 2**21


def test_limits_of_time_memory_and_size_hold_for_each_page(course):
    """Here the notebooks come as no `closed` would leave them."""
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
    # What failed is not tried again, unless the limits are others.
    before = course.path("slow").stat().st_ino
    assert course.write(limits) == {} and course.path("slow").stat().st_ino == before
    course.rows = [row for row in course.rows if row.student == "long"]
    assert course.write(PageLimits(seconds=300)) == {}
    assert whole(course.page("long"))


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


# nbgrader leaves files open when it releases feedback.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_pages_are_those_that_nbgrader_makes_and_releases(course, tmp_path):
    """But for our style, whose page it is, the tests' names and, last, what it was made of."""
    course.add("ada", seen(attachments={}))
    course.add("grace", seen("![](attachment:a)", attachments={"a": {"image/png": PNG}}))
    with Gradebook(course.url) as gradebook:
        gradebook.find_comment("explain", TOPIC, TOPIC, "ada").manual_comment = "**Why?**"
        gradebook.find_submission(TOPIC, "grace").notebooks[0].late_submission_penalty = 3
        gradebook.db.commit()
    course.write()
    config = Config()
    config.CourseDirectory.root = str(course.folder)
    config.CourseDirectory.course_id = "course"
    config.CourseDirectory.db_url = course.url
    config.HTMLExporter.sanitize_html = True
    config.Exchange.root = str(tmp_path / "exchange")
    (tmp_path / "exchange").mkdir()
    api = NbGraderAPI(config=config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # nbgrader misspells an argument
        released = api.release_feedback(TOPIC)
    assert released["success"], released
    files = list((tmp_path / "exchange" / "course" / "feedback").iterdir())
    ours = {student: course.page(student) for student in ("ada", "grace")}
    assert {path.read_text(encoding="utf-8") for path in files} == set(ours.values())
    made = api.generate_feedback(TOPIC)
    assert made["success"], made
    for student, page in ours.items():
        page, _, last = page.rstrip("\n").rpartition("\n")
        assert re.fullmatch(r"<!-- [0-9a-f]{64} -->", last)
        theirs = feedback.named(course.page(student), student)
        assert page.strip() == theirs.strip()


def test_a_page_adds_a_style_a_student_and_names_to_nbgraders(course):
    course.add("ada", seen("<h4></head> Test cell"))
    course.rows[0] = Row("ada", TOPIC, "Ada <b>\u202e Lovelace")
    course.write()
    page = course.page("ada")
    assert page.count(feedback.STYLE) == 1
    assert page.index(feedback.STYLE) < page.index("</head>")
    assert page.count('<p class="student">Ada &lt;b&gt; Lovelace (ada)</p>') == 1
    assert '<a href="#double_tests">double_tests</a> (Score: 40.0 / 40.0)' in page
    assert ">Test cell</a>" not in page and "&lt;h4&gt;&lt;/head&gt; Test cell" in page
    for word in ("<script", "url(", "@import", "http"):
        assert word not in feedback.STYLE


def test_another_name_makes_a_new_page(course):
    course.add("ada", seen())
    course.write()
    assert '<p class="student">ada</p>' in course.page("ada")
    course.rows[0] = Row("ada", TOPIC, "Ada")
    course.write()
    assert '<p class="student">Ada (ada)</p>' in course.page("ada")


def test_if_the_maker_stops_every_page_says_so_and_is_tried_again(course, monkeypatch):
    course.add("ada", seen())
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        assert set(course.write()) == {("ada", TOPIC)}
    assert "the program that makes pages has stopped" in course.page("ada")
    assert course.write() == {}
    assert whole(course.page("ada"))


def test_who_handed_in_nothing_gets_no_page(course):
    course.rows.append(Row("late", TOPIC))
    assert course.write() == {}
    assert not (course.folder / "feedback" / "late").exists()
