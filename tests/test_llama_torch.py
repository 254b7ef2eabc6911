"""What only the torch backend has; test_llama.py holds both backends to transformers."""

import numpy as np
import pytest
import torch

from firsttoken import llama
from firsttoken.architectures import Architecture
from firsttoken.checkpoint import weight_shapes
from firsttoken.llama_torch import KVCache, Llama

ARCH = Architecture("tiny", 2, 16, 4, 2, 4, 24, 50, tied_embeddings=True, max_context=32)
RNG = np.random.default_rng(0)
WEIGHTS = {
    name: RNG.normal(size=shape).astype(np.float32) / 4
    for name, shape in weight_shapes(ARCH).items()
}


def test_a_cache_refuses_what_does_not_fit_and_writes_nothing():
    cache = KVCache(ARCH, 1, 4)
    one = torch.ones(1, 2, 3, 4)
    cache.append(0, one, one)
    for k, message in [
        (one, "holds 3 tokens of 4"),
        (torch.ones(1, 3, 1, 4), r"\(B, K, T, H\)"),
        (torch.ones(2, 2, 1, 4), r"\(B, K, T, H\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            cache.append(0, k, k)
    assert cache.keys(0).shape == (1, 2, 3, 4) and cache.length == 0
    with pytest.raises(ValueError, match="length 1"):
        cache.truncate(1)
    with pytest.raises(ValueError, match="capacity 0"):
        KVCache(ARCH, 1, 0)


def test_parameters_start_frozen_and_learn_when_asked():
    model = Llama(ARCH, WEIGHTS)
    assert not any(p.requires_grad for p in model.parameters())
    model.requires_grad_(True)
    model([[1, 2, 3]]).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_tied_weights_are_one_tensor():
    model = Llama(ARCH, WEIGHTS)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert sum(p.numel() for p in model.parameters()) == ARCH.n_params


def test_bfloat16_computes_near_the_reference_with_a_cache_of_its_own_kind():
    exact, tokens = llama.Llama(ARCH, WEIGHTS), RNG.integers(50, size=(2, 9))
    model = Llama(ARCH, WEIGHTS).to(torch.bfloat16)
    cache = model.new_cache(2)
    model(tokens[:, :8], cache)
    got = model(tokens[:, 8:], cache)[:, -1].float()
    assert cache.keys(0).dtype == torch.bfloat16
    np.testing.assert_allclose(got, exact(tokens)[:, -1], atol=0.1)


def test_positions_stay_exact_in_bfloat16():
    """Angles grow with the position: frequencies rounded to bfloat16 would be off by radians."""
    model = Llama(ARCH, WEIGHTS, rope_theta=100.0)
    rounded = Llama(ARCH, WEIGHTS, rope_theta=100.0).to(torch.bfloat16).to(torch.float32)
    cache, other = model.new_cache(1, 3001), rounded.new_cache(1, 3001)
    for c in (cache, other):
        far = torch.randn(1, 2, 3000, 4, generator=torch.Generator().manual_seed(0))
        for layer in range(ARCH.n_layers):
            c.append(layer, far, far)
    # The weights differ by bfloat16's rounding; the keys of the new token, too, and no more.
    model([[7]], cache), rounded([[7]], other)
    exact, near = cache.keys(0)[0, :, -1], other.keys(0)[0, :, -1]
    assert (exact - near).abs().max() < 0.02 * exact.abs().max()


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("t", [1, 3])
def test_every_tensor_of_a_pass_is_made_where_the_weights_are(t, window):
    """On the meta device nothing is computed, but a tensor from elsewhere is an error."""
    model = Llama(ARCH.replace(window=window), WEIGHTS).to("meta")
    cache = model.new_cache(2, 10)
    for start in (0, t):
        logits = model(torch.zeros(2, t, dtype=torch.long), cache)
        assert logits.device.type == "meta" and logits.shape == (2, t, ARCH.vocab_size)
        assert cache.length == start + t and cache.keys(0).device.type == "meta"
