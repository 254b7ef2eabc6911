"""The Llama in both backends against transformers, against itself, and against plausible bugs."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from firsttoken import llama
from firsttoken.checkpoint import read_checkpoint
from firsttoken.llama import Llama, load_model
from firsttoken.paths import data_path
from firsttoken.tokenizer import tokenizer

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


def save_reference(directory, model_class=LlamaForCausalLM, shard="1GB", dtype=None, **changes):
    """Save a random transformers model whose logits are of the size of a trained one's."""
    config_class = MistralConfig if model_class is MistralForCausalLM else LlamaConfig
    torch.manual_seed(0)
    model = model_class(config_class(**SIZES | changes)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.3 if "norm" in name else weight.shape[-1] ** -0.5
            weight.copy_(torch.randn(weight.shape) * spread + ("norm" in name))
    model.to(dtype or torch.float32).save_pretrained(directory, max_shard_size=shard)
    return model_class.from_pretrained(directory, dtype=torch.float32).eval()


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
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(variant, backend, tmp_path):
    model = save_reference(tmp_path, **VARIANTS[variant])
    expected = reference_logits(model)
    assert np.abs(expected).max() > 1  # the bound below means something
    got = load_model(tmp_path, backend)
    np.testing.assert_allclose(logits(got, TOKENS), expected, atol=ATOL)
    np.testing.assert_allclose(in_chunks(got, TOKENS, [7, 1, 1, 30, 1]), expected, atol=ATOL)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_window_equals_transformers(backend, tmp_path):
    model = save_reference(tmp_path, MistralForCausalLM, sliding_window=5)
    expected = reference_logits(model)
    got = load_model(tmp_path, backend)
    np.testing.assert_allclose(logits(got, TOKENS), expected, atol=ATOL)
    np.testing.assert_allclose(in_chunks(got, TOKENS, [3, 1, 36]), expected, atol=ATOL)
    full = Llama(got.arch.replace(window=None), read_checkpoint(tmp_path).weights)
    assert np.abs(full(TOKENS) - expected).max() > 0.1  # the window matters here


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scaling", [None, LLAMA3], ids=["default", "llama3"])
def test_far_positions_equal_transformers(scaling, backend, tmp_path):
    """A long text: position 3000 is rotated as transformers rotates it."""
    parameters = {"rope_type": "default", **(scaling or {}), "rope_theta": 5e5}
    model = save_reference(tmp_path, rope_parameters=parameters, num_hidden_layers=1)
    tokens = RNG.integers(0, SIZES["vocab_size"], size=(1, 3000))
    got = in_chunks(load_model(tmp_path, backend), tokens, [1000, 1000, 1000])
    np.testing.assert_allclose(got, reference_logits(model, tokens), atol=ATOL)


@pytest.mark.parametrize("backend", BACKENDS)
@given(cuts=st.sets(st.integers(1, 39)), n_rows=st.integers(1, 2))
def test_any_chunks_equal_one_pass(models, backend, cuts, n_rows):
    edges = [0, *sorted(cuts), 40]
    sizes = np.diff(edges)
    tokens = TOKENS[:n_rows]
    whole = logits(models[backend], tokens)
    np.testing.assert_allclose(in_chunks(models[backend], tokens, sizes), whole, atol=ATOL)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_truncated_cache_forgets(models, backend):
    """Feed a wrong guess, take it back, feed the right tokens: as if it had never been there."""
    model, cache = models[backend], models[backend].new_cache(2, 40)
    model(TOKENS[:, :10], cache)
    model(TOKENS[:, 30:], cache)
    cache.truncate(10)
    got = logits(model, TOKENS[:, 10:], cache)
    np.testing.assert_allclose(got, logits(model, TOKENS)[:, 10:], atol=ATOL)
    assert cache.length == 40


@pytest.mark.parametrize("backend", BACKENDS)
@given(
    sizes=st.lists(
        st.tuples(st.integers(0, 12), st.one_of(st.just(1), st.integers(1, 8))),
        min_size=1,
        max_size=5,
    )
)
def test_a_ragged_pass_equals_one_pass_per_sequence(models, backend, sizes):
    """Each sequence has (cached, new) tokens: prompts, parts of prompts and single tokens at once.

    Twice in a row, so that what the first pass wrote to the caches is read.
    """
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


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_ragged_pass_of_the_shipped_model(backend):
    """Greedy tokens and logits of the trained model; 3 + 9 + 5 tokens are one product (T5)."""
    model = load_model("target", backend)
    ids = tokenizer().encode(data_path("heldout.txt").read_text(encoding="utf-8"))
    rows = [ids[:3], ids[100:109], ids[200:205]]
    together = model.forward_ragged(rows, [model.new_cache(1, 9) for _ in rows])
    assert [logits.shape for logits in together] == [(n, model.arch.vocab_size) for n in (3, 9, 5)]
    for row, got in zip(rows, together, strict=True):
        alone = model([row])[0]
        np.testing.assert_allclose(got, alone, atol=1e-4)
        assert (got.argmax(-1) == alone.argmax(-1)).all()


@pytest.mark.parametrize("n_rows", [1, 2, 7, 8, 20])
@pytest.mark.parametrize("shape", [(48, 24), (128, 24)])  # in panels of 64, and in one
def test_products_of_a_few_rows(n_rows, shape):
    """As NumPy's; of up to seven rows, each has the bits that it has alone."""
    rng = np.random.default_rng(0)
    weights, x = (rng.normal(size=s).astype(np.float32) for s in (shape, (n_rows, shape[1])))
    matrix = llama._Matrix(weights)
    together = x @ matrix
    assert np.allclose(together, x @ weights.T, atol=1e-5)
    assert together.shape == (n_rows, shape[0])
    if n_rows <= 7:
        assert (together == [(row @ matrix) for row in x]).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_across_sequences_would_show(models, backend):
    """As if the tokens of all were one text."""
    model = models[backend]
    a, b = TOKENS[0, :9], TOKENS[1, :7]
    _, got = model.forward_ragged([a, b], [model.new_cache(1, 9) for _ in range(2)])
    one_text = logits(model, np.concatenate([a, b])[None])[0, 9:]
    assert np.abs(np.asarray(got) - one_text).max() > 0.1
    np.testing.assert_allclose(got, model(b[None])[0], atol=ATOL)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wrong_ragged_pass_is_named(models, backend):
    model = models[backend]
    caches = [model.new_cache(1, 4) for _ in range(2)]
    with pytest.raises(ValueError, match="tokens has 1 sequences and caches 2"):
        model.forward_ragged([[1]], caches)
    with pytest.raises(ValueError, match="at least one"):
        model.forward_ragged([], [])
    with pytest.raises(ValueError, match=r"tokens must be integers \(B, T\), at least one"):
        model.forward_ragged([[1], []], caches)
    with pytest.raises(ValueError, match="tokens hold ids 1 … 97"):
        model.forward_ragged([[1], [1, 97]], caches)
    assert [cache.length for cache in caches] == [0, 0]
    with pytest.raises(ValueError, match="5 more do not fit"):
        model.forward_ragged([[1, 2], [1, 2, 3, 4, 5]], caches)
    for cache in caches:
        cache.truncate(cache.length)
    expected = model([[1, 2]])[0]
    np.testing.assert_allclose(model.forward_ragged([[1, 2], [3]], caches)[0], expected, atol=ATOL)


@pytest.mark.parametrize("backend", BACKENDS)
def test_later_tokens_and_other_rows_change_nothing(models, backend):
    model = models[backend]
    changed = TOKENS.copy()
    changed[0, 20:] = 0
    before, after = logits(model, TOKENS), logits(model, changed)
    np.testing.assert_allclose(after[0, :20], before[0, :20], atol=ATOL)
    np.testing.assert_allclose(after[1], before[1], atol=ATOL)
    assert np.abs(after[0, 21:] - before[0, 21:]).max() > 0.1
    one_row = logits(model, TOKENS[:1])
    np.testing.assert_allclose(one_row[0], before[0], atol=ATOL)


def test_backends_agree_and_weights_are_left_alone(saved):
    checkpoint = read_checkpoint(saved[0])
    copies = {name: w.copy() for name, w in checkpoint.weights.items()}
    model = Llama(checkpoint.arch, checkpoint.weights, checkpoint.rope_theta)
    model(TOKENS)
    assert all((copies[name] == w).all() for name, w in checkpoint.weights.items())
    assert all(w.dtype == np.float32 for w in checkpoint.weights.values())
    assert checkpoint.arch.n_params == sum(w.size for w in checkpoint.weights.values())
    assert model(TOKENS.tolist()).dtype == np.float32


# Wrong models, which the comparisons above must catch.


def test_a_shifted_position_would_show(saved):
    """Against the cache: all new keys one position late. A uniform shift cannot show: RoPE."""
    model, expected = Llama.from_pretrained(saved[0]), reference_logits(saved[1])
    cache = model.new_cache(2, 41)
    model(TOKENS[:, :20], cache)

    class Late:
        """The same cache, but it claims to hold one token more."""

        length = 21
        append, keys, values = cache.append, cache.keys, cache.values

    got = logits(model, TOKENS[:, 20:], Late())
    assert np.abs(got - expected[:, 20:]).max() > 0.1


def test_a_mask_off_by_one_would_show(saved, monkeypatch):
    model, expected = Llama.from_pretrained(saved[0]), reference_logits(saved[1])

    def leaky(q, k, v, window=None, mask=None):
        """Query i also sees key i + 1."""
        k, v = (np.concatenate([x, x[:, :, -1:]], axis=2) for x in (k, v))
        return llama_attention(q, k, v)

    llama_attention = llama.attention
    monkeypatch.setattr(llama, "attention", leaky)
    assert np.abs(logits(model, TOKENS) - expected).max() > 0.1


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


def test_pairing_neighbours_in_rope_would_show(saved, monkeypatch):
    """The rotary pairs of the paper (2i, 2i + 1) are not those of the stored weights."""
    model, expected = Llama.from_pretrained(saved[0]), reference_logits(saved[1])

    def neighbours(x, cos, sin):
        out = np.empty_like(x)
        out[..., ::2] = x[..., ::2] * cos - x[..., 1::2] * sin
        out[..., 1::2] = x[..., 1::2] * cos + x[..., ::2] * sin
        return out

    monkeypatch.setattr(llama, "rotate", neighbours)
    assert np.abs(logits(model, TOKENS) - expected).max() > 0.1


# Errors.


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([[97]], "ids 97 … 97, expected 0 … 96"),
        ([[3, -1]], "ids -1 … 3"),
        ([1, 2], r"shape \(2,\)"),
        ([[]], r"shape \(1, 0\)"),
        ([[1.5]], "integers"),
    ],
)
def test_wrong_tokens_are_named(models, backend, tokens, message):
    with pytest.raises(ValueError, match=message):
        models[backend](tokens)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_full_cache_is_an_error_and_stays_usable(models, backend):
    model = models[backend]
    cache = model.new_cache(2, 12)
    model(TOKENS[:, :10], cache)
    with pytest.raises(ValueError, match="12"):
        model(TOKENS[:, 10:13], cache)
    assert cache.length == 10
    got = logits(model, TOKENS[:, 10:12], cache)
    np.testing.assert_allclose(got, logits(model, TOKENS[:, :12])[:, 10:], atol=ATOL)
    with pytest.raises(ValueError):
        model(TOKENS[:1, :1], model.new_cache(2, 12))


def test_new_cache_needs_a_capacity_where_none_is_known(saved, models):
    assert models["numpy"].new_cache().keys(0).shape[:2] == (1, 2)
    checkpoint = read_checkpoint(saved[0])
    model = Llama(checkpoint.arch.replace(max_context=None), checkpoint.weights)
    with pytest.raises(ValueError, match="capacity must be given"):
        model.new_cache()


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_that_do_not_fit_are_named(saved, backend):
    """What is wrong with a checkpoint, test_checkpoint.py asks; here, that each backend asks."""
    checkpoint = read_checkpoint(saved[0])
    backend_class = type(load_model(saved[0], backend))
    with pytest.raises(ValueError, match=r"lack 9 tensors, first model\.layers\.3"):
        backend_class(checkpoint.arch.replace(n_layers=4), checkpoint.weights)
    with pytest.raises(ValueError, match=r"config\.json: No such file"):
        backend_class.from_pretrained(saved[0] / "..")


def test_load_model_names_what_it_knows():
    with pytest.raises(ValueError, match="'target', 'draft' or a directory, got 'tagret'"):
        load_model("tagret")
    with pytest.raises(ValueError, match="backend must be 'numpy' or 'torch', got 'jax'"):
        load_model(data_path("."), backend="jax")
