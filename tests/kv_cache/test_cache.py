"""The cache against plain concatenation, and rings against the mask of a window."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.architectures import Architecture
from firsttoken.attention import attention
from firsttoken.kv_cache import KVCache, RollingCache, kv_cache_bytes
from kv_cache.test_sizes import architectures

TOY = Architecture("toy", 2, 16, 4, 2, 8, 32, 50)
LATENT = TOY.replace(n_kv_heads=4, latent_dim=4, rope_head_dim=2, v_head_dim=5)
FORMATS = ["fp32", "fp16", "int8", "int4", "fp8"]


def draw_kv(rng, arch, batch, n_new):
    shape = (batch, arch.n_kv_heads, n_new, arch.head_dim)
    return rng.normal(size=shape).astype(np.float32), rng.normal(size=shape).astype(np.float32)


steps = st.lists(
    st.tuples(st.sampled_from(["append", "append", "truncate"]), st.integers(0, 6)), max_size=12
)


@given(steps=steps, batch=st.integers(1, 3), dtype=st.sampled_from(FORMATS), seed=st.integers(0, 9))
def test_appending_is_concatenation(steps, batch, dtype, seed):
    """Whatever the order of appends and truncations, a step written alone reads back the same."""
    rng, capacity = np.random.default_rng(seed), 15
    cache = KVCache(TOY, batch, capacity, dtype)
    nbytes = cache.nbytes
    expected = np.zeros((2, 2, batch, 2, 0, 8), np.float32)  # layers, keys and values, …
    for action, n in steps:
        length = cache.length
        if action == "truncate" or length + n > capacity:
            cache.truncate(min(n, length))
            expected = expected[..., : min(n, length), :]
            continue
        alone = KVCache(TOY, batch, max(1, n), dtype)
        for layer in range(2):
            kv = [x * 10.0 ** rng.integers(-1, 3) for x in draw_kv(rng, TOY, batch, n)]
            cache.append(layer, *kv)
            alone.append(layer, *kv)
            for stored, x in zip((alone.keys(layer), alone.values(layer)), kv, strict=True):
                assert np.abs(stored - x).max(initial=0) <= 0.1 * np.abs(x).max(initial=0)
            # The new tokens are visible in this layer at once, and counted after the last one.
            assert cache.keys(layer).shape[2] == length + n
            assert cache.length == (length + n if layer == 1 else length)
        new = [(alone.keys(layer), alone.values(layer)) for layer in range(2)]
        expected = np.concatenate([expected, new], axis=4)
    held = np.array([(cache.keys(layer), cache.values(layer)) for layer in range(2)])
    np.testing.assert_array_equal(held, expected)
    assert held.dtype == np.float32 and cache.nbytes == nbytes


def test_fp32_reads_are_views_of_one_allocation():
    """No copy per step: that is the point of allocating once."""
    rng = np.random.default_rng(0)
    cache = KVCache(TOY, 2, 10)
    cache.append(0, *draw_kv(rng, TOY, 2, 3))
    first = cache.keys(0)
    cache.append(0, *draw_kv(rng, TOY, 2, 2))
    assert not first.flags.owndata
    assert np.shares_memory(first, cache.keys(0))


def test_a_failed_append_writes_nothing():
    rng = np.random.default_rng(0)
    cache = KVCache(TOY, 1, 4)
    for layer in range(2):
        cache.append(layer, *draw_kv(rng, TOY, 1, 3))
    before = cache.keys(0).copy()
    with pytest.raises(ValueError, match="layer 0 holds 3 of 4 tokens; 2 more do not fit"):
        cache.append(0, *draw_kv(rng, TOY, 1, 2))
    k, v = draw_kv(rng, TOY, 1, 1)
    with pytest.raises(ValueError, match=r"v \(1, 2, 1, 7\)"):
        cache.append(0, k, v[..., :7])
    for shape in [(2, 2, 1, 8), (1, 4, 1, 8), (1, 2, 1, 4), (2, 1, 8), (1, 8)]:
        with pytest.raises(ValueError, match="must both be"):
            cache.append(0, np.zeros(shape), np.zeros(shape))
    np.testing.assert_array_equal(cache.keys(0), before)
    assert cache.length == 3


@given(
    arch=architectures(),
    batch=st.integers(1, 3),
    capacity=st.integers(1, 20),
    dtype=st.sampled_from(["fp32", "fp16"]),
)
def test_allocated_bytes_are_the_formula_s(arch, batch, capacity, dtype):
    """Rolled, or every position in every storing layer."""
    rolled = RollingCache(arch, batch, capacity, dtype).nbytes
    assert rolled == kv_cache_bytes(arch, capacity, batch, dtype)
    everywhere = arch.replace(window=None, local_layers=None)
    cache = KVCache(arch, batch, capacity, dtype)
    assert cache.nbytes == kv_cache_bytes(everywhere, capacity, batch, dtype)


@given(
    seed=st.integers(0, 99),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 50.0]),
    head_dim=st.sampled_from([2, 24, 32, 48, 128]),
)
def test_integer_round_trips_stay_within_half_a_step(seed, scale, head_dim):
    arch = TOY.replace(head_dim=head_dim)
    k, v = (scale * x for x in draw_kv(np.random.default_rng(seed), arch, 2, 3))
    for dtype, largest, group in (("int8", 127, head_dim), ("int4", 7, np.gcd(head_dim, 32))):
        cache = KVCache(arch, 2, 3, dtype)
        cache.append(0, k, v)
        peak = np.abs(k).reshape(*k.shape[:3], -1, group).max(-1, keepdims=True)
        # Half a step, and what rounding the scale to fp16 adds (2**-25: its smallest spacing).
        bound = peak / largest * 0.5 + peak * 2.0**-11 + largest * 2.0**-25
        error = np.abs(cache.keys(0) - k).reshape(*k.shape[:3], -1, group)
        assert (error <= bound).all()


def test_layers_that_share_a_cache_read_their_source():
    """In the same pass, from a ring, too."""
    rng = np.random.default_rng(3)
    arch = TOY.replace(n_layers=4, kv_source=[0, 0, 2, 2], window=3)
    for cache, n_held in ((KVCache(arch, 1, 50), 14), (RollingCache(arch, 1, 50, chunk=2), 4)):
        for _ in range(7):
            for layer in arch.kv_layers:
                cache.append(layer, *draw_kv(rng, arch, 1, 2))
        assert cache.length == 14 and cache.keys(1).shape[2] == n_held
        np.testing.assert_array_equal(cache.keys(1), cache.keys(0))
        assert not np.array_equal(cache.keys(2), cache.keys(0))
    with pytest.raises(ValueError, match=r"layer 1 stores nothing; expected one of \(0, 2\)"):
        cache.append(1, *draw_kv(rng, arch, 1, 2))


@given(dtype=st.sampled_from(FORMATS))
def test_latents_hold_the_values_too(dtype):
    """One array: latent and rotary key are the key, the latent alone is the value."""
    rng = np.random.default_rng(4)
    cache = KVCache(LATENT, 2, 5, dtype)
    first, second = rng.normal(size=(2, 2, 1, 2, 6)).astype(np.float32)
    for latents in (first, second):
        for layer in range(2):
            cache.append(layer, latents)
    alone = KVCache(LATENT, 2, 2, dtype)
    alone.append(0, second)
    np.testing.assert_array_equal(cache.keys(1)[:, :, 2:], alone.keys(0))
    np.testing.assert_array_equal(cache.values(1), cache.keys(1)[..., :4])
    assert np.abs(cache.keys(0)[:, :, :2] - first).max() < 0.5
    if dtype == "fp32":
        assert np.shares_memory(cache.keys(0), cache.values(0))


# --- what a layer with a window may forget


@given(
    window=st.integers(1, 9),
    sinks=st.integers(0, 4),
    chunk=st.integers(1, 5),
    capacity=st.integers(1, 40),
)
def test_a_ring_is_bounded_whatever_the_length(window, sinks, chunk, capacity):
    """window + sinks, and chunk - 1 for several tokens at once; for endless text, too."""
    arch = TOY.replace(window=window)
    sizes = [RollingCache(arch, 1, n, sinks=sinks, chunk=chunk).nbytes for n in (capacity, 10**12)]
    per_token = KVCache(arch, 1, 1).nbytes
    bound = window + sinks + chunk - 1
    assert sizes == [per_token * min(capacity, bound), per_token * bound]


def attend_both(cache_class, pieces, window, sinks, chunk, dtype="fp32", n_heads=4):
    """Yield (result through the ring, result of the mask over all tokens) piece by piece."""
    arch = TOY.replace(window=window, local_layers=[0])
    rng = np.random.default_rng(0)
    rolling = cache_class(arch, 2, sum(pieces), dtype, sinks=sinks, chunk=chunk)
    full = KVCache(arch, 2, sum(pieces), dtype)
    for n_new in pieces:
        q = rng.normal(size=(2, n_heads, n_new, 8))  # float64, so that only storing rounds
        for layer, view in enumerate([(window, sinks), (None, 0)]):
            k, v = draw_kv(rng, arch, 2, n_new)
            results = []
            for cache in (rolling, full):
                cache.append(layer, k, v)
                stored = (cache.keys(layer), cache.values(layer))
                results.append(attention(q, *stored, True, *view))
            yield results


@given(
    window=st.integers(1, 7),
    sinks=st.integers(0, 4),
    chunk=st.integers(1, 5),
    length=st.integers(0, 30),
)
def test_a_ring_holds_the_first_and_the_last_in_order(window, sinks, chunk, length):
    arch = Architecture("one number", 1, 8, 1, 1, 1, 16, 32, window=window)
    cache = RollingCache(arch, 1, 30, sinks=sinks, chunk=chunk)
    for start in range(0, length, chunk):
        step = np.arange(start, min(start + chunk, length), dtype=float)[None, None, :, None]
        cache.append(0, step, -step)
    last = range(max(sinks, length - (window + chunk - 1)), length)
    assert cache.keys(0).ravel().tolist() == [*range(min(sinks, length)), *last]
    assert (cache.values(0) == -cache.keys(0)).all()
    assert cache.length == length


@given(
    window=st.integers(1, 7),
    sinks=st.integers(0, 4),
    chunk=st.integers(1, 5),
    dtype=st.sampled_from(FORMATS),
    data=st.data(),
)
def test_attention_through_a_ring_equals_the_mask(window, sinks, chunk, dtype, data):
    """Any steps of up to `chunk` tokens, around the ring several times."""
    pieces = data.draw(st.lists(st.integers(1, chunk), min_size=1, max_size=25))
    for got, expected in attend_both(RollingCache, pieces, window, sinks, chunk, dtype):
        np.testing.assert_allclose(got, expected, atol=1e-12)


class _OneShort(RollingCache):
    def _room(self, window):
        room = super()._room(window)
        return room if window is None else room - 1


class _SinksRoll(RollingCache):
    def _places(self, slot, start, end):
        return np.arange(start, end) % self._rooms[slot]


class _Unordered(RollingCache):
    def _held(self, slot):
        return slice(0, min(self._lengths[slot], self._rooms[slot]))


def test_wrong_rings_would_show():
    for wrong, window, sinks, chunk in [
        *[(_OneShort, 4, 0, 1), (_OneShort, 4, 2, 1), (_OneShort, 4, 0, 3)],
        *[(_SinksRoll, 4, 2, 1), (_Unordered, 4, 0, 3)],
    ]:
        both = attend_both(wrong, [chunk] * 8, window, sinks, chunk)
        assert max(np.abs(got - expected).max() for got, expected in both) > 1e-2, wrong


def test_a_step_that_the_ring_cannot_take_changes_nothing():
    rng = np.random.default_rng(7)
    arch = TOY.replace(window=3, local_layers=[1])  # the full layer must refuse as well
    cache = RollingCache(arch, 1, 50, chunk=2)
    for layer in range(2):
        cache.append(layer, *draw_kv(rng, arch, 1, 4))
    before = [cache.keys(layer).copy() for layer in range(2)]
    for layer in range(2):
        with pytest.raises(ValueError, match=r"3 new tokens .* at most chunk = 2"):
            cache.append(layer, *draw_kv(rng, arch, 1, 3))
        np.testing.assert_array_equal(cache.keys(layer), before[layer])
    assert cache.length == 4


def test_a_ring_can_be_cut_until_it_has_dropped_something():
    rng = np.random.default_rng(8)
    arch = TOY.replace(window=3)
    cache = RollingCache(arch, 1, 50)
    for layer in range(2):
        cache.append(layer, *draw_kv(rng, arch, 1, 3))
    first = cache.keys(0)[:, :, :1].copy()
    cache.truncate(1)
    np.testing.assert_array_equal(cache.keys(0), first)
    for _ in range(3):
        for layer in range(2):
            cache.append(layer, *draw_kv(rng, arch, 1, 1))
    with pytest.raises(ValueError, match="length 3: a window has dropped tokens"):
        cache.truncate(3)
    assert cache.length == 4


def test_caches_that_cannot_be(subtests):
    for call, message in [
        (lambda: KVCache(TOY, 0, 4), "batch must be an integer of at least 1, got 0"),
        (lambda: KVCache(TOY, 1, 0), "^capacity"),
        (lambda: KVCache(TOY, 1, 4, "q8_0"), "dtype 'q8_0' is unknown; expected one of fp32"),
        (lambda: KVCache(TOY.replace(head_dim=5), 1, 4, "int4"), "even head_dim, got 5"),
        (lambda: KVCache(LATENT, 1, 4).append(0, np.ones((1, 1, 1, 4))), r"\(B, 1, T, d_c \+ d_r"),
        (lambda: KVCache(LATENT, 1, 4).append(0, *np.ones((2, 1, 1, 1, 6))), "v None"),
        (lambda: KVCache(TOY, 1, 4).truncate(1), "length must lie in 0 … 0, got 1"),
        (lambda: KVCache(TOY, 1, 4).truncate(-1), "length must be an integer of at least 0"),
        (lambda: KVCache(TOY, 1, 4).keys(2), "layer must lie in 0 … 1, got 2"),
        (lambda: KVCache(TOY, 1, 4).values(-1), "layer"),
        (lambda: KVCache(TOY, 1, 4).append(2, None, None), "layer 2 stores nothing"),
        (lambda: RollingCache(TOY, 1, 4, sinks=-1), "sinks must be an integer of at least 0"),
        (lambda: RollingCache(TOY, 1, 4, chunk=0), "chunk must be an integer of at least 1"),
        (lambda: RollingCache(TOY, 1, 0), "capacity"),
        (lambda: RollingCache(TOY.replace(window=3), 1, 4).truncate(1), "length must lie in"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            call()
