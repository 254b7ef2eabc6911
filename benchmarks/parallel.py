"""Many devices as processes of this machine: equal results, bytes, times, bubbles, predictions.

    python benchmarks/parallel.py          # prints tables, writes data/measured/parallel.json
    python benchmarks/parallel.py --quick  # small sizes; writes nothing unless told where

Processes have one thread each and share this machine's cores. So what is timed has two processes on
two cores, and what four do is said beside it. In the pipeline, stages wait a fixed time for every
microbatch, in the place of devices that compute for so long; two more runs compute only.
"""

import argparse
import json
import os
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from firsttoken.parallel import pipeline_bubble, ring_all_reduce_s
from firsttoken.parallel.parallel_torch import (
    CollectiveTimes,
    Comparison,
    Workers,
    compare_sequence_parallel,
    compare_tensor_parallel,
    random_mixture,
    run_experts,
    run_pipeline,
    serve_replicas,
    tensor_decode_s,
    time_collective,
)
from firsttoken.paths import data_path
from firsttoken.provenance import code_digest, commit, load_average, processor

MEASURED_CODE = code_digest(
    [
        "attention",
        "flash/attention",
        "flash/traffic",
        "generate/drafting",
        "generate/loop",
        "models/llama_torch",
        "parallel",
    ]
)

SEED, PROCESSES, CORES = 0, (1, 2, 3, 4), 2
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
SIZES, QUICK_SIZES = [4096 * 4**i for i in range(7)], [4096, 2**22]  # 4 KiB … 16 MiB
ROUNDS, QUICK_ROUNDS = 100, 3
MICROBATCHES, QUICK_MICROBATCHES = (1, 2, 4, 8, 16), (1, 2)
DEVICE_S, STEPS, QUICK_STEPS = 0.1, 200, 4


def row(kind: str, comparison: Comparison, **more: Any) -> dict[str, Any]:
    """One line of the tables of equality and bytes."""
    relative = comparison.max_difference / comparison.largest
    sizes = {"sent": dict(comparison.sent), "expected": dict(comparison.expected)}
    numbers = {"max_difference": comparison.max_difference, "relative": relative}
    return {"kind": kind, "n": comparison.n, **numbers, **sizes, **more}


def equality(workers: Workers) -> list[dict[str, Any]]:
    """Compare each way to divide the work with one device, and count its bytes."""
    texts = [list(range(5 + i, 37 + i)) for i in range(4)]
    draw = np.random.default_rng(SEED)
    q = draw.standard_normal((4, 6, 1, 32), dtype=np.float32)
    k, v = (draw.standard_normal((4, 2, 501, 32), dtype=np.float32) for _ in range(2))
    x = torch.randn(101, 32, generator=torch.Generator().manual_seed(SEED))
    rows = []
    for n in PROCESSES:
        rows.append(row("tensor", compare_tensor_parallel(workers, texts, n)))
        rows.append(row("pipeline", run_pipeline(workers, texts, n, 4).comparison))
        experts = run_experts(workers, random_mixture(SEED), x, n)
        rows.append(row("experts", experts.comparison, imbalance=experts.imbalance))
        rows.append(row("sequence", compare_sequence_parallel(workers, q, k, v, n)))
    return rows


def replicas(workers: Workers) -> dict[str, Any]:
    """Serve requests of different lengths on all processes, and on one."""
    requests = [(list(range(5 + i, 15 + i)), 8 * (1 + i % 3)) for i in range(12)]
    run = serve_replicas(workers, requests)
    served = [run.served_by.count(rank) for rank in range(workers.n)]
    alone = serve_replicas(workers, requests, n=1)
    return {"equal": run.tokens == alone.tokens, "served": served}


def times(found: CollectiveTimes) -> dict[str, Any]:
    """A collective's times as the file keeps them."""
    return {
        "name": found.name,
        "n": found.n,
        "n_bytes": found.n_bytes,
        "seconds": found.seconds,
        "predictions": found.predictions,
        "errors": found.errors,
        "fitted_on": found.fitted_on,
        "latency_s": found.latency_s,
        "link_bandwidth": found.link_bandwidth,
    }


def bubbles(workers: Workers, quick: bool) -> list[dict[str, Any]]:
    """Measure the bubble over microbatches: four stages that wait, then two that compute."""
    counts = QUICK_MICROBATCHES if quick else MICROBATCHES
    texts = [list(range(5, 9))] * max(counts)
    long = [list(range(5, 165))] * max(counts)
    rows = []
    for stages, tokens, device_s in ((4, texts, DEVICE_S), (2, texts, DEVICE_S), (2, long, 0.0)):
        for m in counts:
            run = run_pipeline(workers, tokens, stages, m, device_s=device_s)
            expected = pipeline_bubble(stages, m)
            case = {"stages": stages, "microbatches": m, "device_s": device_s}
            rows.append(case | {"bubble": run.bubble, "expected": expected})
    return rows


def decoding(workers: Workers, link: tuple[float, float], quick: bool) -> list[dict[str, Any]]:
    """Time a decode step by processes; predict it from the computing alone and the collectives.

    A layer adds up twice, one token's activations each time.
    """
    n_steps, directory = QUICK_STEPS if quick else STEPS, data_path("model/target")
    prompt, rows = list(range(5, 37)), []
    config = json.loads((directory / "config.json").read_text())
    n_sums, n_bytes = 2 * config["num_hidden_layers"], 4 * config["hidden_size"]

    def quartile(n: int, talks: bool) -> float:
        done = workers.call(tensor_decode_s, directory, prompt, n_steps, talks, n=n)
        return float(np.quantile(np.max([seconds for _, seconds in done], axis=0), 0.25))

    latency_s, bandwidth = link
    for n in PROCESSES:
        alone_s, step_s = quartile(n, talks=False), quartile(n, talks=True)
        talk_s = n_sums * ring_all_reduce_s(n_bytes, n, bandwidth, latency_s)
        predicted_s = alone_s + talk_s
        found = {"computing_s": alone_s, "step_s": step_s, "predicted_s": predicted_s}
        rows.append({"n": n, **found, "error": predicted_s / step_s - 1})
    return rows


def measure(workers: Workers, quick: bool) -> dict[str, Any]:
    """Measure everything with a pool of at least four processes."""
    sizes, rounds = (QUICK_SIZES, QUICK_ROUNDS) if quick else (SIZES, ROUNDS)
    collectives = [
        time_collective(workers, CORES, sizes, name, rounds=rounds) for name in COLLECTIVES
    ]
    link = collectives[0].latency_s, collectives[0].link_bandwidth
    # Does the formula know what four do? Here they are more than the cores.
    four = time_collective(workers, 4, sizes, rounds=rounds, link=link)
    return {
        "equality": equality(workers),
        "replicas": replicas(workers),
        "collectives": [times(found) for found in (*collectives, four)],
        "bubbles": bubbles(workers, quick),
        "decoding": decoding(workers, link, quick),
    }


def show(results: dict[str, Any]) -> None:
    """Print the tables."""
    for r in results["equality"]:
        sent = sum(r["sent"].values())
        print(f"{r['kind']:9s} n {r['n']}  difference {r['max_difference']:.1e}  {sent:9d} bytes")
    for r in results["collectives"]:
        print(f"{r['name']:14s} n {r['n']}  {1e6 * r['latency_s']:.0f} µs a round")
        for n_bytes, seconds, error in zip(r["n_bytes"], r["seconds"], r["errors"], strict=True):
            print(f"  {n_bytes:9d} bytes {1e3 * seconds:8.3f} ms, predicted {100 * error:+.0f} %")
    for r in results["bubbles"]:
        case = f"{r['stages']} stages, {r['microbatches']:2d} microbatches, {r['device_s']} s"
        print(f"{case}  bubble {r['bubble']:.3f}, formula {r['expected']:.3f}")
    for r in results["decoding"]:
        print(f"n {r['n']}  {1e3 * r['step_s']:.2f} ms a step, predicted {100 * r['error']:+.0f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="default: data/measured/parallel.json")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    load = load_average()
    with Workers(4, timeout_s=600) as workers:
        results = measure(workers, options.quick)
    show(results)
    report = {
        "seed": SEED,
        "rounds": QUICK_ROUNDS if options.quick else ROUNDS,
        "steps": QUICK_STEPS if options.quick else STEPS,
        **results,
        "measured": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "measured_code": MEASURED_CODE,
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "load_average_before": load,
        "versions": {name: version(name) for name in ("numpy", "torch")},
    }
    if options.out is None and not options.quick:
        options.out = data_path("measured/parallel.json")
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
