"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

WRONG = {
    "whoever reads again has its first token again": (
        {"metrics": {"before + new == length[request]": "before + new == n_prompt[request]"}},
        79,
        "reads its prompt of 3 and its first token again",
    ),
    "all guesses count, and prompts are forgotten": (
        {
            "guessing": {
                "if r.gamma > k and n >= k": "if r.gamma > k",
                "own + min(unread, chunk) > budget": "own > budget",
                "own + min(unread, max(0, budget - own))": "own",
            }
        },
        73,
        "2 of the 5 were never judged",
    ),
    "only the newcomer's own deadline is looked at": (
        {
            "admission": {
                "all(now_s + t <= d + 1e-9 for t, d in zip(times, deadlines, strict=True))": (
                    "now_s + times[-1] <= new[1] + 1e-9"
                )
            }
        },
        71,
        "until a long one comes into the same step",
    ),
}
