"""Interview questions: unambiguous, computed, linked; the draw and the score."""

import json
import math
import re
from collections import Counter
from pathlib import Path

import nbformat
import numpy as np
import pytest
from bs4 import BeautifulSoup
from docutils.nodes import make_id
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.appendix import interview
from firsttoken.appendix.interview import (
    QUESTIONS,
    Choice,
    Explain,
    Number,
    draw_questions,
    score_by_topic,
)
from firsttoken.appendix.interview.page import N_DRAWN, mock_interview
from firsttoken.appendix.interview.question import MINUTES
from firsttoken.appendix.interview.questions import costs
from firsttoken.page.exercises.page import script_tag, section_link, style_tag
from firsttoken.page.start import CHAPTERS
from test_chapters import ASIDE, TACTLESS

NUMBERS = [question for question in QUESTIONS if isinstance(question, Number)]
CHOICES = [question for question in QUESTIONS if isinstance(question, Choice)]
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"

# Worked again by hand, from what the question itself says; nothing here calls the library.
KAPPA_8B = 2 * 32 * 8 * 128 * 2  # bytes of bf16 cache a token takes
KAPPA_70B = 2 * 80 * 8 * 128 * 2
P_8B, P_70B = 8.030e9, 70.554e9
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


def test_enough_questions_of_every_kind_for_every_chapter():
    assert len(QUESTIONS) >= 80
    assert set(Counter(q.chapter for q in QUESTIONS)) == set(CHAPTERS)
    for stem in CHAPTERS:
        here = [q for q in QUESTIONS if q.chapter == stem]
        assert len(here) >= 3
        assert {type(q) for q in here} == {Number, Choice, Explain}, stem
        assert len({q.level for q in here}) >= 2, stem
    assert all(n >= 20 for n in Counter(q.level for q in QUESTIONS).values())


def test_no_question_twice_and_all_in_the_order_of_the_book():
    assert len(set(names(QUESTIONS))) == len({q.text for q in QUESTIONS}) == len(QUESTIONS)
    # The page knows a question by this name; an interview under way is kept by the other.
    assert len({q.quiz.quiz_id for q in QUESTIONS}) == len(QUESTIONS)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name) for name in names(QUESTIONS))
    stems = [question.chapter for question in QUESTIONS]
    assert stems == sorted(stems)


def test_the_sections_to_read_exist():
    there = {stem: headings(stem) for stem in CHAPTERS}
    for question in QUESTIONS:
        assert there[question.chapter].count(question.section) == 1, question.id
        link = section_link(question.about, question.section)
        assert f'data-page="{question.chapter}.html#{make_id(question.section)}"' in link


def test_the_voice_of_the_book():
    for question in QUESTIONS:
        for text in texts(question):
            assert not TACTLESS.search(text) and not ASIDE.search(text), question.id
            assert "$" not in text, "formulas are plain text: nothing is typeset in a template"
            assert text == text.strip() and "  " not in text, question.id
        lines = question.code.splitlines()
        assert len(lines) <= 6 and all(len(line) <= 72 for line in lines), question.id


def test_each_number_is_what_one_gets_by_hand_and_three_digits_of_it_are_enough():
    """No rounding is ambiguous: the answer to three digits is right, in any of its units."""
    assert set(BY_HAND) == set(names(NUMBERS))
    for question in NUMBERS:
        answer, right = question.answer(), BY_HAND[question.id]
        near = pytest.approx(right, rel=1e-3 if question.rtol else 1e-12)
        assert answer == near, question.id
        for typed in (right, f"{answer:.3g}", f"{answer:.3g} {question.unit}"):
            assert question.quiz.grade(typed)[0], (question.id, typed)
        within = f"To within {100 * question.rtol:g} %."
        assert question.quiz.question.endswith(within if question.rtol else "the exact number.")


def test_every_slip_is_wrong_and_hears_why():
    for question in NUMBERS:
        values = [float(wrong()) for wrong, _ in question.slips]
        assert values, question.id
        for value, (_, message) in zip(values, question.slips, strict=True):
            right, said = question.quiz.grade(value)
            assert not right and message in said, question.id
            assert message in question.quiz.grade(f"{value:.4g}")[1], question.id
        # Two slips that give the same number could not have a message each.
        assert len({f"{value:.3g}" for value in values}) == len(values), question.id


def test_the_library_answers():
    """A change of a formula changes the answer: nothing is typed."""
    asked = next(q for q in NUMBERS if q.id == "cache-70b-token")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "kv_cache_bytes", lambda *a, **k: 1.0)
        assert asked.answer() == 1.0
    assert asked.answer() == BY_HAND["cache-70b-token"]


def test_one_option_is_right_and_each_wrong_one_hears_why():
    for question in CHOICES:
        right, said = question.quiz.grade(question.right)
        assert right and question.model_answer in said, question.id
        assert 3 <= len(question.wrong) <= 4, question.id
        for option, why in question.wrong:
            assert question.quiz.grade(option) == (False, f"Not yet. {why}"), question.id
        assert len({why for _, why in question.wrong}) == len(question.wrong), question.id


def test_the_right_option_does_not_show_by_its_length_or_place():
    """By chance it would be the longest one time in four, and in each place as often."""
    longest = sum(len(q.right) > max(len(option) for option, _ in q.wrong) for q in CHOICES)
    assert longest <= 0.4 * len(CHOICES)
    places = Counter(q.quiz._spec["answers"][0] for q in CHOICES)
    assert max(places.values()) <= 0.5 * len(CHOICES)


@given(seed=st.integers(0, 10**6), n=st.integers(0, 130), data=st.data())
def test_every_chapter_gives_one_before_any_gives_a_second(seed, n, data):
    pool = data.draw(st.lists(st.sampled_from(QUESTIONS), unique=True))
    before = list(pool)
    drawn = draw_questions(pool, n, np.random.default_rng(seed))
    assert pool == before, "the pool is left alone"
    assert len(drawn) == min(n, len(pool)) == len(set(names(drawn)))
    assert set(names(drawn)) <= set(names(pool))
    assert [q.level for q in drawn] == sorted(q.level for q in drawn)
    taken = Counter(q.chapter for q in drawn)
    left = Counter(q.chapter for q in pool) - taken
    # Who could still give has given no less than anybody else, up to one.
    for stem in left:
        assert taken[stem] >= max(taken.values(), default=0) - 1
    assert names(draw_questions(pool, n, np.random.default_rng(seed))) == names(drawn)


def test_every_question_is_drawn_as_often():
    """Of four of one chapter, in each of the places: a shuffle that leaves some out shows."""
    four = [q for q in QUESTIONS if q.chapter == "04_kv_cache"][:4]
    rng = np.random.default_rng(0)
    first = Counter(draw_questions(four, 1, rng)[0].id for _ in range(800))
    assert [first[q.id] for q in four] == pytest.approx([200] * 4, abs=5 * math.sqrt(150))


@given(shares=st.lists(st.floats(0, 1), max_size=len(QUESTIONS)))
def test_no_point_is_lost(shares):
    drawn = QUESTIONS[: len(shares)]
    rows = score_by_topic(drawn, shares)
    assert sum(row.points for row in rows) == pytest.approx(sum(shares))
    assert sum(row.n_questions for row in rows) == len(drawn)
    assert sum(len(row.missed) for row in rows) == sum(share < 1 for share in shares)


def test_what_is_not_whole_is_missed():
    shares = [1, 0.99, 0, 1.0]
    (row,) = score_by_topic([q for q in QUESTIONS if q.chapter == "04_kv_cache"][:4], shares)
    asked = [q for q in QUESTIONS if q.chapter == "04_kv_cache"]
    assert row.missed == (asked[1], asked[2])
    assert score_by_topic(QUESTIONS[:1], [1])[0].missed == ()


# The page; what it does in a browser is in tests/check/browser/test_interview.py.


def parsed(shown) -> BeautifulSoup:
    return BeautifulSoup(shown._repr_html_(), "html.parser")


def test_the_page_has_every_part_that_its_script_looks_for():
    page = parsed(mock_interview())
    script = (Path(interview.__file__).parent / "interview.js").read_text()
    named = set(re.findall(r"""find\("([^"]+)"\)|"(\.ft-[a-z-]+)"(?=.*\.map\(find\))""", script))
    found = {one or other for one, other in named}
    assert len(found) >= 20
    for selector in found:
        assert len(page.select(selector)) == 1, selector
    assert json.loads(page.select_one(".ft-interview")["data-interview"]) == {
        "n": N_DRAWN,
        "minutes": {str(level): minutes for level, minutes in MINUTES.items()},
    }


def test_the_page_is_as_it_was_looked_at():
    """Without its styles, scripts and questions; mock_interview.html changes with it."""
    page = parsed(mock_interview())
    for part in page.select("style, script, template, .ft-reading"):
        part.decompose()
    stored = Path(__file__).with_name("mock_interview.html").read_text("utf-8")
    assert page.prettify() == stored


def test_the_questions_of_a_chapter_stand_on_its_page():
    asked = [question for question in QUESTIONS if question.chapter == "04_kv_cache"]
    shown = interview.chapter("04_kv_cache")
    assert repr(shown).split("\n? ") == "\n".join(repr(q.quiz) for q in asked).split("\n? ")
    page = shown._repr_html_()
    parts = [
        f'<p class="ft-about">Difficulty {q.level}, {q.minutes} minutes</p>{q.quiz.html()}'
        for q in asked
    ]
    style = style_tag("page/exercises/exercises.css", "appendix/interview/interview.css")
    script = script_tag("page/exercises/store.js", "page/exercises/quizzes.js")
    assert page == f'<div class="ft-questions">{style}{"".join(parts)}{script}</div>'
    with pytest.raises(ValueError, match=r"^stem must be"):
        interview.chapter("04")


def test_sizes_that_questions_name():
    """As published: billions of parameters, layers, query and KV heads, numbers a head."""
    known = {
        "Llama-3.1-8B has 8.03 billion parameters, 32 layers, 32 query heads, 8 KV heads and heads "
        "of 128 numbers.",
        "Llama-3.1-70B has 70.55 billion parameters, 80 layers, 64 query heads, 8 KV heads and "
        "heads of 128 numbers.",
        "Llama-2-13B has 13.02 billion parameters, 40 layers, 40 KV heads and heads of 128 "
        "numbers.",
        "An H100 (SXM) has 80 GB of memory, reads 3.35 TB/s and computes 989 TFLOP/s in dense "
        "bf16.",
    }
    texts = " ".join(question.text for question in QUESTIONS)
    told = re.findall(
        r"\S+ has [\d.]+ billion parameters, .*? numbers\.|An H100 \(SXM\) has .*? bf16\.", texts
    )
    assert set(told) == known


def test_the_boxes_are_the_chapters_and_the_levels():
    page = parsed(mock_interview())
    for name, values in (
        ("chapter", list(CHAPTERS)),
        ("level", sorted({str(question.level) for question in QUESTIONS})),
    ):
        boxes = page.select(f'input[type="checkbox"][name="{name}"]')
        assert [box["value"] for box in boxes] == values
        assert all(box.has_attr("checked") for box in boxes)
    assert boxes[0].parent.text == "1, a fact and one step"


def test_the_appendix_shows_every_chapter():
    notebook = nbformat.read(NOTEBOOKS / "B_interview.ipynb", as_version=4)
    code = "\n".join(cell.source for cell in notebook.cells)
    assert re.findall(r'interview\.chapter\("(\w+)"\)', code) == list(CHAPTERS)
