"""A model as its layers, and what follows from them: parameters, and what each token caches."""

import dataclasses
import inspect
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from firsttoken.architectures.layers import MLP, Attention, Experts, LatentAttention, Layer
from firsttoken.architectures.uniform import Uniform
from firsttoken.checks import check_count


@dataclass(frozen=True, init=False, repr=False)
class Architecture:
    """A decoder-only language model: its layers, and all that its parameters and cache depend on.

    The positional arguments describe a Llama, whose layers are alike. The keyword arguments add
    what other families have. A model whose layers differ in more than these say is made of layers:
    `Architecture.of_layers`. Either way `layers` is what everything else is computed from.

    Norms and biases: `norms_per_layer` vectors of width D (and one after the last layer), with a
    second vector each where `norm_bias` (LayerNorm); `qk_norm` adds two of width H per layer.
    `qkv_bias`, `out_bias`, `mlp_bias`, `expert_bias` (router included) and `head_bias` say which
    matrices carry a bias; `sink_logits` adds one learned logit per head and layer.

    Positions: layers in `unrotated_layers` (NoPE) turn neither queries nor keys. None means none.

    Windows: a layer in `local_layers` attends to its last `window` tokens. None means all layers.

    Shared caches: layer i reads the keys and values of layer `kv_source[i]`. None: its own.

    Mixture of experts: all layers but the first `n_dense_layers` have `n_experts` of width
    `expert_d_ff`, of which a token visits `n_active_experts`, and `n_shared_experts` that it always
    visits.

    Latent attention (MLA): a layer caches one latent of `latent_dim` and one rotary key of
    `rope_head_dim` per token, for all heads together. `head_dim` is then the size of a query
    (plain and rotary part), `v_head_dim` of a value; `q_latent_dim` compresses the queries too.

    Units:  elements and counts; bytes come in with a dtype (`kv_cache.kv_cache_bytes`).
    Raises: ValueError for sizes that are not positive integers, or that do not fit together, and
            for a size of all layers (`n_heads`, `window`, …) where layers differ in it.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> llama = ARCHITECTURES["Llama-2-7B"]
    >>> llama.n_params, llama.kv_elements_per_token
    (6738415616, 262144)
    >>> llama.replace(n_kv_heads=8).kv_elements_per_token
    65536
    """

    name: str
    layers: tuple[Layer, ...]
    d_model: int
    vocab_size: int
    tied_embeddings: bool
    max_context: int | None
    position_params: int
    norm_params: int
    bias_params: int
    lookup_params: int
    other_matrices: int
    embedding_dim: int | None
    rope_theta: float | None
    rope_scaling: Mapping[str, Any] | None = field(hash=False)
    source: str
    _arguments: Mapping[str, Any] | None = field(compare=False)

    def __init__(
        self,
        name: str,
        n_layers: int,
        d_model: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        d_ff: int,
        vocab_size: int,
        tied_embeddings: bool = False,
        *,
        max_context: int | None = None,
        gated_mlp: bool = True,
        norms_per_layer: int = 2,
        norm_bias: bool = False,
        qk_norm: bool = False,
        qkv_bias: bool = False,
        out_bias: bool = False,
        mlp_bias: bool = False,
        expert_bias: bool = False,
        sink_logits: bool = False,
        head_bias: bool = False,
        learned_positions: bool = False,
        window: int | None = None,
        local_layers: Iterable[int] | None = None,
        kv_source: Iterable[int] | None = None,
        n_experts: int = 0,
        n_active_experts: int = 0,
        n_shared_experts: int = 0,
        expert_d_ff: int | None = None,
        n_dense_layers: int = 0,
        latent_dim: int | None = None,
        rope_head_dim: int | None = None,
        v_head_dim: int | None = None,
        q_latent_dim: int | None = None,
        rope_theta: float | None = None,
        rope_scaling: Mapping[str, Any] | None = None,
        unrotated_layers: Iterable[int] | None = None,
        source: str = "",
    ):
        given = {name: value for name, value in locals().items() if name in _ARGUMENTS}
        uniform = Uniform(**{f.name: given[f.name] for f in dataclasses.fields(Uniform)})
        if learned_positions and max_context is None:
            raise ValueError(
                "learned_positions needs max_context, the number of positions; got None"
            )
        self._set(
            name,
            uniform.layers(),
            d_model,
            vocab_size,
            tied_embeddings,
            max_context=max_context,
            position_params=max_context * d_model if learned_positions and max_context else 0,
            norm_params=d_model * (2 if norm_bias else 1),
            bias_params=vocab_size if head_bias else 0,
            rope_theta=rope_theta,
            rope_scaling=rope_scaling,
            source=source,
        )
        given |= {name: getattr(uniform, name) for name in ("local_layers", "kv_source")}
        given["unrotated_layers"] = uniform.unrotated_layers
        object.__setattr__(self, "_arguments", given)

    @classmethod
    def of_layers(
        cls,
        name: str,
        layers: Iterable[Layer],
        d_model: int,
        vocab_size: int,
        tied_embeddings: bool = False,
        **fields: Any,
    ) -> "Architecture":
        """Return a model of these layers, first to last.

        Keyword arguments: `max_context`, `rope_theta`, `rope_scaling` and `source` as above;
        `norm_params` of the last norm (None: one vector of width D); `position_params` and
        `lookup_params` of tables of which a token looks up rows; `bias_params` of the output;
        `other_matrices` outside the layers; `embedding_dim` of both tables (None: D).

        Raises: ValueError for sizes that are no counts, and caches that cannot be read.

        >>> from firsttoken.architectures.layers import MLP, Attention, Layer
        >>> near, far = (Layer((Attention(8, 2, 64, window=w),), (MLP(2048),)) for w in (512, None))
        >>> Architecture.of_layers("toy", [near, far], 512, 1000).layer_windows
        (512, None)
        """
        made = cls.__new__(cls)
        made._set(name, tuple(layers), d_model, vocab_size, tied_embeddings, **fields)
        return made

    def _set(
        self,
        name: str,
        layers: tuple[Layer, ...],
        d_model: int,
        vocab_size: int,
        tied_embeddings: bool,
        max_context: int | None = None,
        position_params: int = 0,
        norm_params: int | None = None,
        bias_params: int = 0,
        lookup_params: int = 0,
        other_matrices: int = 0,
        embedding_dim: int | None = None,
        rope_theta: float | None = None,
        rope_scaling: Mapping[str, Any] | None = None,
        source: str = "",
    ) -> None:
        check_count("d_model", d_model, at_least=1)
        check_count("vocab_size", vocab_size, at_least=1)
        check_count("layers", len(layers), at_least=1)
        if max_context is not None:
            check_count("max_context", max_context, at_least=1)
        if embedding_dim is not None:
            check_count("embedding_dim", embedding_dim, at_least=1)
        norm_params = d_model if norm_params is None else norm_params
        given = {name: value for name, value in locals().items() if name not in ("self", "_")}
        for field_name, value in (given | {"_arguments": None}).items():
            object.__setattr__(self, field_name, value)
        _check_sources(layers)

    def __repr__(self) -> str:
        return f"Architecture({self.name!r}, {self.n_layers} layers, {self.n_params:,} parameters)"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show a cell's last value, and a drawn example of a test, in one line, too."""
        printer.text(repr(self))

    @property
    def n_layers(self) -> int:
        """The number of layers."""
        return len(self.layers)

    @property
    def table_params(self) -> int:
        """The elements of the input embedding, and of the output's matrix, which may be one."""
        return self.vocab_size * (self.embedding_dim or self.d_model)

    @cached_property
    def kinds(self) -> dict[Layer, int]:
        """Each different layer, and how many there are of it.

        >>> from firsttoken.architectures import ARCHITECTURES
        >>> list(ARCHITECTURES["Gemma-3-1B"].kinds.values())  # with a window, and without
        [22, 4]
        """
        return Counter(self.layers)

    @cached_property
    def n_params(self) -> int:
        """Every trained number: embeddings, matrices, norms, biases; a tied table counts once.

        Holds:  for the model itself. A release that adds a module which guesses ahead has more
                (DeepSeek-V3, whose 671 billion are without it), and so has a padded vocabulary.
        """
        return sum(self.params_by_component.values())

    @cached_property
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
        looked_up = self.position_params + self.lookup_params
        if not self.tied_embeddings:
            looked_up += self.table_params
        return self.n_params + self._n_params_again - looked_up - int(self._n_unvisited(1))

    @cached_property
    def n_matmul_params(self) -> int:
        """The part of `n_active_params` that sits in matrices: two FLOPs per token each.

        Holds:  for short texts. The products of attention with its cache come on top, and are as
                many FLOPs again at 25,000 attended tokens in Llama-2-7B (`roofline.model_cost`).
        """
        in_layers = 0
        for layer, count in self.kinds.items():
            one = layer.other_matrices
            one += sum(part.matrices(self.d_model) for part in layer.mixers + layer.mlps)
            one += sum(x.router(self.d_model) for x in layer.mlps if isinstance(x, Experts))
            for every, active, matrices, _ in layer.choices(self.d_model):
                one -= (every - active) * matrices
            in_layers += count * one
        return in_layers + self.other_matrices + self.table_params

    def n_touched_params(self, n_tokens: int) -> int | float:
        """Return how many parameters a pass over `n_tokens` tokens has to read, on average.

        All of them without experts, and what several layers share once for each. With experts, one
        that no token visits stays unread: under uniform and independent routing,
        E (1 - (1 - k/E)^n) of E experts are visited.

        Holds:  as an upper bound where some experts are preferred: with a preference as 1/rank, 105
                of 256 experts are visited in place of 163 (8 a token, 32 tokens).

        >>> from firsttoken.architectures import ARCHITECTURES
        >>> mixtral = ARCHITECTURES["Mixtral-8x7B"]
        >>> [round(mixtral.n_touched_params(n) / mixtral.n_params, 2) for n in (1, 8, 64)]
        [0.28, 0.9, 1.0]
        """
        every = self.n_params + self._n_params_again
        return every - self._n_unvisited(n_tokens) if self.n_moe_layers else every

    @cached_property
    def params_by_component(self) -> dict[str, int]:
        """Parameters by what they are for; the values sum to `n_params`.

        A model with recurrent layers has "recurrence", one with parts of its own "other".

        >>> from firsttoken.architectures import ARCHITECTURES
        >>> ARCHITECTURES["GPT-2"].params_by_component["positions"]
        786432
        """
        d = self.d_model
        found = dict.fromkeys(
            ("embedding", "positions", "attention", "mlp", "router", "norms", "biases", "output"), 0
        )
        found["embedding"] = self.table_params + self.lookup_params
        found["positions"] = self.position_params
        found["norms"], found["biases"] = self.norm_params, self.bias_params
        found["output"] = 0 if self.tied_embeddings else self.table_params
        extra = {"recurrence": 0, "other": self.other_matrices}
        for layer, count in self.kinds.items():
            for name, one in layer.own.params_by_component(d).items():
                where = extra if name in extra else found
                where[name] += count * one
        return found | {name: total for name, total in extra.items() if total}

    @property
    def kv_elements_per_token(self) -> int:
        """Elements that one more token adds to the cache, summed over the layers that store.

        Windowed layers count in full: they add as much, but stop growing at `window` tokens.

        >>> from firsttoken.architectures import ARCHITECTURES
        >>> ARCHITECTURES["DeepSeek-V2"].kv_elements_per_token  # 60 layers of 512 + 64
        34560
        """
        return sum(layer.kv_elements for layer in self.layers)

    @cached_property
    def kv_elements_per_layer(self) -> int:
        """Elements that one layer stores per token: keys and values, or the latent."""
        return self._alike("kv_elements", (mixer.kv_elements for mixer in self._attentions))

    @cached_property
    def kv_layers(self) -> tuple[int, ...]:
        """The layers that store keys and values of their own."""
        return tuple(i for i, layer in enumerate(self.layers) if layer.kv_elements)

    @cached_property
    def kv_source(self) -> tuple[int, ...] | None:
        """The layer whose cache each layer reads; None where each has its own."""
        if all(layer.kv_source is None for layer in self.layers):
            return None
        return tuple(
            i if layer.kv_source is None else layer.kv_source for i, layer in enumerate(self.layers)
        )

    @cached_property
    def layer_windows(self) -> tuple[int | None, ...]:
        """The attention window of each layer; None where it sees the whole context.

        A layer without attention has none to see: it counts as one that sees all.
        """
        return tuple(_window(layer) for layer in self.layers)

    def replace(self, **changes: Any) -> "Architecture":
        """Return a copy with some arguments changed, and validated again.

        In a model of layers that differ, a change of a part's field (`window`, `n_kv_heads`,
        `d_ff`, …) is made in each layer that has it.

        The name stays unless it is changed too; a source no longer vouches for the copy.

        >>> from firsttoken.architectures import ARCHITECTURES
        >>> ARCHITECTURES["Llama-2-13B"].replace(n_kv_heads=8).n_params
        11338142720
        """
        if self._arguments is not None:
            return Architecture(**{**self._arguments, "source": "", **changes})
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}
        del own["_arguments"]
        here = {name: value for name, value in changes.items() if name in own}
        inside = {name: value for name, value in changes.items() if name not in own}
        if inside:
            here["layers"] = _replaced(own["layers"], inside)
        return Architecture.of_layers(**{**own, "source": "", **here})

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that make this model again.

        Raises: ValueError where it was made of layers.
        """
        if self._arguments is None:
            raise ValueError(f"{self.name} is made of layers that differ: see layers")
        return dict(self._arguments)

    # What all layers have in common, for those who know that they are alike.

    @cached_property
    def n_heads(self) -> int:
        """The query heads of a layer with attention."""
        return self._alike("n_heads", (mixer.n_heads for mixer in self._attentions))

    @cached_property
    def n_kv_heads(self) -> int:
        """The heads of keys and values; those of queries where attention is latent."""
        return self._alike(
            "n_kv_heads",
            (getattr(mixer, "n_kv_heads", mixer.n_heads) for mixer in self._attentions),
        )

    @cached_property
    def head_dim(self) -> int:
        """The size of a query and of a key."""
        return self._alike("head_dim", (mixer.head_dim for mixer in self._attentions))

    @cached_property
    def d_ff(self) -> int:
        """The width of the dense MLPs; without any, what the arguments said."""
        if self._arguments is not None:
            return int(self._arguments["d_ff"])
        return self._alike("d_ff", (mlp.d_ff for mlp in self._mlps if isinstance(mlp, MLP)))

    @cached_property
    def gated_mlp(self) -> bool:
        """Whether MLPs have three matrices, not two."""
        return self._alike("gated_mlp", (mlp.gated for mlp in self._mlps))

    @cached_property
    def window(self) -> int | None:
        """The window of the layers that have one."""
        if self._arguments is not None:
            return self._arguments["window"]
        windows = {window for window in self.layer_windows if window is not None}
        return self._alike("window", windows) if windows else None

    @cached_property
    def local_layers(self) -> tuple[int, ...] | None:
        """The layers that have a window; None where all have one, or none has."""
        if self._arguments is not None:
            return self._arguments["local_layers"]
        local = tuple(i for i, window in enumerate(self.layer_windows) if window is not None)
        return local if 0 < len(local) < self.n_layers else None

    @cached_property
    def unrotated_layers(self) -> tuple[int, ...]:
        """The layers whose attention turns neither queries nor keys."""
        return tuple(
            i for i, layer in enumerate(self.layers)
            if layer.attention is not None and not layer.attention.rotated
        )  # fmt: skip

    @cached_property
    def qk_norm(self) -> bool:
        """Whether queries and keys have norms of their own."""
        return bool(self._argument("qk_norm"))

    @cached_property
    def qkv_bias(self) -> bool:
        """Whether the matrices of queries, keys and values carry a bias."""
        return bool(self._argument("qkv_bias"))

    @cached_property
    def out_bias(self) -> bool:
        """Whether the matrix behind the heads carries a bias."""
        return bool(self._argument("out_bias"))

    @cached_property
    def latent_dim(self) -> int | None:
        """The width of the latent; None where layers keep keys and values."""
        return self._latent("latent_dim")

    @cached_property
    def rope_head_dim(self) -> int | None:
        """The width of the rotary key beside a latent."""
        return self._latent("rope_head_dim")

    @cached_property
    def v_head_dim(self) -> int | None:
        """The size of a value made from a latent."""
        return self._latent("v_head_dim")

    @cached_property
    def q_latent_dim(self) -> int | None:
        """The width to which latent attention compresses the queries."""
        return self._latent("q_latent_dim")

    @property
    def latent_sizes(self) -> tuple[int, int, int] | None:
        """Sizes of the latent, its rotary key and a value, which come together or not at all."""
        if self.latent_dim is None or self.rope_head_dim is None or self.v_head_dim is None:
            return None
        return self.latent_dim, self.rope_head_dim, self.v_head_dim

    @cached_property
    def n_experts(self) -> int:
        """The experts of a layer that has some; 0 where none has."""
        return self._of_experts("n_experts")

    @cached_property
    def n_active_experts(self) -> int:
        """The experts that a token visits in a layer."""
        return self._of_experts("n_active")

    @cached_property
    def expert_d_ff(self) -> int | None:
        """The width of an expert."""
        return self._of_experts("d_ff") or None

    @cached_property
    def n_moe_layers(self) -> int:
        """How many layers have experts."""
        return sum(layer.experts is not None for layer in self.layers)

    @cached_property
    def n_dense_layers(self) -> int:
        """How many layers have none, in a model with experts."""
        return self.n_layers - self.n_moe_layers if self.n_moe_layers else 0

    @property
    def _attentions(self) -> list[Attention | LatentAttention]:
        return [layer.attention for layer in self.layers if layer.attention is not None]

    @property
    def _mlps(self) -> list[MLP | Experts]:
        return [mlp for layer in self.layers for mlp in layer.mlps]

    @cached_property
    def _n_params_again(self) -> int:
        """The parameters of earlier layers that later ones compute with once more."""
        return sum(
            sum(count * n for n in layer.params_by_component(self.d_model).values())
            - sum(count * n for n in layer.own.params_by_component(self.d_model).values())
            for layer, count in self.kinds.items()
        )

    def _n_unvisited(self, n_tokens: int) -> int | float:
        """Return the parameters of experts that a pass is not expected to visit."""
        total: int | float = 0
        for layer, count in self.kinds.items():
            if layer.weights_of is None:
                for every, active, matrices, biases in layer.choices(self.d_model):
                    unvisited: int | float = every - active
                    if n_tokens != 1:
                        unvisited = every * (1 - active / every) ** n_tokens
                    total += count * unvisited * (matrices + biases)
        return total

    def _alike(self, what: str, values: Iterable[Any]) -> Any:
        found = set(values)
        if len(found) == 1:
            return found.pop()
        if not found:
            raise ValueError(f"{self.name} has no layer with {what}")
        raise ValueError(
            f"{self.name}: layers differ in {what} ({', '.join(map(str, sorted(found)))}); "
            "read it of each of layers"
        )

    def _argument(self, name: str) -> Any:
        return None if self._arguments is None else self._arguments[name]

    def _latent(self, name: str) -> int | None:
        latents = [m for m in self._attentions if isinstance(m, LatentAttention)]
        if not latents:
            return None
        return self._alike(name, (getattr(mixer, name, None) for mixer in self._attentions))

    def _of_experts(self, name: str) -> int:
        experts = [layer.experts for layer in self.layers if layer.experts is not None]
        return self._alike(name, (getattr(e, name) for e in experts)) if experts else 0


_ARGUMENTS = tuple(inspect.signature(Architecture).parameters)


def _window(layer: Layer) -> int | None:
    return None if layer.attention is None else layer.attention.window


def _check_sources(layers: tuple[Layer, ...]) -> None:
    for index, layer in enumerate(layers):
        source = layer.kv_source
        if source is None:
            continue
        if not 0 <= source < index or layers[source].kv_source is not None:
            raise ValueError(
                f"kv_source[{index}] is {source}: expected {index} itself or an earlier layer "
                "that stores its own"
            )
        if _window(layer) != _window(layers[source]):
            raise ValueError(
                f"kv_source[{index}] is {source}, but their windows differ: "
                f"{_window(layer)} and {_window(layers[source])}"
            )


def _replaced(layers: tuple[Layer, ...], changes: Mapping[str, Any]) -> tuple[Layer, ...]:
    """Return layers in which each part that has a field has its new value."""
    made, used = [], set()
    for layer in layers:
        fit = {}
        for name, value in changes.items():
            try:
                layer.replace(**{name: value})
            except ValueError as error:
                if "no part of this layer" not in str(error):
                    raise
            else:
                fit[name] = value
        used |= set(fit)
        made.append(layer.replace(**fit))
    if unknown := set(changes) - used:
        raise ValueError(f"no layer has {', '.join(sorted(unknown))}")
    return tuple(made)
