"""Which guesses are worth checking: the best tree, and the best number under load."""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from firsttoken.checks import check_count
from firsttoken.speculative import expected_tokens
from firsttoken.speculative.trees import _check_parents

Array = np.ndarray


def expected_tree_tokens(
    alpha: Array, parents: Sequence[int], ranks: Sequence[int] | None = None
) -> float:
    """Return how many tokens a pass over a tree of guesses yields on average.

    alpha[d, r] is the probability that at depth d the guess of rank r is the right one, given that
    all before it were; ranks[i] is guess i's, None: its place among its siblings. A guess counts
    if all on its branch are right: the sum of the products along all branches, and one token of
    the target.

    Holds:  for alphas that depend on depth and rank alone. Where texts differ in them, their means
            give too few tokens along the first guesses, and may give too many on a branch that
            changes rank (2.10 in place of 2.05 for halves of 0.9, 0.05 and 0.4, 0.5).
    Shapes: alpha (depth, rank)
    Units:  tokens per pass
    Raises: ValueError for alphas that are no probabilities or sum to more than 1 at a depth, a tree
            deeper or wider than they are, and more or fewer ranks than guesses.
    Source: Chen et al. 2024, Sequoia, arXiv:2402.12374, proposition 3.4

    >>> expected_tree_tokens(np.array([[0.5, 0.25], [0.5, 0.25]]), [-1, -1, 0])
    2.0
    """
    alpha = _check_ranks(alpha)
    _check_parents(parents)
    ranks = sibling_ranks(parents) if ranks is None else ranks
    if len(ranks) != len(parents):
        raise ValueError(f"ranks must be one for each of {len(parents)} guesses, got {len(ranks)}")
    chance, depth, total = [1.0], [-1], 1.0
    for parent, rank in zip(parents, ranks, strict=True):
        depth.append(depth[parent + 1] + 1)
        if depth[-1] >= alpha.shape[0] or rank >= alpha.shape[1]:
            raise ValueError(
                f"alpha {alpha.shape} must have a row per depth and a column per rank; the tree "
                f"has a guess of rank {rank} at depth {depth[-1]}"
            )
        chance.append(chance[parent + 1] * alpha[depth[-1], rank])
        total += chance[-1]
    return float(total)


def sibling_ranks(parents: Sequence[int]) -> list[int]:
    """Return each guess's place among its siblings, from 0.

    >>> sibling_ranks([-1, -1, 0, 0, 1])
    [0, 1, 0, 1, 0]
    """
    return [list(parents[:i]).count(parent) for i, parent in enumerate(parents)]


def best_tree(alpha: Array, n_guesses: int) -> list[int]:
    """Return the parents of the tree of n guesses that yields most tokens per pass.

    alpha as for `expected_tree_tokens`; a guess of some rank needs siblings of all ranks before it.
    By dynamic programming: the best that n guesses can do as the children from rank r on, at depth
    d, is the best way to share them between the child of that rank, with what hangs on it, and its
    siblings behind it. Where alpha falls with the rank, the n most probable guesses are the tree.

    Guesses come by depth. There are fewer than n where more are not possible.

    Holds:  for tokens per pass. Deeper trees take more drafting, and more guesses longer checks:
            the tree of most tokens a second may be flatter and smaller.
    Raises: ValueError as `expected_tree_tokens`, and for an n_guesses that is no count.
    Source: Chen et al. 2024, Sequoia, arXiv:2402.12374, sec. 3.2

    >>> best_tree(np.array([[0.6, 0.3], [0.6, 0.3]]), 3)  # 0.6, then 0.36 behind it, then 0.3
    [-1, -1, 0]
    """
    alpha = _check_ranks(alpha)
    check_count("n_guesses", n_guesses)
    n_levels, n_ranks = alpha.shape

    @cache
    def best(depth: int, rank: int, n: int) -> tuple[float, int]:
        """Return (tokens, how many of n guesses go to this child and below it)."""
        if n == 0 or depth == n_levels or rank == n_ranks:
            return 0.0, 0
        return max(
            (
                (alpha[depth, rank] * (1 + best(depth + 1, 0, own - 1)[0]))
                + best(depth, rank + 1, n - own)[0],
                own,
            )
            for own in range(1, n + 1)
        )

    parents, level = list[int](), [(-1, 0, n_guesses)]  # (parent, depth, guesses below it)
    while level:
        deeper = []
        for parent, depth, n in level:
            for rank in range(n_ranks):
                own = best(depth, rank, n)[1]
                if own == 0:
                    break
                deeper.append((len(parents), depth + 1, own - 1))
                parents.append(parent)
                n -= own
        level = deeper
    return parents


def goodput_gamma(
    alpha: float, n_sequences: int, step_s: Callable[[int, int], float], max_gamma: int = 8
) -> int:
    """Return the γ in 0 … max_gamma that yields most tokens a second, the smaller of equal ones.

    step_s(n_sequences, gamma) is the time of a round of all sequences, drafting and checking. As a
    batch grows, the arithmetic that checks is less and less idle, and γ goes down to 0.

    Holds:  for one alpha at all places, as `speculative.best_gamma`: too large where it falls along
            the guesses.
    Units:  seconds, tokens
    Raises: ValueError as `expected_tokens`, and for a time that is not above 0.
    Source: Liu et al. 2024, SmartSpec, arXiv:2406.14066, sec. 4

    >>> goodput_gamma(0.7, 1, lambda n, gamma: 1 + 0.1 * gamma)  # checks are cheap
    4
    >>> goodput_gamma(0.7, 256, lambda n, gamma: 1 + gamma)  # and here they are not
    0
    """
    check_count("max_gamma", max_gamma)

    def goodput(gamma: int) -> float:
        seconds = step_s(n_sequences, gamma)
        if not seconds > 0:
            raise ValueError(f"step_s must be above 0, got {seconds} at gamma {gamma}")
        return float(expected_tokens(alpha, gamma)) / seconds

    return max(range(max_gamma + 1), key=goodput)


def _check_ranks(alpha: Array) -> Array:
    alpha = np.asarray(alpha, dtype=np.float64)
    if alpha.ndim != 2 or not (np.all(alpha >= 0) and np.all(alpha.sum(axis=1) <= 1 + 1e-9)):
        raise ValueError(
            "alpha must be (depth, rank), probabilities that sum to at most 1 at each depth, got "
            f"{alpha.tolist()}"
        )
    return alpha
