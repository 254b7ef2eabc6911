"""What the rest of the library may ask of a model and of a cache, whichever backend they are of."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from firsttoken.architectures import Architecture

Array: TypeAlias = Any  # of NumPy or of PyTorch, as the backend has it


@runtime_checkable
class Cache(Protocol):
    """Keys and values of some sequences, by layer: what attention reads instead of the text.

    Shapes: k, v (B, K, T, H); keys(layer), values(layer) (B, K, S, H)
    Units:  length in tokens, nbytes in bytes
    Raises: ValueError when what is appended does not fit; nothing is written then.
    """

    @property
    def length(self) -> int:
        """The tokens per sequence that every layer holds."""
        ...

    @property
    def nbytes(self) -> int:
        """The bytes that the cache takes up, filled or not."""
        ...

    def append(self, layer: int, k: Array, v: Array) -> None:
        """Store the keys and values of the next tokens of one layer."""
        ...

    def keys(self, layer: int) -> Array:
        """Return all keys of a layer, those just appended included."""
        ...

    def values(self, layer: int) -> Array:
        """Return all values of a layer, those just appended included."""
        ...

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens, in every layer."""
        ...


class Model(Protocol):
    """A decoder: token ids in, logits of each next token out.

    `eos_ids` are the tokens that end a text.

    Shapes: model(tokens (B, T), cache=None) -> logits (B, T, V)
    Raises: ValueError for token ids out of range and a full cache.
    """

    arch: Architecture
    eos_ids: tuple[int, ...]

    def __call__(self, tokens: Any, cache: Cache | None = None) -> Array:
        """Return the logits that follow each token; with a cache, the tokens continue it."""
        ...

    def forward_ragged(
        self, tokens: Sequence[Sequence[int]], caches: Sequence[Cache]
    ) -> list[Array]:
        """Continue several sequences in one pass; return the logits (T_i, V) of each."""
        ...

    def new_cache(self, batch: int = 1, capacity: int | None = None) -> Cache:
        """Return an empty cache for `batch` sequences of `capacity` tokens."""
        ...


class FeatureModel(Model, Protocol):
    """A decoder that also gives its features: the vectors from which it computes the logits.

    Shapes: features(tokens (B, T)) -> (B, T, D); logits(features (…, D)) -> (…, V)
    """

    def features(
        self, tokens: Any, cache: Cache | None = None, parents: Sequence[int] | None = None
    ) -> Array:
        """Return the vector behind the logits of each token; `parents`: the tokens are a tree."""
        ...

    def logits(self, features: Array) -> Array:
        """Return the logits of the next token."""
        ...


def check_tokens(arch: Architecture, tokens: np.ndarray) -> None:
    """Raise a ValueError unless `tokens` are ids that `arch` knows, in the shape (B, T)."""
    if tokens.ndim != 2 or tokens.size == 0 or tokens.dtype.kind not in "iu":
        raise ValueError(
            "tokens must be integers (B, T), at least one, "
            f"got shape {tokens.shape} of {tokens.dtype}"
        )
    low, high = tokens.min(), tokens.max()
    if low < 0 or high >= arch.vocab_size:
        raise ValueError(f"tokens hold ids {low} … {high}, expected 0 … {arch.vocab_size - 1}")


def ragged_rows(
    arch: Architecture, tokens: Sequence[Sequence[int]], caches: Sequence[Cache]
) -> list[np.ndarray]:
    """Return the tokens of a ragged pass as arrays (1, T_i), one for each cache.

    Raises: ValueError for another number of caches than sequences, none, and as `check_tokens`.
    """
    rows = [np.asarray(row)[None] for row in tokens]
    if not rows or len(rows) != len(caches):
        raise ValueError(
            f"tokens has {len(rows)} sequences and caches {len(caches)}, "
            "expected as many, at least one"
        )
    for row in rows:
        check_tokens(arch, row)
    return rows
