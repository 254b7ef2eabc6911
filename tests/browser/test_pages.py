"""Every page of the built site: whole, readable, printable, light, nothing from outside."""

import gzip
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from browser.visit import (
    CHAPTERS,
    CONTENT,
    FRONT,
    NOTEBOOKS,
    PAGES,
    ROOT,
    SCREENS,
    SETTLED,
    Visit,
)

AXE = ROOT / "_build" / "node" / "node_modules" / "axe-core" / "axe.min.js"
# A page may hold a handful of slider figures. A first visit to a chapter also loads 1.2 MB of
# scripts and fonts (sliders 0.5, formulas 0.4, theme and icons 0.3), which every later page takes
# from the browser's cache. The two limits leave no room for one more script that nobody noticed.
MAX_PAGE_BYTES, MAX_VISIT_BYTES = 400_000, 1_600_000
UNNAMED = """() => [...document.querySelectorAll("img, svg[role=img]")]
    .filter(node => !["alt", "aria-label", "aria-labelledby", "aria-hidden"]
        .some(name => node.hasAttribute(name)))
    .map(node => node.outerHTML.slice(0, 200))"""
# Not beside innerWidth: on a phone that grows with what is too wide.
WIDTH = "() => document.documentElement.scrollWidth"
CUT_TABLES = """() => [...document.querySelectorAll(".pst-scrollable-table-container")]
    .filter(box => box.scrollWidth > box.clientWidth)
    .map(box => box.textContent.trim().slice(0, 80))"""
CUT_CODE = """() => [...document.querySelectorAll("article pre")]
    .filter(code => code.scrollWidth > code.clientWidth)
    .map(code => code.textContent.slice(0, 80))"""
# Of thousands of words of code one of each colour stays: to ask them all takes ten seconds.
SERIOUS = """async () => {
    document.querySelectorAll(".ft-repeated").forEach(word => word.classList.remove("ft-repeated"));
    const seen = new Set(), repeated = [];
    for (const word of document.querySelectorAll("pre span:not(:has(span))")) {
        const own = getComputedStyle(word), around = getComputedStyle(word.closest("pre"));
        const look = [own.color, own.backgroundColor, around.backgroundColor].join();
        if (seen.has(look)) repeated.push(word);
        else if (word.innerText.trim().length > 1 && word.getClientRects().length) seen.add(look);
    }
    for (const word of repeated) word.classList.add("ft-repeated");
    return (await axe.run(document, {preload: false})).violations
        .filter(v => ["moderate", "serious", "critical"].includes(v.impact))
        .map(v => v.id + ": " + v.nodes.map(n => n.html.slice(0, 200)).join(" | "));
}"""

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("path", PAGES or ["none"])
def test_page_is_sound(browser, address, path, screen):
    """No error, no outside request, nothing unnamed, nothing too wide, no barrier.

    The page follows the system's theme, so that one visit sees both.
    """
    with Visit(browser, address, "light", screen) as visit:
        page = visit.open(path)
        if "Redirecting" in page.title():
            return
        page.add_script_tag(path=str(AXE))
        page.add_style_tag(content=".ft-repeated { display: none }")
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            expect(page.locator("html")).to_have_attribute("data-theme", theme)
            page.evaluate(SETTLED)
            assert page.evaluate(UNNAMED) == []
            assert page.evaluate(WIDTH) <= SCREENS[screen]["width"]
            if screen == "desktop":  # on a phone a table scrolls in its own box
                assert page.evaluate(CUT_TABLES) == []
            assert page.evaluate(SERIOUS) == [], theme


@pytest.mark.parametrize("path", CONTENT or ["none"])
def test_page_prints(browser, address, path):
    """On paper: dark on white, no way into JupyterLab, and nothing cut at the right."""
    with Visit(browser, address, "dark") as visit:
        page = visit.open(path)
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


@pytest.mark.parametrize("path", CONTENT or ["none"])
def test_title_line_works_without_a_script(browser, address, path):
    """The reading time is on all pages but the first; on notebooks a key opens the way to a lab."""
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(address + path)
        line = page.locator("h1 + .ft-page-line")
        if path == FRONT:
            expect(line).to_have_count(0)
            return
        if path in CHAPTERS or path not in NOTEBOOKS:  # an appendix is not read through
            expect(line).to_contain_text(re.compile(r"^[1-9]\d* min to read"))
        way = line.locator("details")
        expect(way).to_have_count(int(path in NOTEBOOKS))
        if path in NOTEBOOKS:
            stem = Path(path).stem
            number = stem.partition("_")[0]
            expect(way.locator("pre").first).to_be_hidden()
            way.locator("summary").press("Enter")
            expect(way.locator("pre").first).to_have_text(f"make lab CHAPTER={number}")
            expect(way.locator(f"a[href$='/lab/tree/notebooks/{stem}.ipynb']")).to_be_visible()


def first_visit(browser, address, path) -> tuple[int, int]:
    """Return the bytes of a page and of all that it loads, as a server with gzip sends them."""
    with Visit(browser, address) as visit:
        answers = []
        visit.page.on("response", lambda answer: answers.append(answer))
        visit.open(path)
        weights = {}
        for answer in answers:
            body, kind = answer.body(), answer.headers.get("content-type", "")
            packed = kind.startswith(("image/png", "font/"))
            weights[answer.url] = len(body if packed else gzip.compress(body, mtime=0))
    return weights[address + path], sum(weights.values())


@pytest.mark.parametrize("path", CONTENT or ["none"])
def test_pages_are_light(browser, address, path, record_property):
    page, everything = first_visit(browser, address, path)
    record_property(
        "measured",
        f"{path}: {page / 1000:.0f} KB, first visit {everything / 1000:.0f} KB after gzip",
    )
    assert page <= MAX_PAGE_BYTES
    assert everything <= MAX_VISIT_BYTES
