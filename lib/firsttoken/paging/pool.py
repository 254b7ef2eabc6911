"""Who holds which block of the cache's memory."""

import hashlib
import math
import operator
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from firsttoken.checks import check_count


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
    """The memory for keys and values in blocks of `block_size` tokens, handed out on demand.

    `allocate` gives a new request blocks for its prompt, `append` makes room for one more token,
    `free` takes all of them back. `block_table` names a request's blocks in order, as a page table
    does in an operating system: they may lie anywhere. `fork` makes a second request of the same
    text, and `truncate` cuts a text short. The pool only counts; a `PagedCache` stores the numbers.

    A block may have several holders: a fork shares all blocks of its parent. Who writes to a shared
    block first gets a copy of it (copy-on-write), which `append` asks the caller to make.

    With `prefix_caching`, requests that start alike share blocks, too. A full block is known by the
    hash of its tokens and of the block before it, so by the whole text up to its end, on which its
    keys and values depend. `allocate` reuses the blocks that hold the start of a prompt, of running
    requests and of those that have left: a block without a holder keeps its content until its
    memory is needed, or until another block has the same. Blocks with nothing to reuse are taken
    first, then the least recently used, the end of a text before its start.

    A block can be found as soon as the pool has its tokens, so pass them on in the step that
    computes their keys and values. Where `truncate` has cut into a full block with one holder, the
    next token overwrites it, and it is no longer found.

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
        # Of each block: how many requests hold it, and once it is full, the hash of its text.
        self._n_holders = [0] * self.n_blocks
        self._hashes: list[bytes | None] = [None] * self.n_blocks
        self._blocks_by_hash: dict[bytes, list[int]] = {}
        # Blocks without a holder: a stack of those with nothing to reuse; the others, the least
        # recently used first.
        self._empty = list(range(self.n_blocks))[::-1]
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def n_free(self) -> int:
        """The blocks that no request holds, those with reusable content included."""
        return len(self._empty) + len(self._cached)

    def allocate(self, request_id: Hashable, tokens: Sequence[int]) -> int:
        """Give a new request blocks for its tokens; return how many of these are cached already.

        That may be all of them; who wants the logits of the last one computes it again.
        """
        self._check_new(request_id)
        if self.prefix_caching:  # else only their number counts
            tokens = [operator.index(token) for token in tokens]
        n_tokens = len(tokens)
        hashes = self._hash_blocks(tokens)
        reused = self._find(hashes)
        n_new = math.ceil(n_tokens / self.block_size) - len(reused)
        self._check_free(n_new + sum(self._n_holders[block] == 0 for block in reused))

        for block in reused:  # before any block is taken, so that none of them is
            self._hold(block)
        new = [self._take() for _ in range(n_new)]
        # Of the new blocks the last may not be full, and has no hash then.
        for block, block_hash in zip(new, hashes[len(reused) :], strict=False):
            self._register(block, block_hash)
        kept = list(tokens) if self.prefix_caching else []
        self._requests[request_id] = _Request(reused + new, n_tokens, kept)
        return len(reused) * self.block_size

    def append(self, request_id: Hashable, token: int) -> tuple[int, int] | None:
        """Add one token to a request; return (source, target) if a block must be copied first.

        It must where others hold the block that the token goes to (copy-on-write). The last holder
        of a block writes in place.
        """
        request = self._request(request_id)
        token = operator.index(token)
        copy = None
        if request.n_tokens % self.block_size == 0:
            self._check_free(1)
            request.table.append(self._take())
        elif self._n_holders[last := request.table[-1]] > 1 or self._hashes[last] is not None:
            copy = self._make_writable(request)
        request.n_tokens += 1
        if self.prefix_caching:
            request.tokens.append(token)
            if request.n_tokens % self.block_size == 0:
                parent = self._hashes[request.table[-2]] if len(request.table) > 1 else b""
                assert parent is not None  # only full blocks stand before the last
                block_hash = hash_block(parent, request.tokens[-self.block_size :])
                self._register(request.table[-1], block_hash)
        return copy

    def truncate(self, request_id: Hashable, n_tokens: int) -> None:
        """Keep only the first tokens of a request; free the blocks beyond them.

        Other requests keep all they have, also in a block that they share with this one.
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
        self._release(beyond)

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
        self._release(request.table)

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
        wasted = {r.table[-1]: self._n_wasted(r) for r in self._requests.values() if r.table}
        return Usage(
            used=self.n_blocks - self.n_free,
            cached=len(self._cached),
            free=len(self._empty),
            wasted_slots=sum(wasted.values()),
        )

    def _n_wasted(self, request: _Request) -> int:
        """Return how many slots of a request's last block hold nobody's token."""
        nth, block = len(request.table) - 1, request.table[-1]
        sharing = [request]
        if self._n_holders[block] > 1:  # after a truncation another may hold more of it
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

    # The life of a block: taken, held by one request or several, released.

    def _take(self) -> int:
        """Hand out a block without a holder; its content is lost."""
        if self._empty:
            block = self._empty.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            self._unregister(block)
        self._n_holders[block] = 1
        return block

    def _hold(self, block: int) -> None:
        """Add a holder to a block whose content is reused."""
        self._n_holders[block] += 1
        self._cached.pop(block, None)

    def _make_writable(self, request: _Request) -> tuple[int, int] | None:
        """Make a request's last block its own; return (source, target) where this takes a copy."""
        block = request.table[-1]
        if self._n_holders[block] == 1:  # it was full, and a truncation has cut it short
            self._unregister(block)
            return None
        self._check_free(1)
        request.table[-1] = self._take()
        self._n_holders[block] -= 1
        return block, request.table[-1]

    def _release(self, table: list[int]) -> None:
        """Take blocks from one holder."""
        for block in reversed(table):  # so that the end of a text is evicted first
            self._n_holders[block] -= 1
            if self._n_holders[block] == 0:
                self._put_away(block)

    def _put_away(self, block: int) -> None:
        """Keep the content of a block that nobody holds any more, unless it is there elsewhere."""
        block_hash = self._hashes[block]
        if block_hash is not None and len(self._blocks_by_hash[block_hash]) == 1:
            self._cached[block] = None  # the most recently used
            return
        if block_hash is not None:  # another request holds a copy
            self._unregister(block)
        self._empty.append(block)

    # The prefix cache: full blocks by the hash of their text.

    def _hash_blocks(self, tokens: Sequence[int]) -> list[bytes]:
        """Return the hash of every full block of a text; none without prefix caching."""
        hashes: list[bytes] = []
        if self.prefix_caching:
            for end in range(self.block_size, len(tokens) + 1, self.block_size):
                parent = hashes[-1] if hashes else b""
                hashes.append(hash_block(parent, list(tokens[end - self.block_size : end])))
        return hashes

    def _find(self, hashes: list[bytes]) -> list[int]:
        """Return blocks with these hashes, up to the first that no block has."""
        found = []
        for block_hash in hashes:
            if block_hash not in self._blocks_by_hash:
                break
            found.append(self._blocks_by_hash[block_hash][0])
        return found

    def _register(self, block: int, block_hash: bytes) -> None:
        """Let a held block that is full now be found by its hash."""
        copy = self._blocks_by_hash.get(block_hash, [block])[0]
        if copy in self._cached:  # then it is the only copy, and no longer needed
            del self._cached[copy]
            self._unregister(copy)
            self._empty.append(copy)
        self._blocks_by_hash.setdefault(block_hash, []).append(block)
        self._hashes[block] = block_hash

    def _unregister(self, block: int) -> None:
        """Let a block no longer be found."""
        block_hash = self._hashes[block]
        assert block_hash is not None
        self._hashes[block] = None
        self._blocks_by_hash[block_hash].remove(block)
        if not self._blocks_by_hash[block_hash]:
            del self._blocks_by_hash[block_hash]


def hash_block(parent: bytes, tokens: list[int]) -> bytes:
    """Return the hash of a full block: of the hash of the block before it, and of its tokens."""
    return hashlib.sha256(parent + repr(tokens).encode()).digest()
