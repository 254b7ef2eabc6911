"""The live views as a reader meets them: by mouse, finger and keyboard, and when files are missing.

What they show is compared with the library.
"""

import gzip
import re
from contextlib import contextmanager

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from browser.barriers import barriers
from browser.visit import FRAMES, SCREENS, SETTLED, until
from firsttoken import live
from firsttoken.generate import generate
from firsttoken.live import assets
from firsttoken.llama import load_model
from firsttoken.sampling import SamplingParams, next_token_distribution, softmax
from firsttoken.tokenizer import tokenizer
from proof.browser.test_pages import WIDTH

VIEWS = {name: getattr(live, name) for name in live.__all__ if name != "View"}
TEXT = "def is_prime(n):\n    "
ENDS = 'if __name__ == "__main__":\n    main()\n'  # the likeliest next token ends the text
LOADED_MS = 60_000  # on a busy machine; nothing here measures that
MAX_MEMORY_BYTES = 200_000_000
# Targets of a finger; a slider's room is its own height.
SMALL = """() => [...document.querySelectorAll(".ft-live :is(button, input, textarea, summary)")]
    .filter(node => node.offsetParent && node.getBoundingClientRect().height < 39.5)
    .map(node => node.outerHTML.slice(0, 120))"""


def start(page: Page, how: str = "click"):
    """Start the first view of a page and return it."""
    view = page.locator(".ft-live").first
    button = view.get_by_role("button", name="Try it")
    if how == "key":
        button.press("Enter")
    else:
        button.tap() if how == "tap" else button.click()
    expect(view).to_have_attribute("role", "group")
    expect(view.locator(".ft-live-try")).to_have_count(0, timeout=LOADED_MS)
    return view


def settled_bars(view) -> None:
    expect(view.locator(".ft-counts")).to_contain_text("tokens kept")


def distribution(ids, **settings):
    """Return the library's probabilities before and after some settings."""
    logits = load_model("target")([ids or [tokenizer().eos_id]])[0, -1]
    return softmax(logits), next_token_distribution(logits, SamplingParams(**settings), ids)


def percent(p: float) -> str:
    return "0 %" if p == 0 else "<0.1 %" if p < 0.001 else f"{100 * p:.1f} %"


def expected_bars(ids, **settings) -> list[str]:
    """Return the two numbers of each bar, as the library has them."""
    before, after = distribution(ids, **settings)
    top = np.argsort(-before, kind="stable")[:10]
    return [f"{percent(before[i])} {percent(after[i]) if after[i] else 'dropped'}" for i in top]


def shown_bars(view) -> list[str]:
    return view.locator(".ft-bars li:not([hidden])").evaluate_all(
        """rows => rows.map(row => [".ft-before", ".ft-after"]
            .map(place => row.querySelector(place).innerText).join(" "))"""
    )


def written(text: str, **settings) -> str:
    """Return what the library writes behind a text."""
    ids = generate(
        load_model("target"), tokenizer().encode_document(text), SamplingParams(**settings)
    ).ids
    return tokenizer().decode(ids)


# --- every view -----------------------------------------------------------------------------------


# Where the first answer of those stands that give one without being asked.
ANSWERS = {"next_token": ".ft-counts", "inside": ".ft-effect", "surprise": ".ft-whole .ft-seen"}


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("name", VIEWS)
def test_view_has_no_barrier(stage, name, screen):
    """Before the start and after it, in both themes: nothing too wide, nothing that axe finds."""
    page = stage.open(VIEWS[name](), screen=screen)
    for started in (False, True):
        if started:
            start(page)
            if name in ANSWERS:
                expect(page.locator(ANSWERS[name])).not_to_be_empty()
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            page.evaluate(SETTLED)
            assert barriers(page) == [], (started, theme)
        assert page.evaluate(WIDTH) <= SCREENS[screen]["width"]
        if screen == "phone":
            assert page.evaluate(SMALL) == []


HOSTILE = {
    "nothing": "",
    "10,000 characters": "total += 1\n" * 910,
    "a long word of markup": "</textarea><script>alert(2)</script>" * 40,
    # Emoji of several characters, right to left, no width at all, and half a character.
    "other scripts": "👩‍👩‍👧‍👦 = '🏳️‍🌈' # 🤦🏽‍♂️ שלום = 'مرحبا' \0\u200b\u202e\ufeff\ud83d",
}
ENTER = """(view, text) => {
    const field = view.querySelector("textarea");
    field.value = text;
    field.dispatchEvent(new InputEvent("input", { bubbles: true }));
}"""


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("name", VIEWS)
def test_a_hostile_text_is_a_text(stage, name, text):
    """With every slider at either end: no error, nothing too wide, and no number that is none.

    What comes later than the waits here is not seen.
    """
    page = stage.open(VIEWS[name](), screen="phone")
    page.on("dialog", lambda dialog: stage.troubles.append(f"dialog: {dialog.message}"))
    view = start(page)
    view.evaluate(ENTER, text)
    for end in ("Home", "End"):
        for slider in view.get_by_role("slider").all():
            if slider.is_visible():
                slider.press(end)
        page.wait_for_timeout(300)
        button = view.locator("button.ft-primary")
        if button.count() and button.is_enabled():
            button.click()
        page.wait_for_timeout(300)
        assert page.evaluate(WIDTH) <= SCREENS["phone"]["width"]
        shown = view.inner_text().replace(text, "") if text else view.inner_text()
        assert not re.search(r"NaN|undefined|Infinity|\[object", shown)
        assert len(shown.split()) > 10


@pytest.mark.parametrize("name", VIEWS)
def test_still_stands_without_a_script(stage, name):
    page = stage.open(VIEWS[name](), java_script_enabled=False)
    expect(page.get_by_role("img").first).to_be_visible()
    expect(page.locator(".ft-live-start")).to_be_hidden()


@pytest.mark.parametrize("name", VIEWS)
def test_nothing_is_loaded_before_the_start(stage, name):
    page = stage.open(VIEWS[name]())
    loaded = "() => performance.getEntriesByType('resource').map(entry => entry.name)"
    page.wait_for_timeout(500)  # what is loaded later than this is not seen
    assert not [url for url in page.evaluate(loaded) if "_static" in url]


def test_views_of_a_page_share_a_worker(stage):
    page = stage.open(live.next_token(), live.next_token("class "))
    for view in page.locator(".ft-live").all():
        view.get_by_role("button", name="Try it").click()
    expect(page.get_by_label("Your text")).to_have_count(2)
    assert len(page.workers) == 1


@pytest.mark.parametrize(("how", "screen"), [("key", "desktop"), ("click", "desktop")])
def test_focus_goes_into_the_view(stage, how, screen):
    """The button is gone; who pressed it goes on typing."""
    view = start(stage.open(live.next_token(), screen=screen), how)
    expect(view.get_by_label("Your text")).to_be_focused()


# --- the next token -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.7, "top_k": 6},
        {"top_p": 0.5},
        {"min_p": 0.1, "repetition_penalty": 1.5},
        {"temperature": 2.0, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2},
    ],
)
def test_bars_are_the_librarys(stage, settings):
    view = start(stage.open(live.next_token(TEXT, **settings)))
    settled_bars(view)
    ids = tokenizer().encode_document(TEXT)
    assert shown_bars(view) == expected_bars(ids, **settings)
    before, after = distribution(ids, **settings)

    def bits(p):
        return -sum(x * np.log2(x) for x in p.astype(np.float64) if x > 0)

    counts = view.locator(".ft-counts").inner_text()
    n_kept, n_vocab, *entropies = re.findall(r"\d[\d,]*(?:\.\d+)?", counts)
    assert (n_kept, n_vocab) == (f"{np.count_nonzero(after):,}", "1,024")
    assert [float(x) for x in entropies] == pytest.approx([bits(before), bits(after)], abs=0.006)


KNOBS = {
    # label: (setting, keys, the value they lead to, how it is read)
    "Temperature": ("temperature", ["Home"], 0.0, "0, greedy"),
    "Top-k": ("top_k", ["Home", "ArrowRight", "ArrowRight", "ArrowRight"], 3, "3"),
    "Top-p": ("top_p", ["End", "PageDown", "PageDown"], None, None),
    "Min-p": ("min_p", ["Home", "ArrowRight", "ArrowRight"], 0.02, "0.02"),
    "Repetition penalty": ("repetition_penalty", ["Home", "ArrowRight"], 1.05, "1.05"),
}


@pytest.mark.parametrize("label", KNOBS)
def test_slider_by_key(stage, label):
    name, keys, value, words = KNOBS[label]
    view = start(stage.open(live.next_token(TEXT)))
    settled_bars(view)
    knob = view.get_by_role("slider", name=label)
    for key in keys:
        knob.press(key)
    value = float(knob.input_value()) if value is None else value
    assert value != getattr(SamplingParams(), name)
    if words:
        assert knob.get_attribute("aria-valuetext") == words
    settings = {name: int(value) if name == "top_k" else value}
    expected = expected_bars(tokenizer().encode_document(TEXT), **settings)
    assert expected != expected_bars(tokenizer().encode_document(TEXT))
    wait_for_bars(view, expected)
    view.get_by_role("button", name="Reset settings").press("Enter")
    wait_for_bars(view, expected_bars(tokenizer().encode_document(TEXT)))


def test_the_bars_are_explained(stage):
    """What the words say is what is seen: a dropped token is dashed and crossed out."""
    view = start(stage.open(live.next_token(TEXT, top_k=2)))
    settled_bars(view)
    expect(view.locator(".ft-choice > .ft-note")).to_have_text(
        "Pale bar: the model's probability. Strong bar: with your settings. "
        "Dashed, crossed out: dropped by them. A click appends the token."
    )
    looks = view.locator(".ft-bars li").evaluate_all(
        """rows => rows.map(row => [
            getComputedStyle(row.querySelector(".ft-pale")).borderTopStyle,
            getComputedStyle(row.querySelector(".ft-piece")).textDecorationLine,
            row.querySelector(".ft-strong").offsetWidth > 0])"""
    )
    assert looks == [["solid", "none", True]] * 2 + [["dashed", "line-through", False]] * 8


@pytest.mark.parametrize("screen", SCREENS)
def test_slider_by_pointer(stage, screen):
    view = start(stage.open(live.next_token(TEXT), screen=screen))
    settled_bars(view)
    knob = view.get_by_role("slider", name="Top-k")
    box = knob.bounding_box()
    place = {"x": box["width"] * 0.3, "y": box["height"] / 2}
    knob.tap(position=place) if screen == "phone" else knob.click(position=place)
    k = int(knob.input_value())
    assert 20 < k < 40
    expect(view.locator(".ft-counts")).to_contain_text(f"{k} of 1,024 tokens kept")


def test_a_phone_shows_bars_and_temperature_at_once(stage):
    view = start(stage.open(live.next_token(TEXT), screen="phone"))
    settled_bars(view)
    bars = view.get_by_role("list", name="Likeliest next tokens")
    expect(bars.get_by_role("listitem")).to_have_count(6)
    top = bars.bounding_box()["y"]
    knob = view.get_by_role("slider").first
    expect(knob).to_have_accessible_name("Temperature")
    box = knob.bounding_box()
    assert box["y"] + box["height"] - top < SCREENS["phone"]["height"] * 0.75


def wait_for_bars(view, expected) -> None:
    until(view.page, lambda: shown_bars(view) == expected)


@pytest.mark.parametrize("how", ["click", "key", "tap"])
def test_a_token_is_appended_as_it_is(stage, how):
    """The text would be cut into other tokens; the reader's choice stays what it was."""
    ids = tokenizer().encode_document(TEXT)
    before, _ = distribution(ids)
    top = np.argsort(-before, kind="stable")[:10].tolist()
    place, token = next(
        (place, i)
        for place, i in enumerate(top)
        if tokenizer().encode_document(TEXT + tokenizer().decode([i])) != [*ids, i]
    )
    view = start(stage.open(live.next_token(TEXT), screen="phone" if how == "tap" else "desktop"))
    settled_bars(view)
    row = view.get_by_role("button", name=re.compile("^Append")).nth(place)
    {"click": row.click, "tap": row.tap, "key": lambda: row.press("Enter")}[how]()
    field = view.get_by_label("Your text")
    expect(field).to_have_value(TEXT + tokenizer().decode([token]))
    wait_for_bars(view, expected_bars([*ids, token]))
    text = TEXT + tokenizer().decode([token])
    assert expected_bars([*ids, token]) != expected_bars(tokenizer().encode_document(text))
    view.get_by_role("button", name="Undo").click()
    expect(field).to_have_value(TEXT)
    wait_for_bars(view, expected_bars(ids))


@pytest.mark.parametrize(
    ("how", "settings"),
    [
        ("click", {"seed": 3}),
        ("key", {"temperature": 0.0}),
        ("tap", {"temperature": 0.8, "top_k": 20, "repetition_penalty": 1.3, "seed": 2**32 - 1}),
    ],
)
def test_generated_text_is_the_librarys(stage, how, settings):
    given = {**settings, "max_tokens": 30}
    screen = "phone" if how == "tap" else "desktop"
    view = start(stage.open(live.next_token(TEXT, **given), screen=screen))
    settled_bars(view)
    button = view.get_by_role("button", name="Generate")
    {"click": button.click, "tap": button.tap, "key": lambda: button.press("Space")}[how]()
    field = view.get_by_label("Your text")
    expect(field).to_have_value(TEXT + written(TEXT, **given))
    expect(view.get_by_role("status")).to_contain_text(re.compile(r"^30 tokens in [\d.]+ s, \d+"))
    n_typed = len(tokenizer().encode(TEXT))
    expect(view.locator(".ft-behind .ft-typed")).to_have_count(n_typed)
    expect(view.locator(".ft-behind .ft-written")).to_have_count(30)
    assert view.locator(".ft-behind").inner_text().rstrip("\u200b") == field.input_value()
    view.get_by_role("button", name="Undo").click()
    expect(field).to_have_value(TEXT)


def test_generation_is_stopped(stage):
    view = start(stage.open(live.next_token(TEXT, max_tokens=480)))
    settled_bars(view)
    # The page presses Stop itself: from here it could come too late.
    view.get_by_role("button", name="Generate").evaluate(
        """async button => {
            button.click();
            const frame = () => new Promise(requestAnimationFrame);
            while (!document.querySelector(".ft-behind .ft-written")) await frame();
            if (button.innerText !== "Stop") throw Error(`the button says ${button.innerText}`);
            button.click();
        }"""
    )
    expect(view.get_by_role("status")).to_contain_text("You stopped it")
    view.page.evaluate(FRAMES)  # the last tokens are painted a frame later
    n_written = view.locator(".ft-behind .ft-written").count()
    assert 0 < n_written < 480
    view.page.wait_for_timeout(300)  # later ones would show now; on a slow machine unseen
    assert view.locator(".ft-behind .ft-written").count() == n_written


# Frame by frame until the end: the number of the model's tokens, and where the button is.
WRITING = """async button => {
    button.click();
    const view = button.closest(".ft-live");
    const seen = {counts: [], tops: []};
    while (button.innerText !== "Generate" || !seen.counts.at(-1)) {
        await new Promise(requestAnimationFrame);
        seen.counts.push(view.querySelectorAll(".ft-behind .ft-written").length);
        seen.tops.push(button.getBoundingClientRect().top + scrollY);
    }
    return seen;
}"""


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_a_text_is_seen_being_written(stage, motion):
    """A few tokens a frame, and the button stays where it is; all at once if motion disturbs."""
    given = {"max_tokens": 60, "seed": 2}
    view = start(stage.open(live.next_token(TEXT, **given), screen="phone", reduced_motion=motion))
    settled_bars(view)
    seen = view.get_by_role("button", name="Generate").evaluate(WRITING)
    assert len(set(seen["tops"])) == 1
    if motion == "no-preference":
        assert len(set(seen["counts"])) > 10
    expect(view.get_by_label("Your text")).to_have_value(TEXT + written(TEXT, **given))
    expect(view.locator(".ft-behind .ft-written")).to_have_count(60)


def test_the_last_letter_counts(stage):
    """Generate is pressed before the tokens of what was typed are known."""
    view = start(stage.open(live.next_token("import ", max_tokens=12, seed=1)))
    settled_bars(view)
    view.evaluate(
        """(view, text) => {
            const field = view.querySelector("textarea");
            field.value = text;
            field.dispatchEvent(new InputEvent("input"));
            view.querySelector(".ft-primary").click();
        }""",
        TEXT,
    )
    expected = written(TEXT, max_tokens=12, seed=1)
    expect(view.get_by_label("Your text")).to_have_value(TEXT + expected)
    expect(view.locator(".ft-behind .ft-written")).to_have_count(12)


ROBOT = "class Robot:\n    def walk(self, steps):"


@pytest.mark.parametrize("how", ["at once", "settled", "writing"])
def test_no_letter_is_lost(stage, how):
    """Letters come faster than answers, in place of a text: none is overwritten by an older one."""
    view = start(stage.open(live.next_token(TEXT, max_tokens=400)))
    if how != "at once":
        settled_bars(view)
    if how == "writing":
        view.get_by_role("button", name="Generate").click()
    field = view.get_by_label("Your text")
    for _ in range(4):
        field.press("Control+a")
        view.page.keyboard.type(ROBOT)
        wait_for_bars(view, expected_bars(tokenizer().encode_document(ROBOT)))
        expect(field).to_have_value(ROBOT)


def test_an_edit_makes_all_text_the_readers(stage):
    view = start(stage.open(live.next_token(TEXT, max_tokens=10)))
    settled_bars(view)
    view.get_by_role("button", name="Generate").click()
    expect(view.locator(".ft-behind .ft-written")).to_have_count(10)
    field = view.get_by_label("Your text")
    field.press("Control+End")
    field.press_sequentially("# é€")
    text = field.input_value()
    expect(view.locator(".ft-behind .ft-written")).to_have_count(0)
    wait_for_bars(view, expected_bars(tokenizer().encode_document(text)))
    expect(view.get_by_role("button", name="Undo")).to_have_attribute("aria-disabled", "true")


def test_the_button_stops_what_was_begun_before_the_last_end(stage):
    """An edit ends one text and a press begins another before the first one's end is known."""
    page = stage.open(live.next_token(TEXT, temperature=0, max_tokens=400))
    view = start(page)
    settled_bars(view)
    go = view.get_by_role("button", name="Generate")
    go.click()
    expect(view.get_by_role("button", name="Stop")).to_be_visible()
    names = view.evaluate(
        """async view => {
            const [field, go] = ["textarea", "button.ft-primary"].map(n => view.querySelector(n));
            field.value = "class Stack:";
            field.dispatchEvent(new Event("input"));
            go.click();
            const names = [];
            while (names.length < 5) {
                await new Promise(requestAnimationFrame);
                if (/^class Stack:./s.test(field.value)) names.push(go.innerText);
            }
            return names;
        }"""
    )
    assert set(names) == {"Stop"}


def test_a_worker_that_died_is_told(stage):
    """The bars of the settings before would look like those of the new ones."""
    page = stage.open(live.next_token(TEXT))
    view = start(page)
    settled_bars(view)
    page.workers[0].evaluate("() => { setTimeout(() => { throw new Error('out of memory'); }); }")
    until(page, lambda: any("out of memory" in trouble for trouble in stage.troubles))
    page.evaluate(FRAMES)  # the page, too, has heard of it
    view.get_by_label("Temperature").press("ArrowRight")
    expect(view.get_by_role("status")).to_contain_text("cannot run the model")
    assert shown_bars(view) == []
    stage.troubles[:] = [t for t in stage.troubles if "out of memory" not in t]


def test_end_of_text_has_a_name(stage):
    view = start(stage.open(live.next_token(ENDS, temperature=0.0)))
    settled_bars(view)
    expect(view.locator(".ft-bars li").first).to_contain_text("end of text")
    view.get_by_role("button", name="Generate").click()
    expect(view.get_by_role("status")).to_contain_text("The model ended the text here")
    expect(view.get_by_label("Your text")).to_have_value(ENDS)
    expect(view.locator(".ft-behind .ft-end")).to_have_count(1)


def test_an_empty_text_is_the_beginning_of_one(stage):
    view = start(stage.open(live.next_token("")))
    settled_bars(view)
    assert shown_bars(view) == expected_bars([tokenizer().eos_id])


@pytest.mark.parametrize("n_tokens", [511, 512, 1201])
def test_a_full_context_is_told(stage, n_tokens):
    view = start(stage.open(live.next_token(" a" * (n_tokens - 1), max_tokens=5)))
    expect(view.locator(".ft-legend")).to_contain_text(f"{n_tokens:,} of 512 tokens")
    view.get_by_role("button", name="Generate").click()
    words = {
        511: "The model's context is full",
        512: "512 tokens at most",
        1201: "has 1,201. Shorten it.",
    }
    expect(view.get_by_role("status")).to_contain_text(words[n_tokens])


def test_a_full_context_can_be_taken_back(stage):
    view = start(stage.open(live.next_token(" a" * 509, max_tokens=5)))
    settled_bars(view)
    go = view.get_by_role("button", name="Generate")
    go.click()
    expect(view.get_by_role("status")).to_contain_text("The model's context is full")
    go.click()
    expect(view.get_by_role("status")).to_contain_text("Take something back, or shorten it.")


def test_a_wrong_seed_is_marked_and_not_used(stage):
    view = start(stage.open(live.next_token(TEXT, seed=3, max_tokens=8)))
    settled_bars(view)
    seed = view.get_by_label("Seed", exact=True)
    seed.fill("-1")
    expect(seed).to_have_attribute("aria-invalid", "true")
    view.get_by_role("button", name="Generate").click()
    expected = written(TEXT, seed=3, max_tokens=8)
    expect(view.get_by_label("Your text")).to_have_value(TEXT + expected)
    seed.fill("4")
    expect(seed).to_have_attribute("aria-invalid", "false")
    view.get_by_role("button", name="New seed").click()
    expect(view.get_by_role("status")).to_contain_text(f"Seed {seed.input_value()}")


def begin_long(stage):
    """Return a view whose model is writing a long text, and its field."""
    view = start(stage.open(live.next_token(TEXT, max_tokens=480, seed=1)))
    settled_bars(view)
    view.get_by_role("button", name="Generate").click()
    expect(view.locator(".ft-behind .ft-written").first).to_be_attached()
    return view, view.get_by_label("Your text")


def finished(view) -> str:
    """Wait until the model has written all and return the text."""
    text = TEXT + written(TEXT, max_tokens=480, seed=1)
    expect(view.get_by_label("Your text")).to_have_value(text)
    expect(view.get_by_role("button", name="Generate")).to_be_visible()
    return text


SELECTED = "field => field.value.slice(field.selectionStart, field.selectionEnd)"


@pytest.mark.parametrize("part", ["all", "some", "cursor", "cursor at the end"])
def test_a_selection_stays_while_the_model_writes(stage, part):
    """All stays all, so that what is copied, or typed in its place, is what was meant."""
    view, field = begin_long(stage)
    field.focus()
    if part == "all":
        field.press("Control+a")
    else:
        end = "field.value.length"
        places = {"some": "4, 12", "cursor": "4, 4", "cursor at the end": f"{end}, {end}"}
        field.evaluate(f"field => field.setSelectionRange({places[part]})")
    expect(view.get_by_role("button", name="Stop")).to_be_visible()  # it came in time
    text = finished(view)
    expected = {"all": text, "some": text[4:12]}
    assert field.evaluate(SELECTED) == expected.get(part, "")
    cursor = {"cursor": 4, "cursor at the end": len(text)}
    if part in cursor:
        assert field.evaluate("field => field.selectionStart") == cursor[part]


@pytest.mark.parametrize("view", [live.cache, live.speculation])
def test_a_selection_stays_while_the_text_grows(stage, view):
    shown = start(stage.open(view()))
    stays = shown.evaluate(
        """async view => {
            const frame = () => new Promise(requestAnimationFrame);
            const [write] = [...view.querySelectorAll("button")]
                .filter(button => button.textContent === "Write");
            const stop = () => [...view.querySelectorAll("button")]
                .some(button => button.textContent === "Stop" && button.checkVisibility());
            write.click();
            let output;
            while (!(output = view.querySelector("[role=region][aria-label='The text']"))
                    || !output.innerText.trim())
                await frame();
            getSelection().selectAllChildren(output);
            const chosen = getSelection().toString();
            const length = output.innerText.length;
            while (stop()) await frame();
            const now = getSelection().toString();
            return {chosen: chosen.trim(), kept: now.startsWith(chosen),
                    grown: output.innerText.length - length};
        }"""
    )
    assert stays["chosen"] and stays["kept"], stays
    assert stays["grown"] > 100


# A tab that nobody sees has no frames.
HIDING = """() => {
    const own = requestAnimationFrame.bind(window);
    const waiting = [];
    let hidden = false;
    window.requestAnimationFrame = then => hidden ? waiting.push(then) : own(then);
    Object.defineProperty(document, "hidden", {get: () => hidden});
    window.hide = yes => {
        hidden = yes;
        document.dispatchEvent(new Event("visibilitychange"));
        if (!yes) waiting.splice(0).forEach(own);
    };
}"""


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_text_written_unseen_is_there_when_seen(stage, when):
    """The end comes without a frame, and then the first frame shows all."""
    view = start(stage.open(live.next_token(TEXT, max_tokens=480, seed=1)))
    settled_bars(view)
    view.page.evaluate(HIDING)
    if when == "before":
        view.page.evaluate("hide(true)")
    view.get_by_role("button", name="Generate").click()
    if when == "meanwhile":
        expect(view.locator(".ft-behind .ft-written").first).to_be_attached()
        view.page.evaluate("hide(true)")
    expect(view.get_by_role("status")).to_contain_text("480 tokens in")
    assert view.locator(".ft-behind .ft-written").count() < 480
    view.page.evaluate("hide(false)")
    finished(view)
    expect(view.locator(".ft-behind .ft-written")).to_have_count(480)


# While the model writes: frames, paints of the text and of the bars, and what is spoken.
WATCH = """() => {
    const seen = window.seen = {frames: [], text: 0, bars: 0, spoken: 0};
    const count = (name, place) => new MutationObserver(() => { seen[name] += 1; })
        .observe(document.querySelector(place),
            {childList: true, subtree: true, characterData: true, attributes: true});
    count("text", ".ft-behind");
    count("bars", ".ft-bars");
    count("spoken", ".ft-spoken");
    const frame = now => { seen.frames.push(now); requestAnimationFrame(frame); };
    requestAnimationFrame(frame);
}"""


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_writing_paints_once_a_frame(stage, motion, record_property):
    """Far fewer paints than tokens, next to nothing spoken, and bars at rest if motion disturbs."""
    page = stage.open(live.next_token("import os\n", max_tokens=480), reduced_motion=motion)
    view = start(page)
    settled_bars(view)
    page.evaluate(FRAMES)
    page.evaluate(WATCH)
    view.get_by_role("button", name="Generate").click()
    expect(view.get_by_role("status")).to_contain_text("per second")
    seen = page.evaluate("() => window.seen")
    gaps = np.diff(seen["frames"])
    record_property(
        "measured",
        f"next_token writing ({motion}): {1000 / np.median(gaps):.0f} frames per second, "
        f"longest gap {gaps.max():.0f} ms; {view.get_by_role('status').inner_text()}",
    )
    assert 0 < seen["text"] <= len(seen["frames"])
    assert seen["spoken"] <= 3
    if motion == "reduce":
        assert seen["bars"] <= 2  # the last one, after the end


# --- when files are missing -----------------------------------------------------------------------


@contextmanager
def harmed(stage, name: str, how: str):
    """Remove, cut or alter a file of the site, and mend it afterwards."""
    path = stage.assets / name
    sound = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(sound[: len(sound) // 2])
    else:
        content = bytearray(gzip.decompress(sound))
        content[-1] ^= 1
        path.write_bytes(gzip.compress(bytes(content)))
    yield
    path.write_bytes(sound)


@pytest.mark.parametrize("how", ["missing", "cut", "altered"])
@pytest.mark.parametrize("name", ["target/model.safetensors.gz", "tokenizer.json.gz"])
def test_a_harmed_file_is_told_and_tried_again(stage, name, how):
    page = stage.open(live.next_token(TEXT))
    view = page.locator(".ft-live")
    with harmed(stage, name, how):
        view.get_by_role("button", name="Try it").click()
        message = view.get_by_role("alert")
        expect(message).to_contain_text(name.removesuffix(".gz"))
        expect(view.get_by_role("img")).to_be_visible()  # the figure stands
        again = view.get_by_role("button", name="Try again")
        expect(again).to_be_focused()
    again.press("Enter")
    settled_bars(view)
    assert shown_bars(view) == expected_bars(tokenizer().encode_document(TEXT))
    stage.troubles[:] = [t for t in stage.troubles if "404" not in t]


def test_a_missing_script_is_told_and_tried_again(stage):
    page = stage.open(live.next_token(TEXT))
    view = page.locator(".ft-live")
    with harmed(stage, "live.js", "missing"):
        view.get_by_role("button", name="Try it").click()
        expect(view.get_by_role("alert")).to_contain_text("could not be loaded")
    view.get_by_role("button", name="Try it").click()
    settled_bars(view)
    stage.troubles[:] = [t for t in stage.troubles if "404" not in t]


def test_a_second_visit_loads_no_weights(stage):
    """After a reload, and in another tab, they come from the browser; old ones are deleted."""
    page = stage.open(live.next_token(TEXT))
    page.evaluate("async () => { await caches.open('first-token-live-old'); }")
    settled_bars(start(page))
    assert page.evaluate("() => caches.keys()") == [f"first-token-live-{assets.version()}"]
    for other in (page, page.context.new_page()):
        other.goto(page.url)
        asked = []
        other.on("request", lambda request, asked=asked: asked.append(request.url))
        settled_bars(start(other))
        assert not [url for url in asked if url.endswith(".gz")]


def test_memory_is_small(stage, record_property):
    """All that the models take, both loaded and the longest text written."""
    page = stage.engine(draft=True)
    page.evaluate(
        "async () => { await engine.write({ids: [0], params: {}, max_tokens: 511}).done; }"
    )
    used = page.evaluate("() => engine.stats()")["memory_bytes"]
    record_property("measured", f"memory of both models and their caches: {used / 1e6:.0f} MB")
    assert 0 < used <= MAX_MEMORY_BYTES
