"""Sizes of the cache: what others published, what holds for every shape, and what fits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.architectures import ARCHITECTURES, Architecture
from firsttoken.kv_cache import kv_cache_bytes, max_batch, max_context
from firsttoken.units import BYTES, GB, GIB

LLAMA_13B = ARCHITECTURES["Llama-2-13B"]


# --- numbers that others published


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


# --- what holds for every shape

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
