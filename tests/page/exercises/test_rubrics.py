"""Explanations that the reader grades by ticking points."""

from firsttoken.page.exercises import rubric

ASKED = rubric(
    "Why is `decode` slow & dear?",
    ["It reads all weights", "for one token", "a batch < the ridge"],
    "Each step reads $2P$ bytes.",
    code="if a < b:\n    step()",
)


def test_every_point_counts_the_same():
    empty = "Open the model answer and tick the points that your answer has."
    assert ASKED.grade([]) == (False, empty)
    assert ASKED.grade("for one token") == (False, "1 of 3 points.")
    assert ASKED.grade({"for one token", "a batch < the ridge"}) == (False, "2 of 3 points.")
    assert ASKED.grade(ASKED._spec["options"]) == (True, "All 3 points.")
    assert ASKED.grade(["something else"])[0] is False


def test_the_answer_is_folded_and_needs_no_script():
    html = ASKED._repr_html_()
    before, _, fold = html.partition('<details class="ft-rubric">')
    assert "Each step reads" not in before and "It reads all weights" not in before
    assert "Each step reads" in fold and fold.count('type="checkbox"') == 3
    assert "<span>Your answer, in a few sentences</span>" in before
    assert "<legend>Tick the points that your answer has</legend>" in fold
    assert "if a &lt; b:\n    step()" in before and "decode</code> slow &amp; dear" in before
