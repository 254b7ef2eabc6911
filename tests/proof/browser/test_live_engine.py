"""Live views: the model in the page computes what the library computes."""

import base64
import gzip
import json
from contextlib import contextmanager

import numpy as np
import pytest

from browser.playground import model_module
from firsttoken.checkpoint import read_checkpoint
from firsttoken.inspection import look_inside
from firsttoken.kv_cache import KVCache
from firsttoken.live import assets
from firsttoken.llama import Llama, load_model
from firsttoken.paths import data_path
from firsttoken.sampling import softmax
from firsttoken.tokenizer import tokenizer

WEIGHTS = data_path("model/draft/model.safetensors").read_bytes()

# Arrays come as their bytes: as numbers in JSON, logits of 512 tokens take a second.
BYTES = """(array) => {
        const all = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
        let text = "";
        for (let i = 0; i < all.length; i += 30000) {
            text += String.fromCharCode(...all.subarray(i, i + 30000));
        }
        return btoa(text);
    }"""
HOST = """async () => {
    const live = await import(new URL("live.js", window.assets));
    const root = document.createElement("div");
    root.dataset.assets = window.assets;
    window.host = live.siteHost(root);
    window.engine = await live.openEngine(window.host, () => {});
}"""
# What somebody could have written instead, and what stands in the source.
WRONG = {
    "rope turns neighbours": {
        "[start + pair]": "[start + 2 * pair]",
        "[start + pair + half]": "[start + 2 * pair + 1]",
    },
    "rope starts anew in each chunk": {"rotations(cache.length, n)": "rotations(0, n)"},
    "a query does not see itself": {"length + row + 1;": "length + Math.max(1, row);"},
    "a query sees the next": {"length + row + 1;": "length + Math.min(n, row + 2);"},
    "heads take turns at the keys": {"Math.floor(head / group)": "head % n_kv_heads"},
    "scores are not scaled": {"1 / Math.sqrt(head_dim)": "1"},
    "weights in the order of the file": {"heap.kernel.interleave(at, at + length);": ""},
}


def floats(page, expression, *arguments):
    """Return an array that the page computes: `expression` is a function of the arguments."""
    return np.frombuffer(content(page, expression, *arguments), np.float32)


def content(page, expression, *arguments):
    """Return the bytes of such an array."""
    script = f"async (given) => ({BYTES})(await ({expression})(...given))"
    return base64.b64decode(page.evaluate(script, list(arguments)))


def logits(page, expression, *arguments):
    return floats(page, expression, *arguments).reshape(-1, load_model("draft").arch.vocab_size)


def heldout(n):
    return tokenizer().encode(data_path("heldout.txt").read_text("utf-8"))[:n]


@pytest.fixture
def opened(stage, tmp_path):
    """Return a function that opens a page with a `model`, without the worker around it."""
    return lambda name="target", changes=None: stage.model(model_module(tmp_path, changes), name)


# The same numbers as in Python


@pytest.mark.parametrize("use_cache", [False, True], ids=["whole", "token by token"])
@pytest.mark.parametrize("name", ["target", "draft"])
def test_the_engine_s_logits_are_the_library_s(stage, name, use_cache):
    page, ids = stage.engine(draft=True), heldout(512)
    got = logits(
        page,
        "(model, ids, use_cache) => window.engine.logits({model, ids, use_cache})",
        *(name, ids, use_cache),
    )
    np.testing.assert_allclose(got, load_model(name)([ids])[0], atol=1e-4)


@pytest.mark.parametrize("name", ["target", "draft"])
def test_chunks_of_any_size_continue_the_cache(opened, name):
    page, ids = opened(name), heldout(512)
    sizes = [1, 3, 4, 5, 8, 31, 32, 33, 63, 64, 65, 100, 103]
    assert sum(sizes) == len(ids)
    got = logits(
        page,
        """(ids, sizes) => {
            const cache = window.model.newCache(ids.length);
            let rest = ids;
            return Float32Array.from(sizes.flatMap((size) => {
                const chunk = rest.slice(0, size);
                rest = rest.slice(size);
                return [...window.model.forward(chunk, cache)];
            }));
        }""",
        *(ids, sizes),
    )
    np.testing.assert_allclose(got, load_model(name)([ids])[0], atol=1e-4)


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_model_has_other_logits(opened, mistake):
    """What the tests above allow, 1e-4, tells each of these apart by far."""
    page, ids = opened("target", WRONG[mistake]), heldout(40)
    got = logits(page, "(ids) => window.model.forward(ids)", ids)
    assert not np.abs(got - load_model()([ids])[0]).max() < 0.1


def test_the_last_logits_alone(opened):
    page, ids = opened(), heldout(70)
    asked = "(ids) => window.model.lastLogits(ids)"
    for n in (1, 32, 33, 70):
        got = logits(page, asked, ids[:n])[0]
        np.testing.assert_allclose(got, load_model()([ids[:n]])[0, -1], atol=1e-4)


def test_after_truncation_nothing_of_the_rest_is_left(opened):
    page, ids, other = opened(), heldout(90), heldout(300)[200:]
    asked = """(ids, kept, other) => {
        const cache = window.model.newCache(200);
        window.model.forward(ids, cache);
        cache.truncate(kept);
        return window.model.forward(other, cache);
    }"""
    for kept in (0, 5, 16, 89, 90):
        got = logits(page, asked, ids, kept, other)
        expected = load_model()([ids[:kept] + other])[0, kept:]
        np.testing.assert_allclose(got, expected, atol=1e-4)


def test_a_freed_cache_s_memory_serves_the_next(opened):
    page, ids = opened(), heldout(60)
    script = """(ids) => {
        const { model } = window;
        const memories = [];
        const texts = [ids, ids.slice(20), ids.slice(40)].map((text) => {
            const cache = model.newCache(512);
            const logits = [...model.lastLogits(text, cache)];
            cache.free();
            memories.push(model.memoryBytes);
            return logits;
        });
        const isSame = texts.every((logits, i) => {
            const expected = model.lastLogits(ids.slice(20 * i));
            return logits.every((x, id) => x === expected[id]);
        });
        return [memories[2] - memories[0], isSame];
    }"""
    assert page.evaluate(script, ids) == [0, True]


def test_sizes_are_those_of_the_library(opened):
    page, arch = opened(), load_model().arch
    cache = KVCache(arch, batch=1, capacity=100)
    script = """() => {
        const cache = window.model.newCache(100);
        window.model.forward([1, 2, 3], cache);
        const { n_params, n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, vocab_size,
            max_context } = window.model.arch;
        return { n_params, n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, vocab_size,
            max_context, cache: [cache.length, cache.capacity, cache.bytes, cache.capacityBytes] };
    }"""
    sizes = page.evaluate(script)
    assert sizes.pop("cache") == [3, 100, cache.nbytes * 3 / 100, cache.nbytes]
    assert sizes == {name: getattr(arch, name) for name in sizes}


# The look inside


@pytest.mark.parametrize("silenced", [[], [(5, 3)], [(0, 1), (5, 2), (5, 3), (7, 5)]])
def test_inside_is_the_library_s(opened, silenced):
    page, model, ids = opened(), load_model(), heldout(70)
    expected = look_inside(model, ids, silenced)
    ask = "(ids, silenced) => window.model.inside(ids, silenced)"
    looks = floats(page, f"(...given) => ({ask})(...given).attention", ids, silenced)
    np.testing.assert_allclose(looks.reshape(expected.attention.shape), expected.attention, 0, 1e-5)
    layers = logits(page, f"(...given) => ({ask})(...given).layerLogits", ids, silenced)
    np.testing.assert_allclose(softmax(layers), expected.layers, 0, 1e-5)
    last = logits(page, f"(...given) => ({ask})(...given).logits", ids, silenced)
    np.testing.assert_allclose(softmax(last[0]), expected.next, 0, 1e-5)


def test_silencing_nothing_changes_nothing(opened):
    page, ids = opened(), heldout(50)
    script = """(ids) => {
        const plain = window.model.lastLogits(ids);
        return window.model.inside(ids, []).logits.every((x, id) => x === plain[id]);
    }"""
    assert page.evaluate(script, ids)


def test_without_all_heads_a_layer_has_no_attention(opened):
    page, ids, layer = opened(), heldout(50), 3
    stored = read_checkpoint(data_path("model/target"))
    name = f"model.layers.{layer}.self_attn.o_proj.weight"
    weights = {**stored.weights, name: np.zeros_like(stored.weights[name])}
    without = Llama(stored.arch, weights, stored.rope_theta, norm_eps=stored.norm_eps)
    silenced = [(layer, head) for head in range(stored.arch.n_heads)]
    got = logits(page, "(ids, heads) => window.model.inside(ids, heads).logits", ids, silenced)
    np.testing.assert_allclose(got[0], without([ids])[0, -1], atol=1e-4)


# What is refused


def failure(page, expression, *arguments):
    """Return the message of the error that a function of the arguments throws in the page."""
    script = f"""async (given) => {{
        try {{ await ({expression})(...given); }} catch (error) {{ return error.message; }}
        return "nothing went wrong";
    }}"""
    return page.evaluate(script, list(arguments))


def test_a_full_cache_and_wrong_ids_are_refused_and_change_nothing(opened):
    page, ids = opened(), heldout(20)
    page.evaluate(
        "(ids) => { window.cache = window.model.newCache(20);"
        " window.model.forward(ids.slice(0, 18), window.cache); }",
        ids,
    )
    forward = "(ids) => window.model.forward(ids, window.cache)"
    assert failure(page, forward, [1, 2, 3]) == (
        "The cache holds 18 of 20 tokens; 3 more do not fit."
    )
    for wrong in (-1, 1024, 0.5):
        assert failure(page, forward, [1, wrong]) == f"token ids must lie in 0 … 1023, got {wrong}"
    assert failure(page, forward, []) == (
        "the number of ids must be an integer of at least 1, got 0"
    )
    truncate = "(length) => window.cache.truncate(length)"
    assert failure(page, truncate, 19) == "length must lie in 0 … 18, got 19"
    np.testing.assert_allclose(
        logits(page, forward, ids[18:]), load_model()([ids])[0, 18:], atol=1e-4
    )


def altered(change):
    """Return the draft's weights with another header: `change` gets it and may alter it."""
    length = int.from_bytes(WEIGHTS[:8], "little")
    header = json.loads(WEIGHTS[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + WEIGHTS[8 + length :]


NORM = "model.norm.weight"
REFUSED = {
    "empty": (b"", "The weights end after 0 bytes, before their header."),
    "cut in the header": (
        WEIGHTS[:500],
        "The weights end after 500 bytes; their header needs {header}.",
    ),
    "cut in the numbers": (
        WEIGHTS[:-1],
        f"The weights end after {len(WEIGHTS) - 1} bytes; {NORM} needs {len(WEIGHTS)}.",
    ),
    "no header": (
        WEIGHTS[:8] + b"}" + WEIGHTS[9:],
        "The header of the weights is not readable: the file was altered.",
    ),
    "a tensor is missing": (altered(lambda h: h.pop(NORM)), f"The weights lack {NORM}."),
    "a tensor too many": (
        altered(lambda h: h.update(extra=h[NORM])),
        "The weights hold extra, which nothing uses.",
    ),
    "another shape": (
        altered(lambda h: h[NORM].update(shape=[2, 96])),
        f"{NORM} has the shape [2,96]; expected [192].",
    ),
    "another size": (
        altered(lambda h: h[NORM].update(shape=[96])),
        f"{NORM} [96] takes 384 bytes; expected 192.",
    ),
    "another dtype": (
        altered(lambda h: h[NORM].update(dtype="F16")),
        f"{NORM} is stored as F16; expected BF16.",
    ),
}


def test_weights_of_another_kind_are_refused(opened):
    page = opened("draft")
    create = """(weights) => {
        const bytes = Uint8Array.from(atob(weights), (c) => c.charCodeAt(0));
        window.createModel(window.config, bytes.buffer);
    }"""
    header = 8 + int.from_bytes(WEIGHTS[:8], "little")
    for weights, message in REFUSED.values():
        got = failure(page, create, base64.b64encode(weights).decode())
        assert got == message.format(header=header)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mistral"}, "The configuration is not that of a plain Llama model."),
        ({"rope_scaling": {"factor": 2}}, "The configuration is not that of a plain Llama model."),
        (
            {"tie_word_embeddings": False},
            "The configuration has an output matrix of its own; expected tied weights.",
        ),
        ({"head_dim": 24}, "head_dim is 24; expected a multiple of 16."),
        ({"intermediate_size": 500}, "d_ff is 500; expected a multiple of 8."),
        (
            {"intermediate_size": 504},
            "model.layers.0.mlp.gate_proj.weight has the shape [512,192]; expected [504,192].",
        ),
    ],
)
def test_another_architecture_is_refused(opened, change, message):
    page = opened("draft")
    create = """async (change) => {
        const weights = await window.file("draft/model.safetensors");
        window.createModel({ ...window.config, ...change }, weights);
    }"""
    assert failure(page, create, change) == message


def test_a_browser_without_vector_instructions_is_told(opened):
    page = opened("draft")
    create = """async () => {
        WebAssembly.validate = () => false;
        window.createModel(window.config, await window.file("draft/model.safetensors"));
    }"""
    assert failure(page, create) == (
        "This browser cannot run the model: it lacks the vector instructions (SIMD)."
    )


@contextmanager
def another(file, content):
    """For a while, serve this content (None: nothing) in a file's place."""
    shipped = file.read_bytes()
    file.unlink() if content is None else file.write_bytes(content)
    try:
        yield
    finally:
        file.write_bytes(shipped)


def with_a_bit_changed(content, place):
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


PACKED = assets.packed("draft/model.safetensors")
PLANES = gzip.decompress(PACKED)
DAMAGED = {
    "cut": (PACKED[:-1000], "arrived damaged: its {size} bytes are no whole gzip file"),
    "a bit on the way": (
        with_a_bit_changed(PACKED, len(PACKED) // 2),
        "arrived damaged: its {size} bytes are no whole gzip file",
    ),
    "no gzip": (b"<html>Not here", "arrived damaged: its {size} bytes are no whole gzip file"),
    "a bit at the source": (
        gzip.compress(with_a_bit_changed(PLANES, 100_000)),
        "is not the file that was shipped: its bytes were altered",
    ),
    "shorter at the source": (
        gzip.compress(PLANES[:-2]),
        f"has {len(PLANES) - 2} bytes; expected {len(PLANES)}",
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_named_and_the_page_goes_on(stage, damage):
    damaged, message = DAMAGED[damage]
    name, page, ids = "draft/model.safetensors", stage.engine(), heldout(9)
    page.evaluate(HOST)
    ask = "(ids, model) => window.engine.logits({model, ids})"
    with another(stage.assets / f"{name}.gz", damaged):
        assert failure(page, '() => window.engine.need("draft")') == (
            f"{name} {message.format(size=len(damaged))}. Trying again fetches it anew."
        )
    np.testing.assert_allclose(logits(page, ask, ids, "target"), load_model()([ids])[0], atol=1e-4)
    page.evaluate('window.host.forget().then(() => window.engine.need("draft"))')
    draft = load_model("draft")
    np.testing.assert_allclose(logits(page, ask, ids, "draft"), draft([ids])[0], atol=1e-4)


def test_a_missing_file_is_named(stage):
    name, page = "draft/model.safetensors", stage.engine()
    with another(stage.assets / f"{name}.gz", None):
        message = failure(page, '() => window.engine.need("draft")')
    assert message.endswith(f"{name}.gz is missing on this site (404).")
    assert [text for text in stage.troubles if "404" not in text] == []
    stage.troubles.clear()


def test_unpacked_files_are_those_of_the_repository(opened):
    page = opened("draft")
    script = "async (name) => new Uint8Array(await window.file(name))"
    for name in assets.FILES:
        assert content(page, script, name) == data_path(f"model/{name}").read_bytes()
