"""Expert parallelism: tokens travel to the processes that have their experts, and back."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from firsttoken.parallel.collectives import all_to_all_bytes, dispatch_bytes
from firsttoken.parallel.memory import split_evenly
from firsttoken.parallel.parallel_torch.communicator import Communicator
from firsttoken.parallel.parallel_torch.comparison import Comparison, compare
from firsttoken.parallel.parallel_torch.processes import Workers
from firsttoken.parallel.parallel_torch.tensor import FLOAT_BYTES

COUNT_BYTES = 8  # a count is an int64


@dataclass(frozen=True, eq=False)
class Mixture:
    """A mixture of experts: a router, and a gated MLP per expert.

    A token visits the `n_active` experts of the largest router scores, and their outputs are added
    with the softmax of these scores as weights.

    Shapes: router [E, D], router_bias [E], gate and up [E, F, D], down [E, D, F]
    """

    router: Tensor
    router_bias: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    n_active: int

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights and the experts of each token of x [T, D]: [T, k] twice."""
        scores, experts = (x @ self.router.T + self.router_bias).topk(self.n_active)
        return scores.softmax(dim=-1), experts

    def expert(self, index: int, x: Tensor) -> Tensor:
        """Return what one expert makes of tokens [T, D]."""
        h = F.silu(x @ self.gate[index].T) * (x @ self.up[index].T)
        return h @ self.down[index].T

    def __call__(self, x: Tensor) -> Tensor:
        """Return the mixture of tokens [T, D] on one device, expert by expert."""
        weights, experts = self.route(x)
        result = torch.zeros_like(x)
        for index in range(len(self.router)):
            token, slot = (experts == index).nonzero(as_tuple=True)
            result.index_add_(0, token, weights[token, slot, None] * self.expert(index, x[token]))
        return result


def random_mixture(
    seed: int,
    n_experts: int = 8,
    n_active: int = 2,
    d_model: int = 32,
    d_ff: int = 64,
    favour: float = 1.0,
) -> Mixture:
    """Return a mixture with random weights; the larger `favour`, the more go to the first experts.

    With 0 the router has no favourites.
    """
    draw = torch.Generator().manual_seed(seed)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw) / shape[-1] ** 0.5

    bias = favour * torch.linspace(1, -1, n_experts)
    sizes = (n_experts, d_ff, d_model)
    router, gate, up = matrix(n_experts, d_model), matrix(*sizes), matrix(*sizes)
    return Mixture(router, bias, gate, up, matrix(n_experts, d_model, d_ff), n_active)


@dataclass(frozen=True)
class ExpertRun:
    """A mixture on n processes beside one, and who sent how many tokens to whom.

    `counts[i][j]`: (token, expert) pairs from process i to the experts of process j.
    """

    comparison: Comparison
    counts: tuple[tuple[int, ...], ...]

    @property
    def imbalance(self) -> float:
        """The load of the busiest process, over the mean."""
        loads = np.sum(self.counts, axis=0)
        return float(loads.max() / loads.mean())


def run_experts(workers: Workers, mixture: Mixture, x: Tensor, n: int) -> ExpertRun:
    """Divide tokens x [T, D] and experts among n processes, and compare with one device.

    Raises: ValueError for more processes than experts, and as `Workers.call`.
    """
    n_experts = len(mixture.router)
    if n > n_experts:
        raise ValueError(f"n must be at most {n_experts} experts, got {n}")
    outputs, counts, sent = zip(*workers.call(mix_experts, mixture, x, n=n), strict=True)
    moved = dispatch_bytes(counts, x.shape[1] * FLOAT_BYTES)
    expected = {"dispatch": moved, "combine": moved}
    if n_experts % n == 0:
        expected["counts"] = all_to_all_bytes(n_experts * COUNT_BYTES, n)
    else:  # each process sends all counts but those of its own experts
        expected["counts"] = (n - 1) * n_experts * COUNT_BYTES
    result = np.concatenate(outputs)
    return ExpertRun(compare(result, mixture(x).numpy(), sent, expected), counts)


def mix_experts(
    comm: Communicator, mixture: Mixture, x: Tensor
) -> tuple[np.ndarray, tuple[int, ...], dict[str, int]]:
    """Return this process's tokens after the mixture, the pairs it sent each, and its bytes.

    Pairs (token, expert) are sorted by expert, so that those of one process lie together and the
    receiver, who is told how many go to each expert first, needs no names.
    """
    places = split_evenly(len(mixture.router), comm.n)  # which experts each process has
    mine = split_evenly(len(x), comm.n)[comm.rank]
    x = x[mine.start : mine.stop]
    weights, experts = mixture.route(x)
    order = experts.flatten().argsort(stable=True)  # of the pairs
    token = order // mixture.n_active
    per_expert = torch.bincount(experts.flatten(), minlength=len(mixture.router))
    asked = [per_expert[place.start : place.stop] for place in places]
    incoming = comm.all_to_all(asked, [len(places[comm.rank])] * comm.n, "counts")
    n_out = [int(part.sum()) for part in asked]
    n_in = [int(part.sum()) for part in incoming]
    arrived = comm.all_to_all(list(x[token].split(n_out)), n_in, "dispatch")
    returned = []
    for rows, counts in zip(arrived, incoming, strict=True):
        parts = rows.split(counts.tolist())
        done = [mixture.expert(e, part) for e, part in zip(places[comm.rank], parts, strict=True)]
        returned.append(torch.cat(done))
    outputs = torch.cat(comm.all_to_all(returned, n_out, "combine"))
    result = torch.zeros_like(x)
    result.index_add_(0, token, weights.flatten()[order, None] * outputs)
    return result.numpy(), tuple(n_out), dict(comm.sent)
