"""Links to code cells, as a Sphinx extension.

`[a cell](04_kv_cache.ipynb#cell-id=share)` is how JupyterLab scrolls to a cell. Here every code
cell of a page gets that very anchor, so that the same link leads to it on the site. A link to a
cell that is not on the page is a warning, and stops the build.
"""

import nbformat
from docutils import nodes
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict:
    app.connect("doctree-read", anchor_cells)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def anchor_cells(app: Sphinx, page: nodes.document) -> None:
    docname = app.env.docname
    source = app.env.doc2path(docname)
    if not source.endswith(".ipynb"):
        return
    cells = nbformat.read(source, as_version=4).cells
    # MyST looks here for what follows the # of a link to another page.
    targets = app.env.metadata[docname].setdefault("myst_slugs", {})
    for container in page.findall(nodes.container):
        if container.get("nb_element") == "cell_code":
            anchor = f"cell-id={cells[container['cell_index']].id}"
            container["ids"].append(anchor)
            targets[anchor] = (container.line, anchor, "")
