"""Checks of arguments that many modules share: what comes in is what the docstring asks for."""

import math
from collections.abc import Collection
from numbers import Integral, Real


def check_count(name: str, value: object, at_least: int = 0) -> int:
    """Return a count as an int; raise unless it is an integer, and large enough.

    NumPy's integers count; True and False do not: they are answers, not numbers of anything.

    Raises: ValueError that names the argument, what came and what was expected.

    >>> check_count("batch", 3, at_least=1)
    3
    >>> check_count("batch", True)
    Traceback (most recent call last):
        ...
    ValueError: batch must be an integer of at least 0, got True
    """
    if type(value) is int and value >= at_least:  # the usual case: a tenth of the time
        return value
    if not isinstance(value, Integral) or isinstance(value, bool) or value < at_least:
        raise ValueError(f"{name} must be an integer of at least {at_least}, got {value!r}")
    return int(value)


def check_whole(name: str, value: object) -> int:
    """Return a whole number, of either sign, as an int; raise unless it is one.

    Raises: ValueError that names the argument, what came and what was expected.

    >>> check_whole("priority", -2)
    -2
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return int(value)


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise unless a value is one of the choices, which are texts.

    Raises: ValueError that names the argument, what came and what was expected.

    >>> check_choice("policy", "lru", ("max", "paged"))
    Traceback (most recent call last):
        ...
    ValueError: policy must be one of max, paged, got 'lru'
    """
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_seconds(**named: float) -> None:
    """Raise unless all of these are finite times, none below zero.

    Raises: ValueError that names the argument, what came and what was expected.

    >>> check_seconds(ttft_s=0.2, queue_s=-0.1)
    Traceback (most recent call last):
        ...
    ValueError: queue_s must be a finite time, not negative; got -0.1
    """
    for name, value in named.items():
        if not isinstance(value, Real) or not math.isfinite(value) or value < 0:
            raise ValueError(f"{name} must be a finite time, not negative; got {value!r}")


def check_share(**named: float) -> None:
    """Raise unless all of these lie in 0 … 1.

    Raises: ValueError that names the argument, what came and what was expected.

    >>> check_share(busy=1.5)
    Traceback (most recent call last):
        ...
    ValueError: busy must be a share in 0 … 1; got 1.5
    """
    for name, value in named.items():
        if not isinstance(value, Real) or not 0 <= value <= 1:
            raise ValueError(f"{name} must be a share in 0 … 1; got {value!r}")
