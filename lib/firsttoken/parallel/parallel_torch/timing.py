"""How long a collective takes here, and whether latency and bandwidth explain it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from firsttoken.checks import check_count
from firsttoken.parallel.collectives import all_gather_s, fit_link, ring_all_reduce_s
from firsttoken.parallel.parallel_torch.communicator import Communicator
from firsttoken.parallel.parallel_torch.processes import Workers

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class CollectiveTimes:
    """Times of one collective, and those that a link fitted on two of the sizes predicts.

    `seconds` are lower quartiles over the rounds; `fitted_on` are the indices of the two sizes,
    None where the link was given.

    Units: bytes (as the closed forms take them), seconds, bytes/s
    """

    name: str
    n: int
    n_bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    predictions: tuple[float, ...]
    fitted_on: tuple[int, int] | None
    latency_s: float
    link_bandwidth: float

    @property
    def errors(self) -> tuple[float, ...]:
        """The relative error of each prediction; about 0 for the two sizes of the fit."""
        pairs = zip(self.predictions, self.seconds, strict=True)
        return tuple(predicted / seconds - 1 for predicted, seconds in pairs)


def time_collective(
    workers: Workers,
    n: int,
    n_bytes: Sequence[int],
    name: str = "all_reduce",
    rounds: int = 20,
    fitted_on: tuple[int, int] = (0, -1),
    link: tuple[float, float] | None = None,
) -> CollectiveTimes:
    """Time a collective over sizes, and predict all of them from two.

    All processes start together, and a collective takes as long as the slowest of them. `link`,
    (latency_s, link_bandwidth) of another fit, is taken instead of one: does the formula also know
    what another number of processes does?

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
    n_passes, predict = (2, ring_all_reduce_s) if name == "all_reduce" else (1, all_gather_s)
    fitted = None if link else (fitted_on[0] % len(n_bytes), fitted_on[1] % len(n_bytes))
    if fitted is not None:
        small, large = ((n_bytes[index], float(seconds[index])) for index in fitted)
        link = fit_link(n, small, large, n_passes)
    assert link is not None
    # A fit may cut the axis below zero; the closed forms take no negative latency.
    latency_s, bandwidth = max(0.0, link[0]), link[1]
    return CollectiveTimes(
        name=name,
        n=n,
        n_bytes=tuple(n_bytes),
        seconds=tuple(map(float, seconds)),
        predictions=tuple(predict(size, n, bandwidth, latency_s) for size in n_bytes),
        fitted_on=fitted,
        latency_s=latency_s,
        link_bandwidth=bandwidth,
    )


def collective_seconds(
    comm: Communicator, name: str, n_bytes: Sequence[int], rounds: int
) -> list[list[float]]:
    """Return the seconds of each size and round on this process, after one round to warm up.

    The sizes come in turn, so that a busy moment of the machine hits all of them.
    """
    calls: list[Callable[[], object]] = []
    for size in n_bytes:
        whole = torch.ones(size // 4)
        part = whole[: len(whole) // comm.n]
        ways: dict[str, Callable[[], object]] = {
            "all_reduce": partial(comm.all_reduce, whole),
            "reduce_scatter": partial(comm.reduce_scatter, whole),
            "all_gather": partial(comm.all_gather, part),
            "all_to_all": partial(comm.all_to_all, [part] * comm.n, [len(part)] * comm.n),
        }
        calls.append(ways[name])
    result: list[list[float]] = [[] for _ in calls]
    for index in range(rounds + 1):
        for call, seconds in zip(calls, result, strict=True):
            comm.all_reduce(torch.zeros(1))  # all are here
            start = time.perf_counter()
            call()
            if index:
                seconds.append(time.perf_counter() - start)
    return result
