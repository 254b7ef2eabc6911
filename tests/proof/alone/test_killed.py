"""Graders that are interrupted or killed leave nothing running and lose nothing.

These tests send signals to whole programs and look at the machine's processes while they work; with
neighbours they would wait for each other's turns, so they run alone.
"""

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import grade
import nbgrader.api
import psutil
import pytest

from proof.classroom.classes import (
    EXPLAINED,
    GOOD,
    HALF,
    ODD,
    PROGRAM,
    Classroom,
    empty_class,
    started,
)
from tiny_assignment import ROOT


@pytest.mark.usefixtures("sandboxed")
@pytest.mark.parametrize(
    ("program", "source", "n"),
    [
        # A notebook and its children, none of which ever ends or reads a wire.
        ("kernel.py", "import os\nfor _ in range(4): os.fork()\nwhile True: pass", 17),
        ("judge.py", "while True: pass", 1),
    ],
    ids=["notebook", "judge"],
)
def test_a_grader_that_is_killed_takes_the_sandbox_with_it(program, source, n):
    """Whatever runs inside, and although the kernel lets no grader's end reach another user."""
    code = f"""
import socket, sandbox, sys, time
from wire import Peer
ours, theirs = socket.socketpair()
box = sandbox.Sandbox({program!r}, [theirs], {{}}, sandbox.Limits(), [])
theirs.close()
peer = Peer(ours)
cell = {{"kind": "locked", "name": "a", "names": [], "source": {source!r}, "is_setup": True}}
peer.send("job", {{"limits": {{}}, "call_s": 60, "allowed": [], "cells": [cell]}})
if {program!r} == "kernel.py":
    peer.receive()
    peer.send("cell", {source!r})
while len(box.family()) < {n} or sum(p.cpu_times().user for p in box.family()) < 5:
    time.sleep(0.05)
print(*(process.pid for process in box.family()), flush=True)
time.sleep(60)"""
    grader = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT / "classroom", stdout=subprocess.PIPE, text=True
    )
    found = [psutil.Process(int(pid)) for pid in grader.stdout.readline().split()]
    assert len(found) >= n
    grader.kill()
    grader.wait()
    grader.stdout.close()
    assert psutil.wait_procs(found, timeout=30)[1] == []


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
