"""Number formats against torch and ml_dtypes, bit for bit."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from firsttoken.quantization import FORMATS, float_format

RNG = np.random.default_rng(0)
# The dtypes of ml_dtypes, and those of torch where it has the format.
DTYPES = {
    "fp32": (np.float32, torch.float32),
    "bf16": (ml_dtypes.bfloat16, torch.bfloat16),
    "fp16": (np.float16, torch.float16),
    "fp8_e5m2": (ml_dtypes.float8_e5m2, torch.float8_e5m2),
    "fp8_e4m3fn": (ml_dtypes.float8_e4m3fn, torch.float8_e4m3fn),
    "fp8_e4m3fnuz": (ml_dtypes.float8_e4m3fnuz, torch.float8_e4m3fnuz),
    "fp6_e2m3": (ml_dtypes.float6_e2m3fn, None),
    "fp6_e3m2": (ml_dtypes.float6_e3m2fn, None),
    "fp4_e2m1": (ml_dtypes.float4_e2m1fn, None),
    "e8m0": (ml_dtypes.float8_e8m0fnu, torch.float8_e8m0fnu),
}
INTEGERS = {"int8": ml_dtypes.iinfo("int8"), "int4": ml_dtypes.iinfo(ml_dtypes.int4)}


def numbers_of(dtype, bits):
    """Every finite number of a small dtype, by its bit pattern; a sample of fp32."""
    patterns = np.arange(2 ** min(bits, 16), dtype=np.uint64)
    if bits == 32:
        patterns = RNG.integers(0, 2**32, size=2**16)
    values = patterns.astype(f"uint{max(bits, 8)}").view(dtype).astype(np.float32)
    return values[np.isfinite(values)]


def finite_values(name):
    return numbers_of(DTYPES[name][0], FORMATS[name].bits)


def test_limits_equal_those_of_real_dtypes():
    assert FORMATS.keys() == DTYPES.keys() | INTEGERS.keys()
    assert all(name == fmt.name for name, fmt in FORMATS.items())
    for name, (numpy_dtype, torch_dtype) in DTYPES.items():
        f, info = FORMATS[name], ml_dtypes.finfo(numpy_dtype)
        assert (f.max, f.min, f.bits) == (float(info.max), float(info.min), info.bits), name
        assert f.min_positive == float(info.smallest_subnormal)
        assert 2.0**f.min_exponent == float(info.smallest_normal)
        if torch_dtype is not None:
            info = torch.finfo(torch_dtype)
            assert (f.max, f.bits, 2.0**f.min_exponent) == (info.max, info.bits, info.tiny)
    for name, info in INTEGERS.items():
        f = FORMATS[name]
        assert (f.min, f.max, f.bits, f.min_positive) == (info.min, info.max, info.bits, 1)


@pytest.mark.parametrize("name", DTYPES)
def test_rounding_equals_the_casts_of_torch_and_ml_dtypes(name):
    """Random numbers of all sizes, every number of the format, and every tie between two."""
    numpy_dtype, torch_dtype = DTYPES[name]
    values = finite_values(name)
    np.testing.assert_array_equal(FORMATS[name].round(values), values)
    if name != "fp32":
        np.testing.assert_array_equal(FORMATS[name].values, np.unique(np.abs(values)))
    x = hard_cases(values)
    x = x[x > 0] if name == "e8m0" else x  # others have no logarithm
    x = x[np.abs(x) <= FORMATS[name].max]
    got = FORMATS[name].round(x)
    np.testing.assert_array_equal(got, x.astype(numpy_dtype).astype(np.float32))
    if torch_dtype is not None:
        np.testing.assert_array_equal(got, torch.from_numpy(x).to(torch_dtype).float().numpy())


def hard_cases(values):
    values = np.unique(values.astype(np.float64))
    ties = (values[1:] + values[:-1]) / 2
    spread = RNG.normal(size=5000) * np.exp2(RNG.uniform(-30, 30, size=5000))
    return np.concatenate([values, ties, spread]).astype(np.float32)


def test_rounding_saturates_and_keeps_nan_and_integers_are_whole_numbers():
    for name, f in FORMATS.items():
        x = np.array([np.inf, -np.inf, f.max * 1.001, f.min - 1, np.nan, 0.0, -0.0])
        zero = max(f.min, 0)  # what is nearest to it in e8m0
        expected = [f.max, f.min, f.max, f.min, np.nan, zero, zero]
        np.testing.assert_array_equal(f.round(x), expected, err_msg=name)
    for f in map(FORMATS.get, INTEGERS):
        x = RNG.uniform(2 * f.min, 2 * f.max, size=1000)
        x = np.concatenate([x, np.arange(2 * f.min, 2 * f.max, 0.5)])
        np.testing.assert_array_equal(f.round(x), np.clip(np.rint(x), f.min, f.max))


@given(x=arrays(np.float32, 20, elements=st.floats(width=32)), name=st.sampled_from(list(FORMATS)))
def test_rounding_is_idempotent_and_keeps_the_order(x, name):
    once = FORMATS[name].round(x)
    np.testing.assert_array_equal(FORMATS[name].round(once), once)
    real = np.sort(x[~np.isnan(x)])
    assert (np.diff(FORMATS[name].round(real)) >= 0).all()


@given(
    exponent_bits=st.integers(1, 8),
    mantissa_bits=st.integers(1, 7),
    specials=st.sampled_from(["ieee", "nan", "none"]),
)
def test_patterns_count_and_spacing_doubles(exponent_bits, mantissa_bits, specials):
    """The law of a float: as many numbers between any two powers of two, and no gap at 0."""
    assume(exponent_bits < 8 or specials == "ieee")  # others reach beyond float32
    f, m = float_format(exponent_bits, mantissa_bits, specials), 2**mantissa_bits
    taken = {"ieee": m, "nan": 1, "none": 0}[specials]
    assert len(f.values) == 2 ** (f.bits - 1) - taken and f.values[-1] == f.max == -f.min
    gaps = np.diff(f.values.astype(np.float64)) / f.min_positive
    binade = np.arange(len(gaps)) // m
    np.testing.assert_array_equal(gaps, np.exp2(np.maximum(binade, 1) - 1))
    np.testing.assert_array_equal(f.round(f.values), f.values)


def test_errors_name_what_is_wrong(subtests):
    for shape, message in [
        ((0, 3), "exponent_bits must be an integer of at least 1, got 0"),
        ((9, 3), "exponent_bits must lie in 1 … 8, got 9"),
        ((4, 24), "mantissa_bits must lie in 1 … 23, got 24"),
        ((4, 3, "fn"), "specials must be one of ieee, nan, none, got 'fn'"),
        ((8, 3, "none"), "numbers must fit float32; with specials 'none' they reach"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            float_format(*shape)
