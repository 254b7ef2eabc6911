"""Print the built site as one PDF, _build/html/first-token.pdf: `make pdf`.

The articles of the site become one HTML document, which Chromium prints. What only moves on a
screen is put into its first state, what asks for a click is opened, and what would give an answer
away goes to an appendix. How it all looks on paper says book/_static/print.css.
"""

import html
import json
import os
import posixpath
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import pikepdf
import yaml
from bs4 import BeautifulSoup, Tag
from playwright.sync_api import Route, sync_playwright
from site_pages import first_state

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
SITE = ROOT / "_build" / "html"
TARGET = SITE / "first-token.pdf"
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
ORIGIN = "http://book.invalid/"  # answered from _build/html; nothing else is asked
ANSWERS, ANSWERS_TITLE = "answers", "Answers, hints and solutions"
MINUTE_MS = 60_000


@dataclass(frozen=True)
class Page:
    """A page of the site: its path there, and the part of the book that it stands in."""

    path: str
    part: str

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).stem


def pages() -> list[Page]:
    """Return the pages in reading order; the site's first page has the doors, not the text."""
    toc = yaml.safe_load((BOOK / "_toc.yml").read_text("utf-8"))
    return [
        Page(f"{chapter['file']}.html", part["caption"])
        for part in toc["parts"]
        for chapter in part["chapters"]
    ]


# From pages to one document.


class Document:
    """The book as HTML. Each page's ids begin with its name, so that none is there twice."""

    def __init__(self, listed: Sequence[Page], site: Path = SITE):
        self.site, self.pages = site, listed
        self.names = {page.path: page.name for page in listed}
        # Each style sheet once, in the order found.
        self.sheets: dict[str, None] = {}
        self.styles: dict[str, None] = {}
        self.titles: dict[str, str] = {}
        self.answers: list[str] = []
        chapters = [self.chapter(page) for page in listed]
        self.html = self.whole(chapters)

    def chapter(self, page: Page) -> str:
        """Return the article of a page, ready for paper."""
        source = BeautifulSoup((self.site / page.path).read_text("utf-8"), "html.parser")
        article = source.select_one("article.bd-article")
        for sheet in source("link", rel="stylesheet"):
            self.sheets[self.address(page, sheet.extract()["href"])] = None
        widgets = source.find("script", type="application/vnd.jupyter.widget-state+json")
        draw_first_states(article, json.loads(widgets.string)["state"] if widgets else {})
        for style in article("style"):
            self.styles[style.extract().string] = None
        for gone in article.select(
            "script, noscript:not(.ft-quiz > noscript), .headerlink, .ft-lab, .ft-live-try, "
            ".ft-messages, .ft-before, .ft-feedback, button, .ft-pause"
        ):
            gone.decompose()
        for table in article.select("div.cell:has(.ft-progress)"):
            table.find_previous_sibling().decompose()  # the sentence that says what it is for
            table.decompose()
        title = article.h1
        self.titles[page.name] = title.get_text(" ", strip=True)
        title.insert_before(parsed(f'<p class="ft-part">{html.escape(page.part)}</p>'))
        answers = take_answers(article, page.name)
        unfold(article)
        for root in (article, *answers):
            fill_in_by_hand(root)
            self.link(root, page)
        if answers:
            heading = f'<h2><a href="#{page.name}">{html.escape(self.titles[page.name])}</a></h2>'
            self.answers.append(heading + "".join(map(str, answers)))
        return self.section(page.name, article.decode_contents())

    def section(self, name: str, content: str) -> str:
        return f'<div class="ft-chapter" id="{name}" style="page: p{name}">{content}</div>'

    def link(self, root: Tag, page: Page) -> None:
        """Give ids and what refers to them the page's name; lead links to other pages there."""

        def own(match: re.Match) -> str:
            return f"url(#{page.name}.{match[1]})"

        for tag in [root, *root.find_all(True)]:
            for key, value in list(tag.attrs.items()):
                if key == "id":
                    tag[key] = f"{page.name}.{value}"
                elif key in ("for", "aria-labelledby", "aria-describedby"):
                    tag[key] = " ".join(f"{page.name}.{part}" for part in value.split())
                elif key == "src":
                    tag[key] = value if value.startswith("data:") else self.address(page, value)
                elif isinstance(value, str) and "url(#" in value:
                    tag[key] = re.sub(r"url\(#([^)]+)\)", own, value)
            if tag.get("href"):
                self.lead(tag, page)

    def address(self, page: Page, href: str) -> str:
        """Return the path on the site that a page's relative address leads to."""
        return posixpath.normpath(posixpath.join(posixpath.dirname(page.path), unquote(href)))

    def lead(self, tag: Tag, page: Page) -> None:
        """Turn a link of the site into one of the PDF; where it has no target, text remains."""
        url = urlsplit(tag["href"])
        if url.scheme:
            return
        path = self.address(page, url.path) if url.path else page.path
        if path in self.names:
            tag["href"] = f"#{self.names[path]}" + (f".{url.fragment}" if url.fragment else "")
        elif path == "book/intro.html":
            tag["href"] = "#contents"
        elif tag.name == "a":
            tag.unwrap()

    def whole(self, chapters: Sequence[str]) -> str:
        """Return the document: title, contents, chapters, answers."""
        sheets = "".join(f'<link rel="stylesheet" href="{path}">' for path in self.sheets)
        title, _, subtitle = CITATION["title"].partition(": ")
        headers = {"about": title, "contents": title, **self.titles, ANSWERS: ANSWERS_TITLE}
        margins = "".join(
            f'@page p{name} {{ @top-left {{ content: "{css_text(header)}"; {LABEL} }}'
            f"@bottom-center {{ content: counter(page); {LABEL} }} }}"
            for name, header in headers.items()
        )
        authors = ", ".join(author["name"] for author in CITATION["authors"])
        answers = self.section(ANSWERS, f"<h1>{headers[ANSWERS]}</h1>{''.join(self.answers)}")
        return f"""<!DOCTYPE html>
<html lang="en" data-theme="light" data-mode="light">
<head>
<meta charset="utf-8">
<title>{html.escape(CITATION["title"])}</title>
{sheets}
<style>{"".join(self.styles)}{margins}</style>
<script>window.MathJax = {json.dumps(MATHJAX)}</script>
<script src="_static/mathjax/tex-chtml.js"></script>
</head>
<body class="ft-book"><article class="bd-article">
<div class="ft-title"><p class="ft-book-title">{html.escape(title)}</p>
<p class="ft-subtitle">{html.escape(subtitle[0].upper() + subtitle[1:])}</p>
<p>{html.escape(authors)}</p>
<p>Version {CITATION["version"]}. Text: CC BY 4.0. Code: MIT.</p></div>
{self.section("about", ABOUT)}
{self.section("contents", f"<h1>Contents</h1>{''.join(self.contents())}")}
{"".join(chapters)}{answers if self.answers else ""}
</article></body></html>"""

    def contents(self) -> Iterator[str]:
        """Yield the table of contents, part by part."""
        part = None
        for page in self.pages:
            if page.part != part:
                part = page.part
                yield f'<p class="ft-contents-part">{html.escape(part)}</p>'
            yield contents_line(page.name, self.titles[page.name])
        if self.answers:
            yield contents_line(ANSWERS, ANSWERS_TITLE)


# A margin's text inherits nothing from the page.
LABEL = "font: 8pt Liberation Sans, Arial, Helvetica, sans-serif; color: #59616b"
MATHJAX = {
    "options": {
        "enableMenu": False,
        "processHtmlClass": "tex2jax_process|mathjax_process|math|output_area|ft-exercise",
        "ignoreHtmlClass": "tex2jax_ignore|mathjax_ignore",
    }
}
ABOUT = """<h1>About this PDF</h1>
<p>This is the site, printed. The text is the same; what needs a screen is different.</p>
<ul>
<li><strong>Figures with sliders</strong> stand in their first state, with its values below. On
the site and in JupyterLab they move.</li>
<li><strong>Live views</strong>, in which the model reacts to your own text, show a recorded
picture.</li>
<li><strong>Quizzes and exercises</strong> are to be filled in by hand. Answers, hints and solutions
stand at the end, and a link under each leads there. The checks of exercises need JupyterLab.</li>
<li><strong>Further parts</strong> are printed open. Folded code, which draws figures and checks
numbers, is left out: it is in the notebooks.</li>
<li><strong>Links</strong> to other chapters jump inside this file.</li>
</ul>"""


def contents_line(name: str, title: str) -> str:
    return (
        f'<p class="ft-contents-line"><a href="#{name}">{html.escape(title)}</a>{page_of(name)}</p>'
    )


def page_of(target: str) -> str:
    """Return the place of a target's page number, which is known when the book was printed once."""
    return f'<span class="ft-page" data-of="{target}">000</span>'


def css_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


# What a screen moves, folds and asks.


def draw_first_states(article: Tag, state: Mapping[str, dict]) -> None:
    """Put the first frame of each slider figure where its widget would come."""
    for script in article("script", type="application/vnd.jupyter.widget-view+json"):
        found = first_state(state, json.loads(script.string)["model_id"])
        if found is None:
            raise ValueError(f"a widget that cannot be printed: {script.string}")
        inputs, picture = found
        values = " · ".join(
            f"{i['description']}: {i['_options_labels'][i['index']]}" for i in inputs
        )
        figure = BeautifulSoup(
            f'<figure class="ft-first-state">{picture}'
            f"<figcaption>{html.escape(values)}. Moves on the site.</figcaption></figure>",
            "html.parser",
        )
        script.replace_with(figure)


def take_answers(article: Tag, name: str) -> list[Tag]:
    """Move answers, hints and solutions out of an article; a link to them stays."""
    taken: list[Tag] = []

    def entry(asked: Tag, title: Tag, label: str) -> Tag:
        target, back = f"{ANSWERS}-{len(taken)}", f"asked-{len(taken)}"
        line = f'<p class="ft-to-answers" id="{back}"><a href="#{target}">{label}</a>'
        asked.append(parsed(f"{line}{page_of(f'{name}.{target}')}</p>"))
        title_line = f'<p class="ft-solved-title"><a href="#{back}"></a></p>'
        box = parsed(f'<div class="ft-solved" id="{target}">{title_line}</div>')
        box.a.append(title.get_text(" ", strip=True))
        taken.append(box)
        return box

    for quiz in article.select(".ft-quiz"):
        answer = quiz.select_one(".ft-answer, .ft-rubric, noscript > details")
        if answer is not None:
            answer.summary.decompose()
            entry(quiz, quiz.legend, "Answer").extend(answer.find_all(recursive=False))
        for rest in quiz.select("noscript, .ft-answer, .ft-rubric"):
            rest.decompose()
    for solution in article.select("[class*=-solution]"):
        section = solution.find_parent("section")
        box = entry(section, section.find(re.compile("^h[2-6]$")), "Hints and solution")
        for hint in section.find_all("details", recursive=False):
            box.append(hint)
        for check in section.select("[class*=-check]"):
            said = check.find_previous_sibling()
            if said.get_text(strip=True) == "The check:":
                said.decompose()
            check.decompose()
        said = solution.find_previous_sibling()
        if said.get_text().startswith("The solution"):
            box.append(said)
        box.append(solution)
        solution.select_one("details.hide > summary").decompose()
        solution.select_one("details.hide").unwrap()
        unfold(box)
    return taken


def unfold(root: Tag) -> None:
    """Open what is folded for room, and leave out folded code."""
    for code in root.select("details.hide"):
        code.decompose()
    for fold in root("details"):
        summary = fold.summary.extract()
        fold.name = summary.name = "div"
        summary["class"] = "ft-summary"
        fold.attrs = {"class": [*fold.get("class", []), "ft-unfolded"]}
        fold.insert(0, summary)


def fill_in_by_hand(root: Tag) -> None:
    """Turn the fields of a form into what a pen can mark."""
    for field in root(["input", "textarea"]):
        kinds = {"radio": "tick", "checkbox": "tick"} if field.name == "input" else {None: "lines"}
        kind = kinds.get(field.get("type"), "blank")
        field.replace_with(parsed(f'<span class="ft-{kind}"></span>'))


def parsed(text: str) -> Tag:
    """Return the one element that a piece of HTML consists of."""
    return next(BeautifulSoup(text, "html.parser").children)


# From the document to paper.


def print_book(document: Document, target: Path, chromium: str) -> None:
    """Print twice: the first time tells on which page everything is."""

    def answer(route: Route) -> None:
        path = unquote(urlsplit(route.request.url).path).lstrip("/")
        if not route.request.url.startswith(ORIGIN):
            route.abort()
        elif path:
            route.fulfill(path=document.site / path)
        else:
            route.fulfill(body=document.html, content_type="text/html; charset=utf-8")

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(10 * MINUTE_MS)
        page.route("**/*", answer)
        page.emulate_media(media="print", color_scheme="light")
        page.goto(ORIGIN)
        page.evaluate("MathJax.startup.promise.then(() => document.fonts.ready).then(() => null)")
        for _ in range(2):
            page.pdf(path=target, prefer_css_page_size=True, tagged=True, outline=True)
            with pikepdf.open(target) as pdf:
                numbers = page_numbers(pdf)
            page.evaluate(FILL_IN, numbers)
        headings = page.evaluate(HEADINGS)
        browser.close()
    finish(target, headings)


FILL_IN = """numbers => {
    for (const place of document.querySelectorAll(".ft-page"))
        place.textContent = numbers[place.dataset.of];
}"""
HEADINGS = """() => Array.from(
    document.querySelectorAll("h1, h2, h3, h4, h5, h6"),
    heading => heading.innerText.trim())
"""


def page_numbers(pdf: pikepdf.Pdf) -> dict[str, int]:
    """Return {name of a link's target: number of its page, from 1}."""
    numbers = {page.objgen: number for number, page in enumerate(pdf.pages, 1)}
    return {
        unquote(str(name).lstrip("/")): numbers[target[0].objgen]
        for name, target in pdf.Root.Dests.items()
    }


def entries(outline: Iterable[pikepdf.OutlineItem]) -> Iterator[pikepdf.OutlineItem]:
    """Yield the lines of an outline from top to bottom."""
    for entry in outline:
        yield entry
        yield from entries(entry.children)


def finish(target: Path, headings: Iterable[str]) -> None:
    """Say who wrote it, open it with the chapters beside, and pack it."""
    with pikepdf.open(target, allow_overwriting_input=True) as pdf:
        pdf.docinfo["/Author"] = ", ".join(author["name"] for author in CITATION["authors"])
        pdf.docinfo["/Keywords"] = ", ".join(CITATION["keywords"])
        pdf.docinfo["/Creator"] = CITATION["title"].partition(":")[0]
        with pdf.open_metadata() as metadata:
            metadata.load_from_docinfo(pdf.docinfo)
            metadata["dc:language"] = {"en"}
        pdf.Root.PageMode = pikepdf.Name.UseOutlines
        pdf.Root.ViewerPreferences = pikepdf.Dictionary(DisplayDocTitle=True)
        with pdf.open_outline() as outline:
            # Chromium doubles the words of some headings, and joins words at the end of a line.
            for entry, heading in zip(entries(outline.root), headings, strict=True):
                entry.title = heading
            for chapter in outline.root:
                chapter.is_closed = True
        pdf.save(target, object_stream_mode=pikepdf.ObjectStreamMode.generate)


def main() -> None:
    listed = pages()
    if missing := [page.path for page in listed if not (SITE / page.path).exists()]:
        sys.exit(f"book/pdf.py: no {missing[0]} in _build/html; run `make book` first.")
    chromium = shutil.which(os.environ.get("CHROMIUM") or "chromium")
    if chromium is None:
        sys.exit("book/pdf.py: no chromium found; install it or set CHROMIUM to its path.")
    print_book(Document(listed), TARGET, chromium)
    size = TARGET.stat().st_size
    print(f"wrote {TARGET.relative_to(ROOT)}, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
