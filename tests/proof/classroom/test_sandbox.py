"""The sandbox from outside: files, users and processes. What it refuses is in check/grading."""

import os
import pwd
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import sandbox
from marking import error, points
from sandbox import Limits, Refused, Sandbox

import tiny_assignment
from tiny_assignment import PATIENT, judged, named, solved

pytestmark = pytest.mark.usefixtures("sandboxed")


def output(code: str, files=()) -> str:
    handed_in = solved(double=f"{code}\ndef double(x):\n    return 2 * x")
    notebook, reasons = judged(tiny_assignment.source(), handed_in, files=files)
    cell = named(notebook, "double")
    assert (reasons, error(cell), sum(points(notebook).values())) == ([], "", 85)
    return "".join(found.text for found in cell.outputs)


def test_the_book_may_lie_below_the_folder_for_temporary_files(monkeypatch):
    """The sandbox has a folder of its own there, which must not cover the book."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    (folder / "shown").write_text("here", encoding="utf-8")
    shown = sandbox.readable()
    monkeypatch.setattr(sandbox, "readable", lambda: [*shown, str(folder)])
    assert output(f"print(open('{folder}/shown').read())") == "here\n"
    shutil.rmtree(folder)


def test_every_submission_is_another_user():
    if os.getuid() != 0:
        pytest.skip("only root has other users to be")
    found = {sandbox.free_uid() for _ in range(20)}
    assert len(found) == 20
    found.add(int(output("import os; print(os.getuid())")))
    assert len(found) == 21 and not found & {entry.pw_uid for entry in pwd.getpwall()}
    sandbox.taken.difference_update(found)


def test_closing_ends_every_process():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        box = Sandbox("judge.py", [theirs], {}, PATIENT, [])
        while not (found := box.family()):
            assert box.ended() == ""
            time.sleep(0.05)
        box.close()
    assert psutil.wait_procs(found, timeout=300)[1] == []
    assert "SIGKILL" in box.ended()


def test_memory_that_a_process_hides_counts(monkeypatch):
    def hidden(process):
        raise psutil.AccessDenied

    found = Sandbox.__new__(Sandbox)
    found.limits = Limits(memory_bytes=psutil.Process().memory_info().rss // 2)
    monkeypatch.setattr(found, "family", lambda: [psutil.Process()], raising=False)
    monkeypatch.setattr(psutil.Process, "memory_full_info", hidden)
    assert "used more than" in found.excess()


def test_elsewhere_it_refuses_and_says_why(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(Refused, match=r"namespaces of the Linux kernel, and this is darwin"):
        sandbox.check()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sandbox.shutil, "which", lambda name, **_: None)
    with pytest.raises(Refused, match=r"bwrap is missing: install the package bubblewrap"):
        sandbox.check()
