"""scripts/measure_engine.py: the stored file is whole, and a disturbed run writes none."""

import importlib.util
import itertools
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from firsttoken.batching import Request
from firsttoken.engine import MeasuredCost
from firsttoken.models.llama import load_model

ROOT = Path(__file__).parents[3]
SPEC = importlib.util.spec_from_file_location(
    "measure_engine", ROOT / "scripts" / "measure_engine.py"
)
measure_engine = importlib.util.module_from_spec(SPEC)
sys.modules["measure_engine"] = measure_engine  # dataclasses look their module up
SPEC.loader.exec_module(measure_engine)

COST = MeasuredCost(1e-3, 1e-4, 1e-4, 0.0, 0.0)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """The script's main on the draft, with few requests, in a tree of its own."""

    def main(*arguments, core_share, stubs=True):
        cpu, wall = itertools.count(), itertools.count()
        clocks = SimpleNamespace(
            process_time=lambda: core_share * next(cpu), perf_counter=lambda: next(wall)
        )
        monkeypatch.setattr(measure_engine, "ROOT", tmp_path)
        monkeypatch.setattr(measure_engine, "time", clocks)
        monkeypatch.setattr(measure_engine, "Size", lambda: measure_engine.QUICK)
        monkeypatch.setattr(measure_engine, "load_model", lambda: load_model("draft"))
        monkeypatch.setattr(measure_engine, "measure_cost", lambda *_, **__: COST)
        if stubs:
            done = {"load": 0.5, "core_share": 1.0, "relative_errors": {"ttft": {"mean": 0.1}}}
            monkeypatch.setattr(measure_engine, "served", lambda *_: done)
            monkeypatch.setattr(measure_engine, "together_and_alone", lambda *_: {"exceptions": []})
            monkeypatch.setattr(measure_engine, "near_ties", lambda *_: {"ties": []})
            flips = {"prompts": [{"flips": {"1 others of 1": {"n": 2}}}]}
            monkeypatch.setattr(measure_engine, "seeds_that_flip", lambda *_: flips)
        heldout = (ROOT / "data" / "heldout.txt").read_text(encoding="utf-8")[:4000]
        (tmp_path / "heldout.txt").write_text(heldout, encoding="utf-8")
        monkeypatch.setattr(measure_engine, "data_path", lambda name: tmp_path / name)
        monkeypatch.setattr(sys, "argv", ["measure_engine.py", *arguments])
        (tmp_path / "data").mkdir(exist_ok=True)
        measure_engine.main()

    return main


def written(tmp_path):
    return list((tmp_path / "data").rglob("*.json"))


def test_the_file_gives_back_what_was_asked_and_found(run, tmp_path):
    run(core_share=0.99, stubs=False)
    (path,) = written(tmp_path)
    report = json.loads(path.read_text())
    assert path.stem == "engine" and report["provenance"]["busy"] == ""
    assert report["provenance"]["measured_code"] == measure_engine.MEASURED_CODE
    for name, found in report["settings"].items():
        assert MeasuredCost(**found["cost"]) == COST
        setting = measure_engine.Setting(**found["engine"])
        assert setting == measure_engine.SETTINGS[name]
        for done in found["runs"]:
            trace = [Request(*fields) for fields in done["requests"]]
            again = measure_engine.predict(setting, trace, COST)
            assert measure_engine.latencies(again) == done["predicted"]
            assert all(len(done["measured"][kind]) == len(trace) for kind in ("ttft", "tpot"))
            for error in done["relative_errors"].values():
                assert all(value > -1 for value in error.values())
    compared = report["together_and_alone"]
    assert compared["n_tokens"] > 0 and set(compared["ways"]) == set(measure_engine.WAYS)
    for exception in compared["exceptions"]:
        assert exception["margin"] < 1e-4
    ties = report["near_ties"]
    assert [tie["margin"] for tie in ties["ties"]] == sorted(tie["margin"] for tie in ties["ties"])
    assert 0 < ties["largest_difference_of_logits"] < 1e-4
    for prompt in report["seeds"]["prompts"]:
        for flips in prompt["flips"].values():
            assert len(flips["first"]) == min(3, flips["n"]) <= report["seeds"]["n_seeds"]
            assert all(alone != other for _, alone, other in flips["first"])


def test_a_disturbed_run_writes_nothing(run, tmp_path):
    with pytest.raises(SystemExit, match="nothing written: other programs left only 70% of a core"):
        run(core_share=0.7)
    assert written(tmp_path) == []
