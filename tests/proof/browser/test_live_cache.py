"""The view of the cache: the library's text and bytes, with the cache and without."""

import re

import pytest
from playwright.sync_api import Page, expect

from browser.barriers import barriers
from browser.visit import SCREENS
from firsttoken import live
from firsttoken.architectures import from_hf_config
from firsttoken.generate import generate
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.llama import load_model
from firsttoken.paths import data_path
from firsttoken.tokenizer import tokenizer
from proof.browser.test_pages import WIDTH

ARCH = from_hf_config(data_path("model/target/config.json"))
PROMPT = "def read(path):\n"


def started(stage, view, **options) -> Page:
    page = stage.open(view, **options)
    page.locator(".ft-live-start").click()
    return page


def write(page: Page) -> None:
    """Write a text and wait for its end."""
    page.get_by_role("button", name="Write", exact=True).click()
    expect(page.get_by_role("button", name="Write", exact=True)).to_be_visible(timeout=60_000)


def figure(page: Page, name: str) -> float:
    return float(page.locator(f"data[data-name={name}]").get_attribute("value"))


def text(page: Page) -> str:
    return page.locator(".ft-output").evaluate("node => node.textContent")


@pytest.mark.parametrize("prompt", [live.cache().text, "def main():", "def read_lines(path):\n"])
def test_the_first_text_that_a_reader_sees_goes_round_in_no_circle(stage, prompt):
    """With the settings that chapter 04 leaves as they are."""
    view = live.cache(prompt)
    run = generate(load_model("target"), tokenizer().encode_document(prompt), view.params)
    assert len(run.ids) == 200
    assert len(set(run.ids)) > 60  # with seed 0, 12 after `def main():`
    page = started(stage, view)
    write(page)
    assert text(page) == prompt + tokenizer().decode(run.ids)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_both_ways_write_the_library_s_text(stage, temperature):
    """The same text with the cache and without, that of `generate`; bytes are the formula's."""
    n = 24
    view = live.cache(PROMPT, max_tokens=n, temperature=temperature, seed=7)
    ids = tokenizer().encode_document(PROMPT)
    expected = generate(load_model("target"), ids, view.params)
    assert len(expected.ids) == n  # the sums below count on it
    said = PROMPT + tokenizer().decode(expected.ids)
    page = started(stage, view)

    write(page)
    assert text(page) == said
    n_kept = len(ids) + n - 1  # the last token has been chosen, not read
    assert figure(page, "formula") == kv_cache_bytes(ARCH, n_kept, dtype="fp32")
    assert figure(page, "filled") == figure(page, "formula")
    # Room for the whole text is allocated at once.
    assert figure(page, "allocated") == kv_cache_bytes(ARCH, len(ids) + n, dtype="fp32")
    written_out = f"2 · 8 layers · 2 KV heads · 32 · {n_kept} tokens · 4 bytes"
    expect(page.locator("data[data-name=formula]")).to_contain_text(written_out)
    again = sum(range(len(ids), len(ids) + n))
    work = page.get_by_text("Positions sent through the model")
    expect(work).to_contain_text(f"model: {n_kept}. Without a cache: {again:,}")
    expect(page.locator("data[data-name=off]")).to_have_text("not yet")

    page.get_by_role("button", name="Cache").click()
    write(page)
    assert text(page) == said
    assert [figure(page, name) for name in ("formula", "filled", "allocated")] == [0, 0, 0]
    expect(work).to_contain_text(f"model: {again:,}. With a cache: {n_kept},")
    ratio = figure(page, "on") / figure(page, "off")
    said_ratio = page.locator(".ft-verdict").inner_text().removesuffix(" times as fast with it.")
    assert float(said_ratio.replace(",", "")) == pytest.approx(ratio, rel=0.06)  # two digits
    expect(page.get_by_role("status")).to_contain_text("The text is the same")


def test_picture_and_chart_say_what_they_show(stage):
    """Columns are tokens: as many as are kept, and with nothing kept, all are computed."""
    page = started(stage, live.cache(PROMPT, max_tokens=20, seed=1))
    write(page)
    n_prompt = len(tokenizer().encode_document(PROMPT))
    picture, chart = page.locator(".ft-picture svg"), page.locator(".ft-chart svg")
    kept = f"keys and values of {n_prompt + 19} positions are kept, the first {n_prompt}"
    expect(picture).to_have_attribute("aria-label", re.compile(kept))
    widths = [
        float(picture.locator(f".ft-{name}").get_attribute("width"))
        for name in ("empty", "prompt", "decode", "computed")
    ]
    assert widths == [n_prompt + 20, n_prompt, 19, 1]
    assert chart.locator(".ft-on").get_attribute("d").count("M") == 20
    page.get_by_role("button", name="Cache").click()
    write(page)
    widths = [
        float(picture.locator(f".ft-{name}").get_attribute("width"))
        for name in ("prompt", "decode", "computed")
    ]
    assert widths == [0, 0, n_prompt + 19]
    assert chart.locator(".ft-off").get_attribute("d").count("M") == 20


def test_a_run_can_be_stopped_and_the_switch_waits_for_the_next(stage):
    page = started(stage, live.cache(PROMPT, max_tokens=400, use_cache=False))
    page.get_by_role("button", name="Write", exact=True).click()
    expect(page.locator(".ft-seen")).to_contain_text("Writing without a cache")
    page.get_by_role("button", name="Cache").click()
    expect(page.locator("[role=status]")).to_contain_text("From the next text on: Cache on")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Write", exact=True)).to_be_visible()
    assert page.locator(".ft-chart .ft-off").get_attribute("d").count("M") < 400
    assert page.locator(".ft-chart .ft-on").get_attribute("d") == ""


def test_a_text_that_is_too_long_is_refused_in_words(stage):
    page = started(stage, live.cache(PROMPT, max_tokens=20))
    page.get_by_label("Your text").fill(" a" * 600)
    page.get_by_role("button", name="Write", exact=True).click()
    expect(page.locator("[role=status]")).to_contain_text("512")
    expect(page.get_by_role("button", name="Write", exact=True)).to_be_enabled()


def test_texts_that_begin_otherwise_are_not_compared(stage):
    page = started(stage, live.cache(PROMPT, max_tokens=20))
    write(page)
    page.get_by_label("Your text").fill("class A:\n")
    page.get_by_role("button", name="Cache").click()
    write(page)
    expect(page.locator("data[data-name=on]")).to_have_text("not yet")
    expect(page.locator(".ft-verdict")).to_have_text("")


@pytest.mark.parametrize("screen", SCREENS)
def test_is_usable_by_everyone(stage, screen):
    """No barrier in either theme, nothing too wide, and by keyboard."""
    page = started(stage, live.cache(PROMPT, max_tokens=20), screen=screen)
    page.get_by_role("button", name="Write", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.locator("[role=status]")).to_contain_text("tokens with the cache")
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        assert barriers(page) == [], theme
    assert page.evaluate(WIDTH) <= SCREENS[screen]["width"]
