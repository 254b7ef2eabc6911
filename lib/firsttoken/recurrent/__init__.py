"""Layers and models without a growing cache: chapter 08.

`layers` has linear attention, the gated delta rule and state-space models; `diffusion` writes text
by unmasking.
"""

from firsttoken.recurrent.layers import (
    discretize,
    gated_delta,
    gated_delta_step,
    linear_attention,
    linear_attention_step,
    ssm,
    ssm_step,
)

__all__ = [
    "discretize",
    "gated_delta",
    "gated_delta_step",
    "linear_attention",
    "linear_attention_step",
    "ssm",
    "ssm_step",
]
