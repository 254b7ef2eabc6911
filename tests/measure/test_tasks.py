"""What is timed: all on the device, and no element twice."""

import itertools

import pytest

from firsttoken.measure.tasks import memory_tasks, tasks_of
from firsttoken.measure.tensors import carve, noise
from measure.test_profile import TINY


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_all_that_is_timed_lives_on_the_device(dtype):
    """On the meta device nothing is computed, but a tensor from elsewhere is an error."""
    tasks = tasks_of(dtype, "meta", TINY) | memory_tasks("meta", TINY)
    assert len({key[0] for key in tasks}) == 7
    for run, _ in tasks.values():
        run()


def test_carving_uses_every_element_once_at_most():
    store = noise(100, "fp32", "cpu")
    pieces = carve(store, [(3, 4), (5, 2)])
    assert [tuple(p.shape) for p in pieces] == [(3, 4), (5, 2)] * 4
    starts = [p.storage_offset() for p in pieces]
    assert starts == list(itertools.accumulate([12, 10] * 4, initial=0))[:-1]
    with pytest.raises(ValueError, match="100 elements is too small"):
        carve(store, [(11, 10)])
