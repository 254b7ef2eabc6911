"""Wrong solutions of the assignment on sampling: what each is worth, and what it is told."""

ONE_GENERATOR = """
class BatchSampler:
    def __init__(self):
        self.requests, self.rng = {}, None

    def add(self, request_id, params, prompt_ids):
        self.rng = self.rng or np.random.default_rng(params.seed)
        self.requests[request_id] = params, list(prompt_ids), []

    def choose(self, logits):
        tokens = {}
        for name, row in logits.items():
            params, prompt, output = self.requests[name]
            if params.temperature == 0:
                tokens[name] = int(penalize(row, params, prompt, output).argmax())
            else:
                distribution = next_token_distribution(row, params, prompt, output)
                tokens[name] = int(draw(distribution, self.rng))
            output.append(tokens[name])
        return tokens

    def remove(self, request_id):
        del self.requests[request_id]
"""
WRONG = {
    "every filter looks at the whole distribution": (
        {
            "order-solution": """
def distribution_in_order(logits, steps):
    apply = {"min_p": keep_min_p, "top_k": keep_top_k, "top_p": keep_top_p}
    logits = apply_temperature(logits, dict(steps).get("temperature", 1))
    kept = np.ones(len(logits), dtype=bool)
    for name, value in steps:
        if name != "temperature":
            kept &= np.isfinite(apply[name](logits, value))
    return softmax(np.where(kept, logits, -np.inf))
"""
        },
        73,
        "Each step must see what the one before it left",
    ),
    "the token that crosses is dropped": (
        {
            "typical-solution": """
def keep_typical(logits, mass):
    distribution = softmax(logits)
    surprise = -np.log(np.where(distribution > 0, distribution, 1))
    distance = np.where(distribution > 0, np.abs(surprise - distribution @ surprise), np.inf)
    order = np.argsort(distance.round(9), kind="stable")
    kept = order[distribution[order].cumsum() <= mass]
    result = np.full(len(distribution), -np.inf)
    result[kept] = logits[kept]
    return result
"""
        },
        74,
        "the token that crosses the mass belongs to the set",
    ),
    "one generator for all requests": (
        {"batch-solution": ONE_GENERATOR},
        77,
        "each request needs random numbers of its own",
    ),
    "one generator with a seed of its own": (
        {
            "batch-solution": ONE_GENERATOR.replace(
                "rng = {}, None", "rng = {}, np.random.default_rng(0)"
            ).replace("self.rng or np.random.default_rng(params.seed)", "self.rng")
        },
        71,
        "its own np.random.default_rng(params.seed)",
    ),
}
