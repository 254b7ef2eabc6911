"""Quizzes in a page: the script grades as Python does, by keyboard, and without scripts."""

import re

import pytest

from page.exercises.test_quizzes import PICKED, QUIZZES, TYPED


def visible(message: str) -> str:
    """Return a message as a page without MathJax shows it."""
    return re.sub(r"\$(2\^\{30\})\$", r"\\(\1\\)", message).replace("`", "")


@pytest.fixture(scope="module")
def page(browser):
    page = browser.new_page()
    page.requests, page.problems = [], []
    page.on("request", lambda request: page.requests.append(request.url))
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    # Each quiz stands twice on the page, as when a chapter repeats a question.
    body = "".join(q._repr_html_() for q in QUIZZES.values()) * 2
    page.set_content(f"<!doctype html><html lang=en><title>t</title><body>{body}</body></html>")
    yield page
    page.close()


def roots(page, name):
    found = page.locator(f'[data-quiz-id="{QUIZZES[name].quiz_id}"]')
    assert found.count() == 2
    return found


ANSWER = """([id, second, value]) => {
    const root = document.querySelectorAll(`[data-quiz-id="${id}"]`)[second];
    for (const input of root.querySelectorAll("input")) {
        if (Array.isArray(value)) input.checked = value.includes(Number(input.value));
        else input.value = value;
    }
    root.querySelector("button").click();
    const feedback = root.querySelector(".ft-feedback");
    return [feedback.classList.contains("ft-right"), feedback.lastElementChild.textContent];
}"""


@pytest.mark.parametrize("name", QUIZZES)
def test_the_script_grades_as_python_does(page, name):
    asked = QUIZZES[name]
    verdicts = set()
    for value in PICKED.get(name, TYPED):
        given = [asked._spec["options"][i] for i in value] if name in PICKED else value
        right, message = asked.grade(given)
        verdicts.add(right)
        shown = page.evaluate(ANSWER, [asked.quiz_id, 0, value])
        assert [shown[0], " ".join(shown[1].split())] == [right, visible(message)], value
    assert verdicts == {True, False}, "the table must try both"


def test_a_quiz_is_answered_by_keyboard_and_asks_nothing_of_the_network(page):
    first, second = roots(page, "size").all()
    field = first.get_by_label("Your answer")
    field.fill("")
    field.press_sequentially("4 GiB")
    field.press("Enter")
    assert "Right." in first.get_by_role("status").inner_text()
    assert second.get_by_role("status").inner_text() == "", "the twin answers for itself"
    field.press_sequentially("0")
    assert first.get_by_role("status").inner_text() == "", "a verdict goes with its answer"

    first, second = roots(page, "one").all()
    second.get_by_label("weights & biases").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert "It grows & grows." in second.get_by_role("status").inner_text()
    assert first.locator("input:checked").count() <= 1, "the twin's buttons are its own"
    assert first.get_by_role("group").first.get_by_text("Which is read once").is_visible()

    assert page.problems == []
    assert [url for url in page.requests if not url.startswith("about:")] == []


def test_without_scripts_the_answer_is_in_a_fold(page):
    context = page.context.browser.new_context(java_script_enabled=False)
    plain = context.new_page()
    for name, answer in [("size", "4.295 GB"), ("guess", "819,200 B")]:
        plain.set_content(QUIZZES[name]._repr_html_())
        assert plain.locator("legend").is_visible()
        assert not plain.get_by_role("button").is_visible()
        assert answer not in plain.locator("details").inner_text()
        plain.locator("summary").click()
        assert answer in plain.locator("details").inner_text()
    context.close()


def test_after_a_wrong_guess_the_answer_is_shown_on_demand(page):
    first, second = roots(page, "guess").all()
    field, fold = first.get_by_label("Your answer"), first.locator("details")
    for shown, value in [(False, "many"), (True, "1 GB")]:
        field.fill(value)
        assert not fold.is_visible(), "it goes with the verdict"
        field.press("Enter")
        assert fold.is_visible() == shown, value
    assert not second.locator("details").is_visible()
    assert not fold.get_by_text("819,200 B.").is_visible(), "who wants to guess again, may"
    fold.get_by_text("Show the answer").press("Enter")
    assert fold.get_by_text("819,200 B. Keys and values").is_visible()
