"""Right answers to the assignments in the style of other students, for test_honest.py.

{assignment: {solution cell: what stands in it}}: loops in place of arrays, arrays in place of
loops, classes, recursion, library functions of the setup, objects of the test kept and used again.
"""

TASKS = {
    "start": {
        "overtaken": """\
import itertools


def day_of_overtaking(trained_on, first_day, growth):
    goal = 6 * trained_on / 2
    if growth < 1 and first_day / (1 - growth) <= goal:
        return
    served = itertools.accumulate(first_day * growth**i for i in itertools.count())
    for day, total in enumerate(served, start=1):
        if total >= goal:
            return day


day_of_overtaking(trained_on, first_day, growth)
""",
        "crossover": """\
from collections import namedtuple

Model = namedtuple("Model", "params tokens")


def crossover(small, large):
    small, large = Model(*small), Model(*large)

    def training(model):
        return 6 * model.params * model.tokens

    tokens = (training(small) - training(large)) / 2 / (large.params - small.params)
    return tokens if tokens > 0 else 0


small = (8e9, 15e12)
print(crossover(small, large))
""",
        "bill": """\
def bill(flops, peak, utilization, watts, dollars_per_hour, dollars_per_kwh):
    seconds = np.float64(flops) / (peak * utilization)
    hours = seconds / 3600
    kwh = hours * watts / 1e3
    return np.array([hours, kwh, hours * dollars_per_hour + kwh * dollars_per_kwh])


import numpy as np

bill(7.2e18, 1e15, 0.5, 500, 2.0, 0.3)
""",
        "reading_order": """\
from graphlib import CycleError, TopologicalSorter


def reading_order(requires, goals, known):
    known = set(known)
    needed, waiting = set(), [goal for goal in goals if goal not in known]
    while waiting:
        stem = waiting.pop()
        if stem not in needed:
            needed.add(stem)
            waiting.extend(set(requires[stem]) - known)
    graph = {stem: set(requires[stem]) - known for stem in needed}
    return tuple(TopologicalSorter(graph).static_order())


for goal in [goal]:
    print(goal)
""",
    },
    "metrics": {
        "read_log": """\
from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class Request:
    arrival: float = 0.0
    times: list = field(default_factory=list)
    ended: bool = False

    @property
    def latencies(self):
        gaps = [b - a for a, b in zip(self.times, self.times[1:])]
        tpot = sum(gaps) / len(gaps) if gaps else None
        ttft, e2e = self.times[0] - self.arrival, self.times[-1] - self.arrival
        return ttft, tpot, max(gaps, default=None), e2e


def read_log(events):
    requests = defaultdict(Request)
    for time, name, kind, n in events:
        match kind:
            case "arrive":
                requests[name].arrival = time
            case "tokens":
                requests[name].times.extend([time] * n)
            case "end":
                requests[name].ended = True
    return {name: r.latencies for name, r in requests.items() if r.ended}


log = sorted(log)
read_log(log)
""",
        "fleet_percentile": """\
from fractions import Fraction


def fleet_percentile(edges, histograms, p):
    counts = [sum(column) for column in zip(*histograms)]
    wanted = Fraction(str(p)) * sum(counts) / 100
    seen = 0
    for edge, count in zip(edges, counts):
        seen += count
        if seen >= wanted and seen > 0:
            return edge
""",
        "waits": """\
def waits(arrivals, services, n_servers):
    servers = [0] * n_servers
    result = np.zeros(len(arrivals))
    for i, (arrival, service) in enumerate(zip(arrivals, services)):
        first = min(range(n_servers), key=servers.__getitem__)
        begin = max(arrival, servers[first])
        servers[first] = begin + service
        result[i] = begin - arrival
    return result
""",
    },
    "roofline": {
        "kernels": """\
def step_time(kernels, card, launch_s):
    total = 0
    for kernel in kernels:
        assert isinstance(kernel, Cost)
        total += launch_s + kernel.time(card)
    return total


def fused(kernels, i, between):
    kernels = list(kernels)
    second = kernels.pop(i + 1)
    kernels[i] = Cost(
        kernels[i].flops + second.flops, kernels[i].bytes + second.bytes - 2 * between
    )
    return kernels
""",
        "free_tokens": """\
def free_tokens(n_params, weight_bytes, cache_bytes, batch, peak, bandwidth):
    reading = (weight_bytes + cache_bytes) / bandwidth
    computing = 2 * n_params * batch / peak
    return max((reading - computing) * peak / (2 * n_params), 0)
""",
        "best_rate": """\
class Stopwatch:
    def __init__(self, clock):
        self.clock = clock

    def __enter__(self):
        self.begin = self.clock()
        return self

    def __exit__(self, *_):
        self.seconds = self.clock() - self.begin


def best_rate(work, amount, repeats, clock=time.perf_counter):
    work()
    fastest = float("inf")
    for _ in range(repeats):
        with Stopwatch(clock=clock) as watch:
            work()
        fastest = min(fastest, watch.seconds)
    return amount / fastest


copy_rate, flop_rate = best_rate(lambda: None, 1, 3), best_rate(lambda: None, 1, 3)
""",
    },
    "throughput": {
        "ragged_step": """\
def ragged_step(weight_bytes, token_bytes, lengths, bandwidth):
    tolls = np.asarray(lengths) * token_bytes / bandwidth
    step = weight_bytes / bandwidth + tolls.sum()
    return step, len(tolls) / step, tolls
""",
        "pareto_front": """\
def pareto_front(points):
    def beats(a, b):
        return a != b and a[0] <= b[0] and a[1] >= b[1]

    points = set(map(tuple, points))
    return sorted(p for p in points if not any(beats(q, p) for q in points))
""",
        "fit_line": """\
def fit_line(x, y):
    matrix = np.stack([np.ones(len(x)), x], axis=1)
    return np.linalg.lstsq(matrix, np.array(y), rcond=None)[0]


print(fit_line([0, 1], [1, 3]))
""",
    },
    "generate": {
        "option_log_p": """\
def option_log_p(model, prompt, option):
    logits = np.asarray(model([prompt + option]), dtype=float)
    total = 0.0
    for i, token in enumerate(option):
        row = logits[0, len(prompt) + i - 1]
        total += row[token] - row.max() - np.log(np.exp(row - row.max()).sum())
    return total
""",
        "merge": """\
def merged(parts):
    nats, tokens, n_bytes = np.array([(m * t, t, b) for m, t, b in parts]).sum(axis=0)
    return np.exp(nats / tokens), nats / np.log(2) / n_bytes
""",
        "stop_stream": """\
class StopStream:
    def __init__(self, stops):
        self.stops = tuple(stops)
        self._state = {"held": "", "stopped": False}

    @property
    def stopped(self):
        return self._state["stopped"]

    def _hidden(self, text):
        for i in range(len(text)):
            if any(stop.startswith(text[i:]) for stop in self.stops):
                return len(text) - i
        return 0

    def push(self, piece):
        out = []
        for c in piece:
            if self.stopped:
                break
            text = self._state["held"] + c
            done = sorted((s for s in self.stops if text.endswith(s)), key=len)
            if done:
                out.append(text[: -len(done[-1])])
                self._state.update(held="", stopped=True)
            else:
                n = self._hidden(text)
                out.append(text[: len(text) - n])
                self._state["held"] = text[len(text) - n :]
        return "".join(out)

    def finish(self):
        held = self._state.pop("held")
        self._state["held"] = ""
        return held
""",
    },
    "attention": {
        "state-solution": """\
def part_state(q, k, v):
    peaks, totals, mixed = [], [], []
    for n, query in enumerate(q):
        kv = n // (q.shape[0] // k.shape[0])
        scores = (k[kv] * query).sum(axis=-1) / query.size**0.5
        weights = np.exp(scores - scores.max())
        peaks.append(scores.max())
        totals.append(weights.sum())
        mixed.append((weights[:, None] * v[kv]).sum(axis=0))
    return [np.array(peaks), np.array(totals), np.array(mixed)]


def result(state):
    peak, total, mixed = state
    return (mixed.T / total).T
""",
        "merge-solution": """\
from functools import reduce


def merge(*states):
    def two(a, b):
        (m, l, o), (n, j, p) = a, b
        top = np.where(m > n, m, n)
        x, y = np.exp(m - top), np.exp(n - top)
        return top, l * x + j * y, o * x[..., np.newaxis] + p * y[..., np.newaxis]

    return reduce(two, states)
""",
        "pool-solution": """\
def pool_heads(weight, n_heads, n_kv_heads):
    groups = np.split(weight.astype(np.float32), n_kv_heads)
    return np.vstack([np.mean(np.split(x, n_heads // n_kv_heads), axis=0) for x in groups])


def kept_share(weight, n_heads, n_kv_heads):
    squares = np.square(pool_heads(weight, n_heads, n_kv_heads)).sum()
    return squares * n_heads / n_kv_heads / np.square(weight.astype(np.float32)).sum()
""",
        "packed-solution": """\
def packed_mask(lengths, window, sinks):
    size = sum(lengths)
    mask = np.zeros((size, size), dtype=bool)
    start = 0
    for n in lengths:
        for i in range(n):
            for j in range(i + 1):
                mask[start + i, start + j] = window is None or i - j < window or j < sinks
        start += n
    return mask
""",
    },
    "flash": {
        "attend": """\
def attend(q, n_keys, load, block_q, block_k, window):
    size = q.shape[-1] ** 0.5
    out, sums = None, np.empty(len(q))
    for begin in range(0, len(q), block_q):
        inside = range(begin, min(begin + block_q, len(q)))
        at = [n_keys - len(q) + i for i in inside]
        state = [None] * len(at)
        for number in reversed(range(-(-n_keys // block_k))):  # from the last block to the first
            low, high = number * block_k, min((number + 1) * block_k, n_keys)
            if low > at[-1] or window is not None and high - 1 <= at[0] - window:
                continue
            keys, values = load(low, high)
            if out is None:
                out = np.zeros((len(q), values.shape[1]))
            for row, place in enumerate(at):
                first = low if window is None else max(low, place - window + 1)
                here = slice(first - low, max(first, min(high, place + 1)) - low)
                s = keys[here] @ q[begin + row] / size
                if len(s) == 0:
                    continue
                part = s.max(), np.exp(s - s.max()).sum(), np.exp(s - s.max()) @ values[here]
                if state[row] is not None:
                    (a, b, c), (d, e, f) = state[row], part
                    top = max(a, d)
                    x, y = np.exp(a - top), np.exp(d - top)
                    part = top, b * x + e * y, c * x + f * y
                state[row] = part
        for row, (peak, total, mixed) in zip(inside, state):
            out[row], sums[row] = mixed / total, peak + np.log(total)
    return [out, sums]
""",
        "lazy": """\
def lazy_walk(scores, values, block, limit):
    cuts = range(block, scores.shape[1], block)
    peaks = np.full(len(scores), -np.inf)
    totals, mixed = np.zeros(len(scores)), np.zeros((len(scores), values.shape[1]))
    moved = set()
    for number, tile in enumerate(np.split(scores, cuts, axis=1)):
        rows = values[number * block : number * block + tile.shape[1]]
        for i, line in enumerate(tile):
            if line.max() - peaks[i] > limit:
                factor = np.exp(peaks[i] - line.max())
                totals[i] *= factor
                mixed[i] *= factor
                peaks[i] = line.max()
                moved.add(number)
            for score, value in zip(line, rows):
                weight = math.exp(score - peaks[i])
                totals[i] += weight
                mixed[i] += weight * value
    return np.divide(mixed, totals[:, None]), len(moved - {0})


def safe_limit(n_keys, largest_weight, largest_total):
    return float(np.log(min(largest_weight, largest_total / n_keys)))
""",
        "splits": """\
from fractions import Fraction


def efficiency(n_jobs, n_processors):
    waves, rest = divmod(n_jobs, n_processors)
    return float(Fraction(n_jobs, (waves + bool(rest)) * n_processors))


def choose_splits(n_jobs, n_processors, n_blocks, most):
    if n_jobs / n_processors >= 0.8:
        return 1
    shares, run = [], None
    for n in range(1, min(most, n_processors, n_blocks) + 1):
        longest = -(-n_blocks // n)
        if longest != run:
            shares.append((n, efficiency(n_jobs * n, n_processors)))
        run = longest
    best = max(share for _, share in shares)
    return next(n for n, share in shares if share / best >= 0.85)


def split_seconds(n_jobs, n_processors, n_blocks, n_splits, block_s, start_s, merge_s):
    seconds, left = 0.0, n_jobs * n_splits
    while left > 0:
        seconds += start_s + max(-(-n_blocks // n_splits), 0) * block_s
        left -= n_processors
    if n_splits != 1:
        seconds += n_splits * merge_s
    return seconds


choose_splits(48, 108, 64, 128)
""",
        "blocks": """\
from functools import lru_cache
from itertools import product


@lru_cache(None)
def causal_cost(n_q, n_k, head_dim, block_q, block_k):
    ends = [min(i + block_q, n_q) for i in range(0, n_q, block_q)]
    last = np.array([n_k - n_q + end - 1 for end in ends])
    met = last // block_k + 1
    read = np.where(met * block_k > n_k, n_k, met * block_k)
    return np.array([(n_q * 2 + read.sum() * 2) * head_dim * 2, met.sum()])


def best_blocks(n_q, n_k, head_dim, chip_bytes, bandwidth, tile_s):
    best = float("inf"), None
    for a, b in product(range(512, 0, -16), repeat=2):
        if on_chip(a, b, head_dim) > chip_bytes:
            continue
        moved, tiles = causal_cost(n_q, n_k, head_dim, a, b)
        best = min(best, (moved / bandwidth + tiles * tile_s, (a, b)))
    return best[1]
""",
    },
    "recurrent": {
        "chunk": """\
def passing(decay):
    tokens = range(len(decay))
    rows = [[np.prod(decay[i + 1 : t + 1]) * (i <= t) for i in tokens] for t in tokens]
    return np.array(rows)


class Matrix:
    def __init__(self, state):
        self.state = np.array(state, dtype=float)

    def step(self, q, k, v, decay):
        self.state *= decay
        self.state += v[:, None] * k[None]
        return self.state.dot(q)


def read_chunk(state, q, k, v, decay):
    matrix = Matrix(state)
    outputs = [matrix.step(*token) for token in zip(q, k, v, decay)]
    return [matrix.state, outputs]
""",
        "memory": """\
from fractions import Fraction


def sum_memory(keys, values):
    return np.tensordot(values, keys, axes=(0, 0)).tolist()


def delta_memory(keys, values, passes):
    if passes == 0:
        return np.zeros((values.shape[1], keys.shape[1]))
    memory = np.array(delta_memory(keys, values, passes - 1))
    for k, v in zip(keys, values):
        memory = memory @ (np.eye(len(k)) - np.outer(k, k)) + np.outer(v, k)
    return memory


def expected_error(n, size):
    return sum(1 / size for _ in range(n - 1))


def most_pairs(size, error):
    n = 1
    while Fraction(n, size) <= error:
        n += 1
    return n
""",
        "ssm": """\
def response(A, B, C, n):
    return [sum(c * b * a**t for a, b, c in zip(A, B, C)) for t in range(n)]


def read_block(A, B, C, state, x):
    y = []
    for value in x:
        state = A * state + B * value
        y.append(C @ state)
    return state, np.array(y)


def decays(y):
    y = np.asarray(y)
    table = np.stack([y[1:-1], y[:-2]], axis=1)
    s, minus_p = np.linalg.lstsq(table, y[2:], rcond=None)[0]
    return sorted(np.roots([1, -s, -minus_p]).real, reverse=True)
""",
        "snapshots": """\
def hit(n_prompt, shared, block, interval):
    found = 0
    for n in range(0, min(shared, n_prompt - 1) + 1, interval):
        if n % block == 0:
            found = n
    return found


def stored_bytes(n_tokens, block, interval, token_bytes, state_bytes):
    blocks, _ = divmod(n_tokens, block)
    return block * blocks * token_bytes + len(range(interval, n_tokens + 1, interval)) * state_bytes


def best_interval(requests, n_tokens, block, token_bytes, state_bytes, budget_bytes):
    best = None, -1
    for interval in range(1, n_tokens + 1):
        kept = stored_bytes(n_tokens, block, interval, token_bytes, state_bytes)
        if kept <= budget_bytes:
            step = int(np.lcm(block, interval))
            saved = sum(min(same, n - 1) // step * step for n, same in requests)
            if saved > best[1]:
                best = interval, saved
    return best[0]
""",
    },
    "quantization": {
        "codes": """\
class Groups:
    def __init__(self, x, bits, group):
        self.parts = np.array_split(x, range(group, len(x), group))
        self.scales = [float(np.max(np.abs(p))) / (2 ** (bits - 1) - 1) for p in self.parts]

    def codes(self):
        for part, scale in zip(self.parts, self.scales):
            for number in part:
                yield 0 if scale == 0 else math.floor(number / scale + 0.5)


def quantized(x, bits, group):
    groups = Groups(x, bits, group)
    return list(groups.codes()), groups.scales


def restored(codes, scales, group):
    return [int(code) * scales[i // group] for i, code in enumerate(codes)]


def packed(codes):
    padded = np.append(codes, np.zeros(len(codes) % 2)).astype(np.int8)
    pairs = padded.reshape(-1, 2).view(np.uint8)
    return (pairs[:, 0] & 0x0F) | (pairs[:, 1] << 4)


def unpacked(data, n):
    bits = np.unpackbits(data, bitorder="little").reshape(-1, 4)
    return (bits[:n] * np.array([1, 2, 4, -8])).sum(axis=1)


quantized(np.arange(5.0), 4, 2)
""",
        "ends": """\
from fractions import Fraction


def between_ends(x, bits):
    low, high = np.sort(x)[[0, -1]]
    if low == high:
        return [0] * len(x), 0, low
    marks = np.linspace(low, high, 2**bits)
    return np.abs(x[:, None] - marks).argmin(axis=1), marks[1] - marks[0], marks[0]


def with_zero(x, bits):
    padded = np.append(x, 0)
    scale = np.ptp(padded) / (2**bits - 1)
    if not padded.any():
        scale = 1
    zero = round(-padded.min() / scale)
    return [min(max(round(v / scale) + zero, 0), 2**bits - 1) for v in x.tolist()], scale, zero


def gain(low, high, bits):
    steps = Fraction(2**bits - 1, 2 ** (bits - 1) - 1)
    return float(steps * Fraction(max(abs(low), high)) / (Fraction(high) - Fraction(low))) ** 2
""",
        "product": """\
def to_codes(rows):
    scales = np.array([np.linalg.norm(row, np.inf) for row in rows]) / 127.0
    codes = np.zeros(rows.shape, np.int64)
    for i, scale in enumerate(scales):
        if scale:
            codes[i] = np.floor(rows[i] / scale + 0.5)
    return codes, scales


def int8_product(x, w):
    (a, s), (b, t) = to_codes(x), to_codes(w.T)
    return [[int(p @ q) * si * ti for q, ti in zip(b, t)] for p, si in zip(a, s)]


def kept_apart(x, w, threshold):
    y = np.zeros((len(x), w.shape[1]))
    rest = []
    for j, column in enumerate(x.T):
        if max(column.max(), -column.min()) >= threshold:
            y += column[:, None] * w[j]
        else:
            rest.append(j)
    return y + int8_product(x[:, rest], w[rest]) if rest else y


def highest_threshold(x, w, limit):
    exact = np.einsum("td,df->tf", x, w)

    def good(threshold):
        wrong = kept_apart(x, w, threshold) - exact
        return (wrong**2).sum() <= limit**2 * (exact**2).sum()

    peaks = {float("inf")} | {float(np.abs(column).max()) for column in x.T}
    return max(filter(good, peaks))
""",
        "plan": """\
from functools import cache


def best_choice(costs, errors, budget):
    @cache
    def best(i, left):
        if i == len(costs):
            return 0.0, ()
        found = None
        for j, (cost, error) in enumerate(zip(costs[i], errors[i])):
            if cost <= left and (rest := best(i + 1, left - cost)):
                found = min(found or (math.inf,), (error + rest[0], (j, *rest[1])))
        return found

    found = best(0, budget)
    return found and list(found[1])


def fools_greedy():
    costs = np.array([[1, 3], [1, 100], [1, 2]])
    errors = np.array([[50, 1], [2000, 1], [10.0, 9.0]])
    return costs, errors, 102
""",
    },
    "pruning": {
        "cutting": """\
class Mlp:
    def __init__(self, gate, up, down):
        self.rows = list(zip(gate, up, down.T))

    def only(self, keep):
        gate, up, columns = zip(*(self.rows[f] for f in keep))
        return np.stack(gate), np.stack(up), np.stack(columns, axis=1)


def cut(gate, up, down, keep):
    return Mlp(gate, up, down).only(keep)


def repaired(h, down, keep):
    pseudo = np.linalg.pinv(np.take(h, keep, axis=1))
    return [[row @ y for row in pseudo] for y in (h @ down.T).T]


def fewest(h, down, order, limit):
    y = h @ down.T
    low, high = 0, len(order)  # low is too few, high is enough
    while high - low > 1:
        n = (low + high) // 2
        q, _ = np.linalg.qr(h[:, order[:n]])
        wrong = y - q @ (q.T @ y)
        if np.sum(wrong**2) > limit**2 * np.sum(y**2):
            low = n
        else:
            high = n
    return high


activations(np.ones((2, 3)), np.ones((4, 3)), np.ones((4, 3)))
""",
        "scores": """\
from itertools import groupby


def taylor(z, g):
    texts = [abs(np.einsum("tf,tf->f", *text)) for text in zip(z, g)]
    return sum(texts) / len(texts)


def rise(z, g, h):
    return [0.5 * c * a * a - a * b for a, b, c in zip(z.tolist(), g.tolist(), h.tolist())]


def keep_heads(scores, n, groups):
    size, kept = len(scores) // groups, set()
    for _, run in groupby(range(len(scores)), key=lambda i: i // size):
        run = list(run)
        for _ in range(n // groups):
            best = max(run, key=lambda i: (scores[i], -i))
            run.remove(best)
            kept.add(best)
    return np.array(sorted(kept))
""",
        "sparse": """\
def mask_2_4(scores):
    mask = np.zeros_like(scores, dtype=bool)
    for row, line in zip(mask, scores):
        for four in zip(*[iter(range(len(line)))] * 4):
            first = max(four, key=lambda i: line[i])
            row[first] = True
            row[max((i for i in four if i != first), key=lambda i: line[i])] = True
    return mask


def wanda(w, x):
    return np.sqrt(w**2 * np.diag(x.T @ x))


def compressed(w, mask):
    kept = [[i for i, m in enumerate(row) if m] for row in mask.tolist()]
    values = [[row[i] for i in some] for row, some in zip(w, kept)]
    return values, [[i % 4 for i in some] for some in kept]


def product(values, places, x):
    dense = np.zeros((len(values), 2 * values.shape[1]))
    for (o, n), value in np.ndenumerate(values):
        dense[o, n // 2 * 4 + places[o, n]] = value
    return np.matmul(x, dense.T)


def share(bits):
    return 1 / 2 + 1 / bits
""",
        "teacher": """\
def log_softmax(x):
    return x - np.logaddexp.reduce(x, axis=-1, keepdims=True)


def stored(logits, k):
    ids = [sorted(range(len(row)), key=row.__getitem__, reverse=True)[:k] for row in logits]
    return ids, [[math.exp(log[i]) for i in some] for log, some in zip(log_softmax(logits), ids)]


def stored_loss(student, ids, probs):
    losses = []
    for log, some, kept in zip(log_softmax(student), ids, probs):
        events = list(zip(kept, log[some]))
        events.append((1 - kept.sum(), np.logaddexp.reduce(np.delete(log, some))))
        losses.append(sum(p * (np.log(p) - q) for p, q in events if p > 0))
    return np.mean(losses)


def hot_loss(student, teacher):
    a, b = (x - x.mean(axis=-1)[:, None] for x in (student, teacher))
    return np.square(a - b).mean() * 0.5
""",
    },
    "kv_cache": {
        "session": """\
class Session:
    def __init__(self, model, capacity):
        self.model, self.cache = model, model.new_cache(capacity=capacity)
        self.ids = []

    def read(self, ids):
        same = 0
        for a, b in zip(self.ids, ids[:-1]):
            if a != b:
                break
            same += 1
        self.cache.truncate(same)
        new = np.array([ids[same:]])
        logits = np.asarray(self.model(new.tolist(), cache=self.cache))
        self.ids = ids[:]
        return logits[-1][-1]
""",
        "traffic": """\
def decode_traffic(arch, n_prompt, n_new):
    assert isinstance(arch, Architecture)
    weights = cache = 0
    for step in range(1, n_new):
        weights += 2 * arch.n_params
        cache += kv_cache_bytes(arch, n_prompt + step)
    return weights, cache


def even_length(arch):
    return 2 * arch.n_params / kv_cache_bytes(arch, 1)
""",
        "sessions": """\
def sessions(free_bytes, token_bytes, n_shared, n_own, sharing):
    n = 0
    while True:
        tokens = n_shared + (n + 1) * n_own if sharing else (n + 1) * (n_shared + n_own)
        if tokens * token_bytes > free_bytes:
            return n
        n += 1
""",
    },
    "sampling": {
        "order-solution": """\
def distribution_in_order(logits, steps):
    for name, value in steps:
        if name == "temperature":
            logits = apply_temperature(logits, value)
        else:
            logits = globals()[f"keep_{name}"](logits, value)
    return softmax(logits)
""",
        "same-solution": """\
def same_token(p, q):
    total, a, b = 0.0, 0.0, 0.0
    for x, y in zip(p, q, strict=True):
        total += max(0.0, min(a + x, b + y) - max(a, b))
        a, b = a + x, b + y
    return total


most_agreement = lambda p, q: sum(min(x, y) for x, y in zip(p, q))
""",
        "batch-solution": """\
class Request:
    __slots__ = ("params", "rng", "prompt", "output")

    def __init__(self, params, prompt):
        assert isinstance(params, SamplingParams)
        self.params, self.prompt, self.output = params, prompt, []
        self.rng = np.random.default_rng(seed=params.seed)

    def next(self, row):
        if self.params.temperature == 0:
            token = np.argmax(penalize(row, self.params, self.prompt, self.output))
        else:
            law = next_token_distribution(row, self.params, self.prompt, self.output)
            token = draw(law, self.rng)
        self.output.append(int(token))
        return token


class BatchSampler(dict):
    def add(self, request_id, params, prompt_ids):
        self[request_id] = Request(params, prompt_ids)

    def choose(self, logits):
        return {key: self[key].next(row) for key, row in logits.items()}

    def remove(self, request_id):
        self.pop(request_id)
""",
    },
    "batching": {
        "plan-solution": """\
from collections import deque


def plan_step(running, waiting, max_batch, budget):
    line = deque(sorted(running, key=lambda pair: pair[1] > 1))
    line.extend(waiting[: max_batch - len(running)])
    plan = {}
    while line and budget:
        name, unread = line.popleft()
        plan[name] = min(unread, budget)
        budget -= plan[name]
    return list(plan.items())
""",
        "engine-solution": """\
from collections import deque
from dataclasses import dataclass


@dataclass(eq=False)
class Job:
    number: int
    text: list
    start: int
    params: object
    rng: np.random.Generator

    @property
    def new(self):
        return self.text[self.start :]


class Engine:
    def __init__(self, model, n_blocks, block_size, max_batch):
        self.model = model
        self.pool = BlockPool(n_blocks, block_size)
        self.cache = PagedCache(model.arch, self.pool)
        self.max_batch = max_batch
        self.line, self.jobs, self.count = deque(), [], 0

    def submit(self, prompt_ids, params):
        rng = np.random.default_rng(params.seed)
        self.line.append(Job(self.count, [*prompt_ids], len(prompt_ids), params, rng))
        self.count += 1
        return self.count - 1

    def step(self):
        size = self.pool.block_size
        # One that runs has all but its last token in the pool.
        while sum((len(j.text) - 1) % size == 0 for j in self.jobs) > self.pool.n_free:
            job = self.jobs.pop()
            self.pool.free(job.number)
            self.line.appendleft(job)
        for job in self.jobs:
            self.pool.append(job.number, job.text[-1])
        while self.line and len(self.jobs) < self.max_batch:
            if -(-len(self.line[0].text) // size) > self.pool.n_free:
                break
            job = self.line.popleft()
            self.pool.allocate(job.number, job.text)
            job.part = self.cache.sequence(job.number)
            self.jobs.append(job)
        if not self.jobs:
            return {}
        news = [job.text[job.part.length :] for job in self.jobs]
        rows = self.model.forward_ragged(news, [job.part for job in self.jobs])
        for job, logits in zip(self.jobs, rows):
            job.text.append(choose(logits[-1], job.params, job.rng))
        done = [job for job in self.jobs if len(job.new) == job.params.max_tokens]
        self.jobs = [job for job in self.jobs if job not in done]
        for job in done:
            self.pool.free(job.number)
        return {job.number: job.new for job in done}
""",
    },
    "paging": {
        "chat-solution": """\
def tokens_found(n_turns, n_system, n_user, n_answer, block_size, system_known):
    lengths = [n_system + k * (n_user + n_answer) for k in range(n_turns)]
    if not system_known:
        lengths[0] = 0
    return np.array(lengths) // block_size * block_size
""",
        "beams-solution": """\
def blocks_held(texts, block_size):
    tree = {}
    count = 0
    for text in texts:
        node = tree
        for start in range(0, len(text), block_size):
            block = tuple(text[start : start + block_size])
            if block not in node:
                node[block] = {}
                count += 1
            node = node[block]
    return count
""",
        "cache-solution": """\
class SlotCache:
    def __init__(self, memory, slots):
        self.memory, self.slots = memory, slots
        self.n = {layer: 0 for layer in range(memory.shape[1])}

    length = property(lambda self: min(self.n.values()))

    def append(self, layer, k, v):
        for t in range(k.shape[2]):
            slot = self.slots()[self.n[layer]]
            self.memory[0, layer, slot] = k[0, :, t]
            self.memory[1, layer, slot] = v[0, :, t]
            self.n[layer] += 1

    def keys(self, layer):
        return self._all(layer)[0][None]

    def values(self, layer):
        return self._all(layer)[1][None]

    def _all(self, layer):
        where = list(self.slots())[: self.n[layer]]
        return self.memory[:, layer, where].transpose(0, 2, 1, 3)

    def truncate(self, n_tokens):
        for layer in self.n:
            self.n[layer] = min(n_tokens, self.n[layer])
""",
    },
    "speculative": {
        "chain-solution": """\
def chain_rules(target, draft, n):
    if n == 0:
        return [], target
    accept, rest = acceptance_rule(target, draft)
    others, law = chain_rules(rest, draft, n - 1)
    return (accept, *others), law
""",
        "overlaps-solution": """\
def overlaps(target, draft, ids, params):
    laws = [next_token_distribution(np.asarray(m([ids]))[0], params) for m in (target, draft)]
    return [float(np.minimum(a, b).sum()) for a, b in zip(*laws)]
""",
        "predict-solution": """\
def tokens_per_pass(alphas, gamma):
    rounds = []
    for i in range(len(alphas) - gamma + 1):
        total = product = 1
        for alpha in alphas[i : i + gamma]:
            product *= alpha
            total += product
        rounds.append(total)
    return sum(rounds) / len(rounds)
""",
    },
    "drafts": {
        "layout": """\
class Tree:
    def __init__(self, parents):
        self.n = len(parents)
        self.up = np.zeros((self.n, self.n), dtype=int)
        for child, parent in enumerate(parents):
            if parent != -1:
                self.up[child, parent] = 1

    def ancestors(self):
        seen = np.eye(self.n, dtype=int)
        for _ in range(self.n):
            seen = np.minimum(1, seen + seen @ self.up)
        return seen > 0


def sees(parents):
    return Tree(parents).ancestors().tolist()


def positions(parents, n_text):
    return n_text - 1 + Tree(parents).ancestors().sum(axis=1)


def kept_rows(parents, last, n_text):
    text = np.arange(n_text)
    if last == -1:
        return text
    return np.concatenate([text, n_text + np.flatnonzero(Tree(parents).ancestors()[last])])
""",
        "trees": """\
from functools import lru_cache
from heapq import heappop, heappush


def tree_tokens(alpha, parents):
    def below(node, depth):
        children = [i for i, parent in enumerate(parents) if parent == node]
        return sum(alpha[depth][r] * (1 + below(c, depth + 1)) for r, c in enumerate(children))

    return 1.0 + below(-1, 0)


def best_parents(alpha, n):
    heap, parents = [], []
    # All children of a guess at once: with falling rows they leave the heap in their order.
    def children(node, depth, chance):
        if depth < alpha.shape[0]:
            for rank, rate in enumerate(alpha[depth]):
                heappush(heap, (-chance * rate, depth, rank, node))

    children(-1, 0, 1.0)
    for i in range(n):
        chance, depth, _, node = heappop(heap)
        parents.append(node)
        children(i, depth + 1, -chance)
    return np.array(parents)


def as_good_as_chain(alpha, n):
    @lru_cache
    def best(depth, rank, left):
        if left == 0 or depth == len(alpha) or rank == alpha.shape[1]:
            return 0.0
        return max(
            alpha[depth, rank] * (1 + best(depth + 1, 0, n - 1)) + best(depth, rank + 1, left - n)
            for n in range(1, left + 1)
        )

    chain = float(np.cumprod(alpha[:n, 0]).sum())
    return min(m for m in range(n + 1) if best(0, 0, m) > chain - 1e-9)
""",
        "siblings": """\
def sibling_rule(target, draft, tokens):
    def judge(p, q, tokens):
        if not tokens:
            return [], p
        (first, *others), q = tokens, q / sum(q)
        missing = np.clip(p - q, 0, None)
        rest = missing / missing.sum() if missing.sum() > 0 else p
        keep, final = judge(rest, [0 if i == first else x for i, x in enumerate(q)], others)
        return [min(1, p[first] / q[first]), *keep], final

    return judge(target, draft, list(tokens))
""",
        "evidence": """\
PAIRS = [
    (np.array([0.6, 0.3, 0.1]), np.array([0.1, 0.2, 0.7])),
    (np.array([0.05, 0.75, 0.2]), np.array([0.05, 0.05, 0.9])),
    ([0.2, 0.6, 0.2], [0.01, 0.01, 0.98]),
]


def evidence(name):
    for target, draft in PAIRS:
        p, q = np.array(target), np.array(draft)
        if abs(p - comes_out(VERSIONS[name], p, q, 2)).sum() > 0.2:
            return target, draft
""",
        "thumb": """\
def typical(target, epsilon, delta):
    bar = min(epsilon, delta * math.prod(x**x for x in target.tolist()))
    return [x > bar for x in target]


def produces(target, draft, epsilon, delta):
    out = 0
    for token, kept in enumerate(typical(target, epsilon, delta)):
        out = out + draft[token] * (np.eye(len(target))[token] if kept else target)
    return out


def farthest(target, epsilon, delta):
    kept = [x for x, yes in zip(target, typical(target, epsilon, delta)) if yes]
    return max(1 - x for x in kept)
""",
        "controller": """\
def alpha_of(rounds):
    judged = [(min(drafted, accepted + 1), accepted) for drafted, accepted in rounds]
    n, kept = np.sum(judged, axis=0)
    return kept / n


def choose_gamma(alpha, n, cost, max_gamma):
    goodput = [expected_tokens(alpha, g) / cost(n, gamma=g) for g in range(1 + max_gamma)]
    return np.argmax(goodput)


def stops_at(alpha, cost, max_batch, max_gamma):
    still = [n for n in range(1, max_batch + 1) if choose_gamma(alpha, n, cost, max_gamma)]
    first = max(still, default=0) + 1
    return first if first <= max_batch else None
""",
    },
    "parallel": {
        "ring": """\
class Device:
    def __init__(self, number, values):
        self.number, self.values = number, dict(enumerate(values))
        self.next = number  # the piece that goes out next

    def send(self):
        return self.next, self.values[self.next]

    def receive(self, piece, value, adding):
        self.values[piece] = self.values[piece] + value if adding else value
        self.next = piece


def piece_sent(device, round_index, n):
    if round_index == 0:
        return device
    return piece_sent((device - 1) % n, round_index - 1, n)


def after_each_round(arrays):
    ring = [Device(number, values) for number, values in enumerate(arrays)]
    states = []
    for adding in [True] * (len(ring) - 1) + [False] * (len(ring) - 1):
        mail = [device.send() for device in ring]
        for device, (piece, value) in zip(ring, mail[-1:] + mail[:-1]):
            device.receive(piece, value, adding)
        states.append(np.array([[d.values[i] for i in range(len(ring))] for d in ring]))
    return states


def bytes_sent(piece_bytes):
    # All pieces twice, but for the one completed here and the one that its neighbour completes.
    sizes = np.array(piece_bytes)
    return 2 * sizes.sum() - np.roll(sizes, -1) - np.roll(sizes, -2)


def ring_pays_from(n, bandwidth, latency_s):
    per_byte_saved = (n - 1) * (n - 2) / n / bandwidth
    extra_waits = (2 * (n - 1) - 1) * latency_s
    return float(np.divide(extra_waits, per_byte_saved)) if per_byte_saved else np.inf
""",
        "cut": """\
def cut(weights, n):
    gate, up, down, bias = map(np.asarray, weights)
    share = bias / n
    return [[gate.T[d::n].T, up.T[d::n].T, down[d::n], share] for d in range(n)]
""",
        "evidence": """\
def evidence(name):
    version = VERSIONS[name]
    for n in (8, 7):
        neurons = 15
        x = np.ones((1, 1))
        weights = (np.ones((1, neurons)), np.ones((1, neurons)), np.ones((neurons, 1)), np.ones(1))
        for y in version(x, weights, n):
            if abs(y - mlp(x, weights)).max() > 0.1:
                return x.tolist(), [w.tolist() for w in weights], n
""",
        "heads": """\
from collections import defaultdict


def held(n_heads, n_kv_heads, n):
    group = n_heads // n_kv_heads
    devices = defaultdict(lambda: (set(), set()))
    turn = [0] * n_kv_heads
    for q in range(n_heads):
        kv = q // group
        if n <= n_kv_heads:
            device = kv % n
        else:
            owners = [d for d in range(n) if d % n_kv_heads == kv]
            device = owners[turn[kv] % len(owners)]
            turn[kv] += 1
        devices[device][0].add(q)
        devices[device][1].add(kv)
    return [(sorted(devices[d][0]), sorted(devices[d][1])) for d in range(n)]


def cache_bytes(n_heads, n_kv_heads, n, head_dim, n_layers, n_tokens):
    one = 2 * 2 * head_dim * n_layers * n_tokens
    return np.array([-(-n_kv_heads // n), max(n, n_kv_heads)]) * one


def idle_in_attention(n_heads, n_kv_heads, n):
    loads = np.array([len(queries) for queries, _ in held(n_heads, n_kv_heads, n)])
    return (loads.max() - loads).sum() / (n * loads.max())
""",
        "pipeline": """\
import functools
from fractions import Fraction


def finish_times(stage_s, m, hop_s):
    @functools.cache
    def finish(i, s):
        free = finish(i - 1, s) if i else 0
        here = finish(i, s - 1) + hop_s if s else 0
        return max(free, here) + stage_s[s]

    return np.array([[finish(i, s) for s in range(len(stage_s))] for i in range(m)])


def bubble(stage_s, finish):
    end = np.max(finish)
    idle = [end - seconds * len(finish) for seconds in stage_s]
    return np.mean(idle) / end


def bubble_formula(p, m):
    return float(1 - Fraction(m, m + p - 1))


def fewest_microbatches(p, most_idle):
    return max(1, math.ceil((p - 1) * (1 - most_idle) / most_idle - 1e-6))


def bubble_that_stays(stage_s):
    return float(np.mean(1 - np.array(stage_s) / np.max(stage_s)))
""",
        "planner": """\
from dataclasses import dataclass


@dataclass
class Plan:
    model: dict
    card: dict
    n: int
    context: int

    def __post_init__(self):
        m, c, n = self.model, self.card, self.n
        heads = -(-m["n_kv_heads"] // n)
        self.fixed_bytes = m["weights"] / n
        self.request_bytes = heads * m["head_dim"] * m["n_layers"] * self.context * 2 * 2
        rounds = 4 * m["n_layers"] * (n - 1)
        self.fixed_s = self.fixed_bytes / c["bandwidth"] + rounds * c["latency"]
        self.request_s = self.request_bytes / c["bandwidth"]
        self.request_s += rounds * 2 * m["d_model"] / n / c["link"]

    def seconds(self, batch):
        return self.fixed_s + batch * self.request_s

    def most(self, limit):
        room = (self.card["memory"] - self.fixed_bytes) / self.request_bytes
        time = (limit - self.fixed_s) / self.request_s
        return max(0, math.floor(min(room, time)))


def step_s(model, card, n, batch, context):
    return Plan(model, card, n, context).seconds(batch)


def largest_batch(model, card, n, context, max_token_s):
    return Plan(model, card, n, context).most(max_token_s)


def cheapest(model, cards, context, max_token_s):
    best = None
    for name in cards:
        for power in range(5):
            plan = Plan(model, cards[name], 2**power, context)
            batch = plan.most(max_token_s)
            if batch == 0:
                continue
            per_hour = batch / plan.seconds(batch) * 3600
            price = plan.n * plan.card["dollars_per_hour"] / per_hour * 1e6
            if best is None or price < best[-1]:
                best = (name, plan.n, batch, price)
    return best
""",
    },
    "engine": {
        "metrics": """\
from collections import Counter


def people(record):
    return set(record.decodes) | {i for i, _, _ in record.prefills}


def mean_places(records):
    events = sorted(
        [(r.start_s, len(people(r))) for r in records]
        + [(r.end_s, -len(people(r))) for r in records]
    )
    area, level = 0, 0
    for (now, change), (later, _) in zip(events, events[1:]):
        level += change
        area += level * (later - now)
    return np.float64(area) / (events[-1][0] - events[0][0])


def new_tokens(records, n_prompt):
    own = Counter()
    per_step = np.zeros(len(records), int)
    for at, r in enumerate(records):
        gains = np.ones(len(r.decodes), int)
        gains[: len(r.kept)] += np.array(r.kept, int)
        done = [i for i, new, old in r.prefills if new + old >= n_prompt[i] + own[i]]
        own.update(dict(zip(r.decodes, gains.tolist())))
        own.update(done)
        per_step[at] = gains.sum() + len(done)
    return per_step


def waited_share(records, request, arrival_s):
    waited, last = 0, arrival_s
    for r in records:
        if request in people(r):
            waited += r.start_s - last
            last = r.end_s
    return waited / (last - arrival_s)
""",
        "guessing": """\
def alphas(records, most):
    kept, judged = np.zeros(most), np.zeros(most)
    for r in records:
        for n in r.kept:
            kept[: min(n, most)] += 1
            judged[: min(n + 1, r.gamma, most)] += 1
    shares = []
    for k, n in zip(kept, judged):
        shares.append(k / n if n else shares[-1] if shares else 0)
    return np.array(shares)


def guesses(n_decoding, unread, budget, chunk, alphas, round_s):
    yields = 1 + np.concatenate([[0], np.cumsum(np.cumprod(alphas))])
    speeds = []
    for g, tokens in enumerate(yields):
        own = n_decoding * (1 + g)
        if g and own + min(unread, chunk) > budget:
            speeds.append(0)
            continue
        speeds.append(tokens / round_s(max(own, min(budget, own + unread)), g))
    return np.argmax(np.round(np.array(speeds) / max(speeds), 12))
""",
        "admission": """\
class Forecast:
    def __init__(self, decoding, line, budget, base_s, token_s):
        self.n, self.line = decoding, [[unread, None] for unread in line]
        self.budget, self.base_s, self.token_s = budget, base_s, token_s
        self.clock = 0

    def step(self):
        used = self.n
        ready = 0
        for person in self.line:
            take = min(person[0], self.budget - used)
            person[0] -= take
            used += take
            if take and person[0] == 0:
                person[1] = "now"
                ready += 1
        self.clock += self.base_s + used * self.token_s
        for person in self.line:
            if person[1] == "now":
                person[1] = self.clock
        self.n += ready

    def times(self):
        while self.n < self.budget and any(unread for unread, _ in self.line):
            self.step()
        return np.array([np.inf if t is None else t for _, t in self.line])


def first_tokens(decoding, unread, budget, base_s, token_s):
    return Forecast(decoding, unread, budget, base_s, token_s).times()


def admits(now_s, decoding, line, new, budget, base_s, token_s):
    people = list(line)
    people.append(new)
    times = now_s + Forecast(decoding, [n for n, _ in people], budget, base_s, token_s).times()
    return np.all(times <= np.array([deadline for _, deadline in people]) + 1e-9)
""",
        "bugs": """\
import random


def evidence(name):
    dice = random.Random(3)
    for _ in range(3000):
        events, open_names, asked = [], [], {}
        for i in range(5):
            prompt = [dice.randrange(2) for _ in range(dice.randint(1, 5))]
            asked[i] = (dice.choice("ab"), prompt, dice.randint(1, 6))
            events.append(["submit", i, *asked[i]])
            if dice.random() < 0.5:
                events.append(["step"])
            if dice.random() < 0.4:
                gone = dice.randrange(i + 1)
                if gone not in open_names:
                    open_names.append(gone)
                    events.append(["abort", gone])
        events += [["step"]] * 6
        try:
            answers, free = play(VERSIONS[name], events)
        except Exception:
            return events
        if free != N_BLOCKS or any(alone(*asked[i]) != answers[i] for i in answers):
            return events


class Job:
    def __init__(self, name, adapter, blocks, n_new):
        self.name, self.adapter, self.blocks, self.left = name, adapter, blocks, n_new
        self.runs = False


def repaired_run(events, n_blocks, n_adapters):
    jobs, ended, clock = [], [], 0

    def fits(job):
        on = [other for other in jobs if other.runs] + [job]
        few = len(set(other.adapter for other in on)) <= n_adapters
        return few and sum(other.blocks for other in on) <= n_blocks

    for event in events:
        if event[0] == "submit":
            jobs.append(Job(*event[1:]))
            continue
        if event[0] == "abort":
            jobs = [job for job in jobs if job.name != event[1]]
            continue
        clock += 1
        for job in jobs:
            if not job.runs:
                if not fits(job):
                    break
                job.runs = True
        for job in jobs:
            job.left -= job.runs
        ended += [[clock, job.name] for job in jobs if not job.left]
        jobs = [job for job in jobs if job.left]
    return [ended, n_blocks - sum(job.blocks for job in jobs if job.runs)]
""",
    },
}
