"""FlashAttention against attention, torch and counts; and the mistakes that must show."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttoken.attention import SoftmaxMean, attention
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
from firsttoken.hardware import ACCELERATORS
from firsttoken.units import BYTES


def tensors(t, s, n_heads=4, n_kv_heads=2, batch=2, head_dim=8, dtype=np.float64, v_dim=None):
    rng = np.random.default_rng(0)
    shapes = (batch, n_heads, t, head_dim), (batch, n_kv_heads, s, head_dim)
    shapes += ((batch, n_kv_heads, s, v_dim or head_dim),)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


sizes = st.integers(1, 12).flatmap(lambda s: st.tuples(st.integers(0, s), st.just(s)))
heads = st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3), (6, 2)])


# --- equal to attention, whatever the blocks


@given(
    sizes=sizes,
    heads=heads,
    batch=st.integers(1, 3),
    block_q=st.integers(1, 14),
    block_k=st.integers(1, 14),
    causal=st.booleans(),
)
def test_equals_attention_for_any_sizes_and_blocks(sizes, heads, batch, block_q, block_k, causal):
    """Blocks that divide, that do not, and that exceed T and S; no query at all."""
    q, k, v = tensors(*sizes, *heads, batch, v_dim=5)
    got = flash_attention(q, k, v, block_q, block_k, causal)
    np.testing.assert_allclose(got, attention(q, k, v, causal=causal), atol=1e-12)


@given(
    sizes=sizes,
    heads=heads,
    batch=st.integers(1, 3),
    n_splits=st.integers(1, 14),
    causal=st.booleans(),
)
def test_splits_equal_attention(sizes, heads, batch, n_splits, causal):
    """More splits than keys; with several queries, runs that some of them may not see."""
    q, k, v = tensors(*sizes, *heads, batch, v_dim=5)
    got = split_kv_attention(q, k, v, n_splits, causal)
    np.testing.assert_allclose(got, attention(q, k, v, causal=causal), atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("t", "s"), [(1, 1), (1, 150), (150, 150), (70, 200)])
def test_equals_torch(t, s, n_kv_heads, causal):
    q, k, v = tensors(t, s, n_kv_heads=n_kv_heads)
    mask = torch.ones(t, s, dtype=torch.bool).tril(s - t) if causal else None
    expected = torch.nn.functional.scaled_dot_product_attention(
        *map(torch.from_numpy, (q, k, v)), attn_mask=mask, enable_gqa=True
    )
    for got in (flash_attention(q, k, v, causal=causal), split_kv_attention(q, k, v, 3, causal)):
        np.testing.assert_allclose(got, expected, atol=1e-12)


@pytest.mark.parametrize("attend", [flash_attention, lambda *qkv: split_kv_attention(*qkv, 3)])
def test_half_precision_is_computed_with_in_single(attend):
    q, k, v = (x.astype(np.float16) for x in tensors(70, 3000, head_dim=64))
    exact = attention(*(x.astype(np.float64) for x in (q, k, v)))
    got = attend(60 * q, 60 * k, v)
    assert got.dtype == np.float32
    np.testing.assert_allclose(attend(q, k, v), exact, atol=1e-4)
    np.testing.assert_allclose(attend(0 * q, k, np.ones_like(v)), 1.0, rtol=1e-5)
    whole = [np.ones((1, 1, 2, 1), dtype=int)] * 3
    assert attend(*whole).dtype == np.float64 == attention(*whole).dtype


@pytest.mark.parametrize("attend", [flash_attention, lambda *qkv: split_kv_attention(*qkv, 4)])
@pytest.mark.parametrize("sign", [1, -1])
def test_large_scores_do_not_overflow(attend, sign):
    """Scores of ±10,000, so that every exp without the peak is inf or 0; no warning either."""
    rng = np.random.default_rng(0)
    q = np.full((1, 1, 90, 1), 1e4, np.float32)
    k = sign + rng.normal(size=(1, 1, 90, 1)).astype(np.float32) / 1e4
    v = rng.normal(size=(1, 1, 90, 3)).astype(np.float32)
    got = attend(q, k, v)
    exact = attention(*(x.astype(np.float64) for x in (q, k, v)))
    np.testing.assert_allclose(got, exact, atol=5e-3)  # float32 holds scores of 1e4 to 5e-4


def test_inputs_are_left_alone_and_an_empty_cache_gives_no_output():
    q, k, v = tensors(3, 5)
    before = [x.copy() for x in (q, k, v)]
    flash_attention(q, k, v), split_kv_attention(q, k, v, 2)
    assert all((x == y).all() for x, y in zip(before, (q, k, v), strict=True))
    none = [x[:, :, :0] for x in (q, k, v)]
    assert flash_attention(*none).shape == split_kv_attention(*none, 3).shape == (2, 4, 0, 8)


def test_k_and_v_are_not_copied_to_the_query_heads(monkeypatch):
    """Every block of k and v that is multiplied with is part of what came in."""
    q, k, v = tensors(20, 20, n_heads=6, n_kv_heads=2)
    shared = []
    add = SoftmaxMean.add
    monkeypatch.setattr(
        SoftmaxMean,
        "add",
        lambda self, scores, values: (
            shared.extend(np.shares_memory(part, v) for part in values),
            add(self, scores, values),
        ),
    )
    flash_attention(q, k, v, 8, 8)
    split_kv_attention(q, k, v, 3)
    assert len(shared) == 6 + 3 and all(shared)  # of 3 x 3 blocks, 3 lie in the future


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


def test_a_step_is_not_changed_by_the_next():
    steps = flash_steps(*(x[0, 0] for x in tensors(9, 9, 1, 1)), 3, 3)
    first = next(steps)
    before = first.peak.copy(), first.total.copy(), first.mixed.copy()
    next(steps)
    for was, now in zip(before, (first.peak, first.total, first.mixed), strict=True):
        np.testing.assert_array_equal(was, now)
    with pytest.raises(AttributeError):
        first.seen = False


@pytest.mark.parametrize("t", [1, 2, 5, 12])
def test_keys_in_the_future_are_not_read(t):
    """NaN there would reach the result; half of the square is skipped."""
    q, k, v = tensors(t, 12)
    expected = attention(q[:, :, :1], k[:, :, : 13 - t], v[:, :, : 13 - t])
    k[:, :, 13 - t :], v[:, :, 13 - t :] = np.nan, np.nan  # after the first query
    got = flash_attention(q, k, v, 1, 1)[:, :, :1]
    np.testing.assert_allclose(got, expected, atol=1e-12)
    square = [x[0, 0] for x in tensors(64, 64)]
    assert sum(s.seen for s in flash_steps(*square, 4, 4)) == 16 * 17 / 2
    assert sum(s.seen for s in flash_steps(*square, 4, 4, causal=False)) == 16 * 16


# --- exhaustive: every short row of scores in every blocking

LEVELS = (-1e4, 0.0, 1.0, 1e4)


def test_every_short_row_of_scores_in_every_blocking():
    """All 4^5 rows of five scores, as one batch of queries, with blocks of 1 to 5 keys."""
    rows = np.array(list(itertools.product(LEVELS, repeat=5)))  # [1024, 5]
    q, k = rows[:, None, None, :] * math.sqrt(5), np.eye(5)[None, None]
    k = np.broadcast_to(k, (len(rows), 1, 5, 5))
    v = np.broadcast_to(np.array([1.0, 2, 4, 8, 16])[:, None], (len(rows), 1, 5, 1))
    weights = torch.from_numpy(rows).softmax(-1).numpy()
    expected = weights @ v[0, 0]
    for size in range(1, 6):
        got = flash_attention(q, k, v, block_k=size)[:, 0, 0]
        np.testing.assert_allclose(got, expected, rtol=1e-9)
        np.testing.assert_allclose(split_kv_attention(q, k, v, size)[:, 0, 0], expected, rtol=1e-9)


# --- merge

log_sum = st.one_of(st.just(-math.inf), st.floats(-800, 800))


@st.composite
def parts(draw):
    log_sums = draw(st.lists(log_sum, min_size=1, max_size=6).filter(lambda x: max(x) > -math.inf))
    outputs = draw(
        st.lists(st.floats(-10, 10), min_size=len(log_sums), max_size=len(log_sums)).map(np.array)
    )
    return outputs[:, None], np.array(log_sums)


@given(parts=parts(), data=st.data())
def test_the_order_of_parts_makes_no_difference(parts, data):
    outputs, log_sums = parts
    order = data.draw(st.permutations(range(len(log_sums))))
    np.testing.assert_allclose(merge(outputs[order], log_sums[order]), merge(*parts), atol=1e-9)


@given(parts=parts(), cut=st.integers(0, 6))
def test_the_grouping_of_parts_makes_no_difference(parts, cut):
    """Merged in two groups, and those merged: a group's log-sum is the logsumexp of its parts."""
    outputs, log_sums = parts
    groups = [slice(0, cut), slice(cut, None)]
    groups = [g for g in groups if (log_sums[g] > -math.inf).any()]
    merged = np.stack([merge(outputs[g], log_sums[g]) for g in groups])
    sums = np.array([np.logaddexp.reduce(log_sums[g]) for g in groups])
    np.testing.assert_allclose(merge(merged, sums), merge(*parts), atol=1e-9)


@given(parts=parts(), shift=st.floats(-800, 800))
def test_a_factor_in_all_weights_makes_no_difference(parts, shift):
    outputs, log_sums = parts
    np.testing.assert_allclose(merge(outputs, log_sums + shift), merge(*parts), atol=1e-9)


@given(parts=parts(), junk=st.sampled_from([0.0, 1e300, math.inf, -math.inf, math.nan]))
def test_a_part_that_saw_nothing_weighs_nothing(parts, junk):
    outputs, log_sums = parts
    got = merge(np.append(outputs, [[junk]], axis=0), np.append(log_sums, -math.inf))
    np.testing.assert_array_equal(got, merge(*parts))


def test_one_part_is_the_result_and_rows_have_their_own_parts():
    outputs = np.arange(12.0).reshape(2, 3, 2)
    np.testing.assert_array_equal(merge(outputs[:1], np.full((1, 3), -7.0)), outputs[0])
    log_sums = np.array([[0.0, -math.inf, 900.0], [0.0, 5.0, -900.0]])
    got = merge(outputs, log_sums)
    np.testing.assert_allclose(got, [(outputs[0, 0] + outputs[1, 0]) / 2, *outputs[[1, 0], [1, 2]]])
    half = merge(outputs.astype(np.float16), log_sums.astype(np.float16))
    assert half.dtype == np.float32


@given(s=st.integers(2, 10), data=st.data())
def test_parts_cut_anywhere_merge_to_the_whole(s, data):
    cuts = data.draw(st.lists(st.integers(1, s - 1), unique=True).map(sorted))
    t = data.draw(st.integers(1, s))
    q, k, v = tensors(t, s)
    runs = [slice(*run) for run in itertools.pairwise([0, *cuts, s])]
    runs = data.draw(st.permutations(runs))
    outputs, log_sums = zip(*(attention_part(q, k, v, run) for run in runs), strict=True)
    got = merge(np.stack(outputs), np.stack(log_sums))
    np.testing.assert_allclose(got, attention(q, k, v), atol=1e-12)


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


def test_naive_count_by_its_three_programs():
    n_q, n_k, head_dim = 5, 7, 3
    scores = n_q * head_dim + n_k * head_dim, n_q * n_k  # read, written
    softmax = n_q * n_k, n_q * n_k
    mixing = n_q * n_k + n_k * head_dim, n_q * head_dim
    numbers = sum(scores + softmax + mixing)
    assert naive_io_bytes(n_q, n_k, head_dim) == 2 * numbers
    assert naive_io_bytes(n_q, n_k, head_dim, "fp32") == 4 * numbers


@given(
    n_q=st.integers(0, 50),
    n_k=st.integers(0, 50),
    head_dim=st.integers(1, 8),
    block_q=st.integers(1, 60),
    block_k=st.integers(1, 60),
)
def test_larger_blocks_move_no_more(n_q, n_k, head_dim, block_q, block_k):
    """The least: everything once. The most: k and v once for each query."""
    here = io_bytes(n_q, n_k, head_dim, block_q, block_k)
    assert io_bytes(n_q, n_k, head_dim, block_q + 1, block_k) <= here
    assert io_bytes(n_q, n_k, head_dim, block_q, block_k + 1) == here
    once = 2 * 2 * (n_q + n_k) * head_dim
    assert (once if n_q else 2 * 2 * n_q * head_dim) <= here <= 2 * 2 * (n_q + n_q * n_k) * head_dim
    assert io_bytes(n_q, n_k, head_dim, max(n_q, 1), block_k) == (once if n_q else 0)


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


def test_working_set_by_its_arrays():
    """Three blocks in the format of the model; scores, result, peak and total in fp32."""
    block_q, block_k, head_dim = 5, 7, 3
    half = [(block_q, head_dim), (block_k, head_dim), (block_k, head_dim)]
    single = [(block_q, block_k), (block_q, head_dim), (block_q,), (block_q,)]
    arrays = [np.zeros(s, np.float16) for s in half] + [np.zeros(s, np.float32) for s in single]
    assert working_set_bytes(block_q, block_k, head_dim) == sum(x.nbytes for x in arrays)


@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("n", [2048, 16384])
def test_the_paper_s_order_of_growth(n, head_dim):
    """Theorem 2: over M from 8·H to N·H numbers, the bytes are 4 to 8.1 times the bound.

    M / (2·H) queries fit, and each pass over the keys reads 2·H numbers a key: 4 · N²·H² / M. What
    is more are the key itself, q and o, and a last block that is not full.
    """
    for share in np.geomspace(8 * head_dim, n * head_dim, 20):
        fast_bytes = 4 * int(share)
        moved = smallest_io_bytes(n, n, head_dim, fast_bytes, "fp32")
        assert 4 < moved / io_bound_bytes(n, n, head_dim, fast_bytes, "fp32") < 8.1


def test_naive_is_worse_by_the_square_of_the_head():
    """N² against N²·H²/M: FlashAttention gains where M is larger than H² numbers."""
    n, head_dim = 4096, 64
    for name in ("A100-80GB", "H100-SXM", "L4"):
        fast_bytes = ACCELERATORS[name].shared_memory_bytes - 1024
        gain = naive_io_bytes(n, n, head_dim) / smallest_io_bytes(n, n, head_dim, fast_bytes)
        assert 5 < gain < 30


# --- mistakes that must show


def wrong_flash(q, k, v, size, *, rescale=True, shift=0, drop=False):
    """Attention of one head by blocks of `size` keys, with a mistake."""
    t, s = len(q), len(k)
    peak, total = np.full((t, 1), -np.inf), np.zeros((t, 1))
    mixed = np.zeros((t, v.shape[1]))
    for start in range(0, s - size + 1 if drop else s, size):
        keys = slice(start, min(start + size, s))
        scores = q @ k[keys].T / math.sqrt(q.shape[1])
        position = s - t + np.arange(t)[:, None] + shift
        scores[np.arange(keys.start, keys.stop) > position] = -np.inf
        higher = np.maximum(peak, scores.max(axis=1, keepdims=True))
        reference = np.where(higher == -np.inf, 0, higher)
        shrink = np.exp(peak - reference) if rescale else 1
        weights = np.exp(scores - reference)
        total = total * shrink + weights.sum(axis=1, keepdims=True)
        mixed = mixed * shrink + weights @ v[keys]
        peak = higher
    return mixed / total


@pytest.mark.parametrize(
    ("mistake", "size"),
    [
        ({"rescale": False}, 4),
        ({"shift": -4}, 4),
        ({"shift": 4}, 4),
        ({"shift": 1}, 4),
        ({"drop": True}, 4),
    ],
)
def test_wrong_blocks_would_show(mistake, size):
    q, k, v = tensors(6, 14, 1, 1, 1)
    got = flash_attention(q, k, v, 3, size)[0, 0]
    single = q[0, 0], k[0, 0], v[0, 0]
    np.testing.assert_allclose(wrong_flash(*single, size), got, atol=1e-12)
    with np.errstate(invalid="ignore"):
        wrong = wrong_flash(*single, size, **mistake)
    assert not np.allclose(wrong, got, atol=1e-2)


def test_wrong_merges_would_show():
    """Parts of unequal weight; log-sums without their peaks; exp without a peak."""
    q, k, v = tensors(1, 9)
    k[:, :, 2] *= 4
    runs = [slice(0, 4), slice(4, 9)]
    outputs, log_sums = map(
        np.stack, zip(*(attention_part(q, k, v, run) for run in runs), strict=True)
    )
    expected = attention(q, k, v)
    np.testing.assert_allclose(merge(outputs, log_sums), expected, atol=1e-12)
    assert np.abs(outputs.mean(axis=0) - expected).max() > 1e-2
    scores = [q @ k[:, [0, 0, 1, 1], run].swapaxes(2, 3) / math.sqrt(8) for run in runs]
    peaks = np.stack([x.max(axis=-1) for x in scores])
    assert np.abs(merge(outputs, log_sums - peaks) - expected).max() > 1e-2
    with np.errstate(over="ignore", invalid="ignore"):
        weights = np.exp(log_sums + 1e4)
        bare = (weights[..., None] * outputs).sum(axis=0) / weights.sum(axis=0)[..., None]
    assert np.isnan(bare).all()
    np.testing.assert_allclose(merge(outputs, log_sums + 1e4), expected, atol=1e-10)


# --- errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q, k, v: flash_attention(q, k, v, block_q=0), "block_q must be an integer"),
        (lambda q, k, v: flash_attention(q, k, v, block_k=0), "block_k must be an integer"),
        (lambda q, k, v: flash_attention(q, k, v, block_k=2.0), "block_k must be an integer"),
        (lambda q, k, v: split_kv_attention(q, k, v, 0), "n_splits must be an integer"),
        (lambda q, k, v: flash_attention(q, k[:, :, :1], v[:, :, :1]), "T = 2 queries, k only S"),
        (lambda q, k, v: list(flash_steps(q, k[:, :, :1], v[:, :, :1])), "T = 2 queries, k only S"),
        (lambda q, k, v: split_kv_attention(q, k[:, :, :1], v[:, :, :1], 2), "T = 2 queries"),
        (lambda q, k, v: flash_attention(q[:, :3], k, v), "do not fit together"),
        (lambda q, k, v: split_kv_attention(q[:, :3], k, v, 2), "do not fit together"),
        (lambda q, k, v: flash_attention(q, k, v[:, :, 1:]), "do not fit together"),
        (lambda q, k, v: attention_part(q, k, v, slice(2, 2)), "keys must be a run of the 5 keys"),
        (lambda q, k, v: attention_part(q, k, v, slice(0, 5, 2)), "keys must be a run"),
        (lambda q, k, v: attention_part(q, k, v, slice(9, 12)), "keys must be a run"),
    ],
)
def test_errors_name_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call(*tensors(2, 5))


@pytest.mark.parametrize(
    ("outputs", "log_sums", "message"),
    [
        (np.zeros((2, 3)), np.zeros(3), r"outputs \(2, 3\) must be \(n, …, H\), log_sums \(3,\)"),
        (np.zeros(3), np.zeros(()), "must be"),
        (np.zeros((2, 1)), np.array([0.0, math.nan]), "NaN or inf"),
        (np.zeros((2, 1)), np.array([0.0, math.inf]), "NaN or inf"),
        (np.zeros((2, 1)), np.full(2, -math.inf), "all -inf somewhere"),
        (np.zeros((0, 1)), np.zeros(0), "all -inf somewhere"),
    ],
)
def test_parts_that_do_not_merge(outputs, log_sums, message):
    with pytest.raises(ValueError, match=message):
        merge(outputs, log_sums)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: io_bytes(-1, 1, 1, 1, 1), "n_q must be"),
        (lambda: io_bytes(1, 1, 1, 0, 1), "block_q must be"),
        (lambda: io_bytes(1, 1, 1, 1, 0), "block_k must be"),
        (lambda: io_bytes(1, 1, 1, 1, 1, "fp7"), "fp7"),
        (lambda: naive_io_bytes(1, -1, 1), "n_k must be"),
        (lambda: working_set_bytes(0, 1, 1), "block_q must be"),
        (lambda: max_block(-1, 1), "fast_bytes must be"),
        (lambda: max_block(100, 1, block_k=0), "block_k must be"),
        (lambda: smallest_io_bytes(1, 1, 64, 100), "must hold one query and one key, 652; got 100"),
        (lambda: io_bound_bytes(1, 1, 64, 0), "fast_bytes must be"),
    ],
)
def test_sizes_that_cannot_be(call, message):
    with pytest.raises(ValueError, match=message):
        call()
