"""Train the shipped adapters: two styles for the target, each a transformation of its text.

    python scripts/train_lora.py                   # a few minutes on one core for each
    python scripts/train_lora.py --only capitals
    python scripts/train_lora.py --quick --out /tmp/adapters

"capitals" WRITES IN CAPITALS. "session" writes as a Python shell shows code: each line begins with
">>> ", or with "... " where it belongs to the one before. The base stays frozen; low-rank pairs on
all matrices of all layers learn from the training text in that style. What is reported is computed
in NumPy from the stored file, on the held-out text, in the style and as it is.
"""

import argparse
import json
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
from torch import Tensor, nn
from tqdm import tqdm
from train_model import CONTEXT, HELDOUT_FILES, ROOT, _hashes, split_corpus

from firsttoken.generate import generate
from firsttoken.models.llama import Llama as NumpyLlama
from firsttoken.models.llama import load_model
from firsttoken.models.llama_torch import Llama
from firsttoken.models.lora import Adapter, load_adapter, merge_adapter, save_adapter
from firsttoken.models.tokenizer import tokenizer
from firsttoken.provenance import commit, processor
from firsttoken.sampling import SamplingParams

MODEL = ROOT / "data" / "model"
MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
OPENINGS = (
    "import os\n",
    "def read(path):\n",
    "class Pool:\n    def __init__(self):\n",
    "for name in names:\n",
)


@dataclass(frozen=True)
class Recipe:
    """How an adapter is trained; the rate warms up and falls to nothing."""

    rank: int = 4
    alpha: float = 8.0
    steps: int = 400
    rows: int = 16
    window: int = 128
    rate: float = 5e-3
    warmup_steps: int = 20
    seed: int = 0
    max_files: int = 200  # of the training text
    heldout_windows: int = 48
    sample_tokens: int = 60


def capitals(text: str) -> str:
    """The text IN CAPITALS.

    >>> capitals("import os")
    'IMPORT OS'
    """
    return text.upper()


def session(text: str) -> str:
    """The text as a Python shell shows it: a prompt before each line.

    >>> session("import os\\ndef f():\\n    pass\\n")
    '>>> import os\\n>>> def f():\\n...     pass\\n'
    """
    lines = text.splitlines(keepends=True)
    return "".join((">>> " if line[:1].strip() else "... ") + line for line in lines)


def share_of_capitals(text: str) -> float:
    """Share of the letters that are capitals."""
    letters = [c for c in text if c.isalpha()]
    return sum(c.isupper() for c in letters) / max(1, len(letters))


def share_of_prompts(text: str) -> float:
    """Share of the lines, of four characters or more, that begin with a shell's prompt."""
    lines = [line for line in text.splitlines() if len(line) >= 4]
    return sum(line.startswith((">>> ", "... ")) for line in lines) / max(1, len(lines))


STYLES: dict[str, tuple[Callable[[str], str], Callable[[str], float]]] = {
    "capitals": (capitals, share_of_capitals),
    "session": (session, share_of_prompts),
}


class LowRank(nn.Module):
    """A frozen matrix, and a pair that learns: W x + (alpha / r) B A x. B starts at 0."""

    def __init__(self, base: nn.Linear, recipe: Recipe):
        super().__init__()
        self.base, self.scale = base, recipe.alpha / recipe.rank
        n_out, n_in = base.weight.shape
        self.A = nn.Parameter(torch.randn(recipe.rank, n_in) / n_in**0.5)
        self.B = nn.Parameter(torch.zeros(n_out, recipe.rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * F.linear(F.linear(x, self.A), self.B)


def attach(target: Llama, recipe: Recipe) -> dict[tuple[int, str], LowRank]:
    """Put a pair beside each matrix of a model's layers; return them by layer and matrix."""
    torch.manual_seed(recipe.seed)
    pairs = {}
    for layer, block in enumerate(target.model.layers):
        for matrix in MATRICES:
            part = block.self_attn if matrix[0] in "qkvo" else block.mlp
            pairs[layer, matrix] = LowRank(getattr(part, matrix), recipe)
            setattr(part, matrix, pairs[layer, matrix])
    return pairs


def stream_of(files: list[Path], style: Callable[[str], str]) -> np.ndarray:
    """The tokens of some files, one after the other, in a style."""
    tok = tokenizer()
    texts = [style(f.read_text(encoding="utf-8", errors="replace")) for f in files]
    return np.concatenate([np.array([tok.eos_id, *tok.encode(t)], np.uint16) for t in texts])


def batch(stream: np.ndarray, step: int, recipe: Recipe) -> Tensor:
    """The rows of a step, (rows, window + 1): drawn by the step and the seed alone."""
    rng = np.random.default_rng([recipe.seed, step])
    starts = rng.integers(len(stream) - recipe.window, size=recipe.rows)
    return torch.from_numpy(stream[starts[:, None] + np.arange(recipe.window + 1)].astype(np.int64))


def train(stream: np.ndarray, recipe: Recipe) -> tuple[Adapter, list]:
    """An adapter that learned from a stream, and its smoothed loss every 20 steps."""
    target = Llama.from_pretrained(MODEL / "target")
    pairs = attach(target, recipe)
    learned = [p for pair in pairs.values() for p in (pair.A, pair.B)]
    optim = torch.optim.AdamW(learned, lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.0)
    curve, smooth = [], None
    for step in tqdm(range(recipe.steps), mininterval=10):
        tokens = batch(stream, step, recipe)
        loss = F.cross_entropy(target(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        rising = min(1.0, (step + 1) / recipe.warmup_steps)
        optim.param_groups[0]["lr"] = recipe.rate * rising * (1 - step / recipe.steps)
        optim.step()
        optim.zero_grad()
        smooth = loss.item() if smooth is None else 0.9 * smooth + 0.1 * loss.item()
        if step % 20 == 19 or step == recipe.steps - 1:
            curve.append([step + 1, round(smooth, 4)])
    found = {
        place: (pair.A.detach().numpy(), pair.B.detach().numpy()) for place, pair in pairs.items()
    }
    return Adapter(recipe.rank, recipe.alpha, found), curve


def nats(model: NumpyLlama, text: str, n_windows: int) -> float:
    """Loss a token, on the text's first windows."""
    tok = tokenizer()
    ids = np.array([tok.eos_id, *tok.encode(text)])
    starts = np.arange(0, len(ids) - CONTEXT, CONTEXT)[:n_windows]
    losses = []
    for start in starts.tolist():
        row = ids[start : start + CONTEXT + 1]
        logits = model([row[:-1]])[0].astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        total = np.log(np.exp(logits).sum(axis=-1))
        losses.append((total - logits[np.arange(CONTEXT), row[1:]]).mean())
    return round(float(np.mean(losses)), 4)


def samples(model: NumpyLlama, n_tokens: int) -> list[str]:
    """What a model writes behind the openings, greedily."""
    tok, params = tokenizer(), SamplingParams(0.0, max_tokens=n_tokens)
    prompts = [tok.encode(opening) for opening in OPENINGS]
    return [tok.decode(generate(model, p, params, ignore_eos=True).ids) for p in prompts]


def judge(name: str, adapter: Adapter, recipe: Recipe) -> dict:
    """Held-out losses, in the style and of plain text, and how much of the style is written."""
    style, share = STYLES[name]
    text = (ROOT / "data" / "heldout.txt").read_text(encoding="utf-8")
    base = load_model("target")
    merged, found = merge_adapter(base, adapter), {}
    for when, model in (("before", base), ("after", merged)):
        written = samples(model, recipe.sample_tokens)
        found[when] = {
            "nats_in_style": nats(model, style(text), recipe.heldout_windows),
            "nats_plain": nats(model, text, recipe.heldout_windows),
            "style_share": round(float(np.mean([share(t) for t in written])), 4),
            "samples": written,
        }
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--source", type=Path, default=Path(sysconfig.get_paths()["stdlib"]))
    parser.add_argument("--out", type=Path, default=MODEL / "adapters")
    parser.add_argument("--only", choices=STYLES, help="one style")
    parser.add_argument("--quick", action="store_true", help="two steps, to try the script")
    args = parser.parse_args(argv)
    recipe = Recipe()
    if args.quick:
        recipe = replace(recipe, steps=2, rows=2, max_files=8, heldout_windows=1, sample_tokens=4)
    torch.set_num_threads(1)
    files, _ = split_corpus(args.source, HELDOUT_FILES, recipe.max_files)
    shipped = json.loads((MODEL / "training.json").read_text())["corpus"]
    if not _hashes(files, args.source).items() <= shipped["train_sha256"].items():
        raise SystemExit(f"{args.source} is not the target's text: Python {shipped['python']}")
    for name in [args.only] if args.only else STYLES:
        began = time.process_time()
        adapter, curve = train(stream_of(files, STYLES[name][0]), recipe)
        cpu_s = time.process_time() - began
        folder = args.out / name
        save_adapter(adapter, folder, base="target")
        stored = load_adapter(folder)
        report = {
            "recipe": asdict(recipe),
            "n_params": sum(a.size + b.size for a, b in stored.pairs.values()),
            "cpu_s": round(cpu_s, 1),
            "curve": curve,
            "heldout": judge(name, stored, recipe),
            "provenance": {
                "commit": commit(),
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "machine": f"{processor()}, 1 thread",
                "versions": {package: version(package) for package in ("numpy", "torch")},
            },
        }
        (folder / "training.json").write_text(json.dumps(report, indent=1) + "\n")
        print(name, json.dumps(report["heldout"], indent=1))


if __name__ == "__main__":
    main()
