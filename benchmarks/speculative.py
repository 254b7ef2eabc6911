"""Speculative decoding with the shipped pair, against the fastest plain loop.

    python benchmarks/speculative.py    # prints tables, writes data/measured/speculative.json
    python benchmarks/speculative.py --rounds 1 --out mine.json    # shorter

Plain decoding with both backends, drafts of 1 to 8 tokens by the shipped draft, the same with a
draft that stops when it is unsure, and prompt lookup continue the same places of the held-out
text, in turn, several times. A speed-up is the median time of the faster plain loop over that of
the candidate, within this one run; its quartiles are those of the ratios of neighbouring runs.
Then the passes inside the loops are timed one by one: what a step of the draft and a check of
γ + 1 tokens cost, in steps of the plain loop.
"""

import argparse
import json
import os
import time
from collections import defaultdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

# One thread: products this small gain nothing from more.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from tqdm import tqdm

from firsttoken.generate import Generation, generate, prompt_lookup, speculative_generate
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path
from firsttoken.provenance import code_digest, commit, load_average, processor
from firsttoken.sampling import SamplingParams
from firsttoken.speculative import acceptance_by_position, expected_tokens, speedup

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
        "speculative/speed",
        "speculative/verification",
        "models/threads",
    ]
)

TEMPERATURES, GAMMAS = (0.0, 0.7, 1.0), (1, 2, 3, 4, 5, 6, 7, 8)
SURE = 0.4  # below this probability of its token, an unsure draft stops
N_PLACES, N_PROMPT, N_NEW = 6, 64, 128


class Timed:
    """A model that notes how long each pass takes, by the number of tokens it reads."""

    def __init__(self, model):
        self.model, self.arch, self.eos_ids = model, model.arch, model.eos_ids
        self.new_cache, self.seconds = model.new_cache, defaultdict(list)

    def __call__(self, tokens, cache=None):
        start = time.perf_counter()
        logits = self.model(tokens, cache)
        self.seconds[len(tokens[0])].append(time.perf_counter() - start)
        return logits

    def total_s(self) -> float:
        """Seconds of all passes."""
        return sum(map(sum, self.seconds.values()))


def look_up(ids: list[int], n: int) -> list[int]:
    """Guess as prompt lookup does, from three tokens."""
    return prompt_lookup(ids, 3, n)


def race(prompts: list[list[int]], temperature: float, n_rounds: int) -> tuple[dict, dict]:
    """Return, by candidate: seconds (rounds, places), and what was generated."""
    models = {b: load_model("target", b) for b in ("numpy", "torch")}
    candidates = {("plain", backend): (model, None) for backend, model in models.items()}
    candidates |= {("draft", gamma): (models["numpy"], load_model("draft")) for gamma in GAMMAS}
    candidates |= {("sure", gamma): candidates["draft", gamma] for gamma in GAMMAS[1:]}
    candidates |= {("lookup", gamma): (models["numpy"], look_up) for gamma in GAMMAS}
    seconds = {name: np.zeros((n_rounds, len(prompts))) for name in candidates}
    texts: dict[tuple, list[Generation]] = defaultdict(list)
    places = np.ndindex(n_rounds, len(prompts))
    for at in tqdm(places, f"T {temperature}", n_rounds * len(prompts)):
        params = SamplingParams(temperature, max_tokens=N_NEW, seed=at[0])
        for name, (model, draft) in candidates.items():
            start = time.perf_counter()
            if draft is None:
                text = generate(model, prompts[at[1]], params, ignore_eos=True)
            else:
                options = {"min_confidence": SURE} if name[0] == "sure" else {}
                text = speculative_generate(
                    model, draft, prompts[at[1]], params, name[1], ignore_eos=True, **options
                )
            seconds[name][at] = time.perf_counter() - start
            texts[name].append(text)
    return seconds, texts


def costs(prompts: list[list[int]], temperature: float) -> dict:
    """Time the passes in their loops: the models meet the caches of the processor as they do there.

    `rest_share` is the part of a loop's time that passes in neither model.
    """
    plain, target, draft = (Timed(load_model(n)) for n in ("target", "target", "draft"))
    params = SamplingParams(temperature, max_tokens=N_NEW, seed=0)
    spent = dict.fromkeys(GAMMAS, 0.0)
    in_target, in_draft = dict(spent), dict(spent)
    for prompt in prompts:
        generate(plain, prompt, params, ignore_eos=True)
        for gamma in GAMMAS:
            start, before = time.perf_counter(), (target.total_s(), draft.total_s())
            speculative_generate(target, draft, prompt, params, gamma, ignore_eos=True)
            spent[gamma] += time.perf_counter() - start
            in_target[gamma] += target.total_s() - before[0]
            in_draft[gamma] += draft.total_s() - before[1]
    step_s = float(np.median(plain.seconds[1]))
    return {
        "step_ms": 1e3 * step_s,
        "cost_ratio": float(np.median(draft.seconds[1])) / step_s,
        "verify_cost": {g: float(np.median(target.seconds[g + 1])) / step_s for g in GAMMAS},
        "draft_share": {g: in_draft[g] / spent[g] for g in GAMMAS},
        "rest_share": {g: 1 - (in_draft[g] + in_target[g]) / spent[g] for g in GAMMAS},
    }


def compare(prompts: list[list[int]], temperature: float, n_rounds: int) -> dict:
    """Measure everything at one temperature."""
    seconds, texts = race(prompts, temperature, n_rounds)
    cost = costs(prompts, temperature)
    plain = min(
        (name for name in seconds if name[0] == "plain"), key=lambda n: np.median(seconds[n])
    )
    every_round = [r for g in GAMMAS for text in texts["draft", g] for r in text.rounds]
    alpha = sum(r.accepted for r in every_round) / sum(
        min(r.accepted + 1, r.drafted) for r in every_round
    )
    by_position, reached = acceptance_by_position(every_round)
    report = {
        "plain_ms_per_token": {
            n[1]: 1e3 * float(np.median(s)) / N_NEW for n, s in seconds.items() if n[0] == "plain"
        },
        "fastest_plain": plain[1],
        **cost,
        "alpha": alpha,
        "alpha_by_position": by_position.tolist(),
        "rounds_that_reached": reached.tolist(),
    }
    for kind in ("draft", "sure", "lookup"):
        report[kind] = {}
        for gamma in [g for k, g in seconds if k == kind]:
            ratio = seconds[plain] / seconds[kind, gamma]
            rounds = [r for text in texts[kind, gamma] for r in text.rounds]
            report[kind][gamma] = {
                "speedup": float(np.median(seconds[plain]) / np.median(seconds[kind, gamma])),
                "quartiles": np.percentile(ratio, [25, 75]).tolist(),
                "tokens_per_pass": 1 + sum(r.accepted for r in rounds) / len(rounds),
                "drafted_per_pass": sum(r.drafted for r in rounds) / len(rounds),
            }
        if kind == "draft":
            for gamma, row in report[kind].items():
                row["expected_tokens"] = expected_tokens(alpha, gamma)
                row["predicted"] = speedup(
                    alpha, gamma, cost["cost_ratio"], cost["verify_cost"][gamma]
                )
    if temperature == 0:
        expected = [text.ids for text in texts[plain]]
        report["same_text"] = all(
            [text.ids for text in texts[name]] == expected for name in texts if name[0] != "plain"
        )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each text is written")
    parser.add_argument("--out", type=Path, default=data_path("measured/speculative.json"))
    options = parser.parse_args()
    started_at = commit()  # the code that runs, whatever is committed meanwhile
    busy = load_average()
    ids = tokenizer().encode(data_path("heldout.txt").read_text(encoding="utf-8"))
    starts = np.linspace(0, len(ids) - N_PROMPT, N_PLACES, dtype=int).tolist()
    prompts = [ids[start : start + N_PROMPT] for start in starts]
    results = {t: compare(prompts, t, options.rounds) for t in TEMPERATURES}
    for temperature, r in results.items():
        print(f"\ntemperature {temperature}: plain {r['plain_ms_per_token']} ms per token")
        print(f"  draft step {r['cost_ratio']:.2f} of the target's; alpha {r['alpha']:.3f}, by")
        print("  position", *(f"{a:.2f}" for a in r["alpha_by_position"]))
        print("  γ  check  tokens/pass (formula)  predicted  measured (quartiles)  unsure  lookup")
        for gamma, row in r["draft"].items():
            print(
                f"  {gamma}   {r['verify_cost'][gamma]:.2f}   {row['tokens_per_pass']:8.2f}"
                f"   ({row['expected_tokens']:.2f}) {row['predicted']:14.2f} {row['speedup']:9.2f}"
                f"    ({row['quartiles'][0]:.2f} … {row['quartiles'][1]:.2f})"
                f" {r['sure'].get(gamma, row)['speedup']:7.2f} {r['lookup'][gamma]['speedup']:7.2f}"
            )
    report = {
        "tokens": {"places": starts, "prompt": N_PROMPT, "new": N_NEW, "rounds": options.rounds},
        "min_confidence": SURE,
        "temperatures": results,
        "provenance": {
            "commit": started_at,
            "measured_code": MEASURED_CODE,
            "seeds": f"0 to {options.rounds - 1}, one per round",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{processor()}, {torch.get_num_threads()} threads",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
            "load_average_before": busy,
            "versions": {name: version(name) for name in ("numpy", "torch")},
        },
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
