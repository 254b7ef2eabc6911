"""Traces: gaps of the distribution that was asked for, and files that come back."""

import math

import numpy as np
import pytest
from scipy import stats

from firsttoken.batching import Request, bursty_trace, load_trace, poisson_trace


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((math.nan, 1, 1), "arrival_s must be a finite number, got nan"),
        ((0.0, 0, 1), "n_prompt must be an integer of at least 1, got 0"),
        ((0.0, 1, 0), "n_output must be an integer of at least 1, got 0"),
        ((0.0, 1, 1, 0.5), "priority must be a whole number, got 0.5"),
    ],
)
def test_a_wrong_request_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Request(*fields)


def test_poisson_arrivals():
    """Gaps are exponential: a p-value below 1e-6 comes up once in a million seeds."""
    trace = poisson_trace(4.0, 5000, np.random.default_rng(2))
    gaps = np.diff([0.0, *(r.arrival_s for r in trace)])
    assert stats.kstest(gaps, "expon", args=(0, 1 / 4)).pvalue > 1e-6
    # A metronome of the same rate is caught.
    assert stats.kstest(np.full(5000, 1 / 4), "expon", args=(0, 1 / 4)).pvalue < 1e-6
    assert {(r.n_prompt, r.n_output) for r in trace} == {(512, 128)}


def test_bursty_arrivals():
    trace = bursty_trace(4.0, 5000, np.random.default_rng(2))
    gaps = np.diff([0.0, *(r.arrival_s for r in trace)])
    assert {(r.n_prompt, r.n_output) for r in trace} == {(512, 128)}
    expected = stats.gamma(1 / 9, scale=9 / 4)
    assert (expected.mean(), expected.std() / expected.mean()) == pytest.approx((1 / 4, 3.0))
    assert stats.kstest(gaps, expected.cdf).pvalue > 1e-6
    assert stats.kstest(gaps, "expon", args=(0, 1 / 4)).pvalue < 1e-6
    with pytest.raises(ValueError, match="cv must be positive and finite, got 0"):
        bursty_trace(4.0, 1, np.random.default_rng(2), cv=0)
    for rate in (0.0, math.inf):
        with pytest.raises(ValueError, match="rate must be positive and finite"):
            bursty_trace(rate, 1, np.random.default_rng(2))
    with pytest.raises(ValueError, match="n must be an integer of at least 0, got -1"):
        bursty_trace(1.0, -1, np.random.default_rng(2))


def test_a_seed_gives_the_same_arrivals_whatever_the_lengths():
    plain = poisson_trace(1.0, 50, np.random.default_rng(3))
    varied = poisson_trace(
        1.0, 50, np.random.default_rng(3), lambda rng: rng.integers(1, 9), lambda rng: 5
    )
    assert [r.arrival_s for r in plain] == [r.arrival_s for r in varied]
    assert len({r.n_prompt for r in varied}) > 1 and {r.n_output for r in varied} == {5}
    assert {type(r.n_prompt) for r in varied} == {int}
    assert poisson_trace(1.0, 0, np.random.default_rng(3)) == []


def test_a_trace_from_a_file_comes_back(tmp_path):
    requests = poisson_trace(1.0, 20, np.random.default_rng(4), lambda rng: rng.integers(1, 9))
    path = tmp_path / "trace.csv"
    lines = [f"{r.n_output},{r.arrival_s!r},chat,{r.n_prompt}" for r in requests]
    path.write_text("\n".join(["n_output,arrival_s,kind,n_prompt", *lines]), encoding="utf-8-sig")
    assert load_trace(path) == load_trace(str(path)) == requests


@pytest.mark.parametrize(
    ("text", "message"),
    [
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
