"""Load: fine alone and slow together, idle cards, more cards that do not help, odd benchmarks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from firsttoken.appendix.debugging.finding import HEALTHY, Finding
from firsttoken.architectures import Architecture
from firsttoken.checks import check_count, check_seconds, check_share
from firsttoken.engine import Engine
from firsttoken.hardware import Accelerator
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.metrics import RequestTrace
from firsttoken.parallel import tensor_parallel_step
from firsttoken.throughput import decode_step
from firsttoken.units import format_time


def why_many_users_slow_it_down(
    rate: float, service_s: float, service_std_s: float = 0.0, places: int = 1
) -> Finding:
    """Say why a service that is fast for one is slow for many: overload, little room, or mixture.

    By Little's law rate × service time is how many are in service on average. At as many as there
    are places, the line grows without end. Near it, arrivals meet by chance; and requests of very
    different length make all others wait. A wait of a tenth of the service counts as none. Measure
    `service_s` under that load: a step with many in it takes longer than one alone.

    Units:  requests/s, seconds
    Raises: ValueError for a rate or time that is not positive.

    >>> why_many_users_slow_it_down(rate=30, service_s=2.0, places=48).cause
    'overload'
    """
    check_count("places", places, at_least=1)
    if not rate > 0 or not service_s > 0:
        raise ValueError(f"rate and service_s must be positive, got {rate!r} and {service_s!r}")
    check_seconds(service_std_s=service_std_s)
    busy = rate * service_s / places
    said = f"{rate:g}/s × {format_time(service_s)} is {100 * busy:.0f} % of {places} places"
    if busy >= 1:
        return Finding("overload", f"{said}: the line grows without end.")
    even = _wait(rate, service_s, places)
    mixed = even * (1 + (service_std_s / service_s) ** 2)
    if mixed <= 0.1 * service_s:
        return Finding(HEALTHY, f"{said}; the wait is {format_time(mixed)}.")
    said += f"; the wait is {format_time(mixed)}, were all alike {format_time(even)}"
    if even <= 0.1 * service_s:
        return Finding("mixture of lengths", f"{said}.")
    return Finding("too little room", f"{said}.")


def _wait(rate: float, service_s: float, places: int) -> float:
    """Return the mean wait for one of several places if all services are alike.

    Erlang's chance that all places are taken, by his recursion, and half the wait that exponential
    services would have: an approximation, good near full load.
    """
    asked, blocked = rate * service_s, 1.0
    for n in range(1, places + 1):
        blocked = asked * blocked / (n + asked * blocked)
    taken = blocked / (1 - asked / places * (1 - blocked))
    return taken * service_s / (places - asked) / 2


@dataclass(frozen=True)
class Load:
    """What an engine shows while it works: requests, and shares of blocks and time in use.

    running, waiting: requests on average (`vllm:num_requests_running`, `..._waiting`);
    cache_share: blocks in use (`vllm:kv_cache_usage_perc`); busy: share of the time in which the
    card computes.

    Raises: ValueError for negative numbers and shares outside 0 … 1.
    """

    running: float
    waiting: float
    max_batch: int
    cache_share: float
    busy: float

    def __post_init__(self) -> None:
        check_share(cache_share=self.cache_share, busy=self.busy)
        check_count("max_batch", self.max_batch, at_least=1)
        if self.running < 0 or self.waiting < 0:
            raise ValueError(f"running {self.running} and waiting {self.waiting} must be counts")

    @classmethod
    def of(cls, engine: Engine, busy: float) -> "Load":
        """Read an engine at work; how busy the card is only the card's own tools know."""
        stats, pool = engine.stats, engine.pool
        share = stats.usage.used / pool.n_blocks
        return cls(stats.running, stats.waiting, engine.max_batch, share, busy)


def why_the_card_is_idle(load: Load) -> Finding:
    """Say why throughput does not grow although the card has time.

    At 80 % busy it has none. Who waits may wait for a place, if 95 % of them are taken, or for
    blocks, if 90 % are. If nobody waits, and at most a quarter of the places is taken, too few ask
    at once; else the host is slower than the card.

    >>> load = Load(running=64, waiting=300, max_batch=64, cache_share=0.4, busy=0.3)
    >>> why_the_card_is_idle(load).cause
    'places'
    """
    said = (
        f"{load.running:g} of {load.max_batch} run, {load.waiting:g} wait, "
        f"{100 * load.cache_share:.0f} % of the blocks, busy {100 * load.busy:.0f} %"
    )
    if load.busy >= 0.8:
        return Finding(HEALTHY, f"{said}.")
    if load.waiting >= 1 and load.running >= 0.95 * load.max_batch:
        return Finding("places", f"{said}.")
    if load.waiting >= 1 and load.cache_share >= 0.9:
        return Finding("blocks", f"{said}.")
    if load.waiting < 1 and 4 * load.running <= load.max_batch:
        return Finding("clients", f"{said}.")
    return Finding("host", f"{said}.")


def why_a_larger_batch_does_not_help(
    arch: Architecture,
    accelerator: Accelerator,
    batch: int,
    context: int,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
) -> Finding:
    """Say what stops throughput from growing when the batch is doubled.

    Memory that does not hold it; arithmetic, of which each request has its own; or the cache, which
    each request brings along: once its bytes outweigh the weights, little is shared any more.

    Units:  context in tokens per request
    Raises: ValueError as `decode_step`.
    """
    shape = (dtype, kv_dtype, "layers")
    one, two = (decode_step(arch, accelerator, b, context, *shape) for b in (batch, 2 * batch))
    gain = two.tokens_per_s / one.tokens_per_s
    said = f"From {batch} to {2 * batch} at {context} tokens: {gain:.2f} × the tokens per second"
    if not two.fits:
        return Finding("does not fit", f"{said}, but {two.memory_bytes / 1e9:.0f} GB.")
    if gain > 1.5:
        return Finding(HEALTHY, f"{said}.")
    short = [decode_step(arch, accelerator, b, 1, *shape).tokens_per_s for b in (batch, 2 * batch)]
    if short[1] / short[0] > 1.5:
        return Finding("cache", f"{said}; with short texts {short[1] / short[0]:.2f} ×.")
    return Finding("arithmetic", f"{said}; with short texts {short[1] / short[0]:.2f} ×, too.")


def why_more_cards_do_not_help(
    arch: Architecture,
    accelerator: Accelerator,
    n: int,
    batch: int,
    context: int,
    *,
    link_bytes_per_s: float | None = None,
    latency_s: float = 5e-6,
    replicas: bool = False,
) -> Finding:
    """Say why n cards are not nearly n times as fast.

    Cards that split each layer add up their parts twice a layer (link), and hold copies of the
    cache where there are more of them than KV heads. Copies of the whole model (`replicas`) share
    the load: what each gets is a smaller batch, which reads all weights as before (load).

    Units:  bytes/s one way, seconds per message
    Raises: ValueError for one card, and as `tensor_parallel_step`.
    """
    check_count("n", n, at_least=2)
    if link_bytes_per_s is not None:
        accelerator = replace(accelerator, link_bandwidth=link_bytes_per_s)
    alone = decode_step(arch, accelerator, batch, context)
    if replicas:
        each = decode_step(arch, accelerator, max(1, batch // n), context)
        gain = alone.step_s / each.step_s
        said = (
            f"{n} copies with {max(1, batch // n)} of {batch} requests each: {gain:.1f} × as fast"
        )
        return Finding(HEALTHY if gain > 0.7 * n else "load", f"{said}.")
    together = tensor_parallel_step(arch, accelerator, n, batch, context, latency_s=latency_s)
    link_s = together.step_s - alone.step_s / n
    heads = 1 if arch.latent_dim is not None else arch.n_kv_heads
    copies = kv_cache_bytes(arch, context, batch) * max(0.0, 1 / heads - 1 / n)
    copies_s = copies / accelerator.bandwidth
    gain = alone.step_s / (together.step_s + copies_s)
    said = f"{n} cards: {gain:.1f} × as fast"
    if gain > 0.7 * n:
        return Finding(HEALTHY, f"{said}.")
    if copies_s > link_s:
        return Finding("cache is copied", f"{said}; {heads} KV heads for {n}.")
    link = link_s / (together.step_s + copies_s)
    return Finding("link", f"{said}; {100 * link:.0f} % of a step is adding up.")


@dataclass(frozen=True)
class Benchmark:
    """What a batch of a benchmark did: tokens of prompts and answers, its time, and the width.

    Units:  tokens, seconds
    Raises: ValueError for no answers and a time that is not positive.
    """

    prompts: Sequence[int]
    answers: Sequence[int]
    seconds: float

    def __post_init__(self) -> None:
        if not self.answers or len(self.prompts) != len(self.answers) or not self.seconds > 0:
            raise ValueError(
                f"answers must be as many as prompts, at least one, in a positive time; got "
                f"{len(self.answers)}, {len(self.prompts)} and {self.seconds!r} s"
            )


def why_the_benchmark_is_too_good(reported: float, run: Benchmark) -> Finding:
    """Say which tokens a figure of tokens per second counts.

    Those of the answers are what readers get. Some count the prompts as well, some every row up to
    the longest answer, the padding too, and some are another run.

    Units:  tokens per second

    >>> run = Benchmark(prompts=[512] * 4, answers=[32, 64, 64, 256], seconds=4.0)
    >>> why_the_benchmark_is_too_good(256.0, run).cause
    'padding counted'
    """
    n, longest = len(run.answers), max(run.answers)
    counts = {
        HEALTHY: sum(run.answers),
        "padding counted": n * longest,
        "prompts counted": sum(run.prompts) + sum(run.answers),
        "prompts and padding counted": n * (max(run.prompts) + longest),
    }
    useful = counts[HEALTHY] / run.seconds
    said = f"{reported:.0f} tokens/s are said, readers get {useful:.0f}"
    for name, count in counts.items():
        if abs(reported * run.seconds / count - 1) < 0.02:
            return Finding(name, f"{said}.")
    return Finding("another run", f"{said}; no way to count this one gives it.")


def why_the_stream_comes_at_once(
    client: RequestTrace, server: RequestTrace, bursts: float = 0.2
) -> Finding:
    """Say where a stream is held up, by when its tokens left the server and reached the client.

    Both traces have one clock. Tokens that left one by one and arrive within `bursts` of that time
    were kept on the way (a proxy, compression). Tokens that left together, a millisecond apart or
    less, were never streamed. A delay of more than half of the server's TTFT that is the same for
    all is the network's.

    Raises: ValueError for traces of other lengths, or fewer than four tokens.
    """
    if client.n_output != server.n_output or client.n_output < 4:
        raise ValueError(
            f"client ({client.n_output}) and server ({server.n_output}) must have the same tokens, "
            "at least 4"
        )
    sent, came = (np.asarray(t.token_times_s) for t in (server, client))
    spread = [float(x[-1] - x[0]) for x in (sent, came)]
    delay = float(np.median(came - sent))
    left, arrived = (format_time(x) for x in spread)
    said = f"{len(sent)} tokens left within {left}, came within {arrived}"
    if spread[0] < 1e-3 * len(sent):
        return Finding("not streamed", f"{said}.")
    if spread[1] < bursts * spread[0]:
        return Finding("held on the way", f"{said}.")
    if delay > 0.5 * server.ttft:
        return Finding("network", f"{said}, each {format_time(delay)} later.")
    return Finding(HEALTHY, f"{said}.")
