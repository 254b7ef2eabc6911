"""Adapters: batched rows equal one by one equal the merged model equal W + (alpha / r) B A."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from firsttoken.architectures import Architecture
from firsttoken.engine import Engine, decision_margins
from firsttoken.generate import generate
from firsttoken.models.checkpoint import weight_shapes
from firsttoken.models.llama import Llama, load_model
from firsttoken.models.lora import AdaptedModel, Adapter, load_adapter, merge_adapter, save_adapter
from firsttoken.models.tokenizer import tokenizer
from firsttoken.sampling import SamplingParams

MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ARCH = Architecture("small", 2, 24, 4, 2, 6, 40, 50, tied_embeddings=True, max_context=64)
ROUNDING = 1e-4  # as in tests/engine: what is decided by more is decided alike


def full_name(layer, matrix):
    part = "self_attn" if matrix[0] in "qkvo" else "mlp"
    return f"model.layers.{layer}.{part}.{matrix}.weight"


def random_weights(seed=0):
    rng = np.random.default_rng(seed)
    shapes = weight_shapes(ARCH)
    return {
        n: (rng.normal(size=s) / s[-1] ** 0.5 if len(s) == 2 else 1 + rng.random(s) / 10)
        for n, s in shapes.items()
    }


WEIGHTS = random_weights()
BASE = Llama(ARCH, WEIGHTS)


def random_adapter(seed, rank=3, alpha=5.0, matrices=MATRICES, arch=ARCH, layers=None, size=1.0):
    rng, shapes, pairs = np.random.default_rng(seed), weight_shapes(arch), {}
    for layer in range(arch.n_layers) if layers is None else layers:
        for matrix in matrices:
            n_out, n_in = shapes[full_name(layer, matrix)]
            a = rng.normal(size=(rank, n_in)) / n_in**0.5
            pairs[layer, matrix] = a, size * rng.normal(size=(n_out, rank)) / 3
    return Adapter(rank, alpha, pairs)


def by_formula(adapter):
    """A model from weights with W + (alpha / r) B A, each under its own name."""
    weights = dict(WEIGHTS)
    for (layer, matrix), (a, b) in adapter.pairs.items():
        weights[full_name(layer, matrix)] = (
            weights[full_name(layer, matrix)] + adapter.alpha / adapter.rank * b @ a
        )
    return Llama(ARCH, weights)


ADAPTERS = {
    "all": random_adapter(1),
    "few": random_adapter(2, rank=1, alpha=-2.0, matrices=("v_proj", "up_proj", "o_proj")),
    "last layer": random_adapter(3, rank=5, alpha=16, layers=[1]),
}
MERGED = {name: by_formula(adapter) for name, adapter in ADAPTERS.items()} | {None: BASE}


# --- the same thing in three ways


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_merged_model_is_the_formula(name):
    merged = merge_adapter(BASE, ADAPTERS[name])
    tokens = np.random.default_rng(0).integers(50, size=(2, 9))
    np.testing.assert_allclose(merged(tokens), MERGED[name](tokens), atol=1e-5)
    assert np.abs(merged(tokens) - BASE(tokens)).max() > 0.1
    assert merged.embedding is BASE.embedding  # what no adapter changes is shared
    np.testing.assert_array_equal(BASE(tokens), Llama(ARCH, WEIGHTS)(tokens))


rows = st.lists(st.integers(0, 49), min_size=1, max_size=6)
crowds = st.lists(st.tuples(rows, rows, st.sampled_from([None, *ADAPTERS])), min_size=1, max_size=7)


def batched_pass(model, crowd, names=None):
    """Read each one's first tokens, then the second; return the last pass's logits and caches."""
    firsts, seconds, adapters = zip(*crowd, strict=True)
    adapters = adapters if names is None else names
    caches = [BASE.new_cache(1, 16) for _ in crowd]
    model.forward_ragged(firsts, caches, adapters)
    return model.forward_ragged(seconds, caches, adapters), caches


@settings(max_examples=60, deadline=None)
@given(crowds)
def test_batched_rows_equal_one_by_one_and_the_merged_model(crowd):
    model = AdaptedModel(BASE, ADAPTERS)
    together, caches = batched_pass(model, crowd)
    for (first, second, name), logits, cache in zip(crowd, together, caches, strict=True):
        alone, _ = batched_pass(model, [(first, second, name)])
        np.testing.assert_allclose(logits, alone[0], atol=2e-5)
        own = BASE.new_cache(1, 16)
        merged = MERGED[name]([[*first, *second]], own)[0, len(first) :]
        np.testing.assert_allclose(logits, merged, atol=2e-5)
        for layer in range(ARCH.n_layers):
            np.testing.assert_allclose(cache.keys(layer), own.keys(layer), atol=2e-5)
            np.testing.assert_allclose(cache.values(layer), own.values(layer), atol=2e-5)


# --- in the engine


SHIPPED = ("capitals", "session")


@pytest.fixture(scope="module")
def target():
    return load_model("target")


@pytest.fixture(scope="module")
def shipped():
    return {name: load_adapter(name) for name in SHIPPED}


@pytest.mark.parametrize("kind", ["plain", "small pool", "prefixes", "draft"])
def test_the_engine_gives_each_request_its_adapter_s_own_answer(target, shipped, kind):
    tok, params = tokenizer(), SamplingParams(0.0, max_tokens=12)
    options = {
        "plain": {"n_blocks": 64},
        "small pool": {"n_blocks": 10, "block_size": 8, "token_budget": 12},
        "prefixes": {"n_blocks": 64, "block_size": 4, "prefix_caching": True, "max_batch": 2},
        "draft": {"n_blocks": 64, "draft": load_model("draft"), "gamma": 3},
    }[kind]
    engine = Engine(target, adapters=shipped, **options)
    merged = {name: merge_adapter(target, shipped[name]) for name in SHIPPED} | {None: target}
    wanted = {}
    for text in ("import os\n", "import os\nimport sys\n", "def read(path):\n"):
        for name in (None, *SHIPPED):
            prompt = tok.encode(text)
            i = engine.submit(prompt, params, ignore_eos=True, adapter=name)
            wanted[i] = prompt, name
    got, close = engine.run(), []
    for i, (prompt, name) in wanted.items():
        alone = generate(merged[name], prompt, params, ignore_eos=True).ids
        if got[i].ids != alone:
            margins = decision_margins(merged[name], prompt, alone, params)
            first = next(n for n in range(12) if got[i].ids[n] != alone[n])
            close.append(margins[first])
    assert max(close, default=0) < ROUNDING and len(close) <= 1
    assert (engine.stats.preemptions > 0) == (kind == "small pool")
    assert (engine.stats.cached_tokens > 0) == (kind == "prefixes")
    assert (engine.stats.accepted_tokens > 0) == (kind == "draft")


def test_texts_share_blocks_with_their_own_adapter_only(target, shipped):
    engine = Engine(target, 64, 4, prefix_caching=True, adapters=shipped)
    prompt, cached = list(range(20, 33)), []
    for name in (None, "capitals", "session", "capitals", None, "session"):
        before = engine.stats.cached_tokens
        engine.submit(prompt, SamplingParams(0.0, max_tokens=1), adapter=name)
        engine.run()
        cached.append(engine.stats.cached_tokens - before)
    assert cached == [0, 0, 0, 12, 12, 12]
    # Answers to one prompt share it as ever.
    engine.submit_many([9] * 9, SamplingParams(max_tokens=1, seed=0), 3, adapter="capitals")
    engine.run()
    assert engine.stats.cached_tokens == 36 + 2 * 8


def order_of_first_tokens(engine, asked):
    order = []
    for name in asked:
        i = engine.stats.submitted
        params = SamplingParams(0.0, max_tokens=2)
        options = {"ignore_eos": True, "adapter": name}
        engine.submit([5], params, lambda _, i=i: order.append(i), **options)
    engine.run()
    return list(dict.fromkeys(order))


def test_who_waits_for_an_adapter_s_turn_holds_nobody_back():
    """Neither those with an adapter that runs already, nor those with none."""
    asked = ["all", "few", "all", None, "few"]

    def order(**options):
        return order_of_first_tokens(Engine(BASE, 40, adapters=ADAPTERS, **options), asked)

    assert order() == order(max_adapters=2) == [0, 1, 2, 3, 4]
    assert order(max_adapters=1) == [0, 2, 3, 1, 4]
    # One that does not fit holds back all behind, as ever.
    assert order(max_adapters=1, max_batch=1) == [0, 1, 2, 3, 4]


def test_wrong_adapters_of_an_engine_are_named():
    with pytest.raises(ValueError, match="max_adapters must be an integer of at least 1, got 0"):
        Engine(BASE, 4, adapters=ADAPTERS, max_adapters=0)
    with pytest.raises(ValueError, match="max_adapters 2 needs adapters"):
        Engine(BASE, 4, max_adapters=2)
    with pytest.raises(ValueError, match="adapters: 'x' must be an Adapter, got str"):
        Engine(BASE, 4, adapters={"x": "capitals"})
    engine = Engine(BASE, 4, adapters=ADAPTERS)
    with pytest.raises(ValueError, match=r"adapter 'no' is unknown, .*'all', 'few', 'last layer'"):
        engine.submit([1], SamplingParams(), adapter="no")
    assert engine.stats.submitted == 0 and list(engine.adapters) == list(ADAPTERS)


# --- files


def same(a, b):
    return (
        (a.rank, a.alpha) == (b.rank, b.alpha)
        and a.pairs.keys() == b.pairs.keys()
        and all(
            np.array_equal(x, y)
            for place in a.pairs
            for x, y in zip(a.pairs[place], b.pairs[place], strict=True)
        )
    )


def rounded(adapter):
    pairs = {
        place: tuple(x.astype(np.float16) for x in pair) for place, pair in adapter.pairs.items()
    }
    return replace(adapter, pairs=pairs)


@pytest.mark.parametrize("name", ADAPTERS)
def test_what_is_saved_is_loaded(tmp_path, name):
    save_adapter(ADAPTERS[name], tmp_path / "a" / "b", base="small")
    loaded = load_adapter(tmp_path / "a" / "b")
    assert same(loaded, rounded(ADAPTERS[name]))
    assert not same(loaded, ADAPTERS[name])  # which float16 rounds
    tensors = load_file(tmp_path / "a" / "b" / "adapter_model.safetensors")
    assert {x.dtype for x in tensors.values()} == {np.dtype(np.float16)}
    assert len(tensors) == 2 * len(loaded.pairs)


def test_names_and_settings_are_peft_s(tmp_path):
    save_adapter(ADAPTERS["few"], tmp_path, base="small")
    text = (tmp_path / "adapter_config.json").read_text()
    config = json.loads(text)
    assert text == json.dumps(config, indent=2) + "\n"  # for people to read, too
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 1, -2.0)
    assert config["target_modules"] == ["o_proj", "up_proj", "v_proj"]
    names = set(load_file(tmp_path / "adapter_model.safetensors"))
    assert "base_model.model.model.layers.1.self_attn.v_proj.lora_A.weight" in names
    assert "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight" in names


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type LORA"),
        ({"use_rslora": True}, "use_rslora True is not supported"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias 'all'"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"r": 2}, "with the rank r = 2"),
    ],
)
def test_another_method_is_refused(tmp_path, setting, message):
    save_adapter(ADAPTERS["few"], tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | setting))
    with pytest.raises(ValueError, match=message):
        load_adapter(tmp_path)


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        (("v_proj.lora_A", "v_proj.lora_embedding_A"), "belongs to no matrix"),
        (("self_attn.v_proj", "mlp.v_proj"), "belongs to no matrix"),
        (("layers.0.self_attn.v_proj.lora_A.weight", None), "v_proj of layer 0 has B only"),
    ],
)
def test_other_tensors_are_refused(tmp_path, rename, message):
    save_adapter(ADAPTERS["few"], tmp_path)
    file, (old, new) = tmp_path / "adapter_model.safetensors", rename
    tensors = load_file(file)
    if new is None:
        tensors = {name: x for name, x in tensors.items() if old not in name}
    else:
        tensors = {name.replace(old, new): x for name, x in tensors.items()}
    save_file(tensors, file)
    with pytest.raises(ValueError, match=message):
        load_adapter(tmp_path)


def test_files_that_are_missing_or_broken_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"adapter_config\.json cannot be read"):
        load_adapter(tmp_path)
    save_adapter(ADAPTERS["few"], tmp_path)
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"adapter_model\.safetensors cannot be read"):
        load_adapter(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(ValueError, match="must say r and lora_alpha"):
        load_adapter(tmp_path)


# --- wrong calls


ONE = np.ones((1, 4)), np.ones((6, 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1.0, {(0, "q_proj"): ONE}), "rank must be an integer of at least 1, got 0"),
        ((1, np.inf, {(0, "q_proj"): ONE}), "alpha must be a finite number, got inf"),
        ((1, 1.0, {}), "pairs must hold at least one matrix"),
        ((1, 1.0, {(0, "lm_head"): ONE}), "pairs: matrix 'lm_head', expected one of q_proj"),
        ((2, 1.0, {(0, "q_proj"): ONE}), r"q_proj of layer 0 has A \(1, 4\) and B \(6, 1\)"),
    ],
)
def test_a_wrong_adapter_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Adapter(*arguments)


def test_an_adapter_of_another_model_is_refused():
    foreign = load_adapter("capitals")
    for call in (
        lambda: merge_adapter(BASE, foreign),
        lambda: AdaptedModel(BASE, {"capitals": foreign}),
    ):
        with pytest.raises(ValueError, match=r"adapter.* changes a matrix \(192, 512\), the model"):
            call()
    deep = random_adapter(0, arch=ARCH.replace(n_layers=3))
    with pytest.raises(ValueError, match="adapter has a layer 2, the model 2 layers"):
        merge_adapter(BASE, deep)
    for model in (load_model("draft", "torch"), SimpleNamespace(arch=ARCH)):
        with pytest.raises(ValueError, match="model must be a Llama of the NumPy backend"):
            merge_adapter(model, foreign)


def test_nbytes_are_those_of_the_arrays_that_passes_read():
    few = AdaptedModel(BASE, {"few": ADAPTERS["few"]})
    # v beside zeros for q and k, o alone, up beside zeros for gate: first A, then B.
    assert few.nbytes == 2 * 4 * ((24 + 24 + 12 + 12) + (24 + 24) + (24 + 40 + 40))
