"""Wrong solutions of the assignment on FlashAttention: what each is worth, and what it is told."""

WALK = """
def attend(q, n_keys, load, block_q, block_k, window):
    outputs, log_sums = [], []
    for i in range(0, len(q), block_q):
        rows = q[i : i + block_q] / np.sqrt(q.shape[1])
        place = n_keys - len(q) + i + np.arange(len(rows))[:, None]
        oldest = 0 if window is None else max(0, place[0, 0] - window + 1)
        peak, total, mixed = -np.inf, 0.0, 0.0
        for j in range(oldest // block_k * block_k, place[-1, 0] + 1, block_k):
            k, v = load(j, min(j + block_k, n_keys))
            distance = place - np.arange(j, j + len(k))
            seen = (distance >= 0) & (distance < (window or n_keys))
            tile = np.where(seen, rows @ k.T, -np.inf)
            higher = np.maximum(peak, tile.max(axis=1, keepdims=True))
            base = FINITE
            shrink, weights = np.exp(peak - base), np.exp(tile - base)
            total = total * shrink + weights.sum(axis=1, keepdims=True)
            mixed = mixed * shrink + weights @ v
            peak = higher
        outputs.append(mixed / total)
        log_sums.append((peak + np.log(total))[:, 0])
    return np.concatenate(outputs), np.concatenate(log_sums)
"""
FINITE = "np.where(higher > -np.inf, higher, 0)"
NEEDED = "range(oldest // block_k * block_k, place[-1, 0] + 1, block_k)"

WRONG = {
    "all keys are loaded, and the mask does the rest": (
        {"attend": WALK.replace("FINITE", FINITE).replace(NEEDED, "range(0, n_keys, block_k)")},
        77,
        "no query of the first block sees the keys from 4 on",
    ),
    "a row that has seen nothing yet": (
        {"attend": WALK.replace("FINITE", "higher")},
        78,
        "-inf minus -inf is nan",
    ),
    "the peak is never late, and the sum has no end": (
        {
            "lazy": """
def lazy_walk(scores, values, block, limit):
    peak, total, mixed, n_moved = -np.inf, 0.0, 0.0, -1
    for j in range(0, scores.shape[1], block):
        tile = scores[:, j : j + block]
        new = np.maximum(peak, tile.max(axis=1, keepdims=True))
        n_moved += bool((new > peak).any())
        shrink, weights = np.exp(peak - new), np.exp(tile - new)
        total = total * shrink + weights.sum(axis=1, keepdims=True)
        mixed = mixed * shrink + weights @ values[j : j + block]
        peak = new
    return mixed / total, n_moved


def safe_limit(n_keys, largest_weight, largest_total):
    return math.log(largest_weight)
"""
        },
        73,
        "only 9 exceeds the peak by more than the limit",
    ),
    "splits that gain nothing, and waves that are not full": (
        {
            "splits": """
def efficiency(n_jobs, n_processors):
    return n_jobs / (math.ceil(n_jobs / n_processors) * n_processors)


def choose_splits(n_jobs, n_processors, n_blocks, most):
    if n_jobs >= 0.8 * n_processors:
        return 1
    tried = range(1, min(most, n_processors, n_blocks) + 1)
    best = max(efficiency(n * n_jobs, n_processors) for n in tried)
    return min(n for n in tried if efficiency(n * n_jobs, n_processors) >= 0.85 * best)


def split_seconds(n_jobs, n_processors, n_blocks, n_splits, block_s, start_s, merge_s):
    n_waves = max(1, n_jobs * n_splits / n_processors)
    merging = merge_s * n_splits if n_splits > 1 else 0
    return n_waves * (start_s + block_s * math.ceil(n_blocks / n_splits)) + merging
"""
        },
        70,
        "the longest run has 2 blocks, as with 3 splits",
    ),
    "the future is read, and the tallest blocks are taken": (
        {
            "blocks": """
def causal_cost(n_q, n_k, head_dim, block_q, block_k):
    passes = math.ceil(n_q / block_q)
    return 4 * (n_q + passes * n_k) * head_dim, passes * math.ceil(n_k / block_k)


def best_blocks(n_q, n_k, head_dim, chip_bytes, bandwidth, tile_s):
    sizes = range(16, 513, 16)
    return max(a for a in sizes if on_chip(a, 16, head_dim) <= chip_bytes), 16
"""
        },
        70,
        "no query of the first block sees the second block of keys",
    ),
}
