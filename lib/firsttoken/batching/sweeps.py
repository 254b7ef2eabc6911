"""Many runs of the simulator: every setting at every rate."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tqdm import tqdm

from firsttoken.batching.records import Request
from firsttoken.batching.scheduler import StepCost
from firsttoken.batching.simulator import simulate
from firsttoken.metrics import SLO, Summary, summarize


def sweep(
    settings: Mapping[str, Mapping[str, Any]],
    rates: Sequence[float],
    trace: Callable[[float], Iterable[Request]],
    cost: StepCost,
    *,
    slo: SLO | None = None,
    n_jobs: int | None = -1,
    progress: bool = True,
) -> dict[tuple[str, float], Summary]:
    """Simulate every setting at every rate; return the summaries by (name of setting, rate).

    A setting holds the arguments of `simulate` beside requests and cost; `trace` makes the requests
    of a rate. Give it a generator of its own at each call, and every setting meets the same ones.

    The runs share all cores, or `n_jobs` processes, each with its own copy of what is passed; with
    `progress` a bar shows how many are done. They go wherever joblib is told to send them: inside
    `with joblib.parallel_config(backend="dask"):` to the current Dask cluster, and with "ray" to a
    Ray cluster, where the bar moves only when all are done.

    Raises: ValueError as `simulate` and `summarize`.

    >>> import numpy as np
    >>> from firsttoken.batching import poisson_trace
    >>> def trace(rate):
    ...     return poisson_trace(rate, 50, np.random.default_rng(0))
    >>> def cost(prefills, decodes):
    ...     return 0.01
    >>> settings = {f"batch {n}": {"policy": "static", "max_batch": n} for n in (1, 5)}
    >>> results = sweep(settings, [0.5, 2.0], trace, cost, n_jobs=1)
    >>> results["batch 1", 2.0].requests_per_s < results["batch 5", 2.0].requests_per_s
    True
    """
    from joblib import Parallel, delayed  # takes a while to import, and only sweeps need it
    from joblib.parallel import get_active_backend

    points = [(name, rate) for name in settings for rate in rates]
    run = delayed(_summarize_run)
    one_by_one = get_active_backend()[0].supports_return_generator  # Ray's does not
    results = Parallel(n_jobs=n_jobs, return_as="generator" if one_by_one else "list")(
        run(trace, rate, cost, dict(settings[name]), slo) for name, rate in points
    )
    bar = tqdm(results, desc="runs", total=len(points), disable=not progress)
    return dict(zip(points, bar, strict=True))


def _summarize_run(
    trace: Callable[[float], Iterable[Request]],
    rate: float,
    cost: StepCost,
    setting: Mapping[str, Any],
    slo: SLO | None,
) -> Summary:
    return summarize(simulate(trace(rate), cost=cost, **setting), slo)
