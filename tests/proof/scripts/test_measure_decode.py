"""scripts/measure_decode.py: the stored file is whole, and a disturbed run writes none."""

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from firsttoken import measure
from firsttoken.hardware import Accelerator
from firsttoken.prediction import (
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
SLOW = [dataclasses.replace(point, control_bandwidth=8.9e9) for point in POINTS]


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


def test_the_file_gives_back_all_that_the_ladder_needs(run, tmp_path, capsys):
    run("--runs", "2", "--held-out")
    (path,) = written(tmp_path)
    assert path.name == "decode_some-cpu-2-threads.json"
    stored = json.loads(path.read_text())
    loaded = stored_runs(path)
    assert len(loaded) == len(stored["runs"]) == 2
    for one, data in zip(loaded, stored["runs"], strict=True):
        assert (one.arch, one.profile, list(one.points)) == (LLAMA_100M, PROFILE, POINTS)
        assert one.held_out.arch == measure_decode.HELD_OUT
        assert list(one.held_out.points) == OTHERS
        for part, of_part in ((one, data), (one.held_out, data["held_out"])):
            again = [dataclasses.asdict(r) for r in ladder(part.arch, part.profile, part.points)]
            assert json.loads(json.dumps(again)) == of_part["ladder"]
            assert of_part["drift"] == drift(part.profile, part.points) == pytest.approx(-0.03)
        assert one.provenance["machine"] == PROFILE.accelerator.name
        assert one.provenance["busy"] == ""
        assert {"commit", "versions", "seed", "rounds", "date", "script"} <= set(one.provenance)
        assert one.provenance["measured_code"] == measure_decode.MEASURED_CODE
    assert str(tmp_path) not in path.read_text()  # nothing about whose machine it was
    out = capsys.readouterr().out
    assert f"{data['ladder'][-1]['mean_abs_error']:.1%}" in out
    assert out.count("fp32") == 4 * len(POINTS) and out.count("drift -3.0%; quiet") == 2


def test_every_run_has_its_own_calibration_and_its_pause(run):
    each = ["calibration", LLAMA_100M.name]
    assert run() == each
    assert run("--runs", "3", "--pause", "60") == [*each, 60.0, *each, 60.0, *each]
    held_out = [*each, measure_decode.HELD_OUT.name]
    assert run("--runs", "2", "--held-out") == [*held_out, 0, *held_out]


def test_without_the_flag_no_other_model_is_stored(run, tmp_path):
    run()
    (path,) = written(tmp_path)
    (one,) = stored_runs(path)
    assert one.held_out is None and "held_out" not in json.loads(path.read_text())["runs"][0]


def test_the_held_out_model_shares_no_shape_with_the_calibration_or_the_other():
    model = measure_decode.HELD_OUT
    for sizes in (measure._Sizes(), measure._GPU_SIZES):
        assert model.d_model not in (sizes.d_model, LLAMA_100M.d_model)
        assert model.d_ff not in (sizes.d_ff, LLAMA_100M.d_ff)
        assert model.vocab_size not in (sizes.vocab_size, LLAMA_100M.vocab_size)
        assert model.head_dim not in (sizes.head_dim, LLAMA_100M.head_dim)
        assert model.n_kv_heads not in (sizes.n_kv_heads, LLAMA_100M.n_kv_heads)
        assert model.n_layers not in (sizes.depth, LLAMA_100M.n_layers)
        assert model.n_heads // model.n_kv_heads in sizes.groups
        per_token = model.n_kv_heads * model.head_dim
        assert per_token * 1024 <= sizes.n_kv_heads * sizes.head_dim * max(sizes.contexts)


@pytest.mark.parametrize("points", [POINTS, SLOW])
def test_a_quick_run_writes_nothing_and_says_whether_it_was_quiet(run, tmp_path, capsys, points):
    run("--quick", points=points)
    assert written(tmp_path) == []
    assert ("busy: the machine ran at 89% of" in capsys.readouterr().out) == (points is SLOW)


@pytest.mark.parametrize(
    ("disturbed", "reason"),
    [
        ({"profile": dataclasses.replace(PROFILE, provenance={"core_share": 0.5})}, "cores"),
        ({"points": [dataclasses.replace(p, spread=0.8) for p in POINTS]}, "differ by 80%"),
        ({"points": SLOW}, "ran at 89% of its calibrated speed"),
        ({"others": SLOW}, "ran at 89% of its calibrated speed"),
        (
            {"points": [dataclasses.replace(p, control_bandwidth=1.12e10) for p in POINTS]},
            "ran at 112% of its calibrated speed",
        ),
    ],
)
def test_a_disturbed_run_writes_nothing_unless_told_to(run, tmp_path, disturbed, reason):
    with pytest.raises(SystemExit, match=f"nothing written, since run 1 was disturbed: .*{reason}"):
        run("--runs", "2", "--held-out", **disturbed)
    assert written(tmp_path) == []
    run("--even-if-busy", "--held-out", **disturbed)
    (path,) = written(tmp_path)
    assert reason in stored_runs(path)[0].provenance["busy"]


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
