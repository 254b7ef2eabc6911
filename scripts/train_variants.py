"""Train small models that differ only in attention; write their loss beside their cache.

    python scripts/train_variants.py --jobs 2     # about 100 minutes on two quiet cores
    python scripts/train_variants.py --quick      # two steps each, writes no report

Multi-head attention is the baseline. The others have as many parameters (a cheaper attention
gets a wider MLP), read the same text in the same order and are trained by the same recipe, so
that for one seed their losses can be compared pair by pair. Text and tokenizer are those of the
shipped model. A run takes one thread; each finished one is kept in --work, so that a second call
goes on where the first was stopped. With --report nothing is trained: the report is written from
the seeds that every variant has finished.

When the code has changed, and nothing that decides a number with it, --confirm shows so in a third
of the time: it trains every variant with the first seed, and where each number is that of the
report, to the last digit, notes in it the date and the digests of the code as it is now.
"""

import argparse
import json
import math
import multiprocessing
import platform
import sysconfig
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from train_model import (
    CONTEXT,
    HELDOUT_FILES,
    ROOT,
    Batches,
    Recipe,
    _hashes,
    optimizers,
    schedule,
    split_corpus,
)

from firsttoken.architectures import Architecture
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.models.llama_torch import MLP
from firsttoken.models.rope import rope_frequencies
from firsttoken.models.tokenizer import tokenizer
from firsttoken.provenance import code_digest, commit, in_file_name, processor

MEASURED_CODE = code_digest(
    [
        "kv_cache",
        "models/llama_torch",
        "models/rope",
        "scripts/train_model.py",
    ]
)

WINDOW = 64
MHA = Architecture("MHA", 6, 128, 8, 8, 16, 352, 1024, tied_embeddings=True, max_context=CONTEXT)
# The shipped model's recipe with half as many tokens a step (a budget this small is better spent
# on more steps), and with the whole context from the first step on: windows of 128 tokens at first
# would be cheaper, but then the loss shows how fast each variant learns to see further, which one
# with a window never has to. The shape comes with the variant.
RECIPE = Recipe({}, steps=800, short_steps=560, short_window=CONTEXT, tokens_per_step=2048)
SEEDS = 4
POSITIONS = (0, 64, 128, 256, 512)  # edges of the buckets in which the loss is averaged
# Student's t that a mean of n differences stays within, 95 % of the time, by n - 1.
T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365}
# What a run says of itself and the report says once.
ONE_FOR_ALL = {"recipe", "machine", "commit", "measured_code"}


def matched(arch: Architecture) -> Architecture:
    """The same architecture with the MLP width that brings its parameters nearest to MHA's."""
    per_unit = 3 * arch.n_layers * arch.d_model
    return arch.replace(d_ff=arch.d_ff + round((MHA.n_params - arch.n_params) / per_unit))


# MLA has the paper's proportions: a latent of 4 heads, half a head of rotary key. CLA shares each
# layer's keys and values with the next, on top of MQA. The windows are on top of MHA.
VARIANTS = (
    MHA,
    matched(MHA.replace(name="GQA", n_kv_heads=2)),
    matched(MHA.replace(name="MQA", n_kv_heads=1)),
    matched(MHA.replace(name="MLA", head_dim=24, latent_dim=64, rope_head_dim=8, v_head_dim=16)),
    matched(MHA.replace(name="CLA", n_kv_heads=1, kv_source=(0, 0, 2, 2, 4, 4))),
    MHA.replace(name="window", window=WINDOW),
    MHA.replace(name="hybrid", window=WINDOW, local_layers=(0, 1, 3, 4)),
)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Turn each pair (x_i, x_{i+H/2}) by its angle. x: (B, heads, T, H); angles: (T, H/2)."""
    cos, sin = angles.cos(), angles.sin()
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention in float32, whose backward pass is faster on a CPU than bfloat16's."""
    width = v.shape[-1]
    v = F.pad(v.float(), (0, k.shape[-1] - width))  # the fused kernel wants equal sizes
    with torch.autocast("cpu", enabled=False):
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
    return y[..., :width].transpose(1, 2).flatten(2)  # (B, T, N H)


class Grouped(nn.Module):
    """MHA, GQA, MQA; a layer without keys of its own (CLA) reads those of an earlier one."""

    def __init__(self, arch: Architecture, layer: int):
        super().__init__()
        self.head_dim, width = arch.head_dim, arch.n_heads * arch.head_dim
        self.q_proj = nn.Linear(arch.d_model, width, bias=False)
        self.o_proj = nn.Linear(width, arch.d_model, bias=False)
        self.stores = layer in arch.kv_layers
        if self.stores:
            self.k_proj = nn.Linear(arch.d_model, arch.n_kv_heads * arch.head_dim, bias=False)
            self.v_proj = nn.Linear(arch.d_model, arch.n_kv_heads * arch.head_dim, bias=False)

    def forward(self, x, angles, mask, kv):
        b, t, _ = x.shape
        heads = (b, t, -1, self.head_dim)
        q = rotate(self.q_proj(x).view(heads).transpose(1, 2), angles)  # (B, N, T, H)
        if self.stores:
            k = rotate(self.k_proj(x).view(heads).transpose(1, 2), angles)  # (B, K, T, H)
            kv = k, self.v_proj(x).view(heads).transpose(1, 2)
        return self.o_proj(attend(q, *kv, mask)), kv


class Latent(nn.Module):
    """MLA: a latent per token, expanded to all heads' keys and values, and one rotary key."""

    def __init__(self, arch: Architecture, layer: int):
        super().__init__()
        self.n_heads, self.rope, self.v = arch.n_heads, arch.rope_head_dim, arch.v_head_dim
        self.plain, self.latent = arch.head_dim - arch.rope_head_dim, arch.latent_dim
        n, d = arch.n_heads, arch.d_model
        self.q_proj = nn.Linear(d, n * arch.head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(d, self.latent + self.rope, bias=False)
        self.kv_a_layernorm = nn.RMSNorm(self.latent, eps=1e-6)
        self.kv_b_proj = nn.Linear(self.latent, n * (self.plain + self.v), bias=False)
        self.o_proj = nn.Linear(n * self.v, d, bias=False)

    def forward(self, x, angles, mask, kv):
        b, t, _ = x.shape
        heads = (b, t, self.n_heads, -1)
        q, q_rope = (
            self.q_proj(x).view(heads).transpose(1, 2).split((self.plain, self.rope), dim=-1)
        )
        latent, k_rope = self.kv_a_proj_with_mqa(x).split((self.latent, self.rope), dim=-1)
        up = self.kv_b_proj(self.kv_a_layernorm(latent.float())).view(heads).transpose(1, 2)
        k, v = up.split((self.plain, self.v), dim=-1)
        k_rope = rotate(k_rope[:, None], angles).expand(-1, self.n_heads, -1, -1)
        q = torch.cat((q, rotate(q_rope, angles)), dim=-1)
        k = torch.cat((k, k_rope), dim=-1)
        return self.o_proj(attend(q, k, v, mask)), None


class Block(nn.Module):
    def __init__(self, arch: Architecture, layer: int):
        super().__init__()
        attention = Grouped if arch.latent_dim is None else Latent
        self.input_layernorm = nn.RMSNorm(arch.d_model, eps=1e-5)
        self.self_attn = attention(arch, layer)
        self.post_attention_layernorm = nn.RMSNorm(arch.d_model, eps=1e-5)
        self.mlp = MLP(arch)

    def forward(self, x, angles, mask, kv):
        y, kv = self.self_attn(self.input_layernorm(x), angles, mask, kv)
        x = x + y
        return x + self.mlp(self.post_attention_layernorm(x)), kv


class Model(nn.Module):
    """A Llama with the attention of one of `VARIANTS`; tied embedding, no cache.

    Matrices start normal with standard deviation 0.02, smaller where a block writes back. Each
    has its own stream, so that for one seed all variants start alike wherever shapes agree.
    """

    def __init__(self, arch: Architecture, seed: int):
        super().__init__()
        self.arch = arch
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(arch.vocab_size, arch.d_model),
                "layers": nn.ModuleList(Block(arch, i) for i in range(arch.n_layers)),
                "norm": nn.RMSNorm(arch.d_model, eps=1e-5),
            }
        )
        rotary = arch.head_dim if arch.latent_dim is None else arch.rope_head_dim
        frequencies = torch.tensor(rope_frequencies(rotary), dtype=torch.float32)
        self.angles = torch.outer(torch.arange(CONTEXT, dtype=torch.float32), frequencies)
        back = 0.02 / math.sqrt(2 * arch.n_layers)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                rng = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
                std = back if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
                nn.init.normal_(weight, std=std, generator=rng)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, V) that follow each of the tokens (B, T)."""
        t = tokens.shape[1]
        distance = torch.arange(t)[:, None] - torch.arange(t)
        masks = {w: (distance >= 0) & (distance < w) for w in set(self.arch.layer_windows) if w}
        x, kv = self.model["embed_tokens"](tokens), None
        for block, window in zip(self.model["layers"], self.arch.layer_windows, strict=True):
            x, kv = block(x, self.angles[:t], masks.get(window), kv)
        return F.linear(self.model["norm"](x), self.model["embed_tokens"].weight)


def training_stream(source: Path, max_files: int | None = None) -> np.ndarray:
    """The tokens that the shipped model was trained on, or those of the first files."""
    files, _ = split_corpus(source, HELDOUT_FILES, max_files)
    shipped = json.loads((ROOT / "data" / "model" / "training.json").read_text())["corpus"]
    if max_files is None and _hashes(files, source) != shipped["train_sha256"]:
        raise SystemExit(
            f"{source} is not the text of the shipped model: Python {shipped['python']}"
        )
    tok = tokenizer()
    texts = [f.read_text(encoding="utf-8", errors="replace") for f in files]
    return np.concatenate([np.array([tok.eos_id, *tok.encode(t)], np.uint16) for t in texts])


def heldout_windows(n_windows: int | None = None) -> np.ndarray:
    """The held-out text in windows side by side: (windows, CONTEXT + 1), inputs and targets."""
    tok = tokenizer()
    text = (ROOT / "data" / "heldout.txt").read_text(encoding="utf-8")
    ids = np.array([tok.eos_id, *tok.encode(text)])
    starts = np.arange(0, len(ids) - CONTEXT, CONTEXT)[:n_windows]
    return ids[starts[:, None] + np.arange(CONTEXT + 1)]


def evaluate(model: Model, windows: np.ndarray) -> dict:
    """Held-out loss: per token, per byte, and by position, which is how many tokens it sees."""
    tokens = torch.from_numpy(windows)
    with torch.inference_mode():
        losses = torch.cat(
            [
                F.cross_entropy(model(rows[:, :-1]).mT, rows[:, 1:], reduction="none")
                for rows in tokens.split(8)
            ]
        ).double()  # (windows, CONTEXT)
    tok = tokenizer()
    n_bytes = sum(len(tok.token_bytes(i)) for i in windows[:, 1:].flat)
    by_position = [losses[:, a:b].mean().item() for a, b in pairwise(POSITIONS)]
    return {
        "nats_per_token": losses.mean().item(),
        "bits_per_byte": losses.sum().item() / math.log(2) / n_bytes,
        "nats_by_position": by_position,
    }


def train(arch: Architecture, recipe: Recipe, stream: np.ndarray) -> tuple[Model, list]:
    """A trained model, and its smoothed loss every 80 steps."""
    model = Model(arch, recipe.seed)
    batches, optims, curve, smooth = Batches(stream, recipe), optimizers(model, recipe), [], None
    base = [[group["lr"] for group in o.param_groups] for o in optims]
    for step in range(recipe.steps):
        tokens, targets = batches(step)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for o, rates in zip(optims, base, strict=True):
            for group, rate in zip(o.param_groups, rates, strict=True):
                group["lr"] = rate * schedule(step, recipe)
            o.step()
            o.zero_grad()
        value = loss.item()
        if not math.isfinite(value):
            raise RuntimeError(f"{arch.name}, seed {recipe.seed}: loss {value} at step {step}")
        smooth = value if smooth is None else 0.95 * smooth + 0.05 * value
        if step % 80 == 79 or step == recipe.steps - 1:
            curve.append([step + 1, round(smooth, 4)])
            print(f"  {arch.name} {recipe.seed}: step {step + 1}, loss {smooth:.3f}", flush=True)
    return model, curve


def finished(work: Path, arch: Architecture, recipe: Recipe) -> dict | None:
    """The stored result of a run, None where there is none."""
    path = work / f"{arch.name}-{recipe.seed}.json"
    if not path.exists():
        return None
    run = json.loads(path.read_text())
    if run["recipe"] != json.loads(json.dumps(asdict(recipe))):
        raise SystemExit(f"{path} is from another recipe: remove it or change --work")
    if run["measured_code"] != MEASURED_CODE:
        raise SystemExit(f"{path} is from other code: remove it or change --work")
    return run


def one_run(
    arch: Architecture,
    recipe: Recipe,
    stream: np.ndarray,
    windows: np.ndarray,
    work: Path,
    code: str,
) -> dict:
    """Train and evaluate one variant with one seed; keep the result in `work`."""
    began = time.perf_counter()
    model, curve = train(arch, recipe, stream)
    run = {
        "recipe": asdict(recipe),
        **evaluate(model, windows),
        "loss_curve": curve,
        "wall_s": round(time.perf_counter() - began, 1),
        "machine": f"{processor()}, 1 thread",
        "commit": code,
        "measured_code": MEASURED_CODE,
    }
    path = work / f"{arch.name}-{recipe.seed}.json"
    # Written beside and renamed, so that a stop in mid-write leaves no half a result.
    path.with_suffix(".tmp").write_text(json.dumps(run, indent=1) + "\n")
    path.with_suffix(".tmp").replace(path)
    return run


def paired(losses: Sequence[float], baseline: Sequence[float]) -> dict:
    """Mean difference of two variants over the same seeds, and half its 95 % interval (t)."""
    differences = np.subtract(losses, baseline)
    n = len(differences)
    spread = differences.std(ddof=1) / math.sqrt(n)
    return {"mean": float(differences.mean()), "half_width_95": float(T_95[n - 1] * spread)}


def report(runs: dict[str, list[dict]], windows: np.ndarray) -> dict:
    """All that the figure needs and that makes the runs repeatable; `runs` are by seed."""
    every = [run for several in runs.values() for run in several]
    recipe = {k: v for k, v in every[0]["recipe"].items() if k not in ("shape", "seed")}

    def values(name: str) -> np.ndarray:
        return np.array([[r["nats_per_token"], *r["nats_by_position"]] for r in runs[name]]).T

    variants = []
    for arch in VARIANTS:
        total, *buckets = map(paired, values(arch.name), values(MHA.name))
        variants.append(
            {
                "name": arch.name,
                "arch": arch.arguments,
                "n_params": arch.n_params,
                "kv_bytes_per_token": 2 * arch.kv_elements_per_token,
                "cache_bytes": kv_cache_bytes(arch, CONTEXT, dtype="bf16"),
                "runs": [
                    {"seed": run["recipe"]["seed"]}
                    | {k: v for k, v in run.items() if k not in ONE_FOR_ALL}
                    for run in runs[arch.name]
                ],
                "minus_mha": {"nats_per_token": total, "nats_by_position": buckets},
            }
        )
    return {
        "provenance": {
            "script": "scripts/train_variants.py",
            "machine": every[0]["machine"],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": ", ".join(sorted({run["commit"] for run in every})),
            "measured_code": MEASURED_CODE,
            "versions": {name: version(name) for name in ("firsttoken", "torch", "numpy")}
            | {"python": platform.python_version()},
            "seeds": [run["recipe"]["seed"] for run in runs[MHA.name]],
            "wall_s": round(sum(run["wall_s"] for run in every), 1),
        },
        "recipe": recipe,
        "text": {
            "train": "that of the shipped model (data/model/training.json)",
            "train_tokens_seen": recipe["steps"] * recipe["tokens_per_step"],
            "heldout": "data/heldout.txt",
            "heldout_windows": len(windows),
            "context": CONTEXT,
            "cache_dtype": "bf16",
            "position_edges": POSITIONS,
        },
        "variants": variants,
    }


def confirm(path: Path, runs: dict[str, dict]) -> None:
    """Renew the digests of a stored report, if runs of its first seed, by variant, are those in it.

    Raises: SystemExit, and the report stays as it is, where a number differs.
    """
    stored = json.loads(path.read_text())
    numbers = ("nats_per_token", "bits_per_byte", "nats_by_position", "loss_curve")
    for variant in stored["variants"]:
        before, now = variant["runs"][0], json.loads(json.dumps(runs[variant["name"]]))
        if unlike := [name for name in numbers if now[name] != before[name]]:
            raise SystemExit(f"{variant['name']}: other {', '.join(unlike)} than in {path.name}")
    (seed,) = {run["recipe"]["seed"] for run in runs.values()}
    stored["provenance"] |= {
        "measured_code": MEASURED_CODE,
        "confirmed": {
            "seeds": [seed],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": ", ".join(sorted({run["commit"] for run in runs.values()})),
            "machine": ", ".join(sorted({run["machine"] for run in runs.values()})),
        },
    }
    path.write_text(json.dumps(stored, indent=1) + "\n")


def table(result: dict) -> str:
    """The report as text: a row per variant."""
    lines = ["variant  parameters  cache at 512  nats/token  minus MHA          bits/byte"]
    for v in result["variants"]:
        loss, bits = (
            np.mean([run[key] for run in v["runs"]]) for key in ("nats_per_token", "bits_per_byte")
        )
        gap = v["minus_mha"]["nats_per_token"]
        lines.append(
            f"{v['name']:8} {v['n_params']:10,} {v['cache_bytes']:9,.0f} B {loss:11.4f}  "
            f"{gap['mean']:+.4f} ± {gap['half_width_95']:.4f}  {bits:9.4f}"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--source", type=Path, default=Path(sysconfig.get_paths()["stdlib"]))
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "measured")
    parser.add_argument("--work", type=Path, default=ROOT / "_build" / "variants")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs of each variant, at least 2")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, a thread each")
    parser.add_argument("--report", action="store_true", help="train nothing, write the report")
    parser.add_argument("--quick", action="store_true", help="two steps each, write no report")
    parser.add_argument("--confirm", type=Path, metavar="REPORT", help="is it still so? One seed")
    args = parser.parse_args(argv)
    if args.confirm:
        args.seeds = 1
    base = RECIPE
    if args.quick:
        base = replace(RECIPE, steps=2, short_steps=1, warmup_steps=1, tokens_per_step=512)
    args.work.mkdir(parents=True, exist_ok=True)
    windows = heldout_windows(2 if args.quick else None)
    # Seed by seed, so that a stop leaves whole seeds.
    recipes = [
        (arch, replace(base, shape=arch.arguments, seed=seed))
        for seed in range(args.seeds)
        for arch in VARIANTS
    ]
    todo = [(a, r) for a, r in recipes if finished(args.work, a, r) is None]
    if todo and not args.report:
        stream = training_stream(args.source, 20 if args.quick else None)
        code, began = commit(), time.perf_counter()
        with ProcessPoolExecutor(
            args.jobs,
            multiprocessing.get_context("spawn"),
            initializer=torch.set_num_threads,
            initargs=(1,),
        ) as pool:
            runs = [pool.submit(one_run, a, r, stream, windows, args.work, code) for a, r in todo]
            for n, done in enumerate(as_completed(runs), 1):
                run = done.result()
                left = (time.perf_counter() - began) / n * (len(todo) - n)
                end = datetime.now(UTC) + timedelta(seconds=left)
                print(
                    f"{n}/{len(todo)} {run['recipe']['shape']['name']} {run['recipe']['seed']}: "
                    f"{run['nats_per_token']:.4f} nats/token, {run['wall_s'] / 60:.1f} min; "
                    f"all done about {end:%H:%M} UTC",
                    flush=True,
                )
    if args.confirm:
        confirm(args.confirm, {a.name: finished(args.work, a, r) for a, r in recipes})
        print("confirmed:", args.confirm)
        return
    results = {arch.name: [] for arch in VARIANTS}
    for seed in range(args.seeds):
        same_seed = [finished(args.work, a, r) for a, r in recipes if r.seed == seed]
        if None not in same_seed:
            for arch, run in zip(VARIANTS, same_seed, strict=True):
                results[arch.name].append(run)
    if len(results[MHA.name]) < 2:
        raise SystemExit("fewer than two seeds are complete: no report")
    result = report(results, windows)
    print(table(result))
    if args.quick:
        return
    machine = in_file_name(result["provenance"]["machine"])
    path = args.out / f"variants_{machine}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print("written:", path)


if __name__ == "__main__":
    main()
