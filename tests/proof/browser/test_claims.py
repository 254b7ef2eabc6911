"""Appendix C on the built site: links land at cells that show its numbers, and its filter works."""

import itertools
import re

import pytest
from playwright.sync_api import expect

from browser.visit import Visit
from test_claims import APPENDIX, Claim, all_claims

PAGE = "notebooks/C_claims.html"
CLAIMS = all_claims(APPENDIX)
# Numbers of two digits or more that are no part of a name, such as H100 or Llama-2-13B.
NUMBER = re.compile(r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?(?![\w-])")
STATUS = ".ft-filter [role=status]"
# The text of the section that each of some cells stands in: prose, code and output.
SECTIONS = """async ([page, ids]) => {
    const html = await (await fetch(page)).text();
    const parsed = new DOMParser().parseFromString(html, "text/html");
    for (const other of parsed.querySelectorAll("script, style, .ft-claims")) other.remove();
    const section = (id) => parsed.getElementById(id)?.closest("section").textContent;
    return ids.map((id) => section(`cell-id=${id}`) ?? null);
}"""


def numbers(text: str) -> set[float]:
    found = (number.rstrip(",").replace(",", "") for number in NUMBER.findall(text))
    return {float(number) for number in found}


@pytest.fixture(scope="module")
def sections(browser, address) -> dict[tuple[str, str], str]:
    """Return the text around each cell that is linked to, by notebook and cell id."""
    cells = sorted({(name, cell_id) for claim in CLAIMS for _, name, cell_id in claim.cells})
    found = {}
    with Visit(browser, address) as visit:
        visit.open(PAGE)
        for name, group in itertools.groupby(cells, key=lambda cell: cell[0]):
            ids = [cell_id for _, cell_id in group]
            page = address + "notebooks/" + name.replace(".ipynb", ".html")
            texts = visit.page.evaluate(SECTIONS, [page, ids])
            found |= {(name, cell_id): text for cell_id, text in zip(ids, texts, strict=True)}
    return found


def not_shown(claim: Claim, sections) -> set[float]:
    """Return the numbers of an answer that stand neither in its claim nor where its links lead."""
    there = " ".join(sections[name, cell_id] for _, name, cell_id in claim.cells)
    few = {float(n) for n in range(10)}
    return numbers(claim.answer) - numbers(claim.heard) - numbers(there) - few


def test_every_link_has_its_anchor(sections):
    assert [cell for cell, text in sections.items() if text is None] == []


def test_each_answer_has_the_numbers_of_its_cells(sections):
    """What a chapter no longer says, the appendix must not say either."""
    wrong = {c.heard: missing for c in CLAIMS if (missing := not_shown(c, sections))}
    assert wrong == {}


def test_a_link_lands_at_its_cell(browser, address):
    """Below the sentence that it belongs to, in a further part as well, which opens."""
    further = next(c for c in CLAIMS if any("Further" in text for text, *_ in c.cells))
    for text, name, cell_id in (CLAIMS[0].cells[0], further.cells[0]):
        with Visit(browser, address) as visit:
            page = visit.open(PAGE)
            page.locator(f".ft-claims a[href$='{cell_id}']").first.click()
            page.wait_for_url(f"**/{name.removesuffix('.ipynb')}.html#cell-id={cell_id}")
            cell = page.locator(f"[id='cell-id={cell_id}']")
            expect(cell).to_be_visible()
            expect(cell).to_be_in_viewport()
            assert cell.bounding_box()["y"] > 100, text


def test_the_filter_leaves_what_has_all_words(browser, address):
    """By keyboard, with the count said; chapters and cells without a claim left are hidden."""
    with Visit(browser, address) as visit:
        page = visit.open(PAGE)
        items = page.locator(".ft-claims > li")
        expect(items).to_have_count(len(CLAIMS))
        field = page.get_by_label("Find a claim")
        field.focus()
        page.keyboard.type("GQA pitfalls")
        shown = page.locator(".ft-claims > li:visible").all_inner_texts()
        assert 0 < len(shown) < 10
        assert all("gqa" in text.lower() and "pitfalls" in text.lower() for text in shown)
        expect(page.locator(STATUS)).to_have_text(f"{len(shown)} of {len(CLAIMS)} claims")
        field.fill("")
        expect(page.locator(".ft-claims > li:visible")).to_have_count(len(CLAIMS))
