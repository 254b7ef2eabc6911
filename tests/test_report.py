"""The report: everybody is in it, nothing in it runs, and learning systems find their own in it."""

import csv
import html
import re
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote
from zoneinfo import ZoneInfo

import course as course_module
import pytest
from bs4 import BeautifulSoup
from course import Course, Student
from hypothesis import given
from hypothesis import strategies as st
from report import Row, whole_class, write_report

TOPIC = "kv_cache"
ADA = Student("ada", "Lovelace, Ada", "A", "ada@example.org", "ada", "S-1", "4711", "31001")
LEI = Student("li.lei", "李雷", "B", login="li.lei", canvas_id="4712")
COURSE = Course(
    time_zone=ZoneInfo("Europe/Vienna"),
    roster={"ada": ADA, "li.lei": LEI},
    canvas_columns={TOPIC: "KV cache (77)"},
)


def row(student: str = "ada", topic: str = TOPIC, points: float | None = 7.5, **fields) -> Row:
    """Return a graded row of two questions, 10 and 5 points, and 2 points of a person's."""
    known = {
        "status": "graded",
        "questions": {"one": points, "two": 5.0},
        "maximum": {"one": 10.0, "two": 5.0},
        "score": None if points is None else points + 7,
        "total": 17.0,
    }
    return Row(student, topic, **(known | fields))


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / name).open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def page(folder: Path) -> BeautifulSoup:
    return BeautifulSoup((folder / "report.html").read_text(encoding="utf-8"), "html.parser")


def test_who_handed_in_nothing_is_a_row():
    rows = whole_class([row("ada"), row("ada", "paging")], COURSE)
    assert [(r.student, r.topic, r.status) for r in rows] == [
        ("ada", "kv_cache", "graded"),
        ("li.lei", "kv_cache", "not submitted"),
        ("ada", "paging", "graded"),
        ("li.lei", "paging", "not submitted"),
    ]


def test_a_topic_counts_as_handed_out_when_it_was_due():
    now = datetime.now(UTC)
    dates = {"paging": now + timedelta(days=1), "start": now - timedelta(days=1)}
    late = {("start", "ada"): now + timedelta(days=1)}  # she has time left
    rows = whole_class([], Course(roster=COURSE.roster, due_dates=dates, extensions=late))
    assert [(r.student, r.topic) for r in rows] == [("li.lei", "start")]


def test_who_is_not_in_the_roster_is_named_and_goes_to_no_learning_system(tmp_path):
    write_report(tmp_path / "report", [row("eve")], COURSE)
    assert "In no file for Canvas or Moodle: eve." in page(tmp_path / "report").text
    for name in ("canvas.csv", "moodle.csv"):
        assert "eve" not in (tmp_path / "report" / name).read_text(encoding="utf-8")
    assert table(tmp_path / "report", "grades.csv")[0]["student"] == "ada"
    assert table(tmp_path / "report", "grades.csv")[2]["student"] == "eve"


def test_what_canvas_imports(tmp_path):
    """A topic without known points has no column: Canvas would take it for 0 points possible."""
    rows = [row("ada", score=12.25), row("li.lei", points=None), row("ada", "start", total=None)]
    write_report(tmp_path / "report", rows, COURSE)
    data = (tmp_path / "report" / "canvas.csv").read_bytes()
    assert data.decode().splitlines() == [
        "Student,ID,SIS User ID,SIS Login ID,Section,KV cache (77)",
        "    Points Possible,,,,,17",
        '"Lovelace, Ada",4711,S-1,ada,A,12.25',
        "李雷,4712,,li.lei,B,",
    ]


def test_what_moodle_imports(tmp_path):
    write_report(tmp_path / "report", [row("ada")], COURSE)
    data = (tmp_path / "report" / "moodle.csv").read_bytes()
    assert data.decode().splitlines() == [
        "username,ID number,Email address,Full name,Identifier,kv_cache",
        'ada,S-1,ada@example.org,"Lovelace, Ada",Participant 31001,14.5',
        "li.lei,,,李雷,,",
    ]


def test_grades_csv_says_when_and_what_lateness_cost(tmp_path):
    when = "2026-12-01T22:30:00+00:00"
    late = row(submitted=when, days_late=1.25, penalty=2.5, attempt=2, n_attempts=3)
    write_report(tmp_path / "report", [late], COURSE)
    assert (tmp_path / "report" / "grades.csv").read_bytes().startswith(b"\xef\xbb\xbf")
    line = table(tmp_path / "report", "grades.csv")[0]
    expected = {"student": "ada", "name": "Lovelace, Ada", "section": "A", "submitted": when}
    expected |= {"days_late": "1.25", "penalty": "2.5", "attempt": "2", "attempts": "3"}
    assert expected | line == line
    assert "2026-12-01 23:30" in page(tmp_path / "report").text  # as clocks in Vienna show it


@given(st.text(max_size=20), st.text(max_size=20))
def test_no_name_is_a_formula_and_none_stops_the_report(tmp_path_factory, name, reason):
    folder = tmp_path_factory.mktemp("course")
    roster = {"ada": Student("ada", name, section=name), "bob": Student("bob", "=1+1")}
    rows = [row("ada", status="needs review", reasons=[reason], mistakes={"one": reason})]
    write_report(folder, rows, Course(roster=roster))
    for path in folder.glob("*.csv"):
        with path.open(encoding="utf-8-sig", newline="") as file:
            cells = [cell for line in csv.reader(file) for cell in line]
        assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
        assert ("'=1+1" in cells) == (path.name != "questions.csv")
    assert not page(folder).find_all("script")


def test_the_page_can_be_read_by_everybody(tmp_path):
    rows = [
        row("ada", status="needs review", reasons=["double <i>: odd"], score=None),
        row("li.lei", status="needs grading", score=None),
        row("li.lei", "paging"),
    ]
    write_report(tmp_path / "report", rows, COURSE)
    read = page(tmp_path / "report")
    assert read.html["lang"] == "en"
    assert "width=device-width" in read.find("meta", {"name": True})["content"]
    assert [len(read.find_all(tag)) for tag in ("table", "caption", "thead")] == [4, 4, 4]
    assert {head.get("scope") for head in read.find_all("th")} == {"col", "row"}
    regions = read.find_all("div", role="region")
    assert len(regions) == 4 and all(r["tabindex"] == "0" and r["aria-label"] for r in regions)
    said = read.text
    assert said.index("Needs review: 1") < said.index("double <i>: odd") < said.index("The class")
    text = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "<script" not in text and not re.search(r"https?://", text)


@pytest.mark.parametrize("student", ["李 雷", "a?b#c&d%41'\"<x>"])
def test_links_lead_to_files_that_there_are(tmp_path, student):
    for place, end in (("feedback", "html"), ("submitted", "ipynb")):
        path = tmp_path / place / student / TOPIC / f"{TOPIC}.{end}"
        path.parent.mkdir(parents=True)
        path.write_text("")
    write_report(tmp_path / "report", [row(student), row("bob")])
    links = [link["href"] for link in page(tmp_path / "report").find_all("a")]
    assert len(links) == 2
    for link in links:
        assert link.isascii() and not set(link) & set("?#&<>\"' ")
        assert (tmp_path / "report" / unquote(link)).is_file()


@pytest.mark.parametrize(
    ("status", "tool"), [("needs review", "review"), ("needs grading", "formgrader")]
)
def test_who_waits_for_a_person_stands_with_what_to_do(tmp_path, status, tool):
    course = tmp_path / "Ada's course <1>"
    waits = row(points=None, status=status, reasons=["ran long"] if tool == "review" else [])
    write_report(course / "report", [waits, row("li.lei")], COURSE)
    said = page(course / "report").text
    assert f"make {tool} COURSE={shlex.quote(str(course))}" in said
    assert ("ran long" in said) == (tool == "review")


def test_a_report_is_the_old_one_or_the_new_one(tmp_path, monkeypatch):
    folder = tmp_path / "report"
    write_report(folder, [row("ada")], COURSE)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(before) == {"grades.csv", "questions.csv", "canvas.csv", "moodle.csv", "report.html"}

    def full(path, data):
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(course_module.Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(folder, [row("ada", score=1.0)], COURSE)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_text_of_students_is_shown_as_text(tmp_path):
    evil = '"><script>alert(1)</script><a href="javascript:alert(2)">'
    rows = [row(evil, evil, reasons=[evil], status="needs review", name=evil, section=evil)]
    write_report(tmp_path / "report", rows)
    read = page(tmp_path / "report")
    assert not read.find_all("script") and not read.find_all("a")
    assert html.unescape(evil) in read.text
