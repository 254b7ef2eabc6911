"""What the server's two processes say to each other, and how a message travels.

The front (`engine_client`) asks: `Submit`, `Abort`. The engine (`engine_process`) begins with a
`Hello`; then comes a `Report` of each round, or `Down` as its last word. A message is pickled and
stands behind its length. Only these two hold the ends of the connection: nobody else can send a
pickle.

Times are those of the engine's clock. `Hello.zero_s` says when it began on `time.perf_counter`,
which Python promises to be system-wide: it is the same for all processes of a machine.
"""

import pickle
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from firsttoken.architectures import Architecture
from firsttoken.batching import StepRecord
from firsttoken.engine import Answer, EngineStats, TokenLogprobs
from firsttoken.sampling import SamplingParams

LENGTH_BYTES = 8


@dataclass(frozen=True)
class Ask:
    """What a client wants of one prompt: the arguments of `Engine.submit_many`.

    `form` is the `constrained.Language` of the answer, pickled: the engine knows by the bytes that
    it has seen one before. Only where a `stream` is wanted there is news of every token.
    """

    prompt_ids: list[int]
    params: SamplingParams
    n: int = 1
    ignore_eos: bool = False
    form: bytes | None = None
    adapter: str | None = None
    priority: int = 0
    deadline_s: float | None = None
    logprobs: int | None = None
    stream: bool = False


@dataclass(frozen=True)
class Submit:
    """Take all asks of a request, or none. `flight` is the front's number for it.

    Its answers are numbered prompt by prompt: their `index`.
    """

    flight: int
    asks: Sequence[Ask]


@dataclass(frozen=True)
class Abort:
    """Drop what is left of a request."""

    flight: int


@dataclass(frozen=True)
class Reply:
    """Whether the engine has taken a request: `error` is what `Engine.submit_many` raised."""

    flight: int
    error: Exception | None


@dataclass(slots=True)  # one for each token: frozen, it would take longer to make
class TokenNews:
    """A new token of an answer, with its log-probabilities if they are wanted."""

    flight: int
    index: int
    token: int
    logprobs: TokenLogprobs | None


@dataclass(frozen=True)
class Finished:
    """An answer is complete.

    The times of its tokens count from `submitted_s`; `started_s` is when its first step began,
    None where it never ran. `cached_tokens` of its prompt were found in the cache.
    """

    flight: int
    index: int
    answer: Answer
    submitted_s: float
    started_s: float | None
    cached_tokens: int = 0


News: TypeAlias = Reply | TokenNews | Finished


@dataclass(frozen=True)
class Report:
    """All news of a round, in the order they came, and how the engine stands after it."""

    news: list[News]
    stats: EngineStats
    step: StepRecord | None  # None: there was only something to take or to drop


@dataclass(frozen=True)
class Down:
    """The engine has failed and will not go on."""

    error: Exception


@dataclass(frozen=True)
class Hello:
    """What the front must know of an engine: its limits, and when its clock began."""

    arch: Architecture
    n_blocks: int
    block_size: int
    max_waiting: int | None
    adapters: tuple[str, ...]
    stats: EngineStats
    zero_s: float


class Gone(Exception):
    """The other process has closed the connection, or has ended."""


def packed(message: object) -> bytes:
    """Return a message as it travels.

    >>> len(packed(Abort(7))) - LENGTH_BYTES == int.from_bytes(packed(Abort(7))[:LENGTH_BYTES])
    True
    """
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(data).to_bytes(LENGTH_BYTES) + data


def send(connection: socket.socket, message: object) -> None:
    """Send a message; wait while the other side is behind with reading.

    Raises: Gone
    """
    data = packed(message)
    try:
        connection.sendall(data)
    except OSError as error:
        raise Gone from error


def receive(connection: socket.socket) -> Any:
    """Wait for the next message and return it.

    Raises: Gone
    """
    n = int.from_bytes(_exactly(connection, LENGTH_BYTES))
    return pickle.loads(_exactly(connection, n))


def _exactly(connection: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        try:
            more = connection.recv(n - len(data))
        except OSError as error:
            raise Gone from error
        if not more:
            raise Gone
        data += more
    return data


def portable(error: BaseException) -> Exception:
    """Return an error, or where it cannot travel one that says the same.

    >>> portable(ValueError("n must be 1"))
    ValueError('n must be 1')
    >>> portable(KeyboardInterrupt())
    RuntimeError('KeyboardInterrupt()')
    """
    try:
        # Some can be pickled, but not read again.
        copied = pickle.loads(pickle.dumps(error))
    except Exception:
        copied = None
    return copied if isinstance(copied, Exception) else RuntimeError(repr(error))
