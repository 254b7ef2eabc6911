"""Jobs for the processes of parallel_torch: what is defined in a test they cannot import."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from firsttoken.models.checkpoint import read_checkpoint
from firsttoken.parallel.parallel_torch import column_row, split_checkpoint
from firsttoken.parallel.parallel_torch.tensor import tensor_parallel_model


@contextlib.contextmanager
def importable() -> Iterator[None]:
    """Let processes that start within the block find these jobs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        yield


def collectives(comm, seed, sizes):
    """Return what the four collectives of this library and PyTorch's all-reduce give."""
    results = []
    for size in sizes:
        draw = torch.Generator().manual_seed(seed + comm.rank)
        x = torch.randn(size, 3, generator=draw)
        before = x.clone()
        parts = [torch.full((comm.rank + to, 2), float(10 * comm.rank + to)) for to in
                 range(comm.n)]  # fmt: skip
        rows = [comm.rank + source for source in range(comm.n)]
        ours = comm.all_reduce(x), comm.all_gather(x), comm.reduce_scatter(x)
        exchanged = comm.all_to_all(parts, rows)
        assert torch.equal(x, before)  # what is given stays
        theirs = x.clone()
        if comm.n == dist.get_world_size():
            dist.all_reduce(theirs)
        results.append((x, ours, exchanged, theirs, dict(comm.sent)))
        comm.sent.clear()
    return results


def biased_mlp(comm, x, weights, wrong):
    """Return an MLP of column and row; `wrong`: without the sum, or each adds the second bias."""
    up, up_bias, down, down_bias = weights
    if wrong == "no all-reduce":
        comm.all_reduce = lambda x: x
    if wrong == "bias added by each":
        zero = torch.zeros_like(down_bias)
        part = column_row(comm, x, up, up_bias, down, zero)
        return part + comm.n * down_bias
    return column_row(comm, x, up, up_bias, down, down_bias)


def part_bytes(comm, directory, length):
    """Return the bytes of this process's weights that are split or copied, and of its cache."""
    arch, weights = split_checkpoint(read_checkpoint(directory), comm.rank, comm.n)
    model = tensor_parallel_model(comm, read_checkpoint(directory))
    cache = model.new_cache(1, length)
    model([list(range(length))], cache)
    held = sum(p.numel() for p in model.parameters())  # tied tables count once
    assert held == sum(w.size for w in weights.values()) == arch.n_params
    return 4 * held, cache.nbytes


def raise_on(comm, rank):
    """Raise on one process while the others wait for it."""
    if comm.rank == rank:
        raise KeyError("no such piece")
    comm.all_reduce(torch.ones(8))


def leave(comm, rank):
    """End one process without a word."""
    if comm.rank == rank:
        os._exit(7)
    comm.all_reduce(torch.ones(8))


def be_killed(comm, rank):
    """Exchange for ever, until one process is killed."""
    for n_done in range(10**9):
        if comm.rank == rank and n_done == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.all_reduce(torch.ones(8))


def sleep_for_ever(comm):
    time.sleep(10**6)


def threads(comm):
    return torch.get_num_threads()


def first_is_last(comm, item):
    """Return the item's number; of the first one only when all others are done."""
    folder, number, n = item
    while number == 0 and len(list(folder.iterdir())) < n - 1:
        time.sleep(0.01)
    (folder / str(number)).touch()
    return number
