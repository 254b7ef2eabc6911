"""The author's mistakes: a bad call raises, and says what is wrong."""

import math

import pytest

from exercises.test_checks import MUTANTS, good_test
from exercises.test_placements import asked
from firsttoken.exercises import Question, check, check_test, hint, placement, quiz, rubric


def one(rng):
    return (1,)


def test_a_bad_call_says_what_is_wrong():
    for call, words in (
        (lambda: check(1, 1, rtol=-1), "rtol must be"),
        (lambda: check(1, 1, atol=math.inf), "atol must be"),
        (lambda: check(1, "one"), "expected is text"),
        (lambda: check(1, math.nan), "NaN"),
        (lambda: check(1, {"a": 1}, unit="GB"), "needs a numeric expected"),
        (lambda: check(1, 1, unit=3), "unit must be"),
        (lambda: check(1, 1, mistakes=[3]), r"mistakes\[0\] must be"),
        (lambda: check(1, 1, mistakes=[(3, "")]), "message of mistakes"),
        (lambda: check(abs, 1, inputs=[(1,)]), "expected must be a function"),
        (lambda: check(abs, abs, inputs=[]), "non-empty"),
        (lambda: check(abs, abs, inputs=[1]), r"inputs\[0\] must be"),
        (lambda: check(abs, abs, inputs=[(x for x in "a")]), r"inputs\[0\] must be"),
        (lambda: check(abs, abs, inputs=[((x for x in "a"),)]), "copyable"),
        (lambda: check(abs, abs, inputs=[(1,)], mistakes=[(1, "m")]), "must be a function"),
        (lambda: check(1, 1, mistakes=[(3, "m", "n")]), r"mistakes\[0\] must be"),
        (lambda: quiz("?", answer=[1, 2]), "answer must be a finite"),
        (lambda: check(1, 1, random=abs), "got no inputs"),
        (lambda: check(abs, abs, inputs=[(1,)], random=3), "random must be a function"),
        (lambda: check(abs, abs, inputs=[(1,)], random=lambda rng: 3), "random must return"),
        (lambda: check(abs, abs, inputs=[(1,)], random=one, n_random=0), "n_random must be"),
        (lambda: check_test(good_test, 3, MUTANTS), "correct must be"),
        (lambda: check_test(good_test, abs, {}), "mutants must"),
        (lambda: check_test(good_test, abs, {"a": 1}), "mutant 'a' must"),
        (lambda: quiz("", answer=1), "question must be"),
        (lambda: quiz("?"), "answer must be a finite"),
        (lambda: quiz("?", answer=math.inf), "answer must be a finite"),
        (lambda: quiz("?", answer=1, mistakes=[(1.001, "m")]), "within the tolerance"),
        (lambda: quiz("?", answer=1, mistakes=[("x", "m")]), "finite number"),
        (lambda: quiz("?", answer=1, explain={1: "a"}), "explain must be text"),
        (lambda: quiz("?", ["a"], "a"), "two or more"),
        (lambda: quiz("?", ["a", "a"], "a"), "two or more"),
        (lambda: quiz("?", ["a", "b"], "c"), "among options"),
        (lambda: quiz("?", ["a", "b"], []), "among options"),
        (lambda: quiz("?", ["a", "b"]), "among options"),
        (lambda: quiz("?", ["a", "b"], "a", explain={"c": "no"}), "not among options"),
        (lambda: quiz("?", ["a", "b"], "a", explain={"b": ""}), "must be non-empty"),
        (lambda: quiz("?", ["a", "b"], "a", unit="GB"), "numeric quiz"),
        (lambda: quiz("?", ["a", "b"], "a", factor=2), "numeric quiz"),
        (lambda: quiz("?", answer=4, factor=1), "factor must be a finite number > 1; got 1"),
        (lambda: quiz("?", answer=4, factor=0.5), "factor must be"),
        (lambda: quiz("?", answer=4, factor=math.inf), "factor must be"),
        (lambda: quiz("?", answer=4, factor="2"), "factor must be"),
        (lambda: quiz("?", answer=0, factor=2), "answer must not be 0"),
        (lambda: quiz("?", answer=4, factor=2, mistakes=[(2, "m")]), "within the factor of the"),
        (lambda: quiz("?", answer=4, factor=2, mistakes=[(4.01, "m")]), "within the tolerance"),
        (lambda: placement([]), "at least one question"),
        (lambda: placement(["?"]), r"questions\[0\] must be a Question"),
        (lambda: placement([asked("4")]), r"chapter of questions\[0\] must be one of 00_start"),
        (lambda: placement([Question("?", "ab", "c", "04_kv_cache", "w")]), "among options"),
        (lambda: placement([Question("", "ab", "a", "04_kv_cache", "w")]), "text of questions"),
        (lambda: placement([Question("?", "ab", "a", "04_kv_cache", "")]), "why of questions"),
        (lambda: rubric("", ["a", "b"], "c"), "question"),
        (lambda: rubric("q", ["a", "b"], " "), "answer"),
        (lambda: rubric("q", ["a", ""], "c"), r"points\[1\]"),
        (lambda: rubric("q", ["a"], "c"), "two or more different"),
        (lambda: rubric("q", ["a", "a"], "c"), "two or more different"),
        (lambda: hint(), "at least one"),
        (lambda: hint("a", ""), r"steps\[1\]"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
