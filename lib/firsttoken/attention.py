"""Attention over cached keys and values: causal, windowed, with sinks, for MHA, GQA and MQA.

Beside it: the softmax that reads its scores once, latent attention (MLA), and how far stacked
windows reach.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import DTypeLike

from firsttoken.architectures import Architecture
from firsttoken.checks import check_count
from firsttoken.kv_cache import KVCache
from firsttoken.sampling.logits import as_floats

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

    Shapes: q (B, N, T, H); k, v (B, K, S, H); result (B, N, T, H). Values, and with them the
            result, may be of another size than queries and keys. float16 becomes float32.
    Raises: ValueError for shapes that do not fit together, T > S, a window below 1 or without
            `causal`, negative sinks.
    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 1; Ainslie et al. 2023, arXiv:2305.13245,
            sec. 2.2 (grouped queries); Xiao et al. 2023, arXiv:2309.17453, sec. 3 (sinks)

    >>> q, k = np.zeros((1, 1, 2, 1)), np.zeros((1, 1, 2, 1))  # equal scores: plain means
    >>> attention(q, k, v=np.array([[[[2.0], [4.0]]]])).ravel().tolist()
    [2.0, 3.0]
    """
    check_shapes(q, k, v)
    _check_window(causal, window, sinks)
    n_new, n_keys = q.shape[2], k.shape[2]
    visible = None
    if n_new > 1 or (window is not None and window < n_keys):  # else the query sees every key
        # Without a window, what can be hidden is among the keys of the new queries.
        seen = n_keys - n_new if window is None else 0
        visible = _visible(n_new, n_keys - seen, causal, window, sinks)
    return masked_attention(as_floats(q), k, v, visible, scale)


def masked_attention(
    q: Array, k: Array, v: Array, visible: Array | None = None, scale: float | None = None
) -> Array:
    """Return the attention of queries to those keys that a mask lets them see.

    `visible` is about the last M of the S keys; those before are seen by all. None: all keys are.
    Each query must see a key. `scale` is that of `attention`, which is this with a causal mask.

    Shapes: q (B, N, T, H); k, v (B, K, S, H); visible of bool, (T, M), or what broadcasts to
            (B, K, G, T, M) with G = N / K; result (B, N, T, H)
    Raises: ValueError for a mask that does not fit.

    >>> q, k = np.zeros((1, 1, 2, 1)), np.zeros((1, 1, 3, 1))  # equal scores: plain means
    >>> v = np.array([[[[3.0], [1.0], [5.0]]]])  # of a text, and of two guesses for what follows
    >>> masked_attention(q, k, v, np.eye(2, dtype=bool)).ravel().tolist()
    [2.0, 4.0]
    """
    batch, n_heads, n_new, head_dim = q.shape
    n_kv_heads, n_keys = k.shape[1:3]
    group = n_heads // n_kv_heads
    scale = 1 / math.sqrt(head_dim) if scale is None else scale

    # The G query heads of a group become rows of one matrix, so that their K and V head is
    # read once and never copied.
    rows = (q * scale).reshape(batch, n_kv_heads, group * n_new, head_dim)  # [B, K, G·T, H]
    scores = rows @ k.swapaxes(2, 3)  # [B, K, G·T, S]
    if visible is not None:
        if visible.shape[-2] != n_new or not n_new <= visible.shape[-1] <= n_keys:
            raise ValueError(
                f"visible {visible.shape} must be (…, T, M) with T = {n_new} <= M <= S = {n_keys}"
            )
        by_query = scores.reshape(batch, n_kv_heads, group, n_new, n_keys)  # a view
        np.copyto(by_query[..., n_keys - visible.shape[-1] :], -np.inf, where=~visible)
    scores -= scores.max(axis=-1, keepdims=True, initial=-np.inf)  # exp cannot overflow
    weights = np.exp(scores, out=scores)
    mixed = (weights @ v) / weights.sum(axis=-1, keepdims=True)  # [B, K, G·T, H]
    return mixed.reshape(batch, n_heads, n_new, v.shape[3])


def online_softmax(scores: Array, values: Array) -> Array:
    """Return the mean of the values weighted by the softmax of the scores, in one pass over them.

    The softmax subtracts the largest score, so that exp cannot overflow, and that is known only at
    the end. So what is summed so far is kept relative to the largest score so far, and shrunk
    whenever a larger one comes.

    Shapes: scores (…, S); values (…, S, H); result (…, H). float16 becomes float32.
    Raises: ValueError for shapes that do not fit together, for NaN or inf among the scores, and
            where all of them are -inf.
    Source: Milakov & Gimelshein 2018, arXiv:1805.02867, alg. 3

    >>> online_softmax(np.log([1.0, 3.0]), np.array([[0.0], [4.0]])).round(12).tolist()
    [3.0]
    """
    if scores.ndim == 0 or values.shape[:-1] != scores.shape:
        raise ValueError(f"scores {scores.shape} must be (…, S), values {values.shape} (…, S, H)")
    if not (scores < np.inf).all():
        raise ValueError("scores must be finite or -inf, got NaN or inf")
    if (scores == -np.inf).all(axis=-1).any():
        raise ValueError("scores are all -inf in a row: there is nothing to take a mean of")
    scores = as_floats(scores)
    mean = SoftmaxMean((*scores.shape[:-1], 1, values.shape[-1]), np.result_type(scores, values))
    for i in range(scores.shape[-1]):
        here = slice(i, i + 1)
        mean.add(scores[..., None, here], [values[..., here, :]])
    return mean.result()[..., 0, :]


class SoftmaxMean:
    """Means weighted by a softmax whose scores come in parts: the state of an online softmax.

    `peak` is the largest score so far, `total` the sum of the weights and `mixed` the weighted sum
    of the values, both relative to the peak.

    Shapes: mixed (…, T, H); peak, total (…, T, 1); T means of S values with scores (…, T, S)
    Source: Milakov & Gimelshein 2018, arXiv:1805.02867, alg. 3 and sec. 3.1 (parts)

    >>> mean = SoftmaxMean((1, 1))
    >>> for score, value in ((0.0, 0.0), (np.log(3.0), 4.0)):
    ...     mean.add(np.array([[score]]), [np.array([[value]])])
    >>> mean.result().round(12).tolist()
    [[3.0]]
    """

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike = float) -> None:
        self.peak = np.full((*shape[:-1], 1), -np.inf, dtype=dtype)
        self.total, self.mixed = np.zeros_like(self.peak), np.zeros(shape, dtype=dtype)

    def add(self, scores: Array, values: Sequence[Array]) -> None:
        """Add a part: scores (…, T, s), and its values (…, s, H) as arrays that follow each other.

        Scores may be -inf: nothing to weigh.
        """
        higher = np.maximum(self.peak, scores.max(axis=-1, keepdims=True))
        reference = np.where(higher == -np.inf, 0, higher)  # -inf: nothing to weigh so far
        shrink, weights = np.exp(self.peak - reference), scores - reference
        np.exp(weights, out=weights)
        self.peak = higher
        self.total = self.total * shrink + weights.sum(axis=-1, keepdims=True)
        self.mixed *= shrink
        mixed, start = self.mixed, 0
        for part in values:
            end = start + part.shape[-2]
            mixed += weights[..., start:end] @ part
            start = end

    def result(self) -> Array:
        """Return the means, (…, T, H)."""
        return self.mixed / self.total


class LatentAttention:
    """Attention whose cache is one short vector per token, for all heads together (MLA).

    A token is compressed to a latent c of d_c numbers. From it head n makes its key W_UK c and
    its value W_UV c (matrices of its own), so that caching c is enough. The order of tokens
    cannot enter these keys: RoPE turns a key by an angle of its position, and the turn would
    stand between W_UK and every query. So d_r more numbers, one rotated key for all heads,
    carry the position, and the query has a rotated part to meet it.

    Two forms give the same result. The plain one makes every head's keys and values again from
    all cached latents. The absorbed one never makes them: q·(W_UK c) = (W_UKᵀ q)·c, and a mean
    of W_UV c is W_UV times the mean of c. It is multi-query attention with one key of d_c + d_r
    numbers, whose first d_c are the value.

    `weights` go by the names of Hugging Face's DeepSeek attention; `frequencies` say how far one
    position turns each pair of the rotary part (`rope.rope_frequencies`). `scale` multiplies the
    scores; None means 1/√(size of a query). A call attends from the new tokens x to themselves
    and to what `cache` holds for `layer`, and adds them to it.

    Shapes: x (B, T, D), result as x; frequencies (d_r/2,); weights: see `weight_shapes`
    Raises: ValueError for an architecture without a latent or with biases, and for weights,
            frequencies or x of other names or shapes.
    Source: DeepSeek-V2, arXiv:2405.04434, sec. 2.1.2, 2.1.3 and appendix C; transformers 5.23,
            modeling_deepseek_v3.py (names, pairs of neighbours in RoPE)

    >>> arch = Architecture("toy", 1, 8, 2, 2, 3, 8, 9, latent_dim=4, rope_head_dim=2, v_head_dim=1)
    >>> shapes = LatentAttention.weight_shapes(arch)
    >>> shapes["kv_a_proj_with_mqa.weight"]  # down: a token to its latent and rotary key
    (6, 8)
    >>> mla = LatentAttention(arch, {n: np.ones(s) for n, s in shapes.items()}, np.ones(1))
    >>> cache = KVCache(arch, batch=1, capacity=10)
    >>> mla(np.ones((1, 3, 8)), cache, absorbed=True).shape, cache.keys(0).shape
    ((1, 3, 8), (1, 1, 3, 6))
    """

    def __init__(
        self,
        arch: Architecture,
        weights: Mapping[str, Array],
        frequencies: Array,
        scale: float | None = None,
        norm_eps: float = 1e-6,
    ) -> None:
        _check_latent(arch, weights, frequencies)
        self.arch, self.frequencies, self.norm_eps = arch, frequencies, norm_eps
        self.scale = 1 / math.sqrt(arch.head_dim) if scale is None else scale
        self.latent_dim, rope_head_dim, _ = _latent_sizes(arch)
        self.plain_dim = arch.head_dim - rope_head_dim
        self.weights = {name.removesuffix(".weight"): w for name, w in weights.items()}
        up = self.weights["kv_b_proj"].reshape(arch.n_heads, -1, self.latent_dim)
        self.up_key = up[:, : self.plain_dim]  # [N, H - d_r, d_c]
        self.up_value = up[:, self.plain_dim :]  # [N, H_v, d_c]: H_v numbers to a value

    @staticmethod
    def weight_shapes(arch: Architecture) -> dict[str, tuple[int, ...]]:
        """Return the tensors of one layer: Hugging Face's name to shape (out, in)."""
        d, n, (c, r, v) = arch.d_model, arch.n_heads, _latent_sizes(arch)
        query: dict[str, tuple[int, ...]]
        if arch.q_latent_dim is None:
            query = {"q_proj": (n * arch.head_dim, d)}
        else:  # queries go through a latent as well: fewer weights, nothing to cache
            query = {
                "q_a_proj": (arch.q_latent_dim, d),
                "q_a_layernorm": (arch.q_latent_dim,),
                "q_b_proj": (n * arch.head_dim, arch.q_latent_dim),
            }
        shapes = query | {
            "kv_a_proj_with_mqa": (c + r, d),
            "kv_a_layernorm": (c,),
            "kv_b_proj": (n * (arch.head_dim - r + v), c),
            "o_proj": (d, n * v),
        }
        return {f"{name}.weight": shape for name, shape in shapes.items()}

    def __call__(
        self, x: Array, cache: KVCache | None = None, layer: int = 0, absorbed: bool = False
    ) -> Array:
        """Return what each new token reads: [B, T, D] to [B, T, D]."""
        if x.ndim != 3 or x.shape[2] != self.arch.d_model:
            raise ValueError(f"x {x.shape} must be (B, T, D) with D {self.arch.d_model}")
        start = 0 if cache is None else cache.length
        positions = np.arange(start, start + x.shape[1])
        angles = (positions[:, None] * self.frequencies).astype(x.dtype)  # [T, d_r/2]
        q = self._queries(x, angles)  # [B, N, T, H]
        cached = self._compress(x, angles)  # [B, 1, T, d_c + d_r]
        if cache is not None:
            cache.append(layer, cached)
            cached = cache.keys(layer)  # [B, 1, S, d_c + d_r]
        attend = self._absorbed if absorbed else self._plain
        mixed = attend(q, cached, self.arch.layer_windows[layer])  # [B, N, T, H_v]
        return mixed.swapaxes(1, 2).reshape(*x.shape[:2], -1) @ self.weights["o_proj"].T

    def _queries(self, x: Array, angles: Array) -> Array:
        """Make the queries, their last d_r numbers rotated: [B, N, T, H]."""
        if self.arch.q_latent_dim is None:
            q = x @ self.weights["q_proj"].T
        else:
            q = rms_norm(
                x @ self.weights["q_a_proj"].T, self.weights["q_a_layernorm"], self.norm_eps
            )
            q = q @ self.weights["q_b_proj"].T
        q = q.reshape(*x.shape[:2], self.arch.n_heads, -1).swapaxes(1, 2)
        plain, rotary = q[..., : self.plain_dim], q[..., self.plain_dim :]
        return np.concatenate([plain, _rotate_pairs(rotary, angles)], axis=-1)

    def _compress(self, x: Array, angles: Array) -> Array:
        """Make what is cached, the latent and the rotary key: [B, 1, T, d_c + d_r]."""
        both = x @ self.weights["kv_a_proj_with_mqa"].T
        latent, rotary = both[..., : self.latent_dim], both[..., self.latent_dim :]
        latent = rms_norm(latent, self.weights["kv_a_layernorm"], self.norm_eps)
        return np.concatenate([latent, _rotate_pairs(rotary, angles)], axis=-1)[:, None]

    def _plain(self, q: Array, cached: Array, window: int | None) -> Array:
        """Attend on keys and values that every head makes from the latents."""
        latent, rotary = cached[..., : self.latent_dim], cached[..., self.latent_dim :]
        k = latent @ self.up_key.swapaxes(1, 2)  # [B, N, S, H - d_r]
        v = latent @ self.up_value.swapaxes(1, 2)  # [B, N, S, H_v]
        shared = np.broadcast_to(rotary, (*k.shape[:3], rotary.shape[3]))
        return attention(q, np.concatenate([k, shared], axis=-1), v, True, window, scale=self.scale)

    def _absorbed(self, q: Array, cached: Array, window: int | None) -> Array:
        """Attend on the latents themselves, with W_UK moved into the query and W_UV behind."""
        plain, rotary = q[..., : self.plain_dim], q[..., self.plain_dim :]
        q = np.concatenate([plain @ self.up_key, rotary], axis=-1)  # [B, N, T, d_c + d_r]
        latent = cached[..., : self.latent_dim]
        mixed = attention(q, cached, latent, True, window, scale=self.scale)  # [B, N, T, d_c]
        return mixed @ self.up_value.swapaxes(1, 2)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Scale each vector to a root mean square of one, then each feature by its weight.

    Shapes: x (…, D), weight (D,); result (…, D)
    Source: Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4

    >>> rms_norm(np.array([3.0, 4.0, 0.0, 0.0]), np.ones(4), eps=0.0).tolist()
    [1.2, 1.6, 0.0, 0.0]
    """
    mean_square = np.vecdot(x, x)[..., None] / x.shape[-1]
    return x / np.sqrt(mean_square + eps) * weight


def receptive_field(arch: Architecture, n_tokens: int, sinks: int = 0) -> Array:
    """Return which input tokens can reach which output tokens through all layers.

    A token of one layer sees its window, and what those tokens have seen in the layers below:
    L windows of w tokens reach L·(w - 1) tokens back, not L·w. Layers without a window see
    everything before, and every window sees the first `sinks` tokens. A layer that reads the keys
    and values of an earlier one (`arch.kv_source`) sees that layer's input, and so gains less.

    It is an upper bound: how much of a token arrives is another question.

    Shapes: result (n_tokens, n_tokens) of bool: [i, j] says whether output i can depend on input j
    Raises: ValueError for a negative number of tokens or sinks.
    Source: Jiang et al. 2023, arXiv:2310.06825, sec. 2 (w back per layer: theirs leaves out the
            token itself); Beltagy et al. 2020, arXiv:2004.05150, sec. 3.1 (w/2 to each side)

    >>> arch = Architecture("toy", 3, 8, 2, 2, 4, 16, 32, window=3)
    >>> receptive_field(arch, 10)[-1].sum()  # itself, and 3 layers of 2 more
    np.int64(7)
    """
    check_count("n_tokens", n_tokens)
    check_count("sinks", sinks)
    inputs = [np.eye(n_tokens, dtype=bool)]  # of each layer: what it depends on
    for layer, window in enumerate(arch.layer_windows):
        source = layer if arch.kv_source is None else arch.kv_source[layer]
        seen = _visible(n_tokens, n_tokens, True, window, sinks) @ inputs[source]
        inputs.append(inputs[layer] | seen)
    return inputs[-1]


def _rotate_pairs(x: Array, angles: Array) -> Array:
    """Turn each pair (x_2i, x_2i+1) by its angle: RoPE as DeepSeek pairs the numbers."""
    a, b = x[..., ::2], x[..., 1::2]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)


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


def check_shapes(q: Array, k: Array, v: Array) -> None:
    """Raise a ValueError unless queries, keys and values fit together, as `attention` has them."""
    fits = q.ndim == 4 and k.ndim == 4 and v.ndim == 4 and k.shape[:3] == v.shape[:3]
    fits = fits and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3]
    if not fits or k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"q {q.shape}, k {k.shape} and v {v.shape} do not fit together: expected "
            "q (B, N, T, H), k (B, K, S, H) and v (B, K, S, any) with N a multiple of K"
        )
    if q.shape[2] > k.shape[2]:
        raise ValueError(
            f"q holds T = {q.shape[2]} queries, k only S = {k.shape[2]} keys: expected T <= S"
        )


def _check_window(causal: bool, window: int | None, sinks: int) -> None:
    if window is not None:
        check_count("window", window, at_least=1)  # a query sees itself
        if not causal:
            raise ValueError(f"window {window} looks back only: expected causal=True, got {causal}")
    check_count("sinks", sinks)


def _latent_sizes(arch: Architecture) -> tuple[int, int, int]:
    """Return the sizes of the latent, its rotary key and a value."""
    if arch.latent_sizes is None:
        raise ValueError(f"arch {arch.name}: expected latent_dim, got None")
    return arch.latent_sizes


def _check_latent(arch: Architecture, weights: Mapping[str, Array], frequencies: Array) -> None:
    _, rope_head_dim, _ = _latent_sizes(arch)
    if arch.qkv_bias or arch.out_bias:
        raise ValueError(f"arch {arch.name}: expected attention without biases")
    if np.shape(frequencies) != (rope_head_dim // 2,) or rope_head_dim % 2:
        raise ValueError(
            f"frequencies {np.shape(frequencies)} must be one per pair of the "
            f"{rope_head_dim} rotary numbers"
        )
    shapes = LatentAttention.weight_shapes(arch)
    if set(weights) != set(shapes):
        raise ValueError(f"weights hold {sorted(weights)}, expected {sorted(shapes)}")
    for name, shape in shapes.items():
        if np.shape(weights[name]) != shape:
            raise ValueError(f"{name} has shape {np.shape(weights[name])}, expected {shape}")
