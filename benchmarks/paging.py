"""Cost of reading keys and values through a block table, against dense decode attention.

    python benchmarks/paging.py                 # prints a table, writes data/measured/paging.json
    python benchmarks/paging.py --out mine.json

Every sequence has one new query. Its blocks lie in random order in a pool that is twice as large
as needed. The programs run in turn, many times; what counts is the ratio of their fastest runs
within this one run, since a busy machine stretches the others.
"""

import argparse
import json
import os
import platform
import time
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

# One thread for all: else the dense product alone would use several.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
from tqdm import tqdm

from firsttoken.attention import attention
from firsttoken.paging import paged_attention
from firsttoken.paths import data_path
from firsttoken.provenance import code_digest, commit, load_average, processor

MEASURED_CODE = code_digest(
    [
        "attention",
        "paging/attention",
        "paging/cache",
    ]
)

# Name: sequences, query heads, KV heads, head size, context
SHAPES = {
    "Llama-2-7B, 8 heads of one layer": (4, 8, 8, 128, 2048),
    "Llama-3-8B, one layer": (4, 32, 8, 128, 2048),
    "the shipped model, one layer": (8, 6, 2, 32, 1024),
}
BLOCK_SIZES, FORMS, ROUNDS = (16, 32, 64, 128), ("gather", "merge"), 41


def programs(shape: tuple[int, ...], rng: np.random.Generator) -> dict:
    """Name to a function that attends; all of them to the same keys and values."""
    batch, n_heads, n_kv_heads, head_dim, context = shape
    q = rng.normal(size=(batch, n_heads, 1, head_dim)).astype(np.float32)
    k, v = rng.normal(size=(2, batch, n_kv_heads, context, head_dim)).astype(np.float32)
    found = {"dense": partial(attention, q, k, v)}
    for block_size in BLOCK_SIZES:
        n_blocks = 2 * batch * context // block_size
        tables = rng.permutation(n_blocks)[: n_blocks // 2].reshape(batch, -1)
        blocks = np.zeros((2, n_blocks, n_kv_heads, block_size, head_dim), dtype=np.float32)
        for stored, dense in zip(blocks, (k, v), strict=True):
            for table, sequence in zip(tables, dense, strict=True):
                in_blocks = sequence.reshape(n_kv_heads, -1, block_size, head_dim)
                stored[table] = in_blocks.swapaxes(0, 1)
        for form in FORMS:
            found[f"{form} {block_size}"] = partial(
                paged_attention, q, *blocks, tables.tolist(), [context] * batch, form
            )
    return found


def measure(shape: tuple[int, ...]) -> dict:
    """Times and ratios of one shape."""
    candidates = programs(shape, np.random.default_rng(0))
    expected = candidates["dense"]()
    difference = max(float(np.abs(run() - expected).max()) for run in candidates.values())
    seconds = {name: [] for name in candidates}
    for _ in tqdm(range(ROUNDS), desc=str(shape)):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    fastest = {name: min(times) for name, times in seconds.items()}
    return {
        "batch, heads, KV heads, head size, context": shape,
        "dense_ms": round(1e3 * fastest["dense"], 3),
        "times_dense": {name: round(s / fastest["dense"], 2) for name, s in fastest.items()},
        "max_abs_difference": difference,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=data_path("measured/paging.json"))
    options = parser.parse_args()
    load = load_average()
    results = {name: measure(shape) for name, shape in SHAPES.items()}
    report = {
        "rounds": ROUNDS,
        "results": results,
        "measured": datetime.now(UTC).strftime("%Y-%m-%d"),
        "seed": 0,
        "commit": commit(),
        "measured_code": MEASURED_CODE,
        "machine": f"{processor()}, 1 thread",
        "load_average_before": load,
        "versions": {"python": platform.python_version(), "numpy": version("numpy")},
    }
    for name, result in results.items():
        print(f"{name}: dense {result['dense_ms']} ms; times dense")
        print("  block size" + "".join(f"{size:8d}" for size in BLOCK_SIZES))
        for form in FORMS:
            times = (result["times_dense"][f"{form} {size}"] for size in BLOCK_SIZES)
            print(f"  {form:10s}" + "".join(f"{ratio:8.2f}" for ratio in times))
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
