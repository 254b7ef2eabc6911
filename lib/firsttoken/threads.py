"""How many threads the products of a pass may take: one, for models as small as the shipped pair.

Products that take microseconds gain nothing from a second thread, and lose much: each waits until
all threads have done their part, and on a busy machine one of them is not running at all.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController


@contextmanager
def blas_threads(n: int | None) -> Iterator[None]:
    """Let NumPy's products take n threads within the block; None leaves them as they are.

    Whatever the environment asked for, and wherever the process was started. It costs some
    microseconds, and reaches the libraries that threadpoolctl knows (OpenBLAS, MKL, BLIS).

    >>> with blas_threads(1):
    ...     pass
    """
    if n is None:
        yield
        return
    with _blas().limit(limits=n):
        yield


@cache  # looking for the loaded libraries takes longer than a step of a small model
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")
