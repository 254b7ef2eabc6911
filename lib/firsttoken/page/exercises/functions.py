"""Functions: a reader's against the right one, on the same inputs."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from firsttoken.checks import check_count
from firsttoken.page.exercises.compare import as_number, first_difference, within
from firsttoken.page.exercises.results import Result, unable
from firsttoken.page.exercises.text import READER_ERRORS, describe, sentence, show, type_row
from firsttoken.page.exercises.values import diagnoses


@dataclass(frozen=True)
class _Call:
    """What came of one call: a value or an error, and the arguments as it left them."""

    value: Any
    error: BaseException | None
    arguments: tuple[tuple, dict]


def run(function: Callable, arguments: tuple[tuple, dict], copied: bool = True) -> _Call:
    args, kwargs = copy.deepcopy(arguments) if copied else arguments
    try:
        return _Call(function(*args, **kwargs), None, (args, kwargs))
    except READER_ERRORS as error:
        return _Call(None, error, (args, kwargs))


def function_judge(
    reference: Callable,
    inputs: Sequence[tuple | dict],
    drawn: Sequence[tuple | dict],
    rtol: float,
    atol: float,
    mistakes: list[tuple[Any, str]],
) -> Callable[[Any], Result]:
    """Return the judge of a function; `drawn` are random inputs that come after the listed ones."""
    if not callable(reference):
        raise ValueError(f"expected must be a function where inputs are given: {show(reference)}")
    if not isinstance(inputs, list | tuple) or not inputs:
        raise ValueError(f"inputs must be a non-empty list; got {show(inputs)}")
    for i, given in enumerate(inputs):
        if not isinstance(given, tuple | dict):
            raise ValueError(f"inputs[{i}] must be a tuple or a dict; got {show(given)}")
    for wrong, message in mistakes:
        if not callable(wrong):
            raise ValueError(f"mistake {message!r} must be a function; got {show(wrong)}")
    n_listed = len(inputs)
    calls: list[tuple[tuple, dict]] = [
        ((), given) if isinstance(given, dict) else (given, {}) for given in (*inputs, *drawn)
    ]
    try:
        copy.deepcopy(calls)
    except READER_ERRORS as error:
        raise ValueError(f"inputs must be copyable; got {show(inputs)}") from error
    wants = [run(reference, call) for call in calls]
    for want in wants:
        if want.error is not None and not isinstance(want.error, ValueError):
            return unable(want.error)

    def judge(function: Any) -> Result:
        if function is None or function is ...:
            return Result("open", "Write the function, then run this cell again.")
        if not callable(function):
            return Result("wrong", "A function is needed here.", type_row(function))
        gots = [run(function, call) for call in calls]
        if any(isinstance(got.error, NotImplementedError) for got in gots) or all(
            got.error is None and (got.value is None or got.value is ...) and want.value is not None
            for got, want in zip(gots, wants, strict=True)
        ):
            text = "The function returns nothing. Write it (or is a `return` missing?)."
            return Result("open", text)
        problems = [_call_difference(g, w, rtol, atol) for g, w in zip(gots, wants, strict=True)]
        failed = [i for i, problem in enumerate(problems) if problem]
        if not failed:
            return Result("right", f"Your function agrees on {_how_many(n_listed, len(drawn))}.")
        # The listed inputs are chosen to tell mistakes apart; the random ones, to let none through.
        n_told = n_listed if failed[0] < n_listed else len(calls)
        message = _known_function_mistake(
            gots[:n_told], wants[:n_told], calls[:n_told], mistakes, rtol, atol
        )
        rows = [_call_rows(function, calls[i], gots[i], wants[i]) for i in failed]
        if failed[0] < n_listed:
            shown, place = 0, f"Input {failed[0] + 1} of {n_listed}"
        else:
            shown = min(range(len(failed)), key=lambda i: len(rows[i][0]))
            place = "An input drawn at random"
        call, mine, right = rows[shown]
        labels = ((place, call), ("Your result", mine), ("Expected", right))
        return Result("wrong", message or problems[failed[shown]], labels)

    return judge


def draw_inputs(random: Any, n: int, seed: int) -> list[tuple | dict]:
    """Return n inputs from the author's `random(rng)`, the same ones whenever the seed is."""
    if not callable(random):
        raise ValueError(f"random must be a function of a generator; got {show(random)}")
    rng = np.random.default_rng(seed)
    drawn = [random(rng) for _ in range(check_count("n_random", n, at_least=1))]
    for given in drawn:
        if not isinstance(given, tuple | dict):
            raise ValueError(f"random must return a tuple or a dict; got {show(given)}")
    return drawn


def _how_many(n_listed: int, n_drawn: int) -> str:
    listed = f"all {n_listed} inputs" if n_listed > 1 else "the input"
    return f"{listed} and on {n_drawn} more, drawn at random" if n_drawn else listed


def _call_difference(got: _Call, want: _Call, rtol: float, atol: float) -> str:
    """Return how one call differs from the right one, or an empty text."""
    if got.error is not None:
        if want.error is not None and isinstance(got.error, type(want.error)):
            return ""
        return "Your function stops with an error."
    if want.error is not None:
        return "Your function should raise ValueError for this input."
    difference = first_difference(got.value, want.value, rtol, atol)
    if difference:
        return sentence(difference)
    for g, w in zip(_arguments(got), _arguments(want), strict=True):
        if isinstance(w, np.ndarray | list | dict) and first_difference(g, w, rtol, atol):
            return (
                "The result is right, but the function changes its input: work on a copy "
                "or make a new array."
            )
    return ""


def _arguments(call: _Call) -> list[Any]:
    args, kwargs = call.arguments
    return [*args, *kwargs.values()]


def _known_function_mistake(
    gots: list[_Call],
    wants: list[_Call],
    calls: list[tuple[tuple, dict]],
    mistakes: list[tuple[Any, str]],
    rtol: float,
    atol: float,
) -> str | None:
    """Return the message of the wrong function that the reader's agrees with everywhere."""
    for wrong, message in mistakes:
        theirs = [run(wrong, call) for call in calls]
        if not any(_call_difference(g, t, rtol, atol) for g, t in zip(gots, theirs, strict=True)):
            return message
    common = None
    for got, want in zip(gots, wants, strict=True):
        mine, right = as_number(got.value), as_number(want.value)
        if mine is None or right is None or mine.shape != right.shape or right.size == 0:
            return None
        fits = [m for value, m in diagnoses(right, "") if within(mine, value, rtol, atol)]
        common = fits if common is None else [m for m in common if m in fits]
    return common[0] if common else None


def _call_rows(
    function: Callable, call: tuple[tuple, dict], got: _Call, want: _Call
) -> tuple[str, str, str]:
    """Return a call, the reader's result and the right one, each in one line."""
    args, kwargs = call
    given = [show(a) for a in args] + [f"{k}={show(v)}" for k, v in kwargs.items()]
    title = getattr(function, "__name__", "your_function")
    mine = describe(got.error, function) if got.error is not None else show(got.value)
    right = describe(want.error) if want.error is not None else show(want.value)
    return f"{title}({', '.join(given)})", mine, right
