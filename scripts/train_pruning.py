"""Prune the shipped target; measure the damage, and what repairs it at equal training tokens.

    python scripts/train_pruning.py                   # 160 CPU minutes, 20 and a GPU's 15
    python scripts/train_pruning.py --only seed-1     # one part, to share the work
    python scripts/train_pruning.py --table
    python scripts/train_pruning.py --quick --work /tmp/quick

Parts: `subsets` (the loss of every set of layers), `importance` (of all units), `analysis` (what
the loss is without them), `rates` (a learning rate for each way of repair), `before` (the repair),
`seed-0` to `seed-2` (five sizes, four ways), and `draft`, which is stored beside the shipped one.
What needs another part first says so; the last five can be made side by side. Without --only all
that is missing is made, and the report written. Finished parts are kept in --work, and a training
that was stopped goes on from its last checkpoint, here or on another machine. Trainings take a GPU
where there is one; everything else is measured on one thread of the processor.
"""

import argparse
import copy
import json
import math
import platform
import shutil
import sysconfig
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn
from tqdm import tqdm
from train_model import (
    CONTEXT,
    DRAFT,
    ROOT,
    TARGET,
    Batches,
    Recipe,
    initial_weights,
    save,
    schedule,
)
from train_variants import evaluate, heldout_windows, paired, training_stream

from firsttoken.architectures import Architecture
from firsttoken.models.evaluation import bits_per_byte, mean_acceptance
from firsttoken.models.llama import load_model
from firsttoken.models.llama_torch import Llama
from firsttoken.models.tokenizer import tokenizer
from firsttoken.provenance import code_digest, commit, load_average, processor
from firsttoken.pruning import (
    METHODS,
    distillation_loss,
    gated,
    importance,
    input_norms,
    keep_best,
    prune,
    prune_2_4,
    unit_shape,
)

MEASURED_CODE = code_digest(
    [
        "models/checkpoint",
        "models/evaluation",
        "models/llama",
        "models/llama_torch",
        "pruning",
        "models/rope",
        "scripts/train_model.py",
    ]
)

# The shipped models' recipes: short windows at first, then the whole context. For the repair in
# short, 2 % of the target's tokens, and with half as many a step: so small a budget is better spent
# on more steps. For the draft the shipped draft's, to the letter.
RECIPE = replace(TARGET, steps=128, short_steps=96, warmup_steps=8, tokens_per_step=2048)
DRAFT_RECIPE = replace(DRAFT, from_layers=())
WAYS = {  # what it starts from, what it learns from
    "fine-tune": ("pruned", "text"),
    "distil": ("pruned", "target"),
    "from scratch": ("random", "text"),
    "distil from scratch": ("random", "target"),
}
# Layers that stay, and whether they are thin. A thin layer has two thirds of the query heads, and
# the neurons that make it half as large: so two of them are as large as one whole, to the number.
SIZES = {
    "4 layers": (4, False),
    "8 thin layers": (8, True),
    "4 thin layers": (4, True),
    "1 layer": (1, False),
    "2 thin layers": (2, True),
}
RATE_SEED = 100  # of no run that is reported
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # of trainings
HALF = 4  # layers that stay in the lottery
LOTTERY = ("best", "median", "worst")
RANDOM = 3  # draws of what goes, beside the methods


@dataclass(frozen=True)
class Scale:
    """How much is measured; rates are factors on the recipe's."""

    recipe: Recipe = RECIPE
    draft: Recipe = DRAFT_RECIPE
    seeds: tuple[int, ...] = (0, 1, 2)
    rates: tuple[tuple[str, tuple[float, ...]], ...] = (
        ("fine-tune", (0.25, 0.5, 1.0)),
        ("distil", (0.25, 0.5, 1.0)),
        ("from scratch", (1.0, 2.0, 4.0)),
        ("distil from scratch", (1.0, 2.0, 4.0)),
    )
    rate_size: str = "4 thin layers"
    sizes: tuple[str, ...] = tuple(SIZES)
    calibration: tuple[int, int] = (16, 256)  # rows and tokens
    few: tuple[int, int] = (8, 128)  # the same for neurons, of which 4,096 are left out in turn
    choosing: int = 16  # windows of the held-out text by which something is chosen
    reporting: int = 48  # others, by which results are reported
    marks: tuple[int, ...] = (0, 16, 32, 64, 128)  # steps at which a loss is noted
    draft_marks: tuple[int, ...] = tuple(range(0, 2601, 200))
    draft_neurons: int = 320
    compared_chars: int | None = None  # of the held-out text; None: all
    rounds: int = 400


class Muon(torch.optim.Optimizer):
    """As `torch.optim.Muon`, which works in bfloat16: many times slower where that is emulated.

    Matrices of one shape are orthogonalised together.
    """

    def __init__(self, params, lr: float, weight_decay: float, momentum: float = 0.95):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            lr, momentum, same = group["lr"], group["momentum"], {}
            for p in group["params"]:
                if "mean" not in self.state[p]:
                    self.state[p]["mean"] = torch.zeros_like(p)
                mean = self.state[p]["mean"]
                mean.lerp_(p.grad, 1 - momentum)
                same.setdefault(p.shape, []).append((p, p.grad.lerp(mean, momentum)))
            for (n_out, n_in), pairs in same.items():
                turns = orthogonal(torch.stack([update for _, update in pairs]))
                for (p, _), turn in zip(pairs, turns, strict=True):
                    p.mul_(1 - lr * group["weight_decay"])
                    p.sub_(turn, alpha=lr * math.sqrt(max(1, n_out / n_in)))


def orthogonal(x: Tensor) -> Tensor:
    """Matrices (…, out, in) with their singular values pushed towards 1 (Newton and Schulz)."""
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


def optimizers(model: Llama, recipe: Recipe, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for the rest, at `rate` times the recipe's."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and ".layers." in n]
    rest = [p for n, p in model.named_parameters() if p.ndim < 2 or ".layers." not in n]
    return [
        Muon(matrices, rate * recipe.muon_lr, recipe.weight_decay),
        torch.optim.AdamW(rest, rate * recipe.adam_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


# What is kept


def write(path: Path, value: dict) -> None:
    """Written beside and renamed, so that a stop in mid-write leaves no half a result."""
    path.with_suffix(".tmp").write_text(json.dumps(value, indent=1) + "\n")
    path.with_suffix(".tmp").replace(path)


class Work:
    """The folder of finished parts; those of other code or another scale are refused."""

    def __init__(self, folder: Path, key: dict):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.key = folder, json.loads(json.dumps(key))

    def check(self, path: Path, key: dict) -> None:
        for name, value in self.key.items():
            if key[name] != value:
                raise SystemExit(f"{path} is from another {name}: remove it or change --work")

    def has(self, name: str) -> bool:
        return (self.folder / f"{name}.json").exists()

    def kept(self, name: str, make: Callable[[], dict]) -> dict:
        """What `make` gives, from the folder where it has been made before."""
        path = self.folder / f"{name}.json"
        if not path.exists():
            began = time.process_time()
            value = {"commit": commit()} | made_here("cpu") | make()
            spent = {"cpu_s": round(time.process_time() - began, 1)}
            write(path, {"key": self.key, "value": spent | value})
        stored = json.loads(path.read_text())
        self.check(path, stored["key"])
        return stored["value"]


def made_here(device: str) -> dict[str, str]:
    """The machine and PyTorch by which something is made."""
    machine = f"{processor()}, 1 thread" if device == "cpu" else torch.cuda.get_device_name()
    return {"machine": machine, "torch": version("torch")}


def all_of(parts: Iterable[dict], key: str) -> str:
    """What several parts say, each answer once."""
    return ", ".join(sorted({part[key] for part in parts}))


# The analysis


def text_rows(stream: np.ndarray, shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    """Rows from all over the training text: what importance is measured on."""
    starts = np.random.default_rng(seed).integers(len(stream) - shape[1], size=shape[0])
    return stream[starts[:, None] + np.arange(shape[1])].astype(np.int64)


def split_windows(scale: Scale) -> tuple[np.ndarray, np.ndarray]:
    """(those by which something is chosen, those by which it is reported): every fourth, others."""
    windows = heldout_windows()
    chosen = np.arange(len(windows)) % 4 == 0

    def spread(rows: np.ndarray, n: int) -> np.ndarray:
        return rows[np.arange(n) * len(rows) // n]

    return spread(windows[chosen], scale.choosing), spread(windows[~chosen], scale.reporting)


def nats(model: Llama, windows: np.ndarray) -> float:
    """Held-out loss a token."""
    with torch.no_grad():
        losses = [
            F.cross_entropy(model(rows[:, :-1]).mT, rows[:, 1:], reduction="none")
            for rows in torch.from_numpy(windows).to(model.model.norm.weight.device).split(8)
        ]
    return round(torch.cat(losses).double().mean().item(), 4)


def smaller(target: Llama, **kept) -> Llama:
    """A model of what is kept of the target; see `prune`."""
    weights = {name: w.numpy() for name, w in target.state_dict().items()}
    weights.pop("lm_head.weight")  # tied to the embedding
    arch, weights = prune(target.arch, weights, **kept)
    return Llama(arch, weights, target.rope_theta, norm_eps=target.norm_eps)


def methods_of(kind: str) -> list[str]:
    return [m for m in METHODS if kind == "layers" or m != "block_influence"]


def all_scores(target: Llama, rows: np.ndarray, few: np.ndarray) -> dict:
    """Every kind of unit by every method, and how well each agrees with leaving one out."""
    found = {}
    for kind in ("layers", "heads", "kv_heads", "channels", "neurons"):
        text = few if kind == "neurons" else rows
        scores = {m: importance(target, text, kind, m) for m in methods_of(kind)}
        truth = scores["leave_one_out"]
        found[kind] = {"scores": {m: s.tolist() for m, s in scores.items()}, "spearman": {}}
        for m, s in scores.items():
            agreement = {"all": rank_correlation(s.ravel(), truth.ravel())}
            if kind in ("heads", "neurons"):
                pairs = zip(s, truth, strict=True)
                agreement["within_layers"] = np.mean([rank_correlation(a, b) for a, b in pairs])
            found[kind]["spearman"][m] = {k: round(float(v), 4) for k, v in agreement.items()}
        print(f"importance of {kind}: done", flush=True)
    return found


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    return stats.spearmanr(a, b)[0]


def with_random(kind: str, target: Llama, scores: dict) -> dict[str, np.ndarray]:
    """The scores of every method, and random ones."""
    shape = unit_shape(target.arch, kind)
    draws = {f"random {i}": np.random.default_rng(i).random(shape) for i in range(RANDOM)}
    return {m: np.array(s) for m, s in scores[kind]["scores"].items()} | draws


def every_subset(target: Llama, windows: np.ndarray) -> dict[str, float]:
    """The loss of every set of layers, by their digits: "0137" are four that stay."""
    n = target.arch.n_layers
    sets = [kept for size in range(1, n + 1) for kept in combinations(range(n), size)]
    return {
        "".join(map(str, kept)): nats(smaller(target, layers=kept), windows)
        for kept in tqdm(sets, desc="sets of layers", mininterval=10)
    }


def damage(target: Llama, scores: dict, windows: np.ndarray, subsets: dict) -> dict:
    """Loss by units removed, for every kind and method: {kind: {method: [[removed, nats], …]}}.

    "heads_anywhere" are masked, wherever they stand; a Llama smaller for it needs as many from each
    layer and group, as in "heads".
    """
    arch = target.arch
    n_layers, n_heads, n_kv = arch.n_layers, arch.n_heads, arch.n_kv_heads
    group = n_heads // n_kv

    def grouped(s: np.ndarray, n: int) -> float:
        return nats(smaller(target, heads=keep_best(s, n_kv * n, groups=n_kv)), windows)

    def whole_groups(s: np.ndarray, n: int) -> float:
        heads = (keep_best(s, n)[..., None] * group + np.arange(group)).reshape(n_layers, -1)
        return nats(smaller(target, heads=heads), windows)

    def masked(s: np.ndarray, n: int) -> float:
        gates = torch.zeros(s.size)
        gates[keep_best(s.ravel(), n)] = 1
        with gated(target, "heads", gates.reshape(s.shape)):
            return nats(target, windows)

    tenths = np.arange(9, 0, -1) / 10
    axes = {  # kind: (scores of, numbers that stay, loss of that)
        "layers": (
            "layers",
            range(n_layers - 1, max(n_layers - 7, 0), -1),
            lambda s, n: subsets["".join(map(str, keep_best(s, n)))],
        ),
        "heads": ("heads", range(group - 1, 0, -1), grouped),
        "kv_heads": ("kv_heads", range(n_kv - 1, 0, -1), whole_groups),
        "heads_anywhere": ("heads", n_heads * n_layers * np.arange(7, 0, -1) // 8, masked),
        "neurons": (
            "neurons",
            np.rint(arch.d_ff * tenths).astype(int),
            lambda s, n: nats(smaller(target, neurons=keep_best(s, n)), windows),
        ),
        "channels": (
            "channels",
            np.rint(arch.d_model * tenths).astype(int),
            lambda s, n: nats(smaller(target, channels=keep_best(s, n)), windows),
        ),
    }
    whole = {"heads": group, "heads_anywhere": n_heads * n_layers}
    found = {}
    for kind, (of, left, loss) in axes.items():
        total = whole.get(kind, unit_shape(arch, of)[-1])
        found[kind] = {
            m: [[int(total - n), loss(s, int(n))] for n in left]
            for m, s in tqdm(with_random(of, target, scores).items(), desc=kind, mininterval=10)
        }
    return found


def half_of_the_weights(target: Llama, rows: np.ndarray, windows: np.ndarray) -> dict[str, float]:
    """The loss with half of each matrix in the layers zero: by 2:4 patterns, and anywhere."""
    norms, rng = input_norms(target, rows), np.random.default_rng(0)
    ways = {
        "2:4 by magnitude": lambda w, _: prune_2_4(w),
        "2:4 by Wanda": lambda w, norm: prune_2_4(w, np.abs(w) * norm),
        "2:4 at random": lambda w, _: prune_2_4(w, rng.random(w.shape)),
        "anywhere by magnitude": lambda w, _: np.where(np.abs(w) > np.median(np.abs(w)), w, 0),
    }
    found = {}
    for way, zeroed in ways.items():
        model = smaller(target)
        with torch.no_grad():
            for name, norm in norms.items():
                weight = model.get_parameter(name)
                weight.copy_(torch.from_numpy(zeroed(weight.numpy(), norm)))
        found[way] = nats(model, windows)
    return found


def analysis(
    target: Llama, rows: np.ndarray, windows: np.ndarray, subsets: dict, scores: dict
) -> dict:
    """The damage by everything that was scored, and what follows for the repair."""
    found = {
        "whole": nats(target, windows),
        "importance": scores,
        "subsets": subsets,
        "damage": damage(target, scores, windows, subsets),
        "half_of_the_weights": half_of_the_weights(target, rows, windows),
    }
    return found | {"chosen": chosen(found, target.arch)}


def thin(arch: Architecture) -> tuple[int, int]:
    """(query heads of a group, neurons) of a layer half as large."""
    d, n_kv = arch.d_model, arch.n_kv_heads
    per_group = 2 * arch.n_heads // (3 * n_kv)
    keys = 2 * d * n_kv * arch.head_dim
    whole = 2 * d * arch.n_heads * arch.head_dim + keys + 3 * d * arch.d_ff + 2 * d
    attention = 2 * d * per_group * n_kv * arch.head_dim + keys + 2 * d
    return per_group, (whole // 2 - attention) // (3 * d)


def chosen(found: dict, arch: Architecture) -> dict:
    """For each axis the method that does least damage where the sizes need it, and what it keeps.

    Layers: the set that the best method keeps, for each number of layers.
    """
    per_group, d_ff = thin(arch)
    methods = {kind: methods_of(kind) for kind in ("layers", "heads", "neurons")}

    def best(kind: str, removed: float) -> str:
        table = found["damage"][kind]

        def loss(method: str) -> float:
            return min(table[method], key=lambda row: abs(row[0] - removed))[1]

        return min(methods[kind], key=loss)

    layers = {}
    for n in sorted({n for n, _ in SIZES.values()} | {HALF}):
        if n < arch.n_layers:
            sets = {
                m: "".join(map(str, keep_best(found["importance"]["layers"]["scores"][m], n)))
                for m in methods["layers"]
            }
            method = min(sets, key=lambda m, sets=sets: found["subsets"][sets[m]])
            layers[n] = {"method": method, "kept": sets[method]}
    half = min(HALF, arch.n_layers - 1)
    ranked = sorted((loss, kept) for kept, loss in found["subsets"].items() if len(kept) == half)
    places = {"best": 0, "median": len(ranked) // 2, "worst": -1}
    return {
        "layers": layers,
        "heads": best("heads", arch.n_heads // arch.n_kv_heads - per_group),
        "neurons": best("neurons", arch.d_ff - d_ff),
        "lottery": {name: ranked[place][1] for name, place in places.items()},
    }


# The repair


def start_of(size: str, target: Llama, found: dict) -> Llama:
    """The target cut down to a size; "best", "median" and "worst" are sets of whole layers."""
    arch, choice = target.arch, found["chosen"]
    if size in LOTTERY:
        return smaller(target, layers=[int(i) for i in choice["lottery"][size]])
    n, is_thin = SIZES[size]
    kept = {}
    if n < arch.n_layers:
        kept["layers"] = [int(i) for i in choice["layers"][str(n)]["kept"]]
    if is_thin:
        per_group, d_ff = thin(arch)
        heads, neurons = (scores_of(found, kind) for kind in ("heads", "neurons"))
        n_kv = arch.n_kv_heads
        kept["heads"] = keep_best(heads, per_group * n_kv, groups=n_kv)
        kept["neurons"] = keep_best(neurons, d_ff)
    return smaller(target, **kept)


def scores_of(found: dict, kind: str) -> np.ndarray:
    """The scores by the method that was chosen for heads or neurons."""
    return np.array(found["importance"][kind]["scores"][found["chosen"][kind]])


class Student:
    """A model in training: its way of repair, its optimisers, what it has cost."""

    def __init__(self, size: str, way: str, model: Llama, recipe: Recipe, rate: float):
        if WAYS[way][0] == "random":
            weights = initial_weights(model.arch, recipe.seed)
            model = Llama(model.arch, weights, model.rope_theta, norm_eps=model.norm_eps)
        self.size, self.way, self.rate, self.name = size, way, rate, [size, way, rate]
        self.model, self.recipe = model.to(DEVICE).requires_grad_(True), recipe
        self.optimizers = optimizers(model, recipe, rate)
        self.base = [[g["lr"] for g in o.param_groups] for o in self.optimizers]
        self.curve, self.cpu_s = [], 0.0

    @property
    def distils(self) -> bool:
        return WAYS[self.way][1] == "target"

    def learn(self, step: int, tokens: Tensor, targets: Tensor, wanted: Tensor | None) -> None:
        """One step; `wanted` are the target's logits."""
        began = time.process_time()
        logits = self.model(tokens)
        if self.distils:
            loss = distillation_loss(logits, wanted)
        else:
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for o, rates in zip(self.optimizers, self.base, strict=True):
            for group, rate in zip(o.param_groups, rates, strict=True):
                group["lr"] = rate * schedule(step, self.recipe)
            o.step()
            o.zero_grad()
        self.cpu_s += time.process_time() - began
        if not math.isfinite(loss.item()):
            raise RuntimeError(f"{self.size}, {self.way}: loss {loss.item()} at step {step}")

    def state(self) -> dict:
        return {
            "name": self.name,
            "model": self.model.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
            "curve": self.curve,
            "cpu_s": self.cpu_s,
        }

    def load(self, state: dict) -> None:
        self.model.load_state_dict(state["model"])
        for o, s in zip(self.optimizers, state["optimizers"], strict=True):
            o.load_state_dict(s)
        self.curve, self.cpu_s = state["curve"], state["cpu_s"]


def train(
    name: str,
    students: list[Student],
    recipe: Recipe,
    stream: np.ndarray,
    target: Llama,
    windows: np.ndarray,
    marks: tuple[int, ...],
    work: Work,
    checkpoint_every_s: float = 120,
) -> dict:
    """Train the students side by side, on the same batches, each of which the target reads once.

    At the steps `marks` their held-out loss is noted. Afterwards they are on the processor.
    """
    checkpoint, batches = work.folder / f"{name}.pt", Batches(stream, recipe)
    first, target_cpu_s, made = resume(checkpoint, students, recipe, work)
    teacher = copy.deepcopy(target).to(DEVICE)
    steps = tqdm(range(first, recipe.steps), name, recipe.steps, initial=first, mininterval=10)
    saved = time.perf_counter()
    for step in steps:
        note(students, step, windows, marks)
        tokens, targets = (t.to(DEVICE) for t in batches(step))
        began, wanted = time.process_time(), None
        if any(s.distils for s in students):
            with torch.no_grad():
                wanted = teacher(tokens)
        target_cpu_s += time.process_time() - began
        for student in students:
            student.learn(step, tokens, targets, wanted)
        if time.perf_counter() - saved >= checkpoint_every_s or step == recipe.steps - 1:
            saved = time.perf_counter()
            made = [*made, here] if (here := made_here(DEVICE.type)) not in made else made
            state = {
                "key": work.key,
                "recipe": asdict(recipe),
                "students": [s.state() for s in students],
                "step": step + 1,
                "target_cpu_s": target_cpu_s,
                "made": made,
            }
            torch.save(state, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)
    note(students, recipe.steps, windows, marks)
    for student in students:
        student.model.cpu()
    return {"target_cpu_s": round(target_cpu_s, 1)} | {
        key: all_of(made, key) for key in ("machine", "torch")
    }


def resume(
    checkpoint: Path, students: list[Student], recipe: Recipe, work: Work
) -> tuple[int, float, list[dict]]:
    """Bring the students to where they were stopped: (next step, the target's seconds, on what)."""
    if not checkpoint.exists():
        return 0, 0.0, []
    state = torch.load(checkpoint, map_location="cpu")
    work.check(checkpoint, state["key"])
    names = [s.name for s in students]
    if state["recipe"] != asdict(recipe) or [s["name"] for s in state["students"]] != names:
        raise SystemExit(f"{checkpoint} is from another recipe: remove it or change --work")
    for student, s in zip(students, state["students"], strict=True):
        student.load(s)
    return state["step"], state["target_cpu_s"], state["made"]


def note(students: list[Student], step: int, windows: np.ndarray, marks: tuple[int, ...]) -> None:
    """Add the held-out loss to the curves, at a step that is marked, once."""
    for s in students:
        if step in marks and step not in [at for at, _ in s.curve]:
            s.curve.append([step, nats(s.model, windows)])


def choose_rates(target: Llama, found: dict, stream, windows, scale: Scale, work: Work) -> dict:
    """The rate of each way that leaves the lowest loss, for one size and a seed of its own."""
    recipe = replace(scale.recipe, seed=RATE_SEED)
    students = [
        Student(scale.rate_size, way, start_of(scale.rate_size, target, found), recipe, rate)
        for way, rates in scale.rates
        for rate in rates
    ]
    train("rates", students, recipe, stream, target, windows, (), work)
    tried = {way: [] for way in WAYS}
    for s in students:
        tried[s.way].append([s.rate, nats(s.model, windows)])
    best = {way: min(results, key=lambda row: row[1])[0] for way, results in tried.items()}
    return {"tried": tried, "chosen": best}


def figures(model: Llama, windows: np.ndarray) -> dict:
    """Size and held-out loss."""
    result = evaluate(model, windows)
    losses = {k: round(result[k], 4) for k in ("nats_per_token", "bits_per_byte")}
    return {"n_params": model.arch.n_params} | losses


def before(target: Llama, found: dict, windows: np.ndarray, scale: Scale) -> dict:
    """The target's figures, and those of every size before its repair."""
    starts = {size: start_of(size, target, found) for size in (*scale.sizes, *LOTTERY)}
    return {"target": figures(target, windows)} | {
        size: figures(model, windows) for size, model in starts.items()
    }


def one_seed(seed: int, target: Llama, found: dict, rates: dict, stream, windows, scale, work):
    """Every size repaired in every way, and the sets of the lottery distilled."""
    recipe = replace(scale.recipe, seed=seed)
    pairs = [(size, way) for size in scale.sizes for way in WAYS]
    students = [
        Student(size, way, start_of(size, target, found), recipe, rates["chosen"][way])
        for size, way in pairs + [(name, "distil") for name in LOTTERY]
    ]
    choosing, reporting = windows
    spent = train(
        f"seed-{seed}", students, recipe, stream, target, choosing[::2], scale.marks, work
    )
    runs = [
        {"size": s.size, "way": s.way, "seed": seed}
        | figures(s.model, reporting)
        | {"curve": s.curve, "cpu_s": round(s.cpu_s, 1)}
        for s in students
    ]
    total = sum(run["cpu_s"] for run in runs) + spent["target_cpu_s"]
    return {"runs": runs, "cpu_s": round(total, 1)} | spent


# The draft


def draft(target: Llama, found: dict, stream, windows, scale: Scale, work: Work) -> dict:
    """One layer with some of its neurons, distilled as long as the shipped draft, and stored."""
    layers = [int(i) for i in found["chosen"]["layers"]["1"]["kept"]]
    neurons = keep_best(scores_of(found, "neurons"), scale.draft_neurons)
    student = Student(
        "draft", "distil", smaller(target, layers=layers, neurons=neurons), scale.draft, rate=1.0
    )
    spent = train(
        "draft", [student], scale.draft, stream, target, windows[::2], scale.draft_marks, work
    )
    arch, folder = student.model.arch, work.folder / "pruned_draft"
    save(student.model, folder)
    (folder / "README.md").write_text(card(arch, layers), encoding="utf-8")
    return {
        "layers": layers,
        "n_layers": arch.n_layers,
        "n_heads": arch.n_heads,
        "n_kv_heads": arch.n_kv_heads,
        "d_ff": arch.d_ff,
        "recipe": asdict(scale.draft),
        "tokens_seen": scale.draft.steps * scale.draft.tokens_per_step,
        "curve": student.curve,
        "cpu_s": round(student.cpu_s + spent["target_cpu_s"], 1),
        "compared": compared(folder, scale),
    } | spent


def card(arch: Architecture, layers: list[int]) -> str:
    """The text beside the weights."""
    return f"""# The pruned draft

Layer {", ".join(map(str, layers))} of the target beside it, {arch.d_ff} of its neurons,
distilled from the target: {arch.n_params:,} parameters in Hugging Face's Llama format. Made by
`scripts/train_pruning.py`, compared with the shipped draft in `data/measured/pruning.json`. Text
and licence are those of the shipped pair.
"""


def compared(folder: Path, scale: Scale) -> dict:
    """Size, loss, acceptance and time of a step of the shipped draft and of the one in a folder."""
    shipped = ROOT / "data" / "model"
    folders = {"target": shipped / "target", "draft": shipped / "draft", "pruned_draft": folder}
    text = (ROOT / "data" / "heldout.txt").read_text(encoding="utf-8")[: scale.compared_chars]
    tok = tokenizer()
    target = Llama.from_pretrained(folders["target"])
    seconds = step_times({name: load_model(path) for name, path in folders.items()}, scale.rounds)
    found = {}
    for name, path in folders.items():
        model = Llama.from_pretrained(path)
        found[name] = {
            "n_params": model.arch.n_params,
            "file_bytes": (path / "model.safetensors").stat().st_size,
            "step_s": seconds[name],
        }
        if name != "target":
            found[name] |= {
                "bits_per_byte": round(bits_per_byte(model, tok, text), 4),
                "acceptance": round(mean_acceptance(target, model, tok, text), 4),
                "cost_ratio": round(seconds[name] / seconds["target"], 4),
            }
    return found | {"rounds": scale.rounds, "load_average": load_average()}


def step_times(models: dict, rounds: int, before: int = 256) -> dict[str, float]:
    """Seconds of a pass over one token after others, in NumPy on one thread: the lower quartile."""
    rng, runs = np.random.default_rng(0), {name: [] for name in models}
    caches = {name: model.new_cache(1, before + 1) for name, model in models.items()}
    text = rng.integers(1024, size=(1, before + 1))
    for name, model in models.items():
        model(text[:, :before], caches[name])
    for _ in range(rounds):
        for name, model in models.items():  # in turn, so that a busy moment meets all
            began = time.perf_counter()
            model(text[:, before:], caches[name])
            runs[name].append(time.perf_counter() - began)
            caches[name].truncate(before)
    return {name: round(float(np.quantile(times, 0.25)), 7) for name, times in runs.items()}


# The report


def differences(runs: list[dict], sizes: tuple[str, ...]) -> list[dict]:
    """What one way or size leaves more than another, in nats a token, paired by seed."""

    def losses(key: tuple[str, str]) -> list[float]:
        return [r["nats_per_token"] for r in runs if (r["size"], r["way"]) == key]

    by_way = [
        ((size, a), (size, b))
        for size in sizes
        for a, b in (
            ("distil", "fine-tune"),
            ("distil", "from scratch"),
            ("fine-tune", "from scratch"),
            ("distil", "distil from scratch"),
            ("distil from scratch", "from scratch"),
        )
    ]
    by_size = [
        ((a, way), (b, way))
        for a, b in (("8 thin layers", "4 layers"), ("2 thin layers", "1 layer"))
        for way in WAYS
        if {a, b} <= set(sizes)
    ]
    lottery = [((name, "distil"), ("best", "distil")) for name in LOTTERY[1:]]
    return [
        {"run": a, "minus": b} | {k: round(v, 4) for k, v in paired(losses(a), losses(b)).items()}
        for a, b in by_way + by_size + lottery
    ]


def shown(found: dict) -> dict:
    """The analysis without most of the neurons' scores: every sixteenth is kept for a picture."""
    slim = {}
    for kind, of in found["importance"].items():
        scores = {m: np.array(s) for m, s in of["scores"].items()}
        if kind == "neurons":
            scores = {m: s.ravel()[::16] for m, s in scores.items()}
        rounded = {m: [float(f"{x:.4g}") for x in s.ravel()] for m, s in scores.items()}
        slim[kind] = {"scores": rounded, "spearman": of["spearman"]}
    kept = ("whole", "damage", "half_of_the_weights", "subsets", "chosen", "cpu_s")
    return {"importance": slim} | {key: found[key] for key in kept}


def report(parts: dict, target: Llama, scale: Scale) -> dict:
    """All figures of the finished parts, and what makes the runs repeatable."""
    recipe = scale.recipe
    seeds = [parts[f"seed-{seed}"] for seed in scale.seeds]
    runs = [run for part in seeds for run in part["runs"]]
    return {
        "provenance": {
            "script": "scripts/train_pruning.py",
            "machine": all_of(parts.values(), "machine"),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": all_of(parts.values(), "commit"),
            "measured_code": MEASURED_CODE,
            "versions": {name: version(name) for name in ("firsttoken", "numpy", "scipy")}
            | {"python": platform.python_version(), "torch": all_of(parts.values(), "torch")},
            "seeds": scale.seeds,
            "cpu_s": {name: part["cpu_s"] for name, part in parts.items()},
        },
        "text": {
            "train": "that of the shipped model (data/model/training.json)",
            "calibration_rows_and_tokens": scale.calibration,
            "calibration_of_neurons": scale.few,
            "heldout": "data/heldout.txt",
            "windows_to_choose_by": scale.choosing,
            "windows_to_report": scale.reporting,
            "context": CONTEXT,
        },
        "analysis": shown(parts["analysis"]),
        "repair": {
            "recipe": asdict(recipe),
            "tokens_seen": recipe.steps * recipe.tokens_per_step,
            "tokens_seen_by_the_target": TARGET.steps * TARGET.tokens_per_step,
            "rates": {k: parts["rates"][k] for k in ("tried", "chosen")}
            | {"seed": RATE_SEED, "size": scale.rate_size},
            "before": {k: v for k, v in parts["before"].items() if isinstance(v, dict)},
            "target_cpu_s": {s: p["target_cpu_s"] for s, p in zip(scale.seeds, seeds, strict=True)},
            "runs": runs,
            "differences": differences(runs, scale.sizes),
        },
        "draft": {
            k: v for k, v in parts["draft"].items() if k not in ("machine", "torch", "commit")
        },
    }


def table(result: dict) -> str:
    """The report as text."""
    found, repair = result["analysis"], result["repair"]
    lines = [f"whole target: {found['whole']:.3f} nats a token", "", "without units, nats a token:"]
    for kind, methods in found["damage"].items():
        for method, rows in methods.items():
            losses = "  ".join(f"-{removed}: {loss:.2f}" for removed, loss in rows)
            lines.append(f"{kind:15}{method:16}{losses}")
    lines += [f"{way}: {loss:.3f}" for way, loss in found["half_of_the_weights"].items()]
    lines += ["", "rank correlation with leaving one out:"]
    for kind, of in found["importance"].items():
        lines.append(
            f"{kind:10}" + "  ".join(f"{m} {v['all']:.2f}" for m, v in of["spearman"].items())
        )
    lines += ["", "rates: " + ", ".join(f"{w} {r}" for w, r in repair["rates"]["chosen"].items())]
    lines.append(f"after {repair['tokens_seen']:,} tokens, mean over seeds:")
    names = dict.fromkeys((run["size"], run["way"]) for run in repair["runs"])
    for size, way in names:
        runs = [r for r in repair["runs"] if (r["size"], r["way"]) == (size, way)]
        loss = np.mean([r["nats_per_token"] for r in runs])
        start = repair["before"][size]
        lines.append(
            f"{size:15}{way:20}{start['n_params']:10,}{start['nats_per_token']:8.3f} ->{loss:7.3f}"
        )
    for d in repair["differences"]:
        lines.append(f"{d['run']} - {d['minus']}: {d['mean']:+.4f} ± {d['half_width_95']:.4f}")
    for name, row in result["draft"]["compared"].items():
        if isinstance(row, dict):
            lines.append(f"{name}: " + ", ".join(f"{k} {v}" for k, v in row.items()))
    return "\n".join(lines)


def toy(target: Llama) -> Llama:
    """The target cut down to what trains in a moment."""
    neurons = [range(128)] * target.arch.n_layers
    return smaller(target, layers=[0, 7], neurons=neurons, channels=range(32))


def quick_scale() -> Scale:
    """Two steps of everything."""
    short = {"steps": 2, "short_steps": 1, "warmup_steps": 1, "tokens_per_step": CONTEXT}
    return Scale(
        recipe=replace(RECIPE, **short),
        draft=replace(DRAFT_RECIPE, **short),
        seeds=(0, 1),
        rates=tuple((way, (0.5, 1.0)) for way in WAYS),
        rate_size="2 thin layers",
        sizes=("1 layer", "2 thin layers"),
        calibration=(2, 16),
        few=(2, 16),
        choosing=1,
        reporting=2,
        marks=(0, 2),
        draft_marks=(0, 2),
        draft_neurons=40,
        compared_chars=2000,
        rounds=3,
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--source", type=Path, default=Path(sysconfig.get_paths()["stdlib"]))
    parser.add_argument("--out", type=Path, default=ROOT / "data")
    parser.add_argument("--work", type=Path, default=ROOT / "_build" / "pruning")
    parser.add_argument("--only", help="one part, no report")
    parser.add_argument("--table", action="store_true", help="show the report that is there")
    parser.add_argument("--quick", action="store_true", help="a toy, to try the script")
    args = parser.parse_args(argv)
    stored = args.out / "measured" / "pruning.json"
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
    rows, few = text_rows(stream, scale.calibration), text_rows(stream, scale.few)

    def need(name: str) -> dict:
        if name not in parts:
            raise SystemExit(f"{args.only} needs {name}: run --only {name} before it")
        return parts[name]

    make: dict[str, Callable[[], dict]] = {
        "subsets": lambda: {"nats": every_subset(target, choosing)},
        "importance": lambda: {"of": all_scores(target, rows, few)},
        "analysis": lambda: analysis(
            target, rows, choosing, need("subsets")["nats"], need("importance")["of"]
        ),
        "rates": lambda: choose_rates(target, need("analysis"), stream, choosing, scale, work),
        "before": lambda: before(target, need("analysis"), reporting, scale),
    }
    for seed in scale.seeds:
        make[f"seed-{seed}"] = lambda seed=seed: one_seed(
            seed, target, need("analysis"), need("rates"), stream, windows, scale, work
        )
    make["draft"] = lambda: draft(target, need("analysis"), stream, choosing, scale, work)
    if args.only and args.only not in make:
        raise SystemExit(f"--only must be one of {', '.join(make)}, got {args.only}")
    for name in make:
        if args.only in (None, name) or work.has(name):
            parts[name] = work.kept(name, make[name])
    if args.only:
        return
    result = report(parts, target, scale)
    print(table(result))
    if args.quick:  # a toy's figures are nobody's result
        write(args.work / "pruning.json", result)
        return
    write(stored, result)
    shutil.copytree(
        args.work / "pruned_draft", args.out / "model" / "pruned_draft", dirs_exist_ok=True
    )
    print("written:", stored)


if __name__ == "__main__":
    main()
