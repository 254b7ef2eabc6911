"""Checks of arguments that many modules share: what comes in is what the docstring asks for."""

from numbers import Integral


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
