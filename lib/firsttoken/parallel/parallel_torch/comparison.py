"""What each experiment returns: how far the result is from one device's, and what was sent."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Comparison:
    """A result of n processes beside that of one.

    `max_difference` is the largest |difference| of a number, `largest` the largest |number| of the
    one device's result: adding in another order moves the last bits of it. `sent` maps each
    collective to the bytes that were counted, all processes together, `expected` to those of the
    closed form.

    Units: bytes
    """

    n: int
    max_difference: float
    largest: float
    sent: Mapping[str, int]
    expected: Mapping[str, int]


def compare(
    got: np.ndarray,
    alone: np.ndarray,
    sent: Iterable[Mapping[str, int]],
    expected: Mapping[str, int],
) -> Comparison:
    """Compare a result with one device's; `sent`: what each process has counted."""
    counts = list(sent)
    if got.shape != alone.shape:
        raise ValueError(f"got {got.shape} must have the shape of the one device's {alone.shape}")
    total = dict(sum(map(Counter, counts), Counter()))
    # Where nothing is to be sent, nothing is counted: a group of one.
    expected = {name: n_bytes for name, n_bytes in expected.items() if n_bytes}
    difference, largest = np.abs(got - alone).max(initial=0.0), np.abs(alone).max(initial=0.0)
    return Comparison(len(counts), float(difference), float(largest), total, expected)
