"""Measure what fewer bits cost the shipped target: in its weights, activations and cache.

    python scripts/measure_quantization.py           # data/measured/quantization.json, an hour
    python scripts/measure_quantization.py --quick   # a few settings on a few windows, printed

The held-out text is cut into windows of 512 tokens. The first 16 are for calibration (AWQ, GPTQ,
fixed scales of activations), the loss is that of the others, and each setting is compared with the
unquantised model window by window. Numbers are rounded and computed with in float32. The matrices
inside the layers are quantised; the embedding, which is also the last matrix, is not, but in rows
that say so. A row that is done is kept in --work, so that a stopped run goes on there.
"""

import argparse
import copy
import hashlib
import json
import math
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn
from tqdm import tqdm
from train_diffusion import interval
from train_variants import heldout_windows

from firsttoken.models.llama_torch import Llama
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path
from firsttoken.provenance import code_digest, commit, processor
from firsttoken.quantization import (
    FORMATS,
    GGUF_LAYOUTS,
    awq_scale,
    gptq,
    hadamard,
    microscale,
    pack_gguf,
    quantize,
    unpack_gguf,
)

MEASURED_CODE = code_digest(
    [
        "models/llama_torch",
        "quantization",
        "models/rope",
    ]
)

ROOT = Path(__file__).parents[1]
SEED = 0
CALIBRATION = 16  # windows
ROWS = 8  # windows a pass
# Matrices that read the same activations, by the name of what they read.
INPUTS = {
    "attention": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "mlp": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
BITS, GROUPS, THRESHOLDS = (2, 3, 4, 5, 6, 8), (64, 32, 16), (3.0, 6.0, 12.0, 24.0)
SCALE_BITS = 16  # of what a scale counts; the run itself keeps float32
CACHE_GROUP = 32  # numbers that share a scale: a head's vector, or so many tokens of a channel


@dataclass(frozen=True)
class Weights:
    """How matrices are rounded: a scale per "tensor", per "channel" (output), or per so many
    inputs of a channel."""

    method: str  # nearest, zero_point, awq, gptq, fp8, or a format with blocks of its own
    bits: int
    group: str | int = "channel"
    embedding: bool = False

    @property
    def options(self) -> dict:
        """What `quantize` is told about the scales."""
        if self.group == "tensor":
            return {}
        return {"axis": 1, "group_size": None if self.group == "channel" else self.group}


@dataclass(frozen=True)
class Activations:
    """How what matrices read is rounded, and the matrices with it.

    A scale per "token", or one per "tensor" that calibration fixed. Features with any |x| ≥
    `threshold` in a window stay as they are, and so do the weights that they meet.
    """

    bits: int
    scale: str = "token"
    weight_bits: int | None = None  # with a scale per channel
    rotation: str | None = None  # hadamard, random
    threshold: float | None = None
    only: str | None = None  # one of INPUTS


@dataclass(frozen=True)
class Cache:
    """How keys and values are rounded: a smallest number and a step per "token" or "channel"."""

    bits: int
    keys: str | None
    values: str | None
    before_rope: bool = False


@dataclass(frozen=True)
class Setting:
    """What is quantised, and how."""

    part: str  # of the report
    weights: Weights | None = None
    activations: Activations | None = None
    cache: Cache | None = None

    @property
    def key(self) -> str:
        """A name for a file."""
        return f"{self.part}-{hashlib.sha256(repr(self).encode()).hexdigest()[:16]}"


EXACT = Setting("exact")


def settings() -> list[Setting]:
    """All that is measured, the part that a stopped run should have first at first."""
    every = ("tensor", "channel", *GROUPS)
    weights = [Weights(m, b, g) for m in ("nearest", "zero_point") for b in BITS for g in every]
    weights += [Weights(m, b, g) for m in ("awq", "gptq") for b in BITS for g in every[1:]]
    weights += [Weights(m, b, 32) for m, b in (("q8_0", 8), ("q4_0", 4))]
    weights += [Weights(f"mxfp{b}", b, 32) for b in (8, 6, 4)] + [Weights("nvfp4", 4, 16)]
    weights += [Weights("fp8", 8, group) for group in ("none", "tensor", "channel")]
    weights += [
        Weights(m, b, 32, embedding=True) for m, b in (("nearest", 8), ("nearest", 4), ("q4_0", 4))
    ]
    return [
        *(Setting("weights", weights=w) for w in weights),
        *(Setting("activations", activations=a) for a in activation_settings()),
        *(Setting("cache", cache=c) for c in cache_settings()),
        *together(),
    ]


def activation_settings() -> list[Activations]:
    """Activations alone, with weights, with outliers apart, rotated; one kind of input alone."""
    rotations = (None, "hadamard", "random")
    return [
        *(Activations(bits, scale) for bits in (8, 4) for scale in ("token", "tensor")),
        *(Activations(8, scale, weight_bits=8) for scale in ("token", "tensor")),
        *(Activations(8, weight_bits=8, threshold=t) for t in THRESHOLDS),
        *(Activations(4, weight_bits=4, rotation=r) for r in rotations),
        *(Activations(4, rotation=r) for r in rotations[1:]),
        *(Activations(4, only=kind) for kind in INPUTS),
        *(Activations(8, "tensor", only=kind) for kind in INPUTS),
    ]


def cache_settings() -> list[Cache]:
    """Keys and values alone and together, per token and per channel."""
    ways = ("token", "channel")
    alone = [(way, None) for way in ways] + [(None, way) for way in ways]
    return [
        Cache(8, "token", "token"),
        *(
            Cache(b, k, v)
            for b in (4, 2)
            for k, v in [*alone, ("token",) * 2, ("channel", "token")]
        ),
        *(Cache(b, k, None, before_rope=True) for b in (4, 2) for k in ways),
    ]


def together() -> Iterator[Setting]:
    """Weights, activations and cache at once: each step takes one more of them down to 4 bits."""
    weights, cache = Weights("q4_0", 4, 32), Cache(4, "channel", "token")
    eight = Activations(8)
    yield Setting("together", weights, eight)
    yield Setting("together", weights, eight, Cache(8, "token", "token"))
    yield Setting("together", weights, eight, cache)
    for rotation in (None, "hadamard"):
        rounded = Activations(4, weight_bits=4, rotation=rotation)
        yield Setting("together", None, rounded, cache)


# Weights


def matrices(model: Llama) -> Iterator[tuple[int, str, list[nn.Linear]]]:
    """The layers' matrices, those with one input together: (layer, kind of input, matrices)."""
    for layer, block in enumerate(model.model.layers):
        for kind, names in INPUTS.items():
            yield layer, kind, [block.get_submodule(name) for name in names]


def rounded(w: np.ndarray, how: Weights) -> np.ndarray:
    """A matrix [D, F] as its codes have it, each by itself: all methods but AWQ and GPTQ."""
    if how.method == "nearest":
        return quantize(w, how.bits, **how.options).dequantize()
    if how.method == "zero_point":
        return quantize(w, how.bits, **how.options, symmetric=False).dequantize()
    if how.method == "fp8":
        fmt = FORMATS["fp8_e4m3fn"]
        axis = {"tensor": None, "channel": 0}
        peak = fmt.max if how.group == "none" else np.abs(w).max(axis[how.group], keepdims=True)
        return fmt.round(w / (peak / fmt.max)) * (peak / fmt.max)
    rows = np.ascontiguousarray(w.T)  # blocks lie along the inputs
    if how.method in GGUF_LAYOUTS:
        return unpack_gguf(pack_gguf(rows, how.method), how.method).T
    return microscale(rows, how.method).dequantize().T


def rounded_together(ws: list[np.ndarray], x: np.ndarray | None, how: Weights) -> list[np.ndarray]:
    """Matrices [D, F] that read the same activations x [T, D]."""
    if how.method == "gptq":
        return [gptq(w, x, how.bits, how.options["group_size"]).dequantize() for w in ws]
    if how.method == "awq":
        s = awq_scale(x, np.hstack(ws), how.bits, how.options["group_size"])[:, None]
        nearest = Weights("nearest", how.bits, how.group)
        return [rounded(w * s, nearest) / s for w in ws]
    return [rounded(w, how) for w in ws]


def round_in_place(layers: list[nn.Linear], x: np.ndarray | None, how: Weights) -> None:
    """Round matrices in place."""
    before = [layer.weight.numpy().T for layer in layers]
    for layer, w in zip(layers, rounded_together(before, x, how), strict=True):
        layer.weight.copy_(torch.from_numpy(np.ascontiguousarray(w.T, dtype=np.float32)))


def read_by(model: Llama, tokens: Tensor) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Layer by layer, what its matrices read: kind of input to [T, D].

    A layer that is changed in between passes on what it then computes, as GPTQ has it.
    """
    positions = torch.arange(tokens.shape[1], dtype=torch.float32)
    angles = torch.outer(positions, model._frequencies)
    rotation, attend = (angles.cos(), angles.sin()), model._attend(None)
    x = model.model.embed_tokens(tokens)
    for layer, block in enumerate(model.model.layers):
        seen: dict[str, np.ndarray] = {}

        def keep(kind: str, seen=seen):
            return lambda _, given: seen.update({kind: given[0].flatten(0, 1).numpy()})

        hooks = [
            block.get_submodule(names[0]).register_forward_pre_hook(keep(kind))
            for kind, names in INPUTS.items()
        ]
        block(x, *rotation, attend, layer)
        for hook in hooks:
            hook.remove()
        yield layer, seen
        x = block(x, *rotation, attend, layer)


def quantise_weights(model: Llama, how: Weights, tokens: Tensor, inputs: dict) -> None:
    """Round the layers' matrices in place; `inputs` are what the unquantised model's read."""
    if how.method == "gptq":
        for layer, seen in read_by(model, tokens):
            for kind, names in INPUTS.items():
                block = model.model.layers[layer]
                layers = [block.get_submodule(name) for name in names]
                round_in_place(layers, seen[kind], how)
    else:
        for layer, kind, layers in matrices(model):
            round_in_place(layers, inputs[layer, kind], how)
    if how.embedding:  # one matrix [V, D], rounded along D in both of its roles
        table = model.model.embed_tokens.weight
        table.copy_(torch.from_numpy(np.ascontiguousarray(rounded(table.numpy().T, how).T)))


def weight_bits(model: Llama, how: Weights) -> dict[str, float]:
    """Bits of a weight with all that it is stored with, and bytes of the model.

    A scale counts 16 bits, a zero point as many as a code; formats with blocks of their own count
    what they are. AWQ's factors go into the norm or the matrix before; those of o_proj, whose
    input comes from attention, are stored. What is not quantised counts 16 bits a number.
    """
    own = {"mxfp4": 4.25, "mxfp6": 6.25, "mxfp8": 8.25, "nvfp4": 4.5}
    own |= {name: layout.bits for name, layout in GGUF_LAYOUTS.items()}
    all_bits, n_weights = 0.0, 0
    shapes = [(kind, tuple(m.weight.shape)) for _, kind, ms in matrices(model) for m in ms]
    if how.embedding:
        shapes.append(("embedding", tuple(model.model.embed_tokens.weight.shape)))
    for kind, (n_out, n_in) in shapes:
        n_weights += n_out * n_in
        if how.method in own:
            all_bits += own[how.method] * n_out * n_in + 32 * (how.method == "nvfp4")
            continue
        n_scales = {"none": 0, "tensor": 1, "channel": n_out}.get(how.group)
        n_scales = n_out * n_in // how.group if n_scales is None else n_scales
        each = SCALE_BITS + how.bits * (how.method == "zero_point")
        all_bits += how.bits * n_out * n_in + each * n_scales
        all_bits += SCALE_BITS * n_in * (how.method == "awq" and kind == "output")
    rest = 16 * (model.arch.n_params - n_weights)
    return {
        "bits_per_weight": all_bits / n_weights,
        "model_bytes": math.ceil((all_bits + rest) / 8),
    }


def snr_db(exact: Llama, model: Llama) -> float:
    """Signal to noise of the layers' matrices, in decibels."""
    pairs = zip(matrices(exact), matrices(model), strict=True)
    signal = noise = 0.0
    for (_, _, before), (_, _, after) in pairs:
        for a, b in zip(before, after, strict=True):
            signal += a.weight.double().square().sum().item()
            noise += (a.weight.double() - b.weight.double()).square().sum().item()
    return 10 * math.log10(signal / noise)


# Activations


def nearest(x: Tensor, bits: int, peak: Tensor | None = None) -> Tensor:
    """Symmetric codes times their scale, a scale per row unless `peak` sets one: as `quantize`."""
    largest = 2 ** (bits - 1) - 1
    peak = x.abs().amax(dim=-1, keepdim=True) if peak is None else peak
    scale = (peak / largest).clamp(min=torch.finfo(x.dtype).tiny)
    return (x / scale).round().clamp(-largest, largest) * scale


def rotation(name: str, n: int) -> Tensor:
    """An orthogonal matrix (n, n)."""
    if name == "hadamard":
        return torch.from_numpy(hadamard(n))
    q, r = np.linalg.qr(np.random.default_rng(SEED).normal(size=(n, n)))
    return torch.from_numpy((q * np.sign(np.diag(r))).astype(np.float32))


class Rounding(nn.Module):
    """A matrix that rounds what it reads, and itself."""

    def __init__(self, weight: Tensor, how: Activations, peak: Tensor | None):
        super().__init__()
        self.how, self.peak, self.rotation, self.weight = how, peak, None, weight.clone()
        if how.rotation is not None:  # x R times Rᵀ w is x times w
            self.rotation = rotation(how.rotation, weight.shape[1])
            self.weight = weight @ self.rotation
        if how.weight_bits is not None and how.threshold is None:
            self.weight = nearest(self.weight, how.weight_bits)

    def forward(self, x: Tensor) -> Tensor:
        if self.how.threshold is not None:
            return torch.stack([self.with_outliers(window) for window in x])
        if self.rotation is not None:
            x = x @ self.rotation
        return F.linear(nearest(x, self.how.bits, self.peak), self.weight)

    def with_outliers(self, x: Tensor) -> Tensor:
        """One window [T, D], features with outliers as they are: as `llm_int8_matmul`."""
        apart = x.abs().amax(dim=0) >= self.how.threshold  # [D]
        rest = nearest(x.masked_fill(apart, 0), self.how.bits)
        weight = nearest(self.weight.masked_fill(apart, 0), self.how.weight_bits)
        return F.linear(rest, weight) + F.linear(x[:, apart], self.weight[:, apart])


def quantise_activations(model: Llama, how: Activations, inputs: dict) -> None:
    """Let the layers' matrices round what they read."""
    for layer, block in enumerate(model.model.layers):
        for kind, names in INPUTS.items():
            if how.only not in (None, kind):
                continue
            peak = None
            if how.scale == "tensor":
                peak = torch.tensor(np.abs(inputs[layer, kind]).max())
            for name in names:
                weight = block.get_submodule(name).weight
                block.set_submodule(name, Rounding(weight, how, peak))


def shape_of(x: np.ndarray) -> dict[str, float]:
    """How far the largest numbers stick out of activations [T, D]."""
    rms, size = float(np.sqrt(np.mean(x.astype(float) ** 2))), np.abs(x)
    tokens = size.max(axis=1) / np.sqrt(np.mean(x.astype(float) ** 2, axis=1))
    return {
        "rms": rms,
        "max": float(size.max()),
        "max_over_rms": float(size.max()) / rms,
        "token_max_over_rms": float(np.median(tokens)),  # what a scale per token depends on
        "kurtosis": float(stats.kurtosis(x, axis=None, fisher=False)),
    }


def outliers(inputs: dict, windows: int) -> list[dict]:
    """Where outliers are: a row for each input of each layer, as it is and rotated."""
    rows = []
    for (layer, kind), x in inputs.items():
        peaks = np.abs(x).reshape(windows, -1, x.shape[1]).max(axis=1)  # [windows, D]
        turned = x @ rotation("hadamard", x.shape[1]).numpy()
        rows.append(
            {"layer": layer, "input": kind}
            | shape_of(x)
            | {
                "features_above": [float((peaks >= t).mean()) for t in THRESHOLDS],
                "numbers_above": [float((np.abs(x) >= t).mean()) for t in THRESHOLDS],
                "rotated": shape_of(turned),
            }
        )
    return rows


# Cache


def between_extremes(x: Tensor, bits: int, dim: int) -> Tensor:
    """Codes from the smallest to the largest number along `dim`, as numbers again."""
    low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    step = ((high - low) / (2**bits - 1)).clamp(min=torch.finfo(x.dtype).tiny)
    return ((x - low) / step).round() * step + low


def rounded_heads(x: Tensor, bits: int, per: str | None) -> Tensor:
    """Keys or values [B, K, T, H] with a scale per token's vector, or per channel and 32 tokens."""
    if per is None:
        return x
    if per == "token":
        return between_extremes(x, bits, dim=-1)
    groups = x.unflatten(2, (-1, CACHE_GROUP))  # [B, K, T / 32, 32, H]
    return between_extremes(groups, bits, dim=3).flatten(2, 3)


def quantise_cache(model: Llama, how: Cache) -> None:
    """Let attention read rounded keys and values, those of the newest token as well."""
    plain = model._attend

    def mix_with(cache):
        attend = plain(cache)

        def mixed(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k = k if how.before_rope else rounded_heads(k, how.bits, how.keys)
            return attend(layer, q, k, rounded_heads(v, how.bits, how.values))

        return mixed

    def before(_, __, out: Tensor) -> Tensor:
        heads = out.unflatten(-1, (-1, model.arch.head_dim)).transpose(1, 2)
        return rounded_heads(heads, how.bits, how.keys).transpose(1, 2).flatten(2)

    model._attend = mix_with
    if how.before_rope:
        for block in model.model.layers:
            block.self_attn.k_proj.register_forward_hook(before)


# The measurement


def losses(model: Llama, windows: np.ndarray) -> np.ndarray:
    """Nats of each window (B, T + 1), over its T tokens after the first."""
    return np.concatenate(
        [
            F.cross_entropy(model(rows[:, :-1]).mT, rows[:, 1:], reduction="none").double().sum(1)
            for rows in torch.from_numpy(windows).split(ROWS)
        ]
    )


def quantised(exact: Llama, setting: Setting, tokens: Tensor, inputs: dict) -> Llama:
    """A copy of the model in a setting."""
    model = copy.deepcopy(exact)
    if setting.weights is not None:
        quantise_weights(model, setting.weights, tokens, inputs)
    if setting.activations is not None:
        quantise_activations(model, setting.activations, inputs)
    if setting.cache is not None:
        quantise_cache(model, setting.cache)
    return model


def measured(exact, setting: Setting, windows, tokens, inputs: dict, folder: Path) -> dict:
    """The losses in a setting and, of weights, their error; from `folder` if they are there."""
    path = folder / f"{setting.key}.json"
    if not path.exists():
        began = time.process_time()
        model = quantised(exact, setting, tokens, inputs)
        row = {"nats": losses(model, windows).tolist(), "cpu_s": 0.0}
        if setting.part == "weights":
            row["snr_db"] = snr_db(exact, model)
        row["cpu_s"] = time.process_time() - began
        path.with_suffix(".tmp").write_text(json.dumps(row) + "\n")
        path.with_suffix(".tmp").replace(path)
    return json.loads(path.read_text())


def n_bytes(windows: np.ndarray) -> np.ndarray:
    """The bytes of each window's tokens after the first."""
    tok = tokenizer()
    lengths = np.array([len(tok.token_bytes(i)) for i in range(tok.vocab_size)])
    return lengths[windows[:, 1:]].sum(axis=1)


def figures(nats: list[float], unquantised: list[float], windows: np.ndarray) -> dict:
    """Bits per byte, and how much more than unquantised, with a 95 % interval over windows.

    Each window counts with its tokens, so that the mean difference is the difference of the means.
    """
    per_window = math.log(2) * n_bytes(windows).mean()
    more = np.subtract(nats, unquantised) / per_window
    return {"bits_per_byte": float(np.mean(nats) / per_window), "minus_unquantised": interval(more)}


def row_of(exact: Llama, setting: Setting, result: dict, unquantised: list, windows) -> dict:
    """What the report says of a setting."""
    row: dict = {}
    for name in ("weights", "activations", "cache"):
        part = getattr(setting, name)
        if part is not None:
            row |= {name: asdict(part)} if setting.part == "together" else asdict(part)
    if setting.part == "weights":
        row |= weight_bits(exact, setting.weights) | {"snr_db": result["snr_db"]}
    if setting.part == "cache":  # a smallest number and a step for each group
        row["bits_per_number"] = setting.cache.bits + 2 * SCALE_BITS / CACHE_GROUP
    return row | figures(result["nats"], unquantised, windows)


def short(x: object) -> object:
    """Figures with six digits: more than they are worth, and a file half as large."""
    if isinstance(x, dict):
        return {k: short(v) for k, v in x.items()}
    if isinstance(x, list):
        return [short(v) for v in x]
    return float(f"{x:.6g}") if isinstance(x, float) else x


def report(work: Path, todo: list[Setting], n_windows: int | None = None) -> dict:
    """Measure all settings, and say how."""
    exact = Llama.from_pretrained(ROOT / "data" / "model" / "target")
    windows = heldout_windows()
    calibration, evaluation = windows[:CALIBRATION], windows[CALIBRATION:][:n_windows]
    made_by = repr((MEASURED_CODE, len(calibration), len(evaluation), SEED)).encode()
    folder = work / hashlib.sha256(made_by).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    with torch.inference_mode():
        tokens = torch.from_numpy(calibration[:, :-1])
        inputs = {
            (layer, kind): x for layer, seen in read_by(exact, tokens) for kind, x in seen.items()
        }
        base = measured(exact, EXACT, evaluation, tokens, inputs, folder)
        rows: dict[str, list] = {}
        cpu_s = base["cpu_s"]
        for setting in tqdm(todo, mininterval=10):
            result = measured(exact, setting, evaluation, tokens, inputs, folder)
            row = row_of(exact, setting, result, base["nats"], evaluation)
            rows.setdefault(setting.part, []).append(row)
            cpu_s += result["cpu_s"]
        found = outliers(inputs, len(calibration))
    text = {
        "text": "data/heldout.txt",
        "context": windows.shape[1] - 1,
        "calibration_windows": len(calibration),
        "windows": len(evaluation),
        "bytes": int(n_bytes(evaluation).sum()),
    }
    return short(
        {
            "provenance": {
                "script": "scripts/measure_quantization.py",
                "machine": f"{processor()}, 1 thread",
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "commit": commit(),
                "measured_code": MEASURED_CODE,
                "versions": {n: version(n) for n in ("firsttoken", "torch", "numpy", "scipy")}
                | {"python": platform.python_version()},
                "seed": SEED,
                "cpu_s": cpu_s,
            },
            "evaluation": text,
            "n_params": exact.arch.n_params,
            "unquantised": {
                "bits_per_byte": figures(base["nats"], base["nats"], evaluation)["bits_per_byte"],
                "model_bytes": 2 * exact.arch.n_params,
            },
            "thresholds": list(THRESHOLDS),
            "outliers": found,
        }
        | rows
    )


def table(result: dict) -> str:
    """The report as text."""
    lines = [f"unquantised: {result['unquantised']['bits_per_byte']:.4f} bits per byte"]
    for part in ("weights", "activations", "cache", "together"):
        for row in result.get(part, []):
            gap = row["minus_unquantised"]
            size = row.get("bits_per_weight", row.get("bits_per_number"))
            said = {k: v for k, v in row.items() if k not in NO_NAMES and v not in (None, False)}
            name = ", ".join(f"{k} {v}" for k, v in said.items())
            bits = "      " if size is None else f"{size:6.3f}"
            lines.append(f"{bits} {gap['mean']:+9.5f} ± {gap['half_width_95']:.5f}  {part}: {name}")
    return "\n".join(lines)


NO_NAMES = {
    "bits_per_byte",
    "bits_per_number",
    "bits_per_weight",
    "minus_unquantised",
    "model_bytes",
    "snr_db",
}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, default=ROOT / "_build" / "quantization")
    parser.add_argument("--quick", action="store_true", help="few settings, nothing written")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    todo = settings()
    if args.quick:
        todo = [
            Setting("weights", weights=Weights("gptq", 4, 32)),
            Setting("activations", activations=Activations(8, weight_bits=8, threshold=6.0)),
            Setting("cache", cache=Cache(2, "channel", "token")),
            *list(together())[-1:],
        ]
    result = report(args.work, todo, 4 if args.quick else None)
    print(table(result))
    if args.quick:
        return
    path = data_path("measured/quantization.json")
    path.with_suffix(".tmp").write_text(json.dumps(result, indent=1) + "\n")
    path.with_suffix(".tmp").replace(path)
    print("written:", path.relative_to(ROOT))


if __name__ == "__main__":
    main()
