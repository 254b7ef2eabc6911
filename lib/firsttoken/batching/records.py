"""What the simulator and the engine share: a request, and the record of a step."""

import math
from dataclasses import dataclass
from numbers import Real

from firsttoken.checks import check_count, check_whole


@dataclass(frozen=True)
class Request:
    """A request as it reaches the service: when, how long its prompt is and its answer will be.

    The simulator knows the length of the answer; no scheduling decision looks at it. A lower
    `priority` goes first, as in vLLM. `client` says whose request it is.

    Units:  seconds, tokens
    Raises: ValueError for an arrival that is not finite, lengths below one token, and a priority
            that is no whole number.

    >>> request = Request(arrival_s=0.5, n_prompt=512, n_output=128)
    >>> request.priority, request.client
    (0, '')
    """

    arrival_s: float
    n_prompt: int
    n_output: int
    priority: int = 0
    client: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.arrival_s, Real) or not math.isfinite(self.arrival_s):
            raise ValueError(f"arrival_s must be a finite number, got {self.arrival_s!r}")
        check_whole("priority", self.priority)
        # NumPy's scalars, as a generator draws them, would make every sum of the simulator slow.
        object.__setattr__(self, "arrival_s", float(self.arrival_s))
        for name in ("n_prompt", "n_output"):
            object.__setattr__(self, name, check_count(name, getattr(self, name), at_least=1))


@dataclass(frozen=True)
class StepRecord:
    """What ran when, in one step; requests go by their place in the list, or by the engine's ids.

    prefills: (request, new tokens, tokens cached before) of each prompt or part of one. decodes:
    the requests that got their next token. preempted: those that had to make room before the step
    began. gamma: how many guesses a sequence made. kept: how many more tokens the guesses brought,
    for each of the first of `decodes` that made some; empty where nobody guessed.

    Units:  seconds, tokens
    """

    start_s: float
    end_s: float
    prefills: tuple[tuple[int, int, int], ...]
    decodes: tuple[int, ...]
    preempted: tuple[int, ...]
    gamma: int = 0
    kept: tuple[int, ...] = ()
