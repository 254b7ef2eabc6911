"""The student's side of grading: runs the cells of a notebook, and answers for what they defined.

    python kernel.py CONTROL TEST TEST …

Started inside a sandbox, with numbers of open sockets: the first brings the cells, each other one
belongs to one test cell. At the place of a test cell this process forks; the child keeps the
notebook as it stands there, and later answers the judge's calls. What the student's code does to
this process harms only the student's answers: no test, no expected value and no other work is here.
"""

import builtins
import contextlib
import importlib
import io
import linecache
import os
import resource
import signal
import socket
import sys
import threading
import types
from typing import Any, NoReturn

import numpy as np
from first import stay_first
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type
from traitlets.config import Config
from wire import Peer, listed

MAX_PIECE = 2**16  # characters of output that are sent at once
RULE = "answers use of firsttoken only what the setup cell imports"


class Wire(Peer):
    """The end of a wire that a student's code may use as it likes."""

    def may_hand_over(self, value: object) -> bool:
        return True


class Control(Wire):
    """The wire to the grader, for the notebook alone: what its children write goes nowhere."""

    def __init__(self, wire: socket.socket):
        super().__init__(wire)
        self.owner, self.lock = os.getpid(), threading.Lock()

    def write(self, kind: str, *content: object) -> None:
        if os.getpid() == self.owner:
            with self.lock:  # threads print, too
                super().write(kind, *content)


class Stream(io.TextIOBase):
    """A file whose text goes to the grader."""

    def __init__(self, wire: Wire, name: str):
        self.wire, self.stream, self.text = wire, name, ""

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        self.text += text
        if len(self.text) >= MAX_PIECE:
            self.flush()
        return len(text)

    def flush(self) -> None:
        text, self.text = self.text, ""
        for start in range(0, len(text), MAX_PIECE):
            self.wire.write(
                "stream", {"name": self.stream, "text": text[start : start + MAX_PIECE]}
            )


class Hook(DisplayHook):
    """Sends the value of a cell's last line."""

    def write_output_prompt(self) -> None:
        """Write nothing: the page numbers no cells."""

    def write_format_data(self, format_dict: dict, md_dict: dict | None = None) -> None:
        self.shell.publish("display_data", {"data": format_dict})


class Publisher(DisplayPublisher):
    """Sends what `display` is given."""

    def publish(self, data: dict, *args: object, **kwargs: object) -> None:
        self.shell.publish("display_data", {"data": data})


class Shell(InteractiveShell):
    """IPython, with its outputs sent to the grader."""

    displayhook_class = Type(Hook)
    display_pub_class = Type(Publisher)

    def publish(self, kind: str, content: dict) -> None:
        """Send one output, behind all that was printed before it."""
        self.flush()
        data = content.get("data")
        if data is not None:  # a picture comes as bytes
            content = {
                "data": {key: text for key, text in data.items() if type(text) in (str, bytes)}
            }
        self.wire.write(kind, content)

    def flush(self) -> None:
        """Send what was printed until now."""
        sys.stdout.flush()
        sys.stderr.flush()

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        self.failed(etype.__name__, str(evalue), stb)

    def failed(self, name: str, value: str, traceback: list[str]) -> None:
        """Send an error."""
        self.flush()
        self.wire.write("error", {"ename": name, "evalue": value, "traceback": traceback})

    def enable_gui(self, gui: str | None = None) -> None:
        """Do nothing: there is no window."""


class Imports:
    """Holds answers to the rule on the library, as far as plain code goes.

    Code that is written to get round it does no more than a copy of the library's text would.
    """

    def __init__(self, allowed: list[list[str]]):
        self.allowed = {tuple(pair) for pair in allowed}
        self.ours: set[str] = set()  # the file names of locked cells
        self.original = builtins.__import__
        builtins.__import__ = self.guarded

    def guarded(self, name, globals=None, locals=None, fromlist=(), level=0):
        """Import, unless a student's cell names what the setup does not import."""
        if name.partition(".")[0] == "firsttoken" and (globals or {}).get("__name__") == "__main__":
            caller = sys._getframe(1).f_code.co_filename
            wanted = [(name, item) for item in fromlist or ("",)]
            if caller not in self.ours and (bad := [w for w in wanted if w not in self.allowed]):
                raise ImportError(f"{'.'.join(bad[0]).rstrip('.')}: {RULE}")
        return self.original(name, globals, locals, fromlist, level)


class Child(Wire):
    """Answers the judge, with the notebook as it stood before one test cell."""

    def __init__(self, wire: socket.socket, names: dict, twins: dict, call_s: float):
        super().__init__(wire)
        self.names, self.twins, self.call_s = names, twins, call_s

    def exceptions(self) -> dict:
        return self.names

    def serve_forever(self) -> None:
        signal.signal(signal.SIGALRM, self.ring)
        while True:
            kind, content = self.receive()
            signal.setitimer(signal.ITIMER_REAL, self.call_s)
            try:
                self.serve(kind, content)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def serve(self, request: str, args: list) -> None:
        try:
            super().serve(request, args)
        except TooLong as late:
            self.send("error", ["TooLong"], str(late))

    def ring(self, *_: object) -> None:
        """Stop a call that takes too long, but not in the middle of a message."""
        if self.waiting:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        else:
            raise TooLong(f"ran longer than {self.call_s:g} s")

    def answer(self, request: str, *args: Any) -> Any:
        if request == "names":
            return {name: self.names[name] for name in args[0] if name in self.names}
        if request == "close":
            return [close(name) for name in args[0]]
        if request == "errors":  # what NumPy does on overflow and the like
            return np.seterr(**args[0])
        if request == "call":
            return args[0](*args[1], **args[2])
        if request == "method":
            return getattr(args[0], args[1])(*args[2], **args[3])
        if request == "get":
            return getattr(args[0], args[1])
        if request == "iterate":
            return listed(args[0])
        if request == "count":
            return len(args[0])
        if request == "item":
            return args[0][args[1]]
        if request == "array":
            return np.asarray(args[0])
        raise ValueError(f"no request {request!r:.40}")


class TooLong(BaseException):
    """A call took longer than it may; no `except Exception` of the student's stops this."""


def close(name: str) -> None:
    """Let a function, or every method of a class, refuse to run, whoever holds it."""
    module, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(module), attribute)
    found = [value] if isinstance(value, types.FunctionType) else vars(value).values()
    for item in list(found):
        inner = getattr(item, "__func__", getattr(item, "fget", item))
        if isinstance(inner, types.FunctionType):
            refuse(inner, name)


def refuse(function: types.FunctionType, name: str) -> None:
    """Replace what a function does by an error that names the rule."""
    text = f"{name} is closed to this answer: write your own"
    scope: dict = {}
    exec(f"def refused(*args, **kwargs):\n    raise AssertionError({text!r})", scope)
    free = function.__code__.co_freevars
    function.__code__ = scope["refused"].__code__.replace(co_freevars=free)
    function.__defaults__ = function.__kwdefaults__ = None


def limited(limits: dict) -> None:
    """Give up what a submission may not use."""
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, name), (most, most))


class Notebook:
    """The student's notebook while it runs."""

    def __init__(self, control: socket.socket, tests: list[socket.socket]):
        self.wire, self.tests = Control(control), tests
        _, (job,) = self.wire.receive()
        limited(job["limits"])
        self.call_s = job["call_s"]
        sys.stdout, sys.stderr = Stream(self.wire, "stdout"), Stream(self.wire, "stderr")
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "NoColor"
        self.shell = Shell.instance(config=config)
        self.shell.wire = self.wire
        self.imports = Imports(job["allowed"])
        self.twins: dict = {}
        # From here on an interrupt ends a cell, and not the program.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.wire.write("ready")

    def run(self) -> NoReturn:
        """Run cells until there is none left, then wait for the end."""
        while True:
            # Between cells an interrupt has nothing to stop.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            kind, content = self.wire.receive()
            if kind == "freeze":
                self.freeze(*content)
                continue
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                done = self.locked(*content) if kind == "locked" else self.cell(*content)
                sys.stdout.flush()
                sys.stderr.flush()
            except KeyboardInterrupt:
                done = False
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self.wire.write("done", done)

    def cell(self, source: str) -> bool:
        """Run a cell of the student's; return whether it came to its end."""
        return bool(self.shell.run_cell(source, store_history=False).success)

    def locked(self, source: str, name: str, is_setup: bool) -> bool:
        """Run a cell of the assignment, whatever the student did to IPython."""
        file = f"<{name}>"
        self.imports.ours.add(file)
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        try:
            exec(compile(source, file, "exec"), self.shell.user_ns)
        except Exception as error:
            self.shell.failed(
                type(error).__name__, str(error), [f"{type(error).__name__}: {error}"]
            )
            return False
        finally:
            if is_setup:
                self.twins = dict(self.shell.user_ns)
        return True

    def freeze(self, number: int) -> None:
        """Let a child keep the notebook as it is now, for one test."""
        sys.stdout.flush()
        sys.stderr.flush()
        mine = self.tests[number]
        if os.fork() == 0:
            # Nothing that it writes is read.
            with contextlib.suppress(BaseException):
                sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
                self.wire.wire.close()
                Child(mine, self.shell.user_ns, self.twins, self.call_s).serve_forever()
            os._exit(0)
        mine.close()
        self.wire.write("frozen", number)


if __name__ == "__main__":
    wires = [socket.socket(fileno=int(number)) for number in sys.argv[1:]]
    stay_first(wires)  # what was frozen outlives a notebook that ends
    Notebook(wires[0], wires[1:]).run()
