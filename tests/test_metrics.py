"""Laws of latency, throughput and waiting; sections M and Z of the claims."""

import math
from fractions import Fraction
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.metrics import (
    SLO,
    RequestTrace,
    in_system,
    latency_budget,
    littles_law,
    percentile,
    summarize,
    wait_md1,
    wait_mg1,
    wait_mm1,
)

# Zero gaps are frequent on purpose: bursts. Quarters have an exact binary form, so sums are exact.
gap = st.one_of(st.just(0.0), st.integers(0, 40).map(lambda n: n / 4))


@st.composite
def traces_of_one(draw, most_tokens=8):
    arrival = draw(st.integers(-20, 20)) / 4
    gaps = draw(st.lists(gap, min_size=1, max_size=most_tokens))
    return RequestTrace(arrival, tuple(arrival + np.cumsum(gaps)), draw(st.integers(0, 9)))


# Something must last, or there is no rate.
many_traces = st.lists(traces_of_one(), min_size=1, max_size=8).filter(
    lambda traces: max(t.token_times_s[-1] for t in traces) > min(t.arrival_s for t in traces)
)


# One request (M1, M5, M10, M17, M18)


@given(traces_of_one())
def test_end_to_end_is_ttft_and_one_gap_fewer_than_tokens(trace):
    assert trace.e2e == trace.ttft + trace.itl.sum()
    assert len(trace.itl) == trace.n_output - 1
    if trace.n_output == 1:
        assert trace.tpot is None
    else:
        assert trace.tpot == pytest.approx(trace.itl.mean(), abs=1e-12)
        whole = trace.ttft + (trace.n_output - 1) * trace.tpot
        assert trace.e2e == pytest.approx(whole, abs=1e-12)


def test_a_wrong_trace_is_refused(subtests):
    for fields, message in [
        ((0.0, ()), "token_times_s must hold at least one time"),
        ((0.0, (1.0, 0.5)), r"token_times_s must not fall, got 0.5 after 1.0 \(token 1\)"),
        ((0.0, (1.0, 1.0, 0.5)), r"got 0.5 after 1.0 \(token 2\)"),  # a burst does not fall
        ((2.0, (1.5,)), "token_times_s must not start before arrival_s 2.0, got 1.5"),
        ((0.0, (1.0, math.nan)), "token_times_s must be finite"),
        ((0.0, "ab"), "token_times_s must be a sequence of seconds, got 'ab'"),
        ((math.nan, (1.0,)), "arrival_s must be a finite number of seconds, got nan"),
        ((0.0, (1.0,), -1), "n_prompt must be an integer of at least 0, got -1"),
    ]:
        with subtests.test(str(fields)), pytest.raises(ValueError, match=message):
            RequestTrace(*fields)


def test_a_trace_of_a_generation_counts_the_wait():
    generation = SimpleNamespace(token_times_s=[0.5, 0.75])
    trace = RequestTrace.from_generation(generation, arrival_s=1.0, start_s=4.0, n_prompt=7)
    assert trace == RequestTrace(1.0, (4.5, 4.75), 7)
    assert RequestTrace.from_generation(generation, arrival_s=1.0) == RequestTrace(1.0, (1.5, 1.75))
    with pytest.raises(ValueError, match=r"start_s must not be before arrival_s 1\.0, got 0\.5"):
        RequestTrace.from_generation(generation, arrival_s=1.0, start_s=0.5)


# Percentiles (M19, Z13)


@given(
    values=st.lists(st.one_of(st.just(0.0), st.floats(-9, 9)), min_size=1, max_size=40),
    p=st.one_of(st.sampled_from([0, 1, 7, 50, 99, 99.9, 100]), st.integers(0, 1000)).map(
        lambda p: p if p <= 100 else p / 10
    ),
)
def test_nearest_rank_by_its_definition(values, p):
    """The smallest value that at least p percent do not exceed; the decimal p, exactly."""
    share = Fraction(str(p)) / 100
    enough = [x for x in values if Fraction(sum(v <= x for v in values), len(values)) >= share]
    assert percentile(values, p) == min(enough)
    assert percentile(values, p, "interpolated") == pytest.approx(np.percentile(values, p))


def test_percentiles_do_not_slip_by_rounding():
    """0.07 · 100 is a little more than 7 in binary: rounding it up naively would give 8."""
    for p, n, rank in ((7, 100, 7), (29, 100, 29), (99.9, 328_000, 327_672)):
        assert percentile(np.arange(1, n + 1), p) == rank
    assert math.ceil(0.07 * 100) == 8
    values = np.array([0.1, 0.2, 0.7], np.float32)
    for p in (10, 25, 90):
        expected = np.percentile(values.astype(float), p)
        assert percentile(values, p, "interpolated") == pytest.approx(expected, rel=1e-15)


def test_a_wrong_percentile_is_refused(subtests):
    for arguments, message in [
        (([], 50), "values must be a sequence"),
        (([1.0], 101), "p must be between 0 and 100 percent, got 101"),
        (([1.0], 50, "median"), "method must be 'nearest_rank' or 'interpolated', got 'median'"),
    ]:
        with subtests.test(str(arguments)), pytest.raises(ValueError, match=message):
            percentile(*arguments)


# Many requests (M9, M13, M19, Z10, Z11)


@given(many_traces)
def test_a_summary_by_its_definitions(traces):
    slo = SLO(ttft_s=3.0, tpot_s=2.0)
    summary = summarize(traces, slo, percentiles=(0, 50, 100))
    start, end = summary.window_s
    seconds = end - start
    n_output = sum(t.n_output for t in traces)
    assert summary.requests_per_s == pytest.approx(len(traces) / seconds)
    assert summary.output_tokens_per_s == pytest.approx(n_output / seconds)
    prompts = sum(t.n_prompt for t in traces)
    assert summary.total_tokens_per_s == pytest.approx((n_output + prompts) / seconds)
    good = [t for t in traces if t.ttft <= 3 and (t.tpot is None or t.tpot <= 2)]
    assert summary.attainment == len(good) / len(traces)
    assert summary.goodput_per_s == pytest.approx(len(good) / seconds)
    assert summary.ttft[100] == max(t.ttft for t in traces)
    assert summary.e2e.mean_s == pytest.approx(np.mean([t.e2e for t in traces]))
    assert summary.ttft.n == summary.e2e.n == summary.n_requests == len(traces)
    assert summarize(traces[::-1], slo).ttft[50] == summary.ttft[50]
    for latency in filter(None, (summary.ttft, summary.tpot, summary.itl, summary.e2e)):
        assert latency[0] <= latency[50] <= latency[100] and latency[0] <= latency.mean_s + 1e-12


@given(many_traces)
def test_the_pooled_mean_gap_is_the_token_weighted_tpot(traces):
    summary = summarize(traces)
    long = [t for t in traces if t.n_output > 1]
    if not long:
        assert summary.tpot is None and summary.itl is None
        return
    weights = [t.n_output - 1 for t in long]
    weighted = np.average([t.tpot for t in long], weights=weights)
    assert summary.itl.mean_s == pytest.approx(weighted)
    assert summary.itl.n == sum(weights) and summary.tpot.n == len(long)


@given(many_traces)
def test_windows_that_share_a_run_share_its_tokens(traces):
    """Every arrival and every token falls into one of the windows that follow each other."""
    end = max(t.token_times_s[-1] for t in traces)
    edges = [*sorted({t.arrival_s for t in traces}), end + 1]
    parts = [(summarize(traces, window_s=edge), edge[1] - edge[0]) for edge in pairwise(edges)]
    n_output, n_prompt = (sum(getattr(t, n) for t in traces) for n in ("n_output", "n_prompt"))
    assert sum(part.n_requests for part, _ in parts) == len(traces)
    assert sum(part.requests_per_s * s for part, s in parts) == pytest.approx(len(traces))
    assert sum(part.output_tokens_per_s * s for part, s in parts) == pytest.approx(n_output)
    total = sum(part.total_tokens_per_s * s for part, s in parts)
    assert total == pytest.approx(n_output + n_prompt)


def test_a_prompt_counts_in_the_window_of_its_first_token():
    """Then it has been read; when it arrived is another matter."""
    traces = [RequestTrace(0.0, (2.5, 3.5), n_prompt=6), RequestTrace(2.0, (4.5,), n_prompt=50)]
    early, late = (summarize(traces, window_s=window) for window in ((0.0, 2.0), (2.0, 4.0)))
    assert (early.total_tokens_per_s, late.total_tokens_per_s) == (0, (2 + 6) / 2)


def test_a_limit_that_is_met_exactly_is_met():
    """A hundred steps of 20 ms differ from 20 ms on average by rounding."""
    times = 0.1 + np.cumsum([0.02] * 100)
    trace = RequestTrace(0.0, tuple(times))
    assert trace.tpot != 0.02
    assert SLO(tpot_s=0.02, itl_s=0.02).met(trace) and not SLO(tpot_s=0.0199).met(trace)


@given(traces_of_one())
def test_each_limit_is_a_limit_of_its_own(trace):
    taken = {
        "ttft_s": trace.ttft,
        "tpot_s": trace.tpot or 0.0,
        "itl_s": max(trace.itl, default=0.0),
        "e2e_s": trace.e2e,
    }
    assert SLO().met(trace)
    for name, seconds in taken.items():
        assert SLO(**{name: seconds + 0.125}).met(trace)
        if seconds > 0.125:
            assert not SLO(**{name: seconds - 0.125}).met(trace)


def test_wrong_limits_and_windows_are_refused(subtests):
    one = [RequestTrace(0.0, (1.0,))]
    for call, message in [
        (lambda: SLO(ttft_s=0), "ttft_s must be positive or None, got 0"),
        (lambda: summarize([]), "traces must hold at least one request"),
        (lambda: summarize(one, n_failed=-1), "n_failed must be an integer of at least 0, got -1"),
        (lambda: summarize([RequestTrace(1.0, (1.0,))]), "traces must last longer"),
        (lambda: summarize(one, window_s=(1.0, 1.0)), "window_s must end after it starts"),
        (lambda: summarize(one, window_s=(0.0, math.nan)), "^window_s must be a finite .* got nan"),
        (lambda: summarize(one, window_s=(0.5, 2.0)), "window_s must hold an arrival"),
        (lambda: summarize(one, percentiles=(50, 999)), "p must be between 0 and 100"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            call()


# Little's law and queues (M4, Z8, Z9)


@given(many_traces)
def test_littles_law_is_exact_on_a_finished_trace(traces):
    """The area under the number in the system, counted, is the sum of the times spent in it."""
    times, n = in_system(traces)
    assert n[-1] == 0 and (n >= 0).all() and (np.diff(times) >= 0).all()
    for i, (start, end) in enumerate(pairwise(times)):
        middle = (start + end) / 2
        if start < middle < end:
            inside = [t for t in traces if t.arrival_s <= middle < t.token_times_s[-1]]
            assert n[i] == len(inside)
    area = float(np.diff(times) @ n[:-1])
    assert area == pytest.approx(sum(t.e2e for t in traces), abs=1e-9)
    seconds = times[-1] - times[0]
    mean_time = np.mean([t.e2e for t in traces])
    assert area / seconds == pytest.approx(littles_law(len(traces) / seconds, mean_time))


@given(st.floats(0, 0.99), st.floats(0.01, 10), st.floats(0, 3))
def test_laws_of_the_wait(load, service_s, variation):
    rate = load / service_s
    wait = wait_mg1(rate, service_s, variation * service_s)
    assert wait_md1(rate, service_s) == pytest.approx(wait_mm1(rate, service_s) / 2)
    assert wait == pytest.approx(wait_md1(rate, service_s) * (1 + variation**2))
    # Time scaled: the wait scales along.
    assert wait_mg1(rate / 4, 4 * service_s, 4 * variation * service_s) == pytest.approx(4 * wait)
    # M/M/1 has load / (1 - load) in the system, by summing the geometric law of their number.
    in_queue_and_service = littles_law(rate, wait_mm1(rate, service_s) + service_s)
    number = sum(n * (1 - load) * load**n for n in range(5000))
    assert in_queue_and_service == pytest.approx(number, rel=1e-9, abs=1e-12)


def test_the_wait_has_no_bound_from_full_load_on():
    assert wait_md1(1.0, 1.0) == wait_mm1(2.0, 1.0) == math.inf
    assert wait_mm1(0.999, 1.0) == pytest.approx(999)


def test_wrong_queues_and_budgets_are_refused(subtests):
    budget = partial(latency_budget, prefill_s=1.0)
    for call, message in [
        (lambda: littles_law(-1, 1), "rate must be finite and not negative"),
        (lambda: littles_law(1, math.nan), "time must be finite and not negative"),
        (lambda: wait_md1(1, -1), "service_s must be finite and not negative"),
        (lambda: wait_mg1(1, 1, -1), "service_std_s must be finite and not negative"),
        (lambda: budget(n_output=1, decode_s=1.0, queue_s=-1), "queue_s must be finite .* got -1"),
        (lambda: budget(n_output=1, decode_s=math.nan), "decode_s must be finite .* got nan"),
        (lambda: budget(n_output=0, decode_s=1.0), "n_output must be an integer of at least 1"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            call()


# The latency budget (M2, M6, M17)

part = st.one_of(st.just(0.0), st.floats(0, 5))
TTFT = ("queue_s", "input_s", "prefill_s", "first_decode_s", "overhead_s")
TPOT = ("decode_s", "communication_s", "scheduling_s", "token_overhead_s")


@given(st.fixed_dictionaries(dict.fromkeys(TTFT + TPOT, part)), st.integers(1, 50))
def test_the_parts_add_up(parts, n_output):
    budget = latency_budget(**parts, n_output=n_output)
    assert {f"{name}_s": s for name, s in budget.ttft_parts.items()} == {n: parts[n] for n in TTFT}
    assert {f"{name}_s": s for name, s in budget.tpot_parts.items()} == {n: parts[n] for n in TPOT}
    assert budget.ttft == sum(budget.ttft_parts.values())
    # The same as the trace of such a request would say.
    times = budget.ttft + budget.tpot * np.arange(n_output)
    trace = RequestTrace(0.0, tuple(times))
    assert (trace.ttft, trace.e2e) == pytest.approx((budget.ttft, budget.e2e))


def test_a_part_of_a_latency_that_is_not_given_is_zero():
    budget = latency_budget(n_output=2, prefill_s=1.0, decode_s=2.0)
    assert (budget.ttft, budget.tpot) == (1.0, 2.0)


@given(st.fixed_dictionaries(dict.fromkeys(TPOT, part)))
def test_what_overlaps_takes_the_longest_not_the_sum(parts):
    budget = latency_budget(**parts, prefill_s=1.0, n_output=2, overlap=True)
    longest = max(parts["decode_s"], parts["communication_s"], parts["scheduling_s"])
    assert budget.tpot == pytest.approx(longest + parts["token_overhead_s"])
    assert min(budget.tpot_parts.values()) >= 0
    apart = latency_budget(**parts, prefill_s=1.0, n_output=2)
    assert budget.tpot <= apart.tpot + 1e-12 and budget.ttft == apart.ttft


def test_nobody_leaves_before_arriving_at_the_same_time():
    """Forty requests, one after another: each comes at the moment at which the last one goes."""
    times_s, n = in_system(RequestTrace(float(i), (i + 1.0,)) for i in range(40))
    assert n.tolist() == [1, *[2, 1] * 39, 0] and times_s.tolist() == sorted(times_s)
    times, n = in_system([])
    assert len(times) == len(n) == 0
