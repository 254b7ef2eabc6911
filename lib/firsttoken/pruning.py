"""Pruning: what a model can spare, the smaller model without it, and what repairs the damage.

The units that can go are

- `layers`: a unit says what the layer adds to the residual stream;
- `heads`: what a query head mixes; `kv_heads`: the same of all heads that share a KV head;
- `neurons`: one number between the two halves of an MLP;
- `channels`: one number of the residual stream, wherever a norm reads it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor, nn

from firsttoken.architectures import Architecture
from firsttoken.checks import check_choice, check_count
from firsttoken.models.checkpoint import check_weights
from firsttoken.models.llama_torch import Llama
from firsttoken.models.protocols import check_tokens

Array = np.ndarray
Change = Callable[[int, Tensor], Tensor]  # (place, what its units say): what is heard instead

METHODS = ("activation", "gradient", "taylor", "leave_one_out", "block_influence")


def unit_shape(arch: Architecture, of: str) -> tuple[int, ...]:
    """Return how many units of a kind a model has: in each layer, or in all.

    Raises: ValueError for a kind that the module does not list.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> unit_shape(ARCHITECTURES["Llama-3-8B"], "heads")
    (32, 32)
    """
    n = arch.n_layers
    shapes: dict[str, tuple[int, ...]] = {
        "layers": (n,),
        "heads": (n, arch.n_heads),
        "kv_heads": (n, arch.n_kv_heads),
        "neurons": (n, arch.d_ff),
        "channels": (arch.d_model,),
    }
    check_choice("of", of, shapes)
    return shapes[of]


@contextmanager
def gated(model: Llama, of: str, gates: Tensor) -> Iterator[None]:
    """Multiply what each unit says by its gate, within the block: 1 keeps it, 0 removes it.

    Gates are read at every pass, so they may be changed within the block.

    Shapes: gates: `unit_shape(model.arch, of)`
    Raises: ValueError for another kind of unit or another shape.
    Source: Michel et al. 2019, arXiv:1905.10650, sec. 2.3 (heads)
    """
    shape = unit_shape(model.arch, of)
    if tuple(gates.shape) != shape:
        raise ValueError(f"gates of {of} must have shape {shape}, got {tuple(gates.shape)}")

    def change(place: int, said: Tensor) -> Tensor:
        # A channel has one gate, wherever it is read; a layer is its place's only unit.
        return said * (gates if of == "channels" else gates[place].reshape(-1))[:, None]

    with _rewired(model, of, change):
        yield


def importance(model: Llama, tokens: ArrayLike, of: str, method: str = "taylor") -> Array:
    """Score every unit: the higher, the more the next-token loss on `tokens` should need it.

    - "activation": how loudly it speaks, the mean norm of what it says. Minitron takes a channel
      behind the norms that read it.
    - "gradient": how closely it is listened to, the mean norm of the loss' gradient by that.
    - "taylor": both together. The loss' derivative by the unit's gate says, to first order, how
      much the loss changes without it; the absolute value is taken row by row.
    - "leave_one_out": how much the loss on `tokens` does rise without the unit. One pass for each
      unit; the others take one in all. A small unit's rise drowns in the choice of tokens: take
      other ones, and look whether the order stays.
    - "block_influence", of layers: how far the layer turns the residual stream,
      1 - cos(before, after).

    Shapes: tokens (B, T), at least 2 a row; result: `unit_shape(model.arch, of)`
    Units:  nats a token (taylor, leave_one_out); else only the order means something.
    Raises: ValueError for unknown units or methods, block_influence of anything but layers, and
            tokens that are too few or out of range.
    Source: activation: Muralidharan et al. 2024 (Minitron), arXiv:2407.14679, sec. 2.2; taylor:
            Michel et al. 2019, arXiv:1905.10650, sec. 4.1, after Molchanov et al.
            2019, arXiv:1906.10771, sec. 3; block_influence: Men et al. 2024 (ShortGPT),
            arXiv:2403.03853, eq. 1

    >>> from firsttoken.models.llama import load_model
    >>> model = load_model("draft", backend="torch")
    >>> importance(model, [[0, 5, 9, 2]], of="heads").shape
    (1, 6)
    """
    shape, rows = unit_shape(model.arch, of), _check_rows(model, tokens)
    check_choice("method", method, METHODS)
    if method == "leave_one_out":
        return _leave_one_out(model, rows, of)
    said, gradients = _listen(model, rows, of)
    if method == "block_influence":
        return _block_influence(model, rows, of, said)
    if method == "taylor":
        pairs = zip(said, gradients, strict=True)
        scores = torch.stack([(z * g).sum((1, 3)) for z, g in pairs])  # (places, B, units)
    else:
        heard = said if method == "activation" else gradients
        scores = torch.stack([z.norm(dim=-1).mean(1) for z in heard])
    if of == "channels":
        scores = scores.sum(0)
    return scores.abs().mean(-2).double().reshape(shape).numpy()


def keep_best(scores: ArrayLike, n: int, groups: int = 1) -> Array:
    """Return which n units of each row have the highest scores, in their order; ties by index.

    With groups, as many of each: the units of a row are that many runs of equal length. The query
    heads that share a KV head are such a run.

    Shapes: scores (…, units); result (…, n)
    Raises: ValueError unless n is a count within the row, and groups divide both.

    >>> keep_best([0.9, 0.8, 0.7, 0.1, 0.3, 0.2], 2).tolist()
    [0, 1]
    >>> keep_best([0.9, 0.8, 0.7, 0.1, 0.3, 0.2], 2, groups=2).tolist()
    [0, 4]
    """
    scores = np.asarray(scores, dtype=float)
    n_units = scores.shape[-1]
    if check_count("n", n, at_least=1) > n_units:
        raise ValueError(f"n must be at most {n_units}, the units of a row, got {n}")
    if n % check_count("groups", groups, at_least=1) or n_units % groups:
        raise ValueError(f"groups must divide n {n} and the {n_units} units, got {groups}")
    runs = scores.reshape(*scores.shape[:-1], groups, -1)
    best = np.sort(np.argsort(-runs, axis=-1, kind="stable")[..., : n // groups], axis=-1)
    first = np.arange(groups)[:, None] * (n_units // groups)  # where each run begins
    return (best + first).reshape(*scores.shape[:-1], n)


# What each axis of a tensor counts; None: the vocabulary.
AXES: Mapping[str, tuple[str | None, ...]] = {
    "embed_tokens": (None, "channels"),
    "input_layernorm": ("channels",),
    "q_proj": ("heads", "channels"),
    "k_proj": ("kv_heads", "channels"),
    "v_proj": ("kv_heads", "channels"),
    "o_proj": ("channels", "heads"),
    "post_attention_layernorm": ("channels",),
    "gate_proj": ("neurons", "channels"),
    "up_proj": ("neurons", "channels"),
    "down_proj": ("channels", "neurons"),
    "norm": ("channels",),
    "lm_head": (None, "channels"),
}


def prune(
    arch: Architecture,
    weights: Mapping[str, Array],
    *,
    layers: ArrayLike | None = None,
    heads: Sequence[ArrayLike] | None = None,
    neurons: Sequence[ArrayLike] | None = None,
    channels: ArrayLike | None = None,
) -> tuple[Architecture, dict[str, Array]]:
    """Return a smaller Llama: what is named stays, the rest is cut out of every tensor.

    None keeps all. Numbers are those of `arch`; heads and neurons have a row for each of its
    layers, also of those that go. A KV head goes with the last query head that reads it, and the
    others must keep as many query heads each: a Llama has no other form.

    The result computes what the whole model does with the other gates shut. For the channels that
    takes a factor: a norm divides by the mean square of all channels, so that of fewer ones would
    be another. The weights of the norms grow by √(D / D'); only the small `norm_eps` does not.

    Shapes: layers (L',), heads (L, N'), neurons (L, F'), channels (D',)
    Raises: ValueError that names the argument and layer: out of range, twice, not in rising order,
            none at all, rows of other lengths, or heads that leave unequal groups; and as
            `check_weights`.

    >>> from firsttoken.models.checkpoint import read_checkpoint
    >>> from firsttoken.paths import data_path
    >>> target = read_checkpoint(data_path("model/target"))
    >>> arch, weights = prune(target.arch, target.weights, layers=[0, 1, 2, 7])
    >>> arch.n_layers, arch.n_params
    (4, 1771200)
    """
    check_weights(arch, weights)
    stay = _rising("layers", layers, arch.n_layers)
    kept, sizes = _kept(arch, heads, neurons, channels)
    grow = math.sqrt(arch.d_model / sizes["d_model"])
    pruned = {}
    for name, layer, module, new_name in _tensors(weights, stay):
        tensor = np.asarray(weights[name])
        for axis, units in enumerate(AXES[module]):
            if units is not None:
                tensor = np.take(tensor, kept[units][layer], axis)
        if module.endswith("norm"):
            tensor = tensor * tensor.dtype.type(grow)
        pruned[new_name] = tensor
    local = arch.local_layers
    if local is not None:
        local = tuple(new for new, old in enumerate(stay) if old in local)
    return arch.replace(n_layers=len(stay), local_layers=local, **sizes), pruned


def input_norms(model: Llama, tokens: ArrayLike) -> dict[str, Array]:
    """Return how large each input of each matrix in the layers is: its norm over all tokens.

    `prune_2_4(w, np.abs(w) * norms[name])` is Wanda: a weight counts as much as what it multiplies.

    Shapes: tokens (B, T); of a matrix (out, in): (in,)
    Raises: ValueError for tokens out of range.
    Source: Sun et al. 2023 (Wanda), arXiv:2306.11695, eq. 1
    """
    rows, norms, handles = _check_rows(model, tokens), {}, []

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            norms[name] = inputs[0].flatten(0, 1).norm(dim=0).numpy()

        return hook

    for name, module in model.model.layers.named_modules(prefix="model.layers"):
        if isinstance(module, nn.Linear):
            handles.append(module.register_forward_pre_hook(watch(f"{name}.weight")))
    try:
        with torch.no_grad():
            model(rows)
    finally:
        for handle in handles:
            handle.remove()
    return norms


def prune_2_4(w: Array, scores: Array | None = None) -> Array:
    """Set two of every four neighbours along the last axis to zero, those with the lower scores.

    Without scores, the smaller magnitudes go; at equal scores, the ones further right. A matrix
    (out, in) then has the pattern that sparse tensor cores skip: half of each output's products.

    Shapes: w, scores and result (…, in); 4 divides in.
    Raises: ValueError for another size, scores of another shape, or scores that are NaN.
    Source: Mishra et al. 2021, arXiv:2104.08378; with the Hessian, and then changing what
            stays: Frantar & Alistarh 2023 (SparseGPT), arXiv:2301.00774

    >>> prune_2_4(np.array([3.0, -1.0, 2.0, -4.0, 1.0, 1.0, 1.0, 1.0])).tolist()
    [3.0, 0.0, 0.0, -4.0, 1.0, 1.0, 0.0, 0.0]
    """
    w = np.asarray(w)
    scores = np.abs(w) if scores is None else np.asarray(scores)
    if w.ndim == 0 or w.shape[-1] % 4:
        raise ValueError(f"w must have a last axis that 4 divides, got shape {w.shape}")
    if scores.shape != w.shape or np.isnan(scores).any():
        raise ValueError(
            f"scores must be numbers of w's shape {w.shape}, got {scores.shape} "
            f"with {np.isnan(scores).sum()} NaN"
        )
    fours = scores.reshape(*w.shape[:-1], -1, 4)
    best = np.argsort(-fours, axis=-1, kind="stable")[..., :2]
    keep = np.zeros(fours.shape, dtype=bool)
    np.put_along_axis(keep, best, True, axis=-1)
    return np.where(keep.reshape(w.shape), w, np.zeros_like(w))


def distillation_loss(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Return how far the student's distribution is from the teacher's: KL(teacher ‖ student).

    At temperature 1 the gradient by the student's logits is (student - teacher)'s probabilities,
    over the number of positions: with hard labels it would be the same, for a teacher who is
    certain. A higher temperature lets the unlikely tokens speak; the factor temperature² keeps the
    size of the gradient.

    Holds:  from temperatures well above the spread of the logits on. Below, the size still changes
            (for a spread of 3: 0.07 at 0.25, 0.19 at 1, 0.14 from 8 on).
    Shapes: student and teacher: logits (…, V); result: a scalar
    Units:  nats a position, times temperature²
    Raises: ValueError for shapes that differ and a temperature that is not above 0.
    Source: Hinton et al. 2015, arXiv:1503.02531, sec. 2

    >>> same = torch.tensor([[1.0, 2.0, 3.0]])
    >>> distillation_loss(same, same).item()
    0.0
    """
    if student.shape != teacher.shape:
        raise ValueError(
            f"student {tuple(student.shape)} and teacher {tuple(teacher.shape)} differ"
        )
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be a finite number above 0, got {temperature}")
    log_q, log_p = (
        (logits.reshape(-1, logits.shape[-1]).float() / temperature).log_softmax(-1)
        for logits in (student, teacher)
    )
    return temperature**2 * F.kl_div(log_q, log_p, log_target=True, reduction="batchmean")


def _check_rows(model: Llama, tokens: ArrayLike) -> Tensor:
    """Return tokens (B, T) as a tensor; raise unless they are, and something follows the first."""
    rows = np.asarray(tokens)
    check_tokens(model.arch, rows)
    if rows.shape[1] < 2:
        raise ValueError(f"tokens must be at least 2 a row, got shape {rows.shape}")
    return torch.from_numpy(rows.astype(np.int64))


def _losses(model: Llama, rows: Tensor) -> Tensor:
    """Return the mean next-token loss of each row, in nats."""
    logits = model(rows[:, :-1])
    return F.cross_entropy(logits.mT, rows[:, 1:], reduction="none").mean(1)


def _places(model: Llama, of: str) -> list[nn.Module]:
    """Return the modules that read what units of a kind say; layers are themselves."""
    if of == "layers":
        return list(model.model.layers)
    last = {"neurons": "down_proj", "channels": "norm"}.get(of, "o_proj")
    return [module for name, module in model.model.named_modules() if name.endswith(last)]


@contextmanager
def _rewired(model: Llama, of: str, change: Change) -> Iterator[None]:
    """Send what units say, (B, T, units, size), through `change`, within the block."""
    arch = model.arch
    group = arch.n_heads // arch.n_kv_heads
    size = {"heads": arch.head_dim, "kv_heads": group * arch.head_dim}.get(of, 1)

    def read(place: int) -> Callable[..., Tensor]:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
            return change(place, inputs[0].unflatten(-1, (-1, size))).flatten(-2)

        return hook

    def added(place: int) -> Callable[..., Tensor]:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            x = inputs[0]
            return x + change(place, (output - x)[..., None, :])[..., 0, :]

        return hook

    handles = [
        module.register_forward_hook(added(place))
        if of == "layers"
        else module.register_forward_pre_hook(read(place))
        for place, module in enumerate(_places(model, of))
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _listen(model: Llama, rows: Tensor, of: str) -> tuple[list[Tensor], Sequence[Tensor]]:
    """Return what units say at each place, and the gradients of the rows' losses by it."""
    said: dict[int, Tensor] = {}

    def watch(place: int, z: Tensor) -> Tensor:
        said[place] = z.requires_grad_()
        return z

    with torch.enable_grad(), _rewired(model, of, watch):
        losses = _losses(model, rows)
    places = [said[place] for place in sorted(said)]
    gradients = torch.autograd.grad(losses.sum(), places)
    return [z.detach() for z in places], gradients


def _leave_one_out(model: Llama, rows: Tensor, of: str) -> Array:
    """Return by how many nats a token the loss rises without each unit."""
    gates = torch.ones(unit_shape(model.arch, of))
    rises = np.empty(gates.shape)
    with torch.no_grad(), gated(model, of, gates):
        whole = _losses(model, rows).double().mean()
        for unit in np.ndindex(*gates.shape):
            gates[unit] = 0
            rises[unit] = _losses(model, rows).double().mean() - whole
            gates[unit] = 1
    return rises


def _block_influence(model: Llama, rows: Tensor, of: str, added: Sequence[Tensor]) -> Array:
    """Return the mean of 1 - cos(before, after) for each layer, from what the layers add."""
    if of != "layers":
        raise ValueError(f"block_influence is of layers, got of {of!r}")
    scores, x = [], model.model.embed_tokens(rows[:, :-1]).detach()
    for z in added:
        after = x + z[..., 0, :]
        scores.append(1 - F.cosine_similarity(x, after, dim=-1).double().mean().item())
        x = after
    return np.array(scores)


def _kept(
    arch: Architecture,
    heads: Sequence[ArrayLike] | None,
    neurons: Sequence[ArrayLike] | None,
    channels: ArrayLike | None,
) -> tuple[dict[str, Array], dict[str, int]]:
    """Return what stays along the axes of each kind, (L, indices), and the sizes that follow."""
    read = _rows("heads", heads, arch.n_layers, arch.n_heads)
    shared = _kv_heads(read, arch.n_heads // arch.n_kv_heads)
    inner = _rows("neurons", neurons, arch.n_layers, arch.d_ff)
    stream = _rising("channels", channels, arch.d_model)
    kept = {
        "channels": np.tile(stream, (arch.n_layers, 1)),
        "neurons": inner,
        "heads": _spread(read, arch.head_dim),
        "kv_heads": _spread(shared, arch.head_dim),
    }
    sizes = {
        "d_model": len(stream),
        "d_ff": inner.shape[1],
        "n_heads": read.shape[1],
        "n_kv_heads": shared.shape[1],
    }
    return kept, sizes


def _rising(name: str, indices: ArrayLike | None, n: int) -> Array:
    """Return which of n units stay, checked; None: all."""
    kept = np.arange(n) if indices is None else np.asarray(indices)
    if not (
        kept.ndim == 1
        and kept.size > 0
        and np.issubdtype(kept.dtype, np.integer)
        and (np.diff(kept) > 0).all()
        and kept[0] >= 0
        and kept[-1] < n
    ):
        raise ValueError(f"{name} must be rising integers within 0 … {n - 1}, got {indices!r}")
    return kept


def _rows(name: str, indices: Sequence[ArrayLike] | None, n_layers: int, n: int) -> Array:
    """Return what stays of n units in each layer, (L, kept), checked; None: all."""
    every = [None] * n_layers if indices is None else list(indices)
    if len(every) != n_layers:
        raise ValueError(f"{name} must have a row for each of {n_layers} layers, got {len(every)}")
    rows = [_rising(f"{name}[{layer}]", row, n) for layer, row in enumerate(every)]
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"{name} must be as many in each layer, got {[len(row) for row in rows]}")
    return np.stack(rows)


def _kv_heads(heads: Array, group: int) -> Array:
    """Return the KV heads that query heads (L, N') read, (L, K'); raise for unequal groups."""
    found = [np.unique(row // group, return_counts=True) for row in heads]
    for layer, (kv_heads, counts) in enumerate(found):
        if len(set(counts)) > 1 or len(counts) != len(found[0][0]):
            raise ValueError(
                f"heads[{layer}] {heads[layer].tolist()} leaves {counts.tolist()} query heads to "
                f"the KV heads {kv_heads.tolist()}: expected as many to each, and "
                f"{len(found[0][0])} KV heads as in the first layer"
            )
    return np.stack([kv_heads for kv_heads, _ in found])


def _spread(heads: Array, head_dim: int) -> Array:
    """Return the rows that belong to heads: (L, n) to (L, n · H)."""
    return (heads[..., None] * head_dim + np.arange(head_dim)).reshape(len(heads), -1)


def _tensors(names: Iterable[str], layers: Array) -> Iterator[tuple[str, int, str, str]]:
    """Yield (name, layer, module, new name) of what stays; what is in no layer counts to 0."""
    renumbered = {str(old): str(new) for new, old in enumerate(layers)}
    for name in names:
        parts, layer = name.split("."), "0"
        if parts[1] == "layers":
            layer = parts[2]
            if layer not in renumbered:
                continue
            parts[2] = renumbered[layer]
        yield name, int(layer), parts[-2], ".".join(parts)
