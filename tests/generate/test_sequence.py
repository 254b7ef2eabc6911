"""One request: every way to end, stop strings, penalties and constraints, without a model."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.architectures import Architecture
from firsttoken.drafts import branches
from firsttoken.generate.sequence import Generation, TextOptions, TokenSequence
from firsttoken.models.tokenizer import tokenizer
from firsttoken.sampling import SamplingParams, keep_top_k, next_token_distribution
from firsttoken.sampling.constrained import Constraint, Json, Regex, keep_allowed
from firsttoken.sampling.params import penalize
from firsttoken.speculative import Round

TOK = tokenizer()


def greedy(**changes):
    return SamplingParams(temperature=0.0, **changes)


def sequence(model, prompt, params, on_token=None, tokenizer=None, **options):
    return TokenSequence(model, prompt, params, on_token, tokenizer, TextOptions(**options))


def say(ids, params, prompt=(1,), vocab_size=1024, max_context=None, eos_ids=(), **options):
    """Continue a prompt as a model would that wants these tokens, one after another, for ever."""
    arch = Architecture("script", 1, 2, 1, 1, 2, 2, vocab_size, max_context=max_context)
    model = SimpleNamespace(arch=arch, eos_ids=eos_ids)
    request = sequence(model, prompt, params, **options)
    request.note_prefill()
    for token in itertools.cycle(ids):
        request.append(request.choose(np.where(np.arange(vocab_size) == token, 9.0, 0.0)))
        if request.finish_reason is not None:
            return request.result()


def test_the_end_of_the_text_and_the_context_are_limits():
    got = say([5, 9, 7], greedy(max_tokens=5), eos_ids=(8, 9))
    assert (got.ids, got.finish_reason) == ([5, 9], "eos")
    got = say([5, 9, 7], greedy(max_tokens=3), eos_ids=(9,), ignore_eos=True)
    assert (got.ids, got.finish_reason) == ([5, 9, 7], "length")
    for max_context, max_tokens, n, reason in (
        (6, 5, 2, "context"),
        (6, 2, 2, "length"),
        (5, 9, 1, "context"),
    ):
        got = say([5], greedy(max_tokens=max_tokens), [1, 2, 3, 4], max_context=max_context)
        assert (got.ids, got.finish_reason) == ([5] * n, reason)
    with pytest.raises(ValueError, match="prompt_ids hold 6 tokens, expected fewer"):
        say([5], greedy(), [1] * 6, max_context=6)
    with pytest.raises(ValueError, match="prompt_ids must hold at least one id"):
        say([5], greedy(), [])
    with pytest.raises(TypeError):
        say([5], greedy(), [1.0])


def test_stop_strings_end_the_text_wherever_they_fall():
    for said, stop, text in (
        ("one two three", ("three", "o t"), "one tw"),  # the one that comes first
        ("naïve 🙂 end", ("🙂",), "naïve "),  # a character of several tokens
        ("one        two", (" ",), "one"),  # several in one token
    ):
        ids = TOK.encode(said)
        got = say(ids, greedy(max_tokens=len(ids), stop=stop), tokenizer=TOK)
        assert (got.text, got.finish_reason) == (text, "stop")
        assert got.ids == ids[: len(got.ids)] and TOK.decode(got.ids).startswith(text)
        # It stopped as soon as it could.
        assert not any(s in TOK.decode(got.ids[:-1]) for s in stop)


@given(text=st.text("ab ", min_size=1), stop=st.lists(st.text("ab ", min_size=1), min_size=1))
def test_stop_strings_equal_a_search_of_the_whole_text(text, stop):
    ids = TOK.encode(text)
    got = say(ids, greedy(max_tokens=len(ids), stop=tuple(stop)), tokenizer=TOK)
    so_far = TOK.decode(got.ids)
    found = [so_far.find(s) for s in stop if s in so_far]
    assert (got.finish_reason == "stop") == bool(found) == any(s in text for s in stop)
    assert got.text == (so_far[: min(found)] if found else text)


def test_text_needs_a_tokenizer_and_leaves_the_end_mark_out():
    ids = [*TOK.encode("said"), 0]
    got = say(ids, greedy(max_tokens=9), eos_ids=(0,), tokenizer=TOK)
    assert (got.ids, got.text, got.finish_reason) == (ids, "said", "eos")
    assert say(ids, greedy()).text is None
    with pytest.raises(ValueError, match="needs a tokenizer"):
        say(ids, greedy(stop="x"))


def request_of(params, prompt=(1,), eos_ids=(), **options):
    model = SimpleNamespace(arch=Architecture("script", 1, 2, 1, 1, 2, 2, 5), eos_ids=eos_ids)
    return sequence(model, prompt, params, **options)


def test_each_row_follows_the_text_and_what_is_drafted_before_it():
    """Penalties and the constraint see the same beginning, of a chain as of a tree."""
    penalties = {"repetition_penalty": 1.7, "presence_penalty": 0.4, "frequency_penalty": 0.9}
    params, drafted = SamplingParams(temperature=0.7, **penalties), [3, 1, 3, 2]
    shapes = None, [-1, 0, 1, 2], [-1, -1, 0, 1], [-1, 0, 0, 2]
    for parents, constrained, n in itertools.product(shapes, (False, True), (1, 2, 5)):
        constraint = letters("a((a|c)b?)*") if constrained else None
        request = request_of(params, [2, 4], constraint=constraint)
        request.append(1)
        logits = np.random.default_rng(0).normal(size=(n, 5))
        before = branches(drafted, parents or [-1, 0, 1, 2])[-n:]
        expected = logits
        if constrained:  # a b may come behind all but the first letter and another b
            b_may_come = np.array([bool(begun) and begun[-1] != 2 for begun in before])
            expected = np.where((np.arange(5) != 2) | b_may_come[:, None], logits, -np.inf)
        for function, reference in (
            (request.distributions, next_token_distribution),
            (request.scores, penalize),
        ):
            rows = [
                reference(row, params, [2, 4], [1, *begun])
                for row, begun in zip(expected, before, strict=True)
            ]
            np.testing.assert_allclose(function(logits, drafted, parents), rows)
        assert request.ids == [2, 4, 1]


def test_tokens_are_drawn_from_the_distribution_with_the_seed():
    params = SamplingParams(temperature=0.7, seed=3)
    logits, (one, two) = np.array([0.1, 2.0, 1.0, 0.3, 0.2]), (request_of(params) for _ in range(2))
    edges = two.distributions(logits[None])[0].cumsum()
    drawn = [one.choose(logits) for _ in range(20)]
    assert drawn == np.searchsorted(edges, two.rng.random(20), side="right").tolist()
    other = request_of(replace(params, seed=4))
    assert drawn != [other.choose(logits) for _ in range(20)]
    bound = request_of(params, constraint=letters("ac"))
    assert [bound.choose(logits, drafted) for drafted in ([], [1], [1, 3])] == [1, 3, 0]


def test_a_guess_that_ends_the_text_is_the_last():
    """And what is said behind the end is not looked at."""
    request = request_of(greedy(), eos_ids=(3,))
    assert request.possible([1, 3, 2]) == [1, 3] and request.possible([]) == []
    assert request.ended_by([1, 3]) and not request.ended_by([3, 1]) and not request.ended_by([])
    assert request_of(greedy(), eos_ids=(3,), ignore_eos=True).possible([3, 3]) == [3, 3]
    request.append(3)
    assert request.ended_by([]) and request.finish_reason == "eos"
    constrained = request_of(greedy(), constraint=letters("ab"))
    assert constrained.possible([1, 2, 0, 1]) == [1, 2, 0] and constrained.possible([1, 1]) == [1]
    got = request_of(greedy(), constraint=letters("a")).scores(np.zeros((3, 5)), [1, 0])
    assert np.isfinite(got[:2]).tolist() == [[t == allowed for t in range(5)] for allowed in (1, 0)]


def test_a_result_has_what_came_and_when():
    """Only the first prefill is noted."""
    seen = []
    request = request_of(greedy(max_tokens=3), [4, 4], on_token=seen.append)
    for token in (1, 2, 3):
        request.note_prefill()
        assert request.finish_reason is None
        with pytest.raises(AssertionError):  # not yet
            request.result()
        request.append(token)
    rounds = [Round(4, 2), Round(3, 0)]
    got = request.result(rounds)
    assert got.ids == seen == [1, 2, 3] and got.rounds == tuple(rounds)
    assert (got.drafted, got.accepted) == (7, 2)
    assert 0 < got.prefill_s <= got.token_times_s[0] and len(got.token_times_s) == 3
    assert got.token_times_s == sorted(got.token_times_s)
    empty = Generation([], [], 0.0, "length")
    assert (empty.text, empty.rounds, empty.drafted, empty.accepted) == (None, (), 0, 0)


# Under a constraint; tests/test_constrained.py checks the texts of the shipped model.

LETTERS = [b"", b"a", b"b", b"c", b"ab"]


def letters(pattern, tokens=LETTERS):
    return Constraint(Regex(pattern), tokens, [0])


def test_the_mask_comes_before_the_filters():
    """The script wants c, which is forbidden: of what is left, the first is taken."""
    got = say([3], greedy(max_tokens=9), vocab_size=5, constraint=letters("ab|b"))
    assert (got.ids, got.finish_reason) == ([1, 2, 0], "eos")
    params = SamplingParams(temperature=1.0, top_k=1, max_tokens=9)
    assert say([3], params, vocab_size=5, constraint=letters("ab|b")).ids == [1, 2, 0]
    wrong = keep_top_k(np.array([0.0, 0.0, 0.0, 9.0, 0.0]), 1)  # filters first: they keep c alone
    assert not (letters("ab|b").mask() & np.isfinite(wrong)).any()
    with pytest.raises(ValueError, match="finite largest"):
        keep_top_k(keep_allowed(wrong, letters("ab|b").mask()), 1)


def test_the_constraint_says_what_ends_the_text():
    """Here c does, which to the model is a token like others; its own end mark does not."""
    constraint = Constraint(Regex("a+"), LETTERS, eos_ids=[3])
    params, options = greedy(max_tokens=9), {"vocab_size": 5, "eos_ids": (0, 1)}
    got = say([0, 1, 3], params, [4], constraint=constraint, **options)
    assert (got.ids, got.finish_reason) == ([1, 1, 3], "eos")


def test_cut_texts_are_beginnings_unless_closed_in_time():
    """The script says a for ever, and meets either limit: cut by it, or closed before it."""
    for max_context, reason in ((None, "length"), (7, "context")):
        params = greedy(max_tokens=5 if max_context is None else 50)
        options = {"vocab_size": 5, "max_context": max_context, "constraint": letters("(aa)*b")}
        cut = say([1], params, [4, 4], **options)
        assert (cut.ids, cut.finish_reason) == ([1] * 5, reason)
        closed = say([1], params, [4, 4], close_in_time=True, **options)
        assert (closed.ids, closed.finish_reason) == ([1, 1, 2, 0], "eos")
    options = {"vocab_size": 5, "constraint": letters("aa"), "close_in_time": True}
    assert say([1], greedy(max_tokens=3), **options).ids == [1, 1, 0]  # just enough room


def test_what_is_drafted_takes_room_from_what_closes_in_time():
    """Behind two a's three places of five are left: another pair would not close in them."""
    options = {"constraint": letters("(aa)*b"), "close_in_time": True}
    request = request_of(greedy(max_tokens=5), [4], **options)
    logits = np.array([0.0, 9.0, 1.0, 0.0, 0.0])
    assert request.possible([1, 1, 1]) == [1, 1]
    assert [request.choose(logits, [1] * n) for n in range(3)] == [1, 1, 2]
    request.append(1)
    assert request.possible([1, 1]) == [1]
    assert [request.choose(logits, [1] * n) for n in range(2)] == [1, 2]


def test_wrong_constraints_are_named():
    for options, message in (
        ({"constraint": letters("a"), "ignore_eos": True}, "ignore_eos must be False"),
        ({"constraint": letters("aaa"), "close_in_time": True}, "leave 3 tokens.* take 4"),
        ({"constraint": letters("d")}, "mask allows no token"),
        ({"constraint": Constraint(Json(), [b"", b"1"], [0])}, r"mask must be booleans \(5,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            say([1], greedy(max_tokens=3), vocab_size=5, **options)
