"""A model from a GGUF file in the page: what it reads and writes is the library's."""

from base64 import b64encode

import numpy as np
import pytest

from browser import tiny_gguf as tiny_files
from browser.playground import OPEN_REAL
from firsttoken.generate import generate
from firsttoken.live import assets
from firsttoken.live.kernel import start_id
from firsttoken.models.chat import chat_template
from firsttoken.models.inspection import look_inside
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.sampling import SamplingParams

TEXT = "import os\n\ndef read(path):\n    with open(path) as f:\n        return f.read()\n" * 3
MESSAGES = [
    {"role": "user", "content": "Say <|endoftext|> twice."},
    {"role": "assistant", "content": "No."},
    {"role": "user", "content": "Why?"},
]
# Sums of float32 numbers come out otherwise in another order.
TOLERANCE = 2e-4


@pytest.fixture(scope="module")
def tiny(tiny_gguf):
    return load_model(tiny_gguf), tokenizer(tiny_gguf)


def failure(page, script, asked=None):
    """Return the words of the error that a call ends with."""
    return page.evaluate(f"asked => ({script})(asked).then(() => null, e => e.message)", asked)


def test_logits_and_tokens_are_the_librarys(tiny_stage, tiny):
    model, words = tiny
    page = tiny_stage.real_engine()
    ids = [start_id(words), *words.encode(TEXT)]
    assert page.evaluate("t => engine.tokenize(t)", TEXT)["ids"] == ids[1:]
    for use_cache in (False, True):
        found = page.evaluate(
            "async asked => Array.from(await engine.logits(asked))",
            {"model": "target", "ids": ids, "use_cache": use_cache},
        )
        expected = model([ids])[0]
        assert np.abs(np.array(found).reshape(expected.shape) - expected).max() < TOLERANCE


def test_a_chat_is_written_as_generate_writes_it_and_read_once(tiny_stage, tiny, tiny_gguf):
    model, _ = tiny
    page = tiny_stage.real_engine()
    ids = chat_template(tiny_gguf).encode(MESSAGES)
    asked = page.evaluate("messages => engine.chat({messages})", MESSAGES)
    assert asked["ids"] == ids
    assert "".join(text for text, _ in asked["parts"]).count("<|endoftext|>") == 5
    assert sum(is_mark for _, is_mark in asked["parts"]) == 4
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=20)
    given = {"ids": ids, "params": {"temperature": 0.8, "seed": 3}, "max_tokens": 20}
    written = page.evaluate("asked => engine.write(asked).done", given)
    assert written["ids"] == list(generate(model, ids, params).ids)
    follow = [*ids, *written["ids"], 5]
    # The last token that was drawn has not been read.
    assert page.evaluate("ids => engine.known({ids})", follow) == len(follow) - 2


def test_heads_are_silenced_as_in_the_library(tiny_stage, tiny):
    model, words = tiny
    page = tiny_stage.real_engine()
    ids = words.encode(TEXT)[:40]
    heads, watch = [[0, 0], [0, 2]], [3, 5, 800]
    alone = page.evaluate(
        """async asked => { const found = [];
            await engine.withoutEach(asked, ({p}) => found.push(p)).done;
            return found; }""",
        {"ids": ids, "heads": heads, "watch": watch},
    )
    for found, head in zip(alone, heads, strict=True):
        expected = look_inside(model, ids, [tuple(head)]).next
        assert found == {str(i): pytest.approx(expected[i], abs=1e-5) for i in watch}


def test_rounded_activations_are_near_and_exact_ones_come_back(tiny_stage, tiny):
    _, words = tiny
    page = tiny_stage.real_engine()
    asked = {"ids": words.encode(TEXT)[:30], "params": {"temperature": 1}}
    ask = "async asked => (await engine.next(asked)).top.map(({p}) => p)"
    exact = page.evaluate(ask, asked)
    change = page.evaluate("ids => engine.round({on: true, ids})", asked["ids"])
    rounded = page.evaluate(ask, asked)
    assert exact != rounded
    assert np.allclose(exact, rounded, atol=0.05)
    assert 0 < change["kl_bits"] < 0.01 < change["largest"] < 1
    page.evaluate("ids => engine.round({on: false, ids})", asked["ids"])
    assert page.evaluate(ask, asked) == exact


def test_a_long_visit_takes_no_more_memory(tiny_stage, tiny):
    """Texts of all lengths, with the cache and without, as plain text, guessed and looked into."""
    _, words = tiny
    page = tiny_stage.real_engine()
    visit = """async ids => {
        const params = {temperature: 0};
        for (const use_cache of [undefined, true, false])
            await engine.write({ids, params, max_tokens: 3, use_cache}).done;
        await engine.speculate({ids, params, max_tokens: 3, draft: "suffix_automaton"}).done;
        await engine.inside({ids: ids.slice(0, 20)});
        return (await engine.stats()).memory_bytes;
    }"""
    ids = words.encode(TEXT)
    (first, *later) = [page.evaluate(visit, (ids * 9)[:n]) for n in (5, 300, 40, 150)]
    assert later == [first] * 3


def test_what_has_come_is_kept_and_checked(tiny_stage):
    page = tiny_stage.real_engine()
    part = next(tiny_stage.assets.glob("tiny.*"))
    page.wait_for_function("async name => Boolean(await caches.match(`/${name}`))", arg=part.name)
    whole = part.read_bytes()
    again = """async () => {
        globalThis.firstTokenEngines.clear();
        await window.live.openRealEngine(window.host);
    }"""
    try:
        part.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        page.context.set_offline(True)
        page.evaluate(again)  # from what the browser has kept
        page.context.set_offline(False)
        page.evaluate("async () => (await host.real()).forget()")
        assert "altered" in failure(page, again)
        part.write_bytes(whole[:-1])
        assert f"after {len(whole) - 1} of {len(whole)} bytes" in failure(page, again)
        part.write_bytes(whole + b"x" * 200_000)
        assert f"has {len(whole) + 200_000} bytes, expected {len(whole)}" in failure(page, again)
        part.write_bytes(whole)
        page.evaluate(again)
    finally:
        part.write_bytes(whole)


def test_a_browser_that_stores_nothing_does_without(tiny_stage):
    page = tiny_stage.empty_page()
    page.evaluate(
        "Object.defineProperty(window, 'caches', { get() { throw new Error('denied'); } })"
    )
    page.evaluate(OPEN_REAL)
    assert page.evaluate("engine.tokenize('def')")["ids"]


OWN = """async packed => {
    const live = await import(new URL("live.js", window.assets));
    const root = document.createElement("div");
    root.dataset.assets = window.assets;
    const bytes = await (await fetch(`data:;base64,${packed}`)).arrayBuffer();
    const file = new File([bytes], "own.gguf");
    window.engine = await live.openRealEngine(live.siteHost(root), file);
}"""


def test_a_file_of_the_readers_own(stage, tiny, tiny_gguf):
    """It is read in the page, also where the site has no real model; what it is not is said."""
    _, words = tiny
    page = stage.empty_page()
    whole = tiny_gguf.read_bytes()
    for damaged, said in [
        (b"", "begins with"),
        (whole[:20_000], "ends at byte"),
        (whole[:-4000], "the file at"),
        (b"PK\x03\x04" + whole[4:2000], "begins with"),
        (whole[:4] + b"\x09" + whole[5:2000], "version is 9"),
    ]:
        words_said = failure(page, OWN, b64encode(damaged).decode())
        assert said in words_said, words_said
    page.evaluate(OWN, b64encode(whole).decode())
    ids = words.encode("def main():")
    assert page.evaluate("async () => (await engine.tokenize('def main():')).ids") == ids
    assert page.evaluate("async () => await engine.arch().name") == "own.gguf"


GIVEN_UP = """async () => {
    window.fetch = async () => new Response(new ReadableStream({
        pull: (stream) => stream.enqueue(new Uint8Array(1000)),
        cancel: () => { window.cancelled = true; },
    }));
    globalThis.firstTokenEngines.clear();
    await (await host.real()).forget();
    await live.openRealEngine(host, undefined, (loaded) => loaded === 0);
}"""


def test_what_nobody_waits_for_any_more_comes_no_further(tiny_stage):
    page = tiny_stage.real_engine()
    page.evaluate(
        "Object.defineProperty(window, 'caches', { get() { throw new Error('denied'); } })"
    )
    page.evaluate("async () => { const real = await host.real(); host.real = async () => real; }")
    assert "Nobody waits" in failure(page, GIVEN_UP)
    page.wait_for_function("window.cancelled")


def test_two_views_read_texts_of_their_own(tiny_stage):
    """Who edits a text ends the reading of the one before, but not another view's."""
    page = tiny_stage.real_engine()
    found = page.evaluate(
        """async () => {
            const other = await live.openRealEngine(host);
            const ids = Array.from({ length: 500 }, (_, i) => 3 + (i % 700));
            const outcomes = [];
            for (const typing of [other, engine]) {
                const asked = engine.next({ ids, params: {} });
                await typing.tokenize("x");
                outcomes.push(await asked.then(({ top }) => top.length, () => "ended"));
                ids.reverse();
            }
            return outcomes;
        }"""
    )
    assert found == [10, "ended"]


def test_speculation_on_a_long_text_can_be_stopped(tiny_stage):
    """Before it is read: others have their turn meanwhile."""
    page = tiny_stage.real_engine()
    asked = {"ids": [3 + i % 700 for i in range(500)], "draft": "suffix_automaton"}
    written = page.evaluate(
        """async asked => {
            const { done, stop } = engine.speculate(asked);
            stop();
            return await done;
        }""",
        asked,
    )
    assert (written["finish_reason"], written["rounds"]) == ("stopped", [])


@pytest.fixture
def with_template(stage, tmp_path, monkeypatch):
    """Open a page whose engine runs the tiny model with another chat template."""

    def opened(template):
        monkeypatch.setattr(tiny_files, "TEMPLATE", template)
        whole = tiny_files.write_tiny_gguf(tmp_path / "own.gguf").read_bytes()
        page = stage.empty_page()
        page.evaluate(OWN, b64encode(whole).decode())
        return page

    return opened


CHAT = "text => engine.chat({messages: [{role: 'user', content: text}]})"
LOOPS = (
    "{% for a in range(100000) %}{% for b in range(1000) %}{% if a %}{% endif %}"
    "{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "said"),
    [("{% frobnicate %}", "must be a template in Jinja"), (LOOPS, "it takes over 3 seconds")],
)
def test_a_hostile_template_ends_and_all_else_goes_without_it(with_template, template, said):
    page = with_template(template)
    assert said in failure(page, CHAT, "Hi!")
    asked = {"ids": [0, 5], "params": {"seed": 1}, "max_tokens": 3}
    assert len(page.evaluate("asked => engine.write(asked).done", asked)["ids"]) == 3


def test_spaces_are_trimmed_in_no_more_time_than_others(with_template):
    """A run of spaces within a text was looked at once from each of them: for minutes."""
    page = with_template("{% for m in messages %}{{ m.content | trim }}{% endfor %}")
    text = f"a{' ' * 300_000}b"
    asked = {"text": f"  {text}\n", "most_ms": 10_000}
    found = page.evaluate(
        f"""async ({{text, most_ms}}) => Promise.race([
            ({CHAT})(text).then(({{parts}}) => parts[0][0]),
            new Promise((late) => setTimeout(late, most_ms, "late")),
        ])""",
        asked,
    )
    assert found == text


def test_a_model_of_the_same_size_is_another(tmp_path, monkeypatch):
    """What browsers have kept of a site is kept by its version."""
    versions, path = [], tmp_path / "model.gguf"
    monkeypatch.setattr(assets, "real_file", lambda: path)
    for content in (b"one", b"two", b"one"):
        path.write_bytes(content)
        versions.append(assets.version.__wrapped__())
    assert versions[0] == versions[2] != versions[1]


def test_parts_are_small_enough_for_every_host(tmp_path, monkeypatch):
    whole = bytes(range(256)) * 10
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    monkeypatch.setattr(assets, "PART_BYTES", 1000)
    place = assets.write(tmp_path / "site", path)
    parts = sorted(place.glob("model.*"))
    assert [part.stat().st_size for part in parts] == [1000, 1000, 560]
    assert b"".join(part.read_bytes() for part in parts) == whole
