"""The web application: OpenAI's models, completions and chats; health, metrics, a dashboard."""

import asyncio
import contextlib
import hmac
import logging
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from firsttoken.engine import QueueFull
from firsttoken.models.tokenizer import Tokenizer
from firsttoken.server.answers import Answers, event
from firsttoken.server.counters import Counters
from firsttoken.server.engine_client import EngineClient, EngineDown, Flight
from firsttoken.server.errors import ApiError
from firsttoken.server.messages import Finished, TokenNews
from firsttoken.server.schema import ChatRequest, CommonRequest, CompletionRequest
from firsttoken.server.translation import AnyRequest, Job, Translator, ignored, parse

_LONG_BODY = 2**14  # bytes that are read in about a millisecond
_N_NAMES_LOGGED = 100  # ignored fields that are logged, each once: no client can fill the log

_log = logging.getLogger("firsttoken.server")


@dataclass(frozen=True)
class ServerSettings:
    """The model's `name` in requests, the key, and what one request may cost.

    With an `api_key`, /v1/ answers only requests that carry it. A body may have `max_body_bytes`
    and take `body_timeout_s` to come; a client may take `write_timeout_s` to read a piece of its
    answer. One request may ask for `max_answers`, but for no more than may wait in the queue.
    """

    name: str = "first-token"
    api_key: str | None = None
    max_body_bytes: int = 2**20
    body_timeout_s: float = 30.0
    write_timeout_s: float = 30.0
    max_answers: int = 128


def create_app(engine: EngineClient, tokenizer: Tokenizer, settings: ServerSettings) -> Starlette:
    """Return the web application; while it runs, it is connected to the engine.

    `app.state.api` is the `Api` behind it.
    """
    api = Api(engine, tokenizer, settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await engine.start()
        yield
        await engine.close()

    app = Starlette(
        routes=[
            Route("/", api.dashboard),
            Route("/dashboard.json", api.dashboard_data),
            Route("/health", api.health),
            Route("/metrics", api.metrics),
            Route("/v1/models", api.models),
            Route("/v1/models/{name:path}", api.model),
            Route("/v1/completions", api.completions, methods=["POST"]),
            Route("/v1/chat/completions", api.chat, methods=["POST"]),
        ],
        lifespan=lifespan,
        exception_handlers={
            ApiError: _tell_error,
            HTTPException: _tell_http_error,
            EngineDown: _tell_engine_down,
            ClientDisconnect: _tell_nobody,
            Exception: _tell_unexpected,
        },
    )
    app.state.api = api
    return app


class Api:
    """What the server does at each address."""

    def __init__(self, engine: EngineClient, tokenizer: Tokenizer, settings: ServerSettings):
        self._settings, self._tokenizer = settings, tokenizer
        self.engine, hello = engine, engine.hello
        self.counters = Counters(engine, settings.name)
        self._adapters = hello.adapters
        self._translator = Translator(
            hello.arch,
            tokenizer,
            settings.name,
            self._adapters,
            hello.n_blocks * hello.block_size,
            # A request for more than may wait would be refused each time it was tried.
            min(settings.max_answers, hello.max_waiting or settings.max_answers),
        )
        self._names_logged: set[str] = set()
        self._page = (files("firsttoken.server") / "dashboard.html").read_text("utf-8")

    async def completions(self, request: Request) -> Response:
        """Answer /v1/completions."""
        return await self._answer(request, CompletionRequest, self._translator.completion)

    async def chat(self, request: Request) -> Response:
        """Answer /v1/chat/completions."""
        return await self._answer(request, ChatRequest, self._translator.chat)

    async def _answer(
        self,
        request: Request,
        kind: type[AnyRequest],
        translate: Callable[[AnyRequest], Job],
    ) -> Response:
        arrival_s = self.engine.now_s()
        self._check_key(request)
        body = await self._body(request)
        asked = parse(kind, body)
        self._log_ignored(asked)
        # A thread reads a long text, or makes the automaton of a form, without holding up others.
        # Any other request would only take longer in one.
        slow = len(body) > _LONG_BODY or self._translator.has_form(asked)
        job = await asyncio.to_thread(translate, asked) if slow else translate(asked)
        try:
            flight = await self.engine.submit(job.asks, arrival_s)
        except QueueFull as full:
            wait_s = self.counters.retry_after_s()
            raise ApiError(
                429,
                f"the queue is full: {full}",
                code="queue_full",
                headers={"Retry-After": str(wait_s)},
            ) from None
        except ValueError as error:
            raise ApiError(400, str(error), code="invalid_value") from None
        answers = Answers(job, self._tokenizer, chat=kind is ChatRequest)
        if job.stream:
            return _EventStream(self, flight, answers)
        done = await self._unless_gone(request.receive, self._whole(flight), flight)
        return Response(status_code=499) if done is None else JSONResponse(answers.whole(done))

    def _log_ignored(self, asked: CommonRequest) -> None:
        for path in ignored(asked):
            name = re.sub(r"\[\d+\]", "", path)
            if name not in self._names_logged and len(self._names_logged) < _N_NAMES_LOGGED:
                self._names_logged.add(name)
                _log.warning("a field of a request is not known here, and ignored: %.80r", name)

    async def _whole(self, flight: Flight) -> list[Finished]:
        done = {}
        async for batch in flight.batches():
            for news in batch:
                if isinstance(news, Finished):
                    done[news.index] = self.note(flight, news)
        return [done[i] for i in range(flight.n_answers)]

    def note(self, flight: Flight, news: Finished) -> Finished:
        """Count a finished answer and return it.

        Raises: ApiError 500 for one that failed.
        """
        self.counters.finished(news, flight)
        if news.answer.error is not None:
            raise ApiError(500, f"answer {news.index} failed: {news.answer.error}")
        return news

    async def _unless_gone(
        self, receive: Receive, work: Coroutine[Any, Any, Any], flight: Flight
    ) -> Any:
        """Return the work's result; if the client disconnects first, drop the request: None."""
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            return await task if task.done() else None
        finally:
            for pending in (task, gone):
                pending.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)
            if n_left := flight.n_left:
                self.engine.cancel(flight)
                self.counters.aborted(n_left)

    async def stream(self, flight: Flight, answers: Answers, receive: Receive, send: Send) -> None:
        """Send the answers as server-sent events."""
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        writer = _Writer(send, self._settings.write_timeout_s)
        try:
            await self._events_or_error(flight, answers, receive, writer)
        except TimeoutError:
            _log.warning("a client did not read its stream: dropped")
            return  # the response is unfinished, so the connection is closed

    async def _events_or_error(
        self, flight: Flight, answers: Answers, receive: Receive, writer: "_Writer"
    ) -> None:
        try:
            async with writer:
                await self._unless_gone(receive, self._events(flight, answers, writer), flight)
        except (ApiError, EngineDown) as error:
            body = error.body if isinstance(error, ApiError) else _engine_down(error).body
            async with writer:
                await writer.write([event(body)], more=False)

    async def _events(self, flight: Flight, answers: Answers, writer: "_Writer") -> bool:
        async for batch in flight.batches():
            chunks: list[bytes] = []
            for news in batch:
                if isinstance(news, TokenNews):
                    chunks += answers.token(news.index, news.token, news.logprobs)
                else:
                    chunks += answers.end(self.note(flight, news))
            await writer.write(chunks)
        await writer.write(answers.close(), more=False)
        return True

    def _check_key(self, request: Request) -> None:
        key = self._settings.api_key
        if key is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # Headers are bytes, which Starlette shows as Latin-1.
        right = hmac.compare_digest(given.strip().encode("latin-1"), key.encode())
        if scheme.lower() != "bearer" or not right:
            raise ApiError(
                401,
                "Authorization: expected the header 'Bearer KEY' with this server's key",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def _body(self, request: Request) -> bytes:
        """Return the body of a request.

        Raises: ApiError 415 for another type than JSON, 413 for a body that is too large, 408 for
                one that takes too long.
        """
        # Another site's page cannot send this type: browsers would ask this server first.
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(415, f"Content-Type: expected application/json, got {kind!r}")
        limit = self._settings.max_body_bytes
        too_large = ApiError(
            413,
            f"the body has more than {limit} bytes",
            code="request_too_large",
            headers={"Connection": "close"},
        )
        declared = request.headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > limit:
            raise too_large
        parts, n = [], 0
        try:
            async with asyncio.timeout(self._settings.body_timeout_s):
                async for part in request.stream():
                    parts.append(part)
                    n += len(part)
                    if n > limit:
                        raise too_large
        except TimeoutError:
            raise ApiError(
                408,
                f"the body did not come within {self._settings.body_timeout_s} s",
                headers={"Connection": "close"},
            ) from None
        return b"".join(parts)

    async def models(self, request: Request) -> Response:
        """List the model and its adapters."""
        self._check_key(request)
        cards = [self._card(name) for name in (self._settings.name, *self._adapters)]
        return JSONResponse({"object": "list", "data": cards})

    async def model(self, request: Request) -> Response:
        """Describe one model."""
        self._check_key(request)
        name = request.path_params["name"]
        if name not in (self._settings.name, *self._adapters):
            raise ApiError(
                404, f"there is no model {name!r}", param="model", code="model_not_found"
            )
        return JSONResponse(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        base = self._settings.name
        return {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "firsttoken",
            "root": base,
            "parent": None if name == base else base,
            "max_model_len": self._translator.max_length,
        }

    async def health(self, request: Request) -> Response:
        """Say whether requests are answered: 200 or 503."""
        if self.engine.healthy:
            return JSONResponse({"status": "ok"})
        reason = "stopping" if self.engine.error is None else repr(self.engine.error)
        return JSONResponse({"status": "down", "reason": reason}, status_code=503)

    async def metrics(self, request: Request) -> Response:
        """Return what Prometheus reads."""
        return Response(self.counters.render(), media_type=CONTENT_TYPE_LATEST)

    async def dashboard(self, request: Request) -> Response:
        """Return the page that shows the engine at work."""
        return HTMLResponse(self._page)

    async def dashboard_data(self, request: Request) -> Response:
        """Return what that page shows."""
        return JSONResponse(self.counters.snapshot())


class _Writer:
    """Writes the pieces of a stream, and gives up on a client that does not read them.

    Write within its context, which raises for such a client. A timer for each piece would cost more
    than the piece. So one timer looks every `timeout_s` whether the write that waited the last time
    still waits: a client that reads nothing is dropped after two such looks at most.

    Raises: TimeoutError, when the context is left, for a client that does not read.
    """

    def __init__(self, send: Send, timeout_s: float):
        self._send, self._timeout_s = send, timeout_s
        self._n_begun = self._n_done = 0

    async def write(self, chunks: list[bytes], more: bool = True) -> None:
        """Send some chunks at once."""
        if chunks:
            self._n_begun += 1
            body = b"".join(chunks)
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
            self._n_done += 1

    async def __aenter__(self) -> "_Writer":
        self._limit = asyncio.timeout(None)
        await self._limit.__aenter__()
        self._watch(None)
        return self

    async def __aexit__(self, *raised: Any) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(*raised)

    def _watch(self, stuck: int | None) -> None:
        loop = asyncio.get_running_loop()
        waiting = self._n_begun if self._n_begun > self._n_done else None
        if waiting is not None and waiting == stuck:
            self._limit.reschedule(loop.time())
        self._timer = loop.call_later(self._timeout_s, self._watch, waiting)


class _EventStream(Response):
    """A stream of server-sent events as a response of Starlette's."""

    def __init__(self, api: Api, flight: Flight, answers: Answers):
        self._api, self._flight, self._answers = api, flight, answers
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._api.stream(self._flight, self._answers, receive, send)


async def _gone(receive: Receive) -> None:
    """Wait until the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _engine_down(error: EngineDown) -> ApiError:
    return ApiError(503, str(error), code="engine_down")


def _response(error: ApiError) -> Response:
    return JSONResponse(error.body, error.status, error.headers)


async def _tell_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _response(error)


async def _tell_engine_down(request: Request, error: Exception) -> Response:
    assert isinstance(error, EngineDown)
    return _response(_engine_down(error))


async def _tell_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return _response(ApiError(error.status_code, message, headers=error.headers))


async def _tell_nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


async def _tell_unexpected(request: Request, error: Exception) -> Response:
    return _response(ApiError(500, "the server failed; its log says more"))
