"""Values and errors in one short line of text, whatever they are."""

import re
import reprlib
import traceback
from collections.abc import Iterable
from typing import Any

import numpy as np

from firsttoken.page.exercises.missing import who_defines

# KeyboardInterrupt is left out: a reader who stops a cell means it.
READER_ERRORS = (Exception, SystemExit)


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


def show(value: Any) -> str:
    """Return a value in one short line, whatever it is."""
    try:
        return cut(_Short().repr(value))
    except READER_ERRORS:
        return type_name(value)


def cut(text: str, length: int = 300) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def type_name(value: Any) -> str:
    try:
        return f"<{cut(str(type(value).__name__), 60)}>"
    except READER_ERRORS:
        return "<an object>"


def article(noun: str) -> str:
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"


def kind_of(value: Any) -> str:
    return f"got {'None' if value is None else article(type_name(value).strip('<>'))}."


def type_row(value: Any) -> tuple[tuple[str, str]]:
    return (("Its type", type_name(value).strip("<>")),)


def error_row(error: BaseException) -> tuple[str, str]:
    return ("It stopped with", describe(error))


def describe(error: BaseException, function: Any = None) -> str:
    """Return an exception in one line, with the line of `function` in which it came up.

    Of a name that a cell above defines it says which cell.
    """
    try:
        if said := who_defines(error):
            return cut(" ".join(said.split()))
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        code = getattr(function, "__code__", None)
        if code is not None:
            frames = traceback.extract_tb(error.__traceback__)
            own = [f for f in frames if f.filename == code.co_filename and f.name == code.co_name]
            if own and own[-1].line:
                text += f" (in: {own[-1].line})"
        return cut(text)
    except READER_ERRORS:
        return "an error that cannot be shown"


def index_text(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]"


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def first_of(texts: Iterable[str]) -> str:
    return next((text for text in texts if text), "")


def with_unit(x: float, unit: str) -> str:
    whole = abs(x) < 1e15 and x == round(x)
    return f"{f'{int(x):,}' if whole else f'{x:.5g}'} {unit}".rstrip()
