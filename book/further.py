"""Further parts, as a Sphinx extension: sections of a notebook that a reader may leave out.

The cell of such a section's heading carries JupyterLab's own mark of a collapsed heading, so that
the site and JupyterLab fold the same cells. Without a script the section stays open;
book/_static/first_token.js closes it.
"""

import nbformat
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.writers.html5 import HTML5Translator

MARK = "jp-MarkdownHeadingCollapsed"  # in the metadata of a Markdown cell
COMMENT = "ft-further"


class FurtherTitle(nodes.title):
    """The heading, which opens the fold."""


class FurtherEnd(nodes.Element):
    """What closes the fold, at the end of the section."""


def setup(app: Sphinx) -> dict:
    app.connect("source-read", comment_marked_headings)
    app.add_post_transform(FoldFurtherParts)
    app.add_node(FurtherTitle, html=(visit_title, depart_title))
    app.add_node(FurtherEnd, html=(visit_end, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def comment_marked_headings(app: Sphinx, docname: str, source: list[str]) -> None:
    """Write the mark into the cell's text: MyST-NB reads no metadata of Markdown cells."""
    if not app.env.doc2path(docname).endswith(".ipynb") or MARK not in source[0]:
        return
    notebook = nbformat.reads(source[0], as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.metadata.get(MARK):
            cell.source += f"\n\n% {COMMENT}"
    source[0] = nbformat.writes(notebook)


class FoldFurtherParts(SphinxPostTransform):
    """Fold the sections of marked headings.

    This comes after the lists of sections are made, and inside of the section, which keeps its id.
    """

    default_priority = 500
    formats = ("html",)

    def run(self, **_arguments) -> None:
        for comment in list(self.document.findall(nodes.comment)):
            if comment.astext() == COMMENT:
                section, (title, *_) = comment.parent, comment.parent.children
                section.remove(comment)
                section.replace(title, FurtherTitle("", "", *title.children))
                section.append(FurtherEnd())


def visit_title(writer: HTML5Translator, _title: FurtherTitle) -> None:
    writer.body.append('<details class="ft-further" open><summary>')
    writer.body.append(f"<h{writer.section_level}>")


def depart_title(writer: HTML5Translator, _title: FurtherTitle) -> None:
    writer.body.append(f"</h{writer.section_level}>")
    writer.body.append("<span>Optional: nothing after it needs this part.</span></summary>")


def visit_end(writer: HTML5Translator, end: FurtherEnd) -> None:
    writer.body.append("</details>")
    # A link inside of a summary would be a button in a button.
    writer.add_permalink_ref(end.parent, "Link to this heading")
    raise nodes.SkipNode
