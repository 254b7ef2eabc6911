"""Block-scaled floats, against their definitions on ml_dtypes, and the gguf package."""

import gguf as llama_cpp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from firsttoken.quantization import Microscaled, microscale

RNG = np.random.default_rng(0)
# The element's dtype, its largest number and exponent, and how many share a scale.
KINDS = {
    "mxfp4": (ml_dtypes.float4_e2m1fn, 6, 2, 32),
    "mxfp6": (ml_dtypes.float6_e2m3fn, 7.5, 2, 32),
    "mxfp8": (ml_dtypes.float8_e4m3fn, 448, 8, 32),
    "nvfp4": (ml_dtypes.float4_e2m1fn, 6, 2, 16),
}
number = st.sampled_from([0.0, 1.0, -1.75, 1e-30, 448.0]) | st.floats(-1e6, 1e6, width=32)
rows = arrays(np.float32, (2, 32), elements=number)


def samples(n_rows=100):
    """Rows of all sizes, some with an outlier, some all zeros, and steps that are ties."""
    x = RNG.normal(size=(n_rows, 64)) * np.exp2(RNG.integers(-9, 9, size=(n_rows, 1)))
    x[:20, 5] *= 100
    x[20:30, :32] = 0
    x[30:40] = np.arange(64) / 4
    return x.astype(np.float32)


def by_definition(x, kind):
    """The bytes of scales and elements that the published rules give, cast by ml_dtypes."""
    dtype, largest, exponent, block_size = KINDS[kind]
    blocks = x.reshape(*x.shape[:-1], -1, block_size).astype(np.float64)
    peak = np.abs(blocks).max(axis=-1)
    if kind == "nvfp4":
        whole = np.float32(peak.max() / (6 * 448)) or np.float32(1)
        scale = (peak / 6 / whole).astype(ml_dtypes.float8_e4m3fn)
        divisor = scale.astype(np.float64) * whole
    else:
        with np.errstate(divide="ignore"):
            shared = np.floor(np.log2(peak)) - exponent
        scale = np.exp2(shared.clip(-127, 127)).astype(ml_dtypes.float8_e8m0fnu)
        divisor = scale.astype(np.float64)
    divisor = divisor[..., None]
    elements = np.divide(blocks, divisor, out=0 * blocks, where=divisor > 0)
    elements = elements.clip(-largest, largest).astype(dtype)
    numbers = (elements.astype(np.float64) * divisor).astype(np.float32)
    return scale.view(np.uint8), elements.view(np.uint8).reshape(x.shape), numbers.reshape(x.shape)


def check_definition(x):
    for kind in KINDS:
        q = microscale(x, kind)
        scale_codes, codes, numbers = by_definition(x, kind)
        np.testing.assert_array_equal(q.scale_codes, scale_codes)
        np.testing.assert_array_equal(q.codes, codes)
        np.testing.assert_allclose(q.dequantize(), numbers, rtol=1e-6)
        assert q.dequantize().dtype == np.float32


@given(x=rows)
def test_codes_scales_and_numbers_are_those_of_the_definition(x):
    check_definition(x)


def test_bytes_are_read_as_gguf():
    """The very bytes in GGUF's order: its scale, then pairs of codes half a block apart."""
    mx, nv = (microscale(samples(), kind) for kind in ("mxfp4", "nvfp4"))
    codes = mx.codes.reshape(-1, 2, 16)
    blocks = np.column_stack([mx.scale_codes.ravel(), codes[:, 0] | codes[:, 1] << 4])
    read = llama_cpp.dequantize(blocks, llama_cpp.GGMLQuantizationType.MXFP4)
    np.testing.assert_array_equal(mx.dequantize(), read.reshape(100, 64))

    codes = nv.codes.reshape(-1, 4, 2, 8)  # four blocks of 16, their scales in front
    pairs = (codes[:, :, 0] | codes[:, :, 1] << 4).reshape(-1, 32)
    blocks = np.concatenate([nv.scale_codes, pairs], axis=1)
    read = llama_cpp.dequantize(blocks, llama_cpp.GGMLQuantizationType.NVFP4)
    np.testing.assert_allclose(nv.dequantize(), read * nv.tensor_scale, rtol=1e-6)


@given(x=rows, kind=st.sampled_from(list(KINDS)))
def test_a_block_errs_by_half_its_largest_gap_or_what_is_cut_off(x, kind):
    """Between 4 and 6 a step is 2; above 6 as much as 8 is cut, to 6: a quarter."""
    _, largest, exponent, block_size = KINDS[kind]
    peak = np.abs(x).reshape(2, -1, block_size).max(-1).repeat(block_size, axis=-1)
    error = np.abs(microscale(x, kind).dequantize() - x)
    gap = {"mxfp4": 2 / 4, "mxfp6": 0.5 / 4, "mxfp8": 32 / 256, "nvfp4": 2 / 4}[kind]
    cut = max(1 - largest / 2 ** (exponent + 1), gap / 2)
    # The scales of NVFP4 round themselves, and end 2⁻⁹ times the tensor's.
    slack = 6 * np.abs(x).max() / 2688 * 2**-10 + peak * 2**-4 if kind == "nvfp4" else 2.0**-125
    assert (error <= cut * peak * (1 + 1e-6) + slack).all()


def test_storage_is_what_is_counted():
    for kind, bits in {"mxfp4": 4.25, "mxfp6": 6.25, "mxfp8": 8.25, "nvfp4": 4.5}.items():
        q = microscale(RNG.normal(size=(2, 3, 64)), kind)
        assert isinstance(q, Microscaled) and q.codes.shape == q.dequantize().shape == (2, 3, 64)
        assert q.nbytes == 2 * 3 * 64 * bits / 8 + (4 if kind == "nvfp4" else 0), kind
        assert q.scale.shape == q.scale_codes.shape == (2, 3, 64 // KINDS[kind][3])


def test_extremes_stay_finite():
    for kind in KINDS:
        for peak in (0.0, 1e-45, 1e-38, 1.0, float(np.finfo(np.float32).max)):
            y = microscale(np.linspace(-peak, peak, 32), kind).dequantize()
            assert np.isfinite(y).all() and float(np.abs(y).max()) <= peak + 1e-37
        assert microscale(np.zeros((0, 32)), kind).dequantize().shape == (0, 32)
        assert microscale(np.zeros((2, 0)), kind).dequantize().shape == (2, 0)


def test_errors_name_what_is_wrong(subtests):
    for x, kind, message in [
        (np.zeros(32), "fp4", "kind must be one of mxfp4, mxfp6, mxfp8, nvfp4, got 'fp4'"),
        (np.zeros(16), "mxfp4", r"x must have rows of a multiple of 32, got \(16,\)"),
        (np.full(32, np.nan), "mxfp8", "x must be finite"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            microscale(x, kind)
