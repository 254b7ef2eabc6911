"""The engine in a process of its own: it takes commands, does a step, sends a report, and again.

It knows nothing of HTTP or an event loop. At the other end of the connection is the front, the
process of the HTTP server: `engine_client`.
"""

import logging
import multiprocessing
import pickle
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from firsttoken.batching import StepRecord
from firsttoken.engine import Answer, Engine
from firsttoken.sampling.constrained import Constraint, Regex
from firsttoken.server.messages import (
    Abort,
    Ask,
    Down,
    Finished,
    Gone,
    Hello,
    News,
    Reply,
    Report,
    Submit,
    TokenNews,
    portable,
    receive,
    send,
)

# How many bytes of reports may wait unread, those of some twenty steps. Then the engine waits until
# the front has read.
_AHEAD_BYTES = 2**14
_N_FORMS_KEPT = 64
# How long the last step may still take when the server stops: nobody waits for its tokens.
_LAST_STEP_S = 5.0

_log = logging.getLogger("firsttoken.server")


@contextmanager
def engine_process(make: Callable[[], Engine]) -> Iterator[socket.socket]:
    """Run the engine that `make` returns in a new process; yield the connection to it.

    `make` must be picklable, since the process is spawned: a forked one would inherit the locks of
    this process's threads, without the threads that release them. When the block is left, the
    process has ended. It also ends by itself, after a step, when this process is gone.
    """
    front, back = connected()
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=_work, args=(back, make), name="engine", daemon=True)
    process.start()
    back.close()  # else the front would not see that the process has ended
    try:
        yield front
    finally:
        with suppress(OSError):  # closed already
            front.shutdown(socket.SHUT_RDWR)
        front.close()
        process.join(_LAST_STEP_S)
        process.kill()
        process.join()


def connected() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a new connection: the front's, and the engine's."""
    front, back = socket.socketpair()
    back.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _AHEAD_BYTES)
    if back.family == socket.AF_INET:  # on Windows: else TCP would hold a report back
        back.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return front, back


def _work(connection: socket.socket, make: Callable[[], Engine]) -> None:
    # Ctrl-C and a stop of the service reach both processes. The front decides: it lets requests
    # finish, and closes the connection.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    run_engine(connection, make)


def run_engine(connection: socket.socket, make: Callable[[], Engine]) -> None:
    """Make an engine and run it for the other end of the connection, until that is closed.

    If the engine cannot be made, the error is sent in place of a `Hello`.
    """
    with connection, suppress(Gone):
        try:
            engine = make()
        except Exception as error:
            send(connection, portable(error))
            return
        try:
            _Loop(engine, connection).run()
        except Gone:
            return
        except BaseException as error:  # whatever it is, nobody may wait for ever
            _log.exception("the engine failed")
            send(connection, Down(portable(error)))


@dataclass(slots=True)
class _Place:
    """Which request an answer belongs to, and when it was submitted and started."""

    flight: int
    index: int
    submitted_s: float
    started_s: float | None = None
    cached_tokens: int = 0


class _Loop:
    """Runs an engine for one connection. The engine's `on_step` becomes its own."""

    def __init__(self, engine: Engine, connection: socket.socket):
        self._engine, self._connection = engine, connection
        engine.on_step = self._note_step
        self._places: dict[int, _Place] = {}  # of answers under way, by the engine's id
        self._news: list[News] = []
        self._step: StepRecord | None = None
        tokenizer = engine.tokenizer
        assert tokenizer is not None
        tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        # A vocabulary may be padded: then rows of the model stand for no token, and have no bytes.
        tokens += [b""] * (engine.model.arch.vocab_size - len(tokens))

        @cache
        def vocabulary() -> Constraint:
            return Constraint(Regex(""), tokens, engine.model.eos_ids)

        @lru_cache(_N_FORMS_KEPT)
        def constraint(form: bytes) -> Constraint:
            return vocabulary().with_language(pickle.loads(form))

        # The same language for the same form, since masks are kept by language and state.
        self._constraint = constraint

    def run(self) -> None:
        """Run until the front closes the connection.

        Raises: Gone when it does, and what the model raises.
        """
        engine, pool = self._engine, self._engine.pool
        zero_s = time.perf_counter() - engine.now_s()
        limits = pool.n_blocks, pool.block_size, engine.max_waiting, tuple(engine.adapters)
        send(self._connection, Hello(engine.model.arch, *limits, engine.stats, zero_s))
        while True:
            self._take_commands()
            if engine.unfinished:
                for request_id, answer in engine.step().items():
                    self._finish(request_id, answer)
            self._report()

    def _take_commands(self) -> None:
        """Carry out the commands that wait; with no request to work on, wait for one."""
        timeout_s = 0.0 if self._engine.unfinished else None
        # This loop ends: to carry out a command takes less time than the front needs for another.
        while select.select([self._connection], [], [], timeout_s)[0]:
            command = receive(self._connection)
            if isinstance(command, Submit):
                self._submit(command.flight, command.asks)
            else:
                assert isinstance(command, Abort)
                self._abort(command.flight)
            timeout_s = 0.0

    def _submit(self, flight: int, asks: Sequence[Ask]) -> None:
        index, error = 0, None
        try:
            for ask in asks:
                for i, request_id in enumerate(self._submit_ask(flight, ask, index)):
                    self._places[request_id] = _Place(flight, index + i, self._engine.now_s())
                index += ask.n
        except Exception as refused:
            self._abort(flight)
            error = portable(refused)
        self._news.append(Reply(flight, error))

    def _submit_ask(self, flight: int, ask: Ask, first: int) -> Sequence[int]:
        def listen(i: int, token: int) -> None:
            logprobs = None if ask.logprobs is None else self._engine.logprobs(ids[i])[-1]
            self._news.append(TokenNews(flight, first + i, token, logprobs))

        ids = self._engine.submit_many(
            ask.prompt_ids,
            ask.params,
            ask.n,
            listen if ask.stream else None,
            ignore_eos=ask.ignore_eos,
            constraint=None if ask.form is None else self._constraint(ask.form),
            close_in_time=ask.form is not None,
            adapter=ask.adapter,
            priority=ask.priority,
            deadline_s=ask.deadline_s,
            logprobs=ask.logprobs,
        )
        return ids

    def _abort(self, flight: int) -> None:
        for request_id in [i for i, place in self._places.items() if place.flight == flight]:
            self._engine.abort(request_id)
            del self._places[request_id]

    def _finish(self, request_id: int, answer: Answer) -> None:
        if answer.error is not None:
            answer = replace(answer, error=portable(answer.error))
        place = self._places.pop(request_id)
        rest = place.submitted_s, place.started_s, place.cached_tokens
        self._news.append(Finished(place.flight, place.index, answer, *rest))

    def _note_step(self, record: StepRecord) -> None:
        self._step = record
        for request_id, _, n_before in record.prefills:
            place = self._places.get(request_id)
            if place is not None and place.started_s is None:
                place.started_s, place.cached_tokens = record.start_s, n_before

    def _report(self) -> None:
        while self._engine.hook_errors:
            _log.error("a hook of the engine failed: %r", self._engine.hook_errors.popleft())
        send(self._connection, Report(self._news, self._engine.stats, self._step))
        self._news, self._step = [], None
