"""FlashAttention in PyTorch: the reference's results, torch's own, and no T × S scores."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from firsttoken.attention import attention
from firsttoken.flash import flash_torch


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
    blocks=st.tuples(st.integers(1, 14), st.integers(1, 14)),
    n_splits=st.integers(1, 14),
    causal=st.booleans(),
)
def test_equals_attention_for_any_sizes_and_blocks(sizes, heads, batch, blocks, n_splits, causal):
    q, k, v = tensors(*sizes, *heads, batch, v_dim=5)
    expected = reference(q, k, v, causal)
    got = flash_torch.flash_attention(q, k, v, *blocks, causal)
    np.testing.assert_allclose(got, expected, atol=1e-12)
    got = flash_torch.split_kv_attention(q, k, v, n_splits, causal)
    np.testing.assert_allclose(got, expected, atol=1e-12)


ATTEND = [flash_torch.flash_attention, lambda *qkv: flash_torch.split_kv_attention(*qkv, 3)]


def test_half_precision_is_computed_with_in_single_and_else_the_widest_format():
    for attend, dtype in itertools.product(ATTEND, [torch.float16, torch.bfloat16]):
        q, k, v = (x.to(dtype) for x in tensors(70, 3000, head_dim=64))
        got = attend(q, k, v)
        assert got.dtype == torch.float32
        np.testing.assert_allclose(got, reference(*(x.double() for x in (q, k, v))), atol=1e-4)
        assert torch.allclose(attend(0 * q, k, torch.ones_like(v)), torch.ones(()), rtol=1e-5)
    for attend, wide in itertools.product(ATTEND, range(3)):
        inputs = tensors(6, 14, dtype=torch.float32)
        inputs[wide] = inputs[wide].double()
        got = attend(*inputs)
        assert got.dtype == torch.float64
        np.testing.assert_allclose(got, reference(*(x.double() for x in inputs)), atol=1e-12)


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


def test_all_is_computed_on_the_device_of_the_tensors():
    """On PyTorch's device without memory: a tensor made elsewhere would not fit the others."""
    q, k = torch.zeros(1, 4, 5, 8, device="meta"), torch.zeros(1, 2, 9, 8, device="meta")
    assert flash_torch.flash_attention(q, k, k, block_q=2, block_k=4, causal=True).is_meta
    assert flash_torch.split_kv_attention(q, k, k, 3, causal=True).is_meta


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


def test_a_block_of_scores_fits_half_a_core_s_cache_by_default():
    """512 KiB in float32 for each thread, as the docstring says, or what scores there are."""
    for shape, numbers in [((300, 600, 1, 1, 1, 1), 512 * 256), ((5, 5, 2, 1, 1, 2), 2 * 5 * 5)]:
        with Largest() as held:
            flash_torch.flash_attention(*tensors(*shape, torch.float32))
        assert held.numbers == numbers


def test_errors_name_what_is_wrong(subtests):
    q, k, v = tensors(2, 5)
    for call, message in [
        (lambda: flash_torch.flash_attention(q, k, v, 0), "block_q must be an integer"),
        (lambda: flash_torch.split_kv_attention(q, k, v, 0), "n_splits must be"),
        (lambda: flash_torch.flash_attention(k, q[:, :2], q[:, :2]), "T = 5 queries, k only S = 2"),
        (lambda: flash_torch.flash_attention(q[:, :3], k, v), "do not fit together"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            call()
