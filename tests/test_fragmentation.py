"""fragmentation: every slot is counted once, and the shares are those of the paper."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttoken import fragmentation
from firsttoken.fragmentation import RESERVATIONS, Waste, last_block_waste, memory_waste


def test_waste_of_the_last_block():
    """Six lengths from a course, in blocks of 16: 17.9 % of the slots are empty."""
    lengths = np.array([10, 17, 33, 64, 65, 100])
    waste = last_block_waste(lengths, 16)
    assert waste.tolist() == [6, 15, 15, 0, 15, 12]
    assert round(waste.sum() / (lengths + waste).sum(), 3) == 0.179
    assert last_block_waste([0], 16).tolist() == [0]  # nothing yet: no block


@given(block_size=st.integers(1, 300), periods=st.integers(1, 5))
def test_mean_waste_of_the_last_block(block_size, periods):
    """(b - 1)/2 over whole periods of lengths; never more than b - 1."""
    waste = last_block_waste(np.arange(1, periods * block_size + 1), block_size)
    assert waste.mean() == (block_size - 1) / 2
    assert 0 <= waste.min() <= waste.max() == block_size - 1


def lognormal_lengths(n, rng):
    """Means of ShareGPT in the paper's fig. 11: 161 prompt tokens, 338 output tokens."""
    shape = np.sqrt(np.log(2))  # standard deviation = mean
    columns = [rng.lognormal(np.log(m) - shape**2 / 2, shape, n) for m in (161.31, 337.99)]
    return np.clip(np.ceil(columns), 1, 1000).astype(int).T.tolist()


PAPER_SLOTS = 12 * 2**30 // 819_200  # OPT-13B on a 40 GB A100: 12 GB of cache, table 1


def test_the_paper_s_shares():
    """Fig. 2 of arXiv:2309.06180: the order and about the size; its trace is not public."""
    lengths = lognormal_lengths(1000, np.random.default_rng(0))
    published = {"max": 0.204, "pow2": 0.268, "oracle": 0.382, "paged": 0.963}
    wastes = {policy: memory_waste(lengths, PAPER_SLOTS, policy) for policy in RESERVATIONS}
    for policy, share in published.items():
        assert abs(wastes[policy].used - share) < 0.05
    # Seven requests of 2,048 slots fit into 15,728, whatever their lengths: 8.9 % stay free.
    assert round(wastes["max"].external, 3) == 0.089
    assert wastes["max"].batch == 7
    # Exact lengths in a list of holes: the buddy allocator is a good part of the published waste.
    exact = memory_waste(lengths, PAPER_SLOTS, "oracle", allocator="first_fit")
    assert exact.external < wastes["oracle"].external / 2


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
        lengths,
        n_slots,
        policy,
        max_length=100,
        block_size=block_size,
        allocator=allocator,
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


def test_everybody_gets_all_tokens():
    """Equal requests, so the average can be written down: 4 at a time, prompts of 8, 8 more."""
    for policy in RESERVATIONS:
        waste = memory_waste([(8, 8)] * 40, 64, policy, max_length=16, block_size=8)
        if policy == "paged":
            assert waste.used > 11.5 / 16 and waste.batch > 4
        else:  # held before each of the eight steps: 8 … 15 of 16 slots
            assert waste == Waste(11.5 / 16, 4.5 / 16, 0, 0, 4)


def test_waste_by_hand():
    """Requests of three tokens and three more; for three steps one of them waits.

    The sums are over these steps: tokens held, places kept for tokens to come and for none, free
    places, and requests that run.
    """
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


def test_requests_of_unequal_length_by_hand():
    """Exact places in 10 slots: the third waits for one, the fourth for two."""
    lengths = [(2, 2), (1, 4), (3, 1), (4, 2)]
    # Step 1: places of 4 and 5, one slot free; 3 tokens held. Step 2: 5 tokens held; the first one
    # leaves. Step 3: the third one takes its place; 3 + 3 held of 4 + 5, and leaves after a token.
    # Step 4: the fourth needs 6 where 4 and 1 are free; 4 of 5 are held, and the second one leaves.
    got = memory_waste(lengths, 10, "oracle", max_length=8, allocator="first_fit")
    used, reserved, free = 3 + 5 + 6 + 4, 6 + 4 + 3 + 1, 1 + 1 + 1 + 5
    assert got == Waste(*(pytest.approx(x / 40) for x in (used, reserved, 0, free)), 7 / 4)


def test_places_by_hand():
    """First fit takes the first hole that is large enough; buddies halve the smallest piece.

    Twelve slots are a piece of eight and one of four.
    """
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
    refused("n_tokens must be integers of at least 0", last_block_waste, [2.5], 16)
    refused(f"^block_size {count} 1, got 0", last_block_waste, [1], 0)
    refused("policy must be one of max, pow2", memory_waste, one, 9, "lru")
    refused("allocator must be one of", memory_waste, one, 9, "max", allocator="slab")
    refused(f"n_output {count} 1", memory_waste, [(1, 0)], 9, "max")
    refused("^lengths: n_prompt must be an integer", memory_waste, [(0, 1)], 9, "max")
    refused(f"^n_slots {count} 1", memory_waste, one, 0, "max")
    refused(f"^n_slots {count} 16", memory_waste, one, 15, "paged")
    refused("^max_length must be an integer", memory_waste, one, 9, "max", max_length=0)
    refused("^block_size must be an", memory_waste, one, 9, "paged", block_size=0)
    refused("all fit into 16 slots at once", memory_waste, [], 16, "paged")
    refused("all fit into 64 slots at once", memory_waste, one, 64, "paged")
    refused("at most max_length 17", memory_waste, [(9, 9)], 9, "max", max_length=17)
    refused("can never be placed in 9 slots", memory_waste, one, 9, "max")
    refused("18 tokens can never run in 16 slots", memory_waste, [(9, 9)], 16, "paged")


def test_the_smallest_memory_and_defaults():
    """Two slots for requests of two tokens: one at a time, or two that have a block for one.

    Unless told, blocks of 16, places for 2,048 tokens, and powers of two, as in the paper.
    """
    lengths = [(10 + i % 7, 20 + i % 5) for i in range(400)]
    options = {"max_length": 2048, "block_size": 16, "allocator": "buddy"}
    for policy in RESERVATIONS:
        got = memory_waste([(1, 1)] * 3, 2, policy, max_length=2, block_size=1)
        assert got == (Waste(1, 0, 0, 0, 2) if policy == "paged" else Waste(0.5, 0.5, 0, 0, 1))
        said = memory_waste(lengths, 5000, policy, **options)
        assert memory_waste(lengths, 5000, policy) == said
