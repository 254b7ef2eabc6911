"""Drawing the questions of a mock interview, and its score."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from firsttoken.appendix.interview.question import InterviewQuestion


class Random(Protocol):
    """What the draw asks for: NumPy's generators have it, and so has `random.Random`."""

    def random(self) -> float:
        """Return a number in [0, 1)."""


def draw_questions(
    pool: Sequence[InterviewQuestion], n: int, rng: Random
) -> list[InterviewQuestion]:
    """Return n questions of the pool, as evenly over its chapters as they allow, easy ones first.

    Every chapter gives one question before any gives a second. A pool of fewer than n is taken
    whole. The page's script draws the same from the same random numbers.

    Raises: ValueError for a negative n.

    >>> import numpy as np
    >>> from firsttoken.appendix.interview import QUESTIONS
    >>> ten = draw_questions(QUESTIONS, 10, np.random.default_rng(0))
    >>> len({question.chapter for question in ten})
    10
    """
    if n < 0:
        raise ValueError(f"n must not be negative, got {n}")
    chapters = _shuffled(list(dict.fromkeys(question.chapter for question in pool)), rng)
    decks = [_shuffled([q for q in pool if q.chapter == chapter], rng) for chapter in chapters]
    rounds = range(max(map(len, decks), default=0))
    drawn = [deck[i] for i in rounds for deck in decks if i < len(deck)][:n]
    return sorted(drawn, key=lambda question: question.level)


def _shuffled(items: list[Any], rng: Random) -> list[Any]:
    for i in range(len(items) - 1, 0, -1):
        j = int(rng.random() * (i + 1))
        items[i], items[j] = items[j], items[i]
    return items


@dataclass(frozen=True)
class Topic:
    """What an interview gave in one chapter: points of `n_questions`, and the missed questions."""

    chapter: str
    n_questions: int
    points: float
    missed: tuple[InterviewQuestion, ...]


def score_by_topic(drawn: Sequence[InterviewQuestion], shares: Sequence[float]) -> list[Topic]:
    """Return the score by topic, in the order of the book.

    A share is what was right of an answer: 0 or 1 for a number or a choice, ticked points over
    all points for an explanation. What is less than 1 is missed, and worth reading again.

    Raises: ValueError for another number of shares than of questions, and shares outside 0 … 1.

    >>> from firsttoken.appendix.interview import QUESTIONS
    >>> [(topic.chapter, topic.points) for topic in score_by_topic(QUESTIONS[:2], [1, 0.5])]
    [('00_start', 1.5)]
    """
    if len(shares) != len(drawn):
        raise ValueError(f"shares must be one per question, {len(drawn)}; got {len(shares)}")
    if not all(0 <= share <= 1 for share in shares):
        raise ValueError(f"shares must lie in 0 … 1, got {list(shares)}")
    topics = []
    for chapter in sorted({question.chapter for question in drawn}):
        pairs = [(q, s) for q, s in zip(drawn, shares, strict=True) if q.chapter == chapter]
        points = sum(share for _, share in pairs)
        missed = tuple(question for question, share in pairs if share < 1)
        topics.append(Topic(chapter, len(pairs), points, missed))
    return topics
