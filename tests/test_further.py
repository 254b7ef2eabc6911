"""Further parts: the site folds what JupyterLab folds, and loses nothing by it."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import further
import nbformat
import pytest

from tiny_chapter import HEADING, built, chapter

CHAPTERS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


class Texts(HTMLParser):
    """All texts of a page with the elements around each, from outside to inside."""

    VOID = ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "wbr")

    def __init__(self, page: str):
        super().__init__()
        self.around, self.found = [], {}
        self.feed(page)
        self.close()
        assert not self.around, "an element is not closed"

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.around.append((tag, dict(attrs)))

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.around.pop()[0] == tag, f"{tag} is closed too early"

    def handle_data(self, data):
        if data.strip():
            self.found.setdefault(data.strip(), list(self.around))


def folded(around) -> list[str]:
    """Return the names of the elements from the fold on."""
    names = [tag for tag, _ in around]
    return names[names.index("details") :] if "details" in names else []


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    return built(chapter(), tmp_path_factory.mktemp("further"))


@pytest.fixture(scope="module")
def texts(app):
    return Texts((app.outdir / "index.html").read_text("utf-8")).found


def test_a_further_part_is_folded_to_its_end(texts):
    """With its code and its own sections, and nothing before or after it."""
    assert folded(texts["Only here is a marsupial."]) == ["details", "p"]
    assert folded(texts["Its edge"]) == ["details", "section", "h4"]
    assert folded(texts["folded"])[:2] == ["details", "section"]
    for open_text in ("This comes first.", "After", "This is for everybody.", "Measure"):
        assert folded(texts[open_text]) == []


def test_the_heading_stays_a_heading_with_its_address(app, texts):
    heading = texts[HEADING.removeprefix("### ")]
    assert folded(heading) == ["details", "summary", "h3"]
    (*_, section) = [attributes for tag, attributes in heading if tag == "section"]
    assert section["id"] == "further-the-rare-case"
    assert folded(texts["Optional: nothing after it needs this part."])[:2] == [
        "details",
        "summary",
    ]
    fold, after = (app.outdir / "index.html").read_text("utf-8").split("</details>")
    address = 'class="headerlink" href="#further-the-rare-case"'
    assert address in after and address not in fold  # a link in a summary is a barrier


def test_lists_of_sections_and_the_search_have_it(app):
    contents = app.env.tocs["index"].astext()
    assert "Further: the rare case" in contents and "Its edge" in contents
    script = (app.outdir / "searchindex.js").read_text("utf-8")
    index = json.loads(re.search(r"\{.*\}", script, re.DOTALL)[0])
    assert index["alltitles"]["Further: the rare case"] == [[0, "further-the-rare-case"]]
    assert "marsupi" in index["terms"]


# In the chapters.


def misplaced(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the cells that have only one of the two: the mark, and such a heading alone."""

    def is_sound(cell) -> bool:
        if cell.metadata.get(further.MARK):
            return re.fullmatch(r"### Further: .+", cell.source) is not None
        return re.search("^#+ Further:", cell.source, re.MULTILINE) is None

    return [cell.source for cell in notebook.cells if not is_sound(cell)]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_the_mark_stands_on_the_headings_of_further_parts_alone(path):
    """JupyterLab writes it into whatever an author folds before saving."""
    assert misplaced(nbformat.read(path, 4)) == []
