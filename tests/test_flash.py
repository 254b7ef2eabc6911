"""FlashAttention against attention, torch and counts; and the mistakes that must show."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttoken import flash
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
    """Blocks that divide, that do not, and that exceed T and S; no query at all.

    More splits than keys; with several queries, runs that some of them may not see.
    """
    q, k, v = tensors(*sizes, *heads, batch, v_dim=5)
    expected = attention(q, k, v, causal=causal)
    got = flash_attention(q, k, v, *blocks, causal)
    np.testing.assert_allclose(got, expected, atol=1e-12)
    got = split_kv_attention(q, k, v, n_splits, causal)
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_equals_torch():
    """With the blocks that nobody names."""
    shapes, ratios = [(1, 1), (1, 150), (150, 150), (70, 200)], [1, 2, 4]
    for (t, s), n_kv_heads, causal in itertools.product(shapes, ratios, [True, False]):
        q, k, v = tensors(t, s, n_kv_heads=n_kv_heads)
        mask = torch.ones(t, s, dtype=torch.bool).tril(s - t) if causal else None
        expected = torch.nn.functional.scaled_dot_product_attention(
            *map(torch.from_numpy, (q, k, v)), attn_mask=mask, enable_gqa=True
        )
        flash = flash_attention(q, k, v, causal=causal)
        for got in (flash, split_kv_attention(q, k, v, 3, causal)):
            np.testing.assert_allclose(got, expected, atol=1e-12, err_msg=f"{t}, {s}, {causal}")


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
    """A mask off by a key or a block, sums that are not shrunk."""
    q, k, v = tensors(6, 14, 1, 1, 1)
    k[:, :, 2] *= 4
    expected, hide = attention(q, k, v), flash._hide_later

    def shifted(n):
        return lambda scores, first, keys: hide(scores, first + n, keys)

    def unshrunk(self, scores, values):
        self.peak = np.maximum(self.peak, scores.max(axis=-1, keepdims=True))
        weights = np.exp(scores - np.where(self.peak == -np.inf, 0, self.peak))
        self.total += weights.sum(axis=-1, keepdims=True)
        self.mixed += weights @ values[0]

    for place, name, wrong in [
        *[(flash, "_hide_later", shifted(n)) for n in (-4, 1, 4)],
        (SoftmaxMean, "add", unshrunk),
    ]:
        with monkeypatch.context() as patched, np.errstate(invalid="ignore"):
            patched.setattr(place, name, wrong)
            assert not np.allclose(flash_attention(q, k, v, 3, 4), expected, atol=1e-2), name


# --- errors


def test_errors_name_what_is_wrong(subtests):
    q, k, v = tensors(2, 5)
    two, one, none = np.zeros((2, 1)), (k[:, :, :1], v[:, :, :1]), -math.inf
    for call, message in [
        (lambda: flash_attention(q, k, v, block_q=0), "block_q must be an integer"),
        (lambda: flash_attention(q, k, v, block_k=0), "block_k must be an integer"),
        (lambda: flash_attention(q, k, v, block_k=2.0), "block_k must be an integer"),
        (lambda: split_kv_attention(q, k, v, 0), "n_splits must be an integer"),
        (lambda: flash_attention(q, *one), "T = 2 queries, k only S"),
        (lambda: list(flash_steps(q, *one)), "T = 2 queries, k only S"),
        (lambda: split_kv_attention(q, *one, 2), "T = 2 queries"),
        (lambda: flash_attention(q[:, :3], k, v), "do not fit together"),
        (lambda: split_kv_attention(q[:, :3], k, v, 2), "do not fit together"),
        (lambda: flash_attention(q, k, v[:, :, 1:]), "do not fit together"),
        (lambda: attention_part(q, k, v, slice(2, 2)), "keys must be a run of the 5 keys"),
        (lambda: attention_part(q, k, v, slice(0, 5, 2)), "keys must be a run"),
        (lambda: attention_part(q, k, v, slice(9, 12)), "keys must be a run"),
        (lambda: merge(two, np.zeros(3)), r"outputs \(2, 1\) must be \(n, …, H\), log_sums \(3,\)"),
        (lambda: merge(np.zeros(3), np.zeros(())), "must be"),
        (lambda: merge(two, np.array([0.0, math.nan])), "NaN or inf"),
        (lambda: merge(two, np.array([0.0, math.inf])), "NaN or inf"),
        (lambda: merge(two, np.full(2, none)), "all -inf somewhere"),
        (lambda: merge(two[:0], np.zeros(0)), "all -inf somewhere"),
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
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            call()
