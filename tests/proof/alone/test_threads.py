"""One thread runs the shipped models, however the process was started; nothing else is changed.

Each test starts a Python of its own, seconds long with PyTorch.
"""

import json
import os
import subprocess
import sys

import pytest
from jupyter_client.manager import start_new_kernel

# What a pass finds, and what stands after it: BLAS (NumPy's products) and OpenMP (PyTorch's).
PROGRAM = """
import json
from threadpoolctl import threadpool_info
from firsttoken.llama import load_model

def threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == {api!r}]

model = load_model("draft", {backend!r}{options})
before, during = threads(), []
cache = model.new_cache(1, 8)
append = cache.append

def watched(layer, k, v):
    during.extend(threads())
    append(layer, k, v)

cache.append = watched
model([[5, 6, 7]], cache)
model.forward_ragged([[8]], [cache])
print(json.dumps([before, sorted(set(during)), threads()]))
"""


def run(program: str, **variables: str) -> list:
    """Run a program as a reader would, with these variables alone saying something of threads."""
    kept = {name: text for name, text in os.environ.items() if "_NUM_THREADS" not in name}
    done = subprocess.run(
        [sys.executable, "-c", program], env=kept | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("variables", [{}, {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}])
@pytest.mark.parametrize(("backend", "api"), [("numpy", "blas"), ("torch", "openmp")])
def test_a_pass_takes_one_thread_wherever_it_is_started(backend, api, variables):
    program = PROGRAM.format(api=api, backend=backend, options="")
    before, during, after = run(program, **variables)
    assert during == [1] and after == before
    if variables:
        assert 2 in before or os.cpu_count() == 1


@pytest.mark.parametrize(("backend", "api"), [("numpy", "blas"), ("torch", "openmp")])
@pytest.mark.parametrize(("n_threads", "started_with"), [(2, "1"), (None, "2")])
@pytest.mark.skipif(os.cpu_count() == 1, reason="one core has one thread")
def test_more_threads_on_request(backend, api, n_threads, started_with):
    program = PROGRAM.format(api=api, backend=backend, options=f", n_threads={n_threads}")
    variables = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), started_with)
    before, during, after = run(program, **variables)
    assert during == [2] and after == before


def test_a_kernel_opened_by_hand():
    """A notebook that was not opened by make: its kernel has no variables set."""
    kept = {name: text for name, text in os.environ.items() if "_NUM_THREADS" not in name}
    manager, client = start_new_kernel(300, "python3", env=kept)
    try:
        printed = []
        client.execute_interactive(
            PROGRAM.format(api="blas", backend="numpy", options=""),
            timeout=300,
            output_hook=lambda message: printed.append(message["content"].get("text", "")),
        )
        before, during, after = json.loads("".join(printed))
        assert during == [1] and after == before
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_pass_that_fails_leaves_the_threads_as_they_were():
    program = (
        "import json\nfrom threadpoolctl import threadpool_info\n"
        "from firsttoken.threads import blas_threads\n"
        "import numpy\n"
        "try:\n    with blas_threads(1):\n        raise KeyError\nexcept KeyError:\n    pass\n"
        "print(json.dumps([pool['num_threads'] for pool in threadpool_info()]))"
    )
    assert run(program, OPENBLAS_NUM_THREADS="2") == [min(2, os.cpu_count())]
