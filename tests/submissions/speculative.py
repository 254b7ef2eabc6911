"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

WRONG = {
    "every guess is measured by the target": (
        {"chain-solution": {"acceptance_rule(distribution, ": "acceptance_rule(target, "}},
        73,
        "the second guess must be measured by what is still missing",
    ),
    "the draft is given the last token only": (
        {
            "loop-solution": {
                "text[draft_cache.length :]": "text[-1:] if draft_cache.length else text"
            }
        },
        80,
        "its cache lacks the last of them, and has a hole",
    ),
    "the likeliest token is guessed, not a drawn one": (
        {"loop-solution": {"draw(draft_laws[-1], rng)": "draft_laws[-1].argmax()"}},
        75,
        "the text does not follow the target",
    ),
}
