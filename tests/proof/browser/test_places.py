"""The site where it does not stand at the top of a server."""

from playwright.sync_api import expect

from browser.figures import controls, frame, move_to
from browser.visit import SITE, Visit, served

LIVE = "notebooks/01_generate.html"


def test_below_another_path(browser, tmp_path):
    """Nothing asks for a file above: sliders, a live view with its model, and the search work."""
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "first token").symlink_to(SITE)
    with served(tmp_path) as address, Visit(browser, f"{address}books/first%20token/") as visit:
        page = visit.open(LIVE)
        figure = page.locator(".ft-explore").first
        first = frame(figure)
        move_to(controls(figure)[0], last=True)
        assert frame(figure) != first
        page.get_by_role("button", name="Try it: type").first.click()
        expect(page.get_by_label("Your text").first).to_be_visible()
        page.keyboard.press("Control+k")
        page.keyboard.type("perplexity")
        page.keyboard.press("Enter")
        page.wait_for_url("**/search.html?q=perplexity*")
        page.locator("#search-results li a[href*='glossary']").first.click()
        expect(page).to_have_title("Glossary — First Token")
