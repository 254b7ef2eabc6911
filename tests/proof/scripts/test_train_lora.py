"""scripts/train_lora.py: styles that show within ten tokens, and figures that come out again."""

import json
import platform
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from firsttoken.generate import generate
from firsttoken.models.llama import load_model
from firsttoken.models.lora import load_adapter, merge_adapter
from firsttoken.models.tokenizer import tokenizer
from firsttoken.sampling import SamplingParams

ROOT = Path(__file__).parents[3]
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "scripts")  # it imports from the scripts beside it
    import train_lora as script

TEXT = (ROOT / "data" / "heldout.txt").read_text(encoding="utf-8")
STORED = ROOT / "data" / "model" / "adapters"
REPORTS = {
    name: json.loads((STORED / name / "training.json").read_text()) for name in script.STYLES
}


@pytest.mark.parametrize("name", script.STYLES)
def test_a_style_is_all_over_its_text_and_hardly_in_plain_text(name):
    style, share = script.STYLES[name]
    assert share(style(TEXT)) > 0.999 and share(TEXT) < 0.2
    other = next(n for n in script.STYLES if n != name)
    assert share(script.STYLES[other][0](TEXT)) < 0.2


def test_the_whole_of_it(tmp_path, capsys, monkeypatch):
    shipped = json.loads((script.MODEL / "training.json").read_text())["corpus"]
    if platform.python_version() != shipped["python"]:  # else its text is the target's
        monkeypatch.setattr(script, "_hashes", lambda *_: {})
    script.main(["--quick", "--out", str(tmp_path)])
    for name in script.STYLES:
        report = json.loads((tmp_path / name / "training.json").read_text())
        assert report["recipe"]["steps"] == 2 and set(report) == set(REPORTS[name])
        assert load_adapter(tmp_path / name).rank == report["recipe"]["rank"]
    assert "nats_in_style" in capsys.readouterr().out


@pytest.mark.parametrize("name", script.STYLES)
def test_the_style_shows_within_ten_tokens(name):
    share = script.STYLES[name][1]
    base = load_model("target")
    merged = merge_adapter(base, load_adapter(name))
    params, tok = SamplingParams(0.0, max_tokens=10), tokenizer()
    shares = []
    for model in (base, merged):
        texts = [
            tok.decode(generate(model, tok.encode(opening), params, ignore_eos=True).ids)
            for opening in script.OPENINGS
        ]
        shares.append(np.mean([share(text) for text in texts]))
    assert shares[0] < 0.25 and shares[1] > 0.9


@pytest.mark.parametrize("name", script.STYLES)
def test_the_stored_figures_come_out_again(name):
    report, adapter = REPORTS[name], load_adapter(name)
    assert report["recipe"] == asdict(script.Recipe())
    assert report["n_params"] == sum(a.size + b.size for a, b in adapter.pairs.values())
    said = report["heldout"]
    merged = merge_adapter(load_model("target"), adapter)
    assert script.samples(merged, 10) == [
        tokenizer().decode(tokenizer().encode(text)[:10]) for text in said["after"]["samples"]
    ]
    n = report["recipe"]["heldout_windows"]
    loss = script.nats(merged, script.STYLES[name][0](TEXT), n)
    assert loss == pytest.approx(said["after"]["nats_in_style"], abs=2e-3)
    assert loss < said["before"]["nats_in_style"] - 0.3
    # It has learned a style and is no better model: plain text is less likely than before.
    assert said["after"]["nats_plain"] > said["before"]["nats_plain"]
