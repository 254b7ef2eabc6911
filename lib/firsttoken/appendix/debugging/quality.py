"""The answers are other than expected: settings, seeds, probabilities, fewer bits, adapters."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from firsttoken.appendix.debugging.finding import HEALTHY, Finding
from firsttoken.models.llama import Llama
from firsttoken.models.lora import Adapter, merge_adapter
from firsttoken.sampling import (
    SamplingParams,
    apply_temperature,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    next_token_distribution,
    softmax,
)
from firsttoken.sampling.params import penalize

Array = np.ndarray


def why_settings_differ(
    logits: Array,
    params: SamplingParams,
    probabilities: Array,
    prompt_ids: Sequence[int] = (),
    output_ids: Sequence[int] = (),
) -> Finding:
    """Say in which order an engine applies the settings, by what it made of these logits.

    The order of the book, and of vLLM: penalties, temperature, min-p, top-k, top-p, each on what
    the one before left. Elsewhere temperature comes last, or top-p looks at all tokens although
    top-k has dropped some, or presence and frequency count the prompt as well.

    Shapes: logits, probabilities (V,)
    Raises: ValueError for other shapes, and settings that no two of these orders tell apart.
    """
    logits, probabilities = np.asarray(logits, np.float64), np.asarray(probabilities, np.float64)
    if logits.ndim != 1 or logits.shape != probabilities.shape:
        raise ValueError(
            f"logits {logits.shape} and probabilities {probabilities.shape} must be one row each"
        )
    orders = _orders(logits, params, prompt_ids, output_ids)
    right = orders.pop(HEALTHY)
    others = {name: p for name, p in orders.items() if not np.allclose(p, right, atol=1e-9)}
    if not others:
        raise ValueError("params must hold settings whose order matters here, e.g. temperature 2")
    moved = f"{50 * np.abs(probabilities - right).sum():.0f} % of the probability lie elsewhere."
    if np.allclose(probabilities, right, atol=1e-6):
        return Finding(
            HEALTHY, f"{int((right > 0).sum())} tokens are left, as in the book's order."
        )
    for name, p in others.items():
        if np.allclose(probabilities, p, atol=1e-6):
            return Finding(name, moved)
    return Finding("none of these orders", moved)


def _orders(
    logits: Array, params: SamplingParams, prompt_ids: Sequence[int], output_ids: Sequence[int]
) -> dict[str, Array]:
    before = penalize(logits, params, prompt_ids, output_ids)
    warm = apply_temperature(before, params.temperature or 1.0)
    cut = _filtered(before, params)
    one_by_one = np.where(
        np.isfinite(_filtered(warm, replace(params, top_p=1.0)))
        & np.isfinite(_filtered(warm, replace(params, top_k=0, min_p=0.0))),
        warm,
        -np.inf,
    )
    return {
        HEALTHY: next_token_distribution(logits, params, prompt_ids, output_ids),
        "temperature last": softmax(apply_temperature(cut, params.temperature or 1.0)),
        "top-p over all tokens": softmax(one_by_one),
        "penalties count the prompt": next_token_distribution(
            logits, params, prompt_ids, [*prompt_ids, *output_ids]
        ),
    }


def _filtered(logits: Array, params: SamplingParams) -> Array:
    if params.min_p > 0:
        logits = keep_min_p(logits, params.min_p)
    if params.top_k > 0:
        logits = keep_top_k(logits, params.top_k)
    return keep_top_p(logits, params.top_p) if params.top_p < 1 else logits


def why_the_seed_does_not_help(ask: Callable[[int], Sequence[int]], n_others: int = 3) -> Finding:
    """Say why one seed gives several answers: whether the request has random numbers of its own.

    `ask(n)` sends the request once more, with the same seed, beside n others, and returns its ids.
    """
    alone, again, beside = (list(ask(n)) for n in (0, 0, n_others))
    if alone != again:
        return Finding("seed not used", "Alone, the same request with the same seed differs.")
    if alone != beside:
        same = sum(a == b for a, b in zip(alone, beside, strict=False))
        return Finding(
            "random numbers shared",
            f"Alone it repeats; beside {n_others} others {same} of {len(alone)} tokens stay. Where "
            "temperature 0 differs, too, it is rounding.",
        )
    return Finding(HEALTHY, f"{len(alone)} tokens, alone and beside {n_others} others.")


def why_logprobs_differ(
    reported: Sequence[float],
    logits: Array,
    ids: Sequence[int],
    params: SamplingParams,
    tolerance: float = 1e-3,
) -> Finding:
    """Say what the reported log-probabilities of an answer are.

    Engines report those of the bare logits, or of what temperature and filters left. A program may
    print probabilities, or those of the token before.

    Shapes: reported, ids (n,), n at least 3; logits (n, V): row i is what ids[i] was chosen from
    Units:  nats; tolerance: what rounding may change, about 0.05 for an engine in bf16
    Raises: ValueError for other shapes.
    """
    told, logits = np.asarray(reported, np.float64), np.asarray(logits, np.float64)
    n = len(ids)
    if n < 3 or told.shape != (n,) or logits.shape[:1] != (n,):
        raise ValueError(
            f"reported {told.shape} and logits {logits.shape} must have a row for each of at "
            f"least 3 ids, got {n}"
        )
    rows = np.arange(n)
    with np.errstate(divide="ignore"):
        bare = np.log(softmax(logits))[rows, ids]
        left = next_token_distribution(logits, params, [[]] * n, [list(ids[:i]) for i in range(n)])
        drawn_from = np.log(left)[rows, ids]

    def fits(values: Array, got: Array = told) -> bool:
        return bool(np.allclose(values, got, atol=tolerance))

    if fits(bare):
        return Finding(HEALTHY, f"The model's own: mean {bare.mean():.2f} nats.")
    if fits(drawn_from):
        return Finding(
            "after the settings",
            f"Mean {drawn_from.mean():.2f} nats; the bare ones have {bare.mean():.2f}.",
        )
    if fits(np.exp(bare)):
        return Finding("no logarithm", f"Probabilities: the first is {told[0]:.3g}.")
    if fits(bare[:-1], told[1:]):
        return Finding("one place off", "Each number is that of the token before.")
    return Finding("another model or prompt", f"Off by up to {np.abs(told - bare).max():.2g}.")


def why_fewer_bits_hurt(
    model: Llama, rounded: Llama, ids: Sequence[int], tolerance: float = 0.02
) -> Finding:
    """Say why a quantised model answers otherwise: too coarse a grid, one layer, or broken codes.

    The measure is the Kullback-Leibler divergence per token. A model that knows no more than a
    uniform guess was not rounded but spoilt. Else each layer is rounded alone: where all together
    do less than a quarter of the harm, it is the embedding or the head; where one of them does most
    of it, spare it or look for its outliers; where all do a little, take more bits or smaller
    groups.

    Shapes: ids: at least 2
    Units:  tolerance in nats per token
    Raises: ValueError for models of other shapes.
    """
    if (
        model.arch.n_layers != rounded.arch.n_layers
        or model.embedding.shape != rounded.embedding.shape
    ):
        raise ValueError(
            f"rounded must have the shape of model: {model.arch.n_layers} layers, got "
            f"{rounded.arch.n_layers}"
        )
    p = _log_p(model, ids)
    harm = _divergence(p, _log_p(rounded, ids))
    if harm <= tolerance:
        return Finding(HEALTHY, f"{harm:.3f} nats per token apart.")
    loss = -_log_p(rounded, ids)[np.arange(len(ids) - 1), ids[1:]].mean()
    if loss > np.log(model.arch.vocab_size):
        return Finding(
            "broken codes or scales",
            f"A loss of {loss:.1f} nats; a blind guess has {np.log(model.arch.vocab_size):.1f}.",
        )
    alone = [
        _divergence(p, _log_p(_with_layer(model, rounded, i), ids))
        for i in range(len(model.blocks))
    ]
    if sum(alone) < harm / 4:
        return Finding(
            "embedding or head", f"{harm:.2f} nats per token, all layers {sum(alone):.2f}."
        )
    worst = int(np.argmax(alone))
    share = alone[worst] / sum(alone)
    if share > 0.5:
        return Finding(
            "one layer", f"{harm:.2f} nats per token; layer {worst} does {100 * share:.0f} % of it."
        )
    return Finding("too few bits", f"{harm:.2f} nats per token; no layer does half of it.")


def why_the_adapter_does_nothing(
    base: Llama, adapter: Adapter, served: Array, ids: Sequence[int]
) -> Finding:
    """Say why answers with an adapter are not those of the training.

    `served` are the logits, or log-probabilities, of the engine that should have applied it; what
    fits is four times nearer than the rest. They are compared with the
    base, with the adapter merged, and with the adapter merged without its factor alpha / r.

    Shapes: ids (n,), served (n, V)
    Raises: ValueError for other shapes.
    """
    served = np.asarray(served, np.float64)
    if served.shape != (len(ids), base.arch.vocab_size):
        raise ValueError(
            f"served must be logits ({len(ids)}, {base.arch.vocab_size}), got {served.shape}"
        )
    bare = replace(adapter, alpha=float(adapter.rank))
    models = {
        "not applied": base,
        HEALTHY: merge_adapter(base, adapter),
        "factor alpha / r left out": merge_adapter(base, bare),
    }
    told = np.log(softmax(served))  # logits and log-probabilities give the same
    far = {
        name: float(np.abs(np.log(softmax(m([ids])[0].astype(np.float64))) - told).max())
        for name, m in models.items()
    }
    nearest = min(far, key=lambda name: far[name])
    others = min(far[name] for name in far if name != nearest)
    if 4 * far[nearest] > others:
        return Finding("another adapter", f"No model fits: the nearest is {far[nearest]:.2g} off.")
    return Finding(nearest, f"Within {far[nearest]:.1g}; the other models are {others:.2g} off.")


def _log_p(model: Llama, ids: Sequence[int]) -> Array:
    return np.log(softmax(model([ids[:-1]])[0].astype(np.float64)))


def _divergence(p: Array, q: Array) -> float:
    return float((np.exp(p) * (p - q)).sum(axis=-1).mean())


def _with_layer(model: Llama, rounded: Llama, layer: int) -> Llama:
    mixed = Llama.__new__(Llama)
    vars(mixed).update(vars(model))
    mixed.blocks = [rounded.blocks[i] if i == layer else b for i, b in enumerate(model.blocks)]
    return mixed
