"""What a reader sees: the questions of a chapter, and the mock interview."""

import html
import json

from firsttoken.appendix.interview.question import MINUTES, InterviewQuestion
from firsttoken.appendix.interview.questions import QUESTIONS
from firsttoken.checks import check_choice
from firsttoken.page.exercises.page import script_tag, section_link, style_tag
from firsttoken.page.start import CHAPTERS

N_DRAWN = 10
_LEVELS = {
    1: "1, a fact and one step",
    2: "2, two ideas",
    3: "3, a decision, a diagnosis, or several steps",
}


class ChapterQuestions:
    """All questions about one chapter; made by `chapter`."""

    def __init__(self, questions: list[InterviewQuestion]):
        self.questions = questions

    def __repr__(self) -> str:
        return "\n".join(repr(question.quiz) for question in self.questions)

    def _repr_html_(self) -> str:
        parts = "".join(
            f'<p class="ft-about">Difficulty {question.level}, {question.minutes} minutes</p>'
            f"{question.quiz.html()}"
            for question in self.questions
        )
        style = style_tag("page/exercises/exercises.css", "appendix/interview/interview.css")
        script = script_tag("page/exercises/store.js", "page/exercises/quizzes.js")
        return f'<div class="ft-questions">{style}{parts}{script}</div>'


def chapter(stem: str) -> ChapterQuestions:
    """Return all interview questions about a chapter, to be answered in the page.

    Raises: ValueError for a stem that is no chapter's.

    >>> print(repr(chapter("04_kv_cache")).splitlines()[0][:19])
    ? Llama-3.1-70B has
    """
    check_choice("stem", stem, CHAPTERS)
    return ChapterQuestions([question for question in QUESTIONS if question.chapter == stem])


class MockInterview:
    """Ten questions drawn by topic, against the clock; made by `mock_interview`."""

    def __repr__(self) -> str:
        return (
            f"A mock interview of {N_DRAWN} out of {len(QUESTIONS)} questions, drawn in the page: "
            "JupyterLab and the site show it."
        )

    def _repr_html_(self) -> str:
        chapters = "".join(
            _checkbox("chapter", stem, about.label) for stem, about in CHAPTERS.items()
        )
        levels = "".join(_checkbox("level", str(n), text) for n, text in _LEVELS.items())
        # The interview shows copies of what is in the template; JupyterLab opens a notebook only
        # from a link that came with the output itself, so the links stand beside it.
        pool = "".join(map(_card, QUESTIONS))
        reading = "".join(
            f'<li data-question="{q.id}">{section_link(q.about, q.section)}</li>' for q in QUESTIONS
        )
        settings = html.escape(json.dumps({"n": N_DRAWN, "minutes": dict(MINUTES)}))
        style = style_tag("page/exercises/exercises.css", "appendix/interview/interview.css")
        script = script_tag(
            "page/exercises/store.js",
            "page/exercises/quizzes.js",
            "appendix/interview/interview.js",
        )
        return (
            f'<div class="ft-exercise ft-interview" data-interview="{settings}"'
            f' data-lm-suppress-shortcuts="true">{style}'
            '<p class="ft-off">The mock interview needs scripts. The questions below do not.</p>'
            '<form class="ft-setup" method="dialog" autocomplete="off" hidden>'
            f"<fieldset><legend>Topics</legend>"
            '<p><button type="button" class="ft-all">All</button>'
            '<button type="button" class="ft-none">None</button></p>'
            f'<div class="ft-topics">{chapters}</div></fieldset>'
            f"<fieldset><legend>Difficulty</legend>{levels}</fieldset>"
            '<p role="status" class="ft-matching"></p>'
            '<button type="submit" class="ft-start">Start the interview</button></form>'
            '<div class="ft-run" hidden>'
            '<div class="ft-bar-line"><span class="ft-where" role="heading" aria-level="3"'
            ' tabindex="-1"></span>'
            '<span class="ft-clock"><span class="ft-time" role="timer"></span>'
            '<button type="button" class="ft-clock-switch"></button></span></div>'
            '<div class="ft-stage"></div><p class="ft-steps">'
            '<button type="button" class="ft-back">Back</button>'
            '<button type="button" class="ft-next"></button>'
            '<button type="button" class="ft-end">End now</button></p></div>'
            '<div class="ft-report" hidden><p class="ft-result" role="heading" aria-level="3"'
            ' tabindex="-1"></p><p class="ft-used"></p><div class="ft-scroll"><table><caption>'
            "Score by topic</caption>"
            '<thead><tr><th scope="col">Topic</th><th scope="col">Points</th>'
            '<th scope="col">Read again</th></tr></thead><tbody></tbody></table></div>'
            '<div class="ft-answers"></div>'
            '<button type="button" class="ft-again">New interview</button></div>'
            f'<ul class="ft-reading" hidden>{reading}</ul>'
            f'<template class="ft-pool">{pool}</template>{script}</div>'
        )


def mock_interview() -> MockInterview:
    """Return the mock interview; the page draws, asks, keeps the time and the score."""
    return MockInterview()


def _checkbox(name: str, value: str, label: str) -> str:
    return (
        f'<label class="ft-option"><input type="checkbox" name="{name}" value="{value}" checked>'
        f"<span>{html.escape(label)}</span></label>"
    )


def _card(question: InterviewQuestion) -> str:
    return (
        f'<article data-question="{question.id}" data-chapter="{question.chapter}"'
        f' data-label="{html.escape(question.about.label)}" data-level="{question.level}">'
        f"{question.quiz.html()}</article>"
    )
