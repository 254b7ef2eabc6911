"""The view of speculation: the library's rounds, its α, its formulas."""

import functools
import itertools
import re

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from browser.visit import ROOT
from firsttoken import live
from firsttoken.drafts import SuffixDraft
from firsttoken.drafts.heads import EagleDraft, MedusaDraft
from firsttoken.generate import speculative_generate
from firsttoken.generate.sequence import Generation
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path
from firsttoken.sampling import SamplingParams
from firsttoken.speculative import expected_tokens, speedup

LIVE = ROOT / "lib" / "firsttoken" / "live"
PROMPT = "def read(path):\n"
# A text that repeats itself, for the draft that looks back.
REPEATED = PROMPT + "    with open(path) as f:\n        return f.read()\n\n\n" + PROMPT
ENDS = "if __name__ == '__main__':\n    main()\n"
DRAFTS = ["draft", "pruned_draft", "suffix_automaton", "medusa_heads", "eagle_draft"]
KINDS = """nodes => nodes.map(node => [
    [...node.classList].find(name => name !== "ft-token").slice(3),
    node.textContent.replaceAll("↵\\n", "\\n"),
])"""


def press(page: Page, name: str) -> None:
    """Press a button that starts something, and wait for its end."""
    page.get_by_role("button", name=name, exact=True).press("Enter")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_hidden()


def figure(page: Page, name: str) -> float:
    return float(page.locator(f"data[data-name={name}]").get_attribute("value"))


def library_run(draft: str, ids, params: SamplingParams, gamma: int) -> Generation:
    """Return what the library writes, with a draft by its name in the menu."""
    target = load_model("target")
    made = {
        "suffix_automaton": SuffixDraft,
        "medusa_heads": functools.partial(MedusaDraft, target),
        "eagle_draft": functools.partial(EagleDraft, target),
    }
    other = functools.partial(load_model, data_path(f"model/{draft}"))
    return speculative_generate(target, made.get(draft, other)(), ids, params, gamma)


@pytest.mark.parametrize("draft", DRAFTS)
def test_every_draft_guesses_as_in_the_library(stage, draft):
    """Chosen in the menu by keyboard; with γ above the number of Medusa's heads."""
    view = live.speculation(REPEATED, gamma=6, temperature=1.0, seed=7, max_tokens=60)
    run = library_run(draft, view.ids, view.params, 6)
    page = stage.started(view)
    menu = page.get_by_role("combobox", name="Draft")
    menu.focus()
    for _ in range(DRAFTS.index(draft)):
        page.keyboard.press("ArrowDown")
    expect(menu).to_have_value(draft)
    expect(menu).to_have_accessible_description(re.compile(r"\w+ \w+"))
    press(page, "Write")

    kinds, tokens = [], iter(run.ids)
    for drafted, accepted in run.rounds:
        last = "bonus" if accepted == drafted else "replaced"
        kinds += zip(["kept"] * accepted + [last], tokens, strict=False)
    shown = page.locator(".ft-token").evaluate_all(KINDS)
    assert shown == [[kind, tokenizer().decode([token])] for kind, token in kinds]
    boxes = page.locator(".ft-round").evaluate_all(
        "rounds => rounds.map(round => ['kept', 'rejected', 'void', 'own']"
        ".map(name => round.querySelectorAll(`.ft-box-${name}`).length))"
    )
    assert boxes == [
        [r.accepted, int(r.accepted < r.drafted), max(0, r.drafted - r.accepted - 1), 1]
        for r in run.rounds
    ]
    # Void guesses do not count.
    alpha = run.accepted / sum(min(r.accepted + 1, r.drafted) for r in run.rounds)
    assert figure(page, "alpha") == alpha
    assert figure(page, "per_pass") == np.mean([r.accepted + 1 for r in run.rounds])
    formula = np.mean([expected_tokens(alpha, r.drafted) for r in run.rounds])
    assert figure(page, "formula") == pytest.approx(formula, rel=1e-12)
    struck = page.locator(".ft-output del").first
    expect(struck).to_be_visible()
    page.get_by_role("button", name="Show rejected").click()
    expect(struck).to_be_hidden()


SPECULATE = """async (asked) => {
    await window.engine.need(asked.draft);
    const told = window.engine.speculate(asked).done.then(({ ids, rounds, finish_reason }) =>
        [ids, rounds.map((r) => [r.drafted, r.accepted]), finish_reason]);
    return told.catch((error) => error.message);
}"""


def asked_and_told(draft: str) -> list[tuple[dict, list]]:
    """Return what to ask of an engine with what the library says, on places of the held-out text.

    Greedy and drawn, to the end of the text and to the end of the context.
    """
    ids = tokenizer().encode(data_path("heldout.txt").read_text("utf-8"))
    rng, pairs = np.random.default_rng(21), []
    for temperature, n_prompt, n in [(0, 60, 60), (1, 1, 80), (0.7, 300, 80), (1, 480, 99)]:
        start, gamma = int(rng.integers(len(ids) - n_prompt)), int(rng.integers(2, 9))
        prompt, seed = ids[start : start + n_prompt], int(rng.integers(2**32))
        pairs.append((prompt, gamma, {"temperature": temperature, "seed": seed}, n))
    pairs.append((tokenizer().encode(ENDS), 1, {"temperature": 0.9, "seed": 5}, 120))
    told = []
    for prompt, gamma, params, n in pairs:
        run = library_run(draft, prompt, SamplingParams(**params, max_tokens=n), gamma)
        asked = {"ids": prompt, "draft": draft, "gamma": gamma, "max_tokens": n, "params": params}
        told.append((asked, [run.ids, [list(r) for r in run.rounds], run.finish_reason]))
    return told


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_engine_guesses_as_the_library_on_many_texts(stage, draft):
    page = stage.engine()
    for asked, told in asked_and_told(draft):
        assert page.evaluate(SPECULATE, asked) == told, asked


def test_formulas_are_those_of_the_library(stage):
    """In the page a closed form, in the library a sum; and α = 1, where the closed form has 0/0."""
    source = (LIVE / "views" / "rounds.js").read_text("utf-8")
    grid = list(itertools.product([0, 0.3, 0.999, 1], [1, 2, 8], [0, 0.2], [1, 3.3]))
    script = """async ([source, grid]) => {
        const file = new File([source], "rounds.js", {type: "text/javascript"});
        const {expectedTokens, speedup} = await import(URL.createObjectURL(file));
        return grid.map(([a, g, c, v]) => [
            expectedTokens(a, g), speedup(expectedTokens(a, g), g, c, v)]);
    }"""
    got = stage.empty_page().evaluate(script, [source, grid])
    expected = [[expected_tokens(a, g), speedup(a, g, c, v)] for a, g, c, v in grid]
    np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_weights_come_when_their_draft_is_to_guess(stage):
    page = stage.started(live.speculation(PROMPT, draft="suffix_automaton", max_tokens=10))

    def fetched() -> set[str]:
        loaded = page.evaluate("() => performance.getEntriesByType('resource').map(e => e.name)")
        return {url.split("/")[-2] for url in loaded if url.endswith(".safetensors.gz")}

    press(page, "Write")
    page.get_by_role("combobox", name="Draft").select_option("eagle_draft")
    assert fetched() == {"target"}
    press(page, "Write")
    assert fetched() == {"target", "eagle_draft"}


def test_a_text_without_repetition_leaves_the_automaton_silent(stage):
    """No guess, no α; and what another draft did before does not stay."""
    page = stage.started(live.speculation("import", max_tokens=4, temperature=0))
    press(page, "Write")
    assert figure(page, "alpha") >= 0
    page.get_by_role("combobox", name="Draft").select_option("suffix automaton")
    press(page, "Race plain decoding")
    expect(page.locator("data[data-name=alpha]")).to_have_text("–")
    expect(page.get_by_role("status")).to_contain_text("Both texts are the same.")


def test_a_race_shows_its_own_numbers(stage):
    """The formula's speed-up follows from the costs beside it, the ratio from the bars."""
    page = stage.started(live.speculation(PROMPT, gamma=3, max_tokens=60))
    press(page, "Race plain decoding")
    alpha, c, v = (figure(page, name) for name in ("alpha", "draft_cost", "check_cost"))
    assert figure(page, "predicted") == pytest.approx(speedup(alpha, 3, c, v))
    assert figure(page, "with_free_check") == pytest.approx(speedup(alpha, 3, c, 1))
    ratio = figure(page, "drafted") / figure(page, "plain")
    assert figure(page, "measured") == pytest.approx(ratio)
