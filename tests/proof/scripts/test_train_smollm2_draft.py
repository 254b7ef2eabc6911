"""scripts/train_smollm2_draft.py: what is said together is what is said alone; a quick run."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from firsttoken.generate import generate
from firsttoken.models.llama import load_model
from firsttoken.models.llama_torch import Llama
from firsttoken.sampling import SamplingParams
from models.test_smollm2 import installed

ROOT = Path(__file__).parents[3]
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "scripts")  # it imports from the scripts beside it
    import train_smollm2_draft as script

# PyTorch notes that a norm of bfloat16 by float32 weights has no kernel of its own.
pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")


def test_prompts_of_several_lengths_go_on_together_as_alone():
    """And the features are those of one pass over the text, in half precision."""
    together, alone = Llama.from_pretrained(ROOT / "data/model/target"), load_model("target")
    rng = np.random.default_rng(0)
    prompts = [rng.integers(1, 1024, size=n).tolist() for n in (3, 9, 17, 17, 1)]
    said, features = script.decode(together, prompts, 12, np.zeros(5), rng)
    for prompt, ids, seen in zip(prompts, said, features, strict=True):
        assert ids == generate(alone, prompt, SamplingParams(0, max_tokens=12)).ids
        expected = alone.features([prompt + ids[:-1]])[0]
        np.testing.assert_allclose(seen, expected, atol=0.02)


def test_a_hot_row_does_not_warm_a_cold_one():
    model = Llama.from_pretrained(ROOT / "data/model/target")
    prompts, heat = [[5, 6, 7], [5, 6, 7]], np.array([0.0, 1.0])
    first, second = (
        script.decode(model, prompts, 12, heat, np.random.default_rng(seed))[0] for seed in (0, 1)
    )
    assert first[0] == second[0] and first[1] != second[1]


def test_a_row_begins_where_a_conversation_does_and_has_its_features():
    talks = [[1, 2, 3, 4], [5, 6], [7, 8, 9, 10, 11], [12, 13, 14]]
    features = np.arange(1, 15, dtype=np.float16)[:, None]  # each token's own number
    rows = script.Talks(talks, features, row=4, n_validation=1)
    assert rows.tokens.tolist() == [[1, 2, 3, 4, 5, 6], [5, 6, 7, 8, 9, 10], [7, 8, 9, 10, 11, 12]]
    assert rows.n_train == 2
    tokens, seen = rows.batch(np.array([0, 2]))
    assert torch.equal(tokens[:, :-1].float(), seen[..., 0])


def test_the_likeliest_tokens_are_those_of_answers():
    talks = [([1, 1, 1, 4, 4, 3], 3), ([2, 4, 3, 6], 1)]
    assert script.likeliest(talks, 3, 10).tolist() == [3, 4, 6]
    assert script.likeliest(talks, 5, 10).tolist() == [0, 1, 3, 4, 6]  # unseen: the first


def test_a_model_says_what_it_said_of_the_tokens_that_are_left():
    model, known = Llama.from_pretrained(ROOT / "data/model/target"), np.array([3, 7, 500])
    before = model([[5, 6, 7]])
    script.guessing_only(model, known)
    torch.testing.assert_close(model([[5, 6, 7]]), before[..., known])


@installed
def test_the_whole_of_it(tmp_path):
    """A toy of everything: it is said, learnt, stored, read again and measured."""
    script.main(["--quick", "--work", str(tmp_path / "work"), "--out", str(tmp_path)])
    report = json.loads((tmp_path / "measured" / "smollm2_draft.json").read_text())
    scale = script.quick_scale()
    n_requests = len(script.KINDS) * len(scale.topics) + scale.data.n_requests
    assert report["said"]["requests"] == n_requests
    found = report["measured"]
    assert found["same_text"] and len(found["says"]) == len(found["alpha"]) == script.GAMMA
    (file,) = (tmp_path / "work").glob("*.safetensors")
    assert file.stat().st_size < 5e6


def test_what_is_measured_is_not_what_is_learnt():
    ours = [kind.format(topic, topic) for kind in script.KINDS for topic in script.TOPICS]
    assert not {text.casefold() for text in ours} & {text.casefold() for text in script.ASKED}
