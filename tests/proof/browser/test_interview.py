"""The mock interview in a real browser: drawn as the library draws, kept, scored, accessible.

The page is made here and given to the browser under a name that does not exist, so that nothing
can come from the network. No kernel runs.
"""

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from browser.barriers import barriers
from browser.playground import THEMES
from browser.visit import SCREENS, WIDTH
from firsttoken.appendix.interview import (
    QUESTIONS,
    Choice,
    Explain,
    Number,
    draw_questions,
    score_by_topic,
)
from firsttoken.appendix.interview.page import N_DRAWN, mock_interview

ADDRESS = "http://book.invalid/notebooks/B_interview.html"
BY_ID = {question.id: question for question in QUESTIONS}
START = 1_763_000_000  # seconds since 1970; the seed is in milliseconds


class Mulberry32:
    """The random numbers of the page."""

    def __init__(self, seed: int):
        self.state = seed & 0xFFFFFFFF

    def random(self) -> float:
        self.state = (self.state + 0x6D2B79F5) & 0xFFFFFFFF
        x = self.state
        x = (x ^ (x >> 15)) * (1 | x) & 0xFFFFFFFF
        x ^= (x + ((x ^ (x >> 7)) * (61 | x) & 0xFFFFFFFF)) & 0xFFFFFFFF
        return (x ^ (x >> 14)) / 2**32


@pytest.fixture(scope="module")
def html() -> str:
    return mock_interview()._repr_html_()


@pytest.fixture(params=["desktop"])
def context(browser, request) -> Iterator[BrowserContext]:
    """Yield a browser of a reader who was never here; what goes wrong in it fails the test."""
    touch = request.param == "phone"
    context = browser.new_context(
        viewport=SCREENS[request.param], is_mobile=touch, has_touch=touch, locale="de-DE"
    )
    troubles = []
    context.on("weberror", lambda error: troubles.append(str(error.error)))
    context.on("console", lambda m: m.type == "error" and troubles.append(m.text))
    yield context
    context.close()
    assert troubles == []


def visit(context: BrowserContext, body: str, still: bool = True) -> Page:
    """Open the appendix as a page of the site; time stands still, or runs on."""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    root = '<html lang="en" data-content_root="../">'
    text = f"<!doctype html>{root}<title>t</title>{head}{THEMES}<main>{body}</main>"
    page = context.new_page()
    if still:
        page.clock.install(time=START)
        page.clock.pause_at(START + 1)
    page.route(
        "http://book.invalid/**",
        lambda route: route.fulfill(body=text, content_type="text/html;charset=utf-8"),
    )
    page.goto(ADDRESS)
    return page


def begin(page: Page) -> list[str]:
    """Start an interview and return the ids of its questions."""
    page.get_by_role("button", name="Start the interview").press("Enter")
    return kept(page)["ids"]


def kept(page: Page) -> dict:
    """Return what the browser keeps of the interview."""
    return json.loads(page.evaluate("localStorage.getItem('first-token')"))["interview"]


def answer(page: Page, question, right: bool) -> float:
    """Answer the question on the stage; return the share that it is worth."""
    stage = page.locator(".ft-stage")
    if isinstance(question, Number):
        value = question.answer() if right else float(question.slips[0][0]())
        stage.get_by_label("Your answer").fill(f"{value:.4g}")
    elif isinstance(question, Choice):
        option = question.right if right else question.wrong[0][0]
        stage.get_by_label(option.replace("`", ""), exact=True).check()
    else:
        assert isinstance(question, Explain)
        stage.get_by_label("Your answer").fill("Because of the bytes.")
        return 0.0  # until its points are ticked
    return float(right)


def rows(page: Page) -> list[tuple[str, str, int]]:
    """Return the table of the report: topic, points, number of sections to read."""
    found = []
    for row in page.locator(".ft-report tbody tr").all():
        texts = [row.locator(part).first.inner_text() for part in ("th", "td")]
        found.append((*texts, row.locator("a").count()))
    return found


def as_scored(drawn, shares) -> list[tuple[str, str, int]]:
    """Return the table that the library expects."""
    labels = {question.chapter: question.about.label for question in QUESTIONS}
    return [
        (
            labels[row.chapter],
            f"{round(row.points, 2):g} of {row.n_questions}",
            len({missed.section for missed in row.missed}),
        )
        for row in score_by_topic(drawn, shares)
    ]


def test_a_whole_interview(context, html):
    """Drawn as the library draws; answered half right; scored as the library scores."""
    page = visit(context, html)
    ids = begin(page)
    drawn = draw_questions(QUESTIONS, N_DRAWN, Mulberry32(1000 * (START + 1)))
    assert ids == [question.id for question in drawn]
    shares = []
    for i, question in enumerate(drawn):
        heading = page.get_by_role("heading")
        expect(heading).to_contain_text(f"Question {i + 1} of {N_DRAWN}. {question.about.label}")
        expect(heading).to_be_focused()
        # No verdict, no model answer, before the end.
        expect(page.locator(".ft-stage :is(.ft-answer, .ft-rubric):visible")).to_have_count(0)
        shares.append(answer(page, question, right=i % 2 == 0))
        page.locator(".ft-next").press("Enter")
    expect(page.locator(".ft-result")).to_have_text(f"Your score: {sum(shares):g} of {N_DRAWN}")
    expect(page.locator(".ft-result")).to_be_focused()
    # The points of an explanation are ticked by the reader, and count at once.
    for i, question in enumerate(drawn):
        part = page.locator(f".ft-answers [data-question='{question.id}']")
        if isinstance(question, Explain):
            part.get_by_role("checkbox").nth(1).check()
            shares[i] = 1 / len(question.points)
        if shares[i] < 1:
            model = part.locator(".ft-rubric > div, .ft-answer > div")
            expect(model).to_contain_text(question.model_answer.replace("`", "")[:60])
    assert rows(page) == as_scored(drawn, shares)
    page.reload()
    assert rows(page) == as_scored(drawn, shares), "the report is kept, too"
    page.get_by_role("button", name="New interview").click()
    expect(page.get_by_role("button", name="Start the interview")).to_be_focused()


def test_an_interview_under_way_survives_a_reload(context, html):
    page = visit(context, html)
    first, second = (BY_ID[name] for name in begin(page)[:2])
    answer(page, first, right=True)
    page.locator(".ft-next").click()
    answer(page, second, right=False)
    page.get_by_role("button", name="Hide the clock").click()
    page.clock.run_for(65_000)
    shown, held = page.locator(".ft-stage").inner_text(), kept(page)["answers"]
    page.reload()
    assert page.locator(".ft-stage").inner_text() == shown
    expect(page.get_by_role("timer")).to_be_hidden()
    assert kept(page)["spent_s"] == pytest.approx(65, abs=16), "at most one saving is lost"
    page.get_by_role("button", name="Back").click()
    assert kept(page)["answers"] == held and set(held) >= {first.id, second.id}


@pytest.mark.parametrize("context", list(SCREENS), indirect=True)
def test_no_barrier_and_nothing_too_wide(context, html):
    """Before, during with each kind of question, and after, in both themes."""
    page = visit(context, html, still=False)

    def check():
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            assert page.evaluate(WIDTH) <= page.viewport_size["width"]
            assert barriers(page, ".ft-interview") == [], theme

    check()
    kinds = set()
    for question in (BY_ID[name] for name in begin(page)):
        if type(question) not in kinds:
            check()
        kinds.add(type(question))
        answer(page, question, right=len(kinds) > 1)
        page.locator(".ft-next").click()
    check()
