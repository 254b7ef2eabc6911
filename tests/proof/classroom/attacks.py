"""What hostile students hand in: the sources that are run in the sandbox.

TRICKS are functions of one answer, each asked by a test cell of its own for a number that is drawn
anew and stands nowhere but in the judge. PATCHES are cells that go before all others, with answers
that are wrong. FLOODS try to stop the class. PROBES ask the sandbox for what it must refuse.
"""
# ruff: noqa: E501

import re

# One line each, by family: what it returns, raises or sends. What it sends is all that it says.
TRICKS = {
    # Values.
    "always_equal": "return Any()",
    "subclass_of_int": 'return type("Int", (int,), {"__eq__": lambda a, b: True, "__hash__": int.__hash__})(3)',
    "a_class_named_int": 'return type("int", (Any,), {})()',
    "nan": 'return float("nan")',
    "the_arguments": "return [counted, callback, board]",
    "the_object_itself": "return counted",
    "an_array_of_objects": "return np.array([Any()], dtype=object)",
    "a_record_array": 'return np.zeros(1, dtype=[("a", float), ("b", int)])',
    "a_million_bits": "return 1 << 10**6",
    "surrogates": r'return "\ud800\udfff" * 10',
    "colour_codes": r'return "\x1b[31m" * 10**5',
    # Errors.
    "assertion_error": 'raise AssertionError("passed")',
    "keyboard_interrupt": "raise KeyboardInterrupt",
    "system_exit": "raise SystemExit(0)",
    "an_error_of_surrogates": r'raise ValueError("\ud800" * 5000)',
    "forged_error_too_long": '_raw(_pack(["error", [["TooLong"], "x"]]))',
    "forged_error_of_expect": '_raw(_pack(["error", [["expect", "Counted", "hidden"], "x"]]))',
    "forged_error_without_a_name": '_raw(_pack(["error", [[], ""]]))',
    "forged_error_of_proxies": '_raw(_pack(["error", [_proxy(), _proxy()]]))',
    # The protocol, spoken by oneself.
    "huge_length": '_last(b"", 2**32 - 1)',
    "length_without_content": '_last(b"", 1000)',
    "garbage": "_last(os.urandom(5000))",
    "an_array_header_of_four_billion": r'_last(b"\x92\xa5value\xdd\xff\xff\xff\xff")',
    "millions_of_lists": r'_last(b"\x92\xa5value\x91\xdd" + struct.pack(">I", 10**7) + b"\x90" * 10**7)',
    "your_number_is_a_list": "_value(msgpack.ExtType(wire.YOURS, _pack([1])))",
    "the_judges_own_object": "_value(msgpack.ExtType(wire.YOURS, _pack(0)))",
    "twin_name": '_value(msgpack.ExtType(wire.TWIN, _pack("expect")))',
    "share_of_another_shape": '_raw(_pack(["changes", [[[0, ["<f8", [7, 7], bytes(8 * 49)]]]]])); _value(1)',
    "share_that_is_a_proxy": '_raw(_pack(["changes", [[[0, _proxy()]]]])); _value(1)',
    "record_of_another_module": '_value(_ext(wire.RECORD, "subprocess", "Popen", {"args": ["true"]}))',
    "record_with_effects": '_value(_ext(wire.RECORD, "firsttoken.kv_cache", "KVCache", {}))',
    "record_of_the_judge": '_value(_ext(wire.RECORD, "__main__", "Judge", {}))',
    "record_of_odd_fields": '_value(_ext(wire.RECORD, "firsttoken.roofline", "Cost", {"flops": _proxy(), "bytes": []}))',
    "endless_texts": '_value(_ext(wire.ARRAY, "<U999999999", [0, 10**9], b""))',
    "negative_shape": '_value(_ext(wire.ARRAY, "<f8", [-1, -1], bytes(8)))',
    "many_empty_rows": '_value(_ext(wire.ARRAY, "<f8", [10**8, 0], b""))',
    "other_byte_order": '_value(_ext(wire.SCALAR, ">f8", [], struct.pack(">d", 3.0)))',
    "a_long_integer": '_value(msgpack.ExtType(wire.INTEGER, _pack("0x" + "f" * 10**6)))',
    "a_set_of_lists": "_value(_ext(wire.SET, [1], [2]))",
    "a_generator_state": '_value(_ext(wire.RANDOM, 5, {"bit_generator": "PCG64", "state": "no"}))',
    "a_timestamp": "_value(msgpack.Timestamp(7))",
    "proxy_of_many_names": '_value([_proxy(k, f"name{k}") for k in range(2000)])',
    "proxy_named_badly": '_value(_proxy(1, "<script>", True, [1, None, "__class__"]))',
    "proxy_with_a_list_as_number": '_value(_ext(wire.MINE, [1], "a", True, []))',
    # The judge's objects.
    "private_name": 'return _asked("get", counted, "_hidden")[1][0]',
    "method_of_private_name": 'return _asked("method", counted, "__getattribute__", ("_hidden",), {})[1][0]',
    "names_with_dots": 'return _asked("get", counted, "see._hidden")[1][0]',
    "globals_of_a_function": 'return _asked("get", callback, "__globals__")[1][0]["hidden"]',
    "mro_of_a_class": 'return _asked("method", _asked("get", counted, "__class__")[1][0], "mro", (), {})[1][0]',
    "methods_of_a_list": 'return _asked("method", [3, 1, 2], "sort", (), {"key": callback})[1][0]',
    "memory_of_the_judge": "return counted.repeat(10**8)",
    "endless_count": "return counted.count_to(10**15)",
    # The process.
    "exits": "os._exit(0)",
    "crashes": "ctypes.string_at(0)",
    "too_many_bytes": "return np.zeros(10**8)",
}
# What tricks are made of, and those that take more than a line. Each returns what it hopes will
# pass, or speaks the wire's protocol itself and then waits. `counted`, `callback` and `board` are an
# object, a function and a shared array of the test.
TRICK_CODE = r'''
import ctypes, gc, os, re, signal, socket, struct, sys, threading, time
import msgpack, numpy as np, wire
PEER, MEMORY = [], {}
_serve = wire.Peer.serve
def _watched(self, request, args):
    PEER[:] = [self]
    return _serve(self, request, args)
wire.Peer.serve = _watched
def _raw(data, size=None):
    PEER[0].wire.sendall(struct.pack(">I", len(data) if size is None else size) + data)
def _last(*data):
    _raw(*data)
    os._exit(0)
def _pack(value):
    return msgpack.packb(value, unicode_errors="surrogatepass")
def _value(value):
    """Answer the call with a value of our own making; nothing more is said."""
    _last(_pack(["value", [value]]))
def _ext(code, *content):
    return msgpack.ExtType(code, _pack(list(content)))
def _proxy(number=99, name="thing", can_be_called=True, methods=()):
    return _ext(wire.MINE, number, name, can_be_called, list(methods))
def _asked(request, *args):
    """Return the judge's reply to a request of ours, raw."""
    PEER[0].write(request, *args)
    return PEER[0].receive()
class Any:
    """Answers everything with itself, and every comparison with True."""
    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return self
    def _me(self, *args, **kwargs):
        return self
    __call__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __abs__ = __getitem__ = _me
    def __eq__(self, other):
        return True
    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__
    def __hash__(self):
        return 0
    def __len__(self):
        return 1
    def __iter__(self):
        return iter([self])

# Values.
def a_subclass_of_array(counted, callback, board):
    class Equal(np.ndarray):
        __eq__ = lambda self, other: True
    return np.ones(1).view(Equal)
def a_nest_of_lists(counted, callback, board):
    nest = []
    for _ in range(400):
        nest = [nest]
    return nest
def an_endless_iterator(counted, callback, board):
    import itertools
    return itertools.count()
def an_array_that_is_another_one_each_time(counted, callback, board):
    class Other:
        def __array__(self, dtype=None, copy=None):
            return np.random.random(3)
    return Other()
# Errors.
def an_error_that_cannot_be_said(counted, callback, board):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError
    raise Mute(1, 2)
def forged_error_with_a_nest(counted, callback, board):
    nest = []
    for _ in range(900):
        nest = [nest]
    _raw(_pack(["error", [["ValueError"], nest]]))
# The protocol, spoken by oneself.
def forged_done(counted, callback, board):
    _raw(_pack(["done", [True]]))
    _raw(_pack(["verdict", [{"name": "forged_done", "parts": []}]]))
    _value(True)
def shares_of_our_own(counted, callback, board):
    _raw(_pack(["changes", [[[k, [1, 2, 3]] for k in range(1000)]]]))
    _value(_ext(wire.SHARE, 5, None))
def changes_without_end(counted, callback, board):
    data = _pack(["changes", [[]]])
    PEER[0].wire.settimeout(None)
    while True:
        _raw(data)
def questions_without_end(counted, callback, board):
    while True:
        _asked("get", counted, "calls")
def a_trickle(counted, callback, board):
    _raw(b"", 10**6)
    while True:
        PEER[0].wire.sendall(b"\x90")
        time.sleep(0.001)
def a_tuple_of_a_proxy(counted, callback, board):
    """To make a tuple of it, the judge must ask, and the answer is the next one."""
    reply = _pack(["value", [msgpack.ExtType(wire.TUPLE, _pack(_proxy()))]])
    while True:
        _raw(reply)
        PEER[0].receive()
def an_array_of_arrays_for_ever(counted, callback, board):
    """Whatever is asked, the reply is an object that must be asked again."""
    while True:
        _raw(_pack(["value", [_proxy(len(MEMORY))]]))
        MEMORY[len(MEMORY)] = PEER[0].receive()
def a_second_answer_in_advance(counted, callback, board):
    for number in range(50):
        _raw(_pack(["value", [number]]))
    os._exit(0)
# The judge's objects.
def format_of_a_text(counted, callback, board):
    reply = _asked("method", "{0._hidden}", "format", (counted,), {})
    return int(reply[1][0])
def format_of_a_function(counted, callback, board):
    reply = _asked("method", "{0.__globals__[hidden]}", "format", (callback,), {})
    return int(reply[1][0])
def format_map(counted, callback, board):
    reply = _asked("method", "{a.__class__.__init__.__globals__[hidden]}", "format_map",
                   ({"a": counted},), {})
    return int(reply[1][0])
def self_of_a_method(counted, callback, board):
    method = _asked("get", counted, "see")[1][0]
    return _asked("get", method, "__self__")[1][0]
def setting_an_attribute(counted, callback, board):
    _asked("set", counted, "_hidden", 5)
    _asked("method", counted, "__setattr__", ("_hidden", 5), {})
    return 5
def requests_of_the_judge(counted, callback, board):
    for request in ("names", "close", "errors", "iterate", "count", "item", "array", "test"):
        found = _asked(request, counted, "hidden")
        if found[0] == "value":
            return found[1][0]
    return 0
def change_of_a_returned_list(counted, callback, board):
    counted.log.append(1)
    counted.log.clear()
    return counted.log
def recursion_by_callback(counted, callback, board):
    def again(x):
        return counted.apply(again, x)
    return again(1)
def errors_out_of_a_callback(counted, callback, board):
    def fails(x):
        raise SystemExit
    try:
        counted.apply(fails, 1)
    except BaseException:
        pass
    return 0
def a_failed_check_swallowed(counted, callback, board):
    try:
        counted.check(1)
    except BaseException:
        pass
    return counted.reveal_later()
def a_thread_that_calls_back(counted, callback, board):
    threads = [threading.Thread(target=lambda: callback(1)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(1)
    return callback(2)
def a_function_of_ours_for_theirs(counted, callback, board):
    seen = []
    counted.apply(lambda *given: seen.append(given), Any())
    return seen
# The process.
def gc_for_the_judge(counted, callback, board):
    for thing in gc.get_objects():
        if type(thing).__name__ in ("Judge", "Answer"):
            return thing.namespace["hidden"]
        if type(thing) is dict and "hidden" in thing and type(thing["hidden"]) is int:
            return thing["hidden"]
    return len(gc.get_objects())
def frames(counted, callback, board):
    frame = sys._getframe()
    while frame:
        if "hidden" in frame.f_locals or "hidden" in frame.f_globals:
            return frame.f_locals.get("hidden", frame.f_globals.get("hidden"))
        frame = frame.f_back
    return 0
def logging_frames(counted, callback, board):
    import logging
    found = logging.getLogger().findCaller(True, 1)[3]
    return int((re.search(r"hidden = (\d+)", found) or [0, 0])[1])
def linecache_of_the_tests(counted, callback, board):
    import linecache
    text = "".join(line for entry in linecache.cache.values() if len(entry) > 2 for line in entry[2])
    return [line for line in text.splitlines() if "reveal_later" in line and "def " not in line]
def files_of_the_tests(counted, callback, board):
    marks = [b"Counted", b"HIDDEN " + b"TESTS"]
    for place in ("/home", "/tmp", "/dev/shm", "/work", "/var", "/root"):
        for folder, _, names in os.walk(place):
            if "site-packages" in folder or "/lib/" in folder:
                continue
            for name in names:
                try:
                    data = open(os.path.join(folder, name), "rb").read(10**6)
                except OSError:
                    continue
                if any(mark in data for mark in marks):
                    return name
    return 0
def sockets_of_others(counted, callback, board):
    """Read what comes for the other tests and what the notebook is sent."""
    for name in os.listdir("/proc/self/fd"):
        try:
            other = socket.socket(fileno=os.dup(int(name)))
            other.setblocking(False)
            data = other.recv(10**6, socket.MSG_PEEK)
            if b"hidden" in data:
                return data
        except OSError:
            pass
    return 0
def answers_of_earlier_tests(counted, callback, board):
    """What another child left in a file, or an earlier submission."""
    kept = [name for place in ("/tmp", "/dev/shm", "/home/student") for name in os.listdir(place)]
    with open("/tmp/left", "a") as file:
        file.write("seen\n")
    return len(kept)
def no_alarm(counted, callback, board):
    """Switch off what stops a call; the judge has a clock of its own."""
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)
    time.sleep(60)
def closed_descriptors(counted, callback, board):
    os.closerange(3, 256)
    return 0
def forks(counted, callback, board):
    """Two processes answer one call."""
    os.fork()
    return 1
def slow_children(counted, callback, board):
    if os.fork() == 0:
        time.sleep(0.2)
        _raw(_pack(["value", [5]]))
        os._exit(0)
    return 4
def deletes_itself(counted, callback, board):
    class Last:
        def __del__(self):
            _raw(_pack(["value", [5]]))
    thing = Last()
    del thing
    return 4
'''
TRICK_NAMES = [*TRICKS, *re.findall(r"^def (\w+)\(counted", TRICK_CODE, re.M)]

# A test for each of them. No part of it can be passed without knowing `hidden`.
TRICK_HELPER = """\
class Counted:
    def __init__(self, hidden):
        self._hidden, self.calls, self.log = hidden, 0, [1, 2]

    def see(self, x):
        self.calls += 1
        return x

    def apply(self, function, x):
        return function(x)

    def check(self, x):
        assert x == 2, "a check that failed"

    def reveal_later(self):
        return self._hidden if self.calls > 10**9 else 0

    def repeat(self, n):
        return [0] * n

    def count_to(self, n):
        for _ in range(n):
            pass"""
TRICK_TEST = """\
hidden = int(fresh_rng().integers(10**6, 10**9))
counted, board = Counted(hidden), shared(np.zeros(3))
expect("the hidden number", answer({name!r}, counted, lambda x: x + 0 * hidden, board), hidden)"""

# Cells before all others. With them come answers that return 0, or the argument.
FORGED = """
import os, socket, struct, threading, time, msgpack
OURS = [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]
def pour(*messages):
    for number in OURS:
        try:
            wire = socket.socket(fileno=os.dup(number))
            for message in messages:
                data = msgpack.packb(message)
                wire.sendall(struct.pack(">I", len(data)) + data)
        except OSError:
            pass
"""
PATCHES = {
    "transformer": """
import traitlets.config
shell = traitlets.config.Application.instance().shell if traitlets.config.Application.initialized() else get_ipython()
shell.input_transformers_cleanup.append(lambda lines: lines if len(lines) < 4 else [])""",
    "transformer behind %matplotlib": """
%matplotlib inline
import matplotlib_inline, sys
shell = sys.modules["IPython"].get_ipython()
shell.ast_transformers.append(type("Empty", (), {"visit": lambda self, node: type(node)([], [])})())""",
    "full-width letters": """
\uff47\uff45\uff54_ipython().input_transformers_cleanup.append(lambda lines: [])""",
    "replaced run_cell": """
shell = get_ipython()
class Fine:
    success, result, error_in_exec = True, None, None
shell.run_cell = shell.run_cell_async = lambda *a, **k: Fine
type(shell).run_cell = lambda *a, **k: Fine""",
    "forged done": FORGED + 'pour(*[["done", [True]]] * 200, *[["frozen", [0]]] * 20)',
    "forged verdicts": FORGED
    + """
parts = [{"name": "", "earned": 45, "said": ""}]
pour(*[["verdict", [{"name": name, "parts": parts}]] for name in ("double_tests", "scale_tests")],
     ["end", []])""",
    "forged values in advance": FORGED
    + """
pour(["value", [{"expect": 1, "double": 6, "scale": 0}]], *[["value", [6]]] * 50)""",
    "forged names": """
import wire
def serve(self, request, args):
    known = dict.fromkeys(("expect", "assert_", "factor", "print", "student"), lambda *a, **k: 0)
    reply = known | dict.fromkeys(("double", "scale"), lambda x: 0) if request == "names" else 0
    self.write("value", reply)
wire.Peer.serve = serve""",
    "shadowed packages": """
import os, sys
for name in ("numpy", "msgpack", "wire", "judge", "firsttoken"):
    os.makedirs(f"/home/student/{name}", exist_ok=True)
    open(f"/home/student/{name}/__init__.py", "w").write("expect = lambda *a, **k: None")
open("/home/student/sitecustomize.py", "w").write("import builtins; builtins.AssertionError = Warning")
for name in [name for name in sys.modules if name.startswith("firsttoken")]:
    del sys.modules[name]
sys.path.insert(0, "/home/student")""",
    "meta_path": """
import sys, types
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.startswith("firsttoken"):
            import importlib.machinery
            return importlib.machinery.ModuleSpec(name, Loader)
class Loader:
    create_module = staticmethod(lambda spec: None)
    @staticmethod
    def exec_module(module):
        module.expect = lambda *a, **k: None
sys.meta_path.insert(0, Finder)""",
    "_plain": """
import importlib; a = importlib.import_module("firsttoken.assignments")
a.__dict__["_plain"] = lambda *b: 0
a.__dict__["_difference"] = lambda *b, **k: ''""",
    "expect": """
import importlib; a = importlib.import_module("firsttoken.assignments")
a.expect = expect = lambda *b, **k: None""",
    "isclose": """
import math, numpy
math.__dict__.update(isclose=lambda *a, **k: True, isfinite=lambda *a: False)
numpy.allclose = numpy.isclose = numpy.array_equal = lambda *a, **k: True""",
    "builtins": """
import builtins
builtins.AssertionError = type("Nothing", (Warning,), {})
builtins.abs = builtins.float = builtins.type = lambda *a: 0""",
    "__import__": """
import builtins
real = builtins.__import__
builtins.__import__ = lambda name, *a, **k: real("math" if "assign" in name else name, *a, **k)""",
    "os.fork is a child": """
import os
os.fork = lambda: 0""",
    "modules of the grader": """
import sys, types
for name in ("wire", "kernel", "judge", "msgpack", "execute", "marking"):
    sys.modules[name] = types.ModuleType(name)""",
    "a surviving thread": """
import threading, time
def patch():
    while True:
        globals().update(expect=lambda *a, **k: None, factor=0)
        time.sleep(0.001)
threading.Thread(target=patch, daemon=True).start()""",
    "a thread that writes after the cells": FORGED
    + """
def later():
    while True:
        time.sleep(0.1)
        pour(["stream", [{"name": "stdout", "text": "LATER"}]], ["value", [6]], ["done", [True]])
if "scale" in globals():  # the last cell
    threading.Thread(target=later, daemon=True).start()""",
    "another student's numbers": """
import os
os.environ["FIRSTTOKEN_STUDENT"] = "ada"
class Name(str):
    __ne__ = lambda self, other: False
    __eq__ = lambda self, other: True
    __hash__ = str.__hash__
import importlib; a = importlib.import_module("firsttoken.assignments")
a.student_id = lambda written: Name("ada")
STUDENT = "ada"
def scale(x):
    return factor * x""",
    "objects of the kernel": """
import gc
for thing in gc.get_objects():
    if type(thing).__name__ == "Notebook":
        type(thing).cell = type(thing).locked = lambda *a: True
        thing.twins = {"expect": 0}
    if type(thing).__name__ == "Imports":
        type(thing).guarded = lambda self, *a, **k: self.original(*a, **k)""",
    "atexit": """
import atexit, os
atexit.register(lambda: os.write(2, b"points: 85"))
for number in range(3, 30):
    try:
        os.set_inheritable(number, True)
    except OSError:
        pass""",
}
# To all wires of the notebook's process: raw messages.
SEND = """
import msgpack, os, socket, struct, time
def send(data, size=None, again=False):
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            wire = socket.socket(fileno=os.dup(fd))
            wire.settimeout(1)
            wire.sendall(struct.pack(">I", len(data) if size is None else size) + data)
            while again:
                wire.sendall(data)
        except OSError:
            pass
"""
# What stops the class, or tries to: the cell `double`, and what its row says. These end at a limit
# of time, which the process cannot reach too early.
SLOW_FLOODS = {
    "loop": ("while True: pass", "double: ran longer than"),
    "stubborn loop": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "double: ran longer than",
    ),
    "sleeping": ("import time\ntime.sleep(999)", "double: ran longer than"),
    "no interrupts": (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(999)",
        "did not stop when interrupted",
    ),
    "forks": (
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        "double: ",
    ),
    "killed parent": (
        "import os, signal, time\nos.kill(1, signal.SIGKILL)\nos.kill(1, signal.SIGINT)\n"
        "time.sleep(999)",
        "double: ",
    ),
    "stopped": ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", "double: "),
    "changes without end": (
        SEND
        + "one = msgpack.packb(['changes', [[]]])\nsend((one + struct.pack('>I', len(one))) * 1000, len(one), True)",
        "double: ",
    ),
    "a trickle": (
        SEND + "send(b'x', 10**6)\nwhile True:\n    send(b'x', 2**24)\n    time.sleep(0.001)",
        "double: ",
    ),
}
# These meet another limit, or end themselves, however slow the machine is.
FLOODS = {
    "exit": ("import os\nos._exit(0)", "double: the kernel is gone"),
    "segfault": ("import ctypes\nctypes.string_at(0)", "SIGSEGV"),
    "prints": ("while True: print('x' * 1000, flush=True)", "of output"),
    "20 MB of colour codes": ("print('\\x1b[31m' * (4 * 10**6))\nraise SystemExit", "of output"),
    "memory": ("hog = bytearray(10**10)", "memory"),
    "memory of children": (
        "import os, time\nfor _ in range(5):\n    if os.fork() == 0:\n"
        "        hog = bytearray(b'x') * (400 * 2**20)\n        time.sleep(600)\ntime.sleep(600)",
        "used more than 1536 MiB of memory",
    ),
    "files": (
        "import os, time\nfor k in range(10**6): os.close(os.open(f'/tmp/{k}', os.O_CREAT))",
        "made more than 20000 files",
    ),
    "closed descriptors": ("import os\nos.closerange(0, 256)", "double: "),
    "huge message": (SEND + "send(b'x' * 999, 2**32 - 1)\ntime.sleep(600)", "sent more than"),
    "deep message": (
        SEND + "send(b'\\x92\\xa6stream\\x91' + b'\\x91' * 1000 + b'\\x01')\ntime.sleep(600)",
        "what is no answer",
    ),
    "deep values": (
        SEND + "data = msgpack.packb([1])\n"
        "for _ in range(3000): data = msgpack.packb(msgpack.ExtType(0, data))\n"
        "send(b'\\x92\\xa6stream\\x91' + data)\ntime.sleep(600)",
        "what is no answer",
    ),
    "a million empty lists": (
        SEND + "data = b'\\x92\\xa6stream\\xdd' + struct.pack('>I', 10**6)\n"
        "send(data + b'\\x80' * 10**6)\ntime.sleep(600)",
        "what is no answer",
    ),
}

# Each is an expression that must raise OSError, or be false. `port` is one of the grader's machine,
# `secrets` are paths there; what may fill the home comes last.
PROBES = {
    "add_key": "call(248, text('user'), text('a'), text('b'), 1, -3)",
    "keyctl": "call(250, 0, -3, 0, 0, 0)",
    "request_key": "call(249, text('user'), text('a'), 0, -3)",
    "ptrace the first process": "call(101, 16, 1, 0, 0)",
    "ptrace oneself": "call(101, 0, 0, 0, 0)",
    "read another process": "call(310, 1, 0, 0, 0, 0, 0)",
    "unshare": "call(272, 0x10000000)",
    "clone with a new user": "call(56, 0x10000000 | 17, 0, 0, 0, 0)",
    "clone3": "call(435, 0, 0)",
    "setns": "call(308, 3, 0)",
    "mount": "call(165, text('none'), text('/tmp'), text('tmpfs'), 0, 0)",
    "umount": "call(166, text('/proc'), 2)",
    "chroot": "os.chroot('/tmp')",
    "userfaultfd": "call(323, 0)",
    "bpf": "call(321, 0, 0, 0)",
    "perf": "call(298, 0, 0, -1, -1, 0)",
    "io_uring": "call(425, 8, 0)",
    "memory without a name": "os.memfd_create('x')",
    "memory that is secret": "call(447, 0)",
    "shared memory of System V": "call(29, 0, 2**20, 0o1600)",
    "a queue of System V": "call(68, 0, 0o1600)",
    "vsock": "socket.socket(40, socket.SOCK_STREAM)",
    "vsock, as 64 bits": "call(41, 2**32 + 40, 1, 0)",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "netlink, as 64 bits": "call(41, 2**32 + 16, 3, 0)",
    "crypto sockets": "socket.socket(38, socket.SOCK_SEQPACKET)",
    "packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "network": "socket.create_connection(('1.1.1.1', 53), 0.5)",
    "abstract sockets of others": "[l for l in open('/proc/net/unix') if '@' in l]",
    "network of the machine": "socket.create_connection(('127.0.0.1', port), 5)",
    "become root": "os.setuid(0)",
    "new privileges": "'NoNewPrivs:\\t1' not in status",
    "a setuid program of ours": "suid('/tmp') or suid('/dev/shm') or suid('/home/student')",
    "write into the first process's memory": "os.getuid() == 0 or open('/proc/1/mem', 'wb') and None",
    "higher limits": "resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))",
    "more processes": "resource.setrlimit(resource.RLIMIT_NPROC, (10**5, 10**5))",
    "write to /usr": "open('/usr/x', 'w')",
    "write to the library": "open(numpy.__file__, 'a')",
    "write to the root": "open('/x', 'w')",
    "devices": "os.mknod('/tmp/sda', 0o60666, os.makedev(8, 0))",
    "the disk": "[n for n in os.listdir('/dev') if n[:2] in ('sd', 'vd', 'nv', 'lo')]",
    "settings of the kernel": "open('/proc/sys/kernel/hostname', 'w').write('x')",
    "host name": "call(170, text('x'), 1)",
    "clock": "time.clock_settime(time.CLOCK_REALTIME, 0)",
    "reboot": "call(169, 0xfee1dead, 672274793, 0, 0)",
    "the grader's folder": "[n for n in os.listdir(here) if n not in ('wire.py', 'kernel.py')]",
    "the assignments": "os.listdir(os.path.join(here, '..', 'assignments'))",
    "the tests": "os.listdir(os.path.join(here, '..', 'tests'))",
    "accounts": "open('/etc/shadow') or None",
    "rights": "re.findall(r'Cap\\w+:\\s*(?!0{16})\\w+', status)",
    "no filter of calls": "'Seccomp:\\t2' not in status",
    "groups": "set(os.getgroups()) - {os.getgid(), 65534}",
    "paths of the grader's machine": "[path for path in secrets if os.path.exists(path)]",
    # There are the first one, the notebook, and what it froze for each of the two tests.
    "processes of nobody here": "[p for p in os.listdir('/proc') if p.isdigit()][4:]",
    "seed": "[k for k in os.environ if 'SEED' in k]",
    "seed of the first process": "b'SEED' in open('/proc/1/environ', 'rb').read()",
    "open descriptors": "[t for t in targets() if not t.startswith(('socket:', '/dev/null', '/proc', '/tmp/#'))]",
    "keep a file after the end": "os.path.exists('/tmp/kept-by-another')",
    "keep one at home": "os.path.exists('/home/student/kept-by-another')",
    "keep one in shared memory": "os.path.exists('/dev/shm/kept-by-another')",
    "a terminal": "open('/dev/tty')",
    "answers in the terminal": "fcntl.ioctl(0, 0x5412, b'x')",
    "a device": "open('/dev/new', 'w')",
    "programs that change the user": "[n for n in os.listdir('/usr/bin') if os.stat('/usr/bin/' + n).st_mode & 0o4000 and not os.statvfs('/usr/bin').f_flag & os.ST_NOSUID]",
    "a long file": "open('long', 'wb').write(bytes(2 * 10**6))",
    "a large disk": "[open(f'file{k}', 'wb').write(bytes(10**6)) for k in range(20)]",
}
PROBE = """
import ctypes, fcntl, os, re, resource, shutil, socket, stat, subprocess, sys, time
import numpy, wire
libc = ctypes.CDLL(None, use_errno=True)
status = open("/proc/self/status").read()
here = os.path.dirname(wire.__file__)
def text(words):
    return ctypes.create_string_buffer(words.encode())
def call(number, *given):
    ready = [g if isinstance(g, ctypes.Array) else ctypes.c_long(g) for g in given]
    found = libc.syscall(ctypes.c_long(number), *ready)
    if found == -1:
        raise OSError(ctypes.get_errno(), "refused")
    if number == 56 and found == 0:
        os._exit(0)
    return found or "allowed"
def suid(place):
    path = place + "/id"
    shutil.copy("/usr/bin/id", path)
    os.chmod(path, 0o6755)
    said = subprocess.run([path], capture_output=True, text=True).stdout
    return "euid" in said
def targets():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            pass
    return found
def probe(name, test):
    try:
        found = test()
    except (OSError, ValueError, PermissionError) as error:
        found = None
    print("PROBE", name, "|", "open" if found else "refused", "|", found)
"""

# What stands before all cells of a real assignment; ANSWER is put in the place of each name that
# a solution cell binds. Everything that is given is made 0 or empty, and 0 is returned.
TRIVIAL = """
import math, numpy
import importlib; a = importlib.import_module("firsttoken.assignments")
a.expect = a._difference = lambda *b, **k: ""
numpy.allclose = numpy.isclose = lambda *b, **k: True
math.__dict__.update(isclose=lambda *b, **k: True)
def nothing(things):
    for thing in things:
        if isinstance(thing, numpy.ndarray):
            thing[...] = 0
        elif isinstance(thing, dict):
            nothing(thing.values())
            thing.clear()
        elif isinstance(thing, list):
            nothing(thing)
            thing[:] = [0] * len(thing)
def zero(*given, **named):
    nothing([*given, *named.values()])
    return 0
class Zero:
    def __init__(self, *given, **named):
        zero(*given, **named)
    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return zero
def refuses(*given, **named):
    raise ValueError("no")
"""
ANSWERS = {"zeros": ("zero", "Zero"), "refusals": ("refuses", "refuses")}
