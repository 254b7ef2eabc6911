"""Read a model's sizes and weights: a directory in Hugging Face's format, or a GGUF file."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  from here on NumPy knows bfloat16
import numpy as np
from safetensors import SafetensorError, safe_open

from firsttoken.architectures import Architecture, from_hf_config
from firsttoken.models.gguf import Scaled, hugging_face, read_gguf

Array = np.ndarray

_DTYPES = ("F64", "F32", "F16", "BF16")
# Llamas, but for what `Architecture` names and Granite's factors.
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "granite")


@dataclass(frozen=True)
class Checkpoint:
    """What a directory in Hugging Face's Llama format holds, or a GGUF file.

    `weights` maps Hugging Face's names to what NumPy takes for float32 arrays: those of a GGUF file
    are unpacked when they are asked for, and keep nothing.
    `eos_ids` are those of generation_config.json, or where it names none, of config.json; () if
    neither does. The tokenizer may still know one.
    """

    arch: Architecture
    weights: Mapping[str, Array]
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    norm_eps: float
    eos_ids: tuple[int, ...]


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read config.json, generation_config.json and the safetensors of a Llama or a near relative.

    Those are Mistral, Qwen2, Qwen3, SmolLM3 and Granite, the dense ones of each. Weights may be
    float32, float16 or bfloat16, in one file or in shards with an index. A path to a file is read
    as GGUF, with what `read_gguf` reads. Granite's four factors are multiplied into its weights.

    Raises: ValueError that names the file or tensor: missing, unreadable, or of another kind.
    """
    path = Path(path)
    weights: dict[str, Any] | None = None
    if path.is_file():
        config, weights = hugging_face(read_gguf(path))
    else:
        config = _read_json(path / "config.json")
    model_type, activation = config.get("model_type"), config.get("hidden_act", "silu")
    if model_type not in FAMILIES:
        raise ValueError(
            f"model_type {model_type!r} in {path}: expected one of {', '.join(FAMILIES)}"
        )
    if activation != "silu":
        raise ValueError(f"hidden_act {activation!r} in {path}: expected silu")
    arch = from_hf_config(config).replace(name=path.resolve().name)
    if arch.rope_theta is None:
        raise ValueError(f"rope_theta None in {path}: expected a number")
    weights = _read_weights(path) if weights is None else weights
    return Checkpoint(
        arch=arch,
        weights=_without_factors(config, arch, weights) if model_type == "granite" else weights,
        rope_theta=arch.rope_theta,
        rope_scaling=arch.rope_scaling,
        norm_eps=config.get("rms_norm_eps", 1e-6),  # the default of transformers
        eos_ids=tuple(config["eos_token_id"]) if path.is_file() else _end_ids(path),
    )


def _read_weights(directory: Path) -> dict[str, Array]:
    weights: dict[str, Array] = {}
    for file in _weight_files(directory):
        weights |= read_safetensors(file)
    # Llama-2 checkpoints carry tables that follow from the config.
    return {n: w for n, w in weights.items() if not n.endswith("rotary_emb.inv_freq")}


def _end_ids(directory: Path) -> tuple[int, ...]:
    """Return the tokens that end a text, from the first file that names any."""
    generation = directory / "generation_config.json"
    files = [generation] if generation.exists() else []
    for file in (*files, directory / "config.json"):
        eos = _read_json(file).get("eos_token_id")
        if eos is not None and eos != []:
            return tuple(eos) if isinstance(eos, list) else (eos,)
    return ()


def _without_factors(
    config: Mapping[str, Any], arch: Architecture, weights: Mapping[str, Any]
) -> dict[str, Any]:
    """Return Granite's weights, times the four factors that its passes multiply with.

    The rest of a pass is a Llama's then. Attention's scale goes into the queries, which have 1 / √H
    of their own; that of the logits into the last norm, where a tied embedding brings its factor.

    Source: transformers 5.23, models/granite/modeling_granite.py
    """
    embedding = config.get("embedding_multiplier", 1.0)
    residual = config.get("residual_multiplier", 1.0)
    of_head = embedding if arch.tied_embeddings else 1.0
    factors = {
        "embed_tokens.weight": embedding,
        "lm_head.weight": of_head,
        "model.norm.weight": 1 / (config.get("logits_scaling", 1.0) * of_head),
        "q_proj.weight": config.get("attention_multiplier", 1.0) * math.sqrt(arch.head_dim),
        "o_proj.weight": residual,
        "down_proj.weight": residual,
    }
    return {
        name: next((Scaled(w, f) for end, f in factors.items() if name.endswith(end)), w)
        for name, w in weights.items()
    }


def read_safetensors(file: str | Path) -> dict[str, Array]:
    """Read every tensor of a safetensors file, as float32.

    Raises: ValueError for a missing or corrupt file or another dtype, naming file and tensor.
    Source: huggingface/safetensors, README.md, "Format"
    """
    try:
        with safe_open(file, framework="np") as stored:
            return {name: _float32(stored, name, file) for name in stored.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file} cannot be read as safetensors: {error}") from None


def weight_shapes(arch: Architecture) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a Llama of these sizes: Hugging Face's name to shape (out, in).

    Raises: ValueError for an architecture that is no Llama.

    >>> tiny = Architecture("tiny", 1, 8, 4, 2, 2, 16, 100, tied_embeddings=True)
    >>> shapes = weight_shapes(tiny)
    >>> len(shapes), shapes["model.layers.0.self_attn.k_proj.weight"]
    (11, (4, 8))
    """
    d, f = arch.d_model, arch.d_ff
    query, key = arch.n_heads * arch.head_dim, arch.n_kv_heads * arch.head_dim
    block = {
        "input_layernorm": (d,),
        "self_attn.q_proj": (query, d),
        "self_attn.k_proj": (key, d),
        "self_attn.v_proj": (key, d),
        "self_attn.o_proj": (d, query),
        "post_attention_layernorm": (d,),
        "mlp.gate_proj": (f, d),
        "mlp.up_proj": (f, d),
        "mlp.down_proj": (d, f),
    }
    if arch.qk_norm:
        block |= {"self_attn.q_norm": (arch.head_dim,), "self_attn.k_norm": (arch.head_dim,)}
    biases = {"q": (query,), "k": (key,), "v": (key,)} if arch.qkv_bias else {}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (arch.vocab_size, d)}
    for layer in range(arch.n_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}{name}.weight": s for name, s in block.items()}
        shapes |= {f"{prefix}self_attn.{x}_proj.bias": s for x, s in biases.items()}
    shapes["model.norm.weight"] = (d,)
    if not arch.tied_embeddings:
        shapes["lm_head.weight"] = (arch.vocab_size, d)
    n_params = sum(math.prod(shape) for shape in shapes.values())
    if arch.n_params != n_params:
        raise ValueError(
            f"arch {arch.name!r} has {arch.n_params} parameters, a Llama of its sizes {n_params}: "
            "experts, other biases and other additions are not supported"
        )
    return shapes


def check_weights(arch: Architecture, weights: Mapping[str, Array]) -> None:
    """Raise a ValueError unless `weights` are exactly those of a Llama like `arch`.

    A tied model may bring its lm_head.weight as well, as long as it equals the embedding.
    """
    shapes = weight_shapes(arch)
    missing = [name for name in shapes if name not in weights]
    if missing:
        raise ValueError(f"weights lack {len(missing)} tensors, first {missing[0]}")
    extra = sorted(set(weights) - set(shapes))
    if arch.tied_embeddings and extra == ["lm_head.weight"]:
        if not np.array_equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"]):
            raise ValueError("lm_head.weight differs from the embedding, expected tied weights")
        extra = []
    if extra:
        raise ValueError(f"weights hold {len(extra)} unexpected tensors, first {extra[0]}")
    for name, shape in shapes.items():
        if np.shape(weights[name]) != shape:
            raise ValueError(f"{name} has shape {np.shape(weights[name])}, expected {shape}")


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{file} is not readable as JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a JSON object, got {type(content).__name__}")
    return content


def _float32(stored: safe_open, name: str, file: str | Path) -> Array:
    dtype = stored.get_slice(name).get_dtype()
    if dtype not in _DTYPES:
        raise ValueError(f"{file}: {name} is {dtype}, expected one of {', '.join(_DTYPES)}")
    return stored.get_tensor(name).astype(np.float32, copy=False)


def _weight_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return [directory / "model.safetensors"]
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index} has no weight_map")
    return [directory / file for file in sorted(set(weight_map.values()))]
