"""What the author of an exercise passes: a bad call raises ValueError."""

import inspect
import math
import numbers
from collections.abc import Callable
from typing import Any

from firsttoken.page.exercises.text import show


def n_required(function: Callable) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ValueError(f"mistake {show(function)} has no signature; wrap it") from error
    return sum(p.default is p.empty and p.kind in (0, 1) for p in parameters)


def mistake_pairs(mistakes: Any) -> list[tuple[Any, str]]:
    pairs = list(mistakes or ())
    for i, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"mistakes[{i}] must be (wrong, message); got {show(pair)}")
        require_text(f"message of mistakes[{i}]", pair[1])
    return [(wrong, message) for wrong, message in pairs]


def require_text(what: str, text: Any, empty: bool = False) -> None:
    if not isinstance(text, str) or not (empty or text.strip()):
        raise ValueError(f"{what} must be {'' if empty else 'non-empty '}text; got {show(text)}")


def require_factor(factor: Any) -> None:
    if not isinstance(factor, numbers.Real) or not 1 < float(factor) < math.inf:
        raise ValueError(f"factor must be a finite number > 1; got {show(factor)}")


def require_tolerances(rtol: Any, atol: Any) -> None:
    for what, value in (("rtol", rtol), ("atol", atol)):
        if not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf:
            raise ValueError(f"{what} must be a finite number >= 0; got {show(value)}")
