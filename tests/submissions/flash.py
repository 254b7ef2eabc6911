"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

WRONG = {
    "all keys are loaded, and the mask does the rest": (
        {
            "attend": {
                "range(oldest // block_k * block_k, place[-1, 0] + 1, block_k)": (
                    "range(0, n_keys, block_k)"
                )
            }
        },
        77,
        "no query of the first block sees the keys from 4 on",
    ),
    "a row that has seen nothing yet": (
        {"attend": {"np.where(higher > -np.inf, higher, 0)": "higher"}},
        78,
        "-inf minus -inf is nan",
    ),
    "the peak is never late, and the sum has no end": (
        {
            "lazy": {
                "top > peak + limit": "top > peak",
                "min(math.log(largest_weight), math.log(largest_total / n_keys))": (
                    "math.log(largest_weight)"
                ),
            }
        },
        73,
        "only 9 exceeds the peak by more than the limit",
    ),
}
