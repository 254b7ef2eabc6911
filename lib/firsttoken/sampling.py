"""From logits to the next token: temperature, filters, penalties, and the draw itself.

All compute in the format of the logits and return it, but in float32 for float16, and in float64
for whole numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np

from firsttoken.checks import check_count

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


@dataclass(frozen=True)
class SamplingParams:
    """How one request wants its tokens chosen; the names and defaults are those of vLLM.

    As there, a top_k of -1 is taken as 0 and a stop of None as (): no limit, no string.
    Generation ends after `max_tokens`, or where the text contains one of the strings `stop`.
    `seed` makes a sampled text repeatable; None draws afresh.

    Raises: ValueError that names the field.

    >>> SamplingParams(temperature=0.0, stop="end").stop
    ('end',)
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int = 16
    stop: tuple[str, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0, np.inf),
            ("top_p", 0, 1),
            ("min_p", 0, 1),
            ("repetition_penalty", 0, np.inf),
            ("presence_penalty", -2, 2),
            ("frequency_penalty", -2, 2),
        ):
            value = getattr(self, name)
            if not isinstance(value, Real) or not low <= float(value) <= high or value == np.inf:
                raise ValueError(f"{name} must be a number within {low} … {high}, got {value!r}")
        if self.repetition_penalty == 0:
            raise ValueError("repetition_penalty must be above 0, got 0")
        for name, low in (("top_k", -1), ("max_tokens", 1), ("seed", 0)):
            value = getattr(self, name)
            if not (name == "seed" and value is None):
                check_count(name, value, at_least=low)
        object.__setattr__(self, "top_k", max(self.top_k, 0))
        # A bare string is one stop string, not a sequence of letters.
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        stop = () if stop is None else stop
        if not (isinstance(stop, Iterable) and all(isinstance(s, str) and s for s in stop)):
            raise ValueError(f"stop must be non-empty strings, got {self.stop!r}")
        object.__setattr__(self, "stop", tuple(stop))


def penalize(
    logits: Array,
    params: SamplingParams,
    prompt_ids: Sequence = (),
    output_ids: Sequence = (),
) -> Array:
    """Return the logits after the penalties, which come before all else: repetition first.

    The repetition penalty looks at prompt and output, presence and frequency at the output only.
    The largest of what comes out is the token at temperature 0: no filter drops it.

    Shapes: logits and result: (V,) with one list of ids each, or (B, V) with one list per row
    Raises: ValueError as the penalties do.

    >>> params = SamplingParams(repetition_penalty=2.0)
    >>> penalize(np.array([3.0, 2.0]), params, prompt_ids=[0]).tolist()
    [1.5, 2.0]
    """
    logits, _ = _checked(logits)
    if params.repetition_penalty != 1:
        seen = (_counts(logits, prompt_ids) > 0) | (_counts(logits, output_ids) > 0)
        logits = _penalize_seen(logits, seen, params.repetition_penalty)
    if params.presence_penalty or params.frequency_penalty:
        logits = penalize_presence_frequency(
            logits,
            _counts(logits, output_ids),
            params.presence_penalty,
            params.frequency_penalty,
        )
    return logits


def next_token_distribution(
    logits: Array,
    params: SamplingParams,
    prompt_ids: Sequence = (),
    output_ids: Sequence = (),
) -> Array:
    """Return the probabilities of the next token: penalties, temperature, min-p, top-k, top-p.

    Each step sees what the one before left, renormalised. The repetition penalty looks at
    prompt and output, presence and frequency at the output only.

    Shapes: logits and result: (V,) with one list of ids each, or (B, V) with one list per row
    Raises: ValueError as the steps do.
    Source: the order of vLLM v1 (vllm/v1/sample/sampler.py)

    >>> params = SamplingParams(top_k=2)
    >>> next_token_distribution(np.log([0.1, 0.3, 0.6]), params).round(3).tolist()
    [0.0, 0.333, 0.667]
    """
    logits = penalize(logits, params, prompt_ids, output_ids)
    if params.temperature != 1:
        logits = apply_temperature(logits, params.temperature)
    if params.min_p > 0:
        logits = keep_min_p(logits, params.min_p)
    if params.top_k > 0:
        logits = keep_top_k(logits, params.top_k)
    if params.top_p < 1:
        logits = keep_top_p(logits, params.top_p)
    return softmax(logits)


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


def _checked_weights(probabilities: Array) -> Array:
    """Return probabilities as float64: not negative, finite, and not all 0 in any row."""
    weights = np.asarray(probabilities, dtype=np.float64)
    if weights.ndim == 0 or weights.shape[-1] == 0:
        raise ValueError(f"probabilities must be (…, V), V at least 1, got shape {weights.shape}")
    largest = weights.max(axis=-1)
    if not (np.all(weights >= 0) and np.all((largest > 0) & (largest < np.inf))):
        raise ValueError(f"probabilities must be not negative, finite, not all 0; got {weights}")
    return weights


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
