"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

ALL_EXPERTS = """def expert_intensity(batch, n_experts, n_active):
    return batch * n_active / n_experts


def ridge_batch(n_experts, n_active, ridge):
    return math.ceil(ridge * n_experts / n_active)
"""

WRONG = {
    "one roof for all kernels": (
        {
            "kernels": {
                "for kernel in kernels": "for kernel in [sum(kernels[1:], kernels[0])]",
                "        launch_s + max": "        launch_s * len(kernels) + max",
            }
        },
        75,
        "you overlapped the clocks of different kernels",
    ),
    "forgets the decoders, takes the mean": (
        {
            "free_tokens": {" - batch)": ")"},
            "best_rate": {"amount / min(times)": "amount * repeats / sum(times)"},
        },
        60,
        "that is the mean; other programs only slow a run down",
    ),
    "reads all experts, adds for nothing": (
        {"experts": ALL_EXPERTS, "adapter": {" + Cost(m * n, 2 * m * n)": ""}},
        56,
        "only those that are visited are read",
    ),
}
