"""Beam search against exhaustive search and transformers; best of n and votes against counting."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from firsttoken.architectures import Architecture
from firsttoken.generate import generate
from firsttoken.generate.search import (
    Beam,
    beam_search,
    best_of_n_accuracy,
    majority_vote,
    sample_n,
    total_logprob,
    vote_accuracy,
)
from firsttoken.models import llama, llama_torch
from firsttoken.models.checkpoint import weight_shapes
from firsttoken.sampling import SamplingParams, softmax
from firsttoken.sampling.constrained import Constraint, Regex

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
