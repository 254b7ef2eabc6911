"""What an engine says of itself: of all its steps, and of one."""

from collections.abc import Sequence
from dataclasses import dataclass

from firsttoken.batching import StepRecord
from firsttoken.engine.scheduler import Scheduled
from firsttoken.paging import Usage


@dataclass(frozen=True)
class EngineStats:
    """What an engine has done so far, and what it holds now.

    waiting, running: requests now; usage: the pool's blocks now. All else counts from the start:
    submitted, finished, aborted requests, those that failed and those whose deadline passed
    (expired); steps; preemptions; computed_tokens, that went through the model, drafts and those of
    preempted requests again; cached_tokens, that the prefix cache or a shared prompt saved it;
    new_tokens, handed out; drafted_tokens, and accepted_tokens among them; pass_s, the time of the
    model's passes: what is left of the steps is the engine's own.

    Units:  tokens, blocks, seconds
    """

    waiting: int
    running: int
    usage: Usage
    submitted: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    expired: int = 0
    steps: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    new_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    pass_s: float = 0.0


def step_record(
    batch: Sequence[Scheduled],
    n_kept: Sequence[int],
    preempted: tuple[int, ...],
    start_s: float,
    end_s: float,
) -> StepRecord:
    """Return the record of a step as `batching.simulate` makes it.

    `n_kept` are the drafts that each of the batch has kept. Of those that decode, the ones with
    drafts come first.
    """
    drafted = [(part, n) for part, n in zip(batch, n_kept, strict=True) if part.n_drafts]
    plain = [part for part in batch if part.decodes and not part.n_drafts]
    return StepRecord(
        start_s,
        end_s,
        tuple((p.request.id, len(p.tokens), p.n_before) for p in batch if not p.decodes),
        tuple(part.request.id for part in [*(part for part, _ in drafted), *plain]),
        preempted,
        max((part.n_drafts for part in batch), default=0),
        tuple(n for _, n in drafted),
    )
