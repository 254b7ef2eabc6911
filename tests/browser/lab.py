"""JupyterLab as a reader starts it, and what a test does in an open notebook."""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from playwright.sync_api import BrowserContext, expect

from browser.visit import ROOT

STEP_MS = 60_000  # a busy machine draws a long notebook slowly; nothing here measures that
# What the page knows of the open notebook; `make lab` exposes the application for this test only.
CURRENT = "window.jupyterapp?.shell.currentWidget?.content?.widgets"
CELLS = "window.jupyterapp.shell.currentWidget.content.widgets"
CODE = f"{CELLS}.filter(cell => cell.model.type === 'code')"
ERRORS = f"""() => {CODE}.flatMap(cell => cell.model.outputs.toJSON())
    .filter(output => output.output_type === 'error')
    .map(output => output.ename + ': ' + output.evalue)"""


@pytest.fixture(scope="module")
def lab_home(tmp_path_factory) -> Path:
    """Return a folder with a copy of the book's notebooks in book/notebooks."""
    home = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", home / "book" / "notebooks")
    return home


@pytest.fixture(scope="module")
def lab(lab_home) -> Iterator[str]:
    """Start JupyterLab as a reader does and yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = (
        f"--no-browser --ip=127.0.0.1 --port={port} --ServerApp.port_retries=0 "
        f"--IdentityProvider.token= --ServerApp.root_dir={lab_home / 'book'} "
        "--expose-app-in-browser"
    )
    own = {
        name: str(lab_home / name.lower())
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    }
    log = lab_home / "lab.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            ["make", "lab", f"LAB_FLAGS={flags}"],
            cwd=ROOT,
            env=os.environ | own,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(f"{address}/api", server, log)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def wait_for(url: str, server: subprocess.Popen, log: Path) -> None:
    """Wait until a server answers; fail with its log if it stops or stays silent."""
    deadline = time.monotonic() + 120
    while server.poll() is None and time.monotonic() < deadline:
        try:
            urlopen(url, timeout=5).close()
            return
        except URLError:
            time.sleep(0.2)
    pytest.fail(f"make lab did not start JupyterLab:\n{log.read_text()}")


@pytest.fixture(scope="module")
def context(browser) -> Iterator[BrowserContext]:
    """Yield a browser context from which only the local server can be reached."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    outside = re.compile(r"^https?://(?!127\.0\.0\.1[:/])")
    context.set_default_timeout(STEP_MS)
    expect.set_options(timeout=STEP_MS)
    context.route(outside, lambda route: route.abort())
    yield context
    expect.set_options(timeout=5_000)  # Playwright's own
    context.close()


def opened(page, address: str) -> None:
    """Go to an address of JupyterLab and wait until a notebook and its kernel are ready."""
    page.goto(address)
    page.wait_for_function(f"() => {CURRENT} && {CELLS}.length > 1")
    expect(page.get_by_role("button", name="| Idle")).to_be_visible()


def shown(page, index: int):
    """Scroll to a cell and return it: JupyterLab draws only the cells that are near."""
    page.evaluate(
        """async index => {
            const notebook = window.jupyterapp.shell.currentWidget.content;
            notebook.activeCellIndex = index;
            await notebook.scrollToItem(index, 'start');
        }""",
        index,
    )
    cell = page.locator(f".jp-Cell[data-windowed-list-index='{index}']")
    expect(cell).to_be_visible()
    return cell


def run(page, index: int, source: str | None = None):
    """Run a cell with Shift+Enter, with another source if one is given, and return it."""
    cell = shown(page, index)
    count = f"() => {CELLS}[{index}].model.executionCount"
    before = page.evaluate(count)
    if source is None:  # its input may be folded away, so the key goes to the notebook
        page.evaluate(
            """() => {
                const notebook = window.jupyterapp.shell.currentWidget.content;
                notebook.mode = 'command';
                notebook.node.focus();
            }"""
        )
    else:
        cell.locator(".cm-content").click()
        page.keyboard.press("ControlOrMeta+A")
        page.keyboard.insert_text(source)
    page.keyboard.press("Shift+Enter")
    page.wait_for_function(
        f"before => {{ const n = ({count})(); return n !== null && n !== before; }}", arg=before
    )
    return shown(page, index)
