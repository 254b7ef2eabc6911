"""The first page of the built site: the model writes, also without a script; doors, cards."""

import gzip
import re

import pytest
from playwright.sync_api import expect

from browser.visit import CHAPTERS, FRONT, SCREENS, SITE, Visit
from firsttoken.live import assets

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
MOVED = """() => new Promise(done => {
    let shift = 0;
    new PerformanceObserver(list => list.getEntries().forEach(e => { shift += e.value; }))
        .observe({type: "layout-shift", buffered: true});
    document.getAnimations().forEach(animation => animation.finish());
    setTimeout(() => done(shift), 300);
})"""


def opened(browser, address, **options):
    """Return a page of its own that shows the first page, with the motion that `options` say."""
    page = browser.new_context(viewport=SCREENS["desktop"], **options).new_page()
    page.goto(address + FRONT)
    return page


def step_ms(page) -> float:
    """Return how long a token takes."""
    step = page.locator(".ft-writing").evaluate(
        "element => getComputedStyle(element).getPropertyValue('--step')"
    )
    return 1000 * float(step.strip().removesuffix("s"))


@pytest.mark.parametrize("script", [True, False])
def test_tokens_come_one_by_one_with_the_guesses_for_each(browser, address, script):
    """While n tokens stand there, the guesses are those for the next one, in any browser."""
    page = opened(browser, address, java_script_enabled=script, reduced_motion="no-preference")
    step, n_tokens = step_ms(page), page.locator(".ft-recorded span").count()
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
    expect(page.locator(".ft-live-start")).to_be_visible(visible=script)
    page.context.close()


def test_a_key_pauses_the_writing_and_lets_it_go_on(browser, address):
    page = opened(browser, address, reduced_motion="no-preference")
    states = """() => [...new Set(document.querySelector(".ft-writing")
        .getAnimations({subtree: true}).map(animation => animation.playState))]"""
    pause = page.get_by_role("checkbox", name="Pause")
    pause.focus()
    page.keyboard.press("Space")
    expect(pause).to_be_checked()
    assert page.evaluate(states) == ["paused"]
    page.keyboard.press("Space")
    assert "paused" not in page.evaluate(states)
    page.context.close()


def test_nothing_moves_but_the_writing(browser, address):
    """No layout shift while the page comes and while the model writes."""
    page = opened(browser, address, reduced_motion="no-preference")
    page.wait_for_load_state("networkidle")
    assert page.evaluate(MOVED) < 0.01
    page.context.close()


def test_a_screen_reader_gets_the_text_once(browser, address):
    page = opened(browser, address)
    written = page.locator(".ft-recorded").text_content()
    tree = page.locator(".ft-live").aria_snapshot()
    assert len(re.findall(r"def open_file", tree)) == written.count("def open_file") == 1
    assert "Likeliest after this text" in tree
    page.context.close()


def test_the_model_is_loaded_when_asked_for_and_not_before(browser, address):
    """The live view then begins with the text that the recording went on from."""
    with Visit(browser, address) as visit:
        asked = []
        visit.page.on("request", lambda request: asked.append(request.url))
        page = visit.open(FRONT)
        prompt = page.locator(".ft-recorded b").text_content()
        assert not [url for url in asked if "/live/" in url]
        page.get_by_role("button", name="type your own").click()
        expect(page.locator(".ft-live textarea")).to_have_value(prompt)
        assert [url for url in asked if assets.version() in url]


@pytest.mark.parametrize("screen", SCREENS)
def test_doors_and_cards_lead_where_they_say(browser, address, screen):
    """Every chapter has a card, and the whole of a card is its link."""
    with Visit(browser, address, screen=screen) as visit:
        page = visit.open(FRONT)
        doors = page.locator(".ft-doors a")
        assert [door.split("\n")[0].strip() for door in doors.all_inner_texts()] == [
            "Learn",
            "Teach",
            "Calculate",
        ]
        cards = page.locator(".ft-card")
        links = [card.locator("a").evaluate("link => link.href") for card in cards.all()]
        assert sorted(links) == sorted(address + path for path in CHAPTERS)
        card = cards.last
        card.scroll_into_view_if_needed()
        card.click(position={"x": 12, "y": 12})
        page.wait_for_url(links[-1])


def test_pictures_weigh_little(address, record_property):
    """All that the first page has beside its text: 100 KB after gzip at most."""
    page = (SITE / FRONT).read_text("utf-8")
    pictures = re.findall(r'<svg aria-hidden="true".*?</svg>', page, re.DOTALL)
    assert len(pictures) == len(CHAPTERS)
    n_bytes = len(gzip.compress("".join(pictures).encode()))
    record_property("measured", f"{FRONT}: {n_bytes / 1000:.1f} KB of pictures after gzip")
    assert n_bytes <= 100_000
