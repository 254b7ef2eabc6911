"""Links to code cells: the site has an anchor for each cell, and a link to none stops the build."""

import re

import pytest
from sphinx.errors import SphinxWarning

from tiny_chapter import built, chapter

OWN = {"extensions": ["myst_nb", "cell_links"]}


def linking(cell_id: str):
    """Return the small chapter with a link to one of its cells."""
    notebook = chapter(marked=False)
    notebook.cells[0].source += f"\n\nSee [a cell](index.ipynb#cell-id={cell_id})."
    return notebook


def test_a_link_leads_to_its_cell(tmp_path):
    """JupyterLab's own form of a link is the address of an element on the page."""
    app = built(linking("cell-8"), tmp_path, **OWN)
    page = (app.outdir / "index.html").read_text("utf-8")
    (address,) = re.findall(r'href="([^"]+)"[^>]*><span[^>]*>a cell<', page)
    assert address == "#cell-id=cell-8"
    # Text has no anchor, and each code cell has its own, before what it holds.
    anchors = [n for n, cell in enumerate(chapter().cells) if cell.cell_type == "code"]
    assert re.findall(r'id="cell-id=(cell-\d+)"', page) == [f"cell-{n}" for n in anchors]
    assert page.index('id="cell-id=cell-8"') < page.index("folded") < page.index("cell-id=cell-10")


@pytest.mark.parametrize("wrong", ["cell-99", "cell-2"])
def test_a_link_to_no_cell_stops_the_build(tmp_path, wrong):
    with pytest.raises(SphinxWarning, match=f"cell-id={wrong}"):
        built(linking(wrong), tmp_path, **OWN)


def test_a_link_to_a_cell_that_is_not_shown_stops_the_build(tmp_path):
    notebook = linking("cell-8")
    notebook.cells[8].metadata["tags"] = ["remove-cell"]
    with pytest.raises(SphinxWarning, match="cell-id=cell-8"):
        built(notebook, tmp_path, **OWN)
