"""Attention through block tables: that of the same keys and values in one piece."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.attention import attention
from firsttoken.paging import paged_attention


def scatter(rng, k, v, lengths, block_size):
    """Put each sequence's tokens into blocks anywhere in a pool full of NaN.

    Tables may name a block more than is needed yet, as where a place is taken for the next token.
    """
    per_table = [-(-length // block_size) + rng.integers(2) for length in lengths]
    order = rng.permutation(sum(per_table) + 3).tolist()
    tables = [[order.pop() for _ in range(n)] for n in per_table]
    shape = (sum(per_table) + 3, k.shape[1], block_size, k.shape[3])
    keys, values = np.full((2, *shape), np.nan)
    for i, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        for position in range(length):
            block, offset = table[position // block_size], position % block_size
            keys[block, :, offset] = k[i, :, position]
            values[block, :, offset] = v[i, :, position]
    return keys, values, tables


@st.composite
def paged_cases(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    batch, n_kv_heads, group = (draw(st.integers(1, 3)) for _ in range(3))
    head_dim, n_new = draw(st.sampled_from([1, 2, 8])), draw(st.integers(1, 5))
    lengths = draw(st.lists(st.integers(n_new, 40), min_size=batch, max_size=batch))
    q = 3 * rng.normal(size=(batch, group * n_kv_heads, n_new, head_dim))
    k, v = 3 * rng.normal(size=(2, batch, n_kv_heads, max(lengths), head_dim))
    block_size = draw(st.sampled_from([1, 2, 3, 16, 64]))
    return q, k, v, lengths, scatter(rng, k, v, lengths, block_size)


@given(case=paged_cases(), form=st.sampled_from(["gather", "merge"]), part=st.integers(1, 50))
def test_paged_attention_equals_contiguous(case, form, part):
    """Every length, block size and group; what is in no table and in empty slots is NaN."""
    q, k, v, lengths, (keys, values, tables) = case
    result = paged_attention(q, keys, values, tables, lengths, form, part)
    for i, length in enumerate(lengths):
        one = slice(i, i + 1)
        expected = attention(q[one], k[one, :, :length], v[one, :, :length])
        np.testing.assert_allclose(result[one], expected, rtol=1e-10, atol=1e-12)


def test_large_scores_do_not_overflow():
    q, k = np.full((1, 1, 1, 1), 1e3), np.arange(8.0).reshape(1, 1, 8, 1)
    keys, values, tables = scatter(np.random.default_rng(0), k, k, [8], 2)
    for form in ("gather", "merge"):
        assert paged_attention(q, keys, values, tables, [8], form, part=2).item() == 7


BLOCKS = np.zeros((2, 1, 4, 2))


def attend(q=(1, 2, 1, 2), tables=((0,),), lengths=(3,), keys=BLOCKS, **kwargs):
    return paged_attention(np.zeros(q), keys, BLOCKS, tables, lengths, **kwargs)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attend(q=(1, 2, 1, 3)), r"q \(1, 2, 1, 3\), keys"),
        (lambda: attend(keys=np.zeros((3, 1, 4, 2))), "do not fit together"),  # fewer values
        (lambda: attend(tables=()), "0 block_tables and 1 lengths, expected one per sequence: 1"),
        (lambda: attend(q=(1, 2, 4, 2)), "lengths: 3 tokens, expected T = 4 to 4"),
        (lambda: attend(tables=[[-1]]), r"block_tables: \[-1\], expected blocks in 0 … "),
        (lambda: attend(form="copy"), "form must be 'gather' or 'merge', got 'copy'"),
        (lambda: attend(part=0), "part must be an integer of at least 1, got 0"),
    ],
)
def test_what_cannot_be(call, message):
    with pytest.raises(ValueError, match=message):
        call()
