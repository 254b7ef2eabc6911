"""Values and errors in one short line, whatever they are."""

import numpy as np
import pytest

from exercises.strange import Hostile, Unreadable
from firsttoken.exercises.text import show


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
