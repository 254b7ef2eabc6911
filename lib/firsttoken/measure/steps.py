"""The decode steps that `prediction` predicts, measured."""

import time
from collections.abc import Callable, Sequence

from firsttoken.architectures import Architecture
from firsttoken.measure.machine import find_device, waiting_for
from firsttoken.measure.prediction import LLAMA_100M, DecodePoint
from firsttoken.measure.sizes import sizes_for
from firsttoken.measure.tasks import layer_products
from firsttoken.measure.tensors import fill, random_llama, repeated, working_set
from firsttoken.measure.timing import interleaved, median_and_spread


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

    device = find_device(device)
    sizes = sizes_for(device)
    steps: dict[tuple, Callable[[], None]] = {}
    controls: dict[tuple, tuple[Callable, float]] = {}
    for dtype in dtypes:
        store = working_set(dtype, device, sizes)
        controls |= layer_products(store, dtype, device, sizes, batches)
        model = random_llama(arch, dtype, device, seed)
        for batch in batches:
            for context in contexts:
                cache = model.new_cache(batch, context)
                fill(cache, arch, batch, context - 1, seed)
                tokens = torch.zeros(batch, 1, dtype=torch.long, device=device)
                steps[dtype, batch, context] = repeated(model, tokens, cache, 1)
    runs = steps | {key: run for key, (run, _) in controls.items()}
    times = interleaved(runs, rounds, waiting_for(device), clock, "decode steps", limit_s)
    points = []
    for dtype, batch, context in steps:
        control = "gemv", dtype, batch
        bandwidth = controls[control][1] / median_and_spread(times[control])[0]
        step_s, spread = median_and_spread(times[dtype, batch, context])
        points.append(DecodePoint(dtype, batch, context, step_s, spread, bandwidth))
    return points
