"""scripts/measure_decode.py: the stored file is whole, and a disturbed run writes none."""

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from firsttoken.hardware import Accelerator
from firsttoken.measure.prediction import (
    LLAMA_100M,
    DecodePoint,
    MachineProfile,
    drift,
    ladder,
    stored_runs,
)

ROOT = Path(__file__).parents[3]
SPEC = importlib.util.spec_from_file_location(
    "measure_decode", ROOT / "scripts" / "measure_decode.py"
)
measure_decode = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(measure_decode)

KEYS = [("fp32", 1), ("fp32", 4)]
PROFILE = MachineProfile(
    Accelerator("Some CPU, 2 threads", {"fp32": 1e11}, 2e10, 1e10),
    gemv_bandwidth=dict.fromkeys(KEYS, 1e10),
    kv_bandwidth=1e10,
    layer_overhead_s=2e-4,
    spread={"gemv fp32 1": 0.01},
    provenance={"device": "cpu", "core_share": 1.0},
    read_bandwidth=1.5e10,
    head_bandwidth=dict.fromkeys(KEYS, 1e10),
    kv_read_s={(*key, g, n): 1e-5 + n / 1e10 for key in KEYS for g in (3, 4) for n in (1000, 9000)},
    overhead_s=dict.fromkeys(KEYS, 2e-4),
)
POINTS = [DecodePoint("fp32", b, c, 0.03 + 0.001 * b, 0.02, 9.7e9) for b in (1, 4) for c in (9, 99)]
OTHERS = [dataclasses.replace(point, context=point.context + 1) for point in POINTS]


@pytest.fixture
def run(monkeypatch, tmp_path):
    """The script's main, with these measurements, in a tree of its own; returns what was called."""

    def main(*arguments, profile=PROFILE, points=POINTS, others=OTHERS):
        calls = []

        def calibrate(**_):
            calls.append("calibration")
            return profile

        def decode(arch, **_):
            calls.append(arch.name)
            return list(points if arch == LLAMA_100M else others)

        monkeypatch.setattr(measure_decode, "ROOT", tmp_path)
        monkeypatch.setattr(measure_decode, "this_machine", calibrate)
        monkeypatch.setattr(measure_decode, "decode_times", decode)
        monkeypatch.setattr(measure_decode.time, "sleep", calls.append)
        monkeypatch.setattr(sys, "argv", ["measure_decode.py", *arguments])
        (tmp_path / "data").mkdir(exist_ok=True)
        measure_decode.main()
        return calls

    return main


def written(tmp_path):
    folder = tmp_path / "data" / "measured"
    return list(folder.iterdir()) if folder.exists() else []


def test_the_file_gives_back_all_that_the_ladder_needs(run, tmp_path):
    run("--runs", "2", "--held-out")
    (path,) = written(tmp_path)
    assert path.name == "decode_some-cpu-2-threads.json"
    for one in stored_runs(path):
        assert (one.arch, one.profile, list(one.points)) == (LLAMA_100M, PROFILE, POINTS)
        assert one.held_out.arch == measure_decode.HELD_OUT
        assert list(one.held_out.points) == OTHERS
        assert one.provenance["measured_code"] == measure_decode.MEASURED_CODE
    assert str(tmp_path) not in path.read_text()  # nothing about whose machine it was


@pytest.mark.parametrize("path", sorted((ROOT / "data" / "measured").glob("decode_*.json")))
def test_the_files_that_the_book_shows_can_be_recomputed(path):
    stored = json.loads(path.read_text())
    for one, data in zip(stored_runs(path), stored["runs"], strict=True):
        for part, of_part in ((one, data), (one.held_out, data.get("held_out"))):
            if part is not None:
                rungs = ladder(part.arch, part.profile, part.points)
                means = [rung["mean_abs_error"] for rung in of_part["ladder"]]
                assert [rung.mean_abs_error for rung in rungs] == pytest.approx(means)
                assert of_part["drift"] == pytest.approx(drift(part.profile, part.points))
