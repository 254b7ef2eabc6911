"""Wrong solutions of the assignment on paging: what each is worth, and what it is told."""

_POOL = """
class Pool:
    def __init__(self, n_blocks, block_size):
        self.block_size, self.holders = block_size, [0] * n_blocks
        self.tables, self.lengths = {}, {}

    @property
    def n_free(self):
        return self.holders.count(0)

    def take(self):
        if not self.n_free:
            raise OutOfBlocks("no block is free")
        block = self.holders.index(0)
        self.holders[block] = 1
        return block

    def grow(self, request_id, n):
        table, length = self.tables.get(request_id, []), self.lengths.get(request_id, 0)
        n_new = -(-(length + n) // self.block_size) - len(table)
CHECK
        table += [self.take() for _ in range(n_new)]
        self.tables[request_id], self.lengths[request_id] = table, length + n
        return []

    def slots(self, request_id):
        table, size = self.tables[request_id], self.block_size
        return [table[i // size] * size + i % size for i in range(self.lengths[request_id])]

    def shrink(self, request_id, n_tokens):
        n_kept = -(-n_tokens // self.block_size)
        for block in self.tables[request_id][n_kept:]:
            self.holders[block] -= 1
        del self.tables[request_id][n_kept:]
        self.lengths[request_id] = n_tokens

    def free(self, request_id):
        self.shrink(request_id, 0)
        del self.tables[request_id], self.lengths[request_id]

    def fork(self, parent, child):
        self.tables[child] = list(self.tables[parent])
        self.lengths[child] = self.lengths[parent]
        for block in self.tables[child]:
            self.holders[block] += 1
"""
_CHECK = """
        if n_new > self.n_free:
            raise OutOfBlocks(f"{n_new} blocks needed, {self.n_free} free")
"""

WRONG = {
    "shared blocks are written in place": (
        {"pool-solution": _POOL.replace("CHECK", _CHECK)},
        70,
        "a block is copied when it has room, others hold it",
    ),
    "n_free is a method": (
        {"pool-solution": _POOL.replace("CHECK", _CHECK).replace("    @property\n", "")},
        45,
        "n_free is a number: put @property above it",
    ),
    "a grow that fails keeps what it took": (
        {"pool-solution": _POOL.replace("CHECK", "")},
        66,
        "free blocks after a grow that failed: got 0",
    ),
    "answers are not in the prefix cache": (
        {
            "chat-solution": """
def tokens_found(n_turns, n_system, n_user, n_answer, block_size, system_known):
    found = [n_system // block_size * block_size if system_known else 0]
    for turn in range(1, n_turns):
        known = n_system + turn * n_user + (turn - 1) * n_answer
        found.append(known // block_size * block_size)
    return found
"""
        },
        70,
        "answers are in the cache, too",
    ),
    "the cache writes slots one after another": (
        {
            "cache-solution": """
class SlotCache:
    def __init__(self, memory, slots):
        self.memory, self.slots = memory, slots
        self.lengths = [0] * memory.shape[1]

    @property
    def length(self):
        return min(self.lengths)

    def append(self, layer, k, v):
        start, n_new = self.lengths[layer], k.shape[2]
        places = (self.slots()[0] + np.arange(start, start + n_new)) % self.memory.shape[2]
        self.memory[0, layer, places] = k[0].swapaxes(0, 1)
        self.memory[1, layer, places] = v[0].swapaxes(0, 1)
        self.lengths[layer] += n_new

    def keys(self, layer):
        places = self.slots()[: self.lengths[layer]]
        return self.memory[0, layer, places].swapaxes(0, 1)[None]

    def values(self, layer):
        places = self.slots()[: self.lengths[layer]]
        return self.memory[1, layer, places].swapaxes(0, 1)[None]

    def truncate(self, n_tokens):
        self.lengths = [n_tokens] * len(self.lengths)
"""
        },
        75,
        "with scattered slots the logits differ",
    ),
}
