"""Collect a class's hand-ins from a download: python classroom/collect.py COURSE FILES

FILES is what Moodle or Canvas gives when all submissions of an assignment are downloaded, a zip or
the folder it was unpacked to, or folders with the names of students' ids. The notebooks go to
COURSE/submitted/STUDENT/TOPIC/TOPIC.ipynb. Who a file is from is told by COURSE/roster.csv, and
never guessed: what belongs to nobody for certain is named, and nothing is written for it.

A changed hand-in replaces the one before if it is not older; the other one is kept in
submitted/STUDENT/TOPIC/earlier/. Nothing of a file's name is ever used as a path.

When somebody handed in is known from Moodle's grading worksheet (--worksheet), with the time zone
of course.toml. The times inside of the zips are those of the download: both systems write them so
(moodle/moodle, files/classes/local/archive_writer/zip_writer.php; instructure/canvas-lms,
lib/content_zipper.rb). --file-times takes them all the same, for files that came another way.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import stat
import sys
import unicodedata
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from course import (
    ROOT,
    Course,
    CourseError,
    Student,
    in_zone,
    moodle,
    of_disk,
    read_course,
    read_table,
    run,
    write_whole,
)

MAX_FILE = 20 * 2**20  # bytes of a notebook
MAX_TOTAL = 4 * 2**30  # bytes of all notebooks
MAX_ENTRIES = 20_000
MAX_RATIO = 200  # text shrinks to a tenth, seldom to a hundredth
MAX_BRACKETS = 1_000_000  # lists and objects in a file: each takes some 90 bytes of memory
ARCHIVES = (".zip", ".7z", ".rar", ".tar", ".gz", ".tgz", ".bz2", ".xz")
NOBODYS = {"__MACOSX", ".ipynb_checkpoints", ".DS_Store", "Thumbs.db", "desktop.ini"}
# Full Name_12345_assignsubmission_file_, a folder, or the beginning of a file's name.
# Source: moodle/moodle, mod/assign/classes/downloader.php.
MOODLE = re.compile(r"(?P<name>[^_]+)_(?P<number>[0-9]+)_assignsubmission_(?P<kind>[a-z]+)(_|\Z)")
# lovelaceada_4711_88_file.ipynb, with LATE_ before the numbers of the student and of the file.
# Source: instructure/canvas-lms, lib/content_zipper.rb.
CANVAS = re.compile(r"(?<!_LATE)(?=_(?P<late>LATE_)?(?P<number>[0-9]+)_[0-9]+_)")


class Left(Exception):
    """A file that is not collected; the message says why and what to do."""


@dataclass
class Entry:
    """A file of the download. `time` is what the zip or the file system says of it."""

    name: str
    time: datetime | None
    read: Callable[[], bytes]


@dataclass
class HandIn:
    """A notebook of a student."""

    entry: Entry
    digest: bytes
    late: bool  # Canvas says so
    sure: bool  # its cells say which topic it is of


@dataclass
class Outcome:
    """What became of a download. Students and topics have the words that `put` returns."""

    collected: dict[tuple[str, str], str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)  # what needs a person, and why
    late: list[str] = field(default_factory=list)  # whom Canvas calls late
    timed: int = 0  # hand-ins of which it is known when
    others: int = 0  # files that are no notebooks


def shown(name: str) -> str:
    """Return a name as a text that a terminal can show."""
    name = "".join(c if c.isprintable() else "�" for c in name)
    return name if len(name) <= 120 else name[:100] + "…"


# --- The files of a download


def in_zip(archive: zipfile.ZipFile, course: Course) -> Iterator[tuple[str, Entry | Left]]:
    """Yield each file of a zip, or why it is left alone."""
    infos = archive.infolist()
    if len(infos) > MAX_ENTRIES:
        raise CourseError(f"the zip has {len(infos)} files, more than {MAX_ENTRIES}")
    names: dict[str, int] = {}
    for info in infos:
        names[entry_name(info)] = names.get(entry_name(info), 0) + 1
    for info in infos:
        if info.is_dir():
            continue
        name = entry_name(info)
        kind = stat.S_IFMT(info.external_attr >> 16)
        try:
            when = in_zone(datetime(*info.date_time), course.time_zone or UTC)
        except (ValueError, OverflowError):
            when = None
        if names[name] > 1:
            yield name, Left("the zip holds several files of this name: unpack it, choose one")
        elif kind not in (0, stat.S_IFREG):
            yield name, Left("is no plain file but a link or a device: ask for the notebook")
        elif info.flag_bits & 1:
            yield name, Left("is encrypted: ask for it without a password")
        elif info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # Others are unpacked without a limit.
            yield name, Left("is packed as no learning system packs: unpack the zip, collect that")
        elif info.file_size > MAX_FILE:
            yield name, Left(f"has {info.file_size} bytes, more than {MAX_FILE}")
        elif info.file_size > max(2**20, MAX_RATIO * info.compress_size):
            yield name, Left("unpacks to more than 200 times its size: no notebook does")
        else:
            yield name, Entry(name, when, lambda info=info: unpacked(archive, info))


def entry_name(info: zipfile.ZipInfo) -> str:
    """Return a file's name in a zip. Canvas writes UTF-8 and does not say so."""
    if info.flag_bits & 0x800:
        return info.orig_filename
    try:
        return info.orig_filename.encode("cp437").decode()
    except UnicodeError:
        return info.orig_filename


def unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Return the bytes of a file in a zip.

    Never more than a limit, whatever size it claims: `archive.read` would unpack all, then look.
    """
    try:
        with archive.open(info) as file:
            return file.read(MAX_FILE + 1)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise Left(f"cannot be unpacked ({error}): download it again") from None


def in_folder(folder: Path, course: Course) -> Iterator[tuple[str, Entry | Left]]:
    """Yield each file of a folder, or why it is left alone. Links are not followed."""
    for place, _, files in os.walk(folder):
        for file in sorted(files):
            path = Path(place, file)
            name = path.relative_to(folder).as_posix()
            status = path.lstat()
            when = datetime.fromtimestamp(status.st_mtime, course.time_zone or UTC)
            if not stat.S_ISREG(status.st_mode):
                yield name, Left("is no plain file but a link or a device: copy the file itself")
            elif status.st_size > MAX_FILE:
                yield name, Left(f"has {status.st_size} bytes, more than {MAX_FILE}")
            else:
                yield name, Entry(name, when, path.read_bytes)


# --- Whose file it is


def name_key(name: str) -> tuple[str, ...]:
    """Return what two writings of a name share: its words in any order, their letters and digits.

    >>> name_key("O'Brien, Zoë") == name_key("ZOË OBRIEN") == name_key("Zoe\\u0308 O’Brien")
    True
    >>> name_key("Ann Lee") == name_key("Anne Lee")
    False

    Moodle leaves out ' and other characters where it makes a file's name.
    """
    words = (letters(word) for word in re.split(r"[\s,_]+", plain(name)))
    return tuple(sorted(filter(None, words)))


def plain(name: str) -> str:
    """Return a name in small letters, each written in one way."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def letters(word: str) -> str:
    return "".join(c for c in word if unicodedata.category(c)[0] in "LMN")


def squeezed(name: str) -> set[str]:
    """Return how Canvas may write a name in a file's: without spaces, the last name first.

    >>> sorted(squeezed("Ada King Lovelace"))
    ['adakinglovelace', 'kinglovelaceada', 'lovelaceadaking']
    """
    words = [letters(word) for word in re.split(r"[\s,_]+", plain(name))]
    return {"".join(words[k:] + words[:k]) for k in range(len(words))} - {""}


class Roster:
    """Who is who: a student by a number of the learning system, or by the exact name."""

    def __init__(self, course: Course, worksheet: "Worksheet | None" = None):
        self.students = course.roster
        self.worksheet = worksheet  # Moodle's participants of this assignment, by number
        self.by_name: dict[tuple[str, ...], list[Student]] = {}
        self.by_squeezed: dict[str, list[Student]] = {}
        for student in course.roster.values():
            if key := name_key(student.name):
                self.by_name.setdefault(key, []).append(student)
            for text in squeezed(student.name):
                self.by_squeezed.setdefault(text, []).append(student)
        self.by_canvas = {s.canvas_id: s for s in self.students.values() if s.canvas_id}
        self.by_moodle = {s.moodle_id: s for s in self.students.values() if s.moodle_id}

    def of(self, entry: str) -> tuple[Student, bool]:
        """Return whose file this is, and whether Canvas calls it late."""
        *folders, file = PurePosixPath(entry).parts
        for part in (*folders, file):
            if found := MOODLE.match(part):
                if found["kind"] != "file":
                    raise Left("is a text, not a file: ask for the notebook")
                return self.in_moodle(found["name"], found["number"]), False
            if part != file and (name := unicodedata.normalize("NFC", part)) in self.students:
                return self.students[name], False
        return self.in_canvas(file)

    def in_moodle(self, name: str, number: str) -> Student:
        """Return the student of Moodle's name and number.

        The number is new in each assignment, and a team's is of another kind and may be the same
        as a student's. So the name must agree.
        """
        named = self.by_name.get(name_key(name), [])
        if self.worksheet is not None:
            if number not in self.worksheet:
                raise Left(f"Participant {number} is not in the worksheet: take this assignment's")
            known, called = self.worksheet[number]
            if known is None:
                raise Left(f"{shown(called)} of the worksheet is not in roster.csv: add a line")
            agree = name_key(name) == name_key(called)
        else:
            known = self.by_moodle.get(number)
            agree = known in named
        if known is None:
            return only(named, shown(name))
        if not agree:
            who = f"{known.name} ({known.id})"
            raise Left(f"Participant {number} is {who}, but the name is {shown(name)}: correct one")
        return known

    def in_canvas(self, file: str) -> tuple[Student, bool]:
        """Return the student of Canvas's name and number.

        Students choose names, of files and their own, that may have numbers in them. Where the
        numbers can be read in several ways, that one counts whose name agrees.
        """
        if re.match(r"(LATE_)?anon_", file):
            raise Left("is anonymous: show the names in Canvas and download again")
        ways = [way for way in CANVAS.finditer(file) if way.start()]
        agreed, numbered = [], []
        for way in ways:
            late = bool(way["late"])
            named = self.by_squeezed.get(letters(plain(file[: way.start()])), [])
            if student := self.by_canvas.get(way["number"]):
                numbered.append((student, late))
                agreed += [(student, late)] if student in named else []
            else:  # who has another number is somebody else of this name
                agreed += [(other, late) for other in named if not other.canvas_id]
        for choice in (agreed, numbered if len(ways) == 1 else []):
            who = sorted({student.id for student, _ in choice})
            if len(who) == 1:
                return choice[0]
            if who:
                raise Left(f"may be of {' or '.join(who)}: put it into a folder named by the id")
        if not ways:
            raise Left("its name tells no student: put it into a folder named by the id")
        raise Left("no student of roster.csv has this number or name: add a line, or its canvas_id")


def only(found: list[Student], name: str) -> Student:
    """Return the only student of a name."""
    if not found:
        raise Left(f"no student of roster.csv is called {name}: correct the name there, or add one")
    if len(found) > 1:
        ids = ", ".join(student.id for student in found)
        raise Left(
            f"{ids} are all called {name}: give Moodle's worksheet, or canvas_id in the roster"
        )
    return found[0]


# Participants by number: the student of the roster, if there is one, and Moodle's name.
Worksheet = dict[str, tuple[Student | None, str]]


def read_worksheet(path: Path, course: Course) -> tuple[Worksheet, dict[str, datetime]]:
    """Return Moodle's participants, and when each student handed in, from a grading worksheet.

    A participant is the student of the roster with the same username, ID number or email address,
    else with the same name.
    """
    head, table = read_table(path)
    column = "last modified (submission)"
    if not {"identifier", "full name", column} <= {name.casefold() for name in head}:
        raise CourseError(
            f"{path}: the head is {', '.join(head)}; expected Moodle's grading worksheet in "
            "English, with Identifier, Full name and Last modified (submission)"
        )
    names = Roster(course).by_name
    participants: Worksheet = {}
    times = {}
    for number, line in table:
        theirs = moodle(line)
        marks = {text.casefold() for text in (theirs.login, theirs.sis_id, theirs.email)} - {""}
        same = [
            student
            for student in course.roster.values()
            if marks & {t.casefold() for t in (student.id, student.sis_id, student.email)}
        ] or names.get(name_key(theirs.name), [])
        known = same[0] if len(same) == 1 else None
        participants[theirs.moodle_id] = (known, theirs.name)
        if known is None or line[column] in ("", "-"):
            continue
        when = moodle_time(line[column])
        if when is None:
            raise CourseError(
                f"{path}, line {number}: the time is {line[column]!r}; expected as Moodle writes "
                "it in English, Wednesday, 10 June 2026, 2:14 PM"
            )
        if course.time_zone is None:
            raise CourseError("the worksheet's times need a time_zone in course.toml")
        times[known.id] = in_zone(when, course.time_zone)
    return participants, times


MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september"),
    *("october", "november", "december"),
)


def moodle_time(text: str) -> datetime | None:
    """Return a time of Moodle's, as a clock on the wall shows it; None for what is none.

    >>> print(moodle_time("Wednesday, 10 June 2026, 2:14 PM"))
    2026-06-10 14:14:00
    >>> print(moodle_time("Wednesday, September 23, 2020, 12:05 AM"))
    2020-09-23 00:05:00
    >>> print(moodle_time("Thursday, 5 March 2015, 23:30"), moodle_time("gestern"))
    2015-03-05 23:30:00 None
    """
    found = re.fullmatch(
        r"(?:[a-z]+, )?(?:(?P<day>\d+) (?P<month>[a-z]+)|(?P<month2>[a-z]+) (?P<day2>\d+)),? "
        r"(?P<year>\d{4}), (?P<hour>\d+):(?P<minute>\d\d)(?: ?(?P<half>[ap])m)?",
        " ".join(unicodedata.normalize("NFKC", text).casefold().split()),
    )
    month = found and (found["month"] or found["month2"])
    if not found or month not in MONTHS:
        return None
    hour = int(found["hour"])
    if found["half"]:
        hour = hour % 12 + (12 if found["half"] == "p" else 0)
    try:
        day = int(found["day"] or found["day2"])
        return datetime(
            int(found["year"]), MONTHS.index(month) + 1, day, hour, int(found["minute"])
        )
    except ValueError:
        return None


# --- Which topic it is of


def grade_ids(data: bytes) -> set[str]:
    """Return the names of a notebook's cells that have one; none for what is no notebook."""
    if data.count(b"[") + data.count(b"{") > MAX_BRACKETS:
        return set()
    try:
        marks = [cell["metadata"].get("nbgrader") for cell in json.loads(data)["cells"]]
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return set()
    ids = [mark.get("grade_id") for mark in marks if isinstance(mark, dict)]
    return {name for name in ids if isinstance(name, str)}


def assignments(course: Path) -> dict[str, set[str]]:
    """Return the names of the cells of each topic's assignment; the course's own come first."""
    found = {}
    for place in (ROOT / "assignments", course / "source"):
        for path in place.glob("*/*.ipynb"):
            if path.stem == path.parent.name:
                found[path.stem] = grade_ids(path.read_bytes())
    return found


def topic_of(data: bytes, known: dict[str, set[str]]) -> str | None:
    """Return the topic with which a notebook shares most cells, None where none is the first."""
    ids = grade_ids(data)
    ranks = sorted(((len(ids & ours), topic) for topic, ours in known.items()), reverse=True)
    if not ranks or not ranks[0][0] or (len(ranks) > 1 and ranks[0][0] == ranks[1][0]):
        return None
    return ranks[0][1]


# --- Collecting


def collect(
    course_folder: Path,
    files: Path,
    topic: str | None = None,
    worksheet: Path | None = None,
    file_times: bool = False,
) -> Outcome:
    """Collect the hand-ins of a download into the course.

    Raises: CourseError where nothing at all can be collected.
    """
    course = read_course(course_folder)
    known = assignments(course_folder)
    if not course.roster:
        raise CourseError(f"there is no {course_folder / 'roster.csv'}: it says who is who")
    if topic is not None and topic not in known:
        raise CourseError(f"topic is {topic!r}; expected one of {', '.join(sorted(known))}")
    if worksheet is not None and topic is None:
        raise CourseError("a worksheet is of one assignment: name its topic")
    participants, times = read_worksheet(worksheet, course) if worksheet is not None else (None, {})
    outcome = Outcome()
    roster = Roster(course, participants)
    with contextlib.ExitStack() as stack:
        if files.is_dir():
            entries = in_folder(files, course)
        else:
            try:
                archive = stack.enter_context(zipfile.ZipFile(files))
            except (zipfile.BadZipFile, OSError, ValueError) as error:
                raise CourseError(f"{files} is neither a folder nor a zip: {error}") from None
            entries = in_zip(archive, course)
        for (student, which), found in sorted_out(entries, roster, known, topic, outcome).items():
            try:
                chosen = one_of(student, which, found)
                handed_in = times.get(student)
                if handed_in is None and file_times:
                    handed_in = chosen.entry.time
                folder = course_folder / "submitted" / student / which
                said = put(folder, which, chosen.entry.read(), handed_in, chosen.entry.time)
            except (Left, OSError) as why:
                if of_disk(why):
                    raise
                outcome.left.append(f"{student}, {which}: {why}")
                continue
            outcome.collected[student, which] = said
            outcome.timed += handed_in is not None
            outcome.late += [student] if chosen.late and handed_in is None else []
    return outcome


def sorted_out(
    entries: Iterator[tuple[str, Entry | Left]],
    roster: Roster,
    known: dict[str, set[str]],
    topic: str | None,
    outcome: Outcome,
) -> dict[tuple[str, str], list[HandIn]]:
    """Return the notebooks by student and topic; what is left is told to the outcome."""
    found: dict[tuple[str, str], list[HandIn]] = {}
    total = 0
    for name, entry in entries:
        path = PurePosixPath(name)
        if NOBODYS & set(path.parts) or path.name.startswith("._"):
            continue
        try:
            if isinstance(entry, Left):
                raise entry
            if path.is_absolute() or ".." in path.parts or re.search(r"[\\\0]|\A[a-zA-Z]:", name):
                raise Left("its name leads out of the download: ask for it anew")
            if path.suffix.casefold() in ARCHIVES:
                raise Left("is an archive: unpack it into a folder named by the student's id")
            if path.suffix.casefold() != ".ipynb":
                outcome.others += 1
                continue
            student, late = roster.of(name)
            data = entry.read()
            total += len(data)
            if total > MAX_TOTAL:
                raise CourseError(
                    f"the files have more than {MAX_TOTAL} bytes: nothing was written"
                )
            told = topic_of(data, known)
            if topic is not None and told not in (None, topic):
                raise Left(f"is the notebook of {told}, not of {topic}")
            if (which := topic or told) is None:
                raise Left("its cells tell no topic: name it, TOPIC=kv_cache")
            work = HandIn(entry, hashlib.sha256(data).digest(), late, told is not None)
            found.setdefault((student.id, which), []).append(work)
        except Left as why:
            outcome.left.append(f"{shown(name)}: {why}")
    return found


def one_of(student: str, topic: str, found: list[HandIn]) -> HandIn:
    """Return the only notebook of a student for a topic; others must not look like one of it."""
    fitting = [work for work in found if work.sure] or found
    if len({work.digest for work in fitting}) > 1:
        names = ", ".join(shown(work.entry.name) for work in fitting)
        raise Left(f"handed in {names}: put the right one into a folder named {student}")
    return fitting[0]


def put(
    folder: Path, topic: str, data: bytes, handed_in: datetime | None, file_time: datetime | None
) -> str:
    """Put a notebook into its folder, and say what that was: new, changed, unchanged or older.

    The newer one stands as TOPIC.ipynb; the other goes to earlier/. Which is newer is told by the
    times of the hand-ins where both are known, else by the files' own. Whatever ends this program,
    nothing is lost, and no notebook stands beside the time of another one.
    """
    path, stamp = folder / f"{topic}.ipynb", folder / "timestamp.txt"
    for part in (folder.parents[1], folder.parent, folder, path, stamp, folder / "earlier"):
        if part.is_symlink():
            raise Left(f"{part} is a symbolic link: remove it")
    folder.mkdir(parents=True, exist_ok=True)
    there = path.read_bytes() if path.exists() else None
    before = read_stamp(stamp)
    said = "new"
    if there == data:
        said = "unchanged"
        # What was handed in once more was there all the time.
        handed_in = min(filter(None, (handed_in, before)), default=None)
    elif there is not None:
        if handed_in and before:
            older = handed_in < before
        else:
            older = file_time is not None and file_time.timestamp() < path.stat().st_mtime
        if older:
            put_away(folder / "earlier", data, stamped(handed_in) if handed_in else None)
            return "older"
        said = "changed"
        put_away(folder / "earlier", there, stamp.read_bytes() if stamp.exists() else None)
    if said != "unchanged":
        stamp.unlink(missing_ok=True)
        write_whole(path, data)
        if file_time is not None:
            os.utime(path, (file_time.timestamp(),) * 2)
    if handed_in is not None and handed_in != read_stamp(stamp):
        write_whole(stamp, stamped(handed_in))
    return said


def stamped(handed_in: datetime) -> bytes:
    """Return what nbgrader has in a timestamp.txt."""
    return handed_in.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f UTC").encode()


def read_stamp(path: Path) -> datetime | None:
    """Return the time in a timestamp.txt of ours, None for another one or none."""
    try:
        text = path.read_text(encoding="utf-8").strip()
        return datetime.strptime(text, "%Y-%m-%d %H:%M:%S.%f UTC").replace(tzinfo=UTC)
    except (OSError, ValueError):
        return None


def put_away(folder: Path, data: bytes, stamp: bytes | None) -> None:
    """Keep a notebook that does not count as the next number, unless it is kept already."""
    folder.mkdir(exist_ok=True)
    kept = {int(path.stem): path for path in folder.glob("*.ipynb") if path.stem.isdecimal()}
    if any(path.read_bytes() == data for path in kept.values()):
        return
    number = max(kept, default=0) + 1
    if stamp is not None:
        write_whole(folder / f"{number}.txt", stamp)
    write_whole(folder / f"{number}.ipynb", data)


def main() -> None:
    """Collect what the command line names, and say what became of it."""
    parser = argparse.ArgumentParser(description="Collect hand-ins from a download.")
    parser.add_argument("course", type=Path, help="the folder of the course, with roster.csv")
    parser.add_argument("files", type=Path, help="a zip or a folder from Moodle or Canvas")
    parser.add_argument("--topic", help="of which assignment; else the notebooks' cells tell it")
    parser.add_argument("--worksheet", type=Path, help="Moodle's, for the times of the hand-ins")
    parser.add_argument("--file-times", action="store_true", help="the files' times are hand-ins'")
    given = parser.parse_args()
    try:
        outcome = collect(given.course, given.files, given.topic, given.worksheet, given.file_times)
        students = read_course(given.course).roster
    except CourseError as error:
        sys.exit(f"First Token: {error}")
    for topic in sorted({topic for _, topic in outcome.collected} | ({given.topic} - {None})):
        found = {who: said for (who, which), said in outcome.collected.items() if which == topic}
        count = Counter(found.values())
        words = ", ".join(f"{count[said]} {said}" for said in sorted(count)) or "nothing"
        print(f"{topic}: {words}; {len(students) - len(found)} of the roster have none here.")
    if older := sorted(who for (who, _), said in outcome.collected.items() if said == "older"):
        print(f"Older than what was there, and kept in earlier/ beside it: {', '.join(older)}.")
    if untimed := len(outcome.collected) - outcome.timed:
        print(f"Of {untimed} it is not known when they were handed in; they count as in time.")
    if outcome.late:
        print(f"Canvas calls late, and does not say when: {', '.join(sorted(outcome.late))}.")
    if outcome.others:
        print(f"No notebooks, and left alone: {outcome.others} of the files.")
    if outcome.left:
        print(f"Not collected, {len(outcome.left)}:", file=sys.stderr)
        print(*(f"  {line}" for line in outcome.left), sep="\n", file=sys.stderr)


if __name__ == "__main__":
    run(main)
