"""The sampler in PyTorch against the NumPy reference: the same kept tokens, the same draws."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firsttoken import sampling, sampling_torch

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SIZES = [1, 5, 63, 64, 65, 128, 300, 1000, 4001]
VALUES = {
    "temperature": [0.0, 0.3, 0.7, 1.0, 2.0, 1e-320, 1e-40, 1e30, 1e300],
    "top_k": [0, 0, 1, 2, 5, 40, 5000],
    "top_p": [0.0, 0.3, 0.8, 0.95, 1.0, 1.0],
    "min_p": [0.0, 0.0, 0.001, 0.1, 1.0],
}


def hard_logits(kind, shape, rng):
    """Ties, flat rows, rows with few tokens left, a peak, rising order: where shortcuts fail."""
    z = torch.from_numpy(rng.normal(size=shape))
    if kind == "coarse":
        z = (2 * z).round()
    elif kind == "flat":
        z = torch.full(shape, 1.5, dtype=z.dtype)
    elif kind == "masked":
        z[torch.from_numpy(rng.random(shape) < 0.98)] = -torch.inf
        z[:, -1] = 0.0
    elif kind == "peaked":
        z = z.exp().pow(3)
    elif kind == "sorted":
        z = z.sort(dim=1).values
    return z


@st.composite
def batches(draw):
    """Return logits of a batch, and parameters that differ from row to row, as tensors."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["normal", "coarse", "flat", "masked", "peaked", "sorted"]))
    dtype = draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
    shape = (int(rng.integers(1, 7)), draw(st.sampled_from(SIZES)))
    parameters = {
        name: torch.from_numpy(rng.choice(values, size=shape[0])) for name, values in VALUES.items()
    }
    return hard_logits(kind, shape, rng).to(dtype), parameters


def in_numpy(logits, parameters):
    """Return the same batch for the reference, which has no bfloat16."""
    logits = logits.float() if logits.dtype == torch.bfloat16 else logits
    return logits.numpy(), {name: value.numpy() for name, value in parameters.items()}


def filtered(z, temperature, top_k, top_p, min_p):
    """Return the probabilities that the filters leave, in the order of vLLM."""
    z = sampling.keep_min_p(sampling.apply_temperature(z, temperature), min_p)
    return sampling.softmax(sampling.keep_top_p(sampling.keep_top_k(z, top_k), top_p))


@pytest.mark.parametrize("device", DEVICES)
@given(case=batches())
def test_a_shortlist_keeps_what_the_filters_keep(device, case):
    logits, parameters = case
    z, given_parameters = in_numpy(logits, parameters)
    expected = filtered(z, **given_parameters)
    short = sampling_torch.shortlist(
        logits.to(device), **{name: value.to(device) for name, value in parameters.items()}
    )
    got = np.zeros(z.shape)
    row, place = np.nonzero(short.probabilities)
    got[row, short.ids[row, place]] = short.probabilities[row, place]
    np.testing.assert_array_equal(got[short.settled] > 0, expected[short.settled] > 0)
    np.testing.assert_allclose(got[short.settled], expected[short.settled], rtol=1e-5)
    assert (got[~short.settled] == 0).all()


@pytest.mark.parametrize("device", DEVICES)
@given(case=batches(), seed=st.integers(0, 2**32))
def test_a_batch_is_drawn_as_the_reference_draws_it(device, case, seed):
    """The same uniform numbers, the same tokens; in float32 a token that the filters keep.

    In float64 a number falls within rounding of a bound in about one row of 1e12.
    """
    logits, parameters = case
    z, given_parameters = in_numpy(logits, parameters)
    expected = filtered(z, **given_parameters)
    before = logits.clone()
    generator = torch.Generator().manual_seed(seed)
    ids = sampling_torch.sample(logits.to(device), generator, **parameters)
    assert ids.device.type == device and ids.dtype == torch.int64 and torch.equal(logits, before)
    assert (expected[np.arange(len(z)), ids.cpu()] > 0).all()
    if logits.dtype == torch.float64:

        class Same:
            def random(self, shape):
                own = torch.Generator().manual_seed(seed)
                return torch.rand(len(z), generator=own, dtype=torch.float64).numpy().reshape(shape)

        np.testing.assert_array_equal(ids.cpu(), sampling.draw(expected, Same()))


@pytest.mark.parametrize("n_vocab", [6400, 6401])
def test_rows_of_a_kind_each_have_a_shortlist_where_one_helps(n_vocab):
    """Also at the end of a vocabulary that 64 does not divide."""
    z = torch.randn((4, n_vocab), generator=torch.Generator().manual_seed(0))
    z[:, -1] = 9.0
    parameters = {
        "temperature": torch.tensor([1.0, 0.0, 1.0, 0.1]),
        "top_k": torch.tensor([9, 0, 0, 0]),
    }
    parameters |= {"top_p": torch.tensor([1.0, 1.0, 0.999, 0.9])}
    short = sampling_torch.shortlist(z, **parameters)
    assert short.settled.tolist() == [True, True, False, True]
    best = short.ids[range(4), short.probabilities.argmax(axis=1)]
    assert (best[short.settled] == n_vocab - 1).all()


def test_numbers_for_the_whole_batch_and_no_rows():
    generator = torch.Generator().manual_seed(0)
    z = torch.arange(12.0).reshape(3, 4)
    assert sampling_torch.sample(z, generator, 0.5, 1).tolist() == [3, 3, 3]
    assert sampling_torch.sample(z, generator, 0).tolist() == [3, 3, 3]
    assert sampling_torch.sample(z[:0], generator, 0.5, 0, 0.9, 0.1).shape == (0,)


@pytest.mark.parametrize(
    ("z", "parameters", "name"),
    [
        (torch.zeros(2, 200), {"temperature": torch.tensor([1.0, -1.0])}, "temperature"),
        (torch.zeros(2, 200), {"top_k": torch.tensor([1.0, 2.0])}, "top_k"),
        (torch.zeros(2, 200), {"top_p": torch.tensor([0.5] * 3)}, "top_p"),
        (torch.zeros(2, 200), {"min_p": 1.5}, "min_p"),
        (torch.zeros(200), {}, "logits"),
        (torch.zeros(2, 0), {}, "logits"),
        (torch.full((2, 200), torch.nan), {"top_k": 3}, "logits"),
        (torch.full((2, 200), -torch.inf), {"top_k": 3}, "logits"),
        (torch.full((2, 200), torch.inf), {}, "logits"),
    ],
)
def test_errors_name_what_is_wrong(z, parameters, name):
    with pytest.raises(ValueError, match=name):
        sampling_torch.shortlist(z, **parameters)
    with pytest.raises(ValueError, match=name):
        sampling_torch.sample(z, torch.Generator(), **parameters)
