"""A class as a whole: it always ends, nothing is lost or done twice, and persons are heard.

The sandbox is not part of it: `executed` is played by a function that runs the cells here. What is
interrupted and killed is in proof/alone/test_killed.py.
"""

import json
import os
import sys
import time
from threading import Barrier

import grade
import nbformat
import pytest
import review
from marking import is_test, mark
from nbgrader.api import Gradebook
from sandbox import Refused

import tiny_assignment
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
        assert classroom.table()[0]["automatic"] == "85"


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


def test_the_report_is_written_first_and_after_each_row(classroom, monkeypatch):
    for student in ("ada", "bob", "eve"):
        classroom.hand_in(student, GOOD)
    seen = []

    def watching(*arguments):
        seen.append([line["status"] for line in classroom.table()])
        assert "ada" in (classroom.course / "report" / "report.html").read_text(encoding="utf-8")
        deadline = time.monotonic() + 60
        while len(seen) == 3 and "graded" not in seen[2] and time.monotonic() < deadline:
            time.sleep(0.01)
            seen[2] = [line["status"] for line in classroom.table()]
        return played(*arguments)

    monkeypatch.setattr(grade, "executed", watching)
    classroom.grade(jobs=1)
    assert seen[0] == ["waiting"] * 3
    assert "graded" in seen[2] and "waiting" in seen[2]
    assert [line["status"] for line in classroom.table()] == ["graded"] * 3


def test_submissions_run_side_by_side(classroom, monkeypatch):
    for student in ("ada", "bob", "eve"):
        classroom.hand_in(student, GOOD)
    together = Barrier(3)

    def met(*arguments):
        together.wait(timeout=60)  # with fewer threads nobody would come
        return played(*arguments)

    monkeypatch.setattr(grade, "executed", met)
    assert all(row.score == 85 for row in classroom.grade(jobs=3).values())


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
        # The same hand-in is no second attempt.
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


def test_pages_are_made_of_what_was_graded(classroom, monkeypatch):
    """One that could not be made is a note, and the report is there all the same."""
    classroom.hand_in("ada", GOOD)
    classroom.hand_in("bob", GOOD)
    (classroom.course / "submitted" / "eve").mkdir()
    roster = "id,name\nada,Ada Lovelace\nbob,\neve,Eve\n"
    (classroom.course / "roster.csv").write_text(roster, encoding="utf-8")
    asked = []

    def pages(course, url, rows):
        asked.append([(row.student, row.name) for row in rows])
        return {("bob", TOPIC): "it takes more than 20 s"}

    monkeypatch.setattr(grade, "write_feedback", pages)
    rows = classroom.grade()
    assert asked == [[("ada", "Ada Lovelace"), ("bob", "")]]
    assert rows["bob"].score == 85
    said = "the feedback page shows only the points: it takes more than 20 s"
    assert said in classroom.table()[1]["reason"]


PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def test_a_picture_in_an_explanation_is_kept(classroom):
    classroom.hand_in("ada", GOOD | {"explain": "See ![it](attachment:a.png)"})
    path = classroom.course / "submitted" / "ada" / TOPIC / f"{TOPIC}.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    notebook["cells"][-1]["attachments"] = {"a.png": {"image/png": PIXEL}}
    path.write_text(json.dumps(notebook), encoding="utf-8")
    classroom.grade()
    shown = json.loads(classroom.autograded("ada"))["cells"][-1]
    ((name, kinds),) = shown["attachments"].items()
    assert list(kinds) == ["image/png"] and f"(attachment:{name})" in "".join(shown["source"])


# ------------------------------------------------------------------------------------- persons


def test_a_person_has_the_last_word(classroom):
    """What is given in Formgrader arrives in the report, and stays."""
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


def test_the_explanation_that_was_read_may_come_back(classroom):
    other = GOOD | {"explain": "It doubles."}
    classroom.hand_in("ada", GOOD | EXPLAINED)
    classroom.grade()
    classroom.give("ada", explain=12)
    for answers, status in [(other, "needs grading"), (GOOD | EXPLAINED, "graded")]:
        classroom.hand_in("ada", answers)
        assert classroom.grade()["ada"].status == status
    # Points for another text are none for this one.
    classroom.hand_in("ada", other)
    classroom.grade()
    classroom.give("ada", explain=5)
    classroom.hand_in("ada", GOOD | EXPLAINED)
    assert classroom.grade()["ada"].status == "needs grading"


def test_a_new_reason_asks_a_person_again(classroom, monkeypatch):
    """Also where points were given; the reason that a person knew does not."""
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
    """A person who gave points for odd work is asked when other work comes."""
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
    assert "A person will look at this submission" in classroom.autograded("ada")
    review.decide(classroom.course, "ada", TOPIC, "accept", "read it,\nfine")
    row = classroom.grade()["ada"]
    assert classroom.runs == []
    assert (row.status, row.score, row.reasons) == ("graded", 45, [])
    assert row.questions == {"double_tests": 0, "scale_tests": 45}
    assert "accepted (read it, fine; 20" in row.reason and "in an odd way" in row.reason
    assert "Not final" not in classroom.autograded("ada")
    # What a person gives for the unknown test counts, before and after.
    classroom.give("ada", double_tests=30)
    assert classroom.grade()["ada"].score == 75
    review.decide(classroom.course, "ada", TOPIC, "undo", "")
    row = classroom.grade()["ada"]
    assert (row.status, row.score) == ("needs review", None)
    assert classroom.in_gradebook("ada")["double_tests"] == (None, 30, False)
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
    # The student reads that, and not the words.
    assert "A person has looked at this hand-in: its tests count 0." in classroom.autograded("ada")
    assert "copied" not in classroom.autograded("ada")
    review.decide(classroom.course, "ada", TOPIC, "undo", "")
    assert classroom.grade()["ada"].score == 85
    # The table says all that was decided, in order.
    assert [line.decision for line in review.written(classroom.course)] == ["refuse", "undo"]


def test_the_command_line_of_a_review(classroom, monkeypatch, capsys):
    classroom.hand_in("李雷", ODD)
    classroom.grade()
    capsys.readouterr()
    start = ["review.py", str(classroom.course), "李雷", TOPIC]
    for decision, said in [
        (["--refuse", "a, \"b\" = 'c'"], "refused, all tests count 0 (a, \"b\" = 'c'; "),
        (["--accept", "no: fine", "--attempt", "1"], "accepted (no: fine; "),
        (["--undo"], "undone. Run make grade"),
    ]:
        monkeypatch.setattr(sys, "argv", start + decision)
        review.main()
        assert capsys.readouterr().out.startswith(f"李雷 {TOPIC}: {said}")
    with pytest.raises(SystemExit, match="First Token: nothing was decided on attempt 1"):
        review.main()
    assert len(review.written(classroom.course)) == 3


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


def test_a_review_that_means_nothing_is_refused(classroom):
    classroom.hand_in("ada", GOOD)
    classroom.grade()
    course = classroom.course
    for student, decision, words, number, said in [
        (
            "bob",
            "accept",
            "fine",
            None,
            "nothing of 'bob' in 'tiny' has been graded; graded are ada",
        ),
        ("ada", "accept", "  ", None, "say in a few words why"),
        ("ada", "undo", "", None, "nothing was decided on attempt 1 of ada"),
        ("ada", "refuse", "copied", 7, "there is no attempt 7; there are 1"),
    ]:
        with pytest.raises(review.Undecided, match=said):
            review.decide(course, student, TOPIC, decision, words, number)
    assert not (course / "reviews.csv").exists()
    (course / "reviews.csv").write_text("a;b\nc;d\n", encoding="utf-8")
    with pytest.raises(review.Undecided, match=r"no table in UTF-8 with the head st"):
        classroom.grade()


# ------------------------------------------------------------- attempts, lateness, corrections


def test_the_best_attempt_counts_where_the_course_says_so(classroom):
    (classroom.course / "course.toml").write_text('attempts = "best"', encoding="utf-8")
    classroom.hand_in("ada", HALF)
    classroom.grade()
    for answers, score, attempt in [(GOOD, 85, 2), (HALF | {"scale": "x = 1"}, 85, 2)]:
        classroom.hand_in("ada", answers)
        row = classroom.grade()["ada"]
        assert classroom.runs == ["ada"]
        assert (row.score, row.attempt) == (score, attempt)
    assert row.n_attempts == 3
    assert "This is attempt 2 of 3." in classroom.autograded("ada")
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
    assert row.submitted == "2026-11-21T16:48:00+00:00"
    said = "**Handed in 1.2 days late**: 17 of 85 points off."
    assert said in classroom.autograded("ada")
    assert "days late" not in classroom.autograded("bob")
    with Gradebook(f"sqlite:///{classroom.course / 'gradebook.db'}") as gradebook:
        submission = gradebook.find_submission(TOPIC, "ada")
        assert submission.late_submission_penalty == 17
        assert submission.total_seconds_late == pytest.approx(1.2 * 86400)
    # An extension helps at once.
    given = DUE + "[extensions.ada]\ntiny = 2026-11-22T12:00:00Z\n"
    (classroom.course / "course.toml").write_text(given, encoding="utf-8")
    row = classroom.grade()["ada"]
    assert classroom.runs == []
    assert (row.days_late, row.penalty, row.score) == (0, 0, 85)
    assert "days late" not in classroom.autograded("ada")
    with Gradebook(f"sqlite:///{classroom.course / 'gradebook.db'}") as gradebook:
        submission = gradebook.find_submission(TOPIC, "ada")
        assert (submission.late_submission_penalty, submission.total_seconds_late) == (0, 0)


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-21 16:48:00 CET",
        "2026-11-21 16:48:00 +0100",
        "2026-11-21 16:48:00",
        "2026-99-99 16:48:00 UTC",
        "",
        "\x1b[2J<b>=1",
    ],
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
    for good in ("2026-11-21 16:48:00 UTC", "2026-11-21 16:48:00.000000 UTC\n"):
        path.write_text(good, encoding="utf-8")
        row = classroom.grade()["ada"]
        assert classroom.runs == []
        assert (row.notes, row.submitted) == ([], "2026-11-21T16:48:00+00:00")
    path.unlink()
    assert classroom.grade()["ada"].reason == ""


def test_of_attempts_the_best_after_lateness_counts(classroom):
    said = 'attempts = "best"\n' + DUE.replace("10", "60")
    (classroom.course / "course.toml").write_text(said, encoding="utf-8")
    classroom.hand_in("ada", HALF, "2026-11-20 11:00:00")
    classroom.grade()
    classroom.hand_in("ada", GOOD, "2026-11-21 11:00:00")
    row = classroom.grade()["ada"]
    assert (row.attempt, row.score, row.days_late) == (1, 45, 0)


def corrected(**sources: str) -> nbformat.NotebookNode:
    """Return the assignment with other sources in some cells."""
    return replaced(tiny_assignment.source(), sources)


def test_a_corrected_assignment_regrades_and_blames_nobody(classroom):
    classroom.hand_in("ada", GOOD)
    classroom.hand_in("bob", GOOD | {"setup": tiny_assignment.SETUP + "\nfactor = 1"})
    classroom.hand_in("stub", {})
    first = classroom.grade()
    assert first["ada"].reason == ""
    assert first["bob"].notes == ["setup was edited: the original was used"]
    assert first["stub"].status == "graded"  # an explanation as handed out is none
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
    # Saved once more in another layout of its file, it is the same assignment.
    new.metadata["saved"] = "again"
    teach(classroom.course, new)
    classroom.grade()
    assert classroom.runs == []


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


# ------------------------------------------------------------------------------------- any name


NAMES = ["ada", "李雷", "Zoë", "Дарья", "विद्या", "عمر", "a+b@example.org", "7.x_y-z"]


def test_students_have_names_in_any_script(classroom):
    for student in [*NAMES, "=cmd()", "a b", "\x1b[2J", os.fsdecode(b"b\xff")]:
        classroom.hand_in(student, GOOD)
    rows = classroom.grade()
    assert all(rows[student].score == 85 for student in NAMES)
    others = [row for student, row in rows.items() if student not in NAMES]
    assert len(others) == 4
    for row in others:
        assert row.student.isprintable()
        assert row.reason.startswith("the folder's name is no student id: ")
    assert sorted(classroom.runs) == sorted(NAMES)
    assert {"李雷", "विद्या"} <= {line["student"] for line in classroom.table()}


def test_the_roster_names_who_handed_in_nothing(classroom):
    text = "id,name,section\nada,Ada Lovelace,A\neve,Eve,B\n"
    (classroom.course / "roster.csv").write_text(text, encoding="utf-8")
    classroom.hand_in("ada", GOOD)
    classroom.hand_in("bob", GOOD)
    rows = classroom.grade()
    assert (rows["ada"].name, rows["ada"].section) == ("Ada Lovelace", "A")
    assert (rows["eve"].status, rows["eve"].name) == ("not submitted", "Eve")
    assert (rows["bob"].score, rows["bob"].notes) == (85, ["not in roster.csv"])


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"PYTHONIOENCODING": "latin-1"},
    ],
    ids=["C", "ascii", "latin-1"],
)
def test_any_locale(classroom, environment):
    for student in ("李雷", "Zoë"):
        classroom.hand_in(student, GOOD)
    run = started(classroom.course, **environment)
    out, err = run.communicate(timeout=300)
    assert run.returncode == 0, err.decode()
    assert b"2 rows, 0 to review" in out
    scores = {line["student"]: line["score"] for line in classroom.table()}
    assert scores == {"李雷": "85", "Zoë": "85"}


def test_two_graders_do_not_meet(classroom):
    classroom.hand_in("ada", GOOD)
    with (
        grade.alone(classroom.course),
        pytest.raises(Refused, match="another make grade is at work"),
    ):
        classroom.grade()
    assert classroom.grade()["ada"].score == 85
