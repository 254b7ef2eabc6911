"""nbgrader's gradebook: which cells an assignment has, their points, and what a person gave."""

import contextlib
import errno
import os
import shutil
import sqlite3
import sys
import warnings
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import nbformat
from marking import key, mark
from nbgrader.api import (
    Assignment,
    Comment,
    Grade,
    GradeCell,
    MissingEntry,
    Student,
    SubmittedAssignment,
    SubmittedNotebook,
)
from nbgrader.api import Gradebook as Database
from nbgrader.preprocessors import SaveCells
from nbgrader.utils import parse_utc
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import SAWarning

# What SQLite calls a disk that takes nothing, and what the system calls it.
REFUSED = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_READONLY: errno.EROFS,
}


@dataclass
class Standing:
    """What the gradebook says of a submission."""

    points: float = 0  # with what a person gave
    total: float = 0
    waiting: bool = False  # for a person
    penalty: float = 0

    def add(
        self,
        automatic: float | None,
        manual: float | None,
        extra: float | None,
        needs: bool,
        most: float,
    ) -> None:
        """Add what it says of a cell; a person's points take the place of the automatic ones."""
        self.points += ((automatic or 0) if manual is None else manual) + (extra or 0)
        self.total += most
        self.waiting |= needs


def refused(error: BaseException, path: Path) -> None:
    """Raise what the system says where SQLite fails because of the disk."""
    code = REFUSED.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    if code is not None:
        raise OSError(code, os.strerror(code), str(path)) from error


def begin(path: Path) -> None:
    """Make an empty gradebook, whole: to one that lacks its version nbgrader never adds it."""
    part = path.with_name(".gradebook.db.part")
    left = [part, part.with_name(f"{part.name}-journal")]
    try:
        for file in left:  # by a run that was killed
            file.unlink(missing_ok=True)
        Database(f"sqlite:///{part}").close()
        part.replace(path)
    except Exception as error:
        for file in left:
            with contextlib.suppress(OSError):
                file.unlink()
        refused(getattr(error, "orig", error), path)
        raise


class Gradebook:
    """The gradebook of a course, open as long as it is graded. For one thread."""

    def __init__(self, course: Path):
        """Open COURSE/gradebook.db, or begin it."""
        # What nbgrader 0.9 makes SQLAlchemy 2 warn of does no harm.
        warnings.simplefilter("ignore", SAWarning)
        if not shutil.which("alembic"):  # nbgrader starts it by name, from beside its Python
            os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        path = course / "gradebook.db"
        if not path.exists():
            begin(path)
        self.url = f"sqlite:///{path}"
        self.database = Database(self.url)

        @event.listens_for(self.database.engine, "handle_error")
        def of_the_disk(context: ExceptionContext) -> None:
            refused(context.original_exception, path)

    def close(self) -> None:
        """Close the file."""
        self.database.close()

    def register(self, topic: str, source: nbformat.NotebookNode, due: datetime | None) -> None:
        """Write down which cells the assignment has, and when it is due."""
        self.database.update_or_create_assignment(topic, duedate=due)
        self.correct(topic, key(source))
        resources = {"nbgrader": {"notebook": topic, "assignment": topic, "db_url": self.url}}
        SaveCells().preprocess(key(source), resources)
        self.database.db.expire_all()

    def correct(self, topic: str, notebook: nbformat.NotebookNode) -> None:
        """Add and remove cells where the assignment has changed since work on it was graded.

        nbgrader refuses to. The points that persons gave for other cells stay.
        """
        database = self.database
        try:
            known = database.find_notebook(topic, topic)
        except MissingEntry:
            return
        if not known.submissions:
            return  # nbgrader makes it anew
        marks = {
            c.metadata.nbgrader.grade_id: c for c in notebook.cells if "nbgrader" in c.metadata
        }
        graded = {name for name, cell in marks.items() if cell.metadata.nbgrader.grade}
        solved = {name for name, cell in marks.items() if cell.metadata.nbgrader.solution}
        for cells, names in [
            (known.grade_cells, graded),
            (known.solution_cells, solved),
            (known.source_cells, set(marks)),
        ]:
            for cell in [cell for cell in cells if cell.name not in names]:
                for kind in (Grade, Comment):
                    database.db.query(kind).filter_by(cell_id=cell.id).delete()
                database.db.delete(cell)
        database.db.commit()
        for name, cell in marks.items():
            if name in graded:
                most = float(mark(cell)["points"])
                database.update_or_create_grade_cell(
                    name, topic, topic, max_score=most, cell_type=cell.cell_type
                )
            if name in solved:
                database.update_or_create_solution_cell(name, topic, topic)
            database.update_or_create_source_cell(name, topic, topic, cell_type=cell.cell_type)
        # A run that was killed here has left submissions without them: so all are looked at.
        for kind, cells in [(Grade, known.grade_cells), (Comment, known.solution_cells)]:
            pairs = database.db.query(kind.notebook_id, kind.cell_id)
            there = set(map(tuple, pairs))
            for work in known.submissions:
                for cell in cells:
                    if (work.id, cell.id) not in there:
                        database.db.add(kind(cell_id=cell.id, notebook_id=work.id))
        database.db.commit()

    def standings(self) -> dict[tuple[str, str], Standing]:
        """Return what the gradebook says now of every (student, topic)."""
        self.database.db.rollback()  # so that what others wrote since is seen
        rows = (
            self.database.db.query(
                SubmittedAssignment.student_id,
                Assignment.name,
                SubmittedNotebook.late_submission_penalty,
                Grade.auto_score,
                Grade.manual_score,
                Grade.extra_credit,
                Grade.needs_manual_grade,
                GradeCell.max_score,
            )
            .select_from(Grade)
            .join(GradeCell, Grade.cell_id == GradeCell.id)
            .join(SubmittedNotebook, Grade.notebook_id == SubmittedNotebook.id)
            .join(SubmittedAssignment, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
            .join(Assignment, SubmittedAssignment.assignment_id == Assignment.id)
        )
        found = {}
        for student, topic, penalty, *grade in rows:
            found.setdefault((student, topic), Standing(penalty=penalty or 0)).add(*grade)
        return found

    def submission(self, student: str, topic: str) -> tuple[SubmittedAssignment, SubmittedNotebook]:
        """Return the records of a submission, new ones if there are none.

        nbgrader's own way to begin one writes three times to the disk.
        """
        db = self.database.db
        found = (
            db.query(SubmittedAssignment, SubmittedNotebook)
            .join(SubmittedNotebook, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
            .join(Assignment, SubmittedAssignment.assignment_id == Assignment.id)
            .filter(SubmittedAssignment.student_id == student, Assignment.name == topic)
            .one_or_none()
        )
        if found:
            return tuple(found)
        if db.get(Student, student) is None:
            db.add(Student(id=student))
        known = self.database.find_notebook(topic, topic)
        submission = SubmittedAssignment(assignment_id=known.assignment_id, student_id=student)
        notebook = SubmittedNotebook(notebook_id=known.id, assignment=submission)
        db.add(submission)
        for kind, cells in [(Grade, known.grade_cells), (Comment, known.solution_cells)]:
            db.add_all(kind(cell_id=cell.id, notebook=notebook) for cell in cells)
        db.flush()
        return submission, notebook

    def settled(self, student: str, topic: str) -> set[str]:
        """Return the cells for which a person gave points, and which nobody is to read again."""
        rows = (
            self.database.db.query(GradeCell.name)
            .select_from(Grade)
            .join(GradeCell, Grade.cell_id == GradeCell.id)
            .join(SubmittedNotebook, Grade.notebook_id == SubmittedNotebook.id)
            .join(SubmittedAssignment, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
            .join(Assignment, SubmittedAssignment.assignment_id == Assignment.id)
            .filter(SubmittedAssignment.student_id == student, Assignment.name == topic)
            .filter(Grade.manual_score.is_not(None), Grade.needs_manual_grade.is_(False))
        )
        return {name for (name,) in rows}

    def record(
        self,
        student: str,
        topic: str,
        scores: dict[str, float | None],
        review: bool,
        anew: bool,
        read: set[str],
        submitted: str = "",
        extension: timedelta | None = None,
    ) -> Standing:
        """Write the automatic points; what a person gave stays. Return where that leaves it.

        With `review`, a person has to look at every cell. In work that was graded `anew`, what a
        person gave points for is to be read again, except the cells that stand as they were `read`.
        Else only a review was decided, or the date moved.
        """
        db = self.database.db
        try:
            submission, notebook = self.submission(student, topic)
            submission.timestamp = parse_utc(submitted) if submitted else None
            submission.extension = extension
            standing = Standing(penalty=notebook.late_submission_penalty or 0)
            for grade, name, most in (
                db.query(Grade, GradeCell.name, GradeCell.max_score)
                .join(GradeCell, Grade.cell_id == GradeCell.id)
                .filter(Grade.notebook_id == notebook.id)
            ):
                automatic, given = scores.get(name), grade.manual_score is not None
                needs = grade.needs_manual_grade
                if anew:
                    needs = name not in read if given else review or automatic is None
                elif not given and automatic is not None:
                    needs = review
                grade.auto_score, grade.needs_manual_grade = automatic, needs
                standing.add(automatic, grade.manual_score, grade.extra_credit, needs, most)
            db.commit()
        except Exception:
            db.rollback()
            raise
        return standing

    def penalize(self, student: str, topic: str, penalty: float) -> None:
        """Write how many points lateness takes off, for nbgrader's own pages and exports."""
        try:
            notebook = self.database.find_submission_notebook(topic, topic, student)
            notebook.late_submission_penalty = penalty or None
            self.database.db.commit()
        except Exception:
            self.database.db.rollback()
            raise
