"""One thread runs the shipped models, whatever was set before; nothing else is changed.

How a process was started is varied in tests/proof/alone/test_threads.py.
"""

import os

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from firsttoken.models.threads import blas_threads


def taken() -> list[int]:
    """Return how many threads NumPy's own library takes in this process."""
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
