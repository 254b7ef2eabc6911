"""presets with recurrent layers: what they keep, counted by hand, and where they keep less."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.architectures import ARCHITECTURES
from firsttoken.kv_cache import crossover_tokens, kv_cache_bytes, state_bytes
from firsttoken.units import BYTES

# By hand, from the configs: layers with attention, of all; cache bytes per token in bf16, bytes of
# state; billions of parameters as published, and of active ones.
BY_HAND = {
    "MiniMax-Text-01": (10, 80, 10 * 2 * 8 * 128 * 2, 70 * 64 * 128 * 128 * 4, 456, 45.9),
    "Jamba-1.5-Mini": (4, 32, 4 * 2 * 8 * 128 * 2, 28 * 8192 * (16 * 4 + 4 * 2), 52, 12),
    "Jamba-1.5-Large": (9, 72, 9 * 2 * 8 * 128 * 2, 63 * 16384 * (16 * 4 + 4 * 2), 398, 94),
    "Qwen3-Next-80B-A3B": (12, 48, 24576, 36 * (32 * 128 * 128 * 4 + 8192 * 4 * 2), 80, 3),
    "Kimi-Linear-48B-A3B": (7, 27, 7 * 576 * 2, 20 * (32 * 128**2 * 4 + 12288 * 4 * 2), 48, 3),
    "Falcon-H1-34B": (72, 72, 147456, 72 * (32 * 128 * 256 * 4 + 5120 * 4 * 2), 33.6, 33.6),
    "Nemotron-H-8B": (4, 52, 16384, 24 * (8192 * 128 * 4 + 10240 * 4 * 2), 8.1, 8.1),
    "Mamba-Codestral-7B": (0, 64, 0, 64 * (8192 * 128 * 4 + 10240 * 4 * 2), 7.3, 7.3),
}
HYBRIDS = {
    name: arch
    for name, arch in ARCHITECTURES.items()
    if any(layer.recurrent is not None for layer in arch.layers)
}


def test_presets_by_hand():
    assert BY_HAND.keys() == HYBRIDS.keys()
    for name, arch in HYBRIDS.items():
        *kept, total, active = BY_HAND[name]
        found = [len(arch.kv_layers), arch.n_layers, kv_cache_bytes(arch, 1), state_bytes(arch)]
        assert found == kept
        assert arch.n_params == pytest.approx(total * 1e9, rel=0.025)
        # Published to a digit or two, and by some with both tables, by some with neither.
        tables = arch.vocab_size * arch.d_model / 1e9
        assert arch.n_active_params / 1e9 == pytest.approx(active, abs=0.05 * active + tables + 0.3)
        assert arch.source


@given(
    name=st.sampled_from([name for name in HYBRIDS if HYBRIDS[name].kv_layers]),
    dtype=st.sampled_from(["bf16", "fp32", "fp8"]),
    n_tokens=st.integers(0, 10**6),
)
def test_a_hybrid_keeps_less_than_its_twin_from_the_crossover_on(name, dtype, n_tokens):
    """The twin attends wherever this one attends or recurs."""
    arch = HYBRIDS[name]
    kept = kv_cache_bytes(arch, n_tokens, dtype=dtype) + state_bytes(arch, dtype=dtype)
    mixing = sum(bool(layer.mixers) for layer in arch.layers)
    less = kept < n_tokens * mixing * arch.kv_elements_per_layer * BYTES[dtype]
    assert less == (n_tokens > crossover_tokens(arch, dtype))
    # Falcon-H1 has the cache of a Transformer, and states besides.
    assert crossover_tokens(HYBRIDS["Falcon-H1-34B"]) == math.inf


@given(st.integers(0, 10**6), st.integers(0, 64), st.sampled_from(sorted(HYBRIDS)))
def test_only_the_cache_grows(n_tokens, batch, name):
    arch = HYBRIDS[name]
    assert kv_cache_bytes(arch, n_tokens, batch) == n_tokens * batch * kv_cache_bytes(arch, 1)
    assert state_bytes(arch, batch) == batch * state_bytes(arch)
    minimax = HYBRIDS["MiniMax-Text-01"]  # has no convolution, whose inputs go by another format
    assert state_bytes(minimax, state_dtype="bf16") * 2 == state_bytes(minimax)


def test_bad_arguments_are_named(subtests):
    codestral = HYBRIDS["Mamba-Codestral-7B"]
    for call, message in [
        (lambda: crossover_tokens(codestral), "Codestral.* no attention"),
        (lambda: state_bytes(codestral, batch=-1), "batch .* got -1"),
        (lambda: state_bytes(codestral, state_dtype="f32"), "dtype 'f32' is unknown"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            call()
