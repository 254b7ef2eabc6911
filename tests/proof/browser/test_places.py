"""The site where it does not stand at the top of a server."""

from playwright.sync_api import expect

from browser.figures import controls, frame, move_to
from browser.visit import SITE, Visit, served, settle

LIVE = "notebooks/01_generate.html"
NO_SCRIPT_FROM_FILES = "could not be loaded. The page works without it"


def move_a_slider(page) -> None:
    figure = page.locator(".ft-explore").first
    first = frame(figure)
    move_to(controls(figure)[0], last=True)
    assert frame(figure) != first


def test_below_another_path(browser, tmp_path):
    """Nothing asks for a file above: sliders, a live view with its model, and the search work."""
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "first token").symlink_to(SITE)
    with served(tmp_path) as address, Visit(browser, f"{address}books/first%20token/") as visit:
        page = visit.open(LIVE)
        move_a_slider(page)
        page.get_by_role("button", name="Try it: type").first.click()
        expect(page.get_by_label("Your text").first).to_be_visible()
        page.keyboard.press("Control+k")
        page.keyboard.type("perplexity")
        page.keyboard.press("Enter")
        page.wait_for_url("**/search.html?q=perplexity*")
        page.locator("#search-results li a[href*='glossary']").first.click()
        expect(page).to_have_title("Glossary — First Token")


def test_from_files(browser):
    """Figures, formulas and quizzes work; a live view, which browsers forget there, says so."""
    with browser.new_context() as context:
        page = context.new_page()
        page.goto((SITE / LIVE).as_uri())
        settle(page)
        move_a_slider(page)
        expect(page.locator("mjx-container").first).to_be_visible()
        quiz = page.locator(".ft-quiz").first
        quiz.locator("input, button").first.click()
        view = page.locator(".ft-live").first
        view.get_by_role("button", name="Try it: type").click()
        expect(view).to_contain_text(NO_SCRIPT_FROM_FILES)
        expect(view.get_by_role("img").first).to_be_visible()
