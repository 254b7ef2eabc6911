"""What passes between the server's two processes: commands, reports and errors.

Where a test asks an engine by hand, it stands in for the front: `send`, `receive`.
"""

import asyncio
import errno
import json
import os
import pickle
import re
import select
import shutil
import socket
import threading
from collections import defaultdict
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from firsttoken.paths import data_path
from firsttoken.sampling import SamplingParams
from firsttoken.sampling.constrained import Constraint, Regex
from firsttoken.server import engine_process as back
from firsttoken.server.__main__ import main
from firsttoken.server.engine_client import EngineClient
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
from firsttoken.server.options import PaddedEngine, parser
from firsttoken.server.options import make_engine as make_served
from server.served import WORDS, ExactModel, Served, engine_thread, eventually, make_engine
from server.test_faults import LONG, SLOW_S

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


def test_a_vocabulary_is_stored_once_and_a_form_is_read_once(monkeypatch):
    """Both take time and memory: who wants the same form shares its masks, and all the tokens."""
    stored, read = [], []

    class Noted(Constraint):
        def __init__(self, *arguments):
            stored.append(arguments)
            super().__init__(*arguments)

        def with_language(self, language):
            read.append(language)
            return super().with_language(language)

    monkeypatch.setattr(back, "Constraint", Noted)
    with Served() as served:
        for pattern in ("[ab]{2}", "[ab]{2}", "[cd]{2}"):
            got = served.post(prompt="a", guided_regex=pattern, max_tokens=9)
            text = got.json()["choices"][0]["text"]
            assert len(text) == 2 and set(text) <= set(pattern[1:3])
    assert len(stored) == 1 and len(read) == 2


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
        (Local("lost", "why"), False),
        (Exception("lost", lambda: 0), False),
    ],
    ids=["ValueError", "unreadable", "unpicklable"],
)
def test_an_error_arrives_as_it_is_or_says_what_it_was(error, same):
    got = pickle.loads(packed(portable(error))[8:])
    if same:
        assert type(got) is type(error) and got.args == error.args
    else:
        assert type(got) is RuntimeError and str(got) == repr(error)


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
        served.engine.logprobs = lambda request_id: [surprise]
        got = served.post(prompt="a", stream=True, logprobs=1)
        assert "engine_down" in got.text and "[DONE]" not in got.text
        other.join(120)
        assert not other.is_alive() and served.get("/health").status_code == 503


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


# Vocabularies that are padded.


class Padded(ExactModel):
    """A model with rows for which there is no token, and which they like best."""

    arch = ExactModel.arch.replace(vocab_size=WORDS.vocab_size + 8)

    def forward_ragged(self, tokens, caches):
        known = super().forward_ragged(tokens, caches)
        return [
            np.pad(x[..., : WORDS.vocab_size], ((0, 0), (0, 8)), constant_values=99) for x in known
        ]


def test_rows_behind_the_tokenizers_last_token_are_never_said():
    with engine_thread(lambda: PaddedEngine(Padded(), n_blocks=64, tokenizer=WORDS)) as connection:
        front = EngineClient(connection)
        assert front.hello.arch.vocab_size == WORDS.vocab_size + 8

        async def main():
            await front.start()
            form = pickle.dumps(Regex("[a-z]{4}"))
            params = SamplingParams(temperature=1.0, max_tokens=12, seed=1)
            asks = [Ask([5], params, 2, logprobs=20), Ask([5], params, form=form)]
            flight = await front.submit(asks, 0.0)
            done = [n for batch in [b async for b in flight.batches()] for n in batch]
            await front.close()
            return done

        for news in asyncio.run(main()):
            told = [token for each in news.answer.logprobs for token, _ in each.top]
            assert news.answer.error is None
            assert max([*news.answer.ids, *told]) < WORDS.vocab_size


def test_a_tokenizer_of_another_size_is_refused():
    for n_rows in (1023, 2000):
        other = ExactModel()
        other.arch = other.arch.replace(vocab_size=n_rows)
        with pytest.raises(ValueError, match=f"tokenizer has 1024 tokens, the model {n_rows}"):
            PaddedEngine(other, n_blocks=64, tokenizer=WORDS)


def test_the_key_may_stand_in_the_environment(monkeypatch):
    monkeypatch.setenv("FIRSTTOKEN_API_KEY", "from the environment")
    assert parser().parse_args([]).api_key == "from the environment"
    assert parser().parse_args(["--api-key", "given"]).api_key == "given"


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as stop:
            main(["--port", str(port)])
    why = os.strerror(errno.EADDRINUSE)
    assert stop.value.code.startswith(f"cannot listen to 127.0.0.1, port {port}: {why}")


def test_each_option_says_what_it_is_for():
    texts = [action.help for action in parser()._actions]
    assert all(re.match(r"[a-z0-9]", text) and not text.endswith(".") for text in texts)
    assert "--adapter NAME=DIR" in parser().format_help()


def test_a_checkpoint_is_served_with_its_own_tokenizer_and_its_own_end(tmp_path):
    shutil.copytree(data_path("model/draft"), tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(data_path(f"model/{name}"), tmp_path / "model" / name)
    (tmp_path / "model" / "generation_config.json").write_text("{}")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"eos_token_id": None}))
    model = str(tmp_path / "model")
    engine = make_served(parser().parse_args(["--model", model, "--draft", model]))
    assert engine.model.eos_ids == (0,)
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="is not a tokenizer"):
        make_served(parser().parse_args(["--model", model]))
