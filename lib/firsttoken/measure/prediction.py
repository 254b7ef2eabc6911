"""The time of a decode step, predicted from a machine's measured rates, one rung after another.

`predict_step` turns a `MachineProfile`, which `measure.this_machine` makes, into the time of a
decode step; `ladder` puts that beside measured steps, and `drift` says whether the machine was
still as fast as at its calibration. Nothing here measures, and nothing needs PyTorch.
"""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from firsttoken.architectures import Architecture
from firsttoken.checks import check_count
from firsttoken.hardware import Accelerator
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.roofline import Cost
from firsttoken.throughput import decode_step
from firsttoken.units import bytes_per_element

LLAMA_100M = Architecture("Llama-100M", 12, 768, 12, 4, 64, 2048, 32000, tied_embeddings=True)
"""The model whose steps are predicted and measured; its weights are random, its cost is real."""

RUNGS = ("bandwidth", "roofline", "overhead", "rows")
"""The rungs of `predict_step`; `ladder` adds "anchor"."""


@dataclass(frozen=True)
class MachineProfile:
    """What a machine reaches, measured: the rates of its accelerator, and tables by row count.

    `accelerator` holds the rate of large matrix products per dtype and the bandwidth of a copy
    (bytes read plus bytes written). The tables are by dtype and rows, the sequences that share one
    read of the weights. Kernels change with the row count and their rates jump, so that nothing is
    interpolated: a row count that was not measured has no rate. In attention the query heads that
    share a KV head (the group) are rows, too.

    - `gemv_bandwidth[dtype, rows]`: bytes of weights per second in the matrices of a layer
    - `head_bandwidth[dtype, rows]`: the same for a matrix as tall as a vocabulary
    - `kv_bandwidth`: bytes of keys and values per second, one figure for all
    - `kv_read_s[dtype, batch, group, n_bytes]`: seconds for one layer's attention over that cache
    - `layer_overhead_s`: seconds that each layer takes of a step in a model with next to nothing to
      read (embedding and last norm included), one figure for all. On a CPU without the calls of
      products and attention, whose cost is in the rates; on a GPU with them
    - `overhead_s[dtype, rows]`: the same per dtype and rows
    - `read_bandwidth`: bytes per second where memory is only read, as a decode step does (the
      faster of a sum and a dot product)
    - `spread`: per measured quantity, the interquartile range of its repeats over their median
    - `provenance`: the machine, versions, date, sizes and repeats behind the figures

    Units:  bytes/s, FLOP/s, seconds; spread and `provenance["core_share"]` are fractions.
    """

    accelerator: Accelerator
    gemv_bandwidth: Mapping[tuple[str, int], float]
    kv_bandwidth: float
    layer_overhead_s: float
    spread: Mapping[str, float]
    provenance: Mapping[str, Any]
    read_bandwidth: float
    head_bandwidth: Mapping[tuple[str, int], float] = field(default_factory=dict)
    kv_read_s: Mapping[tuple[str, int, int, int], float] = field(default_factory=dict)
    overhead_s: Mapping[tuple[str, int], float] = field(default_factory=dict)

    @property
    def host_overlaps(self) -> bool:
        """Whether the host prepares the next kernel while the device runs one (GPUs do)."""
        return self.provenance.get("device", "cpu") != "cpu"

    @property
    def busy(self) -> str:
        """Why the figures should not be trusted; empty where nothing speaks against them.

        Two signs, since each misses what the other sees. Work that comes and goes makes repeats
        differ (`uneven`). Work that stays takes a core for good and slows every repeat alike: the
        copy's threads got less than 85 % of their cores. The load average is only recorded: it
        lags by a minute and counts this program, too.
        """
        reasons = [uneven(self.spread.values())] if uneven(self.spread.values()) else []
        share = self.provenance.get("core_share")
        if share is not None and share < _MIN_CORE_SHARE:
            reasons.append(f"other programs left only {share:.0%} of the cores")
        return " and ".join(reasons)

    def as_dict(self) -> dict[str, Any]:
        """Return the profile in JSON's types; `from_dict` reads it back."""
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        data["accelerator"] = asdict(self.accelerator)
        for name in _TABLES:
            data[name] = [[*key, value] for key, value in data[name].items()]
        return data | {name: dict(data[name]) for name in ("spread", "provenance")}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "MachineProfile":
        """Read what `as_dict` wrote.

        Raises: ValueError where something is missing or of another kind.
        """
        try:
            tables = {name: {tuple(row[:-1]): row[-1] for row in data[name]} for name in _TABLES}
            accelerator = Accelerator(**data["accelerator"])
            return cls(**{**data, **tables, "accelerator": accelerator})
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(f"data is no stored machine profile: {error!r}") from error


def uneven(spreads: Iterable[float]) -> str:
    """Say so where repeats differ too much: a quarter of the spreads lie above 20 %; else "".

    A quarter, since a disturbance may pass before the half of a measurement is over, and one
    quantity alone may be hit on a quiet machine, too.

    >>> uneven([0.02, 0.03, 0.02, 0.02, 0.9])
    ''
    >>> uneven([0.02, 0.3, 0.4, 0.02])
    'a quarter of the repeated measurements differ by 32% or more'
    """
    upper = float(np.percentile(list(spreads) or [0.0], 75))
    if upper <= _MAX_SPREAD:
        return ""
    return f"a quarter of the repeated measurements differ by {upper:.0%} or more"


_TABLES = ("gemv_bandwidth", "head_bandwidth", "kv_read_s", "overhead_s")
_MAX_SPREAD, _MIN_CORE_SHARE = 0.20, 0.85


def predict_step(
    arch: Architecture,
    profile: MachineProfile,
    batch: int,
    context: int,
    dtype: str = "fp32",
    rung: str = "rows",
) -> float:
    """Return how long one decode step takes by what the profile knows; the cache is in `dtype`.

    - "bandwidth": weights and cache over the bandwidth of a copy (`decode_step`, "memory")
    - "roofline": the larger of bytes over bandwidth and FLOPs over the rate of large products
    - "overhead": weights at their roofline, then the cache at the rate at which caches are read,
      then what a layer costs that reads nothing
    - "rows": each of these at the rate measured for this dtype and number of rows; matrices of
      layers and of the vocabulary apart; attention at the line through two measured cache sizes

    The parts follow one another on a CPU. A GPU works while the host prepares: the longer counts.

    Holds:  on a machine as quiet as at its calibration (see `drift`). The first three rungs are
            too short where few rows keep a kernel from the rates of a copy and of large products.
            Beyond the measured caches the line goes on untested; below, a cache costs as much as
            the smallest, which is too long.
    Units:  seconds
    Raises: ValueError for an unknown rung, a batch or context below one, a dtype, row count or
            group that was not measured, and models with experts or latent attention.
    """
    if rung not in RUNGS:
        raise ValueError(f"rung {rung!r} is unknown; expected one of {', '.join(RUNGS)}")
    if arch.n_experts or arch.latent_dim is not None:
        raise ValueError(f"arch {arch.name} has experts or latents; expected a dense Llama")
    machine, n_layers = profile.accelerator, arch.n_layers
    if rung in ("bandwidth", "roofline"):
        model = "memory" if rung == "bandwidth" else "roofline"
        return decode_step(arch, machine, batch, context, dtype, dtype, model).step_s
    check_count("batch", batch, at_least=1)
    check_count("context", context, at_least=1)
    width = bytes_per_element(dtype)
    cache_bytes = kv_cache_bytes(arch, context, batch, dtype)
    if rung == "overhead":
        linear = Cost(2 * batch * arch.n_matmul_params, arch.n_active_params * width)
        work = linear.time(machine, dtype) + cache_bytes / profile.kv_bandwidth
        host = n_layers * profile.layer_overhead_s
    else:
        head_bytes = arch.vocab_size * arch.d_model * width
        layer_bytes = arch.n_active_params * width - head_bytes
        group = arch.n_heads // arch.n_kv_heads
        work = (
            layer_bytes / _rate(profile.gemv_bandwidth, "gemv_bandwidth", dtype, batch)
            + head_bytes / _rate(profile.head_bandwidth, "head_bandwidth", dtype, batch)
            + n_layers * _attention_s(profile, dtype, batch, group, cache_bytes / n_layers)
        )
        host = n_layers * _rate(profile.overhead_s, "overhead_s", dtype, batch)
    return max(work, host) if profile.host_overlaps else work + host


@dataclass(frozen=True)
class DecodePoint:
    """A measured decode step: the median of interleaved repeats, and their relative spread.

    `context` counts the attended tokens, the new one included. `control_bandwidth` is the rate of
    the calibration's own product for this dtype and batch, between the repeats of the steps: what
    `drift` compares with the calibration.

    Units:  seconds, bytes/s; spread is a fraction.
    """

    dtype: str
    batch: int
    context: int
    step_s: float
    spread: float
    control_bandwidth: float


def drift(profile: MachineProfile, points: Sequence[DecodePoint]) -> float:
    """Return how much faster than at its calibration the machine was while it decoded.

    A machine that others use, or that grows hot, is not the one that was calibrated. Repeats do not
    show it where the change stays. So the calibration's own products ran again beside the steps:
    the median of their rates over the calibrated ones, minus one. At -0.03 the machine ran at 97 %
    of its calibrated speed.

    Raises: ValueError for no points, and for a dtype or batch that was not calibrated.
    """
    controls = {(point.dtype, point.batch, point.control_bandwidth) for point in points}
    if not controls:
        raise ValueError("points are empty, expected at least one")
    return statistics.median(
        rate / _rate(profile.gemv_bandwidth, "gemv_bandwidth", dtype, batch) - 1
        for dtype, batch, rate in controls
    )


@dataclass(frozen=True)
class Rung:
    """One rung of the ladder: predictions beside the measured points, and how far off they are.

    `errors` are predicted over measured, minus one. The mean leaves out the anchors.
    """

    name: str
    predicted_s: tuple[float, ...]
    errors: tuple[float, ...]
    mean_abs_error: float


def ladder(
    arch: Architecture, profile: MachineProfile, points: Sequence[DecodePoint]
) -> list[Rung]:
    """Predict measured steps on every rung; the last one corrects each dtype by one of its points.

    The anchor of a dtype is the middle one of its points. Anchors are left out of every rung's
    mean error, so that all rungs answer for the same points.

    Raises: ValueError where fewer than two points of a dtype leave nothing to predict, and as
            `predict_step`.
    """
    anchors = {}
    for dtype in dict.fromkeys(point.dtype for point in points):
        of_dtype = [point for point in points if point.dtype == dtype]
        if len(of_dtype) < 2:
            raise ValueError(f"points hold {len(of_dtype)} of {dtype}, expected at least 2")
        anchors[dtype] = of_dtype[len(of_dtype) // 2]

    def predict(point: DecodePoint, rung: str) -> float:
        return predict_step(arch, profile, point.batch, point.context, point.dtype, rung)

    predicted = {rung: [predict(point, rung) for point in points] for rung in RUNGS}
    scale = {d: anchor.step_s / predict(anchor, RUNGS[-1]) for d, anchor in anchors.items()}
    predicted["anchor"] = [
        scale[point.dtype] * seconds
        for point, seconds in zip(points, predicted[RUNGS[-1]], strict=True)
    ]
    rungs = []
    for name, seconds in predicted.items():
        errors = [p / point.step_s - 1 for p, point in zip(seconds, points, strict=True)]
        counted = [abs(e) for e, p in zip(errors, points, strict=True) if p is not anchors[p.dtype]]
        rungs.append(Rung(name, tuple(seconds), tuple(errors), statistics.mean(counted)))
    return rungs


@dataclass(frozen=True)
class Run:
    """One calibration of a machine and the decode steps that were measured after it.

    `held_out` has the same profile and the steps of another model, of other sizes than those that
    the way of predicting was tuned on.
    """

    arch: Architecture
    profile: MachineProfile
    points: tuple[DecodePoint, ...]
    provenance: Mapping[str, Any]
    held_out: "Run | None" = None


def stored_runs(path: str | Path) -> list[Run]:
    """Read the runs of one machine, as `scripts/measure_decode.py` writes them.

    Raises: ValueError for a file of another kind; OSError where there is none.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        return [_run(data["arch"], stored) for stored in data["runs"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"path {path} holds no measured runs: {error!r}") from error


def _run(arch: Mapping[str, Any], stored: Mapping[str, Any]) -> Run:
    profile = MachineProfile.from_dict(stored["profile"])

    def run(arch: Mapping[str, Any], points: list, held_out: Run | None) -> Run:
        steps = tuple(DecodePoint(**point) for point in points)
        return Run(Architecture(**arch), profile, steps, stored["provenance"], held_out)

    other = stored.get("held_out")
    held_out = None if other is None else run(other["arch"], other["points"], None)
    return run(arch, stored["points"], held_out)


def _rate(table: Mapping[tuple[str, int], float], name: str, dtype: str, rows: int) -> float:
    if (dtype, rows) not in table:
        measured = ", ".join(f"{d} × {r}" for d, r in table) or "nothing"
        raise ValueError(f"{name} was measured for {measured}; got {dtype} × {rows}")
    return table[dtype, rows]


def _attention_s(
    profile: MachineProfile, dtype: str, batch: int, group: int, n_bytes: float
) -> float:
    """Return the time of one layer's attention: a line through the smallest and largest cache."""
    key = dtype, batch, group
    times = sorted((k[3], seconds) for k, seconds in profile.kv_read_s.items() if k[:3] == key)
    if len(times) < 2:
        raise ValueError(f"kv_read_s was not measured for {dtype} × {batch} in groups of {group}")
    (small, at_small), (large, at_large) = times[0], times[-1]
    slope = (at_large - at_small) / (large - small)
    # Below the smallest size a fixed cost decides, which a line may put at less than nothing.
    return at_small + slope * max(0, n_bytes - small)
