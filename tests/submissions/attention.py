"""Wrong solutions of the assignment on attention: what each is worth, and what it is told."""

WRONG = {
    "parts are added as they are": (
        {
            "merge-solution": """
def merge(a, b):
    return np.maximum(a[0], b[0]), a[1] + b[1], a[2] + b[2]
"""
        },
        70,
        "shrink the one with the lower peak",
    ),
    "heads are shared in turn": (
        {
            "state-solution": """
def part_state(q, k, v):
    heads = np.arange(len(q)) % len(k)
    scores = np.einsum("nh,nsh->ns", q, k[heads]) / np.sqrt(q.shape[1])
    peak = scores.max(axis=1)
    weights = np.exp(scores - peak[:, None])
    return peak, weights.sum(axis=1), np.einsum("ns,nsh->nh", weights, v[heads])


def result(state):
    return state[2] / state[1][:, None]
""",
            "pool-solution": """
def pool_heads(weight, n_heads, n_kv_heads):
    width = weight.shape[1]
    heads = weight.reshape(n_heads // n_kv_heads, n_kv_heads, -1, width)
    return heads.mean(axis=0).reshape(-1, width)


def kept_share(weight, n_heads, n_kv_heads):
    pooled = pool_heads(weight, n_heads, n_kv_heads)
    return float((pooled**2).sum() * (n_heads // n_kv_heads) / (weight**2).sum())
""",
        },
        70,
        "query head n reads KV head n // G",
    ),
    "sinks are the first positions of the sequence": (
        {
            "packed-solution": """
def packed_mask(lengths, window, sinks):
    text = np.repeat(np.arange(len(lengths)), lengths)
    place = np.arange(len(text))
    query, key = place[:, None], place[None, :]
    near = True if window is None else query - key < window
    return (key <= query) & ((text[:, None] == text) & near | (key < sinks))
"""
        },
        78,
        "the sink of the second text is in the first text",
    ),
    "the cache holds keys only": (
        {
            "bytes-solution": """
def cache_bytes(n_layers, period, window, n_kv_heads, head_dim, n_tokens, n_users):
    n_full = n_layers // period
    n_held = n_full * n_tokens + (n_layers - n_full) * min(window, n_tokens)
    return 2 * n_users * n_held * n_kv_heads * head_dim
"""
        },
        64,
        "a key and a value, of two bytes each",
    ),
}
