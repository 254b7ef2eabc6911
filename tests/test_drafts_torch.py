"""The networks that are trained: what they say is what `draft_heads` says with their weights."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from firsttoken.architectures import Architecture
from firsttoken.checkpoint import weight_shapes
from firsttoken.continuation import Continuation
from firsttoken.draft_heads import EagleDraft, MedusaDraft, MultiTokenDraft, RecurrentDraft
from firsttoken.drafts_torch import (
    Eagle,
    MedusaHeads,
    MultiTokenHeads,
    RecurrentHead,
    attend_own,
)
from firsttoken.llama import Llama
from firsttoken.llama_torch import Llama as TorchLlama
from firsttoken.sampling import SamplingParams

ARCH = Architecture("tiny", 2, 16, 4, 2, 4, 32, 30, tied_embeddings=True, max_context=64)
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]
CONFIG = """{"model_type": "llama", "vocab_size": 30, "hidden_size": 16, "intermediate_size": 32,
"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
"hidden_act": "silu", "max_position_embeddings": 64, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
"tie_word_embeddings": true, "eos_token_id": 0}"""


def weights():
    rng = np.random.default_rng(0)
    return {
        name: (rng.normal(size=s) * 0.4 + ("norm" in name)).astype(np.float32)
        for name, s in weight_shapes(ARCH).items()
    }


@pytest.fixture(scope="module")
def target():
    return Llama(ARCH, weights())


@pytest.fixture(scope="module")
def torch_target():
    return TorchLlama(ARCH, weights())


@pytest.fixture(scope="module")
def eagle(torch_target):
    torch.manual_seed(0)
    network = Eagle(torch_target)
    torch.nn.init.normal_(network.fc.weight, std=0.3)
    return network.requires_grad_(False)


def stored(eagle, folder):
    """Write EAGLE as `scripts/train_drafts.py` does."""
    tensors = {
        name.removeprefix("layer."): w
        for name, w in eagle.state_dict().items()
        if "embed" not in name and "lm_head" not in name
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(CONFIG)
    return folder


def said_in_numpy(draft, target, n_text, n_steps):
    """Return the features behind a text, and behind each guess that follows it in TOKENS."""
    request = Continuation(target, TOKENS[:n_text], SamplingParams(max_tokens=20))
    features = target.features([TOKENS[: n_text - 1]])[0]
    said = []

    class Watched:
        def __init__(self, target):
            self.embedding = target.embedding

        def logits(self, features):
            said.append(features[-1])
            return target.logits(features)

    draft._target = Watched(target)
    look = draft.look(request, features)
    for step in range(n_steps):
        look(TOKENS[n_text : n_text + step], list(range(-1, step - 1)), 1)
    draft._target = target
    return np.array(said)


@pytest.mark.parametrize("n_text", [5, 8, 11])
def test_eagle_s_own_steps_are_its_guesses_one_by_one(
    target, torch_target, eagle, tmp_path, n_text
):
    """Step j at position t: what it says when it guesses, with its own last j features."""
    draft, n_steps = EagleDraft(target, stored(eagle, tmp_path)), 4
    features = torch.from_numpy(target.features([TOKENS[:-1]]))
    said = eagle(features, torch.tensor([TOKENS[1:]]), n_steps)[:, 0].numpy()
    expected = said_in_numpy(draft, target, n_text, n_steps)
    got = [said[step, n_text - 2 + step] for step in range(n_steps)]
    np.testing.assert_allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize("wrong", ["all keys of the first step", "own keys one place off"])
def test_other_attention_of_the_own_steps_would_show(wrong, target, eagle, tmp_path, monkeypatch):
    def astray(q, steps):
        if len(steps) == 1:
            return attend_own(q, steps)
        if wrong == "all keys of the first step":
            return attend_own(q, steps[:1])
        return attend_own(q, [steps[0], *((k.roll(1, 2), v.roll(1, 2)) for k, v in steps[1:])])

    monkeypatch.setattr("firsttoken.drafts_torch.attend_own", astray)
    draft = EagleDraft(target, stored(eagle, tmp_path))
    features = torch.from_numpy(target.features([TOKENS[:-1]]))
    said = eagle(features, torch.tensor([TOKENS[1:]]), 3)[:, 0].numpy()
    assert np.abs(said[2, 10] - said_in_numpy(draft, target, 10, 3)[2]).max() > 1e-3


def test_eagle_starts_as_the_last_layer_on_the_feature_itself(torch_target):
    network = Eagle(torch_target)
    features, follow = torch.randn(1, 5, 16), torch.tensor([[1, 2, 3, 4, 5]])
    here, other = (network(features, torch.full_like(follow, i)) for i in (1, 2))
    assert torch.equal(here, other)  # the embedding has no weight yet
    last = dict(torch_target.model.layers[1].named_parameters())
    for name, weight in network.layer.model.layers[0].named_parameters():
        assert torch.equal(weight, last[name])
    learned = [name for name, p in network.named_parameters() if p.requires_grad]
    assert not any("embed" in name or "lm_head" in name for name in learned)


def test_untrained_heads_say_what_the_target_says(target):
    """Where W is 0 each head repeats the guess for the next token."""
    features = torch.from_numpy(target.features([TOKENS]))
    network = MedusaHeads(3, 16)
    assert all(torch.equal(said, features) for said in network(features))
    draft = MedusaDraft(target, np.zeros((3, 16, 16)))
    logits = draft.logits(features[0, -1].numpy())
    np.testing.assert_allclose(logits, np.repeat(target([TOKENS])[0, -1:], 3, axis=0), atol=1e-4)


def test_heads_say_the_same_in_numpy(target):
    torch.manual_seed(1)
    network = MedusaHeads(3, 16).requires_grad_(False)
    for head in network.heads:
        torch.nn.init.normal_(head.weight, std=0.3)
    features = target.features([TOKENS])
    said = network(torch.from_numpy(features))[:, 0, -1].numpy()
    draft = MedusaDraft(target, np.stack([head.weight.numpy() for head in network.heads]))
    np.testing.assert_allclose(draft.logits(features[0, -1]), target.logits(said), atol=1e-4)


def test_multi_token_heads_say_the_same_in_numpy(target, torch_target):
    torch.manual_seed(2)
    network = MultiTokenHeads(2, torch_target).requires_grad_(False)
    for name, p in network.named_parameters():
        if "proj" in name:
            torch.nn.init.normal_(p, std=0.3)
    heads = []
    for head in network.heads:
        own = {n: w.numpy() for n, w in head.state_dict().items() if n != "lm_head.weight"}
        heads.append(Llama(ARCH.replace(n_layers=1), own))
    features = target.features([TOKENS])
    said = network(torch.from_numpy(features))[:, 0].numpy()
    draft = MultiTokenDraft(target, heads)
    request = Continuation(target, [*TOKENS[:9], 0], SamplingParams(max_tokens=20))
    draft.look(request, features[0, :9])
    request.ids[9:] = [*TOKENS[9:], 0]  # the target has read more
    look = draft.look(request, features[0, 9:])
    got = np.concatenate([look([], [], 1), look([1], [-1], 1)])
    np.testing.assert_allclose(got, target.logits(said[:, -1]), atol=1e-4)


@pytest.mark.parametrize("n_text", [5, 9])
def test_the_recurrent_head_s_steps_are_its_guesses_one_by_one(target, torch_target, n_text):
    torch.manual_seed(3)
    network = RecurrentHead(torch_target, n_inner=20).requires_grad_(False)
    untrained = network(torch.ones(1, 4, 16), torch.tensor([[1, 2, 3, 4]]), 3)
    assert torch.equal(untrained, torch.ones(3, 1, 4, 16))  # it says the next token once more
    for layer in (network.read, network.write):
        torch.nn.init.normal_(layer.weight, std=0.3)
    draft = RecurrentDraft(target, (network.read.weight.numpy(), network.write.weight.numpy()))
    features = torch.from_numpy(target.features([TOKENS[:-1]]))
    said = network(features, torch.tensor([TOKENS[1:]]), 4)[:, 0].numpy()
    expected = said_in_numpy(draft, target, n_text, 4)
    np.testing.assert_allclose(said[:, n_text - 2], expected, atol=1e-4)
    assert np.abs(said[1:, n_text - 1] - expected[1:]).max() > 1e-2  # of another place
