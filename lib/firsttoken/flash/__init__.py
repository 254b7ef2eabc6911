"""FlashAttention: chapter 07.

`attention` computes block by block, `traffic` counts the bytes, and `flash_torch` has the same in
PyTorch.
"""

from firsttoken.flash.attention import (
    Step,
    attention_part,
    flash_attention,
    flash_steps,
    merge,
    split_kv_attention,
)
from firsttoken.flash.traffic import (
    io_bound_bytes,
    io_bytes,
    max_block,
    naive_io_bytes,
    smallest_io_bytes,
    working_set_bytes,
)

__all__ = [
    "Step",
    "attention_part",
    "flash_attention",
    "flash_steps",
    "io_bound_bytes",
    "io_bytes",
    "max_block",
    "merge",
    "naive_io_bytes",
    "smallest_io_bytes",
    "split_kv_attention",
    "working_set_bytes",
]
