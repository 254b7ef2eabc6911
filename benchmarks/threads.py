"""A pass of the shipped model, alone and beside two busy programs, with one thread and with all.

    python benchmarks/threads.py [--out FILE]

The pass reads 100 tokens. It runs in a process that was started as a reader's is: no variable says
how many threads to take. The four cases are measured in turn, several times.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tqdm import tqdm

from firsttoken.paths import data_path
from firsttoken.provenance import code_digest, commit, load_average, processor

MEASURED_CODE = code_digest(
    [
        "attention",
        "kv_cache",
        "models/llama",
        "models/rope",
        "models/threads",
    ]
)

ROUNDS, PASSES = 4, 60
TIMES = f"""
import json, time
from firsttoken.models.llama import load_model
models = {{"one": load_model("target"), "all": load_model("target", n_threads=None)}}
ids = [list(range(5, 105))]
while kind := input():
    models[kind](ids)
    seconds = []
    for _ in range({PASSES}):
        start = time.perf_counter()
        models[kind](ids)
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds), flush=True)
"""
BUSY = "while True: sum(range(10**6))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=data_path("measured/threads.json"))
    options = parser.parse_args()
    load = load_average()
    kept = {name: text for name, text in os.environ.items() if "_NUM_THREADS" not in name}
    times: dict[tuple[str, str], list[float]] = {}
    command = [sys.executable, "-u", "-c", TIMES]
    with subprocess.Popen(
        command, env=kept, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        for _ in tqdm(range(ROUNDS), desc="rounds"):
            for company in ("alone", "beside two"):
                n = 2 if company == "beside two" else 0
                busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(n)]
                try:
                    time.sleep(1)
                    for kind in ("one", "all"):
                        print(kind, file=reader.stdin, flush=True)
                        seconds = json.loads(reader.stdout.readline())
                        times.setdefault((kind, company), []).extend(seconds)
                finally:
                    for program in busy:
                        program.kill()
                        program.wait()
        print(file=reader.stdin, flush=True)
    results = {
        f"{kind}, {company}": {
            "median_ms": round(1e3 * statistics.median(seconds), 1),
            "worst_ms": round(1e3 * max(seconds), 1),
        }
        for (kind, company), seconds in times.items()
    }
    for case, result in results.items():
        print(
            f"{case:16s} median {result['median_ms']:7.1f} ms, worst {result['worst_ms']:7.1f} ms"
        )
    report = {
        "tokens": 100,
        "passes": ROUNDS * PASSES,
        "results": results,
        "measured": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "measured_code": MEASURED_CODE,
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "load_average_before": load,
        "versions": {name: version(name) for name in ("numpy", "threadpoolctl")},
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
