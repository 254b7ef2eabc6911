"""Run the engine on the shipped model, beside the simulator and beside each request alone.

    python scripts/measure_engine.py            # writes data/measured/engine.json, ~4 minutes
    python scripts/measure_engine.py --quick    # a few requests, prints only

Three questions. How well does the simulator, given the cost of a step, predict the latencies of
real prompts that arrive at random? Which tokens of a request change with its neighbours? And where
could they: where in the held-out text is greedy choice closest to a tie, and which seeds draw
another token in another company?

Close other programs first.
"""

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

# One thread: products this small gain nothing from more.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

from firsttoken.batching import poisson_trace, simulate
from firsttoken.engine import (
    Engine,
    MeasuredCost,
    decision_margins,
    measure_cost,
    record_steps,
    serve_trace,
)
from firsttoken.generate import generate
from firsttoken.metrics import RequestTrace, summarize
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paging import BlockPool
from firsttoken.paths import data_path
from firsttoken.provenance import code_digest, commit, processor
from firsttoken.sampling import SamplingParams, softmax

MEASURED_CODE = code_digest(
    [
        "attention",
        "batching",
        "engine",
        "generate/drafting",
        "generate/loop",
        "kv_cache",
        "models/llama",
        "metrics",
        "paging",
        "models/rope",
        "sampling/draws",
        "sampling/logits",
        "sampling/params",
        "models/threads",
    ]
)

ROOT = Path(__file__).parents[1]
SEED = 0
LOADS = (0.4, 0.8)  # of what the simulator says the engine can do
MIN_CORE_SHARE = 0.85  # less, and other programs were in the way


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    n_requests: int = 200
    rounds: int = 5
    n_alone: int = 60
    window: int = 256
    n_ties: int = 30
    n_prompts: int = 20
    n_seeds: int = 100_000


QUICK = Size(6, rounds=1, n_alone=3, window=64, n_ties=2, n_prompts=2, n_seeds=1000)
COMPANY = ((0, 0), (1, 1), (3, 1), (7, 1), (15, 1), (1, 64))
"""Who shares the pass of a token: so many others with so many new tokens each."""


@dataclass(frozen=True)
class Setting:
    """An engine; without a token budget the policy is "continuous", with one "chunked"."""

    n_blocks: int
    token_budget: int | None = None
    block_size: int = 16
    max_batch: int = 16
    prefix_caching: bool = False

    def engine(self, model) -> Engine:
        """Return an engine of this kind."""
        return Engine(model, **asdict(self))


SETTINGS = {
    "continuous": Setting(400),
    "chunked": Setting(400, token_budget=64),
    "chunked, few blocks": Setting(96, token_budget=64),
}
# What must not change a token: all of it on the way, and each request met by others.
WAYS = SETTINGS | {"prefix cache": Setting(96, token_budget=64, prefix_caching=True)}


def predict(setting: Setting, trace: list, cost: MeasuredCost) -> list[RequestTrace]:
    """Return what the simulator says about a trace."""
    return simulate(
        *(trace, "continuous" if setting.token_budget is None else "chunked", cost),
        max_batch=setting.max_batch,
        token_budget=setting.token_budget,
        pool=BlockPool(setting.n_blocks, setting.block_size),
    )


def served(
    model, ids: list[int], setting: Setting, load: float, cost: MeasuredCost, n: int
) -> dict:
    """Serve real prompts that arrive at random, predict the same, and return both."""
    rng = np.random.default_rng(SEED)
    lengths = {
        "n_prompt": lambda rng: int(rng.integers(8, 257)),
        "n_output": lambda rng: int(rng.integers(2, 97)),
    }
    burst = poisson_trace(1e9, n, rng, **lengths)  # all at once: as fast as it can be
    rate = load * summarize(predict(setting, burst, cost)).requests_per_s
    trace = poisson_trace(rate, n, rng, **lengths)
    starts = rng.integers(len(ids) - 256, size=n)
    prompts = [ids[at : at + r.n_prompt] for at, r in zip(starts, trace, strict=True)]

    engine = setting.engine(model)
    steps = record_steps(engine)
    cpu_s = time.process_time()
    measured = serve_trace(engine, trace, prompts)
    cpu_s = time.process_time() - cpu_s
    predicted = predict(setting, trace, cost)
    in_steps_s = sum(s for *_, s in steps)
    step_errors = [cost(prefills, decodes) / s - 1 for prefills, decodes, s in steps]
    ours, theirs = (latencies(traces) for traces in (measured, predicted))
    return {
        "load": load,
        "rate": rate,
        "requests": [[r.arrival_s, r.n_prompt, r.n_output] for r in trace],
        "measured": ours,
        "predicted": theirs,
        "relative_errors": relative_errors(measured, predicted),
        "n_steps": len(steps),
        "preemptions": engine.stats.preemptions,
        "step_error_percentiles": dict(
            zip(("5", "50", "95"), np.percentile(step_errors, (5, 50, 95)).tolist(), strict=True)
        ),
        "core_share": cpu_s / in_steps_s,
        "seconds_in_steps": in_steps_s,
        "predicted_seconds_in_steps": sum(cost(p, d) for p, d, _ in steps),
    }


def latencies(traces: list[RequestTrace]) -> dict[str, list[float]]:
    """Return the latencies of each request, in seconds to a microsecond."""
    return {
        name: [round(getattr(trace, name), 6) for trace in traces]
        for name in ("ttft", "tpot", "e2e")
    }


def relative_errors(measured: list[RequestTrace], predicted: list[RequestTrace]) -> dict:
    """Return predicted / measured - 1 for means and percentiles."""
    ours, theirs = (summarize(traces) for traces in (measured, predicted))
    errors = {}
    for name in ("ttft", "tpot", "e2e"):
        means = [np.mean([getattr(t, name) for t in ts]) for ts in (measured, predicted)]
        errors[name] = {"mean": float(means[1] / means[0] - 1)}
        for q in (50, 95, 99):
            errors[name][f"p{q}"] = getattr(theirs, name)[q] / getattr(ours, name)[q] - 1
    return errors


def together_and_alone(model, ids: list[int], n: int) -> dict:
    """Run requests in every way and alone; return where tokens differ, and how clear they were."""
    rng = np.random.default_rng(SEED)
    asked = []
    for i in range(n):
        at, n_prompt = rng.integers(len(ids) - 256), rng.integers(1, 129)
        shared = ids[:40] if i % 3 == 0 else []  # something for the prefix cache
        params = SamplingParams(
            temperature=(0.0, 0.8)[i % 2], max_tokens=int(rng.integers(1, 65)), seed=i
        )
        asked.append((shared + ids[at : at + n_prompt], params))
    alone = [generate(model, *request).ids for request in tqdm(asked, desc="alone")]
    exceptions = []
    for way, setting in WAYS.items():
        engine = setting.engine(model)
        for request in asked:
            engine.submit(*request)
        for i, generation in engine.run().items():
            if generation.ids == alone[i]:
                continue
            same = [a == b for a, b in zip(generation.ids, alone[i], strict=False)]
            place = same.index(False)
            margins = decision_margins(model, asked[i][0], alone[i], asked[i][1])
            exceptions.append(
                {
                    "way": way,
                    "request": i,
                    "temperature": asked[i][1].temperature,
                    "place": place,
                    "margin": float(margins[place]),
                }
            )
    return {
        "n_requests": n,
        "ways": {way: asdict(setting) for way, setting in WAYS.items()},
        "n_tokens": len(WAYS) * sum(map(len, alone)),
        "exceptions": exceptions,
    }


def near_ties(model, ids: list[int], window: int, n: int) -> dict:
    """Return the places where greedy choice is closest to a tie, and what neighbours do there.

    Each prompt's last token goes through passes with 0 to 15 others that decode or begin.
    """
    gaps, places = [], []
    for start in tqdm(range(0, len(ids) - window, window), desc="margins"):
        logits = np.partition(model([ids[start : start + window]])[0], -2)
        gaps.extend((logits[:, -1] - logits[:, -2]).tolist())
        places.extend((start, end) for end in range(start + 1, start + window + 1))
    closest = np.argsort(gaps)[:n]
    ties, rounding = [], []
    for at in tqdm(closest, desc="ties"):
        start, end = places[at]
        prompt = ids[start:end]
        alone = model([prompt])[0, -1]
        answers = {}
        for n_others, n_each in COMPANY:
            logits = in_company(model, prompt, ids, n_others, n_each)
            answers[f"{n_others} others of {n_each}"] = int(logits.argmax())
            rounding.append(float(np.abs(logits - alone).max()))
        ties.append(
            {
                "start": start,
                "end": end,
                "margin": gaps[at],
                "alone": int(alone.argmax()),
                "with_others": answers,
            }
        )
    return {
        "n_places": len(gaps),
        "window": window,
        "share_with_margin_below": {
            f"{limit:g}": float(np.mean(np.array(gaps) < limit)) for limit in (1e-4, 1e-2, 1.0)
        },
        "largest_difference_of_logits": max(rounding),
        "ties": ties,
    }


def in_company(model, prompt: list[int], ids: list[int], n_others: int, n_each: int) -> np.ndarray:
    """Return the logits after a prompt whose last token shares its pass with others."""
    caches = [model.new_cache(1, max(len(prompt), n_each)) for _ in range(1 + n_others)]
    if len(prompt) > 1:
        model([prompt[:-1]], caches[0])
    others = [ids[i : i + n_each] for i in range(n_others)]
    return model.forward_ragged([prompt[-1:], *others], caches)[0][-1]


def seeds_that_flip(model, ids: list[int], n_prompts: int, n_seeds: int) -> dict:
    """Count the seeds whose first token, at temperature 1, is another one in company.

    "Alone" is one pass over the prompt, as `generate` begins.
    """
    rng = np.random.default_rng(SEED)
    uniform = np.array([np.random.default_rng(seed).random() for seed in range(n_seeds)])

    def drawn(logits: np.ndarray) -> np.ndarray:
        mass = softmax(logits).cumsum(dtype=np.float64)
        return np.searchsorted(mass, uniform * mass[-1], side="right")  # as `sampling.draw`

    prompts = []
    for start in tqdm(rng.integers(len(ids) - 64, size=n_prompts), desc="seeds"):
        prompt = ids[start : start + 64]
        alone, flips = drawn(model([prompt])[0, -1]), {}
        for n_others, n_each in COMPANY:
            other = drawn(in_company(model, prompt, ids, n_others, n_each))
            seeds = np.flatnonzero(alone != other)
            flips[f"{n_others} others of {n_each}"] = {
                "n": len(seeds),
                "first": [[int(s), int(alone[s]), int(other[s])] for s in seeds[:3]],
            }
        prompts.append({"start": int(start), "end": int(start) + 64, "flips": flips})
    return {"n_seeds": n_seeds, "prompts": prompts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few requests, nothing written")
    parser.add_argument("--even-if-busy", action="store_true", help="write what cannot be trusted")
    parser.add_argument("--out", type=Path, help="write there, not into data/measured/")
    options = parser.parse_args()
    size = QUICK if options.quick else Size()

    started_at = commit()  # the code that runs, whatever is committed meanwhile
    model = load_model()
    ids = tokenizer().encode(data_path("heldout.txt").read_text(encoding="utf-8"))
    report: dict = {"settings": {}}
    shares = []
    for name, setting in SETTINGS.items():
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        cost = measure_cost(model, setting.max_batch, setting.token_budget, rounds=size.rounds)
        shares.append((time.process_time() - cpu_s) / (time.perf_counter() - wall_s))
        runs = [served(model, ids, setting, load, cost, size.n_requests) for load in LOADS]
        report["settings"][name] = {"engine": asdict(setting), "cost": asdict(cost), "runs": runs}
        for run in runs:
            shares.append(run["core_share"])
            means = {
                key: f"{errors['mean']:+.1%}" for key, errors in run["relative_errors"].items()
            }
            print(f"{name}, load {run['load']}: predicted / measured - 1, means: {means}")
    report["together_and_alone"] = together_and_alone(model, ids, size.n_alone)
    print("exceptions:", report["together_and_alone"]["exceptions"])
    report["near_ties"] = near_ties(
        model, ids[: 10 * size.window] if options.quick else ids, size.window, size.n_ties
    )
    report["seeds"] = seeds_that_flip(model, ids, size.n_prompts, size.n_seeds)
    flipped = [
        tie
        for tie in report["near_ties"]["ties"]
        if {tie["alone"]} != {*tie["with_others"].values()}
    ]
    print(f"{len(flipped)} of {size.n_ties} near ties depend on the neighbours")
    n_flips = [way["n"] for p in report["seeds"]["prompts"] for way in p["flips"].values()]
    print(f"{np.mean(n_flips) / size.n_seeds:.1e} of all seeds draw another first token in company")

    busy = f"other programs left only {min(shares):.0%} of a core"
    busy = busy if min(shares) < MIN_CORE_SHARE else ""
    print("busy:", busy or "no", flush=True)
    if options.quick:
        return
    if busy and not options.even_if_busy:
        sys.exit(f"nothing written: {busy}")
    machine = processor()
    report["provenance"] = {
        "script": "scripts/measure_engine.py",
        "machine": machine,
        "threads": os.environ["OMP_NUM_THREADS"],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": started_at,
        "measured_code": MEASURED_CODE,
        "versions": {name: version(name) for name in ("firsttoken", "numpy")}
        | {"python": platform.python_version()},
        "seed": SEED,
        "size": asdict(size),
        "busy": busy,
    }
    path = options.out or ROOT / "data" / "measured" / "engine.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print("written:", path)


if __name__ == "__main__":
    main()
