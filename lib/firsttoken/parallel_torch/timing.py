"""How long a collective takes here, and whether latency and bandwidth explain it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from firsttoken.checks import check_count
from firsttoken.parallel import all_gather_s, fit_link, ring_all_reduce_s
from firsttoken.parallel_torch.processes import Workers
from firsttoken.parallel_torch.wire import Wire

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class CollectiveTimes:
    """Times of one collective, and those that a link fitted on two of the sizes predicts.

    `seconds` are lower quartiles over the rounds; `fitted_on` are the indices of the two sizes.

    Units: bytes (as the closed forms take them), seconds, bytes/s
    """

    name: str
    n: int
    n_bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    predictions: tuple[float, ...]
    fitted_on: tuple[int, int]
    latency_s: float
    link_bandwidth: float

    @property
    def errors(self) -> tuple[float, ...]:
        """The relative error of each prediction; 0 for the two sizes of the fit."""
        pairs = zip(self.predictions, self.seconds, strict=True)
        return tuple(predicted / seconds - 1 for predicted, seconds in pairs)


def time_collective(
    workers: Workers,
    n: int,
    n_bytes: Sequence[int],
    name: str = "all_reduce",
    rounds: int = 20,
    fitted_on: tuple[int, int] = (0, -1),
) -> CollectiveTimes:
    """Time a collective of `firsttoken.parallel_torch` over sizes, and predict all from two.

    All processes start a round together; it takes as long as the slowest of them.

    Raises: ValueError for an unknown collective, sizes that are not whole numbers of float32 on
            every process, times that do not grow from the one size of the fit to the other, and as
            `Workers.call`.
    """
    if name not in COLLECTIVES:
        raise ValueError(f"name {name!r} is unknown; expected one of {', '.join(COLLECTIVES)}")
    check_count("n", n, at_least=2)
    check_count("rounds", rounds, at_least=1)
    for size in n_bytes:
        if check_count("n_bytes", size) % (4 * n):
            raise ValueError(f"n_bytes must be multiples of 4 · n = {4 * n}, got {size}")
    taken = workers.call(collective_seconds, name, list(n_bytes), rounds, n=n)
    slowest = np.max(taken, axis=0)  # [sizes, rounds]
    seconds = np.quantile(slowest, 0.25, axis=1)
    low, high = (index % len(n_bytes) for index in fitted_on)
    n_passes, predict = (2, ring_all_reduce_s) if name == "all_reduce" else (1, all_gather_s)
    small, large = ((n_bytes[index], float(seconds[index])) for index in (low, high))
    latency_s, bandwidth = fit_link(n, small, large, n_passes)
    # A fit may cut the axis below zero; the closed forms take no negative latency.
    latency_s = max(0.0, latency_s)
    return CollectiveTimes(
        name=name,
        n=n,
        n_bytes=tuple(n_bytes),
        seconds=tuple(map(float, seconds)),
        predictions=tuple(predict(size, n, bandwidth, latency_s) for size in n_bytes),
        fitted_on=(low, high),
        latency_s=latency_s,
        link_bandwidth=bandwidth,
    )


def collective_seconds(
    wire: Wire, name: str, n_bytes: Sequence[int], rounds: int
) -> list[list[float]]:
    """Return the seconds of each size and round on this process, after one round to warm up."""
    result = []
    for size in n_bytes:
        whole = torch.ones(size // 4)
        part = whole[: len(whole) // wire.n]
        parts, rows = [part] * wire.n, [len(part)] * wire.n
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": partial(wire.all_reduce, whole),
            "reduce_scatter": partial(wire.reduce_scatter, whole),
            "all_gather": partial(wire.all_gather, part),
            "all_to_all": partial(wire.all_to_all, parts, rows),
        }
        seconds = []
        for _ in range(rounds + 1):
            wire.all_reduce(torch.zeros(1))  # all are here
            start = time.perf_counter()
            calls[name]()
            seconds.append(time.perf_counter() - start)
        result.append(seconds[1:])
    return result
