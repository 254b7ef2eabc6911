"""FlashAttention: exact attention block by block, and over keys in several runs."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from firsttoken.attention import SoftmaxMean, check_shapes
from firsttoken.checks import check_count
from firsttoken.sampling.logits import as_floats

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Step:
    """What a block of queries knows after one more block of keys.

    `queries` and `keys` are the two blocks, `seen` says whether the keys were read: keys that all
    come after all of the queries are not. `peak` is the largest score so far, `total` the sum of
    the weights and `mixed` the weighted sum of the values, both relative to the peak. `last` says
    that no more keys follow: then mixed / total is the block's result.

    Shapes: t queries in the block; peak, total (…, t, 1); mixed (…, t, H)
    """

    queries: slice
    keys: slice
    seen: bool
    last: bool
    peak: Array
    total: Array
    mixed: Array


def flash_steps(
    q: Array, k: Array, v: Array, block_q: int = 64, block_k: int = 64, causal: bool = True
) -> Iterator[Step]:
    """Attend block by block, and stop after each one to show what is known so far.

    A block of queries is held, and the blocks of keys and values pass by it once. The softmax
    cannot wait for all scores, so its sums are kept relative to the largest one so far, and shrink
    when a larger one comes.

    Shapes: q (…, T, H), k (…, S, H), v (…, S, any), of one head or of many whose leading axes
            broadcast; query i sits at position S - T + i
    Raises: ValueError for a block below 1 and T > S.
    Source: Dao et al. 2022, arXiv:2205.14135, alg. 1; Dao 2023, arXiv:2307.08691, alg. 1 (its order
            of the loops, and one division at the end)

    >>> q, k, v = np.zeros((2, 1)), np.zeros((2, 1)), np.array([[2.0], [4.0]])
    >>> [(s.queries.start, s.keys.start, s.seen) for s in flash_steps(q, k, v, 1, 1)]
    [(0, 0, True), (0, 1, False), (1, 0, True), (1, 1, True)]
    """
    check_count("block_q", block_q, at_least=1)
    check_count("block_k", block_k, at_least=1)
    n_new, n_keys = q.shape[-2], k.shape[-2]
    if n_new > n_keys:
        raise ValueError(f"q holds T = {n_new} queries, k only S = {n_keys} keys: expected T <= S")
    leading = np.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    for queries in _blocks(n_new, block_q):
        rows = as_floats(q[..., queries, :]) / math.sqrt(q.shape[-1])
        first, end = (n_keys - n_new + i for i in (queries.start, queries.stop))  # positions
        shape = (*leading, end - first, v.shape[-1])
        mean = SoftmaxMean(shape, np.result_type(rows, k, v))
        for keys in _blocks(n_keys, block_k):
            seen = not causal or keys.start < end
            if seen:
                scores = rows @ k[..., keys, :].swapaxes(-2, -1)
                if causal and keys.stop > first + 1:  # else no key comes after any of the queries
                    _hide_later(scores, first, keys)
                mean.add(scores, [v[..., keys, :]])
            state = mean.peak.copy(), mean.total.copy(), mean.mixed.copy()
            yield Step(queries, keys, seen, keys.stop == n_keys, *state)


def flash_attention(
    q: Array, k: Array, v: Array, block_q: int = 64, block_k: int = 64, causal: bool = True
) -> Array:
    """Return what `attention` returns, without ever holding the T × S scores.

    Only the scores of one block of queries and one of keys exist at a time. Blocks of keys that lie
    wholly in the future are not read: with `causal` and T = S that is nearly half of them.

    Shapes: q (B, N, T, H); k, v (B, K, S, H); result (B, N, T, H). Values, and with them the
            result, may be of another size. float16 becomes float32. Blocks need not divide T and S,
            and may exceed them.
    Raises: ValueError for shapes that do not fit together, T > S, and a block below 1.
    Source: Dao et al. 2022, arXiv:2205.14135, alg. 1; Dao 2023, arXiv:2307.08691, alg. 1

    >>> q, k = np.zeros((1, 1, 2, 1)), np.zeros((1, 1, 2, 1))  # equal scores: plain means
    >>> flash_attention(q, k, v=np.array([[[[2.0], [4.0]]]]), block_k=1).ravel().tolist()
    [2.0, 3.0]
    """
    check_shapes(q, k, v)
    result = np.empty((*q.shape[:3], v.shape[3]), np.result_type(as_floats(q[:0]), k, v))
    by_group = _by_group(result, k.shape[1])  # a view
    for step in flash_steps(*_grouped(q, k, v), block_q, block_k, causal):
        if step.last:
            by_group[..., step.queries, :] = step.mixed / step.total
    return result


def attention_part(
    q: Array, k: Array, v: Array, keys: slice, causal: bool = True
) -> tuple[Array, Array]:
    """Return (output, log_sum): what attention to a run of the keys alone gives, for `merge`.

    The output is the mean over these keys, the log-sum the logarithm of Σ exp(score) over them. A
    query that may see none of them has zeros and -inf.

    Shapes: q (B, N, T, H); k, v (B, K, S, H); output (B, N, T, H), log_sum (B, N, T). float16
            becomes float32.
    Raises: ValueError for shapes that do not fit together, T > S, and a run with a step or without
            keys.
    Source: Dao, Haziza, Massa & Sizov 2023, "Flash-Decoding for long-context inference"

    >>> q, k = np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 3, 1))
    >>> output, log_sum = attention_part(q, k, np.ones_like(k), slice(0, 2))
    >>> output.item(), np.exp(log_sum).round(12).item()
    (1.0, 2.0)
    """
    check_shapes(q, k, v)
    n_new, n_keys = q.shape[2], k.shape[2]
    start, stop, step = keys.indices(n_keys)
    if step != 1 or start >= stop:
        raise ValueError(f"keys must be a run of the {n_keys} keys, at least one; got {keys}")
    rows, k, v = _grouped(q, k[:, :, start:stop], v[:, :, start:stop])
    scores = as_floats(rows) / math.sqrt(q.shape[3]) @ k.swapaxes(-2, -1)  # [B, K, G, T, keys]
    if causal:
        _hide_later(scores, n_keys - n_new, slice(start, stop))
    mean = SoftmaxMean((*rows.shape[:-1], v.shape[-1]), np.result_type(scores, v))
    mean.add(scores, [v])
    seen = mean.total > 0
    output = np.divide(mean.mixed, mean.total, out=np.zeros_like(mean.mixed), where=seen)
    with np.errstate(divide="ignore"):  # log(0) is the -inf that `merge` expects
        log_sum = mean.peak + np.log(mean.total)
    return output.reshape(*q.shape[:3], v.shape[-1]), log_sum.reshape(q.shape[:3])


def split_kv_attention(q: Array, k: Array, v: Array, n_splits: int, causal: bool = True) -> Array:
    """Return what `attention` returns, from runs of keys that know nothing of each other.

    A decode step has one query per head: there are no blocks of queries to share out, and with few
    sequences most of a large device would wait. So the keys are shared out, and the partial results
    merged.

    Shapes: q (B, N, T, H); k, v (B, K, S, H); result (B, N, T, H). float16 becomes float32. With
            more splits than keys, each key is a run.
    Raises: ValueError for shapes that do not fit together, T > S, and n_splits below 1.
    Source: Dao, Haziza, Massa & Sizov 2023, "Flash-Decoding for long-context inference"

    >>> q, k = np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 3, 1))
    >>> v = np.array([9.0, 2.0, 4.0]).reshape(1, 1, 3, 1)
    >>> round(split_kv_attention(q, k, v, n_splits=2).item(), 12)  # 9 of one key, 3 of two
    5.0
    """
    check_count("n_splits", n_splits, at_least=1)
    check_shapes(q, k, v)
    n_keys = k.shape[2]
    if n_keys == 0:  # and so no queries
        return flash_attention(q, k, v)
    n_parts = min(n_splits, n_keys)
    ends = [part * n_keys // n_parts for part in range(n_parts + 1)]
    parts = [attention_part(q, k, v, slice(*run), causal) for run in itertools.pairwise(ends)]
    outputs, log_sums = map(np.stack, zip(*parts, strict=True))
    return merge(outputs, log_sums)


def merge(outputs: Array, log_sums: Array) -> Array:
    """Return the result over all keys from results over parts of them.

    A part's result is a mean weighted by exp(score), and its log-sum the logarithm of the sum of
    these weights. The mean of the parts, weighted by exp(log-sum), is the mean over all. How the
    keys were cut, and in which order the parts come, makes no difference.

    A part that saw no key has the log-sum -inf, and weighs nothing, whatever its output holds.

    Shapes: outputs (n, …, H), log_sums (n, …); result (…, H). float16 becomes float32.
    Raises: ValueError for shapes that do not fit together, NaN or inf among the log-sums, and where
            all parts have -inf: there is nothing to take a mean of.
    Source: Milakov & Gimelshein 2018, arXiv:1805.02867, sec. 3.1

    >>> merge(np.array([[3.0], [9.0]]), np.log([2.0, 1.0])).round(12).tolist()
    [5.0]
    """
    outputs, log_sums = as_floats(outputs), as_floats(log_sums)
    if log_sums.ndim == 0 or outputs.shape[:-1] != log_sums.shape:
        raise ValueError(
            f"outputs {outputs.shape} must be (n, …, H), log_sums {log_sums.shape} (n, …)"
        )
    if not (log_sums < np.inf).all():
        raise ValueError("log_sums must be finite or -inf, got NaN or inf")
    if (log_sums == -np.inf).all(axis=0).any():
        raise ValueError("log_sums are all -inf somewhere: there is nothing to take a mean of")
    weights = np.exp(log_sums - log_sums.max(axis=0))[..., None]  # exp cannot overflow
    mixed = np.zeros(outputs.shape, np.result_type(outputs, weights))
    np.multiply(weights, outputs, out=mixed, where=weights > 0)  # 0 · NaN would be NaN
    return mixed.sum(axis=0) / weights.sum(axis=0)


def _blocks(n: int, size: int) -> Iterator[slice]:
    """Cut n into slices of a size; the last may be shorter."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def _hide_later(scores: Array, first: int, keys: slice) -> None:
    """Set the scores (…, T, keys) of keys after their query to -inf; `first`: where query 0 is."""
    query = first + np.arange(scores.shape[-2])[:, None]
    np.copyto(scores, -np.inf, where=np.arange(keys.start, keys.stop) > query)


def _by_group(x: Array, n_kv_heads: int) -> Array:
    """View (B, N, T, H) as (B, K, G, T, H): the G query heads that read one KV head."""
    batch, n_heads, n_new, head_dim = x.shape
    return x.reshape(batch, n_kv_heads, n_heads // n_kv_heads, n_new, head_dim)


def _grouped(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Give all three five axes (B, K, G or 1, T or S, H): k and v are read by G heads, uncopied."""
    return _by_group(q, k.shape[1]), k[:, :, None], v[:, :, None]
