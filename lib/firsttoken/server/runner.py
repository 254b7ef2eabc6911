"""One thread that runs the engine, and what the event loop asks of it.

The engine knows no threads. So one thread alone touches it: it does what the event loop has asked
for since its last step (submit, abort), runs a step, and hands all news of that step over at once.
Where there is nothing to do it sleeps until it is woken.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from firsttoken.batching import StepRecord
from firsttoken.constrained import Constraint
from firsttoken.engine import Answer, Engine, TokenLogprobs
from firsttoken.metrics import RequestTrace
from firsttoken.sampling import SamplingParams

_log = logging.getLogger("firsttoken.server")


class EngineDown(Exception):
    """The engine's thread has ended: by an error, its cause, or because the server stops."""


@dataclass(frozen=True)
class Ask:
    """What a client wants of one prompt: the arguments of `Engine.submit_many`.

    Only where it wants a `stream` there is news of every token.
    """

    prompt_ids: list[int]
    params: SamplingParams
    n: int = 1
    ignore_eos: bool = False
    constraint: Constraint | None = None
    adapter: str | None = None
    priority: int = 0
    deadline_s: float | None = None
    logprobs: int | None = None
    stream: bool = False


@dataclass(slots=True)  # one for each token: frozen, or in a dict, it would take twice as long
class TokenNews:
    """A new token of answer `index`, with its log-probabilities if they are wanted."""

    index: int
    token: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True)
class Finished:
    """Answer `index` is complete, with its times on the engine's clock.

    `trace` counts from the arrival of the HTTP request; `started_s` is when its first step began,
    None where it never ran.
    """

    index: int
    answer: Answer
    trace: RequestTrace | None
    started_s: float | None


News: TypeAlias = TokenNews | Finished | EngineDown


@dataclass(eq=False)
class Flight:
    """The answers to one HTTP request, on their way: news of all, in the order they came.

    Answers are numbered prompt by prompt; `asks` says what was asked.
    """

    asks: Sequence[Ask]
    arrival_s: float
    accepted: asyncio.Future[None]
    _news: list[News] = field(default_factory=list)
    _more: asyncio.Event = field(default_factory=asyncio.Event)
    ids: dict[int, int] = field(default_factory=dict)  # of answers under way: index by id

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

    def tell(self, news: News) -> None:
        """Add to the news."""
        self._news.append(news)
        self._more.set()

    async def batches(self) -> AsyncIterator[list[TokenNews | Finished]]:
        """Yield the news until all answers are complete; what waits together comes together.

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


class Runner:
    """Runs an engine in a thread of its own, for one event loop.

    `stats` is what the engine said of itself after its last step. `error` is what has ended the
    thread, None while all is well. The runner takes the place of the engine's `on_step`; its own
    is called in its stead. Counted from the start: `prefilled_tokens` read of prompts, `n_drafts`.
    """

    def __init__(self, engine: Engine):
        self.engine, self.stats = engine, engine.stats
        self.error: BaseException | None = None
        engine.on_step = self._note_step
        self.on_step: Callable[[StepRecord], object] = lambda record: None
        self.prefilled_tokens = self.n_drafts = 0
        self._commands: deque[tuple[Callable[[Flight], None], Flight]] = deque()
        self._changed = threading.Condition()  # guards commands, closing, error
        self._closing = False
        self._flights: dict[int, Flight] = {}  # by the engine's id
        self._arrivals: dict[int, float] = {}  # when the engine got it, by id
        self._started: dict[int, float] = {}  # when its first step began, by id
        self._news: list[tuple[Flight, News | Exception | None]] = []
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def healthy(self) -> bool:
        """Whether requests will be answered."""
        return self.error is None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread, for the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def close(self) -> None:
        """Stop the thread after its step; what is still under way fails."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    async def submit(self, asks: Sequence[Ask], arrival_s: float) -> Flight:
        """Hand the engine all prompts of a request, or none; `arrival_s` is on the engine's clock.

        Raises: what `Engine.submit_many` raises, and EngineDown.
        """
        assert self._loop is not None
        flight = Flight(asks, arrival_s, self._loop.create_future())
        self._command(self._submit, flight)
        try:
            await flight.accepted
        except asyncio.CancelledError:
            self.cancel(flight)
            raise
        return flight

    def cancel(self, flight: Flight) -> None:
        """Drop what is left of a request before the next step; its blocks are free then."""
        if flight.ids or not flight.accepted.done() or flight.accepted.cancelled():
            try:
                self._command(self._abort, flight)
            except EngineDown:
                return  # there is nothing left to drop

    def _command(self, do: Callable[[Flight], None], flight: Flight) -> None:
        with self._changed:
            if self.error is not None or self._closing:
                raise EngineDown("the engine does not run") from self.error
            self._commands.append((do, flight))
            self._changed.notify()

    # From here on: in the engine's thread.

    def _work(self) -> None:
        try:
            while self._wait():
                # New commands that come meanwhile wait for the next round: the step is due.
                for _ in range(len(self._commands)):
                    do, flight = self._commands.popleft()
                    do(flight)
                if self.engine.unfinished:
                    for request_id, answer in self.engine.step().items():
                        self._finish(request_id, answer)
                self._tell()
        except BaseException as error:  # whatever it is, nobody may wait for ever
            self._end(error)
        else:
            self._end(None)

    def _wait(self) -> bool:
        """Sleep until there is something to do; say whether to go on."""
        with self._changed:
            while not (self._closing or self._commands or self.engine.unfinished):
                self._changed.wait()
            return not self._closing

    def _submit(self, flight: Flight) -> None:
        index, ids = 0, flight.ids
        try:
            for ask in flight.asks:
                for i, request_id in enumerate(self._submit_ask(flight, ask, index)):
                    ids[request_id] = index + i
                    self._flights[request_id] = flight
                    self._arrivals[request_id] = self.engine.now_s()
                index += ask.n
        except Exception as error:
            self._abort(flight)
            self._news.append((flight, error))
        else:
            self._news.append((flight, None))

    def _submit_ask(self, flight: Flight, ask: Ask, first: int) -> Sequence[int]:
        def listen(i: int, token: int) -> None:
            told = None if ask.logprobs is None else self.engine.told(ids[i])[-1]
            self._news.append((flight, TokenNews(first + i, token, told)))

        ids = self.engine.submit_many(
            ask.prompt_ids,
            ask.params,
            ask.n,
            listen if ask.stream else None,
            ask.ignore_eos,
            ask.constraint,
            ask.constraint is not None,
            adapter=ask.adapter,
            priority=ask.priority,
            deadline_s=ask.deadline_s,
            logprobs=ask.logprobs,
        )
        return ids

    def _abort(self, flight: Flight) -> None:
        for request_id in list(flight.ids):
            self.engine.abort(request_id)
            self._forget(request_id)

    def _forget(self, request_id: int) -> tuple[Flight, int, float, float | None]:
        flight = self._flights.pop(request_id)
        index = flight.ids.pop(request_id)
        return flight, index, self._arrivals.pop(request_id), self._started.pop(request_id, None)

    def _finish(self, request_id: int, answer: Answer) -> None:
        flight, index, submitted_s, started_s = self._forget(request_id)
        times = tuple(submitted_s + t for t in answer.token_times_s)
        n_prompt = len(flight.ask_of(index).prompt_ids)
        trace = RequestTrace(flight.arrival_s, times, n_prompt) if times else None
        self._news.append((flight, Finished(index, answer, trace, started_s)))

    def _note_step(self, record: StepRecord) -> None:
        for request_id, new, _ in record.prefills:
            self._started.setdefault(request_id, record.start_s)
            self.prefilled_tokens += new
        self.n_drafts += len(record.kept)
        self.on_step(record)

    def _tell(self) -> None:
        """Hand the news to the event loop: one call for all of them."""
        while self.engine.hook_errors:
            _log.error("a hook of the engine failed: %r", self.engine.hook_errors.popleft())
        news, self._news = self._news, []
        self.stats = self.engine.stats
        if news:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(_deliver, news)

    def _end(self, error: BaseException | None) -> None:
        """Let all know that nothing more will come."""
        with self._changed:
            self.error, self._closing = error, True
            waiting = [flight for do, flight in self._commands if do == self._submit]
            self._commands.clear()
        message = "the server stops" if error is None else f"the engine failed: {error!r}"
        down = EngineDown(message)
        down.__cause__ = error
        flights = {id(flight): flight for flight in self._flights.values()}
        self._news += [(flight, down) for flight in (*waiting, *flights.values())]
        news, self._news = self._news, []
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(_deliver, news)
        except RuntimeError:
            return  # the event loop has ended before: nobody is left to tell


def _deliver(news: Sequence[tuple[Flight, News | Exception | None]]) -> None:
    """Give each flight its news, in the event loop."""
    for flight, what in news:
        if isinstance(what, (TokenNews, Finished)):
            flight.tell(what)
        elif flight.accepted.done():
            if isinstance(what, EngineDown):
                flight.tell(what)
        elif what is None:
            flight.accepted.set_result(None)
        else:
            flight.accepted.set_exception(what)
