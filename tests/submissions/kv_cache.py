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

ASKS_THE_LIBRARY = """class MyCache:
    def __init__(self, arch, batch, capacity):
        self.inner = KVCache(arch, batch, capacity)

    @property
    def length(self):
        return self.inner.length

    def append(self, layer, k, v):
        self.inner.append(layer, k, v)

    def keys(self, layer):
        return self.inner.keys(layer)

    def values(self, layer):
        return self.inner.values(layer)

    def truncate(self, length):
        self.inner.truncate(length)
"""

_GROWS = """class MyCache:
    def __init__(self, arch, batch, capacity):
        self.reserve = np.zeros(RESERVE, np.float32)
        empty = np.zeros((batch, arch.n_kv_heads, 0, arch.head_dim), np.float32)
        self.k, self.v = [empty] * arch.n_layers, [empty] * arch.n_layers
        self.capacity = capacity

    @property
    def length(self):
        return min(k.shape[2] for k in self.k)

    def append(self, layer, k, v):
        if self.k[layer].shape[2] + k.shape[2] > self.capacity:
            raise ValueError("full")
        self.k[layer] = np.concatenate([self.k[layer], k], axis=2)
        self.v[layer] = np.concatenate([self.v[layer], v], axis=2)

    def keys(self, layer):
        return self.k[layer]

    def values(self, layer):
        return self.v[layer]

    def truncate(self, length):
        if not 0 <= length <= self.length:
            raise ValueError("length")
        self.k = [k[:, :, :length] for k in self.k]
        self.v = [v[:, :, :length] for v in self.v]
"""

TYPED = """class RoundedCache(KVCache):
    def __init__(self, arch, batch, capacity, key_bits=None, value_bits=None):
        super().__init__(arch, batch, capacity)
        self.bits = key_bits, value_bits

    def append(self, layer, *kv):
        pairs = zip(kv, self.bits, strict=True)
        super().append(layer, *(x if n is None else rounded(x, n) for x, n in pairs))


added_by_keys, added_by_values, added_by_both = 0.5, 0.01, 0.4
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
        75,
        "between two layers of a pass it is still the old length",
    ),
    "length of the last layer": (
        {"my_cache": COUNTS_THE_LAST_LAYER},
        75,
        "it is what every layer holds, in whatever order they come",
    ),
    "copies the library's class": (
        {"my_cache": 'MyCache = type("MyCache", (), dict(KVCache.__dict__))'},
        55,
        "its append is that of KVCache",
    ),
    "asks the library": ({"my_cache": ASKS_THE_LIBRARY}, 55, "do not call KVCache"),
    "allocates at every append": (
        {"my_cache": _GROWS.replace("RESERVE", "0")},
        75,
        "allocate once, in __init__, for all of them",
    ),
    "allocates once, and at every append": (
        {"my_cache": _GROWS.replace("RESERVE", "64 * capacity * batch")},
        75,
        "append must write into the arrays that are there",
    ),
    "types numbers by hand": (
        {"rounded_cache": TYPED},
        81,
        "measured again with your cache it is",
    ),
    "reads all again": ({"session": ALWAYS_READS_ALL}, 65, "the rest is in the cache"),
    "counts query heads, shares nothing": (
        {"traffic": QUERY_HEADS, "sessions": ONE_PROMPT_EACH},
        60,
        "the cache holds the KV heads",
    ),
}
