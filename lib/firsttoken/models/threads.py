"""How many threads the products of a pass may take: one, for models as small as the shipped pair.

Products that take microseconds gain nothing from a second thread, and lose much: each waits until
all threads have done their part, and on a busy machine one of them is not running at all.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import LibController, ThreadpoolController


@contextmanager
def blas_threads(n: int | None) -> Iterator[None]:
    """Let NumPy's products take n threads within the block; None leaves them as they are.

    Whatever the environment asked for, and wherever the process was started. It reaches the
    libraries that threadpoolctl knows (OpenBLAS, MKL, BLIS).

    >>> with blas_threads(1):
    ...     pass
    """
    if n is None:
        yield
        return
    before = [(library, library.get_num_threads()) for library in _blas()]
    changed = [(library, count) for library, count in before if count != n]
    for library, _ in changed:
        library.set_num_threads(n)
    try:
        yield
    finally:
        for library, count in changed:
            library.set_num_threads(count)


# Looking for the loaded libraries takes a tenth of a small model's step, and so does the
# controller's own `limit`, which asks each of them for more than how many threads it has.
@cache
def _blas() -> list[LibController]:
    return ThreadpoolController().select(user_api="blas").lib_controllers
