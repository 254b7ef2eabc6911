"""What crosses between an answer and its tests: data as it was, nothing else, and no surprises."""

import dataclasses
import itertools
import math
import socket
import struct
import threading

import msgpack
import numpy as np
import pytest
import wire
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from wire import MINE, RECORD, YOURS, Peer, Remote, RemoteCallable, Unanswered

from firsttoken.architectures import Architecture
from firsttoken.roofline import Cost
from firsttoken.sampling import SamplingParams


class Open(Peer):
    """An end that hands over everything and answers calls."""

    def may_hand_over(self, value):
        return True

    def answer(self, request, *args):
        if request == "call":
            return args[0](*args[1], **args[2])
        if request == "method":
            return getattr(args[0], args[1])(*args[2], **args[3])
        if request == "get":
            return getattr(args[0], args[1])
        if request == "iterate":
            return wire.listed(args[0])
        return {"item": lambda a, b: a[b], "count": len, "array": np.asarray}[request](*args)


class Closed(Open):
    """An end that hands over no object."""

    def may_hand_over(self, value):
        return False


@pytest.fixture
def ends():
    """An end that asks, and one that serves `there` in a thread of its own."""
    ours, theirs = socket.socketpair()
    near, far = Open(ours), Open(theirs)

    def serve():
        try:
            while True:
                far.serve(*far.receive())
        except Unanswered:
            return

    thread = threading.Thread(target=serve)
    thread.start()
    yield near, far
    ours.close()
    thread.join()
    theirs.close()


def there(near: Peer, far: Peer, value: object):
    """Return the near end's proxy of an object of the far end."""
    return near.unpack(far.pack(value))


numbers = st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers()
texts = st.text(st.characters()) | st.binary()
arrays = hnp.arrays(
    hnp.boolean_dtypes() | hnp.integer_dtypes() | hnp.floating_dtypes(sizes=(16, 32, 64)),
    hnp.array_shapes(min_dims=0, min_side=0, max_side=4),
)
keys = st.integers() | st.text() | st.tuples(st.integers(), st.text())
data = st.recursive(
    numbers | texts | arrays | st.frozensets(keys) | st.sets(keys),
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner) | st.lists(inner).map(tuple),
    max_leaves=8,
)


def equal(a, b) -> bool:
    """Return whether two values have the same types and contents, NaN included."""
    if type(a) is not type(b):
        return False
    if type(a) is np.ndarray or isinstance(a, np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if type(a) in (list, tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    if type(a) is dict:
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return repr(a) == repr(b) if type(a) in (float, complex) else a == b


@given(data)
def test_plain_data_arrives_as_it_was(value):
    peer = Closed(None)
    assert equal(peer.unpack(peer.pack(value)), value)


def test_records_of_the_library_arrive_as_records():
    peer = Closed(None)
    for value in (
        Cost(2.0, 3),
        SamplingParams(temperature=0.5, stop=("a",)),
        Architecture("toy", 2, 24, 6, 2, 4, 16, 32),
    ):
        assert peer.unpack(peer.pack(value)) == value


class AlwaysEqual(float):
    """A number that claims to equal everything."""

    def __eq__(self, other):
        return True

    __hash__ = float.__hash__


@dataclasses.dataclass(frozen=True)
class Own:
    """A record that is not the library's."""

    x: int


@pytest.mark.parametrize(
    "value",
    [
        AlwaysEqual(1),
        Own(1),
        np.array([object()]),
        type("List", (list,), {})(),
        lambda: 1,
        iter([1]),
    ],
)
def test_other_objects_stay_where_they_are(value):
    with pytest.raises(TypeError, match="cannot be handed to an answer"):
        Closed(None).pack([value])
    peer = Open(None)
    found = peer.unpack(peer.pack(value))
    assert isinstance(found, Remote)
    assert isinstance(found, RemoteCallable) == callable(value)
    assert type(found).__name__ == (value if isinstance(value, type) else type(value)).__name__
    assert found != 1.0 and found != Open and bool(found)  # a proxy equals itself only


def test_an_object_is_called_read_iterated_and_counted(ends):
    class Shelf:
        size = 3

        def __init__(self):
            self.items = ["a", "b"]
            self._hidden = 7

        def add(self, item, times=1):
            self.items += [item] * times
            return self

        @property
        def n(self):
            return len(self.items)

        def __iter__(self):
            return iter(self.items)

        def __len__(self):
            return 5

        def __getitem__(self, key):
            return self.items[key]

        def __array__(self, dtype=None, copy=None):
            return np.arange(3.0)

    near, far = ends
    shelf = there(near, far, Shelf())
    assert (shelf.size, shelf.n, shelf.items) == (3, 2, ["a", "b"])
    assert isinstance(shelf.add("c", times=2), Remote)
    assert (list(shelf), len(shelf), shelf[-1]) == (["a", "b", "c", "c"], 5, "c")
    assert np.asarray(shelf).tolist() == [0, 1, 2]
    assert not callable(shelf) and callable(shelf.add) and not callable(shelf.n)
    for name in ("_hidden", "__class_getitem__", "__globals__"):
        with pytest.raises(AttributeError):
            getattr(shelf, name)
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = shelf.absent
    with pytest.raises(AttributeError, match="cannot be set from here"):
        shelf.size = 4
    made = there(near, far, Shelf)()
    assert isinstance(made, Remote) and made.n == 2


def test_calls_may_call_back(ends):
    near, far = ends

    def apply(function, values):
        return [function(value, scale=2) for value in values]

    assert there(near, far, apply)(lambda x, scale: x * scale + 1, [1, 2]) == [3, 5]
    twice = there(near, far, lambda f: lambda x: f(f(x)))
    assert twice(lambda x: x + "!")("a") == "a!!"

    def own(value):
        return value

    assert there(near, far, own)(own) is own  # what comes back is ours again


def test_errors_cross_by_name(ends):
    near, far = ends

    class Full(ValueError):
        pass

    def fail():
        raise Full("no room")

    with pytest.raises(ValueError, match=r"^no room$") as caught:
        there(near, far, fail)()
    assert type(caught.value).__name__ == "Full"

    def swallow(function):
        try:
            function()
        except ZeroDivisionError:
            return "seen"

    assert there(near, far, swallow)(lambda: 1 / 0) == "seen"


def test_no_error_from_there_ends_the_test_itself():
    """An answer cannot pretend that the tests were interrupted, or reached their end."""
    for name in ("KeyboardInterrupt", "SystemExit", "GeneratorExit", "BaseException", "Unanswered"):
        assert isinstance(Open(None).rebuilt([name], "x"), RuntimeError)
        assert isinstance(Open(None).rebuilt([name, "Exception"], "x"), Exception)


def test_arguments_are_copies_unless_they_are_shared(ends):
    near, far = ends

    def clear(values):
        values[:] = [0] * len(values)
        return values

    remote = there(near, far, clear)
    for value in ([1, 2], np.array([1, 2])):
        assert list(remote(value)) == [0, 0]
        assert list(value) == [1, 2]
        near.share(value)
        remote(value)
        assert list(value) == [0, 0]


def test_what_is_shared_is_one_object_on_both_sides(ends):
    """Also between calls, in both directions, and for several holders."""
    near, far = ends

    class Memory:
        def __init__(self, store):
            self.store = store

        def put(self, place, value):
            self.store[place] = value
            return sum(self.store)

    store = np.zeros(4)
    near.share(store)
    first, second = there(near, far, Memory)(store), there(near, far, Memory)(store)
    first.put(1, 5.0)
    assert second.put(2, 7.0) == 12 and store.tolist() == [0, 5, 7, 0]
    store[:] = 1
    assert first.put(0, 1) == 4
    with pytest.raises(TypeError, match="shared takes a list or an array, got tuple"):
        near.share((1,))


def hostile(*messages: bytes) -> Open:
    """Return an end whose other end has sent bytes of its own, and then closed."""
    ours, theirs = socket.socketpair()
    theirs.sendall(b"".join(struct.pack(">I", len(m)) + m for m in messages))
    theirs.close()
    return Open(ours)


def said(*content) -> bytes:
    """Return a message that says a value."""
    return msgpack.packb(["value", list(content)])


def ext(code: int, value: object) -> msgpack.ExtType:
    return msgpack.ExtType(code, msgpack.packb(value))


deep = msgpack.packb(0)
for _ in range(5000):
    deep = b"\x91" + deep
nested = msgpack.packb(0)
for _ in range(2000):
    nested = msgpack.packb(msgpack.ExtType(wire.TUPLE, nested))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xc1",
        msgpack.packb(7),
        msgpack.packb(["value"]),
        deep,
        nested,
        said(ext(99, 0)),
        said(ext(wire.ARRAY, ["O", [1], b"12345678"])),
        said(ext(wire.ARRAY, ["<f8", [10**9], b"12345678"])),
        said(ext(wire.INTEGER, "0x" + "f" * 5000)),
        said(ext(YOURS, 5)),
        said(ext(RECORD, ["os", "system", {"command": "true"}])),
        said(ext(RECORD, ["firsttoken.sampling", "softmax", {}])),
        said(ext(RECORD, ["firsttoken.sampling", "SamplingParams", {"temperature": "hot"}])),
        said(ext(MINE, [0, "x"])),
        msgpack.packb(["changes", [[[0, [1]], 7]]]),
    ],
)
def test_a_broken_message_is_no_answer(message):
    peer = hostile(message)
    with pytest.raises(Unanswered):
        peer.ask("call", 0)
    peer.wire.close()


def test_a_message_that_is_too_long_is_not_read():
    ours, theirs = socket.socketpair()
    theirs.sendall(struct.pack(">I", wire.MAX_MESSAGE + 1))
    with pytest.raises(Unanswered, match="sent more than"):
        Open(ours).receive()
    theirs.close()
    with pytest.raises(Unanswered, match="has ended its process"):
        Open(ours).receive()
    ours.close()


def test_a_deadline_ends_the_wait():
    ours, theirs = socket.socketpair()
    peer = Open(ours)
    peer.deadline = 0  # long past
    with pytest.raises(Unanswered, match="no answer in time"):
        peer.ask("get", "x")
    ours.close()
    theirs.close()


def test_an_iterator_without_end_is_refused(ends, monkeypatch):
    near, far = ends
    monkeypatch.setattr(wire, "MAX_ITEMS", 100)
    with pytest.raises(ValueError, match="more than 100 values"):
        list(there(near, far, itertools.count()))
    assert math.isinf(near.deadline)
