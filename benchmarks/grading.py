"""Grading a class, hostile hand-ins among it, beside nbgrader's own autograde.

    python benchmarks/grading.py [--students 300] [--hostile 30] [--kills 6] [--out FILE]

nbgrader runs the honest hand-ins of one assignment, one after another and unprotected; make grade
runs the same ones. Then make grade runs a class of all assignments in turn, part of it hostile:
what sleeps, loops, forks, floods, hoards memory and files, breaks its own process or page. At last
the same class is graded by a grader that is killed again and again: each time nothing of it may go
on running, and in the end grades and gradebook must be those of the quiet run.
"""

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import nbformat
import psutil
from nbgrader.api import Gradebook

from firsttoken.paths import data_path
from firsttoken.provenance import code_digest, commit, load_average, processor

MEASURED_CODE = code_digest(
    [
        "classroom/attempts.py",
        "classroom/course.py",
        "classroom/execute.py",
        "classroom/feedback.py",
        "classroom/first.py",
        "classroom/grade.py",
        "classroom/gradebook.py",
        "classroom/judge.py",
        "classroom/kernel.py",
        "classroom/marking.py",
        "classroom/pictures.py",
        "classroom/report.py",
        "classroom/review.py",
        "classroom/sandbox.py",
        "classroom/submitted.py",
        "classroom/wire.py",
        "assignments",
    ]
)

ROOT = Path(__file__).parents[1]
GRADE = [sys.executable, str(ROOT / "classroom" / "grade.py")]
END_S = 30  # within which all that a killed grader started must be gone

COMPARED = "kv_cache"
ANSWER = re.compile(r"^def (\w+)\(", re.M)
# Put before each answer; what follows CALL is in the functions that the tests call.
HOSTILE = {
    "sleeps in a cell": "import time\ntime.sleep(10**6)",
    "loops in a cell": "while True: pass",
    "sleeps when asked": "CALL import time; time.sleep(10**6)",
    "loops when asked": "CALL exec('while True: pass')",
    "stubborn": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "forks": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "prints": "while True: print('x' * 10**5, flush=True)",
    "memory": "hog = []\nwhile True: hog.append(bytearray(b'x' * 10**8))",
    "files": "k = 0\nwhile True:\n    open(f'/tmp/{k}', 'w').close(); k += 1",
    "colour codes": "print('\\x1b[31mx\\x1b[0m' * 2 * 10**6)",
    "crash": "import ctypes; ctypes.string_at(0)",
    "exit when asked": "CALL import os; os._exit(1)",
    "patched shell": "get_ipython().input_transformers_cleanup.append(lambda lines: [])",
    "brackets": "MARKDOWN " + "[" * 20_000,
    "emphasis": "MARKDOWN " + "*a_" * 7_000,
}


def handed_in(topic: str, student: str, attack: str = "") -> nbformat.NotebookNode:
    """Return a solved notebook, with an attack in all of its tasks."""
    notebook = nbformat.read(ROOT / "assignments" / topic / f"{topic}.ipynb", as_version=4)
    kind, _, body = attack.partition(" ")
    for cell in notebook.cells:
        cell.source = re.sub(r"^ *### (BEGIN|END) SOLUTION\n?", "", cell.source, flags=re.M)
        if cell.source.startswith("STUDENT ="):
            cell.source = f'STUDENT = "{student}"'
        if not cell.metadata.get("nbgrader", {}).get("solution"):
            continue
        if kind == "MARKDOWN":
            cell.source = body if cell.cell_type == "markdown" else cell.source
        elif cell.cell_type == "code" and kind == "CALL":
            names = ANSWER.findall(cell.source)
            cell.source += "".join(f"\n\ndef {name}(*a, **k):\n    {body}\n" for name in names)
        elif cell.cell_type == "code" and attack:
            cell.source = f"{attack}\n{cell.source}"
    return notebook


def write(course: Path, student: str, topic: str, notebook: nbformat.NotebookNode) -> None:
    folder = course / "submitted" / student / topic
    folder.mkdir(parents=True)
    nbformat.write(notebook, folder / f"{topic}.ipynb")


def graded_s(course: Path) -> tuple[float, list[dict]]:
    """Return the seconds that make grade takes, and its rows."""
    start = time.perf_counter()
    subprocess.run([*GRADE, str(course)], check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    rows = [json.loads(p.read_text("utf-8"))["row"] for p in course.glob("attempts/*/*/001.json")]
    return seconds, rows


def autograded_s(course: Path) -> float:
    """Return the seconds that nbgrader takes for the same hand-ins."""
    (course / "source" / COMPARED).mkdir(parents=True)
    source = ROOT / "assignments" / COMPARED / f"{COMPARED}.ipynb"
    (course / "source" / COMPARED / source.name).write_bytes(source.read_bytes())
    # It starts alembic by its name, which is found if this environment is on the path.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for step in ("generate_assignment", "autograde"):
        start = time.perf_counter()
        program = [sys.executable, "-m", "nbgrader", step, COMPARED, "--force"]
        program += [f"--CourseDirectory.root={course}", "--ExecutePreprocessor.timeout=120"]
        subprocess.run(
            program,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PATH": path},
        )
    return time.perf_counter() - start


def sandboxed() -> list[psutil.Process]:
    """Return the processes of this book's sandboxes, whoever started them."""
    programs = {str(ROOT / "classroom" / name) for name in ("kernel.py", "judge.py")}
    running = psutil.process_iter(["cmdline"])
    return [p for p in running if programs & set(p.info["cmdline"] or ())]


def killed_after(course: Path, n_attempts: int) -> int:
    """Kill a grader as soon as so many attempts are stored; return how many processes it left."""
    with subprocess.Popen([*GRADE, str(course)], stdout=subprocess.DEVNULL) as grader:
        while len(list(course.glob("attempts/*/*/001.json"))) < n_attempts:
            assert grader.poll() is None, "it came to its end before it could be killed"
            time.sleep(0.05)
        assert sandboxed()
        grader.kill()
    deadline = time.monotonic() + END_S
    while (left := sandboxed()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return len(left)


def outcome(course: Path) -> dict[str, tuple]:
    """Return {student: the line in the table of grades, what the gradebook holds}."""
    with (course / "report" / "grades.csv").open(newline="", encoding="utf-8-sig") as file:
        lines = [line for line in csv.DictReader(file) if line["attempts"]]
    found = {}
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        for line in lines:
            submission = gradebook.find_submission(line["topic"], line["student"])
            grades = [
                (grade.name, grade.auto_score, grade.manual_score, grade.needs_manual_grade)
                for notebook in submission.notebooks
                for grade in notebook.grades
            ]
            found[line["student"]] = line, sorted(grades)
    assert len(found) == len(lines), "a student stands there twice"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--students", type=int, default=300)
    parser.add_argument("--hostile", type=int, default=30)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--out", type=Path, default=data_path("measured/grading.json"))
    options = parser.parse_args()
    load = load_average()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder, "ours"), Path(folder, "theirs")
        for k in range(30):
            for course in (ours, theirs):
                write(course, f"s{k:03}", COMPARED, handed_in(COMPARED, f"s{k:03}"))
        results["make grade"], rows = graded_s(ours)
        assert all(sum(row["questions"].values()) == 85 for row in rows)
        results["nbgrader autograde"] = autograded_s(theirs)
        mixed, disturbed = Path(folder, "mixed"), Path(folder, "disturbed")
        topics = sorted(path.name for path in (ROOT / "assignments").iterdir())
        attacks = list(HOSTILE.values())
        every = options.students // max(1, options.hostile)
        for k in range(options.students):
            attack = attacks[k // every % len(attacks)] if k % every == 0 else ""
            topic = topics[k % len(topics)]
            write(mixed, f"s{k:03}", topic, handed_in(topic, f"s{k:03}", attack))
        shutil.copytree(mixed, disturbed)
        results["class"], rows = graded_s(mixed)
        start, steps = time.perf_counter(), options.kills + 1
        left = [killed_after(disturbed, options.students * k // steps) for k in range(1, steps)]
        graded_s(disturbed)
        results["class, killed"] = time.perf_counter() - start
        quiet, found = outcome(mixed), outcome(disturbed)
    # Who has no line has not been graded: the grader itself has failed there.
    every_one = {f"s{k:03}" for k in range(options.students)}
    assert set(quiet) == every_one, f"missing in the quiet run: {every_one - set(quiet)}"
    assert set(found) == every_one, f"missing in the other run: {every_one - set(found)}"
    assert not any(left), f"a killed grader left {left} processes running"
    # A hostile one may meet another limit first, as chance will have it.
    others = sorted(student for student in quiet if found[student] != quiet[student])
    unfair = [student for student in others if int(student[1:]) % every]
    assert not unfair, "\n".join(f"{quiet[student]}\n{found[student]}" for student in unfair)
    report = {
        "seconds": {name: round(seconds, 1) for name, seconds in results.items()},
        "students": options.students,
        "hostile": options.hostile,
        "kills": options.kills,
        "other_outcome_after_kills": len(others),
        "needs_review": sum(bool(row["reasons"]) for row in rows),
        "measured": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "measured_code": MEASURED_CODE,
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "load_average_before": load,
        "versions": {name: version(name) for name in ("nbgrader", "ipython", "numpy")},
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    seconds = report["seconds"]
    ratio = seconds["make grade"] / seconds["nbgrader autograde"]
    print(f"30 x {COMPARED}: {seconds['make grade']} s, nbgrader {seconds['nbgrader autograde']} s")
    print(f"ratio {ratio:.2f}")
    print(
        f"{options.students} of all assignments, {options.hostile} hostile: {seconds['class']} s, "
        f"{report['needs_review']} to review"
    )
    print(
        f"The same, killed {options.kills} times: {seconds['class, killed']} s, "
        f"{len(others)} of the hostile ones end otherwise"
    )


if __name__ == "__main__":
    main()
