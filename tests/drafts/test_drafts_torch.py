"""The networks that are trained: what they say is what `draft_heads` says with their weights."""

import copy

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save_file

from firsttoken.architectures import Architecture
from firsttoken.drafts.drafts_torch import (
    Eagle,
    MedusaHeads,
    MultiTokenHeads,
    RecurrentHead,
    last_layer,
    through_layer,
)
from firsttoken.drafts.heads import (
    EagleDraft,
    LikelyDraft,
    MedusaDraft,
    MultiTokenDraft,
    RecurrentDraft,
    multi_token_heads,
)
from firsttoken.generate.sequence import TokenSequence
from firsttoken.models.checkpoint import weight_shapes
from firsttoken.models.llama import Llama
from firsttoken.models.llama_torch import Llama as TorchLlama
from firsttoken.quantization import quantize
from firsttoken.sampling import SamplingParams

ARCH = Architecture("tiny", 2, 16, 4, 2, 4, 32, 30, tied_embeddings=True, max_context=64)
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]
CONFIG = """{"model_type": "llama", "vocab_size": 30, "hidden_size": 16, "intermediate_size": 32,
"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
"hidden_act": "silu", "max_position_embeddings": 64, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
"tie_word_embeddings": true, "eos_token_id": 0}"""


def weights(arch=ARCH):
    rng = np.random.default_rng(0)
    return {
        name: (rng.normal(size=s) * 0.4 + ("norm" in name)).astype(np.float32)
        for name, s in weight_shapes(arch).items()
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
    request = TokenSequence(target, TOKENS[:n_text], SamplingParams(max_tokens=20))
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


def test_eagle_s_own_steps_are_its_guesses_one_by_one(target, eagle, tmp_path):
    """Step j at position t: what it says when it guesses, with its own last j features."""
    draft, n_steps = EagleDraft(target, stored(eagle, tmp_path)), 4
    features = torch.from_numpy(target.features([TOKENS[:-1]]))
    said = eagle(features, torch.tensor([TOKENS[1:]]), n_steps)[:, 0].numpy()
    for n_text in (5, 8, 11):
        expected = said_in_numpy(draft, target, n_text, n_steps)
        got = [said[step, n_text - 2 + step] for step in range(n_steps)]
        np.testing.assert_allclose(got, expected, atol=1e-4)


def test_eagle_s_layer_is_as_its_config_says(target, eagle, tmp_path):
    config = stored(eagle, tmp_path) / "config.json"
    other = CONFIG.replace('"rms_norm_eps": 1e-05', '"rms_norm_eps": 0.01').replace(
        "10000.0", "500.0"
    )
    config.write_text(other)
    layer = EagleDraft(target, tmp_path).layer
    assert layer.norm_eps == 0.01
    np.testing.assert_allclose(layer.frequencies, [1, 500**-0.5], rtol=1e-6)


def test_a_draft_of_some_tokens_says_what_eagle_says_of_them(target, eagle, tmp_path):
    """From weights that 8 bits and a scale a row store exactly."""
    network, known = copy.deepcopy(eagle), np.array([2, 3, 5, 8, 9, 21], np.int32)
    tensors = {"vocabulary": known}
    for name, weight in network.state_dict().items():
        if "embed" in name or "lm_head" in name:
            continue
        short = name.removeprefix("layer.")
        tensors[short] = weight.numpy()
        if weight.ndim == 2:
            rounded = quantize(weight.numpy(), 8, axis=0)
            tensors |= {short: rounded.codes.astype(np.int8), f"{short}.scale": rounded.scale}
            weight.copy_(torch.from_numpy(rounded.dequantize()))
    save_numpy(tensors, tmp_path / "few.safetensors")
    whole = EagleDraft(target, stored(network, tmp_path))
    few = LikelyDraft(target, tmp_path / "few.safetensors")
    features = target.features([TOKENS[:6]])[0]
    said = []
    for draft in (whole, few):
        look = draft.look(TokenSequence(target, TOKENS[:7], SamplingParams(max_tokens=9)), features)
        said.append(np.array([look([], [], 1)[0], look([3], [-1], 1)[0]]))
    np.testing.assert_allclose(said[1][:, known], said[0][:, known], rtol=1e-5, atol=1e-5)
    assert (np.delete(said[1], known, axis=1) == -np.inf).all()


def test_heads_say_the_same_in_numpy_and_untrained_what_the_target_says(target):
    """Where W is 0 each head repeats the guess for the next token."""
    features = target.features([TOKENS])
    network = MedusaHeads(3, 16).requires_grad_(False)
    assert all(
        torch.equal(said, torch.from_numpy(features))
        for said in network(torch.from_numpy(features))
    )
    torch.manual_seed(1)
    for init in (torch.nn.init.zeros_, lambda w: torch.nn.init.normal_(w, std=0.3)):
        for head in network.heads:
            init(head.weight)
        said = network(torch.from_numpy(features))[:, 0, -1].numpy()
        draft = MedusaDraft(target, np.stack([head.weight.numpy() for head in network.heads]))
        np.testing.assert_allclose(draft.logits(features[0, -1]), target.logits(said), atol=1e-4)


def test_multi_token_heads_say_the_same_in_numpy(target, torch_target, tmp_path, monkeypatch):
    monkeypatch.setattr(target, "n_threads", 1)
    torch.manual_seed(2)
    network = MultiTokenHeads(2, torch_target).requires_grad_(False)
    for name, p in network.named_parameters():
        if "proj" in name:
            torch.nn.init.normal_(p, std=0.3)
    own = {n: w for n, w in network.state_dict().items() if "lm_head" not in n and "embed" not in n}
    save_file(own, tmp_path / "model.safetensors")
    heads = multi_token_heads(target, tmp_path)
    assert {head.n_threads for head in heads} == {1}
    features = target.features([TOKENS])
    said = network(torch.from_numpy(features))[:, 0].numpy()
    draft = MultiTokenDraft(target, heads)
    request = TokenSequence(target, [*TOKENS[:9], 0], SamplingParams(max_tokens=20))
    draft.look(request, features[0, :9])
    request.ids[9:] = [*TOKENS[9:], 0]  # the target has read more
    look = draft.look(request, features[0, 9:])
    got = np.concatenate([look([], [], 1), look([1], [-1], 1)])
    np.testing.assert_allclose(got, target.logits(said[:, -1]), atol=1e-4)


def test_the_recurrent_head_s_steps_are_its_guesses_one_by_one(target, torch_target):
    torch.manual_seed(3)
    network = RecurrentHead(torch_target, n_inner=20).requires_grad_(False)
    untrained = network(torch.ones(1, 4, 16), torch.tensor([[1, 2, 3, 4]]), 3)
    assert torch.equal(untrained, torch.ones(3, 1, 4, 16))  # it says the next token once more
    for layer in (network.read, network.write):
        torch.nn.init.normal_(layer.weight, std=0.3)
    draft = RecurrentDraft(target, (network.read.weight.numpy(), network.write.weight.numpy()))
    features = torch.from_numpy(target.features([TOKENS[:-1]]))
    said = network(features, torch.tensor([TOKENS[1:]]), 4)[:, 0].numpy()
    for n_text in (5, 9):
        expected = said_in_numpy(draft, target, n_text, 4)
        np.testing.assert_allclose(said[:, n_text - 2], expected, atol=1e-4)
        assert np.abs(said[1:, n_text - 1] - expected[1:]).max() > 1e-2  # of another place


def causal(layer, q, k, v):
    assert layer == 0  # of a model of one layer
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )


def test_the_last_layer_makes_the_target_s_features_of_what_comes_to_it():
    """With the target's positions and norms; trained, but for the embedding."""
    deep = ARCH.replace(n_layers=3)
    for rope_theta, norm_eps in ((10000.0, 1e-5), (50.0, 0.5)):
        target = TorchLlama(deep, weights(deep), rope_theta, norm_eps=norm_eps)
        into, out = [], []
        target.model.layers[2].register_forward_pre_hook(
            lambda _, args, to=into: to.append(args[0])
        )
        target.model.norm.register_forward_hook(lambda _, args, got, to=out: to.append(got))
        target([TOKENS])
        layer = last_layer(target)
        np.testing.assert_allclose(
            through_layer(layer, into[0], causal).detach(), out[0], atol=1e-5
        )
        assert layer.arch == ARCH.replace(n_layers=1)
        assert (layer.rope_theta, layer.norm_eps) == (rope_theta, norm_eps)
        frozen = {name for name, p in layer.named_parameters() if not p.requires_grad}
        assert frozen == {"model.embed_tokens.weight"}
        assert not any(p.requires_grad for p in target.parameters())


def test_a_network_makes_one_step_unless_asked_for_more(torch_target):
    features, follow = torch.randn(2, 5, 16), torch.randint(30, (2, 5))
    eagle, recurrent = Eagle(torch_target), RecurrentHead(torch_target)
    assert recurrent.read.weight.shape == (384, 2 * 16)
    assert recurrent.write.weight.shape == (16, 384)
    for network in (eagle, recurrent):
        for layer in (network.fc,) if network is eagle else (network.read, network.write):
            torch.nn.init.normal_(layer.weight, std=0.3)
        one, three = network(features, follow), network(features, follow, 3)
        assert one.shape == (1, 2, 5, 16) and three.shape == (3, 2, 5, 16)
        np.testing.assert_allclose(one[0].detach(), three[0].detach(), atol=1e-5)
    assert MedusaHeads(3, 16)(features).shape == (3, 2, 5, 16)
    assert MultiTokenHeads(2, torch_target)(features).shape == (2, 2, 5, 16)
