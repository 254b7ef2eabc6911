"""The script that makes the shipped pair: a short run into a folder of its own."""

import dataclasses
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from firsttoken.llama import load_model

ROOT = Path(__file__).parents[3]
SPEC = importlib.util.spec_from_file_location("train_model", ROOT / "scripts" / "train_model.py")
train_model = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(train_model)

TINY = train_model.Recipe(
    {"n_layers": 1, "d_model": 16, "n_heads": 2, "n_kv_heads": 1, "head_dim": 8, "d_ff": 16},
    steps=6,
    short_steps=3,
    tokens_per_step=512,
)
ARCH = train_model.Architecture(
    "tiny", **TINY.shape, vocab_size=64, tied_embeddings=True, max_context=512
)
STREAM = np.random.default_rng(0).integers(64, size=5000).astype(np.uint16)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    train_model.main(["--quick", "--out", str(folder / "data"), "--work", str(folder / "work")])
    return folder / "data"


def test_what_it_writes_loads_in_transformers_and_here(quick):
    ids = AutoTokenizer.from_pretrained(quick / "model").encode("def f(x):\n\treturn x")
    for name in ("target", "draft"):
        directory = quick / "model" / name
        theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        ours = load_model(directory)
        expected = theirs(torch.tensor([ids])).logits.detach().numpy()
        np.testing.assert_allclose(ours([ids]), expected, atol=2e-5)


def test_the_report_says_how_it_was_made(quick):
    report = json.loads((quick / "model" / "training.json").read_text())
    assert report["corpus"]["license"] == "PSF-2.0"
    assert len(report["corpus"]["train_sha256"]) == 20
    assert not set(report["corpus"]["train_sha256"]) & set(report["corpus"]["heldout_sha256"])
    assert 0 < report["heldout"]["acceptance"] < 1
    assert report["target"]["loss_curve"] and report["draft"]["machine"]
    assert report["versions"]["torch"] == torch.__version__
    card = (quick / "model" / "README.md").read_text()
    assert f"{report['heldout']['bits_per_byte_target']:.3f}" in card and "PSF" in card
    assert (quick / "heldout.txt").stat().st_size == report["heldout"]["bytes"]


def test_the_shipped_pair_was_made_by_the_recipes_of_the_script():
    report = json.loads((ROOT / "data" / "model" / "training.json").read_text())
    for name, recipe in (("target", train_model.TARGET), ("draft", train_model.DRAFT)):
        said = json.loads(json.dumps(dataclasses.asdict(recipe)))
        assert report[name].items() >= said.items()


def test_an_epoch_shows_every_window_once():
    recipe = dataclasses.replace(TINY, steps=10**6, short_steps=10**6, tokens_per_step=128)
    batches = train_model.Batches(np.arange(5000), recipe)
    n_windows = (5000 - 1) // 128 - 1
    starts = sorted(int(batches(step)[0][0, 0]) for step in range(n_windows))
    assert np.all(np.diff(starts) == 128)
    tokens, targets = batches(0)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_no_held_out_file_is_trained_on():
    source = Path(train_model.sysconfig.get_paths()["stdlib"])
    train, heldout = train_model.split_corpus(source, 12)
    assert len(heldout) == 12 and not set(train) & set(heldout)
    assert not any("test" in f.parts or f.name.startswith("_sysconfigdata") for f in train)


def test_the_learning_rate_warms_up_bends_and_ends_at_zero():
    recipe = dataclasses.replace(TINY, steps=100, short_steps=80, warmup_steps=10, knee=0.4)
    factors = [train_model.schedule(step, recipe) for step in range(101)]
    assert np.argmax(factors) == 9 and factors[80] == pytest.approx(0.4) and factors[100] == 0
    assert np.all(np.diff(factors[:10]) > 0) and np.all(np.diff(factors[9:]) < 0)
