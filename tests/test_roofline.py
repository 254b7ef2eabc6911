"""roofline: costs counted from their definitions, and against torch's own FLOP counter."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttoken.architectures import ARCHITECTURES, Architecture, from_hf_config
from firsttoken.architectures.layers import (
    Attention,
    CompressedAttention,
    LatentAttention,
    Layer,
    Recurrent,
)
from firsttoken.hardware import ACCELERATORS, Accelerator
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.roofline import (
    Cost,
    attainable_flops,
    attention_cost,
    matmul_cost,
    mlp_cost,
    model_cost,
)

H100 = ACCELERATORS["H100-SXM"]
RIDGE = H100.ridge_point()
LLAMA_7B = ARCHITECTURES["Llama-2-7B"]
size = st.integers(1, 300)


# --- one computation


@given(flops=st.floats(0, 1e18), moved=st.floats(1, 1e15))
def test_time_and_roof_are_one_statement(flops, moved):
    """FLOPs over the time they take are what the roof allows at that intensity."""
    cost = Cost(flops, moved)
    rate = attainable_flops(cost.intensity, H100)
    assert flops / cost.time(H100) == pytest.approx(rate, rel=1e-12)


def test_the_roof_has_two_parts():
    """And overlap is a maximum, not a sum."""
    assert attainable_flops(RIDGE / 2, H100) == pytest.approx(H100.peak() / 2)
    assert attainable_flops(10 * RIDGE, H100) == H100.peak()
    assert attainable_flops(0, H100) == 0
    # A slower dtype lowers the ceiling and leaves the slope.
    assert attainable_flops(1e6, H100, "fp32") == H100.peak("fp32") < H100.peak()
    assert attainable_flops(1, H100, "fp32") == attainable_flops(1, H100)
    machine = Accelerator("slow", {"bf16": 10}, bandwidth=5, memory_bytes=100)
    assert [Cost(flops, 15).time(machine) for flops in (10, 50)] == [3, 5]


@given(m=size, k=size, n=size)
def test_matmul_intensity_is_a_harmonic_sum(m, k, n):
    cost = matmul_cost(m, k, n)
    assert cost == Cost(2 * m * k * n, 2 * (m * k + k * n + m * n))
    assert cost.intensity == pytest.approx(1 / (1 / m + 1 / k + 1 / n))
    assert cost.intensity < min(m, k, n)
    assert matmul_cost(m, k, n, "fp32").bytes == 2 * cost.bytes
    assert matmul_cost(m, k, n, "int4").bytes == cost.bytes / 4


@given(tokens=size, d=size, f=size)
def test_mlp_is_its_matmuls_with_the_traffic_of_one_pass(tokens, d, f):
    gated, plain = mlp_cost(tokens, d, f), mlp_cost(tokens, d, f, gated=False)
    assert gated == Cost(6 * tokens * d * f, 4 * tokens * d + 4 * tokens * f + 6 * d * f)
    up, down = matmul_cost(tokens, d, f), matmul_cost(tokens, f, d)
    assert gated.flops == (up + up + down).flops
    assert plain.flops == (up + down).flops
    # The separate matmuls read again what one pass keeps at hand.
    assert (up + up + down).bytes - gated.bytes == 2 * (tokens * d + tokens * f)
    assert (up + down).bytes - plain.bytes == 2 * tokens * f


# --- attention


@given(
    batch=st.integers(1, 4), t=size, s=size, kv=st.integers(1, 4), group=st.integers(1, 8), h=size
)
def test_attention_intensity_has_no_batch_in_it(batch, t, s, kv, group, h):
    cost = attention_cost(batch, t, s, kv * group, kv, h)
    assert cost.intensity == pytest.approx(group * s * t / (s + group * t))
    one = attention_cost(1, t, s, kv * group, kv, h)
    assert (cost.flops, cost.bytes) == (batch * one.flops, batch * one.bytes)


@given(n=st.integers(1, 40), more=st.integers(0, 40), window=st.none() | st.integers(1, 50))
def test_visible_pairs_are_those_of_the_mask(n, more, window):
    """Counted pair by pair: query i sits at position S - T + i, and sees itself."""
    t, s = n, n + more
    seen = range(s - t, s)
    pairs = sum(
        1
        for query in seen
        for key in range(s)
        if key <= query and (window is None or key > query - window)
    )
    arch = Architecture("one layer", 1, 4, 1, 1, 4, 4, 4, window=window)
    linear = 2 * t * arch.n_matmul_params
    assert model_cost(arch, 1, t, s).flops == linear + 4 * 4 * pairs
    if window is None:
        assert attention_cost(1, t, s, 1, 1, 4, causal=True).flops == 4 * 4 * pairs
        assert pairs == t * s - t * (t - 1) // 2


def by_hand(mixer, t, s):
    """Count a mixer's FLOPs and the elements it reads, token by token, in the cheapest form."""
    pairs, index_pairs, seen = 0, 0, set()
    for query in range(s - t, s):
        start = 0 if mixer.window is None else max(0, query + 1 - mixer.window)
        if mixer.chunked:
            start = query - query % mixer.window
        visible = set(range(start, query + 1))
        seen |= visible
        n_visible = len(visible)
        if isinstance(mixer, CompressedAttention):
            size = mixer.tokens_per_entry
            index_pairs += (looked := (query + 1) // size if size else 0)
            pairs += n_visible + min(looked, mixer.top_k or looked)
        else:
            index_pairs += n_visible
            pairs += min(n_visible, mixer.top_k or n_visible)
    index = 2 * mixer.index_heads * mixer.index_dim * index_pairs
    n_read = min(len(seen), t * (mixer.top_k or len(seen)))
    if isinstance(mixer, CompressedAttention):
        entries = s // size if size else 0
        n_read = len(seen) + min(entries, t * (mixer.top_k or entries))
        elements = n_read * mixer.n_kv_heads * mixer.head_dim + entries * mixer.index_dim
        return index + 2 * 2 * mixer.n_heads * mixer.head_dim * pairs, elements
    elements = len(seen) * mixer.index_dim
    if isinstance(mixer, Attention):
        per_token = mixer.n_kv_heads * (mixer.head_dim + mixer.value_dim)
        per_pair = mixer.n_heads * (mixer.head_dim + mixer.value_dim)
        return index + 2 * per_pair * pairs, elements + n_read * per_token
    elements += n_read * (mixer.latent_dim + mixer.rope_head_dim)
    on_latents = pairs * (2 * mixer.latent_dim + mixer.rope_head_dim)
    made = mixer.head_dim - mixer.rope_head_dim + mixer.v_head_dim
    on_heads = pairs * (mixer.head_dim + mixer.v_head_dim) + (s - t) * mixer.latent_dim * made
    return index + 2 * mixer.n_heads * min(on_latents, on_heads), elements


few = st.integers(1, 12)
kept = {"window": st.none() | few}
chosen = {"top_k": few, "index_dim": st.just(5), "index_heads": st.just(3)}
plain = {"n_heads": st.just(6), "n_kv_heads": st.just(2), "head_dim": st.just(8)}
latent = {"n_heads": few, "head_dim": st.just(7), "latent_dim": few, "v_head_dim": st.just(4)}
latent["rope_head_dim"] = st.integers(1, 6)
compressed = {name: st.just(4) for name in ("q_latent_dim", "out_latent_dim", "out_groups")}
mixers = st.one_of(
    st.builds(Attention, **plain, **kept, v_head_dim=few),
    st.builds(Attention, **plain, window=few, chunked=st.just(True)),
    st.builds(Attention, **plain, **kept, **chosen),
    st.builds(CompressedAttention, **plain, **kept, **compressed),
    st.builds(CompressedAttention, **plain, **kept, **compressed, tokens_per_entry=few),
    st.builds(CompressedAttention, **plain, **kept, **compressed, **chosen, tokens_per_entry=few),
    st.builds(LatentAttention, **latent, **kept),
    st.builds(LatentAttention, **latent, **kept, **chosen),
)


@settings(max_examples=300)
@given(mixer=mixers, batch=st.integers(1, 3), t=st.integers(1, 30), more=st.integers(0, 40))
def test_every_kind_of_attention_counted_token_by_token(mixer, batch, t, more):
    """Windows, chunks, what an index chooses, entries of several tokens, latents."""
    s = t + more
    arch = Architecture.of_layers("one layer", [Layer((mixer,))], 16, 9)
    flops, elements = by_hand(mixer, t, s)
    cost = model_cost(arch, batch, t, s)
    assert cost.flops == batch * (2 * t * arch.n_matmul_params + flops)
    assert cost.bytes == 2 * arch.n_params + batch * 2 * elements


def test_a_recurrence_takes_six_flops_for_each_element_of_its_state():
    """Decay, writing and reading; and the state is read and written once, however many tokens."""
    arch = Architecture.of_layers("one layer", [Layer((Recurrent("any", 50, 12),))], 16, 9)
    for batch, t in ((1, 1), (3, 20)):
        cost = model_cost(arch, batch, t, 30)
        assert cost.flops == batch * (2 * t * arch.n_matmul_params + 6 * t * 12)
        assert cost.bytes == 2 * arch.n_params + batch * 2 * 4 * 12  # in fp32


# --- the whole model


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "num_key_value_heads": 2, "attention_bias": True},
        {"model_type": "qwen3", "num_key_value_heads": 1, "head_dim": 24},
        {"model_type": "gemma", "num_key_value_heads": 4, "head_dim": 8},
        {"model_type": "gpt2"},
    ],
)
def test_flops_are_what_torch_counts(config):
    """Every matrix product of a forward pass of transformers."""
    import torch
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    batch, t = 3, 10
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"vocab_size": 50, "max_position_embeddings": 20}
    special_tokens = {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
    if config["model_type"] != "gpt2":
        shape["intermediate_size"] = 40
    hf = transformers.AutoConfig.for_model(**config, **shape, **special_tokens)
    hf._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(hf)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros((batch, t), dtype=torch.long), use_cache=False)
    counts = counter.get_flop_counts()
    rotary = sum(sum(ops.values()) for name, ops in counts.items() if name.endswith("rotary_emb"))

    arch = from_hf_config(config | shape)
    masked = 4 * batch * arch.n_layers * arch.n_heads * arch.head_dim * t * (t - 1) // 2
    # torch multiplies all pairs and masks afterwards; angles are no part of the model's products.
    assert model_cost(arch, batch, t, t).flops + masked == counter.get_total_flops() - rotary


@given(
    batch=st.integers(1, 3),
    t=st.integers(1, 20),
    more=st.integers(0, 20),
    name=st.sampled_from(["Llama-2-7B", "Llama-3-8B", "GPT-2", "Qwen2.5-7B"]),
)
def test_the_model_is_its_layers(batch, t, more, name):
    arch, s = ARCHITECTURES[name], t + more
    attention = attention_cost(
        batch, t, s, arch.n_heads, arch.n_kv_heads, arch.head_dim, causal=True
    )
    cost = model_cost(arch, batch, t, s)
    linear = 2 * batch * t * arch.n_matmul_params
    assert cost.flops == linear + arch.n_layers * attention.flops
    assert cost.bytes == 2 * arch.n_params + kv_cache_bytes(arch, s, batch)
    narrow = model_cost(arch, batch, t, s, dtype="int8", kv_dtype="fp32")
    assert narrow.bytes == arch.n_params + kv_cache_bytes(arch, s, batch, "fp32")


def test_windows_end_the_growth():
    mistral = ARCHITECTURES["Mistral-7B"]
    assert model_cost(mistral, 1, 1, 5000) == model_cost(mistral, 1, 1, 9000)
    assert model_cost(mistral, 1, 1, 5000).bytes == 2 * mistral.n_params + kv_cache_bytes(
        mistral, 5000
    )
    # A chunk of queries reaches T - 1 positions further back than its last one.
    chunk = model_cost(mistral, 1, 100, 9000).bytes - 2 * mistral.n_params
    assert chunk == 2 * mistral.kv_elements_per_token * (4096 + 99)


def test_experts_are_read_as_they_are_visited():
    """One token reads two of eight; eight tokens are expected to visit 7.2 of 8."""
    mixtral = ARCHITECTURES["Mixtral-8x7B"]
    expert = mixtral.n_layers * 3 * 4096 * 14336
    one = mixtral.n_touched_params(1)
    assert one == mixtral.n_params - 6 * expert
    assert one - mixtral.n_active_params == mixtral.params_by_component["embedding"]
    visited = 8 - (mixtral.n_params - mixtral.n_touched_params(8)) / expert
    assert round(visited, 1) == 7.2
    cache = kv_cache_bytes(mixtral, 100)
    assert model_cost(mixtral, 1, 1, 100).bytes == 2 * one + cache
    assert model_cost(mixtral, 1, 8, 100).bytes == 2 * mixtral.n_touched_params(8) + cache
    assert LLAMA_7B.n_touched_params(1) == LLAMA_7B.n_params


def test_latent_attention_has_the_intensity_of_many_heads_on_one():
    """Decoding DeepSeek-V2 on the latents: 242 FLOPs per byte of cache."""
    arch = ARCHITECTURES["DeepSeek-V2"]
    short, long = (model_cost(arch, 1, 1, s) for s in (1000, 2000))
    intensity = (long.flops - short.flops) / (long.bytes - short.bytes)
    assert round(intensity) == 242
    # A prefill makes keys of 192 and values of 128 for every head instead.
    pairs = 2000 * 2001 // 2
    linear = 2 * 2000 * arch.n_matmul_params
    prefill = model_cost(arch, 1, 2000, 2000).flops - linear
    assert prefill == 60 * pairs * 128 * 2 * (192 + 128)
    # Of what was there before, a chunk makes keys' plain 128 and values' 128 from each latent.
    pairs, before = 1000 * 1000 + 1000 * 1001 // 2, 1000 * 512 * (128 + 128)
    chunk = model_cost(arch, 1, 1000, 2000).flops - linear // 2
    assert chunk == 60 * 2 * 128 * (pairs * (192 + 128) + before) and type(chunk) is int


def test_costs_that_cannot_be(subtests):
    llama_cost = partial(model_cost, LLAMA_7B)
    for cost, sizes in [
        (matmul_cost, "m k n"),
        (mlp_cost, "tokens d_model d_ff"),
        (attention_cost, "batch t s n_heads n_kv_heads head_dim"),
        (llama_cost, "batch t s"),
    ]:
        good = dict.fromkeys(sizes.split(), 1)
        cost(**good)
        for name in good:
            message = f"^{name} must be an integer of at least 0, got -1"
            with subtests.test(message), pytest.raises(ValueError, match=message):
                cost(**good | {name: -1})
    for call, message in [
        (lambda: matmul_cost(1, 2.5, 2), "k must be an integer"),
        (lambda: matmul_cost(1, 2, 2, "half"), "dtype 'half'"),
        (lambda: attention_cost(1, 1, 1, 6, 4, 8), "n_heads 6 must be a multiple of n_kv_heads 4"),
        (lambda: attention_cost(1, 3, 2, 1, 1, 8, causal=True), "t must be at most s: 3"),
        (lambda: llama_cost(1, 3, 2), "t must be at most s: 3"),
        (lambda: attainable_flops(-1, H100), "intensity must not be negative"),
        (lambda: attainable_flops(1, H100, "int4"), "dtype 'int4' has no peak rate on H100-SXM"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            call()
