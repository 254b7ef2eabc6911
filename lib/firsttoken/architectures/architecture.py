"""The shape of one model, and what follows from it: parameters and what each token caches."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from firsttoken.checks import check_count


@dataclass(frozen=True)
class Architecture:
    """The shape of a decoder-only Transformer: all that its parameters and its cache depend on.

    The positional fields describe a Llama. The keyword fields add what other families have.

    Norms and biases: `norms_per_layer` vectors of width D (and one after the last layer), with a
    second vector each where `norm_bias` (LayerNorm); `qk_norm` adds two of width H per layer.
    `qkv_bias`, `out_bias`, `mlp_bias`, `expert_bias` (router included) and `head_bias` say which
    matrices carry a bias; `sink_logits` adds one learned logit per head and layer.

    Positions: layers in `unrotated_layers` (NoPE) turn neither queries nor keys. None means none.

    Windows: a layer in `local_layers` attends to its last `window` tokens. None means all layers.

    Shared caches: layer i reads the keys and values of layer `kv_source[i]`. None: its own.

    Mixture of experts: all layers but `n_dense_layers` have `n_experts` of width `expert_d_ff`, of
    which a token visits `n_active_experts`, and `n_shared_experts` that it always visits.

    Latent attention (MLA): a layer caches one latent of `latent_dim` and one rotary key of
    `rope_head_dim` per token, for all heads together. `head_dim` is then the size of a query
    (plain and rotary part), `v_head_dim` of a value; `q_latent_dim` compresses the queries too.

    Units:  elements and counts; bytes come in with a dtype (`kv_cache.kv_cache_bytes`).
    Raises: ValueError for sizes that are not positive integers, or that do not fit together.

    >>> from firsttoken.architectures import ARCHITECTURES
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
    unrotated_layers: tuple[int, ...] | None = None
    source: str = ""

    def __post_init__(self) -> None:
        sizes = ["n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size"]
        sizes += [name for name in _OPTIONAL_SIZES if getattr(self, name) is not None]
        for name in sizes:
            check_count(name, getattr(self, name), at_least=1)
        for name in ("n_experts", "n_active_experts", "n_shared_experts", "n_dense_layers"):
            check_count(name, getattr(self, name))
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
        """Every trained number: embeddings, matrices, norms, biases; a tied table counts once.

        Holds:  for the model itself. A release that adds a module which guesses ahead has more
                (DeepSeek-V3, whose 671 billion are without it), and so has a padded vocabulary.
        """
        return sum(self.params_by_component.values())

    @property
    def n_active_params(self) -> int:
        """The parameters that one token's forward pass computes with (P_act in the formulas).

        That is `n_params` without the experts that the token does not visit and without the
        tables of which it only looks up one row: the input embedding (kept where it is tied,
        because the output multiplies with all of it) and learned positions.

        Holds:  for one token. A pass over more reads more experts: see `n_touched_params`.

        >>> from firsttoken.architectures import ARCHITECTURES
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
        """The part of `n_active_params` that sits in matrices: two FLOPs per token each.

        Holds:  for short texts. The products of attention with its cache come on top, and are as
                many FLOPs again at 25,000 attended tokens in Llama-2-7B (`roofline.model_cost`).
        """
        component = self.params_by_component
        idle = self._n_moe_layers * (self.n_experts - self.n_active_experts) * self._expert_matrices
        layers = component["attention"] + component["mlp"] - idle + component["router"]
        return layers + self.vocab_size * self.d_model

    def n_touched_params(self, n_tokens: int) -> int | float:
        """Return how many parameters a pass over `n_tokens` tokens has to read, on average.

        All of them without experts. With them, an expert that no token visits stays unread: under
        uniform and independent routing, E (1 - (1 - k/E)^n) of E experts are visited.

        Holds:  as an upper bound where some experts are preferred: with a preference as 1/rank, 105
                of 256 experts are visited in place of 163 (8 a token, 32 tokens).

        >>> from firsttoken.architectures import ARCHITECTURES
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

        >>> from firsttoken.architectures import ARCHITECTURES
        >>> ARCHITECTURES["GPT-2"].params_by_component["positions"]
        786432
        """
        d, n_moe = self.d_model, self._n_moe_layers
        experts = n_moe * (self.n_experts + self.n_shared_experts) * self._expert_matrices
        return {
            "embedding": self.vocab_size * d,
            "positions": (self.max_context or 0) * d if self.learned_positions else 0,
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

        >>> from firsttoken.architectures import ARCHITECTURES
        >>> ARCHITECTURES["DeepSeek-V2"].kv_elements_per_token  # 60 layers of 512 + 64
        34560
        """
        return len(self.kv_layers) * self.kv_elements_per_layer

    @property
    def kv_elements_per_layer(self) -> int:
        """Elements that one layer stores per token: keys and values, or the latent."""
        if self.latent_sizes is not None:
            latent, rope, _ = self.latent_sizes
            return latent + rope
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
        local = set(range(self.n_layers) if self.local_layers is None else self.local_layers)
        return tuple(self.window if i in local else None for i in range(self.n_layers))

    def replace(self, **changes: Any) -> "Architecture":
        """Return a copy with some fields changed, and validated again.

        The name stays unless it is changed too; a source no longer vouches for the copy.

        >>> from firsttoken.architectures import ARCHITECTURES
        >>> ARCHITECTURES["Llama-2-13B"].replace(n_kv_heads=8).n_params
        11338142720
        """
        return dataclasses.replace(self, **{"source": "", **changes})

    @property
    def latent_sizes(self) -> tuple[int, int, int] | None:
        """Sizes of the latent, its rotary key and a value, which come together or not at all."""
        if self.latent_dim is None or self.rope_head_dim is None or self.v_head_dim is None:
            return None
        return self.latent_dim, self.rope_head_dim, self.v_head_dim

    @property
    def _expert_width(self) -> int:
        return self.expert_d_ff or 0

    @property
    def _n_moe_layers(self) -> int:
        return self.n_layers - self.n_dense_layers if self.n_experts else 0

    @property
    def _mlp_matrices(self) -> int:
        return 3 if self.gated_mlp else 2

    @property
    def _expert_matrices(self) -> int:
        return self._mlp_matrices * self.d_model * self._expert_width

    @property
    def _expert_biases(self) -> int:
        if not self.expert_bias:
            return 0
        return (self._mlp_matrices - 1) * self._expert_width + self.d_model

    @property
    def _expert_params(self) -> int:
        return self._expert_matrices + self._expert_biases

    @property
    def _n_idle_expert_params(self) -> int:
        return self._n_moe_layers * (self.n_experts - self.n_active_experts) * self._expert_params

    @property
    def _attention_params(self) -> int:
        d, n, h = self.d_model, self.n_heads, self.head_dim
        if self.latent_sizes is None:
            query_and_out = 2 * d * n * h
            key_and_value = 2 * d * self.n_kv_heads * h
            return self.n_layers * query_and_out + len(self.kv_layers) * key_and_value
        latent, rope, value = self.latent_sizes
        query = d * n * h
        if self.q_latent_dim is not None:
            query = (d + n * h) * self.q_latent_dim
        down = d * (latent + rope)
        up = latent * n * (h - rope + value)
        return self.n_layers * (query + down + up + n * value * d)

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
        if self.qkv_bias and self.latent_sizes is None:
            biases += self.n_layers * self.n_heads * self.head_dim
            biases += len(self.kv_layers) * 2 * self.n_kv_heads * self.head_dim
        elif self.qkv_bias:  # on the down-projections only
            compressed = self.kv_elements_per_layer + (self.q_latent_dim or 0)
            biases += self.n_layers * compressed
        if self.expert_bias:
            biases += self._n_moe_layers * self.n_experts * (1 + self._expert_biases)
        if self.sink_logits:
            biases += self.n_layers * self.n_heads
        if self.mlp_bias:
            n_moe, inner = self._n_moe_layers, self._mlp_matrices - 1
            biases += (self.n_layers - n_moe) * (inner * self.d_ff + self.d_model)
            if self.n_shared_experts:  # the shared experts are stored as one wide MLP
                width = self.n_shared_experts * self._expert_width
                biases += n_moe * (inner * width + self.d_model)
        return biases

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
            if not isinstance(layer, Integral) or int(layer) not in range(self.n_layers):
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
