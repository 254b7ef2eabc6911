"""Appendix A: every check finds the fault that is there, and no other.

CASES holds, for each check, what it is to judge: something healthy, and for each of its causes
something that is broken in that way alone. So that no cause is only words, the causes that the
code can name are read from its source and compared with those that were found.
"""

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import takewhile
from pathlib import Path

import nbformat
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from site_pages import heading_anchor

from firsttoken import debugging as d
from firsttoken.architectures import ARCHITECTURES
from firsttoken.batching import Request, bursty_trace, poisson_trace, simulate
from firsttoken.constrained import Constraint, Json
from firsttoken.continuation import Generation
from firsttoken.debugging import broken
from firsttoken.debugging.model import loop_period
from firsttoken.debugging.text import common_prefix
from firsttoken.engine import Engine
from firsttoken.generate import generate
from firsttoken.hardware import ACCELERATORS
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.llama import load_model
from firsttoken.lora import load_adapter, merge_adapter
from firsttoken.metrics import RequestTrace
from firsttoken.paging import BlockPool
from firsttoken.paths import data_path
from firsttoken.sampling import (
    SamplingParams,
    apply_temperature,
    keep_top_k,
    keep_top_p,
    next_token_distribution,
    softmax,
)
from firsttoken.server.text import HeldText
from firsttoken.tokenizer import TextStream, tokenizer

ROOT = Path(__file__).parents[1]
LLAMA_8B, LLAMA_70B = ARCHITECTURES["Llama-3.1-8B"], ARCHITECTURES["Llama-3.1-70B"]
H100 = ACCELERATORS["H100-SXM"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
WORDS = tokenizer()


@cache
def target():
    return load_model("target")


@cache
def corpus() -> tuple[int, ...]:
    return tuple(WORDS.encode(data_path("heldout.txt").read_text("utf-8")[:20_000]))


def later(check: Callable, *known, **said):
    """Return a maker of calls of a check, which gets what is known and then what the call has."""
    return partial(partial, check, *known, **said)


# Wrong text: the model and its cache.


def nonsense(faulty: Callable | None = None):
    return lambda: d.why_nonsense(faulty(target()) if faulty else target(), corpus()[:16])


@later
def lost(far: int = 200, theta: float | None = None):
    changed = target() if theta is None else broken.with_rope_base(target(), theta)
    return d.why_long_prompts_fail(changed, corpus(), far)


def repeats(prompt: str, faulty: Callable = lambda m: m, n: int = 48):
    ids = WORDS.encode_document(prompt)
    params = replace(GREEDY, max_tokens=n)
    return lambda: d.why_it_repeats(faulty(target()), ids, params)


@later
def two_answers(other: Callable, bits: int):
    prompt = list(corpus()[200:220])
    one, two = (generate(m, prompt, GREEDY).ids for m in (target(), other(target())))
    return d.why_temperature_0_differs(target(), prompt, one, two, bits)


# Wrong text: what stands around the model.


prompt = later(d.why_the_prompt_is_off, WORDS, begin_id=0)


@later
def written(start: str, eos_ids=(0,), stop=(), **options):
    """Judge the end of an answer to the beginning of a program."""
    ids = WORDS.encode_document(start)
    params = replace(GREEDY, stop=options.pop("heeded", ()))
    answer = generate(target(), ids, params, tokenizer=WORDS, **options)
    return d.why_it_never_stops(answer, WORDS, eos_ids, stop)


END = "if __name__ == '__main__':\n    main()\n"  # behind it the model ends its text
METHOD = "class A:\n    def "


@later
def json_answer(seed: int, temperature: float = 1.0, held: bool = True, close: bool = False):
    table = [WORDS.token_bytes(i) for i in range(WORDS.vocab_size)]
    language = Json(max_depth=2, root="object")
    constraint = Constraint(language, table, target().eos_ids) if held else None
    answer = generate(
        target(),
        WORDS.encode_document("config = " if held else END),
        SamplingParams(temperature=temperature, max_tokens=24, seed=seed),
        tokenizer=WORDS,
        constraint=constraint,
        close_in_time=close,
    )
    return d.why_json_is_cut_off(answer, budget=24)


def json_text(text: str, reason: str):
    answer = Generation([1] * 9, [0.0] * 9, 0.0, reason, text)
    return lambda: d.why_json_is_cut_off(answer, budget=9)


@later
def characters(ids, pieces: Callable | None = None):
    stream = TextStream(WORDS)
    sent = pieces(ids) if pieces else [*map(stream.push, ids), stream.finish()]
    return d.why_characters_break(WORDS, ids, sent)


NAIVE = WORDS.encode("naïve 🙂")


@later
def stop_shows(held: bool, kept: bool = False):
    said, stop = "one two\nEND", "\nEND"
    answer = said if kept else said.removesuffix(stop)
    stream = HeldText(WORDS, [stop]) if held else TextStream(WORDS)
    pieces = [stream.push(i) for i in WORDS.encode(said)]
    if not held and not kept:
        pieces = pieces[:-1]  # it stops when the string is complete
    return d.why_the_stop_string_shows(pieces, answer, stop)


@later
def foreign(pool: type[BlockPool] = BlockPool):
    earlier, later = [1] * 16 + [3] * 16, [3] * 16 + [2] * 16
    own = pool(8, 16, prefix_caching=True)
    own.allocate("earlier", earlier)
    return d.why_foreign_text(own.n_cached(later), earlier, later)


@later
def foreign_adapter(kind: type[Engine] = Engine):
    asked, counts = list(corpus()[:40]), []
    adapters = {"capitals": load_adapter("capitals")}
    engine = kind(target(), 16, prefix_caching=True, adapters=adapters)
    for adapter in (None, "capitals"):
        engine.submit(asked, replace(GREEDY, max_tokens=1), adapter=adapter)
        engine.run()
        counts.append(engine.stats.cached_tokens)
    return d.why_foreign_text(counts[1] - counts[0], asked, asked, same_adapter=False)


# Other answers than expected.

LOGITS = np.log([0.4, 0.3, 0.15, 0.05, *[0.1 / 45] * 45])  # a few, and a long tail
SETTINGS = SamplingParams(temperature=2.0, top_k=4, top_p=0.7)
PENALTY = SamplingParams(presence_penalty=1.0)


def settings(order: Callable, params=SETTINGS, prompt=()):
    made = softmax(order(LOGITS))
    return lambda: d.why_settings_differ(LOGITS, params, made, prompt)


def by_the_book(logits):
    return keep_top_p(keep_top_k(apply_temperature(logits, 2.0), 4), 0.7)


def temperature_last(logits):
    return apply_temperature(keep_top_p(keep_top_k(logits, 4), 0.7), 2.0)


def each_on_all(logits):
    warm = apply_temperature(logits, 2.0)
    return np.where(np.isfinite(keep_top_p(warm, 0.7)), keep_top_k(warm, 4), -np.inf)


def penalised(logits):
    return logits - np.eye(len(logits))[0]  # token 0 stands in the prompt


@later
def seeds(kind: type[Engine] = Engine, seed: int | None = 7):
    asked = list(corpus()[:12])

    def ask(n: int) -> list[int]:
        engine = kind(target(), 64)
        params = SamplingParams(temperature=1.0, max_tokens=12, seed=seed)
        engine.submit(asked, params)
        others = replace(params, seed=3)
        for i in range(n):
            engine.submit(list(corpus()[20 * i : 20 * i + 12]), others)
        return engine.run()[0].ids

    return d.why_the_seed_does_not_help(ask)


@later
def reported(change: Callable):
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=2.0, size=(6, 12))
    ids = logits.argmax(axis=-1)
    bare = np.log(softmax(logits))[range(6), ids]
    params = SamplingParams(temperature=0.7, top_k=5)
    left = np.log(next_token_distribution(logits, params, [[]] * 6, [[]] * 6)[range(6), ids])
    return d.why_logprobs_differ(change(bare, left), logits, ids.tolist(), params)


def bits(*arguments, **options):
    return lambda: d.why_fewer_bits_hurt(
        target(), broken.rounded(target(), *arguments, **options), corpus()[:60]
    )


def head_alone():
    spoilt = broken.rounded(target(), 8, layers=[])
    spoilt.unembedding = np.rint(4 * np.array(target().unembedding)) / 4
    return d.why_fewer_bits_hurt(target(), spoilt, corpus()[:60])


@later
def adapter(serve: Callable):
    ids, capitals = list(corpus()[:24]), load_adapter("capitals")
    served = serve(target(), capitals)([ids])[0]
    return d.why_the_adapter_does_nothing(target(), capitals, served, ids)


# Slow.


first_token = later(d.why_the_first_token_is_slow, arch=LLAMA_8B, accelerator=H100)


@later
def second(change: Callable = lambda ids: ids, **options):
    """Ask the engine twice, the second time with the first prompt and some tokens more."""
    one = list(corpus()[:96])
    engine = Engine(target(), **{"n_blocks": 64, "prefix_caching": True} | options)
    return d.why_the_second_request_is_slow(d.ask_twice(engine, one, change([*one, 5, 6])))


# What the first request with a cached prefix looks like where its kernel is missing.
COMPILED = d.SecondRequest(3.2, 0.0, again_s=0.1, n_prompt=98, n_common=96, n_cached=96)
CLUMPS = d.Stream(np.repeat(np.arange(1, 6) * 0.05, 3))
slow_ones = later(d.why_only_some_requests_are_slow)


tokens = later(
    d.why_tokens_are_slow,
    **{"arch": LLAMA_8B, "accelerator": ACCELERATORS["L4"], "batch": 1, "context": 1024},
    promised_s=0.05,
)


def cost(prefills, decodes):
    """Return the seconds of a step: 10 ms, and 0.1 ms for each token of a prompt."""
    return 0.01 + 1e-4 * sum(new for new, _ in prefills)


READER, LONG = Request(0.0, 64, 100), Request(0.3, 4000, 8)


@later
def stream(requests=(READER, LONG), policy="continuous", pause_s: float = 0.0, **options):
    steps = []
    traces = simulate(requests, policy, cost, max_batch=8, on_step=steps.append, **options)
    times = list(traces[0].token_times_s)
    late = [t + pause_s * (i > 50) for i, t in enumerate(times)]
    trace = replace(traces[0], token_times_s=tuple(late))
    return d.why_the_stream_has_gaps(d.Stream.of(trace, 0, steps))


@later
def tail(requests):
    traces = simulate(requests, "chunked", cost, max_batch=4, token_budget=512)
    return d.why_p99_is_high(traces)


def arrivals(rate: float, n: int = 400, **lengths):
    lengths = {"n_prompt": 32, "n_output": 32} | lengths
    return poisson_trace(rate, n, np.random.default_rng(0), **lengths)


def bursts():
    lengths = {"n_prompt": 32, "n_output": 32}
    return bursty_trace(3.0, 400, np.random.default_rng(0), cv=6.0, **lengths)


def held_up():
    """Judge requests of which one in fifty stops for three seconds in the middle."""
    usual = np.arange(1, 33) * 0.01
    stopped = usual + 3.0 * (np.arange(32) > 15)
    times = [stopped if i % 50 == 0 else usual for i in range(400)]
    return d.why_p99_is_high([RequestTrace(0.0, tuple(t)) for t in times])


@later
def seldom(n_output: int, n_prompt: int = 100):
    """Judge requests of which one in fifty waits ten seconds for its first token."""
    usual, late = 0.1 + 0.01 * np.arange(32), 10 + 0.01 * np.arange(n_output)
    traces = [RequestTrace(0.0, tuple(usual), 100)] * 392
    return d.why_p99_is_high(traces + [RequestTrace(0.0, tuple(late), n_prompt)] * 8)


def mostly(usual: int, rare: int, share: float = 0.02):
    return lambda rng: rare if rng.random() < share else usual


@later
def never_hits(change: Callable = lambda i, ids: ids, n_blocks: int = 64, **options):
    """Send five prompts with one beginning of 48 tokens one by one, the last one twice."""
    engine = Engine(target(), n_blocks, **{"prefix_caching": True} | options)
    prompts = [change(i, [*corpus()[:48], *corpus()[100 * i : 100 * i + 30]]) for i in range(5)]
    counts = [0]
    for ids in [*prompts, prompts[-1]]:
        engine.submit(ids, replace(GREEDY, max_tokens=2), ignore_eos=True)
        engine.run()
        counts.append(engine.stats.cached_tokens)
    *cached, at_once = np.diff(counts).tolist()
    return d.why_the_prefix_cache_never_hits(prompts, cached, at_once)


@later
def never_hits_between(n_blocks: int):
    """Send long prompts of others between those with one beginning."""
    engine = Engine(target(), n_blocks, prefix_caching=True)
    prompts = [[*corpus()[:48], *corpus()[100 * i : 100 * i + 30]] for i in range(3)]
    counts = []

    def send(ids):
        before = engine.stats.cached_tokens
        engine.submit(ids, replace(GREEDY, max_tokens=2), ignore_eos=True)
        engine.run()
        return engine.stats.cached_tokens - before

    for i, ids in enumerate(prompts):
        counts.append(send(ids))
        if i < 2:
            send(list(corpus()[1000 * i + 1000 : 1000 * i + 1150]))
    return d.why_the_prefix_cache_never_hits(prompts, counts, send(prompts[-1]))


speculation = later(d.why_speculation_is_slower)


# Memory.


CARD = {"arch": LLAMA_8B, "memory_bytes": 24e9}
starts = later(d.why_the_server_does_not_start, **CARD, share=0.9, max_len=8192)


fills = later(d.why_memory_runs_out, **CARD, lengths=[1000] * 20)


def measured(factor: float, arch=LLAMA_8B):
    right = kv_cache_bytes(arch, 1000)
    return lambda: d.why_the_cache_is_larger_than_computed(arch, 1000, factor * right)


preempted = later(d.why_requests_are_preempted, 100, 16, [150, 170])


@later
def restart(kind: type[Engine] = Engine, told: bool = True):
    """Read an engine before and after a client has gone away in the middle of its answer."""
    engine = kind(target(), 32)
    readings = [d.Reading.of(engine, clients=0)]
    asked = engine.submit(list(corpus()[:30]), GREEDY, ignore_eos=True)
    engine.step()
    readings.append(d.Reading.of(engine, clients=1))
    if told:
        engine.abort(asked)
    engine.step()
    return d.why_a_restart_helps([*readings, d.Reading.of(engine, clients=0)])


def piles_up(*readings):
    return lambda: d.why_a_restart_helps([d.Reading(*r) for r in readings])


# Load.


users = later(d.why_many_users_slow_it_down)


@later
def idle(n: int, busy: float = 0.9, **options):
    """Read an engine with some requests in it."""
    engine = Engine(target(), **{"n_blocks": 64, "max_batch": 8} | options)
    for i in range(n):
        engine.submit(list(corpus()[i : i + 30]), GREEDY, ignore_eos=True)
    engine.step()
    return d.why_the_card_is_idle(d.Load.of(engine, busy))


larger_batch = later(d.why_a_larger_batch_does_not_help, LLAMA_8B, H100)


more_cards = later(d.why_more_cards_do_not_help, LLAMA_70B, H100, batch=8, context=4096)


RUN = d.Benchmark(prompts=[500, 300, 100], answers=[10, 30, 100], seconds=2.0)


benchmark = later(d.why_the_benchmark_is_too_good, run=RUN)


def on_the_way(change: Callable, sent=tuple(0.5 + 0.05 * i for i in range(40))):
    server = RequestTrace(0.0, sent)
    client = RequestTrace(0.0, tuple(change(t) for t in sent))
    return lambda: d.why_the_stream_comes_at_once(client, server)


CASES: dict[str, dict[Callable, str]] = {
    "why_nonsense": {
        nonsense(): "healthy",
        nonsense(broken.WithoutMask): "mask",
        nonsense(broken.OnePlaceTooFar): "position",
        nonsense(broken.OverwritingCache): "cache or positions",
        nonsense(broken.PromptOnlyCache): "cache or positions",
        nonsense(broken.Overflowing): "no numbers",
        nonsense(broken.OfAnotherVocabulary): "weights",
    },
    "why_long_prompts_fail": {
        lost(): "healthy",
        lost(theta=500.0): "within the context",
        lost(far=600): "beyond the context",
    },
    "why_it_repeats": {
        repeats(METHOD): "healthy",
        repeats("x = 1\n"): "greedy choice",
        repeats(METHOD, broken.PromptOnlyCache): "cache",
        repeats("x = 1\ny = 2\n" * 12): "prompt",
        repeats(METHOD, lambda m: broken.rounded(m, 2)): "weights",
    },
    "why_temperature_0_differs": {
        two_answers(lambda m: m, 24): "healthy",
        two_answers(broken.LogitsInBf16, 8): "rounding",
        two_answers(broken.OverwritingCache, 8): "no rounding",
    },
    "why_the_prompt_is_off": {
        prompt(WORDS.encode_document("def f")): "healthy",
        prompt([0, *WORDS.encode_document("def f")]): "doubled beginning",
        prompt(WORDS.encode("def f")): "missing beginning",
        prompt(WORDS.encode_document("<|endoftext|>def f")): "mark as text",
        prompt(WORDS.encode_document("def f(x): return ")): "blank at the end",
    },
    "why_it_never_stops": {
        written(END): "healthy",
        written(METHOD, stop=("self",), heeded=("self",)): "healthy",
        written(END, ignore_eos=True): "end ignored",
        written(END, eos_ids=(), ignore_eos=True): "end unknown",
        written(METHOD, stop=("self",)): "stop string missed",
        written(METHOD): "no end said",
    },
    "why_json_is_cut_off": {
        json_answer(3, close=True): "healthy",
        json_answer(3): "max_tokens",
        json_answer(0, temperature=0.0): "blanks",
        json_answer(0, temperature=0.0, held=False): "not held to JSON",
        json_text('{"a": "b', "context"): "context",
        json_text('{"a": "b', "stop"): "stop string inside",
        json_text("Sure! Here is", "length"): "not held to JSON",
        json_text('{"a": 1} Here', "length"): "not held to JSON",
    },
    "why_characters_break": {
        characters(NAIVE): "healthy",
        characters(NAIVE, lambda ids: [WORDS.decode([i]) for i in ids]): "decoded one by one",
        characters(NAIVE[:-1]): "cut inside a character",
        characters(NAIVE, lambda _: ["naïve 🙂".encode().decode("latin-1")]): "read as Latin-1",
        characters([*WORDS.encode("🙂")[:-1], *WORDS.encode("x")]): "bytes of the model",
    },
    "why_the_stop_string_shows": {
        stop_shows(held=True): "healthy",
        stop_shows(held=False): "not held back",
        stop_shows(held=False, kept=True): "part of the answer",
    },
    "why_foreign_text": {
        foreign(): "healthy",
        foreign_adapter(): "healthy",
        foreign(broken.BlindPool): "key without what stands before",
        foreign_adapter(broken.AdapterBlindEngine): "key without the adapter",
    },
    "why_settings_differ": {
        settings(by_the_book): "healthy",
        settings(temperature_last): "temperature last",
        settings(each_on_all): "top-p over all tokens",
        settings(lambda logits: logits, PENALTY, [0]): "healthy",
        settings(penalised, PENALTY, [0]): "penalties count the prompt",
        settings(lambda logits: 3 * logits): "none of these orders",
    },
    "why_the_seed_does_not_help": {
        seeds(): "healthy",
        seeds(seed=None): "seed not used",
        seeds(broken.OneDiceEngine): "random numbers shared",
    },
    "why_logprobs_differ": {
        reported(lambda bare, left: bare): "healthy",
        reported(lambda bare, left: left): "after the settings",
        reported(lambda bare, left: np.exp(bare)): "no logarithm",
        reported(lambda bare, left: np.roll(bare, 1)): "one place off",
        reported(lambda bare, left: bare - 1): "another model or prompt",
    },
    "why_fewer_bits_hurt": {
        bits(8): "healthy",
        bits(3, 32): "too few bits",
        bits(2, layers=[3]): "one layer",
        head_alone: "embedding or head",
        bits(4, 32, swapped=True): "broken codes or scales",
    },
    "why_the_adapter_does_nothing": {
        adapter(merge_adapter): "healthy",
        adapter(lambda m, a: m): "not applied",
        adapter(lambda m, a: merge_adapter(m, replace(a, alpha=float(a.rank)))): (
            "factor alpha / r left out"
        ),
        adapter(lambda m, a: merge_adapter(m, replace(a, alpha=-a.alpha))): "another adapter",
    },
    "why_the_first_token_is_slow": {
        first_token(0.4, 0.1, 2000): "healthy",
        first_token(3.0, 2.8, 2000): "queue",
        first_token(3.0, 0.1, 50_000): "prompt",
        first_token(3.0, 0.1, 100_000): "numbers do not fit",
        first_token(3.0, 0.1, 2000): "overhead",
    },
    "why_the_second_request_is_slow": {
        second(): "healthy",
        second(max_batch=1): "queue",
        second(prefix_caching=False): "prefix not reused",
        second(lambda ids: [7, *ids]): "another beginning",
        second(lambda ids: [*ids, *corpus()[:20]], n_blocks=9): "preempted",
        partial(d.why_the_second_request_is_slow, COMPILED): "compiled on the way",
    },
    "why_only_some_requests_are_slow": {
        slow_ones([0.2] * 6, [1, 1, 2, 2, 3, 3]): "healthy",
        slow_ones([9.0, *[0.2] * 5], [1, 1, 2, 2, 3, 3]): "start",
        slow_ones([2, 0.2, 2, 0.2, 0.2, 0.2], [1, 1, 2, 2, 2, 2]): "new shape",
        slow_ones([0.2, 0.2, 2, 0.2], [1, 1, 2, 2]): "new shape",
        slow_ones([0.2, 2, 0.2, 0.2, 0.2, 0.2], [1, 1, 1, 2, 2, 2]): "neither first nor new",
    },
    "why_tokens_are_slow": {
        tokens(0.06, arch=ARCHITECTURES["Llama-3.2-1B"]): "overhead",
        tokens(0.06): "weights",
        tokens(0.12, batch=16, context=8192): "cache",
        tokens(0.15, batch=1000, context=64): "arithmetic",
        tokens(0.04, batch=1, arch=ARCHITECTURES["Llama-3.2-1B"]): "healthy",
        tokens(0.03): "numbers do not fit",
    },
    "why_the_stream_has_gaps": {
        stream(policy="chunked", token_budget=64): "healthy",
        partial(d.why_the_stream_has_gaps, CLUMPS): "healthy",
        stream(): "prompt in one piece",
        stream(pause_s=1.0, requests=(READER,)): "outside the engine",
        stream(
            (Request(0.0, 64, 100, priority=1), Request(0.3, 64, 60)), pool=BlockPool(12, 16)
        ): "preempted",
    },
    "why_p99_is_high": {
        tail(arrivals(1.0)): "healthy",
        tail(bursts()): "queue",
        tail(arrivals(1.0, n_output=mostly(32, 320))): "long answers",
        held_up: "stalls",
        seldom(n_output=32, n_prompt=100_000): "long prompts",
        seldom(n_output=70): "queue",
        tail(arrivals(1.0, 50, n_output=mostly(32, 320, 0.05))): "too few requests",
    },
    "why_speculation_is_slower": {
        speculation(0.8, 4, 0.15): "healthy",
        speculation(0.2, 4, 0.15): "too many guesses",
        speculation(0.7, 4, 0.9): "draft too slow",
        speculation(0.7, 4, 0.1, 3.5): "checks are not free",
        speculation(0.03, 4, 0.1): "too few guesses kept",
    },
    "why_the_prefix_cache_never_hits": {
        never_hits(): "healthy",
        never_hits(lambda i, ids: [i + 1, *ids]): "another beginning",
        never_hits(lambda i, ids: [*ids[:12], i + 1, *ids[12:]]): "shorter than a block",
        never_hits(prefix_caching=False): "switched off",
        never_hits_between(64): "healthy",
        never_hits_between(10): "evicted",
    },
    "why_the_server_does_not_start": {
        starts(): "healthy",
        starts(max_len=131_072): "context too long",
        starts(share=0.5): "share too small",
        starts(arch=LLAMA_70B): "weights",
    },
    "why_memory_runs_out": {
        fills(): "healthy",
        fills(lengths=[1000] * 80): "texts in flight",
        fills(reserved_len=8192): "reservation",
        fills(prefill_tokens=16_000): "one long pass",
        fills(lengths=[1000], memory_bytes=12e9): "weights",
    },
    "why_the_cache_is_larger_than_computed": {
        measured(1.0): "healthy",
        measured(4.0): "query heads kept",
        measured(2.0): "another format",
        measured(0.5): "another format",
        measured(1e9 / 2**30): "GiB taken for GB",
        measured(1.3): "no such slip",
    },
    "why_requests_are_preempted": {
        preempted(9): "healthy",
        preempted(32): "too many places",
        preempted(32, free_bytes=9e9, bytes_per_token=131_072): "pool too small",
    },
    "why_a_restart_helps": {
        restart(): "healthy",
        restart(broken.LeakyEngine): "blocks leak",
        restart(told=False): "clients gone",
        piles_up((8, 4, 4, 9), (16, 4, 12, 9), (34, 4, 30, 9)): "line grows",
        piles_up((4, 4, 0, 9, 2e9), (4, 4, 0, 9, 9e9)): "host memory",
    },
    "why_many_users_slow_it_down": {
        users(rate=10.0, service_s=2.0, places=48): "healthy",
        users(rate=30.0, service_s=2.0, places=48): "overload",
        users(rate=14.0, service_s=2.0, service_std_s=6.0, places=48): "healthy",
        users(rate=23.5, service_s=2.0, places=48): "too little room",
        users(rate=22.0, service_s=2.0, service_std_s=6.0, places=48): "mixture of lengths",
    },
    "why_the_card_is_idle": {
        idle(8): "healthy",
        idle(2, busy=0.3): "clients",
        idle(8, busy=0.3): "host",
        idle(9, busy=0.3): "places",
        idle(8, busy=0.3, n_blocks=8): "blocks",
    },
    "why_a_larger_batch_does_not_help": {
        larger_batch(8, 1024): "healthy",
        larger_batch(512, 128): "arithmetic",
        larger_batch(32, 6000): "cache",
        larger_batch(256, 4096): "does not fit",
    },
    "why_more_cards_do_not_help": {
        more_cards(2): "healthy",
        more_cards(4, link_bytes_per_s=2e9, latency_s=1e-4): "link",
        more_cards(16): "link",
        more_cards(16, batch=512, latency_s=0.0): "cache is copied",
        more_cards(4, replicas=True): "load",
        more_cards(4, replicas=True, batch=1024): "healthy",
    },
    "why_the_benchmark_is_too_good": {
        benchmark(70.0): "healthy",
        benchmark(150.0): "padding counted",
        benchmark(520.0): "prompts counted",
        benchmark(900.0): "prompts and padding counted",
        benchmark(300.0): "another run",
    },
    "why_the_stream_comes_at_once": {
        on_the_way(lambda t: t + 0.02): "healthy",
        on_the_way(lambda t: t + 0.8): "network",
        on_the_way(lambda t: 2.6): "held on the way",
        on_the_way(lambda t: t + 0.02, sent=(2.0,) * 40): "not streamed",
        on_the_way(lambda t: t + 0.02, sent=tuple(9 + 0.05 * i for i in range(20))): "healthy",
    },
}


def test_every_check_convicts_exactly_the_right_one(subtests):
    assert CASES.keys() == {name for name in d.__all__ if name.startswith("why_")}
    for name, cases in CASES.items():
        for i, (case, cause) in enumerate(cases.items()):
            with subtests.test(f"{name}, {cause}, {i}"):
                found = case()
                assert found.cause == cause, found


def causes_named(function: Callable) -> set[str]:
    """Return the causes that a check can name, as its source has them, "healthy" left out."""
    tree = ast.parse(inspect.getsource(function))
    texts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
            texts |= {n.value for n in ast.walk(node.args[0]) if isinstance(n, ast.Constant)}
    return {text for text in texts if isinstance(text, str)}


def test_no_cause_is_only_words():
    """Whatever a check can say, something broken makes it say, and something healthy is judged."""
    for name, cases in CASES.items():
        found = set(cases.values())
        assert "healthy" in found and len(found) > 1, name
        assert causes_named(getattr(d, name)) <= found, name


SECOND = {"ttft_s": 2.0, "queue_s": 0.1, "n_prompt": 90, "n_common": 50, "n_cached": 0}


def test_a_bad_call_is_named(subtests):
    settings_of = d.why_settings_differ
    for call, named in [
        (lambda: d.why_nonsense(target(), [1, 2]), "ids"),
        (lambda: d.why_long_prompts_fail(target(), corpus(), far=40), "far"),
        (lambda: d.why_long_prompts_fail(target(), corpus()[:100], far=200), "ids"),
        (lambda: d.why_temperature_0_differs(target(), [1], [], [2]), "answer"),
        (lambda: d.why_the_prompt_is_off(WORDS, [], 0), "ids"),
        (lambda: d.why_foreign_text(9, [1], [1]), "n_cached"),
        (lambda: d.why_the_stop_string_shows(["one"], "one two", "END"), "pieces"),
        (lambda: settings_of(LOGITS, SETTINGS, LOGITS[:3]), "probabilities"),
        (lambda: settings_of(LOGITS, SamplingParams(), softmax(LOGITS)), "params"),
        (lambda: d.why_logprobs_differ([-1.0], np.zeros((1, 4)), [0], SETTINGS), "reported"),
        (lambda: d.why_the_first_token_is_slow(1.0, 2.0, 10, LLAMA_8B, H100), "queue_s"),
        (lambda: d.why_the_first_token_is_slow(np.nan, 0.0, 10, LLAMA_8B, H100), "ttft_s"),
        (lambda: d.SecondRequest(**SECOND | {"n_common": 91}), "n_common"),
        (lambda: d.SecondRequest(**SECOND | {"queue_s": 3.0}), "queue_s"),
        (lambda: d.Stream([0.0, 1.0]), "token_times_s"),
        (lambda: d.why_only_some_requests_are_slow([1.0] * 4, [1]), "shapes"),
        (lambda: d.why_p99_is_high([]), "traces"),
        (lambda: d.why_the_prefix_cache_never_hits([[1]], [0], 0), "prompts"),
        (lambda: d.why_the_server_does_not_start(LLAMA_8B, 24e9, 90, 8192), "share"),
        (lambda: d.why_memory_runs_out(LLAMA_8B, 24e9, [9], reserved_len=8), "reserved_len"),
        (lambda: d.why_the_cache_is_larger_than_computed(LLAMA_8B, 9, 0.0), "measured_bytes"),
        (lambda: d.why_requests_are_preempted(0, 16, [9], 1), "n_blocks"),
        (lambda: d.why_a_restart_helps([d.Reading(0, 0, 0, 0)]), "readings"),
        (lambda: d.why_many_users_slow_it_down(0.0, 1.0), "rate"),
        (lambda: d.Load(1, 1, 8, cache_share=70, busy=0.3), "cache_share"),
        (lambda: d.why_more_cards_do_not_help(LLAMA_70B, H100, 1, 8, 4096), "n must"),
        (lambda: d.Benchmark([1], [], 2.0), "answers"),
    ]:
        with subtests.test(named), pytest.raises(ValueError, match=named):
            call()


ids_of_a_text = st.lists(st.integers(0, 5), max_size=20)


@given(start=ids_of_a_text, cycle=st.lists(st.integers(0, 5), min_size=1, max_size=16))
def test_a_loop_is_found_whatever_stands_before(start, cycle):
    period = loop_period([*start, *cycle * 3])
    assert 0 < period <= len(cycle)
    assert loop_period([*start, *range(10, 10 + 3 * 16)]) == 0


@given(common=ids_of_a_text, one=ids_of_a_text, other=ids_of_a_text)
def test_a_common_beginning_ends_where_texts_part(common, one, other):
    assert common_prefix([*common, 7, *one], [*common, 8, *other]) == len(common)
    assert common_prefix(common, [*common, *one]) == len(common)


# The appendix itself.

APPENDIX = nbformat.read(ROOT / "notebooks" / "A_debugging.ipynb", as_version=4)
CODE = [cell for cell in APPENDIX.cells if cell.cell_type == "code"]
N_SET_UP = 3
HEADINGS = [
    line.removeprefix("### ")
    for cell in APPENDIX.cells
    if cell.cell_type == "markdown"
    for line in cell.source.splitlines()
    if line.startswith("### ")
]


def result(source: str, names: dict):
    """Run a cell, and return what its last line is."""
    *before, last = ast.parse(source).body
    exec(compile(ast.Module(before, []), "cell", "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    exec(compile(ast.Module([last], []), "cell", "exec"), names)
    return None


def section(heading: str) -> list[str]:
    """Return the code of a section, cell by cell."""
    first = next(
        i for i, cell in enumerate(APPENDIX.cells) if cell.source.startswith(f"### {heading}\n")
    )
    cells = takewhile(lambda cell: not re.match("##", cell.source), APPENDIX.cells[first + 1 :])
    return [cell.source for cell in cells if cell.cell_type == "code"]


def test_each_section_runs_alone_and_shows_its_fault(subtests):
    """After the set-up alone: the healthy one is found healthy, the broken one is not."""
    prepared = {}
    for cell in CODE[:N_SET_UP]:
        result(cell.source, prepared)
    for heading in HEADINGS:
        with subtests.test(heading):
            names, cells = dict(prepared), section(heading)
            assert "yours" in "".join(cells)  # room for numbers of one's own
            shown = [result(source, names) for source in cells][-1].findings
            assert shown["healthy"].cause == "healthy", shown
            judged = shown.keys() - {"healthy", "yours"}
            causes = [shown[name].cause for name in judged]
            assert "broken" in judged or "rounding" in judged
            assert "healthy" not in causes
            assert len(set(causes)) == len(causes), "two faults, one cause"


def test_table_leads_to_every_section_and_nowhere_else():
    """Links are those of JupyterLab; the site makes the same anchors."""
    (table,) = (cell.source for cell in APPENDIX.cells if cell.id == "table")
    rows = re.findall(r"^\| \[(.+?)\]\(#(\S+?)\) \| (.+?) \|$", table, re.MULTILINE)
    assert [text for text, _, _ in rows] == HEADINGS
    assert [anchor for _, anchor, _ in rows] == [heading_anchor(h) for h in HEADINGS]
    assert len(set(HEADINGS)) == len(HEADINGS)


def test_every_check_stands_in_the_appendix():
    code = "".join(cell.source for cell in CODE[N_SET_UP:])
    assert {name for name in CASES if name not in code} == set()


def test_every_section_names_chapters_that_are_there():
    for cell in APPENDIX.cells:
        if cell.source.startswith("### "):
            linked = re.findall(r"\[chapter (\d\d)\]\((\S+?)\)", cell.source)
            assert linked, cell.id
            for number, file in linked:
                assert file.startswith(number) and (ROOT / "notebooks" / file).exists()
