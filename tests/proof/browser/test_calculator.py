"""The calculator in a real browser: what the page says is what Python says, and a link keeps it."""

import json
import random
import re
import statistics
from collections.abc import Iterator
from urllib.parse import parse_qsl

import build
import pytest
from calculator import page as written
from playwright.sync_api import Page, expect

from browser.barriers import barriers
from browser.playground import THEMES
from browser.visit import SCREENS, served

LOADED_MS = 120_000  # a busy machine starts Python slowly; nothing here measures that
# From one change to the results that it brings.
CHANGES = """async values => {
    const results = document.querySelector(".ft-results");
    const field = document.querySelector("#ft-batch");
    const times = [];
    for (const value of values) {
        const shown = new Promise(done => {
            const seen = new MutationObserver(() => { seen.disconnect(); done(); });
            seen.observe(results, {childList: true});
        });
        const start = performance.now();
        field.value = value;
        field.dispatchEvent(new Event("input", {bubbles: true}));
        await shown;
        times.push(performance.now() - start);
    }
    return times;
}"""
FIRST = """() => new Promise(done => {
    const start = performance.now();
    const seen = new MutationObserver(() => done(performance.now() - start));
    seen.observe(document.querySelector(".ft-results"), {childList: true});
    document.querySelector(".ft-actions button").click();
})"""
MIXTRAL = {
    "model_type": "mixtral",
    "num_hidden_layers": 8,
    "hidden_size": 2048,
    "num_local_experts": 4,
    "_name_or_path": "ours & <b>theirs</b>",
}
GEMMA = {"model_type": "gemma3_text", "num_hidden_layers": 13, "sliding_window": 256}
DEEPSEEK = {"model_type": "deepseek_v3", "num_hidden_layers": 6}


class Site:
    """The calculator's page on a server of its own, and a browser that reaches nothing else."""

    def __init__(self, browser, address: str):
        self.browser, self.address = browser, address
        self.requests, self.troubles, self.contexts = [], [], []

    def open(self, link: str = "", theme="light", screen="desktop", **options) -> Page:
        touch = screen == "phone"
        context = self.browser.new_context(
            viewport=SCREENS[screen],
            color_scheme=theme,
            has_touch=touch,
            is_mobile=touch,
            permissions=["clipboard-read", "clipboard-write"],
            **options,
        )
        self.contexts.append(context)
        context.on("request", lambda request: self.requests.append(request.url))
        page = context.new_page()
        page.on("pageerror", lambda error: self.troubles.append(f"page error: {error}"))
        page.on("console", lambda m: m.type == "error" and self.troubles.append(m.text))
        page.goto(f"{self.address}page.html{link}")
        return page

    def ready(self, link: str = "", **options) -> Page:
        """Open the page and wait until Python has answered."""
        page = self.open(link, **options)
        if not link:
            page.get_by_role("button", name="Calculate").click()
        expect(page.locator(".ft-copy")).to_be_visible(timeout=LOADED_MS)
        page.wait_for_function("() => document.querySelector('.ft-status.ft-unseen')")
        return page


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("calculator")
    given = build.write_calculator(folder / "_static")
    (folder / "page.html").write_text(
        '<!doctype html><html lang="en"><title>t</title><link rel="icon" href="data:,">'
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width">{THEMES}'
        f"<body><main><h1>Calculator</h1>{written.page(**given)}</main></body></html>",
        "utf-8",
    )

    with served(folder) as address:
        yield address


@pytest.fixture
def site(browser, address) -> Iterator[Site]:
    site = Site(browser, address)
    yield site
    for context in site.contexts:
        context.close()
    outside = [url for url in site.requests if not url.startswith((address, "data:", "blob:"))]
    assert site.troubles + outside == []


@pytest.fixture(scope="module")
def running(browser, address) -> Iterator[Page]:
    """A page in which Python runs already, for tests that only ask."""
    site = Site(browser, address)
    yield site.ready()
    site.contexts[0].close()
    assert site.troubles == []


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
    page.wait_for_function(
        """html => {
            const other = document.createElement("div");
            other.innerHTML = html;
            return document.querySelector(".ft-results").innerHTML === other.innerHTML;
        }""",
        arg=expected(settings)["results"],
        timeout=LOADED_MS,
    )
    expect(page.locator(".ft-outdated")).to_have_count(0)


CASES = {
    "dense": {},
    "several": {"model": "Llama-3.1-70B", "n_devices": "8", "dollars_per_hour": "2.50"},
    "experts": {"model": "Mixtral-8x7B", "accelerator": "A100-80GB", "n_devices": "2"},
    "latent": {"model": "DeepSeek-V3", "accelerator": "H200-SXM", "n_devices": "8"},
    "windows": {"model": "Gemma-3-27B", "context": "131072", "batch": "1", "n_devices": "8"},
    "all windows": {"model": "Mistral-7B", "accelerator": "L4", "context": "100000"},
    "too large": {"model": "Llama-3.1-405B", "accelerator": "L4", "dollars_per_hour": "0"},
    "small": {"model": "GPT-2", "accelerator": "M1", "batch": "1", "context": "1"},
    "formats": {"dtype": "q4_0", "kv_dtype": "int8", "accelerator": "RTX-4090", "batch": "7"},
    "pasted experts": {"model": "config", "config": json.dumps(MIXTRAL), "batch": "3"},
    "pasted windows": {"model": "config", "config": json.dumps(GEMMA), "n_devices": "8"},
    "pasted latent": {"model": "config", "config": json.dumps(DEEPSEEK), "accelerator": "B200"},
}


@pytest.mark.parametrize("name", CASES)
def test_the_page_says_what_python_says(running, name):
    settings = written.START | CASES[name]
    fill(running, settings)
    expect_results(running, settings)


def test_results_are_there_before_python_and_without_a_script(site):
    """The worked example is that of the form; nothing of Pyodide is loaded for it."""
    for options in ({}, {"java_script_enabled": False}):
        page = site.open(**options)
        expect(page.locator(".ft-verdict")).to_contain_text("Fits: 50.42 GB of 80.00 GB")
        expect(page.get_by_role("img")).to_have_count(2)
        expect(page.locator("form")).to_be_visible(visible=not options)
    page = site.open()
    expect_results(page, written.START)
    page.locator("#ft-batch").fill("64")
    expect(page.locator(".ft-outdated")).to_have_attribute("data-note", re.compile("Calculate"))
    page.wait_for_load_state("networkidle")
    names = {url.rpartition("/")[2] for url in site.requests}
    assert names == {"page.html", "calculator.css", "calculator.js"}


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"batch": "0"}, "batch", "batch must be an integer of at least 1, got 0"),
        ({"batch": "-3"}, "batch", "batch must be an integer of at least 1, got -3"),
        ({"batch": "8.5"}, "batch", "batch must be an integer of at least 1, got '8.5'"),
        ({"context": ""}, "context", "context must be an integer of at least 1, got ''"),
        ({"dollars_per_hour": "-1"}, "dollars_per_hour", "dollars_per_hour must not be negative"),
        ({"dollars_per_hour": "ten"}, "dollars_per_hour", "dollars_per_hour must be a number"),
        ({"accelerator": "M1", "n_devices": "2"}, "n_devices", "link_bandwidth must be positive"),
        ({"model": "config", "config": "{"}, "config", "config is not readable as JSON"),
        (
            {"model": "config", "config": '{"model_type": "bert"}'},
            "config",
            "model_type 'bert' is not supported; expected one of llama, mistral",
        ),
        (
            {"model": "config", "config": '{"model_type": "llama", "vocab_size": -5}'},
            "config",
            "vocab_size must be an integer of at least 1, got -5",
        ),
    ],
)
def test_an_error_is_the_library_s_own_words_beside_its_field(running, changes, field, words):
    page = running
    good = written.START | {"batch": "5"}
    fill(page, good)
    expect_results(page, good)
    # What another test has pasted would be answered first.
    page.locator("#ft-config").evaluate("field => { field.value = ''; }")
    *first, last = changes.items()
    fill(page, dict(first))
    if "results" in expected(good | dict(first)):
        expect_results(page, good | dict(first))
    before = page.locator(".ft-results").inner_html()
    fill(page, dict([last]))
    shown = page.locator(".ft-problem:visible")
    expect(shown).to_have_count(1)
    expect(shown).to_contain_text(words)
    if "JSON" not in words:  # what Python says there differs from version to version
        expect(shown).to_have_text(expected(good | changes)["problem"])
    expect(shown).to_have_id(f"ft-{field}-problem")
    expect(page.locator(f"#ft-{field}")).to_have_attribute("aria-invalid", "true")
    expect(page.locator(f"#ft-{field}")).to_have_accessible_description(
        re.compile(re.escape(words))
    )
    expect(page.locator(".ft-results.ft-outdated")).to_be_visible()
    assert page.locator(".ft-results").inner_html() == before
    fill(page, {name: good[name] for name in changes if name != "config"})
    expect_results(page, good)
    expect(page.locator(".ft-problem:visible, [aria-invalid=true]")).to_have_count(0)


@pytest.mark.parametrize("name", ["several", "formats", "pasted experts"])
def test_a_link_restores_everything(site, running, name):
    settings = written.START | CASES[name]
    fill(running, settings)
    expect_results(running, settings)
    running.wait_for_function("() => document.querySelector('.ft-status.ft-unseen')")
    running.locator(".ft-copy").click()
    expect(running.locator(".ft-status")).to_have_text("The link is copied.")
    link = running.evaluate("navigator.clipboard.readText()")
    assert link == running.url
    page = site.ready("#" + link.partition("#")[2])
    expect_results(page, settings)
    for key, value in settings.items():
        expect(page.locator(f"#ft-{key}")).to_have_value(value)


def test_a_pasted_config_is_compact_in_a_link(running):
    """Fifty entries of a real config and its two hundred of other kinds: a third of its text."""
    config = json.dumps(MIXTRAL | {f"task_specific_params_{i}": i for i in range(200)}, indent=2)
    settings = written.START | {"model": "config", "config": config}
    fill(running, settings)
    expect_results(running, settings)
    running.wait_for_function("() => location.hash.includes('config=')")
    (packed,) = (v for k, v in parse_qsl(running.url.partition("#")[2]) if k == "config")
    assert len(packed) < len(config) / 3


def test_a_config_too_long_for_a_link_is_said(running):
    """Random digits can hardly be made shorter; the address stays that of what fitted last."""
    noise = f"{random.Random(0).getrandbits(100_000):x}"
    config = json.dumps(MIXTRAL | {"vocab_size": 777, "noise": noise})
    fill(running, written.START)
    expect_results(running, written.START)
    running.wait_for_function("() => location.hash.includes('model=Llama-3.1-8B')")
    fill(running, {"model": "config", "config": config})
    expect_results(running, written.START | {"model": "config", "config": config})
    running.locator(".ft-copy").click()
    expect(running.locator(".ft-status")).to_contain_text(re.compile(r"has \d{5} characters"))
    assert "model=Llama-3.1-8B" in running.url and len(running.url) < 8000


def test_a_link_of_another_kind(site):
    """A heading's link loads nothing; a damaged one is told what is wrong with it.

    "length" is a property of every form, and no field.
    """
    page = site.open("#what-is-counted")
    page.wait_for_load_state("networkidle")
    assert not any("pyodide" in url for url in site.requests)
    page = site.open("#model=Llama-5&batch=2&nonsense=1&length=3")
    problem = page.locator("#ft-model-problem")
    expect(problem).to_contain_text("model 'Llama-5' is unknown", timeout=LOADED_MS)
    expect(page.locator("#ft-batch")).to_have_value("2")
    page.evaluate("location.hash = '#model=config&config=%25broken'")
    expect(page.locator("#ft-config-problem")).to_contain_text("config is not readable as JSON")
    page.evaluate("location.hash = '#model=GPT-2&batch=3'")
    expect(page.locator(".ft-shape")).to_contain_text("GPT-2, 124 M parameters")


def test_a_name_is_text_and_no_markup(running):
    """A link may come from anyone."""
    bad = "<img src=x onerror='window.hurt = true'>"
    settings = {"model": "config", "config": json.dumps(MIXTRAL | {"_name_or_path": bad})}
    fill(running, written.START | settings)
    expect(running.locator(".ft-shape")).to_contain_text(bad)
    assert running.locator(".ft-results img").count() == 0
    assert running.evaluate("window.hurt") is None


def test_it_works_without_a_network_once_loaded(site):
    page = site.ready()
    n_requests = len(site.requests)
    page.context.set_offline(True)
    for name in ("experts", "pasted latent"):
        fill(page, written.START | CASES[name])
        expect_results(page, written.START | CASES[name])
    assert len(site.requests) == n_requests


def test_without_a_network_it_says_so_and_can_be_tried_again(browser, address):
    site = Site(browser, address)
    page = site.open()
    page.context.set_offline(True)
    page.get_by_role("button", name="Calculate").click()
    expect(page.locator(".ft-status")).to_contain_text("Python could not be loaded")
    page.context.set_offline(False)
    page.get_by_role("button", name="Calculate").click()
    expect(page.locator(".ft-copy")).to_be_visible(timeout=LOADED_MS)
    page.context.close()


def test_python_is_started_again_after_it_stopped(browser, address):
    """A text that nests a hundred thousand deep is more than the browser's stack holds."""
    site = Site(browser, address)
    page = site.ready()
    fill(page, {"model": "config", "config": "[" * 100_000})
    expect(page.locator(".ft-status")).to_contain_text("Python stopped", timeout=LOADED_MS)
    fill(page, written.START | CASES["pasted latent"])
    page.get_by_role("button", name="Calculate").click()
    expect(page.locator(".ft-shape")).to_contain_text("deepseek_v3", timeout=LOADED_MS)
    expect_results(page, written.START | CASES["pasted latent"])
    page.context.close()


def test_progress_grows_to_its_end(site):
    page = site.open()
    page.evaluate(
        """() => {
            const bar = document.querySelector("progress");
            window.seen = [];
            new MutationObserver(() => window.seen.push(bar.value))
                .observe(bar, {attributes: true});
        }"""
    )
    page.get_by_role("button", name="Calculate").click()
    expect(page.locator("progress")).to_be_visible()
    expect(page.locator(".ft-copy")).to_be_visible(timeout=LOADED_MS)
    expect(page.locator("progress")).to_be_hidden()
    seen = page.evaluate("window.seen")
    assert seen == sorted(seen) and len(seen) > 5
    assert seen[-1] == pytest.approx(1, abs=1e-3)


def test_sliders_move_by_key_in_doublings(running):
    fill(running, written.START)
    for name, key, value in (
        ("batch", "ArrowRight", "64"),
        ("batch", "Home", "1"),
        ("context", "ArrowLeft", "4096"),
        ("context", "End", "1048576"),
    ):
        slider = running.locator(f"[data-of={name}]")
        slider.focus()
        slider.press(key)
        expect(running.locator(f"#ft-{name}")).to_have_value(value)
        expect(slider).to_have_attribute("aria-valuetext", value)
    expect_results(running, written.START | {"batch": "1", "context": "1048576"})
    fill(running, {"batch": "100"})  # between two doublings
    expect(running.locator("[data-of=batch]")).to_have_attribute("aria-valuetext", "100")


def test_a_change_is_announced_once(running):
    """A screen reader hears the end of a drag, not each of its steps."""
    status = running.locator("[role=status][aria-live=polite]")
    fill(running, written.START)
    expect(status).to_have_text(expected(written.START)["summary"])
    running.evaluate(
        """() => {
            window.heard = [];
            const status = document.querySelector("[role=status]");
            new MutationObserver(() => window.heard.push(status.textContent))
                .observe(status, {childList: true});
        }"""
    )
    slider = running.locator("[data-of=batch]")
    for _ in range(4):
        slider.press("ArrowRight")
    last = expected(written.START | {"batch": "512"})["summary"]
    expect(status).to_have_text(last)
    assert running.evaluate("window.heard") == [last]


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nobody_is_shut_out(site, theme, screen):
    """Before, after and with an error: no barrier, nothing wider than the screen."""

    def look():
        assert barriers(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= SCREENS[screen]["width"]

    page = site.open(theme=theme, screen=screen)
    look()
    if screen == "phone":
        heights = page.locator("form :is(input, select, button):visible").evaluate_all(
            "fields => fields.map(field => field.getBoundingClientRect().height)"
        )
        assert min(heights) >= 40
    page.get_by_role("button", name="Calculate").press("Enter")
    expect(page.locator(".ft-copy")).to_be_visible(timeout=LOADED_MS)
    fill(page, CASES["several"])
    expect_results(page, written.START | CASES["several"])
    look()
    fill(page, {"model": "config", "config": '{"model_type": "bert"}'})
    expect(page.locator("#ft-config-problem")).to_be_visible()
    look()


def test_how_long_it_takes(site, record_property):
    first = site.open().evaluate(FIRST)
    again = site.ready()
    times = again.evaluate(CHANGES, [str(n) for n in range(1, 41)])
    record_property(
        "measured",
        f"calculator: first result {first / 1000:.1f} s after the click; a change "
        f"{statistics.median(times):.0f} ms, at most {max(times):.0f} ms over {len(times)}",
    )
