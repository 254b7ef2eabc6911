"""Two draws agree as their definition says; plausible other rules do not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.TOPIC import agreement, effective_choices

# Zeros are frequent on purpose: most tokens of a real vocabulary are next to impossible.
weight = st.one_of(st.just(0.0), st.floats(1e-3, 1.0))
distribution = (
    st.lists(weight, min_size=1, max_size=8).filter(any).map(lambda w: np.array(w) / np.sum(w))
)


@given(p=distribution)
def test_it_is_the_diagonal_of_all_pairs(p):
    """The definition: every pair of draws, of which those that agree are added up."""
    assert np.isclose(agreement(p), np.trace(np.outer(p, p)))


@given(p=distribution)
def test_it_lies_between_even_and_certain(p):
    assert 1 / len(p) - 1e-12 <= agreement(p) <= p.max() + 1e-12
    assert np.isclose(effective_choices(p) * agreement(p), 1)


@given(p=distribution, seed=st.integers(0, 99))
def test_the_order_of_the_tokens_and_impossible_ones_do_not_matter(p, seed):
    mixed = np.random.default_rng(seed).permutation([*p, 0.0])
    assert np.isclose(agreement(mixed), agreement(p))


def test_each_row_is_a_distribution_of_its_own():
    rows = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    np.testing.assert_allclose(agreement(rows), [0.5, 1.0])
    np.testing.assert_allclose(effective_choices(rows), [2.0, 1.0])


def test_draws_agree_as_often_as_it_says():
    """40,000 pairs; a share beyond 5 standard deviations has a probability below 1e-6."""
    p = np.array([0.6, 0.3, 0.1])
    first, second = np.random.default_rng(0).choice(3, size=(2, 40_000), p=p)
    deviation = np.sqrt(agreement(p) * (1 - agreement(p)) / 40_000)
    share = np.mean(first == second)
    assert abs(share - agreement(p)) < 5 * deviation
    for wrong in (p.max(), 1 / len(p), np.sqrt(np.sum(p**2))):
        assert abs(share - wrong) > 5 * deviation


@pytest.mark.parametrize("p", [[0.5, 0.6], [1.5, -0.5], 1.0])
def test_what_is_no_distribution_is_refused(p):
    with pytest.raises(ValueError, match="p must hold probabilities that sum to 1"):
        agreement(p)
