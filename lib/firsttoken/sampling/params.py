"""A request's sampling parameters, and the distribution of the next token that they make."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np

from firsttoken.checks import check_count
from firsttoken.sampling.logits import (
    _checked,
    _counts,
    _penalize_seen,
    apply_temperature,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalize_presence_frequency,
    softmax,
)

Array = np.ndarray


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
