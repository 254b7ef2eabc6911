"""Writing by unmasking: its law by enumeration, on models whose true distribution is known."""

from functools import cache
from itertools import combinations, permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from firsttoken.recurrent.diffusion import hide, loss_bound, pass_sizes, unmask

V, T, MASK = 3, 3, 3
TEXTS = list(product(range(V), repeat=T))
# A joint law of three tokens that depend on each other; some texts are impossible.
LAW = np.random.default_rng(0).dirichlet(np.full(V**T, 0.3)).reshape((V,) * T)
LAW[0, 0, 0] = LAW[2, 1, 0] = 0
LAW /= LAW.sum()


def exact(tokens: np.ndarray) -> np.ndarray:
    """The conditionals of LAW: for each position its law given what is not masked."""
    return np.array([[conditional(tuple(row), i) for i in range(T)] for row in tokens.tolist()])


@cache
def conditional(row: tuple, i: int) -> np.ndarray:
    seen = LAW[tuple(slice(None) if x == MASK else slice(x, x + 1) for x in row)]
    full = np.zeros(V)
    full[range(V) if row[i] == MASK else [row[i]]] = seen.sum(
        axis=tuple(j for j in range(T) if j != i)
    )
    return full / full.sum() if full.any() else np.full(V, 1 / V)  # where nothing fits: anything


def wrong(tokens: np.ndarray) -> np.ndarray:
    """Conditionals that belong to no joint law: they depend on where a text is read from."""
    tilted = exact(tokens) + 0.05 + 0.1 * (tokens == MASK).sum(axis=1)[:, None, None]
    tilted[..., 0] *= 2
    return tilted / tilted.sum(axis=-1, keepdims=True)


def law_of(denoise, n_passes: int, order: str = "random", block: int = T) -> np.ndarray:
    """The distribution over texts that `unmask` should have, by walking through all that can be."""
    states = {(MASK,) * T: 1.0}
    for size in pass_sizes(T, n_passes):
        after: dict[tuple, float] = {}
        for state, weight in states.items():
            open_places = [i for i in range(T) if state[i] == MASK]
            p = denoise(np.array([state]))[0]
            for found in product(range(V), repeat=len(open_places)):
                drawn = dict(zip(open_places, found, strict=True))
                chance = weight * np.prod([p[i, x] for i, x in drawn.items()])
                if order == "confidence":
                    ranked = sorted(open_places, key=lambda i: (i // block, -p[i, drawn[i]], i))
                    choices = [ranked[:size]]
                else:
                    blocks = [i // block for i in open_places]
                    in_order = sorted(blocks)[:size]
                    choices = [
                        kept
                        for kept in combinations(open_places, size)
                        if sorted(i // block for i in kept) == in_order
                    ]
                for kept in choices:
                    new = tuple(drawn[i] if i in kept else x for i, x in enumerate(state))
                    after[new] = after.get(new, 0) + chance / len(choices)
        states = after
    return np.array([states.get(text, 0.0) for text in TEXTS])


def drawn(denoise, n_passes: int, n: int = 40_000, **how) -> np.ndarray:
    """How often `unmask` writes each text."""
    masks = np.full((n, T), MASK)
    *_, last = unmask(denoise, masks, MASK, n_passes, np.random.default_rng(1), **how)
    return np.bincount(last @ [V * V, V, 1], minlength=V**T)


def many(denoise):
    """The same model, which looks at each different row once."""

    def probabilities(tokens):
        rows, index = np.unique(tokens, axis=0, return_inverse=True)
        return denoise(rows)[index]

    return probabilities


def agrees(counts: np.ndarray, law: np.ndarray) -> bool:
    """Chi-square at 1e-7: nine correct samplers fail with odds below 1e-6. No impossible text."""
    possible = law > 0
    if counts[~possible].any():
        return False
    return chisquare(counts[possible], law[possible] * counts.sum()).pvalue > 1e-7


# The sampler's law


def test_in_random_order_one_token_a_pass_is_exact():
    """In the whole text, and in blocks."""
    for block in (T, 1, 2):
        np.testing.assert_allclose(law_of(exact, T, block=block), LAW.ravel(), atol=1e-12)


CASES = {
    "one a pass": (exact, 3, {}),
    "two, then one": (exact, 2, {}),
    "surest first": (exact, 3, {"order": "confidence"}),
    "blocks of two": (wrong, 3, {"block": 2}),
    "left to right": (wrong, 3, {"block": 1}),
    "of no joint law": (wrong, 3, {}),
    "blocks, surest first": (wrong, 3, {"block": 2, "order": "confidence"}),
}


def test_what_is_written_follows_the_enumerated_law_and_no_other():
    """Mutants: a sampler that forgets its passes, its order or its blocks."""
    counts = {name: drawn(many(model), n, **how) for name, (model, n, how) in CASES.items()}
    laws = {name: law_of(model, n, **how) for name, (model, n, how) in CASES.items()}
    for case in CASES:
        assert agrees(counts[case], laws[case]), case
    for case, other in (
        ("one a pass", "two, then one"),
        ("one a pass", "surest first"),
        ("of no joint law", "left to right"),
        ("blocks of two", "blocks, surest first"),
    ):
        assert not agrees(counts[case], laws[other]), (case, other)


def test_greedy_takes_the_likeliest_and_commits_the_surest():
    tokens, rng = np.array([[1, MASK, MASK]]), np.random.default_rng(0)
    state, _ = unmask(exact, tokens, MASK, 2, rng, "confidence", greedy=True)
    p = exact(tokens)[0]
    place = 1 if p[1].max() >= p[2].max() else 2
    assert state[0, place] == p[place].argmax() and (state == MASK).sum() == 1
    table, masks = rng.dirichlet(np.ones(V), size=(4, 9)), np.full((4, 9), MASK)
    *_, last = unmask(lambda _: table, masks, MASK, 3, rng, greedy=True)
    assert np.array_equal(last, table.argmax(axis=-1))
    # Chance decides the order alone: in the other order, no number is drawn.
    *_, last = unmask(lambda _: table, masks, MASK, 3, None, "confidence", greedy=True)
    assert np.array_equal(last, table.argmax(axis=-1))


def test_of_equally_sure_draws_the_leftmost_is_kept():
    for n_tokens in (6, 600):
        masks, size = np.full((2, n_tokens), MASK), n_tokens // 3
        rng, even = np.random.default_rng(0), np.full((2, n_tokens, V), 1 / V)
        states = unmask(lambda _, even=even: even, masks, MASK, 3, rng, "confidence")
        for n, state in enumerate(states, 1):
            assert np.array_equal(state != MASK, np.tile(np.arange(n_tokens) < size * n, (2, 1)))


@given(rows=st.integers(1, 3), n=st.integers(1, 12), given_tokens=st.integers(0, 3), data=st.data())
def test_a_pass_only_fills_masks_and_as_many_as_it_says(rows, n, given_tokens, data):
    n_passes = data.draw(st.integers(1, n))
    block = data.draw(st.one_of(st.none(), st.integers(1, n + 1)))
    order = data.draw(st.sampled_from(["random", "confidence"]))
    seed = data.draw(st.integers(0, 99))
    rng = np.random.default_rng(seed)
    table = rng.dirichlet(np.ones(V), size=(rows, n + given_tokens))
    tokens = rng.permuted(np.tile([MASK] * n + [0] * given_tokens, (rows, 1)), axis=1)
    before, sizes = tokens, []
    block_of = (tokens == MASK).cumsum(axis=1) - 1
    block_of = block_of // (block or n)
    for state in unmask(lambda _: table, tokens, MASK, n_passes, rng, order, block):
        fresh = (before == MASK) & (state != MASK)
        assert np.array_equal(state[before != MASK], before[before != MASK])
        assert len(set(fresh.sum(axis=1))) == 1
        for row in range(rows):  # no earlier block is left behind
            waiting = block_of[row][state[row] == MASK]
            assert not len(waiting) or block_of[row][fresh[row]].max() <= waiting.min()
        sizes.append(int(fresh[0].sum()))
        before = state
    assert sizes == pass_sizes(n, n_passes) and not (before == MASK).any()
    assert (tokens == MASK).sum() == rows * n  # what came in stays as it was


@given(n=st.integers(1, 300), data=st.data())
def test_passes_share_the_tokens_evenly(n, data):
    sizes = pass_sizes(n, k := data.draw(st.integers(1, n)))
    assert len(sizes) == k and sum(sizes) == n
    assert max(sizes) - min(sizes) <= 1 <= min(sizes)


# The loss


def mean_bound(denoise, text: tuple) -> float:
    """The bound's mean over every number of hidden tokens and every set of them."""
    means = []
    for n in range(1, T + 1):
        hidden = np.array([[i in some for i in range(T)] for some in combinations(range(T), n)])
        rows = np.tile(text, (len(hidden), 1))
        means.append(loss_bound(denoise(np.where(hidden, MASK, rows)), rows, hidden).mean())
    return float(np.mean(means))


def loss_in_order(denoise, text: tuple, order: tuple) -> float:
    """-log p of a text that is written one token a pass in this order."""
    row, loss = np.full((1, T), MASK), 0.0
    for i in order:
        loss -= np.log(denoise(row)[0, i, text[i]])
        row[0, i] = text[i]
    return loss


def test_the_mean_over_masks_is_the_mean_over_orders():
    """With exact conditionals every order gives the loss of the text."""
    for text in (text for text in TEXTS if LAW[text] > 0):
        for denoise in (exact, wrong):
            orders = [loss_in_order(denoise, text, order) for order in permutations(range(T))]
            assert mean_bound(denoise, text) == pytest.approx(np.mean(orders))
        assert mean_bound(exact, text) == pytest.approx(-np.log(LAW[text]))


def test_what_is_not_hidden_costs_nothing_and_the_impossible_infinity():
    p = np.zeros((2, 2, 2))
    p[..., 0] = 1
    tokens, hidden = np.array([[0, 1], [0, 1]]), np.array([[True, False], [True, True]])
    assert loss_bound(p, tokens, hidden).tolist() == [0, np.inf]


@given(st.lists(st.integers(1, 7), max_size=5))
def test_rows_hide_as_many_as_they_are_told(counts):
    hidden = hide(np.array(counts, int), 7, np.random.default_rng(0))
    assert hidden.shape == (len(counts), 7) and hidden.sum(axis=1).tolist() == counts


def test_every_set_is_hidden_equally_often():
    """10 sets of 2 of 5 in 20,000 draws: chi-square at 1e-6."""
    hidden = hide(np.full(20_000, 2), 5, np.random.default_rng(3))
    _, counts = np.unique(hidden, axis=0, return_counts=True)
    assert len(counts) == 10 and chisquare(counts).pvalue > 1e-6


def test_what_makes_no_sense_is_refused(subtests):
    def start(tokens, **how):
        return next(unmask(exact, np.array(tokens), MASK, 1, np.random.default_rng(0), **how))

    ones = np.ones((1, 2, 1))
    for call, message in [
        (lambda: hide(np.array([0, 2]), 3, np.random.default_rng(0)), "n_hidden must be within"),
        (lambda: pass_sizes(3, 4), "n_passes 4 is more than the 3 tokens"),
        (lambda: start([[0, MASK], [0, 0]]), r"tokens must have as many masks, got \[0, 1\]"),
        (lambda: start([[MASK] * T], order="left"), "order must be .* got 'left'"),
        (lambda: start([[MASK] * T], block=0), "block must be an integer of at least 1"),
        (lambda: loss_bound(ones, 0 * ones[..., 0], ones[..., 0] > 1), "hidden must name at least"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            call()
