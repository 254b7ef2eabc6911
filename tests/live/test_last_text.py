"""The text that was read last: its logits are the model's, and nothing is read twice."""

from itertools import chain

import numpy as np
import pytest

from firsttoken.live.last_text import LastText
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path

MODEL = load_model("draft")
TEXT = tokenizer().encode(data_path("heldout.txt").read_text()[:2000])
OTHER = [*reversed(TEXT)]


class Counting:
    """A model that notes what it is given to read."""

    def __init__(self):
        self.arch, self.new_cache, self.logits = MODEL.arch, MODEL.new_cache, MODEL.logits
        self.read = []

    def features(self, tokens, cache):
        self.read.append(list(tokens[0]))
        return MODEL.features(tokens, cache)


@pytest.fixture
def model():
    return Counting()


def end_of(reading) -> np.ndarray:
    while True:
        try:
            next(reading)
        except StopIteration as end:
            return end.value


def is_right(logits, ids) -> bool:
    return np.allclose(logits, MODEL([ids])[0, -1], atol=1e-4)


@pytest.mark.parametrize(
    ("before", "ids", "n_new"),
    [
        ([], TEXT[:200], 200),
        (TEXT[:200], TEXT[:200], 0),
        (TEXT[:200], TEXT[:300], 100),
        (TEXT[:200], TEXT[:150], 1),
        (TEXT[:200], [*TEXT[:150], *OTHER[:30]], 30),
        (TEXT[:200], OTHER[:70], 70),
        (TEXT[:200], [*TEXT[:199], OTHER[0]], 1),
        (TEXT[:1], TEXT[:1], 0),
        (TEXT[:2], TEXT[:1], 1),
    ],
)
def test_only_what_is_new_is_read(model, before, ids, n_new):
    last = LastText(model, 300)
    if before:
        end_of(last.read(before))
    model.read.clear()
    assert last.n_known(ids) == len(ids) - n_new
    assert is_right(end_of(last.read(ids)), ids)
    assert [*chain(*model.read)] == ids[len(ids) - n_new :]
    assert max(map(len, model.read), default=0) <= 64
    assert last.cache.length == len(ids) == last.n_known(ids)


def test_it_moves_to_a_larger_cache(model):
    last = LastText(model, 1)
    last.reserve(100)
    end_of(last.read(TEXT[:100]))
    small = last.cache
    last.reserve(100)
    assert last.cache is small
    last.reserve(101)
    assert last.capacity == 200 and last.n_known(TEXT[:200]) == 100
    assert is_right(end_of(last.read(TEXT[:200])), TEXT[:200])
    assert [*chain(*model.read)] == TEXT[:200]


def test_a_reading_may_be_left_off_or_interrupted(model):
    last = LastText(model, 300)
    reading = last.read(TEXT[:200])
    next(reading)
    end_of(last.read(OTHER[:100]))
    assert is_right(end_of(reading), TEXT[:200])
    next(last.read(OTHER[:100]))
    assert last.n_known(OTHER[:100]) == 64
    assert is_right(end_of(last.read(OTHER[:100])), OTHER[:100])


def test_after_an_error_it_goes_on(model):
    last = LastText(model, 300)
    end_of(last.read(TEXT[:100]))
    broken = [*TEXT[:50], MODEL.arch.vocab_size]
    with pytest.raises(ValueError, match="tokens hold ids"):
        end_of(last.read(broken))
    assert last.n_known(TEXT[:100]) == 50
    assert is_right(end_of(last.read(TEXT[:100])), TEXT[:100])


@pytest.mark.parametrize("n", [0, 11])
def test_a_text_that_does_not_fit_is_named(model, n):
    with pytest.raises(ValueError, match=f"ids must hold 1 … 10 tokens, got {n}"):
        next(LastText(model, 10).read(TEXT[:n]))
