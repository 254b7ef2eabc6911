"""What a reader reads of a notebook: which cells are in view, how many words, how many minutes.

In view is what stands open when a chapter is opened. Folded cells, further parts and `<details>`
are not.
"""

import math
import re
from html.parser import HTMLParser

from markdown_it.renderer import RendererHTML
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser
from nbformat import NotebookNode

WORDS_PER_MINUTE = 180
CODE_LINES_PER_MINUTE = 8
# The tags of a cell whose code is not in view; the site leaves one out that only makes claims.
FOLDED = {"hide-input", "hide-cell", "remove-input", "remove-cell"}
COLLAPSED = "jp-MarkdownHeadingCollapsed"  # JupyterLab's own mark of a collapsed heading
FURTHER_LEVEL = 3  # a further part reaches to the next heading of this level or a higher one
INLINE = {"a", "b", "code", "em", "i", "kbd", "s", "span", "strong", "sub", "sup"}
UNREAD = {"details", "script", "style", "svg"}
# The site reads Markdown with the same parser.
MARKDOWN = create_md_parser(
    MdParserConfig(enable_extensions={"amsmath", "dollarmath"}), RendererHTML
)


def minutes(notebook: NotebookNode) -> int:
    """Return the minutes that the text and the code in view take, rounded up."""
    code = sum(code_lines(cell.source) for cell in code_in_view(notebook))
    return math.ceil(words_in_view(notebook) / WORDS_PER_MINUTE + code / CODE_LINES_PER_MINUTE)


def words_in_view(notebook: NotebookNode) -> int:
    return sum(count_words(cell.source) for cell in text_in_view(notebook))


def text_in_view(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in in_view(notebook) if cell.cell_type == "markdown"]


def code_in_view(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in in_view(notebook) if cell.cell_type == "code"]


def in_view(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in core(notebook) if not is_folded(cell)]


def core(notebook: NotebookNode) -> list[NotebookNode]:
    """Return the cells outside further parts."""
    found, further = [], False
    for cell in notebook.cells:
        if top_level(cell) <= FURTHER_LEVEL:
            further = is_further(cell)
        found += [] if further else [cell]
    return found


def is_folded(cell: NotebookNode) -> bool:
    return not FOLDED.isdisjoint(cell.metadata.get("tags", []))


def is_further(cell: NotebookNode) -> bool:
    """Return whether a cell is the heading of a further part."""
    return cell.cell_type == "markdown" and cell.metadata.get(COLLAPSED) is True


def top_level(cell: NotebookNode) -> float:
    """Return the level of the highest heading in a cell; without one, infinity."""
    if cell.cell_type != "markdown":
        return math.inf
    opened = (token for token in MARKDOWN.parse(cell.source) if token.type == "heading_open")
    return min((int(token.tag[1:]) for token in opened), default=math.inf)


def code_lines(source: str) -> int:
    return sum(1 for line in source.splitlines() if line.strip())


def count_words(markdown: str) -> int:
    """Return the number of words that Markdown shows.

    >>> count_words("The *cache* holds $2 L K H$ numbers – [per token](#cache).")
    7
    """
    return sum(len(re.findall(r"\S*\w\S*", text)) for text in blocks(markdown))


def blocks(markdown: str) -> list[str]:
    """Return the text of each paragraph, heading, item and table cell, its formulas as one word.

    >>> blocks("Some **bold** text\\n\\n<details>A hint.</details>\\n\\n- $a + b$ here")
    ['Some bold text', 'x here']
    """
    shown = _Shown()
    shown.feed(MARKDOWN.render(markdown))
    shown.close()
    return [" ".join(block.split()) for block in shown.blocks if block.strip()]


class _Shown(HTMLParser):
    """Collects the text that HTML shows, block by block."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [""]
        self.unread: list[str] = []  # the open elements, from the first that is not read

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        formula = "math" in (dict(attributes).get("class") or "").split()
        if tag not in INLINE:
            self.blocks.append("")
        if formula and not self.unread:
            self.blocks[-1] += "x"
        if formula or tag in UNREAD or tag in self.unread:
            self.unread.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.unread and self.unread[-1] == tag:
            self.unread.pop()
        if tag not in INLINE:
            self.blocks.append("")

    def handle_data(self, data: str) -> None:
        if not self.unread:
            self.blocks[-1] += data
