"""JupyterLab as a reader starts it, and what a test does in an open notebook."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from playwright.sync_api import BrowserContext, expect

from browser.visit import ROOT, STEP_MS
from reach import cells_needed

START_S = 300
# What the page knows of the open notebook; `make lab` exposes the application for this test only.
CURRENT = "window.jupyterapp?.shell.currentWidget?.content?.widgets"
CELLS = "window.jupyterapp.shell.currentWidget.content.widgets"
PATH = "window.jupyterapp.shell.currentWidget.context.path"
CODE = f"{CELLS}.filter(cell => cell.model.type === 'code')"
# Only errors are turned into text: figures weigh megabytes.
ERRORS = f"""() => {CODE}.map(cell => cell.model.outputs)
    .flatMap(outputs => Array.from({{length: outputs.length}}, (_, index) => outputs.get(index)))
    .filter(output => output.type === 'error')
    .map(output => output.toJSON())
    .map(output => output.ename + ': ' + output.evalue)"""
RUN = f"""indices => {{
    const notebook = window.jupyterapp.shell.currentWidget.content;
    notebook.deselectAll();
    notebook.activeCellIndex = indices[0];
    indices.forEach(index => notebook.select({CELLS}[index]));
    window.jupyterapp.commands.execute('notebook:run-cell');
}}"""
# An error stops the run, so it ends the wait, too. A cell with a stored output has a count before.
IDLE = "window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'"
FINISHED = f"""indices => ({ERRORS})().length
    || ({IDLE} && indices.every(index => {CELLS}[index].model.executionCount))"""
CHAPTER_MS = 500_000
ASKED_MS = 500  # with each frame, as by default, to ask would take half of a core
PARTS = [f"exercise-1-{part}" for part in ("stub", "check", "solution")]


@pytest.fixture(scope="module")
def lab_home(tmp_path_factory) -> Path:
    """Return a folder with a copy of the book's notebooks in book/notebooks."""
    home = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", home / "book" / "notebooks")
    return home


@pytest.fixture(scope="module")
def lab(lab_home) -> Iterator[str]:
    """Start JupyterLab as a reader does and yield its address.

    It takes a free port and writes down which; its kernels listen on sockets in a folder of their
    own, whose path must be short.
    """
    with tempfile.TemporaryDirectory(prefix="ft-lab-", ignore_cleanup_errors=True) as runtime:
        flags = (
            "--no-browser --ip=127.0.0.1 --port=0 --KernelManager.transport=ipc "
            f"--IdentityProvider.token= --ServerApp.root_dir={lab_home / 'book'} "
            "--expose-app-in-browser"
        )
        own = {
            name: str(lab_home / name.lower())
            for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")
        }
        log = lab_home / "lab.log"
        with log.open("w") as output:
            server = subprocess.Popen(
                # What it needs is installed: to install meanwhile would disturb other tests.
                ["make", "--old-file=.venv/lab", "lab", f"LAB_FLAGS={flags}"],
                cwd=ROOT,
                env=os.environ | own | {"JUPYTER_RUNTIME_DIR": runtime},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield address_of(server, Path(runtime), log)
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(STEP_MS / 1000)


def address_of(server: subprocess.Popen, runtime: Path, log: Path) -> str:
    """Return the address that a server has written down, once it answers there.

    If it stops or stays silent, fail with its log.
    """
    deadline = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < deadline:
        for written in runtime.glob("jpserver-*.json"):
            with suppress(ValueError, URLError):  # half written, or it does not listen yet
                address = f"http://127.0.0.1:{json.loads(written.read_text())['port']}"
                urlopen(f"{address}/api", timeout=STEP_MS / 1000).close()
                return address
        time.sleep(0.2)
    pytest.fail(f"make lab did not start JupyterLab:\n{log.read_text()}")


@pytest.fixture(scope="module")
def context(browser) -> Iterator[BrowserContext]:
    """Yield a browser context from which only the local server can be reached."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    outside = re.compile(r"^https?://(?!127\.0\.0\.1[:/])")
    context.set_default_timeout(STEP_MS)
    context.route(outside, lambda route: route.abort())
    yield context
    context.close()


def opened(page, address: str) -> None:
    """Go to an address of JupyterLab and wait until a notebook and its kernel are ready."""
    page.goto(address)
    ready(page)


def ready(page) -> None:
    """Wait until the notebook in front and its kernel are ready."""
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


def is_code(cell) -> bool:
    return cell.cell_type == "code"


def draws_sliders(cell) -> bool:
    return is_code(cell) and re.search(r"\bexplore\(", cell.source) is not None


def is_live(cell) -> bool:
    return is_code(cell) and re.search(r"\blive\.", cell.source) is not None


def has_tag(tag: str):
    return lambda cell: tag in cell.metadata.get("tags", [])


def index_of(cells, wanted) -> int:
    """Return the index of the first cell for which `wanted` holds."""
    return next(index for index, cell in enumerate(cells) if wanted(cell))


IN_JUPYTERLAB = (draws_sliders, is_live, *map(has_tag, PARTS))


def played(cells) -> list[int]:
    """Return the cells of a chapter that JupyterLab has a part in, and those that these need."""
    code = [index for index, cell in enumerate(cells) if is_code(cell)]
    wanted = [
        number
        for number, index in enumerate(code)
        if any(is_so(cells[index]) for is_so in IN_JUPYTERLAB)
    ]
    return [code[number] for number in cells_needed([cells[i].source for i in code], wanted)]


def answer_exercise(page, cells) -> None:
    """Answer a chapter's first exercise: its name set to -1 is wrong, the stored solution right."""
    stub, check, solution = (
        index_of(cells, has_tag(f"exercise-1-{part}")) for part in ("stub", "check", "solution")
    )
    asked_for, given = (
        re.findall(r"^(?:def (?=\w+\()|(?=\w+ =))(\w+)", cells[index].source, re.MULTILINE)
        for index in (stub, solution)
    )
    solved = next(name for name in given if name.removesuffix("_solution") in asked_for)
    name = solved.removesuffix("_solution")
    run(page, stub, f"{name} = -1")
    verdict = run(page, check).locator(".jp-Cell-outputArea")
    expect(verdict.locator(".ft-wrong, .ft-open")).to_be_visible()
    expect(verdict.locator(".ft-wrong, .ft-open")).to_contain_text(re.compile(r"\w+ \w+ \w+"))
    run(page, stub, f"{cells[solution].source}\n{name} = {solved}")
    verdict = run(page, check).locator(".jp-Cell-outputArea")
    expect(verdict.locator(".ft-right")).to_be_visible()
