"""Answers in the style of many students, and what judges them, for test_honest.py."""

import re
from typing import NamedTuple


class Idiom(NamedTuple):
    """An answer, its test, and the name that the task asks for."""

    answer: str
    test: str
    asked: str


TESTS = {
    "SUM": 'expect("sum", answer([1, 2, 3]), 6)',
    "TOTAL": 'expect("sum", answer(np.array([1.0, 2.0, 3.0])), 6.0)',
    "PAIRS": 'expect("pairs", answer(3), [[0, 0], [1, 1], [2, 4]])',
    "COUNTER": """\
counter = Answer(3)
expect("first", counter.step(), 4)
expect("second", counter.step(2), 6)
expect("value", counter.value, 6)
""",
}
# === what it is (the name that is asked for, if not `answer`): the name of its test
# the answer
# ---
# its own test
WRITTEN = r"""
=== a ufunc: TOTAL
answer = np.sum
=== global: SUM
n_calls = 0
def answer(x):
    global n_calls
    n_calls += 1
    return sum(x)
=== changes its argument: SUM
def answer(x):
    total = 0
    while x:
        total += x.pop()
    return total
=== magic in the answer: SUM
%matplotlib inline
def answer(x):
    return sum(x)
%timeit -n 1 -r 1 answer([1])
=== await in the cell: SUM
import asyncio
await asyncio.sleep(0)
def answer(x):
    return sum(x)
=== prints much in a function: SUM
def answer(x):
    for v in range(20000):
        print('x' * 80)
    return sum(x)
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
=== processes: SUM
from multiprocessing import Pool
def own(v):
    return v
def answer(x):
    with Pool(2) as pool:
        return sum(pool.map(own, x))
=== files: SUM
from pathlib import Path
def answer(x):
    Path('sum.txt').write_text(' '.join(map(str, x)), encoding='utf-8')
    with open('sum.txt', encoding='utf-8') as file:
        return sum(map(int, file.read().split()))
=== an array for a list: PAIRS
def answer(n):
    return np.stack([np.arange(n), np.arange(n) ** 2], axis=1)
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
=== isinstance of an array: TOTAL
def answer(x):
    assert isinstance(x, np.ndarray) and x.ndim == 1 and x.dtype == np.float64
    assert x.flags.writeable and x.flags.c_contiguous
    return x.sum().item()
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
---
class Counted:
    def __init__(self, model):
        self.model, self.arch, self.passes = model, model.arch, []
    def new_cache(self, *args, **kwargs):
        return self.model.new_cache(*args, **kwargs)
    def __call__(self, tokens, cache=None):
        self.passes.append(len(tokens[0]))
        return self.model(tokens, cache)
watched = Counted(model)
expect("seen", answer(watched, [5, 6, 7]), [1, SHAPE.head_dim])
expect("passes", watched.passes, [3, 1])
=== the model itself
def answer(m, ids):
    assert m is model
    return generate(m, ids, SamplingParams(temperature=0.0, max_tokens=2), ignore_eos=True).ids
---
wanted = generate(model, [5, 6], SamplingParams(temperature=0.0, max_tokens=2), ignore_eos=True).ids
expect("ids", answer(model, [5, 6]), wanted)
=== a list's own method handed over
def answer(push):
    push('a')
    push('b')
---
got = []
answer(got.append)
expect("got", got, ["a", "b"])
=== gives back the test's object
def answer(requests):
    return sorted(requests, key=lambda r: r.n)[0]
---
class Request:
    def __init__(self, n):
        self.n = n
a, b = Request(2), Request(1)
assert answer([a, b]) is b
"""


def idioms(written: str) -> dict[str, Idiom]:
    """Return {what it is: the idiom}."""
    found = {}
    for text in written.split("\n=== ")[1:]:
        head, _, body = text.partition("\n")
        name, asked, test = re.fullmatch(r"(.+?)(?: \((.+)\))?(?:: ([A-Z]+))?", head).groups()
        answer, _, own = body.partition("\n---\n")
        found[name] = Idiom(answer, TESTS[test] if test else own, asked or "answer")
    return found


ANSWERS = idioms(WRITTEN)
