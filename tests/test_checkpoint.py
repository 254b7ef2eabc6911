"""Reading checkpoints: against the safetensors library and transformers, and what is broken."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from firsttoken.architectures import Architecture
from firsttoken.checkpoint import (
    check_weights,
    read_checkpoint,
    read_safetensors,
    weight_shapes,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory with a small random Llama, and that model."""
    directory = tmp_path_factory.mktemp("llama")
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=97,
            hidden_size=48,
            intermediate_size=80,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )
    model.save_pretrained(directory)
    return directory, model


def test_read_safetensors_equals_the_reference_library(saved):
    ours, theirs = (f(saved[0] / "model.safetensors") for f in (read_safetensors, load_file))
    assert ours.keys() == theirs.keys()
    assert all((ours[name] == theirs[name].float().numpy()).all() for name in ours)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_every_bit_pattern_of_a_dtype_is_read(dtype, tmp_path):
    words = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    numbers = words.view(torch.bfloat16).to(dtype)
    save_file({"x": numbers, "empty": torch.empty(0, 3)}, tmp_path / "x.safetensors")
    got = read_safetensors(tmp_path / "x.safetensors")
    np.testing.assert_array_equal(got["x"], numbers.float().numpy())
    assert got["empty"].shape == (0, 3)


def test_eos_ids_come_from_the_generation_config_first(saved, tmp_path):
    model = saved[1]
    for ids, expected in ((None, ()), (5, (5,)), ([5, 6], (5, 6))):
        model.generation_config.eos_token_id = ids
        model.save_pretrained(tmp_path)
        assert read_checkpoint(tmp_path).eos_ids == expected
    (tmp_path / "generation_config.json").unlink()
    edit_json(tmp_path / "config.json", eos_token_id=7)
    assert read_checkpoint(tmp_path).eos_ids == (7,)


def test_wrong_weights_are_named(saved):
    checkpoint = read_checkpoint(saved[0])
    arch, weights = checkpoint.arch, checkpoint.weights
    norm, head = "model.layers.1.input_layernorm.weight", "lm_head.weight"
    with pytest.raises(ValueError, match=f"lack 1 tensors, first {norm}"):
        check_weights(arch, {n: w for n, w in weights.items() if n != norm})
    with pytest.raises(ValueError, match=r"input_layernorm.weight has shape \(3,\), expected \(48"):
        check_weights(arch, weights | {norm: np.ones(3)})
    with pytest.raises(ValueError, match=r"1 unexpected tensors, first .*q_proj.bias"):
        check_weights(arch, weights | {"model.layers.0.self_attn.q_proj.bias": np.ones(48)})
    tied = arch.replace(tied_embeddings=True)
    with pytest.raises(ValueError, match=r"lm_head.weight differs"):
        check_weights(tied, weights)
    check_weights(tied, weights | {head: weights["model.embed_tokens.weight"]})
    with pytest.raises(ValueError, match="biases, experts"):
        check_weights(arch.replace(qkv_bias=True), weights)


def test_weight_shapes_count_every_parameter():
    arch = Architecture("tiny", 2, 8, 4, 2, 6, 16, 100)
    assert sum(np.prod(s) for s in weight_shapes(arch).values()) == arch.n_params


def edit_json(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.fixture
def broken(saved, tmp_path):
    """A copy of the checkpoint to damage."""
    for file in saved[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def cut_file(directory):
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def write(name, content):
    return lambda directory: (directory / name).write_bytes(content)


def rename_type(directory):
    edit_json(directory / "config.json", model_type="qwen2")


def other_activation(directory):
    edit_json(directory / "config.json", hidden_act="gelu")


def integer_weights(directory):
    save_file({"x": torch.zeros(2, dtype=torch.int8)}, directory / "model.safetensors")


def no_theta(directory):
    edit_json(directory / "config.json", rope_parameters=None, rope_theta=None)


def wider(directory):
    edit_json(directory / "config.json", intermediate_size=81)


def more_layers(directory):
    edit_json(directory / "config.json", num_hidden_layers=4)


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "config.json").unlink(), "config.json: No such file"),
        (
            lambda d: (d / "model.safetensors").unlink(),
            "l.safetensors cannot .*: No such file",
        ),
        (write("config.json", b"{"), "config.json is not readable as JSON"),
        (write("config.json", b"[]"), "config.json must hold a JSON object, got list"),
        (write("config.json", b"\xff"), "config.json is not readable as JSON"),
        (rename_type, "model_type 'qwen2'"),
        (other_activation, "hidden_act 'gelu'"),
        (cut_file, "cannot be read as safetensors: .* file not fully covered"),
        (write("model.safetensors", b""), "model.safetensors cannot be read"),
        (
            write("model.safetensors", b"\xff" * 99),
            "model.safetensors cannot be read",
        ),
        (write("model.safetensors", b"\2" + b"\0" * 7 + b"[]"), "cannot be read as safetensors"),
        (integer_weights, "x is I8, expected one of F64, F32, F16, BF16"),
        (write(INDEX, b"{}"), "index.json has no weight_map"),
        (
            write(INDEX, b'{"weight_map": {"x": "part.safetensors"}}'),
            "part.safetensors cannot be",
        ),
        (no_theta, "rope_theta None"),
        (wider, r"mlp.gate_proj.weight has shape \(80, 48\), expected \(81, 48\)"),
        (more_layers, "lack 9 tensors, first model.layers.3"),
    ],
)
def test_a_broken_checkpoint_is_named(broken, damage, message):
    damage(broken)
    with pytest.raises(ValueError, match=message):
        checkpoint = read_checkpoint(broken)
        check_weights(checkpoint.arch, checkpoint.weights)


@given(position=st.integers(0, 1500), byte=st.integers(0, 255))
def test_a_damaged_header_never_gives_another_error(saved, tmp_path_factory, position, byte):
    content = bytearray((saved[0] / "model.safetensors").read_bytes())
    content[position] = byte
    file = tmp_path_factory.mktemp("damaged") / "model.safetensors"
    file.write_bytes(content)
    try:
        read_safetensors(file)
    except ValueError as error:
        assert "model.safetensors" in str(error)


@pytest.mark.parametrize(
    "entry",
    [
        *({}, [], 3, {"dtype": "F32", "shape": [2]}),
        {"dtype": "F32", "shape": [2], "data_offsets": [0]},
        {"dtype": "F32", "shape": [2], "data_offsets": ["0", "8"]},
        {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [8, 0]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]},
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]},
    ],
)
def test_a_senseless_header_is_named(entry, tmp_path):
    header = json.dumps({"x": entry}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ValueError, match="safetensors"):
        read_safetensors(file)
