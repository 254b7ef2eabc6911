"""What families of models have in common: attention, MLPs, experts, windows, positions."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from firsttoken.architectures.architecture import Architecture
from firsttoken.architectures.config import Config
from firsttoken.architectures.layers import MLP, Attention, Experts, LatentAttention, Layer

# A row of a family's table says yes, no, or which key of the config says it.
Said = bool | str


def said(c: Config, what: Said) -> bool:
    """Return what a row says, or the key that it names."""
    return c.flag(what) if isinstance(what, str) else what


def uniform(
    c: Config,
    *,
    qkv_bias: Said = False,
    out_bias: Said = False,
    mlp_bias: Said = False,
    head_bias: Said = False,
    learned_positions: bool = False,
    d_ff: int | None = None,
    **fields: Any,
) -> Architecture:
    """Return a model whose layers are alike: what one line of `Architecture` can say.

    `fields` are arguments of `Architecture` that the family always has.
    """
    return Architecture(
        **{
            **top(c),
            "n_layers": c.n_layers,
            "n_heads": c.n_heads,
            "n_kv_heads": c.n_kv_heads,
            "head_dim": c.head_dim,
            "d_ff": c.count("intermediate_size", at_least=1) if d_ff is None else d_ff,
            "qkv_bias": said(c, qkv_bias),
            "out_bias": said(c, out_bias),
            "mlp_bias": said(c, mlp_bias),
            "head_bias": said(c, head_bias),
            "learned_positions": learned_positions,
            **windows(c),
            **fields,
        }
    )


def of_layers(c: Config, layers: Iterable[Layer], **fields: Any) -> Architecture:
    """Return a model of these layers; `fields` as `Architecture.of_layers` takes them."""
    return Architecture.of_layers(**{**top(c), "layers": tuple(layers), **fields})


def top(c: Config) -> dict[str, Any]:
    """Return what lies outside the layers."""
    theta, scaling = rope(c)
    return {
        "name": str(c.get("_name_or_path") or c.type),
        "d_model": c.width,
        "vocab_size": c.count("vocab_size", at_least=1),
        "tied_embeddings": c.flag("tie_word_embeddings"),
        "max_context": c.maybe("max_position_embeddings", at_least=1),
        "rope_theta": theta,
        "rope_scaling": scaling,
    }


def rope(c: Config) -> tuple[float | None, dict[str, Any] | None]:
    """Return the rotary base and its scaling, those of the layers that see everything.

    Where these turn nothing (null), those of the others.
    """
    scaling = dict(c.object("rope_parameters"))
    whole = scaling.get("full_attention")
    if whole is not None and not isinstance(whole, Mapping):
        raise ValueError(f"config: full_attention must be an object, got {whole!r}")
    kinds = {name: kind for name, kind in scaling.items() if isinstance(kind, Mapping)}
    if kinds:
        first = min(kinds, key=lambda name: (name != "full_attention", "sliding" in name))
        scaling = dict(kinds[first])
    scaling |= c.object("rope_scaling")
    theta = scaling.pop("rope_theta", c.get("rope_theta", 10000.0))
    kind = scaling.pop("type", "default")  # the older name of rope_type
    scaling = {"rope_type": kind} | scaling
    return theta, None if scaling["rope_type"] == "default" else scaling


def windows(c: Config, period: int | None = None, key: str = "sliding_window") -> dict[str, Any]:
    """Return the arguments that say which layers have a window.

    Those that `layer_types` names; else the later ones (`max_window_layers`); else all but each
    `period`-th; else all.
    """
    window = c.maybe(key)
    if not window or not c.flag("use_sliding_window", True):
        return {}
    kinds, layers = c.layer_types(), range(c.n_layers)
    if kinds is not None:
        local = [i for i in layers if kinds[i] == "sliding_attention"]
    elif (full_from := c.maybe("max_window_layers")) is not None:
        local = [i for i in layers if i >= full_from]
    elif period := c.maybe("sliding_window_pattern", at_least=1) or period:
        local = [i for i in layers if (i + 1) % period]
    else:
        return {"window": window}
    return {"window": window, "local_layers": tuple(local)} if local else {}


def as_type(
    kind: str, reader: Callable[[Config], Architecture]
) -> Callable[[Config], Architecture]:
    """Return a reader that takes a config for one of another type, with its defaults."""
    return lambda c: reader(Config({**c.given, "model_type": kind}))


def layer_windows(c: Config, period: int | None = None) -> list[int | None]:
    """Return the window of each layer, None where it sees everything; as `windows`."""
    found = windows(c, period)
    local = found.get("local_layers", range(c.n_layers))
    return [found.get("window") if i in set(local) else None for i in range(c.n_layers)]


def which_layers(
    c: Config, key: str, kinds: tuple[str, str], default: Callable[[int], object]
) -> list[bool]:
    """Return of each layer whether the list `key` calls it the second of two `kinds`.

    Without a list: what `default` says of the layer's index.
    """
    named = c.items_of(key)
    if named is None:
        return [bool(default(i)) for i in range(c.n_layers)]
    if len(named) < c.n_layers or not all(kind in kinds for kind in named):
        raise ValueError(
            f"config: {key} must name {c.n_layers} layers, each {' or '.join(kinds)}, got {named!r}"
        )
    return [kind == kinds[1] for kind in named[: c.n_layers]]


def local_windows(c: Config, default: Callable[[int], object]) -> list[int | None]:
    """Return the window of each layer that `layer_types` calls local, or else `default`."""
    local = which_layers(c, "layer_types", ("full_attention", "sliding_attention"), default)
    return [c.count("sliding_window", at_least=1) if one else None for one in local]


def layer_configs(c: Config, changes: Mapping[int, Mapping[str, Any]]) -> list[Config]:
    """Return the config of each layer: with what `per_layer_config` changes in it, or `changes`."""
    said = {str(i): of_layer for i, of_layer in changes.items()}
    if "per_layer_config" in c:
        said = {str(i).lstrip("0") or "0": one for i, one in c.object("per_layer_config").items()}
    unknown = set(said) - {str(i) for i in range(c.n_layers)}
    if unknown or not all(isinstance(one, Mapping) for one in said.values()):
        raise ValueError(
            f"config: per_layer_config must hold an object for layers from 0 to {c.n_layers - 1}, "
            f"got {c.get('per_layer_config')!r}"
        )
    made = {i: Config({**c, **one, "model_type": c.type}) for i, one in said.items()}
    return [made.get(str(i), c) for i in range(c.n_layers)]


def refuse(c: Config, name: str, *allowed: object) -> None:
    """Raise a ValueError where a config asks for what a decoder does not do.

    Raises: ValueError for a value that is neither missing nor false nor `allowed`.
    """
    value = c.get(name)
    if value and value not in allowed:
        expected = " or ".join(("false", *map(str, allowed)))
        raise ValueError(f"config: {name} must be {expected}, got {value!r}")


def attention(
    c: Config,
    *,
    qkv_bias: Said = False,
    out_bias: Said = False,
    qk_norm: int = 0,
    sinks: bool = False,
    **fields: Any,
) -> Attention:
    """Return attention as the usual keys describe it; `qk_norm`: elements of both norms.

    `fields` are fields of `Attention`; they go before what the config says.
    """
    made = Attention(
        **{"n_heads": c.n_heads, "n_kv_heads": c.n_kv_heads, "head_dim": c.head_dim} | fields
    )
    biases = made.bias_params
    if said(c, qkv_bias):
        biases += made.n_heads * made.head_dim
        biases += made.n_kv_heads * made.head_dim if made.kv_matrices > 0 else 0
        biases += made.n_kv_heads * made.value_dim if made.kv_matrices > 1 else 0
    biases += c.width if said(c, out_bias) else 0
    biases += made.n_heads if sinks else 0
    return _with(made, bias_params=biases, norm_params=made.norm_params + qk_norm)


def latent_attention(
    c: Config, *, qkv_bias: Said = False, out_bias: Said = False, **fields: Any
) -> LatentAttention:
    """Return latent attention as DeepSeek's keys describe it; `fields` go before the config."""
    plain, rotary = c.count("qk_nope_head_dim", at_least=1), c.count("qk_rope_head_dim", at_least=1)
    made = LatentAttention(
        **{
            "n_heads": c.n_heads,
            "head_dim": plain + rotary,
            "latent_dim": c.count("kv_lora_rank", at_least=1),
            "rope_head_dim": rotary,
            "v_head_dim": c.count("v_head_dim", at_least=1),
            "q_latent_dim": c.maybe("q_lora_rank", at_least=1),
        }
        | fields
    )
    compressed = made.latent_dim + (made.q_latent_dim or 0)
    biases = made.bias_params + (compressed + made.rope_head_dim if said(c, qkv_bias) else 0)
    biases += c.width if said(c, out_bias) else 0
    return _with(made, bias_params=biases, norm_params=made.norm_params + compressed)


def mlp(c: Config, width: int | None = None, gated: bool = True, bias: Said = False) -> MLP:
    """Return a dense MLP, of `intermediate_size` unless a width is given."""
    width = c.count("intermediate_size", at_least=1) if width is None else width
    biases = (2 if gated else 1) * width + c.width if said(c, bias) else 0
    return MLP(width, gated, biases)


def experts(
    c: Config,
    *,
    n: str = "num_local_experts",
    active: str = "num_experts_per_tok",
    width: str | int = "moe_intermediate_size",
    **fields: Any,
) -> Experts:
    """Return experts; the arguments are keys of the config, `fields` are fields of `Experts`."""
    return Experts(
        **{
            "n_experts": c.count(n, at_least=1),
            "n_active": c.count(active, at_least=1),
            "d_ff": c.count(width, at_least=1) if isinstance(width, str) else width,
        }
        | fields
    )


def layer(
    c: Config,
    mixers: Any,
    mlps: Any,
    n_norms: float = 2,
    norm_bias: bool = False,
    **fields: Any,
) -> Layer:
    """Return a layer with `n_norms` norms of the model's width; a part alone needs no tuple."""
    norms = int(n_norms * c.width) * (2 if norm_bias else 1)
    return Layer(_tuple(mixers), _tuple(mlps), norms, **fields)


def _tuple(parts: Any) -> tuple[Any, ...]:
    if parts is None:
        return ()
    return parts if isinstance(parts, tuple) else (parts,)


def _with(part: Any, **changes: Any) -> Any:
    return dataclasses.replace(part, **changes)
