"""Rubrics: explanations that the reader writes, compares with a model answer, and grades."""

from collections.abc import Sequence
from typing import Any

from firsttoken.page.exercises.arguments import require_text
from firsttoken.page.exercises.page import markup
from firsttoken.page.exercises.quizzes import Quiz
from firsttoken.page.exercises.text import show


class Rubric(Quiz):
    """A question answered in words, with the points that an answer must have; made by `rubric`."""

    def _grade(self, value: Any) -> tuple[str, list[int]]:
        chosen = value if isinstance(value, list | tuple | set | frozenset) else [value]
        n = sum(point in [str(c) for c in chosen] for point in self._spec["options"])
        verdict = "open" if n == 0 else "right" if n == len(self._spec["options"]) else "partly"
        return verdict, [self._spec["counts"][n]]

    def _answer_fold(self) -> str:
        return ""  # the model answer is in a fold of its own


def rubric(question: str, points: Sequence[str], answer: str, *, code: str = "") -> Rubric:
    """Return a question that the reader answers in words and grades by ticking points.

    `answer` is a model answer; it and the points are in a fold, for after one's own answer. Right
    is an answer with all of the points.

    Raises: ValueError for a question, an answer or a point without text, for fewer than two
            points, and for two that are equal.

    >>> asked = rubric("Why is decode slow?", ["weights read", "one token"], "It reads much.")
    >>> asked.grade(["one token"]), asked.grade(["one token", "weights read"])
    ((False, '1 of 2 points.'), (True, 'All 2 points.'))
    """
    require_text("question", question)
    require_text("answer", answer)
    points = list(points)
    for i, point in enumerate(points):
        require_text(f"points[{i}]", point)
    if len(points) < 2 or len(set(points)) < len(points):
        raise ValueError(f"points must be two or more different texts; got {show(points)}")
    total = len(points)
    messages = ["Open the model answer and tick the points that your answer has."]
    messages += [f"{n} of {total} points." for n in range(1, total)] + [f"All {total} points."]
    counts = list(range(total + 1))
    spec = {"kind": "rubric", "options": points, "counts": counts, "empty": 0}
    ticks = "".join(
        f'<label class="ft-option"><input type="checkbox" name="point" value="{i}">'
        f"<span>{markup(point)}</span></label>"
        for i, point in enumerate(points)
    )
    body = (
        '<label class="ft-own"><span>Your answer, in a few sentences</span>'
        '<textarea name="answer" rows="4"></textarea></label>'
        '<details class="ft-rubric"><summary>Compare with a model answer</summary>'
        f"<div>{markup(answer)}</div>"
        f"<fieldset><legend>Tick the points that your answer has</legend>{ticks}</fieldset>"
        "</details>"
    )
    return Rubric(question, spec, messages, body, answer, code)
