"""A batch of drafts: what `verify` does, row by row, and vLLM's cases."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from firsttoken import speculative_torch
from firsttoken.speculative import acceptance_rule, verify
from firsttoken.speculative_torch import verify_batch

# One number for all stochastic tests: no more than one false failure in a million.
FALSE_FAILURE = 1e-6


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def padded(rows, width):
    return torch.tensor([row + [-1] * (width - len(row)) for row in rows], dtype=torch.int64)


def one_hot(rows, n_vocab=100):
    """Greedy distributions: behind a row's end some that must not be looked at."""
    width = max(map(len, rows))
    ids = torch.tensor([row + [99] * (width - len(row)) for row in rows])
    return torch.nn.functional.one_hot(ids, n_vocab).float()


# vllm/tests/v1/sample/test_rejection_sampler.py: drafted tokens, the target's choices, the output
VLLM = [
    ([[1, 2, 3]], [[1, 2, 3, 4]], [[1, 2, 3, 4]]),
    ([[1, 2, 3]], [[1, 5, 3, 4]], [[1, 5]]),
    ([[1, 2], [3]], [[1, 2, 5], [3, 4]], [[1, 2, 5], [3, 4]]),
    ([[1]], [[1, 2]], [[1, 2]]),
    ([[]], [[5]], [[5]]),
    ([[1, 2, 3], [4, 5, 6]], [[1, 2, 7, 6], [4, 8, 6, 9]], [[1, 2, 7], [4, 8]]),
    ([[1]], [[2, 3]], [[2]]),
    ([[1, 2], [3, 4]], [[1, 5, 6], [3, 4, 7]], [[1, 5], [3, 4, 7]]),
]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("drafted", "choices", "expected"), VLLM)
def test_greedy_rows_as_in_vllm(drafted, choices, expected, known):
    width = max(map(len, drafted))
    target, tokens = one_hot(choices), padded(drafted, width)
    draft = torch.full((*tokens.shape, 100), 0.01) if known else None
    got = verify_batch(target, draft, tokens, rng())
    assert got.tolist() == padded(expected, width + 1).tolist()


# The distribution of each row. Here none depends on the tokens before, so that it is a short sum.

N, V, GAMMA = 20_000, 5, 3
BOTH = np.random.default_rng(1).dirichlet(np.ones(V), size=(2, GAMMA + 1))
BOTH[0, :, 2], BOTH[1, 1, 4], BOTH[1, :, 0] = 0, 0, 0  # zeros on both sides
TARGET, DRAFT = BOTH / BOTH.sum(axis=-1, keepdims=True)


def distribution_of_round(target, draft):
    """Return {what comes out: its probability}, for tokens drawn from the rows of `draft`."""
    expected_shares, kept = {}, {(): 1.0}
    for p, q in zip(target, draft, strict=False):
        accept, residual = acceptance_rule(p, q)
        for tokens, chance in kept.items():
            rejected = chance * (1 - q @ accept)
            expected_shares |= {(*tokens, x): rejected * residual[x] for x in range(V)}
        kept = {(*t, x): c * q[x] * accept[x] for t, c in kept.items() for x in range(V)}
    bonus = target[len(draft)]
    for tokens, chance in kept.items():
        expected_shares |= {(*tokens, x): chance * bonus[x] for x in range(V)}
    return expected_shares


def p_value(outputs, expected_shares):
    """Pearson's test; 0 where something impossible came out."""
    outputs = [tuple(x for x in row if x >= 0) for row in outputs]
    counts = Counter(outputs)
    if any(expected_shares[key] < 1e-12 for key in counts):
        return 0.0
    cells = sorted(
        (len(outputs) * p, counts[key]) for key, p in expected_shares.items() if p >= 1e-12
    )
    n_rare = sum(expected < 10 for expected, _ in cells)  # too rare for the test one by one
    cells = [tuple(map(sum, zip(*cells[: n_rare + 1], strict=True))), *cells[n_rare + 1 :]]
    expected, observed = np.array(cells).T
    return chisquare(observed, expected * len(outputs) / expected.sum()).pvalue


def drawn_from_draft(n):
    """Return n rows of γ tokens."""
    generator = np.random.default_rng(2)
    return np.stack([generator.choice(V, size=n, p=DRAFT[i]) for i in range(GAMMA)], axis=1)


def batch(rows):
    """Return target, draft and tokens for N times each of `rows`: (length of the draft, greedy)."""
    lengths, greedy = (np.tile(column, N) for column in zip(*rows, strict=True))
    target = np.where(greedy[:, None, None], np.eye(V)[[1] * (GAMMA + 1)], TARGET)
    draft = np.broadcast_to(DRAFT[:GAMMA], (len(target), GAMMA, V)).copy()
    tokens = drawn_from_draft(len(target))
    tokens[np.arange(GAMMA) >= lengths[:, None]] = -1
    return tuple(torch.from_numpy(x) for x in (target, draft, tokens))


ROWS = [(3, False), (1, False), (3, True), (0, False)]


@pytest.fixture(scope="module")
def mixed():
    return batch(ROWS)


def test_each_row_follows_the_distribution_of_its_request(mixed):
    """Ragged drafts, greedy and sampled rows side by side; four tests share the odds."""
    got = verify_batch(*mixed, rng()).tolist()
    for i, (n_drafted, greedy) in enumerate(ROWS):
        target = np.eye(V)[[1] * (GAMMA + 1)] if greedy else TARGET
        expected_shares = distribution_of_round(target, DRAFT[:n_drafted])
        assert p_value(got[i :: len(ROWS)], expected_shares) > FALSE_FAILURE / len(ROWS)


def test_verify_follows_the_same_distribution():
    generator = np.random.default_rng(3)
    drafts = drawn_from_draft(5000)[:, :2].tolist()
    got = [verify(TARGET[:3], DRAFT[:2], tokens, generator) for tokens in drafts]
    assert p_value(got, distribution_of_round(TARGET, DRAFT[:2])) > FALSE_FAILURE


@given(
    data=st.data(),
    gamma=st.integers(1, 3),
    known=st.booleans(),
    numbers=st.lists(st.floats(0, 1, exclude_max=True), min_size=3, max_size=3),
)
def test_it_keeps_and_replaces_by_the_rule_of_verify(data, gamma, known, numbers):
    """On the same uniform numbers it keeps as many tokens, and draws the next from the same row."""
    distribution = st.lists(st.sampled_from([0.0, 0.1, 0.25, 1.0]), min_size=3, max_size=3)
    distribution = distribution.filter(any).map(lambda w: np.array(w) / np.sum(w))
    target = np.stack(data.draw(st.lists(distribution, min_size=gamma + 1, max_size=gamma + 1)))
    draft = np.stack(data.draw(st.lists(distribution, min_size=gamma, max_size=gamma)))
    tokens = [data.draw(st.sampled_from(np.flatnonzero(q).tolist())) for q in draft]
    certain = np.eye(3)[tokens]
    n_kept, row = 0, target[gamma]
    for i, token in enumerate(tokens):
        accept, residual = acceptance_rule(target[i], draft[i] if known else certain[i])
        if not numbers[i] < accept[token]:
            row = residual
            break
        n_kept += 1

    drawn_from = []

    def race(weights, rng):
        drawn_from.append(weights[0].numpy())
        return weights.argmax(dim=1)

    def rand(shape, **options):
        return torch.tensor([numbers[: shape[1]]], dtype=torch.float64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speculative_torch, "_exponential_race", race)
        patch.setattr(speculative_torch.torch, "rand", rand)
        rows = torch.from_numpy(draft[None]) if known else None
        got = verify_batch(torch.from_numpy(target[None]), rows, torch.tensor([tokens]), rng())
    assert (got[0] >= 0).sum() == n_kept + 1 and got[0, :n_kept].tolist() == tokens[:n_kept]
    np.testing.assert_allclose(drawn_from[0] / drawn_from[0].sum(), row, atol=1e-12)


@pytest.mark.parametrize("known", [True, False])
def test_a_draft_without_probabilities(known):
    """Always the same guess: None for all rows, or distributions with that token alone."""
    tokens = torch.tensor([[1, 3, 0]]).expand(N, 3)
    draft = torch.nn.functional.one_hot(tokens, V).double() if known else None
    target = torch.tensor(TARGET).expand(N, GAMMA + 1, V)
    expected_shares = distribution_of_round(TARGET, np.eye(V)[[1, 3, 0]])
    assert (
        p_value(verify_batch(target, draft, tokens, rng()).tolist(), expected_shares)
        > FALSE_FAILURE
    )


@pytest.mark.parametrize("flaw", ["swapped", "late", "unknown", "from the target"])
def test_flaws_are_found(mixed, flaw):
    """The same test, with wrong distributions handed over, fails: it has the power to."""
    target, draft, tokens = (x[:: len(ROWS)] for x in mixed)
    drawn = tokens + 0
    if flaw == "swapped":
        target, draft = torch.cat([draft, target[:, -1:]], 1), target[:, :-1]
        drawn = torch.where(draft.gather(2, tokens[..., None])[..., 0] > 0, tokens, 1)
    elif flaw == "late":
        draft = draft.roll(1, 1).clamp(min=1e-9)
    elif flaw == "unknown":  # drafted tokens that depend on their own acceptance: always token 1
        drawn = torch.ones_like(tokens)
    elif flaw == "from the target":
        draft = target[:, :-1].clamp(min=1e-9)
    got = verify_batch(target, draft, drawn, rng()).tolist()
    assert p_value(got, distribution_of_round(TARGET, DRAFT[:3])) < FALSE_FAILURE


def test_zero_is_never_accepted_nor_drawn():
    """Also in float32, and where the residual is nothing but rounding."""
    target = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]).expand(1000, 2, 2)
    for q in (0.5, 1e-9):
        draft = torch.tensor([[[1 - q, q]]]).expand(1000, 1, 2)
        tokens = torch.ones(1000, 1, dtype=torch.int64)
        assert (verify_batch(target, draft, tokens, rng())[:, 0] == 0).all()


def test_the_seed_decides_and_inputs_are_left_alone(mixed):
    copies = [x.clone() for x in mixed]
    once, again, other = (verify_batch(*mixed, rng(seed)) for seed in (0, 0, 1))
    assert torch.equal(once, again) and not torch.equal(once, other)
    assert all(torch.equal(x, copy) for x, copy in zip(mixed, copies, strict=True))


@pytest.mark.parametrize(
    ("target", "draft", "tokens", "message"),
    [
        ((1, 3, 4), (1, 2, 4), [[0]], r"target \(1, 3, 4\), draft \(1, 2, 4\) and tokens \(1, 1\)"),
        ((1, 2, 4), (1, 1, 5), [[0]], "must be"),
        ((2, 4), None, [[0]], "must be"),
        ((1, 3, 4), None, [[-1, 2]], "only behind the last"),
        ((1, 2, 4), None, [[4]], "ids in 0 … 3, or -1 as filling, got 4 … 4"),
        ((1, 2, 4), None, [[-7]], "got -7 … -7"),
        ((1, 2, 4), (1, 1, 4), [[3]], "with probability 0"),
    ],
)
def test_wrong_arguments_are_named(target, draft, tokens, message):
    rows = torch.zeros(draft) if draft else None
    with pytest.raises(ValueError, match=message):
        verify_batch(torch.ones(target) / 4, rows, torch.tensor(tokens), rng())


@pytest.mark.parametrize("row", [[np.nan, 0.5], [0.0, 0.0], [5.0, -4.0], [2.0, 8.0]])
@pytest.mark.parametrize("tokens", [[[0]], [[-1]]])
def test_what_is_no_distribution_is_refused(row, tokens):
    with pytest.raises(
        ValueError, match=r"target must hold (a distribution per row|distributions)"
    ):
        verify_batch(
            torch.tensor([[row, row]]), torch.tensor([[[1.0, 0.0]]]), torch.tensor(tokens), rng()
        )


@pytest.mark.parametrize("row", [[np.nan, 0.5], [5.0, -4.0], [-1.0, 2.0], [0.5, 0.1]])
def test_a_draft_that_is_no_distribution_is_refused(row):
    """The last row is found out only because its token is rejected: a sum is taken nowhere else."""
    target = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])
    with pytest.raises(ValueError, match=r"draft must hold (a distribution per row|distributions)"):
        verify_batch(target, torch.tensor([[row]]), torch.tensor([[0]]), rng())


def test_tokens_of_any_integer_type():
    target = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])
    tokens = torch.tensor([[1]], dtype=torch.int32)
    assert verify_batch(target, None, tokens, rng()).tolist() == [[1, 0]]
