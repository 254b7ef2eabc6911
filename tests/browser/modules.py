"""The engine's modules in a page by themselves, without worker and model."""

import shutil
from importlib.resources import files

from playwright.sync_api import Page

from browser.playground import Stage
from browser.visit import ROOT

ENGINE = files("firsttoken").joinpath("live/engine")
JINJA = ROOT / "_build" / "node" / "node_modules" / "@huggingface" / "jinja" / "dist" / "index.js"


def engine_modules(stage: Stage, *names: str) -> Page:
    """Open a page in which `window` has what some modules of the engine export."""
    folder = stage.folder / "engine"
    folder.mkdir(exist_ok=True)
    for file in ENGINE.iterdir():
        if file.name.endswith(".js"):
            source = file.read_text("utf-8").replace('"@huggingface/jinja"', '"./huggingface.js"')
            (folder / file.name).write_text(source, "utf-8")
    if JINJA.exists():  # where Node.js' packages are; what does not need it, does without
        shutil.copy(JINJA, folder / "huggingface.js")
    page = stage.empty_page()
    page.evaluate(
        """async (names) => {
            for (const name of names) Object.assign(window, await import(`/engine/${name}.js`));
        }""",
        names,
    )
    return page
