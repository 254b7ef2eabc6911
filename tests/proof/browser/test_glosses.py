"""Words that show what they mean, in a real browser: by mouse, keys and touch, in every corner."""

import re

import pytest
from playwright.sync_api import expect

from browser.barriers import barriers
from browser.visit import CHAPTERS, SCREENS, SETTLED, Visit

PATH = "notebooks/12_speculative.html"
CARD = ".ft-gloss-card"
WORDS_AND_CARD = {"include": [["a.ft-gloss"], [CARD]]}
TO_THE_EDGE = """([word, top]) => scrollTo(0,
    word.getBoundingClientRect().top + scrollY - (top ? 100 : innerHeight - 60))"""


@pytest.fixture
def visit(request, browser, address):
    if PATH not in CHAPTERS:
        pytest.skip("no chapter 12 in _build/html: run `make book` first")
    screen = getattr(request, "param", "desktop")
    with Visit(browser, address, screen=screen) as visit:
        visit.open(PATH)
        yield visit


def words(page):
    """Return the words of the section Explain, as its arrows know them."""
    return page.locator("#explain a.ft-gloss")


def test_a_mouse_shows_it_and_may_enter_it(visit):
    """The formula is typeset; elsewhere the card goes."""
    page = visit.page
    page.locator("#explain [data-card=gloss-letter-alpha]").hover()
    expect(page.locator(CARD)).to_contain_text("Acceptance rate of a drafted token.")
    expect(page.locator(f"{CARD} mjx-container")).to_be_visible()
    page.locator(f"{CARD} a").first.hover()
    expect(page.locator(CARD)).to_be_visible()
    page.mouse.move(5, 5)
    expect(page.locator(CARD)).to_have_count(0)


def test_keys_lead_from_word_to_word(visit):
    """One stop for a section; arrows; Enter; Escape; Tab into the card and out of it."""
    page = visit.page
    first, second = words(page).nth(0), words(page).nth(1)
    page.keyboard.press("Tab")  # from here on focus is that of a keyboard
    first.focus()
    expect(page.locator(CARD)).to_be_visible()
    expect(first).to_have_attribute("aria-expanded", "true")
    expect(first).to_have_accessible_description(re.compile(r"\w+ \w+"))
    page.keyboard.press("ArrowRight")
    expect(second).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator(f"{CARD} a").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(second).to_be_focused()
    expect(page.locator(CARD)).to_have_count(0)


@pytest.mark.parametrize("visit", ["phone"], indirect=True)
def test_a_tap_shows_it_and_one_elsewhere_closes_it(visit):
    page = visit.page
    words(page).first.tap()
    expect(page.locator(CARD)).to_be_visible()
    assert page.url.endswith(PATH)
    page.locator("#explain h3").first.tap()
    expect(page.locator(CARD)).to_have_count(0)


@pytest.mark.parametrize("visit", SCREENS, indirect=True)
def test_it_is_whole_and_no_barrier(visit):
    """At the top and at the bottom of the window, for every word, and in both themes."""
    page = visit.page
    for index, word in enumerate(words(page).all()):
        page.evaluate(TO_THE_EDGE, [word.element_handle(), index % 2])
        word.evaluate("word => word.click()")
        box = page.locator(CARD).bounding_box()
        size = page.viewport_size
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= size["width"]
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= size["height"]
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        page.evaluate(SETTLED)
        assert barriers(page, WORDS_AND_CARD) == []
