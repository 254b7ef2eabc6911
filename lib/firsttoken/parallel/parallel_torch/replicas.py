"""Data parallelism: every process has the whole model, and a router gives each request to one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from firsttoken.generate import generate
from firsttoken.models.llama_torch import Llama
from firsttoken.parallel.parallel_torch.communicator import Communicator
from firsttoken.parallel.parallel_torch.processes import Workers
from firsttoken.parallel.parallel_torch.tensor import model_directory
from firsttoken.sampling import SamplingParams


@dataclass(frozen=True)
class ReplicaRun:
    """What each request got, and which replica served it."""

    tokens: tuple[tuple[int, ...], ...]
    served_by: tuple[int, ...]


def serve_replicas(
    workers: Workers,
    requests: Sequence[tuple[Sequence[int], int]],
    n: int | None = None,
    name: str | Path = "target",
) -> ReplicaRun:
    """Continue prompts greedily, each on the first of n replicas (None: all) that is free.

    Each request is (prompt ids, tokens to make). Replicas share nothing and send nothing.

    Raises: ValueError as `generate`, from the process that met it.
    """
    jobs = [(model_directory(name), tuple(prompt), n) for prompt, n in requests]
    done = workers.map(continue_prompt, jobs, n)
    return ReplicaRun(tuple(tokens for _, tokens in done), tuple(rank for rank, _ in done))


def continue_prompt(comm: Communicator, job: tuple[Path, Sequence[int], int]) -> tuple[int, ...]:
    """Return the tokens that one replica makes for one request."""
    directory, prompt, n_tokens = job
    model = Llama.from_pretrained(directory)
    params = SamplingParams(temperature=0.0, max_tokens=n_tokens)
    return tuple(generate(model, prompt, params, ignore_eos=True).ids)
