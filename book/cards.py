"""A picture for each chapter's card on the first page, drawn from the library's own functions.

A picture says nothing that the card's words do not say: it has no text, and screen readers pass it
over. A chapter that comes gets its picture by one more function in `PICTURES`.
"""

import json

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from firsttoken.architectures import ARCHITECTURES
from firsttoken.batching import Request, simulate
from firsttoken.drafts import best_tree
from firsttoken.flash import flash_steps
from firsttoken.generate import speculative_generate
from firsttoken.hardware import ACCELERATORS
from firsttoken.kv_cache import kv_cache_bytes, state_bytes
from firsttoken.metrics import wait_md1, wait_mm1
from firsttoken.models.checkpoint import read_checkpoint
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.page.plots import COLORS, STYLE, ornament
from firsttoken.paging import BlockPool
from firsttoken.parallel import ring_rounds
from firsttoken.paths import data_path
from firsttoken.quantization import quantize
from firsttoken.roofline import attainable_flops, mlp_cost, model_cost
from firsttoken.sampling import SamplingParams, keep_top_p, softmax
from firsttoken.throughput import best_batch, decode_step, pareto
from firsttoken.units import GB

LLAMA, H100 = ARCHITECTURES["Llama-2-13B"], ACCELERATORS["H100-SXM"]
SIZE = 3.2, 1.6  # inches; every picture has this shape, so that no card jumps
PROMPT = "def read(path):\n    return"


def start(ax: Axes) -> None:
    """FLOPs of training a model once, and of serving ever more tokens with it."""
    model = ARCHITECTURES["DeepSeek-V3"]
    trained = 3 * model_cost(model, 1, 4096, 4096).flops / 4096  # per token, there and back
    served = model_cost(model, 1, 1, 4096).flops
    ratio = np.linspace(0, 6, 2)  # tokens served for each one trained on
    ax.axhline(1, color=COLORS["weights"], lw=3)
    ax.plot(ratio, ratio * served / trained, color=COLORS["decode"], lw=3)
    ax.plot(trained / served, 1, "o", color=COLORS["ink"], ms=10)
    ax.set(xlim=(0, 6), ylim=(0, 2.2))


def token_loop(ax: Axes) -> None:
    """The six likeliest tokens to follow a text."""
    p = softmax(_next_logits())[:6]
    ax.barh(range(6), p, 0.66, color=[COLORS["decode"]] + [COLORS["muted"]] * 5)
    ax.set(xlim=(0, 1.08 * p[0]), ylim=(5.6, -0.6))


def metrics(ax: Axes) -> None:
    """Time to the first token against load, for equal answers and for random ones."""
    loads = np.linspace(0.02, 0.94, 47)
    for wait, color in ((wait_mm1, "target"), (wait_md1, "prefill")):
        ax.plot(loads, [1 + wait(load, 1.0) for load in loads], color=COLORS[color], lw=3)
    ax.set(xlim=(0, 1), ylim=(0, 16))


def roofline(ax: Axes) -> None:
    """The roof of an H100, and the MLP of a model at growing batches."""
    corner = H100.ridge_point()
    ends = np.array([0.5, corner, 20 * corner])
    ax.loglog(ends, [attainable_flops(x, H100) for x in ends], color=COLORS["muted"], lw=3)
    sizes = LLAMA.d_model, LLAMA.d_ff
    points = [mlp_cost(4**i, *sizes).intensity for i in range(7)]
    waits = [x < corner for x in points]
    ax.scatter(
        points,
        [attainable_flops(x, H100) for x in points],
        s=70,
        color=[COLORS["weights" if wait else "prefill"] for wait in waits],
        zorder=3,
    )
    ax.set(xlim=(0.5, 20 * corner), ylim=(attainable_flops(0.4, H100), 2.5 * H100.peak()))


def kv_cache(ax: Axes) -> None:
    """Weights, and on them the cache of 16 growing conversations, up to a card's memory."""
    lengths = np.linspace(0, 5000, 2, dtype=int)
    weights = 2 * LLAMA.n_params / GB
    cache = np.array([kv_cache_bytes(LLAMA, int(n), batch=16) / GB for n in lengths])
    ax.fill_between(lengths, 0, weights, color=COLORS["weights"], lw=0)
    ax.fill_between(lengths, weights, weights + cache, color=COLORS["cache"], lw=0)
    ax.axhline(H100.memory_bytes / GB, color=COLORS["ink"], lw=2, ls="--")
    ax.set(xlim=(0, 5000), ylim=(0, 96))


def throughput(ax: Axes) -> None:
    """Tokens per second of all readers against the time per token, up to the last that fit."""
    most = best_batch(LLAMA, H100, 512, model="layers")
    steps = pareto(LLAMA, H100, [2**i for i in range(11)], 512, model="layers")
    last = decode_step(LLAMA, H100, most, 512, model="layers")
    inside = [*(step for step in steps if step.fits), last]
    for some, style in ((steps, ":"), (inside, "-")):
        x, y = [s.step_s for s in some], [s.tokens_per_s for s in some]
        ax.loglog(x, y, style, color=COLORS["cache"], lw=3)
    ax.loglog(last.step_s, last.tokens_per_s, "o", color=COLORS["target"], ms=10)


def attention(ax: Axes) -> None:
    """The cache of a token of four designs: each head its own, groups, all in one, compressed."""
    own = ARCHITECTURES["Llama-2-7B"]
    latent = {"latent_dim": 512, "rope_head_dim": 64, "v_head_dim": 128}
    kinds = [own.replace(n_kv_heads=n) for n in (32, 8, 1)]
    kinds.append(own.replace(n_kv_heads=32, head_dim=192, **latent))
    colors = [COLORS[name] for name in ("cache", "weights", "prefill", "draft")]
    ax.bar(range(4), [kv_cache_bytes(kind, 1) for kind in kinds], 0.66, color=colors)


def flash(ax: Axes) -> None:
    """Tiles of a causal matrix, as they come: forgotten, on the chip, still to be made."""
    zeros = np.zeros((10, 1))
    steps = [step for step in flash_steps(zeros, zeros, zeros, 2, 1) if step.seen]
    now = 19
    for n, step in enumerate(steps):
        color, alpha = ("decode", 1) if n == now else ("muted", 0.5 if n < now else 0.15)
        place = {"left": step.keys.start, "height": 0.84, "width": 0.84}
        ax.barh(step.queries.start / 2, **place, color=COLORS[color], alpha=alpha)
    ax.set(xlim=(-0.3, 10.2), ylim=(4.7, -0.7))


def beyond(ax: Axes) -> None:
    """What attention keeps of ever more tokens, a hybrid, and a state that does not grow."""
    mix = ARCHITECTURES["Qwen3-Next-80B-A3B"]
    tokens = np.geomspace(64, 65_536, 40)
    own = np.array([kv_cache_bytes(mix, int(n)) for n in tokens])
    state = state_bytes(mix)
    for kept, color in ((4 * own, "cache"), (own + state, "draft"), (0 * own + state, "weights")):
        ax.loglog(tokens, kept, color=COLORS[color], lw=3)


def quantization(ax: Axes) -> None:
    """Weights of the shipped model, in fewer and fewer bits from left to right."""
    weights = read_checkpoint(data_path("model/target")).weights
    patch = weights["model.layers.3.mlp.up_proj.weight"][:9, :32]
    parts = zip(np.split(patch, 4, axis=1), (8, 4, 3, 2), strict=True)
    rounded = np.hstack([quantize(part, bits).dequantize() for part, bits in parts])
    top = np.abs(patch).max()
    ax.imshow(rounded, cmap="RdBu", vmin=-top, vmax=top, aspect="auto")


def pruning(ax: Axes) -> None:
    """The best, a middling and the worst half of the layers, and the loss of each."""
    stored = json.loads(data_path("measured/pruning.json").read_text("utf-8"))
    halves = sorted((x, k) for k, x in stored["analysis"]["subsets"].items() if len(k) == 4)
    for row, (loss, kept) in enumerate((halves[0], halves[len(halves) // 2], halves[-1])):
        for layer in range(8):
            stays = str(layer) in kept
            ax.barh(
                row,
                0.8,
                0.6,
                layer,
                color=COLORS["weights" if stays else "muted"],
                alpha=0.25 + 0.75 * stays,
            )
        ax.barh(row, loss, 0.6, 8.6, color=COLORS["target"])
    ax.set(xlim=(-0.3, 18), ylim=(2.6, -0.6))


def sampling(ax: Axes) -> None:
    """The likeliest tokens, and those that top-p of 0.5 keeps."""
    logits = _next_logits()
    p, kept = softmax(logits)[:16], np.isfinite(keep_top_p(logits, 0.5))
    colors = [COLORS["decode" if keep else "muted"] for keep in kept[:16]]
    ax.bar(range(16), p, 0.7, color=colors)
    ax.axvline(kept.sum() - 0.5, color=COLORS["ink"], lw=2, ls="--")


def speculative(ax: Axes) -> None:
    """Rounds of the shipped pair: guesses that were kept, and the target's own token on top."""
    ids = tokenizer().encode(PROMPT)
    params = SamplingParams(temperature=0.7, max_tokens=48, seed=1)
    run = speculative_generate(load_model("target"), load_model("draft"), ids, params)
    for column, one in enumerate(run.rounds[:14]):
        bonus = one.accepted == one.drafted
        colors = ["draft"] * one.accepted + ["cache" if bonus else "target"]
        heights = range(len(colors))
        ax.bar([column] * len(colors), 0.8, 0.8, bottom=heights, color=[COLORS[c] for c in colors])
    ax.set(xlim=(-0.7, 13.7), ylim=(0, 5.2))


def drafts(ax: Axes) -> None:
    """The tree of twelve guesses that is likeliest to help, and the branch that was right."""
    stored = json.loads(data_path("measured/drafts.json").read_text("utf-8"))
    ranks = np.array(stored["measured"][stored["shipped"]["eagle_draft"]]["ranks"])
    parents = best_tree(ranks, 12)
    depth, across, below = [0], [0.0], [0] * (len(ranks) + 1)
    for parent in parents:
        depth.append(depth[parent + 1] + 1)
        across.append(below[depth[-1]])
        below[depth[-1]] += 1
    for i, parent in enumerate(parents, 1):
        ends = [parent + 1, i]
        line = [depth[j] for j in ends], [across[j] for j in ends]
        ax.plot(*line, color=COLORS["ink"], lw=1.5, zorder=1)
    colors = [COLORS["target" if y == 0 else "draft"] for y in across]
    ax.scatter(depth, across, s=130, c=colors, zorder=2)
    ax.set(xlim=(-0.4, max(depth) + 0.4), ylim=(max(across) + 0.6, -0.6))


def batching(ax: Axes) -> None:
    """Requests that wait, have their prompt read, and get tokens, four of them at a time."""
    rng = np.random.default_rng(4)
    arrivals = np.cumsum(rng.exponential(2.5, 9))
    requests = [Request(at, 6, int(rng.integers(4, 24))) for at in arrivals]
    begins: dict[int, float] = {}

    def note(step):
        begins.update({i: step.start_s for i, *_ in step.prefills})

    def cost(prefills, _decodes):
        return 1.0 + 0.2 * sum(n for n, _ in prefills)

    traces = simulate(requests, "continuous", cost, max_batch=4, on_step=note)
    for row, trace in enumerate(traces):
        first, last = trace.token_times_s[0], trace.token_times_s[-1]
        for left, right, height, color in (
            (trace.arrival_s, begins[row], 0.3, "muted"),
            (begins[row], first, 0.7, "prefill"),
            (first, last, 0.7, "decode"),
        ):
            ax.barh(row, right - left, height, left=left, color=COLORS[color])
    ax.invert_yaxis()


def paging(ax: Axes) -> None:
    """Block tables of three requests that share a beginning, and where their blocks lie."""
    pool = BlockPool(16, 4, prefix_caching=True)
    for name, n in (("old", 20), ("A", 9), ("older", 9)):
        pool.allocate(name, [ord(name[0]) * 100 + i for i in range(n)])
    pool.free("old")
    common = [1] * 8
    for name, n in (("B", 14), ("C", 6), ("D", 4)):
        pool.allocate(name, common + [ord(name) * 100 + i for i in range(n)])
    place, blocks = 0.0, range(pool.n_blocks)
    ax.bar(blocks, 0.7, 0.8, color=COLORS["muted"], alpha=0.35)
    for name, color in (("B", "prefill"), ("C", "decode"), ("D", "draft")):
        for block in pool.block_table(name):
            ax.bar([place, block], 0.7, 0.8, bottom=[2, 0], color=COLORS[color])
            ax.plot([place, block], [2, 0.7], color=COLORS[color], lw=1.5)
            place += 1
        place += 0.5


def parallel(ax: Axes) -> None:
    """Four devices add up round a ring: what each holds of each piece, the sums growing."""
    n = 4
    rounds = list(ring_rounds([[1] * n for _ in range(n)]))
    for column, one in enumerate(rounds):
        for device, row in enumerate(one.held):
            for piece, parts in enumerate(row):
                color = COLORS["cache" if parts == n else "weights"]
                left, low = column % 3 * (n + 1) + piece, column // 3 * (n + 1) + device
                alpha = 0.1 + 0.9 * parts / n
                ax.bar(left, 0.8, 0.8, bottom=low, color=color, alpha=alpha)
    ax.set(xlim=(-0.8, 3 * n + 1.8), ylim=(2 * n + 1.2, -0.4))


def engine(ax: Axes) -> None:
    """Requests in three places of an engine: a prompt, then a token a step, then the next one."""
    lives = ((0, 0, 3), (1, 0, 6), (2, 0, 2), (2, 2, 5), (0, 3, 3), (0, 6, 3), (1, 6, 3), (2, 7, 2))
    for place, start, n in lives:
        for step in range(n):
            color = COLORS["decode" if step else "prefill"]
            ax.bar(start + step, 0.8 if step else 0.95, 0.85, bottom=place, color=color)
    ax.set(xlim=(-0.8, 8.8), ylim=(3.4, -0.4))


PICTURES = {
    "00_start": start,
    "01_generate": token_loop,
    "02_metrics": metrics,
    "03_roofline": roofline,
    "04_kv_cache": kv_cache,
    "05_throughput": throughput,
    "06_attention": attention,
    "07_flash": flash,
    "08_recurrent": beyond,
    "09_quantization": quantization,
    "10_pruning": pruning,
    "11_sampling": sampling,
    "12_speculative": speculative,
    "13_drafts": drafts,
    "14_batching": batching,
    "15_paging": paging,
    "16_parallel": parallel,
    "17_engine": engine,
}


def picture(stem: str) -> str:
    """Return a chapter's picture as SVG.

    Raises: ValueError for a chapter without one.
    """
    if stem not in PICTURES:
        raise ValueError(f"book/cards.py has no picture of chapter {stem!r}; add one to PICTURES")
    with plt.rc_context(STYLE):
        fig = Figure(figsize=SIZE)
        ax = fig.add_axes((0, 0, 1, 1))
        PICTURES[stem](ax)
        ax.axis("off")
        return ornament(fig, f"card{stem[:2]}-")


def _next_logits() -> np.ndarray:
    """Return what the shipped model says of the token after the prompt: falling, (V,)."""
    logits = np.asarray(load_model()([tokenizer().encode(PROMPT)]))[0, -1]
    return np.sort(logits.astype(float))[::-1]
