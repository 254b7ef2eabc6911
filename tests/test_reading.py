"""What is in view of a notebook, its words and its minutes."""

import doctest
import math

import nbformat
import pytest
import reading
from hypothesis import given
from hypothesis import strategies as st

FURTHER = {"jp-MarkdownHeadingCollapsed": True}


def text(source: str, **metadata):
    return nbformat.v4.new_markdown_cell(source, metadata=metadata)


def code(source: str, *tags: str):
    return nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)})


def notebook(*cells):
    return nbformat.v4.new_notebook(cells=list(cells))


def shown(*cells) -> str:
    """Return the sources of the cells in view; those of these tests have one letter each."""
    return "".join(cell.source[-1] for cell in reading.in_view(notebook(*cells)))


def test_examples():
    assert doctest.testmod(reading) == (0, 2)


counts = st.integers(0, 1000)


@given(words=counts, lines=counts, hidden=counts)
def test_a_minute_is_180_words_or_8_lines(words, lines, hidden):
    """Blank lines and what is out of view take none; rounding comes last, and once."""
    chapter = notebook(
        text("word " * words),
        code("x = 1\n\n" * lines),
        text(f"<details><summary>Hint</summary>\n\n{'word ' * hidden}\n\n</details>"),
        code("y = 2\n" * hidden, "hide-input"),
        text("### Further: more", **FURTHER),
        text("word " * hidden),
        code("z = 3\n" * hidden),
    )
    assert reading.minutes(chapter) == math.ceil(words / 180 + lines / 8)


@pytest.mark.parametrize("tag", ["hide-input", "hide-cell", "remove-input"])
def test_folded_code_is_not_in_view(tag):
    assert shown(code("a"), code("b", tag), code("c", "exercise-1-stub")) == "ac"


@pytest.mark.parametrize(("heading", "ends"), [("## e", 1), ("### e", 1), ("#### e", 0)])
def test_a_further_part_reaches_to_the_next_heading_of_its_level(heading, ends):
    cells = [text("a"), text("### Further: b", **FURTHER), text("c"), code("# d")]
    assert shown(*cells, text(heading), code("f")) == "a" + "ef" * ends


def test_a_further_part_may_follow_another():
    one, two = text("### Further: b", **FURTHER), text("### Further: c", **FURTHER)
    assert shown(text("a"), one, two, code("d"), text("### e")) == "ae"


def test_what_looks_like_a_heading_in_code_ends_nothing():
    """A comment is a heading neither in a code cell nor in a fence."""
    fence = text("```\n# no\n``` ")
    assert shown(text("### Further: b", **FURTHER), fence, code("## no"), text("c")) == ""


@pytest.mark.parametrize(
    ("markdown", "words"),
    [
        ("# A *short* heading", 3),
        ("One – two: `a = b`", 4),
        ("[Two words](https://example.org/a/long/address) and ![a picture](a.png)", 3),
        (r"so $\frac{a + b}{c}$-fold, in $x$", 4),
        ("$$a + b = c$$", 1),
        (r"\begin{align}a &= b\\ c &= d\end{align}", 1),
        ("- one\n- two\n\n> three", 3),
        ("<details><summary>Hint</summary>\n\n$x$ is <b>it</b>\n\n</details>\n\nafter", 1),
        ('<figure><img src="a.svg" alt="not read"><figcaption>read it</figcaption></figure>', 2),
        ("<svg><text>label</text></svg>", 0),
    ],
)
def test_words_are_those_that_are_shown(markdown, words):
    assert reading.count_words(markdown) == words


def test_blocks_are_paragraphs():
    markdown = "One\ntwo.\n\n- *three* (`four`)\n- five"
    assert reading.blocks(markdown) == ["One two.", "three (four)", "five"]
