"""The losses are those of one pass, whatever the windows."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.architectures import Architecture
from firsttoken.evaluation import (
    bits_per_byte,
    mean_acceptance,
    token_losses,
)
from firsttoken.sampling import softmax
from firsttoken.tokenizer import Tokenizer


class Bigram:
    """A model whose logits depend on the last token only, so that no window can matter."""

    def __init__(self, seed: int, vocab_size: int = 7, max_context: int = 8):
        self.table = np.random.default_rng(seed).normal(size=(vocab_size, vocab_size))
        self.arch = Architecture("bigram", 1, 4, 1, 1, 4, 4, vocab_size, max_context=max_context)

    def __call__(self, tokens, cache=None):
        return self.table[np.asarray(tokens)]


class Positional(Bigram):
    """A model that needs context: it predicts well only from its fourth position on."""

    def __call__(self, tokens, cache=None):
        logits = np.zeros((*np.shape(tokens), 7))
        logits[:, 3:, 0] = 9
        return logits


class Bytes(Tokenizer):
    def __init__(self):
        self.eos_id = 0

    def encode(self, text):
        return [1 + b % 6 for b in text.encode()]


@given(ids=st.lists(st.integers(0, 6), min_size=2, max_size=60), window=st.integers(2, 20))
def test_each_token_is_predicted_once_and_in_order(ids, window):
    model = Bigram(0)
    probabilities = softmax(model.table)
    expected = [-math.log(probabilities[a, b]) for a, b in pairwise(ids)]
    np.testing.assert_allclose(token_losses(model, ids, window), expected)


def test_later_windows_give_every_token_half_a_window_of_context():
    losses = token_losses(Positional(0), [0] * 40, window=8)
    assert (losses[:3] > 1).all() and (losses[3:] < 0.01).all()


@pytest.mark.parametrize(
    ("window", "starts"), [(8, [0, 4, 8, 11]), (5, [*range(0, 14, 2), 14]), (2, range(18))]
)
def test_windows_begin_half_a_window_apart(window, starts):
    """And the last one where it is full."""
    seen = []

    class Watched(Bigram):
        def __call__(self, tokens, cache=None):
            seen.extend(np.asarray(tokens).tolist())
            return super().__call__(tokens)

    token_losses(Watched(0, vocab_size=20), range(20), window)
    assert seen == [[*range(start, start + window)] for start in starts]


def test_bits_per_byte_of_a_uniform_model():
    model = Bigram(0)
    model.table[:] = 0.0
    assert bits_per_byte(model, Bytes(), "abc" * 9) == pytest.approx(math.log2(7))


def test_acceptance_is_one_for_equal_models_and_one_minus_tv_in_general():
    a, b, text = Bigram(1), Bigram(2), "some text of a few bytes"
    assert mean_acceptance(a, a, Bytes(), text) == pytest.approx(1)
    ids = [0, *Bytes().encode(text)][:-1]
    distance = np.abs(softmax(a.table) - softmax(b.table)).sum(-1)[ids] / 2
    assert mean_acceptance(a, b, Bytes(), text) == pytest.approx(1 - distance.mean())


@pytest.mark.parametrize(
    ("ids", "window", "message"),
    [
        ([1], 8, "ids must hold at least 2 tokens, got 1"),
        ([1, 2], 1, "window must be an integer of at least 2, got 1"),
        ([1, 2], 2.5, "window must be an integer of at least 2, got 2.5"),
    ],
)
def test_bad_input_is_named(ids, window, message):
    with pytest.raises(ValueError, match=message):
        token_losses(Bigram(0), ids, window)


def test_without_a_limit_the_text_is_one_window():
    """As long as the model's context by default; a model without one reads it in one pass."""
    ids = [0] * 40
    losses = token_losses(Positional(0, max_context=None), ids)
    assert (losses[:3] > 1).all() and (losses[3:] < 0.01).all()
    windows = []

    class Watched(Bigram):
        def __call__(self, tokens, cache=None):
            windows.append(np.shape(tokens)[1])
            return super().__call__(tokens)

    for max_context, expected in ((None, 39), (8, 8)):
        token_losses(Watched(0, max_context=max_context), ids)
        assert set(windows) == {expected}
        windows.clear()


def test_a_tokenizer_without_an_end_mark_is_named():
    tokens = Bytes()
    tokens.eos_id = None
    for call in (bits_per_byte, lambda *args: mean_acceptance(args[0], *args)):
        with pytest.raises(ValueError, match="tokenizer has no eos_id"):
            call(Bigram(0), tokens, "text")
