"""A class whose cells are run here, without the sandbox: what test_class.py plays with."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import grade
import nbformat
from marking import is_test, mark, release
from nbgrader.api import Gradebook
from report import Row

import tiny_assignment
from tiny_assignment import ROOT, replaced

TOPIC = tiny_assignment.TOPIC
GOOD = {
    "double": "def double(x):\n    return 2 * x",
    "scale": "def scale(x):\n    return factor * x",
}
HALF = GOOD | {"double": "def double(x):\n    return 3 * x"}
ODD = GOOD | {"double": "raise RuntimeError('odd')"}
EXPLAINED = {"explain": "Because a sum of two equal numbers is twice one."}


def played(notebook, source, student, files, limits, seed) -> list[str]:
    """Run the cells in this process; where one says 'odd', tests that fail stay unknown."""
    names, odd = {"print": lambda *_: None}, False
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.outputs, said = [], ""
        try:
            exec(cell.source.replace('STUDENT = ""', f"STUDENT = {student!r}"), names)
        except Exception as fault:
            said = f"{type(fault).__name__}: {fault}"
        odd |= "odd" in said
        if is_test(cell):
            points = mark(cell)["points"]
            earned = points if not said else None if odd else 0
            cell.metadata["parts"] = [
                {"name": "", "points": points, "earned": earned, "said": said}
            ]
    return ["double: ended in an odd way"] if odd else []


def empty_class(monkeypatch, folder: Path) -> "Classroom":
    """A course without students, on a machine with a sandbox; its list says what was run."""
    runs = []

    def watched(notebook, source, student, *others):
        runs.append(student)
        return played(notebook, source, student, *others)

    monkeypatch.setattr(grade, "check", lambda: None)
    monkeypatch.setattr(grade, "readable", lambda: [])
    monkeypatch.setattr(grade, "executed", watched)
    monkeypatch.setattr(grade, "write_feedback", lambda *_: {})
    teach(folder, tiny_assignment.source())
    return Classroom(folder, runs)


def teach(course: Path, source: nbformat.NotebookNode) -> None:
    folder = course / "source" / TOPIC
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(source, folder / f"{TOPIC}.ipynb")


def hand_in(
    course: Path, student: str, answers: dict[str, str], when: str = "", given=None
) -> None:
    notebook = replaced(release(given or tiny_assignment.source()), answers)
    folder = course / "submitted" / student / TOPIC
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, folder / f"{TOPIC}.ipynb")
    if when:
        (folder / "timestamp.txt").write_text(f"{when} UTC", encoding="utf-8")


class Classroom:
    def __init__(self, course: Path, runs: list[str]):
        self.course, self.runs = course, runs

    def hand_in(self, student: str, answers: dict[str, str], when: str = "", given=None) -> None:
        hand_in(self.course, student, answers, when, given)

    def grade(self, **options) -> dict[str, Row]:
        self.runs.clear()
        return {row.student: row for row in grade.grade(self.course, **options)}

    def give(self, student: str, **points: float) -> None:
        """Do what Formgrader does when a person saves points."""
        with Gradebook(f"sqlite:///{self.course / 'gradebook.db'}") as gradebook:
            for name, value in points.items():
                found = gradebook.find_grade(name, TOPIC, TOPIC, student)
                found.manual_score, found.needs_manual_grade = value, False
            gradebook.db.commit()

    def in_gradebook(self, student: str) -> dict[str, tuple]:
        with Gradebook(f"sqlite:///{self.course / 'gradebook.db'}") as gradebook:
            submission = gradebook.find_submission(TOPIC, student)
            return {
                grade.name: (grade.auto_score, grade.manual_score, grade.needs_manual_grade)
                for grade in submission.notebooks[0].grades
            }

    def autograded(self, student: str) -> str:
        path = self.course / "autograded" / student / TOPIC / f"{TOPIC}.ipynb"
        return path.read_text(encoding="utf-8")

    def table(self) -> list[dict[str, str]]:
        with (self.course / "report" / "grades.csv").open(newline="", encoding="utf-8-sig") as file:
            return list(csv.DictReader(file))


PROGRAM = f"""
import sys
sys.path[:0] = [{str(ROOT / "classroom")!r}, {str(ROOT / "tests")!r}]
import time
import grade, nbgrader.api
from proof.classroom.classes import played
grade.check = lambda: None
grade.readable = lambda: []
grade.write_feedback = lambda *_: dict()
"""


def started(course: Path, *options: str, code: str = "", **environment: str) -> subprocess.Popen:
    """Start the program itself, with cells that are run by `played`."""
    program = PROGRAM + "grade.executed = played\n" + code + "\ngrade.run(grade.main)"
    path = course / "program.py"
    path.write_text(program, encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, str(path), str(course), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    )
