"""Sweeps: the same as single runs, one process or two."""

import os
from functools import partial

import numpy as np
import pytest

from batching.test_simulator import step_cost
from firsttoken.batching import poisson_trace, simulate, sweep
from firsttoken.metrics import SLO, summarize
from firsttoken.paging import BlockPool


def sweep_trace(rate):
    return poisson_trace(rate, 60, np.random.default_rng(7), 8, lambda rng: rng.integers(2, 20))


SETTINGS = {
    "static": {"policy": "static", "max_batch": 4},
    "chunked": {"policy": "chunked", "max_batch": 4, "token_budget": 8},
    "pool": {"policy": "continuous", "max_batch": 4, "pool": BlockPool(16, 2)},
}
RATES, SWEEP_SLO = [0.1, 0.4], SLO(ttft_s=3.0)


def noting_trace(folder, rate):
    (folder / str(os.getpid())).touch()
    return sweep_trace(rate)


def single_runs():
    return {
        (name, rate): summarize(simulate(sweep_trace(rate), cost=step_cost, **setting), SWEEP_SLO)
        for name, setting in SETTINGS.items()
        for rate in RATES
    }


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_sweep_is_the_single_runs(n_jobs, capsys, tmp_path):
    trace = partial(noting_trace, tmp_path)
    found = sweep(SETTINGS, RATES, trace, step_cost, slo=SWEEP_SLO, n_jobs=n_jobs)
    here = tmp_path / str(os.getpid())
    assert here.exists() == (n_jobs == 1)  # else other processes ran it
    assert found == single_runs()
    assert len({summary.ttft[50] for summary in found.values()}) == len(found)
    assert "6/6" in capsys.readouterr().err  # the bar
