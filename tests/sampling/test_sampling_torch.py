"""The sampler in PyTorch against the NumPy reference: the same kept tokens, the same draws."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firsttoken import sampling
from firsttoken.sampling import sampling_torch
from sampling.test_shortlist import HARD, hard_logits, per_row, reference, spread_out

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SIZES = [1, 5, 63, 64, 65, 128, 300, 1000, 4001]
VALUES = per_row | {"temperature": [*per_row["temperature"], 1e300]}


@st.composite
def batches(draw):
    """Return logits of a batch, and parameters that differ from row to row, as tensors."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype = draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
    shape = (int(rng.integers(1, 7)), draw(st.sampled_from(SIZES)))
    parameters = {
        name: torch.from_numpy(rng.choice(values, size=shape[0])) for name, values in VALUES.items()
    }
    logits = hard_logits(draw(HARD), shape, np.float64, rng)
    return torch.from_numpy(logits).to(dtype), parameters


def in_numpy(logits, parameters):
    """Return the same batch for the reference, which has no bfloat16."""
    logits = logits.float() if logits.dtype == torch.bfloat16 else logits
    return logits.numpy(), {name: value.numpy() for name, value in parameters.items()}


@pytest.mark.parametrize("device", DEVICES)
@given(case=batches())
def test_a_shortlist_keeps_what_the_filters_keep(device, case):
    logits, parameters = case
    z, given_parameters = in_numpy(logits, parameters)
    expected = reference(z, **given_parameters)
    short = sampling_torch.shortlist(
        logits.to(device), **{name: value.to(device) for name, value in parameters.items()}
    )
    got = spread_out(short, z.shape)
    np.testing.assert_array_equal(got[short.settled] > 0, expected[short.settled] > 0)
    np.testing.assert_allclose(got[short.settled], expected[short.settled], rtol=1e-5)
    assert (got[~short.settled] == 0).all()


@pytest.mark.parametrize("device", DEVICES)
@given(case=batches(), seed=st.integers(0, 2**32))
def test_a_batch_is_drawn_as_the_reference_draws_it(device, case, seed):
    """The same uniform numbers, the same tokens; in float32 a token that the filters keep."""
    logits, parameters = case
    z, given_parameters = in_numpy(logits, parameters)
    expected = reference(z, **given_parameters)
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


def test_rows_of_a_kind_each_have_a_shortlist_where_one_helps():
    """Also at the end of a vocabulary that 64 does not divide."""
    parameters = {
        "temperature": torch.tensor([1.0, 0.0, 1.0, 0.1]),
        "top_k": torch.tensor([9, 0, 0, 0]),
        "top_p": torch.tensor([1.0, 1.0, 0.999, 0.9]),
    }
    for n_vocab in (6400, 6401):
        z = torch.randn((4, n_vocab), generator=torch.Generator().manual_seed(0))
        z[:, -1] = 9.0
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


def test_unless_asked_nothing_is_filtered():
    z = torch.randn((5, 6400), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    nothing = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    for asked in ({"top_k": 5}, {"temperature": 0.1, "top_p": 0.9}, {"min_p": 0.3}):
        short, full = (sampling_torch.shortlist(z, **said) for said in (asked, nothing | asked))
        assert short.settled.sum() >= 3
        for got, expected in zip(short, full, strict=True):
            np.testing.assert_array_equal(got, expected)
    assert not sampling_torch.shortlist(z).settled.any()
    # Uniform logits: each of the tokens comes, so that none was left out.
    flat, generators = torch.zeros((2000, 5)), (torch.Generator().manual_seed(0) for _ in range(2))
    drawn, said = (
        sampling_torch.sample(flat, next(generators), *p) for p in ((), (1.0, 0, 1.0, 0))
    )
    assert torch.equal(drawn, said) and drawn.unique().tolist() == [0, 1, 2, 3, 4]


def test_errors_name_what_is_wrong():
    z = torch.zeros(2, 200)
    for logits, parameters, name in (
        (z, {"temperature": torch.tensor([1.0, -1.0])}, "temperature"),
        (z, {"top_k": torch.tensor([1.0, 2.0])}, "top_k"),
        (z, {"top_p": torch.tensor([0.5] * 3)}, "top_p"),
        (z, {"min_p": 1.5}, "min_p"),
        (z[0], {}, "logits"),
        (z[:, :0], {}, "logits"),
        (z + torch.nan, {"top_k": 3}, "logits"),
        (z - torch.inf, {"top_k": 3}, "logits"),
        (z + torch.inf, {}, "logits"),
    ):
        with pytest.raises(ValueError, match=name):
            sampling_torch.shortlist(logits, **parameters)
        with pytest.raises(ValueError, match=name):
            sampling_torch.sample(logits, torch.Generator(), **parameters)


def omniinfer_keeps(counts, k, p_top):
    """Which of these tokens, of probabilities counts / sum, an engine keeps that sorts upwards.

    Top-k cuts at the k-th largest value and keeps its equals; then what from the least likely up
    sums to at most 1 - p_top goes, but never the last. In whole numbers: `p_top` counts, too.
    Source: github.com/omni-ai-npu/omni-infer at 2a2c217, omni/adaptors/vllm/sample/sampler.py.
    """
    order = np.argsort(counts, kind="stable")
    rising = np.where(counts[order] < counts[order[-k]], 0, counts[order])
    stays = np.cumsum(rising) > rising.sum() - p_top
    stays[-1] = True
    kept = np.zeros(len(counts), dtype=bool)
    kept[order[stays & (rising > 0)]] = True
    return kept


@given(counts=st.lists(st.integers(1, 6), min_size=1, max_size=64), data=st.data())
def test_ties_and_borders_against_an_engine_that_sorts_upwards(counts, data):
    """At a tie for place k we keep the lower ids, and k; a sum that is exactly p is enough."""
    counts = np.array(counts)
    k = data.draw(st.integers(1, len(counts)), "k")
    z = torch.full((1, 512), -torch.inf, dtype=torch.float64)
    z[0, : len(counts)] = torch.from_numpy(np.log(counts))

    def ours(top_k, top_p):
        short = sampling_torch.shortlist(z, top_k=top_k, top_p=top_p)
        assert short.settled.all()
        return spread_out(short, z.shape)[0, : len(counts)] > 0

    by_value = omniinfer_keeps(counts, k, counts.sum())
    weakest = np.flatnonzero(by_value & (counts == counts[by_value].min()))
    by_value[weakest[len(weakest) - (by_value.sum() - k) :]] = False
    np.testing.assert_array_equal(ours(k, 1.0), by_value)
    # Top-p sees what top-k has left: the same where no tie was cut.
    counts_left = counts * by_value
    p_top = data.draw(st.integers(1, counts_left.sum()), "p_top, in counts")
    theirs = omniinfer_keeps(counts_left, k, p_top)
    kept = ours(k, p_top / counts_left.sum())
    assert sorted(counts[kept]) == sorted(counts[theirs])
