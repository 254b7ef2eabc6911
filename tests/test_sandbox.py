"""The sandbox: what the code inside can see, use and leave behind."""

import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import sandbox
from execute import executed
from marking import error, mark, points, prepared
from sandbox import Limits, Refused, Sandbox

import tiny_assignment
from tiny_assignment import solved

ROOT = Path(__file__).parents[1]
LIMITS = Limits(
    cell_s=20,
    notebook_s=40,
    call_s=5,
    test_s=10,
    judge_s=20,
    memory_bytes=2**31,
    processes=64,
    file_bytes=2**20,
    disk_bytes=2**24,
)


pytestmark = pytest.mark.usefixtures("sandboxed")


def output(code: str, files=(), student: str = "ada") -> str:
    """Return what a student's cell printed in the sandbox."""
    source = tiny_assignment.source()
    handed_in = solved(double=f"{code}\ndef double(x):\n    return 2 * x")
    notebook, *_ = prepared(source, handed_in)
    reasons = executed(notebook, source, student, list(files), LIMITS, 1)
    cell = next(cell for cell in notebook.cells if mark(cell).get("grade_id") == "double")
    assert (reasons, error(cell), sum(points(notebook).values())) == ([], "", 85)
    return "".join(found.text for found in cell.outputs)


PROBE = """
import ctypes, json, os, socket
found = {{"seen": [path for path in {secrets} if os.path.exists(path)]}}
status = open("/proc/self/status").read()
rights = [line for line in status.splitlines() if line.startswith("Cap")]
found["capable"] = [line for line in rights if "0" * 16 not in line]
found["privileges"] = "NoNewPrivs:\\t1" in status
found["filter"] = "Seccomp:\\t2" in status
found["groups"] = os.getgroups()
found["user"] = os.getuid()
found["processes"] = len([name for name in os.listdir("/proc") if name.isdigit()])
try:
    socket.create_connection(("127.0.0.1", {port}), timeout=1)
    found["network"] = True
except OSError:
    found["network"] = False
def refused(action, *arguments):
    try:
        action(*arguments)
    except OSError as error:
        return True
    return False
def write(path, size):
    with open(path, "wb") as file:
        file.write(bytes(size))
found["library"] = refused(write, {library!r}, 1)
found["root"] = refused(write, "/new", 1)
found["device"] = refused(write, "/dev/new", 1)
found["long"] = refused(write, "long", 2 * 10**6)
found["many"] = [refused(write, f"file{{k}}", 10**6) for k in range(20)][-1]
found["sockets"] = [refused(socket.socket, family) for family in (16, 17, 38, 40)]
libc = ctypes.CDLL(None, use_errno=True)
calls = {{"keyctl": 250, "add_key": 248, "ptrace": 101, "unshare": 272, "mount": 165, "bpf": 321}}
arguments = {{"keyctl": (0, -3, 0), "unshare": (0x10000000,)}}
found["calls"] = [
    name for name, number in calls.items()
    if libc.syscall(number, *arguments.get(name, (0, 0, 0))) != -1 or ctypes.get_errno() != 1
]
found["setuid"] = [
    os.path.join(folder, name) for folder in ("/usr/bin", "/bin")
    for name in os.listdir(folder) if os.stat(os.path.join(folder, name)).st_mode & 0o4000
    and not os.statvfs(folder).f_flag & os.ST_NOSUID
] if os.path.isdir("/usr/bin") else []
print(json.dumps(found))"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")
def test_the_sandbox_shows_nothing_of_the_machine(tmp_path):
    """No solutions, no other work, no network, no rights, no other user's keys, a small disk."""
    secrets = [tmp_path, ROOT / "assignments", ROOT / "tests", Path.home() / ".ssh", ROOT / ".git"]
    secrets += [Path("/etc/shadow"), Path("/etc/passwd"), ROOT / "classroom" / "judge.py"]
    secrets += [Path("/home/student").parent / "teacher", Path("/run"), Path("/var"), Path("/srv")]
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = PROBE.format(
            secrets=list(map(str, secrets)),
            port=server.getsockname()[1],
            library=str(ROOT / "lib" / "firsttoken" / "new.py"),
        )
        found = json.loads(output(code))
    assert found.pop("user") != 0 or os.getuid() != 0
    assert found.pop("groups") in ([], [os.getgid()], [65534])
    assert found == {
        "seen": [],
        "capable": [],
        "privileges": True,
        "filter": True,
        "processes": 2,  # the first one, which keeps what is frozen, and the notebook
        "network": False,
        "library": True,
        "root": True,
        "device": True,
        "long": True,
        "many": True,
        "sockets": [True] * 4,
        "calls": [],
        "setuid": [],
    }


def test_files_of_an_assignment_are_there_to_be_read(tmp_path):
    (tmp_path / "log.csv").write_text("1,2", encoding="utf-8")
    said = output("print(open('log.csv').read())", [tmp_path / "log.csv"])
    assert said == "1,2\n"


def test_the_book_may_lie_below_the_folder_for_temporary_files(monkeypatch):
    """The sandbox has a folder of its own there, which must not cover the book."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    (folder / "shown").write_text("here", encoding="utf-8")
    shown = sandbox.readable()
    monkeypatch.setattr(sandbox, "readable", lambda: [*shown, str(folder)])
    assert output(f"print(open('{folder}/shown').read())") == "here\n"
    shutil.rmtree(folder)


def test_nothing_is_left_for_the_next_submission():
    leave = "import pathlib\nfor place in ('/tmp', '/dev/shm', '.'):\n"
    write = leave + "    pathlib.Path(place, 'left').write_text('x')\nprint('done')"
    look = leave + "    print(pathlib.Path(place, 'left').exists())"
    assert output(write) == "done\n"
    assert output(look) == "False\n" * 3


def test_every_submission_is_another_user():
    if os.getuid() != 0:
        pytest.skip("only root has other users to be")
    uids = [int(output("import os; print(os.getuid())")) for _ in range(2)]
    assert uids[0] != uids[1]
    assert not set(uids) & {entry.pw_uid for entry in pwd.getpwall()}
    found = {sandbox.free_uid() for _ in range(20)}
    assert len(found) == 20
    sandbox.taken.difference_update(found)


def running(command: list[str]) -> list[psutil.Process]:
    """Return the processes with this command line."""
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == command]


def test_a_grader_that_is_killed_takes_the_sandbox_with_it():
    code = """
import socket, sandbox, sys, time
ours, theirs = socket.socketpair()
box = sandbox.Sandbox("judge.py", [theirs], {}, sandbox.Limits(), [])
while not box.family():
    time.sleep(0.05)
print(*(process.pid for process in box.family()), flush=True)
time.sleep(60)"""
    grader = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT / "classroom", stdout=subprocess.PIPE, text=True
    )
    found = [psutil.Process(int(pid)) for pid in grader.stdout.readline().split()]
    assert found
    grader.kill()
    grader.wait()
    grader.stdout.close()
    assert psutil.wait_procs(found, timeout=30)[1] == []


def test_closing_ends_every_process():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        box = Sandbox("judge.py", [theirs], {}, LIMITS, [])
        deadline = time.monotonic() + 30
        while not (found := box.family()) and time.monotonic() < deadline:
            time.sleep(0.05)
        box.close()
    assert found and psutil.wait_procs(found, timeout=30)[1] == []
    assert re.search(signal.SIGKILL.name, box.ended())


def test_memory_that_a_process_hides_counts(monkeypatch):
    def hidden(process):
        raise psutil.AccessDenied

    found = Sandbox.__new__(Sandbox)
    found.limits = Limits(memory_bytes=psutil.Process().memory_info().rss // 2)
    monkeypatch.setattr(found, "family", lambda: [psutil.Process()], raising=False)
    monkeypatch.setattr(psutil.Process, "memory_full_info", hidden)
    assert "used more than" in found.excess()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("hog = [bytearray(2**27) for _ in range(8)]\nimport os\nfor _ in range(4): os.fork()\n"
         "hog2 = [bytearray(b'x') * 2**27 for _ in range(8)]", "used more than 2048 MiB of memory"),
        ("for k in range(10**6): open(f'/tmp/{k}', 'w').close()", "made more than 20000 files"),
    ],
)  # fmt: skip
def test_too_much_of_all_together_ends_the_notebook(code, said):
    source = tiny_assignment.source()
    notebook, *_ = prepared(source, solved(scale=code))
    reasons = executed(notebook, source, "ada", [], LIMITS, 1)
    assert any(said in reason for reason in reasons), reasons


def test_elsewhere_it_refuses_and_says_why(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(Refused, match=r"namespaces of the Linux kernel, and this is darwin"):
        sandbox.check()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sandbox.shutil, "which", lambda name, **_: None)
    with pytest.raises(Refused, match=r"bwrap is missing: install the package bubblewrap"):
        sandbox.check()
