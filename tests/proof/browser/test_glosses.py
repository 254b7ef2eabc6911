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
    """The page stays where it is; the formula is typeset; elsewhere the card goes."""
    page = visit.page
    word = page.locator("#explain [data-card=gloss-letter-alpha]")
    word.scroll_into_view_if_needed()
    height = page.evaluate("document.documentElement.scrollHeight")
    word.hover()
    expect(page.locator(CARD)).to_contain_text("Acceptance rate of a drafted token.")
    expect(page.locator(f"{CARD} mjx-container")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollHeight") == height
    page.locator(f"{CARD} a").first.hover()
    # Longer than a card waits for a mouse that has left it. On a slow machine it would go unseen.
    page.wait_for_timeout(400)
    expect(page.locator(CARD)).to_be_visible()
    page.mouse.move(5, 5)
    expect(page.locator(CARD)).to_have_count(0)


def test_keys_lead_from_word_to_word(visit):
    """One stop for a section; arrows; Enter; Escape; Tab into the card and out of it."""
    page = visit.page
    sections = page.locator("article section:has(> h2):has(a.ft-gloss)").count()
    expect(page.locator("a.ft-gloss[tabindex='0']")).to_have_count(sections)
    first, second = words(page).nth(0), words(page).nth(1)
    page.keyboard.press("Tab")  # from here on focus is that of a keyboard
    first.focus()
    expect(page.locator(CARD)).to_be_visible()
    expect(first).to_have_attribute("aria-expanded", "true")
    expect(first).to_have_accessible_description(re.compile(r"\w+ \w+"))
    page.keyboard.press("ArrowRight")
    expect(second).to_be_focused()
    expect(first).to_have_attribute("tabindex", "-1")
    expect(page.locator(CARD)).to_have_count(1)
    page.keyboard.press("Tab")
    expect(page.locator(f"{CARD} a").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(second).to_be_focused()
    expect(page.locator(CARD)).to_have_count(0)
    page.keyboard.press("Enter")
    expect(page.locator(CARD)).to_be_visible()
    page.keyboard.press("Shift+Tab")
    expect(page.locator(CARD)).to_have_count(0)


@pytest.mark.parametrize("visit", ["phone"], indirect=True)
def test_a_tap_shows_it_and_one_elsewhere_closes_it(visit):
    page = visit.page
    words(page).first.tap()
    expect(page.locator(CARD)).to_be_visible()
    assert page.url.endswith(PATH)
    page.locator("#explain h3").first.tap()
    expect(page.locator(CARD)).to_have_count(0)
    words(page).first.tap()
    page.locator(f"{CARD} a", has_text=re.compile("Glossary|Notation")).tap()
    page.wait_for_url(re.compile(r"book/(glossary|notation)\.html#"))


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


def test_without_a_script_it_is_a_link(browser, address):
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(address + PATH)
        word = words(page).first
        expect(word).to_have_role("link")
        name = word.get_attribute("href").partition("#")[2]
        word.click()
        expect(page.locator(f"[id='{name}']")).to_be_in_viewport()


def test_why_is_my_second_request_slow(browser, address):
    """A new reader's way: the index, the group, the entry, the section that answers."""
    with Visit(browser, address, screen="phone") as visit:
        page = visit.open("book/index.html")
        page.get_by_role("link", name="It is slow", exact=True).tap()
        entry = page.locator("#questions-it-is-slow dt", has_text="second request slow, why")
        expect(entry).to_be_in_viewport()
        entry.locator("xpath=following-sibling::dd[1]").get_by_role("link").first.tap()
        page.wait_for_url("**/A_debugging.html#the-second-request-is-slow")
        expect(page.locator("#the-second-request-is-slow h3")).to_be_in_viewport()
