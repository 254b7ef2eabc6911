"""scripts/write_gguf.py: what is in the file is the model, and llama.cpp runs it as the library."""

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from firsttoken.models.checkpoint import read_checkpoint
from firsttoken.models.llama import Llama
from firsttoken.models.rope import rope_frequencies, rotate
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path
from firsttoken.quantization import pack_gguf, unpack_gguf

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("write_gguf", ROOT / "scripts" / "write_gguf.py")
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)

TARGET = read_checkpoint(data_path("model/target"))
KINDS = list(script.KINDS)
TEXT = data_path("heldout.txt").read_text("utf-8")[:20_000]
IDS = tokenizer().encode(TEXT)


def rounded(weight, kind):
    """A weight as a file of this kind holds it."""
    if weight.ndim == 1:
        return weight
    if kind == "f16":
        return weight.astype(np.float16).astype(np.float32)
    return unpack_gguf(pack_gguf(weight, kind), kind)


def model_of(weights):
    return Llama(TARGET.arch, weights, TARGET.rope_theta, TARGET.rope_scaling, TARGET.norm_eps)


def ours(kind):
    return model_of({name: rounded(w, kind) for name, w in TARGET.weights.items()})


@pytest.fixture(scope="module", params=KINDS)
def written(request, tmp_path_factory):
    """(kind, path) of the target in each kind."""
    path = tmp_path_factory.mktemp("gguf") / f"{request.param}.gguf"
    script.write_gguf(path, "target", TARGET, request.param)
    return request.param, path


def hugging_face_name(name):
    """The inverse of the names' map, written by hand."""
    parts = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_output": "self_attn.o_proj",
    }
    parts |= {f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"}
    parts |= {f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")}
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name):
        return f"model.layers.{match[1]}.{parts[match[2]]}.weight"
    return {"token_embd.weight": "model.embed_tokens.weight"}.get(name, "model.norm.weight")


def hugging_face_order(name, weight):
    """The pairs of RoPE half a head apart again."""
    if name.split(".")[-2] not in ("q_proj", "k_proj"):
        return weight
    heads = weight.reshape(-1, TARGET.arch.head_dim // 2, 2, TARGET.arch.d_model)
    return heads.swapaxes(1, 2).reshape(weight.shape)


def test_the_file_read_back_is_the_model_with_rounded_weights(written):
    """Every tensor bit for bit, read by the gguf package; hence the logits, too."""
    kind, path = written
    weights = {}
    for tensor in gguf.GGUFReader(path).tensors:
        name = hugging_face_name(tensor.name)
        weight = gguf.dequantize(tensor.data, tensor.tensor_type)
        weights[name] = hugging_face_order(name, weight)
        np.testing.assert_array_equal(weights[name], rounded(TARGET.weights[name], kind))
    assert weights.keys() == TARGET.weights.keys()
    tokens = np.array([IDS[:50]])
    np.testing.assert_array_equal(model_of(weights)(tokens), ours(kind)(tokens))
    bits = 8 * path.stat().st_size / sum(w.size for w in weights.values() if w.ndim == 2)
    assert bits == pytest.approx({"f16": 16, "q8_0": 8.5, "q4_0": 4.5}[kind], abs=0.15)


def test_sizes_and_tokenizer_are_those_of_the_model(written):
    fields = gguf.GGUFReader(written[1]).fields
    said = {name: field.contents() for name, field in fields.items()}
    arch, stored = TARGET.arch, json.loads(data_path("model/tokenizer.json").read_text("utf-8"))
    assert said["general.architecture"] == "llama"
    sizes = {
        "context_length": 512,
        "embedding_length": arch.d_model,
        "block_count": arch.n_layers,
        "attention.head_count_kv": arch.n_kv_heads,
        "rope.freq_base": 10000.0,
    }
    assert {name: said[f"llama.{name}"] for name in sizes} == sizes
    tokens = said["tokenizer.ggml.tokens"]
    assert {token: i for i, token in enumerate(tokens)} == stored["model"]["vocab"]
    assert [merge.split(" ") for merge in said["tokenizer.ggml.merges"]] == stored["model"][
        "merges"
    ]
    assert said["tokenizer.ggml.token_type"] == [3, *[1] * 1023]
    assert said["tokenizer.ggml.bos_token_id"] == said["tokenizer.ggml.eos_token_id"] == 0


def test_pairs_abreast_turn_as_pairs_half_a_head_apart():
    """RoPE of neighbours on reordered rows, RoPE of the library on Hugging Face's: equal scores."""
    arch, x = TARGET.arch, np.random.default_rng(0).normal(size=(7, TARGET.arch.d_model))
    angles = np.arange(7)[:, None] * rope_frequencies(arch.head_dim)

    def apart(weight):
        heads = (x @ weight.T).reshape(7, -1, arch.head_dim).swapaxes(0, 1)
        return rotate(heads[None], np.cos(angles), np.sin(angles))[0]

    def abreast(weight):
        pairs = (x @ weight.T).reshape(7, -1, arch.head_dim // 2, 2).swapaxes(0, 1)
        turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles)
        return np.concatenate([turned.real, turned.imag], axis=-1)

    def scores(turn, reorder):
        q, k = (
            turn(reorder(name, TARGET.weights[f"model.layers.3.self_attn.{name}"], arch))
            for name in ("q_proj.weight", "k_proj.weight")
        )
        return q.reshape(2, 3, 7, -1) @ k[:, None].mT

    expected = scores(apart, lambda _, weight, __: weight)
    np.testing.assert_allclose(scores(abreast, script.in_llama_cpp_order), expected, atol=1e-4)
    wrong = scores(abreast, lambda _, weight, __: weight)  # the file as Hugging Face has it
    assert np.abs(wrong - expected).max() > 1


def test_what_llama_cpp_would_not_apply_is_refused(tmp_path):
    for changes in (
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"arch": TARGET.arch.replace(window=64)},
    ):
        with pytest.raises(ValueError, match="expected a plain Llama"):
            script.write_gguf(tmp_path / "x.gguf", "x", replace(TARGET, **changes), "f16")
