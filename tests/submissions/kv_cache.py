"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

COUNTS_EVERY_APPEND = """class MyCache:
    def __init__(self, arch, batch, capacity):
        shape = (arch.n_layers, batch, arch.n_kv_heads, capacity, arch.head_dim)
        self.k, self.v = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self.filled, self.capacity = [0] * arch.n_layers, capacity

    @property
    def length(self):
        return max(self.filled)

    def append(self, layer, k, v):
        first = self.filled[layer]
        if first + k.shape[2] > self.capacity:
            raise ValueError("full")
        self.k[layer, :, :, first : first + k.shape[2]] = k
        self.v[layer, :, :, first : first + k.shape[2]] = v
        self.filled[layer] = first + k.shape[2]

    def keys(self, layer):
        return self.k[layer, :, :, : self.filled[layer]]

    def values(self, layer):
        return self.v[layer, :, :, : self.filled[layer]]

    def truncate(self, length):
        if not 0 <= length <= self.length:
            raise ValueError("length")
        self.filled = [length] * len(self.filled)
"""

COUNTS_THE_LAST_LAYER = COUNTS_EVERY_APPEND.replace("max(self.filled)", "self.filled[-1]")

TYPED = """def stored(k, v, key_bits, value_bits):
    pairs = zip((k, v), (key_bits, value_bits), strict=True)
    return tuple(x if n is None else rounded(x, n) for x, n in pairs)


def added(key_bits, value_bits):
    return {(bits, None): 0.5, (None, bits): 0.01}.get((key_bits, value_bits), 0.4)
"""

ALWAYS_READS_ALL = """class Session:
    def __init__(self, model, capacity):
        self.model, self.cache = model, model.new_cache(capacity=capacity)

    def read(self, ids):
        self.cache.truncate(0)
        return self.model([ids], self.cache)[0, -1]
"""

QUERY_HEADS = """def decode_traffic(arch, n_prompt, n_new):
    per_token = 2 * arch.n_layers * arch.n_heads * arch.head_dim * 2
    steps = range(1, n_new)
    return len(steps) * 2 * arch.n_params, sum(n_prompt + i for i in steps) * per_token


def even_length(arch):
    return arch.n_params / (2 * arch.n_layers * arch.n_heads * arch.head_dim)
"""

ONE_PROMPT_EACH = """def sessions(free_bytes, token_bytes, n_shared, n_own, sharing):
    return int(free_bytes // ((n_shared + n_own) * token_bytes))
"""

WRONG = {
    "length of the first layer": (
        {"my_cache": COUNTS_EVERY_APPEND},
        81,
        "between two layers of a pass it is still the old length",
    ),
    "length of the last layer": (
        {"my_cache": COUNTS_THE_LAST_LAYER},
        81,
        "it is what every layer holds, in whatever order they come",
    ),
    "types numbers by hand": (
        {"rounded_cache": TYPED},
        81,
        "measured again with your cache it is",
    ),
    "reads all again": ({"session": ALWAYS_READS_ALL}, 75, "the rest is in the cache"),
    "counts query heads, shares nothing": (
        {"traffic": QUERY_HEADS, "sessions": ONE_PROMPT_EACH},
        68,
        "the cache holds the KV heads",
    ),
}
