"""Appendix A: every check finds the fault that is there, and no other.

So that no cause is only words, the causes that the code can name are read from its source and
compared with those that the appendix and the cases here (CASES) make it find. findings.json has
each finding as it is told: a sentence that changes is changed there, too.
"""

import ast
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import count, takewhile
from pathlib import Path

import nbformat
import numpy as np
import pytest
from site_pages import heading_anchor

from firsttoken.appendix import debugging as d
from firsttoken.appendix.debugging import broken
from firsttoken.architectures import ARCHITECTURES
from firsttoken.batching import Request, simulate
from firsttoken.engine import Engine
from firsttoken.generate import generate
from firsttoken.generate.sequence import Generation
from firsttoken.hardware import ACCELERATORS
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.metrics import RequestTrace
from firsttoken.models.llama import load_model
from firsttoken.models.lora import load_adapter, merge_adapter
from firsttoken.models.tokenizer import TextStream, tokenizer
from firsttoken.paging import BlockPool
from firsttoken.paths import data_path
from firsttoken.sampling import (
    SamplingParams,
    apply_temperature,
    keep_top_k,
    keep_top_p,
    softmax,
)

ROOT = Path(__file__).parents[2]
TOLD = json.loads(Path(__file__).with_name("findings.json").read_text("utf-8"))
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


# Broken on purpose: each by the one fault that its docstring names.


def test_an_overwriting_cache_forgets_the_key_before_the_last():
    """The second token of a text then reads itself alone, as if it were the first."""
    faulty = broken.OverwritingCache(target())
    cache = faulty.new_cache(1, 8)
    faulty.features([[5]], cache)
    found = faulty.features([[9]], cache)
    np.testing.assert_allclose(found, target().features([[9]]), atol=1e-4)


@pytest.mark.parametrize("n", range(13))
def test_a_blind_pool_knows_whole_blocks_by_their_own_tokens(n):
    known = broken.BlindPool(8, 4)._hash_blocks([7] * n)
    assert len(known) == n // 4 and len(set(known)) <= 1


# Wrong text: the model and its cache.


def nonsense(faulty: Callable | None = None):
    return lambda: d.why_nonsense(faulty(target()) if faulty else target(), corpus()[:16])


def repeats(prompt: str, faulty: Callable = lambda m: m, n: int = 48):
    ids = WORDS.encode_document(prompt)
    params = replace(GREEDY, max_tokens=n)
    return lambda: d.why_it_repeats(faulty(target()), ids, params)


# Wrong text: what stands around the model.


prompt = later(d.why_the_prompt_is_off, WORDS, begin_id=0)


@later
def written(start: str, eos_ids=(0,), stop=(), **options):
    """Judge the end of an answer to the beginning of a program."""
    ids = WORDS.encode_document(start)
    params = replace(GREEDY, stop=options.pop("heeded", ()))
    answer = generate(target(), ids, params, tokenizer=WORDS, **options)
    return d.why_it_never_stops(answer, WORDS, eos_ids, stop)


METHOD = "class A:\n    def "


def json_text(text: str, reason: str):
    answer = Generation([1] * 9, [0.0] * 9, 0.0, reason, text)
    return lambda: d.why_json_is_cut_off(answer, budget=9)


@later
def characters(ids, sent=None):
    stream = TextStream(WORDS)
    return d.why_characters_break(WORDS, ids, sent or [*map(stream.push, ids), stream.finish()])


NAIVE = WORDS.encode("naïve 🙂")


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


def settings(order: Callable):
    made = softmax(order(LOGITS))
    return lambda: d.why_settings_differ(LOGITS, SETTINGS, made)


def each_on_all(logits):
    warm = apply_temperature(logits, 2.0)
    return np.where(np.isfinite(keep_top_p(warm, 0.7)), keep_top_k(warm, 4), -np.inf)


@later
def reported(change: Callable):
    logits = np.random.default_rng(0).normal(scale=2.0, size=(6, 12))
    ids = logits.argmax(axis=-1)
    bare = np.log(softmax(logits))[range(6), ids]
    params = SamplingParams(temperature=0.7, top_k=5)
    return d.why_logprobs_differ(change(bare), logits, ids.tolist(), params)


def head_alone():
    spoilt = broken.rounded(target(), 8, layers=[])
    spoilt.unembedding = np.rint(4 * np.array(target().unembedding)) / 4
    return d.why_fewer_bits_hurt(target(), spoilt, corpus()[:60])


def another_adapter():
    ids, capitals = list(corpus()[:24]), load_adapter("capitals")
    served = merge_adapter(target(), replace(capitals, alpha=-capitals.alpha))([ids])[0]
    return d.why_the_adapter_does_nothing(target(), capitals, served, ids)


# Slow.


first_token = later(d.why_the_first_token_is_slow, arch=LLAMA_8B, accelerator=H100)


def preempted():
    """Ask the engine twice, the second time with the first prompt and some tokens more."""
    one = list(corpus()[:96])
    engine = Engine(target(), n_blocks=9, prefix_caching=True)
    again = [*one, 5, 6, *corpus()[:20]]
    return d.why_the_second_request_is_slow(d.ask_twice(engine, one, again))


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
def held_up(n: int):
    """Judge requests of which one in fifty stops for three seconds in the middle."""
    usual = np.arange(1, 33) * 0.01
    stopped = usual + 3.0 * (np.arange(32) > 15)
    times = [stopped if i % 50 == 0 else usual for i in range(n)]
    return d.why_p99_is_high([RequestTrace(0.0, tuple(t)) for t in times])


@later
def seldom(n_output: int, n_prompt: int = 100):
    """Judge requests of which one in fifty waits ten seconds for its first token."""
    usual, late = 0.1 + 0.01 * np.arange(32), 10 + 0.01 * np.arange(n_output)
    traces = [RequestTrace(0.0, tuple(usual), 100)] * 392
    return d.why_p99_is_high(traces + [RequestTrace(0.0, tuple(late), n_prompt)] * 8)


@later
def never_hits(change: Callable = lambda i, ids: ids, n_blocks: int = 64, between: int = 0):
    """Send prompts with one beginning of 48 tokens, and long ones of others between them."""
    engine = Engine(target(), n_blocks, prefix_caching=True)

    def send(ids):
        before = engine.stats.cached_tokens
        engine.submit(ids, replace(GREEDY, max_tokens=2), ignore_eos=True)
        engine.run()
        return engine.stats.cached_tokens - before

    prompts, cached = [], []
    for i in range(3 if between else 5):
        prompts.append(change(i, [*corpus()[:48], *corpus()[100 * i : 100 * i + 30]]))
        cached.append(send(prompts[-1]))
        if i < between:
            send(list(corpus()[1000 * i + 1000 : 1000 * i + 1150]))
    return d.why_the_prefix_cache_never_hits(prompts, cached, send(prompts[-1]))


speculation = later(d.why_speculation_is_slower)


# Memory.


def measured(factor: float, arch=LLAMA_8B):
    right = kv_cache_bytes(arch, 1000)
    return lambda: d.why_the_cache_is_larger_than_computed(arch, 1000, factor * right)


@later
def restart(told: bool):
    """Read an engine before and after a client has gone away in the middle of its answer."""
    engine = Engine(target(), 32)
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


@later
def idle(n: int, busy: float = 0.9, **options):
    """Read an engine with some requests in it."""
    engine = Engine(target(), **{"n_blocks": 64, "max_batch": 8} | options)
    for i in range(n):
        engine.submit(list(corpus()[i : i + 30]), GREEDY, ignore_eos=True)
    engine.step()
    return d.why_the_card_is_idle(d.Load.of(engine, busy))


more_cards = later(d.why_more_cards_do_not_help, LLAMA_70B, H100, batch=8, context=4096)


RUN = d.Benchmark(prompts=[500, 300, 100], answers=[10, 30, 100], seconds=2.0)


benchmark = later(d.why_the_benchmark_is_too_good, run=RUN)


def on_the_way(change: Callable, sent=tuple(0.5 + 0.05 * i for i in range(40))):
    server = RequestTrace(0.0, sent)
    client = RequestTrace(0.0, tuple(change(t) for t in sent))
    return lambda: d.why_the_stream_comes_at_once(client, server)


# What a check can find beyond what the appendix shows, each in something that is broken in that way
# alone.
CASES: dict[str, dict[Callable, str]] = {
    "why_nonsense": {
        nonsense(broken.WithoutMask): "mask",
        nonsense(broken.Overflowing): "no numbers",
        nonsense(broken.OfAnotherVocabulary): "weights",
    },
    "why_it_repeats": {
        repeats("x = 1\ny = 2\n" * 12): "prompt",
        repeats(METHOD, lambda m: broken.rounded(m, 2)): "weights",
    },
    "why_the_prompt_is_off": {
        prompt(WORDS.encode("def f")): "missing beginning",
        prompt(WORDS.encode_document("def f(x): return ")): "blank at the end",
    },
    "why_it_never_stops": {
        written(METHOD, stop=("self",), heeded=("self",)): "healthy",
        written(METHOD, stop=("self",)): "stop string missed",
        written(METHOD): "no end said",
    },
    "why_json_is_cut_off": {
        json_text('{"a": "b', "context"): "context",
        json_text('{"a": "b', "stop"): "stop string inside",
        json_text('{"a": 1} Here', "length"): "not held to JSON",
    },
    "why_characters_break": {
        characters(NAIVE, ["naïve 🙂".encode().decode("latin-1")]): "read as Latin-1",
        characters([*WORDS.encode("🙂")[:-1], *WORDS.encode("x")]): "bytes of the model",
    },
    "why_the_stop_string_shows": {
        later(d.why_the_stop_string_shows, ["one two", "\nEND"], "one two\nEND", "\nEND")(): (
            "part of the answer"
        )
    },
    "why_foreign_text": {
        foreign_adapter(): "healthy",
        foreign_adapter(broken.AdapterBlindEngine): "key without the adapter",
    },
    "why_settings_differ": {
        settings(each_on_all): "top-p over all tokens",
        settings(lambda logits: 3 * logits): "none of these orders",
    },
    "why_logprobs_differ": {
        reported(np.exp): "no logarithm",
        reported(lambda bare: np.roll(bare, 1)): "one place off",
        reported(lambda bare: bare - 1): "another model or prompt",
    },
    "why_fewer_bits_hurt": {head_alone: "embedding or head"},
    "why_the_adapter_does_nothing": {another_adapter: "another adapter"},
    "why_the_first_token_is_slow": {first_token(3.0, 0.1, 100_000): "numbers do not fit"},
    "why_the_second_request_is_slow": {
        preempted: "preempted",
        partial(d.why_the_second_request_is_slow, COMPILED): "compiled on the way",
    },
    "why_only_some_requests_are_slow": {
        slow_ones([2, 0.2, 2, 0.2, 0.2, 0.2], [1, 1, 2, 2, 2, 2]): "new shape",
        slow_ones([0.2, 2, 0.2, 0.2, 0.2, 0.2], [1, 1, 1, 2, 2, 2]): "neither first nor new",
    },
    "why_tokens_are_slow": {
        tokens(0.15, batch=1000, context=64): "arithmetic",
        tokens(0.03): "numbers do not fit",
    },
    "why_the_stream_has_gaps": {
        partial(d.why_the_stream_has_gaps, CLUMPS): "healthy",
        stream(pause_s=1.0, requests=(READER,)): "outside the engine",
        stream(
            (Request(0.0, 64, 100, priority=1), Request(0.3, 64, 60)), pool=BlockPool(12, 16)
        ): "preempted",
    },
    "why_p99_is_high": {
        held_up(400): "stalls",
        held_up(50): "too few requests",
        seldom(n_output=32, n_prompt=100_000): "long prompts",
        seldom(n_output=70): "queue",
    },
    "why_speculation_is_slower": {
        speculation(0.2, 4, 0.15): "too many guesses",
        speculation(0.7, 4, 0.9): "draft too slow",
        speculation(0.03, 4, 0.1): "too few guesses kept",
    },
    "why_the_prefix_cache_never_hits": {
        never_hits(lambda i, ids: [*ids[:12], i + 1, *ids[12:]]): "shorter than a block",
        never_hits(between=2): "healthy",
        never_hits(between=2, n_blocks=10): "evicted",
    },
    "why_memory_runs_out": {
        later(d.why_memory_runs_out, LLAMA_8B, 12e9, lengths=[1000])(): "weights"
    },
    "why_the_cache_is_larger_than_computed": {
        measured(1e9 / 2**30): "GiB taken for GB",
        measured(1.3): "no such slip",
    },
    "why_a_restart_helps": {
        restart(told=True): "healthy",
        restart(told=False): "clients gone",
        piles_up((4, 4, 0, 9, 2e9), (4, 4, 0, 9, 9e9)): "host memory",
    },
    "why_the_card_is_idle": {idle(8, busy=0.3): "host"},
    "why_more_cards_do_not_help": {
        more_cards(16, batch=512, latency_s=0.0): "cache is copied",
        more_cards(4, replicas=True, batch=1024): "healthy",
    },
    "why_the_benchmark_is_too_good": {
        benchmark(900.0): "prompts and padding counted",
        benchmark(300.0): "another run",
    },
    "why_the_stream_comes_at_once": {
        on_the_way(lambda t: t + 0.02, sent=(2.0,) * 40): "not streamed",
    },
}


NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


def assert_told(found, text: str) -> None:
    """Word by word the same; the last digit of a number hangs on how a machine adds up."""
    assert NUMBER.sub("#", str(found)) == NUMBER.sub("#", text), (str(found), text)
    said, stored = (
        [float(n.replace(",", "")) for n in NUMBER.findall(t)] for t in (str(found), text)
    )
    assert said == pytest.approx(stored, rel=0.1, abs=1e-4), (str(found), text)


def test_every_check_convicts_exactly_the_right_one(subtests):
    for name, cases in CASES.items():
        told = zip(cases.items(), TOLD["cases"][name], strict=True)
        for i, ((case, cause), text) in enumerate(told):
            with subtests.test(f"{name}, {cause}, {i}"):
                found = case()
                assert found.cause == cause, found
                assert_told(found, text)


def load(running=0.0, waiting=0.0, cache_share=0.0, busy=0.0):
    return d.why_the_card_is_idle(d.Load(running, waiting, 100, cache_share, busy))


def test_limits_belong_to_the_side_that_the_docstrings_say():
    assert load(busy=0.8).cause == "healthy"
    assert load(running=95, waiting=1).cause == "places"
    assert load(running=50, waiting=1, cache_share=0.9).cause == "blocks"
    assert load(running=25).cause == "clients"
    assert load(running=25, waiting=1).cause == load(running=26).cause == "host"
    many = later(d.why_many_users_slow_it_down, service_s=2.0, places=48)
    assert many(rate=24)().cause == "overload"
    # Erlang's queue of one place: half of ρ / (1 - ρ) services, here the tenth that counts as none.
    one = later(d.why_many_users_slow_it_down, service_s=1.0)
    assert one(rate=0.2 / 1.2 - 1e-9)().cause == "healthy"
    assert one(rate=0.2 / 1.2 + 1e-9)().cause == "too little room"
    # A gap up to three times the usual one is none.
    at = np.cumsum([1.0, 1.0, 1.0, 3.0, 1.0])
    assert d.why_the_stream_has_gaps(d.Stream(at)).cause == "healthy"
    assert d.why_the_stream_has_gaps(d.Stream(at, [(6.0, 9)]), 2.9).cause == "prompt in one piece"
    assert d.why_the_stream_has_gaps(d.Stream(at, [(3.0, 9)]), 2.9).cause == "outside the engine"
    assert d.why_the_stream_has_gaps(d.Stream(at, (), [3.0]), 2.9).cause == "preempted"
    assert d.why_the_stream_has_gaps(d.Stream(at, (), [6.0]), 2.9).cause == "outside the engine"
    weights = 2.0 * LLAMA_8B.n_params
    full = later(d.why_memory_runs_out, LLAMA_8B, lengths=[1000])
    held = weights + kv_cache_bytes(LLAMA_8B, 1000)
    assert full(memory_bytes=held)().cause == "healthy"
    assert full(memory_bytes=held - 1)().cause == "texts in flight"
    assert full(memory_bytes=weights)().cause == "texts in flight"
    assert full(memory_bytes=weights - 1)().cause == "weights"
    blocks = later(d.why_requests_are_preempted, block_size=16, lengths=[160], max_batch=4)
    assert blocks(n_blocks=40)().cause == "healthy"
    assert blocks(n_blocks=39)().cause == "too many places"
    beside = blocks(n_blocks=39, bytes_per_token=10.0)
    assert beside(free_bytes=160.0).cause == "pool too small"
    assert beside(free_bytes=159.0).cause == "too many places"
    assert d.why_speculation_is_slower(0.5, 1, 0.5).cause == "healthy"  # 1.5 tokens in 1.5 steps
    for n_cached in (0, 4):  # none of a prompt of four, or all
        assert d.why_foreign_text(n_cached, [5] * 4, [5] * 4).cause == "healthy"
    for n_cached in (-1, 5):
        with pytest.raises(ValueError, match=f"n_cached must lie in 0 … 4, got {n_cached}"):
            d.why_foreign_text(n_cached, [5] * 4, [5] * 4)


def causes_named(function: Callable) -> set[str]:
    """Return the causes that a check can name, as its source has them, "healthy" left out."""
    tree = ast.parse(inspect.getsource(function))
    texts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
            texts |= {n.value for n in ast.walk(node.args[0]) if isinstance(n, ast.Constant)}
    return {text for text in texts if isinstance(text, str)}


def test_no_cause_is_only_words():
    """Whatever a check can say, something broken makes it say, here or in the appendix."""
    told = [text for texts in TOLD["sections"].values() for text in texts.values()]
    shown = {text.partition(": ")[0] for text in told}
    for name in d.__all__:
        if name.startswith("why_"):
            assert causes_named(getattr(d, name)) <= shown | set(CASES.get(name, {}).values()), name


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


def test_each_section_runs_alone_and_shows_its_fault(subtests, monkeypatch):
    """After the set-up alone: the healthy one is found healthy, the broken one is not.

    The engine's clock counts how often it is read, so that no verdict hangs on the machine.
    """
    ticks = count()
    monkeypatch.setattr(Engine, "now_s", lambda engine: float(next(ticks)))
    prepared = {}
    for cell in CODE[:N_SET_UP]:
        result(cell.source, prepared)
    for heading in HEADINGS:
        with subtests.test(heading):
            names, cells = dict(prepared), section(heading)
            assert "yours" in "".join(cells)  # room for numbers of one's own
            shown = [result(source, names) for source in cells][-1].findings
            assert shown["healthy"].cause == "healthy", shown
            told = TOLD["sections"][heading]
            assert [name for name in shown if name != "yours"] == list(told)
            for name, text in told.items():
                assert name == "healthy" or not text.startswith("healthy"), text
                assert_told(shown[name], text)


def test_table_leads_to_every_section_and_nowhere_else():
    """Links are those of JupyterLab; the site makes the same anchors."""
    (table,) = (cell.source for cell in APPENDIX.cells if cell.id == "table")
    rows = re.findall(r"^\| \[(.+?)\]\(#(\S+?)\) \| (.+?) \|$", table, re.MULTILINE)
    assert [text for text, _, _ in rows] == HEADINGS
    assert [anchor for _, anchor, _ in rows] == [heading_anchor(h) for h in HEADINGS]
    assert len(set(HEADINGS)) == len(HEADINGS)
    assert list(TOLD["sections"]) == HEADINGS


def test_every_check_stands_in_the_appendix():
    code = "".join(cell.source for cell in CODE[N_SET_UP:])
    assert [name for name in d.__all__ if name.startswith("why_") and name not in code] == []
