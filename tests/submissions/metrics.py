"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

MEAN_OF_PERCENTILES = """def fleet_percentile(edges, histograms, p):
    found = []
    for counts in histograms:
        if sum(counts):
            rank = math.ceil(round(p * sum(counts) / 100, 9))
            found.append(edges[int(np.searchsorted(np.cumsum(counts), rank))])
    return float(np.mean(found))
"""

WHO_CAME_INSIDE = """def mean_in_service(spans, start, end):
    return sum(left - came for came, left in spans if start <= came < end) / (end - start)
"""

TAKES_TURNS = {
    "arrival, service in zip(arrivals, services, strict=True)": (
        "i, (arrival, service) in enumerate(zip(arrivals, services))"
    ),
    "heapq.heappop(free)": "free[i % n_servers]",
    "heapq.heappush(free, begin + service)": "free[i % n_servers] = begin + service",
}

BELOW_ZERO = """def highest_rate(service_s, limit_s, share):
    return 1 / service_s + math.log(share) / limit_s
"""

WRONG = {
    "takes entries for tokens": (
        {"read_log": {"[time] * n_tokens": "[time]"}},
        73,
        "you took entries for tokens",
    ),
    "mean of percentiles, stays of who came": (
        {"fleet_percentile": MEAN_OF_PERCENTILES, "mean_in_service": WHO_CAME_INSIDE},
        66,
        "a mean of percentiles is no percentile",
    ),
    "servers take turns, share is late": (
        {"waits": TAKES_TURNS, "highest_rate": BELOW_ZERO},
        57,
        "you gave the servers turns",
    ),
}
