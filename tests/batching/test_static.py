"""Static batches: the share of places in use, against inclusion and exclusion."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.batching import static_utilization


def exact_utilization(batch, mean_output):
    """By inclusion and exclusion: the shortest of j such lengths has mean 1 / (1 - q^j)."""
    q = 1 - 1 / Fraction(mean_output)
    longest = sum(math.comb(batch, j) * (-1) ** (j + 1) / (1 - q**j) for j in range(1, batch + 1))
    return float(mean_output / longest)


@given(st.integers(1, 30), st.integers(1, 300))
def test_static_utilization_is_exact(batch, mean_output):
    assert static_utilization(batch, mean_output) == pytest.approx(
        exact_utilization(batch, mean_output), rel=1e-12
    )
