"""Read the shape of a model from its Hugging Face `config.json`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from firsttoken.architectures.architecture import Architecture

# Layers are counted one by one: with a billion of them, which only a slip or a joke asks for, the
# closed forms would not come to an end.
_MOST_LAYERS = 10_000


def from_hf_config(config: str | Path | Mapping[str, Any]) -> Architecture:
    """Return the architecture that a Hugging Face `config.json` describes.

    `config` is the file, the folder that holds it, or its content as a dict. Keys that are missing
    take the defaults of transformers. Rotary settings are read from `rope_parameters` or from
    `rope_theta` and `rope_scaling`; where layers differ, those of the full-attention layers.
    Parts beside the text decoder (vision, multi-token prediction) are left out.

    Raises: ValueError for a model_type that is not known here, for a missing or unreadable file,
            and for values that `Architecture` refuses.
    Source: transformers 5.23, models/*/configuration_*.py and modeling_*.py

    >>> small = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2,
    ...          "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 1000}
    >>> from_hf_config(small).n_params
    1824000
    """
    given = config if isinstance(config, Mapping) else _read_config(Path(config))
    model_type = given.get("model_type")
    if not isinstance(model_type, str) or model_type not in _HF_DEFAULTS:
        raise ValueError(
            f"model_type {model_type!r} is not supported; expected one of {', '.join(_HF_DEFAULTS)}"
        )
    given = {_HF_ALIASES.get(key, key): value for key, value in given.items()}
    values: dict[str, Any] = {**_HF_COMMON, **_HF_DEFAULTS[model_type], **given}
    for key in ("num_hidden_layers", "num_attention_heads", "hidden_size"):
        if not isinstance(values[key], int) or values[key] < 1:
            raise ValueError(f"config: {key} must be a positive integer, got {values[key]!r}")
    if values["num_hidden_layers"] > _MOST_LAYERS:
        raise ValueError(
            f"config: num_hidden_layers must be at most {_MOST_LAYERS:,}, "
            f"got {values['num_hidden_layers']}"
        )
    # What a config says of biases counts only where the family's code asks for it.
    values["mlp_bias"] &= model_type in ("llama", "deepseek_v2", "granite", "smollm3")
    values["attention_bias"] &= model_type not in ("mistral", "mixtral", "phi3")
    fields = _common_fields(values) | _windows(values)
    if model_type in ("gpt2", "gptj"):
        fields |= _gpt_fields(values)
    elif model_type in ("deepseek_v2", "deepseek_v3"):
        fields |= _deepseek_fields(values)
    elif model_type in ("mixtral", "qwen3_moe", "gpt_oss"):
        fields |= _moe_fields(values)
    if model_type == "qwen2":
        fields |= {"qkv_bias": True, "out_bias": False}
    if model_type == "gpt_oss":
        fields |= {"expert_bias": True, "sink_logits": True}
    if model_type == "smollm3":
        fields["unrotated_layers"] = _unrotated(values) or None
    fields["qk_norm"] = model_type in ("qwen3", "qwen3_moe", "gemma3_text")
    if model_type in ("gemma2", "gemma3_text"):
        fields["norms_per_layer"] = 4
    return Architecture(**fields)


def _read_config(path: Path) -> dict[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"config: there is no file {file}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"config: {file} is not a readable JSON file ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"config: {file} holds a {type(content).__name__}, expected an object")
    return content


def _common_fields(values: dict[str, Any]) -> dict[str, Any]:
    heads, width = values["num_attention_heads"], values["hidden_size"]
    kv_heads, head_dim = values["num_key_value_heads"], values["head_dim"]
    rope_theta, rope_scaling = _rope(values)
    return {
        "name": str(values["_name_or_path"] or values["model_type"]),
        "n_layers": values["num_hidden_layers"],
        "d_model": width,
        "n_heads": heads,
        "n_kv_heads": heads if kv_heads is None else kv_heads,
        "head_dim": width // heads if head_dim is None else head_dim,
        "d_ff": values["intermediate_size"],
        "vocab_size": values["vocab_size"],
        "tied_embeddings": values["tie_word_embeddings"],
        "max_context": values["max_position_embeddings"],
        "qkv_bias": values["attention_bias"],
        "out_bias": values["attention_bias"],
        "mlp_bias": values["mlp_bias"],
        "rope_theta": rope_theta,
        "rope_scaling": rope_scaling,
    }


def _rope(values: dict[str, Any]) -> tuple[float | None, dict[str, Any] | None]:
    scaling = dict(_expect(values, "rope_parameters", Mapping) or {})
    if "full_attention" in scaling:
        scaling = dict(_expect(scaling, "full_attention", Mapping) or {})
    scaling |= _expect(values, "rope_scaling", Mapping) or {}
    theta = scaling.pop("rope_theta", values["rope_theta"])
    kind = scaling.pop("type", "default")  # the older name of rope_type
    scaling = {"rope_type": kind} | scaling
    return theta, None if scaling["rope_type"] == "default" else scaling


def _windows(values: dict[str, Any]) -> dict[str, Any]:
    window, layers = values["sliding_window"], range(values["num_hidden_layers"])
    if window is None or not values["use_sliding_window"]:
        return {}
    kinds = _expect(values, "layer_types", Sequence)
    full_from = _expect(values, "max_window_layers", int)
    period = _expect(values, "sliding_window_pattern", int, at_least=1)
    if kinds is not None:
        local = [i for i, kind in enumerate(kinds) if kind == "sliding_attention"]
    elif full_from is not None:
        local = [i for i in layers if i >= full_from]
    elif period is not None:
        local = [i for i in layers if (i + 1) % period]
    else:
        return {"window": window}
    return {"window": window, "local_layers": tuple(local)} if local else {}


def _unrotated(values: dict[str, Any]) -> tuple[int, ...]:
    """Return the layers of a SmolLM3 without RoPE: each fourth one unless it says otherwise."""
    rotated = _expect(values, "no_rope_layers", Sequence)  # 0 for a layer without
    every = _expect(values, "no_rope_layer_interval", int, at_least=1)
    layers = range(values["num_hidden_layers"])
    if rotated is None:
        return tuple(i for i in layers if every and (i + 1) % every == 0)
    return tuple(i for i in layers if i < len(rotated) and not rotated[i])


def _gpt_fields(values: dict[str, Any]) -> dict[str, Any]:
    is_gpt2 = values["model_type"] == "gpt2"
    width = values["hidden_size"]
    return {
        "d_ff": 4 * width if values["n_inner"] is None else values["n_inner"],
        "gated_mlp": False,
        "mlp_bias": True,
        "norm_bias": True,
        "norms_per_layer": 2 if is_gpt2 else 1,
        "qkv_bias": is_gpt2,
        "out_bias": is_gpt2,
        "learned_positions": is_gpt2,
        # GPT-J's output has a bias of its own.
        "head_bias": not is_gpt2,
        "rope_theta": None if is_gpt2 else 10000.0,
    }


def _moe_fields(values: dict[str, Any]) -> dict[str, Any]:
    experts = values["num_local_experts"]
    step = _expect(values, "decoder_sparse_step", int, at_least=1) or 1
    skipped = _expect(values, "mlp_only_layers", Sequence) or ()
    layers = range(values["num_hidden_layers"])
    sparse = [i for i in layers if i not in skipped and experts and (i + 1) % step == 0]
    if not sparse:
        return {}
    return {
        "n_experts": experts,
        "n_active_experts": values["num_experts_per_tok"],
        "expert_d_ff": values["moe_intermediate_size"] or values["intermediate_size"],
        "n_dense_layers": len(layers) - len(sparse),
    }


def _deepseek_fields(values: dict[str, Any]) -> dict[str, Any]:
    n_layers = values["num_hidden_layers"]
    dense = min(_expect(values, "first_k_dense_replace", int) or 0, n_layers)
    for key in ("qk_nope_head_dim", "qk_rope_head_dim"):
        if _expect(values, key, int, at_least=1) is None:
            raise ValueError(f"config: {key} is missing, expected the elements per head")
    latent = {
        "n_kv_heads": values["num_attention_heads"],  # the latent is expanded for every head
        "head_dim": values["qk_nope_head_dim"] + values["qk_rope_head_dim"],
        "latent_dim": values["kv_lora_rank"],
        "rope_head_dim": values["qk_rope_head_dim"],
        "v_head_dim": values["v_head_dim"],
        "q_latent_dim": values["q_lora_rank"],
    }
    if dense == n_layers:
        return latent
    if values["num_experts_per_tok"] is None:
        raise ValueError("config: num_experts_per_tok is missing, expected the experts per token")
    return latent | {
        "n_experts": values["num_local_experts"],
        "n_active_experts": values["num_experts_per_tok"],
        "n_shared_experts": values["n_shared_experts"],
        "expert_d_ff": values["moe_intermediate_size"],
        "n_dense_layers": dense,
    }


def _expect(values: Mapping[str, Any], key: str, kind: type, at_least: int = 0) -> Any:
    """Return what a config says, which may be nothing; raise where it is of another kind."""
    value = values[key]
    right = isinstance(value, kind) and not isinstance(value, (bool, str))
    if value is None or (right and (kind is not int or value >= at_least)):
        return value
    words = {Mapping: "an object", Sequence: "a list", int: f"an integer of at least {at_least}"}
    raise ValueError(f"config: {key} must be {words[kind]}, got {value!r}")


# One name per quantity: model types that call it something else are translated first.
_HF_ALIASES = MappingProxyType(
    {
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_positions": "max_position_embeddings",
        "n_routed_experts": "num_local_experts",
        "num_experts": "num_local_experts",
        "experts_per_token": "num_experts_per_tok",
    }
)

_HF_COMMON = MappingProxyType(
    {
        "_name_or_path": "",
        "num_key_value_heads": None,
        "head_dim": None,
        "intermediate_size": None,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "rope_parameters": None,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "use_sliding_window": True,
        "sliding_window": None,
        "sliding_window_pattern": None,
        "max_window_layers": None,
        "layer_types": None,
        "n_inner": None,
        "decoder_sparse_step": 1,
        "mlp_only_layers": None,
        "moe_intermediate_size": None,
    }
)

_LLAMA = MappingProxyType(
    {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    }
)
_MISTRAL = _LLAMA | {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
_QWEN2 = _LLAMA | {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_GEMMA = {
    "vocab_size": 256000,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
_GEMMA2 = _GEMMA | {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "sliding_window": 4096,
    "sliding_window_pattern": 2,
}
_DEEPSEEK = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}

YARN_GPT_OSS = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
YARN_GPT_OSS |= {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}

_HF_DEFAULTS = MappingProxyType(
    {
        "llama": _LLAMA,
        "mistral": _MISTRAL,
        "mixtral": _MISTRAL
        | {
            "sliding_window": None,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "rope_theta": 1e6,
        },
        "qwen2": _QWEN2,
        "qwen3": _QWEN2 | {"head_dim": 128},
        "granite": _LLAMA,
        "smollm3": _LLAMA
        | {
            "vocab_size": 128256,
            "hidden_size": 2048,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "use_sliding_window": False,
            "rope_theta": 2e6,
            "tie_word_embeddings": True,
            "no_rope_layers": None,
            "no_rope_layer_interval": 4,
        },
        "qwen3_moe": _QWEN2
        | {
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 24,
            "num_key_value_heads": 4,
            "max_window_layers": None,
            "num_local_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
        "gemma": _GEMMA
        | {
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
        },
        "gemma2": _GEMMA2,
        "gemma3_text": _GEMMA2
        | {
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "sliding_window_pattern": 6,
            "rope_theta": 1e6,
        },
        "phi3": _LLAMA
        | {
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "max_position_embeddings": 4096,
        },
        "gpt_oss": {
            "vocab_size": 201088,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_hidden_layers": 36,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "attention_bias": True,
            "sliding_window": 128,
            "sliding_window_pattern": 2,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "rope_theta": 150000.0,
            "rope_parameters": YARN_GPT_OSS,
        },
        "gpt2": {
            "vocab_size": 50257,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_position_embeddings": 1024,
            "tie_word_embeddings": True,
        },
        "gptj": {
            "vocab_size": 50400,
            "hidden_size": 4096,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "max_position_embeddings": 2048,
        },
        "deepseek_v2": _LLAMA
        | _DEEPSEEK
        | {
            "vocab_size": 102400,
            "num_local_experts": 64,
            "num_experts_per_tok": None,
            "n_shared_experts": 2,
            "moe_intermediate_size": 1407,
            "first_k_dense_replace": 0,
        },
        "deepseek_v3": _DEEPSEEK
        | {
            "vocab_size": 129280,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "max_position_embeddings": 4096,
            "num_local_experts": 256,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "moe_intermediate_size": 2048,
            "first_k_dense_replace": 3,
        },
    }
)
