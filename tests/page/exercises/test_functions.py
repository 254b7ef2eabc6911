"""Functions: the failing input is shown, known slips are named."""

import numpy as np

from firsttoken.page.exercises import check


def softmax(logits):
    weights = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def no_maximum(logits):
    with np.errstate(all="ignore"):
        return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)


def whole_sum(logits):
    return np.exp(logits - np.max(logits)) / np.exp(logits - np.max(logits)).sum()


LOGITS = [(np.array([0.0, 1.0]),), {"logits": np.array([[1.0, 2.0], [3.0, 5.0]])}, ([1000.0, 0.0],)]


MISTAKES = [(no_maximum, "Subtract the maximum."), (whole_sum, "Sum over the last axis.")]


def check_softmax(function):
    return check(function, softmax, inputs=LOGITS, mistakes=MISTAKES)


def test_a_right_function_passes_and_wrong_ones_are_recognised():
    result = check_softmax(lambda logits: softmax(logits))
    assert result
    assert "all 3 inputs" in result.message
    for wrong, message in MISTAKES:
        assert check_softmax(wrong).message == message


def test_the_failing_input_is_shown():
    result = check_softmax(lambda logits: np.asarray(logits))
    rows = dict(result.rows)
    assert rows["Input 1 of 3"] == "<lambda>(array([0., 1.]))"
    assert rows["Your result"] == "array([0., 1.])"
    assert rows["Expected"].startswith("array([0.268")
    result = check(lambda x, y: x, lambda x, y: x * y, inputs=[(3, 1), {"x": 2, "y": 5}])
    assert dict(result.rows)["Input 2 of 2"] == "<lambda>(x=2, y=5)"


def test_an_error_is_shown_with_its_line():
    """The innermost one of the function."""

    def broken(logits):
        return logits.softmax()

    def deeper(n):
        return deeper(n - 1) if n else 1 / 0

    result = check_softmax(broken)
    assert result.message == "Your function stops with an error."
    assert "AttributeError" in result.rows[1][1]
    assert "return logits.softmax()" in result.rows[1][1]
    assert "SystemExit" in str(check_softmax(lambda logits: exit()))
    assert "positional argument" in str(check_softmax(lambda: 1))
    assert "1 / 0" in check(deeper, abs, inputs=[(2,)]).rows[1][1]


def test_unwritten_functions_are_open():
    """And so is a check that hangs on a cell that did not run."""

    def todo(logits):
        raise NotImplementedError

    for stub in (todo, lambda logits: None, lambda logits: ...):
        assert check_softmax(stub).status == "open"
    assert check(lambda x: None, lambda x: None, inputs=[(1,)]), "None can be the right result"
    result = check(abs, abs, inputs=[(1,)], random=lambda rng: missing_name)  # noqa: F821
    assert result.status == "open"


def test_changing_the_input_is_seen():
    def normalise(x):
        x /= x.sum()
        return x

    result = check(normalise, lambda x: x / x.sum(), inputs=[(np.array([1.0, 3.0]),)])
    assert "changes its input" in result.message
    inputs = [([3, 1, 2],)]
    assert not check(lambda x: x.sort() or x, sorted, inputs=inputs)
    assert inputs == [([3, 1, 2],)], "the author's inputs stay as they are"
    assert check(lambda x: x.append(1), lambda x: x.append(1), inputs=[([],)])
    assert not check(lambda x: None, lambda x: x.append(1), inputs=[([],)])
    assert not check(lambda d: d.pop("a"), lambda d: d["a"], inputs=[({"a": 1},)])
    # Generators give both the same stream.
    inputs = [(np.random.default_rng(0),)]
    assert check(lambda rng: rng.random(3), lambda rng: rng.random(3), inputs=inputs)


def test_an_expected_value_error():
    """Another error is no agreement."""

    def positive(x):
        if x < 0:
            raise ValueError(f"x is {x}; expected x >= 0")
        return x

    inputs = [(1,), (-1,)]
    assert check(positive, positive, inputs=inputs)
    assert "should raise ValueError" in check(abs, positive, inputs=inputs).message
    result = check(lambda x: x if x >= 0 else [][0], positive, inputs=inputs)
    assert result.message == "Your function stops with an error."


def squares(rng):
    return (int(rng.integers(-9, 10)),)


def test_random_inputs_stand_beside_the_listed_ones():
    """A function that is right on the listed inputs alone is caught, and the input is shown."""

    def square(x):
        return x * x

    def lucky(x):
        return 2 * x if x in (0, 2) else x * x + (x < -5)

    listed = [(0,), (2,)]
    assert check(lucky, square, inputs=listed)
    result = check(lucky, square, inputs=listed, random=squares)
    assert result.status == "wrong"
    (label, call), (_, mine), (_, right) = result.rows
    assert label == "An input drawn at random"
    x = int(call.removeprefix("lucky(").removesuffix(")"))
    assert x < -5 and (mine, right) == (str(x * x + 1), str(x * x))
    right = check(square, square, inputs=listed, random=squares)
    assert "all 2 inputs and on 50 more, drawn at random" in right.message
    right = check(abs, abs, inputs=[(0,)], random=squares, n_random=3)
    assert "the input and on 3 more" in right.message


def test_a_listed_input_that_fails_comes_first_and_tells_the_mistake():
    """A random input on which two mistakes part must not hide the message of a listed one."""
    for wrong, right, mistake, said, label in (
        (lambda x: 2 * x + (x < 0), lambda x: x * x, lambda x: 2 * x, "Not twice.", "Input 1 of 1"),
        (lambda x: x, abs, lambda x: x, "And below 0?", "An input drawn at random"),
    ):
        result = check(wrong, right, inputs=[(3,)], random=squares, mistakes=[(mistake, said)])
        assert (result.message, result.rows[0][0]) == (said, label)
