"""Every page of the built site on a phone: its sliders answer to touch, and it is sound."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from browser.figures import frame
from browser.visit import PAGES, Visit, pages_with
from proof.browser.test_pages import assert_sound

SMALLEST_TEXT = """figure => Math.min(
    ...[...figure.querySelectorAll("svg.ft-figure text")]
        .map(text => text.getBoundingClientRect().height))"""


@pytest.fixture(scope="module")
def phone(request, browser, address) -> Iterator[Page]:
    """Open a page; two tests share it, as to open a chapter takes seconds."""
    with Visit(browser, address, "dark", "phone") as visit:
        yield visit.open(request.param)


def on_a_phone(pages):
    return pytest.mark.parametrize("phone", pages or ["none"], indirect=True)


@on_a_phone(pages_with("ft-explore"))
def test_sliders_answer_to_touch(phone):
    """A tap on the far end of a track moves there; handles and menus are big enough."""
    for figure in phone.locator(".ft-explore").all():
        for slider in figure.locator(".widget-slider").all():
            handle, track = slider.locator(".noUi-handle"), slider.locator(".noUi-target")
            track.scroll_into_view_if_needed()
            size, bar = handle.bounding_box(), track.bounding_box()
            assert min(size["width"], size["height"]) >= 24
            phone.touchscreen.tap(bar["x"] + bar["width"] - 1, bar["y"] + bar["height"] / 2)
            wanted = handle.get_attribute("aria-valuemax")
            expect(handle).to_have_attribute("aria-valuenow", wanted)
            frame(figure)
        assert figure.evaluate(SMALLEST_TEXT) >= 8  # CSS pixels


# It comes last: it takes code out of the page.
@on_a_phone(PAGES)
def test_page_is_sound(phone):
    assert_sound(phone, "phone")
