"""What the site adds to its pages, as a Sphinx extension.

- Under every title: the time to read the page and, on chapters, the way into JupyterLab.
- Folded code stands below what it shows.
- `{chapter}` links to a chapter as soon as that chapter stands.
- `{slider-figures}` lists every figure with sliders, as the notebooks have drawn it.
- `{calculator}` asks what a model needs on some devices; its parts lie in book/calculator/.
- `{citation}` says how to cite the book, from CITATION.cff.
- `{live}` puts a live view into a page, as a notebook does.
- `{chapter-cards}` gives each chapter a card with a picture.
- Further parts of chapters are folded (book/further.py).
- A link may lead to a code cell (book/cell_links.py).
- The claims of appendix C can be filtered (book/claims.py).
- `{book-index}` is the index (book/index_page.py), and words of the glossary show what they mean
  where they stand in a chapter (book/glosses.py).
- Beside each chapter lies its plain text (book/plain.py).
- `{engine-citations}` lists what chapters cite of real engines (book/engine_page.py).
"""

import html
import inspect
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urlsplit

import front
import nbformat
import reading
import yaml
from calculator.page import page as calculator_html
from docutils import nodes
from docutils.parsers.rst import directives
from myst_nb.sphinx_ import HideCodeCellNode
from nbclient import NotebookClient
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective, SphinxRole

from firsttoken import live
from firsttoken.page.start import CHAPTERS

CITATION = Path(__file__).resolve().parents[1] / "CITATION.cff"
LOCAL_LAB = "http://localhost:8888/lab/tree/"
INDEX = "ft-slider-figures"  # the class of the place that the list of figures goes to
CARDS = "ft-chapter-cards"


def setup(app: Sphinx) -> dict:
    # MyST-NB would put a line break between the pieces of a text that is printed token by token.
    NotebookClient.__init__ = partialmethod(NotebookClient.__init__, coalesce_streams=True)
    for own in ("further", "cell_links", "claims", "index_page", "glosses", "plain", "engine_page"):
        app.setup_extension(own)
    app.add_role("chapter", ChapterLink())
    app.add_directive("slider-figures", SliderFigures)
    app.add_directive("calculator", Calculator)
    app.add_config_value("calculator", {}, "env")
    app.add_directive("citation", Citation)
    app.add_directive("live", LiveView)
    app.add_directive("chapter-cards", ChapterCards)
    app.connect("doctree-resolved", finish_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def finish_page(app: Sphinx, page: nodes.document, docname: str) -> None:
    put_folded_code_below(page)
    for place in [node for node in page.findall(nodes.container) if INDEX in node["classes"]]:
        place.replace_self(figure_sections(app, docname))
    for place in [node for node in page.findall(nodes.container) if CARDS in node["classes"]]:
        place.replace_self(nodes.raw("", chapter_cards(app, docname), format="html"))
    title = next(page.findall(nodes.title), None)
    if title is not None and docname != app.config.root_doc:
        source = app.env.doc2path(docname, base=False)
        options = app.config.html_theme_options
        buttons = options.get("launch_buttons") or {}
        items = launch_items(
            options.get("repository_url") or "",
            options.get("repository_branch") or "main",
            buttons.get("binderhub_url") or "",
            buttons.get("colab_url") or "",
            source,
        )
        line = page_line(minutes_to_read(Path(app.env.doc2path(docname)), page), source, items)
        title.parent.insert(title.parent.index(title) + 1, nodes.raw("", line, format="html"))


def put_folded_code_below(page: nodes.Node) -> None:
    """Let what a cell shows follow the sentence that announces it: its folded code comes last."""
    for cell in page.findall(nodes.container):
        if cell.children and isinstance(cell.children[0], HideCodeCellNode):
            cell.append(cell.pop(0))


# The line under the title.


def minutes_to_read(source: Path, page: nodes.Node) -> int:
    """Return the minutes that a page takes to read, rounded up, at least 1."""
    if source.suffix == ".ipynb":
        return chapter_minutes(source)
    return max(1, math.ceil(words_to_read(page) / reading.WORDS_PER_MINUTE))


def chapter_minutes(source: Path) -> int:
    """Return the minutes that a chapter itself says it takes to read."""
    return reading.minutes(nbformat.read(source, as_version=4))


def words_to_read(node: nodes.Node) -> int:
    """Return the number of words in the text of a page; HTML is left out."""
    if isinstance(node, nodes.Text):
        return len(node.split())
    if isinstance(node, nodes.raw | nodes.comment):
        return 0
    return sum(words_to_read(child) for child in node.children)


def page_line(minutes: int, source: str, more: Sequence[str] = ()) -> str:
    """Return the HTML of the line: minutes and, for a notebook, how to open it in JupyterLab."""
    time = f"{minutes} min to read"
    if not source.endswith(".ipynb"):
        return f'<div class="ft-page-line"><span>{time}</span></div>'
    number = PurePosixPath(source).stem.partition("_")[0]
    # Nobody reads an appendix through.
    time = f"<span>{time}, longer with what you try</span>" if number.isdecimal() else ""
    running = html.escape(LOCAL_LAB + quote(source))
    items = [
        "<p>Sliders, quizzes and the views in which the model writes work in this page. To change "
        "code, and to have your answers to exercises checked, you need JupyterLab.</p>",
        "<p>With the book’s folder on this machine, in a terminal there:</p>"
        f"<pre>make lab CHAPTER={number}</pre>",
        f'<p>A lab that runs already: <a href="{running}">{running}</a> '
        "(this link leads to your own machine).</p>",
        *more,
    ]
    return (
        f'<div class="ft-page-line">{time}<details class="ft-lab d-print-none">'
        f"<summary>Open in JupyterLab</summary>{''.join(items)}</details></div>"
    )


def launch_items(repository: str, branch: str, hub: str, colab: str, source: str) -> list[str]:
    """Return a paragraph for each service that can run a chapter; an unset address gives none."""
    place = urlsplit(repository)
    if place.hostname != "github.com":
        return []
    project = place.path.strip("/").removesuffix(".git")
    branch, source = quote(branch, safe=""), quote(source)
    items = []
    if hub:
        url = html.escape(f"{hub}/v2/gh/{project}/{branch}?urlpath=lab/tree/{source}")
        items.append(f'<p>Without installing: <a href="{url}">JupyterLab on Binder</a>.</p>')
    if colab:
        url = html.escape(f"{colab}/github/{project}/blob/{branch}/{source}")
        install = html.escape(f"%pip install git+{repository}")
        items.append(
            f'<p>Or <a href="{url}">Colab</a>; there, run this in a new cell first:</p>'
            f"<pre>{install}</pre>"
        )
    return items


# Links to headings and chapters.


def heading_anchor(title: str) -> str:
    """Return the anchor of a heading as JupyterLab has it, so that one link leads there in both.

    >>> heading_anchor("Tokens repeat")
    'Tokens-repeat'
    """
    return title.replace(" ", "-")


class ChapterLink(SphinxRole):
    """`{chapter}`04_kv_cache``: "→ chapter 04" once that notebook stands, nothing before."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        self.env.note_reread()  # the chapter may come or go while this page stays
        target = f"notebooks/{self.text}"
        if target not in self.env.found_docs:
            return [], []
        label = f"→\N{NO-BREAK SPACE}chapter\N{NO-BREAK SPACE}{self.text.partition('_')[0]}"
        link = addnodes.pending_xref(
            self.rawtext,
            nodes.inline("", label),
            refdomain="std",
            reftype="doc",
            refexplicit=True,
            reftarget=f"/{target}",
            refdoc=self.env.docname,
            refwarn=True,
        )
        return [link], []


# The index of figures with sliders.


@dataclass(frozen=True)
class SliderFigure:
    """What a reader must know to choose a figure."""

    alt: str
    controls: tuple[str, ...]  # label and range


class SliderFigures(SphinxDirective):
    """The place of the index; it is filled when all notebooks have been read."""

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()
        return [nodes.container(classes=[INDEX])]


def figure_sections(app: Sphinx, docname: str) -> list[nodes.Node]:
    """Return one section per chapter that has figures, with a link to where each one stands."""
    sections = []
    for chapter in reading_order(app.env):
        address = app.builder.get_relative_uri(docname, chapter)
        entries = {}
        for section, figure in chapter_figures(app.env, chapter):
            heading = section[section.first_child_matching_class(nodes.title)].astext()
            target = f"{address}#{section['ids'][0]}"
            link = nodes.reference("", heading, refuri=target, internal=True)
            term = nodes.term("", "", link)
            # Figures of one section stand under one link.
            entry = entries.setdefault(
                target, nodes.definition_list_item("", term, nodes.definition())
            )
            controls = f"Sliders and menus: {'; '.join(figure.controls)}."
            entry[-1] += nodes.paragraph("", figure.alt)
            entry[-1] += nodes.paragraph("", controls, classes=["ft-controls"])
        if entries:
            title = nodes.title("", app.env.titles[chapter].astext())
            name = f"figures-{PurePosixPath(chapter).name.replace('_', '-')}"
            body = nodes.definition_list("", *entries.values())
            sections.append(nodes.section("", title, body, ids=[name]))
    return sections


def reading_order(env: BuildEnvironment) -> list[str]:
    """Return the notebooks as the table of contents lists them."""
    found, waiting = [], [env.config.root_doc]
    while waiting:
        docname = waiting.pop(0)
        found.append(docname)
        waiting = env.toctree_includes.get(docname, []) + waiting
    return [docname for docname in found if env.doc2path(docname).endswith(".ipynb")]


def chapter_figures(
    env: BuildEnvironment, chapter: str
) -> Iterator[tuple[nodes.section, SliderFigure]]:
    """Yield each figure with sliders of a chapter and the section that it stands in."""
    state = widget_state(env, chapter)
    if not state:
        return
    for output in env.get_doctree(chapter).findall(nodes.raw):
        view = re.search(r'"model_id": *"(\w+)"', output.astext())
        figure = slider_figure(state, view[1]) if view else None
        if figure is not None:
            section = output.parent
            while not isinstance(section, nodes.section):
                section = section.parent
            yield section, figure


def widget_state(env: BuildEnvironment, chapter: str) -> dict[str, dict]:
    """Return the state of each widget of a chapter's page by its id."""
    scripts = env.nb_metadata.get(chapter, {}).get("js_files", {})
    if "ipywidgets_state" not in scripts:
        return {}
    return json.loads(scripts["ipywidgets_state"][1]["body"])["state"]


def first_state(state: Mapping[str, dict], model_id: str) -> tuple[list[dict], str] | None:
    """Return a slider figure's inputs and the frame it shows first, or None for other widgets."""

    def read(reference: str) -> dict:
        return state[reference.removeprefix("IPY_MODEL_")]["state"]

    box = read(model_id)
    if "ft-explore" not in box.get("_dom_classes", []):
        return None
    *rows, picture = (read(child) for child in box["children"])
    # A button that plays stands before its slider.
    inputs = [read(row["children"][-1]) if "children" in row else row for row in rows]
    while "children" in picture:  # stacks of pictures, one in the other
        picture = read(picture["children"][picture["selected_index"]])
    return inputs, picture["value"]


def slider_figure(state: Mapping[str, dict], model_id: str) -> SliderFigure | None:
    """Return what `explore` has put into a page's widgets, or None for any other widget."""
    found = first_state(state, model_id)
    if found is None:
        return None
    inputs, picture = found
    shown = html.unescape(re.search(r'aria-label="([^"]*)"', picture)[1])
    # explore ends every alt text with the values at hand.
    now = (f"{i['description']}: {i['_options_labels'][i['index']]}" for i in inputs)
    alt = shown.removesuffix(f" ({', '.join(now)})")
    controls = (
        f"{i['description']}, {i['_options_labels'][0]} to {i['_options_labels'][-1]}"
        if "Slider" in i["_model_name"]
        else f"{i['description']}, {len(i['_options_labels'])} to choose from"
        for i in inputs
    )
    return SliderFigure(alt, tuple(controls))


# The first page.


VIEWS = [name for name in live.__all__ if name != "View"]
TEXTS = (str, str | None)


def view_options() -> dict:
    """Return what turns an option's text into the value of that argument of any view."""
    return {
        name: directives.unchanged if argument.annotation in TEXTS else yaml.safe_load
        for view in VIEWS
        for name, argument in inspect.signature(getattr(live, view)).parameters.items()
    }


# How a view is shown at first, which is no argument of it.
SHOWN = {"writing": directives.positive_int, "door": directives.flag}


class LiveView(SphinxDirective):
    """`{live} next_token` with a view's arguments as options: the view, as in a notebook.

    `writing` gives how many tokens the model goes on for; that is then what is seen at first. A
    chat can be a `door`: a button alone, below another view, where the site has the real model.
    """

    required_arguments = 1
    option_spec = view_options() | SHOWN

    def run(self) -> list[nodes.Node]:
        name = directives.choice(self.arguments[0], VIEWS)
        given = {key: value for key, value in self.options.items() if key not in SHOWN}
        view = getattr(live, name)(**given)
        if "door" in self.options:
            shown = view.door()
        elif "writing" in self.options:
            shown = view.on_site(front.writing(view, self.options["writing"]))
        else:
            shown = view.on_site()
        return [nodes.raw("", shown, format="html")]


class ChapterCards(SphinxDirective):
    """The place of the cards; it is filled when all chapters have been read."""

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()
        return [nodes.container(classes=[CARDS])]


def chapter_cards(app: Sphinx, docname: str) -> str:
    """Return the cards of all chapters, as the page `docname` links to them."""
    return front.cards(
        [
            front.Entry(
                PurePosixPath(chapter).name,
                app.builder.get_relative_uri(docname, chapter),
                chapter_minutes(Path(app.env.doc2path(chapter))),
            )
            for chapter in reading_order(app.env)
            if PurePosixPath(chapter).name in CHAPTERS
        ]
    )


# The calculator.


class Calculator(SphinxDirective):
    """Its form and a worked example; `book/build.py` says where its scripts are."""

    def run(self) -> list[nodes.Node]:
        given = dict(self.config.calculator)
        if given:
            given["place"] = "../" * self.env.docname.count("/") + given["place"]
        return [nodes.raw("", calculator_html(**given), format="html")]


# How to cite.


class Citation(SphinxDirective):
    """`{citation} text` or `{citation} bibtex`: how to cite the book."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        form = directives.choice(self.arguments[0], ("text", "bibtex"))
        self.env.note_dependency(str(CITATION))
        citation = yaml.safe_load(CITATION.read_text("utf-8"))
        url = self.config.html_theme_options.get("repository_url") or ""
        make = citation_text if form == "text" else citation_bibtex
        text = make(citation, self.config.copyright, url)
        return [nodes.literal_block(text, text, language=form, classes=["ft-wrap"])]


def citation_text(citation: Mapping, year: str, url: str = "") -> str:
    """Return the citation as one sentence per part."""
    authors = ", ".join(author["name"] for author in citation["authors"])
    text = f"{authors} ({year}). {citation['title']}. Version {citation['version']}."
    return f"{text} {url}".strip()


def citation_bibtex(citation: Mapping, year: str, url: str = "") -> str:
    """Return the citation as a BibTeX entry; inner braces keep names and capitals as they are."""
    fields = {
        "author": " and ".join(f"{{{author['name']}}}" for author in citation["authors"]),
        "title": f"{{{citation['title']}}}",
        "year": year,
        "note": f"Version {citation['version']}",
        "url": url,
    }
    lines = [f"  {name} = {{{value}}}" for name, value in fields.items() if value]
    return "@misc{firsttoken,\n" + ",\n".join(lines) + "\n}"
