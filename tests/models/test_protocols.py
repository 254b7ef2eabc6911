"""What a model and a cache promise, for every cache of the library and both backends.

A check is a function that any cache or model must pass. Each has broken ones that it must reject.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firsttoken import kv_cache
from firsttoken.architectures import Architecture
from firsttoken.models import llama, llama_torch
from firsttoken.models.checkpoint import weight_shapes
from firsttoken.models.protocols import Cache, Model, check_tokens
from firsttoken.paging import BlockPool, PagedCache

ARCH = Architecture("tiny", 2, 16, 4, 2, 4, 24, 50, max_context=64)
CAPACITY, BLOCK = 12, 4
REJECTED = AssertionError, pytest.fail.Exception
NUMBERS = 2 * 2 * 2 * 4 * CAPACITY  # of a full cache: layers, keys and values, heads, H, tokens


@dataclass(frozen=True)
class Kind:
    """A cache of 12 tokens: how to make one, and what sets it apart from the others."""

    make: Callable[[int], Cache]  # of the batch
    nbytes: int  # of one full sequence
    error: float = 0.0  # of a stored number of ordinary size
    batch: int = 2
    window: int | None = None  # then 7 tokens are kept, and up to 5 are read at once
    arrays: Callable = np.asarray  # what it stores
    grow: Callable[[Cache, int], None] = lambda cache, n: None  # make room for n tokens

    @property
    def kept(self) -> int:
        return CAPACITY if self.window is None else self.window + 4


def plain(dtype):
    return lambda batch: kv_cache.KVCache(ARCH, batch, CAPACITY, dtype)


def rolling(batch):
    return kv_cache.RollingCache(ARCH.replace(window=3), batch, CAPACITY, chunk=5)


def paged(prefix_caching=False, shared=False):
    """A sequence without tokens, or one that shares eight with another request."""

    def make(batch):
        cache = PagedCache(ARCH, BlockPool(8, BLOCK, prefix_caching))
        if not shared:
            return cache.sequence("a", cache.pool.allocate("a", []))
        other = cache.sequence("b", cache.pool.allocate("b", range(8)))
        for layer in range(ARCH.n_layers):
            other.append(layer, *np.random.default_rng(0).normal(size=(2, 1, 2, 8, 4)))
        sequence = cache.sequence("a", cache.pool.allocate("a", range(9)))
        assert sequence.length == 8
        return sequence

    return make


def grow(sequence, n):
    """Give the pool so many tokens, none of them seen before, as an engine does before a pass."""
    pool, request_id = sequence.cache.pool, sequence.request_id
    while pool.n_tokens(request_id) < sequence.length + n:
        copy = pool.append(request_id, next(NEW_TOKENS))
        if copy is not None:
            sequence.cache.copy(*copy)


NEW_TOKENS = iter(range(100, 10**9))
PAGED = Kind(paged(), nbytes=4 * NUMBERS, batch=1, grow=grow)
KINDS = {
    "KVCache fp32": Kind(plain("fp32"), nbytes=4 * NUMBERS),
    "KVCache fp16": Kind(plain("fp16"), nbytes=2 * NUMBERS, error=2e-3),
    # A scale of two bytes for each head of a token: four numbers.
    "KVCache int8": Kind(plain("int8"), nbytes=NUMBERS + NUMBERS // 2, error=0.02),
    "KVCache int4": Kind(plain("int4"), nbytes=NUMBERS, error=0.4),
    "KVCache fp8": Kind(plain("fp8"), nbytes=NUMBERS, error=0.2),
    "RollingCache": Kind(rolling, nbytes=4 * NUMBERS * 7 // CAPACITY, window=3),
    "PagedSequence": PAGED,
    "PagedSequence, prefix caching": replace(PAGED, make=paged(prefix_caching=True)),
    "PagedSequence, shared": replace(PAGED, make=paged(prefix_caching=True, shared=True)),
    "llama_torch.KVCache": Kind(
        lambda batch: llama_torch.KVCache(ARCH, batch, CAPACITY),
        nbytes=4 * NUMBERS,
        arrays=torch.tensor,
    ),
}


# Checks of a cache.


def new_arrays(kind, rng, n):
    """Keys and values of n tokens for every layer: (L, 2, B, K, n, H)."""
    return rng.normal(size=(ARCH.n_layers, 2, kind.batch, 2, n, 4)).astype(np.float32)


def held(cache):
    """All that can be read: (L, 2, B, K, S, H)."""
    arrays = [(cache.keys(i), cache.values(i)) for i in range(ARCH.n_layers)]
    assert len({x.shape for pair in arrays for x in pair}) == 1
    return np.array(arrays, np.float32)


def check_equal(kind, cache, expected):
    """The cache holds these tokens, or those of them that its window may still need."""
    length, n_read = expected.shape[4], held(cache).shape[4]
    assert cache.length == length
    assert min(length, kind.kept) <= n_read <= length
    expected = expected[..., length - n_read :, :]
    np.testing.assert_allclose(held(cache), expected, rtol=0, atol=kind.error)


def check_what_comes_back(kind, steps=(3, 0.5, 4, 1, 0.8, 2)):
    """A number appends so many tokens, a share truncates to that part of the length."""
    rng, cache = np.random.default_rng(1), kind.make(kind.batch)
    assert isinstance(cache, Cache)
    expected = held(cache)
    check_equal(kind, cache, expected)
    for step in steps:
        if isinstance(step, float):
            if cache.length > kind.kept:
                continue  # a window has dropped what the shorter text would need
            length = int(step * cache.length)
            cache.truncate(length)
            expected = expected[..., :length, :]
        elif cache.length + step <= CAPACITY:
            new = new_arrays(kind, rng, step)
            kind.grow(cache, step)
            for layer, (k, v) in enumerate(new):
                assert cache.length == expected.shape[4]  # until every layer holds the new ones
                cache.append(layer, kind.arrays(k), kind.arrays(v))
                newest = np.asarray(cache.keys(layer))[:, :, -step:]
                np.testing.assert_allclose(newest, k, rtol=0, atol=kind.error)
            expected = np.concatenate([expected, new], axis=4)
        check_equal(kind, cache, expected)


def fill(kind, cache, length):
    """Append tokens until the cache holds so many."""
    rng = np.random.default_rng(2)
    while n := min(length - cache.length, 5):
        kind.grow(cache, n)
        for layer, kv in enumerate(new_arrays(kind, rng, n)):
            cache.append(layer, *map(kind.arrays, kv))


def check_refusals(kind):
    """What does not fit, and lengths that are not there, change nothing."""
    cache = kind.make(kind.batch)
    fill(kind, cache, 10)
    before = held(cache)
    too_many = new_arrays(kind, np.random.default_rng(3), 3)
    for layer, kv in enumerate(too_many):
        with pytest.raises(ValueError):
            cache.append(layer, *map(kind.arrays, kv))
    for length in (-1, 11):
        with pytest.raises(ValueError):
            cache.truncate(length)
    assert cache.length == 10
    np.testing.assert_array_equal(held(cache), before)
    fill(kind, cache, CAPACITY)
    assert cache.length == CAPACITY


def check_bytes(kind):
    """The bytes of the arrays, which are those of a full cache from the start or grow to that."""
    cache = kind.make(kind.batch)
    fill(kind, cache, CAPACITY)
    assert cache.nbytes == kind.batch * kind.nbytes


STEPS = st.lists(st.one_of(st.integers(1, 5), st.floats(0, 1)), max_size=12)


@pytest.mark.parametrize("name", KINDS)
@given(steps=STEPS)
def test_what_was_appended_comes_back(name, steps):
    check_what_comes_back(KINDS[name], steps)


def test_what_does_not_fit_changes_nothing_and_bytes_are_those_allocated(subtests):
    for name, kind in KINDS.items():
        with subtests.test(name):
            check_refusals(kind)
            check_bytes(kind)


def test_cutting_a_shared_sequence_short_leaves_the_other_alone():
    sequence = KINDS["PagedSequence, shared"].make(1)
    other = sequence.cache.sequence("b", 8)
    before = sequence.cache.keys[:, sequence.cache.pool.block_table("b")].copy()
    sequence.truncate(3)
    fill(PAGED, sequence, CAPACITY)
    after = sequence.cache.keys[:, sequence.cache.pool.block_table("b")]
    np.testing.assert_array_equal(after, before)
    assert other.length == 7


class ForgetsNothing(kv_cache.KVCache):
    def truncate(self, length):
        pass


class ForgetsInOneLayer(kv_cache.KVCache):
    def truncate(self, length):
        self._lengths[0] = length


class TruncatesOneTooFew(kv_cache.KVCache):
    def truncate(self, length):
        super().truncate(min(length + 1, self.length))


class CountsOneMore(kv_cache.KVCache):
    @property
    def length(self):
        return super().length + 1


class HidesTheNewest(kv_cache.KVCache):
    def keys(self, layer):
        return super().keys(layer)[:, :, : self.length or None]

    def values(self, layer):
        return super().values(layer)[:, :, : self.length or None]


class WritesBeforeItRefuses(kv_cache.KVCache):
    def append(self, layer, k, v=None):
        n = self.capacity - self._lengths[layer]
        super().append(layer, k[:, :, :n], v[:, :, :n])
        if n < k.shape[2]:
            raise ValueError("full")


def test_broken_caches_are_rejected(subtests):
    for broken, check in [
        (ForgetsNothing, check_what_comes_back),
        (ForgetsInOneLayer, check_what_comes_back),
        (TruncatesOneTooFew, check_what_comes_back),
        (CountsOneMore, check_what_comes_back),
        (HidesTheNewest, check_what_comes_back),
        (WritesBeforeItRefuses, check_refusals),
    ]:
        for dtype in ("fp32", "int4"):
            kind = replace(KINDS[f"KVCache {dtype}"], make=partial(made_of, broken, dtype))
            with subtests.test(broken.__name__), pytest.raises(REJECTED):
                check(kind)


def made_of(kind, dtype, batch):
    return kind(ARCH, batch, CAPACITY, dtype)


# Checks of a model.

WEIGHTS = {
    name: np.random.default_rng(4).normal(size=shape).astype(np.float32) / 4
    for name, shape in weight_shapes(ARCH).items()
}
TOKENS = np.random.default_rng(5).integers(50, size=(3, CAPACITY))
ATOL = 2e-5
BACKENDS = {"numpy": llama.Llama, "torch": llama_torch.Llama}
# A cache of NumPy arrays goes with both. The coarser formats change the logits by more than a bound
# could tell from a mistake; the shared sequence holds what no model wrote.
READ = [name for name, kind in KINDS.items() if kind.error == 0 and "shared" not in name]


def in_passes(kind, model, tokens, cache, sizes):
    """The logits of tokens that go through a cache, so many at a time."""
    parts, start = [], cache.length
    for size in sizes:
        kind.grow(cache, size)
        assert start + size <= tokens.shape[1]
        parts.append(np.asarray(model(tokens[:, start : start + size], cache)))
        start += size
    return np.concatenate(parts, axis=1)


def check_passes(model, kind):
    """Logits through a cache are those of one pass; a text taken back might never have been."""
    tokens = TOKENS[: kind.batch]
    expected, cache = np.asarray(model(tokens)), kind.make(kind.batch)
    got = in_passes(kind, model, tokens, cache, [2, 1, 4])
    np.testing.assert_allclose(got, expected[:, :7], atol=ATOL)
    cache.truncate(3)
    in_passes(kind, model, 49 - tokens, cache, [3, 1])
    cache.truncate(3)
    got = in_passes(kind, model, tokens, cache, [1, 1, 5, 2])
    np.testing.assert_allclose(got, expected[:, 3:], atol=ATOL)


def check_ragged(model, kind):
    """One pass over several sequences is one pass for each, and each goes on from its cache."""
    caches = [kind.make(1) for _ in TOKENS]
    for cache, n in zip(caches, (0, 2, 3), strict=True):
        if n:
            in_passes(kind, model, TOKENS[:1], cache, [n])
    done = [TOKENS[0, : cache.length].tolist() for cache in caches]
    for sizes in ([3, 1, 2], [1, 1, 4]):
        news = [row[:n].tolist() for row, n in zip(TOKENS, sizes, strict=True)]
        for cache, new in zip(caches, news, strict=True):
            kind.grow(cache, len(new))
        got = model.forward_ragged(news, caches)
        done = [before + new for before, new in zip(done, news, strict=True)]
        assert [cache.length for cache in caches] == [len(text) for text in done]
        for text, new, logits in zip(done, news, got, strict=True):
            alone = np.asarray(model([text]))[0, -len(new) :]
            np.testing.assert_allclose(np.asarray(logits), alone, atol=ATOL)


def check_new_cache(model):
    """An empty cache of the asked size, or of the largest text that the model was made for."""
    cache = model.new_cache(2, 5)
    assert isinstance(cache, Cache) and cache.length == 0
    model(TOKENS[:2, :5], cache)
    assert cache.length == 5 and cache.keys(1).shape == cache.values(1).shape == (2, 2, 5, 4)
    with pytest.raises(ValueError):
        model(TOKENS[:2, :1], cache)
    assert model.new_cache().nbytes == model.new_cache(1, ARCH.max_context).nbytes


def test_new_caches():
    for backend in BACKENDS.values():
        model: Model = backend(ARCH, WEIGHTS, eos_ids=[3])
        assert model.arch == ARCH and model.eos_ids == (3,)
        check_new_cache(model)


@pytest.mark.parametrize("backend", BACKENDS)
def test_models_read_any_cache(backend, subtests):
    for kind in map(KINDS.get, READ):
        if backend == "torch" or kind.arrays is np.asarray:
            model = BACKENDS[backend](ARCH.replace(window=kind.window), WEIGHTS)
            with subtests.test(str(kind)):
                check_passes(model, kind)
                check_ragged(model, kind)


class StartsAtZero(llama.Llama):
    def _positions(self, n, cache):
        return super()._positions(n, None)


class ReadsOneText(llama.Llama):
    def forward_ragged(self, tokens, caches):
        logits = self(np.concatenate(tokens)[None])[0]
        return np.split(logits, np.cumsum([len(row) for row in tokens])[:-1])


class MixesUpTheCaches(llama.Llama):
    def forward_ragged(self, tokens, caches):
        return super().forward_ragged(tokens, [*caches[1:], caches[0]])


class MakesRoomForOneMore(llama.Llama):
    def new_cache(self, batch=1, capacity=None):
        return super().new_cache(batch, capacity and capacity + 1)


def test_broken_models_are_rejected(subtests):
    """And broken caches show in the logits."""
    plain = KINDS["KVCache fp32"]
    for broken, check in [
        (StartsAtZero, check_passes),
        (StartsAtZero, check_ragged),
        (ReadsOneText, check_ragged),
        (MixesUpTheCaches, check_ragged),
        (MakesRoomForOneMore, check_new_cache),
    ]:
        kinds = [] if check is check_new_cache else [plain]
        with subtests.test(broken.__name__), pytest.raises(REJECTED):
            check(broken(ARCH, WEIGHTS), *kinds)
    for broken, check in [
        (ForgetsNothing, check_passes),
        (CountsOneMore, check_passes),
        (CountsOneMore, check_ragged),
        (HidesTheNewest, check_ragged),
    ]:
        kind = replace(plain, make=partial(made_of, broken, "fp32"))
        with subtests.test(broken.__name__), pytest.raises(AssertionError):
            check(llama.Llama(ARCH, WEIGHTS), kind)


# What both backends ask of their tokens.


def test_wrong_tokens_are_named(subtests):
    for tokens, message in [
        ([[50]], "ids 50 … 50, expected 0 … 49"),
        ([[3, -1]], "ids -1 … 3"),
        ([1, 2], r"shape \(2,\)"),
        ([[]], r"shape \(1, 0\)"),
        ([[1.5]], "integers"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            check_tokens(ARCH, np.asarray(tokens))
    check_tokens(ARCH, np.array([[0, 49]]))
