"""One run of the simulator: its options, and what they may be."""

import math
from collections.abc import Callable, Iterable, Sequence

from firsttoken.batching.queue import WaitingQueue
from firsttoken.batching.records import Request, StepRecord
from firsttoken.batching.scheduler import Scheduler, StepCost
from firsttoken.batching.speculation import Speculation
from firsttoken.checks import check_choice, check_count, check_seconds
from firsttoken.metrics import RequestTrace
from firsttoken.paging import BlockPool

POLICIES = ("static", "dynamic", "continuous", "chunked")
PREEMPTIONS = ("recompute", "swap")


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

    At its end each decoding sequence gets a token, and each complete prompt its first. A request
    that has all its tokens leaves at once; no padding is charged. One that arrives during a step
    waits for its end. `policy` says when waiting requests may join, up to `max_batch` at a time:

    - "static": when nobody runs, and `max_batch` requests wait or no more will come.
    - "dynamic": when nobody runs, with whoever waits. `max_wait_s` lets the first of them wait
      that long for others, until there are `max_batch`.
    - "continuous": before every step.
    - "chunked": before every step, and prompts are cut to fill the step up to `token_budget`:
      decoding sequences take their token first, then the prompt that was cut, then new ones.

    `token_budget` bounds the tokens of a step: those of its prompts and one per decoding sequence.

    `pool` bounds the cache. A request joins when blocks for its whole prompt are free, and needs
    one place more for each token it attends to. Where no block is free, the running request that is
    last in the queue's order gives all its blocks back and waits again. With `preemption`
    "recompute" its prompt and answer so far become one prompt; with "swap" what it had cached goes
    to the host's memory, which is never full, and comes back: each way takes `swap_token_s` per
    token.

    The queue's order: lower priority numbers first, then earlier arrivals, then the order given.
    The first who does not fit holds back all behind. With `aging_s`, waiting that long is worth one
    priority, so that nobody starves. With `fair` clients take turns: the next request is that of
    the client for whom the fewest tokens have been computed. A client that comes back begins level
    with the one who got least, so that nothing is saved up.

    With `speculation` each decoding sequence makes gamma guesses in a step, and gets those kept and
    one token more, all at its end; what goes beyond its answer is dropped. The check is a pass over
    gamma + 1 new tokens, and so `cost` finds it among the prefills, behind the prompts: (gamma + 1,
    tokens cached before). All gamma + 1 count in the token budget and for `fair`, and have places
    in the pool until the step ends. Guesses preempt nobody: where budget or pool cannot hold gamma
    of them for all, gamma is lowered for this step. They come before prompts, which get what
    decoding leaves. A request that comes back from the host's memory makes none in its first step.
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
    check_choice("policy", policy, POLICIES)
    check_choice("preemption", preemption, PREEMPTIONS)
    check_count("max_batch", max_batch, at_least=1)
    check_seconds(swap_token_s=swap_token_s, max_wait_s=max_wait_s)
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

    scheduler = Scheduler(
        requests=requests,
        cost=cost,
        policy=policy,
        max_batch=max_batch,
        budget=math.inf if token_budget is None else token_budget,
        pool=pool,
        swaps=preemption == "swap",
        swap_token_s=swap_token_s,
        max_wait_s=max_wait_s,
        queue=WaitingQueue(requests, aging_s, fair),
        speculation=speculation,
        on_step=on_step,
    )
    try:
        while scheduler.unfinished():
            scheduler.step()
    finally:  # `cost` or `on_step` may raise: the pool is the caller's
        scheduler.free_all()
    return [
        RequestTrace(request.arrival_s, tuple(times), request.n_prompt)
        for request, times in zip(requests, scheduler.progress.token_times, strict=True)
    ]


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
