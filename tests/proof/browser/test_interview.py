"""The mock interview in a real browser: drawn as the library draws, kept, scored, accessible.

The page is made here and given to the browser under a name that does not exist, so that nothing
can come from the network. No kernel runs.
"""

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from browser.barriers import AXE, barriers
from browser.playground import THEMES
from browser.visit import SCREENS
from firsttoken.exercises.page import section_link
from firsttoken.interview import QUESTIONS, Choice, Explain, Number, chapter, draw, score_by_topic
from firsttoken.interview.page import N_DRAWN, mock_interview
from firsttoken.interview.question import MINUTES

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
    return mock_interview()._repr_html_() + chapter("04_kv_cache")._repr_html_()


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


def visit(
    context: BrowserContext, body: str, site: bool = True, at: int = START, still: bool = True
) -> Page:
    """Open the appendix, as a page of the site or of JupyterLab; time stands still, or runs on."""
    root = ' data-content_root="../"' if site else ""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    text = f'<!doctype html><html lang="en"{root}><title>t</title>{head}{THEMES}<main>{body}</main>'
    page = context.new_page()
    if still:
        page.clock.install(time=at)
        page.clock.pause_at(at + 1)
    page.route(
        "http://book.invalid/**",
        lambda route: route.fulfill(body=text, content_type="text/html;charset=utf-8"),
    )
    page.goto(ADDRESS)
    return page


def begin(page: Page) -> list[str]:
    """Start an interview and return the ids of its questions."""
    page.get_by_role("button", name="Start the interview").click()
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
    return [
        (
            row.locator("th").inner_text(),
            row.locator("td").first.inner_text(),
            row.locator("a").count(),
        )
        for row in page.locator(".ft-report tbody tr").all()
    ]


def as_shown(drawn, shares) -> list[tuple[str, str, int]]:
    """Return the table that the library expects."""
    return [
        (
            BY_ID_LABEL[row.chapter],
            f"{round(row.points, 2):g} of {row.n_questions}",
            len({missed.section for missed in row.missed}),
        )
        for row in score_by_topic(drawn, shares)
    ]


BY_ID_LABEL = {question.chapter: question.about.label for question in QUESTIONS}


@pytest.mark.parametrize("seed", [1, 17])
def test_a_whole_interview(context, html, seed):
    """Drawn as the library draws; answered half right; scored as the library scores."""
    page = visit(context, html, at=START + 3600 * seed)
    ids = begin(page)
    milliseconds = 1000 * (START + 3600 * seed + 1)
    drawn = draw(QUESTIONS, N_DRAWN, Mulberry32(milliseconds))
    assert ids == [question.id for question in drawn]
    shares = []
    for i, question in enumerate(drawn):
        expect(page.get_by_role("heading")).to_have_text(
            f"Question {i + 1} of {N_DRAWN}. {question.about.label}, difficulty {question.level}"
        )
        expect(page.get_by_role("heading")).to_be_focused()
        expect(page.locator(".ft-stage legend").first).to_contain_text(
            question.text.replace("`", "")[:40]
        )
        # No verdict, no model answer, before the end.
        assert page.locator(".ft-stage :is(.ft-answer, .ft-rubric):visible").count() == 0
        shares.append(answer(page, question, right=i % 2 == 0))
        page.locator(".ft-next").click()
        if i + 1 < len(drawn):
            assert page.locator(".ft-stage .ft-feedback").inner_text() == ""
    assert rows(page) == as_shown(drawn, shares)
    expect(page.locator(".ft-result")).to_have_text(f"Your score: {sum(shares):g} of {N_DRAWN}")
    expect(page.locator(".ft-result")).to_be_focused()
    # The points of an explanation are ticked by the reader, and count at once.
    for i, question in enumerate(drawn):
        if isinstance(question, Explain):
            part = page.locator(f".ft-answers [data-question='{question.id}']")
            expect(part.get_by_label("Your answer")).to_have_value("Because of the bytes.")
            part.get_by_role("checkbox").nth(1).check()
            shares[i] = 1 / len(question.points)
            expect(part.locator(".ft-feedback")).to_contain_text(f"1 of {len(question.points)}")
    assert rows(page) == as_shown(drawn, shares)
    for question, share in zip(drawn, shares, strict=True):
        part = page.locator(f".ft-answers [data-question='{question.id}']")
        assert part.evaluate("part => part.open") == (share < 1)
        if share < 1:
            link = page.locator(".ft-report tbody a", has_text=question.section)
            anchor = re.search(
                r'data-page="([^"]+)"', section_link(question.about, question.section)
            )
            assert anchor[1] in [a.get_attribute("href") for a in link.all()]
            model = part.locator(".ft-rubric > div, .ft-answer > div")
            expect(model).to_be_visible()
            expect(model).to_contain_text(question.model_answer.replace("`", "")[:60])
    before = rows(page)
    page.reload()
    assert rows(page) == before, "the report is kept, too"
    page.get_by_role("button", name="New interview").click()
    expect(page.get_by_role("button", name="Start the interview")).to_be_focused()


def test_an_interview_under_way_survives_a_reload(context, html):
    page = visit(context, html)
    ids = begin(page)
    first, second = (BY_ID[name] for name in ids[:2])
    answer(page, first, right=True)
    page.locator(".ft-next").click()
    answer(page, second, right=False)
    page.get_by_role("button", name="Hide the clock").click()
    page.clock.run_for(65_000)
    shown = page.locator(".ft-stage").inner_text()
    held = kept(page)["answers"]
    page.reload()
    expect(page.locator(".ft-where")).to_contain_text("Question 2 of 10")
    assert page.locator(".ft-stage").inner_text() == shown
    expect(page.get_by_role("timer")).to_be_hidden()
    page.get_by_role("button", name="Show the clock").click()
    expect(page.get_by_role("timer")).to_be_visible()
    assert kept(page)["spent_s"] == pytest.approx(65, abs=16), "at most one saving is lost"
    page.get_by_role("button", name="Back").click()
    assert kept(page)["ids"] == ids and kept(page)["answers"] == held
    assert kept(page)["answers"][first.id]["text"] or kept(page)["answers"][first.id]["ticked"]


def test_the_clock_counts_down_and_goes_on_after_the_end(context, html):
    page = visit(context, html)
    drawn = [BY_ID[name] for name in begin(page)]
    total = sum(MINUTES[question.level] for question in drawn)
    timer = page.get_by_role("timer")
    expect(timer).to_have_text(f"{total}:00 left")
    page.clock.run_for(61_000)
    expect(timer).to_have_text(f"{total - 2}:59 left")
    page.clock.run_for(60_000 * total)
    expect(timer).to_have_text("1:01 over time")
    page.get_by_role("button", name="End now").click()
    expect(page.locator(".ft-used")).to_contain_text(f"Time: {total + 1}:01")
    page.clock.run_for(60_000)
    page.reload()
    expect(page.locator(".ft-used")).to_contain_text(f"Time: {total + 1}:01")


def test_topics_and_difficulty_are_chosen(context, html):
    page = visit(context, html)
    start = page.get_by_role("button", name="Start the interview")
    page.get_by_role("button", name="None").click()
    expect(start).to_be_disabled()
    page.get_by_label("07 FlashAttention").check()
    page.get_by_label("16 Many devices").check()
    page.get_by_label("1, a fact and one step").uncheck()
    pool = [q for q in QUESTIONS if q.chapter in ("07_flash", "16_parallel") and q.level in (2, 3)]
    expect(page.locator(".ft-matching")).to_contain_text(f"{len(pool)} questions")
    ids = begin(page)
    assert sorted(ids) == sorted(q.id for q in pool)[:N_DRAWN] or set(ids) <= {q.id for q in pool}
    assert len(ids) == min(N_DRAWN, len(pool))


def test_a_section_to_read_is_named_once(context, html):
    """Ten questions about one chapter's few sections, all of them missed."""
    page = visit(context, html)
    page.get_by_role("button", name="None").click()
    page.get_by_label("04 The KV cache").check()
    drawn = [BY_ID[name] for name in begin(page)]
    page.get_by_role("button", name="End now").click()
    sections = {question.section for question in drawn}
    assert len(sections) < len(drawn)
    assert rows(page) == [("04 The KV cache", f"0 of {len(drawn)}", len(sections))]


def test_everything_works_by_keyboard(context, html):
    """From the start to the report without a mouse; Enter in a number goes on."""
    page = visit(context, html)
    page.get_by_label("00 Start here").focus()
    page.keyboard.press("Space")
    expect(page.get_by_label("00 Start here")).not_to_be_checked()
    start = page.get_by_role("button", name="Start the interview")
    for _ in range(40):
        if start.evaluate("button => button === document.activeElement"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    drawn = [BY_ID[name] for name in kept(page)["ids"]]
    for question in drawn:
        page.keyboard.press("Tab")  # from the heading to the clock, and on to the answer
        page.keyboard.press("Tab")
        if question.code:
            page.keyboard.press("Tab")
        if isinstance(question, Number):
            page.keyboard.type("5")
            page.keyboard.press("Enter")
            continue
        if isinstance(question, Choice):
            page.keyboard.press("Space")
        else:
            page.keyboard.type("Because.")
        for _ in range(4):
            if page.locator(".ft-next").evaluate("button => button === document.activeElement"):
                break
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
    expect(page.locator(".ft-result")).to_be_focused()
    answers = kept(page)["answers"]
    assert set(answers) == {q.id for q in drawn}
    assert all(given["text"] or given["ticked"] for given in answers.values())


@pytest.mark.parametrize("context", list(SCREENS), indirect=True)
def test_no_barrier_and_nothing_too_wide(context, html):
    """Before, during with each kind of question, and after, in both themes."""
    page = visit(context, html, still=False)
    if not AXE.exists():
        pytest.skip("no axe in _build: run `make book` first")

    def check():
        width = page.viewport_size["width"]
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert barriers(page, ".ft-interview") == [], theme
        small = page.locator(".ft-interview :is(button, .ft-option):visible").evaluate_all(
            "parts => parts.filter(p => p.getBoundingClientRect().height < 43.5).length"
        )
        assert small == 0

    check()
    kinds = set()
    for question in (BY_ID[name] for name in begin(page)):
        kind = (type(question), bool(question.code))
        if kind not in kinds:
            check()
        kinds.add(kind)
        answer(page, question, right=len(kinds) > 1)
        page.locator(".ft-next").click()
    check()


def test_a_question_of_an_older_book_is_forgotten(context, html):
    """An interview with a question that is gone cannot go on."""
    page = visit(context, html)
    begin(page)
    page.evaluate(
        """() => {
            const all = JSON.parse(localStorage.getItem("first-token"));
            all.interview.ids[3] = "gone-question";
            localStorage.setItem("first-token", JSON.stringify(all));
            history.replaceState(null, "", location.href);
        }"""
    )
    other = context.new_page()
    other.route(
        "http://book.invalid/**",
        lambda route: route.fulfill(
            body=f"<!doctype html><title>t</title>{html}", content_type="text/html;charset=utf-8"
        ),
    )
    other.goto(ADDRESS)
    expect(other.get_by_role("button", name="Start the interview")).to_be_visible()


def test_questions_by_chapter_are_graded_beside_the_interview(context, html):
    """A wrong number hears its slip and may see the answer; an explanation is ticked."""
    page = visit(context, html)
    asked = BY_ID["cache-70b-batch"]
    box = page.locator(f".ft-questions [data-quiz-id='{asked.quiz.quiz_id}']")
    box.get_by_label("Your answer").fill("160")
    box.get_by_role("button", name="Check").click()
    expect(box.get_by_role("status")).to_contain_text("That is the number of GiB.")
    box.get_by_text("Show the answer").click()
    expect(box.locator(".ft-answer > div")).to_contain_text("171.8")
    box.get_by_label("Your answer").fill("171.8 GB")
    box.get_by_label("Your answer").press("Enter")
    expect(box.get_by_role("status")).to_contain_text("Right.")
    told = BY_ID["cache-fluent-nonsense"]
    box = page.locator(f".ft-questions [data-quiz-id='{told.quiz.quiz_id}']")
    box.get_by_text("Compare with a model answer").click()
    for point in box.get_by_role("checkbox").all():
        point.check()
    expect(box.get_by_role("status")).to_contain_text(f"All {len(told.points)} points.")
    page.reload()
    expect(page.locator(".ft-questions .ft-before:visible")).to_have_count(2)


def test_links_of_jupyterlab_stay_links_to_notebooks(context, html):
    """There the click must reach the link that came with the output."""
    page = visit(context, html, site=False)
    begin(page)
    page.get_by_role("button", name="End now").click()
    link = page.locator(".ft-report tbody a").first
    assert re.match(r"\d\d_\w+\.ipynb#", link.get_attribute("href"))
    page.evaluate(
        """() => document.querySelector(".ft-reading").addEventListener("click", (event) => {
            event.preventDefault();
            window.clicked = event.target.getAttribute("href");
        })"""
    )
    link.click()
    assert page.evaluate("window.clicked") == link.get_attribute("href")
