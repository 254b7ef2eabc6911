"""A full cache: what dropping tokens leaves, and losses read one by one through it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.architectures import Architecture
from firsttoken.kv_cache import KVCache
from firsttoken.models import llama
from firsttoken.models.checkpoint import weight_shapes
from firsttoken.models.evaluation import token_losses
from firsttoken.models.llama import load_model
from firsttoken.models.streaming import evict, streaming_losses
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path

ARCH = Architecture("tiny", 2, 32, 4, 2, 8, 64, 50, max_context=64)


def random_model(n_layers=2, window=None):
    rng = np.random.default_rng(0)
    arch = ARCH.replace(n_layers=n_layers)
    weights = {
        name: (rng.normal(size=s) * 0.3 + ("norm" in name)).astype(np.float32)
        for name, s in weight_shapes(arch).items()
    }
    return llama.Llama(arch.replace(window=window), weights)


def cached(model, ids):
    cache = model.new_cache(1, 64)
    model([ids], cache)
    return cache


def largest_difference(model, cache, other):
    assert cache.length == other.length
    layers = range(model.arch.n_layers)
    pairs = [(cache.keys(i), other.keys(i)) for i in layers]
    pairs += [(cache.values(i), other.values(i)) for i in layers]
    return max(np.abs(a - b).max() for a, b in pairs)


@given(
    ids=st.lists(st.integers(0, 49), min_size=5, max_size=40),
    sinks=st.integers(0, 3),
    n=st.integers(1, 4),
)
def test_one_layer_forgets_without_a_trace(ids, sinks, n):
    """Its keys and values depend on nothing but the token and its place."""
    n = min(n, len(ids) - sinks - 1)
    model = random_model(n_layers=1)
    cache = cached(model, ids)
    evict(model, cache, n, sinks)
    fresh = cached(model, ids[:sinks] + ids[sinks + n :])
    assert largest_difference(model, cache, fresh) < 1e-4


def test_keys_that_are_not_turned_back_are_wrong():
    model, ids = random_model(n_layers=1), list(range(20))
    cache = cached(model, ids)
    moved = [(cache.keys(0)[:, :, 5:].copy(), cache.values(0)[:, :, 5:].copy())]
    cache.truncate(0)
    cache.append(0, *moved[0])
    assert largest_difference(model, cache, cached(model, ids[5:])) > 0.1


def test_dropping_the_oldest_at_every_step_is_attention_with_a_window():
    """In every layer, not in the first alone: each token saw the last `window` when it came."""
    window, ids, model = 5, list(range(20)), random_model()
    cache = KVCache(ARCH, 1, window)
    logits = []
    for token in ids:
        if cache.length == window:
            evict(model, cache, 1)
        logits.append(model([[token]], cache)[0, -1])
    np.testing.assert_allclose(logits, random_model(window=window)([ids])[0], atol=1e-4)
    assert np.abs(logits - random_model(window=window + 1)([ids])[0]).max() > 0.1


def test_evict_names_what_does_not_fit():
    model = random_model(n_layers=1)
    cache = cached(model, list(range(8)))
    before = cache.keys(0).copy()
    for n, sinks, wrong in (
        (0, 0, "n must be an integer of at least 1, got 0"),
        (1, -1, "sinks must be an integer of at least 0, got -1"),
        (5, 4, "n 5 and sinks 4 do not fit: the cache holds 8"),
    ):
        with pytest.raises(ValueError, match=wrong):
            evict(model, cache, n, sinks)
        np.testing.assert_array_equal(cache.keys(0), before)
    evict(model, cache, 8)
    assert cache.length == 0, "it can empty the cache"


def test_evict_refuses_formats_that_round():
    """Each call would decode, turn and encode all keys: the errors would add up."""
    model = random_model(n_layers=1)
    for dtype in ("fp16", "fp8", "int8", "int4"):
        cache = KVCache(model.arch, 1, 8, dtype)
        model([list(range(8))], cache)
        with pytest.raises(ValueError, match=f"cache stores {dtype}"):
            evict(model, cache, 1)
        assert cache.length == 8


# Losses through a cache that fills up.


def heldout(n: int) -> list[int]:
    text = data_path("heldout.txt").read_text(encoding="utf-8")
    return tokenizer().encode(text[: 4 * n])[:n]


def never(cache, seen):
    raise AssertionError("there was room")


def test_reading_one_by_one_loses_what_one_pass_loses():
    """In double precision, whatever the model computes in; two tokens give one loss."""
    model = load_model("draft")
    for n in (40, 2):
        ids = np.reshape(heldout(2 * n), (2, n))
        losses = streaming_losses(model, ids, capacity=n - 1, make_room=never)
        assert losses.shape == (2, n - 1) and losses.dtype == np.float64
        expected = [token_losses(model, row, window=max(n - 1, 2)) for row in ids]
        np.testing.assert_allclose(losses, expected, atol=1e-4)


def test_make_room_is_called_whenever_the_cache_is_full():
    model, ids, calls = load_model("draft"), np.reshape(heldout(80), (2, 40)), []

    def start_again(cache, seen):
        calls.append(seen.shape)
        cache.truncate(0)

    losses = streaming_losses(model, ids, capacity=10, make_room=start_again)
    assert calls == [(2, 10), (2, 20), (2, 30)]
    for start in (0, 10, 20, 30):
        part = slice(start, start + 11)
        expected = [token_losses(model, row[part], window=10) for row in ids]
        np.testing.assert_allclose(losses[:, start : start + 10], expected, atol=1e-4)


def test_streaming_names_what_is_wrong():
    model, ids = load_model("draft"), np.reshape(heldout(40), (2, 20))
    with pytest.raises(ValueError, match=r"ids must have the shape \(B, n\).*\(40,\)"):
        streaming_losses(model, ids.ravel(), 8, never)
    with pytest.raises(ValueError, match=r"ids must have the shape \(B, n\).*\(2, 1\)"):
        streaming_losses(model, ids[:, :1], 8, never)
    with pytest.raises(ValueError, match="make_room left the cache full: 8 tokens"):
        streaming_losses(model, ids, 8, lambda cache, seen: None)
