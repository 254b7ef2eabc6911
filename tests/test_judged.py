"""A notebook's exercises are judged: a stub that passes and a solution that fails are found."""

import nbformat
import pytest

from judged import judgements

CHECK = "wanted = 4\n\ncheck(double, lambda x: 2 * x)"


def check(answer, right):
    return all(answer(x) == right(x) for x in (1, 2, 3))


def judge(stub: str, solution: str) -> None:
    """Run a notebook of one exercise, and then its judgement."""
    parts = {"stub": stub, "check": CHECK, "solution": solution}
    cells = [
        nbformat.v4.new_code_cell(source, metadata={"tags": [f"exercise-1-{part}"]})
        for part, source in parts.items()
    ]
    judged = judgements(nbformat.v4.new_notebook(cells=cells))
    assert list(judged) == ["1"]
    kernel = {"check": check}
    for source in (*parts.values(), judged["1"]):
        exec(source, kernel)


STUB = "def double(x):\n    return ..."
SOLUTION = "def double_solution(x):\n    return 2 * x"


@pytest.mark.parametrize("solution", [SOLUTION, "double_solution = (2).__mul__"])
def test_a_good_exercise_passes(solution):
    judge(STUB, solution)


def test_a_stub_that_passes_is_found():
    with pytest.raises(AssertionError, match="the stub passes: True"):
        judge("def double(x):\n    return x + x", SOLUTION)


@pytest.mark.parametrize("solution", ["def double_solution(x):\n    return x**2", "pass"])
def test_a_solution_that_fails_is_found(solution):
    with pytest.raises(AssertionError, match="the solution fails: False"):
        judge(STUB, solution)
