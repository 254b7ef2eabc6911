"""Hostile notebooks earn nothing that they did not answer, and end within their limits.

attacks.py holds what is handed in, check/grading/attempts.py runs it.
"""

import ast
import dataclasses
import functools
import json
import os
import shutil
import socket
import subprocess
import time

import pytest
import sandbox
from marking import is_solution, names, release
from nbformat.v4 import new_code_cell
from wire import Plain

from check.grading.attempts import (
    LIMITS,
    Outcome,
    ends_within_its_limits,
    flooded,
    outcome,
    patched,
    side_by_side,
    tricked,
)
from proof.classroom.attacks import FLOODS, PATCHES, SLOW_FLOODS, TRICK_NAMES, TRIVIAL
from tiny_assignment import TOPICS, assignment

pytestmark = pytest.mark.usefixtures("sandboxed")


@functools.cache
def all_tricks() -> dict[str, tuple]:
    """Return {trick: (points, what was said)}.

    After three calls without an answer a notebook is asked nothing more: what was left out is tried
    in the next ones.
    """
    found: dict[str, tuple] = {}
    waiting = TRICK_NAMES
    while waiting:
        parts = {str(k): (tricked, waiting[k::3]) for k in range(min(3, len(waiting)))}
        for done in side_by_side(parts).values():
            asked = {name for name in done.points if "not asked: 3" not in done.said.get(name, "")}
            assert asked, done
            found |= {name: (done.points[name], done.said.get(name, "")) for name in asked}
        waiting = [name for name in waiting if name not in found]
    return found


@pytest.mark.parametrize("trick", TRICK_NAMES)
def test_a_trick_in_an_answer_earns_nothing(trick):
    points, said = all_tricks()[trick]
    assert not points
    assert said and said != "not run"
    assert "Traceback" not in said


@functools.cache
def all_patches() -> dict[str, Outcome]:
    return side_by_side({name: (patched, name) for name in PATCHES})


@pytest.mark.parametrize("patch", PATCHES)
def test_a_patched_notebook_earns_nothing(patch):
    found = all_patches()[patch]
    assert not any(found.points.values()), found
    assert found.said.keys() == {"double_tests", "scale_tests"}


@functools.cache
def all_floods() -> dict[str, Outcome]:
    # One of dozens of processes has the machine for itself.
    others = [name for name in FLOODS | SLOW_FLOODS if name != "forks"]
    return {"forks": flooded("forks")} | side_by_side({name: (flooded, name) for name in others})


@pytest.mark.parametrize("flood", FLOODS | SLOW_FLOODS)
def test_a_flood_ends_within_its_limits(flood):
    ends_within_its_limits(flood, all_floods()[flood])


MAX_BY_CHANCE = 6  # points of 100: where 0 is the right answer to one part


@pytest.mark.parametrize("topic", TOPICS)
def test_arguments_made_zero_are_no_answers(topic):
    source = assignment(topic).source
    notebook = release(source)
    for cell in filter(is_solution, notebook.cells):
        classes = {node.name for node in ast.parse(cell.source).body if type(node) is ast.ClassDef}
        cell.source = "\n".join(
            f"{name} = {'Zero' if name in classes else 'zero'}" for name in names(cell.source)
        )
    notebook.cells.insert(0, new_code_cell(TRIVIAL))
    found = outcome(source, notebook, dataclasses.replace(LIMITS, test_s=10))
    assert sum(filter(None, found.points.values())) <= MAX_BY_CHANCE, found
    assert "not run" not in " ".join(found.said.values()), found


SPY = """
import ctypes, json, os, sys
found, libc = [], ctypes.CDLL(None, use_errno=True)
def tries(what, do):
    try:
        result = do()
    except (OSError, ValueError):
        return
    if result != -1:
        found.append(what)
for pid in json.loads(sys.argv[1]):
    for name in ("root", "cwd", "fd", "map_files", "ns"):
        tries(f"{name} of {pid}", lambda: os.listdir(f"/proc/{pid}/{name}"))
    for name in ("mem", "environ", "maps", "stack", "syscall", "exe"):
        tries(f"{name} of {pid}", lambda: open(f"/proc/{pid}/{name}", "rb").read(1))
    tries(f"signal to {pid}", lambda: os.kill(pid, 0))
    tries(f"trace of {pid}", lambda: libc.ptrace(16, pid, 0, 0))
    tries(f"namespace of {pid}", lambda: os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY))
    said = open(f"/proc/{pid}/cmdline", "rb").read()
    if b"a-secret-name" in said or b"SEED" in said:
        found.append(f"the student and the seed, on the command line of {pid}")
print(json.dumps(found))
"""


@pytest.fixture
def account():
    python = "/usr/bin/python3"
    if os.geteuid() != 0 or not shutil.which("useradd") or not os.path.exists(python):
        pytest.skip("only root makes accounts")
    name = f"ft-spy-{os.getpid()}"
    subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/sh", name], check=True)
    try:
        yield name
    finally:
        subprocess.run(["userdel", name], check=True)


def test_another_account_meets_a_closed_door(account):
    """It can neither look into a sandbox that runs, nor signal or trace what is in it."""
    ends = [socket.socketpair() for _ in range(2)]
    run = sandbox.Sandbox(
        "kernel.py",
        [theirs for _, theirs in ends],
        {"FIRSTTOKEN_STUDENT": "a-secret-name", "FIRSTTOKEN_SEED": "7"},
        LIMITS,
        [],
    )
    try:
        wire = Plain(ends[0][0])
        wire.deadline = time.monotonic() + sandbox.START_S
        wire.send("job", {"limits": sandbox.resource_limits(LIMITS), "call_s": 1, "allowed": []})
        assert wire.receive()[0] == "ready"
        pids = [run.process.pid, *(process.pid for process in run.family())]
        assert len(pids) >= 3
        spy = ["setpriv", "--reuid", account, "--regid", account, "--clear-groups"]
        spy += ["/usr/bin/python3", "-c", SPY, json.dumps(pids)]
        ended = subprocess.run(spy, capture_output=True, text=True)
        assert json.loads(ended.stdout) == [], ended
    finally:
        run.close()
        for pair in ends:
            for end in pair:
                end.close()
