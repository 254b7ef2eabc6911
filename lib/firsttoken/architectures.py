"""Model shapes: exact parameter counts, what each token caches, and sourced presets."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """The shape of a decoder-only Transformer: all that its parameters and its cache depend on.

    The positional fields describe a Llama. The keyword fields add what other families have.

    Norms and biases: `norms_per_layer` vectors of width D (and one after the last layer), with a
    second vector each where `norm_bias` (LayerNorm); `qk_norm` adds two of width H per layer.
    `qkv_bias`, `out_bias`, `mlp_bias`, `expert_bias` (router included) and `head_bias` say which
    matrices carry a bias; `sink_logits` adds one learned logit per head and layer.

    Windows: a layer in `local_layers` attends to its last `window` tokens. None means all layers.

    Shared caches: layer i reads the keys and values of layer `kv_source[i]`. None: its own.

    Mixture of experts: all layers but `n_dense_layers` have `n_experts` of width `expert_d_ff`, of
    which a token visits `n_active_experts`, and `n_shared_experts` that it always visits.

    Latent attention (MLA): a layer caches one latent of `latent_dim` and one rotary key of
    `rope_head_dim` per token, for all heads together. `head_dim` is then the size of a query
    (plain and rotary part), `v_head_dim` of a value; `q_latent_dim` compresses the queries too.

    Units:  elements and counts; bytes come in with a dtype (`kv_cache.kv_cache_bytes`).
    Raises: ValueError for sizes that are not positive integers, or that do not fit together.

    >>> llama = ARCHITECTURES["Llama-2-7B"]
    >>> llama.n_params, llama.kv_elements_per_token
    (6738415616, 262144)
    >>> llama.replace(n_kv_heads=8).kv_elements_per_token
    65536
    """

    name: str
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    vocab_size: int
    tied_embeddings: bool = False
    _: dataclasses.KW_ONLY
    max_context: int | None = None
    gated_mlp: bool = True
    norms_per_layer: int = 2
    norm_bias: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    expert_bias: bool = False
    sink_logits: bool = False
    head_bias: bool = False
    learned_positions: bool = False
    window: int | None = None
    local_layers: tuple[int, ...] | None = None
    kv_source: tuple[int, ...] | None = None
    n_experts: int = 0
    n_active_experts: int = 0
    n_shared_experts: int = 0
    expert_d_ff: int | None = None
    n_dense_layers: int = 0
    latent_dim: int | None = None
    rope_head_dim: int | None = None
    v_head_dim: int | None = None
    q_latent_dim: int | None = None
    rope_theta: float | None = None
    rope_scaling: Mapping[str, Any] | None = field(default=None, hash=False)
    source: str = ""

    def __post_init__(self) -> None:
        sizes = ["n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size"]
        sizes += [name for name in _OPTIONAL_SIZES if getattr(self, name) is not None]
        for name in sizes:
            self._check_integer(name, at_least=1)
        for name in ("n_experts", "n_active_experts", "n_shared_experts", "n_dense_layers"):
            self._check_integer(name, at_least=0)
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads {self.n_heads} must be a multiple of n_kv_heads {self.n_kv_heads}"
            )
        if self.learned_positions and self.max_context is None:
            raise ValueError(
                "learned_positions needs max_context, the number of positions; got None"
            )
        self._check_windows()
        self._check_kv_source()
        self._check_experts()
        self._check_latent()

    @property
    def n_params(self) -> int:
        """Every trained number: embeddings, matrices, norms, biases; a tied table counts once."""
        return sum(self.params_by_component.values())

    @property
    def n_active_params(self) -> int:
        """The parameters that one token's forward pass computes with (P_act in the formulas).

        That is `n_params` without the experts that the token does not visit and without the
        tables of which it only looks up one row: the input embedding (kept where it is tied,
        because the output multiplies with all of it) and learned positions.

        >>> mixtral = ARCHITECTURES["Mixtral-8x7B"]
        >>> mixtral.n_params, mixtral.n_active_params
        (46702792704, 12748853248)
        """
        looked_up = self.params_by_component["embedding"] + self.params_by_component["positions"]
        if self.tied_embeddings:
            looked_up -= self.vocab_size * self.d_model
        return self.n_params - looked_up - self._n_idle_expert_params

    @property
    def n_matmul_params(self) -> int:
        """The part of `n_active_params` that sits in matrices: two FLOPs per token each."""
        component = self.params_by_component
        idle = self._n_moe_layers * (self.n_experts - self.n_active_experts) * self._expert_matrices
        layers = component["attention"] + component["mlp"] - idle + component["router"]
        return layers + self.vocab_size * self.d_model

    def n_touched_params(self, n_tokens: int) -> int | float:
        """Return how many parameters a pass over `n_tokens` tokens has to read, on average.

        All of them without experts. With them, an expert that no token visits stays unread: under
        uniform and independent routing, E (1 - (1 - k/E)^n) of E experts are visited.

        >>> mixtral = ARCHITECTURES["Mixtral-8x7B"]
        >>> [round(mixtral.n_touched_params(n) / mixtral.n_params, 2) for n in (1, 8, 64)]
        [0.28, 0.9, 1.0]
        """
        if not self.n_experts:
            return self.n_params
        unread = self.n_experts * (1 - self.n_active_experts / self.n_experts) ** n_tokens
        return self.n_params - self._n_moe_layers * unread * self._expert_params

    @property
    def params_by_component(self) -> dict[str, int]:
        """Parameters by what they are for; the values sum to `n_params`.

        >>> ARCHITECTURES["GPT-2"].params_by_component["positions"]
        786432
        """
        d, n_moe = self.d_model, self._n_moe_layers
        experts = n_moe * (self.n_experts + self.n_shared_experts) * self._expert_matrices
        return {
            "embedding": self.vocab_size * d,
            "positions": self.max_context * d if self.learned_positions else 0,
            "attention": self._attention_params,
            "mlp": (self.n_layers - n_moe) * self._mlp_matrices * d * self.d_ff + experts,
            "router": n_moe * self.n_experts * d,
            "norms": self._norm_params,
            "biases": self._bias_params,
            "output": 0 if self.tied_embeddings else self.vocab_size * d,
        }

    @property
    def kv_elements_per_token(self) -> int:
        """Elements that one more token adds to the cache, summed over the layers that store.

        Windowed layers count in full: they add as much, but stop growing at `window` tokens.

        >>> ARCHITECTURES["DeepSeek-V2"].kv_elements_per_token  # 60 layers of 512 + 64
        34560
        """
        return len(self.kv_layers) * self.kv_elements_per_layer

    @property
    def kv_elements_per_layer(self) -> int:
        """Elements that one layer stores per token: keys and values, or the latent."""
        if self.latent_dim is not None:
            return self.latent_dim + self.rope_head_dim
        return 2 * self.n_kv_heads * self.head_dim

    @property
    def kv_layers(self) -> tuple[int, ...]:
        """The layers that store keys and values of their own."""
        if self.kv_source is None:
            return tuple(range(self.n_layers))
        return tuple(i for i, source in enumerate(self.kv_source) if i == source)

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        """The attention window of each layer; None where it sees the whole context."""
        local = range(self.n_layers) if self.local_layers is None else self.local_layers
        return tuple(self.window if i in local else None for i in range(self.n_layers))

    def replace(self, **changes: Any) -> "Architecture":
        """Return a copy with some fields changed, and validated again.

        The name stays unless it is changed too; a source no longer vouches for the copy.

        >>> ARCHITECTURES["Llama-2-13B"].replace(n_kv_heads=8).n_params
        11338142720
        """
        return dataclasses.replace(self, **{"source": "", **changes})

    @property
    def _n_moe_layers(self) -> int:
        return self.n_layers - self.n_dense_layers if self.n_experts else 0

    @property
    def _mlp_matrices(self) -> int:
        return 3 if self.gated_mlp else 2

    @property
    def _expert_matrices(self) -> int:
        return self._mlp_matrices * self.d_model * (self.expert_d_ff or 0)

    @property
    def _expert_biases(self) -> int:
        if not self.expert_bias:
            return 0
        return (self._mlp_matrices - 1) * self.expert_d_ff + self.d_model

    @property
    def _expert_params(self) -> int:
        return self._expert_matrices + self._expert_biases

    @property
    def _n_idle_expert_params(self) -> int:
        return self._n_moe_layers * (self.n_experts - self.n_active_experts) * self._expert_params

    @property
    def _attention_params(self) -> int:
        d, n, h = self.d_model, self.n_heads, self.head_dim
        if self.latent_dim is None:
            query_and_out = 2 * d * n * h
            key_and_value = 2 * d * self.n_kv_heads * h
            return self.n_layers * query_and_out + len(self.kv_layers) * key_and_value
        query = d * n * h
        if self.q_latent_dim is not None:
            query = (d + n * h) * self.q_latent_dim
        down = d * (self.latent_dim + self.rope_head_dim)
        up = self.latent_dim * n * (h - self.rope_head_dim + self.v_head_dim)
        return self.n_layers * (query + down + up + n * self.v_head_dim * d)

    @property
    def _norm_params(self) -> int:
        per_layer = self.norms_per_layer * self.d_model * (2 if self.norm_bias else 1)
        final = self.d_model * (2 if self.norm_bias else 1)
        if self.latent_dim is not None:
            per_layer += self.latent_dim + (self.q_latent_dim or 0)
        query = self.n_layers * self.head_dim if self.qk_norm else 0
        key = len(self.kv_layers) * self.head_dim if self.qk_norm else 0
        return self.n_layers * per_layer + final + query + key

    @property
    def _bias_params(self) -> int:
        biases = self.vocab_size if self.head_bias else 0
        if self.out_bias:
            biases += self.n_layers * self.d_model
        if self.qkv_bias and self.latent_dim is None:
            biases += self.n_layers * self.n_heads * self.head_dim
            biases += len(self.kv_layers) * 2 * self.n_kv_heads * self.head_dim
        elif self.qkv_bias:  # on the down-projections only
            compressed = self.latent_dim + self.rope_head_dim + (self.q_latent_dim or 0)
            biases += self.n_layers * compressed
        if self.expert_bias:
            biases += self._n_moe_layers * self.n_experts * (1 + self._expert_biases)
        if self.sink_logits:
            biases += self.n_layers * self.n_heads
        if self.mlp_bias:
            n_moe, inner = self._n_moe_layers, self._mlp_matrices - 1
            biases += (self.n_layers - n_moe) * (inner * self.d_ff + self.d_model)
            if self.n_shared_experts:  # the shared experts are stored as one wide MLP
                width = self.n_shared_experts * self.expert_d_ff
                biases += n_moe * (inner * width + self.d_model)
        return biases

    def _check_integer(self, name: str, at_least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, Integral) or isinstance(value, bool) or value < at_least:
            raise ValueError(f"{name} must be an integer of at least {at_least}, got {value!r}")

    def _check_windows(self) -> None:
        if self.local_layers is None:
            return
        object.__setattr__(self, "local_layers", tuple(self.local_layers))
        if self.local_layers and self.window is None:
            raise ValueError(f"local_layers {self.local_layers} need a window, got None")
        self._check_layers("local_layers")

    def _check_kv_source(self) -> None:
        if self.kv_source is None:
            return
        object.__setattr__(self, "kv_source", tuple(self.kv_source))
        self._check_layers("kv_source")
        if self.latent_dim is not None:
            raise ValueError("kv_source and latent_dim cannot be combined")
        if len(self.kv_source) != self.n_layers:
            raise ValueError(
                f"kv_source must name one layer for each of {self.n_layers}, got {self.kv_source}"
            )
        for layer, source in enumerate(self.kv_source):
            if source > layer or self.kv_source[source] != source:
                raise ValueError(
                    f"kv_source[{layer}] is {source}: expected {layer} itself or an earlier layer "
                    "that stores its own"
                )
            if self.layer_windows[layer] != self.layer_windows[source]:
                raise ValueError(
                    f"kv_source[{layer}] is {source}, but their windows differ: "
                    f"{self.layer_windows[layer]} and {self.layer_windows[source]}"
                )

    def _check_layers(self, name: str) -> None:
        for layer in getattr(self, name):
            if not isinstance(layer, Integral) or not 0 <= layer < self.n_layers:
                raise ValueError(
                    f"{name} holds {layer!r}, expected layers from 0 to {self.n_layers - 1}"
                )

    def _check_experts(self) -> None:
        if not self.n_experts:
            for name in ("n_active_experts", "n_shared_experts", "n_dense_layers", "expert_bias"):
                if getattr(self, name):
                    raise ValueError(f"{name} is {getattr(self, name)}, but n_experts is 0")
            return
        if self.expert_d_ff is None:
            raise ValueError("expert_d_ff must be given with n_experts, got None")
        if not 1 <= self.n_active_experts <= self.n_experts:
            raise ValueError(
                f"n_active_experts must lie in 1 … n_experts = {self.n_experts}, "
                f"got {self.n_active_experts}"
            )
        if self.n_dense_layers > self.n_layers:
            raise ValueError(
                f"n_dense_layers {self.n_dense_layers} is more than n_layers {self.n_layers}"
            )

    def _check_latent(self) -> None:
        if self.latent_dim is None:
            for name in ("rope_head_dim", "v_head_dim", "q_latent_dim"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is {getattr(self, name)}, but latent_dim is None")
            return
        if self.rope_head_dim is None or self.v_head_dim is None:
            raise ValueError(
                "latent_dim needs rope_head_dim and v_head_dim, "
                f"got {self.rope_head_dim} and {self.v_head_dim}"
            )
        if self.rope_head_dim >= self.head_dim:
            raise ValueError(
                f"rope_head_dim {self.rope_head_dim} must be less than head_dim {self.head_dim}, "
                "which contains it"
            )


_OPTIONAL_SIZES = (
    *("max_context", "window", "expert_d_ff"),
    *("latent_dim", "rope_head_dim", "v_head_dim", "q_latent_dim"),
)


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
    if model_type not in _HF_DEFAULTS:
        raise ValueError(
            f"model_type {model_type!r} is not supported; expected one of {', '.join(_HF_DEFAULTS)}"
        )
    given = {_HF_ALIASES.get(key, key): value for key, value in given.items()}
    values = _HF_COMMON | _HF_DEFAULTS[model_type] | given
    for key in ("num_hidden_layers", "num_attention_heads", "hidden_size"):
        if not isinstance(values[key], int) or values[key] < 1:
            raise ValueError(f"config: {key} must be a positive integer, got {values[key]!r}")
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
        "name": values["_name_or_path"] or values["model_type"],
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
    scaling = dict(values["rope_parameters"] or {})
    if "full_attention" in scaling:
        scaling = dict(scaling["full_attention"])
    scaling |= values["rope_scaling"] or {}
    theta = scaling.pop("rope_theta", values["rope_theta"])
    kind = scaling.pop("type", "default")  # the older name of rope_type
    scaling = {"rope_type": kind} | scaling
    return theta, None if scaling["rope_type"] == "default" else scaling


def _windows(values: dict[str, Any]) -> dict[str, Any]:
    window, layers = values["sliding_window"], range(values["num_hidden_layers"])
    kinds, full_from = values["layer_types"], values["max_window_layers"]
    if window is None or not values["use_sliding_window"]:
        return {}
    if kinds is not None:
        local = [i for i, kind in enumerate(kinds) if kind == "sliding_attention"]
    elif full_from is not None:
        local = [i for i in layers if i >= full_from]
    elif values["sliding_window_pattern"] is not None:
        local = [i for i in layers if (i + 1) % values["sliding_window_pattern"]]
    else:
        return {"window": window}
    return {"window": window, "local_layers": tuple(local)} if local else {}


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
    experts, step = values["num_local_experts"], values["decoder_sparse_step"]
    skipped = values["mlp_only_layers"] or ()
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
    dense = min(values["first_k_dense_replace"], n_layers)
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

_YARN_OSS = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
_YARN_OSS |= {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}

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
            "rope_parameters": _YARN_OSS,
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


# Sources of the presets below.
_HF = "Hugging Face config.json of "
_MLC = "mlc-ai/mlc-llm model_preset.py @79d603f (verbatim configs)"
_LITGPT = "Lightning-AI/litgpt litgpt/config.py @2685705"
_DEEPSEEK_REPO = "deepseek-ai/DeepSeek-V3 inference/configs @9b4e978"


def _llama3_scaling(factor: float) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def _llama(name: str, *shape: Any, source: str, **fields: Any) -> Architecture:
    return Architecture(name, *shape, **{"rope_theta": 10000.0, "source": source, **fields})


def _deepseek(name: str, *shape: int, source: str, **fields: Any) -> Architecture:
    latent = {"latent_dim": 512, "rope_head_dim": 64, "v_head_dim": 128}
    context = {"max_context": 163840, "rope_theta": 10000.0}
    return Architecture(name, *shape, **latent, **context, **fields, source=source)


def _gemma(name: str, *shape: int, window: int, period: int, **fields: Any) -> Architecture:
    """Every `period`-th layer sees everything; the others a window."""
    return Architecture(
        name,
        *shape,
        tied_embeddings=True,
        norms_per_layer=4,
        window=window,
        local_layers=tuple(i for i in range(shape[0]) if (i + 1) % period),
        **fields,
    )


_LLAMA_3 = {"rope_theta": 500000.0}
_LLAMA_31 = {"rope_theta": 500000.0, "max_context": 131072, "rope_scaling": _llama3_scaling(8.0)}
_YARN_V2 = {"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
_YARN_V2 |= {"mscale": 0.707, "mscale_all_dim": 0.707, "beta_fast": 32, "beta_slow": 1}

# fmt: off
_PRESETS = (
    #      name             L    D      N   K    H    F      V
    _llama("Llama-2-7B",    32,  4096,  32, 32, 128, 11008, 32000, max_context=4096,
           source=f"{_HF}TheBloke/Llama-2-7B-fp16; {_MLC}"),
    _llama("Llama-2-13B",   40,  5120,  40, 40, 128, 13824, 32000, max_context=4096,
           source=f"{_HF}NousResearch/Llama-2-13b-chat-hf; {_MLC}"),
    _llama("Llama-2-70B",   80,  8192,  64,  8, 128, 28672, 32000, max_context=4096,
           source=f"{_HF}TheBloke/Llama-2-70B-fp16; {_MLC}"),
    _llama("Llama-3-8B",    32,  4096,  32,  8, 128, 14336, 128256, max_context=8192, **_LLAMA_3,
           source=f"{_HF}Magpie-Align/Llama-3-8B-Magpie-Air-SFT (a tune of the base); {_LITGPT}"),
    _llama("Llama-3.1-8B",  32,  4096,  32,  8, 128, 14336, 128256, **_LLAMA_31,
           source=_LITGPT),
    _llama("Llama-3.1-70B", 80,  8192,  64,  8, 128, 28672, 128256, **_LLAMA_31,
           source=f"{_MLC}; {_LITGPT}"),
    _llama("Llama-3.1-405B", 126, 16384, 128, 8, 128, 53248, 128256, **_LLAMA_31,
           source=f"{_HF}migtissera/Meta-Llama-3.1-405B (a copy; the first release had 16 "
                  f"KV heads, later ones 8); {_LITGPT}"),
    _llama("Llama-3.2-1B",  16,  2048,  32,  8,  64,  8192, 128256, True, max_context=131072,
           rope_theta=500000.0, rope_scaling=_llama3_scaling(32.0), source=f"{_MLC}; {_LITGPT}"),
    _llama("Mistral-7B",    32,  4096,  32,  8, 128, 14336, 32000, max_context=32768, window=4096,
           source=f"mistralai/Mistral-7B-v0.1: {_MLC}; {_LITGPT}"),
    _llama("Mixtral-8x7B",  32,  4096,  32,  8, 128, 14336, 32000, max_context=32768,
           rope_theta=1e6, n_experts=8, n_active_experts=2, expert_d_ff=14336,
           source=f"mistralai/Mixtral-8x7B-v0.1: {_MLC}; {_LITGPT}"),
    _llama("Mixtral-8x22B", 56,  6144,  48,  8, 128, 16384, 32000, max_context=65536,
           rope_theta=1e6, n_experts=8, n_active_experts=2, expert_d_ff=16384,
           source=f"{_HF}mistral-community/Mixtral-8x22B-v0.1; {_LITGPT}"),
    _llama("Qwen2.5-7B",    28,  3584,  28,  4, 128, 18944, 152064, max_context=131072,
           rope_theta=1e6, qkv_bias=True, source=f"{_HF}copies of Qwen/Qwen2.5-7B; {_LITGPT}"),
    _llama("Qwen3-8B",      36,  4096,  32,  8, 128, 12288, 151936, max_context=40960,
           rope_theta=1e6, qk_norm=True, source=f"{_HF}a copy of Qwen/Qwen3-8B; {_LITGPT}"),
    _llama("Qwen3-30B-A3B", 48,  2048,  32,  4, 128,  6144, 151936, max_context=40960,
           rope_theta=1e6, qk_norm=True, n_experts=128, n_active_experts=8, expert_d_ff=768,
           source=_LITGPT),
    _llama("Phi-3-mini-4k", 32,  3072,  32, 32,  96,  8192, 32064, max_context=4096, window=2047,
           source=f"{_HF}copies of microsoft/Phi-3-mini-4k-instruct; {_LITGPT}"),
    _gemma("Gemma-2-9B",    42,  3584,  16,  8, 256, 14336, 256000, window=4096, period=2,
           max_context=8192, rope_theta=10000.0, source=f"{_MLC}; {_LITGPT}"),
    _gemma("Gemma-3-1B",    26,  1152,   4,  1, 256,  6912, 262144, window=512, period=6,
           max_context=32768, rope_theta=1e6, qk_norm=True, source=_MLC),
    _gemma("Gemma-3-12B",   48,  3840,  16,  8, 256, 15360, 262208, window=1024, period=6,
           max_context=131072, rope_theta=1e6, qk_norm=True,
           rope_scaling={"rope_type": "linear", "factor": 8.0},
           source=f"text decoder; {_HF}cjvt/GaMS3-12B-Instruct (a tune of it); {_LITGPT}"),
    _gemma("Gemma-3-27B",   62,  5376,  32, 16, 128, 21504, 262208, window=1024, period=6,
           max_context=131072, rope_theta=1e6, qk_norm=True,
           rope_scaling={"rope_type": "linear", "factor": 8.0},
           source=f"text decoder; {_LITGPT}; transformers 5.23 defaults"),
    Architecture("GPT-2",   12,   768,  12, 12,  64,  3072, 50257, True, max_context=1024,
                 gated_mlp=False, norm_bias=True, qkv_bias=True, out_bias=True, mlp_bias=True,
                 learned_positions=True, source=_MLC),
    Architecture("GPT-J-6B", 28, 4096,  16, 16, 256, 16384, 50400, max_context=2048,
                 gated_mlp=False, norms_per_layer=1, norm_bias=True, mlp_bias=True,
                 head_bias=True, rope_theta=10000.0,
                 source=f"{_MLC}; {_HF}hivemind/gpt-j-6B-8bit"),
    Architecture("gpt-oss-20b", 24, 2880, 64, 8, 64, 2880, 201088, max_context=131072,
                 qkv_bias=True, out_bias=True, sink_logits=True, expert_bias=True, window=128,
                 local_layers=tuple(range(0, 24, 2)), n_experts=32, n_active_experts=4,
                 expert_d_ff=2880, rope_theta=150000.0, rope_scaling=_YARN_OSS,
                 source="openai/gpt-oss gpt_oss/torch/model.py @7b58334; transformers 5.23"),
    _deepseek("DeepSeek-V2", 60, 5120, 128, 128, 192, 12288, 102400, q_latent_dim=1536,
              n_experts=160, n_active_experts=6, n_shared_experts=2, expert_d_ff=1536,
              n_dense_layers=1, rope_scaling=_YARN_V2,
              source=f"{_HF}deepseek-ai/DeepSeek-V2-Chat; {_DEEPSEEK_REPO}"),
    _deepseek("DeepSeek-V2-Lite", 27, 2048, 16, 16, 192, 10944, 102400,
              n_experts=64, n_active_experts=6, n_shared_experts=2, expert_d_ff=1408,
              n_dense_layers=1, rope_scaling=_YARN_V2,
              source=f"{_HF}deepseek-ai/DeepSeek-Coder-V2-Lite-Base; {_DEEPSEEK_REPO}"),
    _deepseek("DeepSeek-V3", 61, 7168, 128, 128, 192, 18432, 129280, q_latent_dim=1536,
              n_experts=256, n_active_experts=8, n_shared_experts=1, expert_d_ff=2048,
              n_dense_layers=3, rope_scaling=_YARN_V2 | {"mscale": 1.0, "mscale_all_dim": 1.0},
              source=f"{_HF}a copy of deepseek-ai/DeepSeek-V3; {_DEEPSEEK_REPO}"),
)
# fmt: on

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType({a.name: a for a in _PRESETS})
"""Released models by name, each with the source of its shape."""
