"""Pool and cache: lives of requests against a plain model of both."""

import copy

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from firsttoken.architectures import Architecture
from firsttoken.paging import BlockPool, OutOfBlocks, PagedCache, Usage

TOY = Architecture("toy", 2, 8, 1, 1, 1, 16, 32)  # two layers, one number per key and value

# --- lives of requests: the pool, the real arrays, and a plain model of both

tokens = st.lists(st.integers(0, 1), max_size=9)  # two tokens only, so that texts often share
picks = st.integers(0, 10**6)


def fingerprints(text):
    """One number per token that tells its whole text up to there, as keys and values depend on it.

    The token itself included; exact in float32.
    """
    return [float(int("1" + "".join(map(str, text[: i + 1])), 2)) for i in range(len(text))]


class Lives(RuleBasedStateMachine):
    """Requests come, grow, fork, are preempted and leave, in a pool that is too small for them.

    The model knows the text of every request, and which full text each block holds. It looks at
    block tables only, never into the pool.
    """

    pool_class = BlockPool
    cache_class = PagedCache

    @initialize(n_blocks=st.integers(1, 7), block_size=st.integers(1, 3), caching=st.booleans())
    def start(self, n_blocks, block_size, caching):
        self.pool = self.pool_class(n_blocks, block_size, prefix_caching=caching)
        self.cache = self.cache_class(TOY, self.pool)
        self.size = block_size
        self.texts = {}  # live requests
        self.ended = [[]]
        self.stored = {}  # block to the text up to its end, least recently used first
        self.next_id = 0

    # --- the model

    def tables(self):
        return {i: self.pool.block_table(i) for i in self.texts}

    def held(self):
        return {block for table in self.tables().values() for block in table}

    def unheld(self):
        return set(range(self.pool.n_blocks)) - self.held()

    def reusable(self, text):
        """Blocks with the longest start of a text, in order; of equal ones a held one."""
        found = []
        while self.pool.prefix_caching and (len(found) + 1) * self.size <= len(text):
            start = text[: (len(found) + 1) * self.size]
            copies = [block for block, stored in self.stored.items() if stored == start]
            if not copies:
                break
            found.append(copies)
        return found

    def settle(self):
        """Note which blocks are full now; of equal texts, unheld blocks keep at most one."""
        held = self.held()
        for i, table in self.tables().items():
            for nth, block in enumerate(table):
                text = self.texts[i][: (nth + 1) * self.size]
                if len(text) == (nth + 1) * self.size and self.pool.prefix_caching:
                    assert self.stored.setdefault(block, text) == text
        for block, text in list(self.stored.items()):
            if block not in held and any(self.stored[b] == text for b in held & set(self.stored)):
                del self.stored[block]

    def attempt(self, needed, call):
        """Make a call that needs this many blocks; return (its result, what was unheld before).

        None where there are too few: then it must raise and change nothing.
        """
        unheld = self.unheld()
        if needed <= len(unheld):
            return call(), unheld
        before = copy.deepcopy(vars(self.pool))
        with pytest.raises(OutOfBlocks):
            call()
        assert vars(self.pool) == before
        return None

    def check_eviction(self, unheld, reused=()):
        """Blocks without content went first, then the least recently used."""
        evictable = [block for block in self.stored if block in unheld and block not in reused]
        still = self.unheld()
        evicted = [block for block in evictable if block not in still]
        assert evicted == evictable[: len(evicted)]
        assert not evicted or still <= set(evictable)
        for block in evicted:
            del self.stored[block]

    def write(self, request_id, n_cached):
        """Compute what the cache lacks; what it has already is offered as NaN, to be left alone."""
        sequence = self.cache.sequence(request_id, n_cached)
        text = self.texts[request_id]
        new = np.array(fingerprints(text), dtype=np.float32)
        assert sequence.length == max(0, min(n_cached, len(text) - 1))
        assert sequence.keys(0).ravel().tolist() == new[: sequence.length].tolist()
        new[:n_cached] = np.nan
        new = new[sequence.length :].reshape(1, 1, -1, 1)
        for layer in range(2):
            sequence.append(layer, new, -new)

    def admit(self, request_id, text):
        found = self.reusable(text)
        held, blocks = self.held(), -(-len(text) // self.size)
        needed = blocks - sum(any(b in held for b in copies) for copies in found)
        assert self.pool.n_cached(text) == len(found) * self.size
        outcome = self.attempt(needed, lambda: self.pool.allocate(request_id, text))
        if outcome is None:
            return None
        n_cached, unheld = outcome
        assert n_cached == len(found) * self.size
        self.texts[request_id] = list(text)
        reused = self.pool.block_table(request_id)[: len(found)]
        assert all(block in copies for block, copies in zip(reused, found, strict=True))
        self.check_eviction(unheld, reused)
        self.settle()
        return n_cached

    def leave(self, request_id):
        table = self.pool.block_table(request_id)
        self.pool.free(request_id)
        self.ended.append(self.texts.pop(request_id))
        self.put_away(table)

    def put_away(self, table):
        """Note that a request has given these blocks back."""
        held = self.held()
        for block in reversed(table):
            if block not in held and block in self.stored:
                self.stored[block] = self.stored.pop(block)  # the most recently used
        self.settle()

    def choose(self, pick):
        return list(self.texts)[pick % len(self.texts)]

    # --- what can happen

    @rule(text=tokens)
    def allocate(self, text):
        n_cached = self.admit(self.next_id, text)
        if n_cached is not None:
            self.write(self.next_id, n_cached)
        self.next_id += 1

    @rule(pick=picks, more=tokens)
    def allocate_a_known_text(self, pick, more):
        """A chat that goes on, or the very same prompt: a full prefix hit."""
        known = self.ended + list(self.texts.values())
        self.allocate(known[pick % len(known)] + more)

    @precondition(lambda self: self.texts)
    @rule(pick=picks, token=st.integers(0, 1))
    def append(self, pick, token):
        i = self.choose(pick)
        n_tokens, old = len(self.texts[i]), self.pool.block_table(i)
        full = n_tokens % self.size == 0
        shared = not full and sum(old[-1] in table for table in self.tables().values()) > 1
        outcome = self.attempt(full or shared, lambda: self.pool.append(i, token))
        if outcome is None:
            return
        asked, unheld = outcome
        table = self.pool.block_table(i)
        assert asked == ((old[-1], table[-1]) if shared else None)
        assert table[: n_tokens // self.size] == old[: n_tokens // self.size]
        if asked:
            self.cache.copy(*asked)
        self.check_eviction(unheld)
        if not full and not shared:
            self.stored.pop(old[-1], None)  # what a truncated block was full of is written over
        self.texts[i] = [*self.texts[i], token]
        self.settle()
        self.write(i, n_tokens)

    @precondition(lambda self: self.texts)
    @rule(pick=picks, drop=st.integers(0, 9))
    def truncate(self, pick, drop):
        """Through the request's cache where that holds so many tokens, else in the pool alone."""
        i = self.choose(pick)
        text, table = self.texts[i], self.pool.block_table(i)
        n = max(0, len(text) - drop)
        sequence = self.cache.sequence(i, len(text))
        if n <= sequence.length:
            sequence.truncate(n)
            assert sequence.length == n
            assert sequence.nbytes == 16 * self.size * len(self.pool.block_table(i))
            for stored, sign in ((sequence.keys, 1), (sequence.values, -1)):
                assert (sign * stored(1)).ravel().tolist() == fingerprints(text[:n])
        else:
            self.pool.truncate(i, n)
        self.texts[i] = text[:n]
        kept = -(-n // self.size)
        assert self.pool.block_table(i) == table[:kept]
        self.put_away(table[kept:])

    @precondition(lambda self: self.texts)
    @rule(pick=picks)
    def fork(self, pick):
        parent, before = self.choose(pick), self.pool.usage()
        self.pool.fork(parent, self.next_id)
        self.texts[self.next_id] = list(self.texts[parent])
        assert self.pool.block_table(self.next_id) == self.pool.block_table(parent)
        assert self.pool.usage() == before
        self.next_id += 1

    @precondition(lambda self: self.texts)
    @rule(pick=picks, swap=st.booleans())
    def sample_in_parallel(self, pick, swap):
        """Fork, then let both write: the first one gets a copy, the last one writes in place."""
        self.fork(pick)
        pair = [pick % (len(self.texts) - 1), len(self.texts) - 1]
        for token, place in enumerate(pair[::-1] if swap else pair):
            self.append(place, token)

    @precondition(lambda self: self.texts)
    @rule(pick=picks)
    def free(self, pick):
        self.leave(self.choose(pick))

    @precondition(lambda self: self.texts)
    @rule(pick=picks, between=st.lists(st.integers(0, 1), max_size=4))
    def preempt_and_recompute(self, pick, between):
        """Give up everything, let another request in, come back: part of the text may be there."""
        i = self.choose(pick)
        text = self.texts[i]
        self.leave(i)
        self.allocate(between)
        n_cached = self.admit(i, text)
        if n_cached is not None:
            self.write(i, n_cached)

    @precondition(lambda self: self.texts)
    @rule(pick=picks)
    def calls_that_cannot_be(self, pick):
        live, unknown, before = self.choose(pick), "nobody", copy.deepcopy(vars(self.pool))
        for call in (
            lambda: self.pool.append(unknown, 0),
            lambda: self.pool.fork(unknown, "new"),
            lambda: self.pool.free(unknown),
            lambda: self.pool.block_table(unknown),
            lambda: self.pool.slot(unknown, 0),
            lambda: self.pool.truncate(unknown, 0),
        ):
            with pytest.raises(KeyError, match="'nobody' is unknown"):
                call()
        for call in (
            lambda: self.pool.allocate(live, [0]),
            lambda: self.pool.fork(live, live),
            lambda: self.pool.slot(live, -1),
            lambda: self.pool.slot(live, len(self.texts[live])),
            lambda: self.pool.truncate(live, -1),
            lambda: self.pool.truncate(live, len(self.texts[live]) + 1),
            lambda: self.pool.truncate(live, False),
        ):
            with pytest.raises(ValueError, match=r"is in use|position must lie in|n_tokens must"):
                call()
        assert vars(self.pool) == before

    # --- what always holds

    @invariant()
    def every_request_reads_what_it_wrote(self):
        for i, text in getattr(self, "texts", {}).items():
            assert self.pool.n_tokens(i) == len(text)
            slots = [self.pool.slot(i, position) for position in range(len(text))]
            wrote = fingerprints(text)
            keys = self.cache.keys.reshape(2, -1)[:, slots].tolist()  # K = H = 1: a slot each
            values = (-self.cache.values).reshape(2, -1)[:, slots].tolist()
            assert keys == values == [wrote, wrote]

    @invariant()
    def the_books_balance(self):
        if not hasattr(self, "pool"):
            return
        held = self.held()
        filled = dict.fromkeys(held, 0)  # of each held block: its slots with a token of anyone
        for i, table in self.tables().items():
            for nth, block in enumerate(table):
                n = min(self.size, len(self.texts[i]) - nth * self.size)
                filled[block] = max(filled[block], n)
        wasted = sum(self.size - n for n in filled.values())
        cached = len(set(self.stored) - held)
        n_free = self.pool.n_blocks - len(held)
        assert self.pool.n_free == n_free
        assert self.pool.usage() == Usage(len(held), cached, n_free - cached, wasted)
        for i, table in self.tables().items():
            assert len(table) == len(set(table)) == -(-len(self.texts[i]) // self.size)

    def teardown(self):
        """Nothing leaks: when all have left, one request can have the whole pool."""
        if not hasattr(self, "pool"):
            return
        for i in list(self.texts):
            self.leave(i)
        assert self.pool.n_free == self.pool.n_blocks
        n_slots = self.pool.n_blocks * self.size
        assert self.pool.allocate("all", [2] * n_slots) == 0
        assert sorted(self.pool.block_table("all")) == list(range(self.pool.n_blocks))


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=60, stateful_step_count=30)


# --- the pool: what its interface promises, by hand


def test_numpy_tokens_are_the_same_tokens():
    pool = BlockPool(8, 2, prefix_caching=True)
    pool.allocate("a", np.array([1, 2, 3]))
    pool.append("a", np.int64(4))
    assert pool.allocate("b", [1, 2, 3, 4]) == 4


@pytest.mark.parametrize("caching", [False, True])
def test_tokens_that_are_no_integers_change_nothing(caching):
    pool = BlockPool(4, 2, caching)
    pool.allocate("a", [1])
    before = copy.deepcopy(vars(pool))
    with pytest.raises(TypeError):
        pool.append("a", "x")
    if caching:
        with pytest.raises(TypeError):
            pool.allocate("b", [1, 2, "x"])
    assert vars(pool) == before


def test_sizes_that_cannot_be():
    with pytest.raises(ValueError, match="block_size must be an integer of at least 1"):
        BlockPool(4, 1.5)
