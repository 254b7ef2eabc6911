"""A place to run code that nobody trusts: its own file system, processes, user and no network.

Linux only, built by bubblewrap. Root starts the code under a user id that no account has; anyone
else in a user namespace, where the kernel allows that. Nothing of it lies in a folder of the
machine: its home is in memory, and it speaks over sockets that were open before it started, so that
no other account can reach it. What it may read is listed; solutions, gradebook and the other
submissions are not in its file system at all.
"""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import psutil
from wire import Peer, Unanswered

ROOT = Path(__file__).parents[1]
HERE = Path(__file__).parent
HOME = "/home/student"
FIRST_UID, N_UIDS = 64000, 1000  # of the range that Debian and systemd leave free
POLL_S = 0.1
START_S = 60  # a machine that is busy may take long to start a program
MAX_FILES = 20_000
# Ways to other users' keys, to the kernel's rarer parts and to new namespaces; no notebook needs
# one of them.
FORBIDDEN = (
    *("add_key", "request_key", "keyctl", "ptrace", "process_vm_readv", "process_vm_writev"),
    *("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "kexec_load"),
    *("unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "open_by_handle_at"),
    *("init_module", "finit_module", "delete_module", "quotactl", "swapon", "swapoff", "acct"),
    *("move_mount", "open_tree", "fsopen", "fsmount", "fspick", "mount_setattr", "kcmp"),
    *("pidfd_getfd", "name_to_handle_at", "vhangup", "syslog", "iopl", "ioperm", "lookup_dcookie"),
    # Memory that no process need hold or map, so that nobody counts it.
    *("memfd_create", "memfd_secret", "shmget", "msgget", "semget"),
)
taken: set[int] = set()  # user ids of sandboxes that run
lock = threading.Lock()


@dataclass(frozen=True)
class Limits:
    """What one submission may use."""

    cell_s: float = 20  # of the student's cells, each
    notebook_s: float = 90  # all of them together
    call_s: float = 10  # one call by the judge
    test_s: float = 60  # one test cell
    judge_s: float = 180  # all test cells together
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
        str(Path(matplotlib.__file__).parents[1]),  # where packages are
    }
    outside = [path for path in sorted(python) if not path.startswith("/usr/")]
    # A folder that lies inside another one of the list is there already.
    outside = [p for p in outside if not any(p != q and p.startswith(q + "/") for q in outside)]
    return [*system, *outside, str(ROOT / "lib"), str(ROOT / "data")]


def free_uid() -> int:
    """Return a user id that no account and no running sandbox has, and reserve it."""
    accounts = {entry.pw_uid for entry in pwd.getpwall()}
    first = int.from_bytes(os.urandom(4)) % N_UIDS
    with lock:
        uids = (FIRST_UID + (first + k) % N_UIDS for k in range(N_UIDS))
        running = {process.info["uids"].real for process in psutil.process_iter(["uids"])}
        uid = next(uid for uid in uids if uid not in accounts | taken | running)
        taken.add(uid)
    return uid


def filter_file() -> int:
    """Return a descriptor of the filter that refuses the forbidden calls of the kernel."""
    try:
        import pyseccomp  # only Linux has it
    except (ImportError, RuntimeError, OSError) as error:
        raise Refused(
            f"no filter of system calls ({error}): install the package libseccomp2"
        ) from None

    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    refusal = pyseccomp.ERRNO(1)
    for name in FORBIDDEN:
        with contextlib.suppress(OSError, RuntimeError):  # not every machine has each
            rules.add_rule(refusal, name)
    # New namespaces by clone(); sockets that no network namespace holds (virtual machines, crypto).
    new_user = 0x10000000
    rules.add_rule(refusal, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, new_user, new_user))
    rules.add_rule(pyseccomp.ERRNO(38), "clone3")  # its flags cannot be seen: libc takes clone()
    for family in range(3, 46):
        if family != socket.AF_INET6:
            # The kernel reads 32 bits of it.
            same = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, 2**32 - 1, family)
            rules.add_rule(refusal, "socket", same)
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return os.dup(file.fileno())


def environment(given: dict[str, str]) -> dict[str, str]:
    """Return the variables of a program in the sandbox, and no others.

    They do not stand on bubblewrap's command line, which every account can read.
    """
    values = {
        "HOME": HOME,
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": 1,
        "OPENBLAS_NUM_THREADS": 1,
        "MKL_NUM_THREADS": 1,
        "HF_HUB_OFFLINE": 1,
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PYTHONPATH": f"{ROOT / 'lib'}:{HOME}",
        "PYTHONDONTWRITEBYTECODE": 1,
    } | given
    return {name: str(value) for name, value in values.items()}


def command(
    program: list[str],
    limits: Limits,
    files: list[Path],
    uid: int | None,
    seccomp: int,
) -> list[str]:
    """Return the command that runs a program in the sandbox."""
    found = shutil.which("bwrap", path=f"{os.environ.get('PATH', '')}:/usr/bin:/bin")
    bwrap = [found or "bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    # Without --die-with-parent: bubblewrap that is killed in its first moments leaves a child that
    # waits for it for ever. The child ends with the grader (first.py), and bubblewrap with it.
    bwrap += ["--unshare-cgroup-try", "--new-session", "--as-pid-1"]
    bwrap += ["--hostname", "sandbox", "--cap-drop", "ALL", "--seccomp", str(seccomp)]
    if uid is None:
        bwrap += ["--unshare-user"]
    else:  # to become another user, once
        for right in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
            bwrap += ["--cap-add", right]
    bwrap += ["--proc", "/proc", "--dev", "/dev", "--perms", "0755", "--dir", "/home"]
    # Before all that is shown, which may lie below one of these.
    for place in ("/dev/shm", "/tmp", HOME):
        size = str(limits.disk_bytes // 4 if place != HOME else limits.disk_bytes // 2)
        bwrap += ["--perms", "1777", "--size", size, "--tmpfs", place]
    shown = [*readable(), *(str(HERE / name) for name in ("wire.py", "first.py", program[0]))]
    # Folders on the way to what is shown: bubblewrap would close them to other users.
    for folder in sorted({str(parent) for path in shown for parent in Path(path).parents}):
        if folder != "/" and not any(folder == p or folder.startswith(p + "/") for p in shown):
            bwrap += ["--perms", "0755", "--dir", folder]
    for path in shown:
        if os.path.islink(path):
            bwrap += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            bwrap += ["--ro-bind", path, path]
    for path in files:
        bwrap += ["--ro-bind", str(path), f"{HOME}/{path.name}"]
    # Without its list of fonts, matplotlib spends seconds on making one.
    for folder in (".config", ".cache", ".cache/matplotlib"):
        bwrap += ["--perms", "0777", "--dir", f"{HOME}/{folder}"]
    for path in Path(matplotlib.get_cachedir()).glob("fontlist-*.json"):
        bwrap += ["--ro-bind", str(path), f"{HOME}/.cache/matplotlib/{path.name}"]
    bwrap += ["--remount-ro", "/dev", "--remount-ro", "/"]
    bwrap += ["--chdir", HOME, "--"]
    if uid is not None:
        bwrap += ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        bwrap += ["--bounding-set=-all", "--inh-caps=-all"]
    return [*bwrap, sys.executable, str(HERE / program[0]), *program[1:]]


def resource_limits(limits: Limits) -> dict[str, int]:
    """Return what a program in the sandbox asks the kernel to hold it to, before all else."""
    return {
        "RLIMIT_AS": limits.memory_bytes,
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_CPU": int(limits.notebook_s + limits.judge_s) + 1,
        "RLIMIT_NOFILE": 256,
        "RLIMIT_CORE": 0,
    }


class Sandbox:
    """A program of this folder that runs in the sandbox, from its start to its last process."""

    def __init__(
        self,
        program: str,
        wires: list[socket.socket],
        values: dict[str, str],
        limits: Limits,
        files: list[Path],
    ):
        """Start `program`.

        It inherits `wires`, and `values` in its environment; `files` are put into its home.
        """
        self.limits = limits
        self.notebook: psutil.Process | None = None
        self.uid = free_uid() if os.geteuid() == 0 else None
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        seccomp = filter_file()
        handed = [wire.fileno() for wire in wires]
        line = command([program, *map(str, handed)], limits, files, self.uid, seccomp)
        try:
            self.process = subprocess.Popen(
                line,
                pass_fds=[*handed, seccomp],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                start_new_session=True,
                env=environment(values),
            )
        finally:
            os.close(seccomp)

    def family(self) -> list[psutil.Process]:
        """Return the processes inside; the program itself is the first."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def remember(self) -> None:
        """Note which process is the notebook, while it is the only child of the first one."""
        with contextlib.suppress(IndexError):
            self.notebook = self.family()[1]

    def interrupt(self) -> None:
        """Send the notebook what Ctrl-C sends."""
        with contextlib.suppress(psutil.NoSuchProcess, AttributeError):
            self.notebook.send_signal(signal.SIGINT)

    def stop(self) -> None:
        """End the notebook, and leave what it has frozen for the tests."""
        with contextlib.suppress(psutil.NoSuchProcess, AttributeError):
            self.notebook.kill()

    def excess(self) -> str:
        """Return which limit on memory and files the processes inside exceed, in words."""
        total, family = 0, self.family()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        if total > self.limits.memory_bytes:  # what children share with their parent counts once
            total = 0
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    try:
                        total += process.memory_full_info().pss
                    except psutil.AccessDenied:  # it has asked the kernel to hide that
                        total += process.memory_info().rss
        if total > self.limits.memory_bytes:
            return f"used more than {self.limits.memory_bytes / 2**20:.0f} MiB of memory"
        if family:
            for place in ("/dev/shm", "/tmp", HOME):
                with contextlib.suppress(OSError):
                    space = os.statvfs(f"/proc/{family[0].pid}/root{place}")
                    if space.f_files - space.f_ffree > MAX_FILES:
                        return f"made more than {MAX_FILES} files"
        return ""

    def ended(self) -> str:
        """Return how the program ended, in words; empty while it runs."""
        code = self.process.poll()
        if code is None:
            return ""
        if code < 0 or code > 128:
            number = -code if code < 0 else code - 128
            with contextlib.suppress(ValueError):
                return f"its process was ended by {signal.Signals(number).name}"
        return f"its process ended itself with status {code}"

    def complaints(self) -> str:
        """Return the last line that the start of the sandbox wrote."""
        size = self.errors.seek(0, os.SEEK_END)
        self.errors.seek(max(0, size - 2000))
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def close(self) -> None:
        """End every process inside; its file system goes with the last one.

        Bubblewrap ends with its child; killed in its first moments, it would leave one that waits.
        """
        while self.process.poll() is None:
            for process in self.family()[:1]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()  # the first process of its namespace: the kernel ends the rest
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(POLL_S)
        self.errors.close()
        with lock:
            taken.discard(self.uid)


def check() -> None:
    """Raise Refused, with the reason, unless this machine can run the sandbox."""
    if sys.platform != "linux":
        raise Refused(
            f"grading runs each submission in namespaces of the Linux kernel, and this is "
            f"{sys.platform}. Use a Linux machine, a virtual one, or a Linux container."
        )
    for tool, package in (("bwrap", "bubblewrap"), ("setpriv", "util-linux")):
        if not shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/bin:/bin"):
            raise Refused(f"{tool} is missing: install the package {package}")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sandbox = Sandbox("judge.py", [theirs], {}, Limits(), [])
        theirs.close()
        judge = Peer(ours)
        judge.deadline = time.monotonic() + START_S
        try:
            judge.send("job", {"limits": {}, "cells": []})
            works = judge.receive() == ("end", [])
        except Unanswered:
            works = False
        ended, complaint = sandbox.ended() or "it did not start", sandbox.complaints()
        sandbox.close()
    if not works:
        who = "" if os.geteuid() == 0 else " Start make grade as root, or allow user namespaces."
        raise Refused(f"the sandbox does not start here: {complaint or ended}.{who}")
