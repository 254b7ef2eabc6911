"""Answers that readers gave to the exercises: wrong ones that must fail, unusual ones that pass."""

from typing import NamedTuple


class Answer(NamedTuple):
    """`source` is run in place of the stub; what the check says must begin with `expected`."""

    chapter: str
    exercise: str
    what: str
    expected: str
    source: str


def loop(test: str) -> str:
    """Return a greedy loop that ends where `test` holds."""
    return f"""
def greedy_loop(model, prompt, n, eos_id):
    cache, new, unread = model.new_cache(capacity=len(prompt) + n), [], prompt
    while len(new) < n:
        new.append(int(model([unread], cache)[0, -1].argmax()))
        unread = new[-1:]
        if {test}:
            break
    return new
"""


WINDOW_TEST = """
def window_test(implementation):
    def seen(query, window, sinks):
        return [k for k in range(12) if implementation(query, k, window, sinks)]

    assert seen(9, 3, 0) == [7, 8, 9]
    assert seen(9, 3, 2) == [0, 1, 7, 8, 9]
    assert seen(1, 3, 0) == seen(1, 3, 4) == [0, 1]
"""

NUCLEUS_TEST = """
def nucleus_test(implementation):
    for probabilities, p, expected in (
        ([0.75, 0.25], 0.5, [True, False]),
        ([0.125, 0.5, 0.25, 0.125], 0.75, [False, True, True, False]),
        ([0.25, 0.25, 0.25, 0.25], 0.5, [True, True, False, False]),
        ([0.25, 0.75], 0.5, [False, True]),
    ):
        assert list(implementation(np.array(probabilities), p)) == expected
"""


def is_time(pattern: str) -> str:
    return f'def is_time(text):\n    return accepts(Regex("{pattern}"), text)\n'


ROUND_TEST = """
def round_test(implementation):
    got = with_round(implementation, TOY_TARGET, TOY_DRAFT, 2)
    assert np.allclose(got, plainly(TOY_TARGET, -1, 3))
"""


def one_round(judge: str, after: str = "pass", before: str = "pass") -> str:
    """Return a round that keeps a guess where `judge` holds."""
    return f"""{ROUND_TEST}
def repaired_round(target, draft, tokens, rng):
    {before}
    for i, token in enumerate(tokens):
        accept, residual = acceptance_rule(target[i], draft[i])
        if not {judge}:
            return [*tokens[:i], int(sampling.draw(residual, rng))]
        {after}
    return [*tokens, int(sampling.draw(target[-1], rng))]
"""


LINE_TEST = """
def line_test(implementation):
    assert implementation([8, 2, 2], 0, 4, 6) == []
    assert implementation([2, 2, 8], 0, 4, 6) == [0, 1]
    assert implementation([4], 3, 8, 6) == []
    assert implementation([1, 1, 1], 2, 4, 99) == [0, 1]
    assert implementation([4, 4], 0, 4, 6) == [0]
"""


def line(full: str, fits: str = "n_prompt > left", left: str = "budget - n_decoding") -> str:
    return f"""{LINE_TEST}
def repaired_line(waiting, n_decoding, max_batch, budget):
    joining, left = [], {left}
    for i, n_prompt in enumerate(waiting):
        if {full} or {fits}:
            break
        joining.append(i)
        left -= n_prompt
    return joining
"""


FULL = "n_decoding + len(joining) >= max_batch"


def keys(test_tokens: str, key: str) -> str:
    """Return a test of its own numbers, and a repair with this key of tokens[:end]."""
    return f"""
def keys_test(implementation):
    def common(first, second, size=2):
        one, two = implementation(first, size), implementation(second, size)
        assert (len(one), len(two)) == (len(first) // size, len(second) // size)
        return [i for i, key in enumerate(two) if key in one]

    a, b, c, d, e, f = {test_tokens}
    assert common([a, b, c, d], [e, e, c, d]) == []
    assert common([a, b, c, d, e, f], [f, f, c, d, e, f]) == []
    assert common([a, b, c, d], [b, a, d, c]) == []
    assert common([a, b, c, d], [a, b, c, d, e]) == [0, 1]


def repaired_keys(tokens, size):
    return [{key} for end in range(size, len(tokens) + 1, size)]
"""


SEEN = "key <= query and (query - key < window or key < sinks)"
PLAIN = "1, 2, 3, 4, 5, 6"

CACHE_TEST = """
def cache_test(implementation):
    for n in (3, 40):
        expected = model([ids[:n]])[0, -1]
        assert np.allclose(implementation(model, ids[:n]), expected, atol=1e-4)
"""

LOSS_TEST = """
def loss_test(implementation):
    table = np.array([[0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.7, 0.1, 0.2]])
    by_hand = -np.log([0.8, 0.6, 0.7, 0.1]).mean()
    given = lambda rows: np.log(table)[np.array(rows)]
    assert np.isclose(implementation(given, [0, 1, 2, 0, 2]), by_hand)
"""

MLP_TEST = """
def mlp_test(implementation):
    rng = np.random.default_rng(3)
    sizes = [(3,), (3, 5), (5,), (5, 3), (3,)]
    given = [rng.normal(size=size) for size in sizes]
    x, up, up_bias, down, down_bias = given
    right = np.maximum(x @ up + up_bias, 0) @ down + down_bias
    assert np.allclose(implementation(*given, 2), right)
"""

CARDS = """
def cards_per_copy(weights, cache, memory, bandwidth, sync, limit):
    rates = {0: 0}
    for n in (1, 2, 4, 8):
        wait = sync * (n - 1)
        room = min(n * memory, (limit - wait) * n * bandwidth) - weights
        readers = room // cache
        if readers >= 1:
            step = (weights + readers * cache) / (n * bandwidth) + wait
            rates[n] = 8 / n * readers / step
    return max(rates, key=rates.get)
"""

LIVES_TEST = """
def lives_test(implementation):
    pool = BlockPool(n_blocks=8, block_size=4)
    for i, n in enumerate((3, 2, 6, 1)):
        pool.allocate(i, [0] * n)
    lives = {0: (4, 2), 1: (1, None), 2: (3, None), 3: (5, None)}
    return implementation(pool, lives) == {0: 2, 1: 1, 2: 3, 3: 5} and pool.n_free == 8
"""


ANSWERS = [
    Answer("00_start", "1", "three digits", "passed", "gpt3_flops = 3.15e23"),
    Answer(
        "00_start", "1", "forward only", "failed That is one pass forward", "gpt3_flops = 1.05e23"
    ),
    Answer(
        "00_start",
        "2",
        "without the function of the chapter",
        "passed",
        """
def break_even_days(trained_on, requests, n_in, n_out, reused):
    return 6 * trained_on / (2 * requests * (n_in + n_out - n_in * reused))
""",
    ),
    Answer(
        "00_start",
        "2",
        "written tokens reused",
        "failed Written tokens are never reused.",
        """
def break_even_days(trained_on, requests, n_in, n_out, reused):
    return days_to_match(trained_on, requests * (n_in + n_out) * (1 - reused))
""",
    ),
    Answer(
        "00_start",
        "3",
        "a test of one day",
        "failed",
        "def flops_test(implementation):\n    assert implementation(10, 100, 100, 0) == 0\n",
    ),
    Answer(
        "01_generate",
        "2",
        "all parameters",
        "failed n_params counts the first table",
        """
def pass_flops(arch, t):
    pairs = t * (t + 1) // 2
    return 2 * t * arch.n_params + 4 * arch.n_heads * arch.head_dim * arch.n_layers * pairs
""",
    ),
    Answer(
        "01_generate",
        "3",
        "half a repair",
        "failed Your test is right; the repair is not: the length is right",
        LOSS_TEST
        + """
def repaired_loss(model, tokens):
    p = softmax(model([tokens])[0].astype(float))
    return -np.log(p[np.arange(len(tokens) - 1), tokens[:-1]]).mean()
""",
    ),
    Answer(
        "02_metrics",
        "1",
        "an array",
        "passed",
        "latencies_ms = np.array([400, 125, 350, 900])",
    ),
    Answer(
        "02_metrics",
        "1",
        "five gaps",
        "failed TPOT: leave the wait for the first token out.",
        "latencies_ms = 400, 180, 350, 900",
    ),
    Answer(
        "02_metrics",
        "2",
        "by a load",
        "passed",
        """
def highest_rate(service_s, wait_s):
    load = 1 / (1 + service_s / (2 * wait_s))
    return load / service_s
""",
    ),
    Answer(
        "02_metrics",
        "2",
        "the load itself",
        "failed That is ρ, how busy the server is. The rate is ρ / s.",
        """
def highest_rate(service_s, wait_s):
    return 2 * wait_s / (service_s + 2 * wait_s)
""",
    ),
    Answer(
        "02_metrics",
        "3",
        "the index -1 only",
        "failed That mends the index -1 only.",
        """
def percentile_test(implementation):
    assert implementation([30, 10, 20], 50) == 20
    assert implementation([30, 10, 20], 99) == 30
    assert implementation([40, 10, 20, 30], 25) == 10


def repaired_rank(values, p):
    return sorted(values)[max(int(len(values) * p / 100) - 1, 0)]
""",
    ),
    Answer(
        "02_metrics",
        "4",
        "the longest gap",
        "failed The limit is on TPOT, the mean gap; you took the longest.",
        """
def my_goodput(traces, ttft_s, tpot_s, span_s):
    kept = [t for t in traces if t.ttft <= ttft_s]
    return sum(t.tpot is None or t.itl.max() <= tpot_s for t in kept) / span_s
""",
    ),
    Answer("03_roofline", "1", "without inputs and results", "passed", "mlp_us = 172.8"),
    Answer("03_roofline", "1", "the sum", "failed They overlap", "mlp_us = mlp_on(clock=sum)"),
    Answer("03_roofline", "1", "with its unit", "passed", "mlp_us = '0.174 ms'"),
    Answer(
        "03_roofline",
        "2",
        "by SymPy",
        "passed",
        """
def tokens_needed(ridge, s, g):
    (t,) = sp.solve(sp.Eq(att_intensity.subs({S: s, G: g}), ridge), T)
    return float(t)
""",
    ),
    Answer(
        "03_roofline",
        "2",
        "a long context",
        "failed That is the limit of a long context.",
        "def tokens_needed(ridge, s, g):\n    return ridge / g\n",
    ),
    Answer(
        "03_roofline",
        "3",
        "one cache for all",
        "failed Your test is right; the repair is not: it reads one cache for all.",
        """
def bound_test(implementation):
    assert implementation(4, 100, 10, 1, 1, 1) == 140
    assert implementation(4, 100, 10, 1000, 2, 5) == 800


def repaired_bound(batch, weights, cache, flops, bandwidth, peak):
    return max((weights + cache) / bandwidth, batch * flops / peak)
""",
    ),
    Answer(
        "03_roofline",
        "4",
        "the prefix beside the S tokens",
        "failed The prefix is among the S tokens.",
        """
def prefix_intensity(s, g, batch, shared):
    return batch * g * s / (shared + batch * s + batch * g)
""",
    ),
    Answer("04_kv_cache", "1", "three digits", "passed", "cache_gb = 42.9"),
    Answer("04_kv_cache", "1", "no KV heads", "failed And the KV heads?", "cache_gb = 5.3687"),
    Answer("04_kv_cache", "1", "no layers", "failed And the layers?", "cache_gb = 0.53687"),
    Answer(
        "04_kv_cache",
        "2",
        "no prompt",
        "failed With a cache: the prompt goes through",
        """
def loop_work(n_in, n_out):
    positions = n_in + n_out - 1
    return sum(range(n_in, n_in + n_out)), n_out - 1, positions * (positions + 1) // 2
""",
    ),
    *(
        Answer("04_kv_cache", "3", what, said, CACHE_TEST + source)
        for what, said, source in (
            (
                "one pass over all",
                "failed",
                """
def repaired_logits(model, tokens):
    return model([tokens], model.new_cache(capacity=len(tokens)))[0, -1]
""",
            ),
            (
                "all computed again",
                "failed",
                """
def repaired_logits(model, tokens):
    model([tokens[:-2]], model.new_cache(capacity=len(tokens)))
    return model([tokens], model.new_cache(capacity=len(tokens)))[0, -1]
""",
            ),
            (
                "two steps for the rest",
                "passed",
                """
def repaired_logits(model, tokens):
    cache = model.new_cache(capacity=len(tokens))
    model([tokens[:-2]], cache)
    model([tokens[-2:-1]], cache)
    return model([tokens[-1:]], cache)[0, -1]
""",
            ),
        )
    ),
    Answer(
        "04_kv_cache",
        "4",
        "fp8",
        "failed That is fp8",
        """
fits = [
    max_batch(big, memory, 8192, kv_dtype=name, workspace_bytes=10 * GB)
    for name in ("bf16", "fp8")
]
more_users = fits[1] - fits[0]
""",
    ),
    Answer(
        "01_generate",
        "2",
        "two slips at once",
        "failed Two slips. A token sees itself, too. The MLP has three matrices",
        """
def pass_flops(arch, t):
    query, key = arch.n_heads * arch.head_dim, arch.n_kv_heads * arch.head_dim
    layer = 2 * arch.d_model * (query + key) + 2 * arch.d_model * arch.d_ff
    matrices = arch.n_layers * layer + arch.d_model * arch.vocab_size
    return 2 * matrices * t + 4 * query * arch.n_layers * (t * (t - 1) // 2)
""",
    ),
    Answer(
        "01_generate",
        "4",
        "eos_id taken as 0",
        "failed Stop at the argument `eos_id`",
        loop("new[-1] == 0"),
    ),
    Answer("01_generate", "4", "no end at eos_id", "failed", loop("False")),
    Answer("01_generate", "4", "found by `in`", "passed", loop("eos_id in new")),
    Answer("05_throughput", "1", "rounded", "passed", "step_and_rate = [6.92, 4620]"),
    Answer(
        "05_throughput",
        "1",
        "one cache",
        "failed Every one of the 32 readers has a cache.",
        "step_and_rate = 3.458, 9253",
    ),
    Answer(
        "05_throughput",
        "2",
        "a float that is whole",
        "passed",
        """
def batch_within(max_step_s, weight_bytes, cache_bytes, bandwidth):
    return max(0, (max_step_s * bandwidth - weight_bytes) // cache_bytes)
""",
    ),
    Answer(
        "05_throughput",
        "2",
        "no floor at 0",
        "failed A limit below the time of the weights: 0.",
        """
def batch_within(max_step_s, weight_bytes, cache_bytes, bandwidth):
    return (max_step_s * bandwidth - weight_bytes) // cache_bytes
""",
    ),
    Answer(
        "05_throughput",
        "3",
        "one cache for all",
        "failed Your test is right; the repair is not: it reads one cache per step.",
        """
def rate_test(implementation):
    return implementation(6.0, 2, 10.0, 2.0) == 3 * (10 + 2 + 2)


def repaired_rate(tokens_per_s, batch, weight_bytes, cache_bytes):
    return tokens_per_s / batch * (weight_bytes + cache_bytes)
""",
    ),
    Answer(
        "05_throughput",
        "4",
        "always in use",
        "failed And they are in use half of the time?",
        "cheapest_million = million('B200', 6.69, utilization=1.0)",
    ),
    Answer(
        "05_throughput",
        "4",
        "in cents",
        "failed In dollars, not in cents.",
        "cheapest_million = 49.77",
    ),
    Answer(
        "07_flash",
        "1",
        "plain exponentials",
        "failed Right for small log-sums",
        """
def merge_two(a, log_a, b, log_b):
    with np.errstate(all="ignore"):
        w = np.exp([log_a, log_b])
        return (w[0] * a + w[1] * b) / w.sum(), np.log(w.sum())
""",
    ),
    Answer(
        "07_flash",
        "1",
        "by a softmax, and as a list",
        "passed",
        """
def merge_two(a, log_a, b, log_b):
    share = softmax(np.array([log_a, log_b]))
    return [share @ [a, b], np.logaddexp(log_a, log_b)]
""",
    ),
    Answer(
        "07_flash",
        "1",
        "the library's merge",
        "passed",
        """
def merge_two(a, log_a, b, log_b):
    both = merge(np.array([[a], [b]]), np.array([log_a, log_b]))
    return float(both[0]), np.logaddexp.reduce([log_a, log_b])
""",
    ),
    Answer(
        "07_flash",
        "1",
        "relative to the second",
        "failed",
        """
def merge_two(a, log_a, b, log_b):
    with np.errstate(all="ignore"):
        w = np.exp(log_a - log_b)
        return (w * a + b) / (w + 1), log_b + np.log1p(w)
""",
    ),
    Answer(
        "07_flash",
        "2",
        "values forgotten",
        "failed Keys and values",
        """
def tallest_block(shared, registers, head_dim, block_k):
    by_shared = (shared - 2 * block_k * head_dim) // (2 * head_dim)
    by_registers = registers // (4 * (head_dim + block_k))
    return max(0, min(by_shared, by_registers) // 16 * 16)
""",
    ),
    Answer(
        "07_flash",
        "2",
        "by trying",
        "passed",
        """
def tallest_block(shared, registers, head_dim, block_k):
    fits = 0
    for height in range(16, 4096, 16):
        loaded = 2 * head_dim * (height + 2 * block_k)
        if loaded <= shared and 4 * height * (block_k + head_dim) <= registers:
            fits = height
    return fits
""",
    ),
    Answer(
        "07_flash",
        "3",
        "a test of rising scores alone",
        "failed",
        """
def walk_test(implementation):
    s = np.arange(8.0)
    assert np.isclose(implementation(s, s, 2), softmax(s) @ s)
""",
    ),
    Answer(
        "07_flash",
        "4",
        "in pairs",
        "passed",
        """
def tile_kind(i, j, block, window):
    seen = [
        0 <= t - s < window
        for t in range(i * block, (i + 1) * block)
        for s in range(j * block, (j + 1) * block)
    ]
    return "whole" if all(seen) else "mask" if any(seen) else "skip"
""",
    ),
    Answer(
        "07_flash",
        "4",
        "one token too many",
        "failed A window of w counts",
        """
def tile_kind(i, j, block, window):
    low, high = (i - j) * block - block + 1, (i - j) * block + block - 1
    if high < 0 or low > window:
        return "skip"
    return "whole" if low >= 0 and high <= window else "mask"
""",
    ),
    Answer(
        "08_recurrent",
        "1",
        "by counting up",
        "passed",
        """
def pays_from(heads, size, kv_heads, head_dim):
    n = 0
    while n * 4 * kv_heads * head_dim <= heads * size**2 * 4:
        n += 1
    return n
""",
    ),
    Answer(
        "08_recurrent",
        "1",
        "keys alone",
        "failed A key and a value",
        """
def pays_from(heads, size, kv_heads, head_dim):
    return heads * size * size * 4 // (2 * kv_heads * head_dim) + 1
""",
    ),
    Answer(
        "08_recurrent",
        "2",
        "with einsum",
        "passed",
        """
def retention_step(M, q, k, v, decay):
    new = decay * M + np.einsum("i,j->ij", v, k)
    return [new, np.einsum("ij,j->i", new, q)]
""",
    ),
    Answer(
        "08_recurrent",
        "2",
        "what is new decays too",
        "failed Only what is old shrinks",
        """
def retention_step(M, q, k, v, decay):
    new = decay * (M + np.outer(v, k))
    return new, new @ q
""",
    ),
    Answer(
        "08_recurrent",
        "3",
        "a test without decay",
        "failed",
        """
def write_test(implementation):
    e = np.array([1.0, 0.0])
    new = implementation(np.zeros((1, 2)), e, np.array([5.0]), 1.0, 1.0)
    assert np.allclose(new @ e, 5)
""",
    ),
    Answer(
        "08_recurrent",
        "4",
        "a loop",
        "passed",
        """
def places_to_write(p, masked, threshold):
    best, found = None, []
    for i in np.flatnonzero(masked):
        if p[i].max() > threshold:
            found.append(i)
        if best is None or p[i].max() > p[best].max():
            best = i
    return found or [best]
""",
    ),
    Answer(
        "08_recurrent",
        "4",
        "all places",
        "failed Only places that are still masked",
        """
def places_to_write(p, masked, threshold):
    sure = p.max(axis=1)
    above = np.flatnonzero(sure > threshold)
    return above.tolist() if len(above) else [int(sure.argmax())]
""",
    ),
    Answer(
        "09_quantization",
        "1",
        "in fractions",
        "passed",
        """
from fractions import Fraction

def bits_per_weight(bits, group, scale_bits, zero_bits):
    return float(Fraction(bits * group + scale_bits + zero_bits, group))
""",
    ),
    Answer(
        "09_quantization",
        "1",
        "the whole part alone",
        "failed The share of a weight may be half a bit",
        """
def bits_per_weight(bits, group, scale_bits, zero_bits):
    return bits + (scale_bits + zero_bits) // group
""",
    ),
    Answer(
        "09_quantization",
        "2",
        "with max and min",
        "passed",
        """
def q4_0(x):
    top, bottom = x.max(), x.min()
    if top == bottom == 0:
        return 0.0, [8] * 32
    scale = (top if top > -bottom or x.argmax() < x.argmin() and top == -bottom else bottom) / -8
    return [scale, [min(15, int(np.floor(v / scale + 0.5)) + 8) for v in x]]
""",
    ),
    Answer(
        "09_quantization",
        "2",
        "absmax by 7",
        "failed So it is with codes from −7 to 7",
        """
def q4_0(x):
    scale = np.abs(x).max() / 7
    y = x / scale if scale else x
    return scale, np.minimum(np.floor(y + 0.5) + 8, 15)
""",
    ),
    Answer(
        "09_quantization",
        "3",
        "a test that never looks between 1.5 and 1.75",
        "failed",
        """
def scale_test(implementation):
    for peak in (1.0, 1.4, 1.8, 2.0):
        assert 3 < peak / implementation(np.array([peak, -0.1])) <= 6
""",
    ),
    Answer(
        "09_quantization",
        "4",
        "by counting up",
        "passed",
        """
def free_batch(bits, flops, bandwidth):
    n = 0
    while 2 * (n + 1) / flops <= bits / 8 / bandwidth:
        n += 1
    return n
""",
    ),
    Answer(
        "09_quantization",
        "4",
        "bits for bytes",
        "failed Bandwidth is in bytes",
        """
def free_batch(bits, flops, bandwidth):
    return int(bits * flops / (2 * bandwidth))
""",
    ),
    Answer(
        "10_pruning",
        "1",
        "matrix by matrix",
        "passed",
        """
def weights_left(arch, layers, heads, neurons):
    d, q = arch["d_model"], heads * arch["head_dim"]
    kv = arch["n_kv_heads"] * arch["head_dim"]
    matrices = [(d, q), (d, kv), (d, kv), (q, d), (d, neurons), (d, neurons), (neurons, d)]
    return sum(a * b for a, b in matrices) * layers + arch["vocab_size"] * d
""",
    ),
    Answer(
        "10_pruning",
        "1",
        "without the table",
        "failed And the table of the vocabulary?",
        """
def weights_left(arch, layers, heads, neurons):
    d, h = arch["d_model"], arch["head_dim"]
    return layers * d * (2 * h * (heads + arch["n_kv_heads"]) + 3 * neurons)
""",
    ),
    Answer(
        "10_pruning",
        "2",
        "with scipy",
        "passed",
        """
from scipy.special import softmax

def told(student, teacher, temperature):
    return temperature * (softmax(student / temperature) - softmax(teacher / temperature))
""",
    ),
    Answer(
        "10_pruning",
        "2",
        "without the factor",
        "failed The factor: 1/τ from inside, τ² from outside.",
        """
def told(student, teacher, temperature):
    def law(x):
        e = np.exp((x - x.max()) / temperature)
        return e / e.sum()
    return law(student) - law(teacher)
""",
    ),
    Answer(
        "10_pruning",
        "3",
        "a test with an even teacher",
        "failed",
        """
def loss_test(implementation):
    assert implementation(np.zeros((2, 4)), np.zeros((2, 4))) == 0
""",
    ),
    Answer(
        "10_pruning",
        "3",
        "by torch",
        "passed",
        """
import torch
from torch.nn.functional import kl_div

def by_torch(student, teacher):
    logs = (torch.tensor(x).log_softmax(-1) for x in (student, teacher))
    return kl_div(*logs, log_target=True, reduction="batchmean").item()

def loss_test(implementation):
    rng = np.random.default_rng(0)
    for shape in ((1, 5), (3, 5)):
        s, t = rng.normal(size=(2, *shape))
        assert np.isclose(implementation(s, t), by_torch(s, t))

def repaired_loss(student, teacher):
    return by_torch(student, teacher)
""",
    ),
    Answer(
        "10_pruning",
        "4",
        "in two steps",
        "passed",
        """
def times_cheaper(n_small, n_large, tokens, share):
    repair = share * tokens * (6 * n_small + 2 * n_large)
    return 6 * n_small * tokens / repair
""",
    ),
    Answer(
        "10_pruning",
        "4",
        "tokens alone",
        "failed The large model reads every token of the repair: 2 operations a weight.",
        """
def times_cheaper(n_small, n_large, tokens, share):
    return 1 / share
""",
    ),
    Answer(
        "13_drafts",
        "1",
        "by walking up",
        "passed",
        """
def tokens_of_tree(alpha, parents):
    def chance(i):
        branch = [i]
        while parents[branch[-1]] >= 0:
            branch.append(parents[branch[-1]])
        found = 1.0
        for depth, node in enumerate(branch[::-1]):
            rank = sum(parents[j] == parents[node] for j in range(node))
            found *= alpha[depth][rank]
        return found

    return 1 + sum(map(chance, range(len(parents))))
""",
    ),
    Answer(
        "13_drafts",
        "1",
        "without the target's token",
        "failed And the token of the target?",
        """
def tokens_of_tree(alpha, parents):
    chance, depth = [1.0], [-1]
    for i, parent in enumerate(parents):
        depth.append(depth[parent + 1] + 1)
        chance.append(chance[parent + 1] * alpha[depth[-1]][parents[:i].count(parent)])
    return sum(chance[1:])
""",
    ),
    Answer(
        "13_drafts",
        "2",
        "by exercise 1",
        "passed",
        """
def next_parent(alpha, parents):
    def depth(i):
        return -1 if i < 0 else depth(parents[i]) + 1

    best, most = -1, -1.0
    for node in range(-1, len(parents)):
        if depth(node) + 1 >= len(alpha) or parents.count(node) >= len(alpha[0]):
            continue
        more = expected_tree_tokens(np.array(alpha), [*parents, node])
        if more > most + 1e-12:
            best, most = node, more
    return best
""",
    ),
    Answer(
        "13_drafts",
        "2",
        "always at the end",
        "failed That makes a row. Compare with a second try further up.",
        """
def next_parent(alpha, parents):
    return len(parents) - 1
""",
    ),
    Answer(
        "13_drafts",
        "3",
        "a test of sums alone",
        "failed",
        """
def second_try_test(implementation):
    wanted, drawn = implementation(np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6]), 2)
    assert np.isclose(wanted.sum(), 1) and np.isclose(drawn.sum(), 1)
""",
    ),
    Answer(
        "13_drafts",
        "3",
        "by what comes out",
        "passed",
        """
def second_try_test(implementation):
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    wanted, drawn = implementation(p, q, 2)
    assert drawn[2] == 0 and np.allclose(drawn[:2], 0.5)
    assert wanted[2] == 0 and np.isclose(wanted[0], 3 * wanted[1])

def repaired_try(p, q, first):
    wanted, drawn = np.clip(p - q, 0, None), np.delete(q, first)
    drawn = drawn / (drawn.sum() or 1)
    return wanted / wanted.sum(), np.insert(drawn, first, 0.0)
""",
    ),
    Answer(
        "13_drafts",
        "4",
        "all at once",
        "passed",
        """
def how_far(alpha, n, pass_s, draft_s):
    gammas = np.arange(9)
    tokens = np.cumsum(alpha ** gammas)
    seconds = np.array([pass_s(n, int(g) + 1) + g * draft_s(n) for g in gammas])
    return int(np.argmax(tokens / seconds))
""",
    ),
    Answer(
        "13_drafts",
        "4",
        "most tokens a pass",
        "failed More tokens in a pass is not more tokens a second.",
        """
def how_far(alpha, n, pass_s, draft_s):
    return 8
""",
    ),
    *(
        Answer(
            "06_attention",
            "3",
            f"the window is always {what}",
            "failed",
            f"{WINDOW_TEST}\ndef may_see(query, key, window, sinks):\n"
            f"    return key <= query and (query - key < {what} or key < sinks)\n",
        )
        for what in ("3", "min(window, 3)", "max(window, 3)")
    ),
    Answer(
        "06_attention",
        "3",
        "a bool of NumPy",
        "passed",
        f"{WINDOW_TEST}\ndef may_see(query, key, window, sinks):\n    return np.bool_({SEEN})\n",
    ),
    Answer(
        "06_attention",
        "1",
        "as if no layer had a window",
        "failed That is without windows.",
        "hybrid_gib = 8 * 62 * 32_768 * 2 * 16 * 128 * 2 / 2**30",
    ),
    Answer(
        "06_attention",
        "4",
        "a sum over the layers that store",
        "passed",
        "def reach(windows, source):\n"
        "    return sum(w - 1 for i, w in enumerate(windows) if source[i] == i)\n",
    ),
    Answer(
        "11_sampling",
        "3",
        "a list of bools",
        "passed",
        f"""{NUCLEUS_TEST}
def repaired_nucleus(probabilities, p):
    kept, mass = set(), 0.0
    for i in sorted(range(len(probabilities)), key=lambda i: -probabilities[i]):
        if mass < p:
            kept.add(i)
        mass += probabilities[i]
    return [i in kept for i in range(len(probabilities))]
""",
    ),
    Answer(
        "11_sampling",
        "3",
        "ones and zeros",
        "failed Expected an array of bool",
        f"""{NUCLEUS_TEST}
def repaired_nucleus(probabilities, p):
    by_rank = np.argsort(-probabilities, kind="stable")
    mass = np.cumsum(probabilities[by_rank])
    keep = np.zeros(len(probabilities), dtype=int)
    keep[by_rank[mass - probabilities[by_rank] < p]] = 1
    return keep
""",
    ),
    Answer("11_sampling", "1", "rounded", "passed", "p_first = [0.615, 0.5]"),
    Answer(
        "11_sampling", "1", "not rescaled", "failed What stays is rescaled.", "p_first = 0.4, 0.4"
    ),
    Answer(
        "11_sampling",
        "2",
        "by a product of exponentials",
        "passed",
        """
def lowest_kept(top, temperature, min_p):
    return math.log(math.exp(top) * min_p**temperature)
""",
    ),
    Answer(
        "11_sampling",
        "2",
        "a logarithm to base 10",
        "failed",
        """
def lowest_kept(top, temperature, min_p):
    return top + temperature * np.log10(min_p)
""",
    ),
    Answer("11_sampling", "4", "three minutes", "failed", is_time("(1?[0-9]|2[0-3]):(00|30|59)")),
    Answer(
        "11_sampling",
        "5",
        "one after the other",
        "passed",
        """
def chance_of_success(n_tries, n_right, n):
    fail = 1
    for i in range(n):
        fail *= max(0, n_tries - n_right - i) / (n_tries - i)
    return 1 - fail
""",
    ),
    Answer(
        "11_sampling",
        "5",
        "with replacement",
        "failed That picks a try more than once",
        """
def chance_of_success(n_tries, n_right, n):
    return 1 - ((n_tries - n_right) / n_tries) ** n
""",
    ),
    Answer(
        "11_sampling", "4", "any separator", "failed", is_time("(1?[0-9]|2[0-3])[:.;][0-5][0-9]")
    ),
    Answer(
        "11_sampling", "4", "in other words", "passed", is_time("([0-9]|1[0-9]|2[0-3]):[0-5][0-9]")
    ),
    Answer(
        "12_speculative",
        "3",
        "<= for <",
        "failed `<`, not `<=`",
        one_round("rng.random() <= accept[token]"),
    ),
    Answer(
        "12_speculative",
        "3",
        "a number rescaled",
        "failed Rescaled, a kept number is uniform again",
        one_round("u < accept[token]", after="u = u / accept[token]", before="u = rng.random()"),
    ),
    Answer(
        "12_speculative",
        "3",
        "from 1 downwards",
        "passed",
        one_round("1 - rng.random() <= accept[token] - 1e-9"),
    ),
    Answer("14_batching", "1", "rounded", "failed Right, but rounded", "useful_share = 0.53"),
    Answer(
        "14_batching",
        "2",
        "step by step",
        "passed",
        """
def time_to_read(n_prompt, n_decoding, limit_s, base_s, token_s):
    chunk, seconds = int((limit_s - base_s) / token_s) - n_decoding, 0.0
    while n_prompt > 0:
        seconds += base_s + (min(chunk, n_prompt) + n_decoding) * token_s
        n_prompt -= chunk
    return seconds
""",
    ),
    Answer(
        "14_batching",
        "4",
        "step by step",
        "passed",
        """
def continuous_ends(lengths, places):
    ends, waiting, running, step = [0] * len(lengths), list(range(len(lengths))), {}, 0
    while waiting or running:
        while waiting and len(running) < places:
            i = waiting.pop(0)
            running[i] = lengths[i]
        step += 1
        for i in list(running):
            running[i] -= 1
            if running[i] == 0:
                ends[i] = step
                del running[i]
    return ends
""",
    ),
    Answer("14_batching", "3", "budget of one more", "failed", line(FULL, "n_prompt > left + 1")),
    Answer("14_batching", "3", "exactly full is refused", "failed", line(FULL, "n_prompt >= left")),
    Answer("14_batching", "3", "a place too many", "failed", line(FULL.replace(">=", ">"))),
    Answer("14_batching", "3", "a place too few", "failed", line(FULL.replace(">=", "+ 1 >="))),
    Answer("14_batching", "3", "at most three join", "failed", line(f"{FULL} or i > 2")),
    Answer(
        "14_batching",
        "3",
        "those who join take a token more",
        "failed",
        line(FULL, "n_prompt > left - len(joining)"),
    ),
    Answer(
        "14_batching",
        "3",
        "in other words",
        "passed",
        f"""{LINE_TEST}
def repaired_line(waiting, n_decoding, max_batch, budget):
    sums = np.cumsum([n_decoding, *waiting])[1:]
    return list(range(min(int((sums <= budget).sum()), max(0, max_batch - n_decoding))))
""",
    ),
    Answer(
        "15_paging",
        "3",
        "the sum of the text before",
        "failed",
        keys(PLAIN, "(sum(tokens[:end]), tuple(tokens[end - size : end]))"),
    ),
    Answer(
        "15_paging",
        "3",
        "the first token and two blocks",
        "failed",
        keys(PLAIN, "(end, tokens[0], tuple(tokens[max(0, end - 2 * size) : end]))"),
    ),
    Answer(
        "15_paging",
        "3",
        "the text before as a set",
        "failed",
        keys(PLAIN, "(end, frozenset(tokens[:end]), tuple(tokens[end - size : end]))"),
    ),
    Answer(
        "15_paging",
        "3",
        "a test with -1 and -2, and keys as text",
        "passed",
        keys("-1, -2, 3, 4, 5, 6", "','.join(map(str, tokens[:end]))"),
    ),
    Answer(
        "15_paging", "1", "as a list", "passed", "slot_empty_reserved_internal = [149, 8, 60, 1948]"
    ),
    Answer(
        "15_paging",
        "1",
        "all empty slots as internal",
        "failed You left out the 60",
        "slot_empty_reserved_internal = (149, 8, 60, 1988)",
    ),
    Answer(
        "15_paging",
        "2",
        "by a pool",
        "passed",
        """
def blocks_held(p, n, m, z):
    books = BlockPool(n * (p + m), z)
    books.allocate("0", [0] * p)
    for i in range(1, n):
        books.fork("0", str(i))
    for i in range(n):
        for _ in range(m):
            books.append(str(i), i)
    return books.usage().used
""",
    ),
    Answer(
        "15_paging",
        "2",
        "the prompt's last block kept by nobody's copy",
        "failed The last answer that writes",
        """
def blocks_held(p, n, m, z):
    full, rest = divmod(p, z)
    return full + (rest > 0) + n * -(-(rest + m) // z)
""",
    ),
    Answer(
        "15_paging",
        "4",
        "one way",
        "failed The cache moves twice",
        """
def break_even(kv_bytes, n_params, flops):
    return kv_bytes / (2 * n_params / flops)
""",
    ),
    Answer(
        "15_paging",
        "5",
        "with NumPy, as one of its integers",
        "passed",
        """
def pick(waiting, n_cached, n_prompt):
    return np.argmin(np.array(waiting) + n_prompt - np.array(n_cached))
""",
    ),
    Answer(
        "16_parallel",
        "1",
        "as two collectives",
        "passed",
        """
def sent_by_one(n_layers, d_model, batch, size, n):
    piece = d_model * batch * size / n
    scattered = gathered = (n - 1) * piece
    return sum(2 * (scattered + gathered) for layer in range(n_layers))
""",
    ),
    Answer(
        "16_parallel",
        "1",
        "all cards together",
        "failed That is what all cards send together.",
        """
def sent_by_one(n_layers, d_model, batch, size, n):
    return 2 * n_layers * parallel.all_reduce_bytes(batch * d_model * size, n)
""",
    ),
    Answer(
        "16_parallel",
        "2",
        "by trying all",
        "passed",
        """
def best_n(a, sums, latency):
    return min(range(1, 5000), key=lambda n: a / n + 2 * sums * latency * (n - 1))
""",
    ),
    Answer(
        "16_parallel",
        "2",
        "rounded",
        "failed Nearly: rounding the root is not comparing its neighbours",
        """
def best_n(a, sums, latency):
    return round((a / (2 * sums * latency)) ** 0.5)
""",
    ),
    Answer(
        "16_parallel",
        "3",
        "the first device adds it",
        "passed",
        f"""{MLP_TEST}
def repaired_mlp(x, up, up_bias, down, down_bias, n):
    parts = []
    for i in range(n):
        own = slice(i, None, n)
        h = np.maximum(x @ up[:, own] + up_bias[own], 0)
        parts.append(h @ down[own] + (down_bias if i == 0 else 0))
    return np.sum(parts, axis=0)
""",
    ),
    Answer(
        "16_parallel",
        "3",
        "a test on one device",
        "failed",
        MLP_TEST.replace("*given, 2", "*given, 1"),
    ),
    Answer(
        "16_parallel",
        "3",
        "the bias is dropped",
        "failed Now the last bias is missing",
        f"""{MLP_TEST}
def repaired_mlp(x, up, up_bias, down, down_bias, n):
    return np.maximum(x @ up + up_bias, 0) @ down
""",
    ),
    Answer(
        "16_parallel",
        "4",
        "with sorted pairs",
        "passed",
        """
def cards_per_copy(weights, cache, memory, bandwidth, sync, limit):
    plans = [(0.0, 0)]
    for n in (1, 2, 4, 8):
        wait = (n - 1) * sync
        by_memory = int((n * memory - weights) / cache)
        by_time = int(((limit - wait) * n * bandwidth - weights) / cache)
        readers = min(by_memory, by_time)
        if readers > 0:
            step = wait + (weights + cache * readers) / n / bandwidth
            plans.append((8 * readers / n / step, -n))
    return -sorted(plans)[-1][1]
""",
    ),
    Answer(
        "16_parallel",
        "4",
        "one wait for any number of cards",
        "failed `sync` counts for each card beyond the first",
        CARDS.replace("sync * (n - 1)", "sync * (n > 1)"),
    ),
    Answer(
        "16_parallel",
        "4",
        "parts of readers",
        "failed",
        CARDS.replace("room // cache", "room / cache"),
    ),
    Answer(
        "16_parallel",
        "4",
        "without the limit",
        "failed And the limit? A step must not take longer.",
        CARDS.replace("min(n * memory, (limit - wait) * n * bandwidth)", "n * memory"),
    ),
    Answer(
        "17_engine",
        "1",
        "through two equations",
        "passed",
        """
def ceiling(t_1, t_8):
    a, b = np.linalg.solve([[1, 1], [1, 8]], [t_1, t_8])
    return np.array([1 / b, a / b])
""",
    ),
    Answer(
        "17_engine",
        "1",
        "eight gaps",
        "failed From one to eight sequences are seven steps",
        """
def ceiling(t_1, t_8):
    b = (t_8 - t_1) / 8
    return 1 / b, (t_1 - b) / b
""",
    ),
    Answer(
        "17_engine",
        "2",
        "a test of four lives",
        "passed",
        LIVES_TEST
        + """
def repaired_run(pool, lives):
    got = {i: min(n_new, leaves_after or n_new) for i, (n_new, leaves_after) in lives.items()}
    for i in lives:
        pool.free(i)
    return got
""",
    ),
    Answer(
        "17_engine",
        "2",
        "freed for some",
        "failed",
        LIVES_TEST
        + """
def repaired_run(pool, lives):
    got = {i: min(n_new, leaves_after or n_new) for i, (n_new, leaves_after) in lives.items()}
    for i, (n_new, leaves_after) in lives.items():
        if leaves_after is None:
            pool.free(i)
    return got
""",
    ),
    Answer(
        "17_engine",
        "3",
        "with itertools",
        "passed",
        """
from itertools import takewhile


def best_setting(rates, kept, share):
    best = (None, 0)
    for name in kept:
        pairs = takewhile(lambda pair: pair[1] >= share, zip(rates, kept[name]))
        knee = max((rate for rate, _ in pairs), default=0)
        best = max(best, (name, knee), key=lambda pair: pair[1])
    return best
""",
    ),
    Answer(
        "17_engine",
        "3",
        "over the dip",
        "failed A promise that broke at a lower rate is broken.",
        """
def best_setting(rates, kept, share):
    best = (None, 0)
    for name, shares in kept.items():
        knee = max((r for r, s in zip(rates, shares) if s >= share), default=0)
        best = max(best, (name, knee), key=lambda pair: pair[1])
    return best
""",
    ),
    Answer(
        "17_engine",
        "4",
        "what is left, divided",
        "passed",
        """
def guesses(n_decoding, budget, most):
    left = max(0, budget - n_decoding)
    return min(left // n_decoding, most)
""",
    ),
    Answer(
        "17_engine",
        "4",
        "without its own token",
        "failed Each request has a token of its own in the pass.",
        """
def guesses(n_decoding, budget, most):
    return min(budget // n_decoding, most)
""",
    ),
]
