"""What a request may ask of the engine: priority, deadline, log-probabilities, n, guesses."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.engine import Engine, QueueFull
from firsttoken.generate import Proposal, generate
from firsttoken.sampling import SamplingParams
from test_engine import CHAIN, VOCAB, Near, idle, prompts, wishes

GREEDY = SamplingParams(0.0, max_tokens=4)


# --- the line


def test_a_lower_priority_goes_first_and_last_in_line_is_preempted():
    order = []
    engine = Engine(CHAIN, 20, 2, max_batch=1)
    for priority in (0, 5, -1, 5, -1):
        i = engine._counts["submitted"]
        engine.submit([1], GREEDY, lambda _, i=i: order.append(i), True, priority=priority)
    engine.run()
    assert list(dict.fromkeys(order)) == [2, 4, 0, 1, 3] and idle(engine)

    engine, records = Engine(CHAIN, 5, 2), []
    engine.on_step = records.append
    for priority in (1, 0):
        engine.submit([1, 2], replace(GREEDY, max_tokens=7), ignore_eos=True, priority=priority)
    assert len(engine.run()) == 2 and idle(engine)
    assert {i for record in records for i in record.preempted} == {0}


def test_a_deadline_ends_a_request_wherever_it_is():
    clock = [0.0]

    class Slow(Engine):
        def now_s(self):
            return clock[0]

    engine = Slow(CHAIN, 20, 2, max_batch=1)
    running = engine.submit([1], GREEDY, ignore_eos=True, deadline_s=2)
    waiting = engine.submit([1], GREEDY, ignore_eos=True, deadline_s=1)
    engine.step()
    clock[0] = 1.0
    got = engine.step()
    assert [(i, a.finish_reason, a.ids) for i, a in got.items()] == [(waiting, "deadline", [])]
    clock[0] = 2.0
    got = engine.step()
    alone = generate(CHAIN, [1], GREEDY, ignore_eos=True).ids
    assert (got[running].finish_reason, got[running].ids) == ("deadline", alone[:2])
    assert idle(engine) and engine.stats.expired == 2


def test_a_full_queue_takes_all_or_none():
    engine = Engine(CHAIN, 20, 2, max_waiting=3)
    engine.submit_many([1], GREEDY, 2)
    with pytest.raises(QueueFull, match="max_waiting: 3"):
        engine.submit_many([1], GREEDY, 2)
    assert engine.stats.waiting == 2
    engine.submit([1], GREEDY)
    with pytest.raises(QueueFull):
        engine.submit([1], GREEDY)
    assert len(engine.run()) == 3 and idle(engine)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adapter": "loud"}, "adapter 'loud' is unknown, .* the engine has no adapters"),
        ({"priority": 0.5}, "priority must be a whole number"),
        ({"deadline_s": 0}, "deadline_s must be above 0"),
        ({"logprobs": -1}, "logprobs must be"),
        ({"logprobs": VOCAB + 1}, "logprobs must be at most"),
    ],
)
def test_wrong_wishes_are_named(options, message):
    engine = Engine(CHAIN, 20)
    with pytest.raises(ValueError, match=message):
        engine.submit([1], GREEDY, **options)
    assert engine.stats.submitted == 0


def test_abort_returns_what_there_is_and_no_step_does():
    engine = Engine(CHAIN, 20)
    i = engine.submit([1], GREEDY, ignore_eos=True)
    engine.step()
    answer = engine.abort(i)
    assert (answer.finish_reason, len(answer.ids)) == ("abort", 1)
    assert engine.step() == {} and idle(engine)


def test_a_callback_cannot_step():
    engine = Engine(CHAIN, 20)
    i = engine.submit([1], GREEDY, on_token=lambda token: engine.step())
    assert "step was called within a step" in str(engine.run()[i].error)


# --- log-probabilities


@given(prompts, wishes, st.integers(0, VOCAB), st.sampled_from([None, Near()]))
def test_logprobs_are_those_of_a_pass_over_the_text(prompt, params, n, draft):
    engine, in_time = Engine(CHAIN, 20, 3, draft=draft), []
    i = engine.submit(
        *(prompt, params, lambda token: in_time.append(engine.told(i)[-1])),
        ignore_eos=True,
        logprobs=n,
    )
    answer = engine.run()[i]
    assert tuple(in_time) == answer.logprobs
    with pytest.raises(KeyError, match="has ended"):
        engine.told(i)
    logits = CHAIN([[*prompt, *answer.ids]], CHAIN.new_cache(1, 40))[0].astype(np.float64)
    p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    assert [told.token for told in answer.logprobs] == answer.ids
    for row, told in zip(p[len(prompt) - 1 :], answer.logprobs, strict=False):
        assert told.logprob == pytest.approx(row[told.token], abs=1e-5)
        assert [logprob for _, logprob in told.top] == pytest.approx(
            np.sort(row)[::-1][:n].tolist(), abs=1e-5
        )


# --- many answers, and guesses


def test_answers_share_their_prompt():
    prompt = [1, 2] * 7 + [1]
    engine, used = Engine(CHAIN, 40, 4), []
    engine.on_step = lambda record: used.append(engine.pool.usage().used)
    engine.submit_many(prompt, replace(GREEDY, temperature=1.0, seed=1), 4, ignore_eos=True)
    engine.step()
    assert used == [4] and engine.stats.computed_tokens == len(prompt) + 3
    assert len(engine.run()) == 4 and idle(engine)
    assert used[1] == 3 + 4  # the last block of the prompt was copied for all but one


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


# --- where the time goes


def test_the_passes_of_the_model_are_timed_and_nothing_else():
    clock = [0.0]

    class Clocked(Engine):
        def now_s(self):
            return clock[0]

    class Slow(type(CHAIN)):
        def forward_ragged(self, tokens, caches):
            clock[0] += 2.0
            return super().forward_ragged(tokens, caches)

    def on_token(token):
        clock[0] += 1.0

    engine = Clocked(Slow(), 20, 2)
    engine.submit([1], GREEDY, on_token, True)
    engine.run()
    assert (engine.stats.steps, engine.stats.pass_s, clock[0]) == (4, 8.0, 12.0)
