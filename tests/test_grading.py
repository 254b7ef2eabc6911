"""make grade: honest work is graded and explained; hostile work ends in a row with a reason.

One class hands in everything at once, so that each case also shows that the others went on. It is
graded once, with small limits.
"""

import copy
import csv
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

import grade
import nbformat
import psutil
import pytest
import sandbox
from execute import kept
from marking import error, is_test, mark, prepared, release
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbgrader.api import Gradebook
from report import Row
from sandbox import Limits, Refused

import tiny_assignment

TOPIC = tiny_assignment.TOPIC
LIMITS = Limits(
    cell_s=3,
    notebook_s=20,
    call_s=2,
    test_s=10,
    judge_s=20,
    memory_bytes=2**31,
    processes=64,
    file_bytes=2**20,
    disk_bytes=2**24,
    output_bytes=10**5,
    notebook_bytes=10**6,
)
DOUBLE = "def double(x):\n    return 2 * x"


def solved(**sources: str) -> nbformat.NotebookNode:
    """Return a solved notebook as a student hands it in, with other sources in some cells."""
    notebook = release(tiny_assignment.source())
    answers = {mark(c).get("grade_id"): c.source for c in tiny_assignment.source().cells}
    for cell in notebook.cells:
        if mark(cell).get("solution"):
            cell.source = answers[mark(cell)["grade_id"]]
    for cell in notebook.cells:
        name = mark(cell).get("grade_id", cell.id)
        cell.source = sources.get(name, cell.source)
    assert set(sources) <= {mark(c).get("grade_id", c.id) for c in notebook.cells}
    return notebook


def without(grade_id: str) -> nbformat.NotebookNode:
    """Return the solved notebook with one cell deleted."""
    notebook = solved()
    notebook.cells = [cell for cell in notebook.cells if mark(cell).get("grade_id") != grade_id]
    return notebook


def twice(grade_id: str) -> nbformat.NotebookNode:
    """Return the solved notebook with one cell copied, the copy made harmless."""
    notebook = solved()
    place = next(
        k for k, cell in enumerate(notebook.cells) if mark(cell).get("grade_id") == grade_id
    )
    notebook.cells.insert(place + 1, copy.deepcopy(notebook.cells[place]))
    notebook.cells[place + 1].source = "pass"
    notebook.cells[place + 1]["id"] = "copy"
    return notebook


def started_with(code: str) -> nbformat.NotebookNode:
    """Return the solved notebook with a cell before all others."""
    notebook = solved()
    notebook.cells.insert(0, new_code_cell(code, id="first"))
    return notebook


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


FORKS = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
STUBBORN = """\
while True:
    try:
        while True:
            pass
    except BaseException:
        pass"""
DISGUISED = """\
class Name(str):
    def __ne__(self, other):
        return False
import firsttoken.assignments as a
a.student_id = lambda written: Name("bob")"""
FLOOD = (
    DOUBLE
    + """
right = expect
def expect(name, *values, **kwargs):
    if len(name) == 16:
        print("x" * 200_000)
    right(name, *values, **kwargs)"""
)
HOSTILE = {
    "loop": Case(solved(double="while True: pass"), "double: ran longer than 3 s", 0, 45),
    "loop-in-test": Case(
        solved(double="def double(x):\n    while True: pass"), "double_tests: ran longer", None, 45
    ),
    "stubborn-loop": Case(solved(double=STUBBORN), "3 s, and did not stop when interrupted"),
    "exit": Case(solved(double="import os\nos._exit(0)"), "double: the kernel is gone"),
    "segfault": Case(solved(double="import ctypes\nctypes.string_at(0)"), "ended by SIGSEGV"),
    "forks": Case(solved(double=FORKS), "double: "),
    "prints": Case(
        solved(double="while True: print('x' * 1000, flush=True)"),
        "wrote more than 100000 bytes",
        0,
        45,
    ),
    "200-MB": Case(solved(double="print('x' * 200 * 10**6)\n" + DOUBLE), "double: "),
    "9-MB": Case(
        solved(double="print('x' * 9 * 10**6)\n" + DOUBLE), "sent more than 8388608 bytes at once"
    ),
    "memory": Case(solved(double="hog = bytearray(10**10)"), "memory"),
    "edited": Case(solved(double_tests="pass", double="pass"), "double_tests was edited", 0, 45),
    "copied": Case(twice("double_tests"), "double_tests stands there twice", 40, 45),
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
    "other-name": Case(started_with(DISGUISED), "the notebook works for another student"),
    "no-names": Case(solved(double="%reset -f\n" + DOUBLE), "`expect` or the kernel", None, None),
    "flood-for-checks": Case(solved(double=FLOOD), "a check that must fail was cut off"),
    "late-sleeps": Case(
        with_cells(*["import time\ntry: time.sleep(99)\nexcept BaseException: time.sleep(2)"] * 20),
        "all cells together ran longer than 20 s",
    ),
    "full-disk": Case(
        solved(double="def double(x):\n    raise OSError(28, 'No space left on device')"),
        "double_tests: met a limit of the sandbox",
        None,
        45,
    ),
    "own-factor": Case(solved(scale="factor = 1\ndef scale(x): return x"), "redefines factor"),
    "frames": Case(
        solved(double="import sys\ndef double(x): return sys._getframe(1).f_locals['x']"),
        "uses or redefines _getframe, f_locals",
    ),
    "escapes": Case(
        solved(identity='STUDENT = "\x1b]0;[a](javascript:alert(3))"'), "another student id"
    ),
    "many-outputs": Case(
        with_cells(*["for _ in range(9): print('x' * 9000, flush=True)"] * 30),
        "the outputs before it have",
    ),
    "long-code": Case(with_cells("x" + " " * 100_001), "more than a page shows"),
    "other-environment": Case(
        started_with('import os\nos.environ["FIRSTTOKEN_STUDENT"] = "ada"'), "another student"
    ),
    "patched-numpy": Case(
        started_with("import numpy\nnumpy.allclose = lambda *a, **k: True"), "NumPy's comparisons"
    ),
    "patched-expect": Case(
        solved(double="def expect(*a, **k): pass\ndef double(x): return 0"),
        "`expect` or the kernel",
    ),
    "knows-the-check": Case(
        solved(
            double="right = expect\ndef expect(name, *values, **kwargs):\n"
            "    if values == (1, 2):\n        right(name, *values, **kwargs)\n"
            "def double(x): return 0"
        ),
        "`expect` or the kernel",
    ),
    "late-change": Case(
        solved(
            scale="def scale(x):\n    mine = scale.__getattribute__('__glob' + 'als__')\n"
            "    mine['expect'] = lambda *a, **k: None\n    return factor * x"
        ),
        "scale_tests: the checks no longer see a wrong value",
        40,
        None,
    ),
    "ends-in-a-check": Case(
        solved(
            scale="def scale(x):\n    mine = scale.__getattribute__('__glob' + 'als__')\n"
            "    def given(name, *values, **kwargs):\n        if len(name) == 16:\n"
            "            import os\n            os._exit(0)\n"
            "    mine['expect'] = given\n    return factor * x"
        ),
        "the kernel is gone",
        40,
        None,
    ),
    "two-files": Case(
        "two files", "only tiny.ipynb was read; there is also tiny-Copy1.ipynb", 0, 0
    ),
    "patched-module": Case(
        started_with("import firsttoken.assignments as a\na.expect = lambda *b, **k: None"),
        "`expect` or the kernel",
    ),
}
MAY_PASS = {"stubborn-loop", "late-sleeps", "full-disk"}
PEEK = """\
import linecache
for name, entry in list(linecache.cache.items()):
    if "ipykernel" in name:
        print(In, *entry[2])"""
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
HONEST["below"] = solved(explain=release(tiny_assignment.source()).cells[-1].source)
HONEST["below"].cells.append(new_markdown_cell("Because a sum of two equal numbers is twice one."))
HONEST["blank"] = release(tiny_assignment.source())
HONEST["blank"].cells.append(new_markdown_cell(" "))
HONEST["no-date"] = HONEST["endless-year"] = "no date"
HONEST["downloaded-again"] = "tiny (1).ipynb"
HONEST["peek"] = solved()
HONEST["peek"].cells.append(new_code_cell(PEEK, id="last"))
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


def possible() -> str:
    """Return why this machine has no sandbox; empty where it has one."""
    try:
        sandbox.check()
    except Refused as refused:
        return str(refused)
    return ""


@pytest.fixture(scope="module")
def handed_in(tmp_path_factory) -> Path:
    """A course with all submissions, not yet graded."""
    if reason := possible():
        pytest.skip(reason)
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
    return Graded(handed_in, {row.student: row for row in rows})


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
    assert rows["downloaded-again"].questions == {"double_tests": 40, "scale_tests": 45}
    said = "`my homework.ipynb` was read: there is no tiny.ipynb"
    assert (rows["own-name"].reasons, rows["own-name"].notes) == ([], [said])
    assert rows["odd-parts"].questions == {"double_tests": 40, "scale_tests": 45}
    assert rows["odd-parts"].status == rows["in-code"].status == "needs grading"
    assert "README.txt" not in rows
    assert rows["b\\udcff"].reason.startswith("the folder's name is no student id: 1 to 64 of a-z")
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
    """The user id of a submission is that of no account, and depends on the grader's process."""
    uids = [process.info["uids"].real for process in psutil.process_iter(["uids"])]
    assert sandbox.free_uid() not in uids
    assert "unshare" not in [child.name() for child in psutil.Process().children()]


def test_report(graded):
    status = {line["student"].lstrip("'"): line["status"] for line in graded.table("grades.csv")}
    assert status == {student: row.status for student, row in graded.rows.items()}
    assert "\n=" not in (graded.course / "report" / "grades.csv").read_text()
    canvas, moodle = graded.table("canvas.csv"), graded.table("moodle.csv")
    assert canvas[0] | {"tiny": "100"} == canvas[0]
    assert list(canvas[0])[:5] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
    scores = {line["username"]: line["tiny"] for line in moodle}
    assert {line["SIS Login ID"]: line["tiny"] for line in canvas[1:]} == scores
    assert scores["grace"] == "0" and scores["ada"] == scores["loop"] == ""
    question = graded.table("questions.csv")[0]
    assert (question["question"], question["points"]) == ("double_tests", "40")
    known = [row.questions["double_tests"] for row in graded.rows.values() if row.questions]
    known = [points for points in known if points is not None]
    assert question["solved"] == f"{known.count(40) / len(known):.0%}"
    text = (graded.course / "report" / "report.html").read_text()
    svg = ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    assert "submissions by their points" in svg.attrib["aria-label"]


def test_a_person_has_the_last_word_and_nothing_runs_twice(graded, monkeypatch):
    """What is given in Formgrader arrives in the report; unchanged work is not run again.

    But for tests that were not run to their end because the machine may have been busy.
    """
    url = f"sqlite:///{graded.course / 'gradebook.db'}"
    with Gradebook(url) as gradebook:
        given = [("ada", "explain", 12)]
        given += [(student, "double_tests", 20) for student in ("loop", "loop-in-test")]
        for student, name, points in given:
            found = gradebook.find_grade(name, TOPIC, TOPIC, student)
            found.manual_score, found.needs_manual_grade = points, False
            if student != "ada":
                for found in gradebook.find_submission(TOPIC, student).notebooks[0].grades:
                    found.needs_manual_grade = False
        gradebook.db.commit()
    monkeypatch.setattr(grade, "graded", None)  # a submission that runs fails
    rows = {row.student: row for row in grade.grade(graded.course, LIMITS)}
    assert (rows["ada"].status, rows["ada"].score) == ("graded", 97)
    for student in ("loop", "loop-in-test"):
        assert (rows[student].status, rows[student].score) == ("graded", 65)
    assert rows["exit"].status == "needs review"
    failed = {student for student, row in rows.items() if "the grader failed" in row.reason}
    assert failed - {"forks"} == MAY_PASS  # forks may end in any way
    assert "97" in graded.feedback("ada")
    assert "Not final" not in graded.feedback("ada")
    assert "Not final" not in graded.feedback("loop")
    assert "Your explanation has not been read yet" in graded.feedback("links")


def test_the_sandbox_shows_nothing_of_the_machine(handed_in, tmp_path):
    """No solutions, no gradebook, no other work, no network, no rights, a small disk."""
    secrets = [handed_in, grade.ROOT / "assignments", grade.ROOT / "tests", Path.home() / ".ssh"]
    secrets += [Path("/etc/shadow"), Path("/etc/passwd"), grade.ROOT / "classroom"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        probe = f"""
import json, os, socket
found = {{"seen": [path for path in {[str(path) for path in secrets]} if os.path.exists(path)]}}
found["user"] = os.getuid()
found["capable"] = "CapEff:\\t0000000000000000" in open("/proc/self/status").read()
found["processes"] = len([name for name in os.listdir("/proc") if name.isdigit()])
try:
    socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), timeout=1)
    found["network"] = True
except OSError:
    found["network"] = False
def refused(path, size):
    try:
        with open(path, "wb") as file:
            file.write(bytes(size))
    except OSError as error:
        return type(error).__name__
found["library"] = refused({str(grade.ROOT / "lib" / "firsttoken" / "new.py")!r}, 1)
found["long"] = refused("long", 2 * 10**6)
found["many"] = [refused(f"file{{k}}", 10**6) for k in range(20)][-1]
found["files"] = os.statvfs("/tmp").f_files
print(json.dumps(found))"""
        notebook, *_ = prepared(tiny_assignment.source(), solved(double=probe))
        assert grade.executed(notebook, "ada", [], LIMITS) == []
    cell = next(cell for cell in notebook.cells if mark(cell).get("grade_id") == "double")
    assert error(cell) == ""
    found = json.loads(cell.outputs[0].text)
    assert found.pop("user") != 0 or os.getuid() != 0
    assert found == {
        "seen": [],
        "capable": True,
        "processes": 1,
        "network": False,
        "library": "OSError",
        "long": "OSError",
        "many": "OSError",
        "files": 20000,
    }


def test_files_in_memory_count(monkeypatch):
    found = sandbox.Sandbox.__new__(sandbox.Sandbox)
    monkeypatch.setattr(found, "family", lambda: [psutil.Process()], raising=False)
    before = found.memory_bytes()
    handle = os.memfd_create("a")
    for _ in range(64):
        os.write(handle, bytes(2**20))
    after = found.memory_bytes()
    os.close(handle)
    assert after - before >= 2**26


def test_a_grader_that_is_killed_takes_the_sandbox_with_it(handed_in, tmp_path):
    (tmp_path / "home").mkdir()
    name = f"60.{os.getpid()}"  # seconds to sleep, and a name to find the command by
    code = (
        f"import sandbox, pathlib, time\nsandbox.Sandbox(['sleep', '{name}'], "
        f"pathlib.Path({str(tmp_path)!r}), 'ada', sandbox.Limits())\ntime.sleep(60)"
    )

    def running() -> list:
        sleeping = ["sleep", name]
        return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == sleeping]

    grader = subprocess.Popen([sys.executable, "-c", code], cwd=grade.ROOT / "classroom")
    for _ in range(600):
        if running():
            break
        time.sleep(0.1)
    found = running()
    grader.kill()
    grader.wait()
    assert found
    assert psutil.wait_procs(found, timeout=30)[1] == []


def test_only_sources_of_the_students_own_cells_are_taken():
    """Points, outputs and metadata that a student writes into the file have no effect."""
    notebook = solved()
    for cell in notebook.cells:
        if is_test(cell):
            cell.metadata["nbgrader"]["points"] = 1000
            cell.metadata["unknown"] = True
    notebook.cells.reverse()
    ours, *_ = prepared(tiny_assignment.source(), notebook)
    marked = [cell for cell in ours.cells if mark(cell)]
    source = [cell for cell in tiny_assignment.source().cells if mark(cell)]
    assert [mark(cell)["grade_id"] for cell in marked] == [mark(c)["grade_id"] for c in source]
    for cell, original in zip(marked, source, strict=True):
        assert mark(cell).get("points") == mark(original).get("points")
        assert "unknown" not in cell.metadata
        if is_test(cell):
            assert cell.source == original.source


def test_a_solution_that_is_missing_or_there_twice():
    source = tiny_assignment.source()
    ours, reasons, _ = prepared(source, without("double"))
    assert reasons == ["double was deleted: the original was used"]
    cell = next(cell for cell in ours.cells if mark(cell).get("grade_id") == "double")
    assert "NotImplementedError" in cell.source
    ours, reasons, notes = prepared(source, twice("double"))
    assert (reasons, notes) == ([], ["double stands there twice: both were run"])
    place = next(k for k, c in enumerate(ours.cells) if mark(c).get("grade_id") == "double")
    assert [c.source for c in ours.cells[place + 1 : place + 2]] == ["pass"]
    assert not mark(ours.cells[place + 1])


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("\n\n".join(tiny_assignment.DOUBLE_TESTS.splitlines()[:2]) + "  # read", []),
        ("expect('double(3)', double(3),\n       7, reveal=True)", ["double_tests was edited"]),
        ("(" * 999, ["double_tests was edited"]),
        (tiny_assignment.DOUBLE_TESTS + "\n#" * 10**5, ["double_tests was edited"]),
    ],
)
def test_a_formatter_may_change_a_locked_cell(test, said):
    _, reasons, _ = prepared(tiny_assignment.source(), solved(double_tests=test))
    assert reasons == [f"{start}: the original was used" for start in said]


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"data": None},
        {"data": {"text/html": "<b>"}},
        {"data": {"image/png": "<script>"}},
        {"data": {"image/png": 7}},
        {"data": {"image/png": "aGVsbG8="}},
    ],
)
def test_an_output_that_is_no_text_and_no_picture_is_dropped(content):
    assert kept("display_data", content) is None


def test_a_file_of_brackets_is_not_parsed():
    """Each takes a hundred times its size in memory."""
    with pytest.raises(grade.Unreadable, match="more than 1000000 brackets"):
        grade.parsed(b"[" * 1_000_001)


def test_a_file_that_comes_beside_is_a_change(handed_in, tmp_path):
    """The reason names it, so it must not outlive it."""
    shutil.copytree(handed_in / "source", tmp_path / "source")
    folder = tmp_path / "submitted" / "ada" / TOPIC
    shutil.copytree(handed_in / "submitted" / "two-files" / TOPIC, folder)
    both = grade.fingerprint(tmp_path, "ada", TOPIC)
    (folder / f"{TOPIC}-Copy1.ipynb").unlink()
    assert grade.fingerprint(tmp_path, "ada", TOPIC) != both


def test_a_fault_of_ours_ends_in_a_row(monkeypatch, tmp_path):
    """Wherever it comes up, as before the submission is graded."""
    monkeypatch.setattr(grade, "fingerprint", None)
    (tmp_path / "submitted" / "ada" / TOPIC).mkdir(parents=True)
    row = grade.one(tmp_path, "sqlite://", "ada", TOPIC, LIMITS, {})
    assert row.said.startswith("needs review: the grader failed: TypeError")


def test_a_new_gradebook_grades_anew(graded, tmp_path):
    """A teacher may delete the gradebook, and the rows of the last run are still there."""
    course = tmp_path / "course"
    for folder in ("source", "report", "submitted/ada"):
        shutil.copytree(graded.course / folder, course / folder)
    rows = grade.grade(course, LIMITS)
    assert [(row.student, row.status) for row in rows] == [("ada", "needs grading")]


def test_work_that_the_sandbox_would_show_is_not_graded(monkeypatch, tmp_path):
    (tmp_path / "submitted").mkdir()
    monkeypatch.setattr(grade, "check", lambda: None)
    monkeypatch.setattr(grade, "readable", lambda: [str(tmp_path)])
    with pytest.raises(Refused, match=r"the sandbox shows .* to students' code"):
        grade.grade(tmp_path)


def test_elsewhere_it_refuses_and_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(Refused, match=r"namespaces of the Linux kernel, and this is darwin"):
        sandbox.check()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sandbox.shutil, "which", lambda name, **_: None)
    with pytest.raises(Refused, match=r"unshare.* missing: install the package util-linux"):
        sandbox.check()
    with pytest.raises(Refused, match=r"there is no folder .*submitted"):
        grade.grade(tmp_path)
