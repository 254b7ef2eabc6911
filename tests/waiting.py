"""The chapters that still wait for their second edition. The list only gets shorter."""

WAITING = frozenset(
    {
        "00_start",
        "02_metrics",
        "03_roofline",
        "06_attention",
        "11_sampling",
        "12_speculative",
        "14_batching",
    }
)
