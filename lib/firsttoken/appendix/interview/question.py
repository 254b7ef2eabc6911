"""The kinds of interview questions: a number, a choice, an explanation."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from firsttoken.checks import check_choice
from firsttoken.page.exercises import Quiz, quiz, rubric
from firsttoken.page.start import CHAPTERS, Chapter

MINUTES = MappingProxyType({1: 2, 2: 3, 3: 5})
"""How long an answer takes, by difficulty."""

Text = str | Callable[[], str]


@dataclass(frozen=True, kw_only=True)
class InterviewQuestion:
    """What all kinds have; `section` is the heading in the chapter that teaches the answer.

    `level` is 1 (a fact and one step), 2 (two ideas) or 3 (a decision, a diagnosis, several steps).
    `worked` is the model answer. Numbers in it are computed: then it is a function.

    Raises: ValueError for a chapter that is not in the book, another level, an empty text.
    """

    id: str
    chapter: str
    section: str
    level: int
    text: str
    worked: Text
    code: str = ""

    def __post_init__(self) -> None:
        check_choice(f"chapter of {self.id}", self.chapter, CHAPTERS)
        if self.level not in MINUTES:
            raise ValueError(f"level of {self.id} must be 1, 2 or 3; got {self.level!r}")
        for name in ("id", "section", "text"):
            if not getattr(self, name).strip():
                raise ValueError(f"{name} of {self.id!r} must be text; got {getattr(self, name)!r}")

    @property
    def about(self) -> Chapter:
        """The chapter, with its title."""
        return CHAPTERS[self.chapter]

    @property
    def minutes(self) -> int:
        """How long an answer takes."""
        return MINUTES[self.level]

    @property
    def model_answer(self) -> str:
        """The model answer as text."""
        return self.worked() if callable(self.worked) else self.worked

    @cached_property
    def quiz(self) -> Quiz:
        """The question as the page asks and grades it."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Number(InterviewQuestion):
    """A question whose answer the library computes, right within `rtol`.

    `slips` are (wrong number, message) pairs, computed too: what one gets by a known mistake.
    """

    answer: Callable[[], float]
    unit: str
    slips: tuple[tuple[Callable[[], float], str], ...]
    rtol: float = 0.03

    @cached_property
    def quiz(self) -> Quiz:
        """The question with its tolerance; a slip within it is refused."""
        precision = f"To within {100 * self.rtol:g} %." if self.rtol else "Give the exact number."
        return quiz(
            f"{self.text} {precision}",
            answer=self.answer,
            unit=self.unit,
            rtol=self.rtol,
            mistakes=self.slips,
            explain=self.model_answer,
            code=self.code,
            worked=self.model_answer,
        )


@dataclass(frozen=True, kw_only=True)
class Choice(InterviewQuestion):
    """A question with one right option; `wrong` says of each other option why it is wrong."""

    right: str
    wrong: tuple[tuple[str, str], ...]

    @cached_property
    def quiz(self) -> Quiz:
        """The question with its options in alphabetical order, which gives nothing away."""
        return quiz(
            self.text,
            sorted([self.right, *(option for option, _ in self.wrong)], key=str.casefold),
            self.right,
            explain={self.right: self.model_answer} | dict(self.wrong),
            code=self.code,
            worked=self.model_answer,
        )


@dataclass(frozen=True, kw_only=True)
class Explain(InterviewQuestion):
    """A question answered in words; a good answer has all `points`."""

    points: tuple[str, ...]

    @cached_property
    def quiz(self) -> Quiz:
        """The question with its model answer and the points to tick."""
        return rubric(self.text, self.points, self.model_answer, code=self.code)
