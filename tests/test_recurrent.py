"""Recurrent layers: their forms agree, SciPy and transformers agree, and mistakes must show."""

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import signal
from transformers.models.qwen3_next import modeling_qwen3_next

import firsttoken.recurrent
from firsttoken.recurrent import (
    discretize,
    gated_delta,
    gated_delta_step,
    linear_attention,
    linear_attention_step,
    ssm,
    ssm_step,
)

FORMS = ["parallel", "recurrent", "chunked"]


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


def test_linear_attention_means_values():
    """Weights are positive and sum to one: a constant value comes out as it went in."""
    q, k, v, _, _ = tensors(9)
    for form in FORMS:
        np.testing.assert_allclose(linear_attention(q, k, np.ones_like(v), form, 4), 1, rtol=1e-12)
        got = linear_attention(q, k, v, form, 4)
        assert (got >= np.minimum.accumulate(v, axis=2) - 1e-12).all()
        assert (got <= np.maximum.accumulate(v, axis=2) + 1e-12).all()


def test_linear_attention_takes_large_inputs():
    """exp of a large number would be inf, and inf times 0 NaN."""
    q, k, v, _, _ = tensors(5)
    for form in FORMS:
        with np.errstate(over="raise", invalid="raise"):
            assert np.isfinite(linear_attention(q, 1000 * abs(k), v, form, 2)).all()


# The gated delta rule


def reference(name, q, k, v, beta, decay, **options):
    """transformers' function: tokens before heads, the logarithm of the decay, a scale of its own.

    It divides queries by √H, which is undone here.
    """
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


@pytest.mark.parametrize("chunk", [1, 5, 64])
@pytest.mark.parametrize("tiny", [1e-300, 5e-324])
def test_gated_delta_survives_decays_that_underflow(tiny, chunk):
    """A token that forgets nearly all, among tokens that forget nothing."""
    q, k, v, beta, decay = tensors(12)
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


@pytest.mark.parametrize("form", ["recurrent", "chunked"])
@pytest.mark.parametrize("n_tokens", [1, 7, 70])
def test_gated_delta_equals_transformers(n_tokens, form):
    inputs = tensors(n_tokens)
    for name in ("torch_recurrent_gated_delta_rule", "torch_chunk_gated_delta_rule"):
        out, _ = reference(name, *inputs)
        np.testing.assert_allclose(gated_delta(*inputs, form, 16), out, atol=1e-5)


def test_gated_delta_state_equals_transformers():
    """Theirs is stored as keys by values, ours as values by keys."""
    inputs = tensors(7)
    _, expected = reference("torch_recurrent_gated_delta_rule", *inputs)
    state = None
    for t in range(7):
        state, _ = gated_delta_step(state, *(x[:, :, t] for x in inputs))
    np.testing.assert_allclose(state.mT, expected, atol=1e-5)


def test_gated_delta_is_its_equation():
    """M ← decay · (M - beta · (M k) kᵀ) + beta · v kᵀ, the output M q, as a product of matrices."""
    q, k, v, beta, decay = (x[0, 0] for x in tensors(9))
    m = np.zeros((5, 4))
    for t in range(9):
        m = decay[t] * m @ (np.eye(4) - beta[t] * np.outer(k[t], k[t]))
        m += beta[t] * np.outer(v[t], k[t])
        got = gated_delta(*(x[None, None, : t + 1] for x in (q, k, v, beta, decay)))
        np.testing.assert_allclose(got[0, 0, -1], m @ q[t], atol=1e-12)


@pytest.mark.parametrize("form", ["recurrent", "chunked"])
def test_orthonormal_keys_store_exactly(form):
    """decay = beta = 1: each of H values is still there when all are written."""
    rng = np.random.default_rng(0)
    keys = np.linalg.qr(rng.normal(size=(2, 3, 4, 4)))[0]
    v, one = rng.normal(size=(2, 3, 4, 5)), np.ones((2, 3, 4))
    written = gated_delta(keys, keys, v, one, one, form, 3)
    np.testing.assert_allclose(written, v, atol=1e-12)  # each right after it was written
    for i in range(4):
        asked = np.broadcast_to(keys[:, :, i : i + 1], keys.shape)
        answers = gated_delta(asked, keys, v, one, one, form, 3)
        np.testing.assert_allclose(answers[:, :, -1], v[:, :, i], atol=1e-12)
        np.testing.assert_allclose(answers[:, :, :i], 0, atol=1e-12)


@pytest.mark.parametrize("form", ["recurrent", "chunked"])
def test_a_key_written_twice_holds_the_second_value(form):
    _, k, v, _, _ = tensors(2)
    k, one = k[:, :, [0, 0]], np.ones((2, 3, 2))
    answers = gated_delta(k, k, v, one, one, form, 2)
    np.testing.assert_allclose(answers, v, atol=1e-12)


def test_beta_zero_only_decays():
    q, k, v, beta, decay = tensors(3)
    state, _ = gated_delta_step(None, *(x[:, :, 0] for x in (q, k, v, beta, decay)))
    new, _ = gated_delta_step(state, *(x[:, :, 1] for x in (q, k, v, 0 * beta, decay)))
    np.testing.assert_array_equal(new, decay[:, :, 1, None, None] * state)
    for form in ("recurrent", "chunked"):
        np.testing.assert_array_equal(gated_delta(q, k, v, 0 * beta, decay, form, 2), 0)


# State-space models


@given(n_tokens=st.integers(0, 40), seed=st.integers(0, 5), form=st.sampled_from(["c", "r"]))
def test_ssm_equals_scipy(n_tokens, seed, form):
    """Re Σ C · h of a system is half the sum of it and its conjugate: a filter with real numbers.

    SciPy writes y before x enters the state; with the new h, x passes at once, by D + Re Σ C · B.
    """
    a, b, c, d = system(seed=seed)
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


@given(n_tokens=st.integers(1, 30), seed=st.integers(0, 3))
def test_real_ssm_equals_dlsim(n_tokens, seed):
    rng = np.random.default_rng(seed)
    a, b, c = rng.uniform(-1, 1, 3), *rng.normal(size=(2, 3))
    a[0] = 0  # a state that forgets at once
    x = rng.normal(size=n_tokens)
    # y of the new state: C (A h + B x)
    plant = (np.diag(a), b[:, None], (c * a)[None], np.array([[c @ b + 0.3]]), 1)
    expected = signal.dlsim(plant, x)[1].ravel()
    for form in ("convolution", "recurrent"):
        np.testing.assert_allclose(ssm(x, a, b, c, 0.3, form), expected, atol=1e-10)


def test_ssm_convolution_does_not_come_round():
    """A transform of T points would bring the end of the response back to the start."""
    one = np.ones(1)
    x = np.zeros(8)
    x[-1] = 1
    np.testing.assert_allclose(ssm(x, one, one, one, 0.0), x, atol=1e-12)


@pytest.mark.parametrize("form", ["convolution", "recurrent"])
def test_ssm_keeps_batches_apart(form):
    x = np.random.default_rng(0).normal(size=(2, 3, 10))
    parameters = system()
    whole = ssm(x, *parameters, form)
    for i in np.ndindex(2, 3):
        np.testing.assert_allclose(whole[i], ssm(x[i], *parameters, form), atol=1e-12)


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


@pytest.mark.parametrize("a", [0.0, 5e-324, -1e-300, -1e-12, 1e-12j])
def test_discretize_has_its_limit_at_zero(a):
    with np.errstate(divide="raise", invalid="raise"):
        got_a, got_b = discretize(np.array([a]), np.array([3.0]), 0.25)
    np.testing.assert_allclose(got_a, 1, rtol=1e-11)
    np.testing.assert_allclose(got_b, 0.75, rtol=1e-11)


def test_discretize_of_half_a_step_twice_is_a_step():
    a, b = np.array([-1.0, -2 + 3j, 0]), np.array([1.0, 2, 3])
    whole_a, whole_b = discretize(a, b, 0.5)
    half_a, half_b = discretize(a, b, 0.25)
    np.testing.assert_allclose(half_a * half_a, whole_a, rtol=1e-12)
    np.testing.assert_allclose(half_a * half_b + half_b, whole_b, rtol=1e-12)


# What all share

CALLS = {
    **{f"linear {form}": (linear_attention, form, 3) for form in FORMS},
    **{f"delta {form}": (gated_delta, form, 5) for form in ("recurrent", "chunked")},
}


@pytest.mark.parametrize("name", CALLS)
def test_no_token_reads_a_later_one(name):
    function, form, n_inputs = CALLS[name]
    inputs = tensors(10)[:n_inputs]
    before = function(*inputs, form=form, chunk=4)
    for t in range(10):
        changed = [x.copy() for x in inputs]
        for x in changed:
            x[:, :, t] = 0.5
        after = function(*changed, form=form, chunk=4)
        np.testing.assert_array_equal(after[:, :, :t], before[:, :, :t])
        assert abs(after[:, :, t] - before[:, :, t]).max() > 1e-3  # but it reads itself


@pytest.mark.parametrize("name", CALLS)
def test_float16_becomes_float32(name):
    function, form, n_inputs = CALLS[name]
    inputs = [x.astype(np.float16) for x in tensors(6)[:n_inputs]]
    kept = [x.copy() for x in inputs]
    assert function(*inputs, form=form, chunk=4).dtype == np.float32
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


@pytest.mark.parametrize(
    ("step", "whole", "n_inputs", "shape"),
    [
        (linear_attention_step, lambda *x: linear_attention(*x, "chunked", 8), 3, (2, 3, 6, 4)),
        (gated_delta_step, lambda *x: gated_delta(*x, "chunked", 8), 5, (2, 3, 5, 4)),
    ],
)
def test_steps_decode_with_a_state_that_does_not_grow(step, whole, n_inputs, shape):
    inputs = tensors(30)[:n_inputs]
    states, outputs = decode(step, inputs, 30)
    np.testing.assert_allclose(outputs, whole(*inputs), atol=1e-11)
    assert {state.shape for state in states} == {shape}
    again, _ = step(states[3], *(x[:, :, 4] for x in inputs))
    np.testing.assert_array_equal(again, states[4])  # a step leaves the old state as it was


def test_ssm_steps_decode_with_a_state_that_does_not_grow():
    x, state = np.random.default_rng(0).normal(size=(2, 30)), None
    whole = ssm(x, *system())
    for t in range(30):
        state, y = ssm_step(state, x[:, t], *system())
        np.testing.assert_allclose(y, whole[:, t], atol=1e-11)
        assert state.shape == (2, 4)


# Mistakes that must show

RULES = {
    "linear": lambda: [
        linear_attention(*tensors(10)[:3], form, 4) - masked(*tensors(10)[:3]) for form in FORMS
    ],
    "delta": lambda: [
        gated_delta(*tensors(10), form, 4)
        - reference("torch_recurrent_gated_delta_rule", *tensors(10))[0]
        for form in ("recurrent", "chunked")
    ],
    "hold": lambda: [
        np.subtract(*pair)
        for pair in zip(
            [x[0] for x in discretize(np.array([-2 + 1j]), np.array([1.0]), 0.3)],
            held(-2 + 1j, 1.0 + 0j, 0.3),
            strict=True,
        )
    ],
    "system": lambda: [
        ssm(np.eye(10), *system(), "convolution") - ssm(np.eye(10), *system(), "recurrent")
    ],
}

MUTANTS = {
    "the new value decays, too": (
        "delta",
        "correction = beta[..., None] * (v - answer)",
        "correction = (decay * beta)[..., None] * (v - answer)",
    ),
    "the answer before the decay is subtracted": (
        "delta",
        "(v - answer)",
        "(v - answer / decay[..., None])",
    ),
    "nothing is subtracted": ("delta", "(v - answer)", "v"),
    "chunk: nothing is subtracted": ("delta", "np.tril(since * (k @ k.mT), -1)", "0 * since"),
    "chunk: a token corrects itself": ("delta", "(k @ k.mT), -1)", "(k @ k.mT))"),
    "chunk: old answers are not subtracted": ("delta", "v - kept * (k @ state.mT)", "v"),
    "chunk: corrections do not decay": ("delta", "(to_end * corrections)", "corrections"),
    "chunk: the old state does not decay": ("delta", "kept[..., -1:, :] * state", "state"),
    "chunk: the state is not carried": ("delta", "state, output[here] =", "_, output[here] ="),
    "a token does not see itself": ("linear", "np.tril(q @ k.mT)", "np.tril(q @ k.mT, -1)"),
    "a token sees the next": ("linear", "np.tril(q @ k.mT)", "np.tril(q @ k.mT, 1)"),
    "the state is not carried": ("linear", "state += v[here].mT @ k[here]", "pass"),
    "the state comes too early": (
        "linear",
        "before = q[here] @ state.mT",
        "before = q[here] @ (state + v[here].mT @ k[here]).mT",
    ),
    "not divided by the sum": ("linear", "mixed[..., :-1] / mixed[..., -1:]", "mixed[..., :-1]"),
    "elu without + 1": ("linear", "np.where(x > 0, x + 1,", "np.where(x > 0, x,"),
    "Euler's step": ("hold", "step_s * mean * B", "step_s * B"),
    "Euler's decay": ("hold", "return np.exp(exponent)", "return 1 + exponent"),
    "y of the old state": (
        "system",
        "return state, (state @ C)",
        "return state, ((state - written) @ C)",
    ),
    "the response comes round": ("system", "size = 2 * n_tokens + 1", "size = n_tokens"),
    "B forgotten in the kernel": ("system", "(C * B) @ powers", "C @ powers"),
}


@pytest.mark.parametrize("rule", RULES)
def test_rules_hold(rule):
    assert max(abs(error).max() for error in RULES[rule]()) < 1e-5


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name, monkeypatch):
    """Each wrong line, in the module's own source, breaks its rule by far."""
    rule, right, wrong = MUTANTS[name]
    source = inspect.getsource(firsttoken.recurrent)
    assert source.count(right) == 1
    mutant = {}
    exec(compile(source.replace(right, wrong), "mutant", "exec"), mutant)
    for function in ("linear_attention", "gated_delta", "discretize", "ssm"):
        monkeypatch.setitem(globals(), function, mutant[function])
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = [abs(error).max() for error in RULES[rule]()]
    assert not max(errors) < 1e-2  # NaN counts as caught


# Arguments


def ones(*shape):
    return np.ones(shape)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linear_attention(*[ones(1, 1, 2, 3)] * 3, "fast"), "form must be one of .*'fast'"),
        (lambda: linear_attention(*[ones(1, 1, 2, 3)] * 3, chunk=0), "chunk .* at least 1, got 0"),
        (lambda: linear_attention(ones(1, 1, 2, 3), ones(1, 1, 2, 4), ones(1, 1, 2, 3)), "q .* k"),
        (lambda: linear_attention(*[ones(1, 1, 2, 3)] * 2, ones(1, 1, 3, 3)), r"v \(1, 1, 3, 3\)"),
        (lambda: linear_attention(*[ones(2, 3)] * 3), r"q \(2, 3\) .* \(B, N, T, H\)"),
        (lambda: gated_delta(*[ones(1, 1, 2, 3)] * 3, *[ones(1, 1, 2)] * 2, "parallel"), "form"),
        (lambda: gated_delta(*[ones(1, 1, 2, 3)] * 3, ones(1, 1, 3), ones(1, 1, 2)), "beta"),
        (lambda: gated_delta(*[ones(1, 1, 2, 3)] * 3, ones(1, 1, 2), ones(1, 1)), "decay"),
        (lambda: ssm(ones(3), ones(2), ones(2), ones(3), 0.0), r"C \(3,\)"),
        (lambda: ssm(ones(3), ones(2, 2), ones(2, 2), ones(2, 2), 0.0), "vectors"),
        (lambda: ssm(ones(3) * 1j, ones(2), ones(2), ones(2), 0.0), "x must be real"),
        (lambda: ssm(np.float64(1), ones(2), ones(2), ones(2), 0.0), r"x must be real, \(…, T\)"),
        (lambda: ssm(ones(3), ones(2), ones(2), ones(2), 0.0, "chunked"), "form"),
        *[
            (lambda step=step: discretize(ones(2), ones(2), step), f"step_s .* got {step}")
            for step in (0.0, -1.0, np.inf, np.nan)
        ],
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("form", ["recurrent", "chunked"])
@pytest.mark.parametrize("bad", [0.0, -0.5, 1.01, np.nan])
def test_decay_is_a_share(bad, form):
    q, k, v, beta, decay = tensors(4)
    decay[1, 2, 3] = bad
    with pytest.raises(ValueError, match=r"decay must be in \(0, 1\]"):
        gated_delta(q, k, v, beta, decay, form)
