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

from firsttoken.exercises import (
    Question,
    check,
    placement,
    placements,
    progress,
    progress_table,
    quiz,
)
from firsttoken.start import CHAPTERS

ORIGIN = "http://book.invalid"
ON_SITE = "/notebooks/04_kv_cache.html"
IN_LAB = "/lab/workspaces/auto-b/tree/10_my_books/notebooks/04_kv_cache.ipynb"
NOW = "2026-11-20T20:00:00Z"  # 21 November where the reader is, in Tokyo
SIZE = quiz("How large is it?", answer=4, unit="GB")
GUESS = quiz("How large, about?", answer=4, unit="GB", factor=2)
GROWS = quiz("Which grow?", ["weights", "cache", "attention"], ["cache", "attention"])
BEFORE = "✓ Solved before, on 21 November 2026"
QUESTIONS = [
    Question("Where do 54 GB go?", ["weights", "cache"], "cache", "04_kv_cache", "It keeps `k`."),
    Question("What is exact?", ["both", "a", "b"], ["a", "b"], "17_engine", "Each $x$ is."),
    Question("What comes first?", ["prefill", "decode"], "prefill", "01_generate", "It reads."),
]


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


def visit(context: BrowserContext, *outputs, path: str = ON_SITE, site: bool | None = None) -> Page:
    """Open a page that shows some outputs in a chapter of the site or of JupyterLab."""
    site = path.endswith(".html") if site is None else site
    body = "".join(output._repr_html_() for output in outputs)
    root = ' data-content_root="../"' if site else ""
    text = f'<!doctype html><html lang="en"{root}><title>t</title><body>{body}</body></html>'
    page = context.new_page()
    page.clock.set_fixed_time(NOW)
    page.route(
        f"{ORIGIN}/**",
        lambda route: route.fulfill(body=text, content_type="text/html;charset=utf-8"),
    )
    page.goto(ORIGIN + path)
    return page


def answer(page: Page, asked, *values) -> str:
    """Give an answer to a quiz and return what it says."""
    root = page.locator(f'[data-quiz-id="{asked.quiz_id}"]')
    if asked in (SIZE, GUESS):
        root.get_by_label("Your answer").fill(values[0])
    else:
        for option in ("weights", "cache", "attention"):
            root.get_by_label(option).set_checked(option in values)
    root.get_by_role("button").click()
    return root.get_by_role("status").inner_text()


def kept(page: Page) -> dict | None:
    """Return what the browser keeps."""
    return json.loads(page.evaluate("localStorage.getItem('first-token')") or "null")


def counts(page: Page) -> list[str]:
    """Return the visible rows of the table."""
    rows = page.locator("tbody tr:visible").all()
    return [" ".join(row.inner_text().split()) for row in rows]


def test_a_solved_quiz_says_so_on_the_next_visit(context):
    page = visit(context, SIZE, GROWS)
    assert page.locator(".ft-before:visible").count() == 0
    assert "Right." in answer(page, SIZE, "4 GB")
    assert "Not yet." in answer(page, GROWS, "cache")
    assert page.locator(".ft-before:visible").count() == 0, "the verdict is enough"
    page.reload()
    expect(page.locator(".ft-before:visible")).to_have_text([BEFORE])
    assert page.locator(f'[data-quiz-id="{SIZE.quiz_id}"] .ft-before').is_visible()
    assert page.get_by_label("Your answer").input_value() == ""
    assert page.get_by_role("status").all_inner_texts() == ["", ""], "the answer is not shown"
    answer(page, SIZE, "5 GB")
    expect(page.locator(".ft-before:visible")).to_have_count(0)
    page.reload()
    expect(page.locator(".ft-before:visible")).to_have_text([BEFORE])


def test_what_is_kept(context):
    """One key; a right answer stays right with its date, an unreadable one is no answer."""
    page = visit(context, SIZE, GROWS)
    answer(page, GROWS)
    answer(page, SIZE, "four")
    assert kept(page) is None
    answer(page, GROWS, "cache")
    answer(page, SIZE, "4")
    page.clock.set_fixed_time("2026-12-24T12:00:00Z")
    answer(page, SIZE, "5")
    at = NOW.replace("Z", ".000Z")
    tasks = {GROWS.quiz_id: {"right": False, "at": at}, SIZE.quiz_id: {"right": True, "at": at}}
    assert kept(page) == {"version": 1, "tasks": {"04_kv_cache": tasks}}
    answer(page, GROWS, "cache", "attention")
    assert kept(page)["tasks"]["04_kv_cache"][GROWS.quiz_id]["right"]
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [
        1,
        0,
        "",
    ]


def test_a_good_guess_solves_and_a_look_at_the_answer_does_not(context):
    page = visit(context, GUESS)
    assert answer(page, GUESS, "9") == "✗\nToo large, by more than a factor of 2."
    page.get_by_text("Show the answer").click()
    expect(page.get_by_text("4 GB.", exact=True)).to_be_visible()
    assert not kept(page)["tasks"]["04_kv_cache"][GUESS.quiz_id]["right"]
    assert answer(page, GUESS, "7") == "✓\nClose: it is 4 GB."
    assert kept(page)["tasks"]["04_kv_cache"][GUESS.quiz_id]["right"]


@pytest.mark.parametrize(
    ("path", "chapter"),
    [
        (ON_SITE, "04_kv_cache"),
        ("/first-token/notebooks/04_kv_cache", "04_kv_cache"),
        (IN_LAB, "04_kv_cache"),
        ("/lab/tree/notebooks/04_kv_cache-Copy1.ipynb", "04_kv_cache"),
        ("/lab/tree/Untitled.ipynb", "other"),
    ],
)
def test_the_chapter_is_read_from_the_address(context, path, chapter):
    page = visit(context, SIZE, path=path)
    answer(page, SIZE, "4")
    assert list(kept(page)["tasks"]) == [chapter]


def test_a_right_check_is_kept_when_it_is_shown(context, monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    results = [
        check(1, 1, name="Exercise 1"),
        check(2, 1, name="Exercise 2"),
        check(..., 1, name="Exercise 3, test"),
        check(1, 1, name="Exercise 4, repair"),
        check(1, 1),
    ]
    page = visit(context, *results, path=IN_LAB)
    tasks = kept(page)["tasks"]
    assert {chapter: list(names) for chapter, names in tasks.items()} == {
        "04_kv_cache": ["Exercise 1", "Exercise 4"]
    }


def test_a_check_counts_for_the_notebook_that_ran_it(context, monkeypatch):
    """The reader may have turned to another notebook while the first still ran."""
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/10_books/notebooks/01_generate.ipynb")
    page = visit(context, check(1, 1, name="Exercise 1"), path=IN_LAB)
    assert list(kept(page)["tasks"]) == ["01_generate"]
    assert "/home/me" not in page.content()


def test_the_table_follows_at_once(context):
    page = visit(context, SIZE, GROWS, progress())
    assert counts(page) == ["01 The token loop 0 of 2", "04 The KV cache 0 of 6"]
    expect(page.get_by_text("0 of 8 solved.")).to_be_visible()
    bar = page.locator("tr[data-chapter='04_kv_cache'] .ft-bar")
    width = "bar => parseFloat(getComputedStyle(bar, '::before').width) / bar.clientWidth"
    assert bar.evaluate(width) == 0
    answer(page, SIZE, "5")
    assert counts(page)[1] == "04 The KV cache 0 of 6"
    answer(page, SIZE, "4")
    assert counts(page) == ["01 The token loop 0 of 2", "04 The KV cache 1 of 6"]
    assert bar.evaluate(width) == pytest.approx(1 / 6, abs=0.02)
    expect(page.get_by_text("1 of 8 solved.")).to_have_attribute("role", "status")
    page.reload()
    assert counts(page)[1] == "04 The KV cache 1 of 6"


def test_two_tabs(context):
    table = visit(context, progress(), SIZE, path="/notebooks/00_start.html")
    chapter = visit(context, SIZE)
    answer(chapter, SIZE, "4")
    expect(table.locator("tr[data-chapter='04_kv_cache']")).to_contain_text("1 of 6")
    other = visit(context, SIZE)
    expect(other.locator(".ft-before")).to_have_text(BEFORE)
    forget(table)
    expect(other.locator(".ft-before")).to_be_hidden()


def forget(page: Page) -> None:
    """Forget by keyboard alone."""
    page.get_by_role("button", name="Forget my progress").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Keep it")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")


def test_forget(context):
    page = visit(context, progress(), SIZE)
    answer(page, SIZE, "4")
    page.reload()
    button = page.get_by_role("button", name="Forget my progress")
    for way_out in ("Enter", "Escape"):
        button.focus()
        page.keyboard.press("Enter")
        expect(button).to_be_hidden()
        page.keyboard.press(way_out)
        expect(button).to_be_focused()
        assert counts(page)[1] == "04 The KV cache 1 of 6"
    forget(page)
    assert kept(page) is None
    assert counts(page)[1] == "04 The KV cache 0 of 6"
    expect(page.get_by_text("0 of 8 solved.")).to_be_visible()
    expect(button).to_be_focused()
    expect(page.locator(".ft-before")).to_be_hidden()


def test_no_chapter_is_more_than_solved(context):
    """A question that was reworded leaves its old name behind."""
    page = visit(context, progress())
    tasks = {f"old{i}": {"right": True, "at": NOW} for i in range(5)}
    kept = {"version": 1, "tasks": {"01_generate": tasks, "other": tasks}}
    page.evaluate("kept => localStorage.setItem('first-token', JSON.stringify(kept))", kept)
    page.reload()
    assert counts(page) == ["01 The token loop 2 of 2", "04 The KV cache 0 of 6"]


OUTPUTS = (SIZE, placement(QUESTIONS[:1]), progress(), check(1, 1, name="Exercise 1"))
ACCESS = "Object.defineProperty(window, 'localStorage', { get() { %s } });"
DENIED = ACCESS % "throw new DOMException('denied', 'SecurityError');"
MISSING = ACCESS % "return null;"


@pytest.mark.parametrize("script", [DENIED, MISSING])
def test_a_browser_that_keeps_nothing(context, script):
    context.add_init_script(script)
    page = visit(context, *OUTPUTS)
    assert "Right." in answer(page, SIZE, "4")
    assert "Start with 04 The KV cache." in choose(page, [[0]])
    expect(page.get_by_text("leave to keep data")).to_be_visible()
    assert not page.locator("table").is_visible()


def test_a_sandboxed_frame(context):
    page = visit(context)
    page.evaluate(
        """text => {
            const frame = document.createElement("iframe");
            frame.sandbox = "allow-scripts allow-forms";
            frame.srcdoc = text;
            document.body.append(frame);
        }""",
        "".join(output._repr_html_() for output in OUTPUTS),
    )
    frame = page.frame_locator("iframe")
    frame.get_by_label("Your answer").fill("4")
    frame.get_by_role("button", name="Check").first.click()
    expect(frame.get_by_role("status").first).to_contain_text("Right.")
    expect(frame.get_by_text("leave to keep data")).to_be_visible()


def test_a_full_store(context):
    context.add_init_script(
        """Storage.prototype.setItem = () => {
            throw new DOMException("full", "QuotaExceededError"); };"""
    )
    page = visit(context, *OUTPUTS)
    assert "Right." in answer(page, SIZE, "4")
    assert counts(page)[1] == "04 The KV cache 0 of 6"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "7",
        '{"version": 2, "tasks": {"a": 1}}',
        '{"version": 1}',
        '{"version": 1, "tasks": []}',
        '{"version": 1, "tasks": {"04_kv_cache": null}}',
        '{"version": 1, "tasks": {"04_kv_cache": {"x": null}}, "placement": null}',
    ],
)
def test_a_spoilt_store_is_begun_anew(context, text):
    page = visit(context, progress(), SIZE)
    page.evaluate("text => localStorage.setItem('first-token', text)", text)
    page.reload()
    assert counts(page)[1] == "04 The KV cache 0 of 6"
    answer(page, SIZE, "4")
    assert counts(page)[1] == "04 The KV cache 1 of 6"


# ---------------------------------------------------------------------------------------------
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
    assert starts == {
        "→ Start with 01 The token loop",
        "→ Start with 04 The KV cache",
        "→ Start with 17 An engine",
        "✓ All of it is right",
        "… Question 1 is still open",
        "… Question 2 is still open",
        "… Question 3 is still open",
    }


def test_the_placement_is_remembered(context):
    page = visit(context, placement(QUESTIONS), progress(), path="/notebooks/00_start.html")
    assert choose(page, [[0], [], [0]]) == "… Question 2 is still open."
    assert kept(page) is None
    assert choose(page, [[0], [1], [0]]).startswith("→ Start with 04 The KV cache. – Question 1")
    assert kept(page)["placement"]["chapter"] == "04_kv_cache"
    line = page.locator(".ft-place")
    expect(line).to_have_text("Placement quiz, 21 November 2026: start with 04 The KV cache.")
    page.reload()
    note = page.locator(".ft-before")
    expect(note).to_have_text("Taken before, on 21 November 2026. Start with 04 The KV cache.")
    assert page.locator("input:checked").count() == 0
    choose(page, [[1], [1], [0]])
    expect(note).to_be_hidden()
    expect(line).to_contain_text("start with 17 An engine.")
    choose(page, [[1], [1, 2], [0]])
    expect(line).to_contain_text("all of it was right.")
    page.reload()
    expect(note).to_contain_text("All of it is right.")


@pytest.mark.parametrize(("path", "end"), [(ON_SITE, "html"), (IN_LAB, "ipynb")])
def test_links_lead_to_what_is_there(context, path, end):
    """A chapter that is not written yet has no link."""
    page = visit(context, placement(QUESTIONS), progress(), path=path)
    choose(page, [[0], [0], [1]])
    links = page.locator("a:visible").all()
    hrefs = [link.get_attribute("href") for link in links]
    assert set(hrefs) == {f"01_generate.{end}", f"04_kv_cache.{end}"}
    assert len(hrefs) == 3 + 3, "start and two lines; table and its line on the placement"
    assert {link.inner_text().lstrip("0123456789 ") for link in links} == {
        "The token loop",
        "The KV cache",
    }


def test_a_copied_link_opens_what_the_first_one_opens(context):
    """JupyterLab listens to the link in the output, not to the copy that the answer shows."""
    page = visit(context, placement(QUESTIONS), progress(), path=IN_LAB)
    page.evaluate(
        """() => {
            window.opened = [];
            for (const link of document.querySelectorAll(".ft-messages a, th a")) {
                link.addEventListener("click", (event) => {
                    event.preventDefault();
                    window.opened.push(link.textContent);
                });
            }
        }"""
    )
    choose(page, [[0], [1, 2], [0]])
    page.locator(".ft-feedback a").first.click()
    page.locator(".ft-place a").click()
    assert page.evaluate("window.opened") == ["04 The KV cache", "The KV cache"]
    assert page.url == ORIGIN + IN_LAB


def test_without_scripts(browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_content(progress()._repr_html_() + placement(QUESTIONS)._repr_html_())
    expect(page.get_by_text("Here your browser counts")).to_be_visible()
    assert not page.locator("table").is_visible()
    assert page.get_by_role("button").count() == 0
    page.locator("summary").click()
    expect(page.locator("details")).to_contain_text("1. cache.")
    context.close()
