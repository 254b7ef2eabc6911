"""Predict and measure decode steps of a Llama on this machine; write the ladder of errors.

    python scripts/measure_decode.py --runs 3 --held-out  # data/measured/decode_<machine>.json
    python scripts/measure_decode.py --quick              # fewer repeats, prints only

A run is a calibration, `measure.this_machine(refresh=True)`, whose shapes are not the model's, and
the decode steps after it. The model is a Llama with random weights (`prediction.LLAMA_100M`, or a
preset by `--arch`). A GPU is used where there is one. Close other programs first: nothing is
written where one run found the machine busy, or at another speed than at its calibration.
"""

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from firsttoken.architectures import ARCHITECTURES, Architecture
from firsttoken.measure import decode_times, this_machine
from firsttoken.measure.prediction import (
    LLAMA_100M,
    DecodePoint,
    MachineProfile,
    Rung,
    drift,
    ladder,
    uneven,
)
from firsttoken.provenance import code_digest, commit, in_file_name

MEASURED_CODE = code_digest(
    [
        "kv_cache",
        "models/llama_torch",
        "measure",
        "roofline",
        "models/rope",
        "throughput",
    ]
)

ROOT = Path(__file__).parents[1]
SEED = 0
MAX_DRIFT = 0.10
HELD_OUT = Architecture("held out", 8, 1024, 8, 2, 128, 2816, 49_152, tied_embeddings=True)
"""A model that the way of predicting was not tried on while it was worked out."""


def steps_of(arch: Architecture, profile: MachineProfile, points: list[DecodePoint]) -> dict:
    """Return the measured steps of a model and what the profile says about them."""
    return {
        "points": [asdict(point) for point in points],
        "ladder": [asdict(rung) for rung in ladder(arch, profile, points)],
        "drift": drift(profile, points),
    }


def objections(profile: MachineProfile, *measured: Sequence[DecodePoint]) -> str:
    """Say why a run should not be trusted; empty where nothing speaks against it."""
    reasons = [profile.busy]
    for points in measured:
        reasons.append(uneven(point.spread for point in points))
        changed = drift(profile, points)
        if abs(changed) > MAX_DRIFT:
            reasons.append(f"the machine ran at {1 + changed:.0%} of its calibrated speed")
    return " and ".join(filter(None, reasons))


def measured_run(arch: Architecture, rounds: int, device: str | None, held_out: bool) -> dict:
    """Calibrate, decode, print the ladder, and return all that makes the run repeatable."""
    profile = this_machine(refresh=True, device=device)
    options = {"rounds": rounds, "device": device, "seed": SEED, "limit_s": math.inf}
    points = decode_times(arch, **options)
    print(table(points, ladder(arch, profile, points)))
    run = {"profile": profile.as_dict()} | steps_of(arch, profile, points)
    measured = [points]
    if held_out:
        # Other contexts, too.
        others = decode_times(HELD_OUT, contexts=(256, 1024), **options)
        print(table(others, ladder(HELD_OUT, profile, others)))
        run["held_out"] = {"arch": HELD_OUT.arguments} | steps_of(HELD_OUT, profile, others)
        measured.append(others)
    busy = objections(profile, *measured)
    print(f"drift {run['drift']:+.1%};", f"busy: {busy}" if busy else "quiet", flush=True)
    return {
        "provenance": {
            "script": "scripts/measure_decode.py",
            "machine": profile.accelerator.name,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "measured_code": MEASURED_CODE,
            "versions": {name: version(name) for name in ("firsttoken", "torch", "numpy")}
            | {"python": platform.python_version()},
            "seed": SEED,
            "rounds": rounds,
            "busy": busy,
        }
    } | run


def table(points: list[DecodePoint], rungs: list[Rung]) -> str:
    """Return the ladder as text: a row per point, a column per rung, and the mean errors."""
    lines = ["dtype batch context  measured spread" + "".join(f"{r.name:>10}" for r in rungs)]
    for i, p in enumerate(points):
        errors = "".join(f"{rung.errors[i]:+10.0%}" for rung in rungs)
        time = f"{1e3 * p.step_s:6.1f} ms ±{p.spread:4.0%}"
        lines.append(f"{p.dtype:5} {p.batch:5} {p.context:7} {time} {errors}")
    means = "".join(f"{rung.mean_abs_error:10.1%}" for rung in rungs)
    return "\n".join([*lines, f"{'mean absolute error':35}{means}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1, help="calibrate and decode so many times")
    parser.add_argument("--pause", type=float, default=0, help="seconds between two runs")
    parser.add_argument("--held-out", action="store_true", help="a second model after the first")
    parser.add_argument("--quick", action="store_true", help="three repeats, nothing written")
    parser.add_argument("--arch", help="a preset of firsttoken.architectures with Llama's shape")
    parser.add_argument("--device", choices=["cpu", "cuda", "mps"])
    parser.add_argument("--even-if-busy", action="store_true", help="write what cannot be trusted")
    options = parser.parse_args()
    arch = LLAMA_100M if options.arch is None else ARCHITECTURES[options.arch]
    rounds = 3 if options.quick else 15

    runs = []
    for i in range(options.runs):
        if i:
            time.sleep(options.pause)
        run = measured_run(arch, rounds, options.device, options.held_out)
        busy = run["provenance"]["busy"]
        if busy and not (options.quick or options.even_if_busy):
            sys.exit(f"nothing written, since run {i + 1} was disturbed: {busy}")
        runs.append(run)
    if options.quick:
        return
    machine = runs[0]["provenance"]["machine"]
    path = ROOT / "data" / "measured" / f"decode_{in_file_name(machine)}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"arch": arch.arguments, "runs": runs}, indent=1) + "\n")
    print("written:", path.relative_to(ROOT))


if __name__ == "__main__":
    main()
