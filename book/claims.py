"""Appendix C on the site, as a Sphinx extension: its lists get a class, and a field that filters.

The lists themselves are Markdown in notebooks/C_claims.ipynb, and complete without a script.
"""

from docutils import nodes
from sphinx.application import Sphinx

PAGE = "notebooks/C_claims"


def setup(app: Sphinx) -> dict:
    app.connect("doctree-read", mark_lists)
    app.connect("html-page-context", load_filter)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def mark_lists(app: Sphinx, page: nodes.document) -> None:
    if app.env.docname == PAGE:
        for claims in page.findall(nodes.bullet_list):
            claims["classes"].append("ft-claims")


def load_filter(app: Sphinx, docname: str, *_context) -> None:
    if docname == PAGE:
        app.add_js_file("claims.js", loading_method="defer")
