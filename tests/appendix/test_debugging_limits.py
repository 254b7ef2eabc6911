"""Appendix A: on which side of a limit a check decides, and how wrong arguments are named."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from firsttoken.appendix import debugging as d
from firsttoken.appendix.debugging import model, quality
from firsttoken.architectures import ARCHITECTURES, Architecture
from firsttoken.engine import Engine
from firsttoken.generate import generate
from firsttoken.generate.sequence import Generation
from firsttoken.hardware import ACCELERATORS
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.metrics import RequestTrace
from firsttoken.models.llama import Llama, load_model
from firsttoken.models.lora import load_adapter
from firsttoken.models.tokenizer import tokenizer
from firsttoken.sampling import (
    SamplingParams,
    apply_temperature,
    keep_min_p,
    next_token_distribution,
    softmax,
)
from firsttoken.throughput import decode_step, prefill
from generate.test_generate import random_weights

LLAMA_8B, H100 = ARCHITECTURES["Llama-3.1-8B"], ACCELERATORS["H100-SXM"]
WORDS = tokenizer()
DRAFT = load_model("draft")
SMALL = Architecture("small", 3, 16, 4, 2, 4, 32, 1024, tied_embeddings=True)
THREE = Llama(SMALL, random_weights(SMALL))
IDS = WORDS.encode_document("import os\n\nfor name in os.listdir(folder):\n    print(name)\n")


def trace(times_s, n_prompt: int = 1) -> RequestTrace:
    return RequestTrace(0.0, tuple(times_s), n_prompt)


def test_a_second_request():
    first = partial(d.SecondRequest, n_prompt=100, block_size=16)
    for cause, second in (
        # Half of its time may pass in the line; a block or more must be common.
        ("healthy", first(2.0, 1.0, n_common=16, n_cached=0)),
        ("queue", first(2.0, 1.01, n_common=16, n_cached=0)),
        ("another beginning", first(2.0, 1.0, n_common=15, n_cached=0)),
        # A block less than what is common may be cached.
        ("healthy", first(2.0, 0.0, n_common=64, n_cached=48)),
        ("prefix not reused", first(2.0, 0.0, n_common=64, n_cached=47)),
        ("healthy", first(3.0, 0.0, n_common=64, n_cached=64, again_s=1.0)),
        ("compiled on the way", first(3.1, 0.0, n_common=64, n_cached=64, again_s=1.0)),
        ("preempted", first(2.0, 0.0, n_common=16, n_cached=0, preemptions=1)),
    ):
        assert d.why_the_second_request_is_slow(second).cause == cause, second
    assert first(1.0, 1.0, n_common=100, n_cached=100).preemptions == 0
    assert d.SecondRequest(1.0, 0.0, 9, 0, 0).block_size == 16


def test_requests_of_which_some_are_slow():
    judge = d.why_only_some_requests_are_slow
    assert judge([3.0, 1.0, 1.0, 1.0], [1] * 4).cause == "healthy"
    assert judge([3.1, 1.0, 1.0, 1.0], [1] * 4).cause == "start"
    assert judge([3.1, 1.0, 1.0, 1.0], [1] * 4, factor=3.1).cause == "healthy"
    assert judge([1.0, 1.0, 1.0, 4.0], [1, 1, 1, 2]).cause == "new shape"
    assert judge([1.0, 1.0, 1.0, 4.0], [1, 1, 1, 1]).cause == "neither first nor new"


def test_the_first_token():
    """The least time is `prefill`'s of what is not cached; kernels may need twice that."""
    judge = partial(d.why_the_first_token_is_slow, arch=LLAMA_8B, accelerator=H100)
    least = prefill(LLAMA_8B, H100, 50_000)
    assert 1 < least < 3
    for cause, ttft_s, queue_s, options in (
        ("numbers do not fit", 0.799 * least, 0.0, {}),
        ("prompt", 0.801 * least, 0.0, {"promised_s": 0.8 * least}),
        ("healthy", 0.801 * least, 0.0, {"promised_s": 0.801 * least}),
        ("prompt", 3.9 * least, 0.0, {}),
        ("overhead", 4.1 * least, 0.0, {}),
        ("prompt", 3.9 * least, 1.9 * least, {}),
        ("queue", 4.1 * least, 2.1 * least, {}),
        ("healthy", 0.3, 0.0, {"n_cached": 49_999}),
        ("overhead", 1.01, 0.0, {"n_cached": 49_999}),  # a second is promised
    ):
        found = judge(ttft_s, queue_s, 50_000, **options)
        assert found.cause == cause, (found, ttft_s, queue_s)
    assert judge(9.0, 9.0, 50_000, n_cached=49_999).cause == "numbers do not fit"
    said = judge(9.0, 0.0, 50_000).evidence
    assert said.endswith("for 50000 tokens.")  # none is cached unless one says so


def test_tokens():
    """Twice the least is a step's own; the cache has more than half of the bytes, or not."""
    l4 = ACCELERATORS["L4"]
    options = {"batch": 1, "context": 1024, "promised_s": 0.01}
    judge = partial(d.why_tokens_are_slow, arch=LLAMA_8B, accelerator=l4, **options)
    least = decode_step(LLAMA_8B, l4, 1, 1024).step_s
    for cause, tpot_s, options in (
        ("numbers do not fit", 0.799 * least, {}),
        ("weights", 0.801 * least, {}),
        ("weights", 1.99 * least, {}),
        ("overhead", 2.01 * least, {}),
        ("healthy", 2.01 * least, {"promised_s": 2.01 * least}),
    ):
        assert judge(tpot_s, **options).cause == cause, tpot_s
    weights = 2 * LLAMA_8B.n_params
    even = weights / kv_cache_bytes(LLAMA_8B, 1)  # tokens of cache that weigh as much
    for kind, context in (("weights", int(0.99 * even)), ("cache", int(1.01 * even))):
        step_s = decode_step(LLAMA_8B, l4, 1, context).step_s
        assert judge(1.5 * step_s, context=context).cause == kind


def test_p99():
    """Of 400 requests, one in fifty is slow: it writes, or reads, more than twice as much."""
    usual, found = trace(0.1 + 0.01 * np.arange(32), 100), []

    def judge(n_output, n_prompt, ttft_s, gap_s=0.01, n=400, factor=4.0, hole_s=0.0):
        times = ttft_s + gap_s * np.arange(n_output)
        times[n_output // 2 :] += hole_s
        slow = [trace(times, n_prompt)] * (n // 50)
        found.append(d.why_p99_is_high([usual] * (n - n // 50) + slow, factor))
        return found[-1].cause

    assert judge(32, 100, 0.1) == "healthy"
    e2e = usual.e2e
    assert judge(32, 100, 4 * e2e - 0.31 - 1e-9) == "healthy"
    assert judge(32, 100, 4 * e2e - 0.31 + 1e-6) == "queue"
    assert judge(32, 100, 4 * e2e - 0.31 + 1e-6, factor=4.1) == "healthy"
    assert judge(32, 100, 2.0, n=199) == "too few requests"
    assert judge(32, 100, 2.0, n=200) == "queue"
    assert judge(64, 100, 0.01, gap_s=0.05) == "stalls"  # as much as twice is not much
    assert judge(65, 100, 0.01, gap_s=0.05) == "long answers"
    assert judge(130, 100, 1.4) == "queue"  # half of its time and more before the first token
    assert found[-1].evidence.endswith("; 52 % of it before the first token.")
    assert judge(32, 200, 2.0) == "queue"
    assert judge(32, 201, 2.0) == "long prompts"
    assert judge(32, 201, 1.0, hole_s=3.0) == "stalls"


def test_speculation():
    judge = d.why_speculation_is_slower
    assert judge(0.7, 4, 0.1, 1.5).cause == "healthy"
    assert judge(0.5, 1, 0.3, 1.5).cause == "checks are not free"
    assert judge(0.5, 1, 0.6, 1.0).cause == "draft too slow"
    assert judge(0.19, 1, 0.3).cause == "too few guesses kept"  # 1.19 tokens a step for free
    assert judge(0.21, 1, 0.3).cause == "draft too slow"


def test_the_prefix_cache():
    judge = partial(d.why_the_prefix_cache_never_hits, block_size=4)
    one, other = [1] * 10, [2] * 10
    assert judge([one, [*one[:9], 3]], [0, 4], 8).cause == "healthy"  # half of two blocks
    assert judge([one, [*one[:9], 3]], [0, 3], 8).cause == "evicted"
    assert judge([one, [*one[:9], 3]], [0, 3], 4).cause == "evicted"
    assert judge([one, [*one[:9], 3]], [0, 3], 3).cause == "switched off"
    assert judge([one, [1, *other]], [0, 0], 8).cause == "another beginning"
    assert judge([one, [1, 1, *other]], [0, 0], 8).cause == "shorter than a block"
    assert judge([one, [1, 1, 1, *other]], [0, 0], 8).cause == "shorter than a block"
    assert judge([one, other, one], [0, 0, 8], 8).cause == "healthy"
    # A prompt of one block leaves nothing to find: its last token has to be read.
    assert judge([[1] * 5, [1] * 4], [0, 0], 0).cause == "evicted"
    assert judge([[1] * 5, [1] * 5], [0, 0], 0).cause == "switched off"


def test_a_batch_that_is_doubled():
    """Once and a half as much is enough; with texts of one token the cache is none."""
    huge = replace(H100, memory_bytes=1e15)
    causes = set()
    for formats in ((), ("fp8", "bf16"), ("bf16", "fp8")):
        shape = (*(formats or ("bf16", "bf16")), "layers")
        for batch in (1, 16, 64, 128, 256, 512):
            for context in (1, 500, 8000):
                found = d.why_a_larger_batch_does_not_help(LLAMA_8B, huge, batch, context, *formats)
                gain, short = (
                    decode_step(LLAMA_8B, huge, 2 * batch, n, *shape).tokens_per_s
                    / decode_step(LLAMA_8B, huge, batch, n, *shape).tokens_per_s
                    for n in (context, 1)
                )
                expected = "healthy" if gain > 1.5 else "cache" if short > 1.5 else "arithmetic"
                assert found.cause == expected, (batch, context)
                causes.add(expected)
    assert len(causes) == 3
    found = d.why_a_larger_batch_does_not_help(LLAMA_8B, H100, 512, 8000)
    assert found.cause == "does not fit"


def test_more_cards():
    """Slow links cost time; of a latent there is one for all heads, and so a copy on each card."""
    judge = partial(d.why_more_cards_do_not_help, ARCHITECTURES["Llama-3.1-70B"], H100, 8, 64, 4096)
    assert judge(link_bytes_per_s=1e15, latency_s=0.0).cause == "healthy"
    slow = judge(link_bytes_per_s=1e9, latency_s=0.0)
    assert slow.cause == "link" and slow.evidence.endswith("; 97 % of a step is adding up.")
    latent = d.why_more_cards_do_not_help(
        ARCHITECTURES["DeepSeek-V3"], H100, 2, 512, 100_000, link_bytes_per_s=1e15, latency_s=0.0
    )
    assert latent.cause == "cache is copied" and latent.evidence.endswith("1 KV heads for 2.")


def test_a_reading_is_the_engine_s():
    engine = Engine(DRAFT, 8)
    for _ in range(2):
        engine.submit([1], SamplingParams(max_tokens=4), ignore_eos=True)
    engine.step()
    engine.submit([1], SamplingParams(max_tokens=4))
    assert d.Reading.of(engine, 3, 5.0) == d.Reading(3, 2, 1, 2, 5.0)


def test_a_stream_that_comes_at_once():
    """Less than a millisecond a token was not streamed; a fifth of the time is a burst."""
    sent = trace([1.0, 1.1, 1.2, 1.3])

    def judge(times_s, left=sent, **options):
        return d.why_the_stream_comes_at_once(trace(times_s), left, **options).cause

    assert judge([1.4, 1.42, 1.44, 1.47]) == "healthy"
    assert judge([1.4, 1.41, 1.42, 1.45]) == "held on the way"
    assert judge([1.4, 1.41, 1.42, 1.45], bursts=0.1) == "healthy"
    assert judge([1.49, 1.59, 1.69, 1.79]) == "healthy"  # later by less than half of the TTFT
    assert judge([1.51, 1.61, 1.71, 1.81]) == "network"
    quick = [1.0, 1.0013, 1.0026, 1.0039]
    assert judge(quick, trace(quick)) == "not streamed"
    slower = [1.0, 1.0014, 1.0028, 1.0042]
    assert judge(slower, trace(slower)) == "healthy"


def test_a_benchmark():
    """A count fits within a fiftieth."""
    run = d.Benchmark([400, 500, 600, 700], [100, 200, 300, 400], seconds=2.0)
    for count, cause in (
        (1000, "healthy"),
        (1600, "padding counted"),
        (3200, "prompts counted"),
        (4400, "prompts and padding counted"),
    ):
        for off in (0.981, 1.019):
            assert d.why_the_benchmark_is_too_good(off * count / 2, run).cause == cause
        for off in (0.979, 1.021):
            assert d.why_the_benchmark_is_too_good(off * count / 2, run).cause == "another run"


def test_a_cache_that_is_larger():
    def judge(factor, dtype="bf16", arch=LLAMA_8B):
        right = kv_cache_bytes(arch, 1000, 1, dtype)
        return d.why_the_cache_is_larger_than_computed(arch, 1000, factor * right, dtype).cause

    assert judge(1.019) == judge(0.981) == "healthy"
    assert judge(1.021) == judge(0.979) == "no such slip"
    assert judge(4.0) == judge(4 * 1.019) == "query heads kept"
    assert judge(2.0) == judge(0.5) == judge(2 * 0.981) == "another format"
    assert judge(2 * 0.979) == "no such slip"
    assert judge(0.5, "fp32") == judge(0.25, "fp32") == judge(2.0, "fp8") == "another format"
    assert judge(2**30 / 1e9) == judge(1e9 / 2**30) == "GiB taken for GB"
    assert judge(1.0, arch=ARCHITECTURES["Llama-2-7B"]) == "healthy"  # each has heads of its own


def test_a_server_that_does_not_start():
    weights, room = 2.0 * LLAMA_8B.n_params, 2e9
    judge = partial(d.why_the_server_does_not_start, LLAMA_8B)
    assert judge(weights + room, 1.0, 1).cause == "weights"
    assert judge((weights + room) / 0.94, 0.5, 1).cause == "share too small"
    assert judge((weights + room) / 0.96, 0.5, 1).cause == "weights"
    assert judge(weights, 1.0, 1, workspace_bytes=0).cause == "weights"
    token = kv_cache_bytes(LLAMA_8B, 1)
    assert judge(weights + room + 9.5 * token, 1.0, 9).cause == "healthy"
    assert judge(weights + room + 9.5 * token, 1.0, 10).cause == "context too long"
    assert judge(weights + room + 9.5 * token, 1.0, 18, kv_dtype="fp8").cause == "healthy"
    assert judge(2 * (weights + room + 9.5 * token), 0.5, 9).cause == "healthy"


def test_memory_beyond_the_weights():
    weights, text = 2.0 * LLAMA_8B.n_params, kv_cache_bytes(LLAMA_8B, 1000)
    judge = partial(d.why_memory_runs_out, LLAMA_8B, lengths=[1000])
    reserved = kv_cache_bytes(LLAMA_8B, 3000)
    peak = 4.0 * 500 * LLAMA_8B.vocab_size
    for held, options in ((text, {}), (reserved, {"reserved_len": 3000})):
        whole = weights + held + peak
        options |= {"prefill_tokens": 500}
        assert judge(memory_bytes=whole, **options).cause == "healthy"
        assert judge(memory_bytes=whole - 1, **options).cause == "one long pass"
        assert judge(memory_bytes=weights + held, **options).cause == "one long pass"
    assert judge(memory_bytes=weights + reserved - 1, reserved_len=3000).cause == "reservation"
    assert judge(memory_bytes=weights + reserved, reserved_len=3000).cause == "healthy"
    assert judge(memory_bytes=weights + reserved, reserved_len=1000).cause == "healthy"


def test_what_piles_up():
    def judge(*readings):
        return d.why_a_restart_helps([d.Reading(*r) for r in readings]).cause

    idle, busy = (0, 0, 0, 0), (4, 4, 0, 9)
    assert judge(idle, busy) == judge(busy, (9, 4, 0, 9)) == "healthy"
    assert judge((0, 0, 0, 1), busy) == judge(busy, (0, 0, 0, 1)) == "blocks leak"
    assert judge(busy, (4, 4, 1, 9)) == "clients gone"
    assert judge((9, 4, 1, 9), (9, 4, 2, 9), (9, 4, 2, 9)) == "line grows"
    assert judge((9, 4, 2, 9), (9, 4, 2, 9)) == judge((9, 4, 1, 9), (9, 4, 3, 9), (9, 4, 2, 9))
    assert judge((9, 4, 2, 9), (9, 4, 2, 9)) == "healthy"
    assert judge((*busy, 2e9), (*busy, 3e9)) == "healthy"
    assert judge((*busy, 2e9), (*busy, 3.1e9)) == "host memory"
    assert judge((*busy, 0.0), (*busy, 3.1e9)) == "healthy"  # it was not measured at first
    assert judge((*busy, 1.0), (*busy, 1.6)) == "host memory"


def test_json_that_ends_in_blanks():
    """More than half of it is blank, or the limit was too low."""
    for n_blank, cause in ((3, "max_tokens"), (5, "max_tokens"), (6, "blanks")):
        answer = Generation([1] * 9, [0.0] * 9, 0.0, "length", '{"a":' + " " * n_blank)
        assert d.why_json_is_cut_off(answer, 9).cause == cause, n_blank


# Checks that run a model.


def test_how_much_of_a_text_is_needed():
    assert d.why_nonsense(DRAFT, IDS[:4]).cause == "healthy"
    with pytest.raises(ValueError, match="ids must hold at least 4 tokens, got 3"):
        d.why_nonsense(DRAFT, IDS[:3])
    text = (IDS * 9)[: 41 + 3 * 5]
    assert d.why_long_prompts_fail(DRAFT, text, far=41, passage=5).cause
    with pytest.raises(ValueError, match="ids must hold at least 56 tokens, got 55"):
        d.why_long_prompts_fail(DRAFT, text[1:], far=41, passage=5)
    with pytest.raises(ValueError, match="far must be more than near, 40, got 40"):
        d.why_long_prompts_fail(DRAFT, text, far=40)


def test_a_model_that_knows_nothing_is_no_better_than_a_guess():
    nothing = Llama(SMALL, {n: 0 * w for n, w in random_weights(SMALL).items()})
    assert d.why_nonsense(nothing, IDS).cause == "weights"


def test_what_a_passage_saves(monkeypatch):
    """A tenth of what it saves nearby is little; then it is asked how far it was trained."""
    saved = {}
    monkeypatch.setattr(model, "_saved_by_reading_twice", lambda m, ids, n, passage: saved[n])
    context = DRAFT.arch.max_context
    for far, share, cause in (
        (100, 0.11, "healthy"),
        (100, 0.1, "within the context"),
        (context - 80, 0.0, "within the context"),
        (context - 79, 0.0, "beyond the context"),
    ):
        saved = {40: 2.0, far: 2.0 * share}
        found = d.why_long_prompts_fail(DRAFT, [1] * (far + 120), far)
        assert found.cause == cause, found


def test_a_loop_is_three_times_the_same():
    assert model.loop_period([1] * 3) == 1 and model.loop_period([1] * 2) == 0
    assert model.loop_period([1, 2] * 3) == 2 and model.loop_period([2, *[1, 2] * 2]) == 0
    period = list(range(64))
    assert model.loop_period(period * 3) == 64 and model.loop_period([*period, 64] * 3) == 0
    assert model.loop_period(period * 3, longest=63) == 0


@pytest.mark.parametrize(
    ("together", "alone", "cause"),
    [
        (0.02, None, "healthy"),
        (0.021, [0.02, 0.02, 0.02], "too few bits"),
        (1.0, [0.0, 0.125, 0.125], "too few bits"),  # a quarter of the harm is the layers'
        (1.0, [0.0, 0.12, 0.12], "embedding or head"),
        (1.0, [0.5, 0.25, 0.25], "too few bits"),  # half of it is not most of it
        (1.0, [0.25, 0.51, 0.25], "one layer"),
    ],
)
def test_which_part_of_a_rounded_model_does_the_harm(monkeypatch, together, alone, cause):
    harms = iter([together, *(alone or [])])
    monkeypatch.setattr(quality, "_divergence", lambda p, q: next(harms))
    own = generate(THREE, [0], SamplingParams(temperature=0.0, max_tokens=8)).ids
    found = d.why_fewer_bits_hurt(THREE, THREE, [0, *own])
    assert found.cause == cause, found
    assert next(harms, None) is None
    if cause == "one layer":
        assert "layer 1 does 50 % of it" in found.evidence


def test_settings_with_a_least_share_and_penalties():
    """Each filter has its place in every order: min-p first, then top-k, then top-p."""
    logits = np.log([0.4, 0.3, 0.15, 0.05, *[0.1 / 45] * 45])
    params = SamplingParams(temperature=2.0, min_p=0.3)
    last = softmax(apply_temperature(keep_min_p(logits, 0.3), 2.0))
    assert d.why_settings_differ(logits, params, last).cause == "temperature last"
    right = next_token_distribution(logits, params)
    found = d.why_settings_differ(logits, params, right)
    assert found.cause == "healthy" and found.evidence.startswith("4 tokens are left")
    near = right + 5e-7 * (right == 0)  # as of an engine in fp32
    assert d.why_settings_differ(logits, params, near).cause == "healthy"
    for prompt, output in (([0, 1], [2]), ([0], [])):
        params = SamplingParams(temperature=1.0, presence_penalty=0.5)
        counted = next_token_distribution(logits, params, prompt, [*prompt, *output])
        found = d.why_settings_differ(logits, params, counted, prompt, output)
        assert found.cause == "penalties count the prompt"


def test_three_log_probabilities_are_enough():
    logits = np.log([[0.5, 0.3, 0.2]] * 3)
    found = d.why_logprobs_differ(logits[:, 1], logits, [1, 1, 1], SamplingParams())
    assert found.cause == "healthy" and found.evidence == "The model's own: mean -1.20 nats."


# What is wrong is named.

ANSWER = partial(Generation, token_times_s=[0.0], prefill_s=0.0, finish_reason="length")


def asked_at_work():
    engine = Engine(DRAFT, 8)
    engine.submit([1], SamplingParams())
    return d.ask_twice(engine, [1], [1])


WRONG = [
    (lambda: d.why_many_users_slow_it_down(0, 1), "rate and service_s must be positive, got 0"),
    (lambda: d.why_many_users_slow_it_down(1, 0), "rate and service_s must be .* got 1 and 0"),
    (lambda: d.why_many_users_slow_it_down(1, 1, -1), "service_std_s"),
    (lambda: d.why_many_users_slow_it_down(1, 1, places=0), "places"),
    (lambda: d.Load(0, 0, 1, 1.1, 0), "cache_share"),
    (lambda: d.Load(0, 0, 1, 0, -0.1), "busy"),
    (lambda: d.Load(0, 0, 0, 0, 0), "max_batch"),
    (lambda: d.Load(-1, 0, 1, 0, 0), "running -1 and waiting 0 must be counts"),
    (lambda: d.Load(0, -1, 1, 0, 0), "running 0 and waiting -1 must be counts"),
    (lambda: d.why_more_cards_do_not_help(LLAMA_8B, H100, 1, 1, 1), "n must"),
    (lambda: d.Benchmark([], [], 1.0), "answers must be as many as prompts, at least one"),
    (lambda: d.Benchmark([1], [1, 1], 1.0), "got 2, 1 and 1.0 s"),
    (lambda: d.Benchmark([1], [1], 0.0), "got 1, 1 and 0.0 s"),
    (
        lambda: d.why_the_stream_comes_at_once(trace([1, 2, 3]), trace([1, 2, 3])),
        r"client \(3\) and server \(3\) must have the same tokens, at least 4",
    ),
    (
        lambda: d.why_the_stream_comes_at_once(trace([1, 2, 3, 4]), trace([1, 2, 3, 4, 5])),
        r"client \(4\) and server \(5\)",
    ),
    (lambda: d.why_the_server_does_not_start(LLAMA_8B, 1e9, 1.1, 1), "share"),
    (lambda: d.why_the_server_does_not_start(LLAMA_8B, 1e9, 1.0, 0), "max_len"),
    (lambda: d.why_memory_runs_out(LLAMA_8B, 1e9, [0]), "lengths"),
    (
        lambda: d.why_memory_runs_out(LLAMA_8B, 1e9, [5, 7], reserved_len=6),
        "lengths must be at most reserved_len, 6: 7",
    ),
    (
        lambda: d.why_the_cache_is_larger_than_computed(LLAMA_8B, 1, 0),
        "measured_bytes must be positive, got 0",
    ),
    (lambda: d.why_requests_are_preempted(0, 1, [1], 1), "n_blocks"),
    (lambda: d.why_requests_are_preempted(1, 0, [1], 1), "block_size"),
    (lambda: d.why_requests_are_preempted(1, 1, [1], 0), "max_batch"),
    (lambda: d.why_requests_are_preempted(1, 1, [0], 1), "lengths"),
    (lambda: d.why_a_restart_helps([d.Reading(0, 0, 0, 0)]), "readings must be at least 2, got 1"),
    (
        lambda: d.why_temperature_0_differs(DRAFT, [1], [], [2, 3]),
        "answer and other must hold ids, got 0 and 2",
    ),
    (lambda: d.why_temperature_0_differs(DRAFT, [1], [2], []), "got 1 and 0"),
    (
        lambda: d.why_settings_differ([0.0, 1.0], SamplingParams(), [1.0]),
        r"logits \(2,\) and probabilities \(1,\) must be one row each",
    ),
    (lambda: d.why_settings_differ([[0.0]], SamplingParams(), [[1.0]]), r"logits \(1, 1\)"),
    (
        lambda: d.why_settings_differ([0.0, 1.0], SamplingParams(), [0.5, 0.5]),
        "params must hold settings whose order matters here",
    ),
    (
        lambda: d.why_logprobs_differ([0.0] * 2, np.zeros((2, 4)), [1, 1], SamplingParams()),
        r"reported \(2,\) and logits \(2, 4\) must have a row for each of at least 3 ids, got 2",
    ),
    (
        lambda: d.why_logprobs_differ([0.0] * 3, np.zeros((4, 4)), [1, 1, 1], SamplingParams()),
        r"logits \(4, 4\)",
    ),
    (
        lambda: d.why_logprobs_differ([0.0] * 4, np.zeros((3, 4)), [1, 1, 1], SamplingParams()),
        r"reported \(4,\)",
    ),
    (
        lambda: d.why_fewer_bits_hurt(DRAFT, load_model("target"), IDS),
        f"rounded must have the shape of model: {DRAFT.arch.n_layers} layers, got",
    ),
    (
        lambda: d.why_the_adapter_does_nothing(
            DRAFT, load_adapter("capitals"), np.zeros((2, 1024)), IDS[:3]
        ),
        r"served must be logits \(3, 1024\), got \(2, 1024\)",
    ),
    (lambda: d.why_the_prompt_is_off(WORDS, [], 0), "ids must hold at least one token, got none"),
    (
        lambda: d.why_it_never_stops(ANSWER([]), WORDS, [0]),
        "answer must hold at least one token, got none",
    ),
    (lambda: d.why_json_is_cut_off(ANSWER([1]), 9), "answer must have a text: .* got None"),
    (
        lambda: d.why_the_stop_string_shows(["other"], "text", "end"),
        "pieces must begin with text, 'text' at its end; got 'other'",
    ),
    (lambda: d.why_the_first_token_is_slow(-1, 0, 9, LLAMA_8B, H100), "ttft_s"),
    (lambda: d.why_the_first_token_is_slow(1, -1, 9, LLAMA_8B, H100), "queue_s"),
    (
        lambda: d.why_the_first_token_is_slow(1, 0, 9, LLAMA_8B, H100, promised_s=-1),
        "promised_s",
    ),
    (
        lambda: d.why_the_first_token_is_slow(1, 1.5, 9, LLAMA_8B, H100),
        "queue_s must be at most ttft_s, 1, got 1.5",
    ),
    (
        lambda: d.why_the_first_token_is_slow(1, 0, 9, LLAMA_8B, H100, n_cached=9),
        "n_cached must lie in 0 … 8, got 9",
    ),
    (lambda: d.SecondRequest(1.0, -1.0, 9, 0, 0), "queue_s"),
    (lambda: d.SecondRequest(-1.0, 0.0, 9, 0, 0), "ttft_s"),
    (lambda: d.SecondRequest(1.0, 0.0, 9, 0, 0, again_s=-1.0), "again_s"),
    (lambda: d.SecondRequest(1.0, 0.0, 0, 0, 0), "n_prompt"),
    (lambda: d.SecondRequest(1.0, 0.0, 9, 0, 0, block_size=0), "block_size"),
    (lambda: d.SecondRequest(1.0, 0.0, 9, 0, 0, preemptions=-1), "preemptions"),
    (lambda: d.SecondRequest(1.0, 0.0, 9, 10, 0), "n_common must be at most n_prompt, 9, got 10"),
    (lambda: d.SecondRequest(1.0, 0.0, 9, 0, 10), "n_cached must be at most n_prompt, 9, got 10"),
    (lambda: d.SecondRequest(1.0, 1.5, 9, 0, 0), "queue_s must be at most ttft_s, 1.0, got 1.5"),
    (asked_at_work, "engine has requests of its own, expected an idle one"),
    (
        lambda: d.why_only_some_requests_are_slow([1.0] * 3, [1] * 3),
        "ttfts_s and shapes must be as many, at least 4; got 3 and 3",
    ),
    (lambda: d.why_only_some_requests_are_slow([1.0] * 5, [1] * 4), "got 5 and 4"),
    (lambda: d.why_tokens_are_slow(-1, LLAMA_8B, H100, 1, 1), "tpot_s"),
    (lambda: d.why_tokens_are_slow(1, LLAMA_8B, H100, 1, 1, promised_s=-1), "promised_s"),
    (lambda: d.Stream([1.0, 2.0, 3.0]), "token_times_s must hold 4 times or more, got"),
    (lambda: d.why_p99_is_high([]), "traces must hold at least one request, got none"),
    (
        lambda: d.why_the_prefix_cache_never_hits([[1]], [0], 0),
        r"prompts \(1\) and n_cached \(1\) must be as many, at least 2",
    ),
    (
        lambda: d.why_the_prefix_cache_never_hits([[1]] * 2, [0] * 3, 0),
        r"prompts \(2\) and n_cached \(3\)",
    ),
    (
        lambda: d.why_the_prefix_cache_never_hits([[1]] * 2, [0] * 2, 0, block_size=0),
        "block_size",
    ),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=range(len(WRONG)))
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=rf"\b{message}"):
        call()
