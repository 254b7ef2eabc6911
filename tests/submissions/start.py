"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

TOKENS_FOR_FLOPS = """def day_of_overtaking(trained_on, first_day, growth):
    if growth < 1 and first_day / (1 - growth) <= trained_on:
        return None
    day, served = 0, 0.0
    while served < trained_on:
        served += first_day * growth**day
        day += 1
    return day
"""

SAME_PRICE = """def crossover(small, large):
    return max(0.0, (small[0] * small[1] - large[0] * large[1]) / (large[0] - small[0]))
"""

JOULES = """def bill(flops, peak, utilization, watts, dollars_per_hour, dollars_per_kwh):
    seconds = flops / (peak * utilization)
    joules = seconds * watts
    return seconds / 3600, joules, seconds / 3600 * dollars_per_hour + joules * dollars_per_kwh
"""

READS_ALL = """def reading_order(requires, goals, known):
    order = []

    def visit(stem):
        if stem not in order:
            for needed in requires[stem]:
                visit(needed)
            order.append(stem)

    for goal in goals:
        visit(goal)
    return [stem for stem in order if stem not in known]
"""

WRONG = {
    "a token costs the same in training": (
        {"overtaken": TOKENS_FOR_FLOPS, "crossover": SAME_PRICE},
        51,
        "but a token costs 6 FLOPs in training and 2 in service",
    ),
    "joules for kilowatt-hours": (
        {"bill": JOULES},
        73,
        "those are joules",
    ),
    "reads what only a known chapter needs": (
        {"reading_order": READS_ALL},
        69,
        "is not needed: only a known chapter builds on it",
    ),
}
