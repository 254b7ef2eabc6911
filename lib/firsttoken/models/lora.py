"""LoRA adapters: small changes to a model's matrices, several of them in one pass over the base."""

import copy
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from firsttoken.architectures import Architecture
from firsttoken.checks import check_count
from firsttoken.models.checkpoint import read_safetensors, weight_shapes
from firsttoken.models.llama import Llama, _Matrix
from firsttoken.models.protocols import Cache, Model, ragged_rows
from firsttoken.paths import data_path

Array = np.ndarray

# Where Hugging Face keeps each matrix of a layer, and which of them a `Llama` keeps side by side.
_MODULES = {f"{x}_proj": f"self_attn.{x}_proj" for x in "qkvo"}
_MODULES |= {f"{x}_proj": f"mlp.{x}_proj" for x in ("gate", "up", "down")}
_STACKS = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "out": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
_PREFIX = "base_model.model."
# Settings of PEFT with which an adapter computes something else, or holds more than pairs.
_OTHER_METHODS = (
    *("use_rslora", "use_dora", "use_qalora", "use_bdlora", "fan_in_fan_out", "lora_bias"),
    *("rank_pattern", "alpha_pattern", "layer_replication", "alora_invocation_tokens"),
    *("modules_to_save", "trainable_token_indices"),
)


@dataclass(frozen=True, eq=False)
class Adapter:
    """A change of rank r to some of a model's matrices: W + (alpha / r) B A in the place of W.

    `pairs` maps (layer, matrix) to (A, B). A matrix goes by the last part of Hugging Face's name:
    q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj.

    Shapes: A (r, d_in), B (d_out, r), float32
    Units:  nbytes: bytes of all pairs in memory
    Raises: ValueError for a rank below 1, an alpha that is not finite, no pairs, an unknown matrix
            and arrays that are no pair of that rank.
    Source: Hu et al. 2021, LoRA, arXiv:2106.09685, sec. 4.1

    >>> adapter = Adapter(1, 2.0, {(0, "q_proj"): (np.ones((1, 4)), np.ones((6, 1)))})
    >>> adapter.scale, adapter.nbytes
    (2.0, 40)
    """

    rank: int
    alpha: float
    pairs: Mapping[tuple[int, str], tuple[Array, Array]]

    def __post_init__(self) -> None:
        check_count("rank", self.rank, at_least=1)
        if not math.isfinite(self.alpha):
            raise ValueError(f"alpha must be a finite number, got {self.alpha!r}")
        if not self.pairs:
            raise ValueError("pairs must hold at least one matrix, got none")
        pairs = {}
        for (layer, matrix), (a, b) in self.pairs.items():
            if matrix not in _MODULES:
                raise ValueError(f"pairs: matrix {matrix!r}, expected one of {', '.join(_MODULES)}")
            a, b = (np.asarray(x, dtype=np.float32) for x in (a, b))
            if a.ndim != 2 or b.ndim != 2 or not a.shape[0] == b.shape[1] == self.rank:
                raise ValueError(
                    f"pairs: {matrix} of layer {layer} has A {a.shape} and B {b.shape}, expected "
                    f"(r, d_in) and (d_out, r) with the rank r = {self.rank}"
                )
            pairs[layer, matrix] = a, b
        object.__setattr__(self, "pairs", pairs)

    @property
    def scale(self) -> float:
        """What the product of a pair is multiplied by."""
        return self.alpha / self.rank

    @property
    def nbytes(self) -> int:
        """The bytes of all pairs."""
        return sum(a.nbytes + b.nbytes for a, b in self.pairs.values())


def load_adapter(path_or_name: str | Path) -> Adapter:
    """Read an adapter from a directory in PEFT's format, or a shipped one by its name.

    The directory holds adapter_config.json and adapter_model.safetensors, in float32, float16 or
    bfloat16. A name without a slash is looked for among the shipped ones if it is no directory.

    Raises: ValueError that names the file: missing, unreadable, another method than LoRA, a variant
            of it (DoRA, biases, ranks that differ ...), or tensors that belong to no matrix.
    Source: PEFT 0.21, "Checkpoint format"

    >>> load_adapter("capitals").rank
    4
    """
    directory = Path(path_or_name)
    shipped = data_path("model/adapters")
    if not directory.is_dir() and directory.name == str(path_or_name):
        directory = shipped / path_or_name
    if not directory.is_dir():
        names = sorted(p.parent.name for p in shipped.glob("*/adapter_config.json"))
        raise ValueError(
            f"path_or_name must be a directory or one of {', '.join(names)}, got "
            f"{str(path_or_name)!r}"
        )
    file = directory / "adapter_config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read as JSON: {error}") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise ValueError(f"{file}: expected an object with peft_type LORA")
    other = [name for name in _OTHER_METHODS if config.get(name)]
    other += ["bias"] * (config.get("bias", "none") != "none")
    if other:
        raise ValueError(f"{file}: {other[0]} {config[other[0]]!r} is not supported")
    if not {"r", "lora_alpha"} <= config.keys():
        raise ValueError(f"{file} must say r and lora_alpha")
    found: dict[tuple[int, str], dict[str, Array]] = {}
    tensors = directory / "adapter_model.safetensors"
    for name, array in read_safetensors(tensors).items():
        place = _place(name)
        if place is None:
            raise ValueError(f"{tensors}: {name} belongs to no matrix of a Llama's layers")
        found.setdefault(place[:2], {})[place[2]] = array
    for (layer, matrix), halves in found.items():
        if len(halves) != 2:
            raise ValueError(f"{tensors}: {matrix} of layer {layer} has {', '.join(halves)} only")
    pairs = {place: (halves["A"], halves["B"]) for place, halves in found.items()}
    return Adapter(config["r"], config["lora_alpha"], pairs)


def _place(name: str) -> tuple[int, str, str] | None:
    """Return layer, matrix, and A or B of a tensor's name in PEFT's format."""
    parts = name.removeprefix(_PREFIX).split(".")
    if len(parts) != 7 or parts[:2] != ["model", "layers"] or not parts[2].isdecimal():
        return None
    module, half = ".".join(parts[3:5]), parts[5].removeprefix("lora_")
    known = _MODULES.get(parts[4]) == module and half in ("A", "B") and parts[6] == "weight"
    return (int(parts[2]), parts[4], half) if known and name.startswith(_PREFIX) else None


def save_adapter(adapter: Adapter, directory: str | Path, base: str = "") -> None:
    """Write an adapter in PEFT's format, its numbers in float16; `base` names the base model.

    >>> import tempfile
    >>> adapter = Adapter(1, 2.0, {(0, "q_proj"): (np.ones((1, 4)), np.ones((6, 1)))})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_adapter(adapter, folder)
    ...     load_adapter(folder).pairs[0, "q_proj"][1].shape
    (6, 1)
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{_PREFIX}model.layers.{layer}.{_MODULES[matrix]}.lora_{half}.weight": array
        for (layer, matrix), pair in adapter.pairs.items()
        for half, array in zip("AB", pair, strict=True)
    }
    tensors = {name: np.ascontiguousarray(x, dtype=np.float16) for name, x in tensors.items()}
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": adapter.alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": adapter.rank,
        "target_modules": sorted({matrix for _, matrix in adapter.pairs}),
        "task_type": "CAUSAL_LM",
    }
    text = json.dumps(config, indent=2) + "\n"
    (directory / "adapter_config.json").write_text(text, encoding="utf-8")


def merge_adapter(model: Model, adapter: Adapter) -> Llama:
    """Return a new model whose matrices are W + (alpha / r) B A; the rest it shares with the old.

    It costs nothing more to run than the base, but serves one adapter only.

    Raises: ValueError for another model than `llama.Llama`, and an adapter for another shape.
    Source: Hu et al. 2021, LoRA, arXiv:2106.09685, sec. 4.1 (no additional latency)
    """
    base = _llama(model)
    _check_fits(base.arch, "adapter", adapter)
    merged = copy.copy(base)
    merged.blocks = []
    for layer, block in enumerate(base.blocks):
        changed: dict[str, Any] = {}
        for stack, matrices in _STACKS.items():
            weight = np.array(getattr(block, stack)).T  # a copy, [out, in]
            end = 0
            for matrix in matrices:
                start, end = end, end + _shape(base.arch, layer, matrix)[0]
                if (layer, matrix) in adapter.pairs:
                    a, b = adapter.pairs[layer, matrix]
                    weight[start:end] += adapter.scale * (b @ a)
            changed[stack] = _Matrix(weight)
        merged.blocks.append(replace(block, **changed))
    return merged


class AdaptedModel:
    """One base and several adapters: each sequence of a pass has an adapter of its own, or none.

    The base's arrays are shared and stay as they are. Wherever it multiplies `x @ W`, the rows x of
    each adapter get (alpha / r) (x Aᵀ) Bᵀ added: one pair of small products for each adapter that
    the pass has rows of, and nothing for the others.

    Shapes: forward_ragged as that of the model
    Units:  nbytes: bytes of all adapters, as they are held for passes
    Raises: ValueError for another model than `llama.Llama`, and an adapter for another shape, by
            its name.
    Source: Chen et al. 2023, Punica, arXiv:2310.18547, sec. 4 (adapters of several requests in one
            pass); Sheng et al. 2023, S-LoRA, arXiv:2311.03285

    >>> from firsttoken.models.llama import load_model
    >>> model = AdaptedModel(load_model("target"), {"loud": load_adapter("capitals")})
    >>> caches = [model.base.new_cache(1, 4) for _ in range(2)]
    >>> logits = model.forward_ragged([[5, 6], [5, 6]], caches, [None, "loud"])
    >>> bool(np.allclose(logits[0], model.base([[5, 6]])[0], atol=1e-4))
    True
    """

    def __init__(self, model: Model, adapters: Mapping[str, Adapter]) -> None:
        self.base = _llama(model)
        for name, adapter in adapters.items():
            _check_fits(self.base.arch, f"adapters: {name!r}", adapter)
        # By adapter, layer and stack of matrices: the products' right sides.
        self._pairs = {
            name: [
                {stack: _stacked(self.base.arch, adapter, layer, stack) for stack in _STACKS}
                for layer in range(self.base.arch.n_layers)
            ]
            for name, adapter in adapters.items()
        }

    @property
    def nbytes(self) -> int:
        """The bytes of all adapters."""
        layers = [layer for adapter in self._pairs.values() for layer in adapter]
        pairs = [pair for layer in layers for pair in layer.values() if pair is not None]
        return sum(down.nbytes + up.nbytes for down, up in pairs)

    def forward_ragged(
        self,
        tokens: Sequence[Sequence[int]],
        caches: Sequence[Cache],
        adapters: Sequence[str | None],
    ) -> list[Array]:
        """Continue several sequences in one pass, sequence i with adapters[i]; None: the base.

        Raises: ValueError for another number of adapters than sequences, an unknown one, and as
                the model.
        """
        sizes = [row.shape[1] for row in ragged_rows(self.base.arch, tokens, caches)]
        if len(adapters) != len(sizes):
            raise ValueError(f"adapters has {len(adapters)} names for {len(sizes)} sequences")
        if unknown := set(adapters) - {None, *self._pairs}:
            raise ValueError(
                f"adapters: {', '.join(map(repr, unknown))} unknown, expected None or one of "
                f"{', '.join(map(repr, self._pairs))}"
            )
        owners = np.repeat(np.arange(len(sizes)), sizes)  # of each row of the pass
        rows = {
            name: np.flatnonzero(np.isin(owners, [i for i, x in enumerate(adapters) if x == name]))
            for name in dict.fromkeys(adapters)
            if name is not None
        }
        return self._model_for(rows).forward_ragged(tokens, caches)

    def _model_for(self, rows: Mapping[str, Array]) -> Llama:
        """Return the base for one pass, in which these rows have adapters."""
        if not rows:
            return self.base
        model = copy.copy(self.base)
        model.blocks = []
        for layer, block in enumerate(self.base.blocks):
            pairs = [(at, self._pairs[name][layer]) for name, at in rows.items()]
            changed: dict[str, Any] = {
                stack: _AdaptedMatrix(
                    getattr(block, stack), [(at, pair[stack]) for at, pair in pairs]
                )
                for stack in _STACKS
            }
            model.blocks.append(replace(block, **changed))
        return model


class _AdaptedMatrix(_Matrix):
    """A matrix of the base, and what adapters add to its product, for the rows of one pass."""

    def __init__(
        self, base: _Matrix, adapters: Iterable[tuple[Array, tuple[Array, Array] | None]]
    ) -> None:
        self.base, self.panels, self.shape = base, base.panels, base.shape
        self.adapters = [(rows, pair) for rows, pair in adapters if pair is not None]

    def __rmatmul__(self, x: Array) -> Array:
        product = x @ self.base
        inputs, outputs = x.reshape(-1, x.shape[-1]), product.reshape(-1, product.shape[-1])
        for rows, (down, up) in self.adapters:
            outputs[rows] += inputs[rows] @ down @ up
        return outputs.reshape(product.shape)


def _stacked(
    arch: Architecture, adapter: Adapter, layer: int, stack: str
) -> tuple[Array, Array] | None:
    """Return what an adapter adds to matrices that lie side by side, as one pair of products.

    The first, [in, ranks], has their Aᵀ side by side. The second, [ranks, out], has each (alpha /
    r) Bᵀ where its own ranks and columns meet, and 0 elsewhere.
    """
    present = [matrix for matrix in _STACKS[stack] if (layer, matrix) in adapter.pairs]
    if not present:
        return None
    widths = {matrix: _shape(arch, layer, matrix)[0] for matrix in _STACKS[stack]}
    up = np.zeros((adapter.rank * len(present), sum(widths.values())), dtype=np.float32)
    start = 0
    for matrix, width in widths.items():
        if matrix in present:
            i = present.index(matrix) * adapter.rank
            b = adapter.pairs[layer, matrix][1]
            up[i : i + adapter.rank, start : start + width] = adapter.scale * b.T
        start += width
    down = np.concatenate([adapter.pairs[layer, matrix][0] for matrix in present]).T
    return np.ascontiguousarray(down), up


def _shape(arch: Architecture, layer: int, matrix: str) -> tuple[int, ...]:
    """Return the shape (out, in) of a matrix."""
    return weight_shapes(arch)[f"model.layers.{layer}.{_MODULES[matrix]}.weight"]


def _llama(model: Model) -> Llama:
    if not isinstance(model, Llama):
        raise ValueError(
            f"model must be a Llama of the NumPy backend to take adapters, got a "
            f"{type(model).__module__}.{type(model).__name__}"
        )
    return model


def _check_fits(arch: Architecture, argument: str, adapter: Adapter) -> None:
    """Raise a ValueError unless an adapter's pairs have the shapes of a model's matrices."""
    if not isinstance(adapter, Adapter):
        raise ValueError(f"{argument} must be an Adapter, got {type(adapter).__name__}")
    shapes = weight_shapes(arch)
    for (layer, matrix), (a, b) in adapter.pairs.items():
        expected = shapes.get(f"model.layers.{layer}.{_MODULES[matrix]}.weight")
        if expected is None:
            raise ValueError(f"{argument} has a layer {layer}, the model {arch.n_layers} layers")
        if (len(b), a.shape[1]) != expected:
            raise ValueError(
                f"{argument}: {matrix} of layer {layer} changes a matrix {(len(b), a.shape[1])}, "
                f"the model's is {expected}"
            )
