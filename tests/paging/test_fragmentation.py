"""Fragmentation: every slot is counted once, and the shares are those of the paper."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttoken.paging import RESERVATIONS, Waste, fragmentation, last_block_waste, memory_waste


@given(block_size=st.integers(1, 300), periods=st.integers(1, 5))
def test_mean_waste_of_the_last_block(block_size, periods):
    """(b - 1)/2 over whole periods of lengths; never more than b - 1."""
    waste = last_block_waste(np.arange(1, periods * block_size + 1), block_size)
    assert waste.mean() == (block_size - 1) / 2
    assert 0 <= waste.min() <= waste.max() == block_size - 1


def test_the_paper_s_shares():
    """Fig. 2 of arXiv:2309.06180, OPT-13B on an A100: the order and about the size.

    Its trace is not public: lengths are log-normal with the means of ShareGPT, fig. 11.
    """
    rng, shape = np.random.default_rng(0), np.sqrt(np.log(2))  # standard deviation = mean
    columns = [rng.lognormal(np.log(m) - shape**2 / 2, shape, 1000) for m in (161.31, 337.99)]
    lengths = np.clip(np.ceil(columns), 1, 1000).astype(int).T.tolist()
    n_slots = 12 * 2**30 // 819_200  # 12 GB of cache, table 1
    published = {"max": 0.204, "pow2": 0.268, "oracle": 0.382, "paged": 0.963}
    for policy, share in published.items():
        assert abs(memory_waste(lengths, n_slots, policy).used - share) < 0.05


some_lengths = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=25
).map(lambda lengths: lengths + [(40, 40)] * 40)  # enough that someone waits


@settings(max_examples=50)
@given(
    lengths=some_lengths,
    policy=st.sampled_from(RESERVATIONS),
    allocator=st.sampled_from(["buddy", "first_fit"]),
    n_slots=st.integers(128, 700),
    block_size=st.integers(1, 40),
)
def test_every_slot_is_counted_once(lengths, policy, allocator, n_slots, block_size):
    waste = memory_waste(
        lengths, n_slots, policy, max_length=100, block_size=block_size, allocator=allocator
    )
    shares = (waste.used, waste.reservation, waste.internal, waste.external)
    assert min(shares) >= -1e-12
    assert sum(shares) == pytest.approx(1)
    if policy == "oracle":
        assert waste.internal == 0
    if policy == "paged":  # at most one block per request is not full
        held = waste.reservation + waste.internal
        assert held * n_slots <= waste.batch * (block_size - 1) + 1e-9
    assert waste.batch * 2 <= n_slots


def test_waste_by_hand():
    """Three tokens held, places for tokens to come and for none, free ones; summed over 3 steps."""
    for policy, allocator, n_slots, (*parts, n_running) in (
        # Two at a time, in places of 8: they hold 3, 4 and 5 tokens each, need 6, and leave.
        ("max", "first_fit", 16, (6 + 8 + 10, 6 + 4 + 2, 3 * 4, 0, 3 * 2)),
        # Three output tokens are rounded up to four: places of 7, and of 8 for the buddies.
        ("pow2", "first_fit", 16, (6 + 8 + 10, 6 + 4 + 2, 3 * 2, 3 * 2, 3 * 2)),
        ("pow2", "buddy", 16, (6 + 8 + 10, 6 + 4 + 2, 3 * 2, 3 * 2, 3 * 2)),
        ("oracle", "first_fit", 12, (6 + 8 + 10, 6 + 4 + 2, 0, 0, 3 * 2)),
        ("oracle", "buddy", 19, (6 + 8 + 10, 6 + 4 + 2, 0, 3 * 7, 3 * 2)),
        # Four start, in a block of four each. All blocks are full after the first step, so the two
        # that came last make room for the others; a slot that two blocks leave is of no use.
        ("paged", "buddy", 17, (12 + 16 + 10, 4 + 0 + 2, 2 * 2, 3 * 1, 4 + 4 + 2)),
    ):
        options = {"max_length": 8, "block_size": 4, "allocator": allocator}
        requests = [(3, 3)] * (5 if policy == "paged" else 3)
        got = memory_waste(requests, n_slots, policy, **options)
        shares = (pytest.approx(part / (3 * n_slots)) for part in parts)
        assert got == Waste(*shares, n_running / 3), (policy, allocator)


def test_places_by_hand():
    """First fit takes the first hole that is large enough; buddies halve the smallest piece."""
    memory = fragmentation._FirstFit(10)
    assert [memory.place(size) for size in (2, 1, 3, 2)] == [(0, 2), (2, 1), (3, 3), (6, 2)]
    memory.release(0, 2)
    memory.release(3, 3)
    assert [memory.place(size) for size in (3, 1, 2, 1)] == [(3, 3), (0, 1), (8, 2), (1, 1)]
    assert memory.place(1) is None
    memory = fragmentation._Buddy(12)
    assert [memory.place(size) for size in (3, 3, 1, 2)] == [(8, 4), (0, 4), (4, 1), (6, 2)]
    memory.release(0, 4)
    assert memory.place(5) is None  # its other half is in use
    assert memory.place(1) == (5, 1) and memory.place(4) == (0, 4)


@given(
    kind=st.sampled_from(["buddy", "first_fit"]),
    n_slots=st.integers(1, 200),
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=60),
)
def test_allocators_hand_out_every_slot_once(kind, n_slots, steps):
    memory = fragmentation._ALLOCATORS[kind](n_slots)
    whole = copy.deepcopy(vars(memory))
    places = []
    for release, n in steps:
        if release and places:
            memory.release(*places.pop(n % len(places)))
            continue
        place = memory.place(n)
        taken = np.zeros(n_slots, dtype=int)
        for start, size in places:
            taken[start : start + size] += 1
        if place is None:
            holes = "".join(map(str, taken)).split("1")
            if kind == "first_fit":
                assert max(map(len, holes)) < n
            else:  # no free aligned power of two is large enough
                size = 1 << (n - 1).bit_length()
                starts = range(0, n_slots - size + 1, size)
                assert all(taken[at : at + size].any() for at in starts)
            continue
        start, size = place
        assert 0 <= start < start + size <= n_slots
        assert size >= n
        assert not taken[start : start + size].any()
        places.append(place)
    for place in places:
        memory.release(*place)
    assert vars(memory) == whole


def test_what_cannot_be():
    def refused(message, function, *arguments, **options):
        with pytest.raises(ValueError, match=message):
            function(*arguments, **options)

    count, one = "must be an integer of at least", [(1, 1)]
    refused(r"n_tokens must be integers of at least 0, got \[-3\]", last_block_waste, [-3], 16)
    refused(f"^block_size {count} 1, got 0", last_block_waste, [1], 0)
    refused("policy must be one of max, pow2", memory_waste, one, 9, "lru")
    refused("allocator must be one of", memory_waste, one, 9, "max", allocator="slab")
    refused("^lengths: n_prompt must be an integer", memory_waste, [(0, 1)], 9, "max")
    refused(f"^n_slots {count} 1", memory_waste, one, 0, "max")
    refused("all fit into 16 slots at once", memory_waste, [], 16, "paged")
    refused("at most max_length 17", memory_waste, [(9, 9)], 9, "max", max_length=17)
    refused("can never be placed in 9 slots", memory_waste, one, 9, "max")
    refused("18 tokens can never run in 16 slots", memory_waste, [(9, 9)], 16, "paged")


def test_the_smallest_memory_and_defaults():
    """Two slots for requests of two tokens: one at a time, or two that have a block for one."""
    lengths = [(10 + i % 7, 20 + i % 5) for i in range(400)]
    options = {"max_length": 2048, "block_size": 16, "allocator": "buddy"}
    for policy in RESERVATIONS:
        got = memory_waste([(1, 1)] * 3, 2, policy, max_length=2, block_size=1)
        assert got == (Waste(1, 0, 0, 0, 2) if policy == "paged" else Waste(0.5, 0.5, 0, 0, 1))
        said = memory_waste(lengths, 5000, policy, **options)
        assert memory_waste(lengths, 5000, policy) == said
