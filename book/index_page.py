"""The index, as a Sphinx extension: `{book-index}` with one of its parts as its argument.

- `questions`: entries in a reader's words, from questions.yml.
- `words`: those of the glossary, and the questions once more, from A to Z.
- `letters`: those of the notation.

Where a word is explained and used is counted in the chapters while the book is built, by terms.py.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import PurePosixPath

import site_pages
import yaml
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from terms import Entry, Section, explained, glossary, inline, notation, read, sections, used

GLOSSARY, NOTATION = "book/glossary", "book/notation"

PARTS = ("questions", "words", "letters")
PLACE = "ft-index-"  # the class of a place, before the name of its part


def setup(app: Sphinx) -> dict:
    app.add_directive("book-index", BookIndex)
    # After the line under the title: nobody reads an index from end to end.
    app.connect("doctree-resolved", fill, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class BookIndex(SphinxDirective):
    """The place of a part; it is filled when all chapters have been read."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()
        part = directives.choice(self.arguments[0], PARTS)
        return [nodes.container(classes=[PLACE + part])]


def fill(app: Sphinx, page: nodes.document, docname: str) -> None:
    if docname == NOTATION:
        rows = [row for row in page.findall(nodes.row) if row[0].next_node(nodes.math)]
        for row, entry in zip(rows, notation(), strict=True):
            row["ids"].append(entry.key)
    for part in PARTS:
        for place in list(page.findall(nodes.container)):
            if PLACE + part in place["classes"]:
                place.replace_self(Index(app, docname).part(part))
                has_formulas(app, docname)


def has_formulas(app: Sphinx, docname: str) -> None:
    """Have a page typeset formulas that its source does not hold."""
    app.env.get_domain("math").data["has_equations"][docname] = True


# What questions.yml says.


@cache
def questions() -> dict[str, dict[str, list[tuple[str, Section]]]]:
    """Return the entries of each group: short answers, and the section that gives each in full.

    Raises:
        ValueError: if there is no such section.
    """
    known = {f"{section.chapter}: {section.heading}": section for section in sections()}

    def found(address: str) -> Section:
        if address not in known:
            raise ValueError(f"questions.yml: no section {address!r}; expected chapter: heading")
        return known[address]

    return {
        group: {
            entry: [(answer, found(address)) for answer, address in answers.items()]
            for entry, answers in entries.items()
        }
        for group, entries in yaml.safe_load(read("questions.yml")).items()
    }


# The page.


class Index:
    """The index as the page `docname` shows it, of the chapters that are in the book."""

    def __init__(self, app: Sphinx, docname: str):
        self.app, self.docname = app, docname
        self.places = places(app, docname)

    def part(self, name: str) -> list[nodes.Node]:
        return {"questions": self.questions, "words": self.words, "letters": self.letters}[name]()

    def questions(self) -> list[nodes.Node]:
        groups = {
            group: [self.question(entry, answers) for entry, answers in entries.items()]
            for group, entries in questions().items()
        }
        return headed("questions", groups)

    def words(self) -> list[nodes.Node]:
        entries = {entry.name: self.word(entry) for entry in glossary()}
        for group in questions().values():
            entries |= {entry: self.question(entry, answers) for entry, answers in group.items()}
        groups = defaultdict(list)
        for name in sorted(entries, key=alphabetical):
            first = alphabetical(name)[0]
            groups[first.upper() if first.isalpha() else "0–9"].append(entries[name])
        return headed("words", groups)

    def letters(self) -> list[nodes.Node]:
        return [nodes.definition_list("", *map(self.letter, notation()), classes=["ft-index"])]

    def question(self, entry: str, answers: list[tuple[str, Section]]) -> nodes.Node:
        links = [self.link(section, answer) for answer, section in answers]
        return item([nodes.Text(entry)], links, "ft-asked")

    def word(self, entry: Entry) -> nodes.Node:
        first = nodes.strong("", "", *self.link(explained(entry)))
        links = [self.link(section) for section in used(entry)]
        return item([self.way(entry, entry.name)], [[first] if first.children else [], *links])

    def letter(self, entry: Entry) -> nodes.Node:
        links = [self.link(section) for section in used(entry)]
        # The meaning is the link: a typeset letter holds no text that would name it.
        return item([*inline(entry.name), nodes.Text(" "), self.way(entry, entry.meaning)], links)

    def way(self, entry: Entry, text: str) -> nodes.Node:
        """Return a link to where an entry stands in the glossary or the notation."""
        target = address(self.app, self.docname, entry)
        return nodes.reference("", "", *inline(text), refuri=target, internal=True)

    def link(self, section: Section, answer: str = "") -> list[nodes.Node]:
        """Return a link to a section, after a short answer; nothing where the book lacks it."""
        place = self.places.get(section)
        number = section.chapter.partition("_")[0]
        text = nodes.reference("", f"{number} {section.heading}", refuri=place, internal=True)
        return [nodes.Text(f"{answer}: " if answer else ""), text] if place else []


def item(name: list[nodes.Node], links: list[list[nodes.Node]], kind: str = "") -> nodes.Node:
    """Return an entry with its links, as one of a list of definitions."""
    shown = [nodes.list_item("", nodes.paragraph("", "", *link)) for link in links if link]
    classes = [kind] if kind else []
    term = nodes.term("", "", *name, classes=classes)
    body = nodes.definition("", nodes.bullet_list("", *shown), classes=classes)
    return nodes.definition_list_item("", term, body)


def headed(part: str, groups: Mapping[str, list[nodes.Node]]) -> list[nodes.Node]:
    """Return a section for each group of entries, after links that jump to them."""
    jump, found = nodes.bullet_list(classes=["ft-jump"]), []
    for group, entries in groups.items():
        name = f"{part}-{nodes.make_id(group) or 'digits'}"
        link = nodes.reference("", group, refuri=f"#{name}", internal=True)
        jump += nodes.list_item("", nodes.paragraph("", "", link))
        entries = nodes.definition_list("", *entries, classes=["ft-index"])
        found.append(nodes.section("", nodes.title("", group), entries, ids=[name]))
    return [jump, *found]


def alphabetical(name: str) -> str:
    """Return what an entry is sorted by.

    >>> sorted(["top-p", "Token", "KV head", "4 bits"], key=alphabetical)
    ['4 bits', 'KV head', 'Token', 'top-p']
    """
    return re.sub(r"[^\w ]", " ", name).casefold()


# Addresses.


def address(app: Sphinx, docname: str, entry: Entry) -> str:
    """Return where an entry stands in the glossary or the notation, seen from a page."""
    if entry.letters:
        return f"{app.builder.get_relative_uri(docname, NOTATION)}#{entry.key}"
    words = app.env.get_domain("std").objects
    return f"{app.builder.get_relative_uri(docname, GLOSSARY)}#{words['term', entry.name][1]}"


def places(app: Sphinx, docname: str) -> dict[Section, str]:
    """Return the address of each section of the book's chapters, seen from a page."""
    found = {}
    for chapter in site_pages.reading_order(app.env):
        stem = PurePosixPath(chapter).name
        written = [section for section in sections() if section.chapter == stem]
        page = app.builder.get_relative_uri(docname, chapter) if chapter != docname else ""
        if written:
            ids = zip(written, section_ids(app, chapter), strict=True)
            found |= {section: f"{page}#{name}" for section, name in ids}
    return found


@cache
def section_ids(app: Sphinx, chapter: str) -> list[str]:
    """Return the names of a page's sections, as Sphinx gives them, in the order of the page."""
    return [section["ids"][0] for section in app.env.get_doctree(chapter).findall(nodes.section)]
