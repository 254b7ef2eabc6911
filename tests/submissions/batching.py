"""Wrong solutions of the assignment on batching: what each is worth, and what it is told."""

_ENGINE = """
class Engine:
    def __init__(self, model, n_blocks, block_size, max_batch):
        self.model, self.max_batch = model, max_batch
        self.pool = BlockPool(n_blocks, block_size)
        self.cache = PagedCache(model.arch, self.pool)
        self.waiting, self.running, self.made = [], [], 0

    def submit(self, prompt_ids, params):
        rng = np.random.default_rng(params.seed)
        self.waiting.append([self.made, list(prompt_ids), len(prompt_ids), params, rng, None])
        self.made += 1
        return self.made - 1

    def step(self):
        size = self.pool.block_size
        while sum(len(r[1]) % size == 1 or size == 1 for r in self.running) > self.pool.n_free:
            one = self.running.pop(PREEMPTED)
            self.pool.free(one[0])
            self.waiting.insert(0, one)
        for r in self.running:
            self.pool.append(r[0], r[1][-1])
        while JOIN and self.waiting and len(self.running) < self.max_batch:
            r = self.waiting[0]
            if -(-len(r[1]) // size) > self.pool.n_free:
                break
            self.pool.allocate(r[0], r[1])
            r[5] = self.cache.sequence(r[0])
            self.running.append(self.waiting.pop(0))
        news = [r[1][r[5].length :] for r in self.running]
        logits = self.model.forward_ragged(news, [r[5] for r in self.running])
        finished = {}
        for r, after in zip(list(self.running), logits, strict=True):
            r[1].append(choose(after[-1], r[3], r[4]))
            if len(r[1]) - r[2] == r[3].max_tokens:
                finished[r[0]] = r[1][r[2] :]
                self.pool.free(r[0])
                self.running.remove(r)
        return finished
"""

WRONG = {
    "the long prompt goes first": (
        {
            "plan-solution": """
def plan_step(running, waiting, max_batch, budget):
    plan = []
    for name, unread in [*running, *waiting[: max_batch - len(running)]]:
        if budget:
            plan.append((name, min(unread, budget)))
            budget -= plan[-1][1]
    return plan
"""
        },
        74,
        "those that decode come first",
    ),
    "nobody joins while others run": (
        {
            "engine-solution": _ENGINE.replace("PREEMPTED", "-1").replace(
                "while JOIN and", "idle = not self.running\n        while idle and"
            )
        },
        81,
        "whoever is first in line takes a free place in the next step",
    ),
    "the first gives its blocks back": (
        {"engine-solution": _ENGINE.replace("PREEMPTED", "0").replace("JOIN and ", "")},
        77,
        "who came last gives its blocks back",
    ),
    "the full length is held from the start": (
        {
            "capacity-solution": """
def capacity(n_blocks, block_size, n_prompt, n_output, base_s, token_s):
    running = n_blocks / math.ceil((n_prompt + n_output) / block_size)
    return running, running / (n_output * (base_s + running * token_s))
"""
        },
        77,
        "take the mean over its life",
    ),
}
