"""The simulator against a slow reference, Lindley's queue and its own invariants."""

import math
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttoken.batching import (
    POLICIES,
    PREEMPTIONS,
    Request,
    Speculation,
    StepRecord,
    simulate,
)
from firsttoken.paging import BlockPool
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


# Invariants


@given(st.one_of(workloads(), guessing_workloads()))
def test_every_token_once_and_no_step_too_large(workload):
    """Steps follow each other, none over the batch, the budget or what the pool holds meanwhile."""
    requests, options = workload
    cost, held, steps = Recorder(), [], []
    # Where no pool was drawn; with swapping, no budget that was drawn is too small.
    options = {"pool": (999, 1), "preemption": "swap"} | options
    pool = options["pool"] = BlockPool(*options["pool"])

    def on_step(record):
        steps.append(record)
        held.append(pool.usage().used)

    traces = simulate(requests, cost=cost, on_step=on_step, **options)
    assert [t.n_output for t in traces] == [r.n_output for r in requests]
    assert all(a.end_s <= b.start_s for a, b in pairwise(steps))
    for (prefills, decodes), record, used in zip(cost.steps, steps, held, strict=True):
        here = [i for i, *_ in record.prefills] + list(record.decodes)
        assert 1 <= len(here) == len(set(here)) <= options["max_batch"]
        n_tokens = sum(new for new, _ in prefills) + len(decodes)
        assert n_tokens <= (options.get("token_budget") or math.inf)
        read = sum(decodes) + sum(new + before for new, before in prefills)
        assert read <= used * pool.block_size <= pool.n_blocks * pool.block_size
    assert pool.n_free == pool.n_blocks


# Queueing theory


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
    traces = simulate(requests, "continuous", lambda prompts, _: prompts[0][0] * 1e-6, max_batch=1)
    waits = [t.ttft - r.n_prompt * 1e-6 for t, r in zip(traces, requests, strict=True)]
    np.testing.assert_allclose(waits, expected, atol=1e-9)


# Priorities and fairness


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
    """Sheng et al. 2023, theorem 4.4: at most 2 · max(longest prompt, tokens of a full batch).

    One client has 300 requests waiting, who came first, and the other 100.
    """
    lengths = np.random.default_rng(6).integers(1, 20, size=(400, 2)).tolist()
    clients = ["heavy"] * 300 + ["light"] * 100
    requests = [Request(0.0, *n, client=c) for n, c in zip(lengths, clients, strict=True)]
    options = {"policy": policy, "max_batch": 4, "token_budget": budget}
    bound = 2 * 4 * (19 + 19)
    _, steps = run(requests, Recorder(), fair=True, **options)
    assert largest_difference(requests, steps) <= bound
    _, steps = run(requests, Recorder(), **options)
    assert largest_difference(requests, steps) > 4 * bound


# Guesses


def no_time(n_sequences, gamma):
    return 0.0


@pytest.mark.parametrize(("alpha", "gamma"), [(0.3, 1), (0.7, 4), (0.9, 8)])
def test_a_step_gives_the_tokens_that_the_formula_expects(alpha, gamma):
    """64,000 independent rounds. Hoeffding: the mean of numbers within 0 … gamma lies further than
    gamma · √(ln(2 / 1e-6) / 2n) from its expectation with a probability below 1e-6.

    Counting the guesses behind a miss gives alpha · gamma of them, which lies outside.
    """
    _, steps = run(
        [Request(0.0, 1, 1000 * (gamma + 1) + 2)] * 64,
        Recorder(),
        policy="static",
        max_batch=64,
        speculation=Speculation(alpha, gamma, no_time, seed=3),
    )
    mean = np.mean([record.kept for record in steps[1:1001]])
    allowed = gamma * math.sqrt(math.log(2 / 1e-6) / (2 * 64_000))
    assert abs(1 + mean - expected_tokens(alpha, gamma)) < allowed
    if gamma > 1:
        assert abs(alpha * gamma - (expected_tokens(alpha, gamma) - 1)) > 5 * allowed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": 1.5}, "alpha must lie in 0 … 1, one number or one for each guess, got 1.5"),
        ({"alpha": [[0.5]]}, "alpha must lie in 0 … 1"),
        ({"gamma": 2, "alpha": [0.5]}, "gamma must be at most 1, the number of alphas, got 2"),
        ({"gamma": lambda n: 2, "alpha": [0.5]}, "gamma must be at most 1, .* got 2"),
        (
            {"draft_s": lambda n, gamma: -1.0},
            "draft_s must be a finite time, .* got -1.0",
        ),
    ],
)
def test_a_wrong_speculation_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        guesses = Speculation(**{"alpha": 0.5, "gamma": 1, "draft_s": no_time} | changes)
        simulate([Request(0.0, 1, 2)], "static", step_cost, max_batch=1, speculation=guesses)


# What is refused, and a pool that others use


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": "orca"}, "policy must be one of static, .*, chunked, got 'orca'"),
        ({"max_batch": 0}, "max_batch must be an integer of at least 1, got 0"),
        ({"token_budget": 0}, "token_budget must be an integer of at least 1, got 0"),
        ({"token_budget": 4}, r"token_budget 4 must hold .* 5 tokens \(request 1\)"),
        ({"cost": lambda p, d: -1.0}, "cost must give finite seconds, none negative, got -1.0"),
        ({"policy": "chunked"}, "token_budget must be given with the policy 'chunked', got None"),
        ({"pool": (2, 2)}, r"pool has 2 free blocks of 2 tokens, .* prompt of 5 .* \(request 1\)"),
        ({"preemption": "swap"}, "preemption 'swap' needs a pool"),
        ({"swap_token_s": 1.0, "pool": (5, 1)}, "swap_token_s 1.0 needs preemption 'swap'"),
        ({"swap_token_s": -1.0}, "swap_token_s must be a finite time, not negative; got -1.0"),
        ({"max_wait_s": math.nan}, "max_wait_s must be a finite time, not negative; got nan"),
        ({"max_wait_s": 1.0}, "max_wait_s 1.0 needs the policy 'dynamic', got 'continuous'"),
        ({"aging_s": -1.0}, "aging_s must not be negative, got -1.0"),
    ],
)
def test_a_wrong_call_is_refused(changes, message):
    arguments = {"policy": "continuous", "cost": step_cost, "max_batch": 2} | changes
    with pytest.raises(ValueError, match=message):
        run([Request(0.0, 3, 1), Request(0.0, 5, 1)], **arguments)


def test_what_may_be_computed_again_must_fit_the_budget_too():
    with pytest.raises(ValueError, match=r"token_budget 5 .* of 5 tokens and an answer of 2"):
        simulate(
            *([Request(0.0, 5, 2)], "continuous", step_cost),
            **{"max_batch": 2, "token_budget": 5, "pool": BlockPool(9, 1)},
        )


def test_a_pool_that_others_use_is_what_is_left_of_it():
    pool = BlockPool(9, 1)
    pool.allocate("another", [1, 2, 3])
    with pytest.raises(ValueError, match="pool has 6 free blocks"):
        run([Request(0.0, 5, 3)], step_cost, policy="static", max_batch=1, pool=pool)
    run([Request(0.0, 5, 2)], step_cost, policy="static", max_batch=1, pool=pool)
    assert pool.n_free == 6


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("culprit", ["cost", "on_step"])
def test_the_pool_gets_back_what_a_failed_run_held(policy, culprit):
    """Whichever step fails, with prompts cut, requests preempted and a guest of the caller's."""
    pool, calls = BlockPool(12, 2), []
    pool.allocate("guest", [1, 2, 3])
    before = pool.usage()

    def fail(name):
        calls.append(name)
        if name == culprit and calls.count(name) == 5:
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


@given(seed=st.integers(0, 2**32 - 1), n_output=st.integers(1, 6), places=st.integers(1, 4))
def test_an_order_of_the_line_decides_who_is_served_not_how_many(seed, n_output, places):
    rng = np.random.default_rng(seed)
    arrivals, priorities = np.sort(rng.integers(0, 30, 20)), rng.integers(-9, 9, 20)

    def ends(ranks):
        requests = [
            Request(float(t), 1, n_output, priority=int(rank))
            for t, rank in zip(arrivals, ranks, strict=True)
        ]
        traces = simulate(requests, "continuous", lambda *_: 1.0, max_batch=places)
        return sorted(trace.token_times_s[-1] for trace in traces)

    newest_first = -np.arange(20)
    assert ends(np.zeros(20)) == ends(priorities) == ends(newest_first)
