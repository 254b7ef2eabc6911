"""Tensor parallelism: each process has some heads of every layer and a part of every MLP.

The first matrices of a half layer are cut by columns: each process computes its own heads, or its
own inner numbers, and needs nobody. The second one is cut by rows: each process gets a part of
every output number. Adding the parts up is the only message, one all-reduce per half layer.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firsttoken.architectures import Architecture
from firsttoken.models.checkpoint import Checkpoint, read_checkpoint
from firsttoken.models.llama_torch import Llama
from firsttoken.parallel.collectives import all_reduce_bytes
from firsttoken.parallel.memory import split_evenly, split_heads
from firsttoken.parallel.parallel_torch.communicator import Communicator
from firsttoken.parallel.parallel_torch.comparison import Comparison, compare
from firsttoken.parallel.parallel_torch.processes import Workers
from firsttoken.paths import data_path

FLOAT_BYTES = 4  # float32 throughout


def model_directory(name: str | Path) -> Path:
    """Return the directory of the shipped "target" or "draft", or of another checkpoint."""
    return data_path(f"model/{name}") if name in ("target", "draft") else Path(name)


def split_checkpoint(
    checkpoint: Checkpoint, rank: int, n: int
) -> tuple[Architecture, dict[str, np.ndarray]]:
    """Return the part of a Llama that process `rank` of n has: a Llama itself, with fewer heads.

    Weights are (out, in). Queries, keys, values, gate and up are cut by what comes out, "column"
    parallel in the notation x·A; o and down by what goes in, "row" parallel. Norms and embeddings
    are copied, and so is a KV head that query heads of several processes read.

    Raises: ValueError for more processes than query heads.
    Source: Shoeybi et al. 2019, arXiv:1909.08053, sec. 3
    """
    arch = checkpoint.arch
    queries, kv = split_heads(arch.n_heads, arch.n_kv_heads, n)[rank]
    inner = split_evenly(arch.d_ff, n)[rank]

    def rows(heads: range) -> slice:
        return slice(heads.start * arch.head_dim, heads.stop * arch.head_dim)

    columns = {"q_proj": rows(queries), "k_proj": rows(kv), "v_proj": rows(kv)}
    columns |= dict.fromkeys(("gate_proj", "up_proj"), slice(inner.start, inner.stop))
    parts = {}
    for name, weight in checkpoint.weights.items():
        kind = name.split(".")[-2]
        if kind in columns:
            parts[name] = weight[columns[kind]]
        elif kind == "o_proj":
            parts[name] = weight[:, rows(queries)]
        elif kind == "down_proj":
            parts[name] = weight[:, inner.start : inner.stop]
        else:
            parts[name] = weight
    sizes = {"n_heads": len(queries), "n_kv_heads": len(kv), "d_ff": len(inner)}
    return arch.replace(**sizes), parts


def tensor_parallel_model(comm: Communicator, checkpoint: Checkpoint, talks: bool = True) -> Llama:
    """Return this process's part of a model; its halves of layers end in an all-reduce.

    Without `talks` nothing is added up: the work of one device alone, to time it.
    """
    c = checkpoint
    arch, weights = split_checkpoint(c, comm.rank, comm.n)
    model = Llama(arch, weights, c.rope_theta, c.rope_scaling, c.norm_eps, c.eos_ids)

    def add_up(module: Any, inputs: Any, output: Tensor) -> Tensor:
        return comm.all_reduce(output) if talks else output

    for block in model.model.layers:
        block.get_submodule("self_attn").register_forward_hook(add_up)
        block.get_submodule("mlp").register_forward_hook(add_up)
    return model


def column_row(
    comm: Communicator, x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor
) -> Tensor:
    """Return relu(x·up + up_bias)·down + down_bias, each process using its part of the weights.

    The first bias is cut with the columns. The second belongs to the sum, so it is added once,
    behind the all-reduce; each process adding it to its part would add it n times.

    Shapes: x [T, D], up [D, F], up_bias [F], down [F, D], down_bias [D], all of them whole
    """
    part = split_evenly(up.shape[1], comm.n)[comm.rank]
    inner = slice(part.start, part.stop)
    h = torch.relu(x @ up[:, inner] + up_bias[inner])
    return comm.all_reduce(h @ down[inner]) + down_bias


def compare_tensor_parallel(
    workers: Workers, tokens: Sequence[Sequence[int]], n: int, name: str | Path = "target"
) -> Comparison:
    """Compare the logits of n processes that split every layer with those of one model.

    Raises: ValueError for more processes than query heads, and as `Workers.call`.
    """
    directory = model_directory(name)
    alone = Llama.from_pretrained(directory)
    split_heads(alone.arch.n_heads, alone.arch.n_kv_heads, n)  # raises here, not there
    logits, sent = zip(*workers.call(tensor_logits, directory, tokens, n=n), strict=True)
    n_bytes = np.size(tokens) * alone.arch.d_model * FLOAT_BYTES
    expected = 2 * alone.arch.n_layers * all_reduce_bytes(n_bytes, n)
    return compare(logits[0], alone(tokens).numpy(), sent, {"all_reduce": expected})


def tensor_logits(
    comm: Communicator, directory: Path, tokens: Sequence[Sequence[int]]
) -> tuple[np.ndarray, dict[str, int]]:
    """Return the logits (B, T, V) of a model that the group splits, and what this process sent."""
    model = tensor_parallel_model(comm, read_checkpoint(directory))
    return model(tokens).numpy(), dict(comm.sent)


def tensor_decode_s(
    comm: Communicator, directory: Path, prompt: Sequence[int], n_tokens: int, talks: bool = True
) -> tuple[list[int], list[float]]:
    """Return n greedy tokens behind a prompt, and the seconds of each of these decode steps.

    Without `talks` the tokens are nonsense, and the seconds those of the computing alone.
    """
    model = tensor_parallel_model(comm, read_checkpoint(directory), talks)
    cache = model.new_cache(1, len(prompt) + n_tokens)
    token = int(model([prompt], cache)[0, -1].argmax())
    tokens, seconds = [token], []
    for _ in range(n_tokens):
        start = time.perf_counter()
        token = int(model([[token]], cache)[0, -1].argmax())
        seconds.append(time.perf_counter() - start)
        tokens.append(token)
    return tokens, seconds
