"""The list of what chapters cite of real engines and what became of it, as a Sphinx extension.

`{engine-citations}` reads the chapters and what `book/engines.py` has stored.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from docutils import nodes
from engines import ENGINES, STORED, Citation, all_citations, identity, in_words
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from firsttoken.page.start import CHAPTERS

HEAD = ("Engine", "File, and what to find there", "Since")


def setup(app: Sphinx) -> dict:
    app.add_directive("engine-citations", EngineCitations)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class EngineCitations(SphinxDirective):
    """A sentence on when they were looked up, and a table for each chapter."""

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()  # the chapters may change while this page stays
        self.env.note_dependency(str(STORED))
        cited = all_citations()
        entries = json.loads(STORED.read_text("utf-8"))["citations"]
        stored = {identity(entry): entry for entry in entries}
        rows = [(citation, stored.get(identity(as_stored(citation)))) for citation in cited]
        found = [nodes.paragraph("", summary([entry for _, entry in rows]))]
        for stem in dict.fromkeys(citation.chapter for citation in cited):
            own = [(citation, entry) for citation, entry in rows if citation.chapter == stem]
            title = nodes.title("", CHAPTERS[stem].label)
            name = f"engines-{stem.replace('_', '-')}"
            found.append(nodes.section("", title, self.way(stem), table(own), ids=[name]))
        return found

    def way(self, stem: str) -> nodes.paragraph:
        """Return a link to a chapter."""
        link = addnodes.pending_xref(
            "",
            nodes.inline("", f"To chapter {CHAPTERS[stem].number}"),
            refdomain="std",
            reftype="doc",
            refexplicit=True,
            reftarget=f"/notebooks/{stem}",
            refdoc=self.env.docname,
            refwarn=True,
        )
        return nodes.paragraph("", "", link)


def as_stored(citation: Citation) -> dict:
    """Return a citation in the form that it is stored in."""
    return asdict(citation) | {"names": list(citation.names)}


def summary(entries: Sequence[Mapping | None]) -> str:
    """Return when and where the citations were looked up, and how many were."""
    verdicts = [entry["then"] if entry else {"status": "unknown"} for entry in entries]
    known = [verdict for verdict in verdicts if verdict["status"] != "unknown"]
    held = sum(verdict["status"] == "there" for verdict in known)
    said = (
        f"Of {len(entries)} places, as cited at the release that the chapter names: {held}; not as "
        f"cited: {len(known) - held}; not looked up: {len(entries) - len(known)}."
    )
    if known:
        sources = " and ".join(sorted({verdict["source"] for verdict in known}))
        said += f" Last looked up on {max(verdict['date'] for verdict in known)}, in {sources}."
    return said


def since(entry: Mapping | None) -> str:
    """Return what became of a citation, in the words of a table's cell."""
    if entry is None:
        return "Not looked up."
    then, now = entry["then"], entry["now"]
    said = []
    if then["status"] not in ("there", "unknown"):
        said.append(f"Not as cited: {in_words(then)}.")
    if now["status"] == "unknown":
        said.append("Not looked up.")
    else:
        at = "the main branch" if now["release"] == "HEAD" else now["release"]
        said.append(f"At {at}: {in_words(now)}.")
    return " ".join(said)


def table(rows: Sequence[tuple[Citation, Mapping | None]]) -> nodes.table:
    """Return a row for each citation."""
    group = nodes.tgroup("", *(nodes.colspec(colwidth=width) for width in (2, 5, 3)), cols=3)
    head = nodes.row("", *(entry_of([nodes.Text(words)]) for words in HEAD))
    group += nodes.thead("", head)
    group += nodes.tbody("", *(row(citation, stored) for citation, stored in rows))
    return nodes.table("", group)


def row(citation: Citation, stored: Mapping | None) -> nodes.row:
    """Return one citation; its file is a link where it was found."""
    engine = f"{citation.engine} {citation.release}".strip()
    place: list[nodes.Node] = [nodes.literal("", citation.path)]
    if stored and stored["then"]["status"] == "there":
        address = f"https://github.com/{ENGINES[citation.engine].repository}"
        address += f"/blob/{citation.ref}/{stored['then']['path']}"
        place = [nodes.reference("", "", *place, refuri=address)]
    for name in citation.names:
        place += [nodes.Text(", "), nodes.literal("", name)]
    cells = [[nodes.Text(engine)], place, list(with_code(since(stored)))]
    return nodes.row("", *map(entry_of, cells))


def entry_of(content: Sequence[nodes.Node]) -> nodes.entry:
    return nodes.entry("", nodes.paragraph("", "", *content))


def with_code(words: str) -> Iterator[nodes.Node]:
    """Yield a text with its code as code.

    >>> [node.astext() for node in with_code("moved to `a.py`.")]
    ['moved to ', 'a.py', '.']
    """
    for i, part in enumerate(words.split("`")):
        if part:
            yield nodes.literal("", part) if i % 2 else nodes.Text(part)
