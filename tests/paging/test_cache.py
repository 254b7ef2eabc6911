"""The paged cache: what a request's part of it refuses; test_pool.py has what it stores."""

import numpy as np
import pytest

from firsttoken.architectures import Architecture
from firsttoken.paging import BlockPool, PagedCache

TOY = Architecture("toy", 2, 8, 1, 1, 1, 16, 32)  # two layers, one number per key and value


def test_layers_that_share_a_cache_are_refused():
    with pytest.raises(ValueError, match="expected keys and values in every layer"):
        PagedCache(TOY.replace(kv_source=[0, 0]), BlockPool(4, 4))


def test_sequences_that_cannot_be():
    pool = BlockPool(4, 2)
    pool.allocate("a", [1, 2, 3])
    cache = PagedCache(TOY, pool)
    with pytest.raises(KeyError, match="unknown"):
        cache.sequence("b")
    with pytest.raises(ValueError, match="n_cached must lie in 0 … 3, got 4"):
        cache.sequence("a", 4)
    with pytest.raises(ValueError, match="has 3 tokens in the pool, 2 of them computed; 2 more"):
        cache.sequence("a", 2).append(0, *np.ones((2, 1, 1, 2, 1)))
    sequence = cache.sequence("a", 2)
    for length in (3, -1, 1.0):
        with pytest.raises(ValueError, match=r"length must (be an integer|lie in 0 … 2)"):
            sequence.truncate(length)
    assert (sequence.length, pool.n_tokens("a")) == (2, 3)
    for shape in ((2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 1, 2), (1, 1, 1)):
        with pytest.raises(ValueError, match=r"must both be \(1, K, T, H\) with K 1, H 1"):
            sequence.append(0, np.ones(shape), np.ones(shape))
    for layer in (-1, 2):
        with pytest.raises(ValueError, match=f"layer must lie in 0 … 1, got {layer}"):
            sequence.keys(layer)
