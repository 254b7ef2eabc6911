"""A trace in real time, and the margins of decisions."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.chain import CHAIN, VOCAB, idle
from firsttoken.batching import Request
from firsttoken.engine import Engine, decision_margins, serve_trace
from firsttoken.generate import generate
from firsttoken.sampling import SamplingParams, draw, next_token_distribution

# --- margins


@settings(max_examples=20)
@given(st.integers(0, 2000), st.sampled_from([0.0, 0.7, 1.5]), st.integers(0, 10**6))
def test_a_margin_is_how_far_the_decision_can_be_moved(draft, heldout, start, temperature, seed):
    params = SamplingParams(
        temperature=temperature, repetition_penalty=1.1, top_k=40, max_tokens=8, seed=seed
    )
    prompt = heldout[start : start + 9]
    ids = generate(draft, prompt, params, ignore_eos=True).ids
    margins = decision_margins(draft, prompt, ids, params)
    assert margins.shape == (8,) and (margins >= 0).all()
    rng = np.random.default_rng(seed)
    for i, (token, margin) in enumerate(zip(ids, margins.tolist(), strict=True)):
        logits = draft([prompt + ids[:i]])[0, -1]
        context = replace(params, temperature=temperature or 1.0, top_k=0), prompt, ids[:i]
        if temperature == 0:
            scores = np.log(next_token_distribution(logits, *context))
            rivals = np.delete(scores, token)
            assert scores[token] - rivals.max() == pytest.approx(margin, abs=1e-4)
        else:
            shares = next_token_distribution(logits, params, *context[1:])
            uniform = rng.random()

            def drawn(u, shares=shares):
                return draw(shares, SimpleNamespace(random=lambda shape: np.full(shape, u)))

            if margin == np.inf:
                assert (shares > 0).sum() == 1
                continue
            slack = 1e-5 + 0.001 * margin
            if margin > slack:
                near = uniform - margin + slack, uniform + margin - slack
                assert all(drawn(u) == token for u in near if 0 <= u < 1)
            far = uniform - margin - slack, uniform + margin + slack
            moved = any(drawn(u) != token for u in far if 0 <= u < 1)
            assert moved or min(abs(far[0]), abs(far[1] - 1)) <= 2 * slack  # an end of all shares


def test_a_margin_is_exact_in_a_large_vocabulary():
    """Sums of 100,000 shares in single precision would be wrong by more than some margins are."""
    logits = np.random.default_rng(0).normal(size=(1, 1, 100_000)).astype(np.float32)
    params = SamplingParams(seed=5)
    exact = np.cumsum(next_token_distribution(logits[0, 0], params, [1], []).astype(np.float64))
    nearest = np.abs(exact[:-1] / exact[-1] - np.random.default_rng(5).random()).min()
    margins = decision_margins(lambda tokens: logits, [1], [7], params)
    assert margins.tolist() == pytest.approx([nearest], rel=1e-6)


def test_a_margin_needs_an_answer_and_a_seed(draft):
    with pytest.raises(ValueError, match="ids must hold at least one token"):
        decision_margins(draft, [1], [], SamplingParams(temperature=0.0))
    with pytest.raises(ValueError, match=r"params\.seed must be given"):
        decision_margins(draft, [1], [2], SamplingParams())


# --- real time


def test_serving_sends_each_request_when_it_arrives():
    trace = [Request(0.05, 3, 4), Request(0.0, 2, 6), Request(0.05, 1, 1)]
    engine, records = Engine(CHAIN, n_blocks=20, block_size=2, max_batch=2), []
    engine.on_step = records.append
    before_s = engine.now_s()
    traces = serve_trace(engine, trace, [[1, 2, 1], [2, 2], [1]])
    begin_s = traces[1].arrival_s
    assert before_s <= begin_s
    for got, wanted in zip(traces, trace, strict=True):
        assert (got.n_prompt, got.n_output) == (wanted.n_prompt, wanted.n_output)
        assert got.arrival_s == pytest.approx(begin_s + wanted.arrival_s)
    # Each token came within its step, and the prompt's step did not begin before the arrival.
    by_arrival = [traces[i] for i in (1, 0, 2)]
    for request_id, got in enumerate(by_arrival):
        steps = [r for r in records if request_id in [*(p[0] for p in r.prefills), *r.decodes]]
        assert steps[0].start_s >= got.arrival_s
        for record, time_s in zip(steps, got.token_times_s, strict=True):
            assert record.start_s <= time_s <= record.end_s
    assert idle(engine)


@pytest.mark.parametrize(("arrival_s", "naps"), [(9.0, [7.0]), (1.5, [0.0]), (1.0, [])])
def test_an_idle_engine_sleeps_until_the_next_request_comes(monkeypatch, arrival_s, naps):
    """A second passes with each look at the clock: the request may have come meanwhile."""
    clock_s, slept = [0.0], []

    class Slow(Engine):
        def now_s(self):
            clock_s[0] += 1
            return clock_s[0] - 1

    def sleep(seconds):
        slept.append(seconds)
        clock_s[0] += seconds

    monkeypatch.setattr("firsttoken.engine.replay.time.sleep", sleep)
    serve_trace(Slow(CHAIN, n_blocks=8), [Request(arrival_s, 1, 1)], [[1]])
    assert slept == naps


def test_serving_names_what_is_wrong():
    engine = Engine(CHAIN, n_blocks=3, block_size=4)
    early = Request(0.0, 1, 1)
    for trace, texts, message in (
        ([early, early], [[1]], "1 prompts for 2 requests"),
        ([Request(0.0, 3, 1)], [[1, 1]], "2 ids for request 0, expected its n_prompt 3"),
        ([early, Request(0.1, 4, 10)], [[1], [1] * 4], "request 1: .* may need 13 places"),
        ([early, Request(0.1, 2, 1)], [[1], [1, VOCAB]], "request 1: tokens hold ids 1 … 5"),
    ):
        with pytest.raises(ValueError, match=message):
            serve_trace(engine, trace, texts)
    assert idle(engine) and engine.stats.submitted == 0  # refused before anything was sent
    engine.submit([1], SamplingParams(max_tokens=2))
    with pytest.raises(ValueError, match="expected an idle one"):
        serve_trace(engine, [], [])
