"""What keeps people out of a page, as axe finds it (https://github.com/dequelabs/axe-core)."""

from playwright.sync_api import Page

from browser.visit import ROOT

AXE = ROOT / "_build" / "node" / "node_modules" / "axe-core" / "axe.min.js"
# To describe what passes, too, would take half of the time.
FOUND = """async ([where, options]) => (await axe.run(window[where] ?? where,
        {preload: false, resultTypes: ["violations"], ...options})).violations
    .map(v => `${v.id}, ${v.impact}: ${v.nodes.map(n => n.html.slice(0, 200)).join(" | ")}`)"""


def barriers(page: Page, where: object = "document", options: dict | None = None) -> list[str]:
    """Return the barriers in a page, or in what a selector or a variable of the page names.

    `options` are those of axe.run.
    """
    if not page.evaluate("'axe' in window"):
        page.add_script_tag(path=str(AXE))
    return page.evaluate(FOUND, [where, options or {}])
