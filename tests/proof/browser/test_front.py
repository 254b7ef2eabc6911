"""The first page of the built site: the model writes, also without a script; cards."""

import re

import pytest
from playwright.sync_api import expect

from browser.visit import CHAPTERS, FRONT, SCREENS, Visit

SHOWN = """() => [...document.querySelectorAll(".ft-recorded span")]
    .filter(span => getComputedStyle(span).opacity > 0).length"""
FRAMES = """() => [...document.querySelectorAll(".ft-guesses > span")]
    .map((frame, i) => getComputedStyle(frame).visibility === "visible" ? i : -1)
    .filter(i => i >= 0)"""
# The writing from its start, held; AT then shows it as it is after some time of its own.
HOLD = """() => {
    const writing = document.querySelector(".ft-writing"), again = writing.cloneNode(true);
    writing.replaceWith(again);
    window.film = again.getAnimations({subtree: true});
    window.film.forEach(animation => animation.pause());
    return window.film.length;
}"""
AT = "(ms) => window.film.forEach(animation => { animation.currentTime = ms; })"
STEP = """getComputedStyle(document.querySelector(".ft-writing"))
    .getPropertyValue("--step").trim()"""


def opened(browser, address, **options):
    """Return a page of its own that shows the first page, with the motion that `options` say."""
    page = browser.new_context(viewport=SCREENS["desktop"], **options).new_page()
    page.goto(address + FRONT)
    return page


@pytest.mark.parametrize("script", [True, False])
def test_tokens_come_one_by_one_with_the_guesses_for_each(browser, address, script):
    """While n tokens stand there, the guesses are those for the next one, in any browser."""
    page = opened(browser, address, java_script_enabled=script, reduced_motion="no-preference")
    step = float(page.evaluate(STEP).removesuffix("s")) * 1000
    n_tokens = page.locator(".ft-recorded span").count()
    assert page.evaluate(HOLD) > n_tokens >= 30
    for n in (0, 1, n_tokens // 2, n_tokens):
        page.evaluate(AT, (n + 0.5) * step)
        assert page.evaluate(SHOWN) == n
        assert page.evaluate(FRAMES) == [n]
    page.context.close()


@pytest.mark.parametrize("script", [True, False])
def test_who_wants_no_motion_sees_all_at_once(browser, address, script):
    page = opened(browser, address, java_script_enabled=script, reduced_motion="reduce")
    assert page.evaluate(HOLD) == 0
    n_tokens = page.locator(".ft-recorded span").count()
    assert page.evaluate(SHOWN) == n_tokens
    assert page.evaluate(FRAMES) == [n_tokens]
    expect(page.locator(".ft-pause")).to_be_hidden()
    expect(page.locator(".ft-live-start").first).to_be_visible(visible=script)
    page.context.close()


def test_a_screen_reader_gets_the_text_once(browser, address):
    page = opened(browser, address)
    written = page.locator(".ft-recorded").text_content()
    tree = page.locator(".ft-live").first.aria_snapshot()
    assert len(re.findall(r"def open_file", tree)) == written.count("def open_file") == 1
    assert "Likeliest after this text" in tree
    page.context.close()


def test_every_chapter_has_a_card_that_leads_there(browser, address):
    """The whole of a card is its link."""
    with Visit(browser, address) as visit:
        page = visit.open(FRONT)
        cards = page.locator(".ft-card")
        links = cards.locator("a").evaluate_all("links => links.map(link => link.href)")
        assert sorted(links) == sorted(address + path for path in CHAPTERS)
        cards.last.click(position={"x": 12, "y": 12})
        page.wait_for_url(links[-1])
