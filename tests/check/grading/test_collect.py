"""make collect: each hand-in comes to its student or is named; no download does harm."""

import csv
import doctest
import io
import json
import os
import re
import stat
import unicodedata
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import collect as module
import pytest
from collect import collect, moodle_time, put, topic_of
from course import CourseError, clean, read_course
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[3]
TOPIC = "kv_cache"
ROSTER = "id,name,canvas_id\nada,Ada Lovelace,4711\nli,李 雷,4712\nbob,Bob O'Brien,4713\n"


def notebook(text: str = "", topic: str = TOPIC) -> bytes:
    cells = json.loads((ROOT / "assignments" / topic / f"{topic}.ipynb").read_bytes())["cells"]
    own = {"cell_type": "markdown", "metadata": {}, "source": text}
    return json.dumps({"cells": [*cells, own], "nbformat": 4, "nbformat_minor": 5}).encode()


def zipped(path: Path, files: dict[str, bytes], when=(2026, 12, 1, 12, 0, 0)) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, when), data, zipfile.ZIP_DEFLATED)
    return path


def new_course(folder: Path, roster: str = ROSTER) -> Path:
    (folder / "roster.csv").write_text(roster, encoding="utf-8")
    (folder / "course.toml").write_text('time_zone = "Europe/Vienna"\n', encoding="utf-8")
    return folder


def standing(course: Path, student: str) -> bytes | None:
    path = course / "submitted" / student / TOPIC / f"{TOPIC}.ipynb"
    return path.read_bytes() if path.exists() else None


def everything(course: Path) -> dict[str, bytes]:
    files = [path for path in (course / "submitted").rglob("*") if path.is_file()]
    return {path.relative_to(course).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def place(tmp_path):
    (tmp_path / "course").mkdir()
    return new_course(tmp_path / "course"), tmp_path


def test_doctests():
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


# What the learning systems write.
CANVAS_FILES = {
    "lovelaceada_4711_90001_kv_cache.ipynb": "ada",
    "雷李_LATE_4712_90002_kv_cache-1.ipynb": "li",
    "obrienbob_4713_90003_data_2024_12_01.ipynb": "bob",
}
MOODLE_FOLDERS = {
    "Ada Lovelace_31001_assignsubmission_file_/kv_cache.ipynb": "ada",
    "雷 李_31002_assignsubmission_file/sub/kv cache (1).ipynb": "li",
    "Bob OBrien_31003_assignsubmission_file_/kv_cache.ipynb": "bob",
}
MOODLE_FLAT = {
    "Ada Lovelace_31001_assignsubmission_file_kv_cache.ipynb": "ada",
    "李 雷_31002_assignsubmission_file_my_own_1_2_name.ipynb": "li",
    "Bob OBrien_31003_assignsubmission_file_Ada Lovelace_31001_assignsubmission_file_.ipynb": "bob",
}
BY_ID = {"ada/x.ipynb": "ada", "hw4/li/y.ipynb": "li", "bob/kv_cache/kv_cache.ipynb": "bob"}


@pytest.mark.parametrize("files", [CANVAS_FILES, MOODLE_FOLDERS, MOODLE_FLAT, BY_ID])
@pytest.mark.parametrize("form", ["zip", "folder, decomposed names"])
def test_a_download_comes_to_its_students(place, files, form):
    course, folder = place
    works = {name: notebook(student) for name, student in files.items()}
    noise = {"__MACOSX/ada/._kv_cache.ipynb": b"", "ada/.ipynb_checkpoints/x.ipynb": b"{}"}
    download = zipped(folder / "x.zip", works | noise | {"Ada_1_assignsubmission_file_/a.png": b""})
    if form != "zip":
        with zipfile.ZipFile(download) as archive:
            archive.extractall(folder / "x")
        download = folder / "x"
        # As macOS once kept them.
        for path in sorted(download.rglob("*"), reverse=True):
            path.rename(path.with_name(unicodedata.normalize("NFD", path.name)))
    outcome = collect(course, download, None)
    assert outcome.left == [] and outcome.others == 1
    assert outcome.collected == {(student, TOPIC): "new" for student in files.values()}
    for name, student in files.items():
        assert standing(course, student) == works[name]
    assert not list(course.rglob("timestamp.txt"))  # the zips hold the times of the download
    assert outcome.late == (["li"] if files is CANVAS_FILES else [])


def test_names_that_canvas_does_not_mark_as_utf_8(place):
    course, folder = place
    name = "雷李_4712_1_x.ipynb"
    plain = "?" * len(name.encode())
    data = zipped(folder / "x.zip", {plain: notebook()}).read_bytes()
    (folder / "x.zip").write_bytes(data.replace(plain.encode(), name.encode()))
    assert list(collect(course, folder / "x.zip").collected) == [("li", TOPIC)]


def test_the_topic_is_told_by_the_cells(place):
    course, folder = place
    works = {f"ada/{topic}.ipynb": notebook(topic=topic) for topic in ("paging", "roofline")}
    broken = {"li/kv_cache.ipynb": b"{}"}
    outcome = collect(course, zipped(folder / "x.zip", works | broken))
    assert set(outcome.collected) == {("ada", "paging"), ("ada", "roofline")}
    assert outcome.left == ["li/kv_cache.ipynb: its cells tell no topic: name it, TOPIC=kv_cache"]
    # With a topic what is broken is collected, so that grading can say so; another topic is not.
    outcome = collect(course, folder / "x.zip", "roofline")
    assert outcome.collected == {("ada", "roofline"): "unchanged", ("li", "roofline"): "new"}
    assert "ada/paging.ipynb: is the notebook of paging, not of roofline" in outcome.left


@pytest.mark.parametrize("topic", sorted(path.name for path in (ROOT / "assignments").iterdir()))
def test_each_assignment_is_told_from_all_others(topic, tmp_path):
    known = module.assignments(tmp_path)
    assert topic_of(notebook(topic=topic), known) == topic


WORKSHEET = """\
Identifier,"Full name","Email address",Status,Grade,"Maximum Grade","Grade can be changed",\
"Last modified (submission)","Last modified (grade)"
"Participant 31001","Ada Lovelace",ada@example.org,"Submitted for grading - ",,100.00,Yes,\
"Sunday, 25 October 2026, 1:59 AM",-
"Participant 31002","李 雷",li@example.org,"No submission - ",,100.00,Yes,-,-
"Participant 31003","Bob O'Brien",bob@example.org,"Submitted for grading - ",,100.00,Yes,\
"Tuesday, December 1, 2026, 12:30 PM",-
"""


def test_moodles_worksheet_tells_when(place):
    course, folder = place
    (folder / "grades.csv").write_text(WORKSHEET, encoding="utf-8-sig")
    works = {name: notebook(student) for name, student in MOODLE_FOLDERS.items()}
    outcome = collect(course, zipped(folder / "x.zip", works), TOPIC, folder / "grades.csv")
    assert outcome.left == [] and outcome.timed == 2
    stamp = course / "submitted" / "ada" / TOPIC / "timestamp.txt"
    assert stamp.read_text() == "2026-10-24 23:59:00.000000 UTC"
    assert not (stamp.parents[2] / "li" / TOPIC / stamp.name).exists()


@given(st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1)), st.integers(0, 2))
def test_every_way_in_which_moodle_writes_a_time(when, form):
    forms = ["%A, %d %B %Y, %I:%M %p", "%A, %B %d, %Y, %I:%M %p", "%A, %d %B %Y, %H:%M"]
    assert moodle_time(when.strftime(forms[form])) == when.replace(second=0, microsecond=0)


def test_file_times_count_only_when_asked_for(place):
    course, folder = place
    zipped(folder / "x.zip", {"ada/x.ipynb": notebook()}, (2026, 12, 1, 18, 0, 0))
    assert collect(course, folder / "x.zip").timed == 0
    assert collect(course, folder / "x.zip", file_times=True).timed == 1
    stamp = course / "submitted" / "ada" / TOPIC / "timestamp.txt"
    assert stamp.read_text().startswith("2026-12-01 17:00:00")


def test_a_worksheet_with_a_time_that_cannot_be_read(place):
    course, folder = place
    text = WORKSHEET.replace('"Sunday, 25 October 2026, 1:59 AM"', "gestern")
    (folder / "grades.csv").write_text(text, encoding="utf-8")
    zipped(folder / "x.zip", {"ada/x.ipynb": notebook()})
    with pytest.raises(CourseError, match="line 2: the time is 'gestern'; expected"):
        collect(course, folder / "x.zip", TOPIC, folder / "grades.csv")


NAMESAKES = (
    "id,name,canvas_id,moodle_id\nwei1,Li Wei,1,\nwei2,Wei Li,2,\nann,Ann Lee,,31001\nx,,,\n"
    "eve,x_99,5,\nmax,Max Roe,99,\n"
)


@pytest.mark.parametrize(
    ("name", "student", "said"),
    [
        ("Li Wei_7_assignsubmission_file_x.ipynb", None, "wei1, wei2 are all called Li Wei"),
        ("Lee Ann_7_assignsubmission_file_x.ipynb", "ann", ""),  # a number is of one assignment
        ("Max Roe_31001_assignsubmission_file_x.ipynb", None, "31001 is Ann Lee (ann), but the"),
        ("Lee Ann_7_assignsubmission_onlinetext_x.ipynb", None, "is a text, not a file"),
        ("liwei_2_8_x.ipynb", "wei2", ""),
        ("liwei_3_8_x.ipynb", None, "no student of roster.csv has this number or name"),
        ("leeann_3_8_x.ipynb", "ann", ""),  # of her no number is known
        ("anything_LATE_99_8_x.ipynb", "max", ""),
        ("x_99_5_8_x.ipynb", "eve", ""),  # not Max, though his number stands there first
        ("zoe_99_6_8_x.ipynb", None, "no student of roster.csv has"),  # hers may be 6
        ("LATE_anon_aB3x9_8_x.ipynb", None, "is anonymous"),
        ("kv_cache.ipynb", None, "its name tells no student"),
        ("wei1/x.zip", None, "is an archive"),
    ],
)
def test_nobody_gets_the_work_of_somebody_else(tmp_path, name, student, said):
    (tmp_path / "course").mkdir()
    course = new_course(tmp_path / "course", NAMESAKES)
    outcome = collect(course, zipped(tmp_path / "x.zip", {name: notebook()}))
    if student:
        assert list(outcome.collected) == [(student, TOPIC)] and not outcome.left
    else:
        assert not outcome.collected and not (course / "submitted").exists()
        assert len(outcome.left) == 1 and said in outcome.left[0]
        assert outcome.left[0].startswith(name)


def test_a_name_that_ends_like_anothers_number_is_left(tmp_path):
    (tmp_path / "course").mkdir()
    roster = "id,name,canvas_id\nmax,Max Roe,99\neve,Max Roe_99,5\n"
    course = new_course(tmp_path / "course", roster)
    outcome = collect(course, zipped(tmp_path / "x.zip", {"maxroe_99_5_8_x.ipynb": notebook()}))
    assert not outcome.collected and "may be of eve or max" in outcome.left[0]


def test_two_notebooks_of_one_topic_are_left_and_copies_are_one(place):
    course, folder = place
    works = {"ada/a.ipynb": notebook("1"), "ada/b.ipynb": notebook("2"), "ada/c.ipynb": b"{}"}
    works |= {"li/a.ipynb": notebook("1"), "li/b.ipynb": notebook("1"), "li/c.ipynb": b"{}"}
    outcome = collect(course, zipped(folder / "x.zip", works), TOPIC)
    assert outcome.collected == {("li", TOPIC): "new"}
    assert outcome.left[0].startswith("ada, kv_cache: handed in ada/a.ipynb, ada/b.ipynb: put the")


def canvas_name(name: str, late: bool, user: int, file: int) -> str:
    """Return the name that Canvas gives a file: lib/content_zipper.rb, in Python."""
    name = re.sub(r"_([0-9]+)_", r"\1", name).lower()
    prefix = "_".join([name, *(["LATE"] if late else []), str(user)])
    kinds = re.compile("Nd|Pc|L.|M.")
    kept = "".join(c for c in prefix if kinds.match(unicodedata.category(c)))
    return f"{kept}_{file}_kv_cache.ipynb"


def moodle_name(name: str, number: int) -> str:
    """Return the folder that Moodle gives a student: clean_filename of the name, in Python."""
    kept = re.sub(r"[\x00-\x1f\x7f&<>\"`|':\\/]|\.\.+", "", name.replace("_", " "))
    return f"{kept}_{number}_assignsubmission_file_"


names = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), max_size=9)
people = st.lists(st.tuples(names, st.booleans()), min_size=1, max_size=5)
EACH = settings(max_examples=40)


@EACH
@given(people)
def test_a_class_of_canvas_comes_back_whole(tmp_path_factory, people):
    """Only of a name with numbers like Canvas's own a hand-in may be left, never misplaced."""
    folder = tmp_path_factory.mktemp("course")
    table = io.StringIO()
    head = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "KV cache (77)"]
    # Names as Canvas stores them, and none that a spreadsheet would compute.
    people = [(f"L{name}, Å", late) for name, late in people]
    lines = [[name, 10 + k, f"S{k}", f"user{k}", "A", ""] for k, (name, _) in enumerate(people)]
    csv.writer(table).writerows([head, ["    Points Possible", "", "", "", "", "100.00"], *lines])
    new_course(folder, table.getvalue())
    works = {
        canvas_name(name, late, 10 + k, 900 + k): notebook(f"user{k}")
        for k, (name, late) in enumerate(people)
    }
    outcome = collect(folder, zipped(folder / "x.zip", works))
    for student, _ in outcome.collected:
        assert standing(folder, student) == notebook(student)
    odd = sum(bool(re.search(r"_\d", name)) for name, _ in people)
    assert len(outcome.collected) + len(outcome.left) == len(people)
    assert len(outcome.left) <= odd


@EACH
@given(people, st.booleans())
def test_a_class_of_moodle_comes_back_whole(tmp_path_factory, people, flat):
    folder = tmp_path_factory.mktemp("course")
    table = io.StringIO()
    names = [f"Å {name}L" for name, _ in people]
    lines = [
        [f"Participant {700 + k}", name, f"u{k}@example.org", "Tuesday, 1 December 2026, 23:05"]
        for k, name in enumerate(names)
    ]
    head = ["Identifier", "Full name", "Email address", "Last modified (submission)"]
    csv.writer(table).writerows([head, *lines])
    new_course(folder, table.getvalue())
    works = {
        moodle_name(name, 700 + k) + ("" if flat else "/") + "x.ipynb": notebook(
            f"u{k}@example.org"
        )
        for k, name in enumerate(names)
    }
    outcome = collect(folder, zipped(folder / "x.zip", works), TOPIC, folder / "roster.csv")
    assert outcome.left == [] and outcome.timed == len(people)
    for k in range(len(people)):
        assert standing(folder, f"u{k}@example.org") == notebook(f"u{k}@example.org")
    course = read_course(folder)
    assert [s.name for s in course.roster.values()] == [clean(name) for name in names]


hand_ins = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=7)


@EACH
@given(hand_ins, st.booleans())
def test_nothing_handed_in_is_lost_and_the_newest_stands(tmp_path_factory, hand_ins, timed):
    """Whatever order downloads are collected in, and however often."""
    folder = tmp_path_factory.mktemp("course") / "submitted" / "ada" / TOPIC
    for work, hour in hand_ins:
        when = datetime(2026, 12, 1, hour, tzinfo=UTC)
        said = put(folder, TOPIC, b"%d" % work, when if timed else None, when)
    works = [path.read_bytes() for path in folder.rglob("*.ipynb")]
    assert {b"%d" % work for work, _ in hand_ins} == set(works)
    newest = max(hour for _, hour in hand_ins)
    stands = int((folder / f"{TOPIC}.ipynb").read_bytes())
    if timed and len({work for work, _ in hand_ins}) == len(hand_ins):
        assert (stands, newest) in hand_ins
        assert module.read_stamp(folder / "timestamp.txt").hour == newest
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    put(folder, TOPIC, b"%d" % stands, None, None)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert said in ("new", "changed", "unchanged", "older")


def test_the_time_goes_with_its_notebook(place):
    folder = place[0] / "submitted" / "ada" / TOPIC
    put(folder, TOPIC, b"1", datetime(2026, 12, 1, tzinfo=UTC), None)
    put(folder, TOPIC, b"2", None, None)
    assert (folder / "earlier" / "1.txt").read_text().startswith("2026-12-01 00:00")
    assert not (folder / "timestamp.txt").exists()  # it was of the other one
    put(folder, TOPIC, b"2", datetime(2026, 12, 3, tzinfo=UTC), None)
    put(folder, TOPIC, b"2", datetime(2026, 12, 4, tzinfo=UTC), None)  # the same once more
    assert (folder / "timestamp.txt").read_text().startswith("2026-12-03")


def test_what_is_killed_halfway_is_whole_after_the_next_run(place, monkeypatch):
    course, folder = place
    collect(course, zipped(folder / "1.zip", {"ada/x.ipynb": notebook("1")}))
    zipped(folder / "2.zip", {"ada/x.ipynb": notebook("2")})
    whole = module.write_whole
    for calls in range(2):
        left = [None] * calls

        def dies(path, data, left=left):
            if not left:
                raise KeyboardInterrupt
            left.pop()
            whole(path, data)

        monkeypatch.setattr(module, "write_whole", dies)
        with pytest.raises(KeyboardInterrupt):
            collect(course, folder / "2.zip")
        assert standing(course, "ada") == notebook("1")
    monkeypatch.setattr(module, "write_whole", whole)
    collect(course, folder / "2.zip")
    assert sorted(everything(course).values()) == sorted([notebook("1"), notebook("2")])


def patched(path: Path, old: bytes, new: bytes, count: int) -> Path:
    data = path.read_bytes()
    assert data.count(old) == count
    path.write_bytes(data.replace(old, new))
    return path


OUTSIDE = ["../ada/x.ipynb", "/ada/x.ipynb", "ada\\..\\x.ipynb", "C:/ada/x.ipynb", "ada/../x.ipynb"]


def test_a_hostile_zip_does_no_harm_and_the_others_go_on(place):
    course, folder = place
    good = notebook("good")
    with zipfile.ZipFile(folder / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in OUTSIDE:
            archive.writestr(zipfile.ZipInfo(name), good)
        link = zipfile.ZipInfo("ada/link.ipynb")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("ada/bomb.ipynb", b"\0" * (5 * 2**20))
        archive.writestr("ada/large.ipynb", os.urandom(2**10) * (21 * 2**10))
        archive.writestr("ada/packed.ipynb", good, zipfile.ZIP_BZIP2)
        archive.writestr("ada/deep.ipynb", b"[" * 10**5)
        archive.writestr("ada/" + "x" * 10**4 + ".ipynb", b"{}")
        archive.writestr("ada/\x1b[2J\n.ipynb", b"{}")
        archive.writestr("ada/broken.ipynb", b"BROKEN" * 50, zipfile.ZIP_STORED)
        archive.writestr("li/x.ipynb", good)
        archive.writestr("bob/x.ipynb", good)
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("bob/x.ipynb", notebook("other"))
    patched(folder / "x.zip", b"BROKEN" * 50, b"NEKORB" * 50, 1)
    outcome = collect(course, folder / "x.zip")
    assert list(everything(course)) == [f"submitted/li/{TOPIC}/{TOPIC}.ipynb"]
    said = "\n".join(outcome.left)
    reasons = dict.fromkeys(OUTSIDE, "leads out") | {
        "ada/link.ipynb": "is no plain file",
        "ada/bomb.ipynb": "more than 200 times",
        "ada/large.ipynb": "bytes, more than",
        "ada/packed.ipynb": "is packed as no learning system",
        "ada/broken.ipynb": "cannot be unpacked",
        "ada/�[2J�.ipynb": "tell no topic",
        "bob/x.ipynb": "several files of this name",
    }
    for name, reason in reasons.items():
        assert re.search(f"^{re.escape(name)}: .*{reason}", said, re.M), name
    assert all(len(line) < 300 and line.isprintable() for line in outcome.left)
    assert len(outcome.left) == 15
    assert sorted(path.name for path in folder.iterdir()) == ["course", "x.zip"]


def test_an_encrypted_file_and_a_size_that_lies(place):
    course, folder = place
    zipped(folder / "1.zip", {"ada/x.ipynb": notebook()})
    data = bytearray((folder / "1.zip").read_bytes())
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (folder / "1.zip").write_bytes(data)
    assert "is encrypted" in collect(course, folder / "1.zip").left[0]
    # A size of 100 bytes is claimed for 50 MB of zeros.
    big = 50 * 2**20
    zipped(folder / "2.zip", {"ada/x.ipynb": b"\0" * big})
    patched(folder / "2.zip", big.to_bytes(4, "little"), (100).to_bytes(4, "little"), 2)
    assert "cannot be unpacked" in collect(course, folder / "2.zip").left[0]
    assert not (course / "submitted").exists()


def test_links_in_folders_are_not_followed(place):
    course, folder = place
    (folder / "x" / "ada").mkdir(parents=True)
    (folder / "secret.ipynb").write_bytes(notebook("secret"))
    (folder / "x" / "ada" / "x.ipynb").symlink_to(folder / "secret.ipynb")
    (folder / "x" / "li").symlink_to(folder)
    os.mkfifo(folder / "x" / "ada" / "pipe.ipynb")
    outcome = collect(course, folder / "x")
    assert not outcome.collected and len(outcome.left) == 2
    assert all("is no plain file" in line for line in outcome.left)
    # Nor is anything written through one.
    (course / "submitted").mkdir()
    (course / "submitted" / "ada").symlink_to(folder / "x")
    zipped(folder / "x.zip", {"ada/x.ipynb": notebook(), "li/x.ipynb": notebook()})
    outcome = collect(course, folder / "x.zip")
    assert list(outcome.collected) == [("li", TOPIC)] and "symbolic link" in outcome.left[0]


def test_the_command_says_what_became_of_it(place, monkeypatch, capsys):
    course, folder = place
    works = {"obrienbob_LATE_4713_1_x.ipynb": notebook(), "nobody.ipynb": notebook(), "a.png": b""}
    zipped(folder / "x.zip", works)
    arguments = ["collect.py", str(course), str(folder / "x.zip"), "--topic", TOPIC]
    monkeypatch.setattr("sys.argv", arguments)
    module.main()
    out, err = capsys.readouterr()
    assert out.startswith("kv_cache: 1 new; 2 of the roster have none here.\n")
    assert "Canvas calls late, and does not say when: bob." in out
    assert err.startswith("Not collected, 1:\n  nobody.ipynb: its name tells no student")
    monkeypatch.setattr("sys.argv", [*arguments[:4], "kv-cache"])
    with pytest.raises(SystemExit, match=r"First Token: topic is 'kv-cache'; expected one of"):
        module.main()
