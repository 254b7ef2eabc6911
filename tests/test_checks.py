"""One rule for counts, held by every kind of value that could pass for one."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.checks import check_count

INTEGERS = st.one_of(
    st.integers(-(2**40), 2**40),
    st.integers(-128, 127).map(np.int8),
    st.integers(0, 2**63).map(np.uint64),
)


@given(value=INTEGERS, at_least=st.integers(-5, 5))
def test_integers_pass_from_the_bound_on(value, at_least):
    if value >= at_least:
        got = check_count("n", value, at_least)
        assert got == value and type(got) is int
    else:
        with pytest.raises(ValueError, match=f"n must be an integer of at least {at_least}, got"):
            check_count("n", value, at_least)


@pytest.mark.parametrize(
    "value",
    [
        *(True, False, np.True_, 2.0, np.float64(2), 1.5, float("nan"), "2", None),
        *([2], np.array([2]), Fraction(2), Decimal(2), 2 + 0j),
    ],
)
def test_nothing_else_is_a_count(value):
    with pytest.raises(ValueError, match="n_heads must be an integer of at least 0, got"):
        check_count("n_heads", value)


def test_zero_is_a_count_unless_said_otherwise():
    assert check_count("n", 0) == 0
    with pytest.raises(ValueError, match="at least 1, got 0"):
        check_count("n", 0, at_least=1)
