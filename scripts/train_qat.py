"""Round the shipped target inside of training (QAT) and afterwards (PTQ), at equal training tokens.

    python scripts/train_qat.py                   # about 25 CPU minutes of one thread
    python scripts/train_qat.py --table
    python scripts/train_qat.py --quick --work /tmp/quick

The matrices of the layers get 2 or 3 bits a weight, in groups of 32 inputs with a scale each. They
are rounded as they are, by GPTQ, after more training in float, or in every step of that training,
from the text or from what the unrounded target says. A loss is always that of the model rounded in
the end. Finished parts are kept in --work, and a training that was stopped goes on from its last
checkpoint.
"""

import argparse
import copy
import json
import platform
import sysconfig
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from measure_quantization import Weights, matrices, quantise_weights, round_in_place, weight_bits
from torch import Tensor, nn
from torch.nn.utils import parametrize
from train_model import CONTEXT, ROOT, TARGET, Recipe
from train_pruning import (
    Student,
    Work,
    figures,
    nats,
    split_windows,
    text_rows,
    toy,
    train,
    write,
)
from train_variants import paired, training_stream

from firsttoken.models.llama_torch import Llama
from firsttoken.provenance import code_digest
from firsttoken.quantization import quantize

MEASURED_CODE = code_digest(
    [
        "models/llama_torch",
        "pruning",
        "quantization",
        "models/rope",
        "scripts/measure_quantization.py",
        "scripts/train_model.py",
        "scripts/train_pruning.py",
    ]
)

GROUP = 32  # inputs of an output that share a scale
# A run this short is better spent on many small steps. AdamW alone, and no decay towards zero: the
# scale follows the largest weight of a group, and what decays would only shrink both.
RECIPE = replace(
    TARGET,
    steps=128,
    short_steps=96,
    warmup_steps=8,
    tokens_per_step=1024,
    short_window=256,
    weight_decay=0.0,
)
RATE_SEED = 100  # of no run that is reported
RATE_RECIPE = replace(RECIPE, steps=32, short_steps=24, seed=RATE_SEED)
WAYS = {  # whether training rounds, and what it learns from
    "fine-tune": (False, "text"),
    "QAT": (True, "text"),
    "QAT, distilled": (True, "target"),
}
# Learning rates, each about three times the one before.
LADDER = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    recipe: Recipe = RECIPE
    rate_recipe: Recipe = RATE_RECIPE
    bits: tuple[int, ...] = (2, 3)
    seeds: tuple[int, ...] = (0, 1, 2)
    rates: tuple[tuple[str, tuple[float, ...]], ...] = (  # where the search begins
        ("fine-tune", (1e-4, 3e-4, 1e-3)),
        ("QAT", (3e-4, 1e-3, 3e-3)),
        ("QAT, distilled", (3e-4, 1e-3, 3e-3)),
    )
    widenings: int = 2  # rates tried beyond these where the last one is the best
    calibration: tuple[int, int] = (16, CONTEXT)  # rows and tokens, for GPTQ
    choosing: int = 16  # windows of the held-out text by which a rate is chosen
    reporting: int = 32  # others, by which results are reported
    marks: tuple[int, ...] = (0, 8, 16, 32, 64, 128)  # steps at which a loss is noted
    shown: tuple[int, str] = (3, "mlp.up_proj")  # layer and matrix whose codes are looked at


# Rounding inside of training


class StraightThrough(torch.autograd.Function):
    """Forward what `quantize` makes of a matrix [F, D], backward the gradient as it comes.

    Rounding is flat almost everywhere, so its own gradient is zero and nothing would be learnt.
    """

    @staticmethod
    def forward(_, weight: Tensor, bits: int) -> Tensor:
        largest = 2 ** (bits - 1) - 1
        groups = weight.unflatten(1, (-1, GROUP)).double()  # as `quantize`: to the last bit
        scale = (groups.abs().amax(dim=-1, keepdim=True) / largest).float()
        scale = torch.where(scale > 0, scale, 1.0)
        codes = (groups / scale.double()).round().clamp(-largest, largest)
        return (codes.to(torch.int8) * scale).flatten(1)  # whole numbers have no -0

    @staticmethod
    def backward(_, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Rounded(nn.Module):
    """What a matrix is multiplied as: rounded where no gradient is wanted, if `inside` always."""

    def __init__(self, bits: int, inside: bool):
        super().__init__()
        self.bits, self.inside = bits, inside

    def forward(self, weight: Tensor) -> Tensor:
        if torch.is_grad_enabled() and not self.inside:
            return weight
        return StraightThrough.apply(weight, self.bits)


def all_matrices(model: Llama) -> list[nn.Linear]:
    """The matrices that are rounded: all inside of the layers."""
    return [matrix for _, _, several in matrices(model) for matrix in several]


def unrounded(model: Llama) -> Llama:
    """A copy whose matrices are the weights that are trained, in float32."""
    weights = {
        name.replace(".parametrizations.weight.original", ".weight"): w.numpy(force=True)
        for name, w in model.state_dict().items()
    }
    weights.pop("lm_head.weight")  # tied to the embedding
    return Llama(model.arch, weights, model.rope_theta, norm_eps=model.norm_eps)


def rounded(model: Llama, bits: int) -> Llama:
    """A copy whose matrices are what `quantize` makes of them."""
    model = unrounded(model)
    round_in_place(all_matrices(model), None, Weights("nearest", bits, GROUP))
    return model


class Learner(Student):
    """A copy of the target in training, in one of `WAYS`; its loss is that of the rounded model."""

    def __init__(self, way: str, bits: int, target: Llama, recipe: Recipe, rate: float):
        self.way, self.bits, self.rate = way, bits, rate
        self.size, self.name = f"{bits} bits", [way, bits, rate]
        self.model, self.recipe = copy.deepcopy(target).requires_grad_(True), recipe
        for matrix in all_matrices(self.model):
            parametrize.register_parametrization(matrix, "weight", Rounded(bits, WAYS[way][0]))
        self.optimizers = [
            torch.optim.AdamW(
                self.model.parameters(), rate, (0.9, 0.95), weight_decay=recipe.weight_decay
            )
        ]
        self.base = [[rate]]
        self.curve, self.cpu_s = [], 0.0

    @property
    def distils(self) -> bool:
        return WAYS[self.way][1] == "target"


# The parts


def gptq_rounded(target: Llama, bits: int, rows: np.ndarray) -> Llama:
    """The target rounded by GPTQ, calibrated on rows of the training text."""
    model = copy.deepcopy(target)
    with torch.inference_mode():
        quantise_weights(model, Weights("gptq", bits, GROUP), torch.from_numpy(rows), {})
    return model


def before(target: Llama, windows: np.ndarray, scale: Scale) -> dict:
    """The figures of the target, and of the target rounded to nearest."""
    nearest = {str(bits): figures(rounded(target, bits), windows) for bits in scale.bits}
    return {"target": figures(target, windows), "nearest": nearest}


def best_of(tried: dict[float, float]) -> float:
    """The rate with the lowest loss."""
    return min(tried, key=lambda rate: tried[rate])


def beyond(tried: dict[float, float]) -> float | None:
    """The rate next to the best one, if that is the last that was tried on its side."""
    best = best_of(tried)
    at = LADDER.index(best)
    if best == min(tried) and at > 0:
        return LADDER[at - 1]
    if best == max(tried) and at + 1 < len(LADDER):
        return LADDER[at + 1]
    return None


def choose_rate(way: str, bits: int, target: Llama, stream, windows, scale: Scale, work: Work):
    """The rate that leaves the lowest loss; the grid grows while its edge is the best."""
    tried: dict[float, float] = {}
    todo = list(dict(scale.rates)[way])
    for widening in range(scale.widenings + 1):
        learners = [Learner(way, bits, target, scale.rate_recipe, rate) for rate in todo]
        name = f"{part_of_rates(way, bits)}-{widening}"
        train(name, learners, scale.rate_recipe, stream, target, windows, (), work)
        tried |= {s.rate: nats(s.model, windows) for s in learners}
        wider = beyond(tried)
        if wider is None:
            break
        todo = [wider]
    return {"tried": sorted(tried.items()), "chosen": best_of(tried)}


def part_of_rates(way: str, bits: int) -> str:
    return f"rates-{way.replace(', ', '-')}-{bits}"


def changes(target: Llama, model: Llama, bits: int, shown: tuple[int, str]) -> dict:
    """How many codes are others than at the start, in all matrices and in one of them.

    Of that one also the share of each code, before and after, and how far its unrounded weights
    have moved, against their size.
    """
    pairs = [
        (a.weight.numpy(), b.weight.numpy())
        for a, b in zip(all_matrices(target), all_matrices(unrounded(model)), strict=True)
    ]

    def codes(w: np.ndarray) -> np.ndarray:
        return quantize(w, bits, axis=0, group_size=GROUP).codes

    def shares(w: np.ndarray) -> list[float]:
        largest = 2 ** (bits - 1) - 1
        counts = np.bincount((codes(w) + largest).ravel(), minlength=2 * largest + 1)
        return [round(float(n) / w.size, 4) for n in counts]

    layer, name = shown
    a, b = (
        m.model.layers[layer].get_submodule(name).weight.numpy() for m in (target, unrounded(model))
    )
    others = sum(int((codes(x) != codes(y)).sum()) for x, y in pairs)
    return {
        "changed": round(others / sum(x.size for x, _ in pairs), 4),
        "shown_changed": round(float((codes(a) != codes(b)).mean()), 4),
        "shown_codes": {"before": shares(a), "after": shares(b)},
        "shown_moved": round(float(np.linalg.norm(b - a) / np.linalg.norm(a)), 4),
    }


def one_seed(seed: int, target: Llama, rates: dict, stream, windows, scale: Scale, work: Work):
    """GPTQ with calibration rows of its own, and every way of training."""
    recipe = replace(scale.recipe, seed=seed)
    choosing, reporting = windows
    rows = text_rows(stream, scale.calibration, seed)
    runs = [
        {"way": "GPTQ", "bits": bits, "seed": seed}
        | figures(gptq_rounded(target, bits, rows), reporting)
        for bits in scale.bits
    ]
    learners = [
        Learner(way, bits, target, recipe, rates[way, bits]["chosen"])
        for bits in scale.bits
        for way in WAYS
    ]
    spent = train(
        f"seed-{seed}", learners, recipe, stream, target, choosing[::2], scale.marks, work
    )
    runs += [
        {"way": s.way, "bits": s.bits, "seed": seed}
        | figures(rounded(s.model, s.bits), reporting)
        | {"unrounded_nats_per_token": nats(unrounded(s.model), reporting), "curve": s.curve}
        | changes(target, s.model, s.bits, scale.shown)
        | {"cpu_s": round(s.cpu_s, 1)}
        for s in learners
    ]
    return {"runs": runs} | spent


# The report


def differences(runs: list[dict], start: dict, scale: Scale) -> list[dict]:
    """What one way leaves more than another, in nats a token, paired by seed."""

    def losses(way: str, bits: int) -> list[float]:
        if way == "unquantised":
            return [start["target"]["nats_per_token"]] * len(scale.seeds)
        if way == "nearest":
            return [start["nearest"][str(bits)]["nats_per_token"]] * len(scale.seeds)
        return [r["nats_per_token"] for r in runs if (r["way"], r["bits"]) == (way, bits)]

    pairs = (
        ("GPTQ", "nearest"),
        ("fine-tune", "nearest"),
        ("QAT", "nearest"),
        ("QAT", "GPTQ"),
        ("QAT", "fine-tune"),
        ("QAT, distilled", "QAT"),
        ("QAT, distilled", "GPTQ"),
        ("QAT, distilled", "unquantised"),
    )
    return [
        {"bits": bits, "way": a, "minus": b}
        | {k: round(v, 4) for k, v in paired(losses(a, bits), losses(b, bits)).items()}
        for bits in scale.bits
        for a, b in pairs
    ]


def said_of(recipe: Recipe) -> dict:
    """A recipe but for what is not used: the rates come from a search, and no layer is copied."""
    unused = ("muon_lr", "adam_lr", "from_layers", "seed")
    return {k: v for k, v in asdict(recipe).items() if k not in unused}


def report(parts: dict, target: Llama, scale: Scale) -> dict:
    """All figures of the finished parts, and what makes the runs repeatable."""
    recipe = scale.recipe
    seeds = [parts[f"seed-{seed}"] for seed in scale.seeds]
    runs = [run for part in seeds for run in part["runs"]]
    start = {k: parts["before"][k] for k in ("target", "nearest")}
    rates = [
        {"way": way, "bits": bits}
        | {k: parts[part_of_rates(way, bits)][k] for k in ("tried", "chosen")}
        for bits in scale.bits
        for way in WAYS
    ]
    return {
        "provenance": {
            "script": "scripts/train_qat.py",
            "machine": ", ".join(sorted({part["machine"] for part in parts.values()})),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": ", ".join(sorted({part["commit"] for part in parts.values()})),
            "measured_code": MEASURED_CODE,
            "versions": {name: version(name) for name in ("firsttoken", "torch", "numpy")}
            | {"python": platform.python_version()},
            "seeds": scale.seeds,
            "cpu_s": {name: part["cpu_s"] for name, part in parts.items()},
        },
        "text": {
            "train": "that of the shipped model (data/model/training.json)",
            "calibration_rows_and_tokens": scale.calibration,
            "heldout": "data/heldout.txt",
            "windows_to_choose_by": scale.choosing,
            "windows_of_the_curves": len(range(0, scale.choosing, 2)),
            "windows_to_report": scale.reporting,
            "context": CONTEXT,
        },
        "rounding": {
            "group_size": GROUP,
            "bits_per_weight": {
                str(bits): weight_bits(target, Weights("nearest", bits, GROUP))["bits_per_weight"]
                for bits in scale.bits
            },
            "shown": f"layer {scale.shown[0]}, {scale.shown[1]}",
        },
        "recipe": said_of(recipe),
        "tokens_seen": recipe.steps * recipe.tokens_per_step,
        "tokens_seen_by_the_target": TARGET.steps * TARGET.tokens_per_step,
        "rates": {"seed": RATE_SEED, "recipe": said_of(scale.rate_recipe), "found": rates},
        "before": start,
        "runs": runs,
        "differences": differences(runs, start, scale),
    }


def table(result: dict) -> str:
    """The report as text."""
    start, runs = result["before"], result["runs"]
    lines = [f"unquantised: {start['target']['nats_per_token']:.4f} nats a token"]
    lines.append(f"after {result['tokens_seen']:,} tokens, mean over seeds:")
    rates = {(row["way"], row["bits"]): row["chosen"] for row in result["rates"]["found"]}
    for bits, nearest in start["nearest"].items():
        lines.append(f"{bits} bits  {'nearest':16}{nearest['nats_per_token']:8.4f}")
        for way in ("GPTQ", *WAYS):
            of = [r for r in runs if (r["way"], str(r["bits"])) == (way, bits)]
            line = f"{bits} bits  {way:16}{np.mean([r['nats_per_token'] for r in of]):8.4f}"
            if way in WAYS:
                plain, changed = (
                    np.mean([r[k] for r in of]) for k in ("unrounded_nats_per_token", "changed")
                )
                line += f"  unrounded {plain:.4f}, codes changed {changed:.1%}"
                line += f", rate {rates[way, int(bits)]:g}"
            lines.append(line)
    for d in result["differences"]:
        gap = f"{d['mean']:+.4f} ± {d['half_width_95']:.4f}"
        lines.append(f"{d['bits']} bits  {d['way']} - {d['minus']}: {gap}")
    return "\n".join(lines)


def quick_scale() -> Scale:
    """Two steps of everything."""
    short = {"steps": 2, "short_steps": 1, "warmup_steps": 1, "tokens_per_step": CONTEXT}
    return Scale(
        recipe=replace(RECIPE, **short),
        rate_recipe=replace(RECIPE, **short, seed=RATE_SEED),
        seeds=(0, 1),
        rates=tuple((way, (3e-4, 1e-3)) for way in WAYS),
        widenings=1,
        calibration=(2, 64),
        choosing=1,
        reporting=2,
        marks=(0, 2),
        shown=(1, "mlp.up_proj"),
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--source", type=Path, default=Path(sysconfig.get_paths()["stdlib"]))
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "measured")
    parser.add_argument("--work", type=Path, default=ROOT / "_build" / "qat")
    parser.add_argument("--table", action="store_true", help="show the report that is there")
    parser.add_argument("--quick", action="store_true", help="a toy, to try the script")
    args = parser.parse_args(argv)
    stored = args.out / "qat.json"
    if args.table:
        print(table(json.loads(stored.read_text())))
        return
    torch.set_num_threads(1)
    scale = quick_scale() if args.quick else Scale()
    target = Llama.from_pretrained(ROOT / "data" / "model" / "target")
    target = toy(target) if args.quick else target
    work = Work(args.work, {"code": MEASURED_CODE, "scale": asdict(scale)})
    stream = training_stream(args.source, 20 if args.quick else None)
    choosing, reporting = windows = split_windows(scale)

    parts: dict[str, dict] = {}

    def make(name: str, how: Callable[[], dict]) -> dict:
        parts[name] = work.kept(name, how)
        return parts[name]

    make("before", lambda: before(target, reporting, scale))
    rates = {
        (way, bits): make(
            part_of_rates(way, bits),
            lambda way=way, bits=bits: choose_rate(
                way, bits, target, stream, choosing, scale, work
            ),
        )
        for bits in scale.bits
        for way in WAYS
    }
    for seed in scale.seeds:
        make(
            f"seed-{seed}",
            lambda seed=seed: one_seed(seed, target, rates, stream, windows, scale, work),
        )
    result = report(parts, target, scale)
    print(table(result))
    if args.quick:  # a toy's figures are nobody's result
        write(args.work / "qat.json", result)
        return
    write(stored, result)
    print("written:", stored)


if __name__ == "__main__":
    main()
