"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

WRONG = {
    "a token costs the same in training": (
        {
            "overtaken": {"needed = 3 * trained_on": "needed = trained_on"},
            "crossover": {"3 * (small": "(small"},
        },
        51,
        "but a token costs 6 FLOPs in training and 2 in service",
    ),
    "joules for kilowatt-hours": (
        {"bill": {"hours * watts / 1000": "hours * 3600 * watts"}},
        73,
        "those are joules",
    ),
    "reads what only a known chapter needs": (
        {
            "reading_order": {
                "if stem in known or": "if",
                "return order": "return [stem for stem in order if stem not in known]",
            }
        },
        75,
        "is not needed: only a known chapter builds on it",
    ),
}
