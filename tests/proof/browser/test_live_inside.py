"""Inside the model, live: what the page shows is what the library finds, and it reacts."""

import itertools
import re

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from browser.visit import until
from firsttoken import live
from firsttoken.live.stills import target, visible
from firsttoken.live.widgets import PROGRAM
from firsttoken.models.inspection import look_inside
from firsttoken.models.tokenizer import tokenizer

tok = tokenizer()
TEXTS = {"no ASCII": "größe = '🙂'\n\tprint(größe", "no token": "", "too long": PROGRAM * 5}
COPYING, NEIGHBOUR = (5, 3), (5, 2)  # the head that copies a name, and the one before it
PIECES = [visible(tok.token_bytes(i).decode(errors="backslashreplace")) for i in range(1024)]
FO = 13  # where "fo" of "folder" stands in the context, the start counted


def found(text: str = PROGRAM, silenced=()):
    """Return what the library finds in the ids that the view shows to the model."""
    return look_inside(target(), [tok.eos_id, *tok.encode(text)[-96:]], silenced)


def started(stage) -> Page:
    page = stage.started(live.inside())
    expect(page.locator(".ft-effect")).not_to_be_empty()
    return page


def numbers(texts: list[str]) -> np.ndarray:
    """Return the probability at the end of each text, to a twentieth of a per cent or so."""
    found = [re.search(r"(<?)([\d.]+)\s%$", text) for text in texts]
    return np.array([0.0005 if m[1] else float(m[2]) / 100 for m in found])


def expect_shares(page: Page, shares: np.ndarray) -> None:
    """Wait until the tokens' labels say how much the reading token takes from each."""
    options = page.locator(".ft-tokens [role=option]")

    def are_shown() -> bool:
        shown = numbers(
            options.evaluate_all("all => all.map(each => each.getAttribute('aria-label'))")
        )
        return shown.shape == shares.shape and np.allclose(shown, shares, rtol=0, atol=6e-4)

    until(page, are_shown)


def button(page: Page, head: tuple[int, int]):
    name = f"Silence layer {head[0] + 1}, head {head[1] + 1}"
    return page.locator(".ft-all-heads").get_by_role("button", name=name)


def next_tokens(page: Page, part: str) -> dict[str, float]:
    """Return {token as shown: its probability before or after some heads were silenced}."""
    rows = page.locator(".ft-next .ft-bars li:visible")
    names = rows.locator(".ft-piece").all_inner_texts()
    return dict(zip(names, numbers(rows.locator(part).all_inner_texts()), strict=True))


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_what_is_shown_is_what_the_library_finds(stage, text):
    page = started(stage)
    page.get_by_label("Your text").fill(text)
    seen = found(text)
    expect_shares(page, seen.attention[COPYING][-1])
    said = page.locator("td.ft-said").all_inner_texts()
    np.testing.assert_allclose(numbers(said), seen.layers.max(axis=1), atol=6e-4)
    likeliest = [int(i) for i in np.argsort(-seen.next, kind="stable")[:5]]
    shown = next_tokens(page, ".ft-before")
    assert list(shown)[:5] == [PIECES[i] for i in likeliest]
    np.testing.assert_allclose([*shown.values()][:5], seen.next[likeliest], atol=6e-4)
    if text == TEXTS["too long"]:
        expect(page.locator(".ft-note").first).to_contain_text("the model is shown the last 96")


def test_silenced_heads(stage):
    """By a press on each: the next token, the layers and the attention after it change with it."""
    page, heads = started(stage), [COPYING, (6, 4)]
    without = found(silenced=heads)
    for head in heads:
        button(page, head).click()
        expect(button(page, head)).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".ft-effect")).to_contain_text("Without 2 heads")
    expect_shares(page, without.attention[heads[-1]][-1])
    for part, look in ((".ft-before", found()), (".ft-after", without)):
        for name, p in next_tokens(page, part).items():
            np.testing.assert_allclose(p, look.next[PIECES.index(name)], atol=6e-4)
    said = numbers(page.locator("td.ft-said").all_inner_texts())
    np.testing.assert_allclose(said, without.layers.max(axis=1), atol=6e-4)
    page.get_by_role("button", name="Restore all").click()
    # What chapter 01 tells: without the head that copies, the model is no longer sure of `fo`.
    page.get_by_role("button", name="Silence layer 6, head 4").first.click()
    words = "Without layer 6, head 4, fo falls from 86.3 % to 33.4 %."
    expect(page.locator(".ft-effect")).to_have_text(words)
    expect(page.get_by_role("status")).to_contain_text("fo falls")


def test_another_head_another_reader(stage):
    """Sliders choose the head; a token becomes the reader by a click, by Enter, or on the map."""
    page, attention = started(stage), found().attention
    for name, n in [("Layer", 4), ("Head", 5)]:
        page.get_by_label(name, exact=True).fill(str(n))
    expect_shares(page, attention[3, 4, -1])
    tokens = page.locator(".ft-tokens [role=option]")
    tokens.nth(FO).click()
    expect_shares(page, attention[3, 4, FO])
    page.keyboard.press("ArrowLeft")
    expect(tokens.nth(FO - 1)).to_be_focused()
    page.keyboard.press("Enter")
    expect_shares(page, attention[3, 4, FO - 1])
    canvas = page.locator(".ft-map canvas")
    height = canvas.bounding_box()["height"]
    canvas.click(position={"x": 5, "y": height * (FO + 0.5) / attention.shape[2]})
    expect(tokens.nth(FO)).to_have_attribute("aria-selected", "true")


def test_the_map_is_the_attention_of_the_head(stage):
    alpha = started(stage).evaluate("""() => {
        const canvas = document.querySelector(".ft-map canvas");
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return [canvas.width, ...data.filter((_, i) => i % 4 === 3)];
    }""")
    drawn = np.reshape(alpha[1:], (alpha[0], -1)) / 255
    np.testing.assert_allclose(drawn, np.sqrt(found().attention[COPYING]), atol=3e-3)


def test_heads_by_keyboard(stage):
    """One stop for Tab among 48 buttons; arrow keys; Space silences."""
    page = started(stage)
    page.locator(".ft-all-heads button[tabindex='0']").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".ft-all-heads button[tabindex='0']")).to_have_count(1)
    page.keyboard.press("Space")
    expect(page.locator(".ft-effect")).to_contain_text("Without layer 2, head 2")


def test_every_head_is_tried(stage):
    """Each alone, whatever else the reader has silenced; then another token is followed."""
    page = started(stage)
    button(page, NEIGHBOUR).click()
    expect(page.locator(".ft-effect")).to_contain_text("Without")
    page.get_by_role("button", name="Try every head").click()
    expect(page.get_by_role("status")).to_contain_text("The largest change")
    alone = [found(silenced=[head]).next for head in itertools.product(range(8), range(6))]

    def check(token: int) -> None:
        cells = page.locator(".ft-all-heads button")
        points = [int(text.replace("−", "-")) for text in cells.all_inner_texts()]
        after = [p[token] for p in alone]
        np.testing.assert_allclose(points, 100 * (after - found().next[token]), atol=0.51)
        said = cells.evaluate_all("all => all.map(each => each.getAttribute('aria-label'))")
        np.testing.assert_allclose(numbers(said), after, atol=6e-4)

    check(PIECES.index("fo"))
    row = page.get_by_role("button", name=re.compile("^Watch")).nth(1)
    name = row.locator(".ft-piece").inner_text()
    row.press("Enter")
    expect(page.locator(".ft-effect")).to_contain_text(f" {name} ")
    check(PIECES.index(name))
