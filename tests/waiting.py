"""What still waits for the second edition. The lists only get shorter."""

WAITING: frozenset[str] = frozenset()

# Chapters that show a stored run which is older than the code it measured: it must be taken again.
WAITING_FOR_RUNS = frozenset(
    {
        "03_roofline",
        "05_throughput",
        "06_attention",
        "11_sampling",
        "12_speculative",
        "14_batching",
        "15_paging",
    }
)
