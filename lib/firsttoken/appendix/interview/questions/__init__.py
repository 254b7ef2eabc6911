"""The questions, in the order of the book."""

from firsttoken.appendix.interview.question import InterviewQuestion
from firsttoken.appendix.interview.questions import costs, serving, shortcuts, tokens

QUESTIONS: tuple[InterviewQuestion, ...] = (
    *costs.QUESTIONS,
    *shortcuts.QUESTIONS,
    *tokens.QUESTIONS,
    *serving.QUESTIONS,
)
