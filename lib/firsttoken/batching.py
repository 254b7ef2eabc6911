"""Many requests, one model: a simulator of batching on a virtual clock."""

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from firsttoken.checks import check_count
from firsttoken.metrics import SLO, RequestTrace, Summary, summarize
from firsttoken.paging import BlockPool, OutOfBlocks

# Seconds of one step, from its prompts and checks of guesses (new tokens, tokens cached before) and
# from the tokens that each other decoding sequence attends to.
StepCost = Callable[[list[tuple[int, int]], list[int]], float]
Length = int | Callable[[np.random.Generator], int]

POLICIES = ("static", "dynamic", "continuous", "chunked")
PREEMPTIONS = ("recompute", "swap")


@dataclass(frozen=True)
class Request:
    """A request as it reaches the service: when, how long its prompt is and its answer will be.

    The simulator knows the length of the answer; no scheduling decision looks at it. A lower
    `priority` goes first, as in vLLM. `client` says whose request it is.

    Units:  seconds, tokens
    Raises: ValueError for an arrival that is not finite, lengths below one token, and a priority
            that is no whole number.

    >>> request = Request(arrival_s=0.5, n_prompt=512, n_output=128)
    >>> request.priority, request.client
    (0, '')
    """

    arrival_s: float
    n_prompt: int
    n_output: int
    priority: int = 0
    client: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.arrival_s, Real) or not math.isfinite(self.arrival_s):
            raise ValueError(f"arrival_s must be a finite number, got {self.arrival_s!r}")
        if not isinstance(self.priority, Integral) or isinstance(self.priority, bool):
            raise ValueError(f"priority must be a whole number, got {self.priority!r}")
        # NumPy's scalars, as a generator draws them, would make every sum of the simulator slow.
        object.__setattr__(self, "arrival_s", float(self.arrival_s))
        for name in ("n_prompt", "n_output"):
            object.__setattr__(self, name, check_count(name, getattr(self, name), at_least=1))


def poisson_trace(
    rate: float,
    n: int,
    rng: np.random.Generator,
    n_prompt: Length = 512,
    n_output: Length = 128,
) -> list[Request]:
    """Return n requests of users who do not know of each other: exponential gaps, mean 1/rate.

    A length is a number of tokens, or a function that draws one from `rng`. The arrivals are drawn
    first, so that the same seed gives the same arrivals whatever the lengths.

    Units:  requests/s, tokens; the clock starts at 0
    Raises: ValueError for a rate that is not positive, a negative n, and lengths below one token.

    >>> trace = poisson_trace(2.0, 1000, np.random.default_rng(0))
    >>> 480 < trace[-1].arrival_s < 520, trace[0].n_prompt
    (True, 512)
    """
    _check_arrivals(rate, n)
    return _trace(rng.exponential(1 / rate, size=n), rng, n_prompt, n_output)


def bursty_trace(
    rate: float,
    n: int,
    rng: np.random.Generator,
    cv: float = 3.0,
    n_prompt: Length = 512,
    n_output: Length = 128,
) -> list[Request]:
    """Return n requests that come in bursts: gaps of mean 1/rate, most short and a few long.

    Gaps follow a gamma distribution. `cv`, their standard deviation over their mean, says how
    bursty they are: 1 is Poisson, 0 would be a metronome. All else is as in `poisson_trace`.

    Units:  requests/s, tokens; the clock starts at 0
    Raises: ValueError for a rate or cv that is not positive, a negative n, and lengths below one.
    Source: vLLM, `vllm bench serve --burstiness`, which is 1/cv²

    >>> trace = bursty_trace(2.0, 1000, np.random.default_rng(0), cv=3.0)
    >>> gaps = np.diff([request.arrival_s for request in trace])
    >>> bool(np.median(gaps) < 0.05), bool(gaps.max() > 5)
    (True, True)
    """
    _check_arrivals(rate, n)
    if not 0 < cv < math.inf:
        raise ValueError(f"cv must be positive and finite, got {cv!r}")
    return _trace(rng.gamma(cv**-2, cv**2 / rate, size=n), rng, n_prompt, n_output)


def _trace(
    gaps: np.ndarray, rng: np.random.Generator, n_prompt: Length, n_output: Length
) -> list[Request]:
    arrivals = np.cumsum(gaps).tolist()
    prompts, outputs = (
        [length(rng) if callable(length) else length for _ in arrivals]
        for length in (n_prompt, n_output)
    )
    return [Request(*fields) for fields in zip(arrivals, prompts, outputs, strict=True)]


def load_trace(path: str | Path) -> list[Request]:
    """Read requests from a CSV file with the columns arrival_s, n_prompt and n_output.

    Other columns are left alone, and the order of the file is kept. Published traces convert to
    it. Azure's (AzurePublicDataset, LLM inference 2023): seconds since the first TIMESTAMP,
    ContextTokens, GeneratedTokens. BurstGPT's: Timestamp, Request tokens, Response tokens,
    without the requests that failed, which have 0 response tokens.

    Units:  seconds, tokens
    Raises: ValueError for a missing column, and for a value that is no such number, with its line.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "trace.csv")
    ...     _ = path.write_text("arrival_s,n_prompt,n_output\\n0.5,512,128\\n")
    ...     load_trace(path) == [Request(arrival_s=0.5, n_prompt=512, n_output=128)]
    True
    """
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        missing = {"arrival_s", "n_prompt", "n_output"} - set(rows.fieldnames or ())
        if missing:
            raise ValueError(f"path {path} has no column {', '.join(sorted(missing))}")
        requests = []
        for row in rows:
            try:
                request = Request(
                    float(row["arrival_s"]), int(row["n_prompt"]), int(row["n_output"])
                )
            except (TypeError, ValueError) as error:
                raise ValueError(f"path {path}, line {rows.line_num}: {error}") from None
            requests.append(request)
    return requests


@dataclass(frozen=True)
class Speculation:
    """How decoding sequences guess in `simulate`: how often rightly, how far, and at what price.

    alpha: how likely a guess is to be kept, given that those before it were: one number, or one
    for each place. gamma: how many guesses each sequence makes in a step, a number or a function
    of how many sequences decode, which may turn it down with the load. draft_s(n_sequences, gamma):
    the time it takes to make them, which is added to the step. `seed` is that of the draws.

    Units:  probability, tokens, seconds
    Raises: ValueError for an alpha outside 0 … 1, a gamma that is no count, and one that is larger
            than the number of alphas.
    Source: Leviathan et al. 2023, arXiv:2211.17192, sec. 2 (independent acceptances); Liu et al.
            2024, SmartSpec, arXiv:2406.14066, sec. 4 (a gamma that depends on the batch)

    >>> speculation = Speculation(0.7, lambda n: 4 if n < 32 else 0, lambda n, gamma: 0.001 * gamma)
    >>> speculation.guesses(8), speculation.guesses(64)
    (4, 0)
    """

    alpha: float | Sequence[float]
    gamma: int | Callable[[int], int]
    draft_s: Callable[[int, int], float]
    seed: int = 0

    def __post_init__(self) -> None:
        alpha = np.asarray(self.alpha, dtype=np.float64)
        if alpha.ndim > 1 or not np.all((alpha >= 0) & (alpha <= 1)):
            raise ValueError(
                f"alpha must lie in 0 … 1, one number or one for each guess, got {self.alpha!r}"
            )
        if not callable(self.gamma):
            self._check_gamma(self.gamma)

    def _check_gamma(self, gamma: int) -> int:
        gamma = check_count("gamma", gamma)
        if np.ndim(self.alpha) and gamma > np.size(self.alpha):
            raise ValueError(
                f"gamma must be at most {np.size(self.alpha)}, the number of alphas, got {gamma}"
            )
        return gamma

    def guesses(self, n_decoding: int) -> int:
        """Return how many guesses each sequence makes where so many decode."""
        gamma = self.gamma(n_decoding) if callable(self.gamma) else self.gamma
        return self._check_gamma(gamma)

    def draw_kept(self, n_sequences: int, gamma: int, rng: np.random.Generator) -> list[int]:
        """Return how many of its gamma guesses each sequence keeps: those before the first miss.

        >>> Speculation(1.0, 4, lambda n, gamma: 0.0).draw_kept(2, 4, np.random.default_rng(0))
        [4, 4]
        """
        right = rng.random((n_sequences, gamma)) < np.atleast_1d(self.alpha)[:gamma]
        return right.cumprod(axis=1).sum(axis=1).tolist()


@dataclass(frozen=True)
class StepRecord:
    """What ran when, in one step of `simulate`; requests go by their place in the list.

    `prefills` holds (request, new tokens, tokens cached before), `decodes` the requests that got
    their next token, `preempted` those that had to make room before the step began. `gamma` is how
    many guesses each of the first of `decodes` made, and `kept` how many more tokens each of these
    got by them; empty where nobody guessed.

    Units:  seconds, tokens
    """

    start_s: float
    end_s: float
    prefills: tuple[tuple[int, int, int], ...]
    decodes: tuple[int, ...]
    preempted: tuple[int, ...]
    gamma: int = 0
    kept: tuple[int, ...] = ()


def simulate(
    requests: Iterable[Request],
    policy: str,
    cost: StepCost,
    *,
    max_batch: int,
    token_budget: int | None = None,
    pool: BlockPool | None = None,
    preemption: str = "recompute",
    swap_token_s: float = 0.0,
    max_wait_s: float = 0.0,
    aging_s: float = math.inf,
    fair: bool = False,
    speculation: Speculation | None = None,
    on_step: Callable[[StepRecord], object] | None = None,
) -> list[RequestTrace]:
    """Serve the requests on a virtual clock; return their traces, in the order of the requests.

    A step computes prompts and one token of each sequence that decodes. It lasts
    `cost(prefills, decodes)`:

    - prefills: (new tokens, tokens cached before) of each prompt or part of a prompt;
    - decodes: how many tokens each decoding sequence attends to, the new one among them. The first
      decode after a prompt of 10 attends to 11.

    At its end each decoding sequence gets a token, and each complete prompt its first. Who has all
    its tokens leaves at once; no padding is charged. Who arrives during a step waits for its end.
    The policy says when waiting requests may join, up to `max_batch` at a time:

    - "static": when nobody runs, and `max_batch` requests wait or no more will come.
    - "dynamic": when nobody runs, with whoever waits. `max_wait_s` lets the first of them wait
      that long for others, until there are `max_batch`.
    - "continuous": before every step.
    - "chunked": before every step, and prompts are cut to fill the step up to `token_budget`:
      decoding sequences take their token first, then the prompt that was cut, then new ones.

    `token_budget` bounds the tokens of a step: those of its prompts and one per decoding sequence.

    `pool` bounds the cache. A request joins when blocks for its whole prompt are free, and needs
    one place more for each token it attends to. Where no block is free, whoever is last in line
    among those that run gives all its blocks back and waits again. With `preemption` "recompute"
    its prompt and answer so far become one prompt; with "swap" what it had cached goes to the
    host's memory, which is never full, and comes back: each way takes `swap_token_s` per token.

    The line: lower priority numbers first, then earlier arrivals, then the order given. The first
    who does not fit holds back all behind. With `aging_s`, waiting that long is worth one priority,
    so that nobody starves. `fair` lets clients take turns: first is the first in line of the client
    for whom the fewest tokens have been computed, and who comes back has saved up nothing.

    With `speculation` each decoding sequence makes gamma guesses in a step, and gets those kept and
    one token more, all at its end; what goes beyond its answer is dropped. The check is a pass over
    gamma + 1 new tokens, and so `cost` finds it among the prefills, behind the prompts: (gamma + 1,
    tokens cached before). All gamma + 1 count in the token budget, and for `fair`, and have places
    in the pool until the step ends. A guess takes nobody's place: gamma is lowered for a step in
    which budget or pool cannot hold so many for all. Guesses come before prompts, since prompts get
    what decoding leaves. Whoever comes back from the host's memory decodes without guesses first.
    The draft's own reading of prompts, and its cache, are not counted.

    `on_step` is called with the `StepRecord` of each step when it ends. The pool then still holds
    what the step used. In the end it holds nothing of these requests, whatever was raised.

    Units:  seconds, tokens
    Raises: ValueError for an option out of range or without effect; for a prompt that exceeds the
            token budget, unless chunked (prompt and answer, where a preemption could make them
            one); for a request that the pool cannot hold; for a cost that is no finite time.
    Source: Yu et al. 2022, Orca (OSDI'22): continuous; Agrawal et al. 2024, arXiv:2403.02310,
            sec. 4: chunked; Kwon et al. 2023, arXiv:2309.06180, sec. 4.5: preemption; Sheng et
            al. 2024, arXiv:2401.00588, sec. 4: fair

    >>> def cost(prefills, decodes):
    ...     return 1.0
    >>> traces = simulate([Request(0.0, 10, 3), Request(0.5, 10, 1)], "continuous", cost,
    ...                   max_batch=2)
    >>> [trace.token_times_s for trace in traces]
    [(1.0, 2.0, 3.0), (2.0,)]
    """
    requests = list(requests)
    _check_choice(POLICIES, policy=policy)
    _check_choice(PREEMPTIONS, preemption=preemption)
    check_count("max_batch", max_batch, at_least=1)
    _check_seconds(swap_token_s=swap_token_s, max_wait_s=max_wait_s)
    if not aging_s >= 0:
        raise ValueError(f"aging_s must not be negative, got {aging_s!r}")
    if max_wait_s and policy != "dynamic":
        raise ValueError(f"max_wait_s {max_wait_s} needs the policy 'dynamic', got {policy!r}")
    if pool is None and preemption == "swap":
        raise ValueError("preemption 'swap' needs a pool: without one nobody is preempted")
    if swap_token_s and preemption != "swap":
        raise ValueError(f"swap_token_s {swap_token_s} needs preemption 'swap', got {preemption!r}")
    regrows = pool is not None and preemption == "recompute"
    _check_budget(requests, token_budget, policy == "chunked", regrows)
    _check_pool(requests, pool)

    service = _Service(
        requests=requests,
        cost=cost,
        policy=policy,
        max_batch=max_batch,
        budget=math.inf if token_budget is None else token_budget,
        pool=pool,
        swaps=preemption == "swap",
        swap_token_s=swap_token_s,
        max_wait_s=max_wait_s,
        line=_Line(requests, aging_s, fair),
        speculation=speculation,
        on_step=on_step,
    )
    try:
        while service.unfinished():
            service.step()
    finally:  # `cost` or `on_step` may raise: the pool is the caller's
        service.give_back()
    return [
        RequestTrace(request.arrival_s, tuple(times), request.n_prompt)
        for request, times in zip(requests, service.token_times, strict=True)
    ]


def sweep(
    settings: Mapping[str, Mapping[str, Any]],
    rates: Sequence[float],
    trace: Callable[[float], Iterable[Request]],
    cost: StepCost,
    *,
    slo: SLO | None = None,
    n_jobs: int | None = -1,
    progress: bool = True,
) -> dict[tuple[str, float], Summary]:
    """Simulate every setting at every rate; return the summaries by (name of setting, rate).

    A setting holds the arguments of `simulate` beside requests and cost; `trace` makes the requests
    of a rate. Give it a generator of its own at each call, and every setting meets the same ones.

    The runs share all cores, or `n_jobs` processes, each with its own copy of what is passed; with
    `progress` a bar shows how many are done. They go wherever joblib is told to send them: inside
    `with joblib.parallel_config(backend="dask"):` to the current Dask cluster, and with "ray" to a
    Ray cluster, where the bar moves only when all are done.

    Raises: ValueError as `simulate` and `summarize`.

    >>> def trace(rate):
    ...     return poisson_trace(rate, 50, np.random.default_rng(0))
    >>> def cost(prefills, decodes):
    ...     return 0.01
    >>> settings = {f"batch {n}": {"policy": "static", "max_batch": n} for n in (1, 5)}
    >>> results = sweep(settings, [0.5, 2.0], trace, cost, n_jobs=1)
    >>> results["batch 1", 2.0].requests_per_s < results["batch 5", 2.0].requests_per_s
    True
    """
    from joblib import Parallel, delayed  # takes a while to import, and only sweeps need it
    from joblib.parallel import get_active_backend

    points = [(name, rate) for name in settings for rate in rates]
    run = delayed(_summarize_run)
    one_by_one = get_active_backend()[0].supports_return_generator  # Ray's does not
    results = Parallel(n_jobs=n_jobs, return_as="generator" if one_by_one else "list")(
        run(trace, rate, cost, dict(settings[name]), slo) for name, rate in points
    )
    bar = tqdm(results, desc="runs", total=len(points), disable=not progress)
    return dict(zip(points, bar, strict=True))


def _summarize_run(
    trace: Callable[[float], Iterable[Request]],
    rate: float,
    cost: StepCost,
    setting: Mapping[str, Any],
    slo: SLO | None,
) -> Summary:
    return summarize(simulate(trace(rate), cost=cost, **setting), slo)


def static_utilization(batch: int, mean_output: float) -> float:
    """Return the share of places that hold a running sequence, in static batches always full.

    A batch lasts as long as its longest answer: E[length] / E[longest of `batch`]. Lengths are
    geometric: each token is the last with probability 1 / mean_output. For long answers this falls
    to 1/H_B with H_B = 1 + 1/2 + … + 1/B, since the longest of B exponential times lasts H_B means.

    Holds:  for geometric lengths. Where they differ less, more is used (batches of 16, mean 128:
            0.30 here, 0.53 for lengths spread evenly from 1 to 255); a few very long ones leave
            less.
    Units:  tokens
    Raises: ValueError for a batch below 1 and a mean below one token.

    >>> round(static_utilization(4, 1e4), 2)  # 1 / (1 + 1/2 + 1/3 + 1/4)
    0.48
    """
    check_count("batch", batch, at_least=1)
    if not 1 <= mean_output < math.inf:
        raise ValueError(f"mean_output must be at least one token and finite, got {mean_output!r}")
    going_on = 1 - 1 / mean_output
    # Beyond the horizon a batch still runs with a probability below 1e-16.
    horizon = 1 + math.ceil(mean_output * math.log(batch * mean_output * 1e16))
    still_one = going_on ** np.arange(horizon)
    longest = (1 - (1 - still_one) ** batch).sum()  # E[longest] = Σ P(longest > k)
    return float(mean_output / longest)


class _Line:
    """Who waits, and who of them is first."""

    def __init__(self, requests: list[Request], aging_s: float, fair: bool) -> None:
        strict = aging_s == math.inf
        # Waiting lifts all alike, so the order of two requests never changes: one priority is
        # worth as much as arriving aging_s earlier.
        self.places = [
            (r.priority if strict else r.priority * aging_s + r.arrival_s, r.arrival_s, i)
            for i, r in enumerate(requests)
        ]
        self.fair = fair
        self.clients = [r.client if fair else "" for r in requests]  # not fair: all are one
        self.waiting: dict[str, list[tuple[float, float, int]]] = {}  # a heap of places per client
        self.computed = dict.fromkeys(self.clients, 0)  # tokens, per client
        self.turn = next(iter(self.computed), "")  # the client whose request was first last

    def join(self, i: int) -> None:
        client = self.clients[i]
        if client not in self.waiting:
            # Who comes back has no claim on what the others were given meanwhile.
            least = min(self.computed[other] for other in self.waiting or [self.turn])
            self.computed[client] = max(self.computed[client], least)
            self.waiting[client] = []
        heappush(self.waiting[client], self.places[i])

    def first(self) -> int:
        waiting, computed = self.waiting, self.computed
        self.turn = min(waiting, key=lambda client: (computed[client], waiting[client][0]))
        return waiting[self.turn][0][-1]

    def leave(self, i: int) -> None:
        """Let the request that is first go."""
        client = self.clients[i]
        heappop(self.waiting[client])
        if not self.waiting[client]:
            del self.waiting[client]

    def charge(self, i: int, n_tokens: int) -> None:
        self.computed[self.clients[i]] += n_tokens

    def n_waiting(self) -> int:
        return sum(map(len, self.waiting.values()))

    def oldest_arrival(self) -> float:
        return min(place[1] for places in self.waiting.values() for place in places)


@dataclass
class _Service:
    """Who waits and who runs, on a clock that jumps from step to step."""

    requests: list[Request]
    cost: StepCost
    policy: str
    max_batch: int
    budget: float
    pool: BlockPool | None
    swaps: bool
    swap_token_s: float
    max_wait_s: float
    line: _Line
    speculation: Speculation | None
    on_step: Callable[[StepRecord], object] | None

    def __post_init__(self) -> None:
        self.coming = sorted(range(len(self.requests)), key=lambda i: self.requests[i].arrival_s)
        self.arrivals = [self.requests[i].arrival_s for i in self.coming]
        self.arrivals.append(math.inf)  # nobody comes after the last
        self.n_arrived, self.clock = 0, -math.inf
        self.prefilling: list[tuple[int, int]] = []  # (request, tokens cached) of cut prompts
        self.decoding: list[int] = []
        self.attended: list[int] = []  # of each that decodes: the tokens it attends to next
        self.in_pool: set[int] = set()  # requests with blocks
        self.swapped: dict[int, int] = {}  # the tokens that a request has in the host's memory
        self.n_moved = 0  # tokens, to and from the host in this step
        # Tokens come in consecutive steps until a preemption, so it is enough to know with which
        # step such a run begins, and with which, if nothing intervenes, the request is done.
        self.step_ends: list[float] = []
        self.first_step, self.last_step = ([0] * len(self.requests) for _ in range(2))
        self.leaving: dict[int, list[int]] = {}  # last step to requests
        # A guess that is kept is a token beside these, and brings the last step one step nearer.
        self.guessed_times: list[list[float]] = [[] for _ in self.requests]
        self.token_times: list[list[float]] = [[] for _ in self.requests]  # of runs that ended
        self.rng = np.random.default_rng(self.speculation.seed if self.speculation else 0)

    def unfinished(self) -> bool:
        someone_here = self.decoding or self.prefilling or self.line.waiting
        return bool(someone_here) or self.n_arrived < len(self.coming)

    def step(self) -> None:
        """Let one step pass, and before it the time until somebody may run."""
        idle = not self.decoding and not self.prefilling
        if idle:
            self._sleep()
        start_s, self.n_moved = self.clock, 0
        preempted = [] if self.pool is None else self._make_room()
        gamma = self._guess()
        n_guessing = len(self.decoding) if gamma else 0
        prompts = []
        if self.line.waiting or self.prefilling:
            may_join = idle or self.policy in ("continuous", "chunked")
            prompts = self._take_prompts(may_join, n_guessing * gamma)
        passes = [(new, before) for _, new, before in prompts if new]
        passes += [(gamma + 1, n - 1) for n in self.attended[:n_guessing]]
        seconds = self.cost(passes, self.attended[n_guessing:])
        if not 0 <= seconds < math.inf:
            raise ValueError(f"cost must give finite seconds, none negative, got {seconds!r}")
        draft_s, kept = self._draft_and_check(n_guessing, gamma)
        seconds += draft_s
        if self.n_moved:
            seconds += self.n_moved * self.swap_token_s
        end_s = self.clock + seconds
        if self.on_step is not None:
            prefills = tuple(prompt for prompt in prompts if prompt[1])
            decodes = tuple(self.decoding)
            self.on_step(
                StepRecord(start_s, end_s, prefills, decodes, tuple(preempted), gamma, tuple(kept))
            )
        self._hand_out_tokens(end_s, prompts, gamma, kept)
        self._wait_until(end_s)

    def _wait_until(self, time_s: float) -> None:
        """Move the clock, never back; who has arrived by then stands in line."""
        self.clock = max(self.clock, time_s)
        while self.arrivals[self.n_arrived] <= self.clock:
            self.line.join(self.coming[self.n_arrived])
            self.n_arrived += 1

    def _sleep(self) -> None:
        """Nobody runs: wait until there is somebody, and until the policy starts a batch."""
        if not self.line.waiting:
            self._wait_until(self.arrivals[self.n_arrived])
        n_missing = self.max_batch - self.line.n_waiting()
        if n_missing > 0 and self.policy == "static":
            last = min(self.n_arrived + n_missing, len(self.coming)) - 1
            self._wait_until(self.arrivals[last])
        elif n_missing > 0 and self.policy == "dynamic":
            full = min(self.n_arrived + n_missing - 1, len(self.coming))  # infinity at the end
            patience_ends = self.line.oldest_arrival() + self.max_wait_s
            self._wait_until(min(self.arrivals[full], patience_ends))

    def _make_room(self) -> list[int]:
        """Give every decoding sequence a place for one more token; return who was preempted."""
        assert self.pool is not None
        preempted: list[int] = []
        for i in list(self.decoding):
            while i not in preempted:
                try:
                    self.pool.append(i, i)
                    break
                except OutOfBlocks:
                    preempted.append(self._preempt_last())
        return preempted

    def _preempt_last(self) -> int:
        """Send whoever is last in line among those that run back to wait."""
        cached = dict(self.prefilling) | dict.fromkeys(self.decoding, 0)
        i = max(cached, key=self.line.places.__getitem__)
        if i in self.decoding:
            self.leaving[self.last_step[i]].remove(i)
            self._stop(i)
            n_cached = self._n_text(i) - 1  # the token that came last was not yet read
        else:
            n_cached = cached[i]
            self.prefilling.remove((i, n_cached))
            self._free(i)
        if self.swaps:
            self.swapped[i] = n_cached
            self.n_moved += n_cached
        self.line.join(i)
        return i

    def _guess(self) -> int:
        """Return how many guesses each decoding sequence makes now, and give them places."""
        n = len(self.decoding)
        if self.speculation is None or n == 0:
            return 0
        gamma = int(min(self.speculation.guesses(n), self.budget / n - 1))
        if self.pool is not None:
            while gamma and self._n_new_blocks(gamma) > self.pool.n_free:
                gamma -= 1
            for i in self.decoding:
                for _ in range(gamma):
                    self.pool.append(i, i)
        return gamma

    def _n_new_blocks(self, gamma: int) -> int:
        """Return how many blocks gamma guesses of each decoding sequence need."""
        assert self.pool is not None
        size = self.pool.block_size
        return sum(math.ceil((n + gamma) / size) - math.ceil(n / size) for n in self.attended)

    def _draft_and_check(self, n_guessing: int, gamma: int) -> tuple[float, list[int]]:
        """Return how long drafting takes, and how many of its guesses each gets as tokens."""
        if self.speculation is None or n_guessing == 0:
            return 0.0, []
        draft_s = self.speculation.draft_s(n_guessing, gamma)
        _check_seconds(draft_s=draft_s)
        kept = self.speculation.draw_kept(n_guessing, gamma, self.rng)
        step = len(self.step_ends)
        wanted = [self.last_step[i] - step for i in self.decoding[:n_guessing]]  # beside its own
        return draft_s, [min(pair) for pair in zip(kept, wanted, strict=True)]

    def _take_prompts(self, may_join: bool, n_guesses: int) -> list[tuple[int, int, int]]:
        """Return what this step computes of prompts: (request, new tokens, cached before)."""
        left = self.budget - len(self.decoding) - n_guesses
        prompts = []
        for i, before in self.prefilling:
            new = int(min(left, self._n_text(i) - before))  # without a budget left is infinite
            left -= new
            self.line.charge(i, new)
            prompts.append((i, new, before))
        while may_join and self.line.waiting and len(self.decoding) + len(prompts) < self.max_batch:
            i = self.line.first()
            before = self.swapped.get(i, 0)
            new = self._n_text(i) - before
            if self.policy == "chunked":
                new = int(min(new, left))
            if not 1 <= new <= left or not self._has_blocks(i):
                break
            self.line.leave(i)
            left -= new
            self.n_moved += self.swapped.pop(i, 0)
            if before and self.token_times[i]:  # swapped out while it decoded: it goes on
                self._start(i, self._n_text(i))
            else:
                self.line.charge(i, new)
                prompts.append((i, new, before))
        return prompts

    def _n_text(self, i: int) -> int:
        """Return the tokens of a request that does not decode: its prompt and answer so far."""
        return self.requests[i].n_prompt + len(self.token_times[i])

    def _has_blocks(self, i: int) -> bool:
        """Take the blocks that a request needs to join, if they are free."""
        try:
            if self.pool is not None:
                # Its own number for each token: no two requests have a text in common.
                self.pool.allocate(i, [i] * self._n_text(i))
                self.in_pool.add(i)
        except OutOfBlocks:
            return False
        return True

    def _start(self, i: int, n_attended: int) -> None:
        """Let a request get a token at the end of this step and of those that follow."""
        step = len(self.step_ends)
        last = step + self.requests[i].n_output - len(self.token_times[i]) - 1
        self.first_step[i], self.last_step[i] = step, last
        self.leaving.setdefault(last, []).append(i)
        self.decoding.append(i)
        self.attended.append(n_attended)

    def _stop(self, i: int) -> None:
        """Write down the tokens that a decoding request got since it started, and let it go."""
        self.token_times[i] += sorted(self.step_ends[self.first_step[i] :] + self.guessed_times[i])
        self.guessed_times[i] = []
        at = self.decoding.index(i)
        del self.decoding[at], self.attended[at]
        if self.pool is not None:
            self._free(i)

    def _free(self, i: int) -> None:
        assert self.pool is not None
        self.pool.free(i)
        self.in_pool.remove(i)

    def give_back(self) -> None:
        """Free what requests still hold."""
        for i in list(self.in_pool):
            self._free(i)

    def _hand_out_tokens(
        self, end_s: float, prompts: list[tuple[int, int, int]], gamma: int, kept: list[int]
    ) -> None:
        """End a step: who computed a whole text or decoded has a token more, or leaves."""
        step = len(self.step_ends)
        # A list of its own for every step: the cost function may keep what it was given.
        self.attended = [n + 1 for n in self.attended]
        if self.line.fair:
            for i in self.decoding:
                self.line.charge(i, 1)
        for at, n_kept in enumerate(kept):
            self._hand_out_guesses(at, gamma, n_kept, end_s)
        self.prefilling.clear()
        for i, new, before in prompts:
            if before + new < self._n_text(i):
                self.prefilling.append((i, before + new))
            else:
                self._start(i, self._n_text(i) + 1)
        self.step_ends.append(end_s)
        for i in self.leaving.pop(step, ()):
            self._stop(i)

    def _hand_out_guesses(self, at: int, gamma: int, n_kept: int, end_s: float) -> None:
        """Add the guesses that a sequence keeps to its token of this step; forget the others."""
        i = self.decoding[at]
        self.attended[at] += n_kept
        self.line.charge(i, gamma)
        if self.pool is not None:  # the token that came last has no place yet
            self.pool.truncate(i, self.attended[at] - 1)
        if n_kept:
            self.guessed_times[i] += [end_s] * n_kept
            self.leaving[self.last_step[i]].remove(i)
            self.last_step[i] -= n_kept
            self.leaving.setdefault(self.last_step[i], []).append(i)


def _check_budget(
    requests: Sequence[Request], token_budget: int | None, chunked: bool, regrows: bool
) -> None:
    """Raise a ValueError unless every prompt can be computed within the token budget."""
    if token_budget is None:
        if chunked:
            raise ValueError("token_budget must be given with the policy 'chunked', got None")
        return
    check_count("token_budget", token_budget, at_least=1)
    for i, r in enumerate(requests):
        longest = r.n_prompt + (r.n_output - 1 if regrows else 0)
        if longest > token_budget and not chunked:
            answer = f" and an answer of {r.n_output}, to compute again" if regrows else ""
            raise ValueError(
                f"token_budget {token_budget} must hold every prompt whole, got one of "
                f"{r.n_prompt} tokens{answer} (request {i})"
            )


def _check_pool(requests: Sequence[Request], pool: BlockPool | None) -> None:
    """Raise a ValueError unless every request fits the pool when it is there alone."""
    if pool is None:
        return
    n_slots = pool.n_free * pool.block_size
    for i, r in enumerate(requests):
        # The last token that comes out is never read, so it needs no place.
        if r.n_prompt + r.n_output - 1 > n_slots:
            raise ValueError(
                f"pool has {pool.n_free} free blocks of {pool.block_size} tokens, too few for a "
                f"prompt of {r.n_prompt} and an answer of {r.n_output} tokens (request {i})"
            )


def _check_arrivals(rate: float, n: int) -> None:
    if not 0 < rate < math.inf:
        raise ValueError(f"rate must be positive and finite, got {rate!r} requests/s")
    check_count("n", n)


def _check_choice(choices: tuple[str, ...], **chosen: str) -> None:
    for name, value in chosen.items():
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _check_seconds(**times: float) -> None:
    for name, value in times.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be finite and not negative, got {value!r}")
