"""The Python side of the live views: what travels to the page, the stills, and the widgets."""

import gzip
import hashlib
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest

from firsttoken import live
from firsttoken.live import assets, stills, widgets
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path
from firsttoken.sampling import SamplingParams, next_token_distribution, softmax

MAX_STILL_BYTES = 15_000  # what a view may add to a page before it is started, after gzip


class Elements(HTMLParser):
    """The elements of some HTML, as (tag, attributes), and the text outside of them."""

    def __init__(self, source: str):
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def with_class(self, name: str) -> list[dict]:
        return [given for _, given in self.found if name in (given.get("class") or "").split()]


def original(name: str) -> bytes:
    return data_path(f"model/{name}").read_bytes()


def test_what_a_view_begins_with():
    arch = stills.target().arch
    plain = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    for make, text, settings in (
        (live.next_token, "def ", plain | {"seed": 0, "max_tokens": 40}),
        (live.inside, widgets.PROGRAM, {"layer": 5, "head": 3, "silenced": []}),
        (
            live.cache,
            widgets.READ_LINES,
            {"use_cache": True, "max_tokens": 200, "temperature": 0.6, "seed": 5}
            | {"bytes_per_token": 2 * 4 * arch.n_layers * arch.n_kv_heads * arch.head_dim},
        ),
        (
            live.speculation,
            widgets.READ_LINES,
            {"draft": "draft", "gamma": 4, "temperature": 0.5, "seed": 1, "max_tokens": 120},
        ),
    ):
        assert make().settings == {"text": text, **settings}
        assert make("x = ").settings == {"text": "x = ", **settings}


def test_a_page_gets_a_view_with_its_style_and_what_wakes_it():
    here = Path(widgets.__file__).parent
    for view, model, styles, given in (
        ("cache", "target", ["loader"], 'class="ft-live" data-view="cache" data-settings='),
        ("chat", "smollm2", ["chat", "live"], 'class="ft-live ft-chat" data-view="chat" '),
    ):
        page = widgets.site_html(view, {"text": 'a"<'}, "<p>still</p>", model, styles)
        style = "".join((here / f"{name}.css").read_text("utf-8") for name in styles)
        script = (here / "loader.js").read_text("utf-8")
        assert page.endswith(f"><p>still</p></div><style>{style}</style><script>{script}</script>")
        assert page.startswith(f"<div {given}") and "&quot;a\\&quot;&lt;&quot;" in page
        assert ('data-model="real"' in page) == (model == "smollm2")
        assert f'data-assets="_static/live/{assets.version()}/"' in page


def test_what_travels_is_the_file(sent):
    """In pieces; the byte planes of weights, which are worth it, NumPy weaves together."""
    for name, entry in assets.manifest().items():
        packed = assets.packed(name)
        content = np.frombuffer(gzip.decompress(packed), dtype=np.uint8)
        if name.endswith(".safetensors"):
            assert len(packed) < 0.9 * len(gzip.compress(original(name), 9, mtime=0))
            content = content.reshape(2, -1).T.ravel()
        assert content.tobytes() == original(name)
        assert entry == {
            "bytes": len(original(name)),
            "packed_bytes": len(packed),
            "sha256": hashlib.sha256(original(name)).hexdigest(),
        }
        sent.clear()
        live.next_token()._answer(None, {"kind": "file", "name": name}, [])
        assert [about["index"] for about, _ in sent] == list(range(sent[0][0]["n"]))
        assert {(about["kind"], about["name"]) for about, _ in sent} == {("piece", name)}
        pieces = [piece for _, buffers in sent for piece in buffers]
        assert b"".join(pieces) == packed
        assert max(map(len, pieces)) <= 1 << 18
    assert tuple(assets.manifest()) == assets.FILES


def test_stills_say_what_they_show():
    for make in (getattr(live, name) for name in live.__all__ if name != "View"):
        view = make()
        shown = pictures(view.still)
        assert shown and all(len(words.split()) > 5 for words in shown)
        assert len(Elements(view.still).with_class("ft-live-start")) == 1
        assert is_light(view)
    for alt in ("", "  "):
        with pytest.raises(ValueError, match="alt must say what the figure shows"):
            stills.drawn(plt.figure(), alt)


def is_light(view) -> bool:
    page = widgets.site_html(view.view, view.settings, view.still).encode()
    return len(gzip.compress(page)) <= MAX_STILL_BYTES


def test_next_token_still_shows_the_librarys_numbers():
    text = "def is_prime(n):\n    return"
    still = live.next_token(text, temperature=0.7, top_k=6).still
    ids = tokenizer().encode_document(text)
    logits = load_model("target")([ids])[0, -1]
    kept = next_token_distribution(logits, SamplingParams(temperature=0.7, top_k=6), ids)
    (picture,) = Elements(still).with_class("ft-figure")
    for token in np.argsort(-logits, kind="stable")[:10]:
        words = f"{stills.piece(token)} {softmax(logits)[token]:.1%}"
        assert words + ("" if kept[token] else ", dropped") in picture["aria-label"]
    assert "keep 6 of 1,024 tokens" in picture["aria-label"]


def pictures(still: str) -> list[str]:
    """Return what the pictures of a still say."""
    return [given["aria-label"] for _, given in Elements(still).found if given.get("role") == "img"]


def test_a_wrong_setting_is_named():
    """In the call and, later, where a setting is set."""
    for make, cases in (
        (live.next_token, [("temperature", float("nan")), ("top_k", 1.5), ("text", "\ud800")]),
        (live.inside, [("layer", 8), ("head", 1.0), ("text", 3)]),
        (live.surprise, [("text", 3)]),
    ):
        view = make()
        before = view.settings
        for name, value in cases:
            with pytest.raises(ValueError, match=f"{name} must"):
                make(**{name: value})
            with pytest.raises(ValueError, match=f"{name} must"):
                view.settings = {**before, name: value}
            assert view.settings == before
        with pytest.raises(ValueError, match="settings must be"):
            view.settings = {**before, "colour": "red"}
    for make, name, value in (
        (live.cache, "max_tokens", 501),
        (live.cache, "use_cache", 1),
        (live.speculation, "draft", "medusa"),
        (live.speculation, "gamma", 9),
    ):
        with pytest.raises(ValueError, match=f"{name} must"):
            make(**{name: value})


@pytest.fixture
def sent(monkeypatch):
    """Collect what widgets send to the page."""
    messages = []
    monkeypatch.setattr(
        live.View, "send", lambda _self, content, buffers=(): messages.append((content, buffers))
    )
    return messages


def test_other_messages_are_left_alone(sent):
    """Only what is in the list goes out, whatever a page may ask for."""
    live.next_token()._answer(None, {"kind": "hello"}, [])
    assert sent == []
    with pytest.raises(ValueError, match=r"name must be one of .* got '../secret'"):
        assets.packed("../secret")


def test_a_view_is_a_widget_here_and_html_on_the_site(monkeypatch):
    view = live.next_token()
    bundle, *_ = view._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    monkeypatch.setenv("FIRSTTOKEN_SITE", "1")
    assert set(view._repr_mimebundle_()) == {"text/html"}


def test_a_view_stands_right_below_its_sentence():
    """On the site no folded code comes between them, and JupyterLab folds it."""
    calls = tuple(f"live.{name}(" for name in live.__all__ if name != "View")
    found = [
        (before, cell)
        for path in (Path(__file__).parents[2] / "notebooks").glob("*.ipynb")
        for before, cell in pairwise(nbformat.read(path, as_version=4).cells)
        if cell.cell_type == "code" and any(call in cell.source for call in calls)
    ]
    assert len(found) >= len(calls)
    for before, cell in found:
        assert before.cell_type == "markdown", cell.id
        assert "remove-input" in cell.metadata.get("tags", []), cell.id
        assert cell.metadata.get("jupyter", {}).get("source_hidden"), cell.id
