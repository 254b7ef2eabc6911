"""The layers of a model that one line describes: alike, but for windows, caches and dense MLPs."""

from dataclasses import dataclass
from numbers import Integral

from firsttoken.architectures.layers import MLP, Attention, Experts, LatentAttention, Layer
from firsttoken.checks import check_count


@dataclass
class Uniform:
    """The arguments of `Architecture`, which says what they mean; `layers` makes layers of them."""

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    gated_mlp: bool = True
    norms_per_layer: int = 2
    norm_bias: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    expert_bias: bool = False
    sink_logits: bool = False
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
    unrotated_layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        sizes = ["n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff"]
        for name in sizes + [name for name in _OPTIONAL if getattr(self, name) is not None]:
            check_count(name, getattr(self, name), at_least=1)
        for name in ("n_experts", "n_active_experts", "n_shared_experts", "n_dense_layers"):
            check_count(name, getattr(self, name))
        for name in ("local_layers", "kv_source", "unrotated_layers"):
            if getattr(self, name) is not None:
                setattr(self, name, tuple(getattr(self, name)))
                self._check_layers(name)
        if self.local_layers and self.window is None:
            raise ValueError(f"local_layers {self.local_layers} need a window, got None")
        self._check_kv_source()
        self._check_experts()
        self._check_latent()

    def layers(self) -> tuple[Layer, ...]:
        """Return one layer after another; those of one kind are one object."""
        local = range(self.n_layers) if self.local_layers is None else set(self.local_layers)
        unrotated = set(self.unrotated_layers or ())
        made: dict[tuple[object, ...], Layer] = {}
        found = []
        for i in range(self.n_layers):
            source = None if self.kv_source is None or self.kv_source[i] == i else self.kv_source[i]
            dense = not self.n_experts or i < self.n_dense_layers
            key = (i in local, i in unrotated, source, dense)
            if key not in made:
                window = self.window if i in local else None
                attention = self._attention(window, i not in unrotated, source is None)
                mlp = self._mlp() if dense else self._experts()
                norms = self.norms_per_layer * self.d_model * (2 if self.norm_bias else 1)
                made[key] = Layer((attention,), (mlp,), norms, source)
            found.append(made[key])
        return tuple(found)

    def _attention(
        self, window: int | None, rotated: bool, stores: bool
    ) -> Attention | LatentAttention:
        biases = self.d_model if self.out_bias else 0
        biases += self.n_heads if self.sink_logits else 0
        if self.latent_dim is not None:
            assert self.rope_head_dim is not None and self.v_head_dim is not None  # as checked
            compressed = self.latent_dim + (self.q_latent_dim or 0)
            return LatentAttention(
                self.n_heads,
                self.head_dim,
                self.latent_dim,
                self.rope_head_dim,
                self.v_head_dim,
                self.q_latent_dim,
                window=window,
                norm_params=compressed + (2 * self.head_dim if self.qk_norm else 0),
                bias_params=biases + (compressed + self.rope_head_dim if self.qkv_bias else 0),
                rotated=rotated,
            )
        kv_heads = self.n_kv_heads if stores else 0
        if self.qkv_bias:
            biases += (self.n_heads + 2 * kv_heads) * self.head_dim
        return Attention(
            self.n_heads,
            self.n_kv_heads,
            self.head_dim,
            window=window,
            kv_matrices=2 if stores else 0,
            rotated=rotated,
            norm_params=(2 if stores else 1) * self.head_dim if self.qk_norm else 0,
            bias_params=biases,
        )

    def _mlp(self) -> MLP:
        inner = 2 if self.gated_mlp else 1
        biases = inner * self.d_ff + self.d_model if self.mlp_bias else 0
        return MLP(self.d_ff, self.gated_mlp, biases)

    def _experts(self) -> Experts:
        assert self.expert_d_ff is not None  # as checked
        inner = 2 if self.gated_mlp else 1
        shared = self.n_shared_experts * self.expert_d_ff  # stored as one wide MLP
        biases = inner * shared + self.d_model if self.mlp_bias and shared else 0
        return Experts(
            self.n_experts,
            self.n_active_experts,
            self.expert_d_ff,
            self.gated_mlp,
            shared,
            expert_bias=inner * self.expert_d_ff + self.d_model if self.expert_bias else 0,
            bias_params=biases + (self.n_experts if self.expert_bias else 0),
        )

    def _check_kv_source(self) -> None:
        if self.kv_source is None:
            return
        if self.latent_dim is not None:
            raise ValueError("kv_source and latent_dim cannot be combined")
        if len(self.kv_source) != self.n_layers:
            raise ValueError(
                f"kv_source must name one layer for each of {self.n_layers}, got {self.kv_source}"
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
        if self.n_dense_layers > self.n_layers:
            raise ValueError(
                f"n_dense_layers {self.n_dense_layers} is more than n_layers {self.n_layers}"
            )

    def _check_latent(self) -> None:
        if self.latent_dim is None:
            for name in ("rope_head_dim", "v_head_dim", "q_latent_dim"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is {getattr(self, name)}, but latent_dim is None")
        elif self.rope_head_dim is None or self.v_head_dim is None:
            raise ValueError(
                "latent_dim needs rope_head_dim and v_head_dim, "
                f"got {self.rope_head_dim} and {self.v_head_dim}"
            )


_OPTIONAL = ("window", "expert_d_ff", "latent_dim", "rope_head_dim", "v_head_dim", "q_latent_dim")
