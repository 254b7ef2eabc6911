"""A cache cut along the text: each process attends to its run of the keys, and all are merged."""

import numpy as np
import torch

from firsttoken.attention import attention
from firsttoken.flash import attention_part, merge
from firsttoken.parallel.collectives import all_gather_bytes
from firsttoken.parallel.memory import split_evenly
from firsttoken.parallel.parallel_torch.communicator import Communicator
from firsttoken.parallel.parallel_torch.comparison import Comparison, compare
from firsttoken.parallel.parallel_torch.processes import Workers
from firsttoken.parallel.parallel_torch.tensor import FLOAT_BYTES

Array = np.ndarray


def compare_sequence_parallel(workers: Workers, q: Array, k: Array, v: Array, n: int) -> Comparison:
    """Compare attention of one decode step over a cache in n runs with attention over all of it.

    Shapes: q (B, N, 1, H), k and v (B, K, S, H), float32
    Raises: ValueError for more than one query a sequence, and as `Workers.call`.
    """
    if q.ndim != 4 or q.shape[2] != 1:
        raise ValueError(f"q must be one query a sequence, (B, N, 1, H), got {q.shape}")
    outputs, sent = zip(*workers.call(attend_to_run, q, k, v, n=n), strict=True)
    gathered = n * q[..., 0, 0].size * (v.shape[3] + 1) * FLOAT_BYTES
    expected = {"all_gather": all_gather_bytes(gathered, n)}
    return compare(outputs[0], attention(q, k, v), sent, expected)


def attend_to_run(comm: Communicator, q: Array, k: Array, v: Array) -> tuple[Array, dict[str, int]]:
    """Return the attention of q over all keys, of which this process reads its run only.

    What goes round is the mean over the run and its log-sum, H + 1 numbers a query: no key and no
    value leaves its process, however long the text.
    """
    run = split_evenly(k.shape[2], comm.n)[comm.rank]
    if len(run):
        keys, values = (x[:, :, run.start : run.stop] for x in (k, v))
        # The query comes behind all keys, so no mask is needed.
        output, log_sum = attention_part(q, keys, values, slice(None), causal=False)
    else:  # more processes than keys
        output = np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
        log_sum = np.full(q.shape[:3], -np.inf, q.dtype)
    mine = torch.from_numpy(np.concatenate([output, log_sum[..., None]], axis=-1))
    parts = comm.all_gather(mine.float()).numpy()
    return merge(parts[..., :-1], parts[..., -1]), dict(comm.sent)
