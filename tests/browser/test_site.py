"""The built site in a real browser: every page, every slider, nothing from outside.

The browser is Debian's Chromium. Every request to another host is aborted and fails the test.
"""

import functools
import gzip
import importlib.util
import json
import os
import re
import shutil
import statistics
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

ROOT = Path(__file__).parents[2]
SITE = ROOT / "_build" / "html"
AXE = ROOT / "_build" / "node" / "node_modules" / "axe-core" / "axe.min.js"
PAGES = [str(page.relative_to(SITE)) for page in sorted(SITE.rglob("*.html"))]
PAGES = [page for page in PAGES if not page.startswith("_static/")]
# Pages that the theme writes without a chapter's text.
CONTENT = [page for page in PAGES if page.startswith(("book/", "notebooks/"))]
CHAPTERS = [page for page in CONTENT if page.startswith("notebooks/")]
SCREENS = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
MAX_FIGURE_BYTES = 150_000  # of one slider figure, after gzip
# A page may hold a handful of slider figures. A first visit to a chapter also loads 1.2 MB of
# scripts and fonts (sliders 0.5, formulas 0.4, theme and icons 0.3), which every later page takes
# from the browser's cache. The two limits leave no room for one more script that nobody noticed.
MAX_PAGE_BYTES, MAX_VISIT_BYTES = 400_000, 1_600_000
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = pytest.mark.browser

spec = importlib.util.spec_from_file_location("picture", ROOT / "book" / "picture.py")
picture = importlib.util.module_from_spec(spec)
spec.loader.exec_module(picture)

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
UNNAMED = """() => [...document.querySelectorAll("img, svg[role=img]")]
    .filter(node => !["alt", "aria-label", "aria-labelledby", "aria-hidden"]
        .some(name => node.hasAttribute(name)))
    .map(node => node.outerHTML.slice(0, 200))"""
OVERFLOW = "() => document.documentElement.scrollWidth - innerWidth"
CUT_TABLES = """() => [...document.querySelectorAll(".pst-scrollable-table-container")]
    .filter(box => box.scrollWidth > box.clientWidth)
    .map(box => box.textContent.trim().slice(0, 80))"""
CUT_CODE = """() => [...document.querySelectorAll("article pre")]
    .filter(code => code.scrollWidth > code.clientWidth)
    .map(code => code.textContent.slice(0, 80))"""
SERIOUS = """async () => (await axe.run(document, {preload: false})).violations
    .filter(v => ["serious", "critical"].includes(v.impact))
    .map(v => v.id + ": " + v.nodes.map(n => n.html.slice(0, 200)).join(" | "))"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Serve the built site on a free port."""
    if not PAGES:
        if os.environ.get("CI"):
            pytest.fail("no site in _build/html: run `make book` first")
        pytest.skip("no site in _build/html: run `make book` first")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_arguments):
            pass

    handler = functools.partial(Quiet, directory=str(SITE))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.fail("no chromium found; install it or set CHROMIUM to its path")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Visit:
    """A page in one theme on one screen, with everything that went wrong while it was open."""

    def __init__(self, browser: Browser, address: str, theme: str = "light", screen="desktop"):
        self.address, self.troubles = address, []
        touch = screen == "phone"
        self.context = browser.new_context(
            viewport=SCREENS[screen], color_scheme=theme, has_touch=touch, is_mobile=touch
        )
        self.context.route("**/*", self._only_this_site)
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.troubles.append(f"page error: {error}"))
        self.page.on("console", self._on_console)
        self.page.on("response", self._on_response)

    def _only_this_site(self, route):
        if route.request.url.startswith((self.address, "data:", "blob:")):
            route.continue_()
        else:
            self.troubles.append(f"outside request: {route.request.url}")
            route.abort()

    def _on_console(self, message):
        if message.type == "error":
            self.troubles.append(f"console: {message.text}")

    def _on_response(self, response):
        if response.status >= 400:
            self.troubles.append(f"{response.status}: {response.url}")

    def open(self, path: str) -> Page:
        self.page.goto(self.address + path)
        self.page.wait_for_load_state("networkidle")
        # Solutions and hints are closed; what is in them is tested too.
        self.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        # Folded code fades in; half faded it has too little contrast.
        self.page.evaluate("Promise.all(document.getAnimations().map(a => a.finished))")
        for figure in self.page.locator(".ft-explore").all():
            expect(figure.locator("svg.ft-figure")).to_be_visible()
        return self.page

    def __enter__(self):
        return self

    def __exit__(self, kind, *_details):
        self.context.close()
        if kind is None:
            assert not self.troubles, "\n".join(self.troubles)


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES or ["none"])
def test_page_is_sound(browser, address, path, theme, screen):
    """No error, no outside request, nothing unnamed, nothing too wide, no barrier."""
    with Visit(browser, address, theme, screen) as visit:
        page = visit.open(path)
        if "Redirecting" in page.title():
            return
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        assert page.evaluate(UNNAMED) == []
        assert page.evaluate(OVERFLOW) <= 0
        if screen == "desktop":  # on a phone a table scrolls in its own box
            assert page.evaluate(CUT_TABLES) == []
        page.add_script_tag(path=str(AXE))
        assert page.evaluate(SERIOUS) == []


@pytest.mark.parametrize("path", CONTENT or ["none"])
def test_page_prints(browser, address, path):
    """On paper: dark on white, no way into JupyterLab, and nothing cut at the right."""
    with Visit(browser, address, "dark") as visit:
        page = visit.open(path)
        page.set_viewport_size({"width": 794, "height": 1123})  # A4
        page.emulate_media(media="print", color_scheme="dark")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        assert page.evaluate(OVERFLOW) <= 0
        assert page.evaluate(CUT_TABLES) == []
        assert page.evaluate(CUT_CODE) == []
        for way in page.locator(".ft-lab").all():
            expect(way).to_be_hidden()
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


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


@pytest.mark.parametrize("path", CONTENT or ["none"])
def test_every_slider_moves(browser, address, path, capsys):
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
        with capsys.disabled():
            print(
                f"\n{path}: key to frame, median {statistics.median(latencies):.0f} ms, "
                f"max {max(latencies):.0f} ms over {len(latencies)} moves"
            )


@pytest.mark.parametrize("path", CONTENT or ["none"])
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


@pytest.mark.parametrize("path", CONTENT or ["none"])
def test_quizzes_answer_in_the_page(browser, address, path):
    """Without a kernel an answer still gets a reply."""
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


def test_next_and_previous_lead_through_the_book(browser, address):
    """From the first page, `next` visits every page of the book; `previous` undoes each step."""
    with Visit(browser, address) as visit:
        page = visit.open("book/intro.html")
        expect(page.locator("a.left-prev")).to_have_count(0)
        seen = [page.url]
        while page.locator("a.right-next").count():
            page.locator("a.right-next").click()
            page.wait_for_load_state("networkidle")
            assert page.locator("a.left-prev").evaluate("link => link.href") == seen[-1]
            seen.append(page.url)
            assert len(seen) <= len(CONTENT), "next goes in a circle"
        assert {url.removeprefix(address) for url in seen} == set(CONTENT)


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("truncate unlinked", None),
        ("mlock", "notebooks/04_kv_cache.html"),
        ("perplexity", "book/glossary.html"),
        ("bandwidth", "book/notation.html"),
    ],
)
def test_search(browser, address, words, path):
    """What only one page has is found there; what no page has is said not to be found."""
    with Visit(browser, address) as visit:
        page = visit.open(f"search.html?q={words.replace(' ', '+')}")
        results = page.locator("#search-results li a")
        if path is None:
            expect(page.locator("#search-results")).to_contain_text("did not match any documents")
            expect(results).to_have_count(0)
        else:
            expect(page.locator(f"#search-results li a[href*='{path}']").first).to_be_visible()


def test_search_field_leads_to_the_results(browser, address):
    """By keyboard, from a chapter."""
    with Visit(browser, address) as visit:
        page = visit.open(CHAPTERS[0])
        page.keyboard.press("Control+k")
        page.keyboard.type("perplexity")
        page.keyboard.press("Enter")
        page.wait_for_url("**/search.html?q=perplexity*")
        expect(page.locator("#search-results li a[href*='glossary']").first).to_be_visible()


@pytest.mark.parametrize("path", CONTENT or ["none"])
def test_title_line_works_without_a_script(browser, address, path):
    """The reading time is on every page; the way into JupyterLab, on chapters, opens by key."""
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(address + path)
        line = page.locator("h1 + .ft-page-line")
        expect(line).to_contain_text(re.compile(r"^[1-9]\d* min to read"))
        way = line.locator("details")
        expect(way).to_have_count(int(path in CHAPTERS))
        if path in CHAPTERS:
            stem = Path(path).stem
            expect(way.locator("pre").first).to_be_hidden()
            way.locator("summary").press("Enter")
            expect(way.locator("pre").first).to_have_text(f"make lab CHAPTER={stem[:2]}")
            expect(way.locator(f"a[href$='/lab/tree/notebooks/{stem}.ipynb']")).to_be_visible()


def test_index_lists_every_slider_figure(browser, address):
    """Each link leads to a section with as many slider figures as the index describes there."""
    figures = {path: (SITE / path).read_text("utf-8").count('"ft-explore"') for path in CHAPTERS}
    with Visit(browser, address) as visit:
        page = visit.open("book/figures.html")
        listed = {}
        for entry in page.locator("article dl > dt").all():
            url = entry.locator("a").evaluate("link => link.href")
            listed[url] = entry.locator("xpath=following-sibling::dd[1]//p").count() // 2
        counts = dict.fromkeys(CHAPTERS, 0)
        for url, n_figures in listed.items():
            path, _, anchor = url.removeprefix(address).partition("#")
            if not visit.page.url.endswith(path):
                visit.open(path)
            section = page.locator(f"section[id='{anchor}']")
            assert section.locator(":scope > .cell .ft-explore").count() == n_figures
            counts[path] += n_figures
    assert counts == figures


def test_picture_in_readme_shows_the_figure_of_the_site(browser, address):
    with Visit(browser, address) as visit:
        figure = picture.shown_figure(visit.open(picture.CHAPTER))
        assert picture.fingerprint(figure) == picture.stored_fingerprint(), (
            "README's picture is stale: run `python book/picture.py`"
        )


def test_chapters_download_as_notebooks(address):
    """The file offered is the notebook itself, without outputs."""
    for path in CHAPTERS:
        html = (SITE / path).read_text("utf-8")
        link = re.search(r'href="([^"]*_sources/[^"]*\.ipynb)"', html)
        assert link, f"{path} offers no notebook"
        notebook = json.loads((SITE / path).parent.joinpath(link[1]).resolve().read_text())
        assert notebook["cells"]


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


@pytest.mark.parametrize("path", CONTENT or ["none"])
def test_slider_figures_are_light(address, path, capsys):
    weights = figure_weights((SITE / path).read_text("utf-8"))
    if weights:
        with capsys.disabled():
            shown = ", ".join(f"{weight / 1000:.0f} KB" for weight in weights)
            print(f"\n{path}: slider figures after gzip: {shown}")
    assert all(weight <= MAX_FIGURE_BYTES for weight in weights), weights


def first_visit(browser, address, path) -> tuple[int, int]:
    """Return the bytes of a page and of all that it loads, as a server with gzip sends them."""
    with Visit(browser, address) as visit:
        answers = []
        visit.page.on("response", lambda answer: answers.append(answer))
        visit.open(path)
        weights = {}
        for answer in answers:
            body, kind = answer.body(), answer.headers.get("content-type", "")
            packed = kind.startswith(("image/png", "font/"))
            weights[answer.url] = len(body if packed else gzip.compress(body, mtime=0))
    return weights[address + path], sum(weights.values())


@pytest.mark.parametrize("path", CONTENT or ["none"])
def test_pages_are_light(browser, address, path, capsys):
    page, everything = first_visit(browser, address, path)
    with capsys.disabled():
        print(f"\n{path}: {page / 1000:.0f} KB, first visit {everything / 1000:.0f} KB after gzip")
    assert page <= MAX_PAGE_BYTES
    assert everything <= MAX_VISIT_BYTES
