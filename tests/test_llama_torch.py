"""What only the torch backend has; test_llama.py holds both backends to transformers."""

import os

import numpy as np
import pytest
import torch

from firsttoken import kv_cache, llama
from firsttoken.architectures import Architecture
from firsttoken.checkpoint import weight_shapes
from firsttoken.llama_torch import KVCache, Llama
from firsttoken.paths import data_path

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
    with pytest.raises(ValueError, match=r"\(B, K, T, H\)"):
        cache.append(1, one[:, :, :1], one)
    with pytest.raises(ValueError, match=r"\(B, K, T, H\)"):
        cache.append(1, *2 * [torch.ones(1, 2, 1, 3)])
    for length in (1, -1):
        with pytest.raises(ValueError, match=f"length {length} is not within 0 and 0"):
            cache.truncate(length)
    for batch, capacity in ((1, 0), (0, 1)):
        with pytest.raises(ValueError, match=f"batch {batch} and capacity {capacity}"):
            KVCache(ARCH, batch, capacity)


def test_a_cache_holds_what_it_was_given_layer_by_layer():
    """To the last place, as the reference does, and forgets from a position on."""
    for sizes in ([5], [2, 3], [1, 1, 1, 1, 1], [4, 0, 1]):
        ours, theirs = KVCache(ARCH, 3, 5), kv_cache.KVCache(ARCH, 3, 5)
        assert ours.nbytes == theirs.nbytes == 2 * 2 * 3 * 2 * 5 * 4 * 4  # layers, K and V, …
        assert (ours.capacity, ours.length) == (5, 0)
        for size in sizes:
            before = ours.length
            for layer in range(ARCH.n_layers):
                assert ours.length == before  # until the last layer has them
                k, v = RNG.normal(size=(2, 3, 2, size, 4)).astype(np.float32)
                theirs.append(layer, k, v)
                ours.append(layer, torch.from_numpy(k), torch.from_numpy(v))
            assert ours.length == before + size
        for length in (5, 3, 3, 0):
            ours.truncate(length), theirs.truncate(length)
            assert ours.length == length
            for layer in range(ARCH.n_layers):
                np.testing.assert_array_equal(ours.keys(layer), theirs.keys(layer))
                np.testing.assert_array_equal(ours.values(layer), theirs.values(layer))


def test_a_new_cache_is_of_the_model_s_kind_and_as_long_as_its_context():
    model = Llama(ARCH, WEIGHTS)
    cache = model.new_cache()
    assert (cache.capacity, cache.keys(0).shape) == (32, (1, 2, 0, 4))
    assert cache.keys(0).dtype == torch.float32 and cache.keys(0).device.type == "cpu"
    assert model.new_cache(3, 7).values(1).shape == (3, 2, 0, 4)
    assert model.new_cache(3, 7).capacity == 7
    assert KVCache(ARCH, 1, 1).keys(0).dtype == torch.float32
    with pytest.raises(ValueError, match="capacity must be given"):
        Llama(ARCH.replace(max_context=None), WEIGHTS).new_cache()


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


def test_what_a_model_takes_for_granted_and_what_it_keeps():
    model = Llama(ARCH, WEIGHTS)
    said = Llama(ARCH, WEIGHTS, 10000.0, None, 1e-5, ())
    assert torch.equal(model([[1, 2, 3] * 9]), said([[1, 2, 3] * 9]))
    assert (model.rope_theta, model.rope_scaling, model.norm_eps) == (10000.0, None, 1e-5)
    assert model.eos_ids == () and model.n_threads is None and model.arch is ARCH
    assert Llama(ARCH, WEIGHTS, eos_ids=[3, 4]).eos_ids == (3, 4)
    scaling = {"rope_type": "linear", "factor": 2.0}
    other = Llama(ARCH, WEIGHTS, 5e5, scaling, 1e-6)
    assert (other.rope_theta, other.rope_scaling, other.norm_eps) == (5e5, scaling, 1e-6)
    with pytest.raises(ValueError, match="weights lack 1 tensors"):
        Llama(ARCH, {name: w for name, w in WEIGHTS.items() if name != "model.norm.weight"})


def test_a_checkpoint_s_directory_says_all_of_it():
    model = Llama.from_pretrained(data_path("model/draft"))
    reference = llama.load_model("draft")
    assert (model.arch, model.eos_ids) == (reference.arch, reference.eos_ids)
    np.testing.assert_allclose(model([[5, 6, 7]]), reference([[5, 6, 7]]), atol=1e-4)


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


@pytest.mark.skipif(os.cpu_count() == 1, reason="one core has one thread")
def test_a_pass_takes_its_threads_and_gives_them_back():
    model, seen = Llama(ARCH, WEIGHTS), []
    model.lm_head.register_forward_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for model.n_threads in (1, None):
            seen.clear()
            model([[1, 2, 3]])
            model.forward_ragged([[1, 2, 3]], [model.new_cache()])
            assert seen == [model.n_threads or 2] * 2 and torch.get_num_threads() == 2
            with pytest.raises(ValueError, match="holds 0 tokens of 1"):
                model([[1, 2]], model.new_cache(1, 1))
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


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


def test_every_tensor_of_a_pass_is_made_where_the_weights_are():
    """On the meta device nothing is computed, but a tensor from elsewhere is an error."""
    for window, t in ((None, 1), (None, 3), (4, 1), (4, 3)):
        model = Llama(ARCH.replace(window=window), WEIGHTS).to("meta")
        cache = model.new_cache(2, 10)
        for start in (0, t):
            logits = model(torch.zeros(2, t, dtype=torch.long), cache)
            assert logits.device.type == "meta" and logits.shape == (2, t, ARCH.vocab_size)
            assert cache.length == start + t and cache.keys(0).device.type == "meta"
