"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

PADDED = """def ragged_step(weight_bytes, token_bytes, lengths, bandwidth):
    padded = max(lengths) * token_bytes / bandwidth
    step_s = weight_bytes / bandwidth + padded * len(lengths)
    return step_s, len(lengths) / step_s, [padded] * len(lengths)
"""

ONLY_SORTED_BY_TIME = """def pareto_front(points):
    front = []
    for step_s, rate in sorted(set(points)):
        if not front or rate >= front[-1][1]:
            front.append((step_s, rate))
    return front
"""

IN_PROPORTION = """def batch_for_share(share, weight_bytes, cache_bytes):
    return share * weight_bytes / cache_bytes
"""

NO_PREFILLS_BETWEEN = """def shared_machine(prefill_s, step_s, batch, n_output):
    return batch / (prefill_s + (n_output - 1) * step_s), step_s
"""

THROUGH_THE_ORIGIN = """def fit_line(x, y):
    x, y = np.asarray(x, float), np.asarray(y, float)
    return 0.0, float((x * y).sum() / (x * x).sum())
"""

WRONG = {
    "pads to the longest text, keeps beaten points": (
        {"ragged_step": PADDED, "pareto_front": ONLY_SORTED_BY_TIME},
        62,
        "a cache of the length of their own text, not of the longest",
    ),
    "the batch shares a prefill": (
        {"shared_machine": NO_PREFILLS_BETWEEN},
        65,
        "prefills run one at a time",
    ),
    "all in proportion": (
        {"batch_for_share": IN_PROPORTION, "fit_line": THROUGH_THE_ORIGIN},
        55,
        "that line goes through the origin",
    ),
}
