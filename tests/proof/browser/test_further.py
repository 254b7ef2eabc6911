"""Further parts in a real browser: out of the way, and at hand in every way that leads to them."""

import shutil

import nbformat
import pytest
from playwright.sync_api import expect

from browser.barriers import barriers
from browser.lab import CELLS, CODE, ERRORS, opened, shown
from browser.visit import ROOT, SCREENS, SETTLED, Visit, served, settle
from firsttoken.live import assets
from tiny_chapter import HEADING, built_as_the_book, chapter

MODULES = ROOT / "_build" / "node" / "node_modules"
HEADING_ID = "#further-the-rare-case"
INSIDE = "Only here is a marsupial."
AT = {cell.source: index for index, cell in enumerate(chapter().cells)}
AFTER = "### After\n\nThis is for everybody."


# On the site.


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Serve a site of one small chapter, built as the book is."""
    folder = tmp_path_factory.mktemp("further")
    static = folder / "static"
    assets.write(static)
    widgets = MODULES / "@jupyter-widgets" / "html-manager" / "dist"
    shutil.copytree(widgets, static / "widgets", ignore=shutil.ignore_patterns("*.map", "*.ts"))
    mathjax = MODULES / "mathjax" / "es5"
    shutil.copytree(mathjax, static / "mathjax", ignore=shutil.ignore_patterns("sre", "a11y"))
    with served(built_as_the_book(chapter(), folder, static)) as address:
        yield address


@pytest.fixture(params=["desktop"])
def visit(request, browser, address):
    with Visit(browser, address, screen=request.param) as visit:
        yield visit


def at(visit, rest: str = ""):
    """Open the chapter as a reader does, without opening anything in it."""
    visit.page.goto(f"{visit.address}index.html{rest}")
    settle(visit.page)
    return visit.page


def inside(page):
    return page.get_by_text(INSIDE)


def test_it_is_closed_at_the_start_and_a_key_opens_it(visit):
    """The ring shows where the keyboard is; a second press closes it again."""
    page = at(visit)
    expect(inside(page)).to_be_hidden()
    expect(page.get_by_text("This is for everybody.")).to_be_visible()
    summary = page.locator(".ft-further > summary")
    expect(summary).to_contain_text("Optional")
    for _ in range(50):
        page.keyboard.press("Tab")
        if summary.evaluate("node => node === document.activeElement"):
            break
    assert summary.evaluate("node => getComputedStyle(node).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(inside(page)).to_be_visible()
    page.keyboard.press("Enter")
    expect(inside(page)).to_be_hidden()


def test_it_closes_before_the_page_is_whole(visit):
    """A slow script must not show the part first: that would move what is being read."""
    held = []
    visit.page.route("**/embed.js*", lambda route: held.append(route))
    visit.page.goto(f"{visit.address}index.html", wait_until="commit")
    expect(visit.page.get_by_text("This ends it.")).to_be_visible()
    assert visit.page.evaluate("document.readyState") != "complete"
    expect(inside(visit.page)).to_be_hidden()
    for route in held:
        route.continue_()
    assert held


def test_without_scripts_it_is_open(browser, address):
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{address}index.html")
        expect(inside(page)).to_be_visible()


@pytest.mark.parametrize("fragment", [HEADING_ID, "#its-edge"])
def test_an_address_inside_opens_it(visit, fragment):
    """The part's own address and that of a section in it; and what was asked for is in sight."""
    page = at(visit, fragment)
    expect(inside(page)).to_be_visible()
    expect(page.locator(fragment).locator("h3, h4").first).to_be_in_viewport()


@pytest.mark.parametrize("fragment", ["#explain", "#after", "#nowhere"])
def test_an_address_outside_leaves_it_closed(visit, fragment):
    """Also that of the section around it."""
    expect(inside(at(visit, fragment))).to_be_hidden()


def test_the_list_of_sections_leads_into_it(visit):
    page = at(visit, "#after")
    page.locator(f"#pst-page-toc-nav a[href='{HEADING_ID}']").click()
    expect(inside(page)).to_be_visible()
    expect(page.locator(f"{HEADING_ID} h3")).to_be_in_viewport()


def test_a_link_in_the_text_leads_into_it(visit):
    page = at(visit, "#after")
    page.evaluate("location.hash = '#its-edge'")
    expect(inside(page)).to_be_visible()
    expect(page.locator("#its-edge h4")).to_be_in_viewport()


def test_the_search_leads_into_it(visit):
    """Where the word stands only there; what stands in view, too, needs no fold to open."""
    page = at(visit)
    page.goto(f"{visit.address}search.html?q=marsupial")
    page.locator("#search-results li a").first.click()
    expect(inside(page)).to_be_visible()
    page.goto(f"{visit.address}search.html?q=here+this+comes")
    page.locator("#search-results li a").first.click()
    expect(page.get_by_text("This comes first.")).to_be_visible()
    expect(inside(page)).to_be_hidden()
    expect(inside(at(visit, "?highlight=marsupial"))).to_be_visible()


def test_on_paper_it_is_open(visit):
    """As Chromium prints it; afterwards it is closed again, unless the reader had opened it."""
    page = at(visit)
    page.evaluate(
        """part => addEventListener("beforeprint", () => {
            window.printed = document.querySelector(".ft-further").open;
        })"""
    )
    page.pdf()
    assert page.evaluate("window.printed") is True
    expect(inside(page)).to_be_hidden()
    page.locator(".ft-further > summary").click()
    page.pdf()
    expect(inside(page)).to_be_visible()


def test_what_plays_in_it_works_once_it_is_open(visit):
    """A slider moves its figure; a live view starts."""
    page = at(visit)
    expect(page.locator(".ft-explore")).to_be_hidden()
    page.locator(".ft-further > summary").click()
    figure, handle = page.locator(".ft-explore"), page.locator(".ft-explore").get_by_role("slider")
    before = figure.locator("svg.ft-figure:visible").inner_html()
    handle.press("ArrowRight")
    expect(handle).to_have_attribute("aria-valuenow", "1.0")
    assert figure.locator("svg.ft-figure:visible").inner_html() != before
    page.get_by_role("button", name="Try it").click()
    expect(page.get_by_label("Your text")).to_be_visible()


@pytest.mark.parametrize("visit", SCREENS, indirect=True)
def test_it_is_no_barrier(visit):
    """Closed and open, in both themes: nothing that axe finds, nothing too wide."""
    page = at(visit)
    for _ in ("closed", "open"):
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            expect(page.locator("html")).to_have_attribute("data-theme", theme)
            page.evaluate(SETTLED)
            assert barriers(page, "article") == []
            assert (
                page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
            )
        page.locator(".ft-further > summary").click()


# In JupyterLab.


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


def test_shift_enter_opens_it_before_it_runs_code_in_it(notebook):
    """Whoever goes from cell to cell sees what they run."""
    heading = shown(notebook, AT[HEADING])
    notebook.evaluate("() => window.jupyterapp.shell.currentWidget.content.node.focus()")
    notebook.keyboard.press("Shift+Enter")
    notebook.keyboard.press("Shift+Enter")
    expect(notebook.locator("p", has_text=INSIDE)).to_be_visible()
    expect(heading.get_by_role("button", name="cells hidden")).to_have_count(0)
    assert not notebook.evaluate(f"() => {CODE}.some(cell => cell.model.executionCount)")


def test_what_a_reader_folds_is_not_called_optional(notebook):
    notebook.evaluate(f"() => {{ {CELLS}[{AT[AFTER]}].headingCollapsed = true; }}")
    heading = shown(notebook, AT[AFTER])
    expect(heading.get_by_role("button", name="1 cell hidden", exact=True)).to_be_visible()
