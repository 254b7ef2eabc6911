"""A reader's session in JupyterLab, for real: run a chapter, move a slider, solve an exercise.

JupyterLab starts through `make lab`, with a copy of the notebooks and settings of its own.
The browser is cut off from everything but that server.
"""

import re

import nbformat
import pytest
from playwright.sync_api import expect
from reading import is_folded

from browser.figures import play
from browser.lab import (
    ASKED_MS,
    CHAPTER_MS,
    ERRORS,
    FINISHED,
    PATH,
    answer_exercise,
    draws_sliders,
    has_tag,
    index_of,
    is_code,
    opened,
    ready,
    run,
    shown,
)
from browser.visit import ROOT

CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CELLS_OF = {path: nbformat.read(path, as_version=4).cells for path in CHAPTERS}

# A chapter that is done is not kept: its kernel would slow down the next one's slider.
CLOSE = """async () => {
    await window.jupyterapp.commands.execute('notebook:shutdown-kernel');
    window.jupyterapp.shell.currentWidget.dispose();
}"""
OPEN = """async path => {
    await window.jupyterapp.commands.execute('docmanager:open', {path});
}"""


@pytest.fixture(scope="module")
def reading(lab, context):
    """Open JupyterLab for all chapters: to load it for each would take half of the time."""
    page = context.new_page()
    opened(page, f"{lab}/lab/workspaces/reading/tree/notebooks/{CHAPTERS[0].name}")
    yield page
    page.close()


@pytest.fixture(scope="module")
def chapter(request, reading):
    """Open a chapter, run it and yield (page, its cells as stored)."""
    page, cells = reading, CELLS_OF[request.param]
    page.evaluate(CLOSE)
    page.evaluate(OPEN, f"notebooks/{request.param.name}")
    ready(page)
    chosen = [index for index, cell in enumerate(cells) if is_code(cell)]
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_function(FINISHED, arg=chosen, timeout=CHAPTER_MS, polling=ASKED_MS)
    yield page, cells


def with_chapters(wanted):
    """Run a test on the chapters for whose stored cells `wanted` holds."""
    chosen = [path for path in CHAPTERS if any(wanted(cell) for cell in CELLS_OF[path])]
    return pytest.mark.parametrize("chapter", chosen, indirect=True, ids=lambda path: path.stem)


def plays(cell) -> bool:
    return draws_sliders(cell) and 'play="' in cell.source


def test_a_first_start_is_ready_for_reading(lab, context):
    """The first chapter, no question asked, times beside cells."""
    page = context.new_page()
    opened(page, lab)
    assert page.evaluate(f"() => {PATH}") == f"notebooks/{CHAPTERS[0].name}"
    # JupyterLab asks about news when it has settled; on a slow machine that could come unseen.
    page.wait_for_timeout(2000)
    assert page.locator(".jp-Dialog, .Toastify__toast").all_inner_texts() == []
    cells = CELLS_OF[CHAPTERS[0]]
    run(page, index_of(cells, is_code))  # the tools, folded
    cell = run(page, index_of(cells, lambda cell: is_code(cell) and not is_folded(cell)))
    expect(cell.locator(".execute-time")).to_contain_text(re.compile(r"executed in [\d.]+ ?m?s"))
    page.close()


@with_chapters(is_code)
def test_the_chapter_runs(chapter):
    page, _ = chapter
    assert page.evaluate(ERRORS) == []


@with_chapters(draws_sliders)
def test_a_slider_moves_its_figure(chapter):
    page, cells = chapter
    output = shown(page, index_of(cells, draws_sliders)).locator(".jp-Cell-outputArea")
    handle, picture = output.get_by_role("slider").first, output.locator("svg.ft-figure").first
    for key in ("End", "Home", "ArrowRight"):
        value, before = handle.get_attribute("aria-valuenow"), picture.get_attribute("aria-label")
        handle.press(key)
        if handle.get_attribute("aria-valuenow") != value:  # it was not at that end already
            expect(picture).not_to_have_attribute("aria-label", before)


@with_chapters(plays)
def test_a_button_plays(chapter):
    """After the whole chapter has run: the next frame comes by itself, and it is no error."""
    page, cells = chapter
    output = shown(page, index_of(cells, plays)).locator(".jp-Cell-outputArea")
    button = page.get_by_role("button", name="Play")
    row = output.locator(".widget-hbox").filter(has=button).last
    before = output.locator("svg.ft-figure").inner_html()
    value = float(row.get_by_role("slider").get_attribute("aria-valuenow"))
    assert play(row, 2) == [f"{value + 1:.1f}", f"{value + 2:.1f}"]
    # The kernel draws the frame a moment after the slider has moved.
    another = "([cell, before]) => cell.querySelector('svg.ft-figure')?.innerHTML !== before"
    page.wait_for_function(another, arg=[output.element_handle(), before])


@with_chapters(has_tag("exercise-1-check"))
def test_an_exercise_answers(chapter):
    answer_exercise(*chapter)
