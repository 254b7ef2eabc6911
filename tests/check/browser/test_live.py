"""Each kind of live view, started once: what it shows is the library's.

A tiny model in a GGUF file stands in the place of the real one.
"""

import math
import re

import pytest
from playwright.sync_api import Page, expect

from firsttoken import live
from firsttoken.generate import generate, speculative_generate
from firsttoken.live import assets, stills, widgets
from firsttoken.models.chat import chat_template
from firsttoken.models.evaluation import bits_per_byte
from firsttoken.models.inspection import look_inside
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.sampling import SamplingParams, softmax

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


def likeliest(model, words, text: str) -> str:
    p = softmax(model([stills.document(words, text)])[0, -1]).max()
    return f"{100 * p:.1f} %"


def test_the_switch(tiny_stage, tiny_gguf, target):
    """The real model comes when it is asked for, with a text of its own, and each keeps its own."""
    real, words = load_model(tiny_gguf), tokenizer(tiny_gguf)
    page = started(tiny_stage, live.next_token(PROMPT))
    field, first = page.get_by_label("Your text"), page.locator(".ft-bars .ft-before").first
    switch = page.get_by_role("group", name="Model")
    expect(switch.get_by_role("button", name="small")).to_have_attribute("aria-pressed", "true")
    switch.get_by_role("button", name="real").click()
    page.get_by_role("button", name=re.compile("^Load it: .* MB, once$")).click()
    english = widgets._ENGLISH["next_token"]["text"]
    expect(field).to_have_value(english)
    expect(first).to_have_text(likeliest(real, words, english))
    field.fill("import os")
    expect(first).to_have_text(likeliest(real, words, "import os"))
    switch.get_by_role("button", name="small").click()
    expect(field).to_have_value(PROMPT)
    expect(first).to_have_text(likeliest(target, tokenizer(), PROMPT))
    switch.get_by_role("button", name="real").click()
    expect(field).to_have_value("import os")


def test_a_file_of_the_readers_own(tiny_stage, tiny_gguf, tmp_path):
    """It is shown; one that is cut is told, and the view goes on with what it has."""
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_gguf.read_bytes()[:100_000])
    page = started(tiny_stage, live.next_token(PROMPT))
    choose = page.locator("input[type=file]")
    choose.set_input_files(cut)
    expect(page.get_by_role("alert")).to_contain_text(re.compile(r"\w+ \w+"))
    expect(page.get_by_label("Your text")).to_have_value(PROMPT)
    choose.set_input_files(tiny_gguf)
    real, words = load_model(tiny_gguf), tokenizer(tiny_gguf)
    first = page.locator(".ft-bars .ft-before").first
    expect(first).to_have_text(likeliest(real, words, widgets._ENGLISH["next_token"]["text"]))
    expect(page.get_by_role("alert")).to_have_count(0)
    mine = page.get_by_role("button", name=tiny_gguf.name)
    expect(mine).to_have_attribute("aria-pressed", "true")


def test_the_chat(tiny_stage, tiny_gguf, monkeypatch):
    """A second answer, too, is the one of a model that reads all of the text."""
    monkeypatch.setenv("FIRSTTOKEN_SITE", "1")
    monkeypatch.setattr(assets, "real_file", lambda: tiny_gguf)
    page = tiny_stage.open(live.chat([], temperature=0.7, max_tokens=12, seed=5))
    page.get_by_role("button", name="Talk to it here").click()
    model, words = load_model(tiny_gguf), tokenizer(tiny_gguf)
    template, said = chat_template(tiny_gguf), []
    for n, question in enumerate(["def main():", "import os"]):
        said.append({"role": "user", "content": question})
        ids = template.encode(said)
        params = SamplingParams(temperature=0.7, max_tokens=12, seed=5 + n)
        written = generate(model, ids, params).ids
        said.append({"role": "assistant", "content": words.decode(written)})
        page.get_by_label("Your message").fill(question)
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_text(f"{len(written)} written")).to_contain_text(f"{len(ids)} tokens: ")
        bubbles = page.locator(".ft-chat-said > div").all()
        assert [each.text_content() for each in bubbles] == [each["content"] for each in said]
        fill = str(len(ids) + len(written))
        expect(page.get_by_role("meter")).to_have_attribute("aria-valuenow", fill)
    text = page.locator(".ft-output").text_content()
    assert text == template.render(said[:-1]) + words.decode(written)
