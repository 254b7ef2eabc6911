"""Drafts: one pass for all, fewer under load, and nobody harmed by a bad one."""

from dataclasses import replace

import pytest

from engine.chain import CHAIN, GREEDY, VOCAB, AsRecorded, Near, idle
from firsttoken.engine import Engine
from firsttoken.generate import Proposal, generate, speculative_generate
from firsttoken.sampling import SamplingParams


def test_guesses_come_in_one_pass_and_turn_down_with_the_load():
    engine, records = Engine(CHAIN, 40, 4, 4, draft=CHAIN, gamma=lambda n: 4 - n), []
    engine.on_step = records.append
    for _ in range(3):
        engine.submit([1, 2], replace(GREEDY, max_tokens=12), ignore_eos=True)
    engine.run()
    assert records[1].gamma == 1 and records[1].kept == (1, 1, 1)  # the draft is always right
    assert engine.stats.accepted_tokens == engine.stats.drafted_tokens > 0


def test_a_draft_or_gamma_that_fails_harms_nobody_else():
    class Bad:
        def propose(self, request, n):
            if request.ids[0] == 2:
                return Proposal([VOCAB])
            return Proposal([])

    engine = Engine(CHAIN, 40, 4, draft=Bad())
    good, bad = (engine.submit([i], GREEDY, ignore_eos=True) for i in (1, 2))
    got = engine.run()
    assert isinstance(got[bad].error, ValueError) and got[good].error is None and idle(engine)

    def lose_count(n):
        raise LookupError("where?")

    engine = Engine(CHAIN, 40, 4, draft=CHAIN, gamma=lose_count)
    i = engine.submit([1], GREEDY, ignore_eos=True)
    assert engine.run()[i].ids == generate(CHAIN, [1], GREEDY, ignore_eos=True).ids
    assert {type(error) for error in engine.hook_errors} == {LookupError}


@pytest.mark.parametrize("seed", range(12))
def test_a_round_without_guesses_lets_the_draft_forget_what_was_rejected(seed):
    """As where the pool has no room for any. Alone, the draft is asked for none and cuts back."""
    gammas, params = iter([3, 0] * 8), SamplingParams(seed=seed, max_tokens=11)
    engine = Engine(CHAIN, 40, 4, draft=Near(), gamma=lambda n: next(gammas))
    i = engine.submit([1, 2], params, ignore_eos=True)
    answer = engine.run()[i]
    replayed = AsRecorded(Near(), answer.rounds)
    alone = speculative_generate(CHAIN, replayed, [1, 2], params, ignore_eos=True)
    assert (answer.ids, list(answer.rounds)) == (alone.ids, list(alone.rounds))


@pytest.mark.parametrize(("token_budget", "guesses"), [(12, 3), (11, 2), (9, 2), (8, 1), (5, 0)])
def test_guesses_take_what_the_budget_leaves(token_budget, guesses):
    """Three decode: each has its own token and as many guesses as all can have."""
    engine, records = Engine(CHAIN, 40, 4, 4, token_budget, draft=CHAIN, gamma=3), []
    for _ in range(3):
        engine.submit([1], replace(GREEDY, max_tokens=12), ignore_eos=True)
    engine.step()
    engine.on_step = records.append
    engine.step()
    assert records[0].gamma == guesses and len(records[0].decodes) == 3
