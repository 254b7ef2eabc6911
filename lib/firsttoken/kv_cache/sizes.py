"""What keys and values take, and what fits beside the weights, in closed form."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from numbers import Integral

from firsttoken.architectures import Architecture
from firsttoken.checks import check_count
from firsttoken.units import bytes_per_element


def kv_cache_bytes(
    arch: Architecture, n_tokens: int | Sequence[int], batch: int = 1, dtype: str = "bf16"
) -> int | float:
    """Return the bytes that the cached keys and values of a batch take.

    2 (a key and a value) · B · S · K · H · L · bytes per element, with K the KV heads. A windowed
    layer holds min(S, window) tokens; a layer that shares another's cache, none; a latent (MLA)
    layer one latent and one rotary key in place of all keys and values.

    `n_tokens` is one length for `batch` sequences, or a list of lengths, one per sequence.

    Holds:  for bare numbers. Scales come on top (`KVCache`: 3 % for int8 and heads of 64, an eighth
            for int4), and so do the empty places of last blocks. A cache that keeps what a window
            has left behind grows on. Texts that share a prefix may keep it once: then it is less.
    Units:  tokens in, bytes out; 2**30 of them are 1 GiB, which is 1.07 GB.
    Raises: ValueError for negative or fractional sizes, a batch beside a list of lengths, and an
            unknown dtype.
    Source: Kwon et al. 2023, arXiv:2309.06180, sec. 3 (one sequence of multi-head attention);
            DeepSeek-V2, arXiv:2405.04434, table 1 (grouped, multi-query and latent)

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> kv_cache_bytes(ARCHITECTURES["Llama-2-7B"], 4096) / 2**30
    2.0
    >>> kv_cache_bytes(ARCHITECTURES["Llama-3-8B"], [100, 28], dtype="int8")
    8388608
    """
    check_count("batch", batch)
    if isinstance(n_tokens, (int, Integral)):
        lengths, copies = [n_tokens], batch
    elif isinstance(n_tokens, (float, str)):
        raise ValueError(f"n_tokens must be an integer or a list of integers, got {n_tokens!r}")
    elif batch != 1:
        raise ValueError(f"batch must be 1 where n_tokens lists every sequence, got {batch}")
    else:
        lengths, copies = list(n_tokens), 1
    for length in lengths:
        check_count("n_tokens", length)
    stored = sum(
        count * layer.kept(length) for layer, count in arch.kinds.items() for length in lengths
    )
    return copies * stored * bytes_per_element(dtype)


def state_bytes(
    arch: Architecture, batch: int = 1, dtype: str = "bf16", state_dtype: str | None = None
) -> int | float:
    """Return the bytes of the states of recurrent layers: the same for every length.

    `dtype` is that of the convolutions' inputs; `state_dtype` None means the model's own.

    Holds:  for one state per sequence. An engine that keeps states to come back to, of a shared
            prefix or before a guess, keeps this for each: too few.
    Raises: ValueError for a batch that is no count, and an unknown dtype.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> state_bytes(ARCHITECTURES["Qwen3-Next-80B-A3B"]) / 2**20
    74.25
    """
    check_count("batch", batch)
    total: int | float = 0
    for layer, count in arch.kinds.items():
        if layer.recurrent is not None:
            stored = bytes_per_element(state_dtype or layer.recurrent.state_dtype)
            conv = layer.recurrent.conv_elements * bytes_per_element(dtype)
            total += count * (layer.recurrent.state_elements * stored + conv)
    return batch * total


def crossover_tokens(arch: Architecture, dtype: str = "bf16") -> float:
    """Return the context at which recurrent states take as many bytes as keys and values would.

    Those of attention layers like the model's own, one for each recurrent layer. In longer contexts
    the states take less. Infinite where no recurrent layer stands in for attention: a layer that
    has both keeps both.

    Holds:  at any batch, for a state in the model's own dtype. A cache of half the bits about
            doubles it.
    Raises: ValueError for a model without attention layers to compare with.
    """
    if not arch.kv_layers:
        raise ValueError(f"{arch.name} has no attention layer to make a twin of")
    n_replaced = sum(
        layer.recurrent is not None and layer.attention is None for layer in arch.layers
    )
    per_token = n_replaced * arch.kv_elements_per_layer * bytes_per_element(dtype)
    return state_bytes(arch, dtype=dtype) / per_token if per_token else math.inf


def max_batch(
    arch: Architecture,
    memory_bytes: float,
    n_tokens: int,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    workspace_bytes: float = 0,
) -> int:
    """Return how many sequences of `n_tokens` fit beside the weights; 0 if the weights do not.

    `workspace_bytes` is what activations and the runtime need on top.

    Holds:  for sequences that are all full and lie without gaps. Partly empty blocks make it too
            many (16 times for texts of one token in blocks of 16), as does a workspace left out;
            sequences that are shorter most of the time, or share a prefix, make it too few.
    Raises: ValueError for negative sizes, zero tokens and an unknown dtype.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> max_batch(ARCHITECTURES["Llama-2-13B"], 80e9, 1024)
    64
    """
    check_count("n_tokens", n_tokens, at_least=1)
    free = _free_bytes(arch, memory_bytes, dtype, workspace_bytes)
    one = kv_cache_bytes(arch, n_tokens, dtype=kv_dtype) + state_bytes(arch, dtype=kv_dtype)
    return max(0, int(free // one))


def max_context(
    arch: Architecture,
    memory_bytes: float,
    batch: int = 1,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    workspace_bytes: float = 0,
) -> int:
    """Return how many tokens each of `batch` sequences can hold beside the weights.

    0 if the weights do not fit. What the model was trained for (`arch.max_context`) is not looked
    at, with one exception: where every layer has a window the cache stops growing, and if it fits
    then only that figure is left to answer with.

    Holds:  as `max_batch`: too many tokens where the last block stays partly empty, or where
            `workspace_bytes` leaves out what a longer text needs.
    Raises: ValueError for negative sizes, an empty batch, an unknown dtype, and a cache without
            bound where `arch.max_context` is None.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> max_context(ARCHITECTURES["Llama-2-13B"], 80e9, batch=64)
    1029
    """
    check_count("batch", batch, at_least=1)
    free = _free_bytes(arch, memory_bytes, dtype, workspace_bytes)
    free -= state_bytes(arch, batch, kv_dtype)
    if free < 0:
        return 0

    def used(n_tokens: int) -> float:
        return kv_cache_bytes(arch, n_tokens, batch, kv_dtype)

    growth = sum(count * layer.growth for layer, count in arch.kinds.items())
    widest = max((window for window in arch.layer_windows if window is not None), default=0)
    if growth == 0 and used(widest) <= free:
        if arch.max_context is None:
            raise ValueError(
                "max_context: no layer's cache grows on and all of it fits, so memory sets no "
                "limit; expected an architecture with max_context, got None"
            )
        return arch.max_context
    # Beyond the widest window only the growing layers add, so that this bound is never reached.
    per_token = (growth or arch.kv_elements_per_token) * batch * bytes_per_element(kv_dtype)
    beyond = widest + int(free // per_token) + 2
    beyond += max(layer.entry_tokens for layer in arch.layers)  # a last entry may be unfinished
    return bisect_right(range(beyond), free, key=used) - 1


def _free_bytes(
    arch: Architecture, memory_bytes: float, dtype: str, workspace_bytes: float
) -> float:
    """Return what the weights and the workspace leave; negative where they do not fit."""
    for name, value in (("memory_bytes", memory_bytes), ("workspace_bytes", workspace_bytes)):
        if not value >= 0:
            raise ValueError(f"{name} must not be negative, got {value!r}")
    return memory_bytes - workspace_bytes - arch.n_params * bytes_per_element(dtype)
