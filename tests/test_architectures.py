"""architectures: counts against released checkpoints and against transformers' own modules."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttoken.architectures import ARCHITECTURES, Architecture, from_hf_config

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
    assert RELEASED.keys() == ARCHITECTURES.keys()
    for name, arch in ARCHITECTURES.items():
        counts = (arch.n_params, arch.n_active_params, arch.kv_elements_per_token)
        assert counts == RELEASED[name], name
        assert sum(arch.params_by_component.values()) == arch.n_params
        assert arch.name == name
        assert arch.source


def test_counts_that_others_published():
    """2VD + (3DF + 2DNH + 2DKH)L is 81 norm vectors short of Llama-2-13B; Scaling book, question 1;
    arXiv:2405.04434, table 9: MLA and the multi-head models it is compared with."""
    arch = ARCHITECTURES["Llama-2-13B"]
    assert arch.params_by_component["norms"] == 81 * 5120
    assert arch.n_params - 81 * 5120 == 13_015_449_600
    assert arch.replace(n_kv_heads=8).n_params - 81 * 5120 == 11_337_728_000
    arch = Architecture("book", 64, 4096, 32, 8, 256, 16384, 32128, tied_embeddings=True)
    assert arch.n_params - arch.params_by_component["norms"] == 18_385_207_296
    small = Architecture("small MHA", 27, 2048, 16, 16, 128, 10944, 102400)
    large = Architecture("large MHA", 60, 5120, 56, 56, 128, 12288, 102400)
    assert (small.kv_elements_per_token, large.kv_elements_per_token) == (110_592, 860_160)


def test_query_heads_in_place_of_kv_heads_is_caught():
    """The circulating formula 2·L·N·H overstates the cache by N/K; only MHA hides it."""
    heads = {"Llama-2-7B": (32, 32), "GPT-J-6B": (16, 16), "Llama-3-8B": (32, 8)}
    heads |= {"Mistral-7B": (32, 8), "Mixtral-8x7B": (32, 8), "Llama-2-70B": (64, 8)}
    for name, (n_heads, n_kv_heads) in heads.items():
        arch = ARCHITECTURES[name]
        assert (arch.n_heads, arch.n_kv_heads) == (n_heads, n_kv_heads)
        wrong = 2 * arch.n_layers * arch.n_heads * arch.head_dim
        assert wrong == arch.kv_elements_per_token * n_heads // n_kv_heads


def test_layers_that_share_a_cache():
    """Cross-layer attention: every second layer stores; the others have no key, value matrices."""
    own = ARCHITECTURES["Llama-3-8B"]
    shared = own.replace(kv_source=[i - i % 2 for i in range(32)])
    assert shared.kv_elements_per_token == own.kv_elements_per_token // 2
    assert shared.kv_layers == tuple(range(0, 32, 2))
    assert own.n_params - shared.n_params == 16 * 2 * 4096 * 8 * 128


def test_which_layers_have_a_window():
    assert set(ARCHITECTURES["Mistral-7B"].layer_windows) == {4096}
    assert set(ARCHITECTURES["Llama-2-7B"].layer_windows) == {None}
    assert ARCHITECTURES["Gemma-2-9B"].layer_windows[:4] == (4096, None, 4096, None)
    gemma3 = ARCHITECTURES["Gemma-3-12B"].layer_windows
    assert (gemma3.count(None), gemma3.count(1024), gemma3[5], gemma3[6]) == (8, 40, None, 1024)


def test_replace_leaves_the_original_and_drops_the_source():
    arch = ARCHITECTURES["Llama-2-7B"]
    fewer = arch.replace(n_layers=2)
    assert (arch.n_layers, fewer.n_layers, fewer.source) == (32, 2, "")
    assert arch.replace(n_layers=2) == fewer
    assert hash(arch.replace(n_layers=2)) == hash(fewer)
    with pytest.raises(AttributeError):
        arch.n_layers = 2


LLAMA = {"model_type": "llama"}


def test_shapes_that_cannot_be(subtests):
    for changes, message in [
        ({"n_kv_heads": 5}, "n_heads 32 must be a multiple of n_kv_heads 5"),
        ({"n_layers": 0}, "n_layers must be an integer of at least 1, got 0"),
        ({"d_ff": -1}, "d_ff"),
        ({"head_dim": 64.0}, "head_dim must be an integer.*64.0"),
        ({"vocab_size": None}, "vocab_size"),
        ({"window": 0}, "window"),
        ({"learned_positions": True, "max_context": None}, "max_context"),
        ({"local_layers": (1,)}, "local_layers .* need a window"),
        ({"local_layers": (32,), "window": 8}, "local_layers holds 32"),
        ({"kv_source": (0,)}, "kv_source must name one layer for each of 32"),
        ({"kv_source": (1, *range(1, 32))}, r"kv_source\[0\] is 1"),
        ({"kv_source": (0, 0, 1, *range(3, 32))}, r"kv_source\[2\] is 1"),
        ({"kv_source": (0, 0, *range(2, 32)), "window": 8, "local_layers": (0,)}, "windows differ"),
        ({"n_active_experts": 2}, "n_active_experts is 2, but n_experts is 0"),
        ({"n_experts": 4, "n_active_experts": 5, "expert_d_ff": 8}, "n_active_experts"),
        ({"n_experts": 4, "n_active_experts": 2}, "expert_d_ff"),
        ({"v_head_dim": 8}, "latent_dim is None"),
        ({"latent_dim": 8}, "rope_head_dim"),
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
    "attention_bias": flag,
}
head_dim = {"head_dim": st.sampled_from([8, 24])}
DRAWN = {
    "llama": head_dim | {"attention_bias": flag, "mlp_bias": flag},
    "mistral": head_dim,
    "mixtral": head_dim
    | {"num_local_experts": st.integers(2, 4), "num_experts_per_tok": st.integers(1, 2)},
    "qwen2": {"use_sliding_window": flag, "max_window_layers": st.integers(0, 4)},
    "qwen3": head_dim | {"attention_bias": flag, "use_sliding_window": flag},
    "qwen3_moe": moe
    | head_dim
    | {
        "num_experts": st.integers(2, 4),
        "decoder_sparse_step": st.integers(1, 3),
        "mlp_only_layers": st.lists(st.integers(0, 3), max_size=2),
        "attention_bias": flag,
    },
    "gemma": head_dim | {"attention_bias": flag},
    "gemma2": head_dim | {"attention_bias": flag},
    "gemma3_text": head_dim | {"attention_bias": flag},
    "phi3": {},
    "gpt_oss": head_dim
    | {
        "num_local_experts": st.integers(2, 4),
        "num_experts_per_tok": st.integers(1, 2),
        "attention_bias": flag,
    },
    "gpt2": gpt,
    "gptj": gpt | {"rotary_dim": st.just(4)},
    "deepseek_v2": deepseek | {"mlp_bias": flag},
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
    """Every default at once: the count, the context, the windows and the rotary base.

    transformers writes its own, longer config.json; folder and file name both work.
    """
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
    # A window applies in the layers that layer_types names, in all where there are no types.
    window = getattr(hf, "sliding_window", None)
    kinds = getattr(hf, "layer_types", None) or ["sliding_attention"] * arch.n_layers
    expected = tuple(window if kind == "sliding_attention" else None for kind in kinds)
    assert arch.layer_windows == expected
    hf.save_pretrained(tmp_path)
    saved = from_hf_config(tmp_path)
    assert saved == from_hf_config(tmp_path / "config.json") == from_hf_config(str(tmp_path))
    assert saved == arch.replace(rope_scaling=saved.rope_scaling)


def test_presets_equal_the_configs_they_come_from():
    config = LLAMA | {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    }
    preset = ARCHITECTURES["Llama-3.1-8B"]
    assert from_hf_config(config).replace(name=preset.name) == preset.replace()


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


def test_layer_types_and_switched_off_windows():
    kinds = ["full_attention", "sliding_attention"] * 2
    qwen = {"model_type": "qwen2", "num_hidden_layers": 4, "sliding_window": 16}
    on = from_hf_config(qwen | {"use_sliding_window": True, "layer_types": kinds})
    assert on.layer_windows == (None, 16, None, 16)
    late = from_hf_config(qwen | {"use_sliding_window": True, "max_window_layers": 3})
    assert late.layer_windows == (None, None, None, 16)
    assert set(from_hf_config(qwen).layer_windows) == {None}
    mistral = {"model_type": "mistral", "sliding_window": None}
    assert set(from_hf_config(mistral).layer_windows) == {None}


def test_unreadable_configs_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"there is no file .*config\.json"):
        from_hf_config(tmp_path)
    for content, message in [
        ("{", "not a readable JSON file"),
        ("[1]", "holds a list, expected an object"),
    ]:
        (tmp_path / "config.json").write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            from_hf_config(tmp_path)


def test_a_value_that_cannot_be_is_named_as_in_the_file(subtests):
    for model_type, changes, message in [
        ("bert", {}, "model_type 'bert' is not supported.*llama"),
        ("mamba", {}, "model_type 'mamba' is not supported"),
        (None, {}, "model_type None is not supported"),
        ("deepseek_v2", {}, "num_experts_per_tok is missing"),
        ("deepseek_v3", {"qk_nope_head_dim": None}, "qk_nope_head_dim is missing"),
        ("llama", {"num_key_value_heads": 3}, "multiple of n_kv_heads 3"),
        ("llama", {"vocab_size": "32000"}, "vocab_size must be an integer.*'32000'"),
        *[
            ("llama", {key: value}, f"^config: {key} must be a positive integer, got {value!r}$")
            for key in ("num_hidden_layers", "num_attention_heads", "hidden_size")
            for value in (0, None, "8")
        ],
        *[
            (
                kind,
                {key: value},
                f"^config: {key} must be {expected}, got {re.escape(repr(value))}$",
            )
            for kind, key, value, expected in [
                ("llama", "rope_scaling", 8, "an object"),
                ("llama", "rope_parameters", [1], "an object"),
                ("gpt_oss", "layer_types", "sliding_attention", "a list"),
                ("gpt_oss", "max_window_layers", "3", "an integer of at least 0"),
                ("gpt_oss", "sliding_window_pattern", 0, "an integer of at least 1"),
                ("qwen3_moe", "mlp_only_layers", 2, "a list"),
                ("qwen3_moe", "decoder_sparse_step", 0, "an integer of at least 1"),
                ("deepseek_v3", "first_k_dense_replace", "3", "an integer of at least 0"),
                ("deepseek_v3", "qk_rope_head_dim", 64.0, "an integer of at least 1"),
            ]
        ],
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            from_hf_config({"model_type": model_type, **changes})
