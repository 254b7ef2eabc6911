"""The best tree by brute force, the text as a draft, and what inexact rules produce."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.drafts import (
    SuffixAutomaton,
    accepted_distribution,
    best_tree,
    branches,
    expected_tree_tokens,
    goodput_gamma,
    sibling_ranks,
    typical_acceptance,
)
from firsttoken.speculative import (
    acceptance_rule,
    best_gamma,
    expected_tokens,
)

trees = st.integers(1, 8).flatmap(
    lambda n: st.tuples(*(st.integers(-1, i - 1) for i in range(n))).map(list)
)
# Zeros are frequent on purpose: they are where 0/0 lives.
weight = st.one_of(st.just(0.0), st.floats(1e-6, 1.0))
distribution = (
    st.lists(weight, min_size=4, max_size=4).filter(any).map(lambda w: np.array(w) / np.sum(w))
)


def ancestors(parents, i):
    """Return guess i and all that it hangs on."""
    return [] if i < 0 else [*ancestors(parents, parents[i]), i]


# Which tree


def all_trees(n, n_ranks):
    """Return every tree of n guesses with at most n_ranks children each."""
    found = [[]]
    for i in range(n):
        found = [[*t, p] for t in found for p in range(-1, i) if t.count(p) < n_ranks]
    return found


def random_alpha(rng, n_levels, n_ranks):
    return rng.dirichlet(np.ones(n_ranks + 1), n_levels)[:, :n_ranks]


def test_no_tree_beats_the_best():
    for n, falling in itertools.product(range(6), (True, False)):
        rng = np.random.default_rng(n)
        fitting = [t for t in all_trees(n, 3) if max(map(len, branches(t, t)), default=0) <= 3]
        for _ in range(5):
            alpha = random_alpha(rng, 3, 3)
            alpha = -np.sort(-alpha, axis=1) if falling else alpha
            most = max(expected_tree_tokens(alpha, t) for t in fitting)
            tree = best_tree(alpha, n)
            assert len(tree) == n
            assert expected_tree_tokens(alpha, tree) == pytest.approx(most, abs=1e-12)


def test_one_guess_for_each_place_is_a_chain_and_a_tree_ends_where_nothing_is_left():
    assert best_tree(np.full((6, 1), 0.7), 4) == [-1, 0, 1, 2]
    got = expected_tree_tokens(np.full((6, 1), 0.7), [-1, 0, 1, 2])
    assert got == pytest.approx(expected_tokens(0.7, 4))
    assert best_tree(np.array([[0.5, 0.3]]), 9) == [-1, -1]
    assert best_tree(np.full((3, 2), 0.4), 0) == []


@given(parents=trees)
def test_guesses_come_by_depth_and_have_their_place(parents):
    alpha = random_alpha(np.random.default_rng(len(parents)), 4, 3)
    tree = best_tree(alpha, len(parents))
    depth = [len(branch) for branch in branches(tree, tree)[1:]]
    assert depth == sorted(depth)
    for i, place in enumerate(sibling_ranks(parents)):
        assert place == sum(p == parents[i] for p in parents[:i])


# The text itself as a draft


def longest_repeat(text):
    """Return (length, end) of the longest ending that stands earlier, at its first place."""
    for n in range(len(text) - 1, 0, -1):
        for start in range(len(text) - n):
            if text[start : start + n] == text[-n:]:
                return n, start + n
    return 0, 0


@given(text=st.lists(st.integers(0, 2), max_size=40), n=st.integers(0, 6))
def test_the_automaton_finds_what_a_search_finds(text, n):
    automaton = SuffixAutomaton()
    for i, token in enumerate(text):
        automaton.extend(token)
        length, end = longest_repeat(text[: i + 1])
        assert automaton.n_matched == length
        assert automaton.propose(n) == (text[: i + 1][end : end + n] if length else [])
    assert SuffixAutomaton(text).propose(n) == automaton.propose(n)


def test_the_automaton_stays_small():
    """At most 2n states: no copy of the text for each place."""
    text = np.random.default_rng(0).integers(4, size=3000).tolist()
    assert len(SuffixAutomaton(text)._next) <= 2 * len(text)


# When to stop guessing


def test_a_single_sequence_guesses_as_far_as_is_best_and_free_guesses_are_all_made():
    for alpha in (0.2, 0.5, 0.7, 0.9):
        got = goodput_gamma(alpha, 1, lambda n, gamma: 1 + 0.12 * gamma, max_gamma=32)
        assert got == best_gamma(alpha, 0.12)
    assert goodput_gamma(1, 64, lambda n, gamma: 1, max_gamma=5) == 5
    assert goodput_gamma(0, 64, lambda n, gamma: 1) == 0


# Rules that are not exact


@given(target=distribution, draft=distribution)
def test_the_exact_rule_produces_the_target(target, draft):
    got = accepted_distribution(draft, *acceptance_rule(target, draft))
    np.testing.assert_allclose(got, target, atol=1e-12)


def test_typical_is_what_stands_out_and_keeping_it_does_not_follow_the_target():
    """The threshold by hand, on distributions that are sure and others that are not."""
    rows = np.array([[0.97, 0.01, 0.01, 0.01], [0.5, 0.5, 0.0, 0.0], [0.92, 0.08, 0.0, 0.0]])
    assert typical_acceptance(rows).astype(int).tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 0, 0, 0],
    ]
    assert typical_acceptance(np.full(4, 0.25)).all()  # 0.3 · exp(-log 4) = 0.075 < 0.09
    many = np.full(8, 0.125)
    assert typical_acceptance(many).all()
    assert not typical_acceptance(many, delta=1.5, epsilon=0.2).any()
    target, draft = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5])
    kept = typical_acceptance(target).astype(float)
    got = accepted_distribution(draft, kept, np.eye(3)[0])
    assert np.abs(got - target).sum() / 2 > 0.3


# What is refused


def test_what_does_not_fit_is_refused():
    def refused(message, function, *arguments):
        with pytest.raises(ValueError, match=message):
            function(*arguments)

    one, even = np.array([[0.5]]), np.array([0.5, 0.5])
    refused("alpha must be", expected_tree_tokens, np.ones((1, 2)), [-1])
    refused("rank 0 at depth 1", expected_tree_tokens, one, [-1, 0])
    refused("ranks must be .* 2 guesses, got 1", expected_tree_tokens, one, [-1, -1], [0])
    refused("n must", SuffixAutomaton([1, 1]).propose, -1)
    refused("accept must hold probabilities", accepted_distribution, even, 2 * even + 1, even)
    refused("step_s must be above 0, got 0", goodput_gamma, 0.5, 1, lambda n, gamma: 0)
