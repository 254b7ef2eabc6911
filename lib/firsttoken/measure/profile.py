"""This machine's rates, measured once and remembered."""

import json
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from hashlib import sha256

from platformdirs import user_cache_path

from firsttoken.hardware import Accelerator
from firsttoken.measure.machine import find_device, machine_name, memory_bytes, waiting_for
from firsttoken.measure.prediction import MachineProfile
from firsttoken.measure.sizes import Sizes, sizes_for
from firsttoken.measure.store import identity_of, listed, load_profile, store_profile
from firsttoken.measure.tasks import STEPS, memory_tasks, tasks_of
from firsttoken.measure.tensors import DTYPES
from firsttoken.measure.timing import core_share, interleaved, median_and_spread
from firsttoken.provenance import load_average

_LIMIT_S = 25.0  # for the repeats of one dtype: a slow machine gets fewer


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
    if not dtypes or any(dtype not in DTYPES for dtype in dtypes):
        raise ValueError(f"dtypes must be some of {', '.join(DTYPES)}, got {dtypes}")
    device = find_device(device)
    sizes = sizes_for(device)
    identity = identity_of(device) | {"dtypes": list(dtypes), "sizes": listed(sizes)}
    key = sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    path = user_cache_path("firsttoken", appauthor=False) / f"machine-{key}.json"
    profile = None if refresh else load_profile(path, identity)
    if profile is None:
        profile = measure_profile(dtypes, device, sizes)
        store_profile(path, identity, profile)
    if profile.busy:
        warnings.warn(
            f"this machine was too busy to be measured: {profile.busy}. Close other programs and "
            "call this_machine(refresh=True).",
            RuntimeWarning,
            stacklevel=2,
        )
    return profile


def measure_profile(
    dtypes: Sequence[str],
    device: str,
    sizes: Sizes,
    clock: Callable[[], float] = time.perf_counter,
) -> MachineProfile:
    """Measure everything, one dtype after another, all of its quantities in turn."""
    started = clock()
    wait = waiting_for(device)
    times: dict[tuple, list[float]] = {}
    amounts: dict[tuple, float] = {}  # bytes or FLOPs behind each time
    share = None
    for dtype in dtypes:
        tasks = tasks_of(dtype, device, sizes)
        if dtype == dtypes[0]:
            tasks |= memory_tasks(device, sizes)
            if device == "cpu":
                share = core_share(tasks["copy",][0])
        amounts |= {key: amount for key, (_, amount) in tasks.items()}
        runs = {key: run for key, (run, _) in tasks.items()}
        times |= interleaved(runs, sizes.rounds, wait, clock, f"measuring {dtype}", _LIMIT_S)
    taken = {key: median_and_spread(seconds) for key, seconds in times.items()}

    def rates(kind: str) -> dict[tuple, float]:
        return {key[1:]: amounts[key] / taken[key][0] for key in taken if key[0] == kind}

    overhead = _layer_overheads(taken, device, sizes.depth)
    reads = {key: value for key, value in taken.items() if key[0] == "attention"}
    largest = {dtype: max(key[4] for key in reads if key[1] == dtype) for dtype in dtypes}
    at_largest = [key for key in reads if key[4] == largest[key[1]]]
    accelerator = Accelerator(
        machine_name(device),
        {key[0]: rate for key, rate in rates("gemm").items()},
        bandwidth=rates("copy")[()],
        memory_bytes=memory_bytes(device),
        source="measured on this machine",
        confidence="measured",
    )
    return MachineProfile(
        accelerator,
        gemv_bandwidth=rates("gemv"),
        kv_bandwidth=sum(amounts[k] for k in at_largest) / sum(taken[k][0] for k in at_largest),
        layer_overhead_s=statistics.median(overhead.values()),
        spread={" ".join(map(str, key)): spread for key, (_, spread) in taken.items()},
        provenance=identity_of(device)
        | {
            "sizes": listed(sizes),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": clock() - started,
            "core_share": share,
            "load_average": load_average(),
        },
        read_bandwidth=max(rates("read").values()),
        head_bandwidth=rates("head"),
        kv_read_s={  # of one cache; all that were cut from the working set are timed together
            key[1:]: seconds / round(amounts[key] / key[4]) for key, (seconds, _) in reads.items()
        },
        overhead_s=overhead,
    )


def _layer_overheads(
    taken: dict[tuple, tuple[float, float]], device: str, depth: int
) -> dict[tuple, float]:
    """Return what a layer costs that has nothing to read, by dtype and number of rows."""
    overheads = {}
    for key, (seconds, _) in taken.items():
        if key[0] == "empty":
            # The rates of products and attention hold the cost of calling them. A host that
            # works ahead of its device pays for all calls; any other would pay for these twice.
            called = taken["calls", *key[1:]][0] if device == "cpu" else 0.0
            overheads[key[1:]] = max(0.0, seconds / STEPS - called) / depth
    return overheads
