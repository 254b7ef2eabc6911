"""Families before Llama, and in their manner: LayerNorm, biases, MLPs of two matrices.

Their positions are learned, sinusoids, ALiBi's slopes (neither has weights) or rotary.
"""

import dataclasses
from functools import partial
from typing import Any

from firsttoken.architectures.architecture import Architecture
from firsttoken.architectures.config import Config
from firsttoken.architectures.families.common import (
    BIASED,
    Flag,
    Table,
    as_type,
    attention,
    mlp,
    of_layers,
    refuse,
    stack,
    uniform,
    which_local,
)

# What these families have in common, as arguments of `uniform`.
_BIASES = dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), True)
_CLASSIC: dict[str, Any] = {**_BIASES, "gated_mlp": False, "norm_bias": True}


def _heads(c: Config) -> dict[str, Any]:
    """Return sizes of heads that share the width among them, each with a key and value of its own.

    Raises: ValueError where they cannot.
    """
    if c.width % c.n_heads:
        raise c.wrong("hidden_size", f"a multiple of num_attention_heads = {c.n_heads}")
    return {"n_kv_heads": c.n_heads, "head_dim": c.width // c.n_heads}


def _classic(c: Config, **fields: Any) -> Architecture:
    return uniform(c, **{**_CLASSIC, **_heads(c), **fields})


def _classic_layers(
    c: Config, width: int, mixers: Any = None, bias: Flag = True, n_norms: int = 2, **fields: Any
) -> Architecture:
    """Return a model as `_classic` makes it, of which more can be changed."""
    mixers = mixers or attention(c, qkv_bias=bias, out_bias=bias, **_heads(c))
    dense = mlp(c, width, gated=False, bias=bias)
    layers = stack(c, mixers, dense, n_norms, norm_bias=True)
    return of_layers(c, layers, **{"norm_params": 2 * c.width, **fields})


def _positions(c: Config, more: int = 0) -> int:
    return (c.count("max_position_embeddings", at_least=1) + more) * c.width


def _gpt1(c: Config) -> Architecture:
    """Norms stand behind the parts of a layer, so there is none after the last layer."""
    return _classic_layers(
        c, 4 * c.width, norm_params=0, position_params=_positions(c), rope_theta=None
    )


def _gpt2(c: Config, **fields: Any) -> Architecture:
    refuse(c, "add_cross_attention")
    inner = c.count("n_inner", 4 * c.width, at_least=1)
    return _classic(c, learned_positions=True, d_ff=inner, rope_theta=None, **fields)


def _gpt_bigcode(c: Config) -> Architecture:
    return _gpt2(c, n_kv_heads=1 if c.flag("multi_query") else c.n_heads)


def _gpt_neo(c: Config) -> Architecture:
    """Each second layer has a window, unless it says otherwise."""
    pattern = c.items_of("attention_types")  # [[["global", "local"], 12]]: 12 times these two
    local: list[int] = [i % 2 for i in range(c.n_layers)]
    if pattern is not None:
        most = c.n_layers + 1
        try:
            kinds = [kind for some, times in pattern for kind in list(some) * min(times, most)]
            local = [("global", "local").index(kind) for kind in kinds]
        except (TypeError, ValueError):
            local = []
    if len(local) != c.n_layers:
        raise ValueError(
            f"config: attention_types must name {c.n_layers} layers global or local, as "
            f"[[names, times], …], got {pattern!r}"
        )
    return _classic(
        c,
        qkv_bias=False,
        learned_positions=True,
        d_ff=c.count("intermediate_size", 4 * c.width, at_least=1),
        window=c.count("window_size", at_least=1),
        local_layers=tuple(i for i, one in enumerate(local) if one),
        rope_theta=None,
    )


def _gpt_neox_japanese(c: Config) -> Architecture:
    """The last layer alone has a bias."""
    width = c.width * c.count("intermediate_multiple_size", at_least=1)
    last = attention(c, out_bias=True, **_heads(c))
    mixers = [attention(c, **_heads(c))] * (c.n_layers - 1) + [last]
    return _classic_layers(c, width, mixers, bias=False)


def _gptj(c: Config) -> Architecture:
    inner = c.count("n_inner", 4 * c.width, at_least=1)
    return _classic(
        c, qkv_bias=False, out_bias=False, norms_per_layer=1, head_bias=True, d_ff=inner,
        rope_theta=10000.0,
    )  # fmt: skip


def _ctrl(c: Config) -> Architecture:
    return _classic(c, d_ff=c.count("dff", at_least=1), head_bias=True, rope_theta=None)


def _xglm(c: Config) -> Architecture:
    refuse(c, "add_cross_attention")
    return _classic(c, d_ff=c.count("ffn_dim", at_least=1), rope_theta=None)


def _biogpt(c: Config) -> Architecture:
    """Its table of positions begins with two rows that stand for none."""
    width = c.count("intermediate_size", at_least=1)
    return _classic_layers(c, width, position_params=_positions(c, more=2), rope_theta=None)


def _opt(c: Config) -> Architecture:
    """As BioGPT; norms may come after the parts of a layer, and may have no weights.

    Between an embedding of another width (OPT-350m) and the layers stands a matrix on either side.
    """
    width = c.count("word_embed_proj_dim", c.width, at_least=1)
    weighted = c.flag("layer_norm_elementwise_affine", True)
    last = c.flag("do_layer_norm_before", True) and not c.flag("_remove_final_layer_norm")
    return _classic_layers(
        c,
        c.count("ffn_dim", at_least=1),
        bias="enable_bias",
        n_norms=2 if weighted else 0,
        norm_params=2 * c.width if weighted and last else 0,
        embedding_dim=width,
        other_matrices=0 if width == c.width else 2 * c.width * width,
        position_params=_positions(c, more=2),
        rope_theta=None,
    )


def _bloom(c: Config) -> Architecture:
    """A second norm outside the layers stands behind the embedding."""
    return _classic_layers(c, 4 * c.width, norm_params=4 * c.width, rope_theta=None)


def _mpt(c: Config) -> Architecture:
    return uniform(c, gated_mlp=False, d_ff=4 * c.width, rope_theta=None, **_heads(c))


def _falcon(c: Config) -> Architecture:
    """One norm a layer where attention and MLP stand side by side, or one for each."""
    new, shared = c.flag("new_decoder_architecture"), c.flag("multi_query")
    kv_heads = 1 if shared else c.n_heads
    if new:
        kv_heads = c.count("num_kv_heads", c.n_heads, at_least=1)
    n_norms = 2
    if c.flag("parallel_attn"):
        n_norms = 2 if c.count("num_ln_in_parallel_attn", 2 if new else 1) == 2 else 1
    return _classic(
        c,
        qkv_bias="bias",
        out_bias="bias",
        mlp_bias="bias",
        n_kv_heads=kv_heads,
        norms_per_layer=n_norms,
        d_ff=c.count("ffn_hidden_size", 4 * c.width, at_least=1),
        **({"rope_theta": None} if c.flag("alibi") else {}),
    )


def _with_qk_norms(c: Config, n_norms: int, heads: dict[str, Any], **fields: Any) -> Architecture:
    """Queries and keys may have a LayerNorm each, one for all heads."""
    norms = 4 * c.width // c.n_heads if c.flag("qk_layernorm") else 0
    mixer = attention(c, qkv_bias=True, out_bias=True, qk_norm=norms, **heads)
    width = c.count("intermediate_size", at_least=1)
    return _classic_layers(c, width, mixer, n_norms=n_norms, **fields)


def _phi(c: Config) -> Architecture:
    return _with_qk_norms(c, 1, {}, bias_params=c.count("vocab_size", at_least=1))


def _persimmon(c: Config) -> Architecture:
    return _with_qk_norms(c, 2, _heads(c))


def _stablelm(c: Config) -> Architecture:
    """Each head of queries and of keys may have a norm of its own, without biases."""
    heads = _heads(c) | {"n_kv_heads": c.n_kv_heads}
    norms = (c.n_heads + c.n_kv_heads) * heads["head_dim"] if c.flag("qk_layernorm") else 0
    mixer = attention(c, qkv_bias="use_qkv_bias", qk_norm=norms, **heads)
    n_norms = 1 if c.flag("use_parallel_residual") else 2
    return of_layers(c, stack(c, mixer, mlp(c), n_norms, norm_bias=True), norm_params=2 * c.width)


def _starcoder2(c: Config) -> Architecture:
    return uniform(c, **_CLASSIC | dict.fromkeys(_BIASES, "use_bias"))


def _modernbert(c: Config) -> Architecture:
    """A window in most layers; no norm before the first attention; a matrix before the output."""
    every = c.count("global_attn_every_n_layers", 3, at_least=1)
    window = c.count("local_attention", at_least=2) // 2  # said of both directions
    local = which_local(c, lambda i: i % every)
    mixers = [attention(c, **BIASED, **_heads(c), window=window if one else None) for one in local]
    norm = c.width * (2 if c.flag("norm_bias") else 1)
    layers = stack(c, mixers, mlp(c, bias="mlp_bias"), norm_bias=c.flag("norm_bias"))
    layers[0] = dataclasses.replace(layers[0], norm_params=norm)
    biases = c.count("vocab_size", at_least=1) if c.flag("decoder_bias") else 0
    biases += c.width if c.flag("classifier_bias") else 0
    theta = c.get("global_rope_theta")
    return of_layers(
        c,
        layers,
        norm_params=3 * norm,
        other_matrices=c.width**2,
        bias_params=biases,
        **({} if theta is None else {"rope_theta": theta}),
    )


OLDER: Table = {
    "openai-gpt": _gpt1,
    "gpt2": _gpt2,
    "gpt-sw3": _gpt2,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neo": _gpt_neo,
    "gpt_neox": partial(_classic, qkv_bias="attention_bias", out_bias="attention_bias"),
    "gpt_neox_japanese": _gpt_neox_japanese,
    "gptj": _gptj,
    "codegen": _gptj,
    "ctrl": _ctrl,
    "xglm": _xglm,
    "biogpt": _biogpt,
    "opt": _opt,
    "bloom": _bloom,
    "mpt": _mpt,
    "falcon": _falcon,
    "phi": _phi,
    "persimmon": _persimmon,
    "fuyu": as_type("persimmon", _persimmon),
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
    "modernbert-decoder": _modernbert,
}
