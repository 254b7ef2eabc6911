"""The browser, the built site's address, and a stage for live views.

The browser is the one that CHROMIUM names, or a Chromium or Chrome of this machine.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from browser.playground import Stage, served_stage
from browser.tiny_gguf import write_tiny_gguf
from browser.visit import PAGES, SITE, STEP_MS, served

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# Without windows it does the same in less time.
KNOWN = ("chromium-headless-shell", "chromium", "google-chrome")

expect.set_options(timeout=STEP_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    named = os.environ.get("CHROMIUM")
    chromium = named or next(filter(None, map(shutil.which, KNOWN)), None)
    assert chromium, "no Chromium found; install it or set CHROMIUM to its path"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Serve the built site on a free port."""
    if not PAGES:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no site: run `make book` first")
    with served(SITE) as address:
        yield address


@pytest.fixture(scope="module")
def _served(browser, tmp_path_factory) -> Iterator[Stage]:
    with served_stage(browser, tmp_path_factory.mktemp("playground")) as stage:
        yield stage


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory) -> Path:
    """A model in a GGUF file of half a megabyte, with a chat template: it stands for a real one."""
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.Q8_0.gguf")


@pytest.fixture(scope="module")
def _served_tiny(browser, tmp_path_factory, tiny_gguf) -> Iterator[Stage]:
    with served_stage(browser, tmp_path_factory.mktemp("tiny"), tiny_gguf) as stage:
        yield stage


@pytest.fixture
def tiny_stage(_served_tiny) -> Iterator[Stage]:
    """The same with a tiny model in the real one's place."""
    yield from _watched(_served_tiny)


@pytest.fixture
def stage(_served) -> Iterator[Stage]:
    """Show live views on pages of their own; what went wrong in a page fails the test."""
    yield from _watched(_served)


def _watched(stage: Stage) -> Iterator[Stage]:
    stage.troubles.clear()
    yield stage
    stage.close()
    assert stage.troubles == [], "\n".join(stage.troubles)
