"""A request: what it asks for, how far it is, and what became of it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from numbers import Real
from typing import Any

from firsttoken.checks import check_count, check_whole
from firsttoken.generate import Proposal
from firsttoken.generate.sequence import Generation, TextOptions, TokenSequence
from firsttoken.paging import PagedSequence
from firsttoken.speculative import Round


class QueueFull(RuntimeError):
    """As many requests wait as an engine lets wait; nothing was submitted."""


@dataclass(frozen=True)
class TokenLogprobs:
    """How likely the model held a token: the logarithm of its probability, and the likeliest ones.

    Probabilities are those of the model's own logits: before temperature, penalties and masks.
    `top` holds (token, logprob) of the likeliest tokens, the first of equal ones first.

    Units:  nats
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Answer(Generation):
    """What became of a request in an engine: a `Generation`, and how it may end here besides.

    `finish_reason` may also be "error" (its callback raised, or no token could be chosen: `error`
    says what), "deadline" or "abort"; `ids` are then what it had got. Where it ended before its
    prompt was read, `prefill_s` is when it ended. `logprobs` are those of each of `ids`, where they
    were asked for.
    """

    error: Exception | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True)
class RequestOptions(TextOptions):
    """What a request may ask for besides its prompt and `SamplingParams`.

    `ignore_eos`, `constraint` and `close_in_time` are those of `generate`. `adapter` names one of
    the engine's; None is the base. A request with a lower `priority` goes first. One that is not
    done within `deadline_s` ends with what it has, before the next step. With `logprobs` the answer
    has the log-probability of each token, and of so many of the likeliest ones beside it.

    Units:  seconds from when it is submitted
    """

    adapter: str | None = None
    priority: int = 0
    deadline_s: float | None = None
    logprobs: int | None = None

    def check(self, adapters: Collection[str], vocab_size: int) -> None:
        """Raise a ValueError for an adapter that is not among these, or a value out of range."""
        if self.adapter is not None and self.adapter not in adapters:
            known = ", ".join(map(repr, adapters)) or "the engine has no adapters"
            raise ValueError(
                f"adapter {self.adapter!r} is unknown, expected None or one of: {known}"
            )
        check_whole("priority", self.priority)
        deadline_s = self.deadline_s
        if deadline_s is not None and not (isinstance(deadline_s, Real) and deadline_s > 0):
            raise ValueError(f"deadline_s must be above 0 seconds, or None; got {deadline_s!r}")
        if self.logprobs is not None and check_count("logprobs", self.logprobs) > vocab_size:
            raise ValueError(
                f"logprobs must be at most the {vocab_size} tokens, got {self.logprobs}"
            )


class Status(Enum):
    """Where a request is."""

    WAITING = "waiting"  # in the queue, without blocks
    RUNNING = "running"  # it has blocks, and a part in each pass
    ENDED = "ended"  # its answer is made


@dataclass(eq=False)
class EngineRequest:
    """A request in the engine: its text, and all that the engine knows of it.

    `siblings` are the answers to the same prompt, this one among them. `ends_s` is its deadline on
    the engine's clock. What belongs to a run is empty while it waits, and made anew when it comes
    back after a preemption.
    """

    id: int
    text: TokenSequence
    options: RequestOptions
    on_token: Callable[[int], object] | None
    ends_s: float
    siblings: list["EngineRequest"]
    status: Status = Status.WAITING
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    error: Exception | None = None
    n_prompt: int = field(init=False)
    rank: tuple[int, int] = field(init=False)  # in the queue: lowest priority, then who came first
    # Of a run:
    cache: PagedSequence | None = None  # its part of the paged cache
    n_to_read: int = 0  # the tokens of its text when the run began
    draft: Any = None  # what its drafts keep for it
    proposal: Proposal = field(default_factory=lambda: Proposal([]))  # the drafts of this step

    def __post_init__(self) -> None:
        self.n_prompt = len(self.text.ids)
        self.rank = int(self.options.priority), self.id

    @property
    def tokens(self) -> list[int]:
        """Its text, and the drafts behind it that this step checks."""
        return [*self.text.ids, *self.proposal.tokens]

    @property
    def n_computed(self) -> int:
        """How many of its tokens have their keys and values in the cache."""
        return 0 if self.cache is None else self.cache.length

    @property
    def decodes(self) -> bool:
        """Whether it has got a token in this run, and so has read its text."""
        return len(self.text.ids) > self.n_to_read

    def n_drafts(self, gamma: int) -> int:
        """Return how many of gamma drafts it can use: its last token needs none."""
        return min(gamma, self.text.max_length - len(self.text.ids) - 1) if self.decodes else 0

    def end_run(self) -> None:
        """Forget what belongs to a run."""
        self.cache, self.draft, self.proposal = None, None, Proposal([])
