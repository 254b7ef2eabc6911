"""scripts/train_drafts.py: a quick run from end to end, and a stop that loses nothing."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from firsttoken.draft_heads import EagleDraft
from firsttoken.generate import generate
from firsttoken.llama import load_model
from firsttoken.llama_torch import Llama
from firsttoken.sampling import SamplingParams

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


def test_every_step_learns_from_other_windows_and_never_from_those_that_judge(windows):
    recipe = RECIPES["medusa"]
    n = windows.n_train // recipe.rows
    seen = np.concatenate([windows.rows_of(step, recipe) for step in range(n)])
    assert sorted(seen) == list(range(windows.n_train))
    judging = np.concatenate(windows.validation())
    assert not set(judging) & set(seen) and len(judging)
    assert not np.array_equal(windows.rows_of(0, recipe), windows.rows_of(n, recipe))


def test_the_loss_is_that_of_the_places_that_are_guessed(windows):
    """A network that knows the target's features loses nothing, at every place ahead."""
    tokens, features = windows.batch(np.array([0]))

    class Knows(torch.nn.Module):
        def forward(self, here, follow=None, n_steps=3):
            if eagle:
                return features[:, 1:].repeat(n_steps, 1, 1, 1)
            ahead = [torch.roll(features, -1 - i, 1)[:, :-1] for i in range(3)]
            return torch.stack(ahead)

    for name in ("medusa", "recurrent", "eagle_own"):
        eagle = name == "eagle_own"
        losses, _ = script.loss_of(name, Knows(), TARGET, tokens, features)
        assert max(losses) < 1e-6
        shifted, _ = script.loss_of(name, Knows(), TARGET, tokens, torch.roll(features, 1, 1))
        assert min(shifted) > 0.01


def test_a_draft_that_is_the_target_is_always_right():
    target, prompts = load_model("target"), script.places(5)
    found = script.counted(target, target, prompts, 0.0)
    assert found["alpha"] == [1.0] * script.GAMMA and found["reached"] == [5] * script.GAMMA
    assert found["tokens_per_pass"] == [float(g + 1) for g in range(1, script.GAMMA + 1)]
    text = generate(target, prompts[0], SamplingParams(0, max_tokens=5), ignore_eos=True).ids
    assert len(text) == 5


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
