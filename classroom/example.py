"""Write a class of four to try grading with: python classroom/example.py COURSE

COURSE gets a roster, due dates, and a download of the assignment *start* as Moodle writes it. One
student has solved everything, one leaves two tasks out, one has done nothing, one is late.
"""

import argparse
import contextlib
import csv
import io
import re
import sys
import zipfile
from pathlib import Path

import nbformat
from course import run, write_whole
from marking import is_explanation, is_solution, mark, release

ROOT = Path(__file__).parents[1]
TOPIC = "start"
# id, name, the number that Moodle gives, when it was handed in, tasks that are left as they were
CLASS = [
    ("ada", "Ada Lovelace", 101, "Monday, 5 October 2026, 5:12 PM", ()),
    ("grace", "Grace Hopper", 102, "Monday, 5 October 2026, 9:40 PM", ("bill", "reading_order")),
    ("blaise", "Blaise Pascal", 103, "Tuesday, 6 October 2026, 8:03 AM", "all"),
    ("emmy", "Emmy Noether", 104, "Wednesday, 7 October 2026, 11:30 AM", ()),
]
COURSE = """\
time_zone = "Europe/Vienna"
late_percent_per_day = 10

[due]
start = 2026-10-06T18:00:00
"""


def handed_in(source: nbformat.NotebookNode, student: str, left: tuple | str) -> str:
    """Return a student's notebook as a file's text."""
    notebook = release(source)
    answers = {mark(cell).get("grade_id"): cell.source for cell in source.cells}
    for cell in notebook.cells:
        name = mark(cell).get("grade_id")
        if cell.source.startswith("STUDENT ="):
            cell.source = f'STUDENT = "{student}"'
        elif left != "all" and name not in left and (is_solution(cell) or is_explanation(cell)):
            cell.source = re.sub(r"^ *### (BEGIN|END) SOLUTION\n?", "", answers[name], flags=re.M)
    return nbformat.writes(notebook)


def write_example(course: Path) -> None:
    """Write the course's files into a new folder."""
    if course.exists() and any(course.iterdir()):
        raise FileExistsError(f"{course} is there and not empty: name a new folder")
    source = nbformat.read(ROOT / "assignments" / TOPIC / f"{TOPIC}.ipynb", as_version=4)
    archive, sheet = io.BytesIO(), io.StringIO()
    table = csv.writer(sheet)
    table.writerow(["Identifier", "Full name", "Email address", "Last modified (submission)"])
    roster = ["id,name,section"]
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as files:
        for student, name, number, when, left in CLASS:
            path = f"{name}_{number}_assignsubmission_file_/{TOPIC}.ipynb"
            files.writestr(path, handed_in(source, student, left))
            table.writerow([f"Participant {number}", name, f"{student}@example.org", when])
            roster.append(f"{student},{name},A")
    downloads = course / "downloads"
    files = {
        course / "roster.csv": "\n".join(roster) + "\n",
        course / "course.toml": COURSE,
        downloads / f"{TOPIC}.zip": archive.getvalue(),
        downloads / "worksheet.csv": sheet.getvalue(),
    }
    try:
        for path, data in files.items():
            write_whole(path, data)
    except OSError:
        with contextlib.suppress(OSError):  # or the folder would not be new any more
            for path in files:
                path.unlink(missing_ok=True)
            downloads.rmdir()
        raise


def main() -> None:
    """Write the example that the command line asks for."""
    parser = argparse.ArgumentParser(description="Write a class of four to try grading with.")
    parser.add_argument("course", type=lambda text: Path(text).expanduser())
    course = parser.parse_args().course
    try:
        write_example(course)
    except FileExistsError as error:
        sys.exit(f"First Token: {error}")
    print(f"A class of four is in {course}. Next:")
    print(f"make collect COURSE={course} FILES={course}/downloads/{TOPIC}.zip \\")
    print(f"    WORKSHEET={course}/downloads/worksheet.csv TOPIC={TOPIC}")
    print(f"make grade COURSE={course}")


if __name__ == "__main__":
    run(main)
