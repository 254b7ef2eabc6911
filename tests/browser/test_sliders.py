"""The built site's sliders, menus and quizzes, moved by key, mouse and touch."""

import gzip
import itertools
import json
import re
import statistics
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

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

pytestmark = pytest.mark.browser


def controls(figure: Locator) -> list[Locator]:
    return figure.locator(".widget-slider, .widget-dropdown").all()


def shown_values(figure: Locator) -> str:
    """Return what the controls say, in the form in which explore ends every alt text."""
    texts = []
    for control in controls(figure):
        label = control.locator("label").inner_text()
        if control.locator("select").count():
            # The widget keeps the spaces of an option from breaking.
            value = control.locator("select option:checked").inner_text().replace("\xa0", " ")
        else:
            value = control.locator(".widget-readout").inner_text()
            handle = control.locator(".noUi-handle")
            expect(handle).to_have_attribute("aria-label", label)
            expect(handle).to_have_attribute("aria-valuetext", value)
        texts.append(f"{label}: {value}")
    return f"({', '.join(texts)})"


def frame(figure: Locator) -> str:
    """Return the drawing now visible, once it is the one that the controls name."""
    picture = figure.locator("svg.ft-figure")
    ends = re.compile(re.escape(shown_values(figure)) + "$")
    expect(picture).to_have_attribute("aria-label", ends)
    expect(picture).to_have_count(1)
    expect(picture).to_be_visible()
    return picture.inner_html()


def move_by_key(figure: Locator, slider: Locator) -> None:
    """Walk a slider from its first value to its last and back to the first."""
    handle = slider.locator(".noUi-handle")
    readout = slider.locator(".widget-readout")
    last = int(float(handle.get_attribute("aria-valuemax")))
    handle.focus()
    handle.press("Home")
    frames, values = [frame(figure)], [readout.inner_text()]
    for _ in range(last):
        handle.press("ArrowRight")
        frames.append(frame(figure))
        values.append(readout.inner_text())
    assert len(set(values)) == last + 1, values
    assert frames[0] != frames[-1], f"the slider {values} changes nothing"
    handle.press("Home")
    assert frame(figure) == frames[0]
    handle.press("End")
    assert frame(figure) == frames[-1]


def move_by_drag(page: Page, figure: Locator, slider: Locator) -> None:
    """Drag the handle to both ends and across, faster than frames can follow."""
    handle, track = slider.locator(".noUi-handle"), slider.locator(".noUi-target")
    track.scroll_into_view_if_needed()
    frames = []
    for fraction in (0.0, 1.0, 0.5, 0.0):
        start, bar = handle.bounding_box(), track.bounding_box()
        y = start["y"] + start["height"] / 2
        page.mouse.move(start["x"] + start["width"] / 2, y)
        page.mouse.down()
        page.mouse.move(bar["x"] + fraction * bar["width"], y, steps=12)
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


@pytest.mark.parametrize("path", pages_with("ft-explore"))
def test_every_slider_moves(browser, address, path, record_property):
    """By key and by drag; the picture is always the one that the readouts name."""
    latencies = []
    with Visit(browser, address) as visit:
        page = visit.open(path)
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
            f"{path}: key to frame, median {statistics.median(latencies):.0f} ms, "
            f"max {max(latencies):.0f} ms over {len(latencies)} moves",
        )


@pytest.mark.parametrize("path", pages_with("ft-explore"))
def test_sliders_answer_to_touch(browser, address, path):
    """A tap on the far end of a track moves there; handles and menus are big enough."""
    with Visit(browser, address, "dark", "phone") as visit:
        page = visit.open(path)
        for figure in page.locator(".ft-explore").all():
            for slider in figure.locator(".widget-slider").all():
                handle, track = slider.locator(".noUi-handle"), slider.locator(".noUi-target")
                track.scroll_into_view_if_needed()
                size, bar = handle.bounding_box(), track.bounding_box()
                assert min(size["width"], size["height"]) >= 24
                for end, value in ((1.0, "aria-valuemax"), (0.0, "aria-valuemin")):
                    page.wait_for_timeout(500)  # or the browser takes two taps for a double tap
                    x = bar["x"] + end * (bar["width"] - 1)
                    page.touchscreen.tap(x, bar["y"] + bar["height"] / 2)
                    wanted = handle.get_attribute(value)
                    expect(handle).to_have_attribute("aria-valuenow", wanted)
                    frame(figure)
            for text in figure.locator("svg.ft-figure text").all():
                assert text.bounding_box()["height"] >= 8  # CSS pixels


@pytest.mark.parametrize("path", pages_with("ft-explore"))
def test_play_goes_on_pauses_and_begins_anew(browser, address, path):
    """By key: the slider moves one value at a time, stays while paused, and starts over."""
    with Visit(browser, address) as visit:
        page = visit.open(path)
        figures = page.locator(".ft-explore:has(.widget-play)").all()
        notebook = ROOT / Path(path).with_suffix(".ipynb")
        asked = notebook.exists() and 'play=\\"' in notebook.read_text("utf-8")
        assert bool(figures) == asked
        for figure in figures:
            row = figure.locator(".widget-hbox")
            button, handle = row.get_by_role("button"), row.locator(".noUi-handle")
            handle.press("Home")
            first = frame(figure)
            button.focus()
            expect(button).to_have_accessible_name("Play")
            for value in "12":  # the second time it goes on from where it was
                button.press("Enter")
                expect(button).to_have_accessible_name("Pause")
                expect(handle).to_have_attribute("aria-valuenow", f"{value}.0")
                button.press("Enter")
                expect(button).to_have_accessible_name("Play")
                page.wait_for_timeout(2000)  # longer than a frame stands
                expect(handle).to_have_attribute("aria-valuenow", f"{value}.0")
                assert frame(figure) != first
            handle.press("End")
            frame(figure)
            button.click()
            expect(handle).to_have_attribute("aria-valuenow", "0.0")
            assert frame(figure) == first
            expect(handle).to_have_attribute("aria-valuenow", "1.0")


@pytest.mark.parametrize("path", [page for page in pages_with("ft-exercise") if "B_" not in page])
def test_quizzes_answer_in_the_page(browser, address, path):
    """Without a kernel an answer still gets a reply. The interview has tests of its own."""
    with Visit(browser, address) as visit:
        page = visit.open(path)
        for quiz in page.locator(".ft-exercise:has(form)").all():
            field = quiz.locator("input").first
            if field.get_attribute("type") in ("radio", "checkbox"):
                field.check()
            else:
                field.fill("1")
            quiz.locator("button").first.click()
            expect(quiz.locator(".ft-feedback")).not_to_be_empty()


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


def move_to(control: Locator, last: bool) -> None:
    """Move a slider or a menu to its first or its last value."""
    if control.locator("select").count():
        options = control.locator("select option").count()
        control.locator("select").select_option(index=options - 1 if last else 0)
    else:
        control.locator(".noUi-handle").press("End" if last else "Home")


@pytest.mark.parametrize("path", pages_with("ft-explore"))
def test_no_corner_is_crowded(browser, address, path):
    """With each control at either end, no text is cut off or lies on another."""
    wrong = []
    with Visit(browser, address) as visit:
        page = visit.open(path)
        for figure in page.locator(".ft-explore").all():
            moved = controls(figure)
            for ends in itertools.product((False, True), repeat=len(moved)):
                for control, last in zip(moved, ends, strict=True):
                    move_to(control, last)
                frame(figure)
                wrong += [f"{shown_values(figure)}: {each}" for each in figure.evaluate(CROWDED)]
    assert wrong == []
