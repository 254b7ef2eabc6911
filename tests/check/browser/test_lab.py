"""A reader's session in JupyterLab: it starts with chapter 00, and what plays in there answers."""

import nbformat
from playwright.sync_api import expect

from browser.lab import (
    ASKED_MS,
    CHAPTER_MS,
    ERRORS,
    FINISHED,
    PATH,
    RUN,
    answer_exercise,
    draws_sliders,
    index_of,
    is_live,
    opened,
    played,
    shown,
)
from browser.visit import ROOT

CHAPTER = "notebooks/00_start.ipynb"


def test_a_first_chapter(lab, context):
    """Its figures, its live view and its first exercise, and the cells that these need."""
    page, cells = context.new_page(), nbformat.read(ROOT / CHAPTER, as_version=4).cells
    opened(page, lab)
    assert page.evaluate(f"() => {PATH}") == CHAPTER
    page.evaluate(RUN, chosen := played(cells))
    page.wait_for_function(FINISHED, arg=chosen, timeout=CHAPTER_MS, polling=ASKED_MS)
    assert page.evaluate(ERRORS) == []

    output = shown(page, index_of(cells, draws_sliders)).locator(".jp-Cell-outputArea")
    handle, picture = output.get_by_role("slider").first, output.locator("svg.ft-figure")
    before = picture.get_attribute("aria-label")
    handle.press("Home")
    handle.press("ArrowRight")
    expect(picture).not_to_have_attribute("aria-label", before)

    view = shown(page, index_of(cells, is_live)).locator(".ft-live")
    view.get_by_role("button", name="Try it").click()
    expect(view.get_by_label("Your text")).to_be_visible()

    answer_exercise(page, cells)
    assert page.evaluate(ERRORS) == []
    page.close()
