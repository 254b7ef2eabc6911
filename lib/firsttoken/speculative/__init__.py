"""Speculative decoding: chapter 12.

`verification` is the rule that keeps guesses or corrects them, `speed` what it brings, `trees` the
same rule for guesses that form a tree, and `speculative_torch` checks a whole batch in PyTorch.
"""

from firsttoken.speculative.speed import (
    acceptance_by_position,
    best_gamma,
    expected_tokens,
    roofline_costs,
    speedup,
)
from firsttoken.speculative.verification import (
    Round,
    acceptance_rate,
    acceptance_rule,
    verify,
    verify_greedy,
)

__all__ = [
    "Round",
    "acceptance_by_position",
    "acceptance_rate",
    "acceptance_rule",
    "best_gamma",
    "expected_tokens",
    "roofline_costs",
    "speedup",
    "verify",
    "verify_greedy",
]
