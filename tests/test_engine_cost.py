"""engine_cost: the fit finds the rates that made the times, and without negatives the best."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.engine import Engine
from firsttoken.engine_cost import MeasuredCost, fit_cost, measure_cost
from firsttoken.llama import load_model

rates = st.one_of(st.just(0.0), st.floats(1e-6, 1e-2))
some_rates = st.tuples(st.floats(1e-6, 1e-2), rates, rates, rates, rates)
shapes = st.tuples(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), max_size=4),
    st.lists(st.integers(1, 500), max_size=16),
).filter(any)


@given(some_rates, st.integers(0, 1000))
def test_a_fit_finds_the_rates_that_made_the_times(true_rates, seed):
    rng = np.random.default_rng(seed)
    true = MeasuredCost(*true_rates)
    steps = []
    for _ in range(40):
        prefills = [
            (int(rng.integers(1, 99)), int(rng.integers(99))) for _ in range(rng.integers(3))
        ]
        decodes = rng.integers(1, 500, size=rng.integers(1, 9)).tolist()
        steps.append((prefills, decodes, true(prefills, decodes)))
    fitted = fit_cost(steps)
    for prefills, decodes, seconds in steps:
        assert fitted(prefills, decodes) == pytest.approx(seconds, rel=1e-6)


@given(st.lists(st.tuples(shapes, st.floats(1e-4, 1.0)), min_size=5, max_size=30))
def test_no_fitted_rate_is_negative_and_steps_add_up(timed):
    fitted = fit_cost((*shape, seconds) for shape, seconds in timed)
    values = list(vars(fitted).values())
    assert all(0 <= rate < np.inf for rate in values) and any(values)
    for (prefills, decodes), _ in timed:
        apart = sum(fitted([p], []) for p in prefills) + sum(fitted([], [d]) for d in decodes)
        n = len(prefills) + len(decodes)
        assert fitted(prefills, decodes) == pytest.approx(apart - (n - 1) * fitted.step_s)


def relative_work(shapes, seconds):
    """Return the work of each step over its seconds, whose product with the rates should be 1."""
    columns = [
        MeasuredCost(*np.eye(5)[i])(*shape) / s
        for shape, s in zip(shapes, seconds, strict=True)
        for i in range(5)
    ]
    return np.array(columns).reshape(-1, 5)


def test_no_rates_without_a_negative_one_fit_better():
    """Against all 31 choices of rates that may differ from zero: the best one is the optimum."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        timed = []
        for _ in range(rng.integers(5, 12)):
            prefills = [
                (int(rng.integers(1, 99)), int(rng.integers(99))) for _ in range(rng.integers(3))
            ]
            decodes = rng.integers(1, 500, size=rng.integers(1, 9)).tolist()
            timed.append((prefills, decodes, float(rng.uniform(0.01, 1.0))))
        work = relative_work([step[:2] for step in timed], [step[2] for step in timed])
        scaled = work / work.max(axis=0).clip(1e-300)

        def loss(rates, scaled=scaled):
            return np.sum((scaled @ rates - 1) ** 2)

        best = len(work)  # all rates zero
        for kept in (list(c) for n in range(1, 6) for c in combinations(range(5), n)):
            rates = np.zeros(5)
            rates[kept] = np.linalg.lstsq(scaled[:, kept], np.ones(len(work)))[0]
            if rates.min() >= 0:
                best = min(best, loss(rates))
        fitted = np.array(list(vars(fit_cost(timed)).values()))
        assert np.sum((work @ fitted - 1) ** 2) <= best * (1 + 1e-9) + 1e-12


def test_a_fit_needs_steps():
    with pytest.raises(ValueError, match="steps: 4, expected at least 5"):
        fit_cost([([], [1], 1.0)] * 4)
    with pytest.raises(ValueError, match="all of positive seconds"):
        fit_cost([([], [1], 0.0)] * 5)


def test_a_measured_cost_is_that_of_all_rounds(monkeypatch):
    """The clock of this test says 1 ms per token and 5 ms per step; the last round is disturbed."""
    made = []

    class Timed(Engine):
        def __init__(self, *args):
            super().__init__(*args)
            self.clock_s = 0.0
            made.append(self)

        def now_s(self):
            return self.clock_s

        def _count(self, **more):
            super()._count(**more)
            disturbed = 2.0 if len(made) == 3 else 1.0
            self.clock_s += disturbed * (0.001 * more.get("computed_tokens", 0))
            self.clock_s += disturbed * 0.005 * more.get("steps", 0)

    monkeypatch.setattr("firsttoken.engine_cost.Engine", Timed)
    cost = measure_cost(
        load_model("draft"), max_batch=3, token_budget=9, n_prompt=12, n_output=8, rounds=3
    )
    assert len(made) == 3 and cost.step_s == pytest.approx(0.005, rel=1e-6)
    assert cost([(8, 3)], [5]) == pytest.approx(0.014, rel=1e-6)
    assert {engine.pool.n_blocks for engine in made} == {3 * 2}  # 12 + 8 tokens take two of 16


def test_each_new_token_attends_to_all_up_to_the_last():
    """The work of a prefill is new · (before + new) pairs: 8 tokens after 3 make 88."""
    assert MeasuredCost(0.0, 0.0, 0.0, 0.0, 1.0)([(8, 3), (2, 0)], [5]) == 88 + 4
