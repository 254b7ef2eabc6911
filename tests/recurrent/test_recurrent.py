"""Recurrent layers: their forms agree, SciPy and transformers agree, and mistakes must show."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import signal
from transformers.models.qwen3_next import modeling_qwen3_next

from firsttoken.recurrent import (
    discretize,
    gated_delta,
    gated_delta_step,
    layers,
    linear_attention,
    linear_attention_step,
    ssm,
    ssm_step,
)

FORMS = ["parallel", "recurrent", "chunked"]
DELTA_FORMS = ["recurrent", "chunked"]


def tensors(n_tokens, batch=2, n_heads=3, head_dim=4, v_dim=5, seed=0):
    """Queries, keys, values, beta and decay; keys of length 1, as models have them."""
    rng = np.random.default_rng(seed)
    q, k = rng.normal(size=(2, batch, n_heads, n_tokens, head_dim))
    v = rng.normal(size=(batch, n_heads, n_tokens, v_dim))
    beta, decay = rng.uniform(0.01, 1, size=(2, batch, n_heads, n_tokens))
    return q, k / np.linalg.norm(k, axis=-1, keepdims=True), v, beta, decay


def system(n=4, seed=0):
    """A stable diagonal system with complex poles, and D."""
    rng = np.random.default_rng(seed)
    poles = rng.uniform(0, 0.99, n) * np.exp(1j * rng.uniform(-np.pi, np.pi, n))
    b, c = rng.normal(size=(2, n)) + 1j * rng.normal(size=(2, n))
    return poles, b, c, 0.7


# Linear attention


def masked(q, k, v, shift=0, normalized=True):
    """The definition: φ(q)·φ(k) for every pair of tokens; `shift` moves the mask."""
    phi = [torch.nn.functional.elu(torch.from_numpy(x)).numpy() + 1 for x in (q, k)]
    weights = np.einsum("bnth,bnsh->bnts", *phi)
    position = np.arange(q.shape[2])
    weights = weights * (position[:, None] >= position + shift)
    total = weights.sum(-1, keepdims=True) if normalized else 1.0
    return weights @ v / total


@given(n_tokens=st.integers(0, 20), chunk=st.integers(1, 25), form=st.sampled_from(FORMS))
def test_linear_attention_is_the_masked_matrix_in_every_form(n_tokens, chunk, form):
    q, k, v, _, _ = tensors(n_tokens)
    got = linear_attention(q, k, v, form, chunk)
    assert got.shape == v.shape
    np.testing.assert_allclose(got, masked(q, k, v), rtol=1e-9, atol=1e-12)


# The gated delta rule


def reference(name, q, k, v, beta, decay, **options):
    """transformers' function: tokens before heads, log of the decay, queries divided by √H."""
    function = getattr(modeling_qwen3_next, name)
    q = q * np.sqrt(q.shape[-1])
    inputs = [torch.from_numpy(x).transpose(1, 2) for x in (q, k, v, np.log(decay), beta)]
    out, state = function(*inputs, output_final_state=True, **options)
    return out.transpose(1, 2).numpy(), state.numpy()


@given(
    n_tokens=st.integers(0, 20),
    chunk=st.integers(1, 25),
    longer=st.floats(0.0, 1.3),
    lowest=st.sampled_from([1.0, 0.5, 1e-3, 1e-300]),
)
def test_gated_delta_is_the_same_in_chunks(n_tokens, chunk, longer, lowest):
    """Also for keys that are not of length 1, and where decays multiply to less than any float."""
    q, k, v, beta, decay = tensors(n_tokens)
    k, decay = longer * k, lowest**decay
    whole = gated_delta(q, k, v, beta, decay)
    assert whole.shape == v.shape
    in_chunks = gated_delta(q, k, v, beta, decay, "chunked", chunk)
    np.testing.assert_allclose(in_chunks, whole, rtol=1e-8, atol=1e-10)


def test_gated_delta_survives_decays_that_underflow():
    """A token that forgets nearly all, among tokens that forget nothing."""
    q, k, v, beta, decay = tensors(12)
    for tiny, chunk in product([1e-300, 5e-324], [1, 5, 64]):
        decay = np.where(np.arange(12) % 4 == 2, tiny, decay)
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            got = gated_delta(q, k, v, beta, decay, "chunked", chunk)
        np.testing.assert_allclose(got, gated_delta(q, k, v, beta, decay), atol=1e-12)


def test_gated_delta_keeps_digits_in_float32():
    """Far in a chunk, log decays are large, and their differences small."""
    q, k, v, beta, decay = tensors(64)
    decay = np.where(np.arange(64) < 32, 1e-30, 0.99 + 0 * decay)
    exact = gated_delta(q, k, v, beta, decay)
    short = [x.astype(np.float32) for x in (q, k, v, beta, decay)]
    got = gated_delta(*short, "chunked")
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, exact, atol=2e-5)


def test_gated_delta_equals_transformers():
    """The state, too: theirs is stored as keys by values, ours as values by keys."""
    for n_tokens in (1, 7, 70):
        inputs = tensors(n_tokens)
        for name in ("torch_recurrent_gated_delta_rule", "torch_chunk_gated_delta_rule"):
            out, expected = reference(name, *inputs)
            for form in DELTA_FORMS:
                np.testing.assert_allclose(gated_delta(*inputs, form, 16), out, atol=1e-5)
        states, _ = decode(gated_delta_step, inputs, n_tokens)
        np.testing.assert_allclose(states[-1].mT, expected, atol=1e-5)


# State-space models


@given(n_tokens=st.integers(0, 40), seed=st.integers(0, 5), form=st.sampled_from(["c", "r"]))
def test_ssm_equals_scipy(n_tokens, seed, form):
    """Re Σ C · h is half the sum of a system and its conjugate; the new h sees x at once."""
    a, b, c, d = system(seed=seed)
    a[0] = 0  # a state that forgets at once
    x = np.random.default_rng(seed).normal(size=(2, n_tokens))
    y = ssm(x, a, b, c, d, {"c": "convolution", "r": "recurrent"}[form])
    assert y.shape == x.shape
    both = [np.concatenate([z, z.conj()]) for z in (a, b, c)]
    now = d + (c @ b).real
    expected = sum(
        signal.lfilter([0, g], [1, -p], x + 0j)
        for p, g in zip(both[0], both[0] * both[1] * both[2] / 2, strict=True)
    )
    np.testing.assert_allclose(y, expected.real + now * x, atol=1e-9)


poles = st.complex_numbers(max_magnitude=10, allow_nan=False, allow_infinity=False)


def held(a, b, step_s):
    """SciPy's zero-order hold; a complex number as a matrix that turns and stretches."""
    turn = np.array([[a.real, -a.imag], [a.imag, a.real]])
    enter = np.array([[b.real], [b.imag]])
    ad, bd, *_ = signal.cont2discrete((turn, enter, np.eye(2), np.zeros((2, 1))), step_s, "zoh")
    return complex(*ad[:, 0]), complex(*bd[:, 0])


@given(a=poles, b=poles, step_s=st.floats(1e-3, 1))
def test_discretize_equals_scipy(a, b, step_s):
    got = discretize(np.array([a]), np.array([b]), step_s)
    for ours, theirs in zip(got, held(a, b, step_s), strict=True):
        np.testing.assert_allclose(ours[0], theirs, rtol=1e-9, atol=1e-12)


def test_discretize_has_its_limit_at_zero():
    for a in (0.0, 5e-324, 2.2e-313 + 0j, -1e-300, -1e-12, 1e-12j):
        with np.errstate(divide="raise", invalid="raise", over="raise"):
            got_a, got_b = discretize(np.array([a]), np.array([3.0]), 0.25)
        np.testing.assert_allclose([got_a, got_b], [[1], [0.75]], rtol=1e-11, err_msg=str(a))


# What all share


def test_inputs_are_left_alone_and_float16_becomes_float32():
    calls = [(linear_attention, form, 3) for form in FORMS]
    for function, form, n_inputs in calls + [(gated_delta, form, 5) for form in DELTA_FORMS]:
        inputs = tensors(10)[:n_inputs]
        kept = [x.copy() for x in inputs]
        function(*inputs, form=form, chunk=4)
        halves = [x.astype(np.float16) for x in inputs]
        assert function(*halves, form=form, chunk=4).dtype == np.float32
        for x, y in zip(inputs, kept, strict=True):
            np.testing.assert_array_equal(x, y)  # nothing is written over


def decode(step, inputs, n_tokens):
    """Run a step over the tokens; return the states and the outputs."""
    state, states, outputs = None, [], []
    for t in range(n_tokens):
        state, output = step(state, *(x[:, :, t] for x in inputs))
        states.append(state)
        outputs.append(output)
    return states, np.stack(outputs, axis=2)


def test_steps_decode_with_a_state_that_does_not_grow():
    inputs = tensors(30)
    for step, whole, n_inputs, shape in [
        (linear_attention_step, linear_attention, 3, (2, 3, 6, 4)),
        (gated_delta_step, gated_delta, 5, (2, 3, 5, 4)),
    ]:
        states, outputs = decode(step, inputs[:n_inputs], 30)
        expected = whole(*inputs[:n_inputs], "chunked", 8)
        np.testing.assert_allclose(outputs, expected, atol=1e-11)
        assert {state.shape for state in states} == {shape}
        again, _ = step(states[3], *(x[:, :, 4] for x in inputs[:n_inputs]))
        np.testing.assert_array_equal(again, states[4])  # a step leaves the old state as it was
    x, state = np.random.default_rng(0).normal(size=(2, 30)), None
    expected = ssm(x, *system())
    for t in range(30):
        state, y = ssm_step(state, x[:, t], *system())
        np.testing.assert_allclose(y, expected[:, t], atol=1e-11)
        assert state.shape == (2, 4)


def test_each_form_reads_as_many_tokens_at_once_as_it_says(monkeypatch):
    """The results are equal, so that they cannot show which form was computed."""
    found = []

    def watch(part, original):
        def counted(*arguments):
            q = arguments[0] if part == "_masked_product" else arguments[1]
            found.append(q.shape[2] if q.ndim == 4 else 1)
            return original(*arguments)

        monkeypatch.setattr(layers, part, counted)

    steps = ["linear_attention_step", "gated_delta_step", "ssm_step"]
    for part in ["_masked_product", "_gated_delta_chunk", *steps]:
        watch(part, getattr(layers, part))
    for function, form, sizes in [
        (linear_attention, "parallel", [130]),
        (linear_attention, "chunked", [64, 64, 2]),  # 64 where nobody says so
        (linear_attention, "recurrent", [1] * 130),
        (gated_delta, "chunked", [64, 64, 2]),
        (gated_delta, "recurrent", [1] * 130),
        (ssm, "convolution", []),
        (ssm, "recurrent", [1] * 130),
    ]:
        found.clear()
        inputs = tensors(130)[: 3 if function is linear_attention else 5]
        function(*((np.ones(130), *system()) if function is ssm else inputs), form=form)
        assert found == sizes, (function, form)


def test_results_are_as_wide_as_what_goes_in():
    """float32 if all of x, A, B and C are; a complex number counts as its parts."""
    for wide in (None, 0, 1, 2, 3):
        inputs = [np.ones(3, np.float32), *[np.full(2, 0.5, np.complex64)] * 3]
        if wide is not None:
            inputs[wide] = inputs[wide].astype(np.float64 if wide == 0 else np.complex128)
        expected = np.float32 if wide is None else np.float64
        assert ssm(*inputs, 0.0, "recurrent").dtype == expected, wide
    state, output = gated_delta_step(None, *(x[:, :, 0].astype(np.float32) for x in tensors(1)))
    assert state.dtype == output.dtype == np.float32


# Arguments


def test_bad_arguments_are_named(subtests):
    def ones(*shape):
        return np.ones(shape)

    x, share = ones(1, 1, 2, 3), ones(1, 1, 2)
    for call, message in [
        (lambda: linear_attention(x, x, x, "fast"), "form must be one of .*'fast'"),
        (lambda: linear_attention(x, x, x, chunk=0), "chunk .* at least 1, got 0"),
        (lambda: linear_attention(x, ones(1, 1, 2, 4), x), "q .* k"),
        (lambda: linear_attention(x, x, ones(1, 1, 3, 3)), r"v \(1, 1, 3, 3\)"),
        (lambda: gated_delta(x, x, x, share, share, "parallel"), "^form must"),
        (lambda: gated_delta(x, x, x, ones(1, 1, 3), share), "^beta"),
        (lambda: gated_delta(x, x, x, share, ones(1, 1)), "^decay"),
        (lambda: gated_delta(x, x, x, share, share, chunk=0), "^chunk .* at least 1, got 0"),
        *[
            (lambda bad=bad: gated_delta(x, x, x, share, bad * share), r"decay must be in \(0, 1\]")
            for bad in (0.0, -0.5, 1.01, np.nan)
        ],
        (lambda: ssm(ones(3), ones(2), ones(2), ones(3), 0.0), r"C \(3,\)"),
        (lambda: ssm(np.float64(1), ones(2), ones(2), ones(2), 0.0), r"x must be real, \(…, T\)"),
        (lambda: ssm(ones(3), ones(2), ones(2), ones(2), 0.0, "chunked"), "^form must"),
        *[
            (lambda step=step: discretize(ones(2), ones(2), step), f"step_s .* got {step}")
            for step in (0.0, -1.0, np.inf, np.nan)
        ],
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("angle", [0.0, 1.0])
def test_both_forms_of_an_ssm_are_equal_up_to_poles_of_size_one(angle):
    """Nothing fades, over 3,000 inputs. Where a state grows, only the recurrent form follows."""
    x, one = np.random.default_rng(0).normal(size=3000), np.ones(1)
    a = np.exp(1j * angle) * one
    both = [ssm(x, a, one, one, 0.0, form) for form in ("convolution", "recurrent")]
    np.testing.assert_allclose(*both, atol=1e-9)
    growing = ssm(x[:400], 1.1 * one, one, one, 0.0, "recurrent")
    np.testing.assert_allclose(growing, signal.lfilter([1], [1, -1.1], x[:400]), rtol=1e-9)


@pytest.mark.parametrize(("beta", "factor"), [(0.5, 0.5), (1.0, 0.0), (2.0, 1.0), (2.1, 1.1)])
def test_a_correction_shrinks_the_error_up_to_beta_two(beta, factor):
    """Along a key of length 1 the error is multiplied by 1 - beta; a key of length l, beta l²."""
    for length in (1.0, 2.0):
        key, value = length * np.array([0.6, 0.8]), np.zeros(1)
        start = np.array([[3.0, 4.0]]) / length
        state, _ = gated_delta_step(
            start, key, key, value, np.array(beta / length**2), np.array(1.0)
        )
        np.testing.assert_allclose(abs(state @ key), factor * abs(start @ key), atol=1e-12)
