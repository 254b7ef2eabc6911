"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

WRONG = {
    "a tree is read like a text": (
        {
            "layout": {
                "row[i] = True": "row = np.arange(len(parents)) <= i",
                "n_text if parent < 0 else found[parent] + 1": "n_text + len(found)",
            }
        },
        76,
        "siblings are for one place, and neither sees the other",
    ),
    "every sibling is measured by the target": (
        {"siblings": {"acceptance_rule(wanted, ": "acceptance_rule(target, "}},
        74,
        "must be measured by what is still missing",
    ),
    "what is not typical never comes out": (
        {
            "thumb": {
                "np.log(some)": "np.log2(some)",
                "kept + (1 - kept.sum()) * target": "kept / kept.sum() if kept.any() else target",
                "target[typical(target, epsilon, delta)].min()": "target.max()",
            }
        },
        72,
        "a token of the target comes in its place",
    ),
}
