"""Collectives between processes, made of single messages, with every byte counted.

PyTorch's own collectives do not tell what they send (gloo picks an algorithm by the size). So these
are written out as `firsttoken.parallel` derives them, from single sends and receives over gloo, and
a message is counted where it is handed over.
"""

from collections import Counter
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from firsttoken.parallel.collectives import ring_piece
from firsttoken.parallel.memory import split_evenly


class Communicator:
    """What a process sends to and receives from the others of a group of n.

    `rank` counts within the group. `sent` maps the name of each collective to the bytes that this
    process has sent for it; the sum over the group is its traffic. Tensors are in the CPU's
    memory and of the same shape and dtype on all processes, but where the method says otherwise.
    """

    def __init__(self, members: Sequence[int]) -> None:
        self.members = list(members)  # ranks among all processes
        self.n = len(self.members)
        self.rank = self.members.index(dist.get_rank())
        self.sent: Counter[str] = Counter()

    def start_send(self, x: Tensor, to: int, name: str = "send") -> dist.Work:
        """Begin to send a tensor, which must not change before the result's `wait()` returns."""
        self.sent[name] += x.numel() * x.element_size()
        work = dist.isend(x, self.members[to])
        assert work is not None  # as for every member of the group
        return work

    def receive(self, like: Tensor, source: int) -> Tensor:
        """Wait for a tensor of the shape and dtype of `like`."""
        x = torch.empty_like(like, memory_format=torch.contiguous_format)
        dist.recv(x, self.members[source])
        return x

    def all_reduce(self, x: Tensor, name: str = "all_reduce") -> Tensor:
        """Return the sum of all processes' tensors, the same on each: round the ring, twice."""
        if self.n == 1:
            return x
        total = x.flatten().clone()
        self._round_the_ring(total, range(2 * (self.n - 1)), name)
        return total.view_as(x)

    def reduce_scatter(self, x: Tensor) -> Tensor:
        """Return this process's piece of the sum, flat: the first half of `all_reduce`."""
        total = x.flatten().clone()
        self._round_the_ring(total, range(self.n - 1), "reduce_scatter")
        return self._pieces(total)[self.rank].clone()

    def all_gather(self, x: Tensor) -> Tensor:
        """Return the tensors of all processes, stacked: the second half of `all_reduce`."""
        gathered = x.new_empty((self.n, *x.shape))
        gathered[self.rank] = x
        self._round_the_ring(gathered.view(-1), range(self.n - 1, 2 * self.n - 2), "all_gather")
        return gathered

    def all_to_all(
        self, parts: Sequence[Tensor], sizes: Sequence[int], name: str = "all_to_all"
    ) -> list[Tensor]:
        """Send part i to process i, and return what came from each, its own part included.

        Parts have any number of rows each; `sizes` says how many rows come from each process.
        """
        received = [part.new_empty((size, *part.shape[1:])) for part, size in zip(
            parts, sizes, strict=True
        )]  # fmt: skip
        received[self.rank] = parts[self.rank]
        for shift in range(1, self.n):
            to, source = (self.rank + shift) % self.n, (self.rank - shift) % self.n
            self._exchange(parts[to].contiguous(), to, received[source], source, name)
        return received

    def _pieces(self, flat: Tensor) -> list[Tensor]:
        return [flat[run.start : run.stop] for run in split_evenly(flat.numel(), self.n)]

    def _round_the_ring(self, flat: Tensor, rounds: range, name: str) -> None:
        """Play rounds of a ring all-reduce; the first n - 1 of all add up, the others copy."""
        pieces = self._pieces(flat)  # views
        left, right = (self.rank - 1) % self.n, (self.rank + 1) % self.n
        for index in rounds:
            outgoing = pieces[ring_piece(self.rank, index, self.n)]
            target = pieces[ring_piece(left, index, self.n)]
            adds = index < self.n - 1
            incoming = torch.empty_like(target) if adds else target
            self._exchange(outgoing, right, incoming, left, name)
            if adds:
                target += incoming

    def _exchange(
        self, outgoing: Tensor, to: int, incoming: Tensor, source: int, name: str
    ) -> None:
        """Send one tensor and receive another at the same time; an empty one is no message."""
        works = [self.start_send(outgoing, to, name)] if outgoing.numel() else []
        if incoming.numel():
            work = dist.irecv(incoming, self.members[source])
            assert work is not None
            works.append(work)
        for work in works:
            work.wait()
