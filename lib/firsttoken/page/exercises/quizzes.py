"""Quizzes: questions that the page itself answers, with or without a kernel."""

import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from firsttoken.page.exercises.arguments import (
    mistake_pairs,
    require_factor,
    require_text,
    require_tolerances,
)
from firsttoken.page.exercises.compare import as_number
from firsttoken.page.exercises.page import markup, script_tag, style_tag
from firsttoken.page.exercises.text import READER_ERRORS, show, with_unit
from firsttoken.page.exercises.typed_numbers import (
    BLANKS,
    MAX_TYPED,
    UNREADABLE,
    parse,
    typed_units,
    unknown_unit,
)
from firsttoken.page.exercises.values import EXACT, Target


class Quiz:
    """A question that the page itself answers, with or without a kernel; made by `quiz`."""

    def __init__(
        self,
        question: str,
        spec: dict,
        messages: list[str],
        body: str,
        answer: str,
        code: str = "",
        reveals: bool = False,
    ):
        self.question = question
        self._spec = spec
        self._messages = messages
        self._body = body
        self._answer = answer
        self._code = code
        self._reveals = reveals

    @property
    def quiz_id(self) -> str:
        """A name of the question that stays the same from run to run."""
        return hashlib.sha256(self.question.encode()).hexdigest()[:12]

    def grade(self, value: Any) -> tuple[bool, str]:
        """Return (right, message) for an answer, exactly as the page's script does.

        `value` is a number or the text typed; for options an option or a collection of them.
        """
        try:
            verdict, shown = self._grade(value)
        except READER_ERRORS:
            verdict, shown = "open", [self._spec["empty"]]
        return verdict == "right", " ".join(self._messages[i] for i in shown)

    def _grade(self, value: Any) -> tuple[str, list[int]]:
        spec = self._spec
        if spec["kind"] == "number":
            return self._grade_number(value)
        chosen = value if isinstance(value, list | tuple | set | frozenset) else [value]
        labels = [str(c) for c in chosen if c is not None]
        picked = [i for i, option in enumerate(spec["options"]) if option in labels]
        if not picked:
            return "open", [spec["empty"]]
        wrong = [i for i in picked if i not in spec["answers"]]
        missing = any(i not in picked for i in spec["answers"])

        def said(indices: list[int]) -> list[int]:
            return [spec["explain"][i] for i in indices if spec["explain"][i] is not None]

        if not wrong and not missing:
            return "right", [spec["right"], *said(picked)]
        more = [spec["missing"]] if missing and spec["several"] else []
        return "wrong", [spec["not_yet"], *said(wrong), *more]

    def _grade_number(self, value: Any) -> tuple[str, list[int]]:
        spec, target = self._spec, self._spec["target"]
        text = value if isinstance(value, str) else "" if value is None else repr(float(value))
        if not text.strip(BLANKS):
            return "open", [spec["empty"]]
        x, problem = parse(text, target.unit)
        if problem:
            key = "unreadable" if problem == UNREADABLE else "unknown_unit"
            return "open", [spec[key]]
        if target.is_right(np.asarray(x)):
            return "right", spec["right"]
        if target.is_good_guess(x):
            return "right", spec["good_guess"]
        known = target.known_mistake(np.asarray(x)) or target.slip(np.asarray(x))
        message = known or target.directions()[target.direction(x)]
        return "wrong", [*spec["not_yet"], self._messages.index(message)]

    def __repr__(self) -> str:
        lines = [f"? {self.question}", *self._code.splitlines()]
        lines += [f"    ( ) {option}" for option in self._spec.get("options", ())]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return self.html(
            style_tag(), script_tag("page/exercises/store.js", "page/exercises/quizzes.js")
        )

    def html(self, style: str = "", script: str = "") -> str:
        """Return the question as HTML; several on a page can share one style sheet and script."""
        spec = {k: v for k, v in self._spec.items() if k not in ("target", "options")}
        data = html.escape(json.dumps(spec, ensure_ascii=False, separators=(",", ":")))
        messages = "".join(f"<span>{self._message_html(m)}</span>" for m in self._messages)
        # A form of method "dialog" sends nothing anywhere, even where scripts are off.
        return (
            f'<div class="ft-exercise ft-quiz" data-quiz-id="{self.quiz_id}" data-quiz="{data}"'
            f' data-lm-suppress-shortcuts="true">{style}'
            f'<form method="dialog" autocomplete="off"><fieldset>'
            f"<legend>{markup(self.question)}</legend>{self._code_html()}{self._body}</fieldset>"
            f'<button type="submit" hidden>Check</button></form>'
            f'<p class="ft-before" hidden></p>'
            f'<div class="ft-feedback" role="status" aria-live="polite"></div>'
            f'<div class="ft-messages" hidden>{messages}</div>'
            f"{self._answer_fold()}{script}</div>"
        )

    def _code_html(self) -> str:
        if not self._code:
            return ""
        # What scrolls must be reached by keyboard.
        return f'<pre tabindex="0" aria-label="Code"><code>{html.escape(self._code)}</code></pre>'

    def _answer_fold(self) -> str:
        """Return the answer in a fold: without scripts, and after a wrong guess with them."""
        text = f"<div>{markup(self._answer)}</div></details>"
        if self._reveals:
            return f'<details class="ft-answer"><summary>Show the answer</summary>{text}'
        return f"<noscript><details><summary>Answer</summary>{text}</noscript>"

    def _message_html(self, message: str) -> str:
        return markup(message)


def quiz(
    question: str,
    options: Sequence[Any] | None = None,
    answer: Any = None,
    *,
    explain: Mapping[Any, str] | str = "",
    unit: str = "",
    rtol: float = 1e-2,
    atol: float = 0.0,
    mistakes: Sequence[tuple[Any, str]] = (),
    factor: float | None = None,
    code: str = "",
    worked: str = "",
) -> Quiz:
    """Return a question with instant feedback, in the notebook and on a page without a kernel.

    With `options`, `answer` is the right one, or a list of all the right ones (then the reader
    ticks boxes), and `explain` maps options to what is said about them. Without, `answer` is a
    number in `unit`; `mistakes` are (wrong number, message) pairs and `explain` is said to a
    right answer. Answers and wrong numbers may be callables of no argument. The answer is in the
    page: out of sight, not secret. Text may hold `code` and $mathematics$.

    With `factor` the number is guessed: what is off by no more than it is right, too, and hears
    the answer; after any other guess the reader may have the answer shown.

    `code` is shown below the question. With `worked`, the way to the answer, the reader may have
    both shown after any wrong answer.

    Units:  a bare number is taken to be in `unit`; "2 GiB" is understood where `unit` is a size.
    Raises: ValueError for a bad call: no question, an answer that is no option, and so on.

    >>> quiz("Bytes of one bf16 number?", answer=2, unit="B").grade("16 bit")
    (False, 'Give the answer in B, or with another unit of its kind.')
    >>> quiz("Which grows?", ["weights", "cache"], "cache").grade("cache")
    (True, 'Right.')
    >>> quiz("Bytes kept of each token?", answer=819_200, unit="B", factor=2).grade("1 MB")
    (True, 'Close: it is 819,200 B.')
    """
    require_text("question", question)
    require_text("unit", unit, empty=True)
    require_tolerances(rtol, atol)
    if factor is not None:
        require_factor(factor)
    answer = answer() if callable(answer) else answer
    if options is None:
        wrong = mistake_pairs(mistakes)
        return _number_quiz(
            question, answer, explain, unit, rtol, atol, wrong, factor, code, worked
        )
    if unit or len(mistakes) or factor is not None:
        raise ValueError(
            "unit, mistakes and factor belong to a numeric quiz; options were given too"
        )
    return choice_quiz(question, options, answer, explain, code=code, worked=worked)


def _number_quiz(
    question: str,
    answer: Any,
    explain: Mapping[Any, str] | str,
    unit: str,
    rtol: float,
    atol: float,
    mistakes: list[tuple[Any, str]],
    factor: float | None,
    code: str,
    worked: str,
) -> Quiz:
    if not isinstance(explain, str):
        raise ValueError(f"explain must be text in a numeric quiz; got {show(explain)}")
    want = as_number(answer)
    if want is None or want.ndim or not np.isfinite(want):
        raise ValueError(f"answer must be a finite number; got {show(answer)}")
    if factor is not None and want == 0:
        raise ValueError("answer must not be 0 where a factor is given: only 0 is near it")
    wrong = []
    for value, message in mistakes:
        number = as_number(value() if callable(value) else value)
        if number is None or number.ndim or not np.isfinite(number):
            raise ValueError(f"mistake {message!r} must have a finite number; got {show(value)}")
        wrong.append((number, message))
    target = Target(want, unit, rtol, atol, wrong, factor)
    for number, message in wrong:
        if target.is_right(number):
            raise ValueError(f"mistake {message!r} is within the tolerance of the answer {want:g}")
        if target.is_good_guess(float(number)):
            raise ValueError(f"mistake {message!r} is within the factor of the answer {want:g}")
    messages = ["Right.", "Not yet.", "Type a number first.", UNREADABLE, unknown_unit(unit)]

    def index(message: str) -> int:
        if message not in messages:
            messages.append(message)
        return messages.index(message)

    explained = [index(explain)] if explain else []
    near = f"Close: it is {with_unit(float(want), unit)}."
    spec = {
        "kind": "number",
        "expected": float(want),
        "rtol": rtol,
        "atol": atol,
        "near": target.near(),
        "exact": EXACT,
        "roundings": target.roundings(),
        "near_mistake": target.near_mistake(),
        "almost": target.almost(),
        "guesses": target.guesses(),
        "units": typed_units(unit),
        "right": [0, *explained],
        "good_guess": [index(near), *explained] if factor else [],
        "not_yet": [] if factor else [1],  # a guess is made once
        "empty": 2,
        "unreadable": 3,
        "unknown_unit": 4,
        "mistakes": [(float(value), index(message)) for value, message in wrong],
        "diagnoses": [(float(value), index(message)) for value, message in target.slips()],
        "directions": {key: index(message) for key, message in target.directions().items()},
        "target": target,
    }
    suffix = f"<span>{markup(unit)}</span>" if unit else ""
    body = (
        '<label class="ft-number"><span>Your answer</span> '
        f'<input type="text" name="answer" maxlength="{MAX_TYPED}" spellcheck="false"> '
        f"{suffix}</label>"
    )
    said = f"{with_unit(float(want), unit)}. {worked or explain}"
    return Quiz(question, spec, messages, body, said, code, bool(factor or worked))


def choice_quiz(
    question: str,
    options: Sequence[Any],
    answer: Any,
    explain: Mapping[Any, str] | str,
    name: str = "answer",
    code: str = "",
    worked: str = "",
) -> Quiz:
    labels = [str(option) for option in options]
    if len(labels) < 2 or len(set(labels)) < len(labels) or not all(x.strip() for x in labels):
        raise ValueError(f"options must be two or more different texts; got {show(options)}")
    several = isinstance(answer, list | tuple | set | frozenset)
    right = [str(a) for a in (answer if several else [answer])]
    unknown = [a for a in right if a not in labels]
    if unknown or not right:
        raise ValueError(f"answer must be among options {labels}; got {show(answer)}")
    if isinstance(explain, str):
        explain = dict.fromkeys(right[:1], explain) if explain else {}
    said = {str(option): text for option, text in explain.items()}
    for option, text in said.items():
        if option not in labels:
            raise ValueError(f"explain names {option!r}, which is not among options {labels}")
        require_text(f"explain[{option!r}]", text)
    messages = ["Right.", "Not yet.", "Choose an answer first.", "Something is still missing."]
    places = []
    for label in labels:
        places.append(len(messages) if label in said else None)
        if label in said:
            messages.append(f"{label}: {said[label]}" if several else said[label])
    spec = {
        "kind": "choice",
        "options": labels,
        "several": several,
        "answers": [i for i, label in enumerate(labels) if label in right],
        "explain": places,
        "right": 0,
        "not_yet": 1,
        "empty": 2,
        "missing": 3,
    }
    kind = "checkbox" if several else "radio"
    # Radio buttons of one name exclude each other only within their form, so two quizzes share one.
    body = "".join(
        f'<label class="ft-option"><input type="{kind}" name="{name}" value="{i}">'
        f"<span>{markup(label)}</span></label>"
        for i, label in enumerate(labels)
    )
    reasons = " ".join(said[a] for a in right if a in said)
    answers = f"{', '.join(right)}. {worked or reasons}"
    return Quiz(question, spec, messages, body, answers, code, bool(worked))
