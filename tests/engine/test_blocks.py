"""Blocks: answers to one prompt share it."""

from dataclasses import replace

from engine.chain import CHAIN, GREEDY, idle
from firsttoken.engine import Engine


def test_answers_share_their_prompt():
    prompt = [1, 2] * 7 + [1]
    engine, used = Engine(CHAIN, 40, 4), []
    engine.on_step = lambda record: used.append(engine.pool.usage().used)
    engine.submit_many(prompt, replace(GREEDY, temperature=1.0, seed=1), 4, ignore_eos=True)
    engine.step()
    assert used == [4] and engine.stats.computed_tokens == len(prompt) + 3
    assert len(engine.run()) == 4 and idle(engine)
    assert used[1] == 3 + 4  # the last block of the prompt was copied for all but one


def test_an_answer_shares_with_whichever_sibling_still_runs():
    """Two of four run; the first is given up, and the third shares with the second."""
    engine = Engine(CHAIN, 40, 4, max_batch=2)
    ids = engine.submit_many([1, 2] * 8, replace(GREEDY, max_tokens=12), 4, ignore_eos=True)
    engine.step()
    engine.abort(ids[0])
    before = engine.stats.computed_tokens
    engine.step()
    assert engine.stats.computed_tokens == before + 2  # the second goes on, the third begins
