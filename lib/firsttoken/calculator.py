"""Will it fit, how fast, what does it cost: a model on some devices, all questions at once.

Nothing is computed here that another closed form computes: this module asks them.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from firsttoken.architectures import Architecture, from_hf_config
from firsttoken.checks import check_count
from firsttoken.hardware import Accelerator
from firsttoken.kv_cache import kv_cache_bytes, max_batch, max_context
from firsttoken.parallel import tensor_parallel_prefill, tensor_parallel_step
from firsttoken.throughput import MODELS, Step, cost_per_million_tokens
from firsttoken.units import bytes_per_element


@dataclass(frozen=True)
class Plan:
    """What `plan` answers.

    Does it fit? `weights_bytes` and `cache_bytes` are those of all devices together, `device_bytes`
    what each of them holds; `min_devices` would hold it all. `max_batch` is the largest batch at
    the context asked for, `max_context` the largest context at the batch asked for (None where
    memory sets no limit).

    How fast? `steps` holds a decode step by each of `throughput.MODELS`. `prefill_s` is what one
    prompt of `context` tokens takes by the model "layers". `compute_dtype` is the format of the
    products.

    What does it cost? `dollars_per_million` output tokens, by each model; None without a price.

    `cache_by_batch` and `cache_by_context` are the corners of two broken lines: batch, or context,
    and the bytes of the cache there, the other one being as asked for. They end beyond the largest
    that fits and beyond what was asked for.

    Units:  bytes, seconds, dollars per million tokens.
    """

    weights_bytes: float
    cache_bytes: float
    device_bytes: float
    fits: bool
    min_devices: int
    max_batch: int
    max_context: int | None
    compute_dtype: str
    steps: Mapping[str, Step]
    prefill_s: float
    dollars_per_million: Mapping[str, float] | None
    cache_by_batch: tuple[tuple[int, float], ...]
    cache_by_context: tuple[tuple[int, float], ...]


def plan(
    arch: Architecture,
    accelerator: Accelerator,
    n_devices: int,
    batch: int,
    context: int,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    dollars_per_hour: float | None = None,
) -> Plan:
    """Return what a model needs, and how fast it can be at best, on devices that split it.

    `context` is what each sequence of the batch has attended to. Products run in the format of the
    weights where the device has a rate for it, else in bf16. Activations and the runtime need
    memory on top, which is not counted, and no latency of messages is.

    Holds:  as a bound: a real engine fits less, is slower and dearer, and the price leaves out the
            prompts. Only for experts in a small batch, "memory" is too slow.
    Units:  `dollars_per_hour` is the price of one device.
    Raises: ValueError for sizes that are no positive integers, an unknown dtype, a negative price,
            and for several devices where the accelerator lists no link.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> from firsttoken.hardware import ACCELERATORS
    >>> llama, h100 = ARCHITECTURES["Llama-3.1-8B"], ACCELERATORS["H100-SXM"]
    >>> found = plan(llama, h100, n_devices=1, batch=32, context=8192, dollars_per_hour=3.60)
    >>> print(f"{found.device_bytes / 1e9:.1f} GB, {found.max_batch}, {found.max_context}")
    50.4 GB, 59, 15244
    >>> print({model: f"{1e3 * step.step_s:.1f} ms" for model, step in found.steps.items()})
    {'memory': '15.1 ms', 'roofline': '15.1 ms', 'layers': '15.1 ms'}
    >>> round(found.dollars_per_million["layers"], 2)
    0.47
    """
    check_count("n_devices", n_devices, at_least=1)
    check_count("batch", batch, at_least=1)
    check_count("context", context, at_least=1)
    compute_dtype = dtype if dtype in accelerator.peak_flops else "bf16"
    memory_bytes = n_devices * accelerator.memory_bytes
    steps = {
        model: tensor_parallel_step(
            arch,
            accelerator,
            n_devices,
            batch,
            context,
            dtype,
            kv_dtype,
            model,
            compute_dtype=compute_dtype,
        )
        for model in MODELS
    }
    largest_batch = max_batch(arch, memory_bytes, context, dtype, kv_dtype)
    largest_context = _max_context(arch, memory_bytes, batch, dtype, kv_dtype)

    weights_bytes = arch.n_params * bytes_per_element(dtype)

    def cache(batch: int, context: int) -> float:
        return kv_cache_bytes(arch, context, batch, kv_dtype)

    return Plan(
        weights_bytes=weights_bytes,
        cache_bytes=cache(batch, context),
        device_bytes=steps["memory"].memory_bytes,
        fits=steps["memory"].fits,
        min_devices=math.ceil((weights_bytes + cache(batch, context)) / accelerator.memory_bytes),
        max_batch=largest_batch,
        max_context=largest_context,
        compute_dtype=compute_dtype,
        steps=steps,
        prefill_s=tensor_parallel_prefill(
            arch,
            accelerator,
            n_devices,
            context,
            dtype=dtype,
            kv_dtype=kv_dtype,
            model="layers",
            compute_dtype=compute_dtype,
        ),
        dollars_per_million=None
        if dollars_per_hour is None
        else {
            model: cost_per_million_tokens(step.tokens_per_s, n_devices * dollars_per_hour)
            for model, step in steps.items()
        },
        cache_by_batch=_corners((), batch, largest_batch, lambda n: cache(n, context)),
        cache_by_context=_corners(
            arch.layer_windows, context, largest_context, lambda n: cache(batch, n)
        ),
    )


def released_weights_bytes(arch: Architecture, dtype: str) -> float:
    """Return the bytes of a file of quantised weights, as they are released.

    `plan` counts every weight in `dtype`, and int4 as bare codes. Released files keep embedding,
    output, router, norms and biases in 16 bits, and with int4 add a scale of 16 bits and a zero
    point of 4 to each group of 128 codes. Scales per channel, of int8 and fp8, are left out: they
    are less than a thousandth.

    Holds:  for int8, fp8 and int4 in groups of 128. Groups of 32 take more, and so do formats that
            mix widths. For fp32 it is too few, since what is kept counts as 16 bits.
    Raises: ValueError for an unknown dtype.
    Source: autoawq, quant_config of group size 128 with zero points

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> round(released_weights_bytes(ARCHITECTURES["Llama-3.1-8B"], "int4") / 1e9, 2)
    5.73
    """
    quantized = sum(arch.params_by_component[part] for part in ("attention", "mlp"))
    scales = 2.5 / 128 if dtype == "int4" else 0.0
    kept = arch.n_params - quantized
    return quantized * (bytes_per_element(dtype) + scales) + kept * bytes_per_element("bf16")


def read_config(text: str) -> Architecture:
    """Return the architecture that the text of a Hugging Face `config.json` describes.

    Raises: ValueError for an empty text or one that is no JSON object, and as `from_hf_config`.

    >>> read_config('{"model_type": "gpt2"}').n_params
    124439808
    """
    if not text.strip():
        raise ValueError("config is empty, expected the content of a config.json")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also for numbers of 5000 digits
        raise ValueError(f"config is not readable as JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"config holds a {type(content).__name__}, expected an object")
    return from_hf_config(content)


def _max_context(
    arch: Architecture, memory_bytes: float, batch: int, dtype: str, kv_dtype: str
) -> int | None:
    """Return the largest context, or None where every layer has a window and all of them fit."""
    windows = [window for window in arch.layer_windows if window is not None]
    if arch.max_context is None and len(windows) == arch.n_layers:
        full = arch.n_params * bytes_per_element(dtype)
        full += kv_cache_bytes(arch, max(windows), batch, kv_dtype)
        if full <= memory_bytes:
            return None
    return max_context(arch, memory_bytes, batch, dtype, kv_dtype)


def _corners(
    windows: tuple[int | None, ...], asked: int, largest: int | None, cache: Callable[[int], float]
) -> tuple[tuple[int, float], ...]:
    """Return the corners of the cache's line: it is straight, but bends where a window is full."""
    end = math.ceil(1.25 * max(asked, largest or 0))
    bends = {window for window in windows if window is not None and window < end}
    return tuple((at, cache(at)) for at in sorted({0, *bends, end}))
