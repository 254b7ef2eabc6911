"""Trees of guesses: who sees whom, and which stay, exact by enumeration."""

import itertools
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.attention import attention, masked_attention
from firsttoken.drafts import sibling_ranks
from firsttoken.speculative import trees as rules
from firsttoken.speculative import verify, verify_greedy
from firsttoken.speculative.trees import branches, tree_mask, verify_tree, verify_tree_greedy

trees = st.integers(1, 8).flatmap(
    lambda n: st.tuples(*(st.integers(-1, i - 1) for i in range(n))).map(list)
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
def test_attention_by_a_trees_mask_is_attention_along_each_branch(parents, n_before, n_kv_heads):
    rng, n = np.random.default_rng(0), len(parents)
    q = rng.normal(size=(2, 4, n, 3))
    k, v = rng.normal(size=(2, 2, n_kv_heads, n_before + n, 3))
    got = masked_attention(q, k, v, tree_mask(parents))
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
    monkeypatch.setattr(rules, "draw", lambda rows, world: world.pick(rows.tolist()))


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
    return (token, node) if node is not None else (int(rules.draw(wanted, rng)), None)


RIGHT = rules._try_siblings


def test_another_rule_for_siblings_changes_the_distribution(monkeypatch):
    use_worlds(monkeypatch)
    monkeypatch.setattr(rules, "_try_siblings", own_row_of_the_last)
    worst = 0.0
    for seed in range(3):
        target, draft = tables(seed, zeros=0)
        found = every_world(lambda w, t=target, d=draft: one_round(w, t, d, [-1, -1]))
        worst = max(worst, deviation(found, target))
    assert worst > 0.02


# What is refused

P = np.array([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]])
RNG = np.random.default_rng(0)


def test_what_does_not_fit_is_refused():
    def refused(message, function, *arguments):
        with pytest.raises(ValueError, match=message):
            function(*arguments)

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
