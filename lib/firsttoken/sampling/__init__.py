"""From logits to the next token: chapter 11.

`logits` has temperature, filters and penalties, `params` the options of a request and the
distribution they make, `draws` the draw itself. `shortlist` does the same for many rows without a
pass over the vocabulary for each, and `sampling_torch` where logits live in PyTorch. `constrained`
masks what a language does not allow; `automaton` makes that language of a regular expression.
"""

from firsttoken.sampling.draws import draw, exponential_race, gumbel_max
from firsttoken.sampling.logits import (
    apply_temperature,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalize_presence_frequency,
    penalize_repetition,
    softmax,
)
from firsttoken.sampling.params import SamplingParams, next_token_distribution, penalize

__all__ = [
    "SamplingParams",
    "apply_temperature",
    "draw",
    "exponential_race",
    "gumbel_max",
    "keep_min_p",
    "keep_top_k",
    "keep_top_p",
    "next_token_distribution",
    "penalize",
    "penalize_presence_frequency",
    "penalize_repetition",
    "softmax",
]
