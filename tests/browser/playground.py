"""A small site with live views alone, for tests that need no chapter around them.

`stage.open(view, …)` shows views as the built site does; `stage.engine()` opens a page that has the
model and nothing else, and its `engine` can be asked with `page.evaluate`.
"""

import importlib.util
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page

from browser.visit import ROOT, SCREENS, STEP_MS, served
from firsttoken.live import View, assets
from firsttoken.live.views import site_html

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

MODEL = """async ([code, name]) => {
    const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
    Object.assign(window, await import(address));
    const manifest = await (await fetch(new URL("manifest.json", window.assets))).json();
    window.file = async (path) => {
        const packed = await fetch(new URL(`${path}.gz`, window.assets));
        return window.unpack(await packed.arrayBuffer(), path, manifest[path]);
    };
    const config = new TextDecoder().decode(await window.file(`${name}/config.json`));
    const weights = await window.file(`${name}/model.safetensors`);
    window.config = JSON.parse(config);
    window.model = window.createModel(window.config, weights);
}"""


def model_module(folder: Path, changes: Mapping[str, str] | None = None) -> str:
    """Return the model of the engine, and what reads its files, as one module.

    `changes` to its source, what stands there to what shall, make the model of somebody else.
    """
    spec = importlib.util.spec_from_file_location("bundle", ROOT / "book" / "bundle.py")
    bundle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bundle)
    bundle.bundled()  # makes the kernel that the module takes in
    engine = shutil.copytree(bundle.LIVE / "engine", folder / "engine")
    text = (engine / "llama.js").read_text("utf-8")
    for old, new in (changes or {}).items():
        assert old in text, f"{old!r} is not in llama.js"
        text = text.replace(old, new)
    (engine / "llama.js").write_text(text, "utf-8")
    parts = {"createModel": "llama", "unpack": "packed"}
    lines = [f'export {{ {name} }} from "./{file}.js";' for name, file in parts.items()]
    (engine / "entry.js").write_text("\n".join(lines), "utf-8")
    bundle.esbuild(engine / "entry.js", folder / "model.js", "--loader:.wasm=binary")
    return (folder / "model.js").read_text("utf-8")


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
        body = "\n".join(site_html(v.view, v.settings, v.still) for v in views)
        return self._page(body, theme, screen, **options)

    def engine(self, draft: bool = False) -> Page:
        """Open a page whose `engine` runs the target, and the draft if wanted."""
        page = self.empty_page()
        page.evaluate(OPEN, {"draft": draft})
        return page

    def model(self, module: str, name: str = "target") -> Page:
        """Open a page with a `model` made by a `model_module`, without the worker around it."""
        page = self.empty_page()
        page.evaluate(MODEL, [module, name])
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
def served_stage(browser: Browser, folder: Path) -> Iterator[Stage]:
    """Serve a new folder with the assets."""
    shutil.rmtree(folder / "_static", ignore_errors=True)
    assets.write(folder / "_static")

    with served(folder) as address:
        yield Stage(browser, folder, address)
