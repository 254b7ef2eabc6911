"""The report on a graded course: tables for learning systems, statistics, and one page to read."""

import csv
import html
import io
import os
import re
import shlex
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from course import Course, Student, write_whole

MAX_SAID = 160  # characters of a mistake in a table
NUMBERS = re.compile(r"\n*+(?:-?[0-9.]+%?(?:\n+|\Z))+")  # the lines of a column, empty ones too
FORMULA = tuple("=+-@\t\r")  # how a cell begins that a spreadsheet computes


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
        if not self.maximum or self.automatic is None:
            return self.status  # as while another attempt waits to be graded
        return f"{number(self.automatic)} of {sum(self.maximum.values()):g} points from the tests"


def number(value: float | None) -> str:
    """Return points as a text, empty where they are unknown: a blank is no zero."""
    return "" if value is None else f"{value:g}"


def table(path: Path, lines: list[list[str]], encoding: str) -> None:
    """Write a CSV file; no name that a student chose is taken for a formula."""
    file = io.StringIO()
    csv.writer(file).writerows(
        [f"'{text}" if text.startswith(FORMULA) else text for text in line] for line in lines
    )
    write_whole(path, file.getvalue().encode(encoding, "backslashreplace"))


def write_report(folder: Path, rows: list[Row], course: Course | None = None) -> None:
    """Write grades.csv, canvas.csv, moodle.csv, questions.csv and report.html.

    What people open begins with a byte order mark: without it Excel takes UTF-8 for the code page
    of its country. What Canvas and Moodle read has none: Canvas would take it for a part of the
    first name (it opens the file as it is, instructure/canvas-lms, lib/gradebook_importer.rb).
    """
    course = course or Course()
    rows = whole_class(rows, course)
    folder.mkdir(parents=True, exist_ok=True)
    topics = sorted({row.topic for row in rows if row.maximum})
    questions = statistics(rows)
    table(folder / "grades.csv", [GRADES_HEAD, *map(grades_line, rows)], "utf-8-sig")
    table(folder / "questions.csv", [QUESTION_HEAD, *questions], "utf-8-sig")
    table(folder / "canvas.csv", canvas(rows, course), "utf-8")
    table(folder / "moodle.csv", moodle(rows, course), "utf-8")
    text = page(folder, rows, topics, questions, course)
    write_whole(folder / "report.html", text.encode("utf-8", "backslashreplace"))


def whole_class(rows: list[Row], course: Course) -> list[Row]:
    """Return the rows with the names of the roster, and one for each who handed in nothing.

    That is each student of the roster, for each topic that somebody handed in or that was due.
    """
    found = []
    for row in rows:
        if known := course.roster.get(row.student):
            name, section = row.name or known.name, row.section or known.section
            if (name, section) != (row.name, row.section):
                row = replace(row, name=name, section=section)
        found.append(row)
    there = {(row.student, row.topic) for row in rows}
    now = datetime.now(UTC)
    for topic in {row.topic for row in rows if row.maximum} | set(course.due_dates):
        open_to_all = any(key[1] == topic for key in there)
        for student in course.roster.values():
            due = course.due(topic, student.id)
            if (student.id, topic) in there or not (open_to_all or (due and due < now)):
                continue
            notes = [f"due {due.isoformat(' ', 'minutes')}"] if due and now <= due else []
            missing = Row(student.id, topic, "not submitted", notes=notes)
            found.append(replace(missing, name=student.name, section=student.section))
    place = {student: k for k, student in enumerate(course.roster)}
    return sorted(found, key=lambda row: (row.topic, place.get(row.student, len(place))))


GRADES_HEAD = [
    *["student", "name", "section", "topic", "status", "submitted", "days_late", "penalty"],
    *["attempt", "attempts", "automatic", "automatic_max", "score", "max", "reason"],
]


def grades_line(row: Row) -> list[str]:
    """Return a row of grades.csv."""
    return [
        row.student,
        row.name,
        row.section,
        row.topic,
        row.status,
        row.submitted,
        f"{row.days_late:.2f}" if row.days_late else "",
        number(row.penalty) if row.penalty else "",
        str(row.attempt) if row.maximum else "",
        str(row.n_attempts) if row.maximum else "",
        number(row.automatic),
        number(sum(row.maximum.values()) if row.maximum else None),
        number(row.score),
        number(row.total),
        row.reason,
    ]


def gradebook(rows: list[Row], course: Course) -> tuple[dict[str, float], dict, list[Student]]:
    """Return for a learning system the points possible by topic, the scores and the students.

    A topic whose points are not known yet has no column: an empty one would set them to 0.
    """
    totals: dict[str, float] = {}
    for row in rows:
        if row.total is not None:
            totals[row.topic] = max(row.total, totals.get(row.topic, 0))
    scores = {(row.student, row.topic): number(row.score) for row in rows}
    # A student who is not in the roster is none of the learning system's. The page names them.
    students = list(course.roster.values())
    students = students or [course.student(name) for name in sorted({row.student for row in rows})]
    return dict(sorted(totals.items())), scores, students


def canvas(rows: list[Row], course: Course) -> list[list[str]]:
    """Return the table that Canvas imports (*Grades → Import*).

    It wants these five columns, the points possible below the head, and finds students by its own
    number, else by SIS User ID, else by login, else by name. An assignment is found by the number
    behind its title, "KV cache (10234)", else by the whole title; other columns it offers to make
    into new assignments. Source: instructure/canvas-lms, lib/gradebook_importer.rb.
    """
    totals, scores, students = gradebook(rows, course)
    head = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
    lines = [[*head, *map(course.canvas_column, totals)]]
    lines.append(["    Points Possible", "", "", "", "", *map(number, totals.values())])
    for student in students:
        who = [student.name or student.id, student.canvas_id, student.sis_id, student.login]
        points = [scores.get((student.id, topic), "") for topic in totals]
        lines.append([*who, student.section, *points])
    return lines


def moodle(rows: list[Row], course: Course) -> list[list[str]]:
    """Return the table that Moodle imports (*Grades → Import → CSV file*).

    Moodle asks which column is which. It finds a student by username, ID number or email address,
    and no other column may stand for one. Source: moodle/moodle,
    grade/import/csv/classes/load_data.php.
    """
    totals, scores, students = gradebook(rows, course)
    lines = [["username", "ID number", "Email address", "Full name", "Identifier", *totals]]
    for student in students:
        identifier = f"Participant {student.moodle_id}" if student.moodle_id else ""
        who = [student.login, student.sis_id, student.email, student.name, identifier]
        lines.append([*who, *(scores.get((student.id, topic), "") for topic in totals)])
    return lines


QUESTION_HEAD = [
    *["topic", "question", "part", "points", "submissions", "mean", "solved"],
    *["most common mistake"],
]


def statistics(rows: list[Row]) -> list[list[str]]:
    """Return for each question and its parts: how many tried, mean points, share solved.

    Beside a question stands the commonest mistake in it.
    """
    topics: dict[str, list[Row]] = {}
    for row in rows:
        if row.maximum:
            topics.setdefault(row.topic, []).append(row)
    found = []
    for topic, ours in sorted(topics.items()):
        for question, most in ours[0].maximum.items():
            got = [row.questions.get(question) for row in ours]
            said = Counter(row.mistakes[question] for row in ours if question in row.mistakes)
            common = [
                f"{n}×: {' '.join(text.split())[:MAX_SAID]}" for text, n in said.most_common(1)
            ]
            found.append([topic, question, "", *share(got, most), *(common or [""])])
            parts: dict[tuple[str, float], list[float | None]] = {}
            for row in ours:
                for name, earned, points in row.parts.get(question, []):
                    parts.setdefault((name, points), []).append(earned)
            if len(parts) > 1:
                found += [
                    [topic, question, name, *share(got, points), ""]
                    for (name, points), got in parts.items()
                ]
    return found


def share(got: list[float | None], most: float) -> list[str]:
    """Return the points, how many earned known ones, their mean, and the share that got all."""
    known = [points for points in got if points is not None]
    if not known:
        return [number(most), "0", "", ""]
    solved = sum(points == most for points in known) / len(known)
    return [number(most), str(len(known)), f"{sum(known) / len(known):.1f}", f"{solved:.0%}"]


def histogram(rows: list[Row], topic: str) -> str:
    """Return an SVG of how the class did in the tests of a topic: ten bars with their counts."""
    ours = [row for row in rows if row.topic == topic and row.maximum]
    known = [row.automatic for row in ours if row.automatic is not None]
    most = sum(ours[0].maximum.values())
    place = Counter(max(0, min(9, int(10 * points / most))) if most else 9 for points in known)
    tallest = max(place.values(), default=1)
    bars = []
    for k, count in sorted(place.items()):
        height = 100 * count / tallest
        bars.append(
            f'<rect x="{40 * k + 2}" y="{120 - height:g}" width="36" height="{height:g}"/>'
            f'<text x="{40 * k + 20}" y="{114 - height:g}">{count}</text>'
        )
    marks = [f'<text x="{40 * k}" y="138">{most * k / 10:g}</text>' for k in (0, 5, 10)]
    label = html.escape(f"{topic}: {len(known)} submissions by their points")
    return (
        f"<figure><figcaption>Submissions by their points from the tests, of {most:g}</figcaption>"
        f'<svg role="img" aria-label="{label}" viewBox="-15 -5 430 150">'
        f'{"".join(bars)}<path d="M0 120H400"/>{"".join(marks)}</svg></figure>'
    )


text = lru_cache(maxsize=8192)(html.escape)  # of thousands of cells most are alike


def cells(caption: str, head: list[str], lines: list[list[str]]) -> str:
    """Return an HTML table. Its cells are HTML already: `text` or `links` made them."""
    columns = ["\n".join(line[k] for line in lines) for k in range(1, len(head))]
    kinds = ["", *(" class=n" if NUMBERS.fullmatch(column) else "" for column in columns)]
    top = "".join(
        f'<th scope="col"{kind}>{name}</th>' for kind, name in zip(kinds, head, strict=True)
    )
    body = "".join(
        f'<tr><th scope="row">{line[0]}</th>'
        + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds[1:], line[1:], strict=True))
        + "</tr>\n"
        for line in lines
    )
    return (
        # A table that is wider than a phone scrolls in its own box, also by keyboard.
        f'<div role="region" tabindex="0" aria-label="{caption}">\n'
        f"<table><caption>{caption}</caption><thead><tr>{top}</tr></thead>\n"
        f"<tbody>{body}</tbody></table></div>\n"
    )


# Colours are the browser's own, light or dark as the reader has set them.
STYLE = """\
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem }
[role=region] { overflow-x: auto; margin: 1rem 0 }
table { border-collapse: collapse }
table:has(td:nth-child(7)) { width: max-content; max-width: max(100%, 60rem) }
caption { text-align: left; font-weight: 600 } .n { text-align: right }
td, th { border-bottom: 1px solid #8888; padding: .2rem .6rem; text-align: left;
vertical-align: top; font-weight: inherit } thead th { font-weight: 600 }
section { display: grid; gap: 0 2rem; grid-template-columns: repeat(auto-fill, minmax(18rem, 1fr)) }
small { opacity: .8 } figure { margin: 0; max-width: 26rem } svg { width: 100% }
rect { fill: #7a7a7a } path { stroke: currentColor }
svg text { fill: currentColor; font-size: 13px; text-anchor: middle }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e8e8e8 }
a { color: #8ab4f8 } rect { fill: #9a9a9a } }"""
FRAME = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Grades</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>{style}</style></head><body><main>
<h1>Grades</h1>
{body}
</main></body></html>
"""


def page(
    folder: Path, rows: list[Row], topics: list[str], questions: list[list[str]], course: Course
) -> str:
    """Return the page: how many are where, who waits for a person and why, the class, every row."""
    place = str(folder.parent)
    counts = Counter(row.status for row in rows)
    order = ["needs review", "needs grading", "graded", "not submitted"]
    order += sorted(set(counts) - set(order))
    review = [row for row in rows if row.status == "needs review"]
    waiting = [row for row in rows if row.status == "needs grading"]
    strange = sorted({row.student for row in rows} - set(course.roster)) if course.roster else []
    said = "".join(f"<li>{text(status)}: {counts[status]}</li>" for status in order)
    parts = [f"<ul>{said}</ul>"]

    def listed(caption: str, why: str, then: str, who: list[Row]) -> str:
        """Return who waits for a person and what to do, nothing where nobody does."""
        said = any(r.reason for r in who)
        head = ["student", "topic", *([why] if said else []), "look at"]
        lines = [
            [person(r), text(r.topic), *([text(r.reason)] if said else []), links(place, r)]
            for r in who
        ]
        return f"<p>{then}</p>{cells(caption, head, lines)}" if lines else ""

    make = f"COURSE={text(shlex.quote(place))}"
    then = (
        f"Read each, then decide: <code>make review {make} STUDENT=… TOPIC=… ACCEPT=&quot;why&quot;"
        "</code>, or <code>REFUSE=&quot;why&quot;</code>. Then run <code>make grade</code> again."
    )
    parts += [f"<h2>Needs review: {len(review)}</h2>"]
    parts += [listed("Without a person they have no grade", "why", then, review)]
    then = (
        f"Give points in Formgrader: <code>make formgrader {make}</code>; on a hub, in "
        "JupyterLab's menu. Then run <code>make grade</code> again."
    )
    parts += [f"<h2>Explanations to read: {len(waiting)}</h2>"]
    parts += [listed("Without these points the score is not final", "note", then, waiting)]
    if strange:
        parts += [f"<h2>Not in roster.csv: {len(strange)}</h2>"]
        parts += [f"<p>In no file for Canvas or Moodle: {text(', '.join(strange))}.</p>"]
    parts += ["<h2>The class</h2>"]
    figures = [f"<div><h3>{text(topic)}</h3>{histogram(rows, topic)}</div>" for topic in topics]
    parts += ["<section>", *figures, "</section>"]
    lines = [[text(cell) for cell in line] for line in questions]
    parts += ["<h2>Questions</h2>", cells("Each question and its parts", QUESTION_HEAD, lines)]
    head = ["student", "section", "topic", "status", "handed in", "days late", "penalty", "attempt"]
    lines = [
        [
            person(row),
            text(row.section),
            text(row.topic),
            text(row.status),
            clock(row.submitted, course),
            f"{row.days_late:.1f}" if row.days_late else "",
            number(row.penalty) if row.penalty else "",
            f"{row.attempt} of {row.n_attempts}" if row.maximum else "",
            number(row.automatic),
            number(row.score),
            number(row.seconds) if row.maximum else "",
            links(place, row),
        ]
        for row in rows
    ]
    head += ["tests", "score", "run time, s", "look at"]
    parts += ["<h2>All submissions</h2>", cells("All submissions", head, lines)]
    return FRAME.format(style=STYLE, body="\n".join(parts))


def person(row: Row) -> str:
    """Return who that is, in HTML."""
    if not row.name:
        return text(row.student)
    return f"{text(row.name)} <small>{text(row.student)}</small>"


def clock(moment: str, course: Course) -> str:
    """Return a moment as clocks of the course show it."""
    if not moment:
        return ""
    return f"{datetime.fromisoformat(moment).astimezone(course.time_zone or UTC):%Y-%m-%d %H:%M}"


def links(course: str, row: Row) -> str:
    """Return links to the pages of a row that there are, in HTML."""
    found = []
    for place, end in (("feedback", "html"), ("submitted", "ipynb")):
        if os.path.isfile(f"{course}/{place}/{row.student}/{row.topic}/{row.topic}.{end}"):
            student, topic = encoded(row.student), encoded(row.topic)
            found.append(f'<a href="../{place}/{student}/{topic}/{topic}.{end}">{place}</a>')
    return " ".join(found)


@lru_cache(maxsize=4096)
def encoded(name: str) -> str:
    """Return the name of a file as it stands in an address."""
    return quote(os.fsencode(name))
