"""How decoding sequences guess: how often rightly, how far, and at what price."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from firsttoken.checks import check_count


@dataclass(frozen=True)
class Speculation:
    """How decoding sequences guess in `simulate`: how often rightly, how far, and at what price.

    alpha: how likely a guess is to be kept, given that those before it were: one number, or one
    for each place. gamma: how many guesses each sequence makes in a step, a number or a function
    of how many sequences decode, which may turn it down with the load. draft_s(n_sequences, gamma):
    the time it takes to make them, which is added to the step. `seed` is that of the draws.

    Units:  probability, tokens, seconds
    Raises: ValueError for an alpha outside 0 … 1, a gamma that is no count, and one that is larger
            than the number of alphas.
    Source: Leviathan et al. 2023, arXiv:2211.17192, sec. 2 (independent acceptances); Liu et al.
            2024, SmartSpec, arXiv:2406.14066, sec. 4 (a gamma that depends on the batch)

    >>> speculation = Speculation(0.7, lambda n: 4 if n < 32 else 0, lambda n, gamma: 0.001 * gamma)
    >>> speculation.guesses(8), speculation.guesses(64)
    (4, 0)
    """

    alpha: float | Sequence[float]
    gamma: int | Callable[[int], int]
    draft_s: Callable[[int, int], float]
    seed: int = 0

    def __post_init__(self) -> None:
        alpha = np.asarray(self.alpha, dtype=np.float64)
        if alpha.ndim > 1 or not np.all((alpha >= 0) & (alpha <= 1)):
            raise ValueError(
                f"alpha must lie in 0 … 1, one number or one for each guess, got {self.alpha!r}"
            )
        if not callable(self.gamma):
            self._check_gamma(self.gamma)

    def _check_gamma(self, gamma: int) -> int:
        gamma = check_count("gamma", gamma)
        if np.ndim(self.alpha) and gamma > np.size(self.alpha):
            raise ValueError(
                f"gamma must be at most {np.size(self.alpha)}, the number of alphas, got {gamma}"
            )
        return gamma

    def guesses(self, n_decoding: int) -> int:
        """Return how many guesses each sequence makes where so many decode."""
        gamma = self.gamma(n_decoding) if callable(self.gamma) else self.gamma
        return self._check_gamma(gamma)

    def draw_kept(self, n_sequences: int, gamma: int, rng: np.random.Generator) -> list[int]:
        """Return how many of its gamma guesses each sequence keeps: those before the first miss.

        >>> Speculation(1.0, 4, lambda n, gamma: 0.0).draw_kept(2, 4, np.random.default_rng(0))
        [4, 4]
        """
        right = rng.random((n_sequences, gamma)) < np.atleast_1d(self.alpha)[:gamma]
        return right.cumprod(axis=1).sum(axis=1).tolist()
