"""The plain text of the book: all that readers see, and no answer."""

import ast
import re
from pathlib import Path

import nbformat
import plain
import reading

from test_chapters import calls

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
SHORT = 15  # characters; a shorter line of code may stand anywhere


def code_and_text(notebook) -> tuple[list, list[str]]:
    """Return the code cells, and the sources of what every reader sees."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return code, [cell.source for cell in notebook.cells if not reading.is_folded(cell)]


def lines(source: str) -> set[str]:
    return {line.strip() for line in source.splitlines() if len(line.strip()) >= SHORT}


def all_tags(notebook) -> list[str]:
    return [tag for cell in notebook.cells for tag in cell.metadata.get("tags", [])]


def secrets(notebook) -> set[str]:
    """Return what no plain text may hold: lines of solutions and checks, answers of quizzes."""
    code, seen = code_and_text(notebook)
    hidden = set()
    for cell in code:
        if plain.LEFT_OUT.search(" ".join(cell.metadata.get("tags", []))):
            hidden |= lines(cell.source)
    answers = [word.value for call in calls(code, "quiz") for word in call.keywords]
    told = [n.value for a in answers for n in ast.walk(a) if isinstance(n, ast.Constant)]
    options = "\n".join(text for cell in code for text in plain.quizzes(cell.source))
    hidden |= {text for text in told if isinstance(text, str) and len(text) >= SHORT}
    return {text for text in hidden if text not in "\n".join([*seen, options])}


def test_chapters_have_all_their_text_and_no_answer():
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        text = plain.chapter_text(notebook, path.stem, {})
        hidden = secrets(notebook)
        solutions = [tag for tag in all_tags(notebook) if tag.endswith("-solution")]
        assert len(hidden) > len(solutions)
        assert [line for line in hidden if line in text] == [], path.stem
        code, seen = code_and_text(notebook)
        linked = [plain.LINK.sub(plain.to_the_site, source).strip() for source in seen]
        assert [source for source in linked if source not in text] == [], path.stem
        asked = [ast.literal_eval(call.args[0]) for call in calls(code, "quiz")]
        assert [question for question in asked if question not in text] == [], path.stem
        assert text.count("*Left out here: the solution.*") == len(solutions)


def test_the_index_has_the_form_of_llms_txt():
    """A title, a quoted summary, text, then nothing but lists of links under headings."""
    stems = ["notebooks/04_kv_cache", "notebooks/12_speculative"]
    pages = [("book/glossary.html", "Glossary", "The words of the book.")]
    text = plain.index("First Token", "A book.", stems, pages)
    title, summary, _, *rest = text.strip().split("\n\n")
    assert (title, summary) == ("# First Token", "> A book.")
    assert [part for part in rest[::2] if not re.fullmatch(r"## \S.*", part)] == []
    entry = re.compile(r"- \[[^\]]+\]\((\S+)\): \S.*")
    found = [entry.fullmatch(line) for part in rest[1::2] for line in part.split("\n")]
    assert [match[1] for match in found] == [
        *("TUTOR.md", "notebooks/04_kv_cache.html.md", "notebooks/12_speculative.html.md"),
        "book/glossary.html",
    ]
    assert rest[-2] == "## Optional"
