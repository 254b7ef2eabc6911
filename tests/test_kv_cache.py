"""kv_cache: published sizes, capacity, and the cache against plain concatenation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.architectures import ARCHITECTURES, Architecture
from firsttoken.attention import attention
from firsttoken.kv_cache import KVCache, RollingCache, kv_cache_bytes, max_batch, max_context
from firsttoken.units import BYTES, GB, GIB

LLAMA_13B = ARCHITECTURES["Llama-2-13B"]


# --- the closed form: numbers that others published


def test_published_sizes_per_token():
    """vLLM paper, arXiv:2309.06180: 800 KiB per token; the 405B row: its first release's heads."""
    opt = Architecture("OPT-13B", 40, 5120, 40, 40, 128, 20480, 50272)
    assert kv_cache_bytes(opt, 1, dtype="fp16") == 819_200 == 800 * 1024
    arch = ARCHITECTURES["Llama-3.1-405B"]
    size = kv_cache_bytes(arch.replace(n_kv_heads=16), 1024)
    assert round(size / GIB, 3) == 0.984
    assert kv_cache_bytes(arch, 1024) == size / 2


def test_sizes_in_gib_and_gb_and_with_scales():
    """A 1 GiB fp16 cache is 544 MiB as q8_0 and 288 MiB as q4_0, not 512 and 256."""
    for kv_heads, gib, gb in [(32, 16, 17.18), (8, 4, 4.29), (1, 0.5, 0.54)]:
        arch = Architecture("32 heads", 32, 4096, 32, kv_heads, 128, 11008, 32000)
        size = kv_cache_bytes(arch, 4096, batch=8)
        assert (size / GIB, round(size / GB, 2)) == (gib, gb)
    arch = arch.replace(n_kv_heads=32)
    for dtype, mib in {"bf16": 1024, "fp32": 2048, "q8_0": 544, "q4_0": 288}.items():
        assert kv_cache_bytes(arch, 2048, dtype=dtype) == mib * 2**20


# --- the closed form: what holds for every shape

small = st.sampled_from([1, 2, 3, 4])


@st.composite
def architectures(draw, **fixed):
    """Small architectures: every ratio of heads, latents, hybrids of windows, shared layers."""
    n_layers, group = draw(st.integers(1, 5)), draw(small)
    n_kv_heads, head_dim = draw(small), draw(st.sampled_from([2, 8, 48, 64]))
    fields = {}
    if draw(st.booleans()):
        fields["window"] = draw(st.integers(1, 20))
        layers = st.sets(st.integers(0, n_layers - 1))
        fields["local_layers"] = draw(st.none() | layers.map(sorted))
    if draw(st.booleans()):
        fields |= {"latent_dim": draw(small), "rope_head_dim": 1, "v_head_dim": 3}
    elif not fields and draw(st.booleans()):
        fields["kv_source"] = [i - i % 2 for i in range(n_layers)]
    shape = (n_layers, 16, group * n_kv_heads, n_kv_heads, head_dim, 32, 50)
    return Architecture("drawn", *shape, **(fields | fixed))


dtypes = st.sampled_from(["fp32", "bf16", "fp8", "int4", "q8_0"])
n_tokens = st.integers(0, 60)


@given(
    arch=architectures(), lengths=st.lists(n_tokens, max_size=5), batch=st.integers(0, 4), of=dtypes
)
def test_size_is_the_sum_over_what_is_stored(arch, lengths, batch, of):
    """Counted token by token, from the definition; a list of lengths is its sequences."""
    numbers = 2 * arch.n_kv_heads * arch.head_dim  # of a token: keys and values
    if arch.latent_dim:
        numbers = arch.latent_dim + arch.rope_head_dim
    sizes = []
    for length in lengths:
        held = 0
        for layer, window in enumerate(arch.layer_windows):
            stores = arch.kv_source is None or arch.kv_source[layer] == layer
            held += (length if window is None else min(length, window)) if stores else 0
        sizes.append(held * numbers * BYTES[of])
        assert kv_cache_bytes(arch, length, batch, of) == batch * sizes[-1]
    together = kv_cache_bytes(arch, lengths, dtype=of)
    assert together == sum(sizes) == kv_cache_bytes(arch, np.array(lengths, dtype=int), dtype=of)


def test_sizes_that_cannot_be(subtests):
    for arguments, message in [
        ({"n_tokens": -1}, "n_tokens must be an integer of at least 0, got -1"),
        ({"n_tokens": [3, 2], "batch": 2}, "batch must be 1"),
        ({"n_tokens": 3, "batch": -1}, "^batch.*-1"),
        ({"n_tokens": 3, "dtype": "half"}, "dtype 'half' is unknown"),
    ]:
        with subtests.test(str(arguments)), pytest.raises(ValueError, match=message):
            kv_cache_bytes(LLAMA_13B, **arguments)


# --- what fits


def used(arch, batch, length, dtype, kv_dtype, workspace):
    weights = arch.n_params * BYTES[dtype]
    return weights + workspace + kv_cache_bytes(arch, length, batch, kv_dtype)


memory = st.integers(0, 200_000)


@given(arch=architectures(), memory=memory, length=st.integers(1, 40), dtype=dtypes, kv=dtypes)
def test_the_largest_batch_fits_and_one_more_does_not(arch, memory, length, dtype, kv):
    batch = max_batch(arch, memory, length, dtype, kv, workspace_bytes=100)
    fits = [used(arch, b, length, dtype, kv, 100) <= memory for b in (batch, batch + 1)]
    assert fits == [True, False] or (batch == 0 and fits == [False, False])
    assert max_batch(arch, memory + 5000, length, dtype, kv, 100) >= batch
    assert max_batch(arch, memory, length + 1, dtype, kv, 100) <= batch


@given(arch=architectures(max_context=7), memory=memory, batch=small, dtype=dtypes, kv=dtypes)
def test_the_longest_context_fits_and_one_more_does_not(arch, memory, batch, dtype, kv):
    length = max_context(arch, memory, batch, dtype, kv, workspace_bytes=100)
    fits = [used(arch, batch, n, dtype, kv, 100) <= memory for n in (length, length + 1)]
    endless = None not in arch.layer_windows and used(arch, batch, 10**9, dtype, kv, 100) <= memory
    if endless:
        assert length == 7
    else:
        assert fits == [True, False] or (length == 0 and fits == [False, False])
    assert max_context(arch, memory, batch + 1, dtype, kv, 100) <= length


@given(arch=architectures(max_context=7), length=st.integers(1, 40), kv=dtypes)
def test_memory_may_be_filled_to_the_last_byte(arch, length, kv):
    """One sequence and no workspace, which is what a call that leaves them open means."""
    full = arch.replace(window=None, local_layers=None)
    memory = used(full, 1, length, "bf16", kv, 0)
    assert max_batch(full, memory, length, kv_dtype=kv) == 1
    assert max_context(full, memory, kv_dtype=kv) == length
    # Where every layer has a window, that is enough for a text without end.
    windows = arch.replace(window=length, local_layers=None, kv_source=None)
    memory = used(windows, 1, length, "bf16", kv, 0)
    assert max_context(windows, memory, kv_dtype=kv) == 7
    assert max_context(windows, memory - 1, kv_dtype=kv) < length


def test_questions_that_have_no_answer(subtests):
    endless = ARCHITECTURES["Mistral-7B"].replace(max_context=None)
    for call, message in [
        (lambda: max_context(endless, 80e9), "max_context.*got None"),
        (lambda: max_batch(LLAMA_13B, -1, 10), "memory_bytes must not be negative, got -1"),
        (lambda: max_batch(LLAMA_13B, 80e9, 10, workspace_bytes=-5), "^workspace_bytes"),
        (lambda: max_batch(LLAMA_13B, 80e9, 0), "n_tokens must be an integer of at least 1"),
        (lambda: max_context(LLAMA_13B, 80e9, batch=0), "batch must be an integer of at least 1"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            call()


# --- the cache itself

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
