"""The placement quiz: it sends to the first chapter whose question was missed."""

from hypothesis import given
from hypothesis import strategies as st

from firsttoken.page.exercises import Question, placement
from firsttoken.page.start import CHAPTERS
from page.exercises.strange import Hostile


def asked(chapter, several=False):
    """Return a question of a chapter, its options and its right answer."""
    right = ["a", "b"] if several else "a"
    return Question(f"Of {chapter}?", ["a", "b", "c"], right, chapter, f"Since {chapter}.")


@given(
    chapters=st.lists(st.sampled_from(list(CHAPTERS)), min_size=1, max_size=8),
    data=st.data(),
)
def test_start_with_the_first_chapter_whose_question_is_missed(chapters, data):
    """First in the book, in whatever order the questions come."""
    right = data.draw(st.lists(st.booleans(), min_size=len(chapters), max_size=len(chapters)))
    form = placement([asked(chapter) for chapter in chapters])
    given = ["a" if r else data.draw(st.sampled_from("bc")) for r in right]
    missed = [chapter for chapter, r in zip(chapters, right, strict=True) if not r]
    verdict, message = form.grade(given)
    assert verdict == (not missed)
    first = f"Start with {CHAPTERS[min(missed)].label}." if missed else "All of it is right."
    assert message.startswith(first)
    if missed:  # a reader is sent to a chapter that they can open
        assert ("It is not written yet; " in message) == (not CHAPTERS[min(missed)].n_tasks)
    for i, (chapter, r) in enumerate(zip(chapters, right, strict=True), 1):
        said = f"✓ Question {i} is right." if r else f"– Question {i}: not yet."
        assert f"{said} {CHAPTERS[chapter].label}: Since {chapter}." in message


def test_a_placement_asks_for_every_answer():
    form = placement([asked("01_generate"), asked("04_kv_cache", several=True)])
    first, second = "Question 1 is still open.", "Question 2 is still open."
    assert form.grade([]) == form.grade([None, None]) == (False, f"{first} {second}")
    assert form.grade(["a"]) == form.grade(["a", []]) == (False, second)
    assert form.grade(["I do not know yet", ["a", "b"]])[1].startswith("Start with 01")
    assert form.grade(["a", ["a"]])[1].startswith("Start with 04")
    assert form.grade(["a", {"b", "a"}])[0]
    for strange_answer in (None, 7, Hostile(), [Hostile(), Hostile()]):
        assert not form.grade(strange_answer)[0]
    said = ["? Where should you start?", "? Of 01_generate?", "    ( ) a"]
    assert repr(form).splitlines()[:3] == said
