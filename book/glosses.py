"""Glosses, as a Sphinx extension: a word of the glossary shows what it means where it stands.

In each section of level 2 of a chapter, the first time that a word of the glossary stands in prose
becomes a link to it; so does a formula that is one letter of the notation. The page carries what
they mean, and _static/glosses.js shows it beside them. Without a script they are links.

Headings, code, tables, links, figures and quizzes are left alone, and so is a word that its
paragraph has in italics or bold: there the chapter itself explains it.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from html import escape
from pathlib import PurePosixPath

from docutils import nodes
from index_page import GLOSSARY, NOTATION, address, places
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
    # After the index has given the notation's rows their names.
    app.connect("doctree-resolved", gloss_chapter, priority=600)
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
        where = places(app, docname)
        page += Meanings(html="".join(card(app, docname, e, where) for e in entries.values()))


# Words in a page.


def marked(page: nodes.document, chapter: str) -> Iterator[tuple[Gloss, Entry]]:
    """Mark the words and letters of a chapter's page, and yield each mark with its entry."""
    once, on_page = rules()["once_a_chapter"], set()
    for part in [title.parent for title in page.findall(nodes.title) if level(title) == 2]:
        seen = {entry for entry in on_page if entry.name in once}
        for paragraph in list(part.findall(nodes.paragraph)):
            if is_prose(paragraph):
                seen |= own_words(paragraph, chapter)
                pieces = [n for n in paragraph.findall() if isinstance(n, nodes.Text | nodes.math)]
                for piece in pieces:
                    yield from mark(piece, chapter, seen)
        on_page |= seen


def level(title: nodes.title) -> int:
    """Return the level of a heading: how many sections it stands in."""
    return sum(isinstance(node, nodes.section) for node in around(title))


def around(node: nodes.Node) -> Iterator[nodes.Node]:
    while node.parent is not None:
        node = node.parent
        yield node


def is_prose(paragraph: nodes.paragraph) -> bool:
    """Say whether a paragraph is text for reading; what a cell prints is not."""
    return not any(isinstance(n, NO_PROSE) or "cell" in n["classes"] for n in around(paragraph))


def own_words(paragraph: nodes.paragraph, chapter: str) -> set[Entry]:
    """Return what a paragraph itself explains: stressed words, letters after "the notation"."""
    stressed = [n.astext() for n in paragraph.findall() if isinstance(n, STRESSED)]
    words = {e for text in stressed if is_name(text) for _, _, e in find_words(text, chapter)}
    links = [link.get("refuri", "") for link in paragraph.findall(nodes.reference)]
    if any(PurePosixPath(NOTATION).name in link for link in links):
        words |= {find_letter(n.astext(), chapter) for n in paragraph.findall(nodes.math)} - {None}
    return words


def mark(piece: nodes.Node, chapter: str, seen: set[Entry]) -> Iterator[tuple[Gloss, Entry]]:
    """Mark what is new in a piece of a paragraph, and note it in `seen`."""
    if any(isinstance(node, ELSEWHERE) for node in around(piece)):
        return
    if isinstance(piece, nodes.math):
        entry = find_letter(piece.astext(), chapter)
        if entry and entry not in seen:
            seen.add(entry)
            gloss = Gloss()
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


def visit_gloss(writer: HTML5Translator, gloss: Gloss) -> None:
    writer.body.append(
        f'<a class="ft-gloss" data-card="{gloss["card"]}" href="{escape(gloss["refuri"])}">'
    )


def depart_gloss(writer: HTML5Translator, _gloss: Gloss) -> None:
    writer.body.append("</a>")


def visit_meanings(writer: HTML5Translator, meanings: Meanings) -> None:
    writer.body.append(meanings["html"])
    raise nodes.SkipNode
