"""The view of speculation: the library's rounds, its α, its formulas."""

import functools
import importlib.util
import itertools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from browser.barriers import barriers
from browser.playground import OPEN
from browser.visit import ROOT, SCREENS
from firsttoken import live
from firsttoken.continuation import Generation
from firsttoken.draft_heads import EagleDraft, MedusaDraft, SuffixDraft
from firsttoken.drafts import SuffixAutomaton
from firsttoken.generate import speculative_generate
from firsttoken.live import assets
from firsttoken.llama import load_model
from firsttoken.paths import data_path
from firsttoken.sampling import SamplingParams
from firsttoken.speculative import expected_tokens, speedup
from firsttoken.tokenizer import tokenizer
from proof.browser.test_live_choice import modules
from proof.browser.test_pages import WIDTH

FORMULAS = ROOT / "lib" / "firsttoken" / "live" / "views" / "rounds.js"
SUFFIX = ROOT / "lib" / "firsttoken" / "live" / "engine" / "suffix.js"
PROMPT = "def read(path):\n"
# A text that repeats itself, for the draft that looks back.
REPEATED = PROMPT + "    with open(path) as f:\n        return f.read()\n\n\n" + PROMPT
NAMES = {
    "draft": "shipped draft",
    "pruned_draft": "pruned draft",
    "suffix_automaton": "suffix automaton",
    "medusa_heads": "Medusa's heads",
    "eagle_draft": "EAGLE",
}
SMALL = """() => [...document.querySelectorAll(".ft-live :is(button, input, select, textarea)")]
    .filter(node => node.offsetParent && node.getBoundingClientRect().height < 39.5)
    .map(node => node.outerHTML.slice(0, 120))"""
KINDS = """nodes => nodes.map(node => [
    [...node.classList].find(name => name !== "ft-token").slice(3),
    node.textContent.replaceAll("↵\\n", "\\n"),
])"""


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


@functools.cache
def library_target():
    return load_model("target")


def library_draft(name: str):
    """Return what the library calls by a name of the menu."""
    if name == "suffix_automaton":
        return SuffixDraft()
    if name == "medusa_heads":
        return MedusaDraft(library_target())
    if name == "eagle_draft":
        return EagleDraft(library_target())
    return load_model(data_path(f"model/{name}"))


def library_run(view) -> Generation:
    """Return what the library writes with the settings of a view."""
    draft, gamma = library_draft(view.settings["draft"]), view.settings["gamma"]
    return speculative_generate(library_target(), draft, view.ids, view.params, gamma)


def check_rounds(page: Page, run: Generation) -> None:
    """Compare what a page shows of the tokens, the rounds and α with the library's."""
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
    per_pass = sum(r.accepted + 1 for r in run.rounds) / len(run.rounds)
    assert figure(page, "per_pass") == per_pass
    each = [expected_tokens(run.accepted / looked_at, r.drafted) for r in run.rounds]
    formula = sum(each) / len(each)
    assert figure(page, "formula") == pytest.approx(formula, rel=1e-12)
    off = f"({formula / per_pass - 1:+.1%})".replace("-0.0", "+0.0")
    off = off.replace("%", " %").replace("-", "−")
    expect(page.locator("data[data-name=formula]")).to_contain_text(off)


@pytest.mark.parametrize(
    ("gamma", "temperature", "seed"), [(4, 0.5, 1), (1, 1.0, 0), (8, 0.0, 0), (3, 1.5, 5)]
)
def test_rounds_are_those_of_the_library(stage, gamma, temperature, seed):
    view = live.speculation(PROMPT, gamma=gamma, temperature=temperature, seed=seed, max_tokens=40)
    run = library_run(view)
    page = started(stage, view)
    press(page, "Write")
    check_rounds(page, run)
    if gamma > 1:  # void guesses do not count; over all that was drafted α would be smaller
        assert figure(page, "alpha") > run.accepted / run.drafted


@pytest.mark.parametrize("draft", NAMES)
@pytest.mark.parametrize(("gamma", "temperature", "seed"), [(4, 0.0, 0), (4, 1.0, 3), (6, 1.0, 7)])
def test_every_draft_guesses_as_in_the_library(stage, draft, gamma, temperature, seed):
    """With γ above the number of Medusa's heads, too."""
    settings = {"gamma": gamma, "temperature": temperature, "seed": seed, "max_tokens": 60}
    view = live.speculation(REPEATED, draft=draft, **settings)
    run = library_run(view)
    assert run.drafted > 0  # there is something to compare
    page = started(stage, view)
    press(page, "Write")
    check_rounds(page, run)
    expect(page.locator(".ft-fate .ft-heading")).to_have_text(f"Draft: {NAMES[draft]}, γ = {gamma}")


SPECULATE = """async (asked) => {
    await window.engine.need(asked.draft);
    const told = window.engine.speculate(asked).done.then(({ ids, rounds, finish_reason }) =>
        [ids, rounds.map((r) => [r.drafted, r.accepted]), finish_reason]);
    return told.catch((error) => error.message);
}"""


@functools.cache
def asked_and_told(draft: str) -> list[tuple[dict, list]]:
    """Return what to ask of an engine with what the library says, on places of the held-out text.

    Greedy and drawn, to the end of the text and to the end of the context.
    """
    ids = tokenizer().encode(data_path("heldout.txt").read_text("utf-8"))
    rng, pairs = np.random.default_rng(21), []
    for temperature, n_prompt, max_tokens in [
        (0, 60, 60),
        (1, 1, 80),
        (0.7, 300, 80),
        (1, 480, 99),
    ]:
        start, gamma = int(rng.integers(len(ids) - n_prompt)), int(rng.integers(2, 9))
        prompt, seed = ids[start : start + n_prompt], int(rng.integers(2**32))
        params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
        run = speculative_generate(library_target(), library_draft(draft), prompt, params, gamma)
        asked = {"ids": prompt, "draft": draft, "gamma": gamma, "max_tokens": max_tokens}
        asked["params"] = {"temperature": temperature, "seed": seed}
        pairs.append((asked, [run.ids, [list(r) for r in run.rounds], run.finish_reason]))
    return pairs


def told_apart(page: Page, draft: str) -> Iterator[dict]:
    """Yield what was asked where engine and library differ."""
    for asked, told in asked_and_told(draft):
        if page.evaluate(SPECULATE, asked) != told:
            yield asked


@pytest.mark.parametrize("draft", NAMES)
def test_the_engine_guesses_as_the_library_on_many_texts(stage, draft):
    assert list(told_apart(stage.engine(), draft)) == []


def flawed(stage, folder: Path, file: str, right: str, wrong: str) -> Page:
    """Open a page with an engine that somebody could have written instead."""
    spec = importlib.util.spec_from_file_location("bundle", ROOT / "book" / "bundle.py")
    bundle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bundle)
    bundle.LIVE = shutil.copytree(bundle.LIVE, folder / "live")
    source = bundle.LIVE / "engine" / file
    text = source.read_text("utf-8")
    assert text.count(right) == 1, f"{right!r} stands {text.count(right)} times"
    source.write_text(text.replace(right, wrong), "utf-8")
    script, page = bundle.bundled(), stage.empty_page()
    page.route(
        "**/live.js", lambda route: route.fulfill(body=script, content_type="text/javascript")
    )
    page.evaluate(OPEN, {"draft": False})
    return page


@pytest.mark.parametrize(
    ("draft", "file", "right", "wrong"),
    [
        # The first feature of a round instead of its last.
        ("medusa_heads", "drafts.js", "slice(-heads.arch", "slice(0, heads.arch"),
        ("medusa_heads", "draft_heads.js", "feature[at] + x", "x"),
        ("medusa_heads", "drafts.js", "Math.min(n, heads.arch.n_heads)", "Math.min(n, 3)"),
        # A feature goes with the token after it, not with its own.
        ("eagle_draft", "drafts.js", "slice(nRead + 1)", "slice(nRead, -1)"),
        # What was guessed and rejected stays in sight.
        ("eagle_draft", "drafts.js", "cache.truncate(nRead);", "nRead = cache.length;"),
        # Features of what stayed are missing.
        ("eagle_draft", "generate.js", "(unread.length + accepted)", "Math.max(1, accepted)"),
        # The target's feature is used again for each guess.
        ("eagle_draft", "drafts.js", "said = layer.next(said,", "layer.next(said,"),
        ("suffix_automaton", "drafts.js", "MIN_MATCH = 2", "MIN_MATCH = 1"),
        ("pruned_draft", "drafts.js", 'fromModel("pruned_draft")', 'fromModel("target")'),
    ],
)
def test_other_guesses_would_be_seen(stage, tmp_path, draft, file, right, wrong):
    assert any(told_apart(flawed(stage, tmp_path, file, right, wrong), draft))


@pytest.mark.parametrize("wrong", ["automaton", None])
def test_an_unknown_draft_is_named(stage, wrong):
    words = "draft must be one of draft, pruned_draft, suffix_automaton, medusa_heads, eagle_draft"
    with pytest.raises(ValueError, match=words):
        live.speculation(PROMPT, draft=wrong)
    view = live.speculation(PROMPT)
    with pytest.raises(ValueError, match=words):
        view.settings = {**view.settings, "draft": wrong}
    page = stage.engine()
    message = page.evaluate(
        """(draft) => window.engine.speculate({ids: [1], draft}).done.catch((e) => e.message)""",
        wrong or "automaton",
    )
    assert message == f"{words}, got {wrong or 'automaton'}"


EXPONENTIAL = """([seed, n]) => {
    const rng = window.random.createRandom(seed);
    return Array.from({length: n}, (_, i) => i % 7 ? rng.exponential() : rng.random());
}"""


def waiting_times(seed: int, n: int) -> list[float]:
    rng = np.random.default_rng(seed)
    return [rng.exponential() if i % 7 else rng.random() for i in range(n)]


def test_waiting_times_are_numpys(stage):
    """So many that all branches of the ziggurat come up, and one number too many would show."""
    n = 200_000
    got = modules(stage).evaluate(EXPONENTIAL, [11, n])
    np.testing.assert_allclose(got, waiting_times(11, n), rtol=1e-12)
    assert max(got) > 9  # behind 7.7 is the tail


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("(bits.low >>> 3) & 255", "bits.low & 255"),
        ("TAIL_FROM - Math.log1p(-random())", "TAIL_FROM - Math.log(random())"),
        ("(outer - inner) * random() + inner", "outer * random()"),
        ("if (bits.top53() < INSIDE[layer]) return x;", "if (layer) return x;"),
    ],
)
def test_other_waiting_times_would_be_seen(stage, right, wrong):
    got = modules(stage, "random.js", right, wrong).evaluate(EXPONENTIAL, [11, 200_000])
    assert not np.allclose(got, waiting_times(11, 200_000), rtol=1e-12)


FIRST = """([chances, seed, n]) => {
    const rng = window.random.createRandom(seed);
    return Array.from({length: n}, () => window.sampling.drawFirst(chances, rng));
}"""


def test_the_first_to_arrive_follows_the_distribution(stage):
    """By the library's own race, token by token; and what cannot come does not."""
    chances, n = np.array([0.5, 0.0, 0.3, 0.2]), 2000
    got = modules(stage).evaluate(FIRST, [chances.tolist(), 5, n])
    rng = np.random.default_rng(5)
    with np.errstate(divide="ignore"):
        assert got == [int((rng.exponential(size=4) / chances).argmin()) for _ in range(n)]
    assert np.abs(np.bincount(got, minlength=4) / n - chances).max() < 0.05


SUFFIXES = """async ([source, texts]) => {
    const file = new File([source], "suffix.js", {type: "text/javascript"});
    const {createSuffixAutomaton} = await import(URL.createObjectURL(file));
    return texts.map((text) => {
        const automaton = createSuffixAutomaton();
        return text.map((token) => {
            automaton.extend(token);
            return [automaton.nMatched, automaton.propose(5)];
        });
    });
}"""


def looked_up(text: list[int]) -> list[list]:
    """Return what the library's automaton says after each token of a text."""
    automaton, said = SuffixAutomaton(), []
    for token in text:
        automaton.extend(token)
        said.append([automaton.n_matched, automaton.propose(5)])
    return said


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("", ""),
        ("follow: new Map(next.follow), length", "length"),  # the two share what follows
        ("return text.slice(whole.link.firstEnd,", "return text.slice(whole.link.length,"),
        ("if (next.length === state.length + 1) return next;", "return next;"),
        ("    next.link = own;", ""),
    ],
)
def test_the_automaton_is_the_librarys(stage, right, wrong):
    rng, source = np.random.default_rng(3), SUFFIX.read_text("utf-8")
    assert right in source
    texts = [rng.integers(n, size=60).tolist() for n in (1, 2, 2, 3, 3, 4, 6, 20)]
    got = stage.empty_page().evaluate(SUFFIXES, [source.replace(right, wrong, 1), texts])
    assert (got == [looked_up(text) for text in texts]) == (right == wrong)


def fetched(page: Page) -> set[str]:
    """Return which files of models a page has asked for, by their folders."""
    loaded = page.evaluate("() => performance.getEntriesByType('resource').map(e => e.name)")
    return {url.split("/")[-2] for url in loaded if url.endswith(".safetensors.gz")}


def test_weights_come_when_their_draft_is_to_guess(stage):
    """The first with the target; another one when it has been chosen and something is written."""
    page = stage.open(live.speculation(PROMPT, draft="suffix_automaton", max_tokens=10))
    assert fetched(page) == set()
    page.locator(".ft-live-start").click()
    menu = page.get_by_role("combobox", name="Draft")
    expect(menu).to_have_value("suffix_automaton")
    press(page, "Write")
    assert fetched(page) == {"target"}
    had = {"target"}
    for name in ("eagle_draft", "medusa_heads", "pruned_draft", "draft"):
        menu.select_option(name)
        page.wait_for_timeout(200)  # what comes later than this is not seen
        assert fetched(page) == had
        press(page, "Write" if name != "draft" else "Race plain decoding")
        had.add(name)
        assert fetched(page) == had


def test_a_draft_that_does_not_come_can_be_tried_again(stage):
    page = started(stage, live.speculation(PROMPT, max_tokens=10))
    page.route("**/pruned_draft/model.safetensors.gz", lambda route: route.abort())
    page.get_by_role("combobox", name="Draft").select_option("pruned draft")
    press(page, "Write")
    expect(page.get_by_role("status")).to_contain_text("could not be fetched")
    page.unroute("**/pruned_draft/model.safetensors.gz")
    stage.troubles.clear()  # the browser's own line about the request that was cut off
    press(page, "Write")
    expect(page.get_by_role("status")).to_contain_text("10 tokens in")


def test_the_menu_works_by_keyboard(stage):
    """It says its name, what is chosen, and what that is."""
    view = live.speculation(REPEATED, max_tokens=40, temperature=1, seed=3)
    page = started(stage, view)
    menu = page.get_by_role("combobox", name="Draft")
    expect(menu.locator("option")).to_have_text(list(NAMES.values()))
    values = menu.locator("option").evaluate_all("options => options.map(o => o.value)")
    assert values == list(NAMES) == list(assets.DRAFTS)
    expect(menu).to_have_accessible_description(re.compile("distilled from all eight"))
    menu.focus()
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    expect(menu).to_have_value("suffix_automaton")
    expect(menu).to_have_accessible_description(re.compile("^No model"))
    page.get_by_role("button", name="Write", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_hidden(timeout=60_000)
    view.settings = {**view.settings, "draft": "suffix_automaton"}
    check_rounds(page, library_run(view))


def test_a_text_without_repetition_leaves_the_automaton_silent(stage):
    """No guess, no α; and what another draft did before does not stay."""
    page = started(stage, live.speculation("import", max_tokens=4, temperature=0))
    press(page, "Write")
    assert figure(page, "alpha") >= 0
    page.get_by_role("combobox", name="Draft").select_option("suffix automaton")
    press(page, "Race plain decoding")
    expect(page.locator("data[data-name=alpha]")).to_have_text("–")
    expect(page.get_by_role("status")).to_contain_text("Both texts are the same.")
    expect(page.locator("data[data-name=draft_cost]")).to_be_hidden()


def test_formulas_are_those_of_the_library(stage):
    """In the page a closed form, in the library a sum; and α = 1, where the closed form has 0/0."""
    page = stage.engine()
    source = FORMULAS.read_text("utf-8")
    grid = list(itertools.product([0, 0.01, 0.3, 0.79, 0.999, 1], range(1, 9), [0, 0.2], [1, 3.3]))
    got = page.evaluate(
        """async ([source, grid]) => {
            const file = new File([source], "rounds.js", {type: "text/javascript"});
            const {expectedTokens, speedup} = await import(URL.createObjectURL(file));
            return grid.map(([a, g, c, v]) => [
                expectedTokens(a, g), speedup(expectedTokens(a, g), g, c, v)]);
        }""",
        [source, grid],
    )
    for (alpha, gamma, c, v), (tokens, faster) in zip(grid, got, strict=True):
        assert tokens == pytest.approx(expected_tokens(alpha, gamma), rel=1e-9)
        assert faster == pytest.approx(speedup(alpha, gamma, c, v), rel=1e-9)


def test_formula_and_measurement_count_the_same_time(stage):
    """Only the model's: neither what passes between tokens, nor one slow pass, sets them apart."""
    times = {"wanted": 4, "drafted": 4, "draft_ms": 0.8, "check_ms": 1.6}
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


def test_rounds_of_unlike_length_count_as_often_as_they_come(stage):
    """A draft that guesses now and then: the middle half of all rounds would be of one kind."""
    short = {"drafted": 0, "accepted": 0, "draft_ms": 0.01, "check_ms": 1.0, "tokens": [{}]}
    long = {"drafted": 4, "accepted": 4, "draft_ms": 0.03, "check_ms": 3.0, "tokens": [{}] * 5}
    rounds = [round_ | {"wanted": 4} for round_ in [short, *[short] * 30, *[long] * 10]]
    rounds.append(short | {"wanted": 1})  # no room for more
    race = stage.engine().evaluate(
        """async ([source, rounds, plain]) => {
            const file = new File([source], "rounds.js", {type: "text/javascript"});
            const {compared} = await import(URL.createObjectURL(file));
            return compared(rounds, 4, plain);
        }""",
        [FORMULAS.read_text("utf-8"), rounds, {"steps": [1.0] * 20}],
    )
    assert race["guesses"] == pytest.approx(1)
    assert race["check_cost"] == pytest.approx((30 * 1 + 10 * 3) / 40)
    assert race["draft_cost"] == pytest.approx((30 * 0.01 + 10 * 0.03) / 40)
    assert race["tokens"] == pytest.approx((30 * 1 + 10 * 5) / 40)
    assert race["predicted"] == pytest.approx(race["measured"], rel=0.05)


def costs(page: Page) -> str:
    return " ".join(page.locator(".ft-clock .ft-figures dt").all_inner_texts())


def test_the_clock_says_what_its_draft_costs(stage):
    """For each draft in its own words; what is shown stays that of the last text until the next."""
    page = started(stage, live.speculation(REPEATED, gamma=3, max_tokens=60, temperature=0))
    words = {
        "draft": "a step of the draft",
        "suffix_automaton": "a guess that is looked up",
        "medusa_heads": "a guess of the heads",
        "eagle_draft": "a step of EAGLE's layer",
    }
    for name, step in words.items():
        page.get_by_role("combobox", name="Draft").select_option(name)
        press(page, "Race plain decoding" if name == "draft" else "Write")
        assert f"{step[0].upper()}{step[1:]}, in such steps: c" in costs(page)
        expect(page.locator(".ft-verdict")).to_contain_text(f"; {step} costs ")
        c, v = figure(page, "draft_cost"), figure(page, "check_cost")
        if name != "suffix_automaton":  # which does not guess in each round
            says = speedup(figure(page, "alpha"), 3, c, v)
            assert figure(page, "predicted") == pytest.approx(says)
            assert "A check of γ + 1 tokens" in costs(page)
    page.get_by_role("combobox", name="Draft").select_option("suffix_automaton")
    assert "A step of EAGLE's layer" in costs(page)
    expect(page.locator(".ft-fate .ft-heading")).to_have_text("Draft: EAGLE, γ = 3")


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
    page.get_by_role("combobox", name="Draft").select_option(
        "pruned draft"
    )  # nor does another draft
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
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        assert barriers(page) == [], theme
    assert page.evaluate(WIDTH) <= SCREENS[screen]["width"]
    if screen == "phone":
        assert page.evaluate(SMALL) == []
