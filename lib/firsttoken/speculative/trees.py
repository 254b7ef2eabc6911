"""Guesses that form a tree: who sees whom, and which of them stay.

In a tree of n guesses, guess i is meant to follow guess parents[i] < i, or, where that is -1, the
text. Guesses with one parent are siblings: several tokens for one place.
"""

from collections.abc import Sequence

import numpy as np

from firsttoken.sampling import draw
from firsttoken.speculative.verification import acceptance_rule, check_distributions

Array = np.ndarray


def tree_mask(parents: Sequence[int]) -> Array:
    """Return which guesses of a tree see which: row i marks guess i and all that it hangs on.

    Shapes: parents: n integers; result (n, n) of bool
    Raises: ValueError for a parent that does not come before its child.
    Source: Miao et al. 2024, SpecInfer, arXiv:2305.09781, sec. 4.2 (tree attention)

    >>> tree_mask([-1, 0, 0]).astype(int).tolist()  # two guesses for what follows the first
    [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """
    _check_parents(parents)
    mask = np.eye(len(parents), dtype=bool)
    for i, parent in enumerate(parents):
        if parent >= 0:
            mask[i] |= mask[parent]
    return mask


def branches(tokens: Sequence[int], parents: Sequence[int]) -> list[list[int]]:
    """Return what a tree spells: the empty branch, then that which ends with each guess.

    Raises: ValueError for a parent that does not come before its child.

    >>> branches([7, 8, 9], [-1, 0, 0])
    [[], [7], [7, 8], [7, 9]]
    """
    _check_parents(parents)
    spelled: list[list[int]] = [[]]
    for token, parent in zip(tokens, parents, strict=True):
        spelled.append([*spelled[parent + 1], token])
    return spelled


def verify_tree_greedy(
    choices: Sequence[int], parents: Sequence[int], tokens: Sequence[int]
) -> list[int]:
    """Return what one pass of the target makes of a tree of guesses at temperature 0.

    From the text on, the guess that is the target's own choice is followed, until there is none;
    the target's choice there is the last token. So its own text comes out, 1 … depth + 1 tokens.

    Shapes: choices: the target's n + 1 ids, the first behind the text, choices[i + 1] behind
            guess i; parents, tokens: n each
    Raises: ValueError for other lengths, a parent that does not come before its child, and
            siblings of one token.
    Source: Miao et al. 2024, SpecInfer, arXiv:2305.09781, algorithm 2

    >>> verify_tree_greedy([8, 0, 6, 0, 9], parents=[-1, -1, 0, 1], tokens=[7, 8, 6, 6])
    [8, 6, 9]
    """
    if len(choices) != len(tokens) + 1:
        raise ValueError(f"choices ({len(choices)}) must be one more than tokens ({len(tokens)})")
    children = _children(parents, tokens)
    node, said = -1, [choices[0]]
    while said[-1] in children[node + 1]:
        node = children[node + 1][said[-1]]
        said.append(choices[node + 1])
    return said


def verify_tree(
    target: Array,
    draft: Array | None,
    parents: Sequence[int],
    tokens: Sequence[int],
    rng: np.random.Generator,
) -> list[int]:
    """Return what one pass of the target makes of a tree of guesses: 1 … depth + 1 tokens.

    Siblings are tried in their order. The first is kept or not by `acceptance_rule`. If not, the
    residual takes the target's place for the second, and the draft's place what is left of it
    without the first; and so on. Behind the guess that is kept its own children are tried. Where
    none is kept, the last token is drawn from the residual, and behind a leaf from the target's
    distribution. Each token that comes out follows the target's distribution, given those before.

    draft[i] is the distribution from which guess i and its siblings were drawn, in order, without
    replacement. `draft` None: each guess was certain, the most likely tokens for instance.

    Shapes: target (n + 1, V), the first row behind the text, target[i + 1] behind guess i;
            draft (n, V); parents, tokens: n each
    Raises: ValueError for shapes that do not fit, rows that are no distributions, a parent that
            does not come before its child, siblings of one token or with unlike rows, and a token
            that `draft` never draws.
    Source: Miao et al. 2024, SpecInfer, arXiv:2305.09781, algorithm 2 (with replacement); without:
            Chen et al. 2024, Sequoia, arXiv:2402.12374, algorithm 2; Jeon et al. 2024,
            arXiv:2402.14160, sec. 3.1

    >>> target = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    >>> verify_tree(target, None, [-1, -1], [0, 1], np.random.default_rng(0))  # the second is kept
    [1, 0]
    """
    n, n_vocab = len(tokens), target.shape[-1]
    if target.shape != (n + 1, n_vocab):
        raise ValueError(f"target {target.shape} must be (n + 1, V) for {n} tokens: one row more")
    if draft is not None and draft.shape != (n, n_vocab):
        raise ValueError(f"draft {draft.shape} must be ({n}, {n_vocab}), a row per token")
    if not all(0 <= token < n_vocab for token in tokens):
        raise ValueError(f"tokens {list(tokens)} must be ids in 0 … {n_vocab - 1}")
    check_distributions("target", target)
    if draft is not None:
        check_distributions("draft", draft)
    children, node, said = _children(parents, tokens), -1, list[int]()
    _check_siblings(children, draft)
    while True:
        wanted = target[node + 1].astype(np.float64)
        token, kept = _try_siblings(wanted, draft, children[node + 1], rng)
        said.append(token)
        if kept is None:
            return said
        node = kept


def _try_siblings(
    wanted: Array, draft: Array | None, siblings: dict[int, int], rng: np.random.Generator
) -> tuple[int, int | None]:
    """Return (token, guess): which of some siblings is kept, or what comes in their place."""
    offered = None
    for token, node in siblings.items():
        if draft is None:
            offered = np.zeros_like(wanted)
            offered[token] = 1
        elif offered is None:
            offered = draft[node].astype(np.float64)
        if offered[token] <= 0:
            raise ValueError(f"tokens[{node}] is {token}, which draft has with probability 0")
        accept, residual = acceptance_rule(wanted, offered)
        if rng.random() < accept[token]:
            return token, node
        wanted = residual
        if draft is not None:  # the next sibling was drawn without this one
            offered[token] = 0
            offered /= offered.sum() or 1
    return int(draw(wanted, rng)), None


def _check_parents(parents: Sequence[int]) -> None:
    if not all(-1 <= parent < i for i, parent in enumerate(parents)):
        raise ValueError(f"parents {list(parents)} must each be -1 or a guess before: -1 … i - 1")


def _children(parents: Sequence[int], tokens: Sequence[int]) -> list[dict[int, int]]:
    """Return {token: guess} of what hangs on the text, and on each guess."""
    _check_parents(parents)
    if len(parents) != len(tokens):
        raise ValueError(f"parents ({len(parents)}) and tokens ({len(tokens)}) must be as many")
    children: list[dict[int, int]] = [{} for _ in range(len(tokens) + 1)]
    for i, (parent, token) in enumerate(zip(parents, tokens, strict=True)):
        if token in children[parent + 1]:
            raise ValueError(f"tokens[{i}] is {token}, as a sibling is; expected different ones")
        children[parent + 1][int(token)] = i
    return children


def _check_siblings(children: list[dict[int, int]], draft: Array | None) -> None:
    if draft is None:
        return
    for siblings in children:
        first, *others = siblings.values() or [0]
        if not all(np.array_equal(draft[first], draft[other]) for other in others):
            raise ValueError(f"draft must have one row for siblings, got unlike {[first, *others]}")
