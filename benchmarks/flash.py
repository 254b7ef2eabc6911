"""FlashAttention beside attention that holds all scores: time and memory, prefill and decode.

    python benchmarks/flash.py          # prints tables, writes data/measured/flash.json
    python benchmarks/flash.py --quick  # short texts; writes nothing unless told where

Prefill: 8 heads of 64 numbers in float32, causal, T = S, one thread, all programs in turn. Memory:
each program once in a process of its own, by how much the largest resident set (VmHWM) grows over
what it was before; writing 5 to clear_refs resets that mark, while ru_maxrss would also count what
the parent process held. Decode: one query against a long cache, with one thread and with two; the
splits share a cache of one KV head out among the threads.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from tqdm import tqdm

from firsttoken import flash
from firsttoken.attention import attention
from firsttoken.flash import flash_torch
from firsttoken.paths import data_path
from firsttoken.provenance import code_digest, commit, load_average, processor

MEASURED_CODE = code_digest(
    [
        "attention",
        "flash/attention",
        "flash/traffic",
        "flash/flash_torch",
    ]
)

SEED, HEADS, HEAD_DIM = 0, 8, 64
LENGTHS, CACHES, SPLITS = (1024, 4096, 8192, 16384), (16384, 65536, 262144), 16
QUICK_LENGTHS, QUICK_CACHES = (128,), (256,)
ROUNDS, DECODE_FACTOR = 3, 3  # a decode step is short: more rounds
MOST_SCORES = 8 * 8192**2  # naive programs hold two to four copies of them: 2 GiB each

Call = Callable[[], object]


def naive_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attend with all scores in memory."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu_(1)
    return scores.masked_fill_(later, -math.inf).softmax(dim=-1) @ v


def prefill(n_tokens: int) -> dict[str, Call]:
    """Name to a program that attends from n new tokens to themselves."""
    generator = torch.Generator().manual_seed(SEED)
    shape = 1, HEADS, n_tokens, HEAD_DIM
    q, k, v = (torch.randn(shape, generator=generator) for _ in range(3))
    arrays = [x.numpy() for x in (q, k, v)]
    calls: dict[str, Call] = {
        "attention, numpy": lambda: attention(*arrays),
        "attention, torch": lambda: naive_torch(q, k, v),
        "flash, numpy": lambda: flash.flash_attention(*arrays),
        "flash, torch": lambda: flash_torch.flash_attention(q, k, v),
        "SDPA": lambda: scaled_dot_product_attention(q, k, v, is_causal=True),
    }
    if HEADS * n_tokens**2 > MOST_SCORES:
        return {name: call for name, call in calls.items() if not name.startswith("attention")}
    return calls


def decode(n_cached: int, n_kv_heads: int) -> dict[str, Call]:
    """Name to a program that attends from one new token to a cache."""
    generator = torch.Generator().manual_seed(SEED)
    q = torch.randn((1, HEADS, 1, HEAD_DIM), generator=generator)
    shape = 1, n_kv_heads, n_cached, HEAD_DIM
    k, v = (torch.randn(shape, generator=generator) for _ in range(2))
    return {
        "whole": lambda: flash_torch.split_kv_attention(q, k, v, 1),
        f"{SPLITS} splits": lambda: flash_torch.split_kv_attention(q, k, v, SPLITS),
        "flash": lambda: flash_torch.flash_attention(q, k, v),
        "SDPA": lambda: scaled_dot_product_attention(q, k, v, enable_gqa=True),
    }


def in_turn(calls: dict[str, Call], rounds: int) -> dict[str, dict[str, float]]:
    """Time the programs one after the other, several times: minimum and quartiles in ms."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: summary(times) for name, times in seconds.items()}


def summary(seconds: list[float]) -> dict[str, float]:
    low, middle, high = np.quantile(seconds, (0.25, 0.5, 0.75))
    figures = {"min": min(seconds), "quartile_1": low, "median": middle, "quartile_3": high}
    return {f"{name}_ms": round(1e3 * float(x), 3) for name, x in figures.items()}


def high_water_kib() -> int:
    """Return the largest resident set since the mark was last reset."""
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1])


def grown_bytes(name: str, n_tokens: int) -> int:
    """Return by how much a program's largest resident set grows, result included."""
    prefill(64)[name]()  # what libraries load and keep on their first call
    call = prefill(n_tokens)[name]
    Path("/proc/self/clear_refs").write_text("5")
    before = high_water_kib()
    call()
    return 1024 * (high_water_kib() - before)


def in_own_process(name: str, n_tokens: int) -> int:
    """Return `grown_bytes` of a fresh process."""
    command = [sys.executable, __file__, "--memory", name, str(n_tokens)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def measure(quick: bool, rounds: int) -> dict:
    """Measure all programs at all lengths."""
    lengths, caches = (QUICK_LENGTHS, QUICK_CACHES) if quick else (LENGTHS, CACHES)
    all_prefill, all_decode = [], []
    in_turn(prefill(64), 1), in_turn(decode(64, 1), 1)  # warms up
    for n_tokens in tqdm(lengths, desc="prefill"):
        calls = prefill(n_tokens)
        times = in_turn(calls, rounds)
        for name in calls:
            grown = in_own_process(name, n_tokens)
            all_prefill.append(
                {"tokens": n_tokens, "program": name} | times[name] | {"grown_bytes": grown}
            )
    before = torch.get_num_threads()
    for n_cached, n_kv_heads in tqdm(list(product(caches, (1, HEADS))), desc="decode"):
        calls = decode(n_cached, n_kv_heads)
        for n_threads in (1, 2):
            torch.set_num_threads(n_threads)
            for name, times_ms in in_turn(calls, DECODE_FACTOR * rounds).items():
                case = {"cached": n_cached, "kv_heads": n_kv_heads, "threads": n_threads}
                all_decode.append(case | {"program": name} | times_ms)
    torch.set_num_threads(before)
    return {"prefill": all_prefill, "decode": all_decode}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="default: data/measured/flash.json")
    parser.add_argument("--quick", action="store_true", help="short texts")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of prefill")
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory:
        name, n_tokens = options.memory
        print(grown_bytes(name, int(n_tokens)))
        return
    load = load_average()
    results = measure(options.quick, options.rounds)
    for r in results["prefill"]:
        print(
            f"{r['tokens']:6d} tokens  {r['program']:17s} {r['min_ms']:10.1f} ms"
            f" {r['grown_bytes'] / 2**20:8.1f} MiB"
        )
    for r in results["decode"]:
        print(
            f"{r['cached']:6d} cached, {r['kv_heads']} KV heads, {r['threads']} threads"
            f"  {r['program']:10s} {r['min_ms']:8.2f} ms"
        )
    report = {
        "heads": HEADS,
        "head_dim": HEAD_DIM,
        "dtype": "float32",
        "seed": SEED,
        "splits": SPLITS,
        "rounds": {"prefill": options.rounds, "decode": DECODE_FACTOR * options.rounds},
        **results,
        "measured": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "measured_code": MEASURED_CODE,
        "machine": processor(),
        "load_average_before": load,
        "versions": {name: version(name) for name in ("numpy", "torch")},
    }
    if options.out is None and not options.quick:
        options.out = data_path("measured/flash.json")
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
