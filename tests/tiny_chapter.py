"""A chapter of a few cells with a further part, and the site of it, built in a second."""

import itertools
from pathlib import Path

import nbformat
from further import MARK
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

METADATA = {
    "kernelspec": {"name": "python3", "display_name": "Python 3"},
    "language_info": {"name": "python", "pygments_lexer": "ipython3"},
}
SLIDER = """\
from firsttoken.page.explore import explore

explore(lambda ax, n: ax.plot([0, n]), alt="A line.", n=[1, 2, 3])"""
HEADING = "### Further: the rare case"


def chapter(marked: bool = True) -> nbformat.NotebookNode:
    """Return the notebook; without the mark its further part is a section like any other."""
    cells = [
        new_markdown_cell("# A small chapter\n\nFor everybody."),
        new_code_cell("seen = 1"),
        new_markdown_cell("## Explain\n\nThis comes first."),
        new_markdown_cell(HEADING, metadata={MARK: True} if marked else {}),
        new_markdown_cell("Only here is a marsupial."),
        new_code_cell(SLIDER),
        new_code_cell("from firsttoken import live\n\nlive.next_token('import ')"),
        new_markdown_cell("#### Its edge\n\nA detail: $x^2$."),
        new_code_cell("folded = seen + 1"),
        new_markdown_cell("### After\n\nThis is for everybody."),
        new_code_cell("assert seen == 1"),
        new_markdown_cell("## Measure\n\nThis ends it."),
    ]
    for cell, number in zip(cells, itertools.count(), strict=False):
        cell["id"] = f"cell-{number}"
    return new_notebook(cells=cells, metadata=METADATA)


def built(notebook: nbformat.NotebookNode, folder: Path, **settings) -> Sphinx:
    """Build the site of a notebook alone; a warning is an error."""
    source = folder / "source"
    source.mkdir()
    nbformat.write(notebook, source / "index.ipynb")
    settings = {"extensions": ["myst_nb", "further"], "nb_execution_mode": "off"} | settings
    with docutils_namespace():  # a second site in one process would find the first one's nodes
        app = Sphinx(
            source,
            None,
            folder / "html",
            folder / "doctrees",
            "html",
            confoverrides=settings,
            status=None,
            warningiserror=True,
        )
        app.build()
    return app
