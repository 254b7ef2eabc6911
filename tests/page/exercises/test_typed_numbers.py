"""Numbers as readers type them."""

from decimal import Decimal
from fractions import Fraction

import numpy as np

from firsttoken.page.exercises import check
from page.exercises.test_values import CACHE


def test_right_in_any_spelling():
    for answer in (
        *(4.294967296, np.float32(4.295), np.array(4.295), Fraction(4295, 1000), Decimal("4.295")),
        *("4 GiB", "4gib", "4,294,967,296 B", "4_294_967_296 bytes", "4 294 967 296 B"),
        *("4.294967296", " 4.295e0 GB ", "4295 MB"),
    ):
        assert check(answer, lambda: CACHE / 1e9, unit="GB"), answer


def test_units_of_time_and_the_longest_text():
    assert check("1 h", 60, unit="min")
    assert check("2 min", 120, unit="s")
    assert check("0" * 99 + "4", 4.0), "a hundred characters"
    assert "can be read" in check("0" * 100 + "4", 4.0).message
    for unit in ("s", "ms"):  # a unit of a family has no singular
        assert f"Give the answer in {unit}" in check("1 m", 1, unit=unit).message


def test_flops_by_the_thousand_trillions():
    for answer in ("315 ZFLOP", "3.15e5 EFLOPs", "0.315e9 PFLOP"):
        assert check(answer, 3.15e23, unit="FLOP"), answer
    assert "answer in ZFLOP" in check(315, 3.15e23, unit="FLOP").message
