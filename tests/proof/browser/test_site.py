"""Ways through the built site: next and previous, README's picture."""

import importlib.util
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from browser.visit import CONTENT, ROOT, Visit

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


def test_picture_in_readme_shows_the_figure_of_the_site(browser, address):
    with Visit(browser, address) as visit:
        figure = picture.shown_figure(visit.open(picture.CHAPTER))
        assert picture.fingerprint(figure) == picture.stored_fingerprint(), (
            "README's picture is stale: run `python book/picture.py`"
        )
