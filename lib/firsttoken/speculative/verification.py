"""Speculative decoding: a cheap draft guesses tokens, one pass of the target checks them all."""

import operator
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from firsttoken.sampling import draw

Array = np.ndarray


class Round(NamedTuple):
    """What one pass of the target checked: how many tokens were drafted, how many accepted."""

    drafted: int
    accepted: int


def acceptance_rule(target: Array, draft: Array) -> tuple[Array, Array]:
    """Return (accept, residual): the rule that makes speculative sampling exact.

    A token x drawn from `draft` is kept with probability accept[x]; otherwise its
    replacement is drawn from `residual`. The result then follows `target`, whatever
    `draft` is: draft quality buys speed, never changes the output.

    Shapes: target, draft, accept, residual: (…, V)
    Units:  probability; target and draft each sum to 1.
    Raises: ValueError for shapes that differ.
    Source: Leviathan et al. 2023, arXiv:2211.17192, sec. 2.3
            (the paper's p is `target`, its q is `draft`).

    >>> accept, residual = acceptance_rule(np.array([0.5, 0.5]), np.array([1.0, 0.0]))
    >>> accept.tolist(), residual.tolist()
    ([0.5, 1.0], [0.0, 1.0])
    """
    _check_pair(target, draft)
    kept = np.minimum(target, draft)  # probability that x is drafted and kept
    accept = np.divide(kept, draft, out=np.ones_like(kept), where=draft > 0)
    excess = target - kept  # mass the draft under-supplies
    missing = excess.sum(axis=-1, keepdims=True)
    # Identical models: nothing is rejected, so that what would replace it does not matter.
    residual = np.divide(excess, missing, out=np.array(target, kept.dtype), where=missing > 0)
    return accept, residual


def acceptance_rate(target: Array, draft: Array) -> Array:
    """Return how likely a token drawn from `draft` is to be kept: how far the two overlap.

    One minus it is their total variation distance, half the sum of |target - draft|.

    Shapes: target, draft: (…, V); result: (…)
    Units:  probability
    Raises: ValueError for shapes that differ.
    Source: Leviathan et al. 2023, arXiv:2211.17192, theorem 3.5

    >>> float(acceptance_rate(np.array([0.6, 0.3, 0.1]), np.array([0.5, 0.2, 0.3])).round(12))
    0.8
    """
    _check_pair(target, draft)
    return np.minimum(target, draft).sum(axis=-1)


def verify(
    target: Array, draft: Array | None, tokens: Sequence[int], rng: np.random.Generator
) -> list[int]:
    """Return what one pass of the target makes of the drafted tokens: 1 … γ+1 tokens.

    The tokens are kept up to the first that `acceptance_rule` rejects; that one is replaced by
    a draw from the residual, and what follows it is void: it was drafted after a token that is
    not there. If all are kept, the target's distribution after the last of them gives one more,
    the bonus. Each token that comes out follows the target's distribution, given those before it.

    Row i of `target` and of `draft` is the distribution of tokens[i], given the tokens before it.
    `draft` None: tokens came from no known distribution, a look-up for instance. It is exact as
    well, as if each had been drafted with probability 1, but keeps fewer tokens of a sampled draft.

    Shapes: target (γ+1, V); draft (γ, V); tokens: γ ids, perhaps none
    Raises: ValueError for shapes that do not fit, rows that are no distributions (logits, for
            instance), and a token that `draft` never draws.
    Source: Leviathan et al. 2023, arXiv:2211.17192, algorithm 1; without probabilities: vLLM
            (vllm/v1/sample/rejection_sampler.py, NO_DRAFT_PROBS)

    >>> target = np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    >>> verify(target, None, [1, 1], np.random.default_rng(0))  # both kept, and the bonus
    [1, 1, 0]
    >>> verify(target, None, [0, 1], np.random.default_rng(0))  # the first is replaced
    [1]
    """
    n_drafted, n_vocab = len(tokens), target.shape[-1]
    if target.shape != (n_drafted + 1, n_vocab):
        raise ValueError(
            f"target {target.shape} must be (γ+1, V) for {n_drafted} tokens: one row more"
        )
    if draft is not None and draft.shape != (n_drafted, n_vocab):
        raise ValueError(f"draft {draft.shape} must be ({n_drafted}, {n_vocab}), a row per token")
    check_distributions("target", target)
    if draft is not None:
        check_distributions("draft", draft)
    tokens = [operator.index(token) for token in tokens]
    if not all(0 <= token < n_vocab for token in tokens):
        raise ValueError(f"tokens {tokens} must be ids in 0 … {n_vocab - 1}")
    if draft is None:  # each was certain to be drafted
        draft = np.zeros((n_drafted, n_vocab))
        draft[range(n_drafted), tokens] = 1
    target, draft = target.astype(np.float64), draft.astype(np.float64)
    # In float64 u is 0 once in 2**53 draws, and even then u < 0 is false: a token of
    # probability 0 is never accepted.
    for i, (token, u) in enumerate(zip(tokens, rng.random(n_drafted).tolist(), strict=True)):
        if draft[i, token] == 0:
            raise ValueError(f"tokens[{i}] is {token}, which draft has with probability 0")
        accept, residual = acceptance_rule(target[i], draft[i])
        if not u < accept[token]:
            return [*tokens[:i], int(draw(residual, rng))]
    return [*tokens, int(draw(target[n_drafted], rng))]


def verify_greedy(choices: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """Return what `verify` makes of the drafted tokens at temperature 0: nothing is left to chance.

    The target's distribution has one token only. A drafted token is kept if it is that one, and
    replaced by it if not; so the target's own choices come out, up to the first that was not
    foreseen.

    Shapes: choices: the target's γ+1 ids, choices[i] after tokens[:i]; tokens: γ ids
    Raises: ValueError unless there is one choice more than tokens.
    Source: Leviathan et al. 2023, arXiv:2211.17192, sec. 2.2 (argmax as a distribution)

    >>> verify_greedy([5, 6, 7, 8], tokens=[5, 6, 9])
    [5, 6, 7]
    """
    if len(choices) != len(tokens) + 1:
        raise ValueError(f"choices ({len(choices)}) must be one more than tokens ({len(tokens)})")
    agreed = 0
    while agreed < len(tokens) and choices[agreed] == tokens[agreed]:
        agreed += 1
    return list(choices[: agreed + 1])


def _check_pair(target: Array, draft: Array) -> None:
    if target.shape != draft.shape:
        raise ValueError(f"target {target.shape} and draft {draft.shape} differ")


def check_distributions(name: str, rows: Array) -> None:
    """Raise a ValueError that names `name` unless each row is a distribution.

    >>> check_distributions("target", np.array([[0.5, 0.5]]))
    """
    if not (np.all(rows >= 0) and np.all(np.abs(rows.sum(axis=-1) - 1) <= 1e-3)):
        raise ValueError(f"{name} must hold a distribution per row: numbers from 0 that sum to 1")
