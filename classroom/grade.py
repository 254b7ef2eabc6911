"""Grade a course: python classroom/grade.py COURSE

Reads   COURSE/submitted/STUDENT/TOPIC/TOPIC.ipynb, as nbgrader collects them; COURSE/course.toml,
        roster.csv and reviews.csv, where they are; the assignments from
        COURSE/source/TOPIC/TOPIC.ipynb where there is one, else from the book's assignments/.
Writes  COURSE/report/, gradebook.db and autograded/ (for nbgrader's Formgrader), feedback/, and
        attempts/ and releases/, by which it knows what it has done.

A hand-in is graded once, and again when its assignment has changed or --again asks for it. All that
is known is written after each submission, so a run that was stopped, or killed, goes on where it
was.
"""

import argparse
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import secrets
import signal
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import nbformat
import psutil
from attempts import (
    Attempt,
    again,
    attempts,
    count,
    counted,
    digest,
    graded_path,
    keep,
    next_number,
    releases,
)
from course import (
    ID_RULE,
    Course,
    CourseError,
    is_student_id,
    of_disk,
    read_course,
    run,
    write_whole,
)
from execute import executed
from feedback import as_text, closed, write_feedback
from gradebook import Gradebook, Standing
from marking import (
    attached,
    is_explanation,
    is_test,
    key,
    lines,
    mark,
    mistakes,
    points,
    prepared,
    release,
)
from nbformat.v4 import new_markdown_cell
from report import GRADES_HEAD, Row, grades_line, table, whole_class, write_report
from review import Review, Undecided, reviews
from sandbox import Limits, Refused, check, readable
from submitted import (
    HandIn,
    Unreadable,
    brought_up_to_date,
    content,
    handed_in,
    parsed,
    shown,
)
from tqdm import tqdm

ROOT = Path(__file__).parents[1]
MAX_SAID = 20  # reasons on one page
MAX_REASON = 500  # characters of one of them: 10,000 brackets take a page's maker a second
REPORT_S = 3  # so often report.html is written while the class is graded
POLL_S = 0.2
MEMORY_EACH = 2 * 2**30  # bytes of the machine's memory for each submission that runs


@dataclass(frozen=True)
class Assignment:
    """What is graded: the source notebook with its tests, and the releases that were handed out."""

    topic: str
    source: nbformat.NotebookNode
    files: list[Path]  # that lie beside it
    version: str  # changes with its cells and files
    earlier: list[nbformat.NotebookNode]  # releases that this course was graded with before

    @property
    def maximum(self) -> dict[str, float]:
        """The points of each test cell."""
        return {
            mark(cell)["grade_id"]: mark(cell)["points"]
            for cell in self.source.cells
            if is_test(cell)
        }


def assignment(course: Path, topic: str) -> Assignment:
    """Read an assignment's source, and keep its release in the course."""
    for place in (course / "source" / topic, ROOT / "assignments" / topic):
        if (place / f"{topic}.ipynb").is_file():
            break
    else:
        raise Unreadable(f"there is no assignment {topic}")
    source = nbformat.read(place / f"{topic}.ipynb", as_version=4)
    files = sorted(p for p in place.iterdir() if p.is_file() and p.suffix != ".ipynb")
    cells = [(cell.cell_type, cell.source, mark(cell)) for cell in key(source).cells]
    said = [cells, [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]]
    version = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    return Assignment(
        topic, source, files, version, releases(course, topic, version, release(source))
    )


def written_elsewhere(source: nbformat.NotebookNode, notebook: nbformat.NotebookNode) -> list:
    """Return the cells that may hold an explanation below its cell, and not in it.

    That is text anywhere, and behind the last test also a comment in code.
    """
    ours = {cell.source for cell in source.cells}
    last = max((k for k, cell in enumerate(notebook.cells) if is_test(cell)), default=0)
    return [
        cell
        for k, cell in enumerate(notebook.cells)
        if (cell.cell_type == "markdown" or k > last)
        and not mark(cell)
        and cell.source.strip()
        and cell.source not in ours
    ]


def untouched(source: nbformat.NotebookNode, notebook: nbformat.NotebookNode) -> set[str]:
    """Return the explanations that stand as they were handed out."""
    given = {mark(c)["grade_id"]: c.source for c in release(source).cells if is_explanation(c)}
    if written_elsewhere(source, notebook):
        return set()
    return {
        mark(cell)["grade_id"]
        for cell in notebook.cells
        if is_explanation(cell) and cell.source.strip() == given[mark(cell)["grade_id"]].strip()
    }


def to_read(
    source: nbformat.NotebookNode, notebook: nbformat.NotebookNode, row: Row
) -> dict[str, str]:
    """Return for each cell with points a digest of what a person reads who gives points there.

    For an explanation that is its text, its task and its maximum: the code above it may change. For
    a test it is the hand-in, the test and what it gave.
    """
    answers = {mark(cell).get("grade_id"): cell for cell in notebook.cells}
    elsewhere = [(lines(c.source), attached(c)) for c in written_elsewhere(source, notebook)]
    found, task = {}, []
    for ours, given in zip(source.cells, release(source).cells, strict=True):
        name, points = mark(ours).get("grade_id"), mark(ours).get("points")
        if is_explanation(ours):
            answer = answers[name]
            text = [lines(answer.source), attached(answer), elsewhere]
            found[name] = [points, *task, lines(given.source), text]
        elif is_test(ours):
            found[name] = [points, lines(ours.source), row.fingerprint, row.questions[name]]
        # The task of an explanation stands in the texts right before it.
        plain = ours.cell_type == "markdown" and not is_explanation(ours)
        task = [*task, lines(given.source)] if plain else []
    return {name: digest(json.dumps(said, sort_keys=True).encode()) for name, said in found.items()}


def graded(
    task: Assignment, student: str, hand_in: HandIn, limits: Limits, seed: int
) -> tuple[Attempt, nbformat.NotebookNode]:
    """Run a hand-in and return what came of it; nothing is written yet."""
    row = Row(student, task.topic, maximum=task.maximum)
    row.submitted, row.seed, row.fingerprint = hand_in.submitted, str(seed), hand_in.fingerprint
    start = time.monotonic()
    untried = set()
    try:
        if hand_in.problem:
            raise Unreadable(hand_in.problem)
        submitted = parsed(hand_in.data)
        brought_up_to_date(submitted, release(task.source), task.earlier)
        notebook, row.reasons, row.notes = prepared(task.source, submitted)
        if hand_in.name != f"{task.topic}.ipynb":
            row.notes.append(f"`{shown(hand_in.name)}` was read: there is no {task.topic}.ipynb")
        row.reasons += executed(notebook, task.source, student, task.files, limits, seed)
        untried = untouched(task.source, notebook)
    except Unreadable as unreadable:
        notebook, row.reasons = key(task.source), [str(unreadable)]
    row.questions, row.mistakes = points(notebook), mistakes(notebook)
    if hand_in.beside:
        others = ", ".join(map(shown, hand_in.beside))
        said = f"only {task.topic}.ipynb was read; there is also {others}"
        (row.notes if any(row.questions.values()) else row.reasons).append(said)
    row.parts = {
        mark(cell)["grade_id"]: [
            [part["name"], part["earned"], part["points"]] for part in cell.metadata["parts"]
        ]
        for cell in notebook.cells
        if "parts" in cell.metadata
    }
    row.seconds = round(time.monotonic() - start, 2)
    scores = row.questions | dict.fromkeys(untried, 0)
    digests = to_read(task.source, notebook, row)
    attempt = Attempt(0, hand_in, row, scores, digests, task.version)
    return attempt, closed(notebook, task.source)


@dataclass
class Work:
    """A student's work on a topic: what was graded, and what is still to do."""

    student: str
    task: Assignment
    known: list[Attempt]
    current: str = ""  # fingerprint of what lies in submitted/
    waiting: int = 0  # gradings that have not ended
    fault: str = ""  # of the grader
    row: Row | None = None

    def add(self, attempt: Attempt) -> None:
        """Put in an attempt, in the place of an earlier grading of the same hand-in."""
        others = [a for a in self.known if a.number != attempt.number]
        self.known = sorted([*others, attempt], key=lambda a: a.number)


class Class:
    """A run over a course: its work, the rows of its report, and how they come about."""

    def __init__(self, course: Path, gradebook: Gradebook, limits: Limits, seed: int | None):
        """Read what a teacher said and what was graded before."""
        self.course, self.gradebook, self.limits, self.seed = course, gradebook, limits, seed
        self.setup: Course = read_course(course)
        self.reviews: dict[tuple[str, str, str], Review] = reviews(course)
        self.work: dict[tuple[str, str], Work] = {}  # by topic and student
        self.others: list[Row] = []  # folders that are no work
        self.standings: dict[tuple[str, str], Standing] = {}
        self.reported = float("-inf")

    def look(self, asked: list[str]) -> list[tuple[Work, Attempt | None]]:
        """Find all work, and return what has to be graded: what lies there, or an old attempt."""
        folders = [
            path
            for path in sorted((self.course / "submitted").iterdir())
            if path.name[0] != "." and (path.is_dir() or path.is_symlink())
        ]
        names, topics = set(self.setup.roster), set()
        for folder in folders:
            if not is_student_id(folder.name):
                reason = f"the folder's name is no student id: {ID_RULE}; it was skipped"
                self.others.append(Row(shown(folder.name), "", "needs review", reasons=[reason]))
                continue
            names.add(folder.name)
            if not folder.is_symlink():
                topics |= {path.name for path in folder.iterdir() if path.name[0] != "."}
        jobs, unmet = [], set(asked) - {""}
        for topic in sorted(topics):
            try:
                task = assignment(self.course, topic)
                self.gradebook.register(topic, task.source, self.setup.due_dates.get(topic))
            except Exception as error:  # one topic must not stop the others
                if of_disk(error):
                    raise
                known = isinstance(error, Unreadable)
                reason = shown(str(error) if known else f"the assignment failed: {error!r}")
                self.others += [
                    Row(name, shown(topic), "needs review", reasons=[reason])
                    for name in sorted(names)
                    if (self.course / "submitted" / name / topic).exists()
                ]
                continue
            for student in sorted(names):
                specs = {"", student, f"{student}/{topic}"}
                work = Work(student, task, attempts(self.course, student, topic))
                self.work[topic, student] = work
                if not os.path.lexists(self.course / "submitted" / student / topic):
                    continue
                unmet -= specs
                try:
                    jobs += self.jobs(work, bool(specs & set(asked)))
                except Exception as error:  # a fault of ours must not stop the class
                    work.fault = f"the grader failed: {error!r}"
        if unmet:
            raise Refused(f"nothing was handed in for --again {', '.join(sorted(unmet))}")
        return jobs

    def jobs(self, work: Work, anew: bool) -> list[tuple[Work, Attempt | None]]:
        """Return what of a student's work has to be graded."""
        folder = self.course / "submitted" / work.student / work.task.topic
        hand_in = handed_in(folder, work.task.topic)
        work.current = hand_in.fingerprint
        found = []
        if anew or not any(a.row.fingerprint == work.current for a in self.valid(work)):
            found.append((work, None))
        for attempt in work.known:
            if attempt.row.fingerprint == work.current:
                # A teacher may have corrected it.
                attempt.row.submitted = hand_in.submitted
                attempt.hand_in = dataclasses.replace(
                    attempt.hand_in, submitted=hand_in.submitted, untimed=hand_in.untimed
                )
            elif self.setup.attempts == "best" and (anew or attempt not in self.valid(work)):
                found.append((work, attempt))
        work.waiting = len(found)
        return found

    def valid(self, work: Work) -> list[Attempt]:
        """Return the attempts that were graded with the assignment as it is now."""
        return [a for a in work.known if a.version == work.task.version]

    def run(self, job: tuple[Work, Attempt | None], stop: Event):
        """Grade one hand-in, in a thread of its own; None if the run was stopped meanwhile."""
        work, attempt = job
        if stop.is_set():
            return None
        folder = self.course / "submitted" / work.student / work.task.topic
        hand_in = again(self.course, attempt) if attempt else handed_in(folder, work.task.topic)
        seed = secrets.randbits(64) if self.seed is None else self.seed
        found = graded(work.task, work.student, hand_in, self.limits, seed)
        return None if stop.is_set() else found

    def arrived(self, work: Work, future: Future) -> None:
        """Store what a grading found; whatever it was, the result is a row."""
        work.waiting -= 1
        try:
            found = future.result()
            if found is None:
                work.waiting += 1
                return
            attempt, notebook = found
            same = [a for a in work.known if a.row.fingerprint == attempt.row.fingerprint]
            attempt.number = (
                same[0].number if same else next_number(self.course, work.student, work.task.topic)
            )
            keep(self.course, attempt, notebook)
            work.add(attempt)
            work.current = work.current if same else attempt.row.fingerprint
        except Exception as error:  # a fault of ours must not stop the class
            if of_disk(error):
                raise
            work.fault = f"the grader failed: {error!r}"
        self.settle(work)

    def counting(self, work: Work) -> Attempt | None:
        """Return the attempt whose points count."""
        if self.setup.attempts == "best":
            return max(self.valid(work), key=lambda a: (self.rank(a), a.number), default=None)
        return next((a for a in self.valid(work) if a.row.fingerprint == work.current), None)

    def rank(self, attempt: Attempt) -> float:
        """Return an attempt's points from the tests, after lateness."""
        row = self.decided(attempt)
        known = sum(points or 0 for points in row.questions.values())
        return known - self.setup.penalty(known, self.late(row))

    def late(self, row: Row) -> float:
        """Return how many days late a row's hand-in came."""
        return self.setup.lateness(row.topic, row.student, row.submitted)

    def review(self, attempt: Attempt) -> Review | None:
        """Return what a person decided on an attempt."""
        row = attempt.row
        return self.reviews.get((row.student, row.topic, row.fingerprint))

    def decided(self, attempt: Attempt) -> Row:
        """Return an attempt's row with what a person decided on it."""
        row = dataclasses.replace(attempt.row, notes=list(attempt.row.notes))
        if attempt.hand_in.untimed:
            row.notes.append(attempt.hand_in.untimed)
        review = self.review(attempt)
        if review:
            row.notes = [review.said, *row.reasons, *row.notes]
            row.reasons = []
            row.questions = {
                name: (points or 0) if review.decision == "accept" else 0
                for name, points in row.questions.items()
            }
        return row

    def settle(self, work: Work) -> None:
        """Bring gradebook, autograded/ and the row to what is known, whatever happens."""
        student, topic = work.student, work.task.topic
        who = self.setup.student(student)
        if not os.path.lexists(self.course / "submitted" / student / topic):
            work.row = Row(student, topic, "not submitted")
        elif work.fault:
            work.row = Row(student, topic, "needs review", reasons=[work.fault])
        elif work.waiting or (attempt := self.counting(work)) is None:
            work.row = Row(student, topic, "waiting", maximum=work.task.maximum)
        else:
            try:
                work.row = self.published(work, attempt)
            except Exception as error:  # as a gradebook that Formgrader writes to just now
                if of_disk(error):
                    raise
                reason = f"the grader failed: {error!r}"
                work.row = Row(student, topic, "needs review", reasons=[reason])
        work.row.name, work.row.section = who.name, who.section
        if self.setup.roster and student not in self.setup.roster:
            work.row.notes.append("not in roster.csv")

    def published(self, work: Work, attempt: Attempt) -> Row:
        """Return the row of the attempt that counts; gradebook and autograded/ hold it."""
        student, topic = work.student, work.task.topic
        row, review = self.decided(attempt), self.review(attempt)
        row.attempt, row.n_attempts = work.known.index(attempt) + 1, len(work.known)
        row.days_late = self.late(row)
        ours, own = self.setup.due_dates.get(topic), self.setup.due(topic, student)
        extension = own - ours if own and ours and own > ours else None
        now = {
            "grading": attempt.grading,
            "review": review.decision if review else "",
            "submitted": row.submitted,
            "extension": extension.total_seconds() if extension else 0,
        }
        held = counted(self.course, student, topic)
        # What a person finds at each cell, and what one found there who gave points.
        shown = {name: [found, *row.reasons] for name, found in attempt.to_read.items()}
        read = dict(held.get("read", {}))
        standing = self.standings.get((student, topic))
        if standing is None or any(held.get(name) != now[name] for name in now):
            for name in self.gradebook.settled(student, topic):
                read[name] = held.get("shown", {}).get(name, [])
            standing = self.gradebook.record(
                student,
                topic,
                attempt.scores | row.questions,
                review=bool(row.reasons),
                anew=standing is None or held.get("grading") != attempt.grading,
                read={name for name in shown if set(shown[name]) <= set(read.get(name, []))},
                submitted=row.submitted,
                extension=extension,
            )
        row.total = standing.total
        row.penalty = self.setup.penalty(standing.points, row.days_late)
        if row.penalty != standing.penalty:
            self.gradebook.penalize(student, topic, row.penalty)
            standing.penalty = row.penalty
        self.standings[student, topic] = standing
        if not standing.waiting:
            row.status, row.score = "graded", max(0, standing.points - row.penalty)
        else:
            row.status = "needs review" if row.reasons else "needs grading"
        now |= {"number": attempt.number, "note": on_top(row, review)}
        now |= {"shown": shown, "read": read}
        path = self.course / "autograded" / student / topic / f"{topic}.ipynb"
        if now != held or not path.is_file():
            notebook = json.loads(graded_path(self.course, attempt).read_bytes())
            if now["note"]:
                notebook["cells"].insert(0, new_markdown_cell(now["note"], id="not-final"))
            write_whole(path, json.dumps(notebook, indent=1, ensure_ascii=False))
            # nbgrader returns feedback under a name made from the secret that was handed in.
            for name in ("timestamp.txt", "submission_secret.txt"):
                with contextlib.suppress(Unreadable):
                    write_whole(
                        path.with_name(name),
                        content(self.course / "submitted" / student / topic / name, 1000),
                    )
            count(self.course, student, topic, now)
        return row

    @property
    def rows(self) -> list[Row]:
        """The rows of the report."""
        return [work.row for work in self.work.values()] + self.others

    def feedback(self) -> None:
        """Make the feedback pages of what has changed; the row of one that failed says so."""
        rows = [row for row in whole_class(self.rows, self.setup) if row.maximum]
        pages = write_feedback(self.course, self.gradebook.url, rows)
        for work in self.work.values():
            if why := pages.get((work.student, work.task.topic)):
                work.row.notes.append(f"the feedback page shows only the points: {why}")

    def report(self, at_once: bool = True) -> None:
        """Write the report; grades.csv alone if the rest is only seconds old."""
        folder = self.course / "report"
        if at_once or time.monotonic() > self.reported + REPORT_S:
            write_report(folder, self.rows, self.setup)
            self.reported = time.monotonic()
        else:
            lines = map(grades_line, whole_class(self.rows, self.setup))
            table(folder / "grades.csv", [GRADES_HEAD, *lines], "utf-8-sig")


def on_top(row: Row, review: Review | None) -> str:
    """Return what a feedback page says first: what is late, what is not final."""
    said = []
    if row.days_late:
        earned = row.penalty + (row.score or 0)
        off = f"{row.penalty:g} of {earned:g} points off" if row.penalty else "no points off"
        said.append(f"**Handed in {row.days_late:.1f} days late**: {off}.")
    if row.n_attempts > 1:
        said.append(f"This is attempt {row.attempt} of {row.n_attempts}.")
    if review:  # the words are for the teachers
        refused = review.decision == "refuse"
        outcome = "its tests count 0" if refused else "it counts as the tests found it"
        said.append(f"A person has looked at this hand-in: {outcome}.")
    if row.status == "needs review":
        said.append("**Not final.** A person will look at this submission:")
        reasons = [" ".join(reason.split())[:MAX_REASON] for reason in row.reasons[:MAX_SAID]]
        said.append("\n".join(f"- {reason}" for reason in reasons))
        said.append("What could not be graded counts as 0 in the score above.")
    elif row.status == "needs grading":
        said.append(
            "**Not final.** Your explanation has not been read yet; it counts as 0 in the score "
            "above."
        )
    return as_text("\n\n".join(said))


@contextlib.contextmanager
def alone(course: Path):
    """Let no second grader into the course; the system forgets a grader that was killed."""
    with open(course / ".grading", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Refused(f"another make grade is at work in {course}") from None
        yield


def end_children() -> None:
    """Kill what this program has started: all inside the sandboxes, with which bubblewrap ends."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.name() != "bwrap":
                process.kill()


def side_by_side() -> int:
    """Return how many submissions run at once: more than cores, since some only sleep."""
    memory = psutil.virtual_memory().total // MEMORY_EACH
    return max(1, min(2 * len(os.sched_getaffinity(0)), memory))


def run_all(run: Class, todo: list[tuple[Work, Attempt | None]], jobs: int, stop: Event) -> None:
    """Grade side by side what is to do; all that is written is written by this thread."""
    terminal = sys.stderr.isatty()
    bar = tqdm(total=len(todo), unit="submission", file=sys.stderr, disable=not terminal)
    with bar, ThreadPoolExecutor(jobs) as pool:
        pending = {pool.submit(run.run, job, stop): job[0] for job in todo}
        try:
            while pending and not stop.is_set():
                for future in wait(pending, POLL_S, FIRST_COMPLETED).done:
                    work = pending.pop(future)
                    run.arrived(work, future)
                    run.report(at_once=False)
                    bar.update()
                    line = f"{work.student} {work.task.topic}: {work.row.said}"
                    if not terminal:
                        print(line, flush=True)
                    elif work.row.reasons:
                        bar.write(line)
        finally:
            stopped = bool(pending)
            if stopped:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
            # One that has not begun never will; `wait` would wait for it.
            begun = [future for future in pending if not future.cancelled()]
            # One that is killed may start its next process just now.
            while stopped and wait(begun, POLL_S).not_done:
                end_children()


def grade(
    course: Path,
    limits: Limits | None = None,
    again: list[str] | None = None,
    seed: int | None = None,
    jobs: int | None = None,
    stop: Event | None = None,
) -> list[Row]:
    """Grade every submission of the course that is new, and write gradebook, feedback, report.

    `again` names what is graded although nothing has changed: STUDENT, STUDENT/TOPIC, or "" for
    all. `stop` ends the run soon after it is set; what is graded by then is kept.
    """
    limits, stop = limits or Limits(), stop or Event()
    course = course.resolve()
    if not (course / "submitted").is_dir():
        raise Refused(f"there is no folder {course / 'submitted'}")
    check()
    for secret in (course, ROOT / "assignments"):
        if any(secret.is_relative_to(Path(path).resolve()) for path in readable()):
            raise Refused(f"the sandbox shows {secret} to students' code: move it elsewhere")
    with alone(course), contextlib.closing(Gradebook(course)) as gradebook:
        run = Class(course, gradebook, limits, seed)
        todo = run.look(again or [])
        run.standings = gradebook.standings()
        for work in run.work.values():
            run.settle(work)
        run.report()
        run_all(run, todo, jobs or side_by_side(), stop)
        # A person may have given points in Formgrader meanwhile.
        run.standings = gradebook.standings()
        for work in run.work.values():
            run.settle(work)
        if not stop.is_set():
            run.feedback()
        run.report()
    return run.rows


def some(number: int, what: str) -> str:
    """Return a number of things in words."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def main() -> None:
    """Grade the course that the command line names."""
    parser = argparse.ArgumentParser(description="Grade the submissions of a course, safely.")
    parser.add_argument(
        "course", type=lambda text: Path(text).expanduser(), help="the folder that holds submitted/"
    )
    parser.add_argument(
        "--again",
        nargs="*",
        metavar="STUDENT[/TOPIC]",
        help="grade also what has not changed: all, or only what is named",
    )
    parser.add_argument(
        "--jobs", type=int, help="submissions side by side; default: two for each core"
    )
    parser.add_argument("--seed", type=int, help="of the hidden inputs, to repeat a grading")
    options = parser.parse_args()
    if options.jobs is not None and options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}; expected 1 or more")
    again = [""] if options.again == [] else options.again
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    try:
        rows = grade(options.course, again=again, seed=options.seed, jobs=options.jobs, stop=stop)
    except (Refused, CourseError, Undecided) as refused:
        sys.exit(f"First Token: {refused}")
    status = [row.status for row in rows]
    report = options.course / "report" / "report.html"
    if stop.is_set():
        said = f"stopped; {status.count('waiting')} submissions wait. To go on: make grade again"
        print(f"First Token: {said}. What is known: {report}", file=sys.stderr)
        sys.exit(130)
    total, review = some(len(rows), "row"), status.count("needs review")
    explanations = some(status.count("needs grading"), "explanation")
    print(f"{total}, {review} to review, {explanations} to read: {report}")


if __name__ == "__main__":
    run(main)
