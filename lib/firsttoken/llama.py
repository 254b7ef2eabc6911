"""The Llama model in NumPy: small enough to read line by line, and the reference for the rest."""

import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firsttoken.architectures import Architecture, from_hf_config
from firsttoken.attention import attention, rms_norm
from firsttoken.kv_cache import KVCache

Array = np.ndarray


class _Matrix:
    """A matrix [in, out] of weights for products `x @ matrix`, kept in panels of 64 columns.

    A pass over one token and a pass over a few read the same weights, and should take about as
    long. NumPy's product of a few rows does so only where each stretch of columns lies in one
    piece of memory; else it jumps from row to row, or first copies the weights. And some
    processors spend longer on preparing the product of a few rows than on the rows one by one,
    the second of which finds the panel in the cache.
    """

    __array_ufunc__ = None  # so that NumPy leaves `array @ matrix` to this class
    width, few = 64, 7

    def __init__(self, transposed: Array):
        n_out, n_in = transposed.shape
        width = self.width if n_out % self.width == 0 else n_out
        panels = transposed.reshape(-1, width, n_in).swapaxes(1, 2)
        self.panels = np.ascontiguousarray(panels)  # [out / width, in, width]
        self.shape = n_in, n_out

    def __rmatmul__(self, x: Array) -> Array:
        rows = x.reshape(-1, x.shape[-1])
        if len(rows) <= self.few:
            product = (rows[:, None] @ self.panels[:, None])[:, :, 0]
        else:
            product = rows @ self.panels  # [out / width, rows, width]
        return product.swapaxes(0, 1).reshape(*x.shape[:-1], -1)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.concatenate(self.panels, axis=1, dtype=dtype)


@dataclass(frozen=True)
class _Block:
    """The weights of one layer, each matrix [in, out], those with one input side by side."""

    attention_norm: Array  # [D]
    qkv: _Matrix  # [D, (N + 2K)·H]
    out: _Matrix  # [N·H, D]
    mlp_norm: Array  # [D]
    gate_up: _Matrix  # [D, 2F]
    down: _Matrix  # [F, D]


class Llama:
    """A Llama-style decoder: token ids in, logits of each next token out.

    Computes in float32. With a cache, `tokens` continue what the cache holds, and their keys
    and values are added to it; the logits are those of one pass over the whole text.
    A layer with a window (Mistral) sees that many positions, itself included.

    `weights` maps Hugging Face's names to arrays (out, in), as checkpoints store them.

    Shapes: model(tokens (B, T), cache=None) -> logits (B, T, V)
    Raises: ValueError for missing, unexpected or misshapen weights, an architecture that is no
            Llama, an unknown RoPE type; for token ids out of range and a full cache.
    Source: Touvron et al. 2023, arXiv:2302.13971, sec. 2.2; Llama 3: arXiv:2407.21783, sec. 3.2
    """

    def __init__(
        self,
        arch: Architecture,
        weights: Mapping[str, Array],
        rope_theta: float = 10000.0,
        rope_scaling: Mapping[str, Any] | None = None,
        norm_eps: float = 1e-5,
        eos_ids: Sequence[int] = (),
    ):
        check_weights(arch, weights)
        self.arch, self.norm_eps, self.eos_ids = arch, norm_eps, tuple(eos_ids)
        self.frequencies = rope_frequencies(arch.head_dim, rope_theta, rope_scaling)  # [H/2]
        self.windows = arch.layer_windows

        def vector(name: str) -> Array:
            return np.array(weights[name], dtype=np.float32)

        def matrix(*names: str) -> _Matrix:
            stacked = [np.asarray(weights[n], dtype=np.float32) for n in names]  # [out, in] each
            return _Matrix(np.concatenate(stacked))

        self.blocks = []
        for layer in range(arch.n_layers):
            prefix = f"model.layers.{layer}."
            q, k, v, o = (f"{prefix}self_attn.{x}_proj.weight" for x in "qkvo")
            gate, up, down = (f"{prefix}mlp.{x}_proj.weight" for x in ("gate", "up", "down"))
            self.blocks.append(
                _Block(
                    attention_norm=vector(prefix + "input_layernorm.weight"),
                    qkv=matrix(q, k, v),
                    out=matrix(o),
                    mlp_norm=vector(prefix + "post_attention_layernorm.weight"),
                    gate_up=matrix(gate, up),
                    down=matrix(down),
                )
            )
        self.final_norm = vector("model.norm.weight")  # [D]
        self.embedding = vector("model.embed_tokens.weight")  # [V, D]
        tied = arch.tied_embeddings
        self.unembedding = matrix(
            "model.embed_tokens.weight" if tied else "lm_head.weight"
        )  # [D, V]

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> "Llama":
        """Load a directory in Hugging Face's Llama format; see `read_checkpoint`."""
        c = read_checkpoint(directory)
        return cls(c.arch, c.weights, c.rope_theta, c.rope_scaling, c.norm_eps, c.eos_ids)

    def new_cache(self, batch: int = 1, capacity: int | None = None) -> KVCache:
        """Return an empty cache for `batch` sequences of `capacity` tokens (None: max_context)."""
        capacity = self.arch.max_context if capacity is None else capacity
        if capacity is None:
            raise ValueError("capacity must be given: the architecture names no max_context")
        return KVCache(self.arch, batch, capacity)

    def __call__(self, tokens: Array | Sequence, cache: KVCache | None = None) -> Array:
        """Return the logits [B, T, V] that follow each of the tokens [B, T]."""
        tokens = np.asarray(tokens)
        check_tokens(self.arch, tokens)
        start = 0 if cache is None else cache.length
        positions = np.arange(start, start + tokens.shape[1], dtype=np.float32)

        def mix(layer: int, q: Array, k: Array, v: Array) -> Array:
            return self._mix(layer, q, k, v, cache)

        return self._forward(tokens, positions, mix)

    def forward_ragged(
        self, tokens: Sequence[Sequence[int]], caches: Sequence[KVCache]
    ) -> list[Array]:
        """Continue several sequences in one pass; return the logits [T_i, V] of each.

        Sequence i has the T_i new tokens `tokens[i]` and what `caches[i]`, a cache of one
        sequence, holds. A prompt, a part of one and single tokens go together without padding:
        all that is done to each token by itself is one product over the tokens of all, and only
        attention is done sequence by sequence, since each has keys of its own. The result is that
        of one pass per sequence, up to rounding: a product may add up in another order when it has
        more rows.

        Raises: ValueError for another number of caches than sequences, and as a single pass. When a
                cache is full, those before it have got keys of one layer: `truncate` them.
        Source: Yu et al. 2022, Orca (OSDI'22), sec. 3.2: selective batching
        """
        rows = [np.asarray(row)[None] for row in tokens]  # [1, T_i] each
        if not rows or len(rows) != len(caches):
            raise ValueError(
                f"tokens has {len(rows)} sequences and caches {len(caches)}, "
                "expected as many, at least one"
            )
        for row in rows:
            check_tokens(self.arch, row)
        ends = np.cumsum([row.shape[1] for row in rows])
        parts = [slice(end - row.shape[1], end) for row, end in zip(rows, ends, strict=True)]
        positions = np.concatenate(
            [
                cache.length + np.arange(row.shape[1], dtype=np.float32)
                for row, cache in zip(rows, caches, strict=True)
            ]
        )

        def mix(layer: int, q: Array, k: Array, v: Array) -> Array:
            mixed = [
                self._mix(layer, q[:, :, part], k[:, :, part], v[:, :, part], cache)
                for part, cache in zip(parts, caches, strict=True)
            ]
            return np.concatenate(mixed, axis=2)

        logits = self._forward(np.concatenate(rows, axis=1), positions, mix)[0]
        return [logits[part] for part in parts]

    def _forward(self, tokens: Array, positions: Array, mix: Callable[..., Array]) -> Array:
        """Return the logits [B, T, V]; `mix` lets the queries of a layer read keys and values."""
        angles = positions[:, None] * self.frequencies  # [T, H/2]
        rotation = np.cos(angles), np.sin(angles)

        x = self.embedding[tokens]  # [B, T, D]
        for layer, block in enumerate(self.blocks):
            h = rms_norm(x, block.attention_norm, self.norm_eps)
            x = x + self._attend(h, layer, rotation, mix)
            h = rms_norm(x, block.mlp_norm, self.norm_eps)
            x = x + self._mlp(h, layer)
        h = rms_norm(x, self.final_norm, self.norm_eps)
        return h @ self.unembedding  # [B, T, V]

    def _attend(
        self, h: Array, layer: int, rotation: tuple[Array, Array], mix: Callable[..., Array]
    ) -> Array:
        """Let each token read from those before it: [B, T, D] to [B, T, D]."""
        arch, block = self.arch, self.blocks[layer]
        n, n_rotated = arch.n_heads, arch.n_heads + arch.n_kv_heads
        heads = (h @ block.qkv).reshape(*h.shape[:2], -1, arch.head_dim).swapaxes(1, 2)
        qk = rotate(heads[:, :n_rotated], *rotation)
        q, k, v = qk[:, :n], qk[:, n:], heads[:, n_rotated:]  # [B, N, T, H], [B, K, T, H] twice
        mixed = mix(layer, q, k, v)  # [B, N, T, H]
        return mixed.swapaxes(1, 2).reshape(*h.shape[:2], -1) @ block.out

    def _mix(self, layer: int, q: Array, k: Array, v: Array, cache: KVCache | None) -> Array:
        """Attend from q to k and v, and to what the cache holds, which gets k and v as well."""
        if cache is not None:
            cache.append(layer, k, v)
            k, v = cache.keys(layer), cache.values(layer)  # [B, K, S, H]
        return attention(q, k, v, window=self.windows[layer])  # [B, N, T, H]

    def _mlp(self, h: Array, layer: int) -> Array:
        """Transform each token by itself: [B, T, D] to [B, T, F] to [B, T, D]."""
        block = self.blocks[layer]
        both = h @ block.gate_up  # [B, T, 2F]
        gate, up = both[..., : self.arch.d_ff], both[..., self.arch.d_ff :]
        return (silu(gate) * up) @ block.down


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Turn each pair (x_i, x_{i+H/2}) by the angle of its position and frequency (RoPE).

    The dot product of a rotated query and key then depends on their distance only.

    Shapes: x (B, heads, T, H); cos, sin (T, H/2); result as x
    Source: Su et al. 2021, arXiv:2104.09864, eq. 34, with the pairing of Hugging Face's Llama

    >>> rotate(np.array([1.0, 0.0]), np.array([0.0]), np.array([1.0])).tolist()  # by 90 degrees
    [0.0, 1.0]
    """
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def silu(x: Array) -> Array:
    """Return x times the logistic function of x: a smooth gate.

    Source: Elfwing et al. 2017, arXiv:1702.03118, eq. 7

    >>> silu(np.array([-1e4, 0.0, 1e4])).tolist()
    [-0.0, 0.0, 10000.0]
    """
    with np.errstate(over="ignore"):  # exp(-x) = inf is right: the gate is shut
        return x / (1 + np.exp(-x))


def rope_frequencies(
    head_dim: int, theta: float = 10000.0, scaling: Mapping[str, Any] | None = None
) -> Array:
    """Return how far one position turns each pair of features, fast pairs first.

    `scaling` stretches the context a model was trained for: `linear` slows every pair down by
    `factor`; `llama3` only the slow ones, whose wave was longer than the training context.

    Shapes: result (H/2,), float32
    Units:  radians per position
    Raises: ValueError for an odd head_dim, another rope_type, a missing or bad parameter.
    Source: Su et al. 2021, arXiv:2104.09864, sec. 3.2.2; Chen et al. 2023, arXiv:2306.15595
            (linear); transformers 5.23, modeling_rope_utils.py (llama3)

    >>> rope_frequencies(4, theta=16.0).tolist()
    [1.0, 0.25]
    """
    if head_dim < 2 or head_dim % 2:
        raise ValueError(f"head_dim must be even to form pairs, got {head_dim}")
    if theta <= 0:
        raise ValueError(f"rope_theta must be positive, got {theta}")
    # float32 throughout, as the models were trained: at far positions the rounding shows.
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / head_dim
    frequencies = 1 / float(theta) ** exponents
    kind = "default" if scaling is None else scaling.get("rope_type", scaling.get("type"))
    if kind == "default":
        return frequencies
    if kind == "linear":
        return frequencies / _positive(scaling, "factor")
    if kind != "llama3":
        raise ValueError(f"rope_type {kind!r} is not supported; expected default, linear, llama3")
    factor = _positive(scaling, "factor")
    low, high = (_positive(scaling, name) for name in ("low_freq_factor", "high_freq_factor"))
    context = _positive(scaling, "original_max_position_embeddings")
    if low >= high:
        raise ValueError(f"low_freq_factor {low} must be less than high_freq_factor {high}")
    turns = context * frequencies / np.float32(2 * math.pi)  # within the training context
    keep = np.clip((turns - low) / (high - low), 0, 1)  # 1: as trained, 0: slowed by the factor
    return (1 - keep) * frequencies / factor + keep * frequencies


def weight_shapes(arch: Architecture) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a Llama of these sizes: Hugging Face's name to shape (out, in).

    >>> tiny = Architecture("tiny", 1, 8, 4, 2, 2, 16, 100, tied_embeddings=True)
    >>> shapes = weight_shapes(tiny)
    >>> len(shapes), shapes["model.layers.0.self_attn.k_proj.weight"]
    (11, (4, 8))
    """
    d, f = arch.d_model, arch.d_ff
    query, key = arch.n_heads * arch.head_dim, arch.n_kv_heads * arch.head_dim
    block = {
        "input_layernorm": (d,),
        "self_attn.q_proj": (query, d),
        "self_attn.k_proj": (key, d),
        "self_attn.v_proj": (key, d),
        "self_attn.o_proj": (d, query),
        "post_attention_layernorm": (d,),
        "mlp.gate_proj": (f, d),
        "mlp.up_proj": (f, d),
        "mlp.down_proj": (d, f),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (arch.vocab_size, d)}
    for layer in range(arch.n_layers):
        shapes |= {f"model.layers.{layer}.{name}.weight": s for name, s in block.items()}
    shapes["model.norm.weight"] = (d,)
    if not arch.tied_embeddings:
        shapes["lm_head.weight"] = (arch.vocab_size, d)
    return shapes


def check_weights(arch: Architecture, weights: Mapping[str, Array]) -> None:
    """Raise a ValueError unless `weights` are exactly those of a Llama like `arch`.

    A tied model may bring its lm_head.weight as well, as long as it equals the embedding.
    """
    shapes = weight_shapes(arch)
    n_params = sum(math.prod(shape) for shape in shapes.values())
    if arch.n_params != n_params:
        raise ValueError(
            f"arch {arch.name!r} has {arch.n_params} parameters, a Llama of its sizes {n_params}: "
            "biases, experts and other additions are not supported"
        )
    missing = [name for name in shapes if name not in weights]
    if missing:
        raise ValueError(f"weights lack {len(missing)} tensors, first {missing[0]}")
    extra = sorted(set(weights) - set(shapes))
    if arch.tied_embeddings and extra == ["lm_head.weight"]:
        if not np.array_equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"]):
            raise ValueError("lm_head.weight differs from the embedding, expected tied weights")
        extra = []
    if extra:
        raise ValueError(f"weights hold {len(extra)} unexpected tensors, first {extra[0]}")
    for name, shape in shapes.items():
        if np.shape(weights[name]) != shape:
            raise ValueError(f"{name} has shape {np.shape(weights[name])}, expected {shape}")


def check_tokens(arch: Architecture, tokens: Array) -> None:
    """Raise a ValueError unless `tokens` are ids that `arch` knows, in the shape (B, T)."""
    if tokens.ndim != 2 or tokens.size == 0 or tokens.dtype.kind not in "iu":
        raise ValueError(
            "tokens must be integers (B, T), at least one, "
            f"got shape {tokens.shape} of {tokens.dtype}"
        )
    low, high = tokens.min(), tokens.max()
    if low < 0 or high >= arch.vocab_size:
        raise ValueError(f"tokens hold ids {low} … {high}, expected 0 … {arch.vocab_size - 1}")


@dataclass(frozen=True)
class Checkpoint:
    """What a directory in Hugging Face's Llama format holds; weights are float32."""

    arch: Architecture
    weights: Mapping[str, Array]
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    norm_eps: float
    eos_ids: tuple[int, ...]


def read_checkpoint(directory: str | Path) -> Checkpoint:
    """Read config.json, generation_config.json and the safetensors of a Llama or Mistral.

    Weights may be float32, float16 or bfloat16, in one file or in shards with an index.

    Raises: ValueError that names the file or tensor: missing, unreadable, or of another kind.
    """
    directory = Path(directory)
    config = _read_json(directory / "config.json")
    model_type, activation = config.get("model_type"), config.get("hidden_act", "silu")
    if model_type not in ("llama", "mistral"):
        raise ValueError(f"model_type {model_type!r} in {directory}: expected llama or mistral")
    if activation != "silu":
        raise ValueError(f"hidden_act {activation!r} in {directory}: expected silu")
    arch = from_hf_config(config).replace(name=directory.resolve().name)
    generation = directory / "generation_config.json"
    eos = (_read_json(generation) if generation.exists() else config).get("eos_token_id")
    weights: dict[str, Array] = {}
    for file in _weight_files(directory):
        weights |= read_safetensors(file)
    # Llama-2 checkpoints carry tables that follow from the config.
    weights = {n: w for n, w in weights.items() if not n.endswith("rotary_emb.inv_freq")}
    return Checkpoint(
        arch=arch,
        weights=weights,
        rope_theta=arch.rope_theta,
        rope_scaling=arch.rope_scaling,
        norm_eps=config.get("rms_norm_eps", 1e-6),  # the default of transformers
        eos_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
    )


def read_safetensors(file: str | Path) -> dict[str, Array]:
    """Read every tensor of a safetensors file, as float32.

    The file is: the header's length (8 bytes), the header (JSON: name to dtype, shape and
    place), the numbers.

    Raises: ValueError for a missing or corrupt file or another dtype, naming file and tensor.
    Source: huggingface/safetensors, README.md, "Format"
    """
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    start = 8 + int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8:start])
        header.pop("__metadata__", None)
        places = {}
        for name, entry in header.items():
            begin, end = map(operator.index, entry["data_offsets"])
            shape = [operator.index(n) for n in entry["shape"]]
            places[name] = str(entry["dtype"]), shape, begin, end
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(f"{file} is no safetensors file: its header is not readable") from None
    tensors = {}
    for name, (dtype, shape, begin, end) in places.items():
        if dtype not in _DTYPES:
            raise ValueError(f"{file}: {name} is {dtype}, expected one of {', '.join(_DTYPES)}")
        count, size = math.prod(shape), np.dtype(_DTYPES[dtype]).itemsize
        fits = min(*shape, begin, 0) == 0 and start + end <= len(data)
        if not fits or end - begin != count * size:
            raise ValueError(
                f"{file} is corrupt: {name} {shape} of {dtype} at bytes {begin} … {end} "
                f"of {len(data) - start}"
            )
        numbers = np.frombuffer(data, _DTYPES[dtype], count, start + begin).reshape(shape)
        if dtype == "BF16":  # the upper half of a float32
            numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = numbers.astype(np.float32)
    return tensors


_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def data_path(name: str) -> Path:
    """Return where a shipped file lies: in the repository's data/, else inside the package."""
    here = Path(__file__).parent
    repository = here.parents[1] / "data"
    return (repository if (repository / "model").is_dir() else here / "data") / name


def load_model(name: str | Path = "target", backend: str = "numpy"):
    """Load the shipped "target" or "draft", or any directory in Hugging Face's Llama format.

    Raises: ValueError for an unknown name or backend, and as `read_checkpoint`.
    """
    directory = data_path(f"model/{name}") if name in ("target", "draft") else Path(name)
    if not directory.is_dir():
        raise ValueError(
            f"name must be 'target', 'draft' or a directory, got {str(name)!r}: no {directory}"
        )
    if backend == "numpy":
        return Llama.from_pretrained(directory)
    if backend == "torch":
        from firsttoken import llama_torch  # takes a second to import: only on demand

        return llama_torch.Llama.from_pretrained(directory)
    raise ValueError(f"backend must be 'numpy' or 'torch', got {backend!r}")


def _positive(scaling: Mapping[str, Any], name: str) -> float:
    value = scaling.get(name)
    if not isinstance(value, int | float) or value <= 0:
        raise ValueError(f"rope_scaling needs a positive {name}, got {value!r}")
    return float(value)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{file} is not readable as JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a JSON object, got {type(content).__name__}")
    return content


def _weight_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return [directory / "model.safetensors"]
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index} has no weight_map")
    return [directory / file for file in sorted(set(weight_map.values()))]
