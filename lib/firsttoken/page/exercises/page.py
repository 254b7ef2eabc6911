"""HTML of the outputs: files of this package, marked-up text, links."""

import html
import inspect
import re
import unicodedata
from importlib import resources
from urllib.parse import quote

from firsttoken.page.start import Chapter


def _asset(name: str) -> str:
    """Return a file without indentation and comment lines: it goes into every output."""
    text = resources.files("firsttoken").joinpath(name).read_text(encoding="utf-8")
    return re.sub(r"^(?:\s+|//.*|/\*.*?\*/)+", "", text, flags=re.MULTILINE)


def style_tag(*names: str) -> str:
    return f"<style>{''.join(map(_asset, names or ('page/exercises/exercises.css',)))}</style>"


def script_tag(*names: str) -> str:
    """Return files as one script, in a scope of its own."""
    return f"<script>(() => {{\n{''.join(map(_asset, names))}}})();</script>"


_SPANS = re.compile(r"`([^`\n]+)`|\$(?![\s$])([^$`\n]*?[^\s$`\\])\$(?![0-9A-Za-z])")


def markup(text: str) -> str:
    """Return text as HTML: `code`, $mathematics$, a blank line for a break; the rest escaped.

    A lone dollar sign is fenced off, because JupyterLab would take a second one for its partner.
    """
    parts, at = [], 0
    for found in _SPANS.finditer(text := inspect.cleandoc(text)):
        parts.append(_escape(text[at : found.start()]))
        code, formula = found.groups()
        parts.append(
            f"<code>{html.escape(code)}</code>" if code else rf"\({html.escape(formula)}\)"
        )
        at = found.end()
    return "".join([*parts, _escape(text[at:])])


def _escape(text: str) -> str:
    text = re.sub(r"\n\s*\n", "<br>", html.escape(text))
    return text.replace("$", '<span class="tex2jax_ignore mathjax_ignore">$</span>')


def chapter_link(chapter: Chapter, text: str) -> str:
    if not chapter.n_tasks:
        return f"<span>{html.escape(text)}</span>"
    return f'<a href="{chapter.stem}.ipynb">{html.escape(text)}</a>'


def section_link(chapter: Chapter, heading: str) -> str:
    """Return a link to a section; JupyterLab and the site make different anchors of a heading."""
    plain = unicodedata.normalize("NFKD", heading.lower()).encode("ascii", "ignore").decode()
    on_site = re.sub("^[-0-9]+|-+$", "", re.sub("[^a-z0-9]+", "-", plain))  # as docutils does
    in_lab = quote(heading.replace(" ", "-"), safe="?,:'()")
    text = f"{chapter.label}: {heading}"
    return (
        f'<a href="{chapter.stem}.ipynb#{in_lab}" data-page="{chapter.stem}.html#{on_site}">'
        f"{html.escape(text)}</a>"
    )
