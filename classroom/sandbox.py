"""A place to run code that nobody trusts: its own file system, processes, user and no network.

Linux only. Root starts it under a user id that no account has; anyone else in a user namespace,
where the kernel allows that. What the code may read is listed; solutions, gradebook and the other
submissions are not in its file system at all.
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
SCRIPT = Path(__file__).with_name("sandbox.sh")
FIRST_UID, N_UIDS = 64000, 1000  # of the range that Debian and systemd leave free
START_S = 60  # a machine that is busy may take long to start a kernel
TOOLS = ("unshare", "setpriv", "prlimit", "chroot", "mount", "bash")


@dataclass(frozen=True)
class Limits:
    """What one submission may use."""

    cell_s: float = 60
    total_s: float = 300
    memory_bytes: int = 4 * 2**30
    processes: int = 128  # threads count, too
    file_bytes: int = 64 * 2**20
    disk_bytes: int = 256 * 2**20
    output_bytes: int = 2**20  # of one cell
    notebook_bytes: int = 20 * 2**20  # of all outputs that are kept


class Refused(Exception):
    """This machine cannot run untrusted code safely."""


def readable() -> list[str]:
    """Return the paths that the sandbox shows: the system, Python, the library and its data."""
    system = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"]
    system += ["/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/fonts"]
    system += ["/etc/localtime", "/etc/alternatives", "/etc/mime.types"]
    python = {
        sys.prefix,
        sys.base_prefix,
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
    }
    outside = [path for path in sorted(python) if not path.startswith("/usr/")]
    # A folder that lies inside another one of the list is there already.
    outside = [p for p in outside if not any(p != q and p.startswith(q + "/") for q in outside)]
    return [*system, *outside, str(ROOT / "lib"), str(ROOT / "data")]


def free_uid() -> int:
    """Return a user id that has no account."""
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    first = os.getpid() % N_UIDS
    return next(
        uid for k in range(N_UIDS) if (uid := FIRST_UID + (first + k) % N_UIDS) not in taken
    )


class Sandbox:
    """A command that runs in the sandbox, from its start to the end of all its processes."""

    def __init__(self, command: list[str], channel: Path, student: str, limits: Limits):
        """Start `command`; `channel` is the folder that it shares with us, with its home in it."""
        self.limits = limits
        self.channel = channel
        self.root = Path(tempfile.mkdtemp(prefix="ft-root-"))
        uid = free_uid() if os.geteuid() == 0 else None
        if uid is not None:
            os.chown(channel, uid, uid)
        values = {
            "ROOT": self.root,
            "CHANNEL": channel,
            "READABLE": "\n".join(readable()),
            "RUN_AS": "" if uid is None else uid,
            "DISK": limits.disk_bytes,
            "FILE": limits.file_bytes,
            "MEMORY": limits.memory_bytes,
            "PROCESSES": limits.processes,
            "CPU": int(limits.total_s) + 1,
            "FIRSTTOKEN_STUDENT": student,
            "PYTHONPATH": ROOT / "lib",
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
        }
        namespaces = ["--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
        if uid is None:
            namespaces += ["--user", "--map-root-user"]
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            # A grader that is killed takes the sandbox with it.
            ["setpriv", "--pdeathsig=KILL", "unshare", *namespaces, "bash", str(SCRIPT), *command],
            env={name: str(value) for name, value in values.items()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            start_new_session=True,
        )

    def lock_channel(self) -> None:
        """Let nothing more be created in the shared folder: the sockets stand."""
        if os.geteuid() == 0:
            os.chown(self.channel, 0, 0)

    def family(self) -> list[psutil.Process]:
        """Return the processes inside."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def interrupt(self) -> None:
        """Send the command what Ctrl-C sends."""
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            self.family()[0].send_signal(signal.SIGINT)

    def memory_bytes(self) -> int:
        """Return what all processes inside hold in memory together."""
        total, files = 0, {}
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
            # Files that live in memory only are held by a descriptor, and mapped by nobody.
            with contextlib.suppress(OSError):
                for entry in os.scandir(f"/proc/{process.pid}/fd"):
                    with contextlib.suppress(OSError):
                        if os.readlink(entry.path).startswith("/memfd:"):
                            status = os.stat(entry.path)
                            files[status.st_ino] = status.st_blocks * 512
        return total + sum(files.values())

    def ended(self) -> str:
        """Return how the command ended, in words; empty while it runs."""
        code = self.process.poll()
        if code is None:
            return ""
        if code < 0 or code > 128:
            number = -code if code < 0 else code - 128
            return f"its process was ended by {signal.Signals(number).name}"
        return f"its process ended itself with status {code}"

    def complaints(self) -> str:
        """Return the last line that the start of the sandbox wrote."""
        size = self.errors.seek(0, os.SEEK_END)
        self.errors.seek(max(0, size - 2000))
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def close(self) -> None:
        """End every process inside; the file system goes with the last one."""
        for process in self.family()[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()  # the first process of its namespace: the kernel ends the rest
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.process.kill()
        self.process.wait()
        self.errors.close()
        self.root.rmdir()


def check() -> None:
    """Raise Refused, with the reason, unless this machine can run the sandbox."""
    if sys.platform != "linux":
        raise Refused(
            f"grading runs each submission in namespaces of the Linux kernel, and this is "
            f"{sys.platform}. Use a Linux machine, a virtual one, or a Linux container."
        )
    places = f"{os.environ['PATH']}:/usr/sbin:/sbin"  # chroot lies where users do not look
    if missing := [tool for tool in TOOLS if not shutil.which(tool, path=places)]:
        raise Refused(f"{', '.join(missing)} missing: install the package util-linux")
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        (Path(folder) / "home").mkdir()
        sandbox = Sandbox(["true"], Path(folder), "nobody", Limits())
        deadline = time.monotonic() + START_S
        while not sandbox.ended() and time.monotonic() < deadline:
            time.sleep(0.01)
        ended, said = sandbox.ended() or "it did not start", sandbox.complaints()
        sandbox.close()
    if not ended.endswith("status 0"):
        who = "" if os.geteuid() == 0 else " Start make grade as root, or allow user namespaces."
        raise Refused(f"the sandbox does not start here: {said or ended}.{who}")
