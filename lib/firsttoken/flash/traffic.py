"""The bytes that FlashAttention moves, and the least that any order of the work can move."""

import math

from firsttoken.checks import check_count
from firsttoken.units import bytes_per_element


def io_bytes(
    n_q: int, n_k: int, head_dim: int, block_q: int, block_k: int, dtype: str = "bf16"
) -> int:
    """Return the bytes that `flash_attention` moves to and from slow memory, for one head.

    Without a mask: q is read and o written once, k and v are read once per block of queries. So
    `block_k` makes no difference to the bytes; it decides what fits beside the queries.

    Holds:  for what leaves a processor's own memory. A cache that processors share answers most of
            these reads where it holds k and v, so that time does not follow from the bytes alone.
    Units:  bytes
    Raises: ValueError for negative counts, blocks below 1, and an unknown dtype.
    Source: Dao 2023, arXiv:2307.08691, alg. 1; compare Dao et al. 2022, arXiv:2205.14135, th. 2

    >>> io_bytes(1024, 1024, 64, block_q=1024, block_k=64)  # q, k, v, o once: the least possible
    524288
    """
    _check_sizes(n_q, n_k, head_dim)
    check_count("block_q", block_q, at_least=1)
    check_count("block_k", block_k, at_least=1)
    n_passes = math.ceil(n_q / block_q)  # over k and v
    return _bytes(2 * (n_q + n_passes * n_k) * head_dim, dtype)


def naive_io_bytes(n_q: int, n_k: int, head_dim: int, dtype: str = "bf16") -> int:
    """Return the bytes that attention moves for one head when its scores go to slow memory.

    Three programs run one after the other: q·k writes the scores, the softmax reads them and writes
    probabilities, and the mixing reads those. q, k, v and o are moved once each.

    Holds:  where the scores outgrow every cache. A mask that is a pass of its own moves more.
    Units:  bytes
    Raises: ValueError for negative counts and an unknown dtype.
    Source: Dao et al. 2022, arXiv:2205.14135, alg. 0

    >>> naive_io_bytes(1024, 1024, 64)
    8912896
    """
    _check_sizes(n_q, n_k, head_dim)
    return _bytes(4 * n_q * n_k + 2 * (n_q + n_k) * head_dim, dtype)


def working_set_bytes(block_q: int, block_k: int, head_dim: int, dtype: str = "bf16") -> int:
    """Return the fast memory that one step of `flash_attention` needs.

    Blocks of q, k and v in `dtype`; in fp32 the scores, the running result, and each query's peak
    and total.

    Holds:  where one memory has it all. Where the fp32 part lies in registers, shared memory needs
            less (64 of 161 KiB for blocks of 128 and 64, heads of 128); blocks that are loaded
            ahead need more.
    Units:  bytes
    Raises: ValueError for blocks below 1, a negative size of the head, and an unknown dtype.

    >>> working_set_bytes(64, 64, 64)
    57856
    """
    check_count("block_q", block_q, at_least=1)
    check_count("block_k", block_k, at_least=1)
    check_count("head_dim", head_dim)
    loaded = _bytes((block_q + 2 * block_k) * head_dim, dtype)
    return loaded + _bytes(block_q * (block_k + head_dim + 2), "fp32")


def max_block(
    fast_bytes: int, head_dim: int, dtype: str = "bf16", block_k: int | None = None
) -> int:
    """Return the most queries per block whose `working_set_bytes` fit in fast memory.

    `block_k` is as given; None means as many keys as queries. 0: not even one query fits.

    Holds:  as `working_set_bytes`. Matrix units want multiples of 16 or more, so that a program's
            block is smaller.
    Units:  bytes
    Raises: ValueError for a negative size, a block_k below 1 and an unknown dtype.

    >>> max_block(163 * 1024, head_dim=128)  # an A100's, for one block of threads
    99
    """
    check_count("fast_bytes", fast_bytes)

    def fits(block_q: int) -> bool:
        beside = block_q if block_k is None else block_k
        return working_set_bytes(block_q, beside, head_dim, dtype) <= fast_bytes

    if not fits(1):
        return 0
    low, high = 1, fast_bytes + 1  # the first fits; the last does not: a query takes over a byte
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def smallest_io_bytes(
    n_q: int, n_k: int, head_dim: int, fast_bytes: int, dtype: str = "bf16"
) -> int:
    """Return the fewest bytes that `flash_attention` can move with this much fast memory.

    The keys come one by one, and the queries have all the room that is left. Real programs take
    blocks of keys instead, since matrix units want matrices.

    Units:  bytes
    Raises: ValueError where not even one query fits, and as `io_bytes`.

    >>> smallest_io_bytes(1024, 1024, 64, fast_bytes=163 * 1024)
    1048576
    """
    block_q = max_block(fast_bytes, head_dim, dtype, block_k=1)
    if block_q == 0:
        needed = working_set_bytes(1, 1, head_dim, dtype)
        raise ValueError(f"fast_bytes must hold one query and one key, {needed}; got {fast_bytes}")
    return io_bytes(n_q, n_k, head_dim, block_q, 1, dtype)


def io_bound_bytes(
    n_q: int, n_k: int, head_dim: int, fast_bytes: int, dtype: str = "bf16"
) -> float:
    """Return the paper's order of growth, n_q · n_k · H² / M numbers, in bytes.

    M is how many numbers fast memory holds. FlashAttention moves that much up to a constant factor,
    for M from H to N·H numbers, and no exact attention grows slower over that whole range.

    Holds:  as an order of growth. For a larger M it falls below the bytes of q, k, v and o alone.
    Units:  bytes
    Raises: ValueError for negative counts, fast_bytes below 1 and an unknown dtype.
    Source: Dao et al. 2022, arXiv:2205.14135, th. 2 and prop. 3 (for N = n_q = n_k, d = H)

    >>> io_bound_bytes(1024, 1024, 64, fast_bytes=2 * 1024 * 64)  # M = N·H: all of k fits
    131072.0
    """
    _check_sizes(n_q, n_k, head_dim)
    check_count("fast_bytes", fast_bytes, at_least=1)
    size = bytes_per_element(dtype)
    return n_q * n_k * head_dim**2 / (fast_bytes / size) * size


def _check_sizes(n_q: int, n_k: int, head_dim: int) -> None:
    for name, value in (("n_q", n_q), ("n_k", n_k), ("head_dim", head_dim)):
        check_count(name, value)


def _bytes(n_numbers: int, dtype: str) -> int:
    return math.ceil(n_numbers * bytes_per_element(dtype))
