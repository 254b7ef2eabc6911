"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

WRONG = {
    "neurons are taken for rows": (
        {"cutting": {"up[keep], down[:, keep]": "up[keep], down[: len(keep)]"}},
        77,
        "its neurons are the columns",
    ),
    "token by token, and the best heads of all": (
        {
            "scores": {
                "np.abs((z * g).sum(axis=1))": "np.abs(z * g).sum(axis=1)",
                "h * z**2 / 2": "h * z**2",
                "return kept": 'return np.sort(np.argsort(-scores, kind="stable")[:n])',
            }
        },
        65,
        "a KV head must not lose all its query heads",
    ),
    "the stored tokens are all there is": (
        {
            "teacher": {
                "np.column_stack([q, log_sum(others) - whole])": "q - log_sum(q)[:, None]",
                "np.column_stack([probs, np.maximum(1 - probs.sum(axis=1), 0)])": (
                    "probs / probs.sum(axis=1, keepdims=True)"
                ),
                "(teacher - student).var(axis=1)": "((teacher - student) ** 2)",
            }
        },
        71,
        "what is left is an event of its own",
    ),
}
