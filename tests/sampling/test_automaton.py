"""Patterns against Python's re: what matches, what is refused, and how texts are cut into bytes."""

import itertools
import re
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from firsttoken.sampling import automaton
from firsttoken.sampling.constrained import Regex, accepts


def is_match(pattern, text):
    return re.fullmatch(pattern, text, re.ASCII) is not None


# Patterns of the supported syntax, over few characters, so that texts often match.
LETTERS = "ab-é🙂\n"
literals = st.sampled_from([re.escape(c) for c in LETTERS] + [r"\x61", r"\u00e9", r"\n"])
escapes = st.sampled_from([r"\d", r"\w", r"\s", r"\D", r"\W", r"\S"])
ranges = st.sampled_from(["a-b", "a-é", "ç-🙂", r"\t-\r", "\u07ff-\ue000", r"\.-z"])
classes = st.builds(
    "[{}{}]".format,
    st.sampled_from(["", "^"]),
    st.lists(literals | escapes | ranges, min_size=1, max_size=3).map("".join),
)
bounds = st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{,2}", "{0,1}", "{1,3}", "{0}"])
patterns = st.recursive(
    literals | escapes | classes | st.just("."),
    lambda inner: (
        st.lists(inner, max_size=3).map("".join)
        | st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})")
        | st.builds("(?:{}){}".format, inner, bounds)
    ),
    max_leaves=6,
)
texts = st.text(LETTERS + "0_\t", max_size=6)


def regex(pattern):
    """Build an automaton, or drop the example: a pattern may match nothing, as [^\\s\\S]."""
    try:
        return Regex(pattern)
    except ValueError as error:
        assume("matches no text" not in str(error))
        raise


@given(pattern=patterns, data=st.data())
def test_regex_is_fullmatch(pattern, data):
    language = regex(pattern)
    text = data.draw(texts | st.from_regex(re.compile(pattern, re.ASCII), fullmatch=True))
    assume(not any("\ud800" <= c <= "\udfff" for c in text))  # UTF-8 has no bytes for these
    assert accepts(language, text) == is_match(pattern, text)


def test_regex_is_fullmatch_on_all_short_texts():
    """Where parts share a state, a loop of one must not open a way into another."""
    texts = ["".join(t) for n in range(6) for t in itertools.product("abc", repeat=n)]
    for pattern in (
        *("", "|a", "(a*|b)", "(a|b*)c", "(ab*)?c", "(a*b?)*c", "((a|b)*|c)a", "(a+|b+){2}"),
        *("(|a)+b", "(a?){2,3}", "a{0}b", "(a*b*)*", "(ab|a)(bc|c)?", "a*a*b", "(?:(a|bb)c?){1,2}"),
        *("[^a]*a", "[ab]{,2}c", ".?a.", "(a|ab)(c|bcc)*", r"a(b|c[^\s\S])", "[^a-cb-b]|a"),
    ):
        language = Regex(pattern)
        for text in texts:
            assert accepts(language, text) == is_match(pattern, text), (pattern, text)


def test_rarer_spellings():
    for pattern, text in (
        *[("X", "X"), ("[X]", "X"), (r"\x4A\u00Ea", "J\u00ea"), (r"\é", "é"), (r"\{\}", "{}")],
        *[("[a-]", "-"), ("[-a]", "-"), ("[a-a]", "a"), (r"[+-\-]", ","), ("a{12}", "a" * 12)],
        *[("[^\0-\U0010fffe]", "\U0010ffff"), ("[^\1-\U0010ffff]", "\0"), (r"\f\v", "\f\v")],
    ):
        language = Regex(pattern)
        assert is_match(pattern, text) and accepts(language, text), pattern
        assert not accepts(language, "~") and not accepts(language, text + text[-1]), pattern


@given(pattern=patterns, data=st.binary(max_size=8))
def test_bytes_that_are_no_text_never_match(pattern, data):
    try:
        expected = is_match(pattern, data.decode())
    except UnicodeDecodeError:
        expected = False
    assert accepts(regex(pattern), data) == expected


def test_every_character_is_cut_into_bytes_rightly():
    """Around each length of UTF-8, and around the surrogates, which it cannot write."""
    edges = [0, 0x7F, 0x80, 0x7FF, 0x800, 0xFFF, 0x1000, 0xD7FF, 0xE000, 0xFFFF, 0x10000]
    edges += [0x3FFFF, 0x40000, 0x10FFFF, 0x109, 0x8C3, 0x12345, 0x10ABC]
    near = {edge + step for edge in edges for step in (-1, 0, 1)} - {-1, 0x110000}
    near -= {*range(0xD800, 0xE000)}
    for low in edges:
        for high in (edge for edge in edges if edge >= low):
            pattern = f"[{re.escape(chr(low))}-{re.escape(chr(high))}]"
            language = Regex(pattern)
            for code in near:
                assert accepts(language, chr(code)) == (low <= code <= high)


def test_other_syntax_is_named_with_its_position():
    for pattern, position, reason in OTHER_SYNTAX:
        with pytest.raises(ValueError, match=rf"position {position}: .*{reason}"):
            Regex(pattern)


OTHER_SYNTAX = [
    *[("a(b", 3, r"missing \)"), ("ab)", 2, r"unbalanced \)"), ("a|+", 2, "nothing to repeat")],
    *[("({2})", 1, "nothing to repeat before {"), ("a*?", 2, "a second quantifier")],
    *[("a{2}{3}", 4, "a second quantifier"), ("a{3,2}", 5, "3 is more than 2")],
    *[("a{X}", 2, "expected {m}"), ("a{1,2,3}", 7, "expected {m}"), ("a{1", 3, "expected {m}")],
    *[("^a", 0, r"write \\."), ("a]", 1, r"write \\]"), ("[^]", 2, "an empty class")],
    *[("[b-a]", 3, "a range needs"), (r"[a-\d]", 4, "a range needs"), ("[ab", 3, "within a class")],
    *[("(?=a)", 1, "of the groups"), (r"(a)\1", 4, r"\\1 is not supported")],
    *[(r"\xg0", 3, r"\\x needs 2 hex"), (r"\u00gX", 5, r"\\u needs 4 hex")],
    *[(r"\u12", 4, "ends within an escape$"), ("a\\", 2, "ends within an escape$")],
]


def test_patterns_without_a_match_or_without_end():
    with pytest.raises(ValueError, match="matches no text"):
        Regex(r"a[^\s\S]")
    assert Regex(f"(a|b)*a{'(a|b)' * 5}").n_states >= 2**6  # it must remember six letters
    with pytest.raises(ValueError, match="more than max_states 1000"):
        Regex(f"(a|b)*a{'(a|b)' * 12}", max_states=1000)
    with pytest.raises(ValueError, match="more than max_states 10000"):
        Regex("a{100000}")


def test_exactly_max_states_suffice_and_parts_share_states():
    """One for each byte; one more where options meet, behind counts, and for each loop.

    There are two limits: the automaton before its states are sets of states, and the one after.
    In the last two patterns the sets outnumber the single states, so that only they meet it.
    """
    assert Regex("a|a", max_states=4).n_states == 2
    several = {f"(a|b)*a{'(a|b)' * n}": Regex(f"(a|b)*a{'(a|b)' * n}").n_states for n in (6, 7)}
    for pattern, n in {
        **{"": 1, "a": 2, "(a)": 2, "ab": 3, "é": 3, "[è-ê]": 3, "a|": 3, "a?": 3, "a|a": 4},
        **{"a*": 3, "a+": 4, "a{2}": 4, "a{2,}": 5, "a{,2}": 4, "[àÀ]": 3 + 1},
        **several,
    }.items():
        Regex(pattern, max_states=n)
        with pytest.raises(ValueError, match=f"max_states {n - 1}"):
            Regex(pattern, max_states=n - 1)


@pytest.mark.parametrize(
    "pattern",
    [
        *("(){600000}", "(){0,600000}", "(|){900000}", "((){1}|){900000}", "(a{0}){900000}"),
        *("(" * 400 + "a" + ")" * 400, f"({'()' * 900}a){{90}}", "((a?){60}){60}", "a" * 9000),
        *("(.*a){6}.{9}", "((a*)*)*" * 50, f"[{'!'.join(map(chr, range(0x400, 0x800)))}]{{40}}"),
    ],
    ids=range(12),
)
def test_work_is_bounded_by_the_length_and_the_states_whatever_the_pattern(pattern):
    """Counted in the module's lines. What a message repeats of the pattern is bounded, too."""
    n_lines = 0

    def count(frame, event, argument):
        nonlocal n_lines
        n_lines += frame.f_code.co_filename == automaton.__file__
        assert n_lines < 300_000 + 100 * len(pattern)
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        Regex(pattern, max_states=100)
    except ValueError as error:
        assert len(str(error)) < 200
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(
    ("anchored", "whole"),
    [("^a$", "a"), ("^a$|^b$", "a|b"), ("^(a|b)$", "(a|b)"), ("^$|^a$", "|a")],
)
def test_a_search_between_anchors_is_the_whole_text(anchored, whole):
    assert automaton.parse(anchored, search=True) == automaton.parse(whole)
