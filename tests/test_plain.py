"""The plain text of the book: all that readers see, and no answer."""

import ast
import re
from pathlib import Path

import ipywidgets
import nbformat
import plain
import pytest
import reading
from matplotlib.transforms import Bbox
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from firsttoken import explore
from firsttoken.plots import inline_svg
from test_chapters import calls
from tiny_chapter import METADATA, built

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


def test_a_text_with_an_answer_would_be_noticed():
    for tag in ("exercise-1-solution", "exercise-1-check"):
        notebook = nbformat.read(ROOT / "notebooks" / "04_kv_cache.ipynb", as_version=4)
        hidden = secrets(notebook)
        (cell,) = [cell for cell in notebook.cells if tag in cell.metadata.get("tags", [])]
        cell.metadata.tags = []
        text = plain.chapter_text(notebook, "04_kv_cache", {})
        assert any(line in text for line in hidden)


def small() -> nbformat.NotebookNode:
    """Return a chapter that has run, with one cell of each kind."""

    def shown(**data):
        data = {name.replace("_", "/"): value for name, value in data.items()}
        return new_output("display_data", data=data)

    figure = inline_svg("<path/>", 'A "box" of 1 < 2.', Bbox([[0, 0], [1, 1]]))
    folded = {"tags": ["hide-input"]}
    cells = [
        new_markdown_cell("# Small\n\nThe cache of $x$."),
        new_code_cell("print(1)\n1 + 1", outputs=[new_output("stream", text="1\n")]),
        new_code_cell("draw()", metadata=folded, outputs=[shown(text_html=figure)]),
        new_code_cell('quiz("How many of $x$?", ["1", "2"], "2", explain="Two.")', metadata=folded),
        new_code_cell("answer = ..."),
        new_code_cell("check(answer, 7)", metadata={"tags": ["exercise-1-check", "hide-input"]}),
        new_code_cell("answer = 7", metadata={"tags": ["exercise-1-solution", "hide-cell"]}),
    ]
    for cell, name in zip(cells, "abcdefg", strict=True):
        cell["id"] = name
    return new_notebook(cells=cells, metadata=METADATA)


EXPECTED = """\
# Small

The cache of $x$.

> Plain text of [99_small.html](99_small.html). {plain}

```python
print(1)
1 + 1
```

```text
1
```

[Figure: A "box" of 1 < 2.]

[Figure with sliders: A line. n, 1 to 3.]

**Quiz.** How many of $x$?

- 1
- 2

```python
answer = ...
```

*Left out here: the check.*

*Left out here: the solution.*
"""


@pytest.fixture(scope="module")
def slider() -> dict:
    """Return the widgets of a page with one slider figure, and an output that shows it."""
    boxes = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIRSTTOKEN_SITE", "1")
        patch.setattr(explore, "display", lambda box, _face: boxes.append(box))
        explore.explore(lambda ax, n: ax.plot([0, n]), alt="A line.", n=[1, 2, 3])
    view = "application/vnd.jupyter.widget-view+json"
    data = {view: {"version_major": 2, "version_minor": 0, "model_id": boxes[0].model_id}}
    return {
        "state": ipywidgets.Widget.get_manager_state(),
        "output": new_output("display_data", data),
    }


def test_figures_and_printed_lines_stand_where_they_were_shown(slider, tmp_path):
    notebook = small()
    state = "application/vnd.jupyter.widget-state+json"
    notebook.metadata["widgets"] = {state: slider["state"]}
    notebook.cells[2].outputs.append(slider["output"])
    app = built(notebook, tmp_path, extensions=["myst_nb", "site_pages"])
    text = plain.chapter_text(small(), "99_small", plain.shown(app.env, "index"))
    assert text == EXPECTED.format(plain=plain.PLAIN)


def test_links_lead_to_the_files_of_the_site():
    links = "[a](03_roofline.ipynb#build) [b](../book/notation.md) [c](https://example.org/x.md)"
    first, second = new_markdown_cell("# Small"), new_markdown_cell(links)
    text = plain.chapter_text(new_notebook(cells=[first, second]), "99_small", {})
    assert "[a](03_roofline.html.md#build) [b](../book/notation.html) [c](https://e" in text


def test_no_text_ends_its_fence():
    for inside, fence in (("a", "```"), ("```\na\n```", "````")):
        assert plain.fenced(inside, "text") == f"{fence}text\n{inside}\n{fence}"


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
