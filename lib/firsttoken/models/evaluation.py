"""How well a model predicts a text: loss per token, bits per byte, agreement of two models."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from firsttoken.checks import check_count
from firsttoken.kv_cache import KVCache
from firsttoken.models.protocols import Model
from firsttoken.models.tokenizer import Tokenizer
from firsttoken.sampling import softmax

Array = np.ndarray

_ROWS = 8  # windows per pass


def token_losses(
    model: Model, ids: Sequence[int], window: int | None = None, cache_dtype: str | None = None
) -> Array:
    """Return -log p of each token after the first, given the tokens before it.

    A text longer than `window` is read in windows that overlap by half, so that every token but
    the first `window` is predicted from at least window/2 others. `cache_dtype` sends keys and
    values through a `KVCache` that stores them so (NumPy models only), which shows what a
    quantised cache costs.

    Shapes: ids (n,), at least 2; result (n - 1,)
    Units:  nats; window in tokens (None: the model's max_context, or the whole text).
    Raises: ValueError for fewer than two ids and a window that is no count of at least 2.
    """
    losses = [
        -np.log(distributions[np.arange(len(tokens)), tokens])
        for tokens, (distributions,) in _predictions([model], ids, window, cache_dtype)
    ]
    return np.concatenate(losses)


def bits_per_byte(
    model: Model,
    tokenizer: Tokenizer,
    text: str,
    window: int | None = None,
    cache_dtype: str | None = None,
) -> float:
    """Return the bits that the model needs for one byte of `text`: its loss, whatever its tokens.

    The text is read after the end-of-text token, as a document of its own; see `token_losses`.

    Units:  bits per byte of UTF-8
    Raises: ValueError as `token_losses`, and for a tokenizer without start_ids.
    """
    ids = tokenizer.encode_document(text)
    losses = token_losses(model, ids, window, cache_dtype)
    return float(losses.sum() / math.log(2) / len(text.encode()))


def mean_acceptance(
    target: Model, draft: Model, tokenizer: Tokenizer, text: str, window: int | None = None
) -> float:
    """Return how often the target keeps the draft's token, on average over the text.

    The mean over positions of Σ min(target, draft), both at temperature 1: what speculative
    sampling accepts of the first drafted token.

    Units:  probability
    Raises: ValueError as `bits_per_byte`.
    Source: Leviathan et al. 2023, arXiv:2211.17192, cor. 3.6
    """
    ids = tokenizer.encode_document(text)
    overlap = [np.minimum(p, q).sum(-1) for _, (p, q) in _predictions([target, draft], ids, window)]
    return float(np.concatenate(overlap).mean())


def _predictions(
    models: Sequence[Model],
    ids: Sequence[int],
    window: int | None = None,
    cache_dtype: str | None = None,
) -> Iterator[tuple[Array, list[Array]]]:
    """Yield, run by run and in order, (the tokens that came, each model's distributions)."""
    if len(ids) < 2:
        raise ValueError(f"ids must hold at least 2 tokens, got {len(ids)}")
    contexts = [c for c in (model.arch.max_context for model in models) if c is not None]
    if window is None:
        window = min(contexts, default=len(ids))
    check_count("window", window, at_least=2)
    text = np.asarray(ids)
    n = len(text) - 1  # the last id is predicted, but predicts nothing
    window = min(window, n)
    # The last window is pulled back, so that all are full and can share a pass.
    starts = [*range(0, n - window, max(1, window // 2)), n - window]
    done = 0
    for first in range(0, len(starts), _ROWS):
        rows = starts[first : first + _ROWS]
        inputs = np.stack([text[start : start + window] for start in rows])
        outputs = []
        for model in models:
            cache = KVCache(model.arch, len(rows), window, cache_dtype) if cache_dtype else None
            outputs.append(np.asarray(model(inputs, cache)))
        for row, start in enumerate(rows):
            new = slice(done - start, window)  # the rest was predicted in the window before
            distributions = [softmax(logits[row, new].astype(np.float64)) for logits in outputs]
            yield text[done + 1 : start + window + 1], distributions
            done = start + window
