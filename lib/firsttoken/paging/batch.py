"""Many requests in one pass: what they store and read, in a few large copies and products."""

from collections.abc import Sequence

import numpy as np

from firsttoken.attention import masked_attention
from firsttoken.checks import check_count
from firsttoken.paging.cache import PagedSequence

Array = np.ndarray


class PagedBatch:
    """One pass over several sequences of a `PagedCache`: `attend`, once per layer, serves them all.

    It takes the queries, keys and values of all new tokens side by side, sizes[i] of sequences[i],
    stores the keys and values, and returns what each query reads in its own sequence: the result of
    asking the `PagedSequence`s one by one, up to rounding, in a few large copies and products
    instead of many small ones, whose time would go to calls and not to numbers.

    Sequences with equally many new tokens attend together, up to `rows` tokens at a time. Their
    blocks are copied, for each as many as the longest has, and what lies beyond the end of a
    shorter one is masked. A long prompt attends by itself: the scores of several would not fit a
    processor's cache.

    Shapes: attend(layer, q (1, N, ΣT, H), k, v (1, K, ΣT, H)), result as q
    Raises: ValueError for no sequences, sequences of several caches, sizes that are not one for
            each and at least 1, and more tokens than the pool has been given.

    >>> from firsttoken.architectures import Architecture
    >>> from firsttoken.paging import BlockPool, PagedCache
    >>> cache = PagedCache(Architecture("toy", 1, 8, 2, 1, 4, 16, 32), BlockPool(4, 2))
    >>> sequences = [cache.sequence("a", cache.pool.allocate("a", [5, 6, 7]))]
    >>> batch = PagedBatch(sequences, [3])
    >>> q, k, v = np.zeros((1, 2, 3, 4)), np.zeros((1, 1, 3, 4)), np.ones((1, 1, 3, 4))
    >>> batch.attend(0, q, k, v).shape, sequences[0].length
    ((1, 2, 3, 4), 3)
    """

    rows = 64

    def __init__(self, sequences: Sequence[PagedSequence], sizes: Sequence[int]) -> None:
        if not sequences or len(sequences) != len(sizes):
            raise ValueError(
                f"{len(sequences)} sequences and {len(sizes)} sizes, expected as many, at least one"
            )
        self._cache, self._sequences = sequences[0].cache, list(sequences)
        if any(sequence.cache is not self._cache for sequence in sequences):
            raise ValueError("sequences lie in several caches, expected one")
        n_kv_heads, block_size = self._cache.keys.shape[2:4]
        heads = np.arange(n_kv_heads)[:, None]
        self._ends, slots, written, start = [], [], [], 0
        groups: dict[int, list[tuple[int, int, Array]]] = {}
        for sequence, size in zip(sequences, sizes, strict=True):
            size = check_count("sizes", size, at_least=1)
            end = sequence.end_after(sequence.length, size)
            table = np.array(self._cache.pool.block_table(sequence.request_id))
            positions = np.arange(end - size, end)
            nth, offsets = np.divmod(positions, block_size)
            slots.append((table[nth] * n_kv_heads + heads) * block_size + offsets)  # [K, T]
            written.append(positions >= sequence.n_cached)  # earlier ones are there already
            self._ends.append(end)
            groups.setdefault(size, []).append((start, end, table[: nth[-1] + 1]))
            start += size
        self._written = np.concatenate(written)
        self._slots = np.concatenate(slots, axis=1)[:, self._written]
        self._groups = [
            _Group(size, members[i : i + n_together], n_kv_heads, block_size)
            for size, members in groups.items()
            for n_together in [max(1, self.rows // size)]
            for i in range(0, len(members), n_together)
        ]

    def attend(self, layer: int, q: Array, k: Array, v: Array, window: int | None = None) -> Array:
        """Store a layer's new keys and values, and return what the queries read.

        With a `window` a query sees that many positions, its own included.
        """
        stored = self._cache.keys[layer], self._cache.values[layer]
        for place, new in zip(stored, (k, v), strict=True):
            place.reshape(-1, place.shape[-1])[self._slots] = new[0][:, self._written]
        for sequence, end in zip(self._sequences, self._ends, strict=True):
            sequence.lengths[layer] = end
        result = np.empty_like(q)
        for group in self._groups:
            result[0][:, group.columns] = group.attend(q[0][:, group.columns], *stored, window)
        return result


class _Group:
    """Sequences of a batch with T new tokens each, padded to the longest of them.

    members: of each sequence, the place of its first new token among those of the batch, its length
    with the new tokens, and its block table.
    """

    def __init__(
        self, size: int, members: list[tuple[int, int, Array]], n_kv_heads: int, block_size: int
    ) -> None:
        starts, ends, tables = zip(*members, strict=True)
        self.columns = np.array(starts)[:, None] + np.arange(size)  # [B, T], of the batch's tokens
        self.n_keys, n_blocks = max(ends), max(len(table) for table in tables)
        # The blocks that a sequence lacks are masked; its own last block stands in for them.
        padded = np.stack([np.pad(table, (0, n_blocks - len(table)), "edge") for table in tables])
        self.blocks = padded[:, None] * n_kv_heads + np.arange(n_kv_heads)[:, None]  # [B, K, .]
        self.positions = (
            np.array(ends)[:, None, None] - size + np.arange(size)[:, None]
        )  # [B, T, 1]
        self._visible: dict[int | None, Array] = {}  # by window: one for all layers

    def visible(self, window: int | None) -> Array:
        """Return which keys each query may see, for all its heads: [B, 1, 1, T, S]."""
        if window not in self._visible:
            key = np.arange(self.n_keys)
            visible = key <= self.positions
            if window is not None:
                visible &= key > self.positions - window
            self._visible[window] = visible[:, None, None]
        return self._visible[window]

    def attend(self, q: Array, keys: Array, values: Array, window: int | None) -> Array:
        """Attend from q [N, B, T, H] to what a layer holds; the result is like q."""
        n_kv_heads, block_size, head_dim = keys.shape[1:]
        shape = q.shape[1], n_kv_heads, -1, head_dim
        k, v = (  # [B, K, S, H]; in a block all that belongs to a head lies side by side
            stored.reshape(-1, block_size, head_dim)[self.blocks].reshape(shape)[
                :, :, : self.n_keys
            ]
            for stored in (keys, values)
        )
        return masked_attention(q.swapaxes(0, 1), k, v, self.visible(window)).swapaxes(0, 1)
