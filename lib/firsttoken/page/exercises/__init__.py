"""Exercises: checks of a reader's answer, quizzes that also work without a kernel, hints, claims.

What a reader gives is shown to be right or wrong, with the reason; it never raises. A bad call by
the author of an exercise raises ValueError. Every output is HTML that needs nothing from outside,
with a plain-text form for terminals. What was solved is remembered by the reader's own browser.
"""

from firsttoken.page.exercises.checks import check, check_test
from firsttoken.page.exercises.claims import claim
from firsttoken.page.exercises.hints import Hint, hint
from firsttoken.page.exercises.missing import explain_missing_names
from firsttoken.page.exercises.placements import Placement, Question, placement
from firsttoken.page.exercises.progress_table import Progress, progress
from firsttoken.page.exercises.quizzes import Quiz, quiz
from firsttoken.page.exercises.results import Result
from firsttoken.page.exercises.rubrics import Rubric, rubric

__all__ = [
    "Hint",
    "Placement",
    "Progress",
    "Question",
    "Quiz",
    "Result",
    "Rubric",
    "check",
    "check_test",
    "claim",
    "explain_missing_names",
    "hint",
    "placement",
    "progress",
    "quiz",
    "rubric",
]

# Every chapter imports this package in its first cell, so from there on a cell that is run out of
# order says what it lacks. Outside of a notebook's kernel it does nothing.
explain_missing_names()
