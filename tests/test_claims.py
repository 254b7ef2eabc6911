"""Appendix C: each claim leads to a cell that runs and shows something, and no pitfall is left out.

What the built site has at the end of each link is tested in browser/test_claims.py.
"""

import ast
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import nbformat

import test_chapters
from test_chapters import NOTEBOOKS, Chapter, calls, citations, parsed, read, tags

ROOT = Path(__file__).parents[1]
APPENDIX = read(ROOT / "notebooks" / "C_claims.ipynb")
BOOK = {f"{chapter.stem}.ipynb": chapter for chapter in [*map(read, NOTEBOOKS), APPENDIX]}
CLAIM = re.compile(r'^- \*\*"(.+)"\*\* (.+?) → (.+)$', re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+)#cell-id=([^)]+)\)")
HEADING = re.compile(r"^##+ +(.+?) *$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SOURCE = re.compile(r"\]\((https?:[^)\s]+)\)")
SHOWING = ("print", "claim", "show", "explore")
# What would keep nbval or the site's build from running a cell, or from minding its error.
UNRUN = {"nbval-skip", "skip-execution", "raises-exception", "nbval-raises-exception"}
BELOW = "the cell below"


class Claim(NamedTuple):
    """An entry: what one hears, what is so, and where the links lead: (text, notebook, cell id)."""

    heard: str
    answer: str
    cells: list[tuple[str, str, str]]
    sources: list[str]


def claims_of(cell) -> list[Claim]:
    """Return the entries of a Markdown cell."""
    return [
        Claim(heard, answer, LINK.findall(rest), SOURCE.findall(answer + rest))
        for heard, answer, rest in CLAIM.findall(cell.source)
    ]


def all_claims(appendix: Chapter) -> list[Claim]:
    return [claim for cell in appendix.text for claim in claims_of(cell)]


def heading_of(chapter: Chapter, cell_id: str) -> str:
    """Return the heading below the title that a cell stands under."""
    title = ""
    for cell in chapter.notebook.cells:
        if cell.cell_type == "markdown":
            title = (HEADING.findall(FENCED.sub("", cell.source)) or [title])[-1]
        if cell.id == cell_id:
            return title
    return ""


def shows(cell) -> bool:
    asserts = any(isinstance(node, ast.Assert) for node in ast.walk(parsed(cell)))
    return asserts or bool(calls([cell], *SHOWING))


# Rules map the appendix and all notebooks by name to complaints.


def leads_to_cells_that_run(appendix, book):
    complaints = []
    for claim in all_claims(appendix):
        complaints += [] if claim.cells else [f"{claim.heard}: no cell"]
        for text, name, cell_id in claim.cells:
            chapter = book.get(name, Chapter("", nbformat.v4.new_notebook()))
            cell = next((c for c in chapter.notebook.cells if c.id == cell_id), None)
            here = f"{claim.heard}: {name}, {cell_id}"
            number = chapter.stem.partition("_")[0]
            place = f"{number} · {heading_of(chapter, cell_id)}"
            if cell is None:
                complaints.append(f"{here}: there is no such cell")
            elif cell.cell_type != "code" or not shows(cell):
                complaints.append(f"{here}: shows nothing")
            elif UNRUN & set(tags(cell)) or "NBVAL_SKIP" in cell.source:
                complaints.append(f"{here}: is not run")
            elif "remove-cell" in tags(cell):
                complaints.append(f"{here}: is not on the page")
            elif text != (BELOW if chapter == appendix else place):
                complaints.append(f"{here}: stands in '{place}', the link says '{text}'")
    return complaints


def stands_right_below(appendix, _book):
    """A check of the appendix itself follows the claims that speak of "the cell below"."""
    cells, complaints = appendix.notebook.cells, []
    for i, cell in enumerate(cells):
        below = cells[i + 1].id if i + 1 < len(cells) else None
        for claim in claims_of(cell) if cell.cell_type == "markdown" else []:
            own = [cell_id for text, _, cell_id in claim.cells if text == BELOW]
            complaints += [
                f"{claim.heard}: {cell_id} is not below" for cell_id in own if cell_id != below
            ]
    return complaints


def names_known_sources(appendix, book):
    """A source is in the bibliography, or a chapter names it, too."""
    chapters = [c.source for chapter in book.values() if chapter != appendix for c in chapter.text]
    named = set(SOURCE.findall("\n".join(chapters))) | set(citations())
    return [
        f"{claim.heard}: {address}"
        for claim in all_claims(appendix)
        for address in claim.sources
        if address not in named
    ]


def has_every_pitfall(appendix, book):
    linked = {(name, cell_id) for c in all_claims(appendix) for _, name, cell_id in c.cells}
    return [
        f"{name}: {cell.id}"
        for name, chapter in book.items()
        for cell in chapter.code
        if cell.id.startswith("pitfall-") or cell in chapter.section("Pitfalls")
        if "remove-cell" not in tags(cell) and (name, cell.id) not in linked
    ]


RULES = [
    leads_to_cells_that_run,
    stands_right_below,
    names_known_sources,
    has_every_pitfall,
]
# Of the rules for chapters, those that hold for any notebook.
OF_CHAPTERS = [
    test_chapters.begins_with_its_title,
    test_chapters.has_small_cells,
    test_chapters.says_what_each_cell_is_for,
    test_chapters.is_stored_clean,
    test_chapters.is_kind,
    test_chapters.cites_by_links,
    test_chapters.runs_anywhere,
    test_chapters.defines_nothing_the_library_has,
    test_chapters.uses_nothing_forbidden,
    test_chapters.has_no_asides,
]


def test_the_appendix_keeps_its_rules_and_those_of_chapters():
    broken = {rule.__name__: rule(APPENDIX, BOOK) for rule in RULES}
    broken |= {rule.__name__: rule(APPENDIX) for rule in OF_CHAPTERS}
    assert {name: complaints for name, complaints in broken.items() if complaints} == {}


def test_all_chapters_are_there_and_all_notebooks_run():
    """The numbers of the headings, and what makes pytest run each cell of each notebook."""
    found = re.findall(r"^### (\d\d) · ", "\n".join(c.source for c in APPENDIX.text), re.MULTILINE)
    assert found == [path.stem[:2] for path in NOTEBOOKS]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert "notebooks" in settings["testpaths"] and "--nbval-lax" in settings["addopts"]
