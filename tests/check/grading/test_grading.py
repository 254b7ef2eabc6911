"""make grade: honest work is graded and explained; hostile work ends in a row with a reason.

One class hands in everything at once, so that each case also shows that the others went on. It is
graded once. Attacks by what the code does are in test_attacks.py, the class without sandboxes in
proof/classroom/test_class.py.
"""

import csv
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import grade
import nbformat
import psutil
import pytest
import sandbox
from marking import release
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbgrader.api import Gradebook
from report import Row

import tiny_assignment
from check.grading import attempts
from tiny_assignment import solved, twice, without

TOPIC = tiny_assignment.TOPIC
# Of time only a call has little: ten seconds, of which an honest one takes a thousandth.
LIMITS = replace(attempts.LIMITS, call_s=10)


class Case(NamedTuple):
    """What a student hands in, and what must come of it: words of the reason, points by test."""

    work: nbformat.NotebookNode | str | bytes
    reason: str
    double: float | None = None
    scale: float | None = None


HOSTILE = {
    "loop": Case(
        solved(double="def double(x):\n    while True: pass"),
        "double_tests: a call of your code ran longer than 10 s",
        None,
        45,
    ),
    "exit": Case(solved(double="import os\nos._exit(0)"), "double: the kernel is gone"),
    "prints": Case(
        solved(double="while True: print('x' * 1000, flush=True)"),
        "wrote more than 100000 bytes",
        0,
        45,
    ),
    "memory": Case(
        solved(scale="hog = bytearray(10**10)"), "needed more memory than a submission may", 40, 0
    ),
    "two-copies": Case("copies", "there is no tiny.ipynb, but ['tiny (1).ipynb', 'tiny (2)"),
    "no-marks": Case(nbformat.writes(new_notebook()).encode(), "no cell has its mark"),
    "many-cells": Case(
        nbformat.writes(new_notebook(cells=[new_code_cell("") for _ in range(1001)])).encode(),
        "the notebook has 1001 cells",
    ),
    "empty-file": Case(b"", "the file is empty"),
    "deep-json": Case(b"[" * 10**5, "it is not JSON"),
    "old-format": Case(
        b'{"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": []}]}',
        "no list of cells, as notebooks of format 4 have",
    ),
    "link": Case("link", "tiny.ipynb is a symbolic link"),
    "pipe": Case("pipe", "tiny.ipynb is no plain file"),
    "other-id": Case(solved(identity='STUDENT = "ada"'), "correct the STUDENT line"),
    "deleted-answer": Case(without("double"), "double was deleted: the original was used", 0, 45),
    "two-files": Case(
        "two files", "only tiny.ipynb was read; there is also tiny-Copy1.ipynb", 0, 0
    ),
}
HONEST = {
    "ada": solved(explain="Because <script>alert('text')</script> doubling is linear."),
    "grace": release(tiny_assignment.source()),
    "always-equal": solved(**tiny_assignment.WRONG["own class"][0]),
    "wrong": solved(double="def double(x):\n    return 3 * x if x > 9 else 2 * x"),
    "script": solved(
        double="from IPython.display import HTML, Javascript, display\n"
        "display(HTML('<script>alert(1)</script>'), Javascript('alert(2)'))\n"
        "def double(x):\n    return 2 * x"
    ),
    "links": solved(explain="[a](javascript:alert(4)) ![b](http://example.org/b)"),
    "long-text": solved(explain="long " * 10**5),
    "deleted": without("double_tests"),
    "edited": solved(double_tests="pass"),
    "copied": twice("double_tests"),
    "below": solved(explain=release(tiny_assignment.source()).cells[-1].source),
    "no-date": "no date",
    "own-name": "my homework.ipynb",
    "odd-parts": solved(),
}
HONEST["below"].cells.append(new_markdown_cell("Because a sum of two equal numbers is twice one."))
HONEST["odd-parts"].cells[0].metadata["tags"] = [{"tag": k} for k in range(2000)]
HONEST["odd-parts"].cells[1].outputs = [{} for _ in range(40_000)]
for cell in HONEST["odd-parts"].cells:
    del cell["id"]  # as in format 4.0


def hand_in(course: Path, student: str, work) -> None:
    """Write a submission; a text names a special kind of file."""
    folder = course / "submitted" / student / TOPIC
    folder.mkdir(parents=True)
    path = folder / f"{TOPIC}.ipynb"
    if work == "my homework.ipynb":
        nbformat.write(solved(), folder / work)
        (folder / f"._{work}").write_text("macOS")
    elif work == "two files":
        nbformat.write(HONEST["grace"], path)
        nbformat.write(solved(), folder / f"{TOPIC}-Copy1.ipynb")
    elif work == "no date":
        nbformat.write(solved(), path)
        (folder / "timestamp.txt").write_text("9999-99-99 99:99:99 UTC")
    elif work == "copies":
        for number in (1, 2):
            nbformat.write(solved(), folder / f"tiny ({number}).ipynb")
    elif work == "link":
        path.symlink_to(course / "source" / TOPIC / f"{TOPIC}.ipynb")
    elif work == "pipe":
        os.mkfifo(path)
    elif isinstance(work, bytes):
        path.write_bytes(work)
    else:
        path.write_text(json.dumps(work))


class Graded(NamedTuple):
    course: Path
    rows: dict[str, Row]

    def notebook(self, student: str) -> nbformat.NotebookNode:
        path = self.course / "autograded" / student / TOPIC / f"{TOPIC}.ipynb"
        return nbformat.read(path, as_version=4)

    def feedback(self, student: str) -> str:
        return (self.course / "feedback" / student / TOPIC / f"{TOPIC}.html").read_text()

    def table(self, name: str) -> list[dict[str, str]]:
        with (self.course / "report" / name).open(newline="", encoding="utf-8-sig") as file:
            return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def handed_in(sandboxed, tmp_path_factory) -> Path:
    course = tmp_path_factory.mktemp("course")
    (course / "source" / TOPIC).mkdir(parents=True)
    nbformat.write(tiny_assignment.source(), course / "source" / TOPIC / f"{TOPIC}.ipynb")
    for student, work in HONEST.items():
        hand_in(course, student, work)
    for student, case in HOSTILE.items():
        hand_in(course, student, case.work)
    # Someone who handed in nothing, and a folder that no student has.
    (course / "submitted" / "late").mkdir()
    hand_in(course, "=cmd()", HONEST["grace"])
    hand_in(course, os.fsdecode(b"b\xff"), HONEST["grace"])
    (course / "submitted" / "README.txt").write_text("no student")
    (course / "submitted" / "grace" / "**").mkdir()  # no topic, and no pattern for files either
    return course


@pytest.fixture(scope="module")
def graded(handed_in) -> Graded:
    rows = grade.grade(handed_in, LIMITS)
    return Graded(handed_in, {row.student: row for row in rows if row.topic in (TOPIC, "")})


@pytest.mark.parametrize("student", HOSTILE)
def test_hostile_work_ends_in_a_row_with_a_reason(graded, student):
    row, case = graded.rows[student], HOSTILE[student]
    assert row.status == "needs review"
    assert case.reason in row.reason
    if case.double is not None:
        assert row.questions["double_tests"] == case.double
    if case.scale is not None:
        assert row.questions["scale_tests"] == case.scale
    # Never a silent 0: as long as a person has not looked there is no score at all.
    assert row.score is None
    stored = next(line for line in graded.table("grades.csv") if line["student"] == student)
    assert (stored["score"], stored["status"]) == ("", "needs review")
    assert case.reason.split("'")[0] in stored["reason"]
    with Gradebook(f"sqlite:///{graded.course / 'gradebook.db'}") as gradebook:
        submission = gradebook.find_submission(TOPIC, student)
        assert all(found.needs_manual_grade for found in submission.notebooks[0].grades)
    assert "A person will look at this submission" in graded.feedback(student)


def test_honest_work_gets_its_points(graded):
    rows = graded.rows
    whole = {"double_tests": 40, "scale_tests": 45}
    for student in ("ada", "script", "deleted", "odd-parts", "no-date", "below", "own-name"):
        assert (rows[student].questions, rows[student].status) == (whole, "needs grading"), student
    assert rows["ada"].score is None
    assert rows["grace"].questions == {"double_tests": 0, "scale_tests": 0}
    assert (rows["grace"].status, rows["grace"].score) == ("graded", 0)
    assert rows["always-equal"].questions == {"double_tests": 0, "scale_tests": 45}
    assert "an object of type Any" in rows["always-equal"].mistakes["double_tests"]
    assert rows["late"].status == "not submitted"
    notes = {"deleted": "was deleted", "edited": "was edited", "copied": "stands there twice"}
    for student, said in notes.items():
        assert rows[student].reason == f"double_tests {said}: the original was used"
        assert (rows[student].status, rows[student].automatic) == ("needs grading", 85)
    said = "`my homework.ipynb` was read: there is no tiny.ipynb"
    assert (rows["own-name"].reasons, rows["own-name"].notes) == ([], [said])
    assert "README.txt" not in rows
    assert rows["b\\udcff"].reason.startswith("the folder's name is no student id: ")
    assert rows["=cmd()"].reason == rows["b\\udcff"].reason


def test_feedback_says_what_was_wrong_and_shows_no_hidden_test(graded):
    assert graded.rows["wrong"].questions["double_tests"] == 0
    for text in (graded.feedback("wrong"), nbformat.writes(graded.notebook("wrong"))):
        assert "double of a large number: got 2962962, which is not what we expect" in text
        assert "1975308" not in text
        assert "HIDDEN TESTS" not in text
        assert "firsttoken/assignments.py" not in text
    for student in graded.rows:
        if (graded.course / "feedback" / student).exists():
            assert "1975308" not in graded.feedback(student)
            assert "HIDDEN TESTS" not in graded.feedback(student)


def test_no_page_runs_what_a_student_wrote(graded):
    assert not re.search(r'href="javascript|src="http://example', graded.feedback("links"))
    assert "(cut: too long for a page)" in graded.feedback("long-text")
    for student in ("ada", "script"):
        assert "<script>alert" not in graded.feedback(student)
        for cell in graded.notebook(student).cells:
            assert cell.cell_type == "code" or "<script" not in cell.source
            for output in cell.get("outputs", []):
                assert set(output.get("data", {})) <= {"text/plain", "image/png"}
    report = (graded.course / "report" / "report.html").read_text()
    assert "<script" not in report and "http://" not in report.replace("http://www.w3.org", "")


def test_nothing_is_left_running(graded):
    assert sandbox.taken == set()
    found = psutil.process_iter(["name", "ppid"])
    ours = [process.info["name"] for process in found if process.info["ppid"] == os.getpid()]
    assert "bwrap" not in ours
