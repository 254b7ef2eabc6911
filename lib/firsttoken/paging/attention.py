"""Attention that reads keys and values through block tables."""

import math
from collections.abc import Sequence

import numpy as np

from firsttoken.attention import SoftmaxMean, attention
from firsttoken.checks import check_count
from firsttoken.paging.cache import gather
from firsttoken.sampling.logits import as_floats

Array = np.ndarray


def paged_attention(
    q: Array,
    keys: Array,
    values: Array,
    block_tables: Sequence[Sequence[int]],
    lengths: Sequence[int],
    form: str = "merge",
    part: int = 1024,
) -> Array:
    """Return the causal attention of each sequence's T newest tokens, read through block tables.

    Sequence i has lengths[i] tokens in the blocks that its table names; the last T are the
    queries. Two forms give the same result. "gather" copies the blocks side by side and calls
    `attention`. "merge" copies nothing: it reads block by block where the blocks lie, and keeps
    for every query the largest score so far, the sum of the weights and the weighted sum of the
    values, both relative to that score (online softmax). It merges once per `part` tokens, since
    each step of a merge costs as much as a small block.

    Shapes: q (B, N, T, H); keys, values (n_blocks, K, block_size, H), one layer of a `PagedCache`;
            result (B, N, T, H). float16 becomes float32.
    Raises: ValueError for shapes that do not fit together, a q of integers, tables or lengths that
            are not one per sequence, blocks that are not there, a length below T or beyond its
            table, an unknown form, and a part below 1.
    Source: Kwon et al. 2023, arXiv:2309.06180, sec. 4.1, eq. 4; Milakov & Gimelshein 2018,
            arXiv:1805.02867, sec. 3.1 (merging)

    >>> keys = np.zeros((3, 1, 2, 1))  # three blocks of two tokens; equal scores: plain means
    >>> values = np.arange(6.0).reshape(3, 1, 2, 1)
    >>> paged_attention(np.zeros((1, 1, 1, 1)), keys, values, [[2, 0]], [3]).item()  # of 4, 5, 0
    3.0
    """
    _check_paged(q, keys, values, block_tables, lengths)
    check_count("part", part, at_least=1)
    if form not in ("gather", "merge"):
        raise ValueError(f"form must be 'gather' or 'merge', got {form!r}")
    q = as_floats(q)
    result = np.empty_like(q)
    for out, query, table, length in zip(result, q, block_tables, lengths, strict=True):
        if form == "gather":
            k, v = (gather(stored, table, length) for stored in (keys, values))
            out[:] = attention(query[None], k, v)[0]
        else:
            out[:] = _merged_attention(query, keys, values, table, length, part)
    return result


def _merged_attention(
    query: Array, keys: Array, values: Array, table: Sequence[int], length: int, part: int
) -> Array:
    """Attend from (N, T, H) to the blocks of a table, without a copy of them."""
    n_new, head_dim = query.shape[1:]
    n_kv_heads, block_size = keys.shape[1:3]
    rows = (query / math.sqrt(head_dim)).reshape(n_kv_heads, -1, head_dim)  # [K, G·T, H]
    keys = keys.swapaxes(2, 3)  # a view: [n_blocks, K, H, block_size]
    table = table[: math.ceil(length / block_size)]  # there may be room for more already
    position = np.arange(length - n_new, length)[:, None]  # of each query

    mean = SoftmaxMean(rows.shape, rows.dtype)
    per_part = max(1, part // block_size)
    for first in range(0, len(table), per_part):
        blocks = table[first : first + per_part]
        start, end = first * block_size, min((first + len(blocks)) * block_size, length)
        scores = np.concatenate([rows @ keys[block] for block in blocks], axis=-1)
        scores = scores[..., : end - start]  # [K, G·T, end - start]; empty slots are cut off
        if end > length - n_new + 1:  # some of these keys come after some of the queries
            by_query = scores.reshape(n_kv_heads, -1, n_new, end - start)  # a view
            np.copyto(by_query, -np.inf, where=np.arange(start, end) > position)
        parts = [values[block] for block in blocks]
        parts[-1] = parts[-1][:, : (end - start - 1) % block_size + 1]
        mean.add(scores, parts)
    return mean.result().reshape(query.shape)


def _check_paged(
    q: Array,
    keys: Array,
    values: Array,
    block_tables: Sequence[Sequence[int]],
    lengths: Sequence[int],
) -> None:
    fits = q.ndim == 4 and keys.ndim == 4 and keys.shape == values.shape
    if not fits or q.shape[3] != keys.shape[3] or q.shape[1] % keys.shape[1]:
        raise ValueError(
            f"q {q.shape}, keys {keys.shape} and values {values.shape} do not fit together: "
            "expected q (B, N, T, H), keys and values (n_blocks, K, block_size, H) with N a "
            "multiple of K"
        )
    if not np.issubdtype(q.dtype, np.floating):
        raise ValueError(f"q must hold floating-point numbers, got {q.dtype}")
    if len(block_tables) != q.shape[0] or len(lengths) != q.shape[0]:
        raise ValueError(
            f"{len(block_tables)} block_tables and {len(lengths)} lengths, expected one per "
            f"sequence: {q.shape[0]}"
        )
    for table, length in zip(block_tables, lengths, strict=True):
        if not q.shape[2] <= length <= len(table) * keys.shape[2]:
            raise ValueError(
                f"lengths: {length} tokens, expected T = {q.shape[2]} to "
                f"{len(table) * keys.shape[2]}, what the table's {len(table)} blocks hold"
            )
        if len(table) and not 0 <= min(table) <= max(table) < keys.shape[0]:
            raise ValueError(
                f"block_tables: {list(table)}, expected blocks in 0 … {keys.shape[0] - 1}"
            )
