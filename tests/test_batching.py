"""The simulator against a slow reference, queueing theory, Little's law and its own invariants."""

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import count, pairwise
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from firsttoken import batching
from firsttoken.batching import (
    POLICIES,
    PREEMPTIONS,
    Request,
    Speculation,
    StepRecord,
    bursty_trace,
    load_trace,
    poisson_trace,
    simulate,
    static_utilization,
    sweep,
)
from firsttoken.metrics import (
    SLO,
    RequestTrace,
    in_system,
    littles_law,
    summarize,
    wait_md1,
    wait_mm1,
)
from firsttoken.paging import BlockPool, OutOfBlocks
from firsttoken.speculative import expected_tokens


def reference(
    requests,
    policy,
    cost,
    max_batch,
    token_budget=None,
    n_blocks=None,
    block_size=1,
    preemption="recompute",
    swap_token_s=0.0,
    max_wait_s=0.0,
    aging_s=math.inf,
    fair=False,
    speculation=None,
):
    """Batching token by token, as the definitions say; return token times and what ran when.

    Every request keeps its own count and its own list of times; nothing is foreseen, and who is
    first is found anew each time, from how long each has waited by then.
    """
    everyone = [
        SimpleNamespace(r=r, i=i, times=[], cached=0, host=0, guesses=0)
        for i, r in enumerate(requests)
    ]
    rng = None if speculation is None else np.random.default_rng(speculation.seed)
    coming = sorted(everyone, key=lambda q: q.r.arrival_s)
    waiting, prefilling, decoding, steps = [], [], [], []
    computed, turn = dict.fromkeys((q.r.client for q in everyone), 0), None
    now = coming[0].r.arrival_s if coming else 0.0

    def urgency(q):
        """Smaller is sooner: the priority less what the waiting so far is worth."""
        if aging_s == 0:
            return 0, q.r.arrival_s, q.i
        waited = Fraction(now) - Fraction(q.r.arrival_s)
        worth = 0 if aging_s == math.inf else waited / Fraction(aging_s)
        return q.r.priority - worth, q.r.arrival_s, q.i

    def stand_in_line(q):
        others = {other.r.client for other in waiting}
        if q.r.client not in others:
            least = min((computed[c] for c in others), default=computed.get(turn, 0))
            computed[q.r.client] = max(computed[q.r.client], least)
        waiting.append(q)

    def next_client():
        def claim(client):
            return computed[client], min(urgency(q) for q in waiting if q.r.client == client)

        return min({q.r.client for q in waiting}, key=claim)

    def receive():
        while coming and coming[0].r.arrival_s <= now:
            stand_in_line(coming.pop(0))

    def ready():
        if policy == "static":
            return len(waiting) >= max_batch or (waiting and not coming)
        if policy == "dynamic" and waiting and len(waiting) < max_batch:
            return now >= min(q.r.arrival_s for q in waiting) + max_wait_s
        return bool(waiting)

    def text(q):
        return q.r.n_prompt + len(q.times)

    def blocks_taken(*more):
        # A prompt has place for all of it, a decoding sequence for all that it attends to.
        held = [text(q) + q.guesses for q in [*prefilling, *decoding, *more]]
        return sum(math.ceil(n / block_size) for n in held)

    def guess():
        """Give all who decode as many guesses as they are told to make, or as there is room for."""
        wanted = speculation.gamma
        for gamma in range(wanted(len(decoding)) if callable(wanted) else wanted, -1, -1):
            for q in decoding:
                q.guesses = gamma
            n_tokens = len(decoding) * (1 + gamma)
            if n_tokens <= (token_budget or math.inf) and blocks_taken() <= (n_blocks or math.inf):
                return gamma

    def n_right(n_guesses):
        """Throw the coin for each guess; those before the first that is wrong count."""
        alpha = speculation.alpha
        alphas = [alpha] * n_guesses if isinstance(alpha, float) else alpha
        said = [rng.random() < alphas[place] for place in range(n_guesses)]
        return [*said, False].index(False)

    while coming or waiting or prefilling or decoding:
        receive()
        idle = not prefilling and not decoding
        if idle:
            moments = [q.r.arrival_s for q in coming]
            moments += [q.r.arrival_s + max_wait_s for q in waiting + coming]
            for moment in [now, *sorted(moments)]:
                now = max(now, moment)
                receive()
                if ready():
                    break
        start, moved, preempted = now, 0, []
        while n_blocks and blocks_taken() > n_blocks:
            q = max(prefilling + decoding, key=urgency)
            (prefilling if q in prefilling else decoding).remove(q)
            preempted.append(q.i)
            if preemption == "swap":
                q.host = q.cached
                moved += q.cached
            q.cached = 0
            stand_in_line(q)
        gamma = guess() if speculation and decoding else 0
        guessing = list(decoding) if gamma else []
        left = (token_budget or math.inf) - sum(1 + q.guesses for q in decoding)
        prefills = []
        for q in prefilling:
            new = min(text(q) - q.cached, left)
            left -= new
            computed[q.r.client] += new
            prefills.append((q, new))
        while waiting and (idle or policy in ("continuous", "chunked")):
            turn = next_client() if fair else None
            q = min((q for q in waiting if turn in (None, q.r.client)), key=urgency)
            new = text(q) - q.host
            if policy == "chunked":
                new = min(new, left)
            full = len(prefilling + decoding) == max_batch or new > left or new == 0
            if full or (n_blocks and blocks_taken(q) > n_blocks):
                break
            waiting.remove(q)
            left -= new
            moved += q.host
            q.cached, q.host = q.host, 0
            if q.cached and q.times:
                decoding.append(q)
            else:
                computed[q.r.client] += new
                prefilling.append(q)
                prefills.append((q, new))
        prefills = [(q, new) for q, new in prefills if new]
        checks = [(1 + gamma, text(q) - 1) for q in guessing]
        plain = [text(q) for q in decoding if q not in guessing]
        seconds = cost([(new, q.cached) for q, new in prefills] + checks, plain)
        if guessing:
            seconds += speculation.draft_s(len(guessing), gamma)
        now += seconds + moved * swap_token_s
        done = tuple((q.i, new, q.cached) for q, new in prefills), tuple(q.i for q in decoding)
        kept = []
        for q in decoding:
            right = n_right(gamma) if q in guessing else 0
            right = min(right, q.r.n_output - len(q.times) - 1)
            if q in guessing:
                kept.append(right)
            q.cached = text(q) + right
            q.times += [now] * (1 + right)
            computed[q.r.client] += 1 + q.guesses
            q.guesses = 0
        steps.append(StepRecord(start, now, *done, tuple(preempted), gamma, tuple(kept)))
        for q, new in prefills:
            q.cached += new
            if q.cached == text(q):
                q.times.append(now)
                prefilling.remove(q)
                decoding.append(q)
        decoding = [q for q in decoding if len(q.times) < q.r.n_output]
    return [q.times for q in everyone], steps


def step_cost(prefills, decodes):
    """Depend on every number that the simulator hands over, and on their order."""
    seconds = 0.25 + 0.5 * len(decodes)
    for place, attended in enumerate(decodes, 1):
        seconds += 0.01 * place * attended
    for place, (new, before) in enumerate(prefills, 1):
        seconds += 0.03 * place * new + 7 * before
    return seconds


class Recorder:
    """A cost function that remembers what it was asked, and lasts a fixed time."""

    def __init__(self, seconds=1.0):
        self.seconds, self.steps = seconds, []

    def __call__(self, prefills, decodes):
        self.steps.append((prefills, decodes))
        return self.seconds


# Equal arrivals, one-token answers and long silences are frequent on purpose. Arrivals are whole
# 1024ths: what is added to them is exact.
request = st.builds(
    Request,
    st.one_of(
        st.sampled_from([0.0, 0.0, 1.0, 90.0]), st.integers(-5120, 30720).map(lambda n: n / 1024)
    ),
    st.integers(1, 12),
    st.one_of(st.just(1), st.integers(1, 7)),
    st.integers(-1, 2),
    st.sampled_from(["a", "a", "b", "c"]),
)
requests_drawn = st.lists(request, max_size=9)
batch = st.integers(1, 4)


@st.composite
def workloads(draw, policies=POLICIES, min_size=0):
    """Draw requests and arguments of `simulate`, with (n_blocks, block_size) for the pool."""
    requests = draw(st.lists(request, min_size=min_size, max_size=9))
    options = {"policy": draw(st.sampled_from(policies)), "max_batch": draw(batch)}
    longest = max((r.n_prompt for r in requests), default=1)
    if draw(st.booleans()):  # a pool that holds the largest request, and a little more
        block_size = draw(st.integers(1, 4))
        slots = max((r.n_prompt + r.n_output - 1 for r in requests), default=1)
        n_blocks = math.ceil(slots / block_size) + draw(st.integers(0, 4))
        options |= {"pool": (n_blocks, block_size)}
        options["preemption"] = draw(st.sampled_from(PREEMPTIONS))
        if options["preemption"] == "recompute":
            longest = slots
        else:
            options["swap_token_s"] = draw(st.sampled_from([0.0, 0.125]))
    if options["policy"] == "chunked":
        options["token_budget"] = draw(st.integers(1, 20))
    elif draw(st.booleans()):
        options["token_budget"] = draw(st.integers(longest, longest + 8))
    if options["policy"] == "dynamic":
        options["max_wait_s"] = draw(st.sampled_from([0.0, 0.5, 8.0]))
    options["aging_s"] = draw(st.sampled_from([0.0, 2.0, 16.0, math.inf]))
    options["fair"] = draw(st.booleans())
    return requests, options


def fewer_with_load(n_decoding):
    return max(0, 4 - n_decoding)


def draft_s(n_sequences, gamma):
    return 0.125 * gamma + 0.0625 * n_sequences


speculations = st.builds(
    Speculation,
    st.sampled_from([0.0, 0.5, 0.8, 1.0, (0.9, 0.2, 0.7, 0.5)]),
    st.one_of(st.integers(1, 4), st.just(fewer_with_load)),
    st.just(draft_s),
    st.integers(0, 3),
)


@st.composite
def guessing_workloads(draw, **arguments):
    """Draw what `workloads` does, and a speculation."""
    requests, options = draw(workloads(**arguments))
    return requests, options | {"speculation": draw(speculations)}


def run(requests, cost, pool=None, **options):
    """Return the traces and the record of every step; a pool given as numbers is made anew."""
    steps = []
    pool = BlockPool(*pool) if isinstance(pool, tuple) else pool
    traces = simulate(requests, cost=cost, pool=pool, on_step=steps.append, **options)
    return traces, steps


# Against the reference


@settings(max_examples=600)
@given(st.one_of(workloads(), guessing_workloads()))
def test_equal_to_the_slow_reference(workload):
    """The same sums in the same order: equal to the last bit."""
    requests, options = workload
    traces, steps = run(requests, step_cost, **options)
    n_blocks, block_size = options.pop("pool", (None, 1))
    times, expected = reference(
        requests, cost=step_cost, n_blocks=n_blocks, block_size=block_size, **options
    )
    assert [list(t.token_times_s) for t in traces] == times
    assert steps == expected
    assert [(t.arrival_s, t.n_prompt) for t in traces] == [
        (r.arrival_s, r.n_prompt) for r in requests
    ]


MUTANTS = {
    "the first decode attends to the prompt only": (
        "self._start(i, self._n_text(i) + 1)",
        "self._start(i, self._n_text(i))",
    ),
    "one token too many": ("len(self.token_times[i]) - 1\n", "len(self.token_times[i])\n"),
    "a running batch is joined": ('idle or self.policy in ("continuous", "chunked")', "True"),
    "patience starts with the newest": ("return min(place[1]", "return max(place[1]"),
    "prompts have places of their own": (
        "len(self.decoding) + len(prompts) < self.max_batch",
        "len(self.decoding) < self.max_batch",
    ),
    "decoding is outside the budget": (
        "left = self.budget - len(self.decoding)",
        "left = self.budget",
    ),
    "a chunk reads nothing before it": (
        "[(new, before) for _, new, before in prompts if new]",
        "[(new, 0) for _, new, before in prompts if new]",
    ),
    "the first in line is preempted": ("i = max(cached, key", "i = min(cached, key"),
    "the answer so far is lost": (
        "return self.requests[i].n_prompt + len(self.token_times[i])",
        "return self.requests[i].n_prompt",
    ),
    "what is swapped comes back for nothing": (
        "self.n_moved += self.swapped.pop(i, 0)",
        "self.swapped.pop(i, 0)",
    ),
    "higher numbers first": ("r.priority if strict", "-r.priority if strict"),
    "waiting is worth nothing": ("r.priority * aging_s + r.arrival_s", "r.priority"),
    "idle clients save up": ("max(self.computed[client], least)", "self.computed[client]"),
    "answers cost clients nothing": ("self.line.charge(i, 1)", "self.line.charge(i, 0)"),
}


GUESSING_MUTANTS = {
    "guesses behind a miss count": ("right.cumprod(axis=1).sum(axis=1)", "right.sum(axis=1)"),
    "one miss voids the whole round": (
        "right.cumprod(axis=1).sum(axis=1)",
        "(right.all(axis=1) * gamma)",
    ),
    "the answer goes on behind its end": (
        "[min(pair) for pair in zip(kept, wanted, strict=True)]",
        "kept",
    ),
    "guesses are outside the budget": (
        "self.budget - len(self.decoding) - n_guesses",
        "self.budget - len(self.decoding)",
    ),
    "guesses may exceed the budget": ("self.budget / n - 1", "math.inf"),
    "guesses have no places": ("for _ in range(gamma):", "for _ in ():"),
    "what was wrong keeps its places": (
        "self.pool.truncate(i, self.attended[at] - 1)",
        "pass",
    ),
    "a check is a decode": ("[(gamma + 1, n - 1) for", "[(1, n - 1) for"),
    "a check finds its own token cached": ("[(gamma + 1, n - 1) for", "[(gamma + 1, n) for"),
    "what is kept is not attended to": (
        "self.attended[at] += n_kept",
        "self.attended[at] += 0",
    ),
    "drafting is free": ("seconds += draft_s", "seconds += 0"),
    "a guess that is wrong costs clients nothing": (
        "self.line.charge(i, gamma)",
        "self.line.charge(i, n_kept)",
    ),
    "kept guesses do not bring the end nearer": ("self.last_step[i] -= n_kept", "pass"),
}


@pytest.mark.parametrize("name", [*MUTANTS, *GUESSING_MUTANTS])
def test_a_wrong_simulator_would_show(name):
    """Some workload tells each of these from the reference."""
    right, wrong = (MUTANTS | GUESSING_MUTANTS)[name]
    drawn = workloads() if name in MUTANTS else guessing_workloads()
    source = Path(__file__).parents[1].joinpath("lib/firsttoken/batching.py").read_text("utf-8")
    assert source.count(right) == 1
    mutant = ModuleType(batching.__name__)
    exec(source.replace(right, wrong), vars(mutant))

    def differs(workload):
        requests, options = workload
        n_blocks, block_size = options.pop("pool", (None, 1))
        pool = None if n_blocks is None else BlockPool(n_blocks, block_size)
        times, _ = reference(
            requests, cost=step_cost, n_blocks=n_blocks, block_size=block_size, **options
        )
        n_steps = count()

        def cost(prefills, decodes):
            if next(n_steps) > 1000:
                raise RuntimeError("it never ends")
            return step_cost(prefills, decodes)

        if "speculation" in options:
            options["speculation"] = mutant.Speculation(**vars(options["speculation"]))
        try:
            traces = mutant.simulate(requests, cost=cost, pool=pool, **options)
        # The pool was asked for what it does not hold, or a request left in a step that is over.
        except (KeyError, OutOfBlocks, RuntimeError, ValueError):
            return True
        return [list(t.token_times_s) for t in traces] != times

    no_shrinking = settings(max_examples=5000, phases=[Phase.generate], database=None)
    find(drawn, differs, settings=no_shrinking, random=Random(0))


def test_one_run_by_hand():
    """Three requests, two places: what each step was asked to do, and when the tokens came."""
    cost = Recorder()
    requests = [Request(0.0, 10, 3), Request(0.5, 4, 2), Request(0.6, 7, 1)]
    traces = simulate(requests, "continuous", cost, max_batch=2)
    assert cost.steps == [
        ([(10, 0)], []),
        ([(4, 0)], [11]),  # the first decode after a prompt of 10 attends to 11
        ([], [12, 5]),  # the third request waits: both places are taken
        ([(7, 0)], []),
    ]
    assert [t.token_times_s for t in traces] == [(1.0, 2.0, 3.0), (2.0, 3.0), (4.0,)]


# Invariants

# A pool where none was drawn. With swapping, no budget that was drawn is too small.
NEVER_FULL = {"pool": (999, 1), "preemption": "swap"}


@given(st.one_of(workloads(), guessing_workloads()))
def test_every_token_once_and_no_step_too_large(workload):
    """Steps follow each other, none over the batch, the budget or what the pool holds meanwhile."""
    requests, options = workload
    cost, held, steps = Recorder(), [], []
    options = NEVER_FULL | options
    pool = options["pool"] = BlockPool(*options["pool"])

    def on_step(record):
        steps.append(record)
        held.append(pool.usage().used)

    traces = simulate(requests, cost=cost, on_step=on_step, **options)
    assert [t.n_output for t in traces] == [r.n_output for r in requests]
    assert all((t.itl >= 0).all() and t.ttft > 0 for t in traces)
    assert {s for t in traces for s in t.token_times_s} <= {record.end_s for record in steps}
    assert all(a.end_s <= b.start_s for a, b in pairwise(steps))
    n_joined = sum(r.n_output for r in requests)
    for (prefills, decodes), record, used in zip(cost.steps, steps, held, strict=True):
        n_guessing = len(record.kept)
        assert record.start_s < record.end_s and (record.gamma > 0) == (n_guessing > 0)
        assert [prompt[1:] for prompt in record.prefills] == prefills[: len(record.prefills)]
        assert len(prefills) == len(record.prefills) + n_guessing
        assert len(decodes) == len(record.decodes) - n_guessing
        assert all(0 <= n <= record.gamma for n in record.kept)
        here = [i for i, *_ in record.prefills] + list(record.decodes)
        assert 1 <= len(here) == len(set(here)) <= options["max_batch"]
        n_tokens = sum(new for new, _ in prefills) + len(decodes)
        assert n_tokens <= (options.get("token_budget") or math.inf)
        read = sum(decodes) + sum(new + before for new, before in prefills)
        assert read <= used * pool.block_size <= pool.n_blocks * pool.block_size
        n_joined -= len(record.decodes) + sum(record.kept)
    assert pool.n_free == pool.n_blocks
    # A prompt that is read to its end gives a token, too: the first, or the next after preemption.
    n_preempted = sum(len(record.preempted) for record in steps)
    assert len(requests) <= n_joined <= len(requests) + n_preempted
    if "speculation" in options:
        return
    if n_preempted == 0 or options["preemption"] == "swap":  # nothing is computed twice
        n_computed = sum(new for prefills, _ in cost.steps for new, _ in prefills)
        assert n_computed == sum(r.n_prompt for r in requests)
        n_attended = sum(sum(decodes) for _, decodes in cost.steps)
        assert n_attended == sum(
            sum(range(r.n_prompt + 1, r.n_prompt + r.n_output)) for r in requests
        )


@given(workloads())
def test_first_come_first_served(workload):
    """One client, one priority: first tokens come in the order of arrival, then the order given."""
    requests, options = workload
    requests = [Request(r.arrival_s, r.n_prompt, r.n_output) for r in requests]
    traces, _ = run(requests, step_cost, **options)
    served = sorted(traces, key=lambda t: t.arrival_s)
    assert all(a.token_times_s[0] <= b.token_times_s[0] for a, b in pairwise(served))


@given(workloads(), st.integers(-3, 3))
def test_no_change_when_time_is_scaled(workload, exponent):
    """By powers of two, so that no sum is rounded another way."""
    requests, options = workload
    scale = 2.0**exponent
    plain, _ = run(requests, step_cost, **options)
    for name in ("swap_token_s", "max_wait_s", "aging_s"):
        if name in options:
            options[name] *= scale
    scaled, _ = run(
        [replace(r, arrival_s=r.arrival_s * scale) for r in requests],
        lambda prefills, decodes: step_cost(prefills, decodes) * scale,
        **options,
    )
    assert scaled == [
        RequestTrace(t.arrival_s * scale, [s * scale for s in t.token_times_s], t.n_prompt)
        for t in plain
    ]


@given(workloads(), st.randoms(use_true_random=False))
def test_the_order_of_the_list_does_not_matter(workload, random):
    requests, options = workload
    options |= {"aging_s": math.inf}  # else one priority may be worth the gap of two arrivals
    requests = list({r.arrival_s: r for r in requests}.values())  # equal arrivals have an order
    order = list(range(len(requests)))
    random.shuffle(order)
    plain, _ = run(requests, step_cost, **options)
    shuffled, _ = run((requests[i] for i in order), step_cost, **options)
    assert shuffled == [plain[i] for i in order]


@given(workloads())
def test_the_same_twice_and_the_input_left_alone(workload):
    requests, options = workload
    before = list(requests)
    first = run(requests, step_cost, **options)
    assert run(requests, step_cost, **options) == first
    assert requests == before


@given(requests_drawn)
def test_with_room_for_all_only_the_step_is_waited_for(requests):
    """Steps of one second and a place for everyone: a token every second, the first within two."""
    traces = simulate(requests, "continuous", Recorder(), max_batch=10)
    for trace in traces:
        assert trace.ttft + 1e-9 >= 1 and trace.ttft < 2 + 1e-9
        np.testing.assert_allclose(trace.itl, 1)


# How the policies hang together


@given(workloads())
def test_one_at_a_time_all_policies_are_one(workload):
    requests, options = workload
    options = {"fair": options["fair"], "aging_s": options["aging_s"], "max_batch": 1}
    plain, *others = [
        simulate(requests, policy, step_cost, token_budget=12, **options) for policy in POLICIES
    ]
    assert all(other == plain for other in others)


@given(workloads(policies=("continuous",)))
def test_a_budget_or_pool_that_is_never_full_changes_nothing(workload):
    requests, options = workload
    options = {name: options[name] for name in ("max_batch", "fair", "aging_s")}
    plain = simulate(requests, "continuous", step_cost, **options)
    assert simulate(requests, "chunked", step_cost, token_budget=999, **options) == plain
    pool = BlockPool(999, 4, prefix_caching=True)
    assert simulate(requests, "continuous", step_cost, pool=pool, **options) == plain


@given(requests_drawn, batch)
def test_endless_patience_waits_for_full_batches(requests, max_batch):
    """Up to the last batch, whose end the static policy foresees."""
    n = len(requests) // max_batch * max_batch
    requests = sorted((replace(r, priority=0) for r in requests[:n]), key=lambda r: r.arrival_s)
    static = simulate(requests, "static", step_cost, max_batch=max_batch)
    dynamic = simulate(requests, "dynamic", step_cost, max_batch=max_batch, max_wait_s=1e6)
    assert dynamic == static


def test_the_policies_by_hand():
    """Three requests and two places, steps of a second."""
    requests = [Request(0.0, 4, 3), Request(0.5, 4, 1), Request(0.6, 4, 2)]

    def times(policy, **options):
        traces = simulate(requests, policy, Recorder(), max_batch=2, **options)
        return [t.token_times_s for t in traces]

    # Starts when two wait; the third has to wait for the whole batch.
    assert times("static") == [(1.5, 2.5, 3.5), (1.5,), (4.5, 5.5)]
    # Starts at once; the two who came meanwhile are the next batch.
    assert times("dynamic") == [(1, 2, 3), (4,), (4, 5)]
    assert times("dynamic", max_wait_s=0.25) == [(1.25, 2.25, 3.25), (4.25,), (4.25, 5.25)]
    assert times("dynamic", max_wait_s=0.5) == times("static")
    assert times("continuous") == [(1, 2, 3), (2,), (3, 4)]
    # Three tokens a step: the second prompt is cut, since the first sequence decodes first.
    assert times("chunked", token_budget=3) == [(2, 3, 4), (3,), (5, 6)]


def test_static_batching_of_the_toy_that_is_told_as_continuous():
    """T1: answers of 5, 2, 7 and 1 tokens with nobody to follow; 15 of 28 places are used."""
    requests = [Request(0.0, 1, n) for n in (5, 2, 7, 1)]
    _, steps = run(requests, Recorder(), policy="static", max_batch=4)
    sizes = [len(record.prefills) + len(record.decodes) for record in steps]
    assert sizes == [4, 3, 2, 2, 2, 1, 1]


def test_a_long_prompt_stalls_those_who_decode_and_chunks_shorten_the_stall():
    """One gap holds the neighbour's prompt of 1,000 tokens: the mean gap hides it."""
    requests = [Request(0.0, 1, 100), Request(0.5, 1000, 1)]

    def cost(prefills, decodes):
        return 0.02 + 0.001 * sum(new for new, _ in prefills)

    whole, _ = simulate(requests, "continuous", cost, max_batch=2)
    assert whole.itl.max() == pytest.approx(1.02) and np.median(whole.itl) == pytest.approx(0.02)
    assert whole.tpot == pytest.approx(0.02 + 1 / 99)
    cut, _ = simulate(requests, "chunked", cost, max_batch=2, token_budget=101)
    assert cut.itl.max() == pytest.approx(0.12) and cut.e2e == pytest.approx(whole.e2e)


# Queueing theory


def service_alone(prefills, decodes):
    """One request at a time, its whole service one step: the prompt's length in microseconds."""
    assert len(prefills) == 1 and decodes == []
    return prefills[0][0] * 1e-6


def waits_alone(requests):
    traces = simulate(requests, "continuous", service_alone, max_batch=1)
    return np.array([t.ttft - r.n_prompt * 1e-6 for t, r in zip(traces, requests, strict=True)])


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(1, 2_000_000)), min_size=1, max_size=30))
def test_one_server_follows_lindley(gaps_and_services):
    """The next one waits for what the last wait and service left over at its arrival."""
    gaps, services = np.array(gaps_and_services).T
    arrivals = np.cumsum(gaps)
    requests = [Request(*r, 1) for r in zip(arrivals, services.astype(int), strict=True)]
    wait, expected = 0.0, []
    for i, arrival in enumerate(arrivals):
        if i:
            wait = max(0.0, wait + services[i - 1] * 1e-6 - (arrival - arrivals[i - 1]))
        expected.append(wait)
    np.testing.assert_allclose(waits_alone(requests), expected, atol=1e-9)


def sigmas_off(waits, expected):
    """Return how many standard errors the mean wait lies from the expected one.

    Waits of neighbours depend on each other; busy periods do not. Each begins with someone who
    does not wait, so sum(wait - expected) over a period has mean zero. The last one is left out.
    """
    starts = np.flatnonzero(waits < 1e-12)
    excess = np.add.reduceat(waits - expected, starts)[:-1]
    return excess.mean() / (excess.std(ddof=1) / math.sqrt(len(excess)))


def exponential_service(rng):
    return 1 + int(rng.exponential(1e6))  # whole microseconds: 1 s on average, to 1e-6


@pytest.mark.parametrize(
    ("service", "wait", "wrong"),
    [(1_000_000, wait_md1, wait_mm1), (exponential_service, wait_mm1, wait_md1)],
    ids=["M/D/1", "M/M/1"],
)
def test_mean_waits_of_queues(service, wait, wrong):
    """30,000 requests at 0.6 load, about 12,000 busy periods.

    Beyond 6 standard errors: 2e-9 for a normal distribution. The sums are skewed, so the
    allowance above the promised 1e-6 is theirs. The other queue's wait lies far outside.
    """
    rng = np.random.default_rng(1)
    waits = waits_alone(poisson_trace(0.6, 30_000, rng, n_prompt=service, n_output=1))
    assert abs(sigmas_off(waits, wait(0.6, 1.0))) < 6
    assert abs(sigmas_off(waits, wrong(0.6, 1.0))) > 6


def wait_gamma_arrivals(rate, cv, service_s):
    """Mean wait at a server with gamma gaps and exponential services (GI/M/1).

    An arrival finds j others with probability (1 - x) x^j, where x is what the Laplace transform
    of a gap gives at (1 - x) / service_s: Kleinrock 1975, Queueing Systems I, sec. 6.3.
    """
    shape = cv**-2

    def off(x):
        return (1 + (1 - x) / service_s / (shape * rate)) ** -shape - x

    x = optimize.brentq(off, 1e-9, 1 - 1e-9)
    return service_s * x / (1 - x)


def test_mean_wait_of_bursty_arrivals():
    """As above, with gaps that vary twice as much as Poisson's. At cv = 1 it is M/M/1."""
    assert wait_gamma_arrivals(0.6, 1.0, 1.0) == pytest.approx(wait_mm1(0.6, 1.0))
    rng = np.random.default_rng(1)
    waits = waits_alone(bursty_trace(0.6, 60_000, rng, 2.0, exponential_service, 1))
    assert abs(sigmas_off(waits, wait_gamma_arrivals(0.6, 2.0, 1.0))) < 6
    assert abs(sigmas_off(waits, wait_mm1(0.6, 1.0))) > 6


# Little's law


@given(workloads(min_size=1))
def test_littles_law_on_the_finished_trace(workload):
    """Area under the number in the system = sum of times in it; so also for the batch alone."""
    requests, options = workload
    traces, steps = run(requests, step_cost, **options)
    times, n = in_system(traces)
    area = float(np.diff(times) @ n[:-1])
    seconds = times[-1] - times[0]
    mean_time = np.mean([t.e2e for t in traces])
    assert area / seconds == pytest.approx(littles_law(len(traces) / seconds, mean_time))
    # In the batch: who runs in a step is there from its start to its end.
    in_batch = sum(
        (record.end_s - record.start_s) * (len(record.prefills) + len(record.decodes))
        for record in steps
    )
    by_request = sum(
        record.end_s - record.start_s
        for i in range(len(requests))
        for record in steps
        if i in record.decodes or i in [j for j, *_ in record.prefills]
    )
    assert in_batch == pytest.approx(by_request)


# The cost of waiting for the longest (T2)


def exact_utilization(batch, mean_output):
    """By inclusion and exclusion: the shortest of j such lengths has mean 1 / (1 - q^j)."""
    q = 1 - 1 / Fraction(mean_output)
    longest = sum(math.comb(batch, j) * (-1) ** (j + 1) / (1 - q**j) for j in range(1, batch + 1))
    return float(mean_output / longest)


@given(st.integers(1, 30), st.integers(1, 300))
def test_static_utilization_is_exact(batch, mean_output):
    assert static_utilization(batch, mean_output) == pytest.approx(
        exact_utilization(batch, mean_output), rel=1e-12
    )


@pytest.mark.parametrize("batch", [1, 2, 4, 64])
def test_static_utilization_of_long_answers_is_one_over_the_harmonic_number(batch):
    limit = 1 / sum(1 / k for k in range(1, batch + 1))
    assert static_utilization(batch, 1e5) == pytest.approx(limit, rel=1e-4)


def test_static_batches_are_used_as_the_law_says():
    """4,000 full batches of 4 with a mean of 4 tokens.

    Of each batch, its tokens less the law's share of its places have mean zero. Beyond 6 standard
    errors: 2e-9. The limit for long answers is told apart; continuous batching uses nearly all.
    """
    rng = np.random.default_rng(5)
    requests = [Request(0.0, 1, int(n)) for n in rng.geometric(1 / 4, size=16_000)]
    _, steps = run(requests, Recorder(), policy="static", max_batch=4)
    sizes = np.array([len(record.prefills) + len(record.decodes) for record in steps])
    starts = np.flatnonzero([record.prefills != () for record in steps])
    used, n_steps = np.add.reduceat(sizes, starts), np.diff([*starts, len(steps)])

    def sigmas(share):
        excess = used - share * 4 * n_steps
        return abs(excess.mean()) / (excess.std(ddof=1) / math.sqrt(len(excess)))

    assert sigmas(static_utilization(4, 4)) < 6
    assert sigmas(1 / (1 + 1 / 2 + 1 / 3 + 1 / 4)) > 6
    _, steps = run(requests, Recorder(), policy="continuous", max_batch=4)
    assert np.mean([len(record.prefills) + len(record.decodes) for record in steps]) > 3.99


# A pool of blocks


def test_preemption_by_hand():
    """Two prompts of 2 in 3 blocks of 2: after their first tokens each needs a second block."""
    requests = [Request(0.0, 2, 3), Request(0.0, 2, 3)]
    cost = Recorder()
    traces, steps = run(requests, cost, policy="continuous", max_batch=2, pool=(3, 2))
    assert cost.steps == [
        ([(2, 0), (2, 0)], []),
        ([], [3]),
        ([], [4]),
        ([(3, 0)], []),  # its prompt and the token it had, as one prompt; then its second token
        ([], [4]),
    ]
    assert [record.preempted for record in steps] == [(), (1,), (), (), ()]
    assert [t.token_times_s for t in traces] == [(1, 2, 3), (1, 4, 5)]

    cost = Recorder()
    traces, _ = run(
        requests,
        cost,
        policy="continuous",
        max_batch=2,
        pool=(3, 2),
        preemption="swap",
        swap_token_s=0.25,
    )
    assert cost.steps == [([(2, 0), (2, 0)], []), ([], [3]), ([], [4]), ([], [3]), ([], [4])]
    # Two tokens went out in the second step, and came back in the fourth.
    assert [t.token_times_s for t in traces] == [(1, 2.5, 3.5), (1, 5, 6)]


@given(workloads(min_size=1))
def test_preemption_delays_and_loses_nothing(workload):
    """The tightest pool: everyone still gets all tokens, and who is first in line never stops."""
    requests, options = workload
    slots = max(r.n_prompt + r.n_output - 1 for r in requests)
    options |= {"preemption": "recompute", "swap_token_s": 0.0, "pool": (slots, 1)}
    if options["policy"] != "chunked":
        options["token_budget"] = None
    traces, steps = run(requests, step_cost, **options)
    assert [t.n_output for t in traces] == [r.n_output for r in requests]
    for record in steps:
        here = {i for i, *_ in record.prefills} | set(record.decodes)
        assert here and not here & set(record.preempted)


def test_urgent_requests_are_preempted_last():
    requests = [Request(0.0, 2, 5, priority=1), Request(0.5, 2, 5, priority=0)]
    _, steps = run(requests, Recorder(), policy="continuous", max_batch=2, pool=(6, 1))
    assert [i for record in steps for i in record.preempted] == [0]


# Priorities and fairness


def flood(n=50):
    """Somebody with a low priority, then an urgent request each second, served in a second."""
    return [Request(0.0, 1, 1, priority=3), *(Request(float(i), 1, 1) for i in range(n))]


def test_without_aging_a_low_priority_starves_and_with_it_does_not():
    strict = simulate(flood(), "continuous", Recorder(), max_batch=1)
    assert strict[0].ttft == 51  # after all others
    # Three priorities are worth twelve seconds: whoever came in these goes first, the first twelve.
    aged = simulate(flood(), "continuous", Recorder(), max_batch=1, aging_s=4.0)
    assert aged[0].ttft == 13
    # One second of waiting for a priority, and 3 go first; none, and nobody does.
    assert simulate(flood(), "continuous", Recorder(), max_batch=1, aging_s=1.0)[0].ttft == 4
    assert simulate(flood(), "continuous", Recorder(), max_batch=1, aging_s=0.0)[0].ttft == 1


@given(workloads())
def test_nobody_is_overtaken_by_who_came_much_later(workload):
    """With aging, a lead of p priorities is worth p · aging_s seconds, and no more."""
    requests, options = workload
    options |= {"aging_s": 2.0, "fair": False}
    traces, _ = run(requests, step_cost, **options)
    for r, trace in zip(requests, traces, strict=True):
        for other, other_trace in zip(requests, traces, strict=True):
            if other.arrival_s - r.arrival_s > 2.0 * (r.priority - other.priority) >= 0:
                assert trace.token_times_s[0] <= other_trace.token_times_s[0]


def two_clients(rng):
    """One with 300 requests waiting, who came first, and one with 100."""
    lengths = rng.integers(1, 20, size=(400, 2)).tolist()
    return [
        Request(0.0, *n, client="light" if i >= 300 else "heavy") for i, n in enumerate(lengths)
    ]


def largest_difference(requests, steps):
    """Of the tokens computed for the two, while both have somebody who has not begun."""
    computed, begun = {"heavy": 0, "light": 0}, set()
    n_of = Counter(r.client for r in requests)
    worst = 0
    for record in steps:
        for i, new, _ in record.prefills:
            computed[requests[i].client] += new
            begun.add(i)
        for i in record.decodes:
            computed[requests[i].client] += 1
        n_begun = Counter(requests[i].client for i in begun)
        if any(n_begun[client] == n for client, n in n_of.items()):
            return worst
        worst = max(worst, abs(computed["heavy"] - computed["light"]))


@pytest.mark.parametrize(("policy", "budget"), [("continuous", None), ("chunked", 24)])
def test_fair_turns_keep_two_clients_together(policy, budget):
    """Sheng et al. 2023, theorem 4.4: at most 2 · max(longest prompt, tokens of a full batch)."""
    requests = two_clients(np.random.default_rng(6))
    options = {"policy": policy, "max_batch": 4, "token_budget": budget}
    bound = 2 * 4 * (19 + 19)
    _, steps = run(requests, Recorder(), fair=True, **options)
    assert largest_difference(requests, steps) <= bound
    _, steps = run(requests, Recorder(), **options)
    assert largest_difference(requests, steps) > 4 * bound


def test_a_light_client_does_not_wait_for_a_heavy_one():
    """One place, a second each. On a tie the earlier arrival goes first, and so one of the heavy
    client's; then it is the light one's turn, however long the queue."""
    requests = [Request(0.0, 1, 1, client="heavy") for _ in range(100)]
    requests += [Request(t, 1, 1, client="light") for t in (10.5, 20.5)]
    plain = simulate(requests, "continuous", Recorder(), max_batch=1)
    fair = simulate(requests, "continuous", Recorder(), max_batch=1, fair=True)
    assert [t.ttft for t in plain[-2:]] == [90.5, 81.5]
    assert [t.ttft for t in fair[-2:]] == [2.5, 2.5]


def test_who_comes_back_has_saved_nothing_up():
    """Idle for 50 seconds gives no right to the next 50: the two take turns."""
    requests = [Request(0.0, 1, 1, client="steady") for _ in range(100)]
    requests += [Request(50.0, 1, 1, client="back") for _ in range(20)]
    traces = simulate(requests, "continuous", Recorder(), max_batch=1, fair=True)
    assert traces[-1].ttft == pytest.approx(40, abs=2)


# Guesses


def no_time(n_sequences, gamma):
    return 0.0


@given(workloads(), st.sampled_from([0, fewer_with_load]))
def test_who_guesses_nothing_decodes_as_before(workload, gamma):
    """No guesses, or none where there are so many: the same to the last bit, whatever alpha."""
    requests, options = workload
    plain = run(requests, step_cost, **options)
    nothing = Speculation(0.8, lambda n: 0 if gamma == 0 else max(0, gamma(n) - 4), draft_s)
    assert run(requests, step_cost, speculation=nothing, **options) == plain
    assert run(requests, step_cost, speculation=replace(nothing, gamma=0), **options) == plain


@given(requests_drawn, batch, st.integers(0, 5))
def test_who_is_always_right_gets_all_guesses_and_one_more(requests, max_batch, gamma):
    """With alpha 1 an answer of n tokens takes its prompt's step and (n - 1) / (gamma + 1) more;
    with alpha 0 as many as without guesses."""
    for alpha, per_step in ((1.0, gamma + 1), (0.0, 1)):
        _, steps = run(
            requests,
            Recorder(),
            policy="continuous",
            max_batch=max_batch,
            speculation=Speculation(alpha, gamma, no_time),
        )
        n_steps = Counter(i for record in steps for i in record.decodes)
        expected = [math.ceil((r.n_output - 1) / per_step) for r in requests]
        assert [n_steps[i] for i in range(len(requests))] == expected


def mean_kept(alpha, gamma, simulation=simulate, n=64, n_rounds=1000):
    """Return (mean, standard deviation of one) of what a step keeps, far from the answers' ends."""
    steps = []
    simulation(
        [Request(0.0, 1, n_rounds * (gamma + 1) + 2) for _ in range(n)],
        "static",
        lambda prefills, decodes: 1.0,
        max_batch=n,
        speculation=Speculation(alpha, gamma, no_time, seed=3),
        on_step=steps.append,
    )
    kept = np.array([record.kept for record in steps[1 : n_rounds + 1]])
    assert kept.shape == (n_rounds, n)
    return kept.mean(), kept.std() / math.sqrt(kept.size)


@pytest.mark.parametrize(("alpha", "gamma"), [(0.3, 1), (0.7, 4), (0.9, 8)])
def test_a_step_gives_the_tokens_that_the_formula_expects(alpha, gamma):
    """64,000 independent rounds. Hoeffding: the mean of numbers within 0 … gamma lies further than
    gamma · √(ln(2 / 1e-6) / 2n) from its expectation with a probability below 1e-6.

    Counting the guesses behind a miss gives alpha · gamma of them, which lies outside.
    """
    mean, _ = mean_kept(alpha, gamma)
    allowed = gamma * math.sqrt(math.log(2 / 1e-6) / (2 * 64_000))
    assert abs(1 + mean - expected_tokens(alpha, gamma)) < allowed
    if gamma > 1:
        assert abs(alpha * gamma - (expected_tokens(alpha, gamma) - 1)) > 5 * allowed


def test_alphas_by_place():
    """Right, right, never: two of four guesses are kept, in every step."""
    mean, spread = mean_kept((1.0, 1.0, 0.0, 1.0), 4, n=4, n_rounds=50)
    assert (mean, spread) == (2.0, 0.0)


def test_guesses_by_hand():
    """Two answers and two guesses each, always right; drafting takes a quarter of a second."""
    requests = [Request(0.0, 10, 5), Request(0.0, 4, 9)]
    cost = Recorder()
    guesses = Speculation(1.0, 2, lambda n, gamma: 0.25)
    traces, steps = run(requests, cost, policy="continuous", max_batch=2, speculation=guesses)
    assert cost.steps == [
        ([(10, 0), (4, 0)], []),
        ([(3, 10), (3, 4)], []),  # the token of the prompt's step and two guesses, for each
        ([(3, 13), (3, 7)], []),  # the first wants one token more only, which no scheduler knows
        ([(3, 10)], []),
    ]
    assert [record.kept for record in steps] == [(), (2, 2), (0, 2), (1,)]
    times = [t.token_times_s for t in traces]
    assert times == [(1, *[2.25] * 3, 3.5), (1, *[2.25] * 3, *[3.5] * 3, *[4.75] * 2)]


def test_a_guess_takes_nobodys_place():
    """The pool that holds a request alone has room for as many guesses as it has tokens to come,
    and the budget that holds two tokens has room for none of two who decode."""
    guesses = Speculation(0.0, 3, no_time)
    _, steps = run(
        *([Request(0.0, 2, 6)], Recorder()),
        **{"policy": "continuous", "max_batch": 1, "pool": (7, 1), "speculation": guesses},
    )
    assert [record.gamma for record in steps] == [0, 3, 3, 2, 1, 0]
    two = [Request(0.0, 1, 3), Request(0.0, 1, 2)]
    _, steps = run(
        *(two, Recorder()),
        **{"policy": "continuous", "max_batch": 2, "token_budget": 3, "speculation": guesses},
    )
    assert [record.gamma for record in steps] == [0, 0, 2]


def test_a_controller_sees_how_many_decode():
    seen = []

    def gamma(n_decoding):
        seen.append(n_decoding)
        return np.int64(1)

    requests = [Request(0.0, 1, n) for n in (2, 3, 4)]
    guesses = Speculation(0.0, gamma, no_time)
    simulate(requests, "continuous", Recorder(), max_batch=3, speculation=guesses)
    assert seen == [3, 2, 1]


def test_guesses_are_drawn_from_their_seed():
    requests = [Request(0.0, 1, 200)]

    def times(seed):
        guesses = Speculation(0.5, 3, no_time, seed)
        return simulate(requests, "static", Recorder(), max_batch=1, speculation=guesses)

    assert times(0) == times(0) != times(1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": 1.5}, "alpha must lie in 0 … 1, one number or one for each guess, got 1.5"),
        ({"alpha": math.nan}, "alpha must lie in 0 … 1"),
        ({"alpha": [[0.5]]}, "alpha must lie in 0 … 1"),
        ({"gamma": -1}, "gamma must be an integer of at least 0, got -1"),
        ({"gamma": 2, "alpha": [0.5]}, "gamma must be at most 1, the number of alphas, got 2"),
        ({"gamma": lambda n: -n}, "gamma must be an integer of at least 0, got -1"),
        ({"gamma": lambda n: 2, "alpha": [0.5]}, "gamma must be at most 1, .* got 2"),
        ({"draft_s": lambda n, gamma: -1.0}, "draft_s must be finite and not negative, got -1.0"),
        ({"draft_s": lambda n, gamma: math.nan}, "draft_s must be finite and not negative"),
    ],
)
def test_a_wrong_speculation_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        guesses = Speculation(**{"alpha": 0.5, "gamma": 1, "draft_s": no_time} | changes)
        simulate([Request(0.0, 1, 2)], "static", step_cost, max_batch=1, speculation=guesses)


# Sweeps


def sweep_trace(rate):
    return poisson_trace(rate, 60, np.random.default_rng(7), 8, lambda rng: rng.integers(2, 20))


SETTINGS = {
    "static": {"policy": "static", "max_batch": 4},
    "chunked": {"policy": "chunked", "max_batch": 4, "token_budget": 8},
    "pool": {"policy": "continuous", "max_batch": 4, "pool": BlockPool(16, 2)},
}
RATES, SWEEP_SLO = [0.1, 0.4], SLO(ttft_s=3.0)


def single_runs():
    return {
        (name, rate): summarize(simulate(sweep_trace(rate), cost=step_cost, **setting), SWEEP_SLO)
        for name, setting in SETTINGS.items()
        for rate in RATES
    }


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_sweep_is_the_single_runs(n_jobs, capsys):
    found = sweep(SETTINGS, RATES, sweep_trace, step_cost, slo=SWEEP_SLO, n_jobs=n_jobs)
    assert found == single_runs()
    assert len({summary.ttft[50] for summary in found.values()}) == len(found)
    assert "6/6" in capsys.readouterr().err  # the bar


def test_a_sweep_can_be_silent(capsys):
    sweep(SETTINGS, [0.1], sweep_trace, step_cost, n_jobs=1, progress=False)
    assert capsys.readouterr().err == ""


# What goes in


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((math.nan, 1, 1), "arrival_s must be a finite number, got nan"),
        (("0", 1, 1), "arrival_s must be a finite number, got '0'"),
        ((0.0, 0, 1), "n_prompt must be an integer of at least 1, got 0"),
        ((0.0, 1, 0), "n_output must be an integer of at least 1, got 0"),
        ((0.0, 1.5, 1), "n_prompt must be an integer of at least 1, got 1.5"),
        ((0.0, 1, 1, 0.5), "priority must be a whole number, got 0.5"),
        ((0.0, 1, 1, True), "priority must be a whole number, got True"),
        ((0.0, True, 1), "n_prompt must be an integer of at least 1, got True"),
    ],
)
def test_a_wrong_request_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Request(*fields)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"policy": "orca"},
            "policy must be one of static, .*, chunked, got 'orca'",
        ),
        ({"max_batch": 0}, "max_batch must be an integer of at least 1, got 0"),
        ({"token_budget": 0}, "token_budget must be an integer of at least 1, got 0"),
        ({"token_budget": 4}, r"token_budget 4 must hold .* 5 tokens \(request 1\)"),
        ({"cost": lambda p, d: -1.0}, "cost must give finite seconds, none negative, got -1.0"),
        ({"cost": lambda p, d: math.nan}, "cost must give finite seconds"),
        ({"cost": lambda p, d: math.inf}, "cost must give finite seconds"),
        ({"policy": "chunked"}, "token_budget must be given with the policy 'chunked', got None"),
        ({"policy": "chunked", "token_budget": 0}, "token_budget must be .* at least 1, got 0"),
        ({"pool": (2, 2)}, r"pool has 2 free blocks of 2 tokens, .* prompt of 5 .* \(request 1\)"),
        ({"preemption": "drop"}, "preemption must be one of recompute, swap, got 'drop'"),
        ({"preemption": "swap"}, "preemption 'swap' needs a pool"),
        ({"swap_token_s": 1.0, "pool": (5, 1)}, "swap_token_s 1.0 needs preemption 'swap'"),
        ({"swap_token_s": -1.0}, "swap_token_s must be finite and not negative, got -1.0"),
        ({"max_wait_s": math.nan}, "max_wait_s must be finite and not negative, got nan"),
        ({"max_wait_s": 1.0}, "max_wait_s 1.0 needs the policy 'dynamic', got 'continuous'"),
        ({"aging_s": -1.0}, "aging_s must not be negative, got -1.0"),
        ({"aging_s": math.nan}, "aging_s must not be negative, got nan"),
    ],
)
def test_a_wrong_call_is_refused(changes, message):
    arguments = {"policy": "continuous", "cost": step_cost, "max_batch": 2} | changes
    with pytest.raises(ValueError, match=message):
        run([Request(0.0, 3, 1), Request(0.0, 5, 1)], **arguments)


def test_what_may_be_computed_again_must_fit_the_budget_too():
    options = {"policy": "continuous", "max_batch": 2, "token_budget": 5, "pool": (9, 1)}
    requests = [Request(0.0, 5, 2)]
    with pytest.raises(ValueError, match=r"token_budget 5 .* of 5 tokens and an answer of 2"):
        run(requests, step_cost, **options)
    run(requests, step_cost, **options, preemption="swap")
    run(requests, step_cost, **options | {"policy": "chunked"})


def test_a_pool_that_others_use_is_what_is_left_of_it():
    pool = BlockPool(9, 1)
    pool.allocate("another", [1, 2, 3])
    with pytest.raises(ValueError, match="pool has 6 free blocks"):
        run([Request(0.0, 5, 3)], step_cost, policy="static", max_batch=1, pool=pool)
    run([Request(0.0, 5, 2)], step_cost, policy="static", max_batch=1, pool=pool)
    assert pool.n_free == 6


def test_nothing_to_do_and_free_steps():
    assert simulate([], "continuous", step_cost, max_batch=1) == []
    (trace,) = simulate([Request(2.0, 3, 2)], "continuous", Recorder(0.0), max_batch=1)
    assert trace.token_times_s == (2.0, 2.0)


def test_poisson_arrivals():
    """Gaps are exponential: a p-value below 1e-6 comes up once in a million seeds."""
    trace = poisson_trace(4.0, 5000, np.random.default_rng(2))
    gaps = np.diff([0.0, *(r.arrival_s for r in trace)])
    assert stats.kstest(gaps, "expon", args=(0, 1 / 4)).pvalue > 1e-6
    # A metronome of the same rate is caught.
    assert stats.kstest(np.full(5000, 1 / 4), "expon", args=(0, 1 / 4)).pvalue < 1e-6
    assert {(r.n_prompt, r.n_output) for r in trace} == {(512, 128)}


def test_bursty_arrivals():
    trace = bursty_trace(4.0, 5000, np.random.default_rng(2), cv=3.0)
    gaps = np.diff([0.0, *(r.arrival_s for r in trace)])
    expected = stats.gamma(1 / 9, scale=9 / 4)
    assert (expected.mean(), expected.std() / expected.mean()) == pytest.approx((1 / 4, 3.0))
    assert stats.kstest(gaps, expected.cdf).pvalue > 1e-6
    assert stats.kstest(gaps, "expon", args=(0, 1 / 4)).pvalue < 1e-6
    with pytest.raises(ValueError, match="cv must be positive and finite, got 0"):
        bursty_trace(4.0, 1, np.random.default_rng(2), cv=0)
    with pytest.raises(ValueError, match="rate must be positive"):
        bursty_trace(0.0, 1, np.random.default_rng(2))


def test_a_seed_gives_the_same_arrivals_whatever_the_lengths():
    plain = poisson_trace(1.0, 50, np.random.default_rng(3))
    varied = poisson_trace(
        1.0, 50, np.random.default_rng(3), lambda rng: rng.integers(1, 9), lambda rng: 5
    )
    assert [r.arrival_s for r in plain] == [r.arrival_s for r in varied]
    assert len({r.n_prompt for r in varied}) > 1 and {r.n_output for r in varied} == {5}
    assert {type(r.n_prompt) for r in varied} == {int}
    assert poisson_trace(1.0, 0, np.random.default_rng(3)) == []


@pytest.mark.parametrize(
    ("rate", "n", "message"),
    [
        (0, 1, "rate must be positive and finite, got 0 requests/s"),
        (math.inf, 1, "rate must be positive and finite"),
        (1, -1, "n must be an integer of at least 0, got -1"),
    ],
)
def test_a_wrong_arrival_process_is_refused(rate, n, message):
    with pytest.raises(ValueError, match=message):
        poisson_trace(rate, n, np.random.default_rng(0))


def test_a_trace_from_a_file_comes_back(tmp_path):
    requests = poisson_trace(1.0, 20, np.random.default_rng(4), lambda rng: rng.integers(1, 9))
    path = tmp_path / "trace.csv"
    lines = [f"{r.n_output},{r.arrival_s!r},chat,{r.n_prompt}" for r in requests]
    path.write_text("\n".join(["n_output,arrival_s,kind,n_prompt", *lines]), encoding="utf-8-sig")
    assert load_trace(path) == load_trace(str(path)) == requests


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column arrival_s, n_output, n_prompt"),
        ("arrival_s,n_prompt\n0,1\n", "has no column n_output"),
        ("arrival_s,n_prompt,n_output\n0,1,1\n1,x,1\n", "line 3: .*'x'"),
        ("arrival_s,n_prompt,n_output\n0,1,0\n", "line 2: n_output must be .* at least 1, got 0"),
        ("arrival_s,n_prompt,n_output\n0,1\n", "line 2"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, text, message):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_trace(path)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("culprit", ["cost", "on_step"])
@pytest.mark.parametrize("at", [1, 2, 5])
def test_the_pool_gets_back_what_a_failed_run_held(policy, culprit, at):
    """Whichever step fails, with prompts cut, requests preempted and a guest of the caller's."""
    pool, calls = BlockPool(12, 2), []
    pool.allocate("guest", [1, 2, 3])
    before = pool.usage()

    def fail(name):
        calls.append(name)
        if calls.count(culprit) == at and name == culprit:
            raise RuntimeError("no more")

    def cost(prefills, decodes):
        fail("cost")
        return 1.0

    with pytest.raises(RuntimeError, match="no more"):
        simulate(
            *([Request(0.0, 8, 8)] * 3, policy, cost),
            max_batch=3,
            token_budget=8 if policy == "chunked" else None,
            pool=pool,
            on_step=lambda record: fail("on_step"),
        )
    assert pool.usage() == before and pool.n_tokens("guest") == 3


def test_a_request_of_the_callers_keeps_its_blocks():
    """Also where its id is that of a request that the simulator would serve."""
    pool = BlockPool(9, 2)
    pool.allocate(1, [1, 2, 3])
    before = pool.usage()
    with pytest.raises(ValueError, match="request_id 1 is in use"):
        simulate([Request(0.0, 2, 2)] * 2, "continuous", lambda *_: 1.0, max_batch=2, pool=pool)
    assert pool.usage() == before and pool.n_tokens(1) == 3


@pytest.mark.parametrize("batch", [0, -1, 1.5, True])
def test_utilization_needs_a_batch(batch):
    with pytest.raises(ValueError, match=f"batch must be an integer of at least 1, got {batch}"):
        static_utilization(batch, 10)


def test_defaults_of_a_trace():
    for trace in (poisson_trace, bursty_trace):
        default, said = (
            trace(2.0, 9, np.random.default_rng(0), **lengths)
            for lengths in ({}, {"n_prompt": 512, "n_output": 128})
        )
        assert default == said
