"""Exercises: a stub fails, the right answer passes, each mistake gets its own message."""

import html.parser
import math
import re
import shutil
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.exercises import (
    Question,
    Result,
    check,
    check_test,
    hint,
    placement,
    progress,
    quiz,
)
from firsttoken.start import CHAPTERS

CACHE = 2**32  # bytes: 4 GiB, 4.295 GB


# ---------------------------------------------------------------------------------------------
# Values


@pytest.mark.parametrize("stub", [None, ...])
def test_a_stub_is_open_and_not_right(stub):
    for result in (
        check(stub, 3.0),
        check(stub, abs, inputs=[(1,)]),
        check_test(stub, abs, {"wrong": float}),
    ):
        assert result.status == "open"
        assert not result


@pytest.mark.parametrize(
    "answer",
    [
        4.294967296,
        np.float32(4.295),
        np.array(4.295),
        "4 GiB",
        "4gib",
        "4,294,967,296 B",
        "4_294_967_296 bytes",
        "4 294 967 296 B",
        "4.294967296",
        " 4.295e0 GB ",
        "4295 MB",
        Fraction(4295, 1000),
        Decimal("4.295"),
    ],
)
def test_right_in_any_spelling(answer):
    assert check(answer, lambda: CACHE / 1e9, unit="GB")


MISTAKEN = [
    (4.0, "GiB; the question asks for GB"),
    (4294.967296, "answer in MB"),
    (4096, "answer in MiB"),
    (CACHE, "answer in B;"),
    (4.294967296 * 8, "bits"),
    (4.294967296 / 8, "bits"),
    (4.294967296 * 1.024**3, "1000 and 1024"),
    (4.294967296 * 2, "twice"),
    (4.294967296 / 2, "half"),
    (-4.294967296, "sign"),
    (1 / 4.294967296, "Upside down"),
    (4.25, "Close"),
    (5.5, "Too large."),
    (400, "more than a factor of 10"),
    (3.1, "Too small."),
    (0.01, "more than a factor of 10"),
    (-1, "sign"),
    (math.nan, "NaN"),
    (math.inf, "infinite"),
    (10**400, "infinite"),
    (True, "not a number in GB"),
    (1j, "not a number in GB"),
    ({4.295}, "not a number in GB"),
    ([4.295], "One number is expected; this has shape (1,)"),
    (lambda: 4.295, "function: call it"),
    ("four", "not a number that can be read"),
    ("4,29", "not a number that can be read"),
    ("4 apples", "Give the answer in GB"),
    ("1e999", "not a number that can be read"),
    ("9" * 10_000, "not a number that can be read"),
]


@pytest.mark.parametrize(("answer", "words"), MISTAKEN)
def test_each_slip_has_its_message(answer, words):
    result = check(answer, CACHE / 1e9, unit="GB")
    assert result.status == "wrong"
    assert words in result.message


def test_slips_without_a_family_of_units():
    assert "1000 times too large" in check(12_000, 12.0, unit="tokens").message
    assert "in ms" in check(8.02, 0.00802, unit="s").message
    assert "percent" in check(80, 0.8).message
    assert "percent" in check(0.8, 80, unit="%").message
    assert check("80 %", 0.8)
    assert check("80%", 80, unit="%")
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
    ]
    for answer, message in [(8.0, mistakes[0][1]), (16, mistakes[1][1]), (2e6, mistakes[2][1])]:
        assert check(answer, 4.0, mistakes=mistakes).message == message
    catch_all = [(lambda x: x != 4, "Neither."), (8.0, "Twice the layers.")]
    assert check(8.0, 4.0, mistakes=catch_all).message == "Twice the layers."
    assert check(4.0, 4.0, mistakes=[(4.0, "wrong")]), "the right answer is right first"


def test_tolerance_is_the_stated_law():
    assert check(100.1, 100, rtol=1e-3)
    assert not check(100.11, 100, rtol=1e-3)
    assert check(0.01, 0, atol=0.01)
    assert not check(100 + 1e-9, 100, rtol=0)


def test_arrays():
    want = np.arange(6.0).reshape(2, 3)
    assert check(want.tolist(), want)
    assert check(want.astype(np.float32), want)
    assert "transposed" in check(want.T, want).message
    assert "one number" in check(3.0, want).message
    assert "NaN at [1, 2]" in check(np.where(want == 5, np.nan, want), want).message
    wrong = want.copy()
    wrong[1, 0] = 7
    message = check(wrong, want).message
    assert "Wrong in 1 of 6 elements, the first at [1, 0]: 7." in message and "3" not in message
    assert "twice" in check(np.ones(3) * 2, np.ones(3)).message
    assert check([1.0, -np.inf], np.array([1.0, -np.inf]))
    assert not check([1.0, np.inf], np.array([1.0, -np.inf]))
    assert check([], np.zeros(0))
    assert "transposed" in check(want.T, want, mistakes=[(want * 3, "no")]).message
    assert check(want.T, want, mistakes=[(want.T, "Turn it.")]).message == "Turn it."


@dataclass
class Cost:
    flops: float
    name: str


def test_other_kinds_of_value():
    assert check(True, True)
    assert not check(1, True)
    assert not check(False, True)
    assert check({"a": 1.0, "b": [1, 2]}, {"a": 1, "b": (1, 2)})
    assert "key 'b' is missing" in check({"a": 1.0}, {"a": 1, "b": 2}).message
    assert "At key 'b': at [1]" in check({"b": ["x", "y"]}, {"b": ["x", "z"]}).message
    assert "length is 1" in check(["x"], ["x", "z"]).message
    assert check(Cost(1.0, "mlp"), Cost(1.0000001, "mlp"))
    assert "Flops: " in check(Cost(2.0, "mlp"), Cost(1.0, "mlp")).message
    assert check(np.array([True, False]), np.array([True, False]))
    assert not check(np.array([True, True]), np.array([True, False]))
    assert check(["x"], ["z"], mistakes=[(["x"], "Not x.")]).message == "Not x."


def test_torch_tensors_are_numbers():
    torch = pytest.importorskip("torch")
    assert check(torch.tensor([1.0, 2.0], dtype=torch.bfloat16, requires_grad=True), [1, 2])


def test_an_expected_value_that_cannot_be_computed_is_shown():
    """A reader who skipped a cell sees a box, and no answer passes."""
    result = check(1.0, lambda: missing_name)  # noqa: F821
    assert result.status == "open"
    assert "Run the cells above" in result.message
    assert not check(None, lambda x: 1 // 0, inputs=[(1,)])


# ---------------------------------------------------------------------------------------------
# Functions


def softmax(logits):
    weights = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def no_maximum(logits):
    with np.errstate(all="ignore"):
        return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)


def whole_sum(logits):
    return np.exp(logits - np.max(logits)) / np.exp(logits - np.max(logits)).sum()


LOGITS = [(np.array([0.0, 1.0]),), {"logits": np.array([[1.0, 2.0], [3.0, 5.0]])}, ([1000.0, 0.0],)]
MISTAKES = [(no_maximum, "Subtract the maximum."), (whole_sum, "Sum over the last axis.")]


def check_softmax(function):
    return check(function, softmax, inputs=LOGITS, mistakes=MISTAKES)


def test_a_right_function_passes_and_wrong_ones_are_recognised():
    result = check_softmax(lambda logits: softmax(logits))
    assert result
    assert "all 3 inputs" in result.message
    for wrong, message in MISTAKES:
        assert check_softmax(wrong).message == message


def test_the_failing_input_is_shown():
    result = check_softmax(lambda logits: np.asarray(logits))
    rows = dict(result.rows)
    assert rows["Input 1 of 3"] == "<lambda>(array([0., 1.]))"
    assert rows["Your result"] == "array([0., 1.])"
    assert rows["Expected"].startswith("array([0.268")
    result = check(lambda x, y: x, lambda x, y: x * y, inputs=[(3, 1), {"x": 2, "y": 5}])
    assert dict(result.rows)["Input 2 of 2"] == "<lambda>(x=2, y=5)"


def test_an_error_is_shown_with_its_line():
    def broken(logits):
        return logits.softmax()

    result = check_softmax(broken)
    assert result.message == "Your function stops with an error."
    assert "AttributeError" in result.rows[1][1]
    assert "return logits.softmax()" in result.rows[1][1]
    assert "SystemExit" in str(check_softmax(lambda logits: exit()))
    assert "positional argument" in str(check_softmax(lambda: 1))


def test_unwritten_functions_are_open():
    def todo(logits):
        raise NotImplementedError

    for stub in (todo, lambda logits: None, lambda logits: ...):
        assert check_softmax(stub).status == "open"
    assert check(lambda x: None, lambda x: None, inputs=[(1,)]), "None can be the right result"


def test_common_slips_of_functions():
    double = check(lambda n: 2 * n, lambda n: n, inputs=[(3,), (5,)])
    assert "twice" in double.message
    once = check(lambda n: 2 * n if n == 3 else n + 1, lambda n: n, inputs=[(3,), (5,)])
    assert "twice" not in once.message


def test_changing_the_input_is_seen():
    def normalise(x):
        x /= x.sum()
        return x

    result = check(normalise, lambda x: x / x.sum(), inputs=[(np.array([1.0, 3.0]),)])
    assert "changes its input" in result.message
    inputs = [([3, 1, 2],)]
    assert not check(lambda x: x.sort() or x, sorted, inputs=inputs)
    assert inputs == [([3, 1, 2],)], "the author's inputs stay as they are"
    assert check(lambda x: x.append(1), lambda x: x.append(1), inputs=[([],)])
    assert not check(lambda x: None, lambda x: x.append(1), inputs=[([],)])


def test_generators_give_both_the_same_stream():
    def draw(rng):
        return rng.random(3)

    assert check(draw, lambda rng: rng.random(3), inputs=[(np.random.default_rng(0),)])


def test_an_expected_value_error():
    def positive(x):
        if x < 0:
            raise ValueError(f"x is {x}; expected x >= 0")
        return x

    assert check(positive, positive, inputs=[(1,), (-1,)])
    assert "should raise ValueError" in check(abs, positive, inputs=[(1,), (-1,)]).message


# ---------------------------------------------------------------------------------------------
# Tests that the reader writes


def good_test(implementation):
    assert implementation(3) == 9
    assert implementation(-2) == 4


MUTANTS = {"doubles": lambda x: 2 * x, "keeps the sign": lambda x: x * abs(x)}


@pytest.mark.parametrize(
    ("reader", "words"),
    [
        (lambda f: None, "accepts everything: is an `assert` or a `return` missing?"),
        (lambda f: f(3) == 9, "accepts a wrong implementation: keeps the sign"),
        (lambda f: f(2) == 5, "Look at the values that it expects"),
        (lambda f: np.bool_(f(2) == 5), "rejects the correct implementation"),
        (lambda: None, "the slip may be in the test itself"),
        (7, "A function is needed"),
    ],
)
def test_a_weak_test_is_told_what_slips_through(reader, words):
    result = check_test(reader, lambda x: x * x, MUTANTS)
    assert result.status == "wrong"
    assert words in result.message


def test_a_good_test_passes():
    assert check_test(good_test, lambda x: x * x, MUTANTS)
    assert check_test(lambda f: f(3) == 9 and f(-2) == 4, lambda x: x * x, MUTANTS)

    def todo(implementation):
        raise NotImplementedError

    assert check_test(todo, abs, MUTANTS).status == "open"


# ---------------------------------------------------------------------------------------------
# Nothing that the reader passes raises


class Hostile:
    """Raises wherever it is touched."""

    def __getattribute__(self, name):
        raise RuntimeError("do not touch")

    def _raise(self, *args, **kwargs):
        raise RuntimeError("do not touch")

    __eq__ = __repr__ = __str__ = __array__ = __float__ = __len__ = __iter__ = __bool__ = _raise
    __call__ = __hash__ = __getitem__ = __deepcopy__ = _raise


class AlwaysEqual:
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


class Unreadable(list):
    def __repr__(self):
        raise SystemExit


class BadFloat(float):
    def __repr__(self):
        raise RecursionError

    def __float__(self):
        raise ZeroDivisionError


class BadText(str):
    def __getitem__(self, key):
        raise MemoryError


def recursive_list():
    loop = []
    loop.append(loop)
    return loop


def endless(*args, **kwargs):
    return endless(*args, **kwargs)


strange = st.one_of(
    st.builds(Hostile),
    st.builds(AlwaysEqual),
    st.builds(Unreadable),
    st.builds(BadFloat),
    st.builds(BadText),
    st.builds(recursive_list),
    st.sampled_from([endless, Hostile, int, type, 10**5000, "9" * 10**6, " " * 10**6, b"4", range]),
    st.text(),
    st.floats(),
    st.integers(),
    st.complex_numbers(),
    st.binary(),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.floats(), st.text(), st.builds(Hostile)),
        lambda inner: st.one_of(
            st.lists(inner), st.dictionaries(st.text(), inner), st.tuples(inner, inner)
        ),
        max_leaves=8,
    ),
)
SENTINEL = 2.718281828  # nothing above is this by chance


@given(answer=strange)
def test_check_never_raises_and_never_believes(answer):
    wanted = [
        SENTINEL,
        np.full((2, 2), SENTINEL),
        {"a": SENTINEL},
        ["x", SENTINEL, None],
        Cost(SENTINEL, "x"),
    ]
    for want in wanted:
        result = check(answer, want, mistakes=[(1.0, "one"), (lambda x: x == 3, "three")])
        assert not result
        assert_shows(result)
    assert_shows(check(answer, True))
    result = check(lambda x: answer, lambda x: SENTINEL * x, inputs=[(1,), (2,)])
    assert not result
    assert_shows(result)
    for result in (check(answer, lambda x: SENTINEL * x, inputs=[(1,)]), check_test_of(answer)):
        assert not result
        assert_shows(result)


def check_test_of(answer):
    return check_test(lambda f: answer, lambda x: x, {"never caught by a strange value": abs})


def assert_shows(result: Result):
    assert len(repr(result)) < 3000
    assert result._repr_html_().startswith("<div")


@given(answer=strange)
def test_grade_never_raises(answer):
    for question in (QUIZZES["size"], QUIZZES["one"], QUIZZES["several"]):
        right, message = question.grade(answer)
        assert not right
        assert message


@pytest.mark.parametrize("wrong", [AlwaysEqual(), [AlwaysEqual()], {"a": AlwaysEqual()}])
def test_objects_equal_to_everything_do_not_pass(wrong):
    for want in (1.0, True, ["x"], {"a": "x"}, None, Cost(1, "a"), {1, 2}):
        assert not check(wrong, want)


# ---------------------------------------------------------------------------------------------
# Quizzes: Python and the page's script must agree

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


class Text(html.parser.HTMLParser):
    """The text of an HTML fragment."""

    def __init__(self, fragment):
        super().__init__()
        self.text = ""
        self.feed(fragment)

    def handle_data(self, data):
        self.text += data


def visible(message: str) -> str:
    """Return a message as a page without MathJax shows it."""
    return re.sub(r"\$(2\^\{30\})\$", r"\\(\1\\)", message).replace("`", "")


@pytest.fixture(scope="module")
def page():
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.requests, page.problems = [], []
        page.on("request", lambda request: page.requests.append(request.url))
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        # Each quiz stands twice on the page, as when a chapter repeats a question.
        body = "".join(q._repr_html_() for q in QUIZZES.values()) * 2
        page.set_content(f"<!doctype html><html lang=en><title>t</title><body>{body}</body></html>")
        yield page
        browser.close()


def roots(page, name):
    found = page.locator(f'[data-quiz-id="{QUIZZES[name].quiz_id}"]')
    assert found.count() == 2
    return found


ANSWER = """([id, second, value]) => {
    const root = document.querySelectorAll(`[data-quiz-id="${id}"]`)[second];
    for (const input of root.querySelectorAll("input")) {
        if (Array.isArray(value)) input.checked = value.includes(Number(input.value));
        else input.value = value;
    }
    root.querySelector("button").click();
    const feedback = root.querySelector(".ft-feedback");
    return [feedback.classList.contains("ft-right"), feedback.lastElementChild.textContent];
}"""


@pytest.mark.browser
@pytest.mark.parametrize("name", QUIZZES)
def test_the_script_grades_as_python_does(page, name):
    asked = QUIZZES[name]
    verdicts = set()
    for value in PICKED.get(name, TYPED):
        given = [asked._spec["options"][i] for i in value] if name in PICKED else value
        right, message = asked.grade(given)
        verdicts.add(right)
        shown = page.evaluate(ANSWER, [asked.quiz_id, 0, value])
        assert [shown[0], " ".join(shown[1].split())] == [right, visible(message)], value
    assert verdicts == {True, False}, "the table must try both"


@pytest.mark.browser
def test_a_quiz_is_answered_by_keyboard_and_asks_nothing_of_the_network(page):
    first, second = roots(page, "size").all()
    field = first.get_by_label("Your answer")
    field.fill("")
    field.press_sequentially("4 GiB")
    field.press("Enter")
    assert "Right." in first.get_by_role("status").inner_text()
    assert second.get_by_role("status").inner_text() == "", "the twin answers for itself"
    field.press_sequentially("0")
    assert first.get_by_role("status").inner_text() == "", "a verdict goes with its answer"

    first, second = roots(page, "one").all()
    second.get_by_label("weights & biases").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert "It grows & grows." in second.get_by_role("status").inner_text()
    assert first.locator("input:checked").count() <= 1, "the twin's buttons are its own"
    assert first.get_by_role("group").first.get_by_text("Which is read once").is_visible()

    assert page.problems == []
    assert [url for url in page.requests if not url.startswith("about:")] == []


@pytest.mark.browser
def test_without_scripts_the_answer_is_in_a_fold(page):
    context = page.context.browser.new_context(java_script_enabled=False)
    plain = context.new_page()
    plain.set_content(QUIZZES["size"]._repr_html_())
    assert plain.get_by_text("How large is the cache").is_visible()
    assert not plain.get_by_role("button").is_visible()
    plain.locator("summary").click()
    assert "4.295 GB" in plain.locator("details").inner_text()
    plain.locator("input").press("Enter")
    assert plain.get_by_text("How large is the cache").is_visible(), "nothing was sent anywhere"
    context.close()


def test_a_quiz_keeps_its_id_and_carries_no_other():
    again = quiz("How many?", answer=1)
    assert again.quiz_id == QUIZZES["zero"].quiz_id != QUIZZES["size"].quiz_id
    assert " id=" not in again._repr_html_(), "an id could not stand twice on a page"


# ---------------------------------------------------------------------------------------------
# Placement and progress; tests/browser/test_progress.py looks at what the browser makes of them


def asked(chapter, several=False):
    """Return a question of a chapter, its options and its right answer."""
    right = ["a", "b"] if several else "a"
    return Question(f"Of {chapter}?", ["a", "b", "c"], right, chapter, f"Since {chapter}.")


@given(
    chapters=st.lists(st.sampled_from(list(CHAPTERS)), min_size=1, max_size=8),
    data=st.data(),
)
def test_start_with_the_first_chapter_whose_question_is_missed(chapters, data):
    """First in the book, in whatever order the questions come."""
    right = data.draw(st.lists(st.booleans(), min_size=len(chapters), max_size=len(chapters)))
    form = placement([asked(chapter) for chapter in chapters])
    given = ["a" if r else data.draw(st.sampled_from("bc")) for r in right]
    missed = [chapter for chapter, r in zip(chapters, right, strict=True) if not r]
    verdict, message = form.grade(given)
    assert verdict == (not missed)
    first = f"Start with {CHAPTERS[min(missed)].label}." if missed else "All of it is right."
    assert message.startswith(first)
    if missed:  # a reader is sent to a chapter that they can open
        assert ("It is not written yet; " in message) == (not CHAPTERS[min(missed)].n_tasks)
    for i, (chapter, r) in enumerate(zip(chapters, right, strict=True), 1):
        said = f"✓ Question {i} is right." if r else f"– Question {i}: not yet."
        assert f"{said} {CHAPTERS[chapter].label}: Since {chapter}." in message


def test_a_placement_asks_for_every_answer():
    form = placement([asked("01_generate"), asked("04_kv_cache", several=True)])
    first, second = "Question 1 is still open.", "Question 2 is still open."
    assert form.grade([]) == form.grade([None, None]) == (False, f"{first} {second}")
    assert form.grade(["a"]) == form.grade(["a", []]) == (False, second)
    assert form.grade(["I do not know yet", ["a", "b"]])[1].startswith("Start with 01")
    assert form.grade(["a", ["a"]])[1].startswith("Start with 04")
    assert form.grade(["a", {"b", "a"}])[0]
    for strange_answer in (None, 7, Hostile(), [Hostile(), Hostile()]):
        assert not form.grade(strange_answer)[0]


def test_plain_text_says_what_it_would_be():
    form = placement([asked("01_generate"), asked("04_kv_cache")])
    assert repr(form).splitlines()[:3] == [
        "? Where should you start?",
        "? Of 01_generate?",
        "    ( ) a",
    ]
    assert "Your browser counts" in repr(progress())
    assert f"04 The KV cache: {CHAPTERS['04_kv_cache'].n_tasks}" in repr(progress())


def test_only_a_right_result_with_a_name_is_recorded():
    assert 'data-task="Exercise 3"' in check(1, 1, name="Exercise 3, repair")._repr_html_()
    assert "&lt;b&gt;" in check(1, 1, name="<b>")._repr_html_()
    for result in (check(1, 1), check(1, 2, name="Exercise 3"), check(None, 1, name="Exercise 3")):
        assert "<script" not in result._repr_html_()
        assert "data-task" not in result._repr_html_()


# ---------------------------------------------------------------------------------------------
# What is shown


def test_hints_open_one_after_the_other():
    shown = hint("one `x < y`", "two $a$", "three")._repr_html_()
    assert shown.count("<details>") == shown.count("</details>") == 3
    assert shown.index("Hint 1 of 3") < shown.index("Hint 2 of 3") < shown.index("Hint 3 of 3")
    assert re.search(r"one <code>x &lt; y</code></div><details>", shown)
    assert r"two \(a\)</div><details>" in shown
    assert repr(hint("a", "b")) == "Hint 1: a\nHint 2: b"


def test_text_is_escaped_and_lone_dollars_are_fenced():
    shown = hint("<script>alert(1)</script> costs $5 or $6, `$x$ & y`; $a<b$")._repr_html_()
    assert "<script>alert" not in shown
    text = Text(shown[shown.index("</style>") :]).text
    assert "<script>alert(1)</script> costs $5 or $6, $x$ & y; \\(a<b\\)" in text
    assert 'ignore">$</span>5' in shown
    assert "<code>$x$ &amp; y</code>" in shown


def test_a_readers_text_cannot_break_the_page():
    result = check("<img src=x onerror=alert(1)>", 1.0, name="Ex <1>")
    assert "<img" not in result._repr_html_()
    assert "Ex &lt;1&gt;" in result._repr_html_()

    def bad(x):
        raise KeyError("<img src=x>")

    assert "<img" not in check(bad, abs, inputs=[(1,)])._repr_html_()


def test_results_say_their_verdict_in_words():
    """Colour alone would not do; the plain text is what a terminal shows."""
    right, wrong = check(2, 2, name="Exercise 1"), check(5, 2)
    assert repr(right) == "✓ Exercise 1: Right. 2"
    assert repr(wrong) == "✗ Not yet. Too large.\n    Your answer: 5"
    assert "Exercise 1: Right." in right._repr_html_()
    assert "Not yet." in wrong._repr_html_()
    assert 'role="status"' in wrong._repr_html_()


# ---------------------------------------------------------------------------------------------
# The author's mistakes


@pytest.mark.parametrize(
    ("call", "words"),
    [
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
        (lambda: placement([]), "at least one question"),
        (lambda: placement(["?"]), r"questions\[0\] must be a Question"),
        (lambda: placement([asked("4")]), r"chapter of questions\[0\] must be one of 00_start"),
        (lambda: placement([Question("?", "ab", "c", "04_kv_cache", "w")]), "among options"),
        (lambda: placement([Question("", "ab", "a", "04_kv_cache", "w")]), "text of questions"),
        (lambda: placement([Question("?", "ab", "a", "04_kv_cache", "")]), "why of questions"),
        (lambda: hint(), "at least one"),
        (lambda: hint("a", ""), r"steps\[1\]"),
    ],
)
def test_a_bad_call_says_what_is_wrong(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_a_rough_answer_has_no_rough_mistakes():
    """Else a guess that is far off would be told of a slip that nobody made."""
    days = quiz("How many days?", answer=64, rtol=0.5, mistakes=[(512, "Eight GPUs each.")])
    assert days.grade("40")[0] and days.grade("512")[1].endswith("Eight GPUs each.")
    assert "Eight" not in days.grade("365")[1]
