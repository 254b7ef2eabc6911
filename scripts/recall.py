"""Associative recall: the task, seven small models that try it, and how they are trained.

A sequence holds pairs of a key and a value, then each key once more, in another order; the model
is asked for its value (multi-query associative recall, Arora et al. 2023, arXiv:2312.04927). The
models differ only in how a token reaches earlier ones. All tensors have the rows first: a row is
one model with its own seed and learning rate, and all rows are trained side by side, which on one
core is several times faster than one after the other.
"""

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# The mixers of a model's two layers. In the hybrids linear attention comes second: where it came
# first, some seeds settled on what it can do alone, and never learnt to use the other layer.
MODELS = {
    "attention": ("attention", "attention"),
    "linear": ("linear", "linear"),
    "ssm": ("ssm", "ssm"),
    "delta": ("delta", "delta"),
    "window": ("window", "window"),
    "window + linear": ("window", "linear"),
    "attention + linear": ("attention", "linear"),
}
# Streams of random numbers of one seed.
TRAIN, TEST = 0, 1


@dataclass(frozen=True)
class Recipe:
    """What all runs have in common."""

    pairs: tuple[int, ...] = (4, 8, 16, 32, 64)
    n_keys: int = 128  # and as many values
    d_model: int = 32
    window: int = 16  # tokens that a layer of window attention sees, its own among them
    convolution: int = 2  # tokens that every mixer's short convolution sees
    queries_per_step: int = 512
    test_queries: int = 2048  # for each number of pairs
    steps: int = 1500
    warmup_steps: int = 100
    test_every: int = 150
    solved: float = 0.999
    rates: tuple[float, ...] = (1e-2, 3e-2, 6e-2)


def recall(
    rng: np.random.Generator, n_sequences: int, n_pairs: int, n_keys: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return (tokens, answers): pairs of a key and a value, then every key in a new order.

    Keys are the tokens below n_keys, no two alike in a sequence; values are those from n_keys on,
    and may repeat. `answers` are the values, from 0, of the last P tokens, the queries.

    Shapes: tokens: (B, 3 P), answers: (B, P)
    """
    all_keys = np.broadcast_to(np.arange(n_keys), (n_sequences, n_keys))
    keys = rng.permuted(all_keys, axis=1)[:, :n_pairs]
    values = rng.integers(n_keys, size=keys.shape)
    order = rng.permuted(np.broadcast_to(np.arange(n_pairs), keys.shape), axis=1)
    context = np.stack([keys, values + n_keys], axis=-1).reshape(n_sequences, 2 * n_pairs)
    queries = np.take_along_axis(keys, order, axis=1)
    return np.concatenate([context, queries], axis=1), np.take_along_axis(values, order, axis=1)


def attention(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> Tensor:
    """Causal softmax attention, over the last `window` tokens if given. (…, T, H) each."""
    t = q.shape[-2]
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    seen = torch.ones(t, t, dtype=torch.bool).tril()
    if window is not None:
        seen = seen.triu(1 - window)
    return scores.masked_fill(~seen, -math.inf).softmax(-1) @ v


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention with elu(x) + 1 in place of the exponential. q, k: (…, T, H); v: (…, T, Hv)."""
    # elu(x) + 1 as a sum that keeps its digits where it is small: a query's weights never sum to 0.
    q, k = (F.relu(x) + (-F.relu(-x)).exp() for x in (q, k))
    weights = (q @ k.mT).tril()
    return weights @ v / weights.sum(-1, keepdim=True)


def gated_delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, chunk: int = 32
) -> Tensor:
    """M ← decay (M - beta (M k) kᵀ) + beta v kᵀ, output M q; a chunk of tokens at a time.

    Within a chunk M is the decayed M before it plus the decayed u kᵀ of its tokens, where u is
    what a token adds to M's answer for k. The u follow from a triangular system.

    Shapes: q, k: (…, T, H); v: (…, T, Hv); beta, log_decay: (…, T)
    """
    state = q.new_zeros(*q.shape[:-2], q.shape[-1], v.shape[-1])  # the transpose of M
    outputs = []
    parts = [x.split(chunk, dim=-2) for x in (q, k, v, beta[..., None], log_decay[..., None])]
    for q_, k_, v_, b, g in zip(*parts, strict=True):
        g = g.cumsum(-2)
        # Above the diagonal, where no decay is needed, its exponent could overflow.
        decay = (g - g.mT).tril().exp().tril()  # row i, column j: from token j to token i
        system = (b * (k_ @ k_.mT) * decay).tril(-1)
        wanted = b * (v_ - g.exp() * (k_ @ state))
        u = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
        outputs.append(g.exp() * (q_ @ state) + (q_ @ k_.mT * decay) @ u)
        last = g[..., -1:, :]
        state = last.exp() * state + ((last - g).exp() * k_).mT @ u
    return torch.cat(outputs, dim=-2)


def ssm(x: Tensor, log_step: Tensor, a: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """A diagonal state-space model for each channel, as a convolution (S4D, arXiv:2206.11893).

    h' = a h + x, y = c h + d x, where x is held constant over steps of exp(log_step).

    Shapes: x: (rows, B, T, D); log_step, d: (rows, D); a, c: (rows, D, n), a below 0
    """
    t = x.shape[-2]
    step = a * log_step.exp()[..., None]
    gain = c * (step.exp() - 1) / a
    powers = (step[..., None, :] * torch.arange(t)[:, None]).exp()  # (rows, D, T, n)
    kernel = (powers @ gain[..., None]).squeeze(-1).mT  # (rows, T, D)
    spectrum = torch.fft.rfft(kernel, 2 * t, dim=-2)[:, None]
    y = torch.fft.irfft(torch.fft.rfft(x, 2 * t, dim=-2) * spectrum, 2 * t, dim=-2)
    return y[..., :t, :] + d[:, None, None] * x


def short_convolution(x: Tensor, weight: Tensor) -> Tensor:
    """Mix each channel with the tokens before. x: (rows, B, T, E); weight: (rows, tokens, E)."""
    y = x * weight[:, None, None, 0]
    for back in range(1, weight.shape[1]):
        y = y + F.pad(x, (0, 0, back, 0))[..., : x.shape[-2], :] * weight[:, None, None, back]
    return y


def shapes(model: str, width: int, recipe: Recipe) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's weights; `width` is the state's: H, or n for the SSM."""
    d = recipe.d_model
    result = {"embedding": (2 * recipe.n_keys, d)}
    for i, mixer in enumerate(MODELS[model]):
        inner = d if mixer == "ssm" else 2 * width + d  # values are as wide as the model
        layer = {"norm": (d,), "in": (d, inner), "conv": (recipe.convolution, inner)}
        if mixer == "ssm":
            layer |= {"log_step": (d,), "log_rate": (d, width), "read": (d, width)}
            layer |= {"skip": (d,), "out": (d, 2 * d)}
        else:
            layer |= {"out": (d, d)}
        if mixer == "delta":
            layer |= {"gates": (d, 2), "gates_bias": (2,)}
        result |= {f"{i}.{name}": shape for name, shape in layer.items()}
    return result | {"norm": (d,), "head": (d, recipe.n_keys)}


def cost(model: str, width: int, recipe: Recipe) -> dict:
    """Return a model's parameters and, layer by layer, the numbers it keeps of the tokens read.

    Attention keeps keys and values of every token it may still see, "per_token"; the others keep
    a state of fixed size. The short convolutions' last inputs are left out.
    """
    d = recipe.d_model
    kept = {
        "attention": {"per_token": width + d},
        "window": {"fixed": recipe.window * (width + d)},
        "linear": {"fixed": width * (d + 1)},  # one more value sums the weights
        "delta": {"fixed": width * d},
        "ssm": {"fixed": width * d},
    }
    return {
        "n_params": sum(map(math.prod, shapes(model, width, recipe).values())),
        "state": [kept[mixer] for mixer in MODELS[model]],
    }


def initial(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Return one weight, from a stream of its own: models start alike where shapes agree."""
    rng = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    match name.split(".")[-1]:
        case "norm":
            return torch.ones(shape)
        case "conv":  # the tokens in equal parts; of random parts some seeds never make a pair
            return torch.full(shape, 1 / math.sqrt(shape[0]))
        case "skip":  # the residual stream has the input already
            return torch.zeros(shape)
        case "log_step":  # S4D's: from 0.001 to 0.1, evenly in the logarithm
            low, high = math.log(1e-3), math.log(1e-1)
            return low + (high - low) * torch.rand(shape, generator=rng)
        case "log_rate":  # S4D-Real: a = -1, -2, …
            return torch.arange(1, shape[-1] + 1).log().expand(shape)
        case "read":  # so large that what the state adds is about as large as the input
            return 10 * torch.randn(shape, generator=rng)
        case "gates_bias":  # beta of 0.05 and a decay of 0.999: at first little is overwritten
            return torch.tensor([-3.0, math.log(math.expm1(0.001))])
        case "embedding":
            return torch.randn(shape, generator=rng)
        case _:
            return torch.randn(shape, generator=rng) / math.sqrt(shape[0])


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], eps=1e-5) * weight[:, None, None]


def project(x: Tensor, weight: Tensor) -> Tensor:
    """x: (rows, B, T, D); weight: (rows, D, E)."""
    return (x.flatten(1, 2) @ weight).unflatten(1, x.shape[1:3])


def mix(mixer: str, x: Tensor, w: dict[str, Tensor], width: int, recipe: Recipe) -> Tensor:
    """What one layer adds to x, (rows, B, T, D)."""
    x = normed(x, w["norm"])
    y = short_convolution(project(x, w["in"]), w["conv"])
    if mixer == "ssm":
        y = ssm(y, w["log_step"], -w["log_rate"].exp(), w["read"], w["skip"])
        return F.glu(project(F.gelu(y), w["out"]))  # as S4D's blocks end
    q, k, v = y.split((width, width, recipe.d_model), dim=-1)
    match mixer:
        case "attention":
            y = attention(q, k, v)
        case "window":
            y = attention(q, k, v, recipe.window)
        case "linear":
            y = linear_attention(q, k, v)
        case "delta":
            b, g = (project(x, w["gates"]) + w["gates_bias"][:, None, None]).unbind(-1)
            # SiLU as in the paper. It makes keys alike at first, and without it nothing is learnt.
            q, k = (F.normalize(F.silu(x), dim=-1) for x in (q, k))
            y = gated_delta(q, k, v, b.sigmoid(), -F.softplus(g))
    return project(y, w["out"])


class Rows:
    """Models of one kind, one for each seed; `flat` holds all their weights, a row for each."""

    def __init__(self, model: str, width: int, seeds: Sequence[int], recipe: Recipe):
        self.mixers, self.width, self.recipe = MODELS[model], width, recipe
        self.shapes = shapes(model, width, recipe)
        rows = [
            torch.cat([initial(name, shape, seed).flatten() for name, shape in self.shapes.items()])
            for seed in seeds
        ]
        self.flat = torch.stack(rows).requires_grad_()

    def __call__(self, tokens: Tensor, n_queries: int) -> Tensor:
        """Logits (rows, B, P, values) of the last P tokens of each sequence (rows, B, T)."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        parts = zip(self.shapes.items(), self.flat.split(sizes, dim=1), strict=True)
        w = {name: part.unflatten(1, shape) for (name, shape), part in parts}
        rows, vocabulary, _ = w["embedding"].shape
        first = vocabulary * torch.arange(rows)[:, None, None]
        x = F.embedding(tokens + first, w["embedding"].flatten(0, 1))
        for i, mixer in enumerate(self.mixers):
            start = f"{i}."
            layer = {n.removeprefix(start): p for n, p in w.items() if n.startswith(start)}
            x = x + mix(mixer, x, layer, self.width, self.recipe)
        return project(normed(x[:, :, -n_queries:], w["norm"]), w["head"])


def batch(
    rngs: Sequence[np.random.Generator], n_queries: int, n_pairs: int, recipe: Recipe
) -> tuple[Tensor, Tensor]:
    """Sequences with so many queries in all, other ones for each row."""
    rows = [recall(rng, n_queries // n_pairs, n_pairs, recipe.n_keys) for rng in rngs]
    tokens, answers = (torch.from_numpy(np.stack(x)) for x in zip(*rows, strict=True))
    return tokens, answers


@torch.no_grad()
def accuracy(model: Rows, seeds: Sequence[int], recipe: Recipe) -> np.ndarray:
    """Share of queries answered rightly, on sequences never trained on: (rows, pairs).

    A row that training drove to numbers that are none has answered nothing.
    """
    result = []
    for n_pairs in recipe.pairs:
        rngs = [np.random.default_rng((seed, TEST, n_pairs)) for seed in seeds]
        tokens, answers = batch(rngs, recipe.test_queries, n_pairs, recipe)
        logits = model(tokens, n_pairs)
        right = (logits.argmax(-1) == answers) & logits.isfinite().all(-1)
        result.append(right.double().mean((1, 2)).numpy())
    return np.stack(result, axis=1)


def train(
    model: str,
    width: int,
    seeds: Sequence[int],
    rates: Sequence[float],
    recipe: Recipe,
    until: Callable[[np.ndarray], bool] = np.all,
) -> dict:
    """Train a row for each seed and learning rate with Adam; return accuracies over the steps.

    Steps take the numbers of pairs in turn. Training ends early where every row has solved all of
    them, or what rows `until` asks for. A row's gradient is cut to norm 1; its learning rate rises,
    then falls to zero as a cosine.
    """
    rows = Rows(model, width, seeds, recipe)
    rngs = [np.random.default_rng((seed, TRAIN)) for seed in seeds]
    mean, square = torch.zeros_like(rows.flat), torch.zeros_like(rows.flat)
    peak = torch.tensor(rates)[:, None]
    curve: list[list] = []
    for step in range(1, recipe.steps + 1):
        n_pairs = recipe.pairs[step % len(recipe.pairs)]
        tokens, answers = batch(rngs, recipe.queries_per_step, n_pairs, recipe)
        logits = rows(tokens, n_pairs).flatten(1, 2)
        losses = F.cross_entropy(logits.mT, answers.flatten(1), reduction="none").mean(1)
        (gradient,) = torch.autograd.grad(losses.sum(), rows.flat)
        gradient *= (1 / gradient.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1)
        mean.lerp_(gradient, 0.1)
        square.lerp_(gradient.square(), 0.02)
        direction = mean / (1 - 0.9**step) / ((square / (1 - 0.98**step)).sqrt() + 1e-8)
        rate = peak * min(1, step / recipe.warmup_steps)
        rate = rate * 0.5 * (1 + math.cos(math.pi * step / recipe.steps))
        with torch.no_grad():
            rows.flat -= rate * direction
        if step % recipe.test_every == 0 or step == recipe.steps:
            result = accuracy(rows, seeds, recipe)
            curve.append([step, result.tolist()])
            if until(result.min(axis=1) >= recipe.solved):
                break
    return {"steps": curve[-1][0], "accuracy": curve[-1][1], "curve": curve}
