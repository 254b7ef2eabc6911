"""It is slow: the first token, the second request, every token, now and then."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from firsttoken.appendix.debugging.finding import HEALTHY, Finding
from firsttoken.appendix.debugging.text import common_prefix
from firsttoken.architectures import Architecture
from firsttoken.batching import StepRecord
from firsttoken.checks import check_count, check_seconds
from firsttoken.engine import Engine
from firsttoken.hardware import Accelerator
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.metrics import RequestTrace, percentile
from firsttoken.sampling import SamplingParams
from firsttoken.speculative import best_gamma, speedup
from firsttoken.throughput import decode_step, prefill
from firsttoken.units import bytes_per_element, format_time


def why_the_first_token_is_slow(
    ttft_s: float,
    queue_s: float,
    n_prompt: int,
    arch: Architecture,
    accelerator: Accelerator,
    *,
    n_cached: int = 0,
    promised_s: float = 1.0,
    dtype: str = "bf16",
) -> Finding:
    """Say where the time to the first token went: the line, the prompt, or neither.

    The prompt's own time is at least that of `throughput.prefill` for what the prefix cache did
    not have, and real kernels need up to twice that. What is left is neither: other prompts in the
    same steps, the tokenizer, images, the network.

    Units:  seconds, tokens
    Raises: ValueError for negative times, more time in the line than in all, and as `prefill`.
    """
    check_seconds(ttft_s=ttft_s, queue_s=queue_s, promised_s=promised_s)
    if queue_s > ttft_s:
        raise ValueError(f"queue_s must be at most ttft_s, {ttft_s}, got {queue_s}")
    if not 0 <= n_cached < n_prompt:
        raise ValueError(f"n_cached must lie in 0 … {n_prompt - 1}, got {n_cached}")
    reading = prefill(arch, accelerator, n_prompt - n_cached, dtype=dtype)
    said = (
        f"Of {format_time(ttft_s)}, {format_time(queue_s)} in the line and at least "
        f"{format_time(reading)} for {n_prompt - n_cached} tokens"
    )
    if ttft_s - queue_s < 0.8 * reading:
        return Finding("numbers do not fit", f"{said}: more cards, fewer bits, or a cached prefix.")
    if ttft_s <= promised_s:
        return Finding(HEALTHY, f"{said}: within {format_time(promised_s)}.")
    prompt_s = min(2 * reading, ttft_s - queue_s)
    rest = ttft_s - queue_s - prompt_s
    return Finding(max((queue_s, "queue"), (prompt_s, "prompt"), (rest, "overhead"))[1], f"{said}.")


@dataclass(frozen=True)
class SecondRequest:
    """What is known of a request that came after another one.

    n_common: tokens that both prompts begin with; n_cached: what the prefix cache had of it
    (`usage.prompt_tokens_details.cached_tokens` in OpenAI's answers); queue_s: its time in the
    line; preemptions: how often it had to give its blocks back; again_s: time to the first token
    when the very same request was sent once more.

    Units:  seconds, tokens
    Raises: ValueError for negative times and counts that do not fit.
    """

    ttft_s: float
    queue_s: float
    n_prompt: int
    n_common: int
    n_cached: int
    preemptions: int = 0
    block_size: int = 16
    again_s: float | None = None

    def __post_init__(self) -> None:
        check_seconds(ttft_s=self.ttft_s, queue_s=self.queue_s, again_s=self.again_s or 0.0)
        check_count("n_prompt", self.n_prompt, at_least=1)
        check_count("block_size", self.block_size, at_least=1)
        check_count("preemptions", self.preemptions)
        for name in ("n_common", "n_cached"):
            if check_count(name, getattr(self, name)) > self.n_prompt:
                raise ValueError(
                    f"{name} must be at most n_prompt, {self.n_prompt}, got {getattr(self, name)}"
                )
        if self.queue_s > self.ttft_s:
            raise ValueError(f"queue_s must be at most ttft_s, {self.ttft_s}, got {self.queue_s}")


def ask_twice(
    engine: Engine, first: Sequence[int], second: Sequence[int], max_tokens: int = 16
) -> SecondRequest:
    """Send a request, and as soon as it writes a second one; return what is known of the second.

    Raises: ValueError for an engine at work, and as `Engine.submit`.
    """
    if engine.unfinished:
        raise ValueError("engine has requests of its own, expected an idle one")
    steps: list[StepRecord] = []
    hook, engine.on_step = engine.on_step, steps.append
    try:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        writing: list[int] = []
        engine.submit(first, params, on_token=writing.append, ignore_eos=True)
        while not writing:
            engine.step()
        n_steps, came_s = len(steps), engine.now_s()
        firsts: list[float] = []
        asked = engine.submit(
            second, params, on_token=lambda _: firsts.append(engine.now_s()), ignore_eos=True
        )
        engine.run()
    finally:
        engine.on_step = hook
    mine = [s for s in steps[n_steps:] if asked in [i for i, _, _ in s.prefills]]
    # In the line: from the step that could have taken it to the one that did.
    queue_s = mine[0].start_s - steps[n_steps].start_s
    return SecondRequest(
        ttft_s=firsts[0] - came_s,
        queue_s=queue_s,
        n_prompt=len(second),
        n_common=common_prefix(first, second),
        n_cached=next(cached for i, _, cached in mine[0].prefills if i == asked),
        preemptions=sum(asked in s.preempted for s in steps),
        block_size=engine.pool.block_size,
    )


def why_the_second_request_is_slow(second: SecondRequest) -> Finding:
    """Say why the second request is slow although the first was fast.

    It may wait for a place until the first is done (queue), be sent back for lack of blocks
    (preempted), begin with other tokens, so that nothing can be reused (another beginning), or
    find nothing although it begins alike (prefix not reused). And it may be the first to need some
    kernel, as the one behind a cached prefix, which is then compiled while it waits; the same
    request is fast when it is sent once more (compiled on the way). Where nothing was reused,
    sending it once more proves nothing, since it then finds its own prefix.

    >>> slow = SecondRequest(ttft_s=2.4, queue_s=0.1, n_prompt=2000, n_common=0, n_cached=0)
    >>> print(why_the_second_request_is_slow(slow))
    another beginning: 0 of 2000 tokens are the first's beginning; a block takes 16.
    """
    s = second
    if s.preemptions:
        return Finding("preempted", f"It gave its blocks back {s.preemptions}×, and began anew.")
    if 2 * s.queue_s > s.ttft_s:
        return Finding(
            "queue", f"{100 * s.queue_s / s.ttft_s:.0f} % of its wait passed in the line."
        )
    said = f"{s.n_common} of {s.n_prompt} tokens are the first's beginning"
    if s.n_common < s.block_size:
        return Finding("another beginning", f"{said}; a block takes {s.block_size}.")
    if s.n_cached + s.block_size < s.n_common:
        return Finding("prefix not reused", f"{said}, and {s.n_cached} came from the cache.")
    if s.again_s is not None and s.ttft_s > 3 * s.again_s:
        once, more = format_time(s.ttft_s), format_time(s.again_s)
        return Finding("compiled on the way", f"{once}, and {more} when it was sent once more.")
    return Finding(HEALTHY, f"{s.n_cached} of {s.n_prompt} tokens came from the cache.")


def why_only_some_requests_are_slow(
    ttfts_s: Sequence[float], shapes: Sequence[object], factor: float = 3.0
) -> Finding:
    """Say whether slow requests are those that come first: of all, or of a new shape.

    Weights are read and kernels compiled when they are first needed. Where every new shape (a batch
    size, a length, an adapter) is slow once, each is compiled on its own. `shapes` names that of
    each request.

    Units:  seconds
    Raises: ValueError for fewer than four requests, or other numbers of times and shapes.

    >>> why_only_some_requests_are_slow([9.0, 0.2, 0.2, 0.2, 0.2], [1, 1, 1, 2, 2]).cause
    'start'
    """
    times, shapes = np.asarray(ttfts_s, float), list(shapes)
    if len(times) < 4 or len(shapes) != len(times):
        raise ValueError(
            f"ttfts_s and shapes must be as many, at least 4; got {len(times)} and {len(shapes)}"
        )
    typical = float(np.median(times))
    slow = [i for i, t in enumerate(times) if t > factor * typical]
    firsts = [i for i, shape in enumerate(shapes) if shape not in shapes[:i]]
    said = f"{len(slow)} of {len(times)} took over {factor:g} × {format_time(typical)}"
    if not slow:
        return Finding(HEALTHY, f"{said}.")
    if slow == [0]:
        return Finding("start", f"{said}: the very first.")
    if set(slow) <= set(firsts):
        return Finding("new shape", f"{said}, each the first of its shape.")
    return Finding("neither first nor new", f"{said}, and not only the first of a shape.")


def why_tokens_are_slow(
    tpot_s: float,
    arch: Architecture,
    accelerator: Accelerator,
    batch: int,
    context: int,
    *,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    promised_s: float = 0.05,
) -> Finding:
    """Say what a slow step waits for: bytes of weights or of the cache, arithmetic, or neither.

    A step cannot take less than it takes to read what it needs, or to compute it in bf16. Where it
    takes more than twice that, the time goes elsewhere: launches, the host, other prompts in the
    same steps.

    Units:  seconds; context in tokens per sequence
    Raises: ValueError for a time that is not positive, and as `decode_step`.
    """
    check_seconds(tpot_s=tpot_s, promised_s=promised_s)
    bytes_s = decode_step(arch, accelerator, batch, context, dtype, kv_dtype).step_s
    bound = max(
        bytes_s,
        decode_step(
            arch, accelerator, batch, context, dtype, kv_dtype, "roofline", compute_dtype="bf16"
        ).step_s,
    )
    said = f"{format_time(tpot_s)} per token, {tpot_s / bound:.1f} × the least"
    if tpot_s < 0.8 * bound and not arch.n_experts:
        return Finding(
            "numbers do not fit", f"{said}: several tokens a pass, more cards, another batch."
        )
    if tpot_s <= promised_s:
        return Finding(HEALTHY, f"{said}, within {format_time(promised_s)}.")
    if tpot_s > 2 * bound:
        return Finding("overhead", f"{said}.")
    if bound > bytes_s:
        return Finding("arithmetic", f"{said}: a smaller batch.")
    cache = kv_cache_bytes(arch, context, batch, kv_dtype)
    share = cache / (cache + arch.n_params * bytes_per_element(dtype))
    kind = "cache" if share > 0.5 else "weights"
    return Finding(kind, f"{said}; the cache is {100 * share:.0f} % of these bytes.")


@dataclass(frozen=True)
class Stream:
    """One reader's tokens and what else happened, on one clock.

    token_times_s: when the reader's tokens came; prefills: (end of a step, prompt tokens in it);
    preemptions_s: when this request had to give its blocks back.

    Units:  seconds, tokens
    Raises: ValueError for fewer than four tokens.
    """

    token_times_s: Sequence[float]
    prefills: Sequence[tuple[float, int]] = field(default=())
    preemptions_s: Sequence[float] = field(default=())

    def __post_init__(self) -> None:
        if len(self.token_times_s) < 4:
            raise ValueError(f"token_times_s must hold 4 times or more, got {self.token_times_s}")

    @classmethod
    def of(cls, trace: RequestTrace, request: int, steps: Sequence[StepRecord]) -> "Stream":
        """Return the stream of a request, from the steps that `simulate` or an engine recorded."""
        return cls(
            trace.token_times_s,
            [(s.end_s, sum(n for i, n, _ in s.prefills if i != request)) for s in steps],
            [s.start_s for s in steps if request in s.preempted],
        )


def why_the_stream_has_gaps(stream: Stream, factor: float = 3.0) -> Finding:
    """Say what happened during the longest gap of a stream.

    Its own preemption; a prompt of others that was read in the same step; or nothing that the
    engine knows of, so that the host or the network is to be looked at. A gap up to `factor` times
    the usual one is none. Whether so few tokens of a prompt take so long, `prefill` tells.

    Units:  factor in typical gaps
    """
    times = np.asarray(stream.token_times_s, float)
    gaps = np.diff(times)
    # Tokens of one clump, as speculation makes them, have no gap between them.
    at, typical = int(gaps.argmax()), float(np.median(gaps[gaps > 0] if gaps.any() else gaps))
    start, end = times[at], times[at + 1]
    said = f"The longest gap is {format_time(gaps[at])}, the usual one {format_time(typical)}"
    if gaps[at] <= factor * typical:
        return Finding(HEALTHY, f"{said}.")
    if any(start <= t < end for t in stream.preemptions_s):
        return Finding("preempted", f"{said}; it had given its blocks back.")
    read = [n for t, n in stream.prefills if start < t <= end + 1e-9]
    if read and max(read) > 0:
        return Finding("prompt in one piece", f"{said}; {max(read)} tokens of a prompt were read.")
    return Finding("outside the engine", f"{said}; no prompt and no preemption fell into it.")


def why_p99_is_high(traces: Sequence[RequestTrace], factor: float = 4.0) -> Finding:
    """Say what the slowest hundredth of requests have in common.

    They may be so few that the number means little; have much to write, or much to read; have
    waited in the line; or have been held up while they wrote. The typical request is the one in the
    middle. More than `factor` / 2 times its tokens is much.

    Raises: ValueError for no traces.
    """
    traces = list(traces)
    if not traces:
        raise ValueError("traces must hold at least one request, got none")
    whole = [t.e2e for t in traces]
    p50, p99 = percentile(whole, 50), percentile(whole, 99)
    said = f"p99 is {p99 / p50:.1f} × p50"
    if p99 <= factor * p50:
        return Finding(HEALTHY, f"{said}, of {len(traces)} requests.")
    if len(traces) < 200:
        return Finding(
            "too few requests", f"{said}, of {len(traces)}: it is one of the slowest two."
        )
    slow = [t for t in traces if t.e2e >= p99]
    typical = float(np.median([t.n_output for t in traces]))
    waited = float(np.mean([t.ttft / t.e2e for t in slow]))
    stalled = float(np.mean([max(t.itl, default=0.0) / t.e2e for t in slow]))
    longer = float(np.mean([t.n_output for t in slow])) / typical
    if longer > factor / 2 and waited < 0.5:
        return Finding("long answers", f"{said}; the slowest write {longer:.1f} × as much.")
    usual, read = (float(np.median([t.n_prompt for t in group])) for group in (traces, slow))
    if waited > stalled and read > factor / 2 * usual:
        return Finding(
            "long prompts", f"{said}; the slowest read {read:,.0f} tokens, not {usual:,.0f}."
        )
    if waited > stalled:
        return Finding("queue", f"{said}; {100 * waited:.0f} % of it before the first token.")
    return Finding("stalls", f"{said}; one gap is {100 * stalled:.0f} % of it.")


def why_speculation_is_slower(
    alpha: float, gamma: int, cost_ratio: float, verify_cost: float = 1.0
) -> Finding:
    """Say which number makes speculation slower than plain decoding.

    Asked of each in turn: were it ideal, would speculation pay? Fewer guesses; checks for free, as
    in a small batch; a draft for free. If none of them helps, too few guesses are kept.

    Units:  alpha: chance that a guess is kept if all before it were, more than the share of all
            guesses that are kept; cost_ratio and verify_cost in steps of the target
    Raises: ValueError as `speedup`.

    >>> why_speculation_is_slower(alpha=0.7, gamma=4, cost_ratio=0.1, verify_cost=3.5).cause
    'checks are not free'
    """
    now = float(speedup(alpha, gamma, cost_ratio, verify_cost))
    said = f"{now:.2f} × plain decoding at α {alpha:.2f}, γ {gamma}, c {cost_ratio:.2f}"
    if now >= 1:
        return Finding(HEALTHY, f"{said}.")
    if verify_cost > 1 and speedup(alpha, gamma, cost_ratio) >= 1:
        return Finding("checks are not free", f"{said}; a check costs {verify_cost:.1f} steps.")
    fewer = best_gamma(alpha, cost_ratio, verify_cost, max_gamma=gamma)
    if fewer:
        best = float(speedup(alpha, fewer, cost_ratio, verify_cost))
        return Finding("too many guesses", f"{said}; with γ {fewer} it is {best:.2f}.")
    if speedup(alpha, gamma, 0.0, verify_cost) >= 1.2:
        return Finding("draft too slow", f"{said}; a draft for free would pay.")
    return Finding("too few guesses kept", f"{said}; not even a draft for free would pay much.")


def why_the_prefix_cache_never_hits(
    prompts: Sequence[Sequence[int]],
    n_cached: Sequence[int],
    n_cached_at_once: int,
    block_size: int = 16,
) -> Finding:
    """Say why prompts find nothing in the prefix cache.

    `n_cached` says how many tokens of each prompt were found, in the order in which they came, one
    done before the next; `n_cached_at_once` how many when the last prompt was sent once more,
    right away. Only whole blocks of a common beginning can be found, as long as they are there.

    Raises: ValueError for other numbers of prompts and counts, and fewer than two prompts.
    """
    if len(prompts) < 2 or len(n_cached) != len(prompts):
        raise ValueError(
            f"prompts ({len(prompts)}) and n_cached ({len(n_cached)}) must be as many, at least 2"
        )
    check_count("block_size", block_size, at_least=1)
    common = [
        max(common_prefix(prompt, other) for other in prompts[:i])
        for i, prompt in enumerate(prompts)
        if i > 0
    ]
    could = sum(n // block_size * block_size for n in common)
    said = f"{sum(n_cached[1:])} of {sum(map(len, prompts[1:]))} tokens were found"
    if could and 2 * sum(n_cached[1:]) >= could:
        return Finding(HEALTHY, f"{said}, {could} could be: no more is common.")
    if max(common) < 2:
        return Finding("another beginning", f"{said}: no two prompts begin alike.")
    if could == 0:
        return Finding(
            "shorter than a block", f"{said}: {max(common)} are common, a block takes {block_size}."
        )
    if n_cached_at_once < block_size <= len(prompts[-1]) - 1:
        return Finding("switched off", f"{said}, and none of a prompt sent twice in a row.")
    return Finding("evicted", f"{said}, and {n_cached_at_once} of a prompt sent twice in a row.")
