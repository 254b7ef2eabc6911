"""Take README's picture, a slider figure of the built site: `python book/picture.py`.

The picture carries a fingerprint of the figure that it shows; a browser test compares it with the
figure of the built site, so that a picture that has gone stale is found.
"""

import functools
import hashlib
import io
import os
import re
import shutil
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo
from playwright.sync_api import Locator, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "_build" / "html"
PICTURE = ROOT / "book" / "readme.png"
STYLE = ROOT / "lib" / "firsttoken" / "page" / "explore.css"
CHAPTER, FIGURE = "notebooks/04_kv_cache.html", "KV heads"
KEY = "Figure"  # of the fingerprint in the PNG's text


class Quiet(SimpleHTTPRequestHandler):
    """A file server that logs nothing."""

    def log_message(self, *_arguments):
        pass


def shown_figure(page: Page) -> Locator:
    """Return the figure on its chapter's page once it is drawn."""
    figure = page.locator(".ft-explore").filter(has_text=FIGURE).first
    figure.locator("svg.ft-figure").first.wait_for()
    return figure


def fingerprint(figure: Locator) -> str:
    """Return a hash of what the figure shows: controls, drawing and style.

    Coordinates are rounded to whole points: what a reader can see counts, not the last digit.
    """
    controls = figure.locator(".widget-slider, .widget-dropdown").all_inner_texts()
    drawing = figure.locator("svg.ft-figure").first.evaluate("svg => svg.outerHTML")
    drawing = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.0f}", drawing)
    parts = [*controls, drawing, STYLE.read_text("utf-8")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def stored_fingerprint() -> str | None:
    """Return the fingerprint that the committed picture carries."""
    with Image.open(PICTURE) as image:
        return image.info.get(KEY)


def main() -> None:
    if not (SITE / CHAPTER).exists():
        sys.exit("book/picture.py: no site in _build/html; run `make book` first.")
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        sys.exit("book/picture.py: no chromium found; install it or set CHROMIUM to its path.")
    handler = functools.partial(Quiet, directory=str(SITE))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": 1000, "height": 900}, device_scale_factor=1.5, color_scheme="light"
        )
        page.goto(f"http://127.0.0.1:{server.server_port}/{CHAPTER}")
        figure = shown_figure(page)
        figure.scroll_into_view_if_needed()
        image = Image.open(io.BytesIO(figure.screenshot()))
        label = PngInfo()
        label.add_text(KEY, fingerprint(figure))
        image.save(PICTURE, pnginfo=label, optimize=True)
        browser.close()
        server.shutdown()
    print(f"wrote {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
