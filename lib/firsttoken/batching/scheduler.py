"""Who runs in a step, on a clock that jumps from step to step."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from firsttoken.batching.progress import Progress
from firsttoken.batching.queue import WaitingQueue
from firsttoken.batching.records import Request, StepRecord
from firsttoken.batching.speculation import Speculation
from firsttoken.checks import check_seconds
from firsttoken.paging import BlockPool, OutOfBlocks

# Seconds of one step, from its prompts and checks of guesses (new tokens, tokens cached before) and
# from the tokens that each other decoding sequence attends to.
StepCost = Callable[[list[tuple[int, int]], list[int]], float]


@dataclass
class Scheduler:
    """Runs requests step by step: `step` while `unfinished`, then `free_all`; see `simulate`.

    A request waits in the queue, is in `prefilling` while its prompt is cut, and then in
    `decoding`. A preempted one waits again, with `swapped` tokens in the host's memory or none.
    Requests go by their place in the list.
    """

    requests: list[Request]
    cost: StepCost
    policy: str
    max_batch: int
    budget: float
    pool: BlockPool | None
    swaps: bool
    swap_token_s: float
    max_wait_s: float
    queue: WaitingQueue
    speculation: Speculation | None
    on_step: Callable[[StepRecord], object] | None

    def __post_init__(self) -> None:
        self.coming = sorted(range(len(self.requests)), key=lambda i: self.requests[i].arrival_s)
        self.arrivals = [self.requests[i].arrival_s for i in self.coming]
        self.arrivals.append(math.inf)  # nobody comes after the last
        self.n_arrived, self.clock = 0, -math.inf
        self.progress = Progress(self.requests)
        self.prefilling: list[tuple[int, int]] = []  # (request, tokens cached)
        self.decoding: list[int] = []
        self.attended: list[int] = []  # of each that decodes: the tokens it attends to next
        self.swapped: dict[int, int] = {}  # the tokens that a request has in the host's memory
        self.n_moved = 0  # tokens, to and from the host in this step
        self.in_pool: set[int] = set()  # requests with blocks
        self.rng = np.random.default_rng(self.speculation.seed if self.speculation else 0)

    def unfinished(self) -> bool:
        """Say whether somebody runs, waits or is still to come."""
        someone_here = self.decoding or self.prefilling or self.queue.n_waiting
        return bool(someone_here) or self.n_arrived < len(self.coming)

    def step(self) -> None:
        """Let one step pass, and before it the time until somebody may run."""
        idle = not self.decoding and not self.prefilling
        if idle:
            self._sleep()
        start_s, self.n_moved = self.clock, 0
        preempted = [] if self.pool is None else self._make_room()
        gamma = self._guess()
        n_guessing = len(self.decoding) if gamma else 0
        prompts = []
        if self.queue.n_waiting or self.prefilling:
            may_join = idle or self.policy in ("continuous", "chunked")
            prompts = self._take_prompts(may_join, n_guessing * gamma)
        passes = [(new, before) for _, new, before in prompts if new]
        passes += [(gamma + 1, n - 1) for n in self.attended[:n_guessing]]
        seconds = self.cost(passes, self.attended[n_guessing:])
        if not 0 <= seconds < math.inf:
            raise ValueError(f"cost must give finite seconds, none negative, got {seconds!r}")
        draft_s, kept = self._draft_and_check(n_guessing, gamma)
        seconds += draft_s
        if self.n_moved:
            seconds += self.n_moved * self.swap_token_s
        end_s = self.clock + seconds
        if self.on_step is not None:
            prefills = tuple(prompt for prompt in prompts if prompt[1])
            decodes = tuple(self.decoding)
            self.on_step(
                StepRecord(start_s, end_s, prefills, decodes, tuple(preempted), gamma, tuple(kept))
            )
        self._hand_out_tokens(end_s, prompts, gamma, kept)
        self._wait_until(end_s)

    def free_all(self) -> None:
        """Free what requests still hold in the pool."""
        for i in list(self.in_pool):
            self._free(i)

    # Before a step: the clock, arrivals, and places in the pool.

    def _wait_until(self, time_s: float) -> None:
        """Move the clock, never back; who has arrived by then waits in the queue."""
        self.clock = max(self.clock, time_s)
        while self.arrivals[self.n_arrived] <= self.clock:
            self.queue.add(self.coming[self.n_arrived])
            self.n_arrived += 1

    def _sleep(self) -> None:
        """Nobody runs: wait until there is somebody, and until the policy starts a batch."""
        if not self.queue.n_waiting:
            self._wait_until(self.arrivals[self.n_arrived])
        n_missing = self.max_batch - self.queue.n_waiting
        if n_missing > 0 and self.policy == "static":
            last = min(self.n_arrived + n_missing, len(self.coming)) - 1
            self._wait_until(self.arrivals[last])
        elif n_missing > 0 and self.policy == "dynamic":
            full = min(self.n_arrived + n_missing - 1, len(self.coming))  # infinity at the end
            patience_ends = self.queue.oldest_arrival() + self.max_wait_s
            self._wait_until(min(self.arrivals[full], patience_ends))

    def _make_room(self) -> list[int]:
        """Give every decoding sequence a place for one more token; return who was preempted."""
        assert self.pool is not None
        preempted: list[int] = []
        for i in list(self.decoding):
            while i not in preempted:
                try:
                    self.pool.append(i, i)
                    break
                except OutOfBlocks:
                    preempted.append(self._preempt_last())
        return preempted

    def _preempt_last(self) -> int:
        """Let the last in the queue's order, of those that run, give up its blocks and wait."""
        cached = dict(self.prefilling) | dict.fromkeys(self.decoding, 0)
        i = max(cached, key=self.queue.order.__getitem__)
        if i in self.decoding:
            self.progress.preempt(i)
            self._leave(i)
            n_cached = self._n_text(i) - 1  # the token that came last was not yet read
        else:
            n_cached = cached[i]
            self.prefilling.remove((i, n_cached))
            self._free(i)
        if self.swaps:
            self.swapped[i] = n_cached
            self.n_moved += n_cached
        self.queue.add(i)
        return i

    # Guesses: how many, and which of them are kept.

    def _guess(self) -> int:
        """Return how many guesses each decoding sequence makes now, and give them places."""
        n = len(self.decoding)
        if self.speculation is None or n == 0:
            return 0
        gamma = int(min(self.speculation.guesses(n), self.budget / n - 1))
        if self.pool is not None:
            while gamma and self._n_new_blocks(gamma) > self.pool.n_free:
                gamma -= 1
            for i in self.decoding:
                for _ in range(gamma):
                    self.pool.append(i, i)
        return gamma

    def _n_new_blocks(self, gamma: int) -> int:
        """Return how many blocks gamma guesses of each decoding sequence need."""
        assert self.pool is not None
        size = self.pool.block_size
        return sum(math.ceil((n + gamma) / size) - math.ceil(n / size) for n in self.attended)

    def _draft_and_check(self, n_guessing: int, gamma: int) -> tuple[float, list[int]]:
        """Return how long drafting takes, and how many of its guesses each gets as tokens."""
        if self.speculation is None or n_guessing == 0:
            return 0.0, []
        draft_s = self.speculation.draft_s(n_guessing, gamma)
        check_seconds(draft_s=draft_s)
        kept = self.speculation.draw_kept(n_guessing, gamma, self.rng)
        missing = self.progress.n_missing(self.decoding[:n_guessing])
        return draft_s, [min(pair) for pair in zip(kept, missing, strict=True)]

    # Prompts: those that were cut go on, then others join.

    def _take_prompts(self, may_join: bool, n_guesses: int) -> list[tuple[int, int, int]]:
        """Return what this step computes of prompts: (request, new tokens, cached before)."""
        left = self.budget - len(self.decoding) - n_guesses
        prompts = []
        for i, before in self.prefilling:
            new = int(min(left, self._n_text(i) - before))  # without a budget left is infinite
            left -= new
            self.queue.charge(i, new)
            prompts.append((i, new, before))
        while may_join and self.queue.n_waiting:
            if len(self.decoding) + len(prompts) >= self.max_batch:
                break
            i = self.queue.first()
            before = self.swapped.get(i, 0)
            new = self._n_text(i) - before
            if self.policy == "chunked":
                new = int(min(new, left))
            if not 1 <= new <= left or not self._allocate(i):
                break
            self.queue.pop(i)
            left -= new
            self.n_moved += self.swapped.pop(i, 0)
            if before and self.progress.token_times[i]:  # swapped out while it decoded: it goes on
                self._start(i, self._n_text(i))
            else:
                self.queue.charge(i, new)
                prompts.append((i, new, before))
        return prompts

    def _n_text(self, i: int) -> int:
        """Return the tokens of a request that does not decode: its prompt and answer so far."""
        return self.requests[i].n_prompt + len(self.progress.token_times[i])

    def _allocate(self, i: int) -> bool:
        """Take the blocks that a request needs to join, if they are free."""
        try:
            if self.pool is not None:
                # Its own number for each token: no two requests have a text in common.
                self.pool.allocate(i, [i] * self._n_text(i))
                self.in_pool.add(i)
        except OutOfBlocks:
            return False
        return True

    # After a step: tokens for those who ran, and who has all of them leaves.

    def _hand_out_tokens(
        self, end_s: float, prompts: list[tuple[int, int, int]], gamma: int, kept: list[int]
    ) -> None:
        """End a step: who computed a whole text or decoded has a token more, or leaves."""
        # A list of its own for every step: the cost function may keep what it was given.
        self.attended = [n + 1 for n in self.attended]
        if self.queue.fair:
            for i in self.decoding:
                self.queue.charge(i, 1)
        for at, n_kept in enumerate(kept):
            self._hand_out_guesses(at, gamma, n_kept, end_s)
        self.prefilling.clear()
        for i, new, before in prompts:
            if before + new < self._n_text(i):
                self.prefilling.append((i, before + new))
            else:
                self._start(i, self._n_text(i) + 1)
        for i in self.progress.end_step(end_s):
            self.progress.stop(i)
            self._leave(i)

    def _hand_out_guesses(self, at: int, gamma: int, n_kept: int, end_s: float) -> None:
        """Add the guesses that a sequence keeps to its token of this step; forget the others."""
        i = self.decoding[at]
        self.attended[at] += n_kept
        self.queue.charge(i, gamma)
        if self.pool is not None:  # the token that came last has no place yet
            self.pool.truncate(i, self.attended[at] - 1)
        if n_kept:
            self.progress.keep(i, n_kept, end_s)

    def _start(self, i: int, n_attended: int) -> None:
        """Let a request get a token at the end of this step and of those that follow."""
        self.progress.start(i)
        self.decoding.append(i)
        self.attended.append(n_attended)

    def _leave(self, i: int) -> None:
        """Take a request from those that decode, and its blocks from it."""
        at = self.decoding.index(i)
        del self.decoding[at], self.attended[at]
        if self.pool is not None:
            self._free(i)

    def _free(self, i: int) -> None:
        assert self.pool is not None
        self.pool.free(i)
        self.in_pool.remove(i)
