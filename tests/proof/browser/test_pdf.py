"""The book as PDF: nothing lost, nothing cut, every link with a target.

If `make pdf` has printed the whole book since the site was built, that file is looked at; else
three pages of each kind are printed here.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pdf
import pikepdf
import pypdfium2
import pytest
from bs4 import BeautifulSoup

from browser.visit import PAGES, SITE

SOME = ("00_start", "04_kv_cache", "notation")
MM = 72 / 25.4
# Left and right edge of the text; a letter may lean out by a little.
EDGES = (20 * MM - 2, 190 * MM + 2)
HEADER_AND_FOOTER = 22 * MM


class Printed:
    """A document and the file that it was printed to."""

    def __init__(self, document: pdf.Document, path: Path):
        self.path, self.file = path, pikepdf.open(path)
        self.source = BeautifulSoup(document.html, "html.parser")
        self.titles = list(document.titles.values())
        if document.answers:
            self.titles.append(pdf.ANSWERS_TITLE)


def printed(document: pdf.Document, path: Path) -> Printed:
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert chromium, "no chromium found; install it or set CHROMIUM to its path"
    pdf.print_book(document, path, chromium)
    return Printed(document, path)


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Iterator[Printed]:
    if not PAGES:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no site: run `make book` first")
    newest = max((SITE / page.path).stat().st_mtime for page in pdf.pages())
    if pdf.TARGET.exists() and pdf.TARGET.stat().st_mtime > newest:
        yield Printed(pdf.Document(pdf.pages()), pdf.TARGET)
        return
    some = [page for page in pdf.pages() if page.name in SOME]
    yield printed(pdf.Document(some), tmp_path_factory.mktemp("pdf") / "some.pdf")


def trouble_on_pages(path: Path) -> list[str]:
    """Return what is wrong with the pages: empty ones, and text beyond the margins."""
    trouble = []
    for number, page in enumerate(pypdfium2.PdfDocument(path), 1):
        text = page.get_textpage()
        bottom, top = HEADER_AND_FOOTER, page.get_height() - HEADER_AND_FOOTER
        boxes = [text.get_rect(i) for i in range(text.count_rects())]
        body = [box for box in boxes if box[1] < top and box[3] > bottom]
        if not body:
            trouble.append(f"page {number} is empty")
        elif any(outside(box) for box in body) and (cut := letters_outside(text)):
            trouble.append(f"page {number} has beyond its margins {cut!r}")
    return trouble


def letters_outside(text: pypdfium2.PdfTextPage) -> str:
    """Return the letters beyond the margins.

    MathJax makes the arm of a brace of one sign, many times too wide and cut to measure: such signs
    are in the range for private use.
    """
    letters = {i: text.get_text_range(i, 1) for i in range(text.count_chars())}
    seen = [
        i for i, letter in letters.items() if letter.strip() and not "\ue000" <= letter <= "\uf8ff"
    ]
    return "".join(letters[i] for i in seen if outside(text.get_charbox(i)))


def outside(box: tuple[float, ...]) -> bool:
    return box[0] < EDGES[0] or box[2] > EDGES[1]


def alts(file: pikepdf.Pdf) -> Counter:
    """Return the words of all figures in the tree of tags, with how often each is there."""
    found, waiting = Counter(), [file.Root.StructTreeRoot]
    while waiting:
        element = waiting.pop()
        if isinstance(element, pikepdf.Array):
            waiting.extend(element)
        elif isinstance(element, pikepdf.Dictionary):
            if element.get("/S") == "/Figure":
                found[" ".join(str(element.get("/Alt", "")).split())] += 1
            if "/K" in element:
                waiting.append(element.K)
    return found


def test_nothing_is_cut_and_no_page_is_empty(book):
    assert trouble_on_pages(book.path) == []
    n_chapters = len(book.titles)
    assert 2 * n_chapters < len(book.file.pages) < 60 * n_chapters


def test_every_figure_is_there_with_its_words(book):
    pictures = book.source.select("svg[role=img], img")
    words = Counter(" ".join((p.get("aria-label") or p["alt"]).split()) for p in pictures)
    assert words and words - alts(book.file) == Counter()


def test_the_outline_names_every_heading(book):
    with book.file.open_outline() as outline:
        assert [item.title for item in outline.root] == ["About this PDF", "Contents", *book.titles]
        named = [entry.title for entry in pdf.entries(outline.root)]
    headings = book.source.select("h1, h2, h3, h4, h5, h6")
    assert named == [" ".join(heading.get_text().split()) for heading in headings]


def test_the_file_says_what_it_is(book):
    assert str(book.file.docinfo.Title) == pdf.CITATION["title"]
    assert str(book.file.Root.Lang) == "en"
    assert book.file.Root.MarkInfo.Marked
    assert book.path.stat().st_size < 30e6
