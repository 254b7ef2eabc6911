"""Wrong solutions of the assignment on quantisation: what each gets, and what it is told."""

WRONG = {
    "the largest code is 8, and bytes have no sign": (
        {
            "codes": """
def quantized(x, bits, group):
    starts = np.arange(0, len(x), group)
    scales = np.maximum.reduceat(np.abs(x), starts) / 2 ** (bits - 1)
    each = np.repeat(scales, group)[: len(x)]
    return np.rint(x / np.where(each > 0, each, 1)).astype(int), scales


def restored(codes, scales, group):
    return codes * np.repeat(scales, group)[: len(codes)]


def packed(codes):
    halves = [int(code) & 15 for code in codes] + [0] * (len(codes) % 2)
    return [low + 16 * high for low, high in zip(halves[::2], halves[1::2])]


def unpacked(data, n):
    halves = np.stack([data & 15, data >> 4], axis=1).ravel()[:n]
    return np.where(halves > 7, halves - 16, halves)
"""
        },
        70,
        "in an array of uint8, 15 - 16 is 255",
    ),
    "groups of zeros and lone codes": (
        {
            "codes": """
def quantized(x, bits, group):
    parts = [x[i : i + group] for i in range(0, len(x), group)]
    scales = [np.abs(part).max() / (2 ** (bits - 1) - 1) for part in parts]
    codes = [np.rint(part / s) for part, s in zip(parts, scales)]
    return np.concatenate(codes), scales


def restored(codes, scales, group):
    return codes * np.repeat(scales, group)[: len(codes)]


def packed(codes):
    halves = [int(code) & 15 for code in codes] + [0] * (len(codes) % 2)
    return [high + 16 * low for low, high in zip(halves[::2], halves[1::2])]


def unpacked(data, n):
    halves = [half for byte in data.tolist() for half in (byte % 16, byte // 16)]
    return [half - 16 if half > 7 else half for half in halves[:n]]
"""
        },
        69,
        "a group of zeros has scale 0, and 0/0 is no code",
    ),
    "zero is not among the numbers": (
        {
            "ends": """
def between_ends(x, bits):
    low = x.min()
    scale = (x.max() - low) / (2**bits - 1)
    return np.rint((x - low) / (scale or 1)), scale, low


def with_zero(x, bits):
    codes, scale, low = between_ends(x, bits)
    scale = scale or 1.0
    zero = np.rint(-low / scale)
    return np.clip(np.rint(x / scale) + zero, 0, 2**bits - 1), scale, zero


def gain(low, high, bits):
    return (2 * max(-low, high) / (high - low)) ** 2
"""
        },
        72,
        "the range has to be widened to 0",
    ),
    "sums of products wrap around": (
        {
            "product": """
def int8_product(x, w):
    row = np.abs(x).max(axis=1, keepdims=True) / 127
    column = np.abs(w).max(axis=0, keepdims=True) / 127
    x_codes = np.rint(x / np.where(row > 0, row, 1)).astype(np.int8)
    w_codes = np.rint(w / np.where(column > 0, column, 1)).astype(np.int8)
    return (x_codes @ w_codes) * row * column


def kept_apart(x, w, threshold):
    apart = (np.abs(x) >= threshold).any(axis=0)
    exact = x[:, apart] @ w[apart]
    return exact if apart.all() else exact + int8_product(x[:, ~apart], w[~apart])


def highest_threshold(x, w, limit):
    right = x @ w
    for threshold in [math.inf, *sorted(np.abs(x).max(axis=0), reverse=True)]:
        error = np.linalg.norm(kept_apart(x, w, threshold) - right) / np.linalg.norm(right)
        if error <= limit:
            return threshold
"""
        },
        65,
        "NumPy adds int8 in int8, and wraps around",
    ),
    "large numbers apart, not features": (
        {
            "product": """
def int8_product(x, w):
    row = np.abs(x).max(axis=1, keepdims=True) / 127
    column = np.abs(w).max(axis=0, keepdims=True) / 127
    x_codes = np.rint(x / np.where(row > 0, row, 1))
    w_codes = np.rint(w / np.where(column > 0, column, 1))
    return (x_codes @ w_codes) * row * column


def kept_apart(x, w, threshold):
    tall = np.abs(x) >= threshold
    return np.where(tall, x, 0) @ w + int8_product(np.where(tall, 0, x), w)


def highest_threshold(x, w, limit):
    return np.abs(x).max()
"""
        },
        73,
        "a feature is kept apart for all tokens",
    ),
    "the greedy rule is taken for the best": (
        {
            "plan": """
def best_choice(costs, errors, budget):
    return greedy_choice(costs, errors, budget)


def fools_greedy():
    return [[1, 2, 3], [1, 2, 11]], [[9, 5, 4], [9, 6, 1]], 12
"""
        },
        65,
        "It stops where no single step fits any more",
    ),
}
