"""Every page of the built site: whole, readable, printable, light, nothing from outside."""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browser.barriers import barriers
from browser.visit import (
    CONTENT,
    NOTEBOOKS,
    PAGES,
    SCREENS,
    SETTLED,
    UNNAMED,
    WIDTH,
    Visit,
)

# A page may hold a handful of slider figures. A first visit to a chapter also loads 1.2 MB of
# scripts and fonts (sliders 0.5, formulas 0.4, theme and icons 0.3), which every later page takes
# from the browser's cache. The two limits leave no room for one more script that nobody noticed.
MAX_PAGE_BYTES, MAX_VISIT_BYTES = 400_000, 1_600_000
CUT_TABLES = """() => [...document.querySelectorAll(".pst-scrollable-table-container")]
    .filter(box => box.scrollWidth > box.clientWidth)
    .map(box => box.textContent.trim().slice(0, 80))"""
CUT_CODE = """() => [...document.querySelectorAll("article pre")]
    .filter(code => code.scrollWidth > code.clientWidth)
    .map(code => code.textContent.slice(0, 80))"""
# Of thousands of words three of each look are enough for what concerns colour; axe takes time for
# all. Three, as it says nothing of a word that lies under another thing, or of a single letter.
# Code that looks the same in one theme may not in the other, but for words of the same class.
LOOKS = """() => {
    const grounds = new Map([[null, ""]]);
    const ground = node => {
        if (!grounds.has(node)) {
            const {backgroundColor, backgroundImage, opacity} = getComputedStyle(node);
            const own = [backgroundColor, backgroundImage, opacity].join();
            const below = ground(node.parentElement);
            grounds.set(node, own === "rgba(0, 0, 0, 0),none,1" ? below : `${below} ${own}`);
        }
        return grounds.get(node);
    };
    const looks = new Map();
    for (const node of document.querySelectorAll("body *")) {
        const own = [...node.childNodes].filter(({nodeType}) => nodeType === Node.TEXT_NODE);
        const says = own.some(({data}) => data.trim().length > 1);
        if (!says || !node.getClientRects().length) continue;
        const {color, fontSize, fontWeight} = getComputedStyle(node);
        const around = getComputedStyle(node.parentElement).color;  // of the text that a link is in
        const code = node.closest("pre")?.parentElement.className;
        const kind = [node.tagName, node.className, code];
        const look = [...kind, color, fontSize, fontWeight, around, ground(node)].join();
        looks.set(look, [...(looks.get(look) ?? []), node]);
    }
    window.looks = [...looks.values()].flatMap(nodes => nodes.splice(0, 3));
    for (const node of [...looks.values()].flat()) if (node.matches("pre span")) node.remove();
}"""
COLOUR = ["color-contrast", "link-in-text-block"]  # the theme is nothing to the other rules
OF_COLOUR = {"runOnly": COLOUR}
OTHERS = {"rules": {rule: {"enabled": False} for rule in COLOUR}}


@dataclass(frozen=True)
class Opened:
    """A page on a desk, and the bytes of all that it loaded, as a server with gzip sends them.

    `plain` is the same page in a browser that runs no script.
    """

    path: str
    page: Page
    n_bytes: dict[str, int]
    plain: Page


@pytest.fixture(scope="module")
def first_visit(request, browser, address) -> Iterator[Opened]:
    """Open a page with nothing in the cache; several tests look at it, as to open it takes long."""
    plain = browser.new_context(java_script_enabled=False)
    with plain, Visit(browser, address) as visit:
        answers = []
        visit.page.on("response", lambda answer: answers.append(answer))
        page = visit.open(request.param)
        n_bytes = {}
        for answer in answers if request.param in CONTENT else ():
            body, kind = answer.body(), answer.headers.get("content-type", "")
            packed = kind.startswith(("image/png", "font/"))
            n_bytes[answer.url] = len(body if packed else gzip.compress(body, mtime=0))
        opened = Opened(request.param, page, n_bytes, plain.new_page())
        opened.plain.goto(address + request.param)
        yield opened


def on_first_visit(pages):
    return pytest.mark.parametrize("first_visit", pages or ["none"], indirect=True)


@on_first_visit(CONTENT)
def test_pages_are_light(first_visit, address):
    assert first_visit.n_bytes[address + first_visit.path] <= MAX_PAGE_BYTES
    assert sum(first_visit.n_bytes.values()) <= MAX_VISIT_BYTES


@on_first_visit(CONTENT)
def test_without_a_script_there_is_all_that_can_be(first_visit):
    """The text, the first frame of each slider figure, and a key opens the way to a lab."""
    path, page = first_visit.path, first_visit.plain
    expect(page.locator("article h1").first).to_be_visible()
    assert len(page.locator("article").inner_text().split()) > 100
    way = page.locator("h1 + .ft-page-line details")
    expect(way).to_have_count(int(path in NOTEBOOKS))
    if path in NOTEBOOKS:
        number = Path(path).stem.partition("_")[0]
        way.locator("summary").press("Enter")
        expect(way.locator("pre").first).to_have_text(f"make lab CHAPTER={number}")
    page.locator("details").evaluate_all("all => all.forEach(each => { each.open = true; })")
    words = "all => all.map(each => each.getAttribute('aria-label'))"
    figures = first_visit.page.locator(".ft-explore svg.ft-figure").evaluate_all(words)
    frames = page.locator("noscript svg.ft-figure")
    assert frames.evaluate_all(words) == figures
    for each in frames.all():
        expect(each).to_be_visible()


@on_first_visit(CONTENT)
def test_page_prints(first_visit):
    """On paper: dark on white, no way into JupyterLab, and nothing cut at the right."""
    page = first_visit.page
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    a4 = {"width": 794, "height": 1123}
    page.set_viewport_size(a4)
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.evaluate(WIDTH) <= a4["width"]
    assert page.evaluate(CUT_TABLES) == []
    assert page.evaluate(CUT_CODE) == []
    for way in page.locator(".ft-lab").all():
        expect(way).to_be_hidden()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.set_viewport_size(SCREENS["desktop"])
    page.emulate_media(media="screen", color_scheme="light")


def assert_sound(page: Page, screen: str) -> None:
    """Assert: nothing unnamed, nothing too wide, no barrier, in both themes.

    The page follows the system's theme, so that one visit sees both.
    """
    if "Redirecting" in page.title():
        return

    def turn(theme: str) -> None:
        page.emulate_media(color_scheme=theme)
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        page.evaluate(SETTLED)

    for theme in ("light", "dark"):
        turn(theme)
        assert page.evaluate(UNNAMED) == []
        assert page.evaluate(WIDTH) <= SCREENS[screen]["width"]
        if screen == "desktop":  # on a phone a table scrolls in its own box
            assert page.evaluate(CUT_TABLES) == []
        page.evaluate(LOOKS)
        assert barriers(page, "looks", OF_COLOUR) == [], theme
    # Of minor ones Sphinx writes some: roles in the list of sources, headless columns of tables.
    assert [each for each in barriers(page, options=OTHERS) if ", minor:" not in each] == []


# It comes last: what it adds to a page would change what is printed.
@on_first_visit([*CONTENT, *(page for page in PAGES if page not in CONTENT)])
def test_page_is_sound(first_visit):
    """And, as on each visit: no error, no outside request."""
    assert_sound(first_visit.page, "desktop")
