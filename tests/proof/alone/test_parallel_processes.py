"""The processes of parallel_torch: how they end, what they measure, and torchrun.

They stand alone since they kill each other, and since a neighbour's load is in what is measured.
"""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import parallel_jobs
from firsttoken.parallel.parallel_torch import Workers, rank_of
from firsttoken.parallel.parallel_torch.tensor import model_directory

TARGET = model_directory("target")
TESTS = Path(parallel_jobs.__file__).parent


@pytest.fixture(scope="module", autouse=True)
def importable():
    with parallel_jobs.importable():
        yield


def alive(pid: int) -> bool:
    """Say whether a process runs; one that nobody has waited for yet counts as gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    if Path("/proc/self").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def gone(pids):
    end = time.monotonic() + 100
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, pids))


@pytest.mark.parametrize(
    ("n", "job", "arguments", "error", "said"),
    [
        (2, "be_killed", (1,), RuntimeError, "process 1 of 2 was killed by SIGKILL"),
        (2, "raise_on", (1,), RuntimeError, "1 of 2 raised KeyError: .no such"),
        (1, "leave", (0,), RuntimeError, "process 0 of 1 ended with code 7"),
        (1, "sleep_for_ever", (), TimeoutError, "took longer than 0.5 s"),
    ],
)
def test_an_end_is_one_error_and_leaves_nobody(n, job, arguments, error, said):
    workers = Workers(n)
    # It ends any job that hangs; only the one that sleeps for ever shall meet it.
    workers.timeout_s = 0.5 if error is TimeoutError else 300
    with pytest.raises(error, match=said):
        workers.call(getattr(parallel_jobs, job), *arguments)
    assert gone(workers.pids)
    with pytest.raises(RuntimeError, match="are stopped; start new ones"):
        workers.call(rank_of)
    workers.close()  # once more does no harm


def test_no_orphan_when_whoever_started_them_is_killed():
    """It is busy with a job that never asks whether anybody waits."""
    program = (
        "import parallel_jobs\n"
        "from firsttoken.parallel.parallel_torch import Workers\n"
        "workers = Workers(1)\n"
        "print(*workers.pids, flush=True)\n"
        "workers.call(parallel_jobs.sleep_for_ever)\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        pids = [int(pid) for pid in starter.stdout.readline().split()]
        assert len(pids) == 1 and all(map(alive, pids))
        starter.kill()
    assert gone(pids)


def test_a_quick_run_of_the_benchmark(monkeypatch, tmp_path, capsys):
    program = TESTS.parent / "benchmarks" / "parallel.py"
    spec = importlib.util.spec_from_file_location("parallel_run", program)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # Two sizes may take equally long where other programs run, and then no link explains them.
    monkeypatch.setattr(
        "firsttoken.parallel.parallel_torch.timing.fit_link", lambda *_: (1e-4, 1e9)
    )
    monkeypatch.setattr(module, "data_path", lambda name: TARGET if "model" in name else tmp_path)
    monkeypatch.setattr(module, "DEVICE_S", 0.01)
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["parallel.py", "--quick", "--out", str(out)])
    before = torch.get_num_threads()
    try:
        module.main()
    finally:
        torch.set_num_threads(before)
    report = json.loads(out.read_text())
    assert list(tmp_path.iterdir()) == [out]
    assert all(row["sent"] == row["expected"] for row in report["equality"])
    assert max(row["relative"] for row in report["equality"]) < 5e-6
    assert report["replicas"]["equal"] and sum(report["replicas"]["served"]) == 12
    assert [row["n"] for row in report["decoding"]] == [1, 2, 3, 4]
    assert "predicted" in capsys.readouterr().out


def test_the_same_under_torchrun():
    """On one host; on several the launcher's own options change, and nothing here."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "firsttoken.parallel.parallel_torch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 processes, max |difference|" in done.stdout
