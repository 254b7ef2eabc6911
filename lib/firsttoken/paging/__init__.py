"""The KV cache in blocks: memory on demand, shared prefixes, and attention that reads through it.

Each file is one idea: `pool` (who holds which block), `cache` (the keys and values in the blocks),
`attention` (reading them through a block table), `batch` (many requests in one pass),
`fragmentation` (what contiguous memory wastes) and `prefix_routing` (chats over several caches).
"""

from firsttoken.paging.attention import paged_attention
from firsttoken.paging.batch import PagedBatch
from firsttoken.paging.cache import PagedCache, PagedSequence
from firsttoken.paging.fragmentation import RESERVATIONS, Waste, last_block_waste, memory_waste
from firsttoken.paging.pool import BlockPool, OutOfBlocks, Usage
from firsttoken.paging.prefix_routing import ROUTES, Replay, Turn, chat_trace, replay

__all__ = [
    "RESERVATIONS",
    "ROUTES",
    "BlockPool",
    "OutOfBlocks",
    "PagedBatch",
    "PagedCache",
    "PagedSequence",
    "Replay",
    "Turn",
    "Usage",
    "Waste",
    "chat_trace",
    "last_block_waste",
    "memory_waste",
    "paged_attention",
    "replay",
]
