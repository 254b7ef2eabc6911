"""Growing a tree of guesses from what a draft says, level by level."""

from collections.abc import Callable, Sequence

import numpy as np

from firsttoken.generate import Proposal
from firsttoken.generate.sequence import TokenSequence
from firsttoken.models.llama import Llama
from firsttoken.sampling import softmax
from firsttoken.speculative.trees import branches

Array = np.ndarray


Look = Callable[[list[int], list[int], int], Array]


def by_level(logits: Array) -> Look:
    """Return what says the same logits behind all guesses of one depth: row d of (depth, V)."""

    def look(tokens: list[int], parents: list[int], n_last: int) -> Array:
        depth = len(branches(tokens, parents)[-1])
        return logits[depth : depth + 1].repeat(n_last, axis=0)

    return look


def by_state(target: Llama, said: Array, read: Callable[..., Array]) -> Look:
    """Return what says the target's logits of states: `said` (1, D) behind the text.

    `read(states, tokens, parents)` returns the states (n, D) behind n guesses, from those that each
    hangs on; `parents` are those of all guesses so far.
    """

    def look(tokens: list[int], parents: list[int], n_last: int) -> Array:
        nonlocal said
        if tokens:
            hang_on = [parent + 1 for parent in parents[-n_last:]]
            said = np.concatenate([said, read(said[hang_on], tokens[-n_last:], parents)])
        return target.logits(said[-n_last:])

    return look


def grow_tree(
    request: TokenSequence, tree: Sequence[int], look: Look, min_confidence: float = 0.0
) -> Proposal:
    """Fill a tree with guesses for how the text goes on, level by level.

    `look(tokens, parents, n)` returns the draft's logits (n, V) behind the last n guesses made so
    far, and at first, when there are none and n is 1, behind the text. Siblings are the likeliest
    tokens at temperature 0, else they are drawn without replacement, as `drafts.verify_tree`
    expects. Where the draft knows fewer tokens than there are siblings, behind the end of the text
    and behind a guess of less than `min_confidence`, nodes stay empty.

    Shapes: tree: the parent of each node, or -1, by depth: a level's nodes follow each other
    """
    tokens: list[int] = []
    parents: list[int] = []
    rows: list[Array] = []
    unsure: set[int] = set()  # nodes
    guess_of, level = {-1: -1}, [-1]
    while any(parent in level and parent not in unsure for parent in tree):
        n_before = len(tokens)
        logits = look(tokens, parents, len(level))
        spelled = branches(tokens, parents)
        for node, row in zip(level, logits, strict=True):
            children = [i for i, parent in enumerate(tree) if parent == node]
            begun = spelled[guess_of[node] + 1]
            if not children or node in unsure or (begun and request.ended_by(begun)):
                continue
            siblings, distribution = _siblings(request, row, begun, len(children))
            if min_confidence:
                chances = softmax(row) if distribution is None else distribution
                pairs = zip(children, siblings, strict=False)
                unsure |= {child for child, token in pairs if chances[token] < min_confidence}
            for child, token in zip(children, siblings, strict=False):
                guess_of[child] = len(tokens)
                tokens.append(token)
                parents.append(guess_of[node])
                if distribution is not None:
                    rows.append(distribution)
        level = [node for node, at in guess_of.items() if at >= n_before]
    is_chain = parents == list(range(-1, len(parents) - 1))
    return Proposal(tokens, np.array(rows) if rows else None, None if is_chain else parents)


def _siblings(
    request: TokenSequence, logits: Array, begun: list[int], n: int
) -> tuple[list[int], Array | None]:
    """Return up to n different guesses [V] for one place, and the distribution they come from."""
    if request.params.temperature == 0:
        scores = request.scores(logits[None], begun)[0]
        likeliest = [int(scores.argmax())] if n == 1 else np.argsort(-scores, kind="stable")[:n]
        return [int(token) for token in likeliest if scores[token] > -np.inf], None
    distribution = request.distributions(logits[None], begun)[0]
    # The first to arrive, if token x arrives at rate q(x): a race draws without replacement.
    arrivals = request.rng.exponential(size=len(distribution))
    np.divide(arrivals, distribution, out=arrivals, where=distribution > 0)
    arrivals[distribution == 0] = np.inf
    first = np.argsort(arrivals)[: min(n, int((distribution > 0).sum()))]
    return first.tolist(), distribution
