"""Many requests on one model: continuous batching over a paged cache."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from firsttoken.batching import Request, StepRecord
from firsttoken.checks import check_count
from firsttoken.constrained import Constraint
from firsttoken.continuation import Continuation, Generation
from firsttoken.metrics import RequestTrace
from firsttoken.paging import BlockPool, PagedCache, PagedSequence, Usage
from firsttoken.protocols import Model, check_tokens
from firsttoken.sampling import SamplingParams, next_token_distribution, penalize
from firsttoken.tokenizer import Tokenizer

Array = np.ndarray


@dataclass(frozen=True)
class EngineStats:
    """What an engine has done so far, and what it holds now.

    waiting, running: requests now; usage: the pool's blocks now. All else counts from the start:
    submitted, finished, aborted requests; steps; preemptions; computed_tokens, that went through
    the model, those of preempted requests again; cached_tokens, that the prefix cache saved it;
    new_tokens, handed out.
    """

    waiting: int
    running: int
    usage: Usage
    submitted: int = 0
    finished: int = 0
    aborted: int = 0
    steps: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    new_tokens: int = 0


@dataclass(eq=False)
class _Entry:
    """A request in the engine."""

    id: int
    text: Continuation
    sequence: PagedSequence = field(init=False)  # its part of the cache, while it runs
    n_text: int = 0  # what it had to read first when it began to run


class Engine:
    """Runs many requests on one model, a token for each per pass.

    Each `step` is one pass over the new tokens of all that run: of a request that has read its
    text, the one token chosen last; of one that joins, its prompt, or as much as `token_budget`
    leaves after the others have their token ("chunked" in `batching.simulate`; without a budget
    "continuous"). Who has read its whole text gets its next token. Who is done leaves at once, and
    whoever is first in line takes the place, up to `max_batch` at a time.

    Keys and values lie in a pool of `n_blocks` blocks. Requests join in the order they came, when
    blocks for their whole text are free. Where those who run need more blocks than there are, the
    one that came last gives all of its own back, and reads prompt and answer so far again later
    (recompute). With `prefix_caching` a text that starts like an earlier one reuses its blocks.

    Each request has its own sampling parameters and random numbers, so that its tokens are those
    that `generate` gives it alone; only rounding depends on the neighbours, see
    `decision_margins`. Times in a `Generation` count from `submit`, so waiting is in them.

    `tokenizer` is needed for stop strings. `on_step` is called with the `StepRecord` of each step
    when it ends, while the pool still holds what the step used, but for requests that a callback
    has aborted; times are those of `now_s`. After a pass that was interrupted, an engine is of no
    use any more.

    Units:  blocks, tokens, seconds since the engine was made
    Raises: ValueError for a size below one and an architecture that `PagedCache` cannot store.
    Source: Yu et al. 2022, Orca (OSDI'22), sec. 3; Kwon et al. 2023, arXiv:2309.06180, sec. 4.5
            (first come, first served; recomputation)

    >>> from firsttoken.llama import load_model
    >>> engine = Engine(load_model("draft"), n_blocks=8, max_batch=2)
    >>> params = SamplingParams(temperature=0.0, max_tokens=3)
    >>> ids = [engine.submit(prompt, params) for prompt in ([5, 6, 7], [8], [9, 5])]
    >>> sorted(engine.run()) == ids, engine.stats.steps, engine.pool.n_free
    (True, 6, 8)
    """

    def __init__(
        self,
        model: Model,
        n_blocks: int,
        block_size: int = 16,
        max_batch: int = 16,
        token_budget: int | None = None,
        *,
        prefix_caching: bool = False,
        tokenizer: Tokenizer | None = None,
        on_step: Callable[[StepRecord], object] | None = None,
    ) -> None:
        self.model, self.tokenizer, self.on_step = model, tokenizer, on_step
        self.max_batch = check_count("max_batch", max_batch, at_least=1)
        self.token_budget = token_budget
        if token_budget is not None:
            self.token_budget = check_count("token_budget", token_budget, at_least=1)
        self.pool = BlockPool(n_blocks, block_size, prefix_caching)
        self._cache = PagedCache(model.arch, self.pool)
        # Both in the order of ids, and whoever waits came after all that run: nobody overtakes.
        self._waiting: deque[_Entry] = deque()
        self._running: dict[int, _Entry] = {}
        self._finished: dict[int, Generation] = {}  # not yet handed out
        self._counts = EngineStats(0, 0, self.pool.usage())
        self._attended: dict[int, int] = {}  # by id: tokens that the last step attended to
        self._zero_s = time.perf_counter()

    @property
    def stats(self) -> EngineStats:
        """What the engine has done and what it holds."""
        return replace(
            self._counts,
            waiting=len(self._waiting),
            running=len(self._running),
            usage=self.pool.usage(),
        )

    @property
    def unfinished(self) -> bool:
        """Whether there is anything left to do."""
        return bool(self._waiting or self._running)

    def now_s(self) -> float:
        """Return the seconds since the engine was made."""
        return time.perf_counter() - self._zero_s

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        on_token: Callable[[int], object] | None = None,
        ignore_eos: bool = False,
        constraint: Constraint | None = None,
        close_in_time: bool = False,
    ) -> int:
        """Let a request wait for its turn; return its id. The options are those of `generate`.

        Raises: ValueError as `generate`, and for a text that may grow beyond the whole pool:
                nothing could make room for it.
        """
        text = self._continuation(
            prompt_ids, params, on_token, ignore_eos, constraint, close_in_time
        )
        entry = _Entry(self._counts.submitted, text)
        self._waiting.append(entry)
        self._count(submitted=1)
        return entry.id

    def _continuation(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        on_token: Callable[[int], object] | None,
        ignore_eos: bool,
        constraint: Constraint | None = None,
        close_in_time: bool = False,
    ) -> Continuation:
        """Return a request's text, once it is known that it can run to its end."""
        text = Continuation(
            *(self.model, prompt_ids, params, on_token, self.tokenizer),
            *(ignore_eos, constraint, close_in_time),
        )
        check_tokens(self.model.arch, np.asarray([text.ids]))
        n_places = text.max_length - 1  # the last token is never read
        n_slots = self.pool.n_blocks * self.pool.block_size
        if n_places > n_slots:
            raise ValueError(
                f"prompt_ids ({len(text.ids)}) and max_tokens ({params.max_tokens}) may need "
                f"{n_places} places in the cache, expected at most the {n_slots} of "
                f"{self.pool.n_blocks} blocks of {self.pool.block_size}"
            )
        return text

    def abort(self, request_id: int) -> None:
        """Drop a request that has not finished, and free its blocks.

        Raises: KeyError for a request that is unknown or has finished, in this very step or before.
        """
        running = self._running.get(request_id)
        if running is not None and running.text.finish_reason is None:
            self._release(request_id)
        elif waiting := [entry for entry in self._waiting if entry.id == request_id]:
            self._waiting.remove(waiting[0])
        else:
            raise KeyError(f"request_id {request_id!r} is unknown or has finished")
        self._count(aborted=1)

    def step(self) -> dict[int, Generation]:
        """Run one pass; return the requests that are finished now, by id.

        A request whose token cannot be chosen (its constraint allows none, its `on_token` raises)
        is aborted, and its error raised at the end of the step, as is one of `on_step`; several
        come as an ExceptionGroup. The others lose nothing: what has finished comes with the next
        step.
        """
        self._step()
        return self._hand_out()

    def run(self) -> dict[int, Generation]:
        """Step until nothing is left to do; return the requests that have finished, by id."""
        while self.unfinished:
            self._step()
        return self._hand_out()

    def _hand_out(self) -> dict[int, Generation]:
        finished, self._finished = self._finished, {}
        return finished

    def _step(self) -> None:
        if not self.unfinished:
            return
        start_s = self.now_s()
        # Who must go goes before anyone gets tokens: the pool takes those as computed.
        preempted = self._preempt()
        self._give_tokens()
        batch, news = [], []
        for entry in self._running.values():
            new = entry.text.ids[entry.sequence.length : self.pool.n_tokens(entry.id)]
            if new:  # none is left of the budget where all others decode
                batch.append(entry)
                news.append(new)
        sizes = [
            (entry.id, len(new), entry.sequence.length)
            for entry, new in zip(batch, news, strict=True)
        ]
        decodes = tuple(entry.id for entry in batch if len(entry.text.ids) > entry.n_text)
        # In the order in which they got their blocks: a reused one may be filled in this pass.
        logits = self.model.forward_ragged(news, [entry.sequence for entry in batch])
        # Noted now: a callback may abort, and then the pool has forgotten.
        self._attended = {entry.id: entry.sequence.length for entry in batch}
        errors = self._choose(batch, logits)

        self._count(steps=1, computed_tokens=sum(map(len, news)), preemptions=len(preempted))
        if self.on_step is not None:
            prefills = tuple(size for size in sizes if size[0] not in decodes)
            record = StepRecord(start_s, self.now_s(), prefills, decodes, tuple(preempted))
            try:
                self.on_step(record)
            except Exception as error:
                errors.append(error)
        for entry in batch:
            if entry.text.finish_reason is not None and entry.id in self._running:
                self._release(entry.id)
                self._finished[entry.id] = entry.text.result()
                self._count(finished=1)
        if len(errors) > 1:
            raise ExceptionGroup(f"{len(errors)} errors in one step", errors)
        if errors:
            raise errors[0]

    def _preempt(self) -> list[int]:
        """Send whoever came last back to wait, until all others can go on; return who went."""
        preempted = []
        while self._n_missing() > self.pool.n_free:
            entry = self._running[max(self._running)]
            self._release(entry.id)
            self._waiting.appendleft(entry)
            preempted.append(entry.id)
        return preempted

    def _n_missing(self) -> int:
        """Return how many blocks the texts of those who run still need."""
        return sum(
            self._n_blocks(len(entry.text.ids)) - self._n_blocks(self.pool.n_tokens(entry.id))
            for entry in self._running.values()
        )

    def _n_blocks(self, n_tokens: int) -> int:
        return math.ceil(n_tokens / self.pool.block_size)

    def _give_tokens(self) -> None:
        """Hand the pool the tokens of this step: of those who run, then of those who may join."""
        left: float = math.inf if self.token_budget is None else self.token_budget
        for entry in self._running.values():
            left -= self._give(entry, left)
        while self._waiting and left > 0 and len(self._running) < self.max_batch:
            entry = self._waiting[0]
            ids = entry.text.ids
            n_cached = self.pool.n_cached(ids)
            # Hold what is there, so that it does not count as free for the rest.
            self.pool.allocate(entry.id, ids[:n_cached])
            if self._n_blocks(len(ids) - n_cached) > self.pool.n_free:
                self.pool.free(entry.id)
                return
            self._running[entry.id] = self._waiting.popleft()
            n_given = self._give(entry, left)
            entry.sequence = self._cache.sequence(entry.id, n_cached)
            entry.n_text = len(ids)
            left -= max(1, n_given)  # of a text that is cached whole, the last is read again
            self._count(cached_tokens=entry.sequence.length)

    def _give(self, entry: _Entry, left: float) -> int:
        """Hand the pool a request's next tokens, as many as are left; return how many."""
        start, end = self.pool.n_tokens(entry.id), len(entry.text.ids)
        end = int(min(end, start + left))  # without a budget infinity is left
        for token in entry.text.ids[start:end]:
            # Shared blocks are full and nobody forks, so that no block has to be copied.
            self.pool.append(entry.id, token)
        return end - start

    def _choose(self, batch: list[_Entry], logits: list[Array]) -> list[Exception]:
        """Give each request that has read its whole text the next token; return what was raised."""
        errors: list[Exception] = []
        read = [entry.sequence.length == len(entry.text.ids) for entry in batch]
        for entry, after, complete in zip(batch, logits, read, strict=True):
            if not complete or entry.id not in self._running:  # a callback may abort others
                continue
            try:
                entry.text.note_prefill()
                token = entry.text.choose(after[-1])
                self._count(new_tokens=1)
                entry.text.append(token)
            except Exception as error:
                errors.append(error)
                if entry.id in self._running:
                    self.abort(entry.id)
        return errors

    def _release(self, request_id: int) -> None:
        self.pool.free(request_id)
        del self._running[request_id].sequence, self._running[request_id]

    def _count(self, **more: int) -> None:
        sums = {name: getattr(self._counts, name) + n for name, n in more.items()}
        self._counts = replace(self._counts, **sums)


def serve_trace(
    engine: Engine,
    requests: Sequence[Request],
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | None = None,
) -> list[RequestTrace]:
    """Send each prompt to the engine when its request arrives, in real time; return the traces.

    As `batching.simulate` does it on a virtual clock: request i brings prompts[i], of its n_prompt
    tokens, and goes on for its n_output tokens whatever the model says (default: greedily). Who
    arrives during a step waits for its end. Traces are in the order of the requests, on the clock
    of the engine's steps; the first moment of the requests' clock is the call.

    Units:  seconds
    Raises: ValueError, before anything is sent, for another number of prompts than requests, a
            prompt of another length than its request says, a request longer than the model's
            context, whatever `Engine.submit` refuses, and an engine at work.
    """
    params = SamplingParams(temperature=0.0) if params is None else params
    if engine.unfinished:
        raise ValueError("engine has requests of its own, expected an idle one")
    if len(prompts) != len(requests):
        raise ValueError(f"{len(prompts)} prompts for {len(requests)} requests, expected as many")
    context = engine.model.arch.max_context or math.inf
    for i, (request, prompt) in enumerate(zip(requests, prompts, strict=True)):
        if len(prompt) != request.n_prompt or request.n_prompt + request.n_output > context:
            raise ValueError(
                f"prompts: {len(prompt)} ids for request {i}, expected its n_prompt "
                f"{request.n_prompt}, with n_output {request.n_output} at most {context}"
            )
    wanted = [replace(params, max_tokens=request.n_output, stop=()) for request in requests]
    for i, prompt in enumerate(prompts):
        try:
            engine._continuation(prompt, wanted[i], None, ignore_eos=True)
        except ValueError as error:
            raise ValueError(f"request {i}: {error}") from error
    begin_s = engine.now_s()
    coming = deque(sorted(range(len(requests)), key=lambda i: requests[i].arrival_s))
    times: list[list[float]] = [[] for _ in requests]
    while coming or engine.unfinished:
        while coming and begin_s + requests[coming[0]].arrival_s <= engine.now_s():
            i = coming.popleft()

            def note(token: int, i: int = i) -> None:
                times[i].append(engine.now_s())

            engine.submit(prompts[i], wanted[i], on_token=note, ignore_eos=True)
        if not engine.unfinished:
            time.sleep(max(0.0, begin_s + requests[coming[0]].arrival_s - engine.now_s()))
        engine.step()
    return [
        RequestTrace(begin_s + request.arrival_s, tuple(token_times), request.n_prompt)
        for request, token_times in zip(requests, times, strict=True)
    ]


def decision_margins(
    model: Model, prompt_ids: Sequence[int], ids: Sequence[int], params: SamplingParams
) -> Array:
    """Return how far each token of an answer was from becoming another one.

    A product over more rows may add up in another order, so logits differ in the last bits with
    who shares a pass. That changes a token only where it was nearly another: at temperature 0
    where the two largest logits (after the penalties) nearly tie, else where the random number
    fell next to the end of its token's share of the distribution. The margin is the difference of
    those logits, or the distance of the number from that end, as a probability. Filters cut, too,
    and a cut that falls between two near ties is not in the margin.

    One pass over prompt and answer; the random numbers are drawn again from the seed. The answer
    is that of `generate` or an `Engine`, without a constraint.

    Shapes: ids (n,), result (n,)
    Units:  logits at temperature 0, else probability; infinite where one token has it all
    Raises: ValueError for an empty answer, and a temperature above 0 without a seed.

    >>> from firsttoken.generate import generate
    >>> from firsttoken.llama import load_model
    >>> model, params = load_model("draft"), SamplingParams(temperature=0.0, max_tokens=5)
    >>> margins = decision_margins(model, [5, 6], generate(model, [5, 6], params).ids, params)
    >>> margins.shape, bool(margins.min() > 1e-4)  # no two logits tie within rounding
    ((5,), True)
    """
    if len(ids) == 0:
        raise ValueError("ids must hold at least one token, got none")
    if params.temperature > 0 and params.seed is None:
        raise ValueError("params.seed must be given, to draw the same numbers again; got None")
    text, n_prompt = [*prompt_ids, *ids], len(prompt_ids)
    logits = np.asarray(model([text[:-1]]))[0, n_prompt - 1 :]
    context = params, [text[:n_prompt]] * len(ids), [list(ids[:i]) for i in range(len(ids))]
    if params.temperature == 0:
        second, first = np.partition(penalize(logits, *context), -2, axis=-1)[:, -2:].T
        return first - second
    mass = next_token_distribution(logits, *context).cumsum(axis=-1, dtype=np.float64)
    uniform = np.random.default_rng(params.seed).random((len(ids), 1))
    distance = np.abs(mass / mass[:, -1:] - uniform)
    # The last sum is 1, where no share ends and another begins.
    return np.where(mass < mass[:, -1:], distance, np.inf).min(axis=-1)
