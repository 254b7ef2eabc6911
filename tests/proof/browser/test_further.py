"""Further parts in a real browser: out of the way, and at hand in every way that leads to them."""

import nbformat
import pytest
from playwright.sync_api import expect

from browser.lab import CODE, ERRORS, opened, shown
from browser.visit import Visit, pages_with, settle
from tiny_chapter import HEADING, chapter

INSIDE = "Only here is a marsupial."
AT = {cell.source: index for index, cell in enumerate(chapter().cells)}


@pytest.mark.parametrize("path", pages_with("ft-further")[:1])
def test_it_is_out_of_the_way_and_opens_in_every_way(browser, address, path):
    """By a key, whose ring shows; by its address, and by the list of sections."""
    with Visit(browser, address) as visit:
        page = visit.page
        page.goto(address + path)
        settle(page)
        part = page.locator(".ft-further").first
        inside, summary = part.locator("p:not(summary p)").first, part.locator("> summary")
        anchor = part.locator("xpath=ancestor-or-self::section[1]").get_attribute("id")
        expect(inside).to_be_hidden()
        page.keyboard.press("Tab")  # from here on focus is that of a keyboard
        summary.focus()
        assert summary.evaluate("node => getComputedStyle(node).outlineStyle") == "solid"
        for shown in (True, False):
            page.keyboard.press("Enter")
            expect(inside).to_be_visible(visible=shown)
        page.locator(f"#pst-page-toc-nav a[href='#{anchor}']").click()
        expect(inside).to_be_visible()
        page.goto("about:blank")
        page.goto(f"{address}{path}#{anchor}")
        expect(inside).to_be_visible()
        expect(page.locator(f"[id='{anchor}']")).to_be_in_viewport()


@pytest.fixture
def notebook(lab, lab_home, context):
    """Open the chapter with the book's settings."""
    nbformat.write(chapter(), lab_home / "book" / "notebooks" / "further.ipynb")
    page = context.new_page()
    opened(page, f"{lab}/lab/workspaces/further/tree/notebooks/further.ipynb")
    yield page
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:shutdown-kernel')")
    page.close()


def test_jupyterlab_opens_it_folded_and_runs_all_of_it(notebook):
    """It stays folded meanwhile; what plays in it works once it is open."""
    heading = shown(notebook, AT[HEADING])
    button = heading.get_by_role("button", name="5 cells hidden. Optional")
    within = notebook.locator("p", has_text=INSIDE)
    expect(button).to_be_visible()
    expect(within).to_be_hidden()
    notebook.get_by_role("menuitem", name="Run", exact=True).click()
    notebook.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    notebook.wait_for_function(f"() => {CODE}.every(cell => cell.model.executionCount)")
    assert notebook.evaluate(ERRORS) == []
    expect(within).to_be_hidden()
    shown(notebook, AT[HEADING])
    button.click()
    expect(within).to_be_visible()
    expect(notebook.locator(".ft-explore").get_by_role("slider")).to_be_visible()
    notebook.get_by_role("button", name="Try it").click()
    expect(notebook.get_by_label("Your text")).to_be_visible()
