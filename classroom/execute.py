"""Run a prepared notebook in the sandbox, and write down what each cell did.

The kernel is inside, this program outside: it sends the cells, measures time and output, and keeps
what comes back as plain text and pictures. Nothing that comes back is trusted to be well-formed,
short, or true; whether a test passed is read from the kernel's reply alone. Before each test cell
the reply itself is tested: checks that must fail are sent, and a kernel that lets them pass has
been tampered with.
"""

import base64
import binascii
import contextlib
import json
import re
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

import matplotlib
import nbformat
import zmq
from jupyter_client import BlockingKernelClient
from marking import error, is_test, mark
from nbformat.v4 import new_output
from sandbox import START_S, Limits, Sandbox

POLL_S = 0.1
GRACE_S = 3  # for a cell that was interrupted
LATE_S = 2  # for output that follows the reply
CHECK_S = 10
MAX_MESSAGE = 8 * 2**20  # bytes; ZeroMQ drops the connection that sends more
MAX_QUEUE = 32  # messages
MAX_TEXT = 10_000  # characters of one output that is kept
MAX_PICTURE = 2**20  # characters of base64
MAX_OUTPUTS = 50  # of one cell
# No process, file or space was left: a test that ends so says nothing about the answer.
EXHAUSTED = re.compile(r"Error: \[Errno (11|24|27|28)\]|: can't start new thread")
# What a second run may cure: the machine was busy, or full.
PASSING = re.compile(r"the kernel did not start|ran longer than|met a limit of the sandbox")
CHECKS = {
    "the checks no longer see a wrong value: `expect` or the kernel was changed": (
        "expect({nonce!r}, {got}, {other})"
    ),
    "the notebook works for another student than its folder": (
        "assert str.__ne__(student, {student!r}), {nonce!r}"
    ),
    "the checks no longer see a wrong value: NumPy's comparisons were changed": (
        "import numpy\n"
        "assert numpy.allclose({got}, {other}) or numpy.array_equal([{got}], [{other}]), {nonce!r}"
    ),
}


class Stopped(Exception):
    """The kernel can run no further cell; the message says why."""


def clipped(text) -> str:
    """Return the beginning of a text, whatever was sent as text."""
    text = text if isinstance(text, str) else repr(type(text))
    text = text.encode(errors="replace").decode()  # half a character cannot be written to a file
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "\n… (cut)"


def kept(kind: str, content: dict) -> nbformat.NotebookNode | None:
    """Return an output as plain text or a picture: no HTML, no script, nothing that a page runs."""
    if kind == "stream":
        name = "stderr" if content.get("name") == "stderr" else "stdout"
        return new_output("stream", name=name, text=clipped(content.get("text")))
    if kind == "error":
        return failure(content)
    if kind not in ("display_data", "execute_result"):
        return None
    sent = content.get("data")
    sent = sent if isinstance(sent, dict) else {}
    data = {}
    picture = sent.get("image/png")
    if isinstance(picture, str) and len(picture) <= MAX_PICTURE:
        with contextlib.suppress(binascii.Error, ValueError):
            raw = base64.b64decode("".join(picture.split()), validate=True)
            if raw.startswith(b"\x89PNG\r\n\x1a\n"):
                data["image/png"] = base64.b64encode(raw).decode()
    if "text/plain" in sent:
        data["text/plain"] = clipped(sent["text/plain"])
    return new_output("display_data", data=data) if data else None


def failure(content: dict) -> nbformat.NotebookNode:
    """Return the output of a cell that raised."""
    lines = content.get("traceback")
    lines = lines if isinstance(lines, list) else []
    return new_output(
        "error",
        ename=clipped(content.get("ename"))[:100],
        evalue=clipped(content.get("evalue"))[:1000],
        traceback=[clipped(line) for line in lines[:30]],
    )


def cure(said: str) -> str:
    """Return what a teacher can do about a setup that stopped; empty where nothing is known."""
    if "another student id" not in said:
        return ""
    return "; if it is the same person, correct the STUDENT line in the submitted file, grade again"


class Kernel:
    """A Python kernel in the sandbox, and our end of the wires to it."""

    def __init__(self, student: str, files: list[Path], limits: Limits):
        """Start it; `files` are put into its home folder."""
        self.limits = limits
        self.folder = Path(tempfile.mkdtemp(prefix="ft-"))
        home = self.folder / "home"
        home.mkdir()
        for path in files:
            shutil.copy(path, home)
        # Without its list of fonts, matplotlib spends seconds on making one.
        for path in Path(matplotlib.get_cachedir()).glob("fontlist-*.json"):
            (home / ".cache" / "matplotlib").mkdir(parents=True, exist_ok=True)
            shutil.copy(path, home / ".cache" / "matplotlib")
        ports = {"shell": 1, "iopub": 2, "stdin": 3, "control": 4, "hb": 5}
        connection = {f"{name}_port": port for name, port in ports.items()} | {
            "transport": "ipc",
            "ip": str(self.folder / "kernel"),
            "key": secrets.token_hex(),
            "signature_scheme": "hmac-sha256",
        }
        file = self.folder / "connection.json"
        file.write_text(json.dumps(connection))
        self.folder.chmod(0o755)
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", str(file)]
        command += ["--HistoryManager.enabled=False", "--IPKernelApp.capture_fd_output=False"]
        self.sandbox = Sandbox(command, self.folder, student, limits)
        context = zmq.Context()
        context.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE)
        context.setsockopt(zmq.RCVHWM, MAX_QUEUE)
        context.setsockopt(zmq.LINGER, 0)
        self.client = BlockingKernelClient(context=context)
        self.client.load_connection_info(connection)
        self.client.start_channels(stdin=False, hb=False, control=False)
        # ZeroMQ drops a message that is too long and says so only here.
        events = zmq.EVENT_DISCONNECTED
        self.monitor = self.client.iopub_channel.socket.get_monitor_socket(events)
        self.deadline = time.monotonic() + START_S

    def wait_until_ready(self) -> None:
        """Wait for the first answer, before any code of the student runs."""
        while time.monotonic() < self.deadline and not self.sandbox.ended():
            with contextlib.suppress(RuntimeError):
                self.client.wait_for_ready(timeout=1)
                self.sandbox.lock_channel()
                self.deadline = time.monotonic() + self.limits.total_s
                return
        raise Stopped(
            f"the kernel did not start: {self.sandbox.complaints() or self.sandbox.ended()}"
        )

    def close(self) -> None:
        """End the kernel and all that it started."""
        self.client.iopub_channel.socket.disable_monitor()
        self.client.stop_channels()
        self.sandbox.close()
        self.client.context.destroy(linger=0)
        shutil.rmtree(self.folder, ignore_errors=True)

    def messages(self, wait_s: float):
        """Yield (channel, message) of what arrives within `wait_s`."""
        channels = {"iopub": self.client.iopub_channel, "shell": self.client.shell_channel}
        poller = zmq.Poller()
        for channel in channels.values():
            poller.register(channel.socket, zmq.POLLIN)
        ready = dict(poller.poll(int(wait_s * 1000)))
        for name, channel in channels.items():
            if channel.socket in ready:
                try:
                    yield name, channel.get_msg(timeout=0)
                except Exception as error:
                    raise Stopped("the kernel sent a broken message") from error

    def run(self, code: str, limit_s: float) -> tuple[dict, list, str]:
        """Return (reply, outputs, why it was cut short or '') of one piece of code."""
        # Without history, `In` does not hand the hidden tests to a later cell.
        request = self.client.execute(
            code, store_history=False, allow_stdin=False, stop_on_error=False
        )
        start = time.monotonic()
        limit = min(start + limit_s, self.deadline)
        reply, outputs, size, idle, cut = None, [], 0, False, ""
        interrupted_at, replied_at, weighed_at = 0, 0, 0
        while not (reply and idle):
            for channel, message in self.messages(POLL_S):
                content = message.get("content")
                if not isinstance(content, dict):
                    raise Stopped("the kernel sent a broken message")
                if message.get("parent_header", {}).get("msg_id") != request:
                    continue
                kind = message["msg_type"]
                if channel == "shell":
                    reply, replied_at = content, time.monotonic()
                elif kind == "status":
                    idle = content.get("execution_state") == "idle"
                else:
                    size += len(repr(content))
                    output = kept(kind, content)
                    if output and size <= self.limits.output_bytes and len(outputs) < MAX_OUTPUTS:
                        outputs.append(output)
            if self.monitor.poll(0):
                raise Stopped(self.gone(LATE_S) or f"sent more than {MAX_MESSAGE} bytes at once")
            now = time.monotonic()
            heavy = now > weighed_at + POLL_S and self.sandbox.memory_bytes()
            weighed_at = weighed_at if heavy is False else now
            if heavy > self.limits.memory_bytes:
                raise Stopped(
                    f"used more than {self.limits.memory_bytes / 2**20:.0f} MiB of memory"
                )
            if said := self.gone(0):
                raise Stopped(said)
            if reply and now > replied_at + LATE_S:
                return reply, outputs, cut or "its output did not arrive in full"
            if not cut and size > self.limits.output_bytes:
                cut = f"wrote more than {self.limits.output_bytes} bytes of output"
            elif not cut and now > limit:
                cut = f"ran longer than {limit - start:.0f} s"
            if cut and not interrupted_at and not reply:
                interrupted_at = now
                self.sandbox.interrupt()
            if interrupted_at and not reply and now > interrupted_at + GRACE_S:
                if not idle:
                    raise Stopped(f"{cut}, and did not stop when interrupted")
                # The interrupt met a kernel whose cell had just ended: the reply is lost.
                return {"status": "error", "ename": "KeyboardInterrupt"}, outputs, cut
        return reply, outputs, cut

    def gone(self, wait_s: float) -> str:
        """Return how the kernel ended, in words, if it does within `wait_s`."""
        deadline = time.monotonic() + wait_s
        while not (ended := self.sandbox.ended()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return f"the kernel is gone: {ended}" if ended else ""

    def tampering(self, student: str) -> str:
        """Return what no longer can be trusted in the kernel, in words; empty if nothing shows."""
        for said, template in CHECKS.items():
            nonce = secrets.token_hex(8)
            # Values that are always the same would tell the check from the calls of the tests.
            got = secrets.randbelow(1000)
            other = got + 1 + secrets.randbelow(1000)
            code = template.format(nonce=nonce, student=student, got=got, other=other)
            reply, _, cut = self.run(code, CHECK_S)
            if cut:
                return f"a check that must fail was cut off: it {cut}"
            # An error that is not the check's own, as a missing name, proves nothing.
            if reply.get("status") != "error" or nonce not in str(reply.get("evalue")):
                return said
        return ""


def executed(
    notebook: nbformat.NotebookNode, student: str, files: list[Path], limits: Limits
) -> list[str]:
    """Run every code cell, store the outputs in it, and return the reasons for a person to look.

    A test cell that was not run, or whose result cannot be known, gets `unknown` in its metadata.
    """
    reasons = []
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in code:
        cell.outputs, cell.execution_count = [], None
    not_run, shown = list(code), 0
    # Nothing can work after a setup that failed: the locked cells before the first task.
    tasks = [k for k, cell in enumerate(code) if mark(cell).get("solution")]
    setup = [id(cell) for cell in code[: min(tasks, default=0)] if mark(cell).get("locked")]
    kernel = None
    try:
        kernel = Kernel(student, files, limits)
        kernel.wait_until_ready()
        while not_run:
            cell = not_run[0]
            name = mark(cell).get("grade_id", "a cell without a name")
            if time.monotonic() > kernel.deadline:
                raise Stopped(f"{name}: all cells together ran longer than {limits.total_s:.0f} s")
            if shown > limits.notebook_bytes:
                raise Stopped(f"{name}: the outputs before it have {shown} characters together")
            if is_test(cell) and (found := kernel.tampering(student)):
                raise Stopped(found)
            try:
                reply, cell.outputs, cut = kernel.run(cell.source, limits.cell_s)
            except Stopped as stop:
                raise Stopped(f"{name}: {stop}") from None
            shown += sum(len(str(output)) for output in cell.outputs)
            if reply.get("status") != "ok" and not any(
                output.output_type == "error" for output in cell.outputs
            ):
                cell.outputs.append(failure(reply))
            if any("MemoryError" in output.get("ename", "") for output in cell.outputs):
                cut = cut or "needed more memory than a submission may use"
            if EXHAUSTED.search(error(cell)):
                cut = cut or "met a limit of the sandbox"
            if cut:
                reasons.append(f"{name}: {cut}")
                if is_test(cell):
                    cell.metadata["unknown"] = True
            # What a test's own call has changed counts against that test: until here it is unknown.
            if is_test(cell) and not error(cell) and (found := kernel.tampering(student)):
                raise Stopped(f"{name}: {found}")
            not_run.pop(0)
            if id(cell) in setup and error(cell):
                raise Stopped(f"{name} stopped: {error(cell)}{cure(error(cell))}")
    except Stopped as stop:
        reasons.append(str(stop))
    except Exception as fault:  # what was sent is the student's: nothing in it may stop the row
        reasons.append(f"what the kernel sent could not be read: {type(fault).__name__}")
    finally:
        if kernel:
            kernel.close()
    for cell in not_run:
        if is_test(cell):
            cell.metadata["unknown"] = True
    return reasons
