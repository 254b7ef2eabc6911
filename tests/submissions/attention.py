"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

WRONG = {
    "parts are added as they are": (
        {
            "merge-solution": {
                "a[1] * shrink_a + b[1] * shrink_b": "a[1] + b[1]",
                "a[2] * shrink_a[:, None] + b[2] * shrink_b[:, None]": "a[2] + b[2]",
            }
        },
        70,
        "shrink the one with the lower peak",
    ),
    "sinks are the first positions of the sequence": (
        {
            "packed-solution": {
                "np.concatenate([np.arange(n) for n in lengths])": "np.arange(len(text))",
                "(text[:, None] == text) & (key <= query) & (near | (key < sinks))": (
                    "(key <= query) & ((text[:, None] == text) & near | (key < sinks))"
                ),
            }
        },
        78,
        "the sink of the second text is in the first text",
    ),
    "the cache holds keys only": (
        {"bytes-solution": {"2 * 2 * n_users": "2 * n_users"}},
        64,
        "a key and a value, of two bytes each",
    ),
}
