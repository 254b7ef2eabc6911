"""Families that keep keys and values and have experts: Mixtral's, Qwen's, Llama 4's and others."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from firsttoken.architectures.architecture import Architecture
from firsttoken.architectures.config import Config
from firsttoken.architectures.families.common import (
    BIASED,
    Flag,
    Reader,
    Table,
    attention,
    experts,
    flag,
    local_windows,
    mlp,
    of_layers,
    qk_normed,
    qk_normed_whole,
    refuse,
    shared_expert,
    sparse_layers,
    stack,
    which_layers,
)
from firsttoken.architectures.layers import MLP, Attention, Experts

# One answer a layer: has it experts, has it a window?


def _all_sparse(c: Config) -> list[bool]:
    return [True] * c.n_layers


def stepped_layers(c: Config, dense: Sequence[int] = ()) -> list[bool]:
    """Return for each layer whether it has experts, by Qwen's keys, or but for `dense` ones."""
    step = c.count("decoder_sparse_step", 1, at_least=1)
    skipped = c.items_of("mlp_only_layers")
    skipped = dense if skipped is None else skipped
    n = c.count("num_experts")
    return [bool(n) and i not in skipped and (i + 1) % step == 0 for i in range(c.n_layers)]


def _after(key: str) -> Callable[[Config], list[bool]]:
    """The first layers are dense, as many as the key says."""
    return lambda c: [i >= c.count(key, 0) for i in range(c.n_layers)]


def _same_windows(c: Config) -> list[int | None]:
    return [c.maybe("sliding_window", at_least=1)] * c.n_layers


def _no_windows(c: Config) -> list[int | None]:
    return [None] * c.n_layers


def _but_each(key: str) -> Callable[[Config], list[int | None]]:
    """Each so many-th layer has full attention, as many as the key says; the others a window."""
    return lambda c: local_windows(c, lambda i: (i + 1) % c.count(key, at_least=1))


def _named_windows(c: Config) -> list[int | None]:
    return local_windows(c, lambda i: False)


# The parts of a layer.


def _wide(c: Config, **fields: Any) -> Experts:
    """Return experts of `intermediate_size`."""
    return experts(c, width="intermediate_size", **fields)


def gated_shared_expert(c: Config) -> Experts:
    """Return experts, and a shared one that a gate weighs."""
    return shared_expert(c, shared_matrices=c.width)


def _moe(
    c: Config,
    shared: str,
    width: str = "moe_intermediate_size",
    shared_bias: Flag = False,
    corrected: bool = False,
    least_shared: int = 0,
    **fields: Any,
) -> Experts:
    """Return experts, and a shared MLP as wide as so many of them as the key `shared` says.

    `corrected`: the router has a trained number for each expert, which evens out their load.
    """
    d_ff = c.count(width, at_least=1)
    biased = flag(c, shared_bias)
    shared_d_ff = d_ff * c.count(shared, at_least=max(least_shared, int(biased)))
    biases = 2 * shared_d_ff + c.width if biased else 0
    biases += c.count("num_local_experts", at_least=1) if corrected else 0
    return experts(c, width=d_ff, shared_d_ff=shared_d_ff, bias_params=biases, **fields)


def _sparse(
    mixer: Callable[..., Attention] = attention,
    moe: Callable[[Config], Experts] = experts,
    where: Callable[[Config], list[bool]] = _all_sparse,
    windows: Callable[[Config], list[int | None]] = _no_windows,
    dense: Callable[[Config], MLP] = mlp,
    n_norms: int = 2,
    norm_bias: bool = False,
    head_bias: Flag = False,
) -> Reader:
    """Return a reader: layers differ in their windows, and in whether they have experts."""

    def read(c: Config) -> Architecture:
        mixers = [mixer(c, window=window) for window in windows(c)]
        mlps = [moe(c) if has else dense(c) for has in where(c)]
        return of_layers(
            c,
            stack(c, mixers, mlps, n_norms, norm_bias=norm_bias),
            norm_params=c.width * (2 if norm_bias else 1),
            bias_params=c.count("vocab_size", at_least=1) if flag(c, head_bias) else 0,
        )

    return read


# What a row cannot say.


def _afmoe_attention(c: Config, window: int | None) -> Attention:
    """A gate for each number of each head; full-attention layers have no rotary embedding."""
    gated = c.width * c.n_heads * c.head_dim
    return qk_normed(c, **BIASED, window=window, rotated=window is not None, extra_matrices=gated)


def _beam_attention(c: Config, window: int | None) -> Attention:
    """As AFMoE's, and a bias for each head; a rotary base for full attention may be given."""
    turned = bool(c.object("rope_parameters").get("full_attention")) or window is not None
    gated = c.width * c.n_heads * c.head_dim
    return qk_normed(
        c, **BIASED, window=window, rotated=turned, extra_matrices=gated, bias_params=c.n_heads
    )


def _beam_windows(c: Config) -> list[int | None]:
    return local_windows(c, lambda i: (i + 1) % 6 and i + 1 < c.n_layers)


def _cohere2_moe(c: Config) -> Architecture:
    """Full-attention layers have no rotary embedding, but for dense ones with a period of 1."""
    n_dense = c.count("first_k_dense_replace", 0)
    first = c.count("prefix_dense_sliding_window_pattern", at_least=1)
    later = c.count("sliding_window_pattern", at_least=1)
    windows = local_windows(
        c, lambda i: (i + 1) % first if i < n_dense else (i - n_dense + 1) % later
    )
    has_experts = sparse_layers(c, n_dense)
    rotated = [
        window is not None or (not has and first == 1)
        for window, has in zip(windows, has_experts, strict=True)
    ]
    mixers = [
        attention(c, **BIASED, window=window, rotated=one)
        for window, one in zip(windows, rotated, strict=True)
    ]
    d_ff = c.count("intermediate_size", at_least=1)
    dense = mlp(c, c.count("prefix_dense_intermediate_size", d_ff, at_least=1))
    moe = _moe(c, "num_shared_experts", width="intermediate_size")
    return of_layers(c, stack(c, mixers, [moe if has else dense for has in has_experts], n_norms=1))


def _dbrx(c: Config) -> Architecture:
    """Sizes of attention and of experts lie in objects of their own."""
    refuse(c, "tie_word_embeddings")
    heads, ffn = Config(c.object("attn_config")), Config(c.object("ffn_config"))
    mixer = attention(
        c,
        n_kv_heads=heads.count("kv_n_heads", 1, at_least=1),
        head_dim=c.width // c.n_heads,
    )
    moe = Experts(
        ffn.count("moe_num_experts", 4, at_least=1),
        ffn.count("moe_top_k", 1, at_least=1),
        ffn.count("ffn_hidden_size", 3584, at_least=1),
    )
    theta = heads.get("rope_theta", c.get("rope_theta"))
    return of_layers(c, stack(c, mixer, moe), rope_theta=theta)


def _dots_windows(c: Config) -> list[int | None]:
    """The later layers have a window, if there is one."""
    has = c.get("sliding_window") is not None
    return local_windows(c, lambda i: has and i >= c.count("max_window_layers"))


def _ernie_layers(c: Config) -> list[bool]:
    first, last = c.count("moe_layer_start_index"), c.count("moe_layer_end_index", at_least=-1)
    step = c.count("moe_layer_interval", at_least=1)
    last = c.n_layers - 1 if last == -1 else last
    return [first <= i <= last and (i + 1) % step == 0 for i in range(c.n_layers)]


def _exaone_attention(c: Config, window: int | None) -> Attention:
    """Full-attention layers have no rotary embedding, if others have a window."""
    rotated = window is not None or c.get("sliding_window") is None
    return qk_normed(c, window=window, rotated=rotated)


def _gpt_oss_experts(c: Config) -> Experts:
    biases = 2 * c.count("intermediate_size", at_least=1) + c.width
    return _wide(c, expert_bias=biases, bias_params=c.count("num_local_experts", at_least=1))


def _granite_experts(c: Config) -> Experts:
    return _wide(c, shared_d_ff=c.count("shared_intermediate_size"))


def _flint_windows(c: Config) -> list[int | None]:
    return local_windows(c, lambda i: i > 1 and i % 4 != 1 and i + 1 < c.n_layers)


def _granitemoe_swa(c: Config) -> Architecture:
    """Each fourth layer sees everything; one whose rotary base is 0 is not rotated."""
    thetas = c.items_of("layer_rope_theta") or [True] * c.n_layers
    if len(thetas) < c.n_layers:
        raise c.wrong("layer_rope_theta", f"a base for each of {c.n_layers} layers")
    mixers = [
        attention(c, **BIASED, sinks=True, window=window, rotated=bool(thetas[i]))
        for i, window in enumerate(local_windows(c, lambda i: i % 4))
    ]
    return of_layers(c, stack(c, mixers, _granite_experts(c)))


def _hunyuan_v1_moe(c: Config) -> Architecture:
    """Layers may differ in how many experts a token visits; one more it always visits."""
    n, d_ff = c.count("num_local_experts", at_least=1), c.count("intermediate_size", at_least=1)
    active = c.per_layer("num_experts_per_tok", at_least=1)
    moes = [Experts(n, n_active, d_ff, shared_d_ff=d_ff) for n_active in active]
    return of_layers(c, stack(c, qk_normed(c, **BIASED), moes))


def _jetmoe(c: Config) -> Architecture:
    """A mixture of heads too: a token chooses among groups of query heads, as among MLPs."""
    n = c.count("num_local_experts", at_least=1)
    n_kv_heads = c.count("num_key_value_heads", at_least=1)
    mixer = Attention(
        c.count("num_experts_per_tok", at_least=1) * n_kv_heads,
        n_kv_heads,
        c.count("head_dim", at_least=1),
        n_head_groups=n,
        extra_matrices=n * c.width,  # the router of the heads
        bias_params=c.width,
    )
    return of_layers(c, stack(c, mixer, _wide(c, bias_params=c.width)))


def _laguna(c: Config) -> Architecture:
    """Layers may differ in their heads; a gate for each of these, or for each of its numbers."""
    gates = 1 if c.get("gating") in (True, "per-head") else c.head_dim
    heads = c.per_layer("num_attention_heads_per_layer", c.n_heads, at_least=1)
    mixers = [
        qk_normed(c, **BIASED, n_heads=n, window=window, extra_matrices=c.width * n * gates)
        for n, window in zip(heads, _named_windows(c), strict=True)
    ]
    moe = shared_expert(c, bias_params=c.count("num_local_experts", at_least=1))
    return of_layers(c, stack(c, mixers, [moe if has else mlp(c) for has in sparse_layers(c, 1)]))


def _llama4(c: Config) -> Architecture:
    """Rotary layers see a chunk only; dense MLPs are wider than an expert."""
    every = c.count("no_rope_layer_interval", at_least=1)
    step = c.count("interleave_moe_layer_step", at_least=1)
    rotated = [(i + 1) % every for i in range(c.n_layers)]
    if c.items_of("no_rope_layers"):
        rotated = c.per_layer("no_rope_layers")  # 0 for a layer without
    kinds = ("full_attention", "chunked_attention")
    chunked = which_layers(c, "layer_types", kinds, lambda i: rotated[i])
    mixers = [
        attention(
            c,
            **BIASED,
            window=c.count("attention_chunk_size", at_least=1) if chunked[i] else None,
            chunked=chunked[i],
            rotated=bool(rotated[i]),
        )
        for i in range(c.n_layers)
    ]
    has_experts = c.items_of("moe_layers")
    if has_experts is None:
        has_experts = range(step - 1, c.n_layers, step)
    mlps = [
        _wide(c, shared_d_ff=c.count("intermediate_size", at_least=1))
        if i in has_experts
        else mlp(c, c.count("intermediate_size_mlp", at_least=1))
        for i in range(c.n_layers)
    ]
    return of_layers(c, stack(c, mixers, mlps))


def _mimo_attention(c: Config, window: int | None) -> Attention:
    """Layers with a window have twice the heads of keys and values, and sinks."""
    past = c.maybe("sliding_window_size", at_least=1)  # without the token itself
    local = window is not None
    return attention(
        c,
        qkv_bias="attention_bias",
        n_kv_heads=c.n_kv_heads * (2 if local else 1),
        v_head_dim=c.count("v_head_dim", at_least=1),
        window=past + 1 if local and past is not None else window,
        sinks=local,
    )


def _mimo_windows(c: Config) -> list[int | None]:
    return local_windows(c, lambda i: i != 0 and (i + 1) % 6)


def _minimax_m3(c: Config) -> Architecture:
    """Some layers attend to the blocks of tokens that an index chooses."""
    own = Config({**c, **c.object("sparse_attention_config")})  # the older names lie there
    heads, width, block, blocks = (
        own.count(older, c.count(name, at_least=1), at_least=1)
        for older, name in {
            "sparse_num_index_heads": "index_n_heads",
            "sparse_index_dim": "index_head_dim",
            "sparse_block_size": "index_block_size",
            "sparse_topk_blocks": "index_topk_blocks",
        }.items()
    )
    indexed = own.per_layer("sparse_attention_freq", 0)
    has_experts = c.per_layer("moe_layer_freq", 1)
    chosen = attention(
        c,
        qk_norm=2 * c.head_dim + 2 * width,
        top_k=blocks * block,
        index_dim=width,
        index_heads=heads,
        extra_matrices=c.width * (heads + 1) * width,
    )
    kinds = ("full_attention", "minimax_m3_sparse")
    by_index = which_layers(c, "layer_types", kinds, lambda i: indexed[i])
    sparse = which_layers(c, "mlp_layer_types", ("dense", "sparse"), lambda i: has_experts[i])
    moe = _wide(c, shared_d_ff=c.count("shared_intermediate_size"))
    dense = mlp(c, c.count("dense_intermediate_size", at_least=1))
    mixers = [chosen if one else qk_normed(c) for one in by_index]
    return of_layers(c, stack(c, mixers, [moe if one else dense for one in sparse]))


def _qwen2_windows(c: Config) -> list[int | None]:
    """Each second of the earlier layers has a window, if windows are used."""
    used = c.flag("use_sliding_window")
    return local_windows(c, lambda i: used and i % 2 == 0 and i < c.count("max_window_layers"))


def _qwen3_windows(c: Config) -> list[int | None]:
    return _same_windows(c) if c.flag("use_sliding_window") else _no_windows(c)


_shared = partial(_moe, shared="n_shared_experts")
_biased = partial(attention, **BIASED)
_biased_normed = partial(qk_normed, **BIASED)
_biased_normed_whole = partial(qk_normed_whole, **BIASED)

SPARSE: Table = {
    "afmoe": _sparse(
        mixer=_afmoe_attention,
        moe=partial(_moe, shared="num_shared_experts", corrected=True),
        where=_after("num_dense_layers"),
        windows=_but_each("global_attn_every_n_layers"),
        n_norms=4,
    ),
    "aria_text": _sparse(
        mixer=_biased,
        moe=partial(
            _moe,
            n="moe_num_experts",
            active="moe_topk",
            width="intermediate_size",
            shared="moe_num_shared_experts",
            shared_bias="mlp_bias",
        ),
    ),
    "beam": _sparse(
        mixer=_beam_attention,
        where=partial(sparse_layers, n_dense=3),
        windows=_beam_windows,
        n_norms=4,
    ),
    "cohere2_moe": _cohere2_moe,
    "dbrx": _dbrx,
    "dots1": _sparse(
        mixer=_biased_normed,
        moe=_shared,
        where=_after("first_k_dense_replace"),
        windows=_dots_windows,
    ),
    "ernie4_5_moe": _sparse(
        mixer=partial(attention, qkv_bias="use_bias", out_bias="use_bias"),
        moe=partial(_moe, shared="moe_num_shared_experts", shared_bias="use_bias", corrected=True),
        where=_ernie_layers,
        dense=partial(mlp, bias="use_bias"),
        head_bias="use_bias",
    ),
    "exaone_moe": _sparse(
        mixer=_exaone_attention,
        moe=partial(_moe, shared="num_shared_experts"),
        where=lambda c: sparse_layers(c, c.count("first_k_dense_replace", 0)),
        windows=_but_each("sliding_window_pattern"),
    ),
    "flint": _sparse(
        mixer=partial(_biased_normed, sinks=True),
        moe=shared_expert,
        where=partial(stepped_layers, dense=(0, 1)),
        windows=_flint_windows,
    ),
    "flex_olmo": _sparse(mixer=_biased_normed_whole, moe=_wide),
    "glm4_moe": _sparse(
        mixer=lambda c, window: attention(
            c,
            qkv_bias="attention_bias",
            qk_norm=2 * c.head_dim if c.flag("use_qk_norm") else 0,
            window=window,
        ),
        moe=_shared,
        where=_after("first_k_dense_replace"),
    ),
    "gpt_oss": _sparse(
        mixer=partial(_biased, sinks=True),
        moe=_gpt_oss_experts,
        windows=lambda c: local_windows(c, lambda i: i % 2 == 0),
    ),
    "granitemoe": _sparse(mixer=_biased, moe=_wide),
    "granitemoe_swa": _granitemoe_swa,
    "granitemoeshared": _sparse(mixer=_biased, moe=_granite_experts),
    "hunyuan_v1_moe": _hunyuan_v1_moe,
    "hy_v3": _sparse(
        mixer=_biased_normed,
        moe=partial(_moe, shared="num_shared_experts", shared_bias="mlp_bias", least_shared=1),
        where=partial(sparse_layers, n_dense=1),
        dense=partial(mlp, bias="mlp_bias"),
    ),
    "jetmoe": _jetmoe,
    "kolibri1": _sparse(
        mixer=qk_normed,
        moe=shared_expert,
        windows=lambda c: local_windows(c, lambda i: (i + 1) % 5),
        n_norms=4,
    ),
    "laguna": _laguna,
    "llama4_text": _llama4,
    "mellum": _sparse(mixer=_biased_normed, where=sparse_layers, windows=_named_windows),
    "mimo_v2_flash": _sparse(
        mixer=_mimo_attention, where=partial(sparse_layers, n_dense=1), windows=_mimo_windows
    ),
    "minimax_m2": _sparse(mixer=qk_normed_whole, moe=_wide),
    "minimax_m3_vl_text": _minimax_m3,
    "mixtral": _sparse(moe=_wide, windows=_same_windows),
    "olmoe": _sparse(mixer=_biased_normed_whole, moe=_wide),
    "phimoe": _sparse(
        mixer=_biased, moe=_wide, windows=_same_windows, norm_bias=True, head_bias="lm_head_bias"
    ),
    "qwen2_moe": _sparse(
        mixer=partial(attention, qkv_bias="qkv_bias"),
        moe=gated_shared_expert,
        where=stepped_layers,
        windows=_qwen2_windows,
    ),
    "qwen3_moe": _sparse(mixer=_biased_normed, where=stepped_layers, windows=_qwen3_windows),
    "solar_open": _sparse(mixer=partial(attention, qkv_bias="attention_bias"), moe=_shared),
}
