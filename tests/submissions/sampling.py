"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

ALL_AT_ONCE = """
def distribution_in_order(logits, steps):
    apply = {"min_p": keep_min_p, "top_k": keep_top_k, "top_p": keep_top_p}
    logits = apply_temperature(logits, dict(steps).get("temperature", 1))
    kept = np.ones(len(logits), dtype=bool)
    for name, value in steps:
        if name != "temperature":
            kept &= np.isfinite(apply[name](logits, value))
    return softmax(np.where(kept, logits, -np.inf))
"""
WRONG = {
    "every filter looks at the whole distribution": (
        {"order-solution": ALL_AT_ONCE},
        73,
        "Each step must see what the one before it left",
    ),
    "the token that crosses is dropped": (
        {"typical-solution": {"before < mass - 1e-12": "before + distribution[order] <= mass"}},
        74,
        "the token that crosses the mass belongs to the set",
    ),
    "one generator for all requests": (
        {
            "batch-solution": {
                "self.requests = {}": "self.requests, self.rng = {}, None",
                "rng = np.": "rng = self.rng = self.rng or np.",
            }
        },
        77,
        "each request needs random numbers of its own",
    ),
}
