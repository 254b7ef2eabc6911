"""A pipeline: each device has some of the layers, and parts of a batch follow one another."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from firsttoken.checks import check_count


@dataclass(frozen=True)
class Slot:
    """A stage at work on one microbatch.

    Units: seconds on a clock that all stages share.
    """

    stage: int
    microbatch: int
    start_s: float
    end_s: float


def pipeline_bubble(n_stages: int, n_microbatches: int) -> float:
    """Return the share of the devices' time that is idle while a pipeline fills and empties.

    With equal stages a pass takes m + p - 1 slots, of which each stage works in m. It is a matter
    of one pass: where the next one follows at once, as in decoding with p microbatches in flight,
    nothing empties.

    Holds:  for equal stages and hops that take no time. Else it is too low: with one of four stages
            twice as slow, 0.47 in place of 0.27 (8 microbatches).
    Raises: ValueError for counts that are no positive integers.
    Source: Huang et al. 2018, arXiv:1811.06965, sec. 2.3

    >>> pipeline_bubble(n_stages=4, n_microbatches=1), pipeline_bubble(4, 12)
    (0.75, 0.2)
    """
    check_count("n_stages", n_stages, at_least=1)
    check_count("n_microbatches", n_microbatches, at_least=1)
    return (n_stages - 1) / (n_microbatches + n_stages - 1)


def pipeline_step_s(stage_s: Sequence[float], n_microbatches: int, hop_s: float = 0.0) -> float:
    """Return the time in which microbatches pass through all stages, one after another.

    The first one meets no queue; every other one comes out one turn of the slowest stage later.
    `hop_s`: handing a microbatch to the next stage, which goes on while the stage works on.

    Holds:  for equal microbatches. Where a hop takes longer than the slowest stage and the link
            carries one at a time, it is too short: then the link is the slowest stage.
    Units:  seconds; `stage_s`: what each stage takes for one microbatch.
    Raises: ValueError for no stages, negative times, and no microbatch.

    >>> pipeline_step_s([1.0, 2.0, 1.0], n_microbatches=3)
    8.0
    """
    _check_stages(stage_s, n_microbatches, hop_s)
    passage = sum(stage_s) + (len(stage_s) - 1) * hop_s
    return passage + (n_microbatches - 1) * max(stage_s)


def pipeline_timeline(
    stage_s: Sequence[float], n_microbatches: int, hop_s: float = 0.0
) -> list[Slot]:
    """Return when each stage works on which microbatch: as soon as both are free.

    Holds:  as `pipeline_step_s`.
    Units:  seconds
    Raises: ValueError as `pipeline_step_s`.

    >>> [(slot.stage, slot.start_s) for slot in pipeline_timeline([1.0, 2.0], 2)]
    [(0, 0.0), (1, 1.0), (0, 1.0), (1, 3.0)]
    """
    _check_stages(stage_s, n_microbatches, hop_s)
    free_s, slots = [0.0] * len(stage_s), []
    for microbatch in range(n_microbatches):
        ready_s = 0.0
        for stage, seconds in enumerate(stage_s):
            start_s = max(ready_s, free_s[stage])
            free_s[stage] = start_s + seconds
            ready_s = free_s[stage] + hop_s
            slots.append(Slot(stage, microbatch, start_s, free_s[stage]))
    return slots


def idle_share(slots: Iterable[Slot]) -> float:
    """Return the share of the stages' time, from the first start to the last end, without work.

    Raises: ValueError for no slots.

    >>> idle_share(pipeline_timeline([1.0, 1.0], n_microbatches=3)) == pipeline_bubble(2, 3)
    True
    """
    slots = list(slots)
    if not slots:
        raise ValueError("slots must hold at least one slot, got none")
    span_s = max(slot.end_s for slot in slots) - min(slot.start_s for slot in slots)
    n_stages = len({slot.stage for slot in slots})
    return 1 - sum(slot.end_s - slot.start_s for slot in slots) / (n_stages * span_s)


def pipeline_bytes(n_bytes: int, n_stages: int) -> int:
    """Return the bytes that go from stage to stage, `n_bytes` being the activations of all tokens.

    However many microbatches: their activations are as many numbers together.

    Raises: ValueError for what is no count.

    >>> pipeline_bytes(1000, n_stages=4)
    3000
    """
    return check_count("n_bytes", n_bytes) * (check_count("n_stages", n_stages, at_least=1) - 1)


def _check_stages(stage_s: Sequence[float], n_microbatches: int, hop_s: float) -> None:
    check_count("n_microbatches", n_microbatches, at_least=1)
    if len(stage_s) == 0:
        raise ValueError("stage_s must have at least one stage, got none")
    for name, values in (("stage_s", stage_s), ("hop_s", [hop_s])):
        if not all(value >= 0 for value in values):
            raise ValueError(f"{name} must not be negative, got {values!r}")
