"""Run a prepared notebook, and let the judge test what it defined.

Two sandboxes: in one the student's cells run, in the other the tests (kernel.py and judge.py). This
program is outside both. It sends the cells, measures time, memory and output, and keeps what comes
back as plain text and pictures. What the student's process says about itself earns no point: only
the judge gives points, from the answers that it gets. When the tests begin, the student's own cells
have ended, and nothing that their process writes is read any more.
"""

import base64
import binascii
import contextlib
import re
import select
import signal
import socket
import time
from pathlib import Path
from typing import Any

import nbformat
from marking import (
    answers,
    error,
    imports,
    is_locked,
    is_solution,
    is_test,
    mark,
    names,
    parts,
    release,
    same,
    setup,
)
from nbformat.v4 import new_output
from sandbox import START_S, Limits, Sandbox, resource_limits
from wire import Peer, Plain, Unanswered

POLL_S = 0.1
GRACE_S = 3  # for a cell that was interrupted
MAX_TEXT = 10_000  # characters of one output that is kept
MAX_PICTURE = 2**20  # bytes
MAX_OUTPUTS = 50  # of one cell
# What steers a terminal: a page's maker spends minutes and gigabytes on a text full of it.
ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]?")


class Stopped(Exception):
    """The notebook can run no further cell; the message says why."""


def clipped(text: object, most: int = MAX_TEXT) -> str:
    """Return the beginning of a text without what steers a terminal, whatever was sent as text."""
    text = text if isinstance(text, str) else repr(type(text))
    text = ESCAPE.sub("", text[: 10 * most]).encode(errors="replace").decode()
    text = "".join(c if c.isprintable() or c in "\n\t\r" else "�" for c in text)
    return text if len(text) <= most else text[:most] + "\n… (cut)"


def kept(kind: str, content: object) -> nbformat.NotebookNode | None:
    """Return an output as plain text or a picture: no HTML, no script, nothing that a page runs."""
    if not isinstance(content, dict):
        return None
    if kind == "stream":
        name = "stderr" if content.get("name") == "stderr" else "stdout"
        return new_output("stream", name=name, text=clipped(content.get("text")))
    if kind == "error":
        lines = content.get("traceback")
        return new_output(
            "error",
            ename=clipped(content.get("ename"), 100),
            evalue=clipped(content.get("evalue"), 1000),
            traceback=[clipped(line) for line in lines[:30]] if isinstance(lines, list) else [],
        )
    if kind != "display_data":
        return None
    sent = content.get("data")
    sent = sent if isinstance(sent, dict) else {}
    data = {}
    picture = sent.get("image/png")
    if isinstance(picture, str):  # IPython sends either
        with contextlib.suppress(binascii.Error, ValueError):
            picture = base64.b64decode("".join(picture.split()), validate=True)
    is_png = isinstance(picture, bytes) and picture.startswith(b"\x89PNG\r\n\x1a\n")
    if is_png and len(picture) <= MAX_PICTURE:
        data["image/png"] = base64.b64encode(picture).decode()
    if "text/plain" in sent:
        data["text/plain"] = clipped(sent["text/plain"])
    return new_output("display_data", data=data) if data else None


def added(outputs: list, output: nbformat.NotebookNode) -> None:
    """Add an output; a text that goes on where the last one ended becomes part of it."""
    last = outputs[-1] if outputs else None
    if last and last.output_type == output.output_type == "stream" and last.name == output.name:
        if len(last.text) <= MAX_TEXT:
            last.text = clipped(last.text + output.text)
    elif len(outputs) < MAX_OUTPUTS:
        outputs.append(output)


def cure(said: str) -> str:
    """Return what a teacher can do about a setup that stopped; empty where nothing is known."""
    if "another student id" not in said:
        return ""
    return "; if it is the same person, correct the STUDENT line in the submitted file, grade again"


class Run:
    """A student's notebook and a judge, each in its sandbox, and our ends of the wires."""

    def __init__(self, n_tests: int, student: str, files: list[Path], limits: Limits, seed: int):
        """Start both; `files` are put into their homes."""
        self.limits = limits
        pairs = [socket.socketpair() for _ in range(n_tests)]
        notebook, notebook_end = socket.socketpair()
        judge, judge_end = socket.socketpair()
        ends = [notebook_end, judge_end, *(end for pair in pairs for end in pair)]
        self.sandboxes = []
        self.notebook, self.judge = Plain(notebook), Plain(judge)
        try:
            for program, own, number in (
                ("kernel.py", notebook_end, 0),
                ("judge.py", judge_end, 1),
            ):
                wires = [own, *(pair[number] for pair in pairs)]
                values = {"FIRSTTOKEN_STUDENT": student}
                if program == "judge.py":
                    values["FIRSTTOKEN_SEED"] = str(seed)
                self.sandboxes.append(Sandbox(program, wires, values, limits, files))
        except BaseException:
            self.close()
            raise
        finally:
            for end in ends:
                end.close()
        self.shown = 0  # characters of all outputs

    def start(self, source: nbformat.NotebookNode, tests: list[str]) -> None:
        """Tell both what they need."""
        told = {"limits": resource_limits(self.limits), "call_s": self.limits.call_s}
        self.send(self.notebook, "job", told | {"allowed": imports(source)})
        self.send(self.judge, "job", told | job(source, tests, self.limits))
        try:
            self.notebook.receive()  # that it is ready: only now the clocks of the cells run
        except Unanswered as gone:
            raise self.unstarted(0, gone) from None
        self.sandboxes[0].remember()

    def close(self) -> None:
        """End both, and all that they started."""
        for sandbox in self.sandboxes:
            sandbox.close()
        self.notebook.wire.close()
        self.judge.wire.close()

    def message(self, peer: Peer) -> tuple[str, list] | None:
        """Return the next message if one comes soon; stop at a limit of memory or files."""
        # Asked first: what it wrote before it ended is on the wire by now, and is read below.
        ended = self.sandboxes[peer is self.judge].ended()
        peer.deadline = time.monotonic() + GRACE_S
        if peer.buffer or select.select([peer.wire], [], [], POLL_S)[0]:
            try:
                return peer.receive()
            except Unanswered as gone:
                raise Stopped(f"the notebook {gone}") from None
        if ended:
            raise Stopped(f"the kernel is gone: {ended}")
        self.watch()
        return None

    def watch(self) -> None:
        """Stop what uses more memory or files than it may."""
        for sandbox in self.sandboxes:
            if said := sandbox.excess():
                sandbox.stop()
                raise Stopped(said)

    def send(self, peer: Peer, *content: object) -> None:
        peer.deadline = time.monotonic() + START_S
        try:
            peer.send(*content)
        except Unanswered as gone:
            raise self.unstarted(peer is self.judge, gone) from None

    def unstarted(self, number: int, gone: Unanswered) -> Stopped:
        # A student's code can write there as well.
        complaint = clipped(self.sandboxes[number].complaints(), 500)
        return Stopped(f"the kernel did not start: {complaint or gone}")

    def cell(self, kind: str, *content: object, limit_s: float) -> tuple[bool, list, str]:
        """Run a cell: return (whether it came to its end, outputs, why it was cut short or '')."""
        self.send(self.notebook, kind, *content)
        start = watched = time.monotonic()
        outputs: list = []
        size, cut, interrupted_at = 0, "", 0.0
        while True:
            message = self.message(self.notebook)
            if message and message[0] in ("done", "frozen"):
                return message[1] == [True], outputs, cut
            if message and message[0] == "gone":
                raise Stopped(f"the kernel is gone: {ending(message[1])}")
            if message and message[1]:
                size += len(str(message[1][0]))
                output = kept(message[0], message[1][0])
                if output and size <= self.limits.output_bytes:
                    added(outputs, output)
            now = time.monotonic()
            if message and now > watched + POLL_S:  # a flood of messages hides no memory
                watched = now
                self.watch()
            if not cut and size > self.limits.output_bytes:
                cut = f"wrote more than {self.limits.output_bytes} bytes of output"
            elif not cut and now > start + limit_s:
                cut = f"ran longer than {limit_s:.0f} s"
            if cut and not interrupted_at:
                interrupted_at = now
                self.sandboxes[0].interrupt()
            if interrupted_at and now > interrupted_at + GRACE_S:
                self.sandboxes[0].stop()
                raise Stopped(f"{cut}, and did not stop when interrupted")

    def verdicts(self, wanted: int) -> dict[str, list]:
        """Return {test cell: its parts}, as the judge finds them."""
        self.send(self.judge, "go")
        found: dict[str, list] = {}
        deadline = time.monotonic() + self.limits.judge_s
        while len(found) < wanted:
            if time.monotonic() > deadline:
                raise Judged(
                    found, f"all tests together ran longer than {self.limits.judge_s:.0f} s"
                )
            try:
                message = self.message(self.judge)
            except Stopped as stop:
                said = self.sandboxes[1].complaints()
                raise Judged(found, f"the tests stopped: {stop} {said}".strip()) from None
            if message and message[0] == "verdict":
                found[message[1][0]["name"]] = message[1][0]["parts"]
        return found


def run_cells(
    run: Run,
    code: list,
    source: nbformat.NotebookNode,
    frozen: list[str],
    failed: dict[str, str],
    reasons: list[str],
) -> None:
    """Run the student's cells in order, and freeze the notebook at the place of each test."""
    limits = run.limits
    first = [mark(cell)["grade_id"] for cell in setup(source)]
    end = time.monotonic() + limits.notebook_s
    for cell in code:
        name = mark(cell).get("grade_id", "a cell without a name")
        limit_s = min(limits.cell_s, end - time.monotonic())
        try:
            if limit_s < 0:
                said = f"all cells together ran longer than {limits.notebook_s:.0f} s"
                raise Stopped(said)
            if is_test(cell):
                run.cell("freeze", len(frozen), limit_s=limits.cell_s)
                frozen.append(name)
                continue
            if is_locked(cell):
                content = ("locked", cell.source, name, name in first)
            else:
                content = ("cell", cell.source)
            began, cell.outputs, cut = run.cell(*content, limit_s=limit_s)
        except Stopped as stop:
            raise Stopped(f"{name}: {stop}") from None
        run.shown += sum(len(str(output)) for output in cell.outputs)
        if run.shown > limits.notebook_bytes:
            raise Stopped(f"{name}: the outputs have {run.shown} characters together")
        if "MemoryError" in error(cell).partition(":")[0]:
            cut = cut or "needed more memory than a submission may use"
        if cut:
            reasons.append(f"{name}: {cut}")
        if not began and is_solution(cell):
            failed[name] = f"{name} was not run to its end: {cut or error(cell)}"
        if not began and name in first:
            raise Stopped(f"{name} stopped: {error(cell)}{cure(error(cell))}")


class Judged(Exception):
    """The judge has ended early: (what it has found, why)."""


def ending(status: list) -> str:
    """Return in words how a process ended."""
    code = status[0] if status and type(status[0]) is int else 0
    with contextlib.suppress(ValueError):
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended itself with status {code}"


def unjudged(cell: Any, said: str) -> None:
    """Leave the points of a test cell open."""
    cell.metadata["parts"] = [
        {"name": part["name"], "points": part["points"], "earned": None, "said": said}
        for part in parts(cell)
        if part["points"]
    ]


def job(source: nbformat.NotebookNode, tests: list[str], limits: Limits) -> dict:
    """Return what the judge is told: the assignment's cells and its limits."""
    cells: list[dict] = []
    first = [mark(cell)["grade_id"] for cell in setup(source)]
    last = max((k for k, cell in enumerate(source.cells) if is_test(cell)), default=0)
    for cell in source.cells[: last + 1]:
        if not (is_test(cell) or is_locked(cell) or is_solution(cell)):
            continue
        name = mark(cell)["grade_id"]
        told = {"name": name, "names": sorted(names(cell.source)), "source": cell.source}
        if is_test(cell):
            told |= {"kind": "test", "number": tests.index(name), "parts": parts(cell)}
        elif is_locked(cell):
            told |= {"kind": "locked", "is_setup": name in first}
        else:
            told |= {"kind": "solution", "source": ""}
        cells.append(told)
    return {"cells": cells, "call_s": limits.call_s, "test_s": limits.test_s}


def executed(
    notebook: nbformat.NotebookNode,
    source: nbformat.NotebookNode,
    student: str,
    files: list[Path],
    limits: Limits,
    seed: int,
) -> list[str]:
    """Run and judge a notebook; return the reasons for a person to look.

    Outputs are stored in it, and in the metadata of each test cell its parts, with what each
    earned: None where a test was not run, or its result cannot be known.
    """
    reasons: list[str] = []
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    tests = [mark(cell)["grade_id"] for cell in filter(is_test, code)]
    for cell in code:
        cell.outputs, cell.execution_count = [], None
        if is_test(cell):
            unjudged(cell, "not run")
    given = {mark(cell).get("grade_id"): cell for cell in release(source).cells}
    failed: dict[str, str] = {}  # solution cells that earn nothing, and why
    frozen: list[str] = []
    run = None
    try:
        run = Run(len(tests), student, files, limits, seed)
        run.start(source, tests)
        try:
            run_cells(run, code, source, frozen, failed, reasons)
        except Stopped as stop:
            reasons.append(str(stop))
        for cell in filter(is_solution, code):
            name = mark(cell)["grade_id"]
            if same(cell, given[name]):
                failed[name] = f"NotImplementedError: {name} is still as it was handed out"
        verdicts = run.verdicts(len(tests)) if frozen else {}
    except Judged as judged:
        verdicts, why = judged.args
        reasons.append(why)
    except Stopped as stop:
        verdicts = {}
        reasons.append(str(stop))
    finally:
        if run:
            run.close()
    for cell in filter(is_test, code):
        name = mark(cell)["grade_id"]
        if name in frozen and name in verdicts:
            divided = parts(cell)
            for part, verdict in zip(divided, verdicts[name], strict=True):
                part |= {"earned": verdict["earned"], "said": clipped(verdict["said"], 2000)}
                del part["source"]
            # The preamble has no points to lose; what it says stands in the parts as well.
            cell.metadata["parts"] = [part for part in divided if part["points"]]
        for answer in answers(source)[name]:
            if answer in failed:
                for part in cell.metadata["parts"]:
                    part |= {"earned": 0, "said": failed[answer]}
        open_parts = [part["said"] for part in cell.metadata["parts"] if part["earned"] is None]
        if name in frozen and open_parts:
            reasons.append(f"{name}: {open_parts[0]}")
    return reasons
