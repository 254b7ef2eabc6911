"""Typical acceptance: a rule that keeps more guesses, and what it does to the text."""

import numpy as np

from firsttoken.speculative.verification import check_distributions

Array = np.ndarray


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

    >>> from firsttoken.speculative import acceptance_rule
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
