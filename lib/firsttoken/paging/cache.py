"""The keys and values of every layer, in the blocks of a pool."""

import math
from collections.abc import Hashable, Sequence

import numpy as np

from firsttoken.architectures import Architecture
from firsttoken.checks import check_count
from firsttoken.paging.pool import BlockPool

Array = np.ndarray


class PagedCache:
    """The keys and values of every layer, in the blocks of a pool.

    Before a pass, give the pool the new tokens, and `copy` the block that `pool.append` names, if
    it names one. Then run the model with the request's `sequence` as its cache. The pool says where
    a token lies; this class stores what is there.

    Shapes: keys, values (L, n_blocks, K, block_size, H), float32
    Units:  nbytes: bytes of all blocks, whoever holds them.
    Raises: ValueError for an architecture whose layers do not all cache plain keys and values.
    Source: Kwon et al. 2023, arXiv:2309.06180, sec. 4.2 to 4.4

    >>> arch = Architecture("toy", 1, 8, 2, 1, 4, 16, 32)
    >>> pool = BlockPool(n_blocks=4, block_size=2, prefix_caching=True)
    >>> cache = PagedCache(arch, pool)
    >>> text = cache.sequence("a", pool.allocate("a", [5, 6, 7]))
    >>> text.append(0, *np.ones((2, 1, 1, 3, 4)))  # what a model does with three new tokens
    >>> text.length, text.keys(0).shape, cache.nbytes
    (3, (1, 1, 3, 4), 256)
    """

    def __init__(self, arch: Architecture, pool: BlockPool) -> None:
        if arch.latent_dim is not None or arch.kv_source is not None:
            raise ValueError(
                f"arch {arch.name!r} caches latents or shares caches between layers; expected "
                "keys and values in every layer"
            )
        shape = (arch.n_layers, pool.n_blocks, arch.n_kv_heads, pool.block_size, arch.head_dim)
        self.pool = pool
        self.keys, self.values = np.zeros((2, *shape), dtype=np.float32)

    @property
    def nbytes(self) -> int:
        """The bytes of all blocks."""
        return self.keys.nbytes + self.values.nbytes

    def copy(self, source: int, target: int) -> None:
        """Copy a block in every layer, as `BlockPool.append` asked for."""
        for stored in (self.keys, self.values):
            stored[:, target] = stored[:, source]

    def write(self, request_id: Hashable, layer: int, start: int, k: Array, v: Array) -> None:
        """Store keys and values (K, T, H) of a request's tokens from position `start` on."""
        nth, offsets = np.divmod(np.arange(start, start + k.shape[1]), self.pool.block_size)
        blocks = np.array(self.pool.block_table(request_id), dtype=int)[nth]
        for stored, new in ((self.keys, k), (self.values, v)):
            stored[layer][blocks, :, offsets] = new.swapaxes(0, 1)

    def sequence(self, request_id: Hashable, n_cached: int = 0) -> "PagedSequence":
        """Return one request's part as a cache for a model, its first `n_cached` tokens filled.

        `n_cached` is what `allocate` returned; for a fork, the parent's tokens. At least the last
        token stays to be computed, for its logits.
        """
        return PagedSequence(self, request_id, n_cached)


class PagedSequence:
    """One request in a `PagedCache`, as a model sees it: the `Cache` of `protocols`.

    `keys` and `values` copy the blocks into one array; `paged_attention` needs no copy. `truncate`
    cuts the request short in the pool, too: give it new tokens before the next pass.

    `length` counts the tokens that the model need not compute any more. Where every token was found
    in the prefix cache it is one less, so that a pass over the last token gives the logits. Its
    keys and values are not written then: they are there, and others may hold that block.

    Shapes: as `KVCache` with B = 1
    Units:  nbytes: bytes of the request's blocks in all layers, those it shares included.
    Raises: ValueError for n_cached beyond the request's tokens, an unknown layer, arrays of another
            shape, more tokens than the pool has been given, and a length that is not there;
            KeyError for a request that the pool does not know.
    """

    def __init__(self, cache: PagedCache, request_id: Hashable, n_cached: int = 0) -> None:
        n_tokens = cache.pool.n_tokens(request_id)
        if not 0 <= n_cached <= n_tokens:
            raise ValueError(f"n_cached must lie in 0 … {n_tokens}, got {n_cached}")
        self.cache, self.request_id, self.n_cached = cache, request_id, n_cached
        # The tokens that each layer holds: during a pass, one layer after another has more.
        self.lengths = [max(0, min(n_cached, n_tokens - 1))] * len(cache.keys)

    @property
    def length(self) -> int:
        """The tokens that every layer holds."""
        return min(self.lengths)

    @property
    def nbytes(self) -> int:
        """The bytes of the request's blocks, filled or not."""
        n_blocks = len(self.cache.pool.block_table(self.request_id))
        return self.cache.nbytes // self.cache.pool.n_blocks * n_blocks

    def append(self, layer: int, k: Array, v: Array) -> None:
        """Store the keys and values (1, K, T, H) of the next tokens of one layer."""
        self._check_layer(layer)
        n_kv_heads, _, head_dim = self.cache.keys.shape[2:]
        if k.shape != v.shape or k.ndim != 4 or k.shape != (1, n_kv_heads, k.shape[2], head_dim):
            raise ValueError(
                f"k {k.shape} and v {v.shape} must both be (1, K, T, H) with K {n_kv_heads}, "
                f"H {head_dim}"
            )
        start = self.lengths[layer]
        end = self.end_after(start, k.shape[2])
        skip = max(0, self.n_cached - start)
        self.cache.write(self.request_id, layer, start + skip, k[0, :, skip:], v[0, :, skip:])
        self.lengths[layer] = end

    def end_after(self, start: int, n_new: int) -> int:
        """Return start + n_new, if the pool has been given so many tokens of the request."""
        n_tokens = self.cache.pool.n_tokens(self.request_id)
        if start + n_new > n_tokens:
            raise ValueError(
                f"request {self.request_id!r} has {n_tokens} tokens in the pool, {start} of them "
                f"computed; {n_new} more do not fit"
            )
        return start + n_new

    def keys(self, layer: int) -> Array:
        """Return all keys of a layer, (1, K, S, H)."""
        return self._read(self.cache.keys, layer)

    def values(self, layer: int) -> Array:
        """Return all values of a layer, (1, K, S, H)."""
        return self._read(self.cache.values, layer)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens, in every layer and in the pool."""
        if check_count("length", length) > self.length:
            raise ValueError(f"length must lie in 0 … {self.length}, got {length!r}")
        self.cache.pool.truncate(self.request_id, length)
        self.n_cached = min(self.n_cached, int(length))  # what comes after it is written again
        self.lengths = [int(length)] * len(self.lengths)

    def _read(self, stored: Array, layer: int) -> Array:
        self._check_layer(layer)
        table = self.cache.pool.block_table(self.request_id)
        return gather(stored[layer], table, self.lengths[layer])

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < len(self.lengths):
            raise ValueError(f"layer must lie in 0 … {len(self.lengths) - 1}, got {layer}")


def gather(stored: Array, table: Sequence[int], length: int) -> Array:
    """Copy the first `length` tokens of a block table side by side: (1, K, S, H)."""
    n_kv_heads, block_size, head_dim = stored.shape[1:]
    blocks = list(table[: math.ceil(length / block_size)])
    in_order = stored.swapaxes(0, 1)[:, blocks]  # [K, blocks, block_size, H]
    return in_order.reshape(1, n_kv_heads, -1, head_dim)[:, :, :length]
