"""The Llama model in NumPy: small enough to read line by line, and the reference for the rest."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firsttoken.architectures import Architecture
from firsttoken.attention import attention, rms_norm
from firsttoken.checkpoint import check_weights, read_checkpoint
from firsttoken.checks import check_count
from firsttoken.kv_cache import KVCache
from firsttoken.paths import data_path
from firsttoken.protocols import Cache, Model, check_tokens, ragged_rows
from firsttoken.rope import rope_frequencies, rotate
from firsttoken.threads import blas_threads

Array = np.ndarray


class Llama:
    """A Llama-style decoder: token ids in, logits of each next token out.

    Computes in float32. With a cache, `tokens` continue what the cache holds, and their keys
    and values are added to it; the logits are those of one pass over the whole text.
    A layer with a window (Mistral) sees that many positions, itself included.

    `weights` maps Hugging Face's names to arrays (out, in), as checkpoints store them.
    `n_threads` is how many threads a pass may take; None means NumPy's own choice.

    Shapes: model(tokens (B, T), cache=None) -> logits (B, T, V)
    Raises: ValueError for missing, unexpected or misshapen weights, an architecture that is no
            Llama, an unknown RoPE type; for token ids out of range and a full cache.
    Source: Touvron et al. 2023, arXiv:2302.13971, sec. 2.2; Llama 3: arXiv:2407.21783, sec. 3.2
    """

    n_threads: int | None = None

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

    def __call__(self, tokens: Array | Sequence, cache: Cache | None = None) -> Array:
        """Return the logits [B, T, V] that follow each of the tokens [B, T]."""
        tokens = np.asarray(tokens)
        check_tokens(self.arch, tokens)

        def mix(layer: int, q: Array, k: Array, v: Array) -> Array:
            return self._mix(layer, q, k, v, cache)

        with blas_threads(self.n_threads):
            return self._forward(tokens, self._positions(tokens.shape[1], cache), mix)

    def forward_ragged(
        self, tokens: Sequence[Sequence[int]], caches: Sequence[Cache]
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
        rows = ragged_rows(self.arch, tokens, caches)
        positions = [self._positions(row.shape[1], c) for row, c in zip(rows, caches, strict=True)]
        cuts = np.cumsum([row.shape[1] for row in rows])[:-1]

        def mix(layer: int, q: Array, k: Array, v: Array) -> Array:
            parts = zip(*(np.split(x, cuts, axis=2) for x in (q, k, v)), caches, strict=True)
            return np.concatenate([self._mix(layer, *part) for part in parts], axis=2)

        with blas_threads(self.n_threads):
            logits = self._forward(np.concatenate(rows, axis=1), np.concatenate(positions), mix)
        return np.split(logits[0], cuts)

    def _positions(self, n: int, cache: Cache | None) -> Array:
        """Return where `n` tokens stand that continue what the cache holds."""
        start = 0 if cache is None else cache.length
        return np.arange(start, start + n, dtype=np.float32)

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

    def _mix(self, layer: int, q: Array, k: Array, v: Array, cache: Cache | None) -> Array:
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


def silu(x: Array) -> Array:
    """Return x times the logistic function of x: a smooth gate.

    Source: Elfwing et al. 2017, arXiv:1702.03118, eq. 7

    >>> silu(np.array([-1e4, 0.0, 1e4])).tolist()
    [-0.0, 0.0, 10000.0]
    """
    with np.errstate(over="ignore"):  # exp(-x) = inf is right: the gate is shut
        return x / (1 + np.exp(-x))


def load_model(
    name: str | Path = "target", backend: str = "numpy", n_threads: int | None = 1
) -> Model:
    """Load the shipped "target" or "draft", or any directory in Hugging Face's Llama format.

    `n_threads` is how many threads a pass may take. One is as fast for models as small as the
    shipped pair, and much faster beside other programs; for a large checkpoint give more, or None
    for the backend's own choice.

    Raises: ValueError for an unknown name or backend, an n_threads below 1, and as
            `read_checkpoint`.
    """
    directory = data_path(f"model/{name}") if name in ("target", "draft") else Path(name)
    if not directory.is_dir():
        raise ValueError(
            f"name must be 'target', 'draft' or a directory, got {str(name)!r}: no {directory}"
        )
    if n_threads is not None:
        check_count("n_threads", n_threads, at_least=1)
    if backend == "torch":
        from firsttoken.llama_torch import Llama as TorchLlama  # a second to import: on demand

        model: Llama | TorchLlama = TorchLlama.from_pretrained(directory)
    elif backend == "numpy":
        model = Llama.from_pretrained(directory)
    else:
        raise ValueError(f"backend must be 'numpy' or 'torch', got {backend!r}")
    model.n_threads = n_threads
    return model


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
