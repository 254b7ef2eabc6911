"""GGUF files: as the gguf package of llama.cpp writes them, and with every kind of damage."""

import math
import re
from dataclasses import replace

import gguf as llama_cpp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from firsttoken.models.checkpoint import read_checkpoint
from firsttoken.models.gguf import hugging_face, read_gguf
from firsttoken.models.llama import Llama, load_model

RNG = np.random.default_rng(0)
SIZES = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
KINDS = llama_cpp.GGMLQuantizationType


def permuted(w, n_heads):
    """What llama.cpp's converter does to queries and keys (conversion/llama.py)."""
    return w.reshape(n_heads, 2, -1, w.shape[-1]).swapaxes(1, 2).reshape(w.shape)


def llama(**config):
    return LlamaForCausalLM(LlamaConfig(**SIZES, **config)).eval()


def write(path, model, pack=lambda name, w: w, **changed):
    """Write a model as llama.cpp's converter does; `changed` replaces or drops metadata."""
    config = model.config
    family = config.model_type
    writer = llama_cpp.GGUFWriter(path, changed.pop("architecture", family))
    metadata = {
        f"{family}.block_count": np.uint32(config.num_hidden_layers),
        f"{family}.context_length": np.uint32(config.max_position_embeddings),
        f"{family}.embedding_length": np.uint32(config.hidden_size),
        f"{family}.feed_forward_length": np.uint32(config.intermediate_size),
        f"{family}.attention.head_count": np.uint32(config.num_attention_heads),
        f"{family}.attention.head_count_kv": np.uint32(config.num_key_value_heads),
        f"{family}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{family}.rope.freq_base": config.rope_parameters["rope_theta"],
        "tokenizer.ggml.eos_token_id": np.uint32(7),
    }
    # Hugging Face's names and llama.cpp's, from llama.cpp's own table.
    number = next(n for n, name in llama_cpp.MODEL_ARCH_NAMES.items() if name == family)
    names = llama_cpp.get_tensor_name_map(number, config.num_hidden_layers)
    for name, value in (metadata | changed).items():
        if isinstance(value, np.uint32):
            writer.add_uint32(name, int(value))
        elif isinstance(value, str):
            writer.add_string(name, value)
        elif value is not None:
            writer.add_float32(name, value)
    for name, w in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        w = w.numpy()
        for part, heads in (("q", config.num_attention_heads), ("k", config.num_key_value_heads)):
            if f".{part}_proj." in name and not family.startswith("qwen"):
                w = permuted(w, heads)
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        packed = pack(theirs, w)
        kind = None if packed.dtype != np.uint8 else KINDS.Q8_0
        writer.add_tensor(theirs, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A small random Llama, and it as a GGUF file."""
    model = llama(tie_word_embeddings=True)
    return model, write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", model)


def test_metadata_is_what_the_gguf_package_wrote(tmp_path):
    path = tmp_path / "all.gguf"
    writer = llama_cpp.GGUFWriter(path, "llama")
    values = {
        "uint8": 200, "int8": -100, "uint16": 60_000, "int16": -30_000, "uint32": 4_000_000_000,
        "int32": -2_000_000_000, "uint64": 2**63, "int64": -(2**62), "float32": 0.5,
        "float64": math.pi, "bool": True, "string": "naïve\n🙂", "array": ["a", "", "Ġb"],
    }  # fmt: skip
    for kind, value in values.items():
        getattr(writer, f"add_{kind}")(f"x.{kind}", value)
    writer.add_array("x.numbers", [1, -2, 3])
    writer.add_array("x.flags", [True, False])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    metadata = read_gguf(path).metadata
    assert {name: metadata[f"x.{name}"] for name in values} == values
    assert (metadata["x.numbers"], metadata["x.flags"]) == ([1, -2, 3], [True, False])


@pytest.mark.parametrize("alignment", [32, 64])
def test_tensors_of_every_kind_are_those_of_the_gguf_package(tmp_path, alignment):
    path = tmp_path / "kinds.gguf"
    writer = llama_cpp.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    kinds = [KINDS[k] for k in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")]
    for kind in kinds:
        n, size = llama_cpp.GGML_QUANT_SIZES[kind]
        shape = 3, 5, 512 // n * size
        data = RNG.integers(0, 64, shape, dtype=np.uint8)  # no NaN among these
        writer.add_tensor(kind.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ours, theirs = read_gguf(path).tensors, llama_cpp.GGUFReader(path).tensors
    assert list(ours) == [tensor.name for tensor in theirs]
    for tensor in theirs:
        got = np.asarray(ours[tensor.name])
        assert got.shape == (3, 5, 512) == ours[tensor.name].shape and got.dtype == np.float32
        expected = llama_cpp.dequantize(np.asarray(tensor.data), tensor.tensor_type)
        np.testing.assert_array_equal(got, expected.reshape(got.shape), err_msg=tensor.name)


@pytest.mark.parametrize("tied", [True, False])
def test_a_llama_says_the_same_from_both_kinds_of_file(tmp_path, tied):
    model = llama(tie_word_embeddings=tied)
    model.save_pretrained(tmp_path / "directory")
    path = write(tmp_path / "tiny.gguf", model)
    tokens = RNG.integers(0, SIZES["vocab_size"], (2, 20))
    expected = Llama.from_pretrained(tmp_path / "directory")(tokens)
    got = load_model(path)
    np.testing.assert_array_equal(got(tokens), expected)
    assert got.arch.name == "tiny.gguf" and got.eos_ids == (7,)
    assert got.arch.replace(name="directory") == read_checkpoint(tmp_path / "directory").arch
    np.testing.assert_allclose(load_model(path, "torch")(tokens), expected, atol=1e-5)


FAMILIES = {
    "qwen2": ({"pad_token_id": 0}, {}),
    "qwen3": ({"head_dim": 20}, {"qwen3.attention.key_length": np.uint32(20)}),
    "smollm3": ({"num_hidden_layers": 4, "pad_token_id": 0}, {}),
    "granite": (
        {"embedding_multiplier": 12.0, "logits_scaling": 8.0}
        | {"residual_multiplier": 0.25, "attention_multiplier": 0.5},
        {"granite.embedding_scale": 12.0, "granite.logit_scale": 8.0}
        | {"granite.residual_scale": 0.25, "granite.attention.scale": 0.5},
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_relatives_of_llama_say_the_same_from_both_kinds_of_file(tmp_path, family):
    changes, metadata = FAMILIES[family]
    config = AutoConfig.for_model(family, **SIZES | {"tie_word_embeddings": True} | changes)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, w in model.named_parameters():
            w.copy_(torch.randn(w.shape) * 0.1 + ("norm" in name))
    model.save_pretrained(tmp_path / "directory")
    got = load_model(write(tmp_path / "tiny.gguf", model, **metadata))
    tokens = RNG.integers(0, SIZES["vocab_size"], (2, 20))
    np.testing.assert_array_equal(got(tokens), load_model(tmp_path / "directory")(tokens))
    assert got.arch == read_checkpoint(tmp_path / "directory").arch.replace(name="tiny.gguf")


def test_rows_of_queries_and_keys_left_as_llama_cpp_has_them_say_something_else(written):
    """The mistake to catch: it runs, and is wrong by little enough to look like rounding."""
    _, path = written
    read = read_checkpoint(path)
    tokens = RNG.integers(0, SIZES["vocab_size"], (1, 20))
    tensors = read_gguf(path).tensors
    for part, theirs in (("q", "attn_q"), ("k", "attn_k")):
        raw = {f"model.layers.{i}.self_attn.{part}_proj.weight": f"blk.{i}.{theirs}.weight"
               for i in range(2)}  # fmt: skip
        wrong = dict(read.weights) | {name: tensors[there] for name, there in raw.items()}
        assert (
            np.abs(Llama(read.arch, wrong)(tokens) - Llama.from_pretrained(path)(tokens)).max()
            > 1e-4
        )


def test_packed_weights_are_unpacked_when_asked_for(tmp_path):
    """Rows go back to their places after the blocks are unpacked: blocks lie within rows."""

    def pack(name, w):
        return llama_cpp.quantize(w, KINDS.Q8_0) if w.ndim == 2 else w

    model = llama(tie_word_embeddings=True)
    weights = hugging_face(read_gguf(write(tmp_path / "q8.gguf", model, pack)))[1]
    for name, w in model.state_dict().items():
        if name in weights and w.ndim == 2:
            rounded = llama_cpp.dequantize(pack(name, w.numpy()), KINDS.Q8_0)
            np.testing.assert_array_equal(np.asarray(weights[name]), rounded, err_msg=name)


@given(cut=st.floats(0, 1), data=st.data())
def test_a_damaged_file_is_named_whatever_is_wrong(written, tmp_path_factory, cut, data):
    whole = written[1].read_bytes()
    path = tmp_path_factory.mktemp("damaged") / "damaged.gguf"
    path.write_bytes(whole[: int(cut * len(whole))])
    with pytest.raises(ValueError, match=r"damaged\.gguf"):
        np.asarray(read_checkpoint(path).weights["model.norm.weight"])
    head = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        head[data.draw(st.integers(0, 1500))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(head))
    try:
        read_checkpoint(path)
    except ValueError as error:  # many a flip only changes a number or a name
        assert (
            "damaged.gguf" in str(error) or "config" in str(error) or "Architecture" in str(error)
        )


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, r"token_embd.weight in .*no\.gguf: expected \(V, D\), found none"),
        ({"token_embd.weight": (32,)}, r"expected \(V, D\), found one of shape \(32,\)"),
    ],
)
def test_a_model_without_a_vocabulary_is_named(tmp_path, tensors, message):
    writer = llama_cpp.GGUFWriter(tmp_path / "no.gguf", "llama")
    for name, shape in tensors.items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match=message):
        read_checkpoint(tmp_path / "no.gguf")


def test_what_fits_no_llama_keeps_its_name_and_is_refused(tmp_path):
    model = llama(tie_word_embeddings=True)
    path = write(tmp_path / "odd.gguf", model)
    read = read_gguf(path)
    for name in ("blk.0", "blk.0.attn_k.gain", "rope_freqs.weight", "blk.x.attn_q.weight"):
        tensors = dict(read.tensors) | {name: read.tensors["output_norm.weight"]}
        weights = hugging_face(replace(read, tensors=tensors))[1]
        with pytest.raises(ValueError, match=f"1 unexpected tensors, first {re.escape(name)}"):
            Llama(read_checkpoint(path).arch, weights)


def test_what_is_no_llama_is_named(written, tmp_path, subtests):
    model, path = written
    for changed, message in [
        ({"architecture": "gemma3"}, "general.architecture 'gemma3' in .*one of llama"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type 'yarn'"),
        ({"llama.block_count": None}, "llama.block_count in .* is None, expected int"),
        ({"llama.block_count": 2.5}, "llama.block_count in .* is 2.5, expected int"),
        ({"llama.block_count": np.uint32(0)}, "num_hidden_layers must be a positive integer"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            read_checkpoint(write(tmp_path / "other.gguf", model, **changed))
    for content, message in [
        (b"", "empty"),
        (b"GGML", "begins with b'GGML', expected b'GGUF'"),
        (b"GGUF\x01\0\0\0" + bytes(16), "version is 1, expected 2 or 3"),
        (path.read_bytes()[:-1], "ends at byte .*, the file at"),
    ]:
        (tmp_path / "other.gguf").write_bytes(content)
        with subtests.test(message), pytest.raises(ValueError, match=f"other.gguf.*{message}"):
            read_gguf(tmp_path / "other.gguf")
    with pytest.raises(ValueError, match=r"none\.gguf: No such file"):
        read_gguf(tmp_path / "none.gguf")
    with pytest.raises(ValueError, match=r"directory or a GGUF file, got 'none\.gguf'"):
        load_model("none.gguf")
