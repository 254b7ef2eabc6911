"""Predict and measure decode steps of a Llama on this machine; write the ladder of errors.

    python scripts/measure_decode.py            # writes data/measured/decode_<machine>.json
    python scripts/measure_decode.py --quick    # fewer repeats, prints only

The rates come from `measure.this_machine(refresh=True)`, whose shapes are not the model's; the
model is a Llama with random weights (`measure.LLAMA_100M`, or a preset by `--arch`). A GPU is used
where there is one. Close other programs first: a busy machine is refused.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from firsttoken.architectures import ARCHITECTURES, Architecture
from firsttoken.measure import (
    LLAMA_100M,
    DecodePoint,
    MachineProfile,
    Rung,
    decode_times,
    ladder,
    this_machine,
    uneven,
)

ROOT = Path(__file__).parents[1]
SEED = 0


def commit() -> str:
    """Return the commit of this tree, marked where files differ from it; "" outside of git."""
    said = subprocess.run(
        ["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return said.stdout.strip()


def report(
    arch: Architecture,
    profile: MachineProfile,
    points: list[DecodePoint],
    rungs: list[Rung],
    rounds: int,
    busy: str,
) -> dict:
    """Return everything that the figure needs and that makes the run repeatable."""
    return {
        "provenance": {
            "script": "scripts/measure_decode.py",
            "machine": profile.accelerator.name,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "versions": {name: version(name) for name in ("firsttoken", "torch", "numpy")}
            | {"python": platform.python_version()},
            "seed": SEED,
            "rounds": rounds,
            "busy": busy,
        },
        "arch": asdict(arch),
        "profile": profile.as_dict(),
        "points": [asdict(point) for point in points],
        "ladder": [asdict(rung) for rung in rungs],
    }


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
    parser.add_argument("--quick", action="store_true", help="three repeats, nothing written")
    parser.add_argument("--arch", help="a preset of firsttoken.architectures with Llama's shape")
    parser.add_argument("--device", choices=["cpu", "cuda", "mps"])
    parser.add_argument("--even-if-busy", action="store_true", help="write what cannot be trusted")
    options = parser.parse_args()
    arch = LLAMA_100M if options.arch is None else ARCHITECTURES[options.arch]
    rounds = 3 if options.quick else 15

    profile = this_machine(refresh=True, device=options.device)
    points = decode_times(arch, rounds=rounds, device=options.device, seed=SEED)
    rungs = ladder(arch, profile, points)
    print(table(points, rungs))
    busy = " and ".join(filter(None, (profile.busy, uneven(point.spread for point in points))))
    if options.quick:
        return
    if busy and not options.even_if_busy:
        sys.exit(f"nothing written, since the machine was busy: {busy}")
    machine = re.sub(r"[^a-z0-9]+", "-", profile.accelerator.name.lower()).strip("-")
    path = ROOT / "data" / "measured" / f"decode_{machine}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report(arch, profile, points, rungs, rounds, busy), indent=1) + "\n")
    print("written:", path.relative_to(ROOT))


if __name__ == "__main__":
    main()
