"""architectures: counts against released checkpoints and against transformers' own modules."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttoken.architectures import ARCHITECTURES, from_hf_config

# name: (parameters, parameters active per token, cache elements per token).
# Counted from the published configs with transformers 5.23 on the meta device. Active leaves out
# the input embedding where the output has its own.
RELEASED = {
    "Llama-2-7B": (6_738_415_616, 6_607_343_616, 262_144),
    "Llama-2-13B": (13_015_864_320, 12_852_024_320, 409_600),
    "Llama-2-70B": (68_976_648_192, 68_714_504_192, 163_840),
    "Llama-3-8B": (8_030_261_248, 7_504_924_672, 65_536),
    "Llama-3.1-8B": (8_030_261_248, 7_504_924_672, 65_536),
    "Llama-3.1-70B": (70_553_706_496, 69_503_033_344, 163_840),
    "Llama-3.1-405B": (405_853_388_800, 403_752_042_496, 258_048),
    "Llama-3.2-1B": (1_235_814_400, 1_235_814_400, 16_384),
    "Mistral-7B": (7_241_732_096, 7_110_660_096, 65_536),
    "Mixtral-8x7B": (46_702_792_704, 12_748_853_248, 65_536),
    "Mixtral-8x22B": (140_620_634_112, 38_955_423_744, 114_688),
    "GPT-2": (124_439_808, 123_653_376, 18_432),
    "GPT-J-6B": (6_050_882_784, 5_844_444_384, 229_376),
    "Qwen2.5-7B": (7_615_616_512, 7_070_619_136, 28_672),
    "Qwen3-8B": (8_190_735_360, 7_568_405_504, 73_728),
    "Qwen3-30B-A3B": (30_532_122_624, 3_041_867_776, 49_152),
    "Gemma-2-9B": (9_241_705_984, 9_241_705_984, 172_032),
    "Gemma-3-1B": (999_885_952, 999_885_952, 13_312),
    "Gemma-3-12B": (11_766_034_176, 11_766_034_176, 196_608),
    "Gemma-3-27B": (27_009_346_304, 27_009_346_304, 253_952),
    "gpt-oss-20b": (20_914_757_184, 3_608_307_264, 24_576),
    "DeepSeek-V2": (235_741_434_880, 20_851_512_320, 34_560),
    "DeepSeek-V2-Lite": (15_706_484_224, 2_451_435_008, 15_552),
    "DeepSeek-V3": (671_026_404_352, 36_625_603_584, 35_136),
    "Phi-3-mini-4k": (3_821_079_552, 3_722_578_944, 196_608),
}


def test_presets_count_exactly():
    """Those with recurrent layers have a file of their own."""
    recurrent = {name for name, a in ARCHITECTURES.items() if any(x.recurrent for x in a.layers)}
    assert RELEASED.keys() == ARCHITECTURES.keys() - recurrent
    for name in RELEASED:
        arch = ARCHITECTURES[name]
        counts = (arch.n_params, arch.n_active_params, arch.kv_elements_per_token)
        assert counts == RELEASED[name], name
        assert sum(arch.params_by_component.values()) == arch.n_params
        assert arch.name == name
        assert arch.source


def test_layers_that_share_a_cache():
    """Cross-layer attention: every second layer stores; the others have no key, value matrices."""
    own = ARCHITECTURES["Llama-3-8B"]
    shared = own.replace(kv_source=[i - i % 2 for i in range(32)])
    assert shared.kv_elements_per_token == own.kv_elements_per_token // 2
    assert shared.kv_layers == tuple(range(0, 32, 2))
    assert own.n_params - shared.n_params == 16 * 2 * 4096 * 8 * 128


LLAMA = {"model_type": "llama"}


def test_shapes_that_cannot_be(subtests):
    for changes, message in [
        ({"n_kv_heads": 5}, "n_heads 32 must be a multiple of n_kv_heads 5"),
        ({"n_layers": 0}, "n_layers must be an integer of at least 1, got 0"),
        ({"head_dim": 64.0}, "head_dim must be an integer.*64.0"),
        ({"learned_positions": True, "max_context": None}, "max_context"),
        ({"kv_source": (1, *range(1, 32))}, r"kv_source\[0\] is 1"),
        ({"kv_source": (0, 0, *range(2, 32)), "window": 8, "local_layers": (0,)}, "windows differ"),
        ({"n_active_experts": 2}, "n_active_experts is 2, but n_experts is 0"),
        ({"v_head_dim": 8}, "latent_dim is None"),
        ({"latent_dim": 8, "rope_head_dim": 128, "v_head_dim": 8}, "less than head_dim 128"),
    ]:
        with subtests.test(str(changes)), pytest.raises(ValueError, match=message):
            ARCHITECTURES["Llama-2-7B"].replace(**changes)


# --- Hugging Face configurations, held against the modules that transformers builds


def counted_by_transformers(config: dict) -> int:
    import torch
    import transformers

    with torch.device("meta"):
        hf = transformers.AutoConfig.for_model(**config)
        model = transformers.AutoModelForCausalLM.from_config(hf)
    return sum(p.numel() for p in model.parameters())


# Small enough to build at once; every key that a count depends on is drawn.
flag = st.booleans()
width = st.sampled_from([32, 64, 96])
base = {
    "hidden_size": width,
    "intermediate_size": st.integers(1, 40),
    "num_hidden_layers": st.integers(1, 4),
    "vocab_size": st.integers(8, 50),
    "tie_word_embeddings": flag,
    # Some families ask for them, some have them always, some never.
    "attention_bias": flag,
    "mlp_bias": flag,
}
heads = st.sampled_from([(4, 4), (4, 2), (4, 1), (8, 2), (2, None)])
special_tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
gpt = {
    "n_embd": width,
    "n_layer": st.integers(1, 3),
    "n_head": st.sampled_from([1, 2, 4]),
    "n_positions": st.integers(1, 9),
    "n_inner": st.none() | st.integers(1, 20),
    "vocab_size": st.integers(8, 50),
    "tie_word_embeddings": flag,
}
moe = {"num_experts_per_tok": st.integers(1, 2), "moe_intermediate_size": st.integers(1, 9)}
deepseek = moe | {
    "n_routed_experts": st.sampled_from([4, 8]),
    "n_shared_experts": st.integers(1, 2),
    "first_k_dense_replace": st.integers(0, 4),
    "q_lora_rank": st.none() | st.integers(1, 9),
    "kv_lora_rank": st.integers(1, 9),
    "qk_nope_head_dim": st.integers(1, 9),
    "qk_rope_head_dim": st.sampled_from([2, 4]),
    "v_head_dim": st.integers(1, 9),
}
head_dim = {"head_dim": st.sampled_from([8, 24])}
DRAWN = {
    "llama": head_dim,
    "mistral": head_dim,
    "mixtral": head_dim
    | {"num_local_experts": st.integers(2, 4), "num_experts_per_tok": st.integers(1, 2)},
    "granite": {},
    "smollm3": {"no_rope_layer_interval": st.integers(1, 4)},
    "qwen2": {"use_sliding_window": flag, "max_window_layers": st.integers(0, 4)},
    "qwen3": head_dim | {"use_sliding_window": flag},
    "qwen3_moe": moe
    | head_dim
    | {
        "num_experts": st.integers(2, 4),
        "decoder_sparse_step": st.integers(1, 3),
        "mlp_only_layers": st.lists(st.integers(0, 3), max_size=2),
    },
    "gemma": head_dim,
    "gemma2": head_dim,
    "gemma3_text": head_dim,
    "phi3": {},
    "gpt_oss": head_dim
    | {"num_local_experts": st.integers(2, 4), "num_experts_per_tok": st.integers(1, 2)},
    "gpt2": gpt,
    "gptj": gpt | {"rotary_dim": st.just(4)},
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
}


@st.composite
def hf_configs(draw, model_type):
    config = {"model_type": model_type, **special_tokens}
    if model_type.startswith("gpt"):
        keys = DRAWN[model_type]
    else:
        keys = base | DRAWN[model_type]
        config["num_attention_heads"], kv_heads = draw(heads)
        if not model_type.startswith("deepseek"):
            config["num_key_value_heads"] = kv_heads or config["num_attention_heads"]
    return config | draw(st.fixed_dictionaries(keys))


@pytest.mark.parametrize("model_type", DRAWN)
@settings(max_examples=12)
@given(data=st.data())
def test_drawn_configs_count_as_transformers_counts(model_type, data):
    config = data.draw(hf_configs(model_type))
    assert from_hf_config(config).n_params == counted_by_transformers(config)


@pytest.mark.parametrize("model_type", DRAWN)
def test_an_empty_config_takes_the_defaults_of_transformers(model_type, tmp_path):
    """Every default at once: the count, the context, the windows and the rotary base."""
    import transformers

    extra = {"num_experts_per_tok": 6} if model_type == "deepseek_v2" else {}
    config = {"model_type": model_type, **extra}
    arch = from_hf_config(config)
    assert arch.n_params == counted_by_transformers(config)
    hf = transformers.AutoConfig.for_model(**config)
    assert arch.max_context == hf.max_position_embeddings
    assert arch.tied_embeddings == hf.tie_word_embeddings
    rope = getattr(hf, "rope_parameters", None)
    if rope:
        assert arch.rope_theta == rope.get("full_attention", rope)["rope_theta"]
    unrotated = [not rotated for rotated in getattr(hf, "no_rope_layers", None) or []]
    assert (arch.unrotated_layers or ()) == tuple(np.flatnonzero(unrotated))
    # A window applies in the layers that layer_types names, in all where there are no types.
    window = getattr(hf, "sliding_window", None)
    kinds = getattr(hf, "layer_types", None) or ["sliding_attention"] * arch.n_layers
    expected = tuple(window if kind == "sliding_attention" else None for kind in kinds)
    assert arch.layer_windows == expected
    hf.save_pretrained(tmp_path)
    saved = from_hf_config(tmp_path)
    assert saved == from_hf_config(tmp_path / "config.json") == from_hf_config(str(tmp_path))
    assert saved == arch.replace(rope_scaling=saved.rope_scaling)


def test_a_config_gives_its_name_or_its_type():
    assert from_hf_config(LLAMA | {"_name_or_path": "me/small"}).name == "me/small"
    assert from_hf_config(LLAMA).name == "llama"


def test_both_spellings_of_the_rotary_settings():
    scaling = {"type": "linear", "factor": 2.0}
    old = from_hf_config(LLAMA | {"rope_theta": 5e5, "rope_scaling": scaling})
    new = from_hf_config(
        LLAMA | {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}}
    )
    assert old == new
    assert (old.rope_theta, old.rope_scaling) == (5e5, {"rope_type": "linear", "factor": 2.0})
    plain = from_hf_config(LLAMA | {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})
    assert (plain.rope_theta, plain.rope_scaling) == (5e5, None)
    assert from_hf_config(LLAMA | {"rope_scaling": None}).rope_theta == 10000.0


# Types whose classes in transformers rotate nothing by default, as their configs show.
UNROTATED = """
    biogpt bloom ctrl falcon_mamba gpt-sw3 gpt2 gpt_bigcode gpt_neo granitemoehybrid inkling_text
    jamba kimi_linear mamba mamba2 mpt nemotron_h openai-gpt opt rwkv xglm xlstm zamba zamba2
"""
EXTENDED = "apertus", "cwm", "ministral3"


@pytest.mark.parametrize("kind", UNROTATED.split())
def test_what_is_not_rotated_has_no_base(kind):
    arch = from_hf_config({"model_type": kind})
    assert (arch.rope_theta, arch.rope_scaling) == (None, None)


@pytest.mark.parametrize("kind", EXTENDED)
def test_some_are_extended_where_a_config_says_nothing(kind):
    import transformers

    arch = from_hf_config({"model_type": kind})
    theirs = dict(transformers.AutoConfig.for_model(kind).rope_parameters)
    assert arch.rope_theta == theirs["rope_theta"]
    assert arch.rope_scaling.items() <= theirs.items()
    assert theirs["factor"] == arch.rope_scaling["factor"] > 1
    config = {"model_type": kind, "rope_parameters": {"rope_theta": 9.0, "rope_type": "default"}}
    assert from_hf_config(config).rope_scaling is None


def test_layers_of_lfm2_convolve_but_for_those_that_are_named():
    config = {"model_type": "lfm2", "num_hidden_layers": 4, "full_attn_idxs": [1, 3]}
    arch = from_hf_config(config | {"layer_types": None})
    assert [layer.attention is not None for layer in arch.layers] == [False, True] * 2
    assert [layer.recurrent is not None for layer in arch.layers] == [True, False] * 2


def test_beam_rotates_what_sees_everything_only_with_a_base_for_it():
    arch = from_hf_config({"model_type": "beam"})
    whole = tuple(i for i, window in enumerate(arch.layer_windows) if window is None)
    assert arch.unrotated_layers == whole and 0 < len(whole) < arch.n_layers
    bases = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    assert not from_hf_config({"model_type": "beam", "rope_parameters": bases}).unrotated_layers


def test_dense_layers_of_cohere2_moe_are_rotated_where_each_sees_everything():
    config = {"model_type": "cohere2_moe", "num_hidden_layers": 6, "first_k_dense_replace": 2}
    config |= {"prefix_dense_sliding_window_pattern": 1, "sliding_window_pattern": 2}
    arch = from_hf_config(config)
    assert [window is None for window in arch.layer_windows] == [True, True, *[False, True] * 2]
    assert arch.unrotated_layers == (3, 5)
    config["prefix_dense_sliding_window_pattern"] = 2
    assert from_hf_config(config).unrotated_layers == (1, 3, 5)


@pytest.mark.parametrize(
    ("name", "experts"),
    [
        ("Mixtral-8x7B", (8, 2, 14_336)),
        ("DeepSeek-V3", (256, 8, 2048)),
        ("Llama-3.1-8B", (0, 0, None)),
    ],
)
def test_experts_of_presets(name, experts):
    arch = ARCHITECTURES[name]
    assert (arch.n_experts, arch.n_active_experts, arch.expert_d_ff) == experts


def test_layer_types_and_switched_off_windows():
    kinds = ["full_attention", "sliding_attention"] * 2
    qwen = {"model_type": "qwen2", "num_hidden_layers": 4, "sliding_window": 16}
    on = from_hf_config(qwen | {"use_sliding_window": True, "layer_types": kinds})
    assert on.layer_windows == (None, 16, None, 16)
    late = from_hf_config(qwen | {"use_sliding_window": True, "max_window_layers": 3})
    assert late.layer_windows == (None, None, None, 16)
    assert set(from_hf_config(qwen).layer_windows) == {None}
    whole = qwen | {"use_sliding_window": True, "layer_types": ["full_attention"] * 4}
    assert set(from_hf_config(whole).layer_windows) == {None}
    mistral = {"model_type": "mistral", "sliding_window": None}
    assert set(from_hf_config(mistral).layer_windows) == {None}


def test_a_value_that_cannot_be_is_named_as_in_the_file(subtests):
    for model_type, changes, message in [
        ("bert", {}, "model_type 'bert' is no decoder-only language model"),
        ("llama", {"is_encoder_decoder": True}, "model_type 'llama' is no decoder-only"),
        (None, {}, "model_type must be a name, got None"),
        ("llama", {"num_key_value_heads": 3}, "multiple of n_kv_heads 3"),
        (
            "gemma3_text",
            {"rope_parameters": {"full_attention": 5}},
            "^config: full_attention must be an object, got 5$",
        ),
        *[
            ("llama", {key: value}, f"^config: {key} must be a positive integer, got {value!r}$")
            for key in ("num_hidden_layers", "num_attention_heads", "hidden_size")
            for value in (0, "8")
        ],
        *[
            (
                kind,
                {key: value},
                f"^config: {key} must be {expected}, got {re.escape(repr(value))}$",
            )
            for kind, key, value, expected in [
                ("llama", "rope_scaling", 8, "an object"),
                ("qwen3_moe", "decoder_sparse_step", 0, "an integer of at least 1"),
                ("deepseek_v3", "qk_rope_head_dim", 64.0, "an integer of at least 1"),
                ("deepseek_v3", "n_routed_experts", "256", "an integer of at least 1"),
                ("gpt2", "n_layer", 0, "a positive integer"),
                ("qwen3_next", "linear_num_key_heads", 0, "an integer of at least 1"),
                ("longcat_flash", "num_layers", 10**30, "at most 10,000"),
            ]
        ],
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            from_hf_config({"model_type": model_type, **changes})


def test_a_multimodal_model_is_its_text_decoder():
    """Wherever the decoder sits, and with or without a type of its own."""
    text = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 99, "head_dim": 16}
    alone = from_hf_config({"model_type": "gemma3_text", **text})
    for outside in (
        {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 8}},
        {"model_type": "any", "llm_config": {"model_type": "gemma3_text", **text}},
        {"text_config": {"model_type": "gemma3_text", **text}},
        {
            "model_type": "omni",
            "thinker_config": {"text_config": {"model_type": "gemma3_text"} | text},
        },
    ):
        assert from_hf_config(outside) == alone
    # Whether the tables are tied may stand outside.
    untied = from_hf_config(
        {"model_type": "gemma3", "text_config": text, "tie_word_embeddings": False}
    )
    assert untied.n_params == alone.n_params + 99 * 64


UNKNOWN = {
    "model_type": "nobody",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 100,
}


def test_an_unknown_type_is_read_by_its_names_and_says_so():
    llama = from_hf_config(UNKNOWN | {"model_type": "llama"})
    read = from_hf_config(UNKNOWN)
    assert read.n_params == llama.n_params
    assert read.kv_elements_per_token == llama.kv_elements_per_token
    assert read.source.startswith("read by its names, not checked: model_type 'nobody'")
    assert llama.source == ""
    latent = {"kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    experts |= {"n_shared_experts": 1, "first_k_dense_replace": 1}
    as_deepseek = from_hf_config(
        UNKNOWN | latent | experts | {"model_type": "deepseek_v3", "q_lora_rank": None}
    )
    read = from_hf_config(UNKNOWN | latent | experts)
    assert read.n_params == as_deepseek.n_params
    assert "experts from layer 1 on" in read.source
    for key in ("attention_bias", "qkv_bias"):
        assert from_hf_config(UNKNOWN | {key: True}).n_params == llama.n_params + 3 * 3 * 64, key
    windows = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"] * 2}
    assert from_hf_config(UNKNOWN | windows).layer_windows == (7, None, 7)


def test_an_unknown_type_that_the_usual_names_do_not_describe_is_refused(subtests):
    for change, message in [
        ({"mamba_d_state": 16}, "mamba_d_state belongs to a part"),
        ({"linear_num_key_heads": 4}, "linear_num_key_heads belongs to a part"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers belongs to a part"),
        ({"vocab_size": None}, "vocab_size is missing, and model_type 'nobody' is not known"),
        ({"intermediate_size": None}, "intermediate_size is missing"),
        (
            {"layer_types": ["full_attention"], "sliding_window": 4},
            "layer_types must name 3 layers, got 1",
        ),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be at most 10,000"),
        ({"head_dim": "64"}, "head_dim must be an integer of at least 1, got '64'"),
        ({"type_vocab_size": 2}, "'nobody' is no decoder-only"),  # as BERT's descendants have it
        ({"architectures": ["AnyForMaskedLM"]}, "'nobody' is no decoder-only"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            from_hf_config(UNKNOWN | change)


@pytest.mark.parametrize(
    ("config", "kib"),
    [
        # A head size given apart from the width: Mistral-Nemo, 40 layers, 8 KV heads of 128.
        ({"model_type": "mistral", "hidden_size": 5120, "head_dim": 128, "num_hidden_layers": 40,
          "num_attention_heads": 32, "num_key_value_heads": 8, "sliding_window": None}, 160),
        # No KV heads named: as many as query heads.
        ({"model_type": "llama", "num_key_value_heads": None}, 512),
    ],
)  # fmt: skip
def test_traps_that_calculators_fall_into(config, kib):
    assert from_hf_config(config).kv_elements_per_token * 2 / 1024 == kib


def test_an_embedding_of_another_width():
    """OPT-350m, 331,196,416 parameters: rows of 512, and a matrix on either side of the layers."""
    opt = {"model_type": "opt", "hidden_size": 1024, "word_embed_proj_dim": 512, "ffn_dim": 4096}
    opt |= {"num_hidden_layers": 24, "num_attention_heads": 16, "do_layer_norm_before": False}
    arch = from_hf_config(opt)
    assert arch.n_params == 331_196_416
    assert arch.params_by_component["embedding"] == 50272 * 512
    assert arch.params_by_component["other"] == 2 * 512 * 1024
    assert arch.n_active_params == arch.n_params - arch.position_params


def test_a_switch_is_yes_or_no():
    with pytest.raises(ValueError, match="tie_word_embeddings must be true or false, got 'false'"):
        from_hf_config(LLAMA | {"tie_word_embeddings": "false"})
    with pytest.raises(ValueError, match="per_layer_config is not read for model_type 'llama'"):
        from_hf_config(LLAMA | {"per_layer_config": {"0": {"head_dim": 8}}})
