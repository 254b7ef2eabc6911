"""How a cache stores vectors in fewer bits: one by one, since they come so."""

import math
from collections.abc import Callable

import numpy as np

from firsttoken.quantization.formats import FORMATS, Format, float_codes, float_table
from firsttoken.quantization.integers import pack, symmetric_codes, unpack

Array = np.ndarray
Encode = Callable[[Array], tuple[Array, ...]]
Decode = Callable[[tuple[Array, ...]], Array]


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
        codes = symmetric_codes(groups, divisor, largest).astype(np.int8).reshape(x.shape)
        return codes if bits == 8 else pack((codes + offset).astype(np.uint8), bits), scale

    def decode(parts: tuple[Array, ...]) -> Array:
        codes, scale = parts
        if bits < 8:
            codes = unpack(codes, bits, head_dim).astype(np.int8) - offset
        groups = codes.reshape(*scale.shape, group_size)
        return (groups * scale[..., None].astype(np.float32)).reshape(codes.shape)

    return encode, decode


def _byte_codec(fmt: Format) -> tuple[Encode, Decode]:
    """A float of 8 bits as its byte: the sign, the exponent, the mantissa; the last is NaN."""
    table = float_table(fmt)
    return (
        lambda x: (float_codes(fmt, x.astype(np.float32)),),
        lambda parts: table[parts[0]],
    )
