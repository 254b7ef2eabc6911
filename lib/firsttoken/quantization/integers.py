"""Integer codes with a scale: rounding to them, and storing them without gaps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from firsttoken.checks import check_count

Array = np.ndarray


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
        codes = unpack(self.packed, self.bits, math.prod(self.shape)).astype(np.int16)
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

    Symmetric codes run from -q to q with q = 2^(bits-1) - 1: one of the 2^bits stays unused, at
    2 bits a quarter of them. Otherwise they cover smallest to largest, zero included, and
    `zero_point` is the code of 0.0.

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
        codes = symmetric_codes(groups, scale, largest)
        zero_point, stored = None, codes + 2 ** (bits - 1)
    else:
        largest = 2**bits - 1
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        scale = _scale((high - low) / largest)
        zero_point = np.rint(-low / scale).astype(np.uint8)
        shifted = np.rint(groups / scale[..., None]) + zero_point[..., None]
        stored = np.clip(shifted, 0, largest)
    packed = pack(stored.astype(np.uint8).ravel(), bits)
    return Quantized(packed, scale, zero_point, bits, x.shape, axes)


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


def symmetric_codes(groups: Array, scale: Array, largest: int) -> Array:
    """Return the nearest multiples of a scale (…) to groups of numbers (…, group_size)."""
    return np.clip(np.rint(groups / scale[..., None]), -largest, largest)


def pack(codes: Array, bits: int) -> Array:
    """Write unsigned codes one behind the other, `bits` bits each, the lowest bit first.

    Two int4 codes share a byte, the first in its low half. Each row (last axis) begins a byte.
    """
    n_codes = codes.shape[-1]
    if bits == 8:
        return codes
    if bits == 4 and n_codes % 2 == 0:  # as below, but some 20 times faster
        return codes[..., ::2] | codes[..., 1::2] << 4
    each_bit = codes[..., None] >> np.arange(bits, dtype=np.uint8) & 1
    each_bit = each_bit.reshape(*codes.shape[:-1], n_codes * bits)
    return np.packbits(each_bit, axis=-1, bitorder="little")


def unpack(packed: Array, bits: int, n_codes: int) -> Array:
    """Return the codes of each row as bytes, without a sign: (…, n_codes)."""
    if bits == 8:
        return packed.copy()
    if bits == 4 and n_codes % 2 == 0:
        pairs = np.stack([packed & 15, packed >> 4], axis=-1)
        return pairs.reshape(*packed.shape[:-1], n_codes)
    each_bit = np.unpackbits(packed, axis=-1, count=n_codes * bits, bitorder="little")
    each_bit = each_bit.reshape(*packed.shape[:-1], n_codes, bits)
    return each_bit @ (1 << np.arange(bits, dtype=np.uint8))
