"""Collectives: how n devices add up, gather or exchange arrays; bytes, seconds, and every round.

The sizes say which array is meant: `n_bytes` is the whole of it, after gathering, before
scattering; for an all-to-all it is what one device holds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from firsttoken.checks import check_choice, check_count
from firsttoken.hardware import LINKS, Link

# What NCCL 2.30.7 assumes of a ring within a node (src/graph/tuning.cc): LL sends a flag with each
# four bytes, so it waits little and moves half at most, on NVLink less; Simple moves all.
_LL_BANDWIDTH = {"NVLink-3": 87.7e9, "NVLink-4": 141e9, "NVLink-5": 282e9}  # llMaxBws
_SIMPLE_LATENCY_S = {"NVLink": 3.4e-6, "PCIe": 5.7e-6}  # hwLatencies; of a network 14.0 µs
PROTOCOLS = ("LL", "Simple")
SUMS = ("ring", "one shot", "fastest")


def ring_all_reduce_s(
    n_bytes: float, n: int, link_bandwidth: float | None, latency_s: float = 0.0
) -> float:
    """Return the time in which n devices in a ring add up an array that each of them holds.

    The array is cut into n pieces. In n - 1 rounds every device sends one piece to its right
    neighbour, which adds its own; then each piece is complete on one device. In n - 1 more rounds
    the complete pieces go round. All links are busy all the time, so that the bytes that a device
    sends hardly grow with n, at most 2·n_bytes: it is the 2·(n - 1) rounds that many devices pay.

    It holds for a ring, as libraries take it for long arrays. Short ones, such as the activations
    of one token, are added up in one shot: see `one_shot_all_reduce_s`. Latency and bandwidth must
    belong to one protocol: see `in_protocol`.

    Units:  bytes, bytes/s in one direction, seconds; `latency_s` is that of one round.
    Raises: ValueError for an n that is no positive integer, negative bytes or latency, and for
            more than one device without a positive bandwidth.
    Source: Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002

    >>> ring_all_reduce_s(450e9, n=8, link_bandwidth=450e9)
    1.75
    >>> ring_all_reduce_s(450e9, n=1, link_bandwidth=None)
    0.0
    """
    return 2 * all_gather_s(n_bytes, n, link_bandwidth, latency_s)


def one_shot_all_reduce_s(
    n_bytes: float, n: int, link_bandwidth: float | None, latency_s: float = 0.0
) -> float:
    """Return the time in which n devices add up an array that each sends whole to each other one.

    A device's n - 1 copies follow one another through its link, and it waits once, not
    2·(n - 1) times as in a ring. So it is faster for short arrays, and slower for long ones with
    more than two devices.

    It holds where each device reaches every other one directly, as NVLink through a switch.

    Units:  bytes, bytes/s in one direction, seconds
    Raises: ValueError as `ring_all_reduce_s`.
    Source: vLLM csrc/custom_all_reduce.cuh, `cross_device_reduce_1stage`

    >>> one_shot_all_reduce_s(450e9, n=8, link_bandwidth=450e9, latency_s=0.5)
    7.5
    """
    rounds = all_gather_s(n_bytes, n, link_bandwidth, latency_s)  # checks what came
    return n * (rounds - (n - 1) * latency_s) + latency_s if n > 1 else 0.0


def in_protocol(link: Link, protocol: str) -> Link:
    """Return one of `hardware.LINKS` as NCCL's rings have it in a protocol, "LL" or "Simple".

    LL waits little in each round and moves a half of the bandwidth at most; Simple moves all of it
    and waits five times as long. NCCL takes one of them for a message, the faster.

    Raises: ValueError for another protocol, and for a link that is not in the table.
    Source: NCCL 2.30.7, src/graph/tuning.cc: hwLatencies, llMaxBws, ring LL and ring Simple

    >>> fast, full = (in_protocol(LINKS["NVLink-4"], p) for p in PROTOCOLS)
    >>> fast.bandwidth / 1e9, full.bandwidth / 1e9
    (141.0, 450.0)
    """
    check_choice("protocol", protocol, PROTOCOLS)
    if LINKS.get(link.name) != link:
        raise ValueError(f"link must be one of {tuple(LINKS)}, got {link!r}")
    kind = link.name.split("-")[0]
    latency_s, bandwidth = link.latency_s, link.bandwidth
    if protocol == "LL":
        bandwidth = _LL_BANDWIDTH.get(link.name, bandwidth / 2)
    else:
        latency_s = _SIMPLE_LATENCY_S.get(kind, 14.0e-6)
    return Link(f"{link.name}, {protocol}", bandwidth, latency_s, link.source)


def all_reduce_s(n_bytes: float, n: int, link: Link, way: str = "fastest") -> float:
    """Return the time of an all-reduce on one of `hardware.LINKS`, in one protocol.

    way:    "ring", in the faster protocol; "one shot", in LL; or "fastest", the faster of both

    Starting a collective, some microseconds more, is left out.

    Units:  bytes, seconds
    Raises: ValueError for another way, and as `ring_all_reduce_s` and `in_protocol`.

    >>> nvlink = LINKS["NVLink-4"]  # a token of 8,192 numbers, then 4,096 tokens
    >>> [f"{1e6 * all_reduce_s(n * 16384, 8, nvlink, 'ring'):.0f} µs" for n in (1, 4096)]
    ['9 µs', '309 µs']
    >>> [f"{1e6 * all_reduce_s(n * 16384, 8, nvlink, 'one shot'):.0f} µs" for n in (1, 4096)]
    ['1 µs', '3332 µs']
    """
    check_choice("way", way, SUMS)
    fast, full = (in_protocol(link, protocol) for protocol in PROTOCOLS)
    rings = [ring_all_reduce_s(n_bytes, n, w.bandwidth, w.latency_s) for w in (fast, full)]
    shot = one_shot_all_reduce_s(n_bytes, n, fast.bandwidth, fast.latency_s)
    return {"ring": min(rings), "one shot": shot, "fastest": min(*rings, shot)}[way]


def all_gather_s(
    n_bytes: float, n: int, link_bandwidth: float | None, latency_s: float = 0.0
) -> float:
    """Return the time in which n devices in a ring all get an array of which each holds a piece.

    In n - 1 rounds every device sends on the piece that came last: (n - 1)/n of the array.

    Holds:  for a ring of equal links and equal pieces; the slowest link sets the time of all. Where
            each device reaches every other one directly, short arrays wait once, not n - 1 times:
            then it is too long.
    Units:  bytes, bytes/s in one direction, seconds; `latency_s` is that of one round.
    Raises: ValueError as `ring_all_reduce_s`.
    Source: Chan et al. 2007, doi:10.1002/cpe.1206

    >>> all_gather_s(450e9, n=8, link_bandwidth=450e9)
    0.875
    """
    check_count("n", n, at_least=1)
    for name, value in (("n_bytes", n_bytes), ("latency_s", latency_s)):
        if not value >= 0:
            raise ValueError(f"{name} must not be negative, got {value!r}")
    if n == 1:
        return 0.0
    if link_bandwidth is None or not link_bandwidth > 0:
        raise ValueError(
            f"n {n} devices need a link: link_bandwidth must be positive, got {link_bandwidth!r}"
        )
    return (n - 1) * (n_bytes / n / link_bandwidth + latency_s)


def reduce_scatter_s(
    n_bytes: float, n: int, link_bandwidth: float | None, latency_s: float = 0.0
) -> float:
    """Return the time in which n devices add up an array, of which each keeps one piece.

    It is the first half of an all-reduce, and an all-gather played backwards.

    Holds:  as `all_gather_s`, and where adding takes no time beside sending; else it is too short.
    Units:  bytes, bytes/s in one direction, seconds; `latency_s` is that of one round.
    Raises: ValueError as `ring_all_reduce_s`.
    Source: Chan et al. 2007, doi:10.1002/cpe.1206

    >>> reduce_scatter_s(450e9, n=8, link_bandwidth=450e9)
    0.875
    """
    return all_gather_s(n_bytes, n, link_bandwidth, latency_s)


def all_to_all_s(
    n_bytes: float, n: int, link_bandwidth: float | None, latency_s: float = 0.0
) -> float:
    """Return the time in which each of n devices sends each other one the nth part of its bytes.

    In n - 1 rounds every device sends to another partner, and keeps its own part. Each is assumed
    to reach every other one at full rate, as through a switch.

    Holds:  for equal parts. Where one device gets twice as much as the others, all wait for it:
            too short by nearly half. Across nodes, the link between them decides.
    Units:  `n_bytes`: what one device holds; bytes/s in one direction, seconds.
    Raises: ValueError as `ring_all_reduce_s`.
    Source: Thakur, Rabenseifner & Gropp 2005, doi:10.1177/1094342005051521

    >>> all_to_all_s(450e9, n=8, link_bandwidth=450e9)
    0.875
    """
    return all_gather_s(n_bytes, n, link_bandwidth, latency_s)


def all_reduce_bytes(n_bytes: int, n: int) -> int:
    """Return the bytes that all n devices of a ring all-reduce send, together.

    Each of the pieces makes 2·(n - 1) hops, so the sum is exact however the array is cut.

    Holds:  for a ring. In one shot devices send n/2 times as much; with a switch that adds, less.
    Raises: ValueError for an n that is no positive integer, and for bytes that are no count.

    >>> all_reduce_bytes(1000, n=4)
    6000
    """
    return 2 * all_gather_bytes(n_bytes, n)


def all_gather_bytes(n_bytes: int, n: int) -> int:
    """Return the bytes that all n devices of an all-gather send, together: n - 1 hops a piece.

    Holds:  where each copy is sent by a device. A switch that copies makes it less.
    Raises: ValueError as `all_reduce_bytes`.
    """
    return (check_count("n", n, at_least=1) - 1) * check_count("n_bytes", n_bytes)


def reduce_scatter_bytes(n_bytes: int, n: int) -> int:
    """Return the bytes that all n devices of a reduce-scatter send, together: n - 1 hops a piece.

    Raises: ValueError as `all_reduce_bytes`.
    """
    return all_gather_bytes(n_bytes, n)


def all_to_all_bytes(n_bytes: int, n: int) -> int:
    """Return the bytes that all n devices of an even all-to-all send: all but what each keeps.

    `n_bytes` is what one device holds, a multiple of n.

    Raises: ValueError as `all_reduce_bytes`, and for bytes that n does not divide.
    """
    if check_count("n_bytes", n_bytes) % check_count("n", n, at_least=1):
        raise ValueError(f"n_bytes {n_bytes} must be a multiple of n {n}")
    return all_gather_bytes(n_bytes, n)


def dispatch_bytes(counts: Sequence[Sequence[int]], bytes_per_token: int) -> int:
    """Return the bytes of an uneven all-to-all: device i sends counts[i][j] tokens to device j.

    What a device sends itself crosses no link.

    Raises: ValueError for counts that are no square, and for what is no count.

    >>> dispatch_bytes([[5, 1], [7, 2]], bytes_per_token=100)
    800
    """
    check_count("bytes_per_token", bytes_per_token)
    for row in counts:
        if len(row) != len(counts):
            raise ValueError(f"counts must be square, got {len(counts)} rows and one of {len(row)}")
    sent = sum(
        check_count("counts", int(tokens))
        for i, row in enumerate(counts)
        for j, tokens in enumerate(row)
        if i != j
    )
    return sent * bytes_per_token


def fit_link(
    n: int, small: tuple[float, float], large: tuple[float, float], n_passes: int = 2
) -> tuple[float, float]:
    """Return (latency_s, link_bandwidth) that give the times of two sizes exactly.

    small, large:  (n_bytes, seconds) of one collective on n devices
    n_passes:      2 for an all-reduce, 1 for the others

    Holds:  where one way of sending serves both sizes. Across a change of protocol the sizes in
            between come out too short (by 40 % in a ring of eight on NVLink-4), larger ones too
            long.
    Units:  seconds of one round, bytes/s
    Raises: ValueError for less than two devices, and where the larger array takes no longer: then
            the times are noise, and no bandwidth explains them.

    >>> fit_link(2, small=(0, 1.0), large=(8, 3.0), n_passes=2)
    (0.5, 4.0)
    """
    check_count("n", n, at_least=2)
    check_count("n_passes", n_passes, at_least=1)
    (few, short), (many, long) = small, large
    if not (many > few >= 0 and long > short > 0):
        raise ValueError(f"large {large} must have more bytes and take longer than small {small}")
    n_rounds = n_passes * (n - 1)
    seconds_per_byte = (long - short) / (many - few)  # of the whole array
    bandwidth = n_rounds / n / seconds_per_byte
    return (short - few * seconds_per_byte) / n_rounds, bandwidth


def ring_piece(device: int, round_index: int, n: int) -> int:
    """Return which of the n pieces a device sends to its right neighbour in a round.

    Rounds 0 … n - 2 add up: afterwards piece i is complete on device i. Rounds n - 1 … 2n - 3 hand
    the complete pieces on, and the rule is the same.

    >>> [ring_piece(0, round_index, n=3) for round_index in range(4)]
    [2, 1, 0, 2]
    """
    return (device - 1 - round_index) % n


@dataclass(frozen=True)
class RingRound:
    """One round of a ring all-reduce.

    `adds`: the receivers add what comes to what they have; later it takes its place. `sends` lists
    (sender, receiver, piece), `held` what each device has of each piece after the round.
    """

    index: int
    adds: bool
    sends: tuple[tuple[int, int, int], ...]
    held: tuple[tuple[Any, ...], ...]


def ring_rounds(arrays: Sequence[Sequence[Any]]) -> Iterator[RingRound]:
    """Yield the rounds of an all-reduce, one array of n pieces on each of n devices.

    Pieces are whatever can be added. Strings show whose parts a sum has.

    Raises: ValueError unless there are as many pieces in each array as there are arrays.
    Source: Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002

    >>> for step in ring_rounds(["aa", "bb"]):
    ...     print(step.sends, step.held)
    ((0, 1, 1), (1, 0, 0)) (('ba', 'a'), ('b', 'ab'))
    ((0, 1, 0), (1, 0, 1)) (('ba', 'ab'), ('ba', 'ab'))
    """
    n = len(arrays)
    held = [list(array) for array in arrays]
    for array in held:
        if len(array) != n:
            raise ValueError(f"arrays of {n} devices must have {n} pieces each, got {len(array)}")
    for index in range(2 * (n - 1)):
        adds = index < n - 1
        sends = tuple((d, (d + 1) % n, ring_piece(d, index, n)) for d in range(n))
        values = [held[sender][piece] for sender, _, piece in sends]  # all send at once
        for (_, receiver, piece), value in zip(sends, values, strict=True):
            held[receiver][piece] = value + held[receiver][piece] if adds else value
        yield RingRound(index, adds, sends, tuple(map(tuple, held)))
