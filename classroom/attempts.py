"""What a course keeps of its gradings, so that none is lost and none is done twice.

COURSE/attempts/STUDENT/TOPIC/NNN.ipynb         a hand-in, as it came
                              NNN.graded.ipynb  the same after its tests, as students may see it
                              NNN.json          its result; written last
                              counts.json       what the gradebook and autograded/ hold, and
                                                what a person had read who gave points
COURSE/releases/TOPIC/VERSION.ipynb             each version of the assignment that was graded with

A file is replaced as a whole. So a grader that is killed leaves the old one or the new one.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from course import write_whole
from report import Row
from submitted import HandIn


def digest(data: bytes) -> str:
    """Return a name for the content of a file."""
    return hashlib.sha256(data).hexdigest()


@dataclass
class Attempt:
    """One hand-in and what its grading found."""

    number: int
    hand_in: HandIn  # without its bytes
    row: Row  # as the tests found it: without lateness, review and a person's points
    scores: dict[str, float | None] = field(default_factory=dict)  # by cell; None: not known
    to_read: dict[str, str] = field(default_factory=dict)  # digests, by cell
    version: str = ""  # of the assignment
    notebook: str = ""  # digest of NNN.graded.ipynb

    @property
    def grading(self) -> str:
        """A name for this grading of this hand-in."""
        return digest(repr((self.row.fingerprint, self.row.seed, self.notebook)).encode())


def place(course: Path, student: str, topic: str) -> Path:
    """Return the folder of a student's attempts at a topic."""
    return course / "attempts" / student / topic


def graded_path(course: Path, attempt: Attempt) -> Path:
    """Return the file with an attempt's notebook after its tests."""
    row = attempt.row
    return place(course, row.student, row.topic) / f"{attempt.number:03}.graded.ipynb"


def keep(course: Path, attempt: Attempt, notebook: nbformat.NotebookNode) -> None:
    """Store an attempt with its graded notebook; the last file makes it count."""
    folder = place(course, attempt.row.student, attempt.row.topic)
    data = nbformat.writes(notebook).encode()
    attempt.notebook = digest(data)
    if attempt.hand_in.data:
        write_whole(folder / f"{attempt.number:03}.ipynb", attempt.hand_in.data)
    write_whole(graded_path(course, attempt), data)
    attempt.hand_in = dataclasses.replace(attempt.hand_in, data=b"")
    stored = dataclasses.asdict(attempt)
    del stored["hand_in"]["data"]
    write_whole(
        folder / f"{attempt.number:03}.json", json.dumps(stored, indent=1, ensure_ascii=False)
    )


def read(kind: type, stored: dict):
    """Return a record of the kind, whatever fields an older or newer program wrote."""
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in stored.items() if name in known})


def attempts(course: Path, student: str, topic: str) -> list[Attempt]:
    """Return the attempts of a student at a topic, in their order.

    One whose notebook is not the one that belongs to it has no version, as if the assignment had
    changed since: it is graded again.
    """
    found = []
    for path in sorted(place(course, student, topic).glob("[0-9]*.json")):
        try:
            stored = json.loads(path.read_bytes())
            stored["row"] = read(Row, stored["row"] | {"student": student, "topic": topic})
            stored["hand_in"] = read(HandIn, stored["hand_in"])
            attempt = read(Attempt, stored | {"number": int(path.stem)})
        except (ValueError, TypeError, KeyError):
            continue  # not ours, or damaged: the hand-in is graded as a new one
        graded = graded_path(course, attempt)
        if not graded.is_file() or digest(graded.read_bytes()) != attempt.notebook:
            attempt.version = ""
        found.append(attempt)
    return found


def again(course: Path, attempt: Attempt) -> HandIn:
    """Return a stored attempt's hand-in with its bytes."""
    path = place(course, attempt.row.student, attempt.row.topic) / f"{attempt.number:03}.ipynb"
    return dataclasses.replace(attempt.hand_in, data=path.read_bytes() if path.is_file() else b"")


def next_number(course: Path, student: str, topic: str) -> int:
    """Return a number that no attempt has."""
    folder = place(course, student, topic)
    return max((int(path.stem) for path in folder.glob("[0-9]*.json")), default=0) + 1


def counted(course: Path, student: str, topic: str) -> dict:
    """Return what the gradebook and autograded/ hold of a student's work; empty for nothing."""
    try:
        return dict(json.loads((place(course, student, topic) / "counts.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}


def count(course: Path, student: str, topic: str, held: dict) -> None:
    """Write down what the gradebook and autograded/ hold now."""
    write_whole(place(course, student, topic) / "counts.json", json.dumps(held, ensure_ascii=False))


def releases(course: Path, topic: str, version: str, present: nbformat.NotebookNode) -> list:
    """Keep the present release; return the other ones that the course was graded with."""
    folder = course / "releases" / topic
    if not (folder / f"{version}.ipynb").is_file():
        write_whole(folder / f"{version}.ipynb", nbformat.writes(present))
    others = sorted(path for path in folder.glob("[!.]*.ipynb") if path.stem != version)
    return [nbformat.read(path, as_version=4) for path in others]
