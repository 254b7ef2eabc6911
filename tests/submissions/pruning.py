"""Wrong solutions of the assignment on pruning: what each gets, and what it is told."""

WRONG = {
    "neurons are taken for rows": (
        {
            "cutting": """
def cut(gate, up, down, keep):
    return gate[keep], up[keep], down[: len(keep)]


def repaired(h, down, keep):
    some = h[:, keep]
    return (np.linalg.inv(some.T @ some) @ some.T @ h @ down.T).T


def fewest(h, down, order, limit):
    right = h @ down.T
    for n in range(1, len(order) + 1):
        keep = order[:n]
        error = np.linalg.norm(h[:, keep] @ repaired(h, down, keep).T - right)
        if error <= limit * np.linalg.norm(right):
            return n
"""
        },
        67,
        "its neurons are the columns",
    ),
    "nothing is repaired": (
        {
            "cutting": """
def cut(gate, up, down, keep):
    return gate[keep], up[keep], down[:, keep]


def repaired(h, down, keep):
    return down[:, keep]


def fewest(h, down, order, limit):
    right = h @ down.T
    for n in range(1, len(order) + 1):
        error = np.linalg.norm(h[:, order[:n]] @ down[:, order[:n]].T - right)
        if error <= limit * np.linalg.norm(right):
            return n
"""
        },
        68,
        "this is no nearer than the columns that were there",
    ),
    "token by token, and the best heads of all": (
        {
            "scores": """
def taylor(z, g):
    return np.abs(z * g).sum(axis=1).mean(axis=0)


def rise(z, g, h):
    return -g * z + h * z**2


def keep_heads(scores, n, groups):
    return np.sort(np.argsort(-scores, kind="stable")[:n])
"""
        },
        65,
        "a KV head must not lose all its query heads",
    ),
    "half of a row, and places without their four": (
        {
            "sparse": """
def mask_2_4(scores):
    n = scores.shape[1]
    order = np.argsort(-scores, axis=1, kind="stable")[:, : n // 2]
    mask = np.zeros(scores.shape, dtype=bool)
    np.put_along_axis(mask, order, True, axis=1)
    return mask


def wanda(w, x):
    return np.abs(w) * np.abs(x.mean(axis=0))


def compressed(w, mask):
    rows, columns = np.nonzero(mask)
    return w[rows, columns].reshape(len(w), -1), columns.reshape(len(w), -1) % 4


def product(values, places, x):
    return np.array([[row @ token[some] for row, some in zip(values, places)] for token in x])


def share(bits):
    return 0.5
"""
        },
        65,
        "the third and fourth value belong to the second four",
    ),
    "the stored tokens are all there is": (
        {
            "teacher": """
def stored(logits, k):
    ids = np.argsort(-logits, axis=1)[:, :k]
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs = weights / weights.sum(axis=1, keepdims=True)
    return ids, np.take_along_axis(probs, ids, axis=1)


def stored_loss(student, ids, probs):
    some = np.exp(np.take_along_axis(student, ids, axis=1))
    p, q = (x / x.sum(axis=1, keepdims=True) for x in (probs, some))
    return (p * np.log(p / q)).sum(axis=1).mean()


def hot_loss(student, teacher):
    return ((teacher - student) ** 2).mean() / 2
"""
        },
        71,
        "what is left is an event of its own",
    ),
    "a sure student has no logarithm": (
        {
            "teacher": """
def stored(logits, k):
    ids = np.argsort(logits, axis=1)[:, -k:]
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs = weights / weights.sum(axis=1, keepdims=True)
    return ids, np.take_along_axis(probs, ids, axis=1)


def stored_loss(student, ids, probs):
    weights = np.exp(student - student.max(axis=1, keepdims=True))
    q = np.take_along_axis(weights / weights.sum(axis=1, keepdims=True), ids, axis=1)
    p, q = (np.column_stack([x, np.maximum(1 - x.sum(axis=1), 0)]) for x in (probs, q))
    terms = np.where(p > 0, p * np.log(np.where(p > 0, p, 1) / q), 0)
    return terms.sum(axis=1).mean()


def hot_loss(student, teacher):
    return (teacher - student).var(axis=1).mean()
"""
        },
        65,
        "q is rounded to 0, its logarithm is not",
    ),
}
