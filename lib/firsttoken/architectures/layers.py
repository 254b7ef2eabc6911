"""What a layer of a model consists of: what it mixes tokens by, what it keeps of them, its MLP.

A layer has mixers (attention, latent attention, a recurrence; two side by side in some hybrids,
none where an MLP counts as a layer) and MLPs (dense, experts, both, or none). Counts of norms,
biases and of matrices that few families have are given as numbers of elements.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from firsttoken.checks import check_count


@dataclass(frozen=True)
class Attention:
    """Attention on keys and values, of which each head of `n_kv_heads` stores one per token.

    `window`: a token sees the last `window` ones, itself included; `chunked`: those of its chunk,
    of `window` tokens. `kv_matrices` is 1 where the values are the keys, and 0 where another
    layer's are read. `top_k`: an index of `index_dim` numbers per token chooses what is attended
    to, in which `index_heads` queries look. `extra_matrices` counts gates and the like.
    `n_head_groups`: the groups of `n_kv_heads` query heads of which a token chooses `n_heads` (a
    mixture of heads); 0: it uses all.

    Units:  elements and counts
    Raises: ValueError for sizes that are no positive integers, heads that do not divide.
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    v_head_dim: int | None = None
    window: int | None = None
    chunked: bool = False
    kv_matrices: int = 2
    rotated: bool = True
    top_k: int | None = None
    index_dim: int = 0
    index_heads: int = 0
    extra_matrices: int = 0
    norm_params: int = 0
    bias_params: int = 0
    n_head_groups: int = 0

    def __post_init__(self) -> None:
        _check_sizes(self, "n_heads", "n_kv_heads", "head_dim")
        _check_sizes(self, "v_head_dim", "window", "top_k", optional=True)
        _check_counts(
            self, "index_dim", "index_heads", "extra_matrices", "norm_params", "bias_params"
        )
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads {self.n_heads} must be a multiple of n_kv_heads {self.n_kv_heads}"
            )
        groups = self.n_heads // self.n_kv_heads
        if check_count("n_head_groups", self.n_head_groups) and self.n_head_groups < groups:
            raise ValueError(
                f"n_head_groups must be at least the {groups} that a token visits, "
                f"got {self.n_head_groups}"
            )

    @property
    def value_dim(self) -> int:
        """The size of a head's value: that of its key, unless it is given."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    @property
    def kv_elements(self) -> int:
        """What a token adds to the cache of one layer: keys, values and the key of an index."""
        return self.n_kv_heads * (self.head_dim + self.value_dim) + self.index_dim

    def group_matrices(self, d_model: int) -> int:
        """Return the elements of the query and output matrices of `n_kv_heads` heads."""
        return d_model * self.n_kv_heads * (self.head_dim + self.value_dim)

    def matrices(self, d_model: int) -> int:
        """Return the elements of the matrices of queries, keys and values, and of the output."""
        groups = self.n_head_groups or self.n_heads // self.n_kv_heads
        query_and_out = groups * self.group_matrices(d_model)
        key = self.head_dim if self.kv_matrices > 0 else 0
        value = self.value_dim if self.kv_matrices > 1 else 0
        return query_and_out + d_model * self.n_kv_heads * (key + value) + self.extra_matrices


@dataclass(frozen=True)
class CompressedAttention(Attention):
    """Attention whose cache keeps a window of tokens, and of the whole text one entry for several.

    Keys are the values, and are stored once. Of each `tokens_per_entry` tokens the cache keeps one
    entry more, as large as a token's, and one key of the index, if there is one, which chooses
    `top_k` entries; None: it keeps its window only. Queries are compressed to `q_latent_dim`; the
    output goes through `out_groups` latents of `out_latent_dim`.

    Holds:  but for the tokens that wait until an entry is full, which are cached, too.
    """

    q_latent_dim: int = dataclasses.field(kw_only=True)
    out_latent_dim: int = dataclasses.field(kw_only=True)
    out_groups: int = dataclasses.field(kw_only=True)
    tokens_per_entry: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_sizes(self, "q_latent_dim", "out_latent_dim", "out_groups")
        _check_sizes(self, "tokens_per_entry", optional=True)

    @property
    def kv_elements(self) -> int:
        """What a token adds to the window."""
        return self.n_kv_heads * self.head_dim

    @property
    def entry_elements(self) -> int:
        """What each `tokens_per_entry` tokens add beside the window."""
        if self.tokens_per_entry is None:
            return 0
        return self.n_kv_heads * self.head_dim + self.index_dim

    def matrices(self, d_model: int) -> int:
        """Return the elements of the matrices down to the latents, up to the heads, and out."""
        heads = self.n_heads * self.head_dim
        query = (d_model + heads) * self.q_latent_dim
        out = (heads + d_model * self.out_groups) * self.out_latent_dim
        return query + d_model * self.n_kv_heads * self.head_dim + out + self.extra_matrices


@dataclass(frozen=True)
class LatentAttention:
    """Latent attention (MLA): one latent and one rotary key per token, for all heads together.

    `head_dim` is the size of a query, plain and rotary part. `q_latent_dim` compresses the queries
    too. `top_k` and `index_dim` as in `Attention`.

    Units:  elements and counts
    Raises: ValueError for sizes that are no positive integers, a rotary part as large as the head.
    """

    n_heads: int
    head_dim: int
    latent_dim: int
    rope_head_dim: int
    v_head_dim: int
    q_latent_dim: int | None = None
    window: int | None = None
    top_k: int | None = None
    index_dim: int = 0
    index_heads: int = 0
    extra_matrices: int = 0
    norm_params: int = 0
    bias_params: int = 0
    chunked: bool = False
    rotated: bool = True

    def __post_init__(self) -> None:
        _check_sizes(self, "n_heads", "head_dim", "latent_dim", "v_head_dim")
        _check_sizes(self, "q_latent_dim", "window", "top_k", optional=True)
        _check_counts(
            self, "index_dim", "index_heads", "extra_matrices", "norm_params", "bias_params"
        )
        if check_count("rope_head_dim", self.rope_head_dim) >= self.head_dim:
            raise ValueError(
                f"rope_head_dim {self.rope_head_dim} must be less than head_dim {self.head_dim}, "
                "which contains it"
            )

    @property
    def kv_elements(self) -> int:
        """What a token adds to the cache of one layer: the latent, its rotary key, an index's."""
        return self.latent_dim + self.rope_head_dim + self.index_dim

    def matrices(self, d_model: int) -> int:
        """Return the elements of the matrices down to the latents, up to the heads, and out."""
        query = d_model * self.n_heads * self.head_dim
        if self.q_latent_dim is not None:
            query = (d_model + self.n_heads * self.head_dim) * self.q_latent_dim
        down = d_model * (self.latent_dim + self.rope_head_dim)
        per_head = self.head_dim - self.rope_head_dim + self.v_head_dim
        up = self.latent_dim * self.n_heads * per_head
        out = self.n_heads * self.v_head_dim * d_model
        return query + down + up + out + self.extra_matrices


@dataclass(frozen=True)
class Recurrent:
    """A recurrence: a state of fixed size, and the last inputs of a short convolution.

    `kind` names it. `weights` counts its matrices, `other_params` all else that is trained. Of a
    convolution the last `kernel` inputs count, as transformers keeps them. States are stored as
    `state_dtype`, the convolution's inputs as the activations are.

    Raises: ValueError for counts below 0.
    """

    kind: str
    weights: int
    state_elements: int
    conv_elements: int = 0
    norm_params: int = 0
    other_params: int = 0
    state_dtype: str = "fp32"
    kv_elements = 0

    def __post_init__(self) -> None:
        _check_counts(self, "weights", "state_elements", "conv_elements")
        _check_counts(self, "norm_params", "other_params")

    def matrices(self, d_model: int) -> int:
        """Return the elements of its matrices."""
        return self.weights


@dataclass(frozen=True)
class MLP:
    """A dense MLP of width `d_ff`: three matrices where it is gated, else two."""

    d_ff: int
    gated: bool = True
    bias_params: int = 0
    norm_params: int = 0
    extra_matrices: int = 0

    def __post_init__(self) -> None:
        _check_sizes(self, "d_ff")
        _check_counts(self, "bias_params", "norm_params", "extra_matrices")

    def matrices(self, d_model: int) -> int:
        """Return the elements of its matrices."""
        return (3 if self.gated else 2) * d_model * self.d_ff + self.extra_matrices


@dataclass(frozen=True)
class Experts:
    """A router and `n_experts` MLPs of width `d_ff`, of which a token visits `n_active`.

    Beside them stands one MLP of width `shared_d_ff` that every token visits; 0: none.
    `expert_bias` counts the biases of one expert, `bias_params` those of the router and of the
    shared MLP, `shared_matrices` what else every token meets. `latent_dim`: experts read and write
    vectors of that width, not of the model's.

    Raises: ValueError for sizes that are no positive integers, more active experts than experts.
    """

    n_experts: int
    n_active: int
    d_ff: int
    gated: bool = True
    shared_d_ff: int = 0
    router_matrix: int | None = None
    shared_matrices: int = 0
    expert_bias: int = 0
    bias_params: int = 0
    norm_params: int = 0
    latent_dim: int | None = None

    def __post_init__(self) -> None:
        _check_sizes(self, "n_experts", "d_ff")
        _check_sizes(self, "latent_dim", optional=True)
        _check_counts(self, "shared_d_ff", "shared_matrices", "expert_bias")
        _check_counts(self, "bias_params", "norm_params")
        if not 1 <= check_count("n_active_experts", self.n_active) <= self.n_experts:
            raise ValueError(
                f"n_active_experts must lie in 1 … n_experts = {self.n_experts}, "
                f"got {self.n_active}"
            )

    def expert_matrices(self, d_model: int) -> int:
        """Return the elements of one expert's matrices."""
        return (3 if self.gated else 2) * (self.latent_dim or d_model) * self.d_ff

    def router(self, d_model: int) -> int:
        """Return the elements of the router's matrix."""
        return self.n_experts * d_model if self.router_matrix is None else self.router_matrix

    def shared(self, d_model: int) -> int:
        """Return the elements of the matrices that every token meets, the router's left out."""
        return (3 if self.gated else 2) * d_model * self.shared_d_ff + self.shared_matrices

    def matrices(self, d_model: int) -> int:
        """Return the elements of the matrices of all experts and of the shared MLP."""
        return self.n_experts * self.expert_matrices(d_model) + self.shared(d_model)


Mixer = Attention | LatentAttention | Recurrent


@dataclass(frozen=True)
class Layer:
    """One layer: its mixers, its MLPs, the elements of its own norms.

    `kv_source`: the layer whose cache it reads; None: its own, if a mixer stores anything.
    `weights_of`: an earlier layer whose attention, MLPs and norms it computes with; None: its own.
    A recurrence, `other_matrices` and `other_params` are the layer's own in either case.
    `other_matrices`, `other_params`: what few families add to a layer, inside and outside matrices.

    Raises: ValueError for counts below 0.

    >>> layer = Layer((Attention(32, 8, 128),), (MLP(14336),))
    >>> layer.kv_elements
    2048
    >>> layer.replace(window=512, d_ff=8192).mixers[0].window
    512
    """

    mixers: tuple[Mixer, ...] = ()
    mlps: tuple[MLP | Experts, ...] = ()
    norm_params: int = 0
    kv_source: int | None = None
    weights_of: int | None = None
    other_matrices: int = 0
    other_params: int = 0

    def __post_init__(self) -> None:
        _check_counts(self, "norm_params", "other_matrices", "other_params")

    @property
    def attention(self) -> Attention | LatentAttention | None:
        """The attention among the mixers, if there is one."""
        return next((one for one in self.mixers if not isinstance(one, Recurrent)), None)

    @property
    def recurrent(self) -> Recurrent | None:
        """The recurrence among the mixers, if there is one."""
        return next((one for one in self.mixers if isinstance(one, Recurrent)), None)

    @property
    def experts(self) -> Experts | None:
        """The experts among the MLPs, if there are any."""
        return next((one for one in self.mlps if isinstance(one, Experts)), None)

    @property
    def kv_elements(self) -> int:
        """What a token adds to this layer's own cache."""
        if self.kv_source is not None or self.attention is None:
            return 0
        return self.attention.kv_elements

    def kept(self, n_tokens: int) -> int:
        """Return the elements that this layer's own cache holds of so many tokens."""
        if self.kv_source is not None or self.attention is None:
            return 0
        window = self.attention.window
        kept = self.kv_elements * (n_tokens if window is None else min(n_tokens, window))
        if isinstance(self.attention, CompressedAttention) and self.entry_tokens:
            kept += n_tokens // self.entry_tokens * self.attention.entry_elements
        return kept

    @property
    def entry_tokens(self) -> int:
        """The tokens that share one entry of a compressed cache; 0 where none is compressed."""
        if isinstance(self.attention, CompressedAttention):
            return self.attention.tokens_per_entry or 0
        return 0

    @property
    def growth(self) -> float:
        """What a token adds to this layer's own cache in the long run, windows being full."""
        if self.kv_source is not None or self.attention is None:
            return 0
        grows = self.kv_elements if self.attention.window is None else 0
        if isinstance(self.attention, CompressedAttention) and self.entry_tokens:
            return grows + self.attention.entry_elements / self.entry_tokens
        return grows

    def choices(self, d_model: int) -> list[tuple[int, int, int, int]]:
        """Return what a token chooses among: how many, how many it takes, and one's sizes.

        The sizes are the elements of its matrices and of its biases.
        """
        found = [
            (part.n_experts, part.n_active, part.expert_matrices(d_model), part.expert_bias)
            for part in self.mlps
            if isinstance(part, Experts)
        ]
        heads = self.attention
        if isinstance(heads, Attention) and heads.n_head_groups:
            visited = heads.n_heads // heads.n_kv_heads
            found.append((heads.n_head_groups, visited, heads.group_matrices(d_model), 0))
        return found

    def params_by_component(self, d_model: int) -> dict[str, int]:
        """Return the layer's parameters by what they are for."""
        parts = self.mixers + self.mlps
        found = dict.fromkeys(("attention", "recurrence", "mlp", "router", "biases"), 0)
        found["norms"] = self.norm_params + sum(part.norm_params for part in parts)
        found["other"] = self.other_matrices + self.other_params
        for part in parts:
            if isinstance(part, Recurrent):
                found["recurrence"] += part.weights + part.other_params
                continue
            name = "mlp" if isinstance(part, MLP | Experts) else "attention"
            found[name] += part.matrices(d_model)
            found["biases"] += part.bias_params
            if isinstance(part, Experts):
                found["router"] += part.router(d_model)
                found["biases"] += part.n_experts * part.expert_bias
        return found

    @property
    def own(self) -> "Layer":
        """The layer without the weights that it shares with an earlier one."""
        if self.weights_of is None:
            return self
        mixers = tuple(mixer for mixer in self.mixers if isinstance(mixer, Recurrent))
        return dataclasses.replace(self, mixers=mixers, mlps=(), norm_params=0)

    def replace(self, **changes: Any) -> "Layer":
        """Return a copy in which every part that has a field of that name has the new value.

        Raises: ValueError for a name that no part has.
        """
        own = {name: changes[name] for name in changes if name in _names(self)}
        changed, used = dataclasses.replace(self, **own), set(own)
        for kind in ("mixers", "mlps"):
            parts = []
            for part in getattr(changed, kind):
                fit = {name: changes[name] for name in changes if name in _names(part)}
                used |= set(fit)
                parts.append(dataclasses.replace(part, **fit))
            of_kind: dict[str, Any] = {kind: tuple(parts)}
            changed = dataclasses.replace(changed, **of_kind)
        if unknown := set(changes) - used:
            raise ValueError(f"no part of this layer has {', '.join(sorted(unknown))}")
        return changed


def _names(part: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(part)}


def _check_sizes(part: Any, *names: str, optional: bool = False) -> None:
    for name in names:
        value = getattr(part, name)
        if not (optional and value is None):
            check_count(name, value, at_least=1)


def _check_counts(part: Any, *names: str) -> None:
    for name in names:
        check_count(name, getattr(part, name))
