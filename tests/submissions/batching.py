"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

WRONG = {
    "the long prompt goes first": (
        {"plan-solution": {"[*decoding, *cut, *joining]": "[*running, *joining]"}},
        74,
        "those that decode come first",
    ),
    "the first gives its blocks back": (
        {"engine-solution": {"self.running.pop()": "self.running.pop(0)"}},
        77,
        "who came last gives its blocks back",
    ),
    "the full length is held from the start": (
        {
            "capacity-solution": {
                "np.ceil(tokens / block_size).mean()": "np.ceil((n_prompt + n_output) / block_size)"
            }
        },
        77,
        "take the mean over its life",
    ),
}
