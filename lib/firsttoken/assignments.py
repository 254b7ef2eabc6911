"""What every assignment imports: whose work it is, their own parameters, and a strict comparison.

Test cells run twice: in the student's notebook, beside the answer, and when the work is graded, in
a process of their own that the answer cannot see (classroom/judge.py). There an argument is a copy,
and what an answer changes in it does not come back; `shared` and `closed` are for the few tests
that need more. In a notebook these two do nothing.
"""

import hashlib
import math
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy import ndarray

# NumPy's own classes, fetched once: a later change of an attribute of `numpy` has no effect here.
_NUMPY_SCALARS = frozenset(np.dtype(code).type for code in "?bBhHiIlLqQefdU")
_ARRAY_KINDS = "biufUO"
_MAX_BITS = 1000  # of an integer; beyond, it has no float to compare with
_MAX_SHOWN = 60  # characters of a student's own value in a message


def student_id(written: str) -> str:
    """Return whose work this is: the id that the grader or the hub gives, else the `written` one.

    Raises: ValueError if there is no id, or if the notebook says another one than the grader.

    >>> student_id(" ada ")
    'ada'
    """
    if type(written) is not str:
        raise ValueError(f"STUDENT is {type(written).__name__}, expected a text in quotes")
    written = written.strip()
    given = os.environ.get("FIRSTTOKEN_STUDENT") or os.environ.get("JUPYTERHUB_USER") or ""
    if given and written and given != written:
        raise ValueError(
            f"this notebook was solved for another student id: STUDENT is {written!r}, "
            f"but the work belongs to {given!r}"
        )
    if not (given or written):
        raise ValueError('STUDENT is empty: write your student id between the quotes, as "ada"')
    return given or written


def personal_rng(student: str, topic: str) -> np.random.Generator:
    """Return the generator that draws a student's parameters, the same on every machine.

    >>> int(personal_rng("ada", "metrics").integers(100))
    86
    >>> int(personal_rng("grace", "metrics").integers(100))
    24
    """
    if not student or not topic:
        raise ValueError(f"student {student!r} and topic {topic!r}: expected two texts")
    digest = hashlib.sha256(f"{topic}\0{student}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16]))


def fresh_rng() -> np.random.Generator:
    """Return the generator of hidden inputs: other ones at every grading.

    `FIRSTTOKEN_SEED` in the environment repeats a grading; its report names the seed.
    """
    seed = os.environ.get("FIRSTTOKEN_SEED")
    return np.random.default_rng(int(seed) if seed else None)


def shared(value: Any) -> Any:
    """Return an array or a list itself; when graded, what an answer writes into it comes back.

    For tests of code that writes into what it is given, or must not. Never compute what you expect
    from a value after it was shared.

    >>> memory = shared(np.zeros(3))
    """
    return value


def closed(*names: str) -> None:
    """Name what of the library this test's answer must do without; when graded, it refuses to run.

    >>> closed("firsttoken.kv_cache.KVCache")
    """


def _shown(value: object) -> str:
    """Return a built-in value as a short text."""
    if type(value) is float:
        return f"{value:.6g}"
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


def _is(kind: type, kinds: Iterable[type]) -> bool:
    """Return whether `kind` is one of `kinds`; `in` would ask a class that answers for itself."""
    # Not `any`: that name can be given another meaning.
    for known in kinds:  # noqa: SIM110
        if kind is known:
            return True
    return False


def _plain(name: str, value: Any) -> Any:
    """Return `value` as built-in numbers, strings and lists; refuse whatever is none of these."""
    kind = type(value)
    if _is(kind, (bool, str, float, type(None))):
        return value
    if kind is int:
        if value.bit_length() > _MAX_BITS:
            raise AssertionError(f"{name}: got an integer of {value.bit_length()} bits")
        return value
    if _is(kind, (list, tuple)):
        return [_plain(name, item) for item in value]
    if kind is ndarray and value.dtype.kind in _ARRAY_KINDS:
        return _plain(name, value.tolist())
    if _is(kind, _NUMPY_SCALARS):
        return value.item()
    expected = "a number, a text, or a list or an array of them"
    if kind is ndarray:
        raise AssertionError(f"{name}: got an array of {value.dtype}, expected {expected}")
    raise AssertionError(f"{name}: got an object of type {kind.__name__}, expected {expected}")


def _kind(value: object) -> str:
    """Return what sort of thing a built-in value is, in words."""
    names = {bool: "True or False", str: "a text", list: "a sequence", type(None): "None"}
    return names.get(type(value), "a number")


def _difference(
    got: Any, expected: Any, rtol: float, atol: float, reveal: bool, place: str = ""
) -> str:
    """Return what differs between two built-in values, in words; nothing if they agree."""
    where = f"at {place} " if place else ""
    if _kind(got) != _kind(expected):
        return f"{where}got {_shown(got)}, expected {_kind(expected)}"
    if type(expected) is list:
        if len(got) != len(expected):
            return f"{where}got {len(got)} values, expected {len(expected)}"
        for index, pair in enumerate(zip(got, expected, strict=True)):
            if found := _difference(*pair, rtol, atol, reveal, f"{place}[{index}]"):
                return found
        return ""
    if _kind(expected) != "a number":
        agree = got == expected
    elif math.isfinite(got) and math.isfinite(expected):
        agree = abs(got - expected) <= atol + rtol * abs(expected)
    else:
        agree = got == expected or (got != got and expected != expected)
    if agree:
        return ""
    about = f", expected about {_shown(expected)}" if reveal else ", which is not what we expect"
    return f"{where}got {_shown(got)}{about}"


def expect(
    name: str,
    got: object,
    expected: object,
    rtol: float = 1e-6,
    atol: float = 0.0,
    reveal: bool = False,
) -> None:
    """Raise an AssertionError that says in words how `got` differs from `expected`, if it does.

    Numbers agree within atol + rtol·|expected|; texts, True, False and None must be the same; of
    sequences and arrays each element is compared. A subclass, or an object of the student's own
    class, is refused: it could answer every comparison with True. The expected value is a secret
    unless `reveal` says otherwise.

    >>> expect("bytes per token", np.float64(2048.0), 2048)
    >>> expect("bytes per token", 2048, 1024)
    Traceback (most recent call last):
    AssertionError: bytes per token: got 2048, which is not what we expect
    >>> expect("shares", [0.5, 0.25], [0.5, 0.5], reveal=True)
    Traceback (most recent call last):
    AssertionError: shares: at [1] got 0.25, expected about 0.5
    """
    if found := _difference(_plain(name, got), _plain(name, expected), rtol, atol, reveal):
        raise AssertionError(f"{name}: {found}")
