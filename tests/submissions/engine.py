"""Wrong solutions of the assignment on the engine: what each gets, and what it is told."""

_FIRST_TOKENS = """
def first_tokens(decoding, unread, budget, base_s, token_s):
    left, found, now_s = list(unread), [math.inf] * len(unread), 0.0
    while decoding < budget and any(left):
        room, parts = budget - decoding, []
        for n in left:
            parts.append(min(n, room))
            room -= parts[-1]
        now_s += base_s + token_s * (budget - room)
        for i, part in enumerate(parts):
            if part and part == left[i]:
                found[i] = now_s
                decoding += 1
            left[i] -= part
    return found
"""

WRONG = {
    "a mean over steps, and every text that is read gives a token": (
        {
            "metrics": """
def mean_places(records):
    return np.mean([len(r.prefills) + len(r.decodes) for r in records])


def new_tokens(records, n_prompt):
    return [len(r.prefills) + len(r.decodes) for r in records]


def waited_share(records, request, arrival_s):
    own = [r for r in records if request in [*r.decodes, *(p[0] for p in r.prefills)]]
    return (own[0].start_s - arrival_s) / (own[-1].end_s - arrival_s)
"""
        },
        61,
        "that is the mean over steps",
    ),
    "whoever reads again has its first token again": (
        {
            "metrics": """
def mean_places(records):
    lasted = np.array([r.end_s - r.start_s for r in records])
    return lasted @ [len(r.prefills) + len(r.decodes) for r in records] / lasted.sum()


def new_tokens(records, n_prompt):
    return [
        len(r.decodes) + sum(r.kept) + sum(new + n == n_prompt[i] for i, new, n in r.prefills)
        for r in records
    ]


def waited_share(records, request, arrival_s):
    own = [r for r in records if request in [*r.decodes, *(p[0] for p in r.prefills)]]
    return 1 - sum(r.end_s - r.start_s for r in own) / (own[-1].end_s - arrival_s)
"""
        },
        72,
        "reads its prompt of 3 and its first token again",
    ),
    "all guesses count, and prompts are forgotten": (
        {
            "guessing": """
def alphas(records, most):
    found = []
    for k in range(most):
        kept = [n > k for r in records if r.gamma > k for n in r.kept]
        found.append(np.mean(kept) if kept else found[-1] if found else 0.0)
    return found


def guesses(n_decoding, unread, budget, chunk, alphas, round_s):
    def rate(g):
        expected = 1 + sum(math.prod(alphas[:k]) for k in range(1, g + 1))
        return expected / round_s(n_decoding * (g + 1), g)

    most = min(len(alphas), budget // n_decoding - 1)
    return max(range(max(most, 0) + 1), key=rate)
"""
        },
        73,
        "2 of the 5 were never judged",
    ),
    "only the newcomer's own deadline is looked at": (
        {
            "admission": _FIRST_TOKENS
            + """

def admits(now_s, decoding, line, new, budget, base_s, token_s):
    unread = [n for n, _ in line] + [new[0]]
    return now_s + first_tokens(decoding, unread, budget, base_s, token_s)[-1] <= new[1] + 1e-9
"""
        },
        71,
        "until a long one comes into the same step",
    ),
    "a fifth of the time is kept in reserve": (
        {
            "admission": _FIRST_TOKENS
            + """

def admits(now_s, decoding, line, new, budget, base_s, token_s):
    times = first_tokens(decoding, [n for n, _ in [*line, new]], budget, base_s, token_s)
    return all(now_s + 1.2 * t <= pair[1] for t, pair in zip(times, [*line, new]))
"""
        },
        76,
        "a step of 0.044 s. Promised are 0.05 s: let in all three",
    ),
    "a prompt is looked at as if it were alone, and nobody is refused": (
        {
            "admission": """
def first_tokens(decoding, unread, budget, base_s, token_s):
    found, now_s = [], 0.0
    for n in unread:
        n_steps = math.ceil(n / (budget - decoding)) if decoding < budget else math.inf
        if n_steps < math.inf:
            now_s += n_steps * (base_s + token_s * decoding) + n * token_s
        else:
            now_s = math.inf
        found.append(now_s)
    return found


def admits(now_s, decoding, line, new, budget, base_s, token_s):
    return True
"""
        },
        65,
        "fills the first step",
    ),
    "two adapters, one client, and a step is all that was tried": (
        {
            "bugs": """
def evidence(name):
    steps = [("step",)] * 6
    for events in (
        [("submit", 0, "a", [1, 2, 3], 3), ("submit", 1, "b", [1, 2, 3], 3), *steps],
        [("submit", 0, "a", [1, 2, 3], 6), ("step",), ("abort", 0), *steps],
    ):
        answers, n_free = play(VERSIONS[name], events)
        right = {0: alone("a", [1, 2, 3], 3), 1: alone("b", [1, 2, 3], 3)}
        if n_free != N_BLOCKS or (answers and answers != right):
            return events
    return None


def repaired_run(events, n_blocks, n_adapters):
    line, running, in_use, free, ended, n_steps = [], {}, [], n_blocks, [], 0
    for what, *about in events:
        if what == "submit":
            line.append(about)
        elif what == "abort":
            if about[0] in running:
                adapter, blocks, _ = running.pop(about[0])
                in_use.remove(adapter)
                free += blocks
        else:
            n_steps += 1
            while line:
                name, adapter, blocks, n_new = line[0]
                if blocks > free or len({*in_use, adapter}) > n_adapters:
                    break
                running[name] = [adapter, blocks, n_new]
                in_use.append(adapter)
                free -= blocks
                line.pop(0)
            for name in list(running):
                running[name][2] -= 1
                if running[name][2] == 0:
                    adapter, blocks, _ = running.pop(name)
                    in_use.remove(adapter)
                    free += blocks
                    ended.append((n_steps, name))
    return ended, free
"""
        },
        71,
        "went away while it waited",
    ),
}
