"""Inkling: a bias for each distance in place of rotation, and short convolutions in each layer."""

import dataclasses
from collections.abc import Callable
from typing import Any

from firsttoken.architectures.architecture import Architecture
from firsttoken.architectures.config import Config
from firsttoken.architectures.families.common import (
    Table,
    experts,
    layer,
    mlp,
    of_layers,
    sparse_layers,
    stack,
    which_layers,
)
from firsttoken.architectures.layers import Attention, Recurrent

_OUTSIDE: Any = {"tied_embeddings": False, "rope_theta": None, "rope_scaling": None}


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
    is_local = _local(c, lambda i: (i + 1) % 6 if local is None else i in local)
    mixers = []
    for mixer in (_relative_attention(c, one) for one in is_local):
        normed = _plus(mixer, norm_params=2 * mixer.head_dim)
        mixers.append((normed, _convolutions(c, mixer)))
    sparse = sparse_layers(c, c.count("dense_mlp_idx", 0))
    mlps = [moe if one else _plus(mlp(c, width), bias_params=1) for one in sparse]
    return of_layers(c, stack(c, mixers, mlps), **_OUTSIDE, norm_params=2 * c.width)


def _inkling2(c: Config) -> Architecture:
    """As Inkling; attention has gates and sinks, and a part's input is chosen from earlier ones.

    Where there is no window, queries, keys and values choose theirs apart, each with a norm, and
    the weights of the convolutions of keys and values are computed.
    """
    moe = experts(c, width="intermediate_size")
    kernel = c.count("conv_kernel_size", at_least=1)
    layers = []
    for i, local in enumerate(_local(c, lambda i: (i + 1) % 6)):
        mixer = _relative_attention(c, local)
        n_heads, dim = mixer.n_heads, mixer.head_dim
        convolutions = _convolutions(c, mixer)
        n_inputs = 1 if local else 3
        if not local:
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


def _local(c: Config, default: Callable[[int], object]) -> list[bool]:
    return which_layers(c, "layer_types", ("hybrid", "hybrid_sliding"), default)


def _relative_attention(c: Config, local: bool) -> Attention:
    """Return attention with a bias for each distance, made of a few numbers per head and token."""
    of_kind = "swa_" if local else ""
    n_heads = c.count(f"{of_kind}num_attention_heads", at_least=1)
    window = c.count("sliding_window_size", at_least=1) if local else None
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


INKLING: Table = {"inkling_text": _inkling, "inkling2_text": _inkling2}
