"""Train small models on associative recall; write how much each remembers of how many pairs.

    python scripts/train_recall.py             # about an hour on one quiet core
    python scripts/train_recall.py --quick     # two steps each, writes no report

The models of `recall.MODELS` differ only in how a token reaches earlier ones, and are trained on
all numbers of pairs at once, with several widths of state and five seeds each. A seed's sequences
are the same for all models, so that accuracies can be compared pair by pair. The learning rate of
a model at a width is the best of the recipe's on two seeds that are not reported. The seeds of a
model train side by side on one thread; what is finished is kept in --work, so that a second call
goes on where the first was stopped. With --report nothing is trained, and all must be there.
"""

import argparse
import json
import multiprocessing
import platform
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from recall import MODELS, Recipe, cost, train
from train_variants import ROOT, paired

from firsttoken.provenance import code_digest, commit, in_file_name, processor

MEASURED_CODE = code_digest(
    [
        "scripts/recall.py",
    ]
)

RECIPE = Recipe()
WIDTHS = (8, 16, 32)
# Seeds 0 to 4 had been seen while the recipe was made, so what is reported is of others.
FIRST_SEED, SEEDS = 100, 5
SEARCH_SEEDS = (1000, 1001)  # on which the learning rate is chosen; never reported
BASELINE = "linear"
# What a run says of itself and the report says once.
ONE_FOR_ALL = {"recipe", "machine", "commit", "measured_code"}


def stored(work: Path, model: str, width: int) -> Path:
    return work / f"{in_file_name(model)}_{width}.json"


def finished(work: Path, model: str, width: int, recipe: Recipe, seeds: Sequence[int]):
    """The stored result of a run, None where there is none."""
    path = stored(work, model, width)
    if not path.exists():
        return None
    run = json.loads(path.read_text())
    if run["recipe"] != json.loads(json.dumps(asdict(recipe))) or run["seeds"] != list(seeds):
        raise SystemExit(f"{path} is from another recipe: remove it or change --work")
    if run["measured_code"] != MEASURED_CODE:
        raise SystemExit(f"{path} is from other code: remove it or change --work")
    return run


def one_run(
    model: str, width: int, recipe: Recipe, seeds: Sequence[int], work: Path, code: str
) -> dict:
    """Choose the learning rate and train all seeds of one model; keep the result in `work`."""
    began = time.perf_counter()
    tried, rows = np.meshgrid(recipe.rates, SEARCH_SEEDS)
    searched = train(
        model, width, rows.flatten().tolist(), tried.flatten().tolist(), recipe, until=np.any
    )
    by_row = np.mean(searched["accuracy"], axis=1).reshape(tried.shape)
    # The first of equals, which is the smallest.
    rate = recipe.rates[int(np.argmax(by_row.mean(axis=0)))]
    run = {
        "model": model,
        "width": width,
        "recipe": asdict(recipe),
        "seeds": list(seeds),
        "rate": rate,
        **cost(model, width, recipe),
        **train(model, width, seeds, [rate] * len(seeds), recipe),
        "search": searched,
        "wall_s": round(time.perf_counter() - began, 1),
        "machine": f"{processor()}, 1 thread",
        "commit": code,
        "measured_code": MEASURED_CODE,
    }
    path = stored(work, model, width)
    # Written beside and renamed, so that a stop in mid-write leaves no half a result.
    path.with_suffix(".tmp").write_text(json.dumps(run, indent=1) + "\n")
    path.with_suffix(".tmp").replace(path)
    return run


def report(runs: list[dict]) -> dict:
    """All that the figure needs and that makes the runs repeatable.

    Of a curve the seeds' means over the numbers of pairs are kept, of a search how it ended: a row
    for each seed and rate, the rates of the first seed first.
    """
    baseline = {run["width"]: run["accuracy"] for run in runs if run["model"] == BASELINE}
    entries = []
    for run in runs:
        by_pairs = np.transpose(run["accuracy"])  # a row for each number of pairs
        others = np.transpose(baseline[run["width"]])
        entries.append(
            {k: v for k, v in run.items() if k not in ONE_FOR_ALL | {"seeds"}}
            | {
                "mixers": MODELS[run["model"]],
                "curve": [
                    [step, np.mean(values, axis=1).round(4).tolist()]
                    for step, values in run["curve"]
                ],
                "search": run["search"]["accuracy"],
                "mean": [paired(a, np.zeros_like(a)) for a in by_pairs],
                f"minus_{BASELINE}": [paired(a, b) for a, b in zip(by_pairs, others, strict=True)],
            }
        )
    return {
        "provenance": {
            "script": "scripts/train_recall.py",
            "machine": runs[0]["machine"],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": ", ".join(sorted({run["commit"] for run in runs})),
            "measured_code": MEASURED_CODE,
            "versions": {name: version(name) for name in ("firsttoken", "torch", "numpy")}
            | {"python": platform.python_version()},
            "seeds": runs[0]["seeds"],
            "search_seeds": SEARCH_SEEDS,
            "wall_s": round(sum(run["wall_s"] for run in runs), 1),
        },
        "recipe": runs[0]["recipe"],
        "models": entries,
    }


def table(runs: list[dict]) -> str:
    """Accuracies as text, a row for each run: the mean of the seeds, and the lowest below it."""
    pairs = runs[0]["recipe"]["pairs"]
    lines = ["model               width  rate   steps" + "".join(f"{p:5} pairs" for p in pairs)]
    for run in runs:
        values = np.array(run["accuracy"])
        figures = "".join(
            f"{mean:6.3f}±{spread:.2f}"[:11].rjust(11)
            for mean, spread in zip(values.mean(0), values.std(0), strict=True)
        )
        lines.append(
            f"{run['model']:19} {run['width']:5}  {run['rate']:<6g} {run['steps']:4}{figures}"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "measured")
    parser.add_argument("--work", type=Path, default=ROOT / "_build" / "recall")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of each model, at least 2")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, a thread each")
    parser.add_argument("--report", action="store_true", help="train nothing, write the report")
    parser.add_argument("--table", action="store_true", help="train nothing, show what is there")
    parser.add_argument("--quick", action="store_true", help="two steps each, write no report")
    args = parser.parse_args(argv)
    recipe = RECIPE
    if args.quick:
        recipe = replace(recipe, steps=2, warmup_steps=1, queries_per_step=64, test_queries=64)
    args.work.mkdir(parents=True, exist_ok=True)
    seeds = range(FIRST_SEED, FIRST_SEED + args.seeds)
    # Width by width, so that a stop leaves models that can be compared.
    grid = [(model, width) for width in WIDTHS for model in MODELS]
    todo = [cell for cell in grid if finished(args.work, *cell, recipe, seeds) is None]
    if todo and not (args.report or args.table):
        code, began = commit(), time.perf_counter()
        with ProcessPoolExecutor(
            args.jobs,
            multiprocessing.get_context("spawn"),
            initializer=torch.set_num_threads,
            initargs=(1,),
        ) as pool:
            jobs = [pool.submit(one_run, *cell, recipe, seeds, args.work, code) for cell in todo]
            for n, done in enumerate(as_completed(jobs), 1):
                run = done.result()
                left = (time.perf_counter() - began) / n * (len(todo) - n)
                end = datetime.now(UTC) + timedelta(seconds=left)
                means = " ".join(f"{x:.3f}" for x in np.mean(run["accuracy"], axis=0))
                print(
                    f"{n}/{len(todo)} {run['model']}, width {run['width']}: {means} after "
                    f"{run['steps']} steps at {run['rate']:g}, {run['wall_s'] / 60:.1f} min; "
                    f"all done about {end:%H:%M} UTC",
                    flush=True,
                )
    runs = [run for cell in grid if (run := finished(args.work, *cell, recipe, seeds))]
    if runs:
        print(table(runs))
    if args.table:
        return
    if len(runs) < len(grid):
        raise SystemExit(f"{len(grid) - len(runs)} of {len(grid)} runs are missing: no report")
    result = report(runs)
    if args.quick:
        return
    path = args.out / "recall.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print("written:", path)


if __name__ == "__main__":
    main()
