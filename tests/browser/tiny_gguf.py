"""The shipped draft as a GGUF file with a chat template: small, and all that a real model has."""

import importlib.util
from pathlib import Path

import gguf

from browser.visit import ROOT
from firsttoken.models.checkpoint import read_checkpoint
from firsttoken.paths import data_path

TEMPLATE = (
    "{% for message in messages %}<|endoftext|># {{ message['role'] }}: {{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|endoftext|># assistant:{% endif %}"
)


def write_tiny_gguf(path: Path) -> Path:
    """Write matrices in blocks of q8_0, those of the MLP of q4_0; return the path."""
    spec = importlib.util.spec_from_file_location("write_gguf", ROOT / "scripts" / "write_gguf.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    checkpoint = read_checkpoint(data_path("model/draft"))
    arch = checkpoint.arch
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    script.add_sizes(writer, checkpoint)
    script.add_tokenizer(writer, data_path("model/tokenizer.json"))
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, arch.n_layers)
    for name, weight in checkpoint.weights.items():
        weight, kind = script.in_llama_cpp_order(name, weight, arch), gguf.GGMLQuantizationType.F32
        if weight.ndim == 2:
            packed = "q4_0" if "mlp" in name else "q8_0"
            weight, kind = script.pack(weight, packed), script.KINDS[packed][0]
        writer.add_tensor(names.get_name(name, (".weight",)), weight, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
