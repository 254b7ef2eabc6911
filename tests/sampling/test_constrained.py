"""Masks against brute force, JSON against Python's json, and the bias of masking."""

import json
import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from firsttoken.generate import generate
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.sampling import SamplingParams, constrained
from firsttoken.sampling.constrained import (
    Constraint,
    Json,
    Regex,
    accepts,
    keep_allowed,
    sequence_distributions,
    shortest_completion,
)

MODEL, TOK = load_model(), tokenizer()
TOKENS = [TOK.token_bytes(i) for i in range(TOK.vocab_size)]


def strict_json(text):
    """Say whether json.loads takes a text, without the three names that are no JSON."""

    def refuse(name):
        raise ValueError(name)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


# JSON.

documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)  # fmt: skip


@st.composite
def almost_json(draw):
    """A document as some program may write it, then up to three characters changed."""
    text = json.dumps(
        draw(documents),
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 1, "\t"])),
        separators=draw(st.sampled_from([None, (",", ":"), (" ,\r", "\n: ")])),
    )
    for _ in range(draw(st.integers(0, 3))):
        at, width = draw(st.integers(0, len(text))), draw(st.integers(0, 2))
        new = draw(st.text('[]{}",:\\ \n\t0123.-+eEtrufalsn/\x0b\x1f\x7f\xa0é', max_size=2))
        text = text[:at] + new + text[at + width :]
    return text


@given(almost_json() | st.text('[]{}",: 01.-e', max_size=8))
@example("1E5")
@example("-0.5e+3")
@example("2e-10")
@example('"\\uABCD\\ude0f\\b\\f"')
@example(" \t\r\n[ ]")
@example("[}")
@example('{"a":[1}')
def test_json_is_what_python_reads(text):
    assert accepts(Json(), text) == strict_json(text)
    for name in ("NaN", "[Infinity]", '{"a": -Infinity}'):  # Python reads more than JSON
        assert not accepts(Json(), name)


def test_nesting_has_a_limit():
    assert accepts(Json(max_depth=0), "1") and not accepts(Json(max_depth=0), "[]")
    for depth in (1, 2, 3, 16):
        language = Json(max_depth=depth) if depth < 16 else Json()  # 16 unless told
        assert accepts(language, "[" * depth + "]" * depth)
        assert not accepts(language, "[" * (depth + 1) + "]" * (depth + 1))
    assert accepts(Json(max_depth=1, root="object"), "{}")


def test_an_object_may_be_demanded_and_spaces_limited():
    language = Json(root="object", max_spaces=1)
    for text in ("{}", ' {\n}\t', '{"a  b": [1, 2, {}]}', '{ "a" : 1 }'):  # fmt: skip
        assert accepts(language, text)
    for text in ("[]", "0", '""', "", "  {}", '{"a":  1}', "{}  "):
        assert not accepts(language, text)
    assert accepts(Json(max_spaces=0), '{"a":[1,2]}') and not accepts(Json(max_spaces=0), "[1, 2]")
    assert accepts(Json(max_spaces=2), "[1,  2]") and not accepts(Json(max_spaces=2), "[1,   2]")


def test_json_names_what_is_wrong():
    for arguments, name in (
        ({"max_depth": -1}, "max_depth"),
        ({"max_depth": 0, "root": "object"}, "max_depth"),
        ({"max_spaces": -1}, "max_spaces"),
    ):
        with pytest.raises(ValueError, match=name):
            Json(**arguments)


# Masks. The vocabulary of a few bytes has tokens that end within a character.

LANGUAGES = [
    Regex("(ab|ac)*d?"),
    Regex("[^a]{1,3}"),
    Regex("é🙂|ê+"),
    Regex(""),
    Json(max_depth=3),
    Json(max_depth=2, root="object", max_spaces=1),
]
pieces = st.sampled_from([*"abcd", '"', "[", "]", "{", "}", ":", ",", "1", "-", " ", '":', "],"])
byte_tokens = pieces.map(str.encode) | st.sampled_from([b"\xc3", b"\xa9", b"\xf0\x9f", b"\x99"])
vocabularies = st.lists(
    st.lists(byte_tokens, max_size=3).map(b"".join), min_size=1, max_size=12
).map(lambda tokens: [b"", *tokens])


def beginnings(language, limit=400):
    """Return texts that lead to the states nearest to the start, one for each."""
    found = {language.start: b""}
    for state in (queue := [language.start]):
        for byte in range(256):
            after = language.step(state, byte)
            if after is not None and after not in found and len(found) < limit:
                found[after] = found[state] + bytes([byte])
                queue.append(after)
    return found


def test_missing_bytes_are_counted_rightly():
    """One byte less on the best way, never two; and the way leads to a text of the language."""
    for language in LANGUAGES:
        for state, text in beginnings(language, 150).items():
            missing = language.n_missing(state)
            after = [language.step(state, byte) for byte in range(256)]
            ahead = [language.n_missing(s) for s in after if s is not None]
            if missing:
                assert min(ahead) == missing - 1
            rest = shortest_completion(language, text)
            assert len(rest) == missing and accepts(language, text + rest)


@given(language=st.sampled_from(LANGUAGES), tokens=vocabularies, data=st.data())
def test_a_token_is_allowed_iff_a_valid_text_goes_on_with_it(language, tokens, data):
    """By trying it: every token, alone, from the beginning, without the tree."""
    states = beginnings(language, 60)
    text = states[data.draw(st.sampled_from(sorted(states, key=repr)))]
    constraint = Constraint(language, [*tokens, *(bytes([b]) for b in text)], eos_ids=[0])
    for i in range(len(text)):
        constraint.advance(len(tokens) + i)

    def can_go_on(more):
        try:
            return accepts(language, text + more + shortest_completion(language, text + more))
        except ValueError:
            return False

    expected = [accepts(language, text), *(t != b"" and can_go_on(t) for t in tokens[1:])]
    assert constraint.mask()[: len(tokens)].tolist() == expected
    for token, allowed in enumerate(expected):
        if allowed:
            constraint.advance(token)
            constraint.rollback(1)
        else:
            with pytest.raises(ValueError, match=f"token {token} .* not allowed"):
                constraint.advance(token)


def masks(constraint, tokens):
    """Return the masks before each token and after the last."""
    found = [constraint.mask()]
    for token in tokens:
        constraint.advance(token)
        found.append(constraint.mask())
    return found


@given(
    language=st.sampled_from([Json(4), Regex(r"(\w+ )*\w+\.")]),
    choices=st.lists(st.integers(0, 10**6), max_size=20),
    n=st.integers(0, 20),
    budget=st.integers(1, 30),
)
def test_rollback_equals_a_fresh_start(language, choices, n, budget):
    constraint, ids = Constraint(language, TOKENS, [0]), []
    for choice in choices:
        allowed = np.flatnonzero(constraint.mask())
        if len(allowed):
            ids.append(int(allowed[choice % len(allowed)]))
            constraint.advance(ids[-1])
    n = min(n, len(ids))
    before = constraint.copy()
    constraint.rollback(n)
    fresh = Constraint(language, TOKENS, [0])
    expected = masks(fresh, ids[: len(ids) - n])[-1]
    np.testing.assert_array_equal(constraint.mask(), expected)
    np.testing.assert_array_equal(constraint.mask(budget), fresh.mask(budget))
    assert constraint.complete == fresh.complete and constraint.finished == fresh.finished
    again = masks(constraint, ids[len(ids) - n :])  # what speculation checks a second time
    np.testing.assert_array_equal(again[-1], before.mask())


@pytest.mark.parametrize(("room", "n_kept"), [(1, 1), (12_000, 5), (10**6, 11)])
def test_languages_share_a_vocabulary_and_the_room_for_masks(monkeypatch, room, n_kept):
    """In turns, over the same states: each has its own masks, and no more are kept than fit."""
    monkeypatch.setattr(constrained, "_KEPT_BYTES", room)
    languages = [Regex("[a-z]{3}"), Regex("[0-9]{3}"), Json(4)]
    stored = Constraint(Regex(""), TOKENS, [0])
    shared = [stored.with_language(language) for language in languages]
    fresh = [Constraint(language, TOKENS, [0]) for language in languages]
    for _ in range(4):
        for one, other in zip(shared, fresh, strict=True):
            np.testing.assert_array_equal(one.mask(), other.mask())
            np.testing.assert_array_equal(one.mask(3), other.mask(3))
            costs = stored._costs
            held = sum(cost.nbytes for cost in costs.values())
            assert held <= costs.n_bytes <= room or len(costs) == 1
            token = int(np.flatnonzero(one.mask())[0])
            one.advance(token)
            other.advance(token)
    assert len(stored._costs) == n_kept
    assert stored.complete and len({mask.mask().tobytes() for mask in fresh}) > 1


def test_a_mask_is_kept_as_what_it_allows():
    """Thousands of narrow states take little room, however large the vocabulary."""
    constraint = Constraint(Regex("[ab]{3}=[0-9]{2}"), [*TOKENS, *[b"~"] * 10**5], [0])
    for text in (b"a", b"b", b"a", b"=", b"4", b"2"):
        constraint.mask()
        constraint.advance(TOKENS.index(text))
    assert len(constraint._costs) == 6 and constraint._costs.n_bytes < 10_000


def test_a_budget_is_what_the_way_byte_by_byte_needs():
    """The token, the fewest bytes behind it, and the end: that many suffice, one less does not."""
    tokens = [b"", *(bytes([b]) for b in range(256)), b"ab", b'{"', b"\xc3\xa9", b'":1']
    places = [(lang, text) for lang in LANGUAGES for text in beginnings(lang, 40).values()]
    for language, text in places:
        constraint = Constraint(language, tokens, [0])
        for byte in text:
            constraint.advance(1 + byte)
        needed = np.full(len(tokens), np.inf)
        needed[0] = 1 if accepts(language, text) else np.inf
        for token in np.flatnonzero(constraint.mask())[constraint.complete :].tolist():
            after = text + tokens[token]
            needed[token] = 1 + len(shortest_completion(language, after)) + 1
        for budget in (0, 1, 2, 3, 5):
            assert constraint.mask(budget).tolist() == (needed <= budget).tolist()
        assert constraint.min_tokens() == needed[:257].min()  # of tokens of one byte


def test_after_the_end_nothing_is_allowed():
    constraint = Constraint(Regex("a?"), [b"", b"a", b"", b"end"], [0, 3])
    assert constraint.mask().tolist() == [True, True, False, True] and constraint.complete
    constraint.advance(3)
    assert constraint.finished and constraint.complete and constraint.min_tokens() == 0
    assert constraint.mask().dtype == bool
    assert not constraint.mask().any()
    for token in (0, 1):
        with pytest.raises(ValueError, match="not allowed"):
            constraint.advance(token)
    constraint.rollback(1)
    assert not constraint.finished and constraint.mask().tolist() == [True, True, False, True]


def test_an_end_mark_with_bytes_is_no_text():
    constraint = Constraint(Regex("a*b?"), [b"a", b"b", b"ab", b"b\n"], eos_ids=[2, 3])
    assert constraint.mask().tolist() == [True, True, True, True]
    constraint = Constraint(Regex("a*b"), [b"a", b"b", b"ab", b"b\n"], eos_ids=[2, 3])
    assert constraint.mask().tolist() == [True, True, False, False]
    with pytest.raises(ValueError, match=r"token 2 .* not allowed"):
        constraint.advance(2)


def test_errors_name_what_is_wrong():
    def refused(message, function, *arguments):
        with pytest.raises(ValueError, match=message):
            function(*arguments)

    for eos_ids in ([], [1], [0, -1]):
        refused("eos_ids", Constraint, Json(), [b"a"], eos_ids)
    constraint = Constraint(Json(), TOKENS, [0])
    refused("token 1024 is outside", constraint.advance, 1024)
    refused("no beginning", shortest_completion, Json(), "[}")
    refused("allows no token", keep_allowed, np.zeros(3), np.zeros(3, dtype=bool))
    refused("mask must be booleans", keep_allowed, np.zeros(3), np.ones(3))


# The whole loop on the shipped model: every finished text is valid.

STRING = r'"([^"\\\n]|\\["\\n]){0,9}"'


def run(language, prompt, seed, close_in_time=False, **settings):
    """Generate under a constraint; return the Generation and the bytes said."""
    got = generate(
        MODEL,
        TOK.encode(prompt),
        SamplingParams(seed=seed, **settings),
        constraint=Constraint(language, TOKENS, MODEL.eos_ids),
        close_in_time=close_in_time,
    )
    return got, b"".join(TOKENS[i] for i in got.ids)


def test_finished_texts_are_valid_and_cut_ones_begin_a_valid_one():
    def is_string(text):
        return re.fullmatch(STRING, text, re.ASCII) is not None

    json_of_depth_3 = Json(max_depth=3, root="object", max_spaces=1)
    for language, is_valid, prompt in (
        (Regex(STRING), is_string, "name = "),
        (json_of_depth_3, strict_json, "data = "),
    ):
        reasons = set()
        for seed in range(6):
            params = {"max_tokens": 22, "repetition_penalty": 1.0 + 0.3 * (seed % 2)}
            got, said = run(language, prompt, seed, **params)
            reasons.add(got.finish_reason)
            if got.finish_reason != "eos":
                assert got.finish_reason == "length" and len(got.ids) == 22
                said += shortest_completion(language, said)
            assert is_valid(said.decode())
            got, said = run(language, prompt, seed, True, **params)
            assert got.finish_reason == "eos" and is_valid(said.decode())
        assert "eos" in reasons, prompt


# The bias of masking.


def toy_distribution(ids, weights):
    """Return the distribution of the next of three tokens: the end, a, b."""
    p = np.array(weights[len(ids) % len(weights)], dtype=float)
    p = np.roll(p, sum(ids))
    return p / p.sum()


@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3).filter(all), min_size=1))
def test_both_distributions_equal_their_definitions(weights):
    language, max_tokens = Regex("(ab?)*b"), 5
    constraint = Constraint(language, [b"", b"a", b"b"], [0])

    def all_texts(ids):
        """Yield every sequence of tokens up to its end, with its probability."""
        for token, p in enumerate(toy_distribution(ids, weights)):
            if token == 0:
                yield (*ids, 0), p
            elif len(ids) + 1 < max_tokens:
                yield from ((text, p * rest) for text, rest in all_texts([*ids, token]))

    masked, conditioned = sequence_distributions(
        lambda ids: toy_distribution(ids, weights), constraint, max_tokens
    )
    valid = {t: p for t, p in all_texts([]) if accepts(language, bytes(b"\0ab"[i] for i in t[:-1]))}
    total = sum(valid.values())
    assert masked.keys() == conditioned.keys() == valid.keys()
    for text, p in valid.items():
        assert conditioned[text] == pytest.approx(p / total)
        left = 1.0  # the mass that the mask leaves on the way
        step = constraint.copy()
        for i, token in enumerate(text):
            left *= toy_distribution(list(text[:i]), weights)[step.mask()].sum()
            step.advance(token)
        assert masked[text] == pytest.approx(p / left)
