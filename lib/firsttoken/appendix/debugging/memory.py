"""Memory: it does not start, it runs out, it is full, it is never given back."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from firsttoken.appendix.debugging.finding import HEALTHY, Finding
from firsttoken.architectures import Architecture
from firsttoken.checks import check_count, check_share
from firsttoken.engine import Engine
from firsttoken.kv_cache import kv_cache_bytes, max_context
from firsttoken.units import GB, bytes_per_element, format_bytes


def why_the_server_does_not_start(
    arch: Architecture,
    memory_bytes: float,
    share: float,
    max_len: int,
    *,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    workspace_bytes: float = 2 * GB,
) -> Finding:
    """Say why an engine refuses to start on a card: weights, or a context longer than what is left.

    `share` is how much of the memory it may take (`gpu_memory_utilization`), `max_len` the longest
    text it promises (`max_model_len`): the cache must hold at least one of these.

    Units:  bytes, tokens
    Raises: ValueError for a share outside 0 … 1, and as `max_context`.
    """
    check_share(share=share)
    check_count("max_len", max_len, at_least=1)
    weights = arch.n_params * bytes_per_element(dtype)
    budget = share * memory_bytes
    said = f"{weights / GB:.1f} GB of weights in {budget / GB:.1f} of {memory_bytes / GB:.0f} GB"
    if weights + workspace_bytes >= budget:
        if weights + workspace_bytes < 0.95 * memory_bytes:
            return Finding("share too small", f"{said}; the card could hold them.")
        return Finding("weights", f"{said}: fewer bits, or more cards.")
    left = max_context(arch, budget, 1, dtype, kv_dtype, workspace_bytes)
    if left < max_len:
        return Finding("context too long", f"{said}; {left} tokens fit, {max_len} are promised.")
    return Finding(HEALTHY, f"{said}; {left / max_len:.1f} texts of {max_len} tokens fit.")


def why_memory_runs_out(
    arch: Architecture,
    memory_bytes: float,
    lengths: Sequence[int],
    *,
    reserved_len: int | None = None,
    prefill_tokens: int = 0,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
) -> Finding:
    """Say what fills a card: weights, the cache, what is reserved and unused, or one pass.

    `lengths` are the tokens of the texts in flight. `reserved_len` is how many places each of them
    is given from the start, None for blocks on demand. A pass over `prefill_tokens` that asks for
    the logits of all of them makes that many rows of the vocabulary in fp32.

    Units:  bytes, tokens
    Raises: ValueError for lengths below one, and longer than what is reserved.
    """
    lengths = [check_count("lengths", n, at_least=1) for n in lengths]
    if reserved_len is not None and max(lengths, default=0) > reserved_len:
        raise ValueError(f"lengths must be at most reserved_len, {reserved_len}: {max(lengths)}")
    weights = arch.n_params * bytes_per_element(dtype)
    used = sum(kv_cache_bytes(arch, n, 1, kv_dtype) for n in lengths)
    held = used
    if reserved_len is not None:
        held = len(lengths) * kv_cache_bytes(arch, reserved_len, 1, kv_dtype)
    peak = 4.0 * prefill_tokens * arch.vocab_size
    said = f"{weights / GB:.1f} GB of weights, {used / GB:.1f} of cache in use"
    if weights > memory_bytes:
        return Finding("weights", f"{said}, {memory_bytes / GB:.1f} in all.")
    if weights + used > memory_bytes:
        return Finding("texts in flight", f"{said}, {memory_bytes / GB:.1f} in all.")
    if weights + held > memory_bytes:
        share = (weights + used) / memory_bytes
        return Finding(
            "reservation", f"{said}, {held / GB:.1f} reserved: full at {100 * share:.0f} % in use."
        )
    if weights + held + peak > memory_bytes:
        return Finding("one long pass", f"{said}, {peak / GB:.1f} for the logits of one prompt.")
    rest = memory_bytes - weights - held - peak
    return Finding(HEALTHY, f"{said}, {rest / GB:.1f} GB free; if not, somebody else has them.")


def why_the_cache_is_larger_than_computed(
    arch: Architecture, n_tokens: int, measured_bytes: float, dtype: str = "bf16"
) -> Finding:
    """Say which slip makes a measured cache differ from the formula.

    Keys and values, of every layer, for each KV head: that is what a token takes. An engine that
    keeps query heads, or another format, is off by a factor that tells. Measure what the tokens
    take, not the pool, which is as large as memory allows.

    Units:  bytes
    Raises: ValueError for a size that is not positive.
    """
    if not measured_bytes > 0:
        raise ValueError(f"measured_bytes must be positive, got {measured_bytes!r}")
    right = kv_cache_bytes(arch, n_tokens, 1, dtype)
    ratio = measured_bytes / right
    said = (
        f"{format_bytes(measured_bytes, 'GB', 3)} are {ratio:.2f} × {format_bytes(right, 'GB', 3)}"
    )
    formats = [bytes_per_element(f) / bytes_per_element(dtype) for f in ("fp32", "bf16", "fp8")]
    slips = {
        "query heads kept": [arch.n_heads / arch.n_kv_heads],
        "another format": formats,
        "GiB taken for GB": [GB / 2**30, 2**30 / GB],
    }
    if abs(ratio - 1) < 0.02:
        return Finding(HEALTHY, f"{said}.")
    for name, factors in slips.items():
        if any(abs(factor - 1) > 0.02 and abs(ratio / factor - 1) < 0.02 for factor in factors):
            return Finding(name, f"{said}.")
    return Finding("no such slip", f"{said}.")


def why_requests_are_preempted(
    n_blocks: int,
    block_size: int,
    lengths: Sequence[int],
    max_batch: int,
    *,
    free_bytes: float = 0.0,
    bytes_per_token: float = 0.0,
) -> Finding:
    """Say why requests have to give their blocks back: more places than blocks, or too few blocks.

    `lengths` are texts at their end, prompt and answer. As many of the average as there are places
    must fit. `free_bytes` is memory that lies idle beside the pool.

    Units:  tokens, bytes
    Raises: ValueError for sizes below one.
    """
    for name, value in (
        ("n_blocks", n_blocks),
        ("block_size", block_size),
        ("max_batch", max_batch),
    ):
        check_count(name, value, at_least=1)
    per_text = float(
        np.mean([-(-check_count("lengths", n, at_least=1) // block_size) for n in lengths])
    )
    wanted = per_text * max_batch
    said = f"{max_batch} places × {per_text:.0f} blocks are {wanted:.0f}, of {n_blocks}"
    if wanted <= n_blocks:
        return Finding(HEALTHY, f"{said}.")
    lacking = (wanted - n_blocks) * block_size * bytes_per_token
    if bytes_per_token and free_bytes >= lacking:
        return Finding("pool too small", f"{said}; {free_bytes / GB:.1f} GB lie idle beside it.")
    return Finding("too many places", f"{said}; {n_blocks / per_text:.0f} places would do.")


@dataclass(frozen=True)
class Reading:
    """What a service shows at one moment: who still waits for an answer, requests, memory.

    clients: answers that somebody still waits for. A connection may ask for several.

    Units:  blocks, bytes
    """

    clients: int
    running: int
    waiting: int
    used_blocks: int
    host_bytes: float = 0.0

    @classmethod
    def of(cls, engine: Engine, clients: int, host_bytes: float = 0.0) -> "Reading":
        """Read an engine; who its clients are only its front knows."""
        stats = engine.stats
        return cls(clients, stats.running, stats.waiting, stats.usage.used, host_bytes)


def why_a_restart_helps(readings: Sequence[Reading]) -> Finding:
    """Say what piles up in a service until it is started again.

    Blocks that nobody holds any more and the pool never got back; requests whose clients have
    gone; a line that grows since more comes than goes; or the host's memory.

    Raises: ValueError for fewer than two readings, in the order in which they were taken.
    """
    readings = list(readings)
    if len(readings) < 2:
        raise ValueError(f"readings must be at least 2, got {len(readings)}")
    last = readings[-1]
    for r in readings:
        if r.running == 0 and r.waiting == 0 and r.used_blocks > 0:
            return Finding("blocks leak", f"{r.used_blocks} blocks are held while nobody runs.")
    if last.running + last.waiting > last.clients:
        n = last.running + last.waiting
        return Finding("clients gone", f"{n} requests, and {last.clients} answers awaited.")
    line = [r.waiting for r in readings]
    if line[-1] > line[0] and line == sorted(line):
        return Finding("line grows", f"{line[0]} waited, then {line[-1]}: more come than go.")
    host = [r.host_bytes for r in readings]
    if host[0] > 0 and host[-1] > 1.5 * host[0]:
        grown = f"{format_bytes(host[0], 'GB')} to {format_bytes(host[-1], 'GB')}"
        return Finding("host memory", f"It went from {grown}.")
    return Finding(HEALTHY, f"{last.used_blocks} blocks for {last.running} requests.")
