"""The calculator in a real browser: what the page says is what Python says, and a link keeps it."""

import json
import re
from collections.abc import Iterator

import pytest
from calculator import page as written
from playwright.sync_api import Page, expect

from browser.barriers import barriers
from browser.visit import SCREENS, SETTLED, STEP_MS, WIDTH, Visit, settle

LOADED_MS = 2 * STEP_MS  # a busy machine starts Python slowly
MIXTRAL = {
    "model_type": "mixtral",
    "num_hidden_layers": 8,
    "hidden_size": 2048,
    "num_local_experts": 4,
    "_name_or_path": "<img src=x onerror='window.hurt = true'>",
}
SHOWN = """html => {
    const other = document.createElement("div");
    other.innerHTML = html;
    return document.querySelector(".ft-results").innerHTML === other.innerHTML;
}"""


@pytest.fixture
def visit(browser, address, request) -> Iterator[Visit]:
    with Visit(browser, address, screen=getattr(request, "param", "desktop")) as visit:
        yield visit


@pytest.fixture(scope="module")
def running(browser, address) -> Iterator[Page]:
    """A page in which Python runs already, for tests that only ask."""
    with Visit(browser, address) as visit:
        visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
        yield calculating(visit)


def opened(visit: Visit, link: str = "") -> Page:
    visit.page.goto(f"{visit.address}book/calculator.html{link}")
    return visit.page


def calculating(visit: Visit) -> Page:
    """Open the page and wait until Python has answered."""
    page = opened(visit)
    page.get_by_role("button", name="Calculate").press("Enter")
    expect(page.locator(".ft-copy")).to_be_visible(timeout=LOADED_MS)
    page.wait_for_function("() => document.querySelector('.ft-status.ft-unseen')")
    return page


def fill(page: Page, settings: dict[str, str]) -> None:
    """Enter settings as a reader does: the config's field is there for a config only."""
    for name, value in settings.items():
        if name == "config" and not value:
            continue
        field = page.locator(f"#ft-{name}")
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)


def expected(settings: dict[str, str]) -> dict[str, str]:
    return json.loads(written.answer(json.dumps(settings)))


def expect_results(page: Page, settings: dict[str, str]) -> None:
    """Expect the page to show, letter by letter, what Python makes of the settings."""
    page.wait_for_function(SHOWN, arg=expected(settings)["results"], timeout=LOADED_MS)
    expect(page.locator(".ft-outdated")).to_have_count(0)


CASES = {
    "several": {"model": "Llama-3.1-70B", "n_devices": "8", "dollars_per_hour": "2.50"},
    "formats": {"dtype": "q4_0", "kv_dtype": "int8", "accelerator": "RTX-4090", "batch": "7"},
    "pasted": {"model": "config", "config": json.dumps(MIXTRAL), "batch": "3"},
}


@pytest.mark.parametrize("name", CASES)
def test_the_page_says_what_python_says(running, name):
    """A name is text and no markup: a link may come from anyone."""
    settings = written.START | CASES[name]
    fill(running, settings)
    expect_results(running, settings)
    assert running.evaluate("window.hurt") is None


def test_results_are_there_before_python(visit):
    """The worked example is that of the form; nothing of Pyodide is loaded for it."""
    asked = []
    visit.page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    page = opened(visit, "#what-is-counted")
    expect_results(page, written.START)
    page.locator("#ft-batch").fill("64")
    expect(page.locator(".ft-outdated")).to_have_attribute("data-note", re.compile("Calculate"))
    settle(page)
    assert not [name for name in asked if "pyodide" in name]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"batch": "8.5"}, "batch"),
        ({"accelerator": "M1", "n_devices": "2"}, "n_devices"),
        ({"model": "config", "config": '{"model_type": "bert"}'}, "config"),
    ],
)
def test_an_error_is_the_library_s_own_words_beside_its_field(running, changes, field):
    good = written.START | {"batch": "5"}
    fill(running, good)
    expect_results(running, good)
    fill(running, changes)
    shown, wrong = running.locator(".ft-problem:visible"), running.locator(f"#ft-{field}")
    problem = expected(good | changes)["problem"]
    expect(shown).to_have_text(problem)
    expect(shown).to_have_id(f"ft-{field}-problem")
    expect(wrong).to_have_attribute("aria-invalid", "true")
    expect(wrong).to_have_accessible_description(re.compile(re.escape(problem)))
    expect(running.locator(".ft-results.ft-outdated")).to_be_visible()
    fill(running, {name: good[name] for name in changes if name != "config"})
    expect_results(running, good)
    expect(running.locator(".ft-problem:visible, [aria-invalid=true]")).to_have_count(0)


@pytest.mark.parametrize("name", ["several", "pasted"])
def test_a_link_restores_everything(visit, running, name):
    settings = written.START | CASES[name]
    fill(running, settings)
    expect_results(running, settings)
    running.wait_for_function("() => document.querySelector('.ft-status.ft-unseen')")
    running.locator(".ft-copy").click()
    expect(running.locator(".ft-status")).to_have_text("The link is copied.")
    link = running.evaluate("navigator.clipboard.readText()")
    page = opened(visit, "#" + link.partition("#")[2])
    expect_results(page, settings)
    for key, value in settings.items():
        expect(page.locator(f"#ft-{key}")).to_have_value(value)


def test_sliders_move_by_key_and_a_change_is_announced_once(running):
    """In doublings; a screen reader hears the end of a drag, not each of its steps."""
    status = running.locator(".ft-status")
    fill(running, written.START)
    expect(status).to_have_text(expected(written.START)["summary"])
    running.evaluate(
        """() => {
            window.heard = [];
            const status = document.querySelector(".ft-status");
            new MutationObserver(() => window.heard.push(status.textContent))
                .observe(status, {childList: true});
        }"""
    )
    slider = running.locator("[data-of=batch]")
    for _ in range(4):
        slider.press("ArrowRight")
    expect(slider).to_have_attribute("aria-valuetext", "512")
    last = expected(written.START | {"batch": "512"})["summary"]
    expect(status).to_have_text(last)
    assert running.evaluate("window.heard") == [last]


@pytest.mark.parametrize("visit", SCREENS, indirect=True)
def test_nobody_is_shut_out(visit):
    """Before, after and with an error, in both themes: no barrier, nothing too wide."""

    def look():
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            page.evaluate(SETTLED)
            assert barriers(page, ".ft-calculator") == [], theme
        assert page.evaluate(WIDTH) <= page.viewport_size["width"]

    page = opened(visit)
    look()
    page = calculating(visit)
    look()
    fill(page, {"model": "config", "config": '{"model_type": "bert"}'})
    expect(page.locator("#ft-config-problem")).to_be_visible()
    look()
