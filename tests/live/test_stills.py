"""stills: what a figure says, draws and colours is what the library computes."""

import math
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.colors import to_hex

from firsttoken import live
from firsttoken.generate import speculative_generate
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.live import stills
from firsttoken.models.evaluation import bits_per_byte, token_losses
from firsttoken.models.inspection import look_inside
from firsttoken.models.tokenizer import tokenizer
from firsttoken.page.plots import COLORS
from firsttoken.sampling import softmax

TEXT = "import os\n\nfor name in os.listdir(folder):\n    path = os.path"
IDS = tokenizer().encode_document(TEXT)


class Coloured(HTMLParser):
    """What a still says of itself, and the pieces of its text, each with its look."""

    def __init__(self, still: str):
        super().__init__()
        self.says, self.pieces, self._look = "", [], ""
        self.feed(still)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.says = self.says or given.get("aria-label", "")
        if tag == "span":
            self._look = given.get("style", "")

    def handle_endtag(self, tag):
        if tag == "span":
            self._look = ""

    def handle_data(self, data):
        if self._look:
            self.pieces.append((data.replace("↵\n", "\n"), self._look))


@pytest.fixture
def figures(monkeypatch):
    """Collect the figures that stills are made of."""
    found = []
    drawn = stills.drawn
    monkeypatch.setattr(stills, "drawn", lambda fig, alt: found.append(fig) or drawn(fig, alt))
    return found


def strength(look: str, concept: str) -> float:
    """Return how strong a colour is, from its ground and from its line."""
    ground = re.search(rf"background:{COLORS[concept]}([0-9a-f]{{2}});", look)
    line = re.search(rf"inset 0 -([\d.]+)px {COLORS[concept]}$", look)
    assert int(ground[1], 16) / 127 == pytest.approx(float(line[1]) / 4, abs=0.02)
    return int(ground[1], 16) / 127


@pytest.mark.parametrize(("layer", "head", "silenced"), [(5, 3, []), (2, 0, [(0, 1), (5, 3)])])
def test_inside_names_and_colours_what_is_read(layer, head, silenced):
    shown = Coloured(live.inside(TEXT, layer=layer, head=head, silenced=silenced).still)
    seen = look_inside(stills.target(), IDS, silenced)
    shares = seen.attention[layer, head, -1]
    said = re.findall(r"([\d.]+) % from “(.*?)”", shown.says)
    names = ["start", *map(stills.piece, IDS[1:])]
    assert [name for _, name in said] == [names[i] for i in np.argsort(-shares)[:3]]
    np.testing.assert_allclose(
        [float(n) for n, _ in said], 100 * np.sort(shares)[:-4:-1], atol=0.06
    )
    assert shown.says.startswith(
        f"Layer {layer + 1}, head {head + 1}: the last token, “{names[-1]}”, reads "
    )
    best = int(seen.next.argmax())
    end = f"Next, the model expects “{stills.piece(best)}”, with {100 * seen.next[best]:.1f} %."
    assert shown.says.endswith(end)
    read = [i for i in range(1, len(IDS)) if shares[i] >= 0.01]
    assert [stills.visible(text) for text, _ in shown.pieces] == [names[i] for i in read]
    strengths = [strength(look, "cache") for _, look in shown.pieces]
    np.testing.assert_allclose(strengths, shares[read], atol=0.01)


def test_inside_looks_at_the_end_of_a_long_text():
    text = TEXT * 5
    ids = tokenizer().encode_document(text)
    cut = [ids[0], *ids[-96:]]
    assert len(ids) > len(cut)
    shares = look_inside(stills.target(), cut, []).attention[5, 3, -1]
    (first, *_) = re.findall(r"([\d.]+) % from", Coloured(live.inside(text).still).says)
    assert float(first) == pytest.approx(100 * shares.max(), abs=0.06)


@pytest.mark.parametrize("use_cache", [True, False])
def test_cache_is_shown_half_way(figures, use_cache):
    """Seven tokens are asked for, four are written, the fourth is not read yet."""
    still = live.cache(TEXT, use_cache=use_cache, max_tokens=7, temperature=0).still
    arch, n_prompt = stills.target().arch, len(IDS)
    n_kept = n_prompt + 3 if use_cache else 0
    n_bytes = kv_cache_bytes(arch, n_kept, dtype="fp32")
    assert Coloured(still).says == (
        f"Keys and values in {arch.n_layers} layers, after 4 tokens were written to a prompt of "
        f"{n_prompt}: {n_kept} positions are kept, {n_bytes:,} bytes."
    )
    (ax,) = figures[0].axes
    assert ax.get_title(loc="left") == f"{n_kept} tokens kept: {n_bytes:,} bytes"
    kept = [n_prompt, 3] if use_cache else [0, 0]
    bars = np.reshape([(bar.get_x(), bar.get_width()) for bar in ax.patches], (-1, 3, 2))
    assert len(bars) == 2 * arch.n_layers  # keys and values
    assert (bars == [(0, n_prompt + 7), (0, kept[0]), (n_prompt, kept[1])]).all()
    assert [to_hex(bar.get_facecolor(), keep_alpha=True) for bar in ax.patches[:3]] == [
        to_hex((COLORS["ink"], 0.1), keep_alpha=True),
        *(COLORS[name] + "ff" for name in ("prefill", "decode")),
    ]
    middles = np.reshape([bar.get_y() + bar.get_height() / 2 for bar in ax.patches], (-1, 2, 3))
    layers = np.arange(1, arch.n_layers + 1)
    np.testing.assert_allclose(middles.mean(axis=(1, 2)), layers)
    assert (middles[:, 0] < middles[:, 1]).all() and (np.diff(middles[..., 0].ravel()) > 0.3).all()


@pytest.mark.parametrize(("draft", "max_tokens"), [("draft", 30), ("suffix_automaton", 31)])
def test_speculation_tells_and_colours_what_became_of_each_guess(draft, max_tokens):
    view = live.speculation(TEXT, draft=draft, gamma=3, max_tokens=max_tokens)
    shown = Coloured(view.still)
    pair = stills.target(), stills.draft_of(draft)
    run = speculative_generate(*pair, view.ids, view.params, 3)
    kinds = []
    for each in run.rounds:
        kinds += ["kept"] * each.accepted
        kinds.append("replaced" if each.accepted < each.drafted else "bonus")
    kinds = kinds[: len(run.ids)]
    counts = [kinds.count(kind) for kind in ("kept", "replaced", "bonus")]
    assert min(counts) > 0
    found = [int(n) for n in re.findall(r"\d+", shown.says)]
    assert found == [len(run.ids), len(run.rounds), *counts]
    assert [look for _, look in shown.pieces] == [stills._LOOKS[kind] for kind in kinds]
    assert "".join(text for text, _ in shown.pieces) == tokenizer().decode(run.ids)


def test_surprise_tells_and_colours_how_many_bits_a_token_needs():
    shown = Coloured(live.surprise(TEXT).still)
    bits = token_losses(stills.target(), IDS) / math.log(2)
    worst = int(bits.argmax())
    assert shown.says.startswith(
        f"{bits_per_byte(stills.target(), tokenizer(), TEXT):.2f} bits per"
    )
    assert shown.says.endswith(f"“{stills.piece(IDS[1 + worst])}”, {bits[worst]:.1f} bits.")
    steps = [sum(each >= level for level in (0.5, 1, 2, 4, 8)) for each in bits]
    assert 0 in steps and 5 in steps
    seen = [round(5 * strength(look, "decode")) for _, look in shown.pieces]
    assert seen == [step for step in steps if step]
    assert "No text yet" in Coloured(live.surprise("").still).says


def test_next_token_s_title_is_the_end_of_a_long_text(figures):
    for text in ("x" * 40, "a" * 41, "if x:\n\tb = 1"):
        live.next_token(text)
        (ax,) = figures.pop().axes
        shown = stills.visible(text[-40:])
        assert ax.get_title(loc="left") == ("…" if len(text) > 40 else "") + shown
    assert shown == "if·x:↵→b·=·1"


def test_next_token_draws_both_distributions(figures):
    """Ten bars of the model's, and inside them ten of what the settings leave."""
    live.next_token(TEXT, top_k=4)
    (ax,) = figures[0].axes
    assert figures[0].get_size_inches().tolist() == [4.4, 3.3]  # fits a phone
    pale, strong = ax.patches[:10], ax.patches[10:]
    before = [bar.get_width() for bar in pale]
    after = [bar.get_width() for bar in strong]
    p = softmax(stills.target()([IDS])[0, -1])
    assert before == pytest.approx(100 * np.sort(p)[:-11:-1], rel=1e-4)
    assert sum(after) == pytest.approx(100)
    assert [width > 0 for width in after] == [True] * 4 + [False] * 6
    assert after[0] / after[1] == pytest.approx(before[0] / before[1], rel=1e-3)
    assert {to_hex(bar.get_facecolor()) for bar in strong} == {COLORS["prefill"]}
    assert {to_hex(bar.get_edgecolor()) for bar in pale} == {COLORS["prefill"]}
    grounds = [to_hex(bar.get_facecolor(), keep_alpha=True) for bar in pale]
    assert grounds == [COLORS["prefill"] + "38"] * 4 + ["#00000000"] * 6
    assert [bar.get_linestyle() for bar in pale] == ["-"] * 4 + ["--"] * 6
    middles = [[bar.get_y() + bar.get_height() / 2 for bar in bars] for bars in (pale, strong)]
    np.testing.assert_allclose(middles, [range(10)] * 2)
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert len(names) == 10 and ax.yaxis_inverted()
    assert ax.get_position().p0 == pytest.approx([0.2, 0.2])  # room for the names and two lines
    # A $ is a token, too.
    assert not any(text.get_parse_math() for text in [*ax.get_yticklabels(), ax._left_title])


def test_a_token_without_a_text_has_its_name():
    words = SimpleNamespace(token_name=lambda i: f"<|{i} {i}|>", token_bytes=lambda i: b"")
    assert stills.piece(7, words) == "<|7·7|>"


def test_a_coloured_text_is_told_in_words_and_set_as_code():
    """Blanks and lines stay as they are, and what might be HTML is text."""
    ids = tokenizer().encode("a\n<b")
    assert [tokenizer().decode([i]) for i in ids] == ["a", "\n", "<", "b"]
    assert stills._coloured("1 < 2", ids, ["", "x", "", "y"]) == (
        '<div role="img" aria-label="1 &lt; 2"><p style="margin:0 0 .5rem">1 &lt; 2</p>'
        '<div style="white-space:pre-wrap;overflow-wrap:anywhere;font:1rem/1.9 var(--ft-mono)">'
        'a<span style="x">↵\n</span>&lt;<span style="y">b</span></div></div>'
    )


def test_how_much_a_button_loads():
    """The target alone, and a draft with it where there is one."""
    sizes = {name: each["packed_bytes"] for name, each in live.assets.manifest().items()}
    n_target = sum(n for name, n in sizes.items() if name.startswith("target") or "/" not in name)
    n_draft = sum(n for name, n in sizes.items() if name.startswith("draft/"))
    assert f"Loads the model, {n_target / 1e6:.1f} MB, once." in live.next_token().still
    with_draft = live.speculation(draft="draft", max_tokens=2).still
    assert f"Loads the model, {(n_target + n_draft) / 1e6:.1f} MB, once." in with_draft
