"""Values and errors in one short line, whatever they are."""

import numpy as np

from exercises.strange import Hostile, Unreadable
from firsttoken.exercises.text import cut, show, with_unit


def test_show():
    for value, text in (
        (np.float32(0.1), "0.1"),
        (np.int64(7), "7"),
        ([np.int64(1), 2.0], "[1, 2]"),
        (np.arange(3), "array([0, 1, 2])"),
        (np.arange(16), "array([ 0, 1, 2, 3, 4"),
        (np.arange(17), "array of shape (17,): "),
        (np.zeros((20, 2)), "array of shape (20, 2): [[0., 0.]"),
        (Unreadable(), "<Unreadable>"),
        (Hostile(), "<Hostile"),
    ):
        assert show(value).startswith(text)
        assert "\n" not in show(value)
    assert (with_unit(2.5, "GB"), with_unit(2000.0, "")) == ("2.5 GB", "2,000")
    assert cut("a" * 300) == "a" * 300
    assert cut("a" * 301) == "a" * 299 + "…"
