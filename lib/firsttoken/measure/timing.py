"""Timing functions in turn, so that a slow minute of the machine hits all alike."""

import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from tqdm import tqdm


def interleaved(
    runs: Mapping[tuple, Callable],
    rounds: int,
    wait: Callable[[], None],
    clock: Callable[[], float],
    what: str,
    limit_s: float = math.inf,
) -> dict[tuple, list[float]]:
    """Time every function once a round, after one untimed call each.

    Past the limit no further round begins; there is always one.
    """
    times: dict[tuple, list[float]] = {key: [] for key in runs}
    begun = clock()
    with tqdm(total=(rounds + 1) * len(runs), desc=what) as bar:
        for turn in range(rounds + 1):
            if turn > 1 and clock() - begun > limit_s:
                break
            for key, run in runs.items():
                wait()
                start = clock()
                run()
                wait()
                if turn:
                    times[key].append(clock() - start)
                bar.update()
    return times


def median_and_spread(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the median, and the distance of the quartiles as a share of it."""
    first, median, third = np.percentile(seconds, (25, 50, 75))
    return float(median), float((third - first) / median)


def core_share(run: Callable[[], object]) -> float:
    """Return which share of its threads' cores a parallel function got."""
    import torch

    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(3):
        run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return cpu / wall / torch.get_num_threads()
