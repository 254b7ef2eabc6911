"""Interview questions: unambiguous, computed, linked; the draw and the score."""

import math
import re
from collections import Counter
from pathlib import Path

import nbformat
import numpy as np
import pytest
from docutils.nodes import make_id
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.exercises.page import section_link
from firsttoken.interview import QUESTIONS, Choice, Explain, Number, chapter, draw, score_by_topic
from firsttoken.interview.page import N_DRAWN, mock_interview
from firsttoken.interview.questions import costs
from firsttoken.start import CHAPTERS
from test_chapters import ASIDE, TACTLESS

NUMBERS = [question for question in QUESTIONS if isinstance(question, Number)]
CHOICES = [question for question in QUESTIONS if isinstance(question, Choice)]
EXPLAINS = [question for question in QUESTIONS if isinstance(question, Explain)]
NOTEBOOKS = Path(__file__).parents[1] / "notebooks"

# Worked again by hand, from what the question itself says; nothing here calls the library.
KAPPA_8B = 2 * 32 * 8 * 128 * 2  # bytes of bf16 cache a token takes
KAPPA_70B = 2 * 80 * 8 * 128 * 2
P_8B, P_70B, P_13B = 8.030e9, 70.55e9, 13.016e9
BY_HAND = {
    "start-training-tokens": 15 * 3,
    "start-flops-v3": 2 * 36.6,
    "generate-passes": 1 + 11,
    "metrics-e2e": 400 + 8 * 50,
    "metrics-little": 12 * 8,
    "metrics-queue": 0.9 * 0.5 / (2 * 0.1),
    "metrics-pooled-itl": (100 + 199 * 20) / 200,
    "roofline-ridge": 989 / 4.8,
    "roofline-gqa-intensity": 8,
    "roofline-experts": 8 * (1 - 0.75**8),
    "roofline-attention-overtakes": 2 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) / 16384,
    "cache-70b-token": KAPPA_70B,
    "cache-70b-batch": KAPPA_70B * 64 * 8192 / 1e9,
    "cache-fits": math.floor((72e9 - 2 * P_8B) / (KAPPA_8B * 8192)),
    "cache-q8": 16 / 8.5,
    "throughput-8b-bound": 3.35e12 / (2 * P_8B),
    "throughput-cache-equals-weights": 2 * P_8B / (KAPPA_8B * 8192),
    "throughput-ceiling": 3.35e12 / (KAPPA_8B * 4096),
    "throughput-dollars": 2.5 / (3600 * 0.6 * 2500) * 1e6,
    "attention-gemma-cache": (8 * 32768 + 40 * 1024) * 2 * 8 * 256 * 2 / 1e9,
    "attention-mla-token": 61 * (512 + 64) * 2,
    "attention-gqa-memory": (26.03 + 2 * 40 * 40 * 128 * 2 * 65536 / 1e9)
    / (22.7 + 2 * 40 * 8 * 128 * 2 * 65536 / 1e9),
    "flash-score-matrix": 32 * 16384**2 * 2 / 1e9,
    "flash-io": (2 * 8192 + 64 * 2 * 8192) * 128 * 2 / 1e6,
    "recurrent-hybrid-cache": 12 * 2 * 2 * 256 * 2 * 262144 / 1e9,
    "recurrent-crossover": (524288 * 4 + 32768 * 2) / (2 * 2 * 256 * 2),
    "quantization-q4-file": 8.03 * 4.5 / 8,
    "quantization-outlier-step": 50 / 127,
    "quantization-ridge-moves": 989 / 3.35 / 4,
    "quantization-batch-speedup": (16.06 + 64 * 1.0737) / (4.015 + 64 * 1.0737),
    "pruning-depth": 8.03 - (8.03 - 2 * 128256 * 4096 / 1e9) / 4,
    "pruning-repair-cost": (24 + 30) / 24,
    "sampling-temperature": 1 / (1 + math.exp(-4)),
    "sampling-k-then-p": 1,
    "sampling-min-p-gap": 0.7 * math.log(10),
    "speculative-alpha": 0.5 + 0.2 + 0.1,
    "speculative-expected": (1 - 0.8**5) / 0.2,
    "speculative-speedup": (1 + 0.8 + 0.64 + 0.512) / 1.6,
    "drafts-two-tries": 1 + 0.6 + 0.2,
    "drafts-best-gamma": max(range(20), key=lambda g: (1 - 0.5 ** (g + 1)) / 0.5 / (1 + g * 0.15)),
    "batching-static-share": 100 * 400 / (4 * 270),
    "batching-prefill-stall": (2 * 12.85e9 * 8192 + 2 * 40 * 5120 * 8192**2) / 989e12 * 1e3,
    "batching-cache-in-flight": 100 * 3000 * KAPPA_8B / 1e9,
    "paging-last-block": 100 * 63 / 352,
    "paging-big-blocks": 127.5 * KAPPA_8B / 1e6,
    "paging-parallel-samples": 62 + 4 * 13,
    "paging-prefix-hit": 2100 - 125 * 16,
    "paging-swap-or-recompute": 0.142 / (8192 * KAPPA_8B / 64e9),
    "parallel-ring-bytes": 2 * 7 / 8,
    "parallel-tp-link-time": 160 * 2 * 7 / 8 * 64 * 8192 * 2 / 450e9 * 1e3,
    "parallel-two-cards": (144e9 - 2 * P_70B) / KAPPA_70B / 1e3,
    "parallel-bubble": 100 * 3 / 11,
    "engine-adapter": 32 * 16 * (8192 + 5120 + 5120 + 8192) * 2 / KAPPA_8B,
    "engine-budget-steps": math.ceil(2000 / 464),
}


def names(questions):
    return [question.id for question in questions]


def texts(question) -> list[str]:
    """Return all that a reader may see of a question."""
    found = [question.text, question.model_answer]
    if isinstance(question, Number):
        found += [message for _, message in question.slips]
    if isinstance(question, Choice):
        found += [question.right, *(text for pair in question.wrong for text in pair)]
    if isinstance(question, Explain):
        found += question.points
    return found


def headings(stem: str) -> list[str]:
    """Return the headings of a chapter's sections, further parts left out: those are folded."""
    notebook = nbformat.read(NOTEBOOKS / f"{stem}.ipynb", as_version=4)
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            found += re.findall(r"^###? (?!Further:)(.+)$", cell.source, re.MULTILINE)
    return found


# What every question keeps.


def test_enough_questions_of_every_kind_for_every_chapter():
    assert len(QUESTIONS) >= 80
    assert set(Counter(q.chapter for q in QUESTIONS)) == set(CHAPTERS)
    for stem in CHAPTERS:
        here = [q for q in QUESTIONS if q.chapter == stem]
        assert len(here) >= 3
        assert {type(q) for q in here} == {Number, Choice, Explain}, stem
        assert len({q.level for q in here}) >= 2, stem
    assert all(n >= 20 for n in Counter(q.level for q in QUESTIONS).values())


def test_no_question_twice():
    assert len(set(names(QUESTIONS))) == len(QUESTIONS)
    assert len({q.text for q in QUESTIONS}) == len(QUESTIONS)
    # The page knows a question by this name; an interview under way is kept by the other.
    assert len({q.quiz.quiz_id for q in QUESTIONS}) == len(QUESTIONS)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name) for name in names(QUESTIONS))


def test_questions_stand_in_the_order_of_the_book():
    stems = [question.chapter for question in QUESTIONS]
    assert stems == sorted(stems)


@pytest.mark.parametrize("question", QUESTIONS, ids=names(QUESTIONS))
def test_the_section_to_read_exists(question):
    assert headings(question.chapter).count(question.section) == 1
    link = section_link(question.about, question.section)
    assert f'data-page="{question.chapter}.html#{make_id(question.section)}"' in link


@pytest.mark.parametrize("question", QUESTIONS, ids=names(QUESTIONS))
def test_the_voice_of_the_book(question):
    for text in texts(question):
        assert not TACTLESS.search(text)
        assert not ASIDE.search(text)
        assert "$" not in text, "formulas are plain text: nothing is typeset in a template"
        assert text == text.strip() and "  " not in text
    assert len(question.code.splitlines()) <= 6
    assert all(len(line) <= 72 for line in question.code.splitlines())


# Numbers.


@pytest.mark.parametrize("question", NUMBERS, ids=names(NUMBERS))
def test_the_number_is_what_one_gets_by_hand(question):
    answer = question.answer()
    assert answer == pytest.approx(BY_HAND[question.id], rel=max(question.rtol / 3, 1e-12))
    assert question.quiz.grade(BY_HAND[question.id])[0]


def test_all_numbers_are_worked_by_hand():
    assert set(BY_HAND) == set(names(NUMBERS))


@pytest.mark.parametrize("question", NUMBERS, ids=names(NUMBERS))
def test_three_digits_are_enough(question):
    """No rounding is ambiguous: the answer to three digits is right, in any of its units."""
    answer = question.answer()
    assert question.quiz.grade(f"{answer:.3g}")[0]
    assert question.quiz.grade(f"{answer:.3g} {question.unit}")[0]
    stated = f"To within {100 * question.rtol:g} %." if question.rtol else "Give the exact number."
    assert question.quiz.question.endswith(stated)


@pytest.mark.parametrize("question", NUMBERS, ids=names(NUMBERS))
def test_every_slip_is_wrong_and_hears_why(question):
    values = [float(wrong()) for wrong, _ in question.slips]
    assert len(question.slips) >= 1
    for value, (_, message) in zip(values, question.slips, strict=True):
        right, said = question.quiz.grade(value)
        assert not right and message in said
        assert message in question.quiz.grade(f"{value:.4g}")[1]
    # Two slips that give the same number could not have a message each.
    assert len({f"{value:.3g}" for value in values}) == len(values)


def test_the_library_answers():
    """A change of a formula changes the answer: nothing is typed."""
    asked = next(q for q in NUMBERS if q.id == "cache-70b-token")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "kv_cache_bytes", lambda *a, **k: 1.0)
        assert asked.answer() == 1.0
    assert asked.answer() == BY_HAND["cache-70b-token"]


def test_the_most_common_slips_have_a_message():
    """GiB for GB, and keys without values, wherever the question is one of cache or file sizes."""
    sizes = [q for q in NUMBERS if q.unit == "GB"]
    assert len(sizes) >= 5
    for question in sizes:
        right, said = question.quiz.grade(question.answer() * 1e9 / 2**30)
        assert not right and "GiB" in said, question.id
    tokens = [q for q in NUMBERS if q.id.startswith("cache-70b")]
    for question in tokens:
        right, said = question.quiz.grade(question.answer() / 2)
        assert not right and "Keys and values" in said


# Choices and explanations.


@pytest.mark.parametrize("question", CHOICES, ids=names(CHOICES))
def test_one_option_is_right_and_each_wrong_one_hears_why(question):
    right, said = question.quiz.grade(question.right)
    assert right and question.model_answer in said
    assert 3 <= len(question.wrong) <= 4
    for option, why in question.wrong:
        assert question.quiz.grade(option) == (False, f"Not yet. {why}")
    assert len({why for _, why in question.wrong}) == len(question.wrong)


def test_the_right_option_does_not_show_by_its_length_or_place():
    """By chance it would be the longest one time in four, and in each place as often."""
    longest = sum(len(q.right) > max(len(option) for option, _ in q.wrong) for q in CHOICES)
    assert longest <= 0.4 * len(CHOICES)
    places = Counter(q.quiz._spec["answers"][0] for q in CHOICES)
    assert max(places.values()) <= 0.5 * len(CHOICES)


@pytest.mark.parametrize("question", EXPLAINS, ids=names(EXPLAINS))
def test_an_explanation_has_points_and_a_model_answer(question):
    assert 3 <= len(question.points) <= 5
    assert len(question.model_answer) > 2 * max(map(len, question.points))
    assert question.quiz.grade(list(question.points))[0]
    assert question.quiz.grade(list(question.points[:-1])) == (
        False,
        f"{len(question.points) - 1} of {len(question.points)} points.",
    )


# The draw.


@given(seed=st.integers(0, 10**6), n=st.integers(0, 130), data=st.data())
def test_every_chapter_gives_one_before_any_gives_a_second(seed, n, data):
    pool = data.draw(st.lists(st.sampled_from(QUESTIONS), unique=True))
    before = list(pool)
    drawn = draw(pool, n, np.random.default_rng(seed))
    assert pool == before, "the pool is left alone"
    assert len(drawn) == min(n, len(pool)) == len(set(names(drawn)))
    assert set(names(drawn)) <= set(names(pool))
    assert [q.level for q in drawn] == sorted(q.level for q in drawn)
    taken = Counter(q.chapter for q in drawn)
    left = Counter(q.chapter for q in pool) - taken
    # Who could still give has given no less than anybody else, up to one.
    for stem in left:
        assert taken[stem] >= max(taken.values(), default=0) - 1
    assert names(draw(pool, n, np.random.default_rng(seed))) == names(drawn)


def test_a_draw_without_regard_to_topics_is_not_balanced():
    """So the law above would notice it."""
    rng = np.random.default_rng(0)
    drawn = [QUESTIONS[i] for i in rng.permutation(len(QUESTIONS))[:10]]
    assert len({q.chapter for q in drawn}) < 10


def test_every_question_gets_its_turn():
    """Each is drawn with probability above 0.06; 400 draws miss one of 111 with p < 2e-9."""
    rng = np.random.default_rng(1)
    seen = {q.id for _ in range(400) for q in draw(QUESTIONS, N_DRAWN, rng)}
    assert seen == set(names(QUESTIONS))


def test_bad_draws_are_refused():
    with pytest.raises(ValueError, match="n must not be negative, got -1"):
        draw(QUESTIONS, -1, np.random.default_rng(0))


# The score.


def test_the_score():
    first, second, third = QUESTIONS[0], QUESTIONS[1], QUESTIONS[-1]
    rows = score_by_topic([third, first, second], [0.25, 1, 0])
    assert [(row.chapter, row.n_questions, row.points) for row in rows] == [
        ("00_start", 2, 1),
        ("17_engine", 1, 0.25),
    ]
    assert [names(row.missed) for row in rows] == [[second.id], [third.id]]


@given(shares=st.lists(st.floats(0, 1), max_size=len(QUESTIONS)))
def test_no_point_is_lost(shares):
    drawn = QUESTIONS[: len(shares)]
    rows = score_by_topic(drawn, shares)
    assert sum(row.points for row in rows) == pytest.approx(sum(shares))
    assert sum(row.n_questions for row in rows) == len(drawn)
    assert sum(len(row.missed) for row in rows) == sum(share < 1 for share in shares)


@pytest.mark.parametrize("shares", [[1], [1, 2], [0, -0.1]])
def test_bad_shares_are_refused(shares):
    with pytest.raises(ValueError, match="shares must"):
        score_by_topic(QUESTIONS[:2], shares)


# The page; what it does in a browser is in tests/browser/test_interview.py.


def test_bad_questions_are_refused():
    good = {"id": "a-b", "chapter": "00_start", "section": "s", "level": 1, "text": "?"}
    for change, message in (
        ({"chapter": "18_more"}, "chapter of a-b must be one of"),
        ({"level": 4}, "level of a-b must be 1, 2 or 3; got 4"),
        ({"section": " "}, "section of 'a-b' must be text"),
    ):
        with pytest.raises(ValueError, match=message):
            Explain(**{**good, **change}, worked="w", points=("a", "b", "c"))


def test_a_chapter_shows_all_of_its_questions():
    html = chapter("12_speculative")._repr_html_()
    here = [q for q in QUESTIONS if q.chapter == "12_speculative"]
    assert html.count('class="ft-exercise ft-quiz"') == len(here)
    assert html.count("<script>") == html.count("<style>") == 1
    with pytest.raises(ValueError, match="stem must be a chapter's"):
        chapter("12")


def test_the_mock_interview_holds_every_question():
    html = mock_interview()._repr_html_()
    for question in QUESTIONS:
        assert html.count(f'data-question="{question.id}"') == 2, "the question and its link"


def test_the_appendix_shows_every_chapter():
    notebook = nbformat.read(NOTEBOOKS / "B_interview.ipynb", as_version=4)
    shown = re.findall(
        r'interview\.chapter\("(\w+)"\)', "\n".join(c.source for c in notebook.cells)
    )
    assert shown == list(CHAPTERS)
