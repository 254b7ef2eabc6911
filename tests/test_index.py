"""The index, and the words and letters that show what they mean: all are found, none is false."""

import doctest
import re

import glosses
import index_page
import nbformat
import pytest
import terms
import yaml
from docutils.core import publish_doctree
from myst_parser.parsers.docutils_ import Parser
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

CHAPTERS = sorted(terms.NOTEBOOKS.glob("*.ipynb"))
PAGES = ("glossary.md", "notation.md", "index.md")
MOST_GLOSSES = 75  # on a page: about one in a paragraph of text


def found(text: str, chapter: str = "12_speculative") -> list[str]:
    return [f"{text[a:b]}: {entry.name}" for a, b, entry in terms.find_words(text, chapter)]


def entry(name: str) -> terms.Entry:
    return next(e for e in (*terms.glossary(), *terms.notation()) if e.name == name)


def test_every_word_and_row_is_read():
    """As many as the pages have, by a way of counting of its own."""
    assert len(terms.glossary()) == terms.read("glossary.md").count("\n  ")
    rows = re.findall(r"^\| \$", terms.read("notation.md"), re.MULTILINE)
    assert len(terms.notation()) == len(rows)
    keys = [e.key for e in (*terms.glossary(), *terms.notation())]
    assert len({*keys}) == len(keys)


def test_what_terms_yml_names_exists():
    """A rule for a word that the glossary no longer has would rest unseen."""
    rules, words = terms.rules(), {e.name for e in terms.glossary()}
    for part in ("also", "explained", "only", "never"):
        assert {*rules[part]} <= words
    assert {*rules["once_a_chapter"]} <= words
    for part in rules["letters"].values():
        assert {*part} <= {*terms.rows()}


def test_examples():
    for module in (terms, index_page, glosses):
        results = doctest.testmod(module)
        assert results.attempted and not results.failed, module.__name__


def test_words_are_found_in_their_forms():
    """Longest first; a word in another word is none, nor an abbreviation in small letters."""
    heads_too = "15_paging"
    for text, words in (
        ("KV-heads and kv heads", ["KV-heads: KV head", "heads: head"]),
        ("Memory-bound", ["Memory-bound: memory-bound"]),
        ("Penalties, a penalty", ["Penalties: penalties", "penalty: penalties"]),
        ("an eagle, a slogan, batched, tokens-per-second", []),
    ):
        assert found(text, heads_too) == words


def test_a_formula_that_is_one_letter_has_its_row():
    for formula, chapter, row in (
        (r"n_{\text{in}}", "14_batching", r"$n_\text{in}$, $n_\text{out}$"),
        ("I^*", "03_roofline", r"$I^* = C/\beta$"),
        ("q", "12_speculative", "$q(x)$"),
        ("q", "10_pruning", None),
        ("G = 4", "03_roofline", None),
    ):
        assert getattr(terms.find_letter(formula, chapter), "name", None) == row, formula


def test_what_is_marked():
    settings = {"myst_enable_extensions": ["dollarmath"], "doctitle_xform": False}
    for text, marks in (
        ("A logit.\n\n### Logits\n\nA logit. Two logits.", ["logit"]),
        ("A logit.\n\n## Measure\n\nLogits.", ["logit", "Logits"]),
        ("`logit`, [logit](https://example.org), and a [link](https://example.org)", []),
        ("```\nlogit\n```\n\n| logit |\n|---|\n| logit |", []),
        ("<details><summary>Hint</summary>\n\nA logit.\n\n</details>\n\nLogits.", ["Logits"]),
        # What a paragraph explains itself; one before it may need the word.
        ("Logits are *logits*.\n\nA logit.", []),
        # The first paragraph with a letter says what it stands for.
        ("Let $c$ be a cost.\n\nNow $c$ and $c$, $2c$.", ["c"]),
    ):
        source = f"# A chapter\n\n## Explain\n\n{text}"
        page = publish_doctree(source, parser=Parser(), settings_overrides=settings)
        for gloss, _ in glosses.marked(page, "12_speculative"):
            assert gloss.children
        assert [gloss.astext() for gloss in page.findall(glosses.Gloss)] == marks, text


def test_every_question_leads_to_a_section(monkeypatch):
    """And one is missed as when somebody renames a heading."""
    groups = index_page.questions()
    entries = [name for group in groups.values() for name in group]
    assert len({*entries}) == len(entries) >= 60
    assert not {*entries} & {e.name for e in terms.glossary()}
    answers = groups["It is slow"]["second request slow, why"]
    assert {"15_paging", "02_metrics"} <= {section.chapter for _, section in answers}
    text = terms.read("questions.yml").replace("02_metrics: Why one waits", "02_metrics: Why")
    monkeypatch.setattr(index_page, "read", lambda _name: text)
    with pytest.raises(ValueError, match="no section '02_metrics: Why'; expected chapter: heading"):
        index_page.questions.__wrapped__()


def test_every_word_is_explained_in_its_chapter():
    for word in terms.glossary():
        assert terms.explained(word).chapter == word.chapter
        assert word.chapter not in {s.chapter for s in terms.used(word)}, word.name
    with pytest.raises(ValueError, match="no section of 02_metrics explains 'marsupial'"):
        terms.explained(terms.Entry("marsupial", "", "02_metrics"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the chapters' texts with glossary, notation and index."""
    folder = tmp_path_factory.mktemp("index")
    source = folder / "source"
    for place in ("book", "notebooks"):
        (source / place).mkdir(parents=True)
    for name in PAGES:
        (source / "book" / name).write_text(terms.read(name), "utf-8")
    names = [f"book/{name.removesuffix('.md')}" for name in PAGES]
    for path in CHAPTERS:
        notebook = nbformat.read(path, as_version=4)
        notebook.cells = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
        nbformat.write(notebook, source / "notebooks" / path.name)
        names.append(f"notebooks/{path.stem}")
    (source / "index.md").write_text("# Book\n\n```{toctree}\n" + "\n".join(names) + "\n```\n")
    config = yaml.safe_load(terms.read("_config.yml"))
    settings = {
        "extensions": ["myst_nb", "site_pages"],
        "nb_execution_mode": "off",
        "html_theme": "basic",
        **config["parse"],
    }
    with docutils_namespace():
        out = folder / "html"
        app = Sphinx(
            source, None, out, folder / "doctrees", "html", settings, status=None, warning=None
        )
        app.build()
    return {
        str(path.relative_to(out)): path.read_text("utf-8")
        for path in sorted(out.rglob("*.html"))
        if path.parent.name in ("book", "notebooks")
    }


def lost_links(site: dict[str, str], page: str, links: list[str]) -> list[str]:
    """Return the links of a page that lead to no element."""
    lost = []
    for link in links:
        path, _, name = link.partition("#")
        folder = page.split("/")[0]
        target = path.removeprefix("../") if path.startswith("../") else f"{folder}/{path}"
        if f'id="{name}"' not in site[target if path else page]:
            lost.append(link)
    return lost


def test_the_index_has_every_word_letter_and_question(site):
    """Each with a link at least, and every link leads to a place that exists."""
    index = site["book/index.html"]
    entries = re.findall(r"<dt.*?>(.*?)</dt>\s*<dd.*?>(.*?)</dd>", index, re.DOTALL)
    n_questions = sum(map(len, index_page.questions().values()))
    assert len(entries) == 2 * n_questions + len(terms.glossary()) + len(terms.notation())
    unused = [name for name, links in entries if "<a " not in links]
    assert len(unused) <= 1, "only replicas and their devices have no formula in a chapter"
    inside = re.findall(r'<dd.*?href="([^"]*#[^"]+)"', index, re.DOTALL)
    assert len(inside) > 200 and lost_links(site, "book/index.html", inside) == []


def test_glosses_of_the_chapters(site):
    """Few, none without its card, and each leads to where it is defined."""
    for path in CHAPTERS:
        name = f"notebooks/{path.stem}.html"
        marked = re.findall(r"<[^>]*ft-gloss[^>]*>", site[name])
        assert len(marked) <= MOST_GLOSSES, name
        cards = {re.search('data-card="(.*?)"', gloss)[1] for gloss in marked}
        assert cards == {*re.findall('<template id="(.*?)"', site[name])}, name
        assert lost_links(site, name, re.findall('href="(.*?)"', "".join(marked))) == []
