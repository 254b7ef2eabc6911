"""Throughput and latency of decoding: what a batch, a context and a machine allow, in closed form.

One step gives every sequence of the batch one token. It reads the weights once, whoever shares
them, and each sequence's own cache: large batches buy tokens per second with time per token.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from firsttoken.architectures import Architecture
from firsttoken.checks import check_count
from firsttoken.hardware import Accelerator
from firsttoken.kv_cache.sizes import kv_cache_bytes, state_bytes
from firsttoken.roofline import Cost, model_cost
from firsttoken.units import bytes_per_element

MODELS = ("memory", "roofline", "layers")
"""Ways to time a pass, from the plainest to the one that overlaps least."""


@dataclass(frozen=True)
class Step:
    """One decode step of a batch: its time, the batch's tokens per second, and what it occupies.

    Each request waits `step_s` for its next token; `tokens_per_s` counts all of them together.

    Units:  seconds, tokens per second, bytes; `fits`: whether the memory holds the bytes.
    """

    step_s: float
    tokens_per_s: float
    memory_bytes: float
    fits: bool


def decode_step(
    arch: Architecture,
    accelerator: Accelerator,
    batch: int,
    context: int,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    model: str = "memory",
    compute_dtype: str | None = None,
) -> Step:
    """Return the least time of one decode step at `context` attended tokens per sequence.

    - "memory": everything resident is read once, (weights + cache) / bandwidth. Weights are all
      of `n_params`, the embedding included. Exact to a few percent for a dense model in a small
      batch; too long for a mixture of experts, most of which a small batch leaves unread; too
      short from the ridge point on (some 300 sequences on an H100 in bf16), where the linear
      layers wait for their arithmetic.
    - "roofline": the FLOPs and bytes of the pass (`roofline.model_cost`), perfectly overlapped.
    - "layers": the linear layers, the experts and the attention run one after another, each at
      its own roofline. A batch that keeps the arithmetic busy in the linear layers still waits
      for memory in the attention, so this is never less than "roofline".

    All three leave out launches, synchronisation and imperfect kernels: bounds, no promises.
    `fits` leaves out activations and the runtime: it lets in batches that are a little too large.
    `compute_dtype` is what the products run in where the weights are stored in another format
    (int4 weights multiplied as bf16); None: the format of the weights.

    Units:  bytes: weights and the cache of `context` tokens, whichever model.
    Raises: ValueError for a batch or context that is no positive integer, an unknown model or
            dtype, and where the accelerator lists no rate for the dtype ("memory" needs none).
    Source: the memory-bound model: Pope et al. 2022, arXiv:2211.05102, sec. 2

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> from firsttoken.hardware import ACCELERATORS
    >>> llama, h100 = ARCHITECTURES["Llama-2-13B"], ACCELERATORS["H100-SXM"]
    >>> for batch in (1, 64, 256):
    ...     step = decode_step(llama, h100, batch, context=1024)
    ...     print(f"{1e3 * step.step_s:.1f} ms, {step.tokens_per_s:.0f} tokens/s, {step.fits}")
    8.0 ms, 125 tokens/s, True
    23.8 ms, 2689 tokens/s, True
    71.9 ms, 3562 tokens/s, False
    """
    check_count("batch", batch, at_least=1)
    check_count("context", context, at_least=1)
    occupied = _resident_bytes(arch, batch, context, dtype, kv_dtype)
    compute = dtype if compute_dtype is None else compute_dtype
    seconds = _pass_s(arch, accelerator, batch, 1, context, dtype, kv_dtype, model, compute)
    return Step(seconds, batch / seconds, occupied, occupied <= accelerator.memory_bytes)


def prefill(
    arch: Architecture,
    accelerator: Accelerator,
    n_tokens: int,
    batch: int = 1,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    model: str = "roofline",
    compute_dtype: str | None = None,
) -> float:
    """Return the least time to process `batch` prompts of `n_tokens` tokens in one go.

    The models are those of `decode_step`; "memory" is what a prompt costs as long as its FLOPs hide
    behind reading the weights.

    Holds:  for logits of all tokens and nothing cached. An engine that makes only the last token's
            logits may be faster, by a fifth in Llama-3.2-1B, by 1 % in Llama-2-13B, and with a
            prefix in the cache by more. Else it is too short, as kernels reach no peak.
    Units:  seconds
    Raises: ValueError as `decode_step`.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> from firsttoken.hardware import ACCELERATORS
    >>> round(1e3 * prefill(ARCHITECTURES["Llama-2-13B"], ACCELERATORS["H100-SXM"], 2048))  # ms
    55
    """
    check_count("n_tokens", n_tokens, at_least=1)
    check_count("batch", batch, at_least=1)
    compute = dtype if compute_dtype is None else compute_dtype
    return _pass_s(arch, accelerator, batch, n_tokens, n_tokens, dtype, kv_dtype, model, compute)


def pareto(
    arch: Architecture,
    accelerator: Accelerator,
    batches: Iterable[int],
    context: int,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    model: str = "memory",
    compute_dtype: str | None = None,
) -> list[Step]:
    """Return one step per batch size, in the order given: time per token against throughput.

    Batches that do not fit are kept, and say so: they are what more memory would buy.

    Raises: ValueError as `decode_step`.
    """
    return [
        decode_step(arch, accelerator, batch, context, dtype, kv_dtype, model, compute_dtype)
        for batch in batches
    ]


def best_batch(
    arch: Architecture,
    accelerator: Accelerator,
    context: int,
    max_step_s: float = math.inf,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    model: str = "memory",
    compute_dtype: str | None = None,
) -> int:
    """Return the largest batch that fits and whose step takes at most `max_step_s`; 0 for none.

    Throughput grows with the batch, so this is the batch with the most tokens per second under a
    limit on the time per token.

    Holds:  as `decode_step`. Activations and the runtime take memory, too, and real steps last
            longer: the batch is too large by that.
    Raises: ValueError for a limit that is not positive, and as `decode_step`.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> from firsttoken.hardware import ACCELERATORS
    >>> best_batch(ARCHITECTURES["Llama-2-13B"], ACCELERATORS["H100-SXM"], 1024, max_step_s=0.015)
    28
    """
    if not max_step_s > 0:
        raise ValueError(f"max_step_s must be positive, got {max_step_s!r}")

    def allowed(batch: int) -> bool:
        step = decode_step(arch, accelerator, batch, context, dtype, kv_dtype, model, compute_dtype)
        return step.fits and step.step_s <= max_step_s

    # Time and memory grow with the batch: double until one is refused, then halve the gap.
    refused = 1
    while allowed(refused):
        refused *= 2
    good = refused // 2
    while refused - good > 1:
        middle = (good + refused) // 2
        good, refused = (middle, refused) if allowed(middle) else (good, middle)
    return good


def replicas(demand_tokens_per_s: float, step: Step, utilization: float = 1.0) -> int:
    """Return how many copies of a machine serve a demand: latency stays, throughput multiplies.

    That holds only while the demand fills the batch on every copy: one load spread over more
    copies runs smaller batches, and the time per token falls instead. Queues need room: with
    `utilization` 0.8 each copy is planned at four fifths of its rate.

    Raises: ValueError for a negative demand and a utilization outside (0, 1].

    >>> replicas(10_000, Step(0.0238, 2689.5, 79.7e9, True))
    4
    """
    if not demand_tokens_per_s >= 0:
        raise ValueError(f"demand_tokens_per_s must not be negative, got {demand_tokens_per_s!r}")
    if not 0 < utilization <= 1:
        raise ValueError(f"utilization must lie in (0, 1], got {utilization!r}")
    return math.ceil(demand_tokens_per_s / (utilization * step.tokens_per_s))


def cost_per_million_tokens(
    tokens_per_s: float, dollars_per_hour: float, utilization: float = 1.0
) -> float:
    """Return the dollars that a million output tokens cost on hardware rented by the hour.

    `dollars_per_hour` is the price of all the devices that together make `tokens_per_s`. A machine
    that is idle half the time (`utilization` 0.5) makes its tokens twice as dear.

    Holds:  for a rate that includes the prompts. That of decoding alone makes tokens too cheap:
            after prompts of 2,048 tokens by a third for answers of 256, by two thirds for 64
            (Llama-3.1-8B, 32 requests on an H100).
    Units:  dollars per million tokens
    Raises: ValueError for a rate that is not positive, a negative or infinite price, a utilization
            outside (0, 1].

    >>> round(cost_per_million_tokens(tokens_per_s=2689.5, dollars_per_hour=10.8), 3)
    1.115
    """
    if not tokens_per_s > 0:
        raise ValueError(f"tokens_per_s must be positive, got {tokens_per_s!r}")
    if not dollars_per_hour >= 0:
        raise ValueError(f"dollars_per_hour must not be negative, got {dollars_per_hour!r}")
    if math.isinf(dollars_per_hour):
        raise ValueError(f"dollars_per_hour must be finite, got {dollars_per_hour!r}")
    if not 0 < utilization <= 1:
        raise ValueError(f"utilization must lie in (0, 1], got {utilization!r}")
    return dollars_per_hour / 3600 / (tokens_per_s * utilization) * 1e6


def bandwidth_bound(
    arch: Architecture,
    accelerator: Accelerator,
    batch: int = 1,
    context: int = 1,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
) -> float:
    """Return the tokens per second that memory bandwidth cannot let a plain decode loop pass.

    What counts is what a step has to read whatever the program: the weights that it multiplies
    with (of an input embedding only rows are looked up) and the caches. A published figure above
    this is not what it says: another batch, another format, another machine, several tokens per
    pass (speculation), or a mistake. For several devices that split the model, give an
    accelerator with their bandwidths added. With experts, those of uniform routing are counted;
    in a batch larger than one, tokens that agree on experts could do with fewer.

    Holds:  where weights and caches come from memory, and texts have nothing in common. A model
            that fits a processor's cache can be faster, and texts that read a shared prefix once.
    Units:  tokens per second of the whole batch
    Raises: ValueError for a batch or context that is no positive integer and an unknown dtype.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> from firsttoken.hardware import ACCELERATORS
    >>> bound = bandwidth_bound(ARCHITECTURES["Llama-2-7B"], ACCELERATORS["A100-80GB"])
    >>> round(bound, 1), round(104.9 / bound, 2)  # gpt-fast publishes 104.9 tokens/s
    (154.3, 0.68)
    """
    check_count("batch", batch, at_least=1)
    check_count("context", context, at_least=1)
    looked_up = arch.n_touched_params(1) - arch.n_active_params
    weights = (arch.n_touched_params(batch) - looked_up) * bytes_per_element(dtype)
    cache = kv_cache_bytes(arch, context, batch, kv_dtype)
    return batch * accelerator.bandwidth / (weights + cache)


def _pass_s(
    arch: Architecture,
    accelerator: Accelerator,
    batch: int,
    t: int,
    s: int,
    dtype: str,
    kv_dtype: str,
    model: str,
    compute_dtype: str,
) -> float:
    """Return the time of one pass of T new tokens per sequence, S attended."""
    if model == "memory":
        return _resident_bytes(arch, batch, s, dtype, kv_dtype) / accelerator.bandwidth
    parts = _parts(arch, batch, t, s, dtype, kv_dtype)
    if model == "roofline":
        return sum(parts, Cost(0, 0)).time(accelerator, compute_dtype)
    if model == "layers":
        return sum(part.time(accelerator, compute_dtype) for part in parts)
    raise ValueError(f"model {model!r} is unknown; expected one of {', '.join(MODELS)}")


def _resident_bytes(
    arch: Architecture, batch: int, context: int, dtype: str, kv_dtype: str
) -> float:
    """Return the bytes of the weights, of the cache and of recurrent states."""
    weights = arch.n_params * bytes_per_element(dtype)
    cache = kv_cache_bytes(arch, context, batch, kv_dtype)
    return weights + cache + state_bytes(arch, batch, kv_dtype)


def _parts(
    arch: Architecture, batch: int, t: int, s: int, dtype: str, kv_dtype: str
) -> tuple[Cost, ...]:
    """Split `model_cost` into what runs one after another: linear layers, experts, attention, rest.

    All linear layers of a dense model have the same FLOPs per byte of weights, and all layers'
    attention the same per byte of cache: their maxima add up to the maximum of their sum, so that
    one part stands for all of a kind. The rest is read and not multiplied with: an input
    embedding, norms, biases. The parts add up to `model_cost`.
    """
    total = model_cost(arch, batch, t, s, dtype, kv_dtype)
    width = bytes_per_element(dtype)
    n_tokens = batch * t
    dense = arch.n_touched_params(0)  # what is read although no token asks for an expert
    experts_per_token = arch.n_touched_params(1) - dense
    n_linear = arch.n_matmul_params - experts_per_token
    touched = arch.n_touched_params(n_tokens)
    linear = Cost(2 * n_tokens * n_linear, n_linear * width)
    experts = Cost(2 * n_tokens * experts_per_token, (touched - dense) * width)
    rest = Cost(0, (dense - n_linear) * width)
    attention = Cost(
        total.flops - 2 * n_tokens * arch.n_matmul_params, total.bytes - touched * width
    )
    return linear, experts, attention, rest
