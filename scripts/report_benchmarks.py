"""Write benchmarks/README.md: the ratios of the stored runs, beside what they were measured with.

    python scripts/report_benchmarks.py    # reads data/measured/, writes benchmarks/README.md

`make bench` measures all of them on one machine and then writes it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from firsttoken.paths import data_path

REPORT = Path(__file__).parents[1] / "benchmarks" / "README.md"
HEAD = """\
# Measured beside other programs

Times depend on the machine, ratios much less. So each line compares two programs that ran in turn
in the same run, on the machine named. `make bench` measures all of them anew and writes this page;
it takes about an hour and wants a quiet machine, with Chromium for the page. The numbers are those
of `data/measured/`, which the chapters show, too. A test keeps this page equal to them.

| What | Beside | Ratio or error | Machine, date |
|---|---|---|---|
"""


def stored(name: str) -> dict[str, Any]:
    """Return a stored run."""
    return json.loads(data_path(f"measured/{name}.json").read_text("utf-8"))


def where(report: dict[str, Any]) -> str:
    """Return the machine and the date of a run."""
    about = report.get("provenance", report)
    date = about.get("measured") or about.get("date", "")
    return ", ".join(filter(None, [about["machine"], date[:10]]))


def span(values: list[float]) -> str:
    """Return the smallest and the largest of some values, to two digits behind the point."""
    low, high = (f"{x:,.0f}" if abs(x) >= 100 else f"{x:.2f}" for x in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def times(values: list[float]) -> str:
    """Return ratios in words."""
    return f"{span(values)} times as fast"


def percent(values: list[float]) -> str:
    """Return the smallest and the largest of some relative errors."""
    low, high = f"{100 * min(values):+.1f}", f"{100 * max(values):+.1f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield what was compared, with what, what came out, and where."""
    r = stored("backends")
    for backend in ("numpy", "torch"):
        gain = r["times_faster"][f"firsttoken, {backend}"]
        yield f"Decoding, {backend} backend", "transformers `generate`", times([gain]), where(r)
    r = stored("page")
    gains = r["results"]["target"]["times_faster_than_numpy"]
    one = [gains[name] for name in gains if name.startswith("1 token") and "cache" not in name]
    yield "The page's model, one token", "the NumPy library", times(one), where(r)
    yield (
        "The page's model, a prompt",
        "the NumPy library",
        times([gains["prompt of 500"]]),
        where(r),
    )
    r = stored("flash")
    at = max(each["tokens"] for each in r["prefill"] if each["program"].startswith("attention"))
    runs = {each["program"]: each for each in r["prefill"] if each["tokens"] == at}
    for backend in ("numpy", "torch"):
        ours, whole = runs[f"flash, {backend}"], runs[f"attention, {backend}"]
        what, beside = (
            f"FlashAttention, {backend}, {at:,} tokens",
            "attention that holds all scores",
        )
        memory = whole["grown_bytes"] / ours["grown_bytes"]
        faster = times([whole["quartile_1_ms"] / ours["quartile_1_ms"]])
        yield what, beside, f"{faster}, {memory:.0f} times less memory", where(r)
        faster = times([runs["SDPA"]["quartile_1_ms"] / ours["quartile_1_ms"]])
        yield what, "PyTorch's fused attention", faster, where(r)
    r = stored("paging")
    for name, each in r["results"].items():
        cost = {way: x for way, x in each["times_dense"].items() if way.startswith("merge")}
        text = f"{span(list(cost.values()))} times as long, blocks of 128 to 16"
        yield f"Reading through a block table, {name}", "one dense cache", text, where(r)
    r = stored("sampler")
    for program in ("numpy", "torch"):
        gains = [each["times_faster"][f"firsttoken, {program}"] for each in r["results"]]
        what = f"Sampling for {r['batch']} requests, {program}"
        yield what, "transformers' logits processors", times(gains), where(r)
    r = stored("quantization_speed")
    for width in ("int8", "int4"):
        gains = {s["batch"]: s["gain"]["bf16"] for s in r["steps"] if s["format"] == width}
        text = (
            f"{gains[1]:.2f} times as fast; pays up to batch {r['pays_up_to_batch'][width]['bf16']}"
        )
        yield f"A step with {width} weights, one reader", "PyTorch's bf16", text, where(r)
    r = stored("speculative")
    for tau, each in r["temperatures"].items():
        gains = [row["speedup"] for row in each["draft"].values()]
        what = f"Speculation, the shipped pair, temperature {float(tau):g}"
        yield what, "the fastest plain loop", times(gains), where(r)
    r = stored("drafts_speed")
    for tau, each in r["temperatures"].items():
        name, best = max(each["drafts"].items(), key=lambda item: item[1]["times"])
        what = f"The best draft at temperature {tau}: {name}"
        yield what, "the fastest plain loop", times([best["times"]]), where(r)
    r = stored("simulator")
    gains = [speed / r["rate_per_s"] for speed in r["requests_per_s"].values()]
    yield "Simulating a service", "that service's own time", times(gains), where(r)
    r = stored("engine")
    errors = [
        run["relative_errors"][name]["mean"]
        for setting in r["settings"].values()
        for run in setting["runs"]
        for name in ("ttft", "e2e")
    ]
    yield "The simulator's mean times", "the engine's", percent(errors), where(r)
    r = stored("server")
    rounds = r["overhead"]["rounds"]
    lost = [1 - each["http_tokens_per_s"] / each["alone_tokens_per_s"] for each in rounds]
    yield "Tokens a second over HTTP", "the engine alone", percent([-median(lost)]), where(r)
    load = r["guidellm"]
    errors = [load["generator_itl_s"] / load["server_itl_s"] - 1]
    yield "Time between tokens, by the server", "by guidellm", percent(errors), where(r)
    r = stored("parallel")
    errors = [e for each in r["collectives"] for e in each["errors"][1:-1]]
    yield "Time of a collective, by formula", "two processes", percent(errors), where(r)
    r = stored("threads")["results"]
    ratio = r["all, beside two"]["median_ms"] / r["one, beside two"]["median_ms"]
    text = f"{ratio:.1f} times as long"
    about = where(stored("threads"))
    yield "A pass with all threads, beside busy programs", "with one thread", text, about
    r = stored("grading")
    seconds = r["seconds"]
    ratio = seconds["nbgrader autograde"] / seconds["make grade"]
    yield (
        "Grading 30 hand-ins, each in a sandbox",
        "nbgrader, unprotected",
        times([ratio]),
        where(r),
    )


def report() -> str:
    """Return the page."""
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows())


if __name__ == "__main__":
    REPORT.write_text(report(), encoding="utf-8")
    print(f"written: {REPORT}")
