"""One thread runs the shipped models, however the process was started; nothing else is changed.

Each test starts a Python of its own, seconds long with PyTorch.
"""

import json
import os
import subprocess
import sys

import pytest

# What a pass finds, and what stands after it: BLAS (NumPy's products) and OpenMP (PyTorch's).
PROGRAM = """
import json
from threadpoolctl import threadpool_info
from firsttoken.models.llama import load_model

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
