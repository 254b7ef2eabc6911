"""Codecs: vectors as a cache stores them."""

import ml_dtypes
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from firsttoken.quantization import codec, quantize


def test_fp8_bytes_are_those_of_ml_dtypes():
    """All of fp16, ties, NaN and zeros of both signs: the very bytes, where nothing saturates."""
    x = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    x = np.append(x[np.abs(x) <= 448], np.float32([np.nan, -np.nan]))
    encode, decode = codec("fp8", 1)
    (stored,) = encode(x[:, None])
    expected = x.astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(stored[:, 0], expected.view(np.uint8))
    np.testing.assert_array_equal(decode((stored,))[:, 0], expected.astype(np.float32))
    beyond = np.array([[500.0], [-1e6], [np.inf]], np.float32)
    assert decode(encode(beyond)).ravel().tolist() == [448, -448, 448]


@given(arrays(np.float32, (3, 32), elements=st.floats(-1e3, 1e3, width=32)))
def test_a_cache_and_quantize_round_alike_where_the_scale_is_the_same(x):
    """With a largest number that makes the scale a power of two, fp16 and fp32 hold it exactly."""
    for dtype, bits in (("int8", 8), ("int4", 4)):
        x[:, 0] = (2 ** (bits - 1) - 1) * 2.0 ** np.arange(6, 9)
        x = np.clip(x, -x[:, :1], x[:, :1])
        encode, decode = codec(dtype, 32)
        q = quantize(x, bits, axis=0)
        np.testing.assert_array_equal(encode(x)[1], q.scale)
        np.testing.assert_array_equal(decode(encode(x)), q.dequantize())
