"""Decide on a submission that needs review: python classroom/review.py COURSE STUDENT TOPIC ...

--accept WORDS  the work counts as the tests found it; a test whose result is unknown counts 0
--refuse WORDS  all tests of this submission count 0
--undo          as if nothing had been decided

The words and the time are kept in COURSE/reviews.csv and shown in the report. A decision holds for
one hand-in: another one of the same student asks again. `make grade` then renews grades and pages.
Points that a person gives in Formgrader count in any case.
"""

import argparse
import csv
import io
import sys
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path

from attempts import attempts, counted
from course import run, write_whole

DECISIONS = ("accept", "refuse", "undo")


class Undecided(ValueError):
    """A review that cannot be written or read; the message says why."""


@dataclass(frozen=True)
class Review:
    """A line of reviews.csv: what a person decided on one hand-in."""

    student: str
    topic: str
    decision: str
    words: str
    time: str  # ISO 8601
    fingerprint: str  # of the hand-in

    @property
    def said(self) -> str:
        """The decision in a sentence for the report."""
        what = {"accept": "accepted", "refuse": "refused, all tests count 0"}[self.decision]
        return f"{what} ({self.words}; {self.time[:10]})"


def written(course: Path) -> list[Review]:
    """Return all lines of COURSE/reviews.csv; a later one takes the place of an earlier one."""
    path = course / "reviews.csv"
    if not path.exists():
        return []
    try:
        # A spreadsheet puts a mark before the first letter.
        text = path.read_bytes().decode("utf-8-sig")
        found = []
        for line in csv.DictReader(io.StringIO(text, newline=""), strict=True):
            found.append(Review(**{field.name: line[field.name] for field in fields(Review)}))
            if found[-1].decision not in DECISIONS:
                expected = f"expected {', '.join(DECISIONS)}"
                raise Undecided(f"{path}: decision is {found[-1].decision!r}, {expected}")
    except (UnicodeDecodeError, csv.Error, KeyError) as error:
        head = ",".join(field.name for field in fields(Review))
        raise Undecided(f"{path} is no table in UTF-8 with the head {head}: {error}") from None
    return found


def reviews(course: Path) -> dict[tuple[str, str, str], Review]:
    """Return the decisions that stand, by student, topic and fingerprint of the hand-in."""
    last = {(line.student, line.topic, line.fingerprint): line for line in written(course)}
    return {key: line for key, line in last.items() if line.decision != "undo"}


def decide(
    course: Path, student: str, topic: str, decision: str, words: str, number: int | None = None
) -> Review:
    """Write down what a person decided on a graded hand-in, the one that counts or `number`."""
    known = {attempt.number: attempt for attempt in attempts(course, student, topic)}
    if not known:
        there = sorted(path.name for path in (course / "attempts").glob("*") if path.is_dir())
        others = f"; graded are {', '.join(there)}" if there and student not in there else ""
        raise Undecided(f"nothing of {student!r} in {topic!r} has been graded{others}")
    number = number or counted(course, student, topic).get("number")
    if number not in known:
        raise Undecided(f"there is no attempt {number}; there are {', '.join(map(str, known))}")
    fingerprint = known[number].row.fingerprint
    if decision == "undo" and (student, topic, fingerprint) not in reviews(course):
        raise Undecided(f"nothing was decided on attempt {number} of {student} in {topic}")
    if decision != "undo" and not words.strip():
        raise Undecided("say in a few words why: they are kept with the decision")
    time = datetime.now().astimezone().isoformat(timespec="seconds")
    review = Review(student, topic, decision, " ".join(words.split()), time, fingerprint)
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, [field.name for field in fields(Review)])
    table.writeheader()
    table.writerows(map(asdict, [*written(course), review]))
    write_whole(course / "reviews.csv", text.getvalue())
    return review


def main() -> None:
    """Write down the decision that the command line says."""
    parser = argparse.ArgumentParser(description="Decide on a submission that needs review.")
    parser.add_argument(
        "course", type=lambda text: Path(text).expanduser(), help="the folder of the course"
    )
    parser.add_argument("student", help="the student's id")
    parser.add_argument("topic", help="the assignment")
    decision = parser.add_mutually_exclusive_group(required=True)
    decision.add_argument("--accept", metavar="WORDS", help="it counts as the tests found it")
    decision.add_argument("--refuse", metavar="WORDS", help="all its tests count 0")
    decision.add_argument("--undo", action="store_true", help="as if nothing had been decided")
    parser.add_argument("--attempt", type=int, help="which one, if not the one that counts")
    given = parser.parse_args()
    what = "undo" if given.undo else "refuse" if given.accept is None else "accept"
    words = given.accept or given.refuse or ""
    try:
        review = decide(given.course, given.student, given.topic, what, words, given.attempt)
    except Undecided as problem:
        sys.exit(f"First Token: {problem}")
    said = "undone" if what == "undo" else review.said
    print(f"{review.student} {review.topic}: {said}. Run make grade to renew grades and pages.")


if __name__ == "__main__":
    run(main)
