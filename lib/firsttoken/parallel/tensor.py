"""Tensor parallelism: devices that split every layer, cut evenly."""

import dataclasses

from firsttoken.architectures import Architecture
from firsttoken.checks import check_count
from firsttoken.hardware import Accelerator
from firsttoken.parallel.collectives import ring_all_reduce_s
from firsttoken.throughput import Step, decode_step, prefill
from firsttoken.units import bytes_per_element


def tensor_parallel_step(
    arch: Architecture,
    accelerator: Accelerator,
    n: int,
    batch: int,
    context: int,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    model: str = "memory",
    latency_s: float = 0.0,
    compute_dtype: str | None = None,
) -> Step:
    """Return the least time of one decode step on n devices that split every layer.

    Weights, cache and FLOPs are cut n ways, so that the devices work as one with n times the
    bandwidth and rate. Twice in each layer, after the attention and after the MLP, they add up
    their parts of the activations: a ring all-reduce of batch · D numbers in bf16, which nothing
    overlaps.

    A ring is for long arrays. The sums of a few tokens are sooner in one shot, which does not wait
    longer with more devices: see `collectives.one_shot_all_reduce_s`.

    An even cut of the cache is the best case. With more devices than KV heads, and with latent
    attention, real systems keep copies of it, or cut it along the batch or the text.

    Units:  `memory_bytes` and `fits` are those of one device, `tokens_per_s` of the whole batch.
    Raises: ValueError as `decode_step`, for an n that is no positive integer, and for more than
            one device where the accelerator lists no link.
    Source: Shoeybi et al. 2019, arXiv:1909.08053, sec. 3 (two all-reduces in a forward pass)

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> from firsttoken.hardware import ACCELERATORS
    >>> llama, h100 = ARCHITECTURES["Llama-3.1-70B"], ACCELERATORS["H100-SXM"]
    >>> for n in (1, 2, 8):
    ...     step = tensor_parallel_step(llama, h100, n, batch=1, context=8192, latency_s=5e-6)
    ...     print(f"{1e3 * step.step_s:.1f} ms, {step.memory_bytes / 1e9:.1f} GB, {step.fits}")
    42.9 ms, 143.8 GB, False
    23.1 ms, 71.9 GB, True
    16.6 ms, 18.0 GB, True
    """
    whole = _as_one(accelerator, n)
    step = decode_step(arch, whole, batch, context, dtype, kv_dtype, model, compute_dtype)
    seconds = step.step_s + _all_reduces_s(arch, accelerator, n, batch, latency_s)
    return Step(seconds, batch / seconds, step.memory_bytes / n, step.fits)


def tensor_parallel_prefill(
    arch: Architecture,
    accelerator: Accelerator,
    n: int,
    n_tokens: int,
    batch: int = 1,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    model: str = "roofline",
    latency_s: float = 0.0,
    compute_dtype: str | None = None,
) -> float:
    """Return the least time in which n devices that split every layer process prompts in one go.

    As `throughput.prefill`, with the all-reduces of `tensor_parallel_step` for every token.

    Units:  seconds
    Raises: ValueError as `tensor_parallel_step`.
    """
    whole = _as_one(accelerator, n)
    seconds = prefill(arch, whole, n_tokens, batch, dtype, kv_dtype, model, compute_dtype)
    return seconds + _all_reduces_s(arch, accelerator, n, batch * n_tokens, latency_s)


def _as_one(accelerator: Accelerator, n: int) -> Accelerator:
    """Return n devices as one that is n times as fast and as large."""
    check_count("n", n, at_least=1)
    return dataclasses.replace(
        accelerator,
        peak_flops={dtype: n * rate for dtype, rate in accelerator.peak_flops.items()},
        bandwidth=n * accelerator.bandwidth,
        memory_bytes=n * accelerator.memory_bytes,
    )


def _all_reduces_s(
    arch: Architecture, accelerator: Accelerator, n: int, n_tokens: int, latency_s: float
) -> float:
    """Return the time in which a pass over some tokens adds up the activations of all layers."""
    n_bytes = n_tokens * arch.d_model * bytes_per_element("bf16")
    once = ring_all_reduce_s(n_bytes, n, accelerator.link_bandwidth, latency_s)
    return 2 * arch.n_layers * once
