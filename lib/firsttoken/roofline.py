"""The roofline: FLOPs and bytes of a computation, and the time that a machine needs for both."""

import math
from dataclasses import dataclass

from firsttoken.architectures import Architecture
from firsttoken.architectures.layers import (
    Attention,
    CompressedAttention,
    LatentAttention,
    Recurrent,
)
from firsttoken.checks import check_count
from firsttoken.hardware import Accelerator
from firsttoken.kv_cache.sizes import state_bytes
from firsttoken.units import bytes_per_element


@dataclass(frozen=True)
class Cost:
    """What a computation does and what it moves; costs of successive steps add.

    Holds:  for counts. The time of a sum lets its steps overlap: at most the sum of their times.
    Units:  FLOPs (a multiply-add is two), bytes to and from memory.

    >>> Cost(600, 2) + Cost(0, 4)
    Cost(flops=600, bytes=6)
    """

    flops: float
    bytes: float

    def __add__(self, other: "Cost") -> "Cost":
        if not isinstance(other, Cost):
            return NotImplemented
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    @property
    def intensity(self) -> float:
        """FLOPs per byte moved; infinite where nothing is moved."""
        return self.flops / self.bytes if self.bytes else math.inf

    def time(self, accelerator: Accelerator, dtype: str = "bf16") -> float:
        """Return the least time this takes: computing and moving overlap perfectly.

        A lower bound. Real kernels reach neither peak.

        Holds:  where every byte comes from memory. What a cache still has is read in less time.
        Units:  seconds
        Raises: ValueError where the accelerator lists no rate for the dtype.

        >>> from firsttoken.hardware import ACCELERATORS
        >>> Cost(flops=989e12, bytes=2 * 3.35e12).time(ACCELERATORS["H100-SXM"])
        2.0
        """
        return max(self.flops / accelerator.peak(dtype), self.bytes / accelerator.bandwidth)


def attainable_flops(intensity: float, accelerator: Accelerator, dtype: str = "bf16") -> float:
    """Return the roof over an intensity: memory's slope up to the ridge point, then the peak.

    Holds:  as an upper bound where every byte comes from memory. Data that a cache still has can
            pass the slope; nothing passes the peak.
    Units:  FLOP/byte in, FLOP/s out
    Raises: ValueError for a negative intensity, and where the accelerator lists no rate.
    Source: Williams et al. 2009, doi:10.1145/1498765.1498785

    >>> from firsttoken.hardware import ACCELERATORS
    >>> attainable_flops(1, ACCELERATORS["A100-80GB"]), attainable_flops(1e4, ACCELERATORS["M1"])
    (2039000000000.0, 2600000000000.0)
    """
    if not intensity >= 0:
        raise ValueError(f"intensity must not be negative, got {intensity!r}")
    return min(accelerator.peak(dtype), intensity * accelerator.bandwidth)


def matmul_cost(m: int, k: int, n: int, dtype: str = "bf16") -> Cost:
    """Return the cost of (m, k) times (k, n), each matrix moved once.

    The intensity is 1 / (1/m + 1/k + 1/n) in a two-byte dtype: close to m, the rows that share the
    weights, as long as m is small against k and n.

    Holds:  while a cache keeps what is used again. With 50 MB of it, square bf16 matrices from
            about 10,000 on are read more than once: too few bytes, but there FLOPs decide.
    Units:  FLOPs, bytes
    Raises: ValueError for sizes that are no counts and an unknown dtype.

    >>> matmul_cost(1, 4096, 4096).intensity  # one row, as in decoding a single sequence
    0.9995...
    """
    _check(m=m, k=k, n=n)
    return Cost(2 * m * k * n, (m * k + k * n + m * n) * bytes_per_element(dtype))


def mlp_cost(tokens: int, d_model: int, d_ff: int, gated: bool = True, dtype: str = "bf16") -> Cost:
    """Return the cost of the MLP: three matrices where it is gated, else two.

    Input, weights, the inner products and the output are moved once each; the activation and the
    product with the gate happen on the way.

    Holds:  as a lower bound. An activation in a program of its own makes what moves of the inner
            products three times as much, four times without a gate: too few bytes where tokens are
            many.
    Units:  FLOPs, bytes
    Raises: ValueError for sizes that are no counts and an unknown dtype.

    >>> mlp_cost(64, 5120, 13824).intensity < 64
    True
    """
    _check(tokens=tokens, d_model=d_model, d_ff=d_ff)
    inner = 2 if gated else 1
    weights = (inner + 1) * d_model * d_ff
    moved = weights + 2 * tokens * d_model + inner * tokens * d_ff
    return Cost(2 * tokens * weights, moved * bytes_per_element(dtype))


def attention_cost(
    batch: int,
    t: int,
    s: int,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    dtype: str = "bf16",
    causal: bool = False,
) -> Cost:
    """Return the cost of attention from T new tokens to S attended ones, in one layer.

    FLOPs are those of the two matrix products; with `causal` only visible pairs count,
    T·S - T(T-1)/2. Queries, keys, values and output are moved once each, the scores never.
    Without a mask the intensity in a two-byte dtype is G·S·T / (S + G·T), G query heads to a KV
    head: S/2 in a multi-head prefill (T = S), about G in decoding (T = 1), whatever the batch.

    Holds:  in one fused kernel, for texts with keys of their own. Scores that go to memory, and
            keys read again for each block of queries, add bytes; the arithmetic of the softmax is
            not counted. So both figures are lower bounds.
    Units:  FLOPs, bytes
    Raises: ValueError for sizes that are no counts, heads that do not divide, an unknown dtype,
            and for more new than attended tokens under a causal mask.

    >>> attention_cost(1, 1, 4096, 32, 32, 128).intensity
    0.9997...
    >>> attention_cost(1, 1, 4096, 32, 8, 128).intensity
    3.9960...
    """
    _check(batch=batch, t=t, s=s, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim)
    if n_kv_heads == 0 or n_heads % n_kv_heads:
        raise ValueError(f"n_heads {n_heads} must be a multiple of n_kv_heads {n_kv_heads}")
    pairs = _visible_pairs(t, s) if causal else t * s
    moved = 2 * n_heads * t + 2 * n_kv_heads * s
    return Cost(
        4 * batch * n_heads * head_dim * pairs,
        batch * head_dim * moved * bytes_per_element(dtype),
    )


def model_cost(
    arch: Architecture,
    batch: int,
    t: int,
    s: int,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
) -> Cost:
    """Return the cost of one forward pass: T new tokens per sequence, S attended, T among them.

    Decoding is T = 1, a prefill in one go T = S. FLOPs: two per token and weight of a matrix
    (`arch.n_matmul_params`), and causal attention. Logits are counted for all T tokens. Bytes: the
    weights once (all of `n_params`, though of an input embedding only rows are read; of experts
    those that the tokens are expected to visit) and the keys and values that each layer attends
    to. Activations are left out: small in decoding, and in a long prefill the FLOPs decide.

    A layer with a window attends to its window, one with an index (sparse attention) to the `top_k`
    tokens that it chooses. Layers that share a cache read it once each. A recurrent layer reads and
    writes its state once.
    Latent attention takes the cheaper of its two forms: on the latents (decoding), or on keys and
    values made from them again (prefill).

    Holds:  to about a tenth. An untied input embedding makes up to 8 % of the bytes too many (dense
            presets, small batches), activations near the ridge point 6 to 11 % too few. An
            engine that makes only the last token's logits saves FLOPs of a prefill: a fifth of them
            in Llama-3.2-1B, 1 % in Llama-2-13B.
    Units:  FLOPs, bytes
    Raises: ValueError for sizes that are no counts, more new than attended tokens, an unknown
            dtype.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> cost = model_cost(ARCHITECTURES["Llama-2-13B"], batch=64, t=1, s=1024)
    >>> round(cost.intensity)
    21
    """
    _check(batch=batch, t=t, s=s)
    weights = arch.n_touched_params(batch * t) * bytes_per_element(dtype)
    mixing, read = 0, 0
    for layer, count in arch.kinds.items():
        for mixer in layer.mixers:
            if isinstance(mixer, Recurrent):
                # Decay, what is written and what is read: about six FLOPs per element of a state.
                mixing += count * 6 * t * mixer.state_elements
            else:
                flops, elements = _attended(mixer, t, s)
                mixing += count * flops
                read += count * elements
    # A state is read and written once.
    cache = read * bytes_per_element(kv_dtype) + 2 * state_bytes(arch, dtype=kv_dtype)
    return Cost(
        batch * (2 * t * arch.n_matmul_params + mixing),
        weights + batch * cache,
    )


def _attended(mixer: Attention | LatentAttention, t: int, s: int) -> tuple[int, int]:
    """Return the FLOPs of one layer's attention, and the elements it reads, for one sequence."""
    reach = s if mixer.window is None else mixer.window
    if mixer.chunked:
        pairs, seen = _pairs_in_chunks(t, s, reach)
    else:
        pairs, seen = _visible_pairs(t, s, reach), min(s, reach + max(0, t - 1))
    index = 2 * mixer.index_heads * mixer.index_dim * pairs
    if isinstance(mixer, CompressedAttention):
        return _compressed(mixer, t, s, pairs, seen)
    read = mixer.index_dim * seen
    if mixer.top_k is not None:
        pairs = _visible_pairs(t, s, min(reach, mixer.top_k))
        seen = min(seen, mixer.top_k * t)
    read += (mixer.kv_elements - mixer.index_dim) * seen
    if isinstance(mixer, Attention):
        return index + 2 * mixer.n_heads * (mixer.head_dim + mixer.value_dim) * pairs, read
    on_latents = 2 * mixer.latent_dim + mixer.rope_head_dim
    plain_dim = mixer.head_dim - mixer.rope_head_dim
    expand = (s - t) * mixer.latent_dim * (plain_dim + mixer.v_head_dim)
    on_heads = mixer.head_dim + mixer.v_head_dim
    return index + 2 * mixer.n_heads * min(pairs * on_latents, pairs * on_heads + expand), read


def _compressed(
    mixer: CompressedAttention, t: int, s: int, pairs: int, seen: int
) -> tuple[int, int]:
    """Return the same where a window stands beside entries of several tokens each."""
    read, index = mixer.kv_elements * seen, 0
    if mixer.tokens_per_entry is not None:
        every, size = s // mixer.tokens_per_entry, mixer.tokens_per_entry
        chosen = every if mixer.top_k is None else min(every, mixer.top_k)
        pairs += _entries(s, size, chosen) - _entries(s - t, size, chosen)
        looked = _entries(s, size, every) - _entries(s - t, size, every)
        index = 2 * mixer.index_heads * mixer.index_dim * looked
        read += mixer.kv_elements * min(every, chosen * t) + mixer.index_dim * every
    return index + 4 * mixer.n_heads * mixer.head_dim * pairs, read


def _entries(n: int, size: int, most: int) -> int:
    """Sum over the first n positions the full entries before each, of `most` at most."""
    inside = min(n, most * size - 1) if most else 0
    whole, rest = divmod(inside, size)
    return size * whole * (whole - 1) // 2 + whole * (rest + 1) + most * (n - inside)


def _pairs_in_chunks(t: int, s: int, chunk: int) -> tuple[int, int]:
    """Count the pairs where a query sees its own chunk alone, and the positions that are seen."""
    first = s - t
    begin = first - first % chunk  # of the chunk of the first query
    before = _visible_pairs(first - begin, first - begin) if first > begin else 0
    whole, rest = divmod(s - begin, chunk)
    pairs = whole * _visible_pairs(chunk, chunk) + _visible_pairs(rest, rest) - before
    return pairs, s - begin


def _visible_pairs(t: int, s: int, window: int | None = None) -> int:
    """Count the (query, key) pairs under a causal mask, query i at position S - T + i."""
    if t > s:
        raise ValueError(f"t must be at most s: {t} new tokens cannot be among {s} attended")
    reach = s if window is None else window
    first = s - t + 1  # what the first query sees without a window
    n_growing = min(t, max(0, reach - first + 1))  # the queries that the window does not cut
    grown = n_growing * first + n_growing * (n_growing - 1) // 2
    return grown + (t - n_growing) * reach


def _check(**sizes: int) -> None:
    for name, value in sizes.items():
        check_count(name, value)
