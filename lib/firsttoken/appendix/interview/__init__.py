"""Interview questions about LLM inference, and a mock interview that the page itself conducts.

Every answer is graded in the page, with or without a kernel. Numbers are computed by the library,
so a change of a formula or of a preset changes the answer.
"""

from firsttoken.appendix.interview.draw import Topic, draw_questions, score_by_topic
from firsttoken.appendix.interview.page import chapter, mock_interview
from firsttoken.appendix.interview.question import Choice, Explain, InterviewQuestion, Number
from firsttoken.appendix.interview.questions import QUESTIONS

__all__ = [
    "QUESTIONS",
    "Choice",
    "Explain",
    "InterviewQuestion",
    "Number",
    "Topic",
    "chapter",
    "draw_questions",
    "mock_interview",
    "score_by_topic",
]
