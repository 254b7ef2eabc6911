"""Quantising with an eye on the activations: outliers apart, scaled, corrected for, or spread.

Each method makes `x @ w` lose less than rounding w (and x) to the nearest codes does. Weights are
[D, F] here, features times outputs; checkpoints store the transpose.
"""

import math
from dataclasses import replace

import numpy as np

from firsttoken.checks import check_count
from firsttoken.quantization.integers import Quantized, pack, quantize

Array = np.ndarray

_AWQ_EXPONENTS = [i / 20 for i in range(21)]
_GPTQ_DAMPING = 0.01  # of the mean diagonal, as in the paper


def llm_int8_matmul(x: Array, w: Array, threshold: float = 6.0) -> Array:
    """Return x @ w, computed with int8 codes but for the few features that have outliers.

    In large models a handful of features hold values many times larger than the rest, and would
    set the scale of every row of x. Features with any |x| ≥ `threshold` are multiplied in float32;
    the rest of x gets an int8 scale per row, the rest of w one per column. A threshold of infinity
    is plain int8, one of 0 plain float32.

    Shapes: x [T, D]; w [D, F]; result [T, F], float32
    Raises: ValueError for matrices that do not fit, are empty or not finite; a threshold below 0.
    Source: Dettmers et al. 2022, arXiv:2208.07339, sec. 3.2, eq. 8

    >>> x, w = np.array([[100.0, 0.3, 1.0]]), np.array([[0.01], [1.0], [0.0]])
    >>> [f"{llm_int8_matmul(x, w, t)[0, 0]:.2f}" for t in (np.inf, 6.0)]
    ['0.79', '1.30']
    """
    x, w = _matrices(x, w)
    if not threshold >= 0:
        raise ValueError(f"threshold must be at least 0, got {threshold}")
    outlier = (np.abs(x) >= threshold).any(axis=0)  # [D]
    product = x[:, outlier] @ w[outlier]
    if not outlier.all():
        product += _int8_matmul(x[:, ~outlier], w[~outlier])
    return product


def awq_scale(x: Array, w: Array, bits: int, group_size: int | None = None) -> Array:
    """Return a scale per feature that protects the weights which large activations meet.

    A row of w that is multiplied by s before rounding, and divided by it afterwards, loses about
    1/s of what it lost, as long as s does not raise the largest weight of its group; the other rows
    then pay. AWQ tries s = (mean |x|)^α for α from 0, plain rounding, to 1. No weight stays in high
    precision, and the division by s can be done where x is made. The method's second step, which
    clips weights above a smaller scale, is left out.

    Minimises the squared error of x @ w, with w rounded as
    quantize(w · s, bits, axis=1, group_size=group_size) / s.

    Shapes: x [T, D], a calibration set; w [D, F]; result (D,), float32, positive
    Raises: ValueError as `llm_int8_matmul` for matrices, as `quantize` for bits and group_size.
    Source: Lin et al. 2023, arXiv:2306.00978, sec. 3.2

    >>> x, w = np.array([[50.0, 1.0], [50.0, -1.0]]), np.array([[0.3, 0.1], [1.0, -1.0]])
    >>> s = awq_scale(x, w, bits=3)
    >>> bool(s[0] > s[1])
    True
    """
    x, w = _matrices(x, w)
    gram = _gram(x)

    def loss(s: Array) -> float:
        rounded = quantize(w * s[:, None], bits, axis=1, group_size=group_size).dequantize()
        return float(_squared_error(gram, rounded / s[:, None] - w).sum())

    size = np.abs(x).mean(axis=0, dtype=np.float64)
    # Only ratios matter; a feature that is never active gets a small s, not 0.
    size = np.clip(size / size.max(), 1e-4, 1) if size.any() else np.ones_like(size)
    candidates = [(size**exponent).astype(np.float32) for exponent in _AWQ_EXPONENTS]
    return min(candidates, key=loss)  # of equals the first, which is the plainest


def gptq(w: Array, x: Array, bits: int, group_size: int | None = None) -> Quantized:
    """Round the weights one feature after the other, each making up for those before it.

    Once a row of w is rounded, the rows that are not yet change so that x @ w moves least, which
    they can as far as features of x go together. The scales stay those of
    quantize(w, bits, axis=1, group_size=group_size): symmetric, so one of 2^bits codes stays
    unused, which counts where there are four. A column for which rounding to nearest does better
    on the calibration set keeps that.

    Shapes: w [D, F]; x [T, D], a calibration set; the codes: [D, F]
    Raises: ValueError as `llm_int8_matmul` for matrices, as `quantize` for bits and group_size.
    Source: Frantar et al. 2022, arXiv:2210.17323, "The GPTQ algorithm", steps 1 and 3

    >>> w, x = np.array([[0.4], [0.4], [1.0]]), np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> quantize(w, 2, axis=1).codes.ravel().tolist(), gptq(w, x, 2).codes.ravel().tolist()
    ([0, 0, 1], [0, 1, 1])
    """
    x, w = _matrices(x, w)
    gram, nearest = _gram(x), quantize(w, bits, axis=1, group_size=group_size)
    tried = _with_codes(nearest, _corrected_codes(w, nearest, gram))
    loss, loss_nearest = (_squared_error(gram, q.dequantize() - w) for q in (tried, nearest))
    return _with_codes(nearest, np.where(loss < loss_nearest, tried.codes, nearest.codes))


def hadamard(n: int) -> Array:
    """Return an orthogonal matrix whose entries are all ±1/√n: a rotation that spreads outliers.

    (x R)(Rᵀ w) = x w for any orthogonal R, so a model may compute with rotated activations. One
    large feature becomes a little in each of n features, and the scale that all share falls.

    Holds:  for features that stand out alone. Where all are alike the rotation gathers them in one
            outlier (the error of int4 doubles at 3 ± 0.3); normally distributed ones stay as they
            are.
    Shapes: (n, n), float32
    Raises: ValueError unless n is a power of two, or one times p + 1 for a prime p of 3, 7, 11, …
    Source: Ashkboos et al. 2024, arXiv:2404.00456 (QuaRot); Paley 1933, J. Math. Phys. 12,
            for the sizes that are no powers of two

    >>> (hadamard(4)[1] * 2).tolist()
    [1.0, -1.0, 1.0, -1.0]
    """
    n = check_count("n", n, at_least=1)
    return (_signs(n) / np.sqrt(n)).astype(np.float32)


def _matrices(x: Array, w: Array) -> tuple[Array, Array]:
    """Return x and w as float32; raise unless x @ w exists and both are finite."""
    x, w = np.asarray(x, np.float32), np.asarray(w, np.float32)
    if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[0] or not x.size or not w.size:
        raise ValueError(f"x [T, D] and w [D, F] must fit, not empty; got {x.shape} and {w.shape}")
    for name, matrix in (("x", x), ("w", w)):
        if not np.isfinite(matrix).all():
            raise ValueError(f"{name} must be finite, got NaN or infinity")
    return x, w


def _int8_matmul(x: Array, w: Array) -> Array:
    """Multiply codes, then scale. Sums of whole numbers are exact in float64, as in int32."""
    rows, columns = quantize(x, 8, axis=0), quantize(w, 8, axis=1)
    product = rows.codes.astype(np.float64) @ columns.codes  # [T, F]
    return (product * rows.scale * columns.scale.T).astype(np.float32)


def _gram(x: Array) -> Array:
    """Return xᵀx [D, D]: all that a squared error of x @ w depends on."""
    x = x.astype(np.float64)
    return x.T @ x


def _squared_error(gram: Array, error: Array) -> Array:
    """Return |x @ error|² of each column (F,) of an error [D, F] in w."""
    return (error * (gram @ error)).sum(axis=0)


def _corrected_codes(w: Array, nearest: Quantized, gram: Array) -> Array:
    """Round row by row; hand on each row's error to the rows that can make up for it."""
    largest = 2 ** (nearest.bits - 1) - 1
    scale = np.repeat(nearest.scale, len(w) // nearest.scale.shape[1], axis=1).T  # [D, F]
    damping = _GPTQ_DAMPING * np.trace(gram) / len(gram) or 1.0  # 1 where x is all zeros
    inverse = np.linalg.inv(gram + damping * np.eye(len(gram)))
    # Row i of the factor says how the rows from i on move when row i does (Cholesky: step 3).
    factor = np.linalg.cholesky(inverse).T
    rest, codes = w.astype(np.float64), np.empty_like(w)
    for i in range(len(w)):
        codes[i] = np.clip(np.rint(rest[i] / scale[i]), -largest, largest)
        error = (rest[i] - codes[i] * scale[i]) / factor[i, i]
        rest[i + 1 :] -= np.outer(factor[i, i + 1 :], error)
    return codes


def _with_codes(q: Quantized, codes: Array) -> Quantized:
    """Return q with other codes [D, F]; a column is a channel, so columns are stored one by one."""
    stored = (codes.T + 2 ** (q.bits - 1)).astype(np.uint8)
    return replace(q, packed=pack(stored.ravel(), q.bits))


def _signs(n: int) -> Array:
    """Return n · n signs whose rows are orthogonal: Paley's, or twice those of half the size."""
    if n == 1:
        return np.ones((1, 1))
    if n & (n - 1) and n % 4 == 0 and all((n - 1) % d for d in range(2, math.isqrt(n) + 1)):
        return _paley(n - 1)
    if n % 2:
        raise ValueError(f"n must be 2^k or 2^k · (p + 1) with a prime p = 3 mod 4, got odd {n}")
    return np.kron([[1, 1], [1, -1]], _signs(n // 2))


def _paley(p: int) -> Array:
    """Return the Hadamard matrix of order p + 1 that the squares modulo a prime p make."""
    character = np.full(p, -1)
    character[np.arange(1, p) ** 2 % p] = 1
    character[0] = 0
    index = np.arange(p)
    signs = np.eye(p + 1)
    signs[0, 1:], signs[1:, 0] = 1, -1
    signs[1:, 1:] += character[(index[:, None] - index) % p]
    return signs
