"""Grade a course: python classroom/grade.py COURSE

Reads   COURSE/submitted/STUDENT/TOPIC/TOPIC.ipynb, as nbgrader collects them; the assignments from
        COURSE/source/TOPIC/TOPIC.ipynb where there is one, else from the book's assignments/.
Writes  COURSE/gradebook.db, COURSE/autograded/ (for nbgrader's Formgrader), COURSE/feedback/ and
        COURSE/report/.

A submission that was graded before and has not changed is not run again (--again runs all), so
that after the explanations were read in Formgrader a second run only renews feedback and report.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
import time
import warnings
from pathlib import Path

import nbformat
from execute import executed
from marking import (
    as_text,
    closed,
    is_explanation,
    is_test,
    key,
    mark,
    mistakes,
    points,
    prepared,
    release,
)
from nbformat.v4 import new_code_cell, new_markdown_cell, new_raw_cell
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps import NbGraderAPI
from nbgrader.preprocessors import SaveCells
from nbgrader.utils import parse_utc
from report import Row, write_report
from sandbox import Limits, Refused, check, readable
from sqlalchemy.exc import SAWarning
from traitlets.config import Config

ROOT = Path(__file__).parents[1]
MAX_FILE = 20 * 2**20  # bytes of a submitted notebook
MAX_CELLS = 1000
MAX_SAID = 20  # reasons on one page
MAX_REASON = 500  # characters of one of them: 10,000 brackets take a page's maker a second
MAX_LISTS = 1_000_000  # lists and objects in the file: each takes some 90 bytes of memory
STUDENT_ID = re.compile(r"[A-Za-z0-9][\w.@-]{0,63}", re.ASCII)
MAKE = {"code": new_code_cell, "markdown": new_markdown_cell, "raw": new_raw_cell}


class Unreadable(Exception):
    """There is no notebook that could be run; the message says why."""


def content(path: Path, limit: int = MAX_FILE) -> bytes:
    """Return what a submitted file holds, if it is a plain file and no way to another one."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Unreadable(f"{shown(path.name)} cannot be opened: {error.strerror}") from None
    try:
        status = os.fstat(handle)
        # Before it becomes a file of Python's: a folder cannot.
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable(f"{shown(path.name)} is no plain file")
        if status.st_size > limit:
            raise Unreadable(f"{shown(path.name)} has {status.st_size} bytes, more than {limit}")
        with open(handle, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(handle)


def chosen(folder: Path, topic: str) -> Path:
    """Return which file of a folder STUDENT/TOPIC is read: TOPIC.ipynb, or its only notebook."""
    path = folder / f"{topic}.ipynb"
    for part in (folder.parent, folder, path):
        if part.is_symlink():
            raise Unreadable(f"{shown(part.name)} is a symbolic link")
    if not path.exists():
        # A browser that downloads it once more names it `topic (1).ipynb`.
        others = sorted(folder.glob("[!.]*.ipynb"))  # macOS puts a `._` file beside each
        if len(others) != 1:
            found = [other.name for other in others] or "no notebook at all"
            raise Unreadable(f"there is no {topic}.ipynb, but {found}")
        path = others[0]
    return path


def beside(folder: Path, topic: str) -> list[str]:
    """Return the names of notebooks that are not read, because TOPIC.ipynb is there."""
    if not (folder / f"{topic}.ipynb").exists():
        return []
    return sorted(path.name for path in folder.glob("[!.]*.ipynb") if path.stem != topic)


def taken(cell: dict) -> nbformat.NotebookNode:
    """Return a cell made anew of what grading reads, its text and its mark."""
    source = cell["source"]
    marked = cell["metadata"].get("nbgrader")
    grade_id = marked.get("grade_id") if isinstance(marked, dict) else None
    found = {"nbgrader": {"grade_id": grade_id}} if isinstance(grade_id, str) else {}
    text = "".join(source) if isinstance(source, list) else source
    return MAKE[cell["cell_type"]](text, metadata=nbformat.from_dict(found))


def parsed(data: bytes) -> nbformat.NotebookNode:
    """Return the cells in a submitted file.

    All else in it is left alone: to validate what a student can make long takes minutes.
    """
    if not data.strip():
        raise Unreadable("the file is empty")
    if data.count(b"[") + data.count(b"{") > MAX_LISTS:
        raise Unreadable(f"the file has more than {MAX_LISTS} brackets: its outputs must go")
    try:
        found = json.loads(data)
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise Unreadable("the file is no notebook: it is not JSON") from None
    cells = found.get("cells") if isinstance(found, dict) else None
    if not isinstance(cells, list):
        said = "it has no list of cells, as notebooks of format 4 have"
        raise Unreadable(f"the file is no valid notebook: {said}")
    if len(cells) > MAX_CELLS:
        raise Unreadable(f"the notebook has {len(cells)} cells, more than {MAX_CELLS}")
    try:
        notebook = nbformat.from_dict({"cells": [taken(cell) for cell in cells]})
    except Exception as error:  # whatever stands there in place of a cell
        raise Unreadable(f"the file is no valid notebook: {type(error).__name__}") from None
    if not any(mark(cell) for cell in notebook.cells):
        raise Unreadable("no cell has its mark: was it exported or pasted into a new notebook?")
    return notebook


def sources(course: Path, topic: str) -> Path:
    """Return the folder of an assignment's source."""
    for folder in (course / "source" / topic, ROOT / "assignments" / topic):
        if (folder / f"{topic}.ipynb").is_file():
            return folder
    raise Unreadable(f"there is no assignment {topic}")


def register(url: str, topic: str, source: nbformat.NotebookNode) -> None:
    """Tell the gradebook which cells the assignment has."""
    with Gradebook(url) as gradebook:
        gradebook.update_or_create_assignment(topic)
    resources = {"nbgrader": {"notebook": topic, "assignment": topic, "db_url": url}}
    SaveCells().preprocess(key(source), resources)


def untouched(source: nbformat.NotebookNode, notebook: nbformat.NotebookNode) -> set[str]:
    """Return the explanations that stand as they were handed out."""
    given = {mark(c)["grade_id"]: c.source for c in release(source).cells if is_explanation(c)}
    # An explanation below its cell, and not in it, is written all the same: as text anywhere,
    # behind the last test also as a comment in code.
    ours = {cell.source for cell in source.cells}
    last = max((k for k, cell in enumerate(notebook.cells) if is_test(cell)), default=0)
    written = any(
        (cell.cell_type == "markdown" or k > last)
        and not mark(cell)
        and cell.source.strip()
        and cell.source not in ours
        for k, cell in enumerate(notebook.cells)
    )
    if written:
        return set()
    return {
        mark(cell)["grade_id"]
        for cell in notebook.cells
        if is_explanation(cell) and cell.source.strip() == given[mark(cell)["grade_id"]].strip()
    }


def record(url: str, row: Row, scores: dict[str, float | None], timestamp: str | None) -> None:
    """Write the scores into the gradebook; what a person gave before stays, marked to be read."""
    with Gradebook(url) as gradebook:
        gradebook.update_or_create_student(row.student)
        when = {} if timestamp is None else {"timestamp": timestamp}
        submission = gradebook.update_or_create_submission(row.topic, row.student, **when)
        for grade in submission.notebooks[0].grades:
            grade.auto_score = scores.get(grade.name)
            grade.needs_manual_grade = (
                bool(row.reasons) or grade.auto_score is None or grade.manual_score is not None
            )
        gradebook.db.commit()


def graded(course: Path, url: str, student: str, topic: str, limits: Limits) -> Row:
    """Grade one submission; whatever it does, the result is a row."""
    row = Row(student, topic)
    start = time.monotonic()
    folder = course / "submitted" / student / topic
    place = sources(course, topic)
    source = nbformat.read(place / f"{topic}.ipynb", as_version=4)
    tests = [cell for cell in source.cells if is_test(cell)]
    row.maximum = {mark(c)["grade_id"]: mark(c)["points"] for c in tests}
    timestamp, others = None, []
    try:
        path = chosen(folder, topic)
        notebook, row.reasons, row.notes = prepared(source, parsed(content(path)))
        others = beside(folder, topic)
        if path.stem != topic:
            row.notes.append(f"`{shown(path.name)}` was read: there is no {topic}.ipynb")
        with contextlib.suppress(Unreadable, ValueError, OverflowError):
            text = content(folder / "timestamp.txt", 100).decode().strip()
            if re.fullmatch(r"[\d-]+ [\d:.]+ \w+", text):
                parse_utc(text)  # raises for a date that is none
                timestamp = text
        files = [path for path in place.iterdir() if path.is_file() and path.suffix != ".ipynb"]
        seed = secrets.randbits(64)
        row.seed = str(seed)
        row.reasons += executed(notebook, source, student, files, limits, seed)
        scores = points(notebook) | dict.fromkeys(untouched(source, notebook), 0)
    except Unreadable as unreadable:
        notebook, row.reasons, scores = key(source), [str(unreadable)], {}
    row.questions = points(notebook)
    if others:
        said = f"only {topic}.ipynb was read; there is also {', '.join(map(shown, others))}"
        (row.notes if any(row.questions.values()) else row.reasons).append(said)
    row.mistakes = mistakes(notebook)
    out = course / "autograded" / student / topic / f"{topic}.ipynb"
    out.parent.mkdir(parents=True, exist_ok=True)
    # What cannot be encoded fails before there is an empty file.
    out.write_bytes(nbformat.writes(closed(notebook, source)).encode())
    # nbgrader returns feedback under a name made from the secret that the submission brought.
    for name in ("timestamp.txt", "submission_secret.txt"):
        with contextlib.suppress(Unreadable):
            (out.parent / name).write_bytes(content(folder / name, 1000))
    record(url, row, scores, timestamp)
    row.seconds = round(time.monotonic() - start, 2)
    return row


def fingerprint(course: Path, student: str, topic: str) -> str:
    """Return what changes when a submission or its assignment does."""
    digest = hashlib.sha256((sources(course, topic) / f"{topic}.ipynb").read_bytes())
    folder = course / "submitted" / student / topic
    try:
        path = chosen(folder, topic)
        digest.update(content(path))
        # The report names these files, so its words must not outlive them.
        digest.update(repr([path.name, *beside(folder, topic)]).encode())
    except Unreadable as unreadable:
        digest.update(str(unreadable).encode())
    return digest.hexdigest()


def settled(url: str, row: Row) -> bool:
    """Return whether a row of the last run still holds for work that has not changed.

    It does not if the teacher has begun a new gradebook.
    """
    with Gradebook(url) as gradebook, contextlib.suppress(MissingEntry):
        gradebook.find_submission(row.topic, row.student)
        return True
    return False


def complete(url: str, rows: list[Row]) -> None:
    """Put into the rows what the gradebook says now, and so what a person gave."""
    with Gradebook(url) as gradebook:
        for row in rows:
            if row.status == "not submitted" or not row.maximum:
                continue
            submission = gradebook.find_submission(row.topic, row.student)
            row.total = submission.max_score
            waiting = submission.needs_manual_grade
            row.score = None if waiting else submission.score
            if not waiting:
                row.status = "graded"
            else:
                row.status = "needs review" if row.reasons else "needs grading"


def open_points(course: Path, rows: list[Row]) -> None:
    """Say on top of each notebook what is not final; nbgrader's page counts it as 0."""
    for row in rows:
        path = course / "autograded" / row.student / row.topic / f"{row.topic}.ipynb"
        if not row.maximum or not path.is_file():
            continue
        notebook = nbformat.read(path, as_version=4)
        cells = [cell for cell in notebook.cells if cell.id != "not-final"]
        if row.status != "graded":
            said = "**Not final.** "
            if row.reasons:
                said += "A person will look at this submission:\n\n"
                said += "\n".join(
                    f"- {' '.join(reason.split())[:MAX_REASON]}"
                    for reason in row.reasons[:MAX_SAID]
                )
                said += "\n\nWhat could not be graded counts as 0 in the score above."
            else:
                said += "Your explanation has not been read yet; it counts as 0 in the score above."
            cells.insert(0, new_markdown_cell(as_text(said), id="not-final"))
        if cells != notebook.cells:
            notebook.cells = cells
            path.write_bytes(nbformat.writes(notebook).encode())


def feedback(course: Path, url: str, topics: set[str]) -> None:
    """Let nbgrader write a page for each student, of the notebooks that hold no hidden test."""
    config = Config()
    config.CourseDirectory.root = str(course)
    config.CourseDirectory.db_url = url
    config.HTMLExporter.sanitize_html = True
    api = NbGraderAPI(config=config)
    for topic in sorted(topics):
        if any(course.glob(f"autograded/*/{topic}/{topic}.ipynb")):
            result = api.generate_feedback(topic)
            if not result["success"]:
                print(
                    f"First Token: feedback for {topic} failed: {result['error']}", file=sys.stderr
                )


@contextlib.contextmanager
def quiet():
    """Leave out what nbgrader 0.9 makes SQLAlchemy 2 warn of; it does no harm."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SAWarning)
        yield


@quiet()
def grade(course: Path, limits: Limits | None = None, again: bool = False) -> list[Row]:
    """Grade every submission of the course that is new, and write gradebook, feedback, report."""
    limits = limits or Limits()
    course = course.resolve()
    if not (course / "submitted").is_dir():
        raise Refused(f"there is no folder {course / 'submitted'}")
    check()
    for secret in (course, ROOT / "assignments"):
        if any(secret.is_relative_to(Path(path).resolve()) for path in readable()):
            raise Refused(f"the sandbox shows {secret} to students' code: move it elsewhere")
    if not shutil.which("alembic"):  # nbgrader starts it by name, from beside its Python
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    url = f"sqlite:///{course / 'gradebook.db'}"
    folders = sorted(
        path
        for path in (course / "submitted").iterdir()
        if path.name[0] != "." and (path.is_dir() or path.is_symlink())
    )
    names = [path.name for path in folders]
    topics = {
        path.name
        for folder in folders
        if folder.is_dir() and not folder.is_symlink()
        for path in folder.iterdir()
        if path.name[0] != "."
    }
    memory = course / "report" / "rows.json"
    before = {}
    if memory.exists() and not again:
        before = {(r["student"], r["topic"]): r for r in json.loads(memory.read_text())}
    rows = []
    for topic in sorted(topics):
        try:
            source = nbformat.read(sources(course, topic) / f"{topic}.ipynb", as_version=4)
        except Unreadable as unreadable:
            rows += [
                Row(shown(name), shown(topic), "needs review", reasons=[shown(str(unreadable))])
                for name in names
                if (course / "submitted" / name / topic).exists()
            ]
            continue
        register(url, topic, source)
        for name in names:
            row = one(course, url, name, topic, limits, before.get((name, topic), {}))
            rows.append(row)
            print(f"{row.student} {topic}: {row.said}", flush=True)
    complete(url, rows)
    memory.parent.mkdir(exist_ok=True)
    memory.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
    open_points(course, rows)
    feedback(course, url, {row.topic for row in rows if row.maximum})
    write_report(course / "report", rows)
    return rows


def shown(name: str) -> str:
    """Return a folder's name as a text that every file and terminal can hold."""
    return name if name.isprintable() else ascii(name)[1:-1]


def one(course: Path, url: str, student: str, topic: str, limits: Limits, before: dict) -> Row:
    """Return the row of one student and topic, and go on whatever happens."""
    if not STUDENT_ID.fullmatch(student):
        reason = (
            "the folder's name is no student id: 1 to 64 of a-z, A-Z, 0-9 and . _ @ -, a letter or "
            "digit first; rename it, and correct the STUDENT line"
        )
        return Row(shown(student), topic, "needs review", reasons=[reason])
    if not os.path.lexists(course / "submitted" / student / topic):
        return Row(student, topic, "not submitted")
    try:
        now = fingerprint(course, student, topic)
        if before.get("fingerprint") == now and settled(url, row := Row(**before)):
            return row
        row = graded(course, url, student, topic, limits)
    except Exception as error:  # a fault of ours must not stop the class
        row = Row(student, topic, "needs review", reasons=[f"the grader failed: {error!r}"])
    else:
        row.fingerprint = now
    return row


def main() -> None:
    """Grade the course that the command line names."""
    parser = argparse.ArgumentParser(description="Grade the submissions of a course, safely.")
    parser.add_argument("course", type=Path, help="the folder that holds submitted/")
    parser.add_argument("--again", action="store_true", help="run unchanged submissions, too")
    options = parser.parse_args()
    try:
        rows = grade(options.course, again=options.again)
    except Refused as refused:
        sys.exit(f"First Token: {refused}")
    status = [row.status for row in rows]
    review, explanations = status.count("needs review"), status.count("needs grading")
    waiting = f"{review} to review, {explanations} explanations to read"
    print(f"{len(rows)} rows, {waiting}: {options.course / 'report' / 'report.html'}")


if __name__ == "__main__":
    main()
