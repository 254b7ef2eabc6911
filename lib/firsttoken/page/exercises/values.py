"""Values: whether a number, an array or a collection is right, and which slip a wrong one is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from firsttoken.page.exercises.arguments import n_required
from firsttoken.page.exercises.compare import array_difference, as_number, first_difference, within
from firsttoken.page.exercises.results import Result, unable
from firsttoken.page.exercises.text import (
    READER_ERRORS,
    first_of,
    sentence,
    show,
    type_row,
    with_unit,
)
from firsttoken.page.exercises.typed_numbers import SIZES, family_of, parse

NEAR = 5e-3  # how well a wrong answer must fit a diagnosis
SLIP = 0.03  # how well it must fit a listed mistake, where the answer itself may be rough
FAR = 30  # other units that are so much larger or smaller show in a rough guess, too
EXACT = 1e-12  # the same number, up to its last bits
CLOSE = 0.05  # within this of the answer: rounding is the likeliest mistake


def value_judge(
    expected: Any, unit: str, rtol: float, atol: float, mistakes: list[tuple[Any, str]]
) -> Callable[[Any], Result]:
    """Return the judge of one value; the author's arguments are checked here."""
    predicates, values = [], []
    for wrong, message in mistakes:
        if callable(wrong) and n_required(wrong) == 1:
            predicates.append((wrong, message))
        else:
            values.append((wrong, message))
    try:
        expected = expected() if callable(expected) else expected
        values = [(w() if callable(w) else w, message) for w, message in values]
    except READER_ERRORS as error:
        # It may hang on a variable of the reader's, so it is shown and not raised.
        return unable(error)
    if isinstance(expected, str | bytes):
        raise ValueError(f"expected is text, {show(expected)}: nothing is graded by its spelling")
    want = as_number(expected)
    if want is None and unit:
        raise ValueError(f"unit {unit!r} needs a numeric expected value; got {show(expected)}")
    if want is not None and np.isnan(want).any():
        raise ValueError(f"expected holds NaN: {show(expected)}")

    def judge(answer: Any) -> Result:
        if answer is None or answer is ...:
            return Result("open", "Replace the `...` with your answer, then run this cell again.")
        mine = ("Your answer", show(answer))
        if want is None:
            difference = first_difference(answer, expected, rtol, atol)
            if not difference:
                return Result("right", "")
            known = [m for value, m in values if not first_difference(answer, value, rtol, atol)]
            known += [m for knows, m in predicates if _says_yes(knows, answer)]
            return Result("wrong", first_of(known) or sentence(difference), (mine,))
        got: np.ndarray | None
        if isinstance(answer, str):
            typed, problem = parse(answer, unit)
            if problem:
                return Result("wrong", problem, (mine,))
            got = np.asarray(typed)
        elif callable(answer):
            return Result("wrong", "This is a function: call it, and give its result.", (mine,))
        else:
            got = as_number(answer)
        if got is None:
            kind = f"a number in {unit}" if unit else "a number"
            kind = kind if want.ndim == 0 else "an array of numbers"
            return Result("wrong", f"This is not {kind}.", (*type_row(answer), mine))
        if got.ndim == 0:
            mine = ("Your answer", with_unit(float(got), unit))
        numeric = [(number, m) for value, m in values if (number := as_number(value)) is not None]
        right, message = _judge_number(got, Target(want, unit, rtol, atol, numeric), predicates)
        if right:
            return Result("right", mine[1] if got.ndim == 0 else "")
        return Result("wrong", message, (mine,))

    return judge


def _says_yes(knows: Callable, answer: Any) -> bool:
    """Return whether a predicate of the author's knows this answer; what it trips over, no."""
    try:
        return bool(knows(answer))
    except READER_ERRORS:
        return False


@dataclass(frozen=True)
class Target:
    """A right number or array, and the wrong ones that have a message of their own.

    Where a number is only guessed, `factor` says how far off a guess may be.
    """

    want: np.ndarray
    unit: str
    rtol: float
    atol: float
    mistakes: list[tuple[np.ndarray, str]]
    factor: float | None = None

    def is_right(self, got: np.ndarray) -> bool:
        return within(got, self.want, self.rtol, self.atol)

    def guesses(self) -> list[float]:
        """Return the smallest and the largest good guess, or [] where nothing is guessed."""
        if self.factor is None:
            return []
        want, factor = float(self.want), float(self.factor) * (1 + EXACT)  # 0.3 * 3 is not 0.9
        return sorted([want / factor, want * factor])

    def is_good_guess(self, x: float) -> bool:
        ends = self.guesses()
        return bool(ends) and ends[0] <= x <= ends[1]

    def known_mistake(self, got: np.ndarray) -> str:
        """Return the message for a wrong value that is listed, or rounded; "" if it is neither.

        The right answer to two digits may lie near a listed mistake; only what is exactly that
        mistake is taken for it.
        """
        exact = [m for value, m in self.mistakes if within(got, value, EXACT, 0.0)]
        rounded = [self.directions()["rounded"] for value in self.roundings() if got == value]
        near = self.near_mistake()
        close = [m for value, m in self.mistakes if within(got, value, near, self.atol)]
        return first_of([*exact, *rounded, *close])

    def near_mistake(self) -> float:
        """Return how well a number must fit a listed mistake; nobody guesses to three digits."""
        return SLIP if self.factor else min(self.rtol, SLIP)

    def roundings(self) -> list[float]:
        """Return the right number to two and to three digits, where that is too rough."""
        if self.want.ndim or not np.isfinite(self.want) or self.rtol > SLIP or self.factor:
            return []
        rounded = [float(f"{float(self.want):.{digits}g}") for digits in (2, 3)]
        return [x for x in rounded if not self.is_right(np.asarray(x))]

    def near(self) -> float:
        """Return how well a number must fit one of the slips."""
        return NEAR if self.rtol <= SLIP else SLIP

    def slips(self) -> list[tuple[np.ndarray, str]]:
        """Return the diagnoses that need no author.

        Of a rough answer only that of another unit is one; a guess was not computed at all.
        """
        if self.factor:
            return []
        if self.rtol <= SLIP:
            return diagnoses(self.want, self.unit)
        return [
            (value, message)
            for value, message in unit_slips(self.want, self.unit)
            if not 1 / FAR < float(np.max(np.abs(value / self.want))) < FAR
        ]

    def slip(self, got: np.ndarray) -> str | None:
        """Return the best fitting diagnosis of those that need no author."""
        if got.shape != self.want.shape:
            return None
        best, distance = None, self.near()
        for value, message in self.slips():
            with np.errstate(all="ignore"):
                d = float(np.max(np.abs(got - value) / np.abs(value)))
            if d < distance:
                best, distance = message, d
        return best

    def directions(self) -> dict[str, str]:
        """Return what to say about a number that fits no known mistake."""
        if self.factor:
            far = f"by more than a factor of {self.factor:g}."
            large, small = f"Too large, {far}", f"Too small, {far}"
            sizes = {"far_large": large, "large": large, "far_small": small, "small": small}
            return {"sign": "The sign is wrong."} | sizes
        return {
            "almost": f"Close, within {CLOSE * 100:g} %, but it must be within "
            f"{self.rtol * 100:.2g} %. Was something rounded on the way?",
            "rounded": f"Right, but rounded too far: it must be within {self.rtol * 100:.2g} %.",
            "sign": "The sign is wrong.",
            "far_large": "Too large, by more than a factor of 10.",
            "large": "Too large.",
            "far_small": "Too small, by more than a factor of 10.",
            "small": "Too small.",
        }

    def almost(self) -> float:
        """Return within what of the answer a wrong number was rounded, it seems."""
        return 0.0 if self.factor else CLOSE

    def direction(self, x: float) -> str:
        e = float(self.want)
        if abs(x - e) <= self.almost() * abs(e):
            return "almost"
        if (x < 0 < e) or (x > 0 > e):
            return "sign"
        if abs(x) > abs(e):
            return "far_large" if abs(x) > 10 * abs(e) and e != 0 else "large"
        return "far_small" if abs(x) < abs(e) / 10 else "small"


def _judge_number(
    got: np.ndarray, target: Target, predicates: Sequence[tuple[Callable, str]] = ()
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
    return False, array_difference(got, target.want, target.rtol, target.atol)


def diagnoses(want: np.ndarray, unit: str) -> list[tuple[np.ndarray, str]]:
    """Return (wrong value, message) pairs for the slips that any number can suffer."""
    sizes = unit.partition("/")[0] in SIZES
    found = unit_slips(want, unit)
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
    return [(value, message) for value, message in found if _tells(value, want)]


def unit_slips(want: np.ndarray, unit: str) -> list[tuple[np.ndarray, str]]:
    """Return (wrong value, message) for the right answer in each other unit of its family."""
    head = unit.partition("/")[0]
    found = []
    for other, scale in family_of(unit).items():
        message = f"That is the answer in {other}; the question asks for {unit}."
        if head in SIZES and ("i" in other.partition("/")[0]) != ("i" in head):
            message += " (1 GB is 10⁹ bytes, 1 GiB is 2³⁰ bytes.)"
        found.append((want / scale, message))
    return [(value, message) for value, message in found if _tells(value, want)]


def _tells(value: np.ndarray, want: np.ndarray) -> bool:
    """Return whether a wrong value is a number that can be told from zero and the right one."""
    usable = np.all(np.isfinite(value)) and np.all(value != 0)
    return bool(usable) and not within(value, want, 2 * NEAR, 0.0)
