"""Guesses that form a tree: who sees whom, which of them stay, and which tree is worth checking.

In a tree of n guesses, guess i is meant to follow guess parents[i] < i, or, where that is -1, the
text. Guesses with one parent are siblings: several tokens for one place.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from firsttoken.checks import check_count
from firsttoken.sampling import draw
from firsttoken.speculative import acceptance_rule, check_distributions, expected_tokens

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


def tree_attention(q: Array, k: Array, v: Array, mask: Array) -> Array:
    """Return the attention of a tree's queries: to all keys before the tree, and by the mask in it.

    It is `attention`, with another mask. The tree's own keys are the last M of the S, and `mask`
    says which of those each of the T queries sees: rows of `tree_mask`.

    Shapes: q (B, N, T, H); k, v (B, K, S, H); mask (T, M) of bool; result (B, N, T, H)
    Raises: ValueError for a mask of another shape.
    Source: Miao et al. 2024, SpecInfer, arXiv:2305.09781, sec. 4.2

    >>> q, k = np.zeros((1, 1, 2, 1)), np.zeros((1, 1, 3, 1))  # equal scores: plain means
    >>> v = np.array([[[[3.0], [1.0], [5.0]]]])  # the text's value, and those of two siblings
    >>> tree_attention(q, k, v, tree_mask([-1, -1])).ravel().tolist()
    [2.0, 4.0]
    """
    batch, n_heads, n_new, head_dim = q.shape
    n_kv_heads, n_keys = k.shape[1:3]
    if mask.shape[0] != n_new or not n_new <= mask.shape[1] <= n_keys:
        raise ValueError(f"mask {mask.shape} must be (T, M) with T = {n_new} <= M <= S = {n_keys}")
    rows = q.reshape(batch, n_kv_heads, -1, n_new, head_dim)  # [B, K, G, T, H]
    scores = rows @ k[:, :, None].swapaxes(3, 4) / math.sqrt(head_dim)  # [B, K, G, T, S]
    scores[..., n_keys - mask.shape[1] :][..., ~mask] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = weights @ v[:, :, None] / weights.sum(axis=-1, keepdims=True)
    return mixed.reshape(batch, n_heads, n_new, -1)


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
    Raises: ValueError for alphas that are no probabilities or sum to more than 1 at a depth, and a
            tree deeper or wider than they are.
    Source: Chen et al. 2024, Sequoia, arXiv:2402.12374, proposition 3.4

    >>> expected_tree_tokens(np.array([[0.5, 0.25], [0.5, 0.25]]), [-1, -1, 0])
    2.0
    """
    alpha = _check_ranks(alpha)
    _check_parents(parents)
    ranks = sibling_ranks(parents) if ranks is None else ranks
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


class SuffixAutomaton:
    """A text that knows where its longest ending stood before: a draft without a model.

    The smallest automaton that reads every part of the text. A state stands for all parts that end
    at the same places; its link leads to the longest ending of theirs that also ends elsewhere. So
    the link of the state of the whole text is the longest ending that stands earlier, and what
    followed it there, the first time, is the guess. `extend` takes constant time on average,
    however long the text is, where `generate.prompt_lookup` searches all of it for every guess.

    `n_matched` is how long that ending is.

    Source: Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text"; as a
            draft: Hu et al. 2024, SAM-Decoding, arXiv:2411.10666

    >>> text = SuffixAutomaton([1, 2, 3, 9, 1, 2])
    >>> text.n_matched, text.propose(3)
    (2, [3, 9, 1])
    """

    def __init__(self, tokens: Sequence[int] = ()):
        self._text: list[int] = []
        self._next: list[dict[int, int]] = [{}]  # of each state, by token; state 0: nothing read
        self._link, self._length, self._first_end = [-1], [0], [0]
        self._whole = 0
        for token in tokens:
            self.extend(token)

    @property
    def n_matched(self) -> int:
        return self._length[self._link[self._whole]] if self._text else 0

    def extend(self, token: int) -> None:
        """Add a token to the text."""
        self._text.append(token)
        state, new = self._whole, self._add({}, len(self._text), len(self._text), 0)
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        if state >= 0:
            self._link[new] = self._exactly(state, token)
        self._whole = new

    def propose(self, n: int) -> list[int]:
        """Return up to n tokens: what followed the first time.

        Raises: ValueError for an n that is no count.
        """
        check_count("n", n)
        if self.n_matched == 0:
            return []
        end = self._first_end[self._link[self._whole]]
        return self._text[end : end + n]

    def _add(self, follow: dict[int, int], length: int, first_end: int, link: int) -> int:
        self._next.append(follow)
        self._length.append(length)
        self._first_end.append(first_end)
        self._link.append(link)
        return len(self._next) - 1

    def _exactly(self, state: int, token: int) -> int:
        """Return the state of what `state` stands for and then `token`, and of nothing longer."""
        follow, length = self._next[state][token], self._length[state] + 1
        if self._length[follow] == length:
            return follow
        # The longer parts do not end here: the shorter ones get a state of their own.
        own = self._add(
            dict(self._next[follow]), length, self._first_end[follow], self._link[follow]
        )
        self._link[follow] = own
        while state >= 0 and self._next[state].get(token) == follow:
            self._next[state][token] = own
            state = self._link[state]
        return own


def typical_acceptance(target: Array, epsilon: float = 0.09, delta: float = 0.3) -> Array:
    """Return which tokens Medusa's rule keeps as typical, whatever drew them: (…, V) of bool.

    Token x is kept where p(x) > min(epsilon, delta · exp(-H(p))), with H the entropy of the
    target's distribution p: less is asked where the target itself is undecided. That is no rule of
    chance, and what comes out does not follow p.

    Units:  probability; entropy in nats
    Raises: ValueError for rows that are no distributions.
    Source: Cai et al. 2024, Medusa, arXiv:2401.10774, sec. 2.3.1; FasterDecoding/Medusa,
            medusa/model/utils.py, evaluate_posterior (0.09 and 0.3)

    >>> typical_acceptance(np.array([0.9, 0.06, 0.04])).tolist()
    [True, False, False]
    """
    check_distributions("target", target)
    logs = np.log(target, out=np.zeros_like(target), where=target > 0)
    entropy = -(target * logs).sum(axis=-1, keepdims=True)
    return target > np.minimum(epsilon, delta * np.exp(-entropy))


def accepted_distribution(draft: Array, accept: Array, otherwise: Array) -> Array:
    """Return the distribution of a token that `draft` guesses and some rule keeps or replaces.

    A guess x is kept with probability accept[x], and else replaced by a draw from `otherwise`. With
    `speculative.acceptance_rule` it is the target's; of any other rule it says what really comes
    out.

    Shapes: all (…, V)
    Raises: ValueError for a draft or otherwise that is no distribution, and an accept that holds no
            probabilities.

    >>> target, draft = np.array([0.5, 0.5]), np.array([0.9, 0.1])
    >>> accepted_distribution(draft, *acceptance_rule(target, draft)).round(12).tolist()
    [0.5, 0.5]
    """
    check_distributions("draft", draft)
    check_distributions("otherwise", otherwise)
    if not np.all((accept >= 0) & (accept <= 1)):
        raise ValueError(f"accept must hold probabilities, got {accept}")
    kept = draft * accept
    return kept + (1 - kept.sum(axis=-1, keepdims=True)) * otherwise


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


def _check_ranks(alpha: Array) -> Array:
    alpha = np.asarray(alpha, dtype=np.float64)
    if alpha.ndim != 2 or not (np.all(alpha >= 0) and np.all(alpha.sum(axis=1) <= 1 + 1e-9)):
        raise ValueError(
            "alpha must be (depth, rank), probabilities that sum to at most 1 at each depth, got "
            f"{alpha.tolist()}"
        )
    return alpha
