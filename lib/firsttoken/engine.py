"""Many requests on one model: continuous batching over a paged cache."""

import copy
import math
import sys
import time
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from numbers import Integral, Real
from operator import itemgetter
from typing import Any, Protocol, cast

import numpy as np

from firsttoken.batching import Request, StepRecord
from firsttoken.checks import check_count
from firsttoken.constrained import Constraint
from firsttoken.continuation import Continuation, Generation
from firsttoken.generate import Draft, Observer, Proposal
from firsttoken.llama import Llama
from firsttoken.lora import AdaptedModel, Adapter
from firsttoken.metrics import RequestTrace
from firsttoken.paging import BlockPool, PagedBatch, PagedCache, PagedSequence, Usage
from firsttoken.protocols import Cache, Model, check_tokens, ragged_rows
from firsttoken.sampling import SamplingParams, draw, next_token_distribution, penalize
from firsttoken.speculative import Round, verify, verify_greedy
from firsttoken.threads import blas_threads
from firsttoken.tokenizer import Tokenizer

Array = np.ndarray


class QueueFull(RuntimeError):
    """As many requests wait as an engine lets wait; nothing was submitted."""


@dataclass(frozen=True)
class TokenLogprobs:
    """How likely the model held a token: the logarithm of its probability, and the likeliest ones.

    Probabilities are those of the model's own logits: before temperature, penalties and masks.
    `top` holds (token, logprob) of the likeliest tokens, the first of equal ones first.

    Units:  nats
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Answer(Generation):
    """What became of a request in an engine.

    Beside those of a `Generation`, `finish_reason` is "error" (its callback raised, or no token
    could be chosen: `error` says what), "deadline" or "abort"; `ids` are then what it had got.
    Where it ended before its prompt was read, `prefill_s` is when it ended.
    `logprobs` are those of each of `ids`, where they were asked for.
    """

    error: Exception | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True)
class EngineStats:
    """What an engine has done so far, and what it holds now.

    waiting, running: requests now; usage: the pool's blocks now. All else counts from the start:
    submitted, finished, aborted requests, those that failed and those whose deadline passed
    (expired); steps; preemptions; computed_tokens, that went through the model, guesses and those
    of preempted requests again; cached_tokens, that the prefix cache or a shared prompt saved it;
    new_tokens, handed out; drafted_tokens, that were guessed, and accepted_tokens among them;
    pass_s, the time of the model's passes: what is left of the steps is the engine's own.

    Units:  tokens, blocks, seconds
    """

    waiting: int
    running: int
    usage: Usage
    submitted: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    expired: int = 0
    steps: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    new_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    pass_s: float = 0.0


@dataclass(eq=False)
class _Entry:
    """A request in the engine."""

    id: int
    text: Continuation
    on_token: Callable[[int], object] | None
    adapter: str | None
    priority: int
    ends_s: float  # its deadline, on the engine's clock
    n_logprobs: int | None
    siblings: list["_Entry"]  # answers to the same prompt, itself among them
    n_prompt: int
    told: list[TokenLogprobs] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    error: Exception | None = None
    sequence: PagedSequence = field(init=False)  # its part of the cache, while it runs
    n_text: int = 0  # what it had to read first when it began to run
    guesser: Any = None  # what guesses for it, while it runs
    guesses: Proposal = field(default_factory=lambda: Proposal([]))  # of this step

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands in the line: who comes first goes first."""
        return self.priority, self.id

    @property
    def decodes(self) -> bool:
        """Whether it has got a token since it began to run."""
        return len(self.text.ids) > self.n_text


class Engine:
    """Runs many requests on one model, a token for each per pass, or more with a draft.

    Each `step` is one pass over the new tokens of all that run: of a request that has read its
    text, the one token chosen last; of one that joins, its prompt, or as much as `token_budget`
    leaves after the others have their token ("chunked" in `batching.simulate`; without a budget
    "continuous"). Who has read its whole text gets its next token. Who is done leaves at once, and
    whoever is first in line takes the place, up to `max_batch` at a time. First in line is the
    lowest `priority`, then who came first; the first who does not fit holds back all behind.

    Keys and values lie in a pool of `n_blocks` blocks. Requests join when blocks for their whole
    text are free. Where those who run need more blocks than there are, the one that is last in line
    gives all of its own back, and reads prompt and answer so far again later (recompute). With
    `prefix_caching` a text that starts like an earlier one reuses its blocks; answers to one prompt
    (`submit_many`) share its blocks in any case, and copy the last when they write to it.

    With a `draft`, a model or a chain `Draft`, of which each request gets a copy, whoever decodes
    guesses up to `gamma` tokens, and the same pass checks them. `gamma` is a number, or a function
    of how many decode, which may turn it down with the load; it is lowered for a step in which
    budget or pool cannot hold so many for all. What is rejected is forgotten by the cache. A draft
    model's own cache goes when its request stops running.

    Each request has its own sampling parameters and random numbers, so that its tokens are those
    that `generate` gives it alone; only rounding depends on the neighbours, see
    `decision_margins`. With a draft, and a temperature above 0, tokens have the same distribution,
    and `rounds` tells which guesses led to them. Times in an `Answer` count from `submit`, so
    waiting is in them.

    With `adapters` a request may name one, and gets the tokens that it would get alone from a base
    with that adapter merged; requests with different ones, and with none, share each pass. Texts
    share blocks only where they have the same adapter, since keys and values differ. A draft
    guesses without adapters, and the pass that checks has them. At most `max_adapters` different
    ones run at once (None: any number). A request that would bring one more waits, and unlike one
    that does not fit it holds nobody back: those behind it may go first, for as long as they keep
    the others' adapters in use.

    `tokenizer` is needed for stop strings; `max_waiting` is how many may wait (None: any number).
    `on_step` is called with the `StepRecord` of each step when it ends, while the pool still holds
    what the step used, but for requests that a callback has aborted; times are those of `now_s`.
    What it raises, and what `gamma` raises, is kept in `hook_errors`, the last hundred. An error of
    the model itself is raised by `step`: such an engine, and one that was interrupted, is of no use
    any more.

    Units:  blocks, tokens, seconds since the engine was made
    Raises: ValueError for a size below one, an architecture that `PagedCache` cannot store, and a
            draft with another vocabulary or that wants to see features; for adapters as
            `lora.AdaptedModel`, and a max_adapters without any.
    Source: Yu et al. 2022, Orca (OSDI'22), sec. 3; Kwon et al. 2023, arXiv:2309.06180, sec. 4.5
            (recomputation), 4.4 (shared prompts); vLLM for priorities, and for max_adapters (its
            max_loras)

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
        max_waiting: int | None = None,
        draft: Model | Draft | None = None,
        gamma: int | Callable[[int], int] = 4,
        adapters: Mapping[str, Adapter] | None = None,
        max_adapters: int | None = None,
    ) -> None:
        self.model, self.tokenizer, self.on_step = model, tokenizer, on_step
        self.max_batch = check_count("max_batch", max_batch, at_least=1)
        self.token_budget = token_budget
        if token_budget is not None:
            self.token_budget = check_count("token_budget", token_budget, at_least=1)
        self.max_waiting = max_waiting
        if max_waiting is not None:
            self.max_waiting = check_count("max_waiting", max_waiting, at_least=1)
        self.gamma = gamma if callable(gamma) else check_count("gamma", gamma)
        self._guessers = None if draft is None else _guessers(draft, model)
        self.adapters = dict(adapters or {})
        self._passing, self._part = model, sys.maxsize  # _part: tokens of a pass at a time
        if type(model) is Llama:
            self._passing, self._part = _PagedLlama(model), _PagedLlama.part
        self._adapted = AdaptedModel(self._passing, self.adapters) if self.adapters else None
        # The pool knows a text by its tokens; those of each adapter get numbers of their own.
        self._first_ids = {
            name: i * model.arch.vocab_size for i, name in enumerate([None, *self.adapters])
        }
        self.max_adapters = max_adapters
        if max_adapters is not None:
            self.max_adapters = check_count("max_adapters", max_adapters, at_least=1)
            if not self.adapters:
                raise ValueError(f"max_adapters {max_adapters} needs adapters, got none")
        self.hook_errors: deque[Exception] = deque(maxlen=100)
        self.pool = BlockPool(n_blocks, block_size, prefix_caching)
        self._cache = PagedCache(model.arch, self.pool)
        self._waiting: list[_Entry] = []  # in the order of their places
        self._running: dict[int, _Entry] = {}
        self._finished: dict[int, Answer] = {}  # not yet handed out
        self._counts: Counter[str] = Counter()
        self._attended: dict[int, int] = {}  # by id: tokens that the last step attended to
        self._n_new: dict[int, int] = {}  # by id: those that it computed
        self._stepping = False
        self._pass_s = 0.0
        self._zero_s = time.perf_counter()

    @property
    def stats(self) -> EngineStats:
        """What the engine has done and what it holds."""
        counted = EngineStats(
            len(self._waiting), len(self._running), self.pool.usage(), **self._counts
        )
        return replace(counted, pass_s=self._pass_s)

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
        *,
        adapter: str | None = None,
        priority: int = 0,
        deadline_s: float | None = None,
        logprobs: int | None = None,
    ) -> int:
        """Let a request wait for its turn; return its id. Options as in `generate`, and more.

        A lower `priority` goes first. Where it is not done within `deadline_s`, it ends with what
        it has, before the next step. `logprobs` is how many of the likeliest tokens are told beside
        each token; None tells nothing. `adapter` names one of the engine's; None is the base. A
        callback may submit and abort, but not call `step`.

        Units:  seconds from now
        Raises: ValueError as `generate`, for a text that may grow beyond the whole pool (nothing
                could make room for it), an unknown adapter, or an option out of range; QueueFull.
        """
        listen = None if on_token is None else lambda _, token: on_token(token)
        options = ignore_eos, constraint, close_in_time
        (only,) = self.submit_many(
            *(prompt_ids, params, 1, listen, *options),
            adapter=adapter,
            priority=priority,
            deadline_s=deadline_s,
            logprobs=logprobs,
        )
        return only

    def submit_many(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        n: int,
        on_token: Callable[[int, int], object] | None = None,
        ignore_eos: bool = False,
        constraint: Constraint | None = None,
        close_in_time: bool = False,
        *,
        adapter: str | None = None,
        priority: int = 0,
        deadline_s: float | None = None,
        logprobs: int | None = None,
    ) -> list[int]:
        """Submit a prompt for n answers, which share its blocks; return their ids.

        Answer i is that of `submit` with the seed params.seed + i, where there is one, and
        `on_token` is called with i and the token. Either all of them are submitted, or none.

        Raises: as `submit`, and ValueError for an n below 1 or more than may wait.
        """
        check_count("n", n, at_least=1)
        if adapter not in self._first_ids:
            known = ", ".join(map(repr, self.adapters)) or "the engine has no adapters"
            raise ValueError(f"adapter {adapter!r} is unknown, expected None or one of: {known}")
        if not isinstance(priority, Integral) or isinstance(priority, bool):
            raise ValueError(f"priority must be a whole number, got {priority!r}")
        if deadline_s is not None and not (isinstance(deadline_s, Real) and deadline_s > 0):
            raise ValueError(f"deadline_s must be above 0 seconds, or None; got {deadline_s!r}")
        n_vocab = self.model.arch.vocab_size
        if logprobs is not None and check_count("logprobs", logprobs) > n_vocab:
            raise ValueError(f"logprobs must be at most the {n_vocab} tokens, got {logprobs}")
        if self.max_waiting is not None and n > self.max_waiting:
            raise ValueError(f"n must be at most max_waiting, {self.max_waiting}, got {n}")
        seeds = [None if params.seed is None else params.seed + i for i in range(n)]
        texts = [
            self._text(
                prompt_ids, replace(params, seed=seed), ignore_eos, constraint, close_in_time
            )
            for seed in seeds
        ]
        if self.max_waiting is not None and len(self._waiting) + n > self.max_waiting:
            raise QueueFull(
                f"{len(self._waiting)} requests wait and {n} came, "
                f"expected at most max_waiting: {self.max_waiting}"
            )
        ends_s = math.inf if deadline_s is None else self.now_s() + float(deadline_s)
        siblings: list[_Entry] = []
        for i, text in enumerate(texts):
            listen = None if on_token is None else lambda token, i=i: on_token(i, token)
            n_prompt = len(text.ids)
            entry = _Entry(
                self._counts["submitted"],
                *(text, listen, adapter, int(priority), ends_s, logprobs, siblings, n_prompt),
            )
            siblings.append(entry)
            insort(self._waiting, entry, key=lambda e: e.place)
            self._count(submitted=1)
        return [entry.id for entry in siblings]

    def _text(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        ignore_eos: bool,
        constraint: Constraint | None = None,
        close_in_time: bool = False,
    ) -> Continuation:
        """Return a request's text, once it is known that it can run to its end."""
        # Callbacks are called here, not there: whatever they raise, the text is whole.
        text = Continuation(
            *(self.model, prompt_ids, params, None, self.tokenizer),
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
        if self._guessers is not None:
            self._guessers.check(text)
        return text

    def abort(self, request_id: int) -> Answer:
        """Drop a request that has not finished, and free its blocks; return what it has got.

        No step hands it out any more. Who has finished in this very step keeps its answer.

        Raises: KeyError for a request that is unknown or has finished, in this very step or before.
        """
        entry = self._running.get(request_id)
        if entry is not None and entry.text.finish_reason is None:
            self._release(request_id)
        elif waiting := [entry for entry in self._waiting if entry.id == request_id]:
            entry = waiting[0]
            self._waiting.remove(entry)
        else:
            raise KeyError(f"request_id {request_id!r} is unknown or has finished")
        self._count(aborted=1)
        return self._ended(entry, "abort")

    def told(self, request_id: int) -> Sequence[TokenLogprobs]:
        """Return what has been told of the tokens of a request that waits or runs, up to now.

        A callback finds its token's log-probabilities at the end.

        Raises: KeyError for a request that is unknown or has ended.
        """
        entry = self._running.get(request_id)
        if entry is None:
            entry = next((entry for entry in self._waiting if entry.id == request_id), None)
        if entry is None:
            raise KeyError(f"request_id {request_id!r} is unknown or has ended")
        return entry.told

    def step(self) -> dict[int, Answer]:
        """Run one pass; return the requests that have ended now, by id.

        Nothing that a request or its callback does raises here: it ends with an `error`, and the
        others lose nothing.

        Raises: RuntimeError when a callback calls it; what the model raises.
        """
        self._step()
        return self._hand_out()

    def run(self) -> dict[int, Answer]:
        """Step until nothing is left to do; return the requests that have ended, by id."""
        while self.unfinished:
            self._step()
        return self._hand_out()

    def _hand_out(self) -> dict[int, Answer]:
        finished, self._finished = self._finished, {}
        return finished

    def _step(self) -> None:
        if self._stepping:
            raise RuntimeError("step was called within a step, by a callback")
        self._stepping = True
        try:
            self._expire()
            if self.unfinished:
                self._pass()
        finally:
            self._stepping = False

    def _expire(self) -> None:
        """End the requests whose deadline has passed."""
        entries = [*self._waiting, *self._running.values()]
        if all(entry.ends_s == math.inf for entry in entries):
            return
        now_s = self.now_s()
        for entry in entries:
            if entry.ends_s <= now_s:
                if entry.id in self._running:
                    self._release(entry.id)
                else:
                    self._waiting.remove(entry)
                self._finished[entry.id] = self._ended(entry, "deadline")
                self._count(expired=1)

    def _pass(self) -> None:
        start_s = self.now_s()
        # Who must go goes before anyone gets tokens: the pool takes those as computed.
        preempted = self._preempt()
        n_failed = self._guess()
        self._give_tokens()
        batch, news = [], []
        for entry in self._running.values():
            read = [*entry.text.ids, *entry.guesses.tokens]
            new = read[entry.sequence.length : self.pool.n_tokens(entry.id)]
            if new:  # none is left of the budget where all others decode
                batch.append(entry)
                news.append(new)
        if not batch:
            assert n_failed, "a step without work would go on for ever"
            return
        sizes = [
            (entry.id, len(new), entry.sequence.length)
            for entry, new in zip(batch, news, strict=True)
        ]
        decoding = [entry for entry in batch if entry.decodes]
        guessing = [entry for entry in decoding if entry.guesses.tokens]
        gamma = max((len(entry.guesses.tokens) for entry in guessing), default=0)
        n_before = [len(entry.text.ids) for entry in guessing]
        # In the order in which they got their blocks: a reused one may be filled in this pass.
        before_s = self.now_s()
        logits = self._logits(news, batch)
        self._pass_s += self.now_s() - before_s
        # Noted now: a callback may abort, and then the pool has forgotten.
        self._attended = {entry.id: entry.sequence.length for entry in batch}
        self._n_new = {request_id: n_new for request_id, n_new, _ in sizes}
        self._choose(batch, logits)

        self._count(steps=1, computed_tokens=sum(map(len, news)), preemptions=len(preempted))
        if self.on_step is not None:
            decodes = [e.id for e in [*guessing, *(e for e in decoding if e not in guessing)]]
            kept = [
                max(0, len(entry.text.ids) - n - 1)
                for entry, n in zip(guessing, n_before, strict=True)
            ]
            record = StepRecord(
                start_s,
                self.now_s(),
                tuple(size for size in sizes if size[0] not in decodes),
                tuple(decodes),
                tuple(preempted),
                gamma,
                tuple(kept),
            )
            try:
                self.on_step(record)
            except Exception as error:
                self.hook_errors.append(error)
        for entry in batch:
            if entry.text.finish_reason is not None and entry.id in self._running:
                self._leave(entry)

    def _logits(self, news: list[list[int]], batch: list[_Entry]) -> list[Array]:
        """Return the logits behind the new tokens of each request, with its adapter.

        Many tokens go through the model in parts, the first of them first: what a layer makes of a
        part is still in the processor's cache when the next product needs it.
        """
        tokens = [(i, token) for i, new in enumerate(news) for token in new]
        found: list[list[Array]] = [[] for _ in batch]
        for start in range(0, len(tokens), self._part):
            part = groupby(tokens[start : start + self._part], key=itemgetter(0))
            rows = {i: [token for _, token in of_one] for i, of_one in part}
            logits = self._forward(list(rows.values()), [batch[i] for i in rows])
            for i, after in zip(rows, logits, strict=True):
                found[i].append(np.asarray(after))
        return [np.concatenate(parts) if len(parts) > 1 else parts[0] for parts in found]

    def _forward(self, news: list[list[int]], batch: list[_Entry]) -> list[Array]:
        sequences = [entry.sequence for entry in batch]
        if self._adapted is None:
            return self._passing.forward_ragged(news, sequences)
        return self._adapted.forward_ragged(news, sequences, [entry.adapter for entry in batch])

    def _leave(self, entry: _Entry) -> None:
        """Let a request that runs go, with its answer."""
        self._release(entry.id)
        reason = "error" if entry.error is not None else entry.text.finish_reason
        assert reason is not None
        self._finished[entry.id] = self._ended(entry, reason)
        self._count(**{"finished" if entry.error is None else "failed": 1})

    def _ended(self, entry: _Entry, reason: str) -> Answer:
        """Return the answer of a request that ends now."""
        entry.text.note_prefill()
        entry.text.finish_reason = reason
        result = entry.text.result(entry.rounds)
        return Answer(**vars(result), error=entry.error, logprobs=tuple(entry.told))

    def _in_order(self) -> list[_Entry]:
        """Return those who run: first who decodes, then who reads, each in the order of the line.

        So a text that is read in parts never keeps others from their next token.
        """
        return sorted(self._running.values(), key=lambda e: (not e.decodes, e.place))

    def _preempt(self) -> list[int]:
        """Send whoever is last in line back to wait, until all others can go on; return them."""
        preempted = []
        while self._n_missing() > self.pool.n_free:
            entry = max(self._running.values(), key=lambda e: e.place)
            self._release(entry.id)
            insort(self._waiting, entry, key=lambda e: e.place)
            preempted.append(entry.id)
        return preempted

    def _n_missing(self, gamma: int = 0) -> int:
        """Return how many blocks the texts of those who run, and gamma guesses, still need."""
        return sum(
            self._n_needed(entry, len(entry.text.ids) + self._room(entry, gamma))
            for entry in self._running.values()
        )

    def _n_needed(self, entry: _Entry, n_tokens: int) -> int:
        """Return how many blocks it takes to give a request so many tokens in all."""
        n_held = self.pool.n_tokens(entry.id)
        n_more = self._n_blocks(n_tokens) - self._n_blocks(n_held)
        return n_more + (n_tokens > n_held and self._copies(entry))

    def _copies(self, entry: _Entry) -> bool:
        """Say whether the next token goes to a block that a sibling holds, too."""
        if len(entry.siblings) == 1 or self.pool.n_tokens(entry.id) % self.pool.block_size == 0:
            return False
        last = self.pool.block_table(entry.id)[-1]
        others = [e.id for e in entry.siblings if e is not entry and e.id in self._running]
        return any(last in self.pool.block_table(other) for other in others)

    def _n_blocks(self, n_tokens: int) -> int:
        return math.ceil(n_tokens / self.pool.block_size)

    def _room(self, entry: _Entry, gamma: int) -> int:
        """Return how many of gamma guesses a request has use for: its last token needs none."""
        return min(gamma, entry.text.max_length - len(entry.text.ids) - 1) if entry.decodes else 0

    def _guess(self) -> int:
        """Let those that decode guess, as many tokens each as budget and pool can hold for all.

        Returns how many failed in it, and are gone.
        """
        for entry in self._running.values():
            entry.guesses = Proposal([])
        decoding = [entry for entry in self._in_order() if entry.decodes]
        if self._guessers is None or not decoding:
            return 0
        gamma = self._gamma(len(decoding))
        if self.token_budget is not None:
            gamma = min(gamma, self.token_budget // len(decoding) - 1)
        while gamma > 0 and self._n_missing(gamma) > self.pool.n_free:
            gamma -= 1
        # Who has guessed is asked for none, too: what was rejected must be forgotten.
        asking = [e for e in decoding if e.guesser is not None or self._room(e, gamma) > 0]
        for entry in asking:
            if entry.guesser is None:
                entry.guesser = self._guessers.begin(entry.text)
        asks = [(entry.guesser, entry.text, self._room(entry, gamma)) for entry in asking]
        n_failed = 0
        for entry, said in zip(asking, self._guessers.propose(asks), strict=True):
            if isinstance(said, Exception):
                entry.error = said
                self._leave(entry)
                n_failed += 1
            else:
                entry.guesses = said
        return n_failed

    def _gamma(self, n_decoding: int) -> int:
        if not callable(self.gamma):
            return self.gamma
        try:
            return check_count("gamma", self.gamma(n_decoding))
        except Exception as error:
            self.hook_errors.append(error)
            return 0

    def _give_tokens(self) -> None:
        """Hand the pool the tokens of this step: of those who run, then of those who may join."""
        left: float = math.inf if self.token_budget is None else self.token_budget
        in_order = self._in_order()
        self._running = {entry.id: entry for entry in in_order}  # the order of the pass
        for entry in in_order:
            left -= self._give(entry, left)
        nth = 0  # in the line: who waits for an adapter's turn is passed over
        while nth < len(self._waiting) and left > 0 and len(self._running) < self.max_batch:
            entry = self._waiting[nth]
            if not self._has_turn(entry.adapter):
                nth += 1
                continue
            n_cached = self._join(entry)
            if n_cached is None:
                return
            self._running[entry.id] = self._waiting.pop(nth)
            entry.n_text = len(entry.text.ids)
            n_given = self._give(entry, left)
            entry.sequence = self._cache.sequence(entry.id, n_cached)
            left -= max(1, n_given)  # of a text that is cached whole, the last is read again
            self._count(cached_tokens=entry.sequence.length)

    def _has_turn(self, adapter: str | None) -> bool:
        """Say whether a request with this adapter may run beside those that do."""
        if adapter is None or self.max_adapters is None:
            return True
        present = {entry.adapter for entry in self._running.values()} - {None}
        return len(present | {adapter}) <= self.max_adapters

    def _ids(self, entry: _Entry) -> list[int]:
        """Return a request's text as the pool knows it: with another adapter it is another text."""
        first = self._first_ids[entry.adapter]
        return [first + token for token in entry.text.ids]

    def _join(self, entry: _Entry) -> int | None:
        """Give a request what the pool holds of its text; None: there is no room for the rest."""
        ids, sibling = self._ids(entry), self._reader(entry)
        # Hold what is there, so that it does not count as free for the rest.
        if sibling is not None:
            n_cached = entry.n_prompt
            self.pool.fork(sibling.id, entry.id)
            self.pool.truncate(entry.id, n_cached)
            # Room for its own first token, or it would have to go as soon as it had come.
            n_wanted = len(ids) + (len(ids) == n_cached)
        else:
            n_cached = self.pool.n_cached(ids)
            self.pool.allocate(entry.id, ids[:n_cached])
            n_wanted = len(ids)
        if self._n_needed(entry, n_wanted) > self.pool.n_free:
            self.pool.free(entry.id)
            return None
        return n_cached

    def _reader(self, entry: _Entry) -> _Entry | None:
        """Return a sibling from which the prompt can be had."""
        for other in entry.siblings:
            if other.id in self._running and self.pool.n_tokens(other.id) >= entry.n_prompt:
                # What is read in this very pass can be shared, but not yet copied.
                is_read = hasattr(other, "sequence") and other.sequence.length >= entry.n_prompt
                if is_read or len(entry.text.ids) == entry.n_prompt:
                    return other
        return None

    def _give(self, entry: _Entry, left: float) -> int:
        """Hand the pool a request's next tokens, as many as are left; return how many."""
        wanted = [*entry.text.ids, *entry.guesses.tokens]
        start, first = self.pool.n_tokens(entry.id), self._first_ids[entry.adapter]
        end = int(min(len(wanted), start + left))  # without a budget infinity is left
        for token in wanted[start:end]:
            shared = self.pool.append(entry.id, first + token)
            if shared is not None:
                self._cache.copy(*shared)
        return end - start

    def _choose(self, batch: list[_Entry], logits: list[Array]) -> None:
        """Give each request that has read its whole text the next tokens."""
        read = [
            entry.sequence.length == len(entry.text.ids) + len(entry.guesses.tokens)
            for entry in batch
        ]
        for entry, after, complete in zip(batch, logits, read, strict=True):
            if not complete or entry.id not in self._running:  # a callback may abort others
                continue
            try:
                self._advance(entry, np.asarray(after))
            except Exception as error:
                entry.error = error
                entry.text.finish_reason = "error"

    def _advance(self, entry: _Entry, logits: Array) -> None:
        """Append what a request makes of the logits behind its text and its guesses."""
        text, n_before, n_guesses = entry.text, len(entry.text.ids), len(entry.guesses.tokens)
        rows = logits[-n_guesses - 1 :]  # [γ+1, V]
        text.note_prefill()
        tokens = [text.choose(rows[0])] if n_guesses == 0 else _checked(text, rows, entry.guesses)
        if self._guessers is not None:
            entry.rounds.append(Round(n_guesses, len(tokens) - 1))
            self._count(drafted_tokens=n_guesses, accepted_tokens=len(tokens) - 1)
        if n_guesses:
            entry.sequence.truncate(n_before + len(tokens) - 1)
        for row, token in zip(rows, tokens, strict=False):
            if entry.n_logprobs is not None:
                entry.told.append(_logprobs(row, token, entry.n_logprobs))
            text.append(token)
            self._count(new_tokens=1)
            if entry.on_token is not None:
                entry.on_token(token)
            if text.finish_reason is not None:
                return

    def _release(self, request_id: int) -> None:
        self.pool.free(request_id)
        entry = self._running.pop(request_id)
        entry.guesser, entry.guesses = None, Proposal([])
        if hasattr(entry, "sequence"):
            del entry.sequence

    def _count(self, **more: int) -> None:
        self._counts.update(more)


class _PagedLlama(Llama):
    """A Llama that shares its arrays with another, and lets all sequences of a pass attend at once.

    Alone each of them would ask its cache for keys and values, and attend by itself. A `part` is as
    many tokens as go through all layers fastest, one by one.
    """

    part = 64

    def __init__(self, model: Llama) -> None:
        vars(self).update(vars(model))

    def forward_ragged(
        self, tokens: Sequence[Sequence[int]], caches: Sequence[Cache]
    ) -> list[Array]:
        rows = ragged_rows(self.arch, tokens, caches)
        sizes = [row.shape[1] for row in rows]
        batch = PagedBatch(cast(Sequence[PagedSequence], caches), sizes)
        positions = [self._positions(*pair) for pair in zip(sizes, caches, strict=True)]

        def mix(layer: int, q: Array, k: Array, v: Array) -> Array:
            return batch.attend(layer, q, k, v, self.windows[layer])

        x = self.embedding[np.concatenate(rows, axis=1)]
        with blas_threads(self.n_threads):
            features = self._transform(x, np.concatenate(positions), mix)
        return np.split(self.logits(features)[0], np.cumsum(sizes)[:-1])


def _checked(text: Continuation, logits: Array, guesses: Proposal) -> list[int]:
    """Return what the target's logits [γ+1, V] make of a chain of guesses."""
    if text.params.temperature == 0:
        choices = text.scores(logits, guesses.tokens).argmax(axis=-1).tolist()
        return verify_greedy(choices, guesses.tokens)
    target = text.distributions(logits, guesses.tokens)
    return verify(target, guesses.distributions, guesses.tokens, text.rng)


def _logprobs(logits: Array, token: int, n: int) -> TokenLogprobs:
    shifted = logits.astype(np.float64) - logits.max()
    p = shifted - np.log(np.exp(shifted).sum())
    top = np.argsort(-p, kind="stable")[:n]
    return TokenLogprobs(token, float(p[token]), tuple((int(i), float(p[i])) for i in top))


class _Guessers(Protocol):
    """What guesses for several requests at once."""

    def check(self, text: Continuation) -> None:
        """Raise a ValueError where it cannot guess for a text."""
        ...

    def begin(self, text: Continuation) -> Any:
        """Return what a request keeps of its own while it runs."""
        ...

    def propose(
        self, asks: Sequence[tuple[Any, Continuation, int]]
    ) -> Sequence[Proposal | Exception]:
        """Return up to n guesses behind each text, or what went wrong with it."""
        ...


def _guessers(draft: Model | Draft, target: Model) -> _Guessers:
    if hasattr(draft, "new_cache"):
        return _ModelGuesses(cast(Model, draft), target)
    if not isinstance(draft, Draft) or isinstance(draft, Observer):
        raise ValueError(
            "draft must be a model or a Draft that needs no features of the target, got "
            f"{type(draft).__name__}"
        )
    return _DraftGuesses(draft, target)


class _ModelGuesses:
    """A smaller model that guesses for all together: a pass of it brings each one guess."""

    def __init__(self, model: Model, target: Model):
        if model.arch.vocab_size != target.arch.vocab_size:
            raise ValueError(
                f"draft has {model.arch.vocab_size} tokens in its vocabulary, expected those of "
                f"the model, {target.arch.vocab_size}"
            )
        self._model = model

    def check(self, text: Continuation) -> None:
        context = self._model.arch.max_context
        if context is not None and context < text.max_length:
            raise ValueError(
                f"prompt_ids and max_tokens may need a context of {text.max_length}, but the draft "
                f"has {context}"
            )

    def begin(self, text: Continuation) -> Cache:
        return self._model.new_cache(1, text.max_length)

    def propose(
        self, asks: Sequence[tuple[Cache, Continuation, int]]
    ) -> Sequence[Proposal | Exception]:
        drafted: list[list[int]] = [[] for _ in asks]
        drawn_from: list[list[Array]] = [[] for _ in asks]
        errors: dict[int, Exception] = {}
        for cache, text, _ in asks:  # what was rejected of the last guesses is forgotten
            cache.truncate(min(cache.length, len(text.ids) - 1))
        live = [i for i, (_, _, n) in enumerate(asks) if n > 0]
        while live:
            caches = [asks[i][0] for i in live]
            rows = [
                [*asks[i][1].ids, *drafted[i]][cache.length :]
                for i, cache in zip(live, caches, strict=True)
            ]
            logits = self._model.forward_ragged(rows, caches)
            going = []
            for i, after in zip(live, logits, strict=True):
                try:
                    if self._add(asks[i][1], np.asarray(after)[-1], drafted[i], drawn_from[i]):
                        going.append(i)
                except Exception as error:
                    errors[i] = error
            live = [i for i in going if len(drafted[i]) < asks[i][2]]
        return [
            errors.get(i) or Proposal(tokens, np.stack(rows) if rows else None)
            for i, (tokens, rows) in enumerate(zip(drafted, drawn_from, strict=True))
        ]

    def _add(
        self, text: Continuation, logits: Array, drafted: list[int], drawn_from: list[Array]
    ) -> bool:
        """Add a guess; say whether the text may go on behind it."""
        if text.params.temperature == 0:
            drafted.append(text.choose(logits, drafted))
        else:
            drawn_from.append(text.distributions(logits[None], drafted)[0])
            drafted.append(int(draw(drawn_from[-1], text.rng)))
        return not text.ended_by(drafted)


class _DraftGuesses:
    """A copy of a draft for each request."""

    def __init__(self, draft: Draft, target: Model):
        self._draft, self._arch = draft, target.arch

    def check(self, text: Continuation) -> None:
        """Nothing is known against it before it guesses."""

    def begin(self, text: Continuation) -> Draft:
        return copy.deepcopy(self._draft)

    def propose(
        self, asks: Sequence[tuple[Draft, Continuation, int]]
    ) -> Sequence[Proposal | Exception]:
        return [self._one(*ask) if ask[2] > 0 else Proposal([]) for ask in asks]

    def _one(self, draft: Draft, text: Continuation, n: int) -> Proposal | Exception:
        try:
            said = draft.propose(text, n)
            if len(said.tokens) > n or said.parents is not None:
                raise ValueError(f"draft must guess a chain of at most {n} tokens, got {said}")
            if said.tokens:  # a wrong one would stop the pass of all
                check_tokens(self._arch, np.asarray([said.tokens]))
        except Exception as error:
            return error
        return said


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
            context, whatever `Engine.submit` refuses, an engine at work and one with max_waiting.
    """
    params = SamplingParams(temperature=0.0) if params is None else params
    if engine.unfinished:
        raise ValueError("engine has requests of its own, expected an idle one")
    if engine.max_waiting is not None:
        raise ValueError(f"engine has max_waiting {engine.max_waiting}, expected None: all wait")
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
            engine._text(prompt, wanted[i], ignore_eos=True)
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
