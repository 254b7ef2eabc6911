"""Train what guesses for the shipped target: heads on its features, a layer that says the next.

    python scripts/train_drafts.py                       # about 70 CPU minutes
    python scripts/train_drafts.py --only eagle_own      # one candidate, to share the work
    python scripts/train_drafts.py --quick --work /tmp/quick

The target reads the training text once, and its features are kept; all candidates learn from those,
by the KL divergence from the target's distribution, and a training that was stopped goes on from
its last checkpoint in --work. Then each guesses at places all over the held-out text, in NumPy and
from weights rounded as they are stored. Without --only all that is missing is made, the report is
written, and Medusa's heads, the recurrent head and the best EAGLE are put beside the shipped pair.
"""

import argparse
import shutil
import sysconfig
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm import tqdm
from train_model import CONTEXT, ROOT, save
from train_pruning import Work, made_here, write
from train_variants import training_stream

from firsttoken.drafts.drafts_torch import Eagle, MedusaHeads, MultiTokenHeads, RecurrentHead
from firsttoken.drafts.heads import (
    EagleDraft,
    FeatureDraft,
    MedusaDraft,
    MultiTokenDraft,
    RecurrentDraft,
    multi_token_heads,
)
from firsttoken.generate import generate, speculative_generate
from firsttoken.generate.sequence import TextOptions, TokenSequence
from firsttoken.models.checkpoint import read_safetensors
from firsttoken.models.llama import load_model
from firsttoken.models.llama_torch import Llama
from firsttoken.models.tokenizer import tokenizer
from firsttoken.provenance import code_digest, commit, processor
from firsttoken.sampling import SamplingParams
from firsttoken.speculative import acceptance_by_position

MEASURED_CODE = code_digest(
    [
        "models/checkpoint",
        "generate/sequence",
        "drafts/growing",
        "drafts/heads",
        "drafts/lookup",
        "drafts/planning",
        "drafts/suffix_automaton",
        "drafts/typical",
        "speculative/trees",
        "drafts/drafts_torch",
        "generate/drafting",
        "generate/loop",
        "models/llama",
        "models/llama_torch",
        "sampling/draws",
        "sampling/logits",
        "sampling/params",
        "speculative/speed",
        "speculative/verification",
        "scripts/train_model.py",
    ]
)
MODEL = ROOT / "data" / "model"
N_AHEAD = 4  # places that Medusa's heads, and the steps of `eagle_own`, look ahead
GAMMA = 6  # guesses in a row, where they are counted
N_LEVELS, N_RANKS = 8, 8  # of a tree


@dataclass(frozen=True)
class Recipe:
    """How a candidate is trained; rates are those of the shipped pair, times `rate`."""

    steps: int
    rate: float = 1.0
    muon_lr: float = 0.02
    adam_lr: float = 3e-3
    warmup_steps: int = 30
    rows: int = 8  # windows of the whole context, in each step
    parts: int = 1  # into which a window is cut: shorter contexts cost less attention
    seed: int = 0
    feature_weight: float = 0.0  # of the features' smooth distance, in EAGLE's first form
    own_steps: int = 1  # 1: the target's features only; more: its own outputs, too
    starts_from: str = ""  # another candidate
    dtype: str = "bfloat16"  # of the products


@dataclass(frozen=True)
class Scale:
    """How much is trained and measured."""

    recipes: tuple[tuple[str, Recipe], ...] = (
        ("distilled", Recipe(580, rate=0.3, dtype="float32")),
        # Matrices that start at 0 have far to go: of 0.03 … 30, tried for 100 steps, 10 did best.
        ("medusa", Recipe(870, rate=8.0)),
        ("recurrent", Recipe(1160, rate=8.0)),
        ("multi_token", Recipe(580)),
        ("eagle", Recipe(2610, feature_weight=0.1)),
        # What more training gives by itself, and what it gives on one's own outputs.
        ("eagle_longer", Recipe(870, 0.5, parts=2, feature_weight=0.1, starts_from="eagle")),
        ("eagle_own", Recipe(870, 0.5, parts=2, own_steps=4, starts_from="eagle")),
    )
    max_files: int | None = None  # of the training text; None: all
    n_validation: int = 64  # windows at its end that nothing learns from
    n_places: int = 1500
    mark_every: int = 58


class Windows:
    """The training text in windows of the whole context, and the target's features of them."""

    def __init__(self, stream: np.ndarray, target: Llama, file: Path, n_validation: int):
        n = (len(stream) - 2) // CONTEXT
        self.tokens = stream[np.arange(n)[:, None] * CONTEXT + np.arange(CONTEXT + 2)]
        self.n_train = n - n_validation
        shape = (n, CONTEXT + 1, target.arch.d_model)
        done = file.with_suffix(".done")
        if not done.exists():
            features = np.memmap(file, np.float16, "w+", shape=shape)
            rows = range(0, n, 8)
            for at in tqdm(rows, "features of the target", mininterval=10):
                tokens = torch.from_numpy(self.tokens[at : at + 8, :-1].astype(np.int64))
                with torch.no_grad():
                    features[at : at + 8] = target_features(target, tokens).numpy()
            features.flush()
            done.touch()
        self.features = np.memmap(file, np.float16, "r", shape=shape)

    def batch(self, rows: np.ndarray, parts: int = 1) -> tuple[Tensor, Tensor]:
        """Return (tokens (B, T + 2), features (B, T + 1, D)) of some windows, each in parts."""
        size, starts = CONTEXT // parts, range(0, CONTEXT, CONTEXT // parts)
        tokens = [self.tokens[rows, at : at + size + 2] for at in starts]
        features = [self.features[rows, at : at + size + 1] for at in starts]
        return (
            torch.from_numpy(np.concatenate(tokens).astype(np.int64)),
            torch.from_numpy(np.concatenate(features).astype(np.float32)),
        )

    def rows_of(self, step: int, recipe: Recipe) -> np.ndarray:
        """Return which windows a step learns from: all, in an order of their own each time."""
        per_epoch = self.n_train // recipe.rows
        epoch, at = divmod(step, per_epoch)
        order = np.random.default_rng([recipe.seed, epoch]).permutation(self.n_train)
        return order[at * recipe.rows : (at + 1) * recipe.rows]

    def validation(self, n: int = 16) -> list[np.ndarray]:
        return np.array_split(np.arange(self.n_train, len(self.tokens))[:n], max(1, n // 8))


def target_features(target: Llama, tokens: Tensor) -> Tensor:
    """What the last norm of a model says at each token (B, T): (B, T, D)."""
    said: list[Tensor] = []
    hook = target.model.norm.register_forward_hook(lambda *args: said.append(args[-1]))
    try:
        target(tokens)
    finally:
        hook.remove()
    return said[0]


# The candidates: a network, and what it says the target will say, at which places


def distance(says: Tensor, wanted: Tensor) -> Tensor:
    """KL divergence of what is said from what is wanted, both logits (…, V), on average."""
    return F.kl_div(
        says.float().log_softmax(-1).flatten(0, -2),
        wanted.float().log_softmax(-1).flatten(0, -2),
        log_target=True,
        reduction="batchmean",
    )


def loss_of(
    name: str,
    network: nn.Module,
    target: Llama,
    tokens: Tensor,
    features: Tensor,
    own_steps: int = N_AHEAD,
) -> tuple[list[Tensor], Tensor | None]:
    """Return [KL divergence at each place ahead], and the distance of the features, if any.

    tokens (B, T + 2), features (B, T + 1, D): position t's feature guesses tokens[t + 1].
    """
    here, follow = features[:, :-1], tokens[:, 1:-1]  # T positions, and what follows each
    with torch.no_grad():
        wanted = target.lm_head(features)  # (B, T + 1, V): at t, of token t + 1
    if name == "distilled":
        return [distance(network(tokens[:, :-2]), wanted[:, :-1])], None
    if name.startswith("eagle"):
        n_steps = N_AHEAD if name == "eagle_own" else 1
        said = network(here, follow, n_steps)
        # Contexts that begin in mid-path are left out.
        losses = [distance(target.lm_head(s[:, n_steps:]), wanted[:, 1 + n_steps :]) for s in said]
        return losses, F.smooth_l1_loss(said[0].float(), features[:, 1:])
    said = network(here, follow, N_AHEAD) if name == "recurrent" else network(here)
    n = wanted.shape[1]
    return [
        distance(target.lm_head(s[:, : n - 1 - i]), wanted[:, 1 + i :]) for i, s in enumerate(said)
    ], None


def network_of(name: str, target: Llama) -> nn.Module:
    """Return a candidate as it starts."""
    if name == "distilled":
        draft = Llama.from_pretrained(MODEL / "draft").requires_grad_(True)
        return draft
    if name == "medusa":
        return MedusaHeads(N_AHEAD, target.arch.d_model)
    if name == "recurrent":
        return RecurrentHead(target)
    if name == "multi_token":
        return MultiTokenHeads(N_AHEAD - 1, target)
    return Eagle(target)


def optimizers(network: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, AdamW for norms and an embedding."""
    learned = [(n, p) for n, p in network.named_parameters() if p.requires_grad]
    matrices = [p for n, p in learned if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in learned if p.ndim < 2 or "embed" in n]
    rate = recipe.rate
    found: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=rate * recipe.muon_lr, weight_decay=0.0)
    ]
    if rest:
        adam = torch.optim.AdamW(rest, rate * recipe.adam_lr, betas=(0.9, 0.95), weight_decay=0.0)
        found.append(adam)
    return found


def missing(name: str) -> Callable[[], dict]:
    def fail() -> dict:
        raise SystemExit(f"{name} comes first: make it, or all")

    return fail


def schedule(step: int, recipe: Recipe) -> float:
    """Factor on the rates: it rises, and falls to nothing."""
    return min(1.0, (step + 1) / recipe.warmup_steps) * (1 - step / recipe.steps)


def train(
    name: str,
    recipe: Recipe,
    windows: Windows,
    target: Llama,
    work: Work,
    mark_every: int,
    checkpoint_every_s: float = 120,
) -> tuple[nn.Module, dict]:
    """Train a candidate; the curve is its loss on windows that it does not learn from."""
    torch.manual_seed(recipe.seed)  # for weights that start at random
    network = network_of(name, target)
    if recipe.starts_from:
        work.kept(recipe.starts_from, missing(recipe.starts_from))
        before = torch.load(work.folder / f"{recipe.starts_from}.pt")
        network.load_state_dict(before["network"])
    optims = optimizers(network, recipe)
    base = [[group["lr"] for group in o.param_groups] for o in optims]
    checkpoint, first, curve, seconds = work.folder / f"{name}.pt", 0, [], 0.0
    made = made_here("cpu")
    if checkpoint.exists():
        state = torch.load(checkpoint)
        work.check(checkpoint, state["key"])
        if state["recipe"] != asdict(recipe):
            raise SystemExit(f"{checkpoint} is from another recipe: remove it or change --work")
        network.load_state_dict(state["network"])
        for o, s in zip(optims, state["optimizers"], strict=True):
            o.load_state_dict(s)
        first, curve, seconds, made = (state[k] for k in ("step", "curve", "seconds", "made"))
    began = saved = time.process_time()
    for step in tqdm(range(first, recipe.steps), name, recipe.steps, first, mininterval=10):
        if step % mark_every == 0 and step not in [at for at, _ in curve]:
            curve.append([step, validate(name, network, windows, target)])
        batch = windows.batch(windows.rows_of(step, recipe), recipe.parts)
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.dtype == "bfloat16"):
            losses, apart = loss_of(name, network, target, *batch, recipe.own_steps)
            loss = sum(losses) / len(losses)
            if recipe.feature_weight and apart is not None:
                loss = loss + recipe.feature_weight * apart
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for o, rates in zip(optims, base, strict=True):
            for group, rate in zip(o.param_groups, rates, strict=True):
                group["lr"] = rate * schedule(step, recipe)
            o.step()
            o.zero_grad()
        if time.process_time() - saved >= checkpoint_every_s or step == recipe.steps - 1:
            saved = time.process_time()
            state = {
                "key": work.key,
                "recipe": asdict(recipe),
                "network": network.state_dict(),
                "optimizers": [o.state_dict() for o in optims],
                "step": step + 1,
                "curve": curve,
                "seconds": seconds + saved - began,
                "made": made,
            }
            torch.save(state, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)
    if not curve or curve[-1][0] != recipe.steps:
        curve.append([recipe.steps, validate(name, network, windows, target)])
    learned = sum(p.numel() for p in network.parameters() if p.requires_grad)
    return network.requires_grad_(False), {
        "recipe": asdict(recipe),
        "n_params": learned,
        "tokens_seen": recipe.steps * recipe.rows * CONTEXT,
        "cpu_s": round(seconds + time.process_time() - began, 1),
        "curve": curve,
    } | made


def validate(name: str, network: nn.Module, windows: Windows, target: Llama) -> list[float]:
    """Return the KL divergence at each place ahead, on windows that nothing learns from."""
    found = []
    with torch.no_grad():
        for rows in windows.validation():
            losses, _ = loss_of(name, network, target, *windows.batch(rows))
            found.append([loss.item() for loss in losses])
    return np.mean(found, axis=0).round(4).tolist()


# What is stored


def store(name: str, network: nn.Module, target: Llama, folder: Path) -> None:
    """Write a candidate's weights in bfloat16."""
    if name == "distilled":
        save(network, folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    if name in ("medusa", "recurrent"):
        tensors = network.state_dict()
    elif name == "multi_token":
        tensors = {
            n: w for n, w in network.state_dict().items() if "embed" not in n and "lm_head" not in n
        }
    else:
        save(network.layer, folder)  # for its config.json
        tensors = {
            n.removeprefix("layer."): w
            for n, w in network.state_dict().items()
            if "embed" not in n and "lm_head" not in n
        }
    tensors = {n: w.to(torch.bfloat16).contiguous() for n, w in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "README.md").write_text(card(name, network), encoding="utf-8")


def card(name: str, network: nn.Module) -> str:
    """The text beside the weights."""
    n = sum(p.numel() for n, p in network.named_parameters() if "embed" not in n)
    what = {
        "medusa": f"Medusa's heads: {N_AHEAD} matrices `heads.i.weight`; head i guesses the token "
        "i + 1 places behind the next, from the target's last feature f, by the target's "
        "unembedding of f + silu(W f).",
        "recurrent": "A head with a state, s + W_write silu(W_read [s, e]), that starts as the "
        "target's feature and reads the embedding e of each token that follows: `read.weight` and "
        "`write.weight`.",
        "multi_token": "Multi-token heads: a layer and a norm each.",
    }.get(
        name,
        "EAGLE: one layer of the target's kind and its norm under Hugging Face's names, without an "
        "embedding, which is the target's; `fc.weight` brings a feature and an embedding together. "
        + ("Trained on its own outputs at last." if name == "eagle_own" else ""),
    )
    return f"""# {name}

{what.strip()} {n:,} weights, for the target beside it. Made by `scripts/train_drafts.py`, figures
in `data/measured/drafts.json`. Text and licence are those of the shipped pair.
"""


# What is measured


def places(n: int, context: int = 64) -> list[list[int]]:
    """Beginnings of texts, from all over the held-out text."""
    ids = tokenizer().encode((ROOT / "data" / "heldout.txt").read_text(encoding="utf-8"))
    starts = np.linspace(0, len(ids) - context, n, dtype=int)
    return [ids[start : start + context] for start in starts.tolist()]


def counted(target, draft, prompts: list[list[int]], temperature: float) -> dict:
    """How many of GAMMA guesses are kept, in one round at each place."""
    rounds = []
    for seed, prompt in enumerate(prompts):
        params = SamplingParams(temperature, max_tokens=GAMMA + 2, seed=seed)
        text = speculative_generate(target, draft, prompt, params, GAMMA, ignore_eos=True)
        rounds.append(next(r for r in text.rounds if r.drafted))
    n_ahead = max(r.drafted for r in rounds)
    kept = np.array([r.accepted for r in rounds])
    alpha, reached = acceptance_by_position(rounds)
    tokens = [1 + np.minimum(kept, gamma) for gamma in range(1, n_ahead + 1)]
    return {
        "alpha": alpha.round(4).tolist(),
        "reached": reached.tolist(),
        "tokens_per_pass": [round(float(t.mean()), 4) for t in tokens],
        "standard_error": [round(float(t.std(ddof=1) / len(t) ** 0.5), 4) for t in tokens],
    }


def ranks(target, draft, prompts: list[list[int]]) -> list[list[float]]:
    """How often the target's greedy token has which rank among the guesses for its place.

    The guesses before it are the right ones. Shapes: (depth, rank)
    """
    counts = np.zeros((N_LEVELS, N_RANKS))
    for prompt in prompts:
        params = SamplingParams(0, max_tokens=N_LEVELS + 1)
        first, *follow = generate(target, prompt, params, ignore_eos=True).ids
        request = TokenSequence(
            target, [*prompt, first], params, options=TextOptions(ignore_eos=True)
        )
        look = draft.look(request, target.features([prompt])[0])
        for level, token in enumerate(follow[: draft.n_levels]):
            row = look(follow[:level], list(range(-1, level - 1)), 1)[-1]
            rank = int((row > row[token]).sum())
            if rank < N_RANKS:
                counts[level, rank] += 1
    return (counts / len(prompts)).round(4).tolist()


def as_draft(name: str, target, folder: Path):
    """A candidate as `speculative_generate` takes it, from what is stored."""
    if name == "medusa":
        stored = read_safetensors(folder / "model.safetensors")
        return MedusaDraft(target, np.stack([stored[f"heads.{i}.weight"] for i in range(N_AHEAD)]))
    if name == "recurrent":
        stored = read_safetensors(folder / "model.safetensors")
        return RecurrentDraft(target, (stored["read.weight"], stored["write.weight"]))
    if name == "multi_token":
        return MultiTokenDraft(target, multi_token_heads(target, folder))
    return EagleDraft(target, folder) if name.startswith("eagle") else load_model(folder)


def measure(name: str, folder: Path, scale: Scale) -> dict:
    """What a candidate's guesses are worth, rounded as it is stored."""
    target = load_model("target")
    draft, prompts = as_draft(name, target, folder), places(scale.n_places)
    found = {f"tau {t:g}": counted(target, draft, prompts, t) for t in (0.0, 1.0)}
    if isinstance(draft, FeatureDraft):
        found["ranks"] = ranks(target, draft, prompts)
    return found


def worth(found: dict) -> float:
    """Tokens that a pass with four guesses yields, at both temperatures together."""
    return sum(found[tau]["tokens_per_pass"][:4][-1] for tau in ("tau 0", "tau 1"))


# The report


def quick_scale() -> Scale:
    recipes = tuple(
        (name, replace(recipe, steps=3, rows=2, warmup_steps=1)) for name, recipe in Scale().recipes
    )
    return Scale(recipes, max_files=12, n_validation=4, n_places=6, mark_every=2)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--source", type=Path, default=Path(sysconfig.get_paths()["stdlib"]))
    parser.add_argument("--work", type=Path, default=ROOT / "_build" / "drafts")
    parser.add_argument("--out", type=Path, default=ROOT / "data", help="where data/ is written")
    parser.add_argument("--only", help="one candidate, a shipped draft, or features")
    parser.add_argument("--quick", action="store_true", help="a few steps, to try the script")
    args = parser.parse_args(argv)
    scale = quick_scale() if args.quick else Scale()
    # The code that trains: what measures may change between the two.
    trained_by = code_digest(["drafts_torch", "llama_torch", "scripts/train_model.py"])
    work = Work(args.work, {"recipes": asdict(scale)["recipes"], "trained_by": trained_by})
    target = Llama.from_pretrained(MODEL / "target")
    stream = training_stream(args.source, scale.max_files)
    windows = Windows(stream, target, args.work / "features.f16", scale.n_validation)
    recipes = dict(scale.recipes)
    if args.only == "features":
        return
    shipped = {"draft": MODEL / "draft", "pruned_draft": MODEL / "pruned_draft"}
    folders = shipped | {name: args.work / name for name in recipes}
    measuring = Work(args.work / "measured", work.key | {"measured_code": MEASURED_CODE})
    trained, measured = {}, {}
    for name in [args.only] if args.only else folders:

        def make(name=name) -> dict:
            network, run = train(name, recipes[name], windows, target, work, scale.mark_every)
            store(name, network, target, args.work / name)
            return run

        if name in recipes:
            trained[name] = work.kept(name, make)
        measured[name] = measuring.kept(name, lambda name=name: measure(name, folders[name], scale))
    if args.only:
        return
    eagle = max(
        (name for name in recipes if name.startswith("eagle")), key=lambda n: worth(measured[n])
    )
    report = {
        "trained": trained,
        "measured": measured,
        "shipped": {
            "eagle_draft": eagle,
            "medusa_heads": "medusa",
            "recurrent_head": "recurrent",
        },
        "gamma": GAMMA,
        "places": scale.n_places,
        "provenance": {
            "commit": commit(),
            "measured_code": MEASURED_CODE,
            "seed": 0,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{processor()}, 1 thread",
            "versions": {name: version(name) for name in ("numpy", "torch")},
        },
    }
    for stored, name in report["shipped"].items():
        shutil.copytree(args.work / name, args.out / "model" / stored, dirs_exist_ok=True)
    (args.out / "measured").mkdir(exist_ok=True)
    write(args.out / "measured" / "drafts.json", report)
    table(report)


def table(report: dict) -> None:
    """Print what came out."""
    print(
        "candidate        weights  alpha by position at tau 0 … at tau 1; tokens a pass at gamma 4"
    )
    for name, found in report["measured"].items():
        for tau in ("tau 0", "tau 1"):
            row = found[tau]
            said = " ".join(f"{a:.3f}" for a in row["alpha"])
            print(f"{name:13s} {tau}  {said}  {row['tokens_per_pass'][:4][-1]:.2f}")


if __name__ == "__main__":
    main()
