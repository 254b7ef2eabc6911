"""The built site's sliders, menus and quizzes, moved by key and mouse."""

import gzip
import itertools
import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from browser.figures import answer_quizzes, controls, frame, move_to, play, shown_values
from browser.visit import ROOT, SITE, Visit, pages_with

MAX_FIGURE_BYTES = 150_000  # of one slider figure, after gzip
# From the key press to the first frame that shows another picture, in milliseconds.
WATCH = """figure => {
    const alt = () => figure.querySelector("svg.ft-figure")?.getAttribute("aria-label");
    let before = alt(), pressed = 0;
    figure.latencies = [];
    figure.addEventListener("keydown", () => { pressed = performance.now(); }, true);
    new MutationObserver(() => {
        const now = alt();
        if (!now || now === before) return;
        before = now;
        if (!pressed) return;  // a menu
        const start = pressed;
        pressed = 0;
        requestAnimationFrame(() => figure.latencies.push(performance.now() - start));
    }).observe(figure, {childList: true, subtree: true, attributes: true});
}"""


@pytest.fixture(scope="module")
def page(request, browser, address) -> Iterator[Page]:
    """Yield a page that several tests share: to open a chapter takes seconds."""
    with Visit(browser, address) as visit:
        yield visit.open(request.param)


WITH_SLIDERS = pages_with("ft-explore")
with_sliders = pytest.mark.parametrize("page", WITH_SLIDERS, indirect=True)
# In the same order, so that each page stays open for all of its tests.
OTHERS = [page for page in pages_with("ft-exercise") if page not in WITH_SLIDERS]
WITH_QUIZZES = [page for page in [*WITH_SLIDERS, *OTHERS] if "B_" not in page]


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
    handle.press("End")
    assert frame(figure) == frames[-1]


def move_by_drag(page: Page, figure: Locator, slider: Locator) -> None:
    """Drag the handle to both ends and across, past values in between."""
    handle, track = slider.locator(".noUi-handle"), slider.locator(".noUi-target")
    track.scroll_into_view_if_needed()
    frames = []
    for fraction in (0.0, 1.0, 0.5, 0.0):
        start, bar = handle.bounding_box(), track.bounding_box()
        y = start["y"] + start["height"] / 2
        page.mouse.move(start["x"] + start["width"] / 2, y)
        page.mouse.down()
        page.mouse.move(bar["x"] + fraction * bar["width"], y, steps=4)
        page.mouse.up()
        last = float(handle.get_attribute("aria-valuemax"))
        now = float(handle.get_attribute("aria-valuenow"))
        assert abs(now - fraction * last) <= 0.5 + 1e-6
        frames.append(frame(figure))
    assert frames[0] != frames[1]
    assert frames[0] == frames[3]
    # At this one's first value the next may have nothing to do: of one token, top-p keeps one.
    handle.press("End")
    frame(figure)


def choose_all(figure: Locator, control: Locator) -> None:
    select = control.locator("select")
    options = select.locator("option").all_inner_texts()
    frames = []
    for option in options:
        select.select_option(label=option)
        frames.append(frame(figure))
    assert len(set(frames)) > 1, f"the menu {options} changes nothing"


@with_sliders
def test_every_slider_moves(page, address, record_property):
    """By key and by drag; the picture is always the one that the readouts name."""
    latencies = []
    for figure in page.locator(".ft-explore").all():
        figure.evaluate(WATCH)
        for control in controls(figure):
            if control.locator("select").count():
                choose_all(figure, control)
            else:
                move_by_key(figure, control)
        latencies += figure.evaluate("figure => figure.latencies")
        for slider in figure.locator(".widget-slider").all():
            move_by_drag(page, figure, slider)
    if latencies:
        record_property(
            "measured",
            f"{page.url.removeprefix(address)}: key to frame, "
            f"median {statistics.median(latencies):.0f} ms, max {max(latencies):.0f} ms "
            f"over {len(latencies)} moves",
        )


@with_sliders
def test_play_goes_on_pauses_and_begins_anew(page, address):
    """By key: the slider moves one value at a time, stays while paused, and starts over."""
    figures = page.locator(".ft-explore:has(.widget-play)").all()
    notebook = ROOT / Path(page.url.removeprefix(address)).with_suffix(".ipynb")
    asked = notebook.exists() and 'play=\\"' in notebook.read_text("utf-8")
    assert bool(figures) == asked
    for figure in figures:
        row = figure.locator(".widget-hbox")
        handle = row.get_by_role("slider")
        handle.press("Home")
        first = frame(figure)
        for value in ("1.0", "2.0"):  # the second time it goes on from where it was
            assert play(row, 1) == [value]
            # Longer than a frame stands. On a slow machine the next one could come too late to be
            # seen, and nothing else can go wrong.
            page.wait_for_timeout(2000)
            expect(handle).to_have_attribute("aria-valuenow", value)
            assert frame(figure) != first
        handle.press("End")
        frame(figure)
        assert play(row, 2) == ["0.0", "1.0"]


@pytest.mark.parametrize("page", WITH_QUIZZES, indirect=True)
def test_quizzes_answer_in_the_page(page):
    """Without a kernel an answer still gets a reply. The interview has tests of its own."""
    answer_quizzes(page)


STATE = re.compile(
    r'<script type="application/vnd.jupyter.widget-state\+json">(.*?)</script>', re.S
)
VIEW = re.compile(r'<script type="application/vnd.jupyter.widget-view\+json">(.*?)</script>', re.S)
REFERENCE = re.compile(r"IPY_MODEL_(\w+)")


def figure_weights(html: str) -> list[int]:
    """Return the bytes after gzip of each slider figure: all the models that it needs."""
    found = STATE.search(html)
    state = json.loads(found[1])["state"] if found else {}
    # A link names the models that it joins; nothing names the link.
    needs = {name: set(REFERENCE.findall(json.dumps(model))) for name, model in state.items()}
    weights = []
    for view in VIEW.findall(html):
        model = json.loads(view)["model_id"]
        inside, waiting = set(), [model]
        while waiting:
            name = waiting.pop()
            if name not in inside:
                inside.add(name)
                waiting += needs[name]
        links = {
            name
            for name, model in state.items()
            if "Link" in model["model_name"] and needs[name] & inside
        }
        if "ft-explore" in state[model]["state"].get("_dom_classes", []):
            part = {name: state[name] for name in sorted(inside | links)}
            weights.append(len(gzip.compress(json.dumps(part).encode(), mtime=0)))
    return weights


@pytest.mark.parametrize("path", pages_with("ft-explore"))
def test_slider_figures_are_light(address, path, record_property):
    weights = figure_weights((SITE / path).read_text("utf-8"))
    if weights:
        shown = ", ".join(f"{weight / 1000:.0f} KB" for weight in weights)
        record_property("measured", f"{path}: slider figures after gzip: {shown}")
    assert all(weight <= MAX_FIGURE_BYTES for weight in weights), weights


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
