"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

ONE_ROOF = """def step_time(kernels, card, launch_s):
    flops, moved = sum(k.flops for k in kernels), sum(k.bytes for k in kernels)
    return max(flops / card.peak(), moved / card.bandwidth) + launch_s * len(kernels)


def fused(kernels, i, between):
    both = kernels[i] + kernels[i + 1]
    return [*kernels[:i], Cost(both.flops, both.bytes - 2 * between), *kernels[i + 2 :]]
"""

FORGETS_THE_DECODERS = """\
def free_tokens(n_params, weight_bytes, cache_bytes, batch, peak, bandwidth):
    return (weight_bytes + cache_bytes) / bandwidth * peak / (2 * n_params)
"""

MEAN_TIME = """def best_rate(work, amount, repeats, clock=time.perf_counter):
    work()
    begin = clock()
    for _ in range(repeats):
        work()
    return amount * repeats / (clock() - begin)


copy_rate = flop_rate = 1.0
"""

ALL_EXPERTS = """def expert_intensity(batch, n_experts, n_active):
    return batch * n_active / n_experts


def ridge_batch(n_experts, n_active, ridge):
    return math.ceil(ridge * n_experts / n_active)
"""

NO_ADDITION = """def adapter_cost(m, k, n, r):
    return matmul_cost(m, k, r) + matmul_cost(m, r, n)
"""

WRONG = {
    "one roof for all kernels": (
        {"kernels": ONE_ROOF},
        75,
        "you overlapped the clocks of different kernels",
    ),
    "forgets the decoders, takes the mean": (
        {"free_tokens": FORGETS_THE_DECODERS, "best_rate": MEAN_TIME},
        60,
        "that is the mean; other programs only slow a run down",
    ),
    "reads all experts, adds for nothing": (
        {"experts": ALL_EXPERTS, "adapter": NO_ADDITION},
        56,
        "only those that are visited are read",
    ),
}
