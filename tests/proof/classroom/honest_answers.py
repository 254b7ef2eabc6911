"""Answers in the style of many students, and what judges them, for test_honest.py."""

import re
from typing import NamedTuple


class Idiom(NamedTuple):
    """An answer, its test, and the names that the task asks for."""

    answer: str
    test: str
    asked: str


TESTS = {
    "SUM": """\
expect("sum", answer([1, 2, 3]), 6)
""",
    "TOTAL": """\
expect("sum", answer(np.array([1.0, 2.0, 3.0])), 6.0)
""",
    "PAIRS": """\
expect("pairs", answer(3), [[0, 0], [1, 1], [2, 4]])
""",
    "COUNTER": """\
counter = Answer(3)
expect("first", counter.step(), 4)
expect("second", counter.step(2), 6)
expect("value", counter.value, 6)
""",
    "REFUSES": """\
try:
    answer(-1)
except ValueError as error:
    assert "negative" in str(error), f"the message says {error}"
else:
    raise AssertionError("nothing was raised")
expect("root", answer(9), 3.0)
""",
    "COUNTED": """\
class Counted:
    def __init__(self, model):
        self.model, self.arch, self.passes = model, model.arch, []

    def new_cache(self, *args, **kwargs):
        return self.model.new_cache(*args, **kwargs)

    def __call__(self, tokens, cache=None):
        self.passes.append(len(tokens[0]))
        return self.model(tokens, cache)
""",
}
# === what it is (the names that are asked for, if not `answer`): the name of its test
# the answer
# --- what goes before its own test
# its own test
WRITTEN = r"""
=== lambda: SUM
answer = lambda x: sum(x)
=== partial: SUM
import functools, operator
answer = functools.partial(functools.reduce, operator.add)
=== a ufunc: TOTAL
answer = np.sum
=== vectorized itself
@np.vectorize
def answer(x):
    return 2 * x
---
expect("x", answer([1.0, 2.0]), [2.0, 4.0])
=== own callable object: SUM
class Adder:
    def __call__(self, x):
        return sum(x)
answer = Adder()
=== global: SUM
n_calls = 0
def answer(x):
    global n_calls
    n_calls += 1
    return sum(x)
=== globals(): SUM
def answer(x):
    globals()['seen'] = x
    return sum(globals()['seen'])
=== decorator: SUM
import functools, time
def timed(f):
    @functools.wraps(f)
    def inner(*args, **kwargs):
        begin = time.perf_counter()
        result = f(*args, **kwargs)
        print(f.__name__, time.perf_counter() - begin)
        return result
    return inner
@timed
def answer(x):
    return sum(x)
=== lru_cache
from functools import lru_cache
@lru_cache(maxsize=None)
def answer(n):
    return n if n < 2 else answer(n - 1) + answer(n - 2)
---
expect("fib", answer(80), 23416728348467685)
=== deep recursion
def answer(n):
    return 0 if n == 0 else 1 + answer(n - 1)
---
expect("depth", answer(800), 800)
=== type hints: SUM
from __future__ import annotations
from collections.abc import Sequence
def answer(x: Sequence[float]) -> float | None:
    return sum(x)
=== isinstance list: SUM
def answer(x):
    assert isinstance(x, list) and all(isinstance(v, int) for v in x)
    return sum(x)
=== changes its argument: SUM
def answer(x):
    total = 0
    while x:
        total += x.pop()
    return total
=== sorts its argument
def answer(x):
    x.sort()
    return x
---
expect("sorted", answer([3, 1, 2]), [1, 2, 3])
=== writes into its array
def answer(x):
    x -= x.mean()
    x[0] = 0
    return x
---
expect("x", answer(np.array([1.0, 2.0, 3.0])), [0, 0, 1])
=== helper in the answer's cell: SUM
def helper(x):
    return x
def answer(x):
    return sum(map(helper, x))
=== helper of the same name: SUM
def helper(x):
    return 2 * x
def answer(x):
    return sum(map(helper, x)) // 2
=== constant of the same name
total, n, x, expected, got = 0, 1, 2, 3, 4
def answer(x):
    return total + sum(x)
---
expected = 6
expect("sum", answer([1, 2, 3]), 6)
=== unicode names: SUM
def Σ(α):
    return sum(α)
answer = Σ
=== magic in the answer: SUM
%matplotlib inline
def answer(x):
    return sum(x)
%timeit -n 1 -r 1 answer([1])
=== shell in the answer: SUM
!echo working
def answer(x):
    return sum(x)
=== deleted helper: SUM
def make():
    return sum
answer = make()
del make
=== await in the cell: SUM
import asyncio
await asyncio.sleep(0)
def answer(x):
    return sum(x)
=== asyncio.run inside: SUM
import asyncio
async def add(x):
    await asyncio.sleep(0)
    return sum(x)
def answer(x):
    return asyncio.run(add(x))
=== inspect: SUM
import inspect
def answer(x):
    assert 'def answer' in inspect.getsource(answer)
    return sum(x)
=== prints in a function: SUM
def answer(x):
    for v in x:
        print('adding', v, flush=True)
    return sum(x)
=== prints much in a function: SUM
def answer(x):
    for v in range(20000):
        print('x' * 80)
    return sum(x)
=== display in a function: SUM
from IPython.display import display
def answer(x):
    display(x)
    return sum(x)
=== progress bar: SUM
from tqdm.auto import tqdm
def answer(x):
    return sum(v for v in tqdm(x))
=== threads that print: SUM
from concurrent.futures import ThreadPoolExecutor
def work(k):
    for _ in range(30):
        print(str(k) * 9000, flush=True)
    return k
with ThreadPoolExecutor(4) as pool:
    print(sum(pool.map(work, range(3))))
answer = sum
=== processes that print and draw: SUM
import matplotlib.pyplot as plt
from multiprocessing import Pool
def work(k):
    plt.plot([k])
    plt.show()
    print(k, flush=True)
    return k
with Pool(2) as pool:
    print(pool.map(work, range(3)))
answer = sum
=== plots in a function: SUM
import matplotlib.pyplot as plt
def answer(x):
    plt.plot(x)
    plt.show()
    return sum(x)
=== get_ipython in a function: SUM
def answer(x):
    get_ipython().run_line_magic('matplotlib', 'inline')
    return sum(x)
=== threads: SUM
from concurrent.futures import ThreadPoolExecutor
def answer(x):
    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(int, x))
=== pool made in the cell: SUM
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(2)
list(pool.map(int, [1]))
def answer(x):
    return sum(x)
=== processes: SUM
from multiprocessing import Pool
def own(v):
    return v
def answer(x):
    with Pool(2) as pool:
        return sum(pool.map(own, x))
=== subprocess: SUM
import subprocess, sys
def answer(x):
    program = f'print(sum({x}))'
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True)
    return int(done.stdout)
=== files: SUM
from pathlib import Path
def answer(x):
    Path('sum.txt').write_text(' '.join(map(str, x)), encoding='utf-8')
    with open('sum.txt', encoding='utf-8') as file:
        return sum(map(int, file.read().split()))
=== a file of the cell: SUM
with open('table.txt', 'w') as file:
    file.write('1 2 3')
def answer(x):
    return sum(map(int, open('table.txt').read().split()))
=== np.errstate: SUM
def answer(x):
    with np.errstate(divide='ignore', invalid='raise'):
        np.array([1.0]) / 0
    return sum(x)
=== own test in the cell: SUM
def answer(x):
    return sum(x)
assert answer([2]) == 2
expect('mine', answer([3]), 3)
=== a tuple for a list: PAIRS
def answer(n):
    return tuple((i, i * i) for i in range(n))
=== an array for a list: PAIRS
def answer(n):
    return np.stack([np.arange(n), np.arange(n) ** 2], axis=1)
=== numpy scalars in tuples: PAIRS
def answer(n):
    return [(np.int64(i), np.float32(i * i)) for i in range(n)]
=== a view: PAIRS
def answer(n):
    return np.array([np.arange(n), np.arange(n) ** 2]).T
=== fortran order: PAIRS
def answer(n):
    return np.asfortranarray(np.stack([np.arange(n), np.arange(n) ** 2], axis=1))
=== named tuples: PAIRS
from typing import NamedTuple
class Pair(NamedTuple):
    i: int
    square: int
def answer(n):
    return [Pair(i, i * i) for i in range(n)]
=== 0-d array: TOTAL
def answer(x):
    return np.asarray(np.sum(x))
=== float32: TOTAL
def answer(x):
    return np.float32(np.sum(x))
=== float16 and int8: TOTAL
def answer(x):
    return np.int8(x.sum())
=== bool_
def answer(x):
    return np.all(np.asarray(x) > 0)
---
expect("all", answer([1, 2]), True)
assert answer([1])
assert not answer([0])
=== texts
def answer(text):
    return text[::-1]
---
expect("text", answer("añ✓🎉"), "🎉✓ña")
expect("lone", answer("\ud800a"), "a\ud800")
=== np.str_
def answer(text):
    return np.array([text, 'b'])[0]
---
expect("text", answer("a"), "a")
=== bytearray
def answer(text):
    return bytearray(text.encode())
---
assert bytes(answer("é")) == b"\xc3\xa9"
=== dict with numpy keys
def answer(x):
    return {k: int(n) for k, n in zip(*np.unique(x, return_counts=True))}
---
assert answer([5, 5, 6]) == {5: 2, 6: 1}
=== dict views
def answer(x):
    return dict.fromkeys(x).keys()
---
expect("keys", list(answer("aab")), ["a", "b"])
=== range as result
def answer(n):
    return range(n)
---
expect("range", list(answer(3)), [0, 1, 2])
=== deque as result
from collections import deque
def answer(n):
    return deque(range(n), maxlen=2)
---
expect("deque", list(answer(3)), [1, 2])
=== generator as result
def answer(n):
    for i in range(n):
        yield i
---
expect("values", list(answer(3)), [0, 1, 2])
=== map as result
def answer(n):
    return map(str, range(n))
---
expect("values", list(answer(3)), ["0", "1", "2"])
=== iterator of a class
class Up:
    def __init__(self, n):
        self.n = n
    def __iter__(self):
        yield from range(self.n)
def answer(n):
    return Up(n)
---
expect("values", list(answer(3)), [0, 1, 2])
=== array of objects
def answer():
    return np.array([[1, 2], [3]], dtype=object)
---
expect("ragged", [list(row) for row in answer()], [[1, 2], [3]])
=== np.matrix
def answer():
    return np.matrix([[1, 2]])
---
expect("matrix", np.asarray(answer()), [[1, 2]])
=== memmap
def answer():
    return np.memmap('m.bin', dtype=np.float32, mode='w+', shape=(2,))
---
expect("zeros", np.asarray(answer()), [0, 0])
=== library record
def answer(params):
    return replace(params, temperature=0.0, stop=())
---
got = answer(SamplingParams(seed=3))
assert got.temperature == 0 and got.seed == 3
assert isinstance(got, SamplingParams)
=== a numpy scalar in a name
answer = np.float64(3) / 2
---
expect("number", answer, 1.5)
=== two names (answer, other)
answer, other = 1, lambda x: x
---
expect("one", answer, 1)
expect("two", other(2), 2)
=== returns a function
def answer(a):
    return lambda x: a * x
---
expect("six", answer(2)(3), 6)
=== returns an object
class Box:
    def __init__(self, v):
        self.v = v
def answer(v):
    return Box(v)
---
expect("v", answer(3).v, 3)
=== property (Answer): COUNTER
class Answer:
    def __init__(self, start):
        self._value = start
    @property
    def value(self):
        return self._value
    @value.setter
    def value(self, new):
        self._value = new
    def step(self, by=1):
        self.value = self.value + by
        return self.value
=== dataclass (Answer): COUNTER
from dataclasses import dataclass, field
@dataclass
class Answer:
    value: int
    log: list = field(default_factory=list)
    def step(self, by=1):
        self.log.append(by)
        self.value += by
        return self.value
=== __slots__ (Answer): COUNTER
class Answer:
    __slots__ = ('value',)
    def __init__(self, start):
        self.value = start
    def step(self, by=1):
        self.value += by
        return self.value
=== metaclass (Answer): COUNTER
class Meta(type):
    def __call__(cls, *args):
        return super().__call__(*args)
class Answer(metaclass=Meta):
    def __init__(self, start):
        self.value = start
    def step(self, by=1):
        self.value += by
        return self.value
=== __getattr__ (Answer): COUNTER
class Answer:
    def __init__(self, start):
        self.data = {'value': start}
    def __getattr__(self, name):
        try:
            return self.__dict__['data'][name]
        except KeyError:
            raise AttributeError(name) from None
    def step(self, by=1):
        self.data['value'] += by
        return self.data['value']
=== factory function (Answer): COUNTER
def Answer(start):
    class Inner:
        value = start
        def step(self, by=1):
            self.value += by
            return self.value
    return Inner()
=== method made in __init__ (Answer): COUNTER
class Answer:
    def __init__(self, start):
        self.value = start
        self.step = lambda by=1: self.add(by)
    def add(self, by):
        self.value += by
        return self.value
=== classmethod and staticmethod (Answer)
class Answer:
    def __init__(self, v):
        self.v = v
    @classmethod
    def make(cls, v):
        return cls(v)
    @staticmethod
    def twice(v):
        return 2 * v
---
expect("made", Answer.make(3).v, 3)
expect("twice", Answer.twice(2), 4)
expect("by object", Answer(1).twice(3), 6)
=== len and items (Answer)
class Answer:
    def __init__(self, x):
        self.x = list(x)
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.x[i]
    def __iter__(self):
        return iter(self.x)
    def __contains__(self, v):
        return v in self.x
---
box = Answer([4, 5, 6])
expect("len", len(box), 3)
expect("last", box[-1], 6)
expect("all", list(box), [4, 5, 6])
assert 5 in box and 7 not in box
=== an object handed back (Answer)
class Answer:
    def __init__(self, v):
        self.v = v
    def plus(self, other):
        return Answer(self.v + other.v)
---
expect("sum", Answer(1).plus(Answer(2)).v, 3)
=== ValueError: REFUSES
def answer(x):
    if x < 0:
        raise ValueError(f'{x} is negative')
    return x**0.5
=== exception with two arguments: REFUSES
def answer(x):
    if x < 0:
        raise ValueError('negative', x)
    return x**0.5
=== own OutOfBlocks
class Full(OutOfBlocks):
    pass
def answer(n):
    if n > 3:
        raise Full
    return n
---
try:
    answer(4)
except OutOfBlocks:
    pass
else:
    raise AssertionError("none")
=== IndexError and TypeError
def answer(x):
    return x[3]
---
for bad, kind in (([1], IndexError), (1, TypeError), ({}, KeyError)):
    try:
        answer(bad)
    except kind:
        continue
    raise AssertionError("none")
=== assert as refusal
def answer(x):
    assert x >= 0, 'negative'
    return x**0.5
---
try:
    answer(-1)
except AssertionError as error:
    assert str(error) == "negative"
else:
    raise ValueError("none")
=== isinstance of an array: TOTAL
def answer(x):
    assert isinstance(x, np.ndarray) and x.ndim == 1 and x.dtype == np.float64
    assert x.flags.writeable and x.flags.c_contiguous
    return x.sum().item()
=== isinstance of numpy scalars
def answer(i, f, b):
    assert isinstance(i, np.integer) and isinstance(f, np.floating) and isinstance(b, np.bool_)
    assert f.dtype == np.float32
    return i.item() + f.item()
---
expect("sum", answer(np.int64(1), np.float32(0.5), np.bool_(True)), 1.5)
=== SamplingParams
def answer(params):
    assert isinstance(params, SamplingParams)
    assert params == SamplingParams(temperature=0.5, seed=1) and hash(params) is not None
    warm = replace(params, temperature=1.0)
    return f'{params.temperature} {warm.temperature} {params.top_k}'
---
expect("text", answer(SamplingParams(temperature=0.5, seed=1)), "0.5 1.0 0")
=== Architecture
def answer(arch):
    assert isinstance(arch, Architecture) and arch == SHAPE
    return {arch: arch.n_layers}[arch] * arch.head_dim
---
expect("product", answer(model.arch), model.arch.n_layers * model.arch.head_dim)
=== softmax of the setup
def answer(x):
    return softmax(x)
---
expect("law", answer(np.array([0.0, 0.0])), [0.5, 0.5])
=== setup data as argument
def answer(table, grid):
    assert isinstance(table, dict)
    return sum(map(sum, table.values())) + grid.mean()
---
expect("table", answer(TABLE, GRID), 11.5)
=== a function of the test
def answer(f, n):
    return [f(k) for k in range(n)] + [f(x=9)]
---
def own(x):
    return x * x
expect("f", answer(own, 3), [0, 1, 4, 81])
expect("g", answer(lambda x: x + 1, 1), [1, 10])
=== callable() of it
def answer(f):
    assert callable(f) and f == f and f is not None and str(f) and repr(f) and bool(f)
    assert hash(f) == hash(f) and {f: 1}[f] == 1
    return f(2) if callable(f) else f
---
expect("f", answer(lambda x: 2 * x), 4)
=== an error of it
def answer(f):
    try:
        return f(0)
    except ZeroDivisionError:
        return -1
---
expect("caught", answer(lambda x: 1 / x), -1)
=== OutOfBlocks of it
def answer(f):
    try:
        f()
    except OutOfBlocks:
        return 'full'
---
def f():
    raise OutOfBlocks("none left")
expect("caught", answer(f), "full")
=== a model of the test
def answer(model, ids):
    logits = model([ids])
    assert isinstance(logits, np.ndarray)
    return np.asarray(model([ids]))[0, -1].argmax()
---
def toy(tokens):
    return np.eye(5)[np.asarray(tokens)]
expect("next", answer(toy, [1, 4]), 4)
=== a wrapped model
def answer(model, ids):
    assert hasattr(model, 'arch') and not hasattr(model, 'nothing')
    assert getattr(model, 'other', None) is None and repr(model) and str(model)
    assert callable(model) and model is model and model == model
    cache = model.new_cache(capacity=64)
    logits = model([ids], cache)
    assert cache.length == len(ids) and model.arch.n_layers == SHAPE.n_layers
    model([[int(logits[0, -1].argmax())]], cache=cache)
    cache.truncate(1)
    return [cache.length, model.arch.head_dim]
--- COUNTED
watched = Counted(model)
expect("seen", answer(watched, [5, 6, 7]), [1, SHAPE.head_dim])
expect("passes", watched.passes, [3, 1])
=== a wrapped model kept (Answer)
class Answer:
    def __init__(self, model):
        self.model, self.arch = model, model.arch
        self.cache = model.new_cache(capacity=100)
    def next(self, ids):
        return int(np.asarray(self.model([ids], self.cache))[0][-1].argmax())
--- COUNTED
watched = Counted(model)
expect("next", Answer(watched).next([5, 6]), int(model([[5, 6]])[0, -1].argmax()))
expect("passes", watched.passes, [2])
=== a wrapped model to the library
def answer(model, ids):
    return generate(model, ids, SamplingParams(temperature=0.0, max_tokens=3), ignore_eos=True).ids
--- COUNTED
watched = Counted(model)
wanted = generate(model, [5, 6], SamplingParams(temperature=0.0, max_tokens=3), ignore_eos=True).ids
expect("ids", answer(watched, [5, 6]), wanted)
expect("passes", watched.passes, [2, 1, 1])
=== the model itself
def answer(m, ids):
    assert m is model
    return generate(m, ids, SamplingParams(temperature=0.0, max_tokens=2), ignore_eos=True).ids
---
wanted = generate(model, [5, 6], SamplingParams(temperature=0.0, max_tokens=2), ignore_eos=True).ids
expect("ids", answer(model, [5, 6]), wanted)
=== setup names in the answer
n_layers = model.arch.n_layers
def answer(text):
    return tok.decode(tok.encode(text)), n_layers
---
expect("text", answer("def f"), ["def f", model.arch.n_layers])
=== the tokenizer
def answer(t, text):
    assert t is tok
    return len(t.encode(text))
---
expect("n", answer(tok, "def f"), len(tok.encode("def f")))
=== a module: SUM
import math as m, numpy.linalg as la
from numpy import *
from math import *
def answer(x):
    return m.fsum(x) + la.norm([0.0])
=== a method handed over
def answer(push):
    push('a')
    push(piece='b')
---
class Box:
    def __init__(self):
        self.got = []
    def push(self, piece):
        self.got.append(piece)
box = Box()
answer(box.push)
expect("got", box.got, ["a", "b"])
=== a list's own method handed over
def answer(push):
    push('a')
    push('b')
---
got = []
answer(got.append)
expect("got", got, ["a", "b"])
=== attributes of the test's object
def answer(request):
    assert isinstance(request.ids, list) and len(request.ids) == 2
    return f'{request.name}: {sum(request.ids)}', request.total
---
class Request:
    def __init__(self):
        self.name, self.ids = "r", [1, 2]
    @property
    def total(self):
        return sum(self.ids)
expect("text", answer(Request()), ["r: 3", 3])
=== the test's objects as dict keys
def answer(requests):
    found = {}
    for r in requests:
        found[r] = found.get(r, 0) + 1
    return len(found), max(found.values())
---
class Request:
    name = "r"
a, b = Request(), Request()
expect("counts", answer([a, b, a]), [2, 2])
=== gives back the test's object
def answer(requests):
    return sorted(requests, key=lambda r: r.n)[0]
---
class Request:
    def __init__(self, n):
        self.n = n
a, b = Request(2), Request(1)
assert answer([a, b]) is b
=== a dataclass of the test
def answer(r):
    return r.n * 2
---
from dataclasses import dataclass
@dataclass
class Request:
    n: int
expect("n", answer(Request(3)), 6)
"""


def idioms(written: str) -> dict[str, Idiom]:
    """Return {what it is: the idiom}."""
    found = {}
    for text in written.split("\n=== ")[1:]:
        head, _, body = text.partition("\n")
        name, asked, test = re.fullmatch(r"(.+?)(?: \((.+)\))?(?:: ([A-Z]+))?", head).groups()
        answer, _, own = body.partition("\n---")
        before, _, own = own.partition("\n")
        own = TESTS.get(before.strip(), "") + own
        found[name] = Idiom(answer, TESTS[test] if test else own, asked or "answer")
    return found


ANSWERS = idioms(WRITTEN)
