"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

ENTRIES_FOR_TOKENS = """def read_log(events):
    found = {}
    for request in {e[1] for e in events if e[2] == "end"}:
        mine = [e for e in events if e[1] == request]
        times = [e[0] for e in mine if e[2] == "tokens"]
        gaps = np.diff(times)
        tpot, longest = (gaps.mean(), gaps.max()) if len(gaps) else (None, None)
        found[request] = (times[0] - mine[0][0], tpot, longest, times[-1] - mine[0][0])
    return found
"""

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

TAKES_TURNS = """def waits(arrivals, services, n_servers):
    free, waited = [0.0] * n_servers, []
    for i, (arrival, service) in enumerate(zip(arrivals, services)):
        begin = max(arrival, free[i % n_servers])
        free[i % n_servers] = begin + service
        waited.append(begin - arrival)
    return waited
"""

BELOW_ZERO = """def highest_rate(service_s, limit_s, share):
    return 1 / service_s + math.log(share) / limit_s
"""

WRONG = {
    "takes entries for tokens": (
        {"read_log": ENTRIES_FOR_TOKENS},
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
