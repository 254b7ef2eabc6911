"""The judge: runs the test cells of an assignment, where no code of the student is.

    python judge.py CONTROL TEST TEST …

Started in a sandbox of its own, with numbers of open sockets: the first brings the assignment's
cells and takes the verdicts, each other one leads to the student's notebook as it stood before one
test cell. A name that a solution cell binds is fetched from there: data by value, functions and
objects as proxies (wire.py).
"""

import os
import resource
import signal
import socket
import sys
import time
import types
from typing import Any

import numpy as np
from first import stay_first
from wire import Peer, Unanswered

from firsttoken import assignments

GRACE_S = 2  # for a call that was stopped to say so
MAX_LATE = 3  # calls without an answer, until nothing more is asked
FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)
UNPRINTED = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


class Late(BaseException):
    """A call ran too long; the answer may still be asked for something else."""


class Answer(Peer):
    """The end of a wire whose other end nobody trusts."""

    def __init__(self, wire: socket.socket, names: dict[str, object], twins: dict, call_s: float):
        super().__init__(wire)
        self.namespace, self.twins, self.call_s = names, twins, call_s
        self.end = float("inf")  # of the whole test
        self.failed: Exception | None = None  # of our own code that the answer called
        self.errors = np.geterr()

    def ask(self, request: str, *args: object) -> Any:
        if self.depth == 0:
            if np.geterr() != self.errors:
                self.errors = np.geterr()
                self.ask("errors", self.errors)
            self.deadline = min(time.monotonic() + self.call_s + GRACE_S, self.end)
        return super().ask(request, *args)

    def may_hand_over(self, value: object) -> bool:
        module = type(value).__module__
        return (
            isinstance(value, FUNCTIONS)
            or module in (__name__, "judged")
            or (module.startswith("firsttoken.") and not isinstance(value, type))
        )

    def answer(self, request: str, *args: Any) -> Any:
        """Let an answer call what it was given: a function, or an object's public names."""
        try:
            if request == "call":
                return args[0](*args[1], **args[2])
            owner, name, *rest = args
            # A text has methods as well, and its `format` reads private names of what it is given.
            if id(owner) not in self.numbers or isinstance(owner, FUNCTIONS):
                raise TypeError("a function of the tests can be called, and nothing else")
            if type(name) is not str or name.startswith("_"):
                raise AttributeError(f"{name!r:.40}: only public names can be read here")
            if request == "method":
                return getattr(owner, name)(*rest[0], **rest[1])
            if request == "get":
                return getattr(owner, name)
            raise ValueError(f"no request {request!r:.40}")
        except AssertionError as error:
            # An answer that swallows it has failed all the same.
            self.failed = self.failed or error
            raise

    def exceptions(self) -> dict:
        return self.namespace

    def rebuilt(self, names: list, said: str) -> Exception:
        if names == ["TooLong"]:
            raise Late(said)
        return super().rebuilt(names, said)


def used(cell: dict) -> set[str]:
    """Return the names that a cell's code mentions, also inside its functions."""
    if cell["kind"] == "solution":
        return set()
    found, codes = set(), [compile(cell["source"], cell["name"], "exec")]
    while codes:
        code = codes.pop()
        found |= {*code.co_names, *code.co_freevars}
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return found


class Judge:
    """The assignment's cells, and what they are run with."""

    def __init__(self, control: socket.socket, tests: list[socket.socket]):
        self.wire, self.tests = Peer(control), tests
        _, (self.job,) = self.wire.receive()
        for name, most in self.job["limits"].items():
            resource.setrlimit(getattr(resource, name), (most, most))
        # A module of its own, so that classes of the test cells know where they belong.
        module = types.ModuleType("judged")
        sys.modules["judged"] = module
        self.namespace = vars(module)
        self.namespace["STUDENT"] = ""
        self.fetched: set[str] = set()  # names that come from the student's notebook
        self.twins: dict[int, str] = {}
        self.kept: list = []  # what the setup bound: while it lives, its id is nobody else's
        self.used = set().union(*map(used, self.job["cells"]))
        self.answer: Answer | None = None
        self.n_late = 0
        self.fresh: list[np.random.Generator] = []
        self.testing = False
        signal.signal(signal.SIGALRM, self.ring)

    def ring(self, *_: object) -> None:
        """Stop a test that computes too long with what it got, as with a count of 10**18 days."""
        if self.testing:
            raise Unanswered(f"kept the test busy for more than {self.job['test_s']:g} s")

    def run(self) -> None:
        """Run all cells in order and send a verdict on each test."""
        for cell in self.job["cells"]:
            if cell["kind"] == "solution":
                self.fetched |= set(cell["names"])
                continue
            if cell["kind"] == "locked":
                self.forget()
                try:
                    self.execute(cell["source"], cell["name"])
                except Exception:
                    # What shows an answer at work has none here; what a test needs, it will miss.
                    if cell["is_setup"]:
                        raise
                if cell["is_setup"]:
                    own = {n: v for n, v in self.namespace.items() if not n.startswith("__")}
                    self.kept = list(own.values())
                    self.twins = {id(value): name for name, value in own.items()}
            else:
                if self.answer is None:  # until the notebook has run, nobody answers
                    self.wire.receive()
                self.wire.write("verdict", self.test(cell))
            self.fetched -= set(cell["names"])
        self.wire.write("end")

    def forget(self) -> None:
        """Drop what the notebook of one test gave: it leads nowhere in the next cell."""
        for name in self.fetched:
            self.namespace.pop(name, None)

    def execute(self, source: str, name: str) -> None:
        exec(compile(source, f"<{name}>", "exec"), self.namespace)
        # Here these have more to do than in a notebook.
        for word in ("shared", "closed", "fresh_rng"):
            if self.namespace.get(word) is getattr(assignments, word):
                self.namespace[word] = getattr(self, word)

    def shared(self, value: Any) -> Any:
        """As assignments.shared: what the answer writes into `value` comes back."""
        self.answer.share(value)
        return value

    def fresh_rng(self) -> np.random.Generator:
        """As assignments.fresh_rng: other inputs in each test, and no answer gets the generator."""
        seed = int(os.environ.get("FIRSTTOKEN_SEED", 0))
        self.fresh.append(np.random.default_rng([seed, len(self.fresh)]))
        return self.fresh[-1]

    def closed(self, *names: str) -> None:
        """As assignments.closed: these names refuse to run in the answer's process."""
        self.answer.ask("close", list(names))

    def part(self, source: str, name: str, is_first: bool) -> None:
        """Run a part of a test; raise what it raises, or a check that the answer has swallowed."""
        self.testing = True
        try:
            if is_first:
                # What is no data is a proxy, what is not there is left out.
                wanted = sorted(self.fetched & self.used)
                found = self.answer.ask("names", wanted)
                # It may send other names as well, such as `expect`.
                self.namespace |= {name: found[name] for name in wanted if name in found}
            self.execute(source, name)
        finally:
            self.testing = False
        if self.answer.failed:
            raise self.answer.failed

    def test(self, cell: dict) -> dict:
        """Return the verdict on a test cell: what each part earned, and why not more."""
        answer = Answer(self.tests[cell["number"]], self.namespace, self.twins, self.job["call_s"])
        answer.end = time.monotonic() + self.job["test_s"]
        answer.kept_back = self.fresh
        self.answer = answer
        parts, lost, unknown = [], "", ""
        if self.n_late >= MAX_LATE:
            unknown = f"not asked: {MAX_LATE} calls of your code before it took too long"
        # Again and again: what the test runs may swallow one.
        signal.setitimer(signal.ITIMER_REAL, self.job["test_s"] + GRACE_S, 1)
        self.forget()
        for number, part in enumerate(cell["parts"]):
            said, known = lost, not unknown
            if not (lost or unknown):
                try:
                    self.part(part["source"], cell["name"], is_first=number == 0)
                except Late as late:
                    said, known = f"a call of your code {late}", False
                    self.n_late += 1
                except Unanswered as gone:
                    said, known = f"your code {gone}", False
                    unknown = said
                    self.n_late += 1
                except MemoryError as error:
                    said, known = f"MemoryError: {error}", False
                except BaseException as error:
                    said = f"{type(error).__name__}: {error}".removesuffix(": ")
                answer.failed = None
            elif unknown:
                said = unknown
            if said and part["points"] == 0:
                lost, unknown = (said, unknown) if known else (lost, said)
            earned = None if not known else 0 if said else part["points"]
            parts.append({"name": part["name"], "earned": earned, "said": said[:2000]})
        signal.setitimer(signal.ITIMER_REAL, 0)
        answer.wire.close()
        return {"name": cell["name"], "parts": parts}


if __name__ == "__main__":
    wires = [socket.socket(fileno=int(number)) for number in sys.argv[1:]]
    sys.stdout = UNPRINTED
    stay_first(wires)
    Judge(wires[0], wires[1:]).run()
