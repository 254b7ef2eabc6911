"""A small site with live views alone, for tests that need no chapter around them.

`stage.open(view, …)` shows views as the built site does; `stage.engine()` opens a page that has the
model and nothing else, and its `engine` can be asked with `page.evaluate`. A stage may have a real
model, too: a GGUF file.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page, expect

from browser.visit import SCREENS, STEP_MS, served
from firsttoken.live import View, assets

# The theme's variables as the book's theme sets them, so that colours can be looked at.
THEMES = """<style>
:root { color-scheme: light; --pst-color-background: #fff; --pst-color-surface: #f3f4f5;
  --pst-color-text-base: #222832; --pst-color-text-muted: #48566b; --pst-color-border: #d1d5da;
  --pst-color-primary: #0a7d91; --pst-color-link: #0a7d91; }
@media (prefers-color-scheme: dark) { :root { color-scheme: dark;
  --pst-color-background: #14181e; --pst-color-surface: #222832; --pst-color-text-base: #ced6dd;
  --pst-color-text-muted: #9ca4af; --pst-color-border: #48566b; --pst-color-primary: #3fb1c5;
  --pst-color-link: #3fb1c5; } }
body { background: var(--pst-color-background); color: var(--pst-color-text-base);
  font: 16px/1.5 system-ui, sans-serif; margin: 1rem; }
</style>"""
# For who listens to a page; to the eye it takes no room.
TITLE = '<h1 style="position: absolute; clip-path: inset(50%); margin: 0">Live views</h1>'
OPEN = """async ({draft}) => {
    const live = await import(new URL("live.js", window.assets));
    const root = document.createElement("div");
    root.dataset.assets = window.assets;
    window.engine = await live.openEngine(live.siteHost(root), () => {});
    if (draft) await window.engine.need("draft", () => {});
}"""
OPEN_REAL = """async () => {
    window.live = await import(new URL("live.js", window.assets));
    const root = document.createElement("div");
    root.dataset.assets = window.assets;
    window.host = window.live.siteHost(root);
    window.engine = await window.live.openRealEngine(window.host);
}"""


class Stage:
    """A served folder with the assets, and a browser that reaches nothing else."""

    def __init__(self, browser: Browser, folder: Path, address: str):
        self.browser, self.folder, self.address = browser, folder, address
        self.troubles: list[str] = []
        self.contexts: list[BrowserContext] = []
        self._n_pages = 0

    @property
    def assets(self) -> Path:
        """The folder of what the views load."""
        return self.folder / "_static" / "live" / assets.version()

    def open(self, *views: View, theme: str = "light", screen: str = "desktop", **options) -> Page:
        """Open a page with some views, as the site shows them: not yet started."""
        body = "\n".join(view.on_site() for view in views)
        return self._page(body, theme, screen, **options)

    def started(self, view: View, **options) -> Page:
        """Open a page with a view and start it."""
        page = self.open(view, **options)
        page.get_by_role("button", name="Try it").click()
        expect(page.get_by_label("Your text")).to_be_visible()
        return page

    def engine(self, draft: bool = False) -> Page:
        """Open a page whose `engine` runs the target, and the draft if wanted."""
        page = self.empty_page()
        page.evaluate(OPEN, {"draft": draft})
        return page

    def real_engine(self) -> Page:
        """Open a page whose `engine` runs the stage's real model."""
        page = self.empty_page()
        page.evaluate(OPEN_REAL)
        return page

    def empty_page(self) -> Page:
        """Open a page that knows where the assets are, and has loaded none."""
        place = f"{self.address}_static/live/{assets.version()}/"
        return self._page(f"<script>window.assets = {place!r}</script>", "light", "desktop")

    def _page(self, body: str, theme: str, screen: str, **options) -> Page:
        self._n_pages += 1
        name = f"page{self._n_pages}.html"
        head = (
            '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            '<link rel="icon" href="data:,">'
        )
        (self.folder / name).write_text(
            f'<!doctype html><html lang="en" data-content_root="./"><title>t</title>{head}{THEMES}'
            f"<body><main>{TITLE}{body}</main></body></html>",
            "utf-8",
        )
        touch = screen == "phone"
        context = self.browser.new_context(
            viewport=SCREENS[screen],
            color_scheme=theme,
            has_touch=touch,
            is_mobile=touch,
            **options,
        )
        context.set_default_timeout(STEP_MS)
        self.contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: self.troubles.append(f"page error: {error}"))
        page.on("console", lambda m: m.type == "error" and self.troubles.append(m.text))
        page.on("request", self._only_this_site)
        page.goto(self.address + name)
        return page

    def _only_this_site(self, request) -> None:
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.troubles.append(f"outside request: {request.url}")

    def close(self) -> None:
        for context in self.contexts:
            context.close()
        self.contexts.clear()


@contextmanager
def served_stage(browser: Browser, folder: Path, real: Path | None = None) -> Iterator[Stage]:
    """Serve a new folder with the assets, and with a real model if one is given."""
    shutil.rmtree(folder / "_static", ignore_errors=True)
    assets.write(folder / "_static", real)

    with served(folder) as address:
        yield Stage(browser, folder, address)
