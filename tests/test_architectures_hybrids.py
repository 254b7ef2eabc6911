"""hybrids: what is kept per model, against transformers' own caches of small models of the kind."""

import math

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.architectures import HYBRIDS, Hybrid, hybrids
from firsttoken.units import BYTES

BOTH = ["linear_attention", "full_attention"]
SMALL = {
    "vocab_size": 16,
    "hidden_size": 16,
    "intermediate_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
# No end of text: transformers' defaults lie outside of so small a vocabulary.
SMALL |= {f"{name}_token_id": None for name in ("bos", "eos")} | {"pad_token_id": 0}

# Configuration, and what it keeps: numbers per token, (state, convolution) of a layer.
SIZES = {
    "MiniMax": (
        SMALL | {"head_dim": 6, "layer_types": BOTH, "num_hidden_layers": 2, "block_size": 4},
        hybrids._keys_and_values(2, 6),
        hybrids._lightning(4, 6),
    ),
    "Jamba": (
        SMALL
        | {"num_hidden_layers": 2, "attn_layer_period": 2, "attn_layer_offset": 1}
        | {"mamba_d_state": 3, "mamba_d_conv": 5, "mamba_expand": 3, "mamba_dt_rank": 2},
        hybrids._keys_and_values(2, 4),
        hybrids._mamba(48, 3, 5),
    ),
    "Qwen3Next": (
        SMALL
        | {"head_dim": 6, "layer_types": BOTH, "num_hidden_layers": 2, "num_experts_per_tok": 1}
        | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_conv_kernel_dim": 3}
        | {"linear_key_head_dim": 5, "linear_value_head_dim": 7, "num_experts": 2}
        | {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 8},
        hybrids._keys_and_values(2, 6),
        hybrids._delta(2, 4, 5, 7, 3),
    ),
    "Mamba2": (
        {name: SMALL[name] for name in SMALL if "size" in name and "inter" not in name}
        | {"num_hidden_layers": 2, "num_heads": 4, "head_dim": 8, "n_groups": 2, "state_size": 3}
        | {"conv_kernel": 3, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0},
        0,
        hybrids._mamba2(4, 8, 3, 2, 3),
    ),
}


def tensors(cache):
    """Return what each layer of a cache of transformers holds: {layer: (keys, states, inputs)}."""
    found = []
    for layer in cache.layers:
        keys = [
            x
            for x in (getattr(layer, "keys", None), getattr(layer, "values", None))
            if x is not None
        ]
        states = [*getattr(layer, "recurrent_states", {}).values()]
        inputs = [*getattr(layer, "conv_states", {}).values()]
        found.append((keys, states, inputs))
    for index, state in enumerate(getattr(cache, "linear_cache", [])):  # MiniMax has its own
        found[index][1].extend([state] if len(state) else [])
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", SIZES)
def test_sizes_are_those_of_the_cache_of_transformers(kind):
    """A batch of 2 in bf16 reads 7 tokens, then 1: keys grow, states stay."""
    fields, kv_elements, (state_elements, conv_elements) = SIZES[kind]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**fields)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(torch.bfloat16).eval()
    tokens = torch.ones(2, 7, dtype=torch.long)
    name = "cache_params" if kind == "Mamba2" else "past_key_values"
    with torch.no_grad():
        cache = getattr(model(tokens, use_cache=True), name)
        sizes = []
        for n_tokens in (7, 8):
            layers = tensors(cache)
            for keys, states, inputs in layers:
                if keys:
                    assert sum(x.numel() for x in keys) == 2 * n_tokens * kv_elements
                if states:
                    assert sum(x.numel() for x in states) == 2 * state_elements
                    assert sum(x.numel() for x in inputs) == 2 * conv_elements
                # MiniMax's own code keeps its state in float32, but not the port to transformers.
                stored = torch.bfloat16 if kind == "MiniMax" else torch.float32
                assert {x.dtype for x in states} <= {stored}
                assert {x.dtype for x in keys + inputs} <= {torch.bfloat16}
            sizes.append([sum(bool(x) for x in part) for part in zip(*layers, strict=True)])
            model(tokens[:, :1], **{name: cache}, use_cache=True)
    counts = {"Mamba2": [0, 2, 2], "MiniMax": [1, 1, 0]}
    assert sizes == [counts.get(kind, [1, 1, 1])] * 2


# By hand, from the configs: attention layers of all, cache bytes per token in bf16, bytes of state.
BY_HAND = {
    "MiniMax-Text-01": (10, 80, 10 * 2 * 8 * 128 * 2, 70 * 64 * 128 * 128 * 4),
    "Jamba-1.5-Mini": (4, 32, 4 * 2 * 8 * 128 * 2, 28 * 8192 * (16 * 4 + 4 * 2)),
    "Jamba-1.5-Large": (9, 72, 9 * 2 * 8 * 128 * 2, 63 * 16384 * (16 * 4 + 4 * 2)),
    "Qwen3-Next-80B-A3B": (12, 48, 24576, 36 * (32 * 128 * 128 * 4 + 8192 * 4 * 2)),
    "Kimi-Linear-48B-A3B": (7, 27, 7 * 576 * 2, 20 * (32 * 128 * 128 * 4 + 12288 * 4 * 2)),
    "Falcon-H1-34B": (72, 72, 147456, 72 * (32 * 128 * 256 * 4 + 5120 * 4 * 2)),
    "Nemotron-H-8B": (4, 52, 16384, 24 * (8192 * 128 * 4 + 10240 * 4 * 2)),
    "Mamba-Codestral-7B": (0, 64, 0, 64 * (8192 * 128 * 4 + 10240 * 4 * 2)),
}


def test_presets_by_hand():
    assert BY_HAND.keys() == HYBRIDS.keys()
    for name, model in HYBRIDS.items():
        attending = len(model.attention_layers), model.n_layers
        assert (*attending, model.cache_bytes(1), model.state_bytes()) == BY_HAND[name]
        assert model.name == name
        assert model.mixer
        assert model.source


@given(
    name=st.sampled_from([name for name in HYBRIDS if HYBRIDS[name].attention_layers]),
    dtype=st.sampled_from(["bf16", "fp32", "fp8"]),
    n_tokens=st.integers(0, 10**6),
)
def test_a_hybrid_keeps_less_than_its_twin_from_the_crossover_on(name, dtype, n_tokens):
    """The twin attends wherever this one attends or recurs."""
    model = HYBRIDS[name]
    kept = model.cache_bytes(n_tokens, dtype=dtype) + model.state_bytes(dtype=dtype)
    layers = min(model.n_layers, len(model.attention_layers) + model.n_recurrent_layers)
    less = kept < n_tokens * layers * model.kv_elements * BYTES[dtype]
    assert less == (n_tokens > model.crossover_tokens(dtype))
    # Falcon-H1 has the cache of a Transformer, and states besides.
    assert HYBRIDS["Falcon-H1-34B"].crossover_tokens() == math.inf


@given(st.integers(0, 10**6), st.integers(0, 64), st.sampled_from(sorted(HYBRIDS)))
def test_only_the_cache_grows(n_tokens, batch, name):
    model = HYBRIDS[name]
    assert model.cache_bytes(n_tokens, batch) == n_tokens * batch * model.cache_bytes(1)
    assert model.state_bytes(batch) == batch * model.state_bytes()
    assert model.cache_bytes(n_tokens, batch, "fp8") * 2 == model.cache_bytes(n_tokens, batch)
    minimax = HYBRIDS["MiniMax-Text-01"]  # has no convolution, whose inputs go by another format
    assert minimax.state_bytes(state_dtype="bf16") * 2 == minimax.state_bytes()


def test_impossible_models_and_bad_arguments_are_named(subtests):
    fields = {"name": "toy", "n_layers": 4, "attention_layers": (3,), "kv_elements": 8}
    fields |= {"n_recurrent_layers": 3, "state_elements": 100}
    toy = Hybrid(**fields)
    for change, message in [
        ({"attention_layers": (4,)}, r"attention_layers .* below n_layers 4, got \(4,\)"),
        ({"attention_layers": (2, 1)}, r"attention_layers must rise .* got \(2, 1\)"),
        ({"n_recurrent_layers": 5}, "n_recurrent_layers must be at most n_layers 4, got 5"),
        ({"kv_elements": 1.5}, "kv_elements .* got 1.5"),
        ({"state_dtype": "f32"}, "dtype 'f32' is unknown"),
    ]:
        with subtests.test(str(change)), pytest.raises(ValueError, match=message):
            Hybrid(**fields | change)
    for call, message in [
        (lambda: toy.cache_bytes(-1), "n_tokens .* got -1"),
        (lambda: HYBRIDS["Mamba-Codestral-7B"].crossover_tokens(), "Codestral.* no attention"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            call()
