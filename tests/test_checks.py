"""Counts, choices, times, shares: one rule each, held by every value that could pass for one."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.checks import check_choice, check_count, check_seconds, check_share, check_whole

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


@given(value=INTEGERS)
def test_whole_numbers_have_either_sign(value):
    got = check_whole("n", value)
    assert got == value and type(got) is int


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
    with pytest.raises(ValueError, match="priority must be a whole number, got"):
        check_whole("priority", value)


@pytest.mark.parametrize("choices", [("lru", "fifo"), {"lru": 1, "fifo": 2}, ["lru", "fifo"]])
def test_a_choice_is_one_of_the_texts(choices):
    assert check_choice("policy", "fifo", choices) is None
    assert check_choice("policy", np.str_("lru"), choices) is None
    for value in ("", "lr", "LRU", None, 0, b"lru", ["lru"], np.array(["lru", "fifo"])):
        with pytest.raises(ValueError, match="policy must be one of lru, fifo, got"):
            check_choice("policy", value, choices)


def test_zero_is_a_count_unless_said_otherwise():
    assert check_count("n", 0) == 0
    with pytest.raises(ValueError, match="at least 1, got 0"):
        check_count("n", 0, at_least=1)


@pytest.mark.parametrize(
    "value", [0, 0.0, 1, 1.5, 1e300, np.float32(2), np.int64(3), Fraction(1, 3)]
)
def test_times_pass_from_zero_on(value):
    assert check_seconds(ttft_s=value) is None


@pytest.mark.parametrize(
    "value", [-1, -1e-300, math.inf, -math.inf, math.nan, "1", None, 1j, [1.0], Decimal(1)]
)
def test_no_time_is_negative_or_without_end(value):
    with pytest.raises(ValueError, match="queue_s must be a finite time, not negative; got"):
        check_seconds(ttft_s=0.5, queue_s=value, last_s=0.5)


@pytest.mark.parametrize("value", [0, 1, 0.5, 1e-300, np.float32(1), Fraction(1, 3)])
def test_shares_pass_with_both_ends(value):
    assert check_share(busy=value) is None


@pytest.mark.parametrize(
    "value", [-1e-300, math.nextafter(1, 2), 2, -1, math.inf, math.nan, "1", None, 1j, [0.5]]
)
def test_no_share_lies_outside(value):
    with pytest.raises(ValueError, match="busy must be a share in 0 … 1; got"):
        check_share(idle=0.5, busy=value, waiting=0.5)
