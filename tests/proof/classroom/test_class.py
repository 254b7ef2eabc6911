"""A class as a whole: it always ends, nothing is lost or done twice, and persons are heard.

The sandbox is not part of it: `executed` is played by a function that runs the cells here. What is
interrupted and killed is in proof/alone/test_killed.py.
"""

import contextlib
import json
import os
import sqlite3
import subprocess

import grade
import nbformat
import pytest
import review
from marking import is_test, mark
from sandbox import Refused

import tiny_assignment
from check.grading.shown import PNG
from proof.classroom.classes import (
    EXPLAINED,
    GOOD,
    HALF,
    ODD,
    TOPIC,
    empty_class,
    played,
    started,
    teach,
)
from tiny_assignment import replaced


@pytest.fixture
def classroom(monkeypatch, tmp_path):
    return empty_class(monkeypatch, tmp_path)


def test_work_is_graded_once(classroom):
    classroom.hand_in("ada", GOOD)
    classroom.hand_in("bob", HALF)
    rows = classroom.grade()
    assert sorted(classroom.runs) == ["ada", "bob"]
    assert (rows["ada"].status, rows["ada"].score, rows["ada"].automatic) == ("graded", 85, 85)
    assert rows["bob"].questions == {"double_tests": 0, "scale_tests": 45}
    seeds = {rows["ada"].seed, rows["bob"].seed}
    assert len(seeds) == 2 and all(0 <= int(seed) < 2**64 for seed in seeds)
    again = classroom.grade()
    assert classroom.runs == []
    assert again == rows
    classroom.hand_in("bob", GOOD)
    assert classroom.grade()["bob"].score == 85
    assert classroom.runs == ["bob"]


def test_gradebook_and_pages_follow_without_running(classroom):
    """Whichever of the files that are made from attempts/ is lost, it is made again."""
    classroom.hand_in("ada", GOOD | EXPLAINED)
    before = classroom.grade()
    notebook = classroom.autograded("ada")
    for name in ("gradebook.db", f"autograded/ada/{TOPIC}/{TOPIC}.ipynb", "report/grades.csv"):
        (classroom.course / name).unlink()
        assert classroom.grade() == before
        assert classroom.runs == []
        assert classroom.autograded("ada") == notebook
        assert classroom.in_gradebook("ada")["double_tests"] == (40, None, False)


@pytest.mark.parametrize("kind", ["json", "graded.ipynb"])
def test_a_stored_result_that_is_damaged_is_graded_again(classroom, kind):
    classroom.hand_in("ada", GOOD)
    before = classroom.grade()["ada"]
    path = classroom.course / "attempts" / "ada" / TOPIC / f"001.{kind}"
    path.write_bytes(path.read_bytes()[:-9])
    after = classroom.grade()["ada"]
    assert classroom.runs == ["ada"]
    assert (after.questions, after.score) == (before.questions, before.score)


def test_one_submission_cannot_stop_the_others(classroom, monkeypatch):
    """Whatever goes wrong, it is a row with a reason, and tried again: nothing was learned."""
    for student in ("ada", "bob", "eve"):
        classroom.hand_in(student, GOOD)

    def faulty(notebook, source, student, *others):
        if student == "bob":
            raise RecursionError("too deep")
        return played(notebook, source, student, *others)

    monkeypatch.setattr(grade, "executed", faulty)
    rows = classroom.grade()
    assert rows["ada"].score == rows["eve"].score == 85
    assert (rows["bob"].status, rows["bob"].score) == ("needs review", None)
    assert rows["bob"].reasons == ["the grader failed: RecursionError('too deep')"]
    monkeypatch.setattr(grade, "executed", played)
    assert classroom.grade()["bob"].score == 85


def test_one_assignment_cannot_stop_the_others(classroom):
    folder = classroom.course / "source" / "broken"
    folder.mkdir()
    (folder / "broken.ipynb").write_text("{", encoding="utf-8")
    classroom.hand_in("ada", GOOD)
    for topic in ("broken", "unheard_of"):
        (classroom.course / "submitted" / "ada" / topic).mkdir()
    rows = {row.topic: row for row in grade.grade(classroom.course)}
    assert rows[TOPIC].score == 85
    assert rows["broken"].reason.startswith("the assignment failed: NotJSONError")
    assert rows["unheard_of"].reason == "there is no assignment unheard_of"


def test_a_gradebook_that_is_locked_stops_nothing(classroom, monkeypatch):
    """As while Formgrader writes to it; the next run brings it up to date without running."""
    classroom.hand_in("ada", GOOD)
    record = grade.Gradebook.record
    monkeypatch.setattr(grade.Gradebook, "record", lambda *_, **__: 1 / 0)
    assert "ZeroDivisionError" in classroom.grade()["ada"].reason
    monkeypatch.setattr(grade.Gradebook, "record", record)
    assert classroom.grade()["ada"].score == 85
    assert classroom.runs == []


def test_what_was_cut_off_is_tried_again_only_if_asked(classroom):
    classroom.hand_in("ada", ODD)
    classroom.hand_in("bob", GOOD)
    first = classroom.grade()
    assert (first["ada"].status, first["ada"].score) == ("needs review", None)
    assert first["ada"].questions == {"double_tests": None, "scale_tests": 45}
    assert classroom.grade()["ada"] == first["ada"]
    assert classroom.runs == []
    for asked, ran in [(["ada"], ["ada"]), ([f"bob/{TOPIC}"], ["bob"]), ([""], ["ada", "bob"])]:
        rows = classroom.grade(again=asked)
        assert sorted(classroom.runs) == ran
        assert {row.n_attempts for row in rows.values()} == {1}
    with pytest.raises(Refused, match="nothing was handed in for --again eve, eve/tiny"):
        classroom.grade(again=["eve/tiny", "eve", "ada"])


def test_a_seed_repeats_a_grading(classroom, monkeypatch):
    classroom.hand_in("ada", GOOD)
    seeds = []

    def noted(*arguments):
        seeds.append(arguments[-1])
        return played(*arguments)

    monkeypatch.setattr(grade, "executed", noted)
    row = classroom.grade()["ada"]
    assert classroom.grade(again=[""])["ada"].seed != row.seed
    assert classroom.grade(again=[""], seed=int(row.seed))["ada"].seed == row.seed
    assert seeds[0] == seeds[2] != seeds[1]


def test_a_picture_in_an_explanation_is_kept(classroom):
    classroom.hand_in("ada", GOOD | {"explain": "See ![it](attachment:a.png)"})
    path = classroom.course / "submitted" / "ada" / TOPIC / f"{TOPIC}.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    notebook["cells"][-1]["attachments"] = {"a.png": {"image/png": PNG}}
    path.write_text(json.dumps(notebook), encoding="utf-8")
    classroom.grade()
    shown = json.loads(classroom.autograded("ada"))["cells"][-1]
    ((name, kinds),) = shown["attachments"].items()
    assert list(kinds) == ["image/png"] and f"(attachment:{name})" in "".join(shown["source"])


def test_a_person_has_the_last_word(classroom):
    classroom.hand_in("ada", GOOD | EXPLAINED)
    classroom.hand_in("bob", ODD)
    rows = classroom.grade()
    assert (rows["ada"].status, rows["ada"].score) == ("needs grading", None)
    assert all(waits for _, _, waits in classroom.in_gradebook("bob").values())
    classroom.give("ada", explain=12)
    classroom.give("bob", double_tests=20, scale_tests=45, explain=0)
    rows = classroom.grade()
    assert (rows["ada"].status, rows["ada"].score, rows["ada"].total) == ("graded", 97, 100)
    assert (rows["bob"].status, rows["bob"].score) == ("graded", 65)
    assert "Not final" not in classroom.autograded("ada") + classroom.autograded("bob")


def test_what_was_read_is_not_to_be_read_again(classroom):
    """Points for the same explanation of the same task stay, whatever else is graded anew."""
    for student in ("ada", "bob"):
        classroom.hand_in(student, GOOD | EXPLAINED)
    classroom.grade()
    classroom.give("ada", explain=12)
    tests = corrected()
    next(c for c in tests.cells if is_test(c)).metadata.nbgrader.points = 20
    for step, score in [
        (lambda: None, 97),
        (lambda: teach(classroom.course, corrected(explain="Our own answer.")), 97),
        (lambda: classroom.hand_in("ada", HALF | EXPLAINED), 57),
        (lambda: teach(classroom.course, corrected(double_tests="double(1)")), 97),
        (lambda: teach(classroom.course, tests), 57),
    ]:
        step()
        row = classroom.grade(again=[""])["ada"]
        assert set(classroom.runs) == {"ada", "bob"}
        assert (row.status, row.score) == ("graded", score)
        assert classroom.in_gradebook("ada")["explain"] == (None, 12, False)
        assert classroom.in_gradebook("bob")["explain"] == (None, None, True)
        assert "Not final" not in classroom.autograded("ada")


BEGUN = "Two sentences:\n### BEGIN SOLUTION\nBecause.\n### END SOLUTION"


def other_maximum() -> nbformat.NotebookNode:
    notebook = tiny_assignment.source()
    notebook.cells[-1].metadata.nbgrader.points = 20
    return notebook


@pytest.mark.parametrize(
    "change",
    [
        lambda room: room.hand_in("ada", GOOD | {"explain": "Because."}),
        lambda room: room.hand_in("ada", GOOD | EXPLAINED | {"title": "What I also mean"}),
        lambda room: teach(room.course, corrected(question="Explain both functions.")),
        lambda room: teach(room.course, corrected(explain=BEGUN)),
        lambda room: teach(room.course, other_maximum()),
    ],
    ids=["text", "text elsewhere", "task", "stub", "maximum"],
)
def test_another_explanation_or_task_is_to_be_read(classroom, change):
    """The points stay as a proposal until a person looks, however often it is graded."""
    classroom.hand_in("ada", GOOD | EXPLAINED)
    classroom.grade()
    classroom.give("ada", explain=12)
    assert classroom.grade()["ada"].status == "graded"
    change(classroom)
    for again in ([], [""]):
        row = classroom.grade(again=again)["ada"]
        assert (row.status, row.score) == ("needs grading", None)
        assert classroom.in_gradebook("ada")["explain"] == (None, 12, True)
    classroom.give("ada", explain=13)
    for again in ([], [""]):
        assert classroom.grade(again=again)["ada"].score == 98


def test_a_new_reason_asks_a_person_again(classroom, monkeypatch):
    classroom.hand_in("ada", ODD | EXPLAINED)
    assert classroom.grade()["ada"].status == "needs review"
    classroom.give("ada", double_tests=20, scale_tests=45, explain=10)
    for _ in range(2):
        assert classroom.grade(again=[""])["ada"].score == 75
    monkeypatch.setattr(grade, "executed", lambda *those: [*played(*those), "memory: cut off"])
    for _ in range(2):
        assert classroom.grade(again=[""])["ada"].status == "needs review"
        assert all(waits for _, _, waits in classroom.in_gradebook("ada").values())


def test_points_for_a_test_are_for_one_hand_in(classroom):
    classroom.hand_in("ada", ODD)
    classroom.grade()
    classroom.give("ada", double_tests=20, scale_tests=45, explain=0)
    assert classroom.grade()["ada"].score == 65
    classroom.hand_in("ada", GOOD)
    assert classroom.grade()["ada"].status == "needs grading"
    assert classroom.in_gradebook("ada") == {
        "double_tests": (40, 20, True),
        "scale_tests": (45, 45, True),
        "explain": (0, 0, False),
    }


def test_accept_counts_what_the_tests_found(classroom):
    classroom.hand_in("ada", ODD)
    classroom.grade()
    review.decide(classroom.course, "ada", TOPIC, "accept", "read it,\nfine")
    row = classroom.grade()["ada"]
    assert classroom.runs == []
    assert (row.status, row.score, row.reasons) == ("graded", 45, [])
    assert row.questions == {"double_tests": 0, "scale_tests": 45}
    assert "accepted (read it, fine; 20" in row.reason and "in an odd way" in row.reason
    # What a person gives for the unknown test counts.
    classroom.give("ada", double_tests=30)
    assert classroom.grade()["ada"].score == 75
    # An explanation is to be read all the same.
    classroom.hand_in("bob", ODD | EXPLAINED)
    classroom.grade()
    review.decide(classroom.course, "bob", TOPIC, "accept", "fine")
    assert classroom.grade()["bob"].status == "needs grading"


def test_refuse_counts_nothing_and_can_be_undone(classroom):
    classroom.hand_in("ada", GOOD)
    assert classroom.grade()["ada"].score == 85
    review.decide(classroom.course, "ada", TOPIC, "refuse", "copied")
    row = classroom.grade()["ada"]
    assert (row.status, row.score) == ("graded", 0)
    assert "refused, all tests count 0 (copied; " in classroom.table()[0]["reason"]
    assert "copied" not in classroom.autograded("ada")  # the student does not read the words
    review.decide(classroom.course, "ada", TOPIC, "undo", "")
    assert classroom.grade()["ada"].score == 85
    assert [line.decision for line in review.written(classroom.course)] == ["refuse", "undo"]


@pytest.mark.parametrize("decision", ["accept", "refuse"])
def test_a_new_hand_in_asks_again(classroom, decision):
    classroom.hand_in("ada", ODD)
    classroom.grade()
    review.decide(classroom.course, "ada", TOPIC, decision, "seen")
    assert classroom.grade()["ada"].status == "graded"
    classroom.hand_in("ada", ODD | {"scale": "def scale(x):\n    return 0"})
    assert classroom.grade()["ada"].status == "needs review"
    classroom.hand_in("ada", ODD)
    assert classroom.grade()["ada"].status == "graded"


def test_the_best_attempt_counts_where_the_course_says_so(classroom):
    (classroom.course / "course.toml").write_text('attempts = "best"', encoding="utf-8")
    classroom.hand_in("ada", HALF)
    classroom.grade()
    for answers in (GOOD, HALF | {"scale": "x = 1"}):
        classroom.hand_in("ada", answers)
        row = classroom.grade()["ada"]
        assert (row.score, row.attempt) == (85, 2)
    assert "return 2 * x" in classroom.autograded("ada")
    assert classroom.in_gradebook("ada")["double_tests"][0] == 40
    # The course changes its mind, and nothing runs.
    (classroom.course / "course.toml").write_text('attempts = "last"', encoding="utf-8")
    row = classroom.grade()["ada"]
    assert classroom.runs == []
    assert (row.score, row.attempt, row.n_attempts) == (0, 3, 3)
    # The first hand-in once more is no fourth attempt.
    classroom.hand_in("ada", HALF)
    row = classroom.grade()["ada"]
    assert classroom.runs == []
    assert (row.score, row.attempt, row.n_attempts) == (45, 1, 3)


DUE = """
late_percent_per_day = 10
[due]
tiny = 2026-11-20T12:00:00Z
"""


def test_lateness_takes_points_off(classroom):
    (classroom.course / "course.toml").write_text(DUE, encoding="utf-8")
    classroom.hand_in("ada", GOOD, "2026-11-21 16:48:00")
    classroom.hand_in("bob", GOOD, "2026-11-20 11:00:00")
    rows = classroom.grade()
    assert (rows["bob"].days_late, rows["bob"].penalty, rows["bob"].score) == (0, 0, 85)
    row = rows["ada"]
    assert (row.days_late, row.penalty, row.score) == (pytest.approx(1.2), 17, 68)
    said = "**Handed in 1.2 days late**: 17 of 85 points off."
    assert said in classroom.autograded("ada")
    # An extension helps at once.
    given = DUE + "[extensions.ada]\ntiny = 2026-11-22T12:00:00Z\n"
    (classroom.course / "course.toml").write_text(given, encoding="utf-8")
    row = classroom.grade()["ada"]
    assert classroom.runs == []
    assert (row.days_late, row.penalty, row.score) == (0, 0, 85)
    assert "days late" not in classroom.autograded("ada")


@pytest.mark.parametrize(
    "text", ["2026-11-21 16:48:00 +0100", "2026-99-99 16:48:00 UTC", "\x1b[2J<b>=1"]
)
def test_a_time_that_is_not_understood_is_a_note(classroom, text):
    """It is not late, and not in silence; a teacher who corrects the file needs no new grading."""
    (classroom.course / "course.toml").write_text(DUE, encoding="utf-8")
    classroom.hand_in("ada", GOOD)
    path = classroom.course / "submitted" / "ada" / TOPIC / "timestamp.txt"
    path.write_text(text, encoding="utf-8")
    for _ in range(2):
        row = classroom.grade()["ada"]
        assert (row.score, row.days_late, row.submitted) == (85, 0, "")
        (note,) = row.notes
        assert note.startswith(f"timestamp.txt says {text!r}; ") or "\x1b" in text
        assert note.endswith("; expected YYYY-MM-DD HH:MM:SS UTC: counted as in time")
        assert note.isprintable()
    path.write_text("2026-11-21 16:48:00.000000 UTC\n", encoding="utf-8")
    row = classroom.grade()["ada"]
    assert classroom.runs == []
    assert (row.notes, row.submitted) == ([], "2026-11-21T16:48:00+00:00")


def test_of_attempts_the_best_after_lateness_counts(classroom):
    said = 'attempts = "best"\n' + DUE.replace("10", "60")
    (classroom.course / "course.toml").write_text(said, encoding="utf-8")
    classroom.hand_in("ada", HALF, "2026-11-20 11:00:00")
    classroom.grade()
    classroom.hand_in("ada", GOOD, "2026-11-21 11:00:00")
    row = classroom.grade()["ada"]
    assert (row.attempt, row.score, row.days_late) == (1, 45, 0)


def corrected(**sources: str) -> nbformat.NotebookNode:
    return replaced(tiny_assignment.source(), sources)


def test_a_corrected_assignment_regrades_and_blames_nobody(classroom):
    classroom.hand_in("ada", GOOD)
    classroom.hand_in("bob", GOOD | {"setup": tiny_assignment.SETUP + "\nfactor = 1"})
    classroom.hand_in("stub", {})
    first = classroom.grade()
    new = corrected(
        setup=tiny_assignment.SETUP.replace("your factor", "your own factor"),
        scale_tests=tiny_assignment.SCALE_TESTS + "\nassert scale(0) == 1",
        explain="In two sentences.",
        question="Explain in two sentences.",
    )
    teach(classroom.course, new)
    rows = classroom.grade()
    assert sorted(classroom.runs) == ["ada", "bob", "stub"]
    assert (rows["ada"].score, rows["ada"].reason, rows["ada"].n_attempts) == (40, "", 1)
    assert rows["bob"].notes == first["bob"].notes
    assert (rows["stub"].status, rows["stub"].score) == ("graded", 0)


def test_a_correction_may_add_and_remove_tests(classroom):
    """nbgrader refuses to change the cells of an assignment that has submissions."""
    classroom.hand_in("ada", GOOD | EXPLAINED)
    classroom.grade()
    classroom.give("ada", explain=10)
    new = tiny_assignment.source()
    new.cells = [c for c in new.cells if mark(c).get("grade_id") not in ("double", "double_tests")]
    extra = nbformat.v4.new_code_cell("assert scale(2) == 2 * factor")
    new.cells.append(tiny_assignment.graded("more_tests", extra, points=5))
    teach(classroom.course, new)
    row = classroom.grade()["ada"]
    assert row.questions == {"scale_tests": 45, "more_tests": 5}
    assert (row.total, row.reason) == (65, "")
    assert classroom.in_gradebook("ada") == {
        "scale_tests": (45, None, False),
        "more_tests": (5, None, False),
        "explain": (None, 10, False),
    }


def test_students_have_names_in_any_script(classroom):
    names = ["ada", "李雷", "Zoë", "Дарья", "विद्या", "عمر", "a+b@example.org", "7.x_y-z"]
    for student in names:
        classroom.hand_in(student, GOOD)
    assert {student: row.score for student, row in classroom.grade().items()} == dict.fromkeys(
        names, 85
    )
    assert {line["student"] for line in classroom.table()} == set(names)


def test_any_locale(classroom):
    for student in ("李雷", "Zoë"):
        classroom.hand_in(student, GOOD)
    run = started(classroom.course, LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    out, err = run.communicate(timeout=300)
    assert run.returncode == 0, err.decode()
    assert b"2 rows, 0 to review" in out
    scores = {line["student"]: line["score"] for line in classroom.table()}
    assert scores == {"李雷": "85", "Zoë": "85"}


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk is mounted by root")
    yield disk
    # A test that failed may hold a file open.
    subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.mark.parametrize("free_kib", [0, 40, 100, 190, 200, 230])
def test_a_full_disk_tears_nothing(classroom, small_disk, free_kib):
    """The run ends with the disk's words, and the next one as if nothing had been."""
    classroom.course = small_disk
    teach(small_disk, tiny_assignment.source())
    for student in ("ada", "bob"):
        classroom.hand_in(student, GOOD)
    disk, ballast = os.statvfs(small_disk), small_disk / "ballast"
    ballast.write_bytes(bytes(disk.f_bavail * disk.f_frsize - 1024 * free_kib))
    with pytest.raises(OSError, match="No space left"):
        classroom.grade()
    assert not list(small_disk.rglob("*.part*"))
    for path in [*small_disk.rglob("*.json"), *small_disk.rglob("*.ipynb")]:
        json.loads(path.read_bytes())
    ballast.unlink()
    assert {row.score for row in classroom.grade().values()} == {85}
    with contextlib.closing(sqlite3.connect(small_disk / "gradebook.db")) as gradebook:
        assert len(gradebook.execute("SELECT version_num FROM alembic_version").fetchall()) == 1


def test_two_graders_do_not_meet(classroom):
    classroom.hand_in("ada", GOOD)
    with grade.alone(classroom.course), pytest.raises(Refused, match="another make grade"):
        classroom.grade()
