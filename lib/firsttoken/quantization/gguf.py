"""The block formats of GGUF files, as llama.cpp reads them: each block brings its own scale."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from firsttoken.checks import check_choice

Array = np.ndarray


@dataclass(frozen=True)
class GgufLayout:
    """How many numbers share a block, and the fields of a block in the order of its bytes.

    Units:  bits: per number, scales included

    >>> GGUF_LAYOUTS["q4_0"].bits, GGUF_LAYOUTS["q6_K"].bits
    (4.5, 6.5625)
    """

    n_numbers: int
    fields: np.dtype

    @property
    def bits(self) -> float:
        """Bits that one number takes."""
        return 8 * self.fields.itemsize / self.n_numbers


GGUF_LAYOUTS: Mapping[str, GgufLayout] = MappingProxyType(
    {
        "q8_0": GgufLayout(32, np.dtype([("scale", "<f2"), ("codes", "i1", 32)])),
        # Two codes to a byte: number i in the low half of byte i, number i + 16 in the high half.
        "q4_0": GgufLayout(32, np.dtype([("scale", "<f2"), ("codes", "u1", 16)])),
        # The same, but number = scale · code + offset.
        "q4_1": GgufLayout(
            32, np.dtype([("scale", "<f2"), ("offset", "<f2"), ("codes", "u1", 16)])
        ),
        # Eight groups of 32, each with a scale and an offset of 6 bits in units of the block's own.
        "q4_K": GgufLayout(
            256,
            np.dtype(
                [
                    ("scale", "<f2"),
                    ("offset", "<f2"),
                    ("group_scales", "u1", (3, 4)),
                    ("codes", "u1", (4, 32)),
                ]
            ),
        ),
        # Sixteen groups of 16 with a scale of 8 bits; four bits of each code lie apart from two.
        "q6_K": GgufLayout(
            256,
            np.dtype(
                [
                    ("low_codes", "u1", (2, 64)),
                    ("high_codes", "u1", (2, 32)),
                    ("group_scales", "i1", 16),
                    ("scale", "<f2"),
                ]
            ),
        ),
    }
)


def pack_gguf(x: Array, kind: str = "q8_0") -> Array:
    """Return the bytes of GGUF blocks: each 32 numbers of a row as codes with a float16 scale.

    "q8_0" has codes from -127 to 127. "q4_0" has codes from -8 to 7, and a scale whose sign makes
    the number of the largest magnitude -8: the asymmetry of the codes goes to its side. "q4_1" has
    codes from 0 to 15 between the smallest number, stored beside the scale, and the largest.

    Shapes: x (…, n), n a multiple of 32; result uint8 (…, n / 32 · b), where a block has
            b = 34, 18 or 20 bytes
    Raises: ValueError for another kind, rows that are no multiple of 32, an x that is not finite.
    Source: llama.cpp, ggml/src/ggml-quants.c, quantize_row_q8_0_ref and its like

    >>> blocks = pack_gguf(np.arange(-16.0, 16.0), "q4_0")
    >>> blocks.shape, unpack_gguf(blocks, "q4_0")[[0, 16, 31]].tolist()
    ((18,), [-16.0, 0.0, 14.0])
    """
    layout = _layout(kind, _PACK)
    x = np.asarray(x, dtype=np.float32)
    if x.ndim == 0 or x.shape[-1] % layout.n_numbers:
        raise ValueError(f"x must have rows of a multiple of {layout.n_numbers}, got {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError("x must be finite, got NaN or infinity")
    n_blocks = x.shape[-1] // layout.n_numbers
    blocks = np.empty((*x.shape[:-1], n_blocks), layout.fields)
    with np.errstate(over="ignore"):  # a scale beyond float16 becomes infinite
        for name, values in _PACK[kind](x.reshape(*blocks.shape, layout.n_numbers)).items():
            blocks[name] = values
    return blocks.view(np.uint8).reshape(*x.shape[:-1], n_blocks * layout.fields.itemsize)


def unpack_gguf(blocks: Array, kind: str = "q8_0") -> Array:
    """Return the numbers that GGUF blocks stand for.

    Where a block's own scale is NaN or infinite, so are its numbers, or NaN.

    Shapes: blocks uint8 (…, bytes per row); result float32 (…, n)
    Raises: ValueError for another kind, another dtype, rows of no whole number of blocks.
    Source: llama.cpp, ggml/src/ggml-quants.c, dequantize_row_q8_0 and its like

    >>> unpack_gguf(np.array([0, 60, *range(32)], np.uint8), "q8_0")[:4].tolist()  # 0x3C00 is 1.0
    [0.0, 1.0, 2.0, 3.0]
    """
    layout = _layout(kind, _UNPACK)
    blocks = np.ascontiguousarray(blocks)
    size = layout.fields.itemsize
    if blocks.dtype != np.uint8 or blocks.shape[-1] % size:
        raise ValueError(
            f"blocks must be uint8 rows of a multiple of {size} bytes, "
            f"got {blocks.dtype} {blocks.shape}"
        )
    n_blocks = blocks.shape[-1] // size
    fields = blocks.reshape(*blocks.shape[:-1], n_blocks, size).view(layout.fields)[..., 0]
    with np.errstate(invalid="ignore", over="ignore"):
        numbers = _UNPACK[kind](fields)  # (…, n_blocks, groups, numbers of a group)
    return numbers.reshape(*blocks.shape[:-1], n_blocks * layout.n_numbers)


def _layout(kind: str, known: Mapping[str, Callable]) -> GgufLayout:
    check_choice("kind", kind, known)
    return GGUF_LAYOUTS[kind]


def _pack_q8_0(x: Array) -> dict[str, Array]:
    """Return the scales (…) and codes (…, 32) of x (…, 32)."""
    scale = np.abs(x).max(axis=-1, keepdims=True) / 127
    steps = _steps(x, scale)
    whole = np.trunc(steps)
    codes = whole + np.trunc(2 * (steps - whole))  # halves go away from zero
    return {"scale": scale[..., 0], "codes": np.nan_to_num(codes)}


def _pack_q4_0(x: Array) -> dict[str, Array]:
    """Return the scales (…) and paired codes (…, 16) of x (…, 32)."""
    furthest = np.abs(x).argmax(axis=-1, keepdims=True)  # of equals the first
    scale = np.take_along_axis(x, furthest, axis=-1) / -8
    codes = np.nan_to_num(np.trunc(_steps(x, scale) + np.float32(8.5)))
    return {"scale": scale[..., 0], "codes": _paired(codes)}


def _pack_q4_1(x: Array) -> dict[str, Array]:
    """Return the scales and offsets (…) and paired codes (…, 16) of x (…, 32)."""
    least = x.min(axis=-1, keepdims=True)
    scale = (x.max(axis=-1, keepdims=True) - least) / np.float32(15)
    with np.errstate(invalid="ignore"):  # a range beyond float32 has scale inf, and code 0
        codes = np.nan_to_num(np.trunc(_steps(x - least, scale) + np.float32(0.5)))
    return {"scale": scale[..., 0], "offset": least[..., 0], "codes": _paired(codes)}


def _paired(codes: Array) -> Array:
    """Return codes (…, 32), cut to 0 … 15, two to a byte: (…, 16)."""
    codes = codes.clip(0, 15).astype(np.uint8)
    return codes[..., :16] | codes[..., 16:] << 4


def _steps(x: Array, scale: Array) -> Array:
    """Return x in steps of the scale: a product with 1 / scale, since llama.cpp takes no quotient.

    NaN, for which the code is 0, where 1 / scale is infinite: float16 has 0 for such a scale.
    """
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    return x * np.where(np.isinf(inverse), np.float32(np.nan), inverse)


def _unpack_q8_0(block: Array) -> Array:
    return _number(block["scale"]) * block["codes"]


def _unpack_q4_0(block: Array) -> Array:
    return _number(block["scale"]) * (_halves(block["codes"]) - np.float32(8))


def _unpack_q4_1(block: Array) -> Array:
    return _number(block["scale"]) * _halves(block["codes"]) + _number(block["offset"])


def _unpack_q4_K(block: Array) -> Array:
    scales, offsets, both = np.moveaxis(block["group_scales"], -2, 0)  # 4 bytes each
    # Six bits for each of eight groups. The first four are the low bits of a byte; of the others,
    # four bits lie in the last bytes and two at the top of the first.
    scales = np.concatenate([scales & 63, both & 15 | scales >> 6 << 4], axis=-1)
    offsets = np.concatenate([offsets & 63, both >> 4 | offsets >> 6 << 4], axis=-1)
    scales = (_number(block["scale"]) * scales)[..., None]  # (…, 8, 1)
    offsets = (_number(block["offset"]) * offsets)[..., None]
    return scales * _halves(block["codes"]).reshape(*scales.shape[:-1], 32) - offsets


def _unpack_q6_K(block: Array) -> Array:
    low = _halves(block["low_codes"])  # (…, 2, 128)
    shifts = np.array([[0], [2], [4], [6]], np.uint8)
    high = block["high_codes"][..., None, :] >> shifts & 3  # (…, 2, 4, 32)
    codes = low | high.reshape(low.shape) << 4
    scales = _number(block["scale"]) * block["group_scales"]  # (…, 16)
    return scales[..., None] * (codes.reshape(*scales.shape, 16) - np.float32(32))


def _halves(codes: Array) -> Array:
    """Return the low halves of some bytes (…, n), then their high halves: (…, 2n)."""
    return np.concatenate([codes & 15, codes >> 4], axis=-1)


def _number(field: Array) -> Array:
    """Return a float16 of each block as float32, beside its groups: (…, 1)."""
    return field.astype(np.float32)[..., None]


_PACK = {"q8_0": _pack_q8_0, "q4_0": _pack_q4_0, "q4_1": _pack_q4_1}
_UNPACK = {
    "q8_0": _unpack_q8_0,
    "q4_0": _unpack_q4_0,
    "q4_1": _unpack_q4_1,
    "q4_K": _unpack_q4_K,
    "q6_K": _unpack_q6_K,
}
