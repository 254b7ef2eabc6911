"""Values: the right one in any spelling passes, each slip has its message."""

import math

from firsttoken.page.exercises import check

CACHE = 2**32  # bytes: 4 GiB, 4.295 GB


MISTAKEN = [
    (4.0, "GiB; the question asks for GB"),
    (4096, "answer in MiB"),
    (CACHE, "answer in B;"),
    (4.294967296 * 8, "bits"),
    (4.294967296 * 1.024**3, "1000 and 1024"),
    (4.294967296 * 2, "twice"),
    (4.294967296 / 2, "half"),
    (-4.294967296, "sign"),
    (1 / 4.294967296, "Upside down"),
    (4.25, "Close"),
    (400, "more than a factor of 10"),
    (3.1, "Too small."),
    (math.nan, "NaN"),
    (math.inf, "infinite"),
    (True, "not a number in GB"),
    ({4.295}, "not a number in GB"),
    ([4.295], "One number is expected; this has shape (1,)"),
    (lambda: 4.295, "function: call it"),
    ("4,29", "not a number that can be read"),
    ("4 apples", "Give the answer in GB"),
    ("9" * 10_000, "not a number that can be read"),
]


def test_each_slip_has_its_message():
    for answer, words in MISTAKEN:
        result = check(answer, CACHE / 1e9, unit="GB")
        assert result.status == "wrong", answer
        assert words in result.message


def test_slips_without_a_family_of_units():
    assert "1000 times too large" in check(12_000, 12.0, unit="tokens").message
    assert "1000^2 times too small" in check(12e-6, 12.0, unit="tokens").message
    assert "in ms" in check(8.02, 0.00802, unit="s").message
    assert "percent" in check(80, 0.8).message
    assert "percent" in check(0.8, 80, unit="%").message
    assert check("80 %", 0.8)
    assert check("1 token", 1, unit="tokens")
    assert check("3350 GB/s", 3.35, unit="TB/s")
    assert not check("3350 GB", 3.35, unit="TB/s")


def test_no_diagnosis_fits_by_accident():
    """Zero and one are their own double, opposite or inverse; they must not be called so."""
    assert check(0, 0.0)
    assert check(0.5, 0.0).message == "Too large."
    assert "Upside" not in check(1.003, 1.0).message


def test_the_authors_mistakes_come_first():
    mistakes = [
        (8.0, "Twice the layers."),
        (lambda: 16.0, "Batch forgotten."),
        (lambda x: x > 1000, "That would not fit on Earth."),
        (lambda *given: 32.0, "Of any arguments."),  # computed
    ]
    for answer, said in zip((8.0, 16, 2e6, 32.0), mistakes, strict=True):
        assert check(answer, 4.0, mistakes=mistakes).message == said[1]
    assert check(5.0, 4.0, mistakes=mistakes).message == "Too large."
    catch_all = [(lambda x: x != 4, "Neither."), (8.0, "Twice the layers.")]
    assert check(8.0, 4.0, mistakes=catch_all).message == "Twice the layers."
    assert check(4.0, 4.0, mistakes=[(4.0, "wrong")]), "the right answer is right first"


def test_tolerance_is_the_stated_law():
    assert check(100.1, 100) and not check(100.11, 100)  # a thousandth unless told
    assert check(100.1, 100, rtol=1e-3)
    assert not check(100.11, 100, rtol=1e-3)
    assert check(0.01, 0, atol=0.01)
    assert not check(100 + 1e-9, 100, rtol=0)
    assert check(3.0, 3.0).message == "3"
    assert check([1.0, 2.0], [1.0, 2.0]).message == "", "a right array without its numbers"


def test_an_expected_value_that_cannot_be_computed_is_shown():
    """A reader who skipped a cell sees a box, and no answer passes."""
    result = check(1.0, lambda: missing_name)  # noqa: F821
    assert result.status == "open"
    assert "Run the cells above" in result.message
    assert not check(None, lambda x: 1 // 0, inputs=[(1,)])
    assert check(1.0, 2.0, mistakes=[(lambda a, b: True, "m")]).status == "open"


def test_where_one_message_ends_and_the_next_begins():
    for answer, right, options, words in (
        (202, 100, {"rtol": 0.03}, "Too large."),
        (0.53, 0.53478, {"rtol": 1e-5}, "Right, but rounded"),
        (0.5, 0.53478, {}, "Too small."),
        (105, 100, {}, "Close, within 5 %"),
        (105.1, 100, {}, "Too large."),
        (1001, 100, {"rtol": 1e-4}, "Too large, by more"),
        (0, 100, {}, "Too small, by more"),
        (8.1, 4.0, {"mistakes": [(8.0, "Eight.")]}, "Too large."),
        (8.001, 4.0, {"mistakes": [(8.0, "Eight.")]}, "Eight."),
        (240, 4.0, {"unit": "min", "rtol": 0.5}, "That is the answer in s"),
        (4.295, 4.0, {"unit": "GiB", "rtol": 0.04}, "Too large."),
    ):
        assert check(answer, right, **options).message.startswith(words), answer
