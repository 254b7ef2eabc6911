"""The first difference between two results, of whatever kind they are."""

import dataclasses
import math
import numbers
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from firsttoken.page.exercises.text import (
    READER_ERRORS,
    article,
    first_of,
    index_text,
    kind_of,
    show,
)


def _agree(got: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> np.ndarray:
    """Return where two arrays of one shape agree; equal infinities do, and NaN with NaN."""
    with np.errstate(all="ignore"):
        near = np.isfinite(want) & (np.abs(got - want) <= atol + rtol * np.abs(want))
    return near | (got == want) | (np.isnan(got) & np.isnan(want))


def within(got: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> bool:
    """Return whether two numeric arrays agree in shape and in every value."""
    return got.shape == want.shape and bool(np.all(_agree(got, want, rtol, atol)))


def as_number(value: Any) -> np.ndarray | None:
    """Return `value` as a float64 array, 0-d for a number, or None where it is not numeric."""
    if isinstance(value, str | bytes | bool | np.bool_ | Mapping | set | frozenset):
        return None
    if value is None or value is ... or (callable(value) and not hasattr(value, "__array__")):
        return None
    try:
        if type(value).__module__.partition(".")[0] == "torch":
            value = value.detach().cpu().double().numpy()
        if isinstance(value, numbers.Real | Decimal) and not isinstance(value, np.generic):
            return np.asarray(float(value))
        array = np.asarray(value)
        if array.dtype.kind == "O" and array.ndim:
            if any(x is None or isinstance(x, bool | str | bytes) for x in array.flat):
                return None
            return array.astype(np.float64)
        return array.astype(np.float64) if array.dtype.kind in "iuf" else None
    except OverflowError:
        return np.asarray(math.inf)
    except READER_ERRORS:
        return None


def first_difference(got: Any, want: Any, rtol: float, atol: float, where: str = "") -> str:
    """Return what first differs between two results, or an empty text where they agree.

    The kinds must agree before any comparison is asked of `got`, so that an object that calls
    itself equal to everything is not believed.
    """
    number = as_number(want)
    if number is not None:
        mine = as_number(got)
        if mine is None:
            return (
                f"{where}expected {'a number' if number.ndim == 0 else 'an array'}, {kind_of(got)}"
            )
        return (
            where + array_difference(mine, number, rtol, atol)
            if not within(mine, number, rtol, atol)
            else ""
        )
    if isinstance(want, bool | np.bool_):
        if not isinstance(got, bool | np.bool_):
            return f"{where}expected True or False, {kind_of(got)}"
        return "" if bool(got) == bool(want) else f"{where}expected {bool(want)}."
    if isinstance(want, np.ndarray):
        kind = f"{where}expected an array of {want.dtype}, {kind_of(got)}"
        if isinstance(got, list | tuple):  # of booleans, say; of anything else the kind differs
            got = np.asarray(got)
        if type(got) is not np.ndarray:
            return kind
        if want.dtype.kind == "b" and got.dtype.kind in "iuf" and np.isin(got, (0, 1)).all():
            return f"{where}these are 0 and 1; True and False are asked for: `.astype(bool)`."
        if got.dtype.kind != want.dtype.kind:
            return kind
        if got.shape != want.shape:
            return f"{where}the shape is {got.shape}; expected {want.shape}."
        if np.array_equal(got, want):
            return ""
        first = tuple(int(i) for i in np.argwhere(got != want)[0])
        return f"{where}the first difference is at {index_text(first)}."
    if isinstance(want, Mapping):
        if not isinstance(got, dict):
            return f"{where}expected a dict, {kind_of(got)}"
        for key in want:
            if key not in got:
                return f"{where}the key {show(key)} is missing."
        if len(got) > len(want):
            return f"{where}there are {len(got)} keys; expected {len(want)}."
        return first_of(
            first_difference(got[k], want[k], rtol, atol, f"{where}at key {show(k)}: ")
            for k in want
        )
    if isinstance(want, list | tuple):
        if not isinstance(got, list | tuple):
            return f"{where}expected a {type(want).__name__}, {kind_of(got)}"
        if len(got) != len(want):
            return f"{where}the length is {len(got)}; expected {len(want)}."
        return first_of(
            first_difference(g, w, rtol, atol, f"{where}at [{i}]: ")
            for i, (g, w) in enumerate(zip(got, want, strict=True))
        )
    if type(got) is not type(want):
        return f"{where}expected {article(type(want).__name__)}, {kind_of(got)}"
    if dataclasses.is_dataclass(want):
        return first_of(
            first_difference(
                getattr(got, f.name), getattr(want, f.name), rtol, atol, f"{where}{f.name}: "
            )
            for f in dataclasses.fields(want)
        )
    return "" if bool(got == want) else f"{where}the value is wrong."


def array_difference(got: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> str:
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
        at = f" at {index_text(tuple(int(i) for i in np.argwhere(bad)[0]))}" if got.ndim else ""
        return f"This is NaN{at}: somewhere 0/0 or inf - inf was computed."
    if got.ndim == 0:
        return "This is infinite or too large." if np.isinf(got) else "The value is wrong."
    wrong = np.argwhere(~_agree(got, want, rtol, atol))
    first = tuple(int(i) for i in wrong[0])
    return (
        f"Wrong in {len(wrong)} of {got.size} elements, the first at {index_text(first)}: "
        f"{got[first]:.8g}."
    )
