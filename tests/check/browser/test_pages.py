"""Each page of the built site, opened once: it is whole, and all that can be moved moves."""

import pytest
from playwright.sync_api import expect

from browser.figures import answer_quizzes, controls, move_once, play
from browser.visit import PAGES, UNNAMED, Visit


@pytest.mark.parametrize("path", PAGES or ["none"])
def test_a_page_opens_and_answers(browser, address, path):
    """No error, nothing from outside; sliders, play buttons and quizzes answer."""
    with Visit(browser, address) as visit:
        page = visit.open(path)
        expect(page.locator("main :is(h1, h2):visible").first).to_be_visible()
        assert len(page.locator("main").inner_text().split()) > 3
        assert page.evaluate(UNNAMED) == []
        for figure in page.locator(".ft-explore").all():
            for control in controls(figure):
                move_once(figure, control)
            if figure.locator(".widget-play").count():
                row = figure.locator(".widget-hbox")
                row.get_by_role("slider").press("Home")
                assert play(row, 2) == ["1.0", "2.0"]
        if "B_interview" not in path:  # it has a test of its own
            answer_quizzes(page)
