"""What passes between the server's two processes: commands, reports and errors.

Where a test asks an engine by hand, it stands in for the front: `send`, `receive`.
"""

import asyncio
import pickle
import select
import threading
from collections import defaultdict
from dataclasses import replace
from functools import partial

import pytest

from firsttoken.constrained import Constraint
from firsttoken.engine import QueueFull
from firsttoken.sampling import SamplingParams
from firsttoken.server import engine_process as back
from firsttoken.server.engine_client import EngineClient, EngineDown
from firsttoken.server.messages import (
    Abort,
    Ask,
    Finished,
    Reply,
    Submit,
    TokenNews,
    packed,
    portable,
    receive,
    send,
)
from served import ExactModel, Served, engine_thread, eventually, make_engine
from test_server_faults import LONG, SLOW_S, answers

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


def reports(connection, n_finished: int):
    """Yield what an engine reports until so many answers are complete."""
    while n_finished:
        report = receive(connection)
        n_finished -= sum(isinstance(news, Finished) for news in report.news)
        yield report


def test_news_come_in_order_and_agree_with_the_counts_beside_them():
    """Of each flight: first that it is taken, then its tokens one by one, then each answer."""
    engine = make_engine(ExactModel(), max_batch=3, n_blocks=7, block_size=4)
    params = SamplingParams(temperature=1.0, max_tokens=12, seed=3)
    asks = {7: [Ask([5, 6], params, 3, stream=True), Ask([9], params, stream=True)]}
    asks |= {8: [Ask([5, 6, 7], params, 2, stream=True, logprobs=2)], 9: [Ask([1], params)]}
    heard, counts = defaultdict(list), defaultdict(int)
    with engine_thread(lambda: engine) as connection:
        assert receive(connection).stats.submitted == 0
        for flight, each in asks.items():
            send(connection, Submit(flight, each))
        for report in reports(connection, 7):
            for news in report.news:
                heard[news.flight].append(news)
                counts[type(news)] += 1
            counts["steps"] += report.step is not None
            stats = report.stats
            assert stats.steps == counts["steps"] and stats.finished == counts[Finished]
            silent = stats.new_tokens - counts[TokenNews]  # nobody hears of flight 9's tokens
            assert 0 <= silent <= 12
            assert stats.submitted == sum(
                sum(ask.n for ask in asks[f]) for f in heard if heard[f][0].error is None
            )
        assert stats.preemptions and stats.running == stats.waiting == stats.usage.used == 0
    for flight, each in asks.items():
        accepted, *rest = heard[flight]
        assert accepted == Reply(flight, None)
        said = defaultdict(list)
        ended = set()
        for news in rest:
            assert news.index not in ended
            if isinstance(news, Finished):
                ended.add(news.index)
                assert news.answer.ids == said[news.index] or flight == 9
                assert news.submitted_s <= news.started_s
            else:
                said[news.index].append(news.token)
                assert (news.logprobs is not None) == (flight == 8)
        assert ended == set(range(sum(ask.n for ask in each)))


def test_an_engine_waits_for_a_front_that_does_not_read(monkeypatch):
    """It is some steps ahead, and no more, however long that takes; then nothing is missing."""
    full = threading.Event()

    def watched(connection, message):
        if not select.select([], [connection], [], 0)[1]:
            full.set()
        send(connection, message)

    monkeypatch.setattr(back, "send", watched)
    engine = make_engine(ExactModel(), max_batch=8)
    params = SamplingParams(temperature=0.0, max_tokens=400)
    with engine_thread(lambda: engine) as connection:
        receive(connection)
        send(connection, Submit(0, [Ask([5], params, 8, ignore_eos=True, stream=True)]))
        assert full.wait(120) and engine.unfinished
        # Who is dropped meanwhile is dropped before the next step.
        send(connection, Submit(1, [Ask([6], params)]))
        send(connection, Abort(1))
        told = []
        for report in reports(connection, 8):
            assert engine.stats.steps - report.stats.steps <= 40
            if report.step is not None:
                told.append(report)
        assert [report.stats.steps for report in told] == list(range(1, engine.stats.steps + 1))
        assert sum(isinstance(n, TokenNews) for r in told for n in r.news) == 8 * 400
        assert engine.stats.aborted == 1 and engine.pool.usage().used == 0


def test_who_is_dropped_frees_its_blocks_before_the_next_step():
    engine = make_engine(ExactModel())
    params = SamplingParams(temperature=0.0, max_tokens=400)
    with engine_thread(lambda: engine) as connection:
        receive(connection)
        send(connection, Submit(0, [Ask([5], params, 3, ignore_eos=True, stream=True)]))
        while not receive(connection).stats.new_tokens:
            pass
        send(connection, Abort(0))
        n_steps = engine.stats.steps + 1  # with the one that was under way
        while (report := receive(connection)).stats.running:
            pass
        assert report.stats.steps <= n_steps
        assert report.stats.usage.used == 0 and report.stats.aborted == 3


def test_a_form_is_read_once(monkeypatch):
    """Its masks take time: two requests that want the same one share them."""
    made = []

    def note(*arguments):
        made.append(Constraint(*arguments))
        return made[-1]

    monkeypatch.setattr(back, "Constraint", note)
    with Served() as served:
        for pattern in ("[ab]{2}", "[ab]{2}", "[cd]{2}"):
            got = served.post(prompt="a", guided_regex=pattern, max_tokens=9)
            text = got.json()["choices"][0]["text"]
            assert len(text) == 2 and set(text) <= set(pattern[1:3])
    assert len(made) == 2


# Errors.


class Local(Exception):
    """An error that can be pickled, but not read again."""

    def __init__(self, what, why):
        super().__init__(f"{what}: {why}")

    # Python's own does the same, but a package that another test imports (tblib) mends that.
    def __reduce__(self):
        return type(self), self.args


@pytest.mark.parametrize(
    ("error", "same"),
    [
        (ValueError("n", 3), True),
        (QueueFull("3 wait"), True),
        (Local("lost", "why"), False),
        (Exception("lost", lambda: 0), False),
        (SystemExit("lost"), False),
    ],
    ids=["ValueError", "QueueFull", "unreadable", "unpicklable", "no Exception"],
)
def test_an_error_arrives_as_it_is_or_says_what_it_was(error, same):
    got = pickle.loads(packed(portable(error))[8:])
    if same:
        assert type(got) is type(error) and got.args == error.args
    else:
        assert type(got) is RuntimeError and str(got) == repr(error)


@pytest.mark.parametrize("error", [Local("lost", "why"), Exception("lost", lambda: 0)])
def test_an_error_that_cannot_travel_hurts_nobody_else(error):
    def refuse(*arguments, **options):
        raise error

    with Served() as served:
        submit_many, step = served.engine.submit_many, served.engine.step
        served.engine.submit_many = refuse
        assert served.post(prompt="a").status_code == 500
        served.engine.submit_many = submit_many
        assert answers(served)
        served.engine.step = lambda: {
            i: replace(answer, finish_reason="error", error=error) for i, answer in step().items()
        }
        got = served.post(prompt="a")
        assert got.status_code == 500 and "lost" in got.json()["error"]["message"]
        served.engine.step = step
        assert answers(served)
        served.model.error = error
        assert "lost" in served.post(prompt="a").json()["error"]["message"]
        assert served.get("/health").status_code == 503


class Unreadable:
    """What no log-probability is."""

    def __reduce__(self):
        return int, ("no number",)


@pytest.mark.parametrize("surprise", [lambda: 0, Unreadable()], ids=["to send", "to read"])
def test_a_report_that_cannot_travel_turns_health_red(surprise):
    """Of all requests, also that of another: what was lost with it, nobody knows."""
    with Served(ExactModel(SLOW_S)) as served:
        other = threading.Thread(target=served.post, kwargs=LONG)
        other.start()
        eventually(lambda: served.front.stats.running)
        served.engine.told = lambda request_id: [surprise]
        got = served.post(prompt="a", stream=True, logprobs=1)
        assert "engine_down" in got.text and "[DONE]" not in got.text
        other.join(120)
        assert not other.is_alive() and served.get("/health").status_code == 503


def test_a_command_that_cannot_travel_is_the_callers_error():
    async def main(connection):
        front = EngineClient(connection)
        await front.start()
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
            await front.submit([Ask(lambda: 0, GREEDY)], 0.0)
        with pytest.raises(ValueError, match="adapter 'x' is unknown"):
            await front.submit([Ask([5], GREEDY), Ask([5], GREEDY, adapter="x")], 0.0)
        flight = await front.submit([Ask([5], GREEDY)], 0.0)
        assert [news async for batch in flight.batches() for news in batch]
        assert front.stats.usage.used == 0 and front.stats.submitted == 2
        endless = Ask([5], replace(GREEDY, max_tokens=400), ignore_eos=True)
        waiting = await front.submit([endless], 0.0)
        await front.close()
        with pytest.raises(EngineDown, match="stops"):
            _ = [news async for news in waiting.batches()]

    with engine_thread(partial(make_engine, ExactModel(SLOW_S))) as connection:
        asyncio.run(main(connection))


def test_who_leaves_before_the_answer_to_a_submit_is_dropped():
    """Cancelled between the two: the engine is told at once, and what it says then is nobody's."""

    async def main(connection):
        front = EngineClient(connection)
        await front.start()
        endless = replace(GREEDY, max_tokens=400)
        long = [Ask([5], endless, 4, ignore_eos=True, stream=True)]
        for with_its_answer in (False, False, True):
            task = asyncio.ensure_future(front.submit(long, 0.0))
            await asyncio.sleep(0)
            if with_its_answer:  # it stands in the report of its first step
                front.on_step = lambda record, task=task: task.cancel()
            else:
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        flight = await front.submit([Ask([5], GREEDY)], 0.0)
        assert [news async for batch in flight.batches() for news in batch]
        assert front.healthy and front.stats.aborted == 12 and front.stats.finished == 1
        await front.close()

    with engine_thread(partial(make_engine, ExactModel(SLOW_S))) as connection:
        asyncio.run(main(connection))
