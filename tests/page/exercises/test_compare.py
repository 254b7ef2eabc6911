"""Arrays, collections and objects: the first difference is named."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

from firsttoken.page.exercises import check
from page.exercises.strange import AlwaysEqual


def test_arrays():
    want = np.arange(6.0).reshape(2, 3)
    assert check(want.tolist(), want)
    assert check(want.astype(np.float32), want)
    assert "transposed" in check(want.T, want).message
    assert "transposed" not in check(np.zeros((2, 4)), np.zeros((2, 3))).message
    assert "one number" in check(3.0, want).message
    assert "NaN at [1, 2]" in check(np.where(want == 5, np.nan, want), want).message
    wrong = want.copy()
    wrong[1, 0] = 7
    message = check(wrong, want).message
    assert "Wrong in 1 of 6 elements, the first at [1, 0]: 7." in message and "3" not in message
    assert "twice" in check(np.ones(3) * 2, np.ones(3)).message
    assert check([1.0, -np.inf], np.array([1.0, -np.inf]))
    assert not check([1.0, np.inf], np.array([1.0, -np.inf]))
    assert check([], np.zeros(0))
    assert "transposed" in check(want.T, want, mistakes=[(want * 3, "no")]).message
    assert check(want.T, want, mistakes=[(want.T, "Turn it.")]).message == "Turn it."
    # NaN is named only where none was expected.
    missing = np.array([np.nan, 1.0])
    result = check(lambda: np.array([np.nan, 2.0]), lambda: missing, inputs=[()])
    assert "Wrong in 1 of 2" in result.message


@dataclass
class Cost:
    flops: float
    name: str


def test_other_kinds_of_value():
    assert check(True, True)
    assert not check(1, True)
    assert not check(False, True)
    assert check({"a": 1.0, "b": [1, 2]}, {"a": 1, "b": (1, 2)})
    assert "key 'b' is missing" in check({"a": 1.0}, {"a": 1, "b": 2}).message
    assert "At key 'b': at [1]" in check({"b": ["x", "y"]}, {"b": ["x", "z"]}).message
    assert "length is 1" in check(["x"], ["x", "z"]).message
    assert check(Cost(1.0, "mlp"), Cost(1.0000001, "mlp"))
    assert "Flops: " in check(Cost(2.0, "mlp"), Cost(1.0, "mlp")).message
    assert check(np.array([True, False]), np.array([True, False]))
    assert not check(np.array([True, True]), np.array([True, False]))
    assert check(["x"], ["z"], mistakes=[(["x"], "Not x.")]).message == "Not x."


def test_objects_equal_to_everything_do_not_pass():
    for wrong in (AlwaysEqual(), [AlwaysEqual()], {"a": AlwaysEqual()}):
        for want in (1.0, True, ["x"], {"a": "x"}, None, Cost(1, "a"), {1, 2}):
            assert not check(wrong, want)


def test_booleans_in_any_collection():
    """What can be told apart from numbers: a list of bools is right, ones and zeros are not."""
    want = np.array([True, False])
    assert check(np.True_, True)
    for right in ([True, False], (True, False), [np.True_, np.False_], want):
        assert check(right, want)
    for wrong in ([1, 0], np.array([1, 0]), [1.0, 0.0], [True], [[True, False]], [True, None]):
        assert not check(wrong, want)
    assert not check([True, AlwaysEqual()], want)
    assert check([[True], [False]], want[:, None])


def test_only_numbers_are_numbers():
    class Four:
        def __float__(self):
            return 4.0

    assert not check(Four(), 4.0)
    assert check([1, Fraction(1, 2)], [1.0, 0.5])
    assert not check([True, Fraction(1, 2)], [1.0, 0.5])
    assert not check(["1", 2.5], [1.0, 2.5])
    torch = pytest.importorskip("torch")
    assert check(torch.tensor([1.0, 2.0], dtype=torch.bfloat16, requires_grad=True), [1, 2])


def test_ones_and_zeros_hear_of_booleans():
    kept = np.array([True, False, True])
    for ones in (kept.astype(int), [1, 0, 1], kept * 1.0):
        assert ".astype(bool)" in check(lambda z: z, lambda z: kept, inputs=[(ones,)]).message
    twos = check(lambda: [1, 2, 1], lambda: kept, inputs=[()])
    assert "an array of bool" in twos.message
