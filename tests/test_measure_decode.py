"""scripts/measure_decode.py: the stored report is whole, and a busy machine writes none."""

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from firsttoken.architectures import Architecture
from firsttoken.hardware import Accelerator
from firsttoken.measure import DecodePoint, MachineProfile, ladder

ROOT = Path(__file__).parents[1]
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
    head_bandwidth=dict.fromkeys(KEYS, 1e10),
    kv_read_s={(*key, n): 1e-5 + n / 1e10 for key in KEYS for n in (1000, 9000)},
    overhead_s=dict.fromkeys(KEYS, 2e-4),
)
POINTS = [DecodePoint("fp32", b, c, 0.03 + 0.001 * b, 0.02) for b in (1, 4) for c in (128, 512)]


@pytest.fixture
def run(monkeypatch, tmp_path):
    """The script's main, with these measurements, in a tree of its own."""

    def main(*arguments, profile=PROFILE, points=POINTS):
        monkeypatch.setattr(measure_decode, "ROOT", tmp_path)
        monkeypatch.setattr(measure_decode, "this_machine", lambda **_: profile)
        monkeypatch.setattr(measure_decode, "decode_times", lambda *_, **__: points)
        monkeypatch.setattr(sys, "argv", ["measure_decode.py", *arguments])
        (tmp_path / "data").mkdir(exist_ok=True)
        measure_decode.main()

    return main


def test_the_report_gives_back_all_that_the_ladder_needs(run, tmp_path, capsys):
    run()
    (path,) = (tmp_path / "data" / "measured").iterdir()
    assert path.name == "decode_some-cpu-2-threads.json"
    report = json.loads(path.read_text())
    arch = Architecture(**report["arch"])
    profile = MachineProfile.from_dict(report["profile"])
    points = [DecodePoint(**point) for point in report["points"]]
    assert (profile, points) == (PROFILE, POINTS)
    again = json.loads(json.dumps([dataclasses.asdict(r) for r in ladder(arch, profile, points)]))
    assert again == report["ladder"]
    provenance = report["provenance"]
    assert provenance["machine"] == PROFILE.accelerator.name and provenance["busy"] == ""
    assert {"commit", "versions", "seed", "rounds", "date", "script"} <= set(provenance)
    assert str(tmp_path) not in path.read_text()  # nothing about whose machine it was
    table = capsys.readouterr().out
    assert f"{report['ladder'][-1]['mean_abs_error']:.1%}" in table
    assert table.count("fp32") == len(POINTS)


def test_a_quick_run_writes_nothing(run, tmp_path):
    run("--quick")
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize("busy", ["profile", "points"])
def test_a_busy_machine_writes_nothing_unless_told_to(run, tmp_path, busy):
    profile, points = PROFILE, POINTS
    if busy == "profile":
        profile = dataclasses.replace(PROFILE, provenance={"device": "cpu", "core_share": 0.5})
    else:
        points = [dataclasses.replace(point, spread=0.8) for point in POINTS]
    with pytest.raises(SystemExit, match="nothing written, since the machine was busy"):
        run(profile=profile, points=points)
    assert list((tmp_path / "data").iterdir()) == []
    run("--even-if-busy", profile=profile, points=points)
    (path,) = (tmp_path / "data" / "measured").iterdir()
    assert json.loads(path.read_text())["provenance"]["busy"]
