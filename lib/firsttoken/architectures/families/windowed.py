"""Families with experts and a window in most layers; some have gates, or short convolutions."""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from firsttoken.architectures.architecture import Architecture
from firsttoken.architectures.config import Config
from firsttoken.architectures.families.common import (
    attention,
    experts,
    layer,
    local_windows,
    mlp,
    of_layers,
    which_layers,
)
from firsttoken.architectures.layers import Attention, Experts, Recurrent

_BIASED: Any = {"qkv_bias": "attention_bias", "out_bias": "attention_bias"}
_OUTSIDE: Any = {"tied_embeddings": False, "rope_theta": None, "rope_scaling": None}  # of Inkling


def _beam(c: Config) -> Architecture:
    """Gated attention, of which the layers without a window turn nothing."""
    turned = bool(c.object("rope_parameters").get("full_attention"))
    windows = local_windows(c, lambda i: (i + 1) % 6 and i + 1 < c.n_layers)
    sparse = which_layers(c, "mlp_layer_types", ("dense", "sparse"), lambda i: i > 2)
    mixers = [
        attention(
            c,
            **_BIASED,
            qk_norm=2 * c.head_dim,
            window=window,
            rotated=turned or window is not None,
            extra_matrices=c.width * c.n_heads * c.head_dim,
            bias_params=c.n_heads,
        )
        for window in windows
    ]
    pairs = zip(mixers, sparse, strict=True)
    return of_layers(c, [layer(c, mixer, experts(c) if one else mlp(c), 4) for mixer, one in pairs])


def _flint(c: Config) -> Architecture:
    dense = c.items_of("mlp_only_layers")
    dense = (0, 1) if dense is None else dense
    step = c.count("decoder_sparse_step", 1, at_least=1)
    n = c.count("num_experts")
    windows = local_windows(c, lambda i: i > 1 and i % 4 != 1 and i + 1 < c.n_layers)
    mixers = [
        attention(c, **_BIASED, qk_norm=2 * c.head_dim, sinks=True, window=window)
        for window in windows
    ]
    return of_layers(
        c,
        [
            layer(c, mixer, _experts(c) if n and i not in dense and (i + 1) % step == 0 else mlp(c))
            for i, mixer in enumerate(mixers)
        ],
    )


def _kolibri1(c: Config) -> Architecture:
    mixers = [
        attention(c, qk_norm=2 * c.head_dim, window=window)
        for window in local_windows(c, lambda i: (i + 1) % 5)
    ]
    return of_layers(c, [layer(c, mixer, _experts(c), n_norms=4) for mixer in mixers])


def _experts(c: Config) -> Experts:
    return experts(c, shared_d_ff=c.count("shared_expert_intermediate_size"))


def _inkling(c: Config) -> Architecture:
    """A bias for each distance, no rotation; convolutions behind keys, values and both parts."""
    width = c.maybe("dense_intermediate_size", at_least=1)
    if width is not None:  # as released: the other width is that of experts
        c = Config({**c, "moe_intermediate_size": c["intermediate_size"]})
    n, shared = c.count("n_routed_experts", at_least=1), c.count("n_shared_experts", 0)
    moe = experts(
        c,
        shared_d_ff=shared * c.count("moe_intermediate_size", at_least=1),
        router_matrix=(n + shared) * c.width,
        bias_params=1,  # a scale
    )
    local = c.items_of("local_layer_ids")
    near = _near(c, lambda i: (i + 1) % 6 if local is None else i in local)
    first = c.count("dense_mlp_idx", 0)
    sparse = which_layers(c, "mlp_layer_types", ("dense", "sparse"), lambda i: i >= first)
    mixers = [_relative_attention(c, one) for one in near]
    layers = [
        layer(
            c,
            (_plus(mixer, norm_params=2 * mixer.head_dim), _convolutions(c, mixer)),
            moe if one else _plus(mlp(c, width), bias_params=1),
        )
        for mixer, one in zip(mixers, sparse, strict=True)
    ]
    return of_layers(c, layers, **_OUTSIDE, norm_params=2 * c.width)


def _inkling2(c: Config) -> Architecture:
    """As Inkling; attention has gates and sinks, and a part's input is chosen from earlier ones.

    Where there is no window, queries, keys and values choose theirs apart, each with a norm, and
    the weights of the convolutions of keys and values are computed.
    """
    moe = experts(c, width="intermediate_size")
    kernel = c.count("conv_kernel_size", at_least=1)
    layers = []
    for i, near in enumerate(_near(c, lambda i: (i + 1) % 6)):
        mixer = _relative_attention(c, near)
        n_heads, dim = mixer.n_heads, mixer.head_dim
        convolutions = _convolutions(c, mixer)
        n_inputs = 1 if near else 3
        if not near:
            convolutions = _plus(convolutions, weights=2 * c.width * mixer.n_kv_heads * kernel)
        mixer = _plus(
            mixer,
            extra_matrices=c.width * n_heads * (dim + 1),
            norm_params=n_heads * (dim + c.count("d_rel")),
        )
        chosen = c.width * (1 + (n_inputs if i else 0))
        layers.append(
            layer(c, (mixer, convolutions), moe, n_norms=1 + n_inputs, other_params=chosen)
        )
    return of_layers(c, layers, **_OUTSIDE, norm_params=3 * c.width)


def _near(c: Config, default: Callable[[int], object]) -> list[bool]:
    return which_layers(c, "layer_types", ("hybrid", "hybrid_sliding"), default)


def _relative_attention(c: Config, near: bool) -> Attention:
    """Return attention with a bias for each distance, made of a few numbers per head and token."""
    of_kind = "swa_" if near else ""
    n_heads = c.count(f"{of_kind}num_attention_heads", at_least=1)
    window = c.count("sliding_window_size", at_least=1) if near else None
    reach = window or c.count("rel_extent", at_least=1)
    return Attention(
        n_heads,
        c.count(f"{of_kind}num_key_value_heads", at_least=1),
        c.count(f"{of_kind}head_dim", at_least=1),
        window=window,
        rotated=False,
        extra_matrices=c.count("d_rel", at_least=1) * (c.width * n_heads + reach),
    )


def _convolutions(c: Config, mixer: Attention) -> Recurrent:
    """Return the four convolutions of a layer as one, over all their channels."""
    channels = 2 * mixer.n_kv_heads * mixer.head_dim + 2 * c.width
    inputs = channels * c.count("conv_kernel_size", at_least=1)
    return Recurrent("short convolution", weights=inputs, state_elements=0, conv_elements=inputs)


def _plus(part: Any, **more: int) -> Any:
    """Return the part with more of some fields."""
    return dataclasses.replace(part, **{name: getattr(part, name) + n for name, n in more.items()})


WINDOWED: Mapping[str, Callable[[Config], Architecture]] = MappingProxyType(
    {
        "beam": _beam,
        "flint": _flint,
        "inkling_text": _inkling,
        "inkling2_text": _inkling2,
        "kolibri1": _kolibri1,
    }
)
