"""The text that a model read last: of the next one only what is new goes through it."""

from collections.abc import Generator, Sequence

import numpy as np

from firsttoken.models.protocols import Cache, FeatureModel

Array = np.ndarray

_PIECE = 64  # tokens in one pass: between two, others have their turn


class LastText:
    """The text that a model read last, in a cache that is cut back to what the next one shares.

    Shapes: read(ids) gives, at its end, logits [V]
    Units:  capacity in tokens
    Raises: ValueError for a text of no token, or of more than there is room for; as the model.

    >>> from firsttoken.models.llama import load_model
    >>> last = LastText(load_model("draft"), capacity=100)
    >>> list(last.read([5, 6, 7])), last.n_known([5, 6, 8, 9])
    ([], 2)
    """

    def __init__(self, model: FeatureModel, capacity: int):
        self._model, self.capacity = model, capacity
        self.cache: Cache = model.new_cache(1, capacity)
        self._ids: list[int] = []  # the tokens that the cache holds
        self._logits: Array | None = None  # after the last of them

    def n_known(self, ids: Sequence[int]) -> int:
        """Return how many tokens at the beginning of a text need not be read again."""
        if self._logits is not None and list(ids) == self._ids:
            return len(ids)
        # The last one is read again: what follows it is asked for.
        pairs = enumerate(zip(ids[:-1], self._ids, strict=False))
        return next((i for i, (a, b) in pairs if a != b), min(len(ids) - 1, len(self._ids)))

    def reserve(self, capacity: int) -> None:
        """Move what is known to a larger cache, at least twice as large, if it needs one."""
        if capacity <= self.capacity:
            return
        old, self.capacity = self.cache, max(capacity, 2 * self.capacity)
        self.cache = self._model.new_cache(1, self.capacity)
        for layer in range(self._model.arch.n_layers):
            self.cache.append(layer, old.keys(layer), old.values(layer))

    def read(self, ids: Sequence[int]) -> Generator[None, None, Array]:
        """Return the logits after the last of some ids: a generator that yields between two passes.

        Meanwhile another text may be read: what that displaces is read again. The caller may also
        stop there.
        """
        ids = list(ids)
        if not 0 < len(ids) <= self.capacity:
            raise ValueError(f"ids must hold 1 … {self.capacity} tokens, got {len(ids)}")
        while (n_known := self.n_known(ids)) < len(ids):
            self.cache.truncate(n_known)
            self._ids, self._logits = ids[:n_known], None
            piece = ids[n_known : n_known + _PIECE]
            features = self._model.features([piece], self.cache)
            self._ids += piece
            if len(self._ids) < len(ids):
                yield
            else:
                self._logits = self._model.logits(features[0, -1])
        assert self._logits is not None  # all is known
        return self._logits
