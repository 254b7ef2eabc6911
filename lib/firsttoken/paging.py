"""The KV cache in blocks: who holds which block of memory, and attention that reads through it."""

import hashlib
import math
import operator
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from firsttoken.architectures import Architecture
from firsttoken.attention import SoftmaxMean, attention
from firsttoken.checks import check_count
from firsttoken.sampling import as_floats

Array = np.ndarray


class OutOfBlocks(Exception):
    """Fewer blocks are free than a call needs; the call has changed nothing."""


@dataclass(frozen=True)
class Usage:
    """How the blocks of a pool are used; used + cached + free is all of them.

    used: held by a request. cached: held by none, but with content that a request may reuse.
    free: nothing to reuse. wasted_slots: places for tokens in held blocks that hold no token yet.
    """

    used: int
    cached: int
    free: int
    wasted_slots: int


@dataclass
class _Request:
    table: list[int]  # block of each run of block_size tokens
    n_tokens: int
    tokens: list[int]  # with prefix caching only; else their number is enough


class BlockPool:
    """The memory for keys and values as blocks of `block_size` tokens, handed out on demand.

    A request's tokens lie in blocks anywhere in the pool; its block table names them in order, as a
    page table does in an operating system. Every block counts its holders. A fork shares all blocks
    of its parent, and a request that writes to a shared block first gets a copy of it
    (copy-on-write).

    With `prefix_caching` a full block is known by the hash of its tokens and of the block before
    it, so by the whole text up to its end: keys and values depend on all of that. A new request
    reuses blocks whose text it starts with. A block that nobody holds keeps its content until its
    memory is needed: blocks without anything to reuse go first, then the least recently used, the
    end of a text before its start. Of equal content, unheld blocks keep one copy only, and none
    while a request holds one. A full block is written again only where `truncate` has cut the text
    of its one holder short; from then on it is no longer found.

    The pool counts; it stores no keys and values (`PagedCache` does). It takes a block's content as
    present once it has got the tokens, so hand it tokens in the step that computes them.

    Request ids are any hashable values, tokens are integers. A call that raises changes nothing.

    Raises: ValueError for sizes below one, for a live id in `allocate` and `fork`, and for
            positions and lengths that the request does not have; KeyError for an unknown id;
            OutOfBlocks.
    Source: Kwon et al. 2023, arXiv:2309.06180, sec. 4 (4.4: copy-on-write); vLLM, "Automatic Prefix
            Caching" (hash of parent and tokens, full blocks only)

    >>> pool = BlockPool(n_blocks=4, block_size=2, prefix_caching=True)
    >>> pool.allocate("a", [5, 6, 7])
    0
    >>> pool.fork("a", "b")
    >>> pool.append("b", 8)  # the half-filled block is shared: b gets a copy of it
    (1, 2)
    >>> pool.block_table("a"), pool.block_table("b"), pool.slot("b", 3)
    ([0, 1], [0, 2], 5)
    >>> pool.free("b")
    >>> pool.allocate("c", [5, 6, 7, 8, 9])  # a holds 5 6, and what b wrote is still there
    4
    >>> pool.usage()
    Usage(used=4, cached=0, free=0, wasted_slots=2)
    """

    def __init__(self, n_blocks: int, block_size: int, prefix_caching: bool = False) -> None:
        self.n_blocks = check_count("n_blocks", n_blocks, at_least=1)
        self.block_size = check_count("block_size", block_size, at_least=1)
        self.prefix_caching = prefix_caching
        self._requests: dict[Hashable, _Request] = {}
        self._holders = [0] * self.n_blocks
        self._hashes: list[bytes | None] = [None] * self.n_blocks  # of full blocks
        self._blocks_with: dict[bytes, list[int]] = {}  # hash to the blocks that have it
        self._empty = list(range(self.n_blocks))[::-1]  # a stack: unheld, nothing to reuse
        self._cached: OrderedDict[int, None] = OrderedDict()  # unheld, least recently used first

    @property
    def n_free(self) -> int:
        """The blocks that no request holds, those with reusable content included."""
        return len(self._empty) + len(self._cached)

    def allocate(self, request_id: Hashable, tokens: Sequence[int]) -> int:
        """Give a new request blocks for its tokens; return how many of them are cached already.

        All tokens may be: whoever wants the logits of the last one has to compute it again.
        """
        self._check_new(request_id)
        if self.prefix_caching:  # else only their number counts
            tokens = [operator.index(token) for token in tokens]
        n_tokens = len(tokens)
        hashes = self._hash_blocks(tokens)
        reused = self._find(hashes)
        n_new = math.ceil(n_tokens / self.block_size) - len(reused)
        self._check_free(n_new + sum(self._holders[block] == 0 for block in reused))

        for block in reused:  # before any block is taken, so that none of them is
            self._hold(block)
        new = [self._take() for _ in range(n_new)]
        for block, full in zip(new, hashes[len(reused) :], strict=False):  # the last may not be
            self._remember(block, full)
        kept = list(tokens) if self.prefix_caching else []
        self._requests[request_id] = _Request(reused + new, n_tokens, kept)
        return len(reused) * self.block_size

    def append(self, request_id: Hashable, token: int) -> tuple[int, int] | None:
        """Add one token to a request; return (source, target) where a block must be copied first.

        That is where the token goes to a block that others hold, too (copy-on-write). The last
        holder of a block writes in place.
        """
        request = self._request(request_id)
        token = operator.index(token)
        copy = None
        if request.n_tokens % self.block_size == 0:
            self._check_free(1)
            request.table.append(self._take())
        elif self._holders[last := request.table[-1]] > 1 or self._hashes[last] is not None:
            copy = self._make_writable(request)
        request.n_tokens += 1
        if self.prefix_caching:
            request.tokens.append(token)
            if request.n_tokens % self.block_size == 0:
                parent = self._hashes[request.table[-2]] if len(request.table) > 1 else b""
                assert parent is not None  # only full blocks stand before the last
                full = _hash_block(parent, request.tokens[-self.block_size :])
                self._remember(request.table[-1], full)
        return copy

    def truncate(self, request_id: Hashable, n_tokens: int) -> None:
        """Keep the first tokens of a request only; blocks beyond them are given back as in `free`.

        Nothing of another request changes: who shares the block in which the text ends now, still
        holds all of it.
        """
        request = self._request(request_id)
        if check_count("n_tokens", n_tokens) > request.n_tokens:
            raise ValueError(
                f"n_tokens must be at most {request.n_tokens}, what request {request_id!r} has; "
                f"got {n_tokens}"
            )
        n_blocks = math.ceil(n_tokens / self.block_size)
        request.table, beyond = request.table[:n_blocks], request.table[n_blocks:]
        request.n_tokens, request.tokens = int(n_tokens), request.tokens[:n_tokens]
        self._let_go(beyond)

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """Make a new request that shares everything with its parent; nothing is copied."""
        request = self._request(parent)
        self._check_new(child)
        for block in request.table:
            self._hold(block)
        self._requests[child] = _Request([*request.table], request.n_tokens, [*request.tokens])

    def free(self, request_id: Hashable) -> None:
        """End a request; blocks that no other holds can be handed out again."""
        request = self._request(request_id)
        del self._requests[request_id]
        self._let_go(request.table)

    def block_table(self, request_id: Hashable) -> list[int]:
        """Return the blocks that hold a request's tokens, in order."""
        return list(self._request(request_id).table)

    def n_tokens(self, request_id: Hashable) -> int:
        """Return how many tokens a request has."""
        return self._request(request_id).n_tokens

    def slot(self, request_id: Hashable, position: int) -> int:
        """Return where the token at a position lies: block · block_size + offset in the block."""
        request = self._request(request_id)
        if not 0 <= position < request.n_tokens:
            raise ValueError(
                f"position must lie in 0 … {request.n_tokens - 1} for request {request_id!r}, "
                f"got {position}"
            )
        nth, offset = divmod(position, self.block_size)
        return request.table[nth] * self.block_size + offset

    def n_cached(self, tokens: Sequence[int]) -> int:
        """Return how many of the tokens `allocate` would find cached; nothing changes."""
        hashes = self._hash_blocks([operator.index(token) for token in tokens])
        return len(self._find(hashes)) * self.block_size

    def usage(self) -> Usage:
        """Return how many blocks are in use, reusable and free, and the slots that are wasted."""
        wasted = {r.table[-1]: self._room(r) for r in self._requests.values() if r.table}
        return Usage(
            used=self.n_blocks - self.n_free,
            cached=len(self._cached),
            free=len(self._empty),
            wasted_slots=sum(wasted.values()),
        )

    def _room(self, request: _Request) -> int:
        """Return how many slots of a request's last block hold no token, of nobody."""
        nth, block = len(request.table) - 1, request.table[-1]
        sharing = [request]
        if self._holders[block] > 1:  # after a truncation another may hold more of it
            requests = self._requests.values()
            sharing = [r for r in requests if r.table[nth : nth + 1] == [block]]
        return max(0, len(request.table) * self.block_size - max(r.n_tokens for r in sharing))

    def _request(self, request_id: Hashable) -> _Request:
        if request_id not in self._requests:
            raise KeyError(f"request_id {request_id!r} is unknown")
        return self._requests[request_id]

    def _check_new(self, request_id: Hashable) -> None:
        if request_id in self._requests:
            raise ValueError(f"request_id {request_id!r} is in use; expected a new one")

    def _check_free(self, n_needed: int) -> None:
        if n_needed > self.n_free:
            raise OutOfBlocks(f"{n_needed} blocks needed, {self.n_free} of {self.n_blocks} free")

    def _hash_blocks(self, tokens: Sequence[int]) -> list[bytes]:
        """Return the hash of every full block of a text; none without prefix caching."""
        hashes: list[bytes] = []
        if self.prefix_caching:
            for end in range(self.block_size, len(tokens) + 1, self.block_size):
                parent = hashes[-1] if hashes else b""
                full = list(tokens[end - self.block_size : end])
                hashes.append(_hash_block(parent, full))
        return hashes

    def _find(self, hashes: list[bytes]) -> list[int]:
        """Return blocks with these hashes, up to the first that no block has."""
        found = []
        for full in hashes:
            if full not in self._blocks_with:
                break
            found.append(self._blocks_with[full][0])
        return found

    def _hold(self, block: int) -> None:
        self._holders[block] += 1
        self._cached.pop(block, None)

    def _take(self) -> int:
        """Hand out an unheld block; its content is lost."""
        if self._empty:
            block = self._empty.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            self._forget(block)
        self._holders[block] = 1
        return block

    def _let_go(self, table: list[int]) -> None:
        """Hold these blocks of one request no longer."""
        for block in reversed(table):  # so that the end of a text is evicted first
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._retire(block)

    def _make_writable(self, request: _Request) -> tuple[int, int] | None:
        """See that nobody else reads a request's last block; return the copy that this takes."""
        block = request.table[-1]
        if self._holders[block] == 1:  # it was full, and a truncation has cut it short
            self._forget(block)
            return None
        self._check_free(1)
        request.table[-1] = self._take()
        self._holders[block] -= 1
        return block, request.table[-1]

    def _remember(self, block: int, full: bytes) -> None:
        """Let a block that is full now be found by its hash."""
        copy = self._blocks_with.get(full, [block])[0]
        if copy in self._cached:  # then it is the only copy, and no longer needed
            del self._cached[copy]
            self._forget(copy)
            self._empty.append(copy)
        self._blocks_with.setdefault(full, []).append(block)
        self._hashes[block] = full

    def _retire(self, block: int) -> None:
        """Put away a block that nobody holds any more."""
        full = self._hashes[block]
        if full is not None and len(self._blocks_with[full]) == 1:
            self._cached[block] = None  # the most recently used
            return
        if full is not None:  # another request holds a copy
            self._forget(block)
        self._empty.append(block)

    def _forget(self, block: int) -> None:
        """Let a block no longer be found."""
        full = self._hashes[block]
        assert full is not None
        self._hashes[block] = None
        self._blocks_with[full].remove(block)
        if not self._blocks_with[full]:
            del self._blocks_with[full]


class PagedCache:
    """The keys and values of every layer, in the blocks of a pool.

    The pool says where a token lies, this class keeps what is there. Before a pass, give the pool
    the new tokens, and `copy` where `append` asks for it (copy-on-write); then run the model with
    the request's `sequence` as its cache.

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
    """What a model sees of one request in a `PagedCache`, as the `Cache` of `protocols`.

    `length` counts the tokens that the model need not compute any more. Where every token was found
    in the prefix cache it is one less, so that a pass over the last token gives the logits. Its
    keys and values are not written then: they are there, and others may hold that block.

    `keys` and `values` gather the blocks into one array, a copy. `paged_attention` needs none.
    `truncate` cuts the request short in the pool, too: give it new tokens before the next pass.

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
        self._lengths = [max(0, min(n_cached, n_tokens - 1))] * len(cache.keys)

    @property
    def length(self) -> int:
        """The tokens that every layer holds."""
        return min(self._lengths)

    @property
    def nbytes(self) -> int:
        """The bytes of the request's blocks, filled or not."""
        n_blocks = len(self.cache.pool.block_table(self.request_id))
        return self.cache.nbytes // self.cache.pool.n_blocks * n_blocks

    @property
    def _n_tokens(self) -> int:
        return self.cache.pool.n_tokens(self.request_id)

    def append(self, layer: int, k: Array, v: Array) -> None:
        """Store the keys and values (1, K, T, H) of the next tokens of one layer."""
        self._check_layer(layer)
        n_kv_heads, _, head_dim = self.cache.keys.shape[2:]
        if k.shape != v.shape or k.ndim != 4 or k.shape != (1, n_kv_heads, k.shape[2], head_dim):
            raise ValueError(
                f"k {k.shape} and v {v.shape} must both be (1, K, T, H) with K {n_kv_heads}, "
                f"H {head_dim}"
            )
        start = self._lengths[layer]
        end = start + k.shape[2]
        n_tokens = self._n_tokens
        if end > n_tokens:
            raise ValueError(
                f"request {self.request_id!r} has {n_tokens} tokens in the pool, {start} of them "
                f"computed; {k.shape[2]} more do not fit"
            )
        skip = max(0, self.n_cached - start)
        self.cache.write(self.request_id, layer, start + skip, k[0, :, skip:], v[0, :, skip:])
        self._lengths[layer] = end

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
        self._lengths = [int(length)] * len(self._lengths)

    def _read(self, stored: Array, layer: int) -> Array:
        self._check_layer(layer)
        table = self.cache.pool.block_table(self.request_id)
        return _gather(stored[layer], table, self._lengths[layer])

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < len(self._lengths):
            raise ValueError(f"layer must lie in 0 … {len(self._lengths) - 1}, got {layer}")


class PagedBatch:
    """Sequences of one `PagedCache` that store and read in one go what a pass brings of each.

    The new tokens of all lie side by side, sizes[i] of sequences[i]. A layer's keys and values are
    stored for all first. Then sequences that have equally many new tokens attend together, up to
    `rows` tokens at a time: their blocks are copied, as many for each as the longest of them has,
    and what lies beyond the end of a shorter one is hidden. A few large copies and products take
    the place of many small ones, whose time goes to calls and not to numbers. (Of long prompts each
    attends by itself: together their scores would not fit a processor's cache.) The result is that
    of `PagedSequence`s which are asked one by one, up to rounding.

    Shapes: attend(layer, q (1, N, ΣT, H), k, v (1, K, ΣT, H)), result as q
    Raises: ValueError for no sequences, sequences of several caches, sizes that are not one for
            each and at least 1, and more tokens than the pool has been given.

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
            size, n_tokens = check_count("sizes", size, at_least=1), sequence._n_tokens
            end = sequence.length + size
            if end > n_tokens:
                raise ValueError(
                    f"request {sequence.request_id!r} has {n_tokens} tokens in the pool, "
                    f"{sequence.length} of them computed; {size} more do not fit"
                )
            table = np.array(self._cache.pool.block_table(sequence.request_id))
            positions = np.arange(end - size, end)
            nth, offsets = np.divmod(positions, block_size)
            slots.append((table[nth] * n_kv_heads + heads) * block_size + offsets)  # [K, T]
            written.append(positions >= sequence.n_cached)  # the rest is there already
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
        """Store new keys and values of a layer, and return what the queries read in it.

        `window` lets a query see that many positions, itself included.
        """
        stored = self._cache.keys[layer], self._cache.values[layer]
        for place, new in zip(stored, (k, v), strict=True):
            place.reshape(-1, place.shape[-1])[self._slots] = new[0][:, self._written]
        for sequence, end in zip(self._sequences, self._ends, strict=True):
            sequence._lengths[layer] = end
        mixed = np.empty_like(q)
        for group in self._groups:
            mixed[0][:, group.columns] = group.attend(q[0][:, group.columns], *stored, window)
        return mixed


class _Group:
    """Sequences of a batch with T new tokens each: (start of these, end of the text, table)."""

    def __init__(
        self, size: int, members: list[tuple[int, int, Array]], n_kv_heads: int, block_size: int
    ) -> None:
        starts, ends, tables = zip(*members, strict=True)
        self.columns = np.array(starts)[:, None] + np.arange(size)  # [B, T], of the batch's tokens
        self.n_places, n_blocks = max(ends), max(len(table) for table in tables)
        # Places that a sequence lacks are hidden; they come from its own last block.
        padded = np.stack([np.pad(table, (0, n_blocks - len(table)), "edge") for table in tables])
        self.blocks = padded[:, None] * n_kv_heads + np.arange(n_kv_heads)[:, None]  # [B, K, .]
        self.positions = (
            np.array(ends)[:, None, None] - size + np.arange(size)[:, None]
        )  # [B, T, 1]
        self._hidden: dict[int | None, Array] = {}  # by window: one for all layers

    def hidden(self, window: int | None) -> Array:
        """Say which places no query may see, [B, T, S]."""
        if window not in self._hidden:
            place = np.arange(self.n_places)
            hidden = place > self.positions
            if window is not None:
                hidden |= place <= self.positions - window
            self._hidden[window] = hidden
        return self._hidden[window]

    def attend(self, q: Array, keys: Array, values: Array, window: int | None) -> Array:
        """Attend from q [N, B, T, H] to what a layer holds; the result is like q."""
        n_heads, batch, n_new, head_dim = q.shape
        n_kv_heads = keys.shape[1]
        shape = batch, n_kv_heads, -1, head_dim
        k, v = (  # [B, K, S, H]; in a block all that belongs to a head lies side by side
            stored.reshape(-1, *stored.shape[2:])[self.blocks].reshape(shape)[:, :, : self.n_places]
            for stored in (keys, values)
        )
        rows = (q * (1 / math.sqrt(head_dim))).swapaxes(0, 1).reshape(shape)  # [B, K, G·T, H]
        scores = rows @ k.swapaxes(2, 3)  # [B, K, G·T, S]
        by_query = scores.reshape(batch, n_heads, n_new, -1)  # a view
        np.copyto(by_query, -np.inf, where=self.hidden(window)[:, None])
        scores -= scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores, out=scores)
        mixed = (weights @ v) / weights.sum(axis=-1, keepdims=True)
        return mixed.reshape(batch, n_heads, n_new, head_dim).swapaxes(0, 1)


def paged_attention(
    q: Array,
    keys: Array,
    values: Array,
    block_tables: Sequence[Sequence[int]],
    lengths: Sequence[int],
    form: str = "merge",
    part: int = 1024,
) -> Array:
    """Return the causal attention of each sequence's T newest tokens, read through block tables.

    Sequence i has lengths[i] tokens in the blocks that its table names; the last T are the
    queries. Two forms give the same result. "gather" copies the blocks side by side and calls
    `attention`. "merge" copies nothing: it reads block by block where the blocks lie, and keeps
    for every query the largest score so far, the sum of the weights and the weighted sum of the
    values, both relative to that score (online softmax). It merges once per `part` tokens, since
    each step of a merge costs as much as a small block.

    Shapes: q (B, N, T, H); keys, values (n_blocks, K, block_size, H), one layer of a `PagedCache`;
            result (B, N, T, H). float16 becomes float32.
    Raises: ValueError for shapes that do not fit together, a q of integers, tables or lengths that
            are not one per sequence, blocks that are not there, a length below T or beyond its
            table, an unknown form, and a part below 1.
    Source: Kwon et al. 2023, arXiv:2309.06180, sec. 4.1, eq. 4; Milakov & Gimelshein 2018,
            arXiv:1805.02867, sec. 3.1 (merging)

    >>> keys = np.zeros((3, 1, 2, 1))  # three blocks of two tokens; equal scores: plain means
    >>> values = np.arange(6.0).reshape(3, 1, 2, 1)
    >>> paged_attention(np.zeros((1, 1, 1, 1)), keys, values, [[2, 0]], [3]).item()  # of 4, 5, 0
    3.0
    """
    _check_paged(q, keys, values, block_tables, lengths)
    check_count("part", part, at_least=1)
    if form not in ("gather", "merge"):
        raise ValueError(f"form must be 'gather' or 'merge', got {form!r}")
    q = as_floats(q)
    result = np.empty_like(q)
    for out, query, table, length in zip(result, q, block_tables, lengths, strict=True):
        if form == "gather":
            k, v = (_gather(stored, table, length) for stored in (keys, values))
            out[:] = attention(query[None], k, v)[0]
        else:
            out[:] = _merged_attention(query, keys, values, table, length, part)
    return result


def _gather(stored: Array, table: Sequence[int], length: int) -> Array:
    """Copy the first `length` tokens of a table side by side: (1, K, S, H)."""
    n_kv_heads, block_size, head_dim = stored.shape[1:]
    blocks = list(table[: math.ceil(length / block_size)])
    in_order = stored.swapaxes(0, 1)[:, blocks]  # [K, blocks, block_size, H]
    return in_order.reshape(1, n_kv_heads, -1, head_dim)[:, :, :length]


def _merged_attention(
    query: Array, keys: Array, values: Array, table: Sequence[int], length: int, part: int
) -> Array:
    """Attend from (N, T, H) to the blocks of a table, without a copy of them."""
    n_new, head_dim = query.shape[1:]
    n_kv_heads, block_size = keys.shape[1:3]
    rows = (query / math.sqrt(head_dim)).reshape(n_kv_heads, -1, head_dim)  # [K, G·T, H]
    keys = keys.swapaxes(2, 3)  # a view: [n_blocks, K, H, block_size]
    position = np.arange(length - n_new, length)[:, None]  # of each query

    mean = SoftmaxMean(rows.shape, rows.dtype)
    per_part = max(1, part // block_size)
    for first in range(0, math.ceil(length / block_size), per_part):
        blocks = table[first : first + per_part]
        start, end = first * block_size, min((first + len(blocks)) * block_size, length)
        scores = np.concatenate([rows @ keys[block] for block in blocks], axis=-1)
        scores = scores[..., : end - start]  # [K, G·T, end - start]; empty slots are cut off
        if end > length - n_new + 1:  # some of these keys come after some of the queries
            by_query = scores.reshape(n_kv_heads, -1, n_new, end - start)  # a view
            np.copyto(by_query, -np.inf, where=np.arange(start, end) > position)
        parts = [values[block] for block in blocks]
        parts[-1] = parts[-1][:, : (end - start - 1) % block_size + 1]
        mean.add(scores, parts)
    return mean.result().reshape(query.shape)


def _check_paged(
    q: Array,
    keys: Array,
    values: Array,
    block_tables: Sequence[Sequence[int]],
    lengths: Sequence[int],
) -> None:
    fits = q.ndim == 4 and keys.ndim == 4 and keys.shape == values.shape
    if not fits or q.shape[3] != keys.shape[3] or q.shape[1] % keys.shape[1]:
        raise ValueError(
            f"q {q.shape}, keys {keys.shape} and values {values.shape} do not fit together: "
            "expected q (B, N, T, H), keys and values (n_blocks, K, block_size, H) with N a "
            "multiple of K"
        )
    if not np.issubdtype(q.dtype, np.floating):
        raise ValueError(f"q must hold floating-point numbers, got {q.dtype}")
    if len(block_tables) != q.shape[0] or len(lengths) != q.shape[0]:
        raise ValueError(
            f"{len(block_tables)} block_tables and {len(lengths)} lengths, expected one per "
            f"sequence: {q.shape[0]}"
        )
    for table, length in zip(block_tables, lengths, strict=True):
        if not q.shape[2] <= length <= len(table) * keys.shape[2]:
            raise ValueError(
                f"lengths: {length} tokens, expected T = {q.shape[2]} to "
                f"{len(table) * keys.shape[2]}, what the table's {len(table)} blocks hold"
            )
        if len(table) and not 0 <= min(table) <= max(table) < keys.shape[0]:
            raise ValueError(
                f"block_tables: {list(table)}, expected blocks in 0 … {keys.shape[0] - 1}"
            )


def _hash_block(parent: bytes, tokens: list[int]) -> bytes:
    """Return the hash of a full block's text: of the hash of all before it, and of its tokens."""
    return hashlib.sha256(parent + repr(tokens).encode()).digest()
