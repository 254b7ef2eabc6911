"""Quizzes as Python grades them; check/browser/test_quizzes.py holds the page's script to it."""

import re

from hypothesis import assume, example, given
from hypothesis import strategies as st

from firsttoken.page.exercises import quiz
from firsttoken.page.exercises.typed_numbers import UNREADABLE
from page.exercises.strange import strange
from page.exercises.test_values import CACHE

QUIZZES = {
    "size": quiz(
        "How large is the cache of `Llama-2-13B` at $B = 1$?",
        answer=lambda: CACHE / 1e9,
        unit="GB",
        mistakes=[(2.5, "Keys only? Use `2 * K`."), (lambda: 9.9, "Too many layers.")],
        explain="Four times $2^{30}$ bytes.",
    ),
    "ratio": quiz("How much faster?", answer=1.0, rtol=0.2, atol=0.05),
    "zero": quiz("How many?", answer=0, unit="tokens"),
    "negative": quiz("Which logit?", answer=-3.5),
    "rate": quiz("Bandwidth?", answer=3.35e12, unit="B/s"),
    "percent": quiz("Share?", answer=80, unit="%"),
    "time": quiz("Step?", answer=8.02, unit="ms", rtol=0),
    "share": quiz(
        "Which share?",
        answer=246 / 460,
        rtol=1e-3,
        mistakes=[(246 / 464, "15 steps."), (0.54, "?")],
    ),
    "stall": quiz("How long?", answer=128, unit="ms", rtol=0.06, mistakes=[(6, "For all.")]),
    "guess": quiz(
        "How many bytes for each token?",
        answer=819_200,
        unit="B",
        factor=2,
        mistakes=[(4, "The id is all the text needs."), (20_480, "One layer's worth.")],
        explain="Keys and values of $2^{30}$ or so.",
    ),
    "guessed share": quiz("Which share, about?", answer=0.3, factor=3, rtol=0.2),
    "guessed logit": quiz("Which logit, about?", answer=-3.5, factor=1.02, rtol=0),
    "one": quiz(
        "Which is read once per step?",
        ["weights & biases", "cache <K>", "a $5 bill", "`logits`"],
        "weights & biases",
        explain={"cache <K>": "It grows & grows.", "weights & biases": "Whatever the batch."},
    ),
    "several": quiz(
        "Which grow with context?",
        ["weights", "cache", "attention"],
        ["cache", "attention"],
        explain={"weights": "They stay.", "cache": "One entry per token."},
    ),
}


# Split at every bar and line end: blank, right, nearly right, wrong, unreadable.
TABLE = """\
4.295|4.29|4.25|4|4 GiB|4gib|4 Gb|4.295GB|4295 MB|4,294,967,296 B|4_294_967_296
4 294 967 296 bytes|4.295e0|4,29|4,2950|1,23,456|1_2|.5|5.|.|-|+4.295|−4.295|- 4|--4|4..2|4e
4e5|1e999|-1e999|0x10|nan|Infinity|NaN|1e-400|34.36|8.59|2.1475|0.2328|2.5|2.51|9.9|4294.967
4096|4294967296|1|1.2|1.25|1.26|0.94|2|0.5|-1|1.024|1024|1000|0|0 tokens|1 token|0.0|-0
5 tokens|3.5|-3.5|-3|-35|-350|-0.35|3.35e12|3.35 TB/s|3.35TB|3350 GB/s|3.35e12 B/s|80|80%|80 %
0.8|79.5|8.02|8.02 ms|8.02ms|0.00802 s|8020 us|8020 µs|8020 μs|8.020000001|constructor
4 constructor|4 __proto__|４|٣|4\u00a0GiB|4.295 gb|4 GB GB|1 2 3|1 234|12 345.5|12 345 6
<b>4</b>|4\tGB|100|100 ns|0.1249|7.45e-9
2/3|8/2 GiB|246/460|246 / 464|1/0|1/|/2|1/2/3|4/GB|1 /2 e|1/2.5.1|-1/2|1/-2|8,590/2,000 GB|320/400
409600|409,599|1638400|1638401|400 KiB|1.6 MB|819200|819.2|-819200|1|20 KB|4 B|20480|21 kB|1e5
0.1|0.0999|0.9|0.901|0.30|-0.3|-3.57|-3.5701|-3.43|-3.4313|-3.45|-4|3.57|-3.5|30|0.01|3
0.53|0.535|0.54|0.5302|0.13|0.128|0.127|128|130|128 s|128000|2.13|
"""


TYPED = ["", "   ", *re.split(r"[|\n]", TABLE)]


PICKED = {"one": [[], [0], [1], [2], [3]]} | {
    "several": [[i for i in range(3) if mask >> i & 1] for mask in range(8)]
}


def test_grading():
    size = QUIZZES["size"]
    assert size.grade("4 GiB") == (True, "Right. Four times $2^{30}$ bytes.")
    assert size.grade(4.295)[0]
    assert size.grade(2.5) == (False, "Not yet. Keys only? Use `2 * K`.")
    assert "GiB" in size.grade(4)[1]
    assert size.grade("") == (False, "Type a number first.")
    assert size.grade(None) == (False, "Type a number first.")
    one = QUIZZES["one"]
    assert one.grade("weights & biases") == (True, "Right. Whatever the batch.")
    assert one.grade("cache <K>") == (False, "Not yet. It grows & grows.")
    assert one.grade("`logits`") == (False, "Not yet.")
    several = QUIZZES["several"]
    assert several.grade({"cache", "attention"}) == (True, "Right. cache: One entry per token.")
    assert several.grade(["cache"]) == (False, "Not yet. Something is still missing.")
    assert several.grade(["weights", "cache", "attention"]) == (
        False,
        "Not yet. weights: They stay.",
    )
    assert several.grade([])[1] == "Choose an answer first."


@given(answer=strange)
@example(4.3125)
def test_grade_never_raises(answer):
    # A number drawn may be one that is right; nothing else is.
    near = {"size": (0.99 * CACHE / 1e9, 1.01 * CACHE / 1e9), "guess": (409_600, 1_638_400)}
    for name in ("size", "guess", "one", "several"):
        right, message = QUIZZES[name].grade(answer)
        if right:
            low, high = near[name]
            assert low <= answer <= high
        assert message


def test_a_quiz_keeps_its_id_and_carries_no_other():
    again = quiz("How many?", answer=1)
    assert again.quiz_id == QUIZZES["zero"].quiz_id != QUIZZES["size"].quiz_id
    assert len(again.quiz_id) == 12
    assert " id=" not in again._repr_html_(), "an id could not stand twice on a page"
    # Unless told, a hundredth is near enough, and nothing is near 0.
    hundred = quiz("?", answer=100)
    assert hundred.grade("101")[0] and not hundred.grade("101.1")[0]
    assert not quiz("?", answer=0).grade("0.01")[0]


def test_a_quotient_is_a_number():
    third = quiz("Which share?", answer=2 / 3)
    assert third.grade("2/3")[0] and third.grade("2 / 3")[0] and third.grade("200/3 %")[0]
    assert not third.grade("3/2")[0]
    assert "cannot" not in third.grade("1/0")[1] and "can be read" in third.grade("1/0")[1]
    assert quiz("Rate?", answer=2, unit="GB/s").grade("4/2 GB/s")[0]


def test_a_rough_guess_in_another_unit_is_told_so():
    stall = QUIZZES["stall"]
    assert stall.grade("0.13")[1] == "Not yet. That is the answer in s; the question asks for ms."
    assert "in µs" in stall.grade("126000")[1]
    assert stall.grade("0.2")[1] == "Not yet. Too small, by more than a factor of 10."
    assert stall.grade("256")[1] == "Not yet. Too large.", "twice as much may be a guess"


def test_the_right_answer_rounded_is_told_so():
    """It may lie near a listed mistake, which nobody made."""
    share = QUIZZES["share"]
    assert share.grade("0.53")[1] == "Not yet. Right, but rounded too far: it must be within 0.1 %."
    assert share.grade("0.5302")[1] == "Not yet. 15 steps."
    assert share.grade("0.535")[0]
    exact = quiz("?", answer=8.04, rtol=1e-3, mistakes=[(8.0, "Twice four.")])
    assert exact.grade("8.0")[1] == "Not yet. Twice four."


def test_a_good_guess_is_right_and_hears_the_answer():
    guess = QUIZZES["guess"]
    why = "Keys and values of $2^{30}$ or so."
    assert guess.grade("819.2 kB") == (True, f"Right. {why}")
    for good in ("409600", "1638400", "0.5 MB", "400 KiB", "830,000"):
        assert guess.grade(good) == (True, f"Close: it is 819,200 B. {why}"), good
    for small in ("409599", "0", "80000"):
        assert guess.grade(small) == (False, "Too small, by more than a factor of 2.")
    for large in ("1638401", "1e12"):
        assert guess.grade(large) == (False, "Too large, by more than a factor of 2.")
    assert guess.grade("-819200") == (False, "The sign is wrong.")
    assert guess.grade("4") == (False, "The id is all the text needs.")
    assert guess.grade("20 KB") == (False, "One layer's worth."), "nobody guesses 20,480"
    assert guess.grade("many") == (False, UNREADABLE)
    assert quiz("?", answer=0.3, factor=3).grade("0.9")[0], "the ends belong to it"


@given(
    answer=st.floats(1e-6, 1e15) | st.floats(-1e15, -1e-6),
    factor=st.floats(1.001, 1e6),
    at=st.floats(-3, 3),
)
def test_a_guess_may_be_as_much_too_small_as_too_large(answer, factor, at):
    """A band of as much on both sides, answer ± factor, would take 0 for a guess."""
    guess = quiz("?", answer=answer, factor=factor, rtol=0)
    assume(abs(abs(at) - 1) > 1e-6)
    for sign in (1, -1):
        assert guess.grade(answer * factor ** (sign * at))[0] == (abs(at) < 1)
    assert not guess.grade(0)[0] and not guess.grade(-answer)[0]
