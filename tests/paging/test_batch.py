"""Sequences of a pass attend together as each would by itself, and store the same."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttoken.architectures import Architecture
from firsttoken.attention import attention
from firsttoken.paging import BlockPool, PagedBatch, PagedCache
from firsttoken.paging.batch import _Group

TOY = Architecture("toy", 2, 24, 6, 2, 4, 16, 32)
# How many tokens each sequence has, how many it brings, and whether all that it has was found.
texts = st.lists(
    st.tuples(st.integers(0, 13), st.integers(1, 5), st.booleans()), min_size=1, max_size=7
)


def filled(texts, block_size, seed):
    """Return a cache full of numbers, blocks in no order, and a sequence of it for each text."""
    rng = np.random.default_rng(seed)
    pool = BlockPool(7 * 18, block_size)
    rng.shuffle(pool._empty)
    cache = PagedCache(TOY, pool)
    for stored in (cache.keys, cache.values):
        stored[:] = rng.normal(size=stored.shape)
    sequences, sizes = [], []
    for i, (n_before, n_new, found) in enumerate(texts):
        pool.allocate(i, range(n_before))
        if found and n_before:  # then its last token is read again, and nothing is written
            sequences.append(cache.sequence(i, n_before))
            sizes.append(1)
            continue
        sequences.append(cache.sequence(i))
        for layer in range(TOY.n_layers):
            k, v = rng.normal(size=(2, 1, 2, n_before, 4)).astype(np.float32)
            sequences[-1].append(layer, k, v)
        for token in range(n_new):
            pool.append(i, token)
        sizes.append(n_new)
    return cache, sequences, sizes


@settings(max_examples=150, deadline=None)
@given(
    texts,
    st.integers(1, 4),
    st.integers(0, 100),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([1, 3, 64]),
)
def test_together_is_one_by_one(texts, block_size, seed, window, rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PagedBatch, "rows", rows)
        compare(texts, block_size, seed, window)


def compare(texts, block_size, seed, window):
    """Let a batch attend, and each sequence by itself."""
    cache, sequences, sizes = filled(texts, block_size, seed)
    ours = copy.deepcopy(sequences)
    rng, cuts = np.random.default_rng(seed + 1), np.cumsum(sizes)[:-1]
    batch = PagedBatch(ours, sizes)
    for layer in range(TOY.n_layers):
        q, k, v = (rng.normal(size=(1, n, sum(sizes), 4)).astype(np.float32) for n in (6, 2, 2))
        together = batch.attend(layer, q, k, v, window)
        for i, part in enumerate(zip(*(np.split(x, cuts, 2) for x in (q, k, v)), strict=True)):
            query, new_k, new_v = part
            sequences[i].append(layer, new_k, new_v)
            keys, values = sequences[i].keys(layer), sequences[i].values(layer)
            alone = attention(query, keys, values, window=window)
            got = np.split(together, cuts, 2)[i]
            np.testing.assert_allclose(got, alone, atol=1e-5)
    assert [s.length for s in ours] == [s.length for s in sequences]
    np.testing.assert_array_equal(ours[0].cache.keys, cache.keys)
    np.testing.assert_array_equal(ours[0].cache.values, cache.values)


def end_not_masked(self, window):
    """What is new is masked in order, but not what lies beyond a shorter text."""
    end = self.positions[:, -1:]
    key = np.arange(self.n_keys)
    return ((key <= self.positions) | (key > end))[:, None, None]


def test_a_wrong_mask_is_noticed(monkeypatch):
    monkeypatch.setattr(_Group, "visible", end_not_masked)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        compare([(9, 3, False), (4, 3, False)], 2, 0, None)


def test_wrong_batches_are_named():
    _, sequences, _ = filled([(2, 2, False), (3, 1, False)], 2, 0)
    with pytest.raises(ValueError, match="0 sequences and 0 sizes, expected as many, at least one"):
        PagedBatch([], [])
    with pytest.raises(ValueError, match="2 sequences and 1 sizes"):
        PagedBatch(sequences, [1])
    with pytest.raises(ValueError, match="sizes must be an integer of at least 1, got 0"):
        PagedBatch(sequences, [1, 0])
    with pytest.raises(ValueError, match="request 1 has 4 tokens in the pool, 3 of them computed"):
        PagedBatch(sequences, [1, 2])
    _, others, _ = filled([(2, 2, False)], 2, 0)
    with pytest.raises(ValueError, match="sequences lie in several caches, expected one"):
        PagedBatch([sequences[0], others[0]], [1, 1])
