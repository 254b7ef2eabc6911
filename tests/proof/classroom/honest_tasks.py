"""Right answers to the assignments in the style of other students, for test_honest.py.

{assignment: {solution cell: what stands in it}}: loops in place of arrays, arrays in place of
loops, another container, library functions of the setup, objects of the test kept and used again.
"""

TASKS = {
    "metrics": {
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
    },
    "throughput": {
        "pareto_front": """\
def pareto_front(points):
    def beats(a, b):
        return a != b and a[0] <= b[0] and a[1] >= b[1]

    points = set(map(tuple, points))
    return sorted(p for p in points if not any(beats(q, p) for q in points))
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
    },
    "attention": {
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
    },
    "flash": {
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
    },
    "kv_cache": {
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
    },
    "paging": {
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
    "parallel": {
        "cut": """\
def cut(weights, n):
    gate, up, down, bias = map(np.asarray, weights)
    share = bias / n
    return [[gate.T[d::n].T, up.T[d::n].T, down[d::n], share] for d in range(n)]
""",
    },
    "engine": {
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
    },
}
