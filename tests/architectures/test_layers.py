"""layers: a model is the sum of its layers, whatever they are, and alike or not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.architectures import ARCHITECTURES, Architecture
from firsttoken.architectures.layers import (
    MLP,
    Attention,
    CompressedAttention,
    Experts,
    LatentAttention,
    Layer,
    Recurrent,
)
from firsttoken.kv_cache import (
    crossover_tokens,
    kv_cache_bytes,
    max_batch,
    max_context,
    state_bytes,
)
from firsttoken.roofline import model_cost

small = st.integers(1, 6)
attentions = st.builds(
    lambda kv, group, dim, window, chunked: Attention(
        kv * group, kv, dim, window=window, chunked=chunked and window is not None
    ),
    small, small, small, st.none() | small, st.booleans(),
)  # fmt: skip
latents = st.builds(
    lambda heads, plain, latent, rotary, value: LatentAttention(
        heads, plain + rotary, latent, rotary, value
    ),
    small, small, small, small, small,
)  # fmt: skip
recurrences = st.builds(
    Recurrent, st.just("toy"), weights=small, state_elements=small, conv_elements=small
)
mlps = st.builds(MLP, small, st.booleans())
moes = st.builds(lambda n, more, d: Experts(n + more, n, d), small, small, small)
layers = st.builds(
    Layer,
    st.lists(attentions | latents, max_size=1).flatmap(
        lambda mixers: st.lists(recurrences, max_size=1).map(lambda more: (*mixers, *more))
    ),
    st.lists(mlps | moes, max_size=1).map(tuple),
    small,
)
stacks = st.lists(layers, min_size=1, max_size=5)


def model_of(stack, **fields) -> Architecture:
    return Architecture.of_layers("toy", stack, 4, 10, **fields)


@given(stacks, stacks, st.integers(0, 20), st.integers(1, 4))
def test_a_model_is_the_sum_of_its_layers(stack, others, n_tokens, batch):
    """Cut anywhere, the parts hold what the whole holds; what is outside layers counts once."""
    whole, first, second = model_of(stack + others), model_of(stack), model_of(others)
    outside = 2 * 10 * 4 + 4  # two tables and a norm
    assert whole.n_params == first.n_params + second.n_params - outside
    for of in (
        lambda arch: arch.kv_elements_per_token,
        lambda arch: kv_cache_bytes(arch, n_tokens, batch),
        lambda arch: state_bytes(arch, batch),
        lambda arch: arch.n_matmul_params - 4 * 10,
        lambda arch: arch.n_active_params - 4 * 10 - 4,
        lambda arch: model_cost(arch, batch, 1, n_tokens + 1).bytes - 2 * outside,
        lambda arch: model_cost(arch, batch, 1, n_tokens + 1).flops - 2 * batch * 4 * 10,
    ):
        assert of(whole) == pytest.approx(of(first) + of(second))
    assert sum(whole.params_by_component.values()) == whole.n_params


def test_the_keys_of_an_index_are_cached_too():
    sparse = Attention(4, 2, 8, top_k=16, index_dim=4, index_heads=3)
    assert kv_cache_bytes(model_of([Layer((sparse,))]), 1000) == 2 * 1000 * (32 + 4)


def test_layers_that_compute_with_earlier_weights():
    """They are stored once, and met again: by the arithmetic, and by what a step reads."""
    block = Layer((Attention(2, 2, 4),), (MLP(8),), 8)
    once, twice = model_of([block]), model_of([block, block.replace(weights_of=0)])
    assert twice.n_params == once.n_params
    per_layer = once.n_params - 2 * 10 * 4 - 4
    assert twice.n_active_params == once.n_active_params + per_layer
    assert twice.n_touched_params(1) == once.n_params + per_layer
    assert kv_cache_bytes(twice, 5) == 2 * kv_cache_bytes(once, 5)


def test_a_state_fills_memory_as_a_cache_does():
    state = Layer((Recurrent("toy", 10, state_elements=100, conv_elements=10),))
    both = model_of([state, Layer((Attention(2, 1, 4),))])
    weights = 2 * both.n_params
    one = 7 * 2 * 8 + 100 * 4 + 10 * 2
    assert max_batch(both, weights + 3 * one, 7) == 3
    assert max_batch(both, weights + 3 * one - 1, 7) == 2
    assert max_context(both, weights + one) == 7
    assert max_context(both, weights + one - 1) == 6
    assert crossover_tokens(both) == 420 / 16
    # A model of states alone never grows: memory sets no limit.
    alone = model_of([state], max_context=512)
    assert max_context(alone, 2 * alone.n_params + 420) == 512
    assert max_context(alone, 2 * alone.n_params + 419) == 0
    with pytest.raises(ValueError, match="no attention"):
        crossover_tokens(alone)


def test_what_layers_do_not_share_is_not_given(subtests):
    near, far = Layer((Attention(8, 2, 64, window=512),)), Layer((Attention(16, 2, 64),))
    mixed = model_of([near, far])
    assert (mixed.n_kv_heads, mixed.head_dim) == (2, 64)
    assert mixed.layer_windows == (512, None) and mixed.local_layers == (0,)
    assert mixed.replace(n_kv_heads=1).kv_elements_per_token == 2 * 128
    assert mixed.replace(window=None).layer_windows == (None, None)
    assert mixed.replace(name="other").layers == mixed.layers
    for call, message in [
        (lambda: mixed.n_heads, r"toy: layers differ in n_heads \(8, 16\)"),
        (lambda: mixed.d_ff, "toy has no layer with d_ff"),
        (lambda: mixed.arguments, "toy is made of layers"),
        (lambda: mixed.replace(n_experts=4), "no layer has n_experts"),
        (lambda: mixed.replace(n_kv_heads=3), "n_heads 8 must be a multiple of n_kv_heads 3"),
        (lambda: model_of([]), "layers must be an integer of at least 1, got 0"),
        (lambda: model_of([near.replace(kv_source=0)]), r"kv_source\[0\] is 0"),
        (lambda: model_of([near, far.replace(kv_source=0)]), "windows differ"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            call()


def test_parts_refuse_what_cannot_be(subtests):
    for call, message in [
        (lambda: Attention(4, 3, 8), "n_heads 4 must be a multiple of n_kv_heads 3"),
        (lambda: Attention(0, 1, 8), "n_heads must be an integer of at least 1, got 0"),
        (lambda: Attention(4, 4, 8, window=0), "window .* got 0"),
        (lambda: LatentAttention(4, 8, 16, 4, 0), "v_head_dim must be an integer of at least 1"),
        (lambda: LatentAttention(4, 8, 0, 4, 8), "latent_dim must be an integer of at least 1"),
        (lambda: LatentAttention(4, 8, 16, 8, 8), "rope_head_dim 8 must be less than head_dim 8"),
        (lambda: Experts(4, 5, 8), "n_active_experts must lie in 1 … n_experts = 4, got 5"),
        (lambda: Recurrent("x", -1, 1), "weights must be an integer of at least 0, got -1"),
        (lambda: MLP(8.0), "d_ff .* got 8.0"),
        (lambda: Layer().replace(window=3), "no part of this layer has window"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            call()


def test_one_line_says_what_layers_say():
    """The line's flags, one by one, against layers that are written out."""
    line = Architecture("toy", 3, 16, 4, 2, 4, 24, 50, qk_norm=True, qkv_bias=True, window=8,
                        local_layers=[1], kv_source=[0, 1, 0], unrotated_layers=[2])  # fmt: skip

    def layer(**fields):
        own = fields.get("kv_matrices", 2)
        biases = 16 + own * 8
        attention = Attention(4, 2, 4, norm_params=4 + 4 * (own > 0), bias_params=biases, **fields)
        return Layer((attention,), (MLP(24),), 32, 0 if own == 0 else None)

    by_hand = [layer(), layer(window=8), layer(kv_matrices=0, rotated=False)]
    assert list(line.layers) == by_hand
    assert line.arguments["local_layers"] == (1,)
    assert Architecture(**line.arguments) == line
    assert line.replace(kv_source=None, unrotated_layers=None).kv_layers == (0, 1, 2)
    every = ARCHITECTURES["Llama-3.1-70B"]
    assert list(every.kinds.values()) == [80]


@given(st.integers(1, 5), st.integers(1, 70))
def test_compressed_caches_are_counted_entry_by_entry(size, s):
    """The window's tokens, and one entry with its index's key for each few tokens of the text."""
    window = 3
    mixer = CompressedAttention(
        2, 1, 8, window=window, top_k=2, index_dim=5, index_heads=3, tokens_per_entry=size,
        q_latent_dim=4, out_latent_dim=4, out_groups=2,
    )  # fmt: skip
    arch = model_of([Layer((mixer,))])
    assert kv_cache_bytes(arch, s) == 2 * (8 * min(s, window) + 13 * (s // size))
    memory = 2 * arch.n_params + kv_cache_bytes(arch, s)
    assert max_context(arch, memory) >= s > max_context(arch, memory - 1)
