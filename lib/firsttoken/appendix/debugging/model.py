"""The text is wrong, and the model or its cache may be why: checks that run the model."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np

from firsttoken.appendix.debugging.finding import HEALTHY, Finding
from firsttoken.engine import decision_margins
from firsttoken.generate import generate
from firsttoken.models.protocols import Model
from firsttoken.sampling import SamplingParams, softmax

Array = np.ndarray

# Logits of one pass and of several differ by rounding alone: by 1e-5 for the shipped model.
_ROUNDING = 1e-2


def why_nonsense(model: Model, ids: Sequence[int], tolerance: float = _ROUNDING) -> Finding:
    """Say why a model writes nonsense: whether its passes agree with each other.

    What comes later must not change what was said before (mask). Prompt in one pass and the rest
    token by token must give what one pass over all gives. Where they differ, and token by token
    from the very start they do not, each token that comes alone stands as many places too far:
    among themselves all are right (position). Else a key is lost or stands wrong. Where all passes
    agree, the loss must be less than that of a blind guess (weights).

    Shapes: ids: a text of the model's language, at least 4
    Units:  tolerance in logits: what rounding may change
    Raises: ValueError for fewer ids.
    """
    ids = _at_least(ids, 4)
    half = len(ids) // 2
    whole = np.asarray(model([ids]))[0]
    if not np.isfinite(whole).all():
        return Finding("no numbers", "Logits are infinite or no numbers: an overflow, as of fp16.")
    before = np.asarray(model([ids[:half]]))[0]
    seen_ahead = float(np.abs(whole[:half] - before).max())
    if seen_ahead > tolerance:
        return Finding(
            "mask",
            f"Later tokens change the logits before them by {seen_ahead:.2g}; nothing may.",
        )
    apart = float(np.abs(_in_two(model, ids, half) - whole[half:]).max())
    if apart <= tolerance:
        loss, blind = float(_losses(model, ids).mean()), float(np.log(whole.shape[-1]))
        if loss >= blind:
            return Finding("weights", f"A loss of {loss:.1f} nats; a blind guess has {blind:.1f}.")
        return Finding(HEALTHY, f"One pass and token by token agree within {apart:.1g}.")
    from_start = float(np.abs(_in_two(model, ids, 1) - whole[1:]).max())
    said = f"Behind a prompt logits are off by {apart:.2g}"
    if from_start <= tolerance:
        return Finding("position", f"{said}, token by token from the start they are not.")
    return Finding(
        "cache or positions", f"{said}, token by token from the start by {from_start:.2g}."
    )


def why_long_prompts_fail(
    model: Model, ids: Sequence[int], far: int, near: int = 40, passage: int = 40
) -> Finding:
    """Say why a model loses a long text: whether it still finds what stands far back.

    A passage that has been read before is easier to predict. The check compares what that saves
    when `near` tokens of other text lie between the two, and when `far` do. Where little is left
    of it, the text is beyond the context that the architecture names, or, within it, turned by
    another RoPE base or scaling, cut off by a window, or longer than what the model learned to use.
    A wrong base that still helps at `far` is not seen. Below a tenth of `near` counts as little.

    Shapes: ids: a text of at least far + 3 · passage tokens
    Units:  near, far, passage in tokens; evidence in nats per token
    Raises: ValueError for a text that is too short, and a far that is not beyond near.
    """
    if not near < far:
        raise ValueError(f"far must be more than near, {near}, got {far}")
    ids = _at_least(ids, far + 3 * passage)
    saved = {n: _saved_by_reading_twice(model, ids, n, passage) for n in (near, far)}
    said = (
        f"Read before, a token costs {saved[near]:.2f} nats less; {far} tokens on {saved[far]:.2f}"
    )
    if saved[far] > 0.1 * saved[near]:
        return Finding(HEALTHY, f"{said}.")
    context, n_read = model.arch.max_context, far + 2 * passage
    if context is not None and n_read > context:
        return Finding("beyond the context", f"{said}: {n_read} tokens, trained up to {context}.")
    return Finding(
        "within the context", f"{said}: RoPE base or scaling, a window, or it never learned more."
    )


def why_it_repeats(model: Model, prompt_ids: Sequence[int], params: SamplingParams) -> Finding:
    """Say why an answer ends in a loop.

    A prompt that repeats itself asks for more of it. A loop that goes away without the cache is the
    cache's. A greedy loop that goes away when tokens are drawn is the greedy choice's. What loops
    in all these cases is in the weights.

    Shapes: prompt_ids: at least one id
    Raises: ValueError as `generate`.
    """
    params = replace(params, seed=params.seed or 0)  # the same draws with and without the cache
    period = loop_period(generate(model, prompt_ids, params).ids)
    if period == 0:
        return Finding(HEALTHY, f"The last of {params.max_tokens} tokens repeat nothing.")
    said = f"The answer ends in a loop of {period} tokens"
    if own := loop_period(prompt_ids):
        return Finding("prompt", f"{said}, and the prompt in one of {own}.")
    if loop_period(generate(model, prompt_ids, params, use_cache=False).ids) == 0:
        return Finding("cache", f"{said}; without the cache it does not.")
    drawn = SamplingParams(temperature=1.0, max_tokens=params.max_tokens, seed=params.seed)
    if params.temperature < 1 and loop_period(generate(model, prompt_ids, drawn).ids) == 0:
        return Finding(
            "greedy choice", f"{said} at temperature {params.temperature:g}; at 1 it does not."
        )
    return Finding("weights", f"{said}, with and without the cache, and when tokens are drawn.")


def loop_period(ids: Sequence[int], longest: int = 64) -> int:
    """Return after how many tokens the end of a text repeats, three times at least; 0 for never.

    >>> loop_period([5, 1, 2, 1, 2, 1, 2]), loop_period([1, 2, 3, 4, 1, 2])
    (2, 0)
    """
    ids = list(ids)
    for period in range(1, min(longest, len(ids) // 3) + 1):
        tail = ids[-3 * period :]
        if tail[period:] == tail[:-period]:
            return period
    return 0


def why_temperature_0_differs(
    model: Model,
    prompt_ids: Sequence[int],
    answer: Sequence[int],
    other: Sequence[int],
    mantissa_bits: int = 24,
) -> Finding:
    """Say why the same request got two answers at temperature 0.

    Where they part, the two best tokens may be as good as equal: then the order in which a product
    adds up decides, and that changes with who shares the pass. A token that was not nearly chosen
    is no rounding. `mantissa_bits` are those of the format that the engine computes in: 24 for
    fp32, 11 for fp16, 8 for bf16.

    Shapes: prompt_ids, answer, other: ids
    Raises: ValueError for an empty answer.
    """
    answer, other = list(answer), list(other)
    if not answer or not other:
        raise ValueError(f"answer and other must hold ids, got {len(answer)} and {len(other)}")
    pairs = zip(answer, other, strict=False)
    at = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    if at == min(len(answer), len(other)):
        return Finding(HEALTHY, f"The first {at} tokens are the same.")
    params = SamplingParams(temperature=0.0)
    margin = float(decision_margins(model, prompt_ids, answer[: at + 1], params)[at])
    logits = np.asarray(model([[*prompt_ids, *answer[:at]]]))[0, -1]
    # Each of the two logits may be off by a unit in the last place.
    slack = 2 * float(np.abs(logits).max()) * 2.0 ** (1 - mantissa_bits)
    best = set(np.flatnonzero(logits >= logits.max() - slack).tolist())
    where = f"They part at token {at + 1}, {margin:.2g} logits from a tie"
    if {answer[at], other[at]} <= best:
        return Finding("rounding", f"{where}; {mantissa_bits} bits round by {slack:.2g}.")
    return Finding("no rounding", f"{where}; {mantissa_bits} bits round by {slack:.2g} only.")


def _in_two(model: Model, ids: list[int], n_prompt: int) -> Array:
    """Return the logits behind a prompt of one pass, token by token."""
    cache = model.new_cache(1, len(ids))
    model([ids[:n_prompt]], cache)
    return np.stack([np.asarray(model([[i]], cache))[0, -1] for i in ids[n_prompt:]])


def _saved_by_reading_twice(model: Model, ids: list[int], between: int, passage: int) -> float:
    """Return how much less a passage costs behind itself than alone; the mean over three."""
    saved = []
    for start in range(0, 3 * passage, passage):
        read = ids[start : start + passage]
        # What lies between begins behind all passages, so that it repeats none of them.
        other = ids[3 * passage : 3 * passage + between]
        alone, again = _losses(model, read), _losses(model, [*read, *other, *read])
        saved.append(float((alone - again[-len(alone) :]).mean()))
    return sum(saved) / len(saved)


def _losses(model: Model, ids: Sequence[int]) -> Array:
    p = softmax(np.asarray(model([ids[:-1]]))[0].astype(np.float64))
    return -np.log(p[np.arange(len(ids) - 1), ids[1:]])


def _at_least(ids: Sequence[int], n: int) -> list[int]:
    ids = list(ids)
    if len(ids) < n:
        raise ValueError(f"ids must hold at least {n} tokens, got {len(ids)}")
    return ids
