"""kernel: whose turn it is, what a clock says, and passes over many silent heads."""

from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from firsttoken.live import kernel
from firsttoken.models.inspection import look_inside
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.sampling import SamplingParams, next_token_distribution

MODEL, WORDS = load_model("draft"), tokenizer()
IDS = WORDS.encode_document("import os\n\nfor name in os.")
GREEDY = {"temperature": 0.0}


@pytest.fixture
def engine():
    return kernel.KernelEngine(MODEL, WORDS)


@pytest.fixture
def ticking(monkeypatch):
    """A clock on which a second passes each time that it is read."""
    clock = count()
    monkeypatch.setattr(kernel, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))


def ask(engine, name, **asked):
    """Return all values, in turns, of an answer; the last is its end."""
    told = [engine.hear({"id": name, "name": name, "asked": asked})]
    while told[-1]["kind"] == "event":
        told.append(engine.hear({"id": name}))
    assert told[-1]["kind"] == "done", told[-1]
    assert engine.hear({"id": name}) is None  # it is forgotten
    return [each["value"] for each in told]


def test_of_too_many_answers_the_oldest_falls_out(engine):
    """Eight may be under way."""
    for number in range(9):
        asked = {"ids": IDS, "params": GREEDY}
        engine.hear({"id": number, "name": "write", "asked": asked})
    assert engine.hear({"id": 0}) is None
    assert all(engine.hear({"id": number})["kind"] == "event" for number in range(1, 9))


def test_written_tokens_come_with_their_times(engine, ticking):
    """The clock is read before the text, and before and after each token."""
    *tokens, end = ask(engine, "write", ids=IDS, params=GREEDY, max_tokens=3, use_cache=False)
    assert [token["step_ms"] for token in tokens] == [1000] * 3
    assert [token["at_ms"] for token in tokens] == [2000, 4000, 6000]
    assert [token["ids_length"] for token in tokens] == [len(IDS) + n for n in (1, 2, 3)]
    assert [len(token["top"]) for token in tokens] == [10] * 3
    assert end == {"finish_reason": "length", "seconds": 7}


def test_rounds_come_with_their_times(engine, ticking):
    """The clock is read before the text, before and behind the guesses, and behind the check."""
    *rounds, end = ask(engine, "speculate", ids=IDS, params=GREEDY, gamma=3, max_tokens=6)
    assert {each["draft_ms"] for each in rounds} == {each["check_ms"] for each in rounds} == {1000}
    assert [each["at_ms"] for each in rounds] == [3000 * (n + 1) for n in range(len(rounds))]
    assert end["seconds"] == 3 * len(rounds) + 1
    written = 0
    for each in rounds:  # no guess is wanted that would have no place behind it
        assert each["wanted"] == min(3, 6 - written - 1) >= each["drafted"]
        written += len(each["tokens"])
    assert written == 6


def test_by_default_sixteen_tokens_and_ten_chances(engine):
    *tokens, _ = ask(engine, "write", ids=IDS, params=GREEDY)
    tokens = [token for token in tokens if token is not None]
    *rounds, _ = ask(engine, "speculate", ids=IDS, params=GREEDY)
    assert len(tokens) == sum(len(each["tokens"]) for each in rounds) == 16
    assert [each["wanted"] for each in rounds][:1] == [4]
    last = ask(engine, "next", ids=IDS, params=GREEDY)[-1]
    assert len(last["top"]) == 10 and last["n_kept"] == 1 and last["kept_entropy_bits"] == 0


def test_entropies_before_and_after_the_settings(engine):
    params = {"temperature": 0.7, "top_k": 5}
    found = ask(engine, "next", ids=IDS, params=params, top=3)[-1]
    logits = MODEL([IDS])[0, -1]
    kept = next_token_distribution(logits, SamplingParams(**params), IDS)
    kept = kept[kept > 0].astype(float)
    assert found["kept_entropy_bits"] == pytest.approx(-(kept * np.log2(kept)).sum(), abs=1e-4)
    assert found["kept_entropy_bits"] < found["entropy_bits"]


@pytest.mark.parametrize("n_ids", [1, 100, 300])
def test_each_head_alone_however_many_share_a_pass(engine, n_ids):
    """256 tokens go through a pass: two heads' texts of 100, one of 300."""
    ids = (IDS * 30)[:n_ids]
    heads = [(0, head) for head in range(5)]
    *alone, end = ask(engine, "withoutEach", ids=ids, heads=heads, watch=[5, 9])
    assert end is None
    assert [(each["layer"], each["head"]) for each in alone] == heads
    for head, each in zip(heads, alone, strict=True):
        expected = look_inside(MODEL, ids, [head]).next
        for token in (5, 9):
            assert each["p"][str(token)] == pytest.approx(expected[token], abs=1e-5)
