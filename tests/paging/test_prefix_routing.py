"""Prefix routing: what a prefix cache must find of a chat, and who is sent where."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttoken.paging import BlockPool, Turn, chat_trace, replay


def pools(n, n_blocks=2000, block_size=16):
    return [BlockPool(n_blocks, block_size, prefix_caching=True) for _ in range(n)]


def test_turns_of_a_chat_grow_by_answer_and_message():
    def trace(**options):
        return chat_trace(5, np.random.default_rng(0), n_turns=4, **options)

    turns = trace(n_system=10, n_user=3, n_answer=7)
    assert [turn.arrival_s for turn in turns] == sorted(turn.arrival_s for turn in turns)
    for conversation in range(5):
        own = [turn for turn in turns if turn.conversation == conversation]
        assert [len(turn.prompt) for turn in own] == [13, 23, 33, 43]
        for before, after in pairwise(own):
            assert after.prompt[:-3] == before.prompt + before.answer
        assert own[0].prompt[:10] == turns[0].prompt[:10]
    assert trace(n_system=10, n_user=3, n_answer=7) == turns
    smallest = trace(n_system=0, n_user=1, n_answer=1, vocab_size=1)[0]
    assert (smallest.prompt, smallest.answer) == ((0,), (0,)) and smallest.arrival_s > 0


def test_chats_begin_at_their_rate_and_users_think():
    """Means of 4,000 exponential times: a right one is off by 6 % once in 10,000 seeds."""
    turns = chat_trace(
        4000, np.random.default_rng(0), rate=4.0, think_s=10.0, n_turns=2, n_user=1, n_answer=1
    )
    begin, again = {}, {}
    for turn in turns:
        (again if turn.conversation in begin else begin)[turn.conversation] = turn.arrival_s
    assert [begin[i] for i in range(4000)] == sorted(begin.values())
    assert begin[3999] / 4000 == pytest.approx(1 / 4, rel=0.06)
    assert np.mean([again[i] - begin[i] for i in range(4000)]) == pytest.approx(10, rel=0.06)


def test_lengths_may_be_drawn():
    """From the trace's generator: turns for a chat, a message and an answer for each of them."""
    generator = np.random.default_rng(0)

    def drawn(*lengths):
        left = iter(lengths)
        return lambda rng: next(left) if rng is generator else None

    lengths = {"n_turns": drawn(2, 1), "n_user": drawn(3, 4, 5), "n_answer": drawn(6, 7, 8)}
    turns = chat_trace(2, generator, n_system=2, **lengths)
    lengths = [
        [(len(t.prompt), len(t.answer)) for t in turns if t.conversation == c] for c in (0, 1)
    ]
    assert lengths == [[(2 + 3, 6), (2 + 3 + 6 + 4, 7)], [(2 + 5, 8)]]


@settings(max_examples=25)
@given(block_size=st.integers(1, 70), n_system=st.integers(0, 100), seed=st.integers(0, 99))
def test_a_large_cache_finds_all_that_was_said(block_size, n_system, seed):
    """Full blocks of the turn before; the very first finds nothing, others the system's."""
    lengths = {"n_turns": 3, "n_system": n_system, "n_user": 20, "n_answer": 30}
    turns = chat_trace(4, np.random.default_rng(seed), vocab_size=2**60, **lengths)
    result = replay(turns, pools(1, block_size=block_size))
    said = {}
    for i, turn in enumerate(turns):
        known = said.get(turn.conversation, n_system if i else 0)
        said[turn.conversation] = len(turn.prompt) + len(turn.answer)
        assert result.n_cached[i] == known // block_size * block_size
    assert result.hit_rate == pytest.approx(result.n_cached.sum() / result.n_prompt.sum())


def test_a_small_cache_finds_less_and_host_memory_makes_up_for_it():
    turns = chat_trace(40, np.random.default_rng(0))
    large = replay(turns, pools(1))
    small = replay(turns, pools(1, n_blocks=200))
    tiered = replay(turns, pools(1, n_blocks=200), host=pools(1)[0])
    assert small.hit_rate < large.hit_rate
    assert (tiered.n_cached == small.n_cached).all()
    assert (tiered.n_cached + tiered.n_loaded == large.n_cached).all()
    assert tiered.hit_rate == large.hit_rate
    assert (small.n_loaded == 0).all()
    assert small.work.sum() == small.n_computed.sum() + sum(len(turn.answer) for turn in turns)


FIRST, SECOND, THIRD = (tuple(range(n, n + 8)) for n in (100, 200, 300))
ANSWER = (1, 2, 3, 4)
BY_HAND = [
    Turn(0.0, 0, FIRST, ANSWER),  # twelve tokens of work for pool 0
    Turn(1.0, 1, SECOND, ANSWER),  # and twelve for pool 1
    Turn(2.0, 0, (*FIRST, *ANSWER, 5), ANSWER),  # three blocks are in pool 0: 5 tokens of work
    Turn(3.0, 0, (*FIRST, 6), ANSWER),  # two blocks, but it has 17 where the mean is 14.5
    Turn(4.0, 4, THIRD, ANSWER),  # is nowhere: goes where least was done
]


def test_routes_by_hand():
    for route, max_imbalance, pool, n_cached, work in (
        ("prefix", 1.1, [0, 1, 0, 1, 0], [0, 0, 12, 0, 0], [29, 25]),
        ("prefix", 1.2, [0, 1, 0, 0, 1], [0, 0, 12, 8, 0], [22, 24]),
        ("round_robin", 1.1, [0, 1, 0, 1, 0], [0, 0, 12, 0, 0], [29, 25]),
        ("conversation", 1.1, [0, 1, 0, 0, 0], [0, 0, 12, 8, 0], [34, 12]),
    ):
        result = replay(BY_HAND, pools(2, block_size=4), route, max_imbalance=max_imbalance)
        assert result.n_prompt.tolist() == [8, 8, 13, 9, 8]
        got = result.pool.tolist(), result.n_cached.tolist(), result.work.tolist()
        assert got == (pool, n_cached, work), (route, max_imbalance)
        assert result.hit_rate == pytest.approx(sum(n_cached) / 46)
        assert result.imbalance == pytest.approx(max(work) / (sum(work) / 2))


def test_what_cannot_be():
    def refused(message, function, *arguments, **options):
        with pytest.raises(ValueError, match=message):
            function(*arguments, **options)

    rng, chat = np.random.default_rng(0), chat_trace(1, np.random.default_rng(0), n_turns=1)
    for bad in ("rate", "think_s"):
        refused(f"^{bad} must be positive", chat_trace, 1, rng, **{bad: 0})
    for bad in ("vocab_size", "n_user", "n_answer", "n_turns"):
        refused(f"^{bad} must be an integer of at least 1", chat_trace, 1, rng, **{bad: 0})
    refused("^n_system must be an integer of at least 0", chat_trace, 1, rng, n_system=-1)
    refused("^n_conversations must be an integer", chat_trace, 0, rng)
    refused("0 turns and 1 pools", replay, [], pools(1))
    refused("1 turns and 0 pools", replay, chat, [])
    refused("route must be one of round_robin", replay, chat, pools(1), "random")
    refused("must have prefix caching", replay, chat, pools(1), host=BlockPool(99, 16))
    refused("blocks of one size", replay, chat, pools(1), host=pools(1, block_size=8)[0])
    refused("max_imbalance must be at least 1", replay, chat, pools(1), max_imbalance=0.9)


def test_defaults_of_chats_and_routes():
    options = {"rate": 1.0, "think_s": 30.0, "n_turns": 5, "n_system": 256, "n_user": 64}
    options |= {"n_answer": 192, "vocab_size": 32000}
    turns = chat_trace(20, np.random.default_rng(0), **options)
    assert chat_trace(20, np.random.default_rng(0)) == turns
    default, said = (replay(turns, pools(3), *route) for route in ((), ("prefix", None, 1.1)))
    assert default.pool.tolist() == said.pool.tolist()
    once = replay(iter(turns), pools(3))  # turns may come from a generator
    assert once.pool.tolist() == default.pool.tolist()
