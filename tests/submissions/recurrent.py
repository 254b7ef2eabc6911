"""Wrong solutions of the assignment on recurrent layers: what each gets, and what it is told."""

WRONG = {
    "factors are quotients of products": (
        {
            "chunk": """
def passing(decay):
    since_start = np.cumprod(decay)
    return np.tril(since_start[:, None] / since_start)


def read_chunk(state, q, k, v, decay):
    left, since_start = passing(decay), np.cumprod(decay)
    outputs = (left * (q @ k.T)) @ v + since_start[:, None] * (q @ state.T)
    return since_start[-1] * state + (left[-1, :, None] * v).T @ k, outputs
"""
        },
        79,
        "you divide two products, and 0/0 is not a number",
    ),
    "earlier chunks do not shrink": (
        {
            "chunk": """
def passing(decay):
    left = np.eye(len(decay))
    for t in range(1, len(decay)):
        left[t, :t] = decay[t] * left[t - 1, :t]
    return left


def read_chunk(state, q, k, v, decay):
    left = passing(decay)
    outputs = (left * (q @ k.T)) @ v + q @ state.T
    return state + (left[-1, :, None] * v).T @ k, outputs
"""
        },
        80,
        "what earlier chunks wrote shrinks within this chunk, too",
    ),
    "all differences are taken from the old matrix": (
        {
            "memory": """
def sum_memory(keys, values):
    return values.T @ keys


def delta_memory(keys, values, passes):
    memory = np.zeros((values.shape[1], keys.shape[1]))
    for _ in range(passes):
        memory = memory + (values - keys @ memory.T).T @ keys
    return memory


def expected_error(n, size):
    return n / size


def most_pairs(size, error):
    return math.floor(error * size)
"""
        },
        69,
        "what the pairs before it have just written",
    ),
    "the state is forgotten, and a decay is a ratio": (
        {
            "ssm": """
def response(A, B, C, n):
    return np.array([(C * A**t * B).sum() for t in range(n)])


def read_block(A, B, C, state, x):
    outputs = np.convolve(x, response(A, B, C, len(x)))[: len(x)]
    for value in x:
        state = A * state + B * value
    return state, outputs


def decays(y):
    return y[1] / y[0], y[2] / y[1]
"""
        },
        70,
        "a convolution alone does not know it",
    ),
    "blocks and snapshots each by themselves": (
        {
            "snapshots": """
def hit(n_prompt, shared, block, interval):
    most = min(shared, n_prompt - 1)
    return min(most // block * block, most // interval * interval)


def stored_bytes(n_tokens, block, interval, token_bytes, state_bytes):
    return n_tokens // block * block * token_bytes + n_tokens // interval * state_bytes


def best_interval(requests, n_tokens, block, token_bytes, state_bytes, budget_bytes):
    room = budget_bytes - n_tokens // block * block * token_bytes
    found = range(1, n_tokens + 1)
    fits = [n for n in found if n_tokens // n * state_bytes <= room]
    return min(fits, key=lambda n: -sum(hit(*pair, block, n) for pair in requests), default=None)
"""
        },
        70,
        "blocks of 16 end at 112 and at 128",
    ),
}
