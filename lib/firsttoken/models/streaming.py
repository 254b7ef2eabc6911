"""When the cache is full: drop the oldest tokens, go on, and see what it costs."""

from collections.abc import Callable, Sequence

import numpy as np

from firsttoken.checks import check_count
from firsttoken.kv_cache import KVCache
from firsttoken.models.llama import Llama
from firsttoken.models.protocols import Cache, Model
from firsttoken.models.rope import rotate
from firsttoken.sampling import softmax

Array = np.ndarray


def evict(model: Llama, cache: KVCache, n: int, sinks: int = 0) -> None:
    """Drop the n oldest tokens behind the first `sinks`, so that a full cache has room again.

    The later tokens move up: their keys are rotated back by n positions, as if the text had never
    held the dropped ones. But they have read those, and from the second layer on their keys and
    values still show it: only the first layer is as after a pass over the kept tokens alone. NumPy
    models only.

    Units:  n and sinks in tokens
    Raises: ValueError, and nothing is dropped, where the cache does not hold sinks + n tokens,
            or stores them in another format than fp32.
    Source: Xiao et al. 2023, arXiv:2309.17453, sec. 3.2 (positions within the cache)
    """
    if cache.dtype != "fp32":
        raise ValueError(f"cache stores {cache.dtype}: every call would round again; expected fp32")
    check_count("n", n, at_least=1)
    check_count("sinks", sinks)
    if sinks + n > cache.length:
        raise ValueError(f"n {n} and sinks {sinks} do not fit: the cache holds {cache.length}")
    angles = -n * model.frequencies  # rotations add up: this one takes n positions away
    turn = np.cos(angles), np.sin(angles)
    kept = []
    for layer in range(model.arch.n_layers):
        keys, values = (x[:, :, sinks + n :] for x in (cache.keys(layer), cache.values(layer)))
        kept.append((rotate(keys, *turn), values.copy()))
    cache.truncate(sinks)
    for layer, (keys, values) in enumerate(kept):
        cache.append(layer, keys, values)


def streaming_losses(
    model: Model,
    ids: Sequence[Sequence[int]] | Array,
    capacity: int,
    make_room: Callable[[Cache, Array], object],
) -> Array:
    """Return -log p of each token after the first, read one by one through a cache that fills up.

    Texts of one length are read side by side. Whenever the cache is full, `make_room(cache, seen)`
    is called with the tokens read so far, and must leave room for one more; with enough capacity
    it is never called, and the losses are those of `token_losses`.

    Shapes: ids (B, n) with n at least 2; seen (B, i); result (B, n - 1)
    Units:  nats; capacity in tokens.
    Raises: ValueError for other shapes, and a `make_room` that leaves no room.
    """
    ids = np.asarray(ids)
    if ids.ndim != 2 or ids.shape[1] < 2:
        raise ValueError(f"ids must have the shape (B, n) with n at least 2, got {ids.shape}")
    cache = model.new_cache(len(ids), capacity)
    losses = []
    for i in range(ids.shape[1] - 1):
        if cache.length == capacity:
            make_room(cache, ids[:, :i])
            if cache.length == capacity:
                raise ValueError(f"make_room left the cache full: {capacity} tokens")
        logits = np.asarray(model(ids[:, i : i + 1], cache))[:, -1]  # [B, V]
        distribution = softmax(logits.astype(np.float64))
        losses.append(-np.log(distribution[np.arange(len(ids)), ids[:, i + 1]]))
    return np.stack(losses, axis=1)
