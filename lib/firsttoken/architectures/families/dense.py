"""Families in Llama's manner with dense MLPs: RMSNorm, mostly no biases, gated MLPs."""

from collections.abc import Callable
from functools import partial
from math import isqrt
from typing import Any

from firsttoken.architectures.architecture import Architecture
from firsttoken.architectures.config import MOST_LAYERS, Config
from firsttoken.architectures.families.common import (
    BIASED,
    Table,
    as_type,
    attention,
    experts,
    gate,
    layer,
    local_windows,
    mlp,
    of_layers,
    qk_normed,
    qk_normed_whole,
    stack,
    uniform,
)
from firsttoken.architectures.layers import MLP

_biased = partial(uniform, qkv_bias="attention_bias", out_bias="attention_bias")
_llama = partial(_biased, mlp_bias="mlp_bias")
_nemotron = partial(_llama, gated_mlp=False, norm_bias=True)


def _windowed(
    c: Config,
    default: Callable[[int], object],
    full_unrotated: bool = False,
    local_unrotated: bool = False,
) -> dict[str, Any]:
    """Return the windows of the layers that `layer_types` calls local, or else `default`.

    Which kind of layers has no rotary embedding, the last two arguments say.
    """
    every = local_windows(c, default)
    local = tuple(i for i, window in enumerate(every) if window is not None)
    unrotated = tuple(
        i for i in range(c.n_layers) if (local_unrotated if i in local else full_unrotated)
    )
    found = {"window": every[local[0]] if local else None, "local_layers": local or None}
    return found | ({"unrotated_layers": unrotated} if unrotated else {})


def _extended(c: Config, theta: float, **scaling: Any) -> dict[str, Any]:
    """Return the rotary settings of a family that is extended even where a config says nothing."""
    if c.object("rope_parameters") or c.object("rope_scaling"):
        return {}
    return {"rope_theta": theta, "rope_scaling": scaling}


_llama3 = partial(
    _extended,
    rope_type="llama3",
    original_max_position_embeddings=8192,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
)


def _apertus(c: Config) -> Architecture:
    width = c.count("intermediate_size", at_least=1)
    act = MLP(width, gated=False, bias_params=2)  # two numbers of its activation, xIELU
    return of_layers(c, stack(c, qk_normed(c, **BIASED), act), **_llama3(c, 12e6, factor=8.0))


def _bitnet(c: Config) -> Architecture:
    """A norm more behind the heads, and one inside the MLP."""
    width = c.count("intermediate_size", at_least=1)
    mixer = attention(c, **BIASED, norm_params=c.width)
    return of_layers(c, stack(c, mixer, MLP(width, norm_params=width)))


def _cohere(c: Config) -> Architecture:
    """One norm a layer: attention and MLP stand side by side."""
    mixer = (qk_normed_whole if c.flag("use_qk_norm") else attention)(c, **BIASED)
    return of_layers(c, stack(c, mixer, mlp(c), n_norms=1))


def _cohere2(c: Config) -> Architecture:
    """Three rotary layers with a window, then one that has neither."""
    period = c.count("sliding_window_pattern", 4, at_least=1)
    found = _windowed(c, lambda i: (i + 1) % period, full_unrotated=True)
    return _biased(c, norms_per_layer=1, **found)


def _cohere_compass(c: Config) -> Architecture:
    """A kind of layers whose rotary settings are null is not rotated."""
    settings = c.object("rope_parameters")
    full, local = (
        settings.get(kind, ...) is None for kind in ("full_attention", "sliding_attention")
    )
    return _biased(c, norms_per_layer=1, **_windowed(c, lambda i: False, full, local))


def _cwm(c: Config) -> Architecture:
    return uniform(
        c, mlp_bias="mlp_bias", **_windowed(c, lambda i: i % 4), **_llama3(c, 1e6, factor=16.0)
    )


def _diffllama(c: Config) -> Architecture:
    """Two maps of attention are subtracted, the second times a number made of four vectors."""
    return of_layers(c, stack(c, attention(c, **BIASED, bias_params=4 * c.head_dim), mlp(c)))


def _doge(c: Config) -> Architecture:
    """A number made of each value says which tokens are attended to; the residuals have weights.

    With experts, those are single neurons, in rows of two tables, beside a dense MLP.
    """
    kv_heads = c.n_kv_heads
    mixer = qk_normed(
        c,
        **BIASED,
        window=c.maybe("sliding_window", at_least=1),
        top_k=c.count("keep_window_size", at_least=1),
        extra_matrices=kv_heads * c.head_dim * kv_heads,
        bias_params=kv_heads * (2 if c.flag("attention_bias") else 1),
    )
    parts: list[Any] = [mlp(c, bias="mlp_bias")]
    if c.flag("is_moe"):
        side = isqrt(c.count("num_experts", at_least=1))  # an expert's number: row and column
        parts.append(experts(c, width=1, gated=False, router_matrix=2 * side * c.width))
    return of_layers(c, stack(c, mixer, tuple(parts), other_params=2 * c.width))


def _exaone4(c: Config) -> Architecture:
    """With windows, only the layers that have one are rotated."""
    some = c.maybe("sliding_window", at_least=1) is not None

    def is_local(i: int) -> object:  # EXAONE 4.0 names its layers, and "LLLG" is no number
        return some and (i + 1) % c.count("sliding_window_pattern", 4, at_least=1)

    return uniform(c, qk_norm=True, **_windowed(c, is_local, full_unrotated=some))


def _granite_swa(c: Config) -> Architecture:
    """A layer whose rotary base is 0 is not rotated."""
    bases = c.items_of("layer_rope_theta") or ()
    unrotated = tuple(i for i, base in enumerate(bases[: c.n_layers]) if not base)
    return _llama(c, sink_logits=True, unrotated_layers=unrotated, **_windowed(c, lambda i: i % 4))


def _helium(c: Config) -> Architecture:
    if c.n_heads * c.head_dim != c.width:
        raise c.wrong("head_dim", f"hidden_size / num_attention_heads = {c.width / c.n_heads:g}")
    return uniform(c, qkv_bias="attention_bias", mlp_bias="mlp_bias")


def _hrm_text(c: Config) -> Architecture:
    """Two stacks of layers, run again and again: the low one `L_cycles` times, then the high one.

    Each run of a layer has a cache of its own.
    """
    depth = c.count("num_layers_per_stack", c.n_layers, at_least=1)
    low, high = c.count("L_cycles", at_least=1), c.count("H_cycles", at_least=1)
    if depth * (low + 1) * high > MOST_LAYERS:
        raise ValueError(
            f"config: L_cycles and H_cycles must give at most {MOST_LAYERS:,} runs of a layer, "
            f"got {low} and {high} for {depth} layers"
        )
    mixer = attention(c, **BIASED, n_kv_heads=c.n_heads, **gate(c))
    one = layer(c, mixer, mlp(c, bias="mlp_bias"), n_norms=0)
    layers = []
    for run in range((low + 1) * high):
        first = low if (run + 1) % (low + 1) == 0 else 0  # the run that has these weights
        for i in range(depth):
            layers.append(one if run == first else one.replace(weights_of=first * depth + i))
    start = c.width  # what the low stack adds to the embedding in its first run
    return of_layers(c, layers, norm_params=0, bias_params=start)


def _ministral3(c: Config) -> Architecture:
    yarn = {"factor": 16.0, "original_max_position_embeddings": 16384, "beta_fast": 32.0}
    yarn |= {"beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
    return uniform(c, **_extended(c, 1e6, rope_type="yarn", **yarn))


def _mllama_text(c: Config) -> Architecture:
    """Some layers attend to an image, and keep nothing of the text; they have two gates.

    The embedding has eight rows more than the output, so the two are never one.
    """
    looking = c.items_of("cross_attention_layers") or (3, 8, 13, 18, 23, 28, 33, 38)
    mixer = attention(c)
    text = layer(c, mixer, mlp(c))
    image = layer(
        c, (), mlp(c), other_matrices=mixer.matrices(c.width), other_params=2 * c.head_dim + 2
    )
    layers = [image if i in looking else text for i in range(c.n_layers)]
    return of_layers(c, layers, lookup_params=8 * c.width, tied_embeddings=False)


def _without_norms(c: Config, gated: bool) -> Architecture:
    """Its norms have no weights."""
    one = stack(c, attention(c, **BIASED), mlp(c, gated=gated), n_norms=0)
    return of_layers(c, one, norm_params=0)


def _olmo2(c: Config) -> Architecture:
    """Queries and keys have norms over all heads together; Olmo 3's layers have windows, too."""
    windows = [None] * c.n_layers if c.type == "olmo2" else local_windows(c, lambda i: (i + 1) % 4)
    mixers = [qk_normed_whole(c, **BIASED, window=window) for window in windows]
    return of_layers(c, stack(c, mixers, mlp(c)))


def _smollm3(c: Config) -> Architecture:
    """Each fourth layer has no rotary embedding, unless the config says otherwise."""
    every = c.count("no_rope_layer_interval", 4, at_least=1)
    rotated = c.items_of("no_rope_layers")  # 0 for a layer without
    if rotated is None:
        rotated = [(i + 1) % every for i in range(c.n_layers)]
    unrotated = tuple(i for i, one in enumerate(rotated[: c.n_layers]) if not one)
    return _llama(c, unrotated_layers=unrotated or None)


def _vaultgemma(c: Config) -> Architecture:
    return _biased(c, **_windowed(c, lambda i: (i + 1) % 2))


DENSE: Table = {
    "llama": _llama,
    "apertus": _apertus,
    "arcee": partial(_llama, gated_mlp=False),
    "bitnet": _bitnet,
    "cohere": _cohere,
    "cohere2": _cohere2,
    "cohere_compass_text": _cohere_compass,
    "cwm": _cwm,
    "diffllama": _diffllama,
    "doge": _doge,
    "emu3": as_type("emu3_text_model", _llama),
    "emu3_text_model": _llama,
    "ernie4_5": partial(uniform, qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias"),
    "exaone4": _exaone4,
    "glm": partial(uniform, qkv_bias="attention_bias"),
    "glm4": partial(uniform, qkv_bias="attention_bias", norms_per_layer=4),
    "granite": _llama,
    "granite_swa": _granite_swa,
    "helium": _helium,
    "hrm_text": _hrm_text,
    "hunyuan_v1_dense": partial(_biased, qk_norm=True),
    "hyperclovax": lambda c: _llama(c, norms_per_layer=4 if c.flag("use_post_norm") else 2),
    "internlm3": partial(uniform, qkv_bias="qkv_bias", out_bias="bias", mlp_bias="bias"),
    "iquestcoder": _llama,
    "jais2": _nemotron,
    "ministral": uniform,
    "ministral3": _ministral3,
    "mistral": uniform,
    "mllama": as_type("mllama_text_model", _mllama_text),
    "mllama_text_model": _mllama_text,
    "nanochat": partial(_without_norms, gated=False),
    "nemotron": _nemotron,
    "olmo": partial(_without_norms, gated=True),
    "olmo2": _olmo2,
    "olmo3": _olmo2,
    "phi3": uniform,
    "phi4_multimodal": uniform,
    "qwen2": partial(uniform, qkv_bias=True),
    "qwen3": partial(_biased, qk_norm=True),
    "seed_oss": partial(
        uniform, qkv_bias="attention_bias", out_bias="attention_out_bias", mlp_bias="mlp_bias"
    ),
    "smollm3": _smollm3,
    "vaultgemma": _vaultgemma,
}
