"""FlashAttention against attention, torch and counts; and the mistakes that must show."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttoken.attention import attention
from firsttoken.flash import attention as blocks
from firsttoken.flash import (
    attention_part,
    flash_attention,
    flash_steps,
    io_bound_bytes,
    io_bytes,
    max_block,
    merge,
    naive_io_bytes,
    smallest_io_bytes,
    split_kv_attention,
    working_set_bytes,
)
from firsttoken.units import BYTES


def tensors(t, s, n_heads=4, n_kv_heads=2, batch=2, head_dim=8, dtype=np.float64, v_dim=None):
    rng = np.random.default_rng(0)
    shapes = (batch, n_heads, t, head_dim), (batch, n_kv_heads, s, head_dim)
    shapes += ((batch, n_kv_heads, s, v_dim or head_dim),)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


sizes = st.integers(1, 12).flatmap(lambda s: st.tuples(st.integers(0, s), st.just(s)))
heads = st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3), (6, 2)])
ATTEND = [flash_attention, lambda *qkv: split_kv_attention(*qkv, 3)]


# --- equal to attention, whatever the blocks


@given(
    sizes=sizes,
    heads=heads,
    batch=st.integers(1, 3),
    blocks=st.tuples(st.integers(1, 14), st.integers(1, 14)),
    n_splits=st.integers(1, 14),
    causal=st.booleans(),
)
def test_equals_attention_for_any_sizes_and_blocks(sizes, heads, batch, blocks, n_splits, causal):
    """Blocks that divide, that do not, and that exceed T and S; no query; more splits than keys."""
    q, k, v = tensors(*sizes, *heads, batch, v_dim=5)
    expected = attention(q, k, v, causal=causal)
    got = flash_attention(q, k, v, *blocks, causal)
    np.testing.assert_allclose(got, expected, atol=1e-12)
    got = split_kv_attention(q, k, v, n_splits, causal)
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_half_precision_is_computed_with_in_single():
    q, k, v = (x.astype(np.float16) for x in tensors(70, 3000, head_dim=64))
    exact = attention(*(x.astype(np.float64) for x in (q, k, v)))
    for attend in ATTEND:
        got = attend(60 * q, 60 * k, v)
        assert got.dtype == np.float32
        np.testing.assert_allclose(attend(q, k, v), exact, atol=1e-4)
        np.testing.assert_allclose(attend(0 * q, k, np.ones_like(v)), 1.0, rtol=1e-5)
        whole = [np.ones((1, 1, 2, 1), dtype=int)] * 3
        assert attend(*whole).dtype == np.float64 == attention(*whole).dtype


def test_memory_does_not_grow_with_the_product_of_the_lengths():
    """Beside the result, one block of scores, whatever T and S; `attention` holds all of them."""

    def peak_bytes(attend, t):
        q, k, v = tensors(t, t, 1, 1, 1, 16)
        tracemalloc.start()
        attend(q, k, v)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak - q.nbytes

    t = 1024
    all_scores, block = 8 * t * t, 8 * 64 * 64
    assert peak_bytes(attention, t) > all_scores
    short, long = (peak_bytes(flash_attention, n) for n in (t, 2 * t))
    assert block < short < 12 * block < all_scores / 20
    assert long - short < block / 4


# --- step by step


def test_steps_show_what_is_known_so_far():
    """After each block of keys, mixed / total is attention to the keys up to there."""
    q, k, v = tensors(10, 14, 1, 1, 1)
    steps = list(flash_steps(q[0, 0], k[0, 0], v[0, 0], 4, 3))
    assert [(s.queries.start, s.keys.start) for s in steps] == [
        (i, j) for i in (0, 4, 8) for j in (0, 3, 6, 9, 12)
    ]
    assert [s.last for s in steps] == [False, False, False, False, True] * 3
    for step in steps:
        assert step.seen is (step.keys.start <= 14 - 10 + step.queries.stop - 1)
        output, log_sum = attention_part(q, k, v, slice(0, step.keys.stop))
        got = step.mixed / step.total
        np.testing.assert_allclose(got, output[0, 0, step.queries], atol=1e-12)
        log_total = step.peak + np.log(step.total)
        np.testing.assert_allclose(log_total[:, 0], log_sum[0, 0, step.queries], atol=1e-12)


def test_keys_in_the_future_are_not_read():
    """NaN there would reach the result; half of the square is skipped."""
    for t in (1, 2, 5, 12):
        q, k, v = tensors(t, 12)
        expected = attention(q[:, :, :1], k[:, :, : 13 - t], v[:, :, : 13 - t])
        k[:, :, 13 - t :], v[:, :, 13 - t :] = np.nan, np.nan  # after the first query
        got = flash_attention(q, k, v, 1, 1)[:, :, :1]
        np.testing.assert_allclose(got, expected, atol=1e-12)
    square = [x[0, 0] for x in tensors(64, 64)]
    assert sum(s.seen for s in flash_steps(*square, 4, 4)) == 16 * 17 / 2
    assert sum(s.seen for s in flash_steps(*square, 4, 4, causal=False)) == 16 * 16


# --- merge

log_sum = st.one_of(st.just(-math.inf), st.floats(-800, 800))


@st.composite
def parts(draw):
    log_sums = draw(st.lists(log_sum, min_size=1, max_size=6).filter(lambda x: max(x) > -math.inf))
    outputs = draw(
        st.lists(st.floats(-10, 10), min_size=len(log_sums), max_size=len(log_sums)).map(np.array)
    )
    return outputs[:, None], np.array(log_sums)


@given(parts=parts(), data=st.data(), shift=st.floats(-800, 800), cut=st.integers(0, 6))
def test_order_grouping_and_a_factor_in_all_weights_make_no_difference(parts, data, shift, cut):
    """Merged in two groups, and those merged: a group's log-sum is the logsumexp of its parts."""
    outputs, log_sums = parts
    expected = merge(*parts)
    order = data.draw(st.permutations(range(len(log_sums))))
    np.testing.assert_allclose(merge(outputs[order], log_sums[order]), expected, atol=1e-9)
    np.testing.assert_allclose(merge(outputs, log_sums + shift), expected, atol=1e-9)
    groups = [slice(0, cut), slice(cut, None)]
    groups = [g for g in groups if (log_sums[g] > -math.inf).any()]
    merged = np.stack([merge(outputs[g], log_sums[g]) for g in groups])
    sums = np.array([np.logaddexp.reduce(log_sums[g]) for g in groups])
    np.testing.assert_allclose(merge(merged, sums), expected, atol=1e-9)
    # A part that saw nothing weighs nothing, whatever it holds.
    junk = data.draw(st.sampled_from([0.0, 1e300, math.inf, -math.inf, math.nan]))
    got = merge(np.append(outputs, [[junk]], axis=0), np.append(log_sums, -math.inf))
    np.testing.assert_array_equal(got, expected)


def test_one_part_is_the_result_and_rows_have_their_own_parts():
    outputs = np.arange(12.0).reshape(2, 3, 2)
    np.testing.assert_array_equal(merge(outputs[:1], np.full((1, 3), -7.0)), outputs[0])
    log_sums = np.array([[0.0, -math.inf, 900.0], [0.0, 5.0, -900.0]])
    got = merge(outputs, log_sums)
    np.testing.assert_allclose(got, [(outputs[0, 0] + outputs[1, 0]) / 2, *outputs[[1, 0], [1, 2]]])
    half = merge(outputs.astype(np.float16), log_sums.astype(np.float16))
    assert half.dtype == np.float32


def test_a_query_that_sees_none_of_a_run():
    q, k, v = tensors(3, 3)
    output, log_sum = attention_part(q, k, v, slice(2, 3))
    assert (log_sum[..., :2] == -math.inf).all() and np.isfinite(log_sum[..., 2]).all()
    assert (output[..., :2, :] == 0).all()
    np.testing.assert_allclose(output[..., 2, :], v[:, [0, 0, 1, 1], 2])


# --- bytes


class Counted(np.ndarray):
    """An array that records how many numbers each read of a slice takes."""

    reads: list

    def __getitem__(self, key):
        part = np.asarray(self)[key]
        self.reads.append(part.size)
        return part


def counted(array, reads):
    array = array.view(Counted)
    array.reads = reads
    return array


@settings(max_examples=50)
@given(
    sizes=sizes, block_q=st.integers(1, 14), block_k=st.integers(1, 14), head_dim=st.integers(1, 5)
)
def test_the_formula_is_what_a_run_reads_and_writes(sizes, block_q, block_k, head_dim):
    reads: list[int] = []
    arrays = (counted(x[0, 0], reads) for x in tensors(*sizes, 1, 1, 1, head_dim))
    written = 0
    for step in flash_steps(*arrays, block_q, block_k, causal=False):
        written += step.mixed.size if step.last else 0
    for dtype in ("bf16", "fp32"):
        moved = (sum(reads) + written) * BYTES[dtype]
        assert io_bytes(*sizes, head_dim, block_q, block_k, dtype) == moved


def test_bytes_by_their_arrays():
    """Three programs that move scores; three blocks in the model's format, the rest in fp32."""
    n_q, n_k, head_dim = 5, 7, 3
    scores = n_q * head_dim + n_k * head_dim, n_q * n_k  # read, written
    softmax = n_q * n_k, n_q * n_k
    mixing = n_q * n_k + n_k * head_dim, n_q * head_dim
    numbers = sum(scores + softmax + mixing)
    assert naive_io_bytes(n_q, n_k, head_dim) == 2 * numbers
    assert naive_io_bytes(n_q, n_k, head_dim, "fp32") == 4 * numbers
    half = [(n_q, head_dim), (n_k, head_dim), (n_k, head_dim)]
    single = [(n_q, n_k), (n_q, head_dim), (n_q,), (n_q,)]
    arrays = [np.zeros(s, np.float16) for s in half] + [np.zeros(s, np.float32) for s in single]
    assert working_set_bytes(n_q, n_k, head_dim) == sum(x.nbytes for x in arrays)


@given(
    fast_bytes=st.integers(0, 300_000),
    head_dim=st.integers(1, 256),
    dtype=st.sampled_from(["fp32", "bf16", "fp8", "int4"]),
    block_k=st.none() | st.integers(1, 300),
)
def test_the_largest_block_fits_and_a_larger_one_does_not(fast_bytes, head_dim, dtype, block_k):
    block_q = max_block(fast_bytes, head_dim, dtype, block_k)

    def needed(block_q):
        return working_set_bytes(block_q, block_k or block_q, head_dim, dtype)

    assert needed(block_q + 1) > fast_bytes
    assert block_q == 0 or needed(block_q) <= fast_bytes


def test_the_paper_s_order_of_growth():
    """Theorem 2: over M from 8·H to N·H numbers, the bytes are 4 to 8.1 times the bound.

    M / (2·H) queries fit, and each pass over the keys reads 2·H numbers a key: 4 · N²·H² / M. What
    is more are the key itself, q and o, and a last block that is not full.
    """
    for head_dim, n in itertools.product([16, 64, 128], [2048, 16384]):
        for share in np.geomspace(8 * head_dim, n * head_dim, 20):
            fast_bytes = 4 * int(share)
            moved = smallest_io_bytes(n, n, head_dim, fast_bytes, "fp32")
            assert 4 < moved / io_bound_bytes(n, n, head_dim, fast_bytes, "fp32") < 8.1


# --- mistakes that must show


def test_wrong_blocks_would_show(monkeypatch):
    """A mask off by a key or a block."""
    q, k, v = tensors(6, 14, 1, 1, 1)
    k[:, :, 2] *= 4
    expected, hide = attention(q, k, v), blocks._hide_later

    def shifted(n):
        return lambda scores, first, keys: hide(scores, first + n, keys)

    for n in (-4, 1, 4):
        monkeypatch.setattr(blocks, "_hide_later", shifted(n))
        with np.errstate(invalid="ignore"):
            assert not np.allclose(flash_attention(q, k, v, 3, 4), expected, atol=1e-2), n


# --- errors


def test_errors_name_what_is_wrong(subtests):
    q, k, v = tensors(2, 5)
    two, one, none = np.zeros((2, 1)), (k[:, :, :1], v[:, :, :1]), -math.inf
    for call, message in [
        (lambda: flash_attention(q, k, v, block_q=0), "block_q must be an integer"),
        (lambda: split_kv_attention(q, k, v, 0), "n_splits must be an integer"),
        (lambda: flash_attention(q, *one), "T = 2 queries, k only S"),
        (lambda: flash_attention(q[:, :3], k, v), "do not fit together"),
        (lambda: attention_part(q, k, v, slice(2, 2)), "keys must be a run of the 5 keys"),
        (lambda: merge(two, np.zeros(3)), r"outputs \(2, 1\) must be \(n, …, H\), log_sums \(3,\)"),
        (lambda: merge(two, np.array([0.0, math.nan])), "NaN or inf"),
        (lambda: merge(two, np.full(2, none)), "all -inf somewhere"),
        (lambda: io_bytes(-1, 1, 1, 1, 1), "n_q must be"),
        (lambda: io_bytes(1, 1, 1, 1, 1, "fp7"), "fp7"),
        (lambda: max_block(-1, 1), "fast_bytes must be"),
        (lambda: smallest_io_bytes(1, 1, 64, 100), "must hold one query and one key, 652; got 100"),
        (lambda: io_bound_bytes(1, 1, 64, 0), "fast_bytes must be"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            call()
