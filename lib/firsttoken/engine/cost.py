"""What an engine's steps cost: timed, and fitted as a cost for the simulator."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from firsttoken.batching import StepRecord
from firsttoken.engine.engine import Engine
from firsttoken.models.protocols import Model
from firsttoken.sampling import SamplingParams


@dataclass(frozen=True)
class MeasuredCost:
    """Seconds of an engine's step, as a sum over what it computes: a cost for `simulate`.

    step_s for any step; token_s per new token, sequence_s per sequence, key_s per token whose keys
    and values a sequence reads, pair_s per pair of a new token and one it might read, in prompts.
    (A decoding sequence has as many pairs as keys.)

    Holds:  for sizes like those it was fitted on. A step bends where arithmetic begins to decide:
            fitted below the bend, it is too short beyond (half at twice the bend), and fitted
            across, too long at the bend.
    Units:  seconds

    >>> cost = MeasuredCost(step_s=1.0, token_s=0.1, sequence_s=0.0, key_s=0.01, pair_s=0.0)
    >>> round(cost([(8, 2)], [5, 5]), 6)  # 10 tokens, 20 keys
    2.2
    """

    step_s: float
    token_s: float
    sequence_s: float
    key_s: float
    pair_s: float

    def __call__(self, prefills: Sequence[tuple[int, int]], decodes: Sequence[int]) -> float:
        """Return the seconds of a step; the arguments are those of a cost in `simulate`."""
        rates = self.step_s, self.token_s, self.sequence_s, self.key_s, self.pair_s
        return sum(rate * n for rate, n in zip(rates, _work(prefills, decodes), strict=True))


def _work(prefills: Sequence[tuple[int, int]], decodes: Sequence[int]) -> tuple[int, ...]:
    """Return how many steps (one), tokens, sequences, keys, and pairs in prompts there are."""
    return (
        1,
        sum(new for new, _ in prefills) + len(decodes),
        len(prefills) + len(decodes),
        sum(new + before for new, before in prefills) + sum(decodes),
        sum(new * (new + before) for new, before in prefills),
    )


def record_steps(engine: Engine) -> list[tuple[list[tuple[int, int]], list[int], float]]:
    """Return a list that fills with (prefills, decodes, seconds) of each step from now on.

    Prefills and decodes are what `simulate` hands to a cost. Takes the place of `on_step`.
    """
    steps = []

    def note(record: StepRecord) -> None:
        prefills = [(new, before) for _, new, before in record.prefills]
        decodes = []
        for request_id in record.decodes:
            new, attended = engine.last_pass[request_id]
            if new == 1:
                decodes.append(attended)
            else:  # a check of guesses costs what a piece of a prompt does
                prefills.append((new, attended - new))
        steps.append((prefills, decodes, record.end_s - record.start_s))

    engine.on_step = note
    return steps


def fit_cost(
    steps: Iterable[tuple[Sequence[tuple[int, int]], Sequence[int], float]],
) -> MeasuredCost:
    """Return the cost that fits steps (prefills, decodes, seconds) with the least squared errors.

    Errors count relative to the step's seconds, so that short steps matter as much as long ones.
    No rate is negative: those that would be are zero.

    Holds:  as `MeasuredCost`. Where two counts only grow together, their rates are shared out by
            chance: steps in which they part come out too short or too long.
    Raises: ValueError for fewer steps than rates, and a step that took no time.

    >>> cost = MeasuredCost(1.0, 0.5, 0.25, 0.125, 0.0625)
    >>> shapes = [([], [n] * n) for n in range(1, 9)] + [([(n, 3)], []) for n in range(1, 9)]
    >>> fitted = fit_cost((*shape, cost(*shape)) for shape in shapes)
    >>> [round(rate, 6) for rate in (fitted.step_s, fitted.token_s, fitted.pair_s)]
    [1.0, 0.5, 0.0625]
    """
    from scipy.optimize import nnls  # takes a while to import, and only fits need it

    steps = list(steps)
    work = np.array([_work(prefills, decodes) for prefills, decodes, _ in steps], dtype=float)
    seconds = np.array([s for _, _, s in steps])
    if len(steps) < 5 or not (seconds > 0).all():
        raise ValueError(f"steps: {len(steps)}, expected at least 5, all of positive seconds")
    rows = work / seconds[:, None]  # of each step, what adds up to 1
    scale = rows.max(axis=0)  # or rounding would drown the small rates
    scale[scale == 0] = 1
    rates, _ = nnls(rows / scale, np.ones(len(rows)))
    return MeasuredCost(*(rates / scale).tolist())


def measure_cost(
    model: Model,
    max_batch: int = 16,
    token_budget: int | None = None,
    n_prompt: int = 256,
    n_output: int = 64,
    params: SamplingParams | None = None,
    rounds: int = 5,
    seed: int = 0,
) -> MeasuredCost:
    """Time an engine's steps on random texts, and return the cost that fits them.

    Twice `max_batch` requests wait from the start, with lengths spread up to `n_prompt` and
    `n_output`: the batch is full first and runs empty at the end, so that all sizes occur. Every
    round has the same steps, and the median of each step's times is fitted.

    Units:  tokens
    Raises: ValueError as `Engine` and `fit_cost`.
    """
    params = SamplingParams(temperature=0.0) if params is None else params
    rng = np.random.default_rng(seed)
    texts = [
        rng.integers(model.arch.vocab_size, size=n).tolist()
        for n in rng.integers(1, n_prompt + 1, size=2 * max_batch)
    ]
    lengths = rng.integers(1, n_output + 1, size=len(texts)).tolist()
    n_blocks = max_batch * math.ceil((n_prompt + n_output) / 16)
    runs = []
    for _ in range(rounds):
        engine = Engine(model, n_blocks, 16, max_batch, token_budget)
        runs.append(record_steps(engine))
        for text, n in zip(texts, lengths, strict=True):
            engine.submit(text, replace(params, max_tokens=n), ignore_eos=True)
        engine.run()
    medians = np.median([[seconds for *_, seconds in steps] for steps in runs], axis=0)
    shapes = [(prefills, decodes) for prefills, decodes, _ in runs[0]]
    return fit_cost((*shape, s) for shape, s in zip(shapes, medians.tolist(), strict=True))
