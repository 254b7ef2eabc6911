"""Decode speed of a Llama of 100 M weights in fp32, bf16, int8 and int4, batch by batch, on a CPU.

    python benchmarks/quantization_speed.py    # writes data/measured/quantization_speed.json
    python benchmarks/quantization_speed.py --table        # shows what is stored
    python benchmarks/quantization_speed.py --quick        # three rounds, writes nothing
    python benchmarks/quantization_speed.py --threads 2 --out two.json

The model is `prediction.LLAMA_100M` with random weights: what a step reads and computes does not
depend on them. Every round visits each step and each rate once, so that a slow minute hits all
alike; what counts is the lower quartile, and gains are over fp32 in the same run. int8 and int4
have a scale per output and per 32 inputs; their kernels get activations in bf16, and one product
with fp32 in place of it says what that would cost.

Three predictions stand beside a step, each from rates of this run, none from the step itself:

- bandwidth: the bytes of matrices and cache, over the rate at which memory is only read
- roofline: the larger of that and the FLOPs, over the rate of a product of 64 rows in cache
- parts: products with other matrices, out of cache and with as many rows, scaled to the model's
  bytes; and the step of a model whose products return zeros
"""

import argparse
import copy
import json
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from firsttoken.architectures import Architecture
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.measure.prediction import LLAMA_100M, uneven
from firsttoken.models.checkpoint import weight_shapes
from firsttoken.models.llama_torch import Llama
from firsttoken.paths import data_path
from firsttoken.provenance import code_digest, commit, load_average, processor
from firsttoken.quantization import Quantized, quantize
from firsttoken.quantization.quantization_torch import QuantizedLinear, with_quantized_weights
from firsttoken.roofline import model_cost

MEASURED_CODE = code_digest(
    [
        "models/checkpoint",
        "kv_cache",
        "models/llama_torch",
        "measure/prediction",
        "quantization",
        "roofline",
        "models/rope",
    ]
)

SEED, CONTEXT, BATCHES = 0, 64, (1, 2, 4, 8, 16, 32)  # the context counts the new token
ROUNDS, QUICK_ROUNDS = 40, 3
FORMATS = {"fp32": None, "bf16": None, "int8": 8, "int4": 4}  # name to bits of a code
GROUP = 32  # inputs that share a scale in int4
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# What rates are measured with: no shape of the model, and about as many weights. A quarter of
# them are in one matrix as tall as a vocabulary, as in the model: kernels treat it differently.
LAYER, N_LAYERS, HEAD = (896, 2432), 36, (896, 24_576)
READ_NUMBERS = 100_000_000  # 400 MB, beyond any cache
MANY_ROWS = 64
REPEATS = 32  # of a product in cache: the first of them still reads memory
MIN_CORE_SHARE = 0.85

Key = tuple[str | int, ...]
Figures = dict[str, float]


class Zeros(nn.Module):
    """Stands for a matrix: the same shapes, nothing read or multiplied."""

    def __init__(self, out_features: int):
        super().__init__()
        self.out_features = out_features

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(*x.shape[:-1], self.out_features)


def activations(name: str) -> str:
    """Return the dtype of activations, and of the cache, beside weights of a format."""
    return "bf16" if FORMATS[name] else name


def random_llama(arch: Architecture) -> Llama:
    """Return a Llama in float32 with weights of the usual size and no meaning."""
    rng = np.random.default_rng(SEED)
    weights = {
        name: 0.02 * rng.standard_normal(shape, np.float32)
        if len(shape) > 1
        else np.ones(shape, np.float32)
        for name, shape in weight_shapes(arch).items()
    }
    return Llama(arch, weights)


def codes(w: np.ndarray, bits: int) -> Quantized:
    return quantize(w, bits, axis=1, group_size=GROUP if bits == 4 else None)


def in_format(model: Llama, name: str) -> Llama:
    """Return a copy of a float32 model with its weights in a format."""
    bits = FORMATS[name]
    if bits:
        model = with_quantized_weights(model, lambda w: codes(w, bits))
    return copy.deepcopy(model).to(DTYPES[activations(name)])


def without_products(model: Llama, dtype: str) -> Llama:
    """Return a copy whose matrices are `Zeros`: norms, attention and what calls them stay."""
    names = [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    result = copy.deepcopy(model)
    for name in names:
        result.set_submodule(name, Zeros(result.get_submodule(name).out_features))
    return result.to(DTYPES[dtype])


def matrix(shape: tuple[int, int], name: str, dtype: str) -> nn.Module:
    """Return a linear layer [D, F] with random weights in a format, for activations in a dtype."""
    n_in, n_out = shape
    w = np.random.default_rng(SEED).standard_normal(shape, np.float32)
    if FORMATS[name]:
        return QuantizedLinear(codes(w, FORMATS[name])).to(DTYPES[dtype])
    layer = nn.Linear(n_in, n_out, bias=False).requires_grad_(False)
    layer.weight.copy_(torch.from_numpy(w.T))
    return layer.to(DTYPES[dtype])


def matrix_bytes(part: nn.Module) -> int:
    """Return the bytes of all matrices that a step reads whole: codes with their scales, or floats.

    Norms and the rows of the embedding are less than a thousandth of them.
    """
    matrices = [m for m in part.modules() if isinstance(m, nn.Linear | QuantizedLinear)]
    return sum(m.weight.nbytes if isinstance(m, nn.Linear) else m.nbytes for m in matrices)


def step(model: Llama, batch: int) -> Callable[[], Tensor]:
    """Return a function that decodes one token per sequence, always at the same position."""
    cache = model.new_cache(batch, CONTEXT)
    shape = batch, model.arch.n_kv_heads, CONTEXT - 1, model.arch.head_dim
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(SEED))
    for layer in range(model.arch.n_layers):
        cache.append(layer, noise, noise)
    tokens = torch.arange(batch).view(batch, 1)

    def run() -> Tensor:
        logits = model(tokens, cache)
        cache.truncate(CONTEXT - 1)
        return logits

    return run


def products(layers: list[nn.Module], n_in: int, rows: int, dtype: str) -> Callable[[], None]:
    """Return a function that multiplies rows with each of the matrices."""
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn((rows, n_in), generator=generator).to(DTYPES[dtype])

    def run() -> None:
        for layer in layers:
            layer(x)

    return run


def tasks(arch: Architecture) -> tuple[dict[Key, Callable[[], object]], dict[Key, int]]:
    """Return what is timed, and the bytes of matrices behind each; steps and rates.

    ("step", format, batch), ("rest", dtype, batch), ("read", how),
    ("memory" or "cache", format, dtype of activations, rows): products
    """
    runs: dict[Key, Callable[[], object]] = {}
    n_bytes: dict[Key, int] = {}
    numbers = torch.ones(READ_NUMBERS)
    halves = numbers.view(2, -1)
    runs["read", "sum"] = numbers.sum
    runs["read", "dot"] = lambda: halves[0].dot(halves[1])
    n_bytes |= dict.fromkeys(runs, numbers.nbytes)
    exact = random_llama(arch)
    for dtype in DTYPES:
        rest = without_products(exact, dtype)
        runs |= {("rest", dtype, batch): step(rest, batch) for batch in BATCHES}
    for name, bits in FORMATS.items():
        model, dtype = in_format(exact, name), activations(name)
        small, head = matrix(LAYER, name, dtype), matrix(HEAD, name, dtype)
        layers = [copy.deepcopy(small) for _ in range(N_LAYERS)] + [head]
        for batch in BATCHES:
            runs["step", name, batch] = step(model, batch)
            n_bytes["step", name, batch] = matrix_bytes(model)
            key = "memory", name, dtype, batch
            runs[key] = products(layers, LAYER[0], batch, dtype)
            n_bytes[key] = sum(map(matrix_bytes, layers))
        cached = [(small, dtype, 1), (small, dtype, MANY_ROWS)]
        if bits:
            cached.append((matrix(LAYER, name, "fp32"), "fp32", 1))
        for layer, taken, rows in cached:
            key = "cache", name, taken, rows
            runs[key] = products([layer] * REPEATS, LAYER[0], rows, taken)
            n_bytes[key] = REPEATS * matrix_bytes(layer)
    return runs, n_bytes


def in_turn(
    runs: Mapping[Key, Callable[[], object]], rounds: int
) -> tuple[dict[Key, list[float]], float]:
    """Call every function once a round, after one call that does not count.

    Return the seconds of each, and the share of its cores that summing numbers got: below one
    where other programs ran.
    """
    seconds: dict[Key, list[float]] = {key: [] for key in runs}
    summing = wall = 0.0
    for turn in tqdm(range(rounds + 1), desc="rounds"):
        for key, run in runs.items():
            worked, start = time.process_time(), time.perf_counter()
            run()
            taken = time.perf_counter() - start
            if turn:
                seconds[key].append(taken)
            if turn and key == ("read", "sum"):
                wall += taken
                summing += time.process_time() - worked
    return seconds, summing / wall / torch.get_num_threads()


def quartiles(seconds: list[float]) -> Figures:
    low, middle, high = np.quantile(seconds, (0.25, 0.5, 0.75))
    figures = {"quartile_1": low, "median": middle, "quartile_3": high}
    return {f"{name}_ms": round(1e3 * float(x), 4) for name, x in figures.items()}


def spread(seconds: list[float]) -> float:
    low, middle, high = np.quantile(seconds, (0.25, 0.5, 0.75))
    return float((high - low) / middle)


def analysis(
    arch: Architecture, seconds: Mapping[Key, list[float]], n_bytes: Mapping[Key, int]
) -> dict:
    """Return rates, steps with their predictions and gains, and where a format stops paying."""
    low = {key: float(np.quantile(times, 0.25)) for key, times in seconds.items()}
    rate = {key: n_bytes[key] / low[key] for key in n_bytes}
    bandwidth = max(rate["read", "sum"], rate["read", "dot"])

    def flops_per_s(name: str) -> float:
        key = "cache", name, activations(name), MANY_ROWS
        return REPEATS * 2 * LAYER[0] * LAYER[1] * MANY_ROWS / low[key]

    kernels = [
        {
            "format": name,
            "activations": activations(name),
            "matrix_bytes": n_bytes["step", name, 1],
            "one_row_bytes_per_s": {
                "cache": rate["cache", name, activations(name), 1],
                "memory": rate["memory", name, activations(name), 1],
            },
            # The lower of two roofs: a kernel that takes even what lies in a cache more slowly than
            # memory can be read has no use for all of the bandwidth.
            "limit": "memory"
            if rate["cache", name, activations(name), 1] > bandwidth
            else "kernel",
            "flops_per_s": flops_per_s(name),
        }
        for name in FORMATS
    ]
    for kernel in kernels:
        rates = kernel["one_row_bytes_per_s"]
        # Well below one, a kernel reaches neither roof.
        kernel["share_of_limit"] = rates["memory"] / min(bandwidth, rates["cache"])
        if FORMATS[kernel["format"]]:
            key = "cache", kernel["format"], "fp32", 1
            rates["cache, fp32 activations"] = rate[key]
    steps = []
    for name, batch in product(FORMATS, BATCHES):
        key, dtype = ("step", name, batch), activations(name)
        cache = kv_cache_bytes(arch, CONTEXT, batch, dtype)
        flops = model_cost(arch, batch, t=1, s=CONTEXT).flops
        reading = (n_bytes[key] + cache) / bandwidth
        predicted = {
            "bandwidth": reading,
            "roofline": max(reading, flops / flops_per_s(name)),
            "parts": n_bytes[key] / rate["memory", name, dtype, batch] + low["rest", dtype, batch],
        }
        steps.append(
            {
                "format": name,
                "batch": batch,
                "read_bytes": n_bytes[key] + cache,
                "flops": flops,
                **quartiles(seconds[key]),
                "predicted_ms": {rung: round(1e3 * s, 4) for rung, s in predicted.items()},
                "relative_error": {
                    rung: round(s / low[key] - 1, 4) for rung, s in predicted.items()
                },
                "gain": {
                    base: round(low["step", base, batch] / low[key], 3) for base in ("fp32", "bf16")
                },
            }
        )
    return {
        "read_bytes_per_s": bandwidth,
        "kernels": kernels,
        "rest": [
            {"dtype": dtype, "batch": batch, **quartiles(seconds["rest", dtype, batch])}
            for dtype, batch in product(DTYPES, BATCHES)
        ],
        "steps": steps,
        "pays_up_to_batch": {
            name: {base: pays_up_to(steps, name, base) for base in ("fp32", "bf16")}
            for name, bits in FORMATS.items()
            if bits
        },
    }


def pays_up_to(steps: list[dict], name: str, base: str) -> int:
    """Return the batch up to which a format is faster at every batch; 0 where never."""
    last = 0
    for one in steps:
        if one["format"] == name:
            if one["gain"][base] <= 1:
                break
            last = one["batch"]
    return last


def busy(seconds: Mapping[Key, list[float]], share: float) -> str:
    """Say why the figures should not be trusted; empty where nothing speaks against them."""
    reasons = [uneven(spread(times) for times in seconds.values())]
    if share < MIN_CORE_SHARE:
        reasons.append(f"other programs left only {share:.0%} of the cores")
    return " and ".join(filter(None, reasons))


def table(report: dict) -> str:
    """Return a report as text."""
    lines = [
        f"{report['machine']}, {report['threads']} of its threads; "
        f"memory is read at {report['read_bytes_per_s'] / 1e9:.1f} GB/s",
        "format  matrices  one row: from cache  memory  limit            64 rows",
    ]
    for k in report["kernels"]:
        read = {where: x / 1e9 for where, x in k["one_row_bytes_per_s"].items()}
        slow = read.get("cache, fp32 activations")
        lines.append(
            f"{k['format']:6} {k['matrix_bytes'] / 1e6:6.1f} MB {read['cache']:12.1f} GB/s"
            f" {read['memory']:6.1f}  {k['share_of_limit']:4.0%} of {k['limit']:6}"
            f" {k['flops_per_s'] / 1e9:6.0f} GFLOP/s"
            + (f"  (fp32 activations: {slow:.2f} GB/s)" if slow else "")
        )
    for dtype in DTYPES:
        rest = [r for r in report["rest"] if r["dtype"] == dtype]
        times = ", ".join(f"{r['batch']}: {r['quartile_1_ms']:.2f}" for r in rest)
        lines.append(f"a step without its products, {dtype}, ms by batch: {times}")
    lines.append(
        "format batch  step, quartiles     gain over fp32  over bf16  predicted - 1:"
        " bandwidth roofline parts"
    )
    for s in report["steps"]:
        errors = "".join(f"{s['relative_error'][rung]:+9.0%}" for rung in s["relative_error"])
        low, high = s["quartile_1_ms"], s["quartile_3_ms"]
        lines.append(
            f"{s['format']:6} {s['batch']:5} {low:7.2f} …{high:7.2f} ms"
            f" {s['gain']['fp32']:13.2f} {s['gain']['bf16']:11.2f}              {errors}"
        )
    for name, ends in report["pays_up_to_batch"].items():
        ended = ", ".join(f"than {base} up to {last}" for base, last in ends.items())
        lines.append(f"{name} is faster {ended} of {BATCHES[-1]} sequences")
    lines.append(f"busy: {report['busy']}" if report["busy"] else "quiet")
    return "\n".join(lines)


def measure(arch: Architecture, rounds: int) -> dict:
    """Measure everything, and return all that makes the run repeatable."""
    load = load_average()
    runs, n_bytes = tasks(arch)
    seconds, share = in_turn(runs, rounds)
    return {
        "arch": arch.arguments,
        "context": CONTEXT,
        "int4_group": GROUP,
        "seed": SEED,
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        **analysis(arch, seconds, n_bytes),
        "busy": busy(seconds, share),
        "core_share": share,
        "measured": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "measured_code": MEASURED_CODE,
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "load_average_before": load,
        "versions": {name: version(name) for name in ("numpy", "torch")},
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="default: data/measured/quantization_speed.json")
    parser.add_argument("--table", action="store_true", help="show the report that is there")
    parser.add_argument("--quick", action="store_true", help="three rounds")
    parser.add_argument("--threads", type=int, default=1, help="that the kernels may take")
    options = parser.parse_args(argv)
    stored = data_path("measured/quantization_speed.json")
    if options.table:
        print(table(json.loads((options.out or stored).read_text("utf-8"))))
        return
    if options.threads != 1 and not (options.out or options.quick):
        parser.error("what is stored is for one thread: name another file, --out FILE")
    torch.set_num_threads(options.threads)
    report = measure(LLAMA_100M, QUICK_ROUNDS if options.quick else ROUNDS)
    print(table(report))
    out = options.out or (None if options.quick else stored)
    if out:
        out.with_suffix(".tmp").write_text(json.dumps(report, indent=1) + "\n", "utf-8")
        out.with_suffix(".tmp").replace(out)


if __name__ == "__main__":
    main()
