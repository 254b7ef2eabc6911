"""The engine: requests in, a pass per step, answers out."""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from firsttoken.batching import StepRecord
from firsttoken.checks import check_count
from firsttoken.engine.blocks import BlockManager
from firsttoken.engine.drafting import add_proposals, drafts_for
from firsttoken.engine.forward import ForwardPass
from firsttoken.engine.requests import (
    Answer,
    EngineRequest,
    QueueFull,
    RequestOptions,
    Status,
    TokenLogprobs,
)
from firsttoken.engine.sampler import next_tokens, token_logprobs
from firsttoken.engine.scheduler import Scheduled, Scheduler
from firsttoken.engine.stats import EngineStats, step_record
from firsttoken.generate import Draft, Proposal
from firsttoken.generate.sequence import TokenSequence
from firsttoken.models.lora import Adapter
from firsttoken.models.protocols import Model, check_tokens
from firsttoken.models.tokenizer import Tokenizer
from firsttoken.paging import BlockPool
from firsttoken.sampling import SamplingParams
from firsttoken.speculative import Round

Array = np.ndarray


class Engine:
    """Runs many requests on one model: a token for each per pass, or more with a draft.

    `submit` requests, then `step` until nothing is `unfinished`, or `run`. The requests share a
    pool of `n_blocks` blocks of keys and values; at most `max_batch` run at once, and a pass
    computes at most `token_budget` tokens (None: any number).

    Each step is one pass over the new tokens of all that run: of a request that has read its text,
    the token chosen last; of one that joins, its prompt, or as much as the budget leaves after the
    others have their token ("chunked" in `batching.simulate`; without a budget "continuous").
    Requests whose whole text is read get their next token. Those that are done leave at once, and
    the first in the queue take their places: the lowest `priority`, then who came first. They join
    when blocks for their whole text are free; the first that does not fit holds back all behind.

    Where those that run need more blocks than there are, the last in rank is preempted: it gives
    its blocks back, and later reads its prompt and its answer so far again (recompute). With
    `prefix_caching` a text that starts like an earlier one reuses its blocks. Answers to one prompt
    (`submit_many`) share its blocks in any case, and copy the last when they write to it.

    With a `draft`, a model or a chain `Draft` (of which each request gets a copy), requests that
    decode guess up to `gamma` tokens, which the same pass checks. `gamma` is a number, or a
    function of how many decode; it is lowered for a step in which budget or pool cannot hold so
    many for all. The cache forgets what is rejected. A draft model's own cache lasts as long as its
    request runs.

    Each request has its own sampling parameters and random numbers, so that its tokens are those
    that `generate` gives it alone; only rounding depends on the neighbours, see
    `decision_margins`. With a draft, and a temperature above 0, tokens have the same distribution,
    and `rounds` tells which drafts led to them. Times in an `Answer` count from `submit`: waiting
    is in them.

    With `adapters` a request may name one, and gets the tokens that it would get alone from a base
    with that adapter merged. Requests with different ones, and with none, share each pass, but only
    texts with the same adapter share blocks. A draft guesses without adapters, and the pass that
    checks has them. At most `max_adapters` different ones are in use at once (None: any number). A
    request that would bring one more waits without holding back others: as long as those behind it
    keep the adapters in use, they go first.

    `tokenizer` is needed for stop strings; `max_waiting` is how many may wait (None: any number).
    `on_step` is called with the `StepRecord` of each step when it ends, while the pool still holds
    what the step used, except for requests that a callback has aborted; times are those of `now_s`.
    What it raises, and what `gamma` raises, is kept in `hook_errors`, the last hundred. An error of
    the model itself is raised by `step`; an engine in which that has happened, or that was
    interrupted, cannot be used any more.

    Units:  blocks, tokens, seconds since the engine was made
    Raises: ValueError for a size below one, an architecture that `PagedCache` cannot store, and a
            draft with another vocabulary or that wants to see features; for adapters as
            `lora.AdaptedModel`, and a max_adapters without any.
    Source: Yu et al. 2022, Orca (OSDI'22), sec. 3; Kwon et al. 2023, arXiv:2309.06180, sec. 4.5
            (recomputation), 4.4 (shared prompts); vLLM for priorities, and for max_adapters (its
            max_loras)

    >>> from firsttoken.models.llama import load_model
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
        self.token_budget = _limit("token_budget", token_budget)
        self.max_waiting = _limit("max_waiting", max_waiting)
        self.gamma = gamma if callable(gamma) else check_count("gamma", gamma)
        self._drafts = None if draft is None else drafts_for(draft, model)
        self.adapters = dict(adapters or {})
        self._forward = ForwardPass(model, self.adapters)
        self.max_adapters = _limit("max_adapters", max_adapters)
        if max_adapters is not None and not self.adapters:
            raise ValueError(f"max_adapters {max_adapters} needs adapters, got none")
        self.hook_errors: deque[Exception] = deque(maxlen=100)
        self.pool = BlockPool(n_blocks, block_size, prefix_caching)
        self._blocks = BlockManager(self.pool, model.arch, self.adapters)
        self._scheduler = Scheduler(
            self._blocks, self.max_batch, self.token_budget, self.max_adapters
        )
        self._requests: dict[int, EngineRequest] = {}  # that wait or run
        self._ended: dict[int, Answer] = {}  # not yet handed out
        # {id: (tokens that the last pass computed, tokens that they attended to)}
        self.last_pass: dict[int, tuple[int, int]] = {}
        self._counts: Counter[str] = Counter()
        self._stepping = False
        self._pass_s = 0.0
        self._zero_s = time.perf_counter()

    @property
    def stats(self) -> EngineStats:
        """What the engine has done and what it holds."""
        scheduler = self._scheduler
        return EngineStats(
            len(scheduler.waiting),
            len(scheduler.running),
            self.pool.usage(),
            cached_tokens=scheduler.cached_tokens,
            pass_s=self._pass_s,
            **self._counts,
        )

    @property
    def unfinished(self) -> bool:
        """Whether there is anything left to do."""
        return bool(self._requests)

    def now_s(self) -> float:
        """Return the seconds since the engine was made."""
        return time.perf_counter() - self._zero_s

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        on_token: Callable[[int], object] | None = None,
        **options: Any,
    ) -> int:
        """Put a request into the queue; return its id.

        `options` are the fields of `RequestOptions`: `ignore_eos`, `priority`, `deadline_s` and
        others. A callback may submit and abort, but not call `step`.

        Raises: ValueError as `generate`, for a text that may grow beyond the whole pool (nothing
                could make room for it), an unknown adapter, or an option out of range; TypeError
                for an option that there is not; QueueFull.
        """
        listen = None if on_token is None else lambda _, token: on_token(token)
        (only,) = self._submit(prompt_ids, params, 1, listen, RequestOptions(**options))
        return only

    def submit_many(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        n: int,
        on_token: Callable[[int, int], object] | None = None,
        **options: Any,
    ) -> list[int]:
        """Submit a prompt for n answers, which share its blocks; return their ids.

        Answer i is that of `submit` with the seed params.seed + i, where there is one, and
        `on_token` is called with i and the token. Either all of them are submitted, or none.

        Raises: as `submit`, and ValueError for an n below 1 or more than may wait.
        """
        return self._submit(prompt_ids, params, n, on_token, RequestOptions(**options))

    def abort(self, request_id: int) -> Answer:
        """Drop a request that has not finished, and free its blocks; return what it has got.

        No step returns it any more. A request that finished in this very step keeps its answer.

        Raises: KeyError for a request that is unknown or has finished, in this very step or before.
        """
        request = self._requests.get(request_id)
        if request is None or request.text.finish_reason is not None:
            raise KeyError(f"request_id {request_id!r} is unknown or has finished")
        self._count(aborted=1)
        return self._end(request, "abort")

    def logprobs(self, request_id: int) -> Sequence[TokenLogprobs]:
        """Return the log-probabilities of the tokens that a request has got up to now.

        In a callback, the last are those of its token.

        Raises: KeyError for a request that is unknown or has ended.
        """
        if request_id not in self._requests:
            raise KeyError(f"request_id {request_id!r} is unknown or has ended")
        return self._requests[request_id].logprobs

    def step(self) -> dict[int, Answer]:
        """Run one pass; return the requests that have ended now, by id.

        What a request or its callback raises is not raised here: that request ends with an `error`,
        and the others go on as if nothing had happened.

        Raises: RuntimeError when a callback calls it; what the model raises.
        """
        self._step()
        return self._hand_out()

    def run(self) -> dict[int, Answer]:
        """Step until nothing is left to do; return the requests that have ended, by id."""
        while self.unfinished:
            self._step()
        return self._hand_out()

    def _submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        n: int,
        on_token: Callable[[int, int], object] | None,
        options: RequestOptions,
    ) -> list[int]:
        """Put n requests with the same prompt into the queue; return their ids."""
        check_count("n", n, at_least=1)
        options.check(self.adapters, self.model.arch.vocab_size)
        if self.max_waiting is not None and n > self.max_waiting:
            raise ValueError(f"n must be at most max_waiting, {self.max_waiting}, got {n}")
        seeds = [None if params.seed is None else params.seed + i for i in range(n)]
        texts = [self._sequence(prompt_ids, replace(params, seed=seed), options) for seed in seeds]
        n_waiting, deadline_s = len(self._scheduler.waiting), options.deadline_s
        if self.max_waiting is not None and n_waiting + n > self.max_waiting:
            raise QueueFull(
                f"{n_waiting} requests wait and {n} came, "
                f"expected at most max_waiting: {self.max_waiting}"
            )
        ends_s = math.inf if deadline_s is None else self.now_s() + float(deadline_s)
        siblings: list[EngineRequest] = []
        for i, text in enumerate(texts):
            listen = None if on_token is None else lambda token, i=i: on_token(i, token)
            request_id = self._counts["submitted"]
            request = EngineRequest(request_id, text, options, listen, ends_s, siblings)
            siblings.append(request)
            self._requests[request_id] = request
            self._scheduler.add(request)
            self._count(submitted=1)
        return [request.id for request in siblings]

    def _sequence(
        self, prompt_ids: Sequence[int], params: SamplingParams, options: RequestOptions
    ) -> TokenSequence:
        """Return a request's text, once it is known that it can run to its end."""
        # Callbacks are called by the engine: whatever they raise, the text is whole.
        text = TokenSequence(self.model, prompt_ids, params, None, self.tokenizer, options)
        check_tokens(self.model.arch, np.asarray([text.ids]))
        n_places = text.max_length - 1  # the last token is never read
        n_slots = self.pool.n_blocks * self.pool.block_size
        if n_places > n_slots:
            raise ValueError(
                f"prompt_ids ({len(text.ids)}) and max_tokens ({params.max_tokens}) may need "
                f"{n_places} places in the cache, expected at most the {n_slots} of "
                f"{self.pool.n_blocks} blocks of {self.pool.block_size}"
            )
        if self._drafts is not None:
            self._drafts.check(text)
        return text

    def _hand_out(self) -> dict[int, Answer]:
        ended, self._ended = self._ended, {}
        return ended

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
        requests = [*self._scheduler.waiting, *self._scheduler.running]
        if all(request.ends_s == math.inf for request in requests):
            return
        now_s = self.now_s()
        for request in requests:
            if request.ends_s <= now_s:
                self._ended[request.id] = self._end(request, "deadline")
                self._count(expired=1)

    def _pass(self) -> None:
        """Schedule, compute, choose: one step of those that run."""
        start_s = self.now_s()
        # Before any token is handed out: once the pool has one, other texts may share its block,
        # so this pass must compute it.
        preempted = self._scheduler.preempt()
        n_failed = self._draft()
        batch = self._scheduler.schedule()
        if not batch:
            assert n_failed, "a step without work would go on for ever"
            return
        before_s = self.now_s()
        logits = self._logits(batch)
        self._pass_s += self.now_s() - before_s
        self.last_pass = {
            part.request.id: (len(part.tokens), part.n_before + len(part.tokens)) for part in batch
        }
        n_kept = self._choose(batch, logits)
        computed = sum(len(part.tokens) for part in batch)
        self._count(steps=1, computed_tokens=computed, preemptions=len(preempted))
        if self.on_step is not None:
            ids = tuple(request.id for request in preempted)
            try:
                self.on_step(step_record(batch, n_kept, ids, start_s, self.now_s()))
            except Exception as error:
                self.hook_errors.append(error)
        for request in [part.request for part in batch]:
            if request.text.finish_reason is not None and request.status is Status.RUNNING:
                self._leave(request)

    def _logits(self, batch: list[Scheduled]) -> list[Array]:
        """Return the logits (T_i, V) behind what a pass computes of each request.

        The server's engine overrides it, to mask what is no token of its tokenizer.
        """
        return self._forward(batch)

    def _draft(self) -> int:
        """Let requests that decode guess; return how many failed in it, and have left."""
        for request in self._scheduler.running:
            request.proposal = Proposal([])
        decoding = self._scheduler.decoding()
        if self._drafts is None or not decoding:
            return 0
        gamma = self._scheduler.affordable(self._gamma(len(decoding)))
        add_proposals(self._drafts, decoding, gamma)
        failed = [request for request in decoding if request.error is not None]
        for request in failed:
            self._leave(request)
        return len(failed)

    def _gamma(self, n_decoding: int) -> int:
        if not callable(self.gamma):
            return self.gamma
        try:
            return check_count("gamma", self.gamma(n_decoding))
        except Exception as error:
            self.hook_errors.append(error)
            return 0

    def _choose(self, batch: list[Scheduled], logits: list[Array]) -> list[int]:
        """Give the requests that have read their whole text the next tokens.

        Returns how many drafts each has kept.
        """
        n_kept = [0] * len(batch)
        for i, (part, after) in enumerate(zip(batch, logits, strict=True)):
            request, n_before = part.request, len(part.request.text.ids)
            if not part.complete or request.status is not Status.RUNNING:
                continue  # the callback of another may have aborted it
            try:
                self._advance(request, np.asarray(after)[-part.n_drafts - 1 :])
            except Exception as error:
                request.error = error
                request.text.finish_reason = "error"
            n_kept[i] = max(0, len(request.text.ids) - n_before - 1)
        return n_kept

    def _advance(self, request: EngineRequest, logits: Array) -> None:
        """Append the tokens that logits [γ+1, V] give a request with γ drafts."""
        text, n_drafts = request.text, len(request.proposal.tokens)
        n_before = len(text.ids)
        text.note_prefill()
        tokens = next_tokens(request, logits)
        if self._drafts is not None:
            request.rounds.append(Round(n_drafts, len(tokens) - 1))
            self._count(drafted_tokens=n_drafts, accepted_tokens=len(tokens) - 1)
        if n_drafts:
            assert request.cache is not None
            request.cache.truncate(n_before + len(tokens) - 1)
        for row, token in zip(logits, tokens, strict=False):
            if request.options.logprobs is not None:
                request.logprobs.append(token_logprobs(row, token, request.options.logprobs))
            text.append(token)
            self._count(new_tokens=1)
            if request.on_token is not None:
                request.on_token(token)
            if text.finish_reason is not None:
                return

    def _leave(self, request: EngineRequest) -> None:
        """Let a request that runs go, done or failed."""
        reason = "error" if request.error is not None else request.text.finish_reason
        assert reason is not None
        self._ended[request.id] = self._end(request, reason)
        self._count(**{"finished" if request.error is None else "failed": 1})

    def _end(self, request: EngineRequest, reason: str) -> Answer:
        """Take a request out, and return its answer."""
        self._scheduler.end(request)
        del self._requests[request.id]
        request.text.note_prefill()
        request.text.finish_reason = reason
        result = request.text.result(request.rounds)
        return Answer(**vars(result), error=request.error, logprobs=tuple(request.logprobs))

    def _count(self, **more: int) -> None:
        self._counts.update(more)


def _limit(name: str, n: int | None) -> int | None:
    return None if n is None else check_count(name, n, at_least=1)
