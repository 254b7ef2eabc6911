"""Numbers as readers type them."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from exercises.test_values import CACHE
from firsttoken.exercises import check


@pytest.mark.parametrize(
    "answer",
    [
        4.294967296,
        np.float32(4.295),
        np.array(4.295),
        "4 GiB",
        "4gib",
        "4,294,967,296 B",
        "4_294_967_296 bytes",
        "4 294 967 296 B",
        "4.294967296",
        " 4.295e0 GB ",
        "4295 MB",
        Fraction(4295, 1000),
        Decimal("4.295"),
    ],
)
def test_right_in_any_spelling(answer):
    assert check(answer, lambda: CACHE / 1e9, unit="GB")


def test_units_of_time_and_the_longest_text():
    assert check("1 h", 60, unit="min")
    assert check("2 min", 120, unit="s")
    assert check("0" * 99 + "4", 4.0), "a hundred characters"
    assert "can be read" in check("0" * 100 + "4", 4.0).message
    assert "Give the answer in s" in check("1 m", 1, unit="s").message


def test_a_unit_of_a_family_has_no_singular():
    assert "Give the answer in ms" in check("1 m", 1, unit="ms").message
