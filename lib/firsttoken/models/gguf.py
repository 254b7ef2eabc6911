"""GGUF files, as llama.cpp reads them: what a model is, its tokenizer, its weights in blocks."""

import math
import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from firsttoken.quantization import GGUF_LAYOUTS, unpack_gguf

Array = np.ndarray
Value = TypeVar("Value")

MAGIC, VERSIONS, ALIGNMENT = b"GGUF", (2, 3), 32
# What a number in a file's metadata says of the value behind it: struct's letter for it.
_NUMBERS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# The types of tensors that are read here, by llama.cpp's numbers.
_PLAIN = {0: "f32", 1: "f16", 30: "bf16"}
_BLOCKS = {2: "q4_0", 3: "q4_1", 8: "q8_0", 12: "q4_K", 14: "q6_K"}
_ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
_MOST_DIMS = 4
# llama.cpp's names of a Llama's tensors, and Hugging Face's.
_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Which families are read, and whether llama.cpp has put the rows of queries and keys in its order.
_REORDERED = {"llama": True, "granite": True, "smollm3": True, "qwen2": False, "qwen3": False}


@dataclass(frozen=True)
class GgufTensor:
    """One tensor as it lies in a file: `kind` names its format, `data` holds its bytes.

    `np.asarray` unpacks it, in float32.

    Shapes: shape: outermost first, as NumPy has it (the file has it the other way round)
    """

    kind: str
    shape: tuple[int, ...]
    data: Array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Unpack the numbers, in float32 unless NumPy asks for another format."""
        if self.kind in GGUF_LAYOUTS:
            rows = self.data.reshape(*self.shape[:-1], _row_bytes(self.kind, self.shape[-1]))
            numbers = unpack_gguf(rows, self.kind)
        elif self.kind == "bf16":  # the upper half of a float32
            numbers = (self.data.view("<u2").astype("<u4") << 16).view("<f4")
        else:
            numbers = self.data.view(f"<f{_ITEM_BYTES[self.kind]}")
        return numbers.reshape(self.shape).astype(dtype or np.float32, copy=False)


@dataclass(frozen=True)
class GgufFile:
    """What a GGUF file holds. The tensors stay on disk until they are asked for.

    `metadata` maps llama.cpp's names ("llama.block_count", "tokenizer.ggml.tokens") to numbers,
    strings and lists of these; `tensors` its names ("blk.0.attn_q.weight") to `GgufTensor`.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    def value(self, name: str, kind: type[Value], default: Value | None = None) -> Value:
        """Return a value of the metadata that is of this kind.

        Raises: ValueError for a value that is not, or is not there and has no default.
        """
        value = self.metadata.get(name, default)
        if type(value) is not kind:
            raise ValueError(f"{name} in {self.path} is {value!r}, expected {kind.__name__}")
        return value


def read_gguf(path: str | Path) -> GgufFile:
    """Read a GGUF file, version 2 or 3, little-endian: metadata at once, tensors on demand.

    Tensors may be F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K or Q6_K.

    Raises: ValueError that names the file: missing, cut short, damaged, or of another kind.
    Source: ggml, docs/gguf.md
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except ValueError:  # an empty file cannot be mapped
        raise ValueError(f"{path} is empty, expected a GGUF file") from None
    try:
        return _parse(path, whole)
    except _Damaged as error:
        raise ValueError(f"{path} cannot be read as GGUF: {error}") from None


def hugging_face(file: GgufFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what config.json would say of a file's Llama, and its weights by their names there.

    Each weight is what `np.asarray` unpacks, when it is asked for. Tensors that a Llama has no
    place for keep their names.

    Raises: ValueError for another family, and for what is missing or of another kind.
    """
    family = file.value("general.architecture", str)
    if family not in _REORDERED:
        known = ", ".join(_REORDERED)
        raise ValueError(f"general.architecture {family!r} in {file.path}: expected one of {known}")
    scaling = file.metadata.get(f"{family}.rope.scaling.type", "none")
    if scaling != "none":
        raise ValueError(f"{family}.rope.scaling.type {scaling!r} in {file.path}: expected 'none'")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        found = "none" if embedding is None else f"one of shape {embedding.shape}"
        raise ValueError(f"token_embd.weight in {file.path}: expected (V, D), found {found}")
    n_heads = file.value(f"{family}.attention.head_count", int)
    n_kv_heads = file.value(f"{family}.attention.head_count_kv", int, n_heads)
    ends = (file.metadata.get(f"tokenizer.ggml.{which}_token_id") for which in ("eos", "eot"))
    config: dict[str, Any] = {
        "model_type": family,
        "num_hidden_layers": file.value(f"{family}.block_count", int),
        "hidden_size": file.value(f"{family}.embedding_length", int),
        "intermediate_size": file.value(f"{family}.feed_forward_length", int),
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv_heads,
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": file.value(f"{family}.context_length", int),
        "rope_theta": file.value(f"{family}.rope.freq_base", float, 10_000.0),
        "rms_norm_eps": file.value(f"{family}.attention.layer_norm_rms_epsilon", float),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "eos_token_id": [end for end in dict.fromkeys(ends) if end is not None],
    }
    if f"{family}.attention.key_length" in file.metadata:
        config["head_dim"] = file.value(f"{family}.attention.key_length", int)
    if family == "granite":
        config |= {
            "embedding_multiplier": file.value("granite.embedding_scale", float, 1.0),
            "residual_multiplier": file.value("granite.residual_scale", float, 1.0),
            "logits_scaling": file.value("granite.logit_scale", float, 1.0),
            "attention_multiplier": file.value("granite.attention.scale", float),
        }
    rotated = {"attn_q": n_heads, "attn_k": n_kv_heads} if _REORDERED[family] else {}
    weights: dict[str, Any] = {}
    for name, tensor in file.tensors.items():
        within = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
        if within and within[2] in _BLOCK_NAMES:
            layer, part, kind = within.groups()
            known = f"model.layers.{layer}.{_BLOCK_NAMES[part]}.{kind}"
            weights[known] = _Reordered(tensor, rotated[part]) if part in rotated else tensor
        else:
            weights[_NAMES.get(name, name)] = tensor
    return config, weights


@dataclass(frozen=True)
class _Reordered:
    """Rows of queries or keys, put back from llama.cpp's order into Hugging Face's.

    A rotation turns pairs of a head's numbers. llama.cpp keeps the two of a pair side by side,
    Hugging Face half a head apart.

    Source: llama.cpp, conversion/llama.py, permute
    """

    tensor: GgufTensor
    n_heads: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        pairs = np.asarray(self.tensor).reshape(self.n_heads, -1, 2, self.shape[-1])
        return pairs.swapaxes(1, 2).reshape(self.shape).astype(dtype or np.float32, copy=False)


@dataclass(frozen=True)
class Scaled:
    """A tensor that is multiplied with a factor when it is unpacked."""

    tensor: Any
    factor: float

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.tensor)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self.tensor, dtype=dtype or np.float32) * np.float32(self.factor)


class _Damaged(Exception):
    """What is wrong with the bytes of a file."""


class _Reader:
    """Reads a file's head from its first byte on; nothing lies beyond its end."""

    def __init__(self, whole: mmap.mmap) -> None:
        self.whole, self.at = whole, 0

    def take(self, n: int) -> bytes:
        if n > len(self.whole) - self.at:
            raise _Damaged(f"it ends at byte {len(self.whole)}, within its head")
        self.at += n
        return self.whole[self.at - n : self.at]

    def number(self, letter: str) -> Any:
        (value,) = struct.unpack(f"<{letter}", self.take(struct.calcsize(f"<{letter}")))
        return value

    def string(self) -> str:
        n = int.from_bytes(self.take(8), "little")
        return self.take(n).decode("utf-8", errors="replace")

    def value(self, kind: int, nested: bool = False) -> Any:
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY or nested:
            raise _Damaged(f"a value of unknown type {kind} before byte {self.at}")
        of, n = self.number("I"), self.number("Q")
        if of in _NUMBERS:  # in one piece: a vocabulary's scores are many
            letter = _NUMBERS[of]
            return list(struct.unpack(f"<{n}{letter}", self.take(n * struct.calcsize(letter))))
        return [self.value(of, nested=True) for _ in range(n)]


def _parse(path: Path, whole: mmap.mmap) -> GgufFile:
    reader = _Reader(whole)
    if reader.take(4) != MAGIC:
        raise _Damaged(f"it begins with {whole[:4]!r}, expected {MAGIC!r}")
    if (version := reader.number("I")) not in VERSIONS:
        raise _Damaged(f"its version is {version}, expected 2 or 3")
    n_tensors, n_values = reader.number("Q"), reader.number("Q")
    metadata = {}
    for _ in range(n_values):
        name = reader.string()
        metadata[name] = reader.value(reader.number("I"))
    heads = []
    for _ in range(n_tensors):
        name, n_dims = reader.string(), reader.number("I")
        if n_dims > _MOST_DIMS:
            raise _Damaged(f"{name} has {n_dims} dimensions, expected at most {_MOST_DIMS}")
        dims = [reader.number("Q") for _ in range(n_dims)]
        heads.append((name, tuple(dims[::-1]), reader.number("I"), reader.number("Q")))
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise _Damaged(f"general.alignment is {alignment!r}, expected a positive integer")
    start = -(-reader.at // alignment) * alignment
    tensors = {
        name: _tensor(whole, name, shape, number, start + offset)
        for name, shape, number, offset in heads
    }
    return GgufFile(path, metadata, tensors)


def _tensor(
    whole: mmap.mmap, name: str, shape: tuple[int, ...], number: int, start: int
) -> GgufTensor:
    kind = (_PLAIN | _BLOCKS).get(number)
    if kind is None:
        known = ", ".join([*_PLAIN.values(), *_BLOCKS.values()])
        raise _Damaged(f"{name} is of llama.cpp's type {number}; read are {known}")
    if kind in GGUF_LAYOUTS and (not shape or shape[-1] % GGUF_LAYOUTS[kind].n_numbers):
        raise _Damaged(f"{name} has shape {shape}, expected rows of whole {kind} blocks")
    end = start + math.prod(shape[:-1]) * _row_bytes(kind, shape[-1] if shape else 1)
    if end > len(whole):
        raise _Damaged(f"{name} ends at byte {end}, the file at {len(whole)}")
    return GgufTensor(kind, shape, np.frombuffer(whole, np.uint8)[start:end])


def _row_bytes(kind: str, n: int) -> int:
    """Return the bytes of n numbers beside each other."""
    if kind in GGUF_LAYOUTS:
        layout = GGUF_LAYOUTS[kind]
        return n // layout.n_numbers * layout.fields.itemsize
    return n * _ITEM_BYTES[kind]
