"""The batched sampler against the filters and `draw`, which look at the whole vocabulary."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.sampling import apply_temperature, draw, keep_min_p, keep_top_k, keep_top_p, softmax
from firsttoken.sampling.logits import rounding_slack
from firsttoken.sampling.shortlist import sample, shortlist

RNG = np.random.default_rng(0)
HARD = st.sampled_from(["normal", "coarse", "bf16", "flat", "masked", "peaked", "tiny", "sorted"])
per_row = {
    "temperature": [0.0, 0.3, 0.7, 1.0, 2.0, 1e-320, 1e-40, 1e30],
    "top_k": [0, 0, 1, 2, 5, 40, 5000],
    "top_p": [0.0, 0.3, 0.8, 0.95, 1.0, 1.0],
    "min_p": [0.0, 0.0, 0.001, 0.1, 1.0],
}


def hard_logits(kind, shape, dtype, rng):
    """Logits on which shortcuts go wrong: ties, flat rows, few tokens left, values near 0."""
    z = rng.normal(size=shape)
    if kind == "coarse":
        z = np.round(2 * z)
    elif kind == "bf16":
        z = torch.from_numpy(3 * z).bfloat16().double().numpy()
    elif kind == "flat":
        z[:] = 1.5
    elif kind == "masked":
        z[rng.random(shape) < 0.98] = -np.inf
        z[:, 0] = 0.0
    elif kind == "peaked":
        z = rng.permuted(-2 * np.log(np.arange(1, shape[1] + 1) * np.ones(shape)), axis=1)
    elif kind == "tiny":
        z *= 1e-40
    elif kind == "sorted":
        z.sort(axis=1)
    return z.astype(dtype)


def batch(kind, n_vocab, dtype, seed, tied):
    """Return logits of a batch, and parameters that differ from row to row, or one for all."""
    rng = np.random.default_rng(seed)
    n_rows = int(rng.integers(1, 7))
    parameters = {
        name: rng.choice(values, size=1 if tied else n_rows) for name, values in per_row.items()
    }
    if tied:
        parameters = {name: value.item() for name, value in parameters.items()}
    return hard_logits(kind, (n_rows, n_vocab), dtype, rng), parameters


def reference(z, temperature, top_k, top_p, min_p):
    """The filters over the whole vocabulary, in the order of vLLM."""
    z = keep_min_p(apply_temperature(z, temperature), min_p)
    return softmax(keep_top_p(keep_top_k(z, top_k), top_p))


def spread_out(short, shape):
    """Return the probabilities of a shortlist over the vocabulary."""
    p = np.zeros(shape)
    row, place = np.nonzero(short.probabilities)
    p[row, short.ids[row, place]] = short.probabilities[row, place]
    return p


batches = st.builds(
    batch,
    HARD,
    st.sampled_from([1, 5, 63, 64, 65, 128, 300, 1000, 4001]),
    st.sampled_from([np.float32, np.float64]),
    st.integers(0, 2**32),
    st.booleans(),
)


@given(batches)
def test_a_shortlist_keeps_what_the_filters_keep(case):
    z, parameters = case
    expected = reference(z, **parameters)
    short = shortlist(z, **parameters)
    got = spread_out(short, z.shape)[short.settled]
    np.testing.assert_array_equal(got > 0, expected[short.settled] > 0)
    np.testing.assert_allclose(got, expected[short.settled], rtol=1e-5)
    assert (short.probabilities[~short.settled] == 0).all()
    used = short.ids[0][short.probabilities[0] > 0]
    assert (np.diff(used) > 0).all()  # by rising id


@given(batches)
def test_a_batch_is_drawn_as_row_by_row(case):
    """The same uniform numbers, the same tokens; in float32 a token that the filters keep."""
    z, parameters = case
    before = z.copy()
    expected = reference(z, **parameters)
    ids = sample(z, np.random.default_rng(3), **parameters)
    if z.dtype == np.float64:
        np.testing.assert_array_equal(ids, draw(expected, np.random.default_rng(3)))
    assert (expected[np.arange(len(z)), ids] > 0).all()
    np.testing.assert_array_equal(z, before)


def test_which_rows_have_a_shortlist():
    """Flat rows, where top-p keeps nearly everything, and rows without a filter have none."""
    z = np.tile(RNG.normal(size=4000), (7, 1))
    z[2] = z[3] = 0.0
    z[4, 5:] = -np.inf
    parameters = {
        "temperature": np.array([1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.1]),
        "top_k": np.array([20, 0, 20, 0, 0, 0, 0]),
        "top_p": np.array([0.9, 1.0, 0.9, 0.99, 1.0, 1.0, 0.9]),
        "min_p": np.array([0.0, 0.0, 0.0, 0.0, 0.01, 0.0, 0.0]),
    }
    short = shortlist(z, **parameters)
    #                                 k greedy  flat rows  masked  free   cold
    assert short.settled.tolist() == [True, True, False, False, True, False, True]
    flat = reference(z, **parameters)[3]
    assert np.count_nonzero(flat) == 3960 and flat[:3960].all()  # ties by lower id
    largest = SimpleNamespace(random=lambda shape: np.full(shape, np.nextafter(1, 0)))
    ids = sample(z, largest, **parameters)
    assert ids[3] == 3959 and ids[1] == z[1].argmax() and ids[5] == 3999


def test_ids_beyond_the_vocabulary_stand_for_nothing():
    """4,001 tokens in 62 groups: the last of group 33 would be token 4,001."""
    z = np.zeros((1, 4001))
    z[0, 33], z[0, 4000] = 2.0, 3.0
    short = shortlist(z, top_k=2)
    assert short.ids[short.probabilities > 0].tolist() == [33, 4000]
    assert short.probabilities.max() == pytest.approx(1 / (1 + np.exp(-1)))


def test_what_min_p_keeps_by_a_hair_is_on_the_list():
    """keep_min_p gives a rounding error's grace; the list must not be narrower."""
    for dtype in (np.float32, np.float64):
        z = np.full((1, 6400), -20, dtype)
        z[0, 0], z[0, 7] = 1.5, 1.5 + np.log(0.1) - rounding_slack(z) / 2
        assert np.isfinite(keep_min_p(z, 0.1)[0, 7])
        short = shortlist(z, min_p=0.1)
        assert short.settled.all() and short.ids[short.probabilities > 0].tolist() == [0, 7]
        assert short.probabilities.dtype == dtype


def test_batches_name_what_is_wrong():
    wrong = [("temperature", -1), ("top_k", 1.5), ("top_p", 1.1), ("min_p", 1.1), ("min_p", np.nan)]
    nan, infinite, dropped = np.zeros((3, 2, 200))
    nan[1, 199], infinite[0, 0], dropped[1] = np.nan, np.inf, -np.inf
    for function in (shortlist, lambda z, **p: sample(z, RNG, **p)):
        for name, bad in wrong:
            for value in (bad, np.full(3, bad), np.zeros((2, 1), dtype=int)):
                with pytest.raises(ValueError, match=f"^{name} "):
                    function(np.zeros((2, 200)), **{name: value})
        for z in (nan, infinite, dropped, np.zeros(5), np.zeros((2, 0)), np.zeros((1, 2, 3))):
            with pytest.raises(ValueError, match="logits"):
                function(z, top_k=3)
