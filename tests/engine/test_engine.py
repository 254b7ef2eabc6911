"""The engine: every request as if it were alone, and no block lost."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine.chain import (
    ALONE,
    CHAIN,
    GREEDY,
    TUNED,
    VOCAB,
    AdaptedChain,
    AsRecorded,
    Near,
    idle,
    names,
    prompts,
    wishes,
)
from firsttoken.engine import Engine, QueueFull, decision_margins, record_steps
from firsttoken.generate import generate, speculative_generate
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.sampling import SamplingParams
from firsttoken.sampling.constrained import Constraint, Regex


class Lives(RuleBasedStateMachine):
    """Requests come, run in a pool that is too small for them, and finish or are aborted."""

    engine_class = Engine

    @initialize(
        n_blocks=st.integers(6, 12),
        block_size=st.integers(1, 4),
        max_batch=st.integers(1, 5),
        token_budget=st.sampled_from([None, 1, 3, 8]),
        caching=st.booleans(),
        gamma=st.integers(0, 3),
        max_adapters=st.sampled_from([None, 1, 2]),
    )
    def start(self, n_blocks, block_size, max_batch, token_budget, caching, gamma, max_adapters):
        self.speculates = gamma > 0
        self.engine = self.engine_class(
            *(CHAIN, n_blocks, block_size, max_batch, token_budget),
            prefix_caching=caching,
            draft=Near() if gamma else None,
            gamma=gamma,
            adapters=TUNED,
            max_adapters=max_adapters,
        )
        self.together = []  # the adapters in each step
        self.steps = record_steps(self.engine)
        self.wanted, self.live, self.done, self.n_aborted = {}, set(), {}, 0
        self.hooked, self.failed, self.surprises = self.engine.on_step, {}, []
        self.hook_errors = []
        self.engine.on_step = self.on_step

    def on_step(self, record):
        self.hooked(record)
        there = [*(i for i, *_ in record.prefills), *record.decodes]
        self.together.append({self.wanted[i][3] for i in there} - {None})
        if self.surprises:
            self.surprises.pop()
            self.hook_errors.append(RuntimeError("on_step"))
            raise self.hook_errors[-1]

    @rule(
        prompt=prompts,
        params=wishes,
        ignore_eos=st.booleans(),
        adapters=st.lists(names, min_size=1, max_size=3),
    )
    def submit(self, prompt, params, ignore_eos, adapters):
        for i, adapter in enumerate(adapters):
            own = replace(params, seed=params.seed + i)
            self.submit_one([*prompt, *[1] * i], own, ignore_eos, adapter)

    @rule(
        prompt=prompts,
        params=wishes,
        n=st.integers(2, 4),
        priority=st.integers(-1, 1),
        adapter=names,
    )
    def submit_many(self, prompt, params, n, priority, adapter):
        n_slots = self.engine.pool.n_blocks * self.engine.pool.block_size
        assume(len(prompt) + params.max_tokens - 1 <= n_slots)
        ids = self.engine.submit_many(
            prompt, params, n, priority=priority, logprobs=1, adapter=adapter
        )
        for i, request_id in enumerate(ids):
            own = replace(params, seed=params.seed + i)
            self.wanted[request_id] = prompt, own, False, adapter
            self.live.add(request_id)

    def submit_one(self, prompt, params, ignore_eos, adapter):
        n_slots = self.engine.pool.n_blocks * self.engine.pool.block_size
        if len(prompt) + params.max_tokens - 1 > n_slots:
            with pytest.raises(ValueError, match="places in the cache"):
                self.engine.submit(prompt, params, ignore_eos=ignore_eos)
            return
        i = self.engine.submit(prompt, params, ignore_eos=ignore_eos, adapter=adapter)
        assert i == len(self.wanted)
        self.wanted[i] = prompt, params, ignore_eos, adapter
        self.live.add(i)

    @rule(
        prompt=prompts,
        params=wishes,
        at=st.integers(1, 4),
        kind=st.sampled_from("faz"),
        adapter=names,
    )
    def submit_one_that_interferes(self, prompt, params, at, kind, adapter):
        """At its at-th token it fails, or it aborts another, or itself."""
        n_slots = self.engine.pool.n_blocks * self.engine.pool.block_size
        assume(len(prompt) + params.max_tokens - 1 <= n_slots)
        own, seen = len(self.wanted), []

        def on_token(token):
            seen.append(token)
            if len(seen) != at:
                return
            if kind == "f":
                self.failed[own] = RuntimeError(own)
                raise self.failed[own]
            victim = own if kind == "z" else min(self.live)
            try:
                answer = self.engine.abort(victim)
            except KeyError:  # it got its last token, or failed, in this very step
                assert victim in self.live
            else:
                assert answer.finish_reason == "abort"
                self.drop(victim)

        self.live.add(
            self.engine.submit(prompt, params, on_token, ignore_eos=True, adapter=adapter)
        )
        self.wanted[own] = prompt, params, True, adapter

    @rule()
    def on_step_will_fail(self):
        self.surprises.append(True)

    def drop(self, i):
        self.live.remove(i)
        self.n_aborted += 1

    @rule()
    def step(self):
        self.take(self.engine.step())
        assert list(self.engine.hook_errors) == self.hook_errors[-100:]

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 10**6))
    def abort(self, pick):
        i = sorted(self.live)[pick % len(self.live)]
        self.engine.abort(i)
        self.drop(i)
        with pytest.raises(KeyError, match="unknown or has finished"):
            self.engine.abort(i)

    def take(self, finished):
        for i, generation in finished.items():
            prompt, params, ignore_eos, adapter = self.wanted[i]
            alone = generate(ALONE[adapter], prompt, params, ignore_eos=ignore_eos)
            if self.speculates and params.temperature > 0 and generation.error is None:
                # Another answer than without guesses, but the one that these guesses lead to.
                draft = AsRecorded(Near(), generation.rounds)
                options = {"gamma": 3, "ignore_eos": ignore_eos}
                alone = speculative_generate(ALONE[adapter], draft, prompt, params, **options)
            assert len(generation.logprobs) in (0, len(generation.ids))
            assert generation.error is self.failed.get(i)
            if generation.error is None:
                assert generation.ids == alone.ids
                assert generation.finish_reason == alone.finish_reason
            else:
                if not self.speculates or params.temperature == 0:
                    assert generation.ids == alone.ids[: len(generation.ids)]
                assert generation.finish_reason == "error"
            times = [generation.prefill_s, *generation.token_times_s]
            assert times == sorted(times) and len(generation.token_times_s) == len(generation.ids)
            self.live.remove(i)
            self.done[i] = generation

    @invariant()
    def nothing_is_lost(self):
        if not hasattr(self, "engine"):
            return
        engine, stats = self.engine, self.engine.stats
        assert stats.waiting + stats.running == len(self.live)
        assert engine.unfinished == bool(self.live)
        assert stats.finished + stats.failed == len(self.done)
        assert stats.aborted == self.n_aborted
        assert stats.running <= engine.max_batch
        assert all(len(them) <= (engine.max_adapters or len(them)) for them in self.together)
        if not stats.running:
            assert stats.usage.used == 0
        assert stats.new_tokens >= sum(len(g.ids) for g in self.done.values())
        sizes = [sum(n for n, _ in prefills) + len(decodes) for prefills, decodes, _ in self.steps]
        assert stats.accepted_tokens <= stats.drafted_tokens
        assert stats.computed_tokens == sum(sizes) and stats.steps == len(sizes)
        assert all(0 < n <= (engine.token_budget or n) for n in sizes)

    def teardown(self):
        if hasattr(self, "engine"):
            try:
                while self.engine.unfinished:
                    self.take(self.engine.run())
                self.take(self.engine.step())
            except ValueError as error:  # the pool refuses a request whose place was not freed
                raise AssertionError("the engine cannot run to its end") from error
            self.nothing_is_lost()
            assert not self.live and self.engine.stats.usage.used == 0
            assert self.engine.pool.n_free == self.engine.pool.n_blocks


def run_lives(engine_class=Engine, n=60, **changes):
    machine = type("Lives", (Lives,), {"engine_class": engine_class})
    options = settings(max_examples=n, stateful_step_count=25, deadline=None, **changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("firsttoken.engine.forward.AdaptedModel", AdaptedChain)
        run_state_machine_as_test(machine, settings=options)


def test_every_life_of_requests_ends_as_if_each_were_alone():
    run_lives()


# --- a wrong engine, which the lives must expose


class OnePrefixForAll(Engine):
    """Blocks are found again whatever adapter has filled them."""

    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self._blocks.offsets = dict.fromkeys(self._blocks.offsets, 0)


def test_lives_expose_a_flawed_engine():
    """The first failure will do: no search for the smallest."""
    with pytest.raises(AssertionError):
        run_lives(OnePrefixForAll, n=10_000, phases=[Phase.generate], report_multiple_bugs=False)


# --- the shipped model


# Logits of the shipped models differ by less than this with the shape of a pass (and tokens of
# the draft by a few 1e-6): what is decided by more is decided alike.
ROUNDING = 1e-4

SETTINGS = {
    "roomy": {"n_blocks": 64},
    "chunks": {"n_blocks": 64, "token_budget": 12},
    "too small": {"n_blocks": 16, "block_size": 8, "token_budget": 12},
    "prefixes": {"n_blocks": 16, "block_size": 8, "token_budget": 12, "prefix_caching": True},
}


@pytest.fixture(scope="module")
def crowd(draft, heldout):
    """Return (prompt, params, ids alone) of ten requests; every second is sampled."""
    rng = np.random.default_rng(5)
    found = []
    for i in range(10):
        start, n = rng.integers(5000), rng.integers(1, 60)
        shared = heldout[:17] if i % 3 == 0 else []
        params = SamplingParams(
            temperature=(0.0, 1.0)[i % 2],
            top_p=(1.0, 0.9)[i // 2 % 2],
            frequency_penalty=(0.0, 0.3)[i // 3 % 2],
            max_tokens=int(rng.integers(1, 30)),
            seed=i,
        )
        prompt = shared + heldout[start : start + n]
        found.append((prompt, params, generate(draft, prompt, params).ids))
    return found


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_tokens_are_those_of_each_request_alone(draft, crowd, setting, backend):
    """Wherever the decision is not within rounding; for these requests, that is everywhere."""
    engine = Engine(load_model("draft", backend), max_batch=4, **SETTINGS[setting])
    ids = [engine.submit(prompt, params) for prompt, params, _ in crowd]
    got = engine.run()
    exceptions = []
    for i, (prompt, params, alone) in zip(ids, crowd, strict=True):
        if got[i].ids != alone:
            at = next(n for n, pair in enumerate(zip(got[i].ids, alone)) if len(set(pair)) > 1)  # noqa: B905
            exceptions.append(decision_margins(draft, prompt, alone, params)[at])
    assert max(exceptions, default=0) < ROUNDING and len(exceptions) <= 1
    stats = engine.stats
    assert (stats.preemptions > 0) == (SETTINGS[setting]["n_blocks"] == 16)
    assert (stats.cached_tokens > 0) == (setting == "prefixes")
    assert stats.usage.used == 0


def test_stop_strings_and_callbacks(draft):
    tok, said = tokenizer(), {}
    engine = Engine(draft, n_blocks=40, max_batch=3, tokenizer=tok)
    wanted = {}
    for prompt in ("import os\nimport ", "class Pool:\n    def ", "# This "):
        params = SamplingParams(temperature=0.0, max_tokens=20, stop=("\n",))
        said[prompt] = []
        i = engine.submit(tok.encode(prompt), params, on_token=said[prompt].append)
        wanted[i] = prompt, generate(draft, tok.encode(prompt), params, tokenizer=tok)
    got = engine.run()
    for i, (prompt, alone) in wanted.items():
        assert got[i].ids == alone.ids == said[prompt]
        assert (got[i].text, got[i].finish_reason) == (alone.text, alone.finish_reason)
    assert "stop" in {generation.finish_reason for generation in got.values()}


# --- what a step does with its requests


def test_a_request_that_can_never_run_is_refused():
    engine = Engine(CHAIN, n_blocks=3, block_size=4)
    params = SamplingParams(temperature=0.0, max_tokens=3)
    for prompt, message in (
        ([1] * 13, r"\(13\) and max_tokens \(3\) may need 15 places .* the 12 of 3 blocks"),
        ([1] * 11, "may need 13 places"),
        ([1, VOCAB], "tokens hold ids 1 … 5, expected 0 … 4"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.submit(prompt, params)
    with pytest.raises(ValueError, match=r"stop .* needs a tokenizer"):
        engine.submit([1], replace(params, stop="x"))
    assert idle(engine) and engine.stats.submitted == 0
    assert engine.run() == engine.step() == {}
    i = engine.submit([1] * 10, params, ignore_eos=True)  # what just fits runs
    assert len(engine.run()[i].ids) == 3 and idle(engine)
    for changes in ({"max_batch": 0}, {"token_budget": 0}, {"n_blocks": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(changes))} must be"):
            Engine(**{"model": CHAIN, "n_blocks": 4} | changes)


def test_defaults_of_an_engine():
    engine = Engine(CHAIN, n_blocks=4)
    assert (engine.pool.n_blocks, engine.pool.block_size, engine.max_batch) == (4, 16, 16)
    assert engine.token_budget is None and not engine.pool.prefix_caching
    assert engine.last_pass == {}


def test_a_constraint_is_closed_in_time_on_request_only():
    engine = Engine(CHAIN, n_blocks=4)
    form = Constraint(Regex("aaaa"), [b"", b"a", b"b", b"c", b"d"], eos_ids=[0])
    params = SamplingParams(0.0, max_tokens=2)
    cut = engine.submit([1], params, constraint=form)
    got = engine.run()[cut]
    assert (got.ids, got.finish_reason) == ([1, 1], "length")
    with pytest.raises(ValueError, match="to close_in_time may take"):
        engine.submit([1], params, constraint=form, close_in_time=True)


def test_a_request_without_an_allowed_token_takes_nobody_along():
    params = SamplingParams(temperature=0.0, max_tokens=4)
    engine = Engine(CHAIN, n_blocks=20, block_size=2)
    no_token = Constraint(Regex("x"), [b"", b"a", b"b", b"c", b"d"], eos_ids=[0])
    stuck = engine.submit([2], params, constraint=no_token)
    other = engine.submit([2, 2], params, ignore_eos=True)
    (answer,) = engine.step().values()
    assert (type(answer.error), answer.ids, answer.finish_reason) == (ValueError, [], "error")
    got = engine.run()
    assert list(got) == [other] != [stuck] and engine.stats.failed == 1
    assert got[other].ids == generate(CHAIN, [2, 2], params, ignore_eos=True).ids
    assert idle(engine)


def test_callbacks_may_abort_and_submit():
    engine, later = Engine(CHAIN, n_blocks=20, block_size=2), []
    params = SamplingParams(temperature=0.0, max_tokens=4)

    def act(token):
        if not later:
            later.append(engine.submit([2], params, ignore_eos=True))
            for i in (own, other):
                engine.abort(i)

    own = engine.submit([1], params, on_token=act, ignore_eos=True)
    other = engine.submit([1, 2], params, ignore_eos=True)
    got = engine.run()
    assert list(got) == later and idle(engine)
    assert got[later[0]].ids == generate(CHAIN, [2], params, ignore_eos=True).ids


def test_a_deadline_ends_a_request_wherever_it_is():
    clock = [0.0]

    class Slow(Engine):
        def now_s(self):
            return clock[0]

    engine = Slow(CHAIN, 20, 2, max_batch=1)
    running = engine.submit([1], GREEDY, ignore_eos=True, deadline_s=2)
    waiting = engine.submit([1], GREEDY, ignore_eos=True, deadline_s=1)
    engine.step()
    clock[0] = 1.0
    got = engine.step()
    assert [(i, a.finish_reason, a.ids) for i, a in got.items()] == [(waiting, "deadline", [])]
    clock[0] = 2.0
    got = engine.step()
    alone = generate(CHAIN, [1], GREEDY, ignore_eos=True).ids
    assert (got[running].finish_reason, got[running].ids) == ("deadline", alone[:2])
    assert idle(engine) and engine.stats.expired == 2


def test_a_full_queue_takes_all_or_none():
    engine = Engine(CHAIN, 20, 2, max_waiting=3)
    engine.submit_many([1], GREEDY, 2)
    with pytest.raises(QueueFull, match="max_waiting: 3"):
        engine.submit_many([1], GREEDY, 2)
    assert engine.stats.waiting == 2
    engine.submit([1], GREEDY)
    with pytest.raises(QueueFull):
        engine.submit([1], GREEDY)
    assert len(engine.run()) == 3 and idle(engine)


def test_abort_returns_what_there_is_and_no_step_does():
    engine = Engine(CHAIN, 20)
    i = engine.submit([1], GREEDY, ignore_eos=True)
    engine.step()
    answer = engine.abort(i)
    assert (answer.finish_reason, len(answer.ids)) == ("abort", 1)
    assert engine.step() == {} and idle(engine)


def test_a_callback_cannot_step():
    engine = Engine(CHAIN, 20)
    i = engine.submit([1], GREEDY, on_token=lambda token: engine.step())
    assert "step was called within a step" in str(engine.run()[i].error)


# --- where the time goes


def test_the_passes_of_the_model_are_timed_and_nothing_else():
    clock = [0.0]

    class Clocked(Engine):
        def now_s(self):
            return clock[0]

    class Slow(type(CHAIN)):
        def forward_ragged(self, tokens, caches):
            clock[0] += 2.0
            return super().forward_ragged(tokens, caches)

    def on_token(token):
        clock[0] += 1.0

    engine = Clocked(Slow(), 20, 2)
    engine.submit([1], GREEDY, on_token, ignore_eos=True)
    engine.run()
    assert (engine.stats.steps, engine.stats.pass_s, clock[0]) == (4, 8.0, 12.0)
