"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

WRONG = {
    "neurons that are left over are lost": (
        {
            "cut": {
                "np.array_split(np.arange(len(down)), n)": (
                    "np.arange(len(down) // n * n).reshape(n, -1)"
                )
            }
        },
        79,
        "8 of 10 neurons: the rest is lost",
    ),
    "the second half of a ring adds, too": (
        {
            "ring": {
                " if k < n - 1 else value": "",
                "sum(piece_bytes[piece_sent(d, k, n)] for k in range(2 * (n - 1)))": (
                    "2 * (n - 1) * sum(piece_bytes) / n"
                ),
            }
        },
        74,
        "Added, parts count twice",
    ),
    "no stage is ever busy when a microbatch comes": (
        {
            "pipeline": {
                "max(free[s], arrived) + seconds": "arrived + seconds",
                "(p - 1) / (m + p - 1)": "(p - 1) / m",
                "1 - sum(stage_s) / len(stage_s) / max(stage_s)": "0.0",
            }
        },
        72,
        "the bubble is a share of the whole time",
    ),
}
