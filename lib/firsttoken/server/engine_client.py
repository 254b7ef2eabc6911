"""The front's side of the connection to the engine: it sends requests and passes answers on.

The other side of the connection is `engine_process`.
"""

import asyncio
import itertools
import logging
import pickle
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from firsttoken.batching import StepRecord
from firsttoken.metrics import RequestTrace
from firsttoken.server.messages import (
    LENGTH_BYTES,
    Abort,
    Ask,
    Down,
    Finished,
    Gone,
    Hello,
    Reply,
    Report,
    Submit,
    TokenNews,
    packed,
    receive,
)

_log = logging.getLogger("firsttoken.server")


class EngineDown(Exception):
    """The engine does not run: it failed, by the error that is the cause, or the server stops."""


@dataclass(eq=False)
class Flight:
    """The answers to one HTTP request that is under way, and their news in the order it came.

    `asks` says what was asked. Answers are numbered prompt by prompt; `n_left` are not complete.
    """

    number: int
    asks: Sequence[Ask]
    arrival_s: float
    accepted: asyncio.Future[None]
    _news: list[TokenNews | Finished | EngineDown] = field(default_factory=list)
    _more: asyncio.Event = field(default_factory=asyncio.Event)
    n_left: int = field(init=False)

    def __post_init__(self) -> None:
        self.n_left = self.n_answers

    @property
    def n_answers(self) -> int:
        """How many answers there will be."""
        return sum(ask.n for ask in self.asks)

    def ask_of(self, index: int) -> Ask:
        """Return what was asked for an answer."""
        for ask in self.asks:
            if index < ask.n:
                return ask
            index -= ask.n
        raise IndexError(f"index {index} is behind the last answer")

    def trace_of(self, done: Finished) -> RequestTrace | None:
        """Return when the request arrived and its answer's tokens came; None if it has no token."""
        times = tuple(done.submitted_s + t for t in done.answer.token_times_s)
        n_prompt = len(self.ask_of(done.index).prompt_ids)
        return RequestTrace(self.arrival_s, times, n_prompt) if times else None

    def tell(self, news: TokenNews | Finished | EngineDown) -> None:
        """Add to the news."""
        self.n_left -= isinstance(news, Finished)
        self._news.append(news)
        self._more.set()

    async def batches(self) -> AsyncIterator[list[TokenNews | Finished]]:
        """Yield news until all answers are complete: each time, all that has come since the last.

        Raises: EngineDown where the engine cannot go on.
        """
        left = self.n_answers
        while left:
            await self._more.wait()
            self._more.clear()
            batch, self._news = self._news, []
            told: list[TokenNews | Finished] = []
            for news in batch:
                if isinstance(news, EngineDown):
                    raise news
                left -= isinstance(news, Finished)
                told.append(news)
            yield told


class EngineClient:
    """Sends requests to the engine at the other end of a connection, for one event loop.

    First `start` it in that loop, then `submit` and `cancel`. `hello` holds the engine's limits,
    `stats` its counts after the last step, and `error` what has ended it: None while it runs.
    `on_step` is called with the record of each step. Counted from the start: `prefilled_tokens`,
    those read of prompts, and `n_drafts`.

    Raises: what making the engine raised, and ChildProcessError if its process has ended.
    """

    def __init__(self, connection: socket.socket):
        self._connection = connection
        try:
            hello = receive(connection)
        except Gone:
            raise _ended() from None
        if isinstance(hello, Exception):
            raise hello
        self.hello: Hello = hello
        self.stats = self.hello.stats
        self.error: Exception | None = None
        self.on_step: Callable[[StepRecord], object] = lambda record: None
        self.prefilled_tokens = self.n_drafts = 0
        self._numbers = itertools.count()
        self._flights: dict[int, Flight] = {}  # under way, by number
        self._writer: asyncio.StreamWriter | None = None  # None: not begun, or ended

    @property
    def healthy(self) -> bool:
        """Whether requests will be answered."""
        return self._writer is not None

    def now_s(self) -> float:
        """Return the time on the engine's clock."""
        return time.perf_counter() - self.hello.zero_s

    async def start(self) -> None:
        """Listen to the engine, in the running event loop."""
        reader, self._writer = await asyncio.open_connection(sock=self._connection)
        self._listening = asyncio.create_task(self._listen(reader))

    async def close(self) -> None:
        """Close the connection: the engine ends after its step, and unfinished requests fail."""
        self._end(EngineDown("the server stops"))
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)

    async def submit(self, asks: Sequence[Ask], arrival_s: float) -> Flight:
        """Send the engine all prompts of a request; it takes all or none.

        Units:  arrival_s in seconds on the engine's clock, as `now_s`

        Raises: what `Engine.submit_many` raises, and EngineDown.
        """
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        flight = Flight(next(self._numbers), asks, arrival_s, accepted)
        self._send(Submit(flight.number, asks))
        self._flights[flight.number] = flight
        try:
            await accepted
        except asyncio.CancelledError:
            self.cancel(flight)
            raise
        return flight

    def cancel(self, flight: Flight) -> None:
        """Drop the unfinished answers of a request, and free their blocks, before the next step."""
        if self._flights.pop(flight.number, None) is not None:
            with suppress(EngineDown):  # then it is dropped
                self._send(Abort(flight.number))

    def _send(self, command: Submit | Abort) -> None:
        # The connection may be closed while what the engine said before is still being read.
        if self._writer is None or self._writer.is_closing():
            raise EngineDown("the engine does not run") from self.error
        self._writer.write(packed(command))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while self._writer is not None:
                n = int.from_bytes(await reader.readexactly(LENGTH_BYTES))
                message = pickle.loads(await reader.readexactly(n))
                if isinstance(message, Down):
                    self._fail(message.error)
                else:
                    self._note(message)
        except (asyncio.IncompleteReadError, ConnectionError):
            self._fail(_ended())
        except Exception as error:  # whatever it is, nobody may wait for ever
            _log.exception("a report of the engine could not be read")
            self._fail(error)

    def _note(self, report: Report) -> None:
        self.stats = report.stats
        if report.step is not None:
            self._note_step(report.step)
        for news in report.news:
            flight = self._flights.get(news.flight)
            if flight is None:  # it was dropped meanwhile
                continue
            if isinstance(news, Reply):
                self._reply(flight, news.error)
            else:
                flight.tell(news)
                if flight.n_left == 0:
                    del self._flights[flight.number]

    def _reply(self, flight: Flight, error: Exception | None) -> None:
        if error is not None:
            del self._flights[flight.number]
        if flight.accepted.done():  # its client has gone, and `submit` is about to cancel it
            return
        if error is None:
            flight.accepted.set_result(None)
        else:
            flight.accepted.set_exception(error)

    def _note_step(self, record: StepRecord) -> None:
        self.prefilled_tokens += sum(new for _, new, _ in record.prefills)
        self.n_drafts += len(record.kept)
        try:
            self.on_step(record)
        except Exception:
            _log.exception("a hook of the engine failed")

    def _fail(self, error: Exception) -> None:
        self.error = error
        down = EngineDown(f"the engine failed: {error!r}")
        down.__cause__ = error
        self._end(down)

    def _end(self, down: EngineDown) -> None:
        """Close the connection, and fail all requests that are under way."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        flights, self._flights = self._flights, {}
        for flight in flights.values():
            if flight.accepted.done():
                flight.tell(down)
            else:
                flight.accepted.set_exception(down)


def _ended() -> ChildProcessError:
    return ChildProcessError("its process ended without a word: killed, or out of memory")
