"""scripts/measure_search.py: its tasks are answered by the text they come from."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from firsttoken.paths import data_path

ROOT = Path(__file__).parents[3]
SPEC = importlib.util.spec_from_file_location(
    "measure_search", ROOT / "scripts" / "measure_search.py"
)
measure_search = importlib.util.module_from_spec(SPEC)
sys.modules["measure_search"] = measure_search  # dataclasses look their module up
SPEC.loader.exec_module(measure_search)

TEXT = data_path("heldout.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["name", "line"])
def test_what_the_author_wrote_is_right(kind):
    tasks = getattr(measure_search, f"{kind}_tasks")(TEXT)
    assert len(tasks) > 1000
    for task in tasks[::20]:
        assert TEXT.startswith(task.prompt)
        rest = TEXT[len(task.prompt) :][:300]
        end = min(at for stop in task.stop if (at := rest.find(stop)) >= 0)
        assert task.is_right(rest[:end]) and not task.is_right("(" + rest[:end])


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
