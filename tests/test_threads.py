"""One thread runs the shipped models, whatever was set before; nothing else is changed.

How a process was started is varied in tests/proof/alone/test_threads.py.
"""

import os

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from firsttoken.llama import load_model
from firsttoken.threads import blas_threads


def taken() -> list[int]:
    """Return how many threads NumPy's own library takes in this process.

    SciPy brings a second one, which no pass uses. In a process of many tests it may come too late
    for `blas_threads`, which looks only once.
    """
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return [pool["num_threads"] for pool in pools if "scipy.libs" not in pool["filepath"]]


@pytest.mark.skipif(os.cpu_count() == 1, reason="one core has one thread")
def test_within_the_block_and_not_after_it():
    with threadpool_limits(2, user_api="blas"):
        before = taken()
        assert before and set(before) == {2}
        with blas_threads(1):
            assert set(taken()) == {1}
            with blas_threads(2):
                assert taken() == before
            assert set(taken()) == {1}
        assert taken() == before
        with pytest.raises(KeyError), blas_threads(1):
            raise KeyError
        assert taken() == before


def test_none_changes_nothing():
    with threadpool_limits(1, user_api="blas"), blas_threads(None):
        assert set(taken()) == {1}


@pytest.mark.parametrize("n_threads", [0, -1, True, 1.0])
def test_threads_are_counted(n_threads):
    with pytest.raises(ValueError, match="n_threads must be an integer of at least 1, got"):
        load_model("draft", n_threads=n_threads)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_logits_do_not_depend_on_threads(backend):
    ids = [np.arange(5, 25).tolist()]
    one, two = (np.asarray(load_model("draft", backend, n_threads=n)(ids)) for n in (1, 2))
    np.testing.assert_allclose(one, two, atol=1e-4)
