"""From pages of the site to one document for paper, on pages made here.

What comes out of the printer is looked at in tests/browser/test_pdf.py.
"""

import json
from collections import Counter

import pdf
import pytest
from bs4 import BeautifulSoup

FRAME = '<svg class="ft-figure" aria-label="{0}"><text>{0}</text></svg>'


def widgets(*values: str) -> dict[str, dict]:
    """Return the state of a figure with one slider, which stands at its last value."""
    models = {
        "box": {"_dom_classes": ["ft-explore"], "children": ["IPY_MODEL_slider", "IPY_MODEL_all"]},
        "slider": {
            "_model_name": "SelectionSliderModel",
            "description": "Batch",
            "_options_labels": list(values),
            "index": len(values) - 1,
        },
        "all": {
            "children": [f"IPY_MODEL_{value}" for value in values],
            "selected_index": len(values) - 1,
        },
    }
    models |= {value: {"value": FRAME.format(value)} for value in values}
    return {name: {"state": state} for name, state in models.items()}


KIND = '<script type="application/vnd.jupyter.widget-'
VIEW = KIND + 'view+json">{{"model_id": "{0}"}}</script>'
STATE = f'{KIND}state+json">{json.dumps({"state": widgets("one", "two")})}</script>'
FIRST = (
    '<section id="question"><h1>04 · First</h1><p><a href="04_second.html#question">on</a>'
    '<a href="04_second.html">page</a><a href="../book/intro.html">front</a>'
    '<a href="../_sources/first.ipynb">source</a><a href="https://example.org/x">out</a>'
    '<a href="#question">here</a></p><div class="ft-exercise ft-quiz"><form><fieldset>'
    '<legend>How many?</legend><label><input type="radio"/>three</label></fieldset>'
    "<button>Check</button></form><noscript><details><summary>Answer</summary><div>Three, "
    'as a count shows.</div></details></noscript></div><section id="one"><h3>1. Compute</h3>'
    '<div class="cell tag_exercise-1-stub">n = ...</div><details><summary>Hint 1</summary>'
    '<p>Count.</p></details><p>The check:</p><div class="cell tag_exercise-1-check"></div>'
    '<p>The solution, in words:</p><div class="cell tag_exercise-1-solution">'
    '<details class="hide"><summary>Show</summary><pre>n = 3</pre></details></div></section>'
    f"{STATE}{VIEW.format('box')}</section>"
)
SECOND = (
    '<section id="question"><h1>05 · Second</h1><svg><clipPath id="c"></clipPath>'
    '<path clip-path="url(#c)"></path><use href="#c"></use></svg><img src="../_images/a.png"/>'
    '<section id="more"><details class="ft-further" open><summary><h3>Further: more</h3>'
    '</summary><p>Deep.</p></details></section><div class="cell"><details class="hide">'
    "<summary>Show</summary><pre>claim()</pre></details></div>"
    '<div class="ft-exercise ft-quiz"><form><fieldset><legend>Why?</legend><textarea></textarea>'
    '<details class="ft-rubric"><summary>Compare</summary><div>A model answer.</div><fieldset>'
    '<legend>Tick</legend><label><input type="checkbox"/>a point</label></fieldset></details>'
    "</fieldset></form></div></section>"
)


@pytest.fixture
def made(tmp_path) -> BeautifulSoup:
    (tmp_path / "notebooks").mkdir()
    head = '<link rel="stylesheet" href="../_static/a.css?v=1"/>'
    for name, article in {"04_first": FIRST, "04_second": SECOND}.items():
        page = f'<html><head>{head}</head><article class="bd-article">{article}</article></html>'
        (tmp_path / "notebooks" / f"{name}.html").write_text(page)
    listed = [pdf.Page(f"notebooks/04_{name}.html", "Part") for name in ("first", "second")]
    return BeautifulSoup(pdf.Document(listed, tmp_path).html, "html.parser")


def test_no_id_is_there_twice_and_every_link_inside_has_its_target(made):
    """Both pages have a section of the same id, as every two chapters have."""
    ids = Counter(tag["id"] for tag in made.select("[id]"))
    assert [name for name, count in ids.items() if count > 1] == []
    inside = [tag["href"][1:] for tag in made.select("[href^='#']")]
    assert [target for target in inside if target not in ids] == []
    assert {place["data-of"] for place in made.select(".ft-page")} <= set(ids)
    assert made.path["clip-path"] == "url(#04_second.c)" and "04_second.c" in ids


def test_answers_hints_and_solutions_stand_at_the_end_and_nowhere_else(made):
    chapter, answers = made.find(id="04_first").get_text(), made.find(id="answers").get_text()
    for secret in ("as a count shows", "Count.", "n = 3", "The solution, in words"):
        assert secret not in chapter and secret in answers
    assert "n = ..." in chapter and "The check:" not in chapter
    asked = [link["href"] for link in made.select("[id='04_first'] .ft-to-answers a")]
    boxes = [made.find(id=target[1:]) for target in asked]
    assert ["Three" in boxes[0].get_text(), "n = 3" in boxes[1].get_text()] == [True, True]
    free = made.find(id="04_second").get_text()
    for secret in ("A model answer.", "a point"):
        assert secret not in free and secret in answers


def test_a_slider_figure_shows_its_first_state(made):
    figure = made.select_one("[id='04_first'] .ft-first-state")
    assert figure.svg["aria-label"] == "two"  # the slider stands there
    assert figure.figcaption.get_text() == "Batch: two. Moves on the site."


def test_nothing_is_left_that_asks_for_a_click(made):
    assert made.select("button, input, textarea, details, summary, noscript, form button") == []
    assert "Deep." in made.get_text() and "claim()" not in made.get_text()
    assert made.select_one(".ft-further h3").get_text() == "Further: more"
