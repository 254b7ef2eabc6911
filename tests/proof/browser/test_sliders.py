"""The built site's sliders and menus, moved by key and mouse, and what they show."""

import itertools
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page

from browser.figures import controls, frame, move_to, shown_values
from browser.visit import Visit, pages_with


@pytest.fixture(scope="module")
def page(request, browser, address) -> Iterator[Page]:
    """Yield a page that several tests share: to open a chapter takes seconds."""
    with Visit(browser, address) as visit:
        yield visit.open(request.param)


WITH_SLIDERS = pages_with("ft-explore")
with_sliders = pytest.mark.parametrize("page", WITH_SLIDERS, indirect=True)


def move_by_key(figure: Locator, slider: Locator) -> None:
    """Walk a slider from its first value to its last and back to the first."""
    handle = slider.locator(".noUi-handle")
    readout = slider.locator(".widget-readout")
    last = int(float(handle.get_attribute("aria-valuemax")))
    keyboard = figure.page.keyboard
    handle.focus()
    keyboard.press("Home")
    frames, values = [frame(figure)], [readout.inner_text()]
    for _ in range(last):
        keyboard.press("ArrowRight")
        frames.append(frame(figure))
        values.append(readout.inner_text())
    assert len(set(values)) == last + 1, values
    assert frames[0] != frames[-1], f"the slider {values} changes nothing"
    handle.press("Home")
    assert frame(figure) == frames[0]


def choose_all(figure: Locator, control: Locator) -> None:
    select = control.locator("select")
    options = select.locator("option").all_inner_texts()
    frames = []
    for option in options:
        select.select_option(label=option)
        frames.append(frame(figure))
    assert len(set(frames)) > 1, f"the menu {options} changes nothing"


@with_sliders
def test_every_slider_moves(page):
    """The picture is always the one that the readouts name."""
    for figure in page.locator(".ft-explore").all():
        for control in controls(figure):
            if control.locator("select").count():
                choose_all(figure, control)
            else:
                move_by_key(figure, control)


# Boxes of text in the drawing, in CSS pixels. A box is taller than its letters, so two may share a
# quarter of their height.
CROWDED = """figure => {
    const svg = figure.querySelector("svg.ft-figure");
    const frame = (svg.closest("[tabindex]") ?? svg).parentElement.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")]
        .filter(text => text.textContent.trim())
        .map(text => ({said: text.textContent.trim(), box: text.getBoundingClientRect()}));
    const wrong = texts.filter(({box}) => box.left < frame.left - 1 || box.right > frame.right + 1)
        .map(({said}) => `cut off: ${said}`);
    texts.forEach((a, i) => texts.slice(i + 1).forEach(b => {
        const width = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
        const height = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
        if (width > 2 && height > Math.min(a.box.height, b.box.height) / 4)
            wrong.push(`on each other: ${a.said} | ${b.said}`);
    }));
    return wrong;
}"""


@with_sliders
def test_no_corner_is_crowded(page):
    """With each control at either end, no text is cut off or lies on another."""
    wrong = []
    for figure in page.locator(".ft-explore").all():
        moved = controls(figure)
        for ends in itertools.product((False, True), repeat=len(moved)):
            for control, last in zip(moved, ends, strict=True):
                move_to(control, last)
            frame(figure)
            wrong += [f"{shown_values(figure)}: {each}" for each in figure.evaluate(CROWDED)]
    assert wrong == []
