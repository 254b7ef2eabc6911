"""The script that makes the shipped pair: a short run into a folder of its own."""

import dataclasses
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from firsttoken.models.llama import load_model

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


def test_the_shipped_pair_was_made_by_the_recipes_of_the_script():
    report = json.loads((ROOT / "data" / "model" / "training.json").read_text())
    for name, recipe in (("target", train_model.TARGET), ("draft", train_model.DRAFT)):
        said = json.loads(json.dumps(dataclasses.asdict(recipe)))
        assert report[name].items() >= said.items()


def test_no_held_out_file_is_trained_on():
    source = Path(train_model.sysconfig.get_paths()["stdlib"])
    train, heldout = train_model.split_corpus(source, 12)
    assert len(heldout) == 12 and not set(train) & set(heldout)
    assert not any("test" in f.parts or f.name.startswith("_sysconfigdata") for f in train)
