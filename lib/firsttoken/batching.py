"""Many requests, one model: a simulator of batching on a virtual clock."""

import csv
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path

import numpy as np

from firsttoken.metrics import RequestTrace

# Seconds of one step, from its prompts (new tokens, tokens cached before) and from the tokens that
# each decoding sequence attends to.
StepCost = Callable[[list[tuple[int, int]], list[int]], float]
Length = int | Callable[[np.random.Generator], int]

POLICIES = ("continuous",)


@dataclass(frozen=True)
class Request:
    """A request as it reaches the service: when, how long its prompt is and its answer will be.

    The simulator knows the length of the answer; no scheduling decision looks at it.

    Units:  seconds, tokens
    Raises: ValueError for an arrival that is not finite, and lengths below one token.

    >>> Request(arrival_s=0.5, n_prompt=512, n_output=128)
    Request(arrival_s=0.5, n_prompt=512, n_output=128)
    """

    arrival_s: float
    n_prompt: int
    n_output: int

    def __post_init__(self) -> None:
        if not isinstance(self.arrival_s, Real) or not math.isfinite(self.arrival_s):
            raise ValueError(f"arrival_s must be a finite number, got {self.arrival_s!r}")
        _check_counts(1, n_prompt=self.n_prompt, n_output=self.n_output)
        # NumPy's scalars, as a generator draws them, would make every sum of the simulator slow.
        object.__setattr__(self, "arrival_s", float(self.arrival_s))
        object.__setattr__(self, "n_prompt", int(self.n_prompt))
        object.__setattr__(self, "n_output", int(self.n_output))


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
    if not 0 < rate < math.inf:
        raise ValueError(f"rate must be positive and finite, got {rate!r} requests/s")
    _check_counts(0, n=n)
    arrivals = np.cumsum(rng.exponential(1 / rate, size=n)).tolist()
    prompts, outputs = (
        [length(rng) if callable(length) else length for _ in range(n)]
        for length in (n_prompt, n_output)
    )
    return [Request(*fields) for fields in zip(arrivals, prompts, outputs, strict=True)]


def load_trace(path: str | Path) -> list[Request]:
    """Read requests from a CSV file with the columns arrival_s, n_prompt and n_output.

    Other columns are left alone, and the order of the file is kept. Published traces convert to
    it: seconds since the first request, prompt tokens, generated tokens.

    Units:  seconds, tokens
    Raises: ValueError for a missing column, and for a value that is no such number, with its line.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "trace.csv")
    ...     _ = path.write_text("arrival_s,n_prompt,n_output\\n0.5,512,128\\n")
    ...     load_trace(path)
    [Request(arrival_s=0.5, n_prompt=512, n_output=128)]
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


def simulate(
    requests: Iterable[Request],
    policy: str,
    cost: StepCost,
    *,
    max_batch: int,
    token_budget: int | None = None,
) -> list[RequestTrace]:
    """Serve the requests on a virtual clock; return their traces, in the order of the requests.

    Policy "continuous": who takes part is decided anew before every step. Requests are admitted in
    order of arrival (equal arrivals in the order given) while fewer than `max_batch` run; the first
    that does not fit holds back those behind it. A step takes the whole prompt of each request that
    it admits and one token of each that runs already, and lasts `cost(prefills, decodes)`:

    - prefills: (new tokens, tokens cached before) of each prompt, the latter 0 here;
    - decodes: how many tokens each running sequence attends to, the new one among them. The first
      decode after a prompt of 10 attends to 11.

    At its end every request in it gets one token: a prompt its first, the others their next. Who
    has all its tokens leaves at once. Who arrives during a step waits for its end. An idle service
    sleeps until the next arrival.

    `token_budget` bounds the tokens of a step: those of its prompts and one per running sequence.

    Units:  seconds, tokens
    Raises: ValueError for an unknown policy, a max_batch or token_budget below 1, a prompt longer
            than the token budget, and a cost that is negative or not finite.
    Source: Yu et al. 2022, Orca (OSDI'22): iteration-level scheduling

    >>> def cost(prefills, decodes):
    ...     return 1.0
    >>> traces = simulate([Request(0.0, 10, 3), Request(0.5, 10, 1)], "continuous", cost,
    ...                   max_batch=2)
    >>> [trace.token_times_s for trace in traces]
    [(1.0, 2.0, 3.0), (2.0,)]
    """
    if policy not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}")
    _check_counts(1, max_batch=max_batch)
    if token_budget is not None:
        _check_counts(1, token_budget=token_budget)
    budget = math.inf if token_budget is None else token_budget
    requests = list(requests)
    for i, request in enumerate(requests):
        if request.n_prompt > budget:
            raise ValueError(
                f"token_budget {budget} must hold every prompt whole, got one of "
                f"{request.n_prompt} tokens (request {i})"
            )
    queue = sorted(range(len(requests)), key=lambda i: requests[i].arrival_s)
    arrivals = [requests[i].arrival_s for i in queue]
    arrivals.append(math.inf)  # nobody comes after the last
    n_admitted, clock = 0, -math.inf
    step_ends: list[float] = []
    # A request's tokens come in consecutive steps, so the first one says when they all came.
    first_step = [0] * len(requests)
    decodes: list[int] = []  # of each running sequence: the tokens it attends to in this step
    last_steps: list[int] = []  # and the step that gives it its last token
    next_leave = math.inf  # the earliest of those

    while decodes or n_admitted < len(queue):
        if not decodes:
            clock = max(clock, arrivals[n_admitted])
        step = len(step_ends)
        prefills, started, n_tokens = [], [], len(decodes)
        while arrivals[n_admitted] <= clock and len(decodes) + len(prefills) < max_batch:
            i = queue[n_admitted]
            request = requests[i]
            n_tokens += request.n_prompt
            if n_tokens > budget:
                break
            n_admitted += 1
            first_step[i] = step
            prefills.append((request.n_prompt, 0))
            started.append(step + request.n_output - 1)

        seconds = cost(prefills, decodes)
        if not 0 <= seconds < math.inf:
            raise ValueError(f"cost must give finite seconds, none negative, got {seconds!r}")
        clock += seconds
        step_ends.append(clock)

        # A list of its own for every step: the cost function may keep what it was given.
        decodes = [attended + 1 for attended in decodes]
        if prefills:
            decodes += [n_prompt + 1 for n_prompt, _ in prefills]
            last_steps += started
            next_leave = min(next_leave, *started)
        if next_leave == step:
            decodes = [n for n, last in zip(decodes, last_steps, strict=True) if last > step]
            last_steps = [last for last in last_steps if last > step]
            next_leave = min(last_steps, default=math.inf)

    return [
        RequestTrace(r.arrival_s, tuple(step_ends[at : at + r.n_output]), r.n_prompt)
        for r, at in zip(requests, first_step, strict=True)
    ]


def _check_counts(at_least: int, **counts: int) -> None:
    for name, value in counts.items():
        if not isinstance(value, Integral) or value < at_least:
            raise ValueError(f"{name} must be a whole number of at least {at_least}, got {value!r}")
