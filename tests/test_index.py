"""The index, and the words and letters that show what they mean: all are found, none is false."""

import doctest
import re
from html.parser import HTMLParser

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
METRICS = "notebooks/02_metrics.html"
MOST_GLOSSES = 75  # on a page: about one in a paragraph of text
MOST_BYTES = 40_000  # of a page for its meanings, before gzip divides them by four


def found(text: str, chapter: str = "12_speculative") -> list[str]:
    return [f"{text[a:b]}: {entry.name}" for a, b, entry in terms.find_words(text, chapter)]


def entry(name: str) -> terms.Entry:
    return next(e for e in (*terms.glossary(), *terms.notation()) if e.name == name)


# What the two pages say.


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


# Words.


def test_words_are_found_in_their_forms():
    """Longest first; a word in another word is none, nor an abbreviation in small letters."""
    heads_too = "15_paging"
    for text, words in (
        ("two KV caches", ["KV caches: KV cache"]),
        ("KV-heads and kv heads", ["KV-heads: KV head", "heads: head"]),
        ("memory bound", ["memory bound: memory-bound"]),
        ("Memory-bound", ["Memory-bound: memory-bound"]),
        ("a block table", ["block table: block table"]),
        ("Penalties, a penalty", ["Penalties: penalties", "penalty: penalties"]),
        ("Little’s law", ["Little’s law: Little's law"]),
        ("an eagle, a slogan, batched, tokens-per-second", []),
    ):
        assert found(text, heads_too) == words


def test_a_word_means_something_else_elsewhere():
    assert found("the loss", "09_quantization") == ["loss: loss"]
    assert found("a block", "15_paging") == ["block: block"]
    assert found("the loss", "14_batching") == found("a block", "07_flash") == []
    assert found("Can you do it in your head?", "01_generate") == []
    assert found("Can your head do it?", "01_generate") == ["head: head"]


# Letters.


def test_a_formula_that_is_one_letter_has_its_row():
    for formula, chapter, row in (
        (r"n_\text{in}", "14_batching", r"$n_\text{in}$, $n_\text{out}$"),
        (r"n_{\text{in}}", "14_batching", r"$n_\text{in}$, $n_\text{out}$"),
        ("p_{top}", "11_sampling", r"$k$, $p_\text{top}$, $m$"),
        ("I^*", "03_roofline", r"$I^* = C/\beta$"),
        ("I", "03_roofline", "$I$"),
        ("q", "12_speculative", "$q(x)$"),
        ("q", "10_pruning", None),
        ("C", "03_roofline", "$C$"),
        ("C", "16_parallel", None),
        ("G = 4", "03_roofline", None),
        ("2M", "03_roofline", None),
    ):
        assert getattr(terms.find_letter(formula, chapter), "name", None) == row, formula


def test_letters_of_a_formula():
    found = terms.letters_of(r"\mathbb{E}[s] \ge \text{TPOT} \cdot S")
    assert found == ["s", "\\ge", "\\cdot", "S"]
    assert terms.letters_of(r"I^* = C/\beta") == ["I^*", "C", "\\beta"]


# What is marked.


def test_what_is_marked():
    settings = {"myst_enable_extensions": ["dollarmath"], "doctitle_xform": False}
    for text, marks in (
        ("A logit.\n\n### Logits\n\nA logit. Two logits.", ["logit"]),
        ("A logit.\n\n## Measure\n\nLogits.", ["logit", "Logits"]),
        ("A token.\n\n## Measure\n\nTokens.", ["token"]),
        ("A logit.\n\n## References\n\nLogits.", ["logit"]),
        ("`logit`, [logit](https://example.org), and a [link](https://example.org)", []),
        ("```\nlogit\n```\n\n| logit |\n|---|\n| logit |", []),
        ("<details><summary>Hint</summary>\n\nA logit.\n\n</details>\n\nLogits.", ["Logits"]),
        # What a paragraph explains itself; one before it may need the word.
        ("Logits are *logits*.\n\nA logit.", []),
        ("A logit.\n\nThe *logits* are scores.", ["logit"]),
        ("**They say that a logit is a probability.** A logit is none.", ["logit"]),
        # The first paragraph with a letter says what it stands for.
        ("Let $c$ be a cost, and $c$ small.", []),
        ("Let $c$ be a cost.\n\nNow $c$ and $c$, $2c$.", ["c"]),
    ):
        source = f"# A chapter\n\n## Explain\n\n{text}"
        page = publish_doctree(source, parser=Parser(), settings_overrides=settings)
        for gloss, _ in glosses.marked(page, "12_speculative"):
            assert gloss.children
        assert [gloss.astext() for gloss in page.findall(glosses.Gloss)] == marks, text


# The index.


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


def test_where_words_are_explained():
    """Some that a reader would check first."""
    for name, heading in {
        "TTFT": "Four latencies",
        "KV cache": "What is computed twice",
        "goodput": "Goodput",
        "MLA": "A latent stands for all heads (MLA)",
        "block table": "Blocks and block tables",
        "top-p": "Three filters",
    }.items():
        assert terms.explained(entry(name)).heading == heading


# In the pages: the text of all chapters, without their code.


class Page(HTMLParser):
    """The ids, links and glosses of a page; a gloss with the elements around it."""

    VOID = ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "wbr")

    def __init__(self, html: str):
        super().__init__()
        self.ids, self.links, self.glosses, self.around = set(), [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.ids |= {attributes.get("id")}
        if "ft-gloss" in (attributes.get("class") or "").split():
            self.glosses.append((attributes, tuple(self.around)))
        elif tag == "a":
            self.links.append((attributes.get("href", ""), tuple(self.around)))
        if tag not in self.VOID:
            self.around.append(tag)

    def handle_endtag(self, tag):
        if tag in self.around:
            del self.around[len(self.around) - 1 - self.around[::-1].index(tag) :]


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


@pytest.fixture(scope="module")
def pages(site):
    return {name: Page(html) for name, html in site.items()}


def leads_somewhere(pages, page: str, address: str) -> bool:
    path, _, name = address.partition("#")
    folder = page.split("/")[0]
    target = path.removeprefix("../") if path.startswith("../") else f"{folder}/{path}"
    return name in pages[target if path else page].ids


def test_the_index_has_every_word_letter_and_question(site, pages):
    """Each with a link at least, and every link leads to a place that exists."""
    index = pages["book/index.html"]
    entries = re.findall(
        r"<dt.*?>(.*?)</dt>\s*<dd.*?>(.*?)</dd>", site["book/index.html"], re.DOTALL
    )
    n_questions = sum(map(len, index_page.questions().values()))
    n_words, n_letters = len(terms.glossary()), len(terms.notation())
    assert len(entries) == 2 * n_questions + n_words + n_letters
    unused = [name for name, links in entries if "<a " not in links]
    assert len(unused) <= 1, "only replicas and their devices have no formula in a chapter"
    inside = [link for link, _ in index.links if re.search("#.", link)]
    assert len(inside) > 500
    lost = [link for link in inside if not leads_somewhere(pages, "book/index.html", link)]
    assert lost == []


def test_glosses_of_the_chapters(site, pages):
    """Few, only in running text, none without its card, and each leads to where it is defined."""
    for path in CHAPTERS:
        name = f"notebooks/{path.stem}.html"
        page = pages[name]
        numbered = path.stem[0].isdigit()  # an appendix may have all its text in folded answers
        assert 5 * numbered <= len(page.glosses) <= MOST_GLOSSES, name
        for attributes, around in page.glosses:
            assert "p" in around
            assert {"a", "h1", "h2", "h3", "h4", "code", "em", "strong", "table"}.isdisjoint(around)
            assert attributes["data-card"] in page.ids
            assert leads_somewhere(pages, name, attributes["href"])
        cards = re.findall("<template id=.*?</template>", site[name], re.DOTALL)
        marked = {*re.findall('data-card="(.*?)"', site[name])}
        assert marked == {card.split('"')[1] for card in cards}, name
        assert sum(map(len, cards)) <= MOST_BYTES, name


def test_a_card_leads_on(site):
    """To the section that explains the word, and to the glossary."""
    (card,) = re.findall('<template id="gloss-goodput">.*?</template>', site[METRICS], re.DOTALL)
    assert '<a href="#goodput">02 Goodput</a>' in card
    assert '<a href="../book/glossary.html#term-goodput">Glossary</a>' in card
