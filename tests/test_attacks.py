"""Hostile notebooks earn nothing that they did not answer, and end within their limits.

attacks.py holds what is handed in. Each attack has a name; a failure names it.
"""

import ast
import concurrent.futures
import dataclasses
import functools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest
import sandbox
from execute import executed
from marking import is_solution, mark, mistakes, names, points, prepared, release
from nbformat.v4 import new_code_cell, new_notebook
from sandbox import Limits
from wire import Plain

import tiny_assignment
from attacks import (
    ANSWERS,
    FLOODS,
    PATCHES,
    PROBE,
    PROBES,
    TRICK_HELPER,
    TRICK_TEST,
    TRICKS,
    TRIVIAL,
)
from tiny_assignment import graded

ROOT = Path(__file__).parents[1]
LIMITS = Limits(
    cell_s=3,
    notebook_s=20,
    call_s=1,
    test_s=2.5,
    judge_s=12,
    memory_bytes=3 * 2**29,
    processes=64,
    file_bytes=2**20,
    disk_bytes=2**24,
    output_bytes=10**5,
    notebook_bytes=10**6,
)
WRONG = {"double": "def double(x):\n    return 0", "scale": "def scale(x):\n    return x"}


class Outcome(NamedTuple):
    """What came of a notebook: points by test, what was said of each, reasons, outputs, seconds."""

    points: dict[str, float | None]
    said: dict[str, str]
    reasons: list[str]
    output: str
    seconds: float


def outcome(source, handed_in, limits: Limits = LIMITS) -> Outcome:
    notebook, *_ = prepared(source, handed_in)
    start = time.monotonic()
    reasons = executed(notebook, source, "bob", [], limits, seed=7)
    seconds = time.monotonic() - start
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    output = "\n".join(o.text if o.output_type == "stream" else str(o) for o in outputs)
    json.dumps(notebook).encode()  # whatever was said can be written
    "".join(reasons).encode()
    return Outcome(points(notebook), mistakes(notebook), reasons, output, seconds)


def handed_in(first: str = "", last: str = "", **cells: str) -> nbformat.NotebookNode:
    """Return the tiny assignment with these cells, and others before and after all."""
    notebook = release(tiny_assignment.source())
    for cell in filter(is_solution, notebook.cells):
        cell.source = cells.get(mark(cell)["grade_id"], cell.source)
    notebook.cells.insert(0, new_code_cell(first))
    notebook.cells.append(new_code_cell(last))
    return notebook


def tricks() -> list[str]:
    return re.findall(r"^def (\w+)\(counted", TRICKS, re.M)


def tricked(tried: list[str]) -> Outcome:
    """Return what tricks earn: one test for each, all in one notebook."""
    setup = "import numpy as np\nfrom firsttoken.assignments import expect, fresh_rng, shared"
    stub = "def answer(name, counted, callback, board):\n    raise NotImplementedError"
    cells = [
        graded("setup", new_code_cell(setup)),
        graded("answer", new_code_cell(stub), solution=True),
        graded("helper", new_code_cell(TRICK_HELPER)),
    ]
    for name in tried:
        cells.append(graded(name, new_code_cell(TRICK_TEST.format(name=name)), points=1))
    source = new_notebook(cells=cells, metadata=tiny_assignment.source().metadata)
    notebook = release(source)
    notebook.cells[1].source = (
        TRICKS + "\ndef answer(name, *given):\n    return globals()[name](*given)"
    )
    limits = dataclasses.replace(LIMITS, judge_s=90, notebook_s=60, processes=200)
    return outcome(source, notebook, limits)


def side_by_side(works: dict[str, tuple]) -> dict[str, Outcome]:
    """Return {attack: its outcome}; most of the time they wait."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = {name: pool.submit(*work) for name, work in works.items()}
    return {name: future.result() for name, future in found.items()}


pytestmark = pytest.mark.usefixtures("sandboxed")


@functools.cache
def all_tricks() -> dict[str, Outcome]:
    parts = [tricks()[place::4] for place in range(4)]
    found = side_by_side({str(place): (tricked, part) for place, part in enumerate(parts)})
    return {name: found[str(place)] for place, part in enumerate(parts) for name in part}


def tiny(works: dict[str, nbformat.NotebookNode]) -> dict[str, Outcome]:
    """Return what notebooks of the tiny assignment earn."""
    source = tiny_assignment.source()
    return side_by_side({name: (outcome, source, work) for name, work in works.items()})


@functools.cache
def all_patches() -> dict[str, Outcome]:
    return tiny({name: handed_in(code, code, **WRONG) for name, code in PATCHES.items()})


@functools.cache
def all_floods() -> dict[str, Outcome]:
    right = "def scale(x):\n    return factor * x"
    source, slow = tiny_assignment.source(), dataclasses.replace(LIMITS, cell_s=15)
    works = {}
    for name, (code, _) in FLOODS.items():
        limits = slow if "memory" in name else LIMITS  # a busy machine takes seconds to fill it
        works[name] = outcome, source, handed_in(double=code, scale=right), limits
    return side_by_side(works)


@functools.cache
def probed() -> list[Outcome]:
    """Return two runs of the probes: the second sees what the first one left."""
    probes = [f"probe({name!r}, lambda: {test})" for name, test in PROBES.items()]
    probes += [f"open('{place}/kept-by-another', 'w').close()" for place in ("/tmp", "/dev/shm")]
    work = handed_in(PROBE, "\n".join(probes), **WRONG)
    return [outcome(tiny_assignment.source(), work) for _ in range(2)]


@pytest.mark.parametrize("trick", tricks())
def test_a_trick_in_an_answer_earns_nothing(trick):
    found = all_tricks()[trick]
    assert not found.points[trick]
    assert found.said[trick] != "not run", found.reasons
    assert "Traceback" not in found.said[trick]


@pytest.mark.parametrize("patch", PATCHES)
def test_a_patched_notebook_earns_nothing(patch):
    found = all_patches()[patch]
    assert not any(found.points.values()), found
    assert found.said.keys() == {"double_tests", "scale_tests"}
    assert "LATER" not in found.output


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_ends_within_its_limits(flood):
    found = all_floods()[flood]
    assert not found.points["double_tests"]
    assert found.points["scale_tests"] in (None, 0, 45)
    assert FLOODS[flood][1] in " ".join(found.reasons), found
    assert found.seconds < sandbox.START_S + LIMITS.notebook_s + LIMITS.judge_s


@pytest.mark.parametrize("probe", PROBES)
def test_the_sandbox_refuses(probe):
    for run in probed():
        found = re.search(rf"PROBE {re.escape(probe)} \| ([^\n]*)", run.output)
        assert found, run
        assert found[1].startswith("refused"), found[1]


@functools.cache
def trivial(topic: str, answer: str) -> Outcome:
    """Return what trivial answers to all tasks of an assignment earn."""
    source = nbformat.read(ROOT / "assignments" / topic / f"{topic}.ipynb", as_version=4)
    notebook = release(source)
    function, kind = ANSWERS[answer]
    for cell in filter(is_solution, notebook.cells):
        classes = {node.name for node in ast.parse(cell.source).body if type(node) is ast.ClassDef}
        cell.source = "\n".join(
            f"{name} = {kind if name in classes else function}" for name in names(cell.source)
        )
    notebook.cells.insert(0, new_code_cell(TRIVIAL))
    return outcome(source, notebook, dataclasses.replace(LIMITS, cell_s=20, test_s=10, judge_s=60))


TOPICS = sorted(path.name for path in (ROOT / "assignments").iterdir())
MAX_BY_CHANCE = 6  # points of 100: where 0, or a refusal, is the right answer to one part


@pytest.mark.parametrize("topic", TOPICS)
def test_arguments_made_zero_are_no_answers(topic):
    found = trivial(topic, "zeros")
    assert sum(filter(None, found.points.values())) <= MAX_BY_CHANCE, found
    assert "not run" not in " ".join(found.said.values()), found


def test_refusing_everything_is_no_answer():
    found = trivial("start", "refusals")
    assert sum(filter(None, found.points.values())) <= MAX_BY_CHANCE, found


def test_in_one_process_the_same_attacks_pass():
    """What is tested here can be seen: an exec of all cells side by side gives the points."""
    ours = {name: PATCHES[name] for name in ("expect", "_plain", "isclose")}
    passed = {}
    for name, code in ours.items():
        notebook, *_ = prepared(tiny_assignment.source(), handed_in(code, **WRONG))
        cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
        cells = ["STUDENT = 'bob'" if cell.startswith("STUDENT") else cell for cell in cells]
        program = "import json, sys\nfor cell in json.load(sys.stdin): exec(cell)"
        run = [sys.executable, "-c", program]
        ended = subprocess.run(run, input=json.dumps(cells), capture_output=True, text=True)
        passed[name] = ended.returncode == 0
    assert passed["expect"] and passed["_plain"]
    assert not passed["isclose"]  # `expect` of the first edition has learnt that one


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
    """Make an account of this machine for a while."""
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
    limits = dataclasses.replace(LIMITS, cell_s=10)
    ends = [socket.socketpair() for _ in range(2)]
    run = sandbox.Sandbox(
        "kernel.py",
        [theirs for _, theirs in ends],
        {"FIRSTTOKEN_STUDENT": "a-secret-name", "FIRSTTOKEN_SEED": "7"},
        limits,
        [],
    )
    try:
        wire = Plain(ends[0][0])
        wire.deadline = time.monotonic() + sandbox.START_S
        wire.send("job", {"limits": sandbox.resource_limits(limits), "call_s": 1, "allowed": []})
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
