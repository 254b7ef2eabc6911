"""The Llama model in NumPy: small enough to read line by line, and the reference for the rest."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from firsttoken.architectures import Architecture
from firsttoken.attention import attention, masked_attention, rms_norm
from firsttoken.checks import check_count
from firsttoken.kv_cache import KVCache
from firsttoken.models.checkpoint import check_weights, read_checkpoint
from firsttoken.models.protocols import Cache, Model, check_tokens, ragged_rows
from firsttoken.models.rope import rope_frequencies, rotate
from firsttoken.models.threads import blas_threads
from firsttoken.paths import data_path, smollm2_path
from firsttoken.speculative.trees import tree_mask

Array = np.ndarray


class Llama:
    """A Llama-style decoder: token ids in, logits of each next token out.

    Computes in float32. With a cache, `tokens` continue what the cache holds, and their keys
    and values are added to it; the logits are those of one pass over the whole text.
    A layer with a window (Mistral) sees that many positions, itself included. Biases of queries,
    keys and values (Qwen2), their norms (Qwen3) and layers without rotation (SmolLM3) are those
    that `arch` names.

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
        self.unrotated = frozenset(arch.unrotated_layers or ())

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
                    qkv_bias=self._bias(weights, prefix),
                    qk_norm=self._qk_norm(weights, prefix),
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

    def _bias(self, weights: Mapping[str, Array], prefix: str) -> Array | None:
        """Return what Qwen2 adds to queries, keys and values: [(N + 2K)·H]."""
        if not self.arch.qkv_bias:
            return None
        names = (f"{prefix}self_attn.{x}_proj.bias" for x in "qkv")
        return np.concatenate([np.asarray(weights[n], dtype=np.float32) for n in names])

    def _qk_norm(self, weights: Mapping[str, Array], prefix: str) -> Array | None:
        """Return the factors of Qwen3's norm of each query and key: [N + K, 1, H]."""
        if not self.arch.qk_norm:
            return None
        of_q, of_k = (np.asarray(weights[f"{prefix}self_attn.{x}_norm.weight"]) for x in "qk")
        each = [of_q] * self.arch.n_heads + [of_k] * self.arch.n_kv_heads
        return np.array(each, dtype=np.float32)[:, None]

    @classmethod
    def from_pretrained(cls, path: str | Path) -> "Llama":
        """Load a directory in Hugging Face's Llama format or a GGUF file; see `read_checkpoint`."""
        c = read_checkpoint(path)
        return cls(c.arch, c.weights, c.rope_theta, c.rope_scaling, c.norm_eps, c.eos_ids)

    def new_cache(self, batch: int = 1, capacity: int | None = None) -> KVCache:
        """Return an empty cache for `batch` sequences of `capacity` tokens (None: max_context)."""
        capacity = self.arch.max_context if capacity is None else capacity
        if capacity is None:
            raise ValueError("capacity must be given: the architecture names no max_context")
        return KVCache(self.arch, batch, capacity)

    def __call__(self, tokens: Array | Sequence, cache: Cache | None = None) -> Array:
        """Return the logits [B, T, V] that follow each of the tokens [B, T]."""
        return self.logits(self.features(tokens, cache))

    def features(
        self,
        tokens: Array | Sequence,
        cache: Cache | None = None,
        parents: Sequence[int] | None = None,
    ) -> Array:
        """Return what the model thinks at each of the tokens [B, T]: [B, T, D], for `logits`.

        With `parents` the last tokens are a tree, as many as there are parents. New tokens before
        it are text, and what comes before the new tokens lies in the cache already. Token i of the
        tree follows its token parents[i], or, where that is -1, the text. It sees the text, itself
        and what it hangs on, and has the position that it would have in the text which its branch
        spells. `generate.keep_path` leaves one branch in the cache.
        """
        tokens = np.asarray(tokens)
        check_tokens(self.arch, tokens)
        return self.transform(self.embedding[tokens], cache, parents)

    def transform(
        self, x: Array, cache: Cache | None = None, parents: Sequence[int] | None = None
    ) -> Array:
        """Return what `features` makes of vectors [B, T, D] that come in the tokens' place."""
        n_new = x.shape[1]
        positions, mask = self._positions(n_new, cache), None
        if parents is not None:
            n_text = max(0, n_new - len(parents))  # new tokens before the tree: a chain
            parents = [*range(-1, n_text - 1), *(n_text + parent for parent in parents)]
            mask = tree_mask(parents)[-n_new:]  # [T, M]
            n_before = positions[-1] + 1 - len(parents)
            positions = n_before + mask.sum(axis=1, dtype=np.float32) - 1

        def attend(layer: int, q: Array, k: Array, v: Array) -> Array:
            return self._attend(layer, q, k, v, cache, mask)

        with blas_threads(self.n_threads):
            return self._transform(x, positions, attend)

    def logits(self, features: Array) -> Array:
        """Return the logits [..., V] of the next token for features [..., D]."""
        with blas_threads(self.n_threads):
            return features @ self.unembedding

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

        def attend(layer: int, q: Array, k: Array, v: Array) -> Array:
            parts = zip(*(np.split(x, cuts, axis=2) for x in (q, k, v)), caches, strict=True)
            return np.concatenate([self._attend(layer, *part) for part in parts], axis=2)

        x = self.embedding[np.concatenate(rows, axis=1)]
        with blas_threads(self.n_threads):
            features = self._transform(x, np.concatenate(positions), attend)
        return np.split(self.logits(features)[0], cuts)

    def _positions(self, n: int, cache: Cache | None) -> Array:
        """Return where `n` tokens stand that continue what the cache holds."""
        start = 0 if cache is None else cache.length
        return np.arange(start, start + n, dtype=np.float32)

    def _transform(self, x: Array, positions: Array, attend: Callable[..., Array]) -> Array:
        """Send x [B, T, D] through all layers; `attend` lets queries read keys and values."""
        angles = positions[:, None] * self.frequencies  # [T, H/2]
        rotation = np.cos(angles), np.sin(angles)

        for layer, block in enumerate(self.blocks):
            h = rms_norm(x, block.attention_norm, self.norm_eps)
            x = x + self._self_attention(h, layer, rotation, attend)
            h = rms_norm(x, block.mlp_norm, self.norm_eps)
            x = x + self._mlp(h, layer)
        return rms_norm(x, self.final_norm, self.norm_eps)

    def _self_attention(
        self, h: Array, layer: int, rotation: tuple[Array, Array], attend: Callable[..., Array]
    ) -> Array:
        """Let each token read from those before it: [B, T, D] to [B, T, D]."""
        arch, block = self.arch, self.blocks[layer]
        n, n_rotated = arch.n_heads, arch.n_heads + arch.n_kv_heads
        qkv = h @ block.qkv
        if block.qkv_bias is not None:
            qkv = qkv + block.qkv_bias
        heads = qkv.reshape(*h.shape[:2], -1, arch.head_dim).swapaxes(1, 2)
        qk, v = heads[:, :n_rotated], heads[:, n_rotated:]
        if block.qk_norm is not None:
            qk = rms_norm(qk, block.qk_norm, self.norm_eps)
        if layer not in self.unrotated:
            qk = rotate(qk, *rotation)
        q, k = qk[:, :n], qk[:, n:]  # [B, N, T, H], [B, K, T, H]
        mixed = attend(layer, q, k, v)  # [B, N, T, H]
        return mixed.swapaxes(1, 2).reshape(*h.shape[:2], -1) @ block.out

    def _attend(
        self,
        layer: int,
        q: Array,
        k: Array,
        v: Array,
        cache: Cache | None,
        mask: Array | None = None,
    ) -> Array:
        """Attend from q to k and v, and to what the cache holds, which gets k and v as well."""
        if cache is not None:
            cache.append(layer, k, v)
            k, v = cache.keys(layer), cache.values(layer)  # [B, K, S, H]
        if mask is not None and self.windows[layer] is not None:
            raise ValueError(f"parents must be None for a model with windows, got layer {layer} so")
        if mask is not None:
            return masked_attention(q, k, v, mask)
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
    """Load the shipped "target" or "draft", "smollm2", or any Llama: a directory or a GGUF file.

    "smollm2" is SmolLM2-135M-Instruct, a real model for chats, once it is installed. A directory is
    in Hugging Face's format; `read_checkpoint` says what is read: Llama, Mistral, Qwen2, Qwen3,
    SmolLM3 and Granite.

    `n_threads` is how many threads a pass may take. One is as fast for models as small as the
    shipped pair, and much faster beside other programs; for a large checkpoint give more, or None
    for the backend's own choice.

    Raises: ValueError for an unknown name or backend, an n_threads below 1, and as
            `read_checkpoint`.
    """
    shipped = name in ("target", "draft")
    path = smollm2_path() if name == "smollm2" else data_path(f"model/{name}") if shipped else name
    if not Path(path).exists():
        raise ValueError(
            "name must be 'target', 'draft', 'smollm2', a directory or a GGUF file, "
            f"got {str(name)!r}: no {path}"
        )
    if n_threads is not None:
        check_count("n_threads", n_threads, at_least=1)
    if backend == "torch":
        from firsttoken.models.llama_torch import (
            Llama as TorchLlama,  # a second to import: on demand
        )

        model: Llama | TorchLlama = TorchLlama.from_pretrained(path)
    elif backend == "numpy":
        model = Llama.from_pretrained(path)
    else:
        raise ValueError(f"backend must be 'numpy' or 'torch', got {backend!r}")
    model.n_threads = n_threads
    return model


class _Matrix:
    """A matrix [in, out] of weights for products `x @ matrix`, kept in panels of 64 columns.

    A pass over one token and a pass over a few read the same weights, and should take about as
    long. OpenBLAS first copies both sides of a product, unless it has a kernel for small ones;
    it counts a panel as small, and the whole matrix not. Where it has no such kernel,
    a few rows go one by one, and all but the first find the panel in the processor's cache.
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
        if len(rows) <= self.few and not few_rows_in_one():
            product = (rows[:, None] @ self.panels[:, None])[:, :, 0]
        else:
            product = rows @ self.panels  # [out / width, rows, width]
        return product.swapaxes(0, 1).reshape(*x.shape[:-1], -1)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.concatenate(self.panels, axis=1, dtype=dtype)


@cache
def few_rows_in_one() -> bool:
    """Say whether NumPy's product of a few rows and a small matrix spares the copies.

    OpenBLAS has kernels for small products, which do, for AVX-512 only. Other libraries are taken
    to have none.

    Source: OpenBLAS 0.3.31, interface/gemm.c and kernel/x86_64/KERNEL.SKYLAKEX
    """
    spared = {"SkylakeX", "Cooperlake", "SapphireRapids"}
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    return all(getattr(library, "architecture", None) in spared for library in libraries)


@dataclass(frozen=True)
class _Block:
    """The weights of one layer, each matrix [in, out], those with one input side by side."""

    attention_norm: Array  # [D]
    qkv: _Matrix  # [D, (N + 2K)·H]
    qkv_bias: Array | None  # [(N + 2K)·H]
    qk_norm: Array | None  # [N + K, 1, H]
    out: _Matrix  # [N·H, D]
    mlp_norm: Array  # [D]
    gate_up: _Matrix  # [D, 2F]
    down: _Matrix  # [F, D]
