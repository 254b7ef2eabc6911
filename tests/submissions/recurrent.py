"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

WRONG = {
    "factors are quotients of products": (
        {
            "chunk": {
                "return left\n": "return np.tril(np.cumprod(decay)[:, None] / np.cumprod(decay))\n"
            }
        },
        79,
        "you divide two products, and 0/0 is not a number",
    ),
    "all differences are taken from the old matrix": (
        {
            "memory": {
                "for k, v in zip(keys, values, strict=True):": "if True:",
                "np.outer(v - memory @ k, k)": "(values - keys @ memory.T).T @ keys",
                "(n - 1) / size": "n / size",
                "math.floor(error * size) + 1": "math.floor(error * size)",
            }
        },
        69,
        "what the pairs before it have just written",
    ),
    "the state is forgotten, and a decay is a ratio": (
        {
            "ssm": {
                "[:n] + (C * state) @ powers[:, 1:]": "[:n]",
                "return s / 2 + root, s / 2 - root": "return y[1] / y[0], y[2] / y[1]",
            }
        },
        70,
        "a convolution alone does not know it",
    ),
}
