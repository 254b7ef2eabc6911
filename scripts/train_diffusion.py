"""Make a masked diffusion model of the shipped target; measure how it writes.

    OMP_WAIT_POLICY=PASSIVE python scripts/train_diffusion.py     # an hour of one quiet thread
    python scripts/train_diffusion.py --quick --work /tmp/quick

It starts from the target's weights, as Dream (arXiv:2508.15487) did from Qwen2.5's: the causal
mask goes, the vocabulary gets one more entry, which is read and never predicted, and training goes
on with hidden tokens, on the target's own text. A run that was stopped goes on from its last
checkpoint in --work. With --evaluate nothing is trained.
"""

import argparse
import hashlib
import json
import math
import platform
import sysconfig
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn
from tqdm import tqdm
from train_model import (
    ROOT,
    TARGET,
    Batches,
    Recipe,
    schedule,
)
from train_variants import training_stream

from firsttoken.models.checkpoint import read_checkpoint
from firsttoken.models.llama import load_model
from firsttoken.models.llama_torch import KVCache, Llama
from firsttoken.models.tokenizer import tokenizer
from firsttoken.provenance import code_digest, commit, load_average, processor
from firsttoken.recurrent.diffusion import hide, loss_bound, unmask
from firsttoken.sampling import draw

MEASURED_CODE = code_digest(
    [
        "models/checkpoint",
        "recurrent/diffusion",
        "models/llama",
        "models/llama_torch",
        "models/rope",
        "sampling/draws",
        "sampling/logits",
        "sampling/params",
        "scripts/train_model.py",
    ]
)

VOCAB_SIZE = 1024
MASK = VOCAB_SIZE  # the row behind the vocabulary
# A prompt of 128 tokens and 128 to write: what the evaluation needs.
CONTEXT, N_NEW = 256, 128
# AdamW alone (no rate for Muon): the weights have learnt already, and are bent a little.
RECIPE = replace(
    TARGET,
    steps=1500,
    short_steps=1000,
    short_window=CONTEXT,
    tokens_per_step=2048,
    muon_lr=0.0,
    adam_lr=1e-3,
)
CHECKPOINT = "denoiser.pt"

BUCKETS = 8
ROWS = 16  # texts a pass
BLOCKS = (8, 32)
# Ways to write: which tokens of a pass are kept. A token is drawn at temperature 1 unless greedy.
WAYS = {
    "random": {"order": "random"},
    "confidence": {"order": "confidence"},
    "greedy, confidence": {"order": "confidence", "greedy": True},
    "random, blocks of 32": {"order": "random", "block": 32},
} | {
    f"random, blocks of {size}, cached": {"order": "random", "block": size, "cached": True}
    for size in BLOCKS
}
SHOWN = 3  # prompts whose texts are stored
SHOWN_WAYS = (
    ("random", 1),
    ("random", 16),
    ("confidence", 16),
    ("greedy, confidence", 16),
    ("random, blocks of 32, cached", 16),
)


@dataclass(frozen=True)
class Scale:
    """How much is evaluated; windows None: the whole held-out text."""

    windows: int | None = None
    repeats: int = 16
    prompts: int = 32
    passes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    rounds: int = 25


def blocks_of(how: dict) -> int:
    """Into how many blocks a way cuts the text: it takes as many passes at least."""
    return N_NEW // how.get("block", N_NEW)


class Denoiser(Llama):
    """A Llama that looks both ways, and says of each token after the first what stands there.

    What it says of a token comes from the position before, as in the Llama that it was; so no
    weight has to move. Logits are (B, T - 1, V): the mask has none. With a cache, new tokens see
    all that it holds and each other.
    """

    @classmethod
    def untrained(cls) -> "Denoiser":
        """The target's weights, and for the mask the mean of all embeddings."""
        target = read_checkpoint(ROOT / "data" / "model" / "target")
        rows = target.weights["model.embed_tokens.weight"]
        embeddings = {"model.embed_tokens.weight": np.vstack((rows, rows.mean(axis=0)))}
        arch = target.arch.replace(name="denoiser", vocab_size=VOCAB_SIZE + 1, max_context=CONTEXT)
        return cls(arch, target.weights | embeddings, target.rope_theta, norm_eps=target.norm_eps)

    def forward(self, tokens, cache=None):
        return super().forward(tokens, cache)[:, :-1, :VOCAB_SIZE]

    def _attend(self, cache):
        def attend(layer, q, k, v):
            if cache is not None:
                cache.append(layer, k, v)
                k, v = cache.keys(layer), cache.values(layer)
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

        return attend


def spread_counts(n_rows: int, n_tokens: int, rng: np.random.Generator) -> np.ndarray:
    """How many tokens each row hides: each number of 1..n_tokens is as likely, all rows differ."""
    spread = (rng.random() + np.arange(n_rows) / n_rows) % 1
    return 1 + (spread * n_tokens).astype(int)


def corrupted(tokens: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Hide some tokens of each row: (what is left, weight of each token after the first).

    The first token is given. A row hides n of the T after it, and each of them counts T / n:
    `loss_bound`'s form of masking with probability t and weighing by 1 / t.

    Shapes: tokens, left: (B, T + 1); weights: (B, T), which sum to T a row
    """
    n_rows, t = tokens[:, 1:].shape
    n_hidden = spread_counts(n_rows, t, rng)
    hidden = hide(n_hidden, t, rng)
    weights = np.where(hidden, t / n_hidden[:, None], 0).astype(np.float32)
    hidden = np.pad(hidden, ((0, 0), (1, 0)))
    return tokens.masked_fill(torch.from_numpy(hidden), MASK), torch.from_numpy(weights)


def training_loss(model: Denoiser, left: Tensor, tokens: Tensor, weights: Tensor) -> Tensor:
    """The bound a token, in nats: the mean of `loss_bound` over the rows, divided by T."""
    logits = model(left).flatten(0, 1)
    losses = F.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")
    return losses @ weights.flatten() / len(logits)


def optimizer(model: Denoiser, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW, which shrinks matrices and leaves the norms alone."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim == 2]},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=recipe.adam_lr, betas=(0.9, 0.95), weight_decay=recipe.weight_decay
    )


def last_checkpoint(work: Path, recipe: Recipe) -> dict | None:
    """Where the training in `work` has come to, None where there is none.

    While the windows are short, a run may still be given other steps than it began with.
    """
    path = work / CHECKPOINT
    if not path.exists():
        return None
    state = torch.load(path)
    begun = Recipe(**state["recipe"])
    if begun != recipe:
        if replace(begun, steps=recipe.steps, short_steps=recipe.short_steps) != recipe:
            raise SystemExit(f"{path} is from another recipe: remove it or change --work")
        if state["step"] > min(begun.short_steps, recipe.short_steps):
            raise SystemExit(f"{path} is at step {state['step']}: too late for other steps")
    return state


def train(
    recipe: Recipe,
    stream: np.ndarray,
    work: Path,
    compiled: bool = True,
    checkpoint_every_s: float = 180,
) -> dict:
    """Train to the end of the recipe and return the last checkpoint, which is kept in `work`."""
    checkpoint, model = work / CHECKPOINT, Denoiser.untrained()
    model.requires_grad_(True)
    batches = Batches(stream, recipe)
    optim, start, curve, seconds, cpu, smooth = optimizer(model, recipe), 0, [], 0.0, 0.0, None
    plans = [[0, recipe.steps]]
    state = last_checkpoint(work, recipe)
    if state is not None:
        model.load_state_dict(state["model"])
        optim.load_state_dict(state["optimizer"])
        start, curve, smooth = state["step"], state["curve"], state["smooth"]
        seconds, cpu = state["wall_s"], state["cpu_s"]
        plans = state.get("plans", [[0, state["recipe"]["steps"]]])
        if plans[-1][1] != recipe.steps:
            plans.append([start, recipe.steps])

    loss_of = torch.compile(training_loss, dynamic=False) if compiled else training_loss
    began, cpu_began, last_saved = time.perf_counter(), time.process_time(), time.perf_counter()
    steps = tqdm(range(start, recipe.steps), initial=start, total=recipe.steps, mininterval=10)
    for step in steps:
        tokens, _ = batches(step)
        tokens = tokens.reshape(-1, CONTEXT)
        # Of the step and the seed alone, so that a resumed run hides what an unbroken one would.
        left, weights = corrupted(tokens, np.random.default_rng([recipe.seed, step]))
        loss = loss_of(model, left, tokens, weights)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optim.param_groups:
            group["lr"] = recipe.adam_lr * schedule(step, recipe)
        optim.step()
        optim.zero_grad()
        value = loss.item()
        if not math.isfinite(value):
            raise RuntimeError(f"loss {value} at step {step}")
        smooth = value if smooth is None else 0.98 * smooth + 0.02 * value
        if step % 50 == 49 or step == recipe.steps - 1:
            curve.append([step + 1, round(smooth, 4)])
            steps.set_postfix(loss=f"{smooth:.3f}")
        if time.perf_counter() - last_saved >= checkpoint_every_s or step == recipe.steps - 1:
            last_saved = time.perf_counter()
            state = {
                "recipe": asdict(recipe),
                "plans": plans,  # from which step on it was to take how many
                "model": model.state_dict(),
                "optimizer": optim.state_dict(),
                "step": step + 1,
                "curve": curve,
                "smooth": smooth,
                "wall_s": seconds + last_saved - began,
                "cpu_s": cpu + time.process_time() - cpu_began,
                "machine": f"{processor()}, {torch.get_num_threads()} thread",
                "torch": str(torch.__version__),  # a string, which alone loads safely
            }
            # Written beside and renamed, so that a stop in mid-write loses nothing.
            torch.save(state, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)
    return state


def denoise(
    model: Denoiser, first: np.ndarray, cache: KVCache | None = None
) -> Callable[[np.ndarray], np.ndarray]:
    """The model as `unmask` reads it, after `first` (B, 1); what a cache holds stays as it is."""

    def probabilities(tokens: np.ndarray) -> np.ndarray:
        length = cache.length if cache is not None else 0
        with torch.inference_mode():
            logits = model(torch.from_numpy(np.hstack((first, tokens))), cache)
        if cache is not None:
            cache.truncate(length)
        return logits.double().softmax(-1).numpy()

    return probabilities


def interval(values: np.ndarray) -> dict:
    """Mean of independent values, and half its 95 % interval (t)."""
    values = np.asarray(values, float)
    t = stats.t.ppf(0.975, len(values) - 1)
    half_width = t * values.std(ddof=1) / math.sqrt(len(values))
    return {"mean": float(values.mean()), "half_width_95": float(half_width)}


def heldout(length: int, n_rows: int | None = None) -> np.ndarray:
    """The held-out text in windows side by side, each after one token of the one before."""
    ids = np.array(tokenizer().encode_document((ROOT / "data" / "heldout.txt").read_text("utf-8")))
    starts = np.arange(0, len(ids) - length + 1, length - 1)
    if n_rows is not None:  # spread over the text
        starts = starts[np.arange(n_rows) * len(starts) // n_rows]
    return ids[starts[:, None] + np.arange(length)]


def exact_losses(target: Llama, rows: np.ndarray) -> np.ndarray:
    """The target's loss of each token after the first: (B, T - 1), nats."""
    with torch.inference_mode():
        return np.concatenate(
            [
                F.cross_entropy(target(some[:, :-1]).mT.double(), some[:, 1:], reduction="none")
                for some in torch.from_numpy(rows).split(ROWS)
            ]
        )


def n_bytes(rows: np.ndarray) -> np.ndarray:
    """The bytes of each row's tokens."""
    tok = tokenizer()
    lengths = np.array([len(tok.token_bytes(i)) for i in range(VOCAB_SIZE)])
    return lengths[rows].sum(axis=1)


def kept(path: Path, seed: int, make: Callable[[np.random.Generator], np.ndarray]) -> np.ndarray:
    """What `make` gives, from a file where it has been made before; the name decides the draws."""
    if not path.exists():
        made = make(np.random.default_rng([seed, zlib.crc32(path.name.encode())]))
        with path.with_suffix(".tmp").open("wb") as file:
            np.save(file, made)
        path.with_suffix(".tmp").replace(path)
    return np.load(path)


def likelihood(
    model: Denoiser, target: Llama, rows: np.ndarray, repeats: int, seed: int, folder: Path
) -> dict:
    """The bound on the held-out text beside the target's exact loss of the same tokens.

    The first token of a row is given to both. Each repeat draws other masks for every row.
    "left_to_right" is the denoiser's loss in the target's order, one token a pass, estimated from
    one position of each row.
    """
    first, text = rows[:, :1], rows[:, 1:]
    n_rows, n = text.shape

    def under(hidden: np.ndarray, some: slice) -> np.ndarray:
        return denoise(model, first[some])(np.where(hidden[some], MASK, text[some]))

    def one(rng: np.random.Generator) -> np.ndarray:
        counts = rng.permutation(spread_counts(n_rows, n, rng))
        hidden = hide(counts, n, rng)
        place = rng.permutation(spread_counts(n_rows, n, rng)) - 1
        later = np.arange(n) >= place[:, None]
        bounds, ordered = np.zeros((2, n_rows))
        for start in range(0, n_rows, ROWS):
            some = slice(start, start + ROWS)
            bounds[some] = loss_bound(under(hidden, some), text[some], hidden[some])
            at = np.arange(len(rows[some])), place[some]
            ordered[some] = -n * np.log(under(later, some)[*at, text[some][at]])
        return np.stack((counts, bounds, ordered))

    counts, bounds, ordered = np.stack(
        [
            kept(folder / f"likelihood-{r}.npy", seed, one)
            for r in tqdm(range(repeats), desc="likelihood", mininterval=5)
        ],
        axis=1,
    )
    exact = exact_losses(target, rows).sum(axis=1)
    per_byte = 1 / (math.log(2) * n_bytes(text).sum())
    share = np.ceil(counts / n * BUCKETS).astype(int)  # 1..BUCKETS
    return {
        "windows": n_rows,
        "tokens_per_window": n,
        "bytes": int(n_bytes(text).sum()),
        "masks_per_window": repeats,
        "bits_per_byte": {
            "bound": interval(bounds.sum(axis=1) * per_byte),
            "left_to_right": interval(ordered.sum(axis=1) * per_byte),
            "target": exact.sum() * per_byte,
        },
        "nats_per_token": {
            "bound": interval(bounds.sum(axis=1) / text.size),
            "left_to_right": interval(ordered.sum(axis=1) / text.size),
            "target": exact.sum() / text.size,
            "bound_minus_target_over_windows": interval((bounds.mean(axis=0) - exact) / n),
        },
        # A hidden token's loss where up to this share of the others is hidden, too.
        "nats_by_share_hidden": [
            [b / BUCKETS, (bounds / n)[share == b].mean()] for b in range(1, BUCKETS + 1)
        ],
    }


def continued(target: Llama, prompts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """What the target writes after each prompt, one token a pass, at temperature 1."""
    cache, rows = target.new_cache(len(prompts), CONTEXT), prompts
    with torch.inference_mode():
        for _ in range(N_NEW):
            logits = target(torch.from_numpy(rows[:, cache.length :]), cache)[:, -1]
            new = draw(logits.double().softmax(-1).numpy(), rng)
            rows = np.column_stack((rows, new))
    return rows[:, prompts.shape[1] :]


def written(
    model: Denoiser, prompts: np.ndarray, n_passes: int, rng: np.random.Generator, how: dict
) -> tuple[np.ndarray, np.ndarray]:
    """What the denoiser writes after each prompt, and the pass (from 1) that wrote each token.

    With "cached", keys and values of the prompt and of finished blocks are computed once, without
    what follows them; a pass then reads its block alone.
    """
    options, shape = dict(how), (len(prompts), N_NEW)
    cached, size = options.pop("cached", False), N_NEW
    before, last = prompts[:, :-1], prompts[:, -1:]
    if cached:
        size, cache = options.pop("block"), model.new_cache(len(prompts), CONTEXT)
    tokens, when, done = np.full(shape, MASK), np.zeros(shape, int), 0
    for start in range(0, N_NEW, size):
        part, passes = slice(start, start + size), n_passes * size // N_NEW
        if cached:
            with torch.inference_mode():
                model(torch.from_numpy(before), cache)
            predict, canvas = denoise(model, last, cache), tokens[:, part]
        else:
            predict, canvas = denoise(model, prompts[:, :1]), np.hstack((prompts[:, 1:], tokens))
        for state in unmask(predict, canvas, MASK, passes, rng, **options):
            done += 1
            when[:, part][(tokens[:, part] == MASK) & (state[:, -size:] != MASK)] = done
            tokens[:, part] = state[:, -size:]
        before, last = np.hstack((last, tokens[:, part]))[:, :-1], tokens[:, part][:, -1:]
    return tokens, when


def qualities(target: Llama, prompts: np.ndarray, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Figures of each text (B, N_NEW): how likely the target finds it, and how varied it is.

    Text that repeats itself is likely, too: the entropy of its tokens and the share of its runs of
    four tokens that are distinct tell it from good text.
    """
    nats = exact_losses(target, np.hstack((prompts, tokens)))[:, -N_NEW:].sum(axis=1)
    n = tokens.shape[1]
    entropies = []
    for row in tokens:
        shares = np.unique(row, return_counts=True)[1] / n
        entropies.append(-(shares * np.log2(shares)).sum())
    runs = [len({tuple(row[i : i + 4]) for i in range(n - 3)}) / (n - 3) for row in tokens]
    return {
        "bits_per_byte": nats / math.log(2) / n_bytes(tokens),
        "nats_per_token": nats / n,
        "entropy_bits": np.array(entropies),
        "distinct_runs_of_4": np.array(runs),
    }


def samples(model: Denoiser, target: Llama, scale: Scale, seed: int, folder: Path) -> dict:
    """Texts of 128 tokens behind held-out prompts, by every way of `WAYS` and number of passes.

    Each finished batch of texts is kept in `folder`.
    """
    rows = heldout(CONTEXT, scale.prompts)
    prompts, own = rows[:, :-N_NEW], rows[:, -N_NEW:]
    jobs = [(name, k) for name in WAYS for k in scale.passes if k >= blocks_of(WAYS[name])]

    def in_batches(write: Callable) -> np.ndarray:
        return np.concatenate([write(prompts[i : i + ROWS]) for i in range(0, len(prompts), ROWS)])

    ar = kept(
        folder / "target.npy",
        seed,
        lambda rng: in_batches(lambda some: continued(target, some, rng)),
    )
    texts = {}
    for name, k in tqdm(jobs, desc="samples"):

        def make(rng, k=k, how=WAYS[name]):
            return in_batches(lambda some: np.stack(written(model, some, k, rng, how), axis=1))

        path = folder / f"{name.replace(',', '').replace(' ', '-')}-{k}.npy"
        texts[name, k] = kept(path, seed, make)  # (B, 2, N_NEW): tokens, and the pass of each
    ours, human = qualities(target, prompts, ar), qualities(target, prompts, own)

    def figures(values: dict) -> dict:
        return {key: interval(value) for key, value in values.items()} | {
            "minus_target": interval(values["bits_per_byte"] - ours["bits_per_byte"]),
            "minus_heldout": interval(values["bits_per_byte"] - human["bits_per_byte"]),
        }

    tok = tokenizer()

    def pieces(ids: np.ndarray) -> list[str]:
        return [tok.token_bytes(i).decode(errors="replace") for i in ids]

    shown = range(min(SHOWN, len(prompts)))
    return {
        "prompts": len(prompts),
        "prompt_tokens": prompts.shape[1],
        "new_tokens": N_NEW,
        "heldout": figures(human),
        "target": {"passes": N_NEW} | figures(ours),
        "ways": [
            {
                "name": name,
                "how": WAYS[name],
                "runs": [
                    {"passes": k, "tokens_per_pass": N_NEW / k}
                    | figures(qualities(target, prompts, texts[name, k][:, 0]))
                    for other, k in jobs
                    if other == name
                ],
            }
            for name in WAYS
        ],
        "texts": [
            {
                "prompt": tok.decode(prompts[i].tolist()),
                "heldout": pieces(own[i]),
                "target": pieces(ar[i]),
                "written": [
                    {
                        "way": name,
                        "passes": k,
                        "tokens": pieces(texts[name, k][i, 0]),
                        "pass_of_token": texts[name, k][i, 1].tolist(),
                    }
                    for name, k in SHOWN_WAYS
                    if (name, k) in texts
                ],
            }
            for i in shown
        ],
    }


def pass_times(model: Denoiser, target: Llama, scale: Scale) -> dict:
    """Seconds of a pass on one thread: the fastest and the median of interleaved rounds."""
    fast, rng = load_model(ROOT / "data" / "model" / "target"), np.random.default_rng(0)
    tasks = {}

    def add(name: str, model, batch: int, t: int, before: int) -> None:
        tokens = rng.integers(VOCAB_SIZE, size=(batch, t))
        if model is not fast:
            tokens = torch.from_numpy(tokens)
        if not before:
            tasks[name, batch, t, before] = lambda: model(tokens)
            return
        cache = model.new_cache(batch, before + t)
        read = rng.integers(VOCAB_SIZE, size=(batch, before))
        model(read if model is fast else torch.from_numpy(read), cache)

        def run() -> None:
            model(tokens, cache)
            cache.truncate(before)

        tasks[name, batch, t, before] = run

    middle = CONTEXT - N_NEW // 2  # tokens before the one in the middle of what is written
    with torch.inference_mode():
        for batch in (1, ROWS):
            for t in (64, 128, CONTEXT):
                add("denoiser", model, batch, t, 0)
            for size in BLOCKS:
                add("denoiser, cached", model, batch, size, middle)
            add("target, cached", target, batch, 1, middle)
            add("target in NumPy, cached", fast, batch, 1, middle)
        seconds = {key: [] for key in tasks}
        for _ in tqdm(range(scale.rounds), desc="times"):
            for key, run in tasks.items():
                began = time.perf_counter()
                run()
                seconds[key].append(time.perf_counter() - began)
    columns = ("model", "rows", "tokens", "cached_tokens")
    return {
        "rounds": scale.rounds,
        "load_average": load_average(),
        "passes": [
            dict(zip(columns, key, strict=True))
            | {"fastest_s": min(runs), "median_s": float(np.median(runs))}
            for key, runs in seconds.items()
        ],
    }


def report(state: dict, recipe: Recipe, scale: Scale, work: Path) -> dict:
    """All figures of a trained denoiser, and what makes the runs repeatable."""
    model = Denoiser.untrained()
    model.load_state_dict(state["model"])
    target = Llama.from_pretrained(ROOT / "data" / "model" / "target")
    # Texts of other weights, other code or another number of prompts are other texts.
    weights = b"".join(w.numpy().tobytes() for w in state["model"].values())
    made_by = repr((MEASURED_CODE, scale, WAYS)).encode()
    folder = work / f"samples-{hashlib.sha256(weights + made_by).hexdigest()[:12]}"
    folder.mkdir(exist_ok=True)
    began = time.perf_counter()
    windows = heldout(CONTEXT, scale.windows)
    evaluated = {
        "likelihood": likelihood(model, target, windows, scale.repeats, recipe.seed, folder),
        "samples": samples(model, target, scale, recipe.seed, folder),
        "times": pass_times(model, target, scale),
    }
    shipped = json.loads((ROOT / "data" / "model" / "training.json").read_text())["target"]
    both = ("n_params", "steps", "tokens_per_step", "seed", "wall_s", "machine", "loss_curve")
    return {
        "provenance": {
            "script": "scripts/train_diffusion.py",
            "machine": f"{processor()}, 1 thread",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "measured_code": MEASURED_CODE,
            "versions": {name: version(name) for name in ("firsttoken", "torch", "numpy", "scipy")}
            | {"python": platform.python_version()},
            "seed": recipe.seed,
            "evaluation_wall_s": round(time.perf_counter() - began, 1),
        },
        "training": {
            "recipe": asdict(recipe),
            "plans": state["plans"],
            "n_params": model.arch.n_params,
            "context": CONTEXT,
            "tokens_seen": recipe.steps * recipe.tokens_per_step,
            "wall_s": round(state["wall_s"], 1),
            "cpu_s": round(state["cpu_s"], 1),
            "machine": state["machine"],
            "torch": state["torch"],
            "loss_curve": state["curve"],  # nats a token, smoothed; a bound
            "target": {key: shipped[key] for key in both},
        },
        **evaluated,
    }


def table(result: dict) -> str:
    """The report as text."""
    bits = result["likelihood"]["bits_per_byte"]
    lines = [
        "held-out text, bits per byte: "
        f"bound {bits['bound']['mean']:.3f} ± {bits['bound']['half_width_95']:.3f}, "
        f"left to right {bits['left_to_right']['mean']:.3f} "
        f"± {bits['left_to_right']['half_width_95']:.3f}, target {bits['target']:.3f}",
        "way                              passes  bits/byte  minus target     entropy  distinct",
    ]
    written = result["samples"]
    rows = [("held-out text", {"passes": 0} | written["heldout"]), ("target", written["target"])]
    rows += [(way["name"], run) for way in written["ways"] for run in way["runs"]]
    for name, run in rows:
        gap = run["minus_target"]
        lines.append(
            f"{name:33}{run['passes']:6}{run['bits_per_byte']['mean']:11.3f}  "
            f"{gap['mean']:+.3f} ± {gap['half_width_95']:.3f}"
            f"{run['entropy_bits']['mean']:9.2f}{run['distinct_runs_of_4']['mean']:10.3f}"
        )
    lines += [
        f"{p['model']:24} {p['rows']:3} x {p['tokens']:3} tokens after {p['cached_tokens']:3}: "
        f"{1e3 * p['fastest_s']:7.2f} ms, median {1e3 * p['median_s']:7.2f}"
        for p in result["times"]["passes"]
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--source", type=Path, default=Path(sysconfig.get_paths()["stdlib"]))
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "measured")
    parser.add_argument("--work", type=Path, default=ROOT / "_build" / "diffusion")
    parser.add_argument("--steps", type=int, help="fewer or more, also of a run that has begun")
    parser.add_argument("--evaluate", action="store_true", help="train nothing, write the report")
    parser.add_argument("--quick", action="store_true", help="a toy, to try the script")
    args = parser.parse_args(argv)
    recipe, scale = RECIPE, Scale()
    if args.quick:
        recipe = replace(RECIPE, steps=6, short_steps=3, warmup_steps=1, tokens_per_step=512)
        scale = Scale(windows=16, repeats=2, prompts=3, passes=(1, 16), rounds=1)
    if args.steps is not None:
        falling = recipe.steps - recipe.short_steps
        recipe = replace(recipe, steps=args.steps, short_steps=args.steps - falling)
    args.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    if args.evaluate:
        state = last_checkpoint(args.work, recipe)
        if state is None or state["step"] < recipe.steps:
            raise SystemExit(f"{args.work} holds no finished training: call without --evaluate")
    else:
        stream = training_stream(args.source, 20 if args.quick else None)
        state = train(recipe, stream, args.work, compiled=not args.quick)
    result = report(state, recipe, scale, args.work)
    print(table(result))
    out = args.work if args.quick else args.out  # a toy's figures are nobody's result
    out.mkdir(parents=True, exist_ok=True)
    path = out / "diffusion.json"
    path.with_suffix(".tmp").write_text(json.dumps(result, indent=1) + "\n")
    path.with_suffix(".tmp").replace(path)
    print("written:", path)


if __name__ == "__main__":
    main()
