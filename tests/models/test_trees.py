"""A tree of tokens in one pass is all its branches, one by one; and one of them stays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.architectures import Architecture
from firsttoken.drafts import branches
from firsttoken.generate.drafting import keep_path
from firsttoken.models.checkpoint import weight_shapes
from firsttoken.models.llama import Llama

ARCH = Architecture("tiny", 2, 16, 4, 2, 4, 32, 30, max_context=64)
PROMPT = [3, 1, 4, 1, 5]

trees = st.integers(1, 7).flatmap(lambda n: st.tuples(*(st.integers(-1, i - 1) for i in range(n))))


def weights(arch=ARCH):
    rng = np.random.default_rng(0)
    return {
        name: (rng.normal(size=s) * 0.4 + ("norm" in name)).astype(np.float32)
        for name, s in weight_shapes(arch).items()
    }


@pytest.fixture(scope="module")
def model():
    return Llama(ARCH, weights())


def branch_by_branch(model, tokens, parents):
    """Return the features of the last token of each branch, each read as a text of its own."""
    texts = (PROMPT + branch for branch in branches(tokens, parents)[1:])
    return np.array([np.asarray(model.features([text]))[0, -1] for text in texts])


@given(parents=trees, n_stored=st.integers(0, 6), n_unread=st.integers(0, 4), data=st.data())
def test_a_tree_is_its_branches(model, parents, n_stored, n_unread, data):
    """In one pass, or in two, the second of which finds the first part in the cache."""
    tokens = data.draw(st.lists(st.integers(0, 29), min_size=len(parents), max_size=len(parents)))
    cache, n_stored = model.new_cache(1, 20), min(n_stored, len(parents) - 1)
    n_read = len(PROMPT) - n_unread
    model([PROMPT[:n_read]], cache)
    parts, unread = [], PROMPT[n_read:]
    for part in (slice(0, n_stored), slice(n_stored, None)):
        if tokens[part]:
            got = model.features([unread + tokens[part]], cache, parents[: part.stop])
            parts.append(np.asarray(got)[0])
            unread = []
    got, text = np.concatenate(parts), model.features([PROMPT])[0, n_read:]
    np.testing.assert_allclose(got[:n_unread], text, atol=1e-4)
    np.testing.assert_allclose(got[n_unread:], branch_by_branch(model, tokens, parents), atol=1e-4)


@given(parents=trees, data=st.data())
def test_the_branch_that_stays_is_as_if_it_alone_had_been_read(model, parents, data):
    tokens = [(7 * i + 3) % 30 for i in range(len(parents))]
    node, kept = data.draw(st.integers(-1, len(parents) - 1)), []
    while node >= 0:
        kept.insert(0, node)
        node = parents[node]
    cache, alone = model.new_cache(1, 20), model.new_cache(1, 20)
    model([PROMPT], cache)
    model.features([tokens], cache, parents)
    keep_path(cache, ARCH.n_layers, len(PROMPT), [len(PROMPT) + i for i in kept])
    model([PROMPT + [tokens[i] for i in kept]], alone)
    assert cache.length == alone.length == len(PROMPT) + len(kept)
    for layer in range(ARCH.n_layers):
        for kind in ("keys", "values"):
            got, expected = (np.asarray(getattr(c, kind)(layer)) for c in (cache, alone))
            np.testing.assert_allclose(got, expected, atol=1e-4)


def test_what_cannot_stay(model):
    cache = model.new_cache(1, 20)
    model([[*PROMPT, 1, 2, 3]], cache)
    for kept in ([4], [6, 6], [7, 6], [8]):
        with pytest.raises(ValueError, match=r"kept .* must rise in 5 … 7"):
            keep_path(cache, ARCH.n_layers, 5, kept)
        assert cache.length == 8


def test_no_tree_through_a_window():
    windowed = Llama(ARCH.replace(window=4), weights())
    with pytest.raises(ValueError, match="window"):
        windowed.features([[1, 2, 3]], windowed.new_cache(1, 20), [-1, 0, 0])
