"""The engine: every request as if it were alone, in the simulator's order, and no block lost."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from firsttoken.architectures import Architecture
from firsttoken.batching import Request, simulate
from firsttoken.constrained import Constraint, Regex
from firsttoken.engine import Engine, decision_margins, serve_trace
from firsttoken.engine_cost import record_steps
from firsttoken.generate import Proposal, generate, speculative_generate
from firsttoken.kv_cache import KVCache
from firsttoken.llama import load_model
from firsttoken.paging import BlockPool
from firsttoken.paths import data_path
from firsttoken.sampling import SamplingParams, draw, next_token_distribution
from firsttoken.tokenizer import tokenizer

VOCAB = 5


class Chain:
    """A model without rounding: a token's key stands for the whole text up to it.

    Each key is made from the one before it, as the cache holds that, and the logits from all keys:
    one wrong number in the cache, and the next token is likely to be another.
    """

    arch = Architecture("chain", 1, 1, 1, 1, 1, 1, VOCAB, max_context=40)
    eos_ids = (0,)
    modulus, tau = 101, 25  # of the logits
    tone = 0  # an adapter's: with another one every key of a text is another

    def new_cache(self, batch, capacity):
        return KVCache(self.arch, batch, capacity)

    def __call__(self, tokens, cache):
        rows = []
        for token in tokens[0]:
            before = cache.keys(0)[0, 0, -1, 0] if cache.length else 0
            number = (37 * before + token + 1 + 999 * self.tone) % 65_521
            key = np.full((1, 1, 1, 1), number, np.float32)
            cache.append(0, key, key)
            total = int(cache.keys(0).astype(int).sum() + 3 * cache.values(0).astype(int).sum())
            rows.append(total * np.arange(7, 7 + self.arch.vocab_size) % self.modulus)
        return np.array([rows], dtype=np.float32) / self.tau

    def forward_ragged(self, tokens, caches, models=None):
        assert tokens  # a step without work would go on for ever
        rows = zip(models or [self] * len(tokens), tokens, caches, strict=True)
        return [model([new], cache)[0] for model, new, cache in rows]


class Tuned(Chain):
    """The chain with an adapter merged; it stands for the adapter, too."""

    def __init__(self, tone):
        self.tone = tone


class AdaptedChain:
    """What `lora.AdaptedModel` is for a Llama."""

    def __init__(self, model, adapters):
        self.model, self.models = model, {None: CHAIN} | adapters

    def forward_ragged(self, tokens, caches, adapters):
        return self.model.forward_ragged(tokens, caches, [self.models[name] for name in adapters])


CHAIN = Chain()
TUNED = {"a": Tuned(1), "b": Tuned(2), "c": Tuned(3)}
ALONE = {None: CHAIN} | TUNED
names = st.sampled_from([None, *TUNED])
ends = st.lists(st.integers(1, 2), min_size=1, max_size=4)
prompts = st.tuples(st.integers(0, 8), ends).map(lambda p: [1, 1, 2, 1, 2, 2, 2, 1][: p[0]] + p[1])
wishes = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    top_k=st.sampled_from([0, 3]),
    max_tokens=st.integers(1, 12),
    seed=st.integers(0, 3),
)


class Near(Chain):
    """A draft that often says what the chain says."""

    def __call__(self, tokens, cache):
        logits = super().__call__(tokens, cache)
        logits[..., 1] += 0.4
        return logits


class AsRecorded:
    """Guesses as a model does, in each round as many tokens as some rounds tell."""

    def __init__(self, model, rounds):
        self.model, self.rounds, self.cache = model, list(rounds), None

    def propose(self, request, n):
        assert self.rounds, "more rounds are asked for than there were"
        n = self.rounds.pop(0).drafted
        if self.cache is None:
            self.cache = self.model.new_cache(1, request.max_length)
        self.cache.truncate(min(self.cache.length, len(request.ids) - 1))
        drafted, rows = [], []
        for _ in range(n):
            unread = [*request.ids, *drafted][self.cache.length :]
            logits = self.model([unread], self.cache)[0, -1]
            if request.params.temperature == 0:
                drafted.append(request.choose(logits, drafted))
            else:
                rows.append(request.distributions(logits[None], drafted)[0])
                drafted.append(int(request.rng.choice(VOCAB, p=rows[-1])))
        return Proposal(drafted, np.stack(rows) if rows else None)


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
        patch.setattr("firsttoken.engine.AdaptedModel", AdaptedChain)
        run_state_machine_as_test(machine, settings=options)


def test_every_life_of_requests_ends_as_if_each_were_alone():
    run_lives()


# --- a wrong engine, which the lives must expose


class OnePrefixForAll(Engine):
    """Blocks are found again whatever adapter has filled them."""

    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self._first_ids = dict.fromkeys(self._first_ids, 0)


def test_lives_expose_a_flawed_engine():
    """The first failure will do: no search for the smallest."""
    with pytest.raises(AssertionError):
        run_lives(OnePrefixForAll, n=10_000, phases=[Phase.generate], report_multiple_bugs=False)


# --- the order of things is the simulator's


requests = st.builds(
    Request,
    arrival_s=st.sampled_from([0.0, 0.5, 2.0, 2.5, 3.0, 20.0]),
    n_prompt=st.integers(1, 12),
    n_output=st.integers(1, 12),
)


@given(
    st.lists(requests, min_size=1, max_size=8),
    st.integers(1, 5),
    st.sampled_from([None, 1, 2, 5, 9]),
    st.integers(12, 40),
    st.sampled_from([1, 2, 3, 5]),
)
def test_every_step_is_that_of_the_simulator(trace, max_batch, token_budget, n_slots, block_size):
    """Who computes what in which step, and who is preempted: also in a pool that is too small."""
    n_blocks = -(-n_slots // block_size)
    assume(all(r.n_prompt + r.n_output - 1 <= n_blocks * block_size for r in trace))
    expected, shapes = [], []

    def cost(prefills, decodes):
        shapes.append((list(prefills), list(decodes)))
        return 1.0

    policy = "continuous" if token_budget is None else "chunked"
    traces = simulate(
        *(trace, policy, cost),
        max_batch=max_batch,
        token_budget=token_budget,
        pool=BlockPool(n_blocks, block_size),
        on_step=expected.append,
    )
    got, coming = [], sorted(range(len(trace)), key=lambda i: trace[i].arrival_s)
    engine = Engine(CHAIN, n_blocks, block_size, max_batch, token_budget)
    steps, outputs, place = record_steps(engine), {}, {}
    note = engine.on_step

    def both(record):
        note(record)
        got.append(record)

    engine.on_step = both
    for record in expected:
        while coming and trace[coming[0]].arrival_s <= record.start_s:
            i = coming.pop(0)
            params = SamplingParams(temperature=0.0, max_tokens=trace[i].n_output)
            place[engine.submit([1] * trace[i].n_prompt, params, ignore_eos=True)] = i
        outputs |= engine.step()
    assert not engine.unfinished and not coming
    for ours, theirs in zip(got, expected, strict=True):
        assert tuple((place[i], *sizes) for i, *sizes in ours.prefills) == theirs.prefills
        assert tuple(place[i] for i in ours.decodes) == theirs.decodes
        assert tuple(place[i] for i in ours.preempted) == theirs.preempted
    assert [(prefills, decodes) for prefills, decodes, _ in steps] == shapes
    assert {place[i]: len(g.ids) for i, g in outputs.items()} == {
        i: trace.n_output for i, trace in enumerate(traces)
    }


# --- the shipped model


@pytest.fixture(scope="module")
def draft():
    return load_model("draft")


@pytest.fixture(scope="module")
def heldout():
    return tokenizer().encode(data_path("heldout.txt").read_text(encoding="utf-8")[:30_000])


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


# --- margins


@settings(max_examples=20)
@given(st.integers(0, 2000), st.sampled_from([0.0, 0.7, 1.5]), st.integers(0, 10**6))
def test_a_margin_is_how_far_the_decision_can_be_moved(draft, heldout, start, temperature, seed):
    params = SamplingParams(
        temperature=temperature, repetition_penalty=1.1, top_k=40, max_tokens=8, seed=seed
    )
    prompt = heldout[start : start + 9]
    ids = generate(draft, prompt, params, ignore_eos=True).ids
    margins = decision_margins(draft, prompt, ids, params)
    assert margins.shape == (8,) and (margins >= 0).all()
    rng = np.random.default_rng(seed)
    for i, (token, margin) in enumerate(zip(ids, margins.tolist(), strict=True)):
        logits = draft([prompt + ids[:i]])[0, -1]
        context = replace(params, temperature=temperature or 1.0, top_k=0), prompt, ids[:i]
        if temperature == 0:
            scores = np.log(next_token_distribution(logits, *context))
            rivals = np.delete(scores, token)
            assert scores[token] - rivals.max() == pytest.approx(margin, abs=1e-4)
        else:
            shares = next_token_distribution(logits, params, *context[1:])
            uniform = rng.random()

            def drawn(u, shares=shares):
                return draw(shares, SimpleNamespace(random=lambda shape: np.full(shape, u)))

            if margin == np.inf:
                assert (shares > 0).sum() == 1
                continue
            slack = 1e-5 + 0.001 * margin
            if margin > slack:
                near = uniform - margin + slack, uniform + margin - slack
                assert all(drawn(u) == token for u in near if 0 <= u < 1)
            far = uniform - margin - slack, uniform + margin + slack
            moved = any(drawn(u) != token for u in far if 0 <= u < 1)
            assert moved or min(abs(far[0]), abs(far[1] - 1)) <= 2 * slack  # an end of all shares


def test_a_margin_needs_an_answer_and_a_seed(draft):
    with pytest.raises(ValueError, match="ids must hold at least one token"):
        decision_margins(draft, [1], [], SamplingParams(temperature=0.0))
    with pytest.raises(ValueError, match=r"params\.seed must be given"):
        decision_margins(draft, [1], [2], SamplingParams())


# --- wrong calls


def idle(engine):
    return not engine.unfinished and engine.pool.n_free == engine.pool.n_blocks


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


def test_a_constraint_is_closed_in_time_on_request_only():
    engine = Engine(CHAIN, n_blocks=4)
    words = Constraint(Regex("aaaa"), [b"", b"a", b"b", b"c", b"d"], eos_ids=[0])
    params = SamplingParams(0.0, max_tokens=2)
    cut = engine.submit([1], params, constraint=words)
    got = engine.run()[cut]
    assert (got.ids, got.finish_reason) == ([1, 1], "length")
    with pytest.raises(ValueError, match="to close_in_time may take"):
        engine.submit([1], params, constraint=words, close_in_time=True)


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


# --- real time


def test_serving_sends_each_request_when_it_arrives():
    trace = [Request(0.05, 3, 4), Request(0.0, 2, 6), Request(0.05, 1, 1)]
    engine, records = Engine(CHAIN, n_blocks=20, block_size=2, max_batch=2), []
    engine.on_step = records.append
    before_s = engine.now_s()
    traces = serve_trace(engine, trace, [[1, 2, 1], [2, 2], [1]])
    begin_s = traces[1].arrival_s
    assert before_s <= begin_s
    for got, wanted in zip(traces, trace, strict=True):
        assert (got.n_prompt, got.n_output) == (wanted.n_prompt, wanted.n_output)
        assert got.arrival_s == pytest.approx(begin_s + wanted.arrival_s)
    # Each token came within its step, and the prompt's step did not begin before the arrival.
    by_arrival = [traces[i] for i in (1, 0, 2)]
    for request_id, got in enumerate(by_arrival):
        steps = [r for r in records if request_id in [*(p[0] for p in r.prefills), *r.decodes]]
        assert steps[0].start_s >= got.arrival_s
        for record, time_s in zip(steps, got.token_times_s, strict=True):
            assert record.start_s <= time_s <= record.end_s
    assert idle(engine)


@pytest.mark.parametrize(("arrival_s", "slept_s"), [(9.0, 7.0), (1.5, 0.0)])
def test_an_idle_engine_sleeps_until_the_next_request_comes(monkeypatch, arrival_s, slept_s):
    """A second passes with each look at the clock: the request may have come meanwhile."""
    clock_s, slept = [0.0], []

    class Slow(Engine):
        def now_s(self):
            clock_s[0] += 1
            return clock_s[0] - 1

    def sleep(seconds):
        slept.append(seconds)
        clock_s[0] += seconds

    monkeypatch.setattr("firsttoken.engine.time.sleep", sleep)
    serve_trace(Slow(CHAIN, n_blocks=8), [Request(arrival_s, 1, 1)], [[1]])
    assert slept == [slept_s]


def test_serving_names_what_is_wrong():
    engine = Engine(CHAIN, n_blocks=3, block_size=4)
    early = Request(0.0, 1, 1)
    for trace, texts, message in (
        ([early, early], [[1]], "1 prompts for 2 requests"),
        ([Request(0.0, 3, 1)], [[1, 1]], "2 ids for request 0, expected its n_prompt 3"),
        ([early, Request(0.1, 4, 10)], [[1], [1] * 4], "request 1: .* may need 13 places"),
        ([early, Request(0.1, 2, 1)], [[1], [1, VOCAB]], "request 1: tokens hold ids 1 … 5"),
    ):
        with pytest.raises(ValueError, match=message):
            serve_trace(engine, trace, texts)
    assert idle(engine) and engine.stats.submitted == 0  # refused before anything was sent
    engine.submit([1], SamplingParams(max_tokens=2))
    with pytest.raises(ValueError, match="expected an idle one"):
        serve_trace(engine, [], [])


@pytest.mark.parametrize("seed", range(12))
def test_a_round_without_guesses_lets_the_draft_forget_what_was_rejected(seed):
    """As where the pool has no room for any. Alone, the draft is asked for none and cuts back."""
    gammas, params = iter([3, 0] * 8), SamplingParams(seed=seed, max_tokens=11)
    engine = Engine(CHAIN, 40, 4, draft=Near(), gamma=lambda n: next(gammas))
    i = engine.submit([1, 2], params, ignore_eos=True)
    answer = engine.run()[i]
    replayed = AsRecorded(Near(), answer.rounds)
    alone = speculative_generate(CHAIN, replayed, [1, 2], params, ignore_eos=True)
    assert answer.ids == alone.ids
