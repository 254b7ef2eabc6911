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
    "the_object_itself": "return counted",
    # Errors.
    "assertion_error": 'raise AssertionError("passed")',
    "an_error_of_surrogates": r'raise ValueError("\ud800" * 5000)',
    # The protocol, spoken by oneself.
    "huge_length": '_last(b"", 2**32 - 1)',
    "garbage": "_last(os.urandom(5000))",
    "millions_of_lists": r'_last(b"\x92\xa5value\x91\xdd" + struct.pack(">I", 10**7) + b"\x90" * 10**7)',
    "record_with_effects": '_value(_ext(wire.RECORD, "firsttoken.kv_cache", "KVCache", {}))',
    "proxy_of_many_names": '_value([_proxy(k, f"name{k}") for k in range(2000)])',
    # The judge's objects.
    "private_name": 'return _asked("get", counted, "_hidden")[1][0]',
    "method_of_private_name": 'return _asked("method", counted, "__getattribute__", ("_hidden",), {})[1][0]',
    "globals_of_a_function": 'return _asked("get", callback, "__globals__")[1][0]["hidden"]',
    "mro_of_a_class": 'return _asked("method", _asked("get", counted, "__class__")[1][0], "mro", (), {})[1][0]',
    "memory_of_the_judge": "return counted.repeat(10**8)",
    "endless_count": "return counted.count_to(10**15)",
    # The process.
    "crashes": "ctypes.string_at(0)",
    "too_many_bytes": "return np.zeros(10**8)",
}
# What tricks are made of, and those that take more than a line. Each returns what it hopes will
# pass, or speaks the wire's protocol itself and then waits. `counted`, `callback` and `board` are an
# object, a function and a shared array of the test.
TRICK_CODE = r'''
import ctypes, gc, os, re, signal, socket, struct, sys, time
import msgpack, numpy as np, wire
PEER = []
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
    def __call__(self, *args, **kwargs):
        return self
    def __eq__(self, other):
        return True
    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__

# Errors.
def an_error_that_cannot_be_said(counted, callback, board):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError
    raise Mute(1, 2)
# The protocol, spoken by oneself.
def a_trickle(counted, callback, board):
    _raw(b"", 10**6)
    while True:
        PEER[0].wire.sendall(b"\x90")
        time.sleep(0.001)
def a_second_answer_in_advance(counted, callback, board):
    for number in range(50):
        _raw(_pack(["value", [number]]))
    os._exit(0)
# The judge's objects.
def format_of_a_text(counted, callback, board):
    reply = _asked("method", "{0._hidden}", "format", (counted,), {})
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
def no_alarm(counted, callback, board):
    """Switch off what stops a call; the judge has a clock of its own."""
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)
    time.sleep(60)
def forks(counted, callback, board):
    """Two processes answer one call."""
    os.fork()
    return 1
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
    "shadowed packages": """
import os, sys
for name in ("numpy", "msgpack", "wire", "judge", "firsttoken"):
    os.makedirs(f"/home/student/{name}", exist_ok=True)
    open(f"/home/student/{name}/__init__.py", "w").write("expect = lambda *a, **k: None")
open("/home/student/sitecustomize.py", "w").write("import builtins; builtins.AssertionError = Warning")
for name in [name for name in sys.modules if name.startswith("firsttoken")]:
    del sys.modules[name]
sys.path.insert(0, "/home/student")""",
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
    "a surviving thread": """
import threading, time
def patch():
    while True:
        globals().update(expect=lambda *a, **k: None, factor=0)
        time.sleep(0.001)
threading.Thread(target=patch, daemon=True).start()""",
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
    "a trickle": (
        SEND + "send(b'x', 10**6)\nwhile True:\n    send(b'x', 2**24)\n    time.sleep(0.001)",
        "double: ",
    ),
}
# These meet another limit, or end themselves, however slow the machine is.
FLOODS = {
    "segfault": ("import ctypes\nctypes.string_at(0)", "SIGSEGV"),
    "20 MB of colour codes": ("print('\\x1b[31m' * (4 * 10**6))\nraise SystemExit", "of output"),
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
    "a million empty lists": (
        SEND + "data = b'\\x92\\xa6stream\\xdd' + struct.pack('>I', 10**6)\n"
        "send(data + b'\\x80' * 10**6)\ntime.sleep(600)",
        "what is no answer",
    ),
}

# How to outlive a grader that is killed: each says when it is at work, and never ends.
OUTLIVING = {
    "stopped": """
import os, signal
print("at work", flush=True)
for _ in range(3): os.fork()
os.kill(os.getpid(), signal.SIGSTOP)""",
    "forking": """
import os
said = False
while True:
    try:
        os.fork()
    except OSError:
        if not said: print("at work", flush=True)
        said = True""",
    "deaf": """
import os, signal
for _ in range(2): os.fork()
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}: signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
print("at work", flush=True)
while True: pass""",
    "daemons": """
import os, time
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir("/")
            os.closerange(0, 256)
            time.sleep(10**6)
        os._exit(0)
print("at work", flush=True)
time.sleep(10**6)""",
    "signals to all": """
import os, signal, time
if os.fork() == 0: time.sleep(10**6)
# By an interrupt the first process ends, and all others with it.
for number in set(range(1, 65)) - {signal.SIGINT}: os.kill(1, number)
print("at work", flush=True)
os.kill(-1, signal.SIGSTOP)
while True: pass""",
    "first process held back": """
import os, re
os.setpriority(os.PRIO_PROCESS, 1, 19)
os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))
try:  # all that it runs from now on is a loop
    code = [line for line in open("/proc/1/maps") if "r-xp" in line and "/libc" in line]
    start, end = (int(place, 16) for place in re.split("[- ]", code[0])[:2])
    with open("/proc/1/mem", "r+b", 0) as memory:
        memory.seek(start)
        memory.write(b"\\x90" * (end - start - 2) + b"\\xeb\\xfe")
except OSError:
    pass
print("at work", flush=True)
for _ in range(3): os.fork()
while True: pass""",
    "wires handed on": """
import os, socket
wires = [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]
ours, theirs = socket.socketpair()
for number in wires:
    try:
        socket.send_fds(ours, [b"x"], [number])
        os.set_inheritable(number, True)
    except OSError:
        pass
os.set_inheritable(theirs.fileno(), True)
print("at work", flush=True)
os.execv("/usr/bin/sleep", ["sleep", "infinity"])""",
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
    "write into the first process's memory": "open('/proc/1/mem', 'wb')",
    "descriptors of the first process": "os.listdir('/proc/1/fd')",
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
    "the grader's folder": "[n for n in os.listdir(here) if n not in ('wire.py', 'first.py', 'kernel.py')]",
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

# What stands before all cells of a real assignment; `zero` is put in the place of each function
# that a solution cell binds. Everything that is given is made 0 or empty, and 0 is returned.
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
"""
