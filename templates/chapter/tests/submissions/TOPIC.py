"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

OVERLAP = """def cross_agreement(p, q):
    return float(np.minimum(p, q).sum())


def most_agreeing(p):
    best = np.zeros(len(p))
    best[int(np.argmax(p))] = 1
    return best
"""

ITSELF = """def cross_agreement(p, q):
    return float(np.dot(p, q))


def most_agreeing(p):
    return np.asarray(p)
"""

WITH_ITSELF = """def share_agreeing(drawn):
    return float(np.mean([[x == y for x in drawn] for y in drawn]))


def draws_needed(a, error):
    return max(1, int(np.ceil(a * (1 - a) / error**2)))
"""

NOT_SQUARED = """def share_agreeing(drawn):
    n = len(drawn)
    return sum(drawn[i] == drawn[j] for i in range(n) for j in range(i)) / (n * (n - 1) / 2)


def draws_needed(a, error):
    return max(1, int(np.ceil(a * (1 - a) / error)))
"""

WRONG = {
    "takes the overlap": ({"models": OVERLAP}, 65, "that is the overlap of the two"),
    "takes itself for the best": (
        {"models": ITSELF},
        65,
        "the same distribution is not the best",
    ),
    "pairs a draw with itself": ({"draws": WITH_ITSELF}, 60, "a draw makes no pair with itself"),
    "does not square the error": ({"draws": NOT_SQUARED}, 65, "`error` has to be squared"),
}
