"""prefix_routing: what a prefix cache must find of a chat, and who is sent where."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttoken.paging import BlockPool
from firsttoken.prefix_routing import ROUTES, chat_trace, replay


def pools(n, n_blocks=2000, block_size=16):
    return [BlockPool(n_blocks, block_size, prefix_caching=True) for _ in range(n)]


def test_turns_of_a_chat_grow_by_answer_and_message():
    turns = chat_trace(5, np.random.default_rng(0), n_turns=4, n_system=10, n_user=3, n_answer=7)
    assert [turn.arrival_s for turn in turns] == sorted(turn.arrival_s for turn in turns)
    for conversation in range(5):
        own = [turn for turn in turns if turn.conversation == conversation]
        assert [len(turn.prompt) for turn in own] == [13, 23, 33, 43]
        for before, after in pairwise(own):
            assert after.prompt[:-3] == before.prompt + before.answer
        assert own[0].prompt[:10] == turns[0].prompt[:10]
    again = chat_trace(5, np.random.default_rng(0), n_turns=4, n_system=10, n_user=3, n_answer=7)
    assert again == turns


@settings(max_examples=25)
@given(block_size=st.integers(1, 70), n_system=st.integers(0, 100), seed=st.integers(0, 99))
def test_a_large_cache_finds_all_that_was_said(block_size, n_system, seed):
    """Full blocks of the turn before; the first turn of all finds nothing, of others the system's.

    Tokens are of so many kinds that two messages starting alike have odds below 1e-12.
    """
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


def test_routes():
    turns = chat_trace(40, np.random.default_rng(0))
    results = {route: replay(turns, pools(4), route) for route in ROUTES}
    assert results["round_robin"].pool.tolist() == [i % 4 for i in range(len(turns))]
    stays = {
        (turn.conversation, at)
        for turn, at in zip(turns, results["conversation"].pool, strict=True)
    }
    assert len(stays) == 40
    assert results["prefix"].hit_rate > 1.5 * results["round_robin"].hit_rate
    assert results["prefix"].imbalance < 1.2
    # The prefix alone: everybody follows the system prompt to the replica that saw it first.
    herd = replay(turns, pools(4), "prefix", max_imbalance=float("inf"))
    assert set(herd.pool) == {0}
    assert herd.imbalance == 4


CHAT = chat_trace(1, np.random.default_rng(0), n_turns=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: chat_trace(1, np.random.default_rng(0), rate=0), "rate must be positive"),
        (lambda: chat_trace(1, np.random.default_rng(0), n_turns=0), "n_turns must be an integer"),
        (lambda: chat_trace(1, np.random.default_rng(0), n_system=-1), "n_system must be an"),
        (lambda: replay([], pools(1)), "0 turns and 1 pools"),
        (lambda: replay(CHAT, []), "1 turns and 0 pools"),
        (lambda: replay(CHAT, pools(1), "random"), "route must be one of round_robin"),
        (lambda: replay(CHAT, pools(1), host=BlockPool(99, 16)), "must have prefix caching"),
        (lambda: replay(CHAT, pools(1), host=pools(1, block_size=8)[0]), "blocks of one size"),
        (lambda: replay(CHAT, pools(1, n_blocks=9)), "a turn of 512 tokens does not fit"),
        (lambda: replay(CHAT, pools(1), max_imbalance=0.9), "max_imbalance must be at least 1"),
    ],
)
def test_what_cannot_be(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_defaults_of_chats_and_routes():
    options = {"rate": 1.0, "think_s": 30.0, "n_turns": 5, "n_system": 256, "n_user": 64}
    options |= {"n_answer": 192, "vocab_size": 32000}
    turns = chat_trace(20, np.random.default_rng(0), **options)
    assert chat_trace(20, np.random.default_rng(0)) == turns
    default, said = (replay(turns, pools(3), *route) for route in ((), ("prefix", None, 1.1)))
    assert default.pool.tolist() == said.pool.tolist()
    once = replay(iter(turns), pools(3))  # turns may come from a generator
    assert once.pool.tolist() == default.pool.tolist()
