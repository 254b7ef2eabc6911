"""The Llama model in PyTorch: the fast path for training, batches and low precision.

Same signatures, same Hugging Face weight names and, in float32, the same logits as
`firsttoken.models.llama`, which is the reference.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from firsttoken.architectures import Architecture
from firsttoken.models.checkpoint import check_weights, read_checkpoint
from firsttoken.models.protocols import Cache, check_tokens, ragged_rows
from firsttoken.models.rope import rope_frequencies

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # (layer, q, k, v): what the queries read


class KVCache:
    """Keys and values of every layer, preallocated for `capacity` tokens.

    Shapes: keys(layer), values(layer): (B, K, S, H), a view of what is filled.
    Units:  capacity and length in tokens, nbytes in bytes.
    Raises: ValueError when an append would pass the capacity; nothing is written then.
    """

    def __init__(
        self,
        arch: Architecture,
        batch: int,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ):
        if batch < 1 or capacity < 1:
            raise ValueError(f"batch {batch} and capacity {capacity} must be at least 1")
        shape = (arch.n_layers, 2, batch, arch.n_kv_heads, capacity, arch.head_dim)
        self._store = torch.empty(shape, dtype=dtype, device=device)
        self._filled = [0] * arch.n_layers
        self.capacity = capacity

    @property
    def length(self) -> int:
        """Tokens that every layer holds."""
        return min(self._filled)

    @property
    def nbytes(self) -> int:
        """Allocated bytes, filled or not."""
        return self._store.nbytes

    def append(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write T new keys and values, each (B, K, T, H), behind those of `layer`."""
        expected = self._store[layer, 0].shape
        if k.shape != v.shape or k.shape[:2] != expected[:2] or k.shape[3] != expected[3]:
            raise ValueError(
                f"k {tuple(k.shape)} and v {tuple(v.shape)} must both be "
                f"(B, K, T, H) = ({expected[0]}, {expected[1]}, T, {expected[3]})"
            )
        start = self._filled[layer]
        end = start + k.shape[2]
        if end > self.capacity:
            raise ValueError(
                f"the cache holds {start} tokens of {self.capacity}; {k.shape[2]} more do not fit"
            )
        self._store[layer, 0, :, :, start:end] = k
        self._store[layer, 1, :, :, start:end] = v
        self._filled[layer] = end

    def keys(self, layer: int) -> Tensor:
        """Keys of `layer`, those just appended included: (B, K, S, H)."""
        return self._store[layer, 0, :, :, : self._filled[layer]]

    def values(self, layer: int) -> Tensor:
        """Values of `layer`, those just appended included: (B, K, S, H)."""
        return self._store[layer, 1, :, :, : self._filled[layer]]

    def truncate(self, length: int) -> None:
        """Forget every token from position `length` on."""
        if not 0 <= length <= self.length:
            raise ValueError(f"length {length} is not within 0 and {self.length}")
        self._filled = [length] * len(self._filled)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x_i, x_{i+H/2}) by its angle. x: (B, heads, T, H); cos, sin: (T, H/2)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class _Attention(nn.Module):
    def __init__(self, arch: Architecture, norm_eps: float):
        super().__init__()
        self.head_dim = arch.head_dim
        width, kv_width = arch.n_heads * arch.head_dim, arch.n_kv_heads * arch.head_dim
        self.unrotated = frozenset(arch.unrotated_layers or ())
        self.q_proj = nn.Linear(arch.d_model, width, bias=arch.qkv_bias)
        self.k_proj = nn.Linear(arch.d_model, kv_width, bias=arch.qkv_bias)
        self.v_proj = nn.Linear(arch.d_model, kv_width, bias=arch.qkv_bias)
        self.o_proj = nn.Linear(width, arch.d_model, bias=False)
        if arch.qk_norm:
            self.q_norm = nn.RMSNorm(arch.head_dim, eps=norm_eps)
            self.k_norm = nn.RMSNorm(arch.head_dim, eps=norm_eps)
        self.has_norms = arch.qk_norm

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend, layer: int) -> Tensor:
        b, t, _ = x.shape
        heads = (b, t, -1, self.head_dim)
        q = self.q_proj(x).view(heads).transpose(1, 2)  # (B, N, T, H)
        k = self.k_proj(x).view(heads).transpose(1, 2)  # (B, K, T, H)
        if self.has_norms:
            q, k = self.q_norm(q), self.k_norm(k)
        if layer not in self.unrotated:
            q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        v = self.v_proj(x).view(heads).transpose(1, 2)
        return self.o_proj(attend(layer, q, k, v).transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    """The gated MLP of one block: [..., D] to [..., F] to [..., D]."""

    def __init__(self, arch: Architecture):
        super().__init__()
        self.gate_proj = nn.Linear(arch.d_model, arch.d_ff, bias=False)
        self.up_proj = nn.Linear(arch.d_model, arch.d_ff, bias=False)
        self.down_proj = nn.Linear(arch.d_ff, arch.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class _Block(nn.Module):
    def __init__(self, arch: Architecture, norm_eps: float):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(arch.d_model, eps=norm_eps)
        self.self_attn = _Attention(arch, norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(arch.d_model, eps=norm_eps)
        self.mlp = MLP(arch)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend, layer: int) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, attend, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class _Decoder(nn.Module):
    """Everything below the logits, under the names that Hugging Face gives it."""

    def __init__(self, arch: Architecture, norm_eps: float):
        super().__init__()
        self.embed_tokens = nn.Embedding(arch.vocab_size, arch.d_model)
        self.layers = nn.ModuleList(_Block(arch, norm_eps) for _ in range(arch.n_layers))
        self.norm = nn.RMSNorm(arch.d_model, eps=norm_eps)


class Llama(nn.Module):
    """A Llama-style decoder; see `firsttoken.models.llama.Llama` for the reference.

    The parameters start frozen; training calls `requires_grad_(True)`. `n_threads` is how many
    threads a pass may take; None means PyTorch's own choice.

    Shapes: model(tokens (B, T), cache=None) -> logits (B, T, V)
    Raises: ValueError for missing or misshapen weights and for an unknown RoPE type.
    """

    n_threads: int | None = None

    def __init__(
        self,
        arch: Architecture,
        weights: Mapping[str, np.ndarray],
        rope_theta: float = 10000.0,
        rope_scaling: Mapping | None = None,
        norm_eps: float = 1e-5,
        eos_ids: Sequence[int] = (),
    ):
        super().__init__()
        check_weights(arch, weights)
        self.arch, self.norm_eps, self.eos_ids = arch, norm_eps, tuple(eos_ids)
        self.rope_theta, self.rope_scaling = rope_theta, rope_scaling
        self.model = _Decoder(arch, norm_eps)
        self.lm_head = nn.Linear(arch.d_model, arch.vocab_size, bias=False)
        if arch.tied_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        # No buffer: a model turned to bfloat16 would round these, and far positions with them.
        frequencies = rope_frequencies(arch.head_dim, rope_theta, rope_scaling)
        self._frequencies = torch.tensor(frequencies, dtype=torch.float32)
        tensors = {name: torch.tensor(np.asarray(w, np.float32)) for name, w in weights.items()}
        if arch.tied_embeddings:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        self.load_state_dict(tensors)
        self.requires_grad_(False)

    @classmethod
    def from_pretrained(cls, path: str | Path) -> "Llama":
        """Load a directory in Hugging Face's Llama format or a GGUF file; see `read_checkpoint`."""
        c = read_checkpoint(path)
        return cls(c.arch, c.weights, c.rope_theta, c.rope_scaling, c.norm_eps, c.eos_ids)

    def new_cache(self, batch: int = 1, capacity: int | None = None) -> KVCache:
        """An empty cache for `batch` sequences of up to `capacity` tokens."""
        capacity = self.arch.max_context if capacity is None else capacity
        if capacity is None:
            raise ValueError("capacity must be given: the architecture names no max_context")
        weight = self.model.norm.weight
        return KVCache(self.arch, batch, capacity, weight.dtype, weight.device)

    def forward(self, tokens: Tensor | Sequence, cache: Cache | None = None) -> Tensor:
        """Return the logits (B, T, V) that follow each of the tokens (B, T)."""
        tokens = torch.as_tensor(tokens)
        # Looking at values would break a graph, and make the host wait for an accelerator.
        if tokens.device.type == "cpu" and not torch.compiler.is_compiling():
            check_tokens(self.arch, tokens.numpy())
        return self._logits(tokens, self._positions(tokens.shape[1], cache), self._attend(cache))

    def forward_ragged(
        self, tokens: Sequence[Sequence[int]], caches: Sequence[Cache]
    ) -> list[Tensor]:
        """Continue several sequences in one pass; return the logits (T_i, V) of each.

        As `llama.Llama.forward_ragged`: one product over the tokens of all, attention sequence by
        sequence.
        """
        rows = ragged_rows(self.arch, tokens, caches)
        sizes = [row.shape[1] for row in rows]
        positions = [self._positions(*pair) for pair in zip(sizes, caches, strict=True)]
        attends = [self._attend(cache) for cache in caches]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            parts = zip(*(x.split(sizes, dim=2) for x in (q, k, v)), strict=True)
            mixed = [one(layer, *part) for one, part in zip(attends, parts, strict=True)]
            return torch.cat(mixed, dim=2)

        together = torch.from_numpy(np.concatenate(rows, axis=1))
        return list(self._logits(together, torch.cat(positions), attend)[0].split(sizes))

    def _positions(self, t: int, cache: Cache | None) -> Tensor:
        """Return where `t` tokens stand that continue what the cache holds."""
        start = 0 if cache is None else cache.length
        device = self.model.norm.weight.device
        return torch.arange(start, start + t, dtype=torch.float32, device=device)

    def _logits(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Return the logits (B, T, V); `attend` lets a layer's queries read keys and values."""
        weight = self.model.norm.weight
        angles = torch.outer(positions, self._frequencies.to(weight.device))  # (T, H/2)
        cos, sin = angles.cos().to(weight.dtype), angles.sin().to(weight.dtype)
        with nullcontext() if self.n_threads is None else _threads(self.n_threads):
            x = self.model.embed_tokens(tokens.to(weight.device))
            for layer, block in enumerate(self.model.layers):
                x = block(x, cos, sin, attend, layer)
            return self.lm_head(self.model.norm(x))

    def _attend(self, cache: Cache | None) -> Attend:
        """Return how queries attend to new keys and values and to what the cache holds."""
        windows = self.arch.layer_windows
        masks: dict[tuple[int, int | None], Tensor | None] = {}  # by keys and window: one a pass

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if cache is not None:
                k, v = _through(cache, layer, k, v)
            kind = k.shape[2], windows[layer]
            if kind not in masks:
                masks[kind] = _mask(q.shape[2], *kind, q.device)
            return _attention(q, k, v, masks[kind])

        return attend


@contextmanager
def _threads(n: int) -> Iterator[None]:
    """Let PyTorch take n threads within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _through(cache: Cache, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Append to the cache and return all that it holds; a cache may be of NumPy arrays."""
    if isinstance(cache, KVCache):
        cache.append(layer, k, v)
    else:
        cache.append(layer, *(x.float().numpy(force=True) for x in (k, v)))
    return torch.as_tensor(cache.keys(layer)).to(k), torch.as_tensor(cache.values(layer)).to(v)


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of (B, N, T, H) to (B, K, S, H); no mask: plain causal order."""
    b, n, t, h = q.shape
    if t > 1:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
    # One query sees every key: the G heads of a group become G rows of one matrix product, so
    # that the cache is read once and never copied.
    rows = q.reshape(b, k.shape[1], -1, h)
    return F.scaled_dot_product_attention(rows, k, v, attn_mask=mask).reshape(b, n, 1, h)


def _mask(t: int, s: int, window: int | None, device: torch.device) -> Tensor | None:
    """Which of `s` keys the last `t` tokens see; None where plain causal order says it."""
    if window is None and t in (1, s):
        return None
    key = torch.arange(s, device=device)
    query = key[s - t :, None]
    seen = key <= query
    return seen if window is None else seen & (key > query - window)
