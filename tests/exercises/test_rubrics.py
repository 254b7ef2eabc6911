"""Explanations that the reader grades by ticking points."""

import pytest

from firsttoken.exercises import rubric

ASKED = rubric(
    "Why is `decode` slow & dear?",
    ["It reads all weights", "for one token", "a batch < the ridge"],
    "Each step reads $2P$ bytes.",
    code="if a < b:\n    step()",
)


def test_every_point_counts_the_same():
    assert ASKED.grade([]) == (
        False,
        "Open the model answer and tick the points that your answer has.",
    )
    assert ASKED.grade("for one token") == (False, "1 of 3 points.")
    assert ASKED.grade({"for one token", "a batch < the ridge"}) == (False, "2 of 3 points.")
    assert ASKED.grade(ASKED._spec["options"]) == (True, "All 3 points.")
    assert ASKED.grade(["something else"])[0] is False


def test_the_answer_is_folded_and_needs_no_script():
    html = ASKED._repr_html_()
    before, _, fold = html.partition('<details class="ft-rubric">')
    assert "Each step reads" not in before and "It reads all weights" not in before
    assert "Each step reads" in fold and fold.count('type="checkbox"') == 3
    assert "if a &lt; b:\n    step()" in before and "decode</code> slow &amp; dear" in before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", ["a", "b"], "c"), "question"),
        (("q", ["a", "b"], " "), "answer"),
        (("q", ["a", ""], "c"), r"points\[1\]"),
        (("q", ["a"], "c"), "two or more different"),
        (("q", ["a", "a"], "c"), "two or more different"),
    ],
)
def test_a_bad_call_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        rubric(*arguments)
