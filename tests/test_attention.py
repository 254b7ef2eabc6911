"""Attention against torch's, its laws, and the off-by-one mistakes that must show."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.attention import attention


def tensors(t, s, n_heads=4, n_kv_heads=2, batch=2, head_dim=8, dtype=np.float32):
    rng = np.random.default_rng(0)
    shapes = (batch, n_heads, t, head_dim), *[(batch, n_kv_heads, s, head_dim)] * 2
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def visible(t, s, causal, window, sinks, shift=0):
    """The mask from its definition, one pair at a time; `shift` moves every query."""
    mask = np.zeros((t, s), dtype=bool)
    for i in range(t):
        query = s - t + i + shift
        for key in range(s):
            near = window is None or key >= query - (window - 1) or key < sinks
            mask[i, key] = near and (not causal or key <= query)
    return mask


def oracle(q, k, v, mask, scale=None):
    """torch's attention with K and V copied out to every query head."""
    groups = q.shape[1] // k.shape[1]
    q, k, v = (torch.from_numpy(x) for x in (q, k, v))
    k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.from_numpy(mask), scale=scale
    )
    return out.numpy()


MASKS = [(False, None, 0), (True, None, 0), (True, 1, 0), (True, 3, 0), (True, 3, 2), (True, 99, 1)]


@pytest.mark.parametrize(("causal", "window", "sinks"), MASKS)
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("t", "s"), [(1, 1), (1, 7), (7, 7), (3, 9)])
def test_equals_torch(t, s, n_kv_heads, causal, window, sinks):
    q, k, v = tensors(t, s, n_kv_heads=n_kv_heads)
    mask = visible(t, s, causal, window, sinks)
    got = attention(q, k, v, causal=causal, window=window, sinks=sinks)
    np.testing.assert_allclose(got, oracle(q, k, v, mask), atol=1e-5)
    assert got.dtype == np.float32


@given(
    s=st.integers(1, 12),
    share=st.floats(0, 1),
    window=st.none() | st.integers(1, 14),
    sinks=st.integers(0, 4),
    n_kv_heads=st.sampled_from([1, 2, 3, 6]),
    scale=st.none() | st.floats(0.1, 2),
)
def test_equals_torch_for_any_sizes(s, share, window, sinks, n_kv_heads, scale):
    t = 1 + round(share * (s - 1))
    q, k, v = tensors(t, s, n_heads=6, n_kv_heads=n_kv_heads, dtype=np.float64)
    mask = visible(t, s, True, window, sinks)
    got = attention(q, k, v, window=window, sinks=sinks, scale=scale)
    np.testing.assert_allclose(got, oracle(q, k, v, mask, scale), atol=1e-12)


@given(s=st.integers(1, 10), data=st.data())
def test_queries_in_chunks_equal_all_at_once(s, data):
    """What the cache rests on: a query needs the keys up to itself, no other query."""
    window = data.draw(st.none() | st.integers(1, 5))
    cut = data.draw(st.integers(0, s))
    q, k, v = tensors(s, s, dtype=np.float64)
    whole = attention(q, k, v, window=window, sinks=1)
    first = attention(q[:, :, :cut], k[:, :, :cut], v[:, :, :cut], window=window, sinks=1)
    rest = attention(q[:, :, cut:], k, v, window=window, sinks=1)
    np.testing.assert_allclose(np.concatenate([first, rest], axis=2), whole, atol=1e-12)


def test_output_is_a_mean_of_the_visible_values():
    """Equal keys: every visible value weighs the same, however large the score."""
    q, k, _ = tensors(2, 4, n_heads=1, n_kv_heads=1, batch=1, head_dim=1)
    v = np.array([1.0, 10.0, 100.0, 1000.0], dtype=np.float32).reshape(1, 1, 4, 1)
    flat = np.full_like(k, 1e3)
    assert attention(q * 1e3, flat, v).ravel().tolist() == [37.0, 277.75]
    assert attention(q * 1e3, flat, v, window=2).ravel().tolist() == [55.0, 550.0]
    assert attention(q * 1e3, flat, v, window=1, sinks=1).ravel().tolist() == [50.5, 500.5]
    assert attention(q * 1e3, flat, v, causal=False).ravel().tolist() == [277.75, 277.75]


def test_inputs_are_left_alone_and_no_queries_give_no_output():
    q, k, v = tensors(3, 5)
    before = [x.copy() for x in (q, k, v)]
    attention(q, k, v)
    assert all((x == y).all() for x, y in zip(before, (q, k, v), strict=True))
    assert attention(q[:, :, :0], k, v).shape == (2, 4, 0, 8)
    assert attention(q[:, :, :0], k[:, :, :0], v[:, :, :0]).shape == (2, 4, 0, 8)


@pytest.mark.parametrize("shift", [-1, 1])
@pytest.mark.parametrize("window", [None, 3])
def test_a_mask_off_by_one_would_show(window, shift):
    q, k, v = tensors(3, 9)
    wrong = visible(3, 9, True, window, 0, shift=shift)
    got = attention(q, k, v, window=window)
    assert np.abs(got - oracle(q, k, v, wrong)).max() > 1e-2


def test_a_window_off_by_one_would_show():
    q, k, v = tensors(3, 9)
    for wrong in (2, 4):
        mask = visible(3, 9, True, wrong, 0)
        assert np.abs(attention(q, k, v, window=3) - oracle(q, k, v, mask)).max() > 1e-2


def test_interleaved_kv_heads_would_show():
    """Query head n reads KV head n // G, not n % K."""
    q, k, v = tensors(3, 9)
    wrong = [x[:, [0, 1, 0, 1]] for x in (k, v)]
    assert np.abs(attention(q, k, v) - attention(q, *wrong)).max() > 1e-2


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        (((1, 2, 3, 4), (1, 2, 2, 4), (1, 2, 2, 4)), {}, "T = 3 queries, k only S = 2"),
        (((1, 3, 1, 4), (1, 2, 2, 4), (1, 2, 2, 4)), {}, "N a multiple of K"),
        (((1, 2, 1, 4), (1, 2, 2, 4), (1, 2, 3, 4)), {}, "do not fit together"),
        (((1, 2, 1, 4), (1, 2, 2, 5), (1, 2, 2, 5)), {}, "do not fit together"),
        (((1, 2, 1, 4), (2, 2, 2, 4), (2, 2, 2, 4)), {}, "do not fit together"),
        (((2, 1, 4), (2, 2, 4), (2, 2, 4)), {}, "do not fit together"),
        (((1, 2, 1, 4), (1, 0, 2, 4), (1, 0, 2, 4)), {}, "do not fit together"),
        (((1, 2, 1, 4), (1, 2, 2, 4), (1, 2, 2, 4)), {"window": 0}, "window must be at least 1"),
        (((1, 2, 1, 4), (1, 2, 2, 4), (1, 2, 2, 4)), {"sinks": -1}, "sinks must be at least 0"),
        (
            ((1, 2, 1, 4), (1, 2, 2, 4), (1, 2, 2, 4)),
            {"window": 2, "causal": False},
            "expected causal=True",
        ),
    ],
)
def test_errors_name_what_is_wrong(shapes, options, message):
    with pytest.raises(ValueError, match=message):
        attention(*[np.zeros(shape) for shape in shapes], **options)
