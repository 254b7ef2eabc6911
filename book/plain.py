"""The book as plain text, as a Sphinx extension: for the programs that help a reader.

After llmstxt.org: `llms.txt` in the root of the site lists what there is, and beside each chapter's
page lies its text as Markdown, `04_kv_cache.html.md`. It has the text, the code in view, what that
printed, and the words of each figure. It has no solutions, no checks and no answers of quizzes.
"""

import ast
import html
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

import nbformat
import reading
import yaml
from docutils import nodes
from site_pages import CITATION, reading_order, slider_figure, widget_state
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from firsttoken.page.start import CHAPTERS, PARTS

TUTOR = Path(__file__).resolve().parents[1] / "TUTOR.md"
PLAIN = (
    "Each chapter is one Markdown file: its text, its code in view, what that printed, and the "
    "words of each figure in its place. Solutions, checks and answers of quizzes are left out. "
    "Without its `.md`, an address is that of the page for readers."
)
LEFT_OUT = re.compile(r"exercise-\d+-(check|solution)")
LINK = re.compile(r"(\]\((?!\w+:)[^)#\s]+)(\.ipynb|\.md)(#[^)\s]*)?(?=\))")
PICTURE = re.compile(r'role="img" aria-label="([^"]*)"')


def setup(app: Sphinx) -> dict:
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write(app: Sphinx, error: Exception | None) -> None:
    """Write llms.txt, the text of each chapter, and what an assistant should know."""
    if error or app.builder.format != "html":
        return
    site, notebooks = Path(app.outdir), reading_order(app.env)
    for page in notebooks:
        notebook = nbformat.read(app.env.doc2path(page), as_version=4)
        text = chapter_text(notebook, PurePosixPath(page).name, shown(app.env, page))
        Path(site, f"{page}.html.md").write_text(text, "utf-8")
    chapters = [page for page in notebooks if PurePosixPath(page).name in CHAPTERS]
    optional = [
        (
            f"{page}.html.md" if page in notebooks else f"{page}.html",
            app.env.titles[page].astext(),
            first_sentence(app.env, page),
        )
        for page in sorted(app.env.found_docs - set(chapters))
    ]
    book = yaml.safe_load(CITATION.read_text("utf-8"))
    text = index(book["title"], book["abstract"], chapters, optional)
    (site / "llms.txt").write_text(text, "utf-8")
    shutil.copy(TUTOR, site)


def index(
    title: str, summary: str, chapters: Iterable[str], pages: Iterable[tuple[str, str, str]]
) -> str:
    """Return llms.txt: what the book is, its chapters part by part, and its other pages."""
    sections = {"For assistants": ["- [How to help a reader](TUTOR.md): hint, never solve"]}
    for address in chapters:
        chapter = CHAPTERS[PurePosixPath(address).name]
        line = f"- [{chapter.label}]({address}.html.md): {chapter.question}"
        sections.setdefault(PARTS[chapter.part], []).append(line)
    sections["Optional"] = [f"- [{name}]({address}): {what}" for address, name, what in pages]
    lists = (f"## {name}\n\n" + "\n".join(lines) for name, lines in sections.items() if lines)
    return "\n\n".join([f"# {title}", f"> {summary}", PLAIN, *lists]) + "\n"


def first_sentence(env: BuildEnvironment, page: str) -> str:
    """Return what a page says first, on one line."""
    paragraph = next(env.get_doctree(page).findall(nodes.paragraph), None)
    words = " ".join(paragraph.astext().split()) if paragraph else ""
    return re.split(r"(?<=[.?!]) ", words)[0]


def chapter_text(
    notebook: nbformat.NotebookNode, stem: str, outputs: Mapping[int, list[str]]
) -> str:
    """Return a chapter as Markdown; `outputs` holds, by the index of a cell, what it showed."""
    title, *rest = notebook.cells
    parts = [title.source, f"> Plain text of [{stem}.html]({stem}.html). {PLAIN}"]
    for i, cell in enumerate(rest, 1):
        left_out = LEFT_OUT.search(" ".join(cell.metadata.get("tags", [])))
        if left_out:
            parts.append(f"*Left out here: the {left_out[1]}.*")
        elif cell.cell_type == "markdown":
            parts.append(LINK.sub(to_the_site, cell.source))
        else:
            parts += quizzes(cell.source)
            parts += [] if reading.is_folded(cell) else [fenced(cell.source, "python")]
            parts += outputs.get(i, [])
    return "\n\n".join(part.strip() for part in parts) + "\n"


def to_the_site(link: re.Match) -> str:
    """Return a link between sources as one between files of the site, to text if there is some."""
    ending = ".html.md" if link[2] == ".ipynb" else ".html"
    return f"{link[1]}{ending}{link[3] or ''}"


def quizzes(source: str) -> list[str]:
    """Return the questions that code asks, with what there is to choose from, without the answer.

    >>> quizzes('quiz("How many?", ["one", "two"], "two", explain="Count.")')
    ['**Quiz.** How many?\\n\\n- one\\n- two']
    """
    if "quiz(" not in source:
        return []
    found = []
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "quiz":
            question, *options = map(ast.literal_eval, call.args[:2])
            choices = "\n".join(f"- {option}" for some in options for option in some)
            found.append(f"**Quiz.** {question}\n\n{choices}".strip())
    return found


def shown(env: BuildEnvironment, chapter: str) -> dict[int, list[str]]:
    """Return what each cell of a chapter showed, as Markdown, by the index of the cell."""
    state = widget_state(env, chapter)
    found = {}
    for cell in env.get_doctree(chapter).findall(nodes.container):
        if cell.get("nb_element") == "cell_code":
            outputs = [
                o for part in cell if part.get("nb_element") == "cell_code_output" for o in part
            ]
            found[cell["cell_index"]] = [words for o in outputs for words in in_words(o, state)]
    return found


def in_words(output: nodes.Element, state: Mapping[str, dict]) -> list[str]:
    """Return an output of a cell as Markdown: a figure by its words, text as it was printed."""
    raw = "".join(node.astext() for node in output.findall(nodes.raw))
    if view := re.search(r'"model_id": *"(\w+)"', raw):
        figure = slider_figure(state, view[1])
        return (
            [f"[Figure with sliders: {figure.alt} {'; '.join(figure.controls)}.]"] if figure else []
        )
    if raw:
        return [f"[Figure: {html.unescape(alt)}]" for alt in PICTURE.findall(raw)]
    return [fenced(node.astext(), "text") for node in output.findall(nodes.literal_block)]


def fenced(text: str, language: str) -> str:
    """Return text between fences that are longer than any in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
