"""A reader's progress in a real browser: kept on reload, shared between tabs, forgotten on request.

Pages are made here and given to the browser under a name that does not exist: what needs the
network fails. The addresses are those of the site and of JupyterLab.
"""

import dataclasses
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from types import MappingProxyType

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from firsttoken.page.exercises import (
    Question,
    check,
    placement,
    placements,
    progress,
    progress_table,
    quiz,
)
from firsttoken.page.start import CHAPTERS

ORIGIN = "http://book.invalid"
ON_SITE = "/notebooks/04_kv_cache.html"
NOW = "2026-11-20T20:00:00Z"  # 21 November where the reader is, in Tokyo
SIZE = quiz("How large is it?", answer=4, unit="GB")
BEFORE = "✓ Solved before, on 21 November 2026"
QUESTIONS = [
    Question("Where do 54 GB go?", ["weights", "cache"], "cache", "04_kv_cache", "It keeps `k`."),
    Question("What is exact?", ["both", "a", "b"], ["a", "b"], "17_engine", "Each $x$ is."),
    Question("What comes first?", ["prefill", "decode"], "prefill", "01_generate", "It reads."),
]
OUTPUTS = (SIZE, placement(QUESTIONS[:1]), progress(), check(1, 1, name="Exercise 1"))


@pytest.fixture(scope="module", autouse=True)
def fixed_map():
    """Let two chapters stand, whatever is written by now, and 17 not."""
    totals = {"01_generate": (1, 1), "04_kv_cache": (2, 4)}
    chapters = {
        stem: dataclasses.replace(
            chapter, n_quizzes=totals.get(stem, (0, 0))[0], n_exercises=totals.get(stem, (0, 0))[1]
        )
        for stem, chapter in CHAPTERS.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        for module in (placements, progress_table):
            patch.setattr(module, "CHAPTERS", MappingProxyType(chapters))
        yield


@pytest.fixture
def context(browser) -> Iterator[BrowserContext]:
    """Yield a browser of a reader who was never here; what goes wrong in it fails the test."""
    context = browser.new_context(locale="de-DE", timezone_id="Asia/Tokyo")
    troubles = []
    context.on("weberror", lambda error: troubles.append(str(error.error)))
    context.on("console", lambda m: m.type == "error" and troubles.append(m.text))
    yield context
    context.close()
    assert troubles == []


def visit(context: BrowserContext, *outputs, path: str = ON_SITE) -> Page:
    """Open a page that shows some outputs in a chapter of the site or of JupyterLab."""
    body = "".join(output._repr_html_() for output in outputs)
    root = ' data-content_root="../"' if path.endswith(".html") else ""
    text = f'<!doctype html><html lang="en"{root}><title>t</title><body>{body}</body></html>'
    page = context.new_page()
    page.clock.set_fixed_time(NOW)
    page.route(
        f"{ORIGIN}/**",
        lambda route: route.fulfill(body=text, content_type="text/html;charset=utf-8"),
    )
    page.goto(ORIGIN + path)
    return page


def answer(page: Page, value: str) -> str:
    """Give an answer to the quiz and return what it says."""
    root = page.locator(f'[data-quiz-id="{SIZE.quiz_id}"]')
    root.get_by_label("Your answer").fill(value)
    root.get_by_role("button").click()
    return root.get_by_role("status").inner_text()


def kept(page: Page) -> dict | None:
    return json.loads(page.evaluate("localStorage.getItem('first-token')") or "null")


def counts(page: Page) -> list[str]:
    """Return the visible rows of the table."""
    return [" ".join(row.split()) for row in page.locator("tbody tr:visible").all_inner_texts()]


def test_a_solved_quiz_is_kept_and_says_so_on_the_next_visit(context):
    """With its date, not its answer; it stays solved, and the table counts it at once."""
    page = visit(context, SIZE, progress())
    answer(page, "four")  # unreadable, so no answer
    assert kept(page) is None
    assert "Not yet." in answer(page, "5 GB")
    assert counts(page) == ["01 The token loop 0 of 2", "04 The KV cache 0 of 6"]
    assert "Right." in answer(page, "4 GB")
    answer(page, "5 GB")
    task = {SIZE.quiz_id: {"right": True, "at": NOW.replace("Z", ".000Z")}}
    assert kept(page) == {"version": 1, "tasks": {"04_kv_cache": task}}
    assert counts(page) == ["01 The token loop 0 of 2", "04 The KV cache 1 of 6"]
    expect(page.get_by_text("1 of 8 solved.")).to_have_attribute("role", "status")
    page.reload()
    expect(page.locator(".ft-before:visible")).to_have_text([BEFORE])
    assert counts(page)[1] == "04 The KV cache 1 of 6"
    answer(page, "5 GB")
    expect(page.locator(".ft-before:visible")).to_have_count(0)


@pytest.mark.parametrize("session", [None, "/home/me/10_books/notebooks/01_generate.ipynb"])
def test_a_right_check_counts_for_the_notebook_that_ran_it(context, monkeypatch, session):
    """The reader may have turned to another notebook while the first still ran."""
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    if session:
        monkeypatch.setenv("JPY_SESSION_NAME", session)
    results = [check(1, 1, name="Exercise 1"), check(2, 1, name="Exercise 2"), check(1, 1)]
    page = visit(context, *results, path="/lab/tree/10_my_books/notebooks/04_kv_cache-Copy1.ipynb")
    tasks = {chapter: list(names) for chapter, names in kept(page)["tasks"].items()}
    assert tasks == {"01_generate" if session else "04_kv_cache": ["Exercise 1"]}
    assert "/home/me" not in page.content()


def test_two_tabs_and_forgetting(context):
    """By keyboard alone, after a question that leads back."""
    table = visit(context, progress(), SIZE, path="/notebooks/00_start.html")
    answer(visit(context, SIZE), "4")
    expect(table.locator("tr[data-chapter='04_kv_cache']")).to_contain_text("1 of 6")
    other = visit(context, SIZE)
    expect(other.locator(".ft-before")).to_have_text(BEFORE)
    button = table.get_by_role("button", name="Forget my progress")
    for keys in (["Enter", "Escape"], ["Enter", "Enter"], ["Enter", "Tab", "Enter"]):
        assert counts(table)[1] == "04 The KV cache 1 of 6"
        button.focus()
        for key in keys:
            table.keyboard.press(key)
        expect(button).to_be_focused()
    assert kept(table) is None
    assert counts(table)[1] == "04 The KV cache 0 of 6"
    expect(other.locator(".ft-before")).to_be_hidden()


ACCESS = "Object.defineProperty(window, 'localStorage', { get() { %s } });"
STORES = [ACCESS % "throw new DOMException('denied', 'SecurityError');", ACCESS % "return null;"]


@pytest.mark.parametrize("store", STORES)
def test_a_browser_that_keeps_nothing(context, store):
    context.add_init_script(store)
    page = visit(context, *OUTPUTS)
    assert "Right." in answer(page, "4")
    assert "Start with 04 The KV cache." in choose(page, [[0]])
    expect(page.get_by_text("leave to keep data")).to_be_visible()


@pytest.mark.parametrize("text", ["{", "7", '{"version": 2, "tasks": {"a": 1}}', '{"version": 1}'])
def test_a_store_of_another_kind_is_no_error(context, text):
    page = visit(context, progress(), SIZE)
    page.evaluate("text => localStorage.setItem('first-token', text)", text)
    page.reload()
    answer(page, "4")
    assert counts(page)[1] == "04 The KV cache 1 of 6"


# Placement


def choose(page: Page, picked: Sequence[list[int]]) -> str:
    """Answer a placement quiz by the places of the options and return what it says."""
    root = page.locator(".ft-quiz:has(fieldset fieldset)")
    for group, places in zip(root.locator("fieldset fieldset").all(), picked, strict=True):
        group.locator("input").evaluate_all(
            "(inputs, on) => inputs.forEach((input, i) => input.checked = on.includes(i))", places
        )
    root.get_by_role("button").click()
    return " ".join(root.get_by_role("status").inner_text().split())


def test_the_form_places_as_python_does(context):
    asked = placement(QUESTIONS)
    page = visit(context, asked)
    options = [[*question.options, "I do not know yet"] for question in QUESTIONS]
    starts = set()
    for places in itertools.product([[0], [1], [2], []], [[1, 2], [1], [3], []], [[0], [1], []]):
        given = [[options[i][place] for place in chosen] for i, chosen in enumerate(places)]
        right, message = asked.grade(given)
        shown = choose(page, places)
        assert shown[2:] == re.sub(r"\$(.)\$", r"\\(\1\\)", message).replace("`", "")
        assert right == shown.startswith("✓")
        starts.add(shown.partition(".")[0])
    assert len(starts) == 7  # three chapters, all right, and each question still open
