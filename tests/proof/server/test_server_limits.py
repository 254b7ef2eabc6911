"""The server's limits of time, and a crowd: what must wait, and what takes seconds."""

import asyncio
import random
import socket
import threading
import time

import openai

from firsttoken.generate import generate
from firsttoken.sampling import SamplingParams
from firsttoken.server.app import ServerSettings
from server.served import NAME, WORDS, ExactModel, Served, eventually
from server.test_faults import LONG, answers, raw

HEAD = b"POST /v1/comp"
SLOW = LONG | {"max_tokens": 60}  # longer than the limit, at a tenth of a second a step


def closed(connection: socket.socket, drips: bool) -> bool:
    """Say whether the server has closed a connection, on which one more byte may come."""
    try:
        if drips:
            connection.sendall(b"x")
        assert connection.recv(100) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    connection.close()
    return True


def test_silence_before_a_request_has_an_end_and_waiting_for_an_answer_has_none():
    """Whether nothing came, or half of something, and whether more comes in drops."""
    with Served(ExactModel(0.1), idle_s=3) as served:
        said, waiting = [], []
        asked = threading.Thread(target=lambda: said.append(served.post(**SLOW)))
        for beginning, drips in ((b"", False), (HEAD, False), (HEAD, True)):
            connection = served.connect()
            connection.sendall(beginning)
            connection.settimeout(0.01)
            waiting.append((connection, drips))
        asked.start()
        end = time.monotonic() + 120
        while waiting:
            assert time.monotonic() < end, "a connection stays open"
            waiting = [pair for pair in waiting if not closed(*pair)]
        asked.join()
        assert [got.status_code for got in said] == [200] and answers(served)


def test_a_client_that_does_not_read_is_dropped():
    """Its stream stops where the buffers are full; the engine goes on, and nobody else waits."""
    settings = ServerSettings(write_timeout_s=0.3)
    with Served(settings=settings, n_blocks=4096, max_batch=64) as served:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", served.port))
        fields = {"stream": True, "n": 128, "stream_options": {"include_usage": True}}
        connection.sendall(raw(LONG | fields | {"max_tokens": 450}))
        eventually(lambda: served.engine.stats.submitted)
        assert answers(served)
        eventually(lambda: served.idle)
        assert served.engine.stats.aborted > 0
        connection.close()


def test_a_crowd_of_good_and_bad_clients():
    """Forty at once: who asks rightly is answered rightly, and nothing is left."""
    kinds = ("good", "good", "stream", "vanish", "half", "garbage")
    with Served(max_batch=8, n_blocks=96) as served:

        async def good(client, i, stream):
            params = SamplingParams(temperature=1.0, seed=i, max_tokens=1 + i % 12)
            prompt = "x" * (i % 30)
            want = generate(
                ExactModel(), WORDS.encode_document(prompt), params, tokenizer=WORDS
            ).text
            got = await client.completions.create(
                model=NAME, prompt=prompt, seed=i, max_tokens=params.max_tokens, stream=stream
            )
            if stream:
                assert "".join([chunk.choices[0].text async for chunk in got]) == want
            else:
                assert got.choices[0].text == want

        async def bad(kind, draw):
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            whole = raw(LONG | {"stream": draw.random() < 0.5})
            writer.write(
                {"half": whole[: draw.randrange(len(whole))], "vanish": whole}.get(kind, b"\0" * 50)
            )
            await asyncio.sleep(draw.random() / 20)
            writer.transport.abort()

        async def one(client, i):
            draw = random.Random(i)
            for j in range(6):
                kind = draw.choice(kinds)
                if kind in ("good", "stream"):
                    await good(client, 40 * j + i, kind == "stream")
                else:
                    await bad(kind, draw)

        async def main():
            async with openai.AsyncOpenAI(
                base_url=f"{served.url}/v1", api_key="none", max_retries=0
            ) as client:
                await asyncio.gather(*(one(client, i) for i in range(40)))

        asyncio.run(main())
        eventually(lambda: served.idle)
        stats = served.engine.stats
        assert stats.finished + stats.aborted == stats.submitted and stats.aborted
        assert answers(served)
