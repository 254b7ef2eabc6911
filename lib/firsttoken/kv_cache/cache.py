"""The keys and values of every layer, in arrays; and in rings, for layers with a window."""

import numpy as np

from firsttoken.architectures import Architecture
from firsttoken.checks import check_count
from firsttoken.quantization import codec

Array = np.ndarray


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
        check_count("batch", batch, at_least=1)
        check_count("capacity", capacity, at_least=1)
        self.arch, self.batch, self.capacity, self.dtype = arch, batch, capacity, dtype
        latent = arch.latent_dim is not None
        self._n_heads = 1 if latent else arch.n_kv_heads
        self._width = arch.kv_elements_per_layer if latent else arch.head_dim
        self._encode, self._decode = codec(dtype, self._width)
        # One encoded token says which arrays the format needs, and how wide they are.
        parts = self._encode(np.zeros((1, self._width), np.float32))

        def allocate(room: int) -> tuple[Array, ...]:
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

    def append(self, layer: int, k: Array, v: Array | None = None) -> None:
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

    def keys(self, layer: int) -> Array:
        """Return all keys of a layer, (B, K, S, H)."""
        return self._read(layer, 0)

    def values(self, layer: int) -> Array:
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

    def _places(self, slot: int, start: int, end: int) -> slice | Array:
        """Return where the tokens at positions start … end - 1 are written."""
        return slice(start, end)

    def _held(self, slot: int) -> slice | Array:
        """Return where the tokens lie that can be read, oldest first."""
        return slice(0, self._lengths[slot])

    def _slot(self, layer: int, k: Array, v: Array | None) -> int:
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

    def _read(self, layer: int, kind: int) -> Array:
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

    def _places(self, slot: int, start: int, end: int) -> slice | Array:
        if end <= self._rooms[slot]:  # nothing to overwrite: places are positions
            return slice(start, end)
        return self._around(slot, start, end)

    def _around(self, slot: int, start: int, end: int) -> Array:
        """Return the places in the ring of positions that are no sinks."""
        ring = self._rooms[slot] - self.sinks  # no sink is among the new: a chunk fits behind them
        return self.sinks + (np.arange(start, end) - self.sinks) % ring

    def _held(self, slot: int) -> slice | Array:
        length, room = self._lengths[slot], self._rooms[slot]
        if length <= room:
            return slice(0, length)
        oldest = length - (room - self.sinks)  # position of the oldest token in the ring
        return np.append(np.arange(self.sinks), self._around(slot, oldest, length))

    def _slot(self, layer: int, k: Array, v: Array | None) -> int:
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
