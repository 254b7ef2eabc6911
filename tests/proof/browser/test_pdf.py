"""The book as PDF: nothing lost, nothing cut, every link with a target.

If `make pdf` has printed the whole book since the site was built, that file is looked at; else
three pages of each kind are printed here.
"""

import os
import re
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
        if os.environ.get("CI"):
            pytest.fail("no site in _build/html: run `make book` first")
        pytest.skip("no site in _build/html: run `make book` first")
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


def outside(box: tuple[float, ...]) -> bool:
    return box[0] < EDGES[0] or box[2] > EDGES[1]


def letters_outside(text: pypdfium2.PdfTextPage) -> str:
    """Return the letters beyond the margins.

    MathJax makes the arm of a brace of one sign, many times too wide and cut to measure: such signs
    are in the range for private use.
    """
    letters = (text.get_text_range(i, 1) for i in range(text.count_chars()))
    return "".join(
        letter
        for i, letter in enumerate(letters)
        if letter.strip() and not "\ue000" <= letter <= "\uf8ff" and outside(text.get_charbox(i))
    )


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


def test_a_cut_line_and_an_empty_page_are_found(tmp_path):
    """A page whose code does not wrap, and one that begins a page too many."""
    (tmp_path / "_static").mkdir()
    for folder in ("mathjax", "print.css"):
        (tmp_path / "_static" / folder).symlink_to(SITE / "_static" / folder)
    (tmp_path / "a.html").write_text(
        '<link rel="stylesheet" href="_static/print.css"/><article class="bd-article"><h1>A</h1>'
        f'<pre style="font-size: 9pt">{"x" * 200}</pre><div style="break-before: page">&nbsp;</div>'
        '<p style="break-before: page">The end.</p></article>'
    )
    wrong = printed(pdf.Document([pdf.Page("a.html", "Part")], tmp_path), tmp_path / "a.pdf")
    first, second = trouble_on_pages(wrong.path)
    assert re.search(r"page 4 .*x", first) and second == "page 5 is empty"


def test_every_figure_is_there_with_its_words(book):
    pictures = book.source.select("svg[role=img], img")
    words = Counter(" ".join((p.get("aria-label") or p["alt"]).split()) for p in pictures)
    assert words and words - alts(book.file) == Counter()


def test_every_link_has_a_target(book):
    """Inside: a place of the file. Outward: an address of the web, none of the printing."""
    targets, inside, outward = pdf.page_numbers(book.file), 0, Counter()
    for page in book.file.pages:
        for link in page.get("/Annots", []):
            if "/Dest" in link:
                assert pdf.unquote(str(link.Dest).lstrip("/")) in targets
                inside += 1
            else:
                outward[str(link.A.URI)] += 1
    wanted = book.source.select("a[href^='#']")
    assert inside >= len(wanted)  # a link over two lines is two
    assert all(re.match(r"https?://(?!book\.invalid)", url) for url in outward)
    ways_out = {a["href"] for a in book.source.select("a[href^='http']")}
    assert len(outward) >= 0.95 * len(ways_out)


def test_contents_and_outline_name_every_chapter_and_its_page(book):
    with book.file.open_outline() as outline:
        assert [item.title for item in outline.root] == ["About this PDF", "Contents", *book.titles]
        named = [entry.title for entry in pdf.entries(outline.root)]
    headings = book.source.select("h1, h2, h3, h4, h5, h6")
    assert named == [" ".join(heading.get_text().split()) for heading in headings]
    numbers = pdf.page_numbers(book.file)
    # Where lines begin and end is a guess of whoever reads a PDF's text.
    texts = [
        "".join(page.get_textpage().get_text_range().split())
        for page in pypdfium2.PdfDocument(book.path)
    ]
    chapters = book.source.select(".ft-chapter")[2:]
    contents = "".join(texts[2 : numbers[chapters[0]["id"]] - 1])
    for chapter, title in zip(chapters, book.titles, strict=True):
        number, words = numbers[chapter["id"]], "".join(title.split())
        assert f"{words}{number}" in contents
        assert words in texts[number - 1] and str(number) in texts[number - 1]


def test_the_file_says_what_it_is(book):
    assert str(book.file.docinfo.Title) == pdf.CITATION["title"]
    assert str(book.file.docinfo.Author) == pdf.CITATION["authors"][0]["name"]
    assert str(book.file.Root.Lang) == "en"
    assert book.file.Root.MarkInfo.Marked
    fonts = {
        font.objgen: font
        for page in book.file.pages
        for font in page.Resources.get("/Font", {}).values()
    }
    for font in fonts.values():
        for inner in font.get("/DescendantFonts", [font]):
            assert inner.Subtype == "/Type3" or any(
                key in inner.FontDescriptor for key in ("/FontFile", "/FontFile2", "/FontFile3")
            )


def test_it_is_light(book, record_property):
    size, n_pages = book.path.stat().st_size, len(book.file.pages)
    record_property("measured", f"{book.path.name}: {n_pages} pages, {size / 1e6:.1f} MB")
    assert size < 30e6
