"""One pass of the model over the new tokens of many requests."""

import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import cast

import numpy as np

from firsttoken.engine.requests import EngineRequest
from firsttoken.engine.scheduler import Scheduled
from firsttoken.models.llama import Llama
from firsttoken.models.lora import AdaptedModel, Adapter
from firsttoken.models.protocols import Cache, Model, ragged_rows
from firsttoken.models.threads import blas_threads
from firsttoken.paging import PagedBatch, PagedSequence

Array = np.ndarray


class ForwardPass:
    """Returns the logits behind the new tokens of each request, with its adapter.

    Many tokens go through the model in parts, the first of them first: what a layer makes of a part
    is still in the processor's cache when the next product needs it.

    Raises: ValueError as `lora.AdaptedModel`.
    """

    def __init__(self, model: Model, adapters: Mapping[str, Adapter]) -> None:
        self._model, self._part = model, sys.maxsize  # _part: tokens at a time
        if type(model) is Llama:
            self._model, self._part = PagedLlama(model), PagedLlama.part
        self._adapted = AdaptedModel(self._model, adapters) if adapters else None

    def __call__(self, batch: Sequence[Scheduled]) -> list[Array]:
        """Compute the tokens of a batch: logits (T_i, V) for its i-th."""
        tokens = [(i, token) for i, scheduled in enumerate(batch) for token in scheduled.tokens]
        found: list[list[Array]] = [[] for _ in batch]
        for start in range(0, len(tokens), self._part):
            part = groupby(tokens[start : start + self._part], key=itemgetter(0))
            rows = {i: [token for _, token in of_one] for i, of_one in part}
            logits = self._forward(list(rows.values()), [batch[i].request for i in rows])
            for i, after in zip(rows, logits, strict=True):
                found[i].append(np.asarray(after))
        return [np.concatenate(parts) if len(parts) > 1 else parts[0] for parts in found]

    def _forward(self, tokens: list[list[int]], requests: list[EngineRequest]) -> list[Array]:
        caches = [cast(PagedSequence, request.cache) for request in requests]
        if self._adapted is None:
            return self._model.forward_ragged(tokens, caches)
        adapters = [request.options.adapter for request in requests]
        return self._adapted.forward_ragged(tokens, caches, adapters)


class PagedLlama(Llama):
    """A Llama whose sequences attend together in a pass; its arrays are those of the given one.

    Alone each of them would ask its cache for keys and values, and attend by itself. A `part` is as
    many tokens as go through all layers fastest, one by one.
    """

    part = 64

    def __init__(self, model: Llama) -> None:
        vars(self).update(vars(model))

    def forward_ragged(
        self, tokens: Sequence[Sequence[int]], caches: Sequence[Cache]
    ) -> list[Array]:
        """Continue several sequences of one `PagedCache`; return the logits (T_i, V) of each."""
        rows = ragged_rows(self.arch, tokens, caches)
        sizes = [row.shape[1] for row in rows]
        batch = PagedBatch(cast(Sequence[PagedSequence], caches), sizes)
        positions = [self._positions(*pair) for pair in zip(sizes, caches, strict=True)]

        def attend(layer: int, q: Array, k: Array, v: Array) -> Array:
            return batch.attend(layer, q, k, v, self.windows[layer])

        x = self.embedding[np.concatenate(rows, axis=1)]
        with blas_threads(self.n_threads):
            features = self._transform(x, np.concatenate(positions), attend)
        return np.split(self.logits(features)[0], np.cumsum(sizes)[:-1])
