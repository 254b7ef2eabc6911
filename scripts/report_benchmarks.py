"""Write the page of all ratios: of the runs that the chapters show, or beside them of your own.

    python scripts/report_benchmarks.py               # writes benchmarks/README.md
    python scripts/report_benchmarks.py _build/bench  # writes README.md and ratios.svg there

`make bench` measures everything in one go into `_build/bench/`, where no chapter looks, and then
does the second. The picture has five of the lines.
"""

import argparse
import json
import os
import platform
import re
from collections.abc import Iterator
from datetime import date
from importlib import metadata
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import matplotlib.pyplot as plt

from firsttoken.page.plots import COLORS
from firsttoken.paths import data_path
from firsttoken.provenance import commit, processor

REPORT = Path(__file__).parents[1] / "benchmarks" / "README.md"
HEAD = """\
# Measured beside other programs

Times depend on the machine, ratios much less. So each line compares two programs that ran in turn
in the same run, on the machine named. `make bench` measures all of them in one go: it takes an hour
and a half, wants a quiet machine with Chromium for the page, and writes `_build/bench/README.md`,
this page with a column of your own ([one such run](one_go/README.md)). What the chapters show is in
`data/measured/`, and changes only when somebody runs a program of this folder by itself. A test
keeps this page equal to it.
"""
HEAD_IN_ONE_GO = """\
# Measured in one go

`make bench` wrote this page: all that the book measures beside other programs, one after the other
on one machine. Each line compares two programs that ran in turn. The last column is this run; the
two before are what the chapters show, and where that was measured. Where the two differ much, the
ratio depends on the machine more than on the programs.

{here}
"""

# What the picture shows: lines of the page, and their names there.
PICTURED = {
    ("SmolLM2 writes, torch int4, 1 and 2 threads", "llama.cpp q4_1"): (
        "A real model writes, 4 bits",
        "llama.cpp",
    ),
    ("Decoding, torch backend", "transformers `generate`"): (
        "The small model writes, PyTorch",
        "transformers",
    ),
    ("FlashAttention, torch, 8,192 tokens", "PyTorch's fused attention"): (
        "FlashAttention by hand, in PyTorch",
        "PyTorch's fused kernel",
    ),
    ("The best draft at temperature 0", "the fastest plain loop"): (
        "Speculation, its best draft",
        "the fastest plain loop",
    ),
    ("Grading 30 hand-ins, each in a sandbox", "nbgrader, unprotected"): (
        "Grading, in a sandbox",
        "nbgrader without one",
    ),
}


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


def rows(folder: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield what was compared, with what, what came out, and where, for the runs in a folder."""

    def stored(name: str) -> dict[str, Any]:
        return json.loads((folder / f"{name}.json").read_text("utf-8"))

    r = stored("backends")
    for backend in ("numpy", "torch"):
        gain = r["times_faster"][f"firsttoken, {backend}"]
        yield f"Decoding, {backend} backend", "transformers `generate`", times([gain]), where(r)
    r = stored("real_model")
    for name in ("numpy fp32", "torch int4"):
        for beside in ("transformers fp32", "llama.cpp q4_1"):
            ratios = [
                found["programs"][name]["tokens_per_s"] / found["programs"][beside]["tokens_per_s"]
                for found in r["threads"].values()
                if beside in found["programs"]
            ]
            if ratios:
                what = f"SmolLM2 writes, {name}, 1 and 2 threads"
                yield what, beside, times(ratios), where(r)
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
        text = f"{times([best['times']])} ({name})"
        yield f"The best draft at temperature {tau}", "the fastest plain loop", text, where(r)
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
    gained = [each["http_tokens_per_s"] / each["alone_tokens_per_s"] - 1 for each in rounds]
    low, _, high = quantiles(gained, n=4)
    half = f"{percent([low, high])} in half of {len(rounds)} pairs"
    yield "Tokens a second over HTTP", "the engine alone", half, where(r)
    share = median(run["front_cpu_s_per_token"] / run["engine_cpu_s_per_token"] for run in rounds)
    yield "HTTP, processor's time", "the engine's", f"{share:.2f} times as much", where(r)
    if load := r.get("guidellm"):
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


def here() -> str:
    """Return in two sentences this machine and the programs on it, today and this commit."""
    programs = ("numpy", "torch", "transformers", "nbgrader")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in programs)
    return (
        f"{processor()}, {os.cpu_count()} cores, {platform.system()}; {date.today()}, commit "
        f"{commit()}. Python {platform.python_version()}, {versions}."
    )


def page(own: Path | None = None) -> str:
    """Return the page, with a column of the runs in a folder; a dash where they lack a line."""
    head, columns = HEAD, ["What", "Beside", "Ratio or error", "Machine, date"]
    lines = [list(row) for row in rows(data_path("measured"))]
    if own is not None:
        results = {row[:2]: row[2] for row in rows(own)}
        head, columns = HEAD_IN_ONE_GO.format(here=here()), [*columns, "In one go"]
        lines = [[*line, results.get((line[0], line[1]), "–")] for line in lines]
    table = [columns, ["---"] * len(columns), *lines]
    return head + "\n" + "".join(f"| {' | '.join(line)} |\n" for line in table)


def draw(lines: dict[tuple[str, ...], str], out: Path) -> None:
    """Write a picture of five ratios as SVG: how far each bar is from 1, on an axis of factors."""
    style = {"svg.fonttype": "none", "svg.hashsalt": "", "font.family": "sans-serif"}
    with plt.rc_context(style):
        fig, ax = plt.subplots(figsize=(7.2, 2.6), facecolor="white")
        fig.subplots_adjust(left=0.46, right=0.86, top=0.98, bottom=0.14)
        for place, (line, names) in enumerate(PICTURED.items()):
            found = re.search(r"([\d.]+)(?: to ([\d.]+))? times as fast", lines[line])
            assert found is not None, line
            low, high = float(found[1]), float(found[2] or found[1])
            color = COLORS["cache"] if low * high > 1 else COLORS["decode"]
            ax.plot([low, high], [place, place], "-", color=color, lw=9, solid_capstyle="butt")
            ax.plot([1, (low * high) ** 0.5], [place, place], "-", color=color, lw=3)
            ax.plot([low, high], [place, place], "|", color=color, ms=9, mew=3)
            ax.text(-0.02, place, f"{names[0]}\nbeside {names[1]}", ha="right", va="center",
                    size=9, transform=ax.get_yaxis_transform())  # fmt: skip
            ax.text(1.02, place, found[0].removesuffix(" times as fast"), va="center", size=9,
                    transform=ax.get_yaxis_transform())  # fmt: skip
        ax.axvline(1, color=COLORS["ink"], lw=1)
        ax.set(xscale="log", xlim=(0.45, 2.2), ylim=(len(PICTURED) - 0.5, -0.5), yticks=[])
        ax.set_xticks([0.5, 1, 2], ["half", "as fast", "twice"], size=9)
        ax.minorticks_off()
        ax.spines[["left", "right", "top"]].set_visible(False)
        fig.savefig(out, metadata={"Date": None})
    plt.close(fig)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="of runs in one go")
    folder = parser.parse_args(argv).folder
    out = folder / "README.md" if folder else REPORT
    out.write_text(page(folder), encoding="utf-8")
    print(f"written: {out}")
    if folder:
        draw({row[:2]: row[2] for row in rows(folder)}, folder / "ratios.svg")


if __name__ == "__main__":
    main()
