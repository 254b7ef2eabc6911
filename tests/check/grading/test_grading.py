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
from tiny_assignment import PATIENT, solved, twice, without

TOPIC = tiny_assignment.TOPIC
# Of time only a call has little: ten seconds, of which an honest one takes a thousandth.
LIMITS = replace(
    PATIENT,
    call_s=10,
    memory_bytes=2**31,
    processes=64,
    file_bytes=2**20,
    disk_bytes=2**24,
    output_bytes=10**5,
    notebook_bytes=10**6,
)
DOUBLE = "def double(x):\n    return 2 * x"


def with_cells(*sources: str) -> nbformat.NotebookNode:
    """Return the solved notebook with cells after its first task."""
    notebook = solved()
    notebook.cells[4:4] = [new_code_cell(code, id=f"new-{k}") for k, code in enumerate(sources)]
    return notebook


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
    "many-outputs": Case(
        with_cells(*["for k in range(9): print('x' * 9000, flush=True)\n[k]"] * 300),
        "characters together",
    ),
    "two-copies": Case("copies", "there is no tiny.ipynb, but ['tiny (1).ipynb', 'tiny (2)"),
    "no-marks": Case(nbformat.writes(new_notebook()).encode(), "no cell has its mark"),
    "many-cells": Case(
        nbformat.writes(new_notebook(cells=[new_code_cell("") for _ in range(1001)])).encode(),
        "the notebook has 1001 cells",
    ),
    "surrogate": Case(
        nbformat.writes(solved()).replace('"Because', '"\\ud800').encode(), "it is not JSON"
    ),
    "empty-file": Case(b"", "the file is empty"),
    "no-json": Case(b"PK\x03\x04 a text", "it is not JSON"),
    "no-notebook": Case(b'{"cells": 7}', "no valid notebook"),
    "deep-json": Case(b"[" * 10**5, "it is not JSON"),
    "old-format": Case(
        b'{"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": []}]}',
        "no list of cells, as notebooks of format 4 have",
    ),
    "odd-cell": Case(
        b'{"cells": [{"cell_type": "code", "metadata": {}, "source": 7}]}', "no valid notebook: "
    ),
    "link": Case("link", "tiny.ipynb is a symbolic link"),
    "folder": Case("folder", "tiny.ipynb is no plain file"),
    "strange-name": Case("strange name", "\\udcff.ipynb cannot be opened"),
    "pipe": Case("pipe", "tiny.ipynb is no plain file"),
    "other-id": Case(solved(identity='STUDENT = "ada"'), "correct the STUDENT line"),
    "escapes": Case(
        solved(identity='STUDENT = "\x1b]0;[a](javascript:alert(3))"'), "another student id"
    ),
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
        "display(HTML('<script>alert(1)</script>'), Javascript('alert(2)'))\n" + DOUBLE
    ),
}


LINKS = """[a](javascript:alert(4)) ![b](http://example.org/b) [c]

[c]: javascript:alert(5)"""
HONEST["links"] = solved(explain=LINKS)
HONEST["long-text"] = solved(explain="long " * 10**5)
HONEST["deleted"] = without("double_tests")
HONEST["edited"] = solved(double_tests="pass")
HONEST["copied"] = twice("double_tests")
HONEST["below"] = solved(explain=release(tiny_assignment.source()).cells[-1].source)
HONEST["below"].cells.append(new_markdown_cell("Because a sum of two equal numbers is twice one."))
HONEST["blank"] = release(tiny_assignment.source())
HONEST["blank"].cells.append(new_markdown_cell(" "))
HONEST["no-date"] = HONEST["endless-year"] = "no date"
HONEST["downloaded-again"] = "tiny (1).ipynb"
HONEST["in-code"] = solved(explain=release(tiny_assignment.source()).cells[-1].source)
HONEST["in-code"].cells.append(new_code_cell("# A sum of two equal numbers is twice one."))
HONEST["odd-parts"] = solved()
HONEST["odd-parts"].cells[0].metadata["tags"] = [{"tag": k} for k in range(2000)]
HONEST["odd-parts"].cells[1].outputs = [{} for _ in range(40_000)]
for cell in HONEST["odd-parts"].cells:
    del cell["id"]  # as in format 4.0
HONEST["own-name"] = "my homework.ipynb"


def hand_in(course: Path, student: str, work) -> None:
    """Write a submission; a text names a special kind of file."""
    folder = course / "submitted" / student / TOPIC
    folder.mkdir(parents=True)
    path = folder / f"{TOPIC}.ipynb"
    if work in ("tiny (1).ipynb", "my homework.ipynb"):
        nbformat.write(solved(), folder / work)
        (folder / f"._{work}").write_text("macOS")
    elif work == "two files":
        nbformat.write(HONEST["grace"], path)
        nbformat.write(solved(), folder / f"{TOPIC}-Copy1.ipynb")
    elif work == "no date":
        nbformat.write(solved(), path)
        year = "9999" if student == "no-date" else "9" * 20
        (folder / "timestamp.txt").write_text(f"{year}-99-99 99:99:99 UTC")
    elif work == "copies":
        for number in (1, 2):
            nbformat.write(solved(), folder / f"tiny ({number}).ipynb")
    elif work == "link":
        path.symlink_to(course / "source" / TOPIC / f"{TOPIC}.ipynb")
    elif work == "folder":
        path.mkdir()
    elif work == "strange name":
        os.symlink("nowhere", os.fsencode(folder) + b"/\xff.ipynb")
    elif work == "pipe":
        os.mkfifo(path)
    elif isinstance(work, bytes):
        path.write_bytes(work)
    else:
        path.write_text(json.dumps(work))


class Graded(NamedTuple):
    """A course after make grade, its rows by student."""

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
    """A course with all submissions, not yet graded."""
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
    """The same course, graded."""
    rows = grade.grade(handed_in, LIMITS)
    # Beside their work, one has a folder that is no topic.
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
    assert rows["ada"].questions == {"double_tests": 40, "scale_tests": 45}
    assert (rows["ada"].status, rows["ada"].score) == ("needs grading", None)
    assert rows["grace"].questions == {"double_tests": 0, "scale_tests": 0}
    assert (rows["grace"].status, rows["grace"].score) == ("graded", 0)
    assert rows["always-equal"].questions == {"double_tests": 0, "scale_tests": 45}
    assert "an object of type Any" in rows["always-equal"].mistakes["double_tests"]
    assert rows["script"].questions == {"double_tests": 40, "scale_tests": 45}
    assert rows["late"].status == "not submitted"
    assert rows["deleted"].questions == {"double_tests": 40, "scale_tests": 45}
    assert (rows["deleted"].status, rows["deleted"].reasons) == ("needs grading", [])
    assert rows["deleted"].reason == "double_tests was deleted: the original was used"
    for student, said in (("edited", "was edited"), ("copied", "stands there twice")):
        assert rows[student].reason == f"double_tests {said}: the original was used"
        assert (rows[student].status, rows[student].automatic) == ("needs grading", 85)
    assert rows["downloaded-again"].questions == {"double_tests": 40, "scale_tests": 45}
    said = "`my homework.ipynb` was read: there is no tiny.ipynb"
    assert (rows["own-name"].reasons, rows["own-name"].notes) == ([], [said])
    assert rows["odd-parts"].questions == {"double_tests": 40, "scale_tests": 45}
    assert rows["odd-parts"].status == rows["in-code"].status == "needs grading"
    assert "README.txt" not in rows
    assert rows["b\\udcff"].reason.startswith("the folder's name is no student id: ")
    assert rows["=cmd()"].reason == rows["b\\udcff"].reason
    assert (rows["blank"].status, rows["blank"].score) == ("graded", 0)
    assert rows["below"].status == rows["no-date"].status == "needs grading"
    assert (
        rows["endless-year"].questions
        == rows["no-date"].questions
        == {"double_tests": 40, "scale_tests": 45}
    )


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
    assert 'href="javascript' not in graded.feedback("escapes")
    assert graded.rows["escapes"].reason.isprintable()
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
