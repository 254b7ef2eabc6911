"""HTML of the outputs: text is escaped, formulas and code are not."""

import html.parser

from firsttoken.page.exercises import check, hint
from firsttoken.page.exercises.page import section_link
from firsttoken.page.start import CHAPTERS


class Text(html.parser.HTMLParser):
    """The text of an HTML fragment."""

    def __init__(self, fragment):
        super().__init__()
        self.text = ""
        self.feed(fragment)

    def handle_data(self, data):
        self.text += data


def test_text_is_escaped_and_lone_dollars_are_fenced():
    shown = hint("<script>alert(1)</script> costs $5 or $6, `$x$ & y`; $a<b$")._repr_html_()
    assert "<script>alert" not in shown
    text = Text(shown[shown.index("</style>") :]).text
    assert "<script>alert(1)</script> costs $5 or $6, $x$ & y; \\(a<b\\)" in text
    assert 'ignore">$</span>5' in shown
    assert "<code>$x$ &amp; y</code>" in shown


def test_a_readers_text_cannot_break_the_page():
    result = check("<img src=x onerror=alert(1)>", 1.0, name="Ex <1>")
    assert "<img" not in result._repr_html_()
    assert "Ex &lt;1&gt;" in result._repr_html_()

    def bad(x):
        raise KeyError("<img src=x>")

    assert "<img" not in check(bad, abs, inputs=[(1,)])._repr_html_()


def test_a_section_has_another_anchor_in_jupyterlab_than_on_the_site():
    chapter = CHAPTERS["04_kv_cache"]
    link = section_link(chapter, "3. Where Kèys go, and why")
    assert 'href="04_kv_cache.ipynb#3.-Where-K%C3%A8ys-go,-and-why"' in link
    assert 'data-page="04_kv_cache.html#where-keys-go-and-why"' in link
    assert link.endswith(f">{chapter.label}: 3. Where Kèys go, and why</a>")
