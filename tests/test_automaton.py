"""Patterns against Python's re: what matches, what is refused, and how texts are cut into bytes."""

import itertools
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from firsttoken.constrained import Regex, accepts


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


@pytest.mark.parametrize(
    "pattern",
    [
        *("", "|a", "(a*|b)", "(a|b*)c", "(ab*)?c", "(a*b?)*c", "((a|b)*|c)a", "(a+|b+){2}"),
        *("(|a)+b", "(a?){2,3}", "a{0}b", "(a*b*)*", "(ab|a)(bc|c)?", "a*a*b", "(?:(a|bb)c?){1,2}"),
        *("[^a]*a", "[ab]{,2}c", ".?a.", "(a|ab)(c|bcc)*"),
    ],
)
def test_regex_is_fullmatch_on_all_short_texts(pattern):
    """Where parts share a state, a loop of one must not open a way into another."""
    language = Regex(pattern)
    for n in range(6):
        for text in map("".join, itertools.product("abc", repeat=n)):
            assert accepts(language, text) == is_match(pattern, text)


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


@pytest.mark.parametrize(
    ("pattern", "position", "reason"),
    [
        ("a(b", 3, r"missing \)"),
        ("ab)", 2, "unbalanced"),
        ("*a", 0, "nothing to repeat"),
        ("a|+", 2, "nothing to repeat"),
        ("a*?", 2, "second quantifier"),
        ("a{2}{3}", 4, "second quantifier"),
        ("a{3,2}", 5, "3 is more than 2"),
        ("a{}", 2, "expected {m}"),
        ("a{b}", 2, "expected {m}"),
        ("a{1,2,3}", 7, "expected {m}"),
        ("a{1", 3, "expected {m}"),
        ("^a", 0, "anchors"),
        ("a$", 1, "anchors"),
        ("a]", 1, "write"),
        ("[]a]", 1, "empty class"),
        ("[^]", 2, "empty class"),
        ("[ab", 3, "ends within a class"),
        ("[b-a]", 3, "rising order"),
        (r"[a-\d]", 4, "rising order"),
        (r"[\d-z]", 4, "rising order"),
        ("(?=a)", 1, "only"),
        ("(?P<x>a)", 1, "only"),
        (r"a\b", 2, r"\\b is not supported"),
        (r"(a)\1", 4, r"\\1 is not supported"),
        (r"\xg0", 3, "hexadecimal"),
        (r"\u12", 4, "ends within an escape"),
        ("a\\", 2, "ends within an escape"),
    ],
)
def test_other_syntax_is_named_with_its_position(pattern, position, reason):
    with pytest.raises(ValueError, match=rf"position {position}: .*{reason}"):
        Regex(pattern)


def test_patterns_without_a_match_or_without_end():
    with pytest.raises(ValueError, match="matches no text"):
        Regex(r"a[^\s\S]")
    assert Regex(f"(a|b)*a{'(a|b)' * 5}").n_states >= 2**6  # it must remember six letters
    with pytest.raises(ValueError, match="more than max_states 1000"):
        Regex(f"(a|b)*a{'(a|b)' * 12}", max_states=1000)
    with pytest.raises(ValueError, match="more than max_states 10000"):
        Regex("a{100000}")


def test_exactly_max_states_suffice():
    """Both limits: the automaton before its states are sets of states, and the one after."""
    with pytest.raises(ValueError, match="max_states 3"):
        Regex("a|a", max_states=3)  # two sets, but of four states
    assert Regex("a|a", max_states=4).n_states == 2


@pytest.mark.parametrize("pattern", [f"(a|b)*a{'(a|b)' * n}" for n in (6, 7)])
def test_the_sets_of_states_may_number_max_states(pattern):
    """Here the sets outnumber the single states, so that only they meet the limit."""
    n_states = Regex(pattern).n_states
    assert _builds(pattern, n_states) and not _builds(pattern, n_states - 1)


def _builds(pattern, max_states):
    try:
        return bool(Regex(pattern, max_states=max_states))
    except ValueError:
        return False
