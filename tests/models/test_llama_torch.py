"""What only the torch backend has; test_llama.py holds both backends to transformers."""

import numpy as np
import pytest
import torch

from firsttoken import kv_cache
from firsttoken.architectures import Architecture
from firsttoken.models import llama
from firsttoken.models.checkpoint import weight_shapes
from firsttoken.models.llama_torch import KVCache, Llama

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
    with pytest.raises(ValueError, match="length 1 is not within 0 and 0"):
        cache.truncate(1)
    with pytest.raises(ValueError, match="batch 0 and capacity 1"):
        KVCache(ARCH, 0, 1)


# Against the reference in NumPy, over all that a checkpoint may say.

SAID = [
    {},
    {"rope_theta": 100.0},
    {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    {"norm_eps": 0.1},
]
KINDS = {
    "tied": ARCH,
    "untied": ARCH.replace(tied_embeddings=False),
    "window": ARCH.replace(window=4),
    "MHA": ARCH.replace(n_kv_heads=4),
    "MQA": ARCH.replace(n_kv_heads=1),
}


def both(arch, **said):
    """Return the reference and the model with the same random weights."""
    rng = np.random.default_rng(1)
    weights = {
        name: (rng.normal(size=shape) * 0.3 + ("norm" in name)).astype(np.float32)
        for name, shape in weight_shapes(arch).items()
    }
    return llama.Llama(arch, weights, **said), Llama(arch, weights, **said)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_the_reference_s(kind):
    """In one pass, in pieces of any size, and of several texts of any length at once."""
    for said in SAID:
        reference, model = both(KINDS[kind], **said)
        tokens = RNG.integers(50, size=(2, 20))
        expected = reference(tokens)
        assert np.abs(expected).max() > 1
        np.testing.assert_allclose(model(tokens), expected, atol=1e-4, err_msg=str(said))
        cache, start = model.new_cache(2), 0
        for size in (3, 1, 9, 1, 6):
            got = model(torch.from_numpy(tokens[:, start : start + size]), cache)
            np.testing.assert_allclose(got, expected[:, start : start + size], atol=1e-4)
            start += size
        caches = [model.new_cache(1) for _ in tokens]
        for ends in ((4, 7), (5, 16), (19, 17)):
            rows = [row[c.length : end] for row, c, end in zip(tokens, caches, ends, strict=True)]
            starts = [c.length for c in caches]
            got = model.forward_ragged(rows, caches)
            for logits, whole, start, end in zip(got, expected, starts, ends, strict=True):
                np.testing.assert_allclose(logits, whole[start:end], atol=1e-4)


def test_a_cache_of_numpy_arrays_serves_as_well():
    """Also where the model computes in bfloat16: what comes back is of its kind again."""
    reference, model = both(ARCH)
    tokens = RNG.integers(50, size=(1, 9))
    for dtype, atol in ((torch.float32, 1e-4), (torch.bfloat16, 0.2)):
        cache = kv_cache.KVCache(ARCH, 1, 9)
        model.to(dtype)
        got = [model(tokens[:, :5], cache), model(tokens[:, 5:], cache)]
        assert cache.length == 9 and got[0].dtype == dtype
        np.testing.assert_allclose(torch.cat(got, 1).float(), reference(tokens), atol=atol)


def test_wrong_tokens_are_named_where_they_can_be_looked_at(monkeypatch):
    model = Llama(ARCH, WEIGHTS)
    for tokens in ([[50]], [[-1]], [[1.5]], [1, 2]):
        with pytest.raises(ValueError, match="tokens"):
            model(tokens)
    # While a graph is made nothing is looked at, or it would break there: PyTorch complains itself.
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(IndexError):
        model([[50]])


def test_parameters_start_frozen_and_learn_when_asked():
    model = Llama(ARCH, WEIGHTS)
    assert not any(p.requires_grad for p in model.parameters())
    model.requires_grad_(True)
    model([[1, 2, 3]]).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


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


def test_every_tensor_of_a_pass_is_made_where_the_weights_are():
    """On the meta device nothing is computed, but a tensor from elsewhere is an error."""
    for window, t in ((None, 1), (None, 3), (4, 1), (4, 3)):
        model = Llama(ARCH.replace(window=window), WEIGHTS).to("meta")
        cache = model.new_cache(2, 10)
        for start in (0, t):
            logits = model(torch.zeros(2, t, dtype=torch.long), cache)
            assert logits.device.type == "meta" and logits.shape == (2, t, ARCH.vocab_size)
            assert cache.length == start + t and cache.keys(0).device.type == "meta"
