"""cost: the fit finds the rates that made the times, and without negatives the best."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.batching import StepRecord
from firsttoken.engine import Engine, MeasuredCost, fit_cost, measure_cost, record_steps
from firsttoken.models.llama import load_model
from firsttoken.sampling import SamplingParams

rates = st.one_of(st.just(0.0), st.floats(1e-6, 1e-2))
some_rates = st.tuples(st.floats(1e-6, 1e-2), rates, rates, rates, rates)


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
        assert fitted.min() >= 0
        assert np.sum((work @ fitted - 1) ** 2) <= best * (1 + 1e-9) + 1e-12


def test_a_count_that_no_step_has_costs_nothing():
    """Steps without prompts have no pairs."""
    steps = [([], [n] * batch) for n in (1, 10, 100) for batch in (1, 3)]
    fitted = fit_cost((*shape, 1.0 + 0.1 * sum(shape[1])) for shape in steps)
    assert fitted.pair_s == 0
    assert fitted([], [50, 7]) == pytest.approx(6.7)


def test_a_fit_needs_steps():
    with pytest.raises(ValueError, match="steps: 4, expected at least 5"):
        fit_cost([([], [1], 1.0)] * 4)
    for seconds in (0.0, -1.0):
        with pytest.raises(ValueError, match="all of positive seconds"):
            fit_cost([*[([], [1], 1.0)] * 5, ([], [1], seconds)])


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

    monkeypatch.setattr("firsttoken.engine.cost.Engine", Timed)
    cost = measure_cost(
        load_model("draft"), max_batch=3, token_budget=9, n_prompt=12, n_output=8, rounds=3
    )
    assert len(made) == 3 and cost.step_s == pytest.approx(0.005, rel=1e-6)
    assert cost([(8, 3)], [5]) == pytest.approx(0.014, rel=1e-6)
    assert {engine.pool.n_blocks for engine in made} == {3 * 2}  # 12 + 8 tokens take two of 16


class Counted:
    """An engine that notes what is asked of it, and whose steps take a second per token."""

    def __init__(self, *args):
        self.args, self.asked, self.on_step = args, [], None

    def submit(self, text, params, **options):
        assert options == {"ignore_eos": True}
        self.asked.append((text, params))

    def run(self):
        for text, params in self.asked:
            n = len(text) * params.max_tokens
            self.on_step(StepRecord(1.0, 1.0 + n, ((0, n, 0),), (), ()))


@pytest.fixture
def counted(monkeypatch):
    """Return a function that measures with such engines, and returns them."""

    def measured(**options):
        made = []

        def engine(*args):
            made.append(Counted(*args))
            return made[-1]

        monkeypatch.setattr("firsttoken.engine.cost.Engine", engine)
        measure_cost(load_model("draft"), **options)
        return made

    return measured


def test_texts_come_from_the_seed_and_answers_from_the_params(counted):
    small = {"max_batch": 4, "rounds": 1}
    ((default,), (same,), (other,)) = (
        counted(**small, **more) for more in ({}, {"seed": 0}, {"seed": 1})
    )
    assert default.asked == same.asked != other.asked
    assert {params.temperature for _, params in default.asked} == {0.0}
    (drawn,) = counted(**small, params=SamplingParams(temperature=0.5, seed=7))
    assert {(params.temperature, params.seed) for _, params in drawn.asked} == {(0.5, 7)}


def test_unless_said_otherwise_a_batch_of_16_is_timed_five_times(counted):
    made = counted()
    assert [engine.args[1:] for engine in made] == [(16 * (256 + 64) // 16, 16, 16, None)] * 5
    assert len(made[0].asked) == 32
    assert 200 < max(len(text) for text, _ in made[0].asked) <= 256
    assert 50 < max(params.max_tokens for _, params in made[0].asked) <= 64


def test_the_shortest_prompts_and_answers_have_one_token(counted):
    (made,) = counted(n_prompt=1, n_output=1, rounds=1)
    assert {(len(text), params.max_tokens) for text, params in made.asked} == {(1, 1)}


def test_steps_are_recorded_as_simulate_hands_them_to_a_cost():
    """A budget of four tokens: the second prompt is read in two parts, beside a decode."""
    engine = Engine(load_model("draft"), 8, 16, 2, token_budget=4)
    steps = record_steps(engine)
    for prompt in ([5, 6, 7], [8, 9]):
        engine.submit(prompt, SamplingParams(temperature=0.0, max_tokens=2), ignore_eos=True)
    engine.run()
    shapes = [(prefills, decodes) for prefills, decodes, _ in steps]
    assert shapes == [([(3, 0), (1, 0)], []), ([(1, 1)], [4]), ([], [3])]
    engine.on_step(StepRecord(1.5, 4.0, (), (), ()))
    assert steps[-1] == ([], [], 2.5)


def test_a_check_of_guesses_is_recorded_as_a_piece_of_a_prompt():
    """Its own draft is always right: three tokens a pass, and the last two of six."""
    model = load_model("draft")
    engine = Engine(model, 8, 16, 1, draft=model, gamma=2)
    steps = record_steps(engine)
    engine.submit([5, 6, 7, 8, 9], SamplingParams(temperature=0.0, max_tokens=6), ignore_eos=True)
    engine.run()
    shapes = [(prefills, decodes) for prefills, decodes, _ in steps]
    assert shapes == [([(5, 0)], []), ([(3, 5)], []), ([(2, 8)], [])]


def test_a_step_s_seconds_by_hand():
    """One step, 8 + 2 + 1 tokens, 3 sequences, 11 + 2 + 5 keys and 88 + 4 pairs."""
    cost = MeasuredCost(step_s=1.0, token_s=1e2, sequence_s=1e4, key_s=1e6, pair_s=1e8)
    assert cost([(8, 3), (2, 0)], [5]) == 92_18_03_11_01
