"""Glosses, as a Sphinx extension: a word of the glossary shows what it means where it stands.

In each section of level 2 of a chapter, the first time that a word of the glossary stands in prose
becomes a link to it; so does a formula that is one letter of the notation. The page carries what
they mean, and _static/glosses.js shows it beside them. Without a script they are links.

Headings, code, tables, links, figures and quizzes are left alone, and so is what a paragraph itself
explains: a word that it has in italics or bold, a letter that no paragraph before it has.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from html import escape
from itertools import groupby
from pathlib import PurePosixPath

from docutils import nodes
from further import FurtherTitle
from index_page import GLOSSARY, NOTATION, address, has_formulas, places
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator
from terms import (
    BOOK,
    Entry,
    Section,
    explained,
    find_letter,
    find_words,
    inline,
    is_name,
    rules,
    written,
)

SOURCES = ("glossary.md", "notation.md", "terms.yml")
STRESSED = (nodes.emphasis, nodes.strong)
ELSEWHERE = (*STRESSED, nodes.reference, nodes.literal, nodes.raw)  # in a paragraph
NO_PROSE = (nodes.table, nodes.figure, nodes.literal_block)  # around one


class Gloss(nodes.inline):
    """A word or letter that is marked."""


class Meanings(nodes.Element):
    """What the marked words of a page mean: HTML, so that the search does not find it here."""


def setup(app: Sphinx) -> dict:
    app.add_node(Gloss, html=(visit_gloss, depart_gloss))
    app.add_node(Meanings, html=(visit_meanings, None))
    app.add_css_file("terms.css")
    app.add_js_file("glosses.js", loading_method="defer")
    app.connect("source-read", note_sources)
    app.connect("doctree-resolved", gloss_chapter)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def note_sources(app: Sphinx, docname: str, _source: list[str]) -> None:
    """Have a chapter written anew when what it takes from the glossary has changed."""
    if app.env.doc2path(docname).endswith(".ipynb"):
        for name in SOURCES:
            app.env.note_dependency(str(BOOK / name))


def gloss_chapter(app: Sphinx, page: nodes.document, docname: str) -> None:
    known = {GLOSSARY, NOTATION} <= app.env.found_docs
    if app.builder.format != "html" or not docname.startswith("notebooks/") or not known:
        return
    chapter = PurePosixPath(docname).name
    entries = {}
    for gloss, entry in marked(page, chapter):
        entries.setdefault(entry.key, entry)
        gloss["card"], gloss["refuri"] = card_name(entry), address(app, docname, entry)
    if entries:
        has_formulas(app, docname)
        where = places(app, docname)
        page += Meanings(html="".join(card(app, docname, e, where) for e in entries.values()))


# Words in a page.


def marked(page: nodes.document, chapter: str) -> Iterator[tuple[Gloss, Entry]]:
    """Mark the words and letters of a chapter's page, and yield each mark with its entry."""
    once, on_page = rules()["once_a_chapter"], set()
    parts = [title.parent for title in page.findall(nodes.title) if level(title) == 2]
    for part in [part for part in parts if part[0].astext() != "References"]:
        seen = {entry for entry in on_page if entry.name in once}
        for folded, paragraphs in groupby(prose(part), key=folded_part):
            # What stands in a folded part may never be seen.
            here = {*seen} if folded else seen
            for paragraph in paragraphs:
                here |= own_words(paragraph, chapter)
                own = own_letters(paragraph, chapter) - on_page
                pieces = [n for n in paragraph.findall() if isinstance(n, nodes.Text | nodes.math)]
                for piece in pieces:
                    yield from mark(piece, chapter, here, own)
                on_page |= set() if folded else here | own


def prose(part: nodes.section) -> list[nodes.paragraph]:
    """Return the paragraphs for reading; those are not what cells print, tables and hints."""
    found, n_open = [], 0  # of <details>, which Markdown has as HTML around its text
    for node in part.findall():
        if isinstance(node, nodes.raw):
            n_open += node.astext().count("<details") - node.astext().count("</details")
        elif isinstance(node, nodes.paragraph) and not n_open:
            elsewhere = [
                n for n in around(node) if isinstance(n, NO_PROSE) or "cell" in n["classes"]
            ]
            found += [] if elsewhere else [node]
    return found


def folded_part(paragraph: nodes.paragraph) -> nodes.Node | None:
    """Return the further part that a paragraph stands in."""
    return next((node for node in around(paragraph) if isinstance(node[0], FurtherTitle)), None)


def level(title: nodes.title) -> int:
    """Return the level of a heading: how many sections it stands in."""
    return sum(isinstance(node, nodes.section) for node in around(title))


def around(node: nodes.Node) -> Iterator[nodes.Node]:
    while node.parent is not None:
        node = node.parent
        yield node


def own_words(paragraph: nodes.paragraph, chapter: str) -> set[Entry]:
    """Return the words that a paragraph itself explains: they are stressed."""
    stressed = [n.astext() for n in paragraph.findall() if isinstance(n, STRESSED)]
    return {e for text in stressed if is_name(text) for _, _, e in find_words(text, chapter)}


def own_letters(paragraph: nodes.paragraph, chapter: str) -> set[Entry]:
    """Return the letters of a paragraph; the first one with a letter says what it stands for."""
    return {find_letter(n.astext(), chapter) for n in paragraph.findall(nodes.math)} - {None}


def mark(
    piece: nodes.Node, chapter: str, seen: set[Entry], own: set[Entry]
) -> Iterator[tuple[Gloss, Entry]]:
    """Mark what is new in a piece of a paragraph, and note it in `seen`; leave `own` alone."""
    if any(isinstance(node, ELSEWHERE) for node in around(piece)):
        return
    if isinstance(piece, nodes.math):
        entry = find_letter(piece.astext(), chapter)
        if entry and entry not in seen | own:
            seen.add(entry)
            gloss = Gloss(spoken=spoken(piece.astext()))
            piece.replace_self(gloss)
            gloss += piece
            yield gloss, entry
        return
    if isinstance(piece.parent, nodes.math):
        return
    text, end, pieces = piece.astext(), 0, []
    for start, stop, entry in find_words(text, chapter):
        if entry not in seen:
            seen.add(entry)
            gloss = Gloss("", text[start:stop])
            pieces += [nodes.Text(text[end:start]), gloss]
            end = stop
            yield gloss, entry
    if pieces:
        piece.parent.replace(piece, [*pieces, nodes.Text(text[end:])])


# As HTML.


def card(app: Sphinx, docname: str, entry: Entry, where: Mapping[Section, str]) -> str:
    """Return what an entry means, as a template: nothing in it is shown, spoken or typeset yet.

    It will stand in a paragraph, beside the word, so all of it is text and links.
    """
    ways = {"Notation" if entry.letters else "Glossary": address(app, docname, entry)}
    if entry.chapter and explained(entry) in where:
        section = explained(entry)
        number = section.chapter.partition("_")[0]
        ways = {f"{number} {section.heading}": where[section]} | ways
    links = "".join(f'<a href="{escape(to)}">{escape(name)}</a>' for name, to in ways.items())
    return (
        f'<template id="{card_name(entry)}"><b>{shown(app, entry.name)}</b>'
        f"<span>{shown(app, entry.meaning)}</span><span>{links}</span></template>"
    )


def card_name(entry: Entry) -> str:
    return f"gloss-{entry.key}"


@cache
def shown(app: Sphinx, markdown: str) -> str:
    """Return a line of the glossary or the notation as HTML, as Sphinx writes it."""
    fragment = app.builder.render_partial(nodes.inline("", "", *inline(markdown)))["fragment"]
    return fragment.removeprefix("<span>").removesuffix("</span>")


def spoken(letter: str) -> str:
    r"""Return a letter as a name: the typeset one holds no text.

    >>> [spoken(letter) for letter in (r"n_\text{in}", "I^*", r"v_\gamma", "p(x)")]
    ['n in', 'I star', 'v gamma', 'p(x)']
    """
    plain = re.sub(r"[\\{}$]", "", written(letter))
    return plain.replace("_", " ").replace("^*", " star")


def visit_gloss(writer: HTML5Translator, gloss: Gloss) -> None:
    name = f' aria-label="{escape(gloss["spoken"])}"' if "spoken" in gloss else ""
    where = f'data-card="{gloss["card"]}" href="{escape(gloss["refuri"])}"'
    writer.body.append(f'<a class="ft-gloss" {where}{name}>')


def depart_gloss(writer: HTML5Translator, _gloss: Gloss) -> None:
    writer.body.append("</a>")


def visit_meanings(writer: HTML5Translator, meanings: Meanings) -> None:
    writer.body.append(meanings["html"])
    raise nodes.SkipNode
