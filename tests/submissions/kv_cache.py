"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

WRONG = {
    "length of the first layer": (
        {"my_cache": {"min(self.filled)": "max(self.filled)"}},
        81,
        "between two layers of a pass it is still the old length",
    ),
    "types numbers by hand": (
        {
            "rounded_cache": {
                "mean_loss(RoundedCache(key_bits, value_bits)) - exact": (
                    "0.5 if value_bits is None else 0.01 if key_bits is None else 0.4"
                )
            }
        },
        81,
        "measured again with your cache it is",
    ),
    "counts query heads, shares nothing": (
        {"traffic": {"arch.n_kv_heads": "arch.n_heads"}, "sessions": {"if sharing:": "if False:"}},
        68,
        "the cache holds the KV heads",
    ),
}
