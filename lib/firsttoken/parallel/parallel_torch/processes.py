"""Processes that stand for devices: started by one call, and gone when one of them fails."""

import contextlib
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast

from firsttoken.checks import check_count
from firsttoken.parallel.parallel_torch.worker import read_frame, write_frame

GRACE_S = 1.0  # after one process's error, how long to look for a death that explains it


class Workers:
    """n processes with one thread each, all connected by gloo; each holds nothing between jobs.

    They need no `if __name__ == "__main__"` where they are started: each is a fresh Python that
    gets functions by name. So a job must be a function that can be imported; what was defined in
    a notebook cannot. Its first argument is a `Communicator` to the others of the job.

    When a process dies, or a job raises, the others are stopped at once and one error says why;
    when whoever started them ends, so do they. Leaving a `with` block, or `close()`, stops them.
    A fork of whoever started them can give them jobs, too, if not at the same time.

    Raises: ValueError for n below 1; RuntimeError when a process dies or a job raises;
            TimeoutError for a job that takes longer than `timeout_s`.

    >>> with Workers(1) as workers:
    ...     workers.call(rank_of)
    [0]
    """

    def __init__(self, n: int, timeout_s: float = 120.0) -> None:
        self.n, self.timeout_s = check_count("n", n, at_least=1), timeout_s
        folder = tempfile.mkdtemp(prefix="firsttoken-")
        self._errors = [Path(folder, f"errors-{rank}") for rank in range(n)]
        self._processes: list[subprocess.Popen] = []
        self._finalizer = weakref.finalize(self, _stop, os.getpid(), self._processes, folder)
        store = str(Path(folder, "store"))
        try:
            for rank in range(n):
                self._start(rank, store)
            self.pids: list[int] = self._collect(range(n))
        except BaseException:
            self.close()
            raise

    def call(self, function: Callable, *arguments: Any, n: int | None = None) -> list[Any]:
        """Run function(comm, *arguments) on the first n processes; return the results by rank.

        Raises: ValueError for an n out of range, and for a function that cannot be imported.
        """
        n = self._number(n)
        _check_importable(function)
        with self._stopped_on_error():
            for rank in range(n):
                self._send(rank, function, arguments, range(n))
            return self._collect(range(n))

    def map(
        self, function: Callable, items: Sequence[Any], n: int | None = None
    ) -> list[tuple[int, Any]]:
        """Run function(comm, item) for each item on whichever of the first n processes is free.

        Returns (rank, result) in the order of the items: a router, and replicas behind it.

        Raises: ValueError as `call`.
        """
        n = self._number(n)
        _check_importable(function)
        results: dict[int, tuple[int, Any]] = {}
        at_work: dict[int, int] = {}  # rank to the index of its item
        todo = list(enumerate(items))[::-1]
        with self._stopped_on_error():
            deadline = time.monotonic() + self.timeout_s
            while todo or at_work:
                for rank in set(range(n)) - at_work.keys() if todo else ():
                    if todo:
                        at_work[rank], item = todo.pop()
                        self._send(rank, function, (item,), [rank])
                rank, result = self._next(deadline)
                results[at_work.pop(rank)] = rank, result
        return [results[index] for index in range(len(items))]

    def close(self) -> None:
        """Stop the processes, and wait until they are gone."""
        self._finalizer()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def _number(self, n: int | None) -> int:
        n = self.n if n is None else check_count("n", n, at_least=1)
        if n > self.n:
            raise ValueError(f"n must be at most the {self.n} processes, got {n}")
        return n

    def _start(self, rank: int, store: str) -> None:
        module = "firsttoken.parallel.parallel_torch.worker"
        command = [sys.executable, "-m", module, str(rank), str(self.n), store, str(self.timeout_s)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        loopback = {name for _, name in socket.if_nameindex()} & {"lo", "lo0"}
        if loopback:  # else gloo asks for this machine's name, which need not lead anywhere
            environment["GLOO_SOCKET_IFNAME"] = loopback.pop()
        with self._errors[rank].open("wb") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,  # an interrupt is for the notebook alone
            )
        self._processes.append(process)

    def _send(
        self, rank: int, function: Callable, arguments: Sequence[Any], members: Sequence[int]
    ) -> None:
        stream = cast("BinaryIO", self._processes[rank].stdin)
        frame = pickle.dumps((function, tuple(arguments), list(members)))
        with contextlib.suppress(BrokenPipeError):  # it has died: who waits for its result says so
            write_frame(stream, frame)

    def _collect(self, ranks: range) -> list[Any]:
        results: dict[int, Any] = {}
        deadline = time.monotonic() + self.timeout_s
        while len(results) < len(ranks):
            rank, result = self._next(deadline)
            results[rank] = result
        return [results[rank] for rank in ranks]

    def _next(self, deadline: float) -> tuple[int, Any]:
        """Return the next result and whose it is; raise for an error."""
        streams = [cast("BinaryIO", process.stdout) for process in self._processes]
        pipes = [stream.fileno() for stream in streams]
        ready = wait(pipes, max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(f"the processes took longer than {self.timeout_s:g} s")
        # A process says nothing before it is asked again: all it said is read here, none is left
        # behind in the stream's buffer.
        rank = pipes.index(cast("int", ready[0]))
        frame = read_frame(streams[rank])
        kind, result = ("raised", None) if frame is None else pickle.loads(frame)
        if kind == "done":
            return rank, result
        # A death makes the others fail as well, often before it is noticed itself.
        dead = self._dead(time.monotonic() + GRACE_S)
        if dead is not None or result is None:
            raise RuntimeError(self._obituary(rank if dead is None else dead))
        name, trace = result
        raise RuntimeError(f"process {rank} of {self.n} raised {name}\n\n{trace}")

    def _dead(self, deadline: float) -> int | None:
        """Return a process that has ended, if one has by then."""
        while True:
            for rank, process in enumerate(self._processes):
                if process.poll() is not None:
                    return rank
            if time.monotonic() > deadline:
                return None
            time.sleep(0.02)

    def _obituary(self, rank: int) -> str:
        code = self._processes[rank].poll()
        how = f"ended with code {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        last = self._errors[rank].read_text(errors="replace").strip().splitlines()[-5:]
        return "\n".join([f"process {rank} of {self.n} {how}", *last])

    def _stopped_on_error(self) -> "_StoppedOnError":
        if not self._finalizer.alive:
            raise RuntimeError("the processes are stopped; start new ones with Workers(n)")
        return _StoppedOnError(self)


class _StoppedOnError:
    """A block after whose errors the processes are in no known state, and stopped."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if kind is not None:
            self.workers.close()


def rank_of(comm: Any) -> int:
    """Return the rank of the process that runs this: the shortest job."""
    return comm.rank


def _check_importable(function: Callable) -> None:
    if getattr(function, "__module__", None) == "__main__":
        raise ValueError(
            f"function {function.__name__} was defined here, and other processes cannot import it; "
            "expected a function of a module"
        )


def _stop(owner: int, processes: list[subprocess.Popen], folder: str) -> None:
    if os.getpid() != owner:  # a fork, which has let go of its copy of them
        return
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):  # what was never read
                cast("BinaryIO", stream).close()
    shutil.rmtree(folder, ignore_errors=True)
