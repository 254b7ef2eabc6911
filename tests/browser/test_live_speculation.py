"""The view of speculation: the library's rounds, its α, its formulas."""

import itertools
import re

import pytest
from playwright.sync_api import Page, expect

from browser.test_pages import AXE, SERIOUS, WIDTH
from browser.visit import ROOT, SCREENS
from firsttoken import live
from firsttoken.generate import speculative_generate
from firsttoken.llama import load_model
from firsttoken.speculative import expected_tokens, speedup
from firsttoken.tokenizer import tokenizer

FORMULAS = ROOT / "lib" / "firsttoken" / "live" / "views" / "rounds.js"
PROMPT = "def read(path):\n"
KINDS = """nodes => nodes.map(node => [
    [...node.classList].find(name => name !== "ft-token").slice(3),
    node.textContent.replaceAll("↵\\n", "\\n"),
])"""

pytestmark = pytest.mark.browser


def started(stage, view, **options) -> Page:
    page = stage.open(view, **options)
    page.locator(".ft-live-start").click()
    return page


def press(page: Page, name: str) -> None:
    """Press a button that starts something, and wait for its end."""
    page.get_by_role("button", name=name, exact=True).click()
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_hidden(timeout=60_000)


def figure(page: Page, name: str) -> float:
    return float(page.locator(f"data[data-name={name}]").get_attribute("value"))


def kinds(run, decode) -> list[list[str]]:
    """Return what became of each token: its kind and its text."""
    came, tokens = [], iter(run.ids)
    for drafted, accepted in run.rounds:
        last = "bonus" if accepted == drafted else "replaced"
        came += zip(["kept"] * accepted + [last], tokens, strict=False)
    return [[kind, decode([token])] for kind, token in came]


@pytest.mark.parametrize(
    ("gamma", "temperature", "seed"), [(4, 0.5, 1), (1, 1.0, 0), (8, 0.0, 0), (3, 1.5, 5)]
)
def test_rounds_are_those_of_the_library(stage, gamma, temperature, seed):
    view = live.speculation(PROMPT, gamma=gamma, temperature=temperature, seed=seed, max_tokens=40)
    pair = load_model("target"), load_model("draft")
    run = speculative_generate(*pair, tokenizer().encode_document(PROMPT), view.params, gamma)
    page = started(stage, view)
    press(page, "Write")

    assert page.locator(".ft-token").evaluate_all(KINDS) == kinds(run, tokenizer().decode)
    boxes = page.locator(".ft-round").evaluate_all(
        "rounds => rounds.map(round => ['kept', 'rejected', 'void', 'own']"
        ".map(name => round.querySelectorAll(`.ft-box-${name}`).length))"
    )
    assert boxes == [
        [r.accepted, int(r.accepted < r.drafted), max(0, r.drafted - r.accepted - 1), 1]
        for r in run.rounds
    ]
    looked_at = sum(min(r.accepted + 1, r.drafted) for r in run.rounds)
    assert figure(page, "alpha") == run.accepted / looked_at
    if gamma > 1:  # void guesses do not count; over all that was drafted α would be smaller
        assert figure(page, "alpha") > run.accepted / run.drafted
    per_pass = sum(r.accepted + 1 for r in run.rounds) / len(run.rounds)
    assert figure(page, "per_pass") == per_pass
    formula = expected_tokens(run.accepted / looked_at, gamma)
    assert figure(page, "formula") == pytest.approx(formula, rel=1e-12)
    off = f"({formula / per_pass - 1:+.1%})".replace("%", " %").replace("-", "−")
    expect(page.locator("data[data-name=formula]")).to_contain_text(off)


def test_formulas_are_those_of_the_library(stage):
    """In the page a closed form, in the library a sum; and α = 1, where the closed form has 0/0."""
    page = stage.engine()
    source = FORMULAS.read_text("utf-8")
    grid = list(itertools.product([0, 0.01, 0.3, 0.79, 0.999, 1], range(1, 9), [0, 0.2], [1, 3.3]))
    got = page.evaluate(
        """async ([source, grid]) => {
            const file = new File([source], "rounds.js", {type: "text/javascript"});
            const {expectedTokens, speedup} = await import(URL.createObjectURL(file));
            return grid.map(([a, g, c, v]) => [expectedTokens(a, g), speedup(a, g, c, v)]);
        }""",
        [source, grid],
    )
    for (alpha, gamma, c, v), (tokens, faster) in zip(grid, got, strict=True):
        assert tokens == pytest.approx(expected_tokens(alpha, gamma), rel=1e-9)
        assert faster == pytest.approx(speedup(alpha, gamma, c, v), rel=1e-9)


def test_formula_and_measurement_count_the_same_time(stage):
    """Only the model's: neither what passes between tokens, nor one slow pass, sets them apart."""
    times = {"drafted": 4, "draft_ms": 0.8, "check_ms": 1.6}
    n_kept = [2, 4, 0, 4, 4, 1, 3, 4, 2, 4, 4, 0]
    rounds = [
        {**times, "accepted": n, "tokens": [{}] * (n + 1), "at_ms": 50 * i}
        for i, n in enumerate(n_kept)
    ]
    rounds[5]["check_ms"] = 300
    plain = {"steps": [9] + [0.5] * 30 + [80], "at": [3 * i for i in range(32)]}
    race = stage.engine().evaluate(
        """async ([source, rounds, plain]) => {
            const file = new File([source], "rounds.js", {type: "text/javascript"});
            const {compared} = await import(URL.createObjectURL(file));
            return compared(rounds, 4, plain);
        }""",
        [FORMULAS.read_text("utf-8"), rounds, plain],
    )
    tokens = sum(n + 1 for n in n_kept[1:]) / len(n_kept[1:])
    assert race["plain_per_second"] == pytest.approx(2000)
    assert race["measured"] == pytest.approx(0.5 * tokens / (0.8 + 1.6))
    # What is left between the two is that α is no chance of its own for each guess.
    assert race["predicted"] == pytest.approx(race["measured"], rel=0.2)


def test_a_race_shows_its_own_numbers(stage):
    """The formula's speed-up follows from the costs beside it, the ratio from the bars."""
    page = started(stage, live.speculation(PROMPT, gamma=3, max_tokens=60))
    press(page, "Race plain decoding")
    c, v = figure(page, "draft_cost"), figure(page, "check_cost")
    alpha = figure(page, "alpha")
    assert figure(page, "predicted") == pytest.approx(speedup(alpha, 3, c, v))
    assert figure(page, "with_free_check") == pytest.approx(speedup(alpha, 3, c, 1))
    assert figure(page, "measured") == pytest.approx(
        figure(page, "drafted") / figure(page, "plain")
    )
    assert min(c, v, figure(page, "draft"), figure(page, "check")) > 0
    # γ changes nothing in plain decoding: its run stays. The temperature may.
    page.get_by_label("Guesses per round, γ").press("ArrowRight")
    press(page, "Write")
    expect(page.locator("data[data-name=plain]")).to_contain_text("tokens/s")
    page.get_by_label("Temperature").press("ArrowRight")
    press(page, "Write")
    expect(page.locator("data[data-name=plain]")).to_have_text("not yet")


def test_at_temperature_0_a_race_writes_one_text(stage):
    page = started(stage, live.speculation(PROMPT, temperature=0, max_tokens=40))
    press(page, "Race plain decoding")
    expect(page.get_by_role("status")).to_contain_text("Both texts are the same.")
    page = started(stage, live.speculation(PROMPT, temperature=1, max_tokens=40))
    press(page, "Race plain decoding")
    expect(page.get_by_role("status")).to_contain_text("The texts differ")


def test_a_text_that_fills_the_context_is_refused(stage):
    page = started(stage, live.speculation(PROMPT))
    page.get_by_label("Your text").fill("def " * 600)
    press(page, "Write")
    expect(page.get_by_role("status")).to_contain_text("context of 512")
    expect(page.get_by_role("button", name="Write", exact=True)).to_be_enabled()


def test_a_text_of_one_token_needs_no_guess(stage):
    """It is written to its end, though there is no share of guesses to show."""
    page = started(stage, live.speculation(PROMPT, max_tokens=1))
    press(page, "Write")
    expect(page.get_by_role("status")).to_contain_text("1 token in 1 pass of the target")
    expect(page.locator('[data-name="alpha"]')).to_have_text("–")


def test_rejected_guesses_can_be_hidden(stage):
    page = started(stage, live.speculation(PROMPT, temperature=1.5, max_tokens=40))
    press(page, "Write")
    struck = page.locator(".ft-output del")
    assert struck.count() == page.locator(".ft-output .ft-replaced").count() > 0
    expect(struck.first).to_be_visible()
    page.get_by_role("button", name="Show rejected").click()
    expect(struck.first).to_be_hidden()


@pytest.mark.parametrize("job", ["Write", "Race plain decoding"])
def test_can_be_stopped(stage, job):
    page = started(stage, live.speculation(PROMPT, max_tokens=400))
    page.get_by_role("button", name=job, exact=True).click()
    press(page, "Stop")
    expect(page.get_by_role("button", name=job, exact=True)).to_be_focused()
    assert page.locator(".ft-token").count() < 400


@pytest.mark.parametrize("screen", SCREENS)
def test_is_usable_by_everyone(stage, screen):
    """No barrier in either theme, nothing too wide, and by keyboard."""
    page = started(stage, live.speculation(PROMPT, max_tokens=40), screen=screen)
    page.get_by_role("button", name="Race plain decoding").focus()
    page.keyboard.press("Enter")
    expect(page.locator("[role=status]")).to_contain_text(re.compile("as fast as plain decoding"))
    page.add_script_tag(path=str(AXE))
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        assert page.evaluate(SERIOUS) == [], theme
    assert page.evaluate(WIDTH) <= SCREENS[screen]["width"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"text": None}, "text"),
        ({"gamma": 0}, "gamma"),
        ({"gamma": 9}, "gamma must lie within 1 … 8"),
        ({"seed": None}, "seed"),
    ],
)
def test_wrong_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        live.speculation(**arguments)
