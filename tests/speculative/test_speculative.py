"""What comes out of speculative decoding: closed form, symbols, enumeration; claims, section D."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttoken.architectures import ARCHITECTURES
from firsttoken.hardware import ACCELERATORS
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.roofline import model_cost
from firsttoken.sampling import draw
from firsttoken.speculative import (
    Round,
    acceptance_by_position,
    acceptance_rate,
    acceptance_rule,
    best_gamma,
    expected_tokens,
    roofline_costs,
    speedup,
    verify,
    verify_greedy,
)
from firsttoken.speculative.verification import check_distributions

# Zeros are frequent on purpose: they are where 0/0 lives.
weight = st.one_of(st.just(0.0), st.floats(1e-6, 1.0))
distribution = (
    st.lists(weight, min_size=6, max_size=6).filter(any).map(lambda w: np.array(w) / np.sum(w))
)


# The rule


@given(target=distribution, draft=distribution)
def test_the_output_follows_the_target_exactly(target, draft):
    """No sampling: the distribution is computed in closed form, so 1e-12 is rounding only."""
    accept, residual = acceptance_rule(target, draft)
    kept = draft * accept
    output = kept + (1 - kept.sum()) * residual
    np.testing.assert_allclose(output, target, atol=1e-12)
    assert (accept >= 0).all() and (accept <= 1).all() and not kept[target == 0].any()
    assert residual.sum() == pytest.approx(1) and not residual[target == 0].any()


@given(target=distribution, draft=distribution)
def test_acceptance_is_one_minus_total_variation(target, draft):
    rate = acceptance_rate(target, draft)
    assert rate == pytest.approx(1 - np.abs(target - draft).sum() / 2, abs=1e-12)
    assert rate == pytest.approx(draft @ acceptance_rule(target, draft)[0], abs=1e-12)
    assert acceptance_rate(target, target) == pytest.approx(1)


def test_rows_are_independent_and_of_two_precisions_the_higher_one_stays():
    rng = np.random.default_rng(0)
    target, draft = rng.dirichlet(np.ones(5), size=(2, 3, 4))
    accept, residual = acceptance_rule(target, draft)
    rate = acceptance_rate(target, draft)
    assert rate.shape == (3, 4)
    for at in np.ndindex(3, 4):
        one = acceptance_rule(target[at], draft[at])
        np.testing.assert_array_equal((accept[at], residual[at]), one)
        assert rate[at] == acceptance_rate(target[at], draft[at])
    single = target.astype("f4")
    for pair in ((single, draft), (draft, single), (single, draft.astype("f4"))):
        assert {x.dtype for x in acceptance_rule(*pair)} == {np.result_type(*pair)}


# Verification, exactly: every number that the generator could give, on a grid that is fine enough


class Numbers:
    """A generator that returns prepared numbers."""

    def __init__(self, numbers):
        self.numbers = itertools.chain(numbers, itertools.repeat(0.5))

    def random(self, size=()):
        if size == ():
            return np.float64(next(self.numbers))
        return np.array([next(self.numbers) for _ in range(size)])


# With probabilities in thirds every threshold, p / q or a sum within a residual, is a number of
# sixths: the middle of each sixth stands for all of it.
GRID = [(i + 0.5) / 6 for i in range(6)]
THIRDS = [np.array(c) / 3 for c in itertools.product(range(4), repeat=3) if sum(c) == 3]
# A toy model: its first distribution, and those after each token.
toy = st.tuples(*[st.sampled_from(THIRDS)] * 4).map(lambda rows: dict(enumerate(rows, start=-1)))


def joint(model, n, last=-1):
    """Return the distribution of the next n tokens after `last`: an array with n axes."""
    chances = np.ones(())
    for _ in range(n):
        rows = [model[(last, *tokens)[-1]] for tokens in np.ndindex(chances.shape)]
        chances = chances[..., None] * np.reshape(rows, (*chances.shape, 3))
    return chances


def joint_with_round(verify, target, draft, gamma, known=True):
    """Return the distribution of γ+1 tokens: one round, and plain decoding from where that ends."""
    chances = np.zeros((3,) * (gamma + 1))
    for drafted, probability in np.ndenumerate(joint(draft, gamma)):
        if probability > 0:
            p = np.stack([target[last] for last in (-1, *drafted)])
            q = np.stack([draft[last] for last in (-1, *drafted)])[:gamma] if known else None
            for numbers in itertools.product(GRID, repeat=gamma + 1):
                tokens = verify(p, q, drafted, Numbers(numbers))
                rest = joint(target, gamma + 1 - len(tokens), tokens[-1])
                chances[tuple(tokens)] += probability / 6 ** (gamma + 1) * rest
    return chances


def test_one_drafted_token_for_all_pairs_of_distributions():
    after = {last: THIRDS[2 + 3 * last] for last in range(3)}
    for p, q, known in itertools.product(THIRDS, THIRDS, (True, False)):
        target, draft = {-1: p, **after}, {-1: q, **after}
        chances = joint_with_round(verify, target, draft, 1, known)
        np.testing.assert_allclose(chances, joint(target, 2), atol=1e-12)
    np.testing.assert_allclose(joint_with_round(verify, target, target, 0), p, atol=1e-12)


@settings(max_examples=15)
@given(target=toy, draft=toy, known=st.booleans())
def test_the_joint_distribution_of_three_tokens(target, draft, known):
    chances = joint_with_round(verify, target, draft, 2, known)
    np.testing.assert_allclose(chances, joint(target, 3), atol=1e-12)


def variant(flaw=None):
    """`verify` once more, with a flaw."""

    def verify(target, draft, tokens, rng):
        if draft is None:
            draft = np.eye(target.shape[1])[list(tokens)]
        rows = range(len(tokens))
        if flaw == "draft one position late":
            draft = draft[[max(i - 1, 0) for i in rows]]
        for i, token, u in zip(rows, tokens, rng.random(len(tokens)), strict=True):
            p, q = target[i, token], draft[i, token]
            ratio = np.divide(q, p) if flaw == "p and q swapped" else np.divide(p, q)
            if u <= ratio if flaw == "at most" else u < ratio:
                continue
            residual = (
                target[i] if flaw == "no residual" else acceptance_rule(target[i], draft[i])[1]
            )
            kept = [*tokens[:i], int(draw(residual, rng))]
            if flaw == "bonus after a rejection":
                kept.append(int(draw(target[-1], rng)))
            return kept
        return [*tokens, int(draw(target[-1], rng))]

    return verify


TARGET = {-1: THIRDS[4], 0: THIRDS[1], 1: THIRDS[7], 2: THIRDS[5]}
DRAFT = {-1: THIRDS[5], 0: THIRDS[3], 1: THIRDS[2], 2: THIRDS[4]}


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_flaws_change_the_distribution():
    expected = joint(TARGET, 3)
    np.testing.assert_allclose(joint_with_round(variant(), TARGET, DRAFT, 2), expected, atol=1e-12)
    for flaw in (
        *("p and q swapped", "no residual", "bonus after a rejection"),
        "draft one position late",
    ):
        got = joint_with_round(variant(flaw), TARGET, DRAFT, 2)
        assert np.abs(got - expected).max() > 0.01, flaw


def test_a_token_of_probability_zero_is_never_accepted():
    """Not even where the generator gives exactly 0 (D6)."""
    target, draft = np.array([[1.0, 0.0]] * 2), np.array([[0.5, 0.5]])
    for known in (draft, None):
        assert verify(target, known, [1], Numbers([0.0])) == [0]
        assert variant("at most")(target, known, [1], Numbers([0.0])) == [1, 0]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 3))), st.integers(0, 3))
def test_greedy_verification_is_that_of_distributions_with_one_token(drafts, last):
    tokens = [token for token, _, _ in drafts]
    choices = [token if agree else other for token, agree, other in drafts] + [last]
    one_hot, rng = np.eye(4), np.random.default_rng(0)
    got = verify_greedy(choices, tokens)
    assert got == verify(one_hot[choices], one_hot[tokens], tokens, rng)
    assert got == verify(one_hot[choices], None, tokens, rng)
    assert len(got) >= 1 and got == choices[: len(got)]


def test_a_row_may_miss_1_by_rounding_alone_along_the_last_axis_of_any_shape():
    rng = np.random.default_rng(0)
    for shape in ((), (2,), (2, 3), (3, 2, 2)):
        rows = rng.dirichlet(np.ones(4), size=shape)
        check_distributions("rows", 1.0005 * rows)
        with pytest.raises(ValueError, match="rows must hold a distribution"):
            check_distributions("rows", np.moveaxis(rows, -1, 0) + 0.1)


def test_wrong_arguments_are_named():
    def refused(message, function, *arguments, **named):
        with pytest.raises(ValueError, match=message):
            function(*(np.array(a) if isinstance(a, list) else a for a in arguments), **named)

    two, per_row = np.eye(2), "must hold a distribution per row"
    refused(r"target \(2, 2\) .* 2 tokens", verify, two, two, [0, 1], None)
    refused(r"draft \(3, 3\) must be \(1, 2\)", verify, two, np.eye(3), [0], None)
    refused(r"tokens \[2\] must be ids in 0 … 1", verify, two, None, (2,), None)
    zero = r"tokens\[0\] is 1, which draft has with probability 0"
    refused(zero, verify, two, [[1.0, 0.0]], (1,), np.random.default_rng(0))
    refused(f"target {per_row}", verify, two * np.nan, None, (0,), None)
    refused(f"draft {per_row}", verify, two, [[3.0, 1]], (0,), None)
    refused("accept more than was drafted", acceptance_by_position, (Round(2, 5),))
    refused(r"choices \(1\) must be one more", verify_greedy, (1,), (1,))
    for function in (acceptance_rule, acceptance_rate):
        refused(r"target \(2,\) and draft \(3,\)", function, np.ones(2), np.ones(3))
    for alpha in (1.1, np.nan):
        refused("alpha must lie in 0 … 1", expected_tokens, alpha, 2)
    for gamma in (-1, 1.5, True):
        refused(f"gamma must be .* of at least 0, got {gamma}", expected_tokens, 0.5, gamma)
    refused("cost_ratio must not be negative", speedup, 0.5, 2, -0.1)
    refused("verify_cost must be above 0, got 0 at gamma 2", speedup, 0.5, 2, 0.1, 0)
    refused("max_gamma must be an integer of at least 0", best_gamma, 0.5, 0.1, max_gamma=-1)


# Expected tokens and speed


@given(alpha=st.floats(0, 1), gamma=st.integers(0, 20))
def test_expected_tokens_count_the_ways_a_round_can_end(alpha, gamma):
    """i kept and the next rejected, or all γ kept: the mean over these ends (Z5)."""
    ends = [alpha**i * (1 - alpha) for i in range(gamma)] + [alpha**gamma]
    mean = sum((i + 1) * p for i, p in enumerate(ends))
    assert expected_tokens(alpha, gamma) == pytest.approx(mean)
    assert 1 <= expected_tokens(alpha, gamma) <= gamma + 1
    if alpha < 1:
        closed = (1 - alpha ** (gamma + 1)) / (1 - alpha)
        assert expected_tokens(alpha, gamma) == pytest.approx(closed, rel=1e-6)


def test_expected_tokens_at_the_ends_and_for_arrays():
    assert expected_tokens(0, 7) == 1 and expected_tokens(1, 7) == 8
    alphas = np.array([[0.2, 0.5], [0.9, 1.0]])
    assert expected_tokens(alphas, 3).shape == (2, 2)
    assert speedup(alphas, 3, 0.1)[1, 0] == speedup(0.9, 3, 0.1)
    for dtype in (np.int64, np.float16, np.float32):  # no digits are lost, whatever comes
        got = expected_tokens(np.array([0, 1], dtype), 3000)
        assert got.tolist() == [1, 3001] and got.dtype == np.float64


@given(alpha=st.floats(0, 1), gamma=st.integers(0, 12), cost=st.floats(0, 2))
def test_speedup_is_tokens_over_cost(alpha, gamma, cost):
    gain = speedup(alpha, gamma, cost)
    assert gain == pytest.approx(expected_tokens(alpha, gamma) / (1 + gamma * cost))
    assert speedup(alpha, gamma, cost, 2.0) <= gain
    assert speedup(alpha, 0, cost, 2.0) == 1


def test_verify_cost_may_depend_on_gamma():
    assert speedup(1, 3, 0, lambda gamma: 1 + gamma) == 1  # checking as slow as generating
    assert best_gamma(1, 0, lambda gamma: 1 + gamma) == 0
    steps = {1: 1.1, 2: 1.1, 3: 1.1, 4: 3, 5: 3}  # a kernel that is fast up to four rows
    assert best_gamma(0.8, 0.1, steps.__getitem__, max_gamma=5) == 3


@given(alpha=st.floats(0, 1), cost=st.floats(0, 1))
def test_some_gamma_pays_if_and_only_if_alpha_is_above_the_cost(alpha, cost):
    """Leviathan's corollary 3.9, and its converse (D25)."""
    best = best_gamma(alpha, cost)
    gains = [speedup(alpha, g, cost) for g in range(33)]
    assert gains[best] == max(gains)
    if abs(alpha - cost) > 1e-9:
        assert (best > 0) == (alpha > cost)
    if alpha > cost:
        assert gains[best] >= (1 + alpha) / (1 + cost) * (1 - 1e-12)


# Counting


@given(st.lists(st.integers(0, 4).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d)))))
def test_acceptance_by_position_counts_reached_positions(rounds):
    """What was never reached has none."""
    alpha, reached = acceptance_by_position([Round(*r) for r in rounds])
    assert len(alpha) == max((drafted for drafted, _ in rounds), default=0)
    for i in range(len(alpha)):
        tried = [accepted > i for drafted, accepted in rounds if drafted > i <= accepted]
        assert reached[i] == len(tried)
        np.testing.assert_allclose(alpha[i], np.mean(tried) if tried else np.nan)


# What a draft and a check cost in a batch

PAIR = ARCHITECTURES["Llama-3.1-8B"], ARCHITECTURES["Llama-3.2-1B"]
H100 = ACCELERATORS["H100-SXM"]


@given(batch=st.integers(1, 2000), context=st.integers(1, 50_000), gamma=st.integers(0, 8))
def test_costs_lie_between_weights_and_caches(batch, context, gamma):
    """A draft's step never costs less than the smaller of the two ratios, nor more than the larger;
    a check never less than a step, nor more than its tokens one by one."""
    cost_ratio, check = roofline_costs(*PAIR, H100, batch, context, gamma)
    target, draft = PAIR
    weights = draft.n_params / target.n_params
    caches = kv_cache_bytes(draft, 1) / kv_cache_bytes(target, 1)
    arithmetic = draft.n_matmul_params / target.n_matmul_params
    assert min(weights, arithmetic) * 0.999 < cost_ratio < caches * 1.001
    assert 0.999 < check < (1 + gamma) * (1 + gamma / context) * 1.001
    longer, _ = roofline_costs(*PAIR, H100, batch, 2 * context, gamma)
    assert longer > cost_ratio * 0.999


def test_costs_of_a_batch_by_hand():
    """256 readers of 1,024 tokens: a step waits for bytes, a check of two for its arithmetic."""
    times = []
    for arch, n_new in ((PAIR[0], 1), (PAIR[1], 1), (PAIR[0], 2)):
        read = 2 * arch.n_params / 3.35e12
        multiply = 2 * 256 * n_new * arch.n_matmul_params / H100.peak("bf16")
        cache = 256 * (1023 + n_new) * kv_cache_bytes(arch, 1) / 3.35e12
        times.append(max(read, multiply) + cache)
    assert roofline_costs(*PAIR, H100, 256, 1023 + 1, 1) == pytest.approx(
        (times[1] / times[0], times[2] / times[0]), rel=1e-3
    )
    alone = [model_cost(arch, 1, 1, 64).bytes for arch in PAIR]  # one reader waits for bytes only
    assert roofline_costs(*PAIR, H100, 1, 64, 4)[0] == pytest.approx(alone[1] / alone[0])


def test_costs_refuse():
    for changes, named in (((0, 64, 1), "batch"), ((1, 0, 1), "context"), ((1, 64, -1), "gamma")):
        with pytest.raises(ValueError, match=named):
            roofline_costs(*PAIR, H100, *changes)
