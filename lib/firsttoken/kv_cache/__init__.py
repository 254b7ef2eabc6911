"""The KV cache: its size in closed form, what fits beside the weights, and the cache itself.

`sizes` holds the closed forms, which need the standard library only and also run in a browser;
`cache` has the arrays. It is imported, and NumPy with it, when one of its names is first asked for.
"""

import importlib
from typing import TYPE_CHECKING

from firsttoken.kv_cache.sizes import (
    crossover_tokens,
    kv_cache_bytes,
    max_batch,
    max_context,
    state_bytes,
)

if TYPE_CHECKING:
    from firsttoken.kv_cache.cache import KVCache, RollingCache
else:

    def __getattr__(name):
        if name not in ("KVCache", "RollingCache"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module("firsttoken.kv_cache.cache"), name)


__all__ = [
    "KVCache",
    "RollingCache",
    "crossover_tokens",
    "kv_cache_bytes",
    "max_batch",
    "max_context",
    "state_bytes",
]
