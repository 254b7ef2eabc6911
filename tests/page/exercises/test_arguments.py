"""The author's mistakes: a bad call raises, and says what is wrong."""

import math

import pytest

from firsttoken.page.exercises import Question, check, check_test, hint, placement, quiz, rubric
from page.exercises.test_checks import good_test
from page.exercises.test_placements import asked


def one(rng):
    return (1,)


def test_a_bad_call_says_what_is_wrong():
    for call, words in (
        (lambda: check(1, 1, rtol=-1), "rtol must be"),
        (lambda: check(1, "one"), "expected is text"),
        (lambda: check(1, math.nan), "NaN"),
        (lambda: check(1, 1, mistakes=[3]), r"mistakes\[0\] must be"),
        (lambda: check(abs, 1, inputs=[(1,)]), "expected must be a function"),
        (lambda: check(abs, abs, inputs=[]), "non-empty"),
        (lambda: check(abs, abs, inputs=[((x for x in "a"),)]), "copyable"),
        (lambda: check(abs, abs, inputs=[(1,)], random=lambda rng: 3), "random must return"),
        (lambda: check_test(good_test, abs, {}), "mutants must"),
        (lambda: quiz("", answer=1), "question must be"),
        (lambda: quiz("?", answer=1, mistakes=[(1.001, "m")]), "within the tolerance"),
        (lambda: quiz("?", answer=1, explain={1: "a"}), "explain must be text"),
        (lambda: quiz("?", ["a"], "a"), "two or more"),
        (lambda: quiz("?", ["a", "b"], "c"), "among options"),
        (lambda: quiz("?", ["a", "b"], "a", explain={"c": "no"}), "not among options"),
        (lambda: quiz("?", ["a", "b"], "a", unit="GB"), "numeric quiz"),
        (lambda: quiz("?", answer=4, factor=1), "factor must be a finite number > 1; got 1"),
        (lambda: quiz("?", answer=0, factor=2), "answer must not be 0"),
        (lambda: quiz("?", answer=4, factor=2, mistakes=[(2, "m")]), "within the factor of the"),
        (lambda: placement([]), "at least one question"),
        (lambda: placement([asked("4")]), r"chapter of questions\[0\] must be one of 00_start"),
        (lambda: placement([Question("?", "ab", "c", "04_kv_cache", "w")]), "among options"),
        (lambda: rubric("", ["a", "b"], "c"), "question"),
        (lambda: rubric("q", ["a", "a"], "c"), "two or more different"),
        (lambda: hint(), "at least one"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
