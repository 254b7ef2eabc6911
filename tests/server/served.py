"""A server in a thread, with a model whose answers do not depend on their neighbours.

Its engine runs in a process of its own, as everybody's does, or in a thread of this one: the same
code, over the same kind of connection. Only there can a test break the engine, or look into it.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import httpx
import uvicorn

from engine.chain import Chain
from firsttoken.architectures import Architecture
from firsttoken.engine import Engine
from firsttoken.models.tokenizer import tokenizer
from firsttoken.server.app import ServerSettings, create_app
from firsttoken.server.engine_client import EngineClient
from firsttoken.server.engine_process import connected, engine_process, run_engine
from firsttoken.server.protocol import uvicorn_config

WORDS = tokenizer()
NAME = "first-token"


class ExactModel(Chain):
    """The chain of the engine's tests with the shipped vocabulary."""

    arch = Architecture("exact", 1, 1, 1, 1, 1, 1, WORDS.vocab_size, max_context=512)
    modulus, tau = 1009, 80

    def __init__(self, pass_s: float = 0.0):
        self.pass_s, self.error = pass_s, None

    def forward_ragged(self, tokens, caches):
        if self.error is not None:
            raise self.error
        time.sleep(self.pass_s)
        return super().forward_ragged(tokens, caches)


def make_engine(model, **options) -> Engine:
    options = {"n_blocks": 512, "max_batch": 8, "prefix_caching": True} | options
    return Engine(model, tokenizer=WORDS, **options)


@contextmanager
def engine_thread(make: Callable[[], Engine]) -> Iterator[socket.socket]:
    """Do as `engine_process`, but in a thread."""
    front, back = connected()
    thread = threading.Thread(target=run_engine, args=(back, make), name="engine")
    thread.start()
    try:
        yield front
    finally:
        front.close()
        thread.join(120)
        assert not thread.is_alive()


class Served:
    """A running server: its engine, its address, and how to ask it by hand."""

    def __init__(
        self,
        model=None,
        settings: ServerSettings | None = None,
        idle_s: float = 30,
        apart: bool = False,
        **options,
    ):
        self.model = ExactModel() if model is None else model
        if apart:
            self._running = engine_process(partial(make_engine, self.model, **options))
        else:
            self.engine = make_engine(self.model, **options)
            self._running = engine_thread(lambda: self.engine)
        self._settings, self._idle_s = settings or ServerSettings(), idle_s

    def __enter__(self):
        self.front = EngineClient(self._running.__enter__())
        self.app = create_app(self.front, WORDS, self._settings)
        self.api = self.app.state.api
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn_config(
            self.app,
            log_level="critical",
            timeout_keep_alive=self._idle_s,
            timeout_graceful_shutdown=5,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        self._thread.start()
        eventually(lambda: self._server.started)
        return self

    def __exit__(self, *raised):
        self._server.should_exit = True
        self._thread.join(120)
        self._socket.close()
        self._running.__exit__(*raised)
        assert not self._thread.is_alive()

    @property
    def idle(self) -> bool:
        """Whether nothing is under way and no block is held."""
        stats = self.front.stats
        return not (stats.waiting or stats.running or stats.usage.used or self.front._flights)

    def post(self, path: str = "completions", **fields) -> httpx.Response:
        """Ask by hand; the model's name need not be given."""
        with httpx.Client(base_url=self.url, timeout=120) as client:
            return client.post(f"/v1/{path}", json={"model": NAME} | fields)

    def get(self, path: str, **options) -> httpx.Response:
        with httpx.Client(base_url=self.url, timeout=120, **options) as client:
            return client.get(path)

    def connect(self) -> socket.socket:
        """Open a connection to say anything on."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=120)


def eventually(holds: Callable[[], object], within_s: float = 120.0) -> None:
    """Wait until something holds; only what hangs meets the limit."""
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.002)
