"""How much a text surprises the model, live: the library's losses, and all that a file can be."""

import gzip
import math
import re

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from firsttoken import live
from firsttoken.live.stills import target
from firsttoken.models.evaluation import bits_per_byte, token_losses
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path
from firsttoken.sampling import softmax

TOKENIZER = tokenizer()
HELD_OUT = data_path("heldout.txt").read_text("utf-8")
LONG = HELD_OUT[:3500]  # more than two contexts
TEXTS = {
    "no ASCII": "größe = '🙂'\n\tprint(größe)\r\n日本",
    "one token": "def",
    "longer than the context": LONG,
}


def started(stage, *args) -> Page:
    page = stage.started(live.surprise(*args))
    expect(page.locator(".ft-whole .ft-seen")).not_to_be_empty()
    return page


def tokens(page: Page):
    return page.locator(".ft-losses [role=option]")


def library_bits(text: str) -> np.ndarray:
    ids = [TOKENIZER.eos_id, *TOKENIZER.encode(text)]
    return token_losses(target(), ids) / math.log(2)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_bits_are_those_of_the_library(stage, text):
    """Those of each token and of the whole; bars are as long as their numbers."""
    page, bits = started(stage, text), library_bits(text)
    expect(tokens(page)).to_have_count(len(bits))
    labels = tokens(page).evaluate_all("all => all.map(each => each.getAttribute('aria-label'))")
    shown = np.array([float(re.search(r"([\d.]+) bits$", label)[1]) for label in labels])
    # Two digits behind the point, one from ten bits on.
    assert (abs(shown - bits) < np.where(bits < 9.9, 0.006, 0.052)).all()
    levels = tokens(page).evaluate_all("all => all.map(each => Number(each.dataset.level))")
    clear = np.min(abs(bits[:, None] - [0.5, 1, 2, 4, 8]), axis=1) > 1e-3
    expected = np.searchsorted([0.5, 1, 2, 4, 8], bits, side="right")
    assert (np.array(levels) == expected)[clear].all()

    lines = page.locator(".ft-references li")
    expect(lines).to_have_count(4)
    texts = [line.locator("span").all_inner_texts() for line in lines.all()]
    names, said = [words[0] for words in texts], [float(words[-1]) for words in texts]
    assert said == sorted(said)
    packed = 8 * len(gzip.compress(text.encode())) / len(text.encode())
    of = dict(zip(names, said, strict=True))
    assert abs(of["the model, on your text"] - bits_per_byte(target(), TOKENIZER, text)) < 0.0051
    assert of["gzip and its header, on your text"] == pytest.approx(packed, rel=0.1)
    shares = page.locator(".ft-references .ft-bar").evaluate_all(
        "all => all.map(each => each.offsetWidth / each.parentElement.clientWidth)"
    )
    np.testing.assert_allclose(shares, np.array(said) / max(said), atol=0.01)


def test_what_else_could_have_come(stage):
    """In the window that the loss came from: half a context is read again, no more."""
    page, index = started(stage, LONG), 900
    ids = [TOKENIZER.eos_id, *TOKENIZER.encode(LONG)]
    token, n, window = ids[index + 1], len(ids) - 1, 512
    starts = [*range(0, n - window, window // 2), n - window]
    start = next(start for start in starts if index < start + window)
    p = softmax(target()([ids[start : index + 1]])[0, -1].astype(np.float64))
    tokens(page).nth(index).click()
    rank = int((p > p[token]).sum()) + 1
    about = page.locator(".ft-about")
    expect(about).to_contain_text("the likeliest token" if rank == 1 else f"number {rank} of 1024")
    others = [i for i in np.argsort(-p, kind="stable") if i != token][:3]
    shown = [re.search(r"(<?)([\d.]+) %", t) for t in about.locator("li").all_inner_texts()]
    percents = [0.05 if small else float(number) for small, number in map(re.Match.groups, shown)]
    np.testing.assert_allclose(percents, 100 * p[others], atol=0.06)


def test_the_most_surprising_come_first_and_are_found(stage):
    page, bits = started(stage), library_bits(live.surprise().text)
    entries = page.locator(".ft-most li")
    shown = [float(re.search(r"([\d.]+) bits", text)[1]) for text in entries.all_inner_texts()]
    np.testing.assert_allclose(shown, np.sort(bits)[::-1][:10], atol=0.052)
    entries.first.get_by_role("button").click()
    expect(tokens(page).nth(int(bits.argmax()))).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(tokens(page).nth(int(bits.argmax()) + 1)).to_have_attribute("aria-selected", "true")


def give(page: Page, name: str, content: bytes) -> None:
    page.locator("input[type=file]").set_input_files(
        {"name": name, "mimeType": "application/octet-stream", "buffer": content}
    )


def test_files(stage):
    """Text is taken as UTF-8; what is none is refused by name, and the page stays as it was."""
    page = started(stage)
    field, before = page.get_by_label("Your text"), live.surprise().text
    for name, content in {
        "latin.txt": "größe".encode("latin-1"),
        "zeros.txt": b"a\0b",
    }.items():
        give(page, name, content)
        expect(page.get_by_role("alert")).to_contain_text(f"{name} holds no text in UTF-8")
        expect(field).to_have_value(before)
    give(page, "größe.py", "größe = 1\n".encode())
    expect(field).to_have_value("größe = 1\n")
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator(".ft-whole .ft-seen")).to_contain_text("12 bytes")
