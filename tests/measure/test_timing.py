"""Timing: every function in turn, and medians that one hiccup does not move."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.measure.timing import interleaved, median_and_spread
from measure.test_profile import ticking


def test_every_round_visits_everything_once_after_a_warm_up():
    calls, waits = [], []
    runs = {name: lambda name=name: calls.append(name) for name in "abc"}
    times = interleaved(runs, 4, lambda: waits.append(1), ticking(0.5), "test")
    assert calls == list("abc") * 5
    assert times == {name: [0.5] * 4 for name in "abc"}
    assert len(waits) == 2 * len(calls)  # before the start, and before the end is read


def test_a_slow_machine_gets_fewer_rounds_but_always_one():
    for limit, expected in ((0, 1), (16, 2), (1000, 5)):
        times = interleaved({"a": int}, 5, int, ticking(4.0), "test", limit)
        assert len(times["a"]) == expected


@given(seconds=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=9), scale=st.floats(0.1, 10))
def test_one_hiccup_moves_neither_median_nor_spread_far(seconds, scale):
    median, spread = median_and_spread(seconds)
    assert min(seconds) <= median <= max(seconds) and spread >= 0
    # Another unit of time changes nothing but the median's unit.
    other = median_and_spread([scale * s for s in seconds])
    assert other == pytest.approx((scale * median, spread))
    assert median_and_spread([1.0, 1.0, 1.0, 1.0, 500.0]) == (1.0, 0.0)
