"""Blocks of the pool for the requests that run: who needs how many, and who shares them."""

import math
from collections.abc import Iterable

from firsttoken.architectures import Architecture
from firsttoken.engine.requests import EngineRequest, Status
from firsttoken.paging import BlockPool, PagedCache


class BlockManager:
    """Gives requests their blocks: `allocate` when they join, `append` before each pass, `free`.

    A request joins with what the pool already holds of its text: the blocks of a prefix, with
    prefix caching, or the prompt of a sibling. The pool knows a text by its tokens, but keys and
    values depend on the adapter, too: each adapter adds an offset of its own to the tokens.
    """

    def __init__(self, pool: BlockPool, arch: Architecture, adapters: Iterable[str]) -> None:
        self.pool, self.cache = pool, PagedCache(arch, pool)
        names = [None, *adapters]
        self.offsets = {name: i * arch.vocab_size for i, name in enumerate(names)}

    def n_missing(self, request: EngineRequest, gamma: int = 0) -> int:
        """Return how many blocks a request needs for its text and up to gamma drafts behind it."""
        return self._n_needed(request, len(request.text.ids) + request.n_drafts(gamma))

    def allocate(self, request: EngineRequest) -> int | None:
        """Give a request that joins the blocks its text shares; return how many tokens they hold.

        Where too few blocks are free for the rest of the text it gets none, and None is returned.
        """
        offset = self.offsets[request.options.adapter]
        ids = [offset + token for token in request.text.ids]
        donor = self._prefix_donor(request)
        # Hold what is shared before counting: then it is not taken for free.
        if donor is not None:
            n_cached = request.n_prompt
            self.pool.fork(donor.id, request.id)
            self.pool.truncate(request.id, n_cached)
            # Room for its own first token, or it would be preempted as soon as it had joined.
            n_tokens = len(ids) + (len(ids) == n_cached)
        else:
            n_cached = self.pool.n_cached(ids)
            self.pool.allocate(request.id, ids[:n_cached])
            n_tokens = len(ids)
        if self._n_needed(request, n_tokens) > self.pool.n_free:
            self.pool.free(request.id)
            return None
        return n_cached

    def append(self, request: EngineRequest, budget: float) -> int:
        """Give the pool a request's next tokens, as the budget allows; return how many."""
        tokens, offset = request.tokens, self.offsets[request.options.adapter]
        start = self.pool.n_tokens(request.id)
        end = int(min(len(tokens), start + budget))
        for token in tokens[start:end]:
            shared = self.pool.append(request.id, offset + token)
            if shared is not None:
                self.cache.copy(*shared)
        return end - start

    def free(self, request: EngineRequest) -> None:
        """Take all blocks of a request back."""
        self.pool.free(request.id)

    def _n_needed(self, request: EngineRequest, n_tokens: int) -> int:
        """Return how many more blocks a request needs to have n_tokens in all."""
        n_held, size = self.pool.n_tokens(request.id), self.pool.block_size
        n_more = math.ceil(n_tokens / size) - math.ceil(n_held / size)
        return n_more + (n_tokens > n_held and self._copies_on_write(request))

    def _copies_on_write(self, request: EngineRequest) -> bool:
        """Say whether the next token goes to a block that a sibling holds, too."""
        n_held = self.pool.n_tokens(request.id)
        if len(request.siblings) == 1 or n_held % self.pool.block_size == 0:
            return False
        last = self.pool.block_table(request.id)[-1]
        others = (other for other in request.siblings if other is not request)
        return any(
            last in self.pool.block_table(other.id)
            for other in others
            if other.status is Status.RUNNING
        )

    def _prefix_donor(self, request: EngineRequest) -> EngineRequest | None:
        """Return a sibling that can share its blocks of the prompt, None if there is none.

        A request with an answer (it was preempted) copies the last of these blocks at once, to
        write behind the prompt: the sibling must have computed it. Without one, a sibling will do
        whose prompt is computed in this pass.
        """
        copies = len(request.text.ids) > request.n_prompt
        for other in request.siblings:
            if other.status is not Status.RUNNING:
                continue
            n_there = other.n_computed if copies else self.pool.n_tokens(other.id)
            if n_there >= request.n_prompt:
                return other
        return None
