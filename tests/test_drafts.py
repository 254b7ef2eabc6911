"""Trees of guesses: exact by enumeration, best by brute force; and what inexact rules produce."""

import itertools
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken import drafts
from firsttoken.attention import attention
from firsttoken.drafts import (
    SuffixAutomaton,
    accepted_distribution,
    best_tree,
    branches,
    expected_tree_tokens,
    goodput_gamma,
    sibling_ranks,
    tree_attention,
    tree_mask,
    typical_acceptance,
    verify_tree,
    verify_tree_greedy,
)
from firsttoken.speculative import (
    acceptance_rule,
    best_gamma,
    expected_tokens,
    verify,
    verify_greedy,
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


# Who sees whom


@given(parents=trees)
def test_a_guess_sees_itself_and_what_it_hangs_on(parents):
    mask = tree_mask(parents)
    for i in range(len(parents)):
        assert np.flatnonzero(mask[i]).tolist() == ancestors(parents, i)
    tokens = list(range(10, 10 + len(parents)))
    spelled = [[tokens[j] for j in ancestors(parents, i)] for i in range(len(parents))]
    assert branches(tokens, parents) == [[], *spelled]


@given(parents=trees, n_before=st.integers(0, 5), n_kv_heads=st.sampled_from([1, 2, 4]))
def test_tree_attention_is_attention_along_each_branch(parents, n_before, n_kv_heads):
    rng, n = np.random.default_rng(0), len(parents)
    q = rng.normal(size=(2, 4, n, 3))
    k, v = rng.normal(size=(2, 2, n_kv_heads, n_before + n, 3))
    got = tree_attention(q, k, v, tree_mask(parents))
    for i in range(n):
        seen = [*range(n_before), *(n_before + j for j in ancestors(parents, i))]
        alone = attention(q[:, :, i : i + 1], k[:, :, seen], v[:, :, seen])
        np.testing.assert_allclose(got[:, :, i : i + 1], alone, atol=1e-12)


# Which guesses stay


@given(parents=trees, seed=st.integers(0, 10**6))
def test_the_greedy_walk_follows_the_target(parents, seed):
    """Each token out is the target's choice behind those before, and the walk goes on to a leaf."""
    rng = np.random.default_rng(seed)
    tokens = [int(rng.choice(9, replace=False)) * 8 + place for place in sibling_ranks(parents)]
    choices = rng.choice([*tokens, -1], len(tokens) + 1).tolist()
    said = verify_tree_greedy(choices, parents, tokens)
    spelled = branches(tokens, parents)
    at = spelled.index(said[:-1])  # all but the last is a branch
    assert [choices[spelled.index(said[:i])] for i in range(len(said))] == said
    children = [token for token, parent in zip(tokens, parents, strict=True) if parent == at - 1]
    assert said[-1] not in children


@given(data=st.data(), n=st.integers(0, 5))
def test_a_chain_is_a_tree(data, n):
    """With one guess for each place it is `speculative.verify`, and its mask the causal one."""
    tokens = data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    choices = data.draw(st.lists(st.integers(0, 2), min_size=n + 1, max_size=n + 1))
    chain = list(range(-1, n - 1))
    assert np.array_equal(tree_mask(chain), np.tri(n, dtype=bool))
    expected = verify_greedy(choices, tokens)
    assert verify_tree_greedy(choices, chain, tokens) == expected
    certain, rng = np.eye(3)[choices], np.random.default_rng(0)
    assert verify_tree(certain, None, chain, tokens, rng) == expected
    assert verify(certain, None, tokens, rng) == expected


class Chance:
    """A uniform number that takes both sides of each comparison, in different worlds."""

    def __init__(self, world):
        self.world = world

    def __lt__(self, limit):
        return self.world.pick([float(limit), 1 - float(limit)]) == 0


class World:
    """One way that chance may go: a script of choices, and how probable it is."""

    def __init__(self, script):
        self.script, self.at, self.probability, self.open = script, 0, 1.0, []
        self.n_tried = len(script) - 1  # choices before have their alternatives elsewhere

    def pick(self, chances):
        if self.at == len(self.script):
            self.script.append(next(i for i, c in enumerate(chances) if c > 0))
        choice = self.script[self.at]
        later = [i for i, c in enumerate(chances) if c > 0 and i > choice]
        if later and self.at >= self.n_tried:
            self.open.append([*self.script[: self.at], later[0]])
        self.at += 1
        self.probability *= chances[choice]
        return choice

    def random(self):
        return Chance(self)


def every_world(run):
    """Return {outcome: probability} of run(world), for all that chance may do."""
    found, scripts = defaultdict(float), [[]]
    while scripts:
        world = World(scripts.pop())
        outcome = run(world)
        found[outcome] += world.probability
        scripts += world.open
    return found


N_VOCAB = 3


def tables(seed, zeros=0.2):
    """Return (target, draft): a distribution of the next token behind each short text."""
    rng = np.random.default_rng(seed)
    texts = [t for n in range(4) for t in itertools.product(range(N_VOCAB), repeat=n)]
    made = []
    for _ in range(2):
        rows = rng.dirichlet(np.full(N_VOCAB, 0.7), len(texts))
        rows[rng.random(rows.shape) < zeros] = 0
        rows[rows.sum(axis=1) == 0] = 1 / N_VOCAB
        made.append(dict(zip(texts, rows / rows.sum(axis=1, keepdims=True), strict=True)))
    return made


def one_round(world, target, draft, parents, certain=False):
    """Draw a tree's guesses and check them, by chance as the world has it."""
    tokens, kept_parents, rows, place = [], [], [], {-1: -1}
    for i, parent in enumerate(parents):
        if parent not in place:
            continue
        before = tuple(branches(tokens, kept_parents)[place[parent] + 1])
        siblings = [t for t, p in zip(tokens, kept_parents, strict=True) if p == place[parent]]
        left = draft[before].copy()
        left[siblings] = 0
        if left.sum() <= 1e-12:
            continue  # the draft knows no more
        token = int(left.argmax()) if certain else world.pick((left / left.sum()).tolist())
        place[i] = len(tokens)
        tokens.append(token)
        kept_parents.append(place[parent])
        rows.append(draft[before])
    target_rows = np.array([target[tuple(b)] for b in branches(tokens, kept_parents)])
    given_rows = None if certain else np.array(rows).reshape(-1, N_VOCAB)
    return tuple(verify_tree(target_rows, given_rows, kept_parents, tokens, world))


def deviation(found, target):
    """Return by how much the tokens that come out miss the target's distributions, at most."""
    worst = 0.0
    for n in range(max(map(len, found))):
        texts = defaultdict(float)
        for outcome, probability in found.items():
            if len(outcome) > n:
                texts[outcome[: n + 1]] += probability
        before = defaultdict(float)
        for text, probability in texts.items():
            before[text[:-1]] += probability
        for text, probability in before.items():
            for token in range(N_VOCAB):
                share = texts[(*text, token)] / probability
                worst = max(worst, abs(share - target[text][token]))
    return worst


SHAPES = [[], [-1], [-1, -1], [-1, -1, -1], [-1, 0], [-1, -1, 0, 1], [-1, -1, 0, 0]]


def use_worlds(monkeypatch):
    monkeypatch.setattr(drafts, "draw", lambda rows, world: world.pick(rows.tolist()))


@pytest.mark.parametrize("parents", SHAPES, ids=str)
def test_what_comes_out_follows_the_target_exactly(monkeypatch, parents):
    """No sampling: all that chance may do is gone through, and the probabilities are added up."""
    use_worlds(monkeypatch)
    for seed, certain in itertools.product(range(3), (False, True)):
        target, draft = tables(seed)
        found = every_world(
            lambda world, t=target, d=draft, c=certain: one_round(world, t, d, parents, c)
        )
        assert sum(found.values()) == pytest.approx(1, abs=1e-12)
        assert deviation(found, target) < 1e-9


def own_row_of_the_last(wanted, draft, siblings, rng):
    """A rejected guess is replaced by a draw from the target."""
    token, node = RIGHT(wanted, draft, siblings, rng)
    return (token, node) if node is not None else (int(drafts.draw(wanted, rng)), None)


RIGHT = drafts._try_siblings


def test_another_rule_for_siblings_changes_the_distribution(monkeypatch):
    use_worlds(monkeypatch)
    monkeypatch.setattr(drafts, "_try_siblings", own_row_of_the_last)
    worst = 0.0
    for seed in range(3):
        target, draft = tables(seed, zeros=0)
        found = every_world(lambda w, t=target, d=draft: one_round(w, t, d, [-1, -1]))
        worst = max(worst, deviation(found, target))
    assert worst > 0.02


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

P = np.array([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]])
RNG = np.random.default_rng(0)


def test_what_does_not_fit_is_refused():
    def refused(message, function, *arguments):
        with pytest.raises(ValueError, match=message):
            function(*arguments)

    one = np.array([[0.5]])
    refused(r"parents \[0\] must each be -1 or a guess before", tree_mask, [0])
    refused(r"choices \(1\) must be one more than tokens", verify_tree_greedy, [1], [-1], [1])
    twice = r"tokens\[1\] is 4, as a sibling"
    refused(twice, verify_tree_greedy, [1, 2, 3], [-1, -1], [4, 4])
    refused(r"parents \(1\) and tokens \(2\)", verify_tree_greedy, [1, 2, 3], [-1], [4, 5])
    refused(r"target \(3, 2\) must be \(n \+ 1, V\)", verify_tree, P, None, [-1], [0], RNG)
    for message, target, draft, tokens in (
        (r"draft \(3, 2\) must be \(2, 2\)", P, P, [0, 0]),
        (r"tokens \[0, 2\] must be ids in 0", P, None, [0, 2]),
        ("target must hold a distribution", 2 * P, None, [0, 1]),
        ("draft must hold a distribution", P, 2 * P[1:], [0, 1]),
        (r"tokens\[0\] is 0, which draft has with", P, np.eye(2)[[1, 1]], [0, 1]),
    ):
        refused(message, verify_tree, target, draft, [-1, 0], tokens, RNG)
    unlike = np.tri(2) / [[1], [2]]
    refused("one row for siblings, got unlike", verify_tree, P, unlike, [-1, -1], [0, 1], RNG)
    refused("alpha must be", expected_tree_tokens, np.ones((1, 2)), [-1])
    refused("rank 0 at depth 1", expected_tree_tokens, one, [-1, 0])
    refused("n must", SuffixAutomaton([1, 1]).propose, -1)
    refused("accept must hold probabilities", accepted_distribution, P[0], 2 * P[0] + 1, P[0])
    refused("step_s must be above 0, got 0", goodput_gamma, 0.5, 1, lambda n, gamma: 0)
