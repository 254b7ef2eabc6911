"""The plain text on the built site: all is there, links lead somewhere, no answer is in."""

import posixpath
import re

import nbformat
import pytest

from browser.visit import CHAPTERS, NOTEBOOKS, ROOT, SITE, Visit
from test_chapters import SECTIONS
from test_plain import secrets

INDEX = SITE / "llms.txt"
MAX_CHAPTER_BYTES, MAX_INDEX_BYTES = 200_000, 15_000


def links(text: str) -> list[str]:
    """Return the addresses that Markdown links to on the same site; code is left out."""
    prose = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\(((?!\w+:)[^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose))


def test_the_index_lists_every_notebook_and_leads_to_files(address):
    text = INDEX.read_text("utf-8")
    assert len(text.encode()) < MAX_INDEX_BYTES
    listed = links(text)
    assert [link for link in listed if not (SITE / link).is_file()] == []
    plain = [link for link in listed if link.endswith(".html.md")]
    assert plain == [f"{path}.md" for path in NOTEBOOKS]
    assert "TUTOR.md" in listed and "book/notation.html" in listed


@pytest.mark.parametrize("path", [path for path in CHAPTERS if re.search(r"/\d\d_", path)])
def test_a_chapters_text_has_its_figures_and_no_answer(address, path):
    text = (SITE / f"{path}.md").read_text("utf-8")
    notebook = nbformat.read((ROOT / path).with_suffix(".ipynb"), as_version=4)
    assert [line for line in secrets(notebook) if line in text] == []
    assert 10_000 < len(text.encode()) < MAX_CHAPTER_BYTES
    assert text.count("[Figure with sliders: ") == (SITE / path).read_text("utf-8").count(
        '"ft-explore"'
    )
    assert text.count("[Figure: ") >= 1 and "```text\n" in text
    targets = [
        posixpath.normpath(posixpath.join("notebooks", t.split("#")[0])) for t in links(text)
    ]
    assert [target for target in targets if not (SITE / target).is_file()] == []


def test_a_section_has_the_address_that_the_tutor_names(browser, address):
    with Visit(browser, address) as visit:
        page = visit.open(CHAPTERS[0])
        for title in SECTIONS:
            heading = page.locator(f"section[id='{title.lower().replace(' ', '-')}'] > h2")
            assert heading.inner_text().startswith(title)


def test_the_text_is_served_as_text(browser, address):
    with Visit(browser, address) as visit:
        for path in ("llms.txt", "TUTOR.md", f"{CHAPTERS[0]}.md"):
            answer = visit.page.request.get(address + path)
            assert answer.ok and "text/" in answer.headers["content-type"], path
