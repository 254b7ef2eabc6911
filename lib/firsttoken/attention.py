"""Attention over cached keys and values: causal, windowed, with sinks, for MHA, GQA and MQA."""

import math

import numpy as np

Array = np.ndarray


def attention(
    q: Array,
    k: Array,
    v: Array,
    causal: bool = True,
    window: int | None = None,
    sinks: int = 0,
    scale: float | None = None,
) -> Array:
    """Return the attention of T new queries to S keys and values.

    Each query is compared with every key that it may see; the softmax of the scores weighs
    the values. The queries are the last T of the S positions: query i sits at position
    S - T + i. One function serves all head layouts: query head n reads KV head n // G with
    G = N / K, so that K = N is multi-head and K = 1 multi-query attention.

    `causal` hides later positions. `window` lets a query see that many positions, itself
    included, and `sinks` the first positions of the sequence besides. `scale` multiplies the
    scores; None means 1/√H.

    Shapes: q (B, N, T, H); k, v (B, K, S, H); result (B, N, T, H)
    Raises: ValueError for shapes that do not fit together, T > S, a window below 1 or without
            `causal`, negative sinks.
    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 1; Ainslie et al. 2023, arXiv:2305.13245,
            sec. 2.2 (grouped queries); Xiao et al. 2023, arXiv:2309.17453, sec. 3 (sinks)

    >>> q, k = np.zeros((1, 1, 2, 1)), np.zeros((1, 1, 2, 1))  # equal scores: plain means
    >>> attention(q, k, v=np.array([[[[2.0], [4.0]]]])).ravel().tolist()
    [2.0, 3.0]
    """
    _check_shapes(q, k, v)
    _check_window(causal, window, sinks)
    batch, n_heads, n_new, head_dim = q.shape
    n_kv_heads, n_keys = k.shape[1:3]
    group = n_heads // n_kv_heads
    scale = 1 / math.sqrt(head_dim) if scale is None else scale

    # The G query heads of a group become rows of one matrix, so that their K and V head is
    # read once and never copied.
    rows = (q * scale).reshape(batch, n_kv_heads, group * n_new, head_dim)  # [B, K, G·T, H]
    scores = rows @ k.swapaxes(2, 3)  # [B, K, G·T, S]
    if n_new > 1 or (window is not None and window < n_keys):  # else the query sees every key
        visible = _visible(n_new, n_keys, causal, window, sinks)  # [T, S]
        by_query = scores.reshape(batch, n_kv_heads, group, n_new, n_keys)  # a view
        np.copyto(by_query, -np.inf, where=~visible)
    scores -= scores.max(axis=-1, keepdims=True, initial=-np.inf)  # exp cannot overflow
    weights = np.exp(scores, out=scores)
    mixed = (weights @ v) / weights.sum(axis=-1, keepdims=True)  # [B, K, G·T, H]
    return mixed.reshape(batch, n_heads, n_new, head_dim)


def _visible(n_new: int, n_keys: int, causal: bool, window: int | None, sinks: int) -> Array:
    """Say which keys each query may see: [T, S] of bool."""
    query = np.arange(n_keys - n_new, n_keys)[:, None]  # positions
    key = np.arange(n_keys)
    visible = np.ones((n_new, n_keys), dtype=bool)
    if window is not None:
        visible = (key > query - window) | (key < sinks)
    if causal:
        visible &= key <= query
    return visible


def _check_shapes(q: Array, k: Array, v: Array) -> None:
    fits = q.ndim == 4 and k.ndim == 4 and k.shape == v.shape
    fits = fits and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3]
    if not fits or k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"q {q.shape}, k {k.shape} and v {v.shape} do not fit together: expected "
            "q (B, N, T, H) and k, v (B, K, S, H) with N a multiple of K"
        )
    if q.shape[2] > k.shape[2]:
        raise ValueError(
            f"q holds T = {q.shape[2]} queries, k only S = {k.shape[2]} keys: expected T <= S"
        )


def _check_window(causal: bool, window: int | None, sinks: int) -> None:
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1 (a query sees itself), got {window}")
    if window is not None and not causal:
        raise ValueError(f"window {window} looks back only: expected causal=True, got {causal}")
    if sinks < 0:
        raise ValueError(f"sinks must be at least 0, got {sinks}")
