"""stored: the bytes of released files, by what their configs say."""

import pytest

from firsttoken.architectures import ARCHITECTURES, from_hf_config, stored_weights

LLAMA = ARCHITECTURES["Llama-3.1-8B"]
MATRICES = LLAMA.params_by_component["attention"] + LLAMA.params_by_component["mlp"]
REST = LLAMA.n_params - MATRICES


def of(arch=LLAMA, dtype="bfloat16", **quantization):
    config = {"torch_dtype": dtype} | (
        {"quantization_config": quantization} if quantization else {}
    )
    return stored_weights(config, arch).n_bytes


def test_released_files():
    """Against the sizes of files as they lie on Hugging Face, in bytes (GB and digits as shown)."""
    gpt_oss = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"]
    found = of(ARCHITECTURES["gpt-oss-20b"], quant_method="mxfp4", modules_to_not_convert=gpt_oss)
    assert found == pytest.approx(13.76e9, rel=0.001)  # model.safetensors.index.json, total_size
    assert of() == 16_060_522_496  # meta-llama/Llama-3.1-8B, total_size


def test_bits_and_their_scales():
    assert of(quant_method="fp8") == MATRICES + 2 * REST
    assert of(quant_method="fp8", weight_block_size=[128, 128]) == pytest.approx(
        MATRICES * (1 + 4 / 128**2) + 2 * REST
    )
    awq = of(quant_method="awq", bits=4, group_size=128)
    assert awq == MATRICES * (4 + (16 + 4) / 128) / 8 + 2 * REST
    assert of(quant_method="gptq", bits=8, group_size=-1) == MATRICES + 2 * REST
    assert of(quant_method="bitsandbytes", load_in_8bit=True) == MATRICES + 2 * REST
    assert of(quant_method="bitsandbytes", load_in_4bit=True) == MATRICES * 4.5 / 8 + 2 * REST
    assert of(dtype="float32") == 4 * LLAMA.n_params


def test_matrices_of_a_recurrence_are_quantised_too():
    mamba = from_hf_config({"model_type": "mamba2"})
    matrices = mamba.params_by_component["recurrence"]
    assert 0 < matrices < mamba.n_params
    assert of(mamba, quant_method="fp8") == matrices + 2 * (mamba.n_params - matrices)


def test_modules_that_stay():
    """Kimi's way: experts in int4, all else as it was. And one layer's name keeps no kind."""
    v3 = ARCHITECTURES["DeepSeek-V3"]
    groups = {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}}
    stays = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up)_proj.*"]
    found = of(v3, quant_method="compressed-tensors", config_groups=groups, ignore=stays)
    experts = 58 * 256 * 3 * 7168 * 2048
    assert found == experts * 4.5 / 8 + 2 * (v3.n_params - experts)
    whole = of(quant_method="awq", bits=4, modules_to_not_convert=["model.layers.0.self_attn"])
    assert whole == of(quant_method="awq", bits=4)


def test_what_is_not_known_is_refused(subtests):
    for config, message in [
        (
            {"quantization_config": {"quant_method": "quip"}},
            "quant_method must be one of .* 'quip'",
        ),
        ({"quantization_config": {"quant_method": "awq"}}, "bits must be bits, got None"),
        ({"quantization_config": {"quant_method": "gptq", "bits": True}}, "got True"),
        ({"quantization_config": 4}, "quantization_config must be an object, got 4"),
        ({"dtype": "int5"}, "dtype must be one of .* 'int5'"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            stored_weights(config, LLAMA)
