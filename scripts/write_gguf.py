"""Write a shipped model as a GGUF file, which llama.cpp and the programs built on it run.

    pip install gguf==0.19.0                          # it is there where the tests run
    python scripts/write_gguf.py model.gguf           # --kind q8_0 | q4_0, --model draft

Matrices are stored as `--kind` says, vectors as float32. The tokenizer goes into the same file.
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np

from firsttoken.architectures import Architecture
from firsttoken.models.checkpoint import Checkpoint, check_weights, read_checkpoint
from firsttoken.paths import data_path
from firsttoken.quantization import pack_gguf

Array = np.ndarray

Types, FileTypes = gguf.GGMLQuantizationType, gguf.LlamaFileType
KINDS = {
    "f16": (Types.F16, FileTypes.MOSTLY_F16),
    "q8_0": (Types.Q8_0, FileTypes.MOSTLY_Q8_0),
    "q4_0": (Types.Q4_0, FileTypes.MOSTLY_Q4_0),
}


def write_gguf(path: Path, title: str, checkpoint: Checkpoint, kind: str) -> None:
    """Write a Llama with the shipped tokenizer: what it is, its tokens, its tensors.

    Raises: ValueError for weights that are no Llama's, and for what llama.cpp would not apply to
            one: a RoPE that is scaled, layers with a window.
    """
    arch = checkpoint.arch
    check_weights(arch, checkpoint.weights)
    if checkpoint.rope_scaling is not None or arch.window is not None:
        raise ValueError(f"{title} has scaled RoPE or a window; expected a plain Llama")
    tensor_type, file_type = KINDS[kind]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(title)
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_sizes(writer, checkpoint)
    add_tokenizer(writer, data_path("model/tokenizer.json"))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, arch.n_layers)
    for name, weight in checkpoint.weights.items():
        weight, stored_type = in_llama_cpp_order(name, weight, arch), Types.F32
        if weight.ndim == 2:
            weight, stored_type = pack(weight, kind), tensor_type
        writer.add_tensor(names.get_name(name, (".weight",)), weight, raw_dtype=stored_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_sizes(writer: gguf.GGUFWriter, checkpoint: Checkpoint) -> None:
    """Write what config.json says, by llama.cpp's names."""
    arch = checkpoint.arch
    writer.add_context_length(arch.max_context)
    writer.add_vocab_size(arch.vocab_size)
    writer.add_embedding_length(arch.d_model)
    writer.add_feed_forward_length(arch.d_ff)
    writer.add_block_count(arch.n_layers)
    writer.add_head_count(arch.n_heads)
    writer.add_head_count_kv(arch.n_kv_heads)
    writer.add_key_length(arch.head_dim)
    writer.add_value_length(arch.head_dim)
    writer.add_rope_dimension_count(arch.head_dim)
    writer.add_rope_freq_base(checkpoint.rope_theta)
    writer.add_layer_norm_rms_eps(checkpoint.norm_eps)


def add_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    """Write a byte-level BPE: "gpt2" names its kind, "gpt-2" the pattern that cuts out words."""
    stored = json.loads(path.read_text("utf-8"))
    vocabulary, merges = stored["model"]["vocab"], stored["model"]["merges"]
    (end_of_text,) = (token["id"] for token in stored["added_tokens"])
    types = [gguf.TokenType.NORMAL] * len(vocabulary)
    types[end_of_text] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(vocabulary, key=vocabulary.get))
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(end_of_text)
    writer.add_eos_token_id(end_of_text)
    writer.add_add_bos_token(False)  # as tokenizer.json, which adds nothing to a text


def in_llama_cpp_order(name: str, weight: Array, arch: Architecture) -> Array:
    """Bring together the rows of a query or key matrix that RoPE turns as a pair.

    Feature i of a head goes with i + H/2 in Hugging Face's order, 2i with 2i + 1 in llama.cpp's.
    """
    n_heads = {"q_proj": arch.n_heads, "k_proj": arch.n_kv_heads}.get(name.split(".")[-2])
    if n_heads is None:
        return weight
    pairs = weight.reshape(n_heads, 2, arch.head_dim // 2, arch.d_model)
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def pack(weight: Array, kind: str) -> Array:
    """Return a matrix as it is stored."""
    return weight.astype(np.float16) if kind == "f16" else pack_gguf(weight, kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--kind", choices=KINDS, default="f16")
    parser.add_argument("--model", choices=["target", "draft"], default="target")
    options = parser.parse_args()
    checkpoint = read_checkpoint(data_path(f"model/{options.model}"))
    write_gguf(options.path, f"First Token {options.model}", checkpoint, options.kind)
    print(f"written: {options.path}, {options.path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
