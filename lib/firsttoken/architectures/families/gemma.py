"""Gemma, from the first, of which all layers are alike, to those with per-layer embeddings."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from firsttoken.architectures.architecture import Architecture
from firsttoken.architectures.config import Config
from firsttoken.architectures.families.common import (
    BIASED,
    Table,
    attention,
    experts,
    layer,
    layer_configs,
    mlp,
    of_layers,
    refuse,
    uniform,
    which_local,
    windows,
)
from firsttoken.architectures.layers import MLP, Experts

_GEMMA4_ROPE = {
    "rope_type": "proportional",
    "rope_theta": 1_000_000.0,
    "partial_rotary_factor": 0.25,
}
_biased = partial(uniform, qkv_bias="attention_bias", out_bias="attention_bias")


def _gemma2(c: Config) -> Architecture:
    return _biased(c, norms_per_layer=4, **windows(c, period=2))


def _gemma3(c: Config) -> Architecture:
    refuse(c, "use_bidirectional_attention")  # an encoder then
    return _biased(c, norms_per_layer=4, qk_norm=True, **windows(c, period=6))


def _gemma3n(c: Config) -> Architecture:
    """Several residual streams, a low-rank path beside attention, and per-layer embeddings."""
    local = which_local(c, lambda i: (i + 1) % 5)
    streams = c.count("altup_num_inputs", at_least=1)
    width = c.count("hidden_size_per_layer_input", at_least=1)
    per_layer, model = _per_layer_embeddings(c, width)
    laurel = 2 * c.width * c.count("laurel_rank", at_least=1)
    altup = streams**2 + streams**3 + c.width * streams
    widths = c.per_layer("intermediate_size", at_least=1)
    layers = [
        layer(
            c,
            _attention(c, c, is_local, source),
            mlp(c, d_ff),
            n_norms=6,
            kv_source=source,
            other_matrices=laurel + altup + per_layer["other_matrices"],
            other_params=c.width + per_layer["other_params"],  # a scale, and a norm
        )
        for is_local, source, d_ff in zip(local, _kv_sources(c, local), widths, strict=True)
    ]
    model["other_matrices"] += 2 * (streams - 1) * c.width**2
    return of_layers(c, layers, **model)


def _gemma4(c: Config) -> Architecture:
    """Layers that see everything have other heads, and some models' layers an MLP and experts."""
    refuse(c, "use_bidirectional_attention", "vision")
    c = Config({**c, "rope_parameters": c.object("rope_parameters") or _GEMMA4_ROPE})
    local = which_local(c, lambda i: (i + 1) % 6)
    local[-1] = False  # the last one always sees everything
    whole = {"head_dim": c.count("global_head_dim", 512, at_least=1)}
    kv_heads = c.maybe("num_global_key_value_heads", at_least=1)
    if kv_heads is not None and c.flag("attention_k_eq_v"):
        whole["num_key_value_heads"] = kv_heads
    own = layer_configs(c, {i: whole for i, is_local in enumerate(local) if not is_local})
    per_layer, model = _per_layer_embeddings(c, c.count("hidden_size_per_layer_input", 0))
    sources = _kv_sources(c, local)
    layers = [
        layer(
            c,
            _attention(c, one, is_local, source, c.flag("attention_k_eq_v") and not is_local),
            _gemma4_mlps(c, source is not None),
            n_norms=7 if c.flag("enable_moe_block") else 4,
            kv_source=source,
            **per_layer,
        )
        for one, is_local, source in zip(own, local, sources, strict=True)
    ]
    return of_layers(c, layers, **model)


def _gemma4_mlps(c: Config, reads_other_cache: bool) -> tuple[MLP | Experts, ...]:
    width = c.count("intermediate_size", at_least=1)
    dense = mlp(c, 2 * width if reads_other_cache and c.flag("use_double_wide_mlp") else width)
    if not c.flag("enable_moe_block"):
        return (dense,)
    n = c.count("num_experts", at_least=1)
    return dense, experts(c, active="top_k_experts", norm_params=c.width, bias_params=n)


def _kv_sources(c: Config, local: Sequence[bool]) -> list[int | None]:
    """Return whose cache each layer reads: the last ones that of the last before of their kind."""
    own = c.n_layers - c.count("num_kv_shared_layers", 0)
    last = {kind: i for i, kind in enumerate(local[: max(own, 0)])}
    if set(local) - set(last):
        raise ValueError(
            f"config: num_kv_shared_layers must leave a layer of each kind that is read, got "
            f"{c.n_layers - own} of {c.n_layers} layers"
        )
    return [None if i < own else last[kind] for i, kind in enumerate(local)]


def _attention(
    c: Config, own: Config, is_local: bool, source: int | None, values_are_keys: bool = False
) -> Any:
    """Return one layer's attention; `own` is what the config says of this layer."""
    stores = source is None
    return attention(
        own,
        **BIASED,
        qk_norm=(2 if stores else 1) * own.head_dim,
        window=c.count("sliding_window", at_least=1) if is_local else None,
        kv_matrices=0 if not stores else 1 if values_are_keys else 2,
    )


def _per_layer_embeddings(c: Config, width: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what an embedding of this width for each layer adds to a layer, and to the model.

    A token looks up its row in a table, and a matrix makes as many numbers of its embedding.
    """
    if not width:
        return {"other_matrices": 0, "other_params": 0}, {"other_matrices": 0}
    rows = c.count("vocab_size_per_layer_input", at_least=1)
    every = c.n_layers * width
    return (
        {"other_matrices": 2 * c.width * width, "other_params": c.width},
        {
            "other_matrices": c.width * every,
            "lookup_params": rows * every,
            "norm_params": c.width + width,
        },
    )


GEMMA: Table = {
    "gemma": _biased,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gemma3n_text": _gemma3n,
    "gemma4_text": _gemma4,
    "gemma4_unified_text": _gemma4,
}
