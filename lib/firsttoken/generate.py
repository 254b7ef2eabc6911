"""The token loop: predict, choose, append, until something says stop."""

import math
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from firsttoken.constrained import Constraint, keep_allowed
from firsttoken.kv_cache import KVCache
from firsttoken.llama import rotate
from firsttoken.sampling import SamplingParams, draw, next_token_distribution
from firsttoken.tokenizer import TextStream, Tokenizer


@dataclass(frozen=True)
class Generation:
    """What one request brought forth.

    `ids` are the new tokens, the one that ended the text included; `token_times_s[i]` is when
    ids[i] was chosen, counted from the start of `generate`, and `prefill_s` how long the pass
    over the prompt took, a part of token_times_s[0].

    `finish_reason` is "eos" (the model ended the text), "stop" (a stop string appeared),
    "length" (max_tokens reached) or "context" (the model's context is full).
    `text` is what `ids` say, up to a stop string; None without a tokenizer.
    """

    ids: list[int]
    token_times_s: list[float]
    prefill_s: float
    finish_reason: str
    text: str | None = None


def generate(
    model,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    use_cache: bool = True,
    on_token: Callable[[int], object] | None = None,
    tokenizer: Tokenizer | None = None,
    ignore_eos: bool = False,
    constraint: Constraint | None = None,
    close_in_time: bool = False,
) -> Generation:
    """Continue a prompt by one token at a time, with the model of either backend.

    With the cache, the prompt is one pass (prefill) and each further token a pass over that
    token alone (decode). Without, every step recomputes the whole text: the same tokens, slower.

    `on_token` is called with each new id as soon as it is chosen. Stop strings in `params` need
    the `tokenizer`. `ignore_eos` goes on after the end of the text, to measure a fixed length.

    A `constraint` masks the logits before anything else looks at them; it is left as it was, and
    its `eos_ids` count, not the model's. What comes before the one that ends the text ("eos") is
    valid. A text that was cut ("length", "context", "stop") is only the beginning of a valid
    one, unless `close_in_time`: then the mask leaves only tokens after which the text can still
    be completed within max_tokens and the context.

    Shapes: prompt_ids: a list of at least one id
    Units:  times in seconds
    Raises: ValueError for an empty prompt, one that fills the context, ids out of range, stop
            strings without a tokenizer, a constraint under ignore_eos or that allows no token,
            and too few tokens to close_in_time.
    """
    start_s = time.perf_counter()
    ids = [operator.index(i) for i in prompt_ids]
    n_prompt, limit = len(ids), _limit(model, len(ids), params)
    if params.stop and tokenizer is None:
        raise ValueError(f"stop {params.stop} needs a tokenizer, to see the text; got None")
    if constraint is not None:
        constraint = constraint.copy()
        if ignore_eos:
            raise ValueError("ignore_eos must be False with a constraint: valid texts end")
        if close_in_time and constraint.min_tokens() > limit - n_prompt:
            raise ValueError(
                f"max_tokens and context leave {limit - n_prompt} tokens, but to close_in_time "
                f"may take {constraint.min_tokens()}"
            )
    rng = np.random.default_rng(params.seed)
    eos_ids = () if ignore_eos else model.eos_ids
    text = None if tokenizer is None else _Text(tokenizer, params.stop)
    cache = model.new_cache(1, limit) if use_cache else None

    times, prefill_s, reason = [], 0.0, None
    while reason is None:
        seen = 0 if cache is None else cache.length
        logits = np.asarray(model([ids[seen:]], cache))[0, -1]  # [V]
        if not times:
            prefill_s = time.perf_counter() - start_s
        if constraint is not None:
            budget = limit - len(ids) if close_in_time else math.inf
            logits = keep_allowed(logits, constraint.mask(budget))
        probabilities = next_token_distribution(logits, params, ids[:n_prompt], ids[n_prompt:])
        token = int(draw(probabilities, rng))
        ids.append(token)
        if constraint is not None:
            constraint.advance(token)
        times.append(time.perf_counter() - start_s)
        if on_token is not None:
            on_token(token)
        stopped = text is not None and text.push(token)
        if token in eos_ids if constraint is None else constraint.finished:
            reason = "eos"
        elif stopped:
            reason = "stop"
        elif len(times) == params.max_tokens:
            reason = "length"
        elif len(ids) == limit:
            reason = "context"
    said = None if text is None else text.finish()
    return Generation(ids[n_prompt:], times, prefill_s, reason, said)


def evict(model, cache: KVCache, n: int, sinks: int = 0) -> None:
    """Drop the n oldest tokens behind the first `sinks`, so that a full cache has room again.

    The later tokens move up: their keys are turned back by n positions, as if the text had never
    held the dropped ones. What the later tokens have read from them stays in their values: only
    in the first layer is the result that of a pass over the kept tokens alone. NumPy models only.

    Units:  n and sinks in tokens
    Raises: ValueError, and nothing is dropped, where the cache does not hold sinks + n tokens,
            or stores them in another format than fp32.
    Source: Xiao et al. 2023, arXiv:2309.17453, sec. 3.2 (positions within the cache)
    """
    if cache.dtype != "fp32":
        raise ValueError(f"cache stores {cache.dtype}: every call would round again; expected fp32")
    if n < 1 or sinks < 0 or sinks + n > cache.length:
        raise ValueError(
            f"n {n} (at least 1) and sinks {sinks} (at least 0) do not fit: the cache holds "
            f"{cache.length} tokens"
        )
    angles = -n * model.frequencies  # rotations add up: this one takes n positions away
    turn = np.cos(angles), np.sin(angles)
    kept = []
    for layer in range(model.arch.n_layers):
        keys, values = (x[:, :, sinks + n :] for x in (cache.keys(layer), cache.values(layer)))
        kept.append((rotate(keys, *turn), values.copy()))
    cache.truncate(sinks)
    for layer, (keys, values) in enumerate(kept):
        cache.append(layer, keys, values)


class _Text:
    """The text so far, watched for stop strings."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]):
        self._stream, self._stop = TextStream(tokenizer), stop
        self._text, self._end = "", None

    def push(self, token: int) -> bool:
        """Add a token; say whether a stop string has appeared."""
        # It may span tokens: look back as far as the longest one could reach.
        start = len(self._text) - max((len(s) for s in self._stop), default=1) + 1
        self._text += self._stream.push(token)
        found = [at for s in self._stop if (at := self._text.find(s, max(start, 0))) >= 0]
        self._end = min(found, default=None)
        return self._end is not None

    def finish(self) -> str:
        """Return the text before the first stop string, or all of it."""
        return (self._text + self._stream.finish())[: self._end]


def _limit(model, n_prompt: int, params: SamplingParams) -> int:
    """Return how many tokens the text may have, prompt included."""
    if n_prompt == 0:
        raise ValueError("prompt_ids must hold at least one id, got none")
    wanted, context = n_prompt + params.max_tokens, model.arch.max_context
    if context is not None and n_prompt >= context:
        raise ValueError(
            f"prompt_ids hold {n_prompt} tokens, expected fewer than the context of {context}"
        )
    return wanted if context is None else min(wanted, context)
