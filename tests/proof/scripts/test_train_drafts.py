"""scripts/train_drafts.py: a quick run from end to end, and a stop that loses nothing."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from firsttoken.drafts.heads import EagleDraft
from firsttoken.models.llama import load_model
from firsttoken.models.llama_torch import Llama

ROOT = Path(__file__).parents[3]
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "scripts")  # it imports from the scripts beside it
    import train_drafts as script

# PyTorch notes that a norm of bfloat16 by float32 weights has no kernel of its own.
pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
STREAM = np.random.default_rng(1).integers(1024, size=8 * 512 + 2).astype(np.uint16)
TARGET = Llama.from_pretrained(ROOT / "data" / "model" / "target")
RECIPES = dict(script.quick_scale().recipes)


@pytest.fixture(scope="module")
def windows(tmp_path_factory):
    return script.Windows(STREAM, TARGET, tmp_path_factory.mktemp("features") / "f16", 2)


def test_features_are_the_target_s(windows):
    """Those that its own unembedding makes logits of; kept in half precision."""
    tokens, features = windows.batch(np.array([3]))
    assert tokens.shape == (1, 514) and features.shape == (1, 513, 192)
    with torch.no_grad():
        expected = TARGET(tokens[:, :-1])
        np.testing.assert_allclose(TARGET.lm_head(features), expected, atol=0.03)
    in_parts, features_in_parts = windows.batch(np.array([3]), parts=2)
    assert in_parts.shape == (2, 258) and features_in_parts.shape == (2, 257, 192)
    assert torch.equal(in_parts[1], tokens[0, 256:]) and torch.equal(
        features_in_parts[1], features[0, 256:]
    )


def test_the_whole_of_it(tmp_path, capsys):
    """A toy of everything: it is stored, read again, and measured."""
    script.main(["--quick", "--work", str(tmp_path / "work"), "--out", str(tmp_path)])
    report = json.loads((tmp_path / "measured" / "drafts.json").read_text())
    assert set(report["trained"]) == set(RECIPES)
    assert set(report["measured"]) == {*RECIPES, "draft", "pruned_draft"}
    for name, run in report["trained"].items():
        assert run["recipe"] == json.loads(json.dumps(asdict(RECIPES[name])))
    eagle = EagleDraft(load_model("target"), tmp_path / "model" / "eagle_draft")
    assert eagle.layer.arch.n_layers == 1
    assert "alpha by position" in capsys.readouterr().out
    n_bytes = sum(f.stat().st_size for f in (tmp_path / "model").rglob("*.safetensors"))
    assert n_bytes < 1.8e6
