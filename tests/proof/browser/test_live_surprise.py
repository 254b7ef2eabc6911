"""How much a text surprises the model, live: the library's losses, and all that a file can be."""

import gzip
import math
import re

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from browser.barriers import barriers
from firsttoken import live
from firsttoken.evaluation import bits_per_byte, token_losses
from firsttoken.live.stills import target
from firsttoken.paths import data_path
from firsttoken.sampling import softmax
from firsttoken.tokenizer import tokenizer

TOKENIZER = tokenizer()
HELD_OUT = data_path("heldout.txt").read_text("utf-8")
LONG = HELD_OUT[:3500]  # more than two contexts
TEXTS = {
    "a listing": live.surprise().text,
    "no ASCII": "größe = '🙂'\n\tprint(größe)\r\n日本",
    "one token": "def",
    "longer than the context": LONG,
}

WIDE_TEXTS = {
    "a long line": "x = [" + ", ".join(f"item_{i}" for i in range(24)) + "]",
    "a long word": "honorificabilitudinitatibus" * 9,
    "200 lines": "".join(HELD_OUT.splitlines(keepends=True)[:200]),
}
# What in the view ends beyond its frame, unless it is in a box that scrolls or cuts what it holds.
TOO_WIDE = """view => {
    const end = view.getBoundingClientRect().right;
    const cut = node => node !== view
        && (getComputedStyle(node).overflowX !== "visible" || cut(node.parentElement));
    return [...view.querySelectorAll("*")]
        .filter(node => node.getBoundingClientRect().right > end && !cut(node.parentElement))
        .map(node => node.className);
}"""


def started(stage, *args, **options) -> Page:
    page = stage.open(live.surprise(*args), **options)
    page.click(".ft-live-start")
    expect(page.locator(".ft-whole .ft-seen")).not_to_be_empty()
    return page


def tokens(page: Page):
    return page.locator(".ft-losses [role=option]")


def shown_bits(page: Page) -> np.ndarray:
    labels = tokens(page).evaluate_all("all => all.map(each => each.getAttribute('aria-label'))")
    return np.array([float(re.search(r"([\d.]+) bits$", label)[1]) for label in labels])


def references(page: Page) -> dict[str, float]:
    """Return {whose: bits per byte} as the bars say, in their order."""
    lines = page.locator(".ft-references li").all()
    return {
        line.locator("span").first.inner_text(): float(line.locator("span").last.inner_text())
        for line in lines
    }


def library_bits(text: str) -> np.ndarray:
    ids = [TOKENIZER.eos_id, *TOKENIZER.encode(text)]
    return token_losses(target(), ids) / math.log(2)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_bits_are_those_of_the_library(stage, text):
    page = started(stage, text)
    bits = library_bits(text)
    expect(tokens(page)).to_have_count(len(bits))
    # Two digits behind the point, one from ten bits on.
    np.testing.assert_allclose(shown_bits(page), bits, atol=0.052)
    assert abs(shown_bits(page) - bits)[bits < 9.9].max(initial=0) < 0.006
    summary = page.locator(".ft-whole .ft-seen").inner_text()
    per_byte = bits_per_byte(target(), TOKENIZER, text)
    assert abs(float(summary.split()[0]) - per_byte) < 0.0051
    assert f"{len(bits):,} token" in summary and f"{len(text.encode()):,} byte" in summary

    shown = references(page)
    assert list(shown.values()) == sorted(shown.values())
    held_out = live.surprise().settings["held_out"]
    assert abs(shown["the model, on Python new to it"] - held_out) < 0.0051
    assert abs(shown["the model, on your text"] - per_byte) < 0.0051
    packed = 8 * len(gzip.compress(text.encode())) / len(text.encode())
    assert (
        abs(shown["gzip and its header, on your text"] / packed - 1) < 0.1
    )  # two writers of one format
    assert shown["all bytes alike"] == 8


@pytest.mark.parametrize("text", ["def", LONG], ids=["gzip is worst", "all bytes alike is worst"])
def test_bars_are_as_long_as_their_numbers(stage, text):
    """Also for a gzip file whose header is longer than the text: no bar is cut off."""
    page = started(stage, text)
    expect(page.locator(".ft-references li")).to_have_count(4)
    shown = references(page)
    assert (max(shown, key=shown.get) == "all bytes alike") == (text == LONG)
    shares = page.locator(".ft-references .ft-bar").evaluate_all(
        "all => all.map(each => each.offsetWidth / each.parentElement.clientWidth)"
    )
    np.testing.assert_allclose(shares, np.array([*shown.values()]) / max(shown.values()), atol=0.01)


def test_colours_rise_with_the_bits(stage):
    page = started(stage, LONG)
    bits = library_bits(LONG)
    levels = tokens(page).evaluate_all("all => all.map(each => Number(each.dataset.level))")
    expected = np.searchsorted([0.5, 1, 2, 4, 8], bits, side="right")
    clear = np.min(abs(bits[:, None] - [0.5, 1, 2, 4, 8]), axis=1) > 1e-3
    assert (np.array(levels) == expected)[clear].all()
    alpha = "each => Number(getComputedStyle(each).backgroundColor.match(/[\\d.]+(?=\\)$)/)[0])"
    looks = page.locator(".ft-levels .ft-token").evaluate_all(f"all => all.map({alpha})")
    assert looks == sorted(set(looks)) and len(looks) == 6


@pytest.mark.parametrize("index", [0, 400, 900])
def test_what_else_could_have_come(stage, index):
    """In the window that the loss came from: half a context is read again, no more."""
    page = started(stage, LONG)
    ids = [TOKENIZER.eos_id, *TOKENIZER.encode(LONG)]
    token = ids[index + 1]
    n, window = len(ids) - 1, 512
    starts = [*range(0, n - window, window // 2), n - window]
    start = next(start for start in starts if index < start + window)
    logits = target()([ids[start : index + 1]])[0, -1]
    p = softmax(logits.astype(np.float64))
    tokens(page).nth(index).click()
    about = page.locator(".ft-about")
    expect(about).to_contain_text(re.compile("It was"))
    rank = int((p > p[token]).sum()) + 1
    expect(about).to_contain_text("the likeliest token" if rank == 1 else f"number {rank} of 1024")
    others = [i for i in np.argsort(-p, kind="stable") if i != token][:3]
    shown = [re.search(r"(<?)([\d.]+) %", t) for t in about.locator("li").all_inner_texts()]
    percents = [0.05 if small else float(number) for small, number in map(re.Match.groups, shown)]
    np.testing.assert_allclose(percents, 100 * p[others], atol=0.06)
    # The library's own loss came from the very same distribution.
    assert abs(-math.log2(p[token]) - library_bits(LONG)[index]) < 1e-3


def test_the_most_surprising_come_first_and_are_found(stage):
    page = started(stage)
    bits = library_bits(live.surprise().text)
    entries = page.locator(".ft-most li")
    shown = [float(re.search(r"([\d.]+) bits", text)[1]) for text in entries.all_inner_texts()]
    np.testing.assert_allclose(shown, np.sort(bits)[::-1][:10], atol=0.052)
    entries.first.get_by_role("button").click()
    expect(tokens(page).nth(int(bits.argmax()))).to_be_focused()
    expect(page.locator(".ft-about")).to_contain_text("It was number")
    page.keyboard.press("ArrowRight")
    expect(tokens(page).nth(int(bits.argmax()) + 1)).to_have_attribute("aria-selected", "true")
    assert page.locator(".ft-losses [tabindex='0']").count() == 1


@pytest.mark.parametrize("text", WIDE_TEXTS.values(), ids=WIDE_TEXTS)
def test_no_text_is_too_wide_for_a_phone(stage, text):
    """Nor are the lines that are laid out only when they are scrolled to."""
    page = started(stage, screen="phone")
    view, losses = page.locator(".ft-live"), page.locator(".ft-losses")
    # The text is read while the tokens are far from the screen: they are not laid out yet.
    page.add_style_tag(content="main { padding-block: 5000px }")
    page.evaluate("scrollTo(0, 0)")
    page.get_by_label("Your text").evaluate(
        "(field, text) => { field.value = text; field.dispatchEvent(new Event('input')); }", text
    )
    expect(tokens(page)).to_have_count(len(TOKENIZER.encode(text)))
    assert view.evaluate(TOO_WIDE) == []
    for place in (page.get_by_label("Your text"), losses, page.locator(".ft-most li").last):
        place.scroll_into_view_if_needed()
        page.evaluate("() => new Promise(done => setTimeout(done, 100))")
        assert view.evaluate(TOO_WIDE) == []
        assert losses.evaluate("box => box.scrollWidth <= box.clientWidth")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_most_surprising_stand_behind_whole_words(stage):
    """On a phone too, from the left edge on, and nothing of them is cut off."""
    text = WIDE_TEXTS["a long line"]
    page = started(stage, text, screen="phone")
    contexts = page.locator(".ft-most .ft-context").all_text_contents()
    words = [context for context in contexts if re.match(r"\w", context)]
    assert words
    assert all(re.search(rf"\b{re.escape(context)}", text) for context in words)
    lefts = page.locator(".ft-most button").evaluate_all(
        "all => all.map(each => each.firstElementChild.getBoundingClientRect().left"
        " - each.getBoundingClientRect().left)"
    )
    assert max(lefts) < 12
    for part in (".ft-most button", ".ft-most .ft-place"):
        fits = page.locator(part).evaluate_all("a => a.map(e => e.scrollWidth <= e.clientWidth)")
        assert all(fits)


def test_no_text_and_then_some(stage):
    page = started(stage, "")
    expect(page.locator(".ft-whole .ft-seen")).to_have_text("There is no text yet.")
    assert set(references(page)) == {"the model, on Python new to it", "all bytes alike"}
    page.get_by_label("Your text").fill("import os\n")
    expect(tokens(page)).to_have_count(3)
    np.testing.assert_allclose(shown_bits(page), library_bits("import os\n"), atol=0.006)


def give(page: Page, name: str, content: bytes) -> None:
    page.locator("input[type=file]").set_input_files(
        {"name": name, "mimeType": "application/octet-stream", "buffer": content}
    )


def test_files(stage):
    """Text is taken as UTF-8; what is none is refused by name, and the page stays as it was."""
    page = started(stage)
    before = page.get_by_label("Your text").input_value()
    for name, content in {
        "picture.png": b"\x89PNG\r\n\x1a\n\0\0",
        "latin.txt": "größe".encode("latin-1"),
        "cut.txt": "größe".encode()[:3],
        "zeros.txt": b"a\0b",
    }.items():
        give(page, name, content)
        expect(page.get_by_role("alert")).to_contain_text(f"{name} holds no text in UTF-8")
        assert page.get_by_label("Your text").input_value() == before
    give(page, "größe.py", "größe = 1\n".encode())
    expect(page.get_by_label("Your text")).to_have_value("größe = 1\n")
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator(".ft-whole .ft-seen")).to_contain_text("12 bytes")


def test_a_large_file_is_cut_and_can_be_stopped(stage):
    """64 KB, and not half a character; while it is read, the page goes on answering."""
    page = started(stage)
    content = ("x" + "é" * 40_000).encode()
    give(page, "large.txt", content)
    expect(page.get_by_role("alert")).to_contain_text("first 64 KB")
    kept = page.get_by_label("Your text").input_value()
    assert kept == content[: 65_536 - 1].decode()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".ft-whole .ft-seen")).to_contain_text("Stopped")
    expect(page.get_by_role("progressbar")).to_be_hidden()
    page.get_by_label("Your text").fill("import os\n")
    expect(tokens(page)).to_have_count(3)


def test_a_new_text_takes_the_place_of_the_one_that_is_read(stage):
    page = started(stage)
    give(page, "long.py", HELD_OUT[:40_000].encode())
    expect(page.get_by_role("progressbar")).to_be_visible()
    page.get_by_label("Your text").fill("import os\n")
    expect(tokens(page)).to_have_count(3)
    expect(page.locator(".ft-whole .ft-seen")).to_contain_text("10 bytes")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("screen", ["desktop", "phone"])
def test_everybody_can_use_it(stage, theme, screen):
    page = started(stage, theme=theme, screen=screen)
    page.locator(".ft-most button").first.click()
    expect(page.locator(".ft-about")).to_contain_text("It was")
    assert barriers(page, "main") == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if screen == "phone":
        sizes = page.locator("button:visible").evaluate_all(
            "all => all.map(each => [each.offsetWidth, each.offsetHeight])"
        )
        assert np.min(sizes) >= 40
