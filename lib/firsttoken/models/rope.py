"""Rotary position embedding (RoPE): what tells a model where a token stands."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray


def rope_frequencies(
    head_dim: int, theta: float = 10000.0, scaling: Mapping[str, Any] | None = None
) -> Array:
    """Return how far one position turns each pair of features, fast pairs first.

    `scaling` stretches the context a model was trained for: `linear` slows every pair down by
    `factor`; `llama3` only the slow ones, whose wave was longer than the training context.

    Shapes: result (H/2,), float32
    Units:  radians per position
    Raises: ValueError for an odd head_dim, another rope_type, a missing or bad parameter.
    Source: Su et al. 2021, arXiv:2104.09864, sec. 3.2.2; Chen et al. 2023, arXiv:2306.15595
            (linear); transformers 5.23, modeling_rope_utils.py (llama3)

    >>> rope_frequencies(4, theta=16.0).tolist()
    [1.0, 0.25]
    """
    if head_dim < 2 or head_dim % 2:
        raise ValueError(f"head_dim must be even to form pairs, got {head_dim}")
    if theta <= 0:
        raise ValueError(f"rope_theta must be positive, got {theta}")
    # float32 throughout, as the models were trained: at far positions the rounding shows.
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / head_dim
    frequencies = 1 / float(theta) ** exponents
    if scaling is None:
        return frequencies
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "default":
        return frequencies
    if kind == "linear":
        return frequencies / _positive(scaling, "factor")
    if kind != "llama3":
        raise ValueError(f"rope_type {kind!r} is not supported; expected default, linear, llama3")
    factor = _positive(scaling, "factor")
    low, high = (_positive(scaling, name) for name in ("low_freq_factor", "high_freq_factor"))
    context = _positive(scaling, "original_max_position_embeddings")
    if low >= high:
        raise ValueError(f"low_freq_factor {low} must be less than high_freq_factor {high}")
    turns = context * frequencies / np.float32(2 * math.pi)  # within the training context
    keep = np.clip((turns - low) / (high - low), 0, 1)  # 1: as trained, 0: slowed by the factor
    return (1 - keep) * frequencies / factor + keep * frequencies


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Turn each pair (x_i, x_{i+H/2}) by the angle of its position and frequency (RoPE).

    The dot product of a rotated query and key then depends on their distance only.

    Shapes: x (B, heads, T, H); cos, sin (T, H/2); result as x
    Source: Su et al. 2021, arXiv:2104.09864, eq. 34, with the pairing of Hugging Face's Llama

    >>> rotate(np.array([1.0, 0.0]), np.array([0.0]), np.array([1.0])).tolist()  # by 90 degrees
    [0.0, 1.0]
    """
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _positive(scaling: Mapping[str, Any], name: str) -> float:
    value = scaling.get(name)
    if not isinstance(value, int | float) or value <= 0:
        raise ValueError(f"rope_scaling needs a positive {name}, got {value!r}")
    return float(value)
