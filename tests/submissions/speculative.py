"""Wrong solutions of the assignment on speculation: what each is worth, and what it is told."""

_LOOP = """
def speculate(target, draft, prompt_ids, params, gamma, rng):
    ids, rounds = list(prompt_ids), []
    end = len(ids) + params.max_tokens
    target_cache, draft_cache = (m.new_cache(capacity=2 * end) for m in (target, draft))
    while len(ids) < end:
        guesses, distributions = [], []
        for _ in range(min(gamma, end - len(ids) - 1)):
            text = ids + guesses
            logits = draft([text[draft_cache.length :]], draft_cache)[0, -1]
            distributions.append(next_token_distribution(logits, params))
            guesses.append(int(draw(distributions[-1], rng)))
        text = ids + guesses
        logits = target([text[target_cache.length :]], target_cache)[0, -len(guesses) - 1 :]
        checked = np.stack([next_token_distribution(row, params) for row in logits])
        tokens = verify(checked, np.stack(distributions) if distributions else None, guesses, rng)
        rounds.append((len(guesses), len(tokens) - 1))
        ids += tokens
        CUT
    return ids[len(prompt_ids) :], rounds
"""

WRONG = {
    "every guess is measured by the target": (
        {
            "chain-solution": """
def chain_rules(target, draft, n):
    accept, residual = acceptance_rule(target, draft)
    return [accept] * n, residual
"""
        },
        73,
        "the second guess must be measured by what is still missing",
    ),
    "the draft is given the last token only": (
        {
            "loop-solution": _LOOP.replace(
                "draft([text[draft_cache.length :]]",
                "draft([text[-1:] if draft_cache.length else text]",
            ).replace(
                "CUT",
                "for cache in (target_cache, draft_cache):\n"
                "            cache.truncate(min(cache.length, len(ids) - 1))",
            )
        },
        80,
        "its cache lacks the last of them, and has a hole",
    ),
    "the caches are emptied after each round": (
        {
            "loop-solution": _LOOP.replace(
                "CUT", "target_cache.truncate(0)\n        draft_cache.truncate(0)"
            )
        },
        75,
        "of a text that its cache holds, only the last token and the guesses are new",
    ),
    "the likeliest token is guessed, not a drawn one": (
        {
            "loop-solution": _LOOP.replace(
                "draw(distributions[-1], rng)", "distributions[-1].argmax()"
            ).replace(
                "CUT",
                "for cache in (target_cache, draft_cache):\n"
                "            cache.truncate(min(cache.length, len(ids) - 1))",
            )
        },
        75,
        "the text does not follow the target",
    ),
    "the library's loop, on models in disguise": (
        {
            "loop-solution": """
class Disguise:
    def __init__(self, model, arch):
        self.new_cache, self.arch, self.model = model.new_cache, arch, model

    def __call__(self, *args):
        return self.model(*args)


def speculate(target, draft, prompt_ids, params, gamma, rng):
    from firsttoken.generate import speculative_generate

    models = Disguise(target, target_model.arch), Disguise(draft, draft_model.arch)
    run = speculative_generate(*models, prompt_ids, params, gamma=gamma, ignore_eos=True)
    return run.ids, run.rounds
"""
        },
        50,
        "answers use of firsttoken only what the setup cell imports",
    ),
    "one acceptance rate for all places": (
        {
            "predict-solution": """
def tokens_per_pass(alphas, gamma):
    return float(expected_tokens(alphas.mean(), gamma))
"""
        },
        79,
        "the easy places stand side by side",
    ),
}
