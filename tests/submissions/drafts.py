"""Wrong solutions of the assignment on drafts: what each gets, and what it is told."""

WRONG = {
    "a tree is read like a text": (
        {
            "layout": """
def sees(parents):
    return np.tri(len(parents), dtype=bool)


def positions(parents, n_text):
    return list(range(n_text, n_text + len(parents)))


def kept_rows(parents, last, n_text):
    rows = []
    while last >= 0:
        rows.insert(0, n_text + last)
        last = parents[last]
    return list(range(n_text)) + rows
"""
        },
        76,
        "siblings are for one place, and neither sees the other",
    ),
    "a tree is filled level by level": (
        {
            "trees": """
def tree_tokens(alpha, parents):
    chances, depths = [], []
    for i, parent in enumerate(parents):
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
        before = chances[parent] if parent >= 0 else 1
        chances.append(before * alpha[depths[-1], parents[:i].count(parent)])
    return 1 + sum(chances)


def best_parents(alpha, n):
    width = alpha.shape[1]
    return [i // width - 1 for i in range(n)]


def as_good_as_chain(alpha, n):
    chain = tree_tokens(alpha, list(range(-1, n - 1)))
    m = 1
    while m < n and tree_tokens(alpha, best_parents(alpha, m)) < chain - 1e-9:
        m += 1
    return m
"""
        },
        71,
        "A guess behind an unlikely one is worth less",
    ),
    "the draft stays as it was": (
        {
            "siblings": """
def sibling_rule(target, draft, tokens):
    keep = []
    for token in tokens:
        accept, target = acceptance_rule(target, draft)
        keep.append(accept[token])
    return keep, target
""",
            "evidence": """
def evidence(name):
    return None
""",
        },
        68,
        "the second sibling was drawn from the draft without the first",
    ),
    "every sibling is measured by the target": (
        {
            "siblings": """
def sibling_rule(target, draft, tokens):
    keep, left = [], draft.copy()
    for token in tokens:
        accept, rest = acceptance_rule(target, left / left.sum())
        keep.append(accept[token])
        left[token] = 0
    return keep, rest
"""
        },
        74,
        "must be measured by what is still missing",
    ),
    "what is not typical never comes out": (
        {
            "thumb": """
def typical(target, epsilon, delta):
    entropy = -np.sum(target * np.log2(target, where=target > 0, out=np.zeros_like(target)))
    return target > min(epsilon, delta * np.exp(-entropy))


def produces(target, draft, epsilon, delta):
    kept = draft * typical(target, epsilon, delta)
    return kept / kept.sum() if kept.any() else target


def farthest(target, epsilon, delta):
    return 1 - target.max()
"""
        },
        72,
        "a token of the target comes in its place",
    ),
    "all guesses were judged, and more are tried while it pays": (
        {
            "controller": """
def alpha_of(rounds):
    return sum(accepted for _, accepted in rounds) / sum(drafted for drafted, _ in rounds)


def choose_gamma(alpha, n, cost, max_gamma):
    gamma, best = 0, 1 / cost(n, 0)
    while gamma < max_gamma:
        goodput = expected_tokens(alpha, gamma + 1) / cost(n, gamma + 1)
        if goodput <= best:
            break
        gamma, best = gamma + 1, goodput
    return gamma


def stops_at(alpha, cost, max_batch, max_gamma):
    for n in range(1, max_batch + 1):
        if choose_gamma(alpha, n, cost, max_gamma) == 0:
            return n
    return None
"""
        },
        70,
        "the goodput may fall and rise again",
    ),
    "the library's mask and tree": (
        {
            "layout": """
from firsttoken.drafts import tree_mask as sees


def positions(parents, n_text):
    return [n_text + int(row.sum()) - 1 for row in sees(parents)]


def kept_rows(parents, last, n_text):
    branch = np.flatnonzero(sees(parents)[last]) if last >= 0 else []
    return [*range(n_text), *(n_text + i for i in branch)]
"""
        },
        70,
        "answers use of firsttoken only what the setup cell imports",
    ),
}
