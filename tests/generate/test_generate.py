"""The token loop: cached equals uncached, and every way to stop."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import LlamaForCausalLM

from firsttoken.architectures import Architecture
from firsttoken.drafts import branches
from firsttoken.generate import Proposal, generate, prompt_lookup, speculative_generate
from firsttoken.kv_cache import KVCache
from firsttoken.models import llama, llama_torch
from firsttoken.models.checkpoint import weight_shapes
from firsttoken.models.tokenizer import tokenizer
from firsttoken.sampling import SamplingParams, draw, next_token_distribution
from firsttoken.sampling.constrained import Constraint, Regex
from firsttoken.speculative import acceptance_rule

BACKENDS = ["numpy", "torch"]
ARCH = Architecture("tiny", 2, 32, 4, 2, 8, 64, 50, max_context=64)


def random_weights(arch=ARCH, seed=0):
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(size=s) * 0.3 + ("norm" in name)).astype(np.float32)
        for name, s in weight_shapes(arch).items()
    }


@pytest.fixture(scope="module", params=BACKENDS)
def model(request):
    module = llama if request.param == "numpy" else llama_torch
    return module.Llama(ARCH, random_weights())


class Script:
    """A model that says what it is told, and counts what it is asked to compute."""

    def __init__(self, ids, vocab_size=1024, max_context=None, eos_ids=()):
        self.arch = Architecture(*("script", 1, 2, 1, 1, 2, 2, vocab_size), max_context=max_context)
        self.ids, self.eos_ids, self.passes = list(ids), eos_ids, []

    def new_cache(self, batch, capacity):
        self.capacity, self.length = capacity, 0
        return self

    def __call__(self, tokens, cache=None):
        n_new = np.shape(tokens)[1]
        self.passes.append(n_new)
        if cache is not None:
            cache.length += n_new
            assert cache.length <= self.capacity
        logits = np.zeros((1, n_new, self.arch.vocab_size))
        step = len(self.passes) - 1
        logits[0, -1, self.ids[step % len(self.ids)]] = 9.0
        return logits


def greedy(**changes):
    return SamplingParams(temperature=0.0, **changes)


@given(prompt=st.lists(st.integers(0, 49), min_size=1, max_size=30), max_tokens=st.integers(1, 30))
def test_the_cache_changes_nothing_but_the_time(model, prompt, max_tokens):
    params = greedy(max_tokens=max_tokens)
    cached, naive = (generate(model, prompt, params, use_cache=c) for c in (True, False))
    assert cached.ids == naive.ids and len(cached.ids) == max_tokens
    assert cached.finish_reason == naive.finish_reason == "length"


def test_equal_to_transformers(tmp_path):
    config = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50}
    torch.manual_seed(0)
    reference = LlamaForCausalLM(LlamaForCausalLM.config_class(**config)).eval()
    with torch.no_grad():
        for weight in reference.parameters():
            weight.mul_(10 if weight.ndim == 2 else 1)  # clear winners, no near-ties
    reference.save_pretrained(tmp_path)
    prompt = [3, 1, 4, 1, 5]
    expected = reference.generate(
        torch.tensor([prompt]),
        do_sample=False,
        max_new_tokens=20,
        eos_token_id=None,
        pad_token_id=0,
    )
    for backend in BACKENDS:
        got = generate(
            llama.load_model(tmp_path, backend), prompt, greedy(max_tokens=20), ignore_eos=True
        )
        assert got.ids == expected[0, len(prompt) :].tolist()


def test_prefill_is_one_pass_and_each_token_one_more():
    """N tokens need the prompt's pass and N - 1 decode passes: the last is never fed back."""
    script, seen = Script([5, 6, 7]), []
    params = greedy(max_tokens=3)
    got = generate(
        script, [1, 2, 3, 4], params, on_token=lambda i: seen.append((i, len(script.passes)))
    )
    assert script.passes == [4, 1, 1]
    assert got.ids == [5, 6, 7] and seen == [(5, 1), (6, 2), (7, 3)]
    assert got.token_times_s == sorted(got.token_times_s) and len(got.token_times_s) == 3
    assert 0 < got.prefill_s <= got.token_times_s[0]
    naive = Script([5, 6, 7])
    assert generate(naive, [1, 2, 3, 4], params, use_cache=False).ids == [5, 6, 7]
    assert naive.passes == [4, 5, 6]


TOK = tokenizer()
BYTES = [bytes([i]) for i in range(49)] + [b""]
PATTERN = Regex(r"[\x01-\x05]{3}[\x06-\x1f]{0,4}\x30")


# Speculative decoding: another way to the same text.


class Watched:
    """A model that checks before each pass that its cache holds the text, and nothing else."""

    def __init__(self, model, text):
        self.model, self.arch, self.eos_ids = model, model.arch, model.eos_ids
        self.text, self.read, self.n_new = text, [], []

    def new_cache(self, batch, capacity):
        return self.model.new_cache(batch, capacity)

    def __call__(self, tokens, cache):
        self.read[cache.length :] = tokens[0]
        self.n_new.append(len(tokens[0]))
        assert self.read[: len(self.text)] == self.text
        logits = self.model(tokens, cache)
        fresh = self.model.new_cache(1, len(self.read))
        expected = np.asarray(self.model([self.read], fresh))
        assert cache.length == len(self.read)
        np.testing.assert_allclose(logits, expected[:, -len(tokens[0]) :], atol=1e-4)
        for layer in range(self.arch.n_layers):
            np.testing.assert_allclose(cache.keys(layer), fresh.keys(layer), atol=1e-4)
            np.testing.assert_allclose(cache.values(layer), fresh.values(layer), atol=1e-4)
        return logits


def noisy_weights(share):
    noise = random_weights(seed=1)
    return {n: (1 - share) * w + share * noise[n] for n, w in random_weights().items()}


@pytest.fixture(scope="module")
def other(model):
    """A draft that is right now and then."""
    return type(model)(ARCH, noisy_weights(0.05))


@given(
    prompt=st.lists(st.integers(0, 49), min_size=1, max_size=30),
    max_tokens=st.integers(1, 12),
    gamma=st.integers(0, 8),
    penalty=st.sampled_from([1.0, 1.5]),
    presence=st.sampled_from([0.0, 1.0]),
)
@settings(max_examples=20)
def test_greedy_text_is_that_of_the_target_alone(
    model, other, prompt, max_tokens, gamma, penalty, presence
):
    """For every γ and penalty; both caches hold the text and nothing else at every pass."""
    params = greedy(max_tokens=max_tokens, repetition_penalty=penalty, presence_penalty=presence)
    plain, text = generate(model, prompt, params), list(prompt)
    target, draft = Watched(model, text), Watched(other, text)
    got = speculative_generate(target, draft, prompt, params, gamma, on_token=text.append)
    assert (got.ids, got.finish_reason) == (plain.ids, plain.finish_reason)
    assert text == [*prompt, *got.ids] and len(got.token_times_s) == len(got.ids)
    assert len(got.rounds) == len(target.n_new)
    assert sum(r.accepted + 1 for r in got.rounds) == len(got.ids)  # no end but the length
    assert all(n_new <= 2 for n_new in draft.n_new[1:])  # the crossing token and the last


def noisy(share):
    return llama.Llama(ARCH, noisy_weights(share))


class Reciter:
    """A model that recites, whatever was said: the text goes on as its position has it."""

    def __init__(self, text, max_context=None, eos_ids=()):
        self.arch = Architecture("reciter", 1, 2, 1, 1, 2, 2, 1024, max_context=max_context)
        self.text, self.eos_ids = text, eos_ids

    def new_cache(self, batch, capacity):
        return KVCache(self.arch, batch, capacity)

    def __call__(self, tokens, cache):
        n_new = len(tokens[0])
        assert n_new > 0
        positions = np.arange(cache.length, cache.length + n_new)
        cache.append(0, *np.zeros((2, 1, 1, n_new, 2)))
        return 9.0 * np.eye(1024)[np.take(self.text, positions, mode="clip")][None]


@settings(max_examples=200)
@given(
    text=st.text("ab ", min_size=1, max_size=20),
    slips=st.sets(st.integers(0, 20)),
    stop=st.lists(st.text("ab ", min_size=1, max_size=4), max_size=2),
    max_tokens=st.integers(1, 20),
    max_context=st.none() | st.integers(2, 15),
    eos=st.sets(st.sampled_from(TOK.encode("abab  b"))),
    ignore_eos=st.booleans(),
    gamma=st.integers(0, 6),
)
def test_speculation_ends_where_plain_decoding_ends(
    text, slips, stop, max_tokens, max_context, eos, ignore_eos, gamma
):
    """End of text, stop strings, both limits: in the middle of a round as anywhere."""
    ids = TOK.encode(text)
    target = Reciter(ids, max_context, tuple(eos))
    wrong = Reciter([0 if i in slips else token for i, token in enumerate(ids)], max_context)
    params, options = greedy(max_tokens=max_tokens, stop=tuple(stop)), {"tokenizer": TOK}
    options["ignore_eos"] = ignore_eos
    plain = generate(target, [1], params, **options)
    for draft in (wrong, lambda seen, n: wrong.text[len(seen) - 1 :][: n + 1]):  # one too many
        seen = []
        options["on_token"] = seen.append
        got = speculative_generate(target, draft, [1], params, gamma, **options)
        assert (got.ids, got.text) == (plain.ids, plain.text)
        assert got.finish_reason == plain.finish_reason
        assert seen == got.ids and len(got.token_times_s) == len(seen)
        assert got.token_times_s == sorted(got.token_times_s)
        assert all(r.accepted <= r.drafted <= gamma for r in got.rounds)
        assert sum(r.accepted + 1 for r in got.rounds) >= len(seen)


@settings(max_examples=15)
@given(
    gamma=st.integers(1, 6),
    close_in_time=st.booleans(),
    max_tokens=st.integers(5, 12),
    guesses=st.lists(st.integers(0, 49), max_size=6),
)
def test_speculation_under_a_constraint(model, other, gamma, close_in_time, max_tokens, guesses):
    """Forbidden guesses are cut; what a model drafts is masked as the target is."""
    constraint = Constraint(PATTERN, BYTES, [49])
    options = {"constraint": constraint, "close_in_time": close_in_time}
    params = greedy(max_tokens=max_tokens)
    plain = generate(model, [1, 2], params, **options)
    for draft in (other, lambda ids, n: guesses, lambda ids, n: [1, 2, 3, 48, 49, 49]):
        got = speculative_generate(model, draft, [1, 2], params, gamma, **options)
        assert (got.ids, got.finish_reason) == (plain.ids, plain.finish_reason)
    assert constraint.min_tokens() == 5  # left as it was


# The distribution of sampled text, through the whole loop. One number for all tests: no more than
# one false failure in a million.
FALSE_FAILURE = 1e-6


def distribution_of_text(model, prompt, params, n):
    """Return {ids: probability} of the first n tokens, without drafts and without a cache."""
    expected_shares = {(): 1.0}
    for _ in range(n):
        longer = {}
        for ids, chance in expected_shares.items():
            logits = np.asarray(model([[*prompt, *ids]], None))[0, -1]
            next_token = next_token_distribution(logits, params, prompt, ids)
            longer |= {(*ids, int(x)): chance * next_token[x] for x in np.flatnonzero(next_token)}
        expected_shares = longer
    return expected_shares


def p_value(texts, expected_shares):
    """Pearson's test; 0 where something impossible came out."""
    counts = Counter(texts)
    if any(expected_shares.get(ids, 0) < 1e-12 for ids in counts):
        return 0.0
    cells = sorted((len(texts) * p, counts[ids]) for ids, p in expected_shares.items() if p > 1e-12)
    n_rare = sum(expected < 10 for expected, _ in cells)  # too rare for the test one by one
    cells = [tuple(map(sum, zip(*cells[: n_rare + 1], strict=True))), *cells[n_rare + 1 :]]
    expected, observed = np.array(cells).T
    return chisquare(observed, expected * len(texts) / expected.sum()).pvalue


def texts(n, target, draft, prompt, params, gamma, **options):
    runs = (replace(params, seed=seed, max_tokens=3) for seed in range(n))
    return [
        tuple(speculative_generate(target, draft, prompt, p, gamma, **options).ids) for p in runs
    ]


class Table:
    """A model of five tokens that looks two tokens back."""

    def __init__(self, seed):
        self.arch, self.eos_ids = Architecture("table", 1, 2, 1, 1, 2, 2, 5), ()
        self.logits = np.random.default_rng(seed).normal(scale=1.5, size=(5, 5, 5))

    def new_cache(self, batch, capacity):
        return KVCache(self.arch, batch, capacity)

    def __call__(self, tokens, cache):
        before = [] if cache is None else cache.keys(0)[0, 0, :, 0].astype(int).tolist()
        if cache is not None:
            held = np.repeat(np.reshape(tokens, (1, 1, -1, 1)), 2, axis=3)
            cache.append(0, held, held)
        ids = [0, *before, *tokens[0]]
        rows = [self.logits[ids[i - 1], ids[i]] for i in range(len(before) + 1, len(ids))]
        return np.array(rows)[None]


def test_sampled_text_follows_the_distribution_of_the_target():
    """Three tokens, with every filter and penalty, which see the text that each position sees."""
    target = Table(0)
    for params in (
        SamplingParams(),
        SamplingParams(temperature=0.7, top_p=0.8),
        SamplingParams(repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=1.0),
        SamplingParams(temperature=1.5, top_k=3, min_p=0.1, frequency_penalty=-1.0),
    ):
        expected_shares = distribution_of_text(target, [1, 2], params, 3)
        for draft in (Table(1), lambda ids, n: [(ids[-1] + i) % 5 for i in range(n)]):
            got = texts(600, target, draft, [1, 2], params, gamma=2)
            assert p_value(got, expected_shares) > FALSE_FAILURE / 8, params


def test_a_text_is_closed_in_time_only_on_request():
    """The model says a for ever: without the option the text is cut by max_tokens."""
    table = Table(0)
    table.logits[..., 1] = 99
    constraint = Constraint(Regex("(aa)*b"), [b"", b"a", b"b", b"c", b"ab"], [0])
    for run, models in ((generate, [table]), (speculative_generate, [table, table])):
        cut = run(*models, [4], greedy(max_tokens=5), constraint=constraint)
        assert (cut.ids, cut.finish_reason) == ([1] * 5, "length")
        closed = run(*models, [4], greedy(max_tokens=5), constraint=constraint, close_in_time=True)
        assert (closed.ids, closed.finish_reason) == ([1, 1, 2, 0], "eos")


def test_four_tokens_are_drafted_by_default_however_unsure():
    got = speculative_generate(Table(0), Table(0), [1], SamplingParams(max_tokens=10, seed=0))
    assert got.rounds == ((4, 4), (4, 4))


def test_a_draft_stops_only_below_the_confidence():
    coin = Table(0)  # heads or tails: 1/2 to the last bit, since the rest underflows
    coin.logits = np.where(np.arange(5) < 2, 0.0, np.full((5, 5, 5), -1000.0))
    for sure, drafted in ((0.5, 4), (np.nextafter(0.5, 1), 1), (1.0, 1)):
        for temperature in (0.0, 1.0):
            params = SamplingParams(temperature, max_tokens=9, seed=1)
            got = speculative_generate(Table(1), coin, [1], params, 4, min_confidence=sure)
            assert got.rounds[0].drafted == drafted


# Drafts that guess trees, and drafts that see features.

TREE = [-1, -1, 1, 1, 3, 3]


class TreeDraft:
    """Guess a tree: of the target's own likeliest tokens, or drawn from its distribution."""

    def __init__(self, model, tree=TREE):
        self.model, self.tree, self.seen, self.texts = model, tree, [], []

    def propose(self, request, n):
        self.texts.append(list(request.ids))
        tokens, rows, tree = [], [], self.tree[:n]
        for i, parent in enumerate(tree):
            begun = branches(tokens, tree[:i])[parent + 1]
            logits = np.asarray(self.model([request.ids + begun], None))[:, -1]
            siblings = [t for t, p in zip(tokens, tree, strict=False) if p == parent]
            if request.params.temperature == 0:  # the third likeliest comes first
                order = np.argsort(-logits[0])[[2, 0]]
                tokens.append(int(order[len(siblings)]))
                continue
            rows.append(request.distributions(logits, begun)[0])
            left = np.where(np.isin(np.arange(len(rows[-1])), siblings), 0, rows[-1])
            tokens.append(int(draw(left / left.sum(), request.rng)))
        return Proposal(tokens, np.array(rows) if rows else None, tree)


class ObservingDraft(TreeDraft):
    def observe(self, features):
        self.seen.append(np.asarray(features))


def test_a_tree_of_guesses_changes_no_text():
    """The second sibling is the right one, so that what stays has to move in the cache."""
    model, params = noisy(0), greedy(max_tokens=21)
    plain = generate(model, [1, 2, 3], params).ids
    for gamma, depth in ((0, 0), (1, 0), (3, 1), (4, 2), (6, 3)):
        for draft in (TreeDraft(model), ObservingDraft(model)):
            got = speculative_generate(model, draft, [1, 2, 3], params, gamma)
            assert got.ids == plain
            assert {(r.drafted, r.accepted) for r in got.rounds[:-3]} == {(gamma, depth)}


def test_an_observer_sees_the_features_of_all_that_stayed():
    model = noisy(0)
    draft = ObservingDraft(model)
    got = speculative_generate(model, draft, [1, 2, 3], greedy(max_tokens=15), 6)
    text = [1, 2, 3, *got.ids]
    expected = np.asarray(model.features([text]))[0]
    seen = np.concatenate(draft.seen)
    assert len(text) - 1 <= len(seen) <= len(text)
    np.testing.assert_allclose(seen, expected[: len(seen)], atol=1e-4)
    lengths = np.cumsum([len(features) for features in draft.seen])
    assert [len(ids) - 1 for ids in draft.texts[1:]] == lengths[:-1].tolist()


def test_text_drawn_from_a_tree_follows_the_target():
    arch = ARCH.replace(vocab_size=5, d_model=32)
    tiny = llama.Llama(arch, random_weights(arch))
    params = SamplingParams(temperature=0.7)
    draft = TreeDraft(llama.Llama(arch, random_weights(arch, seed=1)), [-1, -1, 0])
    got = texts(300, tiny, draft, [1, 2], params, gamma=3)
    expected_shares = distribution_of_text(tiny, [1, 2], params, 3)
    assert p_value(got, expected_shares) > FALSE_FAILURE / 8


def no_residual(target, draft):
    return acceptance_rule(target, draft)[0], target


def test_a_flaw_in_the_rule_changes_the_distribution():
    target, draft, params = Table(0), Table(1), SamplingParams()
    expected_shares = distribution_of_text(target, [1, 2], params, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("firsttoken.speculative.verification.acceptance_rule", no_residual)
        got = texts(600, target, draft, [1, 2], params, gamma=2)
    assert p_value(got, expected_shares) < FALSE_FAILURE


@given(ids=st.lists(st.integers(0, 3), max_size=20), n=st.integers(1, 4), gamma=st.integers(0, 5))
def test_prompt_lookup_finds_the_last_of_the_longest(ids, n, gamma):
    """Against its definition: places are tried by length of what matches, then from the end."""
    places = [
        (size, start)
        for size in range(1, n + 1)
        for start in range(len(ids) - size)
        if ids[start : start + size] == ids[len(ids) - size :]
    ]
    size, start = max(places, default=(len(ids), 0))
    assert prompt_lookup(ids, n, gamma) == ids[start + size :][:gamma]


def test_wrong_speculation_is_named():
    def refused(message, target, draft, prompt=(1,), gamma=4, **options):
        with pytest.raises(ValueError, match=message):
            speculative_generate(target, draft, prompt, greedy(max_tokens=16), gamma, **options)

    table = Table(0)
    refused("gamma must be an integer of at least 0, got -1", table, table, gamma=-1)
    refused("prompt_ids must hold", table, table, [])
    refused("draft has 1024 tokens .* expected those of the target, 5", table, Reciter([1]))
    refused("draft has a context of 16, expected 17 or more", Reciter([1]), Reciter([1], 16))
    refused("min_confidence must lie in 0 … 1, got 2", table, table, min_confidence=2)
    unsure = "is 0.5, expected 0 unless draft is a model"
    refused(unsure, table, lambda ids, n: [], min_confidence=0.5)
    for draft in (TreeDraft(table), ObservingDraft(table, [])):
        refused("target must have features and logits", table, draft)
    with pytest.raises(ValueError, match="max_ngram must be an integer of at least 1, got 0"):
        prompt_lookup([1], 0, 3)
    with pytest.raises(ValueError, match="gamma must be an integer"):
        prompt_lookup([1], 1, -1)
