"""Drawing a batch's next tokens: this library's two samplers against transformers.

    python benchmarks/sampler.py            # prints a table, writes data/measured/sampler.json
    python benchmarks/sampler.py --out mine.json

transformers: its logits processors, softmax and torch.multinomial, in vLLM's order. All programs
see the same logits, in turn, several times, with one thread and with all; what counts is the ratio
of their fastest runs within this one run. Before that, the tokens that each of them keeps are
compared, row by row.
"""

import argparse
import json
import time
from importlib.metadata import version
from itertools import product
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm
from transformers.generation import logits_process

from firsttoken.paths import data_path
from firsttoken.provenance import code_digest, load_average, processor
from firsttoken.sampling import SamplingParams, next_token_distribution, sampling_torch, shortlist

MEASURED_CODE = code_digest(
    [
        "sampling/draws",
        "sampling/logits",
        "sampling/params",
        "sampling/sampling_torch",
        "sampling/shortlist",
    ]
)

BATCH, VOCABULARIES, ROUNDS = 64, (32_000, 128_256), 7  # Llama 2's and Llama 3's vocabulary
FOUR = {"temperature": 0.8, "min_p": 0.05, "top_k": 50, "top_p": 0.95}
SETTINGS = {  # which of the four are on, and the logits that they meet
    "all four": ("temperature min_p top_k top_p", "spread"),
    "top-k and top-p": ("temperature top_k top_p", "spread"),
    "top-k": ("temperature top_k", "spread"),
    "min-p": ("temperature min_p", "spread"),
    "top-p that keeps few": ("temperature top_p", "peaked"),
    "top-p that keeps thousands": ("temperature top_p", "spread"),
    "temperature only": ("temperature", "spread"),
}
LOGITS = {
    "spread": "normal, sigma 3",
    "peaked": "power laws with exponents from 1.5 to 3, one per row, in random order",
}
PROCESSORS = {  # in the order of vLLM
    "temperature": logits_process.TemperatureLogitsWarper,
    "min_p": logits_process.MinPLogitsWarper,
    "top_k": logits_process.TopKLogitsWarper,
    "top_p": logits_process.TopPLogitsWarper,
}


def some_logits(kind: str, n_vocab: int) -> np.ndarray:
    """Return (B, V) as LOGITS says."""
    rng = np.random.default_rng(0)
    if kind == "spread":
        return 3 * rng.standard_normal((BATCH, n_vocab), dtype=np.float32)
    exponent = rng.uniform(1.5, 3, size=(BATCH, 1))
    ranks = np.arange(1, n_vocab + 1)
    return rng.permuted(-exponent * np.log(ranks), axis=1).astype(np.float32)


def transformers_logits(logits: torch.Tensor, parameters: dict) -> torch.Tensor:
    """Return the logits with -inf where a processor of transformers drops a token."""
    unused_ids = torch.zeros((BATCH, 1), dtype=torch.long)
    for name, warper in PROCESSORS.items():
        if name in parameters:
            logits = warper(parameters[name])(unused_ids, logits)
    return logits


def programs(logits: np.ndarray, parameters: dict) -> dict:
    """Name to a function that draws one token per row."""
    tensor, generator = torch.from_numpy(logits), torch.Generator().manual_seed(0)
    rng = np.random.default_rng(0)

    def reference() -> torch.Tensor:
        probabilities = torch.softmax(transformers_logits(tensor, parameters), dim=-1)
        return torch.multinomial(probabilities, 1, generator=generator)

    return {
        "transformers": reference,
        "firsttoken, numpy": lambda: shortlist.sample(logits, rng, **parameters),
        "firsttoken, torch": lambda: sampling_torch.sample(tensor, generator, **parameters),
    }


def rows_that_differ(logits: np.ndarray, parameters: dict) -> dict:
    """Count rows with a shortlist, and rows whose kept tokens are not those of transformers.

    Rows without a shortlist are drawn from what the filters keep of the whole vocabulary.
    transformers is asked twice, as its sums in float32 round more than those in float64.
    """
    tensor = torch.from_numpy(logits)
    theirs = {
        "float32": torch.isfinite(transformers_logits(tensor, parameters)).numpy(),
        "float64": torch.isfinite(transformers_logits(tensor.double(), parameters)).numpy(),
    }
    filtered = next_token_distribution(logits, SamplingParams(**parameters))
    report = {}
    for name, module, array in (("numpy", shortlist, logits), ("torch", sampling_torch, tensor)):
        ids, probabilities, settled = module.shortlist(array, **parameters)
        kept = np.where(settled[:, None], False, filtered > 0)
        row, place = np.nonzero(probabilities)
        kept[row, ids[row, place]] = True
        report[name] = {"with_shortlist": int(settled.sum())} | {
            f"differ_from_{precision}": int((kept != their).any(axis=1).sum())
            for precision, their in theirs.items()
        }
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=data_path("measured/sampler.json"))
    options = parser.parse_args()
    busy = load_average()
    all_threads = torch.get_num_threads()
    results = []
    cases = [(n_vocab, *setting) for n_vocab in VOCABULARIES for setting in SETTINGS.items()]
    for n_vocab, setting, (names, kind) in tqdm(cases, desc="settings"):
        parameters = {name: FOUR[name] for name in names.split()}
        logits = some_logits(kind, n_vocab)
        candidates = programs(logits, parameters)
        seconds = {name: [] for name in candidates}
        rows = rows_that_differ(logits, parameters)  # also warms up
        for threads, (name, run) in product([1, all_threads] * ROUNDS, candidates.items()):
            torch.set_num_threads(threads)
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
        ms = {name: 1e3 * min(s) for name, s in seconds.items()}
        results.append(
            {
                "n_vocab": n_vocab,
                "setting": setting,
                "parameters": parameters,
                "logits": LOGITS[kind],
                "ms": {name: round(time_ms, 2) for name, time_ms in ms.items()},
                "times_faster": {
                    name: round(ms["transformers"] / time_ms, 1) for name, time_ms in ms.items()
                },
                "rows": rows,
            }
        )
    for r in results:
        print(f"{r['n_vocab']:,} tokens, {r['setting']}: transformers {r['ms']['transformers']} ms")
        for backend in ("numpy", "torch"):
            name, rows = f"firsttoken, {backend}", r["rows"][backend]
            print(
                f"    {name} {r['ms'][name]:7.2f} ms, {r['times_faster'][name]:5.1f} times faster;"
                f" rows with a shortlist {rows['with_shortlist']}, with other tokens than"
                f" transformers' {rows['differ_from_float32']} ({rows['differ_from_float64']})"
            )
    report = {
        "batch": BATCH,
        "rounds": ROUNDS,
        "results": results,
        "measured_code": MEASURED_CODE,
        "machine": f"{processor()}, {all_threads} threads",
        "load_average_before": busy,
        "versions": {name: version(name) for name in ("torch", "transformers", "numpy")},
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
