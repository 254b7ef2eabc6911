"""What a teacher says about a course: who is in it, what is due when, what lateness costs.

Two files in the course's folder, each of them optional. `course.toml`:

    time_zone = "Europe/Vienna"
    late_percent_per_day = 10    # of the points earned, for each day that has begun
    grace_minutes = 15           # this late is not late
    max_days_late = 5            # later than that earns 0 points; it is graded all the same
    attempts = "best"            # which hand-in counts: "last" (without this line) or "best"

    [due]
    kv_cache = 2026-12-01T18:00:00
    attention = 2026-12-08       # until the end of that day

    [extensions.ada]             # a student's id
    kv_cache = 2026-12-03T18:00:00

    [canvas_columns]             # where Canvas calls an assignment otherwise than we do
    kv_cache = "Homework 4 (10234)"

`roster.csv` as a learning system exports it, or written by hand: see `read_roster`.
"""

import contextlib
import csv
import errno
import io
import math
import os
import re
import sys
import tomllib
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

ROOT = Path(__file__).parents[1]
ID_RULE = (
    "a student id has 1 to 64 characters: letters, digits and . _ @ + -, a letter or digit first"
)


# A disk that is full, over its quota, read-only or broken.
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


class CourseError(ValueError):
    """A file of the course says what cannot be meant; the message says where and what."""


@dataclass(frozen=True)
class Student:
    """A line of the roster. What the learning systems call a student is kept for the way back."""

    id: str
    name: str = ""  # as the roster writes it, "Lovelace, Ada" or "Ada Lovelace"
    section: str = ""
    email: str = ""
    login: str = ""  # Canvas's SIS Login ID, Moodle's username
    sis_id: str = ""  # Canvas's SIS User ID, Moodle's ID number
    canvas_id: str = ""
    moodle_id: str = ""  # the number of Moodle's "Participant 12345"


@dataclass(frozen=True)
class Course:
    """A course's rules and its students; without files, no due dates and no roster.

    >>> course = Course(
    ...     due_dates={"paging": datetime.fromisoformat("2026-12-01T18:00:00+00:00")},
    ...     late_percent_per_day=10,
    ...     max_days_late=5,
    ... )
    >>> days = course.lateness("paging", "ada", "2026-12-03T00:00:00+00:00")
    >>> days, course.penalty(80, days), course.penalty(80, 5.1)
    (1.25, 16.0, 80)
    """

    time_zone: tzinfo | None = None
    due_dates: dict[str, datetime] = field(default_factory=dict)
    extensions: dict[tuple[str, str], datetime] = field(default_factory=dict)  # (topic, student)
    late_percent_per_day: float = 0
    grace_minutes: float = 0
    max_days_late: float | None = None
    attempts: str = "last"
    canvas_columns: dict[str, str] = field(default_factory=dict)
    roster: dict[str, Student] = field(default_factory=dict)

    def due(self, topic: str, student: str) -> datetime | None:
        """Return until when this student has time, None where there is no date."""
        return self.extensions.get((topic, student), self.due_dates.get(topic))

    def lateness(self, topic: str, student: str, submitted: str | datetime) -> float:
        """Return the days after the due date, 0 within the grace, and where no time is known.

        Grace forgives; who comes after it is late from the due date on.
        """
        due = self.due(topic, student)
        if not submitted or due is None:
            return 0
        moment = submitted if isinstance(submitted, datetime) else datetime.fromisoformat(submitted)
        if moment.tzinfo is None:
            raise ValueError(f"submitted {submitted} has no time zone: an aware time is expected")
        # Python takes times of one zone as clocks show them, also where those are set back between.
        late = moment.astimezone(UTC) - due.astimezone(UTC)
        if late <= timedelta(minutes=self.grace_minutes):
            return 0
        return late / timedelta(days=1)

    def penalty(self, points: float, days: float) -> float:
        """Return how many of the earned points are taken off for these days of lateness."""
        if self.max_days_late is not None and days > self.max_days_late:
            return points
        share = min(1, math.ceil(days) * self.late_percent_per_day / 100)
        return round(points * share, 2)

    def student(self, student: str) -> Student:
        """Return who that is, or at least the id."""
        return self.roster.get(student) or Student(student, login=student)

    def canvas_column(self, topic: str) -> str:
        """Return the name of a topic's column in Canvas's gradebook, else the topic."""
        return self.canvas_columns.get(topic, topic)


def read_course(folder: Path) -> Course:
    """Read course.toml and roster.csv of a course.

    Raises: CourseError, which names the file, the key or line, what stands there and what may.
    """
    path = folder / "roster.csv"
    roster, columns = read_roster(path) if path.exists() else ({}, {})
    path = folder / "course.toml"
    topics = {
        source.parent.name
        for place in (folder / "source", ROOT / "assignments")
        for source in place.glob("*/*.ipynb")
    }
    if not path.exists():
        return Course(roster=roster, canvas_columns=in_canvas(columns, topics))
    try:
        said = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CourseError(f"{path} is no TOML: {error}") from None
    return Settings(path, said, topics, roster).course(in_canvas(columns, topics))


def write_whole(path: Path, data: str | bytes, mode: int | None = None) -> None:
    """Write a file so that there is the old one or the new one, and never half of one.

    Raises: OSError that names the file.
    """
    # What cannot be encoded fails before there is a file.
    data = data if isinstance(data, bytes) else data.encode()
    # A name that is always the same: one that was left by a killed run is written over.
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        if mode is not None:
            part.chmod(mode)
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from None


def of_disk(error: BaseException) -> bool:
    """Say whether it is the disk that fails: it would fail for everybody's work alike."""
    return isinstance(error, OSError) and error.errno in DISK_ERRORS


def in_any_locale() -> None:
    """Let a program read names of folders as UTF-8 and print them, whatever the terminal is."""
    if sys.getfilesystemencoding() != "utf-8":  # they would be read as other names
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.argv])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")


def run(main: Callable[[], None]) -> None:
    """Run a program of the classroom; what the system refuses it is said in one line."""
    in_any_locale()
    try:
        main()
        sys.stdout.flush()
    except OSError as error:
        # What waits to be printed may be what was refused.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        what = error.filename or "a file or what is printed"
        sys.exit(f"First Token: {what}: {error.strerror}. Mend that and run the same again.")


class Settings:
    """The reading of course.toml: every key is known, every value is checked."""

    def __init__(self, path: Path, said: dict, topics: set[str], roster: dict[str, Student]):
        self.path, self.said, self.topics, self.roster = path, said, topics, roster
        self.zone: tzinfo | None = None

    def course(self, columns: dict[str, str]) -> Course:
        """Return the course that the settings describe."""
        keys = ["time_zone", "late_percent_per_day", "grace_minutes", "max_days_late", "attempts"]
        for key in set(self.said) - {*keys, "due", "extensions", "canvas_columns"}:
            expected = (
                f"one of the keys {', '.join(keys)}, or a table [due], [extensions.STUDENT], "
            )
            raise CourseError(f"{self.path}: {key} is unknown; expected {expected}[canvas_columns]")
        if (name := self.said.get("time_zone")) is not None:
            try:
                self.zone = ZoneInfo(name)
            except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
                raise self.wrong("time_zone", name, 'a name such as "Europe/Vienna"') from None
        due = self.dates("due", self.said.get("due", {}))
        extensions = {}
        for student, given in self.table("extensions", self.said.get("extensions", {})).items():
            key = f"extensions.{student}"
            student = unicodedata.normalize("NFC", student)
            if self.roster and student not in self.roster:
                raise CourseError(f"{self.path}: {key}: no student of roster.csv has this id")
            for topic, until in self.dates(key, given).items():
                if topic not in due or until.timestamp() < due[topic].timestamp():
                    expected = f"a date after [due] {topic}" if topic in due else "a [due] for it"
                    raise self.wrong(f"{key}.{topic}", until.isoformat(), expected)
                extensions[topic, student] = until
        titles = self.table("canvas_columns", self.said.get("canvas_columns", {}))
        for topic, title in titles.items():
            self.known(f"canvas_columns.{topic}", topic)
            if not isinstance(title, str) or not title.strip():
                raise self.wrong(f"canvas_columns.{topic}", title, 'a text as "Homework 4 (10234)"')
        attempts = self.said.get("attempts", "last")
        if attempts not in ("last", "best"):
            raise self.wrong("attempts", attempts, '"last" or "best"')
        return Course(
            time_zone=self.zone,
            due_dates=due,
            extensions=extensions,
            late_percent_per_day=self.number("late_percent_per_day", 100) or 0,
            grace_minutes=self.number("grace_minutes") or 0,
            max_days_late=self.number("max_days_late"),
            attempts=attempts,
            canvas_columns=columns | titles,
            roster=self.roster,
        )

    def wrong(self, key: str, came: object, expected: str) -> CourseError:
        """Return the error that names the key, what came and what was expected."""
        return CourseError(f"{self.path}: {key} is {came!r}; expected {expected}")

    def known(self, key: str, topic: str) -> None:
        if topic not in self.topics:
            raise self.wrong(key, topic, f"an assignment: {', '.join(sorted(self.topics))}")

    def table(self, key: str, value: object) -> dict:
        if not isinstance(value, dict):
            raise self.wrong(key, value, f"a table [{key}]")
        return value

    def number(self, key: str, most: float = math.inf) -> float | None:
        """Return a number from 0 to `most`, None where the key is not there."""
        value = self.said.get(key)
        if value is None:
            return None
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if not fits or not math.isfinite(value) or not 0 <= value <= most:
            expected = "a number, 0 or more" if most == math.inf else f"a number from 0 to {most:g}"
            raise self.wrong(key, value, expected)
        return value

    def dates(self, key: str, given: object) -> dict[str, datetime]:
        """Return the moments in a table of dates by topic."""
        found = {}
        for topic, value in self.table(key, given).items():
            self.known(f"{key}.{topic}", topic)
            found[topic] = self.moment(f"{key}.{topic}", value)
        return found

    def moment(self, key: str, value: object) -> datetime:
        """Return when a day or a time of the day ends; a day ends when the next one begins."""
        if not isinstance(value, date):  # a datetime is a date, too
            raise self.wrong(key, value, "a date such as 2026-12-01T18:00:00, without quotes")
        if not isinstance(value, datetime):
            value = datetime.combine(value + timedelta(days=1), datetime.min.time())
        if value.tzinfo is not None:
            return value
        if self.zone is None:
            raise self.wrong(key, str(value), "a time_zone in course.toml, or +01:00 at its end")
        return in_zone(value, self.zone, max)


def in_zone(local: datetime, zone: tzinfo, choose: Callable = min) -> datetime:
    """Return the moment that a clock on the wall means.

    When clocks are set back it means two; `choose` takes the earlier or the later one.
    """
    return choose(
        (local.replace(tzinfo=zone, fold=fold) for fold in (0, 1)), key=datetime.timestamp
    )


def decoded(data: bytes) -> str:
    """Return the text of a table, as spreadsheets write it.

    Excel marks UTF-8 and UTF-16 by their first bytes. What is not marked and no UTF-8 comes from
    an old "CSV" of Windows in Western Europe; bytes that it leaves undefined are an error.

    >>> [decoded("Zoë".encode(encoding)) for encoding in ("utf-8-sig", "utf-16", "cp1252")]
    ['Zoë', 'Zoë', 'Zoë']
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252")


def lines(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each line that is not empty, with the number of its first line."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    first = 1
    for cells in reader:
        if any(cell.strip() for cell in cells):
            yield first, [clean(cell) for cell in cells]
        first = reader.line_num + 1


def clean(text: str) -> str:
    """Return a cell in one line without what steers a terminal; letters stay as they are.

    >>> clean("  Ada\\n\\x1b[2J Lovelace\\u202e ")
    'Ada [2J Lovelace'
    """
    joiners = "\u200c\u200d"  # they belong to names in Persian and in scripts of India
    kept = (
        c
        for c in " ".join(text.split())
        if c in joiners or unicodedata.category(c) not in ("Cc", "Cf", "Cs")
    )
    return unicodedata.normalize("NFC", "".join(kept)).strip()


def read_table(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Return the head of a table, and its numbered lines by the head's names in lower case."""
    try:
        text = decoded(path.read_bytes())
        text = re.sub(r"\Asep=.\r?\n", "", text)  # Excel's way to name the separator
        first = text.lstrip().partition("\n")[0]
        separator = max(",;\t", key=lambda mark: len(next(csv.reader([first], delimiter=mark), [])))
        found = list(lines(text, separator))
    except UnicodeDecodeError:
        raise CourseError(f"{path} is neither UTF-8, UTF-16 nor Windows-1252 text") from None
    except csv.Error as error:
        raise CourseError(f"{path} is no table: {error}") from None
    if not found:
        raise CourseError(f"{path} is empty")
    head = found[0][1]
    names = [name.casefold() for name in head]
    table = []
    for number, cells in found[1:]:
        if len(cells) > len(head):
            if any(cells[len(head) :]):
                said = f"{len(cells)} cells, but the head has {len(head)}"
                raise CourseError(f"{path}, line {number}: {said}")
            cells = cells[: len(head)]
        cells += [""] * (len(head) - len(cells))
        # Of two columns of one name the first counts.
        table.append((number, dict(reversed(list(zip(names, cells, strict=True))))))
    return head, table


def is_student_id(text: str) -> bool:
    """Return whether a text can be a student's id, and so a folder's name.

    >>> [is_student_id(text) for text in ("ada", "李雷", "ज़ोया.1", "a+b@example.org", "7")]
    [True, True, True, True, True]
    >>> [is_student_id(text) for text in ("", "..", "-a", "a/b", "a b", "=x", "x" * 65)]
    [False, False, False, False, False, False, False]
    """
    kinds = [unicodedata.category(c) for c in text]
    return (
        1 <= len(text) <= 64
        and kinds[0][0] in "LN"
        # Vowel signs and accents are marks of their own in many scripts.
        and all(c in "._@+-" or kind[0] in "LMN" for c, kind in zip(text, kinds, strict=True))
        and len(text.encode()) <= 255  # what a file system takes
    )


def same_id(text: str) -> str:
    """Return what two ids share that some file system takes for one."""
    return unicodedata.normalize("NFKC", text).casefold()


def read_roster(path: Path) -> tuple[dict[str, Student], list[str]]:
    """Return the students of a roster by id, and the names of Canvas's columns of assignments.

    Three forms, told apart by their heads, with , or ; or a tab between the cells:

    - our own: `id,name`, and as far as known `section,email,canvas_id,moodle_id`;
    - Canvas, *Grades → Export*: Student (or LastName, FirstName), ID, SIS User ID, SIS Login ID,
      Section. The id is the login where all have one that can be an id, else the SIS User ID, else
      Canvas's number. Left out: the rows "Points Possible" and "Manual Posting" and the test
      student. Source: instructure/canvas-lms, lib/gradebook_exporter.rb and gradebook_importer.rb;
    - Moodle in English, the list of participants (First name, Last name or Surname) or an
      assignment's grading worksheet (Identifier, Full name), with Username, ID number or Email
      address; the first of these that all have is the id. Source: moodle/moodle,
      user/action_redir.php and mod/assign/gradingtable.php.

    Raises: CourseError for a head of none of these forms, for what is no id and for what two
    students share.
    """
    head, table = read_table(path)
    columns = {name.casefold() for name in head}
    titles = []
    if {"id", "name"} <= columns:
        found = [(number, own(line)) for number, line in table]
    elif {"student", "id", "section"} <= columns or {"lastname", "firstname", "id"} <= columns:
        found = with_ids(
            path,
            [(n, canvas(line)) for n, line in table if not canvas_extra(line)],
            {"SIS Login ID": "login", "SIS User ID": "sis_id", "ID": "canvas_id"},
        )
        titles = [name for name in head if re.search(r" \(\d+\)$", name)]
    elif "full name" in columns or ("first name" in columns and columns & {"last name", "surname"}):
        found = with_ids(
            path,
            [(number, moodle(line)) for number, line in table],
            {"Username": "login", "ID number": "sis_id", "Email address": "email"},
        )
    else:
        raise CourseError(
            f"{path}: the head is {', '.join(head)}; expected id,name,section, or an export in "
            "English of Canvas's gradebook or of Moodle's participants or grading worksheet"
        )
    seen: dict[tuple[str, str], int] = {}
    for number, student in found:
        if not is_student_id(student.id):
            raise CourseError(f"{path}, line {number}: the id is {student.id!r}; {ID_RULE}")
        shared = {"id": same_id(student.id), "canvas_id": student.canvas_id}
        for column, value in (shared | {"moodle_id": student.moodle_id}).items():
            other = seen.setdefault((column, value), number) if value else number
            if other != number:
                raise CourseError(f"{path}, lines {other} and {number}: one {column}, {value!r}")
    return {student.id: student for _, student in found}, titles


def own(line: dict[str, str]) -> Student:
    names = ("id", "name", "section", "email", "canvas_id", "moodle_id")
    return Student(login=line["id"], **{name: line.get(name, "") for name in names})


def canvas(line: dict[str, str]) -> Student:
    """Return the student of a line of Canvas's gradebook, whose id is not chosen yet."""
    both = [line.get("lastname", ""), line.get("firstname", "")]
    name = line.get("student") or ", ".join(filter(None, both))
    # Canvas keeps names that begin with = from being run as a formula.
    name = re.sub(r'\A="(.*)"\Z', r"\1", name)
    return Student(
        id="",
        name=name,
        section=line.get("section", ""),
        login=line.get("sis login id", ""),
        sis_id=line.get("sis user id", ""),
        canvas_id=line["id"],
    )


def canvas_extra(line: dict[str, str]) -> bool:
    """Return whether a line of Canvas's gradebook is no student's.

    The test student's login is a hash: canvas-lms, app/models/course.rb.
    """
    student = canvas(line)
    return (
        "points possible" in student.name.casefold()
        or not (student.name or student.canvas_id or student.login)
        or student.name in ("Student, Test", "Test Student")
        or (not student.sis_id and bool(re.fullmatch("[0-9a-f]{40}", student.login)))
    )


def moodle(line: dict[str, str]) -> Student:
    """Return the student of a line of Moodle's, whose id is not chosen yet."""
    names = [line.get("first name", ""), line.get("last name") or line.get("surname", "")]
    return Student(
        id="",
        name=line.get("full name") or " ".join(filter(None, names)),
        section=line.get("groups") or line.get("group", ""),
        email=line.get("email address") or line.get("email", ""),
        login=line.get("username", ""),
        sis_id=line.get("id number", ""),
        moodle_id=participant(line.get("identifier", "")),
    )


def participant(text: str) -> str:
    """Return the number at the end of Moodle's Identifier, whatever its language.

    >>> participant("Participant 12345"), participant("Teilnehmer/in12345"), participant("")
    ('12345', '12345', '')
    """
    found = re.search(r"[0-9]+\Z", text)
    return found.group() if found else ""


def with_ids(
    path: Path, found: list[tuple[int, Student]], columns: dict[str, str]
) -> list[tuple[int, Student]]:
    """Return the students with the first of the columns as id in which each has one of its own."""
    for place in columns.values():
        ids = [getattr(student, place) for _, student in found]
        if all(map(is_student_id, ids)) and len(set(map(same_id, ids))) == len(ids):
            named = zip(found, ids, strict=True)
            return [(n, replace(student, id=new)) for (n, student), new in named]
    raise CourseError(
        f"{path}: no column tells all students apart. One of {', '.join(columns)} is needed, "
        f"different in each line; {ID_RULE}"
    )


def in_canvas(titles: list[str], topics: set[str]) -> dict[str, str]:
    """Return which of Canvas's columns are those of our topics: the same letters and digits.

    >>> in_canvas(["KV cache (10234)", "Quiz (7)"], {"kv_cache", "paging"})
    {'kv_cache': 'KV cache (10234)'}
    """

    def bare(text: str) -> str:
        return re.sub(r"[\W_]", "", text).casefold()

    ours = {bare(topic): topic for topic in topics}
    pairs = [(ours.get(bare(re.sub(r" \(\d+\)$", "", title))), title) for title in titles]
    return {topic: title for topic, title in pairs if topic}
