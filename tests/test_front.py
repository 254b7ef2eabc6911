"""The first page: the model's recorded writing, and a card with a picture for each chapter."""

import gzip
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cards
import front
import numpy as np
import pytest
import site_pages
import yaml

from firsttoken import live
from firsttoken.generate import generate
from firsttoken.live import assets
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.page.start import CHAPTERS
from firsttoken.sampling import softmax

BOOK = Path(__file__).parents[1] / "book"
INTRO = (BOOK / "intro.md").read_text("utf-8")
OPTIONS = yaml.safe_load(re.search(r"```\{live\} next_token\n---\n(.*?)---", INTRO, re.DOTALL)[1])


# The model writing.


@pytest.fixture(scope="module")
def view():
    arguments = {name: value for name, value in OPTIONS.items() if name != "writing"}
    return live.next_token(**arguments)


@pytest.fixture(scope="module")
def params(view):
    return replace(view.params, max_tokens=OPTIONS["writing"])


@pytest.fixture(scope="module")
def recording(view, params):
    return front.record(view.text, params)


def test_recorded_text_is_what_generate_writes(view, params, recording):
    model, tok = load_model(), tokenizer()
    run = generate(model, view.ids, params, tokenizer=tok)
    assert "".join(recording.pieces) == run.text
    assert len(recording.pieces) == OPTIONS["writing"] == len(run.ids)


def test_guesses_are_the_likeliest_tokens_for_each_place(view, params, recording):
    """Each place is asked for alone, in a pass over what stands before it."""
    model = load_model()
    prompt = view.ids
    ids = generate(model, prompt, params).ids
    assert len(recording.guesses) == len(ids) + 1
    for place, guesses in enumerate(recording.guesses):
        p = softmax(np.asarray(model([prompt + ids[:place]]))[0, -1])
        assert [g.token_id for g in guesses] == np.argsort(-p)[: front.N_GUESSES].tolist()
        np.testing.assert_allclose([g.p for g in guesses], p[[g.token_id for g in guesses]], 1e-4)
        drawn = [g.token_id for g in guesses if g.drawn]
        assert drawn == [i for i in ids[place : place + 1] if i in [g.token_id for g in guesses]]


def test_writing_has_the_text_once_for_the_ear_and_once_for_the_eye(view, params, recording):
    page = ET.fromstring(f"<div>{front.writing(view, OPTIONS['writing'])}</div>")
    whole, pieces = page.find(".//code"), page.find(".//div[@class='ft-recorded']")
    text = view.text + "".join(recording.pieces)
    assert "".join(whole.itertext()) == "".join(pieces.itertext()) == text
    assert whole.get("aria-hidden") is None and pieces.get("aria-hidden") == "true"
    assert [span.text for span in pieces.iter("span")] == list(recording.pieces)
    frames = page.findall(".//div[@role='img']/span")
    assert [frame.get("style") for frame in frames] == [
        f"--i:{i}" for i in range(len(recording.pieces) + 1)
    ]
    assert page.find(".//button[@class='ft-live-start']") is not None


def test_directive_gives_what_a_notebook_shows(view):
    """Options are the arguments of the view's function; `writing` changes the still alone."""
    (node,) = run_directive("next_token", OPTIONS)
    shown = ET.fromstring(f"<div>{node.astext().partition('<style>')[0]}</div>")[0]
    assert json.loads(shown.get("data-settings")) == view.settings
    assert shown.find(".//*[@class='ft-recorded']") is not None
    (node,) = run_directive("cache", {"text": "x = ", "use_cache": "false", "max_tokens": 9})
    made = live.cache("x = ", use_cache=False, max_tokens=9)
    assert node.astext() == made.on_site()
    (node,) = run_directive("inside", {"silenced": "[[5, 3]]"})
    assert "[[5, 3]]" in node.astext()


def test_door_stands_below_where_the_site_has_the_real_model(tmp_path, monkeypatch):
    """Of the page that has it, nobody who does not press pays more than a line."""
    monkeypatch.setenv("FIRSTTOKEN_SITE", "1")
    assert "```{live} chat\n---\nmessages: []\ndoor:\n---" in INTRO
    file = tmp_path / "real.gguf"
    file.write_bytes(bytes(2_000_000))
    for real in (file, None):
        monkeypatch.setattr(assets, "real_file", lambda real=real: real)
        (node,) = run_directive("chat", {"messages": "[]", "door": ""})
        assert ("Talk to a real one, here in the page: 2 MB, once" in node.astext()) == bool(real)
        assert len(node.astext()) < 1000


def run_directive(name: str, options: dict) -> list:
    """Return what `{live}` makes of options, given as text."""
    convert = site_pages.LiveView.option_spec
    given = {key: convert[key](str(value)) for key, value in options.items()}
    machine = SimpleNamespace(reporter=None)
    return site_pages.LiveView("live", [name], given, [], 1, 0, "", None, machine).run()


# The cards.


@pytest.mark.parametrize("stem", cards.PICTURES)
def test_picture_is_small_silent_and_the_same_each_time(stem):
    svg = cards.picture(stem)
    assert svg == cards.picture(stem)
    assert len(gzip.compress(svg.encode())) < 4_000
    drawing = ET.fromstring(svg)
    assert drawing.get("aria-hidden") == "true"
    assert not list(drawing.iter("text"))
    *_, width, height = map(float, drawing.get("viewBox").split())
    assert (width, height) == (72 * cards.SIZE[0], 72 * cards.SIZE[1])
    assert sum(1 for _ in drawing.iter()) > 3, "nothing is drawn"


def test_pictures_of_one_page_share_no_id():
    ids = [i for stem in cards.PICTURES for i in re.findall(r' id="([^"]*)"', cards.picture(stem))]
    assert len(ids) == len(set(ids))


def test_cards_stand_part_by_part_with_the_questions_of_the_map():
    entries = [front.Entry(stem, f"../notebooks/{stem}.html", 20) for stem in CHAPTERS]
    page = ET.fromstring(f"<div>{front.cards(entries)}</div>")
    links = [(link.get("href"), link.text) for link in page.iter("a")]
    assert links == [(entry.address, CHAPTERS[entry.stem].label) for entry in entries]
    questions = [item.find("p").text for item in page.iter("li")]
    assert questions == [CHAPTERS[stem].question for stem in CHAPTERS]
    parts = dict.fromkeys(CHAPTERS[stem].part for stem in CHAPTERS)
    assert len(page.findall("h3")) == len(parts)
