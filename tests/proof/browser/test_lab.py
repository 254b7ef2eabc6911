"""A reader's session in JupyterLab, for real: run a chapter, move a slider, solve an exercise.

JupyterLab starts through `make lab`, with a copy of the notebooks and settings of its own.
The browser is cut off from everything but that server.
"""

import re
import statistics

import nbformat
import pytest
from playwright.sync_api import expect

from browser.figures import play
from browser.lab import (
    ASKED_MS,
    CHAPTER_MS,
    CODE,
    ERRORS,
    FINISHED,
    PATH,
    answer_exercise,
    draws_sliders,
    has_tag,
    index_of,
    is_code,
    opened,
    ready,
    run,
    shown,
)
from browser.visit import ROOT

CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CELLS_OF = {path: nbformat.read(path, as_version=4).cells for path in CHAPTERS}

# A chapter that is done is not kept: its kernel would slow down the next one's slider.
CLOSE = """async () => {
    await window.jupyterapp.commands.execute('notebook:shutdown-kernel');
    window.jupyterapp.shell.currentWidget.dispose();
}"""
OPEN = """async path => {
    await window.jupyterapp.commands.execute('docmanager:open', {path});
}"""
# On a busy machine the chapter may come to the front again when it has loaded.
LAUNCHER_IN_FRONT = """() => {
    const shell = window.jupyterapp.shell;
    const launcher = [...shell.widgets('main')].find(w => w.title.label === 'Launcher');
    if (launcher && shell.currentWidget !== launcher) shell.activateById(launcher.id);
    return launcher && shell.currentWidget === launcher;
}"""
# It is stored a moment after the last change.
LAYOUT_STORED = """async () => {
    const {data} = await (await fetch('/lab/api/workspaces/default')).json();
    const main = data['layout-restorer:data']?.main;
    return main?.mode === 'single-document' && main.current?.startsWith('launcher');
}"""
SETTINGS = """async () => {
    const own = async (plugin, key) => {
        const answer = await fetch('/lab/api/settings/@jupyterlab/' + plugin);
        return (await answer.json()).schema.properties[key].default;
    };
    return {
        autosave_s: await own('docmanager-extension:plugin', 'autosaveInterval'),
        timing: await own('notebook-extension:tracker', 'recordTiming'),
        adaptive: await own('apputils-extension:themes', 'adaptive-theme'),
    };
}"""
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


def test_a_reader_sees_no_tools_of_others(lab, context):
    """The tests' environment has nbgrader, and so a menu, a button and a panel of the teacher."""
    page = context.new_page()
    opened(page, f"{lab}/lab/workspaces/reader/tree/notebooks/{CHAPTERS[0].name}")
    menus = page.locator(".lm-MenuBar-item").all_inner_texts()
    tabs = page.locator(".jp-SideBar .lm-TabBar-tab").evaluate_all("tabs => tabs.map(t => t.title)")
    buttons = page.locator(".jp-NotebookPanel-toolbar").inner_text()
    assert menus == ["File", "Edit", "View", "Run", "Kernel", "Tabs", "Settings", "Help"]
    assert any("File Browser" in tab for tab in tabs) and any(
        "Table of Contents" in t for t in tabs
    )
    words = "Assignment|Formgrader|Nbgrader|Course|Extension Manager"
    assert [tab for tab in tabs if re.search(words, tab, re.IGNORECASE)] == []
    assert "Validate" not in buttons
    page.close()


@pytest.fixture(scope="module")
def reading(lab, context):
    """Open JupyterLab for all chapters: to load it for each would take half of the time."""
    page = context.new_page()
    opened(page, f"{lab}/lab/workspaces/reading/tree/notebooks/{CHAPTERS[0].name}")
    yield page
    page.close()


@pytest.fixture(scope="module")
def chapter(request, reading):
    """Open a chapter, run it and yield (page, its cells as stored)."""
    page, cells = reading, CELLS_OF[request.param]
    page.evaluate(CLOSE)
    page.evaluate(OPEN, f"notebooks/{request.param.name}")
    ready(page)
    chosen = [index for index, cell in enumerate(cells) if is_code(cell)]
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_function(FINISHED, arg=chosen, timeout=CHAPTER_MS, polling=ASKED_MS)
    yield page, cells


def with_chapters(wanted):
    """Run a test on the chapters for whose stored cells `wanted` holds."""
    chosen = [path for path in CHAPTERS if any(wanted(cell) for cell in CELLS_OF[path])]
    return pytest.mark.parametrize("chapter", chosen, indirect=True, ids=lambda path: path.stem)


def plays(cell) -> bool:
    return draws_sliders(cell) and 'play="' in cell.source


def test_a_first_start_is_ready_for_reading(lab, context):
    """The first chapter, no question asked, readable letters, times beside cells, no spoilers."""
    page = context.new_page()
    opened(page, lab)
    assert page.evaluate(f"() => {PATH}") == f"notebooks/{CHAPTERS[0].name}"
    # JupyterLab asks about news when it has settled; on a slow machine that could come unseen.
    page.wait_for_timeout(2000)
    assert page.locator(".jp-Dialog, .Toastify__toast").all_inner_texts() == []
    assert page.evaluate(SETTINGS) == {"autosave_s": 60, "timing": True, "adaptive": True}
    sizes = page.evaluate(
        """() => ['.jp-RenderedMarkdown p', '.jp-Notebook .cm-line']
            .map(place => getComputedStyle(document.querySelector(place)).fontSize)"""
    )
    assert sizes == ["16px", "14px"]

    first = index_of(CELLS_OF[CHAPTERS[0]], is_code)
    cell = run(page, first)
    expect(cell.locator(".execute-time")).to_contain_text(re.compile(r"executed in [\d.]+ ?m?s"))
    folded = index_of(
        CELLS_OF[CHAPTERS[0]], lambda c: c.metadata.get("jupyter", {}).get("source_hidden")
    )
    fold = shown(page, folded).locator(".jp-PlaceholderText")
    text = fold.evaluate("node => getComputedStyle(node, '::after').content")
    assert "click to show" in text
    assert fold.evaluate("node => getComputedStyle(node).fontSize") == "0px"
    page.close()


def test_a_chapter_is_not_hidden_by_what_was_open_before(lab, context):
    """The layout of an earlier session, with another file in front in one-file mode, comes back."""
    page = context.new_page()
    opened(page, f"{lab}/lab/tree/notebooks/{CHAPTERS[0].name}")
    command = "async name => { await window.jupyterapp.commands.execute(name); }"
    page.evaluate(command, "application:toggle-mode")
    page.evaluate(command, "launcher:create")
    page.wait_for_function(LAUNCHER_IN_FRONT)
    page.wait_for_function(LAYOUT_STORED, polling=ASKED_MS)
    opened(page, lab)
    page.wait_for_timeout(2000)  # one that comes back later than this is not seen
    assert page.evaluate(f"() => {PATH}") == f"notebooks/{CHAPTERS[0].name}"
    page.close()


@with_chapters(is_code)
def test_the_chapter_runs(chapter):
    page, _ = chapter
    assert page.evaluate(ERRORS) == []


@with_chapters(draws_sliders)
def test_a_slider_moves_its_figure(request, chapter, record_property):
    page, cells = chapter
    output = shown(page, index_of(cells, draws_sliders)).locator(".jp-Cell-outputArea")
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
        # Later changes of the same frame belong to this key.
        expect(page.get_by_role("button", name="| Idle")).to_be_visible()
    latencies = page.evaluate("() => window.latencies_ms")
    record_property(
        "measured",
        f"{request.node.callspec.id} in JupyterLab: key to frame, median "
        f"{statistics.median(latencies):.0f} ms, max {max(latencies):.0f} ms "
        f"over {len(latencies)} moves",
    )


@with_chapters(plays)
def test_a_button_plays(chapter):
    """After the whole chapter has run: the next frame comes by itself, and it is no error."""
    page, cells = chapter
    output = shown(page, index_of(cells, plays)).locator(".jp-Cell-outputArea")
    button = page.get_by_role("button", name="Play")
    row = output.locator(".widget-hbox").filter(has=button).last
    before = output.locator("svg.ft-figure").inner_html()
    value = float(row.get_by_role("slider").get_attribute("aria-valuenow"))
    assert play(row, 2) == [f"{value + 1:.1f}", f"{value + 2:.1f}"]
    # The kernel draws the frame a moment after the slider has moved.
    another = "([cell, before]) => cell.querySelector('svg.ft-figure')?.innerHTML !== before"
    page.wait_for_function(another, arg=[output.element_handle(), before])


@with_chapters(has_tag("exercise-1-check"))
def test_an_exercise_answers(chapter):
    answer_exercise(*chapter)


# Where a chapter is not drawn yet, JupyterLab waits for a link's cell, but for ten seconds only;
# after them the chapter stays at its top, and a second press of the link leads to the cell.
PATIENT = """{
    const own = setTimeout;
    window.setTimeout = (then, ms, ...rest) => own(then, ms === 10_000 ? 600_000 : ms, ...rest);
}"""


def test_a_link_of_the_appendix_leads_to_its_cell(lab, context):
    """However long it takes to draw the chapter."""
    page = context.new_page()
    page.add_init_script(PATIENT)
    opened(page, f"{lab}/lab/workspaces/appendix/tree/notebooks/C_claims.ipynb")
    link = page.locator(".jp-RenderedMarkdown li a").first
    address = link.get_attribute("href")
    name, cell_id = re.search(r"/notebooks/(.+\.ipynb).*#cell-id=(.+)", address).groups()
    link.click()
    page.wait_for_function(f"() => {PATH} === 'notebooks/{name}'")
    page.wait_for_function(
        f"""() => {{
            const cell = {CODE}.find(cell => cell.model.id === '{cell_id}');
            const top = cell?.node.getBoundingClientRect().top;
            return top > 0 && top < innerHeight;
        }}""",
        timeout=CHAPTER_MS,
    )
    page.close()
