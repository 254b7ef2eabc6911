"""Limits that uvicorn lacks: on the time, and the bytes, that a request may take to begin."""

import asyncio
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 2**16


class BoundedHead(HttpToolsProtocol):
    """One connection, closed when it takes too long to begin a request, or its head is too long.

    By itself uvicorn closes a connection that is silent after an answer. It waits for ever for a
    first request, for a head that does not end, and for a body that still trickles in after its
    answer. Here `timeout_keep_alive` bounds all of these.

    What is no HTTP is refused, and the client told so: a socket that is closed with bytes unread
    resets the connection, and the answer may be lost with it. So the rest is read and dropped until
    the client ends, or its time does (RFC 9112, section 9.6).
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._late: asyncio.TimerHandle | None = None
        self._n_head = 0  # bytes of a head that has not ended
        self._in_body = self._part_ended = self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        self._n_head, self._in_body, self._part_ended = 0, True, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body, self._part_ended = False, True
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._part_ended = False
        super().data_received(data)
        # Data in which a head or a body ended is not counted: most of it belongs to these.
        if not (self._in_body or self._part_ended):
            self._n_head += len(data)
        ended = self._refused or self.transport.is_closing()
        if self._n_head > MAX_HEAD_BYTES and not ended:
            self.send_400_response(f"The head of a request has more than {MAX_HEAD_BYTES} bytes.")
        if self.cycle is not None and not self.cycle.response_complete:
            self._unwatch()
        elif self._late is None:
            self._watch()

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            super().send_400_response(msg)  # an answer is under way: there is no place for another
            return
        self._refused = True
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {len(msg)}"
        self.transport.write(f"{head}\r\nConnection: close\r\n\r\n{msg}".encode("ascii"))
        self.transport.write_eof()

    def _watch(self) -> None:
        self._late = self.loop.call_later(self.timeout_keep_alive, self.transport.close)

    def _unwatch(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def uvicorn_config(app: ASGIApp, **options: Any) -> uvicorn.Config:
    """Return how uvicorn runs the application, with more options of its own."""
    return uvicorn.Config(app, http=BoundedHead, ws="none", access_log=False, **options)
