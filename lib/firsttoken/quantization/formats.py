"""The number formats of real hardware: which values exist, and rounding to them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from firsttoken.checks import check_choice, check_count

Array = np.ndarray


@dataclass(frozen=True)
class Format:
    """A number format: which values exist, and the nearest of them to any number.

    A float has `mantissa_bits` bits after its leading 1, and the exponents from `min_exponent`
    up; below, the spacing stays (subnormals). An integer is such a format without any number
    above its subnormals: the spacing is 1 everywhere. "e8m0", a format for scales, has powers of
    two only, with neither sign nor zero.

    Units:  bits: per number; min_positive: the smallest number above 0.
    """

    name: str
    bits: int
    mantissa_bits: int
    min_exponent: int
    min: float
    max: float

    @property
    def min_positive(self) -> float:
        """The smallest number above 0, subnormals included."""
        return 2.0 ** (self.min_exponent - self.mantissa_bits)

    @cached_property
    def values(self) -> Array:
        """The numbers from 0 up, in the order of their bit patterns; not for more than 16 bits.

        >>> FORMATS["fp4_e2m1"].values.tolist()
        [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
        """
        if self.bits > 16:
            raise ValueError(f"values are listed for at most 16 bits, {self.name} has {self.bits}")
        exponent, mantissa = np.divmod(np.arange(2**self.bits), 2**self.mantissa_bits)
        mantissa[exponent > 0] += 2**self.mantissa_bits  # the leading 1
        sizes = np.ldexp(mantissa, np.maximum(exponent, 1) - 1) * self.min_positive
        sizes = sizes[(sizes >= self.min) & (sizes <= self.max)].astype(np.float32)
        sizes.setflags(write=False)
        return sizes

    def round(self, x: Array) -> Array:
        """Return the nearest numbers of the format, of two equally near the even one.

        Between two powers of two of e8m0 that is the larger.

        What lies beyond the largest becomes the largest (saturation), infinities too; NaN stays.
        Hardware without saturation would give infinity, or NaN in fp8_e4m3fn.

        Shapes: x and result: any; the result is float32, which holds every format here
        Source: IEEE 754-2019, sec. 4.3.1 (ties to even); Micikevicius et al. 2022,
                arXiv:2209.05433, sec. 3.2 (fp8, saturation)

        >>> FORMATS["fp8_e4m3fn"].round(np.array([0.3, 17.0, 1000.0])).tolist()
        [0.3125, 16.0, 448.0]
        """
        x = np.clip(np.asarray(x, dtype=np.float64), self.min, self.max)
        exponent = np.frexp(x)[1] - 1  # 2^exponent <= |x| < 2^(exponent + 1)
        spacing = np.ldexp(1.0, np.maximum(exponent, self.min_exponent) - self.mantissa_bits)
        return (np.rint(x / spacing) * spacing).astype(np.float32)


def float_format(exponent_bits: int, mantissa_bits: int, specials: str = "ieee") -> Format:
    """Return the float format with so many bits for the exponent and the mantissa.

    One more bit is the sign. `specials` says what the top exponent is for: "ieee" keeps it for
    infinity and NaN, "nan" gives up its last number for NaN, "none" has numbers only.

    Raises: ValueError for exponent_bits outside 1 … 8, mantissa_bits outside 1 … 23, other
            specials, and for numbers beyond float32.
    Source: IEEE 754-2019, sec. 3.4; "nan": Micikevicius et al. 2022, arXiv:2209.05433, sec. 3.1;
            "none": OCP Microscaling Formats (MX) v1.0, fp6 and fp4

    >>> float_format(5, 10).max, float_format(4, 3, "nan").max, float_format(2, 1, "none").max
    (65504.0, 448.0, 6.0)
    """
    if check_count("exponent_bits", exponent_bits, at_least=1) > 8:
        raise ValueError(f"exponent_bits must lie in 1 … 8, got {exponent_bits}")
    if check_count("mantissa_bits", mantissa_bits, at_least=1) > 23:
        raise ValueError(f"mantissa_bits must lie in 1 … 23, got {mantissa_bits}")
    taken = {"ieee": 2**mantissa_bits, "nan": 1, "none": 0}
    check_choice("specials", specials, taken)
    bits, min_exponent = 1 + exponent_bits + mantissa_bits, 2 - 2 ** (exponent_bits - 1)
    # The pattern of the largest number: its exponent, then its mantissa.
    exponent, mantissa = divmod(2 ** (bits - 1) - 1 - taken[specials], 2**mantissa_bits)
    leading = 1 if exponent else 0
    largest = (leading + mantissa / 2**mantissa_bits) * 2.0 ** (min_exponent + exponent - leading)
    if largest >= 2.0**128:
        raise ValueError(f"numbers must fit float32; with specials {specials!r} they reach 2^128")
    name = f"e{exponent_bits}m{mantissa_bits}"
    return Format(name, bits, mantissa_bits, min_exponent, -largest, largest)


def float_codes(fmt: Format, x: Array) -> Array:
    """Return the bit patterns of x rounded to a float of at most 8 bits: the sign, then the size.

    NaN becomes the pattern behind the largest number. Not for fp8_e4m3fnuz, where -0 is NaN.
    """
    sizes = np.searchsorted(fmt.values, np.abs(fmt.round(x)))  # NaN sorts behind all of them
    return (sizes + np.signbit(x) * 2 ** (fmt.bits - 1)).astype(np.uint8)


def float_table(fmt: Format) -> Array:
    """Return the number of every bit pattern; NaN for those that stand for none."""
    sizes = np.full(2 ** (fmt.bits - 1), np.nan, np.float32)
    sizes[: len(fmt.values)] = fmt.values
    return np.concatenate([sizes, -sizes])


def _integer(bits: int) -> Format:
    top = 2 ** (bits - 1)
    return Format(f"int{bits}", bits, bits - 1, bits - 1, -float(top), float(top - 1))


_FLOATS = {
    "fp32": float_format(8, 23),
    "bf16": float_format(8, 7),
    "fp16": float_format(5, 10),
    "fp8_e5m2": float_format(5, 2),
    "fp8_e4m3fn": float_format(4, 3, "nan"),
    # Its zero has no sign, whose pattern is NaN, and the exponents reach one further down.
    "fp8_e4m3fnuz": Format("", 8, 3, -7, -240.0, 240.0),
    "fp6_e2m3": float_format(2, 3, "none"),
    "fp6_e3m2": float_format(3, 2, "none"),
    "fp4_e2m1": float_format(2, 1, "none"),
    "e8m0": Format("", 8, 0, -127, 2.0**-127, 2.0**127),
}
FORMATS: Mapping[str, Format] = MappingProxyType(
    {name: replace(fmt, name=name) for name, fmt in _FLOATS.items()}
    | {fmt.name: fmt for fmt in (_integer(8), _integer(4))}
)
