"""Wrong solutions of the assignment on many devices: what each gets, and what it is told."""

WRONG = {
    "the second half of a ring adds, too": (
        {
            "ring": """
def piece_sent(device, round_index, n):
    return (device - round_index % (n - 1)) % n


def after_each_round(arrays):
    n = len(arrays)
    held, states = [list(array) for array in arrays], []
    for k in range(2 * (n - 1)):
        before = [list(array) for array in held]
        for d in range(n):
            piece = (d - k) % n
            held[(d + 1) % n][piece] += before[d][piece]
        states.append([list(array) for array in held])
    return states


def bytes_sent(piece_bytes):
    n = len(piece_bytes)
    return [2 * (n - 1) * sum(piece_bytes) / n] * n


def ring_pays_from(n, bandwidth, latency_s):
    return latency_s * bandwidth * (n - 2) / ((n - 1) * (1 - 2 / n)) if n > 2 else math.inf
"""
        },
        65,
        "Added, parts count twice",
    ),
    "every device adds the bias, and two devices are test enough": (
        {
            "cut": """
def cut(weights, n):
    gate, up, down, bias = weights
    columns = np.array_split(range(len(down)), n)
    return [(gate[:, own], up[:, own], down[own], bias) for own in columns]
""",
            "evidence": """
def evidence(name):
    random = np.random.default_rng(1)
    x, gate, up, down, bias = (
        random.normal(size=shape) for shape in ((2, 4), (4, 8), (4, 8), (8, 4), (4,))
    )
    weights = gate, up, down, bias
    if np.abs(VERSIONS[name](x, weights, 2)[0] - mlp(x, weights)).max() > 0.01:
        return x, weights, 2
    return None
""",
        },
        71,
        "the bias, so that it arrives n times",
    ),
    "neurons that are left over are lost": (
        {
            "cut": """
def cut(weights, n):
    gate, up, down, bias = weights
    width = len(down) // n
    parts = []
    for d in range(n):
        own = slice(d * width, (d + 1) * width)
        parts.append((gate[:, own], up[:, own], down[own], bias / n))
    return parts
"""
        },
        79,
        "8 of 10 neurons: the rest is lost",
    ),
    "heads and cache are divided evenly, whatever n is": (
        {
            "heads": """
def held(n_heads, n_kv_heads, n):
    group = n_heads // n_kv_heads
    parts = np.array_split(np.arange(n_heads), n)
    return [(part.tolist(), sorted({int(q) // group for q in part})) for part in parts]


def cache_bytes(n_heads, n_kv_heads, n, head_dim, n_layers, n_tokens):
    everywhere = 4 * n_kv_heads * head_dim * n_layers * n_tokens
    return everywhere / n, everywhere


def idle_in_attention(n_heads, n_kv_heads, n):
    return 1 - n_heads / (n * math.ceil(n_heads / n))
"""
        },
        69,
        "a KV head is not cut in two",
    ),
    "no stage is ever busy when a microbatch comes": (
        {
            "pipeline": """
def finish_times(stage_s, m, hop_s):
    ends = np.cumsum(stage_s) + hop_s * np.arange(len(stage_s))
    return [(ends + i * stage_s[0]).tolist() for i in range(m)]


def bubble(stage_s, finish):
    return 1 - len(finish) * sum(stage_s) / (len(stage_s) * finish[-1][-1])


def bubble_formula(p, m):
    return (p - 1) / m


def fewest_microbatches(p, most_idle):
    return max(1, math.ceil((p - 1) / most_idle))


def bubble_that_stays(stage_s):
    return 0.0
"""
        },
        72,
        "the bubble is a share of the whole time",
    ),
    "messages have no latency, and the largest n is the best": (
        {
            "planner": """
def step_s(model, card, n, batch, context):
    cache = 4 * model["n_kv_heads"] * model["head_dim"] * model["n_layers"] * context * batch
    ring = 2 * (n - 1) / n * 2 * batch * model["d_model"] / card["link"]
    return (model["weights"] + cache) / n / card["bandwidth"] + 2 * model["n_layers"] * ring


def largest_batch(model, card, n, context, max_token_s):
    cache = 4 * model["n_kv_heads"] * model["head_dim"] * model["n_layers"] * context
    return max(0, math.floor((n * card["memory"] - model["weights"]) / cache))


def cheapest(model, cards, context, max_token_s):
    name = min(cards, key=lambda name: cards[name]["dollars_per_hour"])
    n = 16
    batch = largest_batch(model, cards[name], n, context, max_token_s)
    seconds = step_s(model, cards[name], n, batch, context)
    return name, n, batch, 1e6 * n * cards[name]["dollars_per_hour"] / 3600 * seconds / batch
"""
        },
        70,
        "each round of the ring also waits for the latency",
    ),
    "the library's ring, heads and pipeline": (
        {
            "ring": """
from firsttoken.parallel import ring_piece, ring_rounds


def piece_sent(device, round_index, n):
    return (ring_piece(device, round_index, n) + 1) % n


def after_each_round(arrays):
    n = len(arrays)
    turned = [[array[(i + 1) % n] for i in range(n)] for array in arrays]
    return [
        [[row[(i - 1) % n] for i in range(n)] for row in one.held] for one in ring_rounds(turned)
    ]


def bytes_sent(piece_bytes):
    n = len(piece_bytes)
    return [
        sum(piece_bytes[piece_sent(d, k, n)] for k in range(2 * (n - 1))) for d in range(n)
    ]


def ring_pays_from(n, bandwidth, latency_s):
    if n == 2:
        return math.inf
    return (2 * n - 3) * latency_s * bandwidth / ((n - 1) * (1 - 2 / n))
""",
            "heads": """
from firsttoken.parallel import split_heads as held


def cache_bytes(n_heads, n_kv_heads, n, head_dim, n_layers, n_tokens):
    counts = [len(kvs) for _, kvs in held(n_heads, n_kv_heads, n)]
    unit = 4 * head_dim * n_layers * n_tokens
    return max(counts) * unit, sum(counts) * unit


def idle_in_attention(n_heads, n_kv_heads, n):
    return 1 - n_heads / (n * max(len(queries) for queries, _ in held(n_heads, n_kv_heads, n)))
""",
        },
        49,
        "answers use of firsttoken only what the setup cell imports",
    ),
}
