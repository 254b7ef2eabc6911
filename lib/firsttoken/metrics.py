"""How fast a service feels and how much it does: latencies, throughput, goodput, waiting."""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from types import MappingProxyType
from typing import Literal, Protocol

import numpy as np

from firsttoken.checks import check_count

Array = np.ndarray

# A relative excess that still meets a limit: differences of clock times are rounded.
_SLACK = 1e-9


class _Generation(Protocol):
    """What a trace needs of the result of `generate`."""

    @property
    def token_times_s(self) -> Sequence[float]: ...


@dataclass(frozen=True)
class RequestTrace:
    """When a request arrived and when each of its output tokens came, on one clock.

    Everything else follows from these times. A client's clock includes the network, the engine's
    does not: say which it is. Equal token times are a burst, as speculative decoding makes them.

    Units:  seconds; n_prompt in tokens
    Raises: ValueError for times that are not finite, no token, a token before the arrival or
            before the token that precedes it, and an n_prompt that is no count.

    >>> trace = RequestTrace(arrival_s=10.0, token_times_s=(10.5, 10.75, 11.5), n_prompt=8)
    >>> trace.ttft, trace.tpot, trace.itl.tolist(), trace.e2e
    (0.5, 0.5, [0.25, 0.75], 1.5)
    """

    arrival_s: float
    token_times_s: tuple[float, ...]
    n_prompt: int = 0

    def __post_init__(self) -> None:
        arrival = _finite("arrival_s", self.arrival_s)
        try:
            times = tuple(map(float, self.token_times_s))
        except (TypeError, ValueError):
            raise ValueError(
                f"token_times_s must be a sequence of seconds, got {self.token_times_s!r}"
            ) from None
        if not times:
            raise ValueError("token_times_s must hold at least one time, got none")
        if not all(map(math.isfinite, times)):
            raise ValueError(f"token_times_s must be finite, got {times}")
        if times[0] < arrival:
            raise ValueError(
                f"token_times_s must not start before arrival_s {arrival}, got {times[0]}"
            )
        if not all(map(operator.le, times, times[1:])):
            i = next(i for i in range(1, len(times)) if times[i] < times[i - 1])
            raise ValueError(
                f"token_times_s must not fall, got {times[i]} after {times[i - 1]} (token {i})"
            )
        object.__setattr__(self, "arrival_s", arrival)
        object.__setattr__(self, "token_times_s", times)
        object.__setattr__(self, "n_prompt", check_count("n_prompt", self.n_prompt))

    @classmethod
    def from_generation(
        cls,
        generation: _Generation,
        arrival_s: float,
        start_s: float | None = None,
        n_prompt: int = 0,
    ) -> "RequestTrace":
        """Return the trace of a result of `generate`, which was called at `start_s` on your clock.

        The request waited from `arrival_s` until then; None: it did not wait.

        Units:  seconds; n_prompt in tokens
        Raises: ValueError as RequestTrace, and for a start before the arrival.

        >>> from types import SimpleNamespace
        >>> generation = SimpleNamespace(token_times_s=[0.25, 0.5])
        >>> RequestTrace.from_generation(generation, arrival_s=1.0, start_s=3.0).ttft
        2.25
        """
        start_s = arrival_s if start_s is None else start_s
        if start_s < arrival_s:
            raise ValueError(f"start_s must not be before arrival_s {arrival_s}, got {start_s}")
        times = tuple(start_s + elapsed for elapsed in generation.token_times_s)
        return cls(arrival_s, times, n_prompt)

    @property
    def n_output(self) -> int:
        """How many tokens came out."""
        return len(self.token_times_s)

    @property
    def ttft(self) -> float:
        """Time to first token, in seconds: waiting included."""
        return self.token_times_s[0] - self.arrival_s

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first: the mean gap, in seconds; None for one token."""
        if self.n_output == 1:
            return None
        return (self.token_times_s[-1] - self.token_times_s[0]) / (self.n_output - 1)

    @property
    def itl(self) -> Array:
        """The inter-token latencies, in seconds: each of the n_output - 1 gaps."""
        return np.diff(self.token_times_s)

    @property
    def e2e(self) -> float:
        """From the arrival to the last token, in seconds: ttft + (n_output - 1) · tpot."""
        return self.token_times_s[-1] - self.arrival_s


@dataclass(frozen=True)
class SLO:
    """Limits that a request must keep to count as good; None is no limit.

    `itl_s` holds for every gap, so a single stall breaks it; `tpot_s` only for their mean. A
    request of one token has no gap and meets both. A limit is met exactly, too.

    Units:  seconds
    Raises: ValueError for a limit that is not positive.

    >>> stalled = RequestTrace(0.0, (0.5, 0.75, 1.5))
    >>> SLO(ttft_s=0.5, tpot_s=0.5).met(stalled), SLO(itl_s=0.5).met(stalled)
    (True, False)
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            if limit is not None and not limit > 0:
                raise ValueError(f"{name} must be positive or None, got {limit!r}")

    def met(self, trace: RequestTrace) -> bool:
        """Say whether the request kept every limit."""
        worst_gap = trace.itl.max(initial=0.0) if self.itl_s is not None else 0.0
        taken = (trace.ttft, trace.tpot or 0.0, worst_gap, trace.e2e)
        limits = (self.ttft_s, self.tpot_s, self.itl_s, self.e2e_s)
        return all(
            limit is None or seconds <= limit * (1 + _SLACK)
            for seconds, limit in zip(taken, limits, strict=True)
        )


@dataclass(frozen=True)
class Latency:
    """One latency over many requests or gaps: how many, their mean, and percentiles by number.

    >>> Latency(n=4, mean_s=2.5, percentiles_s={50: 2.0, 99: 4.0})[99]
    4.0
    """

    n: int
    mean_s: float
    percentiles_s: Mapping[float, float] = field(hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "percentiles_s", MappingProxyType(dict(self.percentiles_s)))

    def __getitem__(self, p: float) -> float:
        return self.percentiles_s[p]

    def __reduce__(self):
        # Read-only mappings cannot be pickled, and results travel between processes.
        return Latency, (self.n, self.mean_s, dict(self.percentiles_s))


@dataclass(frozen=True)
class Summary:
    """What `summarize` found.

    `ttft`, `e2e` and `tpot` are taken over requests, `itl` over gaps, so that a long request
    counts once in `tpot` and once per gap in `itl`. `tpot` and `itl` are None where no request has
    two tokens. `total_tokens_per_s` counts prompt tokens, too. `attainment` is the share of all
    requests, failed ones among them, that met the SLO, `goodput_per_s` their number per second;
    None without an SLO. All else describes the `n_requests` that were finished.
    """

    n_requests: int
    n_failed: int
    window_s: tuple[float, float]
    ttft: Latency
    tpot: Latency | None
    itl: Latency | None
    e2e: Latency
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    attainment: float | None
    goodput_per_s: float | None


def summarize(
    traces: Iterable[RequestTrace],
    slo: SLO | None = None,
    percentiles: Sequence[float] = (50, 95, 99),
    *,
    n_failed: int = 0,
    window_s: tuple[float, float] | None = None,
) -> Summary:
    """Return latencies, throughput and goodput of finished requests.

    A request that was refused, dropped or cut off has no trace: count it in `n_failed`, as one that
    missed the SLO. Left out, a service that drops its slowest half looks good.

    Without a window everything counts, and rates are per second from the first arrival to the
    last token; that includes the filling and the draining of the service, where it does less. A
    window (start, end), the end excluded, leaves them out: requests count if they arrive in it,
    output tokens if they come in it, and a prompt's tokens if its first output token does.

    Percentiles are by nearest rank. Goodput is completed requests per second that met the whole
    SLO; another definition in use is the highest rate at which a share of them still does.

    Units:  seconds, tokens/s, requests/s
    Raises: ValueError for no traces, an n_failed that is no count, a percentile outside 0 … 100,
            a window without duration or without an arrival.

    >>> traces = [RequestTrace(0.0, (1.0, 1.5), n_prompt=6), RequestTrace(0.0, (3.0, 4.0))]
    >>> summary = summarize(traces, SLO(ttft_s=2.0))
    >>> summary.ttft[50], summary.output_tokens_per_s, summary.total_tokens_per_s
    (1.0, 1.0, 2.5)
    >>> summary.attainment, summary.goodput_per_s
    (0.5, 0.25)
    >>> summarize(traces, SLO(ttft_s=2.0), n_failed=2).attainment
    0.25
    """
    n_failed = check_count("n_failed", n_failed)
    traces = list(traces)
    if not traces:
        raise ValueError("traces must hold at least one request, got none")
    emitted = np.concatenate([trace.token_times_s for trace in traces])
    n_output, n_prompt = len(emitted), sum(trace.n_prompt for trace in traces)
    if window_s is None:
        arrived = traces
        start, end = min(trace.arrival_s for trace in traces), float(emitted.max())
        if not end > start:
            raise ValueError(f"traces must last longer than {end - start} s, to have a rate")
    else:
        start, end = (_finite("window_s", edge) for edge in window_s)
        if not end > start:
            raise ValueError(f"window_s must end after it starts, got {window_s}")
        arrived = [trace for trace in traces if start <= trace.arrival_s < end]
        if not arrived:
            raise ValueError(f"window_s must hold an arrival, got {window_s}, which holds none")
        n_output = int(((start <= emitted) & (emitted < end)).sum())
        n_prompt = sum(t.n_prompt for t in traces if start <= t.token_times_s[0] < end)

    def latency(values: Sequence[float] | Array) -> Latency:
        at = {p: percentile(values, p) for p in percentiles}
        return Latency(len(values), float(np.mean(values)), at)

    mean_gaps = [trace.tpot for trace in arrived if trace.tpot is not None]
    gaps = np.concatenate([trace.itl for trace in arrived])
    n_good = None if slo is None else sum(map(slo.met, arrived))
    return Summary(
        n_requests=len(arrived),
        n_failed=n_failed,
        window_s=(start, end),
        ttft=latency([trace.ttft for trace in arrived]),
        tpot=latency(mean_gaps) if mean_gaps else None,
        itl=latency(gaps) if len(gaps) else None,
        e2e=latency([trace.e2e for trace in arrived]),
        requests_per_s=len(arrived) / (end - start),
        output_tokens_per_s=n_output / (end - start),
        total_tokens_per_s=(n_prompt + n_output) / (end - start),
        attainment=None if n_good is None else n_good / (len(arrived) + n_failed),
        goodput_per_s=None if n_good is None else n_good / (end - start),
    )


def percentile(
    values: Sequence[float] | Array,
    p: float,
    method: Literal["nearest_rank", "interpolated"] = "nearest_rank",
) -> float:
    """Return the p-th percentile, by a method that is named because programs differ.

    "nearest_rank" is the smallest value that at least p percent of the values do not exceed:
    number ceil(p/100 · n) in rising order, a value that did occur. "interpolated" lies on the line
    between the two values next to the place 1 + p/100 · (n - 1), as NumPy does by itself. With few
    values they differ most where it matters: p99 of fewer than 100 is the largest of all.

    Shapes: values: (n,)
    Raises: ValueError for no values, NaN, a p outside 0 … 100, an unknown method.

    >>> waits = [1.0, 2.0, 3.0, 10.0]
    >>> percentile(waits, 90), round(percentile(waits, 90, "interpolated"), 2)
    (10.0, 7.9)
    """
    values = np.asarray(values, dtype=float)
    if values.ndim != 1 or values.size == 0 or np.isnan(values).any():
        raise ValueError(
            f"values must be a sequence of at least one number and no NaN, got {values}"
        )
    if not 0 <= p <= 100:
        raise ValueError(f"p must be between 0 and 100 percent, got {p!r}")
    if method == "interpolated":
        return float(np.percentile(values, p))
    if method != "nearest_rank":
        raise ValueError(f"method must be 'nearest_rank' or 'interpolated', got {method!r}")
    rank = math.ceil(round(p * values.size / 100, 9))  # 99.9 has no exact binary form
    place = max(rank, 1) - 1
    return float(np.partition(values, place)[place])


def in_system(traces: Iterable[RequestTrace]) -> tuple[Array, Array]:
    """Return the times at which the number of requests in the system changes, and that number.

    n[i] holds from times_s[i] to times_s[i + 1]; a request is in the system from its arrival to
    its last token. The area under it is the sum of all e2e: that is Little's law.

    Shapes: times_s, n: two entries per request
    Units:  seconds, requests

    >>> times_s, n = in_system([RequestTrace(0.0, (2.0, 3.0)), RequestTrace(1.0, (5.0,))])
    >>> times_s.tolist(), n.tolist()
    ([0.0, 1.0, 3.0, 5.0], [1, 2, 1, 0])
    """
    spans = np.array([(t.arrival_s, t.token_times_s[-1]) for t in traces]).reshape(-1, 2)
    times = spans.T.ravel()  # arrivals first: at equal times nobody leaves before arriving
    order = np.argsort(times, kind="stable")
    change = np.repeat([1, -1], len(spans))
    return times[order], np.cumsum(change[order])


def littles_law(rate: float, time: float) -> float:
    """Return the mean number in a system: arrival rate times mean time spent in it.

    It holds for any order of service and any distribution, for a whole service or a part of it: the
    queue (time: the wait), the batch (time: prefill and decode), one server (time: the service;
    the number is then its utilisation).

    Holds:  for means over a long time in which the service keeps up. Over a short window, requests
            that come or leave outside it make the number too high or too low; under overload it is
            too high, since it counts waits that are still to come.
    Units:  requests/s and seconds give requests
    Raises: ValueError for a negative rate or time.
    Source: Little 1961, doi:10.1287/opre.9.3.383

    >>> littles_law(rate=4, time=2.5)
    10.0
    """
    _check(rate=rate, time=time)
    return rate * time


def wait_mg1(rate: float, service_s: float, service_std_s: float) -> float:
    """Return the mean wait for one server that takes requests in order of arrival.

    Arrivals are Poisson; service times are independent, with this mean and standard deviation.
    The formula of Pollaczek and Khinchine, λ·E[s²] / (2·(1 - ρ)) with ρ = λ·E[s]: the wait grows
    without bound as ρ nears 1, and with the variance of the service. Infinite from ρ = 1 on.

    Holds:  after a long time. The wait is longer for arrivals in bursts (ten times as long for
            gaps with a cv of 3 at ρ = 0.8, equal services), and where long services follow one
            another. It is shorter for regular arrivals, and in short runs near ρ = 1; far shorter
            where a server takes many requests at once.
    Units:  requests/s, seconds; the wait leaves the service itself out
    Raises: ValueError for a negative rate, time or deviation.
    Source: Kleinrock 1975, Queueing Systems, vol. 1, ch. 5

    >>> round(wait_mg1(rate=0.8, service_s=1.0, service_std_s=0.5), 3)
    2.5
    """
    _check(rate=rate, service_s=service_s, service_std_s=service_std_s)
    utilization = littles_law(rate, service_s)
    if utilization >= 1:
        return math.inf
    return rate * (service_s**2 + service_std_s**2) / (2 * (1 - utilization))


def wait_md1(rate: float, service_s: float) -> float:
    """Return the mean wait where every service takes the same time: half of `wait_mm1`.

    Holds:  as `wait_mg1`; too short where services differ.
    Units:  requests/s, seconds
    Raises: ValueError for a negative rate or time.

    >>> round(wait_md1(rate=0.8, service_s=1.0), 9)
    2.0
    """
    return wait_mg1(rate, service_s, 0.0)


def wait_mm1(rate: float, service_s: float) -> float:
    """Return the mean wait where service times are exponential: ρ / (1 - ρ) services.

    Holds:  as `wait_mg1`; too long where services differ less than that, and too short where a few
            are very long.
    Units:  requests/s, seconds
    Raises: ValueError for a negative rate or time.

    >>> round(wait_mm1(rate=0.8, service_s=1.0), 9)
    4.0
    """
    return wait_mg1(rate, service_s, service_s)


@dataclass(frozen=True)
class LatencyBudget:
    """Where the time of a request goes, for a stacked bar: the parts add up to the whole.

    Units:  seconds

    >>> budget = LatencyBudget({"queue": 0.25, "prefill": 0.5}, {"decode": 0.125}, n_output=5)
    >>> budget.ttft, budget.tpot, budget.e2e
    (0.75, 0.125, 1.25)
    """

    ttft_parts: Mapping[str, float] = field(hash=False)
    tpot_parts: Mapping[str, float] = field(hash=False)
    n_output: int

    def __post_init__(self) -> None:
        for name in ("ttft_parts", "tpot_parts"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def ttft(self) -> float:
        """The time to the first token."""
        return sum(self.ttft_parts.values())

    @property
    def tpot(self) -> float:
        """The time per token after the first."""
        return sum(self.tpot_parts.values())

    @property
    def e2e(self) -> float:
        """The time to the last token; the first is in the TTFT, so n_output - 1 steps follow."""
        return self.ttft + (self.n_output - 1) * self.tpot


def latency_budget(
    *,
    n_output: int,
    prefill_s: float,
    decode_s: float,
    queue_s: float = 0.0,
    input_s: float = 0.0,
    first_decode_s: float = 0.0,
    overhead_s: float = 0.0,
    communication_s: float = 0.0,
    scheduling_s: float = 0.0,
    token_overhead_s: float = 0.0,
    overlap: bool = False,
) -> LatencyBudget:
    """Return a request's latency, taken apart.

    TTFT: `queue_s`, `input_s` (tokenising, images), `prefill_s`, `first_decode_s` and `overhead_s`
    (sampling, network). The last row of the prefill already gives the first token, so
    `first_decode_s` is zero unless prefill and decode run on separate machines and the second one
    makes that token.

    TPOT: `decode_s`, `communication_s` between devices, `scheduling_s` and `token_overhead_s`. With
    `overlap`, communication and scheduling run beside the computing: together the three take the
    maximum of their times, not the sum, and each part is what it adds to those before it.

    Holds:  for one request, and for means of many. Percentiles do not add: parts that vary apart
            give a sum of their p99 that is too long (9.2 for 6.7, two exponential parts of mean 1).
    Units:  seconds
    Raises: ValueError for negative times and an n_output below 1.

    >>> budget = latency_budget(n_output=120, queue_s=0.012, prefill_s=0.180, overhead_s=0.001,
    ...                         decode_s=0.022)
    >>> round(budget.ttft, 3), round(budget.e2e, 3)
    (0.193, 2.811)
    """
    n_output = check_count("n_output", n_output, at_least=1)
    ttft = {
        "queue_s": queue_s,
        "input_s": input_s,
        "prefill_s": prefill_s,
        "first_decode_s": first_decode_s,
        "overhead_s": overhead_s,
    }
    tpot = {
        "decode_s": decode_s,
        "communication_s": communication_s,
        "scheduling_s": scheduling_s,
        "token_overhead_s": token_overhead_s,
    }
    _check(**ttft, **tpot)
    if overlap:
        busy_s = max(decode_s, communication_s)
        tpot["communication_s"] = busy_s - decode_s
        tpot["scheduling_s"] = max(0.0, scheduling_s - busy_s)
    ttft, tpot = ({name.removesuffix("_s"): s for name, s in p.items()} for p in (ttft, tpot))
    return LatencyBudget(ttft, tpot, n_output)


def _finite(name: str, value: float) -> float:
    if not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number of seconds, got {value!r}")
    return float(value)


def _check(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be finite and not negative, got {value!r}")
