"""Error bounds and storage of integer codes."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from firsttoken.quantization import quantize

RNG = np.random.default_rng(0)
number = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 1e-30, 100.0]), st.floats(-1e6, 1e6, width=32))
array = arrays(np.float32, array_shapes(max_dims=4, max_side=5), elements=number)
BITS = range(2, 9)


@st.composite
def settings_for(draw, x):
    """Channel axes and a group size that fit x."""
    axes = draw(st.none() | st.sets(st.integers(0, x.ndim - 1)).map(sorted))
    rest = [n for a, n in enumerate(x.shape) if axes is None or a not in axes]
    size = int(np.prod(rest))
    sizes = [None, *(g for g in range(1, size + 1) if size % g == 0)]
    return axes, draw(st.sampled_from(sizes))


@given(x=array, bits=st.sampled_from(BITS), symmetric=st.booleans(), data=st.data())
def test_no_error_is_above_half_a_step(x, bits, symmetric, data):
    axis, group_size = data.draw(settings_for(x))
    q = quantize(x, bits, axis, group_size, symmetric)
    y = q.dequantize()
    assert y.shape == q.codes.shape == x.shape and y.dtype == np.float32
    low, high = (-(2 ** (bits - 1)) + 1, 2 ** (bits - 1) - 1) if symmetric else (0, 2**bits - 1)
    assert q.codes.min() >= low and q.codes.max() <= high
    assert (y[x == 0] == 0).all()  # zero is always exact
    largest = np.abs(x).max()
    assert np.abs(x - y).max() <= q.scale.max() * 0.5 + 1e-6 * largest
    span = largest if symmetric else max(x.max(), 0) - min(x.min(), 0)
    steps = 2 ** (bits - 1) - 1 if symmetric else 2**bits - 1
    assert q.scale.max() <= max(span / steps * (1 + 1e-6), 1)


@given(x=array, bits=st.sampled_from(BITS), symmetric=st.booleans(), data=st.data())
def test_every_slice_is_quantized_by_itself(x, bits, symmetric, data):
    """The definition of a channel: as if the others did not exist."""
    axis = data.draw(st.integers(0, x.ndim - 1))
    together = quantize(x, bits, axis, symmetric=symmetric).dequantize()
    for i in range(x.shape[axis]):
        alone = quantize(x.take(i, axis), bits, symmetric=symmetric).dequantize()
        np.testing.assert_array_equal(together.take(i, axis), alone)


@given(x=array, bits=st.sampled_from(BITS), data=st.data())
def test_groups_are_runs_of_neighbours(x, bits, data):
    size = data.draw(st.sampled_from([g for g in range(1, x.size + 1) if x.size % g == 0]))
    grouped = quantize(x, bits, group_size=size)
    as_rows = quantize(x.reshape(-1, size), bits, axis=0)
    np.testing.assert_array_equal(grouped.dequantize().ravel(), as_rows.dequantize().ravel())
    assert grouped.scale.size == x.size // size


def test_storage_is_what_is_counted():
    """64 × 96 codes without gaps, and one float32 scale per group of 32."""
    x = RNG.normal(size=(64, 96))
    for bits in BITS:
        q = quantize(x, bits, group_size=32)
        assert q.packed.nbytes == 64 * 96 * bits // 8
        assert q.nbytes == q.packed.nbytes + 4 * 64 * 3
        asymmetric = quantize(x, bits, group_size=32, symmetric=False)
        assert asymmetric.nbytes == q.nbytes + 64 * 3  # a zero point of one byte each
    q = quantize(np.array([1.0, -7.0, 7.0]), 4)
    assert q.packed.tolist() == [9 + 16 * 1, 15]  # codes + 8, the first in the low half


def test_codes_are_one_long_binary_number():
    """The packed bytes, read as one little-endian integer, hold code i at bit i · bits."""
    for bits, n_codes in itertools.product(BITS, (1, 2, 7, 8)):
        x = RNG.integers(0, 2**bits, size=n_codes)
        x[0], x[-1] = 0, 2**bits - 1
        q = quantize(x, bits, symmetric=False)
        number = int.from_bytes(q.packed.tobytes(), "little")
        codes = [number >> i * bits & 2**bits - 1 for i in range(n_codes)]
        assert codes == q.codes.tolist(), bits
        assert q.packed.nbytes == -(-n_codes * bits // 8)


def test_torch_rounds_to_the_same_codes():
    x = RNG.normal(size=(5, 40)).astype(np.float32)
    for bits in BITS:
        q = quantize(x, bits, axis=0, symmetric=False)
        scale, zero = q.scale[:, 0], q.zero_point[:, 0].astype(np.int32)
        expected = torch.fake_quantize_per_channel_affine(
            *map(torch.from_numpy, (x, scale, zero)), axis=0, quant_min=0, quant_max=2**bits - 1
        )
        np.testing.assert_allclose(q.dequantize(), expected.numpy(), rtol=1e-6, atol=1e-7)


def test_extremes_stay_finite():
    for x in ([0.0, 0.0], [1e-45, -1e-45], [3e38, -3e38], [3e38, 1.0], [5.0]):
        for symmetric in (True, False):
            y = quantize(np.array(x), 8, symmetric=symmetric).dequantize()
            assert np.isfinite(y).all()
            np.testing.assert_allclose(y, x, atol=max(np.abs(x)) / 100 + 1e-40)


def test_errors_name_what_is_wrong(subtests):
    for x, options, message in [
        ([1.0], {"bits": 1}, "bits must be an integer of at least 2, got 1"),
        ([1.0], {"bits": 9}, "bits must lie in 2 … 8, got 9"),
        ([], {"bits": 4}, r"x must be finite and not empty, got shape \(0,\)"),
        ([np.nan], {"bits": 4}, "x must be finite"),
        ([[1.0, 2.0]], {"bits": 4, "axis": 2}, "axis must name different axes"),
        ([[1.0, 2.0]], {"bits": 4, "group_size": 3}, "must divide the 2 elements per channel"),
        ([[1.0, 2.0]], {"bits": 4, "group_size": 0}, "group_size must be an integer of at least 1"),
    ]:
        with subtests.test(f"{x}, {options}"), pytest.raises(ValueError, match=message):
            quantize(np.array(x), **options)
