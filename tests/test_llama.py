"""The Llama in both backends against transformers, against itself, and against plausible bugs."""

import os
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
from threadpoolctl import threadpool_limits
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from firsttoken import llama
from firsttoken.checkpoint import read_checkpoint
from firsttoken.llama import Llama, load_model
from firsttoken.paths import data_path
from test_threads import taken

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


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(variant, tmp_path):
    model = save_reference(tmp_path, **VARIANTS[variant])
    expected = reference_logits(model)
    assert np.abs(expected).max() > 1  # the bound below means something
    for backend in BACKENDS:
        got = load_model(tmp_path, backend)
        np.testing.assert_allclose(logits(got, TOKENS), expected, atol=ATOL)
        np.testing.assert_allclose(in_chunks(got, TOKENS, [7, 1, 1, 30, 1]), expected, atol=ATOL)


def test_a_window_equals_transformers(tmp_path):
    expected = reference_logits(save_reference(tmp_path, MistralForCausalLM, sliding_window=5))
    for backend in BACKENDS:
        got = load_model(tmp_path, backend)
        np.testing.assert_allclose(logits(got, TOKENS), expected, atol=ATOL)
        np.testing.assert_allclose(in_chunks(got, TOKENS, [3, 1, 36]), expected, atol=ATOL)
    full = Llama(got.arch.replace(window=None), read_checkpoint(tmp_path).weights)
    assert np.abs(full(TOKENS) - expected).max() > 0.1  # the window matters here


@pytest.mark.parametrize("scaling", [None, LLAMA3], ids=["default", "llama3"])
def test_far_positions_equal_transformers(scaling, tmp_path):
    """A long text: position 3000 is rotated as transformers rotates it."""
    parameters = {"rope_type": "default", **(scaling or {}), "rope_theta": 5e5}
    model = save_reference(tmp_path, rope_parameters=parameters, num_hidden_layers=1)
    tokens = RNG.integers(0, SIZES["vocab_size"], size=(1, 3000))
    expected = reference_logits(model, tokens)
    for backend in BACKENDS:
        got = in_chunks(load_model(tmp_path, backend), tokens, [1000, 1000, 1000])
        np.testing.assert_allclose(got, expected, atol=ATOL)


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


def test_products_of_a_few_rows():
    """As NumPy's, in panels of 64 and in one; each of up to seven has the bits it has alone."""
    rng = np.random.default_rng(0)
    for shape, n_rows in product([(48, 24), (128, 24)], [1, 2, 7, 8, 20]):
        weights, x = (rng.normal(size=s).astype(np.float32) for s in (shape, (n_rows, 24)))
        matrix = llama._Matrix(weights)
        together = x @ matrix
        np.testing.assert_allclose(together, x @ weights.T, atol=1e-5)
        assert n_rows > 7 or (together == [row @ matrix for row in x]).all(), (shape, n_rows)


def test_a_matrix_is_the_array_that_it_was_made_of(monkeypatch):
    """Whatever NumPy's library does with a few rows; the shape before the last one stays."""
    weights = RNG.normal(size=(128, 24)).astype(np.float32)
    matrix = llama._Matrix(weights)
    assert matrix.shape == (24, 128)
    assert np.array_equal(np.asarray(matrix), weights.T)
    assert np.asarray(matrix, dtype=np.float64).dtype == np.float64
    for at_once, leading in product([True, False], [(), (3,), (2, 3), (4, 5)]):
        monkeypatch.setattr(llama, "few_rows_in_one", lambda at_once=at_once: at_once)
        x = RNG.normal(size=(*leading, 24)).astype(np.float32)
        got = x @ matrix
        assert got.shape == (*leading, 128) and got.dtype == np.float32
        np.testing.assert_allclose(got, x @ weights.T, atol=1e-5)


TREE, PARENTS = [7, 8, 9, 7], [-1, -1, 0, 1]
BRANCHES = [[7], [8], [7, 9], [8, 7]]


def test_a_tree_is_its_branches_behind_the_text(models):
    """Part of the text may lie in the cache, and the rest or the tree come in parts."""
    model, text = models["numpy"], TOKENS[0, :9].tolist()
    branches = [model.features([text + branch])[0, -1] for branch in BRANCHES]
    expected = np.concatenate([model.features([text])[0], branches])
    for n_cached in (0, 5, 9):
        cache = model.new_cache(1, 20) if n_cached else None
        if n_cached:
            model([text[:n_cached]], cache)
        got = model.features([text[n_cached:] + TREE], cache, PARENTS)[0]
        np.testing.assert_allclose(got, expected[n_cached:], atol=ATOL)
    cache.truncate(9)
    parts = [model.features([TREE[:n][-2:]], cache, PARENTS[:n])[0] for n in (2, 4)]
    np.testing.assert_allclose(np.concatenate(parts), branches, atol=ATOL)


def test_a_model_with_windows_reads_no_trees(saved):
    checkpoint = read_checkpoint(saved[0])
    model = Llama(checkpoint.arch.replace(window=5), checkpoint.weights)
    with pytest.raises(ValueError, match="parents must be None for a model with windows"):
        model.features([TREE], parents=PARENTS)


def test_a_wrong_ragged_pass_is_named(models):
    for model in models.values():
        caches = [model.new_cache(1, 4) for _ in range(2)]
        with pytest.raises(ValueError, match="tokens has 1 sequences and caches 2"):
            model.forward_ragged([[1]], caches)
        with pytest.raises(ValueError, match="tokens hold ids 1 … 97"):
            model.forward_ragged([[1], [1, 97]], caches)
        assert [cache.length for cache in caches] == [0, 0]
        with pytest.raises(ValueError, match="5 more do not fit"):
            model.forward_ragged([[1, 2], [1, 2, 3, 4, 5]], caches)
        for cache in caches:
            cache.truncate(cache.length)
        got = model.forward_ragged([[1, 2], [3]], caches)[0]
        np.testing.assert_allclose(got, model([[1, 2]])[0], atol=ATOL)


def test_later_tokens_and_other_rows_change_nothing(models):
    changed = TOKENS.copy()
    changed[0, 20:] = 0
    for model in models.values():
        before, after = logits(model, TOKENS), logits(model, changed)
        np.testing.assert_allclose(after[0, :20], before[0, :20], atol=ATOL)
        np.testing.assert_allclose(after[1], before[1], atol=ATOL)
        assert np.abs(after[0, 21:] - before[0, 21:]).max() > 0.1
        np.testing.assert_allclose(logits(model, TOKENS[:1])[0], before[0], atol=ATOL)


def test_backends_agree_and_weights_are_left_alone(saved):
    checkpoint = read_checkpoint(saved[0])
    copies = {name: w.copy() for name, w in checkpoint.weights.items()}
    model = Llama(checkpoint.arch, checkpoint.weights, checkpoint.rope_theta)
    model(TOKENS)
    assert all((copies[name] == w).all() for name, w in checkpoint.weights.items())
    assert all(w.dtype == np.float32 for w in checkpoint.weights.values())
    assert checkpoint.arch.n_params == sum(w.size for w in checkpoint.weights.values())
    assert model(TOKENS.tolist()).dtype == np.float32


def test_what_a_llama_takes_for_granted(saved):
    """RoPE's base, the norms' epsilon and no end: those of the first Llama."""
    checkpoint = read_checkpoint(saved[0])
    model = Llama(checkpoint.arch, checkpoint.weights)
    said = Llama(checkpoint.arch, checkpoint.weights, 10000.0, None, 1e-5, ())
    assert model.eos_ids == () and np.array_equal(model(TOKENS), said(TOKENS))
    assert Llama(checkpoint.arch, checkpoint.weights, eos_ids=[2, 96]).eos_ids == (2, 96)


@pytest.mark.skipif(os.cpu_count() == 1, reason="one core has one thread")
def test_every_product_of_a_pass_takes_the_threads_that_it_may():
    """In the layers, seen where they append to the cache, and behind them; None: as it was."""
    seen = []

    class Watched:
        __array_ufunc__ = None

        def __init__(self, matrix):
            self.matrix = matrix

        def __rmatmul__(self, x):
            seen.extend(taken())
            return x @ self.matrix

    for n_threads in (1, None):
        model = load_model("draft", n_threads=n_threads)
        cache, n_looks = model.new_cache(1, 8), model.arch.n_layers + 1

        def watched(*args, append=cache.append):
            seen.extend(taken())
            append(*args)

        cache.append, model.unembedding = watched, Watched(model.unembedding)
        with threadpool_limits(2, user_api="blas"):
            for one_pass in (
                lambda model=model, cache=cache: model([[5, 6, 7]], cache),
                lambda model=model, cache=cache: model.forward_ragged([[8]], [cache]),
            ):
                seen.clear()
                one_pass()
                assert seen == [n_threads or 2] * n_looks * (len(seen) // n_looks) != []


@given(x=st.lists(st.floats(-1e4, 1e4, width=32), min_size=1))
def test_silu_is_scipy_s(x):
    """Also where the exponential overflows, without a warning."""
    x = np.array(x, dtype=np.float32)
    got = llama.silu(x)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, x * expit(x), rtol=1e-5, atol=1e-30)


# Wrong models, which the comparisons above must catch.


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


def test_wrong_tokens_are_named(models):
    """The rest test_protocols.py asks of what both backends call."""
    for model in models.values():
        with pytest.raises(ValueError, match="ids 97 … 97, expected 0 … 96"):
            model([[97]])
        with pytest.raises(ValueError, match=r"shape \(2,\)"):
            model([1, 2])


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
        (["tagret"], "'target', 'draft' or a directory, got 'tagret'"),
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
