"""Layers whose memory does not grow: linear attention, the gated delta rule, state-space models.

Each has a form that reads all tokens at once, for prompts and training, and one that reads one
token after another with a state of fixed size, for decoding. The forms are equal. A function that
ends in `_step` is one token of the second; None stands for the state before the first token.
"""

from collections.abc import Callable

import numpy as np

from firsttoken.checks import check_choice, check_count
from firsttoken.sampling.logits import as_floats

Array = np.ndarray


def linear_attention(
    q: Array, k: Array, v: Array, form: str = "parallel", chunk: int = 64
) -> Array:
    """Return causal attention with weights φ(q)·φ(k) in place of exp(q·k), φ(x) = elu(x) + 1.

    Without the exponential the sum over the tokens can be taken first: Σ v φ(k)ᵀ is a matrix of
    fixed size, and each query reads it. "parallel" masks a matrix of T x T weights as attention
    does, "recurrent" updates the sum token by token, and "chunked" does the first within a chunk
    and the second from chunk to chunk. The weights of a query are divided by their sum.

    Shapes: q, k (B, N, T, H); v and result (B, N, T, Hv). float16 becomes float32.
    Raises: ValueError for shapes that do not fit together, another form, a chunk below 1.
    Source: Katharopoulos et al. 2020, arXiv:2006.16236, eq. 7 and 9, sec. 3.4 (recurrence);
            Yang et al. 2024, arXiv:2312.06635, sec. 2.2 (chunks)

    >>> q, k = np.zeros((1, 1, 3, 1)), np.zeros((1, 1, 3, 1))  # equal weights: plain means
    >>> v = np.array([[[[2.0], [4.0], [9.0]]]])
    >>> [linear_attention(q, k, v, form).ravel().tolist() for form in ("parallel", "recurrent")]
    [[2.0, 3.0, 5.0], [2.0, 3.0, 5.0]]
    """
    check_choice("form", form, ("parallel", "recurrent", "chunked"))
    _check_qkv(q, k, v)
    check_count("chunk", chunk, at_least=1)
    if form == "recurrent":
        return _token_by_token(linear_attention_step, q, k, v)
    q, k, v = _features(q), _features(k), _with_ones(v)
    if form == "parallel":
        return _normalize(_masked_product(q, k, v))

    state = np.zeros((*q.shape[:2], v.shape[3], q.shape[3]), v.dtype)  # [B, N, Hv + 1, H]
    mixed = np.empty_like(v)  # [B, N, T, Hv + 1]
    for start in range(0, q.shape[2], chunk):
        here = np.s_[:, :, start : start + chunk]
        before = q[here] @ state.mT  # what the state holds of earlier chunks
        mixed[here] = before + _masked_product(q[here], k[here], v[here])
        state += v[here].mT @ k[here]
    return _normalize(mixed)


def linear_attention_step(state: Array | None, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Read one more token by linear attention; return the new state and the output.

    The state is Σ (v, 1) φ(k)ᵀ: a value of one more number, always 1, sums the weights.

    Shapes: q, k (…, H); v and output (…, Hv); state (…, Hv + 1, H)
    Source: Katharopoulos et al. 2020, arXiv:2006.16236, eq. 16 to 20

    >>> state, _ = linear_attention_step(None, np.zeros(1), np.zeros(1), np.array([2.0]))
    >>> state, output = linear_attention_step(state, np.zeros(1), np.zeros(1), np.array([4.0]))
    >>> output.tolist(), state.shape
    ([3.0], (2, 1))
    """
    q, k, v = _features(q), _features(k), _with_ones(v)
    written = v[..., :, None] * k[..., None, :]  # […, Hv + 1, H]
    state = written if state is None else state + written
    return state, _normalize(_apply(state, q))


def gated_delta(
    q: Array,
    k: Array,
    v: Array,
    beta: Array,
    decay: Array,
    form: str = "recurrent",
    chunk: int = 64,
) -> Array:
    """Return what queries read from a matrix M that is written by the gated delta rule.

    A token shrinks M by `decay`, looks up what M now answers to its key, and corrects that by the
    share `beta` towards its value: M ← decay · (M - beta · (M k) kᵀ) + beta · v kᵀ. The output is
    M q. For keys of length 1 and beta = 1 the new M answers k with v, whatever it said before.
    Keys that make beta · |k|² larger than 2 turn the correction into growth.

    "recurrent" goes token by token. "chunked" finds the corrections of a whole chunk by solving one
    triangular system, and then needs products of matrices only.

    Shapes: q, k (B, N, T, H); v and result (B, N, T, Hv); beta, decay (B, N, T). float16 becomes
            float32.
    Raises: ValueError for shapes that do not fit together, a decay outside (0, 1], another form, a
            chunk below 1.
    Source: Yang, Kautz & Hatamizadeh 2024, arXiv:2412.06464, eq. 10 and sec. 3.3

    >>> k = np.ones((1, 1, 2, 1))  # twice the same key: the second value replaces the first
    >>> v, one = np.array([[[[5.0], [7.0]]]]), np.ones((1, 1, 2))
    >>> gated_delta(k, k, v, beta=one, decay=one).ravel().tolist()
    [5.0, 7.0]
    """
    check_choice("form", form, ("recurrent", "chunked"))
    _check_qkv(q, k, v)
    check_count("chunk", chunk, at_least=1)
    for name, x in (("beta", beta), ("decay", decay)):
        if x.shape != q.shape[:3]:
            raise ValueError(f"{name} {x.shape} must be (B, N, T) = {q.shape[:3]}")
    if not ((decay > 0) & (decay <= 1)).all():
        raise ValueError("decay must be in (0, 1], got a number outside or NaN")
    if form == "recurrent":
        return _token_by_token(gated_delta_step, q, k, v, beta, decay)

    q, k, v, beta = (as_floats(x) for x in (q, k, v, beta))
    # The product of a chunk's decays can underflow, its logarithm cannot. It can be large, and
    # differences of large numbers lose digits: float64.
    log_decay = np.log(decay.astype(np.float64))
    state = np.zeros((*q.shape[:2], v.shape[3], q.shape[3]), v.dtype)  # [B, N, Hv, H]
    output = np.empty_like(v)  # [B, N, T, Hv]
    for start in range(0, q.shape[2], chunk):
        here = np.s_[:, :, start : start + chunk]
        state, output[here] = _gated_delta_chunk(
            state, q[here], k[here], v[here], beta[here], log_decay[here]
        )
    return output


def gated_delta_step(
    state: Array | None, q: Array, k: Array, v: Array, beta: Array, decay: Array
) -> tuple[Array, Array]:
    """Read one more token by the gated delta rule; return the new state and the output.

    Shapes: q, k (…, H); v and output (…, Hv); beta, decay (…); state (…, Hv, H)
    Source: Yang, Kautz & Hatamizadeh 2024, arXiv:2412.06464, eq. 10

    >>> k, one = np.array([1.0]), np.array(1.0)
    >>> state, _ = gated_delta_step(None, k, k, np.array([8.0]), one, one)
    >>> gated_delta_step(state, k, k, np.array([0.0]), beta=0 * one, decay=one / 2)
    (array([[4.]]), array([4.]))
    """
    q, k, v, beta, decay = (as_floats(x) for x in (q, k, v, beta, decay))
    if state is None:
        state = np.zeros((*v.shape, k.shape[-1]), v.dtype)
    state = decay[..., None, None] * state  # […, Hv, H]
    answer = _apply(state, k)  # […, Hv]
    correction = beta[..., None] * (v - answer)
    state = state + correction[..., :, None] * k[..., None, :]
    return state, _apply(state, q)


def ssm(x: Array, A: Array, B: Array, C: Array, D: float, form: str = "convolution") -> Array:
    """Return the output of a diagonal linear state-space model.

    The state has n numbers that do not meet: h ← A · h + B · x, and y = Re Σ C · h + D · x with the
    new h. An input t steps ago arrives with the factor Re Σ C · Aᵗ · B, so that the output is also
    a convolution, which the Fourier transform computes in T log T operations.

    Holds:  both forms are equal for |A| <= 1. Beyond, the powers of A outgrow the digits of the
            transform: take "recurrent".
    Shapes: x (…, T), real; A, B, C (n,), real or complex; D scalar; result (…, T)
    Raises: ValueError for other shapes or another form.
    Source: Gu et al. 2021, arXiv:2111.00396, eq. 4 and 5; Gu et al. 2022, arXiv:2206.11893, sec. 3

    >>> half = np.array([0.5])
    >>> ssm(np.array([8.0, 0.0, 0.0]), A=half, B=1 + 0 * half, C=1 + 0 * half, D=0.0).round(12)
    array([8., 4., 2.])
    """
    check_choice("form", form, ("convolution", "recurrent"))
    if A.ndim != 1 or not A.shape == B.shape == C.shape:
        raise ValueError(f"A {A.shape}, B {B.shape}, C {C.shape} must be vectors of one size")
    if x.ndim == 0 or np.iscomplexobj(x):
        raise ValueError(f"x must be real, (…, T), got {x.dtype} {x.shape}")
    x = as_floats(x)
    n_tokens = x.shape[-1]
    if form == "recurrent":
        y = np.empty(x.shape, np.result_type(x, A.real, B.real, C.real))
        state: Array | None = None
        for t in range(n_tokens):
            state, y[..., t] = ssm_step(state, x[..., t], A, B, C, D)
        return y

    powers = np.vander(A, n_tokens, increasing=True)  # [n, T]: 1, A, A², …
    kernel = ((C * B) @ powers).real  # [T]
    size = 2 * n_tokens + 1  # room for all shifts: nothing comes round to the start
    spectrum = np.fft.rfft(x, size) * np.fft.rfft(kernel, size)
    return np.fft.irfft(spectrum, size)[..., :n_tokens] + D * x


def ssm_step(
    state: Array | None, x: Array, A: Array, B: Array, C: Array, D: float
) -> tuple[Array, Array]:
    """Read one more input by a diagonal state-space model; return the new state and the output.

    Shapes: x and output (…); A, B, C (n,); D scalar; state (…, n)
    Source: Gu et al. 2021, arXiv:2111.00396, eq. 3

    >>> one = np.ones(1)
    >>> state, _ = ssm_step(None, np.array(8.0), one / 2, one, one, D=0.0)
    >>> ssm_step(state, np.array(0.0), one / 2, one, one, D=0.0)
    (array([4.]), np.float64(4.0))
    """
    written = B * np.asarray(x)[..., None]
    state = written if state is None else A * state + written
    return state, (state @ C).real + D * x


def discretize(A: Array, B: Array, step_s: float) -> tuple[Array, Array]:
    """Return the A and B of steps of `step_s` for h' = A · h + B · x, with x constant in a step.

    The state decays by exp(A Δ) in a step; what the input adds decays on the way, and its integral
    is (exp(A Δ) - 1) / A · B. As A goes to 0, that goes to Δ · B.

    Holds:  exactly for that x. One that moves within a step leaves the state behind, by an error
            that halves with the step.
    Shapes: A, B and results (n,), real or complex
    Units: A 1/s, step_s seconds
    Raises: ValueError for a step that is not above 0 or not finite.
    Source: Gu & Dao 2023, arXiv:2312.00752, eq. 4 (zero-order hold)

    >>> discretize(np.array([-np.log(2.0), 0.0]), np.ones(2), step_s=1.0)[0].round(12).tolist()
    [0.5, 1.0]
    """
    if not 0 < step_s < np.inf:
        raise ValueError(f"step_s must be above 0 and finite, got {step_s}")
    exponent = A * float(step_s)
    mean = np.ones_like(exponent)  # of exp over the step, (exp(z) - 1) / z: 1 in the limit z = 0
    # Below the smallest normal number the limit holds, and a complex division would overflow.
    far = np.abs(exponent) >= np.finfo(float).tiny
    np.divide(np.expm1(exponent), exponent, out=mean, where=far)
    return np.exp(exponent), step_s * mean * B


def _gated_delta_chunk(
    state: Array, q: Array, k: Array, v: Array, beta: Array, log_decay: Array
) -> tuple[Array, Array]:
    """Read a chunk of c tokens at once; return the new state and the outputs [B, N, c, Hv].

    After t tokens M is the old one, decayed, and each correction u_i k_iᵀ so far, decayed since.
    What M answers to k_t before its own correction is thus linear in the corrections before it.
    """
    shrunk = np.cumsum(log_decay, axis=-1)  # since the chunk began, up to each token
    since = shrunk[..., :, None] - shrunk[..., None, :]  # [B, N, c, c]: from i, the column, to t
    since = np.tril(np.exp(np.minimum(since, 0))).astype(v.dtype)  # above the diagonal: no sense
    kept = np.exp(shrunk)[..., None].astype(v.dtype)  # [B, N, c, 1]

    beta = beta[..., None]
    target = beta * (v - kept * (k @ state.mT))  # corrections if no token met another
    met = beta * np.tril(since * (k @ k.mT), -1)  # [B, N, c, c]
    corrections = np.linalg.solve(np.eye(k.shape[2], dtype=v.dtype) + met, target)

    output = kept * (q @ state.mT) + (since * (q @ k.mT)) @ corrections
    to_end = since[..., -1, :, None]  # [B, N, c, 1]
    state = kept[..., -1:, :] * state + (to_end * corrections).mT @ k
    return state, output


def _token_by_token(step: Callable[..., tuple[Array, Array]], *inputs: Array) -> Array:
    """Run a step over axis 2 of q, k, v and what else it reads."""
    inputs = tuple(as_floats(x) for x in inputs)
    output = np.empty_like(inputs[2])
    state: Array | None = None
    for t in range(output.shape[2]):
        state, output[:, :, t] = step(state, *(x[:, :, t] for x in inputs))
    return output


def _apply(state: Array, x: Array) -> Array:
    """Multiply a matrix (…, Hv, H) with a vector (…, H)."""
    return np.vecdot(state, x[..., None, :])


def _features(x: Array) -> Array:
    """Return elu(x) + 1: positive, x + 1 from 0 on, exp(x) below."""
    x = as_floats(x)
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def _with_ones(v: Array) -> Array:
    """Give each value one more number, 1, whose weighted sum is the sum of the weights."""
    v = as_floats(v)
    return np.concatenate([v, np.ones_like(v[..., :1])], axis=-1)


def _normalize(mixed: Array) -> Array:
    """Divide weighted sums by the sum of the weights, which comes last."""
    return mixed[..., :-1] / mixed[..., -1:]


def _masked_product(q: Array, k: Array, v: Array) -> Array:
    """Mix the values of a token and of those before it, by q·k: [B, N, T, Hv]."""
    weights = np.tril(q @ k.mT)  # [B, N, T, T]
    return weights @ v


def _check_qkv(q: Array, k: Array, v: Array) -> None:
    if q.ndim != 4 or q.shape != k.shape or v.ndim != 4 or v.shape[:3] != q.shape[:3]:
        raise ValueError(
            f"q {q.shape} and k {k.shape} must be (B, N, T, H), v {v.shape} (B, N, T, Hv)"
        )
