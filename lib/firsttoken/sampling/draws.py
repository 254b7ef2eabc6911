"""Drawing a token from a distribution, in three ways that are one."""

import numpy as np

from firsttoken.sampling.logits import _checked

Array = np.ndarray


def draw(probabilities: Array, rng: np.random.Generator) -> Array:
    """Draw one id per row: where a uniform number falls among the summed probabilities.

    A token of probability 0 is never drawn.

    Shapes: probabilities (…, V); result (…), integers
    Raises: ValueError for negative or NaN probabilities, and sums that are not 1 within 1e-3.

    >>> int(draw(np.array([0.0, 1.0, 0.0]), np.random.default_rng(0)))
    1
    """
    probabilities = _checked_weights(probabilities)
    total = probabilities.sum(axis=-1)
    if not np.all(np.abs(total - 1) <= 1e-3):
        raise ValueError(f"probabilities must sum to 1, got {total}")
    return invert(probabilities, rng.random(total.shape))


def gumbel_max(logits: Array, rng: np.random.Generator) -> Array:
    """Draw one id per row from softmax(logits): the largest of logit plus Gumbel noise.

    No softmax and no sum over the vocabulary: each token competes alone.

    Shapes: logits (…, V); result (…), integers
    Raises: ValueError as `softmax`.
    Source: Maddison, Tarlow & Minka 2014, arXiv:1411.0030; the noise itself: Gumbel 1954

    >>> int(gumbel_max(np.array([-np.inf, 0.0, -np.inf]), np.random.default_rng(0)))
    1
    """
    logits, _ = _checked(logits)
    return (logits + rng.gumbel(size=logits.shape)).argmax(axis=-1)


def exponential_race(probabilities: Array, rng: np.random.Generator) -> Array:
    """Draw one id per row: token x arrives after a time Exp(1) / probability, the first wins.

    Gumbel-max in other clothes, as -log of an Exp(1) number is Gumbel noise. Multiplying all
    probabilities by one number changes no winner, so they need not sum to 1.

    Shapes: probabilities (…, V); result (…), integers
    Raises: ValueError for probabilities that are negative, NaN or infinite, and rows of zeros.
    Source: vLLM (vllm/v1/sample/ops/topk_topp_sampler.py, random_sample), whose q is the noise

    >>> int(exponential_race(np.array([0.0, 5.0, 0.0]), np.random.default_rng(0)))
    1
    """
    weights = _checked_weights(probabilities)
    weights = weights / weights.max(axis=-1, keepdims=True)  # so that no winner underflows
    times = np.full_like(weights, np.inf)  # probability 0 never arrives
    with np.errstate(over="ignore"):  # later than any number that can be written
        np.divide(rng.standard_exponential(weights.shape), weights, out=times, where=weights > 0)
    return times.argmin(axis=-1)


def invert(weights: Array, uniform: Array) -> Array:
    """Return where uniform numbers (…) from [0, 1) fall among the summed weights (…, V)."""
    mass = weights.cumsum(axis=-1, dtype=np.float64)
    # The first place whose sum is above the threshold raised it: its weight is not 0.
    return (mass <= uniform[..., None] * mass[..., -1:]).sum(axis=-1)


def _checked_weights(probabilities: Array) -> Array:
    """Return probabilities as float64: not negative, finite, and not all 0 in any row."""
    weights = np.asarray(probabilities, dtype=np.float64)
    if weights.ndim == 0 or weights.shape[-1] == 0:
        raise ValueError(f"probabilities must be (…, V), V at least 1, got shape {weights.shape}")
    largest = weights.max(axis=-1)
    if not (np.all(weights >= 0) and np.all((largest > 0) & (largest < np.inf))):
        raise ValueError(f"probabilities must be not negative, finite, not all 0; got {weights}")
    return weights
