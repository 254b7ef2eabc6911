"""The losses are those of one pass, whatever the windows."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.architectures import Architecture
from firsttoken.kv_cache import KVCache
from firsttoken.models.evaluation import bits_per_byte, mean_acceptance, token_losses
from firsttoken.models.tokenizer import Tokenizer
from firsttoken.sampling import softmax


class Bigram:
    """A model whose logits depend on the last token only, so that no window can matter.

    What it was shown, and through which cache, is kept in `seen`.
    """

    def __init__(self, seed: int, vocab_size: int = 7, max_context: int = 8):
        self.table = np.random.default_rng(seed).normal(size=(vocab_size, vocab_size))
        self.arch = Architecture("bigram", 1, 4, 1, 1, 4, 4, vocab_size, max_context=max_context)
        self.seen = []

    def __call__(self, tokens, cache=None):
        self.seen.append((np.asarray(tokens), cache))
        return self.table[np.asarray(tokens)]

    def widths(self):
        """Return how long the windows since the last look were."""
        found = {tokens.shape[1] for tokens, _ in self.seen}
        self.seen.clear()
        return found


class Positional(Bigram):
    """A model that needs context: it predicts well only from its fourth position on."""

    def __call__(self, tokens, cache=None):
        logits = np.zeros((*np.shape(tokens), 7))
        logits[:, 3:, 0] = 9
        return logits


class Bytes(Tokenizer):
    def __init__(self):
        self.eos_id, self.start_ids = 0, [0]

    def encode(self, text):
        return [1 + b % 6 for b in text.encode()]


@given(ids=st.lists(st.integers(0, 6), min_size=2, max_size=60), window=st.integers(2, 20))
def test_each_token_is_predicted_once_and_in_order(ids, window):
    """In double precision, whatever the model computes in."""
    model = Bigram(0)
    model.table = model.table.astype(np.float32)
    probabilities = softmax(model.table.astype(np.float64))
    expected = [-math.log(probabilities[a, b]) for a, b in pairwise(ids)]
    losses = token_losses(model, ids, window)
    assert losses.dtype == np.float64
    np.testing.assert_allclose(losses, expected)


def test_later_windows_give_every_token_half_a_window_of_context():
    """They begin half a window apart, and the last one where it is full."""
    losses = token_losses(Positional(0), [0] * 40, window=8)
    assert (losses[:3] > 1).all() and (losses[3:] < 0.01).all()
    for window, starts in [(8, [0, 4, 8, 11]), (5, [*range(0, 14, 2), 14]), (2, range(18))]:
        model = Bigram(0, vocab_size=20)
        token_losses(model, range(20), window)
        rows = [row.tolist() for tokens, _ in model.seen for row in tokens]
        assert rows == [[*range(start, start + window)] for start in starts]


def test_bits_per_byte_of_a_uniform_model():
    """A byte is no character: two characters, four bytes, four tokens of log2(7) bits."""
    model = Bigram(0)
    model.table[:] = 0.0
    for text in ("abc" * 9, "éü"):
        assert bits_per_byte(model, Bytes(), text) == pytest.approx(math.log2(7))


def test_acceptance_is_one_for_equal_models_and_one_minus_tv_in_general():
    a, b, text = Bigram(1), Bigram(2), "some text of a few bytes"
    assert mean_acceptance(a, a, Bytes(), text) == pytest.approx(1)
    ids = [0, *Bytes().encode(text)][:-1]
    distance = np.abs(softmax(a.table) - softmax(b.table)).sum(-1)[ids] / 2
    assert mean_acceptance(a, b, Bytes(), text) == pytest.approx(1 - distance.mean())


def test_bad_input_is_named(subtests):
    for ids, window, message in [
        ([1], 8, "ids must hold at least 2 tokens, got 1"),
        ([1, 2], 1, "window must be an integer of at least 2, got 1"),
        ([1, 2], 2.5, "window must be an integer of at least 2, got 2.5"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            token_losses(Bigram(0), ids, window)
    endless = Bytes()
    endless.start_ids = []
    for models in ([Bigram(0)], [Bigram(0)] * 2):
        with pytest.raises(ValueError, match="tokenizer has no start_ids"):
            (bits_per_byte if len(models) == 1 else mean_acceptance)(*models, endless, "text")


def test_without_a_limit_the_text_is_one_window():
    """As long as the model's context by default; a model without one reads it in one pass."""
    for max_context, expected in ((None, 39), (8, 8)):
        model = Bigram(0, max_context=max_context)
        token_losses(model, [0] * 40)
        assert model.widths() == {expected}


def test_every_window_has_a_cache_of_its_own_in_the_format_that_is_asked_for():
    """Twelve windows of six tokens: a pass of eight and one of four, each with an empty cache."""
    for losses, dtype in [
        (lambda model: token_losses(model, [1] * 40, window=6, cache_dtype="int8"), "int8"),
        (lambda model: bits_per_byte(model, Bytes(), "x" * 39, 6, cache_dtype="int4"), "int4"),
    ]:
        model = Bigram(0)
        losses(model)
        caches = [cache for _, cache in model.seen]
        assert [(c.arch, c.batch, c.capacity, c.dtype, c.length) for c in caches] == [
            (model.arch, n, 6, dtype, 0) for n in (8, 4)
        ]
        assert {type(cache) for cache in caches} == {KVCache}


def test_a_window_may_be_given_for_a_whole_text():
    """From its fourth position on Positional is sure, and here wrong; three are too few."""
    text = "\x05" * 23  # 6 as an id, where the model expects 0
    short, long = (bits_per_byte(Positional(0), Bytes(), text, window=w) for w in (3, 20))
    assert short == pytest.approx(math.log2(7)) and long > short
    pair = Bigram(1, max_context=9), Bigram(2, max_context=5)
    for window, expected in ((None, 5), (3, 3)):
        mean_acceptance(*pair, Bytes(), text, window)
        assert [model.widths() for model in pair] == [{expected}] * 2
