"""Units: bytes per element, GB and GiB, and text for sizes, times and counts."""

from types import MappingProxyType

GB = 1e9  # decimal: what vendors print
GIB = 2**30  # binary: what allocators and most tools count

BYTES = MappingProxyType(
    {
        "fp32": 4,
        "tf32": 4,  # a way to multiply: stored as fp32
        "bf16": 2,
        "fp16": 2,
        "fp8": 1,
        "int8": 1,
        "int4": 0.5,
        # GGUF blocks: 32 codes and one fp16 scale; "q8_0" is 8.5 bits, "q4_0" 4.5.
        "q8_0": 8.5 / 8,
        "q4_0": 4.5 / 8,
    }
)
"""Bytes per stored element. A block format's figure includes its scales; int8 and int4 are
bare codes."""


def bytes_per_element(dtype: str) -> int | float:
    """Return the bytes that one element of `dtype` takes in memory.

    Holds:  for bare codes of int8, int4 and fp8. Scales come on top: an fp16 for 32 int4 codes is
            an eighth more, a float32 for 128 of them a sixteenth.
    Units:  bytes per element; a fraction below one byte and for block formats.
    Raises: ValueError for a name that is not in `BYTES`; the message lists the known ones.
    Source: q8_0, q4_0: ggml, block_q8_0 and block_q4_0 (32 codes and one fp16 scale).

    >>> bytes_per_element("bf16"), bytes_per_element("q4_0")
    (2, 0.5625)
    """
    if dtype not in BYTES:
        raise ValueError(f"dtype {dtype!r} is unknown; expected one of {', '.join(BYTES)}")
    return BYTES[dtype]


def format_bytes(n_bytes: float, unit: str, digits: int = 2) -> str:
    """Return a size as text in `unit`, which must be said: a GiB is 7.4 % more than a GB.

    Raises: ValueError for an unknown unit.

    >>> format_bytes(5_368_709_120, "GB"), format_bytes(5_368_709_120, "GiB")
    ('5.37 GB', '5.00 GiB')
    """
    if unit not in _SIZES:
        raise ValueError(f"unit {unit!r} is unknown; expected one of {', '.join(_SIZES)}")
    return f"{n_bytes / _SIZES[unit]:,.{0 if unit == 'B' else digits}f} {unit}"


def format_time(seconds: float, digits: int = 3) -> str:
    """Return a duration as text in s, ms, µs or ns, with `digits` significant digits.

    >>> format_time(0.0080208), format_time(2), format_time(2.7e-5)
    ('8.02 ms', '2.00 s', '27.0 µs')
    """
    for size, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= size or seconds == 0:
            return f"{_significant(seconds / size, digits)} {unit}"
    return f"{_significant(seconds / 1e-9, digits)} ns"


def format_count(n: float, digits: int = 3) -> str:
    """Return a count as text with K, M, B (1e9), T: parameters, tokens, FLOPs.

    >>> format_count(6_738_415_616), format_count(512), format_count(32_000)
    ('6.74 B', '512', '32.0 K')
    """
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(n) >= size:
            return f"{_significant(n / size, digits)} {unit}"
    return f"{n:g}"


_SIZES = MappingProxyType(
    {"B": 1, "kB": 1e3, "MB": 1e6, "GB": GB, "TB": 1e12}
    | {"KiB": 2**10, "MiB": 2**20, "GiB": GIB, "TiB": 2**40}
)


def _significant(value: float, digits: int) -> str:
    """Return `value` with `digits` significant digits, trailing zeros kept, no exponent."""
    rounded = float(f"{abs(value):.{digits - 1}e}")  # 9.999 has two digits before the point
    whole = len(str(int(rounded)))
    return f"{value:,.{max(0, digits - whole)}f}"
