"""Speed of the batching simulator: simulated requests per second of real time, by policy.

    python benchmarks/simulator.py            # prints a table, writes data/measured/simulator.json
    python benchmarks/simulator.py --out mine.json

The service is Llama-3-8B on an H100 (bf16), by formula; prompts of 512 tokens, answers of 128, 64
requests per step, arrivals at 0.7 of what continuous batching can serve. Static and dynamic
batches bear less: there the queue grows through the whole trace. Each policy serves the same
requests in turn, several times; what counts is the median.
"""

import argparse
import json
import platform
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
from tqdm import tqdm

from firsttoken.architectures import ARCHITECTURES
from firsttoken.batching import poisson_trace, simulate
from firsttoken.hardware import ACCELERATORS
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.paging import BlockPool
from firsttoken.paths import data_path
from firsttoken.provenance import code_digest, commit, processor

MEASURED_CODE = code_digest(
    [
        "batching",
        "kv_cache",
        "metrics",
        "paging/pool",
    ]
)

N_PROMPT, N_OUTPUT, MAX_BATCH, LOAD = 512, 128, 64, 0.7
N_REQUESTS, ROUNDS = 10_000, 5
ARCH, CARD = ARCHITECTURES["Llama-3-8B"], ACCELERATORS["H100-SXM"]
WEIGHTS_S = 2 * ARCH.n_params / CARD.bandwidth
TOKEN_S = 2 * ARCH.n_params / CARD.peak_flops["bf16"]
CACHE_S = kv_cache_bytes(ARCH, 1) / CARD.bandwidth


def step_s(prefills, decodes):
    """The weights are read, or the arithmetic done, whichever takes longer; then the caches."""
    n_tokens = len(decodes) + sum(new for new, _ in prefills)
    return max(WEIGHTS_S, n_tokens * TOKEN_S) + sum(decodes) * CACHE_S


def settings() -> dict:
    """Name to the arguments of `simulate`; a pool is made anew for each run."""
    n_blocks = MAX_BATCH * (N_PROMPT + N_OUTPUT) // 16 // 4  # too few: requests are preempted
    return {
        "static": lambda: {"policy": "static"},
        "dynamic": lambda: {"policy": "dynamic"},
        "continuous": lambda: {"policy": "continuous"},
        "chunked, 512 tokens": lambda: {"policy": "chunked", "token_budget": 512},
        "continuous, fair": lambda: {"policy": "continuous", "fair": True},
        "continuous, pool": lambda: {"policy": "continuous", "pool": BlockPool(n_blocks, 16)},
    }


def capacity() -> float:
    """Requests per second while all places are taken: half the tokens of a burst, in its middle."""
    rng = np.random.default_rng(1)
    burst = poisson_trace(1e9, 1500, rng, N_PROMPT, N_OUTPUT)  # all at once
    traces = simulate(burst, "continuous", step_s, max_batch=MAX_BATCH)
    times = np.concatenate([trace.token_times_s for trace in traces])
    low, high = np.quantile(times, [0.25, 0.75])
    return len(times) / 2 / (high - low) / N_OUTPUT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=data_path("measured/simulator.json"))
    options = parser.parse_args()
    rate = LOAD * capacity()
    requests = poisson_trace(rate, N_REQUESTS, np.random.default_rng(0), N_PROMPT, N_OUTPUT)
    seconds = {name: [] for name in settings()}
    n_steps = {}
    for _ in tqdm(range(ROUNDS), desc="rounds"):
        for name, policy in settings().items():
            steps = []

            def counted(prefills, decodes, steps=steps):
                steps.append(len(decodes))
                return step_s(prefills, decodes)

            start = time.perf_counter()
            simulate(requests, cost=counted, max_batch=MAX_BATCH, **policy())
            seconds[name].append(time.perf_counter() - start)
            n_steps[name] = len(steps)
    speed = {name: N_REQUESTS / float(np.median(s)) for name, s in seconds.items()}
    for name, per_s in speed.items():
        print(f"{name:22s} {per_s:9,.0f} requests/s   {n_steps[name] / N_REQUESTS:5.2f} steps each")
    report = {
        "tokens": {"prompt": N_PROMPT, "output": N_OUTPUT},
        "max_batch": MAX_BATCH,
        "load": LOAD,
        "rate_per_s": round(rate, 3),
        "requests": N_REQUESTS,
        "rounds": ROUNDS,
        "requests_per_s": {name: round(per_s) for name, per_s in speed.items()},
        "steps_per_request": {name: round(n / N_REQUESTS, 3) for name, n in n_steps.items()},
        "seed": 0,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "measured_code": MEASURED_CODE,
        "machine": processor(),
        "versions": {"python": platform.python_version(), "numpy": version("numpy")},
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
