"""Live views whose model runs in a kernel: the script, with a kernel of its own behind the page.

A small model stands in the place of SmolLM2: what is tried here is how the page asks.
"""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from browser.visit import until
from firsttoken import live
from firsttoken.drafts import SuffixDraft
from firsttoken.generate import generate, speculative_generate
from firsttoken.live import stills
from firsttoken.live.kernel import KernelEngine
from firsttoken.models.inspection import look_inside
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.sampling import softmax

TEXT = "for i in range(10):\n    for i in"
# A widget as JupyterLab hands it to the script; `hear` is the kernel.
SHOW = """async (state) => {
    const handlers = new Map();
    const model = {
        get: (name) => state[name],
        set: (name, value) => { state[name] = value; },
        save_changes: () => {},
        on: (name, handler) => handlers.set(handler, name),
        off: (name, handler) => handlers.delete(handler),
        send: async (message) => {
            const answer = await window.hear(message);
            for (const [handler, name] of [...handlers]) {
                if (answer && name === "msg:custom") handler(answer, []);
            }
        },
    };
    const { default: live } = await import(new URL("live.js", window.assets));
    live.render({ model, el: document.querySelector("main") });
}"""


@pytest.fixture
def model(monkeypatch):
    pair = load_model("draft"), tokenizer()
    monkeypatch.setattr(stills, "loaded", lambda name: pair)
    return pair[0]


@pytest.fixture
def heard():
    """All messages of a page."""
    return []


def shown(stage, view, heard, hear=KernelEngine.hear):
    """Return a page with a view, whose questions are answered here."""
    page = stage.empty_page()
    page.expose_function(
        "hear", lambda message: heard.append(message) or hear(view._engine, message)
    )
    page.evaluate(
        SHOW, {n: getattr(view, n) for n in ("view", "settings", "still", "arch", "version")}
    )
    return page


def names(heard):
    return [message["name"] for message in heard if "name" in message]


def expect_likeliest(page, model, ids):
    p = softmax(model([ids])[0, -1])
    expected = [stills.piece(i) for i in np.argsort(-p, kind="stable")[:10].tolist()]
    until(page, lambda: page.locator(".ft-piece:visible").all_inner_texts() == expected)


def test_the_next_token(stage, model, heard):
    """It begins by itself. Typed, written, and the same settings; a stopped text stays."""
    view = live.next_token(TEXT, model="smollm2", max_tokens=20, seed=4)
    page = shown(stage, view, heard)
    expect_likeliest(page, model, view.ids)
    field = page.get_by_label("Your text")
    field.press("Control+End")
    field.press_sequentially(" range(")
    expect_likeliest(page, model, tokenizer().encode_document(TEXT + " range("))
    field.fill(TEXT)
    expect_likeliest(page, model, view.ids)
    page.get_by_role("button", name="Generate").click()
    text = TEXT + tokenizer().decode(generate(model, view.ids, view.params).ids)
    expect(field).to_have_value(text)
    page.get_by_label("Tokens to write").fill("400")
    page.get_by_role("button", name="Generate").click()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".ft-seen").last).to_contain_text("You stopped it.")
    expect(page.get_by_role("button", name="Generate")).to_be_visible()
    assert sum("stop" in message for message in heard) == 1


def test_a_text_that_was_edited_is_not_read_to_its_end(stage, model, heard):
    view = live.next_token("", model="smollm2")
    waits = []

    def hear(engine, message):
        if message.get("name") == "next" and len(message["asked"]["ids"]) > 300:
            waits.append(message["id"])
        if message["id"] in waits and "stop" not in message:  # it never ends
            return {"id": message["id"], "kind": "event", "value": None}
        return engine.hear(message)

    page = shown(stage, view, heard, hear)
    field = page.get_by_label("Your text")
    field.fill("import os, re, sys, json, math, time\n" * 30)  # comes line by line
    expect(page.get_by_text("The kernel reads the text.").first).to_be_visible()
    field.fill(TEXT)
    expect_likeliest(page, model, tokenizer().encode_document(TEXT))
    expect(page.get_by_text("The kernel reads the text.").first).to_be_hidden()
    assert [message for message in heard if "stop" in message] == [{"id": waits[0], "stop": True}]


def test_the_inside(stage, model, heard):
    """A slider asks for another head, and all heads are tried."""
    view = live.inside(TEXT, layer=0, head=2, model="smollm2")
    page = shown(stage, view, heard)
    whole = look_inside(model, view.ids)
    last = page.locator(".ft-tokens [role=option]").last

    def expect_share(head, seen=whole):
        share = f"{100 * seen.attention[0, head, -1, -1]:.1f}"
        expect(last).to_have_attribute("aria-label", re.compile(rf", {share}\s%$"))

    expect_share(2)
    page.get_by_label("Head", exact=True).fill("5")
    expect_share(4)
    expect(page.locator(".ft-sentence")).to_contain_text("Layer 1, head 5")
    page.get_by_role("button", name="Silence layer 1, head 1").first.click()
    silent = look_inside(model, view.ids, [(0, 0)])
    before, after = (100 * seen.next[whole.next.argmax()] for seen in (whole, silent))
    expect(page.locator(".ft-effect")).to_contain_text(re.compile(rf"{before:.1f}.+{after:.1f}"))
    expect_share(0, silent)
    page.get_by_role("button", name="Try every head").click()
    expect(page.locator(".ft-found")).to_contain_text("The largest change")
    sizes = [len(m["asked"]["ids"]) for m in heard if m.get("name") == "inside"]
    assert set(sizes) == {len(view.ids)}


def test_the_cache(stage, model, heard):
    view = live.cache(TEXT, max_tokens=12, seed=7, model="smollm2")
    page = shown(stage, view, heard)
    page.get_by_role("button", name="Write", exact=True).click()
    written = tokenizer().decode(generate(model, view.ids, view.params).ids)
    output = page.locator(".ft-output")
    until(page, lambda: output.evaluate("node => node.textContent") == TEXT + written)
    n_bytes = view.settings["bytes_per_token"] * (len(view.ids) + 11)
    for name in ("formula", "filled"):
        value = page.locator(f"data[data-name={name}]")
        until(page, lambda value=value: value.get_attribute("value") == str(n_bytes))
    assert n_bytes == (len(view.ids) + 11) * model.arch.kv_elements_per_token * 4


def test_speculation(stage, model, heard):
    """Only what this model can have as a draft is offered."""
    view = live.speculation(TEXT, max_tokens=24, seed=1, model="smollm2")
    page = shown(stage, view, heard)
    assert page.locator("option").all_inner_texts() == ["suffix automaton"]
    page.get_by_role("button", name="Race").click()
    expect(page.locator(".ft-seen").last).to_contain_text("times as fast as plain decoding")
    run = speculative_generate(model, SuffixDraft(), view.ids, view.params, 4)
    looked_at = sum(min(each.accepted + 1, each.drafted) for each in run.rounds)
    alpha = page.locator("data[data-name=alpha]").get_attribute("value")
    assert float(alpha) == run.accepted / looked_at
    assert names(heard)[-2:] == ["tokenize", "speculate"]


def test_a_silent_kernel_is_told_of(stage, model, heard):
    view, silent = live.next_token(TEXT, model="smollm2"), []
    page = shown(stage, view, heard, lambda engine, m: None if silent else engine.hear(m))
    expect_likeliest(page, model, view.ids)
    page.clock.install()
    silent.append(True)
    page.get_by_label("Your text").fill("import")
    note = page.get_by_text("The kernel does not answer.").first
    page.clock.run_for(9000)
    expect(note).to_be_hidden()
    page.clock.run_for(2000)
    expect(note).to_be_visible()
    silent.clear()
    page.get_by_label("Your text").fill("import os")
    expect(note).to_be_hidden()
