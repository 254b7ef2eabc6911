"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

WRONG = {
    "the largest code is 8, and bytes have no sign": (
        {
            "codes": {
                "2 ** (bits - 1) - 1": "2 ** (bits - 1)",
                ".ravel()[:n].astype(int)": ".ravel()[:n]",
            }
        },
        70,
        "in an array of uint8, 15 - 16 is 255",
    ),
    "zero is not among the numbers": (
        {
            "ends": {
                "min(x.min(), 0), max(x.max(), 0)": "x.min(), x.max()",
                "symmetric / ((high - low) / (2**bits - 1))": "2 * max(-low, high) / (high - low)",
            }
        },
        72,
        "the range has to be widened to 0",
    ),
    "sums of products wrap around": (
        {"product": {".astype(np.int32)": ".astype(np.int8)"}},
        65,
        "NumPy adds int8 in int8, and wraps around",
    ),
}
