"""The Llama in both backends against transformers, against itself, and against plausible bugs."""

import json
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
from transformers import AutoConfig, AutoModelForCausalLM

from firsttoken.models import llama
from firsttoken.models.checkpoint import read_checkpoint, weight_shapes
from firsttoken.models.llama import Llama, load_model
from firsttoken.paths import data_path

ATOL = 2e-5
BACKENDS = ["numpy", "torch"]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
}
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, SIZES["vocab_size"], size=(2, 40))


def save_reference(directory, family="llama", shard="1GB", dtype=None, **changes):
    """Save a random transformers model whose logits are of the size of a trained one's."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **SIZES | changes)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.3 if "norm" in name else weight.shape[-1] ** -0.5
            weight.copy_(torch.randn(weight.shape) * spread + ("norm" in name))
    model.to(dtype or torch.float32).save_pretrained(directory, max_shard_size=shard)
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def reference_logits(model, tokens=TOKENS, start=0):
    positions = torch.arange(start, start + tokens.shape[1])[None]
    with torch.no_grad():
        return model(torch.from_numpy(tokens), position_ids=positions).logits.numpy()


def logits(model, tokens, cache=None):
    """The logits as NumPy, whichever backend the model is of."""
    return np.asarray(model(tokens, cache))


def in_chunks(model, tokens, sizes):
    """The logits of `tokens` fed through a cache, `sizes` tokens at a time."""
    cache, parts, start = model.new_cache(len(tokens), tokens.shape[1]), [], 0
    for size in sizes:
        parts.append(logits(model, tokens[:, start : start + size], cache))
        start += size
    return np.concatenate(parts, axis=1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory with a small random Llama, and that model."""
    directory = tmp_path_factory.mktemp("llama")
    return directory, save_reference(directory)


@pytest.fixture(scope="module")
def models(saved):
    return {backend: load_model(saved[0], backend) for backend in BACKENDS}


VARIANTS = {
    "MHA": {"num_key_value_heads": 4},
    "GQA": {"num_key_value_heads": 2},
    "MQA": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "head_dim": {"head_dim": 20},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    "llama3": {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}, "head_dim": 64},
    "bf16": {"dtype": torch.bfloat16},
    "fp16": {"dtype": torch.float16},
    "sharded": {"shard": "40KB"},
    "eps": {"rms_norm_eps": 0.1},
    "qwen2": {"family": "qwen2", "pad_token_id": 0},
    "qwen2, windows": {"family": "qwen2", "use_sliding_window": True, "sliding_window": 5}
    | {"max_window_layers": 1},
    "qwen3": {"family": "qwen3", "head_dim": 20, "tie_word_embeddings": True},
    "smollm3": {"family": "smollm3", "no_rope_layer_interval": 2, "pad_token_id": 0},
    "granite": {"family": "granite", "embedding_multiplier": 12.0, "logits_scaling": 0.8}
    | {"residual_multiplier": 0.22, "attention_multiplier": 0.4},
}
# What makes a family another one than Llama, and would be noticed if it were left out.
LEFT_OUT = {
    "qwen2": {"qkv_bias": False},
    "qwen3": {"qk_norm": False},
    "smollm3": {"unrotated_layers": None},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(variant, tmp_path):
    model = save_reference(tmp_path, **VARIANTS[variant])
    expected = reference_logits(model)
    assert np.abs(expected).max() > 1  # the bound below means something
    for backend in BACKENDS:
        got = load_model(tmp_path, backend)
        np.testing.assert_allclose(logits(got, TOKENS), expected, atol=ATOL)
        np.testing.assert_allclose(in_chunks(got, TOKENS, [7, 1, 1, 30, 1]), expected, atol=ATOL)


@pytest.mark.parametrize("family", LEFT_OUT)
def test_what_a_family_adds_to_a_llama_matters(family, tmp_path):
    expected = reference_logits(save_reference(tmp_path, **VARIANTS[family]))
    c = read_checkpoint(tmp_path)
    plain = c.arch.replace(**LEFT_OUT[family])
    weights = {n: w for n, w in c.weights.items() if n in weight_shapes(plain)}
    got = Llama(plain, weights, c.rope_theta, c.rope_scaling, c.norm_eps)
    assert np.abs(got(TOKENS) - expected).max() > 0.1


def test_granite_s_factors_are_in_its_weights(tmp_path):
    """Tied, too, where one table is read twice; each factor by itself is noticed."""
    factors = VARIANTS["granite"] | {"tie_word_embeddings": True}
    expected = reference_logits(save_reference(tmp_path, **factors))
    got = load_model(tmp_path)
    np.testing.assert_allclose(got(TOKENS), expected, atol=ATOL)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    for name in [name for name in factors if name.endswith(("multiplier", "scaling"))]:
        file.write_text(json.dumps(config | {name: 2 * config[name]}))
        assert np.abs(load_model(tmp_path)(TOKENS) - expected).max() > 0.1, name


def test_a_window_equals_transformers(tmp_path):
    expected = reference_logits(save_reference(tmp_path, "mistral", sliding_window=5))
    for backend in BACKENDS:
        got = load_model(tmp_path, backend)
        np.testing.assert_allclose(logits(got, TOKENS), expected, atol=ATOL)
        np.testing.assert_allclose(in_chunks(got, TOKENS, [3, 1, 36]), expected, atol=ATOL)
    full = Llama(got.arch.replace(window=None), read_checkpoint(tmp_path).weights)
    assert np.abs(full(TOKENS) - expected).max() > 0.1  # the window matters here


@given(cuts=st.sets(st.integers(1, 39)), n_rows=st.integers(1, 2))
def test_any_chunks_equal_one_pass(models, cuts, n_rows):
    sizes, tokens = np.diff([0, *sorted(cuts), 40]), TOKENS[:n_rows]
    for model in models.values():
        np.testing.assert_allclose(
            in_chunks(model, tokens, sizes), logits(model, tokens), atol=ATOL
        )


@given(
    backend=st.sampled_from(BACKENDS),
    sizes=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 8)), min_size=1, max_size=5),
)
def test_a_ragged_pass_equals_one_pass_per_sequence(models, backend, sizes):
    """Each sequence has (cached, new) tokens; twice in a row, so that the caches are read."""
    model = models[backend]
    together, alone = ([model.new_cache(1, 40) for _ in sizes] for _ in range(2))
    rows = [RNG.integers(0, SIZES["vocab_size"], size=40) for _ in sizes]
    for caches in (together, alone):
        for row, (cached, _), cache in zip(rows, sizes, caches, strict=True):
            if cached:
                model(row[None, :cached], cache)
    for _ in range(2):
        new = [
            row[cache.length : cache.length + n]
            for row, (_, n), cache in zip(rows, sizes, alone, strict=True)
        ]
        got = model.forward_ragged(new, together)
        expected = [model(tokens[None], cache)[0] for tokens, cache in zip(new, alone, strict=True)]
        assert [cache.length for cache in together] == [cache.length for cache in alone]
        for ours, theirs in zip(got, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=ATOL)


def test_products_of_a_few_rows():
    """As NumPy's, in panels of 64 and in one; each of up to seven has the bits it has alone."""
    rng = np.random.default_rng(0)
    for shape, n_rows in product([(48, 24), (128, 24)], [1, 2, 7, 8, 20]):
        weights, x = (rng.normal(size=s).astype(np.float32) for s in (shape, (n_rows, 24)))
        matrix = llama._Matrix(weights)
        together = x @ matrix
        np.testing.assert_allclose(together, x @ weights.T, atol=1e-5)
        assert n_rows > 7 or (together == [row @ matrix for row in x]).all(), (shape, n_rows)


def test_a_wrong_ragged_pass_is_named(models):
    for model in models.values():
        caches = [model.new_cache(1, 4) for _ in range(2)]
        with pytest.raises(ValueError, match="tokens has 1 sequences and caches 2"):
            model.forward_ragged([[1]], caches)
        with pytest.raises(ValueError, match="tokens hold ids 1 … 97"):
            model.forward_ragged([[1], [1, 97]], caches)
        assert [cache.length for cache in caches] == [0, 0]


@given(x=st.lists(st.floats(-1e4, 1e4, width=32), min_size=1))
def test_silu_is_scipy_s(x):
    """Also where the exponential overflows, without a warning."""
    x = np.array(x, dtype=np.float32)
    got = llama.silu(x)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, x * expit(x), rtol=1e-5, atol=1e-30)


# Wrong models, which the comparisons above must catch.


def test_interleaved_heads_would_show(saved):
    """Query heads given to KV heads in turn (n % K) instead of in groups (n // G)."""
    checkpoint, expected = read_checkpoint(saved[0]), reference_logits(saved[1])
    weights = dict(checkpoint.weights)
    for name in weights:
        if "q_proj" in name:
            by_head = weights[name].reshape(4, 12, 48)
            weights[name] = by_head[[0, 2, 1, 3]].reshape(48, 48)
        if "o_proj" in name:
            by_head = weights[name].reshape(48, 4, 12)
            weights[name] = by_head[:, [0, 2, 1, 3]].reshape(48, 48)
    got = logits(Llama(checkpoint.arch, weights), TOKENS)
    assert np.abs(got - expected).max() > 0.1


# Errors.


def test_new_cache_needs_a_capacity_where_none_is_known(saved, models):
    cache = models["numpy"].new_cache()
    assert cache.keys(0).shape[:2] == (1, 2) and cache.capacity == 131072
    assert models["numpy"].new_cache(3, 7).values(0).shape[:2] == (3, 2)
    checkpoint = read_checkpoint(saved[0])
    model = Llama(checkpoint.arch.replace(max_context=None), checkpoint.weights)
    with pytest.raises(ValueError, match="capacity must be given"):
        model.new_cache()


def test_what_cannot_be_loaded_is_named(saved, models, subtests):
    """What is wrong with a checkpoint, test_checkpoint.py asks; here, that each backend asks."""
    checkpoint = read_checkpoint(saved[0])
    for kind in map(type, models.values()):
        with pytest.raises(ValueError, match=r"lack 9 tensors, first model\.layers\.3"):
            kind(checkpoint.arch.replace(n_layers=4), checkpoint.weights)
        with pytest.raises(ValueError, match=r"config\.json: No such file"):
            kind.from_pretrained(saved[0] / "..")
    for arguments, message in [
        (["tagret"], "'target', 'draft', 'smollm2', a directory or a GGUF file, got 'tagret'"),
        (["TARGET"], "got 'TARGET'"),  # a directory of that name would be read
        ([data_path("."), "jax"], "backend must be 'numpy' or 'torch', got 'jax'"),
        (["draft", "numpy", 0], "n_threads must be an integer of at least 1, got 0"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            load_model(*arguments)


def test_load_model_gives_the_target_in_numpy_and_one_thread_unless_asked(saved, models):
    assert type(load_model()) is Llama
    for backend in BACKENDS:
        model, draft = load_model(backend=backend), load_model("draft", backend)
        assert model.arch == load_model("target", backend).arch != draft.arch
        assert type(model) is type(models[backend]) and model.n_threads == draft.n_threads == 1
        for n in (1, 3, None):
            assert load_model(str(saved[0]), backend, n).n_threads == n
