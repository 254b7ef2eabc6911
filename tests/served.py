"""A server in a thread, with a model whose answers do not depend on their neighbours."""

import socket
import threading
import time
from collections.abc import Callable

import httpx
import uvicorn

from firsttoken.architectures import Architecture
from firsttoken.engine import Engine
from firsttoken.server.app import ServerSettings, create_app
from firsttoken.server.protocol import uvicorn_config
from firsttoken.tokenizer import tokenizer
from test_engine import Chain

WORDS = tokenizer()
NAME = "first-token"


class ExactModel(Chain):
    """The chain of the engine's tests with the shipped vocabulary.

    A pass takes `pass_s`, and raises `error` if there is one.
    """

    arch = Architecture("exact", 1, 1, 1, 1, 1, 1, WORDS.vocab_size, max_context=512)
    modulus, tau = 1009, 80

    def __init__(self, pass_s: float = 0.0):
        self.pass_s, self.error = pass_s, None

    def forward_ragged(self, tokens, caches):
        if self.error is not None:
            raise self.error
        time.sleep(self.pass_s)
        return super().forward_ragged(tokens, caches)


class Served:
    """A running server: its engine, its address, and how to ask it by hand."""

    def __init__(
        self, model=None, settings: ServerSettings | None = None, idle_s: float = 30, **options
    ):
        self.model = ExactModel() if model is None else model
        options = {"n_blocks": 512, "max_batch": 8, "prefix_caching": True} | options
        self.engine = Engine(self.model, tokenizer=WORDS, **options)
        self.app = create_app(self.engine, WORDS, settings or ServerSettings())
        self.api = self.app.state.api
        self.runner = self.api.runner
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn_config(
            self.app,
            log_level="critical",
            timeout_keep_alive=idle_s,
            timeout_graceful_shutdown=5,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))

    def __enter__(self):
        self._thread.start()
        eventually(lambda: self._server.started)
        return self

    def __exit__(self, *_):
        self._server.should_exit = True
        self._thread.join(30)
        self._socket.close()
        assert not self._thread.is_alive() and not self.runner._thread.is_alive()

    @property
    def idle(self) -> bool:
        """Whether nothing is under way and no block is held."""
        return not (
            self.engine.unfinished
            or self.engine.pool.usage().used
            or self.runner._flights
            or self.runner._commands
        )

    def post(self, path: str = "completions", **fields) -> httpx.Response:
        """Ask by hand; the model's name need not be given."""
        with httpx.Client(base_url=self.url, timeout=30) as client:
            return client.post(f"/v1/{path}", json={"model": NAME} | fields)

    def get(self, path: str, **options) -> httpx.Response:
        with httpx.Client(base_url=self.url, timeout=30, **options) as client:
            return client.get(path)

    def connect(self) -> socket.socket:
        """Open a connection to say anything on."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


def eventually(holds: Callable[[], object], within_s: float = 20.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.002)
