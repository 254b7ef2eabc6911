"""The placement quiz: questions that say with which chapter to start."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from firsttoken.page.exercises.arguments import require_text
from firsttoken.page.exercises.page import chapter_link, markup
from firsttoken.page.exercises.quizzes import Quiz, choice_quiz
from firsttoken.page.exercises.text import first_of, show
from firsttoken.page.start import CHAPTERS, Chapter


@dataclass(frozen=True)
class Question:
    """A question of a placement quiz: `chapter` teaches its answer, `why` gives the reason."""

    text: str
    options: Sequence[Any]
    answer: Any
    chapter: str
    why: str


class Placement(Quiz):
    """A form of questions that says where to start in the book; made by `placement`."""

    def __init__(self, questions: Sequence[Question], parts: Sequence[Quiz]):
        self._chapters = [CHAPTERS[question.chapter] for question in questions]
        self._parts = parts
        messages: list[str] = []
        lines: list[dict[str, int]] = []
        for i, (asked, chapter) in enumerate(zip(questions, self._chapters, strict=True), 1):
            reason = f"{chapter.label}: {asked.why}"
            lines.append({"right": len(messages), "wrong": len(messages) + 1})
            messages += [f"✓ Question {i} is right. {reason}", f"– Question {i}: not yet. {reason}"]
        start = {"": "All of it is right. Go to the chapter whose question you want answered."}
        start |= {chapter.stem: _advice(chapter) for chapter in self._chapters}
        still_open = [f"Question {i} is still open." for i in range(1, len(questions) + 1)]
        still_open_at = range(len(messages) + len(start), len(messages) + len(start) + len(parts))
        spec = {
            "kind": "placement",
            "questions": [
                {k: q._spec[k] for k in ("answers", "explain", "several")} for q in parts
            ],
            "chapters": [chapter.stem for chapter in self._chapters],
            "order": sorted(range(len(questions)), key=lambda i: questions[i].chapter),
            "lines": lines,
            "start": {stem: len(messages) + i for i, stem in enumerate(start)},
            "open": list(still_open_at),
            "empty": still_open_at[0],
        }
        body = "".join(
            f"<fieldset><legend>{i}. {markup(part.question)}</legend>{part._body}</fieldset>"
            for i, part in enumerate(parts, 1)
        )
        answers = " ".join(f"{i}. {part._answer.strip()}" for i, part in enumerate(parts, 1))
        messages += [*start.values(), *still_open]
        super().__init__("Where should you start?", spec, messages, body, answers)

    def _grade(self, value: Any) -> tuple[str, list[int]]:
        spec, given = self._spec, [*value, *[None] * len(self._parts)]
        verdicts = [part._grade(given[i])[0] for i, part in enumerate(self._parts)]
        still_open = [spec["open"][i] for i, v in enumerate(verdicts) if v == "open"]
        if still_open:
            return "open", still_open
        lines = [line[verdict] for line, verdict in zip(spec["lines"], verdicts, strict=True)]
        missed = [spec["chapters"][i] for i in spec["order"] if verdicts[i] == "wrong"]
        return ("placed" if missed else "right"), [spec["start"][first_of(missed)], *lines]

    def _message_html(self, message: str) -> str:
        text = markup(message)
        for chapter in self._chapters:
            text = text.replace(chapter.label, chapter_link(chapter, chapter.label))
        return text

    def __repr__(self) -> str:
        return "\n".join([f"? {self.question}", *map(repr, self._parts)])


def placement(questions: Sequence[Question]) -> Placement:
    """Return a form that says with which chapter to start: the first whose question is missed.

    Each question has the option "I do not know yet" as its last. `grade` takes one answer per
    question; it is right where all of them are.

    Raises: ValueError for no questions, a chapter that is not in the book, an answer that is no
            option, an empty reason.

    >>> cache = Question("Which grows?", ["weights", "cache"], "cache", "04_kv_cache", "It keeps.")
    >>> placement([cache]).grade(["weights"])
    (False, 'Start with 04 The KV cache. – Question 1: not yet. 04 The KV cache: It keeps.')
    """
    questions = list(questions)
    if not questions:
        raise ValueError("placement needs at least one question; got none")
    parts = []
    for i, question in enumerate(questions):
        if not isinstance(question, Question):
            raise ValueError(f"questions[{i}] must be a Question; got {show(question)}")
        require_text(f"text of questions[{i}]", question.text)
        require_text(f"why of questions[{i}]", question.why)
        if question.chapter not in CHAPTERS:
            known = ", ".join(CHAPTERS)
            raise ValueError(
                f"chapter of questions[{i}] must be one of {known}; got {show(question.chapter)}"
            )
        options = [*question.options, "I do not know yet"]
        parts.append(choice_quiz(question.text, options, question.answer, "", f"answer{i}"))
    return Placement(questions, parts)


def _advice(chapter: Chapter) -> str:
    if chapter.n_tasks:
        return f"Start with {chapter.label}."
    standing = [other for other in CHAPTERS.values() if other.n_tasks]
    later = [other.label for other in standing if other.stem > chapter.stem]
    instead = f"go on with {later[0]}" if later else "what stands before it, you know"
    return f"Start with {chapter.label}. It is not written yet; {instead}."
