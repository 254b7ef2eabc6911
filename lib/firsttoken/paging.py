"""The KV cache in blocks: who holds which block of memory, and attention that reads through it.

Beside it: how much memory is wasted without blocks, and what a prefix cache saves in chats.
"""

import hashlib
import math
import operator
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

import numpy as np

from firsttoken.architectures import Architecture
from firsttoken.attention import attention
from firsttoken.checks import check_count

Array = np.ndarray
Length = int | Callable[[np.random.Generator], int]

POLICIES = ("max", "pow2", "oracle", "paged")
ROUTES = ("round_robin", "conversation", "prefix")


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
    tail: list[int]  # tokens of the last block while it is not full (with prefix caching only)


class BlockPool:
    """The memory for keys and values as blocks of `block_size` tokens, handed out on demand.

    A request's tokens lie in blocks anywhere in the pool; its block table names them in order, as a
    page table does in an operating system. Every block counts its holders. A fork shares all blocks
    of its parent, and a request that writes to a shared block first gets a copy of it.

    With `prefix_caching` a full block is known by the hash of its tokens and of the block before
    it, so by the whole text up to its end: keys and values depend on all of that. A new request
    reuses blocks whose text it starts with. Full blocks are never written again, so sharing them
    needs no copy. A block that nobody holds keeps its content until its memory is needed: blocks
    without anything to reuse go first, then the least recently used, the end of a text before its
    start. Of equal content, unheld blocks keep one copy only, and none while a request holds one.

    The pool counts; it stores no keys and values (`PagedCache` does). It takes a block's content as
    present once it has got the tokens, so hand it tokens in the step that computes them.

    Request ids are any hashable values, tokens are integers. A call that raises changes nothing.

    Raises: ValueError for sizes below one, for a live id in `allocate` and `fork`, and for a
            position that the request does not have; KeyError for an unknown id; OutOfBlocks.
    Source: Kwon et al. 2023, arXiv:2309.06180, sec. 4; vLLM, design document "Automatic Prefix
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
        tail = tokens[len(hashes) * self.block_size :] if self.prefix_caching else []
        self._requests[request_id] = _Request(reused + new, n_tokens, tail)
        return len(reused) * self.block_size

    def append(self, request_id: Hashable, token: int) -> tuple[int, int] | None:
        """Add one token to a request; return (source, target) where a block must be copied first.

        That is where the token goes to a block that others hold, too. The last holder of a block
        writes in place.
        """
        request = self._request(request_id)
        token = operator.index(token)
        copy = None
        if request.n_tokens % self.block_size == 0:
            self._check_free(1)
            request.table.append(self._take())
        elif self._holders[source := request.table[-1]] > 1:
            self._check_free(1)
            copy = source, self._take()
            self._holders[source] -= 1
            request.table[-1] = copy[1]
        request.n_tokens += 1
        if self.prefix_caching:
            request.tail.append(token)
            if len(request.tail) == self.block_size:
                parent = self._hashes[request.table[-2]] if len(request.table) > 1 else b""
                self._remember(request.table[-1], _hash_block(parent, request.tail))
                request.tail = []
        return copy

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """Make a new request that shares everything with its parent; nothing is copied."""
        request = self._request(parent)
        self._check_new(child)
        for block in request.table:
            self._hold(block)
        self._requests[child] = _Request([*request.table], request.n_tokens, [*request.tail])

    def free(self, request_id: Hashable) -> None:
        """End a request; blocks that no other holds can be handed out again."""
        request = self._request(request_id)
        del self._requests[request_id]
        for block in reversed(request.table):  # so that the end of a text is evicted first
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._retire(block)

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
        # Only the last block of a request can have room, and whoever shares it, shares all of it.
        last = {r.table[-1]: r.n_tokens for r in self._requests.values() if r.table}
        return Usage(
            used=self.n_blocks - self.n_free,
            cached=len(self._cached),
            free=len(self._empty),
            wasted_slots=sum(-n_tokens % self.block_size for n_tokens in last.values()),
        )

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

    def _hash_blocks(self, tokens: list[int]) -> list[bytes]:
        """Return the hash of every full block of a text; none without prefix caching."""
        hashes: list[bytes] = []
        if self.prefix_caching:
            for end in range(self.block_size, len(tokens) + 1, self.block_size):
                parent = hashes[-1] if hashes else b""
                hashes.append(_hash_block(parent, tokens[end - self.block_size : end]))
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
        full, self._hashes[block] = self._hashes[block], None
        self._blocks_with[full].remove(block)
        if not self._blocks_with[full]:
            del self._blocks_with[full]


class PagedCache:
    """The keys and values of every layer, in the blocks of a pool.

    The pool says where a token lies, this class keeps what is there. Before a pass, give the pool
    the new tokens, and `copy` where `append` asks for it; then run the model with the request's
    `sequence` as its cache.

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
    """What a model sees of one request in a `PagedCache`; it has the methods of `KVCache`.

    `length` counts the tokens that the model need not compute any more. Where every token was found
    in the prefix cache it is one less, so that a pass over the last token gives the logits. Its
    keys and values are not written then: they are there, and others may hold that block.

    `keys` and `values` gather the blocks into one array, a copy. `paged_attention` needs none.

    Shapes: as `KVCache` with B = 1
    Raises: ValueError for n_cached beyond the request's tokens, and for more tokens than the pool
            has been given; KeyError for a request that the pool does not know.
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

    def append(self, layer: int, k: Array, v: Array) -> None:
        """Store the keys and values (1, K, T, H) of the next tokens of one layer."""
        start = self._lengths[layer]
        end = start + k.shape[2]
        n_tokens = self.cache.pool.n_tokens(self.request_id)
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
        return self._gather(self.cache.keys[layer], self._lengths[layer])

    def values(self, layer: int) -> Array:
        """Return all values of a layer, (1, K, S, H)."""
        return self._gather(self.cache.values[layer], self._lengths[layer])

    def _gather(self, stored: Array, length: int) -> Array:
        return _gather(stored, self.cache.pool.block_table(self.request_id), length)


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
            result (B, N, T, H)
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

    peak = np.full((*rows.shape[:2], 1), -np.inf, dtype=rows.dtype)
    total, mixed = np.zeros_like(peak), np.zeros_like(rows)
    per_part = max(1, part // block_size)
    for first in range(0, math.ceil(length / block_size), per_part):
        blocks = table[first : first + per_part]
        start, end = first * block_size, min((first + len(blocks)) * block_size, length)
        scores = np.concatenate([rows @ keys[block] for block in blocks], axis=-1)
        scores = scores[..., : end - start]  # [K, G·T, end - start]; empty slots are cut off
        if end > length - n_new + 1:  # some of these keys come after some of the queries
            by_query = scores.reshape(n_kv_heads, -1, n_new, end - start)  # a view
            np.copyto(by_query, -np.inf, where=np.arange(start, end) > position)

        higher = np.maximum(peak, scores.max(axis=-1, keepdims=True))
        shrink, peak = np.exp(peak - higher), higher
        weights = np.exp(np.subtract(scores, peak, out=scores), out=scores)
        total = total * shrink + weights.sum(axis=-1, keepdims=True)
        mixed *= shrink
        for i, block in enumerate(blocks):
            weight = weights[..., i * block_size : (i + 1) * block_size]
            mixed += weight @ values[block, :, : weight.shape[-1]]
    return (mixed / total).reshape(query.shape)


@dataclass(frozen=True)
class Waste:
    """Where the memory for keys and values goes while requests wait: shares that add up to 1.

    used: holds a token. reservation: kept for a token that its request will still write.
    internal: kept for a request that will never need it. external: free, but of no use to the
    request that waits; what an allocator adds to round a size up counts here, as in the source.
    batch: how many requests run, on average.

    Source: Kwon et al. 2023, arXiv:2309.06180, sec. 3.1 and fig. 2
    """

    used: float
    reservation: float
    internal: float
    external: float
    batch: float


def memory_waste(
    lengths: Sequence[tuple[int, int]],
    n_slots: int,
    policy: str,
    *,
    max_length: int = 2048,
    block_size: int = 16,
    allocator: str = "buddy",
) -> Waste:
    """Serve requests from a memory of `n_slots` tokens and return what the memory was used for.

    All requests, (prompt tokens, output tokens), wait from the start and are admitted in order, as
    soon as the next one finds room. Each step gives every running request a token; a request with
    all its tokens leaves. Averaged over the steps in which someone waits: without that, free
    memory is no waste.

    A contiguous policy reserves at admission: "max" `max_length` tokens, "pow2" the prompt and
    the output rounded up to a power of two, "oracle" exactly what the request will need. The place
    is found by a "buddy" allocator (sizes and places are powers of two, neighbours merge) or by
    "first_fit" (the first hole that is large enough). "paged" takes blocks on demand from a
    `BlockPool`; when none is left, the request that came last gives its blocks up and waits again,
    before all others.

    Units:  tokens
    Raises: ValueError for an unknown policy or allocator, sizes below one, a request that can
            never run, and requests that all fit at once: then nothing is wasted by anyone.
    Source: Kwon et al. 2023, arXiv:2309.06180, sec. 6.1 (the three versions of Orca); Knuth, The
            Art of Computer Programming, vol. 1, sec. 2.5 (first fit and buddy system)

    >>> lengths = [(100, 28)] * 100
    >>> [round(memory_waste(lengths, 4096, policy).used, 3) for policy in POLICIES]
    [0.055, 0.443, 0.887, 0.937]
    """
    if policy not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}")
    if allocator not in _ALLOCATORS:
        raise ValueError(f"allocator must be one of {', '.join(_ALLOCATORS)}, got {allocator!r}")
    for name, value in (
        ("n_slots", n_slots),
        ("max_length", max_length),
        ("block_size", block_size),
    ):
        check_count(name, value, at_least=1)
    for n_prompt, n_output in lengths:
        check_count("lengths: n_prompt", n_prompt, at_least=1)
        check_count("lengths: n_output", n_output, at_least=1)
        if n_prompt + n_output > max_length:
            raise ValueError(
                f"lengths: {n_prompt} + {n_output} tokens, expected at most max_length {max_length}"
            )
    if policy == "paged":
        return _paged_waste(lengths, n_slots, block_size)
    reserve = {
        "max": lambda n_prompt, n_output: max_length,
        "pow2": lambda n_prompt, n_output: n_prompt + _round_up(n_output),
        "oracle": lambda n_prompt, n_output: n_prompt + n_output,
    }[policy]
    return _contiguous_waste(lengths, n_slots, reserve, _ALLOCATORS[allocator](n_slots))


def last_block_waste(n_tokens: Array, block_size: int) -> Array:
    """Return the empty slots in the last block of requests with these lengths.

    At most block_size - 1. Where lengths are spread evenly over the remainders of block_size, the
    mean is (block_size - 1)/2, whatever the lengths.

    Shapes: n_tokens and result (…,)
    Raises: ValueError for a block size below one, and lengths that are no counts.

    >>> waste = last_block_waste(np.arange(1, 1601), 16)
    >>> waste.max(), waste.mean()
    (np.int64(15), np.float64(7.5))
    """
    check_count("block_size", block_size, at_least=1)
    n_tokens = np.asarray(n_tokens)
    if not np.issubdtype(n_tokens.dtype, np.integer) or np.any(n_tokens < 0):
        raise ValueError(f"n_tokens must be integers of at least 0, got {n_tokens}")
    return -n_tokens % block_size


class _Allocator(Protocol):
    """Contiguous memory: `place` returns (start, size taken), or None where nothing fits."""

    def place(self, size: int) -> tuple[int, int] | None: ...

    def release(self, start: int, size: int) -> None: ...


class _FirstFit:
    """Takes the first hole that is large enough; holes that touch become one."""

    def __init__(self, n_slots: int) -> None:
        self.holes = [(0, n_slots)]  # (start, size), by start

    def place(self, size: int) -> tuple[int, int] | None:
        for i, (start, room) in enumerate(self.holes):
            if room >= size:
                self.holes[i : i + 1] = [(start + size, room - size)] if room > size else []
                return start, size
        return None

    def release(self, start: int, size: int) -> None:
        holes: list[tuple[int, int]] = []
        for first, room in sorted([*self.holes, (start, size)]):
            if holes and sum(holes[-1]) == first:
                first, room = holes[-1][0], holes.pop()[1] + room
            holes.append((first, room))
        self.holes = holes


class _Buddy:
    """Hands out powers of two: a larger piece is halved, two free halves become one again."""

    def __init__(self, n_slots: int) -> None:
        self.free: dict[int, set[int]] = {1 << i: set() for i in range(n_slots.bit_length())}
        start = 0
        for size in sorted(self.free, reverse=True):  # the binary digits of n_slots
            if n_slots & size:
                self.free[size].add(start)
                start += size

    def place(self, size: int) -> tuple[int, int] | None:
        size = _round_up(size)
        room = next((s for s, starts in self.free.items() if s >= size and starts), None)
        if room is None:
            return None
        start = min(self.free[room])
        self.free[room].remove(start)
        while room > size:
            room //= 2
            self.free[room].add(start + room)
        return start, size

    def release(self, start: int, size: int) -> None:
        while start ^ size in self.free[size]:  # the other half of the piece both came from
            self.free[size].remove(start ^ size)
            start, size = min(start, start ^ size), 2 * size
        self.free[size].add(start)


_ALLOCATORS: dict[str, Callable[[int], _Allocator]] = {"buddy": _Buddy, "first_fit": _FirstFit}


def _contiguous_waste(
    lengths: Sequence[tuple[int, int]],
    n_slots: int,
    reserve: Callable[[int, int], int],
    memory: _Allocator,
) -> Waste:
    queue = deque(lengths)
    running: list[tuple[int, tuple[int, int], int, int]] = []  # last step, place, needed, reserved
    held = needed = reserved = 0  # now, by all that run
    steps = used = reservation = internal = n_running = 0  # summed over the steps
    while True:
        while queue and (place := memory.place(reserve(*queue[0]))) is not None:
            n_prompt, n_output = queue.popleft()
            total, kept = n_prompt + n_output, reserve(n_prompt, n_output)
            heappush(running, (steps + n_output, place, total, kept))
            held, needed, reserved = held + n_prompt, needed + total, reserved + kept
        if not queue:
            return _shares(used, reservation, internal, n_running, steps, n_slots)
        if not running:
            raise ValueError(
                f"lengths: a request of {queue[0]} tokens can never be placed in {n_slots} slots"
            )
        used += held
        reservation += needed - held
        internal += reserved - needed
        steps += 1
        n_running += len(running)
        held += len(running)
        while running and running[0][0] == steps:
            _, place, total, kept = heappop(running)
            memory.release(*place)
            held, needed, reserved = held - total, needed - total, reserved - kept


def _paged_waste(lengths: Sequence[tuple[int, int]], n_slots: int, block_size: int) -> Waste:
    pool = BlockPool(n_slots // block_size, block_size)
    longest = max((sum(length) for length in lengths), default=0)
    if longest > pool.n_blocks * block_size:
        raise ValueError(f"lengths: a request of {longest} tokens can never run in {n_slots} slots")
    # A request is what it holds at admission, and its final length; its place in `lengths` its id.
    queue = deque((i, n_prompt, sum(lengths[i])) for i, (n_prompt, _) in enumerate(lengths))
    running: dict[int, int] = {}  # id to final length, in order of admission
    steps = used = reservation = internal = n_running = 0
    while True:
        while queue and pool.n_free >= math.ceil(queue[0][1] / block_size):
            i, n_tokens, total = queue.popleft()
            pool.allocate(i, range(n_tokens))
            running[i] = total
        if not queue:
            return _shares(used, reservation, internal, n_running, steps, n_slots)
        for i, total in running.items():
            n_tokens = pool.n_tokens(i)
            held = n_tokens + -n_tokens % block_size
            used += n_tokens
            reservation += min(held, total) - n_tokens
            internal += max(0, held - total)
        steps += 1
        n_running += len(running)
        for i in list(running):
            while i in running:
                try:
                    pool.append(i, 0)
                except OutOfBlocks:
                    last = next(reversed(running))
                    queue.appendleft((last, pool.n_tokens(last), running.pop(last)))
                    pool.free(last)
                else:
                    break
            if i in running and pool.n_tokens(i) == running[i]:
                pool.free(i)
                del running[i]


def _shares(
    used: int, reservation: int, internal: int, n_running: int, steps: int, n_slots: int
) -> Waste:
    """Turn sums over steps into shares of the memory."""
    if steps == 0:
        raise ValueError(f"lengths all fit into {n_slots} slots at once; expected some to wait")
    shares = [slots / (steps * n_slots) for slots in (used, reservation, internal)]
    return Waste(*shares, external=1 - sum(shares), batch=n_running / steps)


def _round_up(size: int) -> int:
    """Return the smallest power of two that is not below `size`."""
    return 1 << (size - 1).bit_length()


@dataclass(frozen=True)
class Turn:
    """A message in a chat: the prompt is all that was said so far, in token ids.

    Units:  seconds
    """

    arrival_s: float
    conversation: int
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def chat_trace(
    n_conversations: int,
    rng: np.random.Generator,
    *,
    rate: float = 1.0,
    think_s: float = 30.0,
    n_turns: Length = 5,
    n_system: int = 256,
    n_user: Length = 64,
    n_answer: Length = 192,
    vocab_size: int = 32000,
) -> list[Turn]:
    """Return the turns of many chats, by arrival: prompts that share a start and grow.

    Every conversation starts with the same system prompt. A turn's prompt is that of the turn
    before, its answer, and a new message of the user. Conversations begin at random, `rate` per
    second, and think an exponential time with mean `think_s` from one turn to the next. Messages
    are random tokens: only whether they are equal matters here.

    Units:  conversations/s, seconds, tokens. A length is a number, or draws one from `rng`.
    Raises: ValueError for a rate or think time that is not positive, and lengths below one
            (n_system: below zero).

    >>> turns = chat_trace(2, np.random.default_rng(0), n_turns=3)
    >>> sorted(len(turn.prompt) for turn in turns)  # 256 + 64, and 192 + 64 more each turn
    [320, 320, 576, 576, 832, 832]
    """
    for name, value in (("rate", rate), ("think_s", think_s)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value!r}")
    check_count("n_conversations", n_conversations, at_least=1)
    check_count("vocab_size", vocab_size, at_least=1)
    check_count("n_system", n_system)

    def draw(name: str, length: Length) -> int:
        return check_count(name, length(rng) if callable(length) else length, at_least=1)

    def message(n: int) -> tuple[int, ...]:
        return tuple(rng.integers(vocab_size, size=n).tolist())

    system = message(n_system)
    begins = np.cumsum(rng.exponential(1 / rate, size=n_conversations)).tolist()
    turns = []
    for conversation, arrival_s in enumerate(begins):
        text = system
        for _ in range(draw("n_turns", n_turns)):
            text += message(draw("n_user", n_user))
            answer = message(draw("n_answer", n_answer))
            turns.append(Turn(arrival_s, conversation, text, answer))
            text += answer
            arrival_s += float(rng.exponential(think_s))
    return sorted(turns, key=lambda turn: turn.arrival_s)


@dataclass(frozen=True)
class Replay:
    """What happened to the prompt of each turn; arrays with one entry per turn.

    pool: which pool served it. n_prompt: its tokens. n_cached: those found in that pool.
    n_loaded: those found beyond them in host memory. The rest had to be computed.
    work: of each pool's replica, the tokens it computed, prompts and answers.
    """

    pool: Array
    n_prompt: Array
    n_cached: Array
    n_loaded: Array
    work: Array

    @property
    def n_computed(self) -> Array:
        """The prompt tokens that no cache had."""
        return self.n_prompt - self.n_cached - self.n_loaded

    @property
    def hit_rate(self) -> float:
        """The share of all prompt tokens that was in the pool's cache or came from the host's."""
        return 1 - float(self.n_computed.sum() / self.n_prompt.sum())

    @property
    def imbalance(self) -> float:
        """The work of the busiest replica over the mean; 1 is perfect balance."""
        return float(self.work.max() / self.work.mean())


def replay(
    turns: Iterable[Turn],
    pools: Sequence[BlockPool],
    route: str = "prefix",
    host: BlockPool | None = None,
    max_imbalance: float = 1.1,
) -> Replay:
    """Serve turns one after another from one or more pools, and count what was cached.

    Each pool stands for a replica of the model with a prefix cache of its own. `route` says which
    one serves a turn: "round_robin" the next, "conversation" always the same one for a
    conversation, "prefix" the one that has most of the prompt cached, or of equals the one with
    the least work so far. It passes over replicas with more than `max_imbalance` times the mean
    work: the prefix alone would send everybody with the same system prompt to one of them.

    `host` is a second tier behind all of them, in host memory, slower and larger. Every block of a
    turn is also stored there, and blocks that a pool has lost are loaded instead of computed.

    A turn ends before the next one starts, so it competes with the cache of earlier turns only.

    Units:  tokens
    Raises: ValueError for no turns or pools, pools without prefix caching or of different block
            sizes, an unknown route, a max_imbalance below 1, and a turn that does not fit into a
            pool.
    Source: Zheng et al. 2023, arXiv:2312.07104 (hit rate); Srivatsa et al. 2024, arXiv:2407.00023
            (routing by prefix and load)

    >>> turns = chat_trace(40, np.random.default_rng(0))
    >>> for route in ROUTES:
    ...     pools = [BlockPool(1000, 16, prefix_caching=True) for _ in range(4)]
    ...     print(route, round(replay(turns, pools, route).hit_rate, 2))
    round_robin 0.56
    conversation 0.92
    prefix 0.9
    """
    turns = list(turns)
    _check_replay(turns, pools, route, host)
    if not max_imbalance >= 1:
        raise ValueError(f"max_imbalance must be at least 1, got {max_imbalance}")
    work = [0] * len(pools)
    rows = []
    for i, turn in enumerate(turns):
        n_prompt = len(turn.prompt)
        if route == "round_robin":
            at = i % len(pools)
        elif route == "conversation":
            at = turn.conversation % len(pools)
        else:
            mean = sum(work) / len(work)
            calm = [j for j, done in enumerate(work) if done / max_imbalance <= mean]
            at = max(calm, key=lambda j: (pools[j].n_cached(turn.prompt), -work[j]))
        n_cached = pools[at].allocate(i, turn.prompt)
        for token in turn.answer:
            pools[at].append(i, token)
        pools[at].free(i)
        n_loaded = 0
        if host is not None:
            n_loaded = max(0, host.n_cached(turn.prompt) - n_cached)
            host.allocate(i, turn.prompt + turn.answer)
            host.free(i)
        work[at] += n_prompt - n_cached - n_loaded + len(turn.answer)
        rows.append((at, n_prompt, n_cached, n_loaded))
    return Replay(*np.array(rows).T, work=np.array(work))


def _check_replay(
    turns: list[Turn], pools: Sequence[BlockPool], route: str, host: BlockPool | None
) -> None:
    tiers = [*pools] if host is None else [*pools, host]
    if not turns or not pools:
        raise ValueError(f"{len(turns)} turns and {len(pools)} pools, expected at least one each")
    if route not in ROUTES:
        raise ValueError(f"route must be one of {', '.join(ROUTES)}, got {route!r}")
    if not all(tier.prefix_caching and tier.block_size == pools[0].block_size for tier in tiers):
        raise ValueError("pools and host must have prefix caching and blocks of one size")
    longest = max(len(turn.prompt) + len(turn.answer) for turn in turns)
    for tier in tiers:
        if longest > tier.n_free * tier.block_size:
            raise ValueError(
                f"a turn of {longest} tokens does not fit into a pool with {tier.n_free} blocks "
                f"of {tier.block_size} free"
            )


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
