"""The report on a graded course: tables for learning systems, statistics, and one page to read."""

import csv
import html
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from firsttoken import plots

MAX_SAID = 160  # characters of a mistake in a table


@dataclass
class Row:
    """What became of one student's work on one topic.

    `questions` holds the points of each test cell, None where they are unknown, and `parts` what
    each part of a cell gave: [name, earned, points]. `score` is the sum with what a person gave,
    less `penalty`, the points that were taken off for `days_late`. It is None as long as a person
    still has something to read.
    """

    student: str
    topic: str
    status: str = ""  # graded, needs grading, needs review, not submitted
    reasons: list[str] = field(default_factory=list)  # to wait for a person
    notes: list[str] = field(default_factory=list)  # worth knowing, in no need of a decision
    questions: dict[str, float | None] = field(default_factory=dict)
    maximum: dict[str, float] = field(default_factory=dict)
    mistakes: dict[str, str] = field(default_factory=dict)
    score: float | None = None
    total: float | None = None
    seconds: float = 0
    fingerprint: str = ""
    name: str = ""  # as in the roster
    section: str = ""
    submitted: str = ""  # ISO 8601 with its offset; empty where nobody knows when
    days_late: float = 0
    penalty: float = 0
    attempt: int = 1  # which one counts
    n_attempts: int = 1
    seed: str = ""  # of the hidden inputs
    parts: dict[str, list] = field(default_factory=dict)

    @property
    def automatic(self) -> float | None:
        """The points of the tests, None where one of them is unknown."""
        known = list(self.questions.values())
        return sum(known) if known and None not in known else None

    @property
    def reason(self) -> str:
        """All reasons and notes in one line, without what steers a terminal."""
        text = "; ".join(" ".join(reason.split()) for reason in self.reasons + self.notes)
        return "".join(c if c.isprintable() else "�" for c in text)

    @property
    def said(self) -> str:
        """One line for the terminal."""
        if self.reasons:
            return f"needs review: {self.reason}"
        if not self.maximum:
            return self.status
        return f"{number(self.automatic)} of {sum(self.maximum.values()):g} points from the tests"


def number(value: float | None) -> str:
    """Return points as a text, empty where they are unknown: a blank is no zero."""
    return "" if value is None else f"{value:g}"


def table(path: Path, lines: list[list]) -> None:
    """Write a CSV file; no name that a student chose is taken for a formula."""
    with path.open("w", newline="") as file:
        for line in lines:
            texts = [str(text) for text in line]
            risky = tuple("=+-@\t\r")
            csv.writer(file).writerow(f"'{t}" if t.startswith(risky) else t for t in texts)


def write_report(folder: Path, rows: list[Row]) -> None:
    """Write grades.csv, canvas.csv, moodle.csv, questions.csv and report.html."""
    folder.mkdir(parents=True, exist_ok=True)
    head = ["student", "topic", "status", "automatic", "automatic_max", "score", "max", "reason"]
    table(
        folder / "grades.csv",
        [head]
        + [
            [
                row.student,
                row.topic,
                row.status,
                number(row.automatic),
                number(sum(row.maximum.values()) if row.maximum else None),
                number(row.score),
                number(row.total),
                row.reason,
            ]
            for row in rows
        ],
    )
    topics = sorted({row.topic for row in rows if row.maximum})
    students = sorted({row.student for row in rows})
    score = {(row.student, row.topic): number(row.score) for row in rows}
    marks = [[score.get((student, topic), "") for topic in topics] for student in students]
    totals = [number(max(r.total or 0 for r in rows if r.topic == topic)) for topic in topics]
    # Canvas wants these five columns and the points possible in the row below the head.
    canvas = [["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *topics]]
    canvas.append(["Points Possible", "", "", "", "", *totals])
    pairs = list(zip(students, marks, strict=True))
    canvas += [[student, "", "", student, "", *points] for student, points in pairs]
    table(folder / "canvas.csv", canvas)
    # Moodle asks which column is which; the user name identifies a student.
    table(folder / "moodle.csv", [["username", *topics]] + [[s, *points] for s, points in pairs])
    questions = statistics(rows)
    table(folder / "questions.csv", [QUESTION_HEAD, *questions])
    (folder / "report.html").write_text(page(rows, topics, questions))


QUESTION_HEAD = ["topic", "question", "points", "submissions", "mean", "solved", "most common"]


def statistics(rows: list[Row]) -> list[list[str]]:
    """Return for each question: how many tried, mean points, share solved, commonest mistake."""
    found = []
    for topic in sorted({row.topic for row in rows if row.maximum}):
        ours = [row for row in rows if row.topic == topic and row.maximum]
        for question, most in ours[0].maximum.items():
            got = [row.questions[question] for row in ours if question in row.questions]
            known = [points for points in got if points is not None]
            said = Counter(row.mistakes[question] for row in ours if question in row.mistakes)
            common = said.most_common(1)
            found.append(
                [
                    topic,
                    question,
                    number(most),
                    str(len(known)),
                    f"{sum(known) / len(known):.1f}" if known else "",
                    f"{sum(points == most for points in known) / len(known):.0%}" if known else "",
                    f"{common[0][1]}×: {' '.join(common[0][0].split())[:MAX_SAID]}"
                    if common
                    else "",
                ]
            )
    return found


def histogram(rows: list[Row], topic: str) -> str:
    """Return an SVG of how the class did in the tests of a topic."""
    ours = [row for row in rows if row.topic == topic and row.maximum]
    known = [row.automatic for row in ours if row.automatic is not None]
    most = sum(ours[0].maximum.values())
    with matplotlib.rc_context(plots.STYLE):
        figure = Figure(figsize=(5, 2.2))
        axes = figure.subplots()
        bins = [most * k / 10 for k in range(11)]
        axes.hist(known, bins=bins, color=plots.COLORS["muted"], rwidth=0.96)
        axes.set_xlabel(f"points from the tests, of {most:g}")
        axes.set_ylabel("submissions")
        axes.yaxis.get_major_locator().set_params(integer=True)
        drawing, box = plots.svg_drawing(figure), plots.extent(figure)
    return plots.inline_svg(drawing, f"{topic}: {len(known)} submissions by their points", box)


def cells(lines: list[list], head: list[str]) -> str:
    """Return an HTML table; every text in it is shown, none is run."""
    rows = ["".join(f"<td>{html.escape(str(text))}</td>" for text in line) for line in lines]
    top = "".join(f"<th>{html.escape(text)}</th>" for text in head)
    body = "".join(f"<tr>{row}</tr>\n" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody></table>\n"


STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse } td, th { border-bottom: 1px solid #ccc; padding: .2rem .6rem;
text-align: left; vertical-align: top }"""


def page(rows: list[Row], topics: list[str], questions: list[list[str]]) -> str:
    """Return the page: who waits for a person and why, then the class, then every row."""
    review = [[r.student, r.topic, r.reason] for r in rows if r.status == "needs review"]
    waiting = [[r.student, r.topic] for r in rows if r.status == "needs grading"]
    every = [
        [r.student, r.topic, r.status, number(r.automatic), number(r.score), r.seconds]
        for r in rows
    ]
    parts = [f"<h2>Needs review: {len(review)}</h2>"]
    parts += [cells(review, ["student", "topic", "reason"])] if review else []
    parts += [f"<h2>Explanations to read: {len(waiting)}</h2>"]
    parts += [cells(waiting, ["student", "topic"])] if waiting else []
    parts += ["<h2>The class</h2>"]
    parts += [f"<h3>{html.escape(topic)}</h3>\n{histogram(rows, topic)}" for topic in topics]
    parts += ["<h2>Questions</h2>", cells(questions, QUESTION_HEAD)]
    head = ["student", "topic", "status", "tests", "score", "seconds"]
    parts += ["<h2>All submissions</h2>", cells(every, head)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Grades</title>'
        f"<style>{STYLE}</style></head><body>\n<h1>Grades</h1>\n"
        + "\n".join(parts)
        + "</body></html>"
    )
