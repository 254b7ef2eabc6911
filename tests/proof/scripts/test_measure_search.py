"""scripts/measure_search.py: its tasks are answered by the text they come from."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SPEC = importlib.util.spec_from_file_location(
    "measure_search", ROOT / "scripts" / "measure_search.py"
)
measure_search = importlib.util.module_from_spec(SPEC)
sys.modules["measure_search"] = measure_search  # dataclasses look their module up
SPEC.loader.exec_module(measure_search)


def test_a_quick_run_writes_nothing(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(measure_search, "ROOT", tmp_path)
    monkeypatch.setattr(measure_search, "N_QUICK", (2, 2))
    monkeypatch.setattr(sys, "argv", ["measure_search.py", "--quick"])
    measure_search.main()
    assert list(tmp_path.iterdir()) == []
    said = capsys.readouterr().out
    first = json.JSONDecoder().raw_decode(said)[0]
    assert [run["width"] for run in first["beams"]] == [1, 2, 4, 8]
    for run in first["samples"]:
        curves = run["curves"]
        assert curves["verifier"]["accuracy"][0] == pytest.approx(
            curves["likeliest"]["accuracy"][0]
        )
        assert curves["verifier"]["accuracy"] == sorted(curves["verifier"]["accuracy"])
        for curve in curves.values():
            gain = [share - first["beams"][0]["accuracy"][0] for share in curve["accuracy"]]
            assert curve["minus_greedy"] == pytest.approx(gain)
