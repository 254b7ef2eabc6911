"""A batch of drafts: what `verify` does, row by row, and vLLM's cases."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from firsttoken.speculative import acceptance_rule, speculative_torch
from firsttoken.speculative.speculative_torch import verify_batch
from generate.test_generate import FALSE_FAILURE, p_value


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
    ([[99, 0]], [[99, 0, 99]], [[99, 0, 99]]),  # ours: the ends of the vocabulary
]


def test_greedy_rows_as_in_vllm():
    for drafted, choices, expected in VLLM:
        width = max(map(len, drafted))
        target, tokens = one_hot(choices), padded(drafted, width)
        for draft in (None, torch.full((*tokens.shape, 100), 0.01)):
            for kind in (torch.int64, torch.int32):
                got = verify_batch(target, draft, tokens.to(kind), rng())
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


def spelled(rows):
    """Return each row's tokens, without its filling."""
    return [tuple(x for x in row if x >= 0) for row in np.asarray(rows).tolist()]


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
    got = spelled(verify_batch(*mixed, rng()))
    for i, (n_drafted, greedy) in enumerate(ROWS):
        target = np.eye(V)[[1] * (GAMMA + 1)] if greedy else TARGET
        expected_shares = distribution_of_round(target, DRAFT[:n_drafted])
        assert p_value(got[i :: len(ROWS)], expected_shares) > FALSE_FAILURE / len(ROWS)


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


def test_flaws_are_found(mixed):
    """The same test, with wrong distributions handed over, fails: it has the power to."""
    target, draft, tokens = (x[:: len(ROWS)] for x in mixed)
    swapped = target[:, :-1]
    for wrong_target, wrong_draft, drawn in (
        # swapped
        (
            torch.cat([draft, target[:, -1:]], 1),
            swapped,
            torch.where(swapped.gather(2, tokens[..., None])[..., 0] > 0, tokens, 1),
        ),
        (target, draft.roll(1, 1).clamp(min=1e-9), tokens),  # one place late
        (target, draft, torch.ones_like(tokens)),  # not drawn: always token 1
        (target, target[:, :-1].clamp(min=1e-9), tokens),  # drawn from another distribution
    ):
        got = verify_batch(wrong_target, wrong_draft, drawn, rng())
        assert p_value(spelled(got), distribution_of_round(TARGET, DRAFT[:3])) < FALSE_FAILURE


def test_zero_is_never_accepted_nor_drawn(monkeypatch):
    """Also in float32, and where the residual is nothing but rounding."""
    target = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]).expand(1000, 2, 2)
    tokens = torch.ones(1000, 1, dtype=torch.int64)
    for q in (0.5, 1e-9):
        draft = torch.tensor([[[1 - q, q]]]).expand(1000, 1, 2)
        assert (verify_batch(target, draft, tokens, rng())[:, 0] == 0).all()

    def zeros(shape, dtype, **options):
        assert dtype == torch.float64
        return torch.zeros(shape, dtype=dtype)

    monkeypatch.setattr(speculative_torch.torch, "rand", zeros)
    assert (verify_batch(target, draft, tokens, rng())[:, 0] == 0).all()


def test_wrong_arguments_are_named():
    def refused(message, target, draft, tokens):
        rows = torch.tensor(draft) if isinstance(draft, list) else draft
        with pytest.raises(ValueError, match=message):
            verify_batch(torch.as_tensor(target), rows, torch.tensor(tokens), rng())

    even, none = lambda *shape: torch.ones(shape) / 4, torch.zeros
    shapes = r"target \(1, 3, 4\), draft \(1, 2, 4\) and tokens \(1, 1\)"
    refused(shapes, even(1, 3, 4), none(1, 2, 4), [[0]])
    refused("must be", even(1, 2, 4), none(1, 1, 5), [[0]])
    refused("must be", even(2, 4), None, [[0]])
    refused("only behind the last", even(1, 3, 4), None, [[-1, 2]])
    refused("ids in 0 … 3, or -1 as filling, got 4 … 4", even(1, 2, 4), None, [[4]])
    for bad in (-7, -2):
        refused(f"got {bad} … {bad}", even(1, 2, 4), None, [[bad]])
    refused("with probability 0", even(1, 2, 4), none(1, 1, 4), [[3]])
    no_distribution = r"must hold (a distribution per row|distributions)"
    for row in ([np.nan, 0.5], [0.0, 0.0], [5.0, -4.0], [2.0, 8.0]):
        for token in (0, -1):
            refused(f"target {no_distribution}", [[row, row]], [[[1.0, 0.0]]], [[token]])
    # The last one is found out only because its token is rejected: a sum is taken nowhere else.
    for row in ([np.nan, 0.5], [5.0, -4.0], [-1.0, 2.0], [0.5, 0.1]):
        refused(f"draft {no_distribution}", [[[0.0, 1.0], [1.0, 0.0]]], [[row]], [[0]])


def test_a_race_is_fair_whatever_the_sum_of_the_weights():
    """Rows of weights 1 : 2 : 0 : 5, at any scale; the zero never wins."""
    scales = torch.logspace(-250, 250, 8000, dtype=torch.float64)
    weights = torch.tensor([1.0, 2.0, 0.0, 5.0]).double() * scales[:, None]
    counts = speculative_torch._exponential_race(weights, rng()).bincount(minlength=4)
    assert counts[2] == 0
    expected = np.array([1000, 2000, 5000])
    assert chisquare(counts[[0, 1, 3]], expected).pvalue > FALSE_FAILURE
