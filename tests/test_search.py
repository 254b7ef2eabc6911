"""Beam search against exhaustive search and transformers; best of n and votes against counting."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from firsttoken import llama, llama_torch, search
from firsttoken.architectures import Architecture
from firsttoken.checkpoint import weight_shapes
from firsttoken.constrained import Constraint, Regex
from firsttoken.generate import generate
from firsttoken.kv_cache import KVCache
from firsttoken.sampling import SamplingParams, softmax
from firsttoken.search import (
    Beam,
    beam_search,
    best_of_n_accuracy,
    majority_vote,
    sample_n,
    total_logprob,
    vote_accuracy,
)

EOS = 0


def tiny(seed=0, vocab_size=4, scale=1.0, eos_ids=(EOS,), backend=llama):
    arch = Architecture("tiny", 2, 16, 4, 2, 4, 32, vocab_size, max_context=32)
    rng = np.random.default_rng(seed)
    weights = {
        name: (rng.normal(size=s) * (0.3 * scale) + ("norm" in name)).astype(np.float32)
        for name, s in weight_shapes(arch).items()
    }
    return backend.Llama(arch, weights, eos_ids=eos_ids)


def all_beams(model, prompt, max_tokens, length_penalty):
    """Return every text that ends, or is cut at max_tokens, without a cache, best first."""
    beams = []

    def visit(ids, logprob):
        if ids and (ids[-1] in model.eos_ids or len(ids) == max_tokens):
            score = logprob / len(ids) ** length_penalty
            beams.append(Beam(ids, logprob, score, ids[-1] in model.eos_ids))
            return
        probabilities = softmax(np.asarray(model([prompt + ids]))[0, -1].astype(np.float64))
        for token, p in enumerate(probabilities):
            visit([*ids, token], logprob + np.log(p))

    visit([], 0.0)
    return sorted(beams, key=lambda beam: -beam.score)


def assert_equal(got, expected):
    assert [beam.ids for beam in got] == [beam.ids for beam in expected]
    assert [beam.finished for beam in got] == [beam.finished for beam in expected]
    np.testing.assert_allclose(
        [(beam.logprob, beam.score) for beam in got],
        [(beam.logprob, beam.score) for beam in expected],
        atol=1e-4,
    )


@pytest.mark.parametrize("backend", [llama, llama_torch])
def test_a_wide_beam_is_an_exhaustive_search(backend):
    for eos_ids in ((EOS,), (0, 2), ()):
        for seed in range(3):
            model = tiny(seed, eos_ids=eos_ids, backend=backend)
            for length_penalty in (0.0, 1.0, 2.0, -1.0):
                got = beam_search(model, [1, 2, 3], 4**4, 4, length_penalty)
                assert_equal(got, all_beams(model, [1, 2, 3], 4, length_penalty))


def test_the_end_of_the_search_loses_nothing():
    """It stops when nothing better can come: with width 3, the result is that of a full run."""
    for seed, length_penalty in itertools.product(range(10), (0.0, 0.7, 1.0, 3.0, -0.5)):
        model = tiny(seed, scale=2.0)
        got = beam_search(model, [seed % 4], 3, 8, length_penalty)
        beams, candidates = [([], 0.0)], []
        for n in range(1, 9):
            options = []
            for ids, logprob in beams:
                probabilities = softmax(model([[seed % 4, *ids]])[0, -1].astype(np.float64))
                options += [([*ids, t], logprob + np.log(p)) for t, p in enumerate(probabilities)]
            options.sort(key=lambda option: -option[1])
            candidates += [o for o in options[:3] if o[0][-1] == EOS or n == 8]
            beams = [o for o in options if o[0][-1] != EOS][:3]
        scored = [Beam(i, p, p / len(i) ** length_penalty, i[-1] == EOS) for i, p in candidates]
        assert_equal(got, sorted(scored, key=lambda beam: -beam.score)[:3])


def test_equal_to_transformers(tmp_path):
    config = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 12}
    prompts = [[3, 1, 4], [1], [5, 9, 2, 6, 5]]
    ends = 0
    for seed, prompt in enumerate(prompts * 2):
        torch.manual_seed(seed)
        reference = LlamaForCausalLM(LlamaForCausalLM.config_class(**config)).eval()
        with torch.no_grad():
            for weight in reference.parameters():
                weight.mul_(8 if weight.ndim == 2 else 1)
        reference.config.eos_token_id = reference.generation_config.eos_token_id = EOS
        reference.save_pretrained(tmp_path / str(seed))
        model = llama.load_model(tmp_path / str(seed))
        for width, length_penalty in ((2, 1.0), (3, 0.0), (4, 2.0), (5, -0.5)):
            expected = reference.generate(
                torch.tensor([prompt]),
                do_sample=False,
                num_beams=width,
                num_return_sequences=width,
                max_new_tokens=10,
                length_penalty=length_penalty,
                early_stopping="never",
                eos_token_id=EOS,
                pad_token_id=11,
                return_dict_in_generate=True,
                output_scores=True,
            )
            got = beam_search(model, prompt, width, 10, length_penalty)
            for beam, theirs, score in zip(
                got, expected.sequences, expected.sequences_scores, strict=True
            ):
                ids = theirs[len(prompt) :].tolist()
                ids = ids[: ids.index(EOS) + 1] if EOS in ids else ids
                assert beam.ids == ids
                assert beam.score == pytest.approx(float(score), abs=1e-4)
                ends += beam.finished
    assert ends > 10


def test_width_one_is_greedy_choice():
    for seed in range(5):
        model = tiny(seed, vocab_size=20, eos_ids=())
        (beam,) = beam_search(model, [1, 2], 1, 12)
        greedy = generate(model, [1, 2], SamplingParams(temperature=0.0, max_tokens=12))
        assert beam.ids == greedy.ids and not beam.finished
        assert beam.logprob == pytest.approx(total_logprob(model, [1, 2], beam.ids), abs=1e-4)
        assert beam.score == pytest.approx(beam.logprob / 12)
    assert len(beam_search(model, [1] * 30, 2, 2)[0].ids) == 2, "a text may fill the context"


class Chain:
    """A model whose next token depends on the last alone: row i of the table follows token i."""

    eos_ids = (EOS,)

    def __init__(self, table):
        self.table = np.array(table)
        self.arch = Architecture("chain", 1, 2, 1, 1, 2, 2, len(table))

    def new_cache(self, batch, capacity):
        return KVCache(self.arch, batch, capacity)

    def __call__(self, tokens, cache):
        tokens = np.asarray(tokens)
        nothing = np.zeros((len(tokens), 1, tokens.shape[1], 2))
        cache.append(0, nothing, nothing)
        with np.errstate(divide="ignore"):
            return np.log(self.table)[tokens]


def test_two_beams_find_what_greedy_choice_misses():
    """1 goes to 2 first, which then spreads thin; 3 is less likely, but sure to end."""
    chain = Chain([[1, 0, 0, 0], [0, 0, 0.6, 0.4], [0.3, 0.4, 0, 0.3], [1, 0, 0, 0]])
    greedy, two = (beam_search(chain, [1], width, 2, 0.0)[0] for width in (1, 2))
    assert greedy.ids == [2, 1] and np.exp(greedy.logprob) == pytest.approx(0.24)
    assert two.ids == [3, EOS] and np.exp(two.logprob) == pytest.approx(0.4)


def test_a_constant_added_to_logits_changes_nothing():
    """Each row has its own, however large: exp of neither row may overflow or vanish."""
    chain = Chain([[1, 0, 0, 0], [0, 0, 0.6, 0.4], [0.3, 0.4, 0, 0.3], [0.2, 0.3, 0.5, 0]])
    expected = beam_search(chain, [1], 3, 3, 0.0)

    class Shifted(Chain):
        def __call__(self, tokens, cache):
            shift = np.array([0, 2e3, -2e3, 2e3])[tokens][..., None]
            return super().__call__(tokens, cache) + shift

    assert_equal(beam_search(Shifted(chain.table), [1], 3, 3, 0.0), expected)


def test_a_text_of_another_length_may_overtake():
    """To end at once costs 0.51 a token. 1 costs 1.61 at first, then nothing: 0.2 over eight.

    A search that compares with the next length only (1.61 / 2) would stop too early. Where length
    is punished, by logprob · n, the third token costs [1, 2] 3 · 0.93 to end, less than 2 · 1.62
    for [1, 0]; one that compares with a length after the next (4 · 0.93) would stop too early.
    """
    chain = Chain([[1, 0, 0], [0, 1, 0], [0.6, 0.2, 0.2]])
    (best,) = beam_search(chain, [2], 1, 8, length_penalty=1.0)
    assert best.ids == [1] * 8 and best.score == pytest.approx(np.log(0.2) / 8)
    (best,) = beam_search(chain, [2], 1, 8, length_penalty=0.0)
    assert best.ids == [EOS] and best.finished
    chain = Chain([[1, 0, 0, 0], [0.34, 0, 0.66, 0], [1, 0, 0, 0], [0.3, 0.6, 0.1, 0]])
    got = beam_search(chain, [3], 2, 5, length_penalty=-1.0)
    assert [beam.ids for beam in got] == [[EOS], [1, 2, EOS]]


def test_of_equally_likely_beams_the_lower_tokens_are_followed():
    got = beam_search(Chain(np.full((60, 60), 1 / 60)), [1], 3, 2, 0.0, eos_ids=[])
    assert [beam.ids for beam in got] == [[0, 0], [0, 1], [0, 2]]


def test_a_cache_that_keeps_its_rows_is_wrong(monkeypatch):
    """Beams branch: without copying rows, a beam goes on from another's keys and values."""

    def errors():
        model = tiny(3, vocab_size=8, scale=2.0, eos_ids=())
        beams = beam_search(model, [1], 4, 8, 0.0)
        return [abs(beam.logprob - total_logprob(model, [1], beam.ids)) for beam in beams]

    assert max(errors()) < 1e-4
    select = search._select_rows

    def keep_rows(model, cache, rows):
        kept = [min(i, cache.keys(0).shape[0] - 1) for i in range(len(rows))]
        return select(model, cache, kept)

    monkeypatch.setattr(search, "_select_rows", keep_rows)
    assert max(errors()) > 0.1


def test_the_search_ends_when_nothing_better_can_come(monkeypatch):
    """One that ends at once with the best score needs the prompt's pass only."""
    model = tiny(vocab_size=20)
    sure = int(np.argmax(model([[1, 2]])[0, -1]))
    passes = []
    call = llama.Llama.__call__
    monkeypatch.setattr(llama.Llama, "__call__", lambda *a: passes.append(a) or call(*a))
    (beam,) = beam_search(model, [1, 2], 1, 9, 0.0, eos_ids=[sure])
    assert beam.ids == [sure] and beam.finished and len(passes) == 1
    beam_search(model, [1, 2], 1, 9, 0.0, eos_ids=[])
    assert len(passes) == 1 + 9


def test_a_constraint_forbids_and_renormalises_nothing():
    tokens = [b"", b"a", b"b", b"c"]
    language = Regex("a[bc]*|c{3}")
    for seed in range(5):
        model = tiny(seed)
        got = beam_search(model, [1, 2], 99, 4, 0.0, Constraint(language, tokens, [EOS]))
        valid = []
        for beam in all_beams(model, [1, 2], 4, 0.0):
            constraint = Constraint(language, tokens, [EOS])
            try:
                for token in beam.ids:
                    constraint.advance(token)
            except ValueError:
                continue
            valid.append(beam)
        assert_equal(got, valid)
    no_text = Constraint(Regex("d"), tokens, [EOS])  # the vocabulary has no d
    assert beam_search(model, [1], 3, 4, constraint=no_text) == []


def test_errors_name_what_is_wrong():
    def refused(message, function, *arguments):
        with pytest.raises(ValueError, match=message):
            function(*arguments)

    model, count = tiny(), "must be an integer of at least 1, got 0"
    refused(f"beam_width {count}", beam_search, model, [1], 0, 4)
    refused(f"max_tokens {count}", beam_search, model, [1], 2, 0)
    refused("prompt_ids must hold at least one id", beam_search, model, [], 2, 4)
    refused("context of 32", beam_search, model, [1] * 30, 2, 4)
    refused(f"n {count}", sample_n, model, [1], SamplingParams(), 0)
    refused("must not be empty", total_logprob, model, [1], [])
    refused("must not be empty", total_logprob, model, [], [1])
    refused("scores", best_of_n_accuracy, [1.0], [True, False], 1)
    refused(r"scores \(1, 1\)", best_of_n_accuracy, [[1.0]], [[True]], 1)
    refused("n must lie in 1 … 1, .* of tries; got 2", best_of_n_accuracy, [1.0], [True], 2)
    refused("n must be an integer of at least 1", best_of_n_accuracy, [1.0], [True], 0)
    refused("n must be an integer of at least 1", vote_accuracy, ["a"], "a", 0, None)
    refused("n must lie in 1 … 1, the number of answ", vote_accuracy, ["a"], "a", 2, None)
    refused("n_draws must be an integer", vote_accuracy, ["a"], "a", 1, None, 0)


# Samples, scores and votes.


def test_samples_follow_their_seeds():
    """Without one they need none, and options are handed on."""
    model, seen = tiny(vocab_size=20), []
    got = sample_n(model, [1], SamplingParams(seed=7, max_tokens=6), 3, ignore_eos=True)
    for i, one in enumerate(got):
        params = SamplingParams(seed=7 + i, max_tokens=6)
        assert one.ids == generate(model, [1], params, ignore_eos=True).ids
    assert len({tuple(one.ids) for one in got}) == 3
    constraint = Constraint(Regex("a{4}"), [b"", b"a", *[b"b"] * 18], [EOS])
    options = {"constraint": constraint, "on_token": seen.append}
    got = sample_n(model, [1], SamplingParams(max_tokens=9), 2, **options)
    assert [one.ids for one in got] == [[1] * 4 + [EOS]] * 2
    assert seen == [1, 1, 1, 1, EOS] * 2


def test_the_total_is_the_product_of_single_steps():
    model, prompt, ids = tiny(vocab_size=20), [3, 1, 4], [1, 5, 9, 2]
    steps = [softmax(model([prompt + ids[:i]])[0, -1])[t] for i, t in enumerate(ids)]
    assert total_logprob(model, prompt, ids) == pytest.approx(np.log(steps).sum(), abs=1e-5)


tries = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=7)


@given(tries, st.data())
def test_best_of_n_equals_trying_all_choices(tries, data):
    scores, correct = zip(*tries, strict=True)
    n = data.draw(st.integers(1, len(tries)))
    choices = list(itertools.combinations(range(len(tries)), n))
    best = [max(choice, key=lambda i: (scores[i], -i)) for choice in choices]
    expected = np.mean([correct[i] for i in best])
    assert best_of_n_accuracy(scores, correct, n) == pytest.approx(expected)
    passed = np.mean([any(correct[i] for i in choice) for choice in choices])
    assert best_of_n_accuracy(correct, correct, n) == pytest.approx(passed)


@given(st.lists(st.sampled_from(["a", "b", None]), min_size=1, max_size=5), st.data())
def test_votes_equal_trying_all_choices(answers, data):
    """4,000 draws within 6 sigma: false alarm at most 2e-9 for each example."""
    n = data.draw(st.integers(1, len(answers)))
    orders = list(itertools.permutations(answers))
    p = np.mean([majority_vote(order[:n]) == "a" for order in orders])
    got = vote_accuracy(answers, "a", n, np.random.default_rng(0), n_draws=4000)
    assert abs(got - p) <= 6 * np.sqrt(p * (1 - p) / 4000) + 1e-12


def test_votes():
    assert majority_vote(["b", "a", "a", "b"]) == "b"  # the tie goes to the first
    assert majority_vote([None, None, "a"]) == "a" and majority_vote([None]) is None
    assert majority_vote([]) is None
    rng, same = np.random.default_rng(0), np.random.default_rng(0)
    vote_accuracy(["a", "b"], "a", 1, rng)
    vote_accuracy(["a", "b"], "a", 1, same, n_draws=1000)
    assert rng.random() == same.random(), "drawn a thousand times unless told"


def test_a_vote_helps_only_where_the_truth_is_the_most_frequent():
    """Two errors in common beat a truth that has 40 % of the votes; a verifier does not mind."""
    answers = ["truth"] * 20 + ["error"] * 30
    few, many = (vote_accuracy(answers, "truth", n, np.random.default_rng(0)) for n in (1, 41))
    assert few > 0.3 and many < 0.05
    correct = [answer == "truth" for answer in answers]
    assert best_of_n_accuracy(correct, correct, 20) > 0.999
