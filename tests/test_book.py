"""The site's own pages: reading time, the line under a title, figure index, citation, glossary."""

import math
import re
from pathlib import Path

import ipywidgets
import pytest
import site_pages
import yaml
from docutils import nodes
from hypothesis import given
from hypothesis import strategies as st
from myst_nb.sphinx_ import HideCodeCellNode
from pybtex.database import parse_string

from firsttoken.page import explore
from test_chapters import TACTLESS

ROOT = Path(__file__).parents[1]
BOOK = ROOT / "book"
PAGES = {path.stem: path.read_text("utf-8") for path in sorted(BOOK.glob("*.md"))}
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))


@given(words=st.integers(0, 3000), hidden=st.integers(0, 3000))
def test_a_page_takes_a_minute_for_180_words(words, hidden):
    page = nodes.section("", nodes.paragraph("", "word " * words))
    page += nodes.raw("", "<b>word</b> " * hidden, format="html")
    expected = max(1, math.ceil(words / 180))
    assert site_pages.minutes_to_read(Path("preface.md"), page) == expected


def test_only_chapters_open_in_jupyterlab():
    chapter = site_pages.page_line(25, "notebooks/04_kv_cache.ipynb")
    assert "25 min to read, longer with what you try" in chapter
    assert "<pre>make lab CHAPTER=04</pre>" in chapter
    assert 'href="http://localhost:8888/lab/tree/notebooks/04_kv_cache.ipynb"' in chapter
    page = site_pages.page_line(3, "book/notation.md")
    assert "JupyterLab" not in page
    assert "try" not in page


def test_folded_code_comes_below_what_it_shows():
    cell = nodes.container("", HideCodeCellNode(), nodes.container(ids=["output"]))
    everything, empty = nodes.container(), nodes.container()
    everything.children = [HideCodeCellNode("", nodes.container())]  # as MyST-NB does: no parent
    site_pages.put_folded_code_below(nodes.section("", cell, everything, empty))
    assert [type(part) for part in cell] == [nodes.container, HideCodeCellNode]
    assert [type(part) for part in everything] == [HideCodeCellNode]


HUBS = ("https://mybinder.org", "https://colab.research.google.com")
SOURCE = "notebooks/04_kv_cache.ipynb"


def test_launch_links_lead_to_the_notebook():
    address = "https://github.com/owner/book"
    binder, colab = site_pages.launch_items(address, "a/b", *HUBS, SOURCE)
    assert f'"https://mybinder.org/v2/gh/owner/book/a%2Fb?urlpath=lab/tree/{SOURCE}"' in binder
    assert f'"https://colab.research.google.com/github/owner/book/blob/a%2Fb/{SOURCE}"' in colab
    assert f"git+{address}</pre>" in colab
    assert site_pages.launch_items(address, "main", "", "", SOURCE) == []


def explored(monkeypatch, draw, **arguments) -> tuple[dict, str]:
    """Return the page's widgets and the id of the one that explore displays on the site."""
    shown = []
    monkeypatch.setenv("FIRSTTOKEN_SITE", "1")
    monkeypatch.setattr(explore, "display", lambda box, _face: shown.append(box))
    explore.explore(draw, **arguments)
    return ipywidgets.Widget.get_manager_state()["state"], shown[0].model_id


def draw_line(ax, batch, context, dtype):
    ax.plot([0, batch], [0, context], label=dtype)


CONTROLS = {"batch": [1, 4], "context": [256, 1024], "dtype": ["bf16", "int8", "int4"]}


@pytest.mark.parametrize(
    "alt", ['Less than "half" & <more>.', lambda batch, **_: f"A line that ends at {batch}."]
)
def test_index_says_what_explore_shows(monkeypatch, alt):
    """Where the alt text depends on the values, it is that of the first frame."""
    labels = {"context": ("Context", "tokens"), "dtype": "Format"}
    start = {"batch": 4, "dtype": "int4"}
    state, model_id = explored(
        monkeypatch, draw_line, alt=alt, labels=labels, initial=start, play="context", **CONTROLS
    )
    text = alt(batch=4) if callable(alt) else alt
    controls = ("batch, 1 to 4", "Context, 256 tokens to 1,024 tokens", "Format, 3 to choose from")
    assert site_pages.slider_figure(state, model_id) == site_pages.SliderFigure(text, controls)


@pytest.mark.parametrize("url", ["", "https://github.com/owner/book"])
def test_bibtex_says_what_the_citation_file_says(url):
    """Read by another program, braces and all."""
    text = site_pages.citation_bibtex(CITATION, "2026", url)
    ((_, entry),) = parse_string(text, "bibtex").entries.items()
    authors = [str(person).strip("{}") for person in entry.persons["author"]]
    assert authors == [author["name"] for author in CITATION["authors"]]
    assert entry.fields["title"].strip("{}") == CITATION["title"]
    assert entry.fields["year"] == "2026"
    assert str(CITATION["version"]) in entry.fields["note"]
    assert entry.fields.get("url", "") == url


def test_every_page_of_the_book_is_listed_once():
    toc = (BOOK / "_toc.yml").read_text("utf-8")
    listed = re.findall(r"^ *-? ?(?:root|file): book/(\w+)$", toc, re.MULTILINE)
    assert sorted(listed) == sorted(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_page_is_kind(name):
    assert TACTLESS.findall(PAGES[name]) == []
