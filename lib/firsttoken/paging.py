"""The KV cache in blocks: who holds which block of memory, and attention that reads through it."""

import hashlib
import math
import operator
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np

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
        _check_count("n_blocks", n_blocks)
        _check_count("block_size", block_size)
        self.n_blocks, self.block_size, self.prefix_caching = n_blocks, block_size, prefix_caching
        self._requests: dict[Hashable, _Request] = {}
        self._holders = [0] * n_blocks
        self._hashes: list[bytes | None] = [None] * n_blocks  # of full blocks
        self._blocks_with: dict[bytes, list[int]] = {}  # hash to the blocks that have it
        self._empty = list(range(n_blocks))[::-1]  # a stack: unheld, nothing to reuse
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


def _hash_block(parent: bytes, tokens: list[int]) -> bytes:
    """Return the hash of a full block's text: of the hash of all before it, and of its tokens."""
    return hashlib.sha256(parent + repr(tokens).encode()).digest()


def _check_count(name: str, value: int, at_least: int = 1) -> None:
    if not isinstance(value, Integral) or value < at_least:
        raise ValueError(f"{name} must be an integer of at least {at_least}, got {value!r}")
