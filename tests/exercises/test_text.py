"""Values and errors in one short line, whatever they are."""

import numpy as np
import pytest

from exercises.strange import Hostile, Unreadable
from firsttoken.exercises.text import cut, show, with_unit


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float32(0.1), "0.1"),
        (np.int64(7), "7"),
        ([np.int64(1), 2.0], "[1, 2]"),
        (np.arange(3), "array([0, 1, 2])"),
        (np.zeros((20, 2)), "array of shape (20, 2): [[0., 0.]"),
        (Unreadable(), "<Unreadable>"),
    ],
)
def test_show(value, text):
    assert show(value).startswith(text)
    assert "\n" not in show(value)


def test_show_survives_what_cannot_be_touched():
    assert show(Hostile()).startswith("<Hostile")


def test_long_texts_are_cut():
    assert show(np.arange(16)).startswith("array([ 0, 1, 2, 3, 4")
    assert "shape" in show(np.arange(17))
    assert cut("a" * 300) == "a" * 300
    assert cut("a" * 301) == "a" * 299 + "…"
    assert (with_unit(2.5, "GB"), with_unit(2000.0, "")) == ("2.5 GB", "2,000")
