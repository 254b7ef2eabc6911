"""The KV cache: its size in closed form, what fits beside the weights, and the cache itself.

The closed forms need the standard library only; `KVCache` imports NumPy and the codecs of
`quantization` when one is built.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING

from firsttoken.architectures import Architecture
from firsttoken.checks import check_count
from firsttoken.units import bytes_per_element

if TYPE_CHECKING:
    import numpy as np


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
    """Return the context at which a twin keeps as much, whose recurrent layers are attention.

    The twin's attention layers are like those that the model has. Infinite where no recurrent
    layer stands in for attention: a layer that has both keeps both.

    Holds:  at any batch, for a state in the model's own dtype. A cache of half the bits about
            doubles it.
    Raises: ValueError for a model without attention, which has no twin.
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


class KVCache:
    """The keys and values of every layer, in arrays that are allocated once.

    `append` copies what a layer computed for its new tokens behind what it holds; `keys` and
    `values` return all of it, the new tokens included. Layers append one after another, and
    `length` is what every layer holds: between two layers of a pass it is still the old length.
    A layer that shares another's cache (`arch.kv_source`) appends nothing and reads that one.

    Latent attention (MLA) caches one vector per token for all heads, latent and rotary key side
    by side: it is the key, its first `arch.latent_dim` elements are the value, and `append` takes
    it alone.

    dtype "fp32" and "fp16" store plain numbers. "int8" stores codes with one fp16 scale per token
    and head; "int4" packs two codes into a byte, with one fp16 scale per 32 elements (or the
    largest power of two below that divides the head); "fp8" is e4m3fn without a scale, which
    saturates at 448. Every read comes back as float32: a view for "fp32", else a decoded copy.

    All positions are kept, also of layers with a window, where the mask hides them; `RollingCache`
    drops them.

    Shapes: append(layer, k, v): k, v (B, K, T, H);  keys(layer), values(layer): (B, K, S, H)
            latents: append(layer, k): k (B, 1, T, d_c + d_r);  values(layer): (B, 1, S, d_c)
    Units:  nbytes: bytes allocated for the full capacity, codes and scales.
    Raises: ValueError for sizes below one, an unknown dtype or layer, arrays of another shape,
            more tokens than fit (nothing is written then), and a length that is not there.

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

        from firsttoken.quantization import codec

        check_count("batch", batch, at_least=1)
        check_count("capacity", capacity, at_least=1)
        self.arch, self.batch, self.capacity, self.dtype = arch, batch, capacity, dtype
        latent = arch.latent_dim is not None
        self._n_heads = 1 if latent else arch.n_kv_heads
        self._width = arch.kv_elements_per_layer if latent else arch.head_dim
        self._encode, self._decode = codec(dtype, self._width)
        # One encoded token says which arrays the format needs, and how wide they are.
        parts = self._encode(np.zeros((1, self._width), np.float32))

        def allocate(room: int) -> tuple[np.ndarray, ...]:
            shape = (batch, self._n_heads, room)
            return tuple(np.zeros((*shape, part.shape[-1]), part.dtype) for part in parts)

        self._slots = {layer: slot for slot, layer in enumerate(arch.kv_layers)}
        self._lengths = [0] * len(self._slots)
        self._rooms = [self._room(window) for window in _stored_windows(arch)]
        n_kinds = 1 if latent else 2  # keys, values
        self._stored = [[allocate(room) for _ in range(n_kinds)] for room in self._rooms]

    @property
    def length(self) -> int:
        """The tokens per sequence that every layer holds."""
        return min(self._lengths)

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays, filled or not."""
        arrays = (array for stored in self._stored for parts in stored for array in parts)
        return sum(array.nbytes for array in arrays)

    def append(self, layer: int, k: np.ndarray, v: np.ndarray | None = None) -> None:
        """Store the keys and values of the next tokens of one layer."""
        slot = self._slot(layer, k, v)  # raises before anything is written
        start = self._lengths[slot]
        end = start + k.shape[2]
        places = self._places(slot, start, end)
        new_vectors = (k,) if v is None else (k, v)  # latents have no v
        for arrays, new in zip(self._stored[slot], new_vectors, strict=True):
            for array, part in zip(arrays, self._encode(new), strict=True):
                array[:, :, places] = part
        self._lengths[slot] = end

    def keys(self, layer: int) -> np.ndarray:
        """Return all keys of a layer, (B, K, S, H)."""
        return self._read(layer, 0)

    def values(self, layer: int) -> np.ndarray:
        """Return all values of a layer, (B, K, S, H)."""
        if self.arch.latent_dim is not None:
            return self.keys(layer)[..., : self.arch.latent_dim]
        return self._read(layer, 1)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens, in every layer."""
        if check_count("length", length) > self.length:
            raise ValueError(f"length must lie in 0 … {self.length}, got {length!r}")
        self._lengths = [int(length)] * len(self._lengths)

    def _room(self, window: int | None) -> int:
        """Return how many tokens a layer with this window has places for."""
        return self.capacity

    def _places(self, slot: int, start: int, end: int) -> slice | np.ndarray:
        """Return where the tokens at positions start … end - 1 are written."""
        return slice(start, end)

    def _held(self, slot: int) -> slice | np.ndarray:
        """Return where the tokens lie that can be read, oldest first."""
        return slice(0, self._lengths[slot])

    def _slot(self, layer: int, k: np.ndarray, v: np.ndarray | None) -> int:
        """Return where a layer is stored, once its new keys and values are known to fit."""
        if layer not in self._slots:
            raise ValueError(f"layer {layer} stores nothing; expected one of {tuple(self._slots)}")
        slot = self._slots[layer]
        held = self._lengths[slot]
        n_new = k.shape[2] if k.ndim == 4 else -1
        expected = (self.batch, self._n_heads, n_new, self._width)
        if self.arch.latent_dim is not None:
            if k.shape != expected or v is not None:
                raise ValueError(
                    f"k {k.shape} must be (B, 1, T, d_c + d_r) with B {self.batch}, d_c + d_r "
                    f"{self._width}, and v None: latents hold the values, too"
                )
        elif k.shape != expected or v is None or v.shape != expected:
            raise ValueError(
                f"k {k.shape} and v {None if v is None else v.shape} must both be (B, K, T, H) "
                f"with B {self.batch}, K {self._n_heads}, H {self._width}"
            )
        if held + n_new > self.capacity:
            raise ValueError(
                f"layer {layer} holds {held} of {self.capacity} tokens; {n_new} more do not fit"
            )
        return slot

    def _read(self, layer: int, kind: int) -> np.ndarray:
        if not 0 <= layer < self.arch.n_layers:
            raise ValueError(f"layer must lie in 0 … {self.arch.n_layers - 1}, got {layer}")
        source = layer if self.arch.kv_source is None else self.arch.kv_source[layer]
        slot = self._slots[source]
        held = self._held(slot)
        return self._decode(tuple(array[:, :, held] for array in self._stored[slot][kind]))


class RollingCache(KVCache):
    """A `KVCache` whose layers with a window keep no more than the window: a ring of places.

    Position p of such a layer goes to place p mod w and overwrites the token that has just left
    the window. However long the text, the layer holds min(S, w) tokens, as `kv_cache_bytes`
    counts. `sinks` more places keep the first tokens for good. Layers without a window are as in
    `KVCache`.

    Several new tokens at once need more: the first of them still reads what the last one would
    overwrite. For up to `chunk` tokens per `append` the ring has chunk - 1 more places. A longer
    append is fine until something would be overwritten.

    `keys` and `values` return what is held, oldest first, so that `attention` with the layer's
    window and these `sinks` gives what it gives on the full cache: a mask asks how far back a key
    lies, and whether it is one of the first.

    Raises: as `KVCache`; ValueError for negative sinks, a chunk below one, more new tokens than
            the ring can take at once, and truncation after something was overwritten.
    Source: Jiang et al. 2023, arXiv:2310.06825, sec. 2 (rolling buffer cache); Xiao et al. 2023,
            arXiv:2309.17453, sec. 3.2 (sinks)

    >>> import numpy as np
    >>> from firsttoken.architectures import Architecture
    >>> arch = Architecture("toy", 1, 8, 2, 1, 1, 16, 32, window=3)
    >>> cache = RollingCache(arch, batch=1, capacity=1000, sinks=1)
    >>> for position in range(9):
    ...     cache.append(0, *np.full((2, 1, 1, 1, 1), float(position)))
    >>> cache.length, cache.keys(0).ravel().tolist()
    (9, [0.0, 6.0, 7.0, 8.0])
    """

    def __init__(
        self,
        arch: Architecture,
        batch: int,
        capacity: int,
        dtype: str = "fp32",
        sinks: int = 0,
        chunk: int = 1,
    ) -> None:
        check_count("sinks", sinks)
        check_count("chunk", chunk, at_least=1)
        self.sinks, self.chunk = sinks, chunk
        super().__init__(arch, batch, capacity, dtype)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens; only while every token is still there."""
        if any(held > room for held, room in zip(self._lengths, self._rooms, strict=True)):
            raise ValueError(
                f"length {length}: a window has dropped tokens that the shorter text would need"
            )
        super().truncate(length)

    def _room(self, window: int | None) -> int:
        if window is None:
            return self.capacity
        return min(self.capacity, self.sinks + window + self.chunk - 1)

    def _places(self, slot: int, start: int, end: int) -> slice | np.ndarray:
        if end <= self._rooms[slot]:  # nothing to overwrite: places are positions
            return slice(start, end)
        return self._around(slot, start, end)

    def _around(self, slot: int, start: int, end: int) -> np.ndarray:
        """Return the places in the ring of positions that are no sinks."""
        import numpy as np

        ring = self._rooms[slot] - self.sinks  # no sink is among the new: a chunk fits behind them
        return self.sinks + (np.arange(start, end) - self.sinks) % ring

    def _held(self, slot: int) -> slice | np.ndarray:
        import numpy as np

        length, room = self._lengths[slot], self._rooms[slot]
        if length <= room:
            return slice(0, length)
        oldest = length - (room - self.sinks)  # position of the oldest token in the ring
        return np.append(np.arange(self.sinks), self._around(slot, oldest, length))

    def _slot(self, layer: int, k: np.ndarray, v: np.ndarray | None) -> int:
        slot = super()._slot(layer, k, v)
        n_new = k.shape[2]
        # Asked of all layers alike, so that a pass that one layer must refuse stops at the first.
        if n_new > self.chunk and self._lengths[slot] + n_new > min(self._rooms):
            raise ValueError(
                f"{n_new} new tokens at once would overwrite what the first of them reads: "
                f"expected at most chunk = {self.chunk}"
            )
        return slot


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
