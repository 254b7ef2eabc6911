"""Fewer bits per number: integer codes with a scale, and the formats of real hardware."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from firsttoken.checks import check_count

Array = np.ndarray
Encode = Callable[[Array], tuple[Array, ...]]
Decode = Callable[[tuple[Array, ...]], Array]


@dataclass(frozen=True)
class Quantized:
    """An array as integer codes and the scales that turn them back into numbers.

    The numbers are (codes - zero_point) · scale; a symmetric array has no zero point (None).
    Codes are stored packed, `bits` of them each, without gaps: two int4 codes to a byte.

    Shapes: codes and dequantize(): that of the array; scale and zero_point: (channels, groups)
    Units:  nbytes: bytes of packed codes, scales and zero points.
    """

    packed: Array
    scale: Array
    zero_point: Array | None
    bits: int
    shape: tuple[int, ...]
    channel_axes: tuple[int, ...]

    @property
    def codes(self) -> Array:
        """The integer codes: -q … q for a symmetric array, else 0 … 2^bits - 1."""
        return self._in_place(self._unpacked())

    @property
    def nbytes(self) -> int:
        """Bytes stored."""
        zeros = 0 if self.zero_point is None else self.zero_point.nbytes
        return self.packed.nbytes + self.scale.nbytes + zeros

    def dequantize(self) -> Array:
        """Return the numbers that the codes stand for, as float32."""
        codes = self._unpacked()
        if self.zero_point is not None:
            codes = codes - self.zero_point[..., None].astype(np.int16)
        return self._in_place(codes * self.scale[..., None])

    def _unpacked(self) -> Array:
        """Return the codes as [channels, groups, group_size]."""
        codes = _unpack(self.packed, self.bits, math.prod(self.shape)).astype(np.int16)
        if self.zero_point is None:
            codes -= 2 ** (self.bits - 1)  # stored without a sign
        return codes.reshape(*self.scale.shape, -1)

    def _in_place(self, groups: Array) -> Array:
        """Give [channels, groups, group_size] the shape of the array again."""
        first = range(len(self.channel_axes))
        moved = [self.shape[axis] for axis in self.channel_axes]
        moved += [n for axis, n in enumerate(self.shape) if axis not in self.channel_axes]
        return np.moveaxis(groups.reshape(moved), first, self.channel_axes)


def quantize(
    x: Array,
    bits: int,
    axis: int | Sequence[int] | None = None,
    group_size: int | None = None,
    symmetric: bool = True,
) -> Quantized:
    """Round numbers to `bits`-bit codes: the nearest multiples of a scale.

    The largest magnitude that shares a scale sets it, so one outlier costs all others
    resolution. More scales, and smaller errors, come from `axis` (per channel: every index
    along it has its own; several axes: every combination) and from `group_size`: what remains,
    in the array's order, is cut into runs of that many elements with a scale each.

    Symmetric codes run from -q to q with q = 2^(bits-1) - 1. Otherwise they cover smallest to
    largest, zero included, and `zero_point` is the code of 0.0.

    Shapes: x: any, not empty; the scales: (channels, groups)
    Raises: ValueError for bits outside 2 … 8, an empty or not finite x, a wrong axis, and a
            group_size that does not divide what remains.
    Source: Jacob et al. 2017, arXiv:1712.05877, eq. 1; groups: Shen et al. 2019,
            arXiv:1909.05840, sec. 3.3

    >>> q = quantize(np.array([0.0, 1.0, -7.0, 3.4]), bits=4)
    >>> q.codes.tolist(), q.dequantize().tolist(), q.nbytes
    ([0, 1, -7, 3], [0.0, 1.0, -7.0, 3.0], 6)
    """
    x = np.asarray(x, dtype=np.float32)
    if check_count("bits", bits, at_least=2) > 8:
        raise ValueError(f"bits must lie in 2 … 8, got {bits}")
    if x.size == 0 or not np.isfinite(x).all():
        raise ValueError(f"x must be finite and not empty, got shape {x.shape}")
    axes = _channel_axes(axis, x.ndim)
    n_channels = int(np.prod([x.shape[a] for a in axes]))
    per_channel = x.size // n_channels
    group_size = per_channel if group_size is None else group_size
    if per_channel % check_count("group_size", group_size, at_least=1):
        raise ValueError(
            f"group_size must divide the {per_channel} elements per channel, got {group_size}"
        )
    # [channels, groups, group_size]; float64, so that only the stored scale is rounded
    groups = np.moveaxis(x, axes, range(len(axes))).astype(np.float64)
    groups = groups.reshape(n_channels, -1, group_size)
    low, high = groups.min(axis=-1), groups.max(axis=-1)
    if symmetric:
        largest = 2 ** (bits - 1) - 1
        scale = _scale(np.maximum(high, -low) / largest)
        codes = _symmetric_codes(groups, scale, largest)
        zero_point, stored = None, codes + 2 ** (bits - 1)
    else:
        largest = 2**bits - 1
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        scale = _scale((high - low) / largest)
        zero_point = np.rint(-low / scale).astype(np.uint8)
        shifted = np.rint(groups / scale[..., None]) + zero_point[..., None]
        stored = np.clip(shifted, 0, largest)
    packed = _pack(stored.astype(np.uint8).ravel(), bits)
    return Quantized(packed, scale, zero_point, bits, x.shape, axes)


@dataclass(frozen=True)
class Format:
    """A number format: which values exist, and the nearest of them to any number.

    A float has `mantissa_bits` bits after its leading 1, and the exponents from `min_exponent`
    up; below, the spacing stays (subnormals). An integer is such a format without any number
    above its subnormals: the spacing is 1 everywhere.

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

    def round(self, x: Array) -> Array:
        """Return the nearest numbers of the format, of two equally near the even one.

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


def _float(name: str, exponent_bits: int, mantissa_bits: int, largest: float) -> Format:
    bits, min_exponent = 1 + exponent_bits + mantissa_bits, 2 - 2 ** (exponent_bits - 1)
    return Format(name, bits, mantissa_bits, min_exponent, -largest, largest)


def _integer(bits: int) -> Format:
    top = 2 ** (bits - 1)
    return Format(f"int{bits}", bits, bits - 1, bits - 1, -float(top), float(top - 1))


FORMATS = MappingProxyType(
    {
        f.name: f
        for f in (
            _float("fp32", 8, 23, (2 - 2.0**-23) * 2.0**127),
            _float("bf16", 8, 7, (2 - 2.0**-7) * 2.0**127),
            _float("fp16", 5, 10, 65504.0),
            _float("fp8_e5m2", 5, 2, 57344.0),
            # No infinity and one NaN pattern only: the top exponent holds numbers up to 448.
            _float("fp8_e4m3fn", 4, 3, 448.0),
            _integer(8),
            _integer(4),
        )
    }
)


def codec(dtype: str, head_dim: int) -> tuple[Encode, Decode]:
    """Return (encode, decode): vectors to the arrays that store them, and back to float32.

    Vectors come one by one, as in a cache, so nothing is shared between two. "int8" keeps a
    symmetric code per number and one fp16 scale per vector, "int4" two codes to a byte and a scale
    per 32 numbers (or the largest power of two below that divides it), "fp8" is e4m3fn
    without a scale, "fp32" and "fp16" are plain numbers.

    Shapes: encode(x): x (…, head_dim), each stored array (…, n);  decode(stored): (…, head_dim)
    Raises: ValueError for another dtype, and for an odd head_dim with "int4".

    >>> encode, decode = codec("int4", 4)
    >>> codes, scale = encode(np.array([[-7.0, 7.0, 0.0, 3.0]], np.float32))
    >>> codes.tolist(), scale.tolist(), decode((codes, scale)).tolist()
    ([[241, 184]], [[1.0]], [[-7.0, 7.0, 0.0, 3.0]])
    """
    if dtype in ("fp32", "fp16"):
        stored = np.dtype(np.float32 if dtype == "fp32" else np.float16)
        return (
            lambda x: (x.astype(stored, copy=False),),
            lambda parts: parts[0].astype(np.float32, copy=False),
        )
    if dtype == "int8":
        return _integer_codec(8, head_dim, group_size=head_dim)
    if dtype == "int4":
        if head_dim % 2:
            raise ValueError(f"dtype int4 packs pairs; expected an even head_dim, got {head_dim}")
        return _integer_codec(4, head_dim, group_size=math.gcd(head_dim, 32))
    if dtype == "fp8":
        return _byte_codec(FORMATS["fp8_e4m3fn"])
    raise ValueError(f"dtype {dtype!r} is unknown; expected one of fp32, fp16, int8, int4, fp8")


def _integer_codec(bits: int, head_dim: int, group_size: int) -> tuple[Encode, Decode]:
    """Symmetric codes, packed if they do not fill a byte, and one fp16 scale per group."""
    largest, offset = 2 ** (bits - 1) - 1, 2 ** (bits - 1)

    def encode(x: Array) -> tuple[Array, ...]:
        groups = x.reshape(*x.shape[:-1], head_dim // group_size, group_size)
        scale = (np.abs(groups).max(-1) / largest).astype(np.float16)
        # Codes are made with the scale that is stored; a group of zeros needs none.
        divisor = np.where(scale > 0, scale, 1).astype(np.float32)
        codes = _symmetric_codes(groups, divisor, largest).astype(np.int8).reshape(x.shape)
        return codes if bits == 8 else _pack((codes + offset).astype(np.uint8), bits), scale

    def decode(parts: tuple[Array, ...]) -> Array:
        codes, scale = parts
        if bits < 8:
            codes = _unpack(codes, bits, head_dim).astype(np.int8) - offset
        groups = codes.reshape(*scale.shape, group_size)
        return (groups * scale[..., None].astype(np.float32)).reshape(codes.shape)

    return encode, decode


def _byte_codec(fmt: Format) -> tuple[Encode, Decode]:
    """A float of 8 bits as its byte: the sign, the exponent, the mantissa; the last is NaN."""
    codes = np.arange(128)
    exponent, mantissa = codes >> fmt.mantissa_bits, codes % 2**fmt.mantissa_bits
    mantissa = mantissa + np.where(exponent > 0, 2**fmt.mantissa_bits, 0)  # the leading 1
    positive = np.ldexp(mantissa, np.maximum(exponent, 1) - 1) * fmt.min_positive
    positive[-1] = np.nan
    table = np.concatenate([positive, -positive]).astype(np.float32)

    def encode(x: Array) -> tuple[Array, ...]:
        # Every rounded number is in the table, and NaN sorts behind all of them.
        code = np.searchsorted(positive, np.abs(fmt.round(x.astype(np.float32))))
        return ((code + 128 * np.signbit(x)).astype(np.uint8),)

    return encode, lambda parts: table[parts[0]]


def _channel_axes(axis: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    given = () if axis is None else (axis,) if isinstance(axis, int | np.integer) else tuple(axis)
    axes = tuple(sorted(a + ndim if a < 0 else a for a in given))
    if len(set(axes)) != len(axes) or not all(0 <= a < ndim for a in axes):
        raise ValueError(f"axis must name different axes of an array with {ndim}, got {axis}")
    return axes


def _scale(exact: Array) -> Array:
    """Round scales to float32; 1 where nothing is to be scaled, to divide by."""
    scale = exact.astype(np.float32)
    return np.where(scale > 0, scale, np.float32(1))


def _symmetric_codes(groups: Array, scale: Array, largest: int) -> Array:
    """Return the nearest multiples of a scale (…) to groups of numbers (…, group_size)."""
    return np.clip(np.rint(groups / scale[..., None]), -largest, largest)


def _pack(codes: Array, bits: int) -> Array:
    """Write unsigned codes one behind the other, `bits` bits each, the lowest bit first.

    Two int4 codes share a byte, the first in its low half. Each row (last axis) begins a byte.
    """
    if bits == 4 and codes.shape[-1] % 2 == 0:  # as below, but some 20 times faster
        return codes[..., ::2] | codes[..., 1::2] << 4
    each_bit = codes[..., None] >> np.arange(bits, dtype=np.uint8) & 1
    return np.packbits(each_bit.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")


def _unpack(packed: Array, bits: int, n_codes: int) -> Array:
    """Return the codes of each row as bytes, without a sign: (…, n_codes)."""
    if bits == 4 and n_codes % 2 == 0:
        pairs = np.stack([packed & 15, packed >> 4], axis=-1)
        return pairs.reshape(*packed.shape[:-1], n_codes)
    each_bit = np.unpackbits(packed, axis=-1, count=n_codes * bits, bitorder="little")
    each_bit = each_bit.reshape(*packed.shape[:-1], n_codes, bits)
    return each_bit @ (1 << np.arange(bits, dtype=np.uint8))
