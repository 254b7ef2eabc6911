"""Hostile notebooks, run and judged: what attacks.py holds, for test_attacks.py of both tiers.

Limits are tight where what is hostile meets them; slowness can only make it end sooner. What is
honest beside it meets none.
"""

import concurrent.futures
import dataclasses
import json
import socket
import time
from pathlib import Path
from typing import NamedTuple

import nbformat
import sandbox
from marking import mistakes, points, release
from nbformat.v4 import new_code_cell, new_notebook
from sandbox import Limits

import tiny_assignment
from proof.classroom.attacks import (
    FLOODS,
    PATCHES,
    PROBE,
    PROBES,
    SLOW_FLOODS,
    TRICK_CODE,
    TRICK_HELPER,
    TRICK_TEST,
    TRICKS,
)
from tiny_assignment import PATIENT, ROOT, graded, judged, replaced

LIMITS = dataclasses.replace(
    PATIENT,
    memory_bytes=3 * 2**29,
    processes=64,
    file_bytes=2**20,
    disk_bytes=2**24,
    output_bytes=10**5,
    notebook_bytes=10**6,
)
WRONG = {"double": "def double(x):\n    return 0", "scale": "def scale(x):\n    return x"}
RIGHT_SCALE = "def scale(x):\n    return factor * x"


class Outcome(NamedTuple):
    """What came of a notebook: points by test, what was said of each, reasons, outputs, seconds."""

    points: dict[str, float | None]
    said: dict[str, str]
    reasons: list[str]
    output: str
    seconds: float


def outcome(source, handed_in, limits: Limits = LIMITS) -> Outcome:
    """Return what came of a notebook; whatever it said can be written."""
    start = time.monotonic()
    notebook, reasons = judged(source, handed_in, limits, seed=7, student="bob")
    seconds = time.monotonic() - start
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    output = "\n".join(o.text if o.output_type == "stream" else str(o) for o in outputs)
    json.dumps(notebook).encode()
    "".join(reasons).encode()
    return Outcome(points(notebook), mistakes(notebook), reasons, output, seconds)


def handed_in(first: str = "", last: str = "", **cells: str) -> nbformat.NotebookNode:
    notebook = replaced(release(tiny_assignment.source()), cells)
    notebook.cells.insert(0, new_code_cell(first))
    notebook.cells.append(new_code_cell(last))
    return notebook


def side_by_side(works: dict[str, tuple]) -> dict[str, Outcome]:
    """Return {attack: its outcome}; most of the time they wait."""
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        found = {name: pool.submit(*work) for name, work in works.items()}
    return {name: future.result() for name, future in found.items()}


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
    short = (f"def {name}(counted, callback, board): {code}" for name, code in TRICKS.items())
    answer = "def answer(name, *given):\n    return globals()[name](*given)"
    notebook.cells[1].source = "\n".join([TRICK_CODE, *short, answer])
    limits = dataclasses.replace(LIMITS, call_s=1, test_s=2.5, processes=200)
    return outcome(source, notebook, limits)


def patched(name: str) -> Outcome:
    code = PATCHES[name]
    return outcome(tiny_assignment.source(), handed_in(code, code, **WRONG))


def flooded(name: str) -> Outcome:
    """Return what comes of a flood in one answer, with a right one after it."""
    code = (FLOODS | SLOW_FLOODS)[name][0]
    # The cells before it are honest, and take a hundredth of this.
    limits = dataclasses.replace(LIMITS, cell_s=10) if name in SLOW_FLOODS else LIMITS
    work = handed_in(double=code, scale=RIGHT_SCALE)
    return outcome(tiny_assignment.source(), work, limits)


def ends_within_its_limits(name: str, found: Outcome) -> None:
    assert not found.points["double_tests"]
    assert found.points["scale_tests"] in (None, 0, 45)
    assert (FLOODS | SLOW_FLOODS)[name][1] in " ".join(found.reasons), found
    assert found.seconds < sandbox.START_S + LIMITS.notebook_s + LIMITS.judge_s


def probed() -> list[Outcome]:
    """Return two runs of the probes: the second sees what the first one left."""
    secrets = [ROOT / "assignments", ROOT / "tests", ROOT / ".git", ROOT / "classroom" / "judge.py"]
    secrets += [Path.home() / ".ssh", Path("/home/teacher")]
    secrets += [Path(path) for path in ("/etc/shadow", "/etc/passwd", "/run", "/var", "/srv")]
    probes = [f"probe({name!r}, lambda: {test})" for name, test in PROBES.items()]
    places = ("/tmp", "/dev/shm", "/home/student")
    probes += [f"open('{place}/kept-by-another', 'w').close()" for place in places]
    with socket.create_server(("127.0.0.1", 0)) as server:
        known = f"port, secrets = {server.getsockname()[1]}, {[str(path) for path in secrets]}"
        work = handed_in(f"{PROBE}\n{known}", "\n".join(probes), **WRONG)
        return [outcome(tiny_assignment.source(), work) for _ in range(2)]
