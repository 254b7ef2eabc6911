"""What the server counts, for Prometheus under vLLM's names, and for the dashboard."""

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from firsttoken.batching import StepRecord
from firsttoken.metrics import RequestTrace, summarize
from firsttoken.server.answers import FINISH_REASONS
from firsttoken.server.engine_client import EngineClient, Flight
from firsttoken.server.messages import Finished

# vLLM's buckets, and finer ones below: the shipped model is fast.
_STEPS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0)
_TOKEN_S = (0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, *_STEPS)
_FIRST_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_REQUEST_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 20.0, 60.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
WINDOW_S = 60.0


class Counters:
    """Counts finished answers and steps, for Prometheus (`render`) and a dashboard (`snapshot`).

    The dashboard's latencies are those that `metrics.summarize` finds in the answers finished in
    the last minute.

    Units:  seconds, tokens
    Source: vLLM, vllm/v1/metrics/loggers.py, for the names and what they mean
    """

    def __init__(self, engine: EngineClient, model_name: str):
        self._engine, self._traces = engine, deque[tuple[float, RequestTrace]](maxlen=2000)
        self._labels = {"model_name": model_name, "engine": "0"}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_EngineState(engine, self._labels))
        self._success = Counter(
            "vllm:request_success_total",
            "Answers that came to an end, by why.",
            [*self._labels, "finished_reason"],
            registry=self._registry,
        )
        self._prompt_tokens = self._one_counter(
            "vllm:prompt_tokens_total", "Tokens of the prompts of finished answers."
        )
        self._step_tokens = self._histogram(
            "vllm:iteration_tokens_total", "Tokens per step: read of prompts, or new.", _TOKENS
        )
        self._n_prompt = self._histogram(
            "vllm:request_prompt_tokens", "Tokens per prompt.", _TOKENS
        )
        self._n_output = self._histogram(
            "vllm:request_generation_tokens", "Tokens per answer.", _TOKENS
        )
        self._n = self._histogram(
            "vllm:request_params_n", "How many answers were asked for.", (1, 2, 5, 10, 20)
        )
        self._max_tokens = self._histogram(
            "vllm:request_params_max_tokens", "The most tokens asked for.", _TOKENS
        )
        self._ttft = self._histogram(
            "vllm:time_to_first_token_seconds", "From the request to its first token.", _FIRST_S
        )
        self._itl = self._histogram(
            "vllm:inter_token_latency_seconds", "From one token to the next.", _TOKEN_S
        )
        self._tpot = self._histogram(
            "vllm:request_time_per_output_token_seconds", "The mean of it, per answer.", _TOKEN_S
        )
        self._e2e = self._histogram(
            "vllm:e2e_request_latency_seconds", "From the request to its last token.", _REQUEST_S
        )
        self._queue = self._histogram(
            "vllm:request_queue_time_seconds", "From the request to its first step.", _REQUEST_S
        )
        self._inference = self._histogram(
            "vllm:request_inference_time_seconds", "From the first step to the end.", _REQUEST_S
        )
        self._prefill = self._histogram(
            "vllm:request_prefill_time_seconds", "From the first step to the token.", _REQUEST_S
        )
        self._decode = self._histogram(
            "vllm:request_decode_time_seconds", "From the first token to the last.", _REQUEST_S
        )
        engine.on_step = self.step

    def _one_counter(self, name: str, what: str) -> Counter:
        return Counter(name, what, list(self._labels), registry=self._registry).labels(
            **self._labels
        )

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(name, what, list(self._labels), registry=self._registry, buckets=buckets)
        return made.labels(**self._labels)

    def step(self, record: StepRecord) -> None:
        """Count a step of the engine."""
        n_read = sum(new for _, new, _ in record.prefills)
        self._step_tokens.observe(n_read + len(record.decodes) + sum(record.kept))

    def finished(self, done: Finished, flight: Flight) -> None:
        """Count an answer that came to its end."""
        ask = flight.ask_of(done.index)
        reason = FINISH_REASONS[done.answer.finish_reason]
        self._success.labels(**self._labels, finished_reason=reason).inc()
        self._n.observe(ask.n)
        self._max_tokens.observe(ask.params.max_tokens)
        trace = flight.trace_of(done)
        if trace is None or done.started_s is None:
            return
        self._traces.append((time.monotonic(), trace))
        self._prompt_tokens.inc(trace.n_prompt)
        self._n_prompt.observe(trace.n_prompt)
        self._n_output.observe(trace.n_output)
        first_s, last_s = trace.token_times_s[0], trace.token_times_s[-1]
        self._ttft.observe(trace.ttft)
        self._e2e.observe(trace.e2e)
        self._queue.observe(done.started_s - trace.arrival_s)
        self._inference.observe(last_s - done.started_s)
        self._prefill.observe(first_s - done.started_s)
        self._decode.observe(last_s - first_s)
        if trace.tpot is not None:
            self._tpot.observe(trace.tpot)
        for gap_s in trace.itl.tolist():
            self._itl.observe(gap_s)

    def aborted(self, n: int) -> None:
        """Count answers whose client has gone."""
        self._success.labels(**self._labels, finished_reason="abort").inc(n)

    def render(self) -> bytes:
        """Return all of it in Prometheus' text format."""
        return generate_latest(self._registry)

    def recent(self) -> list[RequestTrace]:
        """Return the traces of the answers finished in the last minute."""
        since = time.monotonic() - WINDOW_S
        while self._traces and self._traces[0][0] < since:
            self._traces.popleft()
        return [trace for _, trace in self._traces]

    def retry_after_s(self) -> int:
        """Return after how many seconds to try again: the median time of an answer, 1 to 60."""
        traces = self.recent()
        taken_s = sorted(trace.e2e for trace in traces)[len(traces) // 2] if traces else 1.0
        return min(60, max(1, round(taken_s)))

    def snapshot(self) -> dict[str, Any]:
        """Return what the dashboard shows."""
        stats, traces = self._engine.stats, self.recent()
        shown: dict[str, Any] = {
            "healthy": self._engine.healthy,
            "now_s": time.monotonic(),
            "running": stats.running,
            "waiting": stats.waiting,
            "blocks": {
                "used": stats.usage.used,
                "cached": stats.usage.cached,
                "free": stats.usage.free,
            },
            "new_tokens": stats.new_tokens,
            "steps": stats.steps,
            "preemptions": stats.preemptions,
            "cached_tokens": stats.cached_tokens,
            "answers": len(traces),
        }
        if traces:
            summary = summarize(traces)
            for name in ("ttft", "tpot", "e2e"):
                latency = getattr(summary, name)
                shown[name] = latency and {f"p{p}": latency[p] for p in (50, 95, 99)}
        return shown


class _EngineState(Collector):
    """The engine's own counts, read when Prometheus asks."""

    def __init__(self, engine: EngineClient, labels: dict[str, str]):
        self._engine, self._labels = engine, labels

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        engine, stats = self._engine, self._engine.stats
        usage, hello = stats.usage, engine.hello
        gauges = {
            "vllm:num_requests_running": ("Requests in the batch.", stats.running),
            "vllm:num_requests_waiting": ("Requests in the queue.", stats.waiting),
            "vllm:kv_cache_usage_perc": (
                "Share of the blocks that requests hold, 0 to 1.",
                usage.used / hello.n_blocks,
            ),
        }
        counters = {
            "vllm:num_preemptions": ("Requests that had to make room.", stats.preemptions),
            "vllm:generation_tokens": ("New tokens.", stats.new_tokens),
            "vllm:prefix_cache_queries": (
                "Tokens looked up in the prefix cache.",
                stats.cached_tokens + engine.prefilled_tokens,
            ),
            "vllm:prefix_cache_hits": ("Tokens found there.", stats.cached_tokens),
            "vllm:spec_decode_num_drafts": ("Drafts.", engine.n_drafts),
            "vllm:spec_decode_num_draft_tokens": ("Drafted tokens.", stats.drafted_tokens),
            "vllm:spec_decode_num_accepted_tokens": (
                "Drafted tokens that were accepted.",
                stats.accepted_tokens,
            ),
        }
        for name, (what, value) in gauges.items():
            gauge = GaugeMetricFamily(name, what, labels=list(self._labels))
            gauge.add_metric(list(self._labels.values()), value)
            yield gauge
        for name, (what, value) in counters.items():
            counter = CounterMetricFamily(name, what, labels=list(self._labels))
            counter.add_metric(list(self._labels.values()), value)
            yield counter
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "The blocks.", labels=["block_size", "num_gpu_blocks"]
        )
        info.add_metric([str(hello.block_size), str(hello.n_blocks)], 1)
        yield info
