"""Values and calls between two processes that do not trust each other.

Plain data crosses as data: numbers, texts, lists, arrays, and the frozen records of the library.
Anything else stays where it is; the other side gets a number for it, and may call it, call its
public methods and read its public attributes, one request at a time. Nothing is pickled, and
nothing that arrives is run.
"""

import builtins
import contextlib
import dataclasses
import functools
import inspect
import itertools
import re
import socket
import struct
import sys
import time
import types
import zlib
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import msgpack
import numpy as np

MAX_MESSAGE = 64 * 2**20  # bytes
MAX_BITS = 4096  # of an integer
MAX_DEPTH = 100  # of calls that call back
MAX_NESTED = 50  # values inside values; each takes 50 kB of the C stack to read
MAX_ITEMS = 1_000_000  # of an iterator
MAX_SAID = 2000  # characters of an error's message
DTYPE = re.compile(r"[<>|=]?[?biufcSU]\d+")
TUPLE, SET, FROZENSET, INTEGER, COMPLEX, ARRAY, SCALAR, RECORD, MINE, YOURS, TWIN, RANDOM, SHARE = (
    range(13)
)
DICTS = (dict, OrderedDict, defaultdict, Counter)


class Broken(Exception):
    """What arrived is no message; the text says why."""


class Unanswered(BaseException):
    """No answer will come any more: no `except Exception` of a test takes it for the student's."""


class Remote:
    """An object of the other process."""

    def __init__(self, peer: "Peer", number: int, methods: frozenset[str]):
        vars(self).update(_peer=peer, _number=number, _methods=methods)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{name}: only public names can be read here")
        if name in self._methods:
            return lambda *args, **kwargs: self._peer.ask("method", self, name, args, kwargs)
        return self._peer.ask("get", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} cannot be set from here: the object is in another process")

    def __bool__(self) -> bool:
        return True

    def __iter__(self):
        return iter(self._peer.ask("iterate", self))

    def __len__(self) -> int:
        return self._peer.ask("count", self)

    def __getitem__(self, key: object) -> Any:
        return self._peer.ask("item", self, key)

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.asarray(self._peer.ask("array", self), dtype)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of the other process>"


class RemoteCallable(Remote):
    """A function, a class or another object of the other process that can be called."""

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self._peer.ask("call", self, args, kwargs)


def is_one(kind: type, kinds: tuple[type, ...]) -> bool:
    """Return whether a class is one of these; `in` would ask a class that answers for itself."""
    return any(kind is known for known in kinds)


def plain(value: np.ndarray | np.generic) -> bool:
    """Return whether an array or a scalar of NumPy consists of numbers or texts."""
    return value.dtype.fields is None and DTYPE.fullmatch(value.dtype.str) is not None


def record(kind: type) -> bool:
    """Return whether a class is one of the library's frozen dataclasses."""
    return (
        kind.__module__.startswith("firsttoken.")
        and dataclasses.is_dataclass(kind)
        and kind.__dataclass_params__.frozen
    )


def array(data: list) -> np.ndarray:
    """Return the array that was sent as [dtype, shape, bytes]."""
    dtype, shape, content = data
    if type(dtype) is not str or not DTYPE.fullmatch(dtype):
        raise Broken(f"an array of {dtype!r:.40}")
    values = np.frombuffer(content, np.dtype(dtype)) if content else np.empty(0, np.dtype(dtype))
    return values.reshape([int(n) for n in shape]).copy()


@functools.cache
def public_methods(kind: type) -> list[str]:
    """Return the names of a class's public methods."""
    found = {name: inspect.getattr_static(kind, name) for name in dir(kind) if name[0] != "_"}
    kinds = (types.FunctionType, staticmethod, classmethod)
    return [name for name, value in found.items() if isinstance(value, kinds)]


class Peer:
    """One end of the wire."""

    max_received = MAX_MESSAGE

    def __init__(self, wire: socket.socket):
        self.wire = wire
        self.buffer = bytearray()
        self.deadline = float("inf")  # on the clock of time.monotonic
        self.waiting = False
        self.depth = self.nested = 0
        self.kinds: dict = {}
        self.mine: dict[int, object] = {}  # what the other side has a number for
        self.numbers: dict[int, int] = {}  # those numbers by the objects' ids
        self.theirs: dict[int, Remote] = {}  # what we have a number for: one object has one proxy
        self.twins: dict = {}  # at one end {id: name}, at the other {name: object}
        self.shares: dict[int, list] = {}  # number: [object, checksum of what both sides know]
        self.generators: dict[int, np.random.Generator] = {}
        self.kept_back: list[np.random.Generator] = []  # the other side must not get these

    # What may cross, and what may be asked; the two ends differ.

    def may_hand_over(self, value: object) -> bool:
        """Return whether the other side may get a number for an object."""
        raise NotImplementedError

    def answer(self, request: str, *args: Any) -> Any:
        """Return what the other side asks for."""
        raise NotImplementedError

    # Values.

    def pack(self, value: object) -> bytes:
        return msgpack.packb(
            value, default=self.encoded, strict_types=True, unicode_errors="surrogatepass"
        )

    def unpack(self, data: bytes) -> Any:
        return msgpack.unpackb(
            data, ext_hook=self.decoded, strict_map_key=False, unicode_errors="surrogatepass"
        )

    def encoded(self, value: Any) -> Any:
        """Return what stands for a value that msgpack does not know."""
        kind = type(value)

        def sent(code: int, content: object) -> msgpack.ExtType:
            return msgpack.ExtType(code, self.pack(content))

        if kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
            return sent(TUPLE, list(value))
        if kind is int:
            if value.bit_length() > MAX_BITS:
                raise ValueError(f"an integer of {value.bit_length()} bits is too long to send")
            return sent(INTEGER, hex(value))
        if is_one(kind, DICTS):
            return dict(value)
        if is_one(kind, (set, frozenset)):
            return sent(SET if kind is set else FROZENSET, list(value))
        if kind is complex:
            return sent(COMPLEX, [value.real, value.imag])
        for number, (shared, _) in self.shares.items():
            if shared is value:
                return sent(SHARE, [number, None])
        if kind is np.ndarray and plain(value):
            return sent(ARRAY, [value.dtype.str, list(value.shape), value.tobytes()])
        if issubclass(kind, np.generic) and plain(value):
            return sent(SCALAR, [value.dtype.str, [], value.tobytes()])
        if isinstance(value, Remote) and value._peer is self:
            return sent(YOURS, value._number)
        if record(kind):
            if hasattr(kind, "arguments"):  # what makes it again, where that is not its fields
                fields = value.arguments
            else:
                every = dataclasses.fields(kind)
                fields = {f.name: getattr(value, f.name) for f in every if f.init}
            return sent(RECORD, [kind.__module__, kind.__qualname__, fields])
        if any(value is generator for generator in self.kept_back):
            raise TypeError(
                "with the generator of hidden inputs an answer would know those to come: hand over "
                "np.random.default_rng(rng.integers(2**32))"
            )
        if kind is np.random.Generator and type(value.bit_generator) is np.random.PCG64:
            number = id(value)
            state = None if number in self.generators else value.bit_generator.state
            self.generators[number] = value
            return sent(RANDOM, [number, state])
        if id(value) in self.twins:
            return sent(TWIN, self.twins[id(value)])
        if not self.may_hand_over(value):
            raise TypeError(f"an object of type {kind.__name__} cannot be handed to an answer")
        number = self.numbers.setdefault(id(value), len(self.mine))
        self.mine[number] = value
        name = value.__name__ if isinstance(value, type) else kind.__name__
        return sent(MINE, [number, name, callable(value), public_methods(kind)])

    def decoded(self, code: int, data: bytes) -> Any:
        """Return the value that a message says, made of our own types."""
        if self.nested == MAX_NESTED:
            raise Broken(f"more than {MAX_NESTED} values inside each other")
        self.nested += 1
        try:
            return self.value(code, self.unpack(data))
        finally:
            self.nested -= 1

    def value(self, code: int, content: Any) -> Any:
        if code == TUPLE:
            return tuple(content)
        if code in (SET, FROZENSET):
            return set(content) if code == SET else frozenset(content)
        if code == INTEGER:
            if len(content) > MAX_BITS // 4 + 4:
                raise Broken("an integer that is too long")
            return int(content, 16)
        if code == COMPLEX:
            return complex(*content)
        if code == ARRAY:
            return array(content)
        if code == SCALAR:
            return array(content)[()]
        if code == MINE:
            number, name, can_be_called, methods = content
            name = name[:50] if type(name) is str and name.isidentifier() else "object"
            base = RemoteCallable if can_be_called else Remote
            kind = self.kinds.setdefault((name, base), type(name, (base,), {}))
            proxy = kind(self, int(number), frozenset(methods))
            return self.theirs.setdefault(int(number), proxy)
        if code == YOURS:
            return self.mine[content]
        if code == TWIN:
            return self.twins[content]
        if code == RECORD:
            module, name, fields = content
            # Other packages' modules import something when they are asked for a name.
            ours = type(module) is str and module.startswith("firsttoken.")
            kind = getattr(sys.modules.get(module), name, None) if ours else None
            if not isinstance(kind, type) or not record(kind):
                raise Broken(f"a record of {module!r:.60}.{name!r:.60}")
            return kind(**fields)
        if code == RANDOM:
            number, state = content
            if number not in self.generators:
                bits = np.random.PCG64()
                bits.state = state
                self.generators[number] = np.random.Generator(bits)
            return self.generators[number]
        if code == SHARE:
            return self.shares[content[0]][0]
        raise Broken(f"a value of kind {code}")

    # Arrays and lists that both sides see.

    def share(self, value: Any) -> None:
        """Let what either side writes into an array or a list reach the other."""
        if type(value) is not list and not (type(value) is np.ndarray and plain(value)):
            raise TypeError(f"shared takes a list or an array, got {type(value).__name__}")
        if not any(shared is value for shared, _ in self.shares.values()):
            self.shares[len(self.shares)] = [value, None]

    def changes(self) -> list:
        """Return [number, content] of what has changed here since the last message."""
        found = []
        for number, entry in self.shares.items():
            value = entry[0]
            # A shared list is sent as its items: as itself it would be a reference.
            content = list(value) if type(value) is list else [value.dtype.str, list(value.shape)]
            data = self.pack(content) if type(value) is list else value.tobytes()
            checksum = zlib.crc32(data), len(data)
            if checksum != entry[1]:
                entry[1] = checksum
                found.append([number, content if type(value) is list else [*content, data]])
        return found

    def apply(self, changes: list) -> None:
        """Write into our shared objects what has changed over there."""
        for number, content in changes:
            is_array = len(content) == 3 and type(content[2]) is bytes
            new = array(content) if is_array else content
            if number not in self.shares:
                self.shares[number] = [new, None]
            value = self.shares[number][0]
            value[... if is_array else slice(None)] = new
            data = value.tobytes() if is_array else self.pack(list(value))
            self.shares[number][1] = zlib.crc32(data), len(data)

    # Messages.

    def send(self, kind: str, *content: object) -> None:
        if changes := self.changes():
            self.write("changes", changes)
        self.write(kind, *content)

    def write(self, kind: str, *content: object) -> None:
        data = self.pack([kind, list(content)])
        if len(data) > MAX_MESSAGE:
            raise ValueError(f"{len(data)} bytes are too many to send, {MAX_MESSAGE} at most")
        try:
            self.wire.settimeout(self.left())
            self.wire.sendall(struct.pack(">I", len(data)) + data)
        except OSError as error:
            raise self.lost(error) from None

    def left(self) -> float | None:
        """Return the seconds until the deadline, None where there is none.

        Raises: TimeoutError once it has passed, also if there is always something more to read.
        """
        if self.deadline == float("inf"):
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def lost(self, error: OSError) -> Unanswered:
        if isinstance(error, TimeoutError):
            return Unanswered("gave no answer in time")
        return Unanswered("has ended its process")

    def bytes(self, n: int) -> bytes:
        while len(self.buffer) < n:
            self.waiting = True
            try:
                self.wire.settimeout(self.left())
                piece = self.wire.recv(max(65536, n - len(self.buffer)))
            except OSError as error:
                raise self.lost(error) from None
            finally:
                self.waiting = False
            if not piece:
                raise Unanswered("has ended its process")
            self.buffer += piece
        data = bytes(self.buffer[:n])
        del self.buffer[:n]
        return data

    def receive(self) -> tuple[str, list]:
        """Return the next message, (kind, content)."""
        while True:
            (size,) = struct.unpack(">I", self.bytes(4))
            if size > self.max_received:
                raise Unanswered(f"sent more than {self.max_received} bytes at once")
            data = self.bytes(size)
            try:
                kind, content = self.unpack(data)
                if kind == "changes":
                    self.apply(*content)
                    continue
            except Exception as error:
                raise Unanswered(f"sent what is no answer ({type(error).__name__})") from error
            if type(kind) is not str or type(content) is not list:
                raise Unanswered("sent what is no answer")
            return kind, content

    def ask(self, request: str, *args: object) -> Any:
        """Return the other side's answer to a request; meanwhile, answer what it asks."""
        if self.depth > MAX_DEPTH:
            raise RecursionError("calls from process to process go too deep")
        self.depth += 1
        try:
            self.send(request, *(map(self.target, args)))
            while True:
                kind, content = self.receive()
                if kind == "value":
                    return content[0]
                if kind == "error":
                    raise self.rebuilt(*content)
                self.serve(kind, content)
        finally:
            self.depth -= 1

    def target(self, value: object) -> object:
        """Return an argument as it is sent; a shared list is recognised only here."""
        if type(value) is tuple:
            return tuple(map(self.target, value))
        if type(value) is dict:
            return {key: self.target(item) for key, item in value.items()}
        if type(value) is list:
            for number, (shared, _) in self.shares.items():
                if shared is value:
                    return msgpack.ExtType(SHARE, self.pack([number, None]))
        return value

    def serve(self, request: str, args: list) -> None:
        """Answer one request."""
        try:
            answer = self.answer(request, *args)
            # What cannot be sent is an error of the one who answers.
            self.send("value", answer)
        except Exception as error:
            self.send("error", *described(error))

    def rebuilt(self, names: list, said: str) -> Exception:
        """Return an exception for one of the other process, of the nearest class that we know."""
        names = [name for name in names if type(name) is str] if type(names) is list else []
        said = said if type(said) is str else ""
        known = {**vars(builtins), **self.exceptions()}
        del known["StopIteration"]  # inside `map` it would only end the sequence
        first = names[0] if names and names[0].isidentifier() else "Error"
        for name in names:
            kind = known.get(name)
            if isinstance(kind, type) and issubclass(kind, Exception):
                # One that only they know is caught as ours, and keeps its name and its words.
                if name != names[0]:
                    kind = type(first[:50], (kind,), {})
                with contextlib.suppress(TypeError):  # UnicodeDecodeError takes five arguments
                    return kind(said)
        return RuntimeError(f"{first[:50]}: {said}")

    def exceptions(self) -> dict:
        """Return the exceptions that we know beside Python's own."""
        return {}


class Plain(Peer):
    """The grader's end: only numbers, texts, lists and dicts come in, and few of them.

    Nothing else is made here, where the work of a whole class runs.
    """

    max_received = 8 * 2**20
    MAX_PARTS = 200  # lists and dicts of one message

    def unpack(self, data: bytes) -> Any:
        n_parts = 0

        def counted(part: Any) -> Any:
            nonlocal n_parts
            n_parts += 1
            if n_parts > self.MAX_PARTS:
                raise Broken(f"more than {self.MAX_PARTS} lists and dicts")
            return part

        return msgpack.unpackb(
            data,
            ext_hook=self.decoded,
            list_hook=counted,
            object_hook=counted,
            max_array_len=self.MAX_PARTS,
            max_map_len=self.MAX_PARTS,
            unicode_errors="surrogatepass",
        )

    def decoded(self, code: int, data: bytes) -> Any:
        raise Broken(f"a value of kind {code}")

    def apply(self, changes: list) -> None:
        raise Broken("nothing is shared with the grader")


def described(error: BaseException) -> tuple[list[str], str]:
    """Return an exception as the names of its classes and what it says."""
    names = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, BaseException)]
    said = error.args[0] if len(error.args) == 1 else str(error)
    return names, (said if type(said) is str else str(said))[:MAX_SAID]


def listed(values: Any) -> list:
    """Return what an iterable yields."""
    found = list(itertools.islice(iter(values), MAX_ITEMS + 1))
    if len(found) > MAX_ITEMS:
        raise ValueError(f"more than {MAX_ITEMS} values")
    return found
