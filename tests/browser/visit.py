"""A page of the built site, opened in a browser that reaches nothing else."""

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import Browser, Page, TimeoutError, expect

ROOT = Path(__file__).parents[2]
SITE = ROOT / "_build" / "html"
PAGES = [str(page.relative_to(SITE)) for page in sorted(SITE.rglob("*.html"))]
PAGES = [page for page in PAGES if not page.startswith("_static/")]
# Pages that the theme writes without a chapter's text.
CONTENT = [page for page in PAGES if page.startswith(("book/", "notebooks/"))]
FRONT = "book/intro.html"
NOTEBOOKS = [page for page in CONTENT if page.startswith("notebooks/")]
CHAPTERS = [page for page in NOTEBOOKS if Path(page).stem[:2].isdecimal()]  # no appendices
# Colours and folds change over some frames, and the first page writes for some seconds.
SETTLED = "document.getAnimations().forEach(animation => animation.finish())"
WHOLE = """async () => {
    if (document.readyState !== "complete")
        await new Promise(done => addEventListener("load", done));
    await document.fonts.ready;
    await window.MathJax?.startup?.promise;
    await new Promise(done => requestIdleCallback(done));
}"""
IDLE_MS = 10_000
STEP_MS = 60_000  # a busy machine is slow; no test measures by how long it waits
FRAMES = """() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"""
# Not beside innerWidth: on a phone that grows with what is too wide.
WIDTH = "() => document.documentElement.scrollWidth"
# Pictures that say nothing to who does not see them.
UNNAMED = """() => [...document.querySelectorAll("img, svg[role=img]")]
    .filter(node => !["alt", "aria-label", "aria-labelledby", "aria-hidden"]
        .some(name => node.hasAttribute(name)))
    .map(node => node.outerHTML.slice(0, 200))"""
SCREENS = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}


def pages_with(name: str) -> list[str]:
    """Return the pages of the book whose source has a name; the others have nothing to try."""
    return [page for page in CONTENT if name in (SITE / page).read_text("utf-8")] or ["none"]


def until(page: Page, holds: Callable[[], object]) -> None:
    """Wait until something holds of a page, for what Playwright cannot wait for by itself."""
    end = time.monotonic() + STEP_MS / 1000
    while not holds():
        assert time.monotonic() < end, "it never came about"
        page.wait_for_timeout(50)


def settle(page: Page) -> None:
    """Wait until a page has loaded, and its fonts and formulas are set.

    Chromium's network may never count as idle: a font that it takes from its own memory can be
    under way for ever. So that is not waited for without end.
    """
    with suppress(TimeoutError):
        page.wait_for_load_state("networkidle", timeout=IDLE_MS)
    page.evaluate(WHOLE)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_arguments):
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port and yield its address."""
    handler = functools.partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Visit:
    """A page in one theme on one screen, with everything that went wrong while it was open."""

    def __init__(self, browser: Browser, address: str, theme: str = "light", screen="desktop"):
        self.address, self.troubles = address, []
        touch = screen == "phone"
        self.context = browser.new_context(
            viewport=SCREENS[screen], color_scheme=theme, has_touch=touch, is_mobile=touch
        )
        self.context.set_default_timeout(STEP_MS)
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
        settle(self.page)
        # Solutions and hints are closed; what is in them is tested too.
        self.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        # Folded code fades in; half faded it has too little contrast.
        self.page.evaluate(SETTLED)
        for figure in self.page.locator(".ft-explore").all():
            expect(figure.locator("svg.ft-figure")).to_be_visible()
        return self.page

    def __enter__(self):
        return self

    def __exit__(self, kind, *_details):
        self.context.close()
        if kind is None:
            assert not self.troubles, "\n".join(self.troubles)
