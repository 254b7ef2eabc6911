"""Will it fit, how fast, what does it cost: a model on some devices, all questions at once.

    python -m firsttoken.calculator config.json --device H100-SXM --batch 8 --context 32768
    python -m firsttoken.calculator Llama-3.1-8B --json

Nothing is computed here that another closed form computes: this module asks them.
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from firsttoken.architectures import (
    Architecture,
    Weights,
    from_hf_config,
    stored_weights,
)
from firsttoken.architectures.config import open_config
from firsttoken.architectures.layers import LatentAttention, Layer
from firsttoken.architectures.released import RELEASED
from firsttoken.checks import check_choice, check_count
from firsttoken.hardware import ACCELERATORS, Accelerator
from firsttoken.kv_cache.sizes import kv_cache_bytes, max_batch, max_context, state_bytes
from firsttoken.parallel import tensor_parallel_prefill, tensor_parallel_step
from firsttoken.roofline import model_cost
from firsttoken.throughput import MODELS, Step, cost_per_million_tokens
from firsttoken.units import BYTES, bytes_per_element, format_bytes, format_count, format_time

# Indices of files are long: that of a model of a trillion parameters has some 10 MB.
MOST_CHARACTERS = 20_000_000


@dataclass(frozen=True)
class Plan:
    """What `plan` answers.

    Does it fit? `weights_bytes`, `cache_bytes` (keys, values, latents: they grow with the context)
    and `state_bytes` (of recurrent layers: they do not) are those of all devices together,
    `device_bytes` what each of them holds; `min_devices` would hold it all. `max_batch` is the
    largest batch at the context asked for, `max_context` the largest context at the batch asked for
    (None where memory sets no limit).

    How fast? `steps` holds a decode step by each of `throughput.MODELS`. `waits` says what it is
    made of: the seconds in which the devices read the weights, in which they read what is cached
    (states too), and in which they multiply; the largest is what limits it. `prefill_s` is what one
    prompt of `context` tokens takes by the model "layers". `compute_dtype` is the format of the
    products.

    What does it cost? `dollars_per_million` output tokens, by each model; None without a price.

    `cache_by_batch` and `cache_by_context` are the corners of two broken lines: batch, or context,
    and the bytes of cache and states there, the other one being as asked for. They end beyond the
    largest that fits and beyond what was asked for.

    Units:  bytes, seconds, dollars per million tokens.
    """

    weights_bytes: float
    cache_bytes: float
    state_bytes: float
    device_bytes: float
    fits: bool
    min_devices: int
    max_batch: int
    max_context: int | None
    compute_dtype: str
    steps: Mapping[str, Step]
    waits: Mapping[str, float]
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

    def kept(batch: int, context: int) -> float:
        cache = kv_cache_bytes(arch, context, batch, kv_dtype)
        return cache + state_bytes(arch, batch, kv_dtype)

    cost = model_cost(arch, batch, 1, context, dtype, kv_dtype)
    read = arch.n_touched_params(batch) * bytes_per_element(dtype)
    return Plan(
        weights_bytes=weights_bytes,
        cache_bytes=kv_cache_bytes(arch, context, batch, kv_dtype),
        state_bytes=state_bytes(arch, batch, kv_dtype),
        device_bytes=steps["memory"].memory_bytes,
        fits=steps["memory"].fits,
        min_devices=math.ceil((weights_bytes + kept(batch, context)) / accelerator.memory_bytes),
        max_batch=largest_batch,
        max_context=largest_context,
        compute_dtype=compute_dtype,
        steps=steps,
        waits={
            "weights": read / n_devices / accelerator.bandwidth,
            "cache": (cost.bytes - read) / n_devices / accelerator.bandwidth,
            "arithmetic": cost.flops / n_devices / accelerator.peak(compute_dtype),
        },
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
        cache_by_batch=_corners((), batch, largest_batch, lambda n: kept(n, context)),
        cache_by_context=_corners(
            arch.layer_windows, context, largest_context, lambda n: kept(batch, n)
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
    component = arch.params_by_component
    quantized = sum(component.get(part, 0) for part in ("attention", "mlp", "recurrence"))
    scales = 2.5 / 128 if dtype == "int4" else 0.0
    kept = arch.n_params - quantized
    return quantized * (bytes_per_element(dtype) + scales) + kept * bytes_per_element("bf16")


def read_config(text: str) -> Architecture:
    """Return the architecture that the text of a Hugging Face `config.json` describes.

    Raises: ValueError for an empty text or one that is no JSON object, and as `from_hf_config`.

    >>> read_config('{"model_type": "gpt2"}').n_params
    124439808
    """
    return from_hf_config(_objects(text)[0])


def read_weights(text: str, arch: Architecture) -> Weights:
    """Return what the files of weights take, by the text of a config.

    With the content of a `model.safetensors.index.json` behind it, that says so.

    Raises: ValueError as `read_config` and `architectures.stored_weights`.

    >>> text = '{"model_type": "gpt2", "dtype": "float16"}'
    >>> read_weights(text, read_config(text))
    Weights(n_bytes=248879616, says='all in fp16')
    """
    config, *others = _objects(text)
    for other in others:
        metadata = other.get("metadata")
        total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
        if isinstance(total, bool) or not isinstance(total, int | float) or not total > 0:
            raise ValueError(
                "config: behind the config may stand a model.safetensors.index.json, with "
                f"metadata: total_size; got total_size {total!r}"
            )
        return Weights(total, "by the index of its files")
    return stored_weights(config, arch)


def _objects(text: str) -> list[Mapping[str, Any]]:
    """Return the JSON objects of a text, one behind the other."""
    rest = text.strip()
    found: list[Mapping[str, Any]] = []
    if not rest:
        raise ValueError("config is empty, expected the content of a config.json")
    if len(rest) > MOST_CHARACTERS:
        raise ValueError(
            f"config has {len(rest):,} characters, expected a config.json of at most "
            f"{MOST_CHARACTERS:,}"
        )
    while rest:
        try:
            content, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError) as error:  # ValueError: also for numbers of 5000 digits
            raise ValueError(f"config is not readable as JSON ({error})") from None
        if not isinstance(content, dict):
            raise ValueError(f"config holds a {type(content).__name__}, expected an object")
        found.append(content)
        rest = rest[end:].strip()
    return found


def what_limits(found: Plan) -> str:
    """Return in one sentence what a decode step waits for, and how long each part would take.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> from firsttoken.hardware import ACCELERATORS
    >>> llama, h100 = ARCHITECTURES["Llama-3.1-8B"], ACCELERATORS["H100-SXM"]
    >>> print(what_limits(plan(llama, h100, n_devices=1, batch=32, context=8192)))
    A step waits for the cache to be read: 10.3 ms, against 4.79 ms for the weights and 625 ...
    """
    says = {
        "weights": "the weights to be read",
        "cache": "the cache to be read",
        "arithmetic": "the arithmetic",
    }
    most = max(found.waits, key=lambda name: found.waits[name])
    others = (f"{format_time(s)} for the {name}" for name, s in found.waits.items() if name != most)
    longest = format_time(found.waits[most])
    return f"A step waits for {says[most]}: {longest}, against {' and '.join(others)}."


def kept_by_layers(arch: Architecture) -> list[tuple[str, int]]:
    """Return what layers keep of a text, in their order: what, and how many in a row.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> kept_by_layers(ARCHITECTURES["Gemma-3-1B"])[:2]
    [('a window of 512', 5), ('all tokens', 1)]
    """
    found: list[tuple[str, int]] = []
    for layer in arch.layers:
        said = _kept(layer)
        count = found.pop()[1] if found and found[-1][0] == said else 0
        found.append((said, count + 1))
    return found


def _kept(layer: Layer) -> str:
    said = []
    if layer.attention is not None:
        window = layer.attention.window
        if layer.kv_source is not None:
            said.append("another layer's")
        elif window is not None:
            said.append(f"a {'chunk' if layer.attention.chunked else 'window'} of {window:,}")
        else:
            said.append("all tokens")
        if isinstance(layer.attention, LatentAttention):
            said[-1] += ", as latents"
        if layer.entry_tokens:
            said[-1] += f", an entry per {layer.entry_tokens} tokens"
        if layer.attention.top_k is not None:
            said[-1] += f", reads {layer.attention.top_k:,}"
    if layer.recurrent is not None:
        said.append("a state")
    return " and ".join(said) or "nothing"


def format_size(n_bytes: float, kind: str = "B") -> str:
    """Return a size in GB or, for what is small beside a device, in MB; "iB": in GiB or MiB."""
    return format_bytes(n_bytes, f"{'G' if n_bytes >= 1e9 else 'M'}{kind}")


def _max_context(
    arch: Architecture, memory_bytes: float, batch: int, dtype: str, kv_dtype: str
) -> int | None:
    """Return the largest context, or None where no layer's cache grows on and all of it fits."""
    if arch.max_context is None and not any(layer.growth for layer in arch.layers):
        full = arch.n_params * bytes_per_element(dtype) + state_bytes(arch, batch, kv_dtype)
        widest = max((window for window in arch.layer_windows if window is not None), default=0)
        full += kv_cache_bytes(arch, widest, batch, kv_dtype)
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


def main(arguments: list[str] | None = None) -> None:
    """Print what the calculator's page shows."""
    parser = argparse.ArgumentParser(
        prog="python -m firsttoken.calculator",
        description="Will a model fit on some devices, how fast can it be, what does it cost?",
    )
    parser.add_argument("model", help="a config.json, its folder, or the name of a preset")
    parser.add_argument("--device", default="H100-SXM", help=", ".join(ACCELERATORS))
    parser.add_argument("--devices", type=int, default=1, help="how many split every layer")
    parser.add_argument("--batch", type=int, default=1, help="requests at once")
    parser.add_argument("--context", type=int, default=8192, help="tokens per request")
    parser.add_argument("--dtype", default="bf16", help=f"of the weights: {', '.join(BYTES)}")
    parser.add_argument("--kv-dtype", default="bf16", help="of the cache")
    parser.add_argument("--price", type=float, help="of one device, in dollars per hour")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    try:
        check_choice("device", given.device, ACCELERATORS)
        arch = RELEASED.get(given.model)
        content: Mapping[str, Any] | None = None
        if arch is None:
            if not Path(given.model).exists():
                raise ValueError(
                    "model must be a config.json, its folder or one of "
                    f"{', '.join(RELEASED)}; got {given.model!r}"
                )
            content = open_config(given.model)
            arch = from_hf_config(content)
        found = plan(
            arch, ACCELERATORS[given.device], given.devices, given.batch, given.context,
            given.dtype, given.kv_dtype, given.price,
        )  # fmt: skip
        released = None if content is None else stored_weights(content, arch)
    except ValueError as error:
        parser.exit(2, f"calculator: {error}\n")
    answers = asdict(found) | {
        "name": arch.name,
        "source": arch.source,
        "n_params": arch.n_params,
        "n_active_params": arch.n_active_params,
        "layers": kept_by_layers(arch),
        "limit": what_limits(found),
        "files": None if released is None else asdict(released),
    }
    print(json.dumps(answers, indent=1) if given.json else _as_lines(arch, found, answers))


def _as_lines(arch: Architecture, found: Plan, answers: Mapping[str, Any]) -> str:
    """Return the answers as lines."""
    step = found.steps["layers"]
    verdict = "fits" if found.fits else f"does not fit, on {found.min_devices:,} it would"
    longest = "no limit" if found.max_context is None else f"{found.max_context:,} tokens"
    active = f", {format_count(arch.n_active_params)} of them active" if arch.n_moe_layers else ""
    layers = ", ".join(f"{count} × {kept}" for kept, count in _together(answers["layers"]))
    lines = [
        ("Model", f"{arch.name}, {format_count(arch.n_params)} parameters{active}"),
        ("Layers keep", layers),
        ("Weights", format_size(found.weights_bytes)),
        ("Cache", format_size(found.cache_bytes)),
        ("States", format_size(found.state_bytes)) if found.state_bytes else None,
        ("Each device", f"{format_size(found.device_bytes)}: {verdict}"),
        ("Largest batch", f"{found.max_batch:,} at this context"),
        ("Largest context", f"{longest} at this batch"),
        ("Step", f"at least {format_time(step.step_s)}, at most {step.tokens_per_s:,.0f} tokens/s"),
        ("", answers["limit"]),
        ("Prompt", f"at least {format_time(found.prefill_s)}"),
    ]  # fmt: skip
    if found.dollars_per_million is not None:
        lines.append(("Million tokens", f"at least ${found.dollars_per_million['layers']:,.2f}"))
    if answers["files"] is not None:
        files = answers["files"]
        lines.append(("Files", f"{format_size(files['n_bytes'])} ({files['says']})"))
    if arch.source.startswith("read by its names"):
        lines.append(("Note", arch.source))
    return "\n".join(f"{name:<16}{text}" for line in lines if line for name, text in [line])


def _together(runs: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return how many layers keep each kind of thing, in the order in which they first come."""
    total: dict[str, int] = {}
    for kept, count in runs:
        total[kept] = total.get(kept, 0) + count
    return list(total.items())


if __name__ == "__main__":
    main()
