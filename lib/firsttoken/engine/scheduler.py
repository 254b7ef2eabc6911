"""Who runs in the next pass, and which of their tokens it computes."""

import math
from bisect import insort
from typing import NamedTuple

from firsttoken.engine.blocks import BlockManager
from firsttoken.engine.requests import EngineRequest, Status


class Scheduled(NamedTuple):
    """What one pass computes of a request.

    tokens: its next tokens, of which the last `n_drafts` are guesses; n_before: how many its cache
    holds before them; decodes: whether it has read its text in an earlier pass; complete: whether
    it will have with this one, so that the logits give its next token.
    """

    request: EngineRequest
    tokens: list[int]
    n_before: int
    n_drafts: int
    decodes: bool
    complete: bool


class Scheduler:
    """Keeps the requests that wait and those that run, and says what each pass computes.

    `add` puts a request into the queue, `end` takes it out. A step calls `preempt`, then lets
    requests draft, then calls `schedule`. `waiting` is in the order of ranks, `running` in that of
    the last pass.
    """

    def __init__(
        self,
        blocks: BlockManager,
        max_batch: int,
        token_budget: int | None,
        max_adapters: int | None,
    ) -> None:
        self.blocks, self.max_batch = blocks, max_batch
        self.token_budget, self.max_adapters = token_budget, max_adapters
        self.waiting: list[EngineRequest] = []
        self.running: list[EngineRequest] = []
        self.cached_tokens = 0  # that requests found when they joined

    def add(self, request: EngineRequest) -> None:
        """Put a request into the queue."""
        request.status = Status.WAITING
        insort(self.waiting, request, key=lambda r: r.rank)

    def end(self, request: EngineRequest) -> None:
        """Take a request out, wherever it is, and its blocks back."""
        if request.status is Status.RUNNING:
            self._stop(request)
        else:
            self.waiting.remove(request)
        request.status = Status.ENDED

    def preempt(self) -> list[EngineRequest]:
        """Put the last in rank back into the queue, until the rest have room; return who went.

        They lose their blocks, and read their text again when they come back.
        """
        preempted = []
        while self._n_missing() > self.blocks.pool.n_free:
            last = max(self.running, key=lambda r: r.rank)
            self._stop(last)
            self.add(last)
            preempted.append(last)
        return preempted

    def decoding(self) -> list[EngineRequest]:
        """Return the requests that decode, in the order in which they get their tokens."""
        return [request for request in self._in_order() if request.decodes]

    def affordable(self, gamma: int) -> int:
        """Return how many drafts budget and pool can hold for each that decodes, up to gamma."""
        if self.token_budget is not None:
            n_decoding = sum(request.decodes for request in self.running)
            gamma = min(gamma, self.token_budget // n_decoding - 1)
        while gamma > 0 and self._n_missing(gamma) > self.blocks.pool.n_free:
            gamma -= 1
        return gamma

    def schedule(self) -> list[Scheduled]:
        """Hand out the tokens of the next pass: first to those that run, then to the queue."""
        left: float = math.inf if self.token_budget is None else self.token_budget
        self.running = self._in_order()
        for request in self.running:
            left -= self.blocks.append(request, left)
        while left > 0 and len(self.running) < self.max_batch and (first := self._next()):
            n_cached = self.blocks.allocate(first)
            if n_cached is None:  # nobody overtakes a request that does not fit
                break
            left -= self._start(first, n_cached, left)
        # In the order in which they got blocks: one may read what the pass computes of another.
        batch = [self._scheduled(request) for request in self.running]
        return [part for part in batch if part.tokens]  # the budget may be too small for all

    def _in_order(self) -> list[EngineRequest]:
        """Return those that run: first who decodes, then who reads, each in the order of ranks.

        So a text that is read in parts never keeps others from their next token.
        """
        return sorted(self.running, key=lambda r: (not r.decodes, r.rank))

    def _next(self) -> EngineRequest | None:
        """Return the first in the queue whose adapter may run beside those that do."""
        return next((request for request in self.waiting if self._has_turn(request)), None)

    def _has_turn(self, request: EngineRequest) -> bool:
        adapter = request.options.adapter
        if adapter is None or self.max_adapters is None:
            return True
        in_use = {other.options.adapter for other in self.running} - {None}
        return len(in_use | {adapter}) <= self.max_adapters

    def _start(self, request: EngineRequest, n_cached: int, budget: float) -> int:
        """Begin the run of a request that has its blocks; return how many tokens that takes."""
        self.waiting.remove(request)
        self.running.append(request)
        request.status, request.n_to_read = Status.RUNNING, len(request.text.ids)
        n_tokens = self.blocks.append(request, budget)
        # Made now: a sequence of which all is cached knows that its last token is to be read again.
        request.cache = self.blocks.cache.sequence(request.id, n_cached)
        self.cached_tokens += request.n_computed
        return max(1, n_tokens)

    def _scheduled(self, request: EngineRequest) -> Scheduled:
        tokens, n_before = request.tokens, request.n_computed
        end = self.blocks.pool.n_tokens(request.id)
        n_drafts, complete = len(request.proposal.tokens), end == len(tokens)
        return Scheduled(
            request, tokens[n_before:end], n_before, n_drafts, request.decodes, complete
        )

    def _stop(self, request: EngineRequest) -> None:
        self.running.remove(request)
        self.blocks.free(request)
        request.end_run()

    def _n_missing(self, gamma: int = 0) -> int:
        """Return how many blocks those that run need for their texts, and gamma drafts each."""
        return sum(self.blocks.n_missing(request, gamma) for request in self.running)
