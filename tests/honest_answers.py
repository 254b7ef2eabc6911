"""Answers in the style of many students, and what judges them, for test_honest.py."""

from typing import NamedTuple


class Idiom(NamedTuple):
    """An answer, its test, and the names that the task asks for."""

    answer: str
    test: str
    asked: str = "answer"


SUM = """\
expect("sum", answer([1, 2, 3]), 6)
"""
TOTAL = """\
expect("sum", answer(np.array([1.0, 2.0, 3.0])), 6.0)
"""
PAIRS = """\
expect("pairs", answer(3), [[0, 0], [1, 1], [2, 4]])
"""
COUNTER = """\
counter = Answer(3)
expect("first", counter.step(), 4)
expect("second", counter.step(2), 6)
expect("value", counter.value, 6)
"""
REFUSES = """\
try:
    answer(-1)
except ValueError as error:
    assert "negative" in str(error), f"the message says {error}"
else:
    raise AssertionError("nothing was raised")
expect("root", answer(9), 3.0)
"""
COUNTED = """\
class Counted:
    def __init__(self, model):
        self.model, self.arch, self.passes = model, model.arch, []

    def new_cache(self, *args, **kwargs):
        return self.model.new_cache(*args, **kwargs)

    def __call__(self, tokens, cache=None):
        self.passes.append(len(tokens[0]))
        return self.model(tokens, cache)
"""

ANSWERS = {
    "generator expression": Idiom(
        """\
def answer(x):
    return sum(v for v in x)
""",
        SUM,
    ),
    "lambda": Idiom(
        """\
answer = lambda x: sum(x)
""",
        SUM,
    ),
    "partial": Idiom(
        """\
import functools, operator
answer = functools.partial(functools.reduce, operator.add)
""",
        SUM,
    ),
    "a builtin": Idiom(
        """\
answer = sum
""",
        SUM,
    ),
    "a ufunc": Idiom(
        """\
answer = np.sum
""",
        TOTAL,
    ),
    "a library function": Idiom(
        """\
answer = math.fsum
""",
        SUM,
    ),
    "vectorize": Idiom(
        """\
square = np.vectorize(lambda x: x * x)
def answer(x):
    return square(x)
""",
        """\
expect("squares", answer([1.0, 2.0]), [1.0, 4.0])
""",
    ),
    "vectorized itself": Idiom(
        """\
@np.vectorize
def answer(x):
    return 2 * x
""",
        """\
expect("x", answer([1.0, 2.0]), [2.0, 4.0])
""",
    ),
    "own callable object": Idiom(
        """\
class Adder:
    def __call__(self, x):
        return sum(x)
answer = Adder()
""",
        SUM,
    ),
    "method as answer": Idiom(
        """\
class Adder:
    def add(self, x):
        return sum(x)
answer = Adder().add
""",
        SUM,
    ),
    "closure": Idiom(
        """\
def make(start):
    def add(x):
        return start + sum(x)
    return add
answer = make(0)
""",
        SUM,
    ),
    "nonlocal": Idiom(
        """\
def answer(x):
    total = 0
    def add(v):
        nonlocal total
        total += v
    for v in x:
        add(v)
    return total
""",
        SUM,
    ),
    "global": Idiom(
        """\
n_calls = 0
def answer(x):
    global n_calls
    n_calls += 1
    return sum(x)
""",
        SUM,
    ),
    "globals()": Idiom(
        """\
def answer(x):
    globals()['seen'] = x
    return sum(globals()['seen'])
""",
        SUM,
    ),
    "decorator": Idiom(
        """\
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
""",
        SUM,
    ),
    "lru_cache": Idiom(
        """\
from functools import lru_cache
@lru_cache(maxsize=None)
def answer(n):
    return n if n < 2 else answer(n - 1) + answer(n - 2)
""",
        """\
expect("fib", answer(80), 23416728348467685)
""",
    ),
    "lru_cache of a tuple": Idiom(
        """\
from functools import cache
@cache
def total(x):
    return sum(x)
def answer(x):
    return total(tuple(x))
""",
        SUM,
    ),
    "cached_property": Idiom(
        """\
from functools import cached_property
class Answer:
    def __init__(self, x):
        self.x = x
    @cached_property
    def total(self):
        return sum(self.x)
""",
        """\
expect("total", Answer([1, 2]).total, 3)
""",
        "Answer",
    ),
    "recursion": Idiom(
        """\
def answer(x):
    return x[0] + answer(x[1:]) if x else 0
""",
        SUM,
    ),
    "deep recursion": Idiom(
        """\
def answer(n):
    return 0 if n == 0 else 1 + answer(n - 1)
""",
        """\
expect("depth", answer(800), 800)
""",
    ),
    "match": Idiom(
        """\
def answer(x):
    match x:
        case []:
            return 0
        case [first, *rest]:
            return first + answer(rest)
""",
        SUM,
    ),
    "walrus": Idiom(
        """\
def answer(x):
    if (n := len(x)) == 3:
        return (t := sum(x)) * n // n
    return 0
""",
        SUM,
    ),
    "star arguments": Idiom(
        """\
def answer(*args, **kwargs):
    return sum(args[0], **kwargs)
""",
        SUM,
    ),
    "keyword only": Idiom(
        """\
def answer(x, *, scale=1):
    return scale * sum(x)
""",
        """\
expect("sum", answer([1, 2], scale=2), 6)
""",
    ),
    "positional only": Idiom(
        """\
def answer(x, /, scale):
    return scale * sum(x)
""",
        """\
expect("sum", answer([1, 2], scale=2), 6)
""",
    ),
    "type hints": Idiom(
        """\
from __future__ import annotations
from collections.abc import Sequence
def answer(x: Sequence[float]) -> float | None:
    return sum(x)
""",
        SUM,
    ),
    "typing": Idiom(
        """\
from typing import Any, List, Optional, Protocol, TypeVar
T = TypeVar('T')
class Adds(Protocol):
    def __add__(self, other: Any) -> Any: ...
def answer(x: List[Optional[int]]) -> Any:
    return sum(x)
""",
        SUM,
    ),
    "docstring and doctest": Idiom(
        '''\
def answer(x):
    """Add up.

    >>> answer([1])
    1
    """
    return sum(x)
''',
        SUM,
    ),
    "isinstance list": Idiom(
        """\
def answer(x):
    assert isinstance(x, list) and all(isinstance(v, int) for v in x)
    return sum(x)
""",
        SUM,
    ),
    "type is": Idiom(
        """\
def answer(x):
    if type(x) is not list:
        raise TypeError(type(x))
    return sum(x)
""",
        SUM,
    ),
    "mutable default": Idiom(
        """\
def answer(x, seen=[]):
    seen.append(len(x))
    return sum(x)
""",
        SUM,
    ),
    "changes its argument": Idiom(
        """\
def answer(x):
    total = 0
    while x:
        total += x.pop()
    return total
""",
        SUM,
    ),
    "sorts its argument": Idiom(
        """\
def answer(x):
    x.sort()
    return x
""",
        """\
expect("sorted", answer([3, 1, 2]), [1, 2, 3])
""",
    ),
    "writes into its array": Idiom(
        """\
def answer(x):
    x -= x.mean()
    x[0] = 0
    return x
""",
        """\
expect("x", answer(np.array([1.0, 2.0, 3.0])), [0, 0, 1])
""",
    ),
    "helper in the answer's cell": Idiom(
        """\
def helper(x):
    return x
def answer(x):
    return sum(map(helper, x))
""",
        SUM,
    ),
    "helper of the same name": Idiom(
        """\
def helper(x):
    return 2 * x
def answer(x):
    return sum(map(helper, x)) // 2
""",
        SUM,
    ),
    "constant of the same name": Idiom(
        """\
total, n, x, expected, got = 0, 1, 2, 3, 4
def answer(x):
    return total + sum(x)
""",
        """\
expected = 6
expect("sum", answer([1, 2, 3]), 6)
""",
    ),
    "unicode names": Idiom(
        """\
def Σ(α):
    return sum(α)
answer = Σ
""",
        SUM,
    ),
    "a call at the end": Idiom(
        """\
def answer(x):
    return sum(x)
answer([1])
""",
        SUM,
    ),
    "magic in the answer": Idiom(
        """\
%matplotlib inline
def answer(x):
    return sum(x)
%timeit -n 1 -r 1 answer([1])
""",
        SUM,
    ),
    "%%time answer": Idiom(
        """\
%%time
def answer(x):
    return sum(x)
""",
        SUM,
    ),
    "shell in the answer": Idiom(
        """\
!echo working
def answer(x):
    return sum(x)
""",
        SUM,
    ),
    "redefined twice": Idiom(
        """\
def answer(x):
    return 0
def answer(x):
    return sum(x)
""",
        SUM,
    ),
    "deleted helper": Idiom(
        """\
def make():
    return sum
answer = make()
del make
""",
        SUM,
    ),
    "await in the cell": Idiom(
        """\
import asyncio
await asyncio.sleep(0)
def answer(x):
    return sum(x)
""",
        SUM,
    ),
    "asyncio.run inside": Idiom(
        """\
import asyncio
async def add(x):
    await asyncio.sleep(0)
    return sum(x)
def answer(x):
    return asyncio.run(add(x))
""",
        SUM,
    ),
    "event loop inside": Idiom(
        """\
import asyncio
async def add(x):
    return sum(x)
def answer(x):
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(add(x))
    finally:
        loop.close()
""",
        SUM,
    ),
    "exec": Idiom(
        """\
exec('def answer(x): return sum(x)')
""",
        SUM,
    ),
    "eval": Idiom(
        """\
def answer(x):
    return eval('+'.join(map(str, x)))
""",
        SUM,
    ),
    "getattr and setattr": Idiom(
        """\
class Box: pass
def answer(x):
    box = Box()
    for i, v in enumerate(x):
        setattr(box, f'v{i}', v)
    return sum(getattr(box, f'v{i}') for i in range(len(x)))
""",
        SUM,
    ),
    "vars": Idiom(
        """\
class Box: pass
def answer(x):
    box = Box()
    vars(box).update(enumerate_=x)
    return sum(vars(box)['enumerate_'])
""",
        SUM,
    ),
    "inspect": Idiom(
        """\
import inspect
def answer(x):
    assert 'def answer' in inspect.getsource(answer)
    return sum(x)
""",
        SUM,
    ),
    "traceback and sys": Idiom(
        """\
import sys, traceback
def answer(x):
    try:
        raise KeyError
    except KeyError:
        text = traceback.format_exc()
    return sum(x) if 'KeyError' in text and sys.version else 0
""",
        SUM,
    ),
    "prints in a function": Idiom(
        """\
def answer(x):
    for v in x:
        print('adding', v, flush=True)
    return sum(x)
""",
        SUM,
    ),
    "prints much in a function": Idiom(
        """\
def answer(x):
    for v in range(20000):
        print('x' * 80)
    return sum(x)
""",
        SUM,
    ),
    "stderr in a function": Idiom(
        """\
import sys
def answer(x):
    print(x, file=sys.stderr)
    sys.stdout.write('.')
    return sum(x)
""",
        SUM,
    ),
    "display in a function": Idiom(
        """\
from IPython.display import display
def answer(x):
    display(x)
    return sum(x)
""",
        SUM,
    ),
    "progress bar": Idiom(
        """\
from tqdm.auto import tqdm
def answer(x):
    return sum(v for v in tqdm(x))
""",
        SUM,
    ),
    "logging": Idiom(
        """\
import logging
log = logging.getLogger(__name__)
logging.basicConfig(level='DEBUG', force=True)
def answer(x):
    log.info('adding %s', x)
    return sum(x)
""",
        SUM,
    ),
    "warnings": Idiom(
        """\
import warnings
def answer(x):
    warnings.warn('slow')
    return sum(x)
""",
        SUM,
    ),
    "threads that print": Idiom(
        """\
from concurrent.futures import ThreadPoolExecutor
def work(k):
    for _ in range(30):
        print(str(k) * 9000, flush=True)
    return k
with ThreadPoolExecutor(4) as pool:
    print(sum(pool.map(work, range(3))))
answer = sum
""",
        SUM,
    ),
    "processes that print and draw": Idiom(
        """\
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
""",
        SUM,
    ),
    "plots in a function": Idiom(
        """\
import matplotlib.pyplot as plt
def answer(x):
    plt.plot(x)
    plt.show()
    return sum(x)
""",
        SUM,
    ),
    "get_ipython in a function": Idiom(
        """\
def answer(x):
    get_ipython().run_line_magic('matplotlib', 'inline')
    return sum(x)
""",
        SUM,
    ),
    "clear_output in a function": Idiom(
        """\
from IPython.display import clear_output
def answer(x):
    clear_output(wait=True)
    return sum(x)
""",
        SUM,
    ),
    "sleep": Idiom(
        """\
import time
def answer(x):
    time.sleep(0.2)
    return sum(x)
""",
        SUM,
    ),
    "threads": Idiom(
        """\
from concurrent.futures import ThreadPoolExecutor
def answer(x):
    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(int, x))
""",
        SUM,
    ),
    "thread with a queue": Idiom(
        """\
import queue, threading
def answer(x):
    found = queue.Queue()
    t = threading.Thread(target=lambda: found.put(sum(x)), daemon=True)
    t.start()
    return found.get()
""",
        SUM,
    ),
    "pool made in the cell": Idiom(
        """\
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(2)
list(pool.map(int, [1]))
def answer(x):
    return sum(x)
""",
        SUM,
    ),
    "processes": Idiom(
        """\
from multiprocessing import Pool
def own(v):
    return v
def answer(x):
    with Pool(2) as pool:
        return sum(pool.map(own, x))
""",
        SUM,
    ),
    "subprocess": Idiom(
        """\
import subprocess, sys
def answer(x):
    program = f'print(sum({x}))'
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True)
    return int(done.stdout)
""",
        SUM,
    ),
    "files": Idiom(
        """\
from pathlib import Path
def answer(x):
    Path('sum.txt').write_text(' '.join(map(str, x)), encoding='utf-8')
    with open('sum.txt', encoding='utf-8') as file:
        return sum(map(int, file.read().split()))
""",
        SUM,
    ),
    "a file of the cell": Idiom(
        """\
with open('table.txt', 'w') as file:
    file.write('1 2 3')
def answer(x):
    return sum(map(int, open('table.txt').read().split()))
""",
        SUM,
    ),
    "temporary folder": Idiom(
        """\
import json, tempfile
def answer(x):
    with tempfile.TemporaryFile('w+') as file:
        json.dump(x, file)
        file.seek(0)
        return sum(json.load(file))
""",
        SUM,
    ),
    "contextlib": Idiom(
        """\
import contextlib
@contextlib.contextmanager
def quiet():
    yield 0
def answer(x):
    with quiet() as start, contextlib.suppress(KeyError):
        return sum(x, start)
""",
        SUM,
    ),
    "itertools": Idiom(
        """\
import itertools
def answer(x):
    return list(itertools.accumulate(x))[-1]
""",
        SUM,
    ),
    "random of its own": Idiom(
        """\
import random
random.seed(1)
np.random.seed(1)
def answer(x):
    x = list(x)
    random.shuffle(x)
    return sum(x)
""",
        SUM,
    ),
    "np.errstate": Idiom(
        """\
def answer(x):
    with np.errstate(divide='ignore', invalid='raise'):
        np.array([1.0]) / 0
    return sum(x)
""",
        SUM,
    ),
    "__main__": Idiom(
        """\
def answer(x):
    return sum(x)
if __name__ == '__main__':
    print(answer([1, 2]))
""",
        SUM,
    ),
    "gc": Idiom(
        """\
import gc
def answer(x):
    gc.collect()
    return sum(x)
""",
        SUM,
    ),
    "own test in the cell": Idiom(
        """\
def answer(x):
    return sum(x)
assert answer([2]) == 2
expect('mine', answer([3]), 3)
""",
        SUM,
    ),
    "f-strings and sorting": Idiom(
        """\
def answer(x):
    text = f'{x!r:>20} {x[0]:03d}'
    return sum(sorted(x, key=lambda v: -v)) if text else 0
""",
        SUM,
    ),
    "hashes and dict keys": Idiom(
        """\
def answer(x):
    seen = {v: i for i, v in enumerate(x)}
    return sum(seen) if hash(tuple(x)) is not None else 0
""",
        SUM,
    ),
    "deepcopy": Idiom(
        """\
import copy
def answer(x):
    mine = copy.deepcopy(x)
    mine.append(0)
    return sum(mine) if mine != x else -1
""",
        SUM,
    ),
    "slices": Idiom(
        """\
def answer(x):
    return sum(x[::-1][:2]) + sum(x[:1])
""",
        SUM,
    ),
    "iterator": Idiom(
        """\
def answer(x):
    it, total = iter(x), 0
    while (v := next(it, None)) is not None:
        total += v
    return total
""",
        SUM,
    ),
    "a tuple for a list": Idiom(
        """\
def answer(n):
    return tuple((i, i * i) for i in range(n))
""",
        PAIRS,
    ),
    "lists for tuples": Idiom(
        """\
def answer(n):
    return [[i, i * i] for i in range(n)]
""",
        PAIRS,
    ),
    "an array for a list": Idiom(
        """\
def answer(n):
    return np.stack([np.arange(n), np.arange(n) ** 2], axis=1)
""",
        PAIRS,
    ),
    "a list of arrays": Idiom(
        """\
def answer(n):
    return [np.array([i, i * i]) for i in range(n)]
""",
        PAIRS,
    ),
    "numpy scalars in tuples": Idiom(
        """\
def answer(n):
    return [(np.int64(i), np.float32(i * i)) for i in range(n)]
""",
        PAIRS,
    ),
    "a view": Idiom(
        """\
def answer(n):
    return np.array([np.arange(n), np.arange(n) ** 2]).T
""",
        PAIRS,
    ),
    "fortran order": Idiom(
        """\
def answer(n):
    return np.asfortranarray(np.stack([np.arange(n), np.arange(n) ** 2], axis=1))
""",
        PAIRS,
    ),
    "named tuples": Idiom(
        """\
from typing import NamedTuple
class Pair(NamedTuple):
    i: int
    square: int
def answer(n):
    return [Pair(i, i * i) for i in range(n)]
""",
        PAIRS,
    ),
    "collections.namedtuple": Idiom(
        """\
from collections import namedtuple
Pair = namedtuple('Pair', 'i square')
def answer(n):
    return [Pair(i, i * i) for i in range(n)]
""",
        PAIRS,
    ),
    "zip into a list": Idiom(
        """\
def answer(n):
    return list(zip(range(n), (i * i for i in range(n))))
""",
        PAIRS,
    ),
    "deque and queue": Idiom(
        """\
from collections import deque
def answer(n):
    found = deque()
    for i in range(n):
        found.append((i, i * i))
    return list(found)
""",
        PAIRS,
    ),
    "0-d array": Idiom(
        """\
def answer(x):
    return np.asarray(np.sum(x))
""",
        TOTAL,
    ),
    "float32": Idiom(
        """\
def answer(x):
    return np.float32(np.sum(x))
""",
        TOTAL,
    ),
    "float16 and int8": Idiom(
        """\
def answer(x):
    return np.int8(x.sum())
""",
        TOTAL,
    ),
    "masked or keepdims": Idiom(
        """\
def answer(x):
    return np.sum(x, keepdims=True)[0]
""",
        TOTAL,
    ),
    "Fraction made a float": Idiom(
        """\
from fractions import Fraction
def answer(x):
    return float(sum(Fraction(v) for v in x))
""",
        TOTAL,
    ),
    "Decimal made a float": Idiom(
        """\
from decimal import Decimal
def answer(x):
    return float(sum(Decimal(v) for v in x))
""",
        TOTAL,
    ),
    "bool_": Idiom(
        """\
def answer(x):
    return np.all(np.asarray(x) > 0)
""",
        """\
expect("all", answer([1, 2]), True)
assert answer([1])
assert not answer([0])
""",
    ),
    "big integer": Idiom(
        """\
def answer():
    return 3**500
""",
        """\
expect("power", answer(), 3**500)
""",
    ),
    "nan, inf and -0.0": Idiom(
        """\
def answer():
    return [float('nan'), float('inf'), -np.inf, -0.0]
""",
        """\
expect("odd", answer(), [math.nan, math.inf, -math.inf, 0.0])
""",
    ),
    "None": Idiom(
        """\
def answer():
    pass
""",
        """\
assert answer() is None
expect("nothing", answer(), None)
""",
    ),
    "texts": Idiom(
        """\
def answer(text):
    return text[::-1]
""",
        """\
expect("text", answer("añ✓🎉"), "🎉✓ña")
expect("lone", answer("\\ud800a"), "a\\ud800")
""",
    ),
    "np.str_": Idiom(
        """\
def answer(text):
    return np.array([text, 'b'])[0]
""",
        """\
expect("text", answer("a"), "a")
""",
    ),
    "bytes": Idiom(
        """\
def answer(text):
    return text.encode()
""",
        """\
assert answer("é") == b"\\xc3\\xa9"
""",
    ),
    "bytearray": Idiom(
        """\
def answer(text):
    return bytearray(text.encode())
""",
        """\
assert bytes(answer("é")) == b"\\xc3\\xa9"
""",
    ),
    "set": Idiom(
        """\
def answer(x):
    return {v for v in x}
""",
        """\
assert answer([1, 1, 2]) == {1, 2}
expect("set", sorted(answer([2, 1])), [1, 2])
""",
    ),
    "frozenset": Idiom(
        """\
def answer(x):
    return frozenset(x)
""",
        """\
assert answer([1, 1, 2]) == {1, 2}
""",
    ),
    "dict with int keys": Idiom(
        """\
def answer(x):
    return {i: v for i, v in enumerate(x)}
""",
        """\
got = answer([5, 6])
assert got == {0: 5, 1: 6}
expect("values", list(got.values()), [5, 6])
for k, v in got.items():
    expect("item", v, k + 5)
""",
    ),
    "dict with tuple keys": Idiom(
        """\
def answer(x):
    return {(i, v): v for i, v in enumerate(x)}
""",
        """\
assert answer([5]) == {(0, 5): 5}
""",
    ),
    "dict with numpy keys": Idiom(
        """\
def answer(x):
    return {k: int(n) for k, n in zip(*np.unique(x, return_counts=True))}
""",
        """\
assert answer([5, 5, 6]) == {5: 2, 6: 1}
""",
    ),
    "Counter": Idiom(
        """\
from collections import Counter
def answer(x):
    return Counter(x)
""",
        """\
assert answer("aab") == {"a": 2, "b": 1}
""",
    ),
    "defaultdict": Idiom(
        """\
from collections import defaultdict
def answer(x):
    found = defaultdict(list)
    for i, v in enumerate(x):
        found[v].append(i)
    return found
""",
        """\
assert answer("aab") == {"a": [0, 1], "b": [2]}
""",
    ),
    "OrderedDict": Idiom(
        """\
from collections import OrderedDict
def answer(x):
    return OrderedDict.fromkeys(x)
""",
        """\
assert list(answer("aab")) == ["a", "b"]
""",
    ),
    "dict views": Idiom(
        """\
def answer(x):
    return dict.fromkeys(x).keys()
""",
        """\
expect("keys", list(answer("aab")), ["a", "b"])
""",
    ),
    "range as result": Idiom(
        """\
def answer(n):
    return range(n)
""",
        """\
expect("range", list(answer(3)), [0, 1, 2])
""",
    ),
    "deque as result": Idiom(
        """\
from collections import deque
def answer(n):
    return deque(range(n), maxlen=2)
""",
        """\
expect("deque", list(answer(3)), [1, 2])
""",
    ),
    "generator as result": Idiom(
        """\
def answer(n):
    for i in range(n):
        yield i
""",
        """\
expect("values", list(answer(3)), [0, 1, 2])
""",
    ),
    "map as result": Idiom(
        """\
def answer(n):
    return map(str, range(n))
""",
        """\
expect("values", list(answer(3)), ["0", "1", "2"])
""",
    ),
    "zip as result": Idiom(
        """\
def answer(n):
    return zip(range(n), range(n))
""",
        """\
expect("values", [list(p) for p in answer(2)], [[0, 0], [1, 1]])
""",
    ),
    "iterator of a class": Idiom(
        """\
class Up:
    def __init__(self, n):
        self.n = n
    def __iter__(self):
        yield from range(self.n)
def answer(n):
    return Up(n)
""",
        """\
expect("values", list(answer(3)), [0, 1, 2])
""",
    ),
    "nested structures": Idiom(
        """\
def answer():
    return {'a': [(1, {2: {3}})], 'b': (np.arange(2), None)}
""",
        """\
got = answer()
assert got["a"] == [(1, {2: {3}})]
expect("array", got["b"][0], [0, 1])
assert type(got["b"]) is tuple
""",
    ),
    "empty arrays": Idiom(
        """\
def answer():
    return np.zeros((0, 3)), [], np.array([], dtype=int)
""",
        """\
got = answer()
assert got[0].shape == (0, 3)
assert got[2].dtype == int
expect("empty", got[1], [])
""",
    ),
    "array of texts": Idiom(
        """\
def answer():
    return np.array(['a', 'bc'])
""",
        """\
expect("texts", answer(), ["a", "bc"])
""",
    ),
    "array of objects": Idiom(
        """\
def answer():
    return np.array([[1, 2], [3]], dtype=object)
""",
        """\
expect("ragged", [list(row) for row in answer()], [[1, 2], [3]])
""",
    ),
    "float16 array": Idiom(
        """\
def answer():
    return np.ones((2, 2), np.float16)
""",
        """\
got = answer()
assert got.dtype == np.float16 and got.shape == (2, 2)
assert got.nbytes == 8
expect("ones", got, [[1, 1], [1, 1]])
""",
    ),
    "np.matrix": Idiom(
        """\
def answer():
    return np.matrix([[1, 2]])
""",
        """\
expect("matrix", np.asarray(answer()), [[1, 2]])
""",
    ),
    "memmap": Idiom(
        """\
def answer():
    return np.memmap('m.bin', dtype=np.float32, mode='w+', shape=(2,))
""",
        """\
expect("zeros", np.asarray(answer()), [0, 0])
""",
    ),
    "str subclass": Idiom(
        """\
import enum
class Kind(str, enum.Enum):
    A = 'a'
def answer():
    return Kind.A.value
""",
        """\
expect("kind", answer(), "a")
""",
    ),
    "IntEnum made an int": Idiom(
        """\
from enum import IntEnum, auto
class Kind(IntEnum):
    A = auto()
    B = auto()
def answer():
    return int(Kind.B)
""",
        """\
expect("kind", answer(), 2)
""",
    ),
    "library record": Idiom(
        """\
def answer(params):
    return replace(params, temperature=0.0, stop=())
""",
        """\
got = answer(SamplingParams(seed=3))
assert got.temperature == 0 and got.seed == 3
assert isinstance(got, SamplingParams)
""",
    ),
    "data in a name": Idiom(
        """\
answer = {'a': 1, 'b': [2.0, 3.0]}
""",
        """\
expect("a", answer["a"], 1)
expect("b", answer["b"], [2, 3])
""",
    ),
    "a number in a name": Idiom(
        """\
answer = 2**10 * 3
""",
        """\
expect("number", answer, 3072)
""",
    ),
    "a numpy scalar in a name": Idiom(
        """\
answer = np.float64(3) / 2
""",
        """\
expect("number", answer, 1.5)
""",
    ),
    "two names": Idiom(
        """\
answer, other = 1, lambda x: x
""",
        """\
expect("one", answer, 1)
expect("two", other(2), 2)
""",
        "answer, other",
    ),
    "returns a function": Idiom(
        """\
def answer(a):
    return lambda x: a * x
""",
        """\
expect("six", answer(2)(3), 6)
""",
    ),
    "returns an object": Idiom(
        """\
class Box:
    def __init__(self, v):
        self.v = v
def answer(v):
    return Box(v)
""",
        """\
expect("v", answer(3).v, 3)
""",
    ),
    "returns its argument": Idiom(
        """\
def answer(x):
    return x
""",
        """\
expect("same", answer([1, 2]), [1, 2])
def own(x):
    return x + 1
assert answer(own) is own
""",
    ),
    "class": Idiom(
        """\
class Answer:
    def __init__(self, start):
        self.value = start
    def step(self, by=1):
        self.value += by
        return self.value
""",
        COUNTER,
        "Answer",
    ),
    "class with inheritance": Idiom(
        """\
from abc import ABC, abstractmethod
class Base(ABC):
    def __init__(self, start):
        self.value = start
    @abstractmethod
    def step(self, by=1): ...
class Answer(Base):
    def step(self, by=1):
        self.value += by
        return self.value
""",
        COUNTER,
        "Answer",
    ),
    "mixin": Idiom(
        """\
class Steps:
    def step(self, by=1):
        self.value += by
        return self.value
class Start:
    def __init__(self, start, **kwargs):
        super().__init__(**kwargs)
        self.value = start
class Answer(Steps, Start):
    pass
""",
        COUNTER,
        "Answer",
    ),
    "property": Idiom(
        """\
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
""",
        COUNTER,
        "Answer",
    ),
    "dataclass": Idiom(
        """\
from dataclasses import dataclass, field
@dataclass
class Answer:
    value: int
    log: list = field(default_factory=list)
    def step(self, by=1):
        self.log.append(by)
        self.value += by
        return self.value
""",
        COUNTER,
        "Answer",
    ),
    "__slots__": Idiom(
        """\
class Answer:
    __slots__ = ('value',)
    def __init__(self, start):
        self.value = start
    def step(self, by=1):
        self.value += by
        return self.value
""",
        COUNTER,
        "Answer",
    ),
    "metaclass": Idiom(
        """\
class Meta(type):
    def __call__(cls, *args):
        return super().__call__(*args)
class Answer(metaclass=Meta):
    def __init__(self, start):
        self.value = start
    def step(self, by=1):
        self.value += by
        return self.value
""",
        COUNTER,
        "Answer",
    ),
    "__getattr__": Idiom(
        """\
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
""",
        COUNTER,
        "Answer",
    ),
    "factory function": Idiom(
        """\
def Answer(start):
    class Inner:
        value = start
        def step(self, by=1):
            self.value += by
            return self.value
    return Inner()
""",
        COUNTER,
        "Answer",
    ),
    "method made in __init__": Idiom(
        """\
class Answer:
    def __init__(self, start):
        self.value = start
        self.step = lambda by=1: self.add(by)
    def add(self, by):
        self.value += by
        return self.value
""",
        COUNTER,
        "Answer",
    ),
    "decorated method": Idiom(
        """\
import functools
def logged(f):
    @functools.wraps(f)
    def inner(self, *args):
        return f(self, *args)
    return inner
class Answer:
    def __init__(self, start):
        self.value = start
    @logged
    def step(self, by=1):
        self.value += by
        return self.value
""",
        COUNTER,
        "Answer",
    ),
    "lock": Idiom(
        """\
import threading
class Answer:
    def __init__(self, start):
        self.value, self.lock = start, threading.Lock()
    def step(self, by=1):
        with self.lock:
            self.value += by
            return self.value
""",
        COUNTER,
        "Answer",
    ),
    "classmethod and staticmethod": Idiom(
        """\
class Answer:
    def __init__(self, v):
        self.v = v
    @classmethod
    def make(cls, v):
        return cls(v)
    @staticmethod
    def twice(v):
        return 2 * v
""",
        """\
expect("made", Answer.make(3).v, 3)
expect("twice", Answer.twice(2), 4)
expect("by object", Answer(1).twice(3), 6)
""",
        "Answer",
    ),
    "len and items": Idiom(
        """\
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
""",
        """\
box = Answer([4, 5, 6])
expect("len", len(box), 3)
expect("last", box[-1], 6)
expect("all", list(box), [4, 5, 6])
assert 5 in box and 7 not in box
""",
        "Answer",
    ),
    "two objects": Idiom(
        """\
class Answer:
    n = 0
    def __init__(self, start):
        self.value = start
    def step(self):
        Answer.n += 1
        self.value += 1
        return self.value
""",
        """\
a, b = Answer(0), Answer(10)
a.step()
expect("b", b.step(), 11)
expect("a", a.step(), 2)
""",
        "Answer",
    ),
    "an object handed back": Idiom(
        """\
class Answer:
    def __init__(self, v):
        self.v = v
    def plus(self, other):
        return Answer(self.v + other.v)
""",
        """\
expect("sum", Answer(1).plus(Answer(2)).v, 3)
""",
        "Answer",
    ),
    "ValueError": Idiom(
        """\
def answer(x):
    if x < 0:
        raise ValueError(f'{x} is negative')
    return x**0.5
""",
        REFUSES,
    ),
    "own exception": Idiom(
        """\
class Negative(ValueError):
    '''No root.'''
    def __init__(self, x):
        super().__init__(f'{x} is negative')
        self.x = x
def answer(x):
    if x < 0:
        raise Negative(x)
    return x**0.5
""",
        REFUSES,
    ),
    "raise from": Idiom(
        """\
def answer(x):
    try:
        return math.sqrt(x)
    except ValueError as error:
        raise ValueError(f'negative: {x}') from error
""",
        REFUSES,
    ),
    "exception with two arguments": Idiom(
        """\
def answer(x):
    if x < 0:
        raise ValueError('negative', x)
    return x**0.5
""",
        REFUSES,
    ),
    "exception with a note": Idiom(
        """\
def answer(x):
    if x < 0:
        error = ValueError('negative')
        error.add_note('think again')
        raise error
    return x**0.5
""",
        REFUSES,
    ),
    "OutOfBlocks": Idiom(
        """\
def answer(n):
    if n > 3:
        raise OutOfBlocks(f'{n} blocks')
    return n
""",
        """\
try:
    answer(4)
except OutOfBlocks:
    pass
else:
    raise AssertionError("none")
expect("three", answer(3), 3)
""",
    ),
    "own OutOfBlocks": Idiom(
        """\
class Full(OutOfBlocks):
    pass
def answer(n):
    if n > 3:
        raise Full
    return n
""",
        """\
try:
    answer(4)
except OutOfBlocks:
    pass
else:
    raise AssertionError("none")
""",
    ),
    "KeyError of a dict": Idiom(
        """\
def answer(key):
    return {'a': 1}[key]
""",
        """\
try:
    answer("b")
except KeyError as error:
    assert error.args == ("b",)
else:
    raise AssertionError("none")
""",
    ),
    "KeyError of an int": Idiom(
        """\
def answer(key):
    return {}[key]
""",
        """\
try:
    answer(7)
except KeyError as error:
    assert "7" in str(error)
else:
    raise AssertionError("none")
""",
    ),
    "IndexError and TypeError": Idiom(
        """\
def answer(x):
    return x[3]
""",
        """\
for bad, kind in (([1], IndexError), (1, TypeError), ({}, KeyError)):
    try:
        answer(bad)
    except kind:
        continue
    raise AssertionError("none")
""",
    ),
    "assert as refusal": Idiom(
        """\
def answer(x):
    assert x >= 0, 'negative'
    return x**0.5
""",
        """\
try:
    answer(-1)
except AssertionError as error:
    assert str(error) == "negative"
else:
    raise ValueError("none")
""",
    ),
    "isinstance of an array": Idiom(
        """\
def answer(x):
    assert isinstance(x, np.ndarray) and x.ndim == 1 and x.dtype == np.float64
    assert x.flags.writeable and x.flags.c_contiguous
    return x.sum().item()
""",
        TOTAL,
    ),
    "isinstance of numbers": Idiom(
        """\
import numbers
def answer(i, f, b, s, n):
    assert isinstance(i, int) and not isinstance(i, bool) and isinstance(f, float)
    assert isinstance(i, numbers.Integral) and b is True and isinstance(s, str) and n is None
    return i + f
""",
        """\
expect("sum", answer(1, 0.5, True, "s", None), 1.5)
""",
    ),
    "isinstance of numpy scalars": Idiom(
        """\
def answer(i, f, b):
    assert isinstance(i, np.integer) and isinstance(f, np.floating) and isinstance(b, np.bool_)
    assert f.dtype == np.float32
    return i.item() + f.item()
""",
        """\
expect("sum", answer(np.int64(1), np.float32(0.5), np.bool_(True)), 1.5)
""",
    ),
    "tuples and sets stay": Idiom(
        """\
def answer(t, s, d, r):
    assert type(t) is tuple and type(s) is set and type(d) is dict and hash(t)
    assert {t: 1}[t] == 1 and list(d) == [2, 1]
    return list(r)
""",
        """\
expect("r", answer((1, (2,)), {3}, {2: "b", 1: "a"}, [0]), [0])
""",
    ),
    "SamplingParams": Idiom(
        """\
def answer(params):
    assert isinstance(params, SamplingParams)
    assert params == SamplingParams(temperature=0.5, seed=1) and hash(params) is not None
    warm = replace(params, temperature=1.0)
    return f'{params.temperature} {warm.temperature} {params.top_k}'
""",
        """\
expect("text", answer(SamplingParams(temperature=0.5, seed=1)), "0.5 1.0 0")
""",
    ),
    "Architecture": Idiom(
        """\
def answer(arch):
    assert isinstance(arch, Architecture) and arch == SHAPE
    return {arch: arch.n_layers}[arch] * arch.head_dim
""",
        """\
expect("product", answer(model.arch), model.arch.n_layers * model.arch.head_dim)
""",
    ),
    "another architecture": Idiom(
        """\
def answer(arch):
    return arch.n_layers, arch.n_kv_heads
""",
        """\
expect("shape", answer(replace(model.arch, n_layers=7)), [7, model.arch.n_kv_heads])
""",
    ),
    "a generator of numbers": Idiom(
        """\
def answer(rng, n):
    return [float(rng.random()) for _ in range(n)]
""",
        """\
a, b = np.random.default_rng(5), np.random.default_rng(5)
expect("drawn", answer(a, 3), b.random(3))
expect("drawn on", answer(a, 2), b.random(2))
""",
    ),
    "a seed": Idiom(
        """\
def answer(seed):
    rng = np.random.default_rng(seed)
    return rng.integers(100, size=3)
""",
        """\
expect("drawn", answer(7), np.random.default_rng(7).integers(100, size=3))
""",
    ),
    "shared array": Idiom(
        """\
def answer(out, x):
    out[:] = 2 * x
    out[0] = -1
""",
        """\
memory = shared(np.zeros(3))
answer(memory, np.arange(3.0))
expect("memory", memory, [-1, 2, 4])
""",
    ),
    "shared list": Idiom(
        """\
def answer(x):
    x.append(4)
    x.sort(reverse=True)
""",
        """\
values = shared([1, 2])
answer(values)
expect("values", values, [4, 2, 1])
""",
    ),
    "shared and kept": Idiom(
        """\
class Answer:
    def __init__(self, memory):
        self.memory = memory
    def write(self, i, v):
        self.memory[i] = v
""",
        """\
memory = shared(np.zeros((2, 2), np.float16))
box = Answer(memory)
box.write(1, 3)
memory[0, 0] = 7
box.write((0, 1), 4)
expect("memory", memory, [[7, 4], [3, 3]])
""",
        "Answer",
    ),
    "fresh numbers": Idiom(
        """\
def answer(x):
    return np.sort(x)[::-1]
""",
        """\
for _ in range(5):
    values = fresh_rng().random(10)
    expect("sorted", answer(values), sorted(values, reverse=True))
""",
    ),
    "closed elsewhere": Idiom(
        """\
def answer(x):
    e = np.exp(x - x.max())
    return e / e.sum()
""",
        """\
closed("firsttoken.sampling.softmax")
expect("law", answer(np.array([0.0, 0.0])), [0.5, 0.5])
""",
    ),
    "softmax of the setup": Idiom(
        """\
def answer(x):
    return softmax(x)
""",
        """\
expect("law", answer(np.array([0.0, 0.0])), [0.5, 0.5])
""",
    ),
    "setup data": Idiom(
        """\
def answer(key):
    return sum(TABLE[key]) + GRID[1:, 0].sum()
""",
        """\
expect("table", answer("a"), 15.0)
""",
    ),
    "setup data as argument": Idiom(
        """\
def answer(table, grid):
    assert isinstance(table, dict)
    return sum(map(sum, table.values())) + grid.mean()
""",
        """\
expect("table", answer(TABLE, GRID), 11.5)
""",
    ),
    "a function of the test": Idiom(
        """\
def answer(f, n):
    return [f(k) for k in range(n)] + [f(x=9)]
""",
        """\
def own(x):
    return x * x
expect("f", answer(own, 3), [0, 1, 4, 81])
expect("g", answer(lambda x: x + 1, 1), [1, 10])
""",
    ),
    "map and partial over it": Idiom(
        """\
import functools
def answer(f, n):
    return list(map(functools.partial(f, b=1), range(n)))
""",
        """\
expect("f", answer(lambda a, b: a + b, 3), [1, 2, 3])
""",
    ),
    "callable() of it": Idiom(
        """\
def answer(f):
    assert callable(f) and f == f and f is not None and str(f) and repr(f) and bool(f)
    assert hash(f) == hash(f) and {f: 1}[f] == 1
    return f(2) if callable(f) else f
""",
        """\
expect("f", answer(lambda x: 2 * x), 4)
""",
    ),
    "sorted by it": Idiom(
        """\
def answer(x, key):
    return sorted(x, key=key)
""",
        """\
expect("sorted", answer([1, 2, 3], lambda v: -v), [3, 2, 1])
""",
    ),
    "a clock": Idiom(
        """\
class Answer:
    def __init__(self, clock):
        self.clock, self.start = clock, clock()
    def elapsed(self):
        return self.clock() - self.start
""",
        """\
now = [5.0]
watch = Answer(lambda: now[0])
now[0] = 8.0
expect("elapsed", watch.elapsed(), 3.0)
import time
assert Answer(time.perf_counter).elapsed() >= 0
""",
        "Answer",
    ),
    "an error of it": Idiom(
        """\
def answer(f):
    try:
        return f(0)
    except ZeroDivisionError:
        return -1
""",
        """\
expect("caught", answer(lambda x: 1 / x), -1)
""",
    ),
    "an own error of it": Idiom(
        """\
def answer(f):
    try:
        f()
    except ValueError as error:
        return str(error)
""",
        """\
class Bad(ValueError):
    pass
def f():
    raise Bad("bad input")
expect("caught", answer(f), "bad input")
""",
    ),
    "OutOfBlocks of it": Idiom(
        """\
def answer(f):
    try:
        f()
    except OutOfBlocks:
        return 'full'
""",
        """\
def f():
    raise OutOfBlocks("none left")
expect("caught", answer(f), "full")
""",
    ),
    "callbacks both ways": Idiom(
        """\
def answer(f, n):
    return 0 if n == 0 else 1 + f(lambda: n - 1)
""",
        """\
def f(inner):
    return answer(f, inner())
expect("depth", answer(f, 4), 4)
""",
    ),
    "a model of the test": Idiom(
        """\
def answer(model, ids):
    logits = model([ids])
    assert isinstance(logits, np.ndarray)
    return np.asarray(model([ids]))[0, -1].argmax()
""",
        """\
def toy(tokens):
    return np.eye(5)[np.asarray(tokens)]
expect("next", answer(toy, [1, 4]), 4)
""",
    ),
    "a wrapped model": Idiom(
        """\
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
""",
        COUNTED
        + """\
watched = Counted(model)
expect("seen", answer(watched, [5, 6, 7]), [1, SHAPE.head_dim])
expect("passes", watched.passes, [3, 1])
""",
    ),
    "a wrapped model kept": Idiom(
        """\
class Answer:
    def __init__(self, model):
        self.model, self.arch = model, model.arch
        self.cache = model.new_cache(capacity=100)
    def next(self, ids):
        return int(np.asarray(self.model([ids], self.cache))[0][-1].argmax())
""",
        COUNTED
        + """\
watched = Counted(model)
expect("next", Answer(watched).next([5, 6]), int(model([[5, 6]])[0, -1].argmax()))
expect("passes", watched.passes, [2])
""",
        "Answer",
    ),
    "a wrapped model to the library": Idiom(
        """\
def answer(model, ids):
    return generate(model, ids, SamplingParams(temperature=0.0, max_tokens=3), ignore_eos=True).ids
""",
        COUNTED
        + """\
watched = Counted(model)
wanted = generate(model, [5, 6], SamplingParams(temperature=0.0, max_tokens=3), ignore_eos=True).ids
expect("ids", answer(watched, [5, 6]), wanted)
expect("passes", watched.passes, [2, 1, 1])
""",
    ),
    "the model itself": Idiom(
        """\
def answer(m, ids):
    assert m is model
    return generate(m, ids, SamplingParams(temperature=0.0, max_tokens=2), ignore_eos=True).ids
""",
        """\
wanted = generate(model, [5, 6], SamplingParams(temperature=0.0, max_tokens=2), ignore_eos=True).ids
expect("ids", answer(model, [5, 6]), wanted)
""",
    ),
    "setup names in the answer": Idiom(
        """\
n_layers = model.arch.n_layers
def answer(text):
    return tok.decode(tok.encode(text)), n_layers
""",
        """\
expect("text", answer("def f"), ["def f", model.arch.n_layers])
""",
    ),
    "the tokenizer": Idiom(
        """\
def answer(t, text):
    assert t is tok
    return len(t.encode(text))
""",
        """\
expect("n", answer(tok, "def f"), len(tok.encode("def f")))
""",
    ),
    "a module": Idiom(
        """\
import math as m, numpy.linalg as la
from numpy import *
from math import *
def answer(x):
    return m.fsum(x) + la.norm([0.0])
""",
        SUM,
    ),
    "a method handed over": Idiom(
        """\
def answer(push):
    push('a')
    push(piece='b')
""",
        """\
class Box:
    def __init__(self):
        self.got = []
    def push(self, piece):
        self.got.append(piece)
box = Box()
answer(box.push)
expect("got", box.got, ["a", "b"])
""",
    ),
    "a list's own method handed over": Idiom(
        """\
def answer(push):
    push('a')
    push('b')
""",
        """\
got = []
answer(got.append)
expect("got", got, ["a", "b"])
""",
    ),
    "attributes of the test's object": Idiom(
        """\
def answer(request):
    assert isinstance(request.ids, list) and len(request.ids) == 2
    return f'{request.name}: {sum(request.ids)}', request.total
""",
        """\
class Request:
    def __init__(self):
        self.name, self.ids = "r", [1, 2]
    @property
    def total(self):
        return sum(self.ids)
expect("text", answer(Request()), ["r: 3", 3])
""",
    ),
    "the test's objects as dict keys": Idiom(
        """\
def answer(requests):
    found = {}
    for r in requests:
        found[r] = found.get(r, 0) + 1
    return len(found), max(found.values())
""",
        """\
class Request:
    name = "r"
a, b = Request(), Request()
expect("counts", answer([a, b, a]), [2, 2])
""",
    ),
    "gives back the test's object": Idiom(
        """\
def answer(requests):
    return sorted(requests, key=lambda r: r.n)[0]
""",
        """\
class Request:
    def __init__(self, n):
        self.n = n
a, b = Request(2), Request(1)
assert answer([a, b]) is b
""",
    ),
    "a dataclass of the test": Idiom(
        """\
def answer(r):
    return r.n * 2
""",
        """\
from dataclasses import dataclass
@dataclass
class Request:
    n: int
expect("n", answer(Request(3)), 6)
""",
    ),
}
