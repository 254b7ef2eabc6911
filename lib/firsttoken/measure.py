"""This machine's own rates: what the formulas of chapter 03 call bandwidth and peak, measured.

`this_machine` measures copies, matrix products, reads of a cache and the cost of a layer that has
nothing to read; `decode_times` measures the step that `prediction` predicts from those.

PyTorch is loaded when something is measured.
"""

import itertools
import json
import math
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from platformdirs import user_cache_path
from tqdm import tqdm

from firsttoken.architectures import Architecture
from firsttoken.hardware import Accelerator
from firsttoken.prediction import LLAMA_100M, DecodePoint, MachineProfile
from firsttoken.protocols import Cache, Model
from firsttoken.provenance import load_average, processor
from firsttoken.units import bytes_per_element

if TYPE_CHECKING:
    import torch

    from firsttoken.llama_torch import Llama

_DTYPES = MappingProxyType({"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"})
_FORMAT = 2  # of stored profiles; another number makes a stored one foreign


@dataclass(frozen=True)
class _Sizes:
    """What is measured with: shapes near a small model's, and no shape of `LLAMA_100M`.

    What it shares with models are the numbers of rows: `rows` of products, `groups` of attention.
    The larger of the caches exceeds that of `LLAMA_100M` at 2,048 tokens.
    """

    working_set_bytes: int = 400_000_000  # beyond any cache; a set that fits looks twice as fast
    d_model: int = 896
    d_ff: int = 2432
    n_kv_heads: int = 3
    head_dim: int = 80
    vocab_size: int = 24_576
    gemm: int = 2048
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    groups: tuple[int, ...] = (1, 3, 4, 8)
    contexts: tuple[int, ...] = (192, 2240)
    rounds: int = 5
    depth: int = 10  # of the model that has nothing to read


# A GPU runs the small shapes in less time than a launch takes.
_GPU_SIZES = _Sizes(
    2_000_000_000,
    d_model=3584,
    d_ff=9728,
    n_kv_heads=6,
    vocab_size=98_304,
    gemm=8192,
    contexts=(192, 4416),
)


def _sizes_for(device: str) -> _Sizes:
    return _Sizes() if device == "cpu" else _GPU_SIZES


def this_machine(
    dtypes: Sequence[str] = ("fp32", "bf16"), refresh: bool = False, device: str | None = None
) -> MachineProfile:
    """Return what this machine reaches, measured once in under a minute and then remembered.

    On a CPU it takes 2 GB of memory for that time.

    The result is kept in the user's cache folder, for this processor, number of threads and
    version of PyTorch; `refresh=True` measures again. `device` is "cpu", "cuda" or "mps"; None
    takes a GPU where there is one. A RuntimeWarning says when the machine is too busy for the
    figures to mean anything (see `MachineProfile.busy`).

    Raises: ValueError for a dtype that is not among fp32, bf16 and fp16, no dtype at all, and a
            device that is not here.
    """
    dtypes = tuple(dtypes)
    if not dtypes or any(dtype not in _DTYPES for dtype in dtypes):
        raise ValueError(f"dtypes must be some of {', '.join(_DTYPES)}, got {dtypes}")
    device = _device(device)
    sizes = _sizes_for(device)
    identity = _identity(device) | {"dtypes": list(dtypes), "sizes": _listed(sizes)}
    key = sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    path = user_cache_path("firsttoken", appauthor=False) / f"machine-{key}.json"
    profile = None if refresh else _load(path, identity)
    if profile is None:
        profile = _measure(dtypes, device, sizes)
        _store(path, identity, profile)
    if profile.busy:
        warnings.warn(
            f"this machine was too busy to be measured: {profile.busy}. Close other programs and "
            "call this_machine(refresh=True).",
            RuntimeWarning,
            stacklevel=2,
        )
    return profile


def decode_times(
    arch: Architecture = LLAMA_100M,
    dtypes: Sequence[str] = ("fp32", "bf16"),
    batches: Sequence[int] = (1, 4, 16),
    contexts: Sequence[int] = (128, 512, 2048),
    rounds: int = 5,
    device: str | None = None,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
    limit_s: float = 90.0,
) -> list[DecodePoint]:
    """Measure decode steps of a Llama with random weights, at every dtype, batch and context.

    Every round visits all points once, so that a slow minute of the machine hits all alike: the
    steps, and the products of the calibration that run beside them. After `limit_s` no further
    round begins. The caches of all points are held at once; as called here, 4 GB of memory.

    Raises: ValueError for a device that is not here and an architecture that is no Llama.
    """
    import torch

    device = _device(device)
    sizes = _sizes_for(device)
    steps: dict[tuple, Callable[[], None]] = {}
    controls: dict[tuple, tuple[Callable, float]] = {}
    for dtype in dtypes:
        store = _working_set(dtype, device, sizes)
        controls |= _layer_products(store, dtype, device, sizes, batches)
        model = _random_llama(arch, dtype, device, seed)
        for batch in batches:
            for context in contexts:
                cache = model.new_cache(batch, context)
                _fill(cache, arch, batch, context - 1, seed)
                tokens = torch.zeros(batch, 1, dtype=torch.long, device=device)
                steps[dtype, batch, context] = _repeated(model, tokens, cache, 1)
    runs = steps | {key: run for key, (run, _) in controls.items()}
    times = _interleaved(runs, rounds, _wait(device), clock, "decode steps", limit_s)
    points = []
    for dtype, batch, context in steps:
        control = "gemv", dtype, batch
        bandwidth = controls[control][1] / _median_and_spread(times[control])[0]
        step_s, spread = _median_and_spread(times[dtype, batch, context])
        points.append(DecodePoint(dtype, batch, context, step_s, spread, bandwidth))
    return points


# --- measuring


def _measure(
    dtypes: Sequence[str],
    device: str,
    sizes: _Sizes,
    clock: Callable[[], float] = time.perf_counter,
) -> MachineProfile:
    """Measure everything, one dtype after another, all of its quantities in turn."""
    started = clock()
    wait = _wait(device)
    times: dict[tuple, list[float]] = {}
    amounts: dict[tuple, float] = {}  # bytes or FLOPs behind each time
    share = None
    for dtype in dtypes:
        tasks = _tasks(dtype, device, sizes)
        if dtype == dtypes[0]:
            tasks |= _memory_tasks(device, sizes)
            if device == "cpu":
                share = _core_share(tasks["copy",][0])
        amounts |= {key: amount for key, (_, amount) in tasks.items()}
        runs = {key: run for key, (run, _) in tasks.items()}
        times |= _interleaved(runs, sizes.rounds, wait, clock, f"measuring {dtype}", _LIMIT_S)
    taken = {key: _median_and_spread(seconds) for key, seconds in times.items()}

    def rates(kind: str) -> dict[tuple, float]:
        return {key[1:]: amounts[key] / taken[key][0] for key in taken if key[0] == kind}

    overhead = {}
    for key, (seconds, _) in taken.items():
        if key[0] == "empty":
            # The rates of products and attention hold the cost of calling them. A host that
            # works ahead of its device pays for all calls; any other would pay for these twice.
            called = taken["calls", *key[1:]][0] if device == "cpu" else 0.0
            overhead[key[1:]] = max(0.0, seconds / _STEPS - called) / sizes.depth
    reads = {key: value for key, value in taken.items() if key[0] == "attention"}
    largest = {dtype: max(key[4] for key in reads if key[1] == dtype) for dtype in dtypes}
    at_largest = [key for key in reads if key[4] == largest[key[1]]]
    accelerator = Accelerator(
        _name(device),
        {key[0]: rate for key, rate in rates("gemm").items()},
        bandwidth=rates("copy")[()],
        memory_bytes=_memory_bytes(device),
        source="measured on this machine",
        confidence="measured",
    )
    return MachineProfile(
        accelerator,
        gemv_bandwidth=rates("gemv"),
        kv_bandwidth=sum(amounts[k] for k in at_largest) / sum(taken[k][0] for k in at_largest),
        layer_overhead_s=statistics.median(overhead.values()),
        spread={" ".join(map(str, key)): spread for key, (_, spread) in taken.items()},
        provenance=_identity(device)
        | {
            "sizes": _listed(sizes),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": clock() - started,
            "core_share": share,
            "load_average": load_average(),
        },
        read_bandwidth=max(rates("read").values()),
        head_bandwidth=rates("head"),
        kv_read_s={
            key[1:]: seconds / _copies(amounts[key], key[4]) for key, (seconds, _) in reads.items()
        },
        overhead_s=overhead,
    )


_LIMIT_S = 25.0  # for the repeats of one dtype: a slow machine gets fewer
_STEPS = 5  # of the model with nothing to read, timed together: one alone is near the clock's noise


def _tasks(dtype: str, device: str, sizes: _Sizes) -> dict[tuple, tuple[Callable, float]]:
    """Return what is timed for one dtype: (kind, dtype, …) to a function and its bytes or FLOPs."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    store = _working_set(dtype, device, sizes)
    tasks: dict[tuple, tuple[Callable, float]] = {}
    tasks |= _layer_products(store, dtype, device, sizes, sizes.rows)
    vocabularies = _carve(store, [(sizes.vocab_size, sizes.d_model)])
    for rows in sizes.rows:
        tasks["head", dtype, rows] = _products(vocabularies, rows, dtype, device)

    n = sizes.gemm
    a, b = (w for w in _carve(store[: 2 * n * n], [(n, n)]))
    tasks["gemm", dtype] = lambda: a @ b, 2 * n**3

    k, h = sizes.n_kv_heads, sizes.head_dim
    for rows, context in itertools.product(sizes.rows, sizes.contexts):
        shape = (2, rows, k, context, h)
        # A quarter of the store is past most caches, and keeps the sum of times short.
        caches = _carve(store[: max(store.numel() // 4, math.prod(shape))], [shape])
        n_bytes = sum(cache.nbytes for cache in caches)
        for g in sizes.groups:
            q = _noise(rows * k * g * h, dtype, device).view(rows, k, g, h)

            def attend(q=q, caches=caches):
                return [scaled_dot_product_attention(q, keys, values) for keys, values in caches]

            tasks["attention", dtype, rows, g, caches[0].nbytes] = attend, n_bytes

    empty = Architecture("nothing to read", sizes.depth, 64, 4, 2, 16, 128, 128, True)
    model = _random_llama(empty, dtype, device, 0)
    for rows in sizes.rows:
        cache = model.new_cache(rows, 16)
        _fill(cache, empty, rows, 15, 0)
        tokens = torch.zeros(rows, 1, dtype=torch.long, device=device)
        tasks["empty", dtype, rows] = _repeated(model, tokens, cache, _STEPS), 0
        if device == "cpu":
            tasks["calls", dtype, rows] = _calls(model, rows, dtype), 0
    return tasks


def _working_set(dtype: str, device: str, sizes: _Sizes) -> "torch.Tensor":
    return _noise(int(sizes.working_set_bytes // bytes_per_element(dtype)), dtype, device)


def _layer_products(
    store: "torch.Tensor", dtype: str, device: str, sizes: _Sizes, row_counts: Iterable[int]
) -> dict[tuple, tuple[Callable, float]]:
    """Return the products of layers that use up the store, for each number of rows."""
    d, f, kv = sizes.d_model, sizes.d_ff, sizes.n_kv_heads * sizes.head_dim
    matrices = _carve(store, [(d, d), (kv, d), (kv, d), (d, d), (f, d), (f, d), (d, f)])
    return {("gemv", dtype, rows): _products(matrices, rows, dtype, device) for rows in row_counts}


def _products(
    matrices: list["torch.Tensor"], rows: int, dtype: str, device: str
) -> tuple[Callable, float]:
    """Return a function that multiplies rows with every matrix, and the bytes of the matrices."""
    from torch.nn.functional import linear

    inputs = {w.shape[1]: _noise(rows * w.shape[1], dtype, device) for w in matrices}
    inputs = {n: x.view(rows, n) for n, x in inputs.items()}

    def run() -> None:
        for w in matrices:
            linear(inputs[w.shape[1]], w)

    return run, sum(w.nbytes for w in matrices)


def _calls(model: "Llama", rows: int, dtype: str) -> Callable[[], None]:
    """Return a function that makes a step's products and attention in all layers, no more."""
    from torch.nn.functional import linear, scaled_dot_product_attention

    arch = model.arch
    inputs = {n: _noise(rows * n, dtype, "cpu").view(rows, 1, n) for n in (arch.d_model, arch.d_ff)}
    weights = [w for w in model.model.layers.parameters() if w.ndim == 2]
    shape = (rows, arch.n_kv_heads, 16, arch.head_dim)
    keys = _noise(math.prod(shape), dtype, "cpu").view(shape)
    queries = keys[:, :, : arch.n_heads // arch.n_kv_heads]

    def run() -> None:
        for weight in weights:
            linear(inputs[weight.shape[1]], weight)
        for _ in range(arch.n_layers):
            scaled_dot_product_attention(queries, keys, keys)

    return run


def _memory_tasks(device: str, sizes: _Sizes) -> dict[tuple, tuple[Callable, float]]:
    """Return a copy, whose bytes count twice (read and written), and two ways to only read."""
    source = _noise(sizes.working_set_bytes // 8 * 2, "fp32", device)
    target = source.clone()
    halves = source.view(2, -1)
    return {
        ("copy",): (lambda: target.copy_(source), 2 * source.nbytes),
        ("read", "sum"): (source.sum, source.nbytes),
        ("read", "dot"): (lambda: halves[0].dot(halves[1]), source.nbytes),
    }


def _carve(store: "torch.Tensor", shapes: list[tuple[int, ...]]) -> list["torch.Tensor"]:
    """Cut a flat tensor into tensors of these shapes, over and over until it is used up."""
    size = sum(map(math.prod, shapes))
    if size > store.numel():
        raise ValueError(f"a working set of {store.numel()} elements is too small for {shapes}")
    pieces, start = [], 0
    for _ in range(store.numel() // size):
        for shape in shapes:
            end = start + math.prod(shape)
            pieces.append(store[start:end].view(shape))
            start = end
    return pieces


def _noise(n: int, dtype: str, device: str) -> "torch.Tensor":
    """Return n numbers around zero: a block of noise again and again, which is quick to make."""
    import torch

    block = torch.randn(min(n, 1 << 20), generator=torch.Generator().manual_seed(0))
    block = block.to(device, getattr(torch, _DTYPES[dtype]))
    out = torch.empty(n, dtype=block.dtype, device=device)
    whole = n - n % block.numel()
    out[:whole].view(-1, block.numel())[:] = block
    out[whole:] = block[: n - whole]
    return out


def _random_llama(arch: Architecture, dtype: str, device: str, seed: int) -> "Llama":
    """Return a Llama in PyTorch with weights of the usual size and no meaning."""
    import torch

    from firsttoken.checkpoint import weight_shapes
    from firsttoken.llama_torch import Llama

    rng = np.random.default_rng(seed)
    weights = {
        name: 0.02 * rng.standard_normal(shape, np.float32)
        if len(shape) > 1
        else np.ones(shape, np.float32)
        for name, shape in weight_shapes(arch).items()
    }
    return Llama(arch, weights).to(device, getattr(torch, _DTYPES[dtype]))


def _fill(cache: Cache, arch: Architecture, batch: int, length: int, seed: int) -> None:
    """Put noise where a prompt's keys and values would be: what is read costs the same."""
    import torch

    if length == 0:
        return
    noise = torch.randn(
        1, arch.n_kv_heads, length, arch.head_dim, generator=torch.Generator().manual_seed(seed)
    ).expand(batch, -1, -1, -1)
    for layer in range(arch.n_layers):
        cache.append(layer, noise, noise)


def _repeated(
    model: Model, tokens: "torch.Tensor", cache: Cache, n_steps: int
) -> Callable[[], None]:
    """Return a function that decodes the same token `n_steps` times."""
    length = cache.length

    def run() -> None:
        for _ in range(n_steps):
            model(tokens, cache)
            cache.truncate(length)

    return run


def _interleaved(
    runs: Mapping[tuple, Callable],
    rounds: int,
    wait: Callable[[], None],
    clock: Callable[[], float],
    what: str,
    limit_s: float = math.inf,
) -> dict[tuple, list[float]]:
    """Time every function once a round, after one untimed call each.

    Past the limit no further round begins; there is always one.
    """
    times: dict[tuple, list[float]] = {key: [] for key in runs}
    begun = clock()
    with tqdm(total=(rounds + 1) * len(runs), desc=what) as bar:
        for turn in range(rounds + 1):
            if turn > 1 and clock() - begun > limit_s:
                break
            for key, run in runs.items():
                wait()
                start = clock()
                run()
                wait()
                if turn:
                    times[key].append(clock() - start)
                bar.update()
    return times


def _median_and_spread(seconds: Sequence[float]) -> tuple[float, float]:
    first, median, third = np.percentile(seconds, (25, 50, 75))
    return float(median), float((third - first) / median)


def _copies(total_bytes: float, each: int) -> int:
    return round(total_bytes / each)


def _core_share(run: Callable[[], object]) -> float:
    """Return which share of its threads' cores a parallel function got."""
    import torch

    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(3):
        run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return cpu / wall / torch.get_num_threads()


# --- the machine


def _device(device: str | None) -> str:
    import torch

    present = ["cpu"]
    if torch.backends.mps.is_available():
        present.append("mps")
    if torch.cuda.is_available():
        present.append("cuda")
    if device is None:
        return present[-1]
    if device not in present:
        raise ValueError(f"device {device!r} is not here; expected one of {', '.join(present)}")
    return device


def _wait(device: str) -> Callable[[], None]:
    """Return what lets the host wait until the device has done all it was given."""
    import torch

    return {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(device, lambda: None)


def _name(device: str) -> str:
    import torch

    if device == "cuda":
        return torch.cuda.get_device_name()
    if device == "mps":
        return f"GPU of {processor()}"
    return f"{processor()}, {torch.get_num_threads()} threads"


def _memory_bytes(device: str) -> float:
    """Return the device's memory; infinite where the system does not say."""
    import torch

    if device == "cuda":
        return torch.cuda.get_device_properties(0).total_memory
    if device == "mps":
        return torch.mps.recommended_max_memory()
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return math.inf


def _identity(device: str) -> dict[str, Any]:
    """Return what must be equal for a stored profile to hold."""
    import torch

    return {
        "format": _FORMAT,
        "machine": _name(device),
        "device": device,
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "torch": torch.__version__,
    }


def _listed(sizes: _Sizes) -> dict[str, Any]:
    """Return the sizes as JSON would give them back."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(sizes).items()}


# --- the stored result


def _load(path: Path, identity: dict[str, Any]) -> MachineProfile | None:
    """Return the stored profile; None where there is none, or none that can be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["identity"] != identity:
            return None
        return MachineProfile.from_dict(data["profile"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _store(path: Path, identity: dict[str, Any], profile: MachineProfile) -> None:
    """Write the profile whole or not at all; a folder that cannot be written to costs a warning."""
    text = json.dumps({"identity": identity, "profile": profile.as_dict()}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError as error:
        warnings.warn(f"the measured profile could not be kept: {error}", RuntimeWarning, 3)
