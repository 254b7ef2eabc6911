"""A training that is stopped."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def stopped_at(step: int, batches: type, method: str, monkeypatch) -> Iterator[None]:
    """Interrupt a training before it is given the batch of a step."""
    give = getattr(batches, method)

    def stop(self, at, *more):
        if at == step:
            raise KeyboardInterrupt
        return give(self, at, *more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(batches, method, stop)
        yield
