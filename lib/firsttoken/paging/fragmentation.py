"""How much memory a cache wastes: contiguous places reserved in advance, and blocks on demand."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

import numpy as np

from firsttoken.checks import check_choice, check_count
from firsttoken.paging.pool import BlockPool, OutOfBlocks

Array = np.ndarray

RESERVATIONS = ("max", "pow2", "oracle", "paged")


@dataclass(frozen=True)
class Waste:
    """Where the memory for keys and values goes while requests wait: shares that add up to 1.

    used: holds a token. reservation: kept for a token that its request will still write.
    internal: kept for a request that will never need it. external: free, but of no use to the
    request that waits; what an allocator adds to round a size up counts here, as in the source.
    batch: how many requests run, on average.

    Source: Kwon et al. 2023, arXiv:2309.06180, sec. 3.1 and fig. 2
    """

    used: float
    reservation: float
    internal: float
    external: float
    batch: float


def memory_waste(
    lengths: Sequence[tuple[int, int]],
    n_slots: int,
    policy: str,
    *,
    max_length: int = 2048,
    block_size: int = 16,
    allocator: str = "buddy",
) -> Waste:
    """Serve requests from a memory of `n_slots` tokens and return what the memory was used for.

    All requests, (prompt tokens, output tokens), wait from the start and are admitted in order, as
    soon as the next one finds room. Each step gives every running request a token; a request with
    all its tokens leaves. Averaged over the steps in which someone waits: without that, free
    memory is no waste.

    A contiguous policy reserves at admission: "max" `max_length` tokens, "pow2" the prompt and
    the output rounded up to a power of two, "oracle" exactly what the request will need. The place
    is found by a "buddy" allocator (sizes and places are powers of two, neighbours merge) or by
    "first_fit" (the first hole that is large enough). "paged" takes blocks on demand from a
    `BlockPool`; when none is left, the request that came last gives its blocks up and waits again,
    before all others.

    Units:  tokens
    Raises: ValueError for an unknown policy or allocator, sizes below one, a request that can
            never run, and requests that all fit at once: then nothing is wasted by anyone.
    Source: Kwon et al. 2023, arXiv:2309.06180, sec. 6.1 (the three versions of Orca); Knuth, The
            Art of Computer Programming, vol. 1, sec. 2.5 (first fit and buddy system)

    >>> lengths = [(100, 28)] * 100
    >>> [round(memory_waste(lengths, 4096, policy).used, 3) for policy in RESERVATIONS]
    [0.055, 0.443, 0.887, 0.937]
    """
    check_choice("policy", policy, RESERVATIONS)
    check_choice("allocator", allocator, _ALLOCATORS)
    for name, value in (
        ("n_slots", n_slots),
        ("max_length", max_length),
        ("block_size", block_size),
    ):
        check_count(name, value, at_least=1)
    for n_prompt, n_output in lengths:
        check_count("lengths: n_prompt", n_prompt, at_least=1)
        check_count("lengths: n_output", n_output, at_least=1)
        if n_prompt + n_output > max_length:
            raise ValueError(
                f"lengths: {n_prompt} + {n_output} tokens, expected at most max_length {max_length}"
            )
    if policy == "paged":
        check_count("n_slots", n_slots, at_least=block_size)
        return _paged_waste(lengths, n_slots, block_size)
    reserve = {
        "max": lambda n_prompt, n_output: max_length,
        "pow2": lambda n_prompt, n_output: n_prompt + _round_up(n_output),
        "oracle": lambda n_prompt, n_output: n_prompt + n_output,
    }[policy]
    return _contiguous_waste(lengths, n_slots, reserve, _ALLOCATORS[allocator](n_slots))


def last_block_waste(n_tokens: Array, block_size: int) -> Array:
    """Return the empty slots in the last block of requests with these lengths.

    At most block_size - 1. Where lengths are spread evenly over the remainders of block_size, the
    mean is (block_size - 1)/2, whatever the lengths.

    Shapes: n_tokens and result (…,)
    Raises: ValueError for a block size below one, and lengths that are no counts.

    >>> waste = last_block_waste(np.arange(1, 1601), 16)
    >>> waste.max(), waste.mean()
    (np.int64(15), np.float64(7.5))
    """
    check_count("block_size", block_size, at_least=1)
    n_tokens = np.asarray(n_tokens)
    if not np.issubdtype(n_tokens.dtype, np.integer) or np.any(n_tokens < 0):
        raise ValueError(f"n_tokens must be integers of at least 0, got {n_tokens}")
    return -n_tokens % block_size


class _Allocator(Protocol):
    """Contiguous memory: `place` returns (start, size taken), or None where nothing fits."""

    def place(self, size: int) -> tuple[int, int] | None: ...

    def release(self, start: int, size: int) -> None: ...


class _FirstFit:
    """Takes the first hole that is large enough; holes that touch become one."""

    def __init__(self, n_slots: int) -> None:
        self.holes = [(0, n_slots)]  # (start, size), by start

    def place(self, size: int) -> tuple[int, int] | None:
        for i, (start, room) in enumerate(self.holes):
            if room >= size:
                self.holes[i : i + 1] = [(start + size, room - size)] if room > size else []
                return start, size
        return None

    def release(self, start: int, size: int) -> None:
        holes: list[tuple[int, int]] = []
        for first, room in sorted([*self.holes, (start, size)]):
            if holes and sum(holes[-1]) == first:
                first, room = holes[-1][0], holes.pop()[1] + room
            holes.append((first, room))
        self.holes = holes


class _Buddy:
    """Hands out powers of two: a larger piece is halved, two free halves become one again."""

    def __init__(self, n_slots: int) -> None:
        self.free: dict[int, set[int]] = {1 << i: set() for i in range(n_slots.bit_length())}
        start = 0
        for size in sorted(self.free, reverse=True):  # the binary digits of n_slots
            if n_slots & size:
                self.free[size].add(start)
                start += size

    def place(self, size: int) -> tuple[int, int] | None:
        size = _round_up(size)
        room = next((s for s, starts in self.free.items() if s >= size and starts), None)
        if room is None:
            return None
        start = min(self.free[room])
        self.free[room].remove(start)
        while room > size:
            room //= 2
            self.free[room].add(start + room)
        return start, size

    def release(self, start: int, size: int) -> None:
        while start ^ size in self.free[size]:  # the other half of the piece both came from
            self.free[size].remove(start ^ size)
            start, size = min(start, start ^ size), 2 * size
        self.free[size].add(start)


_ALLOCATORS: dict[str, Callable[[int], _Allocator]] = {"buddy": _Buddy, "first_fit": _FirstFit}


def _contiguous_waste(
    lengths: Sequence[tuple[int, int]],
    n_slots: int,
    reserve: Callable[[int, int], int],
    memory: _Allocator,
) -> Waste:
    queue = deque(lengths)
    running: list[tuple[int, tuple[int, int], int, int]] = []  # last step, place, needed, reserved
    held = needed = reserved = 0  # now, by all that run
    steps = used = reservation = internal = n_running = 0  # summed over the steps
    while True:
        while queue and (place := memory.place(reserve(*queue[0]))) is not None:
            n_prompt, n_output = queue.popleft()
            total, kept = n_prompt + n_output, reserve(n_prompt, n_output)
            heappush(running, (steps + n_output, place, total, kept))
            held, needed, reserved = held + n_prompt, needed + total, reserved + kept
        if not queue:
            return _shares(used, reservation, internal, n_running, steps, n_slots)
        if not running:
            raise ValueError(
                f"lengths: a request of {queue[0]} tokens can never be placed in {n_slots} slots"
            )
        used += held
        reservation += needed - held
        internal += reserved - needed
        steps += 1
        n_running += len(running)
        held += len(running)
        while running and running[0][0] == steps:
            _, place, total, kept = heappop(running)
            memory.release(*place)
            held, needed, reserved = held - total, needed - total, reserved - kept


def _paged_waste(lengths: Sequence[tuple[int, int]], n_slots: int, block_size: int) -> Waste:
    pool = BlockPool(n_slots // block_size, block_size)
    longest = max((sum(length) for length in lengths), default=0)
    if longest > pool.n_blocks * block_size:
        raise ValueError(f"lengths: a request of {longest} tokens can never run in {n_slots} slots")
    # A request is what it holds at admission, and its final length; its place in `lengths` its id.
    queue = deque((i, n_prompt, sum(lengths[i])) for i, (n_prompt, _) in enumerate(lengths))
    running: dict[int, int] = {}  # id to final length, in order of admission
    steps = used = reservation = internal = n_running = 0
    while True:
        while queue and pool.n_free >= math.ceil(queue[0][1] / block_size):
            i, n_tokens, total = queue.popleft()
            pool.allocate(i, range(n_tokens))
            running[i] = total
        if not queue:
            return _shares(used, reservation, internal, n_running, steps, n_slots)
        for i, total in running.items():
            n_tokens = pool.n_tokens(i)
            held = n_tokens + -n_tokens % block_size
            used += n_tokens
            reservation += min(held, total) - n_tokens
            internal += max(0, held - total)
        steps += 1
        n_running += len(running)
        for i in list(running):
            while i in running:
                try:
                    pool.append(i, 0)
                except OutOfBlocks:
                    last = next(reversed(running))
                    queue.appendleft((last, pool.n_tokens(last), running.pop(last)))
                    pool.free(last)
                else:
                    break
            if i in running and pool.n_tokens(i) == running[i]:
                pool.free(i)
                del running[i]


def _shares(
    used: int, reservation: int, internal: int, n_running: int, steps: int, n_slots: int
) -> Waste:
    """Turn sums over steps into shares of the memory."""
    if steps == 0:
        raise ValueError(f"lengths all fit into {n_slots} slots at once; expected some to wait")
    total = steps * n_slots
    kept = used + reservation + internal
    return Waste(
        used=used / total,
        reservation=reservation / total,
        internal=internal / total,
        external=1 - kept / total,
        batch=n_running / steps,
    )


def _round_up(size: int) -> int:
    """Return the smallest power of two that is not below `size`."""
    return 1 << (size - 1).bit_length()
