"""course.toml and roster.csv: what they say arrives, what cannot be meant is named."""

import csv
import doctest
import io
import math
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import course as module
import pytest
from course import Course, CourseError, is_student_id, read_course
from hypothesis import given
from hypothesis import strategies as st

DUE = datetime(2026, 12, 1, 18, tzinfo=UTC)
TOML = """\
time_zone = "Europe/Vienna"
late_percent_per_day = 10
grace_minutes = 15
max_days_late = 5
attempts = "best"

[due]
kv_cache = 2026-12-01T18:00:00
attention = 2026-12-08
paging = 2026-12-10T12:00:00-05:00

[extensions.ada]
kv_cache = 2026-12-03T18:00:00

[canvas_columns]
paging = "Homework 6 (77)"
"""
# What the systems' own exporters write, see read_roster for the sources.
CANVAS = '''\
Student,ID,SIS User ID,SIS Login ID,Section,KV cache (10234),Quiz (9),Current Score,Final Score
,,,,,Manual Posting,,,
    Points Possible,,,,,100.00,10.00,(read only),(read only)
"Lovelace, Ada",4711,S-1,ada,Group 1 and Group 2,,7.00,70.00,7.00
"李, 雷",4712,S-2,li.lei,Group 1,90.00,N/A,,
"=""=cmd()""",4713,S-3,cmd,Group 1,EX,,,
"Student, Test",4714,,b444ac06613fc8d63795be9ad0beaf55011936ac,Group 1,,,,
'''
WORKSHEET = """\
Identifier,"Full name","ID number","Email address",Status,Grade,"Maximum Grade",\
"Grade can be changed","Last modified (submission)","Last modified (grade)","Feedback comments"
"Participant 31001","Ada Lovelace",S-1,ada@example.org,"Submitted for grading - ",,100.00,Yes,\
"Monday, 30 November 2026, 11:05 PM",-,
"Participant 31002","Conan O'Brien",S-2,conan@example.org,"No submission - ",,100.00,Yes,-,-,
"""
PARTICIPANTS = """\
"First name",Surname,Username,"ID number","Email address"
Ada,Lovelace,ada,,ada@example.org
Zoë,"van der Berg",zoe,,zoe@example.org
"""


def course(folder, toml="", roster=""):
    if toml:
        (folder / "course.toml").write_text(toml, encoding="utf-8")
    if roster:
        data = roster if isinstance(roster, bytes) else roster.encode()
        (folder / "roster.csv").write_bytes(data)
    return read_course(folder)


def test_doctests():
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


def test_without_files_nothing_is_due_and_nobody_known(tmp_path):
    empty = read_course(tmp_path)
    assert empty == Course()
    assert empty.due("kv_cache", "ada") is None
    assert empty.lateness("kv_cache", "ada", DUE) == 0 == empty.penalty(50, 0)


def test_what_course_toml_says_arrives(tmp_path):
    read = course(tmp_path, TOML, "id,name\nada,Ada Lovelace\ngrace,Grace Hopper\n")
    vienna = ZoneInfo("Europe/Vienna")
    assert read.due("kv_cache", "grace") == datetime(2026, 12, 1, 18, tzinfo=vienna)
    assert read.due("kv_cache", "ada") == datetime(2026, 12, 3, 18, tzinfo=vienna)
    assert read.due("attention", "ada") == datetime(2026, 12, 9, tzinfo=vienna)  # the day's end
    assert read.due("paging", "ada") == datetime(2026, 12, 10, 17, tzinfo=UTC)
    assert read.due("sampling", "ada") is None
    assert (read.attempts, read.grace_minutes, read.max_days_late) == ("best", 15, 5)
    assert read.canvas_column("paging") == "Homework 6 (77)"
    late = "2026-12-02T18:00:00+01:00"
    assert read.lateness("kv_cache", "grace", late) == 1
    assert read.lateness("kv_cache", "ada", late) == 0


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("late_percent = 10", "late_percent is unknown; expected one of the keys time_zone, late_"),
        ('time_zone = "Vienna"', "time_zone is 'Vienna'; expected a name such as \"Europe/Vienna"),
        ("late_percent_per_day = 101", "is 101; expected a number from 0 to 100"),
        ("max_days_late = nan", "max_days_late is nan; expected a number"),
        ('attempts = "first"', 'attempts is \'first\'; expected "last" or "best"'),
        ("[due]\nkv-cache = 2026-12-01", "due.kv-cache is 'kv-cache'; expected an assignment: att"),
        ("[due]\nkv_cache = 2026-12-01", "expected a time_zone in course.toml"),
        ("[due]\nkv_cache = 18:00:00", "due.kv_cache is datetime.time(18, 0); expected a date"),
        (
            TOML.replace("2026-12-03", "2026-11-03"),
            "extensions.ada.kv_cache is '2026-11-03T18:00:00+01:00'; expected a date after [due]",
        ),
        ("[extensions.eve]", "extensions.eve: no student of roster.csv has this id"),
        ("attempts = ", "is no TOML"),
    ],
)
def test_what_cannot_be_meant_is_named(tmp_path, toml, said):
    with pytest.raises(CourseError) as raised:
        course(tmp_path, toml, "id,name\nada,Ada\n")
    assert said in str(raised.value) and "course.toml" in str(raised.value)


points = st.floats(0, 1000)
days = st.floats(0, 400)
rules = st.builds(
    Course,
    late_percent_per_day=st.floats(0, 100),
    max_days_late=st.none() | st.floats(0, 30),
    grace_minutes=st.sampled_from([0, 15, 90]),
    due_dates=st.just({"paging": DUE}),
)


@given(rules, points, days, days)
def test_a_penalty_is_at_most_the_points_and_grows_with_lateness(rules, points, some, more):
    some, more = sorted((some, more))
    less, all_of_it = rules.penalty(points, some), rules.penalty(points, more)
    assert 0 <= less <= all_of_it + 0.01 <= points + 0.02  # cents are rounded
    assert rules.penalty(points, 0) == 0
    if rules.max_days_late is not None and more > rules.max_days_late:
        assert all_of_it == points


def test_each_day_that_has_begun_costs():
    rules = Course(late_percent_per_day=10, due_dates={"paging": DUE})
    assert [rules.penalty(80, d) for d in (0.001, 1, 1.001, 10, 99)] == [8, 8, 16, 80, 80]


@given(rules, st.integers(-(10**6), 10**6))
def test_lateness_is_the_time_after_the_due_date_and_grace_only_forgives(rules, seconds):
    late = rules.lateness("paging", "ada", DUE + timedelta(seconds=seconds))
    if seconds <= rules.grace_minutes * 60:
        assert late == 0
    else:
        assert math.isclose(late, seconds / 86400)
    assert rules.lateness("paging", "ada", (DUE + timedelta(seconds=seconds)).isoformat()) == late


def test_an_hour_that_comes_twice_is_due_when_it_ends(tmp_path):
    toml = 'time_zone = "Europe/Vienna"\n[due]\npaging = 2026-10-25T02:30:00\n'
    due = course(tmp_path, toml).due("paging", "ada")
    assert due.astimezone(UTC) == datetime(2026, 10, 25, 1, 30, tzinfo=UTC)


def test_canvas_export(tmp_path):
    read = course(tmp_path, roster=CANVAS)
    assert list(read.roster) == ["ada", "li.lei", "cmd"]
    ada = read.student("ada")
    assert (ada.name, ada.canvas_id, ada.sis_id) == ("Lovelace, Ada", "4711", "S-1")
    assert read.canvas_column("kv_cache") == "KV cache (10234)"


def test_canvas_test_student_is_no_student(tmp_path):
    head = "Student,ID,SIS User ID,SIS Login ID,Section\n"
    lines = 'A,1,S-1,{0},\n"Student, Test",2,,x,\nTesti,4,,{0},\nB,5,,b,'
    read = course(tmp_path, roster=head + lines.format("0f" * 20))
    assert [student.name for student in read.roster.values()] == ["A", "B"]


def test_moodle_worksheet_and_participants(tmp_path):
    read = course(tmp_path, roster=WORKSHEET)
    conan = read.student("S-2")
    assert (conan.name, conan.moodle_id) == ("Conan O'Brien", "31002")
    read = course(tmp_path, roster=PARTICIPANTS)
    assert [s.name for s in read.roster.values()] == ["Ada Lovelace", "Zoë van der Berg"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize(("separator", "end"), [(",", "\n"), (";", "\r\n"), ("\t", "\n")])
def test_a_roster_reads_the_same_however_a_spreadsheet_saved_it(tmp_path, encoding, separator, end):
    rows = [["id", "Name", "section"], ["zoé", "Zoë; née 'O, Brien'", ""], ["b", 'B "Bob"', "2"]]
    file = io.StringIO()
    csv.writer(file, delimiter=separator, lineterminator=end).writerows([*rows[:2], [], rows[2]])
    read = course(tmp_path, roster=file.getvalue().encode(encoding))
    assert [[s.id, s.name, s.section] for s in read.roster.values()] == rows[1:]


@pytest.mark.parametrize(
    ("roster", "said"),
    [
        ("id,name\nada,A\n\nAda,B\n", "lines 2 and 4: one id, 'ada'"),
        ("id,name,canvas_id\nada,A,7\nbob,B,7\n", "lines 2 and 3: one canvas_id, '7'"),
        ("id,name\n../ada,A\n", "line 2: the id is '../ada'; a student id has 1 to 64"),
        ("Vorname,Nachname\nA,B\n", "the head is Vorname, Nachname; expected id,name,section, or"),
        (b"id,name\nada,\x81\x8d\n", "neither UTF-8, UTF-16 nor Windows-1252"),
    ],
)
def test_a_wrong_roster_is_refused_with_the_place(tmp_path, roster, said):
    with pytest.raises(CourseError) as raised:
        course(tmp_path, roster=roster)
    assert said in str(raised.value) and "roster.csv" in str(raised.value)


@given(st.text(max_size=70))
def test_a_student_id_is_a_folder_of_its_own(text):
    if is_student_id(text):
        assert len(text) <= 64 and len(text.encode()) <= 255
        assert not set(text) & set("/\\\0\n\r =,;'\"<>&*?:|") and text[0] not in ".-_@+"
