"""Short floats in blocks that share a scale: the MX formats, and NVFP4."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from firsttoken.checks import check_choice
from firsttoken.quantization.formats import FORMATS, Format, float_codes, float_table
from firsttoken.quantization.integers import pack, unpack

Array = np.ndarray


class _Kind(NamedTuple):
    element: Format
    scale: Format
    block_size: int


_E8M0 = FORMATS["e8m0"]
_KINDS = {
    "mxfp4": _Kind(FORMATS["fp4_e2m1"], _E8M0, 32),
    "mxfp6": _Kind(FORMATS["fp6_e2m3"], _E8M0, 32),
    "mxfp8": _Kind(FORMATS["fp8_e4m3fn"], _E8M0, 32),
    "nvfp4": _Kind(FORMATS["fp4_e2m1"], FORMATS["fp8_e4m3fn"], 16),
}


@dataclass(frozen=True)
class Microscaled:
    """An array as short floats, with a scale of one byte for each block of neighbours.

    A number is element · scale, and · tensor_scale in NVFP4.

    Shapes: codes, dequantize(): (…, n); scale_codes, scale: (…, n / block size)
    Units:  nbytes: bytes of packed elements and scales
    """

    kind: str
    packed: Array
    scale_codes: Array
    tensor_scale: np.float32 | None

    @property
    def codes(self) -> Array:
        """The bit pattern of each element: sign, exponent, mantissa."""
        element, _, block_size = _KINDS[self.kind]
        return unpack(self.packed, element.bits, self.scale_codes.shape[-1] * block_size)

    @property
    def scale(self) -> Array:
        """The scale of each block, without that of the tensor."""
        return _KINDS[self.kind].scale.values[self.scale_codes]

    @property
    def nbytes(self) -> int:
        """Bytes stored."""
        return (
            self.packed.nbytes + self.scale_codes.nbytes + (0 if self.tensor_scale is None else 4)
        )

    def dequantize(self) -> Array:
        """Return the numbers that are stored, as float32."""
        element, _, block_size = _KINDS[self.kind]
        scale = self.scale * (self.tensor_scale or np.float32(1))
        return float_table(element)[self.codes] * np.repeat(scale, block_size, axis=-1)


def microscale(x: Array, kind: str = "mxfp4") -> Microscaled:
    """Round numbers to floats of 4 to 8 bits, after dividing each block by a scale of its own.

    "mxfp4", "mxfp6" and "mxfp8" (elements e2m1, e2m3, e4m3) have blocks of 32, and a power of two
    as scale: the one that gives a block's largest number the largest exponent of the element. What
    then still lies beyond the largest element is cut off (torchao calls this rule FLOOR). "nvfp4"
    has blocks of 16 e2m1, whose scale makes the largest number a 6. It is an e4m3, which reaches
    from 448 down to 2⁻⁹ only, so the tensor has a float32 scale that makes the largest of them 448.

    Shapes: x (…, n), n a multiple of 32, or 16 for "nvfp4"
    Raises: ValueError for another kind, rows of another length, an x that is not finite.
    Source: OCP Microscaling Formats (MX) v1.0, sec. 6.3; NVIDIA Model Optimizer,
            modelopt/torch/quantization/qtensor/nvfp4_tensor.py

    >>> q = microscale(np.arange(32.0), "mxfp4")
    >>> q.scale.tolist(), q.dequantize()[[1, 5, 21, 31]].tolist(), q.nbytes
    ([4.0], [0.0, 4.0, 24.0, 24.0], 17)
    """
    check_choice("kind", kind, _KINDS)
    element, scale_format, block_size = _KINDS[kind]
    x = np.asarray(x, dtype=np.float32)
    if x.ndim == 0 or x.shape[-1] % block_size:
        raise ValueError(f"x must have rows of a multiple of {block_size}, got {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError("x must be finite, got NaN or infinity")
    # float64, so that only what is stored is rounded
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // block_size, block_size).astype(np.float64)
    peak = np.abs(blocks).max(axis=-1)
    tensor_scale = None
    if kind == "nvfp4":
        tensor_scale = np.float32(peak.max(initial=0) / element.max / scale_format.max)
        tensor_scale = tensor_scale or np.float32(1)  # nothing but zeros
        scale = scale_format.round(peak / element.max / tensor_scale)
    else:
        scale = scale_format.round(_power_below(peak) / _power_below(element.max))
    divisor = scale.astype(np.float64) * (tensor_scale or 1)
    divisor[divisor == 0] = np.inf  # a block that is small beside the tensor's largest: zeros
    codes = float_codes(element, blocks / divisor[..., None]).reshape(x.shape)
    scale_codes = np.searchsorted(scale_format.values, scale).astype(np.uint8)
    return Microscaled(kind, pack(codes, element.bits), scale_codes, tensor_scale)


def _power_below(x: Array | float) -> Array:
    """Return the largest power of two that is not above x; 0 for 0."""
    return np.where(x == 0, 0, np.ldexp(1.0, np.frexp(x)[1] - 1))
