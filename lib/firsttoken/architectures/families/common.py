"""What families of models have in common: attention, MLPs, experts, windows, positions."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from firsttoken.architectures.architecture import Architecture
from firsttoken.architectures.config import Config
from firsttoken.architectures.layers import MLP, Attention, Experts, LatentAttention, Layer

# A family's table: how the config of each of its types is read.
Reader = Callable[[Config], Architecture]
Table = Mapping[str, Reader]
# Yes, no, or the key of the config that says which.
Flag = bool | str
BIASED: Mapping[str, Any] = {"qkv_bias": "attention_bias", "out_bias": "attention_bias"}


def flag(c: Config, what: Flag) -> bool:
    """Return the answer, or that of the key that it names."""
    return c.flag(what) if isinstance(what, str) else what


def uniform(c: Config, **fields: Any) -> Architecture:
    """Return a model whose layers are alike: what one line of `Architecture` can say.

    `fields` are arguments of `Architecture`; a bias may name the key of the config that says it.
    """
    biases = [name for name in ("qkv_bias", "out_bias", "mlp_bias", "head_bias") if name in fields]
    sizes = {name: getattr(c, name) for name in ("n_layers", "n_heads", "n_kv_heads", "head_dim")}
    if "d_ff" not in fields:
        sizes["d_ff"] = c.count("intermediate_size", at_least=1)
    fields |= {name: flag(c, fields[name]) for name in biases}
    return Architecture(**{**top(c), **sizes, **windows(c), **fields})


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
    """Return the rotary base and its scaling: of full-attention layers, or, if null, of others."""
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


def windows(c: Config, period: int | None = None) -> dict[str, Any]:
    """Return the arguments that say which layers have a window.

    Those that `layer_types` names; else the later ones (`max_window_layers`); else all but each
    `period`-th; else all.
    """
    window = c.maybe("sliding_window")
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


def as_type(kind: str, reader: Reader) -> Reader:
    """Return a reader that takes a config for one of another type, with its defaults."""
    return lambda c: reader(Config({**c.given, "model_type": kind}))


def layer_windows(c: Config) -> list[int | None]:
    """Return the window of each layer, None where it sees everything; as `windows`."""
    found = windows(c)
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
        raise c.wrong(key, f"{' or '.join(kinds)} for each of {c.n_layers} layers")
    return [kind == kinds[1] for kind in named[: c.n_layers]]


def which_local(c: Config, default: Callable[[int], object]) -> list[bool]:
    """Return of each layer whether `layer_types` calls it local, or else `default`."""
    return which_layers(c, "layer_types", ("full_attention", "sliding_attention"), default)


def local_windows(c: Config, default: Callable[[int], object]) -> list[int | None]:
    """Return the window of each local layer, None of the others; as `which_local`."""
    local = which_local(c, default)
    return [c.count("sliding_window", at_least=1) if one else None for one in local]


def layer_configs(c: Config, changes: Mapping[int, Mapping[str, Any]]) -> list[Config]:
    """Return the config of each layer: with what `per_layer_config` changes in it, or `changes`."""
    said = {str(i): of_layer for i, of_layer in changes.items()}
    if "per_layer_config" in c:
        said = {str(i).lstrip("0") or "0": one for i, one in c.object("per_layer_config").items()}
    unknown = set(said) - {str(i) for i in range(c.n_layers)}
    if unknown or not all(isinstance(one, Mapping) for one in said.values()):
        raise c.wrong("per_layer_config", f"an object for layers from 0 to {c.n_layers - 1}")
    made = {i: Config({**c, **one, "model_type": c.type}) for i, one in said.items()}
    return [made.get(str(i), c) for i in range(c.n_layers)]


def sparse_layers(c: Config, n_dense: int = 0) -> list[bool]:
    """Return whether each layer has experts: as `mlp_layer_types` says, or but the first ones."""
    return which_layers(c, "mlp_layer_types", ("dense", "sparse"), lambda i: i >= n_dense)


def refuse(c: Config, name: str, *allowed: object) -> None:
    """Raise a ValueError where a config asks for what a decoder does not do.

    Raises: ValueError for a value that is neither missing nor false nor `allowed`.
    """
    if c.get(name) and c.get(name) not in allowed:
        raise c.wrong(name, " or ".join(("false", *map(str, allowed))))


def attention(
    c: Config,
    *,
    qkv_bias: Flag = False,
    out_bias: Flag = False,
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
    if flag(c, qkv_bias):
        biases += made.n_heads * made.head_dim
        biases += made.n_kv_heads * made.head_dim if made.kv_matrices > 0 else 0
        biases += made.n_kv_heads * made.value_dim if made.kv_matrices > 1 else 0
    biases += c.width if flag(c, out_bias) else 0
    biases += made.n_heads if sinks else 0
    return replace(made, bias_params=biases, norm_params=made.norm_params + qk_norm)


def qk_normed(c: Config, **fields: Any) -> Attention:
    """Return attention in which one norm serves the queries of all heads, and one the keys."""
    return attention(c, qk_norm=2 * c.head_dim, **fields)


def qk_normed_whole(c: Config, **fields: Any) -> Attention:
    """Return attention with a norm over all queries together, and one over all keys."""
    return attention(c, qk_norm=(c.n_heads + c.n_kv_heads) * c.head_dim, **fields)


def gate(c: Config) -> dict[str, Any]:
    """Return the fields of attention whose output is gated, number by number."""
    width = c.n_heads * c.head_dim
    biases = width if c.flag("attention_bias") else 0
    return {"extra_matrices": c.width * width, "bias_params": biases}


def latent_attention(
    c: Config, *, qkv_bias: Flag = False, out_bias: Flag = False, **fields: Any
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
    biases = made.bias_params + (compressed + made.rope_head_dim if flag(c, qkv_bias) else 0)
    biases += c.width if flag(c, out_bias) else 0
    return replace(made, bias_params=biases, norm_params=made.norm_params + compressed)


def mlp(c: Config, width: int | None = None, gated: bool = True, bias: Flag = False) -> MLP:
    """Return a dense MLP, of `intermediate_size` unless a width is given."""
    width = c.count("intermediate_size", at_least=1) if width is None else width
    biases = (2 if gated else 1) * width + c.width if flag(c, bias) else 0
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


def shared_expert(c: Config, **fields: Any) -> Experts:
    """Return experts beside a shared one of `shared_expert_intermediate_size`."""
    return experts(c, shared_d_ff=c.count("shared_expert_intermediate_size"), **fields)


def stack(c: Config, mixers: Any, mlps: Any, n_norms: int = 2, **fields: Any) -> list[Layer]:
    """Return all layers: a list of mixers or of MLPs has one for each, all else is that of all."""
    each = (one if isinstance(one, list) else [one] * c.n_layers for one in (mixers, mlps))
    return [layer(c, mixer, mlp, n_norms, **fields) for mixer, mlp in zip(*each, strict=True)]


def layer(
    c: Config, mixers: Any, mlps: Any, n_norms: int = 2, norm_bias: bool = False, **fields: Any
) -> Layer:
    """Return a layer with `n_norms` norms of the model's width; a part alone needs no tuple."""
    norms = n_norms * c.width * (2 if norm_bias else 1)
    return Layer(_tuple(mixers), _tuple(mlps), norms, **fields)


def _tuple(parts: Any) -> tuple[Any, ...]:
    if parts is None:
        return ()
    return parts if isinstance(parts, tuple) else (parts,)
