"""benchmarks/quantization_speed.py: what is timed, what is made of the times, what is stored."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from firsttoken.architectures import Architecture

ROOT = Path(__file__).parents[3]
SPEC = importlib.util.spec_from_file_location(
    "quantization_speed", ROOT / "benchmarks" / "quantization_speed.py"
)
speed = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(speed)

TINY = Architecture("tiny", 2, 64, 2, 1, 32, 128, 96, tied_embeddings=True)


@pytest.fixture(scope="module")
def exact():
    return speed.random_llama(TINY)


def distance(logits, reference):
    return float((logits.float() - reference).norm() / reference.norm())


def test_every_step_computes_the_same_function(exact):
    """As far as its numbers reach; and a step may be repeated. Without its products it is none."""
    reference = speed.step(exact, 3)()
    assert reference.shape == (3, 1, 96)
    distances = {}
    for name in speed.FORMATS:
        run = speed.step(speed.in_format(exact, name), 3)
        logits = run()
        torch.testing.assert_close(run(), logits, atol=0, rtol=0)
        distances[name] = distance(logits, reference)
    # Half a step of 2^-8, of 1/127 and of 1/7 of the largest, over a few layers.
    assert distances["fp32"] == 0 < distances["bf16"] < 0.03
    assert distances["int8"] < 0.05 < distances["int4"] < 0.3
    assert distance(speed.step(speed.without_products(exact, "fp32"), 3)(), reference) == 1


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """The program on a model and rates that take no time, with a folder of its own."""
    sizes = {"LLAMA_100M": TINY, "LAYER": (64, 128), "HEAD": (64, 256), "N_LAYERS": 2}
    for name, value in (sizes | {"READ_NUMBERS": 10_000, "BATCHES": (1, 4)}).items():
        monkeypatch.setattr(speed, name, value)
    monkeypatch.setattr(speed, "data_path", lambda name: tmp_path / Path(name).name)
    before, change = torch.get_num_threads(), torch.set_num_threads
    yield tmp_path
    change(before)


def test_a_quick_run_writes_nothing_unless_told_where(tiny, capsys):
    speed.main(["--quick"])
    assert list(tiny.iterdir()) == []
    speed.main(["--quick", "--out", str(tiny / "mine.json")])
    assert [path.name for path in tiny.iterdir()] == ["mine.json"]  # nothing half written
    report = json.loads((tiny / "mine.json").read_text("utf-8"))
    assert {(s["format"], s["batch"]) for s in report["steps"]} == {
        (name, batch) for name in speed.FORMATS for batch in (1, 4)
    }
    assert report["measured_code"] == speed.MEASURED_CODE and report["threads"] == 1
    assert {"machine", "commit", "versions", "busy", "load_average_before"} <= report.keys()
    for step in report["steps"]:
        assert 0 < step["quartile_1_ms"] <= step["median_ms"] <= step["quartile_3_ms"]
    capsys.readouterr()
    speed.main(["--table", "--out", str(tiny / "mine.json")])
    assert capsys.readouterr().out.strip() == speed.table(report)
