"""Drafts that see features: the text is the target's own, whatever they guess."""

import itertools
from contextlib import nullcontext
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from safetensors.numpy import save_file

from firsttoken.architectures import Architecture
from firsttoken.drafts import FirstDraft, SuffixDraft, branches
from firsttoken.drafts import heads as draft_heads
from firsttoken.drafts.growing import by_level, grow_tree
from firsttoken.drafts.heads import (
    EagleDraft,
    FeatureDraft,
    LikelyDraft,
    MedusaDraft,
    RecurrentDraft,
)
from firsttoken.generate import generate, prompt_lookup, speculative_generate
from firsttoken.generate.sequence import TextOptions, TokenSequence
from firsttoken.models.llama import Llama, load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.quantization import quantize
from firsttoken.sampling import SamplingParams
from firsttoken.sampling.constrained import Constraint, Regex
from generate.test_generate import (
    FALSE_FAILURE,
    distribution_of_text,
    p_value,
    random_weights,
    texts,
)

ARCH = Architecture("tiny", 2, 16, 4, 2, 4, 32, 30, tied_embeddings=True, max_context=64)
TREE = [-1, -1, 0, 0, 1, 2]


@pytest.fixture(scope="module")
def target():
    return Llama(ARCH, random_weights(ARCH))


def medusa(target, tree=None):
    rng = np.random.default_rng(1)
    return MedusaDraft(target, 0.3 * rng.normal(size=(3, 16, 16)), tree)


def recurrent(target, tree=None, min_confidence=0.0):
    rng = np.random.default_rng(2)
    weights = 0.3 * rng.normal(size=(20, 32)), 0.3 * rng.normal(size=(16, 20))
    return RecurrentDraft(target, weights, tree, min_confidence)


def sure(target, tree=None):
    return recurrent(target, tree, min_confidence=0.3)


def likely(target, tree=None):
    """EAGLE that knows 20 of the 30 tokens."""
    rng = np.random.default_rng(3)
    layer = random_weights(ARCH.replace(n_layers=1)) | {"fc.weight": rng.normal(size=(16, 32))}
    stored = {"vocabulary": np.arange(5, 25, dtype=np.int32)}
    for name, weight in layer.items():
        if name == "model.embed_tokens.weight":
            continue
        stored[name] = weight.astype(np.float32)
        if weight.ndim == 2:
            rounded = quantize(weight, 8, axis=0)
            stored |= {f"{name}.scale": rounded.scale, name: rounded.codes.astype(np.int8)}
    with TemporaryDirectory() as folder:
        save_file(stored, f"{folder}/model.safetensors")
        return LikelyDraft(target, f"{folder}/model.safetensors", tree)


def in_turn(target, tree=None):
    """Prompt lookup where it finds something, and else the recurrent head."""
    return FirstDraft(SuffixDraft(min_match=1), recurrent(target, tree))


class Oracle(FeatureDraft):
    """Knows what the target will say, and says it, so that everything is kept."""

    def _look(self, request, features):
        def look(tokens, parents, n_last):
            texts = [request.ids + branch for branch in branches(tokens, parents)[-n_last:]]
            return np.array([self._target([text])[0, -1] for text in texts])

        return look


@pytest.mark.parametrize("kind", [medusa, recurrent, sure, in_turn, likely, Oracle])
def test_at_temperature_0_the_text_is_the_target_s(target, kind):
    params = SamplingParams(temperature=0, max_tokens=25)
    plain = generate(target, [1, 2, 3], params).ids
    for tree, n in itertools.product((None, TREE), (0, 1, 3, 6)):
        draft = kind(target, tree=tree)
        got = speculative_generate(target, draft, [1, 2, 3], params, n)
        assert got.ids == plain, (tree, n)


@pytest.mark.parametrize("kind", [medusa, recurrent, sure, in_turn, likely, Oracle])
def test_drawn_texts_follow_the_target(target, kind):
    """Three tokens, 500 times; every filter and penalty applied to target and guesses alike."""
    for params in (
        SamplingParams(top_k=3),
        SamplingParams(temperature=0.5, top_p=0.9, frequency_penalty=1.0),
    ):
        expected_shares = distribution_of_text(target, [1, 2], params, 3)
        for tree in (None, [-1, -1, 0]):
            got = texts(500, target, kind(target, tree=tree), [1, 2], params, gamma=3)
            assert p_value(got, expected_shares) > FALSE_FAILURE, (params, tree)


@pytest.mark.parametrize(("kind", "n_guesses"), [(Oracle, 4), (medusa, 3)])
def test_without_a_tree_the_guesses_are_a_chain(target, kind, n_guesses):
    """As long as is wanted, or as the heads are many; who knows what comes has all of it kept."""
    params = SamplingParams(temperature=0, max_tokens=25)
    got = speculative_generate(target, kind(target), [1, 2, 3], params, 4, ignore_eos=True)
    middle = got.rounds[1:4]  # the draft sees no features before the first, and the last is short
    assert [each.drafted for each in middle] == [n_guesses] * 3
    if kind is Oracle:
        assert [each.accepted for each in middle] == [n_guesses] * 3


def test_guesses_end_with_the_text(target):
    """Nothing is guessed behind an end of text, and nothing that a constraint forbids."""
    request = TokenSequence(
        type("M", (), {"arch": ARCH, "eos_ids": (7,)}), [1], SamplingParams(temperature=0)
    )
    ends, goes = np.zeros(30), np.zeros(30)
    ends[[7, 8]] = 2, 1
    goes[9] = 1
    got = grow_tree(request, [-1, -1, 0, 1], by_level(np.array([ends, goes])))
    assert (got.tokens, got.parents) == ([7, 8, 9], [-1, -1, 1])
    tok = tokenizer()
    shipped, params = load_model("target"), SamplingParams(temperature=0, max_tokens=12)
    vocabulary = [tok.token_bytes(i) for i in range(tok.vocab_size)]
    digits = Constraint(Regex("[0-9]{1,8}"), vocabulary, [tok.eos_id])
    draft = MedusaDraft(shipped, np.zeros((2, 192, 192)), tree=[-1, -1, 0])
    prompt = tok.encode("x = ")
    plain = generate(shipped, prompt, params, constraint=digits)
    got = speculative_generate(shipped, draft, prompt, params, constraint=digits)
    assert got.ids == plain.ids and got.finish_reason == plain.finish_reason


def test_the_heads_that_ship_guess_the_better_the_more_they_read():
    """Medusa's know the last state alone, the recurrent one tokens besides, EAGLE all of them."""
    shipped, tok = load_model("target"), tokenizer()
    ids = tok.encode_document("import os\n\ndef main():\n    for name in os.listdir(folder):\n")
    params = SamplingParams(temperature=0, max_tokens=60)
    n_rounds = [
        len(speculative_generate(shipped, make(shipped), ids, params, 3).rounds)
        for make in (MedusaDraft, RecurrentDraft, EagleDraft)
    ]
    assert 60 > n_rounds[0] > n_rounds[1] > n_rounds[2]


def test_behind_an_unsure_guess_no_more_is_guessed(target):
    """It is still there itself, and its siblings go on."""
    q = np.full(30, 1e-9)
    q[[3, 4]] = 0.7, 0.3
    look = by_level(np.log(np.array([q, q, q]) / q.sum()))
    for temperature in (0, 1):
        params = SamplingParams(temperature, seed=0)
        request = TokenSequence(target, [1], params, options=TextOptions(ignore_eos=True))
        whole, got = (grow_tree(request, TREE, look, least) for least in (0.2, 0.5))
        assert len(whole.tokens) == 6
        assert {3, 4} == set(got.tokens[:2]) and got.parents[:2] == [-1, -1]
        assert all(got.tokens[parent] == 3 for parent in got.parents[2:])
        assert got.tokens.index(3) in got.parents
        assert len(grow_tree(request, [-1, 0, 1], look, 0.8).tokens) == 1


def test_the_first_that_has_a_guess_makes_all(target):
    """And who was not asked has seen the text all the same."""
    asked, second = [], recurrent(target)
    propose = second.propose
    second.propose = lambda request, n: asked.append(len(request.ids)) or propose(request, n)
    params = SamplingParams(temperature=0, max_tokens=30)
    draft = FirstDraft(SuffixDraft(min_match=1), second)
    plain = generate(target, [1, 2, 3, 1, 2], params).ids
    got = speculative_generate(target, draft, [1, 2, 3, 1, 2], params)
    assert got.ids == plain and 0 < len(asked) < len(got.rounds)
    nothing = speculative_generate(target, FirstDraft(SuffixDraft(99)), [1, 2], params)
    assert nothing.drafted == 0
    for wrong in ((), (3,), (SuffixDraft(), None)):
        with pytest.raises(ValueError, match=r"drafts must be one or more, .* got \("):
            FirstDraft(*wrong)


def test_siblings_are_unlike_and_in_order(target):
    logits = np.log(np.arange(1.0, 31))[None]
    sure, drawn = (
        grow_tree(
            TokenSequence(target, [1], SamplingParams(temperature, top_k=4, seed=0)),
            [-1] * 6,
            by_level(logits),
        )
        for temperature in (0, 1)
    )
    assert sure.tokens == [29, 28, 27, 26, 25, 24] and sure.distributions is None
    # top-k leaves four, and a draft cannot draw more
    assert sorted(drawn.tokens) == [26, 27, 28, 29] and drawn.parents == [-1] * 4
    np.testing.assert_array_equal(drawn.distributions, drawn.distributions[[0] * 4])


@pytest.mark.parametrize("temperature", [0, 1])
def test_what_a_draft_does_not_know_it_never_guesses(target, temperature):
    """The text has other tokens, too: they are the target's own."""
    guessed, seen = set(), set()
    draft = likely(target, TREE)
    for seed in range(20):
        request = TokenSequence(target, [3, 1, 4], SamplingParams(temperature, seed=seed))
        proposal = grow_tree(request, TREE, draft.look(request, target.features([[3, 1]])[0]))
        guessed |= set(proposal.tokens)
        params = SamplingParams(temperature, max_tokens=20, seed=seed)
        seen |= set(speculative_generate(target, draft, [3, 1, 4], params, 6).ids)
    assert guessed <= set(range(5, 25)) and not seen <= set(range(5, 25))


def test_a_draft_takes_as_many_threads_as_its_target(target, monkeypatch):
    """On a busy machine a second thread waits, in a product as small as this."""
    draft, taken = likely(target), []
    draft.layer.n_threads = 1
    monkeypatch.setattr(draft_heads, "blas_threads", lambda n: taken.append(n) or nullcontext())
    draft.look(TokenSequence(target, [3, 1, 4], SamplingParams()), target.features([[3, 1]])[0])
    assert taken == [1]


def test_the_suffix_draft_finds_what_a_look_up_finds():
    """With n-grams as long as the text, and the first place instead of the last."""
    target, tok = load_model("target"), tokenizer()
    prompt = tok.encode("for i in range(10):\n    print(i)\nfor i in range(10):\n")
    params = SamplingParams(temperature=0, max_tokens=30)
    plain = generate(target, prompt, params).ids
    got = speculative_generate(target, SuffixDraft(), prompt, params)
    again = speculative_generate(target, lambda ids, n: prompt_lookup(ids, 99, n), prompt, params)
    assert got.ids == again.ids == plain and got.accepted > 5


def test_what_does_not_fit_says_so(target):
    weights = np.zeros((8, 16)), np.zeros((16, 8))
    with pytest.raises(ValueError, match=r"heads \(2, 8, 8\) must be \(n, D, D\)"):
        MedusaDraft(target, np.zeros((2, 8, 8)))
    with pytest.raises(ValueError, match=r"\(8, 16\) and \(16, 8\) must be \(n, 2D\) and \(D, n\)"):
        RecurrentDraft(target, weights)
    with pytest.raises(ValueError, match="min_confidence must lie in 0 … 1, got 2"):
        recurrent(target, min_confidence=2)
    with pytest.raises(ValueError, match=r"config\.json"):
        EagleDraft(target, "nowhere")
    with pytest.raises(ValueError, match="file must be one of a draft's weights, got 'nowhere'"):
        LikelyDraft(target, "nowhere")
