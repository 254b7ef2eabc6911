"""Families with a recurrence: in place of attention or beside it, or with nothing else."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, cycle, islice
from typing import Any

from firsttoken.architectures.architecture import Architecture
from firsttoken.architectures.config import Config
from firsttoken.architectures.families.common import (
    BIASED,
    Table,
    attention,
    experts,
    gate,
    latent_attention,
    mlp,
    of_layers,
    qk_normed,
    qk_normed_whole,
    refuse,
    sparse_layers,
    stack,
)
from firsttoken.architectures.families.recurrences import (
    channel_delta,
    expanded,
    gated_delta,
    lightning,
    mamba,
    mamba2,
    rg_lru,
    short_convolution,
    state_dtype,
)
from firsttoken.architectures.families.sparse import gated_shared_expert, stepped_layers
from firsttoken.architectures.layers import MLP, Attention, Experts, Layer, Recurrent

_UNROTATED: Any = {"rope_theta": None, "rope_scaling": None}
_LINEAR, _FULL, _LOCAL = "linear_attention", "full_attention", "sliding_attention"
_RENAMED = {"mamba": _LINEAR, "attention": _FULL, "qwen_sparse_attention": "indexed_attention"}


def _kinds(c: Config, otherwise: Sequence[str]) -> list[str]:
    """Return the kind of each layer; `otherwise` where the config lists none."""
    named = c.items_of("layer_types") or otherwise
    if len(named) != c.n_layers:
        raise ValueError(f"config: layer_types must name {c.n_layers} layers, got {len(named)}")
    return [_RENAMED.get(str(kind), str(kind)) for kind in named]


def _each(c: Config, key: str, default: int) -> list[str]:
    """Return layers of which each n-th has full attention."""
    every = c.count(key, default, at_least=1)
    return [_LINEAR if (i + 1) % every else _FULL for i in range(c.n_layers)]


def _layers(
    c: Config, kinds: Sequence[str], mixers: Mapping[str, Any], mlps: Any, **fields: Any
) -> list[Layer]:
    """Return a layer for each kind; `mlps` and `fields` as `stack` takes them."""
    if unknown := set(kinds) - set(mixers):
        raise ValueError(
            f"config: layer_types must be of {', '.join(mixers)}, got {', '.join(sorted(unknown))}"
        )
    return stack(c, [mixers[kind] for kind in kinds], mlps, **fields)


def _mamba_alone(c: Config) -> Architecture:
    width = c.count("intermediate_size", expanded(c, "expand"), at_least=1)
    mixer = mamba(
        c, width, state="state_size", kernel="conv_kernel", rank="time_step_rank",
        conv_bias="use_conv_bias", bias="use_bias",
    )  # fmt: skip
    return of_layers(c, stack(c, mixer, None, n_norms=1), **_UNROTATED)


def _mamba2_alone(c: Config) -> Architecture:
    mixer = mamba2(
        c, expanded(c, "expand"), heads="num_heads", head_dim="head_dim", state="state_size",
        groups="n_groups", kernel="conv_kernel", conv_bias="use_conv_bias", in_bias="use_bias",
        out_bias="use_bias",
    )  # fmt: skip
    return of_layers(c, stack(c, mixer, None, n_norms=1), **_UNROTATED)


def _jamba(c: Config) -> Architecture:
    attends, sparse = (
        (c.count(f"{what}_layer_period", at_least=1), c.count(f"{what}_layer_offset"))
        for what in ("attn", "expert")
    )
    kinds = [_FULL if i % attends[0] == attends[1] else _LINEAR for i in range(c.n_layers)]
    several = c.count("num_experts", at_least=1) > 1
    mlps = [
        experts(c, width="intermediate_size") if several and i % sparse[0] == sparse[1] else mlp(c)
        for i in range(c.n_layers)
    ]
    mixers = {_LINEAR: mamba(c, expanded(c), normed=True), _FULL: attention(c, rotated=False)}
    return of_layers(c, _layers(c, kinds, mixers, mlps), **_UNROTATED)


def _bamba(c: Config) -> Architecture:
    full = c.items_of("attn_layer_indices") or ()
    kinds = [_FULL if i in full else _LINEAR for i in range(c.n_layers)]
    mixers = {_LINEAR: mamba2(c, expanded(c)), _FULL: attention(c, **BIASED)}
    return of_layers(c, _layers(c, kinds, mixers, mlp(c, bias="mlp_bias")))


def _falcon_h1(c: Config) -> Architecture:
    beside = mamba2(
        c,
        c.count("mamba_d_ssm", expanded(c), at_least=1),
        out_bias="projectors_bias",
        normed=c.flag("mamba_rms_norm"),
    )
    both = (attention(c, **BIASED), beside)
    return of_layers(c, stack(c, both, mlp(c, bias="mlp_bias")))


def _granite(c: Config) -> Architecture:
    """Without experts there is only the MLP that every token visits."""
    shared = c.count("shared_intermediate_size", at_least=1)
    inner: Any = mlp(c, shared)
    if c.count("num_local_experts", 0):
        inner = experts(c, width="intermediate_size", shared_d_ff=shared)
    rotated = c.get("position_embedding_type") == "rope"
    mixers = {_LINEAR: mamba2(c, expanded(c)), _FULL: attention(c, **BIASED, rotated=rotated)}
    layers = _layers(c, _kinds(c, [_LINEAR] * c.n_layers), mixers, inner)
    return of_layers(c, layers, **({} if rotated else _UNROTATED))


def _nemotron_h(c: Config) -> Architecture:
    """Each mixer and each MLP counts as a layer."""
    pattern = c.get("hybrid_override_pattern")
    if pattern is not None and (not isinstance(pattern, str) or set(pattern) - set(_LETTERS)):
        raise c.wrong("hybrid_override_pattern", f"a text of {' '.join(_LETTERS)}")
    default = [_LINEAR, "moe", _FULL, "mlp"] if pattern is None else map(_LETTERS.get, pattern)
    named = c.items_of("layer_types") or list(default)
    kinds = [_RENAMED.get(str(kind), str(kind)) for kind in named]
    mixer = mamba2(
        c,
        c.count("mamba_num_heads", at_least=1) * c.count("mamba_head_dim", at_least=1),
        heads="mamba_num_heads",
        head_dim="mamba_head_dim",
        state="ssm_state_size",
        groups=_either(c, "mamba_n_groups", "n_groups"),
        kernel=_either(c, "mamba_d_conv", "conv_kernel"),
        conv_bias=_either(c, "mamba_conv_bias", "use_conv_bias"),
        in_bias="use_bias",
        out_bias="use_bias",
        state_dtype=state_dtype(c, "mamba_ssm_cache_dtype"),
    )
    mixers = {_LINEAR: mixer, _FULL: attention(c, rotated=False), "mlp": None, "moe": None}
    parts = {"mlp": mlp(c, gated=False, bias="mlp_bias"), "moe": _nemotron_experts(c)}
    mlps = [parts.get(kind) for kind in kinds]
    layers = _layers(c, kinds, mixers, mlps, n_norms=1)
    return of_layers(c, layers, tied_embeddings=False, **_UNROTATED)


_LETTERS = {"M": _LINEAR, "*": _FULL, "-": "mlp", "E": "moe"}


def _nemotron_experts(c: Config) -> Experts:
    shared = c.count("moe_shared_expert_intermediate_size", at_least=1)
    latent = c.maybe("moe_latent_size", at_least=1)
    biases = shared + c.width + (latent + c.width if latent else 0)
    return experts(
        c,
        gated=False,
        latent_dim=latent,
        shared_d_ff=shared,
        shared_matrices=2 * c.width * latent if latent else 0,
        bias_params=biases if c.flag("mlp_bias") else 0,
    )


def _either(c: Config, older: str, newer: str) -> str:
    return older if c.get(older) is not None else newer


def _minimax(c: Config) -> Architecture:
    mixers = {_LINEAR: lightning(c), _FULL: attention(c, window=c.maybe("sliding_window"))}
    full = c.items_of("attn_type_list")  # 1 for full attention, in MiniMax's own files
    full = [i % 2 == 0 for i in range(c.n_layers)] if full is None else full
    kinds = _kinds(c, [_FULL if one else _LINEAR for one in full])
    return of_layers(c, _layers(c, kinds, mixers, experts(c, width="intermediate_size")))


def _latent_hybrid(
    c: Config, kinds: Sequence[str], delta: Recurrent, n_dense: int, **fields: Any
) -> list[Layer]:
    """Return layers of latent attention and of the delta rule; the first MLPs are dense."""
    shared = c.count("n_shared_experts", 0) * c.count("moe_intermediate_size", at_least=1)
    moe = experts(c, shared_d_ff=shared)
    mlps = [moe if sparse else mlp(c) for sparse in sparse_layers(c, n_dense)]
    mixers = {_LINEAR: delta, _FULL: latent_attention(c, **BIASED, **fields)}
    return _layers(c, kinds, mixers, mlps)


_OF_KIMI_K3 = (
    *("routed_expert_hidden_size", "attn_res_block_size"),
    *("mla_use_output_gate", "use_full_rank_gate"),
)


def _kimi_linear(c: Config) -> Architecture:
    """Its released config counts layers from 1; what Kimi K3's adds is not known here."""
    for key in _OF_KIMI_K3:
        refuse(c, key)
    linear = Config(c.object("linear_attn_config"))
    n = linear.count("num_heads", c.count("linear_num_heads"), at_least=1)
    dim = linear.count("head_dim", c.count("linear_head_dim"), at_least=1)
    kernel = linear.count("short_conv_kernel_size", c.count("linear_conv_kernel_dim"), at_least=1)
    full = linear.items_of("full_attn_layers") if "kda_layers" in linear else None
    full = range(5, c.n_layers + 1, 4) if full is None else full
    kinds = _kinds(c, [_FULL if i + 1 in full else _LINEAR for i in range(c.n_layers)])
    delta = channel_delta(c, n, dim, kernel, gate=dim * (c.width + n * dim))
    n_dense = c.count("first_k_dense_replace", 1)
    layers = _latent_hybrid(c, kinds, delta, n_dense, rotated=False)
    return of_layers(c, layers, tied_embeddings=False, **_UNROTATED)


def _bailing_hybrid(c: Config) -> Architecture:
    kernel = c.count("short_conv_kernel_size", at_least=1)
    of_gate = c.width * c.n_heads * c.head_dim
    delta = channel_delta(c, c.n_heads, c.head_dim, kernel, of_gate)
    kinds = _kinds(c, _each(c, "layer_group_size", 6))
    gated: Any = {"q_latent_dim": None, "extra_matrices": c.width * c.n_heads}
    n_dense = c.count("first_k_dense_replace")
    layers = _latent_hybrid(c, kinds, delta, n_dense, **gated)
    return of_layers(c, layers, tied_embeddings=False)


def _lfm2_mixers(c: Config) -> dict[str, Any]:
    return {"conv": short_convolution(c), _FULL: qk_normed(c)}


def _lfm2(c: Config) -> Architecture:
    full = c.items_of("full_attn_idxs")
    kinds = ["conv" if full is not None and i not in full else _FULL for i in range(c.n_layers)]
    layers = _layers(c, _kinds(c, kinds), _lfm2_mixers(c), mlp(c, _lfm2_width(c)))
    return of_layers(c, layers, tied_embeddings=_lfm2_tied(c))


def _lfm2_width(c: Config) -> int:
    """Return the width of its MLPs: two thirds of what the config says, rounded up."""
    width = c.count("block_ff_dim", c.count("intermediate_size", at_least=1), at_least=1)
    if not c.flag("block_auto_adjust_ff_dim"):
        return width
    width = 2 * width // 3
    if c.get("block_ffn_dim_multiplier") is None:
        return width
    multiple = c.count("block_multiple_of", at_least=1)
    return _up_to(int(_times(c, "block_ffn_dim_multiplier", width)), multiple)


def _lfm2_tied(c: Config) -> bool:
    return c.flag("tie_embedding", c.flag("tie_word_embeddings"))


def _lfm2_moe(c: Config) -> Architecture:
    dense = c.count("num_dense_layers")
    mlps = [mlp(c) if i < dense else experts(c) for i in range(c.n_layers)]
    layers = _layers(c, _kinds(c, ()), _lfm2_mixers(c), mlps)
    return of_layers(c, layers, tied_embeddings=_lfm2_tied(c))


def _lfm3(c: Config) -> Architecture:
    gates = c.width * c.n_heads if c.flag("use_attention_gate") else 0
    full = qk_normed(c, **BIASED, extra_matrices=gates)
    local = dataclasses.replace(full, window=c.maybe("sliding_window"))
    mixers = {"conv": short_convolution(c), _FULL: full, _LOCAL: local}
    kinds = ["conv", *islice(cycle((_LOCAL, "conv", _FULL, "conv")), 1, c.n_layers)]
    norms = 4 if c.flag("use_sandwich_norm") else 2
    return of_layers(c, _layers(c, _kinds(c, kinds), mixers, mlp(c), n_norms=norms))


def _olmo_hybrid(c: Config) -> Architecture:
    n_keys, n_values = (
        c.count(f"linear_num_{what}_heads", c.n_heads, at_least=1) for what in ("key", "value")
    )
    key = c.count("linear_key_head_dim", 3 * c.width // (4 * n_keys), at_least=1)
    value = c.count("linear_value_head_dim", 2 * key, at_least=1)
    kinds = [_LINEAR if (i + 1) % 4 else _FULL for i in range(c.n_layers)]
    if _FULL not in kinds:
        kinds[-1] = _FULL
    rotated = c.object("rope_parameters").get("rope_theta", 0) is not None
    mixers = {
        _LINEAR: gated_delta(c, (n_keys, n_values), (key, value)),
        _FULL: qk_normed_whole(c, **BIASED, rotated=rotated),
    }
    return of_layers(c, _layers(c, _kinds(c, kinds), mixers, mlp(c)))


def _qwen(c: Config, mlps: Callable[[Config], Any]) -> Architecture:
    """Return Qwen3-Next and its like, whose output of attention is gated."""
    kinds = _kinds(c, _each(c, "full_attention_interval", 4))
    mixers = {_LINEAR: _qwen_delta(c), _FULL: _gated_attention(c)}
    return of_layers(c, _layers(c, kinds, mixers, mlps(c)))


def _qwen_delta(c: Config) -> Recurrent:
    n_keys, n_values, key, value = (
        c.count(f"linear_{what}", at_least=1)
        for what in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    )
    return gated_delta(c, (n_keys, n_values), (key, value))


def _gated_attention(c: Config) -> Attention:
    return qk_normed(c, **BIASED, **gate(c))


def _qwen3_next_mlps(c: Config) -> list[MLP | Experts]:
    return [gated_shared_expert(c) if sparse else mlp(c) for sparse in stepped_layers(c)]


def _qwen4(c: Config) -> Architecture:
    """Several residual streams, an index before attention, and tables that n-grams look up."""
    kinds = _kinds(c, _each(c, "full_attention_interval", 4))
    full = _qwen4_attention(c)
    mixers = {_LINEAR: _qwen_delta(c), _FULL: full, "indexed_attention": full}
    n = c.count("hc_count", at_least=1)
    streams = n * c.width
    mix = 2 * streams * c.count("hc_lowrank", at_least=1)
    of_layer = {"n_norms": 2 * n, "other_matrices": 2 * (mix + streams * n)}
    layers = _layers(c, kinds, mixers, gated_shared_expert(c), **of_layer)
    tables = _qwen4_tables(c, layers, streams)
    return of_layers(c, layers, norm_params=streams, other_matrices=mix, lookup_params=tables)


def _qwen4_attention(c: Config) -> Attention:
    if c.count("indexer_kv_heads") != 1:
        raise c.wrong("indexer_kv_heads", "1")
    heads, dim = (c.count(f"indexer_{what}", at_least=1) for what in ("n_heads", "head_dim"))
    plain = _gated_attention(c)
    return dataclasses.replace(
        plain,
        top_k=c.count("indexer_budget", at_least=1),
        index_dim=dim,
        index_heads=heads,
        extra_matrices=plain.extra_matrices + c.width * (heads + 1) * dim,
        norm_params=plain.norm_params + 2 * dim,
    )


def _qwen4_tables(c: Config, layers: list[Layer], streams: int) -> int:
    """Put into some layers what reads a table of n-grams; return the elements of all tables.

    An n-gram of each length has several tables, whose rows are prime in number.
    """
    ids = c.items_of("ple_layer_ids") or ()
    width = c.count("ple_embed_dim", c.width, at_least=1)
    orders = _few(c, "ngram_size", 16) - 1
    n_heads = orders * _few(c, "heads_per_ngram", 64)
    multiple = c.count("make_ngram_vocab_size_divisible_by", at_least=1)
    kernel = c.count("ple_conv_kernel_size", at_least=1)
    if ids and (n_heads == 0 or width % n_heads):
        raise c.wrong("ple_embed_dim", f"a multiple of {n_heads}")
    rows, total = _primes(_few(c, "ngram_vocab_size_base", 10**8)), 0
    recurrent = [i + 1 for i, one in enumerate(layers) if one.recurrent is not None]
    if not all(number in recurrent for number in ids):
        raise c.wrong("ple_layer_ids", f"layers with a recurrence, of {recurrent}")
    for number in sorted(set(ids)):
        total += _up_to(sum(islice(rows, n_heads)), multiple) * (width // n_heads)
        layers[number - 1] = _with_table(layers[number - 1], c, width, streams, kernel, orders)
    return total


def _with_table(one: Layer, c: Config, width: int, streams: int, kernel: int, orders: int) -> Layer:
    """Return a layer with the matrices that a table's rows pass, and a convolution with gaps."""
    assert one.recurrent is not None  # as checked
    kept = streams * (kernel - 1) * (orders + 1) + orders
    mixer = dataclasses.replace(one.recurrent, conv_elements=one.recurrent.conv_elements + kept)
    return dataclasses.replace(
        one,
        mixers=(mixer,),
        norm_params=one.norm_params + 3 * streams,
        other_matrices=one.other_matrices + width * (streams + c.width) + streams * kernel,
    )


def _primes(start: int) -> Iterator[int]:
    """Yield the primes from `start` on."""
    return (n for n in count(max(start, 2)) if all(n % i for i in range(2, math.isqrt(n) + 1)))


def _few(c: Config, key: str, most: int) -> int:
    if c.count(key, at_least=1) > most:
        raise c.wrong(key, f"at most {most:,}")
    return c.count(key)


def _recurrent_gemma(c: Config) -> Architecture:
    window = c.count("sliding_window", at_least=1)
    mixers = {
        "recurrent": rg_lru(c),
        "attention": attention(c, qkv_bias="attention_bias", out_bias=True, window=window),
    }
    blocks = c.items_of("block_types")
    if not blocks:
        raise c.wrong("block_types", "the kinds of the first layers")
    kinds = list(islice(cycle(map(str, blocks)), c.n_layers))
    dense = mlp(c, c.count("intermediate_size", at_least=2) // 2, bias=True)
    return of_layers(c, _layers(c, kinds, mixers, dense))


def _rwkv(c: Config) -> Architecture:
    """Both parts of a layer mix a token with the one before it."""
    width = c.count("attention_hidden_size", c.width, at_least=1)
    mixer = Recurrent(
        "RWKV",
        weights=4 * c.width * width,
        state_elements=3 * width,
        conv_elements=2 * c.width,
        other_params=2 * width + 3 * c.width,
    )
    dense = mlp(c, c.count("intermediate_size", 4 * c.width, at_least=1), gated=False)
    dense = dataclasses.replace(dense, extra_matrices=c.width**2)
    layers = stack(c, mixer, dense, norm_bias=True, other_params=2 * c.width)
    first = layers[0].norm_params + 2 * c.width  # one more behind the embedding
    layers[0] = dataclasses.replace(layers[0], norm_params=first)
    return of_layers(c, layers, norm_params=2 * c.width, **_UNROTATED)


def _xlstm(c: Config) -> Architecture:
    n, biased = c.count("num_heads", at_least=1), c.flag("use_bias")
    key = int(_times(c, "qk_dim_factor", c.width))
    value = int(_times(c, "v_dim_factor", c.width))
    biases = 2 * n + (2 * (key + value) + c.width if biased else 0)
    mixer = Recurrent(
        "mLSTM",
        weights=c.width * (2 * key + 3 * value + 2 * n),
        state_elements=n * ((key // n) * (value // n) + key // n + 1),
        norm_params=value // n * n * (2 if biased else 1),
        other_params=biases,
        state_dtype=state_dtype(c, "inference_state_dtype"),
    )
    multiple = c.count("ffn_round_up_to_multiple_of", at_least=1)
    width = _up_to(_times(c, "ffn_proj_factor", c.width), multiple)
    layers = stack(c, mixer, mlp(c, width, bias="use_bias"), norm_bias=biased)
    return of_layers(c, layers, tied_embeddings=False, **_UNROTATED)


def _times(c: Config, key: str, width: int) -> float:
    """Return so many times a width."""
    factor = c.get(key)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 1e6:
        raise c.wrong(key, "a positive number")
    if width > 2**53:
        raise ValueError(f"config: {key} {factor} is of a width of at most 2**53, got {width}")
    return factor * width


def _up_to(value: float, multiple: int) -> int:
    """Return the next multiple."""
    return -(-int(value) // multiple) * multiple


def _zamba(c: Config) -> Architecture:
    rest = range(c.n_layers - 3)
    period, offset = c.count("attn_layer_period", at_least=1), c.count("attn_layer_offset")
    kinds = [_LINEAR, _LINEAR, "hybrid"]
    kinds += ["hybrid" if i % period == offset else _LINEAR for i in rest]
    attends = _zamba_attention(c, rotated=False)
    layers = _sharing(c, _kinds(c, kinds), mamba(c, expanded(c)), attends, mlp(c))
    return of_layers(c, layers, **_UNROTATED)


def _zamba2(c: Config) -> Architecture:
    """Each use of a shared block adds matrices of low rank of its own."""
    kinds = [_LINEAR, *([_LINEAR] * 5 + ["hybrid"]) * 7, *[_LINEAR] * 4, "hybrid"]
    kinds += [_LINEAR] * 3 + ["hybrid"] + [_LINEAR] * 2
    mixer = mamba2(
        c, expanded(c), heads="n_mamba_heads", head_dim="mamba_headdim", groups="mamba_ngroups",
        conv_bias=True, in_bias="add_bias_linear", out_bias="add_bias_linear",
    )  # fmt: skip
    rotated = c.flag("use_mem_rope")
    dense = mlp(c, c.count("intermediate_size", 4 * c.width, at_least=1), bias="add_bias_linear")
    rank = c.count("adapter_rank", at_least=1)
    adapters = rank * (c.width + 2 * dense.d_ff)
    if c.flag("use_shared_attention_adapter"):
        adapters += 3 * 2 * rank * _zamba_read(c)
    layers = _sharing(
        c,
        _kinds(c, kinds),
        mixer,
        _zamba_attention(c, rotated=rotated),
        dense,
        n_blocks=c.count("num_mem_blocks", at_least=1),
        adapters=adapters,
    )
    long = 16384 if c.flag("use_long_context") else c.maybe("max_position_embeddings", at_least=1)
    return of_layers(c, layers, max_context=long, **({} if rotated else _UNROTATED))


def _zamba_read(c: Config) -> int:
    """Return the width of what attention reads: the layer's input beside the embedding."""
    return c.count("attention_hidden_size", 2 * c.width, at_least=c.width)


def _zamba_attention(c: Config, rotated: bool) -> Attention:
    dim = c.count("head_dim", 2 * c.width // c.n_heads, at_least=1)
    wider = (_zamba_read(c) - c.width) * (c.n_heads + 2 * c.n_kv_heads) * dim
    return attention(c, head_dim=dim, rotated=rotated, extra_matrices=wider)


def _sharing(
    c: Config,
    kinds: Sequence[str],
    mixer: Recurrent,
    attends: Attention,
    dense: MLP,
    n_blocks: int = 1,
    adapters: int = 0,
) -> list[Layer]:
    """Return layers of Mamba, before some of which one of `n_blocks` blocks is, turn by turn."""
    if not c.flag("tie_word_embeddings"):  # transformers would not share the blocks either
        raise c.wrong("tie_word_embeddings", "true where blocks are shared")
    mixer = dataclasses.replace(mixer, norm_params=mixer.norm_params + c.width)
    hybrids: list[int] = []
    layers = []
    for i, kind in enumerate(kinds):
        if kind not in (_LINEAR, "hybrid"):
            raise ValueError(f"config: layer_types must be of {_LINEAR}, hybrid, got {kind}")
        if kind == _LINEAR:
            layers.append(Layer((mixer,)))
            continue
        source = hybrids[len(hybrids) % n_blocks] if len(hybrids) >= n_blocks else None
        hybrids.append(i)
        norms = _zamba_read(c) + c.width
        own = c.width**2 + adapters
        layers.append(
            Layer((attends, mixer), (dense,), norms, weights_of=source, other_matrices=own)
        )
    return layers


def _zaya(c: Config) -> Architecture:
    """Queries and keys pass two convolutions; half of a value is that of the token before."""
    if c.count("num_experts_per_tok") != 1:
        raise c.wrong("num_experts_per_tok", "1")
    full = attention(c, **BIASED, norm_params=c.n_kv_heads)
    kernels = c.count("cca_time0", at_least=1), c.count("cca_time1", at_least=1)
    channels = (c.n_heads + c.n_kv_heads) * c.head_dim
    beside = Recurrent(
        "convolutions of queries and keys",
        weights=channels * (kernels[0] + kernels[1] * c.head_dim),
        state_elements=c.n_kv_heads * c.head_dim // 2,
        conv_elements=channels * (sum(kernels) - 2),
        other_params=2 * channels,
        state_dtype="bf16",
    )
    local = dataclasses.replace(full, window=c.maybe("sliding_window", at_least=1))
    mixers = {"hybrid": (full, beside), "hybrid_sliding": (local, beside)}
    low = c.count("router_hidden_size", at_least=1)
    n = c.count("num_experts", at_least=1)
    moe = experts(
        c,
        router_matrix=low * (c.width + 2 * low + n + 1),
        bias_params=3 * low,
        norm_params=low,
    )
    kinds = _kinds(c, ["hybrid"] * c.n_layers)
    scales = 8 * c.width
    layers = _layers(c, kinds, mixers, moe, other_params=scales + low)
    layers[0] = dataclasses.replace(layers[0], other_params=scales)
    return of_layers(
        c,
        layers,
        norm_params=3 * c.width,
        bias_params=c.count("vocab_size") if c.flag("lm_head_bias") else 0,
        **({} if c.get("rope_parameters") else {"rope_theta": 5e6}),
    )


HYBRID: Table = {
    "mamba": _mamba_alone,
    "falcon_mamba": _mamba_alone,
    "mamba2": _mamba2_alone,
    "rwkv": _rwkv,
    "xlstm": _xlstm,
    "jamba": _jamba,
    "bamba": _bamba,
    "falcon_h1": _falcon_h1,
    "granitemoehybrid": _granite,
    "nemotron_h": _nemotron_h,
    "minimax": _minimax,
    "kimi_linear": _kimi_linear,
    "bailing_hybrid": _bailing_hybrid,
    "qwen3_next": partial(_qwen, mlps=_qwen3_next_mlps),
    "qwen3_5_text": partial(_qwen, mlps=mlp),
    "qwen3_5_moe_text": partial(_qwen, mlps=gated_shared_expert),
    "qwen4_exp_text": _qwen4,
    "olmo_hybrid": _olmo_hybrid,
    "recurrent_gemma": _recurrent_gemma,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2_moe,
    "lfm3": _lfm3,
    "zamba": _zamba,
    "zamba2": _zamba2,
    "zaya": _zaya,
}
