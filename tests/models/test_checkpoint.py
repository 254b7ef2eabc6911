"""Reading checkpoints: against the safetensors library and transformers, and what is broken."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from firsttoken.models.checkpoint import check_weights, read_checkpoint, read_safetensors

SIZES = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory with a small random Llama, and that model."""
    directory = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2)
    model = LlamaForCausalLM(config)
    model.save_pretrained(directory)
    return directory, model


def test_read_safetensors_equals_the_reference_library(saved, tmp_path):
    """Every bit pattern of each dtype is read."""
    ours, theirs = (f(saved[0] / "model.safetensors") for f in (read_safetensors, load_file))
    assert ours.keys() == theirs.keys()
    assert all((ours[name] == theirs[name].float().numpy()).all() for name in ours)
    words = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        numbers = words.view(torch.bfloat16).to(dtype)
        save_file({"x": numbers, "empty": torch.empty(0, 3)}, tmp_path / f"{dtype}.safetensors")
        got = read_safetensors(tmp_path / f"{dtype}.safetensors")
        np.testing.assert_array_equal(got["x"], numbers.float().numpy())
        assert got["empty"].shape == (0, 3)


def test_eos_ids_come_from_the_generation_config_first(saved, tmp_path):
    model = saved[1]
    for ids, expected in ((5, (5,)), ([5, 6], (5, 6))):
        model.generation_config.eos_token_id = ids
        model.save_pretrained(tmp_path)
        assert read_checkpoint(tmp_path).eos_ids == expected
    (tmp_path / "generation_config.json").unlink()
    edit_json(tmp_path / "config.json", eos_token_id=7)
    assert read_checkpoint(tmp_path).eos_ids == (7,)


def test_a_checkpoint_says_what_its_config_says(saved, broken):
    """What old configs leave out has the defaults of transformers."""
    plain = read_checkpoint(saved[0])
    assert plain.arch.name == saved[0].name and plain.arch.n_layers == 3
    assert (plain.rope_theta, plain.rope_scaling, plain.norm_eps) == (10000.0, None, 1e-6)
    scaling = {"rope_type": "linear", "factor": 2.0}
    edit_json(broken / "config.json", rms_norm_eps=0.5, model_type="mistral", sliding_window=None)
    edit_json(broken / "config.json", rope_parameters=None, rope_theta=7e5, rope_scaling=scaling)
    got = read_checkpoint(broken)
    assert (got.rope_theta, got.norm_eps) == (7e5, 0.5) and got.rope_scaling["factor"] == 2
    assert got.arch.name == broken.name
    config = json.loads((broken / "config.json").read_text())
    del config["rms_norm_eps"], config["hidden_act"]
    (broken / "config.json").write_text(json.dumps(config))
    assert read_checkpoint(str(broken)).norm_eps == LlamaConfig().rms_norm_eps == 1e-6


def test_shards_are_read_as_one_and_the_tables_of_old_ones_left_out(saved, broken):
    """Llama-2 was stored with tables of frequencies, which follow from the config."""
    weights = read_safetensors(saved[0] / "model.safetensors")
    (broken / "model.safetensors").unlink()
    tables = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": np.ones(6) for i in range(3)}
    names, shards = sorted({**weights, **tables}), {}
    for i, name in enumerate(names):
        shards.setdefault(f"part{i % 3}.safetensors", {})[name] = (weights | tables)[name]
    for file, tensors in shards.items():
        save_file({n: torch.from_numpy(w.copy()) for n, w in tensors.items()}, broken / file)
    weight_map = {name: file for file, tensors in shards.items() for name in tensors}
    (broken / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    got = read_checkpoint(broken)
    assert got.weights.keys() == weights.keys()
    assert all(np.array_equal(w, weights[name]) for name, w in got.weights.items())
    check_weights(got.arch, got.weights)


def test_wrong_weights_are_named(saved, subtests):
    checkpoint = read_checkpoint(saved[0])
    arch, weights = checkpoint.arch, checkpoint.weights
    norm, head = "model.layers.1.input_layernorm.weight", "lm_head.weight"
    untied, tied = ({n: w for n, w in weights.items() if n != x} for x in (norm, head))
    one, of_tied = np.ones(1), arch.replace(tied_embeddings=True)
    check_weights(of_tied, tied)
    check_weights(of_tied, tied | {head: weights["model.embed_tokens.weight"]})
    for kind, given_weights, message in [
        (arch, untied, f"lack 1 tensors, first {norm}"),
        (arch, weights | {norm: one}, r"input_layernorm.weight has shape \(1,\), expected \(48"),
        (of_tied, weights, r"lm_head.weight differs"),
        (of_tied, tied | {"other": one}, r"1 unexpected tensors, first other"),
        (arch.replace(out_bias=True), weights, "other biases"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            check_weights(kind, given_weights)


def edit_json(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.fixture
def broken(saved, tmp_path):
    """A copy of the checkpoint to damage."""
    for file in saved[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"
# What to do to a file, or what to write into it, or what to change in the config; what is said.
DAMAGE = [
    ("config.json", Path.unlink, "config.json: No such file"),
    ("config.json", b"\xff", "config.json is not readable as JSON"),
    ("config.json", {"model_type": "gemma"}, "model_type 'gemma'"),
    ("config.json", {"rope_parameters": None, "rope_theta": None}, "rope_theta None"),
    (
        "config.json",
        {"intermediate_size": 81},
        r"mlp.gate_proj.weight has shape \(80, 48\), expected \(81, 48\)",
    ),
    (WEIGHTS, Path.unlink, "l.safetensors cannot .*: No such file"),
    (WEIGHTS, lambda file: file.write_bytes(file.read_bytes()[:-1000]), "cannot .*: .* header"),
    (
        WEIGHTS,
        lambda file: save_file({"x": torch.zeros(2, dtype=torch.int8)}, file),
        r"model\.safetensors: x is I8, expected one of F64, F32, F16, BF16",
    ),
    (INDEX, b"{}", "index.json has no weight_map"),
    (INDEX, b'{"weight_map": {"x": "part.safetensors"}}', "part.safetensors cannot be"),
]


def test_a_broken_checkpoint_is_named(broken, subtests):
    for name, damage, message in DAMAGE:
        file = broken / name
        before = file.read_bytes() if file.exists() else None
        if isinstance(damage, bytes):
            file.write_bytes(damage)
        elif isinstance(damage, dict):
            edit_json(file, **damage)
        else:
            damage(file)
        with subtests.test(message), pytest.raises(ValueError, match=message):
            checkpoint = read_checkpoint(broken)
            check_weights(checkpoint.arch, checkpoint.weights)
        if before is not None:
            file.write_bytes(before)
    file.unlink()
    read_checkpoint(broken)  # each damage was mended, so that the next one stood alone


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


def test_a_senseless_header_is_named(tmp_path, subtests):
    file = tmp_path / "model.safetensors"
    right = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    changes = [{"data_offsets": x} for x in ([0], ["0", "8"], [-8, 0], [0, 9])]
    changes += [{"shape": [2.0]}, {"shape": [-2], "data_offsets": [8, 0]}, {"dtype": ["F32"]}]
    entries = [right | x for x in [*changes, {"shape": [4], "data_offsets": [0, 16]}]]
    for entry in [right, {}, [], 3, {"dtype": "F32", "shape": [2]}, *entries]:
        header = json.dumps({"x": entry}).encode()
        file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
        if entry is right:
            assert read_safetensors(file)["x"].tolist() == [0, 0]
            continue
        with subtests.test(str(entry)), pytest.raises(ValueError, match="safetensors"):
            read_safetensors(file)


def test_what_ends_a_text_is_found_wherever_a_file_says_it(broken):
    """A generation_config.json without it says nothing: config.json still may."""
    for generation, config, expected in [
        ({"eos_token_id": [5, 6]}, {"eos_token_id": 7}, (5, 6)),
        ({"eos_token_id": 0}, {"eos_token_id": 7}, (0,)),
        ({"eos_token_id": None}, {"eos_token_id": 7}, (7,)),
        ({}, {"eos_token_id": [7]}, (7,)),
        (None, {"eos_token_id": None}, ()),
        ({}, {"eos_token_id": None}, ()),
    ]:
        file = broken / "generation_config.json"
        file.unlink(missing_ok=True)
        if generation is not None:
            file.write_text(json.dumps(generation))
        edit_json(broken / "config.json", **config)
        assert read_checkpoint(broken).eos_ids == expected
