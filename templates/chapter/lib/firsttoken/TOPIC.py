"""How often two draws from one distribution agree, and how many choices that is."""

import numpy as np


def agreement(p: np.ndarray) -> np.ndarray:
    """Return the probability that two independent draws from `p` are the same token.

    Both are token x with probability p[x]², and only one token can be both.

    Shapes: p: (..., V); the result: (...)
    Units:  probability; each p sums to 1.
    Raises: ValueError where an entry is negative or a sum is not 1.
    Source: Simpson 1949, Nature 163, p. 688: the measure λ of a population.

    >>> float(agreement(np.array([0.5, 0.5])))
    0.5
    """
    p = np.asarray(p, dtype=float)
    if p.ndim == 0 or (p < 0).any() or not np.allclose(p.sum(axis=-1), 1, atol=1e-6):
        raise ValueError(f"p must hold probabilities that sum to 1 along its last axis; got {p}")
    return np.sum(p**2, axis=-1)


def effective_choices(p: np.ndarray) -> np.ndarray:
    """Return of how many equally likely tokens two draws would agree as often as those from `p`.

    Shapes: p: (..., V); the result: (...), from 1 to V
    Raises: ValueError as `agreement`.
    Source: the reciprocal of `agreement`, which is 1/V for V equally likely tokens.

    >>> float(effective_choices(np.full(8, 1 / 8)))
    8.0
    """
    return 1 / agreement(p)
