"""What is done to logits before a token is drawn: softmax, temperature, filters, penalties.

All compute in the format of the logits and return it, but in float32 for float16, and in float64
for whole numbers.
"""

from collections.abc import Sequence

import numpy as np

Array = np.ndarray


def softmax(logits: Array) -> Array:
    """Return the probabilities that logits stand for; -inf becomes exactly 0.

    Shapes: logits and result: (…, V)
    Raises: ValueError for NaN or +inf, and for a row without a finite logit.

    >>> softmax(np.log([1.0, 3.0])).tolist()
    [0.25, 0.75]
    """
    logits, top = _checked(logits)
    weights = np.exp(logits - top)  # the largest becomes exp(0): no overflow
    return weights / weights.sum(axis=-1, keepdims=True)


def log_softmax(logits: Array) -> Array:
    """Return the logarithms of the probabilities that logits stand for, in float64.

    A sum of many needs the digits; -inf stays -inf.

    Shapes: logits and result: (…, V)

    >>> log_softmax(np.log([1.0, 3.0])).round(3).tolist()
    [-1.386, -0.288]
    """
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def apply_temperature(logits: Array, temperature: float | Array) -> Array:
    """Divide the logits by the temperature: below 1 sharper, above 1 flatter, the order stays.

    0 is the limit, greedy choice: everything but the first of the largest logits is dropped.

    Shapes: logits and result: (…, V); temperature: a number, or (…) for one per row
    Raises: ValueError as `softmax`, and for a temperature that is negative or not finite.

    >>> apply_temperature(np.array([1.0, 3.0, 3.0]), 0.5).tolist()
    [2.0, 6.0, 6.0]
    >>> apply_temperature(np.array([1.0, 3.0, 3.0]), 0).tolist()
    [-inf, 3.0, -inf]
    """
    logits, top = _checked(logits)
    temperature = per_row("temperature", temperature, logits.shape[:-1], 0, np.inf)
    if np.all(temperature == 1):
        return logits
    if np.any(temperature == 0):
        greedy = np.full_like(logits, -np.inf)
        np.put_along_axis(greedy, logits.argmax(axis=-1, keepdims=True), top, axis=-1)
        if np.all(temperature == 0):
            return greedy
    exact = np.where(temperature > 0, temperature, 1)
    divisor = np.minimum(exact, np.finfo(logits.dtype).max).astype(logits.dtype)
    with np.errstate(all="ignore"):  # what overflows here is replaced below
        scaled = logits / divisor
        overflow = ~np.isfinite(top / divisor)
        if np.any(overflow):
            # A tiny temperature can push even the largest logit to infinity. Softmax sees
            # differences only, so count from the top there.
            shifted = (logits.astype(np.float64) - top) / exact
            scaled = np.where(overflow, shifted, scaled).astype(logits.dtype)
    return np.where(temperature > 0, scaled, greedy) if np.any(temperature == 0) else scaled


def keep_top_k(logits: Array, k: int | Array) -> Array:
    """Drop all but the k largest logits: exactly k, of equal ones those with the lower id.

    k = 0 and k ≥ V keep everything.

    Shapes: logits and result: (…, V), -inf where dropped; k: a number, or (…) for one per row
    Raises: ValueError as `softmax`, and for a k that is negative or no integer.
    Source: Fan et al. 2018, arXiv:1805.04833, sec. 5.4

    >>> keep_top_k(np.array([1.0, 2.0, 2.0, 2.0]), 2).tolist()
    [-inf, 2.0, 2.0, -inf]
    """
    logits, _ = _checked(logits)
    k = per_row("top_k", k, logits.shape[:-1], 0, np.inf, whole=True)
    n_vocab = logits.shape[-1]
    n_kept = np.where(k == 0, n_vocab, np.minimum(k, n_vocab))
    if np.all(n_kept == n_vocab):
        return logits
    # A full sort would do; it is enough that the place of the n-th largest is right.
    rising = np.partition(logits, np.unique(n_vocab - n_kept), axis=-1)
    return _keep_largest(logits, rising, n_kept)


def keep_top_p(logits: Array, p: float | Array) -> Array:
    """Keep the smallest set of the likeliest tokens whose probability together reaches p.

    Tokens are taken by falling probability, equal ones by rising id, and the one that crosses
    p belongs to the set; so it is never empty. A sum that misses p by rounding only (1e-12;
    for float32 logits 2.4e-7) counts as having reached it.

    Shapes: logits and result: (…, V), -inf where dropped; p: a number, or (…) for one per row
    Raises: ValueError as `softmax`, and for a p outside 0 … 1.
    Source: Holtzman et al. 2020, arXiv:1904.09751, sec. 3.1

    >>> keep_top_p(np.log([0.2, 0.5, 0.3]), 0.6).round(2).tolist()
    [-inf, -0.69, -1.2]
    """
    logits, _ = _checked(logits)
    p = per_row("top_p", p, logits.shape[:-1], 0, 1)
    if np.all(p == 1):
        return logits
    rising = np.sort(logits, axis=-1)
    mass = softmax(rising[..., ::-1].astype(np.float64)).cumsum(axis=-1)
    short = mass[..., :-1] < p - rounding_slack(logits)  # with so many tokens p is not yet reached
    n_kept = np.where(p == 1, logits.shape[-1], 1 + short.sum(axis=-1, keepdims=True))
    return _keep_largest(logits, rising, n_kept)


def keep_min_p(logits: Array, min_p: float | Array) -> Array:
    """Keep the tokens at least min_p times as likely as the likeliest; 0 keeps everything.

    In logits that is a distance from the top, so no softmax is needed. A token that misses the
    bound by rounding only (1e-12; for float32 logits 2.4e-7) is kept.

    Shapes: logits and result: (…, V), -inf where dropped; min_p: a number, or (…), one per row
    Raises: ValueError as `softmax`, and for a min_p outside 0 … 1.
    Source: Nguyen et al. 2025, arXiv:2407.01082, sec. 3

    >>> keep_min_p(np.log([0.1, 0.3, 0.6]), 0.5).round(2).tolist()
    [-inf, -1.2, -0.51]
    """
    logits, top = _checked(logits)
    min_p = per_row("min_p", min_p, logits.shape[:-1], 0, 1)
    if np.all(min_p == 0):
        return logits
    with np.errstate(divide="ignore"):
        distance = np.log(min_p)  # log(0) = -inf keeps everything
    kept = logits >= top + distance - rounding_slack(logits)
    return np.where(kept, logits, -np.inf)


def penalize_repetition(logits: Array, tokens: Sequence, penalty: float | Array) -> Array:
    """Make tokens that were seen less likely: positive logits divided, negative multiplied.

    Once per token, however often it was seen. Not a function of the probabilities alone:
    adding a constant to all logits changes the outcome.

    Shapes: logits and result: (…, V); tokens: ids for (V,), one list per row for (B, V)
    Raises: ValueError as `softmax`, for an id outside the vocabulary and a penalty not above 0.
    Source: Keskar et al. 2019, arXiv:1909.05858, sec. 4.1; the sign rule is that of
            transformers (RepetitionPenaltyLogitsProcessor)

    >>> penalize_repetition(np.array([2.0, -2.0, 2.0]), [0, 0, 1], 2.0).tolist()
    [1.0, -4.0, 2.0]
    """
    logits, _ = _checked(logits)
    return _penalize_seen(logits, _counts(logits, tokens) > 0, penalty)


def penalize_presence_frequency(
    logits: Array, counts: Array, presence: float | Array, frequency: float | Array
) -> Array:
    """Lower the logits of tokens by how often they were generated: once, and per occurrence.

    Shapes: logits, counts and result: (…, V); presence, frequency: numbers, or (…)
    Raises: ValueError as `softmax`, for negative counts, and for penalties outside -2 … 2.
    Source: OpenAI API reference, presence_penalty and frequency_penalty

    >>> penalize_presence_frequency(np.zeros(3), np.array([0, 1, 3]), 0.5, 0.1).round(2).tolist()
    [0.0, -0.6, -0.8]
    """
    logits, _ = _checked(logits)
    presence = per_row("presence_penalty", presence, logits.shape[:-1], -2, 2)
    frequency = per_row("frequency_penalty", frequency, logits.shape[:-1], -2, 2)
    counts = np.asarray(counts)
    if counts.shape != logits.shape or np.any(counts < 0):
        raise ValueError(f"counts must be {logits.shape} and not negative, got {counts.shape}")
    return (logits - presence * (counts > 0) - frequency * counts).astype(logits.dtype)


def as_floats(logits: Array) -> Array:
    """Return logits in a format to compute in: float16 as float32, whole numbers as float64.

    Its sums would end at 65,504 in float16, which is less than a vocabulary may have tokens.
    """
    logits = np.asarray(logits)
    if logits.dtype == np.float32:
        return logits
    if logits.dtype.kind != "f":
        return logits.astype(np.float64)
    return logits.astype(np.float32) if logits.dtype == np.float16 else logits


def _checked(logits: Array) -> tuple[Array, Array]:
    """Return logits as floats, and the largest of each row (…, 1), which must be finite."""
    logits = as_floats(logits)
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ValueError(f"logits must be (…, V) with V at least 1, got shape {logits.shape}")
    top = logits.max(axis=-1, keepdims=True)  # NaN if any logit is NaN
    if not np.all(np.isfinite(top)):
        found = top[~np.isfinite(top)][0]
        raise ValueError(f"logits must hold no NaN and a finite largest value, got {found}")
    return logits, top


def per_row(
    name: str,
    value: float | Array,
    rows: tuple[int, ...],
    low: float,
    high: float,
    whole: bool = False,
) -> Array:
    """Return a parameter as () or (…, 1), so that it broadcasts against logits (*rows, V)."""
    value = np.asarray(value)
    if value.dtype.kind not in ("iu" if whole else "iuf"):
        raise ValueError(f"{name} must be {'whole' if whole else 'real'} numbers, got {value}")
    if value.shape not in ((), rows):
        raise ValueError(f"{name} must be one number or {rows}, one per row; got {value.shape}")
    if not np.all((value >= low) & (value <= high) & (value < np.inf)):
        raise ValueError(f"{name} must lie within {low} … {high}, got {value}")
    value = value.astype(np.int64) if whole else value  # a uint8 cannot be compared with V
    return value[..., None] if value.ndim else value


def _counts(logits: Array, ids: Sequence) -> Array:
    """Count how often each token of the vocabulary occurs in ids: (…, V)."""
    n_vocab = logits.shape[-1]
    if len(ids) == 0:
        return np.zeros(logits.shape, dtype=np.int64)
    rows = [ids] if logits.ndim == 1 else ids
    if logits.ndim > 2 or len(rows) * n_vocab != logits.size:
        raise ValueError(f"logits {logits.shape} need one list of ids per row, got {len(ids)}")
    flat = np.concatenate([np.zeros(0, dtype=np.int64), *[row for row in rows if len(row)]])
    if flat.dtype.kind not in "iu" or np.any((flat < 0) | (flat >= n_vocab)):
        raise ValueError(f"token ids must be integers in 0 … {n_vocab - 1}, got {flat}")
    row = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    return np.bincount(row * n_vocab + flat, minlength=logits.size).reshape(logits.shape)


def _penalize_seen(logits: Array, seen: Array, penalty: float | Array) -> Array:
    penalty = per_row("repetition_penalty", penalty, logits.shape[:-1], 0, np.inf)
    if np.any(penalty == 0):
        raise ValueError("repetition_penalty must be above 0, got 0")
    largest = np.finfo(logits.dtype).max
    with np.errstate(over="ignore"):  # beyond the largest number is the largest number
        penalized = np.where(logits > 0, logits / penalty, logits * penalty)
    penalized = np.clip(penalized, -largest, largest)
    return np.where(seen & np.isfinite(logits), penalized, logits).astype(logits.dtype)


def _keep_largest(logits: Array, rising: Array, n: Array) -> Array:
    """Keep the n (…, 1) largest of each row, of equal ones those with the lower id."""
    rank = np.broadcast_to(logits.shape[-1] - n, (*logits.shape[:-1], 1))
    least = np.take_along_axis(rising, rank, axis=-1)  # the smallest value that is kept
    above, ties = logits > least, logits == least
    n_ties = n - above.sum(axis=-1, keepdims=True)
    return np.where(above | (ties & (ties.cumsum(axis=-1) <= n_ties)), logits, -np.inf)


def rounding_slack(logits: Array) -> float:
    """What rounding may take from a sum of probabilities: a bound reached but for that counts."""
    return max(1e-12, 2 * float(np.finfo(logits.dtype).eps))
