"""The messages between the server's two processes, and how they are sent.

The front (`engine_client`) sends `Submit` and `Abort`. The engine (`engine_process`) begins with a
`Hello`; then it sends a `Report` after each round, or `Down` as its last message. A message is sent
as its length and its pickle. To read pickles is safe here, since only these two processes hold the
ends of the connection.

Times are on the engine's clock, which began at `Hello.zero_s` of `time.perf_counter`. Python
promises that clock to be system-wide, so the front can tell the time on the engine's.
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

    `form` is the `constrained.Language` of the answer, pickled: by its bytes the engine recognises
    one that it has seen before. Only with `stream` every token is reported.
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
    """Drop the unfinished answers of a request."""

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
    """All news of a round, in the order it came, and the engine's counts after it."""

    news: list[News]
    stats: EngineStats
    step: StepRecord | None  # None: there were commands only


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
    """Return an error, or, if it cannot be pickled, a RuntimeError that says the same.

    >>> portable(ValueError("n must be 1"))
    ValueError('n must be 1')
    >>> portable(KeyboardInterrupt())
    RuntimeError('KeyboardInterrupt()')
    """
    try:
        # Some can be pickled, but not unpickled.
        copied = pickle.loads(pickle.dumps(error))
    except Exception:
        copied = None
    return copied if isinstance(copied, Exception) else RuntimeError(repr(error))
