"""Graders that are interrupted or killed leave nothing running and lose nothing.

These tests send signals to whole programs and look at the machine's processes while they work; with
neighbours they would wait for each other's turns, so they run alone.
"""

import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import grade
import nbgrader.api
import psutil
import pytest
from gradebook import Gradebook

import tiny_assignment
from proof.classroom.attacks import OUTLIVING
from proof.classroom.classes import (
    EXPLAINED,
    GOOD,
    HALF,
    ODD,
    PROGRAM,
    Classroom,
    empty_class,
    hand_in,
    started,
    teach,
)
from tiny_assignment import ROOT

OTHER_UID = 63_999  # no account has it, and no sandbox


GRADER = """
import json, socket, sys
from sandbox import Limits, Sandbox, resource_limits
from wire import Peer

limits, boxes, wires = Limits(processes=100), {}, []
for name, (program, source) in json.loads(sys.argv[1]).items():
    ours, theirs = socket.socketpair()
    peer, boxes[name] = Peer(ours), Sandbox(program, [theirs], {}, limits, [])
    theirs.close()
    wires.append(ours)
    cell = {"kind": "locked", "name": "a", "names": [], "source": source, "is_setup": True}
    told = {"limits": resource_limits(limits), "call_s": 60, "allowed": [], "cells": [cell]}
    peer.send("job", told)
    if program == "kernel.py":
        peer.receive()
        peer.send("cell", source)
    assert "at work" in str(peer.receive()), name
ended = {name: box.ended() for name, box in boxes.items() if box.ended()}
print(json.dumps(ended), flush=True)
sys.stdin.read()"""
# The loop is one call, in which Python runs no other thread.
COUNTING = """
import __main__
__main__.Peer(__main__.wires[0]).write("at work")
sum(range(10**18))"""


@pytest.fixture
def heirs():
    """Let processes become children of this one when their own parents have ended."""

    def inherit(orphans: bool) -> None:
        assert ctypes.CDLL(None).prctl(36, orphans, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER

    inherit(True)
    before = descendants()
    yield lambda: descendants() - before
    for process in descendants() - before:
        process.kill()
    inherit(False)


def descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def kill(grader: subprocess.Popen, heirs) -> None:
    """Kill a grader; whatever it has started ends, too, wherever that has moved."""
    grader.kill()
    grader.communicate()
    deadline = time.monotonic() + 300
    while left := heirs():
        assert time.monotonic() < deadline, left
        psutil.wait_procs(left, timeout=1)


class User(NamedTuple):
    """A user of this machine: how to start Python as one, and a folder that is the user's own."""

    python: list[str]
    folder: Path

    def start(self, *arguments: str | Path) -> subprocess.Popen:
        return subprocess.Popen(
            [*self.python, *arguments],
            cwd=ROOT / "classroom",
            env={**os.environ, "HOME": str(self.folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def own(self) -> None:
        """Hand what lies in the folder over to its user."""
        status = self.folder.stat()
        for path in self.folder.rglob("*"):
            os.chown(path, status.st_uid, status.st_gid)


@pytest.fixture(params=["this user", "no root"])
def user(sandboxed, request):
    """Grade as the user who runs this; if that is root, then also as one without rights."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        if request.param == "this user":
            yield User([sys.executable], folder)
            return
        if os.geteuid() != 0:
            pytest.skip("this user has no rights already")
        os.chown(folder, OTHER_UID, OTHER_UID)
        other = ["setpriv", f"--reuid={OTHER_UID}", f"--regid={OTHER_UID}", "--clear-groups"]
        found = User([*other, str(readable_python(folder))], folder)
        checks = found.start("-c", "import sandbox; sandbox.check()")
        checks.communicate()
        if checks.returncode:
            assert not os.environ.get("FIRSTTOKEN_CI")
            pytest.skip("no sandbox for a user without rights")
        yield found


def readable_python(folder: Path) -> Path:
    """Return a Python for every user; one of root's home is replaced by the system's."""
    if not Path(sys.base_prefix).is_relative_to(Path.home()):
        return Path(sys.executable)
    system = f"/usr/bin/python3.{sys.version_info.minor}"
    if not Path(system).exists():
        return Path(sys.executable)
    subprocess.run([system, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    (packages,) = folder.glob("venv/lib/python*/site-packages")
    (packages / "ours.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return folder / "venv" / "bin" / "python"


def test_a_grader_that_is_killed_takes_the_sandboxes_with_it(user, heirs):
    """Whatever is done inside, and although the kernel tells nobody there that it was killed."""
    hostile = {name: ("kernel.py", source) for name, source in OUTLIVING.items()}
    hostile["a judge that counts"] = "judge.py", COUNTING
    grader = user.start("-c", GRADER, json.dumps(hostile))
    assert json.loads(grader.stdout.readline()) == {}
    assert len(heirs()) > 100
    kill(grader, heirs)


def test_at_whatever_moment_it_is_killed(user, heirs):
    """While sandboxes start, while cells run, while the judge asks: none goes on."""
    for name, source in OUTLIVING.items():
        hand_in(user.folder, name.replace(" ", "-"), {"double": source})
    for number in range(8):
        hand_in(user.folder, f"honest-{number}", GOOD)
    teach(user.folder, tiny_assignment.source())
    Gradebook(user.folder).close()  # what it starts for a new one is no part of this
    user.own()
    draw = random.Random(45)
    for _ in range(10):
        n, seconds = draw.randrange(1, 40), draw.uniform(0, 3)
        grader = user.start("grade.py", user.folder, "--jobs", "4", "--again")
        while len(heirs()) < n:
            time.sleep(0.01)
        time.sleep(seconds)
        assert grader.poll() is None
        kill(grader, heirs)


@pytest.fixture
def classroom(monkeypatch, tmp_path):
    return empty_class(monkeypatch, tmp_path)


def test_ctrl_c_ends_cleanly(classroom):
    """What runs in the sandboxes is killed, what is known is reported, and it says how to go on."""
    for student in ("ada", "bob", "eve", "fay", "ivy"):
        classroom.hand_in(student, GOOD)
    code = """
import os, subprocess, threading
def slow(notebook, source, student, *others):
    if student != "ada":
        child = subprocess.Popen(["sleep", f"600.{os.getpid()}"])
        child.wait()
    return played(notebook, source, student, *others)
grade.executed = slow
"""
    run = started(classroom.course, "--jobs", "2", code=code)
    assert b"85 of 85 points" in run.stdout.readline()
    name = f"600.{run.pid}"
    while not sleeping(name):
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=300)
    assert run.returncode == 130
    assert b"stopped; 4 submissions wait. To go on: make grade again" in err
    assert b"Traceback" not in err
    assert not sleeping(name)
    assert {line["student"]: line["status"] for line in classroom.table()} == {
        "ada": "graded",
        **dict.fromkeys(("bob", "eve", "fay", "ivy"), "waiting"),
    }
    classroom.grade()
    assert sorted(classroom.runs) == ["bob", "eve", "fay", "ivy"]


def sleeping(name: str) -> list:
    """Return the processes `sleep name`."""
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", name]]


KILLED = r"""
import os, random, signal, sys, threading
from pathlib import Path

course, log = Path(sys.argv[1]), os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND)
nbgrader.api.get_alembic_version = lambda: sys.argv[3]

def noted(notebook, source, student, *others):
    if (course / "attempts" / student / "tiny" / "001.json").exists():
        os.write(log, f"twice {student}\n".encode())
    time.sleep(random.random() / 50)
    return played(notebook, source, student, *others)

grade.executed = noted

def run(prepare):
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        prepare()
        grade.grade(course, jobs=2)
        os._exit(0)
    return pid

def at_replace(number):
    count, replace = [0], os.replace
    def killing(*paths):
        count[0] += 1
        if count[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*paths)
    os.replace = killing

random.seed(16)
killed = 0
for number in [1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 17, 19]:
    os.waitpid(run(lambda: at_replace(number)), 0)
while True:
    pid = run(lambda: None)
    deadline = time.monotonic() + random.random() * (killed + 1) / 10
    while time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    if os.waitpid(pid, 0)[1] == 0:
        break
    killed += 1
os.write(log, f"killed {killed}\n".encode())
"""


def test_a_run_that_is_killed_goes_on_where_it_was(classroom, tmp_path_factory):
    """At the moments between two files, and at random ones: the end is that of a quiet run."""
    answers = [GOOD, HALF, ODD, GOOD | EXPLAINED]
    for k in range(12):
        classroom.hand_in(f"student{k:02}", answers[k % 4])
    calm = tmp_path_factory.mktemp("calm")
    shutil.copytree(classroom.course, calm, dirs_exist_ok=True)
    rows = grade.grade(calm)
    log = classroom.course / "log"
    log.touch()
    program = classroom.course / "program.py"
    program.write_text(PROGRAM + KILLED, encoding="utf-8")
    arguments = [sys.executable, program, classroom.course, log, nbgrader.api.get_alembic_version()]
    subprocess.run(arguments, check=True, timeout=500)
    said = log.read_text(encoding="utf-8")
    assert "twice" not in said  # what was stored is not run again
    assert int(said.split()[-1]) > 0
    own = {"seed": "", "seconds": 0}
    found = classroom.grade()
    assert classroom.runs == []
    assert [replace(row, **own) for row in found.values()] == [replace(row, **own) for row in rows]
    quiet = Classroom(calm, [])
    for student in found:
        assert classroom.in_gradebook(student) == quiet.in_gradebook(student)
        pages = [json.loads(course.autograded(student)) for course in (classroom, quiet)]
        assert pages[0]["cells"] == pages[1]["cells"]
    left = [path for path in classroom.course.rglob("*") if path.name.endswith(".part")]
    assert left == []
