"""FlashAttention in PyTorch, on the CPU's cores: same signatures and results as `firsttoken.flash`.

Every product and every pass over a block of scores is one call, and nothing is allocated in the
inner loop but a few numbers per query. As many KV heads as there are threads go side by side, so
that each thread has a block of scores that fits its cache.
"""

import math
from typing import Any, cast

import torch
from torch import Tensor

from firsttoken.attention import check_shapes
from firsttoken.checks import check_count


@torch.no_grad()
def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, block_q: int = 256, block_k: int = 512, causal: bool = True
) -> Tensor:
    """Return what `flash.flash_attention` returns: attention, without the T × S scores.

    The blocks are larger than the reference's: 512 KiB of scores in float32 for each query head of
    a group, half of a typical core's L2 where keys are not shared. The weights are powers of 2, of
    scores multiplied by log2(e): exp2 is the cheaper function, here as on a GPU.

    Shapes: q (B, N, T, H); k, v (B, K, S, H); result (B, N, T, H). Formats narrower than float32
            are computed with in float32, block by block, and the result is float32.
    Raises: ValueError for shapes that do not fit together, T > S, and a block below 1.
    Source: Dao 2023, arXiv:2307.08691, alg. 1

    >>> q, k = torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 2, 1)  # equal scores: plain means
    >>> flash_attention(q, k, v=torch.tensor([[[[2.0], [4.0]]]])).ravel().tolist()
    [2.0, 3.0]
    """
    check_count("block_q", block_q, at_least=1)
    check_count("block_k", block_k, at_least=1)
    check_shapes(*cast("tuple[Any, Any, Any]", (q, k, v)))
    n_new, n_keys = q.shape[2], k.shape[2]
    block_q, block_k = min(block_q, max(n_new, 1)), min(block_k, max(n_keys, 1))
    by_group, keys, values = _grouped(q, k, v)
    n_kv_heads, group = by_group.shape[:2]  # of all sequences; query heads of each
    side_by_side = min(n_kv_heads, torch.get_num_threads())
    scores = by_group.new_empty(side_by_side * group * block_q * block_k, dtype=_dtype(q, k, v))
    result = scores.new_empty(n_kv_heads, group, n_new, v.shape[3])
    for head in range(0, n_kv_heads, side_by_side):
        heads = slice(head, head + side_by_side)
        for start in range(0, n_new, block_q):
            queries = slice(start, min(start + block_q, n_new))
            rows = by_group[heads, :, queries].to(scores.dtype)
            first = n_keys - n_new + start if causal else None
            mean = _attend(rows, keys[heads], values[heads], first, block_k, scores)
            result[heads, :, queries] = mean
    return result.view(*q.shape[:3], v.shape[3])


def _attend(
    by_group: Tensor, k: Tensor, v: Tensor, first: int | None, block_k: int, buffer: Tensor
) -> Tensor:
    """Attend from one block of queries, the first at a position (None: all see all keys).

    Shapes: by_group (m, G, t, H); k, v (m, S, H); result (m, G, t, H); m KV heads
    """
    n, group, t, head_dim = by_group.shape
    rows = (by_group * (math.log2(math.e) / math.sqrt(head_dim))).reshape(n, group * t, head_dim)
    end = k.shape[1] if first is None else first + t
    peak = rows.new_full((n, group * t, 1), -math.inf)
    total, mixed = torch.zeros_like(peak), rows.new_zeros(n, group * t, v.shape[2])
    for start in range(0, end, block_k):
        stop = min(start + block_k, end)
        scores = buffer[: n * group * t * (stop - start)].view(n, group * t, stop - start)
        torch.bmm(rows, k[:, start:stop].to(rows.dtype).mT, out=scores)
        if first is not None and stop > first + 1:  # else no key comes after any of the queries
            seen = max(start, first) - start  # what comes before, every query sees
            later = torch.ones(t, stop - start - seen, dtype=torch.bool, device=k.device)
            later.triu_(first + 1 - start - seen)
            scores.view(n, group, t, -1)[..., seen:].masked_fill_(later, -math.inf)
        # Every query sees key 0, so that the peak is finite from the first block on.
        higher = torch.maximum(peak, scores.amax(dim=2, keepdim=True))
        shrink = (peak - higher).exp2_()
        weights = scores.sub_(higher).exp2_()
        total.mul_(shrink).add_(weights.sum(dim=2, keepdim=True))
        mixed.mul_(shrink).baddbmm_(weights, v[:, start:stop].to(rows.dtype))
        peak = higher
    return mixed.div_(total).view(n, group, t, -1)


@torch.no_grad()
def split_kv_attention(
    q: Tensor, k: Tensor, v: Tensor, n_splits: int, causal: bool = True
) -> Tensor:
    """Return what `flash.split_kv_attention` returns; the runs of a head go side by side.

    Made for few queries: each head's scores are held, all of them.

    Shapes: q (B, N, T, H); k, v (B, K, S, H); result (B, N, T, H), in float32 at least
    Raises: ValueError for shapes that do not fit together, T > S, and n_splits below 1.
    Source: Dao, Haziza, Massa & Sizov 2023, "Flash-Decoding for long-context inference"

    >>> q, k = torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 3, 1)
    >>> v = torch.tensor([9.0, 2.0, 4.0]).view(1, 1, 3, 1)
    >>> round(split_kv_attention(q, k, v, n_splits=2).item(), 6)
    5.0
    """
    check_count("n_splits", n_splits, at_least=1)
    check_shapes(*cast("tuple[Any, Any, Any]", (q, k, v)))
    by_group, keys, values = _grouped(q, k, v)
    dtype, n_new, n_keys = _dtype(q, k, v), q.shape[2], k.shape[2]
    result = by_group.new_empty(*by_group.shape[:3], v.shape[3], dtype=dtype)
    if n_new == 0:
        return result.view(*q.shape[:3], v.shape[3])
    size = max(1, n_keys // n_splits)
    whole = n_keys // size * size
    for out, head, key, value in zip(result, by_group, keys, values, strict=True):
        rows = head.to(dtype) / math.sqrt(q.shape[3])  # [G, T, H]
        parts = []
        for start, stop, step in ((0, whole, size), (whole, n_keys, n_keys - whole)):
            if stop > start:  # runs of one size, and what is left over
                k_runs, v_runs = (
                    x[start:stop].unflatten(0, (-1, step)).to(dtype) for x in (key, value)
                )
                first = n_keys - n_new - start if causal and n_new > 1 else None
                parts.append(_runs(rows, k_runs, v_runs, first))
        outputs, log_sums = (torch.cat(x) for x in zip(*parts, strict=True))
        weights = log_sums.softmax(dim=0)  # [runs, G·T]
        out.copy_((weights[..., None] * outputs).sum(dim=0).view_as(out))
    return result.view(*q.shape[:3], v.shape[3])


def _runs(rows: Tensor, k: Tensor, v: Tensor, first: int | None) -> tuple[Tensor, Tensor]:
    """Return each run's output (n, G·T, H) and log-sum (n, G·T); `first`: where query 0 sits.

    Shapes: rows (G, T, H); k, v (n, s, H): n runs of s keys that follow each other
    """
    group, n_new, head_dim = rows.shape
    n, size = k.shape[:2]
    scores = torch.bmm(rows.reshape(1, -1, head_dim).expand(n, -1, -1), k.mT)  # [n, G·T, s]
    if first is not None:
        position = torch.arange(n * size, device=k.device).view(n, 1, 1, size)
        query = first + torch.arange(n_new, device=k.device)[:, None]
        scores.view(n, group, n_new, size).masked_fill_(position > query, -math.inf)
    # A query that sees none of a run: weights of 0, and a log-sum of -inf.
    peak = scores.amax(dim=2, keepdim=True).clamp_(min=torch.finfo(scores.dtype).min)
    weights = scores.sub_(peak).exp_()
    total = weights.sum(dim=2, keepdim=True)
    output = torch.bmm(weights, v).div_(total.clamp(min=torch.finfo(scores.dtype).tiny))
    return output, (peak + total.log())[..., 0]


def _grouped(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """View q as (B·K, G, T, H) and k, v as (B·K, S, H): G query heads read one KV head."""
    n_kv_heads, group = k.shape[0] * k.shape[1], q.shape[1] // k.shape[1]
    return q.reshape(n_kv_heads, group, *q.shape[2:]), k.flatten(0, 1), v.flatten(0, 1)


def _dtype(*tensors: Tensor) -> torch.dtype:
    """Return the format to compute in: float32, or what is wider."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype
