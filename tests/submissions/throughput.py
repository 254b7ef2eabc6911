"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

THROUGH_THE_ORIGIN = """def fit_line(x, y):
    x, y = np.asarray(x, float), np.asarray(y, float)
    return 0.0, float((x * y).sum() / (x * x).sum())
"""

WRONG = {
    "pads to the longest text, keeps beaten points": (
        {
            "ragged_step": {"[n * token_bytes": "[max(lengths) * token_bytes"},
            "pareto_front": {
                ", key=lambda point: (point[0], -point[1])": "",
                "rate > front": "rate >= front",
            },
        },
        62,
        "a cache of the length of their own text, not of the longest",
    ),
    "the batch shares a prefill": (
        {
            "shared_machine": {
                "1 / (prefill_s + n_steps * step_s / batch)": (
                    "batch / (prefill_s + n_steps * step_s)"
                ),
                "batch / rate / n_steps": "step_s",
            }
        },
        65,
        "prefills run one at a time",
    ),
    "all in proportion": (
        {
            "batch_for_share": {"share / (1 - share)": "share"},
            "fit_line": THROUGH_THE_ORIGIN,
        },
        55,
        "that line goes through the origin",
    ),
}
