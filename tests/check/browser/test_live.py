"""Each kind of live view, started once: what it shows is the library's."""

import math
import re

import pytest
from playwright.sync_api import Page, expect

from firsttoken import live
from firsttoken.evaluation import bits_per_byte
from firsttoken.generate import generate, speculative_generate
from firsttoken.inspection import look_inside
from firsttoken.llama import load_model
from firsttoken.sampling import softmax
from firsttoken.tokenizer import tokenizer

PROMPT = "def read(path):\n"


@pytest.fixture(scope="module")
def target():
    return load_model("target")


def started(stage, view: live.View) -> Page:
    page = stage.open(view)
    page.get_by_role("button", name="Try it").click()
    return page


def write(page: Page) -> None:
    """Press what writes, and wait for the end."""
    page.get_by_role("button", name="Write", exact=True).click()
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_hidden()


def test_the_next_token(stage, target):
    page = started(stage, live.next_token(PROMPT))
    likeliest = softmax(target([tokenizer().encode_document(PROMPT)])[0, -1]).max()
    expect(page.locator(".ft-bars .ft-before").first).to_have_text(f"{100 * likeliest:.1f} %")


def test_the_inside(stage, target):
    page = started(stage, live.inside(PROMPT))
    likeliest = look_inside(target, tokenizer().encode_document(PROMPT)).next.max()
    expect(page.locator(".ft-effect")).to_contain_text(f"with {100 * likeliest:.1f} %.")


def test_the_cache(stage, target):
    view = live.cache(PROMPT, max_tokens=12, seed=7)
    page = started(stage, view)
    write(page)
    ids = generate(target, tokenizer().encode_document(PROMPT), view.params).ids
    written = page.locator(".ft-output").evaluate("node => node.textContent")
    assert written == PROMPT + tokenizer().decode(ids)


def test_speculation(stage, target):
    view = live.speculation(PROMPT, max_tokens=24, seed=1)
    page = started(stage, view)
    write(page)
    run = speculative_generate(
        target, load_model("draft"), view.ids, view.params, view.settings["gamma"]
    )
    looked_at = sum(min(round.accepted + 1, round.drafted) for round in run.rounds)
    alpha = page.locator("data[data-name=alpha]").get_attribute("value")
    assert float(alpha) == run.accepted / looked_at


def test_the_surprise(stage, target):
    page = started(stage, live.surprise(PROMPT))
    summary = page.locator(".ft-whole .ft-seen")
    expect(summary).to_contain_text("bits per byte")
    shown = float(re.match(r"[\d.]+", summary.inner_text())[0])
    assert math.isclose(shown, bits_per_byte(target, tokenizer(), PROMPT), abs_tol=0.0051)
