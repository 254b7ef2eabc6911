"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

WRONG = {
    "shared blocks are written in place": (
        {"pool-solution": {"has_room and self.holders[table[-1]] > 1": "False"}},
        70,
        "a block is copied when it has room, others hold it",
    ),
    "n_free is a method": (
        {"pool-solution": {"    @property\n": ""}},
        45,
        "n_free is a number: put @property above it",
    ),
    "the cache writes slots one after another": (
        {
            "cache-solution": {
                "self.slots()[start:end]": (
                    "(self.slots()[0] + np.arange(start, end)) % self.memory.shape[2]"
                )
            }
        },
        75,
        "with scattered slots the logits differ",
    ),
}
