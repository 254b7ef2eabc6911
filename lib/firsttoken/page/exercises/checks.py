"""Checks of a reader's answer: a value, a function, or a test that the reader wrote."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from firsttoken.page.exercises.arguments import mistake_pairs, require_text, require_tolerances
from firsttoken.page.exercises.functions import draw_inputs, function_judge, run
from firsttoken.page.exercises.results import Result, unable
from firsttoken.page.exercises.text import READER_ERRORS, describe, error_row, show
from firsttoken.page.exercises.values import value_judge


def check(
    answer: Any,
    expected: Any,
    *,
    unit: str = "",
    inputs: Sequence[tuple | dict] | None = None,
    random: Callable[[np.random.Generator], tuple | dict] | None = None,
    n_random: int = 50,
    seed: int = 0,
    rtol: float = 1e-3,
    atol: float = 0.0,
    mistakes: Sequence[tuple[Any, str]] = (),
    name: str = "",
) -> Result:
    """Return whether `answer` is right, with a message about the mistake when it is not.

    Without `inputs`, `answer` is a value: a number, an array, text such as "2 GiB" where `unit`
    belongs to a family (bytes, seconds, FLOP, each also per something), or a list, tuple, dict or
    dataclass of such. `expected` is the right value, or a callable of no argument that computes
    it. Each of `mistakes` is (wrong, message), where `wrong` is a value, a callable of no
    argument that computes one, or a callable of one argument that says whether it knows the
    answer. Slips of units, factors, signs and shapes are recognised without being listed.

    With `inputs`, `answer` is the reader's function and `expected` the right one. Both are called
    on copies of every input (a tuple of arguments or a dict of keyword arguments) and must return
    the same, leave the arguments in the same state, and raise ValueError on the same inputs.
    `mistakes` then pairs wrong functions with messages. With `random`, a function that draws one
    more input from a generator, they must agree on `n_random` such inputs, too: always the same
    ones for one `seed`. Of those that fail the shortest is shown.

    A value x is right where |x - expected| <= atol + rtol * |expected|.

    Units:  a bare number is taken to be in `unit`.
    Raises: ValueError for a bad call by the author, never because of `answer`.

    >>> check(4.295, lambda: 2**32 / 1e9, unit="GB")
    ✓ Right. 4.295 GB
    >>> check(4.0, lambda: 2**32 / 1e9, unit="GB").message.split(".")[0]
    'That is the answer in GiB; the question asks for GB'
    >>> check(lambda x: x + x, lambda x: x * x, inputs=[(2,), (3,)])
    ✗ Not yet. The value is wrong.
        Input 2 of 2: <lambda>(3)
        Your result: 6
        Expected: 9
    >>> check(lambda x: x, abs, inputs=[(2,)], random=lambda rng: (int(rng.integers(-9, 9)),))
    ✗ Not yet. The value is wrong.
        An input drawn at random: <lambda>(-5)
        Your result: -5
        Expected: 5
    """
    require_text("name", name, empty=True)
    require_text("unit", unit, empty=True)
    require_tolerances(rtol, atol)
    pairs = mistake_pairs(mistakes)
    if inputs is None:
        if random is not None:
            raise ValueError("random inputs stand beside listed ones; got no inputs")
        judge = value_judge(expected, unit, rtol, atol, pairs)
    else:
        try:
            drawn = draw_inputs(random, n_random, seed) if random is not None else []
            judge = function_judge(expected, inputs, drawn, rtol, atol, pairs)
        except NameError as error:  # of a variable of the reader's that `random` draws from
            judge = unable(error)
    try:
        result = judge(answer)
    except READER_ERRORS as error:
        result = Result("wrong", "This answer cannot be compared.", (error_row(error),))
    return dataclasses.replace(result, name=name)


def check_test(
    test: Any,
    correct: Callable,
    mutants: Mapping[str, Callable],
    *,
    name: str = "",
) -> Result:
    """Return whether a reader's test accepts `correct` and rejects every one of `mutants`.

    For find-the-bug exercises: the reader writes `test(implementation)`, which rejects by raising
    (a failed assert) or by returning False. `mutants` maps what is wrong with an implementation
    to that implementation; the message names those that slip through.

    Raises: ValueError for a bad call by the author, never because of `test`.

    >>> def test(double):
    ...     assert double(2) == 4
    >>> check_test(test, lambda x: 2 * x, {"it squares": lambda x: x * x})
    ✗ Not yet. The test accepts a wrong implementation: it squares.
        Caught: 0 of 1
    """
    require_text("name", name, empty=True)
    if not callable(correct):
        raise ValueError(f"correct must be a function; got {show(correct)}")
    if not isinstance(mutants, Mapping) or not mutants:
        raise ValueError(f"mutants must map names to functions; got {show(mutants)}")
    for label, mutant in mutants.items():
        require_text("name of a mutant", label)
        if not callable(mutant):
            raise ValueError(f"mutant {label!r} must be a function; got {show(mutant)}")
    try:
        result = _judge_test(test, correct, mutants)
    except READER_ERRORS as error:
        result = Result("wrong", "This test cannot be run.", (error_row(error),))
    return dataclasses.replace(result, name=name)


def _judge_test(test: Any, correct: Callable, mutants: Mapping[str, Callable]) -> Result:
    if test is None or test is ...:
        return Result("open", "Write the test, then run this cell again.")
    if not callable(test):
        return Result("wrong", "A function is needed here, one that takes an implementation.")

    def complaint(implementation: Callable) -> BaseException | None:
        call = run(test, ((implementation,), {}), copied=False)
        if call.error is None and isinstance(call.value, bool | np.bool_) and not call.value:
            return AssertionError("the test returned False")
        bools = isinstance(call.value, np.ndarray) and call.value.dtype == bool
        if bools and not call.value.all():  # of `return a == b`, where a and b are arrays
            return AssertionError("the test returned an array with False in it")
        return call.error

    on_correct = complaint(correct)
    if isinstance(on_correct, NotImplementedError):
        return Result("open", "Write the test, then run this cell again.")
    if on_correct is not None:
        row = ("It stopped with", describe(on_correct, test))
        if isinstance(on_correct, AssertionError):
            advice = "Look at the values that it expects, and compare numbers with a tolerance."
        else:
            advice = "It stops with an error, so the slip may be in the test itself."
        text = f"The test rejects the correct implementation. {advice}"
        return Result("wrong", text, (row,))
    survivors = [label for label, mutant in mutants.items() if complaint(mutant) is None]
    if not survivors:
        return Result("right", f"The test accepts the correct one and catches all {len(mutants)}.")
    caught = ("Caught", f"{len(mutants) - len(survivors)} of {len(mutants)}")
    if len(survivors) == len(mutants) > 1:
        text = "The test accepts everything: is an `assert` or a `return` missing?"
        return Result("wrong", text, (caught,))
    many = "wrong implementations" if len(survivors) > 1 else "a wrong implementation"
    return Result("wrong", f"The test accepts {many}: {'; '.join(survivors)}.", (caught,))
