"""GGUF's blocks, byte for byte as the gguf package of llama.cpp writes and reads them."""

import gguf as llama_cpp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from firsttoken.quantization import GGUF_LAYOUTS, pack_gguf, unpack_gguf

RNG = np.random.default_rng(0)
TYPES = {kind: llama_cpp.GGMLQuantizationType[kind.upper()] for kind in GGUF_LAYOUTS}
PACKED = ["q8_0", "q4_0", "q4_1"]


def written(x, kind):
    with np.errstate(all="ignore"):
        return llama_cpp.quantize(x, TYPES[kind])


def read(blocks, kind):
    with np.errstate(all="ignore"):
        return llama_cpp.dequantize(blocks, TYPES[kind])


# Huge and tiny blocks, whose scales float16 holds as infinity and 0, and numbers half way between
# two codes.
size = st.sampled_from([1.0, 127.0, -8.0, 1e-8, 1e-20, 1e-36, 1e6, 1e30])
number = st.integers(-16, 16).map(lambda n: n / 2) | st.floats(-100, 100, width=32)
row = st.just(0.0) | number


@given(data=st.data(), shape=array_shapes(max_dims=2, max_side=3), kind=st.sampled_from(PACKED))
def test_the_bytes_are_those_of_the_gguf_package(data, shape, kind):
    elements = row if data.draw(st.booleans()) else st.just(data.draw(number))
    x = data.draw(arrays(np.float32, (*shape, 32), elements=elements)) * np.float32(data.draw(size))
    x = x.reshape(*shape[:-1], -1)
    blocks = pack_gguf(x, kind)
    assert blocks.dtype == np.uint8
    per_block = blocks.reshape(-1, GGUF_LAYOUTS[kind].fields.itemsize)
    expected = written(x, kind).reshape(per_block.shape)
    np.testing.assert_array_equal(per_block[:, :2], expected[:, :2])  # the scales
    # Below, 1 / scale is infinite, and llama.cpp leaves the codes to the processor.
    rows = x.reshape(-1, 32)
    span = np.ptp(rows, axis=-1) if kind == "q4_1" else np.abs(rows).max(axis=-1)
    defined = (span == 0) | (span > 4e-37)
    np.testing.assert_array_equal(per_block[defined], expected[defined])
    assert (unpack_gguf(per_block[~defined], kind) == 0).all()


@given(kind=st.sampled_from(list(TYPES)), data=st.data())
def test_any_bytes_are_read_as_the_gguf_package_reads_them(kind, data):
    """Scales of random bytes may be NaN or infinite: NaN and infinity come out, in silence."""
    n_bytes = 2 * GGUF_LAYOUTS[kind].fields.itemsize
    blocks = data.draw(arrays(np.uint8, (2, n_bytes), elements=st.integers(0, 255)))
    numbers = unpack_gguf(blocks, kind)
    assert numbers.dtype == np.float32
    np.testing.assert_array_equal(numbers, read(blocks, kind))


def test_hard_numbers_are_written_as_the_gguf_package_does():
    """Numbers of all sizes, half steps of many scales, both ends of the codes equally far."""
    sizes = np.exp2(RNG.uniform(-12, 12, size=(200, 1)))
    numbers = RNG.normal(size=(200, 32)) * sizes
    half_steps = RNG.integers(-15, 15, size=(200, 32)) + 0.5
    half_steps[:, 0] = 127
    ends = np.clip(half_steps, -8, 8) / 2
    for x in (numbers, half_steps, half_steps * sizes, ends * sizes):
        for kind in PACKED:
            x = x.astype(np.float32)
            np.testing.assert_array_equal(pack_gguf(x, kind), written(x, kind))


@given(x=arrays(np.float32, (2, 32), elements=st.floats(-1e4, 1e4, width=32)))
def test_no_error_is_above_half_a_step(x):
    """But in q4_0, which has no code for +8: there the other side loses up to one."""
    for kind, codes, worst in (("q8_0", 127, 0.5), ("q4_0", 8, 1.0)):
        step = np.abs(x).max(axis=-1, keepdims=True) / codes
        error = np.abs(unpack_gguf(pack_gguf(x, kind), kind) - x)
        assert (error <= worst * step * (1 + 1e-5) + codes * (step * 2**-11 + 2**-25)).all()


@given(x=arrays(np.float32, (2, 32), elements=st.floats(-1e4, 1e4, width=32)))
def test_q4_1_spends_its_codes_between_the_smallest_number_and_the_largest(x):
    least, step = x.min(axis=-1, keepdims=True), np.ptp(x, axis=-1, keepdims=True) / 15
    rounding = 2**-11 * (15 * step + np.abs(least)) + 2**-20  # of scale and offset in float16
    error = np.abs(unpack_gguf(pack_gguf(x, "q4_1"), "q4_1") - x)
    assert (error <= 0.5 * step * (1 + 1e-5) + rounding).all()


def test_layouts_are_those_of_the_gguf_package():
    for kind, layout in GGUF_LAYOUTS.items():
        size = layout.n_numbers, layout.fields.itemsize
        assert size == llama_cpp.GGML_QUANT_SIZES[TYPES[kind]], kind
    bits = {kind: layout.bits for kind, layout in GGUF_LAYOUTS.items()}
    assert bits == {"q8_0": 8.5, "q4_0": 4.5, "q4_1": 5.0, "q4_K": 4.5, "q6_K": 6.5625}


def test_shapes_without_rows_and_parts_of_arrays():
    for kind in TYPES:
        layout = GGUF_LAYOUTS[kind]
        n_bytes, n = 2 * layout.fields.itemsize, 2 * layout.n_numbers
        blocks = RNG.integers(0, 256, size=(20, n_bytes), dtype=np.uint8)
        assert unpack_gguf(blocks[:0], kind).shape == (0, n)
        assert unpack_gguf(blocks[0], kind).shape == (n,)
        assert unpack_gguf(blocks.reshape(4, 5, n_bytes), kind).shape == (4, 5, n)
        if kind in PACKED:
            assert pack_gguf(np.zeros((0, 64)), kind).shape == (0, n_bytes)
            assert pack_gguf(np.zeros((4, 5, 0)), kind).shape == (4, 5, 0)
            x = RNG.normal(size=(64, 6))
            np.testing.assert_array_equal(pack_gguf(x.T, kind), pack_gguf(x.T.copy(), kind))


# Arguments


def test_errors_name_what_is_wrong(subtests):
    for call, message in [
        (lambda: pack_gguf(np.zeros(32), "q4_K"), "kind must be one of .*q4_1, got 'q4_K'"),
        (lambda: pack_gguf(np.zeros(33), "q8_0"), r"x must have rows .* of 32, got \(33,\)"),
        (lambda: pack_gguf(np.full(32, np.nan), "q8_0"), "x must be finite"),
        (lambda: unpack_gguf(np.zeros(34, np.uint8), "q5_0"), "kind must be one of .*, got 'q5_0'"),
        (lambda: unpack_gguf(np.zeros(34), "q8_0"), r"must be uint8 .* 34 bytes, got float64"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            call()
