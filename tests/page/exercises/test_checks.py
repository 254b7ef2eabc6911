"""Checks: a stub is open, a weak test hears what slips through, nothing raises."""

import numpy as np
from hypothesis import given

from firsttoken.page.exercises import check, check_test
from page.exercises.strange import strange
from page.exercises.test_compare import Cost


def test_a_stub_is_open_and_not_right():
    for stub in (None, ...):
        for result in (
            check(stub, 3.0),
            check(stub, abs, inputs=[(1,)]),
            check_test(stub, abs, {"wrong": float}),
        ):
            assert result.status == "open"
            assert not result


def good_test(implementation):
    assert implementation(3) == 9
    assert implementation(-2) == 4


MUTANTS = {"doubles": lambda x: 2 * x, "keeps the sign": lambda x: x * abs(x)}


def test_a_weak_test_is_told_what_slips_through():
    for reader, words in (
        (lambda f: None, "accepts everything: is an `assert` or a `return` missing?"),
        (lambda f: f(3) == 9, "accepts a wrong implementation: keeps the sign"),
        (lambda f: f(2) == 5, "Look at the values that it expects"),
        (lambda f: np.bool_(f(2) == 5), "rejects the correct implementation"),
        (lambda: None, "the slip may be in the test itself"),
        (7, "A function is needed"),
    ):
        result = check_test(reader, lambda x: x * x, MUTANTS)
        assert result.status == "wrong"
        assert words in result.message
    one = check_test(lambda f: None, abs, {"doubles": float})
    assert one.message == "The test accepts a wrong implementation: doubles."
    some = {"doubles": lambda x: 2 * x, "triples": lambda x: 3 * x, "is 0": lambda x: 0}
    result = check_test(lambda f: f(1) > 0, abs, some)
    assert "accepts wrong implementations: doubles; triples." in result.message


def test_a_good_test_passes():
    """Numbers that a test returns are no verdict."""

    def by_assert(f):
        good_test(f)
        return f(np.array([0.0, 1.0]))

    for test in (good_test, by_assert, lambda f: f(3) == 9 and f(-2) == 4):
        assert check_test(test, lambda x: x * x, MUTANTS)

    def todo(implementation):
        raise NotImplementedError

    assert check_test(todo, abs, MUTANTS).status == "open"


SENTINEL = 2.718281828  # nothing above is this by chance


@given(answer=strange)
def test_check_never_raises_and_never_believes(answer):
    wanted = [
        *(SENTINEL, np.full((2, 2), SENTINEL), {"a": SENTINEL}),
        *(["x", SENTINEL, None], Cost(SENTINEL, "x")),
    ]
    mistakes = [(1.0, "one"), (lambda x: x == 3, "three")]
    results = [check(answer, want, mistakes=mistakes) for want in wanted]
    results += [
        check(lambda x: answer, lambda x: SENTINEL * x, inputs=[(1,), (2,)]),
        check(answer, lambda x: SENTINEL * x, inputs=[(1,)]),
        check_test(lambda f: answer, lambda x: x, {"never caught by a strange value": abs}),
    ]
    assert not any(results)
    for result in (*results, check(answer, True)):
        assert len(repr(result)) < 3000
        assert result._repr_html_().startswith("<div")
