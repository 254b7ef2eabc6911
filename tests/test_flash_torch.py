"""FlashAttention in PyTorch: the reference's results, torch's own, and no T × S scores."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._python_dispatch import TorchDispatchMode

from firsttoken import flash, flash_torch
from firsttoken.attention import attention


def tensors(t, s, n_heads=4, n_kv_heads=2, batch=2, head_dim=8, dtype=torch.float64, v_dim=None):
    generator = torch.Generator().manual_seed(0)
    shapes = (batch, n_heads, t, head_dim), (batch, n_kv_heads, s, head_dim)
    shapes += ((batch, n_kv_heads, s, v_dim or head_dim),)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def reference(q, k, v, causal=True):
    return attention(q.numpy(), k.numpy(), v.numpy(), causal=causal)


sizes = st.integers(1, 12).flatmap(lambda s: st.tuples(st.integers(0, s), st.just(s)))
heads = st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3), (6, 2)])


@given(
    sizes=sizes,
    heads=heads,
    batch=st.integers(1, 3),
    block_q=st.integers(1, 14),
    block_k=st.integers(1, 14),
    causal=st.booleans(),
)
def test_equals_attention_for_any_sizes_and_blocks(sizes, heads, batch, block_q, block_k, causal):
    q, k, v = tensors(*sizes, *heads, batch, v_dim=5)
    got = flash_torch.flash_attention(q, k, v, block_q, block_k, causal)
    np.testing.assert_allclose(got, reference(q, k, v, causal), atol=1e-12)


@given(
    sizes=sizes,
    heads=heads,
    batch=st.integers(1, 3),
    n_splits=st.integers(1, 14),
    causal=st.booleans(),
)
def test_splits_equal_attention(sizes, heads, batch, n_splits, causal):
    q, k, v = tensors(*sizes, *heads, batch, v_dim=5)
    got = flash_torch.split_kv_attention(q, k, v, n_splits, causal)
    np.testing.assert_allclose(got, reference(q, k, v, causal), atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("t", "s"), [(1, 1), (1, 1100), (600, 600), (300, 1300)])
def test_equals_torch(t, s, n_kv_heads, causal):
    """With blocks as large as they are by default; float32."""
    q, k, v = tensors(t, s, n_kv_heads=n_kv_heads, dtype=torch.float32)
    mask = torch.ones(t, s, dtype=torch.bool).tril(s - t) if causal else None
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, enable_gqa=True
    )
    for got in (
        flash_torch.flash_attention(q, k, v, causal=causal),
        flash_torch.split_kv_attention(q, k, v, 7, causal),
    ):
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_equals_flex_attention(n_kv_heads):
    """The reference too: the rule of the mask as a function of two positions."""
    t, s = 40, 90
    q, k, v = tensors(t, s, n_kv_heads=n_kv_heads)

    def rule(score, b, h, i, key):
        return torch.where(key <= i + s - t, score, -math.inf)

    expected = flex_attention(q, k, v, rule, enable_gqa=True)
    fast = flash_torch.flash_attention(q, k, v, 16, 32)
    torch.testing.assert_close(fast, expected, atol=1e-12, rtol=0)
    arrays = (x.numpy() for x in (q, k, v))
    np.testing.assert_allclose(flash.flash_attention(*arrays, 16, 32), expected, atol=1e-12)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_any_number_of_threads(n_threads):
    """As many heads go side by side as there are threads: the last time, fewer."""
    q, k, v = tensors(9, 20, 8, 4)
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        got = flash_torch.flash_attention(q, k, v, 4, 4)
        split = flash_torch.split_kv_attention(q, k, v, 3)
    finally:
        torch.set_num_threads(before)
    np.testing.assert_allclose(got, reference(q, k, v), atol=1e-12)
    np.testing.assert_allclose(split, reference(q, k, v), atol=1e-12)


ATTEND = [flash_torch.flash_attention, lambda *qkv: flash_torch.split_kv_attention(*qkv, 3)]


@pytest.mark.parametrize("attend", ATTEND)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_with_in_single(attend, dtype):
    q, k, v = (x.to(dtype) for x in tensors(70, 3000, head_dim=64))
    got = attend(q, k, v)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got, reference(*(x.double() for x in (q, k, v))), atol=1e-4)
    assert torch.allclose(attend(0 * q, k, torch.ones_like(v)), torch.ones(()), rtol=1e-5)


@pytest.mark.parametrize("attend", ATTEND)
@pytest.mark.parametrize("sign", [1, -1])
def test_large_scores_do_not_overflow(attend, sign):
    q, k, v = tensors(90, 90, 1, 1, 1, 1)
    q, k = torch.full_like(q, 1e4), sign + k / 1e4
    got = attend(q, k, v)
    np.testing.assert_allclose(got, reference(q, k, v), atol=1e-9)


def test_every_short_row_of_scores_in_every_blocking():
    """All 3^5 rows of five scores as queries of one key each, with blocks of 1 to 5 keys."""
    rows = torch.tensor(list(itertools.product((-1e4, 0.0, 1e4), repeat=5)), dtype=torch.float64)
    q, k = rows[:, None, None] * math.sqrt(5), torch.eye(5, dtype=torch.float64)
    k = k.expand(len(rows), 1, 5, 5)
    v = torch.tensor([1.0, 2, 4, 8, 16], dtype=torch.float64).view(1, 1, 5, 1)
    v = v.expand(len(rows), 1, 5, 1)
    expected = rows.softmax(-1) @ v[0, 0]
    for size in range(1, 6):
        for got in (
            flash_torch.flash_attention(q, k, v, block_k=size),
            flash_torch.split_kv_attention(q, k, v, size),
        ):
            torch.testing.assert_close(got[:, 0, 0], expected, atol=0, rtol=1e-9)


def test_a_cache_s_view_and_inputs_that_are_left_alone():
    """Keys and values with room behind them, as a cache hands them out."""
    q, k, v = tensors(5, 30)
    before = [x.clone() for x in (q, k, v)]
    view = k[:, :, :21], v[:, :, :21]
    for got in (
        flash_torch.flash_attention(q, *view, 2, 8),
        flash_torch.split_kv_attention(q, *view, 4),
    ):
        np.testing.assert_allclose(got, reference(q, *view), atol=1e-12)
    assert all(torch.equal(x, y) for x, y in zip(before, (q, k, v), strict=True))
    q.requires_grad_()
    assert not flash_torch.flash_attention(q, *view).requires_grad


class Largest(TorchDispatchMode):
    """Records how many numbers the largest tensor has that any operation returns."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.numbers = max(self.numbers, out.untyped_storage().nbytes() // out.itemsize)
        return out


def test_no_scores_of_all_queries_and_keys_are_ever_held():
    """The largest tensor is the input, or a block of scores; softmax by hand has T × S."""
    t = 2048
    q, k, v = tensors(t, t, 2, 1, 1, 4, torch.float32)
    with Largest() as by_blocks:
        flash_torch.flash_attention(q, k, v, 64, 128)
    assert by_blocks.numbers == max(q.numel(), 2 * 64 * 128)
    with Largest() as by_hand:
        (q @ k.mT).softmax(-1) @ v
    assert by_hand.numbers == 2 * t * t


def test_keys_in_the_future_are_not_read():
    q, k, v = tensors(6, 12)
    expected = reference(q[:, :, :2], k[:, :, :8], v[:, :, :8])
    k[:, :, 8:], v[:, :, 8:] = math.nan, math.nan
    got = flash_torch.flash_attention(q, k, v, 2, 8)[:, :, :2]
    np.testing.assert_allclose(got, expected, atol=1e-12)


@pytest.mark.parametrize("shift", [-1, 1, -4, 4])
def test_a_mask_that_is_off_would_show(shift):
    q, k, v = tensors(6, 14)
    mask = torch.ones(6, 14, dtype=torch.bool).tril(14 - 6 + shift)
    wrong = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, enable_gqa=True
    )
    assert (flash_torch.flash_attention(q, k, v, 3, 4) - wrong).abs().max() > 1e-2


def test_a_dropped_block_and_a_plain_mean_would_show():
    q, k, v = tensors(1, 14)
    got = flash_torch.split_kv_attention(q, k, v, 3)
    dropped = reference(q, k[:, :, :12], v[:, :, :12])
    parts = [reference(q, k[:, :, i : i + 7], v[:, :, i : i + 7]) for i in (0, 7)]
    for wrong in (dropped, np.mean(parts, axis=0)):
        assert np.abs(got.numpy() - wrong).max() > 1e-2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q, k, v: flash_torch.flash_attention(q, k, v, 0), "block_q must be an integer"),
        (lambda q, k, v: flash_torch.flash_attention(q, k, v, 1, 0), "block_k must be an integer"),
        (lambda q, k, v: flash_torch.split_kv_attention(q, k, v, 0), "n_splits must be"),
        (lambda q, k, v: flash_torch.flash_attention(k, q, q), "T = 5 queries, k only S = 2"),
        (lambda q, k, v: flash_torch.split_kv_attention(q[:, :3], k, v, 2), "do not fit together"),
        (lambda q, k, v: flash_torch.flash_attention(q[:, :3], k, v), "do not fit together"),
    ],
)
def test_errors_name_what_is_wrong(call, message):
    q, k, v = tensors(2, 5, 2, 2) if "T = 5" in message else tensors(2, 5)
    with pytest.raises(ValueError, match=message):
        call(q, k, v)
