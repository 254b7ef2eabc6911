"""What speculative decoding brings: tokens a pass, speed, and the best number of guesses."""

from collections.abc import Callable, Sequence

import numpy as np

from firsttoken.architectures import Architecture
from firsttoken.checks import check_count
from firsttoken.hardware import Accelerator
from firsttoken.roofline import model_cost
from firsttoken.speculative.verification import Round
from firsttoken.units import bytes_per_element

Array = np.ndarray


def expected_tokens(alpha: float | Array, gamma: int) -> float | Array:
    """Return how many tokens a pass of the target yields on average: 1 + α + … + α^γ.

    α is the probability that a drafted token is kept, the same and independent at every position;
    the i-th is reached only if all before it were kept. For α < 1 the sum is
    (1 - α^(γ+1)) / (1 - α).

    Holds:  for one α. Where texts differ, their mean α gives too few tokens (for halves of 0.5 and
            0.9 and γ = 4, 2.77 in place of 3.02); where α falls along the guesses, the first one
            gives too many.
    Shapes: alpha: a number or an array; result alike
    Units:  tokens per pass
    Raises: ValueError for an alpha outside 0 … 1 and a gamma that is no count.
    Source: Leviathan et al. 2023, arXiv:2211.17192, eq. 1

    >>> round(expected_tokens(0.8, 4), 4)
    3.3616
    """
    alpha = np.asarray(alpha, dtype=np.float64)
    if not np.all((alpha >= 0) & (alpha <= 1)):
        raise ValueError(f"alpha must lie in 0 … 1, got {alpha}")
    check_count("gamma", gamma)
    total = (alpha[..., None] ** np.arange(gamma + 1)).sum(axis=-1)
    return total if total.ndim else float(total)


def speedup(
    alpha: float | Array,
    gamma: int,
    cost_ratio: float,
    verify_cost: float | Callable[[int], float] = 1.0,
) -> float | Array:
    """Return how many times faster than plain decoding it is to draft γ tokens per pass.

    `cost_ratio` is the draft's step in steps of the target, measured: not a ratio of weights.
    `verify_cost` is a pass over γ+1 tokens in steps of the target, a number or a function of γ. It
    is 1 where reading the weights is all that costs, and grows where arithmetic begins to.
    Both depend on the batch and on the length of the texts: see `roofline_costs`. What a loop does
    besides, and reading the prompt with both models, is left out, so that it comes out too high;
    for α, see `expected_tokens`.

    Below 1 it is a slow-down. γ = 0 is plain decoding: 1.

    Shapes: alpha: a number or an array; result alike
    Raises: ValueError as `expected_tokens`, for a negative cost_ratio, a verify_cost not above 0.
    Source: Leviathan et al. 2023, arXiv:2211.17192, theorem 3.8 (there verify_cost is 1)

    >>> round(speedup(0.8, 4, 0.15), 2), round(speedup(0.2, 4, 0.15), 2)
    (2.1, 0.78)
    """
    tokens = expected_tokens(alpha, gamma)
    if not cost_ratio >= 0:
        raise ValueError(f"cost_ratio must not be negative, got {cost_ratio}")
    if gamma == 0:
        return tokens  # one per pass
    checking = verify_cost(gamma) if callable(verify_cost) else verify_cost
    if not checking > 0:
        raise ValueError(f"verify_cost must be above 0, got {checking} at gamma {gamma}")
    return tokens / (checking + gamma * cost_ratio)


def best_gamma(
    alpha: float,
    cost_ratio: float,
    verify_cost: float | Callable[[int], float] = 1.0,
    max_gamma: int = 32,
) -> int:
    """Return the γ in 0 … max_gamma of the largest `speedup`, the smaller of equal ones.

    It is 0 where none beats 1.

    With a verify_cost of 1 some γ beats plain decoding if and only if α > cost_ratio.

    Holds:  for one α. Where it falls along the guesses, γ is too large (6 in place of 3 where 0.8
            falls by 15 % each time, at a cost_ratio of 0.1); where texts differ, their mean gives
            one that is too small.
    Units:  tokens
    Raises: ValueError as `speedup`.
    Source: Leviathan et al. 2023, arXiv:2211.17192, sec. 3.5 and corollary 3.9

    >>> [best_gamma(alpha, cost_ratio=0.15) for alpha in (0.1, 0.5, 0.7, 0.8, 0.9)]
    [0, 2, 3, 5, 8]
    """
    check_count("max_gamma", max_gamma)
    return max(range(max_gamma + 1), key=lambda g: speedup(alpha, g, cost_ratio, verify_cost))


def roofline_costs(
    target: Architecture,
    draft: Architecture,
    accelerator: Accelerator,
    batch: int,
    context: int,
    gamma: int,
    dtype: str = "bf16",
) -> tuple[float, float]:
    """Return (cost_ratio, verify_cost) for `speedup`: what the roofline says of a batch.

    Linear layers and attention follow each other, each waiting for its arithmetic or for its
    bytes. A draft has a cache of its own. So cost_ratio is the ratio of the weights for one reader
    of a short text, and goes towards that of the caches with more readers and longer texts;
    verify_cost grows where γ+1 tokens of each reader keep the arithmetic busy.

    It holds where reading and computing are all that costs. Starting the kernels of a small draft
    may take longer than they run: then measure.

    context:    the tokens that a step attends to, the new one among them, in each of `batch` texts

    Units:  steps of the target
    Raises: ValueError for a batch or context below 1, a gamma that is no count, a dtype without a
            rate.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> from firsttoken.hardware import ACCELERATORS
    >>> pair = ARCHITECTURES["Llama-3.1-8B"], ARCHITECTURES["Llama-3.2-1B"]
    >>> for batch, context in ((1, 64), (64, 4096), (1024, 64)):
    ...     c, check = roofline_costs(*pair, ACCELERATORS["H100-SXM"], batch, context, gamma=4)
    ...     print(f"c {c:.2f}, a check {check:.2f} steps")
    c 0.15, a check 1.00 steps
    c 0.22, a check 1.00 steps
    c 0.18, a check 4.44 steps
    """

    def pass_s(arch: Architecture, n_new: int) -> float:
        cost = model_cost(arch, batch, n_new, context + n_new - 1, dtype, dtype)
        flops = 2 * batch * n_new * arch.n_matmul_params
        n_bytes = arch.n_touched_params(batch * n_new) * bytes_per_element(dtype)
        parts = (flops, n_bytes), (cost.flops - flops, cost.bytes - n_bytes)
        rate = accelerator.peak(dtype)
        return sum(max(f / rate, b / accelerator.bandwidth) for f, b in parts)

    check_count("batch", batch, at_least=1)
    check_count("context", context, at_least=1)
    check_count("gamma", gamma)
    step_s = pass_s(target, 1)
    return pass_s(draft, 1) / step_s, pass_s(target, 1 + gamma) / step_s


def acceptance_by_position(rounds: Sequence[Round]) -> tuple[Array, Array]:
    """Return (alpha, reached): how often the i-th drafted token was kept, if all before it were.

    Shapes: alpha, reached: (γ,) for the largest γ; alpha is NaN at positions never reached
    Units:  alpha: a frequency; reached: rounds
    Raises: ValueError for a round that accepted more than was drafted.

    >>> alpha, reached = acceptance_by_position([Round(2, 2), Round(2, 0), Round(2, 1)])
    >>> alpha.round(2).tolist(), reached.tolist()
    ([0.67, 0.5], [3, 2])
    """
    drafted, accepted = np.array(rounds, dtype=np.int64).reshape(-1, 2).T
    if np.any(accepted > drafted):
        raise ValueError(f"rounds accept more than was drafted: {rounds}")
    position = np.arange(drafted.max(initial=0))[:, None]
    reached = ((position < drafted) & (position <= accepted)).sum(axis=1)
    kept = (position < accepted).sum(axis=1)
    alpha = np.divide(kept, reached, out=np.full(len(reached), np.nan), where=reached > 0)
    return alpha, reached
