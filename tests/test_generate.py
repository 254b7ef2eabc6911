"""The token loop: cached equals uncached, and every way to stop."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from firsttoken import llama, llama_torch
from firsttoken.architectures import Architecture
from firsttoken.constrained import Constraint, Json, Regex, keep_allowed
from firsttoken.generate import evict, generate
from firsttoken.kv_cache import KVCache
from firsttoken.llama import weight_shapes
from firsttoken.sampling import SamplingParams, keep_top_k
from firsttoken.tokenizer import tokenizer

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
        self.arch = Architecture(
            *("script", 1, 2, 1, 1, 2, 2, vocab_size),
            max_context=max_context,
        )
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


def test_sampled_ids_follow_the_seed(model):
    def ids(seed, use_cache=True):
        params = SamplingParams(temperature=1.0, max_tokens=20, seed=seed)
        return generate(model, [1, 2, 3], params, use_cache=use_cache).ids

    assert ids(1) == ids(1) == ids(1, use_cache=False)
    assert ids(1) != ids(2)


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
    script = Script([5, 6, 7])
    assert generate(script, [1, 2, 3, 4], greedy(max_tokens=3)).ids == [5, 6, 7]
    assert script.passes == [4, 1, 1]
    naive = Script([5, 6, 7])
    assert generate(naive, [1, 2, 3, 4], greedy(max_tokens=3), use_cache=False).ids == [5, 6, 7]
    assert naive.passes == [4, 5, 6]


def test_times_rise_and_contain_the_prefill():
    got = generate(Script([5]), [1, 2], greedy(max_tokens=5))
    assert len(got.token_times_s) == len(got.ids) == 5
    assert got.token_times_s == sorted(got.token_times_s)
    assert 0 < got.prefill_s <= got.token_times_s[0]


def test_each_token_is_reported_as_it_comes():
    script, seen = Script([5, 6, 7]), []
    got = generate(
        script, [1], greedy(max_tokens=3), on_token=lambda i: seen.append((i, len(script.passes)))
    )
    assert seen == [(5, 1), (6, 2), (7, 3)] and got.ids == [5, 6, 7]


def test_the_end_of_the_text_stops():
    got = generate(Script([5, 9, 7], eos_ids=(8, 9)), [1], greedy(max_tokens=5))
    assert (got.ids, got.finish_reason) == ([5, 9], "eos")
    got = generate(Script([5, 9, 7], eos_ids=(9,)), [1], greedy(max_tokens=3), ignore_eos=True)
    assert (got.ids, got.finish_reason) == ([5, 9, 7], "length")


def test_the_context_is_a_limit():
    got = generate(Script([5], max_context=6), [1, 2, 3, 4], greedy(max_tokens=5))
    assert (got.ids, got.finish_reason) == ([5, 5], "context")
    got = generate(Script([5], max_context=6), [1, 2, 3, 4], greedy(max_tokens=2))
    assert (got.ids, got.finish_reason) == ([5, 5], "length")
    with pytest.raises(ValueError, match="prompt_ids hold 6 tokens, expected fewer"):
        generate(Script([5], max_context=6), [1] * 6, greedy())


TOK = tokenizer()


@pytest.mark.parametrize(
    ("said", "stop", "text"),
    [
        ("one two three", ("two",), "one "),
        ("one two three", ("three", "o t"), "one tw"),  # the one that comes first
        ("one\n\ntwo", ("\n\n",), "one"),
        ("naïve 🙂 end", ("🙂",), "naïve "),  # a character of several tokens
        ("aab", ("ab",), "a"),
        ("one two", ("four",), "one two"),
    ],
)
def test_stop_strings_end_the_text_wherever_they_fall(said, stop, text):
    ids = TOK.encode(said)
    got = generate(Script(ids), [1], greedy(max_tokens=len(ids), stop=stop), tokenizer=TOK)
    assert got.text == text
    assert got.finish_reason == ("length" if text == said else "stop")
    assert got.ids == ids[: len(got.ids)] and TOK.decode(got.ids).startswith(text)
    if got.finish_reason == "stop":  # it stopped as soon as it could
        assert not any(s in TOK.decode(got.ids[:-1]) for s in stop)


@given(text=st.text("ab ", min_size=1), stop=st.lists(st.text("ab ", min_size=1), min_size=1))
def test_stop_strings_equal_a_search_of_the_whole_text(text, stop):
    ids = TOK.encode(text)
    got = generate(Script(ids), [1], greedy(max_tokens=len(ids), stop=tuple(stop)), tokenizer=TOK)
    so_far = TOK.decode(got.ids)
    found = [so_far.find(s) for s in stop if s in so_far]
    assert (got.finish_reason == "stop") == bool(found) == any(s in text for s in stop)
    assert got.text == (so_far[: min(found)] if found else text)


def test_text_needs_a_tokenizer_and_leaves_the_end_mark_out():
    ids = [*TOK.encode("said"), 0]
    got = generate(Script(ids, eos_ids=(0,)), [1], greedy(max_tokens=9), tokenizer=TOK)
    assert (got.ids, got.text, got.finish_reason) == (ids, "said", "eos")
    assert generate(Script(ids), [1], greedy()).text is None
    with pytest.raises(ValueError, match="needs a tokenizer"):
        generate(Script(ids), [1], greedy(stop="x"))
    half = TOK.encode("🦜")[:2]
    got = generate(Script(half), [1], greedy(max_tokens=2), tokenizer=TOK)
    assert got.text == "\ufffd"


def test_penalties_see_prompt_and_output():
    """Every logit but the scripted one is 0: with the penalty the prompt's ids come last."""
    got = generate(Script([3], vocab_size=5), [1], greedy(max_tokens=4, repetition_penalty=2.0))
    assert got.ids == [3, 3, 3, 3]
    got = generate(Script([3], vocab_size=5), [1], greedy(max_tokens=3, frequency_penalty=2.0))
    assert got.ids == [3, 3, 3]
    got = generate(Script([3], vocab_size=5), [1], greedy(max_tokens=7, frequency_penalty=2.0))
    assert got.ids == [3, 3, 3, 3, 3, 0, 1]  # 9 - 5 · 2 < 0; then the ids not yet used


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_prompts_are_named(backend):
    module = llama if backend == "numpy" else llama_torch
    model = module.Llama(ARCH, random_weights())
    with pytest.raises(ValueError, match="prompt_ids must hold at least one"):
        generate(model, [], greedy())
    with pytest.raises(ValueError, match="50"):
        generate(model, [50], greedy())
    with pytest.raises(TypeError):
        generate(model, [1.5], greedy())


# Under a constraint; tests/test_constrained.py checks the texts of the shipped model.

LETTERS = [b"", b"a", b"b", b"c", b"ab"]


def letters(pattern, tokens=LETTERS):
    return Constraint(Regex(pattern), tokens, [0])


def test_the_mask_comes_before_the_filters():
    """The script wants c, which is forbidden: of what is left, the first is taken."""
    script = Script([3], vocab_size=5, eos_ids=(0,))
    got = generate(script, [1], greedy(max_tokens=9), constraint=letters("ab|b"))
    assert (got.ids, got.finish_reason) == ([1, 2, 0], "eos")
    params = SamplingParams(temperature=1.0, top_k=1, max_tokens=9)
    assert generate(script, [1], params, constraint=letters("ab|b")).ids == [1, 2, 0]
    wrong = keep_top_k(script([[1]])[0, -1], 1)  # filters first: they keep c alone
    assert not (letters("ab|b").mask() & np.isfinite(wrong)).any()
    with pytest.raises(ValueError, match="finite largest"):
        keep_top_k(keep_allowed(wrong, letters("ab|b").mask()), 1)


def test_a_constraint_is_left_as_it_was_and_may_have_begun():
    constraint = letters("aaab?")
    constraint.advance(1)
    got = [
        generate(Script([1], 5, eos_ids=(0,)), [4], greedy(max_tokens=9), constraint=constraint)
        for _ in range(2)
    ]
    assert got[0].ids == got[1].ids == [1, 1, 0]
    assert constraint.mask().tolist() == [False, True, False, False, False]


def test_the_constraint_says_what_ends_the_text():
    """Here c does, which to the model is a token like others; its own end mark does not."""
    constraint = Constraint(Regex("a+"), LETTERS, eos_ids=[3])
    script = Script([0, 1, 3], 5, eos_ids=(0, 1))
    got = generate(script, [4], greedy(max_tokens=9), constraint=constraint)
    assert (got.ids, got.finish_reason) == ([1, 1, 3], "eos")


@pytest.mark.parametrize("use_cache", [True, False])
def test_constrained_text_does_not_depend_on_the_cache_or_the_backend(model, use_cache):
    tokens = [bytes([i]) for i in range(49)] + [b""]
    constraint = Constraint(Regex(r"[\x01-\x05]{3}[\x06-\x1f]{0,4}\x30"), tokens, [49])
    ending = type(model)(ARCH, random_weights(), eos_ids=(49,))
    got = generate(ending, [1, 2], greedy(max_tokens=20), use_cache, constraint=constraint)
    reference = llama.Llama(ARCH, random_weights(), eos_ids=(49,))
    assert got.ids == generate(reference, [1, 2], greedy(max_tokens=20), constraint=constraint).ids
    assert got.finish_reason == "eos" and constraint.min_tokens() == 5


def test_cut_texts_are_beginnings_unless_closed_in_time():
    """The script says a for ever, and meets either limit: cut by it, or closed before it."""
    for max_context, reason in ((None, "length"), (7, "context")):
        script = Script([1], 5, max_context, eos_ids=(0,))
        params = greedy(max_tokens=5 if max_context is None else 50)
        cut = generate(script, [4, 4], params, constraint=letters("(aa)*b"))
        assert (cut.ids, cut.finish_reason) == ([1] * 5, reason)
        closed = generate(script, [4, 4], params, constraint=letters("(aa)*b"), close_in_time=True)
        assert (closed.ids, closed.finish_reason) == ([1, 1, 2, 0], "eos")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"constraint": letters("a"), "ignore_eos": True}, "ignore_eos must be False"),
        ({"constraint": letters("aaa"), "close_in_time": True}, "leave 3 tokens.* take 4"),
        ({"constraint": letters("d")}, "mask allows no token"),
        ({"constraint": Constraint(Json(), [b"", b"1"], [0])}, r"mask must be booleans \(5,\)"),
    ],
)
def test_wrong_constraints_are_named(options, message):
    script = Script([1], 5, eos_ids=(0,))
    with pytest.raises(ValueError, match=message):
        generate(script, [1], greedy(max_tokens=3), **options)


# Making room in a full cache.


def one_layer(seed=0):
    arch = ARCH.replace(n_layers=1)
    return llama.Llama(arch, random_weights(arch, seed))


def cached(model, ids):
    cache = model.new_cache(1, 64)
    model([ids], cache)
    return cache


def largest_difference(model, cache, other):
    assert cache.length == other.length
    layers = range(model.arch.n_layers)
    pairs = [(cache.keys(i), other.keys(i)) for i in layers]
    pairs += [(cache.values(i), other.values(i)) for i in layers]
    return max(np.abs(a - b).max() for a, b in pairs)


@given(
    ids=st.lists(st.integers(0, 49), min_size=5, max_size=40),
    sinks=st.integers(0, 3),
    n=st.integers(1, 4),
)
def test_one_layer_forgets_without_a_trace(ids, sinks, n):
    """Its keys and values depend on nothing but the token and its place."""
    n = min(n, len(ids) - sinks - 1)
    model = one_layer()
    cache = cached(model, ids)
    evict(model, cache, n, sinks)
    fresh = cached(model, ids[:sinks] + ids[sinks + n :])
    assert largest_difference(model, cache, fresh) < 1e-4


def test_keys_that_are_not_turned_back_are_wrong():
    model, ids = one_layer(), list(range(20))
    cache = cached(model, ids)
    moved = [(cache.keys(0)[:, :, 5:].copy(), cache.values(0)[:, :, 5:].copy())]
    cache.truncate(0)
    cache.append(0, *moved[0])
    assert largest_difference(model, cache, cached(model, ids[5:])) > 0.1


def test_deeper_layers_remember_what_was_dropped():
    model, ids = llama.Llama(ARCH, random_weights()), list(range(20))
    cache = cached(model, ids)
    evict(model, cache, 5)
    assert largest_difference(model, cache, cached(model, ids[5:])) > 0.1


def test_what_a_later_token_sees_depends_on_distances_only():
    """Dropping nothing that it attends to changes no logit: here, after all was shifted twice."""
    model, ids = one_layer(), list(range(30))
    cache = cached(model, ids[:20])
    evict(model, cache, 3)
    evict(model, cache, 4)
    expected = model([ids[7:]])[0, -1]
    np.testing.assert_allclose(model([ids[20:]], cache)[0, -1], expected, atol=1e-4)


@pytest.mark.parametrize(("n", "sinks"), [(0, 0), (-1, 0), (1, -1), (9, 0), (5, 4)])
def test_evict_names_what_does_not_fit(n, sinks):
    model = one_layer()
    cache = cached(model, list(range(8)))
    before = cache.keys(0).copy()
    with pytest.raises(ValueError, match=f"n {n} .* sinks {sinks} .* 8 tokens"):
        evict(model, cache, n, sinks)
    np.testing.assert_array_equal(cache.keys(0), before)


@pytest.mark.parametrize("dtype", ["fp16", "fp8", "int8", "int4"])
def test_evict_refuses_formats_that_round(dtype):
    """Each call would decode, turn and encode all keys: the errors would add up."""
    model = one_layer()
    cache = KVCache(model.arch, 1, 8, dtype)
    model([list(range(8))], cache)
    with pytest.raises(ValueError, match=f"cache stores {dtype}"):
        evict(model, cache, 1)
    assert cache.length == 8


def test_evict_can_empty_the_cache():
    model = one_layer()
    cache = cached(model, list(range(8)))
    evict(model, cache, 8)
    assert cache.length == 0
