"""Take README's picture, a slider figure of the built site: `python book/picture.py`."""

import functools
import os
import shutil
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "_build" / "html"
PICTURE = ROOT / "book" / "readme.png"
CHAPTER, FIGURE = "notebooks/04_kv_cache.html", "KV heads"


class Quiet(SimpleHTTPRequestHandler):
    """A file server that logs nothing."""

    def log_message(self, *_arguments):
        pass


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
        figure = page.locator(".ft-explore").filter(has_text=FIGURE).first
        figure.locator("svg.ft-figure").first.wait_for()
        figure.scroll_into_view_if_needed()
        figure.screenshot(path=PICTURE)
        browser.close()
        server.shutdown()
    print(f"wrote {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
