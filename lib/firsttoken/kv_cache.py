"""The KV cache: its size in closed form, what fits beside the weights, and the cache itself.

The closed forms need the standard library only; `KVCache` imports NumPy when one is built.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING

from firsttoken.architectures import Architecture
from firsttoken.units import bytes_per_element

if TYPE_CHECKING:
    import numpy as np

    Encode = Callable[[np.ndarray], tuple[np.ndarray, ...]]
    Decode = Callable[[tuple[np.ndarray, ...]], np.ndarray]


def kv_cache_bytes(
    arch: Architecture, n_tokens: int | Sequence[int], batch: int = 1, dtype: str = "bf16"
) -> int | float:
    """Return the bytes that the cached keys and values of a batch take.

    2 (a key and a value) · B · S · K · H · L · bytes per element, with K the KV heads. A windowed
    layer holds min(S, window) tokens; a layer that shares another's cache, none; a latent (MLA)
    layer one latent and one rotary key in place of all keys and values.

    `n_tokens` is one length for `batch` sequences, or a list of lengths, one per sequence.

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
    _check_size("batch", batch)
    if isinstance(n_tokens, Integral):
        lengths, copies = [n_tokens], batch
    elif isinstance(n_tokens, (float, str)):
        raise ValueError(f"n_tokens must be an integer or a list of integers, got {n_tokens!r}")
    elif batch != 1:
        raise ValueError(f"batch must be 1 where n_tokens lists every sequence, got {batch}")
    else:
        lengths, copies = list(n_tokens), 1
    for length in lengths:
        _check_size("n_tokens", length)
    stored = sum(
        length if window is None else min(length, window)
        for window in _stored_windows(arch)
        for length in lengths
    )
    return copies * stored * arch.kv_elements_per_layer * bytes_per_element(dtype)


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

    Raises: ValueError for negative sizes, zero tokens and an unknown dtype.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> max_batch(ARCHITECTURES["Llama-2-13B"], 80e9, 1024)
    64
    """
    _check_size("n_tokens", n_tokens, at_least=1)
    free = _free_bytes(arch, memory_bytes, dtype, workspace_bytes)
    return max(0, int(free // kv_cache_bytes(arch, n_tokens, dtype=kv_dtype)))


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

    Raises: ValueError for negative sizes, an empty batch, an unknown dtype, and a cache without
            bound where `arch.max_context` is None.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> max_context(ARCHITECTURES["Llama-2-13B"], 80e9, batch=64)
    1029
    """
    _check_size("batch", batch, at_least=1)
    free = _free_bytes(arch, memory_bytes, dtype, workspace_bytes)
    if free < 0:
        return 0

    def used(n_tokens: int) -> float:
        return kv_cache_bytes(arch, n_tokens, batch, kv_dtype)

    windows = _stored_windows(arch)
    n_growing = windows.count(None)
    widest = max((window for window in windows if window is not None), default=0)
    if n_growing == 0 and used(widest) <= free:
        if arch.max_context is None:
            raise ValueError(
                "max_context: every layer has a window and all of them fit, so memory sets no "
                "limit; expected an architecture with max_context, got None"
            )
        return arch.max_context
    # Beyond the widest window only the growing layers add, so that this bound is never reached.
    per_token = max(1, n_growing) * arch.kv_elements_per_layer * batch * bytes_per_element(kv_dtype)
    beyond = widest + int(free // per_token) + 2
    return bisect_right(range(beyond), free, key=used) - 1


class KVCache:
    """The keys and values of every layer, in arrays that are allocated once.

    `append` copies what a layer computed for its new tokens behind what it holds; `keys` and
    `values` return all of it, the new tokens included. Layers append one after another, and
    `length` is what every layer holds: between two layers of a pass it is still the old length.

    dtype "fp32" and "fp16" store plain numbers. "int8" stores codes with one fp16 scale per token
    and head; "int4" packs two codes into a byte, with one fp16 scale per 32 elements (or the
    largest power of two below that divides the head); "fp8" is e4m3fn without a scale, which
    saturates at 448. Every read comes back as float32: a view for "fp32", else a decoded copy.

    All positions are kept, also of layers with a window: the mask hides them, nothing is rolled.

    Shapes: append(layer, k, v): k, v (B, K, T, H);  keys(layer), values(layer): (B, K, S, H)
    Units:  nbytes: bytes allocated for the full capacity, codes and scales.
    Raises: ValueError for sizes below one, an architecture with latent attention, an unknown
            dtype or layer, arrays of another shape, more tokens than fit (nothing is written
            then), and a length that is not there.

    >>> import numpy as np
    >>> from firsttoken.architectures import Architecture
    >>> arch = Architecture("toy", 1, 8, 2, 1, 4, 16, 32)
    >>> cache = KVCache(arch, batch=1, capacity=3)
    >>> cache.append(0, np.ones((1, 1, 2, 4)), np.zeros((1, 1, 2, 4)))
    >>> cache.length, cache.keys(0).shape, cache.nbytes
    (2, (1, 1, 2, 4), 96)
    >>> cache.truncate(1)
    >>> cache.length
    1
    """

    def __init__(self, arch: Architecture, batch: int, capacity: int, dtype: str = "fp32") -> None:
        import numpy as np

        _check_size("batch", batch, at_least=1)
        _check_size("capacity", capacity, at_least=1)
        if arch.latent_dim is not None:
            raise ValueError(f"arch {arch.name} caches latents, expected keys and values per head")
        self.arch, self.batch, self.capacity, self.dtype = arch, batch, capacity, dtype
        self._encode, self._decode = _codec(dtype, arch.head_dim)
        self._slots = {layer: slot for slot, layer in enumerate(arch.kv_layers)}
        self._lengths = [0] * len(self._slots)
        # One encoded token says which arrays the format needs, and how wide they are.
        parts = self._encode(np.zeros((1, arch.head_dim), np.float32))
        shape = (len(self._slots), batch, arch.n_kv_heads, capacity)
        self._keys, self._values = (
            tuple(np.zeros((*shape, part.shape[-1]), part.dtype) for part in parts)
            for _ in range(2)
        )

    @property
    def length(self) -> int:
        """The tokens per sequence that every layer holds."""
        return min(self._lengths)

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays, filled or not."""
        return sum(array.nbytes for array in (*self._keys, *self._values))

    def append(self, layer: int, k: np.ndarray, v: np.ndarray) -> None:
        """Store the keys and values of the next tokens of one layer."""
        slot = self._slot(layer, k, v)  # raises before anything is written
        start = self._lengths[slot]
        end = start + k.shape[2]
        for arrays, new in ((self._keys, k), (self._values, v)):
            for array, part in zip(arrays, self._encode(new), strict=True):
                array[slot, :, :, start:end] = part
        self._lengths[slot] = end

    def keys(self, layer: int) -> np.ndarray:
        """Return all keys of a layer, (B, K, S, H)."""
        return self._read(self._keys, layer)

    def values(self, layer: int) -> np.ndarray:
        """Return all values of a layer, (B, K, S, H)."""
        return self._read(self._values, layer)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens, in every layer."""
        if not isinstance(length, Integral) or not 0 <= length <= self.length:
            raise ValueError(f"length must lie in 0 … {self.length}, got {length!r}")
        self._lengths = [int(length)] * len(self._lengths)

    def _slot(self, layer: int, k: np.ndarray, v: np.ndarray) -> int:
        """Return where a layer is stored, once its new keys and values are known to fit."""
        if layer not in self._slots:
            raise ValueError(f"layer {layer} stores nothing; expected one of {tuple(self._slots)}")
        slot = self._slots[layer]
        held = self._lengths[slot]
        n_new = k.shape[2] if k.ndim == 4 else -1
        expected = (self.batch, self.arch.n_kv_heads, n_new, self.arch.head_dim)
        if k.shape != expected or v.shape != expected:
            raise ValueError(
                f"k {k.shape} and v {v.shape} must both be (B, K, T, H) with "
                f"B {self.batch}, K {self.arch.n_kv_heads}, H {self.arch.head_dim}"
            )
        if held + n_new > self.capacity:
            raise ValueError(
                f"layer {layer} holds {held} of {self.capacity} tokens; {n_new} more do not fit"
            )
        return slot

    def _read(self, arrays: tuple[np.ndarray, ...], layer: int) -> np.ndarray:
        if not 0 <= layer < self.arch.n_layers:
            raise ValueError(f"layer must lie in 0 … {self.arch.n_layers - 1}, got {layer}")
        source = layer if self.arch.kv_source is None else self.arch.kv_source[layer]
        slot = self._slots[source]
        return self._decode(tuple(array[slot, :, :, : self._lengths[slot]] for array in arrays))


def _stored_windows(arch: Architecture) -> list[int | None]:
    """Return the window of every layer that stores something."""
    windows = arch.layer_windows
    return [windows[layer] for layer in arch.kv_layers]


def _free_bytes(
    arch: Architecture, memory_bytes: float, dtype: str, workspace_bytes: float
) -> float:
    """Return what the weights and the workspace leave; negative where they do not fit."""
    for name, value in (("memory_bytes", memory_bytes), ("workspace_bytes", workspace_bytes)):
        if not value >= 0:
            raise ValueError(f"{name} must not be negative, got {value!r}")
    return memory_bytes - workspace_bytes - arch.n_params * bytes_per_element(dtype)


def _check_size(name: str, value: int, at_least: int = 0) -> None:
    if not isinstance(value, Integral) or value < at_least:
        raise ValueError(f"{name} must be an integer of at least {at_least}, got {value!r}")


def _codec(dtype: str, head_dim: int) -> tuple[Encode, Decode]:
    """Return (encode, decode): a float array to the arrays that store it, and back to float32."""
    import numpy as np

    if dtype in ("fp32", "fp16"):
        stored = np.dtype(np.float32 if dtype == "fp32" else np.float16)
        return (
            lambda x: (x.astype(stored, copy=False),),
            lambda parts: parts[0].astype(np.float32, copy=False),
        )
    if dtype == "int8":
        return _integer_codec(127, group=head_dim)
    if dtype == "int4":
        if head_dim % 2:
            raise ValueError(f"dtype int4 packs pairs; expected an even head_dim, got {head_dim}")
        return _packed(_integer_codec(7, group=math.gcd(head_dim, 32)))
    if dtype == "fp8":
        return _fp8_codec()
    raise ValueError(f"dtype {dtype!r} is unknown; expected one of fp32, fp16, int8, int4, fp8")


def _integer_codec(largest: int, group: int) -> tuple[Encode, Decode]:
    """Symmetric codes from -largest to largest, with one fp16 scale per group of the last axis."""
    import numpy as np

    def encode(x: np.ndarray) -> tuple[np.ndarray, ...]:
        groups = x.reshape(*x.shape[:-1], x.shape[-1] // group, group)
        scale = (np.abs(groups).max(-1, keepdims=True) / largest).astype(np.float16)
        # Codes are made with the scale that is stored; a group of zeros needs none.
        divisor = np.where(scale > 0, scale, 1).astype(np.float32)
        codes = np.clip(np.rint(groups / divisor), -largest, largest).astype(np.int8)
        return codes.reshape(x.shape), scale[..., 0]

    def decode(parts: tuple[np.ndarray, ...]) -> np.ndarray:
        codes, scale = parts
        groups = codes.reshape(*codes.shape[:-1], codes.shape[-1] // group, group)
        return (groups * scale[..., None].astype(np.float32)).reshape(codes.shape)

    return encode, decode


def _packed(codec: tuple[Encode, Decode]) -> tuple[Encode, Decode]:
    """Two neighbouring codes of -8 … 7 to a byte: the even one in the low half."""
    import numpy as np

    encode_codes, decode_codes = codec

    def encode(x: np.ndarray) -> tuple[np.ndarray, ...]:
        codes, scale = encode_codes(x)
        nibbles = (codes + 8).astype(np.uint8)
        return nibbles[..., ::2] | nibbles[..., 1::2] << 4, scale

    def decode(parts: tuple[np.ndarray, ...]) -> np.ndarray:
        packed, scale = parts
        nibbles = np.stack([packed & 15, packed >> 4], axis=-1)
        codes = nibbles.reshape(*packed.shape[:-1], 2 * packed.shape[-1]).astype(np.int8) - 8
        return decode_codes((codes, scale))

    return encode, decode


def _fp8_codec() -> tuple[Encode, Decode]:
    """e4m3fn: one sign, four exponent, three fraction bits; code 127 is NaN, there is no infinity.

    Source: Micikevicius et al. 2022, arXiv:2209.05433, table 1
    """
    import numpy as np

    codes = np.arange(127)
    exponent, fraction = codes >> 3, (codes & 7) / 8
    magnitude = np.where(
        exponent == 0, np.ldexp(fraction, -6), np.ldexp(1 + fraction, exponent - 7)
    )
    midpoints = ((magnitude[:-1] + magnitude[1:]) / 2).astype(np.float32)
    positive = np.append(magnitude, np.nan)
    table = np.concatenate([positive, -positive]).astype(np.float32)

    def encode(x: np.ndarray) -> tuple[np.ndarray, ...]:
        size = np.abs(x).astype(np.float32)
        below = np.searchsorted(midpoints, size, side="left")
        above = np.searchsorted(midpoints, size, side="right")
        code = np.where(below % 2 == 0, below, above)  # they differ on a tie: take the even one
        code[np.isnan(x)] = 127
        return ((code + 128 * np.signbit(x)).astype(np.uint8),)

    return encode, lambda parts: table[parts[0]]
