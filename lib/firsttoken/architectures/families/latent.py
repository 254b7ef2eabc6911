"""Families with latent attention, DeepSeek's and those that follow it; and DeepSeek-V4."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from firsttoken.architectures.architecture import Architecture
from firsttoken.architectures.config import MOST_LAYERS, Config
from firsttoken.architectures.families.common import (
    BIASED,
    Flag,
    Table,
    experts,
    flag,
    latent_attention,
    layer,
    layer_configs,
    mlp,
    of_layers,
    stack,
    which_layers,
)
from firsttoken.architectures.layers import CompressedAttention, Experts, Layer

_LOCAL, _FULL, _INDEXED = "sliding_attention", "full_attention", "indexed_attention"
_SPARSE, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"


def _dense(c: Config, *, bias: Flag = False) -> Architecture:
    return of_layers(c, stack(c, latent_attention(c, **BIASED), mlp(c, bias=bias)))


def _minicpm3(c: Config) -> Architecture:
    value_dim = c.count("v_head_dim", c.width // c.n_heads, at_least=1)
    return _dense(Config({**c, "v_head_dim": value_dim}), bias="mlp_bias")


def _deepseek(c: Config, **fields: Any) -> Architecture:
    return of_layers(c, _layers(c, latent_attention(c, **BIASED), **fields))


def _axk1(c: Config) -> Architecture:
    """DeepSeek's, with one more norm behind the experts."""
    return _deepseek(c, first_dense=1, norm_params=c.width)


def _indexed(c: Config) -> Architecture:
    """An index chooses what a layer attends to: its own, or that of the last layer with one."""
    pattern, kinds = c.get("index_topk_pattern"), {"F": "full", "S": "shared"}
    if isinstance(pattern, Sequence) and c.get("indexer_types") is None:
        c = Config({**c, "indexer_types": [kinds.get(str(one), one) for one in pattern]})
    step = max(1, c.count("index_topk_freq", 1))
    offset = c.count("index_skip_topk_offset", 2)
    indices = _indices(c, lambda i: max(i - offset + 1, 0) % step)
    return of_layers(c, _layers(c, [latent_attention(c, **BIASED, **one) for one in indices]))


def _axk2(c: Config) -> Architecture:
    """An index; a gate on what attention finds, made of the queries' latent; gates on norms."""
    mixer = latent_attention(c, **BIASED)
    heads = c.n_heads * (mixer.head_dim + 2 * mixer.v_head_dim)  # from a latent twice as wide
    gate = c.count("q_lora_rank", at_least=1) * heads
    mixer = latent_attention(c, **BIASED, **_plus(_index(c), extra_matrices=gate))
    of_norm = 2 * c.width * c.count("gated_norm_rank", at_least=1)
    layers = _layers(c, mixer, 1, of_layer={"other_matrices": of_norm}, shared_matrices=of_norm)
    return of_layers(c, layers)


def _hy_v4(c: Config) -> Architecture:
    """Four layers share an index; gates, sinks, and several residual streams."""
    gate = c.width * c.n_heads * c.count("v_head_dim", at_least=1)
    mixers = [
        latent_attention(c, **BIASED, **_plus(index, extra_matrices=gate), bias_params=c.n_heads)
        for index in _indices(c, lambda i: i and (i - 1) % 4)
    ]
    streams = c.count("hc_mult", at_least=1)
    layers = _layers(c, mixers, first_dense=1, of_layer=_connections(c, 2 * streams, n_scales=2))
    return of_layers(c, layers, **_last_connection(c))


def _dots3_note(c: Config) -> Architecture:
    """A release has the text decoder's keys at the top."""
    return _dots3(Config({**(c.object("text_config") or c.given), "model_type": "dots3_note_text"}))


def _dots3(c: Config) -> Architecture:
    """Most layers have a window, and heads and latents of other sizes; the others an index."""
    kinds = _dots3_kinds(c)
    window = c.count("sliding_window", c.count("sliding_window_size", 512), at_least=1)
    own = layer_configs(c, {i: _dots3_local(c) for i, kind in enumerate(kinds) if kind == _LOCAL})
    mixers = []
    for one, kind in zip(own, kinds, strict=True):
        fields = _plus(
            _index(one) if kind == _INDEXED else {},
            extra_matrices=c.width * one.n_heads,  # a gate for each head
            norm_params=one.count("qk_rope_head_dim", at_least=1),
        )
        mixers.append(
            latent_attention(one, **BIASED, **fields, window=window if kind == _LOCAL else None)
        )
    shared = c.count("shared_experts_intermediate_size", at_least=1)
    shared = c.count("moe_shared_expert_intermediate_size", shared, at_least=1)
    shared *= c.count("n_shared_experts", at_least=1)
    return of_layers(c, _layers(c, mixers, first_dense=1, shared_d_ff=shared))


def _dots3_kinds(c: Config) -> list[str]:
    """Return the kind of each layer; older configs call those with an index full, too."""
    windowed = c.flag("use_sliding_window", True)
    kinds = c.layer_types() or [
        _LOCAL if windowed and i > 1 and i % 4 != 1 else _INDEXED for i in range(c.n_layers)
    ]
    if not set(kinds) <= {_LOCAL, _FULL, _INDEXED}:
        raise c.wrong("layer_types", f"{_LOCAL}, {_FULL} or {_INDEXED}")
    indexed = c.get("use_dsa", None if "per_layer_config" in c else True)
    if indexed is None:
        return kinds
    return [_LOCAL if kind == _LOCAL else _INDEXED if indexed else _FULL for kind in kinds]


def _dots3_local(c: Config) -> dict[str, Any]:
    """Return what is different in the layers with a window."""
    sizes = {
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "q_lora_rank": 1024,
        "kv_lora_rank": 1024,
        "head_dim": 256,
        "qk_nope_head_dim": 192,
        "v_head_dim": 128,
    }
    found = {name: c.count(f"swa_{name}", size, at_least=1) for name, size in sizes.items()}
    rotary = found["head_dim"] - found["qk_nope_head_dim"]
    return found | {"qk_rope_head_dim": c.count("swa_qk_rope_head_dim", rotary)}


def _longcat(c: Config) -> Architecture:
    """Each layer is two of attention and a dense MLP; experts stand beside the first MLP.

    A token may choose experts without weights, too: it visits `n_active` of the others at most.
    """
    mixer = latent_attention(c, **BIASED)
    if c.count("qk_head_dim", mixer.head_dim) != mixer.head_dim:
        raise c.wrong("qk_head_dim", f"the sum of its parts, {mixer.head_dim}")
    n = c.count("n_routed_experts", at_least=1)
    choices = n + c.count("zero_expert_num", 0)
    beside = experts(
        c,
        n_active=min(c.count("moe_topk", at_least=1), n),
        router_matrix=choices * c.width,
        bias_params=choices if c.flag("router_bias") else 0,
    )
    if c.count("num_layers", at_least=1) > MOST_LAYERS:
        raise c.wrong("num_layers", f"at most {MOST_LAYERS:,}")
    pair = [layer(c, mixer, (mlp(c), beside)), layer(c, mixer, mlp(c))]
    return of_layers(c, pair * c.count("num_layers"))


def _deepseek_v4(c: Config) -> Architecture:
    """One key for all heads, the value, too; of what lies behind a window a summary is kept."""
    rope = c.object("rope_parameters")
    c = Config({**c, "rope_parameters": rope.get("compress", rope)})
    streams = c.count("hc_mult", at_least=1)
    connections = _connections(c, (2 + streams) * streams, n_scales=3)
    one_shared = Config({**c, "n_shared_experts": 1})  # whatever the config says
    moe = _experts(one_shared, "mlp_bias", width="intermediate_size")
    layers = stack(c, [_compressed(c, kind) for kind in _compressions(c)], moe, **connections)
    theta = c.get("compress_rope_theta")
    return of_layers(c, layers, rope_theta=theta, **_last_connection(c))


def _compressions(c: Config) -> list[str]:
    """Return the kind of each layer's attention, which older configs name by a ratio."""
    ratios = c.items_of("compress_ratios")
    if c.get("layer_types") is None and ratios is not None:
        named = {"0": _LOCAL, "4": _SPARSE, "128": _HEAVY}
        c = Config({**c, "layer_types": [named.get(str(one), one) for one in ratios]})
    kinds = c.layer_types() or [_SPARSE if i > 1 and i % 2 else _HEAVY for i in range(c.n_layers)]
    if not set(kinds) <= {_LOCAL, _SPARSE, _HEAVY}:
        raise c.wrong("layer_types", f"{_LOCAL}, {_SPARSE} or {_HEAVY}")
    return kinds


def _compressed(c: Config, kind: str) -> CompressedAttention:
    """Return attention with a window, and, but for one kind, with entries for several tokens."""
    sparse = kind == _SPARSE
    dim, queries = c.head_dim, c.count("q_lora_rank", at_least=1)
    index_dim = c.count("index_head_dim", at_least=1) if sparse else 0
    index_heads = c.count("index_n_heads", at_least=1) if sparse else 0
    rates = Config({_SPARSE: 4, _HEAVY: 128, **c.object("compress_rates")})
    older = c.maybe("compress_rate_csa" if sparse else "compress_rate_hca", at_least=1)
    rate = None if kind == _LOCAL else older or rates.count(kind, at_least=1)
    entry = 0 if rate is None else dim + index_dim
    series = 2 * entry if sparse else entry  # entries that overlap are made of two series
    return CompressedAttention(
        c.n_heads,
        1,
        dim,
        window=c.count("sliding_window", at_least=1),
        top_k=c.count("index_topk", at_least=1) if sparse else None,
        index_dim=index_dim,
        index_heads=index_heads,
        extra_matrices=2 * c.width * series + index_heads * (queries * index_dim + c.width),
        norm_params=queries + dim + entry,
        bias_params=c.n_heads + (rate or 0) * series,
        q_latent_dim=queries,
        out_latent_dim=c.count("o_lora_rank", at_least=1),
        out_groups=c.count("o_groups", at_least=1),
        tokens_per_entry=rate,
    )


def _layers(
    c: Config,
    mixers: Any,
    first_dense: int = 0,
    bias: Flag = False,
    of_layer: Mapping[str, Any] = MappingProxyType({}),
    **of_experts: Any,
) -> list[Layer]:
    """Return layers of these mixers (one for all, or a list), the first MLPs dense, then experts.

    `of_layer` and `of_experts` are fields of `Layer` and `Experts`.
    """
    first = c.count("first_k_dense_replace", first_dense)
    every = c.per_layer("moe_layer_freq", 1)  # or for each layer 1, where it has experts
    sparse = which_layers(
        c,
        "mlp_layer_types",
        ("dense", "sparse"),
        lambda i: i >= first and every[i] and i % every[i] == 0,
    )
    mlps = [_experts(c, bias, **of_experts) if one else mlp(c, bias=bias) for one in sparse]
    return stack(c, mixers, mlps, **of_layer)


def _experts(
    c: Config, bias: Flag = False, *, width: str = "moe_intermediate_size", **fields: Any
) -> Experts:
    """Return experts, and beside them shared ones of the same width; the latter may have biases."""
    shared = c.count("n_shared_experts", 0) * c.count(width, at_least=1)
    biases = 2 * shared + c.width if shared and flag(c, bias) else 0
    return experts(c, width=width, **{"shared_d_ff": shared, "bias_params": biases} | fields)


def _indices(c: Config, shares: Callable[[int], object]) -> list[dict[str, Any]]:
    """Return the index of each layer; of those that share one, that they attend to as few."""
    own = _index(c)
    shared = which_layers(c, "indexer_types", ("full", "shared"), shares)
    return [{"top_k": own["top_k"]} if one else own for one in shared]


def _index(c: Config) -> dict[str, Any]:
    """Return the fields that say that an index chooses what a layer attends to.

    It makes one key of a token, several queries of the queries' latent, and weights of the heads.
    """
    heads, dim = c.count("index_n_heads", at_least=1), c.count("index_head_dim", at_least=1)
    queries = c.count("q_lora_rank", at_least=1) * heads * dim
    return {
        "top_k": c.count("index_topk", at_least=1),
        "index_dim": dim,
        "index_heads": heads,
        "extra_matrices": queries + c.width * (dim + heads),
        "norm_params": 2 * dim,
    }


def _connections(c: Config, n_weights: int, n_scales: int) -> dict[str, Any]:
    """Return what a layer has to mix residual streams before and after its two parts."""
    width = c.count("hc_mult", at_least=1) * c.width
    return {"other_matrices": 2 * n_weights * width, "other_params": 2 * (n_weights + n_scales)}


def _last_connection(c: Config) -> dict[str, Any]:
    """Return what a model has to make one residual stream of all."""
    streams = c.count("hc_mult", at_least=1)
    return {"other_matrices": streams**2 * c.width, "bias_params": streams + 1}


def _plus(fields: Mapping[str, Any], **more: int) -> dict[str, Any]:
    """Return the fields with more of some."""
    return {**fields, **{name: fields.get(name, 0) + n for name, n in more.items()}}


LATENT: Table = {
    "deepseek_v2": partial(_deepseek, bias="mlp_bias"),
    "deepseek_v3": _deepseek,
    "deepseek_v32": _indexed,
    "deepseek_v4": _deepseek_v4,
    "glm4_moe_lite": partial(_deepseek, first_dense=1),
    "glm_moe_dsa": _indexed,
    "longcat_flash": _longcat,
    "minicpm3": _minicpm3,
    "youtu": _dense,
    "axk1": _axk1,
    "axk2": _axk2,
    "dots3_note": _dots3_note,
    "dots3_note_text": _dots3,
    "hy_v4": _hy_v4,
}
