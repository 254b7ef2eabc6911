"""The live views as a reader meets them: all of them on every screen, and the first by its parts.

What they show is compared with the library.
"""

import gzip
import re
from contextlib import contextmanager

import numpy as np
import pytest
from playwright.sync_api import expect

from browser.barriers import barriers
from browser.visit import FRAMES, SCREENS, SETTLED, WIDTH, until
from firsttoken import live
from firsttoken.generate import generate
from firsttoken.live import assets
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.sampling import SamplingParams, next_token_distribution, softmax

# The view, the name of a button in it, and where the words stand that follow its press.
VIEWS = {
    "next_token": (live.next_token, "Generate", "[role=status]"),
    "inside": (live.inside, "Try every head", ".ft-found"),
    "cache": (live.cache, "Write", "[role=status]"),
    "speculation": (live.speculation, "Race plain decoding", "[role=status]"),
    "surprise": (live.surprise, re.compile("bits"), ".ft-about"),
}
TEXT = "def is_prime(n):\n    "
ENDS = 'if __name__ == "__main__":\n    main()\n'  # the likeliest next token ends the text
# Targets of a finger; a slider's room is its own height.
SMALL = """() => [...document.querySelectorAll(
        ".ft-live :is(button, input, select, textarea, summary)")]
    .filter(node => node.offsetParent && node.getBoundingClientRect().height < 39.5)
    .map(node => node.outerHTML.slice(0, 120))"""

every_view = pytest.mark.parametrize("name", VIEWS)


@pytest.mark.parametrize("screen", SCREENS)
@every_view
def test_view_is_usable_by_everyone(stage, name, screen):
    """By keyboard; in both themes nothing that axe finds, nothing too wide or too small."""
    make, button, answer = VIEWS[name]
    page = stage.open(make(), screen=screen)
    assert barriers(page) == []
    page.get_by_role("button", name="Try it").press("Enter")
    page.get_by_role("button", name=button).first.press("Enter")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_hidden()
    expect(page.locator(answer)).to_contain_text(re.compile(r"\w+ \w+"))
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.evaluate(SETTLED)
        assert barriers(page) == [], theme
    assert page.evaluate(WIDTH) <= SCREENS[screen]["width"]
    if screen == "phone":
        assert page.evaluate(SMALL) == []


# Markup, emoji of several characters, right to left, no width at all, and half a character.
HOSTILE = (
    "</textarea><script>alert(2)</script>" * 40
    + "👩‍👩‍👧‍👦 = '🏳️‍🌈' # 🤦🏽‍♂️ שלום = 'مرحبا' \0\u200b\u202e\ufeff\ud83d"
)
ENTER = """(field, text) => {
    field.value = text;
    field.dispatchEvent(new InputEvent("input", { bubbles: true }));
}"""


@every_view
def test_a_hostile_text_is_a_text(stage, name):
    """No error, nothing too wide, and no number that is none. What comes later is not seen."""
    page = stage.started(VIEWS[name][0](), screen="phone")
    page.on("dialog", lambda dialog: stage.troubles.append(f"dialog: {dialog.message}"))
    view = page.locator(".ft-live")
    page.get_by_label("Your text").evaluate(ENTER, HOSTILE)
    button = view.locator("button.ft-primary")
    if button.count() and button.is_enabled():
        button.click()
    page.wait_for_timeout(300)
    assert page.evaluate(WIDTH) <= SCREENS["phone"]["width"]
    assert not re.search(r"NaN|undefined|Infinity|\[object", view.inner_text())


@every_view
def test_still_stands_without_a_script(stage, name):
    page = stage.open(VIEWS[name][0](), java_script_enabled=False)
    expect(page.get_by_role("img").first).to_be_visible()
    expect(page.locator(".ft-live-start")).to_be_hidden()


def test_views_of_a_page_load_late_and_share_a_worker(stage):
    page = stage.open(live.next_token(), live.next_token("class "))
    loaded = "() => performance.getEntriesByType('resource').map(entry => entry.name)"
    assert not [url for url in page.evaluate(loaded) if "_static" in url]
    for view in page.locator(".ft-live").all():
        view.get_by_role("button", name="Try it").click()
        expect(view.get_by_label("Your text")).to_be_focused()
    assert len(page.workers) == 1


# --- the next token -------------------------------------------------------------------------------


def started(stage, text=TEXT, *, screen="desktop", **settings):
    """Return a page with the view, whose bars are there."""
    page = stage.started(live.next_token(text, **settings), screen=screen)
    expect(page.locator(".ft-counts")).to_contain_text("tokens kept")
    return page


def distribution(ids, **settings):
    """Return the library's probabilities before and after some settings."""
    logits = load_model("target")([ids or [tokenizer().eos_id]])[0, -1]
    return softmax(logits), next_token_distribution(logits, SamplingParams(**settings), ids)


def percent(p: float) -> str:
    return "0 %" if p == 0 else "<0.1 %" if p < 0.001 else f"{100 * p:.1f} %"


def expect_bars(page, text, **settings) -> None:
    """Wait for bars of the library's numbers behind a text or ids."""
    ids = tokenizer().encode_document(text) if isinstance(text, str) else text
    before, after = distribution(ids, **settings)
    top = np.argsort(-before, kind="stable")[:10]
    expected = [f"{percent(before[i])} {percent(after[i]) if after[i] else 'dropped'}" for i in top]
    until(page, lambda: shown_bars(page) == expected)


def shown_bars(page) -> list[str]:
    return page.locator(".ft-bars li:not([hidden])").evaluate_all(
        """rows => rows.map(row => [".ft-before", ".ft-after"]
            .map(place => row.querySelector(place).innerText).join(" "))"""
    )


def written(text: str, **settings) -> str:
    """Return a text and what the library writes behind it."""
    ids = tokenizer().encode_document(text)
    return text + tokenizer().decode(
        generate(load_model("target"), ids, SamplingParams(**settings)).ids
    )


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", {}),
        (TEXT, {"temperature": 0.0}),
        (
            TEXT,
            {"temperature": 2.0, "top_k": 30, "top_p": 0.9, "min_p": 0.01}
            | {"repetition_penalty": 1.2},
        ),
    ],
)
def test_bars_are_the_librarys(stage, text, settings):
    page = started(stage, text, **settings)
    expect_bars(page, text, **settings)
    before, after = distribution(tokenizer().encode_document(text), **settings)

    def bits(p):
        return -sum(x * np.log2(x) for x in p.astype(np.float64) if x > 0)

    counts = page.locator(".ft-counts").inner_text()
    n_kept, n_vocab, *entropies = re.findall(r"\d[\d,]*(?:\.\d+)?", counts)
    assert (n_kept, n_vocab) == (f"{np.count_nonzero(after):,}", "1,024")
    assert [float(x) for x in entropies] == pytest.approx([bits(before), bits(after)], abs=0.006)


@pytest.mark.parametrize(
    ("label", "keys", "setting", "words"),
    [
        ("Temperature", ["Home"], {"temperature": 0.0}, "0, greedy"),
        ("Min-p", ["Home", *["ArrowRight"] * 2], {"min_p": 0.02}, "0.02"),
    ],
)
def test_slider_by_key(stage, label, keys, setting, words):
    page = started(stage)
    knob = page.get_by_role("slider", name=label)
    for key in keys:
        knob.press(key)
    expect(knob).to_have_attribute("aria-valuetext", words)
    expect_bars(page, TEXT, **setting)
    page.get_by_role("button", name="Reset settings").press("Enter")
    expect_bars(page, TEXT)


@pytest.mark.parametrize("how", ["click", "key", "tap"])
def test_a_token_is_appended_as_it_is(stage, how):
    """The text would be cut into other tokens; the reader's choice stays what it was."""
    ids = tokenizer().encode_document(TEXT)
    before, _ = distribution(ids)
    place, token = next(
        (place, i)
        for place, i in enumerate(np.argsort(-before, kind="stable")[:10].tolist())
        if tokenizer().encode_document(TEXT + tokenizer().decode([i])) != [*ids, i]
    )
    page = started(stage, screen="phone" if how == "tap" else "desktop")
    row = page.get_by_role("button", name=re.compile("^Append")).nth(place)
    {"click": row.click, "tap": row.tap, "key": lambda: row.press("Enter")}[how]()
    field = page.get_by_label("Your text")
    expect(field).to_have_value(TEXT + tokenizer().decode([token]))
    expect_bars(page, [*ids, token])
    page.get_by_role("button", name="Undo").click()
    expect(field).to_have_value(TEXT)
    expect_bars(page, ids)


@pytest.mark.parametrize(
    "settings",
    [{"seed": 3}, {"temperature": 0.8, "top_k": 20, "repetition_penalty": 1.3, "seed": 2**32 - 1}],
)
def test_generated_text_is_the_librarys(stage, settings):
    """Marked as the model's, and next to nothing of it spoken."""
    page = started(stage, **settings, max_tokens=30)
    page.evaluate("""() => {
        window.spoken = 0;
        new MutationObserver(() => { window.spoken += 1; }).observe(
            document.querySelector(".ft-spoken"), {childList: true, characterData: true});
    }""")
    page.get_by_role("button", name="Generate").press("Space")
    field = page.get_by_label("Your text")
    expect(field).to_have_value(written(TEXT, **settings, max_tokens=30))
    expect(page.get_by_role("status")).to_contain_text(re.compile(r"^30 tokens in [\d.]+ s, \d+"))
    assert page.evaluate("window.spoken") <= 3
    expect(page.locator(".ft-behind .ft-typed")).to_have_count(len(tokenizer().encode(TEXT)))
    expect(page.locator(".ft-behind .ft-written")).to_have_count(30)
    field.press("Control+End")
    field.press_sequentially("# é€")
    expect(page.locator(".ft-behind .ft-written")).to_have_count(0)
    expect_bars(page, field.input_value(), **settings)


def test_generation_is_stopped(stage):
    page = started(stage, max_tokens=480)
    # The page presses Stop itself: from here it could come too late.
    page.get_by_role("button", name="Generate").evaluate(
        """async button => {
            button.click();
            const frame = () => new Promise(requestAnimationFrame);
            while (!document.querySelector(".ft-behind .ft-written")) await frame();
            if (button.innerText !== "Stop") throw Error(`the button says ${button.innerText}`);
            button.click();
        }"""
    )
    expect(page.get_by_role("status")).to_contain_text("You stopped it")
    page.evaluate(FRAMES)  # the last tokens are painted a frame later
    assert 0 < page.locator(".ft-behind .ft-written").count() < 480


def test_no_letter_is_lost(stage):
    """Letters come faster than answers, in place of a text that the model is still writing."""
    page = started(stage, max_tokens=400)
    page.get_by_role("button", name="Generate").click()
    field, robot = page.get_by_label("Your text"), "class Robot:\n    def walk(self, steps):"
    field.press("Control+a")
    page.keyboard.type(robot)
    expect_bars(page, robot)
    expect(field).to_have_value(robot)


def test_where_a_text_ends_is_told(stage):
    page = started(stage, ENDS, temperature=0.0)
    page.get_by_role("button", name="Generate").click()
    expect(page.get_by_role("status")).to_contain_text("The model ended the text here")
    expect(page.locator(".ft-behind .ft-end")).to_have_count(1)


# --- when files are missing -----------------------------------------------------------------------


@contextmanager
def harmed(stage, name: str, how: str):
    """Remove or alter a file of the site, and mend it afterwards."""
    path = stage.assets / name
    sound = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        content = bytearray(gzip.decompress(sound))
        content[-1] ^= 1
        path.write_bytes(gzip.compress(bytes(content)))
    yield
    path.write_bytes(sound)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("target/model.safetensors.gz", "altered"),
        ("tokenizer.json.gz", "missing"),
        ("live.js", "missing"),
    ],
)
def test_a_harmed_file_is_told_and_tried_again(stage, name, how):
    page = stage.open(live.next_token(TEXT))
    with harmed(stage, name, how):
        page.get_by_role("button", name="Try it").click()
        said = "could not be loaded" if name == "live.js" else name.removesuffix(".gz")
        expect(page.get_by_role("alert")).to_contain_text(said)
        expect(page.get_by_role("img")).to_be_visible()  # the figure stands
    page.get_by_role("button", name=re.compile("^Try")).press("Enter")
    expect_bars(page, TEXT)
    stage.troubles[:] = [t for t in stage.troubles if "404" not in t]


def test_a_second_visit_loads_no_weights(stage):
    """After a reload, and in another tab, they come from the browser; old ones are deleted."""
    page = stage.open(live.next_token(TEXT))
    page.evaluate("async () => { await caches.open('first-token-live-old'); }")
    page.get_by_role("button", name="Try it").click()
    expect_bars(page, TEXT)
    assert page.evaluate("() => caches.keys()") == [f"first-token-live-{assets.version()}"]
    for other in (page, page.context.new_page()):
        other.goto(page.url)
        asked = []
        other.on("request", lambda request, asked=asked: asked.append(request.url))
        other.get_by_role("button", name="Try it").click()
        expect_bars(other, TEXT)
        assert not [url for url in asked if url.endswith(".gz")]
