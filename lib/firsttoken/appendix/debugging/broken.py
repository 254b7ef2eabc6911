"""Broken on purpose, each by one fault, so that every check can be seen to find it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from firsttoken.attention import attention
from firsttoken.engine import Engine
from firsttoken.generate.sequence import TokenSequence
from firsttoken.kv_cache import KVCache
from firsttoken.models.llama import Llama, _Matrix
from firsttoken.models.rope import rope_frequencies
from firsttoken.paging import BlockPool
from firsttoken.paging.pool import hash_block
from firsttoken.quantization import quantize

Array = np.ndarray


class _Copy(Llama):
    """A Llama that shares its arrays with another one."""

    def __init__(self, model: Llama):
        vars(self).update(vars(model))


class WithoutMask(_Copy):
    """Tokens of one pass see those behind them, too."""

    def _attend(
        self, layer: int, q: Array, k: Array, v: Array, cache: Any, mask: Any = None
    ) -> Array:
        k, v = _stored(layer, k, v, cache)
        return attention(q, k, v, causal=False)


class OnePlaceTooFar(_Copy):
    """A token that comes alone is turned as if it stood one place further on."""

    def _positions(self, n: int, cache: Any) -> Array:
        return super()._positions(n, cache) + (n == 1)


class OverwritingCache(_Copy):
    """Each new key is written over the one before it: off by one."""

    def _attend(
        self, layer: int, q: Array, k: Array, v: Array, cache: Any, mask: Any = None
    ) -> Array:
        n_new = k.shape[2]
        k, v = _stored(layer, k, v, cache)
        if n_new == 1 and k.shape[2] > 1:
            k, v = (np.delete(x, -2, axis=2) for x in (k, v))
        return attention(q, k, v)


class PromptOnlyCache(_Copy):
    """New tokens see the prompt and themselves, but no other token of the answer."""

    def new_cache(self, batch: int = 1, capacity: int | None = None) -> KVCache:
        self._n_prompt = 0
        return super().new_cache(batch, capacity)

    def _attend(
        self, layer: int, q: Array, k: Array, v: Array, cache: Any, mask: Any = None
    ) -> Array:
        n_new = k.shape[2]
        k, v = _stored(layer, k, v, cache)
        if cache is not None and n_new > 1:
            self._n_prompt = k.shape[2]
        if cache is not None and n_new == 1:
            k, v = (np.delete(x, slice(self._n_prompt, -1), axis=2) for x in (k, v))
        return attention(q, k, v)


class LogitsInBf16(_Copy):
    """Logits keep 8 bits: the best two may become equal, and the first of equals is taken."""

    def logits(self, features: Array) -> Array:
        return super().logits(features).astype(ml_dtypes.bfloat16).astype(np.float32)


class Overflowing(_Copy):
    """Its logits are no numbers, as when a format has run over."""

    def logits(self, features: Array) -> Array:
        return super().logits(features) * np.float32(np.nan)


class OfAnotherVocabulary(_Copy):
    """Each token gets the vector of the one before it in the vocabulary."""

    def __init__(self, model: Llama):
        super().__init__(model)
        self.embedding = np.roll(model.embedding, 1, axis=0)


def with_rope_base(model: Llama, theta: float) -> Llama:
    """Return the model with another base of its positions than it was trained with."""
    changed = _Copy(model)
    changed.frequencies = rope_frequencies(model.arch.head_dim, theta)
    return changed


def rounded(
    model: Llama,
    bits: int,
    group_size: int | None = None,
    layers: Sequence[int] | None = None,
    swapped: bool = False,
) -> Llama:
    """Return the model with the matrices of some layers (default: all) rounded to `bits`.

    A scale serves a group of weights, or without `group_size` a whole matrix. Where the codes are
    `swapped`, each pair of them is read in the wrong order, as from bytes whose halves were mixed
    up.
    """
    changed = _Copy(model)
    changed.blocks = [
        replace(block, **_rounded(block, bits, group_size, swapped))
        if layers is None or i in layers
        else block
        for i, block in enumerate(model.blocks)
    ]
    return changed


class BlindPool(BlockPool):
    """Knows a block by its own tokens only, whatever stands before it."""

    def _hash_blocks(self, tokens: Sequence[int]) -> list[bytes]:
        size = self.block_size
        ends = range(size, len(tokens) + 1, size)
        return [hash_block(b"", list(tokens[end - size : end])) for end in ends]


class AdapterBlindEngine(Engine):
    """Its prefix cache knows a text by its tokens, whatever adapter has read it."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._blocks.offsets = dict.fromkeys(self._blocks.offsets, 0)


class OneDiceEngine(Engine):
    """All requests draw from the random numbers of the first."""

    _dice: np.random.Generator | None = None

    def _sequence(self, *arguments: Any) -> TokenSequence:
        text = super()._sequence(*arguments)
        self._dice = self._dice or text.rng
        text.rng = self._dice
        return text


class LeakyEngine(Engine):
    """The blocks of a request that is aborted are never given back."""

    def abort(self, request_id: int) -> Any:
        self.pool.fork(request_id, ("lost", request_id))
        return super().abort(request_id)


def _stored(layer: int, k: Array, v: Array, cache: Any) -> tuple[Array, Array]:
    if cache is None:
        return k, v
    cache.append(layer, k, v)
    return cache.keys(layer), cache.values(layer)


def _rounded(block: Any, bits: int, group_size: int | None, swapped: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("qkv", "out", "gate_up", "down"):
        weight = np.array(getattr(block, name)).T  # [out, in]
        axis = None if group_size is None else 0
        codes = quantize(weight, bits, axis, group_size).dequantize()
        if swapped:
            codes = codes.reshape(-1, 2)[:, ::-1].reshape(weight.shape)
        found[name] = _Matrix(codes)
    return found
