"""Decode speed of the shipped model: this library's two backends against transformers.

    python benchmarks/backends.py           # prints a table, writes data/measured/backends.json
    python benchmarks/backends.py --out mine.json

Each program writes the same number of greedy tokens after the same prompt, in turn, several
times; what counts is the ratio of medians within this one run.
"""

import argparse
import json
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM

from firsttoken.generate import generate
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path
from firsttoken.provenance import code_digest, processor
from firsttoken.sampling import SamplingParams

MEASURED_CODE = code_digest(
    [
        "attention",
        "generate/drafting",
        "generate/loop",
        "kv_cache",
        "models/llama",
        "models/llama_torch",
        "models/rope",
        "sampling/draws",
        "sampling/logits",
        "sampling/params",
        "models/threads",
    ]
)

N_PROMPT, N_NEW, ROUNDS = 64, 256, 5


def programs(prompt: list[int]) -> dict:
    """Name to a function that writes N_NEW tokens and returns them."""
    params = SamplingParams(temperature=0, max_tokens=N_NEW)
    models = {f"firsttoken, {b}": load_model("target", backend=b) for b in ("numpy", "torch")}
    theirs = AutoModelForCausalLM.from_pretrained(data_path("model/target"), dtype=torch.float32)

    def reference() -> list[int]:
        out = theirs.generate(
            torch.tensor([prompt]),
            max_new_tokens=N_NEW,
            min_new_tokens=N_NEW,
            do_sample=False,
            pad_token_id=0,
        )
        return out[0, len(prompt) :].tolist()

    ours = {
        name: lambda model=model: generate(model, prompt, params, ignore_eos=True).ids
        for name, model in models.items()
    }
    return {"transformers generate": reference, **ours}


def parity(prompt: list[int]) -> dict[str, float]:
    """Largest difference of a logit from transformers', over the held-out prompt."""
    theirs = AutoModelForCausalLM.from_pretrained(data_path("model/target"), dtype=torch.float32)
    expected = theirs(torch.tensor([prompt])).logits.detach().numpy()
    return {
        backend: float(np.abs(np.asarray(load_model("target", backend)([prompt])) - expected).max())
        for backend in ("numpy", "torch")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=data_path("measured/backends.json"))
    options = parser.parse_args()
    torch.manual_seed(0)
    ids = tokenizer().encode(data_path("heldout.txt").read_text(encoding="utf-8"))
    candidates = programs(ids[:N_PROMPT])
    written = {name: run() for name, run in candidates.items()}  # also warms up
    seconds = {name: [] for name in candidates}
    for _ in tqdm(range(ROUNDS), desc="rounds"):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    step_ms = {name: 1e3 * float(np.median(s)) / N_NEW for name, s in seconds.items()}
    base = step_ms["transformers generate"]
    report = {
        "tokens": {"prompt": N_PROMPT, "new": N_NEW, "rounds": ROUNDS},
        "ms_per_token": {name: round(ms, 3) for name, ms in step_ms.items()},
        "times_faster": {name: round(base / ms, 2) for name, ms in step_ms.items()},
        "same_tokens": len({tuple(w) for w in written.values()}) == 1,
        "max_abs_logit_difference": parity(ids[:512]),
        "measured_code": MEASURED_CODE,
        "machine": f"{processor()}, {torch.get_num_threads()} threads",
        "versions": {name: version(name) for name in ("torch", "transformers", "numpy")},
    }
    for name, ms in step_ms.items():
        print(f"{name:24s} {ms:7.3f} ms per token   {base / ms:5.2f} times transformers")
    print("largest difference of a logit:", report["max_abs_logit_difference"])
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
