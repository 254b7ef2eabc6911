"""A sweep over many machines: Dask and Ray, whose processes give each other seconds to start."""

import os
import subprocess
import sys
from pathlib import Path

import joblib

from batching import test_sweeps
from batching.test_sweeps import RATES, SETTINGS, SWEEP_SLO, single_runs, step_cost, sweep_trace
from firsttoken.batching import sweep


def test_a_sweep_runs_unchanged_on_a_dask_cluster():
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        # A local function is in no module that a worker could import.
        found = sweep(SETTINGS, RATES, lambda rate: sweep_trace(rate), step_cost, slo=SWEEP_SLO)
    assert found == single_runs()


ON_RAY = """
import joblib, ray
from ray.util.joblib import register_ray
from firsttoken.batching import sweep
from batching.test_sweeps import RATES, SETTINGS, SWEEP_SLO, single_runs, step_cost, sweep_trace

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
register_ray()
with joblib.parallel_config(backend="ray"):
    found = sweep(SETTINGS, RATES, lambda rate: sweep_trace(rate), step_cost, slo=SWEEP_SLO)
assert found == single_runs()
print("equal")
"""


def test_a_sweep_runs_unchanged_on_a_ray_cluster(tmp_path):
    # Ray starts no processes from a folder with a space in its name, and this clone may be in one.
    (tmp_path / "env").symlink_to(sys.prefix)
    command = [tmp_path / "env/bin/python", "-c", ON_RAY]
    environment = {**os.environ, "PYTHONPATH": str(Path(test_sweeps.__file__).parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    # As it ends, Ray may say that a worker died.
    assert "equal" in done.stdout.splitlines(), done.stderr
