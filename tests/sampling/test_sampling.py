"""The rules of each filter, against their definitions and transformers; section S of the claims."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import chisquare
from transformers.generation import logits_process as hf

from firsttoken.sampling import (
    SamplingParams,
    apply_temperature,
    draw,
    exponential_race,
    gumbel_max,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    next_token_distribution,
    penalize_presence_frequency,
    penalize_repetition,
    softmax,
)
from firsttoken.sampling.logits import log_softmax
from firsttoken.sampling.shortlist import sample

# Few distinct values on purpose: ties and dropped tokens are where the rules matter.
value = st.one_of(st.sampled_from([-np.inf, -2.0, 0.0, 0.0, 1.0, 3.0]), st.floats(-50, 50))
logits_1d = arrays(np.float64, st.integers(1, 9), elements=value).filter(
    lambda z: np.isfinite(z).any()
)
SIZE = 8
row = arrays(np.float64, SIZE, elements=value).filter(lambda z: np.isfinite(z).any())
rows = st.lists(row, min_size=1, max_size=4).map(np.stack)
RNG = np.random.default_rng(0)


def kept(logits):
    return set(np.flatnonzero(np.isfinite(logits)).tolist())


def entropy(p):
    p = p[p > 0]
    return -(p * np.log(p)).sum()


# softmax and temperature (S1, S2, S3, S4, S5, S20)


@given(logits_1d, st.floats(-100, 100))
def test_softmax_is_a_distribution_that_ignores_a_constant(z, shift):
    p = softmax(z)
    assert p.sum() == pytest.approx(1, abs=1e-12) and (p[np.isneginf(z)] == 0).all()
    np.testing.assert_allclose(softmax(z + shift), p, atol=1e-12)
    both = np.stack([z + shift, z[::-1]])  # each row by itself
    np.testing.assert_allclose(np.exp(log_softmax(both)), [p, p[::-1]], atol=1e-12)


@given(logits_1d, st.floats(0.2, 1), st.floats(1, 5))
def test_temperature_flattens_and_keeps_the_order(z, cold, hot):
    p = [softmax(apply_temperature(z, tau)) for tau in (cold, 1, hot)]
    assert entropy(p[0]) <= entropy(p[1]) + 1e-9 and entropy(p[1]) <= entropy(p[2]) + 1e-9
    rising = apply_temperature(z, hot)[np.argsort(z)]
    assert (rising[1:] >= rising[:-1]).all()
    np.testing.assert_array_equal(apply_temperature(z, hot), z / hot)


def test_temperature_zero_is_the_first_of_the_largest():
    got = apply_temperature(np.array([[1.0, 3.0, 3.0], [2.0, -np.inf, 2.0]]), 0)
    assert [kept(z) for z in got] == [{1}, {0}]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_temperature_gives_nan(dtype):
    """The smallest ones keep what is largest, the largest ones all that is not dropped."""
    z = np.array([[-3.0, -1.0, -np.inf], [5.0, 1.0, 5.0]], dtype=dtype)
    for tau in (1e-300, 5e-324, 1e-40):
        scaled = apply_temperature(z, tau)
        assert scaled.dtype == dtype
        np.testing.assert_allclose(softmax(scaled), [[0, 1, 0], [0.5, 0, 0.5]])
    p = softmax(apply_temperature(np.array([3.0, 1.0, -np.inf], dtype=dtype), 1e300))
    np.testing.assert_allclose(p, [0.5, 0.5, 0], atol=1e-9)


# top-k (S6, S7, S21)


@given(logits_1d, st.integers(0, 12))
def test_top_k_keeps_exactly_k_with_ties_by_lower_id(z, k):
    expected = sorted(range(len(z)), key=lambda i: (-z[i], i))[: k or len(z)]
    got = keep_top_k(z, k)
    assert kept(got) == {i for i in expected if np.isfinite(z[i])}
    assert all(got[i] == z[i] for i in kept(got))


# top-p (S8, S9, S10, S17, S22)


@given(logits_1d, st.floats(0, 1))
def test_top_p_is_the_smallest_set_that_reaches_p(z, p):
    probability = softmax(z)
    got = kept(keep_top_p(z, p))
    mass = sum(probability[i] for i in got)
    assert got and mass >= p - 2e-12
    if len(got) > 1:  # no smaller set would do: without its least likely token it falls short
        assert mass - min(probability[i] for i in got) < p + 1e-12
    outside = set(range(len(z))) - got
    assert all((-z[i], i) < (-z[j], j) for i in got for j in outside)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_top_p_and_min_p_at_the_bounds(dtype):
    for probabilities, p, expected in (
        ([0.5, 0.3, 0.2], 0.8, {0, 1}),  # reached exactly
        ([0.5, 0.3, 0.2], 0.81, {0, 1, 2}),
        ([0.5, 0.3, 0.2], 0.5, {0}),
        ([0.95, 0.03, 0.02], 0.9, {0}),  # the token that crosses p belongs to the set
        ([0.25, 0.25, 0.25, 0.25], 0.5, {0, 1}),  # ties by lower id
        ([0.2, 0.5, 0.3], 0.0, {1}),  # never empty
        ([0.2, 0.5, 0.3], 1.0, {0, 1, 2}),
        ([0.1] * 10, 0.8, set(range(8))),
    ):
        assert kept(keep_top_p(np.log(np.array(probabilities, dtype=dtype)), p)) == expected
    z = np.log(np.array([0.05, 0.5, 0.45], dtype=dtype))
    for min_p, expected in ((0.1, {0, 1, 2}), (0.11, {1, 2}), (1.0, {1}), (0.0, {0, 1, 2})):
        assert kept(keep_min_p(z, min_p)) == expected


# min-p (S12)


@given(logits_1d, st.floats(0, 1))
def test_min_p_compares_with_the_likeliest(z, min_p):
    probability = softmax(z)
    bound = min_p * probability.max()
    got = kept(keep_min_p(z, min_p))
    for i in range(len(z)):
        if np.isfinite(z[i]) and abs(probability[i] - bound) > 1e-9:
            assert (i in got) == (probability[i] > bound)
    assert int(z.argmax()) in got


# Filters together (S14, S15, S16, S24, Z14)


# Below some 1e-306 the result is right, but NumPy warns of a difference that is too large for it.
@given(
    rows,
    st.just(0.0) | st.floats(1e-300, 2),
    st.integers(0, 9),
    st.floats(0, 1),
    st.floats(0, 1),
    st.data(),
)
def test_the_pipeline_is_its_steps_and_rows_do_not_mix(z, tau, k, p, m, data):
    ids = st.lists(st.lists(st.integers(0, SIZE - 1)), min_size=len(z), max_size=len(z))
    prompt, output = data.draw(ids), data.draw(ids)
    params = SamplingParams(tau, k, p, m, repetition_penalty=1.3, presence_penalty=0.5)
    got = next_token_distribution(z, params, prompt, output)
    assert got.sum(axis=-1) == pytest.approx(1) and (got[np.isneginf(z)] == 0).all()
    for i in range(len(z)):
        one = next_token_distribution(z[i], params, prompt[i], output[i])
        np.testing.assert_array_equal(one, got[i])
        step = penalize_repetition(z[i], prompt[i] + output[i], 1.3)
        counts = np.bincount(np.array(output[i], dtype=int), minlength=SIZE)
        step = apply_temperature(penalize_presence_frequency(step, counts, 0.5, 0.0), tau)
        step = keep_top_p(keep_top_k(keep_min_p(step, m), k), p)
        np.testing.assert_array_equal(softmax(step), got[i])


@given(z=rows, data=st.data())
def test_parameters_per_row_equal_one_row_at_a_time(z, data):
    def per_row(strategy):
        return np.array(data.draw(st.lists(strategy, min_size=len(z), max_size=len(z))))

    for function, values in (
        (apply_temperature, per_row(st.sampled_from([0.0, 0.5, 1.0, 2.0]))),
        (keep_top_k, per_row(st.integers(0, 9))),
        (keep_top_p, per_row(st.sampled_from([0.0, 0.3, 0.9, 1.0]))),
        (keep_min_p, per_row(st.sampled_from([0.0, 0.3, 1.0]))),
    ):
        expected = np.stack([function(z[i], values[i]) for i in range(len(z))])
        np.testing.assert_array_equal(function(z, values), expected)
        nested = function(z[None], values[None])  # any leading axes
        np.testing.assert_array_equal(nested[0], expected)


# Penalties (S23)


@given(rows, st.data())
def test_each_row_has_its_own_penalty_and_its_own_tokens(z, data):
    n = len(z)
    ids = data.draw(st.lists(st.lists(st.integers(0, SIZE - 1)), min_size=n, max_size=n))
    penalty = np.array(data.draw(st.lists(st.floats(0.5, 2), min_size=n, max_size=n)))
    got = penalize_repetition(z, ids, penalty)
    for i in range(n):
        expected = z[i].copy()
        for token in set(ids[i]):
            expected[token] *= penalty[i] if expected[token] < 0 else 1 / penalty[i]
        np.testing.assert_allclose(got[i], expected, rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_penalty_never_leaves_the_range_of_numbers(dtype):
    """The rule of transformers and vLLM gives inf here, and softmax has no answer to it."""
    largest = np.finfo(dtype).max
    got = penalize_repetition(np.array([largest, -largest, -np.inf, 1], dtype), [0, 1, 2], 0.5)
    np.testing.assert_array_equal(got, np.array([largest, -largest / 2, -np.inf, 1], dtype))
    got = penalize_repetition(np.array([-largest, -largest], dtype), [0, 1], 2.0)
    np.testing.assert_array_equal(got, np.array([-largest, -largest], dtype))


def test_presence_counts_once_and_frequency_every_time():
    z, counts = np.zeros((2, 3)), np.array([[0, 1, 3], [2, 0, 0]])
    got = penalize_presence_frequency(z, counts, np.array([0.5, 1.0]), 0.25)
    np.testing.assert_allclose(got, [[0, -0.75, -1.25], [-1.5, 0, 0]])
    dropped = penalize_presence_frequency(np.array([-np.inf, 0]), np.array([2, 0]), -2, 2)
    np.testing.assert_array_equal(dropped, [-np.inf, 0])


# Outside oracles.


def hf_logits(processor, z, ids=None):
    ids = torch.zeros((len(z), 1), dtype=torch.long) if ids is None else torch.tensor(ids)
    return processor(ids, torch.from_numpy(z)).numpy()


def test_equal_to_transformers():
    for scale in (0.5, 3.0):
        z = RNG.normal(size=(16, 300)) * scale
        ids = RNG.integers(0, 300, size=(16, 20))
        for processor, got in (
            (hf.TemperatureLogitsWarper(0.7), apply_temperature(z, 0.7)),
            *[(hf.TopKLogitsWarper(k), keep_top_k(z, k)) for k in (1, 5, 299)],
            *[(hf.TopPLogitsWarper(p), keep_top_p(z, p)) for p in (0.01, 0.5, 0.95)],
            *[(hf.MinPLogitsWarper(m), keep_min_p(z, m)) for m in (0.01, 0.2, 0.9)],
            (hf.RepetitionPenaltyLogitsProcessor(1.3), penalize_repetition(z, ids.tolist(), 1.3)),
        ):
            np.testing.assert_allclose(got, hf_logits(processor, z, ids), rtol=1e-14)


# Three ways to draw


DISTRIBUTION = np.array([0.0, 0.45, 0.2, 0.05, 0.3, 0.0])
DRAWS = 100_000


def fits(ids):
    """Pearson's test, and no token of probability 0. A right sampler fails once in 1e7 seeds."""
    counts = np.bincount(ids, minlength=len(DISTRIBUTION))
    positive = DISTRIBUTION > 0
    if counts[~positive].any():
        return False
    return chisquare(counts[positive], DRAWS * DISTRIBUTION[positive]).pvalue > 1e-7


with np.errstate(divide="ignore"):
    LOGITS = np.tile(np.log(DISTRIBUTION) + 3, (DRAWS, 1))


def test_every_way_to_draw_follows_the_distribution_and_wrong_ways_do_not():
    """Five ways: false alarm at most 5e-7."""
    p = softmax(LOGITS)
    for way in (
        lambda rng: draw(p, rng),
        lambda rng: gumbel_max(LOGITS, rng),
        lambda rng: exponential_race(p, rng),
        lambda rng: exponential_race(1e-300 * p, rng),  # need not be normalised
        lambda rng: sample(LOGITS, rng),
    ):
        assert fits(way(np.random.default_rng(1)))
    for wrong in (
        lambda rng: (LOGITS + rng.random(LOGITS.shape)).argmax(axis=-1),  # noise of another kind
        lambda rng: (p + rng.gumbel(size=LOGITS.shape)).argmax(axis=-1),
        lambda rng: (p * rng.standard_exponential(LOGITS.shape)).argmax(axis=-1),
        lambda rng: draw(np.sort(p)[:, ::-1], rng),  # places in the sorted list
        lambda rng: draw(softmax(2 * LOGITS), rng),
    ):
        assert not fits(wrong(np.random.default_rng(1)))


class _Noise:
    """A generator that returns given exponential times, and the Gumbel noise that they are."""

    def __init__(self, times):
        self.times = times

    def standard_exponential(self, shape):
        return np.broadcast_to(self.times, shape)

    def gumbel(self, size):
        return -np.log(np.broadcast_to(self.times, size))


@given(rows, st.integers(0, 2**32))
def test_the_race_is_gumbel_max_in_other_clothes(z, seed):
    noise = _Noise(np.random.default_rng(seed).standard_exponential(z.shape))
    np.testing.assert_array_equal(exponential_race(softmax(z), noise), gumbel_max(z, noise))


def test_a_token_of_probability_zero_never_arrives():
    """Not even with a time of 0 against one that is late, nor with probabilities near 0."""
    for p in ([0.0, 1.0, 0.0], [0.0, 5e-324, 0.0]):
        assert exponential_race(np.array(p), _Noise([0.0, 700.0, 0.0])) == 1


class _Uniform:
    """A generator that returns the extreme values a uniform number can take."""

    def __init__(self, value):
        self.value = value

    def random(self, shape):
        return np.full(shape, self.value)


ENDS = [0.0, 0.5, np.nextafter(1, 0)]


@given(logits_1d, st.sampled_from(ENDS))
def test_draw_never_takes_a_dropped_token(z, uniform):
    assert np.isfinite(z[draw(softmax(z), _Uniform(uniform))])
    assert np.isfinite(z[sample(z[None], _Uniform(uniform))[0]])


def test_where_other_draws_take_a_dropped_token():
    """A bound that belongs to the wrong side at u = 0, and a sum that rounding leaves below 1."""
    p = np.array([0.0] + [1 / 27] * 27 + [0.0])
    sums = p.cumsum()
    assert sums[-1] < ENDS[-1]
    wrong = [int(np.searchsorted(sums, u)) for u in ENDS]
    assert (p[wrong[0]], wrong[2]) == (0, len(p))
    assert [int(draw(p, _Uniform(u))) for u in ENDS] == [1, 14, 27]
    assert [int(sample(np.log(p[None, 1:-1]), _Uniform(u))[0]) for u in ENDS] == [0, 13, 26]


def test_draw_keeps_leading_axes_and_its_generator():
    p = np.full((2, 3, 4), 0.25)
    one, two = (draw(p, np.random.default_rng(5)) for _ in range(2))
    assert one.shape == (2, 3) and (one == two).all()
    assert draw(p[0, 0], np.random.default_rng(0)).shape == ()


# What holds for every filter, and errors.

FILTERS = [
    (apply_temperature, "temperature", 0.0, [-1, np.nan, np.inf, "hot"]),
    (keep_top_k, "top_k", 2, [-2, 2.5]),
    (keep_top_p, "top_p", 0.7, [-0.1, 1.1, np.nan]),
    (keep_min_p, "min_p", 0.3, [-0.1, 1.1, np.nan]),
    (
        lambda z, x: penalize_repetition(z, [[0]] * len(z) if z.ndim == 2 else [0], x),
        *("repetition_penalty", 1.5, [0, -1, np.nan]),
    ),
    (
        lambda z, x: penalize_presence_frequency(z, np.zeros(z.shape), x, 0),
        *("presence_penalty", 1.0, [2.5, np.nan]),
    ),
    (
        lambda z, x: penalize_presence_frequency(z, np.zeros(z.shape), 0, x),
        *("frequency_penalty", 1.0, [-2.5, np.nan]),
    ),
]


@pytest.mark.parametrize(("function", "name", "good", "bad"), FILTERS)
def test_filters_keep_dtype_inputs_and_dropped_tokens_and_name_what_is_wrong(
    function, name, good, bad
):
    for dtype in (np.float32, np.float64):
        z = np.array([1.0, -np.inf, 2.0, 0.5], dtype=dtype)
        before = z.copy()
        got = function(z, good)
        assert got.dtype == dtype and np.isneginf(got[1]) and not np.isnan(got).any()
        np.testing.assert_array_equal(z, before)
    assert function(np.array([[3, 1], [1, 3]]), good).dtype == np.float64
    half = z.astype(np.float16)
    got = function(half, good)
    assert got.dtype == np.float32  # widened
    np.testing.assert_array_equal(got, function(half.astype(np.float32), good))
    for value in bad:
        with pytest.raises(ValueError, match=name):
            function(np.zeros(3), value)
        with pytest.raises(ValueError, match=name):
            SamplingParams(**{name: value})
    with pytest.raises(ValueError, match=name):
        function(np.zeros((2, 3)), np.full(3, good))
    for z in ([0.0, np.nan], [np.inf, 0.0], [-np.inf, -np.inf], [], 1.0):
        with pytest.raises(ValueError, match="logits"):
            function(np.array(z), good)


def test_half_precision_holds_a_whole_vocabulary():
    """Summed in float16, 128,000 equal weights are infinite, and every probability is 0."""
    z = np.zeros((1, 128_000), dtype=np.float16)
    with np.errstate(over="ignore"):
        assert np.exp(z).sum() == np.inf
    np.testing.assert_allclose(softmax(z), 1 / 128_000)
    # 0.1 and 0.9 of 128,000 equal tokens: exactly so many, as in float32.
    for share in (0.1, 0.9):
        assert len(kept(keep_top_p(z[0], share))) == round(share * 128_000)


def test_params_are_frozen_and_name_what_is_wrong():
    for field, value in (
        *[("max_tokens", 0), ("max_tokens", 1.5), ("max_tokens", True), ("seed", -1)],
        *[("seed", "x"), ("top_k", None), ("stop", ("a", "")), ("stop", (1,)), ("stop", "")],
        *[("stop", 5), ("temperature", None), ("top_k", -2)],
    ):
        with pytest.raises(ValueError, match=field):
            SamplingParams(**{field: value})
    params = SamplingParams(stop="\n\n")
    assert params.stop == ("\n\n",) and SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert SamplingParams(stop=None, top_k=-1) == SamplingParams()  # as vLLM spells it
    with pytest.raises(AttributeError):
        params.top_k = 3


def test_other_errors_name_what_is_wrong():
    def refused(message, function, *arguments):
        with pytest.raises(ValueError, match=message):
            function(*(np.array(a) if isinstance(a, list) else a for a in arguments))

    for ids in ([3], [-1], [0.5]):
        refused(r"ids must be integers in 0 … 2", penalize_repetition, np.zeros(3), ids, 2.0)
    refused("one list of ids per row", penalize_repetition, np.zeros((2, 3)), [[0]], 2.0)
    for counts in ([1, 2], [1, -2, 0]):
        refused("counts must be", penalize_presence_frequency, np.zeros(3), counts, 1, 1)
    refused("sum to 1", draw, [0.5, 0.6], RNG)
    refused("not negative", draw, [1.5, -0.5], RNG)
    refused("not all 0", exponential_race, [0.0, 0.0], RNG)
    refused("not negative", exponential_race, [-1.0, 2.0], RNG)
    refused("finite", exponential_race, [np.inf, 1.0], RNG)
    refused("V at least 1", exponential_race, np.zeros((2, 0)), RNG)
    refused("logits", gumbel_max, [np.nan, 1.0], RNG)
