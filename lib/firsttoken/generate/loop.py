"""The token loop: predict, choose, append, until something says stop."""

from collections.abc import Callable, Sequence

import numpy as np

from firsttoken.generate.sequence import Generation, TextOptions, TokenSequence
from firsttoken.models.protocols import Model
from firsttoken.models.tokenizer import Tokenizer
from firsttoken.sampling import SamplingParams
from firsttoken.sampling.constrained import Constraint


def generate(
    model: Model,
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
    options = TextOptions(ignore_eos, constraint, close_in_time)
    request = TokenSequence(model, prompt_ids, params, on_token, tokenizer, options)
    cache = model.new_cache(1, request.max_length) if use_cache else None
    logits = np.asarray(model([request.ids], cache))[0]  # prefill: [T, V]
    request.note_prefill()
    while True:
        token = request.choose(logits[-1])
        request.append(token)
        if request.finish_reason is not None:
            return request.result()
        unread = [token] if use_cache else request.ids
        logits = np.asarray(model([unread], cache))[0]  # decode
