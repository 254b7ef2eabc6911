"""Exercises: checks of a reader's answer, quizzes that also work without a kernel, hints.

What a reader gives is shown to be right or wrong, with the reason; it never raises. A bad call by
the author of an exercise raises ValueError. Every output is HTML that needs nothing from outside,
with a plain-text form for terminals. What was solved is remembered by the reader's own browser.
"""

import copy
import dataclasses
import hashlib
import html
import inspect
import json
import math
import numbers
import os
import re
import reprlib
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any

import numpy as np

from firsttoken.start import CHAPTERS, Chapter

# KeyboardInterrupt is left out: a reader who stops a cell means it.
_READER_ERRORS = (Exception, SystemExit)

_ICONS = {"right": "✓", "wrong": "✗", "open": "…"}
_NEAR = 5e-3  # how well a wrong answer must fit a diagnosis
_SLIP = 0.03  # how well it must fit a listed mistake, where the answer itself may be rough
_CLOSE = 0.05  # within this of the answer: rounding is the likeliest mistake
_MAX_TYPED = 100  # characters; no number needs more


# ---------------------------------------------------------------------------------------------
# What a check gives back


@dataclass(frozen=True, repr=False)
class Result:
    """The outcome of a check: true when the answer is right, and shown by the notebook.

    `status` is "right", "wrong" or "open" (nothing to judge yet). `rows` are (label, text) pairs
    such as the failing input. A right result with a `name` counts in the reader's progress, under
    the name up to its first comma: "Exercise 3, repair" solves "Exercise 3".
    """

    status: str
    message: str
    rows: tuple[tuple[str, str], ...] = ()
    name: str = ""

    def __bool__(self) -> bool:
        return self.status == "right"

    def _verdict(self) -> str:
        words = {"right": "Right.", "wrong": "Not yet.", "open": "Nothing to check yet."}
        return f"{self.name}: {words[self.status]}" if self.name else words[self.status]

    def __repr__(self) -> str:
        lines = [f"{_ICONS[self.status]} {self._verdict()} {self.message}".rstrip()]
        lines += [f"    {label}: {text}" for label, text in self.rows]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<dt>{html.escape(label)}</dt><dd><code>{html.escape(text)}</code></dd>"
            for label, text in self.rows
        )
        task = script = ""
        if self and self.name:
            named = html.escape(self.name.partition(",")[0])
            task = f' data-task="{named}" data-page="{_running_chapter()}"'
            script = _script("store.js")
        return (
            f'<div class="ft-exercise ft-{self.status}" role="status"{task}'
            f' data-lm-suppress-shortcuts="true">{_style()}<div class="ft-verdict">'
            f'<span class="ft-icon" aria-hidden="true">{_ICONS[self.status]}</span>'
            f"<div><strong>{_markup(self._verdict())}</strong> {_markup(self.message)}"
            f"{f'<dl>{rows}</dl>' if rows else ''}</div></div>{script}</div>"
        )


def _running_chapter() -> str:
    """Return the chapter whose notebook runs this kernel, or "" where nobody says.

    Jupyter's server does. The browser knows only which notebook is in front, which is another one
    when the reader has gone on while a chapter still runs.
    """
    found = re.findall(r"\d\d_[a-z_]+", os.environ.get("JPY_SESSION_NAME", ""))
    return found[-1] if found else ""


# ---------------------------------------------------------------------------------------------
# check: a value, or a function


def check(
    answer: Any,
    expected: Any,
    *,
    unit: str = "",
    inputs: Sequence[tuple | dict] | None = None,
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
    `mistakes` then pairs wrong functions with messages.

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
    """
    _require_text("name", name, empty=True)
    _require_text("unit", unit, empty=True)
    _require_tolerances(rtol, atol)
    mistakes = _pairs(mistakes)
    if inputs is None:
        judge = _value_judge(expected, unit, rtol, atol, mistakes)
    else:
        judge = _function_judge(expected, inputs, rtol, atol, mistakes)
    try:
        result = judge(answer)
    except _READER_ERRORS as error:
        result = Result("wrong", "This answer cannot be compared.", (_error_row(error),))
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
    _require_text("name", name, empty=True)
    if not callable(correct):
        raise ValueError(f"correct must be a function; got {_show(correct)}")
    if not isinstance(mutants, Mapping) or not mutants:
        raise ValueError(f"mutants must map names to functions; got {_show(mutants)}")
    for label, mutant in mutants.items():
        _require_text("name of a mutant", label)
        if not callable(mutant):
            raise ValueError(f"mutant {label!r} must be a function; got {_show(mutant)}")
    try:
        result = _judge_test(test, correct, mutants)
    except _READER_ERRORS as error:
        result = Result("wrong", "This test cannot be run.", (_error_row(error),))
    return dataclasses.replace(result, name=name)


def _judge_test(test: Any, correct: Callable, mutants: Mapping[str, Callable]) -> Result:
    if test is None or test is ...:
        return Result("open", "Write the test, then run this cell again.")
    if not callable(test):
        return Result("wrong", "A function is needed here, one that takes an implementation.")

    def complaint(implementation: Callable) -> Exception | None:
        call = _run(test, ((implementation,), {}), copied=False)
        if call.error is None and isinstance(call.value, bool | np.bool_) and not call.value:
            return AssertionError("the test returned False")
        return call.error

    on_correct = complaint(correct)
    if isinstance(on_correct, NotImplementedError):
        return Result("open", "Write the test, then run this cell again.")
    if on_correct is not None:
        row = ("It stopped with", _describe(on_correct, test))
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


# ---------------------------------------------------------------------------------------------
# Values


def _value_judge(
    expected: Any, unit: str, rtol: float, atol: float, mistakes: list[tuple[Any, str]]
) -> Callable[[Any], Result]:
    """Return the judge of one value; the author's arguments are checked here."""
    predicates, values = [], []
    for wrong, message in mistakes:
        if callable(wrong) and _n_required(wrong) == 1:
            predicates.append((wrong, message))
        else:
            values.append((wrong, message))
    try:
        expected = expected() if callable(expected) else expected
        values = [(w() if callable(w) else w, message) for w, message in values]
    except _READER_ERRORS as error:
        # It may hang on a variable of the reader's, so it is shown and not raised.
        return _unable(error)
    if isinstance(expected, str | bytes):
        raise ValueError(f"expected is text, {_show(expected)}: nothing is graded by its spelling")
    want = _as_number(expected)
    if want is None and unit:
        raise ValueError(f"unit {unit!r} needs a numeric expected value; got {_show(expected)}")
    if want is not None and np.isnan(want).any():
        raise ValueError(f"expected holds NaN: {_show(expected)}")

    def judge(answer: Any) -> Result:
        if answer is None or answer is ...:
            return Result("open", "Replace the `...` with your answer, then run this cell again.")
        mine = ("Your answer", _show(answer))
        if want is None:
            difference = _difference(answer, expected, rtol, atol)
            if not difference:
                return Result("right", "")
            known = [m for value, m in values if not _difference(answer, value, rtol, atol)]
            known += [m for knows, m in predicates if _says_yes(knows, answer)]
            return Result("wrong", _first(known) or _sentence(difference), (mine,))
        if isinstance(answer, str):
            number, problem = _parse(answer, unit)
            if problem:
                return Result("wrong", problem, (mine,))
            got = np.asarray(number)
        elif callable(answer):
            return Result("wrong", "This is a function: call it, and give its result.", (mine,))
        else:
            got = _as_number(answer)
        if got is None:
            kind = f"a number in {unit}" if unit else "a number"
            kind = kind if want.ndim == 0 else "an array of numbers"
            return Result("wrong", f"This is not {kind}.", (*_type_row(answer), mine))
        if got.ndim == 0:
            mine = ("Your answer", _with_unit(float(got), unit))
        numeric = [(number, m) for value, m in values if (number := _as_number(value)) is not None]
        right, message = _judge_number(got, _Target(want, unit, rtol, atol, numeric), predicates)
        if right:
            return Result("right", mine[1] if got.ndim == 0 else "")
        return Result("wrong", message, (mine,))

    return judge


@dataclass(frozen=True)
class _Target:
    """A right number or array, and the wrong ones that have a message of their own."""

    want: np.ndarray
    unit: str
    rtol: float
    atol: float
    mistakes: list[tuple[np.ndarray, str]]

    def is_right(self, got: np.ndarray) -> bool:
        return _within(got, self.want, self.rtol, self.atol)

    def known_mistake(self, got: np.ndarray) -> str:
        """Return the author's message for this wrong value, "" if it is not listed."""
        near = min(self.rtol, _SLIP)
        return _first(m for value, m in self.mistakes if _within(got, value, near, self.atol))

    def slip(self, got: np.ndarray) -> str | None:
        """Return the best fitting diagnosis of those that need no author."""
        if got.shape != self.want.shape or self.rtol > _SLIP:  # a rough guess is no slip
            return None
        best, distance = None, _NEAR
        for value, message in _diagnoses(self.want, self.unit):
            with np.errstate(all="ignore"):
                d = float(np.max(np.abs(got - value) / np.abs(value)))
            if d < distance:
                best, distance = message, d
        return best

    def directions(self) -> dict[str, str]:
        """Return what to say about a number that fits no known mistake."""
        return {
            "almost": f"Close, within {_CLOSE * 100:g} %, but it must be within "
            f"{self.rtol * 100:.2g} %. Was something rounded on the way?",
            "sign": "The sign is wrong.",
            "far_large": "Too large, by more than a factor of 10.",
            "large": "Too large.",
            "far_small": "Too small, by more than a factor of 10.",
            "small": "Too small.",
        }

    def direction(self, x: float) -> str:
        e = float(self.want)
        if abs(x - e) <= _CLOSE * abs(e):
            return "almost"
        if (x < 0 < e) or (x > 0 > e):
            return "sign"
        if abs(x) > abs(e):
            return "far_large" if abs(x) > 10 * abs(e) and e != 0 else "large"
        return "far_small" if abs(x) < abs(e) / 10 else "small"


def _judge_number(
    got: np.ndarray, target: _Target, predicates: Sequence[tuple[Callable, str]] = ()
) -> tuple[bool, str]:
    """Return (right, message) for a number or an array."""
    if target.is_right(got):
        return True, ""
    # What the author listed comes first, and of that the exact before the general.
    if known := target.known_mistake(got):
        return False, known
    for knows, message in predicates:
        if _says_yes(knows, got if got.ndim else float(got)):
            return False, message
    if slip := target.slip(got):
        return False, slip
    if got.shape == target.want.shape == () and np.isfinite(got):
        return False, target.directions()[target.direction(float(got))]
    return False, _array_difference(got, target.want, target.rtol, target.atol)


def _diagnoses(want: np.ndarray, unit: str) -> list[tuple[np.ndarray, str]]:
    """Return (wrong value, message) pairs for the slips that any number can suffer."""
    family = _family(unit)
    sizes = unit.partition("/")[0] in _SIZES
    found = []
    for other, scale in family.items():
        message = f"That is the answer in {other}; the question asks for {unit}."
        if sizes and ("i" in other.partition("/")[0]) != ("i" in unit.partition("/")[0]):
            message += " (1 GB is 10⁹ bytes, 1 GiB is 2³⁰ bytes.)"
        found.append((want / scale, message))
    if unit == "":
        found.append((want * 100, "100 times too large: is that in percent?"))
    if unit == "%":
        found.append((want / 100, "100 times too small: the question asks for percent."))
    if sizes:
        found.append((want * 8, "8 times too large: are these bits? A byte has 8 bits."))
        found.append((want / 8, "8 times too small: bits and bytes are mixed up."))
        for k in (1, 2, 3):
            text = "1000 and 1024 are mixed up: 1 GB is 10⁹ bytes, 1 GiB is 2³⁰ bytes."
            found.append((want * 1.024**k, text))
            found.append((want / 1.024**k, text))
    for base in (1000, 1024) if sizes else (1000,):
        for k in (1, 2, 3):
            times = str(base) if k == 1 else f"{base}^{k}"
            found.append((want * float(base) ** k, f"{times} times too large: check the prefix."))
            found.append((want / float(base) ** k, f"{times} times too small: check the prefix."))
    found.append((want * 2, "Exactly twice the right answer: a factor 2 is counted twice."))
    found.append(
        (
            want / 2,
            "Exactly half of the right answer: a factor 2 is missing "
            "(something that comes twice, or two FLOPs per multiply-add?).",
        )
    )
    found.append((-want, "The sign is wrong."))
    with np.errstate(all="ignore"):
        found.append((1 / want, "Upside down: this is 1 divided by the right answer."))
    return [
        (value, message)
        for value, message in found
        if np.all(np.isfinite(value))
        and np.all(value != 0)
        and not _within(value, want, 2 * _NEAR, 0.0)
    ]


def _agree(got: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> np.ndarray:
    """Return where two arrays of one shape agree; equal infinities do, and NaN with NaN."""
    with np.errstate(all="ignore"):
        near = np.isfinite(want) & (np.abs(got - want) <= atol + rtol * np.abs(want))
    return near | (got == want) | (np.isnan(got) & np.isnan(want))


def _within(got: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> bool:
    """Return whether two numeric arrays agree in shape and in every value."""
    return got.shape == want.shape and bool(np.all(_agree(got, want, rtol, atol)))


def _as_number(value: Any) -> np.ndarray | None:
    """Return `value` as a float64 array, 0-d for a number, or None where it is not numeric."""
    if isinstance(value, str | bytes | bool | np.bool_ | Mapping | set | frozenset):
        return None
    if value is None or value is ... or (callable(value) and not hasattr(value, "__array__")):
        return None
    try:
        if type(value).__module__.partition(".")[0] == "torch":
            value = value.detach().cpu().double().numpy()
        if isinstance(value, numbers.Number) and not isinstance(value, np.generic):
            return np.asarray(float(value))
        array = np.asarray(value)
        if array.dtype.kind == "O" and array.ndim:
            if any(isinstance(x, bool | str | bytes) for x in array.flat):
                return None
            return array.astype(np.float64)
        return array.astype(np.float64) if array.dtype.kind in "iuf" else None
    except OverflowError:
        return np.asarray(math.inf)
    except _READER_ERRORS:
        return None


def _difference(got: Any, want: Any, rtol: float, atol: float, where: str = "") -> str:
    """Return what first differs between two results, or an empty text where they agree.

    The kinds must agree before any comparison is asked of `got`, so that an object that calls
    itself equal to everything is not believed.
    """
    number = _as_number(want)
    if number is not None:
        mine = _as_number(got)
        if mine is None:
            return f"{where}expected {'a number' if number.ndim == 0 else 'an array'}, {_kind(got)}"
        return (
            where + _array_difference(mine, number, rtol, atol)
            if not _within(mine, number, rtol, atol)
            else ""
        )
    if isinstance(want, bool | np.bool_):
        if not isinstance(got, bool | np.bool_):
            return f"{where}expected True or False, {_kind(got)}"
        return "" if bool(got) == bool(want) else f"{where}expected {bool(want)}."
    if isinstance(want, np.ndarray):
        if type(got) is not np.ndarray or got.dtype.kind != want.dtype.kind:
            return f"{where}expected an array of {want.dtype}, {_kind(got)}"
        if got.shape != want.shape:
            return f"{where}the shape is {got.shape}; expected {want.shape}."
        if np.array_equal(got, want):
            return ""
        first = tuple(int(i) for i in np.argwhere(got != want)[0])
        return f"{where}the first difference is at {_index(first)}."
    if isinstance(want, Mapping):
        if not isinstance(got, dict):
            return f"{where}expected a dict, {_kind(got)}"
        for key in want:
            if key not in got:
                return f"{where}the key {_show(key)} is missing."
        if len(got) > len(want):
            return f"{where}there are {len(got)} keys; expected {len(want)}."
        return _first(
            _difference(got[k], want[k], rtol, atol, f"{where}at key {_show(k)}: ") for k in want
        )
    if isinstance(want, list | tuple):
        if not isinstance(got, list | tuple):
            return f"{where}expected a {type(want).__name__}, {_kind(got)}"
        if len(got) != len(want):
            return f"{where}the length is {len(got)}; expected {len(want)}."
        return _first(
            _difference(g, w, rtol, atol, f"{where}at [{i}]: ")
            for i, (g, w) in enumerate(zip(got, want, strict=True))
        )
    if type(got) is not type(want):
        return f"{where}expected {_article(type(want).__name__)}, {_kind(got)}"
    if dataclasses.is_dataclass(want):
        return _first(
            _difference(
                getattr(got, f.name), getattr(want, f.name), rtol, atol, f"{where}{f.name}: "
            )
            for f in dataclasses.fields(want)
        )
    return "" if bool(got == want) else f"{where}the value is wrong."


def _array_difference(got: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> str:
    """Return what is wrong with a numeric result that is not within the tolerance."""
    if got.shape != want.shape:
        if want.ndim == 0:
            return f"One number is expected; this has shape {got.shape}."
        if got.ndim == 0:
            return f"An array of shape {want.shape} is expected; this is one number."
        turned = " Is it transposed?" if got.shape == want.shape[::-1] else ""
        return f"The shape is {got.shape}; expected {want.shape}.{turned}"
    bad = np.isnan(got) & ~np.isnan(want)
    if bad.any():
        at = f" at {_index(tuple(int(i) for i in np.argwhere(bad)[0]))}" if got.ndim else ""
        return f"This is NaN{at}: somewhere 0/0 or inf - inf was computed."
    if got.ndim == 0:
        return "This is infinite or too large." if np.isinf(got) else "The value is wrong."
    wrong = np.argwhere(~_agree(got, want, rtol, atol))
    first = tuple(int(i) for i in wrong[0])
    return (
        f"Wrong in {len(wrong)} of {got.size} elements, the first at {_index(first)}: "
        f"{got[first]:.8g}."
    )


# ---------------------------------------------------------------------------------------------
# Functions


@dataclass(frozen=True)
class _Call:
    """What came of one call: a value or an error, and the arguments as it left them."""

    value: Any
    error: BaseException | None
    arguments: tuple[tuple, dict]


def _run(function: Callable, arguments: tuple[tuple, dict], copied: bool = True) -> _Call:
    args, kwargs = copy.deepcopy(arguments) if copied else arguments
    try:
        return _Call(function(*args, **kwargs), None, (args, kwargs))
    except _READER_ERRORS as error:
        return _Call(None, error, (args, kwargs))


def _function_judge(
    reference: Callable,
    inputs: Sequence[tuple | dict],
    rtol: float,
    atol: float,
    mistakes: list[tuple[Any, str]],
) -> Callable[[Any], Result]:
    """Return the judge of a function; the author's arguments are checked here."""
    if not callable(reference):
        raise ValueError(f"expected must be a function where inputs are given: {_show(reference)}")
    if not isinstance(inputs, list | tuple) or not inputs:
        raise ValueError(f"inputs must be a non-empty list; got {_show(inputs)}")
    for i, given in enumerate(inputs):
        if not isinstance(given, tuple | dict):
            raise ValueError(f"inputs[{i}] must be a tuple or a dict; got {_show(given)}")
    for wrong, message in mistakes:
        if not callable(wrong):
            raise ValueError(f"mistake {message!r} must be a function; got {_show(wrong)}")
    calls = [((), given) if isinstance(given, dict) else (given, {}) for given in inputs]
    try:
        copy.deepcopy(calls)
    except _READER_ERRORS as error:
        raise ValueError(f"inputs must be copyable; got {_show(inputs)}") from error
    wants = [_run(reference, call) for call in calls]
    for want in wants:
        if want.error is not None and not isinstance(want.error, ValueError):
            return _unable(want.error)

    def judge(function: Any) -> Result:
        if function is None or function is ...:
            return Result("open", "Write the function, then run this cell again.")
        if not callable(function):
            return Result("wrong", "A function is needed here.", _type_row(function))
        gots = [_run(function, call) for call in calls]
        if any(isinstance(got.error, NotImplementedError) for got in gots) or all(
            got.error is None and (got.value is None or got.value is ...) and want.value is not None
            for got, want in zip(gots, wants, strict=True)
        ):
            text = "The function returns nothing. Write it (or is a `return` missing?)."
            return Result("open", text)
        problems = [_call_difference(g, w, rtol, atol) for g, w in zip(gots, wants, strict=True)]
        if not any(problems):
            many = f"all {len(calls)} inputs" if len(calls) > 1 else "the input"
            return Result("right", f"Your function agrees on {many}.")
        message = _known_function_mistake(gots, wants, calls, mistakes, rtol, atol)
        i = next(i for i, problem in enumerate(problems) if problem)
        return Result("wrong", message or problems[i], _call_rows(function, i, calls, gots, wants))

    return judge


def _call_difference(got: _Call, want: _Call, rtol: float, atol: float) -> str:
    """Return how one call differs from the right one, or an empty text."""
    if got.error is not None:
        if want.error is not None and isinstance(got.error, type(want.error)):
            return ""
        return "Your function stops with an error."
    if want.error is not None:
        return "Your function should raise ValueError for this input."
    difference = _difference(got.value, want.value, rtol, atol)
    if difference:
        return _sentence(difference)
    for g, w in zip(_arguments(got), _arguments(want), strict=True):
        if isinstance(w, np.ndarray | list | dict) and _difference(g, w, rtol, atol):
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
        theirs = [_run(wrong, call) for call in calls]
        if not any(_call_difference(g, t, rtol, atol) for g, t in zip(gots, theirs, strict=True)):
            return message
    common = None
    for got, want in zip(gots, wants, strict=True):
        mine, right = _as_number(got.value), _as_number(want.value)
        if mine is None or right is None or mine.shape != right.shape or right.size == 0:
            return None
        fits = [m for value, m in _diagnoses(right, "") if _within(mine, value, rtol, atol)]
        common = fits if common is None else [m for m in common if m in fits]
    return common[0] if common else None


def _call_rows(
    function: Callable,
    i: int,
    calls: list[tuple[tuple, dict]],
    gots: list[_Call],
    wants: list[_Call],
) -> tuple[tuple[str, str], ...]:
    """Return the failing input with the reader's and the right result."""
    args, kwargs = calls[i]
    given = [_show(a) for a in args] + [f"{k}={_show(v)}" for k, v in kwargs.items()]
    title = getattr(function, "__name__", "your_function")
    got, want = gots[i], wants[i]
    mine = _describe(got.error, function) if got.error is not None else _show(got.value)
    right = _describe(want.error) if want.error is not None else _show(want.value)
    return (
        (f"Input {i + 1} of {len(calls)}", f"{title}({', '.join(given)})"),
        ("Your result", mine),
        ("Expected", right),
    )


def _describe(error: BaseException, function: Any = None) -> str:
    """Return an exception in one line, with the line of `function` in which it came up."""
    try:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        code = getattr(function, "__code__", None)
        if code is not None:
            frames = traceback.extract_tb(error.__traceback__)
            own = [f for f in frames if f.filename == code.co_filename and f.name == code.co_name]
            if own and own[-1].line:
                text += f" (in: {own[-1].line})"
        return _cut(text)
    except _READER_ERRORS:
        return "an error that cannot be shown"


# ---------------------------------------------------------------------------------------------
# Units and typed numbers

_SIZES = MappingProxyType(
    {"B": 1.0}
    | {f"{prefix}B": 1000.0**i for i, prefix in enumerate("kMGTP", 1)}
    | {f"{prefix}iB": 1024.0**i for i, prefix in enumerate("KMGTP", 1)}
)
_TIMES = MappingProxyType({"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0})
_FLOPS = MappingProxyType(
    {"FLOP": 1.0} | {f"{prefix}FLOP": 1000.0**i for i, prefix in enumerate("kMGTP", 1)}
)
_SPELLINGS = MappingProxyType(
    {"bytes": "B", "byte": "B", "KB": "kB", "us": "µs", "μs": "µs", "sec": "s"}
    | {f"{flop}s": flop for flop in _FLOPS}
)

_BLANKS = " \t\n\r\u00a0\u202f"
_NUMBER = re.compile(
    r"([+-]?)([0-9]{1,3}(?:[,_ \u00a0\u202f][0-9]{3})+(?![0-9])|[0-9]+|(?=\.[0-9]))"
    r"((?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)[ \t\n\r\u00a0\u202f]*([\s\S]*)"
)
_UNREADABLE = "That is not a number that can be read here. Write it like 1234.5, 1,234.5 or 1.2e9."


def _family(unit: str) -> dict[str, float]:
    """Return the other units of a family, each in terms of `unit`: {"MB": 0.001, …} for "GB"."""
    head, slash, tail = unit.partition("/")
    head = _SPELLINGS.get(head, head)
    for family in (_SIZES, _TIMES, _FLOPS):
        if head in family:
            return {
                f"{other}{slash}{tail}": scale / family[head]
                for other, scale in family.items()
                if other != head
            }
    return {}


def _typed_units(unit: str) -> dict[str, float]:
    """Return what may be typed after a number, each in terms of `unit`; spellings included."""
    head, slash, tail = unit.partition("/")
    scales = {unit: 1.0, f"{_SPELLINGS.get(head, head)}{slash}{tail}": 1.0} | _family(unit)
    for spelling, name in _SPELLINGS.items():
        if f"{name}{slash}{tail}" in scales:
            scales.setdefault(f"{spelling}{slash}{tail}", scales[f"{name}{slash}{tail}"])
    if not _family(unit) and head.endswith("s"):
        scales[f"{head[:-1]}{slash}{tail}"] = 1.0  # "1 token"
    for name, scale in list(scales.items()):
        scales.setdefault(name.lower(), scale)
    if unit == "":
        scales["%"] = 0.01
    scales.pop("", None)
    return scales


def _unknown_unit(unit: str) -> str:
    if _family(unit):
        return f"Give the answer in {unit}, or with another unit of its kind."
    return f"Give the answer in {unit}." if unit else "Give a number without a unit."


def _parse(text: str, unit: str) -> tuple[float, str]:
    """Return (number in `unit`, problem); the problem is empty where the text could be read."""
    text = text[: 2 * _MAX_TYPED].strip(_BLANKS).replace("\u2212", "-")
    found = _NUMBER.fullmatch(text) if len(text) <= _MAX_TYPED else None
    if not found or re.match("[0-9.,_]", found[4]):
        return math.nan, _UNREADABLE
    scales = _typed_units(unit)
    if found[4] and found[4] not in scales:
        return math.nan, _unknown_unit(unit)
    number = float(found[1] + re.sub("[^0-9]", "", found[2]) + found[3])
    number = number * scales[found[4]] if found[4] else number
    return (number, "") if math.isfinite(number) else (math.nan, _UNREADABLE)


# ---------------------------------------------------------------------------------------------
# quiz


class Quiz:
    """A question that the page itself answers, with or without a kernel; made by `quiz`."""

    def __init__(self, question: str, spec: dict, messages: list[str], body: str, answer: str):
        self.question = question
        self._spec = spec
        self._messages = messages
        self._body = body
        self._answer = answer

    @property
    def quiz_id(self) -> str:
        """A name of the question that stays the same from run to run."""
        return hashlib.sha256(self.question.encode()).hexdigest()[:12]

    def grade(self, value: Any) -> tuple[bool, str]:
        """Return (right, message) for an answer, exactly as the page's script does.

        `value` is a number or the text typed; for options an option or a collection of them.
        """
        try:
            verdict, shown = self._grade(value)
        except _READER_ERRORS:
            verdict, shown = "open", [self._spec["empty"]]
        return verdict == "right", " ".join(self._messages[i] for i in shown)

    def _grade(self, value: Any) -> tuple[str, list[int]]:
        spec = self._spec
        if spec["kind"] == "number":
            return self._grade_number(value)
        chosen = value if isinstance(value, list | tuple | set | frozenset) else [value]
        labels = [str(c) for c in chosen if c is not None]
        picked = [i for i, option in enumerate(spec["options"]) if option in labels]
        if not picked:
            return "open", [spec["empty"]]
        wrong = [i for i in picked if i not in spec["answers"]]
        missing = any(i not in picked for i in spec["answers"])

        def said(indices: list[int]) -> list[int]:
            return [spec["explain"][i] for i in indices if spec["explain"][i] is not None]

        if not wrong and not missing:
            return "right", [spec["right"], *said(picked)]
        more = [spec["missing"]] if missing and spec["several"] else []
        return "wrong", [spec["not_yet"], *said(wrong), *more]

    def _grade_number(self, value: Any) -> tuple[str, list[int]]:
        spec, target = self._spec, self._spec["target"]
        text = value if isinstance(value, str) else "" if value is None else repr(float(value))
        if not text.strip(_BLANKS):
            return "open", [spec["empty"]]
        x, problem = _parse(text, target.unit)
        if problem:
            key = "unreadable" if problem == _UNREADABLE else "unknown_unit"
            return "open", [spec[key]]
        if target.is_right(np.asarray(x)):
            return "right", spec["right"]
        known = target.known_mistake(np.asarray(x)) or target.slip(np.asarray(x))
        message = known or target.directions()[target.direction(x)]
        return "wrong", [spec["not_yet"], self._messages.index(message)]

    def __repr__(self) -> str:
        lines = [f"? {self.question}"]
        lines += [f"    ( ) {option}" for option in self._spec.get("options", ())]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        spec = {k: v for k, v in self._spec.items() if k not in ("target", "options")}
        data = html.escape(json.dumps(spec, ensure_ascii=False, separators=(",", ":")))
        messages = "".join(f"<span>{self._message_html(m)}</span>" for m in self._messages)
        # A form of method "dialog" sends nothing anywhere, even where scripts are off.
        return (
            f'<div class="ft-exercise ft-quiz" data-quiz-id="{self.quiz_id}" data-quiz="{data}"'
            f' data-lm-suppress-shortcuts="true">{_style()}'
            f'<form method="dialog" autocomplete="off"><fieldset>'
            f"<legend>{_markup(self.question)}</legend>{self._body}</fieldset>"
            f'<button type="submit" hidden>Check</button></form>'
            f'<p class="ft-before" hidden></p>'
            f'<div class="ft-feedback" role="status" aria-live="polite"></div>'
            f'<div class="ft-messages" hidden>{messages}</div>'
            f"<noscript><details><summary>Answer</summary><div>{_markup(self._answer)}</div></details>"
            f"</noscript>{_script('store.js', 'exercises.js')}</div>"
        )

    def _message_html(self, message: str) -> str:
        return _markup(message)


def quiz(
    question: str,
    options: Sequence[Any] | None = None,
    answer: Any = None,
    *,
    explain: Mapping[Any, str] | str = "",
    unit: str = "",
    rtol: float = 1e-2,
    atol: float = 0.0,
    mistakes: Sequence[tuple[Any, str]] = (),
) -> Quiz:
    """Return a question with instant feedback, in the notebook and on a page without a kernel.

    With `options`, `answer` is the right one, or a list of all the right ones (then the reader
    ticks boxes), and `explain` maps options to what is said about them. Without, `answer` is a
    number in `unit`; `mistakes` are (wrong number, message) pairs and `explain` is said to a
    right answer. Answers and wrong numbers may be callables of no argument. The answer is in the
    page: out of sight, not secret. Text may hold `code` and $mathematics$.

    Units:  a bare number is taken to be in `unit`; "2 GiB" is understood where `unit` is a size.
    Raises: ValueError for a bad call: no question, an answer that is no option, and so on.

    >>> quiz("Bytes of one bf16 number?", answer=2, unit="B").grade("16 bit")
    (False, 'Give the answer in B, or with another unit of its kind.')
    >>> quiz("Which grows?", ["weights", "cache"], "cache").grade("cache")
    (True, 'Right.')
    """
    _require_text("question", question)
    _require_text("unit", unit, empty=True)
    _require_tolerances(rtol, atol)
    answer = answer() if callable(answer) else answer
    if options is None:
        return _number_quiz(question, answer, explain, unit, rtol, atol, _pairs(mistakes))
    if unit or len(mistakes):
        raise ValueError("unit and mistakes belong to a numeric quiz; options were given too")
    return _choice_quiz(question, options, answer, explain)


def _number_quiz(
    question: str,
    answer: Any,
    explain: Mapping[Any, str] | str,
    unit: str,
    rtol: float,
    atol: float,
    mistakes: list[tuple[Any, str]],
) -> Quiz:
    if not isinstance(explain, str):
        raise ValueError(f"explain must be text in a numeric quiz; got {_show(explain)}")
    want = _as_number(answer)
    if want is None or want.ndim or not np.isfinite(want):
        raise ValueError(f"answer must be a finite number; got {_show(answer)}")
    wrong = []
    for value, message in mistakes:
        number = _as_number(value() if callable(value) else value)
        if number is None or number.ndim or not np.isfinite(number):
            raise ValueError(f"mistake {message!r} must have a finite number; got {_show(value)}")
        if _within(number, want, rtol, atol):
            raise ValueError(f"mistake {message!r} is within the tolerance of the answer {want:g}")
        wrong.append((number, message))
    target = _Target(want, unit, rtol, atol, wrong)
    messages = ["Right.", "Not yet.", "Type a number first.", _UNREADABLE, _unknown_unit(unit)]

    def index(message: str) -> int:
        if message not in messages:
            messages.append(message)
        return messages.index(message)

    spec = {
        "kind": "number",
        "expected": float(want),
        "rtol": rtol,
        "atol": atol,
        "near": _NEAR,
        "slip": min(rtol, _SLIP),
        "close": _CLOSE,
        "units": _typed_units(unit),
        "right": [0, index(explain)] if explain else [0],
        "not_yet": 1,
        "empty": 2,
        "unreadable": 3,
        "unknown_unit": 4,
        "mistakes": [(float(value), index(message)) for value, message in wrong],
        "diagnoses": [
            (float(value), index(message))
            for value, message in (_diagnoses(want, unit) if rtol <= _SLIP else ())
        ],
        "directions": {key: index(message) for key, message in target.directions().items()},
        "target": target,
    }
    suffix = f"<span>{_markup(unit)}</span>" if unit else ""
    body = (
        '<label class="ft-number"><span>Your answer</span> '
        f'<input type="text" name="answer" maxlength="{_MAX_TYPED}" spellcheck="false"> '
        f"{suffix}</label>"
    )
    return Quiz(question, spec, messages, body, f"{_with_unit(float(want), unit)}. {explain}")


def _choice_quiz(
    question: str,
    options: Sequence[Any],
    answer: Any,
    explain: Mapping[Any, str] | str,
    name: str = "answer",
) -> Quiz:
    labels = [str(option) for option in options]
    if len(labels) < 2 or len(set(labels)) < len(labels) or not all(x.strip() for x in labels):
        raise ValueError(f"options must be two or more different texts; got {_show(options)}")
    several = isinstance(answer, list | tuple | set | frozenset)
    right = [str(a) for a in (answer if several else [answer])]
    unknown = [a for a in right if a not in labels]
    if unknown or not right:
        raise ValueError(f"answer must be among options {labels}; got {_show(answer)}")
    if isinstance(explain, str):
        explain = dict.fromkeys(right[:1], explain) if explain else {}
    said = {str(option): text for option, text in explain.items()}
    for option, text in said.items():
        if option not in labels:
            raise ValueError(f"explain names {option!r}, which is not among options {labels}")
        _require_text(f"explain[{option!r}]", text)
    messages = ["Right.", "Not yet.", "Choose an answer first.", "Something is still missing."]
    places = []
    for label in labels:
        places.append(len(messages) if label in said else None)
        if label in said:
            messages.append(f"{label}: {said[label]}" if several else said[label])
    spec = {
        "kind": "choice",
        "options": labels,
        "several": several,
        "answers": [i for i, label in enumerate(labels) if label in right],
        "explain": places,
        "right": 0,
        "not_yet": 1,
        "empty": 2,
        "missing": 3,
    }
    kind = "checkbox" if several else "radio"
    # Radio buttons of one name exclude each other only within their form, so two quizzes share one.
    body = "".join(
        f'<label class="ft-option"><input type="{kind}" name="{name}" value="{i}">'
        f"<span>{_markup(label)}</span></label>"
        for i, label in enumerate(labels)
    )
    reasons = " ".join(said[a] for a in right if a in said)
    return Quiz(question, spec, messages, body, f"{', '.join(right)}. {reasons}")


# ---------------------------------------------------------------------------------------------
# placement and progress


@dataclass(frozen=True)
class Question:
    """A question of a placement quiz: `chapter` teaches its answer, `why` gives the reason."""

    text: str
    options: Sequence[Any]
    answer: Any
    chapter: str
    why: str


class Placement(Quiz):
    """A form of questions that says where to start in the book; made by `placement`."""

    def __init__(self, questions: Sequence[Question], parts: Sequence[Quiz]):
        self._chapters = [CHAPTERS[question.chapter] for question in questions]
        self._parts = parts
        messages, lines = [], []
        for i, (asked, chapter) in enumerate(zip(questions, self._chapters, strict=True), 1):
            reason = f"{chapter.label}: {asked.why}"
            lines.append({"right": len(messages), "wrong": len(messages) + 1})
            messages += [f"✓ Question {i} is right. {reason}", f"– Question {i}: not yet. {reason}"]
        start = {"": "All of it is right. Go to the chapter whose question you want answered."}
        start |= {chapter.stem: _advice(chapter) for chapter in self._chapters}
        still_open = [f"Question {i} is still open." for i in range(1, len(questions) + 1)]
        spec = {
            "kind": "placement",
            "questions": [
                {k: q._spec[k] for k in ("answers", "explain", "several")} for q in parts
            ],
            "chapters": [chapter.stem for chapter in self._chapters],
            "order": sorted(range(len(questions)), key=lambda i: questions[i].chapter),
            "lines": lines,
            "start": {stem: len(messages) + i for i, stem in enumerate(start)},
            "open": [len(messages) + len(start) + i for i in range(len(questions))],
        }
        spec["empty"] = spec["open"][0]
        body = "".join(
            f"<fieldset><legend>{i}. {_markup(part.question)}</legend>{part._body}</fieldset>"
            for i, part in enumerate(parts, 1)
        )
        answers = " ".join(f"{i}. {part._answer.strip()}" for i, part in enumerate(parts, 1))
        messages += [*start.values(), *still_open]
        super().__init__("Where should you start?", spec, messages, body, answers)

    def _grade(self, value: Any) -> tuple[str, list[int]]:
        spec, given = self._spec, [*value, *[None] * len(self._parts)]
        verdicts = [part._grade(given[i])[0] for i, part in enumerate(self._parts)]
        still_open = [spec["open"][i] for i, v in enumerate(verdicts) if v == "open"]
        if still_open:
            return "open", still_open
        lines = [line[verdict] for line, verdict in zip(spec["lines"], verdicts, strict=True)]
        missed = [spec["chapters"][i] for i in spec["order"] if verdicts[i] == "wrong"]
        return ("placed" if missed else "right"), [spec["start"][_first(missed)], *lines]

    def _message_html(self, message: str) -> str:
        text = _markup(message)
        for chapter in self._chapters:
            text = text.replace(chapter.label, _chapter_link(chapter, chapter.label))
        return text

    def __repr__(self) -> str:
        return "\n".join([f"? {self.question}", *map(repr, self._parts)])


def placement(questions: Sequence[Question]) -> Placement:
    """Return a form that says with which chapter to start: the first whose question is missed.

    Each question has the option "I do not know yet" as its last. `grade` takes one answer per
    question; it is right where all of them are.

    Raises: ValueError for no questions, a chapter that is not in the book, an answer that is no
            option, an empty reason.

    >>> cache = Question("Which grows?", ["weights", "cache"], "cache", "04_kv_cache", "It keeps.")
    >>> placement([cache]).grade(["weights"])
    (False, 'Start with 04 The KV cache. – Question 1: not yet. 04 The KV cache: It keeps.')
    """
    questions = list(questions)
    if not questions:
        raise ValueError("placement needs at least one question; got none")
    parts = []
    for i, question in enumerate(questions):
        if not isinstance(question, Question):
            raise ValueError(f"questions[{i}] must be a Question; got {_show(question)}")
        _require_text(f"text of questions[{i}]", question.text)
        _require_text(f"why of questions[{i}]", question.why)
        if question.chapter not in CHAPTERS:
            known = ", ".join(CHAPTERS)
            raise ValueError(
                f"chapter of questions[{i}] must be one of {known}; got {_show(question.chapter)}"
            )
        options = [*question.options, "I do not know yet"]
        parts.append(_choice_quiz(question.text, options, question.answer, "", f"answer{i}"))
    return Placement(questions, parts)


def _advice(chapter: Chapter) -> str:
    if chapter.n_tasks:
        return f"Start with {chapter.label}."
    standing = [other for other in CHAPTERS.values() if other.n_tasks]
    later = [other.label for other in standing if other.stem > chapter.stem]
    instead = f"go on with {later[0]}" if later else "what stands before it, you know"
    return f"Start with {chapter.label}. It is not written yet; {instead}."


class Progress:
    """How much of each chapter the reader has solved; made by `progress`."""

    def __repr__(self) -> str:
        lines = ["Your browser counts what you solve; JupyterLab and the site show it. There are:"]
        lines += [f"    {chapter.label}: {chapter.n_tasks}" for chapter in CHAPTERS.values()]
        return "\n".join(line for line in lines if not line.endswith(": 0"))

    def _repr_html_(self) -> str:
        # Chapters still to be written have hidden rows: a placement quiz may name them.
        rows = "".join(
            f'<tr data-chapter="{chapter.stem}" '
            + (f'data-total="{chapter.n_tasks}">' if chapter.n_tasks else "hidden>")
            + f'<th scope="row">{chapter.number} {_chapter_link(chapter, chapter.title)}</th>'
            '<td><div class="ft-solved"><span class="ft-bar" aria-hidden="true"></span>'
            '<span class="ft-count"></span></div></td></tr>'
            for chapter in CHAPTERS.values()
        )
        return (
            '<div class="ft-exercise ft-progress" data-lm-suppress-shortcuts="true">'
            f"{_style('exercises.css', 'progress.css')}"
            '<p class="ft-off">Here your browser counts the quizzes and exercises that you solve. '
            "It needs scripts, and leave to keep data for this page.</p>"
            '<div class="ft-counts" hidden><table><caption>Your progress</caption><thead><tr>'
            '<th scope="col">Chapter</th><th scope="col">Quizzes and exercises solved</th></tr>'
            f"</thead><tbody>{rows}</tbody></table>"
            '<p role="status"></p><p class="ft-place" hidden></p>'
            "<p>Your browser keeps this on your own machine; it is sent nowhere.</p>"
            '<button type="button" class="ft-ask">Forget my progress</button>'
            '<div class="ft-sure" role="group" aria-label="Forget my progress" hidden>'
            "<p>Forget what was solved in every chapter? It cannot be brought back.</p>"
            '<button type="button" class="ft-keep">Keep it</button>'
            '<button type="button" class="ft-forget">Forget it</button></div></div>'
            f"{_script('store.js', 'progress.js')}</div>"
        )


def progress() -> Progress:
    """Return a table of what the reader has solved, per chapter, with a button to forget it.

    The reader's browser keeps the count for each address: JupyterLab and the site have their own.
    """
    return Progress()


def _chapter_link(chapter: Chapter, text: str) -> str:
    if not chapter.n_tasks:
        return f"<span>{html.escape(text)}</span>"
    return f'<a href="{chapter.stem}.ipynb">{html.escape(text)}</a>'


# ---------------------------------------------------------------------------------------------
# hint


@dataclass(frozen=True, repr=False)
class Hint:
    """Hints that open one after the other; made by `hint`."""

    steps: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join(f"Hint {i}: {step}" for i, step in enumerate(self.steps, 1))

    def _repr_html_(self) -> str:
        nested = ""
        for i, step in reversed(list(enumerate(self.steps, 1))):
            of = f" of {len(self.steps)}" if len(self.steps) > 1 else ""
            summary = f"<summary>Hint {i}{of}</summary>"
            nested = f"<details>{summary}<div>{_markup(step)}</div>{nested}</details>"
        return (
            '<div class="ft-exercise ft-hint" data-lm-suppress-shortcuts="true">'
            f"{_style()}{nested}</div>"
        )


def hint(*steps: str) -> Hint:
    """Return hints of which each one opens the next; the reader takes as many as needed.

    Raises: ValueError without steps, or for an empty one.

    >>> hint("Count the bytes of one token.", "Keys and values: a factor 2.")
    Hint 1: Count the bytes of one token.
    Hint 2: Keys and values: a factor 2.
    """
    if not steps:
        raise ValueError("hint needs at least one step; got none")
    for i, step in enumerate(steps):
        _require_text(f"steps[{i}]", step)
    return Hint(steps)


# ---------------------------------------------------------------------------------------------
# Text


def _asset(name: str) -> str:
    """Return a file without indentation and comment lines: it goes into every output."""
    text = resources.files("firsttoken").joinpath(name).read_text(encoding="utf-8")
    return re.sub(r"^(?:\s+|//.*|/\*.*?\*/)+", "", text, flags=re.MULTILINE)


def _style(*names: str) -> str:
    return f"<style>{''.join(map(_asset, names or ('exercises.css',)))}</style>"


def _script(*names: str) -> str:
    """Return files as one script, in a scope of its own."""
    return f"<script>(() => {{\n{''.join(map(_asset, names))}}})();</script>"


_SPANS = re.compile(r"`([^`\n]+)`|\$(?![\s$])([^$`\n]*?[^\s$`\\])\$(?![0-9A-Za-z])")


def _markup(text: str) -> str:
    """Return text as HTML: `code`, $mathematics$, a blank line for a break; the rest escaped.

    A lone dollar sign is fenced off, because JupyterLab would take a second one for its partner.
    """
    parts, at = [], 0
    for found in _SPANS.finditer(text := inspect.cleandoc(text)):
        parts.append(_escape(text[at : found.start()]))
        code, formula = found.groups()
        parts.append(
            f"<code>{html.escape(code)}</code>" if code else rf"\({html.escape(formula)}\)"
        )
        at = found.end()
    return "".join([*parts, _escape(text[at:])])


def _escape(text: str) -> str:
    text = re.sub(r"\n\s*\n", "<br>", html.escape(text))
    return text.replace("$", '<span class="tex2jax_ignore mathjax_ignore">$</span>')


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 80

    def repr_ndarray(self, x: np.ndarray, level: int) -> str:
        text = np.array2string(x, precision=6, threshold=16, edgeitems=3, separator=", ")
        text = re.sub(r"\s+", " ", text)
        return f"array({text})" if x.size <= 16 else f"array of shape {x.shape}: {text}"

    def repr_float(self, x: float, level: int) -> str:
        return f"{x:.8g}"

    repr_float64 = repr_float32 = repr_float16 = repr_float

    def repr_int64(self, x: np.int64, level: int) -> str:
        return str(int(x))

    repr_int32 = repr_int8 = repr_uint8 = repr_int64


def _show(value: Any) -> str:
    """Return a value in one short line, whatever it is."""
    try:
        return _cut(_Short().repr(value))
    except _READER_ERRORS:
        return _type_name(value)


def _cut(text: str, length: int = 300) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _type_name(value: Any) -> str:
    try:
        return f"<{_cut(str(type(value).__name__), 60)}>"
    except _READER_ERRORS:
        return "<an object>"


def _article(noun: str) -> str:
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"


def _kind(value: Any) -> str:
    return f"got {'None' if value is None else _article(_type_name(value).strip('<>'))}."


def _type_row(value: Any) -> tuple[tuple[str, str]]:
    return (("Its type", _type_name(value).strip("<>")),)


def _error_row(error: BaseException) -> tuple[str, str]:
    return ("It stopped with", _describe(error))


def _unable(error: BaseException) -> Callable[[Any], Result]:
    text = "The right answer could not be computed. Run the cells above from the top, then this."
    return lambda answer: Result("open", text, (_error_row(error),))


def _index(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _first(texts: Iterable[str]) -> str:
    return next((text for text in texts if text), "")


def _with_unit(x: float, unit: str) -> str:
    whole = abs(x) < 1e15 and x == round(x)
    return f"{f'{int(x):,}' if whole else f'{x:.5g}'} {unit}".rstrip()


def _says_yes(knows: Callable, answer: Any) -> bool:
    """Return whether a predicate of the author's knows this answer; what it trips over, no."""
    try:
        return bool(knows(answer))
    except _READER_ERRORS:
        return False


# ---------------------------------------------------------------------------------------------
# The author's arguments


def _n_required(function: Callable) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ValueError(f"mistake {_show(function)} has no signature; wrap it") from error
    return sum(p.default is p.empty and p.kind in (0, 1) for p in parameters)


def _pairs(mistakes: Any) -> list[tuple[Any, str]]:
    pairs = list(mistakes or ())
    for i, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"mistakes[{i}] must be (wrong, message); got {_show(pair)}")
        _require_text(f"message of mistakes[{i}]", pair[1])
    return [(wrong, message) for wrong, message in pairs]


def _require_text(what: str, text: Any, empty: bool = False) -> None:
    if not isinstance(text, str) or not (empty or text.strip()):
        raise ValueError(f"{what} must be {'' if empty else 'non-empty '}text; got {_show(text)}")


def _require_tolerances(rtol: Any, atol: Any) -> None:
    for what, value in (("rtol", rtol), ("atol", atol)):
        if not isinstance(value, numbers.Real) or not 0 <= value < math.inf:
            raise ValueError(f"{what} must be a finite number >= 0; got {_show(value)}")
