"""A reader's session in JupyterLab, for real: run a chapter, move a slider, solve an exercise.

JupyterLab starts through `make lab`, with a copy of the notebooks and settings of its own.
The browser is Debian's Chromium, cut off from everything but that server.
"""

import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import nbformat
import pytest
from playwright.sync_api import expect, sync_playwright

ROOT = Path(__file__).parents[2]
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CHAPTER_MS = 180_000
STEP_MS = 60_000  # a busy machine draws a long notebook slowly; nothing here measures that

pytestmark = pytest.mark.browser

# What the page knows of the open notebook; `make lab` exposes the application for this test only.
CELLS = "window.jupyterapp.shell.currentWidget.content.widgets"
CODE = f"{CELLS}.filter(cell => cell.model.type === 'code')"
ERRORS = f"""() => {CODE}.flatMap(cell => cell.model.outputs.toJSON())
    .filter(output => output.output_type === 'error')
    .map(output => output.ename + ': ' + output.evalue)"""
# An error stops the run, so it ends the wait, too.
FINISHED = f"() => ({ERRORS})().length || {CODE}.every(cell => cell.model.executionCount)"
# From the key press to the first frame that shows another figure.
WATCH = """output => {
    const figure = () => [...output.querySelectorAll('svg, img')]
        .map(node => node.src || node.outerHTML).join();
    let before = figure(), pressed = 0;
    window.latencies_ms = [];
    output.addEventListener('keydown', () => { pressed = performance.now(); }, true);
    new MutationObserver(() => {
        const now = figure();
        if (now === before || !now) return;
        before = now;
        const start = pressed;
        requestAnimationFrame(() => window.latencies_ms.push(performance.now() - start));
    }).observe(output, {childList: true, subtree: true, attributes: true, characterData: true});
}"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Start JupyterLab as a reader does and yield its address."""
    home = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", home / "book" / "notebooks")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = (
        f"--no-browser --ip=127.0.0.1 --port={port} --ServerApp.port_retries=0 "
        f"--IdentityProvider.token= --ServerApp.root_dir={home / 'book'} --expose-app-in-browser"
    )
    own = {
        name: str(home / name.lower())
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    }
    log = home / "lab.log"
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
def context():
    """Yield a browser context from which only the local server can be reached."""
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    assert executable, "the browser tests need Chromium (on Debian: apt-get install chromium)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1280, "height": 1000})
        outside = re.compile(r"^https?://(?!127\.0\.0\.1[:/])")
        context.set_default_timeout(STEP_MS)
        expect.set_options(timeout=STEP_MS)
        context.route(outside, lambda route: route.abort())
        yield context
        browser.close()


@pytest.fixture(scope="module", params=CHAPTERS, ids=lambda path: path.stem)
def chapter(request, lab, context):
    """Open a chapter, run all of it through the menu and yield (page, its cells as stored)."""
    page = context.new_page()
    page.goto(f"{lab}/lab/tree/notebooks/{request.param.name}")
    page.wait_for_function(f"() => window.jupyterapp?.shell.currentWidget && {CELLS}.length > 1")
    expect(page.get_by_role("button", name="| Idle")).to_be_visible()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_function(FINISHED, timeout=CHAPTER_MS)
    yield page, nbformat.read(request.param, as_version=4).cells
    page.close()


def index_of(cells, has) -> int:
    """Return the index of the first cell for which `has` holds."""
    return next(index for index, cell in enumerate(cells) if has(cell))


def tagged(cells, tag: str) -> int:
    """Return the index of the cell with a tag."""
    return index_of(cells, lambda cell: tag in cell.metadata.get("tags", []))


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


def test_the_chapter_runs(chapter):
    page, _ = chapter
    assert page.evaluate(ERRORS) == []


def test_a_slider_moves_its_figure(chapter, capsys):
    page, cells = chapter
    figure = index_of(
        cells, lambda c: c.cell_type == "code" and re.search(r"\bexplore\(", c.source)
    )
    output = shown(page, figure).locator(".jp-Cell-outputArea")
    handle = output.get_by_role("slider").first
    expect(handle).to_be_visible()
    output.evaluate(WATCH)
    handle.focus()
    for key in ("End", "Home", "ArrowRight", "ArrowLeft", "ArrowRight", "ArrowLeft"):
        value = handle.get_attribute("aria-valuenow")
        frames = page.evaluate("() => window.latencies_ms.length")
        handle.press(key)
        if handle.get_attribute("aria-valuenow") == value:
            continue  # it was at that end already
        page.wait_for_function("n => window.latencies_ms.length > n", arg=frames)
        page.wait_for_timeout(300)  # later changes of the same frame belong to this key
    latencies = page.evaluate("() => window.latencies_ms")
    with capsys.disabled():
        print(
            f"\nlive slider, key to frame: median {statistics.median(latencies):.0f} ms, "
            f"maximum {max(latencies):.0f} ms, {len(latencies)} frames"
        )


def test_an_exercise_answers(chapter):
    """The stub's name set to -1 is wrong, the stored solution is right."""
    page, cells = chapter
    stub, check, solution = (
        tagged(cells, f"exercise-1-{part}") for part in ("stub", "check", "solution")
    )
    name = re.search(r"^(\w+) *=", cells[solution].source, re.MULTILINE)[1]
    run(page, stub, f"{name} = -1")
    verdict = run(page, check).locator(".jp-Cell-outputArea")
    expect(verdict.locator(".ft-wrong, .ft-open")).to_be_visible()
    expect(verdict.locator(".ft-wrong, .ft-open")).to_contain_text(re.compile(r"\w+ \w+ \w+"))
    run(page, stub, cells[solution].source)
    verdict = run(page, check).locator(".jp-Cell-outputArea")
    expect(verdict.locator(".ft-right")).to_be_visible()
