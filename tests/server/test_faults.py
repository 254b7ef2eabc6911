"""Bad clients, full queues, a dying engine: nothing is lost or leaks, nobody waits for ever.

What must wait for a limit of time, and what becomes of processes, is in tests/proof/server.
"""

import asyncio
import json
import select
import socket
import threading
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest
from uvicorn.server import ServerState

from firsttoken.generate import generate
from firsttoken.sampling import SamplingParams
from firsttoken.server import __main__ as server_program
from firsttoken.server import engine_process
from firsttoken.server.app import ServerSettings
from firsttoken.server.engine_client import EngineClient, EngineDown, Flight
from firsttoken.server.messages import Ask
from firsttoken.server.protocol import MAX_HEAD_BYTES, BoundedHead, uvicorn_config
from server.served import NAME, WORDS, ExactModel, Served, engine_thread, eventually, make_engine

SLOW_S = 0.05  # a long answer takes 20 s: a test that wants its end lets the model go on faster
LONG = {"prompt": "a", "max_tokens": 400, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def slow():
    """A server whose steps are so slow that no long answer ends by itself."""
    with Served(ExactModel(SLOW_S)) as running:
        yield running
        eventually(lambda: running.idle)


@pytest.fixture(scope="module")
def served():
    with Served() as running:
        yield running
        eventually(lambda: running.idle)


def raw(fields: dict | bytes, path="completions", **headers) -> bytes:
    """Return a request as it goes over the wire."""
    body = fields if isinstance(fields, bytes) else json.dumps({"model": NAME} | fields).encode()
    told = {"Host": "x", "Content-Type": "application/json", "Content-Length": len(body)} | headers
    lines = [f"POST /v1/{path} HTTP/1.1", *(f"{k}: {v}" for k, v in told.items() if v is not None)]
    return "\r\n".join([*lines, "", ""]).encode() + body


def read_until(connection, mark: bytes) -> bytes:
    got = b""
    while mark not in got:
        piece = connection.recv(4096)
        assert piece, f"closed before {mark!r}: {got!r}"
        got += piece
    return got


def answers(served) -> bool:
    """Say whether the server still answers rightly."""
    params = SamplingParams(temperature=0.0, max_tokens=3)
    want = generate(served.model, WORDS.encode_document("b"), params, tokenizer=WORDS).text
    got = served.post(prompt="b", temperature=0, max_tokens=3)
    return got.json()["choices"][0]["text"] == want


# Clients that go away.


@pytest.mark.parametrize("close", ["reset", "close", "half"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after_tokens", [0, 3])
def test_a_client_that_goes_frees_its_blocks(slow, stream, close, after_tokens):
    with slow.connect() as connection:
        connection.sendall(raw(LONG | {"stream": stream}))
        if stream:
            read_until(connection, b"data: " if after_tokens else b"200 OK")
        eventually(lambda: slow.engine.stats.submitted)  # a reset may take what was not read
        eventually(lambda: slow.engine.stats.new_tokens >= after_tokens)
        if close == "reset":
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if close == "half":
            connection.shutdown(socket.SHUT_WR)
            eventually(lambda: slow.engine.stats.aborted)
    eventually(lambda: slow.engine.stats.aborted and slow.idle)
    assert slow.engine.stats.aborted == 1 and slow.engine.pool.usage().used == 0
    assert answers(slow)


def test_going_at_any_byte_of_the_request_leaves_nothing():
    """Half a line, half the headers, half the body, all but the last byte, and all of it."""
    with Served() as served:
        whole = raw(LONG)
        for end in [*range(0, len(whole), 7), len(whole) - 1, len(whole)]:
            with served.connect() as connection:
                connection.sendall(whole[:end])
        eventually(lambda: served.idle)
        assert answers(served)


def test_a_head_without_end_is_not_kept():
    with Served() as served, served.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        connection.settimeout(0.005)
        got, n_sent = None, 0
        while got is None:
            try:
                connection.sendall(b"X-More: " + b"x" * 1000 + b"\r\n")
                n_sent += 1010
                got = connection.recv(1000)
            except TimeoutError:
                assert n_sent < 2 * MAX_HEAD_BYTES
        assert b" 400 " in got
        assert answers(served)


def test_a_refusal_reaches_who_still_sends():
    """Were the socket closed at once, most of these connections would be reset."""
    with Served() as served:
        for _ in range(20):
            with served.connect() as connection:
                connection.sendall(b"\x00" * 300_000)
                got = b""
                while piece := connection.recv(4096):
                    got += piece
                assert got.startswith(b"HTTP/1.1 400 ") and got.endswith(
                    b"\r\n\r\nInvalid HTTP request received."
                )
        assert answers(served)


class Line:
    """A connection and its loop, without network and time: what was written, what waits."""

    def __init__(self):
        self.written, self.ended, self.closed, self.waits = b"", False, False, []
        config = uvicorn_config(lambda *_: None, log_level="critical", timeout_keep_alive=7)
        config.load()
        self.protocol = BoundedHead(config, ServerState(), {}, _loop=self)
        self.protocol.connection_made(self)

    def write(self, data):
        assert not self.ended
        self.written += data

    def write_eof(self):
        self.ended = True

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed

    def get_extra_info(self, name):
        return None

    def call_later(self, seconds, act):
        self.waits.append((seconds, act))
        return SimpleNamespace(cancel=lambda: self.waits.remove((seconds, act)))


def test_who_goes_on_after_a_refusal_is_cut_off():
    """What it sends is dropped, and the time that a connection has to begin a request runs on."""
    line = Line()
    for garbage in (b"no HTTP\r\n\r\n", b"x" * 1000, b"y" * 2 * MAX_HEAD_BYTES):
        line.protocol.data_received(garbage)
        assert line.written.count(b" 400 ") == 1 and line.ended and not line.closed
    ((seconds, act),) = line.waits
    act()
    assert seconds == 7 and line.closed


def test_a_long_body_is_no_long_head():
    """However it comes in pieces: its last one is still body, though the request ends there."""
    with Served() as served, served.connect() as connection:
        for n in range(60_000, 260_000, 20_000):
            head, body = raw({"prompt": "a" * n}).split(b"\r\n\r\n")
            connection.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
            assert b"100 Continue" in read_until(connection, b"\r\n\r\n")
            connection.sendall(body)
            assert b"context" in read_until(connection, b"}}")
        assert answers(served)


def test_a_body_that_never_comes_is_not_waited_for():
    with Served(settings=ServerSettings(body_timeout_s=0.1)) as served, served.connect() as half:
        half.sendall(raw(LONG)[:-5])
        assert b"408" in read_until(half, b"did not come")
        assert half.recv(1000) == b""


def test_an_idle_server_does_nothing(served, monkeypatch):
    """The engine sleeps until it is woken: it looks once behind each step, then without a limit."""
    limits = []

    def look(*arguments):
        limits.append(arguments[-1])
        return select.select(*arguments)

    monkeypatch.setattr(engine_process, "select", SimpleNamespace(select=look))
    assert answers(served)
    eventually(lambda: limits[-1] is None)  # it sleeps now
    limits.clear()
    before = served.engine.stats.steps
    assert answers(served)
    eventually(lambda: limits[-1:] == [None])
    assert limits == [0.0] * (served.engine.stats.steps - before) + [None]


# What must not be read.


@pytest.mark.parametrize(
    ("headers", "fields", "status"),
    [
        ({}, b'{"prompt": "\xff\xfe"}', 400),
        ({}, b"", 400),
        ({"Content-Type": "text/plain"}, {}, 415),
        ({}, {"prompt": "a" * 1_100_000}, 413),
        ({"Content-Length": 10**12}, {}, 413),
        ({"Content-Length": -1}, {}, 400),
        ({}, {"max_tokens": -1}, 400),
    ],
    ids=lambda x: str(x)[:30],
)
def test_a_bad_request_is_refused_and_no_more(served, headers, fields, status):
    with served.connect() as connection:
        connection.sendall(raw(fields, **headers))
        got = connection.recv(4096)
    assert got.startswith(f"HTTP/1.1 {status} ".encode())
    assert answers(served)


def test_a_body_in_chunks_is_limited_too(served):
    def endless():
        while True:
            yield b" " * 100_000

    with httpx.Client(base_url=served.url) as client:
        kind = {"Content-Type": "application/json"}
        try:
            got = client.post("/v1/completions", content=endless(), headers=kind)
        except httpx.WriteError:  # closed while it was still writing
            pass
        else:
            assert got.status_code == 413
    assert answers(served)


def test_garbage_is_no_request(served):
    for garbage in (b"\x00" * 100, b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00", b"A" * 100_000):
        with served.connect() as connection:
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            assert b" 400 " in connection.recv(4096)
    assert answers(served)


# Full queues.


def test_a_full_queue_says_when_to_come_again():
    with Served(ExactModel(SLOW_S), max_batch=1, max_waiting=2) as served:
        connections = [served.connect() for _ in range(3)]
        for i, connection in enumerate(connections):
            connection.sendall(raw(LONG))
            eventually(lambda i=i: served.engine.stats.submitted == i + 1)
            eventually(lambda: served.engine.stats.running)
        got = served.post(prompt="a")
        assert got.status_code == 429 and 1 <= int(got.headers["Retry-After"]) <= 60
        assert got.json()["error"]["code"] == "queue_full"
        # Of a request for several answers none stays in the queue.
        connections.pop().close()
        eventually(lambda: served.engine.stats.waiting == 1)
        for several in ({"prompt": "a", "n": 2}, {"prompt": ["a", "b"]}):
            assert served.post(**several).status_code == 429
            assert served.engine.stats.waiting == 1
        served.model.pass_s = 0
        for connection in connections:
            with connection:
                read_until(connection, b'"usage"')
        eventually(lambda: served.idle)
        # The client that retries by itself gets its answer.
        assert answers(served)


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_ends_an_answer_with_what_there_is(slow, stream):
    got = slow.post(**LONG | {"deadline_s": 0.1, "stream": stream})
    assert got.status_code == 200 and '"finish_reason":"abort"' in got.text
    assert slow.engine.stats.expired == 1 and slow.engine.stats.new_tokens < 400


# Answers that fail, and the engine that dies.


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_fails_is_told_and_the_others_stay(stream):
    with Served() as served:
        step = served.engine.step

        def failing():
            return {
                i: replace(answer, finish_reason="error", error=ArithmeticError("lost"))
                if len(answer.ids) == 7
                else answer
                for i, answer in step().items()
            }

        served.engine.step = failing
        got = served.post(**LONG | {"max_tokens": 7, "stream": stream})
        assert got.status_code == (200 if stream else 500)
        assert "lost" in got.text and '"server_error"' in got.text and "[DONE]" not in got.text
        assert served.get("/health").status_code == 200 and answers(served)
        eventually(lambda: served.idle)
        assert (
            'finished_reason="error",model_name="first-token"} 1.0' in served.get("/metrics").text
        )


def fail_all(served, break_engine, why):
    """Break the engine of a slow server for two while four ask; each of them is told why."""
    assert served.get("/health").json() == {"status": "ok"}
    results = {}

    def ask(i):
        got = served.post(**LONG, stream=i % 2 == 1)
        results[i] = got.status_code, got.text

    threads = [threading.Thread(target=ask, args=[i]) for i in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: served.front.stats.submitted == 4 and served.front.stats.new_tokens)
    break_engine()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    for i, (status, text) in results.items():
        assert status == (200 if i % 2 else 503), text
        assert why in text and "engine_down" in text and "[DONE]" not in text
    health = served.get("/health")
    told = health.json()
    assert health.status_code == 503 and told["status"] == "down" and why in told["reason"]
    assert served.post(prompt="a").status_code == 503
    assert served.get("/metrics").status_code == 200
    assert not served.get("/dashboard.json").json()["healthy"]


def test_a_crash_turns_health_red_and_fails_what_waits():
    with Served(ExactModel(SLOW_S), max_batch=2) as served:
        error = MemoryError("no more")
        fail_all(served, lambda: setattr(served.model, "error", error), "no more")


def test_a_request_that_meets_a_connection_just_closed_is_told_of_the_engine():
    """The event loop knows first that it is closed: there may be reports left to read."""
    uvloop = pytest.importorskip("uvloop")

    async def ask(connection):
        front = EngineClient(connection)
        await front.start()
        asks = [Ask([5], SamplingParams(max_tokens=400), ignore_eos=True)]
        flight = await front.submit(asks, 0.0)
        front._writer.transport.abort()
        with pytest.raises(EngineDown, match="does not run"):
            await front.submit(asks, 0.0)
        front.cancel(flight)
        await front.close()

    with (
        engine_thread(lambda: make_engine(ExactModel(SLOW_S))) as connection,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(ask(connection))


def test_who_does_not_read_cannot_be_told_and_is_dropped():
    """The engine has failed, and the client takes no more bytes: no error of the server's."""

    async def send(message):
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def told_nothing(api):
        flight = Flight(0, [Ask([5], SamplingParams())], 0.0, asyncio.Future())
        flight.tell(EngineDown("the engine failed"))
        await api.stream(flight, None, asyncio.Event().wait, send)

    with Served(settings=ServerSettings(write_timeout_s=0.01)) as served:
        asyncio.run(told_nothing(served.api))


# Starting.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--adapter", "missing"], "path_or_name must be"),
        (["--max-adapters", "2"], "needs adapters"),
        (["--model", "/nowhere"], "/nowhere"),
    ],
)
def test_wrong_options_are_said_in_one_line(capsys, monkeypatch, options, message):
    """One of them by the real process, the others by the same code in a thread: it is faster."""
    if "--model" not in options:
        monkeypatch.setattr(server_program, "engine_process", engine_thread)
    with pytest.raises(SystemExit) as stopped:
        server_program.main(["--port", "0", *options])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
