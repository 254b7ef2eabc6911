"""LLM.int8, AWQ, GPTQ and rotations: what they promise, against definitions and brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from firsttoken.quantization import awq_scale, gptq, hadamard, llm_int8_matmul, quantize

number = st.sampled_from([0.0, 1.0, -6.0, 100.0]) | st.floats(-10, 10, width=32)


@st.composite
def products(draw):
    """An x [T, D] and a w [D, F], with zeros, ties and outliers, and a group size for w."""
    t, d, f = (draw(st.integers(1, n)) for n in (4, 6, 3))
    x = draw(arrays(np.float32, (t, d), elements=number))
    w = draw(arrays(np.float32, (d, f), elements=number))
    return x, w, draw(st.sampled_from([None, *(g for g in range(1, d + 1) if d % g == 0)]))


def activations(n_tokens=256, d=32, outliers=(), seed=0):
    """Features that go together, as those of a model do; some are 30 times as large."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_tokens, d)) @ rng.normal(size=(d, d)) / d**0.5
    x[:, list(outliers)] *= 30
    return x.astype(np.float32), rng.normal(size=(d, 24)).astype(np.float32)


def loss(x, w, rounded):
    """The squared error of x @ w for each column."""
    return np.square(x.astype(np.float64) @ (rounded.astype(np.float64) - w)).sum(axis=0)


def nearest(w, bits, group_size=None):
    return quantize(w, bits, axis=1, group_size=group_size)


# LLM.int8


@given(case=products(), threshold=st.sampled_from([0.0, 1.0, 6.0, 99.0, np.inf]))
def test_an_int8_product_errs_by_half_a_step_of_each_factor(case, threshold):
    """(x ± half a step) (w ± half a step), for the features that have no outlier."""
    x, w, _ = case
    rest = ~(np.abs(x) >= threshold).any(axis=0)
    exact, a, b = x.astype(np.float64) @ w, np.abs(x[:, rest]), np.abs(w[rest])
    half_x = a.max(axis=1, initial=0, keepdims=True) / 254 * np.ones_like(a)
    half_w = b.max(axis=0, initial=0, keepdims=True) / 254 * np.ones_like(b)
    bound = a @ half_w + half_x @ b + half_x @ half_w
    error = np.abs(llm_int8_matmul(x, w, threshold) - exact)
    assert (error <= bound * (1 + 1e-5) + 1e-5 * (np.abs(x) @ np.abs(w)) + 1e-30).all()


def test_int8_limits():
    """Both ends: no feature has outliers, or each has; and 6.0 itself is an outlier."""
    x, w = activations(outliers=[3])
    both = quantize(x, 8, axis=0).dequantize() @ nearest(w, 8).dequantize()
    np.testing.assert_allclose(llm_int8_matmul(x, w, np.inf), both, atol=1e-3)
    np.testing.assert_allclose(llm_int8_matmul(x, w, 0.0), x @ w, atol=1e-3)
    x, w = np.array([[6.0, 1.0], [0.0, 0.1]]), np.array([[0.013], [1.0]])
    np.testing.assert_allclose(llm_int8_matmul(x, w), [[1.078], [0.1]], rtol=1e-6)


def test_int8_outliers():
    """Two of 32 features hold outliers: apart, they cost the others nothing."""
    x, w = activations(outliers=[3, 17])
    plain, apart = (
        loss(np.eye(len(x)), x @ w, llm_int8_matmul(x, w, threshold)).sum()
        for threshold in (np.inf, 6.0)
    )
    x[:, [3, 17]] /= 30
    calm = loss(np.eye(len(x)), x @ w, llm_int8_matmul(x, w, np.inf)).sum()
    assert plain > 20 * apart and apart < 1.2 * calm


# AWQ


def awq_loss(x, w, s, bits, group_size=None):
    s = s[:, None]
    return loss(x, w, nearest(w * s, bits, group_size).dequantize() / s).sum()


@given(case=products(), bits=st.sampled_from([2, 3, 4, 8]))
def test_awq_is_never_worse_than_rounding(case, bits):
    x, w, group_size = case
    s = awq_scale(x, w, bits, group_size)
    assert s.shape == (len(w),) and s.dtype == np.float32 and (s > 0).all()
    plain = awq_loss(x, w, np.ones(len(w), np.float32), bits, group_size)
    scale = np.square(np.abs(x) @ np.abs(w)).sum()
    assert awq_loss(x, w, s, bits, group_size) <= plain * (1 + 1e-6) + 1e-12 * scale


def test_awq_outliers():
    """Weights that meet large activations are scaled up, and the product loses less."""
    x, w = activations(outliers=[3, 17])
    for bits, group_size in ((3, None), (4, 16)):
        s = awq_scale(x, w, bits, group_size)
        assert s[[3, 17]].min() > 1.5 * np.delete(s, [3, 17]).max()
        plain = awq_loss(x, w, np.ones_like(s), bits, group_size)
        assert awq_loss(x, w, s, bits, group_size) < 0.6 * plain
        # The best of the candidates, each tried as a reader would.
        size = np.abs(x).mean(axis=0)
        tried = [awq_loss(x, w, size**a, bits, group_size) for a in np.linspace(0, 1, 21)]
        np.testing.assert_allclose(awq_loss(x, w, s, bits, group_size), min(tried), rtol=1e-3)


# GPTQ


def refit(w, x, q):
    """The definition: round a row; refit all rows after it to x @ w by least squares."""
    gram = x.astype(np.float64).T @ x
    gram += 0.01 * np.trace(gram) / len(gram) * np.eye(len(gram))
    scale = np.repeat(q.scale, len(w) // q.scale.shape[1], axis=1).T
    largest, rounded, codes = 2 ** (q.bits - 1) - 1, w.astype(np.float64), np.zeros_like(w)
    for i in range(len(w)):
        codes[i] = np.clip(np.rint(rounded[i] / scale[i]), -largest, largest)
        rounded[i] = codes[i] * scale[i]
        done, left = slice(i + 1), slice(i + 1, None)
        pull = gram[left, done] @ (rounded[done] - w[done])
        rounded[left] = w[left] - np.linalg.solve(gram[left, left], pull)
    return codes


def test_gptq_definition():
    """The factor of the inverse does what refitting does, in one pass, where that is better."""
    x, w = activations()
    for bits, group_size in ((2, None), (3, 16), (4, 8)):
        q, plain = gptq(w, x, bits, group_size), nearest(w, bits, group_size)
        scale = np.repeat(plain.scale, 32 // plain.scale.shape[1], axis=1).T
        codes = refit(w, x, plain)
        better = loss(x, w, codes * scale) < loss(x, w, plain.dequantize())
        np.testing.assert_array_equal(q.codes, np.where(better, codes, plain.codes))
        assert better.sum() > 20


@given(case=products(), bits=st.sampled_from([2, 3, 4, 8]))
def test_gptq_is_never_worse_than_rounding_in_any_column(case, bits):
    """Also with fewer tokens than features, features that are zero, and equal ones."""
    x, w, group_size = case
    q, plain = gptq(w, x, bits, group_size), nearest(w, bits, group_size)
    np.testing.assert_array_equal(q.scale, plain.scale)
    assert (q.shape, q.nbytes, q.zero_point) == (plain.shape, plain.nbytes, None)
    assert np.abs(q.codes).max() <= 2 ** (bits - 1) - 1
    slack = 1e-12 * np.square(np.abs(x) @ np.abs(w)).sum(axis=0)
    got, expected = (loss(x, w, each.dequantize()) for each in (q, plain))
    assert (got <= expected * (1 + 1e-9) + slack).all()


# Rotations


def test_rotations_are_orthogonal_with_entries_of_one_size():
    for n in (1, 2, 4, 12, 20, 32, 64, 128, 192, 512):
        r = hadamard(n)
        assert r.dtype == np.float32
        np.testing.assert_allclose(r @ r.T, np.eye(n), atol=1e-5, err_msg=str(n))
        np.testing.assert_allclose(np.abs(r), n**-0.5, rtol=1e-6)


def test_rotations():
    """(x R)(Rᵀ w) = x w; R Rᵀ is no luck of symmetric matrices alone."""
    for d in (32, 12):
        x, w = activations(d=d, outliers=[3])
        r = hadamard(d)
        np.testing.assert_allclose((x @ r) @ (r.T @ w), x @ w, atol=2e-3)
    x, w = activations(outliers=[3, 17])
    r = hadamard(32)
    peak = [np.abs(a).max() / np.sqrt(np.square(a).mean()) for a in (x, x @ r)]
    plain, turned = (
        loss(np.eye(len(x)), x @ w, llm_int8_matmul(a, b, np.inf)).sum()
        for a, b in ((x, w), (x @ r, r.T @ w))
    )
    assert peak[0] > 1.5 * peak[1] and plain > 2 * turned


# Arguments


def test_errors_name_what_is_wrong(subtests):
    x, w = np.ones((4, 2)), np.ones((2, 3))
    for call, message in [
        (lambda: llm_int8_matmul(x, w, -1.0), "threshold must be at least 0, got -1.0"),
        (lambda: llm_int8_matmul(x[0], w), r"x \[T, D\] and w \[D, F\] .* \(2,\) and \(2, 3"),
        (lambda: llm_int8_matmul(x[:0], w), r"not empty; got \(0, 2\)"),
        (lambda: llm_int8_matmul(x * np.nan, w), "x must be finite"),
        (lambda: gptq(w, x, 9), "bits must lie in 2 … 8, got 9"),
        (lambda: gptq(w, x, 4, 3), "group_size must divide the 2 elements per channel, got 3"),
        (lambda: hadamard(0), "n must be an integer of at least 1, got 0"),
        # 92 has a Hadamard matrix, but not one of Paley's first kind.
        *[(lambda n=n: hadamard(n), r"n must be 2\^k .*, got odd") for n in (3, 5, 28, 36, 92)],
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_symmetric_codes_leave_one_unused_and_a_zero_point_none(bits):
    x, w = activations()
    both = quantize(w, bits, axis=1), gptq(w, x, bits)
    assert all(len(np.unique(q.codes)) == 2**bits - 1 for q in both)
    assert len(np.unique(quantize(w, bits, axis=1, symmetric=False).codes)) == 2**bits
