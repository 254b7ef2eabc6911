"""Laws of rotary position embedding; test_llama.py holds whole models to transformers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.rope import rope_frequencies, rotate

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@given(shift=st.integers(0, 1000), query=st.integers(0, 50), key=st.integers(0, 50))
def test_rotated_products_depend_on_distance_only(shift, query, key):
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 1, 1, 1, 16))

    def product(i, j):
        frequencies = rope_frequencies(16).astype(float)
        turned = [
            rotate(x, np.cos(p * frequencies), np.sin(p * frequencies)) for x, p in ((q, i), (k, j))
        ]
        return np.sum(turned[0] * turned[1])

    np.testing.assert_allclose(product(query, key), product(query + shift, key + shift), atol=1e-10)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "yarn", "factor": 2.0}, "rope_type 'yarn' is not supported"),
        ({"type": "dynamic", "factor": 2.0}, "rope_type 'dynamic' is not supported"),
        ({}, "rope_type None"),
        ({"rope_type": "linear"}, "positive factor, got None"),
        ({"rope_type": "linear", "factor": 0}, "positive factor, got 0"),
        ({n: v for n, v in LLAMA3.items() if n != "high_freq_factor"}, "high_freq_factor"),
        (LLAMA3 | {"low_freq_factor": 4.0}, "must be less than high_freq_factor"),
    ],
)
def test_wrong_rope_scaling_is_named(scaling, message):
    with pytest.raises(ValueError, match=message):
        rope_frequencies(8, 1e4, scaling)


def test_wrong_rope_sizes_are_named():
    with pytest.raises(ValueError, match="head_dim must be even"):
        rope_frequencies(7)
    with pytest.raises(ValueError, match="rope_theta must be positive"):
        rope_frequencies(8, 0.0)
