"""Laws of rotary position embedding; test_llama.py holds whole models to transformers."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from firsttoken.models.rope import rope_frequencies, rotate

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


@given(head_dim=st.integers(1, 64).map(lambda half: 2 * half), n_tokens=st.integers(1, 5))
def test_a_pair_turns_as_a_complex_number(head_dim, n_tokens):
    """Feature i and feature i + H/2 are the two parts of one number, in every head of every row."""
    rng = np.random.default_rng(head_dim)
    x = rng.normal(size=(2, 3, n_tokens, head_dim))
    angles = rng.normal(size=(n_tokens, head_dim // 2))
    turned = (x[..., : head_dim // 2] + 1j * x[..., head_dim // 2 :]) * np.exp(1j * angles)
    got = rotate(x, np.cos(angles), np.sin(angles))
    np.testing.assert_allclose(got, np.concatenate([turned.real, turned.imag], -1), atol=1e-12)


def test_frequencies_are_float32_and_fall_from_one():
    """The published base is 10,000; one pair alone turns by one radian, whatever the base."""
    frequencies = rope_frequencies(8)
    assert frequencies.dtype == np.float32
    np.testing.assert_allclose(frequencies, [1, 0.1, 0.01, 0.001], rtol=1e-6)
    assert rope_frequencies(2).tolist() == [1.0]
    assert rope_frequencies(6, theta=1.0).tolist() == [1.0, 1.0, 1.0]
    np.testing.assert_array_equal(rope_frequencies(8, 1e4, {"rope_type": "default"}), frequencies)


def test_scaled_frequencies_equal_transformers():
    """Pairs before, on and behind the ramp of llama3; in one rounding error of float32."""
    scalings = [
        {"rope_type": "linear", "factor": 4.0},
        LLAMA3,
        LLAMA3 | {"factor": 32.0},  # Llama 3.2
        LLAMA3 | {"low_freq_factor": 2.5, "original_max_position_embeddings": 500},
    ]
    for scaling, (head_dim, theta) in product(scalings, [(128, 5e5), (64, 1e4)]):
        config = LlamaConfig(head_dim=head_dim, rope_parameters=scaling | {"rope_theta": theta})
        expected, _ = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config)
        got = rope_frequencies(head_dim, theta, scaling)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected.numpy(), rtol=1e-6, err_msg=str(scaling))


def test_wrong_arguments_are_named(subtests):
    for scaling, message in [
        ({"rope_type": "yarn", "factor": 2.0}, "rope_type 'yarn' is not supported"),
        ({"rope_type": "linear"}, "positive factor, got None"),
        ({"rope_type": "linear", "factor": 0}, "positive factor, got 0"),
        ({n: v for n, v in LLAMA3.items() if n != "high_freq_factor"}, "high_freq_factor"),
        (LLAMA3 | {"low_freq_factor": 4.0}, "must be less than high_freq_factor"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            rope_frequencies(8, 1e4, scaling)
    with pytest.raises(ValueError, match="head_dim must be even"):
        rope_frequencies(7)
    with pytest.raises(ValueError, match="rope_theta must be positive"):
        rope_frequencies(8, 0.0)
