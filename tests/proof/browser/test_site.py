"""Ways through the built site: next and previous, search, index, downloads, README's picture."""

import importlib.util
import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from browser.visit import CHAPTERS, CONTENT, NOTEBOOKS, ROOT, SITE, Visit

spec = importlib.util.spec_from_file_location("picture", ROOT / "book" / "picture.py")
picture = importlib.util.module_from_spec(spec)
spec.loader.exec_module(picture)


@pytest.fixture
def plain(browser) -> Iterator[Page]:
    """Yield a page that runs no script, and so opens chapters fast."""
    with browser.new_context(java_script_enabled=False) as context:
        yield context.new_page()


def test_next_and_previous_lead_through_the_book(plain, address):
    """From the first page, `next` visits every page of the book; `previous` undoes each step."""
    plain.goto(address + "book/intro.html")
    expect(plain.locator("a.left-prev")).to_have_count(0)
    seen = [plain.url]
    while plain.locator("a.right-next").count():
        with plain.expect_navigation():
            plain.locator("a.right-next").click()
        assert plain.locator("a.left-prev").evaluate("link => link.href") == seen[-1]
        seen.append(plain.url)
        assert len(seen) <= len(CONTENT), "next goes in a circle"
    assert {url.removeprefix(address) for url in seen} == set(CONTENT)


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("truncate unlinked", None),
        ("mlock", "notebooks/04_kv_cache.html"),
        ("why is my second request slow", "notebooks/A_debugging.html"),
        ("perplexity", "book/glossary.html"),
        ("bandwidth", "book/notation.html"),
    ],
)
def test_search(browser, address, words, path):
    """What only one page has is found there; what no page has is said not to be found."""
    with Visit(browser, address) as visit:
        page = visit.open(f"search.html?q={words.replace(' ', '+')}")
        results = page.locator("#search-results li a")
        if path is None:
            expect(page.locator("#search-results")).to_contain_text("did not match any documents")
            expect(results).to_have_count(0)
        else:
            expect(page.locator(f"#search-results li a[href*='{path}']").first).to_be_visible()


def test_search_field_leads_to_the_results(browser, address):
    """By keyboard, from a chapter."""
    with Visit(browser, address) as visit:
        page = visit.open(CHAPTERS[0])
        page.keyboard.press("Control+k")
        page.keyboard.type("perplexity")
        page.keyboard.press("Enter")
        page.wait_for_url("**/search.html?q=perplexity*")
        expect(page.locator("#search-results li a[href*='glossary']").first).to_be_visible()


def test_index_lists_every_slider_figure(plain, address):
    """Each link leads to a section with as many slider figures as the index describes there.

    Their first frames are counted, which test_pages finds to be as many.
    """
    figures = {path: (SITE / path).read_text("utf-8").count('"ft-explore"') for path in CHAPTERS}
    plain.goto(address + "book/figures.html")
    listed = {}
    for entry in plain.locator("article dl > dt").all():
        url = entry.locator("a").evaluate("link => link.href")
        listed[url] = entry.locator("xpath=following-sibling::dd[1]//p").count() // 2
    counts = dict.fromkeys(CHAPTERS, 0)
    for url, n_figures in listed.items():
        path, _, anchor = url.removeprefix(address).partition("#")
        if not plain.url.endswith(path):
            plain.goto(address + path)
        section = plain.locator(f"section[id='{anchor}']")
        frames = " > .cell noscript svg.ft-figure"
        own = f":scope{frames}, :scope > details{frames}"
        assert section.locator(own).count() == n_figures
        counts[path] += n_figures
    assert counts == figures


def test_picture_in_readme_shows_the_figure_of_the_site(browser, address):
    with Visit(browser, address) as visit:
        figure = picture.shown_figure(visit.open(picture.CHAPTER))
        assert picture.fingerprint(figure) == picture.stored_fingerprint(), (
            "README's picture is stale: run `python book/picture.py`"
        )


def test_chapters_download_as_notebooks(address):
    """The file offered is the notebook itself, without outputs."""
    for path in NOTEBOOKS:
        html = (SITE / path).read_text("utf-8")
        link = re.search(r'href="([^"]*_sources/[^"]*\.ipynb)"', html)
        assert link, f"{path} offers no notebook"
        notebook = json.loads((SITE / path).parent.joinpath(link[1]).resolve().read_text())
        assert notebook["cells"]
