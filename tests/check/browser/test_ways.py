"""What the site and the server do beside figures and views: each of it once."""

import json
import threading
from collections.abc import Iterator

import pytest
from calculator import page as calculator
from playwright.sync_api import Page, expect

from browser.visit import FRONT, Visit, pages_with, settle
from firsttoken.appendix.interview import QUESTIONS, Choice, Number
from firsttoken.live import assets
from server.served import ExactModel, Served

PYTHON_MS = 300_000  # until Python runs in the browser
SAME = """html => {
    const other = document.createElement("div");
    other.innerHTML = html;
    return document.querySelector(".ft-results").innerHTML === other.innerHTML;
}"""


@pytest.fixture
def page(browser, address) -> Iterator[Page]:
    with Visit(browser, address) as visit:
        yield visit.page


def test_the_calculator_says_what_python_says(page, address):
    page.goto(f"{address}book/calculator.html")
    changes = {"model": "Mixtral-8x7B", "accelerator": "A100-80GB", "n_devices": "2"}
    page.locator("#ft-model").select_option(changes["model"])
    page.locator("#ft-accelerator").select_option(changes["accelerator"])
    page.locator("#ft-n_devices").select_option(changes["n_devices"])
    page.get_by_role("button", name="Calculate").click()
    said = json.loads(calculator.answer(json.dumps(calculator.START | changes)))
    page.wait_for_function(SAME, arg=said["results"], timeout=PYTHON_MS)


def test_the_dashboard_shows_the_engine_at_work(browser):
    with Served(ExactModel(0.5), max_batch=2) as served, Visit(browser, served.url) as visit:
        visit.page.goto(served.url)
        fields = {"prompt": "a", "max_tokens": 200, "ignore_eos": True}
        clients = [threading.Thread(target=served.post, kwargs=fields) for _ in range(3)]
        for client in clients:
            client.start()
        for name, text in (("running", "2"), ("waiting", "1")):
            status = visit.page.get_by_role("status", name=name, exact=True)
            expect(status).to_have_text(text)
        served.model.pass_s = 0  # it was slow to be seen
        for client in clients:
            client.join()
        expect(visit.page.locator("#answers")).to_have_text("3")


def test_a_solved_quiz_is_kept(page, address):
    """The table counts it at once, and still does after a reload."""
    page.goto(f"{address}notebooks/00_start.html")
    row = page.locator("tr[data-chapter='00_start']")
    expect(row).to_contain_text("0 of")
    quiz = page.locator(".ft-quiz:has(input[type=radio])").last
    options = quiz.get_by_role("radio")
    for index in range(options.count()):
        options.nth(index).check()
        quiz.get_by_role("button", name="Check").click()
        if "Right." in quiz.get_by_role("status").inner_text():
            break
    expect(row).to_contain_text("1 of")
    page.reload()
    expect(row).to_contain_text("1 of")


def test_an_interview_grades_an_answer(page, address):
    """One right answer of ten, and the report says so."""
    page.goto(f"{address}notebooks/B_interview.html")
    page.get_by_role("button", name="Start the interview").click()
    kept = page.evaluate("JSON.parse(localStorage.getItem('first-token')).interview.ids")
    for question in ({q.id: q for q in QUESTIONS}[name] for name in kept):
        stage = page.locator(".ft-stage")
        if isinstance(question, Number):
            stage.get_by_label("Your answer").fill(f"{question.answer():.4g}")
            break
        if isinstance(question, Choice):
            stage.get_by_label(question.right.replace("`", ""), exact=True).check()
            break
        page.locator(".ft-next").click()
    page.get_by_role("button", name="End now").click()
    expect(page.locator(".ft-result")).to_have_text(f"Your score: 1 of {len(kept)}")


@pytest.mark.parametrize("path", pages_with('class="ft-gloss')[-1:])
def test_a_word_shows_what_it_means(page, address, path):
    page.goto(address + path)
    settle(page)
    word = page.locator("a.ft-gloss").first
    word.hover()
    expect(page.locator(".ft-gloss-card")).to_be_visible()


@pytest.mark.parametrize("path", pages_with("ft-further")[:1])
def test_a_further_part_opens(page, address, path):
    page.goto(address + path)
    settle(page)
    part = page.locator(".ft-further").first
    inside = part.locator("p:not(summary p)").first
    expect(inside).to_be_hidden()
    part.locator("summary").first.click()
    expect(inside).to_be_visible()


def test_search_finds_a_page(page, address):
    page.goto(f"{address}search.html?q=perplexity")
    expect(page.locator("#search-results li a[href*='glossary']").first).to_be_visible()


def test_the_model_is_loaded_when_asked_for_and_not_before(page, address):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address + FRONT)
    settle(page)
    assert not [url for url in asked if "/live/" in url]
    page.get_by_role("button", name="type your own").click()
    expect(page.locator(".ft-live textarea")).to_be_visible()
    assert [url for url in asked if assets.version() in url]
