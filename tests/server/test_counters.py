"""counters: each figure under the name that vLLM gives it, and for the dashboard under its own."""

import re
from importlib.resources import files
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from firsttoken.batching import StepRecord
from firsttoken.engine.stats import EngineStats
from firsttoken.paging.pool import Usage
from firsttoken.sampling import SamplingParams
from firsttoken.server import counters
from firsttoken.server.counters import Counters
from firsttoken.server.engine_client import Flight
from firsttoken.server.messages import Ask, Finished

# No two are equal.
STATS = EngineStats(
    waiting=3,
    running=5,
    usage=Usage(used=6, cached=7, free=11, wasted_slots=0),
    steps=13,
    preemptions=17,
    cached_tokens=19,
    new_tokens=23,
    drafted_tokens=29,
    accepted_tokens=31,
)
LABELS = {"model_name": "it", "engine": "0"}


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands at 100 s."""
    stands = SimpleNamespace(monotonic=lambda: 100.0)
    monkeypatch.setattr(counters, "time", stands)
    return stands


@pytest.fixture
def counted(clock):
    """The counters of an engine whose figures are known."""
    hello = SimpleNamespace(n_blocks=24, block_size=16)
    figures = {"stats": STATS, "hello": hello, "prefilled_tokens": 41, "n_drafts": 43}
    return Counters(SimpleNamespace(**figures, healthy=True), "it")


def shown(counted: Counters) -> dict[tuple[str, ...], float]:
    """Return what Prometheus reads: {(name, its other labels): value}."""
    samples = [
        sample
        for family in text_string_to_metric_families(counted.render().decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    for sample in samples:
        if sample.name != "vllm:cache_config_info":
            assert sample.labels.items() >= LABELS.items()
    return {
        (
            s.name.removeprefix("vllm:"),
            *(v for k, v in s.labels.items() if k not in LABELS),
        ): s.value
        for s in samples
    }


def finish(counted: Counters, reason: str, times_s: tuple[float, ...], started_s: float) -> None:
    """Let an answer of a request for two end that came at 50 s, was sent on at 51."""
    ask = Ask([1] * 9, SamplingParams(max_tokens=60), n=2)
    flight = Flight(0, [ask], 50.0, accepted=None)
    answer = SimpleNamespace(finish_reason=reason, token_times_s=times_s)
    counted.finished(Finished(0, 1, answer, 51.0, started_s), flight)


def test_the_engine_s_own_counts(counted):
    found = shown(counted)
    assert {name: found.pop((name,)) for name in [
        *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
        *("num_preemptions_total", "generation_tokens_total"),
        *("prefix_cache_queries_total", "prefix_cache_hits_total"),
        *("spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total"),
        "spec_decode_num_accepted_tokens_total",
    ]} == {
        "num_requests_running": 5,
        "num_requests_waiting": 3,
        "kv_cache_usage_perc": 0.25,
        "num_preemptions_total": 17,
        "generation_tokens_total": 23,
        "prefix_cache_queries_total": 19 + 41,
        "prefix_cache_hits_total": 19,
        "spec_decode_num_drafts_total": 43,
        "spec_decode_num_draft_tokens_total": 29,
        "spec_decode_num_accepted_tokens_total": 31,
    }  # fmt: skip
    assert found.pop(("cache_config_info", "16", "24")) == 1
    assert not any(found.values())  # nothing has been asked yet


def test_an_answer_is_taken_apart(counted):
    """Asked at 50 s, begun at 52, tokens at 55, 57 and 61."""
    finish(counted, "length", (4.0, 6.0, 10.0), started_s=52.0)
    counted.step(StepRecord(0.0, 1.0, ((7, 30, 0), (8, 4, 2)), (1, 2), (), 3, (2, 1)))
    found = shown(counted)
    sums = {name[:-4]: value for (name, *_), value in found.items() if name.endswith("_sum")}
    assert sums == {
        "iteration_tokens_total": 30 + 4 + 2 + 3,
        "request_prompt_tokens": 9,
        "request_generation_tokens": 3,
        "request_params_n": 2,
        "request_params_max_tokens": 60,
        "time_to_first_token_seconds": 5,
        "inter_token_latency_seconds": 6,
        "request_time_per_output_token_seconds": 3,
        "e2e_request_latency_seconds": 11,
        "request_queue_time_seconds": 2,
        "request_inference_time_seconds": 9,
        "request_prefill_time_seconds": 3,
        "request_decode_time_seconds": 6,
    }
    assert {found[f"{name}_count",] for name in sums} == {1, 2}
    assert found["inter_token_latency_seconds_count",] == 2
    assert found["prompt_tokens_total",] == 9
    # Below which bounds it is counted: 5 s to the first token are in the last but one bucket.
    bounds = [labels[0] for name, *labels in found if name == "time_to_first_token_seconds_bucket"]
    assert bounds[-4:] == ["2.5", "5.0", "10.0", "+Inf"]
    ttft = [found["time_to_first_token_seconds_bucket", bound] for bound in bounds]
    assert ttft == [0] * (len(bounds) - 3) + [1] * 3


def test_why_answers_ended(counted):
    for reason in ("eos", "stop", "length", "context", "deadline"):
        finish(counted, reason, (), started_s=52.0)
    counted.aborted(4)
    found = shown(counted)
    why = {rest[0]: n for (name, *rest), n in found.items() if name == "request_success_total"}
    assert why == {"stop": 2, "length": 2, "abort": 5}
    assert found["prompt_tokens_total",] == 0  # none had a token


def test_the_dashboard_s_page_is_sent_all_that_it_reads(counted, clock):
    finish(counted, "length", (4.0, 6.0, 10.0), started_s=52.0)
    sent = counted.snapshot()
    assert sent == {
        "healthy": True,
        "now_s": 100.0,
        "running": 5,
        "waiting": 3,
        "blocks": {"used": 6, "cached": 7, "free": 11},
        "new_tokens": 23,
        "steps": 13,
        "preemptions": 17,
        "cached_tokens": 19,
        "answers": 1,
        "ttft": {"p50": 5, "p95": 5, "p99": 5},
        "tpot": {"p50": 3, "p95": 3, "p99": 3},
        "e2e": {"p50": 11, "p95": 11, "p99": 11},
    }
    page = (files("firsttoken.server") / "dashboard.html").read_text("utf-8")
    assert set(re.findall(r"\bnow\.(\w+)", page)) < sent.keys()
    clock.monotonic = lambda: 161.0
    assert counted.snapshot()["answers"] == 0  # more than a minute ago


def test_when_to_try_again(counted):
    """The median time of an answer of the last minute, between a second and a minute."""
    assert counted.retry_after_s() == 1
    for end_s, told_s in ((0.1, 1), (6.4, 7), (5.9, 7), (900.0, 7), (901.0, 7), (902.0, 60)):
        finish(counted, "stop", (end_s,), started_s=52.0)
        assert counted.retry_after_s() == told_s, end_s
