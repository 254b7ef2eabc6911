"""What fixed batches waste, in closed form."""

import math

import numpy as np

from firsttoken.checks import check_count


def static_utilization(batch: int, mean_output: float) -> float:
    """Return the share of places that hold a running sequence, in static batches always full.

    A batch lasts as long as its longest answer: E[length] / E[longest of `batch`]. Lengths are
    geometric: each token is the last with probability 1 / mean_output. For long answers this falls
    to 1/H_B with H_B = 1 + 1/2 + … + 1/B, since the longest of B exponential times lasts H_B means.

    Holds:  for geometric lengths. Where they differ less, more is used (batches of 16, mean 128:
            0.30 here, 0.53 for lengths spread evenly from 1 to 255); a few very long ones leave
            less.
    Units:  tokens
    Raises: ValueError for a batch below 1 and a mean below one token.

    >>> round(static_utilization(4, 1e4), 2)  # 1 / (1 + 1/2 + 1/3 + 1/4)
    0.48
    """
    check_count("batch", batch, at_least=1)
    if not 1 <= mean_output < math.inf:
        raise ValueError(f"mean_output must be at least one token and finite, got {mean_output!r}")
    going_on = 1 - 1 / mean_output
    # Beyond the horizon a batch still runs with a probability below 1e-16.
    horizon = 1 + math.ceil(mean_output * math.log(batch * mean_output * 1e16))
    still_one = going_on ** np.arange(horizon)
    longest = (1 - (1 - still_one) ** batch).sum()  # E[longest] = Σ P(longest > k)
    return float(mean_output / longest)
