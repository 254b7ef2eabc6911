"""scripts/train_lora.py: styles that show within ten tokens, and figures that come out again."""

import json
import platform
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from firsttoken.generate import generate
from firsttoken.llama import load_model
from firsttoken.llama_torch import Llama
from firsttoken.lora import load_adapter, merge_adapter
from firsttoken.sampling import SamplingParams
from firsttoken.tokenizer import tokenizer

ROOT = Path(__file__).parents[3]
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "scripts")  # it imports from the scripts beside it
    import train_lora as script

TEXT = (ROOT / "data" / "heldout.txt").read_text(encoding="utf-8")
STORED = ROOT / "data" / "model" / "adapters"
REPORTS = {
    name: json.loads((STORED / name / "training.json").read_text()) for name in script.STYLES
}
STREAM = np.random.default_rng(1).integers(1024, size=2000).astype(np.uint16)
QUICK = replace(script.Recipe(), steps=3, rows=2, window=32)


# --- styles


@pytest.mark.parametrize("name", script.STYLES)
def test_a_style_is_all_over_its_text_and_hardly_in_plain_text(name):
    style, share = script.STYLES[name]
    assert share(style(TEXT)) > 0.999 and share(TEXT) < 0.2
    other = next(n for n in script.STYLES if n != name)
    assert share(script.STYLES[other][0](TEXT)) < 0.2


def test_no_word_of_a_text_is_lost():
    assert script.capitals(TEXT).casefold() == TEXT.casefold()
    assert "".join(line[4:] for line in script.session(TEXT).splitlines(keepends=True)) == TEXT
    assert script.session("") == "" and script.share_of_capitals("1 + 1") == 0


# --- training


def test_a_step_s_rows_are_its_own():
    first, again, second = (script.batch(STREAM, step, QUICK) for step in (0, 0, 1))
    assert first.shape == (2, 33)
    assert torch.equal(first, again) and not torch.equal(first, second)
    other = script.batch(STREAM, 0, replace(QUICK, seed=1))
    assert not torch.equal(first, other)
    text = " ".join(map(str, STREAM))
    assert all(" ".join(map(str, row)) in text for row in first.tolist())


def test_pairs_begin_as_nothing_and_are_all_that_learns():
    target, plain = (Llama.from_pretrained(script.MODEL / "target") for _ in range(2))
    pairs = script.attach(target, QUICK)
    assert len(pairs) == 8 * 7
    tokens = script.batch(STREAM, 0, QUICK)
    assert torch.equal(target(tokens), plain(tokens))
    learning = {id(p) for p in target.parameters() if p.requires_grad}
    assert learning == {id(p) for pair in pairs.values() for p in (pair.A, pair.B)}


def test_what_was_trained_is_what_the_library_computes():
    """The script's own module, and the adapter that it hands over, merged in NumPy."""
    target = Llama.from_pretrained(script.MODEL / "target")
    pairs = script.attach(target, QUICK)
    with torch.no_grad():
        for pair in pairs.values():
            pair.B.normal_(std=0.05)
    found = {
        place: (pair.A.detach().numpy(), pair.B.detach().numpy()) for place, pair in pairs.items()
    }
    adapter = script.Adapter(QUICK.rank, QUICK.alpha, found)
    tokens = script.batch(STREAM, 0, QUICK)
    merged = merge_adapter(load_model("target"), adapter)(tokens.numpy())
    np.testing.assert_allclose(merged, target(tokens).detach().numpy(), atol=1e-3)
    assert np.abs(merged - load_model("target")(tokens.numpy())).max() > 1


def test_training_lowers_the_loss_and_a_seed_decides_it():
    stream = np.array(tokenizer().encode(script.session(TEXT[:4000])), np.uint16)
    recipe = replace(QUICK, steps=20, warmup_steps=2)
    adapter, curve = script.train(stream, recipe)
    base, merged = load_model("target"), merge_adapter(load_model("target"), adapter)
    rows = stream[None, :256].astype(int)

    def loss(model):
        logits = torch.from_numpy(model(rows)[0, :-1])
        return torch.nn.functional.cross_entropy(logits, torch.from_numpy(rows[0, 1:])).item()

    assert loss(merged) < loss(base) - 0.5
    assert curve[-1][0] == 20
    again, _ = script.train(stream, recipe)
    for place, (a, b) in adapter.pairs.items():
        np.testing.assert_allclose(again.pairs[place][0], a, atol=1e-4)
        np.testing.assert_allclose(again.pairs[place][1], b, atol=1e-4)


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


def test_another_text_than_the_target_s_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(script, "_hashes", lambda *_: {"abc.py": "0" * 64})
    with pytest.raises(SystemExit, match="is not the target's text: Python 3"):
        script.main(["--quick", "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())


# --- what is shipped


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
