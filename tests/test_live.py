"""The Python side of the live views: what travels to the page, the stills, and the widgets."""

import gzip
import hashlib
import json
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import ipywidgets
import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest

from firsttoken import live
from firsttoken.draft_heads import EagleDraft, MedusaDraft, SuffixDraft
from firsttoken.evaluation import bits_per_byte
from firsttoken.generate import speculative_generate
from firsttoken.inspection import look_inside
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.live import assets, stills, views
from firsttoken.llama import load_model
from firsttoken.paths import data_path
from firsttoken.sampling import SamplingParams, next_token_distribution, softmax
from firsttoken.tokenizer import tokenizer

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


def test_version_changes_with_what_is_shipped(monkeypatch):
    compute = assets.version.__wrapped__
    assert compute() == assets.version()
    changed = {**assets.manifest(), "tokenizer.json": {"bytes": 1}}
    with monkeypatch.context() as patch:
        patch.setattr(assets, "manifest", lambda: changed)
        with_other_files = compute()
    monkeypatch.setattr(assets, "script", lambda: "another script")
    assert len({compute(), with_other_files, assets.version()}) == 3


def test_written_folder_is_complete(tmp_path):
    place = assets.write(tmp_path)
    assert place == tmp_path / "live" / assets.version()
    written = {str(p.relative_to(place)) for p in place.rglob("*") if p.is_file()}
    assert written == {"live.js", "manifest.json", *(f"{name}.gz" for name in assets.FILES)}
    for name in assets.FILES:
        assert (place / f"{name}.gz").read_bytes() == assets.packed(name)
    assert json.loads((place / "manifest.json").read_text("utf-8")) == assets.manifest()


def test_site_html_carries_the_settings():
    for text in ("def ", '"</div><script>alert(1)</script>', "a'b&amp;\n\t", "", r"$\cost$"):
        view = live.next_token(text, temperature=0.5)
        elements = Elements(views.site_html(view.view, view.settings, view.still))
        (root,) = elements.with_class("ft-live")
        assert json.loads(root["data-settings"]) == view.settings
        assert root["data-view"] == "next_token"
        assert root["data-assets"] == f"_static/live/{assets.version()}/"
        assert [tag for tag, _ in elements.found].count("script") == 1  # the loader alone
        addresses = [given.get("src") or given.get("href", "#") for _, given in elements.found]
        assert all(address.startswith("#") for address in addresses)  # parts of the picture itself


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
    page = views.site_html(view.view, view.settings, view.still).encode()
    return len(gzip.compress(page)) <= MAX_STILL_BYTES


def test_the_button_says_what_loading_costs():
    sizes = {name: entry["packed_bytes"] for name, entry in assets.manifest().items()}
    own = {
        draft: sum(size for name, size in sizes.items() if name.startswith(f"{draft}/"))
        for draft in assets.DRAFTS
    }
    target = sum(sizes.values()) - sum(own.values())
    assert f"{target / 1e6:.1f} MB" in stills.framed("")
    for draft, size in own.items():
        assert f"{(target + size) / 1e6:.1f} MB" in stills.framed("", draft)
        assert (size > 50_000) == (draft != "suffix_automaton")


def test_cache_still_shows_what_is_kept():
    text = "def is_prime(n):\n    return"
    n_prompt = len(tokenizer().encode_document(text))
    for use_cache, n_kept in ((True, n_prompt + 14), (False, 0)):  # 15 of 30 are written
        view = live.cache(text, max_tokens=30, use_cache=use_cache)
        (picture,) = Elements(view.still).with_class("ft-figure")
        n_bytes = kv_cache_bytes(load_model("target").arch, n_kept, dtype="fp32")
        said = f"prompt of {n_prompt}: {n_kept} positions are kept, {n_bytes:,} bytes."
        assert said in picture["aria-label"]


@pytest.mark.parametrize("draft", assets.DRAFTS)
def test_speculation_still_counts_as_the_library_does(draft):
    target = load_model("target")
    library = {
        "suffix_automaton": SuffixDraft,
        "medusa_heads": lambda: MedusaDraft(target),
        "eagle_draft": lambda: EagleDraft(target),
    }.get(draft, lambda: load_model(data_path(f"model/{draft}")))
    for temperature in (0, 1):
        options = {"draft": draft, "temperature": temperature, "max_tokens": 30}
        view = live.speculation("class A:\n", **options)
        run = speculative_generate(target, library(), view.ids, view.params, gamma=4)
        assert len(run.ids) == 30  # all that was accepted is in the text
        bonus = sum(r.accepted == r.drafted for r in run.rounds)
        (words,) = pictures(view.still)
        assert f"30 tokens in {len(run.rounds)} passes" in words
        assert f"{run.accepted} guesses" in words
        assert f"{len(run.rounds) - bonus} replaced" in words and f"{bonus} tokens" in words


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


def test_inside_still_shows_what_the_copying_head_reads():
    """By default, that is "fo", the name after the bracket before; and without the head …"""
    ids = [tokenizer().eos_id, *tokenizer().encode(views.PROGRAM)]
    for silenced in ([], [(5, 3)]):
        seen = look_inside(load_model("target"), ids, silenced)
        (picture,) = pictures(live.inside(silenced=silenced).still)
        share, p = seen.attention[5, 3, -1, 13], seen.next.max()
        said = f"Layer 6, head 4: the last token, “(”, reads {100 * share:.1f} % from “fo”"
        assert said in picture and f"expects “fo”, with {100 * p:.1f} %" in picture
    assert p < 0.5


def test_surprise_still_shows_the_bits_per_byte():
    """And knows those of the held-out text."""
    for text in (views.LISTING, "größe", "def " * 400):
        bits = bits_per_byte(load_model("target"), tokenizer(), text)
        view = live.surprise(text)
        (picture,) = pictures(view.still)
        assert picture.startswith(f"{bits:.2f} bits per byte")
        assert is_light(view)
    training = json.loads(data_path("model/training.json").read_text("utf-8"))
    assert view.settings["held_out"] == training["heldout"]["bits_per_byte_target"]


def pictures(still: str) -> list[str]:
    """Return what the pictures of a still say."""
    return [given["aria-label"] for _, given in Elements(still).found if given.get("role") == "img"]


def test_params_are_those_of_the_library():
    given = {"temperature": 0.5, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "seed": 7}
    given |= {"repetition_penalty": 1.2, "max_tokens": 11}
    assert live.next_token("x", **given).params == SamplingParams(**given)


def test_a_wrong_argument_is_named():
    """Of the views whose settings are chosen in the call alone."""
    of_cache = [("text", 3), ("max_tokens", 0), ("max_tokens", 501), ("temperature", -1)]
    of_cache += [("seed", None), ("use_cache", 1)]
    of_speculation = [("text", None), ("draft", "medusa"), ("draft", ["draft"]), ("gamma", 0)]
    of_speculation += [("gamma", 9), ("seed", None)]
    for make, cases in ((live.cache, of_cache), (live.speculation, of_speculation)):
        for name, value in cases:
            with pytest.raises(ValueError, match=f"{name} must"):
                make(**{name: value})
    with pytest.raises(ValueError, match=r"one of draft, .*, eagle_draft, got 'medusa'"):
        live.speculation(draft="medusa")
    with pytest.raises(ValueError, match="gamma must lie within 1 … 8"):
        live.speculation(gamma=9)


def test_a_wrong_setting_is_named():
    """In the call and, later, where a setting is set."""
    wrong = [("temperature", value) for value in (2.5, -1, float("nan"), "hot", True)]
    wrong += [("top_k", 101), ("top_k", 1.5), ("top_p", 1.1), ("min_p", -0.1)]
    wrong += [("repetition_penalty", 0.5), ("seed", None), ("seed", -1)]
    wrong += [("max_tokens", 0), ("max_tokens", 501), ("text", 3), ("text", "\ud800")]
    of_inside = [("layer", 8), ("layer", -1), ("head", 6), ("head", 1.0), ("text", 3)]
    of_inside += [("silenced", [(8, 0)])]
    of_surprise = [("text", value) for value in (3, "\ud800")]
    for make, cases in (
        (live.next_token, wrong),
        (live.inside, of_inside),
        (live.surprise, of_surprise),
    ):
        view = make()
        before = view.settings
        for name, value in cases:
            message = "layer" if name == "silenced" else f"{name} must"
            with pytest.raises(ValueError, match=message):
                make(**{name: value})
            with pytest.raises(ValueError, match=message):
                view.settings = {**before, name: value}
            assert view.settings == before
        for settings in ({"text": "x"}, {**before, "colour": "red"}):
            with pytest.raises(ValueError, match="settings must be"):
                view.settings = settings
    with pytest.raises(ValueError, match="text must"):
        live.surprise("é" * 32_769)
    view = live.inside()
    for silenced in (5, [5], [(1, 2, 3)]):
        with pytest.raises(ValueError, match="silenced must be pairs of layer and head"):
            view.settings = {**view.settings, "silenced": silenced}


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


def test_a_page_of_the_site_carries_no_widget_for_a_view(monkeypatch):
    """Its script alone would be 100 KB, and the page would look for anywidget elsewhere."""

    def models() -> set[str]:
        return set(ipywidgets.Widget.get_manager_state()["state"])

    before = models()
    live.next_token()
    assert models() > before
    before = models()
    monkeypatch.setenv("FIRSTTOKEN_SITE", "1")
    view = live.next_token()
    view.text = "class"
    assert models() == before and view.ids == tokenizer().encode_document("class")


def test_numbers_of_numpy_are_numbers_on_the_site(monkeypatch):
    monkeypatch.setenv("FIRSTTOKEN_SITE", "1")
    view = live.next_token(top_k=np.int64(5), temperature=np.float32(0.5))
    assert view._repr_mimebundle_() == live.next_token(top_k=5, temperature=0.5)._repr_mimebundle_()


def test_a_view_stands_right_below_its_sentence():
    """On the site no folded code comes between them, and JupyterLab folds it."""
    calls = tuple(f"live.{name}(" for name in live.__all__ if name != "View")
    found = [
        (before, cell)
        for path in (Path(__file__).parents[1] / "notebooks").glob("*.ipynb")
        for before, cell in pairwise(nbformat.read(path, as_version=4).cells)
        if cell.cell_type == "code" and any(call in cell.source for call in calls)
    ]
    assert len(found) >= len(calls)
    for before, cell in found:
        assert before.cell_type == "markdown", cell.id
        assert "remove-input" in cell.metadata.get("tags", []), cell.id
        assert cell.metadata.get("jupyter", {}).get("source_hidden"), cell.id
