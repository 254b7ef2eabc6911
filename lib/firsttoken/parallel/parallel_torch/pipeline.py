"""A pipeline: each process has some layers, and hands its activations to the next."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from firsttoken.models.llama_torch import Attend, Llama
from firsttoken.parallel.memory import split_evenly
from firsttoken.parallel.parallel_torch.communicator import Communicator
from firsttoken.parallel.parallel_torch.comparison import Comparison, compare
from firsttoken.parallel.parallel_torch.processes import Workers
from firsttoken.parallel.parallel_torch.tensor import FLOAT_BYTES, model_directory
from firsttoken.parallel.pipeline import Slot, idle_share, pipeline_bytes


@dataclass(frozen=True)
class PipelineRun:
    """A pass through a pipeline: beside one device's, and when each stage worked on what.

    Units: `slots` in seconds since the first start
    """

    comparison: Comparison
    slots: tuple[Slot, ...]

    @property
    def bubble(self) -> float:
        """The share of the stages' time without work."""
        return idle_share(self.slots)


def run_pipeline(
    workers: Workers,
    tokens: Sequence[Sequence[int]],
    n_stages: int,
    n_microbatches: int,
    device_s: float = 0.0,
    name: str | Path = "target",
) -> PipelineRun:
    """Send a batch of texts through stages, in as many microbatches, and compare the logits.

    Stages that compute share this machine's cores. `device_s` makes each of them wait that long as
    well, for every microbatch, and waiting takes no core: so n stages can stand for n devices on a
    machine with fewer cores, if the wait is long beside the computing.

    Raises: ValueError for more stages than layers, a number of microbatches that does not divide
            the batch, a negative wait, and as `Workers.call`.
    """
    directory = model_directory(name)
    alone = Llama.from_pretrained(directory)
    if n_stages > alone.arch.n_layers:
        raise ValueError(f"n_stages must be at most {alone.arch.n_layers} layers, got {n_stages}")
    if n_microbatches < 1 or len(tokens) % n_microbatches:
        raise ValueError(f"n_microbatches {n_microbatches} must divide the batch of {len(tokens)}")
    if not device_s >= 0:
        raise ValueError(f"device_s must not be negative, got {device_s!r}")
    done = workers.call(run_stage, directory, tokens, n_microbatches, device_s, n=n_stages)
    logits, slots, sent = zip(*done, strict=True)
    n_bytes = np.size(tokens) * alone.arch.d_model * FLOAT_BYTES
    expected = {"send": pipeline_bytes(n_bytes, n_stages)}
    first = min(slot.start_s for stage in slots for slot in stage)
    shifted = tuple(
        Slot(slot.stage, slot.microbatch, slot.start_s - first, slot.end_s - first)
        for stage in slots
        for slot in stage
    )
    return PipelineRun(compare(logits[-1], alone(tokens).numpy(), sent, expected), shifted)


def run_stage(
    comm: Communicator,
    directory: Path,
    tokens: Sequence[Sequence[int]],
    n_microbatches: int,
    device_s: float,
) -> tuple[np.ndarray | None, list[Slot], dict[str, int]]:
    """Do one stage's part; return the logits (the last stage), its slots and what it has sent."""
    model = Llama.from_pretrained(directory)
    mine = split_evenly(model.arch.n_layers, comm.n)[comm.rank]
    first, last = comm.rank == 0, comm.rank == comm.n - 1
    cos, sin = _rotation(model, len(tokens[0]))
    attend = model._attend(None)
    _pass_through(model, mine, torch.zeros(1, len(tokens[0]), model.arch.d_model), cos, sin, attend)
    comm.all_reduce(torch.zeros(1), name="start")  # all have loaded their layers, and warmed up
    del comm.sent["start"]  # no part of the pass
    slots, logits, sending = [], [], []
    for microbatch, rows in enumerate(torch.tensor(tokens).chunk(n_microbatches)):
        if first:
            x = model.model.embed_tokens(rows)
        else:
            x = comm.receive(torch.empty(*rows.shape, model.arch.d_model), comm.rank - 1)
        start = time.perf_counter()  # one clock for all processes of a machine
        x = _pass_through(model, mine, x, cos, sin, attend)
        if last:
            logits.append(model.lm_head(model.model.norm(x)))
        time.sleep(device_s)
        slots.append(Slot(comm.rank, microbatch, start, time.perf_counter()))
        if not last:
            sending.append((comm.start_send(x.contiguous(), comm.rank + 1), x))
    for work, _ in sending:
        work.wait()
    return torch.cat(logits).numpy() if last else None, slots, dict(comm.sent)


def _rotation(model: Llama, n_tokens: int) -> tuple[Tensor, Tensor]:
    angles = torch.outer(model._positions(n_tokens, None), model._frequencies)
    return angles.cos(), angles.sin()


def _pass_through(
    model: Llama, layers: range, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend
) -> Tensor:
    for layer in layers:
        x = model.model.layers[layer](x, cos, sin, attend, layer)
    return x
